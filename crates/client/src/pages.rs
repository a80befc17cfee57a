//! Lists of any length, page by page, across the loss of replicas.
//!
//! **Invariant:** no more than one page is held. No page is older than the one before it: each is read no earlier in the log than
//! any answer that the reader has had, on whichever replica.

use futures::stream::{self, Stream};
use muster_wire::v1;

use crate::error::CallError;
use crate::{Client, read};

/// One page of a list.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Page<T> {
    /// What is on it, in the order of the list. May be empty though more pages follow.
    pub items: Vec<T>,
    /// How current it is.
    pub freshness: v1::Freshness,
    /// On the last page of jobs: a watch with the same filter goes on from the oldest state that one of the pages shows. Else empty.
    pub resume_token: String,
}

/// What differs between lists.
pub trait Paged: Send + 'static {
    /// What is asked for.
    type Request: Clone + Send + Sync;
    /// What is listed.
    type Item: Send;

    /// The page behind `page_token`, no older than this position where one is given, and the token of the page behind it.
    #[doc(hidden)]
    fn page(
        client: &Client,
        request: Self::Request,
        at_least: Option<&v1::Freshness>,
        page_token: String,
    ) -> impl Future<Output = Result<(Page<Self::Item>, String), CallError>> + Send;

    #[doc(hidden)]
    fn first_token(request: &Self::Request) -> &str;
}

/// Of jobs.
pub struct ListedJobs;

impl Paged for ListedJobs {
    type Request = v1::ListJobsRequest;
    type Item = v1::Job;

    async fn page(
        client: &Client,
        mut request: v1::ListJobsRequest,
        at_least: Option<&v1::Freshness>,
        page_token: String,
    ) -> Result<(Page<v1::Job>, String), CallError> {
        request.read = Some(client.read_of_page(request.read, at_least));
        request.page_token = page_token;
        let answer = client.list_jobs(request).await?;
        let (items, freshness) = (answer.jobs, answer.freshness.unwrap_or_default());
        Ok((Page { items, freshness, resume_token: answer.resume_token }, answer.next_page_token))
    }

    fn first_token(request: &v1::ListJobsRequest) -> &str {
        &request.page_token
    }
}

/// Of nodes.
pub struct ListedNodes;

impl Paged for ListedNodes {
    type Request = v1::ListNodesRequest;
    type Item = v1::Node;

    async fn page(
        client: &Client,
        mut request: v1::ListNodesRequest,
        at_least: Option<&v1::Freshness>,
        page_token: String,
    ) -> Result<(Page<v1::Node>, String), CallError> {
        request.read = Some(client.read_of_page(request.read, at_least));
        request.page_token = page_token;
        let answer = client.list_nodes(request).await?;
        let (items, freshness) = (answer.nodes, answer.freshness.unwrap_or_default());
        Ok((Page { items, freshness, resume_token: String::new() }, answer.next_page_token))
    }

    fn first_token(request: &v1::ListNodesRequest) -> &str {
        &request.page_token
    }
}

/// The pages of one list: of jobs, unless it says otherwise.
pub struct Pages<P: Paged = ListedJobs> {
    client: Client,
    request: P::Request,
    /// Of the next page; none behind the last one.
    next: Option<String>,
    /// Of the last page that was read.
    freshness: Option<v1::Freshness>,
}

/// The pages of a list of nodes.
pub type NodePages = Pages<ListedNodes>;

impl Client {
    /// The jobs that match, newest first, page by page. A `page_token` in the request is where it begins. Nothing is sent before
    /// the first [`Pages::next`].
    #[must_use]
    pub fn job_pages(&self, request: v1::ListJobsRequest) -> Pages {
        Pages::new(self, request)
    }

    /// The nodes of the fleet, by name; as [`Client::job_pages`].
    #[must_use]
    pub fn node_pages(&self, request: v1::ListNodesRequest) -> NodePages {
        Pages::new(self, request)
    }

    /// What a page is read with: as asked, and no older than the page before it. The past does not change.
    fn read_of_page(
        &self,
        asked: Option<v1::ReadOptions>,
        at_least: Option<&v1::Freshness>,
    ) -> v1::ReadOptions {
        let mut read = asked.unwrap_or(self.options.read.into());
        if let Some(before) = at_least
            && !read::is_past(&read)
        {
            // Without a generation, the position is one of the present generation.
            let generation = if read.generation == 0 { before.generation } else { read.generation };
            if (generation, read.min_log_index) < (before.generation, before.log_index) {
                (read.generation, read.min_log_index) = (before.generation, before.log_index);
            }
        }
        read
    }
}

impl<P: Paged> Pages<P> {
    fn new(client: &Client, request: P::Request) -> Pages<P> {
        let next = Some(P::first_token(&request).to_owned());
        Pages { client: client.clone(), request, next, freshness: None }
    }

    /// The next page; none behind the last one. After an error it is asked for once more. Dropping the future loses nothing.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed, which each page has for itself.
    pub async fn next(&mut self) -> Result<Option<Page<P::Item>>, CallError> {
        let Some(token) = &self.next else { return Ok(None) };
        let reading = P::page(&self.client, self.request.clone(), self.freshness.as_ref(), token.clone());
        let (page, next) = reading.await?;
        self.next = Some(next).filter(|token| !token.is_empty());
        self.freshness = Some(page.freshness);
        Ok(Some(page))
    }

    /// Where the next page begins, for the request of another process: empty before the first page and behind the last one.
    #[must_use]
    pub fn page_token(&self) -> &str {
        self.next.as_deref().unwrap_or_default()
    }

    /// Each item by itself, as a stream, which ends with the list or behind its first error. The next page is read when
    /// the one before it has been taken.
    pub fn into_stream(self) -> impl Stream<Item = Result<P::Item, CallError>> + Send {
        stream::try_unfold((self, Vec::new().into_iter()), |(mut pages, mut items)| async move {
            loop {
                if let Some(item) = items.next() {
                    return Ok(Some((item, (pages, items))));
                }
                match pages.next().await? {
                    Some(page) => items = page.items.into_iter(),
                    None => return Ok(None),
                }
            }
        })
    }
}
