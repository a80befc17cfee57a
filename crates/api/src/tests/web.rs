//! The web pages, through a real listener.

use muster_transport::{Expect, Role};
use muster_types::ReplicaId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::body::Body;
use tonic::codegen::Service;

use super::*;
use crate::access_tests::{self, World, short};
use crate::pages::serve_web;
use crate::web::{Timeouts, Web};

/// The pages of a replica on their own listener.
pub(super) struct Pages {
    pub(super) address: SocketAddr,
    pub(super) web: Web,
    /// The calls that were recorded as denied.
    recorded: tokio::sync::Mutex<crate::RecordedCalls>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An answer over HTTP/1.1.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl Pages {
    pub(super) async fn of(engine: muster_engine::Engine, security: Security) -> Pages {
        Pages::within(engine, security, Timeouts::DEFAULT).await
    }

    pub(super) async fn within(
        engine: muster_engine::Engine,
        security: Security,
        timeouts: Timeouts,
    ) -> Pages {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it has one");
        let metrics = muster_metrics::ReplicaMetrics::default();
        let (recorder, recorded) = crate::CallRecorder::queue();
        let shared = Shared::new(engine, ApiConfig::DEFAULT, security).recording(recorder);
        let web = Web::new(shared, timeouts);
        let serving = serve_web(web.clone(), metrics, listener, std::future::pending());
        let recorded = tokio::sync::Mutex::new(recorded);
        Pages { address, web, recorded, task: tokio::spawn(async move { drop(serving.await) }) }
    }

    pub(super) async fn ask(&self, method: &str, path: &str, more: &str) -> Answer {
        let host = self.address;
        self.send(&format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{more}\r\n"))
            .await
    }

    async fn send(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.expect("it listens");
        stream.write_all(request.as_bytes()).await.expect("it is taken");
        let mut answer = Vec::new();
        guarded("an answer", stream.read_to_end(&mut answer)).await.expect("it is whole");
        let answer = String::from_utf8(answer).expect("it is text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("it has a head");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("it has a status");
        Answer { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "").await
    }
}

/// A replica with host `h1` and its pages.
pub(super) struct Site {
    pub(super) served: TestServer,
    pub(super) pages: Pages,
    agent: (mpsc::Sender<agent::SessionRequest>, Streaming<agent::SessionResponse>),
}

impl Site {
    pub(super) async fn start() -> Site {
        Site::within(Timeouts::DEFAULT).await
    }

    pub(super) async fn within(timeouts: Timeouts) -> Site {
        Site::with(TestServer::start().await, timeouts).await
    }

    /// The pages of a replica that is there already.
    pub(super) async fn of(served: TestServer) -> Site {
        Site::with(served, Timeouts::DEFAULT).await
    }

    async fn with(served: TestServer, timeouts: Timeouts) -> Site {
        let agent = served.agent().await;
        let pages = Pages::within(served.engine.clone(), Security::Plaintext, timeouts).await;
        Site { served, pages, agent }
    }

    /// Submits a job that asks for this number of devices; its id.
    pub(super) async fn submit(&self, number: u32, name: &str, devices: u32) -> String {
        let mut request = submission(&format!("00000000-0000-4000-a000-{number:012}"), name);
        let group = &mut request.job.as_mut().expect("it has one").spec_mut().groups[0];
        group.resources_mut().accelerators.as_mut().expect("it asks for some").amount =
            Some(v1::accelerator_request::Amount::Count(devices));
        let taken =
            guarded("a submission", self.served.jobs().submit_job(request)).await.expect("it is taken");
        taken.into_inner().job_ids.remove(0)
    }

    pub(super) async fn placed(&self, id: &str) {
        let id: JobId = id.parse().expect("an id");
        guarded("a placement", async {
            while self.served.engine.view().job(id).is_none_or(|row| row.attempt == 0) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

/// What HTML makes of a text.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[tokio::test]
async fn every_page_says_which_state_it_is_of_and_keeps_everything_foreign_out() {
    let site = Site::start().await;
    let running = site.submit(1, "train", 6).await;
    site.placed(&running).await;
    site.submit(2, "wide", 4).await;
    let job = format!("/jobs/{running}");
    let plan = "/plan?accelerators=h100%3A2&workers=1";
    let paths = [
        "/",
        "/jobs",
        "/jobs?group=tier",
        &job,
        "/queues",
        "/nodes",
        "/nodes/h1",
        "/fleet",
        "/events",
        "/cluster",
        "/plan",
        plan,
    ];
    for path in paths {
        let answer = site.pages.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert!(answer.body.contains("As of log index <b>"), "{path}");
        assert!(
            answer.head.contains("content-security-policy: default-src 'none'; style-src 'self';"),
            "{path}"
        );
        for header in ["x-content-type-options: nosniff", "x-frame-options: deny", "cache-control: no-store"]
        {
            assert!(answer.head.contains(header), "{path}: {}", answer.head);
        }
        for inline in ["<style", " style=", "javascript:", " onclick=", "http://", "https://"] {
            assert!(!answer.body.contains(inline), "{path} has {inline}");
        }
        assert_eq!(answer.body.matches("<script").count(), 1, "{path} has one script, a file");
        assert_eq!(answer.body.matches("<h1>").count(), 1, "{path}");
    }
    let overview = site.pages.get("/").await.body;
    for text in ["it leads", "<th scope=\"row\">h100</th>", ">train</a>", ">wide</a>", "WAITING_FOR_CAPACITY"]
    {
        assert!(overview.contains(text), "{text}: {overview}");
    }
    let nodes = site.pages.get("/nodes").await.body;
    assert!(nodes.contains("/nodes/h1") && nodes.contains("8 × h100") && nodes.contains(&running), "{nodes}");
    let overview = site.pages.get("/").await.body;
    assert!(overview.contains("Error budgets") && overview.contains("99.95 %"), "{overview}");
    let map = site.pages.get("/fleet/map").await;
    assert!(map.head.contains("application/json"), "{}", map.head);
    assert!(map.body.contains("\"hosts\":[[\"h1\",\"bbbbbbff\"]]"), "{}", map.body);
    for (by, owner) in [("job", running.as_str()), ("tenant", "lab")] {
        let map = site.pages.get(&format!("/fleet/map?by={by}")).await.body;
        assert!(map.contains("[\"h1\",\"bbbbbbff\",[1,1,1,1,1,1,0,0]]"), "{map}");
        assert!(map.contains(&format!("\"owners\":[\"{owner}\"]")), "{map}");
    }
}

#[tokio::test]
async fn a_waiting_job_says_why_as_explain_does() {
    let site = Site::start().await;
    let running = site.submit(1, "train", 6).await;
    site.placed(&running).await;
    let waiting = site.submit(2, "wide", 4).await;
    let asked = v1::ExplainJobRequest { job_id: waiting.clone(), read: None };
    let explained = guarded("why", site.served.jobs().explain_job(asked)).await.expect("it is answered");
    let explained = explained.into_inner().explanation.expect("it says");
    let page = site.pages.get(&format!("/jobs/{waiting}")).await.body;
    assert!(page.contains("Why it waits"), "{page}");
    assert!(page.contains(&format!("<code>{}</code>", explained.reason)), "{page}");
    assert!(page.contains(&escaped(&explained.message)), "{} in {page}", explained.message);
    for remedy in &explained.remedies {
        assert!(page.contains(&escaped(&remedy.message)), "{} in {page}", remedy.message);
    }
    let page = site.pages.get(&format!("/jobs/{running}")).await.body;
    assert!(page.contains("What it does") && page.contains("/nodes/h1"), "{page}");
}

#[tokio::test]
async fn lists_are_narrowed_counted_and_paged() {
    let site = Site::start().await;
    for number in 0..105 {
        site.submit(number, if number % 2 == 0 { "even" } else { "odd" }, 8).await;
    }
    let first = site.pages.get("/jobs?tenant=lab&tier=standard&group=phase").await.body;
    assert!(first.contains("100 jobs, newest first"), "{first}");
    assert!(
        first.contains("Counted one by one: 105 jobs that match, among the newest 105 of the cluster"),
        "{first}"
    );
    let next = first.split("rel=\"next\" href=\"").nth(1).and_then(|rest| rest.split('"').next());
    let second = site.pages.get(&next.expect("there is a next page").replace("&amp;", "&")).await.body;
    assert!(second.contains("5 jobs, newest first") && !second.contains("rel=\"next\""), "{second}");
    let odd = site.pages.get("/jobs?name=odd").await.body;
    assert!(odd.contains("52 jobs, newest first"), "{odd}");
    let by_tenant = site.pages.get("/jobs?group=tenant").await.body;
    assert!(by_tenant.contains("From the index of jobs that are not over"), "{by_tenant}");
    for (address, caption, without) in [
        ("/jobs?group=label&label=team", "Jobs by label team", "without it, or empty"),
        ("/jobs?group=array", "Jobs by array", "in no array"),
        ("/jobs?group=creator", "Jobs by creator", "105 jobs that match"),
    ] {
        let counted = site.pages.get(address).await.body;
        assert!(counted.contains(caption) && counted.contains(without), "{address}: {counted}");
    }
    let none = site.pages.get("/jobs?region=elsewhere&labels=team%3Dvision").await.body;
    assert!(none.contains("No job matches"), "{none}");
}

#[tokio::test]
async fn bad_addresses_get_a_page_that_names_what_is_wrong() {
    let site = Site::start().await;
    let before = site.served.engine.view().log_index();
    let long = format!("/jobs?name={}", "x".repeat(17_000));
    let longish = format!("/jobs?name={}", "x".repeat(300));
    let (control, many) = ("/jobs?tenant=%00%0d%0aset-cookie:%20a=b", format!("/jobs?{}", "a=&".repeat(400)));
    let cases = [
        ("/jobs/job-zzzz", 404, "Not found"),
        ("/jobs/%FF%FE", 404, "Not found"),
        ("/jobs/..%2f..%2fetc", 404, "Not found"),
        ("/jobs/job-00000000000001", 404, "Not found"),
        ("/nodes/h2", 404, "there is no node &quot;h2&quot;"),
        ("/nodes/%3Cscript%3E", 404, "&lt;script&gt;"),
        ("/nothing", 404, "There is no such page"),
        ("/assets/../jobs", 404, "Not found"),
        ("/jobs?phase=running%3Cscript%3E", 400, "<code>phase</code> must be one or several of pending"),
        ("/jobs?tier=gold", 400, "<code>tier</code> must be one of free"),
        ("/jobs?group=user", 400, "<code>group</code>"),
        ("/jobs?group=label", 400, "<code>label</code> the key must be"),
        ("/jobs?group=label&label=%3Cb%3E", 400, "<code>label</code> the key must be"),
        ("/fleet/map?by=phase", 400, "<code>by</code> must be one of tenant, job"),
        ("/jobs?labels=team%3D%3D%3D", 400, "<code>labels</code>"),
        ("/jobs?page=zzz", 400, "<code>page</code>"),
        ("/jobs?tenant=a&tenant=b", 400, "<code>tenant</code> is given twice"),
        ("/jobs?tenant=%C3%28", 400, "<code>tenant</code> is no text in UTF-8"),
        ("/jobs?%3Cb%3E=1", 400, "<code>&lt;b&gt;</code>"),
        ("/?x=1", 400, "<code>x</code> is not one of at"),
        ("/events?x=1", 400, "<code>x</code> is not one of at"),
        ("/cluster?x=1", 400, "<code>x</code> is not known: this address has no parameters"),
        ("/jobs?tenant=lab&tier=gold", 400, "value=\"lab\""),
        ("/jobs?array=zzz", 400, "<code>array</code>"),
        ("/nodes?state=broken", 400, "<code>state</code> must be one of lost"),
        ("/events/stream?from=-1", 400, "<code>from</code>"),
        ("/jobs/job-1/output?rank=-1", 400, "<code>rank</code>"),
        ("/jobs/nothing/output", 404, "Not found"),
        ("/jobs?open=zzz", 400, "<code>open</code>"),
        ("/jobs?group=reason", 200, "Jobs by reason"),
        ("/nodes?page=zzz", 400, "<code>page</code>"),
        ("/queues?page=zzz", 400, "<code>page</code>"),
        (control, 200, "No job matches"),
        (&many, 400, "<code>a</code>"),
        (&long, 414, "This address is too long"),
        (&longish, 400, "<code>name</code>"),
    ];
    for (path, status, text) in cases {
        let answer = site.pages.get(path).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert!(answer.body.contains(text), "{path} should say {text}: {}", answer.body);
        assert!(!answer.body.contains("<script>") && !answer.head.contains("set-cookie"), "{path}");
        assert!(answer.head.contains("content-security-policy"), "{path}");
    }
    let form = site.pages.get("/jobs?tenant=lab&labels=a%3D%3D%3D").await.body;
    assert!(form.contains("aria-describedby=\"labels-error\"") && form.contains("value=\"lab\""), "{form}");
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"] {
        for path in ["/", "/jobs", "/nothing", "/events/stream", "/assets/page.js"] {
            let answer = site.pages.ask(method, path, "content-length: 0\r\n").await;
            assert_eq!(answer.status, 405, "{method} {path}");
            assert!(answer.head.contains("allow: get, head"), "{method} {path}: {}", answer.head);
        }
    }
    let head = site.pages.ask("HEAD", "/jobs", "").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(site.served.engine.view().log_index(), before, "nothing was changed");
}

#[tokio::test]
async fn without_certificates_the_pages_answer_no_foreign_name() {
    let site = Site::start().await;
    let by = |host: &'static str| {
        let pages = &site.pages;
        async move {
            pages.send(&format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")).await.status
        }
    };
    for host in ["localhost:7601", "127.0.0.1", "[::1]:7601", "10.1.2.3:80"] {
        assert_eq!(by(host).await, 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example:7601", "127.0.0.1.nip.io", "a b"] {
        assert_ne!(by(host).await, 200, "{host}");
    }
    let metrics = "GET /readyz HTTP/1.1\r\nhost: monitored.example\r\nconnection: close\r\n\r\n";
    assert_eq!(site.pages.send(metrics).await.status, 200, "probes come by any name");
}

#[tokio::test]
async fn files_are_served_once_and_then_known() {
    let site = Site::start().await;
    for (path, kind) in [
        ("/assets/page.css", "text/css"),
        ("/assets/page.js", "text/javascript"),
        ("/assets/icon.svg", "image/svg+xml"),
    ] {
        let answer = site.pages.get(path).await;
        assert_eq!(answer.status, 200);
        assert!(answer.head.contains(kind) && answer.head.contains("nosniff"), "{}", answer.head);
        let tag = answer
            .head
            .lines()
            .find_map(|line| line.strip_prefix("etag: "))
            .expect("it has a tag")
            .to_owned();
        let again = site.pages.ask("GET", path, &format!("if-none-match: {tag}\r\n")).await;
        assert_eq!((again.status, again.body.as_str()), (304, ""));
    }
}

#[tokio::test]
async fn events_come_live_and_go_on_behind_the_last_one() {
    let site = Site::start().await;
    let from = site.served.engine.view().log_index();
    let open = |more: String| async move {
        let mut stream = TcpStream::connect(site_address(&more)).await.expect("it listens");
        stream.write_all(more.as_bytes()).await.expect("it is taken");
        stream
    };
    let address = site.pages.address;
    let mut stream =
        open(format!("GET /events/stream?from={from} HTTP/1.1\r\nhost: {address}\r\n\r\n")).await;
    let mut told = String::new();
    until(&mut stream, &mut told, "the stream begins").await;
    assert!(told.contains("text/event-stream"), "{told}");
    let id = site.submit(1, "train", 1).await;
    until(&mut stream, &mut told, "\"state\":\"pending\"").await;
    until(&mut stream, &mut told, "\"state\":\"starting\"").await;
    assert!(told.contains(&format!("\"address\":\"/jobs/{id}\"")), "{told}");
    let first = told
        .split("\nid: ")
        .nth(1)
        .and_then(|rest| rest.split('\n').next())
        .expect("it has an id")
        .to_owned();
    let again = format!("GET /events/stream HTTP/1.1\r\nhost: {address}\r\nlast-event-id: {first}\r\n\r\n");
    let (mut stream, mut told) = (open(again).await, String::new());
    until(&mut stream, &mut told, "\"state\":\"starting\"").await;
    assert!(!told.contains("\"state\":\"pending\""), "it goes on behind the first: {told}");
    let page = site.pages.get("/events").await.body;
    assert!(page.contains(&id) && page.contains("data-stream=\"/events/stream?from="), "{page}");
}

/// The address that a request names as its host.
fn site_address(request: &str) -> SocketAddr {
    let host = request.split("host: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    host.and_then(|host| host.parse().ok()).expect("it names one")
}

async fn until(stream: &mut TcpStream, told: &mut String, text: &str) {
    guarded(text, async {
        let mut bytes = [0; 4096];
        while !told.contains(text) {
            let read = stream.read(&mut bytes).await.expect("it stands");
            assert!(read > 0, "it ended: {told}");
            told.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_idle_streams_take_as_many_places_as_there_are() {
    let site = Site::start().await;
    let address = site.pages.address;
    let request = format!("GET /events/stream HTTP/1.1\r\nhost: {address}\r\n\r\n");
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..1_000 {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(request.as_bytes()).await.expect("it is taken");
        let mut told = String::new();
        until(&mut stream, &mut told, "\r\n").await;
        match told.split(' ').nth(1) {
            Some("200") => open.push(stream),
            Some("503") => refused += 1,
            _ => panic!("{told}"),
        }
    }
    assert_eq!((open.len(), refused), (256, 744));
    assert_eq!(site.pages.get("/").await.status, 200, "pages are answered still");
    drop(open);
    guarded("a free place", async {
        while site.pages.ask("HEAD", "/events/stream", "").await.status != 200 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// The pages of a replica with certificates.
struct Guarded {
    world: World,
    pages: Pages,
}

impl Guarded {
    async fn start() -> Guarded {
        let world = World::start(ApiConfig::DEFAULT).await;
        let pages = Pages::of(world.engine.clone(), world.security(Role::Replica(ReplicaId(1)))).await;
        Guarded { world, pages }
    }

    /// A connection with the certificate of this role, and the address.
    async fn connect(&self, role: Role) -> (Channel, String) {
        let security = self.world.security(role);
        let address = security.address(&self.pages.address.to_string()).expect("an address");
        let endpoint = Endpoint::from_shared(address.clone()).expect("an address");
        let connected = endpoint.connect_with_connector(security.connector(Expect::AnyReplica));
        (guarded("a connection", connected).await.expect("a member connects"), address)
    }

    /// Asks with the certificate of this role; status and body.
    async fn get(&self, role: Role, path: &str) -> (u16, String) {
        let (mut channel, address) = self.connect(role).await;
        let answer = answer(&mut channel, &address, path).await;
        let status = answer.status().as_u16();
        let body = http_body_util::BodyExt::collect(answer.into_body());
        let body = guarded("a page", body).await.expect("it is whole").to_bytes();
        (status, String::from_utf8(body.to_vec()).expect("it is text"))
    }
}

/// Up to the beginning of the body.
async fn answer(channel: &mut Channel, address: &str, path: &str) -> http::Response<Body> {
    std::future::poll_fn(|context| channel.poll_ready(context)).await.expect("it stands");
    let request = http::Request::get(format!("{address}{path}")).body(Body::empty()).expect("a request");
    guarded("an answer", channel.call(request)).await.expect("it is answered")
}

/// Of each address in the list of pages, so that a new page is tried as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_by_every_role_of_own_foreign_and_absent_objects() {
    let guarded_site = Guarded::start().await;
    let of = |tenant, user| Role::TenantClient { tenant: short(tenant), user: short(user) };
    let own = guarded_site.world.job_of("vision").await;
    let mut jobs = JobServiceClient::new(guarded_site.world.channel(of("speech", "bob")).await);
    let taken = guarded("a submission", jobs.submit_job(access_tests::submission("speech", 1))).await;
    let foreign = taken.expect("it is taken").into_inner().job_ids.remove(0);
    let objects = [(own.as_str(), "h1"), (foreign.as_str(), "h1"), ("job-00000000000009", "h9")];
    // Whether it reads pages, and the output of workers of vision, of speech, and of a job that is not there.
    for (role, reads, reads_output) in [
        (Role::Replica(ReplicaId(2)), false, [false; 3]),
        (Role::Agent(short("h1")), false, [false; 3]),
        (Role::AgentGroup(short("slurm")), false, [false; 3]),
        (Role::Client(short("eve")), true, [false, false, true]),
        (of("vision", "ada"), true, [true, false, true]),
        (Role::AllTenants(short("ops")), true, [true; 3]),
        (Role::Admin(short("root")), true, [true; 3]),
    ] {
        let (mut channel, address) = guarded_site.connect(role).await;
        for page in crate::web::PAGES.map(|page| page.trim_start_matches("GET ")) {
            if ["/metrics", "/livez", "/readyz"].contains(&page) {
                continue;
            }
            let (has_object, is_output) = (page.contains('{'), page.ends_with("/output"));
            let tried = if has_object { &objects[..] } else { &objects[..1] };
            for (which, (job, node)) in tried.iter().enumerate() {
                let may = reads && (!is_output || reads_output[which]);
                let is_absent = has_object && which == 2;
                // No agent is here that would have an output.
                if is_output && may && !is_absent {
                    continue;
                }
                let path = page.replace("{id}", job).replace("{name}", node);
                let status = answer(&mut channel, &address, &path).await.status().as_u16();
                assert_eq!(status == 403, !may, "{role} {path}: {status}");
                assert_eq!(status == 404, may && is_absent, "{role} {path}: {status}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_of_a_node_are_named_to_those_who_act_for_the_whole_cluster() {
    use v1::watch_nodes_response::Event;
    let guarded_site = Guarded::start().await;
    let register = muster_decider::Command::Register {
        spec: access_tests::host("h1"),
        holder: muster_types::HolderId(1),
        other_session_is_over: false,
    };
    guarded_site.world.engine.execute(register).await.expect("a host comes");
    let fleet = async |role: Role| FleetServiceClient::new(guarded_site.world.channel(role).await);
    let cordon = v1::CordonNodeRequest {
        request_id: "00000000-0000-4000-e000-000000000001".to_owned(),
        node: "h1".to_owned(),
        reason: "power work".to_owned(),
    };
    let mut operator = fleet(Role::Admin(short("grace"))).await;
    guarded("a cordon", operator.cordon_node(cordon)).await.expect("an operator may");
    for (role, names) in [
        (Role::Admin(short("root")), true),
        (Role::AllTenants(short("ops")), true),
        (Role::TenantClient { tenant: short("vision"), user: short("ada") }, false),
        (Role::Client(short("eve")), false),
    ] {
        let (status, page) = guarded_site.get(role, "/nodes/h1").await;
        assert_eq!((status, page.contains("admin/grace")), (200, names), "{role}: {page}");
        assert!(page.contains("power work"), "{role}: {page}");
        let mut fleet = fleet(role).await;
        let get = v1::GetNodeRequest { node: "h1".to_owned(), ..Default::default() };
        let got = guarded("a node", fleet.get_node(get)).await.expect("every user may look");
        let listed = guarded("a list", fleet.list_nodes(v1::ListNodesRequest::default())).await;
        let listed = listed.expect("every user may look").into_inner().nodes;
        let watch = guarded("a watch", fleet.watch_nodes(v1::WatchNodesRequest::default())).await;
        let mut watch = watch.expect("every user may look").into_inner();
        let present = guarded("the present", watch.message()).await.expect("it stands").expect("an event");
        let Some(Event::Changed(watched)) = present.event else { panic!("{present:?}") };
        for node in got.into_inner().node.into_iter().chain(listed).chain([watched]) {
            let said = node.cordon_reason.expect("it is cordoned");
            assert_eq!(said.creator.as_str(), if names { "admin/grace" } else { "" }, "{role}");
            assert_eq!(said.reason, "power work");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_shows_what_the_calls_show_to_the_same_certificate() {
    let guarded_site = Guarded::start().await;
    let register = muster_decider::Command::Register {
        spec: access_tests::host("h1"),
        holder: muster_types::HolderId(1),
        other_session_is_over: false,
    };
    guarded_site.world.engine.execute(register).await.expect("a host comes");
    let vision = Role::TenantClient { tenant: short("vision"), user: short("ada") };
    let speech = Role::TenantClient { tenant: short("speech"), user: short("eve") };
    let mut request = access_tests::submission("vision", 1);
    let job = request.job.as_mut().expect("it has one");
    job.annotations = [("note".to_owned(), "hunter2".to_owned())].into();
    let group = &mut job.spec_mut().groups[0];
    group.set_variable("KEY", "hunter2 <script>alert(1)</script>");
    *group.command_mut() = vec!["echo".to_owned(), "hunter2".to_owned()];
    let channel = guarded_site.world.channel(vision).await;
    let taken = guarded("a submission", JobServiceClient::new(channel).submit_job(request)).await;
    let id = taken.expect("it is taken").into_inner().job_ids.remove(0);
    let schedule = v1::Schedule {
        tenant: "vision".to_owned(),
        name: "nightly".to_owned(),
        cron: "0 6 * * 1-5".to_owned(),
        time_zone: "Europe/Berlin".to_owned(),
        job: access_tests::submission("vision", 2).job,
        ..Default::default()
    };
    let request_id = "00000000-0000-4000-e000-000000000001".to_owned();
    let request = v1::CreateScheduleRequest { request_id, schedule: Some(schedule) };
    let channel = guarded_site.world.channel(vision).await;
    let mut schedules = v1::schedule_service_client::ScheduleServiceClient::new(channel);
    guarded("a schedule", schedules.create_schedule(request)).await.expect("it is made");
    let path = format!("/jobs/{id}");
    for (role, secrets) in [
        (vision, 3),
        (Role::AllTenants(short("ops")), 3),
        (Role::Admin(short("root")), 3),
        (speech, 0),
        (Role::Client(short("eve")), 0),
    ] {
        let (status, page) = guarded_site.get(role, &path).await;
        assert_eq!(status, 200, "{role}: {page}");
        assert_eq!(page.matches("hunter2").count(), secrets, "{role}: {page}");
        assert_eq!(page.contains("<code>redacted</code>"), secrets == 0, "{role}");
        assert!(!page.contains("<script>alert"), "{role}");
        let (status, page) = guarded_site.get(role, "/queues").await;
        assert_eq!((status, page.contains("nightly")), (200, secrets > 0), "{role}: {page}");
        if secrets == 0 {
            let (status, page) = guarded_site.get(role, &format!("{path}/output")).await;
            assert_eq!(status, 403, "{role} may not read what workers write: {page}");
            let (_, page) = guarded_site.get(role, &path).await;
            assert!(!page.contains("worker-output"), "{role}: {page}");
        }
        for path in ["/", "/jobs", "/events"] {
            let (status, page) = guarded_site.get(role, path).await;
            assert_eq!((status, page.contains("hunter2")), (200, false), "{role} {path}");
        }
    }
    for role in [Role::Agent(short("h1")), Role::AgentGroup(short("slurm")), Role::Replica(ReplicaId(2))] {
        for path in [
            "/",
            "/jobs",
            path.as_str(),
            "/queues",
            "/nodes",
            "/fleet",
            "/fleet/map",
            "/events",
            "/events/stream",
            "/timeline",
            "/plan",
            "/plan?accelerators=h100%3A1",
            "/nothing",
        ] {
            let (status, page) = guarded_site.get(role, path).await;
            assert_eq!(status, 403, "{role} {path}: {page}");
            assert!(!page.contains(&id), "{role} {path}");
        }
    }
    let (status, _) = guarded_site.get(vision, "/jobs/job-00000000000009").await;
    assert_eq!(status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_is_denied_is_recorded_as_denied_calls_are() {
    let guarded_site = Guarded::start().await;
    let id = guarded_site.world.job_of("vision").await;
    let (own, output) = (format!("/jobs/{id}"), format!("/jobs/{id}/output"));
    let of = |tenant, user| Role::TenantClient { tenant: short(tenant), user: short(user) };
    let agent = Role::Agent(short("h1"));
    for (role, path, status) in [
        (of("vision", "ada"), own.as_str(), 200),
        (of("vision", "ada"), "/jobs/job-00000000000009", 404),
        (of("vision", "ada"), "/nothing", 404),
        (Role::Client(short("eve")), output.as_str(), 403),
        (of("speech", "bob"), output.as_str(), 403),
        (agent, "/nodes/h1", 403),
        (agent, "/nothing", 403),
        (agent, "/metrics", 403),
        (agent, "/livez", 200),
    ] {
        let (answered, page) = guarded_site.get(role, path).await;
        assert_eq!(answered, status, "{role} {path}: {page}");
    }
    let mut recorded = guarded_site.pages.recorded.lock().await;
    for (caller, call, reason) in [
        ("client/eve", "GET /jobs/{id}/output", "may not read the output of workers"),
        ("tenant/speech/bob", "GET /jobs/{id}/output", "not for vision"),
        ("agent/h1", "GET /nodes/{name}", "may not read what the pages show"),
        ("agent/h1", "GET (another address)", "may not read what the pages show"),
        ("agent/h1", "GET /metrics", "may not read this page"),
    ] {
        let told = recorded.waiting().expect("it is recorded");
        assert_eq!((told.caller.to_string().as_str(), told.call), (caller, call), "{told:?}");
        assert_eq!(told.code, "PERMISSION_DENIED", "{told:?}");
        assert!(told.reason.contains(reason) && told.address.is_loopback(), "{told:?}");
    }
    assert_eq!(recorded.waiting(), None, "what is shown, or not there, is not denied");
}

#[tokio::test]
async fn every_answer_has_the_headers_and_other_sites_have_none() {
    let site = Site::start().await;
    for path in ["/metrics", "/livez", "/readyz", "/", "/assets/page.css", "/nothing"] {
        let head = site.pages.get(path).await.head;
        assert!(head.contains("content-security-policy") && head.contains("nosniff"), "{path}: {head}");
    }
    let from = |site: &str, mode: &str| format!("sec-fetch-site: {site}\r\nsec-fetch-mode: {mode}\r\n");
    for (of, mode, status) in [
        ("cross-site", "no-cors", 403),
        ("same-site", "cors", 403),
        ("cross-site", "navigate", 200),
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
    ] {
        let answer = site.pages.ask("GET", "/fleet/map", &from(of, mode)).await;
        assert_eq!(answer.status, status, "{of} {mode}");
    }
}

#[tokio::test]
async fn a_map_is_sent_once_for_each_state() {
    let site = Site::start().await;
    let first = site.pages.get("/fleet/map").await;
    let tag = first.head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("it has a tag");
    let cluster = site.served.engine.view().cluster().expect("it is founded").cluster;
    assert!(tag.contains(&cluster.to_string()) && tag.contains(env!("CARGO_PKG_VERSION")), "{tag}");
    let known = format!("if-none-match: {tag}\r\n");
    assert_eq!(site.pages.ask("GET", "/fleet/map", &known).await.status, 304);
    site.submit(1, "train", 1).await;
    assert_eq!(site.pages.ask("GET", "/fleet/map", &known).await.status, 200);
}

#[tokio::test]
async fn numbers_lead_to_lists_of_what_they_count() {
    let site = Site::start().await;
    let running = site.submit(1, "train", 6).await;
    site.placed(&running).await;
    site.submit(2, "wide", 4).await;
    let overview = site.pages.get("/").await.body;
    for part in overview.split("<ul class=\"numbers\">").nth(1).expect("it has numbers").split("<li>").skip(1)
    {
        let Some(number) = part.split("class=\"value\">").nth(1).and_then(|rest| rest.split('<').next())
        else {
            panic!("no number: {part}")
        };
        let path =
            part.split("href=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("it is a link");
        let list = site.pages.get(&path.replace("&amp;", "&")).await.body;
        let (jobs, nodes) = (
            list.matches("<a href=\"/jobs/job-").count(),
            list.matches("<th scope=\"row\"><a href=\"/nodes/").count(),
        );
        match path.split('?').next() {
            Some("/jobs") => assert_eq!(jobs.to_string(), number, "{path}: {list}"),
            Some("/nodes") => assert_eq!(nodes.to_string(), number, "{path}: {list}"),
            _ => assert_eq!(path, "/queues"),
        }
    }
}

#[tokio::test]
async fn devices_of_another_scheduler_are_not_at_fault() {
    let site = Site::start().await;
    let load = v1::ForeignLoad { devices: vec![6, 7], ..Default::default() };
    let message = Some(session_request::Message::ForeignLoad(load));
    site.agent.0.send(agent::SessionRequest { message }).await.expect("it is taken");
    guarded("the load of others", async {
        while site.served.engine.view().restrictions().next().is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let map = site.pages.get("/fleet/map").await.body;
    assert!(map.contains("[\"h1\",\"ffffffoo\"]"), "{map}");
    let overview = site.pages.get("/").await.body;
    assert!(overview.contains("0 of 8 busy, 2 held by others, 0 unavailable"), "{overview}");
    let fleet = site.pages.get("/fleet").await.body;
    assert!(fleet.contains("Held by others"), "{fleet}");
}

#[tokio::test]
async fn a_replica_without_a_state_warns_on_every_page() {
    let engine = crate::sample::engine_alone().await;
    let pages = Pages::of(engine, Security::Plaintext).await;
    for path in ["/", "/fleet", "/events"] {
        let answer = pages.get(path).await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.body.contains("is not ready: no state"), "{path}: {}", answer.body);
    }
    // A list has nothing to say yet.
    assert_eq!(pages.get("/jobs").await.status, 503);
}

#[tokio::test]
async fn members_of_arrays_have_pages_before_they_are_created() {
    let site = Site::start().await;
    let mut request = submission("00000000-0000-4000-a000-000000000077", "sweep");
    request.job.as_mut().expect("it has one").spec_mut().array =
        Some(v1::JobArray { size: 5, throttle: Some(1), ..Default::default() });
    let taken = guarded("a submission", site.served.jobs().submit_job(request)).await.expect("it is taken");
    let last = taken.into_inner().job_ids.pop().expect("it has members");
    let asked = v1::GetJobRequest { job_id: last.clone(), read: None };
    let shown =
        guarded("the job", site.served.jobs().get_job(asked)).await.expect("it is there").into_inner();
    let status = shown.job.and_then(|job| job.status).expect("it has one");
    let page = site.pages.get(&format!("/jobs/{last}")).await;
    assert_eq!(page.status, 200, "{}", page.body);
    assert!(page.body.contains(&status.reason), "{} in {}", status.reason, page.body);
    assert!(
        page.body.contains("not created yet") && page.body.contains("/jobs?array=array-"),
        "{}",
        page.body
    );
    let overview = site.pages.get("/").await.body;
    assert!(
        overview.contains("of the pending jobs are members of arrays that are not created yet"),
        "{overview}"
    );
    let of_array = page.body.split("href=\"/jobs?array=").nth(1).and_then(|rest| rest.split('"').next());
    let list = site.pages.get(&format!("/jobs?array={}", of_array.expect("a link"))).await;
    assert!(list.status == 200 && list.body.contains("1 job, newest first"), "{}", list.body);
}
