//! Connections of the listener, which end where the other end says or takes nothing.
//!
//! An answer is in memory until its reader has taken it, and HTTP has no limit for how long that may be: a window that stays
//! shut costs a reader nothing.
//!
//! **Invariant:** a connection that asks for nothing ends, and so does one for which nothing can be written of what it asked for.

use muster_transport::{PeerConnection, PeerInfo};
use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};
use tonic::transport::server::Connected;

/// Bytes with which a connection has said what it speaks: as many as HTTP/2 begins with. What HTTP/1 begins with has a separate
/// time limit, the server's.
const SPOKEN_MIN: usize = 24;
/// Bytes that the kernel has to take for a reader with something to take within the time for that: a slow line takes more.
///
/// The kernel takes them in larger steps than a reader does. Once its buffer for the reader is full it takes more when about a third
/// of that is free, and a reader's kernel whose buffer is full asks for more when about a sixteenth of that is free. So an answer
/// that fills both buffers ends where its reader takes less than the larger of these steps in that time, however evenly it reads;
/// one that fits into them is written at once and ends for nothing.
const TAKEN_MIN: usize = 4 << 10;

/// How long the other end of a connection may take.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTimeouts {
    /// Until it asks for something.
    pub first_byte: Duration,
    /// While it takes nothing of what it asked for.
    pub stall: Duration,
}

impl ConnectionTimeouts {
    /// Those of a replica and of an agent.
    pub const DEFAULT: ConnectionTimeouts =
        ConnectionTimeouts { first_byte: Duration::from_secs(10), stall: Duration::from_secs(20) };
}

#[derive(Debug, Default)]
struct Owed {
    /// Answers that are made and not written.
    answers: usize,
    /// Whether there was a time without any since the last look.
    was_free: bool,
    written: usize,
    is_over: bool,
    waker: Option<Waker>,
}

/// A connection as those see it who answer on it: who is at the other end, and what it has to take.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Who is at the other end.
    pub info: PeerInfo,
    owed: Arc<Mutex<Owed>>,
}

/// An answer that is made, until it is written.
#[derive(Debug)]
pub struct Unwritten(Arc<Mutex<Owed>>);

impl Drop for Unwritten {
    fn drop(&mut self) {
        let mut owed = self.0.lock();
        owed.answers -= 1;
        owed.was_free |= owed.answers == 0;
    }
}

impl Peer {
    /// Notes an answer for as long as what is returned is kept.
    #[must_use]
    pub fn owes(&self) -> Unwritten {
        self.owed.lock().answers += 1;
        Unwritten(Arc::clone(&self.owed))
    }

    /// Ends the connection.
    pub fn end(&self) {
        let mut owed = self.owed.lock();
        owed.is_over = true;
        if let Some(waker) = owed.waker.take() {
            drop(owed);
            waker.wake();
        }
    }
}

/// A connection that ends so.
pub(crate) struct Watched {
    inner: PeerConnection,
    peer: Peer,
    timeouts: ConnectionTimeouts,
    /// Bytes that were read, as far as that matters.
    read: usize,
    next_look: Pin<Box<Sleep>>,
}

impl Watched {
    pub(crate) fn new(inner: PeerConnection, timeouts: ConnectionTimeouts) -> Watched {
        // What is asked for first has the whole time, whenever that is.
        let owed = Arc::new(Mutex::new(Owed { was_free: true, ..Owed::default() }));
        let peer = Peer { info: inner.connect_info(), owed };
        let next_look = Box::pin(tokio::time::sleep(timeouts.first_byte));
        Watched { inner, peer, timeouts, read: 0, next_look }
    }

    /// # Errors
    /// When the connection is to end.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let over = |text| Err(io::Error::new(io::ErrorKind::TimedOut, text));
        {
            let mut owed = self.peer.owed.lock();
            if owed.is_over {
                return over("its reader took nothing of a stream");
            }
            if !owed.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                owed.waker = Some(context.waker().clone());
            }
        }
        while self.next_look.as_mut().poll(context).is_ready() {
            if self.read < SPOKEN_MIN {
                return over("nothing was asked for");
            }
            let mut owed = self.peer.owed.lock();
            if owed.answers > 0 && !owed.was_free && owed.written < TAKEN_MIN {
                return over("its reader took nothing");
            }
            owed.was_free = owed.answers == 0;
            owed.written = 0;
            drop(owed);
            self.next_look.as_mut().reset(Instant::now() + self.timeouts.stall);
        }
        Ok(())
    }

    fn wrote(&self, polled: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = polled {
            let mut owed = self.peer.owed.lock();
            owed.written = owed.written.saturating_add(*bytes);
        }
    }
}

impl Connected for Watched {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        if self.read < SPOKEN_MIN {
            self.read += buffer.filled().len() - before;
            if self.read >= SPOKEN_MIN {
                let next = Instant::now() + self.timeouts.stall;
                self.next_look.as_mut().reset(next);
                // The new time has to wake this task.
                self.check(context)?;
            }
        }
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.wrote(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        let polled = Pin::new(&mut self.inner).poll_write_vectored(context, parts);
        self.wrote(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
