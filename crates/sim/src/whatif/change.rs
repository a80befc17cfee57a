//! What is changed, and whether it can be.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use muster_state::{NodeRow, State};
use muster_types::policy::{Policy, PolicyDraft};
use muster_types::{HolderId, LogTime, NAME_RULE, Name, NodeDraft, NodeSpec, Violation};

use crate::whatif::recorder::{Input, Recording};
use crate::whatif::{WhatifError, listed};

/// Hosts that one change may add; it bounds the fleet of a replay.
const HOSTS_MAX: u32 = 100_000;

/// What the changed replay has otherwise.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// A policy for the whole range, in place of those of the record.
    pub policy: Option<Box<Policy>>,
    /// Accelerators more.
    pub added: Vec<AddedDevices>,
    /// Nodes that are not there.
    pub removed: Vec<Name>,
    /// Quotas that differ.
    pub quotas: Vec<QuotaChange>,
    /// Nodes that fail for a time.
    pub failures: Vec<NodeFailure>,
}

/// A node whose session ends, and begins again later: what holds its devices is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFailure {
    /// The node.
    pub node: Name,
    /// When its session ends.
    pub from: LogTime,
    /// When it registers again.
    pub until: LogTime,
}

/// As it is read.
impl fmt::Display for NodeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}..{}", self.node, self.from, self.until)
    }
}

/// Accelerators that a fleet cluster has more, `64xh100@eu/train`: on hosts like those that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedDevices {
    /// How many accelerators.
    pub devices: u32,
    /// Their type.
    pub kind: Name,
    /// The region.
    pub region: Name,
    /// The fleet cluster there.
    pub cluster: Name,
}

/// By what a nominal quota differs, in thousandths of an accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaAmount {
    /// More than it is.
    More(u64),
    /// Less than it is.
    Less(u64),
    /// This, whatever it is.
    Exactly(u64),
}

/// A nominal quota that differs: `research=+128`, `research/h100=+128`, `research/h100@eu=64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaChange {
    /// The tenant.
    pub tenant: Name,
    /// The type; none where the tenant has one quota.
    pub kind: Option<Name>,
    /// The region of the quota; none for the quota of all regions, or where the tenant has one quota for the type.
    pub region: Option<Name>,
    /// By what.
    pub amount: QuotaAmount,
}

fn name(text: &str) -> Result<Name, String> {
    Name::new(text).ok_or_else(|| {
        let shown: String = text.chars().take(80).collect();
        format!("{shown:?} is not a name: {NAME_RULE}")
    })
}

/// As it is read.
impl fmt::Display for AddedDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}@{}/{}", self.devices, self.kind, self.region, self.cluster)
    }
}

/// As it is read.
impl fmt::Display for QuotaChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.tenant.as_str())?;
        if let Some(kind) = &self.kind {
            write!(f, "/{kind}")?;
        }
        if let Some(region) = &self.region {
            write!(f, "@{region}")?;
        }
        match self.amount {
            QuotaAmount::More(milli) => write!(f, "=+{}", milli / 1_000),
            QuotaAmount::Less(milli) => write!(f, "=-{}", milli / 1_000),
            QuotaAmount::Exactly(milli) => write!(f, "={}", milli / 1_000),
        }
    }
}

impl FromStr for AddedDevices {
    type Err = String;

    fn from_str(text: &str) -> Result<AddedDevices, String> {
        let form = || "expected COUNTxTYPE@REGION/CLUSTER, such as +64xh100@eu-west/train".to_owned();
        let (what, place) = text.split_once('@').ok_or_else(form)?;
        let (count, kind) = what.split_once('x').ok_or_else(form)?;
        let (region, cluster) = place.split_once('/').ok_or_else(form)?;
        let is_number = count.bytes().all(|byte| byte.is_ascii_digit());
        let devices = count.parse::<u32>().ok().filter(|devices| is_number && *devices > 0);
        let devices = devices.ok_or_else(form)?;
        Ok(AddedDevices { devices, kind: name(kind)?, region: name(region)?, cluster: name(cluster)? })
    }
}

impl FromStr for QuotaChange {
    type Err = String;

    fn from_str(text: &str) -> Result<QuotaChange, String> {
        let form = || "expected TENANT[/TYPE[@REGION]]=+N, =-N or =N in accelerators".to_owned();
        let (whose, amount) = text.split_once('=').ok_or_else(form)?;
        let (tenant, kind) =
            whose.split_once('/').map_or((whose, None), |(tenant, kind)| (tenant, Some(kind)));
        let (kind, region) = match kind.and_then(|kind| kind.split_once('@')) {
            Some((kind, region)) => (Some(kind), Some(region)),
            None => (kind, None),
        };
        let milli = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            let devices = digits.parse::<u64>().ok().filter(|_| is_number);
            devices.and_then(|devices| devices.checked_mul(1_000)).ok_or_else(form)
        };
        let amount = match (amount.strip_prefix('+'), amount.strip_prefix('-')) {
            (Some(more), _) => QuotaAmount::More(milli(more)?),
            (None, Some(less)) => QuotaAmount::Less(milli(less)?),
            (None, None) => QuotaAmount::Exactly(milli(amount)?),
        };
        let kind = kind.map(name).transpose()?;
        Ok(QuotaChange { tenant: name(tenant)?, kind, region: region.map(name).transpose()?, amount })
    }
}

/// A change that was checked against a recording.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// In place of the policies of the record.
    policy: Option<Box<Policy>>,
    quotas: Vec<QuotaChange>,
    /// The policy to begin with, where it is not that of the record.
    pub(super) first_policy: Option<Box<Policy>>,
    /// Hosts to add where the range begins.
    pub(super) hosts: Vec<NodeSpec>,
    /// Nodes that are not there.
    pub(super) removed: BTreeSet<Name>,
    /// The ends and beginnings of sessions of nodes that fail, by time.
    pub(super) outages: Vec<(LogTime, Input)>,
    failures: Vec<NodeFailure>,
}

impl Plan {
    /// Checks a change.
    ///
    /// # Errors
    /// When it names what is not there, or breaks a rule of policies.
    pub(super) fn of(change: &Change, recording: &Recording) -> Result<Plan, WhatifError> {
        let base = &recording.base;
        let mut plan = Plan {
            policy: change.policy.clone(),
            quotas: change.quotas.clone(),
            first_policy: None,
            hosts: hosts(&change.added, base)?,
            removed: removed(&change.removed, recording)?,
            outages: outages(&change.failures, recording)?,
            failures: change.failures.clone(),
        };
        if plan.policy.is_some() || !plan.quotas.is_empty() {
            let in_force = change.policy.as_deref().unwrap_or(&base.policy().policy);
            plan.first_policy = Some(Box::new(with_quotas(in_force, &plan.quotas)?));
        }
        // Each policy of the record has to be one that the change can be made to.
        for (at, input) in &recording.inputs {
            if let Input::PolicySet(policy) = input {
                plan.policy_for(policy).map_err(|error| WhatifError {
                    sentence: format!("the policy that was set at {at}: {}", error.sentence),
                    ..error
                })?;
            }
        }
        Ok(plan)
    }

    /// Whether a node is failed at a time.
    pub(super) fn is_failed(&self, node: &Name, now: LogTime) -> bool {
        self.failures
            .iter()
            .any(|failure| failure.node == *node && failure.from <= now && now < failure.until)
    }

    /// The policy to set where the record set one; none where another holds for the whole range.
    pub(super) fn policy_for(&self, recorded: &Policy) -> Result<Option<Box<Policy>>, WhatifError> {
        if self.policy.is_some() {
            return Ok(None);
        }
        with_quotas(recorded, &self.quotas).map(|policy| Some(Box::new(policy)))
    }
}

/// A policy with other quotas.
fn with_quotas(policy: &Policy, changes: &[QuotaChange]) -> Result<Policy, WhatifError> {
    if changes.is_empty() {
        return Ok(policy.clone());
    }
    let mut draft = policy.clone().into_draft();
    for change in changes {
        set_quota(&mut draft, change)?;
    }
    draft.check().map_err(|violations| WhatifError {
        sentence: "the policy with the changed quotas breaks a rule of policies".to_owned(),
        details: violations.iter().map(Violation::to_string).collect(),
        next: "change the quota by less, or those of the tenants above it as well".to_owned(),
    })
}

fn set_quota(draft: &mut PolicyDraft, change: &QuotaChange) -> Result<(), WhatifError> {
    let tenant = &change.tenant;
    let known = listed(draft.tenants.keys().map(Name::as_str));
    let Some(policy) = draft.tenants.get_mut(tenant) else {
        return Err(WhatifError::new(
            format!("the policy names no tenant {tenant}; it names {known}"),
            "name one of its tenants with --quota, or give a policy that has the tenant with --policy",
        ));
    };
    let has = policy.quotas.iter().map(|quota| match &quota.region {
        Some(region) => format!("{tenant}/{}@{region}", quota.kind),
        None => format!("{tenant}/{}", quota.kind),
    });
    let has: Vec<String> = has.collect();
    let is_meant = |kind: &Name, region: &Option<Name>| {
        change.kind.as_ref().is_none_or(|wanted| wanted == kind)
            && change.region.as_ref().is_none_or(|wanted| Some(wanted) == region.as_ref())
    };
    let meant: Vec<usize> = (0..policy.quotas.len())
        .filter(|at| policy.quotas.get(*at).is_some_and(|quota| is_meant(&quota.kind, &quota.region)))
        .collect();
    // Without a region the quota of all regions is meant where there is one.
    let of_all =
        meant.iter().copied().filter(|at| policy.quotas.get(*at).is_some_and(|q| q.region.is_none()));
    let of_all: Vec<usize> = of_all.collect();
    let place = match (meant.as_slice(), of_all.as_slice()) {
        ([one], _) => *one,
        (_, [one]) if change.region.is_none() && change.kind.is_some() => *one,
        _ => {
            return Err(WhatifError::new(
                format!(
                    "the change of the quota of tenant {tenant} fits {} of its quotas: it has {}",
                    meant.len(),
                    listed(has.iter().map(String::as_str))
                ),
                "name one of them with --quota TENANT/TYPE=+N or TENANT/TYPE@REGION=+N",
            ));
        }
    };
    let Some(quota) = policy.quotas.get_mut(place) else { return Ok(()) };
    let devices = quota.nominal_milli / 1_000;
    let changed = match change.amount {
        QuotaAmount::More(milli) => quota.nominal_milli.checked_add(milli),
        QuotaAmount::Less(milli) => quota.nominal_milli.checked_sub(milli),
        QuotaAmount::Exactly(milli) => Some(milli),
    };
    quota.nominal_milli = changed.ok_or_else(|| {
        let text = format!("the quota of tenant {tenant} is {devices}: it cannot be changed by as much");
        WhatifError::new(text, "change it by less, or name the amount with =N")
    })?;
    Ok(())
}

fn removed(names: &[Name], recording: &Recording) -> Result<BTreeSet<Name>, WhatifError> {
    for name in names {
        let comes = |input: &Input| matches!(input, Input::Registered { spec, .. } if spec.name == *name);
        let is_known = recording.base.node_named(name).is_some()
            || recording.inputs.iter().any(|(_, input)| comes(input));
        if !is_known {
            let registered = recording.inputs.iter().filter_map(|(_, input)| match input {
                Input::Registered { spec, .. } => Some(spec.name.as_str()),
                _ => None,
            });
            let known = recording.base.nodes_by_name().map(|(name, _)| name.as_str());
            let known = listed(known.chain(registered).collect::<BTreeSet<_>>());
            return Err(WhatifError::new(
                format!("there is no node {name} in the range; there are {known}"),
                "name a node of the range with --fleet -NODE",
            ));
        }
    }
    Ok(names.iter().cloned().collect())
}

/// What the failures are to sessions, by time.
fn outages(failures: &[NodeFailure], recording: &Recording) -> Result<Vec<(LogTime, Input)>, WhatifError> {
    let (base, range) = (&recording.base, recording.range);
    let mut sorted: Vec<&NodeFailure> = failures.iter().collect();
    sorted.sort_by(|one, other| (&one.node, one.from).cmp(&(&other.node, other.from)));
    let overlaps =
        |pair: &[&NodeFailure]| matches!(pair, [one, next] if one.node == next.node && next.from < one.until);
    if let Some([one, _]) = sorted.windows(2).find(|pair| overlaps(pair)) {
        let text = format!("two failures of node {} overlap", one.node);
        return Err(WhatifError::new(text, "name one failure for both with --failures"));
    }
    let mut outages = Vec::new();
    for (place, failure) in sorted.into_iter().enumerate() {
        let NodeFailure { node, from, until } = failure;
        if from >= until || *from < range.from || *from > range.to {
            let text = format!("the failure {failure} does not begin in the range, or ends before it begins");
            let next =
                format!("name times from {} to {} with --failures NODE@FROM..UNTIL", range.from, range.to);
            return Err(WhatifError::new(text, next));
        }
        let Some(row) = base.node_named(node).and_then(|id| base.node(id)) else {
            let known = listed(base.nodes_by_name().map(|(name, _)| name.as_str()));
            return Err(WhatifError::new(
                format!("there is no node {node} where the range begins; there are {known}"),
                "name one of them with --failures NODE@FROM..UNTIL",
            ));
        };
        let spec = Box::new(NodeSpec::clone(row.said()));
        let holder = HolderId((1 << 126) + place as u128);
        outages.push((*from, Input::Lost(node.clone())));
        outages.push((*until, Input::Registered { spec, holder }));
    }
    outages.sort_by_key(|(at, _)| *at);
    Ok(outages)
}

/// The hosts that are added, each like one that is there.
fn hosts(added: &[AddedDevices], base: &State) -> Result<Vec<NodeSpec>, WhatifError> {
    let mut hosts: Vec<NodeSpec> = Vec::new();
    for (place, devices) in added.iter().enumerate() {
        let model = model(devices, base)?;
        let per_host = u32::from(model.spec.device_count()).max(1);
        let count = devices.devices / per_host;
        if count * per_host != devices.devices || hosts.len() + count as usize > HOSTS_MAX as usize {
            let next = format!(
                "hosts of {} in {}/{} have {per_host}: add a multiple of that, and at most {HOSTS_MAX} hosts",
                devices.kind, devices.region, devices.cluster
            );
            let text = format!("{} {} cannot be added as whole hosts", devices.devices, devices.kind);
            return Err(WhatifError::new(text, next));
        }
        // What its agent says, without what operators have set on it.
        let said = model.said();
        let per_rack = hosts_of_rack(said, base);
        for host in 0..count {
            hosts.push(host_like(said, devices, (place, host, host / per_rack), base)?);
        }
    }
    Ok(hosts)
}

/// The host that added ones are like: of the most frequent size, the first by name.
fn model<'a>(added: &AddedDevices, base: &'a State) -> Result<&'a NodeRow, WhatifError> {
    let AddedDevices { kind, region, cluster, .. } = added;
    let rows = || base.nodes_by_name().filter_map(move |(_, id)| base.node(id));
    let has_kind = |row: &&NodeRow| row.spec.accelerators.as_ref().is_some_and(|has| has.kind == *kind);
    let in_place = |row: &&NodeRow| row.spec.region == *region && row.spec.cluster == *cluster;
    if rows().next().is_none() {
        return Err(WhatifError::new(
            "no host is there where the range begins, so none can be added that is like one",
            "begin the range later, with --from, when hosts have registered",
        ));
    }
    if !rows().any(|row| in_place(&row)) {
        let places: BTreeSet<String> =
            rows().map(|row| format!("{}/{}", row.spec.region, row.spec.cluster)).collect();
        let text = format!(
            "the fleet has no cluster {region}/{cluster}; it has {}",
            listed(places.iter().map(String::as_str))
        );
        return Err(WhatifError::new(text, "name one of them with --fleet +COUNTxTYPE@REGION/CLUSTER"));
    }
    // A type that the cluster has not may be elsewhere in the fleet: its hosts are known then.
    let here: Vec<&NodeRow> = rows().filter(has_kind).filter(in_place).collect();
    let like = if here.is_empty() { rows().filter(has_kind).collect() } else { here };
    let mut sizes: BTreeMap<u16, u32> = BTreeMap::new();
    for row in &like {
        *sizes.entry(row.spec.device_count()).or_default() += 1;
    }
    let usual = sizes.iter().max_by_key(|(_, count)| **count).map(|(size, _)| *size);
    like.into_iter().find(|row| Some(row.spec.device_count()) == usual).ok_or_else(|| {
        let kinds = rows().filter_map(|row| row.spec.accelerators.as_ref());
        let kinds: BTreeSet<&str> = kinds.map(|has| has.kind.as_str()).collect();
        let text = format!("the fleet has no accelerator of type {kind}; it has {}", listed(kinds));
        WhatifError::new(text, "name one of them: what a host of another type is like is not in the log")
    })
}

/// How many hosts the rack of a host has, as far as the fleet shows.
fn hosts_of_rack(spec: &NodeSpec, base: &State) -> u32 {
    let in_rack = |other: &NodeSpec| {
        (&other.region, &other.cluster, &other.block, &other.rack)
            == (&spec.region, &spec.cluster, &spec.block, &spec.rack)
    };
    let count = base.nodes().iter().filter(|(_, row)| in_rack(row.spec.as_ref())).count();
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

/// A host like another one, in a rack that is not there yet. `place` is the number of the change, of the host and of the rack.
fn host_like(
    spec: &NodeSpec,
    added: &AddedDevices,
    (change, host, rack): (usize, u32, u32),
    base: &State,
) -> Result<NodeSpec, WhatifError> {
    let named = |text: String| {
        let next = "name fewer accelerators";
        Name::new(&text).ok_or_else(|| WhatifError::new(format!("{text:?} is not a name"), next))
    };
    let mut name = named(format!("whatif-{}-{host}", change + 1))?;
    while base.node_named(&name).is_some() {
        name = named(format!("{name}x"))?;
    }
    // Blocks of another cluster are not those of this one.
    let is_there = (&spec.region, &spec.cluster) == (&added.region, &added.cluster);
    let draft = NodeDraft {
        address: name.to_string(),
        name,
        region: added.region.clone(),
        cluster: added.cluster.clone(),
        block: if is_there { spec.block.clone() } else { named(format!("whatif-{}", change + 1))? },
        rack: named(format!("whatif-{}-{rack}", change + 1))?,
        // A place in a pod is one host's alone.
        pod: None,
        ..NodeDraft::clone(spec)
    };
    draft.check().map_err(|violations| WhatifError {
        sentence: "a host like those of the fleet breaks a rule of hosts".to_owned(),
        details: violations.iter().map(Violation::to_string).collect(),
        next: "add accelerators of another type or in another cluster".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_from_words() {
        let added: AddedDevices = "64xh100@eu-west/train".parse().unwrap();
        assert_eq!((added.devices, added.kind.as_str(), added.cluster.as_str()), (64, "h100", "train"));
        for wrong in ["", "64h100@a/b", "0xh100@a/b", "64xh100", "64xh100@a", "64xH100@a/b", "-1xh100@a/b"] {
            assert!(wrong.parse::<AddedDevices>().is_err(), "{wrong}");
        }
        let quota: QuotaChange = "lab/h100@eu=+128".parse().unwrap();
        assert_eq!(quota.amount, QuotaAmount::More(128_000));
        assert_eq!(quota.region.as_ref().map(Name::as_str), Some("eu"));
        assert_eq!(
            (added.to_string(), quota.to_string()),
            ("64xh100@eu-west/train".to_owned(), "lab/h100@eu=+128".to_owned())
        );
        let quota: QuotaChange = "lab=-3".parse().unwrap();
        assert_eq!((quota.kind, quota.amount), (None, QuotaAmount::Less(3_000)));
        assert_eq!("lab=7".parse::<QuotaChange>().unwrap().amount, QuotaAmount::Exactly(7_000));
        for wrong in
            ["lab", "lab=", "lab=+", "lab=1.5", "lab=+-1", "=1", "lab/=1", "lab=99999999999999999999"]
        {
            assert!(wrong.parse::<QuotaChange>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn nothing_is_like_a_host_before_there_is_one() {
        let added: AddedDevices = "8xh100@eu/train".parse().unwrap();
        let error = model(&added, &State::default()).err().unwrap();
        assert!(error.sentence.starts_with("no host is there where the range begins"), "{}", error.sentence);
        assert!(error.next.contains("--from"), "{}", error.next);
    }
}
