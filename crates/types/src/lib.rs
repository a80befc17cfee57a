//! The vocabulary of Muster: ids, quantities, topology, job, gang, lease, node, tenant.
//!
//! Values here cannot be constructed invalid: names are checked, quantities are bounded, and a
//! [`JobSpec`](job::JobSpec) exists only after every rule that concerns it alone has passed.
//!
//! **Invariant:** no clock, no randomness, no IO, no float arithmetic, no std: this crate knows
//! neither bytes nor protobuf. The serde derives describe the data model that `journal` encodes;
//! their layout is frozen per record format (see `crates/journal`).
#![no_std]
#![deny(missing_docs, clippy::float_arithmetic)]

extern crate alloc;

pub mod admission;
pub mod affinity;
pub mod array;
pub mod artifacts;
pub mod blob;
pub mod booking;
pub mod booking_rule;
pub mod bucket;
pub mod capacity;
pub mod config_value;
pub mod container;
pub mod contract;
pub mod control;
pub mod cron;
pub mod cycle;
pub mod demand;
pub mod denied;
pub mod feature;
pub mod fleet;
pub mod former_key;
pub mod health;
pub mod host_rules;
pub mod ids;
pub mod job;
mod job_notification;
pub mod lease;
pub mod licence;
pub mod limits;
pub mod log_format;
pub mod metadata;
pub mod metadata_bits;
pub mod name;
pub mod node_overrides;
pub mod node_requirements;
pub mod place;
pub mod policy;
pub mod probe;
pub mod purchase;
pub mod quantity;
pub mod queue;
pub mod read;
pub mod reason;
pub mod requester;
pub mod schedule;
pub mod selector;
pub mod stop;
pub mod terminal;
pub mod time;
pub mod token;
pub mod topology;
pub mod tpu;
pub mod trace;
pub mod worker_features;

pub use admission::{
    AdmissionMode, AdmissionRule, Approval, CertificateSerial, NodeAdmission, NodeBounds, Revocation,
};
pub use affinity::{Affinity, AffinityDomain, AffinityLevel, AffinityRule, AffinityTarget};
pub use array::{ARRAY_RULE, ArraySpec, IndexRange};
pub use artifacts::{ArtifactFault, ArtifactRules, Artifacts};
pub use blob::BlobDigest;
pub use booking::{
    Booking, BookingAmount, BookingClearing, BookingEnd, BookingShape, BookingSpec, BookingTimes,
    BookingWindow,
};
pub use booking_rule::{BookingRule, ListedWindows, Weekdays};
pub use capacity::{CapacityFallback, CapacityRules, PurchaseSet};
pub use container::{Container, Mount, PullRule, StartStage};
pub use contract::{
    CheckpointRules, FailureClass, JobContract, LaunchForm, NoticeRules, Preflight, RetryRules, Submission,
    Ulimits,
};
pub use control::{Control, FieldChange, GroupSize};
pub use cron::CronExpression;
pub use demand::{AcceleratorChoice, AcceleratorRequest, DeviceAmount};
pub use denied::{DENIED_LINE_BYTES_MAX, DeniedLine};
pub use feature::{Feature, Features};
pub use fleet::{Accelerators, AgentStart, DeviceSet, ForeignLoad, HolderId, NodeDraft, NodeSpec, StartId};
pub use host_rules::{CommandShell, CpuBinding, HostRules};
pub use ids::{ArrayId, ClusterId, JobId, Leadership, LogIndex, NodeId, ParseIdError, ReplicaId, RequestId};
pub use job::{
    Dependency, DependencyRule, DependencyScope, JobDraft, JobSpec, NamedDependency, PriorityTier,
    SIZES_VARIABLE, TaskGroup, WorkerRequest,
};
pub use job_notification::JobNotification;
pub use lease::{ExitStatus, FencingToken, Parameters};
pub use licence::Licences;
pub use log_format::LogFormat;
pub use metadata::JobMetadata;
pub use metadata_bits::MetadataBits;
pub use name::{NAME_RULE, Name};
pub use node_overrides::{NodeOverrides, NodeOverridesChange};
pub use node_requirements::{LabelTest, NodeExpression, NodeRequirements};
pub use place::{FleetHold, FleetPart, HoldTarget};
pub use queue::{QueueKey, QueueRank};
pub use read::{Consistency, PastPoint, ReadFrom};
pub use reason::{Refusal, RefusalCode, Violation};
pub use requester::Requester;
pub use schedule::{NextRun, OverlapRule, OwnerRole, Schedule, ScheduleKey, ScheduleRun, ScheduleTemplate};
pub use selector::{LabelSelector, SelectorError};
pub use stop::StopReason;
pub use time::{LogTime, Span};
pub use token::{Token, TokenGrant, TokenId, TokenRole};
pub use topology::{Level, Segment, Spread, TopologyRule};
pub use trace::TraceParent;
