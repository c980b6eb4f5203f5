//! TLS over a connection's socket, once the client's first message is there.

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

/// Bytes that are enciphered at once: four full records, which one write sends.
const WRITE_BYTES_MAX: usize = 64 << 10;

/// Ciphertext that is read at once: no more than a record.
pub(super) const READ_BYTES_MAX: usize = 16 << 10;

/// Bytes of a small record. A client can use nothing of a record before all of it has come.
const SMALL_RECORD_BYTES: usize = 4 << 10;

/// Bytes of a full record.
const RECORD_BYTES_MAX: usize = 16 << 10;

/// The first bytes of a connection, about what is sent before the client's first acknowledgement (RFC 6928), go in small
/// records.
const EARLY_BYTES: usize = 16 << 10;

/// Bytes that may come before a message is complete: the largest that the session takes, and what enciphers it. Only a
/// client's certificates need many.
const UNREAD_BYTES_MAX: usize = 96 << 10;

/// A socket with a session of TLS. While nothing is under way, neither has a buffer.
pub struct TlsSocket {
    socket: Socket,
    session: TlsSession,
    /// When the kernel is to take over, if it is and has not been asked yet.
    kernel: Option<KernelTls>,
    /// Nothing has come since the session was last written to, so that it has nothing to answer.
    is_settled: bool,
    /// What has come of a message that is not complete, as the session has left it.
    unread: Vec<u8>,
    /// Plaintext that nobody has taken.
    plaintext: Vec<u8>,
    /// Ciphertext that the socket has not taken, from `unsent_at` on.
    unsent: Vec<u8>,
    unsent_at: usize,
    /// Bytes that were enciphered, and not all sent.
    in_flight_bytes: usize,
    /// How many bytes are still to go in small records.
    early_bytes: usize,
    /// What is written next begins a response.
    has_read: bool,
    /// The client sends no more.
    is_ended: bool,
}

/// Who has the keys.
#[allow(clippy::large_enum_variant, reason = "nearly all connections are of the largest")]
enum TlsSession {
    /// This process has all of them.
    Here(ServerConnection),
    /// The kernel has the one that enciphers.
    Kernel(Box<KernelSession>),
    /// Nobody: handing one over has failed, or the session has.
    Lost,
}

/// What the connections of a thread use in turn.
#[derive(Default)]
struct TlsScratch {
    /// Ciphertext that has come.
    incoming: Vec<u8>,
    /// Ciphertext that is to be sent.
    outgoing: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<TlsScratch> = RefCell::default();
}

impl TlsSocket {
    /// A socket from which the client's first message was read, to be given with `feed`. `kernel` is when the kernel is to
    /// take over, if ever.
    pub fn new(socket: Socket, session: ServerConnection, kernel: Option<KernelTls>) -> Self {
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
        }
    }

    /// The session, which stays here until the first large file at least.
    pub fn session(&self) -> Option<&ServerConnection> {
        match &self.session {
            TlsSession::Here(session) => Some(session),
            TlsSession::Kernel(_) | TlsSession::Lost => None,
        }
    }

    /// Bytes of memory that are kept of what has come, or is to be sent.
    pub fn held_bytes(&self) -> usize {
        self.unread.capacity() + self.plaintext.capacity() + self.unsent.capacity()
    }

    /// The socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The socket, for whoever waits for it.
    pub fn socket_mut(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// The socket alone, when the session is over.
    pub fn into_socket(self) -> Socket {
        self.socket
    }

    /// Goes on with the handshake until it is complete.
    ///
    /// # Errors
    /// The handshake failed, of which the client has been told as far as possible; `UnexpectedEof` if it has gone.
    pub fn poll_handshake(&mut self) -> Poll<io::Result<()>> {
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

    /// Reads what has come; 0 is the end. A client that ends without saying so is one that has ended: what it sent says
    /// itself whether it is complete.
    pub fn poll_read(&mut self, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            if !self.plaintext.is_empty() {
                self.has_read = true;
                return Poll::Ready(Ok(take_front(&mut self.plaintext, buffer)));
            }
            if self.is_ended {
                return Poll::Ready(Ok(0));
            }
            let count = ready!(self.poll_feed(buffer))?;
            // Answers to what concerns only TLS (a new key). If they are stuck, they go with what is written next.
            if let Poll::Ready(Err(error)) = self.poll_flush() {
                return Poll::Ready(Err(error));
            }
            if count > 0 {
                self.has_read = true;
                return Poll::Ready(Ok(count));
            }
        }
    }

    /// Sends several pieces, as far as they are taken.
    pub fn poll_write(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
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

    /// Sends a part of a file, as far as it is taken; 0 is the end of the file.
    pub fn poll_send_file(&mut self, file: BorrowedFd<'_>, offset: u64, length: usize) -> Poll<io::Result<usize>> {
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

    /// Has the kernel take over before it is given a part of a file, if that is wanted and possible. Of the whole, `length`
    /// bytes are to be sent.
    ///
    /// # Errors
    /// The session is lost, and with it the connection.
    pub fn prepare_file(&mut self, length: u64) -> io::Result<()> {
        let (Some(kernel), TlsSession::Here(session)) = (self.kernel, &self.session) else { return Ok(()) };
        // What has come in part only, the session has looked at, and so it can't be read by another.
        let is_between_messages = self.is_settled && self.unread.is_empty() && !self.is_ended;
        let has_sent_all = self.in_flight_bytes == 0 && self.unsent.is_empty();
        if !is_between_messages || !has_sent_all || !kernel.is_for(session, length) {
            return Ok(());
        }
        self.kernel = None;
        // Nothing has happened if that fails: the client has just gone, or the kernel has lost its module.
        if kernel_tls::attach(&self.socket).is_ok()
            && let TlsSession::Here(session) = std::mem::replace(&mut self.session, TlsSession::Lost)
        {
            let kernel = KernelSession::begin(&self.socket, session, kernel.abilities)?;
            self.session = TlsSession::Kernel(Box::new(kernel));
        }
        Ok(())
    }

    /// Waits until TCP has all that was sent, so that the sending side may be ended.
    pub fn poll_drained(&mut self) -> Poll<()> {
        match &self.session {
            TlsSession::Kernel(_) => self.socket.poll_room(),
            TlsSession::Here(_) | TlsSession::Lost => Poll::Ready(()),
        }
    }

    /// Says that nothing more comes, and ends the sending side.
    pub fn shutdown_write(&mut self) -> io::Result<()> {
        if let TlsSession::Kernel(_) = &self.session {
            // If the socket takes nothing, the client finds out by the end.
            let _ = kernel_tls::send_alert(&mut self.socket, AlertDescription::CloseNotify);
            return self.socket.shutdown_write();
        }
        SCRATCH.with_borrow_mut(|TlsScratch { outgoing, .. }| {
            let mut length = 0;
            self.write(|writer| append(outgoing, &mut length, |room| writer.queue_close_notify(room)))?;
            self.unsent.extend_from_slice(&outgoing[..length]);
            io::Result::Ok(())
        })?;
        // If the socket takes nothing, the client has not even read the last response, and finds out by its end.
        let _ = self.poll_flush()?;
        self.socket.shutdown_write()
    }

    /// Gives the session what the client sent first.
    ///
    /// # Errors
    /// It is wrong, of which the client has been told as far as possible.
    pub fn feed(&mut self, ciphertext: &[u8]) -> io::Result<()> {
        let mut incoming = ciphertext.to_vec();
        self.on_incoming(&mut incoming, &mut []).map(|_| ())
    }

    /// Enciphers what fits, and has the socket take what it takes of it; returns how much was enciphered.
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let total = pieces.iter().map(|piece| piece.len()).sum::<usize>().min(WRITE_BYTES_MAX);
        let mut small_bytes = self.early_bytes.min(total);
        if std::mem::take(&mut self.has_read) && total > RECORD_BYTES_MAX {
            small_bytes = small_bytes.max(SMALL_RECORD_BYTES);
        }
        self.early_bytes -= self.early_bytes.min(total);
        SCRATCH.with_borrow_mut(|TlsScratch { outgoing, .. }| {
            let mut length = 0;
            let encipher = |writer: &mut TlsWriter<'_>| {
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
            if !self.write(encipher)? {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.is_settled = true;
            let outgoing = &outgoing[..length];
            // Not before what the session may have had to say first.
            let sent = match self.unsent.is_empty().then(|| self.socket.poll_write(outgoing)) {
                Some(Poll::Ready(sent)) => sent?,
                _ => 0,
            };
            self.unsent.extend_from_slice(&outgoing[sent..]);
            Ok(total)
        })
    }

    /// Sends what is enciphered.
    fn poll_flush(&mut self) -> Poll<io::Result<()>> {
        while self.unsent_at < self.unsent.len() {
            self.unsent_at += ready!(self.socket.poll_write(&self.unsent[self.unsent_at..]))?;
        }
        self.unsent = Vec::new();
        self.unsent_at = 0;
        Poll::Ready(Ok(()))
    }

    /// Reads, and gives the session what has come; returns how much plaintext is in `buffer` now.
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

    /// Has the session look at all that has come. Returns how much plaintext is in `buffer`; what finds no room there is
    /// kept, as is what can't be understood before more has come.
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
                    // With the alert it is over. What was wrong is still there, and must not be looked at again.
                    awaits_more = failure.is_some() && alerts::is_alert(&self.unsent[begin..]);
                }
                // It is on its way as soon as it is in `unsent`.
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => awaits_more = true,
                // After the client has said that it ends, nothing counts.
                Ok(_) => {
                    self.is_ended = true;
                    awaits_more = true;
                }
                // What follows says to the client what is wrong.
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
                // It may have gone.
                let _ = self.poll_flush();
                Err(invalid(error))
            }
            None => Ok(filled),
        }
    }

    /// The same for a client to which the kernel sends.
    fn on_records(&mut self, incoming: &mut [u8], buffer: &mut [u8]) -> io::Result<usize> {
        let TlsSession::Kernel(kernel) = &mut self.session else { return Err(io::ErrorKind::NotConnected.into()) };
        let (mut at, mut filled) = (0, 0);
        while !self.is_ended
            && let Some((record_bytes, content)) = kernel.receive(&mut self.socket, &mut incoming[at..])?
        {
            at += record_bytes;
            match content {
                TlsRecordContent::Data(data) => filled += deliver(data, &mut buffer[filled..], &mut self.plaintext),
                TlsRecordContent::End => self.is_ended = true,
                TlsRecordContent::NewKey { .. } | TlsRecordContent::Nothing => {}
            }
        }
        // After the client has said that it ends, nothing counts.
        self.unread = if self.is_ended { Vec::new() } else { incoming[at..].to_vec() };
        Ok(filled)
    }

    /// Lets something be written, if it may be: not before the handshake, nor when the session has failed. Says whether.
    fn write(&mut self, write: impl FnOnce(&mut TlsWriter<'_>) -> io::Result<()>) -> io::Result<bool> {
        let TlsSession::Here(session) = &mut self.session else { return Ok(false) };
        loop {
            // Nothing of this has not been seen, but the session knows where in it its messages begin.
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
                // The client has ended, which does not keep us from answering; told once, it is over next time.
                Ok(ConnectionState::PeerClosed) => self.is_ended = true,
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

/// What enciphers.
type TlsWriter<'a> = WriteTraffic<'a, ServerConnectionData>;

/// Appends a message of the handshake to what is to be sent.
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

/// Appends ciphertext to `outgoing[..length]`, which grows as it has to.
fn append(
    outgoing: &mut Vec<u8>,
    length: &mut usize,
    mut encipher: impl FnMut(&mut [u8]) -> Result<usize, EncryptError>,
) -> io::Result<()> {
    loop {
        match encipher(&mut outgoing[*length..]) {
            Ok(count) => {
                *length += count;
                return Ok(());
            }
            Err(EncryptError::InsufficientSize(error)) => outgoing.resize(*length + error.required_size, 0),
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

/// Copies what fits of `content` to `buffer`, and keeps the rest; returns how much fits. In order: once something did not
/// find room, nothing does.
fn deliver(content: &[u8], buffer: &mut [u8], kept: &mut Vec<u8>) -> usize {
    let fitting = if kept.is_empty() { buffer.len().min(content.len()) } else { 0 };
    buffer[..fitting].copy_from_slice(&content[..fitting]);
    kept.extend_from_slice(&content[fitting..]);
    fitting
}

/// Moves what fits to `buffer`; returns how much. What is left has no more memory than it needs.
fn take_front(bytes: &mut Vec<u8>, buffer: &mut [u8]) -> usize {
    let count = buffer.len().min(bytes.len());
    buffer[..count].copy_from_slice(&bytes[..count]);
    *bytes = bytes[count..].to_vec();
    count
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// A part of several pieces.
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
