//! Shares of what is limited: one account never has all of it.
//!
//! An account that is not an operator's may hold as much as is left free, and no more than a fixed most: alone it gets
//! half, two that take all they can get a third each, and the next account still finds something. A last part is kept
//! for operators, so that they can look at what fills the rest.
//!
//! **Invariant:** nothing is kept of an account that holds nothing.

use muster_transport::{Principal, Role, ShortName};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// What is kept for operators: one part of this many.
const RESERVE_PART: u64 = 16;

/// For whom something is counted: a tenant, however many certificates its users have, or the holder of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(
    clippy::large_enum_variant,
    reason = "it is copied with every call, and nothing is allocated for that"
)]
pub(crate) enum Account {
    Tenant(ShortName),
    Holder(Principal),
}

impl Account {
    pub(crate) fn of(principal: &Principal) -> Account {
        match principal.role() {
            Some(Role::TenantClient { tenant, .. }) => Account::Tenant(tenant),
            _ => Account::Holder(principal.as_counted()),
        }
    }

    /// Whether it may have all of it: an operator, a replica, and those who show no certificate, whom nobody can tell
    /// apart.
    pub(crate) fn is_unbounded(self) -> bool {
        match self {
            Account::Tenant(_) => false,
            Account::Holder(principal) => {
                matches!(principal.role(), None | Some(Role::Admin(_) | Role::Replica(_)))
            }
        }
    }
}

impl std::fmt::Display for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Account::Tenant(tenant) => write!(f, "tenant {tenant}"),
            Account::Holder(principal) => write!(f, "{principal}"),
        }
    }
}

#[derive(Debug, Default)]
struct Held {
    all: u64,
    each: HashMap<Account, u64>,
}

/// Something of which there is a limited amount.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    total: u64,
    each_max: u64,
    held: Arc<Mutex<Held>>,
}

/// A part of it, until this is dropped.
#[derive(Debug)]
pub(crate) struct PoolPermit {
    held: Arc<Mutex<Held>>,
    account: Account,
    amount: u64,
}

impl Drop for PoolPermit {
    fn drop(&mut self) {
        let mut held = self.held.lock();
        held.all -= self.amount;
        if let Some(own) = held.each.get_mut(&self.account) {
            *own -= self.amount;
            if *own == 0 {
                held.each.remove(&self.account);
            }
        }
    }
}

impl Pool {
    /// This much in all, and at most `each_max` for each account.
    pub(crate) fn new(total: u64, each_max: u64) -> Pool {
        Pool { total, each_max, held: Arc::default() }
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> u64 {
        self.held.lock().all
    }

    /// A part of it; none where the account has as much as it may.
    pub(crate) fn enter(&self, account: Account, amount: u64) -> Option<PoolPermit> {
        let mut held = self.held.lock();
        let own = held.each.get(&account).copied().unwrap_or(0).saturating_add(amount);
        let all = held.all.saturating_add(amount);
        let fits = if account.is_unbounded() {
            all <= self.total
        } else {
            let usable = self.total - self.total / RESERVE_PART;
            own <= self.each_max && all <= usable && own <= usable.saturating_sub(held.all)
        };
        if !fits {
            return None;
        }
        held.all = all;
        if amount > 0 {
            held.each.insert(account, own);
        }
        Some(PoolPermit { held: Arc::clone(&self.held), account, amount })
    }
}

/// How many of each there are; nothing is kept of those that have none.
#[derive(Debug)]
pub(crate) struct Tallies<K>(Arc<Mutex<HashMap<K, u32>>>);

impl<K> Clone for Tallies<K> {
    fn clone(&self) -> Self {
        Tallies(Arc::clone(&self.0))
    }
}

impl<K> Default for Tallies<K> {
    fn default() -> Self {
        Tallies(Arc::default())
    }
}

/// One of them, until this is dropped.
#[derive(Debug)]
pub(crate) struct Tally<K: Copy + Eq + Hash> {
    of: Tallies<K>,
    key: K,
}

impl<K: Copy + Eq + Hash> Drop for Tally<K> {
    fn drop(&mut self) {
        let mut counts = self.of.0.lock();
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

impl<K: Copy + Eq + Hash> Tallies<K> {
    /// One more; none where there are as many as there may be.
    pub(crate) fn enter(&self, key: K, max: u32) -> Option<Tally<K>> {
        let mut counts = self.0.lock();
        let count = counts.get(&key).copied().unwrap_or(0);
        if count >= max {
            return None;
        }
        counts.insert(key, count + 1);
        Some(Tally { of: self.clone(), key })
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_transport::{PeerName, TokenHolder};
    use muster_types::ClusterId;

    fn short(name: &str) -> ShortName {
        ShortName::new(name).expect("a name")
    }

    fn tenant(name: &str) -> Account {
        Account::Tenant(short(name))
    }

    fn named(role: Role) -> Principal {
        Principal::Named(PeerName { cluster: ClusterId(1), role })
    }

    /// As much as it gets, one by one.
    fn take_all(pool: &Pool, account: Account) -> Vec<PoolPermit> {
        std::iter::from_fn(|| pool.enter(account, 1)).collect()
    }

    #[test]
    fn whoever_comes_next_finds_something() {
        let pool = Pool::new(1_600, 10_000);
        let first = take_all(&pool, tenant("a"));
        assert_eq!(first.len(), 750, "half of what is not kept for operators");
        let mut all = vec![first];
        for name in ["b", "c", "d", "e", "f"] {
            let taken = take_all(&pool, tenant(name));
            assert!(!taken.is_empty(), "{name} gets nothing");
            all.push(taken);
        }
        let root = Account::of(&named(Role::Admin(short("root"))));
        assert!(take_all(&pool, root).len() >= 100, "the last part is the operators'");
        drop(all);
        assert_eq!(take_all(&pool, tenant("a")).len(), 750, "nothing is lost");
        assert!(pool.held.lock().each.is_empty(), "nothing is kept of it");
    }

    #[test]
    fn each_has_its_own_tally() {
        let tallies = Tallies::default();
        let first = tallies.enter("a", 2).expect("the first of two");
        let _second = tallies.enter("a", 2).expect("the second of two");
        assert!(tallies.enter("a", 2).is_none());
        let _other = tallies.enter("b", 2).expect("another");
        drop(first);
        drop(tallies.enter("a", 2).expect("a place is free again"));
        assert_eq!(tallies.len(), 2);
        drop(_second);
        assert_eq!(tallies.len(), 1, "nothing is kept of those that have none");
    }

    #[test]
    fn certificates_of_one_tenant_are_one_account() {
        let user = |user| Role::TenantClient { tenant: short("vision"), user: short(user) };
        assert_eq!(Account::of(&named(user("ada"))), Account::of(&named(user("eve"))));
        assert_ne!(
            Account::of(&named(Role::Client(short("ada")))),
            Account::of(&named(Role::Client(short("eve"))))
        );
        let signed_in = |id| {
            let (cluster, role) = (muster_types::ClusterId(1), muster_types::TokenRole::Operator);
            let (id, user, issuer) = (muster_types::TokenId(id), short("ada"), Some(short("corp")));
            let (tenant, own_role) = (None, None);
            Principal::Token(TokenHolder { cluster, id, role, tenant, user, own_role, issuer })
        };
        assert_eq!(Account::of(&signed_in(1)), Account::of(&signed_in(2)), "an issuer gives many");
        let pool = Pool::new(1_000, 3);
        let held = [(); 3].map(|()| pool.enter(Account::of(&named(user("ada"))), 1).expect("three fit"));
        assert!(pool.enter(Account::of(&named(user("eve"))), 1).is_none());
        drop(held);
        assert!(pool.enter(Account::of(&named(user("eve"))), 3).is_some());
        assert!(pool.enter(Account::of(&Principal::Plaintext), 1_000).is_some(), "nobody tells them apart");
        assert!(pool.enter(Account::of(&Principal::Plaintext), 1_001).is_none());
    }
}
