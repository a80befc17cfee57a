//! One pair of hosts: round trips, then a stream each way, measured by the host that receives it.
//!
//! A receiver stops when the time of a direction is over, however much is still on its way, so a slow link
//! costs no more time than a fast one.

use super::Limits;
use muster_types::probe::LinkOutcome;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::Instant;

/// Round trips; the shortest counts.
const PINGS: u8 = 5;
/// One write of a stream.
const PIECE_BYTES: usize = 64 << 10;
/// What a receiver says at the end: bytes and microseconds.
const RESULT_BYTES: usize = 16;

/// The end that connected: measures the round trip, sends first, and learns both rates.
pub(super) async fn lead(mut stream: TcpStream, limits: &Limits) -> io::Result<(LinkOutcome, LinkOutcome)> {
    let mut round_trip_us = u64::MAX;
    for number in 0..PINGS {
        let sent = Instant::now();
        stream.write_all(&[number]).await?;
        let mut echo = [0];
        stream.read_exact(&mut echo).await?;
        round_trip_us = round_trip_us.min(micros(sent));
    }
    let (mut from, mut to) = stream.into_split();
    // While it goes on sending, the result arrives: the receiver does not wait for the last byte.
    let mut result = [0u8; RESULT_BYTES];
    {
        let reading = from.read_exact(&mut result);
        tokio::pin!(reading);
        tokio::select! {
            sent = send(&mut to, limits) => {
                sent?;
                reading.await?;
            }
            read = &mut reading => drop(read?),
        }
    }
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |all, byte| (all << 8) | u64::from(*byte));
    let there = rate(number(&result[..8]), number(&result[8..]));
    let (bytes, took) = receive(&mut from, limits).await?;
    let measured = |rate| LinkOutcome::Measured { rate, round_trip_us };
    Ok((measured(there), measured(rate(bytes, took))))
}

/// The end that was connected to.
pub(super) async fn follow(mut stream: TcpStream, limits: &Limits) -> io::Result<()> {
    for _ in 0..PINGS {
        let mut ping = [0];
        stream.read_exact(&mut ping).await?;
        stream.write_all(&ping).await?;
    }
    let (mut from, mut to) = stream.into_split();
    let (bytes, took) = receive(&mut from, limits).await?;
    let mut result = [0u8; RESULT_BYTES];
    result[..8].copy_from_slice(&bytes.to_le_bytes());
    result[8..].copy_from_slice(&took.to_le_bytes());
    to.write_all(&result).await?;
    // The other end may stop reading before the last byte: it has measured what it wanted.
    if send(&mut to, limits).await.is_ok() && to.shutdown().await.is_ok() {
        // What was not read when this end closes would be answered with a reset, which takes what is still
        // under way with it. The other end closes when it has everything.
        let mut rest = vec![0; PIECE_BYTES];
        while from.read(&mut rest).await? > 0 {}
    }
    Ok(())
}

async fn send(to: &mut OwnedWriteHalf, limits: &Limits) -> io::Result<()> {
    let piece = vec![0x5a; PIECE_BYTES];
    let mut left = limits.pair_bytes;
    while left > 0 {
        let now = left.min(PIECE_BYTES as u64);
        to.write_all(&piece[..now as usize]).await?;
        left -= now;
    }
    Ok(())
}

/// Bytes that came, and microseconds since the first of them.
async fn receive(from: &mut OwnedReadHalf, limits: &Limits) -> io::Result<(u64, u64)> {
    let mut buffer = vec![0; PIECE_BYTES];
    let mut bytes = from.read(&mut buffer).await? as u64;
    if bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let begun = Instant::now();
    let end = begun + limits.pair;
    // The first piece is what the clock starts with; it is not in the rate.
    let first = bytes;
    while bytes < limits.pair_bytes {
        match tokio::time::timeout_at(end, from.read(&mut buffer)).await {
            Ok(Ok(0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(Ok(read)) => bytes += read as u64,
            Ok(Err(error)) => return Err(error),
            Err(_) => break,
        }
    }
    Ok((bytes - first, micros(begun)))
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX).max(1)
}

fn rate(bytes: u64, micros: u64) -> u64 {
    let rate = u128::from(bytes) * 1_000_000 / u128::from(micros.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}
