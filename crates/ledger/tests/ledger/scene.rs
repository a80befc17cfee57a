//! A small cluster under the scheduler itself, at times that a test sets, and what its ledger says.

use muster_decider::{Answer, Command, Speculation, handle, schedule, settle_all, tick};
use muster_journal::RankUpdate;
use muster_ledger::{JobTotals, Ledger, StepTimes, View, Window};
use muster_planner::Budget;
use muster_state::{RankState, State};
use muster_types::policy::PolicyDraft;
use muster_types::{
    ArraySpec, Control, ExitStatus, JobContract, JobDraft, JobId, Leadership, LogIndex, LogTime, NodeDraft,
    NodeId, Submission,
};

use crate::support::{
    BOOTSTRAP, accelerators, group, holder, job_draft, leadership, node_draft, request, with_all_rights,
};

/// When every scene begins: midnight of day 20,000.
pub const START_MS: u64 = 20_000 * 86_400_000;

pub struct Scene {
    pub speculation: Speculation,
    pub state: State,
    pub ledger: Ledger,
    pub ended: Vec<JobTotals>,
    pub steps: StepTimes,
    requests: u128,
}

impl Scene {
    /// Without nodes, under a policy that lets everybody do everything.
    pub fn new() -> Scene {
        Scene::with_policy(PolicyDraft::default())
    }

    pub fn with_policy(mut policy: PolicyDraft) -> Scene {
        // What runs may be stopped at once.
        policy.preemption.minimum_run_ms = 0;
        let speculation =
            Speculation::begin(State::default(), leadership(1, 1), LogTime(START_MS), BOOTSTRAP);
        let state = State::default();
        let ledger = Ledger::begin(&state, Window::default());
        let (ended, steps) = (Vec::new(), StepTimes::default());
        let mut scene = Scene { speculation, state, ledger, ended, steps, requests: 0 };
        let policy = Box::new(with_all_rights(policy).check().unwrap());
        let request = scene.request();
        scene.run(&Command::SetPolicy {
            request,
            by: muster_types::Requester::default(),
            policy,
            expected_version: None,
        });
        scene
    }

    pub fn request(&mut self) -> muster_types::RequestId {
        self.requests += 1;
        request(self.requests)
    }

    /// Everything decided so far is in the log, and it is this many seconds after the start.
    pub fn at(&mut self, seconds: u64) {
        self.commit();
        self.speculation.set_now(LogTime(START_MS + seconds * 1_000));
    }

    pub fn commit(&mut self) {
        while let Some(round) = self.speculation.take_round() {
            let leadership = Leadership { term: round.term, replica: round.replica };
            let mut state = self.state.clone();
            for (ordinal, decision) in round.decisions.iter().enumerate() {
                self.steps.before(decision);
                let index = LogIndex(round.first_index.0 + ordinal as u64);
                let applied = state.apply(leadership, index, round.log_time, decision);
                self.steps.after(&state, &applied);
            }
            self.ended.extend(self.ledger.fold_round(&mut self.state, &round).unwrap());
        }
    }

    pub fn run(&mut self, command: &Command) -> Answer {
        handle(&mut self.speculation, command).unwrap_or_else(|refusal| panic!("{command:?}: {refusal:?}"))
    }

    /// One pass over the pending queue.
    pub fn pass(&mut self) {
        schedule(&mut self.speculation, &mut Budget::new(100_000));
    }

    /// What time alone brings about.
    pub fn tick(&mut self) {
        self.commit();
        tick(&mut self.speculation);
        settle_all(&mut self.speculation);
    }

    /// A node of `h100` in `eu`.
    pub fn node(&mut self, name: &str, devices: u16) -> NodeId {
        self.host(node_draft(name, "eu", "c1", Some(accelerators("h100", devices))))
    }

    pub fn host(&mut self, draft: NodeDraft) -> NodeId {
        let name = draft.name.clone();
        let spec = draft.check().unwrap();
        self.run(&Command::Register { spec, holder: holder(1), other_session_is_over: true });
        self.speculation.state().node_named(&name).unwrap()
    }

    /// One job of `research` with workers of this many `h100`.
    pub fn job(&mut self, workers: u32, devices: u16) -> JobId {
        self.submit(draft(workers, devices))
    }

    pub fn submit(&mut self, draft: JobDraft) -> JobId {
        self.submit_all(draft, JobContract::default(), None)
    }

    pub fn submit_all(&mut self, draft: JobDraft, contract: JobContract, array: Option<ArraySpec>) -> JobId {
        let spec = draft.check().unwrap();
        let jobs = vec![Submission { array, ..Submission::new(spec, contract) }].into();
        let request = self.request();
        match self.run(&Command::submit(request, jobs)) {
            Answer::Submitted { jobs, .. } if !jobs.is_empty() => jobs[0],
            _ => JobId(self.speculation.state().arrays().iter().map(|(id, _)| id.0).next_back().unwrap()),
        }
    }

    /// Every worker of a job that is not over reports this.
    pub fn report(&mut self, job: JobId, update: &RankUpdate) {
        let placement = self.speculation.state().job(job).and_then(|row| row.placement.clone()).unwrap();
        for (rank, slot) in placement.slots.iter().enumerate() {
            let now = self.speculation.state().job(job).and_then(|row| row.placement.clone()).unwrap();
            if now.ranks[rank].is_over()
                || now.ranks[rank] == RankState::Running && *update == RankUpdate::Running
            {
                continue;
            }
            let (node, incarnation, token) = (slot.node, slot.incarnation, placement.token);
            let updates = vec![(rank as u32, update.clone())];
            self.run(&Command::Report { node, incarnation, job, token, updates });
        }
    }

    pub fn running(&mut self, job: JobId) {
        self.report(job, &RankUpdate::Running);
    }

    pub fn exit(&mut self, job: JobId, code: i32) {
        self.report(job, &RankUpdate::Exited(ExitStatus::Code(code)));
    }

    pub fn checkpoint(&mut self, job: JobId) {
        self.checkpoint_of(job, None);
    }

    /// The same with the step that the work is saved up to.
    pub fn checkpoint_of(&mut self, job: JobId, step: Option<u64>) {
        let token = self.speculation.state().job(job).and_then(|row| row.placement.clone()).unwrap().token;
        self.run(&Command::CommitCheckpoint { job, token, step });
    }

    pub fn control(&mut self, control: Control, job: JobId) {
        let request = self.request();
        self.run(&Command::control(request, control, job));
    }

    pub fn lose(&mut self, node: NodeId) {
        let incarnation = self.speculation.state().node(node).unwrap().incarnation;
        self.run(&Command::SessionOver { node, incarnation });
    }

    pub fn view(&mut self, seconds: u64) -> View {
        self.commit();
        self.ledger.view(LogTime(START_MS + seconds * 1_000))
    }

    /// Accelerator-seconds by activity, with the owner where there is one.
    pub fn used(&mut self, seconds: u64) -> Vec<String> {
        let view = self.view(seconds);
        let sum: u128 = view.usage.iter().map(|row| row.milli_ms).sum();
        let capacity: u128 = view.capacity.iter().map(|row| row.milli_ms).sum();
        assert_eq!(sum, capacity, "everything is charged once");
        let mut sums = std::collections::BTreeMap::new();
        for row in &view.usage {
            let owner = row.tenant.as_ref().map(|tenant| format!("{tenant} ")).unwrap_or_default();
            *sums.entry((row.activity, owner)).or_insert(0) += row.milli_ms;
        }
        sums.into_iter()
            .map(|((activity, owner), sum)| format!("{owner}{activity} {}", seconds_of(sum)))
            .collect()
    }

    /// Job-seconds by reason.
    pub fn waited(&mut self, seconds: u64) -> Vec<String> {
        let view = self.view(seconds);
        let mut sums = std::collections::BTreeMap::new();
        for row in &view.waits {
            *sums.entry(row.reason).or_insert(0) += row.job_ms * 1_000;
        }
        sums.into_iter().map(|(reason, sum)| format!("{reason} {}", seconds_of(sum))).collect()
    }
}

/// Of thousandths times milliseconds, exactly.
fn seconds_of(milli_ms: u128) -> String {
    let (whole, rest) = (milli_ms / 1_000_000, milli_ms % 1_000_000);
    if rest == 0 { whole.to_string() } else { format!("{whole}.{rest:06}").trim_end_matches('0').to_owned() }
}

pub fn draft(workers: u32, devices: u16) -> JobDraft {
    job_draft("job", vec![group("main", workers, Some(accelerators("h100", devices)))])
}
