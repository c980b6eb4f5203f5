//! The static table (RFC 7541, appendix A).

/// Number of entries; indexes begin with 1.
pub(super) const STATIC_ENTRIES: usize = TABLE.len();

/// Returns name and value of an entry. The caller must check that the index is from 1 to [`STATIC_ENTRIES`].
pub(super) fn static_entry(index: usize) -> (&'static [u8], &'static [u8]) {
    TABLE[index - 1]
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
    use crate::field_section::{known_field, static_name_index};
    use crate::http::KnownField;

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
