//! Every way to place gangs, one after the other.

use crate::instance::{Gang, HOSTS_MAX, QUARTERS};

/// What is free of a host: idle devices, and devices of which one, two and three quarters are left.
pub type Host = [u8; QUARTERS as usize];

/// What is free of every host, in order: fleets that differ only in which host is which are the same.
pub type Fleet = [Host; HOSTS_MAX];

/// Quarters of devices that are free.
pub fn quarters(fleet: &Fleet) -> u64 {
    let of_host = |host: &Host| {
        QUARTERS * u64::from(host[0]) + (1..).zip(&host[1..]).map(|(q, n)| q * u64::from(*n)).sum::<u64>()
    };
    fleet.iter().map(of_host).sum()
}

/// What may be left when the gangs are placed one after the other, each if it fits.
pub fn in_order(free: Fleet, gangs: &[Gang]) -> Vec<Fleet> {
    let mut ends = vec![free];
    for gang in gangs {
        let (fit, mut next): (Vec<Fleet>, Vec<Fleet>) = ends.into_iter().partition(|fleet| fits(fleet, gang));
        next.extend(placed(fit, gang));
        ends = distinct(next);
    }
    ends
}

/// What may be left when each gang may be placed or not; none when that is more than `most` fleets.
pub fn any_choice(free: Fleet, gangs: &[Gang], most: usize) -> Option<Vec<Fleet>> {
    let mut ends = vec![free];
    for gang in gangs {
        let fit = ends.iter().copied().filter(|fleet| fits(fleet, gang)).collect();
        ends.extend(placed(fit, gang));
        ends = distinct(ends);
        if ends.len() > most {
            return None;
        }
    }
    Some(ends)
}

fn distinct(mut fleets: Vec<Fleet>) -> Vec<Fleet> {
    fleets.sort_unstable();
    fleets.dedup();
    fleets
}

/// Whether all workers of a gang fit. They ask for the same, so the places for them are counted, and each
/// takes one of them wherever it goes.
fn fits(fleet: &Fleet, gang: &Gang) -> bool {
    let each = gang.worker_quarters;
    let places = |host: &Host| {
        let [idle, one, two, three] = host.map(u64::from);
        if each >= QUARTERS {
            return idle / (each / QUARTERS);
        }
        idle * (QUARTERS / each) + one * (1 / each) + two * (2 / each) + three * (3 / each)
    };
    fleet.iter().map(places).sum::<u64>() >= u64::from(gang.workers)
}

/// What is left by each way to place all workers of a gang in fleets where they fit.
fn placed(mut fleets: Vec<Fleet>, gang: &Gang) -> Vec<Fleet> {
    for _ in 0..gang.workers {
        let mut next = Vec::new();
        for fleet in &fleets {
            with_worker(fleet, gang.worker_quarters, &mut next);
        }
        fleets = distinct(next);
    }
    fleets
}

/// Adds what is left by each way to place one worker: on whole devices, or in what is left of one.
fn with_worker(fleet: &Fleet, worker_quarters: u64, ends: &mut Vec<Fleet>) {
    let whole = u8::try_from(worker_quarters / QUARTERS).unwrap();
    let share = usize::try_from(worker_quarters % QUARTERS).unwrap();
    for (at, host) in fleet.iter().enumerate() {
        // The same on a host that is alike would leave the same.
        if at > 0 && fleet[at - 1] == *host {
            continue;
        }
        if whole > 0 {
            if host[0] >= whole {
                ends.push(with_host(fleet, at, [host[0] - whole, host[1], host[2], host[3]]));
            }
            continue;
        }
        for device in (0..host.len()).filter(|left| host[*left] > 0) {
            // An idle device has all its quarters.
            let has = if device == 0 { host.len() } else { device };
            if has >= share {
                let mut left = *host;
                left[device] -= 1;
                if has > share {
                    left[has - share] += 1;
                }
                ends.push(with_host(fleet, at, left));
            }
        }
    }
}

/// The fleet with another host in the place of one, in order again.
fn with_host(fleet: &Fleet, mut at: usize, host: Host) -> Fleet {
    let mut left = *fleet;
    left[at] = host;
    while at > 0 && left[at - 1] > left[at] {
        left.swap(at - 1, at);
        at -= 1;
    }
    while at + 1 < left.len() && left[at] > left[at + 1] {
        left.swap(at, at + 1);
        at += 1;
    }
    left
}
