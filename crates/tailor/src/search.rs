//! Search for the greatest value that passes, with few tries.

/// Search for the greatest value that passes. All values below one that passes must pass, too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    from: u64,
    to: u64,
    /// Maximum error of the result, as a share of it.
    precision: f64,
    passed: Option<u64>,
    failed: Option<u64>,
}

impl Search {
    /// Creates a search from `from` to `to`, both included.
    pub(crate) fn new(from: u64, to: u64, precision: f64) -> Self {
        Self { from: from.max(1), to: to.max(from).max(1), precision, passed: None, failed: None }
    }

    /// Value to try next; `None` if the result is precise enough.
    pub(crate) fn next(&self) -> Option<u64> {
        match (self.passed, self.failed) {
            (None, None) => Some(self.from),
            (Some(passed), None) if passed >= self.to => None,
            (Some(passed), None) => Some((passed * 2).min(self.to)),
            (passed, Some(failed)) => {
                let passed = passed.unwrap_or(0);
                let middle = passed + (failed - passed) / 2;
                let is_known = middle == passed || ((failed - passed) as f64) <= self.precision * failed as f64;
                (!is_known).then_some(middle)
            }
        }
    }

    /// Records whether a value passed.
    pub(crate) fn on_tried(&mut self, value: u64, has_passed: bool) {
        let bound = if has_passed { &mut self.passed } else { &mut self.failed };
        *bound = Some(value);
    }

    /// Greatest value that passed; `None` if none did.
    pub(crate) fn best(&self) -> Option<u64> {
        self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        for (from, to, precision, truth, expect, tries) in [
            (100, 10_000, 0.01, 1234, 1222..=1234, 12),
            (100, 10_000, 0.1, 1234, 1100..=1234, 9),
            (1, 8, 0.0, 8, 8..=8, 4),
            (1, 8, 0.0, 5, 5..=5, 6),
            (100, 200, 0.01, 1_000, 200..=200, 2),
            (100, 200, 0.01, 50, 49..=50, 8),
            (100, 200, 0.01, 0, 0..=0, 8),
        ] {
            let mut search = Search::new(from, to, precision);
            let mut tried = 0;
            while let Some(value) = search.next() {
                tried += 1;
                search.on_tried(value, value <= truth);
            }
            let best = search.best().unwrap_or(0);
            assert!(expect.contains(&best) && tried <= tries, "{truth}: {best} after {tried}");
        }
    }
}
