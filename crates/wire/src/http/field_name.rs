/// Request fields that the server reads. The parser identifies them, so that later code need not search for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum KnownField {
    /// Accept
    Accept,
    /// Accept-Encoding
    AcceptEncoding,
    /// Authorization
    Authorization,
    /// Cache-Control
    CacheControl,
    /// Connection
    Connection,
    /// Content-Length
    ContentLength,
    /// Cookie
    Cookie,
    /// Expect
    Expect,
    /// Host
    Host,
    /// If-Match
    IfMatch,
    /// If-Modified-Since
    IfModifiedSince,
    /// If-None-Match
    IfNoneMatch,
    /// If-Range
    IfRange,
    /// If-Unmodified-Since
    IfUnmodifiedSince,
    /// Pragma
    Pragma,
    /// Range
    Range,
    /// Referer
    Referer,
    /// TE
    Te,
    /// Transfer-Encoding
    TransferEncoding,
    /// Upgrade
    Upgrade,
    /// User-Agent
    UserAgent,
    /// Via
    Via,
    /// Any other field.
    Other,
}

impl KnownField {
    /// Number of fields, including [`KnownField::Other`].
    pub const COUNT: usize = Self::Other as usize + 1;

    /// Returns the field with this name, which is case-insensitive (RFC 9110, section 5.1).
    pub fn from_name(name: &[u8]) -> Self {
        // The length distinguishes nearly all names, so few are compared, and each comparison has a fixed length.
        let is = |lower_case: &[u8]| name.eq_ignore_ascii_case(lower_case);
        match name.len() {
            2 if is(b"te") => Self::Te,
            3 if is(b"via") => Self::Via,
            4 if is(b"host") => Self::Host,
            5 if is(b"range") => Self::Range,
            6 if is(b"accept") => Self::Accept,
            6 if is(b"cookie") => Self::Cookie,
            6 if is(b"expect") => Self::Expect,
            6 if is(b"pragma") => Self::Pragma,
            7 if is(b"referer") => Self::Referer,
            7 if is(b"upgrade") => Self::Upgrade,
            8 if is(b"if-match") => Self::IfMatch,
            8 if is(b"if-range") => Self::IfRange,
            10 if is(b"user-agent") => Self::UserAgent,
            10 if is(b"connection") => Self::Connection,
            13 if is(b"if-none-match") => Self::IfNoneMatch,
            13 if is(b"authorization") => Self::Authorization,
            13 if is(b"cache-control") => Self::CacheControl,
            14 if is(b"content-length") => Self::ContentLength,
            15 if is(b"accept-encoding") => Self::AcceptEncoding,
            17 if is(b"if-modified-since") => Self::IfModifiedSince,
            17 if is(b"transfer-encoding") => Self::TransferEncoding,
            19 if is(b"if-unmodified-since") => Self::IfUnmodifiedSince,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::KnownField;

    #[test]
    fn names_in_any_case() {
        for (name, expect) in [
            ("Host", KnownField::Host),
            ("hOST", KnownField::Host),
            ("IF-Unmodified-since", KnownField::IfUnmodifiedSince),
            ("Hos", KnownField::Other),
            ("vIA", KnownField::Via),
            ("X-Host", KnownField::Other),
            ("", KnownField::Other),
        ] {
            assert_eq!(KnownField::from_name(name.as_bytes()), expect, "{name}");
        }
    }
}
