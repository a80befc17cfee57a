//! Steps that change who belongs to the cluster, or what it runs: by the commands and in the order of the runbooks.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use muster_drill::scenario::Selection;

use super::parts::{Hosts, replica_of};
use super::stage::{LAG_MAX, Stage};
use crate::cluster::Cluster;
use crate::cluster::config::{client_endpoint, peer_endpoint};
use crate::cluster::plan::Purpose;

/// Time for a replica to be back after a restart.
const BACK_LIMIT: Duration = Duration::from_secs(60);
/// A change of members with everything that it waits for.
const CHANGE_LIMIT: Duration = Duration::from_secs(60);
/// Between two attempts of a command that says "not yet".
const AGAIN_EVERY: Duration = Duration::from_millis(250);

impl Stage<'_> {
    pub(super) fn rolling(&mut self, what: &Selection, upgrade: bool) -> Result<(Hosts, String, bool)> {
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

    pub(super) fn leader_now(&mut self) -> Result<u64> {
        let observer = self.cluster.observer().clone();
        let seen = self.cluster.operating(async move {
            observer
                .until("no leader", CHANGE_LIMIT, |seen| seen.leader().ok_or_else(|| "nobody".to_owned()))
                .await
        })?;
        seen.context("looking for the leader")
    }

    /// Again until it succeeds: what an operator does whose command says "not yet".
    pub(super) fn retry<T>(
        &mut self,
        limit: Duration,
        mut work: impl FnMut(&mut Cluster) -> Result<T>,
    ) -> Result<T> {
        let until = Instant::now() + limit;
        loop {
            match work(self.cluster) {
                Ok(done) => return Ok(done),
                Err(error) if Instant::now() >= until => return Err(error),
                Err(_) => std::thread::sleep(AGAIN_EVERY),
            }
        }
    }

    pub(super) fn spare_beside(&self, gone: u64) -> Result<u64> {
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

    pub(super) fn replace(&mut self, what: &Selection) -> Result<(Hosts, String, bool)> {
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
    pub(super) fn recover(&mut self, what: &Selection) -> Result<(Hosts, String, bool)> {
        let survivors = self.replicas(what)?;
        self.reshaped = true;
        let mut best: Option<(u64, u64)> = None;
        for (id, host) in &survivors {
            if self.cluster.pid_on(host).is_some() {
                self.cluster.stop_host(host)?;
            }
            let config = self.cluster.home_of(host)?.join("server.toml");
            let config = config.to_str().context("the directory of a drill is text")?.to_owned();
            let said = self.cluster.run_on(host, &["server", "recover", "--config", &config])?;
            let index = last_log_index(&said).with_context(|| format!("no last log index in {said:?}"))?;
            if best.is_none_or(|(most, _)| index > most) {
                best = Some((index, *id));
            }
        }
        let (index, first) = best.context("there is no survivor")?;
        let host = self.cluster.plan().replica(first).context("a replica that is planned")?.name.clone();
        let config = self.cluster.home_of(&host)?.join("server.toml");
        let config = config.to_str().context("the directory of a drill is text")?.to_owned();
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
    pub(super) fn take_in_beside(&mut self, first: u64) -> Result<Vec<u64>> {
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
            // It decides nothing before the leases of the previous generation have run out.
            self.retry(CHANGE_LIMIT, |cluster| cluster.operate(&words))?;
            members.insert(id);
        }
        self.cluster.set_members(members.clone())?;
        members.remove(&first);
        Ok(members.into_iter().collect())
    }

    pub(super) fn transfer(&mut self, to: Option<&Selection>) -> Result<(Hosts, String, bool)> {
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

/// What `muster server recover` says of a replica.
fn last_log_index(said: &str) -> Option<u64> {
    let (_, behind) = said.split_once("last log index")?;
    let digits: String =
        behind.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    pub(super) fn the_end_of_a_log_is_read_from_what_the_command_says() {
        let said = "replica 3\nlast log index 4711 of 2026-01-01T00:00:00Z\nnothing was changed\n";
        assert_eq!(last_log_index(said), Some(4_711));
        assert_eq!(last_log_index("nothing"), None);
    }
}
