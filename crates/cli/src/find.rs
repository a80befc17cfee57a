//! Which jobs and arrays are meant by ids, by names, and by members in brackets: `array-3f0[1-5,7]`.

use muster_client::Client;
use muster_console::{Exit, Failure};
use muster_types::array::{ARRAY_RULE, IndexRange, indices};
use muster_types::{ArrayId, ArraySpec, JobId, Name, limits};
use muster_wire::time::unix_ms;
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

/// What a text means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// One job, by its id or its name.
    Job(String),
    /// One array as a whole.
    Array(String),
    /// Some members of an array, in their order: the ids of their jobs.
    Members(Vec<String>),
}

/// Jobs that a refusal names, of those that have a name in common.
const NAMESAKES_SHOWN_MAX: usize = 8;
/// What the server gives of a list at most at once.
const PAGE_SIZE: u32 = 1_000;

/// What is meant by an id, by a name, or by members in brackets behind an array's id or name. A name stands for an array or
/// a job when no other one that has not ended has it.
pub async fn find(client: &Client, text: &str, find: Find) -> Result<Found, Failure> {
    let text = text.trim();
    if let Some((array, brackets)) = text.strip_suffix(']').and_then(|text| text.split_once('[')) {
        let id = match find_whole(client, array, find).await? {
            Found::Array(id) => id,
            Found::Job(id) => return Err(Failure::usage(format!("{id} is no array, and has no members"))),
            Found::Members(_) => return Err(Failure::usage(format!("{text:?} names members of members"))),
        };
        return members(client, &id, brackets).await.map(Found::Members);
    }
    find_whole(client, text, find).await
}

async fn find_whole(client: &Client, text: &str, find: Find) -> Result<Found, Failure> {
    if let Ok(id) = text.parse::<ArrayId>() {
        return Ok(Found::Array(id.to_string()));
    }
    if let Ok(id) = text.parse::<JobId>() {
        return Ok(Found::Job(id.to_string()));
    }
    if Name::new(text).is_none() {
        return Err(neither(text));
    }
    by_name(client, text, find, format!("find the id with: muster job list --all --name {text}")).await
}

/// No job can be called so, and a list would find nothing.
fn neither(text: &str) -> Failure {
    let shown: String = text.chars().take(80).collect();
    Failure::usage(format!("{shown:?} is neither an id, like job-3f0 or array-3f0, nor a name")).with_next(
        "muster job list shows ids and names; members of an array are named like 'array-3f0[1-5,7]'",
    )
}

/// What a name stands for: the one array or job of the name that has not ended, else the newest that has.
async fn by_name(client: &Client, name: &str, find: Find, hint: String) -> Result<Found, Failure> {
    let mut arrays = all_arrays(client, named(name)).await?.0;
    arrays.retain(|array| array.name == name);
    let jobs = single_jobs(client, name, !arrays.is_empty()).await?;
    let active_arrays = arrays.iter().filter(|array| array.end_time.is_none()).map(|array| array.id.clone());
    let active_jobs = jobs.iter().filter(|job| !has_ended(job.phase())).map(|job| job.id.clone());
    let active: Vec<Found> = active_arrays.map(Found::Array).chain(active_jobs.map(Found::Job)).collect();
    let newest_array =
        arrays.first().map(|array| (unix_ms(array.create_time), Found::Array(array.id.clone())));
    let newest_job = jobs.first().map(|job| (unix_ms(job.status().create_time), Found::Job(job.id.clone())));
    let newest = [newest_array, newest_job].into_iter().flatten().max_by_key(|(at, _)| *at);
    match (active.as_slice(), newest) {
        ([one], _) => Ok(one.clone()),
        ([], Some((_, newest))) if find == Find::Newest => Ok(newest),
        ([], Some(_)) => {
            Err(Failure::new(Exit::Conflict, format!("every job named {name} has ended")).with_next(hint))
        }
        ([], None) => {
            let text = format!("there is no job or array {name:?}, by id or by name");
            Err(Failure::new(Exit::NotFound, text).with_next(hint))
        }
        (several, _) => {
            let ids = several.iter().take(NAMESAKES_SHOWN_MAX).map(|found| match found {
                Found::Job(id) | Found::Array(id) => id.as_str(),
                Found::Members(_) => "",
            });
            let ids = ids.collect::<Vec<_>>().join(" ");
            let what = if arrays.is_empty() { "jobs" } else { "jobs and arrays" };
            let text = format!("{} {what} named {name} have not ended; name one by its id", several.len());
            Err(Failure::usage(text).with_details([ids]).with_next(hint))
        }
    }
}

/// Every array that a filter passes, newest first.
pub async fn all_arrays(
    client: &Client,
    filter: v1::JobFilter,
) -> Result<(Vec<v1::Array>, Option<v1::Freshness>), Failure> {
    newest_arrays(client, filter, usize::MAX).await
}

/// The newest of them, up to a limit.
pub async fn newest_arrays(
    client: &Client,
    filter: v1::JobFilter,
    limit: usize,
) -> Result<(Vec<v1::Array>, Option<v1::Freshness>), Failure> {
    let page_size = u32::try_from(limit).map_or(PAGE_SIZE, |limit| limit.min(PAGE_SIZE));
    let mut request = v1::ListArraysRequest { page_size, filter: Some(filter), ..Default::default() };
    let (mut arrays, mut freshness) = (Vec::new(), None);
    loop {
        let page = client.list_arrays(request.clone()).await?;
        freshness = freshness.or(page.freshness);
        arrays.extend(page.arrays);
        let is_last = page.next_page_token.is_empty() || page.next_page_token == request.page_token;
        if is_last || arrays.len() >= limit {
            arrays.truncate(limit);
            return Ok((arrays, freshness));
        }
        request.page_token = page.next_page_token;
    }
}

fn named(name: &str) -> v1::JobFilter {
    v1::JobFilter { name_prefix: name.to_owned(), ..Default::default() }
}

/// Jobs of a name that are no members of an array, newest first. Where there is an array of the name, only those that have not ended:
/// its members have the name as well, and may be a hundred thousand.
async fn single_jobs(client: &Client, name: &str, has_array: bool) -> Result<Vec<v1::Job>, Failure> {
    use v1::JobPhase::{Pending, Running, Starting, Stopping};
    let active = [Pending, Starting, Running, Stopping].map(i32::from).to_vec();
    let phases = if has_array { active } else { Vec::new() };
    let filter = v1::JobFilter { phases, ..named(name) };
    let jobs = listed(client, filter, v1::JobView::Basic).await?;
    Ok(jobs.into_iter().filter(|job| job.name == name && (job.array.is_none() || !has_array)).collect())
}

/// Every job that a filter passes, newest first.
pub async fn listed(
    client: &Client,
    filter: v1::JobFilter,
    view: v1::JobView,
) -> Result<Vec<v1::Job>, Failure> {
    let mut request = v1::ListJobsRequest {
        page_size: PAGE_SIZE,
        filter: Some(filter),
        view: view.into(),
        ..Default::default()
    };
    let mut jobs = Vec::new();
    loop {
        let page = client.list_jobs(request.clone()).await?;
        jobs.extend(page.jobs);
        if page.next_page_token.is_empty() || page.next_page_token == request.page_token {
            return Ok(jobs);
        }
        request.page_token = page.next_page_token;
    }
}

/// The jobs of members that are named by their indices.
async fn members(client: &Client, array_id: &str, brackets: &str) -> Result<Vec<String>, Failure> {
    let wrong = |text: String| {
        Failure::usage(format!("[{brackets}]: {text}"))
            .with_next(format!("muster job array show {array_id}  shows its indices"))
    };
    // `[7]` is a member and not seven of them.
    let wanted =
        indices(brackets).map_err(|error| wrong(error.replace(ARRAY_RULE, "indices are like 1-5,7")))?;
    let request = v1::GetArrayRequest { array_id: array_id.to_owned(), read: None };
    let array = client.get_array(request).await?.array.unwrap_or_default();
    let first: ArrayId = array
        .id
        .parse()
        .map_err(|_| Failure::new(Exit::Failed, format!("the server calls {array_id} {:?}", array.id)))?;
    let ordinals = ordinals(&spec_of(&array), &wanted).map_err(wrong)?;
    Ok(ordinals.into_iter().map(|ordinal| first.member(ordinal).to_string()).collect())
}

/// The members that an array has, by its message.
pub fn spec_of(array: &v1::Array) -> ArraySpec {
    let members = array.array.clone().unwrap_or_default();
    match indices(&members.indices) {
        Ok(ranges) => ArraySpec { ranges, throttle: members.throttle },
        Err(_) => ArraySpec { throttle: members.throttle, ..ArraySpec::of_size(array.size) },
    }
}

/// Ordinals of the members with these indices, ascending. A range stands for those of its indices that the array has.
fn ordinals(array: &ArraySpec, wanted: &[IndexRange]) -> Result<Vec<u32>, String> {
    let covers = |range: &IndexRange, index: u32| {
        (range.first..=range.last).contains(&index) && (index - range.first).is_multiple_of(range.step.max(1))
    };
    let mut has_members = vec![false; wanted.len()];
    let mut found = Vec::new();
    let size = array.size().min(limits::ARRAY_MEMBERS_MAX);
    for (ordinal, index) in
        (0..size).filter_map(|ordinal| array.index_of(ordinal).map(|index| (ordinal, index)))
    {
        let mut is_wanted = false;
        for (range, has) in wanted.iter().zip(&mut has_members) {
            let covered = covers(range, index);
            *has |= covered;
            is_wanted |= covered;
        }
        if is_wanted {
            found.push(ordinal);
        }
    }
    match wanted.iter().zip(has_members).find(|(_, has)| !has) {
        Some((range, _)) => Err(format!("the array has no member with the index {range}")),
        None => Ok(found),
    }
}

/// The one job that is meant, for commands that are about one job.
pub async fn resolve(client: &Client, text: &str, how: Find) -> Result<String, Failure> {
    one_job(text, find(client, text, how).await?)
}

/// The one job that a text was found to mean.
pub fn one_job(text: &str, found: Found) -> Result<String, Failure> {
    match found {
        Found::Job(id) => Ok(id),
        Found::Array(id) => Err(is_array(&id)),
        Found::Members(ids) => match ids.as_slice() {
            [one] => Ok(one.clone()),
            several => {
                Err(Failure::usage(format!("{text} are {} jobs, and this is about one", several.len())))
            }
        },
    }
}

fn is_array(id: &str) -> Failure {
    Failure::usage(format!("{id} is an array, and this is about single jobs"))
        .with_details([format!("a member is named by its index: '{id}[7]'")])
        .with_next(format!("muster job array show {id}"))
}

/// Jobs and arrays that are meant by several texts, each once and in the order given.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Targets {
    pub arrays: Vec<String>,
    pub jobs: Vec<String>,
    /// Jobs that were named by their indices: those that cannot be asked are passed over.
    pub members: Vec<String>,
}

/// What is meant by several texts.
pub async fn targets(client: &Client, texts: &[String], how: Find) -> Result<Targets, Failure> {
    let mut targets = Targets::default();
    let mut seen = std::collections::BTreeSet::new();
    for text in texts {
        let (ids, list) = match find(client, text, how).await? {
            Found::Job(id) => (vec![id], &mut targets.jobs),
            Found::Array(id) => (vec![id], &mut targets.arrays),
            Found::Members(ids) => (ids, &mut targets.members),
        };
        list.extend(ids.into_iter().filter(|id| seen.insert(id.clone())));
    }
    Ok(targets)
}

/// Single jobs that are meant by several texts.
pub async fn all_resolved(client: &Client, texts: &[String], how: Find) -> Result<Vec<String>, Failure> {
    let Targets { arrays, mut jobs, members } = targets(client, texts, how).await?;
    jobs.extend(members);
    arrays.first().map_or(Ok(jobs), |id| Err(is_array(id)))
}

#[cfg(test)]
#[path = "find_tests.rs"]
mod tests;
