//! Compressing what has no precompressed file beside it: once, when it is first asked for.

use std::io::{self, Write};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;
use wire::http::Coding;

use super::FileTree;
use super::content_type::content_type;
use super::heads::Description;
use crate::object_cache::{Content, Object, OpenFile, Representation};

/// Levels at which a text of some tens of KiB takes about a millisecond.
const BROTLI_QUALITY: i32 = 5;
const ZSTD_LEVEL: i32 = 6;
const GZIP_LEVEL: u32 = 6;

/// Brotli's window, at most: 4 MiB, the most that browsers take without a word.
const BROTLI_WINDOW_BITS_MAX: u32 = 22;
/// Of the threads that compress: what is in memory already comes first.
const NICENESS: i32 = 10;

/// The smallest that there is (RFC 7932, section 9.1).
const BROTLI_WINDOW_BITS_MIN: u32 = 10;

impl FileTree {
    /// Makes the representation with this coding, unless another does already, or it isn't worth it.
    ///
    /// The client that asks first waits for it: that takes a few milliseconds once, and less than it would take to send
    /// the longer content over most networks; and what a client gets doesn't depend on who came before. Only when as
    /// many compressions are under way as there are cores, so that it would have to queue, it gets what is there.
    pub(super) async fn make_coding(self: &Arc<Self>, object: &Arc<Object>, coding: Coding) {
        let (tree, object) = (Arc::clone(self), Arc::clone(object));
        // A task of its own: should this client go, what was made for it is there for the next, and isn't begun again.
        let making = tokio::spawn(async move { tree.fill_coding(&object, coding).await });
        // An error is a panic; then there is no coding, either.
        let _ = making.await;
    }

    async fn fill_coding(self: &Arc<Self>, object: &Arc<Object>, coding: Coding) {
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

    /// `None` if the content doesn't get smaller.
    fn compress(&self, object: &Object, coding: Coding) -> Result<Option<Representation>, NotNow> {
        let identity = object.identity();
        let plain = match &identity.content {
            Content::Memory(bytes) => bytes.clone(),
            Content::File(file) => read_unchanged(file).ok_or(NotNow)?,
        };
        let Ok(compressed) = compress(&plain, coding) else { return Ok(None) };
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
        Ok(Some(description.represent(coding, &etag, Content::Memory(compressed.into()))))
    }
}

/// It can't be made at present.
struct NotNow;

/// Does something in a thread that ends with it. An encoder takes megabytes, and allocators leave what a thread has given back
/// with that thread: with many that wait for other work, as those of a pool do, that was ten times the limit of the cache. `None`
/// if the system has no thread, or it panics.
async fn in_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = oneshot::channel();
    let thread = std::thread::Builder::new().name("compress".to_owned());
    let started = thread.spawn(move || {
        // Workers come first. Fails only where a sandbox forbids it.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        // Who waited may have gone.
        let _ = sender.send(work());
    });
    started.ok()?;
    receiver.await.ok()
}

fn read_unchanged(file: &OpenFile) -> Option<Bytes> {
    let bytes = file.read_whole().ok()?;
    (bytes.len() as u64 == file.identity.size && file.is_unchanged()).then_some(bytes)
}

/// The entity tag of a representation that was made of the one with this tag: another (RFC 9110, section 8.8.3.3).
fn with_suffix(etag: &str, coding: Coding) -> String {
    match etag.strip_suffix('"') {
        Some(open) => format!("{open}-{}\"", coding.name()),
        None => String::new(),
    }
}

fn compress(plain: &[u8], coding: Coding) -> io::Result<Vec<u8>> {
    let out = Vec::with_capacity(plain.len() / 3);
    match coding {
        Coding::Identity => Ok(plain.to_vec()),
        Coding::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::new(GZIP_LEVEL));
            encoder.write_all(plain)?;
            encoder.finish()
        }
        Coding::Brotli => {
            let parameters = brotli::enc::BrotliEncoderParams {
                quality: BROTLI_QUALITY,
                lgwin: brotli_window_bits(plain.len()) as i32,
                size_hint: plain.len(),
                ..Default::default()
            };
            let mut out = out;
            brotli::BrotliCompress(&mut &*plain, &mut out, &parameters)?;
            Ok(out)
        }
        Coding::Zstd => zstd::bulk::compress(plain, ZSTD_LEVEL),
    }
}

/// As large as the content, for which a larger one would be of no use: the encoder has twice of it in memory.
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
            let compressed = compress(&text[..length], Coding::Brotli).unwrap();
            let mut plain = Vec::new();
            brotli::BrotliDecompress(&mut &*compressed, &mut plain).unwrap();
            assert_eq!(plain, &text[..length], "{length}");
        }
    }
}
