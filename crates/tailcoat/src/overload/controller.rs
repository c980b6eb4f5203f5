//! The shed level as a function of lag and time, without a clock.
//!
//! Standing lag is what counts, as in CoDel (RFC 8289): a burst makes lag, too, but drains. While lag stands above the target,
//! the level follows it by proportion and integral, as in PIE (RFC 8033), because a level that only steps up and down swings.

use super::{CLASSES, RequestCost};

/// Ticks above the target before shedding begins, at least. A process that was stopped for a while sees one long tick.
const TICKS_MIN: u32 = 4;

/// Of the time that passes, what a draining burst takes from its lag at least: then it is left alone.
const DRAIN_DIVISOR: i64 = 4;

/// Shedding begins again at once if it ended less than so many intervals ago, as in CoDel: the overload has not ended.
const AGAIN_INTERVALS: u64 = 5;

/// Gains for a tick, of the lag beyond the target and of its change, both as parts of the target.
const GAIN: f64 = 0.05;
const CHANGE_GAIN: f64 = 0.6;

/// Lag that counts, in parts of the target. More would only wind the level up.
const EXCESS_MAX: f64 = 3.0;

/// Below this part of the target the lag is gone, and the level halves with each tick.
const GONE_DIVISOR: f64 = 4.0;

/// Below this a level is none.
const LEVEL_MIN: f64 = 0.02;

/// The lag of a tick, in parts per thousand of its target.
#[derive(Clone, Copy, Debug)]
pub(super) struct TickLag {
    /// As far as it is known.
    pub(super) lag: u64,
    /// What of it stands, and so may be an overload that begins.
    pub(super) standing: u64,
}

/// Follows the lag of one worker.
#[derive(Debug, Default)]
pub(super) struct Controller {
    /// 0 to [`CLASSES`]: a class of cost from its number on is shed in part, from the next number on wholly.
    level: f64,
    /// Lag beyond the target at the last tick, in parts of the target.
    excess: f64,
    /// Since when the lag has been above the target.
    above: Option<Above>,
    /// When shedding ended last.
    ended_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Above {
    since_ms: u64,
    ticks: u32,
    /// The lag when it began, in parts per thousand of the target.
    lag_permille: u64,
}

impl Controller {
    /// Takes the lag of the last tick, and returns the level. `interval_ms` is how long
    /// the lag must stand before shedding begins; `asked` has the classes of which requests or handshakes have come.
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

    /// Forgets what it has seen.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// True if the lag has stood above the target for long enough, and does not drain.
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
        // The target is an interval long, so that parts of it are parts of the time.
        let elapsed_permille = (elapsed_ms * 1_000 / interval_ms.max(1)) as i64;
        let fallen_permille = above.lag_permille as i64 - lag_permille as i64;
        if fallen_permille > elapsed_permille / DRAIN_DIVISOR {
            // It drains. From here on it has to stand again.
            self.above = None;
            return false;
        }
        true
    }

    /// Goes on to the next class where nothing of this one comes, since there is nothing to shed.
    fn skip_unasked(&mut self, asked: [bool; CLASSES], is_first: bool) {
        // Nothing is noted while nothing is shed.
        while !is_first && (self.level as usize) < CLASSES - 1 && !asked[self.level as usize] {
            self.level = self.level.floor() + 1.0 + LEVEL_MIN;
        }
        if is_first {
            // However little the lag is above the target.
            self.level = self.level.max(LEVEL_MIN);
        }
    }
}

/// Part of a class that is shed at this level, in 1/1,024.
pub(super) fn part_of(level: f64, cost: RequestCost) -> u32 {
    let part = (level - cost as usize as f64).clamp(0.0, 1.0);
    (part * 1_024.0) as u32
}
