//! Labels, annotations and creators, through a real listener with certificates.

use muster_decider::Command;
use muster_transport::Role;
use muster_types::{HolderId, RefusalCode, ReplicaId};
use muster_wire::status::Refused;
use muster_wire::v1;
use muster_wire::v1::job_service_client::JobServiceClient;
use muster_wire::v1::watch_jobs_response::Event;
use std::collections::HashMap;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::access_tests::{World, guarded, host, of_tenant, short, submission};
use crate::sample::CLUSTER;

type Jobs = JobServiceClient<Channel>;

fn texts(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn labelled(tenant: &str, number: u32, labels: &[(&str, &str)]) -> v1::SubmitJobRequest {
    let mut request = submission(tenant, number);
    let job = request.job.as_mut().expect("it has one");
    job.labels = texts(labels);
    job.annotations = texts(&[("note", "between\nus")]);
    request
}

async fn world() -> World {
    let world = World::with_tenants().await;
    let spec = host("h1");
    let command = Command::Register { spec, holder: HolderId(1), other_session_is_over: false };
    world.engine.execute(command).await.expect("a host comes");
    world
}

async fn submit(jobs: &mut Jobs, request: v1::SubmitJobRequest) -> String {
    let answer = guarded("an answer", jobs.submit_job(request)).await.expect("it is taken");
    answer.into_inner().job_ids.remove(0)
}

async fn show(jobs: &mut Jobs, job_id: &str) -> v1::Job {
    let request = v1::GetJobRequest { job_id: job_id.to_owned(), read: None };
    let answer = guarded("an answer", jobs.get_job(request)).await.expect("it is there");
    answer.into_inner().job.expect("a job")
}

async fn list(jobs: &mut Jobs, request: v1::ListJobsRequest) -> Result<Vec<String>, Status> {
    let answer = guarded("a list", jobs.list_jobs(request)).await?.into_inner();
    Ok(answer.jobs.into_iter().map(|job| job.id).collect())
}

fn selected(label_selector: &str) -> v1::ListJobsRequest {
    v1::ListJobsRequest {
        filter: Some(v1::JobFilter { label_selector: label_selector.to_owned(), ..Default::default() }),
        ..Default::default()
    }
}

fn by(creator: &str) -> v1::ListJobsRequest {
    v1::ListJobsRequest {
        filter: Some(v1::JobFilter { creator: creator.to_owned(), ..Default::default() }),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_creator_is_who_submits_whatever_is_said() {
    let world = world().await;
    let role = of_tenant("vision", "ada");
    let mut ada = JobServiceClient::new(world.channel(role).await);
    let first = submit(&mut ada, labelled("vision", 1, &[("creator", "root"), ("team", "a")])).await;
    let shown = show(&mut ada, &first).await;
    assert_eq!((shown.creator.as_str(), shown.labels["team"].as_str()), ("tenant/vision/ada", "a"));
    assert_eq!(shown.annotations["note"], "between\nus");
    assert_eq!(shown.etag, format!("1-{}", shown.status().changed_at_index));
    // What only replicas may say, said by a client.
    let mut spoofed = Request::new(submission("vision", 2));
    let root = format!("spiffe://{CLUSTER}/admin/root");
    spoofed.metadata_mut().insert("muster-principal", root.parse().expect("a name is ASCII"));
    let answer = guarded("an answer", ada.submit_job(spoofed)).await.expect("it is taken").into_inner();
    assert_eq!(show(&mut ada, &answer.job_ids[0]).await.creator, "tenant/vision/ada");
    // Passed on by a replica: whom it is for.
    let mut replica = JobServiceClient::new(world.channel(Role::Replica(ReplicaId(1))).await);
    let mut onward = Request::new(labelled("vision", 3, &[("team", "b")]));
    let name = muster_transport::PeerName { cluster: CLUSTER, role }.to_string();
    onward.metadata_mut().insert("muster-principal", name.parse().expect("a name is ASCII"));
    onward.metadata_mut().insert("muster-forwarded", "1".parse().expect("a digit is ASCII"));
    let answer = guarded("an answer", replica.submit_job(onward)).await.expect("it is taken").into_inner();
    assert_eq!(show(&mut ada, &answer.job_ids[0]).await.creator, "tenant/vision/ada");
    // A batch as well, with an array in it.
    let mut array = labelled("vision", 4, &[("team", "a")]).job.expect("it has one");
    array.spec_mut().array = Some(v1::JobArray { size: 3, ..Default::default() });
    let batch = v1::SubmitJobsRequest {
        request_id: "00000000-0000-4000-a000-000000000004".to_owned(),
        jobs: vec![array, submission("vision", 4).job.expect("it has one")],
        ..Default::default()
    };
    let mut bob = JobServiceClient::new(world.channel(of_tenant("vision", "bob")).await);
    let batch = guarded("an answer", bob.submit_jobs(batch)).await.expect("it is taken").into_inner();
    for (place, job) in batch.job_ids.iter().enumerate() {
        let shown = show(&mut ada, job).await;
        assert_eq!(shown.creator, "tenant/vision/bob");
        assert_eq!(shown.labels.len(), usize::from(place < 3), "{job}");
    }
    // Another repeats the request: it stays whose it was.
    let again = submit(&mut bob, labelled("vision", 1, &[("creator", "root"), ("team", "a")])).await;
    assert_eq!(again, first);
    assert_eq!(show(&mut bob, &first).await.creator, "tenant/vision/ada");
    let mine = v1::ListJobsRequest {
        filter: Some(v1::JobFilter { mine: true, ..Default::default() }),
        ..Default::default()
    };
    assert_eq!(list(&mut bob, mine.clone()).await.expect("a list").len(), 4);
    assert_eq!(list(&mut ada, mine.clone()).await.expect("a list").len(), 3);
    assert_eq!(list(&mut bob, by("tenant/vision/ada")).await.expect("a list").len(), 3);
    assert_eq!(list(&mut bob, by("anonymous")).await.expect("a list"), Vec::<String>::new());
    let both = v1::ListJobsRequest {
        filter: Some(v1::JobFilter { creator: "x".to_owned(), mine: true, ..Default::default() }),
        ..mine
    };
    let told = Refused::from_status(&list(&mut ada, both).await.expect_err("one or the other"));
    assert_eq!(told.violations[0].field, "filter.creator");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_and_watches_select_by_labels() {
    let world = world().await;
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    // Watches that are open before there is any job.
    let mut watched = Vec::new();
    for selector in ["team=a", "!team", "team in (b,c)"] {
        let request = v1::WatchJobsRequest {
            filter: Some(v1::JobFilter { label_selector: selector.to_owned(), ..Default::default() }),
            ..Default::default()
        };
        let watch = guarded("a watch", ada.watch_jobs(request)).await.expect("it opens");
        watched.push((watch.into_inner(), Vec::new()));
    }
    let a = submit(&mut ada, labelled("vision", 1, &[("team", "a"), ("stage", "train")])).await;
    let b = submit(&mut ada, labelled("vision", 2, &[("team", "b")])).await;
    let none = submit(&mut ada, labelled("vision", 3, &[])).await;
    let plain = submit(&mut ada, submission("video", 4)).await;
    for (selector, expected) in [
        ("", vec![&plain, &none, &b, &a]),
        ("team=a", vec![&a]),
        ("team in (a,b)", vec![&b, &a]),
        ("team,stage!=train", vec![&b]),
        ("!team", vec![&plain, &none]),
        ("team!=a", vec![&plain, &none, &b]),
        ("team=nobodys", vec![]),
        ("team=a,team=b", vec![]),
    ] {
        let found = list(&mut ada, selected(selector)).await.expect("a list");
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{selector}");
    }
    let wrong = list(&mut ada, selected("team=a,,b")).await.expect_err("it cannot be read");
    let told = Refused::from_status(&wrong);
    assert_eq!(told.code, Some(RefusalCode::InvalidField));
    let violation = told.violations[0].to_string();
    assert_eq!(violation, "filter.label_selector: character 8: expected the key of a label, found \",b\"");
    let request = v1::WatchJobsRequest {
        filter: Some(v1::JobFilter { label_selector: "=".to_owned(), ..Default::default() }),
        ..Default::default()
    };
    let told =
        Refused::from_status(&guarded("an answer", ada.watch_jobs(request)).await.expect_err("so here"));
    assert_eq!(told.violations[0].field, "filter.label_selector");
    // A page goes on under its own selector alone.
    let page = v1::ListJobsRequest { page_size: 1, ..selected("team") };
    let first = guarded("a page", ada.list_jobs(page.clone())).await.expect("a page").into_inner();
    assert_eq!(first.jobs[0].id, b);
    let next = v1::ListJobsRequest { page_token: first.next_page_token, ..page };
    assert_eq!(list(&mut ada, next.clone()).await.expect("a page"), std::slice::from_ref(&a));
    let other = v1::ListJobsRequest {
        filter: Some(v1::JobFilter { label_selector: "team=a".to_owned(), ..Default::default() }),
        ..next
    };
    let told = Refused::from_status(&list(&mut ada, other).await.expect_err("of another list"));
    assert_eq!(told.code, Some(RefusalCode::PageTokenInvalid));
    // From the first event on a watch is of those jobs alone. Each watch has come to the last job when it sees a job
    // that is cancelled behind it.
    let mut last = Vec::new();
    for (number, labels) in [&[("team", "a")][..], &[], &[("team", "c")]].into_iter().enumerate() {
        last.push(submit(&mut ada, labelled("vision", 10 + number as u32, labels)).await);
    }
    for (place, (events, seen)) in watched.iter_mut().enumerate() {
        guarded("the events", async {
            loop {
                let event = events.message().await.expect("it stands").expect("an event");
                if let Some(Event::Changed(job)) = event.event {
                    seen.push(job.id.clone());
                    if job.id == last[place] {
                        return;
                    }
                }
            }
        })
        .await;
        seen.dedup();
    }
    assert_eq!(watched[0].1, [&a, &last[0]].map(String::clone));
    assert_eq!(watched[1].1, [&none, &plain, &last[1]].map(String::clone));
    assert_eq!(watched[2].1, [&b, &last[2]].map(String::clone));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_labels_name_the_key_and_change_nothing() {
    let world = world().await;
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let before = world.engine.view().jobs().len();
    let many: Vec<(String, String)> = (0..33).map(|n| (format!("k{n}"), String::new())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let long = "k".repeat(64);
    let cases: [(&[(&str, &str)], &str); 6] = [
        (&many, "job.labels"),
        (&[(&long, "x")], &format!("job.labels.{long}")),
        (&[("", "x")], "job.labels.\"\""),
        (&[("tëam", "x")], "job.labels.tëam"),
        (&[("team\n", "x")], "job.labels.team\\n"),
        (&[("team", "x\u{0}")], "job.labels.team"),
    ];
    for (number, (labels, field)) in cases.into_iter().enumerate() {
        let answer = guarded("an answer", ada.submit_job(labelled("vision", number as u32, labels))).await;
        let told = Refused::from_status(&answer.expect_err("it breaks a rule"));
        assert_eq!(told.code, Some(RefusalCode::InvalidField), "{told}");
        let fields: Vec<&str> = told.violations.iter().map(|violation| violation.field.as_str()).collect();
        assert_eq!(fields, [field]);
    }
    let mut request = submission("vision", 90);
    request.job.as_mut().expect("it has one").annotations = texts(&[("a", &"x".repeat(8 << 10))]);
    let told = Refused::from_status(&guarded("an answer", ada.submit_job(request)).await.expect_err("8 KiB"));
    assert_eq!(told.violations[0].field, "job.annotations");
    assert_eq!(world.engine.view().jobs().len(), before);
}

/// Others see labels and who submitted a job, and not what its annotations say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn annotations_are_shown_to_the_tenant_alone() {
    let world = world().await;
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let job = submit(&mut ada, labelled("vision", 1, &[("team", "a")])).await;
    for (role, sees) in [
        (of_tenant("speech", "eve"), false),
        (Role::Client(short("eve")), false),
        (Role::Admin(short("root")), true),
    ] {
        let channel = world.channel(role).await;
        let shown = show(&mut JobServiceClient::new(channel), &job).await;
        assert_eq!((shown.labels["team"].as_str(), shown.creator.as_str()), ("a", "tenant/vision/ada"));
        let annotations = shown.annotations;
        assert_eq!(annotations.values().any(|value| value.contains("between")), sees, "{role}");
    }
}
