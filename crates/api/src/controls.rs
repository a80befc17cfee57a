//! What people ask of jobs that exist, by a selector: cancel, hold, release, requeue, suspend. And changes of one job.
//!
//! The leader selects from what it has applied, and its decider looks at each job once more: what has moved on since is
//! passed over. Which jobs a request is about is a part of its fingerprint in the client's words, so that a request that is
//! repeated is the same request, whatever the selector would find by then.

use futures::future::BoxFuture;
use muster_decider::{
    Answer, Command, ControlOrder, JobSelection, JobVersion, ModifyOrder, ThrottleOrder, check_acts_for,
    check_array_control, check_control, check_throttle,
};
use muster_journal::hash;
use muster_state::{ArrayRow, Phase, State};
use muster_types::{
    ArrayId, Control, FieldChange, JobId, LogIndex, Name, Refusal, RefusalCode, RequestId, Requester,
    Violation, limits,
};
use muster_wire::convert::{array_id, changes_from_proto, job_id, request_id_of, throttle_from_proto};
use muster_wire::status::to_status;
use muster_wire::v1;
use muster_wire::v1::job_service_client::JobServiceClient;
use std::collections::BTreeMap;
use std::sync::Arc;
use tonic::{Request, Response, Status};

use crate::arrays;
use crate::forward::{Caller, ONWARD_BYTES_MAX, Router};
use crate::job_filter::JobFilter;
use crate::original::Onward;
use crate::read::{freshness, invalid, written};
use crate::render::Detail;

/// A call that asks something of the jobs that a selector finds.
pub(crate) trait ControlRequest: Clone + Send + Sync + 'static {
    type Response: Send + 'static;
    const CONTROL: Control;

    /// The request id, the selector, and whether it only looks.
    fn parts(&self) -> (&str, Option<&v1::JobSelector>, bool);

    fn response(counts: Counts) -> Self::Response;

    /// Sends the request on to the leader.
    fn send(request: Request<Self>, channel: Onward) -> BoxFuture<'static, Result<Self::Response, Status>>;
}

macro_rules! control_requests {
    ($($control:ident: $request:ident -> $response:ident, $call:ident;)*) => {$(
        impl ControlRequest for v1::$request {
            type Response = v1::$response;
            const CONTROL: Control = Control::$control;

            fn parts(&self) -> (&str, Option<&v1::JobSelector>, bool) {
                (&self.request_id, self.selector.as_ref(), self.validate_only)
            }

            fn response(counts: Counts) -> v1::$response {
                let Counts { job_count, remaining_count, passed_over_count, job_ids, freshness, last } = counts;
                let last_job_id = last.map(|job| job.to_string()).unwrap_or_default();
                v1::$response { job_count, remaining_count, passed_over_count, job_ids, freshness, last_job_id }
            }

            fn send(
                request: Request<v1::$request>,
                channel: Onward,
            ) -> BoxFuture<'static, Result<v1::$response, Status>> {
                let mut client = JobServiceClient::new(channel).max_decoding_message_size(ONWARD_BYTES_MAX);
                Box::pin(async move { Ok(client.$call(request).await?.into_inner()) })
            }
        }
    )*};
}

control_requests! {
    Cancel: CancelJobsRequest -> CancelJobsResponse, cancel_jobs;
    Hold: HoldJobsRequest -> HoldJobsResponse, hold_jobs;
    Release: ReleaseJobsRequest -> ReleaseJobsResponse, release_jobs;
    Requeue: RequeueJobsRequest -> RequeueJobsResponse, requeue_jobs;
    Suspend: SuspendJobsRequest -> SuspendJobsResponse, suspend_jobs;
}

/// What became of the jobs that a selector found.
pub(crate) struct Counts {
    job_count: u32,
    remaining_count: u64,
    passed_over_count: u64,
    job_ids: Vec<String>,
    freshness: Option<v1::Freshness>,
    /// The last job that it was about.
    last: Option<JobId>,
}

/// Who asks, as it is recorded. A listener without certificates is one machine's own: everyone who uses it may do everything.
pub(crate) fn requester(caller: &Caller) -> Requester {
    Requester {
        name: caller.creator(),
        is_operator: caller.is_operator(),
        address: caller.address(),
        role: caller.granted_role(),
    }
}

/// A selector that was checked.
struct Selector {
    /// Whether the jobs are named, and none is looked for.
    is_named: bool,
    filter: JobFilter,
    /// Only jobs behind this one.
    after: Option<JobId>,
    asked: u64,
}

/// An array of which a selector finds the members that are not created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundArray {
    id: ArrayId,
    /// How many those are.
    members: u32,
    /// None before this one is among them.
    next: JobId,
}

impl FoundArray {
    /// As it is in the state that the selector looked at.
    pub(crate) fn of(id: ArrayId, row: &ArrayRow) -> FoundArray {
        FoundArray { id, members: row.uncreated, next: id.member(row.next) }
    }
}

/// The jobs that a selector finds, of which something can be asked.
#[derive(Default)]
struct Selected {
    jobs: Vec<JobId>,
    /// Arrays whose members that are not created are among them.
    arrays: Vec<FoundArray>,
    /// How many more match than one call takes.
    remaining: u64,
    passed_over: u64,
}

impl Selector {
    fn check(message: Option<&v1::JobSelector>, caller: &Caller) -> Result<Selector, Status> {
        let Some(message) = message else {
            return Err(invalid(vec![Violation::new("selector", "must be given")]));
        };
        let said = message.filter.clone().unwrap_or_default();
        let rest = v1::JobFilter { job_ids: Vec::new(), ..said.clone() };
        let (is_named, narrows) = (!said.job_ids.is_empty(), rest != v1::JobFilter::default());
        let wrong = match (is_named, narrows, message.all) {
            (false, false, false) => {
                Some("must say which jobs: set `all` for every job that the caller may change")
            }
            (true, narrows, all) if narrows || all || !message.after_job_id.is_empty() => {
                Some("names jobs by `job_ids`, so that nothing else may be set")
            }
            (_, true, true) => Some("cannot have `all` and something that narrows it"),
            _ => None,
        };
        if let Some(text) = wrong {
            return Err(invalid(vec![Violation::new("selector", text)]));
        }
        let filter = JobFilter::new("selector.filter", Some(said), caller)?;
        let after = match message.after_job_id.as_str() {
            "" => None,
            text => {
                Some(job_id("selector.after_job_id", text).map_err(|violation| invalid(vec![violation]))?)
            }
        };
        let asked = hash(&(filter.digest(), message.all, after));
        Ok(Selector { is_named, filter, after, asked })
    }

    /// The jobs that it is about, oldest first, as far as the caller may change them.
    fn find(&self, view: &State, caller: &Caller, control: Control) -> Result<Selected, Refusal> {
        if self.is_named {
            let named: Vec<JobId> = self.filter.named().collect();
            named.iter().try_for_each(|job| caller.check_job(view, *job))?;
            return Ok(Selected { jobs: named, ..Selected::default() });
        }
        if let Some(tenant) = self.filter.tenant() {
            caller.check_tenant(view, &tenant)?;
        }
        let by = requester(caller);
        let mut selected = Selected::default();
        let mut has_more = (false, false);
        let mut may: BTreeMap<&Name, bool> = BTreeMap::new();
        for job in self.filter.unfinished(view, self.after) {
            let tenant = &job.spec.tenant;
            let may = *may.entry(tenant).or_insert_with(|| caller.check_tenant(view, tenant).is_ok());
            if !may {
                continue;
            }
            match check_control(view, control, &by, job.id) {
                // What is so already is not asked for again.
                Ok(false) => {}
                Ok(true) if selected.jobs.len() < limits::CONTROLLED_JOBS_MAX => selected.jobs.push(job.id),
                Ok(true) => {
                    has_more.0 = true;
                    selected.remaining += 1;
                }
                Err(_) => selected.passed_over += 1,
            }
        }
        if !self.filter.passes_uncreated() {
            return Ok(selected);
        }
        // An array stands before its members. A call that goes on behind another is not about it again: an operator who releases
        // would else release what was held beneath.
        let is_next = |array: ArrayId| self.after.is_none_or(|after| JobId(array.0) > after);
        let arrays = self.filter.arrays(view, None);
        let mut arrays: Vec<_> = arrays.filter(|(id, row)| row.uncreated > 0 && is_next(*id)).collect();
        arrays.reverse();
        for (array, row) in arrays {
            let tenant = &row.template.spec.tenant;
            let may = *may.entry(tenant).or_insert_with(|| caller.check_tenant(view, tenant).is_ok());
            let members = u64::from(row.uncreated);
            let is_full = selected.arrays.len() >= limits::CONTROLLED_ARRAYS_MAX;
            match check_array_control(view, control, &by, array).map(|changes| changes && may) {
                Ok(false) => {}
                Ok(true) if !is_full => selected.arrays.push(FoundArray::of(array, row)),
                Ok(true) => {
                    has_more.1 = true;
                    selected.remaining += members;
                }
                Err(_) if may => selected.passed_over += members,
                Err(_) => {}
            }
        }
        selected.cut(has_more);
        Ok(selected)
    }
}

impl Selected {
    /// Where more jobs or arrays match than one call takes, the call is about those up to the last id up to which it leaves nothing
    /// out. What is behind that id is left to calls that go on from there.
    fn cut(&mut self, (has_more_jobs, has_more_arrays): (bool, bool)) {
        let last_job = self.jobs.last().copied().filter(|_| has_more_jobs);
        let last_array = self.arrays.last().map(|array| JobId(array.id.0)).filter(|_| has_more_arrays);
        let Some(last) = last_job.into_iter().chain(last_array).min() else { return };
        let jobs = self.jobs.partition_point(|job| *job <= last);
        self.remaining += self.jobs.drain(jobs..).count() as u64;
        let arrays = self.arrays.partition_point(|array| JobId(array.id.0) <= last);
        self.remaining += self.arrays.drain(arrays..).map(|array| u64::from(array.members)).sum::<u64>();
    }

    /// The last of what it is about.
    fn last(&self) -> Option<JobId> {
        self.jobs.last().copied().max(self.arrays.last().map(|array| JobId(array.id.0)))
    }
}

/// How many more jobs a selector finds than a call was about, and behind which job the next call goes on. Members of an array that
/// became jobs while the call was on its way are among them: it was about neither them nor, any more, what their array has left to
/// create.
pub(crate) fn left_over(
    view: &State,
    (control, by, is_for_waiting): (Control, &Requester, bool),
    arrays: &[FoundArray],
    (remaining, last): (u64, Option<JobId>),
) -> (u64, Option<JobId>) {
    // The others are asked of no member that is not created.
    if !matches!(control, Control::Cancel | Control::Hold) {
        return (remaining, last);
    }
    let created = |array: &FoundArray| {
        let end = view.members(array.id).end.max(array.next);
        view.jobs().range(array.next..end)
    };
    let created = arrays.iter().flat_map(created);
    let created = created.filter(|(_, row)| !is_for_waiting || row.phase == Phase::Pending);
    let left = created.filter(|(job, _)| matches!(check_control(view, control, by, **job), Ok(true)));
    let (mut count, mut first) = (0, None);
    for (job, _) in left {
        count += 1;
        first = Some(first.map_or(*job, |first: JobId| first.min(*job)));
    }
    let behind = first.map(|first| JobId(first.0.saturating_sub(1)));
    let last = match (behind, last) {
        (Some(behind), Some(last)) => Some(behind.min(last)),
        (behind, last) => behind.or(last),
    };
    (remaining + count, last)
}

/// Asks something of the jobs that a selector finds.
pub(crate) async fn control<M: ControlRequest>(
    router: &Router,
    request: Request<M>,
) -> Result<Response<M::Response>, Status> {
    let caller = router.caller(&request);
    let message = request.into_inner();
    let (id, selector, validate_only) = message.parts();
    let id = request_id_of("request_id", id, validate_only).map_err(|violation| invalid(vec![violation]))?;
    let selector = Arc::new(Selector::check(selector, &caller)?);
    let local = || async {
        let counts =
            control_here(router, caller, (id, M::CONTROL, validate_only), Arc::clone(&selector)).await?;
        Ok(M::response(counts))
    };
    let onward = |channel| M::send(Router::onward(message.clone(), caller), channel);
    router.write(caller, local, onward).await.map(Response::new)
}

/// The jobs that a selector finds now, in a turn of the account.
async fn look_for(
    router: &Router,
    caller: Caller,
    selector: Arc<Selector>,
    control: Control,
) -> Result<Selected, Refusal> {
    let turn = router.costly(caller.account()).await?;
    let view = router.engine().view();
    // A walk over all jobs takes longer than a thread that answers others should be away. The turn ends with the walk, and not
    // with the caller's patience: else a caller that leaves at once could have any number of them.
    let find = muster_engine::in_background(move || {
        let found = selector.find(&view, &caller, control);
        drop(turn);
        found
    });
    find.await.map_err(|_| Refusal::new(RefusalCode::Internal, "looking for the jobs has failed"))?
}

async fn control_here(
    router: &Router,
    caller: Caller,
    (request, control, validate_only): (RequestId, Control, bool),
    selector: Arc<Selector>,
) -> Result<Counts, Refusal> {
    let engine = router.engine();
    let acts_for = caller.acts_for()?;
    let (asked, is_found) = (selector.asked, !selector.is_named);
    // It finds members that are not created, so that the only phase is that of jobs that wait.
    let is_for_waiting = selector.filter.phases().len() == 1;
    let selected = match is_found {
        true => look_for(router, caller, selector, control).await?,
        // They are few, and none is looked for.
        false => selector.find(&engine.view(), &caller, control)?,
    };
    let last = selected.last();
    let Selected { jobs, arrays, remaining, passed_over } = selected;
    if validate_only {
        let view = engine.reading();
        let by = requester(&caller);
        let mut would = Vec::with_capacity(jobs.len());
        for job in jobs {
            // Of jobs that are named all must be such that it can be asked of them.
            if check_acts_for(&view, acts_for.as_ref(), job)
                .and_then(|()| check_control(&view, control, &by, job))
                .or_else(|refusal| if is_found { Ok(false) } else { Err(refusal) })?
            {
                would.push(job.to_string());
            }
        }
        let members: u32 = arrays.iter().map(|array| array.members).sum();
        let job_count = (would.len() as u32).saturating_add(members);
        would.extend(arrays.iter().map(|array| array.id.to_string()));
        return Ok(Counts {
            job_count,
            remaining_count: remaining,
            passed_over_count: passed_over,
            job_ids: would,
            freshness: Some(freshness(engine, &view)),
            last,
        });
    }
    let (found, found_arrays) = (jobs.clone(), arrays.clone());
    let arrays = arrays.into_iter().map(|array| array.id).collect();
    let selection = JobSelection { asked, jobs, arrays, is_found };
    let order = ControlOrder { request, by: requester(&caller), acts_for, control, selection };
    let answer = engine.execute(Command::Control(Box::new(order))).await?;
    let Answer::Controlled { jobs, last: changed, is_repeat, at } = answer else { return Err(reused()) };
    // A repeated request changed nothing now: what was found just now behind the jobs that it was about is left.
    let (remaining_count, last) = match is_repeat {
        true => {
            let behind = found.iter().filter(|job| Some(**job) > changed).count() as u64;
            let arrays = found_arrays.iter().filter(|array| Some(JobId(array.id.0)) > changed);
            let members: u64 = arrays.map(|array| u64::from(array.members)).sum();
            (behind + members + remaining, changed)
        }
        false => {
            let asked = (control, &requester(&caller), is_for_waiting);
            left_over(&engine.view(), asked, &found_arrays, (remaining, last))
        }
    };
    Ok(Counts {
        job_count: jobs,
        remaining_count,
        passed_over_count: passed_over,
        job_ids: Vec::new(),
        freshness: written(engine, at),
        last,
    })
}

fn reused() -> Refusal {
    Refusal::new(RefusalCode::RequestIdReused, "the request id was used for another request")
}

/// Cancels one job by its id; for a job that has ended it is refused.
pub(crate) async fn cancel_one(
    router: &Router,
    caller: Caller,
    (request, job): (RequestId, JobId),
) -> Result<v1::CancelJobResponse, Refusal> {
    let engine = router.engine();
    caller.check_job(&engine.view(), job)?;
    let selection = JobSelection::named(vec![job]);
    let (by, acts_for) = (requester(&caller), caller.acts_for()?);
    let order = ControlOrder { request, by, acts_for, control: Control::Cancel, selection };
    let answer = engine.execute(Command::Control(Box::new(order))).await?;
    let message = arrays::job_after_change(&engine.view(), job, caller.visibility());
    Ok(v1::CancelJobResponse { job: message, freshness: written(engine, answer.at()) })
}

/// The state of a job that an etag stands for.
fn version(etag: &str) -> Result<Option<JobVersion>, Violation> {
    if etag.is_empty() {
        return Ok(None);
    }
    let parts = etag.split_once('-').and_then(|(generation, index)| {
        Some(JobVersion { generation: generation.parse().ok()?, changed_at: LogIndex(index.parse().ok()?) })
    });
    parts.map(Some).ok_or_else(|| Violation::new("etag", "must be the etag of a Job, as it was answered"))
}

/// Changes the throttle of an array, the one field of it that can be changed.
async fn update_array(
    router: &Router,
    caller: Caller,
    message: v1::UpdateJobRequest,
) -> Result<Response<v1::UpdateJobResponse>, Status> {
    let mut found = Vec::new();
    let id = request_id_of("request_id", &message.request_id, message.validate_only)
        .map_err(|v| found.push(v))
        .ok();
    let array = array_id("job_id", &message.job_id).map_err(|v| found.push(v)).ok();
    let throttle = throttle_from_proto(message.job.as_ref(), message.update_mask.as_ref())
        .map_err(|v| found.push(v))
        .ok();
    if !message.etag.is_empty() {
        found.push(Violation::new("etag", "must be empty, because an array has none"));
    }
    if message.move_to_front {
        found.push(Violation::new("move_to_front", "must be false, because only a job can be moved"));
    }
    let (Some(request), Some(array), Some(throttle), true) = (id, array, throttle, found.is_empty()) else {
        return Err(invalid(found));
    };
    let acts_for = caller.acts_for().map_err(|refusal| to_status(&refusal))?;
    let order = ThrottleOrder { request, by: requester(&caller), acts_for, array, throttle };
    let shown = |view: &State| {
        let row = view.array(array)?;
        Some(arrays::array(view, array, row, (Detail::Basic, caller.visibility())))
    };
    let local = || async {
        let engine = router.engine();
        caller.check_job(&engine.view(), JobId(array.0))?;
        if message.validate_only {
            let view = engine.reading();
            check_throttle(&view, &order)?;
            let freshness = Some(freshness(engine, &view));
            return Ok(v1::UpdateJobResponse { job: None, freshness, array: shown(&view) });
        }
        let answer = engine.execute(Command::SetThrottle(Box::new(order.clone()))).await?;
        let freshness = written(engine, answer.at());
        Ok(v1::UpdateJobResponse { job: None, freshness, array: shown(&engine.view()) })
    };
    let onward = |channel: Onward| {
        let request = Router::onward(message.clone(), caller);
        async move {
            let mut client = JobServiceClient::new(channel).max_decoding_message_size(ONWARD_BYTES_MAX);
            Ok(client.update_job(request).await?.into_inner())
        }
    };
    router.write(caller, local, onward).await.map(Response::new)
}

/// Changes the fields of one job that the request's mask names.
pub(crate) async fn update(
    router: &Router,
    request: Request<v1::UpdateJobRequest>,
) -> Result<Response<v1::UpdateJobResponse>, Status> {
    let caller = router.caller(&request);
    let message = request.into_inner();
    if message.job_id.starts_with("array-") {
        return update_array(router, caller, message).await;
    }
    let mut found = Vec::new();
    let id = request_id_of("request_id", &message.request_id, message.validate_only)
        .map_err(|v| found.push(v))
        .ok();
    let job = job_id("job_id", &message.job_id).map_err(|v| found.push(v)).ok();
    let expected = version(&message.etag).map_err(|v| found.push(v)).ok();
    let names_nothing = message.update_mask.as_ref().is_none_or(|mask| mask.paths.is_empty());
    let changes = match message.move_to_front && names_nothing {
        true => Ok(Vec::new()),
        false => changes_from_proto(message.job.clone(), message.update_mask.clone()),
    };
    let mut changes = changes.map_err(|violations| found.extend(violations)).ok();
    if let Some(changes) = changes.as_mut().filter(|_| message.move_to_front) {
        // The leader knows which record it becomes.
        changes.push(FieldChange::Front(None));
    }
    let (Some(request), Some(job), Some(expected), Some(changes)) = (id, job, expected, changes) else {
        return Err(invalid(found));
    };
    let acts_for = caller.acts_for().map_err(|refusal| to_status(&refusal))?;
    let by = requester(&caller);
    let order = ModifyOrder { request, by, acts_for, job, expected, changes };
    let local = || async {
        let engine = router.engine();
        caller.check_job(&engine.view(), job)?;
        for change in &order.changes {
            if let FieldChange::Tenant(tenant) = change {
                caller.check_tenant(&engine.view(), tenant)?;
            }
        }
        if message.validate_only {
            let view = engine.reading();
            engine.check_modify(&view, &order)?;
            let shown = arrays::job_explained(router, &view, job, caller).await?;
            let freshness = Some(freshness(engine, &view));
            return Ok(v1::UpdateJobResponse { job: shown, freshness, array: None });
        }
        let answer = engine.execute(Command::Modify(Box::new(order.clone()))).await?;
        let shown = arrays::job_after_change(&engine.view(), job, caller.visibility());
        Ok(v1::UpdateJobResponse { job: shown, freshness: written(engine, answer.at()), array: None })
    };
    let onward = |channel: Onward| {
        let request = Router::onward(message.clone(), caller);
        async move {
            let mut client = JobServiceClient::new(channel).max_decoding_message_size(ONWARD_BYTES_MAX);
            Ok(client.update_job(request).await?.into_inner())
        }
    };
    router.write(caller, local, onward).await.map(Response::new)
}
