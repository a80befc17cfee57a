//! One filter for lists and watches: what a list shows with it is what a watch begins with.

use super::*;
use muster_wire::time::timestamp;

fn id_of(n: u32) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}

async fn set_policy(served: &TestServer) {
    let tenant = |parent: &str| v1::TenantPolicy { parent: parent.to_owned(), ..Default::default() };
    let tenants = [("lab", ""), ("vision", "lab"), ("video", "vision"), ("speech", "")];
    let tenants = tenants.into_iter().map(|(name, parent)| (name.to_owned(), tenant(parent))).collect();
    let policy = Some(v1::Policy { tenants, ..Default::default() });
    let request = v1::SetPolicyRequest { request_id: id_of(1), policy, ..Default::default() };
    let mut client = PolicyServiceClient::new(served.channel.clone());
    guarded("a policy", client.set_policy(request)).await.expect("it is a policy");
}

async fn submit(served: &TestServer, n: u32, name: &str, of: impl FnOnce(&mut v1::Job)) -> Vec<String> {
    let mut request = submission(&id_of(n), name);
    of(request.job.as_mut().expect("it has one"));
    guarded("a submission", served.jobs().submit_job(request))
        .await
        .expect("it is taken")
        .into_inner()
        .job_ids
}

async fn listed(served: &TestServer, filter: &v1::JobFilter) -> Vec<String> {
    let mut request =
        v1::ListJobsRequest { page_size: 2, filter: Some(filter.clone()), ..Default::default() };
    let mut names = Vec::new();
    loop {
        let page = guarded("a page", served.jobs().list_jobs(request.clone())).await.expect("a page");
        let page = page.into_inner();
        names.extend(page.jobs.into_iter().map(|job| job.name));
        if page.next_page_token.is_empty() {
            assert!(!page.resume_token.is_empty(), "the last page says where a watch goes on");
            return names;
        }
        request.page_token = page.next_page_token;
    }
}

async fn watched(served: &TestServer, request: v1::WatchJobsRequest) -> Vec<String> {
    let mut events =
        guarded("a watch", served.jobs().watch_jobs(request)).await.expect("it opens").into_inner();
    let mut names = Vec::new();
    loop {
        match guarded("an event", events.message()).await.expect("it stands").and_then(|event| event.event) {
            Some(watch_jobs_response::Event::Changed(job)) => names.push(job.name),
            Some(watch_jobs_response::Event::SyncEnd(_)) => return names,
            other => panic!("nothing else describes the present: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_watch_begins_with_what_a_list_with_its_filter_shows() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    set_policy(&served).await;
    let first = submit(&served, 10, "first", |_| ()).await;
    let array = submit(&served, 11, "array", |wanted| {
        wanted.spec_mut().array = Some(v1::JobArray { size: 3, ..Default::default() })
    })
    .await;
    submit(&served, 12, "deep", |wanted| wanted.tenant = "video".to_owned()).await;
    submit(&served, 13, "other", |wanted| wanted.tenant = "speech".to_owned()).await;
    let free = |wanted: &mut v1::Job| wanted.spec_mut().tier = v1::Tier::Free.into();
    submit(&served, 14, "free", free).await;
    // Eight devices: what is submitted behind these waits.
    submit(&served, 15, "large", |wanted| {
        wanted.spec_mut().array = Some(v1::JobArray { size: 8, ..Default::default() })
    })
    .await;
    let array_id = array[0].replace("job-", "array-");
    let none = v1::JobFilter::default;
    let tenant =
        |tenant: &str, descendants| v1::JobFilter { tenant: tenant.to_owned(), descendants, ..none() };
    let filters: [(v1::JobFilter, &[&str]); 9] = [
        (v1::JobFilter { job_ids: vec![first[0].clone(), array[1].clone()], ..none() }, &["array", "first"]),
        (v1::JobFilter { array_id: array_id.clone(), ..none() }, &["array"; 3]),
        (v1::JobFilter { array_id, job_ids: vec![first[0].clone(), array[2].clone()], ..none() }, &["array"]),
        (tenant("video", false), &["deep"]),
        (tenant("vision", true), &["deep"]),
        (tenant("vision", false), &[]),
        (v1::JobFilter { tiers: vec![v1::Tier::Free.into()], ..none() }, &["free"]),
        (v1::JobFilter { created_from: Some(timestamp(1 << 52 >> 6)), ..none() }, &[]),
        (v1::JobFilter { node: "nobody".to_owned(), ..none() }, &[]),
    ];
    for (filter, expected) in filters {
        assert_eq!(listed(&served, &filter).await, expected, "{filter:?}");
        let request = v1::WatchJobsRequest { filter: Some(filter.clone()), ..Default::default() };
        let mut names = watched(&served, request).await;
        names.reverse();
        assert_eq!(names, expected, "{filter:?}");
        let request = v1::WatchJobsRequest { filter: Some(filter), skip_initial: true, ..Default::default() };
        assert_eq!(watched(&served, request).await, Vec::<String>::new(), "the present is left out");
    }
    for place in [
        v1::JobFilter { region: "eu".to_owned(), ..none() },
        v1::JobFilter { cluster: "eu-1".to_owned(), ..none() },
        v1::JobFilter { node: "h1".to_owned(), ..none() },
    ] {
        assert!(listed(&served, &place).await.len() <= 8, "the host has eight devices: {place:?}");
    }
}

#[tokio::test]
async fn what_a_filter_cannot_be_is_refused_with_every_field() {
    let served = TestServer::start().await;
    let filter = v1::JobFilter {
        job_ids: vec!["job-1".to_owned(), "node-1".to_owned()],
        descendants: true,
        phases: vec![99],
        creator: "x".to_owned(),
        mine: true,
        array_id: "job-1".to_owned(),
        tiers: vec![17],
        created_from: Some(muster_wire::time::Timestamp { seconds: -1, nanos: 0 }),
        ..Default::default()
    };
    let list = v1::ListJobsRequest { filter: Some(filter.clone()), ..Default::default() };
    let watch = v1::WatchJobsRequest { filter: Some(filter), ..Default::default() };
    let of_list = refused(guarded("a list", served.jobs().list_jobs(list)).await);
    let of_watch = refused(guarded("a watch", served.jobs().watch_jobs(watch)).await);
    let fields = |refused: &Refused| {
        let mut fields: Vec<String> = refused.violations.iter().map(|v| v.field.clone()).collect();
        fields.sort();
        fields
    };
    let expected = [
        "filter.array_id",
        "filter.created_from",
        "filter.creator",
        "filter.descendants",
        "filter.job_ids[1]",
        "filter.phases",
        "filter.tiers[0]",
    ];
    assert_eq!(
        (fields(&of_list), fields(&of_watch)),
        (expected.map(str::to_owned).to_vec(), fields(&of_list))
    );
}

#[tokio::test]
async fn a_page_of_full_jobs_has_their_specs_and_ends_before_it_is_too_large() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    let padded = |wanted: &mut v1::Job| {
        *wanted.spec_mut().groups[0].command_mut() = vec!["x".repeat(4_000); 7];
        wanted.spec_mut().array = Some(v1::JobArray { size: 20, ..Default::default() });
    };
    for n in 0..3 {
        submit(&served, 10 + n, "large", padded).await;
    }
    let mut request = v1::ListJobsRequest { view: v1::JobView::Full.into(), ..Default::default() };
    let mut pages = Vec::new();
    loop {
        let page = guarded("a page", served.jobs().list_jobs(request.clone())).await.expect("it fits");
        let page = page.into_inner();
        assert!(page.jobs.iter().all(|job| job.spec.as_ref().is_some_and(|spec| !spec.groups.is_empty())));
        pages.push(page.jobs.len());
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert!(pages.len() > 1 && pages.iter().sum::<usize>() == 60, "{pages:?}");
}
