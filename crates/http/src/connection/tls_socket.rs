//! TLS on a connection's socket, after the ClientHello was received.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::task::{Poll, ready};

use rustls::AlertDescription;
use rustls::server::ServerConnectionData;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic};

use super::Socket;
use super::kernel_tls::{self, KernelSession, KernelTls, TlsRecordContent};
use crate::tls::{ServerConnection, alerts};

/// Bytes encrypted at once: four full records, which one write sends.
const WRITE_BYTES_MAX: usize = 64 << 10;

/// Bytes of ciphertext read at once; at most one record.
pub(super) const READ_BYTES_MAX: usize = 16 << 10;

/// Length of a small record, in bytes. A client can use a record only after all of it has arrived.
const SMALL_RECORD_BYTES: usize = 4 << 10;

/// Length of a full record, in bytes.
const RECORD_BYTES_MAX: usize = 16 << 10;

/// Bytes at the beginning of a connection that go in small records. About as much is sent before the client's first
/// acknowledgement (RFC 6928).
const EARLY_BYTES: usize = 16 << 10;

/// Maximum length of an incomplete message, in bytes: the longest that the session accepts, with its encryption. Only
/// client certificates need so many.
const UNREAD_BYTES_MAX: usize = 96 << 10;

/// Socket with a TLS session. While no data is in transit, neither has a buffer.
pub(crate) struct TlsSocket {
    socket: Socket,
    session: TlsSession,
    /// Settings for encryption by the kernel; `None` if it is off or has already been tried.
    kernel: Option<KernelTls>,
    /// True if nothing was received since the last write, so that the session has no response to send.
    is_settled: bool,
    /// Input of an incomplete message, as the session has left it.
    unread: Vec<u8>,
    /// Decrypted bytes that the caller has not read.
    plaintext: Vec<u8>,
    /// Ciphertext that the socket has not accepted, from `unsent_at` on.
    unsent: Vec<u8>,
    unsent_at: usize,
    /// Length of the plaintext that was encrypted and is not all sent.
    in_flight_bytes: usize,
    /// Remaining bytes that must go in small records.
    early_bytes: usize,
    /// True if the next write begins a response.
    has_read: bool,
    /// True if the client sends no more.
    is_ended: bool,
    /// True if the client has ended with `close_notify`, so that nothing was cut off.
    has_close_notify: bool,
}

/// Owner of the keys.
#[allow(clippy::large_enum_variant, reason = "nearly all connections are of the largest")]
enum TlsSession {
    /// This process has all keys.
    Here(ServerConnection),
    /// The kernel has the key for sending.
    Kernel(Box<KernelSession>),
    /// The session is lost, because it failed or its handover to the kernel did.
    Lost,
}

/// Buffers that the connections of a thread use in turn.
#[derive(Default)]
struct TlsScratch {
    /// Ciphertext received.
    incoming: Vec<u8>,
    /// Ciphertext to send.
    outgoing: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<TlsScratch> = RefCell::default();
}

impl TlsSocket {
    /// Wraps a socket from which the ClientHello was read; the caller must pass that to `feed`. `kernel` has the
    /// settings for encryption by the kernel.
    pub(crate) fn new(socket: Socket, session: ServerConnection, kernel: Option<KernelTls>) -> Self {
        Self {
            socket,
            session: TlsSession::Here(session),
            kernel,
            is_settled: false,
            unread: Vec::new(),
            plaintext: Vec::new(),
            unsent: Vec::new(),
            unsent_at: 0,
            in_flight_bytes: 0,
            early_bytes: EARLY_BYTES,
            has_read: true,
            is_ended: false,
            has_close_notify: false,
        }
    }

    /// Session; `None` after the kernel has taken over, which happens at the first large file or later.
    pub(crate) fn session(&self) -> Option<&ServerConnection> {
        match &self.session {
            TlsSession::Here(session) => Some(session),
            TlsSession::Kernel(_) | TlsSession::Lost => None,
        }
    }

    /// Bytes of memory held for received data and unsent output.
    pub(crate) fn held_bytes(&self) -> usize {
        self.unread.capacity() + self.plaintext.capacity() + self.unsent.capacity()
    }

    /// True if the client has ended with `close_notify` (RFC 8446, section 6.1).
    pub(crate) fn has_close_notify(&self) -> bool {
        self.has_close_notify
    }

    /// Socket below TLS.
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Socket below TLS, for registering and waiting.
    pub(crate) fn socket_mut(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Returns the bare socket after the session has ended.
    pub(crate) fn into_socket(self) -> Socket {
        self.socket
    }

    /// Drives the handshake until it is complete.
    ///
    /// # Errors
    /// The handshake failed, and an alert was sent if possible; `UnexpectedEof` if the client has gone.
    pub(crate) fn poll_handshake(&mut self) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_flush())?;
            if !self.session().is_some_and(|session| session.is_handshaking()) {
                return Poll::Ready(Ok(()));
            }
            if self.is_ended {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            ready!(self.poll_feed(&mut []))?;
        }
    }

    /// Reads decrypted bytes; 0 is the end of the stream. A client that disconnects without `close_notify` has ended as
    /// well; its message framing shows if the input was complete.
    pub(crate) fn poll_read(&mut self, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            if !self.plaintext.is_empty() {
                self.has_read = true;
                return Poll::Ready(Ok(take_front(&mut self.plaintext, buffer)));
            }
            if self.is_ended {
                return Poll::Ready(Ok(0));
            }
            let count = ready!(self.poll_feed(buffer))?;
            // Replies of TLS itself, such as a new key. If they cannot be sent now, they go with the next write.
            if let Poll::Ready(Err(error)) = self.poll_flush() {
                return Poll::Ready(Err(error));
            }
            if count > 0 {
                self.has_read = true;
                return Poll::Ready(Ok(count));
            }
        }
    }

    /// Sends as much of several pieces as the socket accepts.
    pub(crate) fn poll_write(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if let TlsSession::Kernel(kernel) = &mut self.session {
            return kernel.poll_write(&mut self.socket, pieces);
        }
        if self.in_flight_bytes == 0 {
            ready!(self.poll_flush())?;
            self.in_flight_bytes = self.send(pieces)?;
        }
        ready!(self.poll_flush())?;
        Poll::Ready(Ok(std::mem::take(&mut self.in_flight_bytes)))
    }

    /// Sends as much of a part of a file as the socket accepts; 0 is the end of the file.
    pub(crate) fn poll_send_file(
        &mut self,
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
    ) -> Poll<io::Result<usize>> {
        if let TlsSession::Kernel(kernel) = &mut self.session {
            return kernel.poll_send_file(&mut self.socket, file, offset, length);
        }
        if self.in_flight_bytes > 0 {
            return self.poll_write(&[]);
        }
        let mut content = Vec::with_capacity(length.min(WRITE_BYTES_MAX));
        if rustix::io::pread(file, rustix::buffer::spare_capacity(&mut content), offset)? == 0 {
            return Poll::Ready(Ok(0));
        }
        self.poll_write(&[IoSlice::new(&content)])
    }

    /// Lets the kernel take over before a part of a file is sent, if that is enabled and possible. `length` is the
    /// total number of bytes to send.
    ///
    /// # Errors
    /// The session is lost, and with it the connection.
    pub(crate) fn prepare_file(&mut self, length: u64) -> io::Result<()> {
        let (Some(kernel), TlsSession::Here(session)) = (self.kernel, &self.session) else { return Ok(()) };
        // The session has already parsed an incomplete message, so no other reader could continue it.
        let is_between_messages = self.is_settled && self.unread.is_empty() && !self.is_ended;
        let has_sent_all = self.in_flight_bytes == 0 && self.unsent.is_empty();
        if !is_between_messages || !has_sent_all || !kernel.is_for(session, length) {
            return Ok(());
        }
        self.kernel = None;
        // Failing to attach changes nothing: the client has just gone, or the kernel has lost its module.
        if kernel_tls::attach(&self.socket).is_ok()
            && let TlsSession::Here(session) = std::mem::replace(&mut self.session, TlsSession::Lost)
        {
            let kernel = KernelSession::begin(&self.socket, session, kernel.abilities)?;
            self.session = TlsSession::Kernel(Box::new(kernel));
        }
        Ok(())
    }

    /// Waits until TCP holds all output, so that the sending side may be closed.
    pub(crate) fn poll_drained(&mut self) -> Poll<()> {
        match &self.session {
            TlsSession::Kernel(_) => self.socket.poll_room(),
            TlsSession::Here(_) | TlsSession::Lost => Poll::Ready(()),
        }
    }

    /// Sends `close_notify` and closes the sending side.
    pub(crate) fn shutdown_write(&mut self) -> io::Result<()> {
        if let TlsSession::Kernel(_) = &self.session {
            // If the socket accepts nothing, the client notices the end of the stream instead.
            let _ = kernel_tls::send_alert(&mut self.socket, AlertDescription::CloseNotify);
            return self.socket.shutdown_write();
        }
        SCRATCH.with_borrow_mut(|TlsScratch { outgoing, .. }| {
            let mut length = 0;
            self.write(|writer| append(outgoing, &mut length, |room| writer.queue_close_notify(room)))?;
            self.unsent.extend_from_slice(&outgoing[..length]);
            io::Result::Ok(())
        })?;
        // If the socket accepts nothing, the client has not even read the last response. It notices the end of the
        // stream instead.
        let _ = self.poll_flush()?;
        self.socket.shutdown_write()
    }

    /// Passes the ClientHello to the session.
    ///
    /// # Errors
    /// The message is invalid; an alert was sent if possible.
    pub(crate) fn feed(&mut self, ciphertext: &[u8]) -> io::Result<()> {
        let mut incoming = ciphertext.to_vec();
        self.on_incoming(&mut incoming, &mut []).map(|_| ())
    }

    /// Encrypts up to `WRITE_BYTES_MAX`, and sends what the socket accepts. Returns the number of bytes encrypted.
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let total = pieces.iter().map(|piece| piece.len()).sum::<usize>().min(WRITE_BYTES_MAX);
        let mut small_bytes = self.early_bytes.min(total);
        if std::mem::take(&mut self.has_read) && total > RECORD_BYTES_MAX {
            small_bytes = small_bytes.max(SMALL_RECORD_BYTES);
        }
        self.early_bytes -= self.early_bytes.min(total);
        SCRATCH.with_borrow_mut(|TlsScratch { outgoing, .. }| {
            let mut length = 0;
            let encrypt = |writer: &mut TlsWriter<'_>| {
                let mut at = 0;
                while at < total {
                    let piece_bytes = if at < small_bytes { SMALL_RECORD_BYTES.min(total - at) } else { total - at };
                    let joined;
                    let piece = match pieces {
                        [piece] => &piece[at..at + piece_bytes],
                        pieces => {
                            joined = part(pieces, at, piece_bytes).concat();
                            &joined
                        }
                    };
                    append(outgoing, &mut length, |room| writer.encrypt(piece, room))?;
                    at += piece_bytes;
                }
                Ok(())
            };
            if !self.write(encrypt)? {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.is_settled = true;
            let outgoing = &outgoing[..length];
            // Earlier output of the session must be sent first.
            let sent = match self.unsent.is_empty().then(|| self.socket.poll_write(outgoing)) {
                Some(Poll::Ready(sent)) => sent?,
                _ => 0,
            };
            self.unsent.extend_from_slice(&outgoing[sent..]);
            Ok(total)
        })
    }

    /// Sends pending ciphertext.
    fn poll_flush(&mut self) -> Poll<io::Result<()>> {
        while self.unsent_at < self.unsent.len() {
            self.unsent_at += ready!(self.socket.poll_write(&self.unsent[self.unsent_at..]))?;
        }
        self.unsent = Vec::new();
        self.unsent_at = 0;
        Poll::Ready(Ok(()))
    }

    /// Reads, and passes the input to the session. Returns the length of the plaintext in `buffer`.
    fn poll_feed(&mut self, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        SCRATCH.with_borrow_mut(|TlsScratch { incoming, .. }| {
            let kept = self.unread.len();
            if kept > UNREAD_BYTES_MAX {
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
            if incoming.len() < kept + READ_BYTES_MAX {
                incoming.resize(kept + READ_BYTES_MAX, 0);
            }
            let count = ready!(self.socket.poll_read(&mut incoming[kept..kept + READ_BYTES_MAX]))?;
            if count == 0 {
                self.is_ended = true;
                return Poll::Ready(Ok(0));
            }
            incoming[..kept].copy_from_slice(&self.unread);
            Poll::Ready(self.on_incoming(&mut incoming[..kept + count], buffer))
        })
    }

    /// Lets the session process all input. Returns the length of the plaintext in `buffer`. Plaintext beyond that and
    /// incomplete input are kept.
    fn on_incoming(&mut self, incoming: &mut [u8], buffer: &mut [u8]) -> io::Result<usize> {
        let session = match &mut self.session {
            TlsSession::Here(session) => session,
            TlsSession::Kernel(_) => return self.on_records(incoming, buffer),
            TlsSession::Lost => return Err(io::ErrorKind::NotConnected.into()),
        };
        self.is_settled = false;
        let (mut at, mut filled) = (0, 0);
        let mut failure = None;
        loop {
            let UnbufferedStatus { mut discard, state } = session.process_tls_records(&mut incoming[at..]);
            let mut awaits_more = false;
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(invalid)?;
                        discard += record.discard;
                        filled += deliver(record.payload, &mut buffer[filled..], &mut self.plaintext);
                    }
                }
                Ok(ConnectionState::EncodeTlsData(data)) => {
                    let begin = self.unsent.len();
                    encode(data, &mut self.unsent)?;
                    // The alert ends the session. The invalid input is still there and must not be processed again.
                    awaits_more = failure.is_some() && alerts::is_alert(&self.unsent[begin..]);
                }
                // Data in `unsent` counts as transmitted.
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => awaits_more = true,
                // Input after the client's `close_notify` is ignored.
                Ok(_) => {
                    (self.is_ended, self.has_close_notify) = (true, true);
                    awaits_more = true;
                }
                // The next states produce the alert for the client.
                Err(error) if failure.is_none() => failure = Some(error),
                Err(_) => awaits_more = true,
            }
            at += discard;
            if awaits_more {
                break;
            }
        }
        self.unread = if self.is_ended { Vec::new() } else { incoming[at..].to_vec() };
        match failure {
            Some(error) => {
                self.session = TlsSession::Lost;
                alerts::correct(&error, &mut self.unsent);
                // The client may have gone, so an error does not matter.
                let _ = self.poll_flush();
                Err(invalid(error))
            }
            None => Ok(filled),
        }
    }

    /// Processes all input of a client to which the kernel sends, in the same way.
    fn on_records(&mut self, incoming: &mut [u8], buffer: &mut [u8]) -> io::Result<usize> {
        let TlsSession::Kernel(kernel) = &mut self.session else { return Err(io::ErrorKind::NotConnected.into()) };
        let (mut at, mut filled) = (0, 0);
        while !self.is_ended
            && let Some((record_bytes, content)) = kernel.receive(&mut self.socket, &mut incoming[at..])?
        {
            at += record_bytes;
            match content {
                TlsRecordContent::Data(data) => filled += deliver(data, &mut buffer[filled..], &mut self.plaintext),
                TlsRecordContent::End => (self.is_ended, self.has_close_notify) = (true, true),
                TlsRecordContent::NewKey { .. } | TlsRecordContent::Nothing => {}
            }
        }
        // Input after the client's `close_notify` is ignored.
        self.unread = if self.is_ended { Vec::new() } else { incoming[at..].to_vec() };
        Ok(filled)
    }

    /// Calls `write` if the session can send. Returns false before the end of the handshake and after a failure.
    fn write(&mut self, write: impl FnOnce(&mut TlsWriter<'_>) -> io::Result<()>) -> io::Result<bool> {
        let TlsSession::Here(session) = &mut self.session else { return Ok(false) };
        loop {
            // The session has seen all of this input, but needs it to know where its messages begin.
            let UnbufferedStatus { mut discard, state } = session.process_tls_records(&mut self.unread);
            match state {
                Ok(ConnectionState::WriteTraffic(mut writer)) => {
                    write(&mut writer)?;
                    self.unread.drain(..discard);
                    return Ok(true);
                }
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(invalid)?;
                        discard += record.discard;
                        self.plaintext.extend_from_slice(record.payload);
                    }
                }
                Ok(ConnectionState::EncodeTlsData(data)) => encode(data, &mut self.unsent)?,
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                // The client has ended, but the server may still respond. The session reports this once.
                Ok(ConnectionState::PeerClosed) => (self.is_ended, self.has_close_notify) = (true, true),
                Ok(_) | Err(_) => return Ok(false),
            }
            self.unread.drain(..discard);
        }
    }
}

impl fmt::Debug for TlsSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSocket").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// State of the session in which it encrypts.
type TlsWriter<'a> = WriteTraffic<'a, ServerConnectionData>;

/// Appends a handshake message to the output.
fn encode(mut data: EncodeTlsData<'_, ServerConnectionData>, unsent: &mut Vec<u8>) -> io::Result<()> {
    let length = unsent.len();
    let required_bytes = match data.encode(&mut []) {
        Err(EncodeError::InsufficientSize(error)) => error.required_size,
        encoded => return encoded.map(|_| ()).map_err(io::Error::other),
    };
    unsent.resize(length + required_bytes, 0);
    data.encode(&mut unsent[length..]).map_err(io::Error::other)?;
    Ok(())
}

/// Appends ciphertext to `outgoing[..length]`, which grows as needed.
fn append(
    outgoing: &mut Vec<u8>,
    length: &mut usize,
    mut encrypt: impl FnMut(&mut [u8]) -> Result<usize, EncryptError>,
) -> io::Result<()> {
    loop {
        match encrypt(&mut outgoing[*length..]) {
            Ok(count) => {
                *length += count;
                return Ok(());
            }
            Err(EncryptError::InsufficientSize(error)) => outgoing.resize(*length + error.required_size, 0),
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

/// Copies as much of `content` to `buffer` as fits, and keeps the rest; returns the copied length. To preserve order,
/// nothing is copied while earlier content is kept.
fn deliver(content: &[u8], buffer: &mut [u8], kept: &mut Vec<u8>) -> usize {
    let fitting = if kept.is_empty() { buffer.len().min(content.len()) } else { 0 };
    buffer[..fitting].copy_from_slice(&content[..fitting]);
    kept.extend_from_slice(&content[fitting..]);
    fitting
}

/// Moves as many bytes to `buffer` as fit; returns their number. The rest stays in memory of exactly its size.
fn take_front(bytes: &mut Vec<u8>, buffer: &mut [u8]) -> usize {
    let count = buffer.len().min(bytes.len());
    buffer[..count].copy_from_slice(&bytes[..count]);
    *bytes = bytes[count..].to_vec();
    count
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Returns a part of several pieces.
fn part<'a>(pieces: &'a [IoSlice<'a>], mut at: usize, mut length: usize) -> Vec<&'a [u8]> {
    let mut found = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let from = at.min(piece.len());
        let to = (from + length).min(piece.len());
        at -= from;
        length -= to - from;
        if from < to {
            found.push(&piece[from..to]);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_pieces() {
        let pieces = [IoSlice::new(b"abc"), IoSlice::new(b""), IoSlice::new(b"defg")];
        for (at, length, expect) in [
            (0, 7, vec!["abc", "defg"]),
            (0, 3, vec!["abc"]),
            (2, 2, vec!["c", "d"]),
            (3, 2, vec!["de"]),
            (5, 9, vec!["fg"]),
        ] {
            let found = part(&pieces, at, length);
            assert_eq!(found, expect.iter().map(|piece| piece.as_bytes()).collect::<Vec<_>>(), "{at} {length}");
        }
    }
}
