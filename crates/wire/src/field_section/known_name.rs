//! Names of HPACK's static table (RFC 7541, appendix A). Decoders pass on their indexes, so that callers need not compare
//! names.

use crate::http::KnownField;

/// Number of entries in HPACK's static table; indexes begin with 1.
pub(crate) const NAME_INDEXES: usize = 61;

/// Returns the index of the first entry with this name in lower case; 0 if there is none.
pub const fn static_name_index(name: &[u8]) -> u8 {
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

/// Returns the field that the name of entry `name_index` denotes, so that callers need not compare names.
pub fn known_field(name_index: u8) -> KnownField {
    KNOWN_FIELDS[usize::from(name_index)]
}

static KNOWN_FIELDS: [KnownField; 1 + NAME_INDEXES] = {
    let mut known = [KnownField::Other; 1 + NAME_INDEXES];
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
