//! The agent and its shim as separate processes, for the integration tests only.
//!
//! `shim …` is what `muster shim …` is in the real binary; `agent <config.json>` runs an agent until it
//! is killed or its standard input ends, so that a failed test leaves none behind.
#![allow(missing_docs)]

use std::io::Write as _;

fn main() {
    let mut args = std::env::args_os().skip(1);
    let code = match args.next().as_deref().and_then(|word| word.to_str()) {
        Some("shim") => muster_agent::shim_main(args),
        Some("agent") => match args.next() {
            Some(path) => agent(std::path::Path::new(&path)),
            None => 2,
        },
        _ => 2,
    };
    std::process::exit(code);
}

fn agent(config: &std::path::Path) -> i32 {
    let outcome = (|| -> Result<(), Box<dyn std::error::Error>> {
        let config = serde_json::from_slice(&std::fs::read(config)?)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (ended, end) = tokio::sync::oneshot::channel::<()>();
        std::thread::spawn(move || {
            // Any outcome of the read means that the process that held the other end is gone.
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            let _ = ended.send(());
        });
        runtime.block_on(muster_agent::run(config, async {
            let _ = end.await;
        }))?;
        runtime.shutdown_background();
        Ok(())
    })();
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "agent process: {error:?}");
            1
        }
    }
}
