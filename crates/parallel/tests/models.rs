//! Parameter counts of published models, exact to the last one, and descriptions that are wrong.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use muster_parallel::{Model, PlanError, parse_config};

/// What each configuration file says of the sizes, and how many parameters the model's own code counts.
const PUBLISHED: &[(&str, &str, u128)] = &[
    (
        "Llama-2-7B",
        r#"{"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"intermediate_size":11008,"vocab_size":32000}"#,
        6_738_415_616,
    ),
    (
        "Llama-3-8B",
        r#"{"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":128256}"#,
        8_030_261_248,
    ),
    (
        "Llama-3-70B",
        r#"{"model_type":"llama","hidden_size":8192,"num_hidden_layers":80,"num_attention_heads":64,"num_key_value_heads":8,"intermediate_size":28672,"vocab_size":128256}"#,
        70_553_706_496,
    ),
    (
        "Llama-3.2-1B",
        r#"{"model_type":"llama","hidden_size":2048,"num_hidden_layers":16,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":64,"intermediate_size":8192,"vocab_size":128256,"tie_word_embeddings":true}"#,
        1_235_814_400,
    ),
    (
        "Mistral-7B",
        r#"{"model_type":"mistral","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":32000}"#,
        7_241_732_096,
    ),
    (
        "Mixtral-8x7B",
        r#"{"model_type":"mixtral","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":32000,"num_local_experts":8,"num_experts_per_tok":2}"#,
        46_702_792_704,
    ),
    (
        "Qwen2.5-7B",
        r#"{"model_type":"qwen2","hidden_size":3584,"num_hidden_layers":28,"num_attention_heads":28,"num_key_value_heads":4,"intermediate_size":18944,"vocab_size":152064}"#,
        7_615_616_512,
    ),
    (
        "Qwen3-30B-A3B",
        r#"{"model_type":"qwen3_moe","hidden_size":2048,"num_hidden_layers":48,"num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"intermediate_size":6144,"moe_intermediate_size":768,"num_experts":128,"num_experts_per_tok":8,"vocab_size":151936}"#,
        30_532_122_624,
    ),
    (
        "Gemma-2-9B",
        r#"{"model_type":"gemma2","hidden_size":3584,"num_hidden_layers":42,"num_attention_heads":16,"num_key_value_heads":8,"head_dim":256,"intermediate_size":14336,"vocab_size":256000}"#,
        9_241_705_984,
    ),
    (
        "GPT-2",
        r#"{"model_type":"gpt2","n_embd":768,"n_layer":12,"n_head":12,"n_positions":1024,"vocab_size":50257}"#,
        124_439_808,
    ),
    (
        "GPT-NeoX-20B",
        r#"{"model_type":"gpt_neox","hidden_size":6144,"num_hidden_layers":44,"num_attention_heads":64,"intermediate_size":24576,"vocab_size":50432}"#,
        20_554_567_680,
    ),
    (
        "OPT-1.3B",
        r#"{"model_type":"opt","hidden_size":2048,"num_hidden_layers":24,"num_attention_heads":32,"ffn_dim":8192,"max_position_embeddings":2048,"vocab_size":50272}"#,
        1_315_758_080,
    ),
    (
        "Phi-3-mini",
        r#"{"model_type":"phi3","hidden_size":3072,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":32,"intermediate_size":8192,"vocab_size":32064}"#,
        3_821_079_552,
    ),
    (
        "DeepSeek-V2-Lite",
        r#"{"model_type":"deepseek_v2","hidden_size":2048,"num_hidden_layers":27,"num_attention_heads":16,"intermediate_size":10944,"moe_intermediate_size":1408,"n_routed_experts":64,"n_shared_experts":2,"num_experts_per_tok":6,"first_k_dense_replace":1,"kv_lora_rank":512,"q_lora_rank":null,"qk_rope_head_dim":64,"qk_nope_head_dim":128,"v_head_dim":128,"vocab_size":102400}"#,
        15_706_484_224,
    ),
    (
        "DeepSeek-V3",
        r#"{"model_type":"deepseek_v3","hidden_size":7168,"num_hidden_layers":61,"num_attention_heads":128,"intermediate_size":18432,"moe_intermediate_size":2048,"n_routed_experts":256,"n_shared_experts":1,"num_experts_per_tok":8,"first_k_dense_replace":3,"kv_lora_rank":512,"q_lora_rank":1536,"qk_rope_head_dim":64,"qk_nope_head_dim":128,"v_head_dim":128,"vocab_size":129280}"#,
        671_026_419_200,
    ),
];

#[test]
fn published_models_are_counted_to_the_last_parameter() {
    for (name, config, expected) in PUBLISHED {
        let model = parse_config(config).unwrap();
        assert_eq!(model.parameters().total, *expected, "{name}");
    }
}

#[test]
fn a_model_of_experts_says_what_a_token_meets() {
    let config = PUBLISHED.iter().find(|(name, ..)| *name == "DeepSeek-V3").unwrap().1;
    let active = parse_config(config).unwrap().parameters().active as f64;
    assert!((active / 37e9 - 1.0).abs() < 0.02, "{active}");
}

#[test]
fn the_ten_models_of_the_first_published_table_have_their_printed_sizes() {
    let rows = [
        (24, 2304, 24, 1.7),
        (30, 3072, 32, 3.6),
        (36, 4096, 32, 7.5),
        (40, 6144, 48, 18.4),
        (48, 8192, 64, 39.1),
        (60, 10240, 80, 76.1),
        (80, 12288, 96, 145.6),
        (96, 16384, 128, 310.1),
        (105, 20480, 128, 529.6),
        (128, 25600, 160, 1008.0),
    ];
    for (layers, hidden, heads, billions) in rows {
        let count = Model::gpt(layers, hidden, heads, 51200, 2048).parameters().total as f64;
        assert_eq!(format!("{:.1}", count / 1e9), format!("{billions:.1}"));
    }
}

#[test]
fn operations_are_those_of_the_published_formula() {
    let (l, h, v, s, b) = (96.0, 12288.0, 51200.0, 2048.0, 64.0);
    let published = 72.0 * b * s * l * h * h * (1.0 + s / (6.0 * h) + v / (12.0 * l * h));
    let ours = Model::gpt(96, 12288, 96, 51200, 2048).step_flops(64, 2048);
    assert!((ours / published - 1.0).abs() < 1e-12, "{ours} {published}");
}

fn refused(config: &str) -> String {
    parse_config(config).unwrap_err().to_string()
}

#[test]
fn a_description_that_is_wrong_is_refused_with_what_to_do() {
    assert!(matches!(parse_config("[]"), Err(PlanError::NotAConfig(_))));
    assert!(matches!(parse_config("{"), Err(PlanError::NotAConfig(_))));
    let none = refused(r#"{"hidden_size":4096}"#);
    assert!(none.contains("model_type is missing") && none.contains("llama"), "{none}");
    let unknown = refused(r#"{"model_type":"mamba","hidden_size":4096}"#);
    assert!(unknown.contains("\"mamba\" is not known") && unknown.contains("num_hidden_layers"), "{unknown}");
    let missing = refused(r#"{"model_type":"llama","hidden_size":4096,"num_attention_heads":32}"#);
    assert!(missing.contains("is missing"), "{missing}");
    let base = PUBLISHED[1].1;
    for (from, to, expected) in [
        ("\"hidden_size\":4096", "\"hidden_size\":0", "hidden_size is 0"),
        ("\"hidden_size\":4096", "\"hidden_size\":-1", "hidden_size is -1"),
        ("\"hidden_size\":4096", "\"hidden_size\":1e30", "a whole number from 1 to"),
        ("\"hidden_size\":4096", "\"hidden_size\":99999999999999999999", "a whole number from 1 to"),
        ("\"hidden_size\":4096", "\"hidden_size\":\"4096\"", "a whole number"),
        ("\"hidden_size\":4096", "\"hidden_size\":4097", "a multiple of the 32 attention heads"),
        ("\"num_key_value_heads\":8", "\"num_key_value_heads\":5", "a divisor of the 32"),
        ("\"num_hidden_layers\":32", "\"num_hidden_layers\":1000000", "from 1 to 4096"),
    ] {
        let text = refused(&base.replace(from, to));
        assert!(text.contains(expected), "{text}");
    }
}
