//! Connections of HTTP/2 to servers: one carries many exchanges.
//!
//! A [`Session`] is a connection without its socket, which a task of its own has ([`drive`]): it alone reads and writes,
//! so that what several exchanges have to send goes out together, and words of the server's (GOAWAY, PING, windows) are
//! heard at any time. What it reads it leaves with the exchange that it is for, and wakes it. A [`StreamLease`] is an
//! exchange's part of a session.
//!
//! What an exchange has not taken counts against its window, and only there: the connection's window is so large that a
//! client who reads slowly holds up nobody else. So a server can make us keep a window for each exchange, and no more.

mod exchange;
mod session;
mod sessions;
mod stream_lease;

use std::time::Duration;

use exchange::Exchange;
pub use exchange::{ResponsePiece, StreamFailure};
pub(super) use session::{Session, SessionLimits, drive};
pub(super) use sessions::Sessions;
pub use stream_lease::{StreamLease, StreamTunnel};
use wire::h1::{BodyLimits, HeadLimits};
use wire::h2::Limits;

use crate::config;

/// What may come of an exchange before any of it is taken, when its server has shown to be fast. It begins with a quarter.
const WINDOW_BYTES_MAX: u32 = 256 << 10;

/// Bytes of a response's head. A forward may allow less.
const HEAD_BYTES_MAX: usize = 256 << 10;

/// Field lines of a response's head. A forward may allow less.
const FIELDS_MAX: usize = 10_000;

/// How long a server may take to acknowledge our settings.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits of waiting that exchanges have themselves.
const NEVER: Duration = Duration::from_secs(86_400 * 365);

/// The limits of connections to the servers of an upstream. All that a server could do to keep us busy has the budget that
/// clients have.
pub(super) fn limits(upstream: &config::Upstream) -> Limits {
    let streams_max = u32::try_from(upstream.streams_per_connection_max).unwrap_or(u32::MAX);
    // What was taken is told when it is half of the window: the other half is for all exchanges whose clients take nothing.
    let connection_window_bytes = streams_max.saturating_mul(2 * WINDOW_BYTES_MAX).min(i32::MAX as u32);
    Limits {
        head: HeadLimits { head_bytes_max: HEAD_BYTES_MAX, fields_max: FIELDS_MAX, target_bytes_max: 0 },
        body: BodyLimits {
            body_bytes_max: u64::MAX,
            extension_bytes_max: HEAD_BYTES_MAX,
            trailer_bytes_max: HEAD_BYTES_MAX,
        },
        header_block_bytes_max: HEAD_BYTES_MAX,
        encoder_table_bytes_max: 4 << 10,
        connection_window_bytes,
        window_bytes_max: WINDOW_BYTES_MAX,
        settings_timeout: SETTINGS_TIMEOUT,
        stalled_timeout: NEVER,
        linger_timeout: NEVER,
        ..Limits::default()
    }
}
