use std::collections::HashMap;

/// Index of the counters of a named thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NameSlot(u16);

impl Default for NameSlot {
    fn default() -> Self {
        Self::NONE
    }
}

impl NameSlot {
    /// Slot for requests without a site.
    pub const NONE: Self = Self(0);

    /// Slot shared by all names beyond the limit.
    pub const OTHER: Self = Self(1);

    /// Index, from 0.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Names, each with a permanent slot; at most a given number, and two slots for the rest.
#[derive(Debug)]
pub(super) struct Names {
    names: Vec<String>,
    slots: HashMap<String, NameSlot>,
    names_max: usize,
}

impl Names {
    pub(super) fn new(names_max: usize) -> Self {
        let names_max = names_max.min(usize::from(u16::MAX) - 2);
        Self { names: vec!["none".to_owned(), "other".to_owned()], slots: HashMap::new(), names_max }
    }

    /// Number of slots.
    pub(super) fn slots(&self) -> usize {
        self.names_max + 2
    }

    pub(super) fn slot(&mut self, name: &str) -> NameSlot {
        match self.slots.get(name) {
            Some(slot) => *slot,
            None if self.slots.len() == self.names_max => NameSlot::OTHER,
            None => {
                let slot = NameSlot(self.names.len() as u16);
                self.names.push(name.to_owned());
                self.slots.insert(name.to_owned(), slot);
                slot
            }
        }
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.names.clone()
    }
}
