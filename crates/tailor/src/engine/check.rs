//! Checks that a response must pass to count as served.

use std::path::Path;
use std::sync::OnceLock;

use aws_lc_rs::digest;
use wire::h1::ResponseHead;

use super::failure::FailureClass;
use super::pieces::{ContentPieces, Cursor};

/// Maximum length of a body that is kept as reference after its hash was right. Later bodies are compared with it byte
/// by byte, which is cheaper than to hash them. Longer bodies are hashed each time.
const REFERENCE_BYTES_MAX: u64 = 16 << 20;

/// A SHA-256 hash.
pub(crate) type Sha256 = [u8; 32];

/// Required properties of a response.
#[derive(Debug, Default)]
pub(crate) struct ResponseCheck {
    /// Statuses that pass; if empty, 200 to 399.
    pub statuses: Vec<u16>,
    /// Required length of the content in bytes.
    pub length_bytes: Option<u64>,
    /// Required fields, some with a value.
    pub fields: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Required content.
    pub body: Option<BodyCheck>,
}

/// Required content of a response.
#[derive(Debug, Default)]
pub(crate) struct BodyCheck {
    /// Hash of the content. Unset until the first response, if that defines the content of all others.
    hash: OnceLock<Sha256>,
    /// Content itself, once known.
    reference: OnceLock<Box<[u8]>>,
    /// Content in pieces, which replaces hash and reference.
    pieces: Option<ContentPieces>,
}

impl ResponseCheck {
    /// Judges a head. `content_bytes` is the length that it announces, if any.
    pub(crate) fn judge_head(
        &self,
        head: &ResponseHead,
        bytes: &[u8],
        content_bytes: Option<u64>,
    ) -> Option<FailureClass> {
        self.judge_fields(head.status.code(), |name, is_right| head.values(bytes, name).any(is_right))
            .or_else(|| content_bytes.and_then(|length| self.judge_length(length)))
    }

    /// Judges status and fields of a head. `has` returns whether a field of this name (case-insensitive) has a matching
    /// value.
    pub(crate) fn judge_fields(
        &self,
        status: u16,
        has: impl Fn(&[u8], &dyn Fn(&[u8]) -> bool) -> bool,
    ) -> Option<FailureClass> {
        let status_passes = match self.statuses.as_slice() {
            [] => (200..400).contains(&status),
            statuses => statuses.contains(&status),
        };
        if !status_passes {
            return Some(FailureClass::Status);
        }
        let field_passes = |(name, expected): &(Vec<u8>, Option<Vec<u8>>)| {
            has(name, &|value| expected.as_ref().is_none_or(|expected| expected == value))
        };
        if self.fields.iter().all(field_passes) { None } else { Some(FailureClass::Field) }
    }

    /// Judges the content's length.
    pub(crate) fn judge_length(&self, content_bytes: u64) -> Option<FailureClass> {
        match self.length_bytes {
            Some(expected) if expected != content_bytes => Some(FailureClass::Length),
            _ => None,
        }
    }
}

impl BodyCheck {
    /// Requires every content to be equal to the first.
    pub(crate) fn same() -> Self {
        Self::default()
    }

    /// Requires content with this hash.
    pub(crate) fn hash(hash: Sha256) -> Self {
        Self { hash: OnceLock::from(hash), ..Self::default() }
    }

    /// Requires these bytes.
    pub(crate) fn bytes(bytes: impl Into<Box<[u8]>>) -> Self {
        Self { reference: OnceLock::from(bytes.into()), ..Self::default() }
    }

    /// Requires these pieces.
    pub(crate) fn pieces(pieces: ContentPieces) -> Self {
        Self { pieces: Some(pieces), ..Self::default() }
    }

    /// Requires the content of a file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn file(path: &Path) -> std::io::Result<Self> {
        std::fs::read(path).map(Self::bytes)
    }
}

/// Judge of one content that arrives in pieces.
#[derive(Debug, Default)]
pub(crate) enum BodyJudge {
    /// No check.
    #[default]
    Unchecked,
    /// Comparison with the reference; counts the bytes that matched.
    Comparing(u64),
    /// Comparison with pieces.
    Matching(Cursor),
    /// A mismatch was found.
    Wrong,
    /// Computation of the hash.
    Hashing(Box<Hashing>),
}

/// Content to hash. It is kept as reference if it is short enough.
pub(crate) struct Hashing {
    context: digest::Context,
    kept: Option<Vec<u8>>,
}

impl std::fmt::Debug for Hashing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hashing").field("kept", &self.kept.as_ref().map(Vec::len)).finish_non_exhaustive()
    }
}

impl BodyJudge {
    pub(crate) fn new(check: Option<&BodyCheck>) -> Self {
        match check {
            None => Self::Unchecked,
            Some(check) if check.pieces.is_some() => Self::Matching(Cursor::default()),
            Some(check) if check.reference.get().is_some() => Self::Comparing(0),
            Some(_) => Self::Hashing(Box::new(Hashing {
                context: digest::Context::new(&digest::SHA256),
                kept: Some(Vec::new()),
            })),
        }
    }

    /// Judges the next piece of content.
    pub(crate) fn update(&mut self, check: Option<&BodyCheck>, piece: &[u8]) {
        match self {
            Self::Unchecked | Self::Wrong => {}
            Self::Comparing(right_bytes) => {
                let reference = check.and_then(|check| check.reference.get()).map_or(&[][..], |bytes| &bytes[..]);
                let from = usize::try_from(*right_bytes).unwrap_or(usize::MAX);
                *right_bytes += piece.len() as u64;
                if !reference.get(from..).is_some_and(|rest| rest.starts_with(piece)) {
                    *self = Self::Wrong;
                }
            }
            Self::Matching(cursor) => {
                let pieces = check.and_then(|check| check.pieces.as_ref());
                if !pieces.is_some_and(|pieces| pieces.advance(cursor, piece)) {
                    *self = Self::Wrong;
                }
            }
            Self::Hashing(hashing) => {
                let Hashing { context, kept } = &mut **hashing;
                context.update(piece);
                match kept {
                    Some(bytes) if (bytes.len() + piece.len()) as u64 <= REFERENCE_BYTES_MAX => {
                        bytes.extend_from_slice(piece);
                    }
                    _ => *kept = None,
                }
            }
        }
    }

    /// Returns the verdict on a complete content, and resets `self` for the next.
    pub(crate) fn finish(&mut self, check: Option<&BodyCheck>) -> Option<FailureClass> {
        let check = check?;
        let is_right = match std::mem::take(self) {
            Self::Unchecked => true,
            Self::Wrong => false,
            Self::Comparing(right_bytes) => {
                check.reference.get().is_some_and(|reference| reference.len() as u64 == right_bytes)
            }
            Self::Matching(cursor) => check.pieces.as_ref().is_some_and(|pieces| pieces.is_end(cursor)),
            Self::Hashing(hashing) => {
                let Hashing { context, kept } = *hashing;
                let digest = context.finish();
                let is_right = check.hash.get_or_init(|| to_sha256(digest.as_ref())) == digest.as_ref();
                if let (true, Some(bytes)) = (is_right, kept) {
                    // Another thread may have stored the same bytes first.
                    let _ = check.reference.set(bytes.into_boxed_slice());
                }
                is_right
            }
        };
        if is_right { None } else { Some(FailureClass::Body) }
    }
}

fn to_sha256(digest: &[u8]) -> Sha256 {
    digest.try_into().expect("SHA-256 has 32 bytes")
}

/// Parses a hash of 64 hexadecimal digits.
pub(crate) fn parse_sha256(text: &str) -> Option<Sha256> {
    let mut hash = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::pieces::ContentPiece;

    fn judge(check: &BodyCheck, pieces: &[&[u8]]) -> Option<FailureClass> {
        let mut judge = BodyJudge::new(Some(check));
        for piece in pieces {
            judge.update(Some(check), piece);
        }
        judge.finish(Some(check))
    }

    #[test]
    fn contents() {
        const HASH: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; // of "abc"
        let wrong = Some(FailureClass::Body);
        for make in [
            || BodyCheck::bytes(*b"abc"),
            || BodyCheck::pieces(ContentPieces::new([b"ab", &b"c"[..]].map(|piece| ContentPiece::Own(piece.into())))),
            || BodyCheck::hash(parse_sha256(HASH).unwrap()),
            || {
                let check = BodyCheck::same();
                assert_eq!(judge(&check, &[b"abc"]), None, "the first");
                check
            },
        ] {
            for (pieces, expect) in [
                (&[&b"abc"[..]][..], None),
                (&[b"a", b"bc"], None),
                (&[b"abd"], wrong),
                (&[b"ab"], wrong),
                (&[b"abc", b"d"], wrong),
                (&[b"x", b"bc"], wrong),
                (&[], wrong),
            ] {
                let check = make();
                assert_eq!(judge(&check, pieces), expect, "{pieces:?}");
                assert_eq!(judge(&check, &[b"abc"]), None, "after {pieces:?}");
            }
        }
    }

    #[test]
    fn hashes() {
        for text in ["", "ab", &"g".repeat(64), &"ä".repeat(32)] {
            assert_eq!(parse_sha256(text), None, "{text}");
        }
    }
}
