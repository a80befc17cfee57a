//! `muster drill list`.

use clap::Args;
use muster_console::{Console, Document, Exit, Failure, Format, Grid};
use serde::Serialize;

use super::DirectoryArgs;
use super::plan::{span, step_text};
use super::record::DrillsDirectory;
use super::standard;

/// Options of `muster drill list`.
#[derive(Args)]
pub struct ListArgs {
    #[command(flatten)]
    directory: DirectoryArgs,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ScenarioView {
    name: String,
    title: String,
    steps: Vec<String>,
    duration_ms: u64,
    runbook: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DrillsView {
    scenarios: Vec<ScenarioView>,
    kept: Vec<KeptView>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct KeptView {
    id: String,
    name: String,
    started_at: String,
    end: String,
}

pub fn run(console: &Console, args: ListArgs) -> Result<Exit, Failure> {
    let scenarios: Vec<ScenarioView> = standard::all()?
        .into_iter()
        .map(|given| ScenarioView {
            steps: given.scenario.live.iter().map(|step| step_text(&step.action)).collect(),
            duration_ms: given.scenario.live_end_ms(),
            name: given.scenario.name,
            title: given.scenario.title,
            runbook: given.scenario.runbook,
        })
        .collect();
    // Without a place to keep drills there is still something to list.
    let directory = DrillsDirectory::find(args.directory.dir).ok();
    let ids = directory.as_ref().map(DrillsDirectory::all).unwrap_or_default();
    let kept: Vec<KeptView> = ids
        .iter()
        .filter_map(|id| directory.as_ref()?.load(Some(id)).ok())
        .map(|record| KeptView {
            id: record.id,
            name: record.name,
            started_at: record.started_at,
            end: record.end,
        })
        .collect();
    match console.format {
        Format::Json | Format::Yaml => {
            let content = DrillsView { scenarios, kept };
            console.object(&Document::new("Drills", None::<u64>, content))?;
        }
        Format::Name => {
            for scenario in &scenarios {
                console.line(&scenario.name)?;
            }
        }
        Format::Table | Format::Wide | Format::Html | Format::Csv => print(console, &scenarios, &kept)?,
    }
    Ok(Exit::Ok)
}

fn print(console: &Console, scenarios: &[ScenarioView], kept: &[KeptView]) -> Result<(), Failure> {
    let mut grid = Grid::new(vec!["SCENARIO", "LASTS", "RUNBOOK", "TITLE"]);
    for scenario in scenarios {
        grid.row(vec![
            scenario.name.clone(),
            span(scenario.duration_ms),
            scenario.runbook.clone(),
            scenario.title.clone(),
        ]);
    }
    console.table(&grid)?;
    if kept.is_empty() {
        return Ok(());
    }
    console.line("")?;
    let mut grid = Grid::new(vec!["DRILL", "SCENARIO", "STARTED", "END"]);
    for drill in kept {
        grid.row(vec![drill.id.clone(), drill.name.clone(), drill.started_at.clone(), drill.end.clone()]);
    }
    console.table(&grid)
}
