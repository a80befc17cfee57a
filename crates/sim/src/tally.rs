//! What a replay counts while it goes.
//!
//! Everything is an integer of milliseconds and thousandths of devices until it is reported, so that the
//! order of additions cannot show.

use std::collections::BTreeMap;

use muster_types::Name;
use serde::Serialize;

use crate::summary::{Quantiles, ms_as_s, nearest_rank, percent, share};

/// A day of the trace.
pub(crate) const DAY_MS: u64 = 86_400_000;
/// Points of the line of queue lengths, at most.
const LENGTHS_MAX: usize = 512;
/// Points of a distribution.
const DISTRIBUTION_POINTS: u64 = 200;

/// Waits of the gangs of one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeClass {
    /// Devices of such a gang: `1`, `2-4`, `5-8` and so on by doubling. A share counts as one device, a gang
    /// without devices as `0`.
    pub devices: String,
    /// How long they waited.
    #[serde(flatten)]
    pub waits: Quantiles,
}

/// How much of a part of the fleet was in use.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RegionUse {
    /// The region; the cluster where jobs stay at home.
    pub region: String,
    /// Its devices.
    pub devices: u64,
    /// Share of its device-seconds that gangs held while there was work, over the whole replay.
    pub utilisation: f64,
    /// Percent of the same day by day; none for a day without work.
    pub by_day_percent: Vec<Option<f64>>,
}

/// A longest queue in a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Length {
    /// Where the stretch begins, in seconds of the trace.
    pub from_s: u64,
    /// Most jobs that waited at any moment of it.
    pub waiting_max: u64,
}

/// One day of use.
#[derive(Clone, Debug, Default)]
struct Day {
    /// Milliseconds with work.
    present_ms: u64,
    /// Milli-devices times milliseconds held, by region.
    held: Vec<u128>,
}

/// Sums over virtual time and over jobs.
pub(crate) struct Tally {
    regions: Vec<(Name, u64)>,
    /// Milli-devices held now, by region.
    held_now: Vec<u64>,
    days: Vec<Day>,
    lengths: Lengths,
    now_ms: u64,
    waits_ms: BTreeMap<u32, Vec<u64>>,
    turnarounds_ms: Vec<u64>,
}

impl Tally {
    /// Regions with their milli-devices.
    pub(crate) fn new(capacity: BTreeMap<Name, u64>) -> Tally {
        let regions: Vec<(Name, u64)> = capacity.into_iter().collect();
        Tally {
            held_now: vec![0; regions.len()],
            days: Vec::new(),
            lengths: Lengths::default(),
            now_ms: 0,
            waits_ms: BTreeMap::new(),
            turnarounds_ms: Vec::new(),
            regions,
        }
    }

    /// Where a region stands among them.
    pub(crate) fn region(&self, name: &Name) -> usize {
        self.regions.binary_search_by(|(known, _)| known.cmp(name)).expect("gangs are placed on known nodes")
    }

    /// Lets time pass in which nothing changed. `is_work` is whether anything waited or ran.
    pub(crate) fn advance(&mut self, to_ms: u64, is_work: bool) {
        while self.now_ms < to_ms {
            let day = usize::try_from(self.now_ms / DAY_MS).expect("a trace has fewer days than addresses");
            let until = to_ms.min((self.now_ms / DAY_MS + 1) * DAY_MS);
            let ms = until - self.now_ms;
            self.now_ms = until;
            if !is_work {
                // A trace may begin late or pause for long; days without work need no rows.
                self.now_ms = to_ms;
                continue;
            }
            let regions = self.regions.len();
            let empty = || Day { present_ms: 0, held: vec![0; regions] };
            if self.days.len() <= day {
                self.days.resize_with(day + 1, empty);
            }
            let day = &mut self.days[day];
            day.present_ms += ms;
            for (sum, held) in day.held.iter_mut().zip(&self.held_now) {
                *sum += u128::from(*held) * u128::from(ms);
            }
        }
    }

    /// This many wait now.
    pub(crate) fn waiting(&mut self, count: u64) {
        self.lengths.note(self.now_ms, count);
    }

    pub(crate) fn hold(&mut self, region: usize, milli: u64) {
        self.held_now[region] += milli;
    }

    pub(crate) fn release(&mut self, region: usize, milli: u64) {
        self.held_now[region] -= milli;
    }

    /// A job is over.
    pub(crate) fn finished(&mut self, total_milli: u64, wait_ms: u64, turnaround_ms: u64) {
        self.waits_ms.entry(size_class(total_milli)).or_default().push(wait_ms);
        self.turnarounds_ms.push(turnaround_ms);
    }

    /// Sorts what was counted; the report asks it.
    pub(crate) fn close(mut self) -> Closed {
        let mut all: Vec<u64> = self.waits_ms.values().flatten().copied().collect();
        all.sort_unstable();
        self.turnarounds_ms.sort_unstable();
        self.waits_ms.values_mut().for_each(|waits| waits.sort_unstable());
        Closed { waits_ms: all, tally: self }
    }
}

/// A tally with its values in order.
pub(crate) struct Closed {
    waits_ms: Vec<u64>,
    tally: Tally,
}

impl Closed {
    pub(crate) fn waits(&self) -> Quantiles {
        Quantiles::of(&self.waits_ms)
    }

    pub(crate) fn turnarounds(&self) -> Quantiles {
        Quantiles::of(&self.tally.turnarounds_ms)
    }

    pub(crate) fn by_size(&self) -> Vec<SizeClass> {
        let class = |(class, waits): (&u32, &Vec<u64>)| SizeClass {
            devices: size_class_name(*class),
            waits: Quantiles::of(waits),
        };
        self.tally.waits_ms.iter().map(class).collect()
    }

    /// Wait and percent of jobs that waited at most that long.
    pub(crate) fn distribution(&self) -> Vec<(f64, f64)> {
        if self.waits_ms.is_empty() {
            return Vec::new();
        }
        let point = |n: u64| {
            let rank = (n * self.waits_ms.len() as u64).div_ceil(DISTRIBUTION_POINTS).max(1);
            let at = usize::try_from(rank).unwrap_or(usize::MAX) - 1;
            let percent = 100.0 * rank as f64 / self.waits_ms.len() as f64;
            (ms_as_s(self.waits_ms[at]), percent)
        };
        let mut points: Vec<(f64, f64)> = (0..=DISTRIBUTION_POINTS).map(point).collect();
        points.dedup();
        points
    }

    /// Median of the longest waits of a class, for drawing boxes.
    pub(crate) fn boxes(&self) -> Vec<WaitBox> {
        let spread = |(class, waits): (&u32, &Vec<u64>)| WaitBox {
            devices: size_class_name(*class),
            count: waits.len() as u64,
            quartiles_s: [25, 50, 75].map(|percent| ms_as_s(nearest_rank(waits, percent))),
            p90_s: ms_as_s(nearest_rank(waits, 90)),
            max_s: ms_as_s(nearest_rank(waits, 100)),
        };
        self.tally.waits_ms.iter().map(spread).collect()
    }

    /// Milliseconds in which there was work.
    pub(crate) fn present_ms(&self) -> u64 {
        self.tally.days.iter().map(|day| day.present_ms).sum()
    }

    fn held(&self, region: usize) -> u128 {
        self.tally.days.iter().map(|day| day.held[region]).sum()
    }

    /// Milli-devices times milliseconds that gangs held.
    pub(crate) fn held_total(&self) -> u128 {
        (0..self.tally.regions.len()).map(|region| self.held(region)).sum()
    }

    /// Share of all device-seconds that gangs held while there was work.
    pub(crate) fn utilisation(&self) -> f64 {
        let capacity: u64 = self.tally.regions.iter().map(|(_, milli)| milli).sum();
        share(self.held_total(), u128::from(capacity) * u128::from(self.present_ms()))
    }

    pub(crate) fn by_region(&self) -> Vec<RegionUse> {
        let days = &self.tally.days;
        let regions = self.tally.regions.iter().enumerate();
        let region = |(at, (name, milli)): (usize, &(Name, u64))| {
            let whole = |ms: u64| u128::from(*milli) * u128::from(ms);
            let on = |day: &Day| (day.present_ms > 0).then(|| percent(day.held[at], whole(day.present_ms)));
            RegionUse {
                region: name.to_string(),
                devices: milli / 1_000,
                utilisation: share(self.held(at), whole(self.present_ms())),
                by_day_percent: days.iter().map(on).collect(),
            }
        };
        regions.map(region).collect()
    }

    pub(crate) fn lengths(&self) -> Vec<Length> {
        self.tally.lengths.points()
    }
}

/// Spread of the waits of one size of gang.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WaitBox {
    pub(crate) devices: String,
    pub(crate) count: u64,
    pub(crate) quartiles_s: [f64; 3],
    pub(crate) p90_s: f64,
    pub(crate) max_s: f64,
}

/// Number of a size class: 0 without devices, 1 for one, then 2-4, 5-8, 9-16 and so on.
fn size_class(total_milli: u64) -> u32 {
    match total_milli.div_ceil(1_000) {
        0 => 0,
        1 => 1,
        2..=4 => 2,
        // ⌈log2⌉ of 5..=8 is 3.
        devices => u64::BITS - (devices - 1).leading_zeros(),
    }
}

fn size_class_name(class: u32) -> String {
    match class {
        0 | 1 => class.to_string(),
        2 => "2-4".to_owned(),
        _ => format!("{}-{}", (1u64 << (class - 1)) + 1, 1u64 << class),
    }
}

/// Queue lengths over time, of bounded size: when there are too many stretches, two become one.
#[derive(Default)]
struct Lengths {
    stretch_ms: u64,
    longest: Vec<u64>,
    last: u64,
}

impl Lengths {
    fn note(&mut self, now_ms: u64, count: u64) {
        let stretch = |ms: u64| usize::try_from(now_ms / ms).unwrap_or(usize::MAX);
        self.stretch_ms = self.stretch_ms.max(60_000);
        while stretch(self.stretch_ms) >= LENGTHS_MAX {
            self.stretch_ms *= 2;
            self.longest = self.longest.chunks(2).map(|two| two.iter().copied().max().unwrap_or(0)).collect();
        }
        let at = stretch(self.stretch_ms);
        // Until now as many waited as when something last changed.
        if self.longest.len() <= at {
            self.longest.resize(at + 1, self.last);
        }
        self.longest[at] = self.longest[at].max(count);
        self.last = count;
    }

    fn points(&self) -> Vec<Length> {
        let point = |(at, longest): (usize, &u64)| Length {
            from_s: at as u64 * self.stretch_ms / 1_000,
            waiting_max: *longest,
        };
        self.longest.iter().enumerate().map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_double_from_class_to_class() {
        let cases = [
            (0, "0"),
            (1, "1"),
            (1_000, "1"),
            (2_000, "2-4"),
            (4_000, "2-4"),
            (5_000, "5-8"),
            (8_000, "5-8"),
            (9_000, "9-16"),
            (16_000, "9-16"),
            (17_000, "17-32"),
            (512_000, "257-512"),
        ];
        for (milli, name) in cases {
            assert_eq!(size_class_name(size_class(milli)), name, "{milli}");
        }
    }

    #[test]
    fn lengths_keep_their_peak_however_long_it_takes() {
        let mut lengths = Lengths::default();
        lengths.note(30_000, 7);
        lengths.note(40_000, 1);
        lengths.note(100 * DAY_MS, 3);
        let points = lengths.points();
        assert!(points.len() <= LENGTHS_MAX, "{}", points.len());
        assert_eq!(points[0], Length { from_s: 0, waiting_max: 7 });
        assert_eq!(points[1].waiting_max, 1, "nothing changed for a long time");
        assert_eq!(points.last().map(|point| point.waiting_max), Some(3));
    }

    #[test]
    fn use_is_counted_by_the_day_and_only_while_there_is_work() {
        let mut tally =
            Tally::new(BTreeMap::from([(Name::literal("a"), 4_000), (Name::literal("b"), 4_000)]));
        tally.advance(DAY_MS / 2, false);
        let b = tally.region(&Name::literal("b"));
        tally.hold(b, 2_000);
        tally.advance(DAY_MS + DAY_MS / 4, true);
        tally.release(b, 2_000);
        tally.advance(3 * DAY_MS, false);
        let closed = tally.close();
        assert_eq!(closed.present_ms(), DAY_MS / 4 * 3);
        assert_eq!(closed.utilisation(), 0.25);
        let regions = closed.by_region();
        assert_eq!(regions[0].by_day_percent, [Some(0.0), Some(0.0)]);
        assert_eq!((regions[1].utilisation, &regions[1].by_day_percent[..]), (0.5, &[Some(50.0); 2][..]));
    }
}
