//! Reads and drops the output of scripts whose responses have no content.
//!
//! A script should not be interrupted in its work because its output has no reader, so the output is read to its end.
//! Clients could start scripts in this way and leave, so both the time and the output are limited.

use std::future::poll_fn;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::content::{RemainingContent, UpstreamContent, Upstreaming};
use crate::handler::{ContentSource, Filled};

/// Size of one read.
const READ_BYTES: usize = 16 << 10;

/// Maximum output that is read.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;

/// Time that a script has to end after its client has left.
const GRACE: Duration = Duration::from_secs(1);

/// Interval at which the client's connection is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

impl Upstreaming {
    /// Reads the rest of the response and drops it, for at most `between-bytes-timeout`. With `abort-on-close`, the
    /// exchange is aborted soon after the client has left.
    pub(super) fn drain(self) {
        if let Some(records) = &self.records
            && records.has_ended()
        {
            let is_reusable = records.is_reusable();
            return self.finish(is_reusable);
        }
        let awaiting = match self.records.is_some() {
            true => RemainingContent::Records(None),
            false => RemainingContent::Close,
        };
        // Now, while the connection is open: later, its slot may be another's.
        self.link.watch_connection();
        let deadline = Instant::now() + self.inner.plan.config.between_bytes_timeout;
        let mut content = self.stream(awaiting, true);
        content.is_drained = true;
        tokio::task::spawn_local(content.drain(deadline));
    }

    /// True if the client has left and the configuration aborts its exchanges.
    fn is_abandoned(&self) -> bool {
        let has_left = self.link.has_client_ended() || self.link.has_connection_closed();
        has_left && self.inner.plan.config.abort_with_client
    }
}

impl UpstreamContent {
    /// Reads to the end or to a limit. Dropping the exchange aborts it.
    async fn drain(mut self, deadline: Instant) {
        let mut buffer = vec![0; READ_BYTES];
        let (mut output_bytes, mut left_at) = (0, None);
        loop {
            let check_at = deadline.min(Instant::now() + CHECK_INTERVAL);
            match timeout_at(check_at, poll_fn(|task| self.poll_fill(task, &mut buffer))).await {
                Ok(Ok(Filled::Content(count))) => output_bytes += count as u64,
                Ok(_) => return,
                Err(_) => {}
            }
            let now = Instant::now();
            let Some(upstreaming) = &self.upstreaming else { return };
            if output_bytes > OUTPUT_BYTES_MAX {
                return upstreaming.warn_of_cut(&"too much output for a response without content");
            }
            if now >= deadline {
                return upstreaming.warn_of_cut(&"no end of a response without content (between-bytes-timeout)");
            }
            if upstreaming.is_abandoned() && now >= *left_at.get_or_insert(now) + GRACE {
                return;
            }
        }
    }
}
