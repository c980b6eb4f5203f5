use std::ops::Range;

use super::StreamId;

/// What is to be sent, in order: frames of our own, and between them content, which is either among those bytes already or
/// stays where the caller has it. The caller keeps one for all of its connections.
#[derive(Debug, Default)]
pub struct Output {
    pub(super) bytes: Vec<u8>,
    contents: Vec<PlacedContent>,
}

#[derive(Clone, Copy, Debug)]
struct PlacedContent {
    /// Before which of `bytes` it is to be sent.
    at: usize,
    stream: StreamId,
    offset: u64,
    length: usize,
}

/// What the caller has done with content that is about to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// It has appended exactly these bytes.
    Copied,
    /// It has left them where they are: they become a piece of the output of their own.
    InPlace,
    /// It has not got them any more, so that the stream is to be reset. Whatever it has appended is dropped.
    Lost,
}

/// A piece of what is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// These bytes of a stream's content, counted from its first.
    Content(StreamId, Range<u64>),
}

impl Output {
    /// The pieces, in order; made into `IoSlice`s, they are sent by one system call.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let (mut from, mut contents) = (0, self.contents.iter().peekable());
        std::iter::from_fn(move || {
            let end = contents.peek().map_or(self.bytes.len(), |content| content.at);
            if from < end {
                let piece = Piece::Bytes(&self.bytes[from..end]);
                from = end;
                return Some(piece);
            }
            let content = contents.next()?;
            Some(Piece::Content(content.stream, content.offset..content.offset + content.length as u64))
        })
    }

    /// All bytes to be sent, if no content was left where it is.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.contents.is_empty().then_some(&self.bytes)
    }

    /// Whether there is nothing to be sent.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// How many bytes there are, without content that was left where it is.
    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    /// Forgets this many bytes at the beginning, which have been sent; all content must be among the bytes.
    pub fn drop_front(&mut self, length: usize) {
        debug_assert!(self.contents.is_empty());
        self.bytes.drain(..length);
    }

    /// Begins with bytes that were taken out before, and not sent.
    pub fn resume(&mut self, unsent: &[u8]) {
        self.clear();
        self.bytes.extend_from_slice(unsent);
    }

    /// Forgets all, which the caller has sent or keeps elsewhere; the memory stays.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.contents.clear();
    }

    pub(super) fn place(&mut self, stream: StreamId, content: Range<u64>) {
        let (offset, length) = (content.start, (content.end - content.start) as usize);
        self.contents.push(PlacedContent { at: self.bytes.len(), stream, offset, length });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_in_order() {
        let stream = StreamId(1);
        let mut output = Output::default();
        assert!(output.is_empty());
        output.bytes.extend(b"abc");
        assert_eq!(output.bytes(), Some(&b"abc"[..]));
        output.place(stream, 0..5);
        output.place(stream, 5..9);
        output.bytes.extend(b"de");
        output.place(stream, 9..10);
        let pieces: Vec<_> = output.pieces().collect();
        assert_eq!(
            pieces,
            [
                Piece::Bytes(b"abc"),
                Piece::Content(stream, 0..5),
                Piece::Content(stream, 5..9),
                Piece::Bytes(b"de"),
                Piece::Content(stream, 9..10),
            ]
        );
        assert_eq!(output.bytes(), None);
        output.clear();
        assert_eq!(output.pieces().count(), 0);
    }
}
