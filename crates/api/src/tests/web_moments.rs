//! Web pages of the past, the timeline, and plans.

use muster_engine::{HistorySettings, open_archive};

use super::web::{Answer, Pages, Site};
use super::*;

/// The pages of a replica that keeps an archive of its log, and the directory of that.
struct Historical {
    site: Site,
    _archive: tempfile::TempDir,
}

impl Historical {
    async fn start() -> Historical {
        let archive = tempfile::tempdir().expect("a directory can be made");
        let opened = open_archive(archive.path(), CLUSTER).expect("it opens");
        let mut settings = HistorySettings::new(Some(std::sync::Arc::new(opened)));
        settings.segment_age = Duration::from_millis(200);
        let engine = sample::leader().await;
        engine.keep_history(settings);
        let served = TestServer::of(engine).await;
        Historical { site: Site::of(served).await, _archive: archive }
    }

    fn pages(&self) -> &Pages {
        &self.site.pages
    }

    fn log_index(&self) -> LogIndex {
        self.site.served.engine.view().log_index()
    }

    /// Asks until the record is kept.
    async fn get_past(&self, path: &str) -> Answer {
        guarded(path, async {
            loop {
                let answer = self.pages().get(path).await;
                if !matches!(answer.status, 404 | 503) {
                    return answer;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_the_past_are_as_they_were_and_lead_on_within_it() {
    let historical = Historical::start().await;
    let first = historical.site.submit(1, "early", 1).await;
    let at = historical.log_index();
    let second = historical.site.submit(2, "late", 1).await;
    let jobs = historical.get_past(&format!("/jobs?tenant=lab&at={at}")).await;
    assert_eq!(jobs.status, 200, "{}", jobs.body);
    assert!(jobs.body.contains(&first) && !jobs.body.contains(&second), "{}", jobs.body);
    for text in [
        format!("as of index <b>{at}</b>"),
        format!("href=\"/jobs/{first}?at={at}\""),
        format!("href=\"/nodes?at={at}\""),
        "href=\"/jobs?tenant=lab\">Now".to_owned(),
        "1 h earlier".to_owned(),
        format!("<input type=\"hidden\" name=\"at\" value=\"{at}\">"),
    ] {
        assert!(jobs.body.contains(&text), "{text}: {}", jobs.body);
    }
    let missing = historical.pages().get(&format!("/jobs/{second}?at={at}")).await;
    assert_eq!(missing.status, 404, "it was not there: {}", missing.body);
    for path in ["/", "/queues", "/nodes", "/nodes/h1", "/fleet"] {
        let page = historical.get_past(&format!("{path}?at={at}")).await;
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        assert!(page.body.contains("This is the past"), "{path}");
    }
    let map = historical.get_past(&format!("/fleet/map?at={at}")).await;
    assert!(map.body.contains(&format!("\"logIndex\":{at}")), "{}", map.body);
    let records = historical.get_past(&format!("/events?at={at}")).await;
    for text in
        ["This is the past", "Records of the log up to this moment", &format!("href=\"/?at={at}\">{at}<")]
    {
        assert!(records.body.contains(text), "{text}: {}", records.body);
    }
    assert!(!records.body.contains("data-stream"), "nothing is live there: {}", records.body);
    let later = format!("href=\"/?at={}\"", historical.log_index());
    assert!(!records.body.contains(&later), "{later}: {}", records.body);
    let live = historical.pages().get(&format!("/cluster?at={at}")).await;
    assert_eq!(live.status, 400, "what is of the present alone has no past: {}", live.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_the_past_is_made_once_for_a_browser() {
    let historical = Historical::start().await;
    let at = historical.log_index();
    historical.site.submit(1, "train", 1).await;
    let path = format!("/jobs?at={at}");
    let page = historical.get_past(&path).await;
    assert!(page.head.contains("cache-control: private, no-cache"), "{}", page.head);
    let tag =
        page.head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("it has a tag").to_owned();
    let known = format!("if-none-match: {tag}\r\n");
    assert_eq!(historical.pages().ask("GET", &path, &known).await.status, 304);
    let other = historical.pages().ask("GET", &format!("/jobs?tenant=lab&at={at}"), &known).await;
    assert_eq!(other.status, 200, "another address has another tag");
    let now = historical.site.served.engine.log_time();
    let by_time = historical.get_past(&format!("/jobs?at={now}")).await;
    assert!(by_time.status == 200 && !by_time.head.contains("etag"), "{}", by_time.head);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_moments_get_a_page_that_says_what_is_there() {
    let historical = Historical::start().await;
    let before = historical.log_index();
    historical.site.submit(1, "train", 1).await;
    assert_eq!(historical.get_past(&format!("/jobs?at={before}")).await.status, 200, "the past is there");
    for (at, status, text) in [
        ("", 400, "<code>at</code> must be a time"),
        ("0", 400, "<code>at</code> must be a log index from 1 on"),
        ("-5", 400, "<code>at</code>"),
        ("tomorrow", 400, "<code>at</code>"),
        ("%3Cscript%3Ealert(1)%3C/script%3E", 400, "<code>at</code>"),
        ("99999999999999999999999", 400, "<code>at</code>"),
        ("1000000000", 400, "lies in the future"),
        ("2999-01-01T00:00:00Z", 400, "lies in the future"),
        ("1999-01-01T00:00:00Z", 404, "This replica has the records from"),
        ("1&at=2", 400, "<code>at</code> is given twice"),
    ] {
        let answer = historical.pages().get(&format!("/jobs?at={at}")).await;
        assert_eq!(answer.status, status, "{at}: {}", answer.body);
        assert!(answer.body.contains(text), "{at} should say {text}: {}", answer.body);
        assert!(!answer.body.contains("<script>"), "{at}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_archive_the_past_is_refused_with_the_reason() {
    let site = Site::start().await;
    site.submit(1, "train", 1).await;
    for path in ["/jobs?at=1", "/timeline"] {
        let answer = site.pages.get(path).await;
        assert!(matches!(answer.status, 404 | 503), "{path}: {} {}", answer.status, answer.body);
    }
    assert_eq!(site.pages.get("/jobs").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_timeline_shows_placements_by_node_and_by_job() {
    let historical = Historical::start().await;
    let id = historical.site.submit(1, "train", 6).await;
    historical.site.placed(&id).await;
    let link = format!("<a href=\"/jobs/{id}\" aria-label=\"train of lab, 6 devices, from ");
    let with_bar = |path: &'static str| {
        let (historical, link) = (&historical, link.clone());
        async move {
            guarded(path, async {
                loop {
                    let answer = historical.get_past(path).await;
                    if answer.body.contains(&link) {
                        return answer;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            })
            .await
        }
    };
    let by_node = with_bar("/timeline").await;
    assert_eq!(by_node.status, 200);
    assert!(
        by_node.body.contains("1 node, from") && by_node.body.contains("goes on</title>"),
        "{}",
        by_node.body
    );
    assert!(by_node.body.contains("<a href=\"/nodes/h1\">h1</a>"), "{}", by_node.body);
    let by_job = with_bar("/timeline?by=job&tenant=lab").await;
    assert!(by_job.body.contains("1 job, from"), "{}", by_job.body);
    for path in ["/timeline?tenant=other", "/timeline?node=h2", "/timeline?page=z"] {
        let none = historical.get_past(path).await;
        assert!(none.body.contains("Nothing was placed in this range"), "{path}: {}", none.body);
    }
    for (path, text) in [
        ("/timeline?by=user", "<code>by</code>"),
        ("/timeline?from=2999-01-01T00:00:00Z", "<code>from</code> must not lie in the future"),
        ("/timeline?from=1999-01-01T00:00:00Z", "<code>from</code> must be at most 31 days"),
        ("/timeline?to=%3Cscript%3E", "<code>to</code>"),
        ("/timeline?job=node-1", "<code>job</code>"),
        ("/timeline?tenant=%22%3E%3Cscript%3E", "<code>tenant</code>"),
        ("/timeline?at=1", "<code>at</code>"),
    ] {
        let answer = historical.pages().get(path).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.body);
        assert!(answer.body.contains(text) && !answer.body.contains("<script>"), "{path}: {}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_says_what_the_call_says_and_changes_nothing() {
    let site = Site::start().await;
    let before = site.served.engine.view().log_index();
    let fits = site.pages.get("/plan?accelerators=h100%3A2&workers=2&tenant=lab").await;
    assert_eq!(fits.status, 200, "{}", fits.body);
    assert!(fits.body.contains("It fits now") && fits.body.contains("/nodes/h1"), "{}", fits.body);
    let too_large = site.pages.get("/plan?accelerators=h100%3A8&workers=50").await;
    assert!(too_large.body.contains("It does not start now"), "{}", too_large.body);
    let file = "apiVersion%3A%20muster.dev%2Fv1%0Akind%3A%20Job%0Ametadata%3A%20%7Bname%3A%20a%7D%0Aspec%3A%20%7Bcommand%3A%20\
                %5B%22true%22%5D%2C%20accelerators%3A%20%22h100%3A1%22%7D%0A";
    let of_file = site.pages.get(&format!("/plan?accelerators=&file={file}")).await;
    assert!(of_file.body.contains("It fits now"), "{}", of_file.body);
    for (path, text) in [
        ("/plan?accelerators=h100", "must be a type and a count"),
        ("/plan?workers=many", "id=\"workers-error\""),
        ("/plan?limit=soon", "id=\"limit-error\""),
        ("/plan?tenant=%22%3E%3Cscript%3E", "id=\"tenant-error\""),
        ("/plan?file=%3C%2Ftextarea%3E%3Cscript%3E", "id=\"file-error\""),
        ("/plan?accelerators=h100%3A1&file=kind%3A%20Job", "must be left out"),
        ("/plan?x=1", "<code>x</code>"),
        ("/plan?at=1", "<code>at</code>"),
    ] {
        let answer = site.pages.get(path).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.body);
        assert!(answer.body.contains(text) && !answer.body.contains("<script>"), "{path}: {}", answer.body);
    }
    let long = site.pages.get(&format!("/plan?file={}", "x".repeat(17_000))).await;
    assert_eq!(long.status, 414);
    let posted = site.pages.ask("POST", "/plan", "content-length: 0\r\n").await;
    assert_eq!(posted.status, 405);
    let foreign = "sec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\n";
    let asked = site.pages.ask("GET", "/plan?accelerators=h100%3A1", foreign).await;
    assert_eq!(asked.status, 403, "another site takes no turns of its reader");
    assert_eq!(site.served.engine.view().log_index(), before, "nothing was changed");
}
