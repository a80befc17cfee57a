//! `muster port-forward`.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use muster_client::PortForward;
use muster_client::forward::{CONNECTIONS_MAX, Connections};
use muster_console::{Console, Exit, Failure, Global, one_line};
use muster_types::limits;
use muster_wire::v1;
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::complete;
use crate::find::{self, Find};
use crate::interrupt::Interrupts;

/// The pause where no connection can be accepted, for instance with too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Lines about connections that wait to be printed; more are left out.
const LINES_WAITING_MAX: usize = 16;

/// Options of `muster port-forward`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster port-forward job-3f0 6006               TensorBoard at http://127.0.0.1:6006
  muster port-forward train 8888:9999 --rank 3   port 8888 of rank 3, here at 9999
  muster port-forward train 8265:0 6006          two ports; the first one at any free port here, which is printed

Programs connect to this machine, and the connections come out at the worker, on its own host. Only ports on which processes of
that worker listen can be reached; a refusal names them. It runs until Ctrl-C, until the worker ends, or until nothing was sent
for an hour. The worker's program has to ask for a password or a token itself: others of this machine can connect here as well.
That it was opened, by whom, is in the log of decisions.")]
pub struct PortForwardArgs {
    /// The job's id, or its name
    #[arg(add = ArgValueCompleter::new(complete::jobs))]
    id: String,
    /// A port of the worker, and the port here if that is another; 0 here for any that is free
    #[arg(value_name = "PORT[:LOCAL]", required = true, value_parser = parse_ports, num_args = 1..=16)]
    ports: Vec<Ports>,
    /// Which worker
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..i64::from(limits::GANG_WORKERS_MAX)))]
    rank: u32,
    /// The address of this machine that programs connect to
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
}

/// A port of a worker and one of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ports {
    remote: u16,
    local: u16,
}

fn parse_ports(text: &str) -> Result<Ports, String> {
    const RULE: &str = "must be PORT or PORT:LOCAL, with ports of 1 to 65535; LOCAL may be 0";
    let number = |word: &str| word.parse::<u16>().map_err(|_| RULE.to_owned());
    let (remote, local) = match text.split_once(':') {
        Some((remote, local)) => (number(remote)?, number(local)?),
        None => (number(text)?, number(text)?),
    };
    if remote == 0 { Err(RULE.to_owned()) } else { Ok(Ports { remote, local }) }
}

pub async fn run(global: &Global, console: &Console, args: PortForwardArgs) -> Result<Exit, Failure> {
    let PortForwardArgs { id, ports, rank, address } = args;
    // Before anything is recorded.
    let mut listeners = Vec::new();
    for Ports { remote, local } in ports {
        listeners.push((remote, listen(SocketAddr::new(address, local)).await?));
    }
    let client = global.client().await?;
    let job_id = find::resolve(&client, &id, Find::Newest).await?;
    if !address.is_loopback() {
        console.progress(&format!("who can reach {address} can reach these ports of the worker"));
    }
    let (tell, mut lines) = mpsc::channel(LINES_WAITING_MAX);
    let mut running = JoinSet::new();
    for (port, listener) in listeners {
        let start = v1::ForwardPortStart { job_id: job_id.clone(), rank, token: None, port: port.into() };
        let forward = client.forward_port(start).await?;
        let here = listener.local_addr()?;
        if console.is_structured() {
            console.event(&json!({"address": here.to_string(), "port": port, "rank": rank}))?;
        } else {
            console.line(&format!("{here} goes to port {port} of rank {rank}"))?;
        }
        running.spawn(serve(forward, listener, port, tell.clone()));
    }
    let mut interrupts = Interrupts::listen()?;
    loop {
        tokio::select! {
            Some(line) = lines.recv() => console.progress(&one_line(&line)),
            ended = running.join_next() => {
                if let Some(Ok(Err(error))) = ended {
                    return Err(error.into());
                }
                let text = "the connection to the cluster ended, and those to the worker with it";
                return Err(Failure::new(Exit::Unavailable, text).with_next("run it again"));
            }
            exit = interrupts.next() => return Ok(exit),
        }
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        Failure::usage(format!("{address} cannot be listened on: {error}"))
            .with_next("name another port of this machine: PORT:LOCAL, or PORT:0 for any that is free")
    })
}

/// Until the stream ends, why it did.
async fn serve(
    mut forward: PortForward,
    listener: TcpListener,
    port: u16,
    tell: mpsc::Sender<String>,
) -> Result<(), muster_client::CallError> {
    let connections = forward.connections();
    tokio::select! {
        ended = forward.serve() => ended,
        () = accept(&listener, &connections, port, &tell) => Ok(()),
    }
}

/// Takes what programs open; never ends.
async fn accept(listener: &TcpListener, connections: &Connections, port: u16, tell: &mpsc::Sender<String>) {
    // They end with this function.
    let mut carried = JoinSet::new();
    let mut is_full_told = false;
    loop {
        while carried.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(connection) = connections.open().await else {
            // Once: a program that tries again and again would fill the terminal.
            if !is_full_told {
                is_full_told = tell.try_send(full(port)).is_ok();
            }
            continue;
        };
        let tell = tell.clone();
        carried.spawn(async move {
            if let Err(reason) = connection.carry(stream).await {
                // Nobody waits for a line of one connection.
                let _ = tell.try_send(format!("a connection to port {port} ended: {reason}"));
            }
        });
    }
}

fn full(port: u16) -> String {
    format!(
        "{CONNECTIONS_MAX} connections to port {port} are open; one was refused, and so are others until some of them end"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_here_is_that_of_the_worker_unless_said() {
        assert_eq!(parse_ports("6006"), Ok(Ports { remote: 6_006, local: 6_006 }));
        assert_eq!(parse_ports("8888:9999"), Ok(Ports { remote: 8_888, local: 9_999 }));
        assert_eq!(parse_ports("8888:0"), Ok(Ports { remote: 8_888, local: 0 }));
        for bad in ["", "0", "0:1", "65536", "1:65536", "a", "1:", ":1", "1:2:3", "-1"] {
            assert!(parse_ports(bad).is_err(), "{bad}");
        }
    }
}
