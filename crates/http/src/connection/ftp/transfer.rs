//! Transfers: a file or a listing, from the command to the last reply.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};

use bytes::Bytes;
use wire::ftp::{
    AsciiEncoder, FactSet, FtpReply, FtpTransfer, FtpTransferKind, TransferType, push_facts, push_long_line,
};

use super::FtpConnection;
use super::data::{DataChannel, unpredictable};
use super::look::{rejection_reply, shown};
use super::pausing::Pausing;
use super::receive::FtpUpload;
use crate::connection::handshakes::LinePlace;
use crate::connection::output::Output;
use crate::connection::transfer_rate::TransferMeter;
use crate::connection::transmit::Transmission;
use crate::connection::{ConnectionStage, Socket, Transport};
use crate::handler::{
    FtpFiles, ListingScope, NamedContent, NamedListing, NamedUpload, Now, Segment, UploadRequest, UploadStart,
};
use crate::log::LogClient;
use crate::metrics::{FtpDirection, Limit};
use crate::object_cache::{Blocking, OpenFile};
use crate::routing::RequestAccount;

/// Bytes of a large text file that are read and converted at once.
const TEXT_PIECE_BYTES: u64 = 64 << 10;

/// Transfer in progress.
pub(super) struct Transferring {
    pub(super) request: FtpTransfer,
    pub(super) account: RequestAccount,
    pub(super) received: Now,
    pub(super) stage: TransferStage,
    /// Content that waits for the data connection.
    content: Option<TransferContent>,
    /// Data connection, once the client has opened it.
    pub(super) socket: Option<Transport>,
    /// Bytes that will be sent, if they are known.
    pub(super) total_bytes: Option<u64>,
    /// Bytes that the data connection has accepted.
    sent_bytes: u64,
    /// Bytes of these that were counted as progress of the client.
    noted_bytes: u64,
    /// Time by which the client must connect or accept more, in milliseconds.
    pub(super) deadline_ms: u64,
    /// Time that the client has to connect, in milliseconds.
    data_timeout_ms: u64,
    meter: TransferMeter,
    /// Pause because of the maximum rate.
    pub(super) pausing: Pausing,
}

/// State of a transfer, by what it waits for.
#[allow(private_interfaces)]
pub(super) enum TransferStage {
    /// Content.
    Content(Pin<Box<dyn Future<Output = Result<TransferContent, FtpReply>>>>),
    /// Data connection.
    Connection,
    /// Turn among many TLS handshakes.
    Turn(Option<LinePlace>),
    /// End of the TLS handshake.
    Handshake,
    /// Client that must accept output, and the content after that.
    Client(Box<Transmission>, Option<TransferContent>),
    /// Client that must send, or the disk that must accept.
    Receive(Box<FtpUpload>),
}

/// Content of a transfer.
pub(super) enum TransferContent {
    Segment(Segment),
    Text(TextFile),
    Upload(NamedUpload),
}

/// Large file whose line ends are converted while it is sent.
pub(super) struct TextFile {
    file: Arc<OpenFile>,
    offset: u64,
    encoder: AsciiEncoder,
    reading: Option<Blocking<io::Result<Vec<u8>>>>,
}

impl Transferring {
    pub(super) fn socket_mut(&mut self) -> Option<&mut Socket> {
        self.socket.as_mut().map(Transport::socket_mut)
    }

    pub(super) fn awaits_connection(&self) -> bool {
        matches!(self.stage, TransferStage::Connection)
    }

    /// Bytes that were sent or received.
    pub(super) fn moved_bytes(&self) -> u64 {
        match &self.stage {
            TransferStage::Receive(receiving) => receiving.received_bytes,
            _ => self.sent_bytes,
        }
    }

    pub(super) fn held_bytes(&self) -> usize {
        let waiting_bytes = match &self.content {
            Some(TransferContent::Segment(segment)) => segment.own_bytes(),
            Some(TransferContent::Text(_) | TransferContent::Upload(_)) | None => 0,
        };
        let sending_bytes = match &self.stage {
            TransferStage::Client(transmission, _) => transmission.held_bytes(),
            TransferStage::Receive(receiving) => receiving.held_bytes(),
            // The lookup holds the path below the root.
            TransferStage::Content(_) => self.request.path.capacity(),
            TransferStage::Connection | TransferStage::Turn(_) | TransferStage::Handshake => 0,
        };
        let names_bytes = self.request.path.capacity() + self.request.argument.capacity();
        names_bytes + waiting_bytes + sending_bytes + self.socket.as_ref().map_or(0, Transport::held_bytes)
    }

    /// Stage for the table of connections, and the deadline.
    pub(super) fn stage(&self) -> (ConnectionStage, Option<u64>) {
        match &self.stage {
            TransferStage::Content(_) => (ConnectionStage::Answer, None),
            TransferStage::Connection | TransferStage::Turn(_) | TransferStage::Handshake => {
                (ConnectionStage::Answer, Some(self.deadline_ms))
            }
            TransferStage::Client(..) => (ConnectionStage::Write, Some(self.deadline_ms)),
            TransferStage::Receive(_) => (ConnectionStage::Content, Some(self.deadline_ms)),
        }
    }

    /// Direction for metrics.
    pub(super) fn direction(&self) -> FtpDirection {
        match self.request.kind {
            FtpTransferKind::Retrieve => FtpDirection::Download,
            FtpTransferKind::Store | FtpTransferKind::StoreUnique | FtpTransferKind::Append => FtpDirection::Upload,
            FtpTransferKind::LongList(_) | FtpTransferKind::Names(_) | FtpTransferKind::Facts => FtpDirection::Listing,
        }
    }

    /// Command for logs.
    pub(super) fn command(&self) -> &'static str {
        match self.request.kind {
            FtpTransferKind::Retrieve => "RETR",
            FtpTransferKind::Store => "STOR",
            FtpTransferKind::StoreUnique => "STOU",
            FtpTransferKind::Append => "APPE",
            FtpTransferKind::LongList(_) => "LIST",
            FtpTransferKind::Names(_) => "NLST",
            FtpTransferKind::Facts => "MLSD",
        }
    }
}

impl FtpConnection {
    pub(super) fn begin_transfer(&mut self, request: FtpTransfer) {
        let Some(site) = self.site().filter(|_| self.data.is_open()) else {
            self.session.on_transfer_end();
            return self.reply(&FtpReply::new(425, "Send EPSV or PASV first."));
        };
        let received = self.context.clock.now();
        let host = self.host.clone().unwrap_or_default();
        let account = self.context.generation().router.ftp_account(self.listener, self.host.as_deref(), &request.path);
        let mut request = request;
        if request.kind == FtpTransferKind::StoreUnique {
            let slash: &[u8] = if request.path.ends_with(b"/") { b"" } else { b"/" };
            request.path = [&request.path, slash, format!("upload-{:016x}", unpredictable()).as_bytes()].concat();
        }
        let path = match request.kind {
            FtpTransferKind::Store | FtpTransferKind::StoreUnique | FtpTransferKind::Append => {
                self.changed_path_in_root(&request.path)
            }
            _ => self.path_in_root(&request.path),
        };
        let rights = (self.may_write(), self.keeper(&site));
        let content = content(&site, host, path, &request, self.session.facts(), rights, received);
        self.transfer = Some(Box::new(Transferring {
            request,
            account,
            received,
            stage: TransferStage::Content(content),
            content: None,
            socket: None,
            total_bytes: None,
            sent_bytes: 0,
            noted_bytes: 0,
            deadline_ms: 0,
            data_timeout_ms: site.config.data_timeout.as_millis() as u64,
            meter: TransferMeter::default(),
            pausing: Pausing::default(),
        }));
    }

    /// Continues the transfer; ready when it has ended.
    pub(super) fn poll_transfer(&mut self, task: &mut Task<'_>) -> Poll<()> {
        loop {
            let Some(transfer) = &mut self.transfer else { return Poll::Ready(()) };
            match &mut transfer.stage {
                TransferStage::Content(content) => match ready!(content.as_mut().poll(task)) {
                    Ok(content) => self.on_content(content),
                    Err(reply) => self.end_transfer(&reply),
                },
                TransferStage::Connection => {
                    let LogClient::Ip(client) = self.client else {
                        self.end_transfer(&FtpReply::new(425, "No data connection."));
                        continue;
                    };
                    match ready!(self.data.poll_connection(client.ip(), task)) {
                        Ok(socket) => self.on_connected(socket),
                        Err(_) => self.end_transfer(&FtpReply::new(425, "No data connection.")),
                    }
                }
                TransferStage::Turn(_) => {
                    if let Err(reply) = ready!(self.poll_data_turn(task)) {
                        self.end_transfer(&reply);
                    }
                }
                TransferStage::Handshake => match ready!(self.poll_data_handshake()) {
                    Ok(()) => self.begin_sending(),
                    Err(reply) => self.end_transfer(&reply),
                },
                TransferStage::Receive(_) => {
                    let reply = match ready!(self.poll_receive(task)) {
                        Ok(()) => FtpReply::new(226, "Transfer complete."),
                        Err(reply) => {
                            self.reset_data();
                            reply
                        }
                    };
                    self.end_transfer(&reply);
                }
                TransferStage::Client(..) => {
                    let reply = match ready!(self.poll_send(task)) {
                        Ok(()) => FtpReply::new(226, "Transfer complete."),
                        Err(error) => {
                            // An end of the connection would look like the end of the file.
                            self.reset_data();
                            failure_reply(&error)
                        }
                    };
                    self.end_transfer(&reply);
                }
            }
        }
    }

    /// Makes closing reset the data connection.
    fn reset_data(&self) {
        if let Some(socket) = self.transfer.as_ref().and_then(|transfer| transfer.socket.as_ref()) {
            socket.abort_on_close();
        }
    }

    /// Announces the transfer, and waits for the client's connection.
    fn on_content(&mut self, content: TransferContent) {
        let Some(transfer) = &mut self.transfer else { return };
        // RFC 1123, section 4.1.2.9, gives the form of the reply to STOU.
        let is_named = transfer.request.kind == FtpTransferKind::StoreUnique;
        let mut text = if is_named { b"FILE: ".to_vec() } else { b"Opening data connection for ".to_vec() };
        text.extend_from_slice(&transfer.request.path);
        if let (FtpTransferKind::Retrieve, TransferContent::Segment(segment)) = (transfer.request.kind, &content) {
            text.extend_from_slice(format!(" ({} bytes)", segment.length()).as_bytes());
            transfer.total_bytes = Some(segment.length());
        }
        if !is_named {
            text.push(b'.');
        }
        // Begins now, because the time that a disk took is not the client's.
        transfer.deadline_ms = self.context.clock.now().monotonic_ms + transfer.data_timeout_ms;
        (transfer.content, transfer.stage) = (Some(content), TransferStage::Connection);
        self.reply(&FtpReply::with_text(150, text));
    }

    fn on_connected(&mut self, socket: Transport) {
        let place = match self.transfer.as_ref().is_some_and(|transfer| transfer.request.is_protected) {
            true => self.join_handshakes().map(Some),
            false => Ok(None),
        };
        let Some(transfer) = &mut self.transfer else { return };
        transfer.socket = Some(socket);
        match place {
            Ok(Some(place)) => transfer.stage = TransferStage::Turn(place),
            Ok(None) => self.begin_sending(),
            Err(reply) => self.end_transfer(&reply),
        }
    }

    /// Begins to send over the data connection.
    fn begin_sending(&mut self) {
        let now_ms = self.context.clock.now().monotonic_ms;
        let write_timeout_ms = self.context.generation().limits.write_timeout.as_millis() as u64;
        let piece_bytes = self.site().and_then(|site| site.pace().piece_bytes());
        let Some(transfer) = &mut self.transfer else { return };
        transfer.deadline_ms = now_ms + write_timeout_ms;
        transfer.stage = match transfer.content.take() {
            Some(TransferContent::Segment(segment)) if piece_bytes.is_none() => {
                let mut transmission = transmission_of(segment);
                transmission.closes = true;
                TransferStage::Client(Box::new(transmission), None)
            }
            Some(content @ (TransferContent::Segment(_) | TransferContent::Text(_))) => {
                TransferStage::Client(empty(), Some(content))
            }
            Some(TransferContent::Upload(upload)) => {
                TransferStage::Receive(Box::new(FtpUpload::new(upload, transfer.request.transfer_type)))
            }
            // Local invariant: the content is there until it is sent.
            None => TransferStage::Client(empty(), None),
        };
    }

    /// Sends content until all of it is accepted.
    fn poll_send(&mut self, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let site = self.site();
        let pace = site.as_ref().map(|site| site.pace());
        let piece_bytes = pace.as_ref().and_then(|pace| pace.piece_bytes());
        let context = &*self.context;
        let Some(transfer) = &mut self.transfer else { return Poll::Ready(Ok(())) };
        let Transferring { stage, socket, sent_bytes, noted_bytes, deadline_ms, meter, pausing, .. } = &mut **transfer;
        let (TransferStage::Client(transmission, rest), Some(socket)) = (stage, socket) else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        loop {
            let before = transmission.total_sent;
            let polled = {
                let buffer = &mut context.scratch.borrow_mut().content;
                transmission.poll_send(socket, task, buffer)
            };
            let newly_sent_bytes = transmission.total_sent - before;
            *sent_bytes += newly_sent_bytes;
            context.count_sent(newly_sent_bytes);
            let now_ms = context.clock.now().monotonic_ms;
            meter.end_wait(now_ms);
            let write_timeout_ms = context.generation().limits.write_timeout.as_millis() as u64;
            if newly_sent_bytes > 0 {
                *deadline_ms = now_ms + write_timeout_ms;
                if let (Some(pace), Some(_)) = (&pace, piece_bytes) {
                    pace.on_bytes(newly_sent_bytes, now_ms * 1_000, &mut self.paid_until_us);
                }
            }
            match polled {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    let moved_bytes = *sent_bytes - std::mem::replace(noted_bytes, *sent_bytes);
                    context.table.borrow_mut().note_progress(self.slot, moved_bytes);
                    let limit = context.rate_limit();
                    meter.on_bytes(moved_bytes, &limit);
                    meter.begin_wait(now_ms);
                    if meter.is_too_slow(now_ms, &limit) {
                        context.count_limit(Limit::RateMin);
                        return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                    }
                    return Poll::Pending;
                }
            }
            if piece_bytes.is_some() && rest.is_some() {
                ready!(pausing.poll(now_ms, self.paid_until_us, (deadline_ms, write_timeout_ms), task));
            }
            match rest {
                Some(TransferContent::Segment(segment)) => {
                    **transmission = transmission_of(take_piece(segment, piece_bytes));
                    if segment.length() == 0 {
                        *rest = None;
                    }
                }
                Some(TransferContent::Text(text)) => match ready!(text.poll_piece(task))? {
                    Some(bytes) => {
                        let mut output = Output { bytes, ..Output::default() };
                        **transmission = Transmission::new(&mut output);
                    }
                    None => *rest = None,
                },
                Some(TransferContent::Upload(_)) | None => {
                    // Closing, which follows, ends a plain connection.
                    if matches!(socket, Transport::Tls(_)) {
                        socket.shutdown_write()?;
                    }
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    /// Ends the transfer with this reply.
    fn end_transfer(&mut self, reply: &FtpReply) {
        let Some(transfer) = self.transfer.take() else { return };
        self.session.on_transfer_end();
        self.active_ms = self.context.clock.now().monotonic_ms;
        self.record(&transfer, reply.code);
        // Closes the data connection before the reply.
        drop(transfer);
        self.reply(reply);
    }

    /// Ends a transfer in progress before its end, if there is one, with this code.
    pub(super) fn abort_transfer(&mut self, code: u16) {
        if let Some(transfer) = &self.transfer {
            if let Some(socket) = &transfer.socket {
                socket.abort_on_close();
            }
            self.end_transfer(&FtpReply::new(code, "Transfer aborted."));
        }
    }

    /// Ends a transfer whose client did not connect, or accepts nothing.
    pub(super) fn on_transfer_timeout(&mut self) {
        let Some(transfer) = &self.transfer else { return };
        if matches!(transfer.stage, TransferStage::Turn(_) | TransferStage::Handshake) {
            self.context.count_limit(Limit::TlsHandshakeTimeout);
            return self.end_transfer(&FtpReply::new(425, "Timeout: no TLS on the data connection."));
        }
        if let Some(socket) = &transfer.socket {
            self.context.count_limit(match transfer.stage {
                TransferStage::Receive(_) => Limit::BodyTimeout,
                _ => Limit::WriteTimeout,
            });
            socket.abort_on_close();
            return self.end_transfer(&FtpReply::new(426, "Timeout: the transfer made no progress."));
        }
        self.data = DataChannel::None;
        self.end_transfer(&FtpReply::new(425, "Timeout: no data connection."));
    }
}

/// Content of a transfer, when it is known.
fn content(
    site: &FtpFiles,
    host: Box<[u8]>,
    path: Vec<u8>,
    request: &FtpTransfer,
    facts: FactSet,
    (may_write, keeper): (bool, Option<Vec<u8>>),
    now: Now,
) -> Pin<Box<dyn Future<Output = Result<TransferContent, FtpReply>>>> {
    let files = site.files.clone();
    let FtpTransfer { kind, argument, offset, transfer_type, .. } = request.clone();
    let scope = |shows_hidden, is_itself| ListingScope {
        shows_hidden,
        is_itself,
        may_match: true,
        needs_directory: false,
        entries_max: site.config.entries_max,
    };
    let scope = match kind {
        FtpTransferKind::Retrieve => {
            return Box::pin(async move {
                let content = files.open(host, path, now).await.map_err(rejection_reply)?;
                file_content(&content, offset, transfer_type)
            });
        }
        FtpTransferKind::LongList(form) | FtpTransferKind::Names(form) => scope(form.shows_hidden, form.is_itself),
        FtpTransferKind::Facts => ListingScope { may_match: false, needs_directory: true, ..scope(true, false) },
        FtpTransferKind::Store | FtpTransferKind::StoreUnique | FtpTransferKind::Append => {
            let start = match kind {
                FtpTransferKind::Append => UploadStart::End,
                _ => UploadStart::At(offset),
            };
            let bytes_max = site.config.upload_bytes_max;
            let request = UploadRequest { path, start, bytes_max, keeper };
            return Box::pin(async move {
                let upload = files.upload(host, request, now).await.map_err(rejection_reply)?;
                Ok(TransferContent::Upload(upload))
            });
        }
    };
    Box::pin(async move {
        let listing = files.list(host, path, scope, now).await.map_err(rejection_reply)?;
        let text = listing_text(&listing, kind, &argument, &facts, may_write, now);
        Ok(TransferContent::Segment(Segment::Bytes(Bytes::from(text))))
    })
}

fn file_content(content: &NamedContent, offset: u64, transfer_type: TransferType) -> Result<TransferContent, FtpReply> {
    if offset > content.length() {
        return Err(FtpReply::new(554, "The file is shorter than the position of REST."));
    }
    let segment = content.segment(offset);
    Ok(match (transfer_type, segment) {
        (TransferType::Image, segment) => TransferContent::Segment(segment),
        (TransferType::Ascii, Segment::Bytes(bytes)) => {
            let mut text = Vec::with_capacity(bytes.len());
            AsciiEncoder::default().push(&bytes, &mut text);
            TransferContent::Segment(Segment::Bytes(Bytes::from(text)))
        }
        (TransferType::Ascii, Segment::File { file, offset, .. }) => {
            TransferContent::Text(TextFile { file, offset, encoder: AsciiEncoder::default(), reading: None })
        }
    })
}

/// Listing as it is sent.
fn listing_text(
    listing: &NamedListing,
    kind: FtpTransferKind,
    argument: &[u8],
    facts: &FactSet,
    may_write: bool,
    now: Now,
) -> Vec<u8> {
    // Names are relative to the working directory, so that the client can use them in the next command.
    let prefix = match (listing.is_content, argument) {
        (true, b"") => Vec::new(),
        (true, argument) if argument.ends_with(b"/") => argument.to_vec(),
        (true, argument) => [argument, b"/"].concat(),
        (false, argument) => {
            argument[..argument.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1)].to_vec()
        }
    };
    let mut text = Vec::new();
    for entry in &listing.entries {
        match kind {
            FtpTransferKind::Facts => {
                let kind = if entry.is_directory { "dir" } else { "file" };
                push_facts(&mut text, &shown(entry, may_write), kind, facts);
                text.extend_from_slice(b"\r\n");
            }
            FtpTransferKind::Names(_) => {
                text.extend_from_slice(&prefix);
                text.extend_from_slice(&entry.name);
                text.extend_from_slice(b"\r\n");
            }
            _ => push_long_line(&mut text, &shown(entry, may_write), now.unix_seconds),
        }
    }
    text
}

impl TextFile {
    /// Next piece in the form of the network; `None` at the end.
    fn poll_piece(&mut self, task: &mut Task<'_>) -> Poll<io::Result<Option<Vec<u8>>>> {
        let length = (self.file.identity.size - self.offset).min(TEXT_PIECE_BYTES);
        if length == 0 {
            return Poll::Ready(Ok(None));
        }
        let offset = self.offset;
        let is_last = offset + length == self.file.identity.size;
        let reading = self.reading.get_or_insert_with(|| {
            let file = Arc::clone(&self.file);
            Blocking::spawn(move || {
                let mut piece = vec![0; length as usize];
                file.read_exact_at(&mut piece, offset)?;
                // Checked before the last piece is sent, so that a complete transfer is of one version.
                if is_last && !file.is_unchanged() {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                Ok(piece)
            })
        });
        let piece = ready!(Pin::new(reading).poll(task));
        self.reading = None;
        let piece = piece.unwrap_or_else(|error| Err(io::Error::other(error)))?;
        self.offset += piece.len() as u64;
        let mut text = Vec::with_capacity(piece.len() + piece.len() / 16);
        self.encoder.push(&piece, &mut text);
        Poll::Ready(Ok(Some(text)))
    }
}

/// Transmission of a segment.
fn transmission_of(segment: Segment) -> Transmission {
    let mut output = Output { tail: VecDeque::from([segment]), ..Output::default() };
    Transmission::new(&mut output)
}

/// Removes a piece from the front of a segment, or all of it without a limit.
fn take_piece(segment: &mut Segment, piece_bytes: Option<u64>) -> Segment {
    let taken_bytes = piece_bytes.unwrap_or(u64::MAX).min(segment.length());
    match segment {
        Segment::Bytes(bytes) => Segment::Bytes(bytes.split_to(taken_bytes as usize)),
        Segment::File { file, offset, length } => {
            let piece = Segment::File { file: Arc::clone(file), offset: *offset, length: taken_bytes };
            (*offset, *length) = (*offset + taken_bytes, *length - taken_bytes);
            piece
        }
    }
}

/// Transmission of nothing.
fn empty() -> Box<Transmission> {
    Box::new(Transmission::new(&mut Output::default()))
}

fn failure_reply(error: &io::Error) -> FtpReply {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            FtpReply::new(451, "The file changed during the transfer.")
        }
        io::ErrorKind::TimedOut => FtpReply::new(426, "The transfer was too slow."),
        _ => FtpReply::new(426, "The data connection was closed, transfer aborted."),
    }
}
