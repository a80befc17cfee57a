//! Connections to ports of workers, through a replica that does not lead: only to what a process of the worker listens on, and
//! until the worker ends.

use muster_client::Client;
use muster_client::forward::Connections;
use muster_types::RefusalCode;
use muster_wire::v1::{self, JobPhase};
use std::process::Stdio;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{
    Agents, Cluster, PATIENCE, eventually, heavy, is_finished, job, say, submit, wait_for_job,
};

/// Says its port in a file and gives back, behind the end of each connection, what came.
const ECHO: &str = "\
import os, socket, sys, threading
def serve(connection):
    data = b''
    while piece := connection.recv(65536):
        data += piece
    connection.sendall(data)
    connection.close()
listener = socket.create_server(('127.0.0.1', 0))
with open(sys.argv[1] + '.new', 'w') as file:
    file.write(str(listener.getsockname()[1]))
os.rename(sys.argv[1] + '.new', sys.argv[1])
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
";

pub fn start(id: &str, port: u16) -> v1::ForwardPortStart {
    v1::ForwardPortStart { job_id: id.to_owned(), port: port.into(), ..Default::default() }
}

pub async fn refusal(client: &Client, start: v1::ForwardPortStart) -> (Option<RefusalCode>, String) {
    let error = client.forward_port(start).await.err().expect("it is refused");
    (error.refused().and_then(|refused| refused.code), format!("{error:?}"))
}

/// What comes back of what is sent over one connection, up to the ends of both.
async fn echoed(connections: &Connections, sent: &[u8]) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mut program =
        TcpStream::connect(listener.local_addr().expect("it has one")).await.expect("it listens");
    let (accepted, _) = listener.accept().await.expect("it was just opened");
    let connection = connections.open().await.expect("there is a place");
    let carried = tokio::spawn(connection.carry(accepted));
    program.write_all(sent).await.expect("it is taken");
    program.shutdown().await.expect("half of it goes on");
    let mut back = Vec::new();
    let reading = program.read_to_end(&mut back);
    tokio::time::timeout(PATIENCE, reading).await.expect("it comes back").expect("whole");
    let _ = carried.await;
    back
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_of_a_worker_is_reached_and_nothing_else_of_its_host() {
    let python = tokio::process::Command::new("python3").arg("--version").stdin(Stdio::null()).output().await;
    if !python.is_ok_and(|ran| ran.status.success()) {
        return say("skipped: ports of workers: there is no python3 for the worker to listen with");
    }
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    let _agents = Agents::start(&cluster, &["h1"]).await;
    let client = cluster.client_from(cluster.follower().await);
    let said = cluster.scratch.path().join("port");
    let id = submit(&client, job("echo", &["python3", "-c", ECHO, &said.display().to_string()])).await;
    wait_for_job(&client, &id, |job| job.phase() == JobPhase::Running).await;
    let port: u16 =
        eventually("the worker listens", || async { std::fs::read_to_string(&said).ok()?.parse().ok() })
            .await;

    let mut forward = client.forward_port(start(&id, port)).await.expect("the worker listens");
    // More than what may wait on the way, over one connection and another.
    let large = vec![b'x'; 1 << 20];
    let connections = forward.connections();
    let asked = async {
        assert_eq!(echoed(&connections, &large).await.len(), large.len());
        assert_eq!(echoed(&connections, b"again").await, b"again");
    };
    tokio::select! {
        () = asked => {}
        ended = forward.serve() => panic!("{ended:?}"),
    }
    // A port of this test is none of the worker's, and its refusal says which are.
    let foreign = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let foreign_port = foreign.local_addr().expect("it has one").port();
    let (code, text) = refusal(&client, start(&id, foreign_port)).await;
    assert!(
        code == Some(RefusalCode::ExecUnavailable) && text.contains(&format!("listen on {port}")),
        "{text}"
    );
    assert_eq!(refusal(&client, start(&id, 0)).await.0, Some(RefusalCode::InvalidField));
    assert_eq!(refusal(&client, start("job-1", port)).await.0, Some(RefusalCode::JobNotFound));
    let log =
        cluster.operated(&["log", "tail", "-n", "1000", "--decision", "port_forward_opened", "-o", "json"]);
    let log = log.await;
    assert!(
        log.contains("port_forward_opened") && log.contains(&port.to_string()),
        "it is in the log: {log}"
    );

    cluster.operated(&["cancel", &id]).await;
    let ended = tokio::time::timeout(PATIENCE, forward.serve()).await.expect("it ends with the worker");
    assert!(ended.is_err(), "and says why");
    wait_for_job(&client, &id, is_finished).await;
    assert_eq!(refusal(&client, start(&id, port)).await.0, Some(RefusalCode::JobFinished));
    cluster.assert_digests_agree().await;
}
