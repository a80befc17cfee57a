//! What the long-running commands share: logging, signals, and how an error is shown.

use muster_local_cluster::DIE_WITH_PARENT;
use muster_types::{LogFormat, Name};
use std::error::Error;
use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// How long calls that block may take to end when the work is over.
const BLOCKING_CALLS_MAX: Duration = Duration::from_millis(500);

/// Bytes of a configuration file that are looked at for the form of log lines.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Characters that are shown of a form that there is not.
const NAMED_MAX: usize = 64;

/// In the environment: the form of log lines, which goes before that of a configuration file.
const LOG_FORMAT: &str = "MUSTER_LOG_FORMAT";

/// A form of log lines that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{LOG_FORMAT} must be text or json, got {0:?}")]
pub struct LogFormatError(String);

/// The form of log lines that `MUSTER_LOG_FORMAT` names, else `log_format` of a configuration file, else that for people. The log
/// begins before the file is read as a configuration, which refuses what is wrong with it.
///
/// # Errors
/// When the variable names none.
pub fn log_format(config: Option<&Path>) -> Result<LogFormat, LogFormatError> {
    log_format_of(std::env::var_os(LOG_FORMAT).as_deref(), config)
}

fn log_format_of(variable: Option<&OsStr>, config: Option<&Path>) -> Result<LogFormat, LogFormatError> {
    if let Some(named) = variable {
        let form = named.to_str().and_then(LogFormat::parse);
        return form.ok_or_else(|| LogFormatError(named.to_string_lossy().chars().take(NAMED_MAX).collect()));
    }
    let is_small = |path: &&Path| std::fs::metadata(path).is_ok_and(|file| file.len() <= CONFIG_BYTES_MAX);
    let text = config.filter(is_small).and_then(|path| std::fs::read_to_string(path).ok());
    let table = text.and_then(|text| text.parse::<toml::Table>().ok());
    let named = table.as_ref().and_then(|table| table.get("log_format")?.as_str());
    Ok(named.and_then(LogFormat::parse).unwrap_or_default())
}

/// Sends log lines to standard error. `MUSTER_LOG` filters them (`info`, `muster_engine=debug`, …).
pub fn log_to_stderr(usual: &str, format: LogFormat) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("MUSTER_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(usual));
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(Lines::default()).with_ansi(false);
    let of_node = NodeFormat { format, node: &NODE, inner: () };
    match format {
        LogFormat::Text => lines.map_event_format(|inner| of_node.with(inner)).init(),
        LogFormat::Json => {
            lines.json().flatten_event(true).map_event_format(|inner| of_node.with(inner)).init();
        }
    }
}

/// The node that lines of this process are about where they name none.
static NODE: OnceLock<Name> = OnceLock::new();

/// From now on lines that name no node name this one, for an agent is of one host. Spans would not do: tasks and threads begin outside of them.
/// What is no name is refused with the rest of the configuration.
pub fn log_as_node(name: &str) {
    if let Some(name) = Name::new(name) {
        // An agent is of the same node until it ends.
        let _ = NODE.set(name);
    }
}

/// Writes lines as `inner` does, with the node at their end where they name none.
#[derive(Clone, Copy)]
struct NodeFormat<F> {
    format: LogFormat,
    node: &'static OnceLock<Name>,
    inner: F,
}

impl NodeFormat<()> {
    fn with<F>(self, inner: F) -> NodeFormat<F> {
        NodeFormat { format: self.format, node: self.node, inner }
    }
}

impl<S, N, F> FormatEvent<S, N> for NodeFormat<F>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &tracing::Event<'_>,
    ) -> std::fmt::Result {
        let is_named = event.fields().any(|field| field.name() == "node");
        let Some(node) = self.node.get().filter(|_| !is_named) else {
            return self.inner.format_event(ctx, writer, event);
        };
        let mut line = String::new();
        self.inner.format_event(ctx, Writer::new(&mut line), event)?;
        writer.write_str(&with_node(line, self.format, node))
    }
}

/// A line with the node at its end. Names have no character that either form would escape.
fn with_node(mut line: String, format: LogFormat, node: &Name) -> String {
    let (end, more) = match format {
        LogFormat::Text => ("\n", format!(" node={node}\n")),
        LogFormat::Json => ("}\n", format!(",\"node\":\"{node}\"}}\n")),
    };
    if line.ends_with(end) {
        line.truncate(line.len() - end.len());
        line.push_str(&more);
    }
    line
}

/// Lines on standard error that nobody has to take: one that cannot be written, because the disk below is full or the
/// reader has gone, is dropped and counted, and the process goes on. The next one that can be written says how many.
#[derive(Clone, Default)]
struct Lines {
    lost: Arc<AtomicU64>,
}

impl Lines {
    fn write_to(&self, mut out: impl Write, line: &[u8]) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0
            && out.write_all(format!("{lost} lines of the log could not be written\n").as_bytes()).is_err()
        {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
            return;
        }
        if out.write_all(line).and_then(|()| out.flush()).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Write for Lines {
    /// A whole line: the subscriber writes each at once.
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.write_to(std::io::stderr().lock(), line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for Lines {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        self.clone()
    }
}

/// Ends this process when the one that started it ends, where that was asked for.
pub fn die_with_parent() {
    if std::env::var_os(DIE_WITH_PARENT).is_none() {
        return;
    }
    let parent = nix::unistd::getppid();
    if let Err(error) = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL) {
        tracing::warn!(%error, "this process will not end with its parent");
    }
    // The parent may have ended before the request.
    if nix::unistd::getppid() != parent {
        std::process::exit(1);
    }
}

/// A runtime with a token that SIGINT and SIGTERM cancel; with `threads` threads, or one for each processor.
pub fn run<F: Future<Output = ExitCode>>(
    threads: Option<usize>,
    work: impl FnOnce(CancellationToken) -> F,
) -> ExitCode {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    let runtime = match builder.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&error),
    };
    let code = runtime.block_on(async {
        let shutdown = CancellationToken::new();
        if let Err(error) = cancel_on_signals(&shutdown) {
            return complain(&error);
        }
        work(shutdown).await
    });
    // Dropping it would wait for every blocking call, a snapshot being written among them.
    runtime.shutdown_timeout(BLOCKING_CALLS_MAX);
    code
}

fn cancel_on_signals(shutdown: &CancellationToken) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let shutdown = shutdown.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        shutdown.cancel();
    });
    Ok(())
}

/// Prints an error with its causes, one line, which begins as those of all commands do.
pub fn complain(error: &dyn Error) -> ExitCode {
    // The exit code says it too, where standard error takes nothing.
    let _ = writeln!(std::io::stderr().lock(), "{}", complaint(error));
    ExitCode::FAILURE
}

fn complaint(error: &dyn Error) -> String {
    let mut text = format!("error: {error}");
    let mut cause = error.source();
    while let Some(inner) = cause {
        let said = inner.to_string();
        // Some libraries repeat their cause in their own text.
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn an_error_begins_as_those_of_other_commands_and_has_its_causes() {
        let cause = std::io::Error::new(std::io::ErrorKind::NotFound, "no such file");
        assert_eq!(complaint(&cause), "error: no such file");
        let whole = std::io::Error::other(cause);
        assert_eq!(complaint(&whole), "error: no such file", "what a library repeats is there once");
    }

    #[test]
    fn the_form_of_log_lines_is_that_of_the_configuration_and_no_mistake_of_it_stops_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("server.toml");
        for (text, expected) in [
            ("log_format = \"json\"\n[tls]\n", LogFormat::Json),
            ("log_format = \"text\"\n", LogFormat::Text),
            ("log_format = 7\n", LogFormat::Text),
            ("no = toml = at all", LogFormat::Text),
            ("[other]\nlog_format = \"json\"\n", LogFormat::Text),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(log_format_of(None, Some(&path)), Ok(expected), "{text}");
        }
        assert_eq!(log_format_of(None, None), Ok(LogFormat::Text));
    }

    #[test]
    fn a_form_of_log_lines_that_the_environment_names_is_there_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("server.toml");
        std::fs::write(&path, "log_format = \"text\"\n").unwrap();
        let of = |named: &str| log_format_of(Some(OsStr::new(named)), Some(&path));
        assert_eq!((of("json"), of("text")), (Ok(LogFormat::Json), Ok(LogFormat::Text)));
        for wrong in ["nonsense", "JSON", ""] {
            let refused = of(wrong).unwrap_err().to_string();
            assert_eq!(refused, format!("MUSTER_LOG_FORMAT must be text or json, got {wrong:?}"));
        }
    }

    #[derive(Clone, Default)]
    struct LineBuffer(Arc<parking_lot::Mutex<Vec<u8>>>);

    impl Write for LineBuffer {
        fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_names_no_node_gets_that_of_the_process_in_either_form() {
        static OWN: OnceLock<Name> = OnceLock::new();
        let say = || {
            tracing::info!(job = "job-1", "ended");
            tracing::info!(node = "h2", "another one");
        };
        let (text, json) = (LineBuffer::default(), LineBuffer::default());
        let (of_text, of_json) = (text.clone(), json.clone());
        let lines = || tracing_subscriber::fmt().with_ansi(false).without_time();
        let form = |format| NodeFormat { format, node: &OWN, inner: () };
        let plain = lines().with_writer(move || of_text.clone());
        let plain = plain.map_event_format(|inner| form(LogFormat::Text).with(inner)).finish();
        let objects = lines().json().flatten_event(true).with_writer(move || of_json.clone());
        let objects = objects.map_event_format(|inner| form(LogFormat::Json).with(inner)).finish();
        tracing::subscriber::with_default(plain, || {
            tracing::info!("before the name is known");
            OWN.set(Name::literal("h1")).unwrap();
            say();
        });
        tracing::subscriber::with_default(objects, say);
        let text = String::from_utf8(text.0.lock().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].ends_with("before the name is known"), "{text}");
        assert!(lines[1].ends_with("ended job=\"job-1\" node=h1"), "{text}");
        assert!(lines[2].ends_with("another one node=\"h2\""), "{text}");
        let json = String::from_utf8(json.0.lock().clone()).unwrap();
        let nodes: Vec<String> = json
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .map(|line| line["node"].as_str().unwrap_or_default().to_owned())
            .collect();
        assert_eq!(nodes, ["h1", "h2"], "{json}");
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_the_count_is_said() {
        let lines = Lines::default();
        // A full disk, and a pipe whose reader has gone.
        let full = File::options().write(true).open("/dev/full").unwrap();
        lines.write_to(&full, b"one\n");
        let (reading, writing) = std::io::pipe().unwrap();
        drop(reading);
        lines.write_to(&writing, b"two\n");
        lines.write_to(&full, b"three\n");
        let mut out = Vec::new();
        lines.write_to(&mut out, b"four\n");
        lines.write_to(&mut out, b"five\n");
        assert_eq!(String::from_utf8(out).unwrap(), "3 lines of the log could not be written\nfour\nfive\n");
    }
}
