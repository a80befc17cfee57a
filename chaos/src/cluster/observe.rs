//! What the operator sees of the cluster, and waiting until it is well.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use muster_client::{Client, Endpoints, Options, Read};
use muster_transport::Security;
use muster_wire::v1;

/// Between two looks at what no watch tells of.
const LOOK_EVERY: Duration = Duration::from_millis(150);
/// One look at one replica.
const LOOK_LIMIT: Duration = Duration::from_millis(1_500);
/// A call that an operator makes.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// A client of an operator, with one connection to each replica.
#[derive(Clone)]
pub struct Observer {
    all: Client,
    each: BTreeMap<u64, Client>,
}

/// How the members stand, as each of them says.
#[derive(Clone, Debug, Default)]
pub struct MemberStatuses {
    /// Answers by replica.
    pub statuses: BTreeMap<u64, v1::GetStatusResponse>,
}

impl MemberStatuses {
    /// The leader that most of those who answered know, in the newest term.
    #[must_use]
    pub fn leader(&self) -> Option<u64> {
        let newest = self.statuses.values().map(|status| status.term).max()?;
        let of_newest = self.statuses.iter().filter(|(_, status)| status.term == newest);
        of_newest.filter(|(_, status)| status.role() == v1::ReplicaRole::Leader).map(|(id, _)| *id).next()
    }

    /// What the leader says.
    #[must_use]
    pub fn of_leader(&self) -> Option<&v1::GetStatusResponse> {
        self.statuses.get(&self.leader()?)
    }

    /// Members that vote, by the leader's word.
    #[must_use]
    pub fn voters(&self) -> BTreeSet<u64> {
        let members = self.of_leader().map(|status| status.replicas.as_slice()).unwrap_or_default();
        members.iter().filter(|member| member.voter).map(|member| member.id).collect()
    }

    /// Why the cluster is not well; none when it is: every voter answers and knows the leader, none lags, all
    /// nodes are up, nothing is being changed, every disk has enough free space.
    #[must_use]
    pub fn unwell(&self, nodes: usize, lag_max: u64) -> Option<String> {
        let Some(leader) = self.of_leader() else { return Some("no replica leads".to_owned()) };
        let voters = self.voters();
        if voters.len() < 3 {
            return Some(format!("{} replicas vote", voters.len()));
        }
        let leads = self.leader().unwrap_or_default();
        for voter in &voters {
            let Some(status) = self.statuses.get(voter) else {
                return Some(format!("replica {voter} does not answer"));
            };
            let fresh = status.freshness.unwrap_or_default();
            if fresh.leader_id != leads {
                return Some(format!(
                    "replica {voter} takes {} for the leader, not {leads}",
                    fresh.leader_id
                ));
            }
            let ahead = leader.freshness.unwrap_or_default().log_index;
            if fresh.log_index + lag_max < ahead {
                return Some(format!("replica {voter} is at {}, the leader at {ahead}", fresh.log_index));
            }
            if let Some(health) = &status.health
                && (health.rejoining
                    || health.flush_stall.is_some()
                    || health.space() == v1::StorageSpace::Full)
            {
                return Some(format!("replica {voter} is not well: {health:?}"));
            }
        }
        for member in &leader.replicas {
            // What the leader knows of the others; of itself it knows nothing.
            if member.voter && member.id != leads && member.lag_entries.is_none_or(|lag| lag > lag_max) {
                return Some(format!(
                    "the leader knows of a lag of {:?} at {}",
                    member.lag_entries, member.id
                ));
            }
        }
        if leader.nodes_up != nodes as u64 {
            return Some(format!("{} of {nodes} nodes are up", leader.nodes_up));
        }
        if !leader.change_running.is_empty() {
            return Some(format!("a change of members is being made: {}", leader.change_running));
        }
        None
    }

    /// Whether all who answered are at one position with one digest; an error where positions agree and digests do not.
    ///
    /// # Errors
    /// When states differ: the worst that can be found.
    pub fn equal(&self) -> Result<bool> {
        let position = |status: &v1::GetStatusResponse| status.freshness.unwrap_or_default().log_index;
        let mut digests: BTreeMap<u64, BTreeMap<&str, u64>> = BTreeMap::new();
        for (id, status) in &self.statuses {
            digests.entry(position(status)).or_default().insert(status.state_digest.as_str(), *id);
        }
        if let Some((index, differing)) = digests.iter().find(|(_, at)| at.len() > 1) {
            bail!("replicas differ at log index {index}: {differing:?}");
        }
        Ok(digests.len() == 1)
    }
}

impl Observer {
    /// One for these replicas.
    ///
    /// # Errors
    /// When an endpoint is no address.
    pub fn new(endpoints: &BTreeMap<u64, String>, security: &Security) -> Result<Observer> {
        let client = |list: Vec<String>, options: Options| -> Result<Client> {
            let endpoints = Endpoints::parse_with(&list, security.clone()).context("endpoints")?;
            Ok(Client::lazy(endpoints, options))
        };
        let look = Options {
            deadline: LOOK_LIMIT,
            attempt_timeout: LOOK_LIMIT,
            read_your_writes: false,
            ..Options::STANDARD
        };
        let call = Options { deadline: CALL_LIMIT, attempt_timeout: CALL_LIMIT, ..Options::STANDARD };
        let each = endpoints.iter().map(|(id, at)| Ok((*id, client(vec![at.clone()], look.clone())?)));
        let all = client(endpoints.values().cloned().collect(), call)?;
        Ok(Observer { all, each: each.collect::<Result<_>>()? })
    }

    /// A client of the whole cluster.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.all
    }

    /// A client of one replica.
    #[must_use]
    pub fn client_of(&self, replica: u64) -> Option<&Client> {
        self.each.get(&replica)
    }

    /// Asks every replica at once.
    pub async fn look(&self) -> MemberStatuses {
        let asks = self.each.iter().map(|(id, client)| async move {
            let answer = client.get_status(v1::GetStatusRequest { read: Read::any().into() }).await;
            Some((*id, answer.ok()?))
        });
        let answers = futures::future::join_all(asks).await;
        MemberStatuses { statuses: answers.into_iter().flatten().collect() }
    }

    /// Looks until there is something.
    ///
    /// # Errors
    /// When there was nothing for too long: `what`, and what was missing last.
    pub async fn until<T>(
        &self,
        what: &str,
        limit: Duration,
        mut look: impl FnMut(&MemberStatuses) -> Result<T, String>,
    ) -> Result<T> {
        let until = Instant::now() + limit;
        loop {
            let missing = match look(&self.look().await) {
                Ok(found) => return Ok(found),
                Err(missing) => missing,
            };
            anyhow::ensure!(Instant::now() < until, "{what}: not within {} s: {missing}", limit.as_secs());
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until the cluster is well.
    ///
    /// # Errors
    /// When it does not become so.
    pub async fn well(&self, nodes: usize, lag_max: u64, limit: Duration) -> Result<MemberStatuses> {
        self.until("the cluster is not well", limit, |seen| match seen.unwell(nodes, lag_max) {
            None => Ok(seen.clone()),
            Some(why) => Err(why),
        })
        .await
    }

    /// Waits until every voter has the same state.
    ///
    /// # Errors
    /// When states differ, or do not come to one position.
    pub async fn equal(&self, limit: Duration) -> Result<MemberStatuses> {
        let found = self.until("the replicas did not come to one position", limit, |seen| {
            let voters = seen.voters();
            if voters.is_empty() || !voters.iter().all(|id| seen.statuses.contains_key(id)) {
                return Err("not every voter answers".to_owned());
            }
            match seen.equal() {
                Ok(true) => Ok(Ok(seen.clone())),
                Ok(false) => Err("positions differ".to_owned()),
                Err(differ) => Ok(Err(differ)),
            }
        });
        found.await?
    }
}
