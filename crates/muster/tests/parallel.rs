//! `muster parallel` as a command: what it prints, the page that it writes, and a clear error for each kind of bad input.
#![allow(
    clippy::unwrap_used,
    reason = "a panic here is the report; the lint knows test functions but not their helpers"
)]

use std::path::Path;
use std::process::{Command, Output};

const CONFIG: &str = r#"{
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": false
}"#;

fn parallel(directory: &Path, arguments: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
    command.current_dir(directory).arg("parallel").args(arguments.split_whitespace());
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn with_config() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("config.json"), CONFIG).unwrap();
    directory
}

#[test]
fn a_plan_has_layouts_memory_time_ranks_arguments_and_a_page() {
    let directory = with_config();
    let (code, out, err) =
        parallel(directory.path(), "plan config.json --accelerators h100 --max 16 --html plan.html");
    assert_eq!((code, err.contains("error")), (0, false), "{err}");
    for part in [
        "8.03 billion parameters",
        "Fastest layouts:",
        "ranks: ",
        "Megatron-LM: --tensor-model-parallel-size ",
        "torchtitan: ",
        "MaxText: ",
        "DeepSpeed: ",
        "PARALLEL_TENSOR=",
        "calibrated",
    ] {
        assert!(out.contains(part), "{part:?} is missing in\n{out}");
    }
    let page = std::fs::read_to_string(directory.path().join("plan.html")).unwrap();
    let (code, out, err) =
        parallel(directory.path(), "plan config.json --accelerators h100 --max 16 -o html");
    assert!(code == 0 && out == page, "{err}");
    let (code, out, err) = parallel(directory.path(), "check -o html");
    assert!(
        code == 2 && out.is_empty() && err.contains("-o html is for muster parallel plan and muster report"),
        "{err}"
    );
    assert!(page.contains("<svg") && !page.contains("<script"), "a picture, and nothing that runs");
}

#[test]
fn a_plan_as_json_has_the_exact_parameters_and_keeps_a_size_that_is_given() {
    let directory = with_config();
    let (code, out, err) =
        parallel(directory.path(), "plan config.json --accelerators h100 --max 16 --tensor 4 -o json");
    assert_eq!(code, 0, "{err}");
    let plan: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(plan["parameters"]["total"], 8_030_261_248_u64);
    let text = plan.to_string();
    assert!(text.contains("\"tensor\":4") && !text.contains("\"tensor\":8,"), "{text}");
}

#[test]
fn every_kind_of_bad_input_has_a_clear_error_and_no_plan() {
    let directory = with_config();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("unknown.json", r#"{"model_type": "mystery"}"#);
    write("cut.json", "{");
    write("twice.json", &CONFIG.replace("\"hidden_size\"", "\"vocab_size\": 9, \"hidden_size\""));
    write("nan.json", &CONFIG.replace("32,", "NaN,"));
    write("deep.json", &"[".repeat(100_000));
    write("large.json", &"x".repeat(2 << 20));
    write("none.json", "[]");
    write("twice-steps.json", r#"[{"step_time_s": 60, "data": 8, "data": 4}]"#);
    write("fast.json", r#"[{"step_time_s": 0.0001, "data": 8}]"#);
    write("apart.json", r#"[{"step_time_s": 60, "data": 8}, {"step_time_s": 600, "data": 8}]"#);
    write("negative.json", r#"[{"step_time_s": -1, "data": 8}]"#);
    let plan = "plan config.json --accelerators h100";
    for (arguments, code, said) in [
        ("plan config.json --accelerators h1000 --max 8", 2, "\"h1000\" is not known; known are a100"),
        (&format!("{plan} --max 0"), 2, "max is 0"),
        (&format!("{plan} --max 99999999999999"), 2, "it has to be from 1 to 1048576"),
        (&format!("{plan} --max 8 --batch 0"), 2, "batch is 0"),
        (&format!("{plan} --max 8 --tensor 3"), 2, "does not divide the 32 heads"),
        (&format!("{plan} --max 1 --precision fp32"), 5, "the smallest fleet that would do: 2 devices"),
        ("plan nowhere.json --accelerators h100 --max 8", 2, "nowhere.json: No such file"),
        ("plan unknown.json --accelerators h100 --max 8", 2, "architecture \"mystery\" is not known"),
        ("plan cut.json --accelerators h100 --max 8", 2, "cut.json: "),
        ("plan twice.json --accelerators h100 --max 8", 2, "\"vocab_size\" is there twice"),
        ("plan nan.json --accelerators h100 --max 8", 2, "nan.json: NOT_A_CONFIG"),
        ("plan deep.json --accelerators h100 --max 8", 2, "recursion limit"),
        ("plan large.json --accelerators h100 --max 8", 2, "large.json is longer than 1048576 bytes"),
        (&format!("{plan} --max -1"), 2, "'-1' for '--max <COUNT>'"),
        (&format!("{plan} --max 8 --price -1"), 2, "price is -1; it has to be from 0"),
        (&format!("{plan} --max 8 --price NaN"), 2, "price is NaN"),
        (
            &format!("{plan} --max 8 --micro-batch 3"),
            2,
            "1024 sequences do not divide into micro-batches of 3",
        ),
        (&format!("{plan} --max 8 --steps none.json"), 2, "NO_STEPS"),
        (&format!("{plan} --max 8 --steps twice-steps.json"), 2, "duplicate field `data`"),
        (&format!("{plan} --max 8 --steps fast.json"), 2, "step 1 took"),
        (&format!("{plan} --max 8 --steps apart.json"), 2, "apart.json: "),
        (&format!("{plan} --max 8 --steps negative.json"), 2, "negative.json: "),
        ("serve config.json --accelerators h100 --requests 0", 2, "requests is 0"),
    ] {
        let (actual, out, err) = parallel(directory.path(), arguments);
        assert!(
            actual == code && err.starts_with("error: ") && err.contains(said),
            "{arguments}: {actual} {err}"
        );
        assert_eq!(out, "", "{arguments}");
    }
}

#[test]
fn the_check_shows_the_published_runs_also_those_that_it_misses() {
    let (code, out, err) = parallel(Path::new("."), "check");
    assert_eq!(code, 0, "{err}");
    for part in ["175B: weights and optimiser, GiB", "not predicted: ", "DeepSeek-V3 on 1024"] {
        assert!(out.contains(part), "{part:?} is missing in\n{out}");
    }
}
