//! Response buffering: reads ahead when a client is slower than its upstream, so that the upstream can finish.

use std::io;
use std::rc::Rc;
use std::task::{Context as Task, Poll, ready};

use wire::http::Fields;

use super::{ForwardInner, READ_BYTES, number_of};
use crate::handler::{ClientLink, ContentSource, Filled};
use crate::log::LogClient;
use crate::spool::Spool;

/// Reads in a turn, of 64 KiB at most. A fast upstream must not delay other connections.
const READS_PER_TURN_MAX: u32 = 4;

/// Content of a response that is read ahead if its client is slow. Otherwise nothing is copied.
pub(super) struct ReadAhead<S> {
    source: S,
    inner: Rc<ForwardInner>,
    link: Rc<ClientLink>,
    client: LogClient,
    /// `None` while the client keeps up.
    ahead: Option<Box<Ahead>>,
}

/// Content that was read ahead.
struct Ahead {
    spool: Spool,
    end: Option<Result<Option<Box<Fields>>, io::ErrorKind>>,
}

impl<S: ContentSource> ReadAhead<S> {
    pub(super) fn new(source: S, inner: Rc<ForwardInner>, link: Rc<ClientLink>, client: LogClient) -> Self {
        Self { source, inner, link, client, ahead: None }
    }
}

/// True if a response with these fields may be read ahead, where the configuration `allows` it. Event streams and
/// gRPC calls have no end to read up to.
pub(super) fn may_read_ahead(fields: &Fields, allows: bool) -> bool {
    if !allows {
        return false;
    }
    let content_type = fields.get("content-type").unwrap_or_default();
    let is = |prefix: &[u8]| content_type.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    if is(b"text/event-stream") || is(b"application/grpc") {
        return false;
    }
    // The field with which applications turn buffering off in nginx.
    !fields.get("x-accel-buffering").is_some_and(|value| value.eq_ignore_ascii_case(b"no"))
}

impl<S: ContentSource> ContentSource for ReadAhead<S> {
    fn poll_fill(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<Filled>> {
        let Some(ahead) = &mut self.ahead else { return self.source.poll_fill(task, buffer) };
        let bytes = ready!(ahead.spool.poll_peek(task))?;
        if !bytes.is_empty() {
            let count = bytes.len().min(buffer.len());
            buffer[..count].copy_from_slice(&bytes[..count]);
            ahead.spool.consume(count);
            return Poll::Ready(Ok(Filled::Content(count)));
        }
        match &mut ahead.end {
            Some(Ok(trailers)) => Poll::Ready(Ok(Filled::End(trailers.take()))),
            Some(Err(kind)) => Poll::Ready(Err((*kind).into())),
            // The client has caught up.
            None => {
                self.ahead = None;
                self.source.poll_fill(task, buffer)
            }
        }
    }

    fn poll_ahead(&mut self, task: &mut Task<'_>) {
        let Self { source, inner, link, client, ahead } = self;
        let plan = &inner.plan;
        let new = || {
            let spool = Spool::new(&plan.spools, number_of(*client), link.holder(), plan.buffer_limits, false);
            Box::new(Ahead { spool, end: None })
        };
        let Ahead { spool, end } = &mut **ahead.get_or_insert_with(new);
        for _ in 0..READS_PER_TURN_MAX {
            if end.is_some() {
                return;
            }
            // Without space, the upstream waits as it does without a buffer.
            let Poll::Ready(Ok(room)) = spool.poll_room(task) else { return };
            let mut input = inner.worker.buffer.lend(room.min(READ_BYTES));
            match source.poll_fill(task, &mut input) {
                Poll::Pending => return,
                Poll::Ready(Ok(Filled::Content(count))) => spool.append(&input[..count]),
                Poll::Ready(Ok(Filled::End(trailers))) => *end = Some(Ok(trailers)),
                Poll::Ready(Err(error)) => *end = Some(Err(error.kind())),
            }
        }
        task.waker().wake_by_ref();
    }
}
