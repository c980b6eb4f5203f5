use std::mem::size_of;
use std::sync::OnceLock;

use wire::http::Fields;
use wire::http::caching::StoredResponseMeta;

use super::{Object, Representation};
use crate::config::CompressionLevel;

/// Properties of an upstream response that are needed in addition to the encoded response.
#[derive(Debug)]
pub struct StoredResponse {
    /// Age and freshness lifetime.
    pub stored: StoredResponseMeta,
    /// Header fields without Age and Content-Length, which are made when the response is sent.
    pub fields: Fields,
    /// Selection among several responses for the same target; `None` if there is only one.
    pub variant: Option<Variant>,
    /// Level at which the content is compressed.
    pub compression_level: CompressionLevel,
    /// True if the response is sent with Cache-Status (RFC 9211).
    pub has_cache_status: bool,
    /// Heads that are encoded later, for a response whose content is in a file.
    pub late_heads: Option<LateHeads>,
}

/// Heads that are encoded when the first of them is sent: all but that of a whole response of HTTP/1. They are not counted as
/// memory, but the limit of open files bounds them.
#[derive(Debug)]
pub struct LateHeads {
    made: OnceLock<Box<Representation>>,
    make: fn(&Object) -> Representation,
}

impl LateHeads {
    /// Heads that this function makes, with the rest of the representation without coding.
    pub fn new(make: fn(&Object) -> Representation) -> Self {
        Self { made: OnceLock::new(), make }
    }

    pub(super) fn of(&self, object: &Object) -> &Representation {
        self.made.get_or_init(|| Box::new((self.make)(object)))
    }
}

/// Selection of a response among those for the same target (RFC 9111, section 4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Names of the selecting request fields, in lower case.
    pub names: Box<[Box<[u8]>]>,
    /// Values of these fields in the request, in a comparable form.
    pub selecting: Box<[u8]>,
    /// Number of the set of responses that belong together. Invalidating the target starts a new set, so that older
    /// responses are no longer found.
    pub set: u64,
}

impl StoredResponse {
    /// True if the response must be validated before it is served.
    #[inline]
    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        self.stored.is_no_cache || self.stored.remaining_ms(now_ms) <= 0
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let fields = self.fields.iter().map(|(name, value)| name.len() + value.len() + FIELD_LINE_BYTES);
        let variant = self.variant.as_ref().map_or(0, |variant| {
            let names = variant.names.iter().map(|name| name.len() + size_of::<Box<[u8]>>());
            names.sum::<usize>() + variant.selecting.len()
        });
        size_of::<Self>() + fields.sum::<usize>() + variant
    }
}

/// Memory of a line of [`Fields`] in addition to its bytes.
const FIELD_LINE_BYTES: usize = 16;
