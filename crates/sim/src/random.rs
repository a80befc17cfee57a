//! Seeded random numbers that are the same on every machine.
//!
//! The generator is xoshiro256** (Blackman and Vigna, 2018), seeded through SplitMix64 as its authors
//! advise. Logarithm and exponential are computed here, from nothing but the four operations and the square
//! root, which IEEE 754 fixes to the last bit: those of the platform's library differ between platforms, and
//! with them the bytes of a trace would.

use std::f64::consts::LN_2;

/// A stream of random numbers.
pub(crate) struct Random {
    state: [u64; 4],
}

impl Random {
    /// Streams of one seed are independent of one another: what one draws more shifts none of the others.
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        let mut mixed = seed ^ stream.wrapping_mul(0xa076_1d64_78bd_642f);
        let state = [(); 4].map(|()| split_mix(&mut mixed));
        Random { state }
    }

    /// 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// A number from 0 up to but without 1.
    pub(crate) fn unit(&mut self) -> f64 {
        // The 53 bits that a mantissa holds.
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The place of one of these weights, each as likely as its share of them all.
    pub(crate) fn weighted(&mut self, weights: &[f64]) -> usize {
        let mut rest = self.unit() * weights.iter().sum::<f64>();
        for (place, weight) in weights.iter().enumerate() {
            if rest < *weight {
                return place;
            }
            rest -= weight;
        }
        weights.len() - 1
    }

    /// Exponentially distributed with this mean.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        // Not 0, whose logarithm is none.
        -mean * ln(1.0 - self.unit())
    }

    /// Log-normally distributed with this median and mean (which is not below it).
    pub(crate) fn log_normal(&mut self, median: f64, mean: f64) -> f64 {
        // mean / median = exp(σ²/2).
        let sigma = (2.0 * ln(mean / median)).sqrt();
        median * exp(sigma * self.normal())
    }

    /// Standard normal, by Marsaglia's polar method.
    fn normal(&mut self) -> f64 {
        loop {
            let (x, y) = (2.0 * self.unit() - 1.0, 2.0 * self.unit() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return x * (-2.0 * ln(square) / square).sqrt();
            }
        }
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Natural logarithm of a positive number.
fn ln(x: f64) -> f64 {
    assert!(x > 0.0 && x.is_normal(), "the logarithm of {x}");
    const MANTISSA_BITS: u32 = 52;
    const BIAS: i64 = 1_023;
    let bits = x.to_bits();
    let mut exponent = (bits >> MANTISSA_BITS) as i64 - BIAS;
    let mut mantissa = f64::from_bits((bits & ((1 << MANTISSA_BITS) - 1)) | ((BIAS as u64) << MANTISSA_BITS));
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // ln m = 2 artanh((m-1)/(m+1)); the argument is below 0.172, so 12 terms reach the last bit.
    let ratio = (mantissa - 1.0) / (mantissa + 1.0);
    let square = ratio * ratio;
    let series = (0..12).rev().fold(0.0, |sum, n| sum * square + 1.0 / f64::from(2 * n + 1));
    exponent as f64 * LN_2 + 2.0 * ratio * series
}

/// The exponential, between the smallest and the largest that a number can hold.
fn exp(x: f64) -> f64 {
    let x = x.clamp(-700.0, 700.0);
    let doublings = (x / LN_2).round();
    let rest = x - doublings * LN_2;
    // |rest| is below 0.35, so 16 terms reach the last bit.
    let series = (1..=16).rev().fold(1.0, |sum, n| 1.0 + rest / f64::from(n) * sum);
    series * f64::from_bits(((doublings as i64 + 1_023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_agree_with_the_library_of_the_platform() {
        for n in 1..2_000 {
            let x = f64::from(n) * 0.013;
            assert!((ln(x) - x.ln()).abs() < 1e-14, "ln {x}");
            assert!((exp(x - 13.0) / (x - 13.0).exp() - 1.0).abs() < 1e-14, "exp {}", x - 13.0);
        }
        assert_eq!((ln(1.0), exp(0.0)), (0.0, 1.0));
    }

    /// The first numbers from the state 1, 2, 3, 4, as the authors' program prints them.
    #[test]
    fn the_generator_is_the_published_one() {
        let mut random = Random { state: [1, 2, 3, 4] };
        let first = [(); 4].map(|()| random.bits());
        assert_eq!(first, [11_520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
    }

    #[test]
    fn distributions_have_their_moments() {
        let mut random = Random::new(7, 0);
        let draws = 200_000;
        let mean = (0..draws).map(|_| random.exponential(3.0)).sum::<f64>() / f64::from(draws);
        assert!((mean - 3.0).abs() < 0.05, "{mean}");
        let mut values: Vec<f64> = (0..draws).map(|_| random.log_normal(100.0, 200.0)).collect();
        values.sort_by(f64::total_cmp);
        let median = values[values.len() / 2];
        let mean = values.iter().sum::<f64>() / f64::from(draws);
        assert!((median - 100.0).abs() < 2.0 && (mean - 200.0).abs() < 5.0, "{median} {mean}");
        assert_ne!(Random::new(7, 0).bits(), Random::new(7, 1).bits());
    }
}
