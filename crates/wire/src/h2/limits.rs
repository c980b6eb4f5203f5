use std::time::Duration;

use super::BudgetLimit;
use super::hpack::DEFAULT_TABLE_BYTES;
use super::window::INITIAL_WINDOW_BYTES;
use crate::field_section::request_head::RequestRules;
use crate::h1::{BodyLimits, HeadLimits};
use crate::http::Version;

/// Limits of a connection. The defaults are safe on the open Internet and far from what browsers need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H2Limits {
    /// Limits of each head. `head_bytes_max` limits the header list (RFC 9113, section 6.5.2).
    pub head: HeadLimits,
    /// Limits of each message's content.
    pub body: BodyLimits,
    /// Streams that the peer may have open at the same time.
    pub concurrent_streams_max: u32,
    /// Encoded bytes of a header block in all of its frames. Beyond it the connection ends, because both sides' dynamic
    /// tables differ after a block that was not decoded.
    pub header_block_bytes_max: usize,
    /// CONTINUATION frames of a header block (CONTINUATION flood, CVE-2024-27316 and others).
    pub continuations_max: u32,
    /// Size of the dynamic table that the peer's encoder may use (SETTINGS_HEADER_TABLE_SIZE).
    pub header_table_bytes_max: u32,
    /// Size of the dynamic table that this side's encoder uses. 0 for a server, which encodes blocks in advance.
    pub encoder_table_bytes_max: u32,
    /// Initial flow control window of a stream.
    pub stream_window_bytes: u32,
    /// Initial flow control window of the connection.
    pub connection_window_bytes: u32,
    /// Limit for the growth of both windows, for peers that fill them within a round trip. This is also the content
    /// that one connection can make the caller buffer.
    pub window_bytes_max: u32,
    /// True to enable extended CONNECT (RFC 8441).
    pub enables_connect_protocol: bool,
    /// Own output (replies to PING and SETTINGS, heads) that may wait to be sent. Beyond it the connection handles no
    /// input until the peer reads.
    pub output_bytes_max: usize,
    /// Time limit for the peer to acknowledge SETTINGS.
    pub settings_timeout: Duration,
    /// Time limit for content that waits for the peer's window (slow read, CVE-2016-1546).
    pub stalled_timeout: Duration,
    /// Time that a client may continue to send a request after the response, before its stream is reset. Some clients
    /// lose a response that is immediately followed by a reset.
    pub linger_timeout: Duration,
    /// Budget for streams that the peer resets (rapid reset, CVE-2023-44487).
    pub peer_resets: BudgetLimit,
    /// Budget for streams that this side must reset because of the peer's errors (MadeYouReset, CVE-2025-8671).
    pub stream_faults: BudgetLimit,
    /// Budget for SETTINGS frames (CVE-2019-9515).
    pub settings: BudgetLimit,
    /// Budget for PING frames (CVE-2019-9512). Content in either direction returns a token, because some peers measure
    /// the round trip while content flows.
    pub pings: BudgetLimit,
    /// Budget for PRIORITY and PRIORITY_UPDATE frames (CVE-2019-9513).
    pub priorities: BudgetLimit,
    /// Budget for WINDOW_UPDATE frames (data dribble, CVE-2019-9511). Content that is sent returns tokens.
    pub window_updates: BudgetLimit,
    /// Budget for frames without effect: empty DATA, HEADERS and CONTINUATION (CVE-2019-9518), unknown types, and
    /// frames for closed streams.
    pub idle_frames: BudgetLimit,
}

impl Default for H2Limits {
    fn default() -> Self {
        Self {
            head: HeadLimits::default(),
            body: BodyLimits::default(),
            concurrent_streams_max: 128,
            header_block_bytes_max: 32 << 10,
            continuations_max: 16,
            header_table_bytes_max: DEFAULT_TABLE_BYTES as u32,
            encoder_table_bytes_max: 0,
            stream_window_bytes: INITIAL_WINDOW_BYTES,
            connection_window_bytes: 2 * INITIAL_WINDOW_BYTES,
            window_bytes_max: 1 << 20,
            enables_connect_protocol: false,
            output_bytes_max: 64 << 10,
            settings_timeout: Duration::from_secs(10),
            stalled_timeout: Duration::from_secs(30),
            linger_timeout: Duration::from_secs(2),
            peer_resets: BudgetLimit { burst: 500, per_second: 50 },
            stream_faults: BudgetLimit { burst: 200, per_second: 10 },
            settings: BudgetLimit { burst: 100, per_second: 10 },
            pings: BudgetLimit { burst: 200, per_second: 50 },
            priorities: BudgetLimit { burst: 1000, per_second: 100 },
            window_updates: BudgetLimit { burst: 2000, per_second: 200 },
            idle_frames: BudgetLimit { burst: 200, per_second: 50 },
        }
    }
}

impl H2Limits {
    /// Returns the rules for requests.
    #[inline]
    pub(super) fn request_rules(&self) -> RequestRules {
        RequestRules {
            version: Version::Http2,
            head: self.head,
            body_bytes_max: self.body.body_bytes_max,
            enables_connect_protocol: self.enables_connect_protocol,
        }
    }
}
