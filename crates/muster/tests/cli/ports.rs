//! `muster port-forward`.

use crate::fake::Fake;
use crate::{command, muster};
use muster_wire::v1::JobPhase;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Stdio;

#[test]
fn programs_connect_to_this_machine_and_come_out_at_the_worker() {
    let fake = Fake::start();
    fake.add("job-1", "train", JobPhase::Running);
    let mut child = command(&fake.endpoint, &["port-forward", "train", "6006:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.split(' ').next().unwrap();
    assert!(address.starts_with("127.0.0.1:") && line.contains("port 6006 of rank 0"), "{line}");
    // Two at a time; each gets back what it has sent, and an end behind its end.
    let mut both: Vec<TcpStream> = (0..2).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (at, stream) in both.iter_mut().enumerate() {
        stream.write_all(format!("connection {at}").as_bytes()).unwrap();
    }
    for (at, stream) in both.iter_mut().enumerate().rev() {
        stream.shutdown(Shutdown::Write).unwrap();
        let mut back = String::new();
        stream.read_to_string(&mut back).unwrap();
        assert_eq!(back, format!("connection {at}"));
    }
    child.kill().unwrap();
    child.wait().unwrap();

    let ran = muster(&fake, &["port-forward", "train", "8888:0"]);
    assert!(ran.code != 0 && ran.err.contains("they listen on 6006"), "{}", ran.err);
    let ran = muster(&fake, &["port-forward", "job-9", "6006:0"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
}
