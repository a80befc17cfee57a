//! The one collective operation of a training step: every rank's gradient in, the sum out, to all.
//!
//! Floating-point addition is not associative, so the order of the sum is part of the result: rank 0
//! starts with its own gradient and adds those of ranks 1, 2, 3 … in that order, independent of which arrives first.

use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::frame::{self, Builder, Fields, FrameError, Kind};
use crate::model::Gradient;
use std::net::TcpStream;
use std::time::Duration;

/// Step, flag, loss.
const STEP_HEAD_LEN: usize = 8 + 1 + 8;

/// A complete gang.
pub(crate) struct Gang {
    /// Rank 0: one per other rank, in rank order. Others: the one to rank 0.
    links: Vec<TcpStream>,
    rank: u32,
    weights: usize,
}

/// What came of a step; the same on every rank.
pub(crate) struct Verdict {
    pub(crate) sum: Gradient,
    /// Some rank was asked to stop: save and part after this step.
    pub(crate) stop: bool,
}

impl Gang {
    pub(crate) fn new(links: Vec<TcpStream>, rank: u32, weights: usize) -> Gang {
        Gang { links, rank, weights }
    }

    /// From here on a rank that is silent for this long is lost.
    pub(crate) fn set_patience(&self, patience: Duration) -> Result<(), Error> {
        for link in &self.links {
            link.set_read_timeout(Some(patience))
                .and_then(|()| link.set_write_timeout(Some(patience)))
                .map_err(|source| Error::Process { doing: "set the timeouts of a connection", source })?;
        }
        Ok(())
    }

    /// Rank 0 gives where all start; the others are given it.
    pub(crate) fn share_start(&mut self, own: Option<Checkpoint>) -> Result<Checkpoint, Error> {
        const DOING: &str = "agreeing where to start";
        if let Some(start) = own {
            let body = Builder::default().u64(start.step).f64s(&start.weights).0;
            self.send_all(Kind::Start, &body, DOING)?;
            return Ok(start);
        }
        let weights = self.weights;
        self.receive(0, Kind::Start, 8 + 8 * weights, DOING, |fields| {
            Ok(Checkpoint { step: fields.u64()?, weights: fields.f64s(weights)? })
        })
    }

    /// Adds up what every rank brings to `step`.
    pub(crate) fn sum(&mut self, step: u64, own: Gradient, stop: bool) -> Result<Verdict, Error> {
        let doing = format!("summing the gradients of step {step}");
        if self.rank != 0 {
            let body = encode(step, stop, &own);
            self.send(0, Kind::Gather, &body, &doing)?;
            return self.receive_step(0, Kind::Verdict, step, &doing);
        }
        let mut verdict = Verdict { sum: own, stop };
        for peer in 0..self.links.len() {
            let theirs = self.receive_step(peer, Kind::Gather, step, &doing)?;
            verdict.stop |= theirs.stop;
            verdict.sum.loss += theirs.sum.loss;
            for (sum, term) in verdict.sum.weights.iter_mut().zip(&theirs.sum.weights) {
                *sum += term;
            }
        }
        let body = encode(step, verdict.stop, &verdict.sum);
        self.send_all(Kind::Verdict, &body, &doing)?;
        Ok(verdict)
    }

    /// Returns on every rank once rank 0 has called it, which it does after everything is saved: so the
    /// exit code of any rank speaks for the whole gang.
    pub(crate) fn part(&mut self) -> Result<(), Error> {
        const DOING: &str = "waiting for everything to be saved";
        if self.rank == 0 {
            self.send_all(Kind::Parting, &[], DOING)
        } else {
            self.receive(0, Kind::Parting, 0, DOING, |_| Ok(()))
        }
    }

    fn receive_step(&mut self, link: usize, kind: Kind, step: u64, doing: &str) -> Result<Verdict, Error> {
        let weights = self.weights;
        let len_max = STEP_HEAD_LEN + 8 * weights;
        self.receive(link, kind, len_max, doing, |fields| {
            let theirs = fields.u64()?;
            if theirs != step {
                return Err(FrameError::Malformed(format!("it is at step {theirs}")));
            }
            Ok(Verdict {
                stop: fields.u8()? != 0,
                sum: Gradient { loss: fields.f64()?, weights: fields.f64s(weights)? },
            })
        })
    }

    fn receive<T>(
        &mut self,
        link: usize,
        kind: Kind,
        len_max: usize,
        doing: &str,
        decode: impl FnOnce(&mut Fields<'_>) -> Result<T, FrameError>,
    ) -> Result<T, Error> {
        let received = frame::expect(&mut self.links[link], kind, len_max).and_then(|body| {
            let mut fields = Fields::new(&body);
            let value = decode(&mut fields)?;
            fields.end()?;
            Ok(value)
        });
        received.map_err(|source| self.lost(link, doing, source))
    }

    fn send(&mut self, link: usize, kind: Kind, body: &[u8], doing: &str) -> Result<(), Error> {
        frame::write(&mut self.links[link], kind, body).map_err(|source| self.lost(link, doing, source))
    }

    fn send_all(&mut self, kind: Kind, body: &[u8], doing: &str) -> Result<(), Error> {
        (0..self.links.len()).try_for_each(|link| self.send(link, kind, body, doing))
    }

    fn lost(&self, link: usize, doing: &str, source: FrameError) -> Error {
        let rank = if self.rank == 0 { link as u32 + 1 } else { 0 };
        Error::Peer { rank, doing: doing.to_owned(), source }
    }
}

fn encode(step: u64, stop: bool, gradient: &Gradient) -> Vec<u8> {
    Builder::default().u64(step).u8(u8::from(stop)).f64(gradient.loss).f64s(&gradient.weights).0
}
