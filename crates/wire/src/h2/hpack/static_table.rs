//! The static table (RFC 7541, appendix A).

use crate::http::KnownField;

/// Number of entries; indexes begin with 1.
pub(super) const STATIC_ENTRIES: usize = TABLE.len();

/// Returns name and value of an entry. The caller must check that the index is from 1 to [`STATIC_ENTRIES`].
pub(super) fn static_entry(index: usize) -> (&'static [u8], &'static [u8]) {
    TABLE[index - 1]
}

/// Returns the index of the first entry with this name in lower case; 0 if there is none.
pub fn static_name_index(name: &[u8]) -> u8 {
    match name {
        b":authority" => 1,
        b":method" => 2,
        b":path" => 4,
        b":scheme" => 6,
        b":status" => 8,
        b"accept-charset" => 15,
        b"accept-encoding" => 16,
        b"accept-language" => 17,
        b"accept-ranges" => 18,
        b"accept" => 19,
        b"access-control-allow-origin" => 20,
        b"age" => 21,
        b"allow" => 22,
        b"authorization" => 23,
        b"cache-control" => 24,
        b"content-disposition" => 25,
        b"content-encoding" => 26,
        b"content-language" => 27,
        b"content-length" => 28,
        b"content-location" => 29,
        b"content-range" => 30,
        b"content-type" => 31,
        b"cookie" => 32,
        b"date" => 33,
        b"etag" => 34,
        b"expect" => 35,
        b"expires" => 36,
        b"from" => 37,
        b"host" => 38,
        b"if-match" => 39,
        b"if-modified-since" => 40,
        b"if-none-match" => 41,
        b"if-range" => 42,
        b"if-unmodified-since" => 43,
        b"last-modified" => 44,
        b"link" => 45,
        b"location" => 46,
        b"max-forwards" => 47,
        b"proxy-authenticate" => 48,
        b"proxy-authorization" => 49,
        b"range" => 50,
        b"referer" => 51,
        b"refresh" => 52,
        b"retry-after" => 53,
        b"server" => 54,
        b"set-cookie" => 55,
        b"strict-transport-security" => 56,
        b"transfer-encoding" => 57,
        b"user-agent" => 58,
        b"vary" => 59,
        b"via" => 60,
        b"www-authenticate" => 61,
        _ => 0,
    }
}

/// Returns the index of the entry with this value, among those with the name of entry `name_index`.
pub(super) fn static_index(name_index: u8, value: &[u8]) -> Option<usize> {
    let (name, _) = TABLE[usize::from(name_index) - 1];
    let mut index = usize::from(name_index);
    while let Some((other, known)) = TABLE.get(index - 1)
        && *other == name
    {
        if *known == value && !value.is_empty() {
            return Some(index);
        }
        index += 1;
    }
    None
}

/// Returns the field that the name of entry `name_index` denotes, so that callers need not compare names.
pub fn known_field(name_index: u8) -> KnownField {
    KNOWN_FIELDS[usize::from(name_index)]
}

static KNOWN_FIELDS: [KnownField; 1 + STATIC_ENTRIES] = {
    let mut known = [KnownField::Other; 1 + STATIC_ENTRIES];
    let mut index = 0;
    while index < known.len() {
        known[index] = known_field_of(index);
        index += 1;
    }
    known
};

const fn known_field_of(index: usize) -> KnownField {
    match index {
        19 => KnownField::Accept,
        16 => KnownField::AcceptEncoding,
        23 => KnownField::Authorization,
        24 => KnownField::CacheControl,
        28 => KnownField::ContentLength,
        32 => KnownField::Cookie,
        35 => KnownField::Expect,
        38 => KnownField::Host,
        39 => KnownField::IfMatch,
        40 => KnownField::IfModifiedSince,
        41 => KnownField::IfNoneMatch,
        42 => KnownField::IfRange,
        43 => KnownField::IfUnmodifiedSince,
        50 => KnownField::Range,
        51 => KnownField::Referer,
        57 => KnownField::TransferEncoding,
        58 => KnownField::UserAgent,
        60 => KnownField::Via,
        _ => KnownField::Other,
    }
}

type StaticEntry = (&'static [u8], &'static [u8]);

static TABLE: [StaticEntry; 61] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_found() {
        for index in 1..=STATIC_ENTRIES {
            let (name, value) = static_entry(index);
            let name_index = static_name_index(name);
            assert_eq!(static_entry(usize::from(name_index)).0, name);
            assert_eq!(static_index(name_index, value), (!value.is_empty()).then_some(index));
            assert_eq!(known_field(name_index), KnownField::from_name(name), "{}", name.escape_ascii());
        }
        assert_eq!(static_name_index(b"x-other"), 0);
        assert_eq!(static_index(8, b"201"), None);
    }
}
