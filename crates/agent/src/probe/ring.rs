//! A ring all-reduce: n−1 steps in which every host adds what comes from the one before it to its own share,
//! and n−1 in which the sums are passed on. Each host sends 2·(n−1)/n of the bytes.

use muster_types::probe::Ring;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// What element `at` of host `host` is before the reduction.
fn element(host: u32, at: u32) -> u32 {
    (host + 1).wrapping_mul(at.wrapping_mul(2_654_435_761).wrapping_add(1))
}

/// Its sum over all hosts: the factors 1 to n add up to n·(n+1)/2.
fn sum(count: u32, at: u32) -> u32 {
    let factors = (u64::from(count) * (u64::from(count) + 1) / 2) as u32;
    factors.wrapping_mul(at.wrapping_mul(2_654_435_761).wrapping_add(1))
}

/// Runs it over the connections to the next host and from the one before.
pub(super) async fn all_reduce(
    own: u32,
    count: u32,
    bytes: u64,
    mut next: TcpStream,
    mut previous: TcpStream,
) -> io::Result<Ring> {
    // Shares of whole elements, at least one each.
    let share = (bytes / 4 / u64::from(count)).clamp(1, 1 << 24) as usize;
    let total = share * count as usize;
    let mut data: Vec<u32> = (0..total).map(|at| element(own, at as u32)).collect();
    // Twice round with one byte: then everybody is here.
    for _ in 0..2 {
        let mut byte = [0];
        let (sent, read) = tokio::join!(next.write_all(&[1]), previous.read_exact(&mut byte));
        sent?;
        read?;
    }
    let begun = Instant::now();
    let place = |step: u32, behind: u32| ((own + 2 * count - step - behind) % count) as usize * share;
    let mut incoming = vec![0u8; share * 4];
    for step in 0..2 * (count - 1) {
        let adding = step < count - 1;
        // While adding, host i sends share i, i−1, …; after that the finished ones, beginning with i+1.
        let (out, into) = if adding {
            (place(step, 0), place(step, 1))
        } else {
            let step = step - (count - 1);
            (place(step, count - 1), place(step, 0))
        };
        let outgoing: Vec<u8> = data[out..out + share].iter().flat_map(|value| value.to_le_bytes()).collect();
        let (sent, read) = tokio::join!(next.write_all(&outgoing), previous.read_exact(&mut incoming));
        sent?;
        read?;
        for (value, bytes) in data[into..into + share].iter_mut().zip(incoming.chunks_exact(4)) {
            let came = bytes.iter().rev().fold(0u32, |all, byte| (all << 8) | u32::from(*byte));
            *value = if adding { value.wrapping_add(came) } else { came };
        }
    }
    let duration_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
    let correct = data.iter().enumerate().all(|(at, value)| *value == sum(count, at as u32));
    Ok(Ring { host: own, bytes: (total * 4) as u64, duration_us, correct })
}
