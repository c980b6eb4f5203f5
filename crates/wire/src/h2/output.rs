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

    /// Begins with what [`Output::suspend`] has left in `kept`. If that is anything, the memory of this output stays there
    /// meanwhile.
    pub fn resume(&mut self, kept: &mut Vec<u8>) {
        self.clear();
        if !kept.is_empty() {
            std::mem::swap(&mut self.bytes, kept);
        }
    }

    /// Moves what has not been sent to `kept`, as it was before [`Output::resume`]; all content must be among the bytes.
    /// Nothing: there is no memory in `kept`, either.
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
