//! Turns for work that takes disk and network, given out in rotation over the tenants that wait for one.
//!
//! **Invariant:** a tenant that waits gets a turn after at most one of each other tenant; no tenant holds every turn.

use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The turns.
#[derive(Debug)]
pub(crate) struct Turns {
    state: Arc<Mutex<State>>,
}

/// One turn, held until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldTurn {
    state: Arc<Mutex<State>>,
    tenant: String,
}

#[derive(Debug)]
struct State {
    free: usize,
    /// Turns that one tenant may hold.
    each_max: usize,
    held: BTreeMap<String, usize>,
    /// Who waits, in the order of arrival. No list is empty.
    waiting: BTreeMap<String, VecDeque<oneshot::Sender<HeldTurn>>>,
    /// The tenant that was given the last turn.
    last: String,
}

impl Turns {
    /// As many turns. Where there are several, one of them is never any single tenant's.
    pub(crate) fn new(count: usize) -> Turns {
        Turns::with_each_max(count, count.saturating_sub(1))
    }

    /// As many turns, of which one tenant holds at most half: the others' work is not slower than its own.
    pub(crate) fn halved(count: usize) -> Turns {
        Turns::with_each_max(count, count / 2)
    }

    fn with_each_max(count: usize, each_max: usize) -> Turns {
        let each_max = each_max.max(1);
        let (held, waiting, last) = (BTreeMap::new(), BTreeMap::new(), String::new());
        Turns { state: Arc::new(Mutex::new(State { free: count, each_max, held, waiting, last })) }
    }

    /// A turn for a tenant, once it is there.
    pub(crate) async fn take(&self, tenant: &str) -> HeldTurn {
        let told = {
            let mut state = self.state.lock();
            let (tell, told) = oneshot::channel();
            state.waiting.entry(tenant.to_owned()).or_default().push_back(tell);
            told
        };
        give_out(&self.state);
        match told.await {
            Ok(turn) => turn,
            // Its sender goes with the turns alone, which are borrowed here.
            Err(_) => std::future::pending().await,
        }
    }
}

impl State {
    /// Who is next, and of which tenant, where there is a turn for one.
    fn next(&mut self) -> Option<(String, oneshot::Sender<HeldTurn>)> {
        if self.free == 0 {
            return None;
        }
        let may = |tenant: &&String| self.held.get(*tenant).is_none_or(|held| *held < self.each_max);
        let after = (Bound::Excluded(self.last.as_str()), Bound::Unbounded);
        let mut behind = self.waiting.range::<str, _>(after).map(|(tenant, _)| tenant);
        let tenant = behind.find(may).or_else(|| self.waiting.keys().find(may)).cloned()?;
        let list = self.waiting.get_mut(&tenant)?;
        let first = list.pop_front();
        if list.is_empty() {
            self.waiting.remove(&tenant);
        }
        first.map(|first| (tenant, first))
    }
}

/// Gives free turns to those who wait.
fn give_out(state: &Arc<Mutex<State>>) {
    loop {
        let (tell, turn) = {
            let mut locked = state.lock();
            let Some((tenant, tell)) = locked.next() else { return };
            // Who does not wait any more is passed over.
            if tell.is_closed() {
                continue;
            }
            locked.free -= 1;
            *locked.held.entry(tenant.clone()).or_default() += 1;
            locked.last.clone_from(&tenant);
            (tell, HeldTurn { state: Arc::clone(state), tenant })
        };
        // Without the lock: one that is not taken after all is given back by its end.
        drop(tell.send(turn));
    }
}

impl Drop for HeldTurn {
    fn drop(&mut self) {
        {
            let mut state = self.state.lock();
            state.free += 1;
            if let Some(held) = state.held.get_mut(&self.tenant) {
                *held = held.saturating_sub(1);
                if *held == 0 {
                    state.held.remove(&self.tenant);
                }
            }
        }
        give_out(&self.state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Poll;
    use tokio_stream::StreamExt as _;

    /// Asks for a turn now, and gets it later.
    async fn asked<'a>(
        turns: &'a Turns,
        tenant: &'a str,
    ) -> std::pin::Pin<Box<dyn Future<Output = HeldTurn> + 'a>> {
        let mut waits: std::pin::Pin<Box<dyn Future<Output = HeldTurn> + 'a>> = Box::pin(turns.take(tenant));
        let polled =
            std::future::poll_fn(|context| Poll::Ready(waits.as_mut().poll(context).is_pending())).await;
        assert!(polled, "there is no turn yet");
        waits
    }

    #[tokio::test]
    async fn a_tenant_with_much_to_do_delays_another_by_one_turn() {
        let turns = Turns::new(1);
        let first = turns.take("many").await;
        let mut waiting = futures::stream::FuturesUnordered::new();
        for _ in 0..5 {
            waiting.push(asked(&turns, "many").await);
        }
        waiting.push(asked(&turns, "few").await);
        drop(first);
        let mut order = Vec::new();
        while let Some(turn) = waiting.next().await {
            order.push(turn.tenant.clone());
        }
        let few = order.iter().position(|tenant| tenant == "few");
        assert_eq!((few, order.len()), (Some(0), 6), "{order:?}");
    }

    #[tokio::test]
    async fn a_tenant_holds_at_most_half_of_halved_turns() {
        let turns = Turns::halved(4);
        let held = (turns.take("many").await, turns.take("many").await);
        let more = asked(&turns, "many").await;
        let others = (turns.take("few").await, turns.take("few").await);
        drop(held);
        assert_eq!(more.await.tenant, "many");
        drop(others);
    }

    #[tokio::test]
    async fn no_tenant_holds_every_turn_and_one_that_is_not_waited_for_is_not_lost() {
        let turns = Turns::new(2);
        let held = turns.take("many").await;
        let more = asked(&turns, "many").await;
        let few = turns.take("few").await;
        drop(more);
        drop((held, few));
        let again = (turns.take("many").await, turns.take("few").await);
        assert_eq!((again.0.tenant.as_str(), again.1.tenant.as_str()), ("many", "few"));
        let state = turns.state.lock();
        assert_eq!((state.free, state.waiting.len(), state.held.len()), (0, 0, 2));
    }
}
