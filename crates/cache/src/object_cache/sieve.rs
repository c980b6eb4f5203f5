/// Index of a node in the store's slab.
pub(super) type SieveSlot = u32;

const NONE: SieveSlot = SieveSlot::MAX;

/// Maximum number of visited nodes that the hand skips before it evicts one anyway. The store is locked while the hand
/// moves, so the search must end even if other workers set flags faster.
const SPARED_MAX: u32 = 512;

/// Position of a node in its queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    newer: SieveSlot,
    older: SieveSlot,
}

impl Default for Links {
    fn default() -> Self {
        Self { newer: NONE, older: NONE }
    }
}

/// Queue that evicts by SIEVE (Zhang and others, NSDI 2024). A hand moves from the oldest object to the newest. It
/// skips objects that were visited since its last pass, and evicts the first that was not. A hit only sets a flag, so
/// hits need no lock. For web workloads, SIEVE has a better hit ratio than LRU.
#[derive(Debug)]
pub(super) struct Sieve {
    newest: SieveSlot,
    oldest: SieveSlot,
    hand: SieveSlot,
}

impl Default for Sieve {
    fn default() -> Self {
        Self { newest: NONE, oldest: NONE, hand: NONE }
    }
}

/// Nodes that a [`Sieve`] orders.
pub(super) trait Nodes {
    /// Returns the links of a node.
    fn links(&mut self, slot: SieveSlot) -> &mut Links;
    /// Clears the visited flag of a node and returns its old value.
    fn take_visited(&mut self, slot: SieveSlot) -> bool;
}

impl Sieve {
    /// Adds a node as the newest.
    pub(super) fn insert(&mut self, slot: SieveSlot, nodes: &mut impl Nodes) {
        *nodes.links(slot) = Links { newer: NONE, older: self.newest };
        match self.newest {
            NONE => self.oldest = slot,
            newest => nodes.links(newest).newer = slot,
        }
        self.newest = slot;
    }

    pub(super) fn remove(&mut self, slot: SieveSlot, nodes: &mut impl Nodes) {
        let Links { newer, older } = std::mem::take(nodes.links(slot));
        match newer {
            NONE => self.newest = older,
            newer => nodes.links(newer).older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => nodes.links(older).newer = newer,
        }
        if self.hand == slot {
            self.hand = newer;
        }
    }

    /// Returns the node to evict, which stays in the queue; `None` if the queue is empty.
    pub(super) fn victim(&mut self, nodes: &mut impl Nodes) -> Option<SieveSlot> {
        for _ in 0..=SPARED_MAX {
            if self.hand == NONE {
                self.hand = self.oldest;
            }
            if self.hand == NONE {
                return None;
            }
            if !nodes.take_visited(self.hand) {
                return Some(self.hand);
            }
            self.hand = nodes.links(self.hand).newer;
        }
        Some(if self.hand == NONE { self.oldest } else { self.hand })
    }
}

#[cfg(test)]
mod tests {
    use super::{Links, Nodes, Sieve, SieveSlot};

    #[derive(Default)]
    struct TestNodes(Vec<(Links, bool)>);

    impl Nodes for TestNodes {
        fn links(&mut self, slot: SieveSlot) -> &mut Links {
            &mut self.0[slot as usize].0
        }

        fn take_visited(&mut self, slot: SieveSlot) -> bool {
            std::mem::take(&mut self.0[slot as usize].1)
        }
    }

    /// Runs `steps`: `+` inserts the next node, a digit visits one, `-` followed by a digit removes one, `!` evicts.
    fn check(steps: &str, evicted: &[SieveSlot]) {
        let (mut nodes, mut sieve, mut found) = (TestNodes::default(), Sieve::default(), Vec::new());
        let mut steps = steps.chars();
        while let Some(step) = steps.next() {
            match step {
                '+' => {
                    nodes.0.push(Default::default());
                    sieve.insert(nodes.0.len() as SieveSlot - 1, &mut nodes);
                }
                '-' => sieve.remove(steps.next().unwrap().to_digit(10).unwrap(), &mut nodes),
                '!' => match sieve.victim(&mut nodes) {
                    Some(slot) => {
                        sieve.remove(slot, &mut nodes);
                        found.push(slot);
                    }
                    None => found.push(99),
                },
                digit => nodes.0[digit.to_digit(10).unwrap() as usize].1 = true,
            }
        }
        assert_eq!(found, evicted);
    }

    #[test]
    fn the_hand_spares_what_was_visited() {
        check("!", &[99]);
        check("+++!!!!", &[0, 1, 2, 99]);
        check("+++0!!", &[1, 2]);
        check("+++0!0!!", &[1, 2, 0]);
        check("+++012!", &[0]);
        check("+++0!+!!!", &[1, 2, 3, 0]);
        check("+++-0!", &[1]);
        check("+++-1!!", &[0, 2]);
        check("+++-2!!!", &[0, 1, 99]);
        check("+++0!-2!", &[1, 0]);
    }
}
