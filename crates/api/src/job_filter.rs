//! Which jobs a list or a watch is of.

use muster_state::{ArrayRow, JobRow, Phase, Placement, State};
use muster_types::metadata::ANONYMOUS;
use muster_types::token::user_of;
use muster_types::{
    ArrayId, JobId, JobMetadata, JobSpec, LabelSelector, LogTime, MetadataBits, Name, PriorityTier,
    Violation, limits,
};
use muster_wire::closed::given_from_proto;
use muster_wire::convert::{array_id, job_id};
use muster_wire::time::timestamp_from_proto;
use muster_wire::token::filter_digest;
use muster_wire::v1;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Deref, Range};
use std::sync::Arc;
use tonic::Status;

use crate::forward::Caller;
use crate::read::invalid;
use crate::render;

/// Jobs that one filter may name.
const JOBS_MAX: usize = 1_000;
/// Jobs that one page looks at: a filter that matches nothing must not walk through millions. The
/// page ends early then, with a token.
const JOBS_LOOKED_AT_MAX: usize = 100_000;
/// Rows of labels and creators that one page looks at: each is far cheaper than a job.
const METADATA_LOOKED_AT_MAX: usize = 1_000_000;

/// The jobs of a list or a watch. What is empty narrows nothing.
#[derive(Debug, Default)]
pub(crate) struct JobFilter {
    jobs: BTreeSet<JobId>,
    array: Option<ArrayId>,
    tenant: String,
    /// Whether the tenants below that one are meant, too.
    descendants: bool,
    phases: BTreeSet<i32>,
    tiers: BTreeSet<PriorityTier>,
    name_prefix: String,
    metadata: MetadataFilter,
    region: String,
    cluster: String,
    node: String,
    created_from: Option<LogTime>,
    created_until: Option<LogTime>,
}

/// Ids that are looked at, each with the job where it may pass.
type Candidates<'a> = Box<dyn Iterator<Item = (JobId, Option<Candidate<'a>>)> + 'a>;

/// A job with what a filter looks at.
#[derive(Clone, Copy)]
pub(crate) struct Candidate<'a> {
    pub(crate) id: JobId,
    pub(crate) row: &'a JobRow,
    pub(crate) spec: &'a JobSpec,
    /// That of the spec, or the one that the job had before a change.
    pub(crate) tier: PriorityTier,
    /// Likewise.
    pub(crate) tenant: &'a Name,
    pub(crate) metadata: Option<&'a Arc<JobMetadata>>,
}

impl<'a> Candidate<'a> {
    /// A job as it is in a view; none without its specification.
    fn of(view: &'a State, id: JobId, row: &'a JobRow) -> Option<Candidate<'a>> {
        let spec = view.spec(id)?;
        let (tier, tenant, metadata) = (spec.tier, &spec.tenant, view.metadata(id));
        Some(Candidate { id, row, spec, tier, tenant, metadata })
    }
}

impl JobFilter {
    /// The filter of a request, with the caller in the place of `mine`.
    ///
    /// # Errors
    /// Lists the fields that cannot be read, below the field `at` of the request.
    pub(crate) fn new(
        at: &str,
        message: Option<v1::JobFilter>,
        caller: &Caller,
    ) -> Result<JobFilter, Status> {
        let mut found = Vec::new();
        let filter = JobFilter::read(message.unwrap_or_default(), caller, &mut found);
        match found.is_empty() {
            true => Ok(filter),
            false => Err(invalid(found.into_iter().map(|violation| violation.under(at)).collect())),
        }
    }

    fn read(message: v1::JobFilter, caller: &Caller, found: &mut Vec<Violation>) -> JobFilter {
        if message.descendants && message.tenant.is_empty() {
            found.push(Violation::new("descendants", "needs `tenant`, which they are below"));
        }
        let creator = creator(caller, message.mine, message.creator, found);
        let metadata = MetadataFilter::new(&message.label_selector, &creator).map_err(|v| found.extend(v));
        let mut moment = |field: &str, moment| {
            let read = Option::map(moment, |moment| timestamp_from_proto(field, moment));
            read.transpose().map_err(|violation| found.push(violation)).ok().flatten().map(LogTime)
        };
        let created_from = moment("created_from", message.created_from);
        let created_until = moment("created_until", message.created_until);
        let names = [
            ("tenant", &message.tenant),
            ("name_prefix", &message.name_prefix),
            ("region", &message.region),
            ("cluster", &message.cluster),
            ("node", &message.node),
        ];
        // A longer text is no name, and a watch keeps its filter for as long as it lasts.
        for (field, text) in names.into_iter().filter(|(_, text)| text.len() > limits::NAME_BYTES_MAX) {
            let max = limits::NAME_BYTES_MAX;
            found.push(Violation::new(field, format!("must be at most {max} bytes, got {}", text.len())));
        }
        let mut tiers = BTreeSet::new();
        for (place, tier) in message.tiers.into_iter().enumerate() {
            match given_from_proto(&format!("tiers[{place}]"), tier) {
                Ok(tier) => _ = tiers.insert(tier),
                Err(violation) => {
                    found.push(violation);
                    break;
                }
            }
        }
        let array = match message.array_id.as_str() {
            "" => None,
            text => array_id("array_id", text).map_err(|violation| found.push(violation)).ok(),
        };
        JobFilter {
            jobs: job_ids(&message.job_ids, found),
            array,
            tenant: message.tenant,
            descendants: message.descendants,
            phases: phases(&message.phases, found),
            tiers,
            name_prefix: message.name_prefix,
            metadata: metadata.unwrap_or_default(),
            region: message.region,
            cluster: message.cluster,
            node: message.node,
            created_from,
            created_until,
        }
    }

    /// Of all that narrows it down, to tell it from another one.
    pub(crate) fn digest(&self) -> u64 {
        // No watch of anything else begins with this word.
        let mut parts = vec!["jobs".to_owned()];
        let mut part = |key: &str, value: String| parts.push(format!("{key}={value}"));
        self.jobs.iter().for_each(|id| part("job", id.to_string()));
        self.phases.iter().for_each(|phase| part("phase", phase.to_string()));
        self.tiers.iter().for_each(|tier| part("tier", tier.to_string()));
        self.array.iter().for_each(|id| part("array", id.to_string()));
        self.created_from.iter().for_each(|at| part("from", at.0.to_string()));
        self.created_until.iter().for_each(|at| part("until", at.0.to_string()));
        if self.descendants {
            part("descendants", String::new());
        }
        let texts = [
            ("tenant", &self.tenant),
            ("name", &self.name_prefix),
            ("region", &self.region),
            ("cluster", &self.cluster),
            ("node", &self.node),
        ];
        for (key, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
            part(key, text.clone());
        }
        parts.extend(self.metadata.parts());
        filter_digest(parts.iter().map(String::as_str))
    }

    /// Whether a list shows the job, and a watch that begins.
    pub(crate) fn shows(&self, view: &State, job: Candidate<'_>) -> bool {
        let phase: i32 = render::phase_of(&job.row.phase).into();
        (self.phases.is_empty() || self.phases.contains(&phase))
            && self.covers(&|| view, job)
            && self.is_placed(&|| view, [job.row.placement.as_deref()])
    }

    /// Whether a watch tells of a change of the job: also of one that it left the filter's place by, or its phases. Most
    /// filters need no state for that, and every watch asks for every change.
    pub(crate) fn follows(&self, view: impl Fn() -> Arc<State>, job: Candidate<'_>) -> bool {
        self.covers(&view, job)
            && self.is_placed(&view, [job.row.placement.as_deref(), job.row.previous.as_deref()])
    }

    /// Whether a watch tells that the job is not kept any more: what it was, nobody knows by then.
    pub(crate) fn may_have_shown(&self, id: JobId) -> bool {
        (self.jobs.is_empty() || self.jobs.contains(&id))
            && self.array.is_none_or(|array| range_of(array).contains(&id))
    }

    /// Whether it passes by what never changes of it, by its tier and by what it carries.
    fn covers<V: Deref<Target = State>>(&self, view: &impl Fn() -> V, job: Candidate<'_>) -> bool {
        let Candidate { id, row, spec, tier, tenant, metadata } = job;
        let array = || spec.array.map(|member| ArrayId::of_member(id, member.ordinal));
        (self.jobs.is_empty() || self.jobs.contains(&id))
            && (self.array.is_none() || self.array == array())
            && self.is_of_tenant(view, tenant)
            && (self.tiers.is_empty() || self.tiers.contains(&tier))
            && spec.name.starts_with(&self.name_prefix)
            && self.created_from.is_none_or(|from| row.submitted_at >= from)
            && self.created_until.is_none_or(|until| row.submitted_at < until)
            && self.metadata.passes(metadata)
    }

    fn is_of_tenant<V: Deref<Target = State>>(&self, view: &impl Fn() -> V, tenant: &Name) -> bool {
        let is_it = |tenant: &Name| **tenant == *self.tenant;
        self.tenant.is_empty()
            || is_it(tenant)
            || (self.descendants && view().policy().policy.ancestry(tenant).any(is_it))
    }

    fn is_placed<V: Deref<Target = State>, const N: usize>(
        &self,
        view: &impl Fn() -> V,
        places: [Option<&Placement>; N],
    ) -> bool {
        if self.region.is_empty() && self.cluster.is_empty() && self.node.is_empty() {
            return true;
        }
        let node = Name::new(&self.node).and_then(|name| view().node_named(&name));
        places.into_iter().flatten().any(|place| {
            (self.region.is_empty() || *place.region == *self.region)
                && (self.cluster.is_empty() || *place.cluster == *self.cluster)
                && (self.node.is_empty() || place.slots.iter().any(|slot| Some(slot.node) == node))
        })
    }

    /// Jobs that a page looks at, newest first: those before `after`, and how many of them it may look at. Where only jobs
    /// that carry something can pass, all those that do are walked through and nothing else is read of the others.
    pub(crate) fn candidates<'a>(&'a self, view: &'a State, after: Option<JobId>) -> (Candidates<'a>, usize) {
        let end = after.unwrap_or(JobId(u64::MAX));
        let of = move |id: JobId, row| Candidate::of(view, id, row);
        if !self.jobs.is_empty() {
            let named = self.jobs.range(..end).rev();
            let jobs = named.map(move |id| (*id, view.job(*id).and_then(|row| of(*id, row))));
            return (Box::new(jobs), JOBS_LOOKED_AT_MAX);
        }
        let range = match self.array.map(range_of) {
            Some(array) => array.start.min(end)..array.end.min(end),
            None => JobId(0)..end,
        };
        if self.metadata.needs_metadata() && self.array.is_none() {
            let carrying = view.carriers(range, self.metadata.needed).rev();
            let mut passes = self.metadata.passes_in_order();
            let jobs = carrying.map(move |(id, carried)| {
                let row = carried.is_some_and(&mut passes).then(|| view.job(id)).flatten();
                (id, row.and_then(|row| of(id, row)))
            });
            return (Box::new(jobs), METADATA_LOOKED_AT_MAX);
        }
        let jobs = view.jobs().range(range).rev();
        (Box::new(jobs.map(move |(id, row)| (*id, of(*id, row)))), JOBS_LOOKED_AT_MAX)
    }

    /// The jobs that a watch begins with, and none for each that is looked at and not one of them.
    pub(crate) fn present<'a>(
        &'a self,
        view: &'a State,
    ) -> Box<dyn Iterator<Item = Option<Candidate<'a>>> + Send + 'a> {
        let of = move |id: JobId| {
            let job = Candidate::of(view, id, view.job(id)?)?;
            self.shows(view, job).then_some(job)
        };
        match (self.jobs.is_empty(), self.array.map(range_of)) {
            (false, _) => Box::new(self.jobs.iter().map(move |id| of(*id))),
            (true, Some(range)) => Box::new(view.jobs().range(range).map(move |(id, _)| of(*id))),
            (true, None) => Box::new(view.jobs().iter().map(move |(id, _)| of(*id))),
        }
    }

    /// The jobs that it names.
    pub(crate) fn named(&self) -> impl Iterator<Item = JobId> {
        self.jobs.iter().copied()
    }

    /// The tenant that it narrows to; none for a text that is no tenant's name, which nothing matches.
    pub(crate) fn tenant(&self) -> Option<Name> {
        Name::new(&self.tenant)
    }

    /// Whether it names a member of an array that has no row among the jobs, and shows it.
    pub(crate) fn shown_member(&self, view: &State, id: JobId) -> Option<()> {
        if !self.jobs.contains(&id) {
            return None;
        }
        let (row, spec) = view.shown_member(id)?;
        let spec = Arc::new(spec);
        let job = Candidate {
            id,
            row: &row,
            spec: &spec,
            tier: spec.tier,
            tenant: &spec.tenant,
            metadata: view.carried(id),
        };
        self.shows(view, job).then_some(())
    }

    /// Arrays by what their members have in common, newest first: those before `after`.
    pub(crate) fn arrays<'a>(
        &'a self,
        view: &'a State,
        after: Option<ArrayId>,
    ) -> impl Iterator<Item = (ArrayId, &'a ArrayRow)> {
        let found = self.array_candidates(view, after);
        found.filter(move |(id, row)| self.covers_array(view, *id, row))
    }

    /// The arrays to look at for that: the one that is named, or all.
    pub(crate) fn array_candidates<'a>(
        &self,
        view: &'a State,
        after: Option<ArrayId>,
    ) -> impl Iterator<Item = (ArrayId, &'a ArrayRow)> + use<'a> {
        let end = after.unwrap_or(ArrayId(u64::MAX));
        let first = self.array.unwrap_or(ArrayId(0));
        let behind = self.array.map_or(end, |only| end.min(ArrayId(only.0.saturating_add(1))));
        view.arrays().range(first.min(behind)..behind).rev().map(|(id, row)| (*id, row))
    }

    /// Whether an array passes by what its members have in common.
    pub(crate) fn covers_array(&self, view: &State, id: ArrayId, row: &ArrayRow) -> bool {
        let spec = &row.template.spec;
        self.jobs.is_empty()
            && self.array.is_none_or(|array| array == id)
            && self.is_of_tenant(&|| view, &spec.tenant)
            && (self.tiers.is_empty() || self.tiers.contains(&spec.tier))
            && spec.name.starts_with(&self.name_prefix)
            && self.created_from.is_none_or(|from| row.submitted_at >= from)
            && self.created_until.is_none_or(|until| row.submitted_at < until)
            && self.metadata.passes(row.template.metadata.as_ref())
    }

    /// Whether it passes members that are not created as far as phases and places are concerned: they wait, and are nowhere.
    pub(crate) fn passes_uncreated(&self) -> bool {
        let pending = i32::from(v1::JobPhase::Pending);
        (self.phases.is_empty() || self.phases.contains(&pending))
            && self.region.is_empty()
            && self.cluster.is_empty()
            && self.node.is_empty()
    }

    /// The first field that says nothing of arrays, if one is given.
    pub(crate) fn field_of_jobs(&self) -> Option<&'static str> {
        let given = [
            ("job_ids", !self.jobs.is_empty()),
            ("region", !self.region.is_empty()),
            ("cluster", !self.cluster.is_empty()),
            ("node", !self.node.is_empty()),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(field, _)| field)
    }

    /// The phases that it narrows to; empty for all.
    pub(crate) fn phases(&self) -> &BTreeSet<i32> {
        &self.phases
    }

    /// Every job that a list shows and that is not over, oldest first, however many: those behind `after`.
    pub(crate) fn unfinished<'a>(
        &'a self,
        view: &'a State,
        after: Option<JobId>,
    ) -> Box<dyn Iterator<Item = Candidate<'a>> + 'a> {
        let is_over = |row: &JobRow| matches!(row.phase, Phase::Finished(_));
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        if !self.jobs.is_empty() {
            let named = self.jobs.iter().filter(move |id| after.is_none_or(|after| **id > after));
            let jobs = named.filter_map(move |id| Candidate::of(view, *id, view.job(*id)?));
            return Box::new(jobs.filter(move |job| !is_over(job.row) && self.shows(view, *job)));
        }
        let range = match self.array.map(range_of) {
            Some(Range { start, end }) => {
                let is_within = after.is_some_and(|after| after >= start);
                (if is_within { begin } else { Bound::Included(start) }, Bound::Excluded(end))
            }
            None => (begin, Bound::Unbounded),
        };
        if self.metadata.needs_metadata() && self.array.is_none() {
            // Only jobs that carry something can pass, and nothing is read of those that carry something else.
            let mut passes = self.metadata.passes_in_order();
            let jobs = view.carriers(range, self.metadata.needed).filter_map(move |(id, carried)| {
                let row = carried.is_some_and(&mut passes).then(|| view.job(id)).flatten()?;
                Candidate::of(view, id, row)
            });
            return Box::new(jobs.filter(move |job| !is_over(job.row) && self.shows(view, *job)));
        }
        // Three tables in one order: none of them is searched.
        let mut carrying = view.all_metadata().range(range).peekable();
        let jobs = view.jobs_with_specs(range).filter(move |(_, row, _)| !is_over(row));
        let jobs = jobs.map(move |(id, row, spec)| {
            while carrying.next_if(|(carrier, _)| **carrier < id).is_some() {}
            let metadata =
                carrying.peek().filter(|(carrier, _)| **carrier == id).map(|(_, carried)| *carried);
            Candidate { id, row, spec, tier: spec.tier, tenant: &spec.tenant, metadata }
        });
        Box::new(jobs.filter(move |job| self.shows(view, *job)))
    }

    /// Whether every job behind this one, which are older, was submitted too early.
    pub(crate) fn is_past(&self, job: Candidate<'_>) -> bool {
        self.created_from.is_some_and(|from| job.row.submitted_at < from)
    }
}

/// Ids that jobs of an array may have, from its first job on.
fn range_of(ArrayId(first): ArrayId) -> Range<JobId> {
    JobId(first)..ArrayId(first).member(limits::ARRAY_MEMBERS_MAX)
}

/// The creator that a list or a watch is narrowed to.
fn creator(caller: &Caller, mine: bool, creator: String, found: &mut Vec<Violation>) -> String {
    match (mine, caller.creator()) {
        (false, _) => creator,
        (true, _) if !creator.is_empty() => {
            let text = "cannot be given together with `mine`, which is the creator that asks";
            found.push(Violation::new("creator", text));
            String::new()
        }
        (true, nobody) if nobody.is_empty() => ANONYMOUS.to_owned(),
        // Whatever the user submitted, with a certificate or with any of its tokens.
        (true, creator) => user_of(&creator).to_owned(),
    }
}

fn job_ids(texts: &[String], found: &mut Vec<Violation>) -> BTreeSet<JobId> {
    if texts.len() > JOBS_MAX {
        found.push(Violation::limit("job_ids", texts.len() as u64, 0, JOBS_MAX as u64));
        return BTreeSet::new();
    }
    let mut jobs = BTreeSet::new();
    for (place, text) in texts.iter().enumerate() {
        match job_id(&format!("job_ids[{place}]"), text) {
            Ok(id) => drop(jobs.insert(id)),
            Err(violation) => found.push(violation),
        }
    }
    jobs
}

fn phases(numbers: &[i32], found: &mut Vec<Violation>) -> BTreeSet<i32> {
    for number in numbers {
        if let Ok(v1::JobPhase::Unspecified) | Err(_) = v1::JobPhase::try_from(*number) {
            found.push(Violation::new("phases", format!("{number} is not a phase")));
            return BTreeSet::new();
        }
    }
    numbers.iter().copied().collect()
}

/// The labels and the creator that jobs must have.
#[derive(Debug, Default)]
struct MetadataFilter {
    selector: LabelSelector,
    /// The creator that a job must have; empty when every creator is selected.
    creator: String,
    /// Bits that every job has which carries what is selected.
    needed: MetadataBits,
}

impl MetadataFilter {
    /// # Errors
    /// When the selector cannot be read; the violation says at which character.
    fn new(label_selector: &str, creator: &str) -> Result<MetadataFilter, Vec<Violation>> {
        let mut violations = Vec::new();
        let selector = LabelSelector::parse(label_selector).unwrap_or_else(|error| {
            violations.push(Violation::new("label_selector", error.to_string()));
            LabelSelector::default()
        });
        if creator.len() > limits::CREATOR_BYTES_MAX {
            let max = limits::CREATOR_BYTES_MAX;
            violations.push(Violation::new("creator", format!("must be at most {max} bytes")));
        }
        if !violations.is_empty() {
            return Err(violations);
        }
        let by = if creator.is_empty() { MetadataBits::default() } else { MetadataBits::of_creator(creator) };
        let needed = selector.needed_bits().and(by);
        Ok(MetadataFilter { selector, creator: creator.to_owned(), needed })
    }

    /// Whether it passes every job.
    fn is_empty(&self) -> bool {
        self.selector.is_empty() && self.creator.is_empty()
    }

    /// Whether a job that has neither labels nor a known creator cannot pass.
    fn needs_metadata(&self) -> bool {
        self.selector.needs_labels() || !(self.creator.is_empty() || self.creator == ANONYMOUS)
    }

    fn passes(&self, metadata: Option<&Arc<JobMetadata>>) -> bool {
        if self.is_empty() {
            return true;
        }
        let Some(metadata) = metadata else {
            let no_labels = BTreeMap::new();
            return (self.creator.is_empty() || self.creator == ANONYMOUS)
                && self.selector.matches(&no_labels);
        };
        let creator = metadata.creator();
        (self.creator.is_empty() || self.creator == creator || self.creator == user_of(creator))
            && self.selector.matches(&metadata.labels)
    }

    /// The same of what jobs carry, asked job by job along their ids. Jobs that were submitted together share what they carry, so
    /// that the answer for one is mostly that for the job before.
    fn passes_in_order<'a>(&'a self) -> impl FnMut(&'a Arc<JobMetadata>) -> bool + 'a {
        let mut before: Option<(&'a Arc<JobMetadata>, bool)> = None;
        move |carried: &'a Arc<JobMetadata>| match before {
            Some((same, passes)) if Arc::ptr_eq(same, carried) => passes,
            _ => {
                let passes = self.passes(Some(carried));
                before = Some((carried, passes));
                passes
            }
        }
    }

    /// What it adds to the filter that a token belongs to.
    fn parts(&self) -> Vec<String> {
        if self.is_empty() {
            return Vec::new();
        }
        vec!["labels".to_owned(), self.selector.to_string(), self.creator.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_tests::host;
    use muster_decider::{
        Answer, BootstrapConfig, Command, ControlOrder, JobSelection, ModifyOrder, Speculation, handle,
    };
    use muster_transport::Principal;
    use muster_types::{
        ArraySpec, ClusterId, Control, FieldChange, HolderId, JobDraft, Leadership, Parameters, ReplicaId,
        RequestId, Requester, Submission, TaskGroup, WorkerRequest,
    };
    use std::time::Instant;

    fn metadata(labels: &[(&str, &str)], creator: &str) -> Option<Arc<JobMetadata>> {
        let labels = labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Some(Arc::new(JobMetadata { labels, creator: creator.to_owned(), ..JobMetadata::default() }))
    }

    #[test]
    fn a_job_without_metadata_is_anonymous_and_has_no_labels() {
        let passes = |selector: &str, creator: &str, metadata: Option<Arc<JobMetadata>>| {
            let filter = MetadataFilter::new(selector, creator).expect("a filter");
            if metadata.is_none() {
                assert!(!(filter.needs_metadata() && filter.passes(None)), "{selector} {creator}");
            }
            filter.passes(metadata.as_ref())
        };
        let ada = || metadata(&[("team", "a")], "tenant/vision/ada");
        for (selector, creator, of_none, of_ada) in [
            ("", "", true, true),
            ("team", "", false, true),
            ("!team", "", true, false),
            ("team!=a", "", true, false),
            ("", "anonymous", true, false),
            ("", "tenant/vision/ada", false, true),
            ("!team", "tenant/vision/ada", false, false),
            ("team=a", "anonymous", false, false),
        ] {
            assert_eq!(passes(selector, creator, None), of_none, "{selector} {creator}");
            assert_eq!(passes(selector, creator, ada()), of_ada, "{selector} {creator}");
        }
        assert!(MetadataFilter::new("", &"x".repeat(161)).is_err());
    }

    /// Jobs without labels and with different ones, several of a submission, and members of arrays; every third is over, and two
    /// have other labels than they came with.
    fn state_of_jobs() -> (State, Vec<JobId>) {
        let name = |text: &str| Name::new(text).expect("a name");
        let request = WorkerRequest {
            accelerators: None,
            cpu_milli: 1,
            memory_bytes: 1 << 20,
            exclusive: false,
            scratch_bytes: 0,
        };
        let group = TaskGroup::new(name("main"), 1, vec!["train".to_owned()], request);
        let spec = JobDraft::new(name("train"), name("vision"), vec![group]).check().expect("a job");
        let founding = BootstrapConfig::new(ClusterId(1), Parameters::DEFAULT);
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        let now = LogTime(1_800_000_000_000);
        let mut speculation = Speculation::begin(State::default(), leadership, now, founding);
        let holder = HolderId(1);
        let register = Command::Register { spec: host("h1"), holder, other_session_is_over: true };
        handle(&mut speculation, &register).expect("a host comes");
        let carried = [
            metadata(&[("team", "a")], "tenant/vision/ada"),
            None,
            metadata(&[("team", "b")], ""),
            metadata(&[("team", "a"), ("stage", "train")], "tenant/vision/bob"),
        ];
        let mut ids = Vec::new();
        for (number, metadata) in (1..=12).zip(carried.into_iter().cycle()) {
            let array = (number % 5 == 0).then(|| ArraySpec::of_size(6));
            let count = if array.is_some() { 1 } else { 3 };
            let job = Submission { metadata, array, ..Submission::from(spec.clone()) };
            let submit = Command::submit(RequestId(number), vec![job; count].into());
            match handle(&mut speculation, &submit).expect("they are taken") {
                Answer::Submitted { jobs, .. } => ids.extend(jobs),
                other => panic!("a submission is answered as one, not {other:?}"),
            }
        }
        let over: Vec<JobId> = ids.iter().copied().step_by(3).collect();
        let order = ControlOrder {
            request: RequestId(100),
            by: Requester::named(String::new(), true),
            acts_for: None,
            control: Control::Cancel,
            selection: JobSelection::named(over),
        };
        handle(&mut speculation, &Command::Control(Box::new(order))).expect("they end");
        for (request, job, team) in [(101, ids[1], "b"), (102, ids[4], "c")] {
            let labels = BTreeMap::from([("team".to_owned(), team.to_owned())]);
            let order = ModifyOrder {
                request: RequestId(request),
                by: Requester::named(String::new(), true),
                acts_for: None,
                job,
                expected: None,
                changes: vec![FieldChange::Labels(labels)],
            };
            handle(&mut speculation, &Command::Modify(Box::new(order))).expect("it has other labels");
        }
        (speculation.state().clone(), ids)
    }

    #[test]
    fn the_walk_of_a_selector_finds_what_a_look_at_every_job_finds() {
        let (state, ids) = state_of_jobs();
        // In a state from a snapshot no two jobs share what they carry.
        let restored = State::restore(state.snapshot()).expect("its own snapshot");
        let labelled =
            |selector: &str| v1::JobFilter { label_selector: selector.to_owned(), ..Default::default() };
        let (array, _) = state.arrays().iter().next().expect("there are arrays");
        let of_array = v1::JobFilter { array_id: array.to_string(), ..Default::default() };
        let creator = "tenant/vision/ada".to_owned();
        let messages = [
            v1::JobFilter::default(),
            labelled("team"),
            labelled("team=a"),
            labelled("team=c"),
            labelled("team in (a,b),!stage"),
            labelled("team notin (a,b)"),
            labelled("!team"),
            labelled("team!=a"),
            v1::JobFilter { creator, ..Default::default() },
            v1::JobFilter { tenant: "vision".to_owned(), ..labelled("stage") },
            v1::JobFilter { job_ids: ids.iter().map(ToString::to_string).collect(), ..Default::default() },
            of_array,
            labelled("team=nobody"),
        ];
        let caller = Caller::reading(Principal::Plaintext, tokio::time::Instant::now());
        for message in messages {
            let filter = JobFilter::new("filter", Some(message.clone()), &caller).expect("a filter");
            for view in [&state, &restored] {
                let plain = |after: Option<JobId>| {
                    let jobs = view.jobs().iter().filter_map(|(id, row)| Candidate::of(view, *id, row));
                    let jobs = jobs.filter(|job| {
                        let is_over = matches!(job.row.phase, Phase::Finished(_));
                        !is_over && after.is_none_or(|after| job.id > after) && filter.shows(view, *job)
                    });
                    jobs.map(|job| (job.id, job.metadata.cloned())).collect::<Vec<_>>()
                };
                assert_eq!(plain(None).is_empty(), message.label_selector == "team=nobody", "{message:?}");
                let starts = ids.iter().copied().chain([JobId(0), JobId(u64::MAX)]).map(Some).chain([None]);
                for after in starts {
                    let walked = filter.unfinished(view, after);
                    let walked: Vec<_> = walked.map(|job| (job.id, job.metadata.cloned())).collect();
                    assert_eq!(walked, plain(after), "{message:?} behind {after:?}");
                }
                let listed = filter.candidates(view, None).0.filter_map(|(_, job)| job);
                let mut listed: Vec<JobId> =
                    listed.filter(|job| filter.shows(view, *job)).map(|job| job.id).collect();
                listed.reverse();
                let shown = view.jobs().iter().filter_map(|(id, row)| Candidate::of(view, *id, row));
                let shown: Vec<JobId> =
                    shown.filter(|job| filter.shows(view, *job)).map(|job| job.id).collect();
                assert_eq!(listed, shown, "{message:?}");
            }
        }
    }

    /// `cargo test --release -p muster-api selectors -- --ignored --nocapture`: how long a selector takes that walks through
    /// a million rows and matches one of them.
    #[test]
    #[ignore = "a measurement"]
    fn selectors_over_a_million_rows() {
        let mut rows: muster_state::Map<u64, Option<Arc<JobMetadata>>> = muster_state::Map::default();
        for n in 0..1_000_000 {
            let (team, run) = (format!("team-{}", n % 50), format!("run-{n}"));
            let labels =
                [("team", team.as_str()), ("run", run.as_str()), ("stage", "train"), ("debug", "no")];
            rows.insert(n, metadata(&labels, "tenant/vision/ada"));
        }
        for (selector, creator) in [
            ("run=run-7", ""),
            ("team=team-7,run=run-7", ""),
            ("run in (run-7,run-8,run-9),stage=train,!x", ""),
            ("", "tenant/vision/bob"),
        ] {
            let filter = MetadataFilter::new(selector, creator).expect("a filter");
            let begun = Instant::now();
            let passing = rows.iter().filter(|(_, metadata)| filter.passes(metadata.as_ref())).count();
            eprintln!("{selector:?} {creator:?}: {passing} in {:?}", begun.elapsed());
        }
    }
}
