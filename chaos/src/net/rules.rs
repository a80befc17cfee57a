//! What can be said about the network between hosts: places, rules for ordered pairs of them, and their text.
//!
//! A rule speaks of every ordered pair with its first host in one place and its second in another, so that
//! one-way faults are as easy to say as both-way ones.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Packets of one link that may wait for the rate: what a router's buffer would hold.
pub const QUEUE_BYTES: u64 = 1 << 20;

const PARTS: u32 = 1_000_000;

/// Where a packet comes from or goes to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostSet {
    /// Every host. Text: `*`.
    Everyone,
    /// Every host of a region. Text: `region:A`.
    Region(String),
    /// One host. Text: its name.
    Host(String),
}

/// A share of packets, in millionths. Text: `5%`, `0.1%`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PacketRatio(u32);

impl PacketRatio {
    /// No packet.
    pub const NONE: PacketRatio = PacketRatio(0);
    /// Every packet.
    pub const ALL: PacketRatio = PacketRatio(PARTS);

    /// A number of packets per hundred; more than all is all.
    pub fn percent(percent: u32) -> PacketRatio {
        PacketRatio(percent.saturating_mul(PARTS / 100).min(PARTS))
    }

    /// A number of packets per million; more than all is all.
    pub fn millionths(millionths: u32) -> PacketRatio {
        PacketRatio(millionths.min(PARTS))
    }

    /// In millionths.
    pub fn as_millionths(self) -> u32 {
        self.0
    }
}

/// What a link does to packets. The default carries each at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// How long a packet is under way.
    pub delay: Duration,
    /// How much longer or shorter that may be; the order of packets stays.
    pub jitter: Duration,
    /// Packets that do not arrive.
    pub loss: PacketRatio,
    /// Packets that arrive twice.
    pub duplicate: PacketRatio,
    /// Packets that overtake: they are under way for half the delay.
    pub reorder: PacketRatio,
    /// Packets with one bit turned.
    pub corrupt: PacketRatio,
    /// Bits per second; `None` is without a limit.
    pub rate: Option<u64>,
    /// Bytes that may wait for the rate; what does not fit is dropped.
    pub queue_bytes: u64,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: PacketRatio::NONE,
            duplicate: PacketRatio::NONE,
            reorder: PacketRatio::NONE,
            corrupt: PacketRatio::NONE,
            rate: None,
            queue_bytes: QUEUE_BYTES,
        }
    }
}

/// A change of some of a link's properties; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkChange {
    /// Text: `delay=15ms`.
    pub delay: Option<Duration>,
    /// Text: `jitter=1ms`.
    pub jitter: Option<Duration>,
    /// Text: `loss=5%`.
    pub loss: Option<PacketRatio>,
    /// Text: `duplicate=1%`.
    pub duplicate: Option<PacketRatio>,
    /// Text: `reorder=1%`.
    pub reorder: Option<PacketRatio>,
    /// Text: `corrupt=0.1%`.
    pub corrupt: Option<PacketRatio>,
    /// Text: `rate=10mbit`, `rate=none`.
    pub rate: Option<Option<u64>>,
    /// Text: `queue=65536`, in bytes.
    pub queue_bytes: Option<u64>,
}

impl LinkChange {
    /// Sets the delay alone.
    pub fn delay(delay: Duration) -> LinkChange {
        LinkChange { delay: Some(delay), ..LinkChange::default() }
    }

    pub(super) fn apply(&self, link: &mut Link) {
        link.delay = self.delay.unwrap_or(link.delay);
        link.jitter = self.jitter.unwrap_or(link.jitter);
        link.loss = self.loss.unwrap_or(link.loss);
        link.duplicate = self.duplicate.unwrap_or(link.duplicate);
        link.reorder = self.reorder.unwrap_or(link.reorder);
        link.corrupt = self.corrupt.unwrap_or(link.corrupt);
        link.rate = self.rate.unwrap_or(link.rate);
        link.queue_bytes = self.queue_bytes.unwrap_or(link.queue_bytes);
    }
}

/// One change of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Nothing passes from one place to the other any more, silently. Text: `cut a1 region:B`.
    Cut {
        /// Where packets come from.
        from: HostSet,
        /// Where they go.
        to: HostSet,
    },
    /// Ends a cut or a flapping. Text: `mend a1 region:B`.
    Mend {
        /// Where packets come from.
        from: HostSet,
        /// Where they go.
        to: HostSet,
    },
    /// Alternately cut and mended, beginning with mended. Text: `flap a1 * up=300ms down=200ms`.
    Flap {
        /// Where packets come from.
        from: HostSet,
        /// Where they go.
        to: HostSet,
        /// How long packets pass.
        up: Duration,
        /// How long they do not.
        down: Duration,
    },
    /// Changes what links do to packets. Text: `link region:A region:B delay=15ms loss=5%`.
    Link {
        /// Where packets come from.
        from: HostSet,
        /// Where they go.
        to: HostSet,
        /// What becomes different.
        change: LinkChange,
    },
    /// Ends every cut and flapping, and gives links the properties that the network was built with. Text: `heal`.
    Heal,
}

impl Rule {
    /// Cuts both directions.
    pub fn cut_both(one: &HostSet, other: &HostSet) -> Vec<Rule> {
        both(one, other).map(|(from, to)| Rule::Cut { from, to }).collect()
    }

    /// Changes both directions.
    pub fn link_both(one: &HostSet, other: &HostSet, change: LinkChange) -> Vec<Rule> {
        both(one, other).map(|(from, to)| Rule::Link { from, to, change }).collect()
    }
}

fn both(one: &HostSet, other: &HostSet) -> impl Iterator<Item = (HostSet, HostSet)> {
    [(one.clone(), other.clone()), (other.clone(), one.clone())].into_iter()
}

/// Links between regions with these round trips, and within every region with that one.
pub fn regions(round_trips: &[(&str, &str, Duration)], within: Duration) -> Vec<Rule> {
    let mut names: Vec<&str> = round_trips.iter().flat_map(|(one, other, _)| [*one, *other]).collect();
    names.sort_unstable();
    names.dedup();
    let inside = names.into_iter().map(|name| (name, name, within));
    let pairs = inside.chain(round_trips.iter().copied());
    pairs
        .flat_map(|(one, other, round_trip)| {
            let (one, other) = (HostSet::Region(one.to_owned()), HostSet::Region(other.to_owned()));
            Rule::link_both(&one, &other, LinkChange::delay(round_trip / 2))
        })
        .collect()
}

/// Three regions as far apart as a coast, a country and an ocean: round trips of 30 ms from A to B, 80 ms from B
/// to C, 140 ms from A to C, and 0.6 ms within each.
pub fn three_regions() -> Vec<Rule> {
    let ms = Duration::from_millis;
    regions(&[("A", "B", ms(30)), ("B", "C", ms(80)), ("A", "C", ms(140))], Duration::from_micros(600))
}

/// Why a rule's text is none, or names what is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The first word is none of `cut`, `mend`, `flap`, `link`, `heal`, or there are too few behind it.
    #[error(
        "`{0}` is no rule; rules are: cut FROM TO, mend FROM TO, flap FROM TO up=T down=T, link FROM TO KEY=VALUE.., heal"
    )]
    Form(String),
    /// A property or its value is none.
    #[error("`{0}` is no property of a link")]
    Property(String),
    /// A time without a unit, too long, or not a number.
    #[error("`{0}` is no time; times are like 15ms, 0.3ms, 200us, 5s, at most an hour")]
    Time(String),
    /// A share that is not between none and all.
    #[error("`{0}` is no share; shares are like 5% or 0.1%, at most 100%")]
    PacketRatio(String),
    /// No ordered pair of hosts is meant.
    #[error("no packet goes from {from} to {to}: there are no such hosts")]
    NoPair {
        /// Where packets would come from.
        from: HostSet,
        /// Where they would go.
        to: HostSet,
    },
}

impl fmt::Display for HostSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostSet::Everyone => f.write_str("*"),
            HostSet::Region(name) => write!(f, "region:{name}"),
            HostSet::Host(name) => f.write_str(name),
        }
    }
}

impl FromStr for HostSet {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<HostSet, RuleError> {
        let place = match text.split_once(':') {
            None if text == "*" => return Ok(HostSet::Everyone),
            None => HostSet::Host(text.to_owned()),
            Some(("region", name)) if !name.is_empty() => HostSet::Region(name.to_owned()),
            Some(_) => return Err(RuleError::Form(text.to_owned())),
        };
        if text.is_empty() { Err(RuleError::Form(text.to_owned())) } else { Ok(place) }
    }
}

impl fmt::Display for PacketRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / (PARTS / 100), self.0 % (PARTS / 100));
        match part {
            0 => write!(f, "{whole}%"),
            part => write!(f, "{whole}.{}%", format!("{part:04}").trim_end_matches('0')),
        }
    }
}

impl FromStr for PacketRatio {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<PacketRatio, RuleError> {
        let wrong = || RuleError::PacketRatio(text.to_owned());
        let number = text.strip_suffix('%').ok_or_else(wrong)?;
        let millionths = decimal(number, u64::from(PARTS / 100)).ok_or_else(wrong)?;
        if millionths > u64::from(PARTS) {
            return Err(wrong());
        }
        Ok(PacketRatio(u32::try_from(millionths).map_err(|_| wrong())?))
    }
}

/// A decimal number times a factor, without floating point; `None` if it is none or has more digits than count.
fn decimal(text: &str, factor: u64) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits =
        |text: &str| !text.is_empty() && text.len() <= 12 && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !(part.is_empty() || digits(part)) || (part.is_empty() && text.contains('.')) {
        return None;
    }
    let mut value = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    let mut place = factor;
    for digit in part.bytes() {
        if !place.is_multiple_of(10) {
            return (digit == b'0').then_some(value);
        }
        place /= 10;
        value = value.checked_add(u64::from(digit - b'0') * place)?;
    }
    Some(value)
}

fn time(text: &str) -> Result<Duration, RuleError> {
    let wrong = || RuleError::Time(text.to_owned());
    let units = [("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    let (number, factor) = units
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))
        .ok_or_else(wrong)?;
    let nanos = decimal(number, factor).ok_or_else(wrong)?;
    let time = Duration::from_nanos(nanos);
    if time > Duration::from_secs(3600) { Err(wrong()) } else { Ok(time) }
}

fn time_text(time: Duration) -> String {
    let nanos = time.as_nanos();
    match nanos {
        n if n % 1_000_000_000 == 0 => format!("{}s", n / 1_000_000_000),
        n if n % 1_000_000 == 0 => format!("{}ms", n / 1_000_000),
        n if n % 1_000 == 0 => format!("{}us", n / 1_000),
        n => format!("{}.{:03}us", n / 1_000, n % 1_000),
    }
}

fn rate(text: &str) -> Option<Option<u64>> {
    if text == "none" {
        return Some(None);
    }
    let units = [("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000)];
    let (number, factor) =
        units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))?;
    decimal(number, factor).filter(|bits| *bits > 0).map(Some)
}

fn rate_text(rate: Option<u64>) -> String {
    match rate {
        None => "none".to_owned(),
        Some(bits) => format!("{}.{:03}kbit", bits / 1_000, bits % 1_000),
    }
}

impl fmt::Display for LinkChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            self.delay.map(|t| format!("delay={}", time_text(t))),
            self.jitter.map(|t| format!("jitter={}", time_text(t))),
            self.loss.map(|s| format!("loss={s}")),
            self.duplicate.map(|s| format!("duplicate={s}")),
            self.reorder.map(|s| format!("reorder={s}")),
            self.corrupt.map(|s| format!("corrupt={s}")),
            self.rate.map(|r| format!("rate={}", rate_text(r))),
            self.queue_bytes.map(|bytes| format!("queue={bytes}")),
        ];
        f.write_str(&words.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

impl LinkChange {
    fn read(words: &[&str]) -> Result<LinkChange, RuleError> {
        let mut change = LinkChange::default();
        for word in words {
            let wrong = || RuleError::Property((*word).to_owned());
            let (key, value) = word.split_once('=').ok_or_else(wrong)?;
            match key {
                "delay" => change.delay = Some(time(value)?),
                "jitter" => change.jitter = Some(time(value)?),
                "loss" => change.loss = Some(value.parse()?),
                "duplicate" => change.duplicate = Some(value.parse()?),
                "reorder" => change.reorder = Some(value.parse()?),
                "corrupt" => change.corrupt = Some(value.parse()?),
                "rate" => change.rate = Some(rate(value).ok_or_else(wrong)?),
                "queue" => change.queue_bytes = Some(value.parse().map_err(|_| wrong())?),
                _ => return Err(wrong()),
            }
        }
        Ok(change)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Cut { from, to } => write!(f, "cut {from} {to}"),
            Rule::Mend { from, to } => write!(f, "mend {from} {to}"),
            Rule::Flap { from, to, up, down } => {
                write!(f, "flap {from} {to} up={} down={}", time_text(*up), time_text(*down))
            }
            Rule::Link { from, to, change } => write!(f, "link {from} {to} {change}"),
            Rule::Heal => f.write_str("heal"),
        }
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Rule, RuleError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let wrong = || RuleError::Form(text.to_owned());
        let (from, to) = match words.as_slice() {
            ["heal"] => return Ok(Rule::Heal),
            [_, from, to, ..] => (from.parse()?, to.parse()?),
            _ => return Err(wrong()),
        };
        match words.as_slice() {
            ["cut", _, _] => Ok(Rule::Cut { from, to }),
            ["mend", _, _] => Ok(Rule::Mend { from, to }),
            ["flap", _, _, up, down] => {
                let up = time(up.strip_prefix("up=").ok_or_else(wrong)?)?;
                let down = time(down.strip_prefix("down=").ok_or_else(wrong)?)?;
                if up.is_zero() || down.is_zero() {
                    Err(wrong())
                } else {
                    Ok(Rule::Flap { from, to, up, down })
                }
            }
            ["link", _, _, properties @ ..] if !properties.is_empty() => {
                Ok(Rule::Link { from, to, change: LinkChange::read(properties)? })
            }
            _ => Err(wrong()),
        }
    }
}
