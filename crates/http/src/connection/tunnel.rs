//! Parts that tunnels of all versions share.

/// State of one direction of a tunnel, by the end of its sender's data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TunnelEnd {
    NotSeen,
    /// The receiver does not know the end yet, because earlier data is still in transit.
    Seen,
    PassedOn,
}
