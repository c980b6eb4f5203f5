//! Search for the greatest value that passes, with few tries. Tries are noisy, so those that decide are confirmed.

use std::collections::BTreeMap;

/// Equal results that decide on a value.
const CONFIRMED: u32 = 2;

/// Search for the greatest value that passes. All values below one that passes should pass, too, but a try may go wrong
/// either way: a failure must repeat before the search turns to lower values, and the result must pass twice.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    from: u64,
    to: u64,
    /// Maximum error of the result, as a share of it.
    precision: f64,
    /// Results by value.
    tried: BTreeMap<u64, Tries>,
}

/// Results of the tries of one value.
#[derive(Clone, Copy, Debug, Default)]
struct Tries {
    passed: u32,
    failed: u32,
}

/// Result of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SearchEnd {
    /// Greatest value that passed; `None` if none did.
    pub(crate) best: Option<u64>,
    /// Greatest value up to which every try passed; 0 if there is none.
    pub(crate) low: u64,
    /// Smallest value from which on every try failed; `None` if the greatest value passed.
    pub(crate) high: Option<u64>,
}

impl Tries {
    fn has_failed(self) -> bool {
        self.failed >= CONFIRMED
    }

    fn is_confirmed(self) -> bool {
        self.passed >= CONFIRMED
    }

    /// True if the value passed, though perhaps not often enough to be the result.
    fn may_pass(self) -> bool {
        self.is_confirmed() || self.failed == 0
    }
}

impl Search {
    /// Creates a search from `from` to `to`, both included.
    pub(crate) fn new(from: u64, to: u64, precision: f64) -> Self {
        Self { from: from.max(1), to: to.max(from).max(1), precision, tried: BTreeMap::new() }
    }

    /// Value to try next; `None` if the result is precise enough and confirmed.
    pub(crate) fn next(&self) -> Option<u64> {
        // A value with one failure, and at most one success, is not decided.
        let undecided = self.tried.iter().find(|(_, tries)| !tries.has_failed() && !tries.may_pass());
        if let Some((value, _)) = undecided {
            return Some(*value);
        }
        let (passed, failed) = (self.passed(), self.failed());
        let candidate = match (passed, failed) {
            (None, None) => Some(self.from),
            (Some(passed), None) if passed >= self.to => None,
            (Some(passed), None) => Some((passed * 2).min(self.to)),
            (passed, Some(failed)) => {
                let passed = passed.unwrap_or(0);
                let middle = passed + (failed - passed) / 2;
                let is_known = middle == passed || ((failed - passed) as f64) <= self.precision * failed as f64;
                (!is_known).then_some(middle)
            }
        };
        // The result itself must be confirmed; values below it need not.
        candidate.or_else(|| passed.filter(|value| !self.tried[value].is_confirmed()))
    }

    /// Doubles the upper end if the greatest value passed, up to `to_max`. Returns whether the search goes on.
    pub(crate) fn raise(&mut self, to_max: u64) -> bool {
        let can_rise = self.passed() == Some(self.to) && self.to < to_max;
        if can_rise {
            self.to = (self.to * 2).min(to_max);
        }
        can_rise
    }

    /// Records whether a try passed.
    pub(crate) fn on_tried(&mut self, value: u64, has_passed: bool) {
        let tries = self.tried.entry(value).or_default();
        *(if has_passed { &mut tries.passed } else { &mut tries.failed }) += 1;
    }

    /// Returns the result so far.
    pub(crate) fn end(&self) -> SearchEnd {
        let mut low = 0;
        for (value, tries) in &self.tried {
            if tries.failed > 0 {
                break;
            }
            low = *value;
        }
        let mut high = None;
        for (value, tries) in self.tried.iter().rev() {
            if tries.passed > 0 {
                break;
            }
            high = Some(*value);
        }
        SearchEnd { best: self.passed(), low, high }
    }

    /// Smallest value that failed.
    fn failed(&self) -> Option<u64> {
        self.tried.iter().find(|(_, tries)| tries.has_failed()).map(|(value, _)| *value)
    }

    /// Greatest value that passed, below all that failed.
    fn passed(&self) -> Option<u64> {
        let failed = self.failed().unwrap_or(u64::MAX);
        let passed = self.tried.range(..failed).rev().find(|(_, tries)| tries.passed > 0 && tries.may_pass());
        passed.map(|(value, _)| *value)
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    /// Runs a search. `passes` gets the value and the number of the try.
    fn run(mut search: Search, mut passes: impl FnMut(u64, usize) -> bool) -> (SearchEnd, usize) {
        let mut tried = 0;
        while let Some(value) = search.next() {
            search.on_tried(value, passes(value, tried));
            tried += 1;
            assert!(tried < 200, "the search ends");
        }
        (search.end(), tried)
    }

    #[test]
    fn results() {
        for (from, to, precision, truth, expect, tries) in [
            (100, 10_000, 0.01, 1234, 1222..=1234, 18),
            (100, 10_000, 0.1, 1234, 1100..=1234, 13),
            (1, 8, 0.0, 8, 8..=8, 5),
            (1, 8, 0.0, 5, 5..=5, 10),
            (100, 200, 0.01, 1_000, 200..=200, 3),
            (100, 200, 0.01, 50, 49..=50, 16),
            (100, 200, 0.01, 0, 0..=0, 16),
        ] {
            let (end, tried) = run(Search::new(from, to, precision), |value, _| value <= truth);
            let best = end.best.unwrap_or(0);
            assert!(expect.contains(&best) && tried <= tries, "{truth}: {best} after {tried}");
            // Without noise the interval is as narrow as the precision.
            assert_eq!(end.low, best, "{truth}");
            assert!(end.high.is_none_or(|high| high > truth), "{truth}: {end:?}");
        }
    }

    #[test]
    fn the_upper_end_rises() {
        let mut search = Search::new(100, 250, 0.01);
        let try_all = |search: &mut Search| {
            while let Some(value) = search.next() {
                search.on_tried(value, value <= 777);
            }
        };
        try_all(&mut search);
        assert_eq!((search.end().best, search.end().high), (Some(250), None));
        while search.raise(10_000) {
            try_all(&mut search);
        }
        let end = search.end();
        assert!(end.best.is_some_and(|best| (769..=777).contains(&best)) && end.high.is_some(), "{end:?}");
        let mut search = Search::new(100, 250, 0.01);
        search.on_tried(250, true);
        assert!(search.raise(400) && !search.raise(400), "{search:?}");
    }

    /// A try that goes wrong, whichever it is, changes the result by no more than the precision.
    #[test]
    fn one_wrong_try() {
        let right = 1150..=1234;
        let (_, tries) = run(Search::new(100, 10_000, 0.05), |value, _| value <= 1234);
        for wrong in 0..tries {
            let (end, _) = run(Search::new(100, 10_000, 0.05), |value, number| (value <= 1234) != (number == wrong));
            assert!(end.best.is_some_and(|best| right.contains(&best)), "try {wrong}: {end:?}");
            assert!(end.low <= 1234 && end.high.is_none_or(|high| high > 1150), "try {wrong}: {end:?}");
        }
    }

    /// Near the capacity a server passes by chance. The interval contains the capacity, at which half of the tries pass.
    #[test]
    fn noisy_tries() {
        let mut rng = Rng::with_seed(3);
        let (mut held, mut close) = (0, 0);
        for _ in 0..1000 {
            let passes = |value: u64, _| rng.f64() < 1.0 / (1.0 + ((value as f64 / 1000.0 - 1.0) / 0.02).exp());
            let (end, _) = run(Search::new(100, 10_000, 0.02), passes);
            held += u32::from(end.low <= 1000 && end.high.is_none_or(|high| 1000 <= high));
            close += u32::from(end.best.is_some_and(|best| (920..=1080).contains(&best)));
        }
        assert!(held >= 800 && close >= 980, "{held} intervals of 1,000 hold, {close} results are close");
    }
}
