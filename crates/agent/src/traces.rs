//! Spans of the launches of workers, where a collector is configured.
//!
//! **Invariant:** no launch waits for it, and no span has a command or a variable of an environment.

use crate::rules::{Placement, WorkerKey};
use muster_traces::{Side, TracesFile, names, tracer};
use muster_types::TraceParent;
use std::time::{Duration, Instant};

/// Launches that have not ended and are a part of a trace. Of more, none has a span.
pub(crate) const LAUNCHES_MAX: usize = 4_096;
/// How long an agent that stops waits for its collector.
const END_MAX: Duration = Duration::from_millis(1_000);

/// A launch that is a part of a trace.
#[derive(Debug)]
pub(crate) struct TracedLaunch {
    /// The span that the job was submitted in.
    parent: TraceParent,
    own: TraceParent,
    tenant: String,
    node: String,
    attempt: u32,
}

impl TracedLaunch {
    /// That of a worker which is launched now; none where nothing is recorded.
    pub(crate) fn of(placement: &Placement, rank: u32) -> Option<TracedLaunch> {
        tracer()?;
        let node = placement.rank_map.get(usize::try_from(rank).ok()?)?;
        Some(TracedLaunch {
            parent: placement.trace_parent?,
            own: placement.span_of(rank)?,
            tenant: placement.tenant.clone(),
            node: node.node_name.clone(),
            attempt: placement.attempt,
        })
    }

    /// The launch has ended: the worker runs, or this is why it does not.
    pub(crate) fn end(self, key: WorkerKey, since: Option<Instant>, failure: Option<&str>) {
        let Some(tracer) = tracer() else { return };
        let Some(mut span) = tracer.child_as(names::LAUNCH, Side::Consumer, self.parent, self.own) else {
            return;
        };
        span.set(names::JOB, key.job.to_string());
        span.set(names::RANK, key.rank);
        span.set(names::ATTEMPT, self.attempt);
        span.set(names::NODE, self.node);
        span.set(names::TENANT, self.tenant);
        let now = Instant::now();
        span.lasted(since.unwrap_or(now), now);
        if let Some(why) = failure {
            span.fail(why);
        }
    }
}

/// Has spans recorded and sent from now on, where the configuration names a collector. `instance` is the node, or the cluster whose
/// nodes this agent stands for.
pub(crate) fn begin(file: &TracesFile, instance: &str) {
    // The configuration was checked.
    let Ok(Some(settings)) = file.check() else { return };
    let resource = vec![
        ("service.name", "muster-agent".to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id", instance.to_owned()),
    ];
    muster_traces::begin(&settings, resource, env!("CARGO_PKG_VERSION"));
}

/// The agent stops: sends what has ended.
pub(crate) async fn end() {
    muster_traces::end(END_MAX).await;
}
