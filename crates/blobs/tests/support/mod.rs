//! A small server that speaks as much of S3's protocol as a store needs, and that breaks it on purpose; and a real one.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// The bucket that each of the servers has.
pub const BUCKET: &str = "muster-files";
/// When its objects were written: what is not old has no age at any time.
const NEW: (&str, &str) = ("Fri, 01 Jan 2100 00:00:00 GMT", "2100-01-01T00:00:00.000Z");
const OLD: (&str, &str) = ("Thu, 01 Jan 1970 00:00:00 GMT", "1970-01-01T00:00:00.000Z");

/// What the server has, and what it does wrong.
#[derive(Default)]
pub struct State {
    pub objects: BTreeMap<String, Vec<u8>>,
    /// Objects that were written long ago.
    pub old: Vec<String>,
    /// By the id of their upload and their number.
    parts: BTreeMap<(String, usize), Vec<u8>>,
    /// The numbers of the parts that came.
    pub taken: Vec<usize>,
    uploads: usize,
    /// The number of requests that are answered by 503.
    pub busy: usize,
    /// It answers for parts of uploads up to this one as if it had failed.
    pub forgotten: usize,
    /// No part above this is taken.
    pub parts_max: Option<usize>,
    /// Bodies break off in the middle.
    pub is_cut: bool,
    /// Of the last request.
    pub authorization: String,
}

pub struct Server {
    pub endpoint: String,
    pub state: Arc<Mutex<State>>,
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    authorization: String,
    body: Vec<u8>,
}

struct Answer {
    status: u16,
    written: &'static str,
    body: Vec<u8>,
}

impl Server {
    pub fn start() -> Server {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        Server { endpoint, state }
    }
}

fn serve(stream: TcpStream, state: &Mutex<State>) {
    let mut to = stream.try_clone().unwrap();
    let mut from = BufReader::new(stream);
    while let Some(request) = read(&mut from) {
        let (answer, is_cut) = {
            let mut state = state.lock();
            (answer(&mut state, &request), state.is_cut)
        };
        let Answer { status, written, body } = answer;
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nlast-modified: {written}\r\netag: \"tag\"\r\n\r\n",
            body.len()
        );
        let body = if request.method == "HEAD" { Vec::new() } else { body };
        let shown = if is_cut && request.method == "GET" { body.len() / 2 } else { body.len() };
        let is_sent = to.write_all(head.as_bytes()).and_then(|()| to.write_all(&body[..shown])).is_ok();
        if !is_sent || shown < body.len() {
            return;
        }
    }
}

fn read(from: &mut BufReader<TcpStream>) -> Option<Request> {
    let line = |from: &mut BufReader<TcpStream>| {
        let mut text = String::new();
        from.read_line(&mut text).ok().filter(|count| *count > 0)?;
        Some(text.trim_end().to_owned())
    };
    let first = line(from)?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, target) = (words.next()?, words.next()?);
    let (mut length, mut authorization) = (0, String::new());
    loop {
        let text = line(from)?;
        let Some((name, value)) = text.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().ok()?,
            "authorization" => value.trim().clone_into(&mut authorization),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((target.as_str(), ""));
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (key.to_owned(), value.to_owned())
    };
    let query = query.split('&').filter(|text| !text.is_empty()).map(pair).collect();
    Some(Request { method, path: path.to_owned(), query, authorization, body })
}

fn failed(status: u16, code: &str) -> Answer {
    let body = format!("<Error><Code>{code}</Code><Message>no</Message></Error>").into_bytes();
    Answer { status, written: NEW.0, body }
}

fn fine(body: impl Into<Vec<u8>>) -> Answer {
    Answer { status: 200, written: NEW.0, body: body.into() }
}

fn answer(state: &mut State, request: &Request) -> Answer {
    let Request { method, path, query, authorization, body } = request;
    state.authorization.clone_from(authorization);
    if state.busy > 0 {
        state.busy -= 1;
        return failed(503, "SlowDown");
    }
    let Some(key) = path.strip_prefix(&format!("/{BUCKET}")) else { return failed(404, "NoSuchBucket") };
    let key = key.trim_start_matches('/').to_owned();
    let upload = query.get("uploadId");
    let number = query.get("partNumber").and_then(|text| text.parse::<usize>().ok());
    match (method.as_str(), upload, number) {
        ("PUT", Some(id), Some(number)) => {
            let own = id.trim_start_matches("upload-").parse::<usize>().unwrap_or(0);
            if own <= state.forgotten {
                return failed(400, "NoSuchThing");
            }
            if state.parts_max.is_some_and(|max| number > max) {
                return failed(403, "AccessDenied");
            }
            state.taken.push(number);
            state.parts.insert((id.clone(), number), body.clone());
            fine("")
        }
        ("PUT", None, None) => {
            state.objects.insert(key, body.clone());
            fine("")
        }
        ("POST", Some(id), None) => {
            let own = state.parts.range((id.clone(), 0)..=(id.clone(), usize::MAX));
            let whole: Vec<u8> = own.flat_map(|(_, part)| part.iter().copied()).collect();
            state.objects.insert(key, whole);
            fine("<CompleteMultipartUploadResult><ETag>\"tag\"</ETag></CompleteMultipartUploadResult>")
        }
        ("POST", None, None) if query.contains_key("uploads") => {
            state.uploads += 1;
            let id = format!("upload-{}", state.uploads);
            fine(format!(
                "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            ))
        }
        ("POST", None, None) => remove(state, &String::from_utf8_lossy(body)),
        ("GET", None, None) if query.contains_key("list-type") => list(state),
        ("GET" | "HEAD", None, None) => match state.objects.get(&key) {
            Some(object) => {
                let written = if state.old.contains(&key) { OLD.0 } else { NEW.0 };
                Answer { status: 200, written, body: object.clone() }
            }
            None => failed(404, "NoSuchKey"),
        },
        ("DELETE", _, _) => Answer { status: 204, written: NEW.0, body: Vec::new() },
        _ => failed(400, "NotUnderstood"),
    }
}

fn list(state: &State) -> Answer {
    let mut text = "<ListBucketResult>".to_owned();
    for (key, object) in &state.objects {
        let written = if state.old.contains(key) { OLD.1 } else { NEW.1 };
        let size = object.len();
        write!(
            text,
            "<Contents><Key>{key}</Key><LastModified>{written}</LastModified><ETag>tag</ETag><Size>{size}</Size></Contents>"
        )
        .unwrap();
    }
    text.push_str("<IsTruncated>false</IsTruncated></ListBucketResult>");
    fine(text)
}

fn remove(state: &mut State, asked: &str) -> Answer {
    let mut text = "<DeleteResult>".to_owned();
    for rest in asked.split("<Key>").skip(1) {
        let key = rest.split("</Key>").next().unwrap_or_default();
        state.objects.remove(key);
        write!(text, "<Deleted><Key>{key}</Key></Deleted>").unwrap();
    }
    text.push_str("</DeleteResult>");
    fine(text)
}

/// A server that others have made, as `.ci/objects` installs it. It ends with this.
pub struct Real {
    child: Child,
    pub endpoint: String,
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Real {
    /// None where nobody asks for it.
    pub fn start() -> Option<Real> {
        let python = std::env::var_os("MUSTER_OBJECTS")?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/objects/server.py");
        let mut command = Command::new(python);
        command.arg(script).arg(BUCKET).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let real = Real { child, endpoint: line.trim().to_owned() };
        assert!(real.endpoint.starts_with("http://"), "the server did not start");
        Some(real)
    }
}
