//! Turns at what only so few may do at a time: accounts take turns, however much one of them asks for.
//!
//! **Invariant:** whoever waits has its turn after at most one turn of every other account for each that its own account
//! asked for before it; nothing is kept of an account that has nobody waiting.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;

use crate::shares::Account;

/// Calls of one account that may wait.
const WAITING_MAX: usize = 256;

#[derive(Debug, Default)]
struct Line {
    free: usize,
    /// Accounts with somebody waiting, the next one first.
    accounts: VecDeque<(Account, VecDeque<oneshot::Sender<Turn>>)>,
}

/// Places for a few at a time. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Arc<Mutex<Line>>);

/// A place, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Turn(Option<Turns>);

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turns) = self.0.take() {
            turns.give_back();
        }
    }
}

impl Turns {
    /// Creates turns for this number of places.
    pub(crate) fn new(places: usize) -> Turns {
        Turns(Arc::new(Mutex::new(Line { free: places, ..Line::default() })))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place. `None` when the account already has the largest number of callers waiting.
    pub(crate) async fn enter(&self, account: Account) -> Option<Turn> {
        let waits = {
            let mut line = self.lock();
            let (sender, receiver) = oneshot::channel();
            match line.accounts.iter_mut().find(|(other, _)| *other == account) {
                Some((_, own)) => {
                    // Those who went away while they waited take no room.
                    if own.len() >= WAITING_MAX {
                        own.retain(|sender| !sender.is_closed());
                    }
                    if own.len() >= WAITING_MAX {
                        return None;
                    }
                    own.push_back(sender);
                }
                None => line.accounts.push_back((account, [sender].into())),
            }
            self.hand_out(&mut line);
            receiver
        };
        waits.await.ok()
    }

    fn give_back(&self) {
        let mut line = self.lock();
        line.free += 1;
        self.hand_out(&mut line);
    }

    fn hand_out(&self, line: &mut Line) {
        while line.free > 0 {
            let Some((account, mut own)) = line.accounts.pop_front() else { return };
            let next = own.pop_front();
            if !own.is_empty() {
                line.accounts.push_back((account, own));
            }
            let Some(next) = next else { continue };
            match next.send(Turn(Some(self.clone()))) {
                Ok(()) => line.free -= 1,
                // Nobody waits for it any more: it was never taken, so it is not given back either.
                Err(mut turn) => turn.0 = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use muster_transport::ShortName;

    fn account(name: &str) -> Account {
        Account::Tenant(ShortName::new(name).expect("a name"))
    }

    #[test]
    fn a_flood_of_one_tenant_delays_another_by_one_turn() {
        let turns = Turns::new(1);
        let (loud, quiet) = (account("loud"), account("quiet"));
        let first = turns.enter(loud).now_or_never().flatten().expect("there is a place");
        let mut flood: Vec<_> = (0..WAITING_MAX).map(|_| Box::pin(turns.enter(loud))).collect();
        for one in &mut flood {
            assert!(one.as_mut().now_or_never().is_none(), "it waits");
        }
        assert!(turns.enter(loud).now_or_never().is_some_and(|turn| turn.is_none()), "one more is refused");
        let mut other = Box::pin(turns.enter(quiet));
        assert!(other.as_mut().now_or_never().is_none());
        drop(first);
        let second = flood.remove(0).now_or_never().flatten().expect("the first in line");
        assert!(other.as_mut().now_or_never().is_none());
        drop(second);
        let turn = other.now_or_never().flatten().expect("the other tenant, before the rest of the flood");
        // Those who went away are passed over, and no place is lost by it.
        drop(flood);
        drop(turn);
        assert!(turns.enter(loud).now_or_never().flatten().is_some());
        assert!(turns.lock().accounts.is_empty(), "nothing is kept");
    }
}
