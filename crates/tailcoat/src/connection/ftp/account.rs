//! Access log and metrics of transfers.

use wire::http::Status;

use super::FtpConnection;
use super::transfer::Transferring;
use crate::log::{LogRecord, Subject};
use crate::metrics::{HandlerKind, RequestFacts, VersionKind};

/// Code of the reply at the end of a complete transfer.
const COMPLETE: u16 = 226;

impl FtpConnection {
    /// Logs and counts a transfer that ended with a reply of this code.
    pub(super) fn record(&self, transfer: &Transferring, code: u16) {
        let now = self.context.clock.now();
        let (content_bytes, received) = (transfer.moved_bytes(), transfer.received);
        let duration_us = now.unix_us.saturating_sub(received.unix_us);
        if let Some(metrics) = self.context.metrics() {
            metrics.on_request(&RequestFacts {
                site: transfer.account.counted,
                handler: HandlerKind::Ftp,
                version: VersionKind::Ftp,
                status: code,
                content_bytes,
                duration_us,
            });
        }
        let (Some(log), Some(status)) = (transfer.account.log, Status::new(code)) else { return };
        self.context.recorder.borrow_mut().record(&LogRecord {
            log,
            subject: Subject::Ftp(transfer.command(), &transfer.request.path),
            client: self.client,
            host: self.host.as_deref().unwrap_or_default(),
            user: &self.user,
            tls: self.tls.as_ref().map(|tls| tls.record()),
            upstream: None,
            cache_status: "",
            request_id: "",
            trace: None,
            is_complete: code == COMPLETE,
            status,
            content_bytes,
            unix_us: received.unix_us,
            duration_us,
        });
    }
}
