/// The request fields that the server itself reads; found while the head is parsed, so that nobody searches for them again.
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
    /// Any other field.
    Other,
}

impl KnownField {
    /// How many there are, [`KnownField::Other`] included.
    pub const COUNT: usize = Self::Other as usize + 1;

    /// The field with this name, in any case (RFC 9110, section 5.1).
    pub fn from_name(name: &[u8]) -> Self {
        // The length tells nearly all apart, so that few names are compared.
        let candidates: &[(&[u8], Self)] = match name.len() {
            2 => &[(b"te", Self::Te)],
            4 => &[(b"host", Self::Host)],
            5 => &[(b"range", Self::Range)],
            6 => &[
                (b"accept", Self::Accept),
                (b"cookie", Self::Cookie),
                (b"expect", Self::Expect),
                (b"pragma", Self::Pragma),
            ],
            7 => &[(b"referer", Self::Referer), (b"upgrade", Self::Upgrade)],
            8 => &[(b"if-match", Self::IfMatch), (b"if-range", Self::IfRange)],
            10 => &[(b"user-agent", Self::UserAgent), (b"connection", Self::Connection)],
            13 => &[
                (b"if-none-match", Self::IfNoneMatch),
                (b"authorization", Self::Authorization),
                (b"cache-control", Self::CacheControl),
            ],
            14 => &[(b"content-length", Self::ContentLength)],
            15 => &[(b"accept-encoding", Self::AcceptEncoding)],
            17 => &[(b"if-modified-since", Self::IfModifiedSince), (b"transfer-encoding", Self::TransferEncoding)],
            19 => &[(b"if-unmodified-since", Self::IfUnmodifiedSince)],
            _ => &[],
        };
        for (candidate, known) in candidates {
            if name.eq_ignore_ascii_case(candidate) {
                return *known;
            }
        }
        Self::Other
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
            ("X-Host", KnownField::Other),
            ("", KnownField::Other),
        ] {
            assert_eq!(KnownField::from_name(name.as_bytes()), expect, "{name}");
        }
    }
}
