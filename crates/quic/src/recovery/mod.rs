//! Packets that were sent and received, per packet number space: acknowledgments and loss (RFC 9002).

mod received;
mod sent;

pub(crate) use received::ReceivedPackets;
pub(crate) use sent::{SentInfo, SentPackets};
/// Packets after a missing one that show its loss (RFC 9002, section 6.1.1).
const REORDER_PACKETS: u32 = 3;

/// Largest such number on a path that reorders packets. Later losses are found by time.
const REORDER_PACKETS_MAX: u32 = 256;
