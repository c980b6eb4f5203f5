//! Keys of stores.

use std::fmt;

/// Longest key, in bytes.
pub(super) const KEY_BYTES_MAX: usize = 240;

/// Key of a value, such as `events/0000000000000001`: parts of letters, digits, `-`, `_` and `.`, separated by `/`. No
/// engine reads it in another way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreKey(String);

/// Text that is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyError;

impl StoreKey {
    /// Key of this text.
    ///
    /// # Errors
    /// The text is no key.
    pub fn new(text: impl Into<String>) -> Result<Self, KeyError> {
        let text = text.into();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_part = |part: &str| !["", ".", ".."].contains(&part) && part.bytes().all(is_plain);
        match text.len() <= KEY_BYTES_MAX && text.split('/').all(is_part) {
            true => Ok(Self(text)),
            false => Err(KeyError),
        }
    }

    /// Key in this folder.
    ///
    /// # Errors
    /// The name is no part of a key.
    pub fn within(&self, name: &str) -> Result<Self, KeyError> {
        Self::new(format!("{}/{name}", self.0))
    }

    /// Text of the key.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Last part.
    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or(&self.0, |(_, name)| name)
    }

    /// Largest value of the key, in bytes, by its kind. No instance writes a larger one, and none reads one: a program that writes
    /// to the store must not fill the memory of instances.
    pub fn value_bytes_max(&self) -> usize {
        match self.0.split('/').next().unwrap_or_default() {
            "meta" | "tickets" | "leases" | "key-proof" => 16 << 10,
            "members" | "orders" | "accounts" | "attempts" | "challenges" => 64 << 10,
            "events" => 256 << 10,
            "bans" => 512 << 10,
            "certificates" => 1 << 20,
            "lists" => 2 << 20,
            "rollout" => 4 << 20,
            // The limit of the engine.
            _ => usize::MAX,
        }
    }

    /// Folder of the key; the key itself if it has one part.
    pub fn folder(&self) -> &str {
        self.0.rsplit_once('/').map_or(&self.0, |(folder, _)| folder)
    }
}

impl fmt::Display for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a key of a store")
    }
}

impl std::error::Error for KeyError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        for (text, is_key) in [
            ("a", true),
            ("events/0001", true),
            ("a/b.c/d-e_f", true),
            ("", false),
            ("/a", false),
            ("a/", false),
            ("a//b", false),
            ("a/../b", false),
            ("a/./b", false),
            ("a b", false),
            ("a{b}", false),
            ("ä", false),
        ] {
            assert_eq!(StoreKey::new(text).is_ok(), is_key, "{text}");
        }
        assert!(
            StoreKey::new("a".repeat(KEY_BYTES_MAX)).is_ok() && StoreKey::new("a".repeat(KEY_BYTES_MAX + 1)).is_err()
        );
        let key = StoreKey::new("a/b").unwrap().within("c").unwrap();
        assert_eq!((key.as_str(), key.folder(), key.name()), ("a/b/c", "a/b", "c"));
    }
}
