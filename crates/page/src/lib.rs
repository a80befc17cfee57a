//! The web pages of a replica, rendered from its applied state.
//!
//! Messages of the API and a few numbers come in, and HTML comes out. `muster-api` reads the state, leaves out what the
//! reader may not see, and serves what is made here.
//!
//! **Invariant:** no IO and no clock; nothing is decided or looked up here.
//! **Invariant:** text that comes from people is shown as text: the template library escapes it, and only this crate's
//! own markup passes unescaped.
//! **Invariant:** a page holds no script, no style and no address of another site; scripts and styles are the files of
//! [`assets`]. The content security policy of the server refuses everything else.

pub mod assets;
mod cluster;
mod event;
mod filters;
mod fleet;
mod frame;
mod job;
mod jobs;
mod node;
mod overview;
mod pager;
mod plan;
mod queues;
mod starts;
mod text;
mod timeline;
mod travel;

pub use cluster::{RunningDrill, cluster};
pub use event::{Event, FORGOTTEN, Subject, events, records};
pub use filters::{GroupBy, JobQuery};
pub use fleet::{DeviceCounts, DeviceState, FleetBlock, fleet};
pub use frame::{Frame, problem};
pub use job::{JobDetail, job};
pub use jobs::{Group, Groups, jobs};
pub use node::{NodeQuery, node, nodes};
pub use overview::{ErrorBudget, ErrorBudgets, NextJob, Overview, PoolUse, QueueShown, overview};
pub use pager::Pager;
pub use plan::{PlanQuery, PlannedCost, PlannedJob, plan};
pub use queues::{Queues, TierQueue, queues};
pub use starts::{EstimateOf, ExpectedStart, StartsShown};
pub use text::brief;
pub use timeline::{Bar, EndKind, RowKind, Timeline, TimelineQuery, TimelineRow, timeline};
pub use travel::{TimeTravel, moment_ms};
