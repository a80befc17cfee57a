//! Lines of a job's description about when, where and how large it may run.

use muster_console::{moment, span};
use muster_types::DependencyRule;
use muster_wire::closed::word;
use muster_wire::v1;

/// How many names of nodes or regions a line has.
const NAMED_MAX: usize = 8;

/// What was asked for, by name; a text is empty where nothing was.
pub fn lines(spec: &v1::JobSpec) -> Vec<(&'static str, String)> {
    let nodes = spec.nodes.as_ref();
    let tests = nodes.map_or(0, |nodes| nodes.expressions.len()) + spec.node_selector.len();
    let tests = (tests > 0).then(|| format!("{tests} tested; -o yaml has them"));
    vec![
        ("sizes", spec.groups.iter().filter_map(sizes).collect::<Vec<_>>().join(", ")),
        ("time limit", span(spec.run_time_limit).unwrap_or_default()),
        ("expected run", span(spec.expected_run).unwrap_or_default()),
        ("not before", moment(spec.not_before).unwrap_or_default()),
        ("deadline", moment(spec.deadline).unwrap_or_default()),
        ("after", spec.dependencies.iter().map(dependency).collect::<Vec<_>>().join(", ")),
        ("regions", named(&spec.regions)),
        ("only on", nodes.map(|nodes| named(&nodes.only)).unwrap_or_default()),
        ("not on", nodes.map(|nodes| named(&nodes.exclude)).unwrap_or_default()),
        ("labels of nodes", tests.unwrap_or_default()),
    ]
}

/// From how many to how many workers a group may have, where that is not one number.
fn sizes(group: &v1::TaskGroup) -> Option<String> {
    let is_elastic = (1..group.workers).contains(&group.min_workers);
    is_elastic.then(|| format!("{} from {} to {}", group.name, group.min_workers, group.workers))
}

fn dependency(on: &v1::Dependency) -> String {
    let ids = [&on.job_id, &on.array_id, &on.job_name];
    let id = ids.into_iter().find(|id| !id.is_empty()).map_or("", String::as_str);
    let members = if on.by_member { ", member by member" } else { "" };
    match word::<DependencyRule>(on.rule) {
        "finished" => format!("{id} (when it has finished{members})"),
        _ => format!("{id} (when it has succeeded{members})"),
    }
}

/// The first few names of a list, and how many more there are.
fn named(names: &[String]) -> String {
    let shown = names.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use muster_wire::time::{duration, timestamp};

    use super::*;

    #[test]
    fn what_nobody_asked_for_has_no_line() {
        let group = v1::TaskGroup { workers: 2, min_workers: 2, ..v1::TaskGroup::default() };
        let spec = v1::JobSpec { groups: vec![group], ..v1::JobSpec::default() };
        let said: Vec<_> = lines(&spec).into_iter().filter(|(_, text)| !text.is_empty()).collect();
        assert!(said.is_empty(), "{said:?}");
    }

    #[test]
    fn limits_times_and_places_are_shown_as_job_files_write_them() {
        let sizes = v1::TaskGroup { workers: 8, min_workers: 4, ..v1::TaskGroup::default() };
        let group = v1::TaskGroup { name: "workers".into(), ..sizes };
        let on = v1::Dependency { job_id: "job-1".into(), ..Default::default() };
        let exclude = (0..9).map(|n| format!("h{n}")).collect();
        let spec = v1::JobSpec {
            groups: vec![group],
            run_time_limit: Some(duration(14_400_000)),
            deadline: Some(timestamp(1_800_000_000_000)),
            dependencies: vec![on],
            nodes: Some(v1::NodeRequirements { exclude, ..Default::default() }),
            ..Default::default()
        };
        let said: Vec<_> = lines(&spec).into_iter().filter(|(_, text)| !text.is_empty()).collect();
        let said: Vec<_> = said.iter().map(|(name, text)| (*name, text.as_str())).collect();
        assert_eq!(
            said,
            [
                ("sizes", "workers from 4 to 8"),
                ("time limit", "4h"),
                ("deadline", "2027-01-15T08:00:00Z"),
                ("after", "job-1 (when it has succeeded)"),
                ("not on", "h0, h1, h2, h3, h4, h5, h6, h7 and 1 more"),
            ]
        );
    }
}
