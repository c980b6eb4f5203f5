//! Sets of integers: packet numbers, and offsets of streams.

use std::ops::Range;

/// Set of integers, kept as ranges.
///
/// Ranges are sorted, not empty, and neither overlap nor touch. Appending at the end and removing at the front are fast, because
/// packet numbers and offsets mostly come in order. The caller bounds the number of ranges ([`len`](Self::len)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    ranges: Vec<Range<u64>>,
}

impl RangeSet {
    /// Adds the integers of a range. Returns true if at least one of them is new.
    #[inline]
    pub(crate) fn insert(&mut self, range: Range<u64>) -> bool {
        if range.is_empty() {
            return false;
        }
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => {
                last.end = range.end;
                true
            }
            Some(last) if last.end > range.start => self.insert_inside(range),
            _ => {
                self.ranges.push(range);
                true
            }
        }
    }

    /// Adds a range that does not begin after the last one.
    fn insert_inside(&mut self, range: Range<u64>) -> bool {
        // All ranges that overlap or touch the new one become one.
        let first = self.ranges.partition_point(|old| old.end < range.start);
        let after = first + self.ranges[first..].partition_point(|old| old.start <= range.end);
        let [old, rest @ ..] = &mut self.ranges[first..after] else {
            self.ranges.insert(first, range);
            return true;
        };
        if old.start <= range.start && range.end <= old.end {
            return false;
        }
        old.start = old.start.min(range.start);
        old.end = rest.last().map_or(old.end, |last| last.end).max(range.end);
        self.ranges.drain(first + 1..after);
        true
    }

    /// True if the integer is in the set.
    pub(crate) fn contains(&self, value: u64) -> bool {
        self.ranges.get(self.first_after(value)).is_some_and(|range| range.start <= value)
    }

    /// True if all integers of a range are in the set. `near` is the index of the range that was found before, so that
    /// callers in descending order need no search.
    #[inline]
    pub(crate) fn covers(&self, range: &Range<u64>, near: &mut usize) -> bool {
        let has = |index: usize| {
            self.ranges.get(index).is_some_and(|found| found.start <= range.start && range.end <= found.end)
        };
        let below = near.wrapping_sub(1);
        *near = if has(below) { below } else { self.first_after(range.start) };
        has(*near)
    }

    /// Removes the integers of a range.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.first_after(range.start);
        let after = first + self.ranges[first..].partition_point(|old| old.start < range.end);
        let [old, rest @ ..] = &self.ranges[first..after] else { return };
        let head = old.start..range.start;
        let tail = range.end..rest.last().unwrap_or(old).end;
        match (head.is_empty(), tail.is_empty()) {
            (true, true) => drop(self.ranges.drain(first..after)),
            (false, true) => {
                self.ranges[first] = head;
                self.ranges.drain(first + 1..after);
            }
            (true, false) => {
                self.ranges[after - 1] = tail;
                self.ranges.drain(first..after - 1);
            }
            (false, false) => {
                self.ranges[first] = head;
                if after - first == 1 {
                    self.ranges.insert(after, tail);
                } else {
                    self.ranges[after - 1] = tail;
                    self.ranges.drain(first + 1..after - 1);
                }
            }
        }
    }

    /// Removes all integers below the bound.
    pub(crate) fn remove_below(&mut self, bound: u64) {
        let first = self.first_after(bound);
        self.ranges.drain(..first);
        if let Some(range) = self.ranges.first_mut() {
            range.start = range.start.max(bound);
        }
    }

    /// Removes the first range.
    pub(crate) fn pop_first(&mut self) -> Option<Range<u64>> {
        (!self.ranges.is_empty()).then(|| self.ranges.remove(0))
    }

    /// First range.
    pub(crate) fn first(&self) -> Option<Range<u64>> {
        self.ranges.first().cloned()
    }

    /// Last range.
    pub(crate) fn last(&self) -> Option<Range<u64>> {
        self.ranges.last().cloned()
    }

    /// Number of ranges, not of integers.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// True if no integer is in the set.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Ranges in ascending order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + ExactSizeIterator + Clone + '_ {
        self.ranges.iter().cloned()
    }

    /// Parts of a range that are not in the set, in ascending order.
    pub(crate) fn gaps(&self, within: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = within.start;
        let inside = self.ranges[self.first_after(at)..].iter().take_while(move |range| range.start < within.end);
        let gaps = inside.map(Some).chain([None]).map(move |range| {
            let next = range.map_or(within.end..within.end, Range::clone);
            let gap = at..next.start;
            at = next.end;
            gap
        });
        gaps.filter(|gap| !gap.is_empty())
    }

    /// Frees memory that the set does not use.
    pub(crate) fn shrink(&mut self) {
        self.ranges.shrink_to_fit();
    }

    /// Index of the first range that ends after the integer.
    fn first_after(&self, value: u64) -> usize {
        // The front and the end come first, because most integers belong there.
        match &*self.ranges {
            [first, ..] if first.end > value => 0,
            [.., last] if last.end <= value => self.ranges.len(),
            ranges => ranges.partition_point(|range| range.end <= value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn ranges_that_touch_become_one() {
        let mut set = RangeSet::default();
        assert!(set.insert(0..2) && set.insert(4..6) && set.insert(8..9));
        assert_eq!(set.len(), 3);
        assert!(set.insert(2..4));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0..6, 8..9]);
        assert!(!set.insert(1..6) && !set.insert(8..9) && !set.insert(7..7));
        assert!(set.insert(5..20), "bridges and extends");
        assert_eq!((set.first(), set.last(), set.len()), (Some(0..20), Some(0..20), 1));
        assert!(set.insert(20..21), "appends");
        assert_eq!(set.pop_first(), Some(0..21));
        assert!(set.is_empty() && set.pop_first().is_none());
        set.shrink();
        assert_eq!(set.ranges.capacity(), 0);
    }

    #[test]
    fn the_largest_integers_fit() {
        let mut set = RangeSet::default();
        assert!(set.insert(u64::MAX - 1..u64::MAX) && set.insert(0..1));
        assert!(set.contains(u64::MAX - 1) && !set.contains(u64::MAX));
        set.remove_below(u64::MAX);
        assert!(set.is_empty());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(Range<u64>),
        Remove(Range<u64>),
        RemoveBelow(u64),
        PopFirst,
    }

    fn ranges() -> impl Strategy<Value = Range<u64>> {
        (0u64..64, 0u64..12).prop_map(|(start, count)| start..start + count)
    }

    fn steps() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => ranges().prop_map(Step::Insert),
            3 => ranges().prop_map(Step::Remove),
            1 => (0u64..80).prop_map(Step::RemoveBelow),
            1 => Just(Step::PopFirst),
        ]
    }

    proptest! {
        #[test]
        fn a_set_equals_its_model(steps in prop::collection::vec(steps(), 0..60), probe in ranges()) {
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for step in steps {
                match step {
                    Step::Insert(range) => {
                        let is_new = range.clone().any(|value| !model.contains(&value));
                        model.extend(range.clone());
                        prop_assert_eq!(set.insert(range), is_new);
                    }
                    Step::Remove(range) => {
                        model.retain(|value| !range.contains(value));
                        set.remove(range);
                    }
                    Step::RemoveBelow(bound) => {
                        model.retain(|value| *value >= bound);
                        set.remove_below(bound);
                    }
                    Step::PopFirst => {
                        if let Some(range) = set.pop_first() {
                            prop_assert!(!model.contains(&range.end) && model.first() == Some(&range.start));
                            model.retain(|value| !range.contains(value));
                        }
                    }
                }
                prop_assert!(set.iter().flatten().eq(model.iter().copied()));
                prop_assert!(set.iter().all(|range| !range.is_empty()));
                prop_assert!(set.ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
            prop_assert!((0..80).all(|value| set.contains(value) == model.contains(&value)));
            for mut near in 0..=set.len() + 1 {
                let covers = probe.clone().all(|value| model.contains(&value));
                prop_assert!(probe.is_empty() || set.covers(&probe, &mut near) == covers);
            }
            let mut near = set.len();
            prop_assert!(set.iter().rev().all(|range| set.covers(&range, &mut near)) && near == 0);
            let missing = probe.clone().filter(|value| !model.contains(value));
            prop_assert!(set.gaps(probe.clone()).flatten().eq(missing));
            let gaps: Vec<_> = set.gaps(probe).collect();
            prop_assert!(gaps.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}
