/// Indexing of a field in dynamic tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// Added to the table, because the field will be sent again.
    Incremental,
    /// Not added, because the value differs each time.
    Without,
    /// Must not be added, here or by intermediaries: an attacker could guess a secret by the compressed size of guesses
    /// (RFC 7541, section 7.1; RFC 9204, section 7.1).
    Never,
}

impl Indexing {
    /// Chooses the indexing for a name in lower case. Secrets are never indexed, and values that rarely repeat are not.
    pub fn of(name: &[u8], value: &[u8]) -> Self {
        match name {
            b"authorization" | b"proxy-authorization" | b"set-cookie" => Self::Never,
            // Short cookies are easy to guess; long ones repeat often (RFC 7541, section 7.1.3).
            b"cookie" if value.len() < 20 => Self::Never,
            b"age" | b"content-length" | b"content-range" | b"date" | b"etag" | b"expires" | b"if-modified-since"
            | b"if-none-match" | b"last-modified" | b"location" | b":path" => Self::Without,
            _ => Self::Incremental,
        }
    }
}
