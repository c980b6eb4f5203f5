use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use bots::fingerprint::http2_of_bytes;
use bytes::Bytes;
use wire::h1::MessageRejection;

use super::stream_exchange::{ExchangeWork, Polled, StreamExchange};
use super::wakers::WokenStreams;
use super::{ExchangeClient, ExchangeTurn, HttpStreams, StreamKey};
use crate::connection::Context;
use crate::connection::live::Live;
use crate::handler::{Now, ResponseEnding};

/// Exchanges of a connection, by stream. Only exchanges that have something to do are visited.
pub(crate) struct StreamExchanges<Id: StreamKey> {
    pub(super) client: ExchangeClient,
    /// Sorted by stream.
    row: VecDeque<StreamExchange<Id>>,
    woken: Option<Arc<WokenStreams<Id>>>,
    /// `None` until an exchange must wait. Idle connections have none.
    lists: Option<Box<StreamLists<Id>>>,
    /// True if the client may accept more content than at the last call of `drive`.
    has_window_news: bool,
    /// End of the connection in place of a response.
    pub(super) ending: ResponseEnding,
}

/// Streams to visit. An entry of an exchange that has ended, or was visited before, has no effect.
struct StreamLists<Id> {
    /// Exchanges to poll.
    due: Vec<Id>,
    /// Exchanges whose clients must open a window before more content is produced.
    starved: Vec<Id>,
    /// Exchanges whose responses may be complete.
    moved: Vec<Id>,
    /// Exchanges whose sources may read ahead.
    ahead: Vec<Id>,
}

impl<Id> Default for StreamLists<Id> {
    fn default() -> Self {
        Self { due: Vec::new(), starved: Vec::new(), moved: Vec::new(), ahead: Vec::new() }
    }
}

/// Lists that an exchange is in.
#[derive(Clone, Copy, Default)]
pub(super) struct ListMarks {
    is_due: bool,
    is_starved: bool,
    has_moved: bool,
    may_read_ahead: bool,
}

/// Error of content that cannot be read any more. The adapter must reset its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContentLost;

impl<Id: StreamKey> StreamExchanges<Id> {
    /// Takes the fingerprint of an HTTP/2 connection over TLS from its first bytes.
    pub(crate) fn note_beginning(&self, beginning: &[u8], pseudo_fields: &[u8]) {
        if let Some(tls) = &self.client.tls
            && let Some(text) = http2_of_bytes(beginning, pseudo_fields)
        {
            let _ = tls.http2.set(text.into());
        }
    }

    /// End of the connection in place of a response.
    pub(crate) fn ending(&self) -> ResponseEnding {
        self.ending
    }

    /// Makes the exchanges of a connection that has received nothing.
    pub(crate) fn new(client: ExchangeClient) -> Self {
        Self {
            client,
            row: VecDeque::new(),
            woken: None,
            lists: None,
            has_window_news: false,
            ending: ResponseEnding::Normal,
        }
    }

    /// Client of the connection.
    pub(crate) fn client(&self) -> &ExchangeClient {
        &self.client
    }

    /// True if no request is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.row.is_empty()
    }

    /// Polls the exchanges that can make progress. Must be called after events, and when content was placed.
    pub(crate) fn drive<S: HttpStreams<Id = Id>>(&mut self, streams: &mut S, turn: &mut ExchangeTurn<'_>) {
        if self.row.is_empty() {
            return;
        }
        self.take_woken();
        if std::mem::take(&mut self.has_window_news) {
            self.visit_starved(streams);
        }
        self.lists().due.sort_unstable();
        let mut visited = 0;
        while let Some(&stream) = self.lists().due.get(visited) {
            visited += 1;
            if let Some(index) = self.find(stream)
                && self.row[index].marks.is_due
            {
                self.poll_exchange(index, streams, turn);
            }
        }
        self.lists().due.clear();
    }

    /// Reports that the client may accept more content.
    pub(crate) fn on_windows(&mut self) {
        self.has_window_news = true;
    }

    /// Appends the next offered bytes of a stream's content to `out`.
    ///
    /// # Errors
    /// The content is lost, so the adapter must reset the stream and call [`Self::on_reset`].
    pub(crate) fn place(
        &mut self,
        stream: Id,
        range: &Range<u64>,
        out: &mut Vec<u8>,
        turn: &mut ExchangeTurn<'_>,
    ) -> Result<(), ContentLost> {
        let index = self.find(stream).ok_or(ContentLost)?;
        self.row[index].outgoing.place(range, out, turn)?;
        self.on_placed(index);
        Ok(())
    }

    /// Takes the next offered bytes of a stream's content, from 1 to `length_max`. Bytes in memory are shared, not copied.
    ///
    /// # Errors
    /// As those of [`Self::place`].
    pub(crate) fn take(
        &mut self,
        stream: Id,
        length_max: u64,
        turn: &mut ExchangeTurn<'_>,
    ) -> Result<Bytes, ContentLost> {
        let index = self.find(stream).ok_or(ContentLost)?;
        let bytes = self.row[index].outgoing.take(length_max, turn)?;
        self.on_placed(index);
        Ok(bytes)
    }

    /// Continues an exchange after the adapter has fetched content.
    fn on_placed(&mut self, index: usize) {
        let exchange = &mut self.row[index];
        if exchange.outgoing.is_drained() {
            self.mark_moved(index);
            if !self.row[index].outgoing.is_end_offered() {
                self.mark_due(index);
            }
        }
    }

    /// Logs and removes the exchanges whose responses are complete. Must be called when the client has accepted all
    /// placed content.
    pub(crate) fn finish_sent<S: HttpStreams<Id = Id>>(&mut self, streams: &mut S, turn: &ExchangeTurn<'_>) {
        let Some(lists) = &mut self.lists else { return };
        let mut moved = std::mem::take(&mut lists.moved);
        for stream in moved.drain(..) {
            let Some(index) = self.find(stream) else { continue };
            self.row[index].marks.has_moved = false;
            if self.row[index].is_complete(streams) {
                let exchange = self.remove(index);
                self.record_exchange(&exchange, true, turn.context, turn.now);
            }
        }
        self.lists().moved = moved;
    }

    /// Lets the sources of responses read ahead while their clients accept nothing. `is_blocked` is true if the
    /// connection accepts no output.
    pub(crate) fn drive_ahead<S: HttpStreams<Id = Id>>(&mut self, is_blocked: bool, streams: &mut S) {
        let Some(lists) = &mut self.lists else { return };
        let mut ahead = std::mem::take(&mut lists.ahead);
        for stream in ahead.drain(..) {
            if let Some(index) = self.find(stream) {
                let exchange = &mut self.row[index];
                exchange.marks.may_read_ahead = false;
                exchange.poll_ahead(is_blocked, streams);
            }
        }
        self.lists().ahead = ahead;
    }

    /// Logs and drops all exchanges, because the connection has ended.
    pub(crate) fn end_all(&mut self, context: &Context, now: Now) {
        for exchange in std::mem::take(&mut self.row) {
            self.record_exchange(&exchange, false, context, now);
        }
    }

    /// Ends all exchanges, and releases the connection's place.
    pub(crate) fn close(&mut self, context: &Context) {
        self.end_all(context, context.clock.now());
        context.leave(self.client.slot);
    }

    /// Frees the memory if there are no exchanges.
    pub(crate) fn shrink(&mut self) {
        if self.row.is_empty() {
            self.row = VecDeque::new();
            self.woken = None;
            self.lists = None;
        }
    }

    /// Calls `tell` with each request whose response is pending or being sent, for status reports.
    pub(crate) fn each_request(&self, tell: &mut dyn FnMut(&Live<'_>)) {
        let client = self.client.client;
        for exchange in &self.row {
            let wants_content = exchange.link().is_some_and(|link| link.wants_content());
            let stage = match exchange.work {
                ExchangeWork::Answering(_) if exchange.upload.is_some() && wants_content => "reading",
                ExchangeWork::Answering(_) => "answering",
                ExchangeWork::Responding => "writing",
                ExchangeWork::Tunneling(_) => "tunneling",
            };
            let sent_bytes = exchange.outgoing.sent_bytes;
            tell(&Live { client, request: &exchange.request, stage, sent_bytes });
        }
    }

    /// Polls an exchange until it must wait.
    fn poll_exchange<S: HttpStreams<Id = Id>>(&mut self, index: usize, streams: &mut S, turn: &mut ExchangeTurn<'_>) {
        let stream = self.row[index].stream;
        loop {
            let exchange = &mut self.row[index];
            exchange.marks.is_due = false;
            match exchange.poll(streams, turn) {
                Polled::Pending => break,
                // The exchange is polled once more, for its content.
                Polled::Answered(response) => self.respond(index, response, streams, turn),
                // As above, for the error page.
                Polled::TooLarge => self.reject_exchange(index, MessageRejection::CONTENT_TOO_LARGE, streams, turn),
                Polled::Broken(fault) => self.reset_exchange(index, fault, streams, turn),
            }
            if self.find(stream).is_none() {
                return;
            }
        }
        self.mark_moved(index);
        let exchange = &mut self.row[index];
        if !std::mem::replace(&mut exchange.marks.may_read_ahead, true) {
            self.lists().ahead.push(stream);
        }
        let exchange = &mut self.row[index];
        if exchange.awaits_window(streams) && !std::mem::replace(&mut exchange.marks.is_starved, true) {
            self.lists().starved.push(stream);
        }
    }

    /// Marks exchanges due whose clients accept more content than before.
    fn visit_starved<S: HttpStreams<Id = Id>>(&mut self, streams: &mut S) {
        let mut starved = std::mem::take(&mut self.lists().starved);
        starved.retain(|stream| {
            let Some(index) = self.find(*stream) else { return false };
            let awaits_window = self.row[index].awaits_window(streams);
            if !awaits_window {
                self.row[index].marks.is_starved = false;
                self.mark_due(index);
            }
            awaits_window
        });
        self.lists().starved = starved;
    }

    /// Marks the exchanges that were woken as due.
    fn take_woken(&mut self) {
        let Some(woken) = &self.woken else { return };
        for stream in woken.take() {
            if let Some(index) = self.find(stream) {
                self.mark_due(index);
            }
        }
    }

    /// Lets `drive` poll an exchange.
    pub(super) fn mark_due(&mut self, index: usize) {
        let exchange = &mut self.row[index];
        let stream = exchange.stream;
        if !std::mem::replace(&mut exchange.marks.is_due, true) {
            self.lists().due.push(stream);
        }
    }

    /// Lets `finish_sent` look at an exchange.
    fn mark_moved(&mut self, index: usize) {
        let exchange = &mut self.row[index];
        let stream = exchange.stream;
        if !std::mem::replace(&mut exchange.marks.has_moved, true) {
            self.lists().moved.push(stream);
        }
    }

    /// Adds an exchange, which is polled next.
    pub(super) fn insert(&mut self, exchange: StreamExchange<Id>) {
        let stream = exchange.stream;
        // A stream's head may be complete after that of a newer stream, except in HTTP/2.
        let index = match self.row.back() {
            Some(last) if last.stream > stream => self.row.partition_point(|other| other.stream < stream),
            _ => self.row.len(),
        };
        if self.row.capacity() == 0 {
            // Most connections have one exchange at a time, and thousands of them are idle.
            self.row.reserve_exact(1);
        }
        if index == self.row.len() {
            self.row.push_back(exchange);
        } else {
            self.row.insert(index, exchange);
        }
        self.mark_due(index);
    }

    fn lists(&mut self) -> &mut StreamLists<Id> {
        self.lists.get_or_insert_default()
    }

    /// Returns a waker for one exchange.
    pub(super) fn waker(&mut self, stream: Id, connection: &Waker) -> Waker {
        self.woken.get_or_insert_with(|| WokenStreams::new(connection)).waker(stream)
    }

    /// Index of the exchange of this stream.
    pub(super) fn find(&self, stream: Id) -> Option<usize> {
        self.row.binary_search_by_key(&stream, |exchange| exchange.stream).ok()
    }

    /// Exchange at an index, which must exist.
    pub(super) fn at(&mut self, index: usize) -> &mut StreamExchange<Id> {
        &mut self.row[index]
    }

    pub(super) fn len(&self) -> usize {
        self.row.len()
    }

    /// Removes the exchange at an index, which must exist.
    pub(super) fn remove(&mut self, index: usize) -> StreamExchange<Id> {
        self.row.remove(index).expect("there is one at the place")
    }
}
