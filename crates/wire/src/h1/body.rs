//! Decoders for the content of a message: Content-Length (RFC 9112, section 6.2) and chunked (section 7.1).

use std::ops::Range;

use memchr::memchr;

use super::request_head::{is_token_byte, parse_field_line};
use super::{BodyFraming, MessageRejection};
use crate::http::{Fields, Span};

/// Limits on the parts of a chunked message, and on its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimits {
    /// Bytes of content.
    pub body_bytes_max: u64,
    /// Bytes of all chunk extensions and superfluous zeros together (CVE-2023-39326: an attacker keeps a server reading
    /// with extensions).
    pub extension_bytes_max: usize,
    /// Bytes of the trailer section.
    pub trailer_bytes_max: usize,
}

impl Default for BodyLimits {
    fn default() -> Self {
        Self { body_bytes_max: 1 << 20, extension_bytes_max: 16 << 10, trailer_bytes_max: 16 << 10 }
    }
}

/// Result of [`BodyDecoder::decode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedBody {
    /// Bytes of the input that the caller may drop. If it is 0, the decoder needs more input.
    pub consumed_bytes: usize,
    /// Range of the input that is content.
    pub content: Range<usize>,
    /// True if the message ends with the consumed bytes.
    pub is_complete: bool,
}

/// Decoder for the content of one message. The result does not depend on how the input is split. Buffers only trailers.
#[derive(Clone, Debug)]
pub enum BodyDecoder {
    /// Content-Length: bytes that remain.
    Length(u64),
    /// Transfer-Encoding: chunked.
    Chunked(ChunkedDecoder),
}

impl BodyDecoder {
    /// Creates a decoder for this framing; `None` if the message has no content.
    pub fn new(framing: BodyFraming) -> Option<Self> {
        match framing {
            BodyFraming::None => None,
            BodyFraming::Length(length) => Some(Self::Length(length)),
            BodyFraming::Chunked => Some(Self::Chunked(ChunkedDecoder::default())),
        }
    }

    /// Decodes the next bytes and returns at most one piece of content. Call it again with the bytes that were not
    /// consumed, until the input is used up or the message is complete.
    pub fn decode(&mut self, input: &[u8], limits: &BodyLimits) -> Result<DecodedBody, MessageRejection> {
        match self {
            Self::Length(remaining) => {
                let length = usize::try_from(*remaining).unwrap_or(usize::MAX).min(input.len());
                *remaining -= length as u64;
                Ok(DecodedBody { consumed_bytes: length, content: 0..length, is_complete: *remaining == 0 })
            }
            Self::Chunked(decoder) => decoder.decode(input, limits),
        }
    }

    /// Returns the trailer fields (RFC 9110, section 6.5) of a complete message. They come from the peer; only their
    /// syntax has been checked.
    pub fn take_trailers(&mut self) -> Fields {
        match self {
            Self::Length(_) => Fields::new(),
            Self::Chunked(decoder) => decoder.take_trailers(),
        }
    }
}

/// State of a chunked message.
#[derive(Clone, Debug, Default)]
pub struct ChunkedDecoder {
    state: ChunkState,
    /// Size that the size line gives so far, or bytes that the chunk still lacks.
    chunk_bytes: u64,
    has_size: bool,
    content_bytes: u64,
    extension_bytes: usize,
    /// Trailer section so far: whole lines and the beginning of the next.
    trailers: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    /// Bytes of the grammar, read one by one.
    Line(ChunkLineState),
    /// Content of a chunk.
    Data,
    Complete,
}

impl Default for ChunkState {
    fn default() -> Self {
        Self::Line(ChunkLineState::Size)
    }
}

/// Expected part of the grammar around the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkLineState {
    /// A digit of the chunk size, or the byte after the size.
    Size,
    /// White space before a `;` (bad white space, which a recipient must accept).
    BlankBeforeSemicolon,
    /// The name of an extension, or white space before it.
    BlankBeforeName,
    Name,
    /// White space after a name; `=` or `;` may follow.
    BlankAfterName,
    BlankBeforeValue,
    Value,
    Quoted,
    QuotedPair,
    /// The byte after a quoted value.
    AfterQuoted,
    SizeLineFeed,
    DataCarriageReturn,
    DataLineFeed,
    /// The first byte of a line in the trailer section.
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLineFeed,
    FinalLineFeed,
}

impl ChunkedDecoder {
    fn decode(&mut self, input: &[u8], limits: &BodyLimits) -> Result<DecodedBody, MessageRejection> {
        let mut at = 0;
        while at < input.len() {
            match self.state {
                ChunkState::Line(state) => self.state = self.on_byte(state, input[at], limits)?,
                ChunkState::Data => {
                    let length = usize::try_from(self.chunk_bytes).unwrap_or(usize::MAX).min(input.len() - at);
                    self.chunk_bytes -= length as u64;
                    if self.chunk_bytes == 0 {
                        self.state = ChunkState::Line(ChunkLineState::DataCarriageReturn);
                    }
                    let content = at..at + length;
                    return Ok(DecodedBody { consumed_bytes: at + length, content, is_complete: false });
                }
                ChunkState::Complete => break,
            }
            at += 1;
        }
        Ok(DecodedBody { consumed_bytes: at, content: at..at, is_complete: self.state == ChunkState::Complete })
    }

    /// Parses one byte by the grammar of RFC 9112, section 7.1.
    fn on_byte(
        &mut self,
        state: ChunkLineState,
        byte: u8,
        limits: &BodyLimits,
    ) -> Result<ChunkState, MessageRejection> {
        let next = match state {
            ChunkLineState::Size => self.on_size_byte(byte, limits)?,
            ChunkLineState::BlankBeforeSemicolon
            | ChunkLineState::BlankBeforeName
            | ChunkLineState::Name
            | ChunkLineState::BlankAfterName
            | ChunkLineState::BlankBeforeValue
            | ChunkLineState::Value
            | ChunkLineState::Quoted
            | ChunkLineState::QuotedPair
            | ChunkLineState::AfterQuoted => self.on_extension_byte(state, byte, limits)?,
            ChunkLineState::SizeLineFeed => {
                expect(byte, b'\n', "LF expected after a chunk size")?;
                self.has_size = false;
                if self.chunk_bytes > 0 {
                    return Ok(ChunkState::Data);
                }
                ChunkLineState::TrailerStart
            }
            ChunkLineState::DataCarriageReturn => {
                expect(byte, b'\r', "chunk longer than its size")?;
                ChunkLineState::DataLineFeed
            }
            ChunkLineState::DataLineFeed => {
                expect(byte, b'\n', "LF expected after a chunk")?;
                ChunkLineState::Size
            }
            ChunkLineState::TrailerStart
            | ChunkLineState::TrailerName
            | ChunkLineState::TrailerValue
            | ChunkLineState::TrailerLineFeed => self.on_trailer_byte(state, byte, limits)?,
            ChunkLineState::FinalLineFeed => {
                return expect(byte, b'\n', "LF expected after the last chunk").map(|()| ChunkState::Complete);
            }
        };
        Ok(ChunkState::Line(next))
    }

    fn on_size_byte(&mut self, byte: u8, limits: &BodyLimits) -> Result<ChunkLineState, MessageRejection> {
        if let Some(digit) = (byte as char).to_digit(16) {
            if self.chunk_bytes >> 60 != 0 {
                return Err(MessageRejection::bad_request("chunk size too large"));
            }
            self.chunk_bytes = self.chunk_bytes << 4 | u64::from(digit);
            if self.chunk_bytes == 0 {
                self.on_overhead_byte(limits)?; // An endless row of zeros would be endless work.
            }
            self.has_size = true;
            return Ok(ChunkLineState::Size);
        }
        if !self.has_size {
            return Err(MessageRejection::bad_request("malformed chunk size"));
        }
        match byte {
            b'\r' => self.on_size_complete(limits),
            b';' => Ok(ChunkLineState::BlankBeforeName),
            b' ' | b'\t' => Ok(ChunkLineState::BlankBeforeSemicolon),
            _ => Err(MessageRejection::bad_request("malformed chunk size")),
        }
    }

    fn on_size_complete(&mut self, limits: &BodyLimits) -> Result<ChunkLineState, MessageRejection> {
        self.content_bytes = self.content_bytes.saturating_add(self.chunk_bytes);
        if self.content_bytes > limits.body_bytes_max {
            return Err(MessageRejection::CONTENT_TOO_LARGE);
        }
        Ok(ChunkLineState::SizeLineFeed)
    }

    /// `*( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )` (RFC 9112, section 7.1.1). Extensions are
    /// ignored, but malformed ones are rejected: other parsers read a bare CR or LF in them differently.
    fn on_extension_byte(
        &mut self,
        state: ChunkLineState,
        byte: u8,
        limits: &BodyLimits,
    ) -> Result<ChunkLineState, MessageRejection> {
        self.on_overhead_byte(limits)?;
        let is_token = is_token_byte(byte);
        let next = match (state, byte) {
            (ChunkLineState::BlankBeforeSemicolon, b' ' | b'\t') => ChunkLineState::BlankBeforeSemicolon,
            (ChunkLineState::BlankBeforeSemicolon | ChunkLineState::AfterQuoted, b';') => {
                ChunkLineState::BlankBeforeName
            }
            (ChunkLineState::AfterQuoted, b' ' | b'\t') => ChunkLineState::BlankBeforeSemicolon,
            (ChunkLineState::BlankBeforeName, b' ' | b'\t') => ChunkLineState::BlankBeforeName,
            (ChunkLineState::BlankBeforeName | ChunkLineState::Name, _) if is_token => ChunkLineState::Name,
            (ChunkLineState::Name | ChunkLineState::BlankAfterName, b' ' | b'\t') => ChunkLineState::BlankAfterName,
            (ChunkLineState::Name | ChunkLineState::BlankAfterName, b'=') => ChunkLineState::BlankBeforeValue,
            (ChunkLineState::Name | ChunkLineState::BlankAfterName | ChunkLineState::Value, b';') => {
                ChunkLineState::BlankBeforeName
            }
            (ChunkLineState::BlankBeforeValue, b' ' | b'\t') => ChunkLineState::BlankBeforeValue,
            (ChunkLineState::BlankBeforeValue, b'"') => ChunkLineState::Quoted,
            (ChunkLineState::BlankBeforeValue | ChunkLineState::Value, _) if is_token => ChunkLineState::Value,
            (ChunkLineState::Value, b' ' | b'\t') => ChunkLineState::BlankBeforeSemicolon,
            (ChunkLineState::Quoted, b'"') => ChunkLineState::AfterQuoted,
            (ChunkLineState::Quoted, b'\\') => ChunkLineState::QuotedPair,
            (ChunkLineState::Quoted | ChunkLineState::QuotedPair, b'\t' | b' '..=b'~' | 0x80..) => {
                ChunkLineState::Quoted
            }
            (ChunkLineState::Name | ChunkLineState::Value | ChunkLineState::AfterQuoted, b'\r') => {
                return self.on_size_complete(limits);
            }
            _ => return Err(MessageRejection::bad_request("malformed chunk extension")),
        };
        Ok(next)
    }

    fn on_overhead_byte(&mut self, limits: &BodyLimits) -> Result<(), MessageRejection> {
        self.extension_bytes += 1;
        if self.extension_bytes > limits.extension_bytes_max {
            return Err(MessageRejection::bad_request("chunk size lines too long"));
        }
        Ok(())
    }

    /// Trailer fields have the syntax of header fields (RFC 9112, section 7.1.2).
    fn on_trailer_byte(
        &mut self,
        state: ChunkLineState,
        byte: u8,
        limits: &BodyLimits,
    ) -> Result<ChunkLineState, MessageRejection> {
        if (state, byte) == (ChunkLineState::TrailerStart, b'\r') {
            return Ok(ChunkLineState::FinalLineFeed); // Not kept, so that content without trailers needs no memory.
        }
        if self.trailers.len() >= limits.trailer_bytes_max {
            return Err(MessageRejection::TRAILER_TOO_LARGE);
        }
        self.trailers.push(byte);
        match (state, byte) {
            (ChunkLineState::TrailerStart | ChunkLineState::TrailerName, _) if is_token_byte(byte) => {
                Ok(ChunkLineState::TrailerName)
            }
            (ChunkLineState::TrailerName, b':') => Ok(ChunkLineState::TrailerValue),
            (ChunkLineState::TrailerValue, b'\r') => Ok(ChunkLineState::TrailerLineFeed),
            (ChunkLineState::TrailerValue, b'\t' | b' '..=b'~' | 0x80..) => Ok(ChunkLineState::TrailerValue),
            (ChunkLineState::TrailerLineFeed, b'\n') => Ok(ChunkLineState::TrailerStart),
            _ => Err(MessageRejection::bad_request("malformed trailer field")),
        }
    }

    fn take_trailers(&mut self) -> Fields {
        let bytes = std::mem::take(&mut self.trailers);
        let mut fields = Fields::new();
        let mut at = 0;
        while let Some(length) = memchr(b'\r', &bytes[at..])
            && length > 0
        {
            // The syntax was checked byte by byte.
            if let Ok((name, value)) = parse_field_line(&bytes, Span::new(at, at + length)) {
                fields.push(name.of(&bytes), value.of(&bytes));
            }
            at += length + 2;
        }
        fields
    }
}

fn expect(byte: u8, expected: u8, reason: &'static str) -> Result<(), MessageRejection> {
    if byte == expected { Ok(()) } else { Err(MessageRejection::bad_request(reason)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BodyLimits = BodyLimits { body_bytes_max: 64, extension_bytes_max: 32, trailer_bytes_max: 32 };

    /// Returns the content and the bytes after the message, or the error status. Feeds the input in pieces of `step`
    /// bytes.
    fn decode(framing: BodyFraming, input: &[u8], step: usize) -> Result<Option<(Vec<u8>, usize)>, u16> {
        let mut decoder = BodyDecoder::new(framing).unwrap();
        let (mut content, mut at) = (Vec::new(), 0);
        while at < input.len() {
            let piece = &input[at..(at + step).min(input.len())];
            let decoded = decoder.decode(piece, &LIMITS).map_err(|rejection| rejection.status.code())?;
            content.extend_from_slice(&piece[decoded.content]);
            at += decoded.consumed_bytes;
            if decoded.is_complete {
                return Ok(Some((content, at)));
            }
        }
        Ok(None)
    }

    fn check(framing: BodyFraming, input: &str, expect: Result<Option<(&str, usize)>, u16>) {
        let expect = expect.map(|end| end.map(|(content, at)| (content.as_bytes().to_vec(), at)));
        for step in [input.len(), 1, 2, 3] {
            assert_eq!(decode(framing, input.as_bytes(), step), expect, "{input:?} in pieces of {step}");
        }
    }

    #[test]
    fn trailers() {
        let input = b"1\r\nx\r\n0\r\nA: b\r\nc:  d e \r\nA:\r\n\r\n";
        for step in [input.len(), 1, 4] {
            let mut decoder = BodyDecoder::new(BodyFraming::Chunked).unwrap();
            let mut at = 0;
            while at < input.len() {
                at += decoder.decode(&input[at..(at + step).min(input.len())], &LIMITS).unwrap().consumed_bytes;
            }
            let mut expect = Fields::new();
            expect.push("A", "b").push("c", "d e").push("A", "");
            assert_eq!(decoder.take_trailers(), expect);
        }
        assert!(BodyDecoder::new(BodyFraming::Length(1)).unwrap().take_trailers().is_empty());
    }

    #[test]
    fn content_length() {
        check(BodyFraming::Length(3), "abcd", Ok(Some(("abc", 3))));
        check(BodyFraming::Length(5), "abcd", Ok(None));
    }

    #[test]
    fn chunked() {
        for (input, expect) in [
            ("3\r\nabc\r\n0\r\n\r\nnext", Ok(Some(("abc", 13)))),
            ("0\r\n\r\n", Ok(Some(("", 5)))),
            ("0003\r\nabc\r\n2\r\nde\r\n00\r\n\r\n", Ok(Some(("abcde", 24)))),
            ("A\r\n0123456789\r\n0\r\n\r\n", Ok(Some(("0123456789", 20)))),
            ("1;a\r\nx\r\n0;b=c ; d=\"e\\\"\r\" \r\n\r\n", Err(400)),
            ("1 ;\ta = \"b;\\\"\" ;c\r\nx\r\n0\r\n\r\n", Ok(Some(("x", 27)))),
            ("0\r\nX: y\r\nZ:\r\n\r\n", Ok(Some(("", 15)))),
            ("3\r\nab", Ok(None)),
            ("3\r\nabcd\r\n", Err(400)),
            ("3\nabc\r\n", Err(400)),
            ("3\r\nabc\n", Err(400)),
            ("3\rabc\r\n", Err(400)),
            ("3 \r\nabc\r\n", Err(400)),
            (" 3\r\nabc\r\n", Err(400)),
            ("+3\r\nabc\r\n", Err(400)),
            ("0x3\r\nabc\r\n", Err(400)),
            ("-3\r\n", Err(400)),
            ("\r\n", Err(400)),
            (";a\r\n", Err(400)),
            ("3;\r\nabc\r\n", Err(400)),
            ("3;a=\r\nabc\r\n", Err(400)),
            ("3;a\nabc\r\n", Err(400)),
            ("3;a=\"b\r\n", Err(400)),
            ("3;aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", Err(400)),
            ("00000000000000000003\r\nabc\r\n0\r\n\r\n", Ok(Some(("abc", 32)))),
            ("000000000000000000000000000000000", Err(400)),
            ("fffffffffffffffff\r\n", Err(400)),
            ("ffffffffffffffff\r\n", Err(413)),
            ("41\r\n", Err(413)),
            ("0\r\n X: y\r\n\r\n", Err(400)),
            ("0\r\nX : y\r\n\r\n", Err(400)),
            ("0\r\nX\r\n\r\n", Err(400)),
            ("0\r\nX: a\nY: b\r\n\r\n", Err(400)),
            ("0\r\nX: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", Err(431)),
            ("0\r\n\n", Err(400)),
            ("0\r\nabc", Ok(None)),
        ] {
            check(BodyFraming::Chunked, input, expect);
        }
    }
}
