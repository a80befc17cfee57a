//! The isolation of a worker from its host and from other workers, and which parts of it this host supports.
//!
//! A worker runs in a process namespace of its own, whose first process its shim holds: when that one ends, the kernel
//! ends everything in it, and nothing in it can see or signal a process outside. Where the agent is root, a worker may
//! have a user of its own tenant besides, without privileges, so that what the agent and other tenants own is out of its
//! reach. What the host cannot do is a fact of the node: its labels say so, and jobs and policy may ask for more.
//!
//! **Invariant:** what was found possible when the agent started is what every worker gets: one that cannot be isolated
//! so is not started.

use crate::order::Placement;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Which namespaces a worker has of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Namespaces {
    /// None: it is a process of the host like any other.
    #[default]
    Host,
    /// Of processes and mounts, made by root.
    Root,
    /// The same, inside a user namespace, for an agent that is not root.
    User,
}

impl Namespaces {
    /// The word on a shim's command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Namespaces::Host => "host",
            Namespaces::Root => "root",
            Namespaces::User => "user",
        }
    }

    /// The other way round.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Namespaces> {
        [Namespaces::Host, Namespaces::Root, Namespaces::User].into_iter().find(|known| known.word() == word)
    }
}

/// How one worker is isolated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    /// What its shim is to start it in.
    pub namespaces: Namespaces,
    /// The user and group that it runs as; none for the agent's own.
    #[serde(default)]
    pub user: Option<u32>,
    /// Whether `/tmp` and `/var/tmp` are its own, and `/dev/shm` is its gang's on this host.
    #[serde(default)]
    pub private_tmp: bool,
    /// Folders that stay where they are though `/tmp` is another.
    #[serde(default)]
    pub shown: Vec<PathBuf>,
    /// Device files that it finds to be `/dev/null`.
    #[serde(default)]
    pub hidden: Vec<PathBuf>,
}

/// What an operator asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkersConfig {
    /// Whether workers get namespaces of their own.
    pub isolation: IsolationMode,
    /// Users that workers run as: one for each tenant, the same on every host that has the same range. Needs root.
    pub uid_range: Option<UidRange>,
    /// Users of tenants by name, which go before the range.
    pub uids: BTreeMap<String, u32>,
    /// Whether `/tmp`, `/var/tmp` and `/dev/shm` are a worker's own; as `uid_range` when not said.
    pub private_tmp: Option<bool>,
}

/// Whether workers get namespaces of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IsolationMode {
    /// Where this host has them.
    #[default]
    Auto,
    /// Or the agent does not start.
    Required,
    /// None.
    Off,
}

/// Consecutive numbers of users that nobody else has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UidRange {
    /// The first of them.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// Below are users of the system and of people.
const UID_MIN: u32 = 1_000;

impl WorkersConfig {
    /// The first key that breaks its rule, and the rule.
    #[must_use]
    pub fn violation(&self) -> Option<(&'static str, String)> {
        if let Some(range) = self.uid_range {
            let end = range.first.checked_add(range.count);
            if range.first < UID_MIN || range.count == 0 || end.is_none_or(|end| end >= u32::MAX - 1) {
                return Some(("workers.uid_range", format!("must be users from {UID_MIN}, one at least")));
            }
        }
        if self.uids.values().any(|uid| *uid < UID_MIN || *uid >= u32::MAX - 1) {
            return Some(("workers.uids", format!("must be numbers of users from {UID_MIN}")));
        }
        let wants_user = self.uid_range.is_some() || !self.uids.is_empty();
        if wants_user && !geteuid().is_root() {
            return Some(("workers.uid_range", "needs an agent that is root".to_owned()));
        }
        if self.isolation == IsolationMode::Off && self.private_tmp == Some(true) {
            return Some(("workers.private_tmp", "needs workers.isolation".to_owned()));
        }
        None
    }

    fn uid_of(&self, tenant: &str) -> Option<u32> {
        if let Some(uid) = self.uids.get(tenant) {
            return Some(*uid);
        }
        let range = self.uid_range?;
        // The same on every host, so that files on shared storage stay a tenant's own.
        Some(range.first + crc32fast::hash(tenant.as_bytes()) % range.count)
    }

    fn has_users(&self) -> bool {
        self.uid_range.is_some() || !self.uids.is_empty()
    }
}

/// What this host does for every worker.
#[derive(Debug, Default)]
pub struct Isolating {
    config: WorkersConfig,
    namespaces: Namespaces,
    /// Which tenant each user was first given to since the agent started.
    given: Mutex<BTreeMap<u32, String>>,
}

impl Isolating {
    /// None at all.
    #[must_use]
    pub fn off() -> Isolating {
        Isolating::default()
    }

    /// What `config` asks for and the host allows; `try_out` starts a first process in such namespaces.
    ///
    /// # Errors
    /// Why there are none, where they are required.
    pub fn find(
        config: &WorkersConfig,
        try_out: impl Fn(Namespaces) -> Result<(), String>,
    ) -> Result<Isolating, String> {
        let wanted = if geteuid().is_root() { Namespaces::Root } else { Namespaces::User };
        let namespaces = match config.isolation {
            IsolationMode::Off => Namespaces::Host,
            mode => match (try_out(wanted), mode) {
                (Ok(()), _) => wanted,
                (Err(why), IsolationMode::Required) => return Err(why),
                (Err(why), _) => {
                    tracing::warn!(
                        why,
                        "workers have no namespaces of their own: a worker may outlive its guard"
                    );
                    Namespaces::Host
                }
            },
        };
        let isolating = Isolating { config: config.clone(), namespaces, given: Mutex::default() };
        for (label, fact) in isolating.facts() {
            tracing::info!(label, fact, "isolation of workers");
        }
        Ok(isolating)
    }

    /// Which namespaces workers get.
    #[must_use]
    pub fn namespaces(&self) -> Namespaces {
        self.namespaces
    }

    /// Whether workers run as users of their own.
    #[must_use]
    pub fn has_users(&self) -> bool {
        self.config.has_users()
    }

    fn has_private_tmp(&self) -> bool {
        let wanted = self.config.private_tmp.unwrap_or_else(|| self.has_users());
        wanted && self.namespaces != Namespaces::Host
    }

    /// Labels of the node and their values: what its workers are isolated by.
    #[must_use]
    pub fn facts(&self) -> [(&'static str, &'static str); 3] {
        let own = |has: bool, word: &'static str| if has { word } else { "none" };
        [
            ("isolation.user", own(self.has_users(), "own")),
            ("isolation.pid", own(self.namespaces != Namespaces::Host, "namespace")),
            ("isolation.tmp", own(self.has_private_tmp(), "private")),
        ]
    }

    /// How the workers of a placement are isolated.
    ///
    /// # Errors
    /// When its tenant's user is another tenant's too.
    pub fn of(&self, placement: &Placement, shown: &[PathBuf]) -> Result<Isolation, String> {
        let user = self.config.uid_of(&placement.tenant);
        if let Some(uid) = user {
            let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
            let holder = given.entry(uid).or_insert_with(|| placement.tenant.clone());
            if *holder != placement.tenant {
                return Err(format!(
                    "user {uid} of this host is tenant {holder}'s already: give one of them another in workers.uids"
                ));
            }
        }
        let private_tmp = self.has_private_tmp();
        Ok(Isolation {
            namespaces: self.namespaces,
            user,
            private_tmp,
            shown: if private_tmp { shown.to_vec() } else { Vec::new() },
            hidden: Vec::new(),
        })
    }
}

/// The device files of accelerators, which a worker that asked for none does not see.
#[must_use]
pub fn device_files(dev: &std::path::Path) -> Vec<PathBuf> {
    let is_device = |name: &str| {
        let numbered = |prefix: &str| {
            name.strip_prefix(prefix)
                .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
        };
        numbered("nvidia")
            || numbered("accel")
            || name == "kfd"
            || name == "nvidiactl"
            || name == "nvidia-uvm"
    };
    let entries = std::fs::read_dir(dev).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_device))
        .filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir() && !kind.is_symlink()))
        .map(|entry| entry.path())
        .collect();
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(tenant: &str) -> Placement {
        let mut order = crate::order::tests::order();
        order.tenant = tenant.to_owned();
        crate::order::placement(order).unwrap()
    }

    #[test]
    fn a_tenant_has_one_user_and_two_never_share_one() {
        let config = WorkersConfig {
            uid_range: Some(UidRange { first: 70_000, count: 1 }),
            uids: BTreeMap::from([("ada".to_owned(), 80_000)]),
            ..WorkersConfig::default()
        };
        let isolating = Isolating { config, ..Isolating::default() };
        let user = |tenant: &str| isolating.of(&placement(tenant), &[]).map(|isolation| isolation.user);
        assert_eq!(user("bob"), Ok(Some(70_000)));
        assert_eq!(user("bob"), Ok(Some(70_000)));
        assert_eq!(user("ada"), Ok(Some(80_000)));
        assert!(user("eve").unwrap_err().contains("tenant bob's already"));
        assert_eq!(isolating.facts()[0], ("isolation.user", "own"));
        assert_eq!(Isolating::off().of(&placement("bob"), &[]), Ok(Isolation::default()));
    }

    #[test]
    fn bad_ranges_are_named() {
        let range = |first, count| {
            let config =
                WorkersConfig { uid_range: Some(UidRange { first, count }), ..WorkersConfig::default() };
            config.violation().map(|(key, _)| key)
        };
        for (first, count) in [(0, 10), (999, 1), (70_000, 0), (u32::MAX, 2), (u32::MAX - 5, 5)] {
            assert_eq!(range(first, count), Some("workers.uid_range"), "{first} {count}");
        }
    }

    #[test]
    fn accelerators_are_known_by_their_files() {
        let dev = tempfile::tempdir().unwrap();
        for name in ["nvidia0", "nvidia12", "nvidiactl", "nvidia-caps", "nvidiax", "accel3", "null", "kfd"] {
            std::fs::write(dev.path().join(name), "").unwrap();
        }
        let names: Vec<String> = device_files(dev.path())
            .iter()
            .filter_map(|path| path.file_name()?.to_str().map(str::to_owned))
            .collect();
        assert_eq!(names, ["accel3", "kfd", "nvidia0", "nvidia12", "nvidiactl"]);
    }
}
