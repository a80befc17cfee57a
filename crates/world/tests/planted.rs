//! Rules broken on purpose, one at a time: the judge has to notice each, in a seed that is clean when nothing is broken.
//!
//! Without the feature `planted-bugs` only those rules are broken that the simulation keeps in the place of the product;
//! `cargo test -p muster-world --features planted-bugs --test planted` breaks all of them, and each has a test. Where what
//! runs changes, a known seed may not show its rule any more: then others are tried, and the test says which one does.

use muster_planted::Rule;
use muster_world::settings::breakable;
use muster_world::swarm::catch;

/// Simulated time of faults: long enough for a broken rule to show.
const CHAOS_MS: u64 = 20_000;
/// Seeds within which the judge has to notice, behind those that are known to show it.
const SEEDS_MAX: u64 = 40;

/// Looks for the seed in which the judge notices; `known` are tried first.
fn noticed(rule: Rule, known: &[u64], words: &[&str]) {
    let others = (1..=SEEDS_MAX).filter(|seed| !known.contains(seed));
    let caught = catch(rule, known.iter().copied().chain(others), CHAOS_MS, words);
    let caught = caught.unwrap_or_else(|control| {
        panic!(
            "{rule}: a seed that breaks nothing is not clean: {}\n{:?}",
            control.replay_line(),
            control.violations
        )
    });
    let Some(report) = caught else {
        panic!("{rule} is broken, and nobody notices within {SEEDS_MAX} seeds")
    };
    println!("{rule}: seed {}: {}", report.settings.seed, report.violations[0]);
}

/// A test for each rule, and one that no rule is without a test.
macro_rules! rules {
    ($($(#[$condition:meta])* $name:ident: $rule:ident, $known:expr, $words:expr;)*) => {
        $($(#[$condition])* #[test] fn $name() { noticed(Rule::$rule, &$known, &$words); })*

        #[test]
        fn every_rule_that_this_build_can_break_has_a_test() {
            let tested = [$($(#[$condition])* Rule::$rule),*];
            for rule in breakable() {
                assert!(tested.contains(&rule), "{rule} has no test here");
            }
        }
    };
}

rules! {
    a_vote_after_a_loss_is_noticed: VoteAfterLoss, [7], [];
    // What follows from it shows in no known seed at present; that the disk has less than it was told to does.
    #[cfg(feature = "planted-bugs")]
    an_acknowledgement_before_the_flush_is_noticed: AckBeforeFlush, [17], ["lost:", "applied", "committed", "log matching", "is durable"];
    #[cfg(feature = "planted-bugs")]
    an_agent_that_ignores_its_lease_is_noticed: AgentIgnoresLease, [3], ["two incarnations", "a device of machine"];
    a_retry_under_a_new_id_is_noticed: RetryUnderNewId, [4], [];
    #[cfg(feature = "planted-bugs")] a_heartbeat_without_a_quorum_is_noticed: HeartbeatWithoutQuorum, [11], ["two incarnations", "a device of machine"];
    #[cfg(feature = "planted-bugs")] a_skipped_guard_is_noticed: SkipGuard, [1], [];
    #[cfg(feature = "planted-bugs")] a_leader_restored_without_an_election_is_noticed: LeaderRestore, [1], [];
    #[cfg(feature = "planted-bugs")] log_time_by_the_wall_clock_alone_is_noticed: WallClockOnly, [12], ["log time"];
    #[cfg(feature = "planted-bugs")] a_read_without_a_quorum_is_noticed: ReadWithoutQuorum, [1], [];
    #[cfg(feature = "planted-bugs")] an_answer_before_apply_is_noticed: AnswerBeforeApply, [2], [];
    #[cfg(feature = "planted-bugs")] a_deaf_leader_that_speaks_is_noticed: DeafLeaderSpeaks, [1], [];
    #[cfg(feature = "planted-bugs")] a_leader_that_keeps_on_with_a_bad_disk_is_noticed: KeepsOnBadDisk, [3], [];
    #[cfg(feature = "planted-bugs")] a_watch_that_skips_is_noticed: WatchSkips, [1], [];
}
