//! A client that asks things of jobs that exist: hold, release, requeue, suspend, change and cancel, of jobs in whatever
//! phase they are. At the end it lets all of them go on.

use super::{Client, ask};
use crate::runtime::{below, chance, pick, sleep_ms};
use crate::site::lock;
use muster_decider::{Command, ControlOrder, JobSelection, ModifyOrder};
use muster_types::{Control, FieldChange, JobId, PriorityTier, Refusal, RefusalCode, Requester};

/// Jobs that are still asked something of: the last that were submitted.
const RECENT_MAX: usize = 24;
/// Attempts at the last release: the run is not over before it.
const RELEASE_TRIES: usize = 200;

/// Asks one thing after the other, until the clients end.
pub(super) async fn control_all(client: Client) {
    let mut asked: Vec<JobId> = Vec::new();
    while client.goes_on() {
        sleep_ms(below(1_800)).await;
        let jobs = some_jobs(&client);
        let Some(first) = jobs.first().copied() else { continue };
        asked.extend(&jobs);
        let command = if chance(300) { modify(&client, first) } else { control(&client, jobs) };
        // Whatever becomes of it: the job may have moved on before.
        if let Some(Err(refusal)) = ask(&client.cluster, client.host, 6, |_| command.clone()).await
            && !is_expected(&refusal)
        {
            client.cluster.site.checks.fail(format!("a control was refused: {refusal}"));
        }
    }
    asked.sort_unstable();
    asked.dedup();
    let command = order(&client, Control::Release, asked, (true, true));
    if !matches!(ask(&client.cluster, client.host, RELEASE_TRIES, |_| command.clone()).await, Some(Ok(_))) {
        client.cluster.site.checks.fail("held jobs could not be released".to_owned());
    }
}

/// One to three of the jobs that were submitted last.
fn some_jobs(client: &Client) -> Vec<JobId> {
    let mut recent = lock(&client.recent);
    let excess = recent.len().saturating_sub(RECENT_MAX);
    recent.drain(..excess);
    (0..=below(3)).filter_map(|_| pick(&recent)).collect()
}

fn order(
    client: &Client,
    control: Control,
    jobs: Vec<JobId>,
    (is_found, is_operator): (bool, bool),
) -> Command {
    let by =
        Requester { name: if is_operator { "admin/ops" } else { "tenant/free/ada" }.to_owned(), is_operator };
    let selection = JobSelection { is_found, ..JobSelection::named(jobs) };
    let order = ControlOrder { request: client.new_request(), by, control, selection };
    Command::Control(Box::new(order))
}

fn control(client: &Client, jobs: Vec<JobId>) -> Command {
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
    order(client, control, jobs, (chance(600), chance(200)))
}

fn modify(client: &Client, job: JobId) -> Command {
    let tiers = [PriorityTier::Free, PriorityTier::Batch, PriorityTier::Standard, PriorityTier::Production];
    let changes = match below(5) {
        0 => vec![FieldChange::Tier(pick(&tiers).unwrap_or_default())],
        1 => vec![FieldChange::RunTimeLimit(chance(800).then(|| 4_000 + below(20_000)))],
        2 => vec![FieldChange::ExpectedRun(Some(500 + below(5_000))), FieldChange::NotBefore(None)],
        3 => vec![FieldChange::Regions(Vec::new()), FieldChange::Tier(PriorityTier::Batch)],
        _ => vec![FieldChange::Labels([("stage".to_owned(), format!("s{}", below(3)))].into())],
    };
    let by = Requester { name: "tenant/free/ada".to_owned(), is_operator: false };
    Command::Modify(Box::new(ModifyOrder { request: client.new_request(), by, job, expected: None, changes }))
}

/// What has become of a job meanwhile.
fn is_expected(refusal: &Refusal) -> bool {
    matches!(
        refusal.code,
        RefusalCode::JobNotFound
            | RefusalCode::JobFinished
            | RefusalCode::JobPhase
            | RefusalCode::JobHeld
            // A limit that is below what it has run for.
            | RefusalCode::InvalidField
            | RefusalCode::NeverFits
    )
}
