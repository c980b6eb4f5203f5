//! Request whose response is pending or being sent.

use std::rc::Rc;
use std::task::{Context as Task, Poll, Waker};

use wire::http::Status;

use super::content::{Offered, OutgoingContent};
use super::stream_exchanges::ListMarks;
use super::tunnel::StreamTunnel;
use super::upload::{StreamUpload, Supplied};
use super::{ExchangeTurn, HttpStreams, StreamFault, StreamKey};
use crate::connection::transfer_rate::{TransferMeter, TransferRateLimit};
use crate::handler::{ClientGone, ClientLink, OwnedRequest, Response};
use crate::memory_budget::Charge;
use crate::routing::{RequestAccount, ResponseFuture};

/// Exchange of a request and a response on one stream.
pub(super) struct StreamExchange<Id> {
    pub(super) stream: Id,
    pub(super) request: Rc<OwnedRequest>,
    pub(super) account: RequestAccount,
    pub(super) asked: RequestedContent,
    pub(super) work: ExchangeWork,
    /// Content of the request, as long as a handler may read it.
    pub(super) upload: Option<StreamUpload>,
    /// Data for another protocol that the client sent before the upgrade was accepted.
    pub(super) early: Early,
    pub(super) outgoing: OutgoingContent,
    /// Head of the response, once it is sent.
    pub(super) reply: Option<SentHead>,
    pub(super) waker: Waker,
    pub(super) marks: ListMarks,
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

pub(super) enum ExchangeWork {
    /// Waits for the handler's response.
    Answering(ResponseFuture),
    /// Sends the content of the response.
    Responding,
    /// Forwards bytes both ways.
    Tunneling(Box<StreamTunnel>),
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
pub(super) struct SentHead {
    pub(super) status: Status,
    pub(super) hit: &'static str,
}

/// Time spent waiting for a client to accept content.
#[derive(Clone, Copy, Default)]
pub(super) struct ClientWait {
    /// Meter of what the client reads. The wait begins again with each check that finds the client waited for.
    meter: TransferMeter,
    /// Time since which the client has accepted nothing, and the bytes sent by then.
    stalled_since_ms: u64,
    sent_bytes: u64,
}

impl ClientWait {
    /// Records a check of whether the client is waited for, and of its progress.
    fn on_look(&mut self, is_waiting: bool, sent_bytes: u64, now_ms: u64, limit: &TransferRateLimit) {
        if self.meter.waiting_since_ms().is_none() {
            self.stalled_since_ms = now_ms;
        }
        self.meter.end_wait(now_ms);
        if sent_bytes != self.sent_bytes {
            self.meter.on_bytes(sent_bytes.saturating_sub(self.sent_bytes), limit);
            (self.sent_bytes, self.stalled_since_ms) = (sent_bytes, now_ms);
        }
        if is_waiting {
            self.meter.begin_wait(now_ms);
        }
    }

    /// Time by which the client must accept something; `None` if it is not waited for.
    fn deadline_ms(&self, timeout_ms: u64) -> Option<u64> {
        self.meter.waiting_since_ms().map(|_| self.stalled_since_ms + timeout_ms)
    }
}

pub(super) enum Polled {
    Pending,
    /// The handler has responded.
    Answered(Response),
    /// The content of the request exceeds the handler's limit.
    TooLarge,
    /// The exchange cannot be completed.
    Broken(StreamFault),
}

impl<Id: StreamKey> StreamExchange<Id> {
    /// Polls the exchange until it must wait.
    pub(super) fn poll<S: HttpStreams<Id = Id>>(&mut self, streams: &mut S, turn: &mut ExchangeTurn<'_>) -> Polled {
        let waker = self.waker.clone();
        let task = &mut Task::from_waker(&waker);
        loop {
            match &mut self.work {
                ExchangeWork::Answering(future) => {
                    let polled = future.as_mut().poll(task);
                    self.send_interim(streams);
                    match polled {
                        Poll::Ready(Ok(response)) => return Polled::Answered(response),
                        Poll::Ready(Err(ClientGone)) => return Polled::Broken(StreamFault::Cancelled),
                        Poll::Pending => {}
                    }
                }
                ExchangeWork::Responding => match self.outgoing.poll_offer(self.stream, streams, task, turn) {
                    Poll::Ready(Ok(Offered::All)) => {
                        // No handler reads the content any more.
                        self.upload = None;
                        return Polled::Pending;
                    }
                    // The source may still need request content; only polling it can tell.
                    Poll::Ready(Ok(Offered::AwaitsClient)) => return Polled::Pending,
                    Poll::Ready(Err(_)) => return Polled::Broken(StreamFault::Internal),
                    Poll::Pending => {}
                },
                ExchangeWork::Tunneling(tunneling) => {
                    return match tunneling.poll(self.stream, &mut self.outgoing, streams, task, turn) {
                        Ok(()) => Polled::Pending,
                        Err(_) => Polled::Broken(StreamFault::TunnelBroken),
                    };
                }
            }
            let Some(upload) = &mut self.upload else { return Polled::Pending };
            match upload.supply(self.stream, streams, task, turn.now.monotonic_ms) {
                Supplied::Nothing => return Polled::Pending,
                Supplied::Content => {}
                Supplied::TooLarge => return Polled::TooLarge,
            }
        }
    }

    /// Lets the source of the response read ahead while the client does not accept content, because its socket or a
    /// flow control window is full.
    pub(super) fn poll_ahead<S: HttpStreams<Id = Id>>(&mut self, is_blocked: bool, streams: &mut S) {
        if !matches!(self.work, ExchangeWork::Responding) || !self.outgoing.has_stream() {
            return;
        }
        let has_unsent = streams.unsent_bytes(self.stream).is_some_and(|bytes| bytes > 0);
        if is_blocked || has_unsent || streams.wanted_bytes(self.stream) == 0 {
            let waker = self.waker.clone();
            self.outgoing.poll_ahead(&mut Task::from_waker(&waker));
        }
    }

    /// True if the whole response was placed.
    pub(super) fn is_complete<S: HttpStreams<Id = Id>>(&self, streams: &mut S) -> bool {
        let is_sent =
            self.outgoing.is_end_offered() && streams.unsent_bytes(self.stream).is_none_or(|bytes| bytes == 0);
        match &self.work {
            ExchangeWork::Answering(_) => false,
            ExchangeWork::Responding => is_sent,
            ExchangeWork::Tunneling(tunneling) => is_sent && tunneling.is_complete(),
        }
    }

    /// True if the client must open a window before more content is produced.
    pub(super) fn awaits_window<S: HttpStreams<Id = Id>>(&self, streams: &mut S) -> bool {
        !matches!(self.work, ExchangeWork::Answering(_))
            && !self.outgoing.is_end_offered()
            && streams.unsent_bytes(self.stream) == Some(0)
            && streams.wanted_bytes(self.stream) == 0
    }

    /// Takes a piece of the request's content. Unwanted content is dropped; its flow control window is not renewed, so
    /// the client stops.
    pub(super) fn on_content(&mut self, content: &[u8], is_last: bool, now_ms: u64, limit: &TransferRateLimit) {
        match (&mut self.work, &mut self.upload) {
            (ExchangeWork::Tunneling(tunneling), _) => tunneling.on_content(content, is_last, now_ms),
            (_, Some(upload)) => upload.on_content(content, is_last, now_ms, limit),
            (ExchangeWork::Answering(_), None) if self.asked == RequestedContent::Protocol => {
                self.early.content.extend_from_slice(content);
                self.early.has_ended |= is_last;
            }
            _ => {}
        }
    }

    /// Link to the handler while it is in progress.
    pub(super) fn link(&self) -> Option<&Rc<ClientLink>> {
        let is_at_work = matches!(self.work, ExchangeWork::Answering(_)) || self.outgoing.has_stream();
        self.request.link().filter(|_| is_at_work)
    }

    /// Records if the client has content to accept.
    pub(super) fn note_wait<S: HttpStreams<Id = Id>>(
        &mut self,
        streams: &mut S,
        now_ms: u64,
        limit: &TransferRateLimit,
    ) {
        let is_waiting = streams.unsent_bytes(self.stream).is_some_and(|bytes| bytes > 0)
            || !matches!(self.work, ExchangeWork::Answering(_)) && streams.wanted_bytes(self.stream) == 0;
        self.wait.on_look(is_waiting, self.outgoing.sent_bytes, now_ms, limit);
    }

    /// True if the request's head is no longer needed, because the response is being sent and the client is slow.
    pub(super) fn may_be_slimmed(&self) -> bool {
        !self.is_slim && matches!(self.work, ExchangeWork::Responding) && self.wait.meter.waiting_since_ms().is_some()
    }

    /// Bytes held for the client, without the request's head.
    pub(super) fn held_bytes<S: HttpStreams<Id = Id>>(&self, streams: &mut S) -> usize {
        let unsent_bytes = if self.outgoing.has_stream() { streams.unsent_bytes(self.stream).unwrap_or(0) } else { 0 };
        let received_bytes = self.upload.as_ref().map_or(0, StreamUpload::held_bytes) + self.early.content.capacity();
        let tunnel_bytes = match &self.work {
            ExchangeWork::Tunneling(tunneling) => tunneling.held_bytes(),
            ExchangeWork::Answering(_) | ExchangeWork::Responding => 0,
        };
        let waiting_bytes = self.outgoing.waiting_bytes();
        size_of::<Self>() + unsent_bytes as usize + waiting_bytes + received_bytes + tunnel_bytes
    }

    /// Time by which the client must accept something; `None` if it is not waited for.
    pub(super) fn wait_deadline_ms(&self, turn: &ExchangeTurn<'_>) -> Option<u64> {
        self.wait.deadline_ms(turn.context.generation().limits.write_timeout.as_millis() as u64)
    }

    /// Time at which the client accepts content too slowly unless it accepts more first; `None` if it is not waited
    /// for. A tunnel has no minimum rate, but must not stall.
    pub(super) fn rate_deadline_ms(&self, limit: &TransferRateLimit) -> Option<u64> {
        let is_tunnel = matches!(self.work, ExchangeWork::Tunneling(_));
        self.wait.meter.deadline_ms(limit).filter(|_| !is_tunnel)
    }

    /// True if the client accepts content too slowly, or nothing for too long.
    pub(super) fn is_read_too_slowly(&self, limit: &TransferRateLimit, turn: &ExchangeTurn<'_>) -> bool {
        let is_past = |deadline_ms: u64| turn.now.monotonic_ms >= deadline_ms;
        self.wait_deadline_ms(turn).is_some_and(is_past) || self.rate_deadline_ms(limit).is_some_and(is_past)
    }

    fn send_interim<S: HttpStreams<Id = Id>>(&mut self, streams: &mut S) {
        let Some(link) = self.request.link() else { return };
        for (status, fields) in link.take_interim() {
            // If the stream is closed, its end is reported as an event.
            let _ = streams.send_informational(self.stream, status, &fields);
        }
    }
}
