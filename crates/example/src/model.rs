//! Softmax regression: one weight per feature and class.

use crate::dataset::Shard;
use crate::float::{exp_nonpositive, ln_from_one};

/// The most weights a model may have: 8 MiB in a frame or a checkpoint.
pub(crate) const WEIGHTS_MAX: usize = 1 << 20;

/// Sums over samples, not means: sums of shards add up to the sum of the whole.
pub(crate) struct Gradient {
    pub(crate) loss: f64,
    pub(crate) weights: Vec<f64>,
}

/// Loss and gradient of `shard` at `weights`, summed in the order of the samples.
pub(crate) fn gradient(weights: &[f64], features: usize, shard: &Shard) -> Gradient {
    let mut sum = Gradient { loss: 0.0, weights: vec![0.0; weights.len()] };
    let mut shares = vec![0.0; weights.len() / features];
    for (input, label) in shard.inputs.chunks_exact(features).zip(&shard.labels) {
        let label = *label as usize;
        for (share, row) in shares.iter_mut().zip(weights.chunks_exact(features)) {
            *share = row.iter().zip(input).map(|(w, x)| w * x).sum();
        }
        let highest = shares.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
        let at_label = shares[label] - highest;
        let mut total = 0.0;
        for share in &mut shares {
            *share = exp_nonpositive(*share - highest);
            total += *share;
        }
        sum.loss += ln_from_one(total) - at_label;
        for (class, share) in shares.iter().enumerate() {
            let error = share / total - if class == label { 1.0 } else { 0.0 };
            let row = &mut sum.weights[class * features..][..features];
            for (g, x) in row.iter_mut().zip(input) {
                *g += error * x;
            }
        }
    }
    sum
}

/// One step downhill along the mean gradient.
pub(crate) fn descend(weights: &mut [f64], gradient: &[f64], learning_rate: f64, samples: u64) {
    let rate = learning_rate / samples as f64;
    for (w, g) in weights.iter_mut().zip(gradient) {
        *w -= rate * g;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Shape;

    #[test]
    fn the_gradient_is_the_slope_and_going_down_it_lowers_the_loss() {
        let shape = Shape { seed: 3, samples: 200, features: 4, classes: 3 };
        let shard = shape.generate(0..200);
        let mut weights = vec![0.0; 12];
        let at_start = gradient(&weights, 4, &shard);
        // With no weights every class is as likely as any other.
        assert!((at_start.loss / 200.0 - 3f64.ln()).abs() < 1e-12);
        for i in 0..weights.len() {
            let h = 1e-6;
            let mut moved = weights.clone();
            moved[i] += h;
            let slope = (gradient(&moved, 4, &shard).loss - at_start.loss) / h;
            assert!((slope - at_start.weights[i]).abs() < 1e-3, "weight {i}");
        }
        let mut last = at_start.loss;
        for _ in 0..50 {
            let now = gradient(&weights, 4, &shard);
            assert!(now.loss <= last);
            last = now.loss;
            descend(&mut weights, &now.weights, 0.5, 200);
        }
        assert!(last < 0.8 * at_start.loss);
    }
}
