use super::Counter;

/// Buckets of a histogram: up to 2^32 us, which is more than an hour.
pub const BUCKETS: usize = 124;

/// Bits of the parts per power of two: with four parts, a bucket is at most a quarter of its lower bound wide.
const PARTS_BITS: u32 = 2;

/// Histogram of durations in fixed log-linear buckets of microseconds.
#[derive(Debug)]
pub struct Histogram {
    buckets: [Counter; BUCKETS],
    sum_us: Counter,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: std::array::from_fn(|_| Counter::default()), sum_us: Counter::default() }
    }
}

impl Histogram {
    /// Adds a duration. Only one thread may call it.
    #[inline]
    pub fn record(&self, duration_us: u64) {
        self.buckets[index_of(duration_us)].add(1);
        self.sum_us.add(duration_us);
    }
}

/// Sum of histograms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramCounts {
    /// Counts by bucket; empty if nothing was counted.
    pub buckets: Vec<u64>,
    /// Sum of all durations, in microseconds.
    pub sum_us: u64,
}

impl Default for HistogramCounts {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], sum_us: 0 }
    }
}

impl HistogramCounts {
    /// Adds the counts of a histogram.
    pub fn add(&mut self, histogram: &Histogram) {
        for (sum, bucket) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *sum += bucket.get();
        }
        self.sum_us = self.sum_us.wrapping_add(histogram.sum_us.get());
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Number of durations up to this bound, which must be the bound of a bucket.
    pub fn count_up_to(&self, bound_us: u64) -> u64 {
        let within = (0..BUCKETS).take_while(|&index| upper_bound_us(index) <= bound_us);
        within.map(|index| self.buckets[index]).sum()
    }
}

/// Longest duration of a bucket, in microseconds.
pub fn upper_bound_us(index: usize) -> u64 {
    let parts = 1 << PARTS_BITS;
    if index < parts {
        return index as u64;
    }
    let (octave, part) = (index / parts, index % parts);
    let width = 1_u64 << (octave - 1);
    ((parts + part) as u64) * width + width - 1
}

#[inline]
fn index_of(duration_us: u64) -> usize {
    if duration_us < 1 << PARTS_BITS {
        return duration_us as usize;
    }
    let highest_bit = 63 - duration_us.leading_zeros();
    let part = (duration_us >> (highest_bit - PARTS_BITS)) as usize & ((1 << PARTS_BITS) - 1);
    let octave = (highest_bit - PARTS_BITS + 1) as usize;
    ((octave << PARTS_BITS) + part).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets() {
        for (duration_us, index) in
            [(0, 0), (1, 1), (3, 3), (4, 4), (5, 5), (7, 7), (8, 8), (9, 8), (10, 9), (16, 12), (19, 12), (20, 13)]
        {
            assert_eq!(index_of(duration_us), index, "{duration_us}");
        }
        assert_eq!(index_of((1 << 32) - 1), BUCKETS - 1);
        assert_eq!(index_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_bucket_begins_after_the_one_before() {
        for index in 1..BUCKETS {
            let (below, bound) = (upper_bound_us(index - 1), upper_bound_us(index));
            assert_eq!((index_of(below + 1), index_of(bound)), (index, index), "{index}");
        }
    }

    #[test]
    fn counts_add_up() {
        let (one, other) = (Histogram::default(), Histogram::default());
        [1, 100, 100_000].iter().for_each(|duration_us| one.record(*duration_us));
        other.record(63);
        let mut counts = HistogramCounts::default();
        counts.add(&one);
        counts.add(&other);
        assert_eq!((counts.count(), counts.sum_us, counts.count_up_to(63)), (4, 100_164, 2));
    }
}
