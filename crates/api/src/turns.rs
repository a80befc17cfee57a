//! Turns at what is scarce: processors for costly answers, memory for answers that are not sent.
//! Accounts take turns, however much one of them asks for, and none of them has all of it.
//!
//! **Invariant:** a caller that waits has its turn after at most one turn of every other account for each that its own account
//! asked for before it; nothing is kept of an account that has nothing and nobody waiting.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::oneshot;

use crate::shares::Account;

#[derive(Debug)]
struct Waiting {
    amount: usize,
    caller: oneshot::Sender<QueuePermit>,
}

#[derive(Debug)]
struct Line {
    total: usize,
    free: usize,
    /// What one account may have of it; operators may have all.
    each_max: usize,
    held: HashMap<Account, usize>,
    /// Accounts with somebody waiting, the next one first.
    accounts: VecDeque<(Account, VecDeque<Waiting>)>,
}

impl Line {
    /// Whether an account may have this much more than it has. With nothing it may have any amount, one at a time.
    fn may_have(&self, account: Account, amount: usize) -> bool {
        let most = if account.is_unbounded() { self.total } else { self.each_max };
        self.held.get(&account).is_none_or(|held| held + amount <= most)
    }

    /// The first waiting one whose account may have what it waits for; its place among the accounts.
    fn next(&self) -> Option<usize> {
        let may = |(account, own): &(Account, VecDeque<Waiting>)| {
            own.front().is_none_or(|waiting| self.may_have(*account, waiting.amount))
        };
        self.accounts.iter().position(may)
    }
}

/// Places for a few at a time. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Arc<Mutex<Line>>);

/// A place, until this is dropped.
#[derive(Debug)]
pub(crate) struct QueuePermit {
    turns: Option<Turns>,
    account: Account,
    amount: usize,
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        if let Some(turns) = self.turns.take() {
            turns.give_back(self.account, self.amount);
        }
    }
}

impl Turns {
    /// This number of places in all, and of them for each account.
    pub(crate) fn new(total: usize, each_max: usize) -> Turns {
        let (held, accounts) = (HashMap::new(), VecDeque::new());
        Turns(Arc::new(Mutex::new(Line { total, free: total, each_max, held, accounts })))
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Line> {
        self.0.lock()
    }

    #[cfg(test)]
    pub(crate) fn somebody_waits(&self) -> bool {
        !self.lock().accounts.is_empty()
    }

    /// Waits for this number of places; more than there are in all counts as all of them. `None` when the account already has
    /// `waiting_max` callers that wait.
    pub(crate) async fn enter(
        &self,
        account: Account,
        amount: usize,
        waiting_max: usize,
    ) -> Option<QueuePermit> {
        let waits = {
            let mut line = self.lock();
            let (caller, receiver) = oneshot::channel();
            let waiting = Waiting { amount: amount.min(line.total), caller };
            match line.accounts.iter_mut().find(|(other, _)| *other == account) {
                Some((_, own)) => {
                    // Those who went away while they waited take no place.
                    if own.len() >= waiting_max {
                        own.retain(|waiting| !waiting.caller.is_closed());
                    }
                    if own.len() >= waiting_max {
                        return None;
                    }
                    own.push_back(waiting);
                }
                None => line.accounts.push_back((account, [waiting].into())),
            }
            self.hand_out(&mut line);
            receiver
        };
        waits.await.ok()
    }

    fn give_back(&self, account: Account, amount: usize) {
        let mut line = self.lock();
        line.free += amount;
        if let Some(held) = line.held.get_mut(&account) {
            *held -= amount;
            if *held == 0 {
                line.held.remove(&account);
            }
        }
        self.hand_out(&mut line);
    }

    fn hand_out(&self, line: &mut Line) {
        while let Some(at) = line.next() {
            let fits = line.accounts[at].1.front().is_none_or(|waiting| waiting.amount <= line.free);
            if !fits {
                // Nobody overtakes who waits for much.
                return;
            }
            let Some((account, mut own)) = line.accounts.remove(at) else { return };
            let next = own.pop_front();
            if !own.is_empty() {
                line.accounts.push_back((account, own));
            }
            let Some(Waiting { amount, caller }) = next else { continue };
            match caller.send(QueuePermit { turns: Some(self.clone()), account, amount }) {
                Ok(()) => {
                    line.free -= amount;
                    *line.held.entry(account).or_default() += amount;
                }
                // Nobody waits for it any more: it was never taken, so it is not given back either.
                Err(mut turn) => turn.turns = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use muster_transport::ShortName;

    const WAITING_MAX: usize = 256;

    fn account(name: &str) -> Account {
        Account::Tenant(ShortName::new(name).expect("a name"))
    }

    fn at_once(turns: &Turns, account: Account, amount: usize) -> Option<QueuePermit> {
        turns.enter(account, amount, WAITING_MAX).now_or_never().flatten()
    }

    #[test]
    fn none_has_all_of_it_and_each_its_share_at_once() {
        let turns = Turns::new(4, 2);
        let (loud, quiet) = (account("loud"), account("quiet"));
        let held = [(); 2].map(|()| at_once(&turns, loud, 1).expect("its share"));
        let mut third = Box::pin(turns.enter(loud, 1, WAITING_MAX));
        assert!(third.as_mut().now_or_never().is_none(), "no more than its share");
        let other = at_once(&turns, quiet, 2).expect("the others' share is free");
        drop(other);
        assert!(third.as_mut().now_or_never().is_none());
        drop(held);
        let third = third.now_or_never().flatten().expect("its own are free again");
        assert!(at_once(&turns, loud, 2).is_none());
        drop(third);
        let large = at_once(&turns, loud, 9).expect("more than its share, alone");
        assert_eq!(turns.lock().free, 0, "as much as there is");
        let mut waits = Box::pin(turns.enter(quiet, 1, WAITING_MAX));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(large);
        drop(waits.now_or_never().flatten().expect("its turn"));
        let line = turns.lock();
        assert!(
            line.accounts.is_empty() && line.held.is_empty() && line.free == 4,
            "nothing is kept: {line:?}"
        );
    }

    #[test]
    fn a_flood_of_one_tenant_delays_another_by_one_turn() {
        let turns = Turns::new(1, 1);
        let (loud, quiet) = (account("loud"), account("quiet"));
        let first = turns.enter(loud, 1, WAITING_MAX).now_or_never().flatten().expect("there is a place");
        let mut flood: Vec<_> =
            (0..WAITING_MAX).map(|_| Box::pin(turns.enter(loud, 1, WAITING_MAX))).collect();
        for one in &mut flood {
            assert!(one.as_mut().now_or_never().is_none(), "it waits");
        }
        assert!(
            turns.enter(loud, 1, WAITING_MAX).now_or_never().is_some_and(|turn| turn.is_none()),
            "one more is refused"
        );
        let mut other = Box::pin(turns.enter(quiet, 1, WAITING_MAX));
        assert!(other.as_mut().now_or_never().is_none());
        drop(first);
        let second = flood.remove(0).now_or_never().flatten().expect("the first that waits");
        assert!(other.as_mut().now_or_never().is_none());
        drop(second);
        let turn = other.now_or_never().flatten().expect("the other tenant, before the rest of the flood");
        // Those who went away are passed over, and no place is lost by it.
        drop(flood);
        drop(turn);
        assert!(turns.enter(loud, 1, WAITING_MAX).now_or_never().flatten().is_some());
        assert!(turns.lock().accounts.is_empty(), "nothing is kept");
    }
}
