//! What was seen, made into reports: the same thing once, storms as counts, nothing that the leader knows already.

use crate::monitoring::DeviceConditions;
use muster_types::health::{Finding, HealthReport, Observation, RepairEnd};
use muster_types::{DeviceSet, LogTime, limits};
use muster_wire::{agent, convert};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// An event that comes again is told again after this time at the earliest, with its count.
const SAME_EVENT: Duration = Duration::from_secs(10);
/// Two sources tell of one event within this time.
const SAME_MOMENT: Duration = Duration::from_secs(10);
/// From one report to the next, whatever happens.
const BETWEEN_REPORTS: Duration = Duration::from_millis(500);

/// Who saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Library,
    KernelLog,
}

type Key = (Finding, Option<u16>);

fn key(observation: &Observation) -> Key {
    (observation.finding, observation.device)
}

/// A report on its way.
struct ReportInFlight {
    sequence: u64,
    report: HealthReport,
    repair: Option<(u64, RepairEnd)>,
}

/// Everything there is to tell.
pub(crate) struct Collector {
    boot: u64,
    findings: Vec<Observation>,
    maintenance: Option<LogTime>,
    /// Events that were not told yet.
    events: BTreeMap<Key, Observation>,
    /// When each was told last.
    told: BTreeMap<Key, Instant>,
    /// Who saw each first, and when.
    seen: BTreeMap<Key, (Origin, Instant)>,
    reset: DeviceSet,
    dropped: u64,
    sequence: u64,
    sent: Option<ReportInFlight>,
    last_sent: Option<Instant>,
    /// What the leader knows, in this session; none before it was told anything.
    known: Option<(Vec<Observation>, Option<LogTime>)>,
    /// The repair whose end it knows.
    told_repair: Option<u64>,
}

impl Collector {
    pub(crate) fn new(boot: u64) -> Collector {
        Collector {
            boot,
            findings: Vec::new(),
            maintenance: None,
            events: BTreeMap::new(),
            told: BTreeMap::new(),
            seen: BTreeMap::new(),
            reset: DeviceSet::EMPTY,
            dropped: 0,
            sequence: 0,
            sent: None,
            last_sent: None,
            known: None,
            told_repair: None,
        }
    }

    /// Something happened.
    pub(crate) fn saw(&mut self, now: Instant, origin: Origin, event: Observation) {
        let key = key(&event);
        self.seen.retain(|_, (_, at)| now.duration_since(*at) < SAME_MOMENT);
        match self.seen.get(&key) {
            // The other source tells of it as well.
            Some((first, _)) if *first != origin => return,
            _ => {}
        }
        if self.seen.len() < limits::HEALTH_CONDITIONS_MAX {
            self.seen.insert(key, (origin, now));
        }
        if let Some(known) = self.events.get_mut(&key) {
            known.count = known.count.saturating_add(event.count);
            known.recovery = event.recovery.or(known.recovery);
        } else if self.events.len() < limits::HEALTH_EVENTS_MAX {
            self.events.insert(key, event);
        } else {
            self.dropped += 1;
            if self.dropped.is_power_of_two() {
                tracing::warn!(
                    dropped = self.dropped,
                    "more kinds of XIDs than a report takes; some are not told"
                );
            }
        }
    }

    /// What is wrong now.
    pub(crate) fn findings(&mut self, findings: Vec<Observation>) {
        self.findings = findings;
        self.findings.truncate(limits::HEALTH_CONDITIONS_MAX);
    }

    /// This is wrong as well. It comes first, so that no number of others displaces it.
    pub(crate) fn found(&mut self, finding: Option<Observation>) {
        if let Some(finding) = finding {
            self.findings.insert(0, finding);
            self.findings.truncate(limits::HEALTH_CONDITIONS_MAX);
        }
    }

    /// What is wrong now by device; where nothing is known of the host's devices, all of them are in doubt.
    pub(crate) fn conditions(&self) -> DeviceConditions {
        let mut conditions = DeviceConditions::default();
        for observation in &self.findings {
            let devices =
                observation.device.map_or(DeviceSet(u64::MAX), |device| DeviceSet(1 << (device % 64)));
            let of = match observation.finding {
                Finding::DeviceLost | Finding::RowRemapFailed | Finding::Recovery(_) => {
                    &mut conditions.failed
                }
                Finding::Xid(_)
                | Finding::EccUncorrectable
                | Finding::RowRemapPending
                | Finding::Slowdown
                | Finding::Fabric
                | Finding::MonitorHung
                | Finding::Network
                | Finding::HostCommand => &mut conditions.degraded,
            };
            *of = of.union(devices);
        }
        conditions
    }

    /// Devices that were reset.
    pub(crate) fn was_reset(&mut self, devices: DeviceSet) {
        self.reset = self.reset.union(devices);
    }

    /// What the provider says.
    pub(crate) fn maintenance(&mut self, at: Option<LogTime>) {
        self.maintenance = at;
    }

    /// The next report goes to a leader that may know nothing.
    pub(crate) fn session_changed(&mut self) {
        if let Some(sent) = self.sent.take() {
            // What was on its way may not have arrived.
            for event in sent.report.events {
                self.told.remove(&key(&event));
                self.events.entry(key(&event)).or_insert(event);
            }
            self.reset = self.reset.union(sent.report.reset);
        }
        self.known = None;
    }

    /// The leader has taken a report over.
    pub(crate) fn acknowledged(&mut self, sequence: u64) {
        let Some(sent) = self.sent.take_if(|sent| sent.sequence == sequence) else { return };
        self.known = Some((sent.report.findings, sent.report.maintenance_at));
        if let Some((number, _)) = sent.repair {
            self.told_repair = Some(number);
        }
    }

    /// The repair whose end the leader knows.
    pub(crate) fn told_repair(&self) -> Option<u64> {
        self.told_repair
    }

    /// The next report, when there is something to tell and nothing on its way.
    pub(crate) fn due(
        &mut self,
        now: Instant,
        repair: Option<(u64, RepairEnd)>,
    ) -> Option<agent::HealthReport> {
        let repair = repair.filter(|(number, _)| self.told_repair != Some(*number));
        let too_early = self.last_sent.is_some_and(|at| now.duration_since(at) < BETWEEN_REPORTS);
        if self.sent.is_some() || (too_early && self.known.is_some()) {
            return None;
        }
        self.told.retain(|_, at| now.duration_since(*at) < SAME_EVENT);
        let ready: Vec<Key> =
            self.events.keys().filter(|key| !self.told.contains_key(*key)).copied().collect();
        // What differs in its words alone is not news.
        let keys = |list: &[Observation]| list.iter().map(key).collect::<Vec<_>>();
        let is_news = self.known.as_ref().is_none_or(|(findings, maintenance)| {
            keys(findings) != keys(&self.findings) || *maintenance != self.maintenance
        });
        if !is_news && ready.is_empty() && self.reset.is_empty() && repair.is_none() {
            return None;
        }
        let events = ready.into_iter().filter_map(|key| {
            self.told.insert(key, now);
            self.events.remove(&key)
        });
        let report = HealthReport {
            boot: self.boot,
            events: events.collect(),
            findings: self.findings.clone(),
            reset: std::mem::take(&mut self.reset),
            maintenance_at: self.maintenance,
            repair: None,
        };
        self.sequence += 1;
        self.last_sent = Some(now);
        let mut message = convert::health_report_to_proto(&report);
        message.sequence = self.sequence;
        if let Some((number, end)) = &repair {
            message.repair_number = *number;
            if let RepairEnd::Failed(why) = end {
                message.repair_failure.clone_from(why);
            }
        }
        self.sent = Some(ReportInFlight { sequence: self.sequence, report, repair });
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xid(code: u16) -> Observation {
        Observation::of(Finding::Xid(code), Some(1))
    }

    #[test]
    fn the_first_report_of_a_session_says_even_that_nothing_is_wrong() {
        let now = Instant::now();
        let mut collector = Collector::new(9);
        let first = collector.due(now, None).unwrap();
        assert_eq!((first.boot, first.findings.len(), first.events.len()), (9, 0, 0));
        assert!(collector.due(now, None).is_none(), "one at a time");
        collector.acknowledged(first.sequence);
        assert!(collector.due(now + BETWEEN_REPORTS, None).is_none(), "nothing is new");
        collector.session_changed();
        assert!(collector.due(now + BETWEEN_REPORTS, None).is_some());
    }

    #[test]
    fn a_device_is_failed_or_degraded_by_what_is_found() {
        let mut collector = Collector::new(1);
        let found = |finding, device| Observation::of(finding, Some(device));
        collector.findings(vec![
            found(Finding::Slowdown, 0),
            found(Finding::DeviceLost, 3),
            found(Finding::EccUncorrectable, 3),
        ]);
        let wanted = DeviceConditions { failed: DeviceSet(0b1000), degraded: DeviceSet(0b1001) };
        assert_eq!(collector.conditions(), wanted);
        collector.findings(vec![Observation::of(Finding::MonitorHung, None)]);
        assert_eq!(collector.conditions().degraded, DeviceSet(u64::MAX));
        collector.findings(Vec::new());
        assert_eq!(collector.conditions(), DeviceConditions::default());
        collector.findings(vec![found(Finding::Slowdown, 0); limits::HEALTH_CONDITIONS_MAX]);
        collector.found(Some(Observation::of(Finding::HostCommand, None)));
        collector.found(None);
        assert_eq!(collector.findings.len(), limits::HEALTH_CONDITIONS_MAX);
        assert_eq!(collector.findings[0].finding, Finding::HostCommand);
    }

    #[test]
    fn a_storm_is_one_event_with_a_count() {
        let start = Instant::now();
        let mut collector = Collector::new(1);
        let mut reports = Vec::new();
        for step in 0..30_000u32 {
            let now = start + Duration::from_millis(step.into());
            collector.saw(now, Origin::Library, xid(13));
            if let Some(report) = collector.due(now, None) {
                collector.acknowledged(report.sequence);
                reports.push(report);
            }
        }
        let counts: Vec<u32> = reports.iter().flat_map(|r| &r.events).map(|e| e.count).collect();
        assert_eq!(counts, [1, 10_000, 10_000], "one each ten seconds, and none is lost");
    }

    #[test]
    fn two_sources_tell_of_one_event() {
        let now = Instant::now();
        let mut collector = Collector::new(1);
        collector.saw(now, Origin::KernelLog, xid(79));
        collector.saw(now, Origin::Library, xid(79));
        collector.saw(now, Origin::Library, xid(48));
        let report = collector.due(now, None).unwrap();
        let told: Vec<(&str, u32)> = report.events.iter().map(|e| (e.finding.as_str(), e.count)).collect();
        assert_eq!(told, [("xid-48", 1), ("xid-79", 1)]);
    }

    #[test]
    fn what_a_broken_session_did_not_acknowledge_is_told_again() {
        let now = Instant::now();
        let mut collector = Collector::new(1);
        collector.saw(now, Origin::Library, xid(79));
        collector.was_reset(DeviceSet(4));
        let lost = collector.due(now, Some((7, RepairEnd::Done))).unwrap();
        assert_eq!((lost.repair_number, lost.reset_devices.as_slice()), (7, [2].as_slice()));
        collector.session_changed();
        let again = collector.due(now, Some((7, RepairEnd::Done))).unwrap();
        assert_eq!((again.events.len(), again.reset_devices.len(), again.repair_number), (1, 1, 7));
        collector.acknowledged(lost.sequence);
        assert_eq!(collector.told_repair(), None, "an answer to another report is none");
        collector.acknowledged(again.sequence);
        assert_eq!(collector.told_repair(), Some(7));
    }

    #[test]
    fn kinds_beyond_the_bound_are_dropped_and_nothing_grows() {
        let now = Instant::now();
        let mut collector = Collector::new(1);
        for code in 0..10_000 {
            collector.saw(now, Origin::Library, xid(code));
        }
        assert!(collector.seen.len() <= limits::HEALTH_CONDITIONS_MAX);
        let report = collector.due(now, None).unwrap();
        assert_eq!(report.events.len(), limits::HEALTH_EVENTS_MAX);
        assert!(convert::health_report_from_proto("health", &report).is_ok());
    }
}
