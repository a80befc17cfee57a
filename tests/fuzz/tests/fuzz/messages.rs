//! Messages of clients and agents, as the services take them: decoded by protobuf, then converted.

use muster_types::{ClusterId, Submission};
use muster_wire::convert::{
    node_spec_from_proto, policy_from_proto, policy_to_proto, submission_to_proto, submissions_from_proto,
    worker_report_from_proto,
};
use muster_wire::status::Refused;
use muster_wire::time::{duration, timestamp};
use muster_wire::token::{List, PageToken, ResumeToken, filter_digest};
use muster_wire::{agent, v1};
use prost::Message;

fn nothing(_: &mut Vec<u8>) {}

fn job() -> v1::Job {
    v1::Job {
        name: "train".into(),
        tenant: "vision".into(),
        spec: Some(v1::JobSpec {
            tier: v1::Tier::Production.into(),
            groups: vec![v1::TaskGroup {
                name: "trainers".into(),
                workers: 4,
                runtime: muster_wire::process(vec!["python".into(), "train.py".into()]),
                environment: vec![v1::EnvVar::new("SEED", "7"), v1::EnvVar::secret("TOKEN", "token")],
                resources: Some(v1::Resources {
                    accelerators: Some(v1::AcceleratorRequest {
                        choices: vec![v1::AcceleratorChoice {
                            r#type: "h100".into(),
                            throughput_milli: 1_000,
                        }],
                        amount: Some(v1::accelerator_request::Amount::Count(8)),
                    }),
                    ..Default::default()
                }),
                ..v1::TaskGroup::default()
            }],
            regions: vec!["eu-north".into()],
            run_time_limit: Some(duration(7_200_000)),
            stop_grace: Some(duration(30_000)),
            array: Some(v1::JobArray { indices: "0-9:3,20".into(), throttle: Some(2), size: 0 }),
            topology: Some(v1::TopologyRule {
                required: v1::TopologyLevel::Rack.into(),
                ..v1::TopologyRule::default()
            }),
            deadline: Some(timestamp(1_900_000_000_000)),
            launch: v1::LaunchForm::Torchrun.into(),
            retry: Some(v1::RetryPolicy {
                limits: vec![v1::RetryLimit {
                    failure_class: v1::FailureClass::Application.into(),
                    retries: 3,
                }],
                backoff: Some(duration(500)),
                ..v1::RetryPolicy::default()
            }),
            checkpoint: Some(v1::CheckpointPolicy {
                dataset: "saves".into(),
                save: Some(duration(20_000)),
                ..Default::default()
            }),
            notice: Some(v1::NoticeRules { http_port: 8_080, http_path: "/stop".into() }),
            spare_workers: 1,
            nodes: Some(v1::NodeRequirements {
                expressions: vec![v1::NodeExpression {
                    key: "memory-gib".into(),
                    operator: v1::NodeOperator::Greater.into(),
                    values: vec!["512".into()],
                }],
                only: vec!["h1".into(), "h2".into()],
                exclude: vec!["h3".into()],
            }),
            preflight: v1::Preflight::On.into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[test]
fn no_message_of_a_job_makes_it_panic_and_what_is_accepted_comes_back() {
    muster_fuzz::run("wire-job", &[job().encode_to_vec()], nothing, |input| {
        let Ok(message) = v1::Job::decode(input) else { return false };
        let Ok(jobs) = submissions_from_proto("job", Some(message)) else { return false };
        for job in jobs.iter().take(2) {
            let again = submissions_from_proto("job", Some(submission_to_proto(job)));
            assert_eq!(again.as_deref(), Ok(std::slice::from_ref::<Submission>(job)));
        }
        true
    });
}

#[test]
fn no_message_of_a_node_makes_it_panic() {
    let seed = v1::NodeDescription { name: "host-1".into(), ..v1::NodeDescription::default() };
    let mut accepted = seed.clone();
    accepted.region = "eu-north".into();
    accepted.cluster = "a".into();
    accepted.rack = "r1".into();
    accepted.block = "b1".into();
    accepted.cpu_milli = 64_000;
    accepted.memory_bytes = 64 << 30;
    accepted.address = "10.0.0.1".into();
    let seeds = [seed.encode_to_vec(), accepted.encode_to_vec()];
    muster_fuzz::run("wire-node", &seeds, nothing, |input| {
        let Ok(message) = v1::NodeDescription::decode(input) else { return false };
        node_spec_from_proto("node", Some(&message)).is_ok()
    });
}

#[test]
fn no_message_of_a_policy_makes_it_panic() {
    let usual = policy_to_proto(&muster_types::policy::PolicyDraft::default());
    muster_fuzz::run("wire-policy", &[usual.encode_to_vec()], nothing, |input| {
        let Ok(message) = v1::Policy::decode(input) else { return false };
        policy_from_proto("policy", Some(message)).is_ok()
    });
}

#[test]
fn no_message_about_quota_makes_it_panic() {
    let seed = v1::QuotaGrant {
        tenant: "vision".into(),
        r#type: "h100".into(),
        amount_milli: 8_000,
        end_time: Some(muster_wire::time::timestamp(4_102_444_800_000)),
        reason: "a deadline".into(),
        ..Default::default()
    };
    muster_fuzz::run("wire-quota", &[seed.encode_to_vec()], nothing, |input| {
        let Ok(message) = v1::QuotaGrant::decode(input) else { return false };
        muster_wire::convert::quota_grant_from_proto("grant", Some(&message)).is_ok()
    });
}

#[test]
fn no_report_of_an_agent_makes_it_panic() {
    let exit = v1::ExitStatus { kind: Some(v1::exit_status::Kind::Code(3)) };
    let seed = agent::WorkerState {
        job_id: "job-17".into(),
        token: Some(v1::FencingToken { generation: 1, log_index: 40 }),
        subject: Some(agent::worker_state::Subject::Rank(3)),
        exit: Some(exit),
        artifacts: Some(agent::KeptArtifacts {
            digest: format!("sha256:{}", "5a".repeat(32)),
            fault: "TOO_LARGE".into(),
            ..Default::default()
        }),
    };
    muster_fuzz::run("wire-report", &[seed.encode_to_vec()], nothing, |input| {
        let Ok(message) = agent::WorkerState::decode(input) else { return false };
        worker_report_from_proto("report", &message).is_ok()
    });
}

#[test]
fn no_text_of_a_token_makes_it_panic() {
    let cluster = ClusterId(7);
    let filter = filter_digest(["a"]);
    let resume = ResumeToken::behind(1, muster_types::LogIndex(99)).encode(cluster, filter);
    muster_fuzz::run("wire-token", &[resume.into_bytes()], nothing, |input| {
        let text = String::from_utf8_lossy(input);
        let page = PageToken::decode(&text, cluster, List::Jobs, filter).is_ok();
        page || ResumeToken::decode(&text, cluster, filter).is_ok()
    });
}

#[test]
fn no_details_of_a_status_make_a_client_panic() {
    let refusal = muster_types::Refusal::new(muster_types::RefusalCode::Overloaded, "later")
        .with("retry_after_ms", 100);
    let status = muster_wire::status::to_status(&refusal);
    muster_fuzz::run("wire-status", &[status.details().to_vec()], nothing, |input| {
        let status = tonic::Status::with_details(tonic::Code::Unavailable, "x", input.to_vec().into());
        Refused::from_status(&status).code.is_some()
    });
}

#[test]
fn nothing_that_an_agent_says_of_its_host_makes_it_panic() {
    use agent::session_request::Message as Said;
    let link = v1::ProbeLink { from: 0, to: 1, bytes_per_s: 1 << 30, round_trip_us: 9, ..Default::default() };
    let ring = v1::ProbeRing { host: 0, bytes: 1 << 20, duration_us: 900, correct: true };
    let measured =
        agent::ProbeMeasured { probe_id: 3, links: vec![link; 2], ring: Some(ring), load_milli: 700 };
    let report = agent::PreflightReport { step: Some(agent::preflight_report::Step::Measured(measured)) };
    let seen = agent::HealthObservation {
        finding: "xid-79".into(),
        device: Some(0),
        count: 1,
        ..Default::default()
    };
    let health = agent::HealthReport { sequence: 1, boot: 7, events: vec![seen], ..Default::default() };
    let load = v1::ForeignLoad { devices: vec![0, 3], cpu_milli: 5, ..Default::default() };
    let seeds = [Said::PreflightReport(report), Said::Health(health), Said::ForeignLoad(load)]
        .map(|message| agent::SessionRequest { message: Some(message) }.encode_to_vec());
    muster_fuzz::run("wire-host", &seeds, nothing, |input| {
        let Ok(request) = agent::SessionRequest::decode(input) else { return false };
        match request.message {
            Some(Said::PreflightReport(agent::PreflightReport {
                step: Some(agent::preflight_report::Step::Measured(measured)),
            })) => {
                let rings = measured.ring.iter().map(muster_wire::convert::probe_ring_from_proto).count();
                muster_wire::convert::probe_links_from_proto("links", &measured.links).is_ok() && rings <= 1
            }
            Some(Said::Health(health)) => {
                muster_wire::convert::health_report_from_proto("health", &health).is_ok()
            }
            Some(Said::ForeignLoad(load)) => {
                muster_wire::convert::foreign_load_from_proto("load", &load).is_ok()
            }
            Some(Said::Register(register)) => {
                muster_wire::convert::features_from_proto(&register.takes).iter().count()
                    <= register.takes.len()
            }
            _ => false,
        }
    });
}
