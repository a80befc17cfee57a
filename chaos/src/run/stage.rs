//! Carrying out the steps of a drill on a cluster, and undoing them.
//!
//! **Invariant:** everything that a step did is known here until it was undone; at the end of a drill, however it
//! ends, [`Stage::undo_all`] leaves every link whole, every process running and every disk and clock as usual.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use muster_drill::scenario::{Action, Pair, Scenario, Selection};
use muster_wire::v1;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::links::{Links, Pairs, pairs};
use super::parts::{Hosts, Parts, replica_of};
use super::timeline::{Deed, Due};
use crate::cluster::Cluster;
use crate::cluster::config::{client_endpoint, peer_endpoint};
use crate::cluster::plan::Purpose;

/// Entries that a replica may lack and still count as back, while clients submit.
pub const LAG_MAX: u64 = 200;
/// Time for a replica to be back after a restart.
const BACK_LIMIT: Duration = Duration::from_secs(60);
/// A change of members with everything that it waits for.
const CHANGE_LIMIT: Duration = Duration::from_secs(60);

/// What became of one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect {
    /// Place of the step in the scenario.
    pub step: usize,
    /// As in the scenario.
    pub verb: String,
    /// On which hosts.
    pub hosts: Vec<String>,
    /// When it was carried out, boot-time nanoseconds.
    pub at_ns: u64,
    /// When it was undone.
    pub undone_at_ns: Option<u64>,
    /// What was seen of it, for people.
    pub seen: String,
    /// Whether it did anything; a fault without an effect proves nothing.
    pub real: bool,
}

/// A drill on its cluster.
pub struct Stage<'a> {
    cluster: &'a mut Cluster,
    scenario: &'a Scenario,
    parts: Parts,
    links: Links,
    /// What each cutting or shaping step covers, and what its links had dropped before.
    covered: BTreeMap<usize, (Pairs, u64)>,
    paused: Hosts,
    effects: Vec<Effect>,
    /// The cluster is not what it was: other members, another generation.
    reshaped: bool,
}

impl<'a> Stage<'a> {
    /// A drill that is about to begin.
    pub fn new(cluster: &'a mut Cluster, scenario: &'a Scenario, parts: Parts) -> Stage<'a> {
        Stage {
            cluster,
            scenario,
            parts,
            links: Links::default(),
            covered: BTreeMap::new(),
            paused: Hosts::new(),
            effects: Vec::new(),
            reshaped: false,
        }
    }

    /// What became of the steps so far.
    #[must_use]
    pub fn effects(&self) -> &[Effect] {
        &self.effects
    }

    /// Whether the cluster has other members or another generation than before.
    #[must_use]
    pub fn is_reshaped(&self) -> bool {
        self.reshaped
    }

    /// The cluster.
    pub fn cluster(&mut self) -> &mut Cluster {
        self.cluster
    }

    /// Does or undoes what is due.
    ///
    /// # Errors
    /// When it cannot be done.
    pub fn carry_out(&mut self, due: Due) -> Result<()> {
        let action = self.scenario.processes[due.step].action.clone();
        let doing = || format!("{} (line {})", action.verb(), self.scenario.processes[due.step].line);
        let done = match due.deed {
            Deed::Begin => self.begin(due.step, &action),
            Deed::Up => self.links_end(due.step),
            Deed::Down => match &action {
                Action::Flap { pair, .. } => self.cut(due.step, pair).map(|_| ()),
                _ => Ok(()),
            },
            Deed::End => self.end(due.step, &action),
        };
        done.with_context(doing)
    }

    fn begin(&mut self, step: usize, action: &Action) -> Result<()> {
        let at_ns = now_ns()?;
        let (hosts, seen, real) = match action {
            Action::Cut { pair, .. } | Action::Flap { pair, .. } => {
                // Whether packets were dropped is seen when it ends.
                (self.cut(step, pair)?, String::new(), false)
            }
            Action::Link { pair, shape, .. } => {
                let (from, to) = self.parts.pair(pair)?;
                let covered = pairs(&from, &to, pair.both);
                self.cover(step, &covered)?;
                self.links.shape(step, covered, *shape);
                self.apply_links()?;
                (from, String::new(), false)
            }
            Action::Heal { pair } => {
                let healed = pair.as_ref().map(|pair| self.pairs_of(pair)).transpose()?;
                self.links.heal(healed.as_ref());
                self.apply_links()?;
                self.see_packets(at_ns)?;
                (Hosts::new(), "links are whole".to_owned(), true)
            }
            Action::Kill { what } => self.kill(what)?,
            Action::Start { what } => self.start(what)?,
            Action::Pause { what, .. } => self.pause(what)?,
            Action::Resume { what } => self.resume(what)?,
            Action::LoseDisk { what } => self.lose_disk(what)?,
            Action::RollingRestart { what } => self.rolling(what, false)?,
            Action::RollingUpgrade { what } => self.rolling(what, true)?,
            Action::ReplaceReplica { what } => self.replace(what)?,
            Action::Recover { what } => self.recover(what)?,
            Action::TransferLeadership { to } => self.transfer(to.as_ref())?,
            other => bail!("{} cannot be carried out here yet", other.verb()),
        };
        let hosts = hosts.into_iter().collect();
        let verb = action.verb().to_owned();
        self.effects.push(Effect { step, verb, hosts, at_ns, undone_at_ns: None, seen, real });
        Ok(())
    }

    fn end(&mut self, step: usize, action: &Action) -> Result<()> {
        let at_ns = now_ns()?;
        match action {
            Action::Cut { .. } | Action::Flap { .. } | Action::Link { .. } => {
                self.links_end(step)?;
                self.see_packets(at_ns)?;
            }
            Action::Pause { what, .. } => drop(self.resume(what)?),
            _ => {}
        }
        self.undone(step, at_ns);
        Ok(())
    }

    fn undone(&mut self, step: usize, at_ns: u64) {
        for effect in self.effects.iter_mut().filter(|effect| effect.step == step) {
            effect.undone_at_ns.get_or_insert(at_ns);
        }
    }

    /// Leaves everything as it was before the drill, as far as that depends on the drill.
    ///
    /// # Errors
    /// When something cannot be undone; the rest is.
    pub fn undo_all(&mut self) -> Result<()> {
        let at_ns = now_ns()?;
        self.links.heal(None);
        let healed = self.apply_links().and_then(|()| self.see_packets(at_ns));
        let paused: Vec<String> = self.paused.iter().cloned().collect();
        for host in paused {
            // It may have been killed while it was paused.
            let _ = self.cluster.signal_host(&host, Signal::SIGCONT);
        }
        self.paused.clear();
        self.cluster.reap();
        let mut started = Ok(());
        let hosts = self.cluster.plan().hosts.clone();
        for host in &hosts {
            let member = replica_of(host).is_none_or(|id| self.cluster.members().contains(&id));
            if member && matches!(host.purpose, Purpose::Replica { .. } | Purpose::Agent(_)) {
                started = started.and(self.cluster.start_host(&host.name));
            }
        }
        healed.and(started)
    }

    fn pairs_of(&self, pair: &Pair) -> Result<Pairs> {
        let (from, to) = self.parts.pair(pair)?;
        Ok(pairs(&from, &to, pair.both))
    }

    fn cut(&mut self, step: usize, pair: &Pair) -> Result<Hosts> {
        let (from, to) = self.parts.pair(pair)?;
        let covered = pairs(&from, &to, pair.both);
        ensure!(!covered.is_empty(), "there is no link between {} and {}", pair.from, pair.to);
        self.cover(step, &covered)?;
        self.links.cut(step, covered);
        self.apply_links()?;
        Ok(from)
    }

    fn links_end(&mut self, step: usize) -> Result<()> {
        self.links.end(step);
        self.apply_links()
    }

    fn apply_links(&self) -> Result<()> {
        let rules = self.links.rules(self.cluster.plan());
        self.cluster.network().apply(&rules).context("the rules of the wire")?;
        Ok(())
    }

    /// Packets that these links dropped, delayed or changed other than usual, since the network was made.
    fn harmed(&self, covered: &Pairs) -> Result<u64> {
        let stats = self.cluster.network().stats().context("what the wire did")?;
        let links = stats.links.iter().filter(|(pair, _)| covered.contains(*pair)).map(|(_, link)| link);
        Ok(links.map(|l| l.cut + l.lost + l.overflowed + l.duplicated + l.reordered + l.corrupted).sum())
    }

    fn cover(&mut self, step: usize, covered: &Pairs) -> Result<()> {
        if !self.covered.contains_key(&step) {
            let before = self.harmed(covered)?;
            self.covered.insert(step, (covered.clone(), before));
        }
        Ok(())
    }

    /// Says of cuts and worse links what they did to packets.
    fn see_packets(&mut self, at_ns: u64) -> Result<()> {
        let covered = self.covered.clone();
        for (step, (links, before)) in &covered {
            let harmed = self.harmed(links)?.saturating_sub(*before);
            for effect in self.effects.iter_mut().filter(|effect| effect.step == *step) {
                effect.seen = format!("{harmed} packets on {} links", links.len());
                effect.real = harmed > 0 || only_slower(&self.scenario.processes[*step].action);
                if self.links.cut_pairs().is_disjoint(links) {
                    effect.undone_at_ns.get_or_insert(at_ns);
                }
            }
        }
        Ok(())
    }

    fn kill(&mut self, what: &Selection) -> Result<(Hosts, String, bool)> {
        let hosts = self.parts.select(what)?;
        let mut killed = 0;
        // All die before any is waited for: a region goes at once.
        for host in &hosts {
            killed += self.cluster.host(host)?.processes().len();
            self.cluster.host(host)?.kill_all();
        }
        for host in &hosts {
            self.cluster.kill_host(host)?;
            self.paused.remove(host);
        }
        Ok((hosts, format!("{killed} processes killed"), killed > 0))
    }

    fn start(&mut self, what: &Selection) -> Result<(Hosts, String, bool)> {
        let hosts = self.parts.select(what)?;
        self.cluster.reap();
        for host in &hosts {
            let planned = self.parts.all().iter().find(|planned| planned.name == *host);
            let replica = planned.and_then(replica_of);
            if replica.is_none_or(|id| self.cluster.members().contains(&id)) {
                self.cluster.start_host(host)?;
            }
        }
        Ok((hosts, "started".to_owned(), true))
    }

    fn pause(&mut self, what: &Selection) -> Result<(Hosts, String, bool)> {
        let mut hosts = Hosts::new();
        for host in self.parts.select(what)? {
            if self.cluster.signal_host(&host, Signal::SIGSTOP)? {
                hosts.insert(host);
            }
        }
        self.paused.extend(hosts.iter().cloned());
        let real = !hosts.is_empty();
        let seen = format!("{} processes stand still", hosts.len());
        Ok((hosts, seen, real))
    }

    fn resume(&mut self, what: &Selection) -> Result<(Hosts, String, bool)> {
        let mut hosts = Hosts::new();
        for host in self.parts.select(what)? {
            if self.paused.remove(&host) && self.cluster.signal_host(&host, Signal::SIGCONT)? {
                hosts.insert(host);
            }
        }
        let real = !hosts.is_empty();
        let seen = format!("{} processes go on", hosts.len());
        Ok((hosts, seen, real))
    }

    /// The replicas among the hosts of a selection; others are left alone.
    fn replicas(&self, what: &Selection) -> Result<Vec<(u64, String)>> {
        let hosts = self.parts.select(what)?;
        let planned = self.parts.all().iter().filter(|host| hosts.contains(&host.name));
        let voters = &self.parts.moment().voters;
        let of = |host: &crate::cluster::plan::HostPlan| Some((replica_of(host)?, host.name.clone()));
        let replicas: Vec<_> = planned.filter_map(of).filter(|(id, _)| voters.contains(id)).collect();
        ensure!(!replicas.is_empty(), "`{what}` has no replica");
        Ok(replicas)
    }

    fn lose_disk(&mut self, what: &Selection) -> Result<(Hosts, String, bool)> {
        let replicas = self.replicas(what)?;
        let mut removed = 0;
        for (id, host) in &replicas {
            ensure!(
                self.cluster.pid_on(host).is_none(),
                "replica {id} runs: kill it before its disk is lost"
            );
            let data = self.cluster.data_of(*id)?;
            if data.exists() {
                std::fs::remove_dir_all(&data).with_context(|| format!("removing {}", data.display()))?;
                removed += 1;
            }
        }
        let hosts = replicas.into_iter().map(|(_, host)| host).collect();
        Ok((hosts, format!("{removed} data folders removed"), removed > 0))
    }

    fn rolling(&mut self, what: &Selection, upgrade: bool) -> Result<(Hosts, String, bool)> {
        let mut replicas = self.replicas(what)?;
        let leader = self.leader_now()?;
        // The leader last, as the runbook says: leadership moves once.
        replicas.sort_by_key(|(id, _)| (*id == leader, *id));
        for (id, host) in &replicas {
            if upgrade {
                self.cluster.upgrade(*id)?;
            }
            self.cluster.stop_host(host)?;
            self.cluster.start_host(host)?;
            self.cluster.well(LAG_MAX, BACK_LIMIT).with_context(|| format!("after replica {id}"))?;
        }
        let mut seen = format!("{} replicas restarted one after the other", replicas.len());
        if upgrade {
            let raised = self.retry(CHANGE_LIMIT, |cluster| cluster.operate(&["cluster", "upgrade"]))?;
            seen = format!("{seen}; {}", raised.trim());
        }
        Ok((replicas.into_iter().map(|(_, host)| host).collect(), seen, true))
    }

    fn leader_now(&mut self) -> Result<u64> {
        let observer = self.cluster.observer().clone();
        let seen = self.cluster.operating(async move {
            observer
                .until("no leader", CHANGE_LIMIT, |seen| seen.leader().ok_or_else(|| "nobody".to_owned()))
                .await
        })?;
        seen.context("looking for the leader")
    }

    /// Again until it succeeds: what an operator does whose command says "not yet".
    fn retry<T>(&mut self, limit: Duration, mut work: impl FnMut(&mut Cluster) -> Result<T>) -> Result<T> {
        let until = std::time::Instant::now() + limit;
        loop {
            match work(self.cluster) {
                Ok(done) => return Ok(done),
                Err(error) if std::time::Instant::now() >= until => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(250)),
            }
        }
    }

    fn spare_beside(&self, gone: u64) -> Result<u64> {
        let plan = self.cluster.plan();
        let region = plan.replica(gone).map(|host| host.region).context("a replica that is planned")?;
        let members = self.cluster.members();
        let spares = plan.hosts.iter().filter_map(|host| match host.purpose {
            Purpose::Replica { id, spare: true } if !members.contains(&id) => Some((host.region, id)),
            _ => None,
        });
        let spares: Vec<(&str, u64)> = spares.collect();
        let near = spares.iter().find(|(of, _)| *of == region).or(spares.first());
        near.map(|(_, id)| *id).context("no host stands by")
    }

    fn replace(&mut self, what: &Selection) -> Result<(Hosts, String, bool)> {
        let replicas = self.replicas(what)?;
        let [(gone, gone_host)] = replicas.as_slice() else { bail!("`{what}` is more than one replica") };
        ensure!(self.cluster.pid_on(gone_host).is_none(), "replica {gone} runs");
        let spare = self.spare_beside(*gone)?;
        self.cluster.start_replica(spare, &["--join"])?;
        self.reshaped = true;
        let host = self.cluster.plan().replica(spare).context("a spare that is planned")?.clone();
        let (id, with) = (gone.to_string(), spare.to_string());
        let (peer, client) = (peer_endpoint(&host), client_endpoint(&host));
        let words = [
            "cluster",
            "replace",
            &id,
            "--with",
            &with,
            "--region",
            host.region,
            "--peer",
            &peer,
            "--client",
            &client,
        ];
        let said = self.cluster.operate(&words)?;
        let mut members = self.cluster.members().clone();
        members.remove(gone);
        members.insert(spare);
        self.cluster.set_members(members)?;
        Ok((Hosts::from([gone_host.clone(), host.name.clone()]), said.trim().replace('\n', "; "), true))
    }

    /// As the runbook says: of those that are left, the one whose log reaches furthest goes on alone in a new
    /// generation; the others of them come back to it empty.
    fn recover(&mut self, what: &Selection) -> Result<(Hosts, String, bool)> {
        let survivors = self.replicas(what)?;
        self.reshaped = true;
        let mut best: Option<(u64, u64)> = None;
        for (id, host) in &survivors {
            if self.cluster.pid_on(host).is_some() {
                self.cluster.stop_host(host)?;
            }
            let config = self.cluster.home_of(host)?.join("server.toml");
            let config = config.to_str().context("the folder of a drill is text")?.to_owned();
            let said = self.cluster.run_on(host, &["server", "recover", "--config", &config])?;
            let index = last_log_index(&said).with_context(|| format!("no last log index in {said:?}"))?;
            if best.is_none_or(|(most, _)| index > most) {
                best = Some((index, *id));
            }
        }
        let (index, first) = best.context("there is no survivor")?;
        let host = self.cluster.plan().replica(first).context("a replica that is planned")?.name.clone();
        let config = self.cluster.home_of(&host)?.join("server.toml");
        let config = config.to_str().context("the folder of a drill is text")?.to_owned();
        let said =
            self.cluster.run_on(&host, &["server", "recover", "--config", &config, "--lost-majority"])?;
        self.cluster.start_replica(first, &[])?;
        self.cluster.set_members(BTreeSet::from([first]))?;
        let others = self.take_in_beside(first)?;
        let seen = format!(
            "replica {first} goes on from {index} with {others:?}: {}",
            said.trim().replace('\n', "; ")
        );
        Ok((survivors.into_iter().map(|(_, host)| host).collect(), seen, true))
    }

    /// Takes the hosts that stand by into a cluster of one, until three vote.
    fn take_in_beside(&mut self, first: u64) -> Result<Vec<u64>> {
        let plan = self.cluster.plan().clone();
        let mut members = BTreeSet::from([first]);
        let spares =
            plan.hosts.iter().filter(|host| matches!(host.purpose, Purpose::Replica { spare: true, .. }));
        for host in spares.take(2) {
            let Some(id) = replica_of(host) else { continue };
            self.cluster.start_replica(id, &["--join"])?;
            let (number, peer, client) = (id.to_string(), peer_endpoint(host), client_endpoint(host));
            let words =
                ["cluster", "add", &number, "--region", host.region, "--peer", &peer, "--client", &client];
            // It decides nothing before the leases of before have run out.
            self.retry(CHANGE_LIMIT, |cluster| cluster.operate(&words))?;
            members.insert(id);
        }
        self.cluster.set_members(members.clone())?;
        members.remove(&first);
        Ok(members.into_iter().collect())
    }

    fn transfer(&mut self, to: Option<&Selection>) -> Result<(Hosts, String, bool)> {
        let mut words = vec!["cluster".to_owned(), "transfer".to_owned()];
        let mut hosts = Hosts::new();
        if let Some(to) = to {
            let replicas = self.replicas(to)?;
            let [(id, host)] = replicas.as_slice() else { bail!("`{to}` is more than one replica") };
            words.extend(["--to".to_owned(), id.to_string()]);
            hosts.insert(host.clone());
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let said = self.cluster.operate(&words)?;
        Ok((hosts, said.trim().replace('\n', "; "), true))
    }
}

/// A worse link that drops and changes nothing is seen in no count.
fn only_slower(action: &Action) -> bool {
    let Action::Link { shape, .. } = action else { return false };
    shape.loss_ppm == 0 && shape.duplicate_ppm == 0 && shape.reorder_ppm == 0 && shape.corrupt_ppm == 0
}

/// What `muster server recover` says of a replica.
fn last_log_index(said: &str) -> Option<u64> {
    let (_, behind) = said.split_once("last log index")?;
    let digits: String =
        behind.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Now, on the clock of all evidence.
///
/// # Errors
/// When the system has no such clock.
pub fn now_ns() -> Result<u64> {
    muster_example::intervals::boottime_nanos().map_err(|error| anyhow::anyhow!("{error}"))
}

/// The message of the status that a drill's warnings are compared with.
pub fn warnings(status: &v1::GetStatusResponse) -> impl Iterator<Item = &str> {
    status.warnings.iter().map(|warning| warning.code.as_str())
}
