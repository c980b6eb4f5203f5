use std::ops::Range;

use super::StreamId;

/// Output to send, in order: frames, and content between them. Content is either among the bytes or stays in the
/// caller's memory. The caller uses one for all of its connections.
#[derive(Debug, Default)]
pub struct Output {
    pub(super) bytes: Vec<u8>,
    contents: Vec<PlacedContent>,
}

#[derive(Clone, Copy, Debug)]
struct PlacedContent {
    /// Offset in `bytes` that the content precedes.
    at: usize,
    stream: StreamId,
    offset: u64,
    length: usize,
}

/// Result of a request to provide content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The caller has appended exactly these bytes.
    Copied,
    /// The caller keeps the bytes where they are; they become a separate piece of the output.
    InPlace,
    /// The caller has lost the content. The stream is reset, and bytes that the caller appended are dropped.
    Lost,
}

/// Piece of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes of the output buffer.
    Bytes(&'a [u8]),
    /// Range of a stream's content in the caller's memory, counted from its first byte.
    Content(StreamId, Range<u64>),
}

impl Output {
    /// Returns the pieces in order. As `IoSlice`s, a single system call can send them.
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

    /// Returns all bytes, if all content is among them.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.contents.is_empty().then_some(&self.bytes)
    }

    /// Returns whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the number of bytes, without content in the caller's memory.
    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    /// Removes `length` sent bytes from the front. All content must be among the bytes.
    pub fn drop_front(&mut self, length: usize) {
        debug_assert!(self.contents.is_empty());
        self.bytes.drain(..length);
    }

    /// Restores what [`Output::suspend`] left in `kept`. If it left anything, this output's own memory stays in `kept`
    /// until the next call of `suspend`.
    pub fn resume(&mut self, kept: &mut Vec<u8>) {
        self.clear();
        if !kept.is_empty() {
            std::mem::swap(&mut self.bytes, kept);
        }
    }

    /// Moves unsent output to `kept` and undoes [`Output::resume`]. All content must be among the bytes. If everything
    /// was sent, `kept` has no memory afterwards.
    pub fn suspend(&mut self, kept: &mut Vec<u8>) {
        debug_assert!(self.contents.is_empty());
        if !self.bytes.is_empty() || kept.capacity() > self.bytes.capacity() {
            std::mem::swap(&mut self.bytes, kept);
            self.bytes.clear();
        }
        if kept.is_empty() {
            *kept = Vec::new();
        } else if kept.capacity() / 2 > kept.len() {
            kept.shrink_to_fit();
        }
    }

    /// Removes all output, after the caller has sent it or stored it elsewhere. Keeps the memory.
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

    #[test]
    fn what_is_not_sent_is_kept_without_copying() {
        let mut output = Output { bytes: Vec::with_capacity(100), contents: Vec::new() };
        let mut kept = Vec::new();
        let check = |output: &Output, kept: &Vec<u8>, expect: (&[u8], &[u8])| {
            assert_eq!((&output.bytes[..], &kept[..]), expect);
        };
        output.suspend(&mut kept);
        check(&output, &kept, (b"", b""));
        assert_eq!((output.bytes.capacity(), kept.capacity()), (100, 0));
        output.bytes.extend([b'a'; 80]);
        let there = output.bytes.as_ptr();
        output.suspend(&mut kept);
        check(&output, &kept, (b"", &[b'a'; 80]));
        assert_eq!(kept.as_ptr(), there);
        output.resume(&mut kept);
        check(&output, &kept, (&[b'a'; 80], b""));
        assert_eq!(output.bytes.as_ptr(), there);
        output.drop_front(60);
        output.suspend(&mut kept);
        check(&output, &kept, (b"", &[b'a'; 20]));
        assert!(kept.capacity() < 100, "a little is kept in little memory");
        output.resume(&mut kept);
        output.drop_front(20);
        output.suspend(&mut kept);
        check(&output, &kept, (b"", b""));
        assert_eq!(kept.capacity(), 0);
    }
}
