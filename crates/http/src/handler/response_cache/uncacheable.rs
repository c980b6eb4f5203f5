use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;

/// Number of slots; a key replaces another in the same slot.
const SLOTS: usize = 8192;

/// Time for which a key is remembered, in seconds.
const REMEMBERED_SECONDS: u64 = 60;

/// Keys whose latest responses were not storable: requests for them do not wait for each other, because the wait
/// would be useless. A hash collision only costs the other key this wait.
#[derive(Debug)]
pub(super) struct Uncacheable {
    hasher: RandomState,
    /// Upper half of a key's hash, and its expiry in seconds of the monotonic clock.
    slots: Box<[AtomicU64]>,
}

impl Default for Uncacheable {
    fn default() -> Self {
        Self { hasher: RandomState::default(), slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Uncacheable {
    /// Remembers a key for a while.
    pub(super) fn note(&self, key: &[u8], now_ms: u64) {
        let (slot, tag) = self.place(key);
        slot.store(tag | ((now_ms / 1_000 + REMEMBERED_SECONDS) & u64::from(u32::MAX)), Ordering::Relaxed);
    }

    /// True if a key is remembered.
    pub(super) fn has(&self, key: &[u8], now_ms: u64) -> bool {
        let (slot, tag) = self.place(key);
        let value = slot.load(Ordering::Relaxed);
        value & TAG == tag && value & !TAG > now_ms / 1_000
    }

    /// Forgets a key, because a response for it was stored.
    pub(super) fn forget(&self, key: &[u8]) {
        let (slot, tag) = self.place(key);
        if slot.load(Ordering::Relaxed) & TAG == tag {
            slot.store(0, Ordering::Relaxed);
        }
    }

    fn place(&self, key: &[u8]) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one(key);
        (&self.slots[hash as usize % SLOTS], hash & TAG)
    }
}

/// Bits that distinguish keys in the same slot.
const TAG: u64 = (u32::MAX as u64) << 32;

#[cfg(test)]
mod tests {
    use super::{REMEMBERED_SECONDS, Uncacheable};

    #[test]
    fn keys_are_remembered_for_a_while() {
        let uncacheable = Uncacheable::default();
        assert!(!uncacheable.has(b"a", 0));
        uncacheable.note(b"a", 5_000);
        assert!(uncacheable.has(b"a", 5_000) && !uncacheable.has(b"b", 5_000));
        assert!(uncacheable.has(b"a", 4_999 + REMEMBERED_SECONDS * 1_000));
        assert!(!uncacheable.has(b"a", 5_000 + REMEMBERED_SECONDS * 1_000));
        uncacheable.note(b"a", 5_000);
        uncacheable.forget(b"a");
        assert!(!uncacheable.has(b"a", 5_000));
    }
}
