//! Connections: they join the protocol engines of `wire` to sockets, and ask routing for answers.
//!
//! A connection is a hand-written future. It polls its socket directly, works in buffers that belong to the thread, and
//! keeps bytes of its own only while a request is incomplete or a response is stuck.

mod arrival;
mod client_limit;
mod clock;
mod connections;
mod group;
mod h1;
mod h2;
mod handshakes;
mod live;
mod opening;
mod output;
mod record;
mod socket;
mod stream;
mod table;
mod tls_socket;
mod transmit;
mod transport;
mod tunnel;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

pub use client_limit::{ClientLimit, ClientPlace, TooManyConnections};
pub use clock::Clock;
pub use connections::Connections;
use h1::H1Connection;
use h2::H2Connection;
use handshakes::Handshakes;
use opening::{Opened, Opening};
pub use socket::Socket;
pub use table::{ConnectionTable, SWEEPS_A_ROUND, Stage, Verdict};
use tls_socket::TlsSocket;
use transport::Transport;
use wire::h1::{BodyLimits, HeadLimits, InputLimits};
use wire::http::RequestHead;

use self::output::Output;
use crate::config::{HttpVersions, Limits};
use crate::log::Recorder;
use crate::metrics::{Limit, WorkerMetrics};
use crate::routing::Router;

/// Input that is read at once, beyond a head's limit.
const READ_BYTES: usize = 16 << 10;

/// Bytes of content that are passed on at once.
const CONTENT_BYTES: usize = 64 << 10;

/// What all connections of a worker share. It stays on the worker's thread.
pub struct Context {
    /// Who answers requests.
    pub router: Rc<Router>,
    /// The configured limits.
    pub limits: Limits,
    /// Those that the engines of `wire` need, in their form.
    pub(crate) input_limits: InputLimits,
    /// The same for HTTP/2.
    pub(crate) h2_limits: wire::h2::Limits,
    /// Versions of HTTP that are spoken.
    pub http_versions: Cell<HttpVersions>,
    /// Whether responses carry `Server`.
    pub server_field: bool,
    /// The worker's clock.
    pub clock: Clock,
    /// All open connections.
    pub table: RefCell<ConnectionTable>,
    /// Where requests are logged.
    pub recorder: RefCell<Recorder>,
    /// Whether handlers want to know where clients have connected to, which costs a system call a request.
    pub tells_destinations: Cell<bool>,
    /// The handshakes of TLS that begin.
    handshakes: Handshakes,
    /// Where it is counted what the worker does, if it is.
    metrics: Option<Arc<WorkerMetrics>>,
    /// Set when the worker ends: answers in progress are the last ones.
    pub is_draining: Cell<bool>,
    scratch: RefCell<Scratch>,
}

/// Buffers that a connection uses while it is polled, and none keeps.
struct Scratch {
    input: Vec<u8>,
    /// What reading into `input` gave, if that has been done before the connection is polled.
    read: Option<io::Result<usize>>,
    /// Whether responses that can be sent at once stay in `output` when the connection has been polled.
    gathers: bool,
    head: RequestHead,
    path: Vec<u8>,
    host: Vec<u8>,
    output: Output,
    /// The text of a head of HTTP/2.
    text: Vec<u8>,
    /// Output in the form of HTTP/2.
    frames: wire::h2::Output,
    /// For content that comes while it is sent.
    content: Vec<u8>,
}

impl Scratch {
    /// All connections of the worker use it in turn. What one left when it failed is nobody else's.
    fn clear(&mut self, limits: &Limits) {
        self.output.clear();
        self.frames.clear();
        if self.input.is_empty() {
            // It had lent the buffer to a handler when it failed.
            self.input = vec![0; input_bytes(limits)];
        }
    }
}

/// Bytes that are read at once, with the beginning of a head or frame that was read before: more than the largest frame.
fn input_bytes(limits: &Limits) -> usize {
    limits.head_bytes_max + READ_BYTES
}

impl Context {
    /// The context, counting here.
    #[must_use]
    pub fn counting(self, metrics: Arc<WorkerMetrics>) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Where it is counted what the worker does, if it is.
    pub fn metrics(&self) -> Option<&WorkerMetrics> {
        self.metrics.as_deref()
    }

    /// Counts that a client has come to a limit.
    pub fn count_limit(&self, limit: Limit) {
        if let Some(metrics) = &self.metrics {
            metrics.on_limit(limit);
        }
    }

    /// Counts bytes that came from a client.
    #[inline]
    fn count_received(&self, bytes: usize) {
        if let Some(metrics) = &self.metrics {
            metrics.received_bytes.add(bytes as u64);
        }
    }

    /// Counts bytes that went to a client.
    #[inline]
    fn count_sent(&self, bytes: u64) {
        if let Some(metrics) = &self.metrics {
            metrics.sent_bytes.add(bytes);
        }
    }

    /// A context with these limits.
    pub fn new(router: Rc<Router>, limits: Limits, server_field: bool, recorder: Recorder, clock: Clock) -> Self {
        let input = vec![0; input_bytes(&limits)];
        Self {
            router,
            input_limits: InputLimits {
                head: HeadLimits {
                    head_bytes_max: limits.head_bytes_max,
                    fields_max: limits.fields_max,
                    target_bytes_max: limits.target_bytes_max,
                },
                body: BodyLimits {
                    body_bytes_max: limits.body_bytes_max.answered_here(),
                    extension_bytes_max: limits.head_bytes_max,
                    trailer_bytes_max: limits.head_bytes_max,
                },
            },
            h2_limits: h2::engine_limits(&limits),
            http_versions: Cell::default(),
            handshakes: Handshakes::new(limits.tls_handshakes_per_second_max, limits.tls_handshake_timeout),
            limits,
            server_field,
            clock,
            table: RefCell::default(),
            recorder: RefCell::new(recorder),
            tells_destinations: Cell::new(false),
            metrics: None,
            is_draining: Cell::new(false),
            scratch: RefCell::new(Scratch {
                input,
                read: None,
                gathers: false,
                head: RequestHead::default(),
                path: Vec::new(),
                host: Vec::new(),
                output: Output::default(),
                text: Vec::new(),
                frames: wire::h2::Output::default(),
                content: vec![0; CONTENT_BYTES],
            }),
        }
    }
}
