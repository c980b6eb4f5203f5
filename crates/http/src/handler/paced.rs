//! Responses of a site with a maximum rate: their content is sent in pieces, with pauses between them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};
use std::time::Duration;

use hashbrown::HashMap;
use tokio::time::{Sleep, sleep};
use wire::http::Method;

use super::unpacked::{read_part, unpacked};
use super::{ContentSource, ContentStream, Filled, Now, Pace, Response, Routed, Segment, SharedPace};
use crate::config::ResponseRates;
use crate::log::LogClient;

/// Clients that are remembered before those without a response are dropped.
const CLIENTS_MAX: usize = 1_024;

/// Maximum rates of a site's responses, on one worker.
pub struct ResponsePace {
    rates: ResponseRates,
    /// Rate of all responses of the site, on all workers.
    site: Arc<SharedPace>,
    /// Clients with a response in progress. A client is a connection; behind a trusted proxy, it is an address.
    clients: RefCell<HashMap<LogClient, Weak<ClientPace>>>,
}

/// State of the responses of one client.
#[derive(Default)]
struct ClientPace {
    /// Time at which the client may get more, in microseconds.
    paid_until_us: Cell<u64>,
}

impl ResponsePace {
    /// Rates of a site on one worker; `site` is shared by all workers.
    pub fn new(rates: ResponseRates, site: &Arc<SharedPace>) -> Self {
        Self { rates, site: Arc::clone(site), clients: RefCell::default() }
    }

    /// Sends the content of a response at the maximum rate.
    pub fn apply(self: &Rc<Self>, response: Response, routed: &Routed<'_>) -> Response {
        let is_tunnel = matches!(&response, Response::Built(built)
            if built.forwarded.as_ref().is_some_and(|forwarded| forwarded.tunnel.is_some()));
        if routed.request.method() == Method::Head || is_tunnel || response.status().has_no_content() {
            return response;
        }
        let mut built = unpacked(response);
        if built.body.is_empty() {
            return Response::Built(built);
        }
        let length = built.body.length();
        let body = std::mem::take(&mut built.body);
        let source = PacedContent {
            segments: body.segments.into(),
            stream: body.stream,
            reading: None,
            free_bytes: self.rates.free_bytes,
            client: self.client(routed.client),
            pace: Rc::clone(self),
            timer: None,
        };
        built.body.stream = Some(ContentStream { source: Box::new(source), length });
        Response::Built(built)
    }

    fn client(&self, client: LogClient) -> Rc<ClientPace> {
        let mut clients = self.clients.borrow_mut();
        if let Some(known) = clients.get(&client).and_then(Weak::upgrade) {
            return known;
        }
        if clients.len() >= CLIENTS_MAX {
            clients.retain(|_, client| client.strong_count() > 0);
        }
        let new = Rc::new(ClientPace::default());
        clients.insert(client, Rc::downgrade(&new));
        new
    }

    fn pace(&self) -> Pace<'_> {
        let site_max = self.rates.site_max.map(|rate| (rate, &*self.site));
        Pace { session_max: self.rates.connection_max, site_max }
    }
}

/// Part of a file that is being read.
type PartReading = Pin<Box<dyn Future<Output = io::Result<Vec<u8>>>>>;

/// Content that is sent at a maximum rate.
struct PacedContent {
    segments: VecDeque<Segment>,
    /// Content after the segments.
    stream: Option<ContentStream>,
    /// Part of a file that is being read.
    reading: Option<PartReading>,
    /// Bytes that are sent before the rate of the connection applies.
    free_bytes: u64,
    client: Rc<ClientPace>,
    pace: Rc<ResponsePace>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl PacedContent {
    /// Waits until more may be sent.
    fn poll_pause(&mut self, task: &mut Task<'_>) -> Poll<()> {
        loop {
            if let Some(timer) = &mut self.timer {
                ready!(timer.as_mut().poll(task));
                self.timer = None;
            }
            let pause_us = self.client.paid_until_us.get().saturating_sub(now_us());
            if pause_us < 1_000 {
                return Poll::Ready(());
            }
            self.timer = Some(Box::pin(sleep(Duration::from_micros(pause_us))));
        }
    }

    /// Counts bytes that the client gets.
    fn pay(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        let free = self.free_bytes.min(bytes);
        self.free_bytes -= free;
        let mut paid_until_us = self.client.paid_until_us.get();
        let pace = self.pace.pace();
        if free > 0 {
            // The rate of the site always applies.
            Pace { session_max: None, ..pace }.on_bytes(free, now_us(), &mut paid_until_us);
        }
        pace.on_bytes(bytes - free, now_us(), &mut paid_until_us);
        self.client.paid_until_us.set(paid_until_us);
    }

    fn poll_content(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<Filled>> {
        loop {
            if let Some(reading) = &mut self.reading {
                let bytes = ready!(reading.as_mut().poll(task));
                self.reading = None;
                self.segments.push_front(Segment::Bytes(bytes?.into()));
            }
            match self.segments.pop_front() {
                Some(Segment::Bytes(bytes)) if bytes.is_empty() => {}
                Some(Segment::Bytes(mut bytes)) => {
                    let piece = bytes.split_to(bytes.len().min(buffer.len()));
                    buffer[..piece.len()].copy_from_slice(&piece);
                    self.segments.push_front(Segment::Bytes(bytes));
                    return Poll::Ready(Ok(Filled::Content(piece.len())));
                }
                Some(Segment::File { length: 0, .. }) => {}
                Some(Segment::File { file, offset, length }) => {
                    let piece = length.min(buffer.len() as u64);
                    if piece < length {
                        let rest =
                            Segment::File { file: Arc::clone(&file), offset: offset + piece, length: length - piece };
                        self.segments.push_front(rest);
                    }
                    self.reading = Some(Box::pin(read_part(file, offset, piece)));
                }
                None => {
                    let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(Filled::End(None))) };
                    return stream.source.poll_fill(task, buffer);
                }
            }
        }
    }
}

impl ContentSource for PacedContent {
    fn poll_fill(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<Filled>> {
        ready!(self.poll_pause(task));
        let piece_bytes = self.pace.pace().piece_bytes().unwrap_or(u64::MAX);
        let most = usize::try_from(piece_bytes).unwrap_or(usize::MAX).min(buffer.len());
        let filled = ready!(self.poll_content(task, &mut buffer[..most]))?;
        if let Filled::Content(bytes) = &filled {
            self.pay(*bytes);
        }
        Poll::Ready(Ok(filled))
    }

    fn poll_ahead(&mut self, task: &mut Task<'_>) {
        if let Some(stream) = &mut self.stream {
            stream.source.poll_ahead(task);
        }
    }
}

/// Time of the monotonic clock, in microseconds.
fn now_us() -> u64 {
    Now::read().monotonic_ms * 1_000
}
