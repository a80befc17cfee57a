//! Who held what and when: placements of jobs over a range of time, from the state at its beginning and the records behind it.
//!
//! **Invariant:** records, bars and rows of a page are bounded; where a bound is reached the page says up to when it is.
//! **Invariant:** each record of a range is read once for all who ask for it one after the other.
//! **Invariant:** a page waits for records no longer than for an estimate. It has those that were read by then, says up to when that
//! is, and the rest is read behind it for those who ask next.
//! **Invariant:** records are read in their reader's turn, which ends with the reading: a reader that leaves frees no turn by it,
//! and what was read until then is kept.
//! **Invariant:** of a job only that is shown which every user of the cluster may see: no text of people about how it failed.

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use muster_engine::Visited;
use muster_page::{Bar, EndKind, RowKind, Timeline, TimelineQuery, TimelineRow};
use muster_state::State as Applied;
use muster_types::{JobId, LogIndex, LogTime, Name, NodeId, PastPoint, Refusal, RefusalCode, limits};
use muster_wire::status::{Refused, to_status};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::query::parameters;
use super::time_travel::time;
use super::{Problem, Reader, Scene, Web};
use crate::read::{Fresh, present};
use crate::render;
use crate::shares::Account;
use crate::turns::QueuePermit;

mod folds;
mod placements;

pub(super) use folds::Folds;

use folds::{Beginning, Fold, RangeReader};
use placements::Held;

const HOUR_MS: u64 = 3_600_000;
/// The range that is shown where none is asked for, and the longest one.
const RANGE_DEFAULT_MS: u64 = 6 * HOUR_MS;
const RANGE_MAX_MS: u64 = 31 * 24 * HOUR_MS;
/// Records that are read for one page, and parts of placements that are kept.
const RECORDS_MAX: usize = 100_000;
const HELD_MAX: usize = 50_000;
/// How long a page waits for records. Tests have slow machines, and are not about how long it takes.
const READ_MAX: Duration = Duration::from_millis(if cfg!(test) { 5_000 } else { 100 });
/// How long one turn lasts behind it: the next page of the same account waits for that as well.
const READ_ON_MAX: Duration = Duration::from_millis(if cfg!(test) { 5_000 } else { 25 });
/// Rows of a page and bars of all of them.
const ROWS_SHOWN: usize = 200;
const BARS_SHOWN_MAX: usize = 5_000;
/// About what a page takes.
const TIMELINE_BYTES: usize = BARS_SHOWN_MAX * 512;

/// What is asked for.
struct Range {
    from: LogTime,
    to: LogTime,
    /// The present by this replica's clock.
    now: LogTime,
    tenant: Option<Name>,
    job: Option<JobId>,
}

/// What was read for a range.
struct Found {
    held: Vec<Held>,
    /// The state at the beginning, for what is not kept any more.
    first: Option<Arc<Fresh>>,
    known_from: Option<LogTime>,
    read_to: ReadTo,
    /// Where the range begins.
    begin: Beginning,
    /// The turn at the past where no state has it: of what was read one account holds as little as of states of the past.
    _turn: Option<QueuePermit>,
}

/// How far the records of a range were read.
#[derive(Clone, Copy, Debug, Default)]
struct ReadTo {
    /// Up to when, where that is before the end of the range.
    cut: Option<LogTime>,
    /// Whether that is for want of time, and there is more to be read.
    has_more: bool,
}

/// Where a range begins.
struct SpanStart {
    /// The state there; without one nothing was placed before.
    first: Option<Arc<Fresh>>,
    /// The record behind it.
    next: LogIndex,
    /// The turn at the past where no state has it.
    turn: Option<QueuePermit>,
}

/// How far records are read.
struct SpanRead {
    from: LogTime,
    to: LogTime,
    deadline: Instant,
    /// Closed once the reader has gone.
    reader: oneshot::Sender<()>,
}

impl SpanRead {
    fn is_over(&self) -> bool {
        Instant::now() >= self.deadline || self.reader.is_closed()
    }
}

pub(super) async fn page(
    State(web): State<Web>,
    Extension(reader): Extension<Reader>,
    request: Request,
) -> Result<Response, Problem> {
    let (query, range) = asked(&request, present(web.engine()).log_time())?;
    let found = web.placements(reader, &range).await?;
    let (begin, span, has_more) = (found.begin, (range.from, range.to), found.read_to.has_more);
    let make = move |scene: &Scene| {
        let shown = shown(&scene.state, &query, &range, &found);
        Ok(muster_page::timeline(&scene.frame(), &query, &shown))
    };
    let answer = web.answer(reader, TIMELINE_BYTES, make).await;
    // In no turn of the page: an account has one at a time.
    if has_more {
        tokio::spawn(web.read_on(reader.account(), begin, span));
    }
    answer
}

fn asked(request: &Request, log_time: LogTime) -> Result<(TimelineQuery, Range), Problem> {
    let known = ["by", "from", "to", "tenant", "node", "job", "page"];
    let [by, from, to, tenant, node, job, page] = parameters(request.uri(), known)?;
    let Some(kind) = RowKind::ALL.into_iter().find(|kind| by.is_empty() || kind.word() == by) else {
        return Err(Problem::field("by", "must be one of node, job"));
    };
    for (field, value) in [("node", &node), ("page", &page)] {
        if value.len() > limits::NAME_BYTES_MAX {
            return Err(Problem::field(field, format!("must be at most {} bytes", limits::NAME_BYTES_MAX)));
        }
    }
    let named = || Name::new(&tenant).ok_or_else(|| Problem::field("tenant", "is no name of a tenant"));
    let tenant_name = if tenant.is_empty() { None } else { Some(named()?) };
    let no_job = || Problem::field("job", "must be the id of a job");
    let job_id = if job.is_empty() { None } else { Some(job.parse::<JobId>().map_err(|_| no_job())?) };
    let now = LogTime(unix_ms_now().max(log_time.0));
    let to_time = if to.is_empty() { now } else { time("to", &to)?.min(now) };
    let from_time = if from.is_empty() {
        // A state of the past is kept for a while: pages that are loaded one after the other have the same one.
        let earlier = to_time.0.saturating_sub(RANGE_DEFAULT_MS);
        LogTime((earlier - earlier % HOUR_MS).max(1))
    } else {
        time("from", &from)?
    };
    if from_time >= now {
        return Err(Problem::field("from", format!("must not lie in the future; it is {now} now")));
    }
    if from_time >= to_time {
        return Err(Problem::field("from", format!("must be before the end of the range, {to_time}")));
    }
    if to_time.since_ms(from_time) > RANGE_MAX_MS {
        let days = RANGE_MAX_MS / 24 / HOUR_MS;
        return Err(Problem::field(
            "from",
            format!("must be at most {days} days before the end of the range"),
        ));
    }
    let range = Range { from: from_time, to: to_time, now, tenant: tenant_name, job: job_id };
    Ok((TimelineQuery { by: kind, from, to, tenant, node, job, page }, range))
}

pub(super) fn unix_ms_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Web {
    /// Placements of a range: those that there were at its beginning, and what the records behind it change. What was read of them
    /// before is not read again.
    async fn placements(&self, reader: Reader, range: &Range) -> Result<Found, Problem> {
        let SpanStart { first, next, turn } = self.beginning(reader, range).await?;
        let begun_at = first.as_ref().map(|state| state.log_time());
        let begin = Beginning { generation: present(self.engine()).generation(), next };
        let (told, _waits) = oneshot::channel();
        let account = reader.account();
        let (web, state, (from, to)) = (self.clone(), first.clone(), (range.from, range.to));
        let work = async move {
            // From when its turn has come.
            let reach = SpanRead { from, to, deadline: Instant::now() + READ_MAX, reader: told };
            web.read_placements(account, (begin, state), reach).await
        };
        let read = self.router.in_turn(account, work).await;
        let (held, read_to) = read.map_err(|refusal| self.no_past(to_status(&refusal)))?;
        let known_from = begun_at.filter(|begun_at| *begun_at > range.from);
        Ok(Found { held, first, known_from, read_to, begin, _turn: turn })
    }

    /// Reads on behind a page in what is kept of its range, in turns of the account that asked for it, for about as long as a page may
    /// take.
    async fn read_on(self, account: Account, begin: Beginning, (from, to): (LogTime, LogTime)) {
        let until = Instant::now() + self.timeouts.page;
        while Instant::now() < until {
            let web = self.clone();
            let work = async move {
                // Somebody else reads on in it, or it was let go of.
                let Some(fold) = web.folds.take(begin, to) else { return Ok::<bool, Refusal>(false) };
                let (told, _waits) = oneshot::channel();
                let reach = SpanRead { from, to, deadline: Instant::now() + READ_ON_MAX, reader: told };
                let (fold, read_to) = web.read_range(fold, &reach).await?;
                web.folds.put(fold);
                Ok(read_to.has_more)
            };
            if !matches!(self.router.in_turn(account, work).await, Ok(true)) {
                return;
            }
        }
    }

    /// The state at the beginning of a range and the record behind it.
    async fn beginning(&self, reader: Reader, range: &Range) -> Result<SpanStart, Problem> {
        let begun = |state: Fresh| {
            let next = state.log_index().next();
            SpanStart { first: Some(Arc::new(state)), next, turn: None }
        };
        let status = match self.try_past(reader, PastPoint::Time(range.from)).await {
            Ok(state) => return Ok(begun(state)),
            Err(status) => status,
        };
        if Refused::from_status(&status).code != Some(RefusalCode::ResumeTokenCompacted) {
            return Err(status.into());
        }
        // The range begins before what is kept here.
        match self.engine().log_range()? {
            (LogIndex(0 | 1), _) => {
                let turn = self.router.past(reader.account()).await?;
                Ok(SpanStart { first: None, next: LogIndex(1), turn: Some(turn) })
            }
            (first, _) => {
                let state = self.try_past(reader, PastPoint::Index(first)).await;
                state.map(begun).map_err(|_| self.no_past(status))
            }
        }
    }

    /// The placements from a beginning on, and how far they were read.
    async fn read_placements(
        self,
        account: Account,
        (begin, first): (Beginning, Option<Arc<Fresh>>),
        reach: SpanRead,
    ) -> Result<(Vec<Held>, ReadTo), Refusal> {
        let read_on = match self.folds.take(begin, reach.to) {
            // Where its place cannot be read any more all is read from the beginning.
            Some(known) => self.read_range(known, &reach).await.ok(),
            None => None,
        };
        let (fold, read_to) = match read_on {
            Some(read) => read,
            None => {
                let state = first.as_ref().map(|first| &**first.state());
                let fold = Fold::new((account, begin), state, (HELD_MAX, RECORDS_MAX));
                self.read_range(fold, &reach).await?
            }
        };
        let held = fold.held(read_to.cut.unwrap_or(reach.to));
        self.folds.put(fold);
        Ok((held, read_to))
    }

    /// Reads on to the end of the range, or as far as there is time; how far that is.
    async fn read_range(&self, fold: Fold, reach: &SpanRead) -> Result<(Fold, ReadTo), Refusal> {
        let (next, position) = fold.next();
        let mut follower = self.engine().read_log(next)?;
        if let Some(position) = position {
            follower.go_back(position.clone());
        }
        let mut reader = RangeReader::new(fold, reach.to, reach.deadline);
        // Of what held devices at the beginning not all may be here, and what is placed behind the last one is left out.
        while !reader.fold.is_full() {
            let (read, visited) = follower.visit(reader).await?;
            reader = read;
            if visited != Visited::Part {
                break;
            }
            if reach.is_over() {
                reader.is_late = true;
                break;
            }
            // Records that are at hand are not waited for: others on this thread get their turn.
            tokio::task::yield_now().await;
        }
        let RangeReader { mut fold, is_cut, is_late, .. } = reader;
        fold.set_position(follower.position());
        let is_whole = is_cut || fold.is_full();
        let cut = (is_whole || is_late).then(|| fold.reached().unwrap_or(reach.from));
        Ok((fold, ReadTo { cut, has_more: is_late && !is_whole }))
    }
}

/// Names of jobs and nodes by the present, and of those that are not kept any more by the beginning of the range.
struct Names<'a> {
    now: &'a Applied,
    first: Option<&'a Arc<Applied>>,
}

impl Names<'_> {
    fn node(&self, id: NodeId) -> (String, bool) {
        if self.now.node(id).is_some() {
            return (render::node_name(self.now, id), true);
        }
        (self.first.map_or_else(|| id.to_string(), |first| render::node_name(first, id)), false)
    }

    /// Name, tenant, and whether it is kept.
    fn job(&self, id: JobId) -> (String, Option<Name>, bool) {
        let of = |state: &Applied| state.spec(id).map(|spec| (spec.name.to_string(), spec.tenant.clone()));
        if let Some((name, tenant)) = of(self.now) {
            return (name, Some(tenant), true);
        }
        match self.first.and_then(|first| of(first)) {
            Some((name, tenant)) => (name, Some(tenant), false),
            None => (id.to_string(), None, false),
        }
    }
}

/// The rows of a page.
fn shown(view: &Applied, query: &TimelineQuery, range: &Range, found: &Found) -> Timeline {
    let names = Names { now: view, first: found.first.as_ref().map(|fresh| fresh.state()) };
    let mut rows: BTreeMap<String, TimelineRow> = BTreeMap::new();
    let mut nodes: BTreeMap<NodeId, (String, bool)> = BTreeMap::new();
    for held in &found.held {
        if range.job.is_some_and(|job| job != held.job) || held.end < range.from {
            continue;
        }
        let (node, node_is_kept) = nodes.entry(held.node).or_insert_with(|| names.node(held.node));
        let job_id;
        let id = match query.by {
            RowKind::Node => node.as_str(),
            RowKind::Job => {
                job_id = held.job.to_string();
                job_id.as_str()
            }
        };
        if !node.starts_with(&query.node) || (!query.page.is_empty() && id <= query.page.as_str()) {
            continue;
        }
        // Of the rows behind those that are shown it is enough that there is one.
        let is_behind = rows.last_key_value().is_some_and(|(last, _)| id > last.as_str());
        if is_behind && rows.len() > ROWS_SHOWN {
            continue;
        }
        let (name, tenant, job_is_kept) = names.job(held.job);
        if range.tenant.is_some() && tenant != range.tenant {
            continue;
        }
        if !rows.contains_key(id) {
            let (name, has_page) = match query.by {
                RowKind::Node => (node.clone(), *node_is_kept),
                RowKind::Job => (name.clone(), job_is_kept),
            };
            let row = TimelineRow { id: id.to_owned(), name, has_page, bars: Vec::new() };
            rows.insert(id.to_owned(), row);
            if rows.len() > ROWS_SHOWN + 1 {
                rows.pop_last();
            }
        }
        let Some(row) = rows.get_mut(id) else { continue };
        let tenant = tenant.map(|tenant| tenant.to_string()).unwrap_or_default();
        add(
            row,
            query.by,
            Bar {
                job_id: held.job.to_string(),
                name,
                tenant,
                start_ms: held.start.0,
                end_ms: held.end.0,
                devices: held.devices,
                end: held.kind,
                placements: 1,
            },
        );
    }
    let (rows, next) = of_page(rows.into_values().collect());
    Timeline {
        from_ms: range.from.0,
        to_ms: range.to.0,
        has_later: range.to < range.now,
        rows,
        next,
        cut_ms: found.read_to.cut.map(|cut| cut.0),
        is_being_read: found.read_to.has_more,
        known_from_ms: found.known_from.map(|known| known.0),
    }
}

/// As many rows as a page has, with as many bars, and where the next page goes on.
fn of_page(mut rows: Vec<TimelineRow>) -> (Vec<TimelineRow>, String) {
    let has_more = rows.len() > ROWS_SHOWN;
    rows.truncate(ROWS_SHOWN);
    let next = rows.last().filter(|_| has_more).map(|row| row.id.clone()).unwrap_or_default();
    let bars_max = BARS_SHOWN_MAX / rows.len().max(1);
    for row in &mut rows {
        row.bars.sort_by_key(|bar| (bar.start_ms, bar.end_ms));
        row.bars = joined(std::mem::take(&mut row.bars), bars_max);
    }
    (rows, next)
}

/// Adds a bar to its row. Parts of one placement of a job on several nodes are one bar of the job.
fn add(row: &mut TimelineRow, by: RowKind, bar: Bar) {
    if by == RowKind::Job
        && let Some(last) = row.bars.last_mut()
        && (last.start_ms, last.end_ms) == (bar.start_ms, bar.end_ms)
    {
        last.devices += bar.devices;
        return;
    }
    row.bars.push(bar);
}

/// At most this number of bars: neighbours become one.
fn joined(bars: Vec<Bar>, bars_max: usize) -> Vec<Bar> {
    if bars.len() <= bars_max {
        return bars;
    }
    let each = bars.len().div_ceil(bars_max.max(1));
    let join = |bars: &[Bar]| {
        let first = bars.first()?;
        let end_ms = bars.iter().map(|bar| bar.end_ms).max()?;
        let placements: u64 = bars.iter().map(|bar| bar.placements).sum();
        let end = if placements == 1 { first.end } else { EndKind::Several };
        Some(Bar { end_ms, placements, end, ..first.clone() })
    };
    bars.chunks(each).filter_map(join).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ApiConfig;
    use crate::sample;
    use crate::shared::Shared;
    use crate::web::Timeouts;
    use muster_engine::{HistorySettings, open_archive};
    use muster_transport::{PeerName, Principal, Role, Security, ShortName};
    use muster_types::ClusterId;
    use std::collections::BTreeSet;

    fn bars(count: u64) -> Vec<Bar> {
        let bar = |number: u64| Bar {
            job_id: format!("job-{number}"),
            name: "a".to_owned(),
            tenant: "lab".to_owned(),
            start_ms: number * 10,
            end_ms: number * 10 + 5,
            devices: 1,
            end: EndKind::Succeeded,
            placements: 1,
        };
        (0..count).map(bar).collect()
    }

    #[test]
    fn many_bars_become_few_and_none_is_lost() {
        for (count, max) in [(0, 5), (5, 5), (6, 5), (1_000, 25), (3, 1), (7, 0)] {
            let joined = joined(bars(count), max);
            assert!(joined.len() <= max.max(1), "{count} in {max}");
            assert_eq!(joined.iter().map(|bar| bar.placements).sum::<u64>(), count);
            let last = joined.last().map(|bar| bar.end_ms);
            assert_eq!(last, count.checked_sub(1).map(|last| last * 10 + 5));
        }
    }

    #[test]
    fn pages_have_every_row_once_in_whatever_order_placements_come() {
        const COUNT: u64 = 1_200;
        let held = |number: u64| Held {
            job: JobId(number),
            node: NodeId(u32::try_from(number * 7 % 523).expect("it is small")),
            devices: 1,
            start: LogTime(number),
            end: LogTime(number + 5),
            kind: EndKind::Succeeded,
        };
        // Neither by name nor by time.
        let held: Vec<Held> = (0..COUNT).map(|number| held(number * 601 % COUNT)).collect();
        let begin = Beginning { generation: 1, next: LogIndex(1) };
        let read_to = ReadTo::default();
        let found = Found { held, first: None, known_from: None, read_to, begin, _turn: None };
        let end = LogTime(2 * COUNT);
        let range = Range { from: LogTime(0), to: end, now: end, tenant: None, job: None };
        let state = Applied::default();
        for by in RowKind::ALL {
            let mut query = TimelineQuery { by, ..TimelineQuery::default() };
            let (mut seen, mut placements): (Vec<String>, u64) = (Vec::new(), 0);
            loop {
                let page = shown(&state, &query, &range, &found);
                assert!(page.rows.len() <= ROWS_SHOWN);
                seen.extend(page.rows.iter().map(|row| row.id.clone()));
                let bars = page.rows.iter().flat_map(|row| &row.bars);
                placements += bars.map(|bar| bar.placements).sum::<u64>();
                if page.next.is_empty() {
                    break;
                }
                query.page = page.next;
            }
            let id = |held: &Held| match by {
                RowKind::Node => held.node.to_string(),
                RowKind::Job => held.job.to_string(),
            };
            let all: BTreeSet<String> = found.held.iter().map(id).collect();
            assert_eq!(seen, all.into_iter().collect::<Vec<String>>(), "{by:?}");
            assert_eq!(placements, COUNT, "{by:?}");
        }
    }

    const LIMIT: Duration = Duration::from_secs(60);

    /// The pages of a replica whose log is at hand from its first record on, and the directory of its archive.
    async fn with_log() -> (Web, tempfile::TempDir) {
        let engine = sample::leader().await;
        let directory = tempfile::tempdir().expect("a directory can be made");
        let archive = open_archive(directory.path(), sample::CLUSTER).expect("it opens");
        engine.keep_history(HistorySettings::new(Some(Arc::new(archive))));
        let shared = Shared::new(engine, ApiConfig::DEFAULT, Security::Plaintext);
        let web = Web::new(shared, Timeouts::DEFAULT);
        let newest = web.engine().view().log_index();
        let at_hand = async {
            while !web.engine().log_range().is_ok_and(|(_, last)| last >= newest) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LIMIT, at_hand).await.expect("the log is at hand");
        (web, directory)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_was_read_for_a_reader_who_has_gone_is_kept_and_the_rest_is_not_read() {
        let (web, _archive) = with_log().await;
        let begin = Beginning { generation: web.engine().view().generation(), next: LogIndex(1) };
        let to = LogTime(u64::MAX);
        let read = |reader: oneshot::Sender<()>| {
            let reach = SpanRead { from: LogTime(1), to, deadline: Instant::now() + LIMIT, reader };
            web.clone().read_placements(Account::of(&Principal::Plaintext), (begin, None), reach)
        };
        let (told, waits) = oneshot::channel();
        drop(waits);
        let (_, read_to) = read(told).await.expect("it is kept");
        assert!(read_to.cut.is_some() && read_to.has_more, "the rest is not read");
        let known = web.folds.take(begin, to).expect("what was read is kept");
        assert!(known.reached().is_some());
        web.folds.put(known);
        let (told, _waits) = oneshot::channel();
        let (_, read_to) = read(told).await.expect("it is kept");
        assert_eq!((read_to.cut, read_to.has_more), (None, false), "it is read to its end");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_a_page_had_no_time_for_is_read_behind_it() {
        let (web, _archive) = with_log().await;
        let begin = Beginning { generation: web.engine().view().generation(), next: LogIndex(1) };
        let account = Account::of(&Principal::Plaintext);
        let (from, to) = (LogTime(1), LogTime(u64::MAX));
        let read = |deadline: Instant| {
            let (told, waits) = oneshot::channel();
            let reach = SpanRead { from, to, deadline, reader: told };
            let read = web.clone().read_placements(account, (begin, None), reach);
            async move {
                let read = read.await.expect("it is kept");
                drop(waits);
                read
            }
        };
        let (_, hurried) = read(Instant::now()).await;
        assert!(hurried.cut.is_some() && hurried.has_more, "it has no time");
        web.clone().read_on(account, begin, (from, to)).await;
        let (held, late) = read(Instant::now() + LIMIT).await;
        assert_eq!((late.cut, late.has_more), (None, false));
        let known = web.folds.take(begin, to).expect("it is kept");
        drop(known);
        let (whole, _) = read(Instant::now() + LIMIT).await;
        assert_eq!(held, whole, "as if it was read at once");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_an_account_has_read_from_the_first_record_on_counts_as_a_state_of_the_past() {
        let (web, _archive) = with_log().await;
        let short = |text: &str| ShortName::new(text).expect("a name");
        let role = Role::TenantClient { tenant: short("vision"), user: short("ada") };
        let reader = Reader(Principal::Named(PeerName { cluster: ClusterId(1), role }));
        let end = LogTime(u64::MAX);
        let range = Range { from: LogTime(1), to: end, now: end, tenant: None, job: None };
        let first = web.placements(reader, &range).await.expect("it is kept");
        let second = web.placements(reader, &range).await.expect("it is kept");
        assert!(first.first.is_none() && second.first.is_none(), "there is nothing before it");
        let mut third = Box::pin(web.placements(reader, &range));
        assert!(
            tokio::time::timeout(Duration::from_millis(200), third.as_mut()).await.is_err(),
            "it waits until a page is made of the first"
        );
        drop(first);
        assert!(third.await.is_ok());
    }

    #[test]
    fn ranges_are_bounded() {
        let ask = |query: &str| {
            let request = axum::http::Request::get(format!("/timeline?{query}"));
            let request = request.body(axum::body::Body::empty()).expect("a request");
            asked(&request, LogTime(1)).map(|(_, range)| range.to.since_ms(range.from))
        };
        assert!(ask("").is_ok_and(|span| (RANGE_DEFAULT_MS..RANGE_DEFAULT_MS + HOUR_MS).contains(&span)));
        assert_eq!(ask("from=2023-11-14T22:00:00Z&to=2023-11-14T23:00:00Z").ok(), Some(HOUR_MS));
        for query in [
            "from=2999-01-01T00:00:00Z",
            "from=2023-11-14T22:00:00Z&to=2023-11-14T22:00:00Z",
            "from=2001-01-01T00:00:00Z",
            "from=yesterday",
            "to=%3Cscript%3E",
            "by=user",
            "job=node-1",
            "tenant=%3Cb%3E",
            &format!("node={}", "x".repeat(300)),
            &format!("page={}", "x".repeat(300)),
        ] {
            assert!(ask(query).is_err(), "{query}");
        }
    }
}
