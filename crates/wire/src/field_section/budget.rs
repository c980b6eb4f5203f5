//! Budgets for actions of the peer that cost the server work and are of no use to the peer.

use std::time::Duration;

/// Token bucket: a burst, and a refill rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetLimit {
    /// Capacity of the bucket.
    pub burst: u32,
    /// Tokens added each second, up to the burst.
    pub per_second: u32,
}

/// Spent part of a budget.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Budget {
    spent: u32,
    /// Second of the last update.
    at_second: u32,
}

impl Budget {
    /// Spends one token. Returns `false` if there is none.
    pub(crate) fn spend(&mut self, now: Duration, limit: BudgetLimit) -> bool {
        let second = now.as_secs() as u32;
        if second != self.at_second {
            let seconds = second.saturating_sub(self.at_second);
            self.spent = self.spent.saturating_sub(seconds.saturating_mul(limit.per_second));
            self.at_second = second;
        }
        self.spent += 1;
        self.spent <= limit.burst
    }

    /// Returns tokens to the budget, when useful traffic justifies what was spent.
    pub(crate) fn earn(&mut self, count: u32) {
        self.spent = self.spent.saturating_sub(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_and_refills() {
        let limit = BudgetLimit { burst: 3, per_second: 2 };
        let mut budget = Budget::default();
        let mut spend = |second| budget.spend(Duration::from_secs(second), limit);
        assert_eq!([0, 0, 0, 0].map(&mut spend), [true, true, true, false]);
        assert_eq!([1, 1].map(&mut spend), [true, false]);
        assert_eq!([100, 100, 100, 100].map(&mut spend), [true, true, true, false]);
        budget.earn(2);
        assert!(budget.spend(Duration::from_secs(100), limit));
    }
}
