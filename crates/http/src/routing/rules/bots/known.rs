//! Texts of requests that a worker has searched, so that it need not search them again.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;

/// Longest text that is remembered, in bytes.
const TEXT_BYTES_MAX: usize = 256;

/// Facts about texts that clients send. Each text has one place, which another text of that place takes over. Clients
/// cannot choose places, because the hash has a secret key.
pub(super) struct KnownTexts<T> {
    hasher: RandomState,
    places_max: usize,
    /// Empty until it is used.
    places: Vec<Option<(Box<[u8]>, T)>>,
}

impl<T: Copy> KnownTexts<T> {
    /// Makes an empty table with this number of places, a power of two.
    pub(super) fn new(places_max: usize) -> Self {
        Self { hasher: RandomState::default(), places_max, places: Vec::new() }
    }

    /// Forgets all texts.
    pub(super) fn clear(&mut self) {
        self.places.clear();
    }

    /// Fact about a text; `find` finds it if it is not remembered.
    #[inline]
    pub(super) fn get_or_find(&mut self, text: &[u8], find: impl FnOnce() -> T) -> T {
        if text.len() > TEXT_BYTES_MAX {
            return find();
        }
        let index = self.hasher.hash_one(text) as usize & (self.places_max - 1);
        match self.places.get(index) {
            Some(Some((known, fact))) if **known == *text => *fact,
            _ => self.insert(index, text, find()),
        }
    }

    #[cold]
    fn insert(&mut self, index: usize, text: &[u8], fact: T) -> T {
        if self.places.is_empty() {
            self.places.resize_with(self.places_max, || None);
        }
        self.places[index] = Some((text.into(), fact));
        fact
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn texts_are_found_once() {
        let (mut known, found) = (KnownTexts::new(4), Cell::new(0));
        let mut get = |text: &[u8]| {
            known.get_or_find(text, || {
                found.set(found.get() + 1);
                text.len()
            })
        };
        assert_eq!([get(b"a"), get(b"a"), get(b"a")], [1, 1, 1]);
        assert_eq!(found.get(), 1);
        let long = [b'a'; TEXT_BYTES_MAX + 1];
        assert_eq!([get(&long), get(&long)], [long.len(); 2]);
        assert_eq!(found.get(), 3, "a long text takes no place");
        for number in 0..100_u8 {
            assert_eq!(get(&[b'x', number]), 2);
        }
        assert_eq!(get(b"a"), 1, "whichever text has its place");
        known.clear();
        assert_eq!(known.get_or_find(b"a", || 7), 7);
    }
}
