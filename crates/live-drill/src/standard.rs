//! Scenarios that come with the program, and those of the operator's own.

use std::path::Path;

use muster_console::{Exit, Failure};
use muster_drill::scenario::{FILE_BYTES_MAX, Scenario, ScenarioError};

macro_rules! standard {
    ($($name:literal),* $(,)?) => {
        /// Every scenario of `ops/drills` with steps for a live cluster: name and text.
        const STANDARD: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../ops/drills/", $name, ".yaml")))),*];
    };
}

standard![
    "leader-region-lost",
    "leader-silent",
    "leadership-transferred",
    "region-cordoned",
    "region-lost-and-back",
    "region-silent",
    "replica-silent",
];

/// A scenario with its text.
pub struct LoadedScenario {
    pub scenario: Scenario,
    pub text: String,
}

fn refused(error: &ScenarioError) -> Failure {
    let lines = error.to_string().lines().map(str::to_owned).collect::<Vec<_>>();
    Failure::usage(format!("{} is no scenario", error.file)).with_details(lines)
}

fn parse(file: &str, text: &str) -> Result<LoadedScenario, Failure> {
    let scenario = Scenario::parse(file, text.as_bytes()).map_err(|error| refused(&error))?;
    Ok(LoadedScenario { scenario, text: text.to_owned() })
}

/// All standard ones, in the order of their names.
pub fn all() -> Result<Vec<LoadedScenario>, Failure> {
    STANDARD.iter().map(|(name, text)| parse(&format!("{name}.yaml"), text)).collect()
}

/// The standard one of a name.
pub fn named(name: &str) -> Result<LoadedScenario, Failure> {
    match STANDARD.iter().find(|(known, _)| *known == name) {
        Some((name, text)) => parse(&format!("{name}.yaml"), text),
        None => Err(Failure::new(Exit::NotFound, format!("there is no drill {name:?} for a live cluster"))
            .with_next("`muster drill list` shows what there is; --file runs one of your own")),
    }
}

/// One that was kept with a drill.
pub fn kept(name: &str, text: &str) -> Result<LoadedScenario, Failure> {
    parse(&format!("{name}.yaml"), text)
}

/// One of the operator's own.
pub fn read(path: &Path) -> Result<LoadedScenario, Failure> {
    let shown = path.display().to_string();
    let unread = |error: std::io::Error| Failure::usage(format!("{shown} cannot be read: {error}"));
    if std::fs::metadata(path).map_err(unread)?.len() > FILE_BYTES_MAX as u64 {
        return Err(Failure::usage(format!("{shown} is larger than {FILE_BYTES_MAX} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(unread)?;
    parse(&shown, &text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_scenario_for_live_clusters_comes_with_the_program() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops/drills");
        let mut live = BTreeSet::new();
        for entry in std::fs::read_dir(directory).expect("ops/drills is there") {
            let path = entry.expect("it can be listed").path();
            if path.extension().is_some_and(|end| end == "yaml")
                && let Ok(given) = read(&path)
                && !given.scenario.live.is_empty()
            {
                live.insert(given.scenario.name);
            }
        }
        let known: BTreeSet<String> = STANDARD.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(known, live);
        assert_eq!(all().map(|all| all.len()).unwrap_or(0), live.len(), "each can be read");
    }
}
