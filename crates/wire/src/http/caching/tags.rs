//! Tags of responses (surrogate keys): names by which an operator purges many URLs at once. The fields are those of CDNs:
//! `Surrogate-Key` with spaces between tags, and `Cache-Tag` with commas.

use crate::http::Fields;

/// Tags of a response that are compared. A response with more counts as one with every tag, so that no purge misses it.
pub const TAGS_MAX: usize = 1_000;

/// Bytes of a tag in [`CacheTag::write_all`].
const TAG_BYTES: usize = 8;

/// Bytes that stand for every tag.
const EVERY: [u8; TAG_BYTES] = [0xff; TAG_BYTES];

/// Tag, as a number that is the same in all processes. Case makes no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheTag(u64);

impl CacheTag {
    /// Tag of this text.
    pub fn of(text: &[u8]) -> Self {
        // FNV-1a. Two tags with the same number are purged together, which is safe.
        let mix = |hash: u64, byte: &u8| (hash ^ u64::from(byte.to_ascii_lowercase())).wrapping_mul(0x0100_0000_01b3);
        Self(text.iter().fold(0xcbf2_9ce4_8422_2325, mix))
    }

    /// True if a response with these fields has the tag.
    pub fn is_in(self, fields: &Fields) -> bool {
        let mut tags = tags(fields);
        tags.by_ref().take(TAGS_MAX).any(|tag| tag == self) || tags.next().is_some()
    }

    /// Writes all tags of a response.
    pub fn write_all(fields: &Fields) -> Vec<u8> {
        let mut tags = tags(fields);
        let bytes: Vec<u8> = tags.by_ref().take(TAGS_MAX).flat_map(|tag| tag.0.to_le_bytes()).collect();
        if tags.next().is_some() { EVERY.to_vec() } else { bytes }
    }

    /// True if the tag is among those that [`Self::write_all`] wrote.
    pub fn is_written_in(self, bytes: &[u8]) -> bool {
        bytes.chunks(TAG_BYTES).any(|tag| tag == self.0.to_le_bytes() || tag == EVERY)
    }
}

/// Tags of a response.
fn tags(fields: &Fields) -> impl Iterator<Item = CacheTag> {
    let spaced = fields.values(b"Surrogate-Key").flat_map(|value| value.split(|byte| b" \t".contains(byte)));
    let listed = fields.values(b"Cache-Tag").flat_map(|value| value.split(|byte| *byte == b','));
    let texts = spaced.chain(listed).map(<[u8]>::trim_ascii);
    texts.filter(|text| !text.is_empty()).map(CacheTag::of)
}

#[cfg(test)]
mod tests {
    use super::super::tests::fields;
    use super::*;

    #[test]
    fn tags_of_responses() {
        for (lines, has, lacks) in [
            (&[("Surrogate-Key", "a b\tc")][..], &["a", "b", "c", "A"][..], &["a b", "d", ""][..]),
            (&[("Cache-Tag", "a b, c,,D")], &["a b", "c", "d"], &["a", "b", ""]),
            (&[("surrogate-key", "a"), ("Surrogate-Key", "b"), ("cache-tag", "c")], &["a", "b", "c"], &["d"]),
            (&[("Surrogate-Key", "  "), ("Cache-Tag", ", ,")], &[], &["", " ", ","]),
            (&[("Surrogate-Control", "a"), ("Cache-Control", "max-age=1")], &[], &["a", "max-age=1"]),
        ] {
            let fields = fields(lines);
            let written = CacheTag::write_all(&fields);
            for (tags, expect) in [(has, true), (lacks, false)] {
                for tag in tags {
                    let found = CacheTag::of(tag.as_bytes());
                    assert_eq!(
                        (found.is_in(&fields), found.is_written_in(&written)),
                        (expect, expect),
                        "{lines:?} {tag}"
                    );
                }
            }
        }
    }

    /// A response with more tags than are compared is purged with each tag.
    #[test]
    fn many_tags() {
        let many = |count: usize| (0..count).map(|number| number.to_string()).collect::<Vec<_>>().join(" ");
        for (count, expect) in [(TAGS_MAX, false), (TAGS_MAX + 1, true)] {
            let fields = fields(&[("Surrogate-Key", &many(count))]);
            let written = CacheTag::write_all(&fields);
            let other = CacheTag::of(b"other");
            assert_eq!((other.is_in(&fields), other.is_written_in(&written)), (expect, expect));
            assert!(CacheTag::of(b"0").is_in(&fields) && CacheTag::of(b"0").is_written_in(&written));
            assert!(written.len() <= TAGS_MAX * TAG_BYTES);
        }
    }
}
