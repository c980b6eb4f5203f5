//! Uploads, and other changes of the tree.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context as Task, Poll, ready};

use wire::ftp::{AsciiDecoder, FtpChange, FtpReply, TransferType, push_quoted};

use super::FtpConnection;
use super::look::rejection_reply;
use super::transfer::{TransferStage, Transferring};
use crate::config::FtpWriters;
use crate::connection::Transport;
use crate::connection::transfer_rate::TransferMeter;
use crate::handler::{FtpFiles, NamedChange, NamedRejection, NamedUpload};
use crate::metrics::Limit;
use crate::object_cache::Blocking;

/// Bytes that are received before they are written.
const PIECE_BYTES: usize = 128 << 10;

/// Reads before the other connections of the worker get their turn.
const READS_A_TURN_MAX: u32 = 16;

/// Upload in progress.
pub(super) struct FtpUpload {
    /// Set while no piece is written.
    upload: Option<NamedUpload>,
    decoder: Option<AsciiDecoder>,
    piece: Vec<u8>,
    writing: Option<Blocking<(NamedUpload, Result<(), NamedRejection>)>>,
    /// True if the client has sent all.
    is_ended: bool,
    /// Reply after the last write, if the connection was cut.
    cut: Option<FtpReply>,
    pub(super) received_bytes: u64,
    noted_bytes: u64,
    meter: TransferMeter,
}

/// Change that is awaited, and the reply to it.
pub(super) struct Changing {
    /// Bytes of the paths.
    pub(super) held_bytes: usize,
    future: Pin<Box<dyn Future<Output = Result<(), NamedRejection>>>>,
    reply: FtpReply,
}

impl FtpUpload {
    pub(super) fn new(upload: NamedUpload, transfer_type: TransferType) -> Self {
        Self {
            upload: Some(upload),
            decoder: (transfer_type == TransferType::Ascii).then(AsciiDecoder::default),
            piece: Vec::new(),
            writing: None,
            is_ended: false,
            cut: None,
            received_bytes: 0,
            noted_bytes: 0,
            meter: TransferMeter::default(),
        }
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.piece.capacity() + if self.writing.is_some() { PIECE_BYTES } else { 0 }
    }

    /// Writes the received piece, then removes or keeps the incomplete file. The reply comes after that, so that the client
    /// can ask for the kept length at once.
    fn begin_end(&mut self, reply: FtpReply) {
        let Some(mut upload) = self.upload.take() else { return };
        let piece = std::mem::take(&mut self.piece);
        self.cut = Some(reply);
        self.writing = Some(Blocking::spawn(move || {
            let result = upload.write(&piece);
            upload.abandon();
            (upload, result)
        }));
    }

    /// Writes the received piece; gives the file its name after the last.
    fn begin_write(&mut self) {
        let Some(mut upload) = self.upload.take() else { return };
        let (piece, is_last) = (std::mem::take(&mut self.piece), self.is_ended);
        self.writing = Some(Blocking::spawn(move || {
            let result = upload.write(&piece).and_then(|()| if is_last { upload.complete() } else { Ok(()) });
            (upload, result)
        }));
    }
}

impl Drop for FtpUpload {
    fn drop(&mut self) {
        // Removing an incomplete file may wait for a disk.
        if let Some(upload) = self.upload.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            drop(runtime.spawn_blocking(move || drop(upload)));
        }
    }
}

impl FtpConnection {
    /// True if the client may change the tree.
    pub(super) fn may_write(&self) -> bool {
        self.site().is_some_and(|site| match site.config.writers {
            FtpWriters::Off => false,
            FtpWriters::Users => self.session.is_logged_in() && !self.is_anonymous,
            FtpWriters::All => true,
        })
    }

    /// User for whom an incomplete upload to this site is kept; `None` if it is not kept.
    pub(super) fn keeper(&self, site: &FtpFiles) -> Option<Vec<u8>> {
        (site.config.keeps_partial && self.may_write()).then(|| self.user.to_vec())
    }

    /// Receives until the upload is complete.
    pub(super) fn poll_receive(&mut self, task: &mut Task<'_>) -> Poll<Result<(), FtpReply>> {
        let site = self.site();
        let pace = site.as_ref().map(|site| site.pace()).filter(|pace| pace.piece_bytes().is_some());
        let context = &*self.context;
        let Some(transfer) = &mut self.transfer else { return Poll::Ready(Err(closed())) };
        let Transferring { stage, socket, deadline_ms, pausing, .. } = &mut **transfer;
        let (TransferStage::Receive(receiving), Some(socket)) = (stage, socket) else {
            return Poll::Ready(Err(closed()));
        };
        let body_timeout_ms = context.generation().limits.body_timeout.as_millis() as u64;
        for _ in 0..READS_A_TURN_MAX {
            if let Some(writing) = &mut receiving.writing {
                let written = ready!(Pin::new(writing).poll(task));
                receiving.writing = None;
                if let Some(reply) = receiving.cut.take() {
                    return Poll::Ready(Err(reply));
                }
                match written {
                    Ok((upload, Ok(()))) if receiving.is_ended => {
                        drop(upload);
                        // Tells a client with TLS that nothing was cut off.
                        let _ = socket.shutdown_write();
                        return Poll::Ready(Ok(()));
                    }
                    Ok((upload, Ok(()))) => receiving.upload = Some(upload),
                    Ok((upload, Err(rejection))) => {
                        receiving.upload = Some(upload);
                        return Poll::Ready(Err(rejection_reply(rejection)));
                    }
                    Err(_) => return Poll::Ready(Err(rejection_reply(NamedRejection::Failed))),
                }
            }
            let now_ms = context.clock.now().monotonic_ms;
            if pace.is_some() {
                ready!(pausing.poll(now_ms, self.paid_until_us, (deadline_ms, body_timeout_ms), task));
            }
            let polled = socket.poll_read(&mut context.scratch.borrow_mut().input);
            let limit = context.rate_limit();
            receiving.meter.end_wait(now_ms);
            match polled {
                Poll::Ready(Ok(0)) if !socket.has_clean_end() => receiving.begin_end(closed()),
                Poll::Ready(Ok(0)) => {
                    receiving.is_ended = true;
                    if let Some(decoder) = &mut receiving.decoder {
                        decoder.finish(&mut receiving.piece);
                    }
                    receiving.begin_write();
                }
                Poll::Ready(Ok(count)) => {
                    let input = &context.scratch.borrow().input[..count];
                    match &mut receiving.decoder {
                        Some(decoder) => decoder.push(input, &mut receiving.piece),
                        None => receiving.piece.extend_from_slice(input),
                    }
                    receiving.received_bytes += count as u64;
                    if let Some(pace) = &pace {
                        pace.on_bytes(count as u64, now_ms * 1_000, &mut self.paid_until_us);
                    }
                    context.count_received(count);
                    receiving.meter.on_bytes(count as u64, &limit);
                    *deadline_ms = now_ms + body_timeout_ms;
                    if receiving.piece.len() >= PIECE_BYTES {
                        receiving.begin_write();
                    }
                }
                Poll::Ready(Err(_)) => receiving.begin_end(closed()),
                Poll::Pending => {
                    let received_bytes = receiving.received_bytes;
                    let moved_bytes = received_bytes - std::mem::replace(&mut receiving.noted_bytes, received_bytes);
                    context.table.borrow_mut().note_progress(self.slot, moved_bytes);
                    receiving.meter.begin_wait(now_ms);
                    if receiving.meter.is_too_slow(now_ms, &limit) {
                        context.count_limit(Limit::RateMin);
                        return Poll::Ready(Err(FtpReply::new(426, "The transfer was too slow.")));
                    }
                    return Poll::Pending;
                }
            }
        }
        // Other connections get their turn first.
        task.waker().wake_by_ref();
        Poll::Pending
    }

    pub(super) fn begin_change(&mut self, change: FtpChange) {
        let Some(site) = self.site().filter(|_| self.may_write()) else {
            return self.reply(&rejection_reply(NamedRejection::Forbidden));
        };
        let at = |path: &[u8]| self.changed_path_in_root(path);
        let (change, reply) = match &change {
            FtpChange::Delete(path) => (NamedChange::Delete(at(path)), FtpReply::new(250, "File deleted.")),
            FtpChange::MakeDirectory(path) => {
                let mut text = Vec::new();
                push_quoted(&mut text, path);
                text.extend_from_slice(b" created.");
                (NamedChange::MakeDirectory(at(path)), FtpReply::with_text(257, text))
            }
            FtpChange::RemoveDirectory(path) => {
                (NamedChange::RemoveDirectory(at(path)), FtpReply::new(250, "Directory removed."))
            }
            FtpChange::Rename(from, to) => (NamedChange::Rename(at(from), at(to)), FtpReply::new(250, "Renamed.")),
            FtpChange::SetModified(path, seconds) => {
                let mut text = b"Modify=".to_vec();
                wire::ftp::push_time(&mut text, *seconds);
                text.extend_from_slice(b"; ");
                text.extend_from_slice(path);
                (NamedChange::SetModified(at(path), *seconds), FtpReply::with_text(213, text))
            }
        };
        let (host, now) = (self.host.clone().unwrap_or_default(), self.context.clock.now());
        let held_bytes = change.held_bytes() + reply.text.len();
        let future = Box::pin(site.files.clone().change(host, change, now));
        self.changing = Some(Box::new(Changing { held_bytes, future, reply }));
    }

    /// Replies when the change is done.
    pub(super) fn poll_change(&mut self, task: &mut Task<'_>) -> Poll<()> {
        let Some(changing) = &mut self.changing else { return Poll::Ready(()) };
        let result = ready!(changing.future.as_mut().poll(task));
        if let Some(changing) = self.changing.take() {
            self.reply(&result.map_or_else(rejection_reply, |()| changing.reply));
        }
        Poll::Ready(())
    }
}

impl Transport {
    /// True if the peer's end is known to be its own: with TLS, only after `close_notify`.
    fn has_clean_end(&self) -> bool {
        match self {
            Self::Plain(_) => true,
            Self::Tls(tls) => tls.has_close_notify(),
        }
    }
}

fn closed() -> FtpReply {
    FtpReply::new(426, "The data connection was closed, transfer aborted.")
}
