//! Admission of nodes and revoked certificates, through a real listener with certificates.

use muster_transport::Role;
use muster_types::{AdmissionMode, NodeDraft, NodeSpec, RefusalCode};
use muster_wire::admin::cluster_admin_service_client::ClusterAdminServiceClient;
use muster_wire::closed::{number_or_zero, of_word};
use muster_wire::status::Refused;
use muster_wire::time::timestamp;
use muster_wire::v1::fleet_service_client::FleetServiceClient;
use muster_wire::v1::job_service_client::JobServiceClient;
use muster_wire::v1::set_node_approval_request::Approval;
use muster_wire::{admin, v1};
use tonic::Status;
use tonic::transport::Channel;

use crate::ApiConfig;
use crate::access_tests::{World, guarded, host, of_tenant, session_of, short};

fn name(text: &str) -> muster_types::Name {
    muster_types::Name::new(text).expect("a name")
}

/// A host like the usual one, but for what is changed.
fn host_with(text: &str, change: impl FnOnce(&mut NodeDraft)) -> NodeSpec {
    let mut draft = NodeDraft { ..(*host(text)).clone() };
    change(&mut draft);
    draft.check().expect("it is a host")
}

fn devices(kind: &str, count: u16) -> impl FnOnce(&mut NodeDraft) {
    let accelerators = muster_types::Accelerators { kind: name(kind), count };
    |draft| draft.accelerators = Some(accelerators)
}

fn in_region(region: &str) -> impl FnOnce(&mut NodeDraft) {
    let region = name(region);
    |draft| draft.region = region
}

struct Door {
    world: World,
    fleet: FleetServiceClient<Channel>,
    requests: u32,
}

impl Door {
    async fn open() -> Door {
        let world = World::start(ApiConfig::DEFAULT).await;
        let fleet = FleetServiceClient::new(world.channel(Role::Admin(short("root"))).await);
        Door { world, fleet, requests: 0 }
    }

    fn request_id(&mut self) -> String {
        self.requests += 1;
        format!("00000000-0000-4000-8000-{:012}", self.requests)
    }

    async fn set(&mut self, mode: &str, rules: Vec<v1::NodeAdmissionRule>) -> Result<(), Status> {
        let request = v1::SetNodeAdmissionRequest {
            request_id: self.request_id(),
            mode: number_or_zero(of_word::<AdmissionMode>(mode)),
            rules,
            expected_version: None,
        };
        guarded("an answer", self.fleet.set_node_admission(request)).await.map(drop)
    }

    async fn say(&mut self, name: &str, approval: Approval) -> Result<(), Status> {
        let request = v1::SetNodeApprovalRequest {
            request_id: self.request_id(),
            name: name.to_owned(),
            approval: Some(approval),
        };
        guarded("an answer", self.fleet.set_node_approval(request)).await.map(drop)
    }

    async fn pending(&mut self) -> Vec<(String, String)> {
        let answer = guarded("a list", self.fleet.list_pending_nodes(v1::ListPendingNodesRequest {})).await;
        let nodes = answer.expect("an operator may look").into_inner().nodes;
        nodes.into_iter().map(|node| (node.description.expect("it has one").name, node.reason)).collect()
    }

    /// Why a host is not admitted; none when it is. Its session ends with this.
    async fn comes(&self, spec: &NodeSpec) -> Option<String> {
        let channel = self.world.channel(Role::Agent(short(&spec.name))).await;
        match session_of(&channel, spec).await {
            Ok(_) => None,
            Err(status) => {
                let told = Refused::from_status(&status);
                assert_eq!(told.code, Some(RefusalCode::NodeNotAdmitted), "{status:?}");
                assert_eq!(told.metadata.get("node").map(String::as_str), Some(&*spec.name));
                Some(told.message)
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_waits_until_an_operator_has_admitted_it() {
    let mut door = Door::open().await;
    door.set("approve", Vec::new()).await.expect("an operator may");
    let h1 = host_with("h1", devices("h100", 8));
    let why = door.comes(&h1).await.expect("nobody has approved it");
    assert!(why.contains("muster node approve h1"), "it says what to do next: {why}");
    assert_eq!(door.pending().await, [("h1".to_owned(), why)]);
    assert_eq!(door.world.engine.view().nodes().len(), 0);

    door.say("h1", Approval::ApproveAsIs(v1::ApproveAsIs {})).await.expect("it waits");
    assert_eq!(door.pending().await, []);
    assert_eq!(door.comes(&h1).await, None);
    // It comes again as less, and as nothing else.
    assert_eq!(door.comes(&host_with("h1", devices("h100", 4))).await, None);
    for (change, said) in [
        (host_with("h1", devices("h100", 9)), "h100:9"),
        (host_with("h1", devices("b200", 8)), "b200:8"),
        (host_with("h1", in_region("us-east")), "us-east"),
    ] {
        let why = door.comes(&change).await.unwrap_or_else(|| panic!("{said} was admitted"));
        assert!(why.contains(said), "{said}: {why}");
    }
    assert_eq!(door.pending().await.len(), 1, "its latest description waits");
    let row = door.world.engine.view();
    let row = row.node_named(&name("h1")).and_then(|id| row.node(id)).expect("it is known");
    assert_eq!(
        (row.spec.region.as_str(), row.spec.device_count()),
        ("eu", 4),
        "nothing of it was taken over"
    );

    let nobody =
        door.say("h7", Approval::ApproveAsIs(v1::ApproveAsIs {})).await.expect_err("it has not come");
    assert_eq!(Refused::from_status(&nobody).code, Some(RefusalCode::NodeNotFound));
    door.say("h2", Approval::Reject(v1::RejectNode {})).await.expect("an operator may");
    assert!(door.comes(&host("h2")).await.is_some_and(|why| why.contains("rejected")));
    door.say("h2", Approval::Clear(v1::ClearApproval {})).await.expect("an operator may");
    assert!(door.comes(&host("h2")).await.is_some_and(|why| why.contains("nobody has approved")));
    let bounds = v1::NodeBounds { region: "eu".to_owned(), ..Default::default() };
    door.say("h2", Approval::Approve(bounds)).await.expect("an operator may");
    assert_eq!(door.comes(&host("h2")).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_admit_nodes_by_name_within_their_bounds() {
    let mut door = Door::open().await;
    let rule = v1::NodeAdmissionRule {
        pattern: "eu-*".to_owned(),
        bounds: Some(v1::NodeBounds {
            region: "eu".to_owned(),
            devices: vec![v1::Accelerators { r#type: "h100".to_owned(), count: 8 }],
            ..Default::default()
        }),
    };
    door.set("approve", vec![rule.clone()]).await.expect("an operator may");
    assert_eq!(door.comes(&host_with("eu-1", devices("h100", 8))).await, None);
    assert_eq!(door.comes(&host("eu-2")).await, None, "none is less than eight");
    assert!(door.comes(&host_with("eu-3", devices("b200", 8))).await.is_some());
    assert!(door.comes(&host_with("eu-3", in_region("us-east"))).await.is_some());
    assert!(door.comes(&host("us-1")).await.is_some(), "no rule covers it");
    // In every mode a rule binds those whom it covers.
    door.set("open", vec![rule]).await.expect("an operator may");
    assert!(door.comes(&host_with("eu-3", devices("b200", 8))).await.is_some());
    assert_eq!(door.comes(&host("us-1")).await, None);
    let wrong = v1::NodeAdmissionRule { pattern: "No".to_owned(), bounds: None };
    let refused = door.set("approve", vec![wrong]).await.expect_err("no name is like this");
    assert_eq!(Refused::from_status(&refused).code, Some(RefusalCode::InvalidField));
    assert!(door.set("whatever", Vec::new()).await.is_err());
}

/// The usual mode with certificates: the holder of a node's certificate cannot make another one of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_stays_what_it_was_when_it_first_came() {
    let mut door = Door::open().await;
    let request = v1::GetNodeAdmissionRequest::default();
    let answer = guarded("an answer", door.fleet.get_node_admission(request)).await.expect("an operator may");
    let answer = answer.into_inner();
    assert_eq!((answer.mode(), answer.is_set), (v1::AdmissionMode::Pinned, false));
    assert_eq!(door.comes(&host_with("h1", devices("h100", 8))).await, None);
    // A device is taken out and put in again; one more is another matter.
    for (count, is_admitted) in [(7, true), (8, true), (9, false), (6, true), (8, true)] {
        let why = door.comes(&host_with("h1", devices("h100", count))).await;
        assert_eq!(why.is_none(), is_admitted, "{count}: {why:?}");
    }
    let evil = host_with("h1", |draft| {
        draft.accelerators = Some(muster_types::Accelerators { kind: name("b200"), count: 64 });
        draft.region = name("us-east");
    });
    assert!(door.comes(&evil).await.is_some());
    door.say("h1", Approval::ApproveAsIs(v1::ApproveAsIs {})).await.expect("it waits");
    assert_eq!(door.comes(&evil).await, None, "an operator has approved it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_is_revoked_ends_its_session_and_opens_no_other() {
    let world = World::with_tenants().await;
    let mut admin = ClusterAdminServiceClient::new(world.channel(Role::Admin(short("root"))).await);
    let agent = world.channel(Role::Agent(short("h1"))).await;
    let (_to_replica, mut of_agent) = session_of(&agent, &host("h1")).await.expect("it is admitted");
    let mut ada = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let watched = guarded("a watch", ada.watch_jobs(v1::WatchJobsRequest::default())).await;
    let mut watch = watched.expect("everybody may watch").into_inner();
    let mut bob = JobServiceClient::new(world.channel(of_tenant("speech", "bob")).await);
    for (number, role) in [Role::Agent(short("h1")), of_tenant("vision", "ada")].into_iter().enumerate() {
        let report = muster_transport::describe(&world.certificate(role)).expect("it was issued");
        let certificate = admin::RevokedCertificate {
            serial: report.serial,
            holder: role.to_string(),
            expire_time: Some(timestamp(u64::try_from(report.not_after_s).expect("it ends") * 1_000)),
        };
        let request = admin::RevokeCertificateRequest {
            request_id: format!("00000000-0000-4000-9000-{number:012}"),
            certificate: Some(certificate),
        };
        guarded("an answer", admin.revoke_certificate(request)).await.expect("an operator may");
    }
    guarded("the end of the session", async { while let Ok(Some(_)) = of_agent.message().await {} }).await;
    guarded("the end of the watch", async { while let Ok(Some(_)) = watch.message().await {} }).await;
    // The channels dial again with the same certificates, and are refused.
    assert!(session_of(&agent, &host("h1")).await.is_err());
    assert!(guarded("an answer", ada.list_jobs(v1::ListJobsRequest::default())).await.is_err());
    guarded("an answer", bob.list_jobs(v1::ListJobsRequest::default()))
        .await
        .expect("his is as good as before");
    let request = admin::ListRevokedCertificatesRequest {};
    let answer = guarded("a list", admin.list_revoked_certificates(request)).await.expect("an operator may");
    assert_eq!(answer.into_inner().certificates.len(), 2);
    // Another certificate for the same name is another certificate.
    let again = JobServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    guarded("an answer", again.clone().list_jobs(v1::ListJobsRequest::default())).await.expect("it is new");
}
