//! The generator: closed loops for the peak, open loops for latency.
//!
//! **Invariant:** in an open loop an operation is due at a time fixed beforehand, whatever became of those
//! before it, and its latency counts from then: a stall of the cluster is not hidden by clients that wait.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::figures::{Latencies, rounded};
use crate::machine::process_time;

/// Operations of an open loop that may be under way at once; more would measure this program.
const UNDER_WAY_MAX: usize = 20_000;

/// One connection that operations are sent over.
pub(crate) trait Caller: Clone + Send + Sync + 'static {
    /// One operation; whether it was acknowledged.
    fn call(&self) -> impl Future<Output = bool> + Send;
}

/// What a load came to.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) what: String,
    pub(crate) per_s: f64,
    /// Things in one operation: 100 for batches of 100.
    pub(crate) each: u32,
    pub(crate) failed: u64,
    pub(crate) latency: Latencies,
    /// Processor time per operation, by the name of a process: microseconds.
    pub(crate) processor_us: Vec<(String, f64)>,
}

impl Part {
    pub(crate) fn header() -> String {
        format!(
            "{:<44} {:>10} {:>8} {:>8} {:>8} {:>8} {:>7}  processor time, us each",
            "", "per s", "p50 ms", "p99 ms", "p99.9", "max ms", "failed"
        )
    }

    pub(crate) fn line(&self) -> String {
        let l = &self.latency;
        let times: Vec<String> = self.processor_us.iter().map(|(who, us)| format!("{who} {us:.0}")).collect();
        format!(
            "{:<44} {:>10.0} {:>8.2} {:>8.2} {:>8.2} {:>8.1} {:>7}  {}",
            self.what,
            self.things_per_s(),
            l.ms(0.5),
            l.ms(0.99),
            l.ms(0.999),
            l.max_ms(),
            self.failed,
            times.join(", ")
        )
    }

    /// Operations per second times the things in each.
    pub(crate) fn things_per_s(&self) -> f64 {
        self.per_s * f64::from(self.each)
    }

    pub(crate) fn json(&self) -> Value {
        let times: serde_json::Map<String, Value> =
            self.processor_us.iter().map(|(who, us)| (who.clone(), json!(rounded(*us)))).collect();
        json!({
            "what": self.what,
            "operations_per_s": rounded(self.per_s),
            "things_per_s": rounded(self.things_per_s()),
            "failed": self.failed,
            "latency": self.latency.json(),
            "processor_us_per_operation": times,
        })
    }
}

/// Processor time of some processes, from now on.
pub(crate) struct Meter {
    begun: Vec<(String, u32, Duration)>,
}

impl Meter {
    /// Of these processes, by name, and of this one.
    pub(crate) fn start(processes: &[(String, u32)]) -> Meter {
        let own = ("client".to_owned(), std::process::id());
        let all = std::iter::once(&own).chain(processes);
        Meter { begun: all.map(|(who, pid)| (who.clone(), *pid, process_time(*pid))).collect() }
    }

    fn per(&self, count: u64) -> Vec<(String, f64)> {
        let each = |(who, pid, before): &(String, u32, Duration)| {
            let spent = process_time(*pid).saturating_sub(*before);
            (who.clone(), spent.as_micros() as f64 / count.max(1) as f64)
        };
        self.begun.iter().map(each).collect()
    }
}

/// How a load is to be made.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) what: String,
    pub(crate) each: u32,
    pub(crate) length: Duration,
    /// Whose processor time is counted.
    pub(crate) processes: Vec<(String, u32)>,
}

/// Every client sends again as soon as it was answered. Clients share the connections evenly.
pub(crate) async fn closed<C: Caller>(load: &Load, connections: &[C], clients: u32) -> Result<Part> {
    let meter = Meter::start(&load.processes);
    let begun = Instant::now();
    let end = begun + load.length;
    let workers: Vec<_> = (0..clients as usize)
        .map(|n| {
            let connection = connections[n % connections.len()].clone();
            tokio::spawn(async move {
                let mut latency = Latencies::new()?;
                let mut failed = 0u64;
                let mut sent = Instant::now();
                while sent < end {
                    let acknowledged = connection.call().await;
                    let now = Instant::now();
                    if acknowledged {
                        latency.record(now - sent)
                    } else {
                        failed += 1
                    }
                    sent = now;
                }
                anyhow::Ok((latency, failed))
            })
        })
        .collect();
    let mut latency = Latencies::new()?;
    let mut failed = 0;
    for worker in workers {
        let (of_one, lost) = worker.await.context("a client panicked")??;
        latency.add(&of_one);
        failed += lost;
    }
    Ok(part(load, begun, &meter, latency, failed))
}

fn part(load: &Load, begun: Instant, meter: &Meter, latency: Latencies, failed: u64) -> Part {
    let seconds = begun.elapsed().as_secs_f64();
    Part {
        what: load.what.clone(),
        per_s: latency.count() as f64 / seconds,
        each: load.each,
        failed,
        processor_us: meter.per(latency.count()),
        latency,
    }
}

/// Operations are due at fixed times, `rate` a second. The clock that wakes the generator has steps of a
/// millisecond, so up to one of it is in every latency.
pub(crate) async fn open<C: Caller>(load: &Load, connections: &[C], rate: f64) -> Result<Part> {
    let meter = Meter::start(&load.processes);
    let latency = Arc::new(Mutex::new(Latencies::new()?));
    let failed = Arc::new(AtomicU64::new(0));
    let slots = Arc::new(Semaphore::new(UNDER_WAY_MAX));
    let begun = Instant::now();
    let count = (rate * load.length.as_secs_f64()) as u64;
    for n in 0..count {
        let due = begun + Duration::from_secs_f64(n as f64 / rate);
        if Instant::now() < due {
            tokio::time::sleep_until(due.into()).await;
        }
        let permit = Arc::clone(&slots).acquire_owned().await.context("the semaphore is never closed")?;
        let connection = connections[n as usize % connections.len()].clone();
        let (latency, failed) = (Arc::clone(&latency), Arc::clone(&failed));
        tokio::spawn(async move {
            if connection.call().await {
                let took = due.elapsed();
                latency.lock().record(took);
            } else {
                failed.fetch_add(1, Ordering::Relaxed);
            }
            drop(permit);
        });
    }
    let _all = slots.acquire_many(UNDER_WAY_MAX as u32).await.context("the semaphore is never closed")?;
    let latency = latency.lock().clone();
    Ok(part(load, begun, &meter, latency, failed.load(Ordering::Relaxed)))
}
