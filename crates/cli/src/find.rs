//! Which job is meant by an id or by a name.

use muster_client::Client;
use muster_console::{Exit, Failure};
use muster_types::{JobId, Name};
use muster_wire::v1;

use crate::view::has_ended;

/// Which of several jobs of a name is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Find {
    /// The one that has not ended, else the newest that has.
    Newest,
    /// The one that has not ended: the command changes it.
    Active,
}

/// Jobs that a refusal names, of those that have a name in common.
const NAMESAKES_SHOWN_MAX: usize = 8;

/// The id that is meant by an id or by a name. A name stands for a job when no other job that has not ended has it.
pub async fn resolve(client: &Client, text: &str, find: Find) -> Result<String, Failure> {
    let text = text.trim();
    let error = match text.parse::<JobId>() {
        Ok(id) => return Ok(id.to_string()),
        Err(error) => error,
    };
    let shown: String = text.chars().take(80).collect();
    let hint = format!("find the id with: muster job list --all --name {shown}");
    let no_id = || Failure::usage(format!("{shown:?} is no job id: {error}")).with_next(hint.clone());
    if Name::new(text).is_none() {
        return Err(no_id());
    }
    let mut named: Vec<v1::Job> = Vec::new();
    let mut request = v1::ListJobsRequest {
        page_size: 1_000,
        filter: Some(v1::JobFilter { name_prefix: text.to_owned(), ..Default::default() }),
        ..Default::default()
    };
    loop {
        let page = client.list_jobs(request.clone()).await?;
        named.extend(page.jobs.into_iter().filter(|job| job.name == text));
        if page.next_page_token.is_empty() || page.next_page_token == request.page_token {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let active: Vec<&v1::Job> = named.iter().filter(|job| !has_ended(job.phase())).collect();
    match (active.as_slice(), named.first()) {
        ([job], _) => Ok(job.id.clone()),
        ([], Some(newest)) if find == Find::Newest => Ok(newest.id.clone()),
        ([], Some(_)) => Err(Failure::new(Exit::Conflict, format!("every job named {shown} has ended"))),
        ([], None) => {
            Err(Failure::new(Exit::NotFound, format!("there is no job {shown:?}, by id or by name"))
                .with_next(hint.clone()))
        }
        (several, _) => {
            let ids = several.iter().take(NAMESAKES_SHOWN_MAX).map(|job| job.id.as_str());
            let ids = ids.collect::<Vec<_>>().join(" ");
            let text = format!("{} jobs named {shown} have not ended; name one by its id", several.len());
            Err(Failure::usage(text).with_details([ids]).with_next(hint.clone()))
        }
    }
}

/// Each id once, in the order given.
pub async fn all_resolved(client: &Client, texts: &[String], find: Find) -> Result<Vec<String>, Failure> {
    let mut all: Vec<String> = Vec::with_capacity(texts.len());
    for text in texts {
        let id = resolve(client, text, find).await?;
        if !all.contains(&id) {
            all.push(id);
        }
    }
    Ok(all)
}
