//! The story a quickstart tells.

use anyhow::{Context, Result, bail};
use muster_client::{Client, Endpoints, Options};
use muster_types::policy::UNLISTED_TENANT;
use muster_wire::time::duration;
use muster_wire::v1::{self, Job, JobPhase};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use super::report::{LeaderKill, Preemption, RegionLoss, Summary};
use super::tracker::{Jobs, Tracker, is_finished, is_placed, running_in};
use super::{DEVICES_PER_HOST, HOSTS_PER_REGION, Progress};
use crate::fleet::{Fleet, REGIONS, wait_for, wait_for_hosts, wait_for_leader};

const TRAIN: &str = include_str!("../../../../ops/examples/train.yaml");
const SHORT_ARRAY: &str = include_str!("../../../../ops/examples/short-array.yaml");
const TOO_BIG: &str = include_str!("../../../../ops/examples/too-big.yaml");

/// Training gangs: enough that the lost region runs some, and one is left alone.
const TRAINING_GANGS: usize = 3;
/// Workers of a gang, and devices of each.
const GANG_WORKERS: u32 = 4;
const GANG_WORKER_DEVICES: u32 = 4;
/// Longest wait for anything that should take seconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest wait for the last job.
const PATIENCE_TO_FINISH: Duration = Duration::from_secs(80);

/// Everything that is going on.
struct Story<'a> {
    fleet: &'a mut Fleet,
    progress: Progress,
    client: Client,
    tracker: Tracker,
    acknowledged: BTreeSet<String>,
    training: Vec<String>,
    probes: u64,
    /// Training gangs that were stopped on the way: preempted, or in the lost region.
    victims: BTreeSet<String>,
}

/// Tells the story.
pub async fn tell(fleet: &mut Fleet, progress: Progress) -> Result<Summary> {
    let endpoints = Endpoints::parse(&fleet.endpoints())?;
    // A dead replica must not hold up the measurement of the living ones.
    let options =
        Options { deadline: PATIENCE, attempt_timeout: Duration::from_secs(3), ..Options::STANDARD };
    let client = Client::lazy(endpoints, options);
    start(fleet, progress, &client).await?;
    let tracker = Tracker::start(&client);
    let mut story = Story {
        fleet,
        progress,
        client,
        tracker,
        acknowledged: BTreeSet::new(),
        training: Vec::new(),
        probes: 0,
        victims: BTreeSet::new(),
    };
    story.submit_jobs().await?;
    let preemption = story.preempt().await?;
    let leader_kill = story.kill_leader().await?;
    let (region, resumed_jobs, region_loss) = story.lose_region().await?;
    story.finish().await?;
    let losses_agree = story.losses_agree().await?;
    let digests_agree = story.return_of(&region).await?;
    let overlaps = story.overlaps()?;
    let jobs = story.tracker.jobs();
    let succeeded = |id: &&String| jobs.get(*id).is_some_and(|job| job.phase() == JobPhase::Succeeded);
    let acknowledged = story.acknowledged.len() as u64;
    let finished = story.acknowledged.iter().filter(succeeded).count() as u64;
    Ok(Summary {
        acknowledged,
        finished,
        lost: acknowledged - finished,
        overlaps,
        preemption,
        leader_kill,
        region_loss,
        resumed_jobs,
        losses_agree,
        digests_agree,
        seconds: progress.started.elapsed().as_secs_f32(),
    })
}

async fn start(fleet: &mut Fleet, progress: Progress, client: &Client) -> Result<()> {
    progress.say("starting three replicas, one in each of asia-south, eu-west and us-east");
    for id in 1..=REGIONS.len() as u64 {
        fleet.start_replica(id, true)?;
    }
    let leader = wait_for_leader(client, PATIENCE).await?;
    progress.say(&format!("replica {leader} leads; starting an agent for each of twelve hosts"));
    for region in REGIONS {
        fleet.start_agents(region)?;
    }
    let hosts = fleet.shape().hosts();
    wait_for_hosts(client, hosts, PATIENCE).await?;
    progress.say(&format!("{hosts} hosts with {DEVICES_PER_HOST} accelerators each are up"));
    Ok(())
}

fn millis(since: Instant, until: Instant) -> u64 {
    until.saturating_duration_since(since).as_millis() as u64
}

impl Story<'_> {
    fn say(&self, text: &str) {
        self.progress.say(text);
    }

    async fn submit(&mut self, specs: Vec<v1::Job>) -> Result<Vec<String>> {
        let request = v1::SubmitJobsRequest { jobs: specs, ..Default::default() };
        let ids = self.client.submit_jobs(request).await.context("submitting jobs")?.job_ids;
        self.acknowledged.extend(ids.iter().cloned());
        Ok(ids)
    }

    async fn submit_jobs(&mut self) -> Result<()> {
        let mut train = self.example(TRAIN)?;
        train.spec_mut().checkpoint_mut().directory = self.fleet.checkpoints().display().to_string();
        for group in &mut train.spec_mut().groups {
            // Half of a region each: two gangs share one, the third has another to itself.
            group.workers = GANG_WORKERS;
            group.resources_mut().accelerators = Some(devices(GANG_WORKER_DEVICES));
        }
        let gangs =
            (0..TRAINING_GANGS).map(|n| v1::Job { name: format!("{}-{n}", train.name), ..train.clone() });
        self.training = self.submit(gangs.collect()).await?;
        let short = self.submit(vec![self.example(SHORT_ARRAY)?]).await?;
        self.say(&format!(
            "{} training gangs of 4 workers and an array of {} short jobs are acknowledged",
            TRAINING_GANGS,
            short.len()
        ));
        let request = v1::SubmitJobRequest { job: Some(self.example(TOO_BIG)?), ..Default::default() };
        match self.client.submit_job(request).await {
            Ok(_) => bail!("a job that can never fit was accepted"),
            Err(error) => {
                let refused = error.refused().context("a job that can never fit was not refused for that")?;
                anyhow::ensure!(
                    refused.code == Some(muster_types::RefusalCode::NeverFits),
                    "a job that can never fit was refused otherwise: {error}"
                );
                self.say(&format!("refused, as it should be: {}", refused.message));
            }
        }
        let training = self.training.clone();
        let running = |jobs: &Jobs| {
            training.iter().all(|id| jobs.get(id).is_some_and(|j| j.phase() == JobPhase::Running))
        };
        self.tracker.wait(PATIENCE, running).await.context("the training gangs did not start")?;
        self.say(&format!("training runs in {}", self.places()));
        let checkpoints = self.fleet.checkpoints();
        wait_for(PATIENCE, || async {
            training.iter().all(|id| has_file(&checkpoints.join(id))).then_some(())
        })
        .await
        .context("the training gangs wrote no checkpoint")?;
        self.say("every gang has written its first checkpoint");
        Ok(())
    }

    /// The one job of an example file, told where to write down when it ran.
    fn example(&self, text: &str) -> Result<v1::Job> {
        let mut job = example(text)?;
        let evidence = ["--interval-dir".to_owned(), self.fleet.intervals().display().to_string()];
        for group in &mut job.spec_mut().groups {
            group.command_mut().extend(evidence.clone());
        }
        Ok(job)
    }

    fn places(&self) -> String {
        let jobs = self.tracker.jobs();
        let regions: Vec<&str> = self.training.iter().filter_map(|id| running_in(jobs.get(id)?)).collect();
        regions.join(", ")
    }

    /// One short job: milliseconds from `since` to its acknowledgement and to its placement.
    async fn probe(&mut self, since: Instant) -> Result<(u64, u64)> {
        self.probes += 1;
        let mut job = self.example(SHORT_ARRAY)?;
        job.name = format!("probe-{}", self.probes);
        job.spec_mut().array = None;
        let ids = self.submit(vec![job]).await?;
        let acknowledged = Instant::now();
        let id = ids.first().context("an acknowledged job has an id")?;
        let placed = |jobs: &Jobs| jobs.get(id).is_some_and(is_placed);
        let placed = self.tracker.wait(PATIENCE, placed).await.context("a short job was not placed")?;
        Ok((millis(since, acknowledged), millis(since, placed)))
    }

    async fn leader(&self) -> Result<u64> {
        let found = wait_for(PATIENCE, || async {
            let status = self.client.get_status(v1::GetStatusRequest::default()).await.ok()?;
            status.freshness.map(|f| f.leader_id).filter(|id| *id > 0)
        });
        found.await.context("no replica knows a leader")
    }

    async fn kill_leader(&mut self) -> Result<LeaderKill> {
        let leader = self.leader().await?;
        self.say(&format!("SIGKILL for the leader, replica {leader}"));
        let killed = Instant::now();
        self.fleet.kill_replica(leader)?;
        let (submit_ms, placement_ms) = self.probe(killed).await?;
        self.say(&format!(
            "next submission acknowledged after {submit_ms} ms, placed after {placement_ms} ms"
        ));
        self.fleet.start_replica(leader, false)?;
        self.wait_caught_up(leader).await?;
        self.say(&format!("replica {leader} is back and has caught up"));
        Ok(LeaderKill { submit_ms, placement_ms })
    }

    /// Waits until a replica has applied what the cluster had applied before the call.
    async fn wait_caught_up(&self, replica: u64) -> Result<()> {
        let endpoint = self.fleet.endpoint_of(replica).context("there is no such replica")?;
        let target = self.client.seen_log_index();
        let caught_up = wait_for(PATIENCE, || async {
            let status = self.client.get_status_of(&endpoint).await.ok()?;
            let fresh = status.freshness?;
            (fresh.log_index >= target && fresh.leader_id > 0).then_some(())
        });
        caught_up.await.with_context(|| format!("replica {replica} did not catch up"))
    }

    /// A production gang needs devices that training holds: one training gang is preempted, which saves its work
    /// first and continues later from the step it stopped at.
    async fn preempt(&mut self) -> Result<Preemption> {
        let (region, free) = self.fullest_region().context("no training is running")?;
        self.may_preempt_at_once().await?;
        let before: BTreeMap<String, u32> = {
            let jobs = self.tracker.jobs();
            self.training.iter().filter_map(|id| Some((id.clone(), jobs.get(id)?.status().attempt))).collect()
        };
        let mut job = self.example(SHORT_ARRAY)?;
        job.spec_mut().array = None;
        job.name = "urgent".to_owned();
        job.spec_mut().tier = v1::Tier::Production.into();
        job.spec_mut().regions = vec![region.clone()];
        for group in &mut job.spec_mut().groups {
            // What is free in the region, and one gang more.
            group.workers = free / GANG_WORKER_DEVICES + GANG_WORKERS;
            group.resources_mut().accelerators = Some(devices(GANG_WORKER_DEVICES));
        }
        self.say(&format!(
            "a production gang of {} workers comes for {region}",
            job.spec().groups[0].workers
        ));
        let asked = Instant::now();
        let ids = self.submit(vec![job]).await?;
        let urgent = ids.first().context("an acknowledged job has an id")?.clone();
        let placed = |jobs: &Jobs| jobs.get(&urgent).is_some_and(is_placed);
        let placed =
            self.tracker.wait(PATIENCE, placed).await.context("the production gang was not placed")?;
        let again = |jobs: &Jobs| {
            before.iter().any(|(id, attempt)| jobs.get(id).is_some_and(|job| is_again(job, *attempt)))
        };
        let resumed =
            self.tracker.wait(PATIENCE, again).await.context("the preempted gang did not continue")?;
        let jobs = self.tracker.jobs();
        let moved =
            before.iter().filter(|(id, attempt)| jobs.get(*id).is_some_and(|job| is_again(job, **attempt)));
        let moved: Vec<String> = moved.map(|(id, _)| id.clone()).collect();
        let (placed_ms, resumed_ms) = (millis(asked, placed), millis(asked, resumed));
        self.say(&format!(
            "{} saved its work and was preempted; the production gang was placed after {placed_ms} ms, training goes on \
             from the checkpoint after {resumed_ms} ms",
            moved.join(", ")
        ));
        self.victims.extend(moved.iter().cloned());
        Ok(Preemption { jobs: moved.len() as u64, placed_ms, resumed_ms })
    }

    /// Usually a gang is left alone in its first minutes; nobody waits for them here.
    async fn may_preempt_at_once(&self) -> Result<()> {
        let found =
            self.client.get_policy(v1::GetPolicyRequest::default()).await.context("reading the policy")?;
        let mut policy = found.policy.context("a cluster has a policy")?;
        policy.preemption.get_or_insert_default().minimum_run = Some(duration(0));
        // Who may name which tier is a right of tenants.
        let rights = v1::TenantRights { tier_max: v1::Tier::Production.into(), ..Default::default() };
        let unlisted = policy.tenants.entry(UNLISTED_TENANT.to_owned()).or_default();
        unlisted.rights = Some(rights);
        let request = v1::SetPolicyRequest { policy: Some(policy), ..Default::default() };
        self.client.set_policy(request).await.context("setting the policy")?;
        Ok(())
    }

    /// The region with the most training in it, and devices that training leaves free there.
    fn fullest_region(&self) -> Option<(String, u32)> {
        let jobs = self.tracker.jobs();
        let mut gangs: BTreeMap<&str, u32> = BTreeMap::new();
        for region in self.training.iter().filter_map(|id| running_in(jobs.get(id)?)) {
            *gangs.entry(region).or_default() += 1;
        }
        let (region, count) = gangs.into_iter().max_by_key(|(_, count)| *count)?;
        let all = u32::from(HOSTS_PER_REGION) * u32::from(DEVICES_PER_HOST);
        Some((region.to_owned(), all.saturating_sub(count * GANG_WORKERS * GANG_WORKER_DEVICES)))
    }

    async fn lose_region(&mut self) -> Result<(String, u64, RegionLoss)> {
        // On a machine under load the change of leader may have cost gangs their leases: they are
        // given the time to run again, so that there is something to lose.
        let training = self.training.clone();
        let runs = |job: &Job| job.phase() == JobPhase::Running;
        let settled = |jobs: &Jobs| {
            let known = || training.iter().filter_map(|id| jobs.get(id));
            known().any(runs) && known().all(|job| runs(job) || is_finished(job))
        };
        self.tracker.wait(PATIENCE, settled).await.context("no training is running")?;
        let jobs = self.tracker.jobs();
        let mut here: BTreeMap<&str, Vec<&Job>> = BTreeMap::new();
        for job in self.training.iter().filter_map(|id| jobs.get(id)) {
            if let Some(region) = running_in(job) {
                here.entry(region).or_default().push(job);
            }
        }
        // The region with the most training in it; the rest goes on elsewhere undisturbed.
        let (region, victims) =
            here.iter().max_by_key(|(_, jobs)| jobs.len()).context("no training is running")?;
        let attempts: BTreeMap<String, u32> =
            victims.iter().map(|job| (job.id.clone(), job.status().attempt)).collect();
        let region = (*region).to_owned();
        self.victims.extend(attempts.keys().cloned());
        self.say(&format!(
            "SIGKILL for everything in {region}: a replica, {HOSTS_PER_REGION} agents, {} training gangs",
            attempts.len()
        ));
        let killed = Instant::now();
        let processes = self.fleet.kill_region(&region);
        let (submit_ms, placement_ms) = self.probe(killed).await?;
        self.say(&format!("{processes} processes killed; next submission acknowledged after {submit_ms} ms, placed after {placement_ms} ms"));
        let again = |jobs: &Jobs| {
            attempts.iter().all(|(id, before)| jobs.get(id).is_some_and(|j| is_again(j, *before)))
        };
        let resumed = self
            .tracker
            .wait(PATIENCE, again)
            .await
            .context("the jobs of the lost region did not run again")?;
        let resumed_ms = millis(killed, resumed);
        self.say(&format!("its gangs run again after {resumed_ms} ms, in {}", self.places()));
        Ok((region, attempts.len() as u64, RegionLoss { submit_ms, placement_ms, resumed_ms }))
    }

    async fn finish(&mut self) -> Result<()> {
        let ids = self.acknowledged.clone();
        let done = |jobs: &Jobs| ids.iter().all(|id| jobs.get(id).is_some_and(is_finished));
        if self.tracker.wait(PATIENCE_TO_FINISH, done).await.is_none() {
            let jobs = self.tracker.jobs();
            let open: Vec<String> = ids
                .iter()
                .filter(|id| !jobs.get(*id).is_some_and(is_finished))
                .map(|id| format!("{id} {}", jobs.get(id).map_or("unseen", |j| j.status().reason.as_str())))
                .collect();
            bail!("jobs that did not finish: {}", open.join(", "));
        }
        self.say(&format!("all {} acknowledged jobs have finished", ids.len()));
        Ok(())
    }

    /// The final losses of all training runs, read from their output, are one and the same.
    async fn losses_agree(&mut self) -> Result<bool> {
        let mut losses = BTreeSet::new();
        for id in self.training.clone() {
            let output = self.output(&id).await?;
            if self.victims.contains(&id) {
                let resumed = output.lines().find(|line| line.contains("resumed from step"));
                let resumed = resumed.with_context(|| format!("{id} did not resume from a checkpoint"))?;
                self.say(&format!("{id}: {}", resumed.trim()));
            }
            let last = output
                .lines()
                .rev()
                .find_map(|line| line.split_once("final loss ").map(|(_, rest)| rest.to_owned()));
            losses.insert(last.with_context(|| format!("{id} printed no final loss"))?);
        }
        self.say(&format!("final losses: {}", losses.iter().cloned().collect::<Vec<_>>().join(" / ")));
        Ok(losses.len() == 1)
    }

    async fn output(&self, id: &str) -> Result<String> {
        let request = v1::ReadLogsRequest {
            job_id: id.to_owned(),
            stream: v1::OutputStream::Stdout.into(),
            ..Default::default()
        };
        let mut stream =
            self.client.read_logs(request).await.with_context(|| format!("reading the output of {id}"))?;
        let mut bytes = Vec::new();
        while let Some(piece) = stream.next().await.with_context(|| format!("reading the output of {id}"))? {
            bytes.extend_from_slice(&piece.data);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The lost region comes back; then all replicas must hold the same state.
    async fn return_of(&mut self, region: &str) -> Result<bool> {
        let replica = self.fleet.replica_in(region).context("a region has a replica")?;
        self.fleet.start_replica(replica, false)?;
        self.fleet.start_agents(region)?;
        self.wait_caught_up(replica).await?;
        let hosts = REGIONS.len() * usize::from(HOSTS_PER_REGION);
        wait_for(PATIENCE, || async {
            let nodes = self.client.list_nodes(v1::ListNodesRequest::default()).await.ok()?.nodes;
            (nodes.iter().filter(|n| n.status() == v1::NodeStatus::Up).count() == hosts).then_some(())
        })
        .await
        .with_context(|| format!("the hosts of {region} did not come back"))?;
        self.say(&format!("{region} is back: replica {replica} and its hosts"));
        let agreed = wait_for(PATIENCE, || async {
            let mut seen = BTreeSet::new();
            for endpoint in self.fleet.endpoints() {
                let status = self.client.get_status_of(&endpoint).await.ok()?;
                seen.insert((status.freshness?.log_index, status.state_digest));
            }
            // At different positions the digests say nothing yet.
            let positions: BTreeSet<u64> = seen.iter().map(|(at, _)| *at).collect();
            (positions.len() == 1).then_some(seen)
        });
        let seen = agreed.await.context("the replicas did not come to one position")?;
        for (index, digest) in &seen {
            self.say(&format!("state digest {digest} at log index {index}"));
        }
        Ok(seen.len() == 1)
    }

    fn overlaps(&self) -> Result<u64> {
        let intervals = muster_example::intervals::read(&self.fleet.intervals())
            .map_err(|error| anyhow::anyhow!("{error}"))
            .context("reading the workers' evidence")?;
        anyhow::ensure!(!intervals.is_empty(), "the workers left no evidence of when they ran");
        let report = muster_example::intervals::check(&intervals);
        self.say(&format!("{} run intervals written by the workers were checked", intervals.len()));
        Ok(report.overlaps.len() as u64)
    }
}

/// `count` whole devices.
fn devices(count: u32) -> v1::AcceleratorRequest {
    v1::AcceleratorRequest {
        choices: vec![v1::AcceleratorChoice { r#type: "h100".to_owned(), throughput_milli: 0 }],
        amount: Some(v1::accelerator_request::Amount::Count(count)),
    }
}

/// Runs, or has run, in a later attempt.
fn is_again(job: &Job, before: u32) -> bool {
    job.status().attempt > before && matches!(job.phase(), JobPhase::Running | JobPhase::Succeeded)
}

fn has_file(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some())
}

/// The one job of an example file.
fn example(text: &str) -> Result<v1::Job> {
    // No example names a time.
    let manifests = muster_manifest::parse(text.as_bytes(), 0).context("reading an example")?;
    manifests.into_iter().next().map(|manifest| manifest.message).context("an example has a job")
}
