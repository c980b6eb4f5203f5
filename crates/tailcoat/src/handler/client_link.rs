//! What a handler that takes its time has of its client, in any version of HTTP.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context as Task, Poll, Waker, ready};

use wire::h1::BodyFraming;
use wire::http::forwarding::is_same_field;
use wire::http::{Fields, Status};

use super::Forwarding;
use crate::memory_budget::{Holder, HolderSource};
use crate::metrics::HandlerKind;
use crate::spool::Spool;

/// The link between a client and the handler that answers its request: the request's content, as it comes; interim
/// responses; and until when an answer is waited for.
///
/// The connection supplies content when the handler wants some, and not before, so that a client can't fill memory, and
/// what the client sends is read no faster than it is used. If content can't be read (malformed, too slow, cut short), the
/// connection drops the handler's future: a handler never sees the end of content that is not whole.
#[derive(Debug)]
pub struct ClientLink {
    framing: Cell<BodyFraming>,
    body_bytes_max: Cell<u64>,
    /// Where it is to be told to servers.
    destination: OnceCell<Box<SocketAddr>>,
    forwarding: RefCell<Forwarding>,
    /// Whose password was right.
    user: OnceCell<Box<[u8]>>,
    /// The connection's holder, once something was charged to it.
    holder: OnceCell<Rc<Holder>>,
    /// The way to it; `None` if memory is not counted.
    holder_source: Option<HolderSource>,
    /// Names of fields that are ours to set.
    forbidden_trailers: OnceCell<Box<[Box<str>]>>,
    state: RefCell<ClientLinkState>,
}

#[derive(Debug, Default)]
struct ClientLinkState {
    /// Content that came and has not been taken: `buffer[unread]`.
    buffer: Vec<u8>,
    unread: Range<usize>,
    /// What a handler has put in the place of the content, and how much of it was taken.
    replacement: Option<(Vec<u8>, usize)>,
    /// Content that was received before the handler's upstream is asked; what follows comes from the client.
    buffered: Option<Box<Spool>>,
    is_complete: bool,
    trailers: Option<Box<Fields>>,
    /// The handler waits for content.
    is_wanted: bool,
    has_been_read: bool,
    waker: Option<Waker>,
    interim: Vec<(Status, Fields)>,
    deadline_ms: Option<u64>,
    is_late: bool,
    has_client_ended: bool,
}

/// Where a link is made when a handler wants one: most requests have no content and are answered at once.
#[derive(Clone, Debug)]
pub struct ClientLinkCell {
    link: OnceCell<Rc<ClientLink>>,
    /// The way to the connection's holder; `None` if memory is not counted.
    holder_source: Option<HolderSource>,
    /// The number of the client's connection, which the worker gives to no other; `None` if no client waits there.
    client_connection: Option<NonZeroU64>,
    /// Who answers, as far as is known.
    handler: Cell<HandlerKind>,
}

impl Default for ClientLinkCell {
    fn default() -> Self {
        let handler = Cell::new(HandlerKind::None);
        Self { link: OnceCell::new(), holder_source: None, client_connection: None, handler }
    }
}

impl ClientLinkCell {
    /// With a link, for a request with content of at most so many bytes.
    pub fn with_content(framing: BodyFraming, body_bytes_max: u64, holder_source: Option<HolderSource>) -> Self {
        let link = ClientLink { holder_source: holder_source.clone(), ..ClientLink::new(framing, body_bytes_max) };
        Self { link: OnceCell::from(Rc::new(link)), holder_source, ..Self::default() }
    }

    /// Without a link, for a request of a connection with this holder.
    pub fn without_content(holder_source: HolderSource) -> Self {
        Self { holder_source: Some(holder_source), ..Self::default() }
    }

    /// The connection's holder; `None` if memory is not counted.
    pub fn counted_holder(&self) -> Option<Rc<Holder>> {
        self.holder_source.as_ref().map(HolderSource::holder)
    }

    /// For a request that came on the client connection with this number.
    pub fn of_connection(self, number: NonZeroU64) -> Self {
        Self { client_connection: Some(number), ..self }
    }

    /// The number of the client's connection, unless the request is the server's own.
    pub fn client_connection(&self) -> Option<NonZeroU64> {
        self.client_connection
    }

    /// The link, made now if there is none.
    pub fn link(&self) -> &Rc<ClientLink> {
        self.link.get_or_init(|| {
            let holder_source = self.holder_source.clone();
            Rc::new(ClientLink { holder_source, ..ClientLink::new(BodyFraming::None, u64::MAX) })
        })
    }

    /// The link, if there is one.
    pub fn get(&self) -> Option<&Rc<ClientLink>> {
        self.link.get()
    }

    /// Who answers the request, as far as is known.
    pub fn handler(&self) -> HandlerKind {
        self.handler.get()
    }

    /// Tells who answers the request.
    pub fn set_handler(&self, kind: HandlerKind) {
        self.handler.set(kind);
    }
}

/// The handler's side.
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
            state: RefCell::new(state),
        }
    }

    /// The connection's holder, to which memory is charged that is held for the client.
    pub fn holder(&self) -> &Rc<Holder> {
        self.holder.get_or_init(|| self.holder_source.as_ref().map_or_else(Holder::uncounted, HolderSource::holder))
    }

    /// Sets how many bytes of content there may be. More are refused when they come, whoever reads them.
    pub fn set_body_bytes_max(&self, bytes: u64) {
        self.body_bytes_max.set(bytes);
    }

    /// How many bytes of content there may be.
    pub fn body_bytes_max(&self) -> u64 {
        self.body_bytes_max.get()
    }

    /// Whether the head says that there is more content than there may be.
    pub fn is_too_large(&self) -> bool {
        matches!(self.framing.get(), BodyFraming::Length(length) if length > self.body_bytes_max())
    }

    /// What becomes of the request on its way to another server.
    pub fn forwarding(&self) -> &RefCell<Forwarding> {
        &self.forwarding
    }

    /// What the head said of the content.
    pub fn framing(&self) -> BodyFraming {
        self.framing.get()
    }

    /// The request is sent on without its content.
    pub fn forget_content(&self) {
        self.framing.set(BodyFraming::None);
    }

    /// The next handler has this instead of the content.
    pub fn replace_content(&self, content: Vec<u8>) {
        self.framing.set(match content.len() {
            0 => BodyFraming::None,
            length => BodyFraming::Length(length as u64),
        });
        self.state.borrow_mut().replacement = Some((content, 0));
    }

    /// Whose password was right, if one was needed.
    pub fn user(&self) -> Option<&[u8]> {
        self.user.get().map(|user| &**user)
    }

    /// Tells whose password was right.
    pub fn set_user(&self, user: &[u8]) {
        // A request names one user.
        let _ = self.user.set(user.into());
    }

    /// Where the client has connected to, for the PROXY protocol; `None` if that is told to nobody, or is a unix socket.
    pub fn destination(&self) -> Option<SocketAddr> {
        self.destination.get().map(|destination| **destination)
    }

    /// Hands the content that is there to `take`, which returns how much of it is done with (all is best; not 0). Ready
    /// with that, or with 0 at the end of the content; pending if `take` is, or while nothing has come.
    ///
    /// # Errors
    /// Those of `take`.
    pub fn poll_take(
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

    /// Says that content is read while the answer is sent, so that this does not wait for the end of the content.
    pub fn read_while_answering(&self) {
        self.state.borrow_mut().has_been_read = true;
    }

    /// Whether all content has been taken.
    pub fn is_at_end(&self) -> bool {
        let state = self.state.borrow();
        match &state.replacement {
            Some((content, taken)) => *taken == content.len(),
            None => {
                let is_drained = state.buffered.as_ref().is_none_or(|spool| spool.is_drained());
                state.is_complete && state.unread.is_empty() && is_drained
            }
        }
    }

    /// True if all content has come that a handler gets, so that nothing is left to receive.
    pub fn is_received(&self) -> bool {
        let state = self.state.borrow();
        state.replacement.is_some() || state.buffered.is_some() || self.framing.get() == BodyFraming::None
    }

    /// Gives the handler this content, and behind it what the client still sends. Where that is nothing, the content has a
    /// length from now on, unless trailers follow, and can be [taken again](Self::rewind).
    pub fn put_buffered(&self, mut spool: Spool) {
        let mut state = self.state.borrow_mut();
        if state.is_complete && state.unread.is_empty() && state.trailers.is_none() {
            self.framing.set(BodyFraming::Length(spool.held_bytes()));
        } else {
            spool.forget_read();
        }
        state.buffered = Some(Box::new(spool));
    }

    /// True if content was received before an upstream was asked.
    pub fn is_buffered(&self) -> bool {
        self.state.borrow().buffered.is_some()
    }

    /// True if the content can be taken from its beginning: none was, or all of it is kept.
    pub fn can_rewind(&self) -> bool {
        let state = self.state.borrow();
        match &state.buffered {
            Some(spool) => spool.keeps_all(),
            None => !state.has_been_read,
        }
    }

    /// Goes back to the beginning of the content. Only where that [is possible](Self::can_rewind).
    pub fn rewind(&self) {
        if let Some(spool) = &mut self.state.borrow_mut().buffered {
            spool.rewind();
        }
    }

    /// Frees content that was taken: the request is not sent again.
    pub fn forget_taken(&self) {
        let mut state = self.state.borrow_mut();
        match &mut state.buffered {
            Some(spool) if spool.is_drained() => state.buffered = None,
            Some(spool) => spool.forget_read(),
            None => {}
        }
    }

    /// The trailer fields, once the end was reached.
    pub fn take_trailers(&self) -> Option<Box<Fields>> {
        let mut trailers = self.state.borrow_mut().trailers.take()?;
        let forbidden = self.forbidden_trailers.get().map_or(&[][..], |names| names);
        trailers.retain(|name| !forbidden.iter().any(|other| is_same_field(name, other.as_bytes())));
        Some(trailers)
    }

    /// Forbids trailer fields of these names: a server that joins trailers to the head would take them for those that are
    /// set there, or that were taken away.
    pub fn forbid_trailers(&self, names: impl Iterator<Item = impl Into<Box<str>>>) {
        // A request has one site, and that its rules.
        let _ = self.forbidden_trailers.set(names.map(Into::into).collect());
    }

    /// Sends an interim response (RFC 9110, section 15.2) before the final one, if the client's version has such.
    pub fn send_interim(&self, status: Status, fields: Fields) {
        self.state.borrow_mut().interim.push((status, fields));
    }

    /// Sets until when the handler waits, in milliseconds of [`Now::monotonic_ms`](super::Now::monotonic_ms). It is
    /// polled once the time has come, give or take a tenth of a second, and then finds [`Self::take_late`] true.
    pub fn set_deadline(&self, deadline_ms: Option<u64>) {
        let mut state = self.state.borrow_mut();
        state.deadline_ms = deadline_ms;
        state.is_late = false;
    }

    /// Whether the deadline has passed since it was set. Says so once.
    pub fn take_late(&self) -> bool {
        std::mem::take(&mut self.state.borrow_mut().is_late)
    }

    /// Whether the client has closed the connection or its half of it, so that it will hardly read an answer.
    pub fn has_client_ended(&self) -> bool {
        self.state.borrow().has_client_ended
    }
}

/// The connection's side.
impl ClientLink {
    /// Tells where the client has connected to.
    pub fn set_destination(&self, destination: SocketAddr) {
        // Set once: a link is made for one request.
        let _ = self.destination.set(Box::new(destination));
    }

    /// Whether the handler waits for content.
    pub fn wants_content(&self) -> bool {
        let state = self.state.borrow();
        state.is_wanted && state.unread.is_empty() && !state.is_complete
    }

    /// Whether the handler has asked for content.
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

    /// Takes the buffer back; content that has not been taken is kept in a smaller one.
    pub fn reclaim(&self) -> Vec<u8> {
        let mut state = self.state.borrow_mut();
        let kept = state.buffer[state.unread.clone()].to_vec();
        state.unread = 0..kept.len();
        std::mem::replace(&mut state.buffer, kept)
    }

    /// Nothing follows what was supplied.
    pub fn complete(&self, trailers: Option<Box<Fields>>, task: &Task<'_>) {
        let mut state = self.state.borrow_mut();
        state.is_complete = true;
        state.trailers = trailers;
        state.wake(task);
    }

    /// The interim responses that are to be sent.
    pub fn take_interim(&self) -> Vec<(Status, Fields)> {
        std::mem::take(&mut self.state.borrow_mut().interim)
    }

    /// Until when the handler waits.
    pub fn deadline_ms(&self) -> Option<u64> {
        self.state.borrow().deadline_ms
    }

    /// The deadline has passed.
    pub fn set_late(&self, task: &Task<'_>) {
        let mut state = self.state.borrow_mut();
        state.is_late = true;
        state.deadline_ms = None;
        state.wake(task);
    }

    /// The client sends nothing any more.
    pub fn set_client_ended(&self, task: &Task<'_>) {
        let mut state = self.state.borrow_mut();
        state.has_client_ended = true;
        state.wake(task);
    }
}

impl ClientLinkState {
    /// Wakes the handler if it waits in another task; in the connection's own it is polled next anyway.
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

    #[test]
    fn content_is_lent_and_kept_until_it_is_taken() {
        let task = &mut Task::from_waker(Waker::noop());
        let cell = ClientLinkCell::with_content(BodyFraming::Length(5), 5, None);
        let link = cell.link();
        let take = |most: usize| {
            let task = &mut Task::from_waker(Waker::noop());
            let mut taken = Vec::new();
            let result = link.poll_take(task, |_, bytes| {
                taken.extend_from_slice(&bytes[..most.min(bytes.len())]);
                Poll::Ready(Ok(taken.len()))
            });
            (result.map(|result| result.unwrap()), taken)
        };
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
        let task = &mut Task::from_waker(Waker::noop());
        let link = ClientLink::new(BodyFraming::Chunked, 5);
        link.replace_content(b"abc".to_vec());
        assert_eq!(link.framing(), BodyFraming::Length(3));
        for (most, expect) in [(2, &b"ab"[..]), (9, b"c"), (9, b"")] {
            let mut taken = Vec::new();
            let polled = link.poll_take(task, |_, bytes| {
                taken.extend_from_slice(&bytes[..most.min(bytes.len())]);
                Poll::Ready(Ok(taken.len()))
            });
            assert!(matches!(polled, Poll::Ready(Ok(count)) if count == expect.len()));
            assert_eq!(taken, expect);
        }
        assert!(link.is_at_end() && !link.wants_content());
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
