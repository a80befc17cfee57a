//! Telling a worker that it has to stop, in addition to SIGTERM: a file, and a call where the job asks for one.
//!
//! The file is there before the signal, unless the disk hangs: a stop waits for it no longer than
//! [`FILE_MAX`]. The call is made at the same time and nobody waits for its outcome; a program that does not listen
//! has the signal. Ports are the host's, and two gangs may have chosen the same one: the call is made only where the
//! worker itself listens. When the lease runs out nobody may be there to tell: then the signal is all.
//!
//! **Invariant:** however many workers stop at a time, and whatever they have open, who listens is looked for by a few threads, which
//! look at a limited number of open files for each worker.

use crate::executor::StopRequest;
use crate::process::task::TaskDir;
use crate::process::{ports, processes};
use crate::rules::{HttpNotice, WorkerKey};
use muster_types::StopReason;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// What a stop waits for the file.
pub const FILE_MAX: Duration = Duration::from_millis(200);
/// What the call may take, from the connection to the first byte of its answer.
const CALL_MAX: Duration = Duration::from_secs(2);
/// Looks for who listens that go on at a time, in this process: each takes a thread of those that file work is done on.
const LOOKS_MAX: usize = 4;
static LOOKS: Semaphore = Semaphore::const_new(LOOKS_MAX);

/// The notice as a program reads it.
#[must_use]
pub fn text(key: WorkerKey, request: StopRequest) -> String {
    let StopRequest { grace, reason } = request;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let notice = serde_json::json!({
        "kind": "stop",
        "job_id": key.job.to_string(),
        "fencing_token": key.token.to_string(),
        "rank": key.rank,
        // Null where it is not known.
        "reason": reason.map(StopReason::name),
        "grace_ms": u64::try_from(grace.as_millis()).unwrap_or(u64::MAX),
        // For people and programs that plan; what counts the grace is a clock that nobody sets.
        "deadline_unix_ms": u64::try_from((now + grace).as_millis()).unwrap_or(u64::MAX),
    });
    format!("{notice}\n")
}

/// Puts the file into the worker's directory; it appears whole.
///
/// # Errors
/// When it cannot be written.
pub fn write(task: &TaskDir, text: &str) -> std::io::Result<()> {
    // Not synced: after a power cut there is no worker to read it.
    let aside = task.notice().with_extension("part");
    std::fs::write(&aside, text)?;
    std::fs::rename(&aside, task.notice())
}

/// The call that a worker wants, and its shim. None for one that was not launched yet, or has ended and only waits for its files to be
/// kept: it listens to nobody, and its shim's number may be another process's.
pub(crate) fn wanted(task: &TaskDir) -> Option<(HttpNotice, i32)> {
    let call = task.spec().ok().flatten()?.notice?;
    let running = task.running().ok().flatten()?;
    matches!(task.exit(), Ok(None)).then_some((call, running.shim_pid))
}

/// Makes the call, where the worker below this shim is who listens; what comes of it is logged.
pub async fn call(key: WorkerKey, shim: i32, to: HttpNotice, text: String) {
    let port = to.port;
    let look = move || listener(port, &processes::family(shim), ports::OPEN_FILES_MAX);
    match in_turn(&LOOKS, look).await {
        Ok(Listener::Own) => {}
        Err(why) => {
            return tracing::warn!(job = %key.job, worker = %key, port, why, "no notice by HTTP");
        }
        Ok(Listener::Nobody) => {
            return tracing::info!(job = %key.job, worker = %key, port, "no notice by HTTP: nobody listens");
        }
        Ok(Listener::Another) => {
            return tracing::warn!(
                job = %key.job,
                worker = %key,
                port,
                "no notice by HTTP: the port is not the worker's"
            );
        }
    }
    match tokio::time::timeout(CALL_MAX, post(&to, &text)).await {
        Ok(Ok(status)) => tracing::info!(
            job = %key.job,
            worker = %key,
            port = to.port,
            status,
            "notice given"
        ),
        Ok(Err(error)) => tracing::warn!(
            job = %key.job,
            worker = %key,
            port = to.port,
            %error,
            "notice not given by HTTP"
        ),
        Err(_) => tracing::warn!(
            job = %key.job,
            worker = %key,
            port = to.port,
            "notice by HTTP was not answered in time"
        ),
    }
}

/// Who listens at a port of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listener {
    Nobody,
    /// Only the given processes.
    Own,
    /// Somebody else, or somebody else as well.
    Another,
}

/// Looks who that is; an error where there is too much to look at.
fn listener(port: u16, processes: &BTreeSet<i32>, open_files_max: usize) -> Result<Listener, String> {
    let all = ports::listeners(std::process::id().cast_signed())?;
    let at_port: BTreeSet<u64> = all.iter().filter(|one| one.port == port).map(|one| one.inode).collect();
    if at_port.is_empty() {
        return Ok(Listener::Nobody);
    }
    let own = ports::sockets_of(processes, open_files_max)?;
    Ok(if at_port.is_subset(&own) { Listener::Own } else { Listener::Another })
}

/// Does work that may block, once there is a turn for it.
async fn in_turn<T: Send + 'static>(
    turns: &'static Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    // Nobody closes it, so there always is one.
    let turn = turns.acquire().await.ok();
    crate::offload::blocking(move || {
        // Until the work has ended, not until somebody stops to wait for it.
        let _turn = turn;
        work()
    })
    .await
}

/// One request by RFC 9112, section 3; the status line is all that is read.
async fn post(to: &HttpNotice, text: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, to.port)).await?;
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        to.path,
        to.port,
        text.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(text.as_bytes()).await?;
    let mut first = [0u8; 128];
    let mut length = 0;
    while length < first.len() && !first[..length].contains(&b'\n') {
        match stream.read(&mut first[length..]).await? {
            0 => break,
            read => length += read,
        }
    }
    let line = String::from_utf8_lossy(&first[..length]);
    Ok(line.lines().next().unwrap_or_default().to_owned())
}

/// Whether a path fits into the address of a Unix socket (`unix`(7): 108 bytes with the final zero).
#[must_use]
pub fn fits_socket(path: &Path) -> bool {
    path.as_os_str().len() < 108
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::{FencingToken, JobId, LogIndex};
    use tokio::net::TcpListener;

    fn key() -> WorkerKey {
        WorkerKey { job: JobId(1024), token: FencingToken { generation: 1, log_index: LogIndex(7) }, rank: 3 }
    }

    #[test]
    fn the_notice_says_who_and_how_long() {
        let read = |request| serde_json::from_str::<serde_json::Value>(&text(key(), request)).unwrap();
        assert!(read(Duration::ZERO.into())["reason"].is_null());
        let reason = Some(StopReason::Preempted);
        let notice = read(StopRequest { grace: Duration::from_secs(30), reason });
        assert_eq!(notice["reason"], "preempted");
        assert_eq!((&notice["rank"], &notice["grace_ms"]), (&3.into(), &30_000.into()));
        assert_eq!(notice["fencing_token"], "1.7");
    }

    #[tokio::test]
    async fn only_who_listens_itself_is_told() {
        let own = BTreeSet::from([std::process::id().cast_signed()]);
        let listener =
            |port: u16, processes: &BTreeSet<i32>| listener(port, processes, ports::OPEN_FILES_MAX).unwrap();
        let mine = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = mine.local_addr().unwrap().port();
        assert_eq!(listener(port, &own), Listener::Own);
        assert_eq!(listener(port, &BTreeSet::new()), Listener::Another);
        drop(mine);
        assert_eq!(listener(port, &own), Listener::Nobody);
    }

    #[tokio::test]
    async fn no_more_open_files_are_looked_at_than_that() {
        let own = BTreeSet::from([std::process::id().cast_signed()]);
        let mine = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = mine.local_addr().unwrap().port();
        // This process has at least its standard streams and that socket open.
        let why = listener(port, &own, 3).unwrap_err();
        assert!(why.contains("too many open files"), "{why}");
    }

    #[tokio::test]
    async fn a_few_looks_go_on_at_a_time_however_many_workers_stop() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        use std::sync::{Arc, Barrier};
        static TURNS: Semaphore = Semaphore::const_new(LOOKS_MAX);
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let together = Arc::new(Barrier::new(LOOKS_MAX));
        let looks = (0..4 * LOOKS_MAX).map(|_| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            let together = Arc::clone(&together);
            in_turn(&TURNS, move || {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                together.wait();
                running.fetch_sub(1, Ordering::SeqCst);
            })
        });
        futures::future::join_all(looks).await;
        assert_eq!(most.load(Ordering::SeqCst), LOOKS_MAX);
    }

    #[tokio::test]
    async fn the_call_is_a_request_that_a_server_understands() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut got = vec![0; 4096];
            let mut length = 0;
            while !got[..length].ends_with(b"body") {
                length += stream.read(&mut got[length..]).await.unwrap();
            }
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            String::from_utf8_lossy(&got[..length]).into_owned()
        });
        let to = HttpNotice { port, path: "/preempt".into() };
        assert_eq!(post(&to, "body").await.unwrap(), "HTTP/1.1 204 No Content");
        let request = serving.await.unwrap();
        assert!(request.starts_with("POST /preempt HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("\r\nContent-Length: 4\r\n"), "{request}");
    }
}
