//! A model of a replica that loses its storage and comes back under its old id (`crates/consensus/src/rejoin`,
//! `membership.rs`).
//!
//! The checker goes through every order of elections, appends, commits, losses and changes of the members within the bounds
//! of a [`Scope`]. Votes and acknowledgements that were given stay given: the replica that asked for them may hear of them at any
//! later time, also after the replica that gave them has lost its storage. Who may vote and acknowledge is asked of the
//! product's own `may_vote` and `may_acknowledge`; what a mark becomes, of its `mark_behind_entry`. Leaders, changes of the
//! voters over a joint configuration, and the comparison of logs are as openraft's.
//!
//! A **ballot** is a pair of term and replica; ballots are ordered, and each may elect one leadership.
//!
//! **Invariants** that are proved within the bounds:
//! - No committed entry is lost or replaced, and each new leader has all that was committed under lower ballots.
//! - A ballot elects one leadership.
//! - No ballot is elected by a vote that was forgotten with a storage, once its replica votes or acknowledges under a
//!   lower one; nor the other way round. So nobody votes twice in effect. (In word it may: a forgotten vote for a ballot that
//!   can no longer be elected binds nobody.)
//!
//! For each rule that these rest on, the same model without the rule has a counterexample.

use muster_consensus::{mark_behind_entry, may_acknowledge, may_vote};
use muster_store::Rejoin;
use stateright::{Checker, HasDiscoveries, Model as _, Property};

const REPLICAS: usize = 5;
const THREE: u8 = 0b00111;
const FIVE: u8 = 0b11111;
/// Ballots up to those of the second term's first three replicas.
const BALLOTS: usize = REPLICAS + 4;

/// A rule of the product that a variant of the model does without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// `may_vote`: who does not know what it promised does not vote.
    UnknownMayVote,
    /// `may_acknowledge`: nor does it acknowledge.
    UnknownIsSilent,
    /// `accept`: it takes the vote of the leadership that took it in before it takes anything else.
    TakesVote,
    /// `Consensus::change`: a change is committed before the next one begins, and before the leader answers.
    ChangesAreCommitted,
    /// `Membership::add_again`: the replica is removed and added again.
    IsRemoved,
    /// `may_vote`: it votes again once it knows the entry that added it.
    WaitsForEntry,
}

/// Where a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// The first replica leads the first three.
    Three,
    /// The second one leads, and has made five of the three. The first one heard nothing of that and still leads by its own
    /// account, under a lower ballot: with one more replica it would be a quorum of the three that it knows.
    Grown,
}

/// How far the checker goes.
#[derive(Clone, Copy, Debug)]
struct Scope {
    start: Start,
    /// The highest ballot, and who may campaign.
    ballots: u8,
    candidates: u8,
    losses: u8,
    /// Who may lose its storage.
    losers: u8,
    data: u8,
    log_max: usize,
}

#[derive(Clone, Debug)]
struct Model {
    scope: Scope,
    without: Option<Rule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    /// The first entry of a leadership.
    Blank,
    Data,
    /// Two sets of voters, each of which has to agree, and learners.
    Joint(u8, u8, u8),
    /// Voters and learners.
    Members(u8, u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Entry {
    ballot: u8,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    Follower,
    Candidate,
    Leader,
}

/// The mark of a lost storage, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Mark {
    None,
    Unknown,
    From(u8),
    AwaitingVote,
}

impl Mark {
    fn stored(self) -> Option<Rejoin> {
        match self {
            Mark::None => None,
            Mark::Unknown => Some(Rejoin::Unknown),
            Mark::From(index) => Some(Rejoin::From { index: index.into(), voted: true }),
            Mark::AwaitingVote => Some(Rejoin::AwaitingVote),
        }
    }

    fn of(stored: Option<Rejoin>) -> Mark {
        match stored {
            None => Mark::None,
            Some(Rejoin::Unknown) => Mark::Unknown,
            Some(Rejoin::From { index, .. }) => Mark::From(index as u8),
            Some(Rejoin::AwaitingVote) => Mark::AwaitingVote,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Replica {
    vote: u8,
    role: Role,
    log: Vec<Entry>,
    mark: Mark,
    /// The entry that added it again, and the ballot of the leader that wrote it, since its storage was lost.
    offer: Option<(u8, u8)>,
    /// A bit for each ballot that it voted for: since its storage was lost, and before.
    voted: u16,
    forgotten: u16,
    /// The lowest ballot that it voted for or acknowledged something under since its storage was lost.
    lowest: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    replicas: [Replica; REPLICAS],
    /// By ballot: who voted for it, whether it was elected, and without whom it would not have been.
    granted: [u8; BALLOTS],
    elected: [bool; BALLOTS],
    decisive: [u8; BALLOTS],
    /// By ballot and replica: entries that it acknowledged to the leader.
    acked: [[u8; REPLICAS]; BALLOTS],
    /// By ballot: what its leader knows to be committed.
    commits: [u8; BALLOTS],
    /// All that was ever committed, and the highest ballot under which something was.
    committed: Vec<Entry>,
    committed_ballot: u8,
    losses: u8,
    data: u8,
    faults: Faults,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Faults {
    lost_entry: bool,
    two_leaderships: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Campaign(usize),
    /// A replica votes for a candidate.
    Vote(usize, usize),
    BecomeLeader(usize),
    Propose(usize),
    /// Leader, follower, length.
    Replicate(usize, usize, usize),
    Commit(usize),
    LoseStorage(usize),
    /// A leader and the replica that it takes in.
    Remove(usize, usize),
    FinishChange(usize),
    AddLearner(usize, usize),
    Accept(usize),
    LearnEntry(usize),
    Promote(usize, usize),
    /// A leader that was left behind starts again, with its storage.
    Restart(usize),
}

fn owner(ballot: u8) -> usize {
    usize::from(ballot - 1) % REPLICAS
}

fn majority(of: u8, mask: u8) -> bool {
    2 * (of & mask).count_ones() > of.count_ones()
}

/// Who votes, by the membership that a replica knows.
fn votes_of(replica: &Replica) -> u8 {
    replica.known().1
}

impl Replica {
    /// The last membership of its log, and where it is.
    fn members(&self) -> Option<(usize, Kind)> {
        let is_membership = |kind: &Kind| matches!(kind, Kind::Joint(..) | Kind::Members(..));
        let at = self.log.iter().rposition(|entry| is_membership(&entry.kind))?;
        Some((at, self.log[at].kind))
    }

    fn decide(&self, mask: u8) -> bool {
        match self.members() {
            Some((_, Kind::Joint(old, new, _))) => majority(old, mask) && majority(new, mask),
            Some((_, Kind::Members(voters, _))) => majority(voters, mask),
            _ => false,
        }
    }

    /// Everybody who is sent entries, and those who vote.
    fn known(&self) -> (u8, u8) {
        match self.members() {
            Some((_, Kind::Joint(old, new, learners))) => (old | new | learners, old | new),
            Some((_, Kind::Members(voters, learners))) => (voters | learners, voters),
            _ => (0, 0),
        }
    }

    fn last(&self) -> (u8, usize) {
        (self.log.last().map_or(0, |entry| entry.ballot), self.log.len())
    }

    fn take_vote(&mut self, ballot: u8) {
        if ballot > self.vote {
            (self.vote, self.role) = (ballot, Role::Follower);
        }
    }

    fn promise(&mut self, ballot: u8) {
        self.lowest = self.lowest.min(ballot);
    }
}

impl State {
    fn ballot(&self, replica: usize) -> usize {
        usize::from(self.replicas[replica].vote)
    }

    fn push(&mut self, leader: usize, kind: Kind) {
        let ballot = self.replicas[leader].vote;
        self.replicas[leader].log.push(Entry { ballot, kind });
    }
}

impl Model {
    fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    fn may_vote(&self, replica: &Replica) -> bool {
        may_vote(replica.mark.stored()).is_ok()
            || match replica.mark {
                Mark::Unknown => !self.has(Rule::UnknownMayVote),
                _ => !self.has(Rule::WaitsForEntry),
            }
    }

    fn may_acknowledge(&self, replica: &Replica) -> bool {
        may_acknowledge(replica.mark.stored()).is_ok() || !self.has(Rule::UnknownIsSilent)
    }

    fn is_committed(&self, state: &State, ballot: u8, at: usize) -> bool {
        usize::from(state.commits[usize::from(ballot)]) > at || !self.has(Rule::ChangesAreCommitted)
    }

    /// The voters and learners that a leader may change: the last change is done and committed.
    fn settled(&self, state: &State, leader: usize) -> Option<(u8, u8)> {
        match state.replicas[leader].members()? {
            (at, Kind::Members(voters, learners))
                if self.is_committed(state, state.replicas[leader].vote, at) =>
            {
                Some((voters, learners))
            }
            _ => None,
        }
    }

    fn next_ballot(&self, state: &State, replica: usize) -> Option<u8> {
        let vote = state.replicas[replica].vote;
        (vote + 1..=self.scope.ballots).find(|ballot| owner(*ballot) == replica)
    }

    fn vote(&self, state: &mut State, voter: usize, candidate: usize) {
        let ballot = state.replicas[candidate].vote;
        let replica = &mut state.replicas[voter];
        replica.take_vote(ballot);
        replica.promise(ballot);
        replica.voted |= 1 << ballot;
        state.granted[usize::from(ballot)] |= 1 << voter;
    }

    fn become_leader(&self, state: &mut State, replica: usize) {
        let ballot = state.ballot(replica);
        state.faults.two_leaderships |= state.elected[ballot];
        state.elected[ballot] = true;
        let granted = state.granted[ballot];
        let decisive = |voter: &usize| !state.replicas[replica].decide(granted & !(1 << voter));
        state.decisive[ballot] = (0..REPLICAS).filter(decisive).map(|voter| 1 << voter).sum();
        let log = &state.replicas[replica].log;
        if usize::from(state.committed_ballot) < ballot {
            state.faults.lost_entry |= !log.starts_with(&state.committed);
        }
        state.replicas[replica].role = Role::Leader;
        state.push(replica, Kind::Blank);
    }

    fn replicate(&self, state: &mut State, leader: usize, to: usize, len: usize) {
        let (ballot, log) = (state.replicas[leader].vote, state.replicas[leader].log[..len].to_vec());
        let follower = &mut state.replicas[to];
        follower.take_vote(ballot);
        follower.promise(ballot);
        let same = follower.log.iter().zip(&log).take_while(|(a, b)| a == b).count();
        if same < len {
            follower.log = log;
        }
        let acked = &mut state.acked[usize::from(ballot)][to];
        *acked = (*acked).max(len as u8);
    }

    /// What a leader finds committed by what was acknowledged to it.
    fn commit(&self, state: &mut State, leader: usize) -> Option<()> {
        let (b, replica) = (state.ballot(leader), &state.replicas[leader]);
        let decided = |len: usize| {
            let holds = |other: &usize| *other == leader || usize::from(state.acked[b][*other]) >= len;
            replica.decide((0..REPLICAS).filter(holds).map(|other| 1 << other).sum())
        };
        let mut lengths = (usize::from(state.commits[b]) + 1..=replica.log.len()).rev();
        let len = lengths.find(|len| usize::from(replica.log[len - 1].ballot) == b && decided(*len))?;
        let both = len.min(state.committed.len());
        state.faults.lost_entry |= replica.log[..both] != state.committed[..both];
        if len > state.committed.len() {
            state.committed = replica.log[..len].to_vec();
        }
        state.committed_ballot = state.committed_ballot.max(b as u8);
        state.commits[b] = len as u8;
        Some(())
    }

    fn lose_storage(&self, state: &mut State, replica: usize) {
        state.losses += 1;
        let replica = &mut state.replicas[replica];
        let forgotten = replica.forgotten | replica.voted;
        *replica = Replica {
            vote: 0,
            role: Role::Follower,
            log: Vec::new(),
            mark: Mark::Unknown,
            offer: None,
            voted: 0,
            forgotten,
            lowest: u8::MAX,
        };
    }

    /// The first step of `Membership::add_again`; without it the leader only reports what it has committed.
    fn remove(&self, state: &mut State, leader: usize, id: usize) -> Option<()> {
        let (voters, learners) = self.settled(state, leader)?;
        let bit = 1 << id;
        if !self.has(Rule::IsRemoved) {
            let ballot = state.replicas[leader].vote;
            state.replicas[id].offer = Some((ballot, state.commits[usize::from(ballot)] - 1));
        } else if voters & bit != 0 {
            state.push(leader, Kind::Joint(voters, voters & !bit, learners));
        } else {
            state.push(leader, Kind::Members(voters, learners & !bit));
        }
        Some(())
    }

    /// A joint configuration that is committed is followed by the new voters alone.
    fn finish_change(&self, state: &mut State, leader: usize) -> Option<()> {
        let replica = &state.replicas[leader];
        let (at, Kind::Joint(old, new, learners)) = replica.members()? else { return None };
        // A leader that did not begin it does not know who was to go.
        let is_ours = replica.log[at].ballot == replica.vote;
        let learners = if is_ours { learners } else { learners | old };
        state.push(leader, Kind::Members(new, learners & !new));
        // The progress of those that are no members any more ends.
        let ballot = state.ballot(leader);
        for id in (0..REPLICAS).filter(|id| (new | learners) & (1 << id) == 0) {
            state.acked[ballot][id] = 0;
        }
        Some(())
    }

    fn add_learner(&self, state: &mut State, leader: usize, id: usize) -> Option<()> {
        let (voters, learners) = self.settled(state, leader)?;
        state.push(leader, Kind::Members(voters, learners | 1 << id));
        let added = (state.replicas[leader].log.len() - 1) as u8;
        let ballot = state.replicas[leader].vote;
        state.acked[usize::from(ballot)][id] = 0;
        state.replicas[id].offer = Some((ballot, added));
        Some(())
    }

    fn can_accept(&self, state: &State, id: usize) -> bool {
        let replica = &state.replicas[id];
        let Some((ballot, added)) = replica.offer.filter(|_| replica.mark == Mark::Unknown) else {
            return false;
        };
        self.is_committed(state, ballot, added.into()) && replica.vote <= ballot
    }

    fn accept(&self, state: &mut State, id: usize) -> Option<()> {
        let replica = &mut state.replicas[id];
        let (ballot, added) = replica.offer?;
        if self.has(Rule::TakesVote) {
            replica.take_vote(ballot);
        }
        replica.mark = Mark::From(added);
        Some(())
    }

    /// `reaches`, then the mark changes.
    fn knows_entry(replica: &Replica) -> bool {
        let known = replica.members().map(|(at, _)| at);
        matches!(replica.mark, Mark::From(added) if known >= Some(added.into()))
    }

    fn leader_actions(&self, state: &State, leader: usize, actions: &mut Vec<Action>) {
        let replica = &state.replicas[leader];
        let ballot = state.ballot(leader);
        let (members, _) = replica.known();
        actions.push(Action::Commit(leader));
        for to in (0..REPLICAS).filter(|to| *to != leader && members & (1 << to) != 0) {
            let follower = &state.replicas[to];
            let acked = usize::from(state.acked[ballot][to]);
            let same = follower.log.iter().zip(&replica.log).take_while(|(a, b)| a == b).count();
            if follower.vote > replica.vote || !self.may_acknowledge(follower) {
                continue;
            }
            if acked.max(same) < replica.log.len() || acked < same {
                actions.push(Action::Replicate(leader, to, replica.log.len()));
            }
            if same + 1 < replica.log.len() {
                actions.push(Action::Replicate(leader, to, same + 1));
            }
        }
        if replica.log.len() >= self.scope.log_max {
            return;
        }
        if state.data < self.scope.data && (self.scope.start == Start::Three || leader == 0) {
            actions.push(Action::Propose(leader));
        }
        if let Some((at, Kind::Joint(..))) = replica.members()
            && self.is_committed(state, replica.vote, at)
        {
            actions.push(Action::FinishChange(leader));
        }
        let Some((voters, learners)) = self.settled(state, leader) else { return };
        for id in (0..REPLICAS).filter(|id| *id != leader) {
            let bit = 1 << id;
            let (mark, offer) = (state.replicas[id].mark, state.replicas[id].offer);
            match mark {
                Mark::Unknown if (voters | learners) & bit == 0 => {
                    actions.push(Action::AddLearner(leader, id));
                }
                Mark::Unknown if offer.is_none() => actions.push(Action::Remove(leader, id)),
                Mark::AwaitingVote if learners & bit != 0 => actions.push(Action::Promote(leader, id)),
                _ => {}
            }
        }
    }
}

impl stateright::Model for Model {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let entry = |ballot, kind| Entry { ballot, kind };
        let first = vec![entry(1, Kind::Members(THREE, 0))];
        let mut grown = first.clone();
        grown.extend([Kind::Joint(THREE, FIVE, 0), Kind::Members(FIVE, 0)].map(|kind| entry(2, kind)));
        let (log, leader) = match self.scope.start {
            Start::Three => (first.clone(), 0),
            Start::Grown => (grown, 1),
        };
        let ballot = leader as u8 + 1;
        let mut elected = [false; BALLOTS];
        let (mut acked, mut commits) = ([[0; REPLICAS]; BALLOTS], [0; BALLOTS]);
        for led in 1..=usize::from(ballot) {
            elected[led] = true;
            let len = if led == usize::from(ballot) { log.len() as u8 } else { 1 };
            (acked[led], commits[led]) = ([len; REPLICAS], len);
        }
        if self.scope.start == Start::Grown {
            acked[usize::from(ballot)][0] = 0;
        }
        let replica = |id: usize| {
            let is_behind = id < leader;
            let (vote, log) = if is_behind { (1, first.clone()) } else { (ballot, log.clone()) };
            let role = if id <= leader { Role::Leader } else { Role::Follower };
            let (mark, offer, voted, forgotten) = (Mark::None, None, 1 << vote, 0);
            Replica { vote, role, log, mark, offer, voted, forgotten, lowest: vote }
        };
        vec![State {
            replicas: std::array::from_fn(replica),
            granted: [0; BALLOTS],
            elected,
            decisive: [0; BALLOTS],
            acked,
            commits,
            committed: log.clone(),
            committed_ballot: ballot,
            losses: 0,
            data: 0,
            faults: Faults::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for id in 0..REPLICAS {
            let replica = &state.replicas[id];
            let votes = votes_of(replica) & (1 << id) != 0;
            if replica.role != Role::Leader
                && self.scope.candidates & (1 << id) != 0
                && votes
                && self.may_vote(replica)
                && self.next_ballot(state, id).is_some()
            {
                actions.push(Action::Campaign(id));
            }
            if replica.role == Role::Candidate {
                let granted = state.granted[state.ballot(id)];
                let asked = votes_of(replica) & !granted;
                for voter in (0..REPLICAS).filter(|voter| asked & (1 << voter) != 0) {
                    let other = &state.replicas[voter];
                    let newer = replica.last() >= other.last();
                    if other.vote < replica.vote && newer && self.may_vote(other) {
                        actions.push(Action::Vote(voter, id));
                    }
                }
                if replica.decide(granted) {
                    actions.push(Action::BecomeLeader(id));
                }
            }
            if replica.role == Role::Leader {
                self.leader_actions(state, id, actions);
            }
            if state.losses < self.scope.losses && self.scope.losers & (1 << id) != 0 {
                actions.push(Action::LoseStorage(id));
            }
            if self.can_accept(state, id) {
                actions.push(Action::Accept(id));
            }
            if self.scope.start == Start::Grown && id == 0 && replica.role == Role::Leader {
                actions.push(Action::Restart(id));
            }
            if Model::knows_entry(replica) {
                actions.push(Action::LearnEntry(id));
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Campaign(id) => {
                let ballot = self.next_ballot(&state, id)?;
                let replica = &mut state.replicas[id];
                (replica.vote, replica.role) = (ballot, Role::Candidate);
                replica.promise(ballot);
                replica.voted |= 1 << ballot;
                state.granted[usize::from(ballot)] = 1 << id;
            }
            Action::Vote(voter, candidate) => self.vote(&mut state, voter, candidate),
            Action::BecomeLeader(id) => self.become_leader(&mut state, id),
            Action::Propose(leader) => {
                state.data += 1;
                state.push(leader, Kind::Data);
            }
            Action::Replicate(leader, to, len) => self.replicate(&mut state, leader, to, len),
            Action::Commit(leader) => self.commit(&mut state, leader)?,
            Action::Restart(id) => state.replicas[id].role = Role::Follower,
            Action::LoseStorage(id) => self.lose_storage(&mut state, id),
            Action::Remove(leader, id) => self.remove(&mut state, leader, id)?,
            Action::FinishChange(leader) => self.finish_change(&mut state, leader)?,
            Action::AddLearner(leader, id) => self.add_learner(&mut state, leader, id)?,
            Action::Accept(id) => self.accept(&mut state, id)?,
            Action::LearnEntry(id) => {
                state.replicas[id].mark = Mark::of(mark_behind_entry(state.replicas[id].mark.stored()));
            }
            Action::Promote(leader, id) => {
                let (voters, learners) = self.settled(&state, leader)?;
                state.push(leader, Kind::Joint(voters, voters | 1 << id, learners));
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Model>> {
        let mut properties = vec![
            Property::always(LOST, |_: &Model, state: &State| !state.faults.lost_entry),
            Property::always(ONE_LEADERSHIP, |_, state: &State| !state.faults.two_leaderships),
            Property::always(FORGOTTEN, |_, state: &State| {
                let overruled = |replica: &Replica, ballot: usize| {
                    let forgotten = replica.forgotten & !replica.voted;
                    forgotten & (1 << ballot) != 0 && usize::from(replica.lowest) < ballot
                };
                let elects = |id: usize, ballot: usize| state.decisive[ballot] & (1 << id) != 0;
                let both = |(id, replica)| (1..BALLOTS).any(|b| elects(id, b) && overruled(replica, b));
                !state.replicas.iter().enumerate().any(both)
            }),
            Property::sometimes("another leader is elected", |_, state: &State| {
                state.decisive.iter().any(|decisive| *decisive != 0)
            }),
            Property::sometimes("a replica is taken in again", |_, state: &State| {
                state.replicas.iter().any(|replica| replica.mark == Mark::AwaitingVote)
            }),
        ];
        if self.scope.start == Start::Three {
            properties.push(Property::sometimes("its vote is given back", |_, state: &State| {
                let votes = |id: usize| {
                    let voters = |entry: &Entry| matches!(entry.kind, Kind::Members(voters, _) if voters & (1 << id) != 0);
                    state.replicas[id].mark == Mark::AwaitingVote && state.committed.last().is_some_and(voters)
                };
                (0..REPLICAS).any(votes)
            }));
        }
        properties
    }
}

const LOST: &str = "no committed entry is lost";
const ONE_LEADERSHIP: &str = "a ballot elects one leadership";
const FORGOTTEN: &str = "a forgotten vote and a lower one do not both count";

const ONE_LOSS: Scope = Scope {
    start: Start::Three,
    ballots: 3,
    candidates: THREE,
    losses: 1,
    losers: THREE,
    data: 1,
    log_max: 7,
};
/// The third replica loses its storage, and once more on its way back.
const TWO_LOSSES: Scope = Scope { losses: 2, losers: 0b100, data: 0, ballots: 2, log_max: 8, ..ONE_LOSS };
/// The first replica may campaign in the next term. The log ends where the replica is taken in again.
const GROWN: Scope =
    Scope { start: Start::Grown, ballots: 6, candidates: 0b1, losers: 0b100, log_max: 6, ..ONE_LOSS };

fn holds(name: &str, scope: Scope) {
    let checker = Model { scope, without: None }.checker().spawn_bfs().join();
    println!("{name}: {} states, {} steps deep", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

/// The model without a rule breaks a property.
fn breaks(scope: Scope, without: Rule, property: &'static str) {
    let model = Model { scope, without: Some(without) }.checker();
    let checker = model.finish_when(HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
    let found = checker.discoveries();
    let names: Vec<_> = found.keys().collect();
    assert!(found.contains_key(property), "without {without:?} it still holds: {property}; {names:?}");
    println!("without {without:?}: {property} is broken, {} states", checker.unique_state_count());
}

#[test]
fn a_replica_that_lost_its_storage_comes_back_without_harm() {
    holds("one loss", ONE_LOSS);
}

#[test]
fn a_replica_may_lose_its_storage_twice() {
    holds("two losses", TWO_LOSSES);
}

#[test]
fn a_leader_that_was_left_behind_gains_nothing_by_a_lost_storage() {
    holds("a grown cluster", GROWN);
}

#[test]
fn without_any_one_rule_something_is_lost() {
    breaks(ONE_LOSS, Rule::UnknownMayVote, FORGOTTEN);
    breaks(ONE_LOSS, Rule::UnknownIsSilent, LOST);
    breaks(GROWN, Rule::TakesVote, LOST);
    breaks(GROWN, Rule::WaitsForEntry, LOST);
    breaks(ONE_LOSS, Rule::ChangesAreCommitted, LOST);
    breaks(ONE_LOSS, Rule::IsRemoved, LOST);
}
