//! HTTP/2 connections to servers: one carries many exchanges.
//!
//! An [`UpstreamSession`] is a connection without its socket; its own task owns the socket ([`drive`]) and alone reads
//! and writes. So the output of several exchanges goes out together, and GOAWAY, PING and window updates are handled
//! at any time. The task stores what it reads with the exchange it belongs to, and wakes that. A [`StreamLease`] is an
//! exchange's part of a session.
//!
//! Response data that an exchange has not read counts against its stream window. The connection window is large
//! enough that a slow client delays no other. So a server can make a worker keep one window for each exchange, and no
//! more.

mod exchange;
mod session;
mod sessions;
mod stream_lease;

use std::time::Duration;

use exchange::UpstreamExchange;
pub use exchange::{ResponsePiece, StreamFailure};
pub(super) use session::{SessionLimits, UpstreamSession, drive};
pub(super) use sessions::Sessions;
pub use stream_lease::{H2UpstreamTunnel, StreamLease};
use wire::h1::{BodyLimits, HeadLimits};
use wire::h2::H2Limits;

use crate::config;

/// Largest stream window: response bytes that may arrive unread from a server that has proved fast. The first window
/// is a quarter of it.
const WINDOW_BYTES_MAX: u32 = 256 << 10;

/// Most bytes of a response's head. A `forward` may allow less.
const HEAD_BYTES_MAX: usize = 256 << 10;

/// Most field lines of a response's head. A `forward` may allow less.
const FIELDS_MAX: usize = 10_000;

/// Time within which a server must acknowledge our settings.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit that never expires: exchanges limit their waits themselves.
const NEVER: Duration = Duration::from_secs(86_400 * 365);

/// Limits of connections to the servers of an upstream. The budgets that protect workers from busy clients apply to
/// servers, too.
pub(super) fn limits(upstream: &config::UpstreamConfig) -> H2Limits {
    let streams_max = u32::try_from(upstream.streams_per_connection_max).unwrap_or(u32::MAX);
    // A window update is sent at half the window: the other half remains for exchanges whose clients read nothing.
    let connection_window_bytes = streams_max.saturating_mul(2 * WINDOW_BYTES_MAX).min(i32::MAX as u32);
    H2Limits {
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
        ..H2Limits::default()
    }
}
