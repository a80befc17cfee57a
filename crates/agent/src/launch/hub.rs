//! The hub: rank 0's end of the connections to the gang.

use super::child::Event;
use super::identity::Identity;
use super::protocol::{self, Answer, Hello, HubMessage, Lines, Role, Side, is_proof, send};
use super::{Failure, say};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

/// From the connection to the first line.
const HELLO_MAX: Duration = Duration::from_secs(10);
/// Connections beyond one for each rank: `remote`s, and other programs that connect.
const GUESTS_MAX: usize = 512;
/// Stack of a connection's thread: it reads lines, no more.
const STACK_BYTES: usize = 128 << 10;

/// Who is connected, shared with the threads of the connections.
pub(super) struct Hub {
    shared: Arc<Shared>,
    /// What `remote` shows, so that only what this hub started can make members run anything.
    pub(super) secret: String,
}

struct Shared {
    token: String,
    /// What the gang's workers know each other by.
    gang: String,
    world: usize,
    secret: String,
    events: SyncSender<Event>,
    board: Mutex<Board>,
}

#[derive(Default)]
struct Board {
    members: BTreeMap<usize, TcpStream>,
    /// Commands that a `remote` waits for, and where they run.
    commands: BTreeMap<u64, (usize, TcpStream)>,
    commands_so_far: u64,
    connections: usize,
    /// Told to everybody who joins.
    greeting: Option<HubMessage>,
}

/// Commands of `remote` in rank 0 have these numbers and above; its own children lower ones.
pub(super) const COMMANDS_FROM: u64 = 1 << 32;

impl Shared {
    fn board(&self) -> MutexGuard<'_, Board> {
        // Its maps are whole at every step that could panic.
        self.board.lock()
    }
}

impl Hub {
    /// Listens on the gang's rendezvous port.
    pub(super) fn open(identity: &Identity, events: SyncSender<Event>) -> Result<Hub, Failure> {
        let port = identity.port;
        // The address others reach this host by need not be one of its interfaces'.
        let listener = TcpListener::bind((identity.hub(), port))
            .or_else(|_| TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)))
            .map_err(|e| format!("listen on the gang's rendezvous port {port}: {e}"))?;
        let secret = format!("{:032x}", rand::random::<u128>());
        let shared = Arc::new(Shared {
            token: identity.token.clone(),
            gang: identity.gang_secret.clone(),
            world: identity.world(),
            secret: secret.clone(),
            events,
            board: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accept(&listener, &accepting));
        Ok(Hub { shared, secret })
    }

    /// Tells every member, now or when it joins.
    pub(super) fn greet(&self, told: HubMessage) {
        let mut board = self.shared.board();
        for stream in board.members.values() {
            // One that is gone is told as such by its own thread.
            let _ = send(stream, &told);
        }
        board.greeting = Some(told);
    }

    /// Ranks that are not connected, rank 0 left out.
    pub(super) fn missing(&self) -> Vec<usize> {
        let board = self.shared.board();
        (1..self.shared.world).filter(|rank| !board.members.contains_key(rank)).collect()
    }

    /// A command that ran in rank 0 has ended.
    pub(super) fn ended_here(&self, id: u64, code: i32) {
        self.shared.conclude(id, code);
    }

    /// Tells all members that the work is done; how many there are.
    pub(super) fn end(&self) -> usize {
        let board = self.shared.board();
        for stream in board.members.values() {
            let _ = send(stream, &HubMessage::End);
        }
        board.members.len()
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        {
            let mut board = shared.board();
            if board.connections >= shared.world + GUESTS_MAX {
                continue;
            }
            board.connections += 1;
        }
        let own = Arc::clone(shared);
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
            serve(&own, stream);
            own.board().connections -= 1;
        });
        if thread.is_err() {
            shared.board().connections -= 1;
        }
    }
}

fn serve(shared: &Shared, stream: TcpStream) {
    let greeted = stream
        .set_read_timeout(Some(HELLO_MAX))
        .and_then(|()| stream.set_write_timeout(Some(HELLO_MAX)))
        .and_then(|()| stream.try_clone());
    let Ok(reading) = greeted else { return };
    let mut lines = Lines::of(reading);
    let Ok(Some(hello)) = lines.next::<Hello>() else { return };
    if hello.token != shared.token {
        return;
    }
    let is_known = match &hello.role {
        Role::Member { rank } => knows_gang(shared, *rank, &hello.nonce, &stream, &mut lines),
        Role::Remote { secret, .. } => is_proof(secret, &shared.secret),
    };
    if is_known && stream.set_read_timeout(None).is_err() {
        return;
    }
    match hello.role {
        Role::Member { rank } if is_known => serve_member(shared, rank, stream, &mut lines),
        Role::Member { rank } => {
            say(&format!("one that says it is rank {rank} does not know this gang's secret"))
        }
        Role::Remote { rank, shell, .. } if is_known => {
            serve_remote(shared, rank, shell, &stream, &mut lines);
        }
        Role::Remote { .. } => say("a command with a wrong secret is refused"),
    }
}

/// Proves to a member that this is its gang's hub, and has it prove that it is one of the gang.
fn knows_gang(shared: &Shared, rank: usize, nonce: &str, stream: &TcpStream, lines: &mut Lines) -> bool {
    let own = protocol::nonce();
    let proof = |side| protocol::proof(&shared.gang, side, rank, [nonce, &own]);
    let welcome =
        HubMessage::Welcome { token: shared.token.clone(), nonce: own.clone(), proof: proof(Side::Hub) };
    if send(stream, &welcome).is_err() {
        return false;
    }
    matches!(lines.next(), Ok(Some(Answer::Proof { proof: told })) if is_proof(&told, &proof(Side::Member)))
}

fn serve_member(shared: &Shared, rank: usize, stream: TcpStream, lines: &mut Lines) {
    {
        let mut board = shared.board();
        let taken = rank == 0 || rank >= shared.world || board.members.contains_key(&rank);
        if taken {
            return;
        }
        if let Some(greeting) = &board.greeting
            && send(&stream, greeting).is_err()
        {
            return;
        }
        board.members.insert(rank, stream);
    }
    let _ = shared.events.send(Event::Joined);
    while let Ok(Some(answer)) = lines.next::<Answer>() {
        match answer {
            Answer::Exited { id, code } => shared.conclude(id, code),
            Answer::Proof { .. } => {}
            Answer::Ready => {
                let _ = shared.events.send(Event::Ready { rank });
            }
        }
    }
    let orphans: Vec<u64> = {
        let mut board = shared.board();
        board.members.remove(&rank);
        board.commands.iter().filter(|(_, (at, _))| *at == rank).map(|(id, _)| *id).collect()
    };
    for id in orphans {
        shared.conclude(id, 255);
    }
    let _ = shared.events.send(Event::Left { rank });
}

/// Hands a command on and stays until it has ended or nobody waits for it any more.
fn serve_remote(shared: &Shared, rank: usize, shell: String, stream: &TcpStream, lines: &mut Lines) {
    let Ok(answering) = stream.try_clone() else { return };
    let (id, sent) = {
        let mut board = shared.board();
        board.commands_so_far += 1;
        let id = COMMANDS_FROM + board.commands_so_far;
        board.commands.insert(id, (rank, answering));
        let sent = match board.members.get(&rank) {
            Some(member) => send(member, &HubMessage::Run { id, shell: shell.clone() }).is_ok(),
            None => rank == 0,
        };
        (id, sent)
    };
    if !sent {
        say(&format!("a command for rank {rank}, which is not there"));
        return shared.conclude(id, 255);
    }
    if rank == 0 {
        let _ = shared.events.send(Event::RunHere { id, shell });
    }
    // It says nothing more: what comes is its end.
    while let Ok(Some(serde_json::Value::Object(_))) = lines.next() {}
    let mut board = shared.board();
    if board.commands.remove(&id).is_none() {
        return;
    }
    match board.members.get(&rank) {
        Some(member) => {
            let _ = send(member, &HubMessage::Kill { id });
        }
        None => {
            drop(board);
            let _ = shared.events.send(Event::KillHere { id });
        }
    }
}

impl Shared {
    /// Tells a `remote` how its command ended.
    fn conclude(&self, id: u64, code: i32) {
        let Some((_, stream)) = self.board().commands.remove(&id) else { return };
        let _ = send(&stream, &HubMessage::Exited { code });
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::sync::mpsc::sync_channel;

    /// Serves a member that knows this secret, and returns what it was told.
    fn meet(secret: &str) -> (bool, bool) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let member = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (hub, _) = listener.accept().unwrap();
        let (events, _incoming) = sync_channel(8);
        let shared = Shared {
            token: "1.7".into(),
            gang: "the gang's".into(),
            world: 2,
            secret: "of commands".into(),
            events,
            board: Mutex::default(),
        };
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let mut lines = Lines::of(hub.try_clone().unwrap());
                let hello = lines.next::<Hello>().unwrap().unwrap();
                let Role::Member { rank } = hello.role else { panic!("no member") };
                knows_gang(&shared, rank, &hello.nonce, &hub, &mut lines)
            });
            let own = protocol::nonce();
            let hello = Hello { token: "1.7".into(), nonce: own.clone(), role: Role::Member { rank: 1 } };
            send(&member, &hello).unwrap();
            let mut lines = Lines::of(member.try_clone().unwrap());
            let Some(HubMessage::Welcome { nonce, proof, .. }) = lines.next().unwrap() else {
                panic!("no welcome")
            };
            let wanted = |side| protocol::proof(secret, side, 1, [&own, &nonce]);
            let hub_is_known = is_proof(&proof, &wanted(Side::Hub));
            send(&member, &Answer::Proof { proof: wanted(Side::Member) }).unwrap();
            (hub_is_known, serving.join().unwrap())
        })
    }

    #[test]
    fn hub_and_member_know_each_other_by_the_secret_and_not_by_the_token() {
        assert_eq!(meet("the gang's"), (true, true));
        // The token, which anybody may read.
        assert_eq!(meet("1.7"), (false, false));
    }
}
