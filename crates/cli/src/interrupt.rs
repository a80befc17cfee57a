//! Ctrl-C: how a command ends that it ends early.

use muster_console::{Exit, Failure};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Interrupts from the terminal, from the moment on in which they are listened for: one that comes while a command writes is not lost.
pub struct Interrupts(Signal);

impl Interrupts {
    /// Listens. From now on an interrupt does not end the program by itself.
    pub fn listen() -> Result<Interrupts, Failure> {
        let refused = |error: std::io::Error| {
            Failure::new(Exit::Failed, format!("interrupts cannot be listened for: {error}"))
        };
        signal(SignalKind::interrupt()).map(Interrupts).map_err(refused)
    }

    /// Waits for the next one; the exit code of every command that it ends.
    pub async fn next(&mut self) -> Exit {
        if self.0.recv().await.is_none() {
            // None can come any more, which is no interrupt.
            std::future::pending::<()>().await;
        }
        Exit::Interrupted
    }
}
