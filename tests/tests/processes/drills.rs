//! Drills on a live cluster: each does what it says and leaves everything as it was, also when its driver dies.

use muster_wire::time::{duration, span_ms};
use muster_wire::{admin, v1};
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::process::Child;

use crate::support::{Cluster, PATIENCE, eventually, heavy, node, register, signal, spawn};

/// A short scenario of one step.
fn scenario(directory: &Path, name: &str, step: &str) -> PathBuf {
    let path = directory.join(format!("{name}.yaml"));
    let text = format!(
        "name: {name}\ntitle: A test\nstory: Of a test.\nrunbook: run-a-drill.md\nlive:\n  - {{at: 0s, {step}}}\n\
         settle: 2s\nexpect:\n  acknowledged_within: 20s\n"
    );
    std::fs::write(&path, text).expect("a scenario can be written");
    path
}

struct Drilled {
    cluster: Cluster,
    kept: PathBuf,
}

impl Drilled {
    async fn start() -> Drilled {
        let cluster = Cluster::start_with(3, 0, "").await;
        let kept = cluster.scratch.path().join("kept");
        Drilled { cluster, kept }
    }

    fn words<'a>(&'a self, file: &'a Path) -> Vec<&'a str> {
        let (file, kept) = (file.to_str().expect("text"), self.kept.to_str().expect("text"));
        vec!["drill", "run", "--file", file, "--dir", kept, "--yes", "--baseline", "1s", "--max-share", "100"]
    }

    fn scenario(&self, name: &str, step: &str) -> PathBuf {
        scenario(self.cluster.scratch.path(), name, step)
    }

    /// A drill in the background.
    fn spawn(&self, file: &Path) -> Child {
        let endpoints = self.cluster.endpoints().join(",");
        let home = self.cluster.scratch.path();
        spawn(home, &[&["--endpoint", endpoints.as_str()], self.words(file).as_slice()].concat())
    }

    async fn drill_at(&self, at: usize) -> Option<admin::Drill> {
        let service = self.cluster.client_of(at).drills_of(&self.cluster.replicas[at].endpoint());
        service.get_drill(admin::GetDrillRequest {}).await.expect("a replica says which drill it holds").drill
    }

    /// Waits until a replica refuses traffic.
    async fn silent(&self, at: usize) {
        eventually("the replica is not made silent", || async {
            self.drill_at(at).await.is_some_and(|drill| !drill.refused.is_empty()).then_some(())
        })
        .await;
    }

    /// Waits until everything is as it was: all answer, none holds a drill, nobody warns of one, nothing waits.
    async fn as_before(&mut self) {
        for at in 0..3 {
            eventually("a replica still holds a drill", || async {
                self.drill_at(at).await.is_none().then_some(())
            })
            .await;
        }
        let leader = self.cluster.leader().await;
        eventually("the cluster still warns", || async {
            let status = self.cluster.status_of(leader).await.ok()?;
            let calm = status.warnings.iter().all(|warning| {
                !matches!(warning.code.as_str(), "DRILL_RUNNING" | "TRAFFIC_REFUSED" | "REGION_CORDONED")
            });
            calm.then_some(())
        })
        .await;
        self.cluster.assert_digests_agree().await;
    }

    /// How often replicas other than this one began to lead. A slow disk may give the leadership back at any moment, so who
    /// leads after a drill says nothing about who led in it.
    fn leaderships_of_others(&self, at: usize) -> usize {
        let others = (0..3).filter(|other| *other != at);
        others.map(|other| self.cluster.log_of(other).matches("leadership begins").count()).sum()
    }

    async fn probes_waiting(&self) -> usize {
        let request = v1::ListJobsRequest {
            filter: Some(v1::JobFilter {
                phases: vec![v1::JobPhase::Pending.into()],
                name_prefix: "drill-probe-".to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        };
        self.cluster.client().list_jobs(request).await.expect("jobs are listed").jobs.len()
    }

    async fn node(&self, name: &str) -> v1::Node {
        let request = v1::GetNodeRequest { node: name.to_owned(), read: None };
        self.cluster.client().get_node(request).await.expect("a node is shown").node.expect("it is there")
    }

    async fn quarantine(&self, name: &str) -> Option<String> {
        Some(self.node(name).await.restriction?.quarantine?.reason)
    }
}

fn log_index(status: &v1::GetStatusResponse) -> u64 {
    status.freshness.map_or(0, |fresh| fresh.log_index)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_leader_is_replaced_and_heard_again() {
    let _heavy = heavy().await;
    let mut drilled = Drilled::start().await;
    let leader = drilled.cluster.leader().await;
    let accelerators = Some(v1::Accelerators { r#type: "h100".to_owned(), count: 8 });
    let host = v1::NodeDescription { accelerators, ..node("with-devices") };
    register(&drilled.cluster.replicas[leader].endpoint(), host).await.expect("a host can be registered");
    let before = drilled.leaderships_of_others(leader);
    let file = drilled.scenario("leader-gone", "do: refuse-traffic, what: leader, for: 4s");
    let ran = drilled.cluster.operate(&drilled.words(&file)).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert!(drilled.leaderships_of_others(leader) > before, "another leads");
    drilled.as_before().await;
    assert_eq!(drilled.probes_waiting().await, 0);
    let log = drilled.cluster.log_of(leader);
    assert!(log.contains("this replica refuses traffic for a drill"), "{log}");
    assert!(log.contains("this replica takes all traffic again"), "{log}");
    // What was kept is shown again.
    let kept = drilled.kept.to_str().expect("text").to_owned();
    let listed = drilled.cluster.operated(&["drill", "list", "--dir", &kept]).await;
    assert!(listed.contains("leader-gone") && listed.contains("completed"), "{listed}");
    for form in ["markdown", "html", "json"] {
        let page = drilled.cluster.operated(&["drill", "report", "--dir", &kept, "-f", form]).await;
        assert!(page.contains("leader-gone"), "{form}: {page}");
    }
    let page = drilled.cluster.operated(&["drill", "report", "--dir", &kept, "-o", "json"]).await;
    let page: serde_json::Value = serde_json::from_str(&page).expect("it is JSON");
    let checked = &page["verdict"]["checked"];
    for what in ["acknowledgements", "linearizable_reads", "contents", "records", "charged"] {
        assert!(checked[what].as_u64().is_some_and(|count| count > 0), "{what}: {checked}");
    }
    assert_eq!(page["verdict"]["figures"]["lost"], 0, "{page}");
    // Every accelerator was in exactly one state at each moment of the drill.
    let usage = drilled.cluster.operated(&["report", "usage", "-o", "json"]).await;
    let usage: serde_json::Value = serde_json::from_str(&usage).expect("it is JSON");
    assert!(usage["total"].as_str().is_some_and(|total| total != "0"), "{usage}");
    assert_eq!(usage["total"], usage["capacity"], "{usage}");
    assert_eq!(usage["conservationError"], "0", "{usage}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_region_is_passed_over_by_its_clients() {
    let _heavy = heavy().await;
    let mut drilled = Drilled::start().await;
    let follower = drilled.cluster.follower().await;
    let region = drilled.cluster.replicas[follower].region();
    let file =
        drilled.scenario("region-gone", &format!("do: refuse-traffic, what: 'region:{region}', for: 5s"));
    let mut driver = drilled.spawn(&file);
    drilled.silent(follower).await;
    // One that knows all goes on elsewhere; one that knows this replica alone is told why.
    let client = drilled.cluster.client_from(follower);
    client.list_jobs(v1::ListJobsRequest::default()).await.expect("another replica answers");
    let told = drilled.cluster.status_of(follower).await.expect_err("it is silent");
    let told = std::error::Error::source(&told).map(ToString::to_string).unwrap_or_default();
    assert!(told.contains("MS-4011"), "{told}");
    eventually("the drill is not shown", || async {
        let shown = drilled.cluster.operated(&["cluster", "status"]).await;
        (shown.contains("is silent on purpose") && shown.contains("drill region-gone")).then_some(())
    })
    .await;
    let ended =
        tokio::time::timeout(PATIENCE, driver.wait()).await.expect("it ends").expect("it was started");
    assert!(ended.success(), "{ended}");
    drilled.as_before().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cordoned_region_gets_back_what_it_had_and_nothing_else() {
    let _heavy = heavy().await;
    let mut drilled = Drilled::start().await;
    let leader = drilled.cluster.leader().await;
    let endpoint = drilled.cluster.replicas[leader].endpoint();
    for name in ["cordoned", "kept-away", "free"] {
        register(&endpoint, node(name)).await.expect("a node can be registered");
    }
    let region = drilled.node("free").await.description.expect("it is described").region;
    drilled.cluster.operated(&["node", "cordon", "cordoned"]).await;
    drilled.cluster.operated(&["node", "quarantine", "kept-away", "--reason", "drill bits worn out"]).await;
    let file =
        drilled.scenario("region-shut", &format!("do: cordon-region, what: 'region:{region}', for: 5s"));
    let mut driver = drilled.spawn(&file);
    eventually("the node is not kept away", || async { drilled.quarantine("free").await }).await;
    let reason = drilled.quarantine("free").await.unwrap_or_default();
    assert!(reason.starts_with("drill d-"), "{reason}");
    let ended =
        tokio::time::timeout(PATIENCE, driver.wait()).await.expect("it ends").expect("it was started");
    assert!(ended.success(), "{ended}");
    assert_eq!(drilled.quarantine("free").await, None);
    assert_eq!(drilled.quarantine("kept-away").await.as_deref(), Some("drill bits worn out"));
    assert!(drilled.node("cordoned").await.cordoned && !drilled.node("free").await.cordoned);
    drilled.as_before().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_hands_over() {
    let _heavy = heavy().await;
    let mut drilled = Drilled::start().await;
    let leader = drilled.cluster.leader().await;
    let before = drilled.leaderships_of_others(leader);
    let file = drilled.scenario("transferred", "do: transfer-leadership");
    let ran = drilled.cluster.operate(&drilled.words(&file)).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert!(drilled.leaderships_of_others(leader) > before, "another leads");
    drilled.as_before().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drill_is_stopped_from_elsewhere_also_through_the_silent_replica_itself() {
    let _heavy = heavy().await;
    let mut drilled = Drilled::start().await;
    let leader = drilled.cluster.leader().await;
    let file = drilled.scenario("long", "do: refuse-traffic, what: leader, for: 50s");
    let mut driver = drilled.spawn(&file);
    drilled.silent(leader).await;
    // A second one is refused and told of the first.
    let second = drilled.cluster.operate(&drilled.words(&file)).await;
    second.assert_refused(5, &["one-drill", "drill long"]);
    let only = drilled.cluster.replicas[leader].endpoint();
    let service = drilled.cluster.client_of(leader).drills_of(&only);
    service.end_drill(admin::EndDrillRequest::default()).await.expect("it is answered");
    eventually("the replica is still silent", || async { drilled.cluster.status_of(leader).await.ok() })
        .await;
    // Its driver learns of it and ends the drill everywhere.
    let ended =
        tokio::time::timeout(PATIENCE, driver.wait()).await.expect("it ends").expect("it was started");
    assert_eq!(ended.code(), Some(1), "{ended}");
    drilled.as_before().await;
    let mut driver = drilled.spawn(&file);
    drilled.silent(drilled.cluster.leader().await).await;
    let stopped = drilled.cluster.operated(&["drill", "stop"]).await;
    assert!(stopped.contains("is ended"), "{stopped}");
    let ended =
        tokio::time::timeout(PATIENCE, driver.wait()).await.expect("it ends").expect("it was started");
    assert_eq!(ended.code(), Some(1), "{ended}");
    drilled.as_before().await;
    let again = drilled.cluster.operated(&["drill", "stop"]).await;
    assert!(again.contains("no drill ran"), "{again}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_undoes_everything() {
    let _heavy = heavy().await;
    let mut drilled = Drilled::start().await;
    let leader = drilled.cluster.leader().await;
    let file = drilled.scenario("interrupted", "do: refuse-traffic, what: leader, for: 50s");
    let mut driver = drilled.spawn(&file);
    drilled.silent(leader).await;
    signal(&driver, Signal::SIGINT);
    let ended =
        tokio::time::timeout(PATIENCE, driver.wait()).await.expect("it ends").expect("it was started");
    assert_eq!(ended.code(), Some(130), "{ended}");
    drilled.cluster.status_of(leader).await.expect("it takes calls again");
    drilled.as_before().await;
    assert_eq!(drilled.probes_waiting().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_dies_leaves_no_replica_silent_and_marks_that_stop_finds() {
    let _heavy = heavy().await;
    let mut drilled = Drilled::start().await;
    let leader = drilled.cluster.leader().await;
    let file = drilled.scenario("abandoned", "do: refuse-traffic, what: leader, for: 50s");
    let mut driver = drilled.spawn(&file);
    drilled.silent(leader).await;
    driver.kill().await.expect("a driver can be killed");
    let died = Instant::now();
    eventually("the replica is still silent", || async { drilled.cluster.status_of(leader).await.ok() })
        .await;
    let within = died.elapsed();
    assert!(within < Duration::from_secs(10), "healed after {within:?}");
    let node_name = "no-agent";
    let region = drilled.node(node_name).await.description.expect("it is described").region;
    drilled.as_before().await;
    let file = drilled.scenario("shut", &format!("do: cordon-region, what: 'region:{region}', for: 50s"));
    let mut driver = drilled.spawn(&file);
    eventually("the node is not kept away", || async { drilled.quarantine(node_name).await }).await;
    driver.kill().await.expect("a driver can be killed");
    eventually("the drill is still held", || async {
        drilled.drill_at(leader).await.is_none().then_some(())
    })
    .await;
    assert!(drilled.quarantine(node_name).await.is_some(), "that is in the log, and waits");
    let stopped = drilled.cluster.operated(&["drill", "stop"]).await;
    assert!(stopped.contains("1 nodes take work again"), "{stopped}");
    assert_eq!(drilled.quarantine(node_name).await, None);
    assert_eq!(drilled.probes_waiting().await, 0);
    drilled.as_before().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_not_be_run_is_refused_and_a_dry_run_changes_nothing() {
    let _heavy = heavy().await;
    let mut drilled = Drilled::start().await;
    let leader = drilled.cluster.leader().await;
    let before = drilled.cluster.status_of(leader).await.expect("it answers");
    let file = drilled.scenario("leader-gone", "do: refuse-traffic, what: leader, for: 4s");
    let dry = [drilled.words(&file).as_slice(), &["--dry-run"]].concat();
    let shown = drilled.cluster.operated(&dry).await;
    for part in [
        "step 1",
        "refuse all traffic",
        "undone:",
        "ok      quorum: 2 of 3 voters are left",
        "share",
        "unsaved",
    ] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    for at in 0..3 {
        assert_eq!(drilled.drill_at(at).await, None);
    }
    assert!(!drilled.kept.exists(), "nothing is kept");

    let two = drilled.scenario("two-gone", "do: refuse-traffic, what: ['replica:1', 'replica:2'], for: 4s");
    let refused = drilled.cluster.operate(&drilled.words(&two)).await;
    refused.assert_refused(5, &["quorum: 1 of 3 voters are left"]);
    let long = drilled.scenario("too-long", "do: refuse-traffic, what: leader, for: 2m");
    let refused = drilled.cluster.operate(&drilled.words(&long)).await;
    refused.assert_refused(5, &["silence", "may be silent for 60 s at most"]);
    let words = [drilled.words(&file).as_slice(), &["--max-duration", "1s"]].concat();
    drilled.cluster.operate(&words).await.assert_refused(5, &["duration: 4 s of at most 1 s"]);
    // Without the name typed, nothing.
    let unconfirmed: Vec<&str> = drilled.words(&file).into_iter().filter(|word| *word != "--yes").collect();
    drilled.cluster.operate(&unconfirmed).await.assert_refused(2, &["not the name of the drill"]);
    let after = drilled.cluster.status_of(leader).await.expect("it answers");
    assert_eq!(log_index(&before), log_index(&after), "the log has not grown");

    let follower = drilled.cluster.follower().await;
    drilled.cluster.stop(follower).await;
    let refused = drilled.cluster.operate(&drilled.words(&file)).await;
    refused.assert_refused(5, &["voters: replica"]);
    drilled.cluster.start_replica(follower);
    drilled.cluster.caught_up(follower, log_index(&after)).await;
    drilled.as_before().await;
}

/// What the replica itself refuses, whatever a driver says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_believes_no_driver() {
    let _heavy = heavy().await;
    let mut drilled = Drilled::start().await;
    let service = drilled.cluster.client_of(0).drills_of(&drilled.cluster.replicas[0].endpoint());
    let announcement = admin::AnnounceDrillRequest {
        drill_id: "d-1".to_owned(),
        name: "by-hand".to_owned(),
        started_by: "a test".to_owned(),
        hold: Some(duration(1_000)),
        ..Default::default()
    };
    let refusal = admin::RefuseTrafficRequest {
        drill_id: "d-1".to_owned(),
        traffic: vec![admin::Traffic::Clients.into()],
        duration: Some(duration(30_000)),
        silent_replica_ids: vec![1],
    };
    let fields = |error: muster_client::AttemptError| match error {
        muster_client::AttemptError::Answer { refused, .. } => {
            let fields: Vec<String> = refused.violations.iter().map(|v| v.field.clone()).collect();
            (refused.reason, fields)
        }
        other => panic!("{other:?}"),
    };
    let bad = admin::AnnounceDrillRequest {
        drill_id: "No".to_owned(),
        name: String::new(),
        started_by: "two\nlines".to_owned(),
        hold: Some(duration(1)),
        silent_replica_ids: vec![0],
        cordoned_regions: vec!["?".to_owned()],
    };
    let (_, named) = fields(service.announce_drill(bad).await.expect_err("nothing of it is right"));
    assert_eq!(named, ["drill_id", "name", "started_by", "hold", "silent_replica_ids", "cordoned_regions"]);
    let (reason, _) =
        fields(service.refuse_traffic(refusal.clone()).await.expect_err("it was not announced"));
    assert_eq!(reason, "DRILL_OVER");
    service.announce_drill(announcement.clone()).await.expect("nothing runs");
    let bad =
        admin::RefuseTrafficRequest { traffic: vec![], duration: Some(duration(60_001)), ..refusal.clone() };
    let (_, named) = fields(service.refuse_traffic(bad).await.expect_err("no kind, and too long"));
    assert_eq!(named, ["traffic", "duration"]);
    let two = admin::RefuseTrafficRequest { silent_replica_ids: vec![2], ..refusal.clone() };
    let (reason, _) = fields(service.refuse_traffic(two).await.expect_err("one would be left"));
    assert_eq!(reason, "WOULD_LOSE_QUORUM");
    // Never renewed: over after the second that was asked for, not after thirty.
    let held = service.refuse_traffic(refusal).await.expect("it runs").drill.expect("it is held");
    assert!(span_ms(held.refused_for).is_some_and(|ms| ms <= 1_000), "{held:?}");
    let began = Instant::now();
    eventually("the replica is still silent", || async { drilled.cluster.status_of(0).await.ok() }).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    drilled.as_before().await;
}
