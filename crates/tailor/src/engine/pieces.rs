//! Content as a sequence of pieces, which several responses may share in memory.

use std::ops::Range;
use std::sync::Arc;

/// Maximum length in bytes of a line that [`ContentPiece::Line`] matches.
const LINE_BYTES_MAX: usize = 1024;

/// Piece of a content.
#[derive(Clone, Debug)]
pub(crate) enum ContentPiece {
    /// Bytes of this content only.
    Own(Box<[u8]>),
    /// Bytes shared with other contents.
    Shared(Arc<[u8]>, Range<usize>),
    /// Any text up to the end of the line (LF), inclusive.
    Line,
}

/// Content as a sequence of pieces.
#[derive(Clone, Debug)]
pub(crate) struct ContentPieces(Box<[ContentPiece]>);

/// Position in a content that is compared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    piece: usize,
    /// Matched bytes of the current piece.
    at: usize,
}

impl ContentPiece {
    /// Returns the bytes; `None` for a line, which matches any text.
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Own(bytes) => Some(bytes),
            Self::Shared(bytes, range) => Some(&bytes[range.clone()]),
            Self::Line => None,
        }
    }

    /// Appends the bytes; nothing for a line.
    pub(crate) fn append_to(&self, content: &mut Vec<u8>) {
        content.extend_from_slice(self.bytes().unwrap_or_default());
    }
}

impl ContentPieces {
    /// Creates a content from these pieces.
    pub(crate) fn new(pieces: impl IntoIterator<Item = ContentPiece>) -> Self {
        Self(pieces.into_iter().filter(|piece| piece.bytes().is_none_or(|bytes| !bytes.is_empty())).collect())
    }

    /// Compares `input` at the cursor and advances it. Returns whether the input matches.
    pub(crate) fn advance(&self, cursor: &mut Cursor, mut input: &[u8]) -> bool {
        while !input.is_empty() {
            let Some(piece) = self.0.get(cursor.piece) else { return false };
            let (consumed_bytes, is_done) = match piece.bytes() {
                Some(bytes) => {
                    let rest = &bytes[cursor.at..];
                    let length = rest.len().min(input.len());
                    if rest[..length] != input[..length] {
                        return false;
                    }
                    (length, length == rest.len())
                }
                None => match input.iter().position(|byte| *byte == b'\n') {
                    Some(at) if cursor.at + at <= LINE_BYTES_MAX => (at + 1, true),
                    None if cursor.at + input.len() <= LINE_BYTES_MAX => (input.len(), false),
                    _ => return false,
                },
            };
            input = &input[consumed_bytes..];
            *cursor = match is_done {
                true => Cursor { piece: cursor.piece + 1, at: 0 },
                false => Cursor { piece: cursor.piece, at: cursor.at + consumed_bytes },
            };
        }
        true
    }

    /// Returns whether the content ends at the cursor.
    pub(crate) fn is_end(&self, cursor: Cursor) -> bool {
        cursor.piece == self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents() {
        let shared: Arc<[u8]> = b"0123456789".as_slice().into();
        let own = |text: &str| ContentPiece::Own(text.as_bytes().into());
        let pieces =
            ContentPieces::new([own("a="), ContentPiece::Line, own(""), ContentPiece::Shared(shared, 2..5), own("!")]);
        for (content, expect) in [
            ("a=x\n234!", true),
            ("a=\n234!", true),
            ("a=x y z\n234!", true),
            ("b=x\n234!", false),
            ("a=x\n235!", false),
            ("a=x\n234", false),
            ("a=x\n234!!", false),
            ("a=x", false),
            ("", false),
            (&format!("a={}\n234!", "x".repeat(2 * LINE_BYTES_MAX)), false),
        ] {
            for step in [1, 2, 3, 10_000] {
                let mut cursor = Cursor::default();
                let is_right = content.as_bytes().chunks(step).all(|input| pieces.advance(&mut cursor, input));
                assert_eq!(is_right && pieces.is_end(cursor), expect, "{content} by {step}");
            }
        }
    }
}
