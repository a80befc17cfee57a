//! Which outputs of workers are sent at the same time, and which commands next to them have a connection.

use crate::limits;
use muster_types::JobId;
use std::collections::{BTreeMap, BTreeSet};

/// The decision about one more output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UploadAdmission {
    /// It is sent.
    Accepted,
    /// Only the reason is sent, to its reader.
    Refused(String),
    /// Not even that is sent, because too many are refused already.
    Dropped,
}

/// The outputs that are being sent, and the job of each. One job has a part of the places, so that its readers leave
/// some to those of other jobs.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    number: u64,
    active: BTreeMap<u64, JobId>,
    /// Those that are connections of commands.
    commands: BTreeSet<u64>,
}

impl Uploads {
    /// Whether another output of a job is sent.
    pub(crate) fn admit(&self, job: JobId) -> UploadAdmission {
        let (all, of_job) = (self.active.len(), self.active.values().filter(|other| **other == job).count());
        if all >= 2 * limits::LOG_UPLOADS_MAX {
            UploadAdmission::Dropped
        } else if all >= limits::LOG_UPLOADS_MAX {
            UploadAdmission::Refused(format!("this node already sends {} outputs", limits::LOG_UPLOADS_MAX))
        } else if of_job >= limits::LOG_UPLOADS_OF_ONE_MAX {
            let most = limits::LOG_UPLOADS_OF_ONE_MAX;
            UploadAdmission::Refused(format!("this node already sends {most} outputs of this job"))
        } else {
            UploadAdmission::Accepted
        }
    }

    /// Whether another command next to a worker of a job is run.
    pub(crate) fn admit_command(&self, job: JobId) -> UploadAdmission {
        match self.admit(job) {
            UploadAdmission::Accepted if self.commands.len() >= limits::EXECS_MAX => {
                let most = limits::EXECS_MAX;
                UploadAdmission::Refused(format!("this node already runs {most} commands next to workers"))
            }
            admission => admission,
        }
    }

    /// A command of this job has a connection; the number of that.
    pub(crate) fn begin_command(&mut self, job: JobId) -> u64 {
        let number = self.begin(job);
        self.commands.insert(number);
        number
    }

    /// An output of this job is being sent; the number of the upload.
    pub(crate) fn begin(&mut self, job: JobId) -> u64 {
        self.number += 1;
        self.active.insert(self.number, job);
        self.number
    }

    /// The upload has ended, in whatever way.
    pub(crate) fn end(&mut self, number: u64) {
        self.active.remove(&number);
        self.commands.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_leave_places_for_outputs() {
        let mut uploads = Uploads::default();
        let job = |number: usize| JobId(1_024 * (1 + number as u64));
        let numbers: Vec<u64> = (0..limits::EXECS_MAX)
            .map(|number| {
                assert_eq!(uploads.admit_command(job(number)), UploadAdmission::Accepted);
                uploads.begin_command(job(number))
            })
            .collect();
        let another = job(limits::EXECS_MAX);
        assert!(matches!(uploads.admit_command(another), UploadAdmission::Refused(_)));
        assert_eq!(uploads.admit(another), UploadAdmission::Accepted);
        uploads.end(numbers[0]);
        assert_eq!(uploads.admit_command(another), UploadAdmission::Accepted);
    }

    #[test]
    fn readers_of_one_job_leave_places_for_others() {
        let (mine, others) = (JobId(1_024), JobId(2_048));
        let mut uploads = Uploads::default();
        // As the agent does: what is accepted or refused gets a task.
        let begin = |uploads: &mut Uploads, job| {
            let admission = uploads.admit(job);
            if admission != UploadAdmission::Dropped {
                uploads.begin(job);
            }
            admission
        };
        let reason = |admission| match admission {
            UploadAdmission::Refused(reason) => reason,
            other => panic!("not refused: {other:?}"),
        };
        for _ in 0..limits::LOG_UPLOADS_OF_ONE_MAX {
            assert_eq!(begin(&mut uploads, mine), UploadAdmission::Accepted);
        }
        assert!(reason(begin(&mut uploads, mine)).contains("of this job"));
        assert_eq!(begin(&mut uploads, others), UploadAdmission::Accepted);
        while uploads.active.len() < limits::LOG_UPLOADS_MAX {
            begin(&mut uploads, mine);
        }
        assert!(reason(begin(&mut uploads, others)).contains("already sends"));
        while begin(&mut uploads, mine) != UploadAdmission::Dropped {}
        assert_eq!(uploads.active.len(), 2 * limits::LOG_UPLOADS_MAX);
        let numbers: Vec<u64> = uploads.active.keys().copied().collect();
        numbers.into_iter().for_each(|number| uploads.end(number));
        assert_eq!(begin(&mut uploads, mine), UploadAdmission::Accepted, "every place is free again");
    }
}
