//! Lists are read page by page, none older than the one before it.

use crate::fake::{Fake, Step, endpoints, options};
use futures::{StreamExt as _, TryStreamExt as _};
use muster_client::{Client, Options, Pages, v1};
use muster_types::{Refusal, RefusalCode};
use muster_wire::status::to_status;
use tonic::Status;

fn page(names: &[&str], next: &str, (generation, log_index): (u32, u64)) -> v1::ListJobsResponse {
    let job = |name: &&str| v1::Job { name: (*name).to_owned(), ..Default::default() };
    v1::ListJobsResponse {
        jobs: names.iter().map(job).collect(),
        next_page_token: next.to_owned(),
        freshness: Some(v1::Freshness { generation, log_index, ..Default::default() }),
        resume_token: if next.is_empty() { "resume".to_owned() } else { String::new() },
        forecast: None,
    }
}

/// Pages of a client that does not ask for what it has seen by itself.
async fn pages(fakes: &[&Fake], request: v1::ListJobsRequest) -> Pages {
    let list: Vec<String> = fakes.iter().map(|fake| fake.endpoint()).collect();
    let options = Options { read_your_writes: false, ..options() };
    Client::connect(endpoints(&list), options).await.unwrap().job_pages(request)
}

/// Token and position of each request.
fn asked(fake: &Fake) -> Vec<(String, u32, u64)> {
    let lists = fake.script.lock().lists.clone();
    let position = |list: v1::ListJobsRequest| {
        let read = list.read.unwrap_or_default();
        (list.page_token, read.generation, read.min_log_index)
    };
    lists.into_iter().map(position).collect()
}

#[tokio::test]
async fn no_page_is_older_than_the_one_before_it_whichever_replica_has_it() {
    let first = Fake::start([Step::Answer, Step::Refuse(Status::unavailable("failover"))]);
    let second = Fake::start([]);
    first.script.lock().pages.push_back(page(&["c", "b"], "p2", (1, 40)));
    second.script.lock().pages.extend([page(&[], "p3", (1, 41)), page(&["a"], "", (1, 42))]);
    let request = v1::ListJobsRequest { page_size: 2, ..Default::default() };
    let mut pages = pages(&[&first, &second], request).await;
    let mut sizes = Vec::new();
    while let Some(page) = pages.next().await.unwrap() {
        sizes.push((page.items.len(), page.freshness.log_index, page.resume_token));
    }
    let none = String::new;
    assert_eq!(sizes, [(2, 40, none()), (0, 41, none()), (1, 42, "resume".to_owned())]);
    assert_eq!(asked(&first), [(none(), 0, 0), ("p2".to_owned(), 1, 40)]);
    assert_eq!(asked(&second), [("p2".to_owned(), 1, 40), ("p3".to_owned(), 1, 41)]);
    assert!(pages.next().await.unwrap().is_none() && pages.page_token().is_empty(), "it stays over");
}

#[tokio::test]
async fn a_later_generation_is_taken_as_it_is_and_a_higher_demand_stays() {
    for (demand, behind_the_first) in [((0, 0), (1, 40)), ((0, 50), (0, 50)), ((1, 50), (1, 50))] {
        let fake = Fake::start([]);
        let answers = [page(&[], "p2", (1, 40)), page(&[], "p3", (2, 70)), page(&[], "", (2, 71))];
        fake.script.lock().pages.extend(answers);
        let (generation, min_log_index) = demand;
        let read = v1::ReadOptions { generation, min_log_index, ..Default::default() };
        let request =
            v1::ListJobsRequest { page_token: "p1".to_owned(), read: Some(read), ..Default::default() };
        let mut pages = pages(&[&fake], request).await;
        while pages.next().await.unwrap().is_some() {}
        let expected = [("p1", demand), ("p2", behind_the_first), ("p3", (2, 70))];
        let expected = expected.map(|(token, (generation, index))| (token.to_owned(), generation, index));
        assert_eq!(asked(&fake), expected);
    }
}

#[tokio::test]
async fn a_stream_reads_a_page_when_the_one_before_it_is_taken_and_ends_with_an_error() {
    let refused = to_status(&Refusal::new(RefusalCode::PageTokenInvalid, "of another list"));
    let fake = Fake::start([Step::Answer, Step::Answer, Step::Refuse(refused)]);
    fake.script.lock().pages.extend([page(&["c", "b"], "p2", (1, 40)), page(&["a"], "p3", (1, 41))]);
    let mut jobs = Box::pin(pages(&[&fake], v1::ListJobsRequest::default()).await.into_stream());
    let mut names = Vec::new();
    for requests in [1, 1, 2] {
        names.push(jobs.try_next().await.unwrap().unwrap().name);
        assert_eq!(asked(&fake).len(), requests, "no more than one page is held");
    }
    assert_eq!(names, ["c", "b", "a"]);
    let error = jobs.try_next().await.unwrap_err();
    assert_eq!(error.refused().unwrap().code, Some(RefusalCode::PageTokenInvalid));
    assert!(jobs.next().await.is_none());
}
