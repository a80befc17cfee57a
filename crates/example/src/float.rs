//! The two functions that the model needs beyond arithmetic, exact to the bit on every machine.
//!
//! The standard library's `exp` and `ln` are the platform's, and platforms differ in the last digit. A
//! job that is preempted on one host and resumed on another must still end with the same loss, so both
//! are made here of additions and multiplications alone, which IEEE 754 fixes.

/// ln 2 in two parts, the first with 21 zero bits at its end.
const LN_2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
const LN_2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
/// Below this the result is zero for every use here: it is added to a sum of at least one.
const EXP_UNDERFLOW: f64 = -700.0;

/// e^x for x ≤ 0.
pub(crate) fn exp_nonpositive(x: f64) -> f64 {
    debug_assert!(x <= 0.0 || x.is_nan());
    if x < EXP_UNDERFLOW {
        return 0.0;
    }
    // x = k·ln 2 + r with |r| ≤ ln 2 / 2; the split constant keeps k·ln 2 exact for the k that occur.
    let k = (x * std::f64::consts::LOG2_E).round();
    let r = (x - k * LN_2_HIGH) - k * LN_2_LOW;
    // Taylor to the 13th power: the next term is below 0.35^14 / 14! = 5e-18.
    let mut sum = 1.0;
    let mut n = 13.0;
    while n > 0.0 {
        sum = 1.0 + sum * r / n;
        n -= 1.0;
    }
    // k is at least -1010, so this is a normal number.
    sum * f64::from_bits(((k as i64 + 1023) as u64) << 52)
}

/// ln x for finite x ≥ 1.
pub(crate) fn ln_from_one(x: f64) -> f64 {
    debug_assert!(x >= 1.0 || x.is_nan());
    if !x.is_finite() {
        return x;
    }
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2·atanh(s), s = (m - 1) / (m + 1), |s| ≤ 0.172; the term after s^21 is below 1e-18.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    let mut n = 21.0;
    while n > 0.0 {
        sum = sum * square + 1.0 / n;
        n -= 2.0;
    }
    let k = exponent as f64;
    k * LN_2_HIGH + (2.0 * s * sum + k * LN_2_LOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_agree_with_the_platform_to_the_last_digits() {
        for i in 0..20_000 {
            let x = -f64::from(i) * 0.034_567;
            let (ours, theirs) = (exp_nonpositive(x), x.exp());
            assert!((ours - theirs).abs() <= 4e-15 * theirs + 1e-300, "exp {x}");
            let y = 1.0 + f64::from(i) * f64::from(i) * 0.001_234;
            let (ours, theirs) = (ln_from_one(y), y.ln());
            assert!((ours - theirs).abs() <= 4e-15 * (theirs + 1e-2), "ln {y}");
        }
    }

    #[test]
    fn the_ends_are_exact_and_nonsense_stays_nonsense() {
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(f64::NEG_INFINITY), 0.0);
        assert_eq!(ln_from_one(1.0), 0.0);
        assert!(exp_nonpositive(f64::NAN).is_nan());
        assert!(ln_from_one(f64::NAN).is_nan());
    }
}
