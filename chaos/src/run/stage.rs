//! Carrying out the steps of a drill on a cluster, and undoing them.
//!
//! **Invariant:** everything that a step did is known here until it was undone; at the end of a drill, however it
//! ends, [`Stage::undo_all`] leaves every link whole, every process running and every disk and clock as usual.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use muster_drill::scenario::{Action, Pair, Scenario, Selection};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::links::{Links, Pairs, pairs};
use super::parts::{Hosts, Parts, replica_of};
use super::timeline::{Due, StepPhase};
use crate::cluster::Cluster;
use crate::cluster::plan::Purpose;
use crate::faults::Traced;

/// Entries that a replica may lack and still count as back, while clients submit.
pub const LAG_MAX: u64 = 200;

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
    pub(super) cluster: &'a mut Cluster,
    scenario: &'a Scenario,
    pub(super) parts: Parts,
    links: Links,
    /// What each cutting or shaping step covers, and what its links had dropped before.
    covered: BTreeMap<usize, (Pairs, u64)>,
    paused: Hosts,
    /// Replicas whose flushes are delayed, by the step that did it.
    pub(super) traced: BTreeMap<usize, Vec<(String, Traced)>>,
    pub(super) full: Hosts,
    pub(super) wrong_clocks: Hosts,
    pub(super) effects: Vec<Effect>,
    pub(super) seed: u64,
    /// The cluster is not what it was: other members, another generation.
    pub(super) reshaped: bool,
}

impl<'a> Stage<'a> {
    /// A drill that is about to begin.
    pub fn new(cluster: &'a mut Cluster, scenario: &'a Scenario, parts: Parts, seed: u64) -> Stage<'a> {
        Stage {
            cluster,
            scenario,
            parts,
            links: Links::default(),
            covered: BTreeMap::new(),
            paused: Hosts::new(),
            traced: BTreeMap::new(),
            full: Hosts::new(),
            wrong_clocks: Hosts::new(),
            effects: Vec::new(),
            seed,
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
        let done = match due.phase {
            StepPhase::Begin => self.begin(due.step, &action),
            StepPhase::Up => self.links_end(due.step),
            StepPhase::Down => match &action {
                Action::Flap { pair, .. } => self.cut(due.step, pair).map(|_| ()),
                _ => Ok(()),
            },
            StepPhase::End => self.end(due.step, &action),
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
            Action::SlowDisk { what, flush_ms, .. } => {
                (self.slow_disk(step, what, *flush_ms)?, String::new(), false)
            }
            Action::FullDisk { what, .. } => self.full_disk(what)?,
            Action::DiskRoom { what } => self.disk_room(what)?,
            Action::Damage { what, file, how } => self.damage(what, *file, *how)?,
            Action::PowerCut { what } => self.power_cut(what)?,
            Action::Clock { what, offset_ms, rate_milli, .. } => self.clock(what, *offset_ms, *rate_milli)?,
        };
        let hosts = hosts.into_iter().collect();
        let verb = action.verb().to_owned();
        // What takes as long as it takes is over now.
        let is_long = matches!(
            action,
            Action::RollingRestart { .. }
                | Action::RollingUpgrade { .. }
                | Action::ReplaceReplica { .. }
                | Action::Recover { .. }
        );
        let undone_at_ns = if is_long { Some(now_ns()?) } else { None };
        self.effects.push(Effect { step, verb, hosts, at_ns, undone_at_ns, seen, real });
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
            Action::SlowDisk { .. } => self.disk_as_before(step)?,
            Action::FullDisk { what, .. } => drop(self.disk_room(what)?),
            Action::Clock { .. } => self.clocks_right()?,
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
        let mut mended = self.clocks_right();
        let slow: Vec<usize> = self.traced.keys().copied().collect();
        for step in slow {
            mended = mended.and(self.disk_as_before(step));
        }
        for host in std::mem::take(&mut self.full) {
            let unfilled = self.cluster.disk_of(&host).and_then(|disk| Ok(disk.unfill()?));
            mended = mended.and(unfilled);
        }
        self.cluster.reap();
        let mut started = Ok(());
        let hosts = self.cluster.plan().hosts.clone();
        for host in &hosts {
            let member = replica_of(host).is_none_or(|id| self.cluster.members().contains(&id));
            if member && matches!(host.purpose, Purpose::Replica { .. } | Purpose::Agent(_)) {
                started = started.and(self.cluster.start_host(&host.name));
            }
        }
        healed.and(mended).and(started)
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
            let traced = self.traced.values_mut().flatten();
            for (_, traced) in traced.filter(|(of, _)| of == host) {
                traced.kill()?;
            }
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
    pub(super) fn replicas(&self, what: &Selection) -> Result<Vec<(u64, String)>> {
        let hosts = self.parts.select(what)?;
        let planned = self.parts.all().iter().filter(|host| hosts.contains(&host.name));
        let voters = &self.parts.roles().voters;
        let of = |host: &crate::cluster::plan::HostPlan| Some((replica_of(host)?, host.name.clone()));
        let replicas: Vec<_> = planned.filter_map(of).filter(|(id, _)| voters.contains(id)).collect();
        ensure!(!replicas.is_empty(), "`{what}` has no replica");
        Ok(replicas)
    }
}

/// A worse link that drops and changes nothing is seen in no count.
fn only_slower(action: &Action) -> bool {
    let Action::Link { shape, .. } = action else { return false };
    shape.loss_ppm == 0 && shape.duplicate_ppm == 0 && shape.reorder_ppm == 0 && shape.corrupt_ppm == 0
}

/// Now, on the clock of all evidence.
///
/// # Errors
/// When the system has no such clock.
pub fn now_ns() -> Result<u64> {
    muster_example::intervals::boottime_nanos().map_err(|error| anyhow::anyhow!("{error}"))
}
