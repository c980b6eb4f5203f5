//! Content that is compressed while it is sent.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as Task, Poll, ready};

use bytes::Bytes;
use wire::http::Fields;

use super::Encoders;
use super::encoder::{ContentEncoder, Flush};
use crate::handler::{ContentSource, ContentStream, Filled, ProducedContent};
use crate::memory_budget::Charge;

/// Size of the pieces that a worker compresses itself.
const PIECE_BYTES: usize = 16 << 10;

/// Size of the pieces that threads compress: each costs a change of threads.
const AWAY_PIECE_BYTES: usize = 128 << 10;

/// A response in compression.
pub(super) struct CompressedContent {
    encoders: Rc<Encoders>,
    /// Content before that of the stream.
    beginning: Bytes,
    /// `None` after the end of the content.
    stream: Option<ContentStream>,
    work: Work,
    /// Content that was not compressed yet.
    input: Vec<u8>,
    /// True if the encoder may hold content that the client can't decode yet.
    is_unflushed: bool,
    /// Compressed content.
    output: ProducedContent,
    trailers: Option<Box<Fields>>,
    /// Bytes of content so far. The worker compresses the first ones, threads the others.
    content_bytes: usize,
    /// Charge for the encoder and the buffers.
    _charge: Option<Charge>,
}

/// Place of the encoder.
enum Work {
    Here(Box<ContentEncoder>),
    /// A thread compresses a piece.
    Away(Pin<Box<dyn Future<Output = Option<Worked>>>>),
    /// The content is complete.
    Ended,
}

/// Result of a thread.
struct Worked {
    encoder: Box<ContentEncoder>,
    /// Empty buffer for further content.
    input: Vec<u8>,
    output: Vec<u8>,
    result: io::Result<()>,
    flush: Flush,
}

impl CompressedContent {
    /// Compresses content that begins with `beginning`.
    pub(super) fn new(
        encoders: &Rc<Encoders>,
        encoder: ContentEncoder,
        beginning: Bytes,
        stream: Option<ContentStream>,
        charge: Option<Charge>,
    ) -> Self {
        Self {
            encoders: Rc::clone(encoders),
            beginning,
            stream,
            work: Work::Here(Box::new(encoder)),
            input: Vec::new(),
            is_unflushed: false,
            output: ProducedContent::default(),
            trailers: None,
            content_bytes: 0,
            _charge: charge,
        }
    }

    /// Gathers content up to the size of a piece, or until the source pauses. Returns what to do then.
    fn poll_gather(&mut self, task: &mut Task<'_>) -> Poll<io::Result<Flush>> {
        let is_here = self.content_bytes < self.encoders.worker_bytes_max;
        let piece_bytes = if is_here { PIECE_BYTES } else { AWAY_PIECE_BYTES };
        let taken = self.beginning.split_to(self.beginning.len().min(piece_bytes - self.input.len().min(piece_bytes)));
        self.input.extend_from_slice(&taken);
        while self.input.len() < piece_bytes {
            let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(Flush::End)) };
            let room = piece_bytes - self.input.len();
            match stream.poll_append(task, &mut self.input, room) {
                Poll::Ready(Ok(Filled::Content(_))) => {}
                Poll::Ready(Ok(Filled::End(trailers))) => {
                    self.trailers = trailers;
                    self.stream = None;
                    return Poll::Ready(Ok(Flush::End));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                // The client gets now what there is.
                Poll::Pending if !self.input.is_empty() || self.is_unflushed => return Poll::Ready(Ok(Flush::Now)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(Flush::Later))
    }

    /// Compresses the gathered content: at once, or in a thread if the response is long.
    fn compress(&mut self, flush: Flush) -> io::Result<()> {
        self.is_unflushed = flush == Flush::Later;
        let is_here = self.content_bytes < self.encoders.worker_bytes_max || self.input.len() <= PIECE_BYTES;
        self.content_bytes = self.content_bytes.saturating_add(self.input.len());
        match (&mut self.work, is_here) {
            (Work::Here(encoder), true) => {
                encoder.encode(&self.input, flush, &mut self.output.bytes)?;
                self.input.clear();
                if flush == Flush::End {
                    self.end();
                }
            }
            (Work::Here(_), false) => {
                if let Work::Here(encoder) = std::mem::replace(&mut self.work, Work::Ended) {
                    let (input, output) = (std::mem::take(&mut self.input), std::mem::take(&mut self.output.bytes));
                    self.work = Work::Away(Box::pin(self.encoders.away(encode_away(encoder, input, output, flush))));
                }
            }
            (Work::Away(_) | Work::Ended, _) => {}
        }
        Ok(())
    }

    /// Takes the result of a thread.
    fn on_worked(&mut self, worked: Option<Worked>) -> io::Result<()> {
        let Worked { encoder, input, output, result, flush } = worked.ok_or(io::ErrorKind::Other)?;
        result?;
        (self.work, self.input, self.output.bytes) = (Work::Here(encoder), input, output);
        if flush == Flush::End {
            self.end();
        }
        Ok(())
    }

    /// Keeps the encoder for another response.
    fn end(&mut self) {
        if let Work::Here(encoder) = std::mem::replace(&mut self.work, Work::Ended) {
            self.encoders.put(*encoder);
        }
        self.input = Vec::new();
    }
}

fn encode_away(
    mut encoder: Box<ContentEncoder>,
    mut input: Vec<u8>,
    mut output: Vec<u8>,
    flush: Flush,
) -> impl FnOnce() -> Worked + Send + 'static {
    move || {
        let result = encoder.encode(&input, flush, &mut output);
        input.clear();
        Worked { encoder, input, output, result, flush }
    }
}

impl ContentSource for CompressedContent {
    fn poll_fill(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<Filled>> {
        loop {
            if let count @ 1.. = self.output.take(buffer) {
                return Poll::Ready(Ok(Filled::Content(count)));
            }
            match &mut self.work {
                Work::Away(worked) => {
                    let worked = ready!(worked.as_mut().poll(task));
                    self.on_worked(worked)?;
                }
                Work::Ended => return Poll::Ready(Ok(Filled::End(self.trailers.take()))),
                Work::Here(_) => {
                    let flush = ready!(self.poll_gather(task))?;
                    self.compress(flush)?;
                }
            }
        }
    }

    fn poll_ahead(&mut self, task: &mut Task<'_>) {
        if let Some(stream) = &mut self.stream {
            stream.source.poll_ahead(task);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::poll_fn;
    use std::io::Read;
    use std::task::Waker;

    use wire::http::ContentCoding;

    use super::*;
    use crate::config::CompressionLevel;

    /// Source of pieces; an empty one is a pause.
    struct Pieces(VecDeque<Vec<u8>>);

    impl ContentSource for Pieces {
        fn poll_fill(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<Filled>> {
            let Some(mut piece) = self.0.pop_front() else { return Poll::Ready(Ok(Filled::End(None))) };
            if piece.is_empty() {
                task.waker().wake_by_ref();
                return Poll::Pending;
            }
            let count = piece.len().min(buffer.len());
            buffer[..count].copy_from_slice(&piece[..count]);
            let rest = piece.split_off(count);
            if !rest.is_empty() {
                self.0.push_front(rest);
            }
            Poll::Ready(Ok(Filled::Content(count)))
        }
    }

    fn content(pieces: &[&[u8]], length: Option<u64>, worker_bytes_max: usize) -> CompressedContent {
        let encoders = Rc::new(Encoders { worker_bytes_max, ..Encoders::without_store() });
        let encoder = ContentEncoder::new(ContentCoding::Gzip, CompressionLevel::Balanced).unwrap();
        let source = Box::new(Pieces(pieces.iter().map(|piece| piece.to_vec()).collect()));
        let stream = Some(ContentStream { source, length });
        CompressedContent::new(&encoders, encoder, Bytes::from_static(b"begin "), stream, None)
    }

    fn unzip(bytes: &[u8]) -> Vec<u8> {
        let (mut plain, mut byte) = (Vec::new(), [0]);
        let mut decoder = flate2::read::GzDecoder::new(bytes);
        while let Ok(1) = decoder.read(&mut byte) {
            plain.extend_from_slice(&byte);
        }
        plain
    }

    #[test]
    fn a_pause_of_the_source_flushes() {
        let mut content = content(&[b"one ", b"", b"two ", b"", b""], None, usize::MAX);
        let task = &mut Task::from_waker(Waker::noop());
        let (mut received, mut buffer) = (Vec::new(), [0; 1000]);
        for expect in ["begin one ", "begin one two "] {
            while let Poll::Ready(Ok(Filled::Content(count))) = content.poll_fill(task, &mut buffer) {
                received.extend_from_slice(&buffer[..count]);
                if String::from_utf8(unzip(&received)).unwrap() == expect {
                    break;
                }
            }
            assert_eq!(String::from_utf8(unzip(&received)).unwrap(), expect);
        }
        assert!(content.poll_fill(task, &mut buffer).is_pending(), "nothing was there to flush");
    }

    #[tokio::test]
    async fn long_content_is_compressed_in_threads() {
        let piece = vec![b'a'; 100_000];
        for (worker_bytes_max, buffer_bytes) in [(0, 7), (0, 70_000), (20_000, 1_000), (usize::MAX, 1_000)] {
            let mut content = content(&[&piece, b"", &piece, b"end"], Some(200_003), worker_bytes_max);
            let (mut received, mut buffer) = (Vec::new(), vec![0; buffer_bytes]);
            while let Filled::Content(count) = poll_fn(|task| content.poll_fill(task, &mut buffer)).await.unwrap() {
                received.extend_from_slice(&buffer[..count]);
            }
            let expect = [b"begin ", &piece[..], &piece, b"end"].concat();
            assert!(unzip(&received) == expect, "{worker_bytes_max} {buffer_bytes}");
        }
    }

    #[test]
    fn content_that_is_cut_off_does_not_look_complete() {
        let mut content = content(&[b"one"], Some(4), usize::MAX);
        let task = &mut Task::from_waker(Waker::noop());
        let mut buffer = [0; 1000];
        let Poll::Ready(Err(error)) = content.poll_fill(task, &mut buffer) else { panic!() };
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
