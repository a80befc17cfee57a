//! `muster placement …`: why a gang is where it is.

use clap::Subcommand;
use clap_complete::engine::ArgValueCompleter;
use muster_client::Read;
use muster_console::{Console, Document, Exit, Failure, Format, Global};
use muster_wire::v1;
use serde::Serialize;

use crate::complete;
use crate::find::{Find, resolve};
use crate::reading::ReadArgs;

/// Commands about placements.
#[derive(Subcommand)]
pub enum PlacementCommand {
    /// Say why a job was placed where it is: the score of that place, the runner-up, and what it would have cost
    #[command(after_help = "\
Examples:
  muster placement why job-3f0
  muster placement why job-3f0 --at 2026-11-22T08:30:00Z     the placement that it had then
  muster placement why job-3f0 -o json | jq .runnerUp

The planner is asked about the state before the record of the placement. Points are those of `muster explain`: weight times value of
packing, throughput, cost, data, topology, spread and affinity. What the leader kept for others then is in no record. The cluster
needs the archive of that time.")]
    Why {
        /// Its id, or its name
        #[arg(add = ArgValueCompleter::new(complete::jobs))]
        id: String,
        #[command(flatten)]
        read: ReadArgs,
    },
}

/// A place where a gang fits, by its points.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ScoredCluster {
    region: String,
    cluster: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    accelerator_type: String,
    points: i64,
    parts: Vec<Part>,
}

/// What a criterion adds to the points of a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Part {
    name: String,
    points: i64,
}

impl ScoredCluster {
    fn of(fit: &v1::ClusterFit) -> Option<ScoredCluster> {
        if fit.score.is_empty() {
            return None;
        }
        let parts = fit.score.iter().map(|part| Part { name: part.name.clone(), points: part.points });
        Some(ScoredCluster {
            region: fit.region.clone(),
            cluster: fit.cluster.clone(),
            accelerator_type: fit.accelerator_type.clone(),
            points: fit.score.iter().fold(0, |sum, part| sum.saturating_add(part.points)),
            parts: parts.collect(),
        })
    }

    fn name(&self) -> String {
        let on = if self.accelerator_type.is_empty() { "" } else { " on " };
        format!("{} / {}{on}{}", self.region, self.cluster, self.accelerator_type)
    }

    fn line(&self) -> String {
        let parts: Vec<String> =
            self.parts.iter().map(|part| format!("{} {}", part.name, part.points)).collect();
        format!("{}: {} points: {}", self.name(), self.points, parts.join(", "))
    }

    /// What each criterion loses at another place; what is the same there is left out.
    fn less(&self, other: &ScoredCluster) -> Vec<Part> {
        let lost = self.parts.iter().map(|part| {
            let there = other.parts.iter().find(|there| there.name == part.name);
            let points = part.points.saturating_sub(there.map_or(0, |there| there.points));
            Part { name: part.name.clone(), points }
        });
        lost.filter(|part| part.points != 0).collect()
    }
}

/// The one with most points; of equal ones the first.
fn best<'a>(places: impl Iterator<Item = &'a ScoredCluster>) -> Option<&'a ScoredCluster> {
    places.fold(None, |best: Option<&'a ScoredCluster>, place| match best {
        Some(best) if best.points >= place.points => Some(best),
        _ => Some(place),
    })
}

/// Content of `PlacementReason`.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct PlacementReason {
    job: String,
    /// The record of the placement.
    log_index: u64,
    region: String,
    cluster: String,
    /// None where the state before the record does not say it fits there: it was placed behind another record of the same round.
    #[serde(skip_serializing_if = "Option::is_none")]
    chosen: Option<ScoredCluster>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runner_up: Option<ScoredCluster>,
    /// By what the chosen place is better, criterion by criterion.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cost_of_runner_up: Vec<Part>,
    /// Clusters with this number of nodes where it did not fit.
    did_not_fit: usize,
}

impl PlacementReason {
    fn new(job: String, placement: &v1::Placement, explanation: &v1::Explanation) -> PlacementReason {
        let token = placement.token.unwrap_or_default();
        let places: Vec<ScoredCluster> = explanation.clusters.iter().filter_map(ScoredCluster::of).collect();
        let did_not_fit = explanation.clusters.len() - places.len();
        let is_chosen =
            |place: &&ScoredCluster| place.region == placement.region && place.cluster == placement.cluster;
        let chosen = best(places.iter().filter(is_chosen)).cloned();
        let runner_up = best(places.iter().filter(|place| Some(*place) != chosen.as_ref())).cloned();
        let cost = chosen.as_ref().zip(runner_up.as_ref()).map(|(chosen, other)| chosen.less(other));
        PlacementReason {
            job,
            log_index: token.log_index,
            region: placement.region.clone(),
            cluster: placement.cluster.clone(),
            chosen,
            runner_up,
            cost_of_runner_up: cost.unwrap_or_default(),
            did_not_fit,
        }
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{} was placed in {} / {} by record {}",
            self.job, self.region, self.cluster, self.log_index
        )];
        match &self.chosen {
            Some(chosen) => lines.push(format!("  {}", chosen.line())),
            None => lines.push(
                "  before that record it did not fit there: another record of the same round made space"
                    .to_owned(),
            ),
        }
        match &self.runner_up {
            Some(other) => lines.push(format!("  runner-up {}", other.line())),
            None => lines.push("  there was no other place where it fitted".to_owned()),
        }
        if !self.cost_of_runner_up.is_empty() {
            let parts = self.cost_of_runner_up.iter().map(|part| format!("{} {:+}", part.name, -part.points));
            let parts: Vec<String> = parts.collect();
            lines.push(format!("  the runner-up would have cost, in points: {}", parts.join(", ")));
        }
        if self.did_not_fit > 0 {
            lines.push(format!("  in {} other clusters or types it did not fit", self.did_not_fit));
        }
        lines
    }
}

/// Carries out a command about placements.
pub async fn run(global: &Global, console: &Console, command: PlacementCommand) -> Result<Exit, Failure> {
    let PlacementCommand::Why { id, read } = command;
    let client = read.client(global).await?;
    let job_id = resolve(&client, &id, Find::Newest).await?;
    let request = v1::GetJobRequest { job_id: job_id.clone(), read: None };
    let job = client.get_job(request).await?.job.unwrap_or_default();
    let placement = job.status.and_then(|status| status.placement).unwrap_or_default();
    let record = placement.token.unwrap_or_default().log_index;
    if record < 2 {
        return Err(Failure::new(Exit::Conflict, format!("{job_id} was not placed yet"))
            .with_next(format!("muster job why {job_id} says why it waits")));
    }
    let before = global.client().await?.reading(Read::at_log_index(record - 1));
    let answer = before.explain_job(v1::ExplainJobRequest { job_id: job_id.clone(), read: None }).await?;
    let explanation = answer.explanation.unwrap_or_default();
    let reason = PlacementReason::new(job_id, &placement, &explanation);
    match console.format {
        Format::Json | Format::Yaml => {
            console.object(&Document::new("PlacementReason", answer.freshness, reason))?;
        }
        Format::Name => console.line(&format!("{}/{}", reason.region, reason.cluster))?,
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            for line in reason.lines() {
                console.line(&line)?;
            }
        }
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(cluster: &str, parts: &[(&str, i64)]) -> v1::ClusterFit {
        let part = |(name, points): &(&str, i64)| v1::ScorePart {
            name: (*name).to_owned(),
            points: *points,
            ..Default::default()
        };
        v1::ClusterFit {
            region: "eu".to_owned(),
            cluster: cluster.to_owned(),
            score: parts.iter().map(part).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn the_runner_up_is_the_best_of_the_others_and_costs_the_difference() {
        let placement = v1::Placement {
            token: Some(v1::FencingToken { log_index: 9, ..Default::default() }),
            region: "eu".to_owned(),
            cluster: "b".to_owned(),
            ..Default::default()
        };
        let clusters = vec![
            fit("a", &[("packing", 300), ("cost", 100)]),
            fit("b", &[("packing", 500), ("cost", 100)]),
            fit("c", &[("packing", 200), ("cost", 250)]),
            fit("d", &[]),
        ];
        let explanation = v1::Explanation { clusters, ..Default::default() };
        let reason = PlacementReason::new("job-1".to_owned(), &placement, &explanation);
        assert_eq!(
            reason.lines(),
            [
                "job-1 was placed in eu / b by record 9",
                "  eu / b: 600 points: packing 500, cost 100",
                "  runner-up eu / c: 450 points: packing 200, cost 250",
                "  the runner-up would have cost, in points: packing -300, cost +150",
                "  in 1 other clusters or types it did not fit",
            ]
        );
        let nowhere = v1::Explanation::default();
        let lines = PlacementReason::new("job-1".to_owned(), &placement, &nowhere).lines();
        assert!(lines[1].contains("did not fit") && lines[2].contains("no other place"), "{lines:?}");
    }
}
