//! The host's health, from a real library that plays devices to what the leader hears.

// A panic is a test's report, in its helpers too.
#![allow(clippy::unwrap_used)]

mod support;

use muster_wire::agent;
use muster_wire::agent::session_response::Message as Response;
use std::path::PathBuf;
use support::*;

const GOOD: &str = "gpu name=NVIDIA_H100_80GB_HBM3 recovery=0 nvlink";

/// A separate library for one host: where it is, and what it plays.
struct Library {
    path: PathBuf,
    /// XIDs so far.
    lines: String,
}

impl Library {
    /// The library is next to the tests, as cargo has built it.
    fn copy_to(host: &Host) -> Library {
        let own = std::env::current_exe().unwrap();
        let built = own.parent().unwrap().join("libmuster_fake_nvml.so");
        let path = host.file("libnvidia-ml.so");
        std::fs::copy(&built, &path).unwrap_or_else(|e| panic!("{}: {e}", built.display()));
        Library { path, lines: String::new() }
    }

    /// Put in place at once: nobody reads half a script.
    fn play(&mut self, gpus: &[&str]) {
        let text = format!("driver 570.86.15\n{}\n{}", gpus.join("\n"), self.lines);
        let new = self.path.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, self.path.with_extension("script")).unwrap();
    }

    fn xid(&mut self, sequence: u64, device: u32, code: u32) {
        self.lines.push_str(&format!("xid {sequence} {device} {code}\n"));
    }
}

/// A leader that takes health reports, and a host with a library.
async fn scene() -> (Leader, Host, Library) {
    let leader = Leader::start(Manner::patient()).await;
    let mut host = Host::new(&leader);
    let mut library = Library::copy_to(&host);
    library.play(&[GOOD, GOOD]);
    host.accelerators = "discover".into();
    host.health = serde_json::json!({
        "nvml": {"file": library.path}, "kernel_log": "off",
        "poll_interval": "20ms", "hang": "1s500ms", "slowdown_window": "200ms",
    });
    (leader, host, library)
}

/// The next report that is so.
async fn report(
    leader: &mut Leader,
    what: &str,
    so: impl Fn(&agent::HealthReport) -> bool,
) -> agent::HealthReport {
    let wanted = |heard| match heard {
        AgentMessage::Health(report) if so(&report) => Some(report),
        _ => None,
    };
    leader.hear(what, wanted).await
}

fn names(list: &[agent::HealthObservation]) -> Vec<String> {
    let place = |device: Option<u32>| device.map_or(String::new(), |device| format!("@{device}"));
    list.iter().map(|seen| format!("{}{}", seen.finding, place(seen.device))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_are_listed_by_the_library_and_their_troubles_told() {
    let (mut leader, host, mut library) = scene().await;
    let _agent = host.agent();
    let node = leader.registered().await.node.unwrap();
    let accelerators = node.accelerators.unwrap();
    assert_eq!((accelerators.r#type.as_str(), accelerators.count), ("h100", 2));
    assert_eq!(node.labels["gpu.driver"], "570.86.15");
    assert_eq!(node.labels["gpu.memory-gib"], "80");
    let first = report(&mut leader, "the first report", |_| true).await;
    assert_eq!((first.findings.len(), first.events.len()), (0, 0));

    let sick = format!("{GOOD} ecc=2 remap=pending,failed fabric=3 health=0x1");
    library.play(&[&sick, GOOD]);
    let told = report(&mut leader, "the troubles", |r| r.findings.len() == 4).await;
    let expected = ["ecc-uncorrectable@0", "row-remap-pending@0", "row-remap-failed@0", "fabric@0"];
    assert_eq!(names(&told.findings), expected);
    assert_eq!(told.findings[3].detail, "its bandwidth is degraded");
    assert_eq!(told.findings[0].group, [0, 1]);

    // Hot for a whole window; a moment of it would be none.
    library.play(&[GOOD, &format!("{GOOD} temp=96 reasons=0x40")]);
    let told = report(&mut leader, "the heat", |r| names(&r.findings) == ["slowdown@1"]).await;
    assert_eq!(told.findings[0].detail, "clock reasons 0x40, 96 C");

    library.play(&[GOOD, "gpu lost"]);
    report(&mut leader, "the loss", |r| names(&r.findings) == ["device-lost@1"]).await;
    library.play(&["gpu reset", GOOD]);
    report(&mut leader, "what needs a reset", |r| names(&r.findings) == ["recovery-gpu-reset@0"]).await;
    library.play(&[GOOD, GOOD]);
    let told = report(&mut leader, "health again", |r| r.findings.is_empty()).await;
    assert_eq!(told.reset_devices, [0], "what asked for a reset and does so no more was reset");
}

/// A number of a device names no instance: nothing is offered there.
#[tokio::test(flavor = "multi_thread")]
async fn devices_that_are_divided_into_instances_are_not_offered() {
    let (mut leader, host, mut library) = scene().await;
    library.play(&[GOOD, &format!("{GOOD} mig=1")]);
    let _agent = host.agent();
    let node = leader.registered().await.node.unwrap();
    assert_eq!(node.accelerators, None);
    assert_eq!(node.labels["gpu.mig"], "on");
}

#[tokio::test(flavor = "multi_thread")]
async fn xids_are_told_with_what_the_driver_asks_for() {
    let (mut leader, host, mut library) = scene().await;
    let _agent = host.agent();
    report(&mut leader, "the first report", |_| true).await;
    library.xid(1, 1, 95);
    library.play(&[GOOD, "gpu name=NVIDIA_H100_80GB_HBM3 recovery=1 nvlink"]);
    let told = report(&mut leader, "the XID", |r| !r.events.is_empty()).await;
    assert_eq!(names(&told.events), ["xid-95@1"]);
    assert_eq!((told.events[0].recovery, told.events[0].group.as_slice()), (Some(1), [0, 1].as_slice()));
    // A storm of one thing is one line; others stand next to it.
    for sequence in 2..300 {
        library.xid(sequence, 0, 13);
    }
    library.xid(300, 0, 31);
    library.play(&[GOOD, GOOD]);
    let mut counts = std::collections::BTreeMap::new();
    while !counts.contains_key("xid-31") {
        let told = report(&mut leader, "the storm", |r| !r.events.is_empty()).await;
        for event in told.events {
            *counts.entry(event.finding).or_insert(0) += event.count;
        }
    }
    assert!(counts.len() <= 3 && counts["xid-31"] == 1, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_library_that_hangs_is_told_and_hurts_nobody() {
    let (mut leader, host, mut library) = scene().await;
    let _agent = host.agent();
    report(&mut leader, "the first report", |_| true).await;
    library.play(&[GOOD, GOOD, "hang"]);
    let told = report(&mut leader, "the hang", |r| !r.findings.is_empty()).await;
    assert_eq!(names(&told.findings), ["monitor-hung"]);
    let mut beats = 0;
    leader
        .hear("heartbeats meanwhile", |h| {
            beats += usize::from(matches!(h, AgentMessage::Heartbeat(_)));
            (beats == 3).then_some(())
        })
        .await;
    library.play(&[GOOD, GOOD]);
    report(&mut leader, "the end of the hang", |r| r.findings.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_runs_where_the_library_is_broken_or_absent() {
    for content in [None, Some(&b"no library at all"[..])] {
        let mut leader = Leader::start(Manner::patient()).await;
        let mut host = Host::new(&leader);
        let path = host.file("libnvidia-ml.so");
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        host.health = serde_json::json!({"nvml": {"file": path}, "kernel_log": "off"});
        let _agent = host.agent();
        assert_eq!(leader.registered().await.node.unwrap().accelerators.unwrap().count, 4);
        let told = report(&mut leader, "the first report", |_| true).await;
        assert_eq!((told.findings.len(), told.events.len()), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_does_not_start_is_no_reason_not_to() {
    let (mut leader, mut host, mut library) = scene().await;
    library.play(&["init=9"]);
    host.accelerators = serde_json::json!({"type": "h100", "count": 4});
    let _agent = host.agent();
    assert_eq!(leader.registered().await.node.unwrap().accelerators.unwrap().count, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn maintenance_and_repairs() {
    let (mut leader, mut host, _library) = scene().await;
    let announced = host.file("maintenance");
    host.health["maintenance_file"] = announced.to_str().unwrap().into();
    let script = "test \"$MUSTER_REPAIR_ACTION\" = reset-gpu && echo $MUSTER_REPAIR_DEVICE_UUIDS >&2; exit 4";
    host.health["repair_command"] = serde_json::json!(["/bin/sh", "-c", script]);
    let _agent = host.agent();
    report(&mut leader, "the first report", |_| true).await;
    std::fs::write(&announced, "1900000000\n").unwrap();
    let told = report(&mut leader, "the announcement", |r| r.maintenance_at_ms.is_some()).await;
    assert_eq!(told.maintenance_at_ms, Some(1_900_000_000_000));
    std::fs::write(&announced, "").unwrap();
    report(&mut leader, "its end", |r| r.maintenance_at_ms.is_none()).await;
    let order = agent::RepairOrder { number: 77, action: "reset-gpu".into(), devices: vec![1] };
    leader.send(Response::Repair(order.clone()));
    let told = report(&mut leader, "the repair", |r| r.repair_number == 77).await;
    assert_eq!(told.repair_failure, "exit status: 4: GPU-00000000-0000-0000-0000-000000000001");
}
