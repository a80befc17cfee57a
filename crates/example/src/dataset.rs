//! The generated data set: every sample follows from the seed and its own number, on every rank.

/// The samples of one rank.
pub(crate) struct Shard {
    /// Row by row, `features` values each.
    pub(crate) inputs: Vec<f64>,
    /// One class per row.
    pub(crate) labels: Vec<u32>,
}

/// What the data set looks like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) seed: u64,
    pub(crate) samples: u64,
    pub(crate) features: usize,
    pub(crate) classes: usize,
}

impl Shape {
    /// The samples that `rank` of `world_size` owns: a contiguous range of numbers, sizes differing by one at most.
    pub(crate) fn range_of(&self, rank: u32, world_size: u32) -> std::ops::Range<u64> {
        // samples ≤ 2^24 and ranks ≤ 2^12: the product stays far below 2^64.
        let at = |rank: u64| self.samples * rank / u64::from(world_size);
        at(u64::from(rank))..at(u64::from(rank) + 1)
    }

    /// Makes the samples in `range`.
    pub(crate) fn generate(&self, range: std::ops::Range<u64>) -> Shard {
        // The classifier behind the labels comes from a stream no sample uses.
        let mut source = Stream::new(self.seed, u64::MAX);
        let truth: Vec<f64> = (0..self.features * self.classes).map(|_| source.signed_unit()).collect();
        let rows = (range.end - range.start) as usize;
        let mut shard =
            Shard { inputs: Vec::with_capacity(rows * self.features), labels: Vec::with_capacity(rows) };
        for sample in range {
            self.append_sample(sample, &truth, &mut shard);
        }
        shard
    }

    fn append_sample(&self, sample: u64, truth: &[f64], shard: &mut Shard) {
        let mut source = Stream::new(self.seed, sample);
        let first = shard.inputs.len();
        shard.inputs.extend((0..self.features).map(|_| source.signed_unit()));
        let input = &shard.inputs[first..];
        let mut best = (f64::NEG_INFINITY, 0);
        for (class, weights) in truth.chunks_exact(self.features).enumerate() {
            let score: f64 = weights.iter().zip(input).map(|(w, x)| w * x).sum();
            // Noise, so that the loss has a floor and training a shape.
            let score = score + 0.5 * source.signed_unit();
            if score > best.0 {
                best = (score, class as u32);
            }
        }
        shard.labels.push(best.1);
    }
}

/// SplitMix64: one stream per (seed, sample).
struct Stream(u64);

impl Stream {
    fn new(seed: u64, number: u64) -> Stream {
        let mut stream = Stream(seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        // One draw parts the streams of neighbouring numbers.
        let start = stream.next();
        Stream(start)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [-1, 1), with 53 bits.
    fn signed_unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (2.0 / (1u64 << 53) as f64) - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_join_to_the_whole_at_every_world_size() {
        let shape = Shape { seed: 7, samples: 101, features: 5, classes: 4 };
        let whole = shape.generate(0..101);
        assert!(whole.inputs.iter().all(|x| (-1.0..1.0).contains(x)));
        assert!((0..4).all(|class| whole.labels.contains(&class)));
        for world_size in [1, 2, 3, 7, 101, 150] {
            let (mut inputs, mut labels) = (Vec::new(), Vec::new());
            for rank in 0..world_size {
                let shard = shape.generate(shape.range_of(rank, world_size));
                inputs.extend(shard.inputs);
                labels.extend(shard.labels);
            }
            assert_eq!(inputs, whole.inputs, "{world_size} ranks");
            assert_eq!(labels, whole.labels, "{world_size} ranks");
        }
    }
}
