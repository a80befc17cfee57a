//! Choices of one tenant's queue: its order, whom its jobs may have stopped, and the nodes that it runs on.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use super::{JobLimits, POLICY_DURATION_MS_MAX, Policy, TenantLimits, TenantPolicy, TenantRights};
use crate::fleet::NodeDraft;
use crate::name::Name;
use crate::node_requirements::{LabelTest, NodeRequirements};
use crate::reason::Violation;

/// Most tenants of one policy that state nodes: whether a node is kept for some of them is asked wherever a job is placed.
pub const PARTITIONS_MAX: usize = 256;
/// For how long a waiting job blocks those behind it in strict order where the policy does not say: an hour.
pub const BLOCK_FOR_MS_USUAL: u64 = 3_600_000;
/// The shortest such time: a minute.
pub const BLOCK_FOR_MS_MIN: u64 = 60_000;

/// Whether jobs of a tenant may go past one that waits for capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum QueueOrder {
    /// They may, as the policy's order and backfill say.
    #[default]
    Fair,
    /// They may not: while the first waits, none behind it is placed. A job blocks others for [`QueueChoices::block_for_ms`] at most.
    Strict,
}

impl QueueOrder {
    /// Every value.
    pub const ALL: [QueueOrder; 2] = [QueueOrder::Fair, QueueOrder::Strict];

    /// As people write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            QueueOrder::Fair => "fair",
            QueueOrder::Strict => "strict",
        }
    }

    /// The value that a person named.
    #[must_use]
    pub fn parse(text: &str) -> Option<QueueOrder> {
        QueueOrder::ALL.into_iter().find(|value| value.as_str() == text)
    }
}

/// Whom the jobs of a tenant may have stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum QueuePreemption {
    /// Nobody.
    None,
    /// As the policy's preemption says: lower tiers, and those that borrow what the tenant is promised.
    #[default]
    Reclaim,
    /// The same, and those that borrow of tenants which hold more than their part by weight, while the tenant holds less than
    /// its own.
    FairShare,
}

impl QueuePreemption {
    /// Every value.
    pub const ALL: [QueuePreemption; 3] =
        [QueuePreemption::None, QueuePreemption::Reclaim, QueuePreemption::FairShare];

    /// As people write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            QueuePreemption::None => "none",
            QueuePreemption::Reclaim => "reclaim",
            QueuePreemption::FairShare => "fair_share",
        }
    }

    /// The value that a person named.
    #[must_use]
    pub fn parse(text: &str) -> Option<QueuePreemption> {
        QueuePreemption::ALL.into_iter().find(|value| value.as_str() == text)
    }
}

/// What a policy says of a tenant's queue. What is not stated is that of the nearest tenant above that states it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueChoices {
    /// Whether its jobs may go past one another.
    pub order: Option<QueueOrder>,
    /// For how long a job blocks those behind it in strict order, from when it could first have been placed. After that they may go
    /// past it, so that one which cannot be placed for long keeps nobody waiting for good.
    pub block_for_ms: Option<u64>,
    /// Whom its jobs may have stopped.
    pub preemption: Option<QueuePreemption>,
    /// The only nodes that its jobs run on, in addition to what each job asks of its nodes.
    pub nodes: Option<NodeRequirements>,
    /// Whether those nodes are kept from the jobs of all tenants but this one, those below it, and others that state the same nodes.
    /// It is stated with the nodes, and is false where it is left out.
    pub isolated: Option<bool>,
}

impl QueueChoices {
    pub(super) fn check(&self, at: &str, found: &mut Vec<Violation>) {
        let (min, max) = (BLOCK_FOR_MS_MIN, POLICY_DURATION_MS_MAX);
        if let Some(ms) = self.block_for_ms.filter(|ms| !(min..=max).contains(ms)) {
            found.push(Violation::span(&format!("{at}.block_for"), ms, min, max));
        }
        if let Some(nodes) = &self.nodes {
            let mut broken = Vec::new();
            nodes.check(&mut broken);
            found.extend(broken.into_iter().map(|violation| violation.under(at)));
        }
        if self.isolated == Some(true) && self.nodes.is_none() {
            found.push(Violation::new(
                format!("{at}.isolated"),
                "must be given with the nodes that are kept from others: state `nodes` as well",
            ));
        }
    }
}

/// Nodes that a tenant keeps from others.
#[derive(Debug, PartialEq, Eq)]
struct Isolated {
    holder: Name,
    nodes: NodeRequirements,
}

/// Nodes that are kept from other tenants, each once, by what a node must have to be one of them: whether a node is kept for somebody
/// is asked for every node and job, and there may be as many of these as [`PARTITIONS_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct IsolatedTable {
    by_name: BTreeMap<Name, Vec<Arc<Isolated>>>,
    by_value: BTreeMap<Name, BTreeMap<String, Vec<Arc<Isolated>>>>,
    by_label: BTreeMap<Name, Vec<Arc<Isolated>>>,
    /// Those that a node may be without any label.
    others: Vec<Arc<Isolated>>,
}

impl IsolatedTable {
    fn insert(&mut self, holder: &Name, nodes: &NodeRequirements) {
        let isolated = Arc::new(Isolated { holder: holder.clone(), nodes: nodes.clone() });
        if !nodes.only.is_empty() {
            for name in &nodes.only {
                self.by_name.entry(name.clone()).or_default().push(Arc::clone(&isolated));
            }
            return;
        }
        let listed = nodes.expressions.iter().find_map(|expression| match &expression.test {
            LabelTest::In(values) => Some((&expression.label, values)),
            LabelTest::NotIn(_)
            | LabelTest::Exists
            | LabelTest::DoesNotExist
            | LabelTest::Greater(_)
            | LabelTest::Less(_) => None,
        });
        if let Some((label, values)) = listed {
            let by_value = self.by_value.entry(label.clone()).or_default();
            for value in values {
                by_value.entry(value.clone()).or_default().push(Arc::clone(&isolated));
            }
            return;
        }
        let needs_label =
            |test: &LabelTest| matches!(test, LabelTest::Exists | LabelTest::Greater(_) | LabelTest::Less(_));
        match nodes.expressions.iter().find(|expression| needs_label(&expression.test)) {
            Some(expression) => self.by_label.entry(expression.label.clone()).or_default().push(isolated),
            None => self.others.push(isolated),
        }
    }

    /// All that a node is one of.
    fn of_node<'a>(&'a self, node: &'a NodeDraft) -> impl Iterator<Item = &'a Isolated> {
        let by_value = move |(label, value): (&'a Name, &'a String)| self.by_value.get(label)?.get(value);
        let of_values = node.labels.iter().filter_map(by_value).flatten();
        let of_labels = node.labels.keys().filter_map(move |label| self.by_label.get(label)).flatten();
        let of_name = self.by_name.get(&node.name).into_iter().flatten();
        let may_be = of_name.chain(of_values).chain(of_labels).chain(&self.others);
        may_be.map(|isolated| &**isolated).filter(move |isolated| isolated.nodes.allows(node))
    }
}

/// What queues and limits of a policy say, to look it up: most policies say nothing of most of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueTable {
    isolated: IsolatedTable,
    has_nodes: bool,
    has_strict: bool,
    has_fair_share: bool,
    has_preemption: bool,
    pub(super) has_user_shares: bool,
    pub(super) has_spend: bool,
    pub(super) has_user_spend: bool,
    pub(super) has_user_devices: bool,
    pub(super) has_on_limit: bool,
    /// Whether some tenant states any limit, apart from those of one tier.
    pub(super) has_limits: bool,
    pub(super) has_budget: bool,
    pub(super) has_user_budget: bool,
    pub(super) has_user_running_jobs: bool,
    pub(super) has_host_limits: bool,
    pub(super) has_job_limits: bool,
    pub(super) has_user_limits: bool,
    pub(super) has_tier_submissions: bool,
    pub(super) has_rights: bool,
}

impl QueueTable {
    /// Of tenants that are checked.
    pub(super) fn of(tenants: &BTreeMap<Name, TenantPolicy>) -> QueueTable {
        let mut table = QueueTable::default();
        for (name, tenant) in tenants {
            let (queue, limits) = (&tenant.queue, &tenant.limits);
            table.has_spend |= limits.spend.is_some();
            table.has_user_spend |= limits.user.spend.is_some();
            table.has_user_devices |= limits.user.devices.is_some();
            table.has_on_limit |= limits.on_limit.is_some();
            table.has_limits |= *limits != TenantLimits::default();
            table.has_budget |= limits.accelerator_hours.is_some();
            table.has_user_budget |= limits.user.accelerator_hours.is_some();
            table.has_user_running_jobs |= limits.user.running_jobs.is_some();
            table.has_host_limits |= limits.cpu_milli.is_some() || limits.memory_bytes.is_some();
            table.has_job_limits |= limits.job != JobLimits::default() || !tenant.tier_limits.is_empty();
            table.has_user_limits |= !tenant.user_limits.is_empty();
            table.has_tier_submissions |= !tenant.tier_submissions.is_empty();
            table.has_rights |= tenant.rights != TenantRights::default();
            table.has_user_shares |= tenant.users.is_some();
            table.has_strict |= queue.order == Some(QueueOrder::Strict);
            table.has_fair_share |= queue.preemption == Some(QueuePreemption::FairShare);
            table.has_preemption |= queue.preemption.is_some();
            let Some(nodes) = &queue.nodes else { continue };
            table.has_nodes = true;
            if queue.isolated == Some(true) {
                table.isolated.insert(name, nodes);
            }
        }
        table
    }
}

/// Checks that not too many tenants state nodes.
pub(super) fn check_partitions(tenants: &BTreeMap<Name, TenantPolicy>, found: &mut Vec<Violation>) {
    let count = tenants.values().filter(|tenant| tenant.queue.nodes.is_some()).count();
    if count > PARTITIONS_MAX {
        let text = format!("at most {PARTITIONS_MAX} tenants may state nodes, got {count}");
        found.push(Violation::new("tenants", text));
    }
}

impl Policy {
    fn queues_of<'a>(&'a self, tenant: &'a Name) -> impl Iterator<Item = (&'a Name, &'a QueueChoices)> {
        self.ancestry(tenant).filter_map(|name| Some((name, &self.tenants.get(name)?.queue)))
    }

    /// Whether jobs of a tenant may go past one another.
    #[must_use]
    pub fn queue_order(&self, tenant: &Name) -> QueueOrder {
        if !self.queues.has_strict {
            return QueueOrder::Fair;
        }
        self.queues_of(tenant).find_map(|(_, queue)| queue.order).unwrap_or_default()
    }

    /// Whether some tenant states strict order.
    #[must_use]
    pub fn has_strict_order(&self) -> bool {
        self.queues.has_strict
    }

    /// For how long a job of a tenant blocks those behind it in strict order.
    #[must_use]
    pub fn block_for_ms(&self, tenant: &Name) -> u64 {
        self.queues_of(tenant).find_map(|(_, queue)| queue.block_for_ms).unwrap_or(BLOCK_FOR_MS_USUAL)
    }

    /// Whom the jobs of a tenant may have stopped.
    #[must_use]
    pub fn queue_preemption(&self, tenant: &Name) -> QueuePreemption {
        // It is asked for every gang that could give way.
        if !self.queues.has_preemption {
            return QueuePreemption::default();
        }
        self.queues_of(tenant).find_map(|(_, queue)| queue.preemption).unwrap_or_default()
    }

    /// Whether jobs of some tenant may have those stopped that hold more than their part.
    #[must_use]
    pub fn has_fair_share_preemption(&self) -> bool {
        self.queues.has_fair_share
    }

    /// Whether some tenant runs on some nodes only.
    #[must_use]
    pub fn has_partitions(&self) -> bool {
        self.queues.has_nodes
    }

    /// The only nodes that a tenant's jobs run on, and the tenant that states them; none where it runs on all.
    #[must_use]
    pub fn partition<'a>(&'a self, tenant: &'a Name) -> Option<(&'a Name, &'a NodeRequirements)> {
        if !self.queues.has_nodes {
            return None;
        }
        self.queues_of(tenant).find_map(|(name, queue)| Some((name, queue.nodes.as_ref()?)))
    }

    /// Whether a tenant's jobs may be on a node as far as the nodes of tenants say: it is among those that the tenant states, if it
    /// states any, and not kept for others.
    #[must_use]
    pub fn opens(&self, node: &NodeDraft, tenant: &Name) -> bool {
        if !self.queues.has_nodes {
            return true;
        }
        let own = self.partition(tenant);
        if own.is_some_and(|(_, nodes)| !nodes.allows(node)) {
            return false;
        }
        let is_of = |Isolated { holder, nodes }: &Isolated| {
            own.is_some_and(|(_, own)| own == nodes) || self.ancestry(tenant).any(|above| above == holder)
        };
        self.queues.isolated.of_node(node).all(is_of)
    }

    /// Whether queues of two policies say the same of nodes.
    #[must_use]
    pub fn has_same_partitions(&self, other: &Policy) -> bool {
        if !self.queues.has_nodes && !other.queues.has_nodes {
            return true;
        }
        let is_same =
            |((name, ours), (other_name, theirs)): ((&Name, &TenantPolicy), (&Name, &TenantPolicy))| {
                let (queue, other) = (&ours.queue, &theirs.queue);
                name == other_name
                    && ours.parent == theirs.parent
                    && queue.nodes == other.nodes
                    && queue.isolated == other.isolated
            };
        self.tenants.len() == other.tenants.len() && self.tenants.iter().zip(&other.tenants).all(is_same)
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::vec;

    use super::*;
    use crate::node_requirements::NodeExpression;
    use crate::policy::PolicyDraft;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn requirements(text: &str) -> NodeRequirements {
        let expressions = NodeExpression::parse_all(text).expect("tests of labels");
        NodeRequirements { expressions, only: BTreeSet::new(), exclude: BTreeSet::new() }
    }

    fn tenant(parent: Option<&str>, queue: QueueChoices) -> TenantPolicy {
        TenantPolicy { parent: parent.map(name), queue, ..TenantPolicy::default() }
    }

    #[test]
    fn whom_jobs_may_have_stopped_is_known_where_one_tenant_alone_states_it() {
        let evens_out =
            QueueChoices { preemption: Some(QueuePreemption::FairShare), ..QueueChoices::default() };
        for (choice, of_team) in
            [(QueueChoices::default(), QueuePreemption::Reclaim), (evens_out, QueuePreemption::FairShare)]
        {
            let mut draft = PolicyDraft::default();
            draft.tenants.insert(name("lab"), tenant(None, choice));
            draft.tenants.insert(name("team"), tenant(Some("lab"), QueueChoices::default()));
            draft.tenants.insert(name("other"), tenant(None, QueueChoices::default()));
            let policy = draft.check().expect("it breaks no rule");
            assert_eq!(policy.queue_preemption(&name("team")), of_team);
            assert_eq!(policy.queue_preemption(&name("other")), QueuePreemption::Reclaim);
        }
    }

    #[test]
    fn what_a_tenant_states_of_its_queue_is_true_of_those_below_it() {
        let strict = QueueChoices {
            order: Some(QueueOrder::Strict),
            block_for_ms: Some(120_000),
            preemption: Some(QueuePreemption::None),
            ..QueueChoices::default()
        };
        let fair = QueueChoices { order: Some(QueueOrder::Fair), ..QueueChoices::default() };
        let mut draft = PolicyDraft::default();
        draft.tenants.insert(name("lab"), tenant(None, strict));
        draft.tenants.insert(name("team"), tenant(Some("lab"), fair));
        draft.tenants.insert(name("other"), tenant(None, QueueChoices::default()));
        let policy = draft.check().expect("it breaks no rule");
        assert_eq!(policy.queue_order(&name("lab")), QueueOrder::Strict);
        assert_eq!(policy.queue_order(&name("team")), QueueOrder::Fair);
        assert_eq!(policy.block_for_ms(&name("team")), 120_000);
        assert_eq!(policy.queue_preemption(&name("team")), QueuePreemption::None);
        assert_eq!(policy.queue_order(&name("other")), QueueOrder::Fair);
        assert_eq!(policy.block_for_ms(&name("unknown")), BLOCK_FOR_MS_USUAL);
        assert_eq!(policy.queue_preemption(&name("unknown")), QueuePreemption::Reclaim);
    }

    fn node(node: &str, labels: &[(&str, &str)]) -> NodeDraft {
        NodeDraft {
            name: name(node),
            region: name("eu"),
            cluster: name("c1"),
            block: name("b1"),
            rack: name("r1"),
            address: String::from(node),
            accelerators: None,
            cpu_milli: 1_000,
            memory_bytes: 1 << 30,
            labels: labels.iter().map(|(label, value)| (name(label), String::from(*value))).collect(),
            taints: BTreeSet::new(),
            pod: None,
            scratch_bytes: 0,
        }
    }

    #[test]
    fn isolated_nodes_are_found_whatever_they_are_known_by() {
        let texts = [
            "pool=big",
            "pool in (big,small)",
            "pool=big,zone=a",
            "zone!=a,pool=small",
            "fast",
            "memory-gib>512",
            "memory-gib<64",
            "!pool",
            "zone notin (a,b)",
        ];
        let mut all: Vec<NodeRequirements> = texts.into_iter().map(requirements).collect();
        let only: BTreeSet<Name> = [name("n1"), name("n3")].into();
        all.push(NodeRequirements { expressions: vec![], only: only.clone(), exclude: BTreeSet::new() });
        all.push(NodeRequirements { only, ..requirements("pool=big") });
        let exclude = [name("n2")].into();
        all.push(NodeRequirements { expressions: vec![], only: BTreeSet::new(), exclude });
        let labels: [&[(&str, &str)]; 7] = [
            &[],
            &[("pool", "big")],
            &[("pool", "small"), ("zone", "b")],
            &[("pool", "big"), ("zone", "a"), ("fast", "")],
            &[("memory-gib", "1024"), ("pool", "other")],
            &[("memory-gib", "8"), ("zone", "c")],
            &[("fast", "no"), ("pool", "small"), ("zone", "a")],
        ];
        for (number, nodes) in all.iter().enumerate() {
            let queue =
                QueueChoices { nodes: Some(nodes.clone()), isolated: Some(true), ..QueueChoices::default() };
            let mut draft = PolicyDraft::default();
            draft.tenants.insert(name("lab"), tenant(None, queue));
            draft.tenants.insert(name("other"), tenant(None, QueueChoices::default()));
            let policy = draft.check().expect("it breaks no rule");
            for node in ["n1", "n2"].into_iter().flat_map(|host| labels.map(|labels| node(host, labels))) {
                let is_kept = nodes.allows(&node);
                assert_eq!(policy.opens(&node, &name("lab")), is_kept, "{number} {node:?}");
                assert_eq!(policy.opens(&node, &name("other")), !is_kept, "{number} {node:?}");
            }
        }
    }

    #[test]
    fn isolated_nodes_are_open_to_those_who_have_them() {
        let partition = |isolated| QueueChoices {
            nodes: Some(requirements("pool=big")),
            isolated: Some(isolated),
            ..QueueChoices::default()
        };
        let mut draft = PolicyDraft::default();
        draft.tenants.insert(name("lab"), tenant(None, partition(true)));
        draft.tenants.insert(name("team"), tenant(Some("lab"), QueueChoices::default()));
        draft.tenants.insert(name("same"), tenant(None, partition(false)));
        draft.tenants.insert(name("other"), tenant(None, QueueChoices::default()));
        let policy = draft.check().expect("it breaks no rule");
        let open = |pool: &str| -> Vec<&str> {
            let node = node("n1", &[("pool", pool)]);
            let all = ["lab", "team", "same", "other", "unknown"].into_iter();
            all.filter(|tenant| policy.opens(&node, &name(tenant))).collect()
        };
        assert_eq!(open("big"), ["lab", "team", "same"]);
        assert_eq!(open("small"), ["other", "unknown"]);
    }

    #[test]
    fn what_a_queue_may_not_say_is_named() {
        let fields = |queue: QueueChoices| {
            let mut found = Vec::new();
            queue.check("queue", &mut found);
            found.into_iter().map(|violation| violation.field).collect::<Vec<String>>()
        };
        let short = QueueChoices { block_for_ms: Some(1), ..QueueChoices::default() };
        assert_eq!(fields(short), ["queue.block_for"]);
        let alone = QueueChoices { isolated: Some(true), ..QueueChoices::default() };
        assert_eq!(fields(alone), ["queue.isolated"]);
        let empty = NodeRequirements { expressions: vec![], only: BTreeSet::new(), exclude: BTreeSet::new() };
        let empty = QueueChoices { nodes: Some(empty), ..QueueChoices::default() };
        assert_eq!(fields(empty), ["queue.nodes"]);
    }
}
