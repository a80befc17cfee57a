//! Queues: listed and watched.

use muster_wire::v1::tenant_service_client::TenantServiceClient;
use muster_wire::v1::watch_tenants_response::Event;

use super::*;

impl TestServer {
    fn queues(&self) -> TenantServiceClient<Channel> {
        TenantServiceClient::new(self.channel.clone())
    }

    async fn watch_tenants(
        &self,
        tenants: &[&str],
        resume_token: &str,
    ) -> Result<Streaming<v1::WatchTenantsResponse>, Status> {
        let tenants = tenants.iter().map(ToString::to_string).collect();
        let request = v1::WatchTenantsRequest { resume_token: resume_token.into(), tenants };
        guarded("a watch", self.queues().watch_tenants(request)).await.map(tonic::Response::into_inner)
    }

    async fn submit_for(&self, number: u32, tenant: &str) -> u64 {
        let mut request = submission(&format!("00000000-0000-4000-a000-{number:012}"), "a");
        request.job.as_mut().expect("it has one").tenant = tenant.to_owned();
        let answer = guarded("a submission", self.jobs().submit_job(request)).await.expect("it is taken");
        answer.into_inner().freshness.expect("it says").log_index
    }

    /// Sets a policy of these tenants, each with a quota; the version.
    async fn tenants(&self, number: u32, names: &[&str]) -> u64 {
        let quota = v1::Quota { r#type: "h100".to_owned(), nominal_milli: 4_000, ..Default::default() };
        let tenant = v1::TenantPolicy { quotas: vec![quota], ..Default::default() };
        let tenants = names.iter().map(|name| (name.to_string(), tenant.clone())).collect();
        let request = v1::SetPolicyRequest {
            request_id: format!("00000000-0000-4000-b000-{number:012}"),
            policy: Some(v1::Policy { tenants, ..Default::default() }),
            ..Default::default()
        };
        let mut policies = PolicyServiceClient::new(self.channel.clone());
        guarded("a policy", policies.set_policy(request)).await.expect("it is set").into_inner().version
    }

    async fn list_tenants(&self, page_size: u32, page_token: &str) -> v1::ListTenantsResponse {
        let request = v1::ListTenantsRequest { page_size, page_token: page_token.to_owned(), read: None };
        guarded("a list", self.queues().list_tenants(request)).await.expect("it is answered").into_inner()
    }
}

/// Every change, until the watch has come to the index.
async fn up_to(
    events: &mut Streaming<v1::WatchTenantsResponse>,
    log_index: u64,
) -> Vec<v1::WatchTenantsResponse> {
    let mut seen = Vec::new();
    guarded("the events", async {
        loop {
            let event = events.message().await.expect("it stands").expect("an event");
            let at = event.log_index;
            if matches!(event.event, Some(Event::Changed(_))) {
                seen.push(event);
            }
            if at >= log_index {
                return;
            }
        }
    })
    .await;
    seen
}

/// What a client knows that took in these events: tenant, waiting and running jobs.
fn known(events: &[v1::WatchTenantsResponse]) -> BTreeMap<String, (u64, u64)> {
    let mut known = BTreeMap::new();
    for event in events {
        let Some(Event::Changed(changes)) = &event.event else { continue };
        for tenant in &changes.forgotten {
            assert!(known.remove(tenant).is_some(), "{tenant} was not there");
        }
        for queue in &changes.changed {
            known.insert(queue.tenant.clone(), (queue.pending_jobs, queue.active_jobs));
        }
    }
    known
}

fn names(list: &v1::ListTenantsResponse) -> Vec<&str> {
    list.tenants.iter().map(|queue| queue.tenant.as_str()).collect()
}

#[tokio::test]
async fn a_queue_is_there_while_the_policy_or_a_job_says_so() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    assert!(names(&served.list_tenants(0, "").await).is_empty());
    let mut watch = served.watch_tenants(&[], "").await.expect("it opens");
    served.tenants(1, &["a", "b", "c"]).await;
    let last = served.submit_for(1, "lab").await;
    let mut seen = up_to(&mut watch, last).await;
    let first = served.list_tenants(3, "").await;
    assert_eq!(names(&first), ["a", "b", "c"]);
    let second = served.list_tenants(3, &first.next_page_token).await;
    assert_eq!((names(&second), second.next_page_token.as_str()), (vec!["lab", "unlisted"], ""));
    let quota = &first.tenants[0].quotas[0];
    assert_eq!((quota.r#type.as_str(), quota.nominal_milli, quota.used_milli), ("h100", 4_000, 0));
    assert_eq!((first.tenants[0].weight_milli, first.tenants[0].pending_jobs), (1_000, 0));

    let last = served.tenants(2, &["b"]).await;
    seen.extend(up_to(&mut watch, last).await);
    let gone: Vec<String> = seen
        .iter()
        .filter_map(|event| match &event.event {
            Some(Event::Changed(changes)) => Some(changes.forgotten.clone()),
            _ => None,
        })
        .flatten()
        .collect();
    assert_eq!(gone, ["a", "c"], "the tenant that has a job stays");
    let listed = served.list_tenants(0, "").await;
    assert_eq!(names(&listed), ["b", "lab", "unlisted"]);
    assert_eq!(known(&seen).into_keys().collect::<Vec<_>>(), ["b", "lab", "unlisted"]);
    let lab = &listed.tenants[1];
    assert_eq!(lab.pending_jobs + lab.active_jobs, 1, "{lab:?}");
    assert_eq!(lab.pending_devices_milli + lab.active_devices_milli, 1_000, "{lab:?}");
}

#[tokio::test]
async fn licences_are_listed_with_who_waits_for_them() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    let resource = |name: &str, region: &str| v1::CountedResource {
        name: name.to_owned(),
        count: Some(2),
        region: region.to_owned(),
    };
    let resources = vec![resource("matlab", ""), resource("ansys", "nowhere")];
    let request = v1::SetPolicyRequest {
        request_id: "00000000-0000-4000-b000-000000000001".to_owned(),
        policy: Some(v1::Policy { resources, ..Default::default() }),
        ..Default::default()
    };
    let mut policies = PolicyServiceClient::new(served.channel.clone());
    guarded("a policy", policies.set_policy(request)).await.expect("it is set");
    let submit = |number: u32, licence: &str, count| {
        let mut request = submission(&format!("00000000-0000-4000-a000-{number:012}"), "a");
        let spec = request.job.as_mut().and_then(|job| job.spec.as_mut()).expect("it has one");
        spec.licences = vec![v1::LicenceRequest { name: licence.to_owned(), count }];
        let mut jobs = served.jobs();
        async move { guarded("a submission", jobs.submit_job(request)).await }
    };
    // There is no such region: it waits.
    submit(1, "ansys", 1).await.expect("it is taken");
    submit(2, "matlab", 3).await.expect_err("there are not as many");
    submit(3, "mathematica", 1).await.expect_err("nobody counts it");
    let list = served.queues().list_licences(v1::ListLicencesRequest::default()).await;
    let licences = list.expect("it is answered").into_inner().licences;
    let shown: Vec<_> =
        licences.iter().map(|of| (of.name.as_str(), of.region.as_str(), of.count, of.used)).collect();
    assert_eq!(shown, [("ansys", "nowhere", 2, 0), ("matlab", "", 2, 0)]);
    assert!(
        licences[0].next_job_id.starts_with("job-") && licences[1].next_job_id.is_empty(),
        "{licences:?}"
    );
}

#[tokio::test]
async fn what_a_round_did_comes_once_behind_any_event_and_for_whoever_asked() {
    let served = TestServer::start().await;
    let (_send, _session) = served.agent().await;
    let mut whole = served.watch_tenants(&[], "").await.expect("it opens");
    let mut one = served.watch_tenants(&["b"], "").await.expect("it opens");
    let synced = guarded("the present", whole.message()).await.expect("it stands").expect("an event");
    assert_eq!(synced.event, Some(Event::SyncEnd(v1::SyncEnd {})), "there is none yet");
    let mut last = 0;
    for number in 0..6 {
        last = served.submit_for(number, if number % 2 == 0 { "a" } else { "b" }).await;
    }
    let seen = up_to(&mut whole, last).await;
    assert!(seen.is_sorted_by(|a, b| a.log_index < b.log_index), "{seen:?}");
    let jobs: u64 = known(&seen).values().map(|(pending, active)| pending + active).sum();
    assert_eq!(jobs, 6, "{seen:?}");
    let of_b = up_to(&mut one, last).await;
    assert_eq!(known(&of_b).into_keys().collect::<Vec<_>>(), ["b"]);
    let behind_present = std::iter::once((&synced, &seen[..]));
    let behind_each = seen.iter().enumerate().map(|(at, event)| (event, &seen[at + 1..]));
    for (event, rest) in behind_present.chain(behind_each).filter(|(_, rest)| !rest.is_empty()) {
        let mut again = served.watch_tenants(&[], &event.resume_token).await.expect("it is kept");
        let last = rest.last().map_or(0, |event| event.log_index);
        assert_eq!(up_to(&mut again, last).await, rest, "behind {}", event.log_index);
    }
}

#[tokio::test]
async fn names_and_tokens_that_are_none_are_refused() {
    let served = TestServer::start().await;
    let wrong = refused(served.watch_tenants(&["a", "No Name"], "").await);
    assert_eq!(wrong.code, Some(RefusalCode::InvalidField));
    assert_eq!(wrong.violations[0].field, "tenants[1]");
    let many = vec!["a"; 1_001];
    assert_eq!(refused(served.watch_tenants(&many, "").await).violations[0].field, "tenants");
    let place = ResumeToken::behind(1, LogIndex(1));
    let of = |tenants: &[&str]| place.encode(CLUSTER, filter_digest([&["queues"], tenants].concat()));
    served.watch_tenants(&["a"], &of(&["a"])).await.expect("it is a place in this log");
    for token in [of(&["b"]), place.encode(CLUSTER, filter_digest(["nodes", ""])), "zz".to_owned()] {
        let refused = refused(served.watch_tenants(&["a"], &token).await);
        assert_eq!(refused.violations[0].field, "resume_token", "{token}");
    }
    let page = |token: String| {
        let mut queues = served.queues();
        let request = v1::ListTenantsRequest { page_token: token, ..Default::default() };
        async move { guarded("a list", queues.list_tenants(request)).await }
    };
    let of_jobs = PageToken { after: "a".to_owned(), log_index: LogIndex(1) };
    let of_jobs = of_jobs.encode(CLUSTER, List::Jobs, filter_digest(["queues"]));
    assert_eq!(refused(page(of_jobs).await).code, Some(RefusalCode::PageTokenInvalid));
    let no_name = PageToken { after: "No Name".to_owned(), log_index: LogIndex(1) };
    let no_name = no_name.encode(CLUSTER, List::Queues, filter_digest(["queues"]));
    assert_eq!(refused(page(no_name).await).code, Some(RefusalCode::PageTokenInvalid));
}
