use std::mem::size_of;

use wire::http::Fields;
use wire::http::caching::Stored;

/// What is kept of an upstream's response besides what is sent.
#[derive(Debug)]
pub struct StoredResponse {
    /// Its age, and how old it may become.
    pub stored: Stored,
    /// Its fields, without Age and Content-Length, which are made when it is sent.
    pub fields: Fields,
    /// Why it and not another response for the same target; `None` if there is no other.
    pub variant: Option<Variant>,
    /// Whether it is sent with Cache-Status (RFC 9211).
    pub has_cache_status: bool,
}

/// What chose a response among those for the same target (RFC 9111, section 4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The request fields that choose, in lower case.
    pub names: Box<[Box<[u8]>]>,
    /// What the request had in them, in a form to be compared.
    pub selecting: Box<[u8]>,
    /// The number of the set of responses that belong together: a new one once the target was invalidated, so that none
    /// of those before is found any more.
    pub set: u64,
}

impl StoredResponse {
    /// Whether it can't just be served.
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

/// What a line of [`Fields`] takes besides its bytes.
const FIELD_LINE_BYTES: usize = 16;
