//! Arrays of a cluster that is none.

use muster_types::RefusalCode;
use muster_wire::v1;
use v1::JobPhase;

use super::{Book, job, refuse};
use tonic::Status;

impl Book {
    /// What `GetArray` answers; counts nothing down.
    pub fn array(&self, id: &str) -> Result<v1::Array, Status> {
        let found = self.arrays.iter().find(|array| array.id == id).cloned();
        found.ok_or_else(|| refuse(RefusalCode::JobNotFound, &format!("there is no array {id}")))
    }

    /// What `ListArrays` answers. An array that is asked for by its id has come further with each answer.
    pub fn list_arrays(&mut self, filter: &v1::JobFilter) -> Vec<v1::Array> {
        self.array_lists.push(filter.clone());
        let wanted = |array: &&v1::Array| {
            (filter.array_id.is_empty() || filter.array_id == array.id)
                && array.name.starts_with(&filter.name_prefix)
                && (filter.phases.is_empty() || filter.phases.iter().any(|phase| has_phase(array, *phase)))
        };
        let found = self.arrays.iter().filter(wanted).cloned().collect();
        if !filter.array_id.is_empty() && !self.array_stays {
            self.arrays.iter_mut().filter(|array| array.id == filter.array_id).for_each(advance);
        }
        found
    }

    /// Whether `ListJobs` shows a job.
    pub fn is_listed(filter: &v1::JobFilter, job: &v1::Job) -> bool {
        let array_id = job.array.as_ref().map_or("", |member| member.array_id.as_str());
        (filter.job_ids.is_empty() || filter.job_ids.contains(&job.id))
            && (filter.array_id.is_empty() || filter.array_id == array_id)
    }
}

fn has_phase(array: &v1::Array, phase: i32) -> bool {
    let counts = array.counts.unwrap_or_default();
    let members = match JobPhase::try_from(phase).unwrap() {
        JobPhase::Pending => counts.uncreated + counts.pending,
        JobPhase::Succeeded => counts.succeeded,
        JobPhase::Failed => counts.failed,
        JobPhase::Cancelled => counts.cancelled,
        _ => counts.active,
    };
    members > 0
}

/// Its members are created, start, and end: those of `fails` fail.
fn advance(array: &mut v1::Array) {
    let counts = array.counts.get_or_insert_default();
    if counts.active > 0 {
        let ended = std::mem::take(&mut counts.active);
        *(if array.name == "fails" { &mut counts.failed } else { &mut counts.succeeded }) += ended;
        array.end_time = Some(muster_wire::time::timestamp(1_700_000_001_000));
    } else {
        counts.active = std::mem::take(&mut counts.uncreated) + std::mem::take(&mut counts.pending);
    }
}

/// An array of which no member is created.
pub fn array(id: &str, name: &str, members: v1::JobArray) -> v1::Array {
    let size = if members.size > 0 { members.size } else { 0 };
    v1::Array {
        id: id.to_owned(),
        name: name.to_owned(),
        tenant: "default".to_owned(),
        size,
        first_job_id: id.replacen("array-", "job-", 1),
        array: Some(members),
        counts: Some(v1::ArrayCounts { uncreated: size, ..Default::default() }),
        reason: "ARRAY_NOT_CREATED".to_owned(),
        create_time: Some(muster_wire::time::timestamp(1_700_000_000_000)),
        worker_count: 1,
        ..Default::default()
    }
}

/// A member as a job.
pub fn member(array: &v1::Array, ordinal: u32, phase: JobPhase) -> v1::Job {
    let first: muster_types::ArrayId = array.id.parse().unwrap();
    let mut job = job(&first.member(ordinal).to_string(), &array.name, phase);
    job.array =
        Some(v1::ArrayMember { array_id: array.id.clone(), index: ordinal, size: array.size, ordinal });
    job
}
