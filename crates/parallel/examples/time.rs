//! How long a plan for 16,384 devices takes on this machine.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "it measures; the library has no clock"
)]

use std::time::Instant;

use muster_parallel::search::{Fixed, Question, usual_program};
use muster_parallel::{Calibration, Precision, Training, accelerator, parse_config};

const CONFIG: &str = r#"{"model_type":"llama","hidden_size":16384,"num_hidden_layers":126,"num_attention_heads":128,
    "num_key_value_heads":8,"intermediate_size":53248,"vocab_size":128256}"#;
const EXPERTS: &str = r#"{"model_type":"deepseek_v3","hidden_size":7168,"num_hidden_layers":61,"num_attention_heads":128,
    "intermediate_size":18432,"moe_intermediate_size":2048,"n_routed_experts":256,"n_shared_experts":1,
    "num_experts_per_tok":8,"first_k_dense_replace":3,"kv_lora_rank":512,"q_lora_rank":1536,"qk_rope_head_dim":64,
    "qk_nope_head_dim":128,"v_head_dim":128,"vocab_size":129280}"#;

fn main() {
    for (name, config) in [("405B", CONFIG), ("671B of experts", EXPERTS)] {
        let accelerator = accelerator::find("h100").expect("it is known");
        let question = Question {
            model: parse_config(config).expect("it is right"),
            training: Training {
                batch: 2048,
                sequence: 8192,
                precision: Precision::Bf16,
                program: usual_program(&accelerator),
            },
            accelerator,
            calibration: Calibration::of(&accelerator),
            devices_max: 16384,
            fixed: Fixed::default(),
        };
        let mut times: Vec<f64> = Vec::new();
        let mut plan = None;
        for _ in 0..21 {
            let started = Instant::now();
            plan = Some(question.plan().expect("it fits"));
            times.push(started.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let plan = plan.expect("it ran");
        println!(
            "{name}: median {:.1} ms, longest {:.1} ms of {} plans; {} splits priced, {} layouts timed; best {:?} {:.2} s {:.1} %",
            times[times.len() / 2],
            times[times.len() - 1],
            times.len(),
            plan.priced,
            plan.timed,
            plan.candidates[0].layout,
            plan.candidates[0].step.step_time_us / 1e6,
            plan.candidates[0].utilisation * 100.0
        );
    }
}
