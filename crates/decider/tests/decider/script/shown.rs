//! What scripts look at: why a job waits, and the rows of the state.

use std::fmt::Write as _;

use muster_decider::{checkpoint_advice, explain_job, fails_more_often};
use muster_state::{NodeStatus, Phase, RankState};
use muster_types::LogTime;

use super::World;
use super::records::outcome_text;

impl World {
    pub(super) fn why(&self, job: &str) -> String {
        let explained =
            explain_job(self.state(), self.now, self.job_id(job), self.speculation.kept_reservations());
        let explained = explained.expect("a job");
        let mut text = format!("{explained}\n");
        if let Some(start) = explained.start {
            let after = |at: LogTime| format!("+{}m", at.since_ms(self.now) / 60_000);
            let q90 = start.q90.map_or("unknown".to_string(), after);
            writeln!(
                text,
                "  starts {} to {q90}, as likely before {} as after",
                after(start.q10),
                after(start.q50)
            )
            .unwrap();
        }
        for blocker in &explained.blockers {
            let slipped = if blocker.has_slipped { ", whose start has slipped" } else { "" };
            writeln!(text, "  capacity is reserved for {}{slipped}", blocker.name).unwrap();
        }
        for quota in &explained.quotas {
            let tenant = quota.blocked_by.tenant.as_ref().map_or("the fleet", |name| name.as_str());
            writeln!(
                text,
                "  quota of {tenant}: {} of {} thousandths of {} left",
                quota.room_milli, quota.wanted_milli, quota.kind
            )
            .unwrap();
        }
        for borrower in explained.borrowers.iter().skip(1) {
            writeln!(text, "  also, {borrower}").unwrap();
        }
        for help in &explained.places.would_help {
            writeln!(text, "  would help: {help}").unwrap();
        }
        text
    }

    pub(super) fn show_jobs(&self) -> String {
        let mut text = String::new();
        for (id, row) in self.state().jobs().iter() {
            let phase = match &row.phase {
                Phase::Pending => "pending".into(),
                Phase::Starting => "starting".into(),
                Phase::Running => "running".into(),
                Phase::Stopping(cause) => format!("stopping: {}", self.cause(cause)),
                Phase::Finished(outcome) => format!("finished: {}", outcome_text(outcome)),
            };
            let label = self.label(*id);
            write!(text, "{label}: {phase}; attempt {}, failures {}", row.attempt, row.failures).unwrap();
            if let Some(hold) = self.state().hold(*id) {
                let since = self.now.since_ms(hold.since) / 1_000;
                write!(text, ", held by {} for {since} s", hold.by).unwrap();
            }
            if let Some(control) = self.state().control(*id).filter(|control| control.requeues > 0) {
                write!(text, ", requeued {}", control.requeues).unwrap();
            }
            if let Some(placement) = &row.placement {
                let ranks: Vec<&str> = placement.ranks.iter().map(rank_text).collect();
                write!(text, "; ranks {}", ranks.join(" ")).unwrap();
            }
            text.push('\n');
        }
        if text.is_empty() { "no jobs\n".into() } else { text }
    }

    pub(super) fn show_recoveries(&self) -> String {
        let mut text = String::new();
        for (id, _) in self.state().jobs().iter() {
            let Some(row) = self.state().recovery(*id) else { continue };
            let counts: Vec<String> = row.counts.iter().map(|(class, n)| format!("{class} {n}")).collect();
            write!(text, "{}: {}; {} in a row", self.label(*id), counts.join(", "), row.streak).unwrap();
            for node in row.avoided_at(self.now) {
                write!(text, "; avoids {}", self.node_label(node)).unwrap();
            }
            if let Some(saved) = row.saved {
                write!(text, "; saved in attempt {}", saved.attempt).unwrap();
            }
            for (rank, slow) in &row.stragglers {
                write!(text, "; rank {rank} slow by {}", slow.slow_milli).unwrap();
            }
            text.push('\n');
        }
        for (node, times) in self.state().node_faults() {
            writeln!(text, "{}: {} faults", self.node_label(node), times.len()).unwrap();
            if let Some(why) = fails_more_often(self.state(), node, self.now, |_| false) {
                writeln!(text, "  more often than others: {why}").unwrap();
            }
        }
        if text.is_empty() { "nothing\n".into() } else { text }
    }

    pub(super) fn show_spares(&self) -> String {
        let mut text = String::new();
        for (id, _) in self.state().jobs().iter() {
            let spares = self.state().spares(*id);
            if !spares.is_empty() {
                writeln!(text, "{}: {}", self.label(*id), self.slots(spares)).unwrap();
            }
        }
        if text.is_empty() { "no spares\n".into() } else { text }
    }

    pub(super) fn show_advice(&self, job: &str) -> String {
        let advice =
            checkpoint_advice(self.state(), self.job_id(job), self.now).expect("it says how long it saves");
        format!("{advice:?}\n")
    }

    /// What was expected of a job when it was submitted.
    pub(super) fn show_estimate(&self, job: &str) -> String {
        let estimate = self.state().job(self.job_id(job)).expect("a job").estimate;
        let seconds = |ms: u64| ms / 1_000;
        format!("{} s, nine in ten {} s\n", seconds(estimate.run_ms), seconds(estimate.run_high_ms))
    }

    pub(super) fn show_nodes(&self) -> String {
        let mut text = String::new();
        for (_, row) in self.state().nodes().iter() {
            let status = match row.status {
                NodeStatus::Up => "up",
                NodeStatus::Lost => "lost",
            };
            let cordoned = if row.cordoned { ", cordoned" } else { "" };
            let restricted = match (row.restricted.blocked, row.restricted.unusable) {
                (true, _) => ", out of service".to_string(),
                (false, devices) if devices.is_empty() => String::new(),
                (false, devices) => format!(", not to be used {devices:?}"),
            };
            let reasons = row.reasons.iter().flat_map(|reasons| [&reasons.cordon, &reasons.drain]);
            let said: Vec<&str> = reasons.flatten().map(|said| said.reason.as_str()).collect();
            let said: Vec<&str> = said.into_iter().filter(|text| !text.is_empty()).collect();
            let why = if said.is_empty() { String::new() } else { format!(" ({})", said.join("; ")) };
            let cordoned = format!("{cordoned}{restricted}{why}");
            writeln!(
                text,
                "{}: {status}{cordoned}; holder {}, incarnation {}, {} of {} devices free",
                row.spec.name,
                row.holder.0,
                row.incarnation,
                row.free.devices.count(),
                row.spec.device_count()
            )
            .unwrap();
        }
        text
    }
}

fn rank_text(rank: &RankState) -> &'static str {
    match rank {
        RankState::Assigned => "assigned",
        RankState::Running => "running",
        RankState::Exited(_) => "exited",
        RankState::Lost => "lost",
    }
}
