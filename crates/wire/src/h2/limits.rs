use std::time::Duration;

use super::BudgetLimit;
use super::hpack::DEFAULT_TABLE_BYTES;
use super::window::INITIAL_WINDOW_BYTES;
use crate::h1::{BodyLimits, HeadLimits};

/// All limits of a connection. The defaults are safe on the open Internet, and far from what browsers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of each head, in HTTP/1's terms: `head_bytes_max` is that of the header list (RFC 9113, section 6.5.2).
    pub head: HeadLimits,
    /// Of each message's content.
    pub body: BodyLimits,
    /// Streams that the peer may have open at a time.
    pub concurrent_streams_max: u32,
    /// Bytes of a header block as it is sent, over all of its frames. Beyond, the connection ends, for a block that is not
    /// decoded leaves both sides with different tables.
    pub header_block_bytes_max: usize,
    /// CONTINUATION frames of a header block (the CONTINUATION flood, CVE-2024-27316 and others).
    pub continuations_max: u32,
    /// Bytes of the table that the peer's encoder may use (SETTINGS_HEADER_TABLE_SIZE).
    pub header_table_bytes_max: u32,
    /// Bytes of the table that our encoder uses. 0 for a server, whose blocks are encoded beforehand.
    pub encoder_table_bytes_max: u32,
    /// Bytes that may come of a stream before any are taken, at first.
    pub stream_window_bytes: u32,
    /// Bytes that may come of all streams together before any are taken, at first.
    pub connection_window_bytes: u32,
    /// To what both windows grow for a peer that fills them faster than word of it gets to it, which is to say: bytes that
    /// a connection can make the caller keep.
    pub window_bytes_max: u32,
    /// Whether extended CONNECT is offered (RFC 8441).
    pub enables_connect_protocol: bool,
    /// Bytes of output of our own (answers to PING and SETTINGS, heads) that may wait to be sent. Beyond, no more input is
    /// handled until the peer reads.
    pub output_bytes_max: usize,
    /// How long the peer may take to acknowledge our settings.
    pub settings_timeout: Duration,
    /// How long content may wait for the peer to open a window (slow read, CVE-2016-1546).
    pub stalled_timeout: Duration,
    /// How long a client may go on sending a request that has been answered, before its stream is reset: some lose an answer
    /// that a reset follows at once.
    pub linger_timeout: Duration,
    /// Streams that the peer resets (rapid reset, CVE-2023-44487).
    pub peer_resets: BudgetLimit,
    /// Streams that we have to reset for faults of the peer's (MadeYouReset, CVE-2025-8671).
    pub stream_faults: BudgetLimit,
    /// SETTINGS frames (CVE-2019-9515).
    pub settings: BudgetLimit,
    /// PING frames (CVE-2019-9512); content that comes or is sent earns one back, for some peers measure by them while it
    /// flows.
    pub pings: BudgetLimit,
    /// PRIORITY and PRIORITY_UPDATE frames (CVE-2019-9513).
    pub priorities: BudgetLimit,
    /// WINDOW_UPDATE frames; content that is sent earns some back (data dribble, CVE-2019-9511).
    pub window_updates: BudgetLimit,
    /// Frames that say nothing: empty DATA, HEADERS and CONTINUATION (CVE-2019-9518), unknown types, and those for
    /// streams that are closed.
    pub idle_frames: BudgetLimit,
}

impl Default for Limits {
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
