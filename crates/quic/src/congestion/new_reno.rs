//! NewReno (RFC 9002, section 7 and appendix B).

use std::time::Instant;

use super::Flow;

/// NewReno controller.
#[derive(Clone, Debug)]
pub(crate) struct NewReno {
    pub(super) flow: Flow,
    /// Bytes acknowledged since the window has grown last, in congestion avoidance.
    acked: u64,
    /// Window and threshold before the last congestion event, if a spurious loss may restore them.
    before: Option<(u64, u64)>,
}

impl NewReno {
    pub(super) fn new(window: u64, datagram_bytes: u16) -> Self {
        Self { flow: Flow::new(window, datagram_bytes), acked: 0, before: None }
    }

    pub(super) fn on_acked(&mut self, sent_at: Instant, bytes: u64, is_app_limited: bool) {
        if !self.flow.may_grow(sent_at, is_app_limited) {
            return;
        }
        if self.flow.is_slow_start() {
            self.flow.grow(bytes);
            return;
        }
        self.acked += bytes;
        if self.acked >= self.flow.window {
            self.acked -= self.flow.window;
            self.flow.grow(self.flow.datagram_bytes);
        }
    }

    pub(super) fn on_congestion(&mut self, now: Instant, sent_at: Instant, is_persistent: bool, lost_bytes: u64) {
        if !self.flow.is_recovering(sent_at) {
            self.before = (lost_bytes > 0).then_some((self.flow.window, self.flow.threshold));
            self.acked = 0;
            self.flow.reduce(now, self.flow.window / 2);
        }
        if is_persistent {
            self.before = None;
            self.flow.on_persistent_congestion();
        }
    }

    pub(super) fn on_spurious_loss(&mut self) {
        if let Some((window, threshold)) = self.before.take() {
            self.flow.window = self.flow.window.max(window);
            self.flow.threshold = self.flow.threshold.max(threshold);
            self.flow.recovery_from = None;
        }
    }
}
