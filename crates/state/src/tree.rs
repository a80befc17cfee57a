//! A persistent ordered map and set: B+trees with shared nodes.
//!
//! A clone is one reference count and never changes afterwards. A change copies the nodes on its way that
//! others share, and changes in place those that nobody shares: between two clones every node is copied at most
//! once, however many changes there are. Entries lie side by side in wide leaves, so that a row costs little
//! beyond itself and a walk follows memory.
//!
//! **Invariant:** the same entries read the same, whatever the order of changes; only their arrangement in nodes
//! differs.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::mem;
use core::ops::{Bound, RangeBounds};

/// Entries of a leaf, and children of an inner node, at most. Wider ones cost more to copy when they are shared,
/// narrower ones more to walk: 32 is where both were cheap.
const WIDTH: usize = 32;

/// A node with fewer is put together with a neighbour.
const LEAST: usize = WIDTH / 4;

/// Levels of inner nodes of the highest tree there can be: one grows when a node with [`WIDTH`] children does,
/// which it cuts in halves, so that 16^12 entries would be needed.
const HEIGHT_MAX: usize = 12;

#[derive(Clone)]
enum Node<K, V> {
    Leaf(Leaf<K, V>),
    Inner(Inner<K, V>),
}

/// Keys apart from values: a search reads keys alone.
#[derive(Clone)]
struct Leaf<K, V> {
    keys: Vec<K>,
    values: Vec<V>,
}

/// **Invariant:** there is one key fewer than there are children, and the `n`-th key is above everything in the
/// `n`-th child and not above anything in the next.
#[derive(Clone)]
struct Inner<K, V> {
    keys: Vec<K>,
    children: Vec<Arc<Node<K, V>>>,
}

/// A persistent ordered map.
#[derive(Clone)]
pub struct Map<K, V> {
    root: Option<Arc<Node<K, V>>>,
    size: usize,
}

/// What an insertion has split off: the key between, and what goes behind it.
type Split<K, V> = Option<(K, Arc<Node<K, V>>)>;

impl<K, V> Default for Map<K, V> {
    fn default() -> Map<K, V> {
        Map { root: None, size: 0 }
    }
}

impl<K: Ord, V> Map<K, V> {
    /// How many entries.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        self.root.as_deref()?.get(key)
    }

    /// Whether there is such a key.
    #[must_use]
    pub fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// The entry with the least key.
    #[must_use]
    pub fn first(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }

    /// The entry with the greatest key.
    #[must_use]
    pub fn last(&self) -> Option<(&K, &V)> {
        self.iter().next_back()
    }

    /// The first entry that is not below a key, or with `behind` the first above it: what a range would begin with, for less.
    #[must_use]
    pub fn first_from(&self, key: &K, behind: bool) -> Option<(&K, &V)> {
        let mut node = self.root.as_deref()?;
        // The nodes behind the way down, the nearest of them.
        let mut next: Option<&Node<K, V>> = None;
        let leaf = loop {
            match node {
                Node::Inner(inner) => {
                    let at = inner.place(key);
                    next = inner.children.get(at + 1).map(|child| &**child).or(next);
                    node = &inner.children[at];
                }
                Node::Leaf(leaf) => break leaf,
            }
        };
        let at = leaf.keys.partition_point(|known| if behind { known <= key } else { known < key });
        if let Some(found) = leaf.keys.get(at).zip(leaf.values.get(at)) {
            return Some(found);
        }
        let mut node = next?;
        let first = loop {
            match node {
                Node::Inner(inner) => node = &inner.children[0],
                Node::Leaf(leaf) => break leaf.keys.first().zip(leaf.values.first()),
            }
        };
        // A leaf from which all was removed may stand until it is changed again.
        let from = if behind { Bound::Excluded(key) } else { Bound::Included(key) };
        first.or_else(|| self.range((from, Bound::<&K>::Unbounded)).next())
    }

    /// Entries, by key.
    #[must_use]
    pub fn iter(&self) -> Range<'_, K, V, core::ops::RangeFull> {
        self.range(..)
    }

    /// Keys, ascending.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// Values, by key.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// Entries of a range, by key. One that ends before it begins is empty.
    pub fn range<R: RangeBounds<K>>(&self, bounds: R) -> Range<'_, K, V, R> {
        Range { root: self.root.as_deref(), bounds, front: None, back: None }
    }
}

impl<K: Ord + Clone, V: Clone> Map<K, V> {
    /// Adds an entry, or gives the key another value.
    pub fn insert(&mut self, key: K, value: V) {
        self.replace(key, value);
    }

    /// The same; the value that the key had.
    pub(crate) fn replace(&mut self, key: K, value: V) -> Option<V> {
        let Some(root) = &mut self.root else {
            self.root = Some(Arc::new(Node::Leaf(Leaf { keys: [key].into(), values: [value].into() })));
            self.size = 1;
            return None;
        };
        let (old, split) = Node::insert(root, key, value);
        self.size += usize::from(old.is_none());
        if let Some((between, right)) = split {
            let left = Arc::clone(root);
            *root = Arc::new(Node::Inner(Inner { keys: [between].into(), children: [left, right].into() }));
        }
        old
    }

    /// Removes a key; whether it was there.
    pub fn remove(&mut self, key: &K) -> bool {
        self.take(key).is_some()
    }

    /// Removes a key; what it had.
    pub(crate) fn take(&mut self, key: &K) -> Option<V> {
        let root = self.root.as_mut()?;
        let taken = Node::take(root, key, false)?;
        self.size -= 1;
        while let Node::Inner(inner) = &**root {
            if inner.children.len() > 1 {
                break;
            }
            let only = Arc::clone(&inner.children[0]);
            *root = only;
        }
        if self.size == 0 {
            self.root = None;
        }
        Some(taken)
    }

    /// The value of a key, to be changed.
    #[must_use]
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let mut node = self.root.as_mut()?;
        let mut is_there = false;
        loop {
            if !is_there && is_shared(node) {
                // Nothing is copied for a key that is not there.
                node.get(key)?;
                is_there = true;
            }
            match Arc::make_mut(node) {
                Node::Inner(inner) => {
                    let at = inner.place(key);
                    node = &mut inner.children[at];
                }
                Node::Leaf(leaf) => {
                    return leaf.keys.binary_search(key).ok().map(|at| &mut leaf.values[at]);
                }
            }
        }
    }
}

/// Whether a change of a node would copy it. Nobody else comes to share one that is about to be changed.
fn is_shared<T>(node: &Arc<T>) -> bool {
    Arc::strong_count(node) > 1
}

impl<K: Ord, V> Node<K, V> {
    fn get(&self, key: &K) -> Option<&V> {
        let mut node = self;
        loop {
            match node {
                Node::Inner(inner) => node = &inner.children[inner.place(key)],
                Node::Leaf(leaf) => return leaf.keys.binary_search(key).ok().map(|at| &leaf.values[at]),
            }
        }
    }
}

impl<K: Ord, V> Inner<K, V> {
    /// The child that holds the key, if any does.
    fn place(&self, key: &K) -> usize {
        self.keys.partition_point(|between| between <= key)
    }
}

impl<K, V> Node<K, V> {
    fn weight(&self) -> usize {
        match self {
            Node::Leaf(leaf) => leaf.keys.len(),
            Node::Inner(inner) => inner.children.len(),
        }
    }
}

/// Adds to a part of a node, which never takes more memory than a full one.
fn put<T>(part: &mut Vec<T>, at: usize, item: T) {
    if part.len() == part.capacity() {
        let additional = (2 * part.len()).clamp(4, WIDTH).saturating_sub(part.len());
        part.reserve_exact(additional);
    }
    part.insert(at, item);
}

impl<K: Ord + Clone, V: Clone> Node<K, V> {
    /// The value that the key had, and what was split off.
    fn insert(this: &mut Arc<Node<K, V>>, key: K, value: V) -> (Option<V>, Split<K, V>) {
        match Arc::make_mut(this) {
            Node::Leaf(leaf) => leaf.insert(key, value),
            Node::Inner(inner) => {
                let at = inner.place(&key);
                let (old, split) = Node::insert(&mut inner.children[at], key, value);
                (old, split.and_then(|(between, right)| inner.adopt(at, between, right)))
            }
        }
    }

    /// Removes a key; what it had. `is_there` says that it is known to be there.
    fn take(this: &mut Arc<Node<K, V>>, key: &K, mut is_there: bool) -> Option<V> {
        if !is_there && is_shared(this) {
            // Nothing is copied for a key that is not there.
            this.get(key)?;
            is_there = true;
        }
        match Arc::make_mut(this) {
            Node::Leaf(leaf) => {
                let at = leaf.keys.binary_search(key).ok()?;
                leaf.keys.remove(at);
                Some(leaf.values.remove(at))
            }
            Node::Inner(inner) => {
                let at = inner.place(key);
                let taken = Node::take(&mut inner.children[at], key, is_there)?;
                if inner.children[at].weight() < LEAST && inner.children.len() > 1 {
                    inner.join(at.saturating_sub(1));
                }
                Some(taken)
            }
        }
    }
}

impl<K: Ord + Clone, V: Clone> Leaf<K, V> {
    fn insert(&mut self, key: K, value: V) -> (Option<V>, Split<K, V>) {
        let at = match self.keys.binary_search(&key) {
            Ok(at) => return (Some(mem::replace(&mut self.values[at], value)), None),
            Err(at) => at,
        };
        if self.keys.len() < WIDTH {
            self.put(at, key, value);
            return (None, None);
        }
        // What grows in order leaves full leaves behind.
        let right = if at == WIDTH {
            Leaf { keys: [key].into(), values: [value].into() }
        } else {
            let mut right = self.split(WIDTH / 2);
            match at.checked_sub(WIDTH / 2) {
                Some(at) if at > 0 => right.put(at, key, value),
                _ => self.put(at, key, value),
            }
            right
        };
        let between = right.keys[0].clone();
        (None, Some((between, Arc::new(Node::Leaf(right)))))
    }

    fn put(&mut self, at: usize, key: K, value: V) {
        put(&mut self.keys, at, key);
        put(&mut self.values, at, value);
    }

    fn split(&mut self, at: usize) -> Leaf<K, V> {
        Leaf { keys: self.keys.split_off(at), values: self.values.split_off(at) }
    }
}

impl<K: Ord + Clone, V: Clone> Inner<K, V> {
    /// Takes in what was split off its `at`-th child; what is split off itself then.
    fn adopt(&mut self, at: usize, between: K, right: Arc<Node<K, V>>) -> Split<K, V> {
        if self.children.len() < WIDTH {
            self.put(at, between, right);
            return None;
        }
        if at + 1 == WIDTH {
            let last = Inner { keys: Vec::new(), children: [right].into() };
            return Some((between, Arc::new(Node::Inner(last))));
        }
        let (above, mut behind) = self.split(WIDTH / 2);
        match at.checked_sub(WIDTH / 2) {
            Some(at) => behind.put(at, between, right),
            None => self.put(at, between, right),
        }
        Some((above, Arc::new(Node::Inner(behind))))
    }

    fn put(&mut self, at: usize, between: K, right: Arc<Node<K, V>>) {
        put(&mut self.keys, at, between);
        put(&mut self.children, at + 1, right);
    }

    fn split(&mut self, at: usize) -> (K, Inner<K, V>) {
        let children = self.children.split_off(at);
        let keys = self.keys.split_off(at);
        let between = self.keys.pop().expect("there is a key between two children");
        (between, Inner { keys, children })
    }

    /// Puts a child and the next one together, and cuts them in halves again when that is too wide.
    fn join(&mut self, left: usize) {
        let right = Arc::unwrap_or_clone(self.children.remove(left + 1));
        let between = self.keys.remove(left);
        let again = match (Arc::make_mut(&mut self.children[left]), right) {
            (Node::Leaf(left), Node::Leaf(mut right)) => {
                left.keys.append(&mut right.keys);
                left.values.append(&mut right.values);
                (left.keys.len() > WIDTH).then(|| {
                    let right = left.split(left.keys.len() / 2);
                    (right.keys[0].clone(), Node::Leaf(right))
                })
            }
            (Node::Inner(left), Node::Inner(mut right)) => {
                left.keys.push(between);
                left.keys.append(&mut right.keys);
                left.children.append(&mut right.children);
                (left.children.len() > WIDTH).then(|| {
                    let (between, right) = left.split(left.children.len() / 2);
                    (between, Node::Inner(right))
                })
            }
            _ => unreachable!("children of one node are on one level"),
        };
        if let Some((between, right)) = again {
            self.keys.insert(left, between);
            self.children.insert(left + 1, Arc::new(right));
        }
    }
}

/// Builds a map from ascending keys.
pub(crate) struct Builder<K, V> {
    leaf: Leaf<K, V>,
    /// Full leaves, each behind its least key.
    leaves: Vec<(K, Arc<Node<K, V>>)>,
    size: usize,
}

impl<K, V> Default for Builder<K, V> {
    fn default() -> Builder<K, V> {
        Builder { leaf: Leaf { keys: Vec::new(), values: Vec::new() }, leaves: Vec::new(), size: 0 }
    }
}

impl<K: Ord + Clone, V: Clone> Builder<K, V> {
    /// The greatest key so far.
    pub(crate) fn last(&self) -> Option<&K> {
        // A leaf is put away only when there is a key for the next.
        self.leaf.keys.last()
    }

    /// Adds the next entry.
    ///
    /// # Panics
    /// When its key is not above the last.
    pub(crate) fn push(&mut self, key: K, value: V) {
        assert!(self.last().is_none_or(|last| *last < key), "a map is built from ascending keys");
        if self.leaf.keys.len() == WIDTH {
            self.close();
        }
        if self.leaf.keys.capacity() == 0 {
            self.leaf.keys.reserve_exact(WIDTH);
            self.leaf.values.reserve_exact(WIDTH);
        }
        self.leaf.keys.push(key);
        self.leaf.values.push(value);
        self.size += 1;
    }

    fn close(&mut self) {
        self.leaf.keys.shrink_to_fit();
        self.leaf.values.shrink_to_fit();
        let leaf = mem::replace(&mut self.leaf, Leaf { keys: Vec::new(), values: Vec::new() });
        if let Some(least) = leaf.keys.first().cloned() {
            self.leaves.push((least, Arc::new(Node::Leaf(leaf))));
        }
    }

    /// The map.
    pub(crate) fn finish(mut self) -> Map<K, V> {
        self.close();
        let mut level = self.leaves;
        while level.len() > 1 {
            let mut above = Vec::with_capacity(level.len().div_ceil(WIDTH));
            let mut rest = level.into_iter().peekable();
            while let Some((least, first)) = rest.next() {
                let mut inner =
                    Inner { keys: Vec::with_capacity(WIDTH - 1), children: Vec::with_capacity(WIDTH) };
                inner.children.push(first);
                while inner.children.len() < WIDTH
                    && let Some((key, child)) = rest.next()
                {
                    inner.keys.push(key);
                    inner.children.push(child);
                }
                above.push((least, Arc::new(Node::Inner(inner))));
            }
            level = above;
        }
        Map { root: level.pop().map(|(_, root)| root), size: self.size }
    }
}

/// A place between entries: the nodes on the way, each with the child that was taken, and a place in a leaf.
struct Cursor<'a, K, V> {
    way: [Option<(&'a Inner<K, V>, usize)>; HEIGHT_MAX],
    height: usize,
    leaf: &'a Leaf<K, V>,
    at: usize,
}

impl<'a, K, V> Cursor<'a, K, V> {
    /// Goes down from a node; each level says which child, the leaf which place.
    fn descend(
        root: &'a Node<K, V>,
        child: impl Fn(&Inner<K, V>) -> usize,
        place: impl Fn(&Leaf<K, V>) -> usize,
    ) -> Cursor<'a, K, V> {
        let (mut way, mut height, mut node) = ([None; HEIGHT_MAX], 0, root);
        loop {
            match node {
                Node::Inner(inner) => {
                    let at = child(inner);
                    way[height] = Some((inner, at));
                    height += 1;
                    node = &inner.children[at];
                }
                Node::Leaf(leaf) => return Cursor { way, height, leaf, at: place(leaf) },
            }
        }
    }

    /// To the next leaf's begin, or the previous one's end; whether there is one.
    fn step(&mut self, forward: bool) -> bool {
        for level in (0..self.height).rev() {
            let Some((inner, at)) = self.way[level] else { return false };
            let next = if forward { Some(at + 1) } else { at.checked_sub(1) };
            let Some(next) = next.filter(|next| *next < inner.children.len()) else { continue };
            self.way[level] = Some((inner, next));
            let below = Cursor::descend(
                &inner.children[next],
                |inner| if forward { 0 } else { inner.children.len() - 1 },
                |leaf| if forward { 0 } else { leaf.keys.len() },
            );
            self.way[level + 1..self.height].copy_from_slice(&below.way[..below.height]);
            (self.leaf, self.at) = (below.leaf, below.at);
            return true;
        }
        false
    }
}

/// Entries of a range, from both ends.
pub struct Range<'a, K, V, R> {
    root: Option<&'a Node<K, V>>,
    bounds: R,
    front: Option<Cursor<'a, K, V>>,
    back: Option<Cursor<'a, K, V>>,
}

impl<'a, K: Ord, V, R: RangeBounds<K>> Range<'a, K, V, R> {
    /// Whether both ends are at one place. Each end is compared before and after it moves to another leaf, so
    /// that they cannot pass each other.
    fn have_met(&self) -> bool {
        let (Some(front), Some(back)) = (&self.front, &self.back) else { return false };
        core::ptr::eq(front.leaf, back.leaf) && front.at >= back.at
    }

    fn front(&mut self) -> Option<&mut Cursor<'a, K, V>> {
        if self.front.is_none() {
            let start = self.bounds.start_bound();
            self.front = Some(Cursor::descend(
                self.root?,
                |inner| match start {
                    Bound::Unbounded => 0,
                    Bound::Included(key) | Bound::Excluded(key) => inner.place(key),
                },
                |leaf| match start {
                    Bound::Unbounded => 0,
                    Bound::Included(key) => leaf.keys.partition_point(|k| k < key),
                    Bound::Excluded(key) => leaf.keys.partition_point(|k| k <= key),
                },
            ));
        }
        self.front.as_mut()
    }

    fn back(&mut self) -> Option<&mut Cursor<'a, K, V>> {
        if self.back.is_none() {
            let end = self.bounds.end_bound();
            self.back = Some(Cursor::descend(
                self.root?,
                |inner| match end {
                    Bound::Unbounded => inner.children.len() - 1,
                    Bound::Included(key) | Bound::Excluded(key) => inner.place(key),
                },
                |leaf| match end {
                    Bound::Unbounded => leaf.keys.len(),
                    Bound::Included(key) => leaf.keys.partition_point(|k| k <= key),
                    Bound::Excluded(key) => leaf.keys.partition_point(|k| k < key),
                },
            ));
        }
        self.back.as_mut()
    }
}

impl<'a, K: Ord, V, R: RangeBounds<K>> Iterator for Range<'a, K, V, R> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<(&'a K, &'a V)> {
        let next = self.step_front();
        if next.is_none() {
            self.finish();
        }
        next
    }
}

impl<'a, K: Ord, V, R: RangeBounds<K>> Range<'a, K, V, R> {
    /// One end has found that nothing is left, perhaps in a leaf beyond the other: both have come to the end.
    fn finish(&mut self) {
        (self.root, self.front, self.back) = (None, None, None);
    }

    fn step_front(&mut self) -> Option<(&'a K, &'a V)> {
        self.front()?;
        if self.have_met() {
            return None;
        }
        let front = self.front()?;
        while front.at == front.leaf.keys.len() {
            if !front.step(true) {
                return None;
            }
        }
        if self.have_met() {
            return None;
        }
        let front = self.front.as_mut()?;
        let (leaf, at) = (front.leaf, front.at);
        let (key, value) = (&leaf.keys[at], &leaf.values[at]);
        let is_within = match self.bounds.end_bound() {
            Bound::Unbounded => true,
            Bound::Included(end) => key <= end,
            Bound::Excluded(end) => key < end,
        };
        is_within.then(|| {
            front.at += 1;
            (key, value)
        })
    }

    fn step_back(&mut self) -> Option<(&'a K, &'a V)> {
        self.back()?;
        if self.have_met() {
            return None;
        }
        let back = self.back()?;
        while back.at == 0 {
            if !back.step(false) {
                return None;
            }
        }
        if self.have_met() {
            return None;
        }
        let back = self.back.as_mut()?;
        let (leaf, at) = (back.leaf, back.at - 1);
        let (key, value) = (&leaf.keys[at], &leaf.values[at]);
        let is_within = match self.bounds.start_bound() {
            Bound::Unbounded => true,
            Bound::Included(start) => key >= start,
            Bound::Excluded(start) => key > start,
        };
        is_within.then(|| {
            back.at -= 1;
            (key, value)
        })
    }
}

impl<'a, K: Ord, V, R: RangeBounds<K>> DoubleEndedIterator for Range<'a, K, V, R> {
    fn next_back(&mut self) -> Option<(&'a K, &'a V)> {
        let next = self.step_back();
        if next.is_none() {
            self.finish();
        }
        next
    }
}

impl<'a, K: Ord, V> IntoIterator for &'a Map<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Range<'a, K, V, core::ops::RangeFull>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<K: Ord, V: PartialEq> PartialEq for Map<K, V> {
    fn eq(&self, other: &Map<K, V>) -> bool {
        self.size == other.size && self.iter().eq(other.iter())
    }
}

impl<K: Ord, V: Eq> Eq for Map<K, V> {}

impl<K: Ord + fmt::Debug, V: fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// A persistent ordered set.
#[derive(Clone)]
pub struct Set<K>(Map<K, ()>);

impl<K> Default for Set<K> {
    fn default() -> Set<K> {
        Set(Map::default())
    }
}

impl<K: Ord> Set<K> {
    /// How many members.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.size()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is a member.
    #[must_use]
    pub fn contains(&self, member: &K) -> bool {
        self.0.contains_key(member)
    }

    /// The least member.
    #[must_use]
    pub fn first(&self) -> Option<&K> {
        self.0.first().map(|(member, ())| member)
    }

    /// The greatest member.
    #[must_use]
    pub fn last(&self) -> Option<&K> {
        self.0.last().map(|(member, ())| member)
    }

    /// The first member that is not below another, or with `behind` the first above it.
    #[must_use]
    pub fn first_from(&self, member: &K, behind: bool) -> Option<&K> {
        self.0.first_from(member, behind).map(|(member, ())| member)
    }

    /// Members, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.0.keys()
    }

    /// Members of a range, ascending.
    pub fn range<R: RangeBounds<K>>(&self, bounds: R) -> impl DoubleEndedIterator<Item = &K> {
        self.0.range(bounds).map(|(member, ())| member)
    }
}

impl<K: Ord + Clone> Set<K> {
    /// The set of one.
    pub(crate) fn of(member: K) -> Set<K> {
        let mut set = Set::default();
        set.insert(member);
        set
    }

    /// Adds a member.
    pub fn insert(&mut self, member: K) {
        self.0.insert(member, ());
    }

    /// Removes a member; whether it was one.
    pub fn remove(&mut self, member: &K) -> bool {
        self.0.remove(member)
    }
}

impl<K: Ord> PartialEq for Set<K> {
    fn eq(&self, other: &Set<K>) -> bool {
        self.0 == other.0
    }
}

impl<K: Ord> Eq for Set<K> {}

impl<K: Ord + fmt::Debug> fmt::Debug for Set<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
