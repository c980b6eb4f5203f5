//! Flow control of a connection (RFC 9000, section 4).

use crate::codec::VARINT_MAX;
use crate::error::TransportError;

/// Most streams of a kind (RFC 9000, section 4.6).
const STREAMS_MAX: u64 = 1 << 60;

/// Part of a window after which a larger limit is sent. The peer still has most of the window until the frame arrives.
const WINDOW_PARTS: u64 = 8;

/// True if the peer must get the larger limit.
pub(super) fn is_limit_due(limit: u64, larger: u64, window: u64) -> bool {
    larger.saturating_sub(limit) >= (window / WINDOW_PARTS).max(1)
}

/// Bytes of all streams that the peer sends.
pub(super) struct ReceiveFlow {
    window: u64,
    /// Sum of the highest offsets of all streams.
    received: u64,
    /// Bytes that the application has read, or that were dropped.
    read: u64,
    /// Limit that the peer knows, or that is in a packet.
    limit: u64,
    /// True if MAX_DATA must be sent.
    pub(super) is_due: bool,
}

/// Bytes of all streams that this side sends.
pub(super) struct SendFlow {
    /// Limit of the peer.
    limit: u64,
    /// Bytes that the streams have accepted.
    written: u64,
    /// Bytes that the streams keep at most.
    window: u64,
    /// Bytes that the streams keep, because the peer has not acknowledged them or bytes before them.
    unacked: u64,
}

/// Streams of a kind that the peer opens.
pub(super) struct PeerStreams {
    /// Streams that may be open at the same time.
    open_max: u64,
    /// Number of streams that the peer may open altogether, as it knows or as a packet says.
    limit: u64,
    /// Number of streams that the peer has opened, with those that have ended.
    opened: u64,
    /// Number of streams that the application has accepted.
    accepted: u64,
    /// Number of streams that have ended.
    ended: u64,
    /// True if MAX_STREAMS must be sent.
    pub(super) is_due: bool,
    /// True if streams were opened since the last event.
    pub(super) has_new: bool,
}

impl ReceiveFlow {
    pub(super) fn new(window: u64) -> Self {
        let window = window.min(VARINT_MAX);
        Self { window, received: 0, read: 0, limit: window, is_due: false }
    }

    /// Counts bytes that the peer has sent.
    ///
    /// # Errors
    /// The peer has sent more than permitted.
    pub(super) fn on_received(&mut self, bytes: u64) -> Result<(), TransportError> {
        // Offsets are below 2^62, so that the sum doesn't overflow.
        if self.received + bytes > self.limit {
            return Err(TransportError::flow_control("more data than the connection permits"));
        }
        self.received += bytes;
        Ok(())
    }

    /// Returns bytes to the window.
    pub(super) fn on_read(&mut self, bytes: u64) {
        self.read += bytes;
        self.is_due |= is_limit_due(self.limit, self.larger(), self.window);
    }

    fn larger(&self) -> u64 {
        (self.read + self.window).min(VARINT_MAX)
    }

    /// Raises the limit. Returns it for a MAX_DATA frame.
    pub(super) fn raise(&mut self) -> u64 {
        self.is_due = false;
        self.limit = self.limit.max(self.larger());
        self.limit
    }

    /// Bytes that have arrived, or are missing before others, and were not read.
    pub(super) fn unread(&self) -> u64 {
        self.received - self.read
    }
}

impl SendFlow {
    pub(super) const fn new(window: u64) -> Self {
        Self { limit: 0, written: 0, window, unacked: 0 }
    }

    /// Bytes that may be written now.
    pub(super) fn room(&self) -> u64 {
        self.limit.saturating_sub(self.written).min(self.window.saturating_sub(self.unacked))
    }

    /// True if blocked streams should go on. Waits until an eighth of the send window is free, so that writes aren't
    /// tiny.
    pub(super) fn is_open(&self) -> bool {
        let free = self.window.saturating_sub(self.unacked);
        self.room() > 0 && (self.unacked == 0 || free >= self.window / WINDOW_PARTS)
    }

    pub(super) fn on_written(&mut self, bytes: u64) {
        self.written += bytes;
        self.unacked += bytes;
    }

    /// Counts bytes that a stream has dropped, because they were acknowledged or are not needed any more.
    pub(super) fn on_dropped(&mut self, bytes: u64) {
        self.unacked -= bytes;
    }

    /// Takes back bytes that were written and never sent.
    pub(super) fn on_withdrawn(&mut self, bytes: u64) {
        self.written -= bytes;
    }

    pub(super) fn raise_limit(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    pub(super) fn set_window(&mut self, window: u64) {
        self.window = window;
    }

    pub(super) fn unacked(&self) -> u64 {
        self.unacked
    }
}

impl PeerStreams {
    pub(super) fn new(open_max: u64) -> Self {
        let limit = open_max.min(STREAMS_MAX);
        Self { open_max: limit, limit, opened: 0, accepted: 0, ended: 0, is_due: false, has_new: false }
    }

    /// Opens a stream and all before it. Returns false if the application has accepted it before.
    ///
    /// # Errors
    /// The peer opens too many streams.
    pub(super) fn open(&mut self, number: u64) -> Result<bool, TransportError> {
        if number < self.opened {
            return Ok(number >= self.accepted);
        }
        if number >= self.limit {
            return Err(TransportError::stream_limit("more streams than permitted"));
        }
        self.opened = number + 1;
        self.has_new = true;
        self.update();
        Ok(true)
    }

    /// Accepts the next stream. Returns its number.
    pub(super) fn accept(&mut self) -> Option<u64> {
        let number = self.accepted;
        self.accepted += u64::from(number < self.opened);
        (number < self.opened).then_some(number)
    }

    pub(super) fn is_accepted(&self, number: u64) -> bool {
        number < self.accepted
    }

    pub(super) fn on_ended(&mut self) {
        self.ended += 1;
        self.update();
    }

    fn larger(&self) -> u64 {
        self.ended.saturating_add(self.open_max).min(STREAMS_MAX)
    }

    fn update(&mut self) {
        // Without the second condition, streams that stay open would block the peer.
        let is_blocked = self.opened == self.limit && self.larger() > self.limit;
        self.is_due |= is_blocked || is_limit_due(self.limit, self.larger(), self.open_max);
    }

    /// Raises the limit. Returns it for a MAX_STREAMS frame.
    pub(super) fn raise(&mut self) -> u64 {
        self.is_due = false;
        self.limit = self.limit.max(self.larger());
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_data_rise_in_eighths() {
        let mut flow = ReceiveFlow::new(800);
        flow.on_received(800).unwrap();
        assert_eq!(flow.on_received(1).unwrap_err().code, TransportError::FLOW_CONTROL_ERROR);
        flow.on_read(99);
        assert!(!flow.is_due);
        flow.on_read(1);
        assert!(flow.is_due);
        assert_eq!((flow.raise(), flow.is_due, flow.unread()), (900, false, 700));
        flow.on_received(100).unwrap();
        assert!(flow.on_received(1).is_err());
    }

    #[test]
    fn peers_get_streams_when_others_end() {
        let mut streams = PeerStreams::new(16);
        assert_eq!(streams.open(16).unwrap_err().code, TransportError::STREAM_LIMIT_ERROR);
        assert!(streams.open(9).unwrap());
        assert_eq!(std::iter::from_fn(|| streams.accept()).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
        streams.on_ended();
        assert!(!streams.is_due, "an eighth is two streams");
        streams.on_ended();
        assert!(streams.is_due);
        assert_eq!(streams.raise(), 18);
        // One has ended, and the peer uses all that it may. It would wait for ever.
        streams.on_ended();
        assert!(!streams.is_due);
        streams.open(17).unwrap();
        assert!(streams.is_due);
        assert_eq!(streams.raise(), 19);
        assert!(streams.open(18).unwrap());
        assert!(!streams.open(3).unwrap(), "accepted before");
        assert_eq!(PeerStreams::new(u64::MAX).raise(), STREAMS_MAX);
    }

    #[test]
    fn send_window_and_limit_both_bound_writes() {
        let mut flow = SendFlow::new(80);
        assert_eq!((flow.room(), flow.is_open()), (0, false));
        flow.raise_limit(100);
        assert_eq!(flow.room(), 80);
        flow.on_written(80);
        assert!(!flow.is_open());
        flow.on_dropped(9);
        assert_eq!((flow.room(), flow.is_open()), (9, false));
        flow.on_dropped(1);
        assert!(flow.is_open());
        flow.on_dropped(70);
        assert_eq!(flow.room(), 20);
        flow.raise_limit(50);
        assert_eq!(flow.room(), 20, "limits never fall");
        flow.set_window(10);
        assert_eq!(flow.room(), 10);
        flow.on_withdrawn(80);
        flow.set_window(200);
        assert_eq!(flow.room(), 100);
    }
}
