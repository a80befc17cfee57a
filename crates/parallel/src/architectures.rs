//! The architectures that are understood, and the fields that describe the most common one.

/// Values of `model_type` that are understood.
pub const ARCHITECTURES: [&str; 16] = [
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "phi3",
    "gpt2",
    "gpt_neox",
    "opt",
    "deepseek_v2",
    "deepseek_v3",
    "kimi_k2",
];

/// What describes a model of the most common kind.
pub const FIELDS_OF_LLAMA: [&str; 6] = [
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
];
