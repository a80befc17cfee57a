//! What was found wrong, by rule.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Findings of one rule that are kept whole; the others are counted.
const KEPT_MAX: usize = 20;

macro_rules! rules {
    ($($(#[doc = $says:literal])+ $name:ident = $code:literal,)*) => {
        /// A rule that a drill is held to.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Rule {
            $($(#[doc = $says])+ #[serde(rename = $code)] $name,)*
        }

        impl Rule {
            /// Every rule.
            pub const ALL: &[Rule] = &[$(Rule::$name,)*];

            /// Stable name.
            #[must_use]
            pub fn code(self) -> &'static str {
                match self { $(Rule::$name => $code,)* }
            }

            /// What it demands.
            #[must_use]
            pub fn says(self) -> &'static str {
                match self { $(Rule::$name => concat!($($says),+),)* }
            }
        }
    };
}

rules! {
    /// The log can be read from its beginning, and a replay comes to the states that its leaders recorded.
    Log = "LOG",
    /// No record of a current leader is refused by the guard.
    RecordRefused = "RECORD_REFUSED",
    /// The invariants of the state hold at the end: no device is leased twice, nothing leaks.
    State = "STATE",
    /// Every accelerator is in exactly one state at each moment: what is charged of each type in each region is its capacity × time.
    NotConserved = "NOT_CONSERVED",
    /// No device is given to two workers at a time, and no host gives more than it has; counted from the records alone.
    LeasedTwice = "LEASED_TWICE",
    /// Nothing is placed on a node outside the session that it names, and no session begins while the one before holds
    /// devices.
    LeaseWithoutSession = "LEASE_WITHOUT_SESSION",
    /// Nothing is placed, and no capacity promised, beyond what quotas, borrowing limits and counts of licences allow; counted
    /// from the records alone.
    QuotaExceeded = "QUOTA_EXCEEDED",
    /// No job starts while somebody holds it or has suspended it.
    StartedHeld = "STARTED_HELD",
    /// No job starts once its end was asked for.
    StartedCancelled = "STARTED_CANCELLED",
    /// No gang starts with a number of workers that it may not have.
    SizeImpossible = "SIZE_IMPOSSIBLE",
    /// No job starts on a node that was bought in a way that it does not allow, and no job takes its fallback before it has
    /// waited for as long as it says.
    PurchaseBroken = "PURCHASE_BROKEN",
    /// During its windows, and only then, a booking's nodes are given to nobody but those that it is open to.
    BookingBroken = "BOOKING_BROKEN",
    /// A grant of quota counts no longer than to its end.
    GrantOutlived = "GRANT_OUTLIVED",
    /// A moment of a schedule is carried out once, not before it has come, and not while the schedule is suspended.
    ScheduleMoment = "SCHEDULE_MOMENT",
    /// No schedule makes a job by a token that was revoked or has expired.
    TokenOutlived = "TOKEN_OUTLIVED",
    /// The history is one of this drill, whole and written once.
    History = "HISTORY",
    /// What was acknowledged is in the log.
    AcknowledgementLost = "ACKNOWLEDGEMENT_LOST",
    /// It is there at the position, with the jobs, that the client was told.
    WrongRecord = "WRONG_RECORD",
    /// One request makes one record.
    DoneTwice = "DONE_TWICE",
    /// What was refused was not done.
    DoneThoughRefused = "DONE_THOUGH_REFUSED",
    /// Everything in the log was asked for by somebody.
    RequestOfNobody = "REQUEST_OF_NOBODY",
    /// What is asked for after an answer stands in the log behind what that answer showed.
    OrderBroken = "ORDER_BROKEN",
    /// Log time goes on, at a third of the pace at least.
    LogTimeStands = "LOG_TIME_STANDS",
    /// A linearizable read sees everything that anybody was shown before it began.
    StaleLinearizableRead = "STALE_LINEARIZABLE_READ",
    /// A bounded read sees everything that anybody was shown so long before it began.
    StaleBoundedRead = "STALE_BOUNDED_READ",
    /// An answer is no older than it says.
    StalenessUntrue = "STALENESS_UNTRUE",
    /// A session never sees less than it asked for.
    SessionWentBack = "SESSION_WENT_BACK",
    /// No answer speaks of a position that the log does not have.
    AnswerFromNowhere = "ANSWER_FROM_NOWHERE",
    /// An answer is what the log up to its position comes to.
    ContentDiffers = "CONTENT_DIFFERS",
    /// A watch shows every change once and in order.
    WatchDiffers = "WATCH_DIFFERS",
    /// A watch shows what was acknowledged, at most ten seconds later.
    WatchStalled = "WATCH_STALLED",
    /// A cluster that has lost its majority for good acknowledges nothing before an operator lets it go on.
    MinorityDecided = "MINORITY_DECIDED",
    /// Two attempts of a job, or one rank twice, never run at the same time.
    Overlap = "OVERLAP",
    /// Nothing runs that was not placed.
    RanUnplaced = "RAN_UNPLACED",
    /// Replicas have the state that the log comes to.
    ReplicaDiffers = "REPLICA_DIFFERS",
    /// Leadership goes where the drill says.
    Leadership = "LEADERSHIP",
    /// Submissions are acknowledged again in time.
    SubmissionsLate = "SUBMISSIONS_LATE",
    /// Linearizable reads are answered again in time.
    ReadsLate = "READS_LATE",
    /// Every submission is acknowledged, and in time.
    SubmissionFailed = "SUBMISSION_FAILED",
    /// Submissions become fast again while the fault lasts.
    SubmissionsSlow = "SUBMISSIONS_SLOW",
    /// Reads on survivors do not stop.
    SurvivorsSilent = "SURVIVORS_SILENT",
    /// Gangs of lost hosts run elsewhere in time.
    GangsLate = "GANGS_LATE",
    /// Gangs that nothing was done to go on.
    GangTouched = "GANG_TOUCHED",
    /// The cluster says what is wrong.
    WarningMissing = "WARNING_MISSING",
    /// Replicas come to one state in time.
    ReplicasApart = "REPLICAS_APART",
    /// Nothing counts as held that was not looked at.
    NotChecked = "NOT_CHECKED",
    /// The drill was carried out as it is written: every step had its effect, no process ended by itself, and no
    /// log has an error that the fault does not explain.
    DrillIncomplete = "DRILL_INCOMPLETE",
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// One breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What is wrong, one sentence with its numbers.
    pub text: String,
    /// What shows it: operations, records, intervals.
    pub evidence: Vec<String>,
}

/// All breaches of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breaches {
    /// How many.
    pub count: u64,
    /// The first of them.
    pub first: Vec<Finding>,
}

/// What was found, by rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings(pub BTreeMap<Rule, Breaches>);

impl Findings {
    /// Notes a breach. What it says is only made when it is kept.
    pub(crate) fn add(&mut self, rule: Rule, text: impl FnOnce() -> (String, Vec<String>)) {
        let breaches = self.0.entry(rule).or_default();
        breaches.count += 1;
        if breaches.first.len() < KEPT_MAX {
            let (text, evidence) = text();
            breaches.first.push(Finding { text, evidence });
        }
    }

    /// The same, with no evidence but its numbers.
    pub(crate) fn say(&mut self, rule: Rule, text: impl FnOnce() -> String) {
        self.add(rule, || (text(), Vec::new()));
    }

    /// How often a rule was broken.
    #[must_use]
    pub fn count(&self, rule: Rule) -> u64 {
        self.0.get(&rule).map_or(0, |breaches| breaches.count)
    }

    /// Whether nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Rules that were broken.
    pub fn rules(&self) -> impl Iterator<Item = Rule> {
        self.0.keys().copied()
    }
}
