//! Compression of files that have no precompressed sibling: once, at the first request.

use std::io::{self, Write};
use std::sync::Arc;

use bytes::Bytes;
use wire::http::ContentCoding;

use super::FileTree;
use super::content_type::content_type;
use super::heads::Description;
use crate::config::CompressionLevel;
use crate::handler::compression::in_thread;
use crate::object_cache::{Object, ObjectContent, OpenFile, Representation};

/// Levels of the encoders.
struct Levels {
    brotli: i32,
    zstd: i32,
    gzip: u32,
}

/// Levels of files, which are compressed once. At the balanced ones, some tens of KiB of text take about a millisecond.
const fn levels(level: CompressionLevel) -> Levels {
    match level {
        CompressionLevel::Fast => Levels { brotli: 1, zstd: 1, gzip: 1 },
        CompressionLevel::Balanced => Levels { brotli: 5, zstd: 6, gzip: 6 },
        CompressionLevel::Best => Levels { brotli: 9, zstd: 15, gzip: 9 },
    }
}

/// Largest Brotli window: 4 MiB, the most that all browsers accept.
const BROTLI_WINDOW_BITS_MAX: u32 = 22;
/// Smallest Brotli window (RFC 7932, section 9.1).
const BROTLI_WINDOW_BITS_MIN: u32 = 10;

impl FileTree {
    /// Makes the representation with this coding, unless that is in progress or not worth it.
    ///
    /// The first client that asks waits for it, a few milliseconds once. On most networks that is less than sending
    /// the longer content takes; and so no response depends on earlier clients. If as many compressions are in
    /// progress as there are cores, the client gets an existing representation instead of waiting.
    pub(super) async fn make_coding(self: &Arc<Self>, object: &Arc<Object>, coding: ContentCoding) {
        let (tree, object) = (Arc::clone(self), Arc::clone(object));
        // A task of its own: if this client leaves, the result is kept for the next one, and the work is not
        // repeated.
        let making = tokio::spawn(async move { tree.fill_coding(&object, coding).await });
        // An error is a panic; then there is no coding, either.
        let _ = making.await;
    }

    async fn fill_coding(self: &Arc<Self>, object: &Arc<Object>, coding: ContentCoding) {
        let Some(cell) = object.codings().and_then(|codings| codings.cell(coding)) else { return };
        let made = cell.get_or_try_init(async || {
            let Ok(_permit) = self.store.compressions().try_acquire() else { return Err(NotNow) };
            let (tree, object) = (Arc::clone(self), Arc::clone(object));
            in_thread(move || tree.compress(&object, coding)).await.unwrap_or(Err(NotNow))
        });
        if let Ok(Some(_)) = made.await {
            self.store.recount(object);
        }
    }

    /// Compresses the object's content; `None` if it does not get smaller.
    fn compress(&self, object: &Object, coding: ContentCoding) -> Result<Option<Box<Representation>>, NotNow> {
        let identity = object.identity();
        let plain = match &identity.content {
            ObjectContent::Memory(bytes) => bytes.clone(),
            ObjectContent::File(file) => read_unchanged(file).ok_or(NotNow)?,
        };
        let Ok(compressed) = compress(&plain, coding, &levels(self.files.compress_level)) else { return Ok(None) };
        if compressed.len() >= plain.len() {
            return Ok(None);
        }
        let path = [self.files.strip_prefix.as_bytes(), object.path()].concat();
        let description = Description {
            tree: self,
            path: &path,
            content_type: &content_type(&self.files, object.file_name()),
            varies: true,
            last_modified_unix_seconds: object.last_modified_unix_seconds,
        };
        let etag = with_suffix(&identity.etag, coding);
        Ok(Some(Box::new(description.represent(coding, &etag, ObjectContent::Memory(compressed.into())))))
    }
}

/// Error: the coding can't be made at present.
struct NotNow;

fn read_unchanged(file: &OpenFile) -> Option<Bytes> {
    let bytes = file.read_whole().ok()?;
    (bytes.len() as u64 == file.identity.size && file.is_unchanged()).then_some(bytes)
}

/// Entity tag of a representation made from the one with this tag; it must differ (RFC 9110, section 8.8.3.3).
fn with_suffix(etag: &str, coding: ContentCoding) -> String {
    match etag.strip_suffix('"') {
        Some(open) => format!("{open}-{}\"", coding.name()),
        None => String::new(),
    }
}

fn compress(plain: &[u8], coding: ContentCoding, levels: &Levels) -> io::Result<Vec<u8>> {
    let out = Vec::with_capacity(plain.len() / 3);
    match coding {
        ContentCoding::Identity => Ok(plain.to_vec()),
        ContentCoding::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::new(levels.gzip));
            encoder.write_all(plain)?;
            encoder.finish()
        }
        ContentCoding::Brotli => {
            let parameters = brotli::enc::BrotliEncoderParams {
                quality: levels.brotli,
                lgwin: brotli_window_bits(plain.len()) as i32,
                size_hint: plain.len(),
                ..Default::default()
            };
            let mut out = out;
            brotli::BrotliCompress(&mut &*plain, &mut out, &parameters)?;
            Ok(out)
        }
        ContentCoding::Zstd => zstd::bulk::compress(plain, levels.zstd),
    }
}

/// Window size for this content: no larger than the content, because the encoder allocates twice the window.
fn brotli_window_bits(content_bytes: usize) -> u32 {
    // RFC 7932, section 9.1: the window is 16 bytes less than the power of two.
    let bits = content_bytes.saturating_add(16).next_power_of_two().trailing_zeros();
    bits.clamp(BROTLI_WINDOW_BITS_MIN, BROTLI_WINDOW_BITS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_hold_the_content() {
        for (bytes, expect) in [(0, 10), (1_008, 10), (1_009, 11), (100 << 10, 17), (4 << 20, 22), (1 << 30, 22)] {
            assert_eq!(brotli_window_bits(bytes), expect, "{bytes}");
        }
    }

    #[test]
    fn what_was_compressed_comes_back() {
        let mut words = fastrand::Rng::with_seed(1);
        let text: Vec<u8> = (0..200_000).map(|_| b"abcdefgh "[words.usize(..9)]).collect();
        for length in [0, 1, 1_000, 1_008, 1_009, 65_520, 65_521, 200_000] {
            let compressed =
                compress(&text[..length], ContentCoding::Brotli, &levels(CompressionLevel::Balanced)).unwrap();
            let mut plain = Vec::new();
            brotli::BrotliDecompress(&mut &*compressed, &mut plain).unwrap();
            assert_eq!(plain, &text[..length], "{length}");
        }
    }
}
