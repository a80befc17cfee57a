//! Watches: the present, then every change once and in order.
//!
//! What a watch must show follows from the log: behind each record the jobs that it changed, in the order of its
//! effects. A watch is held against that as far as it came; a watch whose position was lost begins again there.

use muster_state::{Effect, State};
use muster_types::JobId;
use std::collections::{BTreeMap, BTreeSet};

use super::evidence::seconds;
use super::{Checked, Findings, Rule};
use crate::history::{History, JobSeen, Outcome, WatchChange, WatchEvent};
use crate::run::{Run, Runs};

/// A watch may show an acknowledged change this much later: a client finds another replica within it.
const WATCH_LATE_US: u64 = 10_000_000;

/// One watch between two losses of its place.
struct Watch<'a> {
    number: u32,
    tenant: Option<&'a str>,
    /// What was there at the beginning, and up to which record; none where that was never complete.
    begins: Option<u64>,
    present: Vec<&'a JobSeen>,
    /// What came behind.
    events: &'a [&'a WatchEvent],
    /// Events that were held against the log.
    at: usize,
    /// Whether it was said to be wrong, or not begun.
    is_over: bool,
}

/// All watches of a history, on their way through the log.
pub(super) struct Watches<'a> {
    watches: Vec<Watch<'a>>,
}

/// Messages of all watches, each watch's in its order, cut where its place was lost.
pub(super) fn sorted(events: &[WatchEvent], until_us: Option<(u64, u64)>) -> Vec<Vec<&WatchEvent>> {
    let mut by_watch: BTreeMap<u32, Vec<Vec<&WatchEvent>>> = BTreeMap::new();
    for event in events {
        // From a previous generation of the cluster, whose records have been replaced.
        if until_us
            .is_some_and(|(before_us, from_index)| event.at_us < before_us && event.log_index >= from_index)
        {
            continue;
        }
        let parts = by_watch.entry(event.watch).or_insert_with(|| vec![Vec::new()]);
        match event.change {
            WatchChange::Restarted => parts.push(Vec::new()),
            _ => parts.last_mut().expect("there is always one part").push(event),
        }
    }
    by_watch.into_values().flatten().filter(|part| !part.is_empty()).collect()
}

impl<'a> Watches<'a> {
    /// `parts` as [`sorted`] gives them.
    pub(super) fn new(parts: &'a [Vec<&'a WatchEvent>], checked: &mut Checked) -> Watches<'a> {
        let mut watches = Vec::with_capacity(parts.len());
        for part in parts {
            let first = part[0];
            let sync = part.iter().position(|event| event.change == WatchChange::SyncEnd);
            let present = part[..sync.unwrap_or(0)].iter();
            let present = present.filter_map(|event| match &event.change {
                WatchChange::Changed(seen) => Some(seen),
                _ => None,
            });
            watches.push(Watch {
                number: first.watch,
                tenant: first.tenant.as_deref(),
                begins: sync.map(|sync| part[sync].log_index),
                present: present.collect(),
                events: &part[sync.map_or(part.len(), |sync| sync + 1)..],
                at: 0,
                is_over: sync.is_none(),
            });
        }
        checked.watches += watches.len() as u64;
        Watches { watches }
    }

    /// Behind a record.
    pub(super) fn record(
        &mut self,
        state: &State,
        index: u64,
        effects: &[Effect],
        checked: &mut Checked,
        findings: &mut Findings,
    ) {
        for watch in self.watches.iter_mut().filter(|watch| !watch.is_over) {
            let Some(begins) = watch.begins else { continue };
            if index > begins {
                for effect in effects {
                    if let Some(change) = watch.wants(state, effect) {
                        watch.take(index, &change, checked, findings);
                    }
                }
            } else if index == begins {
                watch.check_present(state, checked, findings);
            }
        }
    }

    /// Behind the last record.
    pub(super) fn end(&mut self, last_index: u64, findings: &mut Findings) {
        for watch in self.watches.iter_mut().filter(|watch| !watch.is_over) {
            let begun = watch.begins.is_some_and(|begins| begins <= last_index);
            let rest = watch.events[watch.at..].iter();
            let extra = rest
                .clone()
                .find(|event| event.change != WatchChange::Bookmark || event.log_index > last_index);
            if let Some(extra) = extra.filter(|_| begun) {
                watch.differs(findings, "shows what the log does not have", &[said(extra)]);
            } else if !begun {
                watch.differs(findings, "begins where the log does not reach", &[]);
            }
        }
    }
}

impl Watch<'_> {
    /// What the watch is to be told of an effect.
    fn wants(&self, state: &State, effect: &Effect) -> Option<WatchChange> {
        match effect {
            Effect::JobChanged(job) => {
                let row = state.job(*job)?;
                self.covers(state, *job).then(|| WatchChange::Changed(JobSeen::of(*job, row)))
            }
            // Whose it was is not known any more: everybody is told.
            Effect::JobForgotten(job) => Some(WatchChange::Forgotten { job: *job }),
            _ => None,
        }
    }

    fn covers(&self, state: &State, job: JobId) -> bool {
        let spec = state.spec(job);
        spec.is_some_and(|spec| self.tenant.is_none_or(|tenant| *spec.tenant == *tenant))
    }

    fn check_present(&mut self, state: &State, checked: &mut Checked, findings: &mut Findings) {
        let mut shown = self.present.clone();
        shown.sort_unstable();
        let there = state.jobs().iter().filter(|(job, _)| self.covers(state, **job));
        let expected: Vec<JobSeen> = there.map(|(job, row)| JobSeen::of(*job, row)).collect();
        checked.watch_events += shown.len() as u64;
        if shown.iter().copied().eq(expected.iter()) {
            return;
        }
        let only_shown =
            shown.iter().find(|seen| !expected.contains(seen)).map(|seen| format!("shown: {seen:?}"));
        let only_there =
            expected.iter().find(|seen| !shown.contains(seen)).map(|seen| format!("in the log: {seen:?}"));
        let evidence: Vec<String> = only_shown.into_iter().chain(only_there).collect();
        let words = format!("begins with {} jobs where the log has {}", shown.len(), expected.len());
        self.differs(findings, &words, &evidence);
    }

    fn take(&mut self, index: u64, change: &WatchChange, checked: &mut Checked, findings: &mut Findings) {
        if self.is_over {
            return;
        }
        while let Some(event) = self.events.get(self.at) {
            if event.change == WatchChange::Bookmark && event.log_index < index {
                self.at += 1;
                continue;
            }
            if event.log_index == index && event.change == *change {
                self.at += 1;
                checked.watch_events += 1;
                return;
            }
            let words = if event.log_index > index || event.change == WatchChange::Bookmark {
                "leaves a change out"
            } else {
                "shows what the log does not have there"
            };
            let next = format!("the log has {change:?} at {index}");
            return self.differs(findings, words, &[next, said(event)]);
        }
        // It came no further.
        self.is_over = true;
    }

    fn differs(&mut self, findings: &mut Findings, words: &str, evidence: &[String]) {
        self.is_over = true;
        let number = self.number;
        findings.add(Rule::WatchDiffers, || (format!("watch {number} {words}"), evidence.to_vec()));
    }
}

/// Holds every watch against what was acknowledged ten seconds before clients stopped: a watch that shows nothing
/// more would otherwise pass as exact. Clients stop together, at the time of the last request. A watch in a region that was cut off
/// to the end has nothing to show.
pub(super) fn check_reach(run: &Run, history: &History, checked: &mut Checked, findings: &mut Findings) {
    let stopped_us = history.operations.iter().map(|operation| operation.invoked_us).max().unwrap_or(0);
    let until_us = stopped_us.saturating_sub(WATCH_LATE_US);
    // What a previous generation of the cluster acknowledged is not part of what follows.
    let from_us = run.recovered_us.unwrap_or(0);
    let in_time = history
        .operations
        .iter()
        .filter(|operation| operation.is_write() && (from_us..until_us).contains(&operation.completed_us));
    let acknowledged = in_time.filter_map(|operation| match operation.outcome {
        Outcome::Acknowledged { log_index, .. } => Some(log_index),
        _ => None,
    });
    let due = acknowledged.max();
    let given_up = run.regions_given_up();
    let mut reached: BTreeMap<u32, u64> = BTreeMap::new();
    let mut cut_off: BTreeSet<u32> = BTreeSet::new();
    for event in &history.watch_events {
        if given_up.contains(event.region.as_str()) {
            cut_off.insert(event.watch);
        }
        let at = reached.entry(event.watch).or_default();
        if event.at_us >= from_us {
            *at = event.log_index.max(*at);
        }
    }
    let watching = run.hosts.iter().filter(|host| host.runs == Runs::Clients).count();
    // Clients of a drill on a live cluster watch nothing, and are not alone there.
    if run.only_ours && reached.len() < watching {
        let count = reached.len();
        findings.say(Rule::NotChecked, || {
            format!("watches: {watching} regions have clients, {count} watches show something")
        });
    }
    let Some(due) = due else { return };
    for (watch, reached) in reached.into_iter().filter(|(watch, _)| !cut_off.contains(watch)) {
        checked.watches_reached += 1;
        if reached < due {
            findings.say(Rule::WatchStalled, || {
                format!("watch {watch} shows nothing behind {reached}; {due} was acknowledged 10 s before it ended")
            });
        }
    }
}

fn said(event: &WatchEvent) -> String {
    let WatchEvent { watch, at_us, log_index, change, .. } = event;
    format!("watch {watch} was told at {}: {change:?} at {log_index}", seconds(*at_us))
}
