//! Faults are really there, and really gone when they are undone.
#![allow(
    clippy::unwrap_used,
    reason = "a panic here is the report; the lint knows test functions but not these"
)]

use libtest_mimic::{Arguments, Trial};
use muster_chaos::faults::{Clock, ClockScope, Damage, Disk, FaultError, Injection, Paused, Traced};
use nix::unistd::Pid;
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

type Test = fn() -> Result<(), FaultError>;

const VICTIM: &str = "--victim";

fn main() {
    if std::env::args().nth(1).as_deref() == Some(VICTIM) {
        return victim();
    }
    if let Err(unsupported) = muster_chaos::sandbox::enter() {
        println!("skipped: {unsupported}");
        return;
    }
    let trials: [(&str, Test); 9] = [
        ("a_paused_process_answers_nothing", a_paused_process_answers_nothing),
        ("flushes_of_a_running_process_become_slow", flushes_of_a_running_process_become_slow),
        ("flushes_of_a_running_process_fail", flushes_of_a_running_process_fail),
        ("a_disk_in_memory_fills_and_empties", a_disk_in_memory_fills_and_empties),
        ("a_disk_in_a_file_fills_and_empties", a_disk_in_a_file_fills_and_empties),
        ("a_frozen_disk_hangs", a_frozen_disk_hangs),
        ("a_power_cut_loses_what_was_not_flushed", a_power_cut_loses_what_was_not_flushed),
        ("a_clock_is_set_while_the_process_runs", a_clock_is_set_while_the_process_runs),
        ("a_log_is_damaged_and_mended", a_log_is_damaged_and_mended),
    ];
    let trials = trials.into_iter().map(|(name, test)| {
        Trial::test(name, move || match test() {
            Err(FaultError::Unsupported(unsupported)) => {
                println!("skipped: {name}: {unsupported}");
                Ok(())
            }
            result => result.map_err(Into::into),
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

/// A process that does what it is told, line by line, and says how it went.
fn victim() {
    let mut file = None;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let answer = match line.split_once(' ').unwrap_or((&line, "")) {
            ("open", path) => {
                let opened = OpenOptions::new().create(true).append(true).open(path);
                opened.map(|opened| file = Some(opened)).map(|()| 0)
            }
            ("write", bytes) => {
                file.as_mut().unwrap().write_all(&vec![7; bytes.parse().unwrap()]).map(|()| 0)
            }
            ("sync", _) => {
                let began = Instant::now();
                file.as_ref().unwrap().sync_data().map(|()| began.elapsed().as_millis())
            }
            // A separate thread: flushes are seldom made by the first.
            ("sync-elsewhere", _) => {
                let file = file.as_ref().unwrap().try_clone().unwrap();
                let began = Instant::now();
                let flushed = std::thread::spawn(move || file.sync_data()).join().unwrap();
                flushed.map(|()| began.elapsed().as_millis())
            }
            ("wall", _) => Ok(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()),
            ("sleep", ms) => {
                let began = Instant::now();
                std::thread::sleep(Duration::from_millis(ms.parse().unwrap()));
                Ok(began.elapsed().as_millis())
            }
            _ => Ok(0),
        };
        match answer {
            Ok(value) => println!("{value}"),
            Err(error) => println!("-{}", error.raw_os_error().unwrap_or(1)),
        }
    }
}

/// A child that ends with this.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Victim {
    child: Ended,
    orders: ChildStdin,
    answers: mpsc::Receiver<i64>,
}

impl Victim {
    fn start(prepare: impl FnOnce(&mut tokio::process::Command)) -> Victim {
        let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
        prepare(command.arg(VICTIM));
        let command = command.as_std_mut();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let (answer, answers) = mpsc::channel();
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                let _ = answer.send(line.parse().unwrap());
            }
        });
        Victim { orders: child.stdin.take().unwrap(), child: Ended(child), answers }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.0.id().cast_signed())
    }

    fn order(&mut self, text: &str) {
        writeln!(self.orders, "{text}").unwrap();
    }

    fn answer_within(&self, limit: Duration) -> Option<i64> {
        self.answers.recv_timeout(limit).ok()
    }

    /// A value, or the error's number below zero.
    fn ask(&mut self, text: &str) -> i64 {
        self.order(text);
        self.answer_within(Duration::from_secs(60)).unwrap()
    }
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let directory = std::env::temp_dir().join(format!("muster-chaos-{name}-{}", unique()));
        std::fs::create_dir_all(&directory).unwrap();
        Scratch(directory)
    }
}

/// Numbers of processes repeat from sandbox to sandbox.
fn unique() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn a_paused_process_answers_nothing() -> Result<(), FaultError> {
    let mut victim = Victim::start(|_| ());
    assert_eq!(victim.ask("hello"), 0);
    let paused = Paused::tree(victim.pid())?;
    assert_eq!(paused.processes().collect::<Vec<_>>(), [victim.pid()]);
    victim.order("hello");
    assert_eq!(victim.answer_within(Duration::from_millis(300)), None);
    paused.resume()?;
    assert_eq!(victim.answer_within(Duration::from_secs(10)), Some(0));

    // A whole tree, and nobody is asked.
    let script = "sh -c 'sleep 1000 & wait' & echo ready; wait";
    let mut tree = Ended(Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap());
    tree.0.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let root = Pid::from_raw(tree.0.id().cast_signed());
    let paused = Paused::tree(root)?;
    let found: Vec<Pid> = paused.processes().collect();
    assert!(found.len() >= 2 && found[0] == root, "{found:?}");
    drop(paused);
    found.iter().for_each(|pid| {
        let _ = nix::sys::signal::kill(*pid, nix::sys::signal::Signal::SIGKILL);
    });
    drop(tree);
    assert!(matches!(Paused::tree(root), Err(FaultError::NoEffect(_))));
    Ok(())
}

fn flushes_of_a_running_process_become_slow() -> Result<(), FaultError> {
    let scratch = Scratch::new("slow");
    let mut victim = Victim::start(|_| ());
    victim.ask(&format!("open {}", scratch.0.join("file").display()));
    victim.ask("write 1");
    assert!((0..500).contains(&victim.ask("sync")));
    block_on(async {
        let slow = Injection::slow_flushes(Duration::from_secs(1));
        let traced = Traced::attach(victim.pid(), &[slow], &scratch.0.join("strace")).await?;
        let took = victim.ask("sync");
        assert!((1000..5000).contains(&took), "{took} ms");
        let took = victim.ask("sync-elsewhere");
        assert!((1000..5000).contains(&took), "{took} ms");
        assert_eq!(traced.met()?, 2);
        // Undone in the middle of a flush.
        victim.order("sync");
        assert!(traced.detach().await? >= 2);
        assert!(victim.answer_within(Duration::from_secs(10)).is_some());
        let took = victim.ask("sync");
        assert!((0..500).contains(&took), "{took} ms");
        let gone = Traced::attach(Pid::from_raw(i32::MAX), &[], &scratch.0.join("strace")).await;
        assert!(matches!(gone, Err(FaultError::Unsupported(_))), "{gone:?}");
        Ok(())
    })
}

fn flushes_of_a_running_process_fail() -> Result<(), FaultError> {
    let scratch = Scratch::new("failing");
    let mut victim = Victim::start(|_| ());
    victim.ask(&format!("open {}", scratch.0.join("file").display()));
    block_on(async {
        let failing = Injection::failing_flushes();
        let traced = Traced::attach(victim.pid(), &[failing], &scratch.0.join("strace")).await?;
        assert_eq!(victim.ask("sync"), -5);
        assert_eq!(traced.detach().await?, 1);
        assert!(victim.ask("sync") >= 0);
        Ok(())
    })
}

const MIB: u64 = 1 << 20;
const ENOSPC: i64 = -28;

fn fills_and_empties(mut disk: Disk) -> Result<(), FaultError> {
    let mut victim = Victim::start(|_| ());
    victim.ask(&format!("open {}", disk.directory().join("file").display()));
    assert_eq!(victim.ask("write 1000000"), 0);
    disk.fill(MIB)?;
    assert!(disk.free_bytes()? <= 2 * MIB, "{}", disk.free_bytes()?);
    assert_eq!(victim.ask("write 4000000"), ENOSPC);
    disk.unfill()?;
    disk.fill(0)?;
    assert!(disk.free_bytes()? <= MIB, "{}", disk.free_bytes()?);
    disk.unfill()?;
    assert!(disk.free_bytes()? >= 8 * MIB);
    assert_eq!(victim.ask("write 4000000"), 0);
    assert!(victim.ask("sync") >= 0);
    Ok(())
}

fn a_disk_in_memory_fills_and_empties() -> Result<(), FaultError> {
    let scratch = Scratch::new("memory");
    fills_and_empties(Disk::memory(&scratch.0.join("disk"), 32 * MIB)?)
}

fn image(scratch: &Path) -> Result<Disk, FaultError> {
    Disk::image(&scratch.join("disk"), &scratch.join("disk.image"), 64 * MIB)
}

fn a_disk_in_a_file_fills_and_empties() -> Result<(), FaultError> {
    let scratch = Scratch::new("image");
    fills_and_empties(image(&scratch.0)?)
}

fn a_frozen_disk_hangs() -> Result<(), FaultError> {
    let scratch = Scratch::new("frozen");
    let mut disk = image(&scratch.0)?;
    let mut victim = Victim::start(|_| ());
    victim.ask(&format!("open {}", disk.directory().join("file").display()));
    disk.freeze()?;
    victim.order("write 1000");
    assert_eq!(victim.answer_within(Duration::from_millis(500)), None);
    disk.thaw()?;
    assert_eq!(victim.answer_within(Duration::from_secs(10)), Some(0));
    assert!(victim.ask("sync") >= 0);
    Ok(())
}

fn a_power_cut_loses_what_was_not_flushed() -> Result<(), FaultError> {
    let scratch = Scratch::new("power");
    let mut disk = image(&scratch.0)?;
    for flushed in [5000, 9000] {
        let file = disk.directory().join("file");
        let mut victim = Victim::start(|_| ());
        victim.ask(&format!("open {}", file.display()));
        victim.ask(&format!("write {}", if flushed == 5000 { 5000 } else { 4000 }));
        assert!(victim.ask("sync") >= 0);
        victim.ask("write 3000");
        victim.ask(&format!("open {}", disk.directory().join("never-flushed").display()));
        victim.ask("write 100");
        drop(victim);
        assert_eq!(std::fs::read(&file).unwrap().len(), flushed + 3000, "killing alone loses nothing");
        disk.power_cut()?;
        assert_eq!(std::fs::read(&file).unwrap(), vec![7; flushed]);
        assert!(!disk.directory().join("never-flushed").exists());
    }
    Ok(())
}

fn a_clock_is_set_while_the_process_runs() -> Result<(), FaultError> {
    let scratch = Scratch::new("clock");
    let clock = Clock::new(&scratch.0.join("wall"), ClockScope::Wall)?;
    let mut victim = Victim::start(|command| clock.give(command));
    let wrong_by = |victim: &mut Victim| {
        let right = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        victim.ask("wall") - i64::try_from(right).unwrap()
    };
    let hour = Duration::from_secs(3600);
    assert!((-1000..1000).contains(&wrong_by(&mut victim)));
    clock.ahead(hour)?;
    let off = wrong_by(&mut victim);
    assert!((3_599_000..3_601_000).contains(&off), "{off} ms");
    let slept = victim.ask("sleep 200");
    assert!((200..2000).contains(&slept), "a monotonic clock is no clock on the wall: {slept} ms");
    clock.behind(hour)?;
    let off = wrong_by(&mut victim);
    assert!((-3_601_000..-3_599_000).contains(&off), "{off} ms");
    clock.right()?;
    assert!((-1000..1000).contains(&wrong_by(&mut victim)));

    // One that runs at twice its speed from the start: two seconds on its clock are one of ours.
    let clock = Clock::new(&scratch.0.join("all"), ClockScope::All)?;
    clock.rate(2000)?;
    let mut victim = Victim::start(|command| clock.give(command));
    let began = Instant::now();
    let slept = victim.ask("sleep 2000");
    let took = began.elapsed();
    assert!(slept >= 1990, "{slept} ms on its clock");
    assert!(took >= Duration::from_millis(900) && took < Duration::from_millis(1900), "{took:?} of ours");
    Ok(())
}

fn a_log_is_damaged_and_mended() -> Result<(), FaultError> {
    let scratch = Scratch::new("damage");
    let log = scratch.0.join("log");
    std::fs::create_dir_all(&log).unwrap();
    let used = 12_288 + 100_000;
    let mut genuine: Vec<u8> = (0..used).map(|at| (at % 251 + 1) as u8).collect();
    genuine.resize(used + 3_000_000, 0);
    let full = log.join("00000000000000000001.segment");
    std::fs::write(&full, &genuine).unwrap();
    // The newest file has no entries yet.
    let mut empty = genuine[..12_000].to_vec();
    empty.resize(1_000_000, 0);
    std::fs::write(log.join("00000000000000000900.segment"), &empty).unwrap();

    let damage = Damage::log_entry(&scratch.0, 7)?;
    assert_eq!(damage, {
        let again = damage.clone();
        again.clone().undo()?;
        assert_eq!(std::fs::read(&full).unwrap(), genuine);
        Damage::log_entry(&scratch.0, 7)?
    });
    assert_eq!(damage.path(), full);
    let damaged = std::fs::read(&full).unwrap();
    let differ: Vec<u64> =
        (0..genuine.len()).filter(|at| damaged[*at] != genuine[*at]).map(|at| at as u64).collect();
    assert_eq!(differ, damage.offsets().collect::<Vec<_>>());
    assert!((12_288 + 25_000..12_288 + 75_000).contains(&differ[0]));
    damage.undo()?;
    assert_eq!(std::fs::read(&full).unwrap(), genuine);

    Damage::lose(&scratch.0)?;
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0);
    assert!(matches!(Damage::log_entry(&scratch.0, 7), Err(FaultError::System { .. })));
    std::fs::create_dir_all(&log).unwrap();
    assert!(matches!(Damage::log_entry(&scratch.0, 7), Err(FaultError::NoEffect(_))));
    Ok(())
}
