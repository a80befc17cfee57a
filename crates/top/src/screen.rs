//! The terminal: what it was before, keys, signals and frames.
//!
//! **Invariant:** the terminal is restored when the command ends, however it ends.

use std::io::{self, Write as _};
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use muster_console::{Exit, Failure};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyEvent};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::draw::{self, Canvas, Clock, Theme};
use crate::feed::Feeds;
use crate::model::Model;
use crate::view::{Action, View};

/// Between two frames when much happens.
const FRAME_EVERY: Duration = Duration::from_millis(200);
/// Between two frames when nothing happens: ages go on.
const TICK: Duration = Duration::from_secs(1);
/// How long the thread that reads keys waits before it looks whether it is to end.
const KEYS_EVERY: Duration = Duration::from_millis(100);
/// Updates that are taken in at once.
const UPDATES_AT_ONCE: usize = 4_096;
/// Keys that wait.
const KEYS_MAX: usize = 256;

/// Gives the terminal back as it was.
fn restore() {
    // Nothing is left to do where the terminal is gone.
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = io::stdout().flush();
}

/// The terminal while a view is drawn on it.
struct Screen {
    terminal: Terminal<CrosstermBackend<io::Stdout>>,
}

impl Screen {
    fn enter() -> io::Result<Screen> {
        enable_raw_mode()?;
        let entered = execute!(io::stdout(), EnterAlternateScreen, Hide);
        let terminal = entered.and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        match terminal {
            Ok(terminal) => Ok(Screen { terminal }),
            Err(error) => {
                restore();
                Err(error)
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// A message of a panic is read on the terminal as it was before.
fn restore_on_panic() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        restore();
        before(info);
    }));
}

/// What the terminal says.
enum Input {
    Key(KeyEvent),
    Resized,
    /// It is gone.
    Lost,
}

/// Reads keys on a thread, which waits for them, until the flag is set.
fn read_keys(ended: Arc<AtomicBool>) -> mpsc::Receiver<Input> {
    let (sender, keys) = mpsc::channel(KEYS_MAX);
    std::thread::spawn(move || {
        while !ended.load(Ordering::Relaxed) {
            let input = match event::poll(KEYS_EVERY) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let input = match input {
                Ok(Event::Key(key)) => Input::Key(key),
                Ok(Event::Resize(..)) => Input::Resized,
                Ok(_) => continue,
                Err(_) => Input::Lost,
            };
            let is_last = matches!(input, Input::Lost);
            if sender.blocking_send(input).is_err() || is_last {
                return;
            }
        }
    });
    keys
}

/// Signals that end a command.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn any(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since a moment.
pub(crate) fn since(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Shows the view until the user or a signal ends it.
pub(crate) async fn run(mut feeds: Feeds, mut view: View, theme: Theme) -> Result<Exit, Failure> {
    let mut signals = Signals::new()?;
    restore_on_panic();
    let mut screen = Screen::enter()?;
    let ended = Arc::new(AtomicBool::new(false));
    let mut keys = read_keys(ended.clone());
    let begun = Instant::now();
    let mut model = Model::default();
    let exit = loop {
        draw_frame(&mut screen, &model, &view, begun, theme)?;
        let wanted = view.to_explain(&model, since(begun));
        if *feeds.to_explain.borrow() != wanted {
            feeds.to_explain.send_replace(wanted);
        }
        tokio::select! {
            // Keys are answered at once, whatever else happens.
            biased;
            () = signals.any() => break Exit::Ok,
            input = keys.recv() => match input {
                Some(Input::Key(key)) => {
                    if view.key(&model, key) == Action::Quit {
                        break Exit::Ok;
                    }
                }
                Some(Input::Resized) => {}
                Some(Input::Lost) | None => break Exit::Ok,
            },
            update = feeds.updates.recv() => {
                let Some(update) = update else { break Exit::Failed };
                model.apply(update, since(begun));
                take_more(&mut feeds, &mut model, begun);
                // Of changes that come in quick succession there is one frame, unless a key is pressed.
                tokio::select! {
                    biased;
                    () = signals.any() => break Exit::Ok,
                    () = tokio::time::sleep(FRAME_EVERY), if keys.is_empty() => take_more(&mut feeds, &mut model, begun),
                    () = std::future::ready(()), if !keys.is_empty() => {}
                }
            }
            () = tokio::time::sleep(TICK) => {}
        }
    };
    ended.store(true, Ordering::Relaxed);
    Ok(exit)
}

/// Takes in what has come already.
fn take_more(feeds: &mut Feeds, model: &mut Model, begun: Instant) {
    for _ in 0..UPDATES_AT_ONCE {
        match feeds.updates.try_recv() {
            Ok(update) => model.apply(update, since(begun)),
            Err(_) => return,
        }
    }
}

fn draw_frame(
    screen: &mut Screen,
    model: &Model,
    view: &View,
    begun: Instant,
    theme: Theme,
) -> Result<(), Failure> {
    let clock = Clock { unix_ms: unix_ms(), monotonic_ms: since(begun) };
    screen.terminal.draw(|frame| {
        let area = frame.area();
        let mut canvas = Canvas { buffer: frame.buffer_mut(), theme };
        draw::frame(model, view, clock, area, &mut canvas);
    })?;
    Ok(())
}
