//! Maximum rates of transfers: of one session, and of all sessions of a site together.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are moved at once, as a part of a second, so that transfers flow evenly.
const PIECES_A_SECOND: u64 = 20;

/// Bounds of such a piece, in bytes. Smaller ones would cost more than they move.
const PIECE_BYTES_MIN: u64 = 4 << 10;
const PIECE_BYTES_MAX: u64 = 256 << 10;

/// Rate of all sessions of a site, on all workers.
#[derive(Debug, Default)]
pub struct SharedPace {
    /// Time at which all bytes so far may have been moved, in microseconds.
    paid_until_us: AtomicU64,
}

/// Maximum rates of a transfer, in bytes a second.
#[derive(Clone, Copy, Debug)]
pub struct Pace<'s> {
    /// Rate of the session.
    pub session_max: Option<u64>,
    /// Rate of all sessions, and their state.
    pub site_max: Option<(u64, &'s SharedPace)>,
}

impl Pace<'_> {
    /// Bytes to move at once; `None` without a limit.
    pub fn piece_bytes(&self) -> Option<u64> {
        let site_max = self.site_max.map(|(rate, _)| rate);
        let rate = self.session_max.into_iter().chain(site_max).min()?;
        Some((rate / PIECES_A_SECOND).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX))
    }

    /// Counts moved bytes. `paid_until_us` is the time at which the session may go on.
    pub fn on_bytes(&self, bytes: u64, now_us: u64, paid_until_us: &mut u64) {
        let after = |start_us: u64, rate: u64| {
            let cost_us = u128::from(bytes) * 1_000_000 / u128::from(rate.max(1));
            start_us.max(now_us).saturating_add(u64::try_from(cost_us).unwrap_or(u64::MAX))
        };
        if let Some(rate) = self.session_max {
            *paid_until_us = after(*paid_until_us, rate);
        }
        if let Some((rate, shared)) = self.site_max {
            let cell = &shared.paid_until_us;
            // The update never fails, because it always has a value.
            let before = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old_us| Some(after(old_us, rate)));
            let before = before.unwrap_or_else(|before| before);
            *paid_until_us = after(before, rate).max(*paid_until_us);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moves pieces as a transfer does; returns the time that they take.
    fn run(pace: &Pace<'_>, sessions: usize, bytes: u64) -> u64 {
        let mut paid_until_us = vec![0; sessions];
        let mut now_us = 0;
        let mut moved = 0;
        while moved < bytes {
            let (next, until_us) = paid_until_us.iter_mut().enumerate().min_by_key(|(_, until_us)| **until_us).unwrap();
            assert!(next < sessions);
            now_us = now_us.max(*until_us);
            let piece = pace.piece_bytes().unwrap();
            pace.on_bytes(piece, now_us, until_us);
            moved += piece;
        }
        paid_until_us.into_iter().max().unwrap()
    }

    #[test]
    fn rates() {
        let second = |us: u64| (us + 50_000) / 100_000;
        let pace = Pace { session_max: Some(1 << 20), site_max: None };
        assert_eq!(second(run(&pace, 1, 4 << 20)), 40);
        assert_eq!(second(run(&pace, 2, 4 << 20)), 20, "each session has its own");
        let shared = SharedPace::default();
        let pace = Pace { session_max: None, site_max: Some((1 << 20, &shared)) };
        assert_eq!(second(run(&pace, 10, 4 << 20)), 40, "all sessions together");
        let shared = SharedPace::default();
        let pace = Pace { session_max: Some(1 << 18), site_max: Some((1 << 20, &shared)) };
        assert_eq!(second(run(&pace, 1, 1 << 20)), 40, "the lower rate counts");
        assert_eq!(Pace { session_max: None, site_max: None }.piece_bytes(), None);
    }
}
