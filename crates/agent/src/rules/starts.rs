//! Decisions about a start order: whether the agent accepts it, what it waits for, and when its workers may start.

use super::boot_time::BootTime;
use super::fences::TokenOrder;
use super::term::LeaseTerm;
use super::worker::{DeviceLoad, WorkerKey};
use muster_types::{DeviceSet, FencingToken, JobId};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a start waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The leader's confirmation of its token.
    Confirmation,
    /// The end of a worker on this node.
    End,
    /// A renewal of the lease.
    Lease,
    /// The verdict of the check of the gang's network.
    Preflight,
}

/// What an agent would do with a placement now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Start it, in this epoch of the lease.
    Go {
        /// The epoch that its workers belong to.
        epoch: u64,
    },
    /// Ask the leader again once that is over.
    Wait(Wait),
    /// Never start it here: why.
    Refuse(String),
}

/// The decision about a start order that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Its token is the one that was persisted, or below it: it is answered with what became of its workers.
    Known(TokenOrder),
    /// It waits here already.
    Waiting,
    /// A newer one of the same job waits.
    Outdated,
    /// As many placements wait as may wait.
    Full,
    /// It may wait for the leader's confirmation. Older ones of the job were taken out.
    New,
}

/// Looks at a start order against its token's standing and those that wait, by job and token, `waiting_max` at most.
pub fn admit<P>(
    waiting: &mut BTreeMap<(JobId, FencingToken), P>,
    waiting_max: usize,
    standing: TokenOrder,
    job: JobId,
    token: FencingToken,
) -> Admission {
    if standing != TokenOrder::Newer {
        return Admission::Known(standing);
    }
    if waiting.contains_key(&(job, token)) {
        return Admission::Waiting;
    }
    let newest = waiting.range((job, FencingToken::default())..).take_while(|((other, _), _)| *other == job);
    if newest.last().is_some_and(|((_, newer), _)| *newer > token) {
        return Admission::Outdated;
    }
    withdraw(waiting, job, token);
    if waiting.len() >= waiting_max { Admission::Full } else { Admission::New }
}

/// Takes out what waits of a job up to a token.
pub fn withdraw<P>(waiting: &mut BTreeMap<(JobId, FencingToken), P>, job: JobId, token: FencingToken) {
    waiting.retain(|(other, older), _| *other != job || *older > token);
}

/// The epoch in which workers may be started now: the lease stands, for longer than a stop takes.
#[must_use]
pub fn epoch_for_start(lease: Option<LeaseTerm>, now: BootTime, stop_grace: Duration) -> Option<u64> {
    lease.filter(|lease| now.until(lease.deadline) > stop_grace).map(|lease| lease.epoch)
}

/// A worker of this node that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The worker.
    pub key: WorkerKey,
    /// Its devices.
    pub devices: DeviceSet,
    /// Thousandths of each.
    pub device_milli: u16,
    /// The epoch of the lease that it was started in.
    pub epoch: u64,
    /// It was told to stop.
    pub is_stopping: bool,
}

/// Whether a placement fits on its devices with the workers that hold them now. A whole device belongs to one worker; shares of a
/// device fit up to the whole. Workers that are about to end are waited for, and so are older attempts of the same job.
#[must_use]
pub fn room_for(
    held: impl IntoIterator<Item = Held>,
    job: JobId,
    token: FencingToken,
    load: &DeviceLoad,
    epoch: u64,
) -> Fit {
    let (mut staying, mut all, mut has_older) = (DeviceLoad::NONE, DeviceLoad::NONE, false);
    for worker in held {
        let is_older = worker.key.job == job && worker.key.token < token;
        has_older |= is_older;
        all.add(worker.devices, worker.device_milli);
        // A worker of a lapsed epoch is being stopped by its shim.
        if is_older || worker.is_stopping || worker.epoch != epoch {
            continue;
        }
        staying.add(worker.devices, worker.device_milli);
        if load.overfull(&staying).is_some() {
            return Fit::Refuse(format!("devices are held by {}, which was not told to stop", worker.key));
        }
    }
    if has_older || load.overfull(&all).is_some() { Fit::Wait(Wait::End) } else { Fit::Go { epoch } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::LogIndex;

    const JOB: JobId = JobId(7);

    fn token(index: u64) -> FencingToken {
        FencingToken { generation: 1, log_index: LogIndex(index) }
    }

    fn load(devices: u64) -> DeviceLoad {
        let mut load = DeviceLoad::NONE;
        load.add(DeviceSet(devices), 1_000);
        load
    }

    #[test]
    fn of_one_job_only_the_newest_waits() {
        let mut waiting: BTreeMap<(JobId, FencingToken), ()> = BTreeMap::new();
        let mut take = |standing, index| {
            let admission = admit(&mut waiting, 2, standing, JOB, token(index));
            if admission == Admission::New {
                waiting.insert((JOB, token(index)), ());
            }
            (admission, waiting.len())
        };
        assert_eq!(take(TokenOrder::Same, 5), (Admission::Known(TokenOrder::Same), 0));
        assert_eq!(take(TokenOrder::Newer, 6), (Admission::New, 1));
        assert_eq!(take(TokenOrder::Newer, 6), (Admission::Waiting, 1));
        assert_eq!(take(TokenOrder::Newer, 5), (Admission::Outdated, 1));
        assert_eq!(take(TokenOrder::Newer, 8), (Admission::New, 1), "the older one is taken out");
        waiting.insert((JobId(8), token(9)), ());
        assert_eq!(admit(&mut waiting, 2, TokenOrder::Newer, JobId(6), token(9)), Admission::Full);
        let older = admit(&mut waiting, 2, TokenOrder::Newer, JOB, token(7));
        assert_eq!(older, Admission::Outdated, "though another job's start waits behind it");
        assert_eq!(
            admit(&mut waiting, 2, TokenOrder::Newer, JOB, token(9)),
            Admission::New,
            "in its own place"
        );
    }

    #[test]
    fn a_start_needs_more_lease_than_a_stop_takes() {
        let lease = Some(LeaseTerm { epoch: 3, deadline: BootTime(1_000) });
        let epoch = |now| epoch_for_start(lease, BootTime(now), Duration::from_nanos(100));
        assert_eq!((epoch(899), epoch(900), epoch(2_000)), (Some(3), None, None));
        assert_eq!(epoch_for_start(None, BootTime(0), Duration::ZERO), None);
    }

    #[test]
    fn a_device_goes_to_the_next_only_when_nobody_is_on_it() {
        let worker = |job, index, devices, epoch, is_stopping| Held {
            key: WorkerKey { job: JobId(job), token: token(index), rank: 0 },
            devices: DeviceSet(devices),
            device_milli: 1_000,
            epoch,
            is_stopping,
        };
        let fit = |held: Held| room_for([held], JOB, token(9), &load(0b0011), 4);
        let wait = Fit::Wait(Wait::End);
        assert_eq!(fit(worker(1, 2, 0b1100, 4, false)), Fit::Go { epoch: 4 });
        assert!(matches!(fit(worker(1, 2, 0b0001, 4, false)), Fit::Refuse(_)));
        assert_eq!(fit(worker(1, 2, 0b0001, 4, true)), wait, "told to stop");
        assert_eq!(fit(worker(1, 2, 0b0001, 3, false)), wait, "of an epoch that lapsed");
        assert_eq!(fit(worker(7, 2, 0b1100, 4, false)), wait, "an older attempt, wherever it is");
    }
}
