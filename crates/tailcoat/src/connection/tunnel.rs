//! What tunnels of all versions share.

/// Whether one of the two that are joined sends nothing more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TunnelEnd {
    NotSeen,
    /// The other has not been told: what came before is still on its way.
    Seen,
    PassedOn,
}
