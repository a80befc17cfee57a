//! The rules, by name.

use std::fmt;
use std::str::FromStr;

/// A rule of the product that can be broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A leader renews leases without asking a quorum, and takes neither silence nor refusals for a sign that it
    /// leads no more.
    HeartbeatWithoutQuorum,
    /// Proposals are bound to no leadership, a leader that was deposed goes on where it was, and records of a
    /// lost leadership are applied as if they were current.
    SkipGuard,
    /// A replica that lost its log starts empty under its old name and votes.
    VoteAfterLoss,
    /// A batch of the log is acknowledged a moment before it is written.
    AckBeforeFlush,
    /// A leader that restarts goes on without an election.
    LeaderRestore,
    /// An agent's workers go on for an hour after its lease has run out.
    AgentIgnoresLease,
    /// A client repeats a submission under another request id.
    RetryUnderNewId,
    /// Log time stands still while a leader's wall clock is behind it.
    WallClockOnly,
    /// Replicas answer linearizable reads from what they have applied, and ask nobody.
    ReadWithoutQuorum,
    /// A submission is answered when it is decided, not when a quorum has it.
    AnswerBeforeApply,
    /// A leader that hears nobody goes on sending heartbeats, so nobody replaces it.
    DeafLeaderSpeaks,
    /// A leader keeps leading with a disk that is slow, hangs, or is full.
    KeepsOnBadDisk,
    /// A watch that is resumed behind a position skips the first change there.
    WatchSkips,
}

impl Rule {
    /// All of them.
    pub const ALL: [Rule; 13] = [
        Rule::HeartbeatWithoutQuorum,
        Rule::SkipGuard,
        Rule::VoteAfterLoss,
        Rule::AckBeforeFlush,
        Rule::LeaderRestore,
        Rule::AgentIgnoresLease,
        Rule::RetryUnderNewId,
        Rule::WallClockOnly,
        Rule::ReadWithoutQuorum,
        Rule::AnswerBeforeApply,
        Rule::DeafLeaderSpeaks,
        Rule::KeepsOnBadDisk,
        Rule::WatchSkips,
    ];

    /// As it is named on command lines and in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Rule::HeartbeatWithoutQuorum => "heartbeat-without-quorum",
            Rule::SkipGuard => "skip-guard",
            Rule::VoteAfterLoss => "vote-after-loss",
            Rule::AckBeforeFlush => "ack-before-flush",
            Rule::LeaderRestore => "leader-restore",
            Rule::AgentIgnoresLease => "agent-ignores-lease",
            Rule::RetryUnderNewId => "retry-under-new-id",
            Rule::WallClockOnly => "wall-clock-only",
            Rule::ReadWithoutQuorum => "read-without-quorum",
            Rule::AnswerBeforeApply => "answer-before-apply",
            Rule::DeafLeaderSpeaks => "deaf-leader-speaks",
            Rule::KeepsOnBadDisk => "keeps-on-bad-disk",
            Rule::WatchSkips => "watch-skips",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No rule has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no planted bug {name:?}; there are {known}")]
pub struct UnknownRule {
    name: String,
    known: String,
}

/// The names of all rules, for people.
pub(crate) fn names() -> String {
    Rule::ALL.map(Rule::name).join(", ")
}

impl FromStr for Rule {
    type Err = UnknownRule;

    fn from_str(text: &str) -> Result<Rule, UnknownRule> {
        let found = Rule::ALL.into_iter().find(|rule| rule.name() == text);
        found.ok_or_else(|| UnknownRule { name: text.to_owned(), known: names() })
    }
}
