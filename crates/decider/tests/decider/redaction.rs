//! What is left of histories without what people wrote goes the way of the whole ones.

use muster_journal::{Decision, Estimate, FORMAT_MAX, RequestKey, Round, canonical, decode_round};
use muster_state::{GuardError, Redaction, State};
use muster_types::health::{Condition, Finding, HealthAction, NodeHealth, Observation};
use muster_types::policy::{
    JobLimits, NotificationBody, NotificationEvent, PolicyDraft, Receiver, TenantPolicy,
};
use muster_types::{
    Artifacts, BlobDigest, BookingClearing, BookingShape, BookingSpec, BookingTimes, ClusterId, JobId,
    JobMetadata, Leadership, LogIndex, LogTime, Name, NodeDraft, NodeId, Parameters, RequestId, Requester,
    SIZES_VARIABLE,
};
use std::sync::Arc;

use crate::golden::{NEWEST, directory, split};
use crate::model::Model;
use crate::random::Random;
use crate::support::{group, holder, job_draft, leadership, node_draft};

const CANARY: &str = "canary-8f1c";

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn redacted_histories_go_the_way_of_the_whole_ones() {
    for seed in 0..10 {
        let mut model = Model::new(seed);
        for _ in 0..200 {
            model.step();
        }
        model.commit_all();
        let begin = Random::new(seed).below(model.log.len() as u64) as usize;
        follow(&model.log, begin, Redaction::new(seed.into()), &format!("seed {seed}"));
    }
}

#[test]
fn a_log_with_every_kind_of_record_goes_the_way_of_the_whole_one() {
    let log = std::fs::read(directory(NEWEST).join("rounds.log")).unwrap();
    let rounds = split(&log).into_iter().map(|bytes| decode_round(bytes, FORMAT_MAX).unwrap());
    let rounds: Vec<Round> = rounds.collect();
    for begin in 0..rounds.len() {
        follow(&rounds, begin, Redaction::new(7), &format!("from round {begin}"));
    }
}

/// Goes on with what is left of a state and of the records behind it, next to the whole ones.
fn follow(log: &[Round], begin: usize, redaction: Redaction, what: &str) {
    let mut whole = State::default();
    for round in &log[..begin] {
        whole.apply_round(round);
    }
    let mut redacted = redaction.state(&whole).unwrap();
    redacted.verify().unwrap();
    for round in &log[begin..] {
        let leadership = Leadership { term: round.term, replica: round.replica };
        for (ordinal, decision) in round.decisions.iter().enumerate() {
            let index = LogIndex(round.first_index.0 + ordinal as u64);
            let is_digest = matches!(decision, Decision::DigestRecorded { .. });
            let change = if is_digest { None } else { redaction.decision(decision).unwrap() };
            let is_kept = change.is_some();
            let change =
                change.unwrap_or_else(|| Decision::DigestRecorded { digest: redacted.rows_digest() });
            let expected = whole.apply(leadership, index, round.log_time, decision);
            let found = redacted.apply(leadership, index, round.log_time, &change);
            assert_eq!(found.log_index, expected.log_index, "{what}, record {index}");
            if is_kept {
                assert_eq!(found.rejection, expected.rejection, "{what}: {decision:?}");
            }
        }
    }
    redacted.verify().unwrap();
    // The same rows come out, whether they are redacted before or behind the records.
    let behind = redaction.state(&whole).unwrap();
    assert!(redacted.jobs().iter().eq(behind.jobs().iter()), "{what}: jobs");
    assert!(redacted.nodes().iter().eq(behind.nodes().iter()), "{what}: nodes");
    assert!(redacted.arrays().iter().eq(behind.arrays().iter()), "{what}: arrays");
    assert!(redacted.all_metadata().iter().eq(behind.all_metadata().iter()), "{what}: metadata");
    assert!(redacted.restrictions().eq(behind.restrictions()), "{what}: restrictions");
    assert!(redacted.bookings().eq(behind.bookings()), "{what}: bookings");
    assert!(redacted.schedules().eq(behind.schedules()), "{what}: schedules");
    assert_eq!(redacted.policy(), behind.policy(), "{what}: policy");
    for (id, row) in whole.jobs().iter() {
        let other = redacted.job(*id).unwrap();
        let phases = [&row.phase, &other.phase].map(std::mem::discriminant);
        assert_eq!(phases[0], phases[1], "{what}, job {id}");
        assert_eq!((row.attempt, row.held, row.released), (other.attempt, other.held, other.released));
    }
    for (id, row) in whole.nodes().iter() {
        assert_eq!(row.free, redacted.node(*id).unwrap().free, "{what}, node {id}");
    }
}

#[test]
fn what_people_wrote_is_in_no_redacted_record_and_no_redacted_state() {
    let mut draft = job_draft("job", vec![group("main", 1, None)]);
    draft.groups[0].command = vec![CANARY.to_owned()];
    draft.groups[0].environment = [("KEY".to_owned(), CANARY.to_owned())].into();
    draft.groups[0].environment.insert(SIZES_VARIABLE.to_owned(), "1,2".to_owned());
    draft.checkpoint_directory = Some(format!("/{CANARY}"));
    draft.working_directory = Some(format!("/{CANARY}"));
    draft.affinity = vec![muster_types::Affinity {
        target: muster_types::AffinityTarget::Labels(format!("app={CANARY}")),
        level: muster_types::AffinityLevel::Host,
        rule: muster_types::AffinityRule::Apart,
        weight: None,
    }];
    let by = Requester {
        name: CANARY.to_owned(),
        is_operator: false,
        address: Some([192, 0, 2, 7].into()),
        role: Some(Name::literal("on-call")),
    };
    let request = RequestKey { id: RequestId(1), fingerprint: 77 };
    let submitted = Decision::JobsSubmitted {
        request,
        by: by.clone(),
        specs: vec![draft.check().unwrap().into()],
        estimates: vec![Estimate::default()],
    };
    let job = JobId::derive_in(1, LogIndex(3), 0);
    let texts = || [(CANARY.to_owned(), CANARY.to_owned())].into();
    let metadata = JobMetadata { labels: texts(), annotations: texts(), creator: CANARY.to_owned() };
    let described = Decision::JobMetadataSet { runs: vec![(job, 1, Arc::new(metadata))] };
    let redaction = Redaction::new(4);
    let mut state = State::default();
    let (cluster, parameters) = (ClusterId(1), Parameters::DEFAULT);
    let created = Decision::ClusterCreated { cluster, generation: 1, parameters };
    let log = [Decision::LeaderStarted, created, submitted, described];
    for (index, decision) in log.into_iter().enumerate() {
        let redacted = redaction.decision(&decision).unwrap().unwrap();
        assert!(!contains(&canonical(&redacted), CANARY), "{redacted:?}");
        let hides = |by: &Requester| by.address.is_none() && by.role.is_none();
        assert!(redacted.requester().is_none_or(hides), "{redacted:?}");
        let index = LogIndex(index as u64 + 1);
        let applied = state.apply(leadership(1, 1), index, LogTime(1_000), &decision);
        assert_eq!(applied.rejection, None, "{decision:?}");
    }
    let redacted = redaction.state(&state).unwrap();
    for chunk in redacted.snapshot() {
        assert!(!contains(&chunk, CANARY), "a chunk of the state has it");
    }
    // The scheduler reads these numbers, and nothing else of an environment.
    let left = &redacted.spec(job).unwrap().groups[0].environment;
    assert_eq!(left.iter().collect::<Vec<_>>(), [(&SIZES_VARIABLE.to_owned(), &"1,2".to_owned())]);
    let opened = Decision::ExecOpened {
        by,
        job,
        token: muster_types::FencingToken::default(),
        rank: 0,
        command: CANARY.to_owned(),
    };
    assert_eq!(redaction.decision(&opened), Ok(None));
}

#[test]
fn addresses_of_receivers_are_in_no_redacted_policy() {
    let receiver = Receiver {
        name: Name::literal("chat"),
        url: format!("https://chat.example/hooks/{CANARY}"),
        tenant: None,
        events: [NotificationEvent::JobFailed].into(),
        for_jobs: false,
        body: NotificationBody::Slack,
    };
    // Its address is in a file of the replicas.
    let in_file = Receiver { name: Name::literal("file"), url: String::new(), ..receiver.clone() };
    let draft = PolicyDraft { notifications: vec![receiver, in_file], ..PolicyDraft::default() };
    let request = RequestKey { id: RequestId(1), fingerprint: 77 };
    let policy = Box::new(draft.check().unwrap());
    let set = Decision::PolicySet { request, by: Requester::default(), policy };
    let (cluster, parameters) = (ClusterId(1), Parameters::DEFAULT);
    let created = Decision::ClusterCreated { cluster, generation: 1, parameters };
    let (whole, _) = goes_the_same_way([Decision::LeaderStarted, created, set]);
    let state = Redaction::new(4).state(&whole).unwrap();
    for chunk in state.snapshot() {
        assert!(!contains(&chunk, CANARY), "a chunk of the state has it");
    }
    let left: Vec<bool> = state.policy().policy.notifications.iter().map(|one| one.url.is_empty()).collect();
    assert_eq!(left, [false, true]);
}

/// Applies records to a state and, redacted, to another one, and compares what the guard says.
fn goes_the_same_way(log: impl IntoIterator<Item = Decision>) -> (State, State) {
    let redaction = Redaction::new(4);
    let (mut whole, mut redacted) = (State::default(), State::default());
    for (index, decision) in log.into_iter().enumerate() {
        let change = redaction.decision(&decision).unwrap().unwrap();
        assert!(!contains(&canonical(&change), CANARY), "{change:?}");
        let index = LogIndex(index as u64 + 1);
        let expected = whole.apply(leadership(1, 1), index, LogTime(1_000), &decision).rejection;
        let found = redacted.apply(leadership(1, 1), index, LogTime(1_000), &change).rejection;
        assert_eq!((found, expected), (None, None), "{decision:?}");
    }
    assert_eq!(redaction.state(&whole).unwrap().digest(), redacted.digest());
    (whole, redacted)
}

#[test]
fn a_record_that_changes_nothing_but_a_text_stays_news() {
    let (cluster, parameters) = (ClusterId(1), Parameters::DEFAULT);
    let created = Decision::ClusterCreated { cluster, generation: 1, parameters };
    // The agent's host has got another address.
    let registered = |address: &str| {
        let draft = NodeDraft { address: address.to_owned(), ..node_draft("n1", "eu", "main", None) };
        Decision::NodeRegistered { spec: draft.check().unwrap(), holder: holder(1) }
    };
    // The same finding, with another number in its sentence.
    let health = |degrees: u32| {
        let observation = Observation {
            detail: format!("{CANARY} at {degrees} degrees"),
            ..Observation::of(Finding::Network, None)
        };
        let condition =
            Condition { observation, action: HealthAction::Ignore, since: LogTime(1_000), boot: 1 };
        let health = Box::new(NodeHealth { conditions: vec![condition], ..NodeHealth::default() });
        Decision::NodeHealthChanged { node: NodeId(0), policy: LogIndex::ZERO, health, events: Vec::new() }
    };
    let log = [
        Decision::LeaderStarted,
        created,
        registered(CANARY),
        registered(&format!("{CANARY}.example")),
        health(91),
        health(92),
    ];
    let (whole, redacted) = goes_the_same_way(log);
    let incarnations = [&whole, &redacted].map(|state| state.node(NodeId(0)).unwrap().incarnation);
    assert_eq!(incarnations, [2, 2]);
    for chunk in redacted.snapshot() {
        assert!(!contains(&chunk, CANARY), "a chunk of the state has it");
    }
}

#[test]
fn other_artifacts_stay_other_ones() {
    let redaction = Redaction::new(4);
    let kept = |byte: u8| {
        let artifacts = Artifacts { digest: Some(BlobDigest::new([byte; 32])), ..Artifacts::default() };
        let token = muster_types::FencingToken::default();
        let kept = Decision::ArtifactsKept { job: JobId(1), token, rank: 0, artifacts };
        (redaction.decision(&kept).unwrap().unwrap(), kept)
    };
    assert_eq!(kept(7).0, kept(7).0);
    assert_ne!(kept(7).0, kept(8).0);
    assert_ne!(kept(7).0, kept(7).1);
}

#[test]
fn users_stay_who_they_are_to_limits_and_bookings() {
    let redaction = Redaction::new(4);
    let by = |name: &str| {
        let by = Requester::named(name.to_owned(), false);
        let raised = Decision::FormatRaised { by, format: 2 };
        let redacted = redaction.decision(&raised).unwrap().unwrap();
        redacted.requester().unwrap().name.clone()
    };
    assert_eq!(by("ada"), by("ada+token/0000000000000007"));
    assert_ne!(by("ada"), by("eve"));
    assert_eq!((by(""), by("+token/0000000000000007")), (String::new(), String::new()));
    let booked_for = |user: &str| {
        let spec = BookingSpec {
            tenant: Some(Name::literal("lab")),
            user: Some(user.to_owned()),
            jobs: Vec::new(),
            is_shared: false,
            shape: BookingShape::Nodes(vec![Name::literal("n1")]),
            times: BookingTimes::once(LogTime(0), 3_600_000),
            notice_ms: 0,
            clearing: BookingClearing::Finish,
            reason: CANARY.to_owned(),
        };
        let request = RequestKey { id: RequestId(1), fingerprint: 1 };
        let (name, spec, nodes) = (Name::literal("b"), Box::new(spec), vec![Name::literal("n1")]);
        let created = Decision::BookingCreated { request, by: Requester::default(), name, spec, nodes };
        let redacted = redaction.decision(&created).unwrap().unwrap();
        assert!(!contains(&canonical(&redacted), CANARY));
        let Decision::BookingCreated { spec, .. } = redacted else { panic!("{redacted:?}") };
        spec.user.unwrap()
    };
    // It is compared with users, of which none has this sign.
    assert_eq!(booked_for("ada"), by("ada"));
    assert_ne!(booked_for("ada+token/0000000000000007"), by("ada"));
}

#[test]
fn limits_of_users_hold_in_the_same_tenants_once_they_are_redacted() {
    let one_worker = JobLimits { workers_max: Some(1), ..JobLimits::default() };
    let users = [(CANARY.to_owned(), one_worker), (format!("tenant/speech/{CANARY}-bob"), one_worker)];
    let lab = TenantPolicy { user_limits: users.into(), ..TenantPolicy::default() };
    let vision = TenantPolicy { parent: Some(Name::literal("lab")), ..TenantPolicy::default() };
    let tenants = [(Name::literal("lab"), lab), (Name::literal("vision"), vision)];
    let draft = PolicyDraft { tenants: tenants.into(), ..PolicyDraft::default() };
    let request = |n| RequestKey { id: RequestId(n), fingerprint: 77 };
    let policy = Box::new(draft.check().unwrap());
    let set = Decision::PolicySet { request: request(1), by: Requester::default(), policy };
    let (cluster, parameters) = (ClusterId(1), Parameters::DEFAULT);
    let created = Decision::ClusterCreated { cluster, generation: 1, parameters };
    let refused = Some(GuardError::TenantLimit);
    let submitters = [
        // The tenant above knows a user of one below by the name that it has there.
        ("vision", format!("tenant/vision/{CANARY}"), refused),
        ("vision", format!("tenant/lab/{CANARY}"), refused),
        ("lab", format!("tenant/lab/{CANARY}+token/0000000000000007"), refused),
        ("vision", format!("tenant/speech/{CANARY}-bob"), refused),
        ("lab", CANARY.to_owned(), refused),
        ("vision", format!("tenant/vision/{CANARY}-eve"), None),
        ("vision", format!("tenant/other/{CANARY}"), None),
        ("lab", format!("tenant/vision/{CANARY}"), None),
    ];
    let mut log = vec![(Decision::LeaderStarted, None), (created, None), (set, None)];
    for (n, (tenant, creator, rejection)) in submitters.into_iter().enumerate() {
        let mut draft = job_draft("job", vec![group("main", 2, None)]);
        draft.tenant = Name::literal(tenant);
        let job = JobId::derive_in(1, LogIndex(log.len() as u64 + 1), 0);
        let submitted = Decision::JobsSubmitted {
            request: request(n as u128 + 2),
            by: Requester::default(),
            specs: vec![draft.check().unwrap().into()],
            estimates: vec![Estimate::default()],
        };
        let metadata = JobMetadata { creator, ..JobMetadata::default() };
        log.push((submitted, None));
        log.push((Decision::JobMetadataSet { runs: vec![(job, 1, Arc::new(metadata))] }, rejection));
    }
    let redaction = Redaction::new(4);
    let (mut whole, mut redacted) = (State::default(), State::default());
    for (index, (decision, expected)) in log.iter().enumerate() {
        let change = redaction.decision(decision).unwrap().unwrap();
        assert!(!contains(&canonical(&change), CANARY), "{change:?}");
        let index = LogIndex(index as u64 + 1);
        let said = whole.apply(leadership(1, 1), index, LogTime(1_000), decision).rejection;
        let found = redacted.apply(leadership(1, 1), index, LogTime(1_000), &change).rejection;
        assert_eq!((said, found), (*expected, *expected), "{decision:?}");
    }
    // It is the same whether the state behind the records is redacted, or they are.
    let behind = redaction.state(&whole).unwrap();
    assert_eq!(redacted.policy(), behind.policy());
    assert!(redacted.all_metadata().iter().eq(behind.all_metadata().iter()));
}
