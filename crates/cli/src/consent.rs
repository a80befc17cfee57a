//! What a command would take away, said before it does.
//!
//! **Invariant:** nothing is asked back: a command that takes something away says what, and is repeated with `--yes`.

use std::collections::BTreeSet;

use clap::Args;
use muster_client::Client;
use muster_console::{Console, Exit, Failure};
use muster_wire::v1;
use serde::Serialize;

/// Options of commands that may take something away.
#[derive(Args, Clone, Copy, Debug)]
pub struct Consent {
    /// Do it although it takes something away, which the command says without this
    #[arg(long)]
    yes: bool,
    /// Say what would change, and change nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
}

/// What a dry run found, in output for programs: the object as it is now, marked.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DryRun<T> {
    dry_run: bool,
    #[serde(flatten)]
    found: T,
}

impl<T> DryRun<T> {
    /// Marks what a command would have taken away.
    pub fn of(found: T) -> DryRun<T> {
        DryRun { dry_run: true, found }
    }
}

impl Consent {
    /// Whether nothing is to be changed.
    pub fn is_dry_run(self) -> bool {
        self.dry_run
    }

    /// Says what would change. Whether to go on: not for a look, and with a failure where something is taken away and
    /// nobody said yes.
    pub fn given(self, console: &Console, effect: &str, loss: Option<&str>) -> Result<bool, Failure> {
        if self.dry_run {
            console.line(effect)?;
            if let Some(loss) = loss {
                console.line(loss)?;
            }
            return Ok(false);
        }
        match loss {
            Some(loss) if !self.yes => {
                let text = format!("{effect}; {loss}");
                let next = "repeat the command with --yes to do it; --dry-run only says what would change";
                Err(Failure::new(Exit::Conflict, text).with_details([next.to_owned()]))
            }
            _ => Ok(true),
        }
    }

    /// The same of a change of the voters, by what they are now.
    pub async fn to_voters(
        self,
        client: &Client,
        console: &Console,
        change: impl FnOnce(BTreeSet<u64>) -> BTreeSet<u64>,
    ) -> Result<bool, Failure> {
        let status = client.get_status(v1::GetStatusRequest::default()).await?;
        let now: BTreeSet<u64> =
            status.replicas.iter().filter(|replica| replica.voter).map(|replica| replica.id).collect();
        let then = change(now.clone());
        let effect = format!("voters are {} now, and {} then", named(&now), named(&then));
        let (before, after) = (tolerated(now.len()), tolerated(then.len()));
        let loss = (after < before).then(|| {
            let may = |count: usize| match count {
                0 => "none of them may fail".to_owned(),
                count => format!("{count} of them may fail"),
            };
            format!("{} then while the others decide, and {before} now", may(after))
        });
        self.given(console, &effect, loss.as_deref())
    }
}

/// How many voters may fail while the others decide.
fn tolerated(voters: usize) -> usize {
    voters.saturating_sub(1) / 2
}

fn named(voters: &BTreeSet<u64>) -> String {
    voters.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
}

/// Of how many nodes in a hundred, of those that are up, one command may take the work without being told yes.
const DRAINED_PERCENT_MAX: usize = 50;

/// Says what part of the fleet would be emptied.
pub async fn to_drain(
    consent: Consent,
    client: &Client,
    console: &Console,
    names: &[String],
) -> Result<bool, Failure> {
    if names.len() < 2 && !consent.dry_run {
        return Ok(true);
    }
    let status = client.get_status(v1::GetStatusRequest::default()).await?;
    let up = usize::try_from(status.nodes_up).unwrap_or(usize::MAX);
    let distinct = names.iter().collect::<BTreeSet<_>>().len();
    let effect = format!("{distinct} of {up} nodes that are up would be emptied");
    let is_most = distinct.saturating_mul(100) > up.saturating_mul(DRAINED_PERCENT_MAX);
    let loss = "that is more than half of the fleet: what runs there has to fit on the rest, or ends at the deadline";
    consent.given(console, &effect, is_most.then_some(loss))
}
