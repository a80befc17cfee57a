//! Slices of TPUs: the box, or the cubes, that cost least to empty.

use alloc::collections::BTreeMap;
use muster_types::tpu::{Generation, PodPosition, SliceRequest};
use muster_types::{AcceleratorRequest, DeviceAmount, NodeId};

use super::{Search, Trial};
use crate::Spent;
use crate::fill::Scope;
use crate::sites::Site;
use crate::slices::{Part, parts_of};

impl<'a> Search<'a, '_> {
    /// All slices of a group, one after another where each costs least.
    pub(super) fn place_slices(
        &mut self,
        site: &Site<'a>,
        trial: &mut Trial,
        group: usize,
        slice: &SliceRequest,
        scope: Scope<'a>,
    ) -> Result<bool, Spent> {
        let spec = self.question.spec;
        let request = &spec.groups[group].request;
        let kind = site.pools_of_group(group).first().and_then(|(key, _)| key.kind.as_ref());
        let Some(generation) = kind.and_then(|kind| Generation::of_kind(kind)) else { return Ok(false) };
        let nodes = self.nodes(site, group, scope)?;
        let mut best: Option<Trial> = None;
        for chips in generation.chips_per_host() {
            let suits = slice.workers(*chips) == Some(spec.groups[group].workers)
                && slice.chips_per_worker(*chips) == request.device_count();
            if !suits {
                continue;
            }
            // A slice has its hosts to itself.
            if let Some(accelerators) = &request.accelerators {
                let amount = DeviceAmount::Whole(*chips);
                self.needs[group].accelerators = Some(AcceleratorRequest { amount, ..accelerators.clone() });
            }
            let hosts = self.hosts_to_empty(group, *chips, &nodes, trial)?;
            let Some(parts) = parts_of(generation, slice.shape, *chips, &hosts, self.budget) else {
                return Err(Spent);
            };
            let mut tried = trial.clone();
            let mut placed = 0;
            while placed < slice.count && self.place_slice(&mut tried, group, slice, &parts)? {
                placed += 1;
            }
            if placed == slice.count && best.as_ref().is_none_or(|best| tried.harm < best.harm) {
                best = Some(tried);
            }
        }
        let is_found = best.is_some();
        if let Some(best) = best {
            *trial = best;
        }
        Ok(is_found)
    }

    /// Hosts of this many chips that could be emptied, by where they are.
    fn hosts_to_empty(
        &mut self,
        group: usize,
        chips: u16,
        nodes: &[NodeId],
        trial: &Trial,
    ) -> Result<BTreeMap<PodPosition, NodeId>, Spent> {
        let mut hosts = BTreeMap::new();
        for node in nodes {
            let row = self.question.state.node(*node).expect("an indexed node has a row");
            let Some(position) = row.spec.pod.as_ref().filter(|_| row.spec.device_count() == chips) else {
                continue;
            };
            if self.most_workers(*node, group, 1, trial)? > 0 {
                hosts.insert(position.clone(), *node);
            }
        }
        Ok(hosts)
    }

    /// One slice where it costs least; whether there is a place for it.
    fn place_slice(
        &mut self,
        trial: &mut Trial,
        group: usize,
        slice: &SliceRequest,
        parts: &[Part],
    ) -> Result<bool, Spent> {
        let cubes = slice.shape.cubes().filter(|_| slice.shape.is_whole_cubes()).unwrap_or(1);
        let mut best: Option<Trial> = None;
        // Cubes of one pod make a slice; a box is one part and is in one pod anyway.
        for of_pod in parts.chunk_by(|a, b| cubes > 1 && a.pod == b.pod) {
            if of_pod.len() < cubes as usize {
                continue;
            }
            let mut tried = trial.clone();
            let mut placed = 0;
            while placed < cubes {
                let Some(next) = self.cheapest_part(&tried, group, of_pod, best.as_ref())? else { break };
                tried = next;
                placed += 1;
            }
            if placed == cubes && best.as_ref().is_none_or(|best| tried.harm < best.harm) {
                best = Some(tried);
            }
        }
        let is_found = best.is_some();
        if let Some(best) = best {
            *trial = best;
        }
        Ok(is_found)
    }

    /// The part that costs least to empty in addition to what is taken, if less than a limit.
    fn cheapest_part(
        &mut self,
        trial: &Trial,
        group: usize,
        parts: &[Part],
        limit: Option<&Trial>,
    ) -> Result<Option<Trial>, Spent> {
        let mut best: Option<Trial> = None;
        for part in parts.iter().filter(|part| part.nodes.iter().all(|node| !trial.taken.contains_key(node)))
        {
            let mut tried = trial.clone();
            let mut is_open = true;
            for node in &part.nodes {
                let too_much = |known: &Trial| tried.harm >= known.harm && known.harm.gangs() > 0;
                let Some((harm, stops)) = self.cheapest(*node, &[(group, 1)], &tried, None)? else {
                    is_open = false;
                    break;
                };
                if best.as_ref().is_some_and(too_much) || limit.is_some_and(too_much) {
                    is_open = false;
                    break;
                }
                tried.harm = tried.harm.plus(&harm);
                tried.stopped.extend(stops);
                tried.take(*node, group, 1);
            }
            if is_open && best.as_ref().is_none_or(|best| tried.harm < best.harm) {
                best = Some(tried);
            }
        }
        Ok(best)
    }
}
