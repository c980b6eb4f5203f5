//! Lingering: closing at once would reset a connection whose client still sends, and the client could lose the end of
//! the last response (RFC 9112, section 9.6).

use std::io;
use std::task::{Context as Task, Poll, ready};

use super::{ConnectionStage, Context, Transport};

/// Maximum number of reads before other connections get their turn.
const READS_A_TURN_MAX: u32 = 8;

/// Closes the sending side at first, then reads and drops input. Ready when the client has ended; the connection's
/// deadline is that of `linger-timeout`.
pub(crate) fn poll_lingering(
    socket: &mut Transport,
    slot: u32,
    input: &mut [u8],
    context: &Context,
    task: &Task<'_>,
) -> Poll<io::Result<()>> {
    let mut table = context.table.borrow_mut();
    if table.stage(slot) != ConnectionStage::Linger {
        socket.shutdown_write()?;
        let linger_ms = context.generation().limits.linger_timeout.as_millis() as u64;
        let deadline_ms = context.clock.now().monotonic_ms + linger_ms;
        table.enter(slot, ConnectionStage::Linger, Some(deadline_ms), task.waker());
    }
    for _ in 0..READS_A_TURN_MAX {
        if ready!(socket.poll_read(input))? == 0 {
            return Poll::Ready(Ok(()));
        }
    }
    task.waker().wake_by_ref();
    Poll::Pending
}
