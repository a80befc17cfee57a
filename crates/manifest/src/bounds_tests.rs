//! Numbers outside their bounds, in the words of a job file.

use super::*;

/// The first problem of a job with these lines below `spec`.
fn problem(lines: &str) -> String {
    let text = format!("apiVersion: muster.dev/v1\nkind: Job\nmetadata: {{name: x}}\nspec:\n{lines}");
    let error = match parse(text.as_bytes(), 1_800_000_000_000) {
        Ok(manifests) => manifests[0].check().unwrap_err(),
        Err(error) => error,
    };
    error.0[0].to_string()
}

#[test]
fn a_size_without_its_unit_is_refused() {
    for (line, expected) in [
        (
            "scratch: 200",
            "line 6: spec.scratch: must be 1Mi or more, got 200 bytes; give it a unit, like 200Gi",
        ),
        ("memory: 5", "line 6: spec.memory: must be 1Mi or more, got 5 bytes; give it a unit, like 5Gi"),
        ("memory: 64Ki", "line 6: spec.memory: must be 1Mi or more, got 64Ki"),
    ] {
        assert_eq!(problem(&format!("  command: [run]\n  {line}\n")), expected);
    }
}

#[test]
fn what_is_counted_is_named_with_its_bounds() {
    let workers = problem("  command: [run]\n  workers: -1\n");
    assert_eq!(workers, "line 6: spec.workers: must be a whole number from 1 to 16384, got \"-1\"");
    let command = problem("  command: []\n");
    assert!(command.ends_with("spec.command: must be between 1 and 256 words, got 0"), "{command}");
}
