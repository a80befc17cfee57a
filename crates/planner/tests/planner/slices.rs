//! Slices on hosts that a provider has made slices of.

use muster_planner::{Budget, CapacityTimeline, Holds, could_ever, explain};
use muster_state::{GuardError, fit::GangFault};
use muster_types::tpu::{PodPosition, SLICE_LABEL, SliceRequest, SliceShape, host_offsets};
use muster_types::{AcceleratorRequest, Accelerators, JobSpec, NodeId};

use crate::support::{Fleet, group, job_draft, name, node_draft};

const CHIPS: u16 = 4;

/// A job on whole hosts, as a slice of this shape if there is one.
fn job(workers: u32, shape: Option<&str>) -> JobSpec {
    let request = AcceleratorRequest::from(Accelerators { kind: name("v5e"), count: CHIPS });
    let mut of_group = group("g0", workers, Some(request));
    of_group.slice =
        shape.map(|shape| SliceRequest { shape: SliceShape::parse(shape).expect("a shape"), count: 1 });
    job_draft(vec![of_group]).check().expect("a job")
}

/// The hosts of a pool that is one slice.
fn add_pool(fleet: &mut Fleet, pool: &str, shape: &str) -> Vec<NodeId> {
    let offsets = host_offsets(SliceShape::parse(shape).expect("a shape"), CHIPS).expect("it has hosts");
    let mut nodes = Vec::new();
    for (number, offset) in offsets.into_iter().enumerate() {
        let mut draft = node_draft(&format!("{pool}{number}"));
        draft.accelerators = Some(Accelerators { kind: name("v5e"), count: CHIPS });
        draft.labels = [(name(SLICE_LABEL), shape.to_owned())].into();
        let at = offset.map(|place| u8::try_from(place).expect("a small pool"));
        draft.pod = Some(PodPosition { pod: name(pool), cube: 0, at });
        nodes.push(fleet.add_node(draft));
    }
    nodes
}

#[test]
fn a_slice_that_a_provider_made_is_for_slices_of_its_shape() {
    let mut fleet = Fleet::new();
    let large = add_pool(&mut fleet, "large", "4x4");
    let (whole, part, plain) = (job(4, Some("4x4")), job(2, Some("2x4")), job(2, None));
    assert_eq!(fleet.plan(&whole).expect("it is the whole of it").workers.len(), 4);
    assert!(fleet.plan(&plain).is_some(), "it forms no slice");
    assert!(fleet.plan(&part).is_none(), "the agent would refuse it");
    let never = could_ever(&fleet.state, &part).expect_err("there is no such slice").to_string();
    let hint = "; 4 more hosts are of slices of other shapes, which jobs use as a whole";
    assert!(never.ends_with(hint), "{never}");

    // Nor is it expected there later.
    let outlook = CapacityTimeline::new(&fleet.state, &name("eu"), &name("c1"), Vec::new());
    let holds = Holds::new();
    let starts = |spec: &JobSpec| {
        outlook.earliest(spec, &fleet.terms(&holds, spec), &mut Budget::new(u64::MAX)).is_some()
    };
    assert!(starts(&whole) && !starts(&part));

    // And the guard takes no such record.
    let (placed, state) = (fleet.plan(&whole).expect("it fits").workers, fleet.state.clone());
    let of_part = vec![placed[0], placed[2]];
    assert!(of_part.iter().all(|slot| large.contains(&slot.node)));
    let refused = fleet.start(&part, 1_000, of_part).expect_err("the hosts are of another slice");
    assert_eq!(refused, GuardError::NotTheGang(GangFault::Node));
    fleet.state = state;

    let small = add_pool(&mut fleet, "small", "2x4");
    let workers = fleet.plan(&part).expect("there is such a slice now").workers;
    assert_eq!(workers.iter().map(|slot| slot.node).collect::<Vec<_>>(), small);
}

#[test]
fn workers_without_devices_open_no_slice_of_another_shape_to_the_slices_of_their_job() {
    let mut fleet = Fleet::new();
    add_pool(&mut fleet, "large", "4x4");
    fleet.add_node(node_draft("cpu"));
    let mut draft = job(2, Some("2x4")).into_draft();
    draft.groups.push(group("coordinator", 1, None));
    let mixed = draft.check().expect("a job");
    assert!(fleet.plan(&mixed).is_none(), "the agent would refuse its slice");
    could_ever(&fleet.state, &mixed).expect_err("there is no such slice");
    let small = add_pool(&mut fleet, "small", "2x4");
    let workers = fleet.plan(&mixed).expect("there is such a slice now").workers;
    assert_eq!(workers.iter().take(2).map(|slot| slot.node).collect::<Vec<_>>(), small);
}

#[test]
fn what_keeps_a_slice_from_hosts_of_another_shape_is_named() {
    let mut fleet = Fleet::new();
    add_pool(&mut fleet, "large", "4x4");
    let (holds, part) = (Holds::new(), job(2, Some("2x4")));
    let explained = explain(&fleet.state, &part, &fleet.terms(&holds, &part), None);
    let report = &explained.clusters[0];
    assert_eq!((report.nodes.registered, report.nodes.wrong_labels), (4, 4));
    assert_eq!(report.unmet, [("the shape of the provider's slice".to_owned(), 4)]);
    let whole = job(4, Some("4x4"));
    let explained = explain(&fleet.state, &whole, &fleet.terms(&holds, &whole), None);
    assert_eq!((explained.clusters[0].nodes.fit, explained.clusters[0].unmet.len()), (4, 0));
}
