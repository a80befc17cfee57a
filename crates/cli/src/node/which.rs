//! Which nodes a command is about: by their names, or all of a region or with some labels.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use muster_client::Client;
use muster_console::{Exit, Failure};
use muster_types::LabelSelector;

use super::labels;
use crate::complete;

/// Nodes that a command is about.
#[derive(Args)]
pub struct WhichNodes {
    /// Their names or ids
    #[arg(
        required_unless_present_any = ["region", "selector"],
        conflicts_with_all = ["region", "selector"],
        add = ArgValueCompleter::new(complete::nodes)
    )]
    nodes: Vec<String>,
    /// All nodes of this region, in place of names
    #[arg(long, value_name = "REGION")]
    region: Option<String>,
    /// All nodes whose labels match, in place of names: pool=research, zone in (a,b), !spot; several by commas
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = labels::selector)]
    selector: Option<LabelSelector>,
}

impl WhichNodes {
    /// Whether somebody typed their names, which may be wrong.
    pub(super) fn is_named(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Their names, which the cluster is asked for where a region or labels are given. No node at all is a failure, so that
    /// nobody takes a region with a wrong name for one that is drained.
    pub(super) async fn names(self, client: &Client) -> Result<Vec<String>, Failure> {
        if !self.nodes.is_empty() {
            return Ok(self.nodes);
        }
        let names = labels::selected(client, self.region.as_deref(), self.selector.as_ref()).await?;
        if names.is_empty() {
            return Err(Failure::new(Exit::NotFound, "no node is in this region and has these labels"));
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::WhichNodes;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        which: WhichNodes,
    }

    fn read(words: &[&str]) -> Option<WhichNodes> {
        Line::try_parse_from([&["cordon"], words].concat()).ok().map(|line| line.which)
    }

    #[test]
    fn nodes_are_named_or_described_and_not_both() {
        let named = read(&["h1", "h2"]).unwrap();
        assert_eq!((named.nodes, named.region), (vec!["h1".to_owned(), "h2".to_owned()], None));
        let described = read(&["--region", "eu-north", "-l", "pool=research"]).unwrap();
        assert!(described.nodes.is_empty() && described.selector.is_some());
        assert_eq!(described.region.as_deref(), Some("eu-north"));
        let wrong: [&[&str]; 4] =
            [&[], &["h1", "--region", "eu-north"], &["h1", "-l", "pool=a"], &["-l", "a in ("]];
        for words in wrong {
            assert!(read(words).is_none(), "{words:?}");
        }
    }
}
