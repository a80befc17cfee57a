//! What Kubernetes says of an ended pod means for its workers, where their runner has said nothing.
//!
//! **Invariant:** the runner's word counts first; of Kubernetes' only what it can know is believed: an exit code is the runner's,
//! and a deletion is ours only when we asked.

use super::objects::{ContainerWait, NodeObject, PodObject};
use crate::remote::lost;
use crate::remote::runner::code;
use crate::rules::detail;
use muster_types::ExitStatus;

/// Reasons for which a container that waits will not start, whatever happens.
const HOPELESS: [&str; 2] = ["InvalidImageName", "ErrImageNeverPull"];
/// Reasons for which it will hardly start, once they have lasted.
const VAIN: [&str; 6] = [
    "ImagePullBackOff",
    "ErrImagePull",
    "ImageInspectError",
    "RegistryUnavailable",
    "CreateContainerConfigError",
    "CreateContainerError",
];
/// The exit code of a container whose first process was ended by SIGKILL.
const KILLED: i32 = 137;

/// What a pod is called for people.
fn named(pod: &PodObject) -> String {
    let place = pod.node.as_deref().unwrap_or("no node");
    format!("pod {}/{} on {place}", pod.namespace, pod.name)
}

/// What Kubernetes says of a pod's end, in its words.
fn words(pod: &PodObject) -> String {
    let ended = pod.terminated.as_ref();
    let container = ended.map(|ended| format!("{} {} exit code {}", ended.reason, ended.message, ended.code));
    let parts = [Some(pod.reason.clone()), Some(pod.message.clone()), container];
    let parts: Vec<String> = parts.into_iter().flatten().map(|part| part.trim().to_owned()).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { "no reason given".to_owned() } else { parts.join(", ") }
}

/// How a worker ended that its runner had launched, and then said nothing more of.
pub(super) fn after_launch(pod: &PodObject, asked: bool) -> ExitStatus {
    let text = |what: &str| format!("{} ended: {what} ({})", named(pod), words(pod));
    let ended = pod.terminated.as_ref();
    if ended.is_some_and(|ended| ended.reason == "OOMKilled") {
        return ExitStatus::OutOfMemory;
    }
    if asked {
        return ExitStatus::Signal(15);
    }
    if let Some(disruption) = &pod.disruption {
        return lost(&text(disruption));
    }
    match (pod.reason.as_str(), ended) {
        ("Evicted", _) => lost(&text("its node evicted it")),
        ("NodeLost" | "NodeShutdown" | "Shutdown" | "Terminated", _) => {
            ExitStatus::NodeFault(detail(&text("its node went away")))
        }
        _ if pod.is_deleting => lost(&text("somebody deleted it")),
        // What a node that was restarted finds of the containers that it had.
        (_, Some(ended)) if ended.reason == "Unknown" => {
            ExitStatus::NodeFault(detail(&text("its node was restarted, and does not know how")))
        }
        (_, Some(ended)) if ended.code == KILLED => lost(&text("its runner was ended by signal 9")),
        (_, Some(ended)) if ended.reason == "ContainerStatusUnknown" => {
            lost(&text("its node does not know how"))
        }
        (_, Some(ended)) if ended.code > 128 => ExitStatus::Signal(ended.code - 128),
        (_, Some(ended)) => ExitStatus::Code(ended.code),
        (_, None) => lost(&text("for its own reasons")),
    }
}

/// Why nothing was launched by a pod that is over.
pub(super) fn before_launch(pod: &PodObject) -> ExitStatus {
    let text = |why: &str| format!("{} launched nothing: {why} ({})", named(pod), words(pod));
    let failed = |why: &str| ExitStatus::LaunchFailed(detail(&text(why)));
    if let Some(disruption) = &pod.disruption {
        return lost(&text(disruption));
    }
    if pod.is_deleting {
        return lost(&text("somebody deleted it"));
    }
    if let Some(shim) = &pod.shim_failed {
        let why = format!(
            "the container that brings the runner ended with code {}; see kubernetes.shim_image in the agent's configuration",
            shim.code
        );
        return failed(&why);
    }
    let exit = pod.terminated.as_ref().map(|ended| (ended.code, ended.reason.as_str()));
    match (pod.reason.as_str(), exit) {
        ("Evicted", _) => lost(&text("its node evicted it")),
        ("NodeLost" | "NodeShutdown" | "Shutdown" | "Terminated", _) => {
            ExitStatus::NodeFault(detail(&text("its node went away")))
        }
        // The node took another pod first: what it has free was counted a moment before.
        (reason, _)
            if reason.starts_with("OutOf")
                || reason == "NodeAffinity"
                || reason == "UnexpectedAdmissionError" =>
        {
            lost(&text("its node did not admit it"))
        }
        (_, Some((_, "OOMKilled"))) => ExitStatus::OutOfMemory,
        (_, Some((ended, _))) if ended == i32::from(code::UNREACHABLE) => failed(
            "its runner could not reach the agent; see kubernetes.advertise in the agent's configuration",
        ),
        (_, Some((ended, _))) if ended == i32::from(code::REFUSED) => failed("its runner was turned away"),
        (_, Some((ended, _))) if ended == i32::from(code::SETUP) => {
            failed("its runner could not make its directory or read its ticket")
        }
        (_, Some((126..=128, _))) => failed("the runner cannot be executed in the image of the job"),
        _ => failed("it ended without a word"),
    }
}

/// Why the container of a pod will not start: at once, or once it has lasted.
pub(super) fn hindrance(pod: &PodObject) -> Option<(bool, ExitStatus)> {
    let waiting = [&pod.shim_waiting, &pod.waiting].into_iter().flatten();
    let mut held = waiting.filter_map(|ContainerWait { reason, message }| {
        let is_hopeless = HOPELESS.contains(&reason.as_str());
        let is_vain = VAIN.contains(&reason.as_str());
        let text = format!("{} does not start: {reason}: {message}", named(pod));
        (is_hopeless || is_vain).then(|| (is_hopeless, ExitStatus::LaunchFailed(detail(&text))))
    });
    held.next()
}

/// The pod of a runner is gone, or nothing was heard of it for as long as its lease stood.
pub(super) fn unheard(name: &str, place: &str, node: Option<&NodeObject>) -> ExitStatus {
    let text =
        |why: &str| format!("pod {name} on {place} was not heard of for as long as its lease stood: {why}");
    match node {
        None => ExitStatus::NodeFault(detail(&text("Kubernetes has no such node any more"))),
        Some(node) if !node.is_ready => {
            ExitStatus::NodeFault(detail(&text("Kubernetes says that the node is not ready")))
        }
        Some(_) => lost(&text("it does not reach the agent")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::objects::ContainerEnd;

    fn ended(code: i32, reason: &str) -> PodObject {
        PodObject {
            namespace: "w".into(),
            name: "muster-1".into(),
            node: Some("n1".into()),
            terminated: Some(ContainerEnd { code, reason: reason.into(), message: String::new() }),
            ..PodObject::default()
        }
    }

    #[test]
    fn ends_of_pods_become_ends_of_workers() {
        assert_eq!(after_launch(&ended(0, "Completed"), false), ExitStatus::Code(0));
        assert_eq!(after_launch(&ended(3, "Error"), false), ExitStatus::Code(3));
        assert_eq!(after_launch(&ended(143, "Error"), false), ExitStatus::Signal(15));
        assert_eq!(after_launch(&ended(137, "OOMKilled"), true), ExitStatus::OutOfMemory);
        assert_eq!(after_launch(&ended(137, "Error"), true), ExitStatus::Signal(15));
        let text = |pod: &PodObject| after_launch(pod, false).to_string();
        assert!(text(&ended(137, "Error")).contains("ended by signal 9"));
        assert!(text(&ended(137, "ContainerStatusUnknown")).contains("signal 9"));
        let restarted = after_launch(&ended(255, "Unknown"), false);
        assert!(matches!(restarted, ExitStatus::NodeFault(_)), "{restarted}");
        let evicted =
            PodObject { reason: "Evicted".into(), message: "low on memory".into(), ..ended(137, "Error") };
        assert!(matches!(after_launch(&evicted, false), ExitStatus::BackendLost(_)));
        assert!(text(&evicted).contains("low on memory"));
        let disruption = Some("EvictionByEvictionAPI: drained".to_owned());
        let drained = PodObject { disruption, is_deleting: true, ..ended(143, "Error") };
        assert!(matches!(after_launch(&drained, false), ExitStatus::BackendLost(_)));
        assert!(text(&drained).contains("drained"));
        let deleted = PodObject { is_deleting: true, ..ended(143, "Error") };
        assert!(text(&deleted).contains("somebody deleted it"));
        let lost = PodObject { reason: "NodeLost".into(), terminated: None, ..ended(0, "") };
        assert!(matches!(after_launch(&lost, false), ExitStatus::NodeFault(_)));
        let unknown = PodObject { terminated: None, ..ended(0, "") };
        assert!(text(&unknown).contains("no reason given"));
    }

    #[test]
    fn why_nothing_was_launched_names_the_key_to_change() {
        let text = |pod: &PodObject| before_launch(pod).to_string();
        assert!(text(&ended(69, "Error")).contains("kubernetes.advertise"));
        assert!(text(&ended(127, "StartError")).contains("image of the job"));
        assert!(text(&ended(128, "StartError")).contains("image of the job"));
        assert!(text(&ended(1, "Error")).contains("exit code 1"));
        let shim = Some(ContainerEnd { code: 2, ..ContainerEnd::default() });
        let pod = PodObject { shim_failed: shim, terminated: None, ..ended(0, "") };
        assert!(text(&pod).contains("kubernetes.shim_image"));
        let full = PodObject { reason: "OutOfcpu".into(), terminated: None, ..ended(0, "") };
        assert!(matches!(before_launch(&full), ExitStatus::BackendLost(_)));
        let preempted = PodObject { disruption: Some("PreemptionByScheduler: x".into()), ..ended(0, "") };
        assert!(matches!(before_launch(&preempted), ExitStatus::BackendLost(_)));
    }

    #[test]
    fn images_that_do_not_come_are_a_hindrance() {
        let with = |reason: &str| {
            let waiting = Some(ContainerWait { reason: reason.into(), message: "not found".into() });
            hindrance(&PodObject { waiting, ..ended(0, "") })
                .map(|(at_once, status)| (at_once, status.to_string()))
        };
        assert_eq!(with("ContainerCreating"), None);
        assert_eq!(with("PodInitializing"), None);
        let (at_once, text) = with("ImagePullBackOff").unwrap();
        assert!(!at_once && text.contains("not found"), "{text}");
        assert!(with("InvalidImageName").unwrap().0);
        let shim_waiting = Some(ContainerWait { reason: "ErrImagePull".into(), message: String::new() });
        assert!(hindrance(&PodObject { shim_waiting, ..PodObject::default() }).is_some());
    }

    #[test]
    fn what_was_not_heard_of_is_blamed_on_a_node_that_is_lost() {
        let ready = NodeObject { is_ready: true, ..NodeObject::default() };
        assert!(matches!(unheard("p", "n1", Some(&ready)), ExitStatus::BackendLost(_)));
        assert!(matches!(unheard("p", "n1", Some(&NodeObject::default())), ExitStatus::NodeFault(_)));
        assert!(matches!(unheard("p", "n1", None), ExitStatus::NodeFault(_)));
    }
}
