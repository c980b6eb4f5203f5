use crate::field_section::budget::BudgetLimit;
use crate::field_section::request_head::RequestRules;
use crate::h1::{BodyLimits, HeadLimits};
use crate::http::Version;
use crate::qpack::DecoderLimits;

/// Limits of a connection. The defaults are safe on the open Internet and far from what browsers need. The transport limits
/// content that has arrived and was not read, and the number of streams of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H3Limits {
    /// Limits of each head. `head_bytes_max` limits the list of fields (RFC 9114, section 4.2.2).
    pub head: HeadLimits,
    /// Limits of each message's content.
    pub body: BodyLimits,
    /// Requests that the peer may have open at the same time.
    pub concurrent_streams_max: usize,
    /// Encoded bytes of a field section, which the caller must keep until it is complete.
    pub field_section_bytes_max: usize,
    /// Dynamic table of the decoder and blocked streams (CVE-2026-48748). Off by default.
    pub decoder: DecoderLimits,
    /// Size of the dynamic table that this side's encoder uses. 0 for a server, which encodes sections in advance.
    pub encoder_table_bytes_max: usize,
    /// Payload of a frame on the control stream, which the caller must keep until it is complete.
    pub control_frame_bytes_max: usize,
    /// Payload of a frame of an unknown type (RFC 9114, section 10.5), which is skipped. Clients send some small ones on
    /// purpose (GREASE).
    pub unknown_frame_bytes_max: u64,
    /// Output of the connection itself that may wait to be sent. Beyond it the connection handles no input until the
    /// caller has sent it, so that a peer that does not read gets no more.
    pub output_bytes_max: usize,
    /// True to enable extended CONNECT (RFC 9220).
    pub enables_connect_protocol: bool,
    /// True to announce HTTP datagrams (RFC 9297).
    pub enables_datagrams: bool,
    /// Budget for streams that the peer resets (rapid reset, CVE-2023-44487).
    pub peer_resets: BudgetLimit,
    /// Budget for streams that this side must reset because of the peer's errors (MadeYouReset, CVE-2025-8671).
    pub stream_faults: BudgetLimit,
    /// Budget for PRIORITY_UPDATE frames (as CVE-2019-9513).
    pub priorities: BudgetLimit,
    /// Budget for frames without effect: empty DATA (as CVE-2019-9518), unknown types, repeated MAX_PUSH_ID and GOAWAY,
    /// and streams of unknown types.
    pub idle_frames: BudgetLimit,
}

impl Default for H3Limits {
    fn default() -> Self {
        Self {
            head: HeadLimits::default(),
            body: BodyLimits::default(),
            concurrent_streams_max: 128,
            field_section_bytes_max: 32 << 10,
            decoder: DecoderLimits::default(),
            encoder_table_bytes_max: 0,
            control_frame_bytes_max: 1024,
            unknown_frame_bytes_max: 64 << 10,
            output_bytes_max: 64 << 10,
            enables_connect_protocol: false,
            enables_datagrams: false,
            peer_resets: BudgetLimit { burst: 500, per_second: 50 },
            stream_faults: BudgetLimit { burst: 200, per_second: 10 },
            priorities: BudgetLimit { burst: 1000, per_second: 100 },
            idle_frames: BudgetLimit { burst: 200, per_second: 50 },
        }
    }
}

impl H3Limits {
    /// Returns the rules for requests.
    #[inline]
    pub(super) fn request_rules(&self) -> RequestRules {
        RequestRules {
            version: Version::Http3,
            head: self.head,
            body_bytes_max: self.body.body_bytes_max,
            enables_connect_protocol: self.enables_connect_protocol,
        }
    }
}
