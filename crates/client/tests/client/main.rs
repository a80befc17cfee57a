//! The client against small servers that the tests start.

// A panic here is the report; clippy knows that only of functions marked as tests.
#![allow(clippy::unwrap_used)]

mod fake;
mod handle;
mod pages;
mod retry;
mod submitter;
mod watch;

/// The same program in three languages shows how little a program has to say; `python/tests/test_examples.py` runs all of them.
#[test]
fn the_example_programs_have_thirty_lines() {
    let client = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let examples = [("python/examples/job.py", "#"), ("examples/job.rs", "//"), ("go/example/main.go", "//")];
    for (file, comment) in examples {
        let text = std::fs::read_to_string(client.join(file)).unwrap();
        let is_code = |line: &&str| !line.is_empty() && !line.starts_with(comment);
        let lines = text.lines().map(str::trim).filter(is_code).count();
        assert!((10..=30).contains(&lines), "{file} has {lines} lines");
        for part in ["submit", "explain", "cancel", "wait"] {
            assert!(text.to_lowercase().contains(&format!("{part}(")), "{file} does not {part}");
        }
    }
}
