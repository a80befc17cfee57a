//! What a Kubernetes cluster has, from the objects that it lists and the changes that it tells: its nodes, the pods of this
//! agent, and what the pods of others hold.
//!
//! A list that begins again, because the server has forgotten the place of a watch or the connection is lost, is collected until it
//! is whole. Then it replaces what was known: what it does not name is gone.
//!
//! **Invariant:** the sums of what others hold are those of the pods that are known; half a list changes nothing.

use super::objects::{Amount, NodeObject, PodObject};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is told of one kind of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WatchEvent<T> {
    /// A list begins.
    ListBegins,
    /// Of the list that has begun.
    Listed(T),
    /// The list is whole.
    ListEnds,
    /// It is there, or has changed.
    Changed(T),
    /// It is gone.
    Gone(T),
}

/// The objects of one kind by their keys.
#[derive(Debug)]
struct ObjectTable<T> {
    by_key: BTreeMap<String, Arc<T>>,
    /// A list that has begun.
    list: Option<BTreeMap<String, Arc<T>>>,
    /// Whether a list was whole once.
    is_whole: bool,
}

impl<T> Default for ObjectTable<T> {
    fn default() -> ObjectTable<T> {
        ObjectTable { by_key: BTreeMap::new(), list: None, is_whole: false }
    }
}

/// An object before and after a change.
type Change<T> = (Option<Arc<T>>, Option<Arc<T>>);

impl<T: PartialEq> ObjectTable<T> {
    /// What it changes.
    fn take(&mut self, key: impl Fn(&T) -> String, told: WatchEvent<T>) -> Vec<Change<T>> {
        match told {
            WatchEvent::ListBegins => {
                self.list = Some(BTreeMap::new());
                Vec::new()
            }
            WatchEvent::Listed(object) => {
                if let Some(list) = &mut self.list {
                    let key = key(&object);
                    // What has not changed is there once, and not once for each list.
                    let known = self.by_key.get(&key).filter(|known| ***known == object);
                    let object = known.cloned().unwrap_or_else(|| Arc::new(object));
                    list.insert(key, object);
                }
                Vec::new()
            }
            WatchEvent::ListEnds => {
                let Some(list) = self.list.take() else { return Vec::new() };
                self.is_whole = true;
                let mut before = std::mem::replace(&mut self.by_key, list);
                let mut changes: Vec<Change<T>> = Vec::new();
                for (key, after) in &self.by_key {
                    let earlier = before.remove(key);
                    if earlier.as_ref() != Some(after) {
                        changes.push((earlier, Some(Arc::clone(after))));
                    }
                }
                changes.extend(before.into_values().map(|gone| (Some(gone), None)));
                changes
            }
            WatchEvent::Changed(object) => {
                let (key, object) = (key(&object), Arc::new(object));
                let earlier = self.by_key.insert(key, Arc::clone(&object));
                if earlier.as_ref() == Some(&object) {
                    return Vec::new();
                }
                vec![(earlier, Some(object))]
            }
            WatchEvent::Gone(object) => {
                let earlier = self.by_key.remove(&key(&object));
                earlier.map(|gone| (Some(gone), None)).into_iter().collect()
            }
        }
    }
}

/// All that is known.
#[derive(Debug)]
pub(super) struct Observation {
    scope: String,
    nodes: ObjectTable<NodeObject>,
    pods: ObjectTable<PodObject>,
    /// What the pods of others hold, by node; no node without any.
    foreign: BTreeMap<String, Amount>,
    /// What is no capacity of nodes, by node; no node without any.
    standing: BTreeMap<String, Amount>,
}

/// What was known at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Picture {
    pub(super) nodes: BTreeMap<String, Arc<NodeObject>>,
    /// This agent's pods by name.
    pub(super) own: BTreeMap<String, Arc<PodObject>>,
    pub(super) foreign: BTreeMap<String, Amount>,
    /// What is no capacity of a node: what pods that stand there hold, and the disk that any pod of others holds.
    pub(super) standing: BTreeMap<String, Amount>,
}

/// What a pod takes of its node as somebody else's.
#[derive(Debug, Default, PartialEq, Eq)]
struct PodUse {
    foreign: Amount,
    standing: Amount,
}

fn add_to(sums: &mut BTreeMap<String, Amount>, node: &str, amount: &Amount) {
    if !amount.is_nothing() {
        sums.entry(node.to_owned()).or_default().add(amount);
    }
}

fn subtract_from(sums: &mut BTreeMap<String, Amount>, node: &str, amount: &Amount) {
    if let Some(sum) = sums.get_mut(node) {
        sum.subtract(amount);
        if sum.is_nothing() {
            sums.remove(node);
        }
    }
}

impl Observation {
    /// Nothing yet. Pods with this scope are this agent's.
    pub(super) fn new(scope: String) -> Observation {
        Observation {
            scope,
            nodes: ObjectTable::default(),
            pods: ObjectTable::default(),
            foreign: BTreeMap::new(),
            standing: BTreeMap::new(),
        }
    }

    /// Takes what is told of nodes; whether anything changes.
    pub(super) fn node(&mut self, told: WatchEvent<NodeObject>) -> bool {
        let ends_list = told == WatchEvent::ListEnds && !self.nodes.is_whole;
        !self.nodes.take(|node| node.name.clone(), told).is_empty() || ends_list
    }

    /// Takes what is told of pods; whether anything changes.
    pub(super) fn pod(&mut self, told: WatchEvent<PodObject>) -> bool {
        let ends_list = told == WatchEvent::ListEnds && !self.pods.is_whole;
        let changes = self.pods.take(|pod| format!("{}/{}", pod.namespace, pod.name), told);
        let is_news = !changes.is_empty() || ends_list;
        for (before, after) in changes {
            if let Some((node, taken)) = before.as_deref().and_then(|pod| self.taken_by(pod)) {
                subtract_from(&mut self.foreign, &node, &taken.foreign);
                subtract_from(&mut self.standing, &node, &taken.standing);
            }
            if let Some((node, taken)) = after.as_deref().and_then(|pod| self.taken_by(pod)) {
                add_to(&mut self.foreign, &node, &taken.foreign);
                add_to(&mut self.standing, &node, &taken.standing);
            }
        }
        is_news
    }

    /// What a pod takes of a node as somebody else's. What one holds that stands there is no load, or no worker could ever have the
    /// whole host; its accelerators are, for a node has as many of them as before.
    fn taken_by(&self, pod: &PodObject) -> Option<(String, PodUse)> {
        let is_foreign = pod.scope.as_deref() != Some(self.scope.as_str());
        let node = pod.node.clone().filter(|_| is_foreign && !pod.phase.is_over())?;
        let mut taken = PodUse { foreign: pod.requests.clone(), standing: Amount::default() };
        if pod.is_standing {
            taken.standing.cpu_milli = std::mem::take(&mut taken.foreign.cpu_milli);
            taken.standing.memory_bytes = std::mem::take(&mut taken.foreign.memory_bytes);
        }
        // A load has no scratch.
        taken.standing.storage_bytes = std::mem::take(&mut taken.foreign.storage_bytes);
        Some((node, taken))
    }

    /// What is known; none before both lists were whole.
    pub(super) fn picture(&self) -> Option<Picture> {
        if !self.nodes.is_whole || !self.pods.is_whole {
            return None;
        }
        let is_own = |pod: &&Arc<PodObject>| pod.scope.as_deref() == Some(self.scope.as_str());
        let own = self.pods.by_key.values().filter(is_own);
        Some(Picture {
            nodes: self.nodes.by_key.clone(),
            own: own.map(|pod| (pod.name.clone(), Arc::clone(pod))).collect(),
            foreign: self.foreign.clone(),
            standing: self.standing.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::objects::Phase;

    fn node(name: &str, is_ready: bool) -> NodeObject {
        NodeObject { name: name.to_owned(), is_ready, ..NodeObject::default() }
    }

    fn pod(name: &str, on: Option<&str>, cpu_milli: u64) -> PodObject {
        PodObject {
            namespace: "default".into(),
            name: name.to_owned(),
            node: on.map(str::to_owned),
            requests: Amount { cpu_milli, ..Amount::default() },
            phase: Phase::Running,
            ..PodObject::default()
        }
    }

    fn own(name: &str) -> PodObject {
        PodObject { scope: Some("mine".into()), ..pod(name, Some("n1"), 500) }
    }

    /// Both lists are whole and have these.
    fn observed(nodes: Vec<NodeObject>, pods: Vec<PodObject>) -> Observation {
        let mut observed = Observation::new("mine".into());
        observed.node(WatchEvent::ListBegins);
        for node in nodes {
            observed.node(WatchEvent::Listed(node));
        }
        assert!(observed.node(WatchEvent::ListEnds));
        observed.pod(WatchEvent::ListBegins);
        for pod in pods {
            observed.pod(WatchEvent::Listed(pod));
        }
        assert!(observed.picture().is_none(), "the pods are not whole");
        assert!(observed.pod(WatchEvent::ListEnds));
        observed
    }

    #[test]
    fn what_others_hold_follows_their_pods() {
        let mut observed = observed(vec![node("n1", true)], vec![pod("a", Some("n1"), 100), own("b")]);
        let cpu =
            |observed: &Observation| observed.picture().unwrap().foreign.get("n1").map(|sum| sum.cpu_milli);
        assert_eq!(cpu(&observed), Some(100), "its own pods are not among them");
        assert_eq!(observed.picture().unwrap().own.keys().collect::<Vec<_>>(), ["b"]);
        // One that waits for a node holds nothing, and one that was given one does.
        assert!(observed.pod(WatchEvent::Changed(pod("c", None, 30))));
        assert_eq!(cpu(&observed), Some(100));
        observed.pod(WatchEvent::Changed(pod("c", Some("n1"), 30)));
        assert_eq!(cpu(&observed), Some(130));
        assert!(!observed.pod(WatchEvent::Changed(pod("c", Some("n1"), 30))), "no news");
        // One that is over holds nothing, although it is still there.
        observed.pod(WatchEvent::Changed(PodObject { phase: Phase::Succeeded, ..pod("a", Some("n1"), 100) }));
        assert_eq!(cpu(&observed), Some(30));
        observed.pod(WatchEvent::Gone(pod("c", Some("n1"), 30)));
        assert_eq!(cpu(&observed), None);
        assert!(!observed.pod(WatchEvent::Gone(pod("c", Some("n1"), 30))), "it is gone already");
    }

    #[test]
    fn what_stands_on_a_node_is_no_load_of_others() {
        let mut daemon = PodObject { is_standing: true, ..pod("cni", Some("n1"), 250) };
        daemon.requests.extended = [("nvidia.com/gpu".to_owned(), 1)].into();
        let mut observed = observed(vec![node("n1", true)], vec![daemon.clone(), pod("a", Some("n1"), 100)]);
        let picture = observed.picture().unwrap();
        assert_eq!((picture.standing["n1"].cpu_milli, picture.foreign["n1"].cpu_milli), (250, 100));
        assert_eq!(picture.foreign["n1"].extended["nvidia.com/gpu"], 1, "a device of it is not free");
        observed.pod(WatchEvent::Gone(daemon));
        observed.pod(WatchEvent::Gone(pod("a", Some("n1"), 100)));
        let picture = observed.picture().unwrap();
        assert!(picture.standing.is_empty() && picture.foreign.is_empty());
    }

    #[test]
    fn the_disk_that_pods_of_others_request_is_no_capacity() {
        let on_disk = |mut pod: PodObject, bytes: u64| {
            pod.requests.storage_bytes = bytes;
            pod
        };
        let pods = vec![on_disk(pod("a", Some("n1"), 100), 7), on_disk(own("b"), 50)];
        let observed = observed(vec![node("n1", true)], pods);
        let picture = observed.picture().unwrap();
        assert_eq!(picture.standing["n1"], Amount { storage_bytes: 7, ..Amount::default() });
        assert_eq!(picture.foreign["n1"], Amount { cpu_milli: 100, ..Amount::default() });
    }

    #[test]
    fn a_second_list_is_compared_with_what_was_known() {
        let mut observed = observed(
            vec![node("n1", true), node("n2", true)],
            vec![pod("a", Some("n1"), 100), pod("b", Some("n2"), 7)],
        );
        // As after "410 Gone": half of a list changes nothing.
        assert!(!observed.pod(WatchEvent::ListBegins));
        assert!(!observed.pod(WatchEvent::Listed(pod("b", Some("n2"), 9))));
        assert_eq!(observed.picture().unwrap().foreign["n1"].cpu_milli, 100);
        assert!(observed.pod(WatchEvent::ListEnds));
        let picture = observed.picture().unwrap();
        assert!(!picture.foreign.contains_key("n1"), "what the list does not name is gone");
        assert_eq!(picture.foreign["n2"].cpu_milli, 9);
        // A list that is broken off is forgotten when the next one begins.
        observed.node(WatchEvent::ListBegins);
        observed.node(WatchEvent::Listed(node("n3", true)));
        observed.node(WatchEvent::ListBegins);
        observed.node(WatchEvent::Listed(node("n1", true)));
        observed.node(WatchEvent::Listed(node("n2", false)));
        assert!(observed.node(WatchEvent::ListEnds));
        let picture = observed.picture().unwrap();
        assert_eq!(picture.nodes.keys().collect::<Vec<_>>(), ["n1", "n2"]);
        assert!(!picture.nodes["n2"].is_ready);
        // The same list again is no news, and an end without a beginning is none.
        observed.node(WatchEvent::ListBegins);
        observed.node(WatchEvent::Listed(node("n1", true)));
        observed.node(WatchEvent::Listed(node("n2", false)));
        assert!(!observed.node(WatchEvent::ListEnds) && !observed.node(WatchEvent::ListEnds));
    }

    #[test]
    fn what_a_second_list_has_unchanged_is_not_held_twice() {
        let mut observed = observed(vec![node("n1", true), node("n2", true)], Vec::new());
        let before = observed.picture().unwrap().nodes;
        observed.node(WatchEvent::ListBegins);
        observed.node(WatchEvent::Listed(node("n1", true)));
        observed.node(WatchEvent::Listed(node("n2", false)));
        assert!(observed.node(WatchEvent::ListEnds));
        let after = observed.picture().unwrap().nodes;
        assert!(Arc::ptr_eq(&before["n1"], &after["n1"]));
        assert!(!Arc::ptr_eq(&before["n2"], &after["n2"]) && !after["n2"].is_ready);
    }

    /// Numbers that follow from a seed.
    struct Draw(u64);

    impl Draw {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % end
        }

        fn told(&mut self) -> WatchEvent<PodObject> {
            let on = Some(format!("n{}", self.below(3))).filter(|_| self.below(3) > 0);
            let mut made = pod(&format!("p{}", self.below(4)), on.as_deref(), self.below(5));
            made.scope = (self.below(3) == 0).then(|| "mine".to_owned());
            made.phase = if self.below(3) == 0 { Phase::Failed } else { Phase::Running };
            made.is_standing = self.below(3) == 0;
            match self.below(7) {
                0 => WatchEvent::ListBegins,
                1 => WatchEvent::ListEnds,
                2 | 3 => WatchEvent::Listed(made),
                4 | 5 => WatchEvent::Changed(made),
                _ => WatchEvent::Gone(made),
            }
        }
    }

    #[test]
    fn the_sums_are_those_of_the_pods_that_are_known() {
        for seed in 0..300 {
            let mut draw = Draw(seed);
            let mut observed = observed(vec![node("n0", true)], Vec::new());
            for _ in 0..60 {
                let told = draw.told();
                observed.pod(told);
                let mut sums = (BTreeMap::new(), BTreeMap::new());
                for pod in observed.pods.by_key.values() {
                    if let Some((node, taken)) = observed.taken_by(pod) {
                        add_to(&mut sums.0, &node, &taken.foreign);
                        add_to(&mut sums.1, &node, &taken.standing);
                    }
                }
                assert_eq!((&observed.foreign, &observed.standing), (&sums.0, &sums.1), "seed {seed}");
            }
        }
    }
}
