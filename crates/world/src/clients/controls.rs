//! A client that asks things of jobs that exist: hold, release, requeue, suspend, change and cancel, of jobs in whatever
//! phase they are. At the end it lets all of them go on.

use super::asks::{ask_for_something, give_up_all, state_of};
use super::{BOUND_TENANT, Client, FREE_TENANT, ask};
use crate::runtime::{below, chance, pick, sleep_ms};
use crate::site::lock;
use muster_decider::{Command, ControlOrder, JobSelection, JobVersion, ModifyOrder};
use muster_types::{
    ArrayId, Control, FieldChange, GroupSize, JobId, LogIndex, Name, NodeRequirements, PriorityTier, Refusal,
    RefusalCode, RequestId, Requester,
};

/// Jobs that are still asked something of: the last that were submitted.
const RECENT_MAX: usize = 24;
/// Attempts at the last release: the run is not over before it.
const RELEASE_TRIES: usize = 200;
/// One hold of an operator, and one of the job's owner beneath it.
const HOLDS_OF_A_JOB_MAX: usize = 2;

/// Asks one thing after the other, until the clients end.
pub(super) async fn control_all(client: Client) {
    let mut asked = Selected::default();
    while client.goes_on() {
        sleep_ms(below(1_800)).await;
        // Where a rule is broken on purpose, the seeds that are known to show it stay the same.
        if client.cluster.site.settings.bug.is_none() && chance(600) {
            ask_for_something(&client).await;
            continue;
        }
        let selected = some(&client);
        if selected.is_empty() {
            continue;
        }
        asked.extend(&selected);
        let command = match selected.jobs.first() {
            Some(first) if chance(300) => modify(&client, *first),
            _ => control(&client, selected),
        };
        // Whatever becomes of it: the job may have moved on before.
        if let Some(Err(refusal)) = ask(&client.cluster, client.host, 6, |_| command.clone()).await
            && !is_expected(&refusal)
        {
            client.cluster.site.checks.fail(format!("a control was refused: {refusal}"));
        }
    }
    if client.cluster.site.settings.bug.is_none() {
        give_up_all(&client).await;
    }
    asked.jobs.sort_unstable();
    asked.jobs.dedup();
    asked.arrays.sort_unstable();
    asked.arrays.dedup();
    // A release by an operator takes back the operators' hold; the owner's hold that lies beneath it is released by a
    // second one.
    for _ in 0..HOLDS_OF_A_JOB_MAX {
        let command = order(client.new_request(), Control::Release, asked.clone(), (true, true));
        if !matches!(ask(&client.cluster, client.host, RELEASE_TRIES, |_| command.clone()).await, Some(Ok(_)))
        {
            client.cluster.site.checks.fail("held jobs could not be released".to_owned());
        }
    }
}

/// What something is asked of.
#[derive(Clone, Debug, Default)]
struct Selected {
    jobs: Vec<JobId>,
    arrays: Vec<ArrayId>,
}

impl Selected {
    fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.arrays.is_empty()
    }

    fn extend(&mut self, other: &Selected) {
        self.jobs.extend(&other.jobs);
        self.arrays.extend(&other.arrays);
    }
}

/// One to three of the jobs that were submitted last, or an array with all of its members.
fn some(client: &Client) -> Selected {
    let mut recent = lock(&client.recent);
    let (jobs, arrays) = (recent.jobs.len(), recent.arrays.len());
    recent.jobs.drain(..jobs.saturating_sub(RECENT_MAX));
    recent.arrays.drain(..arrays.saturating_sub(RECENT_MAX));
    let array = if !recent.arrays.is_empty() && chance(200) { pick(&recent.arrays) } else { None };
    if let Some(array) = array {
        return Selected { jobs: Vec::new(), arrays: vec![array] };
    }
    Selected { jobs: (0..=below(3)).filter_map(|_| pick(&recent.jobs)).collect(), arrays: Vec::new() }
}

fn order(
    request: RequestId,
    control: Control,
    selected: Selected,
    (is_found, is_operator): (bool, bool),
) -> Command {
    let name = if is_operator { "admin/ops" } else { "tenant/free/ada" }.to_owned();
    let by = Requester::named(name, is_operator);
    let selection = JobSelection { is_found, arrays: selected.arrays, ..JobSelection::named(selected.jobs) };
    let order = ControlOrder { acts_for: None, request, by, control, selection };
    Command::Control(Box::new(order))
}

fn control(client: &Client, selected: Selected) -> Command {
    let controls = [
        Control::Hold,
        Control::Hold,
        Control::Release,
        Control::Release,
        Control::Requeue,
        Control::Suspend,
        Control::Suspend,
        Control::Cancel,
    ];
    let control = pick(&controls).unwrap_or(Control::Hold);
    let (is_found, is_operator) = (chance(600), chance(200));
    let mut command = order(request_of(client), control, selected, (is_found, is_operator));
    if let Command::Control(order) = &mut command
        && is_strange(client, 60)
    {
        // Jobs of the other tenant are not found.
        order.acts_for = Some(Name::literal(BOUND_TENANT));
    }
    command
}

/// Whether something is asked that has little chance; never where a rule is broken on purpose.
fn is_strange(client: &Client, permille: u64) -> bool {
    client.cluster.site.settings.bug.is_none() && chance(permille)
}

fn request_of(client: &Client) -> RequestId {
    match client.cluster.site.settings.bug {
        None => client.request_of_control(),
        Some(_) => client.new_request(),
    }
}

/// Another place, time, size or tenant: none that a job could not have been submitted with.
fn moved(client: &Client) -> Option<Vec<FieldChange>> {
    let now = state_of(client)?.log_time();
    Some(vec![match below(7) {
        0 => FieldChange::Deadline(chance(700).then(|| now.plus_ms(10_000 + below(40_000)))),
        1 => FieldChange::NotBefore(Some(now.plus_ms(below(3_000)))),
        2 => {
            let exclude = Name::new(&format!("m{}", below(6))).into_iter().collect();
            let nodes = NodeRequirements { exclude, ..NodeRequirements::default() };
            FieldChange::Nodes(chance(700).then(|| Box::new(nodes)))
        }
        3 => FieldChange::Annotations([("note".to_owned(), format!("n{}", below(3)))].into()),
        4 => {
            let size = GroupSize { group: None, workers: 1 + below(2) as u32, workers_min: None };
            FieldChange::Groups(vec![size])
        }
        // None: the label that a node has may be taken away, and a job that asks for it would wait for good.
        5 => FieldChange::NodeSelector(Default::default()),
        _ => FieldChange::Tenant(Name::literal(if chance(500) { BOUND_TENANT } else { FREE_TENANT })),
    }])
}

fn modify(client: &Client, job: JobId) -> Command {
    let other = if is_strange(client, 500) { moved(client) } else { None };
    let changes = other.unwrap_or_else(usual_changes);
    changes.iter().for_each(|change| client.cluster.site.checks.sent(change.field()));
    let by = Requester::named("tenant/free/ada".to_owned(), false);
    // A version that was read long ago.
    let old = JobVersion { generation: 1, changed_at: LogIndex(1) };
    let expected = is_strange(client, 80).then_some(old);
    let request = request_of(client);
    Command::Modify(Box::new(ModifyOrder { acts_for: None, request, by, job, expected, changes }))
}

fn usual_changes() -> Vec<FieldChange> {
    let tiers = [PriorityTier::Free, PriorityTier::Batch, PriorityTier::Standard, PriorityTier::Production];
    match below(7) {
        0 => vec![FieldChange::Tier(pick(&tiers).unwrap_or_default())],
        1 => vec![FieldChange::RunTimeLimit(chance(800).then(|| 4_000 + below(20_000)))],
        2 => vec![FieldChange::ExpectedRun(Some(500 + below(5_000))), FieldChange::NotBefore(None)],
        3 => vec![FieldChange::Regions(Vec::new()), FieldChange::Tier(PriorityTier::Batch)],
        4 => vec![FieldChange::Nice(i8::try_from(below(101)).unwrap_or_default())],
        5 => vec![FieldChange::Front(None)],
        _ => vec![FieldChange::Labels([("stage".to_owned(), format!("s{}", below(3)))].into())],
    }
}

/// What has become of a job meanwhile.
pub(super) fn is_expected(refusal: &Refusal) -> bool {
    matches!(
        refusal.code,
        RefusalCode::JobNotFound
            | RefusalCode::JobFinished
            | RefusalCode::JobPhase
            | RefusalCode::JobHeld
            // A limit that is below what it has run for.
            | RefusalCode::InvalidField
            | RefusalCode::NeverFits
            | RefusalCode::DeadlineUnmeetable
            | RefusalCode::JobChanged
            | RefusalCode::RequestIdReused
    )
}
