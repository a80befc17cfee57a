//! Steps against one replica's disk or clock, and their undoing.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use muster_drill::scenario::{Corruption, DataFile, Selection};
use nix::unistd::Pid;

use super::parts::Hosts;
use super::stage::Stage;
use crate::faults::{Damage, Injection, Traced};

/// A disk with less free space than this is full.
const FULL_BYTES_MAX: u64 = 1 << 20;

impl Stage<'_> {
    pub(super) fn slow_disk(&mut self, step: usize, what: &Selection, flush_ms: u64) -> Result<Hosts> {
        let mut hosts = Hosts::new();
        for (id, host) in self.replicas(what)? {
            let pid = self.cluster.pid_on(&host).with_context(|| format!("replica {id} does not run"))?;
            let log = self.cluster.home_of(&host)?.join(format!("strace-{step}.log"));
            let delay = [Injection::slow_flushes(Duration::from_millis(flush_ms))];
            let attaching = async move { Traced::attach(Pid::from_raw(pid), &delay, &log).await };
            let traced = self.cluster.operating(attaching)??;
            self.traced.entry(step).or_default().push((host.clone(), traced));
            hosts.insert(host);
        }
        Ok(hosts)
    }

    pub(super) fn disk_as_before(&mut self, step: usize) -> Result<()> {
        let mut met = 0;
        for (_, traced) in self.traced.remove(&step).unwrap_or_default() {
            met += self.cluster.operating(traced.detach())??;
        }
        for effect in self.effects.iter_mut().filter(|effect| effect.step == step) {
            effect.seen = format!("{met} flushes delayed");
            effect.real = met > 0;
        }
        Ok(())
    }

    pub(super) fn full_disk(&mut self, what: &Selection) -> Result<(Hosts, String, bool)> {
        let mut hosts = Hosts::new();
        let mut left = 0;
        for (_, host) in self.replicas(what)? {
            let disk = self.cluster.disk_of(&host)?;
            disk.fill(0)?;
            left = left.max(disk.free_bytes()?);
            self.full.insert(host.clone());
            hosts.insert(host);
        }
        Ok((hosts, format!("at most {left} bytes are free"), left < FULL_BYTES_MAX))
    }

    pub(super) fn disk_room(&mut self, what: &Selection) -> Result<(Hosts, String, bool)> {
        let mut hosts = Hosts::new();
        for (_, host) in self.replicas(what)? {
            if self.full.remove(&host) {
                self.cluster.disk_of(&host)?.unfill()?;
                hosts.insert(host);
            }
        }
        let real = !hosts.is_empty();
        let seen = format!("{} disks have free space again", hosts.len());
        Ok((hosts, seen, real))
    }

    pub(super) fn stopped_replicas(&self, what: &Selection) -> Result<Vec<(u64, String)>> {
        let replicas = self.replicas(what)?;
        for (id, host) in &replicas {
            ensure!(self.cluster.pid_on(host).is_none(), "replica {id} runs: kill it before");
        }
        Ok(replicas)
    }

    pub(super) fn damage(
        &mut self,
        what: &Selection,
        file: DataFile,
        how: Corruption,
    ) -> Result<(Hosts, String, bool)> {
        let replicas = self.stopped_replicas(what)?;
        let mut seen = Vec::new();
        for (id, _) in &replicas {
            let data = self.cluster.data_of(*id)?;
            let (DataFile::Log, Corruption::FlipBit) = (file, how) else {
                bail!("{how:?} of {file:?} cannot be carried out here");
            };
            let damage = Damage::log_entry(&data, self.seed)?;
            let at: Vec<u64> = damage.offsets().collect();
            seen.push(format!("{} at {at:?}", damage.path().display()));
        }
        Ok((replicas.into_iter().map(|(_, host)| host).collect(), seen.join("; "), true))
    }

    pub(super) fn power_cut(&mut self, what: &Selection) -> Result<(Hosts, String, bool)> {
        let replicas = self.replicas(what)?;
        for (_, host) in &replicas {
            self.cluster.host(host)?.kill_all();
        }
        for (_, host) in &replicas {
            self.cluster.kill_host(host)?;
            self.cluster.disk_of(host)?.power_cut()?;
        }
        let seen = format!("{} disks hold what was flushed and nothing else", replicas.len());
        Ok((replicas.into_iter().map(|(_, host)| host).collect(), seen, true))
    }

    pub(super) fn clock(
        &mut self,
        what: &Selection,
        offset_ms: i64,
        rate_milli: u32,
    ) -> Result<(Hosts, String, bool)> {
        let mut hosts = Hosts::new();
        for host in self.parts.select(what)? {
            let Some(clock) = self.cluster.clock_of(&host) else { continue };
            let offset = Duration::from_millis(offset_ms.unsigned_abs());
            ensure!(offset_ms == 0 || rate_milli == 1_000, "a clock is set, or runs at another rate");
            match (offset_ms, rate_milli) {
                (0, rate) => clock.rate(rate)?,
                (1.., _) => clock.ahead(offset)?,
                _ => clock.behind(offset)?,
            }
            self.wrong_clocks.insert(host.clone());
            hosts.insert(host);
        }
        let real = !hosts.is_empty();
        let seen =
            format!("{} clocks are off by {offset_ms} ms and run at {rate_milli} thousandths", hosts.len());
        Ok((hosts, seen, real))
    }

    pub(super) fn clocks_right(&mut self) -> Result<()> {
        for host in std::mem::take(&mut self.wrong_clocks) {
            if let Some(clock) = self.cluster.clock_of(&host) {
                clock.right()?;
            }
        }
        Ok(())
    }

    pub(super) fn lose_disk(&mut self, what: &Selection) -> Result<(Hosts, String, bool)> {
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
        Ok((hosts, format!("{removed} data directories removed"), removed > 0))
    }
}
