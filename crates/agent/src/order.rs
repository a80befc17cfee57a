//! Orders as values: what came from the network, checked field by field before anything looks at it.
//!
//! **Invariant:** nothing here trusts a length, a number or a name; an order that breaks a rule
//! becomes an [`OrderError`] that names the field.

use muster_types::tpu::SliceShape;
use muster_types::{DeviceSet, ExitStatus, FencingToken, JobId, LaunchForm, Violation, limits as bounds};
use muster_wire::{convert, v1};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::limits;

/// One worker of one placement: the unit that is launched, stopped and reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkerKey {
    /// Its job.
    pub job: JobId,
    /// The placement.
    pub token: FencingToken,
    /// Its rank in the gang.
    pub rank: u32,
}

impl fmt::Display for WorkerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}/{}", self.job, self.token, self.rank)
    }
}

/// Where one rank of the gang is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPlace {
    /// Unique in the Muster cluster.
    pub node_name: String,
    /// Without a port.
    pub address: String,
    /// Devices of the rank's worker.
    pub devices: u16,
}

/// Consecutive ranks that form TPU slices of one shape, one worker to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slices {
    /// Of the first slice.
    pub first_rank: u32,
    /// Hosts of one slice, from 1.
    pub hosts: u32,
    /// Slices, from 1.
    pub count: u32,
    /// Chips of one slice along each axis.
    pub shape: SliceShape,
}

impl Slices {
    /// The ranks of all slices.
    #[must_use]
    pub fn ranks(&self) -> std::ops::Range<u32> {
        self.first_rank..self.first_rank + self.hosts * self.count
    }
}

/// One worker to launch here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Its rank in the gang.
    pub rank: u32,
    /// The task group it belongs to.
    pub group: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// The user's variables.
    pub environment: BTreeMap<String, String>,
    /// Local device numbers.
    pub devices: DeviceSet,
    /// Empty when it asked for none.
    pub accelerator_type: String,
    /// Milli-CPUs it was promised.
    pub cpu_milli: u64,
    /// Bytes of memory it was promised.
    pub memory_bytes: u64,
    /// What it holds of each of its devices, in thousandths: all of it, or a share of its one device.
    #[serde(default = "whole_device")]
    pub device_milli: u16,
}

/// A device that nobody else uses, in thousandths.
pub const DEVICE_MILLI: u16 = 1_000;

pub(crate) fn whole_device() -> u16 {
    DEVICE_MILLI
}

/// What workers hold of the devices of a host, in thousandths of each.
#[derive(Clone, Copy, Debug)]
pub struct DeviceLoad([u32; bounds::HOST_DEVICES_MAX as usize]);

impl DeviceLoad {
    /// Nothing.
    pub const NONE: DeviceLoad = DeviceLoad([0; bounds::HOST_DEVICES_MAX as usize]);

    /// Adds a worker that holds so much of each of these.
    pub fn add(&mut self, devices: DeviceSet, milli: u16) {
        for device in devices.iter() {
            // A set has no other devices.
            if let Some(load) = self.0.get_mut(usize::from(device)) {
                *load = load.saturating_add(milli.into());
            }
        }
    }

    /// The first device that both together hold more than once.
    #[must_use]
    pub fn overfull(&self, beside: &DeviceLoad) -> Option<u16> {
        let sums = self.0.iter().zip(beside.0).zip(0u16..);
        let mut over = sums.filter(|((own, other), _)| **own > 0 && **own + *other > DEVICE_MILLI.into());
        over.next().map(|(_, device)| device)
    }
}

/// A start order, checked: this node's share of one placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The job.
    pub job: JobId,
    /// What the placement holds its devices with.
    pub token: FencingToken,
    /// The job's name, for people.
    pub job_name: String,
    /// Whose it is.
    pub tenant: String,
    /// Placements of the job so far, this one included.
    pub attempt: u32,
    /// The whole gang, by rank.
    pub rank_map: Vec<RankPlace>,
    /// Those of this node, by rank.
    pub workers: Vec<Launch>,
    /// On rank 0's address.
    pub rendezvous_port: u16,
    /// SIGTERM to SIGKILL when a stop does not say otherwise.
    pub stop_grace: Duration,
    /// Empty when the job has none.
    pub checkpoint_directory: String,
    /// Empty for the worker's own folder.
    pub working_directory: String,
    /// Index and size, for a job of an array.
    pub array: Option<(u32, u32)>,
    /// Where the gang runs.
    pub region: String,
    /// The fleet cluster in that region.
    pub cluster: String,
    /// Whether the gang's network is checked before its workers start.
    pub preflight: bool,
    /// What the command is brought together with its framework by.
    pub form: LaunchForm,
    /// Fewest ranks that the gang can go on with; 0 for all.
    pub world_size_min: u32,
    /// The TPU slices of the gang.
    pub slices: Vec<Slices>,
    /// How its workers are told to stop, besides SIGTERM and a file.
    pub notice: Option<HttpNotice>,
    /// How it saves its work, and what is saved.
    pub checkpoint: Checkpoint,
    /// What its workers know each other by; empty from older replicas.
    #[serde(default)]
    pub gang_secret: String,
}

/// A call that tells a worker to stop.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HttpNotice {
    /// On the loopback address. Of the first worker of the gang on a node; the next one has the next port.
    pub port: u16,
    /// Begins with `/`.
    pub path: String,
}

/// What a worker that starts is told of checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The data set of policy that they are in; empty for a directory that every place can read.
    pub place: String,
    /// How long the job means to work from one to the next; 0 where it does not say.
    pub interval_ms: u64,
    /// When an attempt of the job last saved its work, milliseconds since the Unix epoch; 0 when none has.
    pub saved_at_ms: u64,
    /// Which attempt that was.
    pub saved_attempt: u32,
}

impl Placement {
    /// The key of one of its workers.
    #[must_use]
    pub fn key(&self, rank: u32) -> WorkerKey {
        WorkerKey { job: self.job, token: self.token, rank }
    }

    /// Ranks launched here.
    pub fn ranks(&self) -> impl Iterator<Item = u32> {
        self.workers.iter().map(|w| w.rank)
    }
}

/// A field of an order that breaks its rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("order refused: {field} {rule}")]
pub struct OrderError {
    /// The field, as in the protocol.
    pub field: &'static str,
    /// What it breaks.
    pub rule: String,
}

fn violated(field: &'static str, violation: &Violation) -> OrderError {
    broken(field, violation.to_string())
}

fn broken(field: &'static str, rule: impl Into<String>) -> OrderError {
    OrderError { field, rule: rule.into() }
}

/// The token of a message.
///
/// # Errors
/// When it is absent or from no cluster's life.
pub fn token(message: Option<v1::FencingToken>) -> Result<FencingToken, OrderError> {
    let token =
        convert::fencing_token_from_proto("token", message.as_ref()).map_err(|v| violated("token", &v))?;
    if token.generation == 0 || token.log_index.0 == 0 {
        return Err(broken("token", "must have a generation and an index from 1"));
    }
    Ok(token)
}

/// The job of a message.
///
/// # Errors
/// When it is not an id.
pub fn job(text: &str) -> Result<JobId, OrderError> {
    convert::job_id("job_id", text).map_err(|v| violated("job_id", &v))
}

/// Milliseconds of grace, held to the longest that a job may ask for.
#[must_use]
pub fn grace(ms: u64) -> Duration {
    Duration::from_millis(ms.min(bounds::STOP_GRACE_MS_MAX))
}

/// Checks a start order.
///
/// # Errors
/// The first rule that is broken.
pub fn placement(order: v1::StartOrder) -> Result<Placement, OrderError> {
    let job = job(&order.job_id)?;
    let token = token(order.token)?;
    let world = order.rank_map.len();
    if world == 0 || world > bounds::GANG_WORKERS_MAX as usize {
        return Err(broken("rank_map", format!("must have 1 to {} ranks", bounds::GANG_WORKERS_MAX)));
    }
    if order.workers.is_empty() || order.workers.len() > limits::WORKERS_PER_ORDER_MAX {
        return Err(broken("workers", format!("must be 1 to {}", limits::WORKERS_PER_ORDER_MAX)));
    }
    for text in [&order.job_name, &order.tenant, &order.region, &order.cluster] {
        short("job_name, tenant, region or cluster", text, 4 * bounds::NAME_BYTES_MAX)?;
    }
    short("checkpoint_directory", &order.checkpoint_directory, 2 * bounds::TEXT_BYTES_MAX)?;
    short("working_directory", &order.working_directory, bounds::TEXT_BYTES_MAX)?;
    let rank_map = order.rank_map.into_iter().map(rank_place).collect::<Result<Vec<_>, _>>()?;
    let mut workers = Vec::with_capacity(order.workers.len());
    let mut ranks = BTreeSet::new();
    let mut taken = DeviceLoad::NONE;
    for worker in order.workers {
        let worker = launch(worker)?;
        if worker.rank as usize >= world || !ranks.insert(worker.rank) {
            return Err(broken("workers.rank", "must be in the rank map, and there once"));
        }
        taken.add(worker.devices, worker.device_milli);
        if taken.overfull(&DeviceLoad::NONE).is_some() {
            return Err(broken("workers.devices", "names a device for more than there is of it"));
        }
        workers.push(worker);
    }
    workers.sort_by_key(|w| w.rank);
    let rendezvous_port = u16::try_from(order.rendezvous_port)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| broken("rendezvous_port", "must be 1 to 65535"))?;
    short("gang_secret", &order.gang_secret, bounds::TEXT_BYTES_MAX)?;
    let notice = order.notice.map(http_notice).transpose()?.flatten();
    let checkpoint = checkpoint(order.checkpoint.unwrap_or_default())?;
    Ok(Placement {
        job,
        token,
        job_name: order.job_name,
        tenant: order.tenant,
        attempt: order.attempt,
        rank_map,
        workers,
        rendezvous_port,
        stop_grace: grace(order.stop_grace_ms),
        checkpoint_directory: order.checkpoint_directory,
        working_directory: order.working_directory,
        array: order.array_index.zip(order.array_size),
        region: order.region,
        cluster: order.cluster,
        preflight: order.preflight,
        form: launch_form(&order.launch)?,
        world_size_min: order.world_size_min,
        slices: order.slices.iter().map(|slices| tpu_slices(slices, world)).collect::<Result<_, _>>()?,
        notice,
        checkpoint,
        gang_secret: order.gang_secret,
    })
}

fn rank_place(place: v1::RankPlace) -> Result<RankPlace, OrderError> {
    short("rank_map.node_name", &place.node_name, bounds::NAME_BYTES_MAX)?;
    short("rank_map.address", &place.address, 253)?;
    let form = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'_');
    if place.address.is_empty() || !place.address.bytes().all(form) {
        return Err(broken("rank_map.address", "must be an address or host name"));
    }
    let devices = u16::try_from(place.devices)
        .ok()
        .filter(|count| *count <= bounds::HOST_DEVICES_MAX)
        .ok_or_else(|| broken("rank_map.devices", format!("must be at most {}", bounds::HOST_DEVICES_MAX)))?;
    Ok(RankPlace { node_name: place.node_name, address: place.address, devices })
}

fn launch_form(text: &str) -> Result<LaunchForm, OrderError> {
    if text.is_empty() {
        return Ok(LaunchForm::Environment);
    }
    // A form of a later version: its command must not be started as if it were none.
    LaunchForm::parse(text).ok_or_else(|| broken("launch", format!("{text:?} is no form this agent knows")))
}

/// None where there is no such call.
fn http_notice(rules: v1::NoticeRules) -> Result<Option<HttpNotice>, OrderError> {
    if rules.http_port == 0 {
        return Ok(None);
    }
    let port =
        u16::try_from(rules.http_port).map_err(|_| broken("notice.http_port", "must be 1 to 65535"))?;
    let path = if rules.http_path.is_empty() { "/".to_owned() } else { rules.http_path };
    let form = path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic());
    if !form || path.len() > bounds::NOTICE_PATH_BYTES_MAX {
        return Err(broken("notice.http_path", "must begin with '/' and have no blanks"));
    }
    Ok(Some(HttpNotice { port, path }))
}

fn checkpoint(state: v1::CheckpointState) -> Result<Checkpoint, OrderError> {
    short("checkpoint.place", &state.place, bounds::NAME_BYTES_MAX)?;
    Ok(Checkpoint {
        place: state.place,
        interval_ms: state.interval_ms,
        saved_at_ms: state.saved_at_ms,
        saved_attempt: state.saved_attempt,
    })
}

fn tpu_slices(slices: &v1::TpuSlices, world: usize) -> Result<Slices, OrderError> {
    let shape = SliceShape::parse(&slices.shape)
        .ok_or_else(|| broken("slices.shape", format!("must be {}", muster_types::tpu::SHAPE_RULE)))?;
    let ranks = u64::from(slices.hosts) * u64::from(slices.count);
    if ranks == 0 || u64::from(slices.first_rank) + ranks > world as u64 {
        return Err(broken("slices", "must be ranks of the gang, one at least"));
    }
    Ok(Slices { first_rank: slices.first_rank, hosts: slices.hosts, count: slices.count, shape })
}

fn launch(worker: v1::WorkerLaunch) -> Result<Launch, OrderError> {
    if worker.command.is_empty() || worker.command.len() > bounds::COMMAND_WORDS_MAX {
        return Err(broken("workers.command", format!("must have 1 to {} words", bounds::COMMAND_WORDS_MAX)));
    }
    for word in &worker.command {
        short("workers.command", word, bounds::TEXT_BYTES_MAX)?;
    }
    if worker.environment.len() > bounds::ENVIRONMENT_MAX {
        return Err(broken("workers.environment", format!("must have at most {}", bounds::ENVIRONMENT_MAX)));
    }
    for (key, value) in &worker.environment {
        short("workers.environment", key, bounds::TEXT_BYTES_MAX)?;
        short("workers.environment", value, bounds::TEXT_BYTES_MAX)?;
        if key.is_empty() || key.contains('=') {
            return Err(broken("workers.environment", "has a key that is empty or holds '='"));
        }
    }
    short("workers.group", &worker.group, bounds::NAME_BYTES_MAX)?;
    short("workers.accelerator_type", &worker.accelerator_type, bounds::NAME_BYTES_MAX)?;
    let field = "workers.devices";
    let devices = convert::device_set_from_proto(field, &worker.devices).map_err(|v| violated(field, &v))?;
    let share = u16::try_from(worker.device_share_milli).ok().filter(|milli| *milli < DEVICE_MILLI);
    let share = share.filter(|milli| *milli == 0 || devices.count() == 1).ok_or_else(|| {
        broken("workers.device_share_milli", format!("must be below {DEVICE_MILLI}, and of one device"))
    })?;
    Ok(Launch {
        device_milli: if share == 0 { DEVICE_MILLI } else { share },
        rank: worker.rank,
        group: worker.group,
        command: worker.command,
        environment: worker.environment.into_iter().collect(),
        devices,
        accelerator_type: worker.accelerator_type,
        cpu_milli: worker.cpu_milli,
        memory_bytes: worker.memory_bytes,
    })
}

/// At most so many bytes, and none that ends a C string.
fn short(field: &'static str, text: &str, bytes_max: usize) -> Result<(), OrderError> {
    if text.len() > bytes_max {
        return Err(broken(field, format!("must be at most {bytes_max} bytes")));
    }
    if text.contains('\0') {
        return Err(broken(field, "must not hold a zero byte"));
    }
    Ok(())
}

/// A worker's state as the protocol has it.
#[must_use]
pub fn state_message(key: WorkerKey, exit: Option<&ExitStatus>) -> v1::WorkerState {
    v1::WorkerState {
        job_id: key.job.to_string(),
        token: Some(convert::fencing_token_to_proto(key.token)),
        rank: key.rank,
        exit: exit.map(convert::exit_status_to_proto),
    }
}

/// Cut to what an error text may have, at a character's edge.
#[must_use]
pub fn detail(text: &str) -> String {
    let mut end = text.len().min(bounds::DETAIL_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn order() -> v1::StartOrder {
        v1::StartOrder {
            job_id: "job-1".into(),
            token: Some(v1::FencingToken { generation: 1, log_index: 7 }),
            rank_map: vec![
                v1::RankPlace { node_name: "n".into(), address: "10.0.0.1".into(), devices: 2 };
                2
            ],
            workers: vec![v1::WorkerLaunch {
                rank: 1,
                command: vec!["true".into()],
                devices: vec![0, 3],
                ..Default::default()
            }],
            rendezvous_port: 61_447,
            ..Default::default()
        }
    }

    fn refused(change: impl FnOnce(&mut v1::StartOrder)) -> &'static str {
        let mut order = order();
        change(&mut order);
        placement(order).expect_err("must be refused").field
    }

    #[test]
    fn a_good_order_passes() {
        let placement = placement(order()).unwrap();
        assert_eq!(placement.workers[0].devices, DeviceSet(0b1001));
        assert_eq!(placement.key(1).to_string(), "job-1@1.7/1");
    }

    #[test]
    fn shares_of_one_device_fill_it_and_no_more() {
        let mut order = order();
        order.workers[0].devices = vec![3];
        order.workers[0].device_share_milli = 600;
        let other = v1::WorkerLaunch { rank: 0, device_share_milli: 400, ..order.workers[0].clone() };
        order.workers.push(other);
        let placement = placement(order).unwrap();
        assert_eq!(placement.workers.iter().map(|w| w.device_milli).collect::<Vec<_>>(), [400, 600]);
        let mut load = DeviceLoad::NONE;
        load.add(DeviceSet(0b1000), 600);
        let mut other = DeviceLoad::NONE;
        other.add(DeviceSet(0b1001), 401);
        assert_eq!(load.overfull(&other), Some(3));
        assert_eq!(load.overfull(&DeviceLoad::NONE), None);
    }

    #[test]
    fn every_broken_field_is_named() {
        assert_eq!(refused(|o| o.token = None), "token");
        assert_eq!(refused(|o| o.token = Some(v1::FencingToken::default())), "token");
        assert_eq!(refused(|o| o.job_id = "../../etc".into()), "job_id");
        assert_eq!(refused(|o| o.rank_map.clear()), "rank_map");
        assert_eq!(refused(|o| o.rank_map[0].address = "a b".into()), "rank_map.address");
        assert_eq!(refused(|o| o.rank_map[0].devices = 65), "rank_map.devices");
        let slices = |first_rank, hosts, shape: &str| v1::TpuSlices {
            first_rank,
            hosts,
            count: 1,
            shape: shape.into(),
        };
        assert_eq!(refused(|o| o.slices = vec![slices(0, 1, "2x")]), "slices.shape");
        assert_eq!(refused(|o| o.slices = vec![slices(0, 0, "2x4")]), "slices");
        assert_eq!(refused(|o| o.slices = vec![slices(1, 2, "2x4")]), "slices");
        assert_eq!(refused(|o| o.slices = vec![slices(u32::MAX, u32::MAX, "2x4")]), "slices");
        assert_eq!(refused(|o| o.launch = "kubernetes".into()), "launch");
        let notice = |http_port, path: &str| Some(v1::NoticeRules { http_port, http_path: path.into() });
        assert_eq!(refused(|o| o.notice = notice(65_536, "/")), "notice.http_port");
        assert_eq!(refused(|o| o.notice = notice(80, "/a\r\nb")), "notice.http_path");
        assert_eq!(refused(|o| o.workers.clear()), "workers");
        assert_eq!(refused(|o| o.workers[0].rank = 2), "workers.rank");
        assert_eq!(refused(|o| o.workers.push(o.workers[0].clone())), "workers.rank");
        assert_eq!(refused(|o| o.workers[0].devices = vec![64]), "workers.devices");
        assert_eq!(refused(|o| o.workers[0].devices = vec![1, 1]), "workers.devices");
        let second = |o: &mut v1::StartOrder, share: u32| {
            let devices = vec![3];
            let other =
                v1::WorkerLaunch { rank: 0, devices, device_share_milli: share, ..o.workers[0].clone() };
            o.workers[0].devices = vec![3];
            o.workers[0].device_share_milli = 600;
            o.workers.push(other);
        };
        assert_eq!(refused(|o| second(o, 0)), "workers.devices");
        assert_eq!(refused(|o| second(o, 401)), "workers.devices");
        assert_eq!(refused(|o| o.workers[0].device_share_milli = 500), "workers.device_share_milli");
        assert_eq!(refused(|o| second(o, 1_000)), "workers.device_share_milli");
        assert_eq!(refused(|o| o.workers[0].command.clear()), "workers.command");
        assert_eq!(refused(|o| o.workers[0].command[0] = "a\0b".into()), "workers.command");
        assert_eq!(refused(|o| o.rendezvous_port = 0), "rendezvous_port");
        let bad = |k: &str| BTreeMap::from([(k.to_owned(), String::new())]).into_iter().collect();
        assert_eq!(refused(|o| o.workers[0].environment = bad("A=B")), "workers.environment");
        assert_eq!(refused(|o| o.job_name = "x".repeat(5_000)), "job_name, tenant, region or cluster");
    }

    #[test]
    fn a_detail_is_cut_at_a_character() {
        let text = "é".repeat(400);
        assert_eq!(detail(&text).len(), 512);
        assert_eq!(detail(&"aé".repeat(300)).len(), 511);
    }
}
