//! References to maps and secrets, which the configuration may define after their use.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::map::Map;

/// ExpressionReference to a map by its name. All clones are bound together.
#[derive(Clone)]
pub struct MapRef {
    name: Arc<str>,
    map: Arc<OnceLock<Arc<Map>>>,
}

/// ExpressionReference to a secret by its name. All clones are bound together.
#[derive(Clone)]
pub struct SecretRef {
    name: Arc<str>,
    secret: Arc<OnceLock<Secret>>,
}

/// Content of a file that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<[u8]>);

/// A reference of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpressionReference {
    /// To a map.
    Map(MapRef),
    /// To a secret.
    Secret(SecretRef),
}

impl MapRef {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into(), map: Arc::default() }
    }

    /// Name of the map.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The map; `None` until it is bound.
    pub fn get(&self) -> Option<&Arc<Map>> {
        self.map.get()
    }

    /// Sets the map, once.
    pub(crate) fn bind(&self, map: &Arc<Map>) {
        // A second map of the same name is an error of the configuration, which its reader reports.
        let _ = self.map.set(Arc::clone(map));
    }
}

impl PartialEq for MapRef {
    fn eq(&self, other: &Self) -> bool {
        let fingerprint = |map: &Self| map.get().and_then(|map| map.fingerprint());
        self.name == other.name && fingerprint(self) == fingerprint(other)
    }
}

impl Eq for MapRef {}

impl fmt::Debug for MapRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "map.{}", self.name)
    }
}

impl SecretRef {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into(), secret: Arc::default() }
    }

    /// Name of the secret.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The secret; `None` until it is bound.
    pub fn get(&self) -> Option<&[u8]> {
        self.secret.get().map(|secret| &*secret.0)
    }

    /// Sets the secret, once.
    pub fn bind(&self, secret: &Secret) {
        // A second secret of the same name is an error of the configuration, which its reader reports.
        let _ = self.secret.set(secret.clone());
    }
}

impl PartialEq for SecretRef {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.get() == other.get()
    }
}

impl Eq for SecretRef {}

impl fmt::Debug for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "secret.{}", self.name)
    }
}

impl Secret {
    /// A secret; line feeds at its end are left out, because editors add them.
    pub fn new(content: &[u8]) -> Self {
        let end = content.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |at| at + 1);
        Self(content[..end].into())
    }

    /// Returns `true` if there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}
