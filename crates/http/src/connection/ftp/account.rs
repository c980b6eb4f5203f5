//! Access log and metrics of transfers.

use wire::ftp::TransferType;
use wire::http::Status;

use super::FtpConnection;
use super::transfer::Transferring;
use crate::connection::live::text;
use crate::log::{FtpFlags, FtpSubject, LogRecord, Subject};
use crate::metrics::{FtpDirection, HandlerKind, LiveFtpSession, RequestFacts, VersionKind};

/// Code of the reply at the end of a complete transfer.
const COMPLETE: u16 = 226;

impl FtpConnection {
    /// True while a transfer is in progress.
    pub(crate) fn is_transferring(&self) -> bool {
        self.transfer.is_some()
    }

    /// The session for operators.
    pub(crate) fn live(&self) -> LiveFtpSession {
        let now_ms = self.context.clock.now().monotonic_ms;
        let session = LiveFtpSession {
            client: self.client.to_string(),
            user: text(&self.user),
            is_encrypted: self.tls.is_some(),
            age_ms: now_ms.saturating_sub(self.active_ms),
            ..LiveFtpSession::default()
        };
        match &self.transfer {
            None => session,
            Some(transfer) => LiveFtpSession {
                command: transfer.command().to_owned(),
                path: text(&transfer.request.path),
                age_ms: now_ms.saturating_sub(transfer.received.monotonic_ms),
                moved_bytes: transfer.moved_bytes(),
                total_bytes: transfer.total_bytes,
                ..session
            },
        }
    }

    /// Logs and counts a transfer that ended with a reply of this code.
    pub(super) fn record(&self, transfer: &Transferring, code: u16) {
        let now = self.context.clock.now();
        let (content_bytes, received) = (transfer.moved_bytes(), transfer.received);
        let duration_us = now.unix_us.saturating_sub(received.unix_us);
        if let Some(metrics) = self.context.metrics() {
            metrics.ftp.on_transfer(transfer.direction(), code == COMPLETE, content_bytes);
            let content_bytes = if transfer.direction() == FtpDirection::Upload { 0 } else { content_bytes };
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
            subject: Subject::Ftp(FtpSubject {
                command: transfer.command(),
                path: &transfer.request.path,
                flags: FtpFlags {
                    is_ascii: transfer.request.transfer_type == TransferType::Ascii,
                    is_anonymous: self.is_anonymous,
                },
            }),
            client: self.client,
            host: self.host.as_deref().unwrap_or_default(),
            user: &self.user,
            tls: self.tls.as_ref().map(|tls| tls.record()),
            upstream: None,
            cache_status: "",
            request_id: "",
            trace: None,
            bot: None,
            is_complete: code == COMPLETE,
            status,
            content_bytes,
            unix_us: received.unix_us,
            duration_us,
        });
    }
}
