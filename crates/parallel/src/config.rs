//! A model from the `config.json` that Hugging Face keeps with the weights.
//!
//! A field that the architecture's own code has a default for gets that default here; one without which the sizes
//! would be a guess is asked for.

use serde_json::{Map, Value};

use crate::architectures::ARCHITECTURES;
use crate::error::PlanError;
use crate::model::{Attention, Experts, FeedForward, Model};

/// Longest description that is read, in bytes.
pub const CONFIG_BYTES_MAX: usize = 1 << 20;
const LAYERS_MAX: u64 = 4096;
const WIDTH_MAX: u64 = 1 << 20;
const BLOCK_MAX: u64 = 1 << 22;
const HEADS_MAX: u64 = 1 << 14;
const VOCABULARY_MAX: u64 = 1 << 24;
const EXPERTS_MAX: u64 = 1 << 14;
/// Longest sequence of a training run or a server, in tokens.
pub const SEQUENCE_MAX: u64 = 1 << 28;

struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    fn present(&self, names: &[&str]) -> Option<(String, &Value)> {
        names.iter().find_map(|name| match self.0.get(*name) {
            None | Some(Value::Null) => None,
            Some(value) => Some(((*name).to_owned(), value)),
        })
    }

    fn optional(&self, names: &[&str], min: u64, max: u64) -> Result<Option<u64>, PlanError> {
        let Some((field, value)) = self.present(names) else { return Ok(None) };
        match value.as_u64() {
            Some(number) if (min..=max).contains(&number) => Ok(Some(number)),
            _ => Err(PlanError::BadField {
                field,
                value: short(value),
                expected: format!("a whole number from {min} to {max}"),
            }),
        }
    }

    fn number(&self, names: &[&str], meaning: &'static str, max: u64) -> Result<u64, PlanError> {
        self.optional(names, 1, max)?
            .ok_or_else(|| PlanError::MissingField { field: names.join(" or "), meaning })
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool, PlanError> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => Err(PlanError::BadField {
                field: name.to_owned(),
                value: short(other),
                expected: "true or false".to_owned(),
            }),
        }
    }
}

/// A value as a message shows it: never more than a line.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// Reads a description.
///
/// # Errors
/// If it is no JSON object, names no architecture that is known, or lacks a size or has one that cannot be.
pub fn parse(text: &str) -> Result<Model, PlanError> {
    if text.len() > CONFIG_BYTES_MAX {
        return Err(PlanError::NotAConfig(format!("it is longer than {CONFIG_BYTES_MAX} bytes")));
    }
    let whole =
        muster_json::object(text.as_bytes()).map_err(|fault| PlanError::NotAConfig(fault.to_string()))?;
    // Models that also see or hear keep what decodes text one level down.
    let map = match whole.get("text_config") {
        Some(Value::Object(inner)) if inner.contains_key("model_type") => inner,
        _ => &whole,
    };
    let architecture = match map.get("model_type") {
        Some(Value::String(name)) => name.as_str(),
        Some(other) => {
            return Err(PlanError::BadField {
                field: "model_type".to_owned(),
                value: short(other),
                expected: "a name".to_owned(),
            });
        }
        None => return Err(PlanError::NoArchitecture),
    };
    let Some(known) = ARCHITECTURES.iter().find(|known| **known == architecture) else {
        return Err(PlanError::UnknownArchitecture(architecture.chars().take(60).collect()));
    };
    let fields = Fields(map);
    let model = match *known {
        "gpt2" => gpt2(&fields)?,
        "gpt_neox" => gpt_neox(&fields)?,
        "opt" => opt(&fields)?,
        "deepseek_v2" | "deepseek_v3" | "kimi_k2" => deepseek(&fields, known)?,
        _ => llama(&fields, known)?,
    };
    check(&model)?;
    Ok(model)
}

fn check(model: &Model) -> Result<(), PlanError> {
    let kv = model.kv_heads();
    if !model.heads.is_multiple_of(kv) {
        return Err(PlanError::BadField {
            field: "num_key_value_heads".to_owned(),
            value: kv.to_string(),
            expected: format!("a divisor of the {} attention heads", model.heads),
        });
    }
    if let Some(experts) = &model.experts
        && experts.per_token > experts.count
    {
        return Err(PlanError::BadField {
            field: "num_experts_per_tok".to_owned(),
            value: experts.per_token.to_string(),
            expected: format!("at most the {} experts", experts.count),
        });
    }
    Ok(())
}

/// Width of a head that is not given: the heads share the whole width.
fn head_dim(hidden: u64, heads: u64) -> Result<u64, PlanError> {
    if hidden.is_multiple_of(heads) {
        return Ok(hidden / heads);
    }
    Err(PlanError::BadField {
        field: "hidden_size".to_owned(),
        value: hidden.to_string(),
        expected: format!("a multiple of the {heads} attention heads, unless head_dim is given"),
    })
}

const LAYERS: (&[&str], &str) = (&["num_hidden_layers", "n_layer"], "how many layers there are");
const HIDDEN: (&[&str], &str) = (&["hidden_size", "n_embd"], "the width of the model");
const HEADS: (&[&str], &str) = (&["num_attention_heads", "n_head"], "how many heads attend");
const VOCABULARY: (&[&str], &str) = (&["vocab_size"], "how many entries the vocabulary has");
const BLOCK: (&[&str], &str) = (&["intermediate_size"], "the width of the feed-forward block");

fn llama(fields: &Fields<'_>, name: &str) -> Result<Model, PlanError> {
    let hidden = fields.number(HIDDEN.0, HIDDEN.1, WIDTH_MAX)?;
    let heads = fields.number(HEADS.0, HEADS.1, HEADS_MAX)?;
    let kv_heads = fields.optional(&["num_key_value_heads"], 1, HEADS_MAX)?.unwrap_or(heads);
    let head_dim = match fields.optional(&["head_dim"], 1, WIDTH_MAX)? {
        Some(width) => width,
        None if name == "gemma" || name == "gemma2" => 256,
        None => head_dim(hidden, heads)?,
    };
    let experts = experts(fields, name)?;
    let block = match (fields.optional(BLOCK.0, 1, BLOCK_MAX)?, &experts) {
        (Some(width), _) => width,
        // A model of experts alone may do without.
        (None, Some(experts)) if experts.dense_layers == 0 => experts.hidden,
        (None, _) => {
            return Err(PlanError::MissingField { field: BLOCK.0.join(" or "), meaning: BLOCK.1 });
        }
    };
    let qwen2 = matches!(name, "qwen2" | "qwen2_moe");
    let bias = fields.flag("attention_bias", false)?;
    Ok(Model {
        architecture: name.to_owned(),
        layers: fields.number(LAYERS.0, LAYERS.1, LAYERS_MAX)?,
        hidden,
        heads,
        vocabulary: fields.number(VOCABULARY.0, VOCABULARY.1, VOCABULARY_MAX)?,
        positions: 0,
        sequence_max: fields.optional(&["max_position_embeddings"], 1, SEQUENCE_MAX)?.unwrap_or(0),
        tied_embeddings: fields.flag("tie_word_embeddings", matches!(name, "gemma" | "gemma2"))?,
        output_bias: false,
        attention: Attention::Standard {
            kv_heads,
            head_dim,
            qkv_bias: if name == "qwen2_moe" { fields.flag("qkv_bias", true)? } else { qwen2 || bias },
            output_bias: !qwen2 && bias,
            qk_norm: matches!(name, "qwen3" | "qwen3_moe"),
        },
        feed_forward: FeedForward { hidden: block, gated: true, bias: fields.flag("mlp_bias", false)? },
        experts,
        norms: if name == "gemma2" { 4 } else { 2 },
        norm_bias: false,
        dropout: false,
    })
}

fn experts(fields: &Fields<'_>, name: &str) -> Result<Option<Experts>, PlanError> {
    let mixtral = name == "mixtral";
    if !mixtral && !name.ends_with("_moe") {
        return Ok(None);
    }
    let step = fields.optional(&["decoder_sparse_step", "moe_layer_freq"], 1, LAYERS_MAX)?.unwrap_or(1);
    if step != 1 {
        return Err(PlanError::BadField {
            field: "decoder_sparse_step".to_owned(),
            value: step.to_string(),
            expected: "1: experts in every layer; other patterns are not understood".to_owned(),
        });
    }
    if let Some((field, Value::Array(layers))) = fields.present(&["mlp_only_layers"])
        && !layers.is_empty()
    {
        return Err(PlanError::BadField {
            field,
            value: short(&Value::Array(layers.clone())),
            expected: "empty: experts in every layer; other patterns are not understood".to_owned(),
        });
    }
    let width = if mixtral { &["intermediate_size"][..] } else { &["moe_intermediate_size"][..] };
    let shared = fields.optional(&["shared_expert_intermediate_size"], 0, BLOCK_MAX)?.unwrap_or(0);
    Ok(Some(Experts {
        count: fields.number(
            &["num_local_experts", "num_experts"],
            "how many experts a layer has",
            EXPERTS_MAX,
        )?,
        per_token: fields.number(
            &["num_experts_per_tok"],
            "how many experts each token goes to",
            EXPERTS_MAX,
        )?,
        hidden: fields.number(width, "the width of an expert", BLOCK_MAX)?,
        shared_hidden: shared,
        shared_gate: shared > 0,
        dense_layers: 0,
        router_bias: false,
    }))
}

fn deepseek(fields: &Fields<'_>, name: &str) -> Result<Model, PlanError> {
    let hidden = fields.number(HIDDEN.0, HIDDEN.1, WIDTH_MAX)?;
    let layers = fields.number(LAYERS.0, LAYERS.1, LAYERS_MAX)?;
    let frequency = fields.optional(&["moe_layer_freq"], 1, LAYERS_MAX)?.unwrap_or(1);
    if frequency != 1 {
        return Err(PlanError::BadField {
            field: "moe_layer_freq".to_owned(),
            value: frequency.to_string(),
            expected: "1: experts in every layer behind the first; other patterns are not understood"
                .to_owned(),
        });
    }
    let experts = match fields.optional(&["n_routed_experts"], 1, EXPERTS_MAX)? {
        None => None,
        Some(count) => {
            let width = fields.number(&["moe_intermediate_size"], "the width of an expert", BLOCK_MAX)?;
            let shared = fields.optional(&["n_shared_experts"], 0, 1024)?.unwrap_or(0);
            Some(Experts {
                count,
                per_token: fields.number(
                    &["num_experts_per_tok"],
                    "how many experts each token goes to",
                    EXPERTS_MAX,
                )?,
                hidden: width,
                shared_hidden: shared * width,
                shared_gate: false,
                dense_layers: fields.optional(&["first_k_dense_replace"], 0, layers)?.unwrap_or(0),
                router_bias: name != "deepseek_v2",
            })
        }
    };
    let of_head = |field: &'static str, meaning| fields.number(&[field], meaning, WIDTH_MAX);
    Ok(Model {
        architecture: name.to_owned(),
        layers,
        hidden,
        heads: fields.number(HEADS.0, HEADS.1, HEADS_MAX)?,
        vocabulary: fields.number(VOCABULARY.0, VOCABULARY.1, VOCABULARY_MAX)?,
        positions: 0,
        sequence_max: fields.optional(&["max_position_embeddings"], 1, SEQUENCE_MAX)?.unwrap_or(0),
        tied_embeddings: fields.flag("tie_word_embeddings", false)?,
        output_bias: false,
        attention: Attention::Latent {
            q_rank: fields.optional(&["q_lora_rank"], 1, WIDTH_MAX)?,
            kv_rank: of_head("kv_lora_rank", "the width of the compressed keys and values")?,
            rope_dim: of_head("qk_rope_head_dim", "the width of a head's part that carries the position")?,
            nope_dim: of_head("qk_nope_head_dim", "the width of a head's part that carries no position")?,
            value_dim: of_head("v_head_dim", "the width of a head's values")?,
        },
        feed_forward: FeedForward {
            hidden: fields.number(BLOCK.0, BLOCK.1, BLOCK_MAX)?,
            gated: true,
            bias: false,
        },
        experts,
        norms: 2,
        norm_bias: false,
        dropout: false,
    })
}

fn gpt2(fields: &Fields<'_>) -> Result<Model, PlanError> {
    let hidden = fields.number(HIDDEN.0, HIDDEN.1, WIDTH_MAX)?;
    let heads = fields.number(HEADS.0, HEADS.1, HEADS_MAX)?;
    let positions = fields.number(
        &["n_positions", "max_position_embeddings"],
        "how many positions are learned",
        SEQUENCE_MAX,
    )?;
    head_dim(hidden, heads)?;
    let layers = fields.number(LAYERS.0, LAYERS.1, LAYERS_MAX)?;
    let vocabulary = fields.number(VOCABULARY.0, VOCABULARY.1, VOCABULARY_MAX)?;
    let mut model = Model::gpt(layers, hidden, heads, vocabulary, positions);
    model.architecture = "gpt2".to_owned();
    model.tied_embeddings = fields.flag("tie_word_embeddings", true)?;
    if let Some(width) = fields.optional(&["n_inner"], 1, BLOCK_MAX)? {
        model.feed_forward.hidden = width;
    }
    Ok(model)
}

fn gpt_neox(fields: &Fields<'_>) -> Result<Model, PlanError> {
    let hidden = fields.number(HIDDEN.0, HIDDEN.1, WIDTH_MAX)?;
    let heads = fields.number(HEADS.0, HEADS.1, HEADS_MAX)?;
    head_dim(hidden, heads)?;
    let layers = fields.number(LAYERS.0, LAYERS.1, LAYERS_MAX)?;
    let vocabulary = fields.number(VOCABULARY.0, VOCABULARY.1, VOCABULARY_MAX)?;
    let mut model = Model::gpt(layers, hidden, heads, vocabulary, 0);
    model.architecture = "gpt_neox".to_owned();
    model.sequence_max = fields.optional(&["max_position_embeddings"], 1, SEQUENCE_MAX)?.unwrap_or(0);
    model.tied_embeddings = fields.flag("tie_word_embeddings", false)?;
    model.dropout = false;
    model.feed_forward.hidden = fields.number(BLOCK.0, BLOCK.1, BLOCK_MAX)?;
    if !fields.flag("attention_bias", true)?
        && let Attention::Standard { qkv_bias, output_bias, .. } = &mut model.attention
    {
        (*qkv_bias, *output_bias) = (false, false);
    }
    Ok(model)
}

fn opt(fields: &Fields<'_>) -> Result<Model, PlanError> {
    let hidden = fields.number(HIDDEN.0, HIDDEN.1, WIDTH_MAX)?;
    let heads = fields.number(HEADS.0, HEADS.1, HEADS_MAX)?;
    head_dim(hidden, heads)?;
    if let Some(width) = fields.optional(&["word_embed_proj_dim"], 1, WIDTH_MAX)?
        && width != hidden
    {
        return Err(PlanError::BadField {
            field: "word_embed_proj_dim".to_owned(),
            value: width.to_string(),
            expected: format!("the width of the model, {hidden}; projected embeddings are not understood"),
        });
    }
    let layers = fields.number(LAYERS.0, LAYERS.1, LAYERS_MAX)?;
    let vocabulary = fields.number(VOCABULARY.0, VOCABULARY.1, VOCABULARY_MAX)?;
    let positions =
        fields.number(&["max_position_embeddings"], "how many positions are learned", SEQUENCE_MAX)?;
    // The table of positions has two rows that no position uses.
    let mut model = Model::gpt(layers, hidden, heads, vocabulary, positions + 2);
    model.architecture = "opt".to_owned();
    model.sequence_max = positions;
    model.tied_embeddings = fields.flag("tie_word_embeddings", true)?;
    model.feed_forward.hidden =
        fields.number(&["ffn_dim"], "the width of the feed-forward block", BLOCK_MAX)?;
    Ok(model)
}
