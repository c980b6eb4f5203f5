//! Counts and histograms of each thread, by interval.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use quinn_proto::Transmit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::clock::{Nanos, SECOND};
use super::failure::{FailureClass, FailureReason, Failures};
use super::quic::SentBurst;

/// Maximum time that a histogram can record; longer times count as this one.
const LATENCY_MAX: Nanos = 3600 * SECOND;
/// Maximum number of reasons to count one by one; further ones count only in their class.
const REASONS_MAX: usize = 64;

/// Counts and histograms of an interval: first of one thread, then merged over all. Times are in nanoseconds, with
/// three significant digits.
#[derive(Clone, Debug)]
pub(crate) struct IntervalRecord {
    /// Responses that passed all checks.
    pub served: u64,
    /// Served responses within the deadline, if there is one.
    pub in_time: u64,
    /// Failed requests by class.
    pub failures: Failures,
    /// Failed requests by reason, if more is known than the class.
    pub failure_reasons: BTreeMap<(FailureClass, FailureReason), u64>,
    /// Requests that the client aborted on purpose.
    pub aborted: u64,
    /// Responses by the first digit of their status, from 1xx at index 1.
    pub statuses: [u64; 10],
    /// Connections established.
    pub connections: u64,
    /// Completed TLS handshakes of these connections.
    pub handshakes: HandshakeCounts,
    /// Bytes received from sockets, including heads and TLS records.
    pub bytes_received: u64,
    /// Bytes sent to sockets, including heads and TLS records.
    pub bytes_sent: u64,
    /// Datagrams of HTTP/3.
    pub datagrams: DatagramCounts,
    /// Time from the due time of a request to the last byte of its response.
    pub latency: Histogram<u64>,
    /// Open loop: time from sending a request to the last byte of its response. It omits the wait before sending.
    pub service: Histogram<u64>,
    /// Open loop: delay between the due time of a request and its start.
    pub lag: Histogram<u64>,
    /// Open loop: requests that found no free connection at their due time.
    pub waited: u64,
    /// Time to connect, including the TLS handshake.
    pub connect: Histogram<u64>,
    /// Time of the TLS handshake.
    pub handshake: Histogram<u64>,
}

/// Completed TLS handshakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Handshakes")]
pub(crate) struct HandshakeCounts {
    /// With certificate and key exchange.
    pub full: u64,
    /// Resumed from an earlier session.
    pub resumed: u64,
    /// Resumed ones whose early data (0-RTT) the server has accepted.
    #[serde(default)]
    pub early: u64,
}

impl HandshakeCounts {
    /// Adds others to them.
    fn merge(&mut self, other: &Self) {
        self.full += other.full;
        self.resumed += other.resumed;
        self.early += other.early;
    }
}

/// Datagrams of HTTP/3, and the system calls for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Datagrams")]
pub(crate) struct DatagramCounts {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// System calls that received.
    pub receive_calls: u64,
    /// System calls that sent.
    pub send_calls: u64,
    /// Calls that failed to send. Their datagrams were lost.
    pub failed_sends: u64,
    /// Changes to another UDP port of the client.
    #[serde(default)]
    pub moves: u64,
}

impl DatagramCounts {
    /// Adds others to them.
    fn merge(&mut self, other: &Self) {
        self.received += other.received;
        self.sent += other.sent;
        self.receive_calls += other.receive_calls;
        self.send_calls += other.send_calls;
        self.failed_sends += other.failed_sends;
        self.moves += other.moves;
    }
}

/// Empty histogram of times.
pub(crate) fn latency_histogram() -> Histogram<u64> {
    // The bounds are constants within what the crate allows.
    Histogram::new_with_bounds(1, LATENCY_MAX, 3).expect("valid bounds")
}

impl Default for IntervalRecord {
    fn default() -> Self {
        Self {
            served: 0,
            in_time: 0,
            failures: Failures::default(),
            failure_reasons: BTreeMap::new(),
            aborted: 0,
            statuses: [0; 10],
            connections: 0,
            handshakes: HandshakeCounts::default(),
            bytes_received: 0,
            bytes_sent: 0,
            datagrams: DatagramCounts::default(),
            latency: latency_histogram(),
            service: latency_histogram(),
            lag: latency_histogram(),
            waited: 0,
            connect: latency_histogram(),
            handshake: latency_histogram(),
        }
    }
}

impl IntervalRecord {
    /// Counts a request that failed.
    pub(crate) fn fail(&mut self, class: FailureClass, reason: FailureReason) {
        self.failures.add(class);
        self.explain(class, reason, 1);
    }

    /// Counts a reason of failed requests.
    fn explain(&mut self, class: FailureClass, reason: FailureReason, count: u64) {
        if reason == FailureReason::Unknown {
            return;
        }
        let is_full = self.failure_reasons.len() >= REASONS_MAX;
        match self.failure_reasons.get_mut(&(class, reason.clone())) {
            Some(sum) => *sum += count,
            None if is_full => {}
            None => {
                self.failure_reasons.insert((class, reason), count);
            }
        }
    }

    /// Drops the counts of connections.
    pub(crate) fn drop_connections(&mut self) {
        (self.connections, self.handshakes) = Default::default();
        self.connect.reset();
        self.handshake.reset();
    }

    /// Drops the counts of bytes and datagrams.
    pub(crate) fn drop_bytes(&mut self) {
        (self.bytes_received, self.bytes_sent, self.datagrams) = Default::default();
    }

    /// Drops the counts of requests.
    pub(crate) fn drop_requests(&mut self) {
        let Self { connections, handshakes, bytes_received, bytes_sent, datagrams, .. } = *self;
        let earlier = std::mem::take(self);
        let Self { connect, handshake, .. } = earlier;
        *self = Self {
            connections,
            handshakes,
            bytes_received,
            bytes_sent,
            datagrams,
            connect,
            handshake,
            ..Self::default()
        };
    }

    /// Counts a call that has sent datagrams, or failed to.
    pub(crate) fn count_datagrams(&mut self, transmit: &Transmit, sent: SentBurst) {
        self.datagrams.send_calls += 1;
        if sent == SentBurst::Failed {
            self.datagrams.failed_sends += 1;
            return;
        }
        self.datagrams.sent += transmit.segment_size.map_or(1, |bytes| transmit.size.div_ceil(bytes.max(1))) as u64;
        self.bytes_sent += transmit.size as u64;
    }

    /// Requests that came to an end.
    pub(crate) fn finished(&self) -> u64 {
        self.served + self.failures.total() + self.aborted
    }

    /// Adds another time's counts.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.served += other.served;
        self.in_time += other.in_time;
        self.failures.merge(&other.failures);
        for ((class, reason), count) in &other.failure_reasons {
            self.explain(*class, reason.clone(), *count);
        }
        self.aborted += other.aborted;
        for (count, more) in self.statuses.iter_mut().zip(other.statuses) {
            *count += more;
        }
        self.connections += other.connections;
        self.handshakes.merge(&other.handshakes);
        self.bytes_received += other.bytes_received;
        self.bytes_sent += other.bytes_sent;
        self.datagrams.merge(&other.datagrams);
        self.waited += other.waited;
        let pairs = [
            (&mut self.latency, &other.latency),
            (&mut self.service, &other.service),
            (&mut self.lag, &other.lag),
            (&mut self.connect, &other.connect),
            (&mut self.handshake, &other.handshake),
        ];
        for (histogram, more) in pairs {
            if !more.is_empty() {
                histogram.add(more).expect("the same bounds");
            }
        }
    }
}
