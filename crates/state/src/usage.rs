//! What a tenant has used, counted less the longer ago it was, and how large a share that is.
//!
//! With half-life `h`, use at rate `r` at time `τ` weighs `r · 2^(-(t-τ)/h)` at time `t`; the *decayed
//! use* is the integral of that over the past. It comes from the log alone: when use begins and ends,
//! stamped with log time.
//!
//! **Exact along every path.** Log time is cut into windows of one half-life, counted from the epoch.
//! Inside a window, use is stored with the weight it will have at the window's end, as differences of one
//! fixed integer function of time ([`weight_integral`]); at the end it is halved. So the stored numbers
//! depend on when use began and ended, and not on how often anybody looked: `advance(a); advance(b)`
//! gives bit for bit what `advance(b)` gives.
//!
//! **Accuracy.** Weights come from a table of 64 steps to a half-life with straight lines between them:
//! at most 1.5e-5 above the true weight, relative to it, and so is every integral of them. Reading the
//! value at a moment takes one more weight: what is read is within 3e-5 of the true decayed use, and
//! less than one unit below that by rounding.
//!
//! **Range.** With rates below 2^64 and half-lives within the policy's bounds nothing overflows: a window
//! adds less than 2^115 and halving keeps the sum below 2^116, which is also held against bytes. Rates themselves saturate at 2^64 - 1,
//! which no fleet comes near.

use alloc::collections::BTreeMap;
use muster_types::policy::{POLICY_DURATION_MS_MAX, USAGE_HALF_LIFE_MS_MIN};
use muster_types::{LogTime, Name};
use serde::de::{Deserializer, Error, Unexpected};
use serde::{Deserialize, Serialize};

/// Steps of the table to one half-life.
const STEPS: u64 = 64;
/// One, as a weight.
const ONE: u64 = 1 << 32;
/// Bits behind the point of stored use.
const FRACTION_BITS: u32 = 16;
/// The natural logarithm of 2, as a weight.
const LN_2: u64 = 2_977_044_472;
/// Bytes to a unit of memory: use of memory is counted in MiB, begun ones as whole ones.
const MEMORY_UNIT_BYTES: u64 = 1 << 20;
/// What [`TenantUsage::share`] calls one.
pub const SHARE_ONE: u64 = 1_000_000_000;

/// `2^(-k/64)` in units of 2^-32, rounded to the nearest.
#[rustfmt::skip]
const WEIGHTS: [u64; STEPS as usize + 1] = [
    4_294_967_296, 4_248_701_965, 4_202_935_003, 4_157_661_043, 4_112_874_773, 4_068_570_940,
    4_024_744_348, 3_981_389_855, 3_938_502_376, 3_896_076_880, 3_854_108_391, 3_812_591_987,
    3_771_522_796, 3_730_896_002, 3_690_706_840, 3_650_950_594, 3_611_622_603, 3_572_718_252,
    3_534_232_978, 3_496_162_267, 3_458_501_653, 3_421_246_719, 3_384_393_094, 3_347_936_457,
    3_311_872_529, 3_276_197_082, 3_240_905_930, 3_205_994_934, 3_171_459_999, 3_137_297_074,
    3_103_502_151, 3_070_071_267, 3_037_000_500, 3_004_285_971, 2_971_923_842, 2_939_910_317,
    2_908_241_642, 2_876_914_102, 2_845_924_021, 2_815_267_765, 2_784_941_738, 2_754_942_382,
    2_725_266_179, 2_695_909_648, 2_666_869_345, 2_638_141_863, 2_609_723_834, 2_581_611_923,
    2_553_802_834, 2_526_293_303, 2_499_080_105, 2_472_160_047, 2_445_529_972, 2_419_186_755,
    2_393_127_307, 2_367_348_571, 2_341_847_524, 2_316_621_173, 2_291_666_561, 2_266_980_759,
    2_242_560_872, 2_218_404_036, 2_194_507_417, 2_170_868_212, 2_147_483_648,
];

/// Twice the integral over the first `k` steps, in steps times 2^-32: the trapezoids under the table.
const TRAPEZOIDS: [u64; STEPS as usize + 1] = {
    let mut sums = [0; STEPS as usize + 1];
    let mut k = 0;
    while k < STEPS as usize {
        sums[k + 1] = sums[k] + WEIGHTS[k] + WEIGHTS[k + 1];
        k += 1;
    }
    sums
};

/// What runs at a time, or begins and ends together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate<'a> {
    /// The type of its devices; none for work without.
    pub kind: Option<&'a Name>,
    /// Thousandths of a device.
    pub device_milli: u64,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// Memory.
    pub memory_bytes: u64,
}

/// What there is to share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Thousandths of a device, by accelerator type.
    pub device_milli: BTreeMap<Name, u64>,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// Memory.
    pub memory_bytes: u64,
}

/// One resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Meter {
    /// Units times milliseconds times 2^16, with the weight of the end of the window.
    #[serde(deserialize_with = "stored")]
    stored: u128,
    /// Units in use.
    running: u64,
}

/// What one tenant uses and has used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantUsage {
    as_of: LogTime,
    #[serde(deserialize_with = "half_life")]
    half_life_ms: u64,
    /// By accelerator type; a type with nothing left is not listed.
    devices: BTreeMap<Name, Meter>,
    cpu: Meter,
    memory: Meter,
}

impl TenantUsage {
    /// Nothing used yet. A half-life outside the policy's bounds is taken as the nearest inside, here and
    /// in [`TenantUsage::advance`].
    #[must_use]
    pub fn new(now: LogTime, half_life_ms: u64) -> TenantUsage {
        TenantUsage {
            as_of: now,
            half_life_ms: bounded(half_life_ms),
            devices: BTreeMap::new(),
            cpu: Meter::default(),
            memory: Meter::default(),
        }
    }

    /// The log time up to which use is counted.
    #[must_use]
    pub fn as_of(&self) -> LogTime {
        self.as_of
    }

    /// Counts use up to `now`; nothing when that is not later. Another half-life than before holds for
    /// all use, also past, from `now` on; changing it re-weighs what is stored, to within 5e-5 of it.
    pub fn advance(&mut self, now: LogTime, half_life_ms: u64) {
        if now <= self.as_of && bounded(half_life_ms) == self.half_life_ms {
            // Many gangs begin in one round, at one time.
            return;
        }
        let now = now.max(self.as_of);
        let span = Span { from: self.as_of.0, until: now.0, half_life_ms: self.half_life_ms };
        let next_ms = bounded(half_life_ms);
        let step = |meter: Meter| {
            let counted = meter.counted(span);
            if next_ms == span.half_life_ms { counted } else { counted.reweighed(span, next_ms) }
        };
        for meter in self.devices.values_mut() {
            *meter = step(*meter);
        }
        self.devices.retain(|_, meter| *meter != Meter::default());
        self.cpu = step(self.cpu);
        self.memory = step(self.memory);
        self.as_of = now;
        self.half_life_ms = next_ms;
    }

    /// Counts use that begins.
    pub fn start(&mut self, now: LogTime, rate: Rate<'_>) {
        self.advance(now, self.half_life_ms);
        self.change(rate, u64::saturating_add);
    }

    /// Counts use that ends, of what was started before.
    pub fn stop(&mut self, now: LogTime, rate: Rate<'_>) {
        self.advance(now, self.half_life_ms);
        self.change(rate, u64::saturating_sub);
        self.devices.retain(|_, meter| *meter != Meter::default());
    }

    /// Counts everything that runs as ended; what it used stays counted. For counting again what runs,
    /// where a new policy says that it counts for others.
    pub fn stop_all(&mut self, now: LogTime) {
        self.advance(now, self.half_life_ms);
        for meter in self.devices.values_mut().chain([&mut self.cpu, &mut self.memory]) {
            meter.running = 0;
        }
        self.devices.retain(|_, meter| *meter != Meter::default());
    }

    fn change(&mut self, rate: Rate<'_>, apply: impl Fn(u64, u64) -> u64) {
        if let Some(kind) = rate.kind
            && rate.device_milli > 0
        {
            let meter = self.devices.entry(kind.clone()).or_default();
            meter.running = apply(meter.running, rate.device_milli);
        }
        self.cpu.running = apply(self.cpu.running, rate.cpu_milli);
        self.memory.running = apply(self.memory.running, rate.memory_bytes.div_ceil(MEMORY_UNIT_BYTES));
    }

    /// The use of both together, as of the later moment of the two.
    #[must_use]
    pub fn with(&self, other: &TenantUsage) -> TenantUsage {
        self.combined(other, u128::saturating_add, u64::saturating_add)
    }

    /// What is left of it without a part of it, as of the later moment of the two.
    #[must_use]
    pub fn without(&self, part: &TenantUsage) -> TenantUsage {
        self.combined(part, u128::saturating_sub, u64::saturating_sub)
    }

    fn combined(
        &self,
        other: &TenantUsage,
        stored: impl Fn(u128, u128) -> u128,
        running: impl Fn(u64, u64) -> u64,
    ) -> TenantUsage {
        let (mut sum, mut other) = (self.clone(), other.clone());
        let now = sum.as_of.max(other.as_of);
        sum.advance(now, self.half_life_ms);
        other.advance(now, self.half_life_ms);
        let both = |a: Meter, b: Meter| Meter {
            stored: stored(a.stored, b.stored),
            running: running(a.running, b.running),
        };
        for (kind, meter) in &other.devices {
            let own = sum.devices.entry(kind.clone()).or_default();
            *own = both(*own, *meter);
        }
        sum.devices.retain(|_, meter| *meter != Meter::default());
        sum.cpu = both(sum.cpu, other.cpu);
        sum.memory = both(sum.memory, other.memory);
        sum
    }

    /// Whether nothing runs, and what is left of the past at `now` is less than a device, a CPU and a GiB for a second each.
    #[must_use]
    pub fn is_negligible(&self, now: LogTime) -> bool {
        let mut row = self.clone();
        row.advance(now, self.half_life_ms);
        let below = |meter: &Meter, units: u64| {
            meter.running == 0 && meter.stored >> FRACTION_BITS < u128::from(units * 1_000)
        };
        row.devices.values().all(|meter| below(meter, 1_000))
            && below(&row.cpu, 1_000)
            && below(&row.memory, 1 << 10)
    }

    /// Whether nothing runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let mut meters = self.devices.values().chain([&self.cpu, &self.memory]);
        meters.all(|meter| meter.running == 0)
    }

    /// Whether nothing runs and nothing past is left, so that the row may go.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.devices.is_empty() && self.cpu == Meter::default() && self.memory == Meter::default()
    }

    /// Thousandths of a device of this type in use.
    #[must_use]
    pub fn running_milli(&self, kind: &Name) -> u64 {
        self.devices.get(kind).map_or(0, |meter| meter.running)
    }

    /// Thousandths of CPUs in use.
    #[must_use]
    pub fn running_cpu_milli(&self) -> u64 {
        self.cpu.running
    }

    /// Memory in use, in bytes; begun MiB of a gang count as whole ones.
    #[must_use]
    pub fn running_memory_bytes(&self) -> u64 {
        self.memory.running.saturating_mul(MEMORY_UNIT_BYTES)
    }

    /// Thousandths of a device in use, by type, for every type of which use counts; types ascending.
    pub fn running(&self) -> impl Iterator<Item = (&Name, u64)> {
        self.devices.iter().map(|(kind, meter)| (kind, meter.running))
    }

    /// Decayed use of a type, in thousandths of a device times milliseconds, at `now` or, when that is
    /// later, [`TenantUsage::as_of`].
    #[must_use]
    pub fn decayed_milli_ms(&self, kind: &Name, now: LogTime) -> u128 {
        let span = self.span(now);
        self.devices.get(kind).map_or(0, |meter| meter.counted(span).value(span) >> FRACTION_BITS)
    }

    /// The dominant share at `now`, divided by the tenant's weight, in parts of [`SHARE_ONE`].
    ///
    /// For each resource, with decayed use `V`, running rate `r`, capacity `c` and half-life `h`, the use
    /// one half-life ahead, if nothing begins or ends, is `P = V/2 + r · h/(2 ln 2)`. Someone who has held
    /// everything for ever has `c · h/ln 2`. The share is `P` divided by that,
    ///
    /// ```text
    /// share = (V · ln 2 / h + r) / (2 c)
    /// ```
    ///
    /// and the greatest over all resources is the dominant one. What is not in the fleet (`c = 0`)
    /// cannot be compared and is left out. Saturates, at what no use of devices that exist comes near. A weight of zero, which
    /// nothing can be divided by, counts as the ordinary one.
    #[must_use]
    pub fn share(&self, now: LogTime, capacity: &Capacity, weight_milli: u32) -> u64 {
        let span = self.span(now);
        let of_kind = self.devices.iter().map(|(kind, &meter)| {
            let there_is = capacity.device_milli.get(kind).copied().unwrap_or(0);
            (meter, there_is)
        });
        let host = [
            (self.cpu, capacity.cpu_milli),
            (self.memory, capacity.memory_bytes.div_ceil(MEMORY_UNIT_BYTES)),
        ];
        let shares = of_kind.chain(host).map(|(meter, there_is)| meter.share(span, there_is));
        let dominant = shares.max().unwrap_or(0);
        let divisor = if weight_milli == 0 { 1_000 } else { weight_milli };
        let weighted = dominant.saturating_mul(1_000) / u128::from(divisor);
        u64::try_from(weighted).unwrap_or(u64::MAX)
    }

    fn span(&self, now: LogTime) -> Span {
        Span { from: self.as_of.0, until: now.max(self.as_of).0, half_life_ms: self.half_life_ms }
    }
}

/// A stretch of log time, under one half-life.
#[derive(Clone, Copy)]
struct Span {
    from: u64,
    until: u64,
    half_life_ms: u64,
}

impl Meter {
    /// With use counted up to the end of the span.
    fn counted(self, span: Span) -> Meter {
        let h = span.half_life_ms;
        let running = u128::from(self.running);
        let (first, last) = (span.from / h, span.until / h);
        let (from, until) = (span.from % h, span.until % h);
        // From within a window to its end, or to the end of the span.
        let integral =
            |from: u64, until: u64| running * (weight_integral(h - from, h) - weight_integral(h - until, h));
        if first == last {
            return Meter { stored: self.stored + integral(from, until), ..self };
        }
        let mut stored = (self.stored + integral(from, h)) >> 1;
        let whole_window = integral(0, h);
        for _ in first + 1..last {
            let next = (stored + whole_window) >> 1;
            // From here on every window ends as it began.
            if next == stored {
                break;
            }
            stored = next;
        }
        Meter { stored: stored + integral(0, until), ..self }
    }

    /// The decayed use at the end of a span up to which it is counted, in units times milliseconds times
    /// 2^16.
    fn value(self, span: Span) -> u128 {
        // The weight of the window's end as seen from here is the inverse of 2^(-(time to it)/h).
        times(self.stored, 2 * weight(span.until % span.half_life_ms, span.half_life_ms))
    }

    /// The same value at the end of the span, as it is stored under another half-life.
    fn reweighed(self, span: Span, half_life_ms: u64) -> Meter {
        let to_end = half_life_ms - span.until % half_life_ms;
        Meter { stored: times(self.value(span), weight(to_end, half_life_ms)), ..self }
    }

    /// Its share, in parts of [`SHARE_ONE`].
    fn share(self, span: Span, capacity: u64) -> u128 {
        if capacity == 0 {
            return 0;
        }
        let h = u128::from(span.half_life_ms);
        let past = times(self.counted(span).value(span), LN_2) >> FRACTION_BITS;
        let ahead = past + u128::from(self.running) * h;
        ahead.saturating_mul(SHARE_ONE.into()) / (2 * u128::from(capacity) * h)
    }
}

/// Stored use that [`Meter`] can have come to; see the range in the module's text.
fn stored<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
    let stored = u128::deserialize(deserializer)?;
    if stored >> 116 == 0 { Ok(stored) } else { Err(Error::custom("decayed use must be below 2^116")) }
}

fn half_life<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let ms = u64::deserialize(deserializer)?;
    if bounded(ms) == ms {
        Ok(ms)
    } else {
        Err(Error::invalid_value(Unexpected::Unsigned(ms), &"a half-life within the policy's bounds"))
    }
}

fn bounded(half_life_ms: u64) -> u64 {
    half_life_ms.clamp(USAGE_HALF_LIFE_MS_MIN, POLICY_DURATION_MS_MAX)
}

/// `value · weight / 2^32`, rounded down; for values below 2^116 and weights of at most two.
fn times(value: u128, weight: u64) -> u128 {
    let weight = u128::from(weight);
    (value >> 32) * weight + (((value & u128::from(u32::MAX)) * weight) >> 32)
}

/// Step of the table and place in it, in 64ths of a millisecond.
fn step(ms: u64, half_life_ms: u64) -> (usize, u128) {
    let place = ms * STEPS;
    ((place / half_life_ms) as usize, (place % half_life_ms).into())
}

/// `2^(-ms/h)` in units of 2^-32, for `ms` up to `h`: the table, and straight lines between its steps.
fn weight(ms: u64, half_life_ms: u64) -> u64 {
    let (k, place) = step(ms, half_life_ms);
    let Some(&next) = WEIGHTS.get(k + 1) else { return ONE / 2 };
    let fall = u128::from(WEIGHTS[k] - next) * place / u128::from(half_life_ms);
    // At most the difference of two weights.
    WEIGHTS[k] - fall as u64
}

/// The integral of [`weight`] over the first `ms` milliseconds, for `ms` up to `h`, in units of 2^-16
/// milliseconds, rounded down once. It never falls as `ms` grows.
fn weight_integral(ms: u64, half_life_ms: u64) -> u128 {
    let h = u128::from(half_life_ms);
    let (k, place) = step(ms, half_life_ms);
    // Twice the area in steps of h/64, times h: whole trapezoids, then the part of the next one.
    let whole = u128::from(TRAPEZOIDS[k]) * h * h;
    let part = WEIGHTS.get(k + 1).map_or(0, |&next| {
        let fall = u128::from(WEIGHTS[k] - next);
        2 * u128::from(WEIGHTS[k]) * place * h - fall * place * place
    });
    ((whole + part) / (h * u128::from(2 * STEPS))) >> (32 - FRACTION_BITS)
}

const _: () = assert!(WEIGHTS[0] == ONE && WEIGHTS[STEPS as usize] == ONE / 2);
// The largest intermediate of `weight_integral`: 2^7 steps of weight 2^32, times h twice.
const _: () = assert!(POLICY_DURATION_MS_MAX < 1 << 36);
