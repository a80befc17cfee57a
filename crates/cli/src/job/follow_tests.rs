//! Members that are not created, as they are looked at, and what is proposed when the time is up.

use muster_wire::v1;

use super::{Subject, Watched, goes_on_with};

/// A member that waits: not created yet, or with an attempt.
fn member(array: &str, ordinal: u32, attempt: u32) -> v1::Job {
    let array_id = array.to_owned();
    v1::Job {
        id: format!("job-{array}-{ordinal}"),
        array: Some(v1::ArrayMember { array_id, index: ordinal, size: 100, ordinal }),
        status: Some(v1::JobStatus {
            phase: v1::JobPhase::Pending.into(),
            attempt,
            eligible: attempt > 0,
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[test]
fn members_are_looked_at_by_array_and_in_their_order() {
    let mut watched = Watched::new(&Subject::of(Vec::new()), 0);
    for job in
        [member("a", 10, 0), member("b", 7, 0), member("a", 9, 0), member("b", 1, 1), member("b", 6, 0)]
    {
        watched.jobs.insert(job.id.clone(), job);
    }
    let found: Vec<(&str, Vec<u32>)> = watched
        .uncreated()
        .into_iter()
        .map(|(array, members)| (array, members.into_keys().collect()))
        .collect();
    assert_eq!(found, [("a", vec![9, 10]), ("b", vec![6, 7])]);
}

#[test]
fn the_time_that_is_up_is_followed_by_a_command_that_exists() {
    assert_eq!(goes_on_with(&["job-3".to_owned(), "job-4".to_owned()]), "muster job wait job-3 job-4");
    assert_eq!(goes_on_with(&[]), "muster job watch", "every job was followed");
}
