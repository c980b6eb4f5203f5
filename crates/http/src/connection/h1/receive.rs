//! Receiving the content of requests.

use std::io;
use std::rc::Rc;
use std::task::{Context as Task, Poll, ready};

use wire::h1::{BodyFraming, Framing, H1Event};

use super::{Answering, H1Connection, H1Turn, Incoming};
use crate::connection::arrival::REQUEST_TIMEOUT;
use crate::connection::transfer_rate::TransferMeter;
use crate::connection::{ConnectionScratch, ConnectionStage, Context};
use crate::handler::{ClientLink, OwnedRequest, Response};
use crate::metrics::Limit;
use crate::routing::{PendingResponse, RequestAccount, SiteResponse};

/// Request content that has not been received completely.
pub(super) struct Receiving {
    link: Rc<ClientLink>,
    /// Meter of the content; waits while the handler wants some, or a response waits for its end.
    meter: TransferMeter,
    /// True if the client expects 100 (Continue). It is sent when the handler wants the content.
    owes_continue: bool,
    /// Response of a handler that did not read the content. It is sent once the request's framing has been found valid.
    held: Option<HeldResponse>,
}

/// Response that is ready before its request is complete.
struct HeldResponse {
    response: Response,
    request: Rc<OwnedRequest>,
    framing: Framing,
    account: RequestAccount,
}

impl H1Connection {
    /// Routes a request whose head is complete. `is_all_input` is true if none of its content has been received yet.
    pub(super) fn on_request(
        &mut self,
        incoming: &Incoming<'_>,
        is_all_input: bool,
        turn: &mut H1Turn<'_, '_>,
    ) -> io::Result<()> {
        // A request begins a new stage, even if the next head is incomplete after it.
        turn.context.table.borrow_mut().enter(self.slot, ConnectionStage::Idle, None, turn.task.waker());
        if self.wire.awaits_content() {
            self.receiving = Some(Box::new(Receiving {
                link: Rc::clone(incoming.routed.link.link()),
                meter: TransferMeter::default(),
                owes_continue: incoming.framing.expects_continue && is_all_input,
                held: None,
            }));
        }
        let (response, account) = turn.context.generation().router.answer(self.listener, &incoming.routed);
        match response {
            SiteResponse::Ready(response) => self.on_response(incoming, response, account, turn),
            SiteResponse::Wait(PendingResponse { future, request }) => {
                let answering = Answering { future, request, framing: incoming.framing, account };
                self.output.await_response(Box::new(answering));
                Ok(())
            }
        }
    }

    /// Sends the response. If its handler did not read the content, holds the response until the content has been
    /// received.
    pub(super) fn on_response(
        &mut self,
        incoming: &Incoming<'_>,
        response: Response,
        account: RequestAccount,
        turn: &mut H1Turn<'_, '_>,
    ) -> io::Result<()> {
        let Some(receiving) = &mut self.receiving else { return self.respond(incoming, response, account, turn) };
        let waits_in_vain = receiving.owes_continue && !incoming.routed.request.method().is_safe();
        if receiving.link.has_been_read() || waits_in_vain || receiving.is_too_much_to_drop(turn.context) {
            // The response does not depend on the remaining content. The server cannot know if the client will send it,
            // so the start of a next request is unknown.
            self.following.close_lingering();
            return self.respond(incoming, response, account, turn);
        }
        if std::mem::take(&mut receiving.owes_continue) {
            turn.output.bytes.extend_from_slice(CONTINUE);
        }
        receiving.meter.begin_wait(turn.now.monotonic_ms);
        let request = Rc::new(OwnedRequest::new(&incoming.routed));
        receiving.held = Some(HeldResponse { response, request, framing: incoming.framing, account });
        Ok(())
    }

    /// Counts content that no handler reads, and sends the response after the last piece.
    pub(super) fn on_unread_content(
        &mut self,
        length: usize,
        is_complete: bool,
        turn: &mut H1Turn<'_, '_>,
    ) -> io::Result<()> {
        let Some(receiving) = &mut self.receiving else { return Ok(()) };
        turn.context.table.borrow_mut().note_progress(self.slot, length as u64);
        let is_too_slow = receiving.count(length, turn.context);
        receiving.meter.begin_wait(turn.context.clock.now().monotonic_ms);
        if is_too_slow {
            turn.context.count_limit(Limit::RateMin);
            self.reject(REQUEST_TIMEOUT, &[], turn);
        } else if is_complete
            && let Some(receiving) = self.receiving.take()
            && let Some(HeldResponse { response, request, framing, account }) = receiving.held
        {
            return self.respond(&Incoming { routed: request.routed(false), framing }, response, account, turn);
        }
        Ok(())
    }

    /// Waits for a response. Ready when it has been sent, is being sent, or must wait for the end of the content.
    pub(super) fn drive_answering(&mut self, turn: &mut H1Turn<'_, '_>) -> Poll<io::Result<()>> {
        self.tell_destination(turn.context);
        loop {
            let Some(answering) = self.output.answering_mut() else { return Poll::Ready(Ok(())) };
            let polled = answering.future.as_mut().poll(turn.task);
            self.take_back_buffer(turn.context);
            turn.now = turn.context.clock.now();
            self.send_interim(turn)?;
            if let Poll::Ready(result) = polled {
                let Ok(response) = result else {
                    // Only logged, even if the client could still read a response.
                    self.record_gone();
                    return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
                };
                // Local invariant: the state was checked above.
                let Some(answering) = self.output.take_answering() else { return Poll::Ready(Ok(())) };
                let incoming = Incoming { routed: answering.request.routed(false), framing: answering.framing };
                self.on_response(&incoming, response, answering.account, turn)?;
                if turn.gathers && self.may_gather(turn.output) {
                    return Poll::Ready(Ok(()));
                }
                return self.flush(turn).into();
            }
            if self.output.sending().is_some() {
                // An interim response is not fully sent yet.
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_supply(turn))?;
            if self.output.answering().is_none() {
                // The content was malformed, and the request has been rejected.
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Gives handlers the local address of the connection, if any may need it.
    fn tell_destination(&self, context: &Context) {
        if context.generation().tells_destinations
            && let Some(answering) = self.output.answering()
            && answering.request.link().is_none_or(|link| link.destination().is_none())
            && let Some(destination) = self.destination()
        {
            answering.request.link_made().set_destination(destination);
        }
    }

    /// Link to the handler in progress.
    pub(super) fn link(&self) -> Option<&Rc<ClientLink>> {
        match (self.output.answering(), self.output.sending()) {
            (Some(answering), _) => answering.request.link(),
            (None, Some(sending)) => sending.link.as_ref(),
            (None, None) => None,
        }
    }

    /// Takes the request without a response, for the log.
    pub(super) fn take_open_request(&mut self) -> Option<(Rc<OwnedRequest>, RequestAccount)> {
        let receiving = self.receiving.take();
        match (self.output.take_answering(), receiving.and_then(|receiving| receiving.held)) {
            (Some(answering), _) => Some((answering.request, answering.account)),
            (None, Some(held)) => Some((held.request, held.account)),
            (None, None) => None,
        }
    }

    /// Gives the handler what it waits for: content, or the news that the client has gone. Ready when the handler must
    /// be polled again. Otherwise the connection's stage says what it waits for.
    pub(super) fn poll_supply(&mut self, turn: &mut H1Turn<'_, '_>) -> Poll<io::Result<()>> {
        let context = turn.context;
        let now_ms = context.clock.now().monotonic_ms;
        let Some(link) = self.link().map(Rc::clone) else {
            if self.socket.is_broken() {
                // No client is left to receive the response, so the handler can stop.
                self.record_gone();
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            context.table.borrow_mut().enter(self.slot, ConnectionStage::Answer, None, turn.task.waker());
            return Poll::Pending;
        };
        let wants_content = self.receiving.is_some() && link.wants_content();
        let supplied = if wants_content {
            self.poll_content(&link, turn)
        } else {
            self.poll_client_end(&link, context, turn.task)
        };
        if supplied.is_pending() {
            let mut table = context.table.borrow_mut();
            if !wants_content {
                table.enter(self.slot, ConnectionStage::Answer, link.deadline_ms(), turn.task.waker());
            } else if table.stage(self.slot) != ConnectionStage::Content {
                let deadline_ms = now_ms + context.generation().limits.body_timeout.as_millis() as u64;
                table.enter(self.slot, ConnectionStage::Content, Some(deadline_ms), turn.task.waker());
            }
            match &mut self.receiving {
                Some(receiving) if wants_content => receiving.meter.begin_wait(now_ms),
                Some(receiving) => receiving.meter.end_wait(now_ms),
                None => {}
            }
        }
        supplied
    }

    /// Lends the handler the next piece of content. Ready when there is one, or the request was rejected.
    fn poll_content(&mut self, link: &Rc<ClientLink>, turn: &mut H1Turn<'_, '_>) -> Poll<io::Result<()>> {
        let context = turn.context;
        self.send_continue(turn)?;
        let scratch = &mut *context.scratch.borrow_mut();
        loop {
            let mut filled = self.kept.len();
            scratch.input[..filled].copy_from_slice(&self.kept);
            if !self.has_unseen_input {
                match ready!(self.socket.poll_read(&mut scratch.input[filled..]))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                    count => {
                        context.count_received(count);
                        filled += count;
                    }
                }
            }
            self.kept = Vec::new();
            self.has_unseen_input = false;
            let Some(length) = self.gather_content(filled, scratch, turn)? else {
                return Poll::Ready(Ok(()));
            };
            let has_more = self.wire.awaits_content();
            if length > 0 {
                // The time limit starts again with each piece of content.
                context.table.borrow_mut().enter(self.slot, ConnectionStage::Idle, None, turn.task.waker());
                link.supply(std::mem::take(&mut scratch.input), 0..length, turn.task);
            }
            if !has_more {
                link.complete(self.wire.take_trailers(), turn.task);
                self.receiving = None;
            }
            if length > 0 || !has_more {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Extracts the content from `scratch.input[..filled]` and moves it together at its beginning. Returns its length,
    /// or `None` if the request was rejected.
    fn gather_content(
        &mut self,
        filled: usize,
        scratch: &mut ConnectionScratch,
        turn: &mut H1Turn<'_, '_>,
    ) -> io::Result<Option<usize>> {
        let context = turn.context;
        let ConnectionScratch { input, head, .. } = scratch;
        let (mut at, mut length) = (0, 0);
        let limits = self.input_limits(context);
        while self.wire.awaits_content() {
            match self.wire.handle_input(&input[at..filled], head, &limits) {
                Ok(H1Event::Content(decoded)) => {
                    let content = at + decoded.content.start..at + decoded.content.end;
                    at += decoded.consumed_bytes;
                    let content_bytes = content.len();
                    if content.start != length {
                        input.copy_within(content, length);
                    }
                    length += content_bytes;
                }
                Ok(_) => break,
                Err(rejection) => {
                    return self.reject_content(rejection, turn).map(|()| None);
                }
            }
        }
        self.kept = input[at..filled].to_vec();
        self.has_unseen_input = at < filled;
        if let Some(receiving) = &mut self.receiving
            && self.wire.awaits_content()
        {
            context.table.borrow_mut().note_progress(self.slot, length as u64);
            if receiving.count(length, context) {
                context.count_limit(Limit::RateMin);
                return self.reject_content(REQUEST_TIMEOUT, turn).map(|()| None);
            }
        }
        Ok(Some(length))
    }

    /// Rejects a request in the middle of its content. If a response to it has begun, fails, so that the connection
    /// closes.
    fn reject_content(&mut self, rejection: wire::h1::MessageRejection, turn: &mut H1Turn<'_, '_>) -> io::Result<()> {
        if self.output.answering().is_none() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.reject(rejection, &[], turn);
        self.flush(turn)
    }

    fn send_continue(&mut self, turn: &mut H1Turn<'_, '_>) -> io::Result<()> {
        let Some(receiving) = &mut self.receiving else { return Ok(()) };
        if !std::mem::take(&mut receiving.owes_continue) || self.output.sending().is_some() {
            return Ok(());
        }
        turn.output.bytes.extend_from_slice(CONTINUE);
        self.flush(turn)
    }

    /// Sends the interim responses of the handler.
    fn send_interim(&mut self, turn: &mut H1Turn<'_, '_>) -> io::Result<()> {
        let Some(answering) = self.output.answering() else { return Ok(()) };
        let Some(link) = answering.request.link() else { return Ok(()) };
        let interim = link.take_interim();
        // HTTP/1.0 has no interim responses (RFC 9110, section 15.2).
        if interim.is_empty() || answering.request.request().head.version < wire::http::Version::Http11 {
            return Ok(());
        }
        interim.iter().for_each(|(status, fields)| turn.output.write_interim(*status, fields));
        self.flush(turn)
    }

    /// Checks if the client has gone while its response is pending. Ready when that was just detected. A following
    /// request is kept until its turn.
    fn poll_client_end(&mut self, link: &ClientLink, context: &Context, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        if link.has_client_ended() {
            return Poll::Pending;
        }
        if self.receiving.is_some() || !self.kept.is_empty() {
            // Unread input hides the end of the stream, but the kernel reports it.
            if !self.socket.is_ended() {
                return Poll::Pending;
            }
            link.set_client_ended(task);
            return Poll::Ready(Ok(()));
        }
        let scratch = &mut *context.scratch.borrow_mut();
        let count = ready!(self.socket.poll_read(&mut scratch.input))?;
        context.count_received(count);
        if count == 0 {
            link.set_client_ended(task);
            return Poll::Ready(Ok(()));
        }
        self.kept = scratch.input[..count].to_vec();
        self.has_unseen_input = true;
        Poll::Pending
    }

    /// Reclaims the buffer that was lent to the handler.
    pub(super) fn take_back_buffer(&self, context: &Context) {
        let scratch = &mut *context.scratch.borrow_mut();
        if scratch.input.is_empty()
            && let Some(link) = self.link()
        {
            scratch.input = link.reclaim();
        }
    }
}

impl Receiving {
    /// Request whose response is held until its content has been received.
    pub(super) fn held_request(&self) -> Option<&OwnedRequest> {
        self.held.as_ref().map(|held| &*held.request)
    }

    /// Maximum length of the content, in bytes.
    pub(super) fn body_bytes_max(&self) -> u64 {
        self.link.body_bytes_max()
    }

    /// True if the remaining content may be too long to read and drop.
    fn is_too_much_to_drop(&self, context: &Context) -> bool {
        let bytes_max = context.generation().input_limits.body.body_bytes_max;
        match self.link.framing() {
            BodyFraming::Length(length) => self.link.is_too_large() || length > bytes_max,
            _ => self.body_bytes_max() > bytes_max,
        }
    }

    /// Counts content at the end of a wait for it; returns true if it arrives too slowly.
    fn count(&mut self, length: usize, context: &Context) -> bool {
        let (now_ms, limit) = (context.clock.now().monotonic_ms, context.rate_limit());
        self.meter.end_wait(now_ms);
        self.meter.on_bytes(length as u64, &limit);
        self.meter.is_too_slow(now_ms, &limit)
    }
}

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
