//! Fits the calibrations of `calibration.rs` to the published rows and prints them.

use muster_parallel::calibration::{fit, fit_overlap};
use muster_parallel::{Calibration, Observation, Origin, published};

fn main() {
    let rows = published::rows();
    for kinds in [&["a100"][..], &["h100", "h800"], &["v5p", "v4"], &["v6e"]] {
        let of_kind: Vec<Observation> = rows
            .iter()
            .filter(|row| kinds[0] == row.observation.accelerator.name && row.unfitted.is_empty())
            .map(|row| row.observation.clone())
            .collect();
        let start = Calibration::prior(&of_kind[0].accelerator);
        let found = fit(&of_kind, &start, Origin::Calibrated);
        println!("{kinds:?}: {found:?}");
        let mut programs: Vec<&str> =
            of_kind.iter().map(|observation| observation.training.program.overlap_of()).collect();
        programs.dedup();
        for program in programs {
            let of_program: Vec<Observation> = of_kind
                .iter()
                .filter(|observation| observation.training.program.overlap_of() == program)
                .cloned()
                .collect();
            let kept = of_program[0].training.program.overlap();
            println!("  {program}: {kept:?}, fitted {:?}", fit_overlap(&of_program, &found, kept));
        }
        let mut errors = Vec::new();
        for row in rows.iter().filter(|row| kinds.contains(&row.observation.accelerator.name)) {
            let (layout, step) = row.observation.predict(&found).expect("a row has a layout");
            let error = (step.step_time_us / row.observation.step_time_us - 1.0) * 100.0;
            errors.push(error.abs());
            let parts: Vec<String> = step
                .parts()
                .iter()
                .filter(|(_, us)| *us > 0.005 * step.step_time_us)
                .map(|(name, us)| format!("{name} {:.1}", us / step.step_time_us * 100.0))
                .collect();
            println!(
                "{:28} {:36} {:8.2} {:8.2} {error:+6.1} % b{} v{} {:?} {}",
                row.table,
                row.observation.name,
                row.observation.step_time_us / 1e6,
                step.step_time_us / 1e6,
                layout.micro_batch,
                layout.interleave,
                layout.recompute,
                parts.join(" ")
            );
        }
        let worst = errors.iter().copied().fold(0.0, f64::max);
        println!("average {:.1} % worst {worst:.1} %", errors.iter().sum::<f64>() / errors.len() as f64);
    }
}
