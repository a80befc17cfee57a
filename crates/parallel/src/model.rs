//! A transformer as the planner knows it: its sizes, and from them its parameters and its operations.

use serde::Serialize;

/// How the layers attend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Attention {
    /// Queries, keys and values of whole heads; fewer key and value heads than query heads is grouped-query attention.
    Standard {
        /// Heads of keys and values.
        kv_heads: u64,
        /// Width of a head.
        head_dim: u64,
        /// The projections of queries, keys and values have biases.
        qkv_bias: bool,
        /// The output projection has a bias.
        output_bias: bool,
        /// Queries and keys are normalised by a weight as wide as a head.
        qk_norm: bool,
    },
    /// Multi-head latent attention: keys and values come from one compressed vector a token.
    Latent {
        /// Width of the compressed queries; none if queries are not compressed.
        q_rank: Option<u64>,
        /// Width of the compressed keys and values.
        kv_rank: u64,
        /// Width of a head's part that carries the position.
        rope_dim: u64,
        /// Width of a head's part that does not.
        nope_dim: u64,
        /// Width of a head's values.
        value_dim: u64,
    },
}

/// The feed-forward block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FeedForward {
    /// Width between the two projections.
    pub hidden: u64,
    /// There is a third matrix, a gate (SwiGLU, GeGLU).
    pub gated: bool,
    /// The projections have biases.
    pub bias: bool,
}

impl FeedForward {
    /// Matrices of a block.
    #[must_use]
    pub fn matrices(&self) -> u64 {
        if self.gated { 3 } else { 2 }
    }

    fn parameters(&self, width: u64) -> u128 {
        let matrices = u128::from(self.matrices()) * u128::from(width) * u128::from(self.hidden);
        let up = u128::from(self.matrices() - 1) * u128::from(self.hidden);
        matrices + if self.bias { up + u128::from(width) } else { 0 }
    }
}

/// Experts in the place of one feed-forward block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Experts {
    /// Experts that a router chooses from.
    pub count: u64,
    /// Experts that each token goes to.
    pub per_token: u64,
    /// Each expert's width.
    pub hidden: u64,
    /// Width of the shared experts that every token passes through; 0 if there are none.
    pub shared_hidden: u64,
    /// The shared block has a separate gate, one number per token.
    pub shared_gate: bool,
    /// Layers at the beginning that have the ordinary block instead.
    pub dense_layers: u64,
    /// The router keeps one correction for each expert.
    pub router_bias: bool,
}

/// A transformer that decodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Model {
    /// Name of the architecture, as its configuration gives it.
    pub architecture: String,
    /// Layers.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Query heads.
    pub heads: u64,
    /// Entries of the vocabulary.
    pub vocabulary: u64,
    /// Rows of a learned table of positions; 0 if positions are not learned.
    pub positions: u64,
    /// Longest sequence that the configuration names, in tokens; 0 if it names none.
    pub sequence_max: u64,
    /// The output projection is the embedding's own matrix.
    pub tied_embeddings: bool,
    /// The output projection has a bias.
    pub output_bias: bool,
    /// How the layers attend.
    pub attention: Attention,
    /// The ordinary feed-forward block.
    pub feed_forward: FeedForward,
    /// Experts, if it has any.
    pub experts: Option<Experts>,
    /// Normalisations of a layer.
    pub norms: u64,
    /// A normalisation has a bias (LayerNorm) and not only a weight (RMSNorm).
    pub norm_bias: bool,
    /// There is dropout in training, whose masks take memory.
    pub dropout: bool,
}

/// Where parameters lie; all counts are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Parameters {
    /// Embedding of tokens and positions.
    pub embedding: u128,
    /// One layer's attention.
    pub attention: u128,
    /// One layer's normalisations.
    pub norms: u128,
    /// One ordinary feed-forward block.
    pub dense_block: u128,
    /// The router and what every token goes through in a layer with experts.
    pub shared_block: u128,
    /// One expert.
    pub expert: u128,
    /// The last normalisation.
    pub last_norm: u128,
    /// The output projection, unless it is the embedding.
    pub output: u128,
    /// All of the model.
    pub total: u128,
    /// What one token meets.
    pub active: u128,
}

impl Model {
    /// A model as GPT-2 and GPT-3 are: learned positions, biases, a block of four times the width, one matrix for
    /// embedding and output. The published tables are of such models.
    #[must_use]
    pub fn gpt(layers: u64, hidden: u64, heads: u64, vocabulary: u64, positions: u64) -> Model {
        Model {
            architecture: "gpt".to_owned(),
            layers,
            hidden,
            heads,
            vocabulary,
            positions,
            sequence_max: positions,
            tied_embeddings: true,
            output_bias: false,
            attention: Attention::Standard {
                kv_heads: heads,
                head_dim: hidden / heads.max(1),
                qkv_bias: true,
                output_bias: true,
                qk_norm: false,
            },
            feed_forward: FeedForward { hidden: 4 * hidden, gated: false, bias: true },
            experts: None,
            norms: 2,
            norm_bias: true,
            dropout: true,
        }
    }

    /// Layers whose feed-forward block is the ordinary one.
    #[must_use]
    pub fn dense_layers(&self) -> u64 {
        self.experts.as_ref().map_or(self.layers, |experts| experts.dense_layers.min(self.layers))
    }

    /// Heads of keys and values.
    #[must_use]
    pub fn kv_heads(&self) -> u64 {
        match self.attention {
            Attention::Standard { kv_heads, .. } => kv_heads,
            Attention::Latent { .. } => self.heads,
        }
    }

    /// Width of all heads' queries, keys and values together, in elements a token.
    #[must_use]
    pub fn attention_widths(&self) -> (u64, u64, u64) {
        match self.attention {
            Attention::Standard { kv_heads, head_dim, .. } => {
                (self.heads * head_dim, kv_heads * head_dim, kv_heads * head_dim)
            }
            Attention::Latent { rope_dim, nope_dim, value_dim, .. } => {
                let key = self.heads * (rope_dim + nope_dim);
                (key, key, self.heads * value_dim)
            }
        }
    }

    /// Width of what attention gives to its output projection.
    #[must_use]
    pub fn attention_output_width(&self) -> u64 {
        match self.attention {
            Attention::Standard { head_dim, .. } => self.heads * head_dim,
            Attention::Latent { value_dim, .. } => self.heads * value_dim,
        }
    }

    /// Width of what a server keeps of a token and layer: keys and values, or what they come from.
    #[must_use]
    pub fn cache_width(&self) -> u64 {
        match self.attention {
            Attention::Standard { kv_heads, head_dim, .. } => 2 * kv_heads * head_dim,
            Attention::Latent { kv_rank, rope_dim, .. } => kv_rank + rope_dim,
        }
    }

    fn attention_parameters(&self) -> u128 {
        let hidden = u128::from(self.hidden);
        match self.attention {
            Attention::Standard { kv_heads, head_dim, qkv_bias, output_bias, qk_norm } => {
                let queries = u128::from(self.heads * head_dim);
                let keys = u128::from(kv_heads * head_dim);
                let mut count = hidden * (queries + 2 * keys) + queries * hidden;
                count += if qkv_bias { queries + 2 * keys } else { 0 };
                count += if output_bias { hidden } else { 0 };
                count + if qk_norm { 2 * u128::from(head_dim) } else { 0 }
            }
            Attention::Latent { q_rank, kv_rank, rope_dim, nope_dim, value_dim } => {
                let heads = u128::from(self.heads);
                let (kv_rank, rope) = (u128::from(kv_rank), u128::from(rope_dim));
                let (nope, value) = (u128::from(nope_dim), u128::from(value_dim));
                let queries = match q_rank.map(u128::from) {
                    Some(rank) => hidden * rank + rank + rank * heads * (nope + rope),
                    None => hidden * heads * (nope + rope),
                };
                let keys = hidden * (kv_rank + rope) + kv_rank + kv_rank * heads * (nope + value);
                queries + keys + heads * value * hidden
            }
        }
    }

    /// Every parameter, by where it lies.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        let hidden = u128::from(self.hidden);
        let vocabulary = u128::from(self.vocabulary);
        let norm = if self.norm_bias { 2 * hidden } else { hidden };
        let mut parts = Parameters {
            embedding: (vocabulary + u128::from(self.positions)) * hidden,
            attention: self.attention_parameters(),
            norms: u128::from(self.norms) * norm,
            dense_block: self.feed_forward.parameters(self.hidden),
            last_norm: norm,
            output: if self.tied_embeddings { 0 } else { vocabulary * hidden },
            ..Parameters::default()
        };
        parts.output += if self.output_bias { vocabulary } else { 0 };
        let layers = u128::from(self.layers);
        let dense = u128::from(self.dense_layers());
        let ends = parts.embedding + parts.last_norm + parts.output;
        let common = layers * (parts.attention + parts.norms) + dense * parts.dense_block;
        parts.total = ends + common;
        parts.active = parts.total;
        if let Some(experts) = &self.experts {
            let count = u128::from(experts.count);
            parts.expert = self.expert_block(experts.hidden).parameters(self.hidden);
            let shared = match experts.shared_hidden {
                0 => 0,
                width => self.expert_block(width).parameters(self.hidden),
            };
            let gate = if experts.shared_gate { hidden } else { 0 };
            let router = hidden * count + if experts.router_bias { count } else { 0 };
            parts.shared_block = router + shared + gate;
            let sparse = layers - dense;
            parts.total += sparse * (parts.shared_block + count * parts.expert);
            parts.active += sparse * (parts.shared_block + u128::from(experts.per_token) * parts.expert);
        }
        parts
    }

    fn expert_block(&self, width: u64) -> FeedForward {
        FeedForward { hidden: width, ..self.feed_forward.clone() }
    }

    /// Operations of one token in one pass forward: two for each weight of a matrix that it meets and four for each
    /// position and width that it attends to, all of the sequence counted, as the published figures count it.
    #[must_use]
    pub fn forward_flops_per_token(&self, sequence: u64) -> f64 {
        let parts = self.parameters();
        let (queries, keys, values) = self.attention_widths();
        let biases = match self.attention {
            Attention::Standard { qkv_bias, output_bias, qk_norm, head_dim, .. } => {
                let qkv = if qkv_bias { queries + keys + values } else { 0 };
                let output = if output_bias { self.hidden } else { 0 };
                qkv + output + if qk_norm { 2 * head_dim } else { 0 }
            }
            Attention::Latent { q_rank, kv_rank, .. } => q_rank.unwrap_or(0) + kv_rank,
        };
        let attention = parts.attention as f64 - biases as f64;
        let block = (self.feed_forward.matrices() * self.feed_forward.hidden) as f64 * self.hidden as f64;
        let mut weights = self.layers as f64 * attention + self.dense_layers() as f64 * block;
        if let Some(experts) = &self.experts {
            let width = experts.per_token * experts.hidden + experts.shared_hidden;
            let sparse = (self.layers - self.dense_layers()) as f64;
            let matrices = self.feed_forward.matrices() as f64 * width as f64 * self.hidden as f64;
            weights += sparse * (matrices + (experts.count * self.hidden) as f64);
        }
        weights += self.vocabulary as f64 * self.hidden as f64;
        let scores = 2.0 * (queries + self.attention_output_width()) as f64 * sequence as f64;
        2.0 * weights + self.layers as f64 * scores
    }

    /// Operations of one training step without any recomputation.
    #[must_use]
    pub fn step_flops(&self, batch: u64, sequence: u64) -> f64 {
        3.0 * self.forward_flops_per_token(sequence) * batch as f64 * sequence as f64
    }
}
