//! The list of nodes, one of them, and the map of the fleet.

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use muster_engine::Change;
use muster_page::{DeviceState, FleetBlock, NodeQuery};
use muster_state::{NodeRow, NodeStatus, RestrictionRow, State as Applied};
use muster_types::{DeviceSet, NodeId, limits};
use muster_wire::node_state::NODE_STATES;
use muster_wire::v1;
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::time_travel::PageRequest;
use super::{AsOf, Problem, Reader, Scene, Web, events, tag_with, tagged};
use crate::fleet_service::{self, Narrowed};
use crate::read::present;
use crate::refusals::failed;
use crate::render;

/// Rows of a page.
const NODES_SHOWN: usize = 200;
/// Changes of a node that its page shows.
const CHANGES_SHOWN: usize = 30;
/// Rows of the table of blocks.
const BLOCKS_SHOWN_MAX: usize = 500;
/// About what one of them takes.
const BLOCK_BYTES: usize = 1 << 10;
/// Devices of one map: more than a fleet has that Muster is measured with.
const MAP_DEVICES_MAX: usize = 250_000;
const MAP_TYPE: &str = "application/json";
/// About what the page of one node takes, with the jobs and changes that it shows.
const NODE_BYTES: usize = 64 << 10;
/// About what one node takes in a map while it is made, without and with who holds its devices.
const MAP_NODE_BYTES: usize = 256;
const MAP_NODE_OWNED_BYTES: usize = 1 << 10;

pub(super) async fn list(
    State(web): State<Web>,
    Extension(reader): Extension<Reader>,
    request: Request,
) -> Result<Response, Problem> {
    let known = ["region", "cluster", "block", "state", "page"];
    let (asked, [region, cluster, block, state, page]) = PageRequest::of(reader, &request, known)?;
    let mut wrong: Vec<(String, String)> = Vec::new();
    for (name, value) in [("region", &region), ("cluster", &cluster), ("block", &block)] {
        if value.len() > limits::NAME_BYTES_MAX {
            wrong.push((name.to_owned(), format!("must be at most {} bytes", limits::NAME_BYTES_MAX)));
        }
    }
    if !state.is_empty() && state != fleet_service::NOT_LOST && !NODE_STATES.contains(&state.as_str()) {
        let known = NODE_STATES.join(", ");
        wrong.push(("state".to_owned(), format!("must be one of {known}, {}", fleet_service::NOT_LOST)));
    }
    if !wrong.is_empty() {
        return Err(Problem::fields(wrong));
    }
    let make = move |scene: &Scene| {
        let listing =
            v1::ListNodesRequest { page_token: page.clone(), region: region.clone(), ..Default::default() };
        let shown = (NODES_SHOWN, scene.visibility());
        let narrowed = Narrowed { cluster: cluster.clone(), block: block.clone(), state: state.clone() };
        let listed = fleet_service::list(scene.engine(), &scene.state, &listing, &narrowed, shown)?;
        let query = NodeQuery { region, cluster, block, state, page };
        Ok(muster_page::nodes(&scene.frame(), &query, &listed.nodes, &listed.next_page_token))
    };
    web.read(asked, NODES_SHOWN * fleet_service::ROW_BYTES, make).await
}

pub(super) async fn one(
    State(web): State<Web>,
    Extension(reader): Extension<Reader>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let (asked, []) = PageRequest::of(reader, &request, [])?;
    let no_name = |_| Problem::new(StatusCode::NOT_FOUND, "Not found", "The address names no node.");
    let Path(name) = name.map_err(no_name)?;
    let make = move |scene: &Scene| {
        let id = fleet_service::find(&scene.state, &name)?;
        let row = scene.state.node(id).ok_or_else(|| failed("a name without a node"))?;
        let is_of_node = |change: &Change| matches!(change, Change::Node { id: of, .. } if *of == id);
        let changes = events::newest(scene, CHANGES_SHOWN, is_of_node);
        let node = scene.visibility().node(render::node(&scene.state, id, row));
        Ok(muster_page::node(&scene.frame(), &node, &changes))
    };
    web.read(asked, NODE_BYTES, make).await
}

pub(super) async fn fleet(
    State(web): State<Web>,
    Extension(reader): Extension<Reader>,
    request: Request,
) -> Result<Response, Problem> {
    let (asked, []) = PageRequest::of(reader, &request, [])?;
    let make = |scene: &Scene| {
        let (blocks, is_cut) = blocks(&scene.state);
        Ok(muster_page::fleet(&scene.frame(), &blocks, is_cut))
    };
    web.read(asked, BLOCKS_SHOWN_MAX * BLOCK_BYTES, make).await
}

/// Blocks of the fleet with what their devices are, and whether there are more.
fn blocks(view: &Applied) -> (Vec<FleetBlock>, bool) {
    let mut blocks: BTreeMap<(&str, &str, &str, &str), FleetBlock> = BTreeMap::new();
    let mut is_cut = false;
    for (key, pool) in view.pools() {
        let kind = key.kind.as_ref().map_or("", |kind| kind.as_str());
        for (rack_key, rack) in pool.racks.iter() {
            let at = (key.region.as_str(), key.cluster.as_str(), kind, rack_key.block.as_str());
            if blocks.len() == BLOCKS_SHOWN_MAX && !blocks.contains_key(&at) {
                is_cut = true;
                continue;
            }
            let block = blocks.entry(at).or_insert_with(|| FleetBlock {
                region: key.region.to_string(),
                cluster: key.cluster.to_string(),
                kind: kind.to_owned(),
                block: rack_key.block.to_string(),
                ..FleetBlock::default()
            });
            block.racks += 1;
            block.nodes += u64::from(rack.nodes);
            block.nodes_in_use += u64::from(rack.in_use);
        }
    }
    for (id, row) in view.nodes().iter() {
        let spec = &row.spec;
        let kind = spec.accelerators.as_ref().map_or("", |has| has.kind.as_str());
        let at = (spec.region.as_str(), spec.cluster.as_str(), kind, spec.block.as_str());
        let Some(block) = blocks.get_mut(&at) else { continue };
        device_states(view, *id, row).for_each(|state| block.devices.add(state));
    }
    (blocks.into_values().collect(), is_cut)
}

pub(super) async fn map(
    State(web): State<Web>,
    Extension(reader): Extension<Reader>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Problem> {
    let (asked, [by]) = PageRequest::of(reader, &request, ["by"])?;
    let by = match by.as_str() {
        "" => None,
        "tenant" => Some(OwnerKind::Tenant),
        "job" => Some(OwnerKind::Job),
        _ => return Err(Problem::field("by", "must be one of tenant, job")),
    };
    let node_bytes = if by.is_some() { MAP_NODE_OWNED_BYTES } else { MAP_NODE_BYTES };
    // A map is made of one state by one release; a browser that has that one is told so.
    let state = present(web.engine());
    let make = move |scene: &Scene| Ok(drawn(&scene.state, by).to_string());
    if asked.at.is_some() {
        let bytes = state.nodes().len().saturating_mul(node_bytes);
        drop(state);
        return web.read_as(asked, MAP_TYPE, bytes, make).await;
    }
    let tag = AsOf::of(&state).tag();
    if let Some(known) = tag.and_then(|tag| tagged(&headers, &tag, MAP_TYPE)) {
        return Ok(known);
    }
    let bytes = state.nodes().len().saturating_mul(node_bytes);
    drop(state);
    let mut response = web.answer(reader, bytes, make).await?;
    let of: Option<AsOf> = response.extensions().get().copied();
    match of.and_then(AsOf::tag) {
        Some(tag) => tag_with(&mut response, &tag, MAP_TYPE),
        None => {
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(MAP_TYPE));
        }
    }
    Ok(response)
}

/// Whose devices a map tells apart.
#[derive(Clone, Copy)]
enum OwnerKind {
    Tenant,
    Job,
}

/// Who holds the devices of each node.
struct Owners {
    /// The one with number 1 first: 0 is nobody.
    names: Vec<String>,
    by_node: BTreeMap<NodeId, Vec<(DeviceSet, u32)>>,
}

impl Owners {
    fn of(view: &Applied, by: OwnerKind) -> Owners {
        let mut numbers: BTreeMap<String, u32> = BTreeMap::new();
        let mut owners = Owners { names: Vec::new(), by_node: BTreeMap::new() };
        for id in view.active() {
            let (Some(row), Some(spec)) = (view.job(id), view.spec(id)) else { continue };
            let Some(placement) = row.placement.as_deref() else { continue };
            let name = match by {
                OwnerKind::Tenant => spec.tenant.to_string(),
                OwnerKind::Job => id.to_string(),
            };
            let number = match numbers.get(&name) {
                Some(number) => *number,
                None => {
                    owners.names.push(name.clone());
                    let number = u32::try_from(owners.names.len()).unwrap_or(u32::MAX);
                    numbers.insert(name, number);
                    number
                }
            };
            for (slot, rank) in placement.slots.iter().zip(&placement.ranks) {
                if !rank.is_over() {
                    owners.by_node.entry(slot.node).or_default().push((slot.devices, number));
                }
            }
        }
        owners
    }

    /// The number of the owner of each device; of one that several share, the first of them.
    fn of_devices(&self, id: NodeId, row: &NodeRow) -> Vec<u32> {
        let held = self.by_node.get(&id).map(Vec::as_slice).unwrap_or_default();
        let owner = |device: DeviceSet| {
            held.iter().find(|(devices, _)| devices.contains(device)).map_or(0, |(_, number)| *number)
        };
        (0..row.spec.device_count()).map(|number| owner(DeviceSet(1 << number))).collect()
    }
}

/// Every device by region, cluster, block and host, as one letter each, and with the number of its owner where that is asked for.
/// Hosts without any are left out.
fn drawn(view: &Applied, by: Option<OwnerKind>) -> Value {
    type Hosts = Vec<Value>;
    let owners = by.map(|by| Owners::of(view, by));
    let mut clusters: BTreeMap<(&str, &str), BTreeMap<&str, Hosts>> = BTreeMap::new();
    let (mut devices, mut is_cut) = (0, false);
    for (name, id) in view.nodes_by_name() {
        let Some(row) = view.node(id) else { continue };
        let letters: String = device_states(view, id, row).map(DeviceState::letter).collect();
        if letters.is_empty() {
            continue;
        }
        if devices + letters.len() > MAP_DEVICES_MAX {
            is_cut = true;
            break;
        }
        devices += letters.len();
        let blocks = clusters.entry((row.spec.region.as_str(), row.spec.cluster.as_str())).or_default();
        let host = match &owners {
            Some(owners) => json!([name.as_str(), letters, owners.of_devices(id, row)]),
            None => json!([name.as_str(), letters]),
        };
        blocks.entry(row.spec.block.as_str()).or_default().push(host);
    }
    let block = |(block, hosts): (&str, Hosts)| json!({ "block": block, "hosts": hosts });
    let clusters = clusters.into_iter().map(|((region, cluster), blocks)| {
        let blocks: Vec<Value> = blocks.into_iter().map(block).collect();
        json!({ "region": region, "cluster": cluster, "blocks": blocks })
    });
    let clusters: Vec<Value> = clusters.collect();
    let owners = owners.map(|owners| owners.names).unwrap_or_default();
    json!({
        "logIndex": view.log_index().0,
        "devices": devices,
        "isCut": is_cut,
        "owners": owners,
        "clusters": clusters,
    })
}

/// What each device of a node is, by its local number.
fn device_states(view: &Applied, id: NodeId, row: &NodeRow) -> impl Iterator<Item = DeviceState> {
    let (is_lost, is_placeable) = (row.status == NodeStatus::Lost, row.is_placeable());
    let withheld = |of: fn(&RestrictionRow) -> DeviceSet| view.restriction(id).map_or(DeviceSet::EMPTY, of);
    let (faulty, foreign) =
        (withheld(|known| known.health.unusable), withheld(|known| known.foreign.devices));
    (0..row.spec.device_count()).map(move |number| {
        let device = DeviceSet(1 << number);
        let is_held = !row.free.devices.contains(device);
        let is_promised = row.promised.devices.contains(device);
        if is_lost {
            DeviceState::Lost
        } else if faulty.contains(device) {
            DeviceState::Unusable
        } else if is_held && row.free.shares.iter().any(|share| share.device == number) {
            DeviceState::Shared
        } else if is_held {
            DeviceState::Busy
        } else if foreign.contains(device) {
            DeviceState::Foreign
        } else if !is_placeable {
            DeviceState::Closed
        } else if is_promised {
            DeviceState::Promised
        } else {
            DeviceState::Free
        }
    })
}
