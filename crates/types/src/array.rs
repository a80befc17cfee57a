//! Arrays of like jobs: which members one has, and how many of them may be unfinished at a time.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::reason::Violation;

/// What the text of an array must look like; shown to users.
pub const ARRAY_RULE: &str = "must be a number of members like 100, or indices like 0-99:5,200,300-310, and may end in \
     %N, which is how many members may be unfinished at a time";

/// Indices from `first` to `last`, each `step` after the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct IndexRange {
    /// The first index.
    pub first: u32,
    /// The last index. It is one of the range.
    pub last: u32,
    /// From 1; 1 where it has one index.
    pub step: u32,
}

impl IndexRange {
    /// How many indices it has.
    #[must_use]
    pub fn count(&self) -> u32 {
        (self.last.saturating_sub(self.first) / self.step.max(1)).saturating_add(1)
    }

    /// What is left of it behind that many of its indices.
    fn behind(&self, count: u32) -> Option<IndexRange> {
        let first = self.first.checked_add(count.checked_mul(self.step)?)?;
        (count < self.count()).then_some(IndexRange { first, ..*self })
    }

    fn is_valid(&self) -> bool {
        let ends = self.step > 0 && self.last >= self.first && (self.last > self.first || self.step == 1);
        ends && self.last <= limits::ARRAY_INDEX_MAX && (self.last - self.first).is_multiple_of(self.step)
    }
}

impl fmt::Display for IndexRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first == self.last, self.step) {
            (true, _) => write!(f, "{}", self.first),
            (false, 1) => write!(f, "{}-{}", self.first, self.last),
            (false, step) => write!(f, "{}-{}:{step}", self.first, self.last),
        }
    }
}

/// The members of an array and its throttle. Members are numbered from 0 in the order of their indices; such a number is
/// the member's *ordinal*, and the member's id is the array's number plus its ordinal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ArraySpec {
    /// Its indices, ascending; no two ranges overlap.
    pub ranges: Vec<IndexRange>,
    /// How many of its members may exist as jobs that are not over; none for no limit.
    pub throttle: Option<u32>,
}

impl ArraySpec {
    /// This number of members, with indices from 0. A size of zero makes an array that breaks a rule.
    #[must_use]
    pub fn of_size(size: u32) -> ArraySpec {
        let range = size.checked_sub(1).map(|last| IndexRange { first: 0, last, step: 1 });
        ArraySpec { ranges: range.into_iter().collect(), throttle: None }
    }

    /// How many members it has. Meaningful up to [`limits::ARRAY_MEMBERS_MAX`].
    #[must_use]
    pub fn size(&self) -> u32 {
        self.ranges.iter().map(IndexRange::count).fold(0, u32::saturating_add)
    }

    /// The index of the member with an ordinal; none when there is no such member.
    #[must_use]
    pub fn index_of(&self, ordinal: u32) -> Option<u32> {
        let mut left = ordinal;
        for range in &self.ranges {
            let count = range.count();
            if left < count {
                return range.first.checked_add(left.checked_mul(range.step)?);
            }
            left -= count;
        }
        None
    }

    /// The ordinal of the member with an index; none when there is no such member.
    #[must_use]
    pub fn ordinal_of(&self, index: u32) -> Option<u32> {
        let mut before = 0;
        for range in &self.ranges {
            if (range.first..=range.last).contains(&index) {
                let distance = index - range.first;
                return distance.is_multiple_of(range.step).then(|| before + distance / range.step);
            }
            before += range.count();
        }
        None
    }

    /// The narrowest range that has all its indices, and the longest step by which it meets each of them; none for no members.
    #[must_use]
    pub fn span(&self) -> Option<IndexRange> {
        let (first, last) = (self.ranges.first()?.first, self.ranges.last()?.last);
        let step = self.ranges.iter().fold(0, |step, range| {
            // One index has no step.
            let within = if range.last > range.first { range.step } else { 0 };
            common_divisor(common_divisor(step, range.first.saturating_sub(first)), within)
        });
        Some(IndexRange { first, last, step: step.max(1) })
    }

    /// Whether its indices are those from 0 on without a gap.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        matches!(self.ranges.as_slice(), [IndexRange { first: 0, step, last }] if *step == 1 || *last == 0)
    }

    /// Whether members of two arrays with one ordinal have one index, too.
    #[must_use]
    pub fn has_indices_of(&self, other: &ArraySpec) -> bool {
        if self.ranges == other.ranges {
            return true;
        }
        // The same indices can be written as other ranges.
        let mut own = self.ranges.iter().copied();
        let mut others = other.ranges.iter().copied();
        let (mut left, mut right) = (own.next(), others.next());
        while let (Some(a), Some(b)) = (left, right) {
            let both = a.count().min(b.count());
            if a.first != b.first || (both > 1 && a.step != b.step) {
                return false;
            }
            left = a.behind(both).or_else(|| own.next());
            right = b.behind(both).or_else(|| others.next());
        }
        left.is_none() && right.is_none()
    }

    /// Every rule that it breaks, by fields of a job: `array.indices`, `array.size` and `array.throttle`.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let (ranges_max, members_max) = (limits::ARRAY_RANGES_MAX, limits::ARRAY_MEMBERS_MAX);
        if self.ranges.len() > ranges_max {
            found.push(Violation::limit("array.indices", self.ranges.len() as u64, 1, ranges_max as u64));
            return found;
        }
        let size = self.size();
        // Members that are counted from 0 were asked for by their number.
        let field = if self.ranges.is_empty() || self.is_counted() { "array.size" } else { "array.indices" };
        if !(1..=members_max).contains(&size) {
            found.push(Violation::limit(field, size.into(), 1, members_max.into()));
        } else if let Some(wrong) = self.ranges.iter().find(|range| !range.is_valid()) {
            let max = limits::ARRAY_INDEX_MAX;
            let text = format!(
                "{}-{}:{} must be a range of indices up to {max}, with a step from 1",
                wrong.first, wrong.last, wrong.step
            );
            found.push(Violation::new("array.indices", text));
        } else if let Some(pair) = self.ranges.windows(2).find(|pair| pair[1].first <= pair[0].last) {
            let text = format!("must be ascending, each index once: {} does not follow {}", pair[1], pair[0]);
            found.push(Violation::new("array.indices", text));
        }
        if let Some(throttle) = self.throttle.filter(|throttle| !(1..=members_max).contains(throttle)) {
            // In a file it is a part of what says the members, which have the same bound.
            let text = format!(
                "the number of members that may be unfinished at a time must be between 1 and {members_max}, got \
                 {throttle}; leave it out for no limit"
            );
            found.push(Violation::new("array.throttle", text));
        }
        found
    }

    /// The array that a text says: [`ARRAY_RULE`]. Ranges may stand in any order. A step need not meet the end of its range.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<ArraySpec, String> {
        let (members, throttle) = match text.split_once('%') {
            Some((members, throttle)) => (members, Some(number(throttle)?)),
            None => (text, None),
        };
        let members = members.trim();
        let is_count = !members.is_empty() && members.bytes().all(|b| b.is_ascii_digit());
        let mut array = if is_count {
            ArraySpec::of_size(number(members)?)
        } else {
            ArraySpec { ranges: indices(members)?, throttle: None }
        };
        array.throttle = throttle;
        Ok(array)
    }

    /// Its indices as a text that [`indices`] reads.
    #[must_use]
    pub fn indices_text(&self) -> String {
        let texts: Vec<String> = self.ranges.iter().map(|range| format!("{range}")).collect();
        texts.join(",")
    }
}

/// As [`ArraySpec::parse`] reads it.
impl fmt::Display for ArraySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ranges.as_slice() {
            [only] if self.is_counted() => write!(f, "{}", only.count())?,
            [only] if only.first == only.last => write!(f, "{0}-{0}", only.first)?,
            _ => f.write_str(&self.indices_text())?,
        }
        self.throttle.map_or(Ok(()), |throttle| write!(f, "%{throttle}"))
    }
}

/// The greatest divisor of both; of a number and 0, the number.
fn common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Ranges that have exactly these numbers, which are ascending.
#[must_use]
pub fn ranges_of(numbers: impl IntoIterator<Item = u32>) -> Vec<IndexRange> {
    let mut found: Vec<IndexRange> = Vec::new();
    for number in numbers {
        match found.last_mut() {
            // Two numbers make any step; the third has to keep it.
            Some(last) if last.first == last.last && number > last.last => {
                (last.last, last.step) = (number, number - last.first);
            }
            Some(last) if number.checked_sub(last.last) == Some(last.step) => last.last = number,
            _ => found.push(IndexRange { first: number, last: number, step: 1 }),
        }
    }
    // Two numbers far apart are clearer by themselves.
    let apart = |range: IndexRange| {
        let is_pair = range.step > 1 && range.last - range.first == range.step;
        let one = |number| IndexRange { first: number, last: number, step: 1 };
        if is_pair { alloc::vec![one(range.first), one(range.last)] } else { alloc::vec![range] }
    };
    found.into_iter().flat_map(apart).collect()
}

/// Ranges of indices from a text such as `0-99:5,200,300-310`, in ascending order.
///
/// # Errors
/// What is wrong with the text.
pub fn indices(text: &str) -> Result<Vec<IndexRange>, String> {
    if text.len() > limits::ARRAY_TEXT_BYTES_MAX {
        return Err(format!("must be at most {} bytes", limits::ARRAY_TEXT_BYTES_MAX));
    }
    let mut ranges = text.split(',').map(range).collect::<Result<Vec<_>, _>>()?;
    ranges.sort_unstable();
    Ok(ranges)
}

fn range(text: &str) -> Result<IndexRange, String> {
    let (ends, step) = match text.split_once(':') {
        Some((ends, step)) => (ends, number(step)?),
        None => (text, 1),
    };
    let (first, last) = match ends.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(ends)?, number(ends)?),
    };
    if step == 0 || last < first {
        return Err(format!(
            "{text:?} is no range of indices: the end comes before the start, or the step is 0"
        ));
    }
    // One index has one form, so that an array that is passed on is the same array.
    let last = last - (last - first) % step;
    Ok(IndexRange { first, last, step: if last == first { 1 } else { step } })
}

fn number(text: &str) -> Result<u32, String> {
    let digits = text.trim();
    let is_number = !digits.is_empty() && digits.len() <= 10 && digits.bytes().all(|b| b.is_ascii_digit());
    let parsed = is_number.then(|| digits.parse::<u32>().ok()).flatten();
    parsed.ok_or_else(|| {
        let shown: String = text.chars().take(20).flat_map(char::escape_debug).collect();
        format!("{shown:?} is no number from 0; {ARRAY_RULE}")
    })
}
