//! Which device gets which rank, so that groups that talk most stay nearest together.
//!
//! A fleet is a tree: hosts in racks, racks in blocks, whatever the places say. Groups are formed from the innermost
//! dimension outwards, and each as low in the tree as it goes: first inside hosts, then from what is left inside
//! racks, and so on. So no group crosses a level that it could have stayed in. On small gangs pairs are exchanged
//! afterwards as long as the predicted cost falls.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use crate::accelerator::{Accelerator, Links};
use crate::error::PlanError;
use crate::layout::{DEVICES_MAX, Layout, Sharding, Training};
use crate::memory;
use crate::model::Model;

/// A host, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Devices of it that belong to the gang.
    pub devices: u64,
    /// Domains that it is in, the widest first: block, rack, domain of fast links.
    pub place: Vec<String>,
}

/// How many bytes each device sends in a step, by the group that it sends to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Traffic {
    /// To its tensor parallel group.
    pub tensor_bytes: f64,
    /// To its context parallel group.
    pub context_bytes: f64,
    /// To its data parallel group.
    pub data_bytes: f64,
    /// To its neighbours in the pipeline.
    pub pipeline_bytes: f64,
}

/// What a layout sends.
#[must_use]
pub fn traffic(model: &Model, layout: &Layout, training: &Training) -> Traffic {
    let unit = training.precision.activation_bytes();
    let (parameter, gradient, _) = training.precision.bytes();
    let micro_batches = layout.micro_batches(training.batch) as f64;
    let layers = model.layers as f64 / layout.pipeline as f64;
    let tokens = (layout.micro_batch * training.sequence) as f64 / layout.context as f64;
    let state = tokens * model.hidden as f64 * unit;
    let ring = |size: u64| (size - 1) as f64 / size as f64;
    let (common, experts) = memory::Held::new(model, layout, training).parameters(layout, 0);
    let second = if layout.sharding == Sharding::None { gradient } else { parameter };
    let keys = model.cache_width() as f64 / layout.tensor as f64;
    let parts = if layout.sequence_parallel { layout.tensor as f64 } else { 1.0 };
    Traffic {
        tensor_bytes: 8.0 * ring(layout.tensor) * state * layers * micro_batches,
        context_bytes: 3.0 * tokens * keys * unit * (layout.context - 1) as f64 * layers * micro_batches,
        data_bytes: ring(layout.data * layout.context) * (common + experts) * (gradient + second),
        pipeline_bytes: if layout.pipeline > 1 { 2.0 * state * micro_batches / parts } else { 0.0 },
    }
}

/// The order of dimensions in the numbering of ranks, the fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Tensor, context, data, pipeline: what Megatron does by itself.
    DataFirst,
    /// Tensor, context, pipeline, data.
    PipelineFirst,
}

impl Order {
    /// As Megatron names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Order::DataFirst => "tp-cp-ep-dp-pp",
            Order::PipelineFirst => "tp-cp-ep-pp-dp",
        }
    }
}

/// One rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rank {
    /// Its number.
    pub rank: u64,
    /// Its host.
    pub host: String,
    /// Its device on the host.
    pub device: u64,
    /// Position in its tensor parallel group.
    pub tensor: u64,
    /// Position in its context parallel group.
    pub context: u64,
    /// Position in its data parallel group.
    pub data: u64,
    /// Its stage.
    pub pipeline: u64,
}

/// Ranks of a gang.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankMap {
    /// Every rank, in order.
    pub ranks: Vec<Rank>,
    /// The order of dimensions.
    pub order: Order,
    /// Predicted time that groups take to send what they send, in microseconds: what the order was chosen by.
    pub communication_us: f64,
    /// The widest level that a group of each dimension crosses: tensor, context, data, pipeline; 0 is one host, each
    /// more is one level of places.
    pub widest: [usize; 4],
    /// Data parallel groups stay on one rail: the same device of each host.
    pub rail_aligned: bool,
    /// Variables for every rank.
    pub environment: Vec<(String, String)>,
    /// Hosts whose devices share memory over fast links and need one IMEX domain each; empty if hosts suffice.
    pub imex_domains: Vec<Vec<String>>,
}

/// A device: the index of its host in the list, and its number on it.
type Device = (usize, u64);

/// Devices that stay together from here on, and the path of the domain that all of them are in.
#[derive(Clone, Debug)]
struct Unit {
    devices: Vec<Device>,
    home: Vec<usize>,
}

fn common(a: &[usize], b: &[usize]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Puts units together by `size`, each as low in the tree as it goes.
fn combine(units: Vec<Unit>, size: usize, depth: usize) -> Vec<Unit> {
    if size == 1 {
        return units;
    }
    let mut waiting = units;
    let mut made = Vec::new();
    for level in (0..=depth).rev() {
        let mut by_domain: BTreeMap<Vec<usize>, Vec<Unit>> = BTreeMap::new();
        let mut rest = Vec::new();
        for unit in waiting {
            match unit.home.get(..level) {
                Some(domain) => by_domain.entry(domain.to_vec()).or_default().push(unit),
                None => rest.push(unit),
            }
        }
        for (domain, mut units) in by_domain {
            units.sort_by(|a, b| (&a.home, &a.devices).cmp(&(&b.home, &b.devices)));
            let whole = units.len() / size * size;
            rest.extend(units.split_off(whole));
            for group in units.chunks(size) {
                let first = &group[0].home;
                let shared = group.iter().map(|unit| common(first, &unit.home)).min().unwrap_or(0);
                let devices = group.iter().flat_map(|unit| unit.devices.iter().copied()).collect();
                made.push(Unit { devices, home: first[..shared.max(domain.len())].to_vec() });
            }
        }
        waiting = rest;
    }
    made.sort_by(|a, b| a.devices.cmp(&b.devices));
    made.append(&mut waiting);
    made
}

/// Paths of hosts in the tree, as numbers, widest domain first and the host itself last.
fn paths(hosts: &[Host]) -> Vec<Vec<usize>> {
    let mut numbers: BTreeMap<Vec<&str>, usize> = BTreeMap::new();
    let mut paths = Vec::new();
    for (at, host) in hosts.iter().enumerate() {
        let mut path = Vec::new();
        for level in 1..=host.place.len() {
            let key: Vec<&str> = host.place[..level].iter().map(String::as_str).collect();
            let next = numbers.len();
            path.push(*numbers.entry(key).or_insert(next));
        }
        path.push(at);
        paths.push(path);
    }
    paths
}

/// Most devices of a gang whose pairs are exchanged: the work grows with the cube of it.
const EXCHANGED_MAX: usize = 32;

struct Mapper<'a> {
    paths: Vec<Vec<usize>>,
    depth: usize,
    /// What crossing each level costs, in microseconds a byte: by the length of the path that is shared.
    us_per_byte: Vec<f64>,
    layout: &'a Layout,
    traffic: Traffic,
}

impl Mapper<'_> {
    fn level(&self, devices: impl Iterator<Item = Device>) -> usize {
        let mut devices = devices.peekable();
        let Some(first) = devices.peek().copied() else { return self.depth };
        devices.map(|device| common(&self.paths[first.0], &self.paths[device.0])).min().unwrap_or(self.depth)
    }

    /// Sizes and strides of dimensions: tensor, context, data, pipeline.
    fn dimensions(&self, order: Order) -> [(usize, usize); 4] {
        let Layout { tensor, context, data, pipeline, .. } = *self.layout;
        let [t, c, d, p] = [tensor, context, data, pipeline].map(|size| size as usize);
        match order {
            Order::DataFirst => [(t, 1), (c, t), (d, t * c), (p, t * c * d)],
            Order::PipelineFirst => [(t, 1), (c, t), (d, t * c * p), (p, t * c)],
        }
    }

    fn groups(total: usize, size: usize, stride: usize) -> impl Iterator<Item = impl Iterator<Item = usize>> {
        (0..total)
            .filter(move |at| (at / stride).is_multiple_of(size))
            .map(move |first| (0..size).map(move |at| first + at * stride))
    }

    /// The level that the widest group of each dimension crosses, as a length of shared path.
    fn widest(&self, devices: &[Device], order: Order) -> [usize; 4] {
        self.dimensions(order).map(|(size, stride)| {
            Mapper::groups(devices.len(), size, stride)
                .map(|group| self.level(group.map(|at| devices[at])))
                .min()
                .unwrap_or(self.depth)
        })
    }

    /// Time that the slowest group of each dimension takes; of a pipeline, every step from stage to stage counts.
    fn cost(&self, devices: &[Device], order: Order) -> f64 {
        let [tensor, context, data, pipeline] = self.dimensions(order);
        let traffic = &self.traffic;
        let mut cost = 0.0;
        for ((size, stride), bytes) in
            [(tensor, traffic.tensor_bytes), (context, traffic.context_bytes), (data, traffic.data_bytes)]
        {
            if size > 1 {
                let slowest = Mapper::groups(devices.len(), size, stride)
                    .map(|group| self.us_per_byte[self.level(group.map(|at| devices[at]))])
                    .fold(0.0, f64::max);
                cost += slowest * bytes;
            }
        }
        let (size, stride) = pipeline;
        if size > 1 {
            let slowest = Mapper::groups(devices.len(), size, stride)
                .map(|group| {
                    let group: Vec<Device> = group.map(|at| devices[at]).collect();
                    let hop = |pair: &[Device]| self.us_per_byte[self.level(pair.iter().copied())];
                    group.windows(2).map(hop).sum::<f64>() / (size - 1) as f64
                })
                .fold(0.0, f64::max);
            cost += slowest * traffic.pipeline_bytes;
        }
        cost
    }

    /// Devices by rank, when groups are formed dimension by dimension in this sequence.
    fn arrange(&self, units: &[Unit], dimensions: [(usize, usize); 4]) -> Vec<Device> {
        let mut units = units.to_vec();
        for (size, _) in dimensions {
            units = combine(units, size, self.depth);
        }
        let formed = units.into_iter().flat_map(|unit| unit.devices);
        let mut by_rank: Vec<(usize, Device)> = formed
            .enumerate()
            .map(|(at, device)| {
                let (mut rest, mut rank) = (at, 0);
                for (size, stride) in dimensions {
                    rank += rest % size * stride;
                    rest /= size;
                }
                (rank, device)
            })
            .collect();
        by_rank.sort_unstable();
        by_rank.into_iter().map(|(_, device)| device).collect()
    }

    /// The innermost dimension first; for a small gang also the best of all other sequences, for where an inner group fits
    /// no host, an outer one may.
    fn starts(&self, units: &[Unit], order: Order) -> Vec<Vec<Device>> {
        let mut dimensions = self.dimensions(order);
        dimensions.sort_unstable_by_key(|(_, stride)| *stride);
        let mut starts = vec![self.arrange(units, dimensions)];
        if units.len() <= EXCHANGED_MAX {
            let others = sequences(dimensions).into_iter().map(|sequence| {
                let devices = self.arrange(units, sequence);
                (self.cost(&devices, order), devices)
            });
            starts.extend(others.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, devices)| devices));
        }
        starts
    }

    /// The cheapest order of dimensions and of devices that is found: its cost, and devices by rank.
    fn cheapest(&self, hosts: &[Host]) -> Option<(f64, Order, Vec<Device>)> {
        let units: Vec<Unit> = hosts
            .iter()
            .enumerate()
            .flat_map(|(at, host)| (0..host.devices).map(move |device| (at, device)))
            .map(|device| Unit { devices: vec![device], home: self.paths[device.0].clone() })
            .collect();
        // Experts are spread over consecutive ranks of a stage.
        let orders = match self.layout.expert {
            1 => &[Order::DataFirst, Order::PipelineFirst][..],
            _ => &[Order::DataFirst],
        };
        let mut best: Option<(f64, Order, Vec<Device>)> = None;
        for order in orders {
            for mut devices in self.starts(&units, *order) {
                let cost = self.improve(&mut devices, *order);
                if best.as_ref().is_none_or(|(least, ..)| cost < least * (1.0 - 1e-9)) {
                    best = Some((cost, *order, devices));
                }
            }
        }
        best
    }

    /// Every data parallel group is on the same device of each of its hosts.
    fn is_rail_aligned(&self, devices: &[Device], order: Order) -> bool {
        let (size, stride) = self.dimensions(order)[2];
        Mapper::groups(devices.len(), size, stride).all(|mut group| {
            let Some(first) = group.next() else { return true };
            group.all(|at| devices[at].1 == devices[first].1 || devices[at].0 == devices[first].0)
        })
    }

    fn ranks(&self, devices: &[Device], order: Order, hosts: &[Host]) -> Vec<Rank> {
        let dimensions = self.dimensions(order);
        let ranks = devices.iter().enumerate().map(|(rank, (host, device))| {
            let position = |(size, stride): (usize, usize)| (rank / stride % size) as u64;
            Rank {
                rank: rank as u64,
                host: hosts[*host].name.clone(),
                device: *device,
                tensor: position(dimensions[0]),
                context: position(dimensions[1]),
                data: position(dimensions[2]),
                pipeline: position(dimensions[3]),
            }
        });
        ranks.collect()
    }

    /// Exchanges pairs while that helps.
    fn improve(&self, devices: &mut [Device], order: Order) -> f64 {
        let mut cost = self.cost(devices, order);
        if devices.len() > EXCHANGED_MAX {
            return cost;
        }
        let mut improved = true;
        while improved {
            improved = false;
            for a in 0..devices.len() {
                for b in a + 1..devices.len() {
                    if devices[a].0 == devices[b].0 {
                        continue;
                    }
                    devices.swap(a, b);
                    let tried = self.cost(devices, order);
                    if tried < cost * (1.0 - 1e-9) {
                        (cost, improved) = (tried, true);
                    } else {
                        devices.swap(a, b);
                    }
                }
            }
        }
        cost
    }
}

/// Every sequence of four dimensions.
fn sequences(dimensions: [(usize, usize); 4]) -> Vec<[(usize, usize); 4]> {
    let picked = |mut code: usize| {
        let mut left = dimensions.to_vec();
        dimensions.map(|_| {
            let at = code % left.len();
            code /= left.len();
            left.remove(at)
        })
    };
    (0..24).map(picked).collect()
}

/// What the longest level of places above fast links loses against the one below: an oversubscribed tier.
const TIER_SHARE: f64 = 0.8;

/// Microseconds a byte by the length of the path that a group shares: a whole path is one host.
fn us_per_byte(accelerator: &Accelerator, hosts: &[Host], depth: usize) -> Vec<f64> {
    let (link_gbs, domain) = match accelerator.links {
        Links::Switched { domain, bandwidth_gbs } => (bandwidth_gbs, domain),
        Links::Torus { link_gbs, pod, .. } => (2.0 * link_gbs, pod),
    };
    // Fast links reach over hosts where a domain has more devices than a host: then the narrowest place is it.
    let host_devices = hosts.iter().map(|host| host.devices).max().unwrap_or(1);
    let fast_from = if domain > host_devices.max(accelerator.host_devices) { depth - 1 } else { depth };
    (0..=depth)
        .map(|shared| {
            if shared >= fast_from.max(1) {
                return 1.0 / (link_gbs * 1e3);
            }
            let tiers = fast_from.max(1) - 1 - shared;
            1.0 / (accelerator.network_gbs * 1e3 * TIER_SHARE.powi(tiers as i32))
        })
        .collect()
}

/// The depth of the tree that hosts stand in, the host itself included.
fn depth(layout: &Layout, hosts: &[Host]) -> Result<usize, PlanError> {
    let total: u64 = hosts.iter().fold(0, |sum: u64, host| sum.saturating_add(host.devices));
    if total != layout.devices() || total > DEVICES_MAX {
        return Err(PlanError::IllegalLayout(format!(
            "the layout needs {} devices, and the {} hosts have {total}",
            layout.devices(),
            hosts.len()
        )));
    }
    let places = hosts.first().map_or(0, |host| host.place.len());
    if let Some(odd) = hosts.iter().find(|host| host.place.len() != places) {
        return Err(PlanError::IllegalLayout(format!(
            "host {} names {} domains and host {} names {places}: name the same for each",
            odd.name,
            odd.place.len(),
            hosts[0].name
        )));
    }
    Ok(places + 1)
}

/// Gives every device of a gang its rank.
///
/// # Errors
/// If the hosts have another number of devices than the layout, or places of different depth.
pub fn map(
    model: &Model,
    layout: &Layout,
    training: &Training,
    accelerator: &Accelerator,
    hosts: &[Host],
) -> Result<RankMap, PlanError> {
    let depth = depth(layout, hosts)?;
    let mapper = Mapper {
        paths: paths(hosts),
        depth,
        us_per_byte: us_per_byte(accelerator, hosts, depth),
        layout,
        traffic: traffic(model, layout, training),
    };
    let Some((communication_us, order, devices)) = mapper.cheapest(hosts) else {
        return Err(PlanError::IllegalLayout("a gang has at least one device".to_owned()));
    };
    let widest = mapper.widest(&devices, order).map(|shared| depth - shared);
    let rail_aligned = mapper.is_rail_aligned(&devices, order);
    let imex_domains = imex_domains(accelerator, hosts);
    let crosses_rails = !rail_aligned || layout.data == 1 || widest[2] == 0;
    Ok(RankMap {
        ranks: mapper.ranks(&devices, order, hosts),
        order,
        communication_us,
        widest,
        rail_aligned,
        environment: nccl(accelerator, layout, crosses_rails, !imex_domains.is_empty()),
        imex_domains,
    })
}

/// What NCCL is told of the ranks; nothing on TPUs.
fn nccl(
    accelerator: &Accelerator,
    layout: &Layout,
    crosses_rails: bool,
    shares_memory: bool,
) -> Vec<(String, String)> {
    let mut environment = Vec::new();
    let mut set = |name: &str, value: &str| environment.push((name.to_owned(), value.to_owned()));
    if accelerator.is_tpu() {
        return environment;
    }
    if !crosses_rails {
        set("NCCL_CROSS_NIC", "0");
    }
    if shares_memory {
        set("NCCL_MNNVL_ENABLE", "1");
    }
    if layout.expert > 1 {
        // All-to-all may leave on another rail's adapter over the fast links.
        set("NCCL_P2P_PXN_LEVEL", "2");
    }
    environment
}

/// Hosts by domain of fast links, where that is wider than a host.
fn imex_domains(accelerator: &Accelerator, hosts: &[Host]) -> Vec<Vec<String>> {
    let Links::Switched { domain, .. } = accelerator.links else { return Vec::new() };
    if domain <= accelerator.host_devices {
        return Vec::new();
    }
    let mut by_place: BTreeMap<&[String], Vec<String>> = BTreeMap::new();
    for host in hosts {
        by_place.entry(&host.place).or_default().push(host.name.clone());
    }
    by_place.into_values().filter(|hosts| hosts.len() > 1).collect()
}

/// Hosts of a fleet that is filled in order: as a plan imagines it before anything is placed.
#[must_use]
pub fn imagined(accelerator: &Accelerator, devices: u64) -> Vec<Host> {
    let each = accelerator.host_devices.min(devices).max(1);
    let wide = accelerator.domain() > accelerator.host_devices && !accelerator.is_tpu();
    (0..devices.div_ceil(each))
        .map(|at| {
            let first = at * each;
            let mut place = Vec::new();
            if let Some(leaf) = first.checked_div(accelerator.leaf_devices) {
                place.push(format!("leaf-{leaf}"));
            }
            if wide {
                place.push(format!("domain-{}", first / accelerator.domain()));
            }
            Host { name: format!("host-{at}"), devices: each.min(devices - first), place }
        })
        .collect()
}

/// How a TPU slice's axes serve the dimensions of a layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mesh {
    /// Slices.
    pub slices: u64,
    /// Chips along each axis of a slice.
    pub shape: Vec<u64>,
    /// Axes that the tensor parallel group fills; a part of one if it is shorter.
    pub tensor_axes: Vec<usize>,
    /// The tensor parallel group is a closed ring.
    pub tensor_wraps: bool,
    /// Axes that wrap.
    pub wraps: Vec<bool>,
}

/// The mesh of a layout on TPUs.
///
/// # Errors
/// If no slice has this number of chips, or the tensor parallel group fits no axis.
pub fn mesh(accelerator: &Accelerator, layout: &Layout) -> Result<Mesh, PlanError> {
    if !accelerator.is_tpu() {
        return Err(PlanError::IllegalLayout(format!("{} has no torus", accelerator.name)));
    }
    let Some(slice) = accelerator.slice(layout.devices()) else {
        return Err(PlanError::IllegalLayout(format!(
            "{} devices are no slices of {} that are offered",
            layout.devices(),
            accelerator.name
        )));
    };
    let slices = slice.count;
    let shape = slice.shape[..slice.axes].to_vec();
    let wraps = slice.wraps[..slice.axes].to_vec();
    if layout.tensor == 1 {
        return Ok(Mesh { slices, shape, tensor_axes: Vec::new(), tensor_wraps: true, wraps });
    }
    // One whole axis that wraps, then one that does not, then whole axes together, then a part of one.
    let mut choices: Vec<(Vec<usize>, bool)> = Vec::new();
    for set in 1..1_usize << shape.len() {
        let chosen: Vec<usize> = (0..shape.len()).filter(|axis| set >> axis & 1 == 1).collect();
        let product: u64 = chosen.iter().map(|axis| shape[*axis]).product();
        let ring = chosen.iter().all(|axis| wraps[*axis]);
        if product == layout.tensor {
            choices.push((chosen, ring));
        }
    }
    choices.sort_by_key(|(axes, ring)| (Reverse(*ring), axes.len()));
    let part = (0..shape.len()).find(|axis| shape[*axis].is_multiple_of(layout.tensor));
    let chosen = choices.into_iter().next().or_else(|| part.map(|axis| (vec![axis], false)));
    let Some((tensor_axes, tensor_wraps)) = chosen else {
        return Err(PlanError::IllegalLayout(format!(
            "a tensor parallel group of {} fits no axis of a slice of {shape:?}",
            layout.tensor
        )));
    };
    Ok(Mesh { slices, shape, tensor_axes, tensor_wraps, wraps })
}
