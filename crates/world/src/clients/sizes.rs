//! A client whose gangs may go on with fewer workers, and that changes how many they have while they run.
//!
//! What it does is drawn from a stream of the seed that nothing else draws from. It is there in some seeds: the others, and those
//! in which a rule is broken on purpose, are the runs that they are without it.

use super::asks::state_of;
use super::controls::is_expected;
use super::{BOUND_TENANT, Client, FREE_TENANT, ask};
use crate::agent::KIND;
use crate::runtime::{sleep_ms, step};
use crate::settings::Settings;
use crate::site::lock;
use muster_decider::{Answer, Command, ModifyOrder};
use muster_state::Phase;
use muster_types::contract::JobContract;
use muster_types::{
    Accelerators, FieldChange, GroupSize, JobDraft, JobId, Name, RequestId, Requester, Submission, TaskGroup,
    WorkerRequest,
};
use std::sync::Arc;

/// Workers of a gang, of which one is enough.
const WORKERS: u32 = 4;
/// Changes of the size of one gang.
const CHANGES_MAX: usize = 4;
/// Time between two looks at a gang, and how many there are until nobody looks any more.
const LOOK_MS: u64 = 100;
const LOOKS_MAX: usize = 80;
/// Attempts at a submission, and at a change.
const SUBMIT_TRIES: usize = 12;
const CHANGE_TRIES: usize = 6;

/// Whether a run has this client.
pub(super) fn changes_sizes(settings: &Settings) -> bool {
    settings.bug.is_none() && settings.seed % 3 == 1
}

/// Numbers that are drawn for this client alone.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        step(&mut self.0) % bound.max(1)
    }

    fn request(&mut self, client: &Client) -> RequestId {
        let request = RequestId(u128::from(step(&mut self.0)) << 64 | u128::from(step(&mut self.0)));
        lock(&client.asked).insert(request);
        request
    }
}

/// One gang after the other, until the clients end.
pub(super) async fn change_sizes(client: Client) {
    let mut draws = Draws(client.cluster.site.settings.seed ^ 0x5349_5a45);
    while client.goes_on() {
        sleep_ms(draws.below(1_000)).await;
        let Some(job) = submit(&client, &mut draws).await else { continue };
        for _ in 0..CHANGES_MAX {
            if !client.goes_on() || !runs(&client, job).await {
                break;
            }
            sleep_ms(draws.below(300)).await;
            resize(&client, &mut draws, job).await;
        }
    }
}

/// Submits a gang; which job that is, where somebody answered.
async fn submit(client: &Client, draws: &mut Draws) -> Option<JobId> {
    let checks = &client.cluster.site.checks;
    let floor = checks.floor();
    let request = draws.request(client);
    let tenant = if draws.below(3) == 0 { BOUND_TENANT } else { FREE_TENANT };
    let jobs: Arc<[Submission]> = [elastic(&format!("e{:x}", request.0 >> 64), tenant)].into();
    let answer =
        ask(&client.cluster, client.host, SUBMIT_TRIES, |_| Command::submit(request, Arc::clone(&jobs)));
    match answer.await? {
        Ok(Answer::Submitted { jobs, at }) => {
            let job = jobs.first().copied();
            checks.acknowledged(floor, request, jobs, at);
            job
        }
        Ok(other) => {
            checks.fail(format!("the submission of an elastic gang was answered with {other:?}"));
            None
        }
        Err(refusal) => {
            checks.fail(format!("the submission of an elastic gang was refused: {refusal}"));
            None
        }
    }
}

fn elastic(name: &str, tenant: &'static str) -> Submission {
    let request = WorkerRequest {
        accelerators: Some(Accelerators { kind: Name::literal(KIND), count: 1 }.into()),
        cpu_milli: 100,
        memory_bytes: 1 << 20,
        exclusive: false,
        scratch_bytes: 0,
    };
    let mut group = TaskGroup::new(Name::literal("main"), WORKERS, vec!["work".to_owned()], request);
    group.workers_min = 1;
    let draft = JobDraft {
        stop_grace_ms: 300,
        failure_retries_max: 1,
        ..JobDraft::new(Name::new(name).expect("it is a name"), Name::literal(tenant), vec![group])
    };
    Submission::new(draft.check().expect("it is a job"), JobContract::default())
}

/// Whether the gang is placed before long; it may be stopped or over by the time that something is asked of it.
async fn runs(client: &Client, job: JobId) -> bool {
    for _ in 0..LOOKS_MAX {
        let phase = state_of(client).and_then(|state| state.job(job).map(|row| row.phase.clone()));
        match phase {
            Some(Phase::Starting | Phase::Running) => return true,
            Some(Phase::Finished(_)) => return false,
            _ if !client.goes_on() => return false,
            _ => sleep_ms(LOOK_MS).await,
        }
    }
    false
}

/// Fewer workers, more, or as many as it has.
async fn resize(client: &Client, draws: &mut Draws, job: JobId) {
    let workers = [1, 2, 3, WORKERS][draws.below(4) as usize];
    let changes = vec![FieldChange::Groups(vec![GroupSize { group: None, workers, workers_min: None }])];
    changes.iter().for_each(|change| client.cluster.site.checks.sent(change.field()));
    let by = Requester::named("tenant/free/ada".to_owned(), false);
    let request = draws.request(client);
    let order = ModifyOrder { acts_for: None, request, by, job, expected: None, changes };
    let command = Command::Modify(Box::new(order));
    // Whatever becomes of it: the gang may have moved on before.
    if let Some(Err(refusal)) = ask(&client.cluster, client.host, CHANGE_TRIES, |_| command.clone()).await
        && !is_expected(&refusal)
    {
        client.cluster.site.checks.fail(format!("a change of size was refused: {refusal}"));
    }
}
