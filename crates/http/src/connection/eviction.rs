//! Order in which connections are closed when the worker runs out of places. SECURITY.md describes it for users.

use std::cmp::Reverse;

use super::ConnectionStage;

/// Minimum rate, in bytes a second, at which a client makes progress. Such a connection is closed only in favour of
/// clients that hold fewer places. A mobile client with a poor signal (EDGE) reaches about this rate.
const STEADY_RATE: u32 = 16 << 10;

/// Maximum number of bytes in a second that count as progress. A kernel buffers megabytes for a client that reads
/// nothing, and such a burst alone must not count as a steady transfer.
const PROGRESS_BYTES_MAX: u32 = 64 << 10;

/// Each second replaces one part in this many of the rate. The rate thus covers about eight seconds, because kernel
/// buffers make even a steady reader take large amounts at a time.
const RATE_PART: u32 = 8;

/// Minimum rate of a connection that has just begun its current stage and had no time to show progress.
const GRACE_RATE: u32 = 4 << 10;

/// Number of sweeps, one a second, for which the minimum holds. That is one to two seconds, because a sweep may follow
/// at once.
const GRACE_ROUNDS: u8 = 2;

/// Divisor of a network's places, for comparing them with the places of one client.
pub(super) const CLIENTS_A_NETWORK: u32 = 4;

/// Recent progress of a connection's client: content received, or output taken.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClientProgress {
    /// Bytes a second over the last seconds.
    rate: u32,
    /// Bytes since the last sweep.
    moved_bytes: u32,
    /// Sweeps since the connection began to wait for a request, its head, or the rest of the exchange.
    rounds: u8,
}

/// Properties of a connection that determine its position in the order.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionFacts {
    pub(super) stage: ConnectionStage,
    pub(super) progress: ClientProgress,
    /// Deadline of the stage. A connection that awaits a request without a deadline is about to be polled.
    pub(super) deadline_ms: Option<u64>,
    /// Number of places that the client holds; 0 if the client is not limited.
    pub(super) held: u32,
}

/// Position of a connection in the order; the lowest is closed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EvictionRank {
    pub(super) tier: Tier,
    rate_class: u32,
    held: Reverse<u32>,
    rate: u32,
    deadline_ms: u64,
}

/// Tiers of the order. Connections of a lower tier are closed before those of a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tier {
    /// Awaits a request.
    Idle,
    /// Waits for a slow client.
    Slow,
    /// Tunnel that is mostly silent.
    Tunnel,
    /// Makes progress, or waits for a handler while the client is not at fault.
    Busy,
}

impl ClientProgress {
    /// Records bytes that the client has moved.
    pub(super) fn on_moved(&mut self, bytes: u64) {
        self.moved_bytes = self.moved_bytes.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    /// Starts a new stage, so that the connection is in its grace period again.
    pub(super) fn begin(&mut self) {
        self.rounds = 0;
    }

    /// Updates the rate; called once a second.
    pub(super) fn on_round(&mut self) {
        self.rate = self.recent_rate();
        self.moved_bytes = 0;
        self.rounds = self.rounds.saturating_add(1);
    }

    /// Rate in bytes a second, including the bytes since the last sweep.
    fn recent_rate(&self) -> u32 {
        self.rate - self.rate.div_ceil(RATE_PART) + self.moved_bytes.min(PROGRESS_BYTES_MAX) / RATE_PART
    }

    /// Rate used to compare connections.
    fn rate(&self) -> u32 {
        let rate = self.rate.max(self.recent_rate());
        if self.rounds < GRACE_ROUNDS { rate.max(GRACE_RATE) } else { rate }
    }
}

impl ConnectionFacts {
    pub(super) fn standing(&self) -> EvictionRank {
        let rate = self.progress.rate();
        let tier = match (self.stage, self.deadline_ms) {
            (ConnectionStage::Idle | ConnectionStage::Resting, Some(_)) => Tier::Idle,
            (ConnectionStage::Idle | ConnectionStage::Resting, None) | (ConnectionStage::Answer, _) => Tier::Busy,
            (ConnectionStage::Content | ConnectionStage::Write | ConnectionStage::Tunnel, _) if rate >= STEADY_RATE => {
                Tier::Busy
            }
            (ConnectionStage::Tunnel, _) => Tier::Tunnel,
            (
                ConnectionStage::Opening
                | ConnectionStage::Head
                | ConnectionStage::Content
                | ConnectionStage::Write
                | ConnectionStage::Linger,
                _,
            ) => Tier::Slow,
        };
        let (rate_class, held, rate) = match tier {
            Tier::Idle => (0, magnitude(self.held), 0),
            // Rates in one class differ by less than a factor of 4, which may be chance.
            Tier::Slow | Tier::Tunnel => (magnitude(rate) / 2, magnitude(self.held), rate),
            Tier::Busy => (0, self.held, if self.stage == ConnectionStage::Answer { u32::MAX } else { rate }),
        };
        let deadline_ms = self.deadline_ms.unwrap_or(u64::MAX);
        EvictionRank { tier, rate_class, held: Reverse(held), rate, deadline_ms }
    }
}

impl EvictionRank {
    /// Number of places that the client holds, as far as it matters in its tier.
    pub(super) fn held(&self) -> u32 {
        self.held.0
    }
}

impl Tier {
    /// Number of connections to close at once, out of so many. Each search scans all connections, so closing them one
    /// at a time would be slow. In higher tiers the batch is smaller, so that few active connections are closed early.
    pub(super) fn batch(self, connections: usize) -> usize {
        let part = match self {
            Self::Idle => 64,
            Self::Slow | Self::Tunnel => 256,
            Self::Busy => 1024,
        };
        connections.div_ceil(part)
    }
}

/// Order of magnitude, to the base of 2.
fn magnitude(number: u32) -> u32 {
    u32::BITS - number.leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Progress of a client that has moved so many bytes in each of these seconds.
    fn progress(seconds: &[u64]) -> ClientProgress {
        let mut progress = ClientProgress::default();
        for bytes in seconds {
            progress.on_moved(*bytes);
            progress.on_round();
        }
        progress
    }

    #[test]
    fn rates_follow_the_last_seconds() {
        for (name, seconds, expect) in [
            ("nothing", vec![0; 60], 0..=0),
            ("240 bytes a second, the least that is allowed", vec![240; 60], 200..=240),
            ("8 KiB a second", vec![8 << 10; 60], 7_900..=8_192),
            ("64 KiB a second", vec![64 << 10; 3], STEADY_RATE..=(32 << 10)),
            ("as fast as it gets", vec![1 << 40; 60], 60_000..=65_536),
            ("what a kernel takes at once", vec![4 << 20], 1..=8_192),
            ("the same, half a minute ago", [vec![4 << 20], vec![0; 30]].concat(), 0..=200),
            ("a fast transfer that stands still", [vec![1 << 20; 60], vec![0; 12]].concat(), 1..=STEADY_RATE - 1),
            ("much at a time", [[1 << 20, 0, 0, 0, 0, 0]; 10].concat(), GRACE_RATE..=STEADY_RATE),
        ] {
            let rate = progress(&seconds).rate;
            assert!(expect.contains(&rate), "{name}: {rate}");
        }
    }

    /// Connections in the order in which they are closed.
    #[test]
    fn the_order() {
        let order = [
            // Stage, bytes in each of the last ten seconds, places of the client, deadline.
            ("idle; the client holds most places", ConnectionStage::Idle, 0, 300, Some(900)),
            ("idle longest", ConnectionStage::Resting, 0, 3, Some(100)),
            ("idle", ConnectionStage::Idle, 0, 3, Some(500)),
            ("idle, of a trusted proxy", ConnectionStage::Idle, 0, 0, Some(100)),
            ("a slow head", ConnectionStage::Head, 0, 200, Some(20)),
            ("a handshake that stands still", ConnectionStage::Opening, 0, 1, Some(10)),
            ("a slow body", ConnectionStage::Content, 0, 1, Some(20)),
            ("a slow reader of a trusted proxy", ConnectionStage::Write, 0, 0, Some(10)),
            ("a body with a byte now and then", ConnectionStage::Content, 30, 300, Some(10)),
            ("a slow reader whose client holds many", ConnectionStage::Write, 2_000, 40, Some(10)),
            ("an equally slow reader whose client holds few", ConnectionStage::Write, 2_000, 3, Some(10)),
            ("a fair reader", ConnectionStage::Write, 10_000, 1, Some(10)),
            ("a silent tunnel", ConnectionStage::Tunnel, 0, 1, Some(10)),
            ("a tunnel that is used", ConnectionStage::Tunnel, 8_000, 9, Some(10)),
            ("waits for a handler; the client holds most places", ConnectionStage::Answer, 0, 300, Some(10)),
            ("a fast body", ConnectionStage::Content, 90_000, 20, Some(10)),
            ("waits for a handler; the client holds as many", ConnectionStage::Answer, 0, 20, None),
            ("a fast reader", ConnectionStage::Write, 900_000, 2, Some(10)),
            ("about to be polled", ConnectionStage::Idle, 0, 1, None),
        ];
        let standings = order.map(|(name, stage, bytes, held, deadline_ms)| {
            let progress = progress(&[bytes; 10]);
            (ConnectionFacts { stage, progress, deadline_ms, held }.standing(), name)
        });
        for pair in standings.windows(2) {
            assert!(pair[0].0 < pair[1].0, "\"{}\" before \"{}\"", pair[0].1, pair[1].1);
        }
    }

    #[test]
    fn a_client_that_has_just_begun_is_not_the_slowest() {
        let of = |progress| {
            ConnectionFacts { stage: ConnectionStage::Content, progress, deadline_ms: Some(10), held: 1 }.standing()
        };
        let mut new = progress(&[0; 20]);
        new.begin();
        assert!(of(progress(&[500; 20])) < of(new), "a slow one goes first");
        assert!(of(new) < of(progress(&[100_000; 20])), "a fast one does not");
        (0..GRACE_ROUNDS).for_each(|_| new.on_round());
        assert!(of(new) < of(progress(&[500; 20])), "it has had time");
    }
}
