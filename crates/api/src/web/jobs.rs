//! The list of jobs, and one of them.

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use muster_decider::JobExplanation;
use muster_engine::Change;
use muster_journal::WorkerSlot;
use muster_page::{EstimateOf, Group, GroupBy, Groups, JobDetail, JobQuery};
use muster_planner::ClusterReport;
use muster_state::{GangClass, Phase, State as Applied};
use muster_types::metadata::{LABEL_KEY_RULE, is_label_key};
use muster_types::{ArrayId, JobId, Name, PriorityTier};
use muster_wire::closed::{ClosedSet, number, of_word, phase_word, words};
use muster_wire::v1;
use std::collections::{BTreeMap, BTreeSet};

use super::estimates::{Found, Unmade, as_of};
use super::time_travel::PageRequest;
use super::{Problem, Reader, Scene, Web, events, output};
use crate::arrays;
use crate::explanation;
use crate::job_filter::{Candidate, JobFilter};
use crate::job_service;
use crate::read::present;
use crate::render::{self, Detail};

/// Rows of a page.
const JOBS_SHOWN: usize = 100;
/// Jobs that match and are counted one by one.
const JOBS_COUNTED_MAX: usize = 20_000;
/// Groups of one count.
const GROUPS_SHOWN_MAX: usize = 200;
/// Different requests for which a count by reasons asks the planner; others are counted as `PENDING` or `REQUEUED`.
const REASONS_ASKED_MAX: usize = 64;
/// Changes of a job that its page shows.
const CHANGES_SHOWN: usize = 30;

/// Jobs whose explanations are kept for those who ask again, and that are explained at a time, in all and for one account.
pub(super) const EXPLANATIONS_KEPT: usize = 64;
pub(super) const EXPLANATIONS_MADE: (usize, usize) = (2, 1);
/// What those that are kept take together: most have a few kilobytes, and one of a gang of many workers or with many conditions
/// has hundreds.
pub(super) const EXPLANATIONS_BYTES: usize = 16 << 20;
/// About what an explanation takes without its workers and clusters, and what a cluster in it takes.
const EXPLANATION_BYTES: usize = 4 << 10;
const CLUSTER_BYTES: usize = 512;

/// Parameters of the list.
const PARAMETERS: [&str; 12] = [
    "tenant", "phase", "tier", "name", "labels", "region", "array", "creator", "group", "label", "page",
    "open",
];

/// What an address asks for by its parameters, and the filter that it stands for.
fn filter_of(values: [String; 12]) -> Result<(JobQuery, v1::JobFilter), Problem> {
    let [tenant, phase, tier, name, labels, region, array, creator, group, label, page, open] = values;
    let mut wrong = Vec::new();
    let mut phases = Vec::new();
    for word in phase.split(',').filter(|word| !word.is_empty()) {
        match of_word::<v1::JobPhase>(word) {
            Some(phase) => phases.push(number(phase)),
            None => {
                let text = format!("must be one or several of {}", words::<v1::JobPhase>());
                wrong = vec![("phase".to_owned(), text)];
            }
        }
    }
    let of_tier = of_word::<PriorityTier>(&tier);
    if of_tier.is_none() && !tier.is_empty() {
        wrong.push(("tier".to_owned(), format!("must be one of {}", words::<PriorityTier>())));
    }
    let of_group = GroupBy::ALL.into_iter().find(|by| by.word() == group);
    if of_group.is_none() && !group.is_empty() {
        let known = GroupBy::ALL.map(GroupBy::word).join(", ");
        wrong.push(("group".to_owned(), format!("must be one of {known}")));
    }
    if of_group == Some(GroupBy::Label) && !is_label_key(&label) {
        wrong.push(("label".to_owned(), format!("the key {LABEL_KEY_RULE}")));
    }
    if !open.is_empty() && open.parse::<JobId>().is_err() {
        wrong.push(("open".to_owned(), "must be the id of a job".to_owned()));
    }
    let group = of_group;
    let query =
        JobQuery { tenant, phase, tier, name, labels, region, array, creator, group, label, page, open };
    if !wrong.is_empty() {
        return Err(Problem::fields(wrong).with_form(&query));
    }
    let filter = v1::JobFilter {
        tenant: query.tenant.clone(),
        phases,
        tiers: of_tier.map(number).into_iter().collect(),
        name_prefix: query.name.clone(),
        label_selector: query.labels.clone(),
        region: query.region.clone(),
        array_id: query.array.clone(),
        creator: query.creator.clone(),
        ..Default::default()
    };
    Ok((query, filter))
}

pub(super) async fn list(
    State(web): State<Web>,
    Extension(reader): Extension<Reader>,
    request: Request,
) -> Result<Response, Problem> {
    let (asked, values) = PageRequest::of(reader, &request, PARAMETERS)?;
    let (query, filter) = filter_of(values)?;
    let open = query.open.parse::<JobId>().ok();
    let explained = match open {
        Some(id) => web.explained(&asked, id).await,
        None => Err(Unmade::default()),
    };
    let caller = reader.caller();
    let is_narrowed = filter != v1::JobFilter::default();
    let parsed = |filter| {
        JobFilter::new("filter", Some(filter), &caller)
            .map_err(|refused| Problem::from(refused).with_form(&query))
    };
    let (counted, filter) = (parsed(filter.clone())?, parsed(filter)?);
    let form = query.clone();
    let make = move |scene: &Scene| {
        let view = &scene.state;
        let shown = (JOBS_SHOWN, Detail::Basic, scene.visibility());
        let listed = job_service::list(scene.engine(), view, &query.page, filter, shown)?;
        let by = query.group.map(|by| (by, query.label.as_str()));
        let groups = by.map(|by| groups(scene, &counted, by, is_narrowed));
        let open = open.and_then(|id| detail(scene, id, &explained));
        let page = (listed.jobs.as_slice(), listed.next_page_token.as_str());
        Ok(muster_page::jobs(&scene.frame(), &query, page, groups.as_ref(), open.as_ref()))
    };
    let answered = web.read(asked, JOBS_SHOWN * job_service::ROW_BYTES, make).await;
    answered.map_err(|problem| problem.with_form(&form))
}

/// Counts of jobs. By tenant, where nothing narrows them down, they come from an index; else those that match are counted one by
/// one, from the newest on and no further than a list looks.
fn groups(scene: &Scene, filter: &JobFilter, (by, label): (GroupBy, &str), is_narrowed: bool) -> Groups {
    let view: &Applied = &scene.state;
    let mut reasons = Reasons::default();
    if by == GroupBy::Tenant && !is_narrowed {
        return of_tenants(view);
    }
    let mut counts: BTreeMap<String, Group> = BTreeMap::new();
    let (mut looked_at, mut matching, mut is_cut) = (0, 0, false);
    let (candidates, looked_at_max) = filter.candidates(view, None);
    for (_, candidate) in candidates {
        if looked_at == looked_at_max || matching == JOBS_COUNTED_MAX {
            is_cut = true;
            break;
        }
        looked_at += 1;
        let Some(job) = candidate.filter(|job| filter.shows(view, *job)) else { continue };
        matching += 1;
        let value = match by {
            GroupBy::Reason => reasons.of(scene, &job),
            by => value_of(&job, by, label),
        };
        if counts.len() == GROUPS_SHOWN_MAX && !counts.contains_key(&value) {
            is_cut = true;
            continue;
        }
        let group = counts.entry(value).or_insert_with_key(|value| Group {
            value: value.clone(),
            finished: Some(0),
            ..Group::default()
        });
        match &job.row.phase {
            Phase::Pending => group.pending += 1,
            Phase::Finished(_) => group.finished = group.finished.map(|count| count + 1),
            Phase::Starting | Phase::Running | Phase::Stopping(_) => group.active += 1,
        }
    }
    let counted = Some((matching as u64, looked_at as u64));
    Groups { by, rows: counts.into_values().collect(), counted, is_cut }
}

fn value_of(job: &Candidate<'_>, by: GroupBy, label: &str) -> String {
    match by {
        GroupBy::Tenant => job.spec.tenant.to_string(),
        GroupBy::Tier => job.tier.word().to_owned(),
        GroupBy::Phase => phase_word(render::phase_of(&job.row.phase)).to_owned(),
        // That of a pending job is of an attempt before: it holds nothing there.
        GroupBy::Region => job
            .row
            .placement
            .as_ref()
            .filter(|_| job.row.phase != Phase::Pending)
            .map(|placement| placement.region.to_string())
            .unwrap_or_default(),
        GroupBy::Creator => job.metadata.map(|carries| carries.creator.clone()).unwrap_or_default(),
        GroupBy::Array => job
            .spec
            .array
            .map(|member| ArrayId::of_member(job.id, member.ordinal).to_string())
            .unwrap_or_default(),
        GroupBy::Accelerator => {
            let requests = job.spec.groups.iter().filter_map(|group| group.request.accelerators.as_ref());
            let kinds = requests.flat_map(|request| &request.choices).map(|choice| choice.kind.as_str());
            kinds.collect::<BTreeSet<&str>>().into_iter().collect::<Vec<&str>>().join(", ")
        }
        // Asked with what is known of others that ask for the same.
        GroupBy::Reason => String::new(),
        GroupBy::Label => {
            job.metadata.and_then(|carries| carries.labels.get(label).cloned()).unwrap_or_default()
        }
    }
}

/// Why jobs wait. Jobs of one tenant that ask for the same wait for the same reason.
#[derive(Default)]
struct Reasons {
    /// Codes by tenant and request.
    known: BTreeMap<(Name, GangClass), String>,
}

impl Reasons {
    /// The code for a job; empty for one that does not wait.
    fn of(&mut self, scene: &Scene, job: &Candidate<'_>) -> String {
        if job.row.phase != Phase::Pending {
            return String::new();
        }
        let (code, _) = render::status_of(&scene.state, job.id, job.row);
        // Where only the planner can tell.
        if !job.row.is_in_line() {
            return code;
        }
        let key = (job.spec.tenant.clone(), GangClass::of(job.spec));
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        if self.known.len() >= REASONS_ASKED_MAX {
            return code;
        }
        let asked = scene.engine().explain_briefly_here(&scene.state, job.id);
        let code = asked.map_or(code, |(reason, _)| reason.code().to_owned());
        self.known.insert(key, code.clone());
        code
    }
}

fn of_tenants(view: &Applied) -> Groups {
    let names = view.queues_behind(None, GROUPS_SHOWN_MAX + 1);
    let rows = names.iter().take(GROUPS_SHOWN_MAX).filter_map(|name| {
        let load = view.queue(name)?.load;
        let value = name.to_string();
        Some(Group { value, pending: load.pending_jobs, active: load.active_jobs, finished: None })
    });
    let is_cut = names.len() > GROUPS_SHOWN_MAX;
    Groups { by: GroupBy::Tenant, rows: rows.collect(), counted: None, is_cut }
}

pub(super) async fn one(
    State(web): State<Web>,
    Extension(reader): Extension<Reader>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let (asked, []) = PageRequest::of(reader, &request, [])?;
    let id: Option<JobId> = id.ok().and_then(|Path(text)| text.parse().ok());
    let no_id = || Problem::new(StatusCode::NOT_FOUND, "Not found", "The address names no job.");
    let id = id.ok_or_else(no_id)?;
    let explained = web.explained(&asked, id).await;
    let make = move |scene: &Scene| {
        let shown = detail(scene, id, &explained);
        let shown = shown.ok_or_else(|| Problem::from(job_service::no_such_job(id)))?;
        Ok(muster_page::job(&scene.frame(), &shown))
    };
    web.read(asked, job_service::FULL_PAGE_BYTES, make).await
}

/// Why a job waits, as it was explained lately, or why that is not known; nothing of one that did not wait.
type Explained = Found<Option<JobExplanation>>;

/// About what an explanation takes in memory.
pub(super) fn explanation_bytes(explained: &Option<JobExplanation>) -> usize {
    let Some(explained) = explained else { return 0 };
    let workers = explained.plan.as_ref().map_or(0, |plan| plan.workers.len());
    let texts = |report: &ClusterReport| -> usize {
        let unmet = report.unmet.iter().map(|(condition, _)| size_of::<(String, u32)>() + condition.len());
        unmet.sum::<usize>() + report.out_because.iter().map(String::len).sum::<usize>()
    };
    let clusters = explained.places.clusters.iter().map(|report| CLUSTER_BYTES + texts(report));
    EXPLANATION_BYTES + workers * size_of::<WorkerSlot>() + clusters.sum::<usize>()
}

impl Web {
    /// Why a job of the present waits, where a page asks for it; none where that takes too long. Only for one that waits the
    /// whole fleet is looked at.
    async fn explained(&self, asked: &PageRequest, job: JobId) -> Explained {
        let (engine, state) = (self.engine().clone(), present(self.engine()));
        let waits = state.job(job).is_some_and(|row| row.phase == Phase::Pending);
        if asked.at.is_some() || !waits {
            return Err(Unmade::default());
        }
        let make = {
            let state = state.clone();
            async move { engine.explain_job(&state, job).await.ok() }
        };
        self.explanations.get((asked.account(), job), &state, make).await
    }
}

/// What the page of a job shows: also of a member of an array that has no row among the jobs, as the calls do.
fn detail(scene: &Scene, id: JobId, explained: &Explained) -> Option<JobDetail> {
    let (view, visibility) = (&scene.state, scene.visibility());
    let shown = (Detail::Full, visibility);
    let row = view.job(id).zip(view.spec(id));
    let (job, (explanation, explained_of)) = match row {
        Some((row, spec)) => (render::job(view, id, row, spec, shown), why(scene, id, &row.phase, explained)),
        None => (arrays::member(view, id, shown)?, (arrays::member_explained(view, id)?, EstimateOf::Page)),
    };
    let is_of_job = |change: &Change| matches!(change, Change::Job { id: of, .. } if *of == id);
    let array = view.array_of(id).and_then(|(array, _)| {
        Some(arrays::array(view, array, view.array(array)?, (Detail::Basic, visibility)))
    });
    Some(JobDetail {
        job,
        explanation: visibility.explanation(view, id, explanation),
        explained_of,
        advice: row.and_then(|_| explanation::checkpoint_advice(view, id, view.log_time())),
        array,
        changes: events::newest(scene, CHANGES_SHOWN, is_of_job),
        is_over: row.is_none_or(|(row, _)| matches!(row.phase, Phase::Finished(_))),
        has_output: !view.is_past()
            && row.is_some_and(|(row, _)| row.placement.is_some())
            && output::is_allowed(scene, id),
    })
}

/// Why a job waits, or where it is, and which state that is of. While the explanation of one that waits is being made, its reason
/// alone is looked for.
fn why(scene: &Scene, id: JobId, phase: &Phase, explained: &Explained) -> (v1::Explanation, EstimateOf) {
    let view = &scene.state;
    let Some(row) = view.job(id) else { return Default::default() };
    let placed = || (explanation::placed(view, id, row), EstimateOf::Page);
    if *phase != Phase::Pending {
        return placed();
    }
    if view.is_past() {
        let explained = scene.engine().explain_job_here(view, id);
        return explained.map_or_else(placed, |known| (explanation::waiting(view, &known), EstimateOf::Page));
    }
    let made = explained.as_ref().ok().and_then(|estimate| (*estimate.value).as_ref());
    if let Some(known) = made {
        return (explanation::waiting(view, known), as_of(explained, view.log_index()));
    }
    let Some((reason, message)) = scene.engine().explain_briefly_here(view, id) else { return placed() };
    let brief = v1::Explanation {
        reason: reason.code().to_owned(),
        message,
        policy_version: view.policy().version.0,
        estimate: Some(render::estimate(&row.estimate)),
        ..Default::default()
    };
    (brief, explained.as_ref().err().map_or(EstimateOf::Unmade, |unmade| unmade.shown()))
}
