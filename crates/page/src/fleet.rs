//! The map of the fleet, with a table of the same for readers without it.

use maud::{Markup, html};

use crate::frame::{Frame, Section, document};
use crate::text;
use crate::text::Column::{Number, Text};

/// What a device is, as the map colours it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceState {
    /// Nothing holds it, and its node takes work.
    Free,
    /// Kept for a gang that waits for others to stop.
    Promised,
    /// A worker holds it.
    Busy,
    /// Shares of it are held, and a part is left.
    Shared,
    /// Another scheduler of the same hosts holds it.
    Foreign,
    /// It is at fault.
    Unusable,
    /// Its node takes no new work.
    Closed,
    /// Its node is lost.
    Lost,
}

impl DeviceState {
    /// Every one.
    pub const ALL: [DeviceState; 8] = [
        DeviceState::Free,
        DeviceState::Promised,
        DeviceState::Busy,
        DeviceState::Shared,
        DeviceState::Foreign,
        DeviceState::Unusable,
        DeviceState::Closed,
        DeviceState::Lost,
    ];

    /// Its letter in the map.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            DeviceState::Free => 'f',
            DeviceState::Promised => 'p',
            DeviceState::Busy => 'b',
            DeviceState::Shared => 's',
            DeviceState::Foreign => 'o',
            DeviceState::Unusable => 'u',
            DeviceState::Closed => 'c',
            DeviceState::Lost => 'l',
        }
    }

    /// Its shape in a square of six by six, as a path: states differ without colours.
    fn shape(self) -> &'static str {
        match self {
            DeviceState::Free => "M0 0H6V6H0ZM1 1V5H5V1Z",
            DeviceState::Promised => "M0 0H6V6H0ZM1 1V5H5V1ZM2 2H4V4H2Z",
            DeviceState::Busy => "M0 0H6V6H0Z",
            DeviceState::Shared => "M0 0H6V6H0ZM1 1V3H5V1Z",
            DeviceState::Foreign => "M0 0H1.5V6H0ZM2.25 0H3.75V6H2.25ZM4.5 0H6V6H4.5Z",
            DeviceState::Unusable => "M0 1L1 0L3 2L5 0L6 1L4 3L6 5L5 6L3 4L1 6L0 5L2 3Z",
            DeviceState::Closed => "M0 2H6V4H0Z",
            DeviceState::Lost => "M0 0H2V1H1V2H0ZM4 0H6V2H5V1H4ZM0 4H1V5H2V6H0ZM5 4H6V6H4V5H5Z",
        }
    }

    /// A word or two, for the heading of a column.
    fn heading(self) -> &'static str {
        match self {
            DeviceState::Free => "Free",
            DeviceState::Promised => "Kept for a gang",
            DeviceState::Busy => "Busy",
            DeviceState::Shared => "Busy in part",
            DeviceState::Foreign => "Held by others",
            DeviceState::Unusable => "At fault",
            DeviceState::Closed => "Closed",
            DeviceState::Lost => "Lost",
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            DeviceState::Free => "free",
            DeviceState::Promised => "free, and kept for a gang",
            DeviceState::Busy => "busy",
            DeviceState::Shared => "busy in part",
            DeviceState::Foreign => "held by another scheduler",
            DeviceState::Unusable => "at fault",
            DeviceState::Closed => "its node takes no new work",
            DeviceState::Lost => "its node is lost",
        }
    }
}

/// Devices by what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts([u64; DeviceState::ALL.len()]);

impl DeviceCounts {
    /// Counts one more.
    pub fn add(&mut self, state: DeviceState) {
        let place = DeviceState::ALL.iter().position(|known| *known == state);
        if let Some(count) = place.and_then(|place| self.0.get_mut(place)) {
            *count += 1;
        }
    }

    /// In the order of [`DeviceState::ALL`].
    fn all(&self) -> &[u64] {
        &self.0
    }
}

/// Nodes of one block of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetBlock {
    /// Region.
    pub region: String,
    /// Cluster of hosts.
    pub cluster: String,
    /// Type of accelerator; empty for hosts without.
    pub kind: String,
    /// Block.
    pub block: String,
    /// Racks of it.
    pub racks: u64,
    /// Registered nodes.
    pub nodes: u64,
    /// Of those that take work, the nodes that hold work.
    pub nodes_in_use: u64,
    /// Its devices by what they are.
    pub devices: DeviceCounts,
}

/// What the colours of the map may show, as addresses name it behind `#colour=` and in words.
const COLOURS: [(&str, &str); 4] =
    [("state", "what each device is"), ("health", "health"), ("tenant", "tenants"), ("job", "jobs")];

/// The page. The table has the blocks that are listed; `is_cut` says that there are more.
#[must_use]
pub fn fleet(frame: &Frame, blocks: &[FleetBlock], is_cut: bool) -> String {
    let map = html! {
        p #map-status role="status" { "The map needs scripts; the table has the same by block." }
        // The script shows it: without that there is no map.
        div #map-colours hidden {
            label for="colour" { "Colours show " }
            select #colour autocomplete="off" {
                @for (value, name) in COLOURS { option value=(value) { (name) } }
            }
            " " button #zoom-in type="button" { "Zoom in" } " " button #zoom-out type="button" { "Zoom out" }
            p.note { "Shapes show the state whatever the colours show." }
        }
        ul.legend {
            @for state in DeviceState::ALL {
                li {
                    svg class={ "swatch state-" (state.letter()) } data-letter=(state.letter()) viewBox="0 0 6 6" aria-hidden="true" {
                        path d=(state.shape()) {}
                    }
                    " " (state.meaning())
                }
            }
        }
        // The table says the same to those who do not see the map.
        p #map-host aria-live="polite" {}
        div #fleet-map data-source="/fleet/map" tabindex="0" role="application" aria-label="Map of the hosts"
            aria-describedby="map-status" {}
    };
    let all = html! {
        (table(blocks))
        @if is_cut { p { "There are more blocks; " a href="/nodes" { "the list of nodes" } " has all." } }
    };
    let body = html! {
        (text::section("map", "Map", map))
        (text::section("blocks", "Blocks", all))
    };
    document(Some(frame), Some(Section::Fleet), "Fleet", body)
}

fn table(blocks: &[FleetBlock]) -> Markup {
    if blocks.is_empty() {
        return html! { p { "No node has registered." } };
    }
    let mut columns =
        vec![Text("Block"), Text("Type"), Number("Racks"), Number("Nodes"), Number("With work")];
    columns.extend(DeviceState::ALL.map(|state| Number(state.heading())));
    let rows = html! {
        @for block in blocks {
            tr {
                th scope="row" {
                    a href=(address(block)) { (block.region) "/" (block.cluster) "/" (block.block) }
                }
                td { (if block.kind.is_empty() { "none" } else { block.kind.as_str() }) }
                td.number { (block.racks) }
                td.number { (block.nodes) }
                td.number { (block.nodes_in_use) }
                @for count in block.devices.all() { td.number { (count) } }
            }
        }
    };
    text::table("Nodes and devices by block", html! { "Nodes, and devices by what they are" }, &columns, rows)
}

/// The nodes of a block.
fn address(block: &FleetBlock) -> String {
    let parts = [("region", &block.region), ("cluster", &block.cluster), ("block", &block.block)];
    text::address("/nodes", parts.into_iter().map(|(key, value)| (key, value.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_state_has_its_own_letter_shape_and_colour() {
        let styles = include_str!("../assets/page.css");
        let page = fleet(&Frame::default(), &[], false);
        for state in DeviceState::ALL {
            let letter = state.letter();
            assert!(
                styles.contains(&format!(".state-{letter} {{ color: var(--state-{letter}); }}")),
                "{letter}"
            );
            assert!(page.contains(&format!("data-letter=\"{letter}\"")), "{letter}");
        }
        let differing = |of: fn(DeviceState) -> String| {
            DeviceState::ALL.into_iter().map(of).collect::<BTreeSet<String>>().len()
        };
        assert_eq!(differing(|state| state.letter().to_string()), DeviceState::ALL.len());
        assert_eq!(differing(|state| state.shape().to_owned()), DeviceState::ALL.len());
        assert_eq!(differing(|state| state.heading().to_owned()), DeviceState::ALL.len());
    }

    #[test]
    fn the_map_is_a_stop_of_the_keyboard_and_says_where_it_is() {
        let page = fleet(&Frame::default(), &[], false);
        assert!(
            page.contains("tabindex=\"0\" role=\"application\" aria-label=\"Map of the hosts\""),
            "{page}"
        );
        assert!(page.contains("id=\"map-host\" aria-live=\"polite\""), "{page}");
        let script = include_str!("../assets/page.js");
        for (value, _) in COLOURS {
            assert!(page.contains(&format!("<option value=\"{value}\">")), "{value}: {page}");
            assert!(script.contains(&format!("\"{value}\"")), "{value}");
        }
        for key in
            ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "PageUp", "PageDown", "Home", "End", "Enter"]
        {
            assert!(script.contains(key), "{key}");
        }
    }

    #[test]
    fn the_table_has_what_the_map_has() {
        let mut block = FleetBlock {
            region: "eu".to_owned(),
            cluster: "c".to_owned(),
            block: "b 1".to_owned(),
            ..FleetBlock::default()
        };
        for state in DeviceState::ALL {
            (0..=state as u64).for_each(|_| block.devices.add(state));
        }
        assert_eq!(block.devices.all(), [1, 2, 3, 4, 5, 6, 7, 8]);
        let page = fleet(&Frame::default(), &[block], false);
        assert!(page.contains("href=\"/nodes?region=eu&amp;cluster=c&amp;block=b%201\""), "{page}");
        for state in DeviceState::ALL {
            assert!(page.contains(&format!(">{}</th>", state.heading())), "{state:?}: {page}");
        }
    }
}
