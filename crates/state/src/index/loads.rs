//! What each tenant has waiting and holds, kept in step by the fold.

use alloc::string::String;
use muster_types::token::user_of;
use muster_types::{JobMetadata, JobSpec, Name};

use super::{Described, Indexes, JobIndexKeys};
use crate::rows::Placement;
use crate::tree::Map;

/// Jobs of one tenant that are not over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLoad {
    /// Jobs that wait, and members of arrays that are not created.
    pub pending_jobs: u64,
    /// Those of them that wait for another job or for a time, or that somebody holds.
    pub held_jobs: u64,
    /// Thousandths of devices that the waiting jobs ask for.
    pub pending_milli: u64,
    /// Jobs that hold devices.
    pub active_jobs: u64,
    /// Thousandths of devices that those hold.
    pub active_milli: u64,
    /// Those of the waiting jobs that are members of arrays and not created.
    pub uncreated_jobs: u64,
    /// Rows of arrays with members that have not ended: each array's, and those of how its members end.
    pub array_rows: u64,
    /// The same of the arrays whose members' ends are asked for by members that are not created, once for each array that asks:
    /// they are kept for its sake.
    pub awaited_rows: u64,
}

impl QueueLoad {
    fn of(keys: &JobIndexKeys) -> QueueLoad {
        QueueLoad {
            pending_jobs: u64::from(keys.pending),
            held_jobs: u64::from(keys.held.is_some() || keys.on_hold),
            pending_milli: if keys.pending { keys.asked_milli } else { 0 },
            active_jobs: u64::from(keys.active),
            active_milli: keys.active_milli,
            uncreated_jobs: 0,
            array_rows: 0,
            awaited_rows: 0,
        }
    }

    /// A sum over jobs of at most 2^32 thousandths each, of which there are far fewer than 2^32.
    fn changed(self, gone: QueueLoad, new: QueueLoad) -> QueueLoad {
        QueueLoad {
            pending_jobs: self.pending_jobs + new.pending_jobs - gone.pending_jobs,
            held_jobs: self.held_jobs + new.held_jobs - gone.held_jobs,
            pending_milli: self.pending_milli + new.pending_milli - gone.pending_milli,
            active_jobs: self.active_jobs + new.active_jobs - gone.active_jobs,
            active_milli: self.active_milli + new.active_milli - gone.active_milli,
            uncreated_jobs: self.uncreated_jobs + new.uncreated_jobs - gone.uncreated_jobs,
            array_rows: self.array_rows + new.array_rows - gone.array_rows,
            awaited_rows: self.awaited_rows + new.awaited_rows - gone.awaited_rows,
        }
    }
}

impl JobIndexKeys {
    /// Whether it waits, and for nothing but capacity and its turn.
    pub(super) fn is_eligible(&self) -> bool {
        self.pending && self.held.is_none() && !self.on_hold
    }
}

/// Jobs of one user of a tenant that are not over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserLoad {
    /// Jobs that wait, and members of arrays that are not created.
    pub pending_jobs: u64,
    /// Jobs that wait, and jobs that hold devices.
    pub unfinished_jobs: u64,
    /// Jobs that hold devices.
    pub active_jobs: u64,
    /// Thousandths of devices that those hold.
    pub active_milli: u64,
}

impl UserLoad {
    fn of(keys: &JobIndexKeys) -> UserLoad {
        UserLoad {
            pending_jobs: u64::from(keys.pending),
            unfinished_jobs: u64::from(keys.pending || keys.active),
            active_jobs: u64::from(keys.active),
            active_milli: keys.active_milli,
        }
    }

    /// A sum over jobs: what goes was added before.
    fn changed(self, gone: UserLoad, new: UserLoad) -> UserLoad {
        UserLoad {
            pending_jobs: self.pending_jobs + new.pending_jobs - gone.pending_jobs,
            unfinished_jobs: self.unfinished_jobs + new.unfinished_jobs - gone.unfinished_jobs,
            active_jobs: self.active_jobs + new.active_jobs - gone.active_jobs,
            active_milli: self.active_milli + new.active_milli - gone.active_milli,
        }
    }

    /// Of members of an array that are not created.
    pub(super) fn of_uncreated(members: u64) -> UserLoad {
        UserLoad { pending_jobs: members, unfinished_jobs: members, ..UserLoad::default() }
    }
}

/// A tenant, and who submitted the job; empty for those that nobody knows.
pub(crate) type UserKey = (Name, String);

/// What workers hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Thousandths of devices.
    pub devices_milli: u64,
    /// Milli-CPUs.
    pub cpu_milli: u64,
}

impl Work {
    /// What a job holds where it is placed.
    pub(crate) fn of(placement: &Placement) -> Work {
        let charge = &placement.charge;
        let devices_milli = charge.devices_milli.iter().map(|(_, milli)| milli).sum();
        Work { devices_milli, cpu_milli: charge.cpu_milli }
    }

    pub(crate) fn plus(self, other: Work) -> Work {
        let devices_milli = self.devices_milli + other.devices_milli;
        Work { devices_milli, cpu_milli: self.cpu_milli + other.cpu_milli }
    }

    fn minus(self, other: Work) -> Work {
        let devices_milli = self.devices_milli - other.devices_milli;
        Work { devices_milli, cpu_milli: self.cpu_milli - other.cpu_milli }
    }
}

/// A fleet cluster, by region and name.
pub(crate) type ClusterPlace = (Name, Name);

impl Indexes {
    /// What the tenant holds in a cluster has changed. One that holds nothing there is not listed.
    pub(crate) fn shift_work(
        &mut self,
        tenant: &Name,
        before: Option<&(ClusterPlace, Work)>,
        after: Option<&(ClusterPlace, Work)>,
    ) {
        // In place: it is there for every tenant that holds something.
        if let Some(of_tenant) = self.work.get_mut(tenant) {
            move_work(of_tenant, before, after);
            if of_tenant.is_empty() {
                self.work.remove(tenant);
            }
            return;
        }
        let mut of_tenant = Map::default();
        move_work(&mut of_tenant, before, after);
        if !of_tenant.is_empty() {
            self.work.insert(tenant.clone(), of_tenant);
        }
    }

    /// A job of the tenant stands elsewhere.
    pub(crate) fn shift_load(&mut self, tenant: &Name, before: &JobIndexKeys, after: &JobIndexKeys) {
        self.change_load(tenant, QueueLoad::of(before), QueueLoad::of(after));
    }

    /// A tenant has this load in place of another.
    pub(super) fn change_load(&mut self, tenant: &Name, gone: QueueLoad, new: QueueLoad) {
        if gone == new {
            return;
        }
        match self.loads.get_mut(tenant) {
            Some(load) => {
                *load = load.changed(gone, new);
                if *load == QueueLoad::default() {
                    self.loads.remove(tenant);
                }
            }
            None => self.loads.insert(tenant.clone(), QueueLoad::default().changed(gone, new)),
        }
    }

    /// Where `gone` jobs with this specification were eligible, `new` are. One that accepts several types asks for each of them.
    pub(super) fn shift_eligible(&mut self, spec: &JobSpec, gone: u64, new: u64) {
        for group in &spec.groups {
            let Some(request) = &group.request.accelerators else { continue };
            let milli = u64::from(group.workers) * request.amount.milli();
            let asked = (gone * milli, new * milli);
            if request.choices.is_empty() {
                self.count_eligible(None, &spec.tenant, asked);
            }
            for choice in &request.choices {
                self.count_eligible(Some(choice.kind.clone()), &spec.tenant, asked);
            }
        }
    }

    fn count_eligible(&mut self, kind: Option<Name>, tenant: &Name, (gone, new): (u64, u64)) {
        let count = |of_kind: &mut Map<Name, u64>| {
            let before = of_kind.get(tenant).copied().unwrap_or(0);
            // A sum over jobs: what goes was added before.
            let after = before + new - gone;
            if after == 0 {
                of_kind.remove(tenant);
            } else {
                of_kind.insert(tenant.clone(), after);
            }
        };
        // In place: it is there for every type that somebody waits for.
        if let Some(of_kind) = self.eligible.get_mut(&kind) {
            count(of_kind);
            if of_kind.is_empty() {
                self.eligible.remove(&kind);
            }
            return;
        }
        let mut of_kind = Map::default();
        count(&mut of_kind);
        if !of_kind.is_empty() {
            self.eligible.insert(kind, of_kind);
        }
    }

    /// A job of the user stands elsewhere.
    pub(crate) fn shift_user(&mut self, job: &Described, before: &JobIndexKeys, after: &JobIndexKeys) {
        self.change_user(&job.tenant, job.metadata.as_deref(), UserLoad::of(before), UserLoad::of(after));
    }

    /// A user has this load in place of another.
    pub(super) fn change_user(
        &mut self,
        tenant: &Name,
        metadata: Option<&JobMetadata>,
        gone: UserLoad,
        new: UserLoad,
    ) {
        if gone == new {
            return;
        }
        let user = metadata.map_or("", |metadata| user_of(&metadata.creator));
        let key: UserKey = (tenant.clone(), String::from(user));
        match self.users.get_mut(&key) {
            Some(load) => {
                *load = load.changed(gone, new);
                if *load == UserLoad::default() {
                    self.users.remove(&key);
                }
            }
            None => {
                let load = UserLoad::default().changed(gone, new);
                if load != UserLoad::default() {
                    self.users.insert(key, load);
                }
            }
        }
    }
}

/// What a tenant holds in one cluster it holds in another. A cluster where it holds nothing is not there.
fn move_work(
    of_tenant: &mut Map<ClusterPlace, Work>,
    before: Option<&(ClusterPlace, Work)>,
    after: Option<&(ClusterPlace, Work)>,
) {
    if let Some((place, gone)) = before {
        let left = of_tenant.get(place).copied().unwrap_or_default().minus(*gone);
        if left == Work::default() {
            of_tenant.remove(place);
        } else {
            of_tenant.insert(place.clone(), left);
        }
    }
    if let Some((place, new)) = after {
        let sum = of_tenant.get(place).copied().unwrap_or_default().plus(*new);
        of_tenant.insert(place.clone(), sum);
    }
}
