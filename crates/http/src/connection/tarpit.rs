//! Tarpit: a connection that is kept without a response, so that its client waits. It holds its socket and nothing else.

use std::rc::Rc;
use std::task::{Context as Task, Poll};

use super::{ConnectionStage, Context, Socket};
use crate::known_clients::TarpitPlace;
use crate::log::LogClient;

/// Time between two bytes. Clients that wait for a whole response do not time out; those that watch the pause rarely
/// wait less.
const BYTE_TIME_MS: u64 = 10_000;

/// Bytes that a client gets in turn: the beginning of a response that never has a complete line.
const BYTES: &[u8] = b"HTTP/1.1 200 OK";

/// Bytes of input that are dropped in a turn. More input waits in the kernel, and its window closes.
const DROPPED_BYTES_MAX: usize = 64;

/// Connection in the tarpit.
pub(super) struct TarpitConnection {
    socket: Socket,
    context: Rc<Context>,
    client: LogClient,
    slot: u32,
    /// Bytes that were sent. With TLS, none can be.
    sent: Option<u8>,
    ends_at_ms: u64,
    _place: TarpitPlace,
}

impl TarpitConnection {
    /// Keeps a connection in its slot. `sends` is true for one without TLS.
    pub(super) fn new(
        socket: Socket,
        client: LogClient,
        slot: u32,
        sends: bool,
        place: TarpitPlace,
        context: Rc<Context>,
    ) -> Self {
        let time_ms = context.generation().limits.tarpit.time.as_millis() as u64;
        let ends_at_ms = context.clock.now().monotonic_ms + time_ms;
        Self { socket, client, slot, sent: sends.then_some(0), ends_at_ms, _place: place, context }
    }

    /// Address of the client.
    pub(super) fn client(&self) -> LogClient {
        self.client
    }

    /// Socket to wait for.
    pub(super) fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Waits. Ready when the connection must be closed.
    pub(super) fn poll(&mut self, task: &Task<'_>) -> Poll<()> {
        let now_ms = self.context.clock.now().monotonic_ms;
        let verdict = self.context.table.borrow_mut().take_verdict(self.slot);
        let is_due = verdict == Some(super::WakeReason::TimedOut);
        if verdict.is_some() && !is_due || now_ms >= self.ends_at_ms {
            self.socket.abort_on_close();
            return Poll::Ready(());
        }
        let mut dropped = [0; DROPPED_BYTES_MAX];
        match self.socket.poll_read(&mut dropped) {
            Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
            Poll::Ready(Ok(_)) | Poll::Pending => {}
        }
        if is_due && let Some(sent) = &mut self.sent {
            let byte = BYTES.get(usize::from(*sent)).copied().unwrap_or(b'.');
            *sent = sent.saturating_add(1);
            if let Poll::Ready(Err(_)) = self.socket.poll_write(&[byte]) {
                return Poll::Ready(());
            }
        }
        let mut table = self.context.table.borrow_mut();
        if is_due || table.stage(self.slot) != ConnectionStage::Linger {
            let deadline_ms = self.ends_at_ms.min(now_ms + BYTE_TIME_MS);
            table.enter(self.slot, ConnectionStage::Linger, Some(deadline_ms), task.waker());
        }
        Poll::Pending
    }

    /// Closes the connection. Must be called once.
    pub(super) fn close(&mut self) {
        self.context.leave(self.slot);
    }
}
