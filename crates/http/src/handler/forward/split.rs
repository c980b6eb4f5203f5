//! Splits: shares of requests that other upstreams get. A client stays in its share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::http::{KnownField, Request, cookies};

use super::{Forward, hash_key_by};
use crate::config::{FieldTest, RuleTest, Split, TextTest};
use crate::handler::Routed;
use crate::upstream::hash_key;

/// Splits of a handler, which all workers share.
#[derive(Debug)]
pub struct SharedSplits {
    splits: Vec<Split>,
    /// Current share of each split, as bits of a number from 0 to 1.
    shares: Vec<AtomicU64>,
}

/// Reason that a share can't be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetShareError {
    /// No split leads to this upstream.
    Unknown,
    /// All shares together would be more than 1.
    TooLarge,
}

/// A worker's splits of a handler.
pub(super) struct Splits {
    shared: Arc<SharedSplits>,
    /// Handler of each split.
    forwards: Vec<Forward>,
}

impl SharedSplits {
    /// Splits with the shares of the configuration.
    pub fn new(splits: &[Split]) -> Arc<Self> {
        let shares = splits.iter().map(|split| AtomicU64::new(split.share.to_bits())).collect();
        Arc::new(Self { splits: splits.to_vec(), shares })
    }

    /// Sets the share of the first split that leads to an upstream.
    ///
    /// # Errors
    /// No split leads there, or the shares would be more than 1 together.
    pub fn set_share(&self, upstream: &str, share: f64) -> Result<(), SetShareError> {
        let index = self.splits.iter().position(|split| split.upstream == upstream).ok_or(SetShareError::Unknown)?;
        let others = (0..self.shares.len()).filter(|other| *other != index).map(|other| self.share(other));
        if others.sum::<f64>() + share > 1.0 + f64::EPSILON * 8.0 {
            return Err(SetShareError::TooLarge);
        }
        self.shares[index].store(share.to_bits(), Ordering::Relaxed);
        Ok(())
    }

    /// True if a configuration has the same splits.
    pub fn is_of(&self, splits: &[Split]) -> bool {
        self.splits == splits
    }

    /// Returns to the shares of the configuration.
    pub fn reset(&self) {
        for (share, split) in self.shares.iter().zip(&self.splits) {
            share.store(split.share.to_bits(), Ordering::Relaxed);
        }
    }

    fn share(&self, index: usize) -> f64 {
        f64::from_bits(self.shares[index].load(Ordering::Relaxed))
    }

    /// Index of the split that gets a request; `None` for the handler's own upstream.
    fn choose(&self, routed: &Routed<'_>) -> Option<usize> {
        if let Some(forced) = self.splits.iter().position(|split| is_forced(split, &routed.request)) {
            return Some(forced);
        }
        let by =
            self.splits.iter().enumerate().find(|(index, _)| self.share(*index) > 0.0).map(|(_, split)| &split.by)?;
        // Clients without an address come over one socket: they share the key of none.
        let key =
            hash_key_by(by, routed).or_else(|| hash_key_by(&crate::config::HashKey::Address, routed)).unwrap_or(0);
        self.share_of(key)
    }

    /// Share that a key belongs to. Each split tests its own point of the key. So a split that grows loses no key, and only
    /// gets keys that no earlier split has.
    fn share_of(&self, key: u64) -> Option<usize> {
        let mut rest = 1.0;
        for (index, split) in self.splits.iter().enumerate() {
            let share = self.share(index);
            // Of the keys that earlier splits left, this split takes such a part that its share of all keys is right.
            let part = if rest > 0.0 { (share / rest).min(1.0) } else { 0.0 };
            if point(key, hash_key(split.upstream.as_bytes())) < part {
                return Some(index);
            }
            rest -= share;
        }
        None
    }
}

/// Number in [0, 1) for a key and a split.
fn point(key: u64, split: u64) -> f64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&key.to_be_bytes());
    bytes[8..].copy_from_slice(&split.to_be_bytes());
    (hash_key(&bytes) >> 11) as f64 / (1_u64 << 53) as f64
}

fn is_forced(split: &Split, request: &Request<'_>) -> bool {
    let has_field = || split.field.as_ref().is_some_and(|test| fits(test, request));
    let has_cookie = || {
        let Some((name, value)) = &split.cookie else { return false };
        let is = |(other, sent): (&[u8], &[u8])| {
            other == name.as_bytes() && value.as_ref().is_none_or(|value| value.as_bytes() == sent)
        };
        request.head.has(KnownField::Cookie) && cookies(request).any(is)
    };
    has_field() || has_cookie()
}

fn fits(test: &RuleTest<FieldTest>, request: &Request<'_>) -> bool {
    let FieldTest { name, value } = &test.of;
    let mut fields =
        request.head.fields.iter().filter(|field| field.name.of(request.bytes).eq_ignore_ascii_case(name.as_bytes()));
    let holds = fields.any(|field| {
        let sent = field.value.of(request.bytes);
        match value {
            None => true,
            Some(TextTest::Equals(text)) => sent == text.as_bytes(),
            Some(TextTest::Matches(regex)) => regex.get().is_match(sent),
        }
    });
    holds != test.is_negated
}

impl Splits {
    pub(super) fn new(shared: Arc<SharedSplits>, forwards: Vec<Forward>) -> Self {
        Self { shared, forwards }
    }

    /// Handler of the split that gets a request; `None` for the handler's own upstream.
    pub(super) fn choose(&self, routed: &Routed<'_>) -> Option<&Forward> {
        self.forwards.get(self.shared.choose(routed)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HashKey;

    fn splits(shares: &[f64]) -> Arc<SharedSplits> {
        let split = |(index, share): (usize, &f64)| Split {
            upstream: index.to_string(),
            share: *share,
            by: HashKey::Address,
            field: None,
            cookie: None,
        };
        SharedSplits::new(&shares.iter().enumerate().map(split).collect::<Vec<_>>())
    }

    #[test]
    fn shares_are_as_configured() {
        for shares in [&[0.05][..], &[0.1, 0.2], &[0.0, 0.5, 0.5], &[1.0], &[0.0]] {
            let splits = splits(shares);
            let mut counts = vec![0; shares.len() + 1];
            for client in 0..100_000_u64 {
                counts[splits.share_of(hash_key(&client.to_be_bytes())).unwrap_or(shares.len())] += 1;
            }
            for (count, share) in counts.iter().zip(shares) {
                let found = f64::from(*count) / 100_000.0;
                assert!((found - share).abs() < 0.005, "{shares:?}: {counts:?}");
                assert!(*share != 0.0 || *count == 0, "{shares:?}: {counts:?}");
            }
            assert!(shares.iter().sum::<f64>() < 1.0 || counts[shares.len()] == 0, "{shares:?}: {counts:?}");
        }
    }

    #[test]
    fn clients_stay_when_a_share_grows() {
        let splits = splits(&[0.05]);
        let of = |client: u64| splits.share_of(hash_key(&client.to_be_bytes()));
        let before: Vec<_> = (0..10_000).map(of).collect();
        splits.set_share("0", 0.3).unwrap();
        for (client, before) in before.iter().enumerate().filter(|(_, before)| before.is_some()) {
            assert_eq!(of(client as u64), *before);
        }
        assert_eq!(splits.set_share("1", 0.1), Err(SetShareError::Unknown));
        assert_eq!(splits.set_share("0", 1.1), Err(SetShareError::TooLarge));
        splits.set_share("0", 0.0).unwrap();
        assert!((0..10_000).all(|client| of(client).is_none()));
    }
}
