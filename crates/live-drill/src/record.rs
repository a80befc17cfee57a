//! What is kept of a drill: a directory with what was planned, what happened when, and what the probes saw.

use std::path::{Path, PathBuf};
use std::time::Instant;

use muster_console::{Exit, Failure};
use serde::{Deserialize, Serialize};

/// Nobody's record is larger.
const RECORD_BYTES_MAX: u64 = 16 << 20;
/// Notes kept of one drill; further ones appear on the terminal only.
const NOTES_MAX: usize = 4_096;

/// One thing that happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// On the drill's clock, in milliseconds since it was started.
    pub at_ms: u64,
    pub what: String,
    pub text: String,
}

/// A leader as it was seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaderSeen {
    pub at_ms: u64,
    pub replica: u64,
}

/// What happened when, on the drill's own monotonic clock.
#[derive(Debug)]
pub struct Timeline {
    clock: Instant,
    pub notes: Vec<Note>,
    pub led: Vec<LeaderSeen>,
    pub steps: Vec<StepDone>,
    pub warnings: Vec<WarningSeen>,
    pub states: Vec<StateSeen>,
    pub fault_at_ms: Option<u64>,
    pub healed_at_ms: Option<u64>,
}

impl Timeline {
    pub fn new(clock: Instant) -> Timeline {
        Timeline {
            clock,
            notes: Vec::new(),
            led: Vec::new(),
            steps: Vec::new(),
            warnings: Vec::new(),
            states: Vec::new(),
            fault_at_ms: None,
            healed_at_ms: None,
        }
    }

    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Writes something down; the seconds since the drill was started.
    pub fn note(&mut self, what: &str, text: &str) -> f64 {
        let at_ms = self.now_ms();
        if self.notes.len() < NOTES_MAX {
            self.notes.push(Note { at_ms, what: what.to_owned(), text: text.to_owned() });
        }
        // For people; a drill has few milliseconds.
        at_ms as f64 / 1_000.0
    }

    pub fn fault_begins(&mut self) {
        self.fault_at_ms = Some(self.now_ms());
    }

    pub fn fault_ends(&mut self) {
        self.healed_at_ms = Some(self.now_ms());
    }

    /// A step begins.
    pub fn step_begins(&mut self, place: usize, verb: &str, text: &str) {
        let at_ms = self.now_ms();
        let (verb, text) = (verb.to_owned(), text.to_owned());
        self.steps.push(StepDone { place, at_ms, until_ms: None, verb, text });
    }

    /// What a step did is undone.
    pub fn step_ends(&mut self, place: usize) {
        let now = self.now_ms();
        if let Some(step) = self.steps.iter_mut().find(|step| step.place == place) {
            step.until_ms = Some(now);
        }
    }

    /// A replica said how far it is and what its state comes to.
    pub fn state_seen(&mut self, replica: u64, log_index: u64, digest: &str) {
        if self.states.len() < NOTES_MAX {
            let at_ms = self.now_ms();
            self.states.push(StateSeen { at_ms, replica, log_index, digest: digest.to_owned() });
        }
    }

    /// The cluster warns of something; each warning is kept when it is first seen.
    pub fn warned(&mut self, code: &str, replica: u64) {
        let known = self.warnings.iter().any(|seen| seen.code == code && seen.replica == replica);
        if !known && self.warnings.len() < NOTES_MAX {
            self.warnings.push(WarningSeen { at_ms: self.now_ms(), code: code.to_owned(), replica });
        }
    }

    /// Who leads now; whether that is another than before.
    pub fn leads(&mut self, replica: u64) -> bool {
        if self.led.last().is_some_and(|led| led.replica == replica) {
            return false;
        }
        self.led.push(LeaderSeen { at_ms: self.now_ms(), replica });
        self.led.len() > 1
    }
}

/// A step that was carried out.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepDone {
    /// Its place in the plan.
    pub place: usize,
    pub at_ms: u64,
    /// When it was undone; none where nothing had to be, or an end came first.
    pub until_ms: Option<u64>,
    pub verb: String,
    pub text: String,
}

/// A warning, when it was first seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WarningSeen {
    pub at_ms: u64,
    pub code: String,
    /// 0 where it is about none.
    pub replica: u64,
}

/// What a replica said of its state.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StateSeen {
    pub at_ms: u64,
    pub replica: u64,
    pub log_index: u64,
    /// 16 hexadecimal digits.
    pub digest: String,
}

/// A replica, as it was when the drill began.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    pub id: u64,
    pub region: String,
    pub voter: bool,
}

/// Everything but the probes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub id: String,
    /// The scenario's file, as it was.
    pub scenario: String,
    pub name: String,
    pub started_by: String,
    pub started_at: String,
    /// What the clock of the probes showed when the drill's own began, in microseconds.
    pub clock_us: u64,
    /// What the Unix clock showed when the first step began, in milliseconds.
    pub fault_unix_ms: u64,
    pub tenant: String,
    pub members: Vec<Member>,
    /// Replicas that were to be silent, at some time.
    pub silent: Vec<u64>,
    /// Records of the log from here on are the drill's time.
    pub first_log_index: u64,
    pub last_log_index: u64,
    pub fault_at_ms: Option<u64>,
    pub healed_at_ms: Option<u64>,
    pub ended_at_ms: u64,
    /// How it ended; `completed`, `interrupted`, `stopped` or `aborted`.
    pub end: String,
    pub end_detail: String,
    /// Probes that were not made, because too many were open.
    pub probes_unmade: u64,
    pub steps: Vec<StepDone>,
    pub warnings: Vec<WarningSeen>,
    pub states: Vec<StateSeen>,
    pub notes: Vec<Note>,
    pub led: Vec<LeaderSeen>,
}

/// Where drills are kept.
#[derive(Clone, Debug)]
pub struct DrillsDirectory {
    root: PathBuf,
}

fn failed(path: &Path, what: &str, error: &std::io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("{} cannot be {what}: {error}", path.display()))
}

impl DrillsDirectory {
    /// The directory given, else `$XDG_STATE_HOME/muster/drills`, else `~/.local/state/muster/drills`.
    pub fn find(given: Option<PathBuf>) -> Result<DrillsDirectory, Failure> {
        let absolute =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let usual = || {
            let state =
                absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
            Some(state.join("muster/drills"))
        };
        let root = given.or_else(usual).ok_or_else(|| {
            Failure::usage("there is no place to keep what a drill finds")
                .with_next("name a directory with --dir, or set HOME or XDG_STATE_HOME")
        })?;
        Ok(DrillsDirectory { root })
    }

    pub fn of(&self, id: &str) -> PathBuf {
        self.root.join(id)
    }

    /// Makes the directory of a new drill.
    pub fn create(&self, id: &str) -> Result<PathBuf, Failure> {
        let directory = self.of(id);
        std::fs::create_dir_all(&directory).map_err(|error| failed(&directory, "made", &error))?;
        Ok(directory)
    }

    pub fn save(&self, record: &Record) -> Result<(), Failure> {
        let path = self.of(&record.id).join("drill.json");
        let text = serde_json::to_string_pretty(record)
            .map_err(|error| Failure::new(Exit::Failed, format!("the record cannot be written: {error}")))?;
        std::fs::write(&path, text).map_err(|error| failed(&path, "written", &error))
    }

    /// A drill that was kept; the newest where none is named.
    pub fn load(&self, id: Option<&str>) -> Result<Record, Failure> {
        let id = match id {
            Some(id) => id.to_owned(),
            None => self.newest()?,
        };
        if muster_types::Name::new(&id).is_none() {
            return Err(Failure::usage(format!("{id:?} is no drill's id")));
        }
        let path = self.of(&id).join("drill.json");
        let missing = |error: &std::io::Error| {
            Failure::new(Exit::NotFound, format!("{} cannot be read: {error}", path.display()))
                .with_next("`muster drill list` shows the drills kept here; --dir names another directory")
        };
        let size = std::fs::metadata(&path).map_err(|error| missing(&error))?.len();
        if size > RECORD_BYTES_MAX {
            return Err(Failure::new(Exit::Failed, format!("{} is no record of a drill", path.display())));
        }
        let text = std::fs::read_to_string(&path).map_err(|error| missing(&error))?;
        serde_json::from_str(&text)
            .map_err(|error| Failure::new(Exit::Failed, format!("{} is damaged: {error}", path.display())))
    }

    /// Ids of all drills kept, the newest first: ids begin with their time.
    pub fn all(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(&self.root) else { return Vec::new() };
        let names = entries.flatten().filter(|entry| entry.path().join("drill.json").is_file());
        let mut names: Vec<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_by(|a, b| b.cmp(a));
        names
    }

    fn newest(&self) -> Result<String, Failure> {
        self.all().into_iter().next().ok_or_else(|| {
            Failure::new(Exit::NotFound, format!("no drill is kept in {}", self.root.display()))
                .with_next("`muster drill run` makes one; --dir names another directory")
        })
    }
}
