//! Request whose response is pending or being sent.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll, Waker};

use wire::h2::{ErrorCode, H2ServerConnection, StreamId};
use wire::http::Status;

use super::H2Turn;
use super::content::{Offered, OutgoingContent};
use super::tunnel::H2Tunnel;
use super::upload::{H2Upload, Supplied};
use super::wakers::WokenStreams;
use crate::connection::transfer_rate::{TransferRate, TransferRateLimit};
use crate::handler::{ClientGone, ClientLink, OwnedRequest, Response};
use crate::memory_budget::Charge;
use crate::routing::{RequestAccount, ResponseFuture};

/// Exchange of a request and a response on one stream.
pub(super) struct H2Exchange {
    pub(super) stream: StreamId,
    pub(super) request: Rc<OwnedRequest>,
    pub(super) account: RequestAccount,
    pub(super) asked: RequestedContent,
    pub(super) work: H2Work,
    /// Content of the request, as long as a handler may read it.
    pub(super) upload: Option<H2Upload>,
    /// Data for another protocol that the client sent before the upgrade was accepted.
    pub(super) early: Early,
    pub(super) outgoing: OutgoingContent,
    /// Head of the response, once it is sent.
    pub(super) reply: Option<H2ResponseHead>,
    pub(super) waker: Waker,
    /// True if something has arrived since the last poll.
    pub(super) is_due: bool,
    /// Memory charge for the request's trailer fields, independent of where they are stored.
    pub(super) _trailers: Option<Charge>,
    /// True if only the logged parts of the request are kept.
    pub(super) is_slim: bool,
    pub(super) wait: ClientWait,
}

/// Data received before the tunnel was opened.
#[derive(Default)]
pub(super) struct Early {
    pub(super) content: Vec<u8>,
    pub(super) has_ended: bool,
}

pub(super) enum H2Work {
    /// Waits for the handler's response.
    Answering(ResponseFuture),
    /// Sends the content of the response.
    Responding,
    /// Forwards bytes both ways.
    Tunneling(Box<H2Tunnel>),
}

/// Kind of request, as far as it affects sending the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedContent {
    Content,
    /// HEAD: the response has no content.
    HeadOnly,
    /// CONNECT, for which no handler opens a tunnel.
    Connection,
    /// Extended CONNECT for another protocol (RFC 8441).
    Protocol,
}

/// Head of a response, as far as it is logged.
#[derive(Clone, Copy)]
pub(super) struct H2ResponseHead {
    pub(super) status: Status,
    pub(super) is_hit: bool,
}

/// Time spent waiting for a client to accept content.
#[derive(Clone, Copy, Default)]
pub(super) struct ClientWait {
    rate: TransferRate,
    /// Time of the last check; `None` if the client was not waited for then.
    looked_at_ms: Option<u64>,
    /// Time since which the client has accepted nothing, and the bytes sent by then.
    stalled_since_ms: u64,
    sent_bytes: u64,
}

impl ClientWait {
    /// Records a check of whether the client is waited for, and of its progress.
    fn on_look(&mut self, is_waiting: bool, sent_bytes: u64, now_ms: u64, limit: &TransferRateLimit) {
        match self.looked_at_ms {
            Some(looked_at_ms) => self.rate.on_wait(now_ms.saturating_sub(looked_at_ms)),
            None => self.stalled_since_ms = now_ms,
        }
        if sent_bytes != self.sent_bytes {
            self.rate.on_bytes(sent_bytes.saturating_sub(self.sent_bytes), limit);
            (self.sent_bytes, self.stalled_since_ms) = (sent_bytes, now_ms);
        }
        self.looked_at_ms = is_waiting.then_some(now_ms);
    }

    /// Time by which the client must accept something; `None` if it is not waited for.
    fn deadline_ms(&self, timeout_ms: u64) -> Option<u64> {
        self.looked_at_ms.map(|_| self.stalled_since_ms + timeout_ms)
    }
}

pub(super) enum Polled {
    Pending,
    /// The handler has responded.
    Answered(Response),
    /// The content of the request exceeds the handler's limit.
    TooLarge,
    /// The exchange cannot be completed.
    Broken(ErrorCode),
}

impl H2Exchange {
    /// Polls the exchange until it must wait.
    pub(super) fn poll(&mut self, wire: &mut H2ServerConnection, turn: &mut H2Turn<'_, '_>) -> Polled {
        self.is_due = false;
        let waker = self.waker.clone();
        let task = &mut Task::from_waker(&waker);
        loop {
            match &mut self.work {
                H2Work::Answering(future) => {
                    let polled = future.as_mut().poll(task);
                    self.send_interim(wire, turn);
                    match polled {
                        Poll::Ready(Ok(response)) => return Polled::Answered(response),
                        Poll::Ready(Err(ClientGone)) => return Polled::Broken(ErrorCode::CANCEL),
                        Poll::Pending => {}
                    }
                }
                H2Work::Responding => match self.outgoing.poll_offer(self.stream, wire, task, turn) {
                    Poll::Ready(Ok(Offered::All)) => {
                        // No handler reads the content any more.
                        self.upload = None;
                        return Polled::Pending;
                    }
                    // The source may still need request content; only polling it can tell.
                    Poll::Ready(Ok(Offered::AwaitsClient)) => return Polled::Pending,
                    Poll::Ready(Err(_)) => return Polled::Broken(ErrorCode::INTERNAL_ERROR),
                    Poll::Pending => {}
                },
                H2Work::Tunneling(tunneling) => {
                    return match tunneling.poll(self.stream, &mut self.outgoing, wire, task, turn) {
                        Ok(()) => Polled::Pending,
                        Err(_) => Polled::Broken(ErrorCode::CONNECT_ERROR),
                    };
                }
            }
            let Some(upload) = &mut self.upload else { return Polled::Pending };
            match upload.supply(self.stream, wire, task, turn) {
                Supplied::Nothing => return Polled::Pending,
                Supplied::Content => {}
                Supplied::TooLarge => return Polled::TooLarge,
            }
        }
    }

    /// Lets the source of the response read ahead while the client does not accept content, because its socket or a
    /// flow control window is full.
    pub(super) fn poll_ahead(&mut self, is_blocked: bool, wire: &mut H2ServerConnection) {
        if !matches!(self.work, H2Work::Responding) || !self.outgoing.has_stream() {
            return;
        }
        let has_unsent = wire.unsent_bytes(self.stream).is_some_and(|bytes| bytes > 0);
        if is_blocked || has_unsent || wire.wanted_bytes(self.stream) == 0 {
            let waker = self.waker.clone();
            self.outgoing.poll_ahead(&mut Task::from_waker(&waker));
        }
    }

    /// True if the engine has received and sent the whole response.
    pub(super) fn is_complete(&self, wire: &mut H2ServerConnection) -> bool {
        let is_sent = self.outgoing.is_end_offered() && wire.unsent_bytes(self.stream).is_none_or(|bytes| bytes == 0);
        match &self.work {
            H2Work::Answering(_) => false,
            H2Work::Responding => is_sent,
            H2Work::Tunneling(tunneling) => is_sent && tunneling.is_complete(),
        }
    }

    /// True if polling makes progress now that the client has accepted content.
    pub(super) fn wants_to_offer(&self, wire: &mut H2ServerConnection) -> bool {
        !matches!(self.work, H2Work::Answering(_))
            && !self.outgoing.is_end_offered()
            && wire.unsent_bytes(self.stream) == Some(0)
            && wire.wanted_bytes(self.stream) > 0
    }

    /// Takes a piece of the request's content. Unwanted content is dropped; its flow control window is not renewed, so
    /// the client stops.
    pub(super) fn on_content(&mut self, content: &[u8], is_last: bool, now_ms: u64, limit: &TransferRateLimit) {
        self.is_due = true;
        match (&mut self.work, &mut self.upload) {
            (H2Work::Tunneling(tunneling), _) => tunneling.on_content(content, is_last, now_ms),
            (_, Some(upload)) => upload.on_content(content, is_last, now_ms, limit),
            (H2Work::Answering(_), None) if self.asked == RequestedContent::Protocol => {
                self.early.content.extend_from_slice(content);
                self.early.has_ended |= is_last;
            }
            _ => {}
        }
    }

    /// Link to the handler while it is in progress.
    pub(super) fn link(&self) -> Option<&Rc<ClientLink>> {
        let is_at_work = matches!(self.work, H2Work::Answering(_)) || self.outgoing.has_stream();
        self.request.link().filter(|_| is_at_work)
    }

    /// Records if the client has content to accept.
    pub(super) fn note_wait(&mut self, wire: &mut H2ServerConnection, now_ms: u64, limit: &TransferRateLimit) {
        let is_waiting = wire.unsent_bytes(self.stream).is_some_and(|bytes| bytes > 0)
            || !matches!(self.work, H2Work::Answering(_)) && wire.wanted_bytes(self.stream) == 0;
        self.wait.on_look(is_waiting, self.outgoing.sent_bytes, now_ms, limit);
    }

    /// True if the request's head is no longer needed, because the response is being sent and the client is slow.
    pub(super) fn may_be_slimmed(&self) -> bool {
        !self.is_slim && matches!(self.work, H2Work::Responding) && self.wait.looked_at_ms.is_some()
    }

    /// Bytes held for the client, without the request's head.
    pub(super) fn held_bytes(&self, wire: &mut H2ServerConnection) -> usize {
        let unsent_bytes = if self.outgoing.has_stream() { wire.unsent_bytes(self.stream).unwrap_or(0) } else { 0 };
        let received_bytes = self.upload.as_ref().map_or(0, H2Upload::held_bytes) + self.early.content.capacity();
        let tunnel_bytes = match &self.work {
            H2Work::Tunneling(tunneling) => tunneling.held_bytes(),
            H2Work::Answering(_) | H2Work::Responding => 0,
        };
        let waiting_bytes = self.outgoing.waiting_bytes();
        size_of::<Self>() + unsent_bytes as usize + waiting_bytes + received_bytes + tunnel_bytes
    }

    /// Time by which the client must accept something; `None` if it is not waited for.
    pub(super) fn wait_deadline_ms(&self, turn: &H2Turn<'_, '_>) -> Option<u64> {
        self.wait.deadline_ms(turn.context.generation().limits.write_timeout.as_millis() as u64)
    }

    /// Time at which the client accepts content too slowly unless it accepts more first; `None` if it is not waited
    /// for. A tunnel has no minimum rate, but must not stall.
    pub(super) fn rate_deadline_ms(&self, limit: &TransferRateLimit) -> Option<u64> {
        let looked_at_ms = self.wait.looked_at_ms.filter(|_| !matches!(self.work, H2Work::Tunneling(_)))?;
        looked_at_ms.checked_add(self.wait.rate.wait_left_ms(limit)?)
    }

    /// True if the client accepts content too slowly, or nothing for too long.
    pub(super) fn is_read_too_slowly(&self, limit: &TransferRateLimit, turn: &H2Turn<'_, '_>) -> bool {
        let is_past = |deadline_ms: u64| turn.now.monotonic_ms >= deadline_ms;
        self.wait_deadline_ms(turn).is_some_and(is_past) || self.rate_deadline_ms(limit).is_some_and(is_past)
    }

    fn send_interim(&mut self, wire: &mut H2ServerConnection, turn: &mut H2Turn<'_, '_>) {
        let Some(link) = self.request.link() else { return };
        for (status, fields) in link.take_interim() {
            // If the stream is gone, the engine reports its end as an event.
            let _ = wire.send_informational(self.stream, status, &fields, &mut turn.wire());
        }
    }
}

/// Exchanges of a connection, by stream number.
#[derive(Default)]
pub(super) struct Exchanges {
    /// Sorted by stream, because new streams always have higher numbers.
    row: VecDeque<H2Exchange>,
    woken: Option<Arc<WokenStreams>>,
}

impl Exchanges {
    /// Adds an exchange, whose stream must be the newest.
    pub(super) fn push(&mut self, exchange: H2Exchange) {
        debug_assert!(self.row.back().is_none_or(|last| last.stream < exchange.stream));
        self.row.push_back(exchange);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &H2Exchange> {
        self.row.iter()
    }

    /// Returns a waker for one exchange.
    pub(super) fn waker(&mut self, stream: StreamId, connection: &Waker) -> Waker {
        self.woken.get_or_insert_with(|| WokenStreams::new(connection)).waker(stream.get())
    }

    /// Marks the exchanges that were woken as due.
    pub(super) fn take_woken(&mut self) {
        let Some(woken) = &self.woken else { return };
        for stream in woken.take() {
            if let Ok(index) = self.row.binary_search_by_key(&stream, |exchange| exchange.stream.get()) {
                self.row[index].is_due = true;
            }
        }
    }

    /// Index of the exchange of this stream.
    pub(super) fn find(&self, stream: StreamId) -> Option<usize> {
        self.row.binary_search_by_key(&stream, |exchange| exchange.stream).ok()
    }

    pub(super) fn get(&mut self, stream: StreamId) -> Option<&mut H2Exchange> {
        let index = self.find(stream)?;
        Some(&mut self.row[index])
    }

    /// Exchange at an index, which must exist.
    pub(super) fn at(&mut self, index: usize) -> &mut H2Exchange {
        &mut self.row[index]
    }

    pub(super) fn len(&self) -> usize {
        self.row.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.row.is_empty()
    }

    /// Removes the exchange at an index, which must exist.
    pub(super) fn remove(&mut self, index: usize) -> H2Exchange {
        self.row.remove(index).expect("there is one at the place")
    }

    pub(super) fn take_all(&mut self) -> VecDeque<H2Exchange> {
        std::mem::take(&mut self.row)
    }

    /// Frees the memory if there are no exchanges.
    pub(super) fn shrink(&mut self) {
        if self.row.is_empty() {
            *self = Self::default();
        }
    }
}
