//! Encoders of the three content codings, for content that arrives in pieces.

use std::io::{self, Write};

use brotli::CompressorWriter;
use flate2::{Compress, Compression, FlushCompress, Status};
use wire::http::ContentCoding;
use zstd::stream::raw::{self, CParameter, InBuffer, Operation, OutBuffer};

use crate::config::CompressionLevel;

/// Space that an encoder gets for its next output, at least.
const OUTPUT_BYTES_MIN: usize = 4 << 10;

/// Windows of 128 KiB: larger ones make pages hardly smaller, but encoders larger.
const WINDOW_BITS: u32 = 17;

/// Entries of Zstandard's tables, in bits: half a MiB in total.
const ZSTD_TABLE_BITS: u32 = 16;

/// Window of gzip: 32 KiB, the only one that all decoders accept.
const GZIP_WINDOW_BITS: u8 = 15;

/// Buffer within a Brotli encoder, for its output.
const BROTLI_BUFFER_BYTES: usize = 4 << 10;

/// Action after a piece of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flush {
    /// More content follows; the encoder may keep all of it.
    Later,
    /// The client must be able to decode all content so far.
    Now,
    /// The content is complete.
    End,
}

/// ContentEncoder of one response's content.
pub(super) struct ContentEncoder {
    coding: ContentCoding,
    level: CompressionLevel,
    kind: EncoderKind,
}

enum EncoderKind {
    Gzip(Compress),
    Zstd(raw::Encoder<'static>),
    /// `None` after the end.
    Brotli(Option<Box<CompressorWriter<Vec<u8>>>>),
}

impl ContentEncoder {
    /// Creates an encoder.
    ///
    /// # Errors
    /// The library accepts no such parameters, or there is no such coding.
    pub(super) fn new(coding: ContentCoding, level: CompressionLevel) -> io::Result<Self> {
        let kind = match coding {
            ContentCoding::Identity => return Err(io::ErrorKind::InvalidInput.into()),
            ContentCoding::Gzip => {
                EncoderKind::Gzip(Compress::new_gzip(Compression::new(gzip_level(level)), GZIP_WINDOW_BITS))
            }
            ContentCoding::Zstd => {
                let mut encoder = raw::Encoder::new(zstd_level(level))?;
                encoder.set_parameter(CParameter::WindowLog(WINDOW_BITS))?;
                encoder.set_parameter(CParameter::HashLog(ZSTD_TABLE_BITS))?;
                encoder.set_parameter(CParameter::ChainLog(ZSTD_TABLE_BITS))?;
                EncoderKind::Zstd(encoder)
            }
            ContentCoding::Brotli => EncoderKind::Brotli(Some(brotli(level))),
        };
        Ok(Self { coding, level, kind })
    }

    /// True if the encoder is for this coding and level.
    pub(super) fn is_for(&self, coding: ContentCoding, level: CompressionLevel) -> bool {
        (self.coding, self.level) == (coding, level)
    }

    /// Prepares the encoder for other content. Returns `false` if a new one costs less.
    pub(super) fn reset(&mut self) -> bool {
        match &mut self.kind {
            EncoderKind::Gzip(compress) => {
                compress.reset();
                true
            }
            EncoderKind::Zstd(encoder) => encoder.reinit().is_ok(),
            EncoderKind::Brotli(_) => false,
        }
    }

    /// Approximate memory of the encoder, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        match self.kind {
            EncoderKind::Gzip(_) => 300 << 10,
            EncoderKind::Zstd(_) => 1 << 20,
            EncoderKind::Brotli(_) => 2 << 20,
        }
    }

    /// Encodes a piece of content and appends the output so far.
    ///
    /// # Errors
    /// The library reports a failure. The content can't be completed.
    pub(super) fn encode(&mut self, input: &[u8], flush: Flush, out: &mut Vec<u8>) -> io::Result<()> {
        match &mut self.kind {
            EncoderKind::Gzip(compress) => encode_gzip(compress, input, flush, out),
            EncoderKind::Zstd(encoder) => encode_zstd(encoder, input, flush, out),
            EncoderKind::Brotli(writer) => encode_brotli(writer, input, flush, out),
        }
    }
}

/// Encodes complete content.
///
/// # Errors
/// As [`ContentEncoder::encode`].
pub(super) fn encode_whole(encoder: &mut ContentEncoder, content: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity((content.len() / 3).max(OUTPUT_BYTES_MIN));
    encoder.encode(content, Flush::End, &mut out)?;
    Ok(out)
}

fn gzip_level(level: CompressionLevel) -> u32 {
    match level {
        CompressionLevel::Fast => 1,
        CompressionLevel::Balanced => 4,
        CompressionLevel::Best => 9,
    }
}

fn zstd_level(level: CompressionLevel) -> i32 {
    match level {
        CompressionLevel::Fast => 1,
        CompressionLevel::Balanced => 3,
        CompressionLevel::Best => 9,
    }
}

fn brotli(level: CompressionLevel) -> Box<CompressorWriter<Vec<u8>>> {
    let quality = match level {
        CompressionLevel::Fast => 1,
        CompressionLevel::Balanced => 4,
        CompressionLevel::Best => 6,
    };
    Box::new(CompressorWriter::new(Vec::new(), BROTLI_BUFFER_BYTES, quality, WINDOW_BITS))
}

fn encode_gzip(compress: &mut Compress, input: &[u8], flush: Flush, out: &mut Vec<u8>) -> io::Result<()> {
    let action = match flush {
        Flush::Later => FlushCompress::None,
        Flush::Now => FlushCompress::Sync,
        Flush::End => FlushCompress::Finish,
    };
    let mut consumed = 0;
    loop {
        if out.capacity() - out.len() < OUTPUT_BYTES_MIN / 2 {
            out.reserve(OUTPUT_BYTES_MIN);
        }
        let before = compress.total_in();
        let status = compress.compress_vec(&input[consumed..], out, action).map_err(io::Error::other)?;
        consumed += usize::try_from(compress.total_in() - before).unwrap_or(0);
        // Space that is left over shows that the encoder has no more output.
        let has_all = consumed == input.len() && out.len() < out.capacity();
        match (flush, status) {
            (Flush::End, Status::StreamEnd) => return Ok(()),
            (Flush::Later | Flush::Now, _) if has_all => return Ok(()),
            _ => {}
        }
    }
}

fn encode_zstd(encoder: &mut raw::Encoder<'static>, input: &[u8], flush: Flush, out: &mut Vec<u8>) -> io::Result<()> {
    let mut input = InBuffer::around(input);
    loop {
        if out.capacity() - out.len() < OUTPUT_BYTES_MIN / 2 {
            out.reserve(OUTPUT_BYTES_MIN);
        }
        let start = out.len();
        let mut output = OutBuffer::around_pos(out, start);
        let remaining = if input.pos() < input.src.len() {
            encoder.run(&mut input, &mut output)?;
            usize::from(input.pos() < input.src.len() || flush != Flush::Later)
        } else {
            match flush {
                Flush::Later => 0,
                Flush::Now => encoder.flush(&mut output)?,
                Flush::End => encoder.finish(&mut output, true)?,
            }
        };
        if remaining == 0 {
            return Ok(());
        }
    }
}

fn encode_brotli(
    writer: &mut Option<Box<CompressorWriter<Vec<u8>>>>,
    input: &[u8],
    flush: Flush,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let Some(encoder) = writer else { return Err(io::ErrorKind::InvalidInput.into()) };
    encoder.write_all(input)?;
    match flush {
        Flush::Later => out.append(encoder.get_mut()),
        Flush::Now => {
            encoder.flush()?;
            out.append(encoder.get_mut());
        }
        Flush::End => {
            if let Some(encoder) = writer.take() {
                out.append(&mut encoder.into_inner());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    const CODINGS: [ContentCoding; 3] = [ContentCoding::Gzip, ContentCoding::Zstd, ContentCoding::Brotli];

    /// Decodes as much as is there; an incomplete end is no error.
    fn decode(coding: ContentCoding, encoded: &[u8]) -> Vec<u8> {
        let mut reader: Box<dyn Read + '_> = match coding {
            ContentCoding::Gzip => Box::new(flate2::read::GzDecoder::new(encoded)),
            ContentCoding::Zstd => Box::new(zstd::stream::read::Decoder::new(encoded).unwrap()),
            _ => Box::new(brotli::Decompressor::new(encoded, 4096)),
        };
        let (mut plain, mut piece) = (Vec::new(), [0; 1024]);
        while let Ok(count @ 1..) = reader.read(&mut piece) {
            plain.extend_from_slice(&piece[..count]);
        }
        plain
    }

    fn text(bytes: usize) -> Vec<u8> {
        let mut words = fastrand::Rng::with_seed(1);
        (0..bytes).map(|_| b"abcdefgh "[words.usize(..9)]).collect()
    }

    #[test]
    fn content_comes_back_whole_and_in_pieces() {
        let text = text(300_000);
        for coding in CODINGS {
            for level in CompressionLevel::NAMES.map(CompressionLevel::from_name) {
                let mut encoder = ContentEncoder::new(coding, level).unwrap();
                for length in [0, 1, 5_000, 300_000] {
                    let whole = encode_whole(&mut encoder, &text[..length]).unwrap();
                    assert_eq!(decode(coding, &whole), &text[..length], "{coding:?} {level:?} {length}");
                    if !encoder.reset() {
                        encoder = ContentEncoder::new(coding, level).unwrap();
                    }
                }
                let mut out = Vec::new();
                for piece in text.chunks(10_000) {
                    encoder.encode(piece, Flush::Later, &mut out).unwrap();
                }
                encoder.encode(b"", Flush::End, &mut out).unwrap();
                assert_eq!(decode(coding, &out), text, "{coding:?} {level:?}");
                assert!(out.len() < text.len() * 3 / 4, "{coding:?} {level:?} {}", out.len());
            }
        }
    }

    #[test]
    fn flushed_content_can_be_decoded() {
        let text = text(50_000);
        for coding in CODINGS {
            let mut encoder = ContentEncoder::new(coding, CompressionLevel::Balanced).unwrap();
            let (mut out, mut at) = (Vec::new(), 0);
            for length in [1, 10, 4_000, 20_000, 3] {
                encoder.encode(&text[at..at + length], Flush::Now, &mut out).unwrap();
                at += length;
                assert_eq!(decode(coding, &out), &text[..at], "{coding:?} {at}");
            }
        }
    }
}
