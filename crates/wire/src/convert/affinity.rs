//! Where a job lies with respect to other jobs.

use muster_types::{
    Affinity, AffinityLevel, AffinityRule, AffinityTarget, Violation, fleet::checked_name, limits,
};

use super::id::{array_id, job_id};
use super::{Found, below, bound};
use crate::closed::{given_from_proto, number};
use crate::v1;

/// The entries of a message. What is beyond the bound is reported and not looked at.
pub(super) fn affinity(at: &str, mut messages: Vec<v1::JobAffinity>, found: &mut Found) -> Vec<Affinity> {
    if messages.is_empty() {
        return Vec::new();
    }
    let at = &below(at, "affinity");
    bound(at, &mut messages, limits::JOB_AFFINITY_MAX, found);
    let mut entries = Vec::with_capacity(messages.len());
    for (index, message) in messages.into_iter().enumerate() {
        entries.extend(entry(&format!("{at}[{index}]"), message, found));
    }
    entries
}

fn entry(at: &str, message: v1::JobAffinity, found: &mut Found) -> Option<Affinity> {
    let v1::JobAffinity { job_id, array_id, job_name, label_selector, level, rule, required, weight } =
        message;
    let target = target(at, [job_id, array_id, job_name, label_selector], found);
    let level = found.take(given_from_proto::<AffinityLevel>(&below(at, "level"), level));
    let rule = found.take(given_from_proto::<AffinityRule>(&below(at, "rule"), rule));
    let weight = match (required, weight) {
        (true, 0) => None,
        (true, _) | (false, 0) => {
            found.push(Violation::new(at, "must have one of required and weight"));
            return None;
        }
        // The rules of a job say which weights there are.
        (false, weight) => Some(u8::try_from(weight).unwrap_or(u8::MAX)),
    };
    Some(Affinity { target: target?, level: level?, rule: rule?, weight })
}

fn target(at: &str, [job, array, name, selector]: [String; 4], found: &mut Found) -> Option<AffinityTarget> {
    let given = [&job, &array, &name, &selector].into_iter().filter(|text| !text.is_empty()).count();
    if given != 1 {
        found.push(Violation::new(at, "must have one of job_id, array_id, job_name and label_selector"));
        return None;
    }
    if !job.is_empty() {
        return found.take(job_id(&below(at, "job_id"), &job)).map(AffinityTarget::Job);
    }
    if !array.is_empty() {
        return found.take(array_id(&below(at, "array_id"), &array)).map(AffinityTarget::Array);
    }
    if !name.is_empty() {
        return found.take(checked_name(&below(at, "job_name"), &name)).map(AffinityTarget::Named);
    }
    Some(AffinityTarget::Labels(selector))
}

/// The message of one entry.
#[must_use]
pub fn affinity_to_proto(entry: &Affinity) -> v1::JobAffinity {
    let mut message = v1::JobAffinity {
        level: number(entry.level),
        rule: number(entry.rule),
        required: entry.is_required(),
        weight: entry.weight.map_or(0, u32::from),
        ..v1::JobAffinity::default()
    };
    match &entry.target {
        AffinityTarget::Job(job) => message.job_id = job.to_string(),
        AffinityTarget::Array(array) => message.array_id = array.to_string(),
        AffinityTarget::Named(name) => message.job_name = name.to_string(),
        AffinityTarget::Labels(selector) => message.label_selector.clone_from(selector),
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(label_selector: &str) -> v1::JobAffinity {
        v1::JobAffinity {
            label_selector: label_selector.to_owned(),
            level: number(AffinityLevel::Rack),
            rule: number(AffinityRule::Together),
            weight: 20,
            ..Default::default()
        }
    }

    fn read(messages: Vec<v1::JobAffinity>) -> (Vec<Affinity>, Vec<String>) {
        let mut found = Found::default();
        let entries = affinity("spec", messages, &mut found);
        (entries, found.into_violations().into_iter().map(|violation| violation.field).collect())
    }

    #[test]
    fn entries_are_read_and_shown() {
        let by_job = v1::JobAffinity {
            job_id: muster_types::JobId(77).to_string(),
            required: true,
            weight: 0,
            ..message("")
        };
        let by_array = v1::JobAffinity { array_id: muster_types::ArrayId(78).to_string(), ..message("") };
        let by_name = v1::JobAffinity { job_name: "cache".to_owned(), ..message("") };
        let messages = vec![message("app=cache"), by_job, by_array, by_name];
        let (entries, found) = read(messages.clone());
        assert_eq!(found, Vec::<String>::new());
        assert_eq!(entries.iter().map(affinity_to_proto).collect::<Vec<_>>(), messages);
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        let wrong = [
            (v1::JobAffinity { level: 0, ..message("a=b") }, "spec.affinity[0].level"),
            (v1::JobAffinity { level: 99, ..message("a=b") }, "spec.affinity[0].level"),
            (v1::JobAffinity { rule: 0, ..message("a=b") }, "spec.affinity[0].rule"),
            (v1::JobAffinity { weight: 0, ..message("a=b") }, "spec.affinity[0]"),
            (v1::JobAffinity { required: true, ..message("a=b") }, "spec.affinity[0]"),
            (v1::JobAffinity { job_name: "cache".to_owned(), ..message("a=b") }, "spec.affinity[0]"),
            (message(""), "spec.affinity[0]"),
            (v1::JobAffinity { job_name: "No Name".to_owned(), ..message("") }, "spec.affinity[0].job_name"),
            (v1::JobAffinity { job_id: "job".to_owned(), ..message("") }, "spec.affinity[0].job_id"),
        ];
        for (message, field) in wrong {
            let (_, found) = read(vec![message]);
            assert_eq!(found, [field]);
        }
        let (entries, found) = read(vec![message("a=b"); 9]);
        assert_eq!((entries.len(), found), (8, vec!["spec.affinity".to_owned()]));
    }
}
