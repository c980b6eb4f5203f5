//! Shed level as a function of lag and time, without a clock.
//!
//! Only standing lag counts, as in CoDel (RFC 8289): a burst causes lag, too, but drains. While lag stands above the
//! target, a proportional-integral controller sets the level, as in PIE (RFC 8033), because a level that moves in steps
//! oscillates.

use super::{CLASSES, RequestCost};

/// Least number of ticks above the target before shedding begins. A process that was stopped sees one long tick.
const TICKS_MIN: u32 = 4;

/// Draining bursts are left alone: their lag falls by at least this fraction (a divisor) of the time that passes.
const DRAIN_DIVISOR: i64 = 4;

/// Shedding begins again at once if it ended fewer intervals ago than this, as in CoDel: the overload has not ended.
const AGAIN_INTERVALS: u64 = 5;

/// Gains per tick: of the lag above the target, and of its change. Both are in units of the target.
const GAIN: f64 = 0.05;
const CHANGE_GAIN: f64 = 0.6;

/// Upper bound of the lag that counts, in units of the target. More would only wind up the integral.
const EXCESS_MAX: f64 = 3.0;

/// Below the target divided by this, the lag counts as gone, and the level halves with each tick.
const GONE_DIVISOR: f64 = 4.0;

/// Smallest level above zero.
const LEVEL_MIN: f64 = 0.02;

/// Lag of a tick, in thousandths of its target.
#[derive(Clone, Copy, Debug)]
pub(super) struct TickLag {
    /// Lag as far as it is known.
    pub(super) lag: u64,
    /// Standing part of the lag, which may be the start of an overload.
    pub(super) standing: u64,
}

/// Controls the shed level of one worker.
#[derive(Debug, Default)]
pub(super) struct Controller {
    /// Level from 0 to [`CLASSES`]. A cost class is shed in part from its own number on, and fully from the next number
    /// on.
    level: f64,
    /// Lag above the target at the last tick, in units of the target.
    excess: f64,
    /// Set while the lag is above the target.
    above: Option<Above>,
    /// Time at which shedding last ended.
    ended_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Above {
    since_ms: u64,
    ticks: u32,
    /// Lag at the start, in thousandths of the target.
    lag_permille: u64,
}

impl Controller {
    /// Takes the lag of the last tick and returns the level. The lag must stand for `interval_ms` before shedding
    /// begins. `asked` names the classes that had requests or handshakes.
    pub(super) fn on_tick(&mut self, now_ms: u64, lag: TickLag, interval_ms: u64, asked: [bool; CLASSES]) -> f64 {
        let excess = (lag.lag as f64 / 1_000.0 - 1.0).min(EXCESS_MAX);
        if self.level == 0.0 && !self.stands(now_ms, lag.standing, interval_ms) {
            self.excess = excess;
            return 0.0;
        }
        if excess + 1.0 < 1.0 / GONE_DIVISOR {
            self.level /= 2.0;
        } else {
            let is_first = self.level == 0.0;
            let change = if is_first { 0.0 } else { excess - self.excess };
            self.level = (self.level + GAIN * excess + CHANGE_GAIN * change).clamp(0.0, CLASSES as f64);
            self.skip_unasked(asked, is_first);
        }
        if self.level < LEVEL_MIN {
            (self.level, self.above, self.ended_ms) = (0.0, None, Some(now_ms));
        }
        self.excess = excess;
        self.level
    }

    /// Forgets all measurements.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// True if the lag has stood above the target for long enough and does not drain.
    fn stands(&mut self, now_ms: u64, lag_permille: u64, interval_ms: u64) -> bool {
        if lag_permille <= 1_000 {
            self.above = None;
            return false;
        }
        if self.ended_ms.is_some_and(|ended_ms| now_ms - ended_ms < AGAIN_INTERVALS * interval_ms) {
            return true;
        }
        let above = self.above.get_or_insert(Above { since_ms: now_ms, ticks: 0, lag_permille });
        above.ticks += 1;
        let elapsed_ms = now_ms.saturating_sub(above.since_ms);
        if above.ticks < TICKS_MIN || elapsed_ms < interval_ms {
            return false;
        }
        // The target is one interval long, so that a fraction of it is a fraction of the time.
        let elapsed_permille = (elapsed_ms * 1_000 / interval_ms.max(1)) as i64;
        let fallen_permille = above.lag_permille as i64 - lag_permille as i64;
        if fallen_permille > elapsed_permille / DRAIN_DIVISOR {
            // The lag drains. It has to stand again from here on.
            self.above = None;
            return false;
        }
        true
    }

    /// Moves on to the next class if this one has no requests to shed.
    fn skip_unasked(&mut self, asked: [bool; CLASSES], is_first: bool) {
        // `asked` is not recorded while nothing is shed.
        while !is_first && (self.level as usize) < CLASSES - 1 && !asked[self.level as usize] {
            self.level = self.level.floor() + 1.0 + LEVEL_MIN;
        }
        if is_first {
            // Applies however little the lag exceeds the target.
            self.level = self.level.max(LEVEL_MIN);
        }
    }
}

/// Share of a class that is shed at this level, in 1/1,024.
pub(super) fn part_of(level: f64, cost: RequestCost) -> u32 {
    let part = (level - cost as usize as f64).clamp(0.0, 1.0);
    (part * 1_024.0) as u32
}
