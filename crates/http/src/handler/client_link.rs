//! Connection between a handler and its client while a request is handled, in any version of HTTP.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context as Task, Poll, Waker, ready};

use wire::h1::BodyFraming;
use wire::http::forwarding::is_same_field;
use wire::http::{Fields, Status};

use super::{FileRejection, Forwarding};
use crate::known_clients::BotReport;
use crate::memory_budget::{Charge, Holder, HolderSource};
use crate::metrics::HandlerKind;
use crate::spool::Spool;

/// Link between a client and the handler of its request: the request's content, interim responses, and the deadline
/// for the response.
///
/// The connection supplies content only when the handler wants some. So a client can't fill memory, and its content
/// is read no faster than it is used. If content can't be read (malformed, too slow, cut short), the connection drops
/// the handler's future: a handler never sees the end of incomplete content.
#[derive(Debug)]
pub struct ClientLink {
    framing: Cell<BodyFraming>,
    body_bytes_max: Cell<u64>,
    /// Address that the client connected to, if servers get it in the PROXY protocol.
    destination: OnceCell<Box<SocketAddr>>,
    forwarding: RefCell<Forwarding>,
    /// Authenticated user.
    user: OnceCell<Box<[u8]>>,
    /// Memory account of the connection, once memory was charged to it.
    holder: OnceCell<Rc<Holder>>,
    /// Source of the memory account; `None` if memory is not counted.
    holder_source: Option<HolderSource>,
    /// Names of fields that only Tailcoat sets.
    forbidden_trailers: OnceCell<Box<[Box<str>]>>,
    /// True if the content that the handler takes is copied.
    has_copies: Cell<bool>,
    state: RefCell<ClientLinkState>,
}

#[derive(Debug, Default)]
struct ClientLinkState {
    /// Received content that was not taken: `buffer[unread]`.
    buffer: Vec<u8>,
    unread: Range<usize>,
    /// Content from a handler that replaces the client's, and the number of bytes taken.
    replacement: Option<(Vec<u8>, usize)>,
    /// Charge for the replacement.
    replacement_charge: Option<Charge>,
    /// Content that was taken and put back, and the number of bytes taken again; other content follows it.
    put_back: Option<(Vec<u8>, usize, Charge)>,
    /// Content received before the request is forwarded; the client's further content follows it.
    buffered: Option<Box<Spool>>,
    is_complete: bool,
    trailers: Option<Box<Fields>>,
    /// Copies of the content that the handler takes.
    copies: Vec<ContentCopy>,
    /// True if the handler waits for content.
    is_wanted: bool,
    has_been_read: bool,
    waker: Option<Waker>,
    interim: Vec<(Status, Fields)>,
    deadline_ms: Option<u64>,
    /// Time after which no deadline of the handler is.
    limit_ms: Option<u64>,
    is_late: bool,
    has_client_ended: bool,
}

/// A copy of a request's content, made while the handler takes it.
struct ContentCopy {
    content: Vec<u8>,
    bytes_max: usize,
    /// Called with the whole content; dropped if the content is too long or incomplete.
    on_end: Box<dyn FnOnce(Vec<u8>)>,
}

impl fmt::Debug for ContentCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContentCopy").field("bytes", &self.content.len()).finish_non_exhaustive()
    }
}

/// Cell in which a link is created on demand: most requests have no content and get their response at once.
#[derive(Clone, Debug)]
pub struct ClientLinkCell {
    link: OnceCell<Rc<ClientLink>>,
    /// Source of the connection's memory account; `None` if memory is not counted.
    holder_source: Option<HolderSource>,
    /// Number of the client's connection, unique within the worker; `None` if the request is the server's own.
    client_connection: Option<NonZeroU64>,
    /// Kind of the handler, as far as it is known.
    handler: Cell<HandlerKind>,
    /// First rejection by a handler that left the request to the next one.
    rejection: Cell<Option<FileRejection>>,
    /// True if an upstream has redirected the request internally.
    is_redirected: Cell<bool>,
    /// Assessment by the handling of bots, if there is one.
    bot: OnceCell<Rc<BotReport>>,
}

impl Default for ClientLinkCell {
    fn default() -> Self {
        let handler = Cell::new(HandlerKind::None);
        Self {
            link: OnceCell::new(),
            holder_source: None,
            client_connection: None,
            handler,
            rejection: Cell::new(None),
            is_redirected: Cell::new(false),
            bot: OnceCell::new(),
        }
    }
}

impl ClientLinkCell {
    /// Creates a cell with a link, for a request with content of at most `body_bytes_max`.
    pub fn with_content(framing: BodyFraming, body_bytes_max: u64, holder_source: Option<HolderSource>) -> Self {
        let link = ClientLink { holder_source: holder_source.clone(), ..ClientLink::new(framing, body_bytes_max) };
        Self { link: OnceCell::from(Rc::new(link)), holder_source, ..Self::default() }
    }

    /// Creates a cell without a link, for a request of a connection with this memory account.
    pub fn without_content(holder_source: HolderSource) -> Self {
        Self { holder_source: Some(holder_source), ..Self::default() }
    }

    /// Memory account of the connection; `None` if memory is not counted.
    pub fn counted_holder(&self) -> Option<Rc<Holder>> {
        self.holder_source.as_ref().map(HolderSource::holder)
    }

    /// Sets the number of the client connection.
    pub fn of_connection(self, number: NonZeroU64) -> Self {
        Self { client_connection: Some(number), ..self }
    }

    /// Number of the client's connection, unless the request is the server's own.
    pub fn client_connection(&self) -> Option<NonZeroU64> {
        self.client_connection
    }

    /// Returns the link, and creates it if there is none.
    pub fn link(&self) -> &Rc<ClientLink> {
        self.link.get_or_init(|| {
            let holder_source = self.holder_source.clone();
            Rc::new(ClientLink { holder_source, ..ClientLink::new(BodyFraming::None, u64::MAX) })
        })
    }

    /// Link, if it was created.
    pub fn get(&self) -> Option<&Rc<ClientLink>> {
        self.link.get()
    }

    /// Kind of the handler, as far as it is known.
    pub fn handler(&self) -> HandlerKind {
        self.handler.get()
    }

    /// Sets the kind of the handler.
    pub fn set_handler(&self, kind: HandlerKind) {
        self.handler.set(kind);
    }

    /// First rejection by a handler that left the request to the next one.
    pub fn rejection(&self) -> Option<FileRejection> {
        self.rejection.get()
    }

    /// Records a rejection by a handler that leaves the request to the next one; only the first is kept.
    pub fn add_rejection(&self, rejection: FileRejection) {
        self.rejection.set(self.rejection.get().or(Some(rejection)));
    }

    /// Assessment by the handling of bots; `None` without it.
    pub fn bot(&self) -> Option<&Rc<BotReport>> {
        self.bot.get()
    }

    /// Sets the assessment by the handling of bots.
    pub fn set_bot(&self, report: Rc<BotReport>) {
        // A request is assessed once.
        let _ = self.bot.set(report);
    }

    /// True if an upstream has redirected the request internally.
    pub fn is_redirected(&self) -> bool {
        self.is_redirected.get()
    }

    /// Marks the request as redirected by an upstream.
    pub fn set_redirected(&self) {
        self.is_redirected.set(true);
    }

    /// Forgets rejections: the request gets another path.
    pub fn forget_rejection(&self) {
        self.rejection.set(None);
    }
}

/// Methods for the handler.
impl ClientLink {
    fn new(framing: BodyFraming, body_bytes_max: u64) -> Self {
        let state = ClientLinkState { is_complete: framing == BodyFraming::None, ..ClientLinkState::default() };
        let body_bytes_max = Cell::new(body_bytes_max);
        Self {
            framing: Cell::new(framing),
            body_bytes_max,
            destination: OnceCell::new(),
            forwarding: RefCell::default(),
            user: OnceCell::new(),
            holder: OnceCell::new(),
            holder_source: None,
            forbidden_trailers: OnceCell::new(),
            has_copies: Cell::new(false),
            state: RefCell::new(state),
        }
    }

    /// Memory account of the connection, to which memory held for the client is charged.
    pub fn holder(&self) -> &Rc<Holder> {
        self.holder.get_or_init(|| self.holder_source.as_ref().map_or_else(Holder::uncounted, HolderSource::holder))
    }

    /// Begins to watch the connection, which must still be open, for [`Self::has_connection_closed`].
    pub fn watch_connection(&self) {
        self.holder();
    }

    /// True if the client's connection has closed since [`Self::watch_connection`]. A connection that serves further
    /// requests has not.
    pub fn has_connection_closed(&self) -> bool {
        match (&self.holder_source, self.holder.get()) {
            (Some(source), Some(holder)) => !source.is_open(holder),
            _ => false,
        }
    }

    /// Sets the content limit. The connection rejects content beyond it.
    pub fn set_body_bytes_max(&self, bytes: u64) {
        self.body_bytes_max.set(bytes);
    }

    /// Content limit in bytes.
    pub fn body_bytes_max(&self) -> u64 {
        self.body_bytes_max.get()
    }

    /// True if the head declares more content than the limit.
    pub fn is_too_large(&self) -> bool {
        matches!(self.framing.get(), BodyFraming::Length(length) if length > self.body_bytes_max())
    }

    /// Progress of the request if it is forwarded.
    pub fn forwarding(&self) -> &RefCell<Forwarding> {
        &self.forwarding
    }

    /// Framing that the head declares.
    pub fn framing(&self) -> BodyFraming {
        self.framing.get()
    }

    /// Drops the content: the request is forwarded without it.
    pub fn forget_content(&self) {
        self.framing.set(BodyFraming::None);
    }

    /// Replaces the content for the next handler.
    pub fn replace_content(&self, content: Vec<u8>) {
        self.framing.set(match content.len() {
            0 => BodyFraming::None,
            length => BodyFraming::Length(length as u64),
        });
        let charge = (content.capacity() > 0).then(|| self.holder().charge(content.capacity()));
        let mut state = self.state.borrow_mut();
        (state.replacement, state.replacement_charge) = (Some((content, 0)), charge);
    }

    /// Puts content back that was taken from the beginning, so that the next handler takes it.
    pub fn put_back(&self, content: Vec<u8>) {
        let charge = self.holder().charge(content.capacity());
        let mut state = self.state.borrow_mut();
        state.has_been_read = false;
        if !content.is_empty() {
            state.put_back = Some((content, 0, charge));
        }
    }

    /// Authenticated user, if authentication was required.
    pub fn user(&self) -> Option<&[u8]> {
        self.user.get().map(|user| &**user)
    }

    /// Sets the authenticated user.
    pub fn set_user(&self, user: &[u8]) {
        // A request names one user.
        let _ = self.user.set(user.into());
    }

    /// Address that the client connected to, for the PROXY protocol. `None` if no server needs it, or for a unix
    /// socket.
    pub fn destination(&self) -> Option<SocketAddr> {
        self.destination.get().map(|destination| **destination)
    }

    /// Passes available content to `take`, which returns the number of bytes it has used (all is best; never 0).
    /// Ready with that number, or with 0 at the end of the content. Pending if `take` is, or while there is no
    /// content.
    ///
    /// # Errors
    /// Errors of `take`.
    pub fn poll_take(
        &self,
        task: &mut Task<'_>,
        take: impl FnOnce(&mut Task<'_>, &[u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.has_copies.get() {
            return self.poll_take_copying(task, take);
        }
        self.poll_take_plain(task, take)
    }

    /// Passes a copy of the content to `on_end` when the handler has taken all of it, unless it is longer than
    /// `bytes_max`.
    pub fn copy_content(&self, bytes_max: usize, on_end: Box<dyn FnOnce(Vec<u8>)>) {
        self.has_copies.set(true);
        self.state.borrow_mut().copies.push(ContentCopy { content: Vec::new(), bytes_max, on_end });
    }

    #[cold]
    fn poll_take_copying(
        &self,
        task: &mut Task<'_>,
        take: impl FnOnce(&mut Task<'_>, &[u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut copied = Vec::new();
        let result = self.poll_take_plain(task, |task, bytes| {
            let result = take(task, bytes);
            if let Poll::Ready(Ok(count)) = result {
                copied.extend_from_slice(&bytes[..count]);
            }
            result
        });
        let mut copies = std::mem::take(&mut self.state.borrow_mut().copies);
        copies.retain(|copy| copy.content.len() + copied.len() <= copy.bytes_max);
        copies.iter_mut().for_each(|copy| copy.content.extend_from_slice(&copied));
        if !matches!(result, Poll::Ready(Err(_))) && self.is_at_end() {
            copies.drain(..).for_each(|copy| (copy.on_end)(copy.content));
        }
        self.has_copies.set(!copies.is_empty());
        self.state.borrow_mut().copies = copies;
        result
    }

    fn poll_take_plain(
        &self,
        task: &mut Task<'_>,
        take: impl FnOnce(&mut Task<'_>, &[u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut state = self.state.borrow_mut();
        state.has_been_read = true;
        if let Some((content, taken)) = &mut state.replacement {
            let rest = &content[*taken..];
            let result = if rest.is_empty() { Poll::Ready(Ok(0)) } else { take(task, rest) };
            if let Poll::Ready(Ok(count)) = result {
                *taken += count;
            }
            return result;
        }
        if let Some((content, taken, _)) = &mut state.put_back {
            let result = take(task, &content[*taken..]);
            if let Poll::Ready(Ok(count)) = result {
                *taken += count;
                if *taken == content.len() {
                    state.put_back = None;
                }
            }
            return result;
        }
        if let Some(spool) = &mut state.buffered {
            let bytes = ready!(spool.poll_peek(task))?;
            if !bytes.is_empty() {
                let result = take(task, bytes);
                if let Poll::Ready(Ok(count)) = result {
                    spool.consume(count);
                }
                return result;
            }
        }
        if state.unread.is_empty() {
            if state.is_complete {
                return Poll::Ready(Ok(0));
            }
            state.is_wanted = true;
            state.waker = Some(task.waker().clone());
            return Poll::Pending;
        }
        let result = take(task, &state.buffer[state.unread.clone()]);
        if let Poll::Ready(Ok(taken)) = result {
            state.unread.start += taken;
        }
        result
    }

    /// Marks content as being read during the response, so that the response does not wait for its end.
    pub fn read_while_answering(&self) {
        self.state.borrow_mut().has_been_read = true;
    }

    /// True if all content was taken.
    pub fn is_at_end(&self) -> bool {
        let state = self.state.borrow();
        match &state.replacement {
            Some((content, taken)) => *taken == content.len(),
            None => {
                let is_drained = state.buffered.as_ref().is_none_or(|spool| spool.is_drained());
                state.is_complete && state.unread.is_empty() && state.put_back.is_none() && is_drained
            }
        }
    }

    /// True if nothing is left to receive from the client.
    pub fn is_received(&self) -> bool {
        let state = self.state.borrow();
        state.replacement.is_some() || state.buffered.is_some() || self.framing.get() == BodyFraming::None
    }

    /// Gives the handler this content, followed by further content from the client. If there is none, the content has
    /// a known length from now on, unless trailers follow, and can be [read again](Self::rewind).
    pub fn put_buffered(&self, mut spool: Spool) {
        spool.end_upload();
        let mut state = self.state.borrow_mut();
        if state.is_complete && state.unread.is_empty() && state.trailers.is_none() {
            self.framing.set(BodyFraming::Length(spool.held_bytes()));
        } else {
            spool.forget_read();
        }
        state.buffered = Some(Box::new(spool));
    }

    /// True if content was received before the request is forwarded.
    pub fn is_buffered(&self) -> bool {
        self.state.borrow().buffered.is_some()
    }

    /// True if content can be read from its beginning: none was taken, or all of it is kept.
    pub fn can_rewind(&self) -> bool {
        let state = self.state.borrow();
        match &state.buffered {
            Some(spool) => spool.keeps_all(),
            None => !state.has_been_read,
        }
    }

    /// Goes back to the beginning of the content. Allowed only if [`Self::can_rewind`].
    pub fn rewind(&self) {
        self.state.borrow_mut().copies.iter_mut().for_each(|copy| copy.content.clear());
        if let Some(spool) = &mut self.state.borrow_mut().buffered {
            spool.rewind();
        }
    }

    /// Frees content that was taken: the request will not be sent again.
    pub fn forget_consumed(&self) {
        let mut state = self.state.borrow_mut();
        match &mut state.buffered {
            Some(spool) if spool.is_drained() => state.buffered = None,
            Some(spool) => spool.forget_read(),
            None => {}
        }
    }

    /// Trailer fields, after the end of the content.
    pub fn take_trailers(&self) -> Option<Box<Fields>> {
        let mut trailers = self.state.borrow_mut().trailers.take()?;
        let forbidden = self.forbidden_trailers.get().map_or(&[][..], |names| names);
        trailers.retain(|name| !forbidden.iter().any(|other| is_same_field(name, other.as_bytes())));
        Some(trailers)
    }

    /// Forbids trailer fields of these names. A server that merges trailers into the head would take them for fields
    /// that Tailcoat has set or removed.
    pub fn forbid_trailers(&self, names: impl Iterator<Item = impl Into<Box<str>>>) {
        // A request has one site, and so one set of rules.
        let _ = self.forbidden_trailers.set(names.map(Into::into).collect());
    }

    /// Sends an interim response (RFC 9110, section 15.2) before the final one, if the client's HTTP version allows
    /// it.
    pub fn send_interim(&self, status: Status, fields: Fields) {
        self.state.borrow_mut().interim.push((status, fields));
    }

    /// Sets the handler's deadline, in milliseconds of [`Now::monotonic_ms`](super::Now::monotonic_ms). The handler
    /// is polled within a tenth of a second of it, and then finds [`Self::take_late`] true.
    pub fn set_deadline(&self, deadline_ms: Option<u64>) {
        let mut state = self.state.borrow_mut();
        state.deadline_ms = match (deadline_ms, state.limit_ms) {
            (Some(deadline_ms), Some(limit_ms)) => Some(deadline_ms.min(limit_ms)),
            (deadline_ms, limit_ms) => deadline_ms.or(limit_ms),
        };
        state.is_late = false;
    }

    /// Limits this and all later deadlines. A limit that is set already stays.
    pub fn limit_deadlines(&self, limit_ms: u64) {
        let mut state = self.state.borrow_mut();
        let limit_ms = *state.limit_ms.get_or_insert(limit_ms);
        state.deadline_ms = Some(state.deadline_ms.map_or(limit_ms, |deadline_ms| deadline_ms.min(limit_ms)));
    }

    /// Removes the deadline and its limit.
    pub fn remove_deadlines(&self) {
        let mut state = self.state.borrow_mut();
        (state.deadline_ms, state.limit_ms, state.is_late) = (None, None, false);
    }

    /// True if a limit is set, and has passed.
    pub fn is_over_limit(&self, now_ms: u64) -> bool {
        self.state.borrow().limit_ms.is_some_and(|limit_ms| limit_ms <= now_ms)
    }

    /// True if the deadline has passed. Resets the flag.
    pub fn take_late(&self) -> bool {
        std::mem::take(&mut self.state.borrow_mut().is_late)
    }

    /// True if the client has closed the connection or its sending half, so that it will hardly read a response.
    pub fn has_client_ended(&self) -> bool {
        self.state.borrow().has_client_ended
    }
}

/// Methods for the connection.
impl ClientLink {
    /// Sets the address that the client connected to.
    pub fn set_destination(&self, destination: SocketAddr) {
        // Set once: a link belongs to one request.
        let _ = self.destination.set(Box::new(destination));
    }

    /// True if the handler waits for content.
    pub fn wants_content(&self) -> bool {
        let state = self.state.borrow();
        state.is_wanted && state.unread.is_empty() && !state.is_complete
    }

    /// True if the handler has asked for content.
    pub fn has_been_read(&self) -> bool {
        self.state.borrow().has_been_read
    }

    /// Lends `buffer[content]` until [`Self::reclaim`].
    pub fn supply(&self, buffer: Vec<u8>, content: Range<usize>, task: &Task<'_>) {
        let mut state = self.state.borrow_mut();
        state.buffer = buffer;
        state.unread = content;
        state.wake(task);
    }

    /// Takes the buffer back; content that was not taken moves to a smaller one.
    pub fn reclaim(&self) -> Vec<u8> {
        let mut state = self.state.borrow_mut();
        let kept = state.buffer[state.unread.clone()].to_vec();
        state.unread = 0..kept.len();
        std::mem::replace(&mut state.buffer, kept)
    }

    /// Marks the end of the content.
    pub fn complete(&self, trailers: Option<Box<Fields>>, task: &Task<'_>) {
        let mut state = self.state.borrow_mut();
        state.is_complete = true;
        state.trailers = trailers;
        state.wake(task);
    }

    /// Interim responses to send.
    pub fn take_interim(&self) -> Vec<(Status, Fields)> {
        std::mem::take(&mut self.state.borrow_mut().interim)
    }

    /// Deadline of the handler.
    pub fn deadline_ms(&self) -> Option<u64> {
        self.state.borrow().deadline_ms
    }

    /// Reports that the deadline has passed.
    pub fn set_late(&self, task: &Task<'_>) {
        let mut state = self.state.borrow_mut();
        state.is_late = true;
        state.deadline_ms = None;
        state.wake(task);
    }

    /// Reports that the client sends nothing more.
    pub fn set_client_ended(&self, task: &Task<'_>) {
        let mut state = self.state.borrow_mut();
        state.has_client_ended = true;
        state.wake(task);
    }
}

impl ClientLinkState {
    /// Wakes the handler if it waits in another task. One in the connection's own task is polled next anyway.
    fn wake(&mut self, task: &Task<'_>) {
        self.is_wanted = false;
        if let Some(waker) = self.waker.take()
            && !waker.will_wake(task.waker())
        {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes at most this many bytes, and the result of that.
    fn take_from(link: &ClientLink, most: usize) -> (Poll<usize>, Vec<u8>) {
        let task = &mut Task::from_waker(Waker::noop());
        let mut taken = Vec::new();
        let result = link.poll_take(task, |_, bytes| {
            taken.extend_from_slice(&bytes[..most.min(bytes.len())]);
            Poll::Ready(Ok(taken.len()))
        });
        (result.map(|result| result.unwrap()), taken)
    }

    #[test]
    fn content_is_lent_and_kept_until_it_is_taken() {
        let task = &mut Task::from_waker(Waker::noop());
        let cell = ClientLinkCell::with_content(BodyFraming::Length(5), 5, None);
        let link = cell.link();
        let take = |most| take_from(link, most);
        assert!(!link.wants_content());
        assert_eq!(take(9), (Poll::Pending, vec![]));
        assert!(link.wants_content());
        link.supply(b"--abcde".to_vec(), 2..7, task);
        assert!(!link.wants_content());
        assert_eq!(take(2), (Poll::Ready(2), b"ab".to_vec()));
        assert_eq!(link.reclaim(), b"--abcde");
        link.complete(None, task);
        assert_eq!(take(9), (Poll::Ready(3), b"cde".to_vec()));
        assert_eq!(take(9), (Poll::Ready(0), vec![]));
        assert!(link.is_at_end());
    }

    #[test]
    fn what_takes_the_place_of_content_is_taken_instead() {
        let link = ClientLink::new(BodyFraming::Chunked, 5);
        link.replace_content(b"abc".to_vec());
        assert_eq!(link.framing(), BodyFraming::Length(3));
        for (most, expect) in [(2, &b"ab"[..]), (9, b"c"), (9, b"")] {
            assert_eq!(take_from(&link, most), (Poll::Ready(expect.len()), expect.to_vec()));
        }
        assert!(link.is_at_end() && !link.wants_content());
    }

    #[test]
    fn content_that_is_put_back_is_taken_again() {
        let task = &mut Task::from_waker(Waker::noop());
        let link = ClientLink::new(BodyFraming::Length(6), 6);
        let take = |most| {
            let (result, taken) = take_from(&link, most);
            (result.is_ready(), taken)
        };
        link.supply(b"abcd".to_vec(), 0..4, task);
        assert_eq!(take(3), (true, b"abc".to_vec()));
        link.put_back(b"abc".to_vec());
        assert!(link.can_rewind() && !link.is_at_end() && !link.is_received());
        link.reclaim();
        for expect in [&b"ab"[..], b"c", b"d"] {
            assert_eq!(take(2), (true, expect.to_vec()));
        }
        assert_eq!(take(2), (false, vec![]));
        link.supply(b"ef".to_vec(), 0..2, task);
        link.complete(None, task);
        assert_eq!(take(9), (true, b"ef".to_vec()));
        assert!(link.is_at_end());
        link.put_back(Vec::new());
        assert_eq!(take(9), (true, vec![]));
    }

    #[test]
    fn a_limit_shortens_deadlines() {
        let link = ClientLink::new(BodyFraming::None, 0);
        link.limit_deadlines(10);
        link.limit_deadlines(20);
        assert_eq!(link.deadline_ms(), Some(10));
        for (deadline_ms, expect) in [(None, 10), (Some(7), 7), (Some(11), 10)] {
            link.set_deadline(deadline_ms);
            assert_eq!(link.deadline_ms(), Some(expect), "{deadline_ms:?}");
        }
        assert!(link.is_over_limit(10) && !link.is_over_limit(9));
        link.remove_deadlines();
        assert!(link.deadline_ms().is_none() && !link.is_over_limit(10));
    }

    #[test]
    fn a_deadline_passes_once() {
        let link = ClientLink::new(BodyFraming::None, 0);
        link.set_deadline(Some(7));
        assert_eq!((link.deadline_ms(), link.take_late()), (Some(7), false));
        link.set_late(&Task::from_waker(Waker::noop()));
        assert_eq!((link.deadline_ms(), link.take_late(), link.take_late()), (None, true, false));
    }
}
