//! How long it takes to judge a million operations: `cargo run --release -p muster-drill --example judge_million`.

#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../tests/judge/support.rs"]
mod support;

use std::time::Instant;

fn main() {
    println!("operations, records, watch messages, seconds, held");
    for steps in [62_500, 125_000, 250_000, 500_000] {
        let sample = support::sample_with(1, steps, 512);
        let began = Instant::now();
        let verdict = sample.judge();
        let seconds = began.elapsed().as_secs_f64();
        let checked = verdict.checked;
        println!(
            "{}, {}, {}, {seconds:.2}, {}",
            checked.operations, checked.records, checked.watch_events, verdict.held
        );
        for (rule, breaches) in &verdict.findings.0 {
            println!("  {rule}: {} ({:?})", breaches.count, breaches.first.first());
        }
    }
}
