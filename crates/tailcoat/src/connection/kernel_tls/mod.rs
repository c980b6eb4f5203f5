//! TLS in the kernel (kTLS): it enciphers what is sent, so that large files go from the page cache to a client without passing
//! through this process.
//!
//! What is received is still deciphered here, record by record. A server receives little, so nothing is lost; and nothing
//! is left to kernels that know no new keys (before Linux 6.14): a client may change its key whenever it likes (RFC 8446,
//! section 4.6.3). What the session of rustls leaves behind are the secrets from which keys come, which it goes on with.
//!
//! There is no way back: once the kernel has the key, all that is sent is enciphered by it, alerts and messages of the
//! handshake too, which are sent with their type.

mod abilities;
mod receive;
mod send_key;

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::task::{Poll, ready};

pub use abilities::{Abilities, Unavailable};
use nix::sys::socket::{setsockopt, sockopt};
pub(super) use receive::TlsRecordContent;
use receive::{RecordOpener, TlsRecordError};
use rustix::io::Errno;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{AlertDescription, ContentType, ProtocolVersion, SupportedCipherSuite};
use send_key::send_key_of;
use socket2::{MsgHdr, SockRef};

use super::Socket;
use crate::tls::ServerConnection;

/// Bytes of content that a full record has.
const RECORD_BYTES_MAX: usize = 16 << 10;

/// A message of the handshake: from here on a new key is used, and none is asked for (RFC 8446, section 4.6.3).
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

/// When the kernel is to encipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelTls {
    /// From a file on of which so many bytes are to be sent.
    pub file_bytes_min: u64,
    /// What it can do.
    pub abilities: Abilities,
}

/// The TLS of a connection for which the kernel enciphers.
pub(super) struct KernelSession {
    /// From which new keys come.
    keys: KernelConnection<ServerConnectionData>,
    opener: RecordOpener,
    abilities: Abilities,
    /// Records that were sent with the key, at most.
    sent_records: u64,
    /// The client wants a new key to be used, or the key was used for as much as it may be.
    needs_new_key: bool,
}

impl KernelTls {
    /// Whether the kernel is to encipher a file of this session of which so much is to be sent.
    pub(super) fn is_for(&self, session: &ServerConnection, length: u64) -> bool {
        let (Some(version), Some(suite)) = (session.protocol_version(), session.negotiated_cipher_suite()) else {
            return false;
        };
        length >= self.file_bytes_min && self.abilities.has(version, suite.suite())
    }
}

/// Prepares a socket, on which nothing changes by that.
///
/// # Errors
/// The kernel's: it has no TLS, or this is no connection that can have it.
pub(super) fn attach(socket: &Socket) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::TcpUlp::default(), b"tls")?)
}

impl KernelSession {
    /// Gives the kernel the key of a session that is in no handshake, has nothing to be sent, and has been given whole
    /// records only. The socket has to be prepared.
    ///
    /// # Errors
    /// The connection can't go on, for the session is gone: it gives no keys, or the kernel does not take this one.
    pub(super) fn begin(socket: &Socket, session: ServerConnection, abilities: Abilities) -> io::Result<Self> {
        let (secrets, keys) = session.dangerous_into_kernel_connection().map_err(io::Error::other)?;
        let (sent_records, sending) = secrets.tx;
        let (received_records, receiving) = secrets.rx;
        let opener = RecordOpener::new(keys.negotiated_cipher_suite(), receiving, received_records)?;
        setsockopt(socket, sockopt::TcpTlsTx, &send_key_of(keys.protocol_version(), &sending, sent_records)?)?;
        Ok(Self { keys, opener, abilities, sent_records, needs_new_key: false })
    }

    /// Takes a record off what has come; returns how long it was, and what it says. `None` if it is not whole yet.
    ///
    /// # Errors
    /// What has come is wrong, of which the client has been told as far as possible, or says that the client has failed.
    pub(super) fn receive<'a>(
        &mut self,
        socket: &mut Socket,
        incoming: &'a mut [u8],
    ) -> io::Result<Option<(usize, TlsRecordContent<'a>)>> {
        let (bytes, content) = match self.opener.open(incoming) {
            Ok(None) => return Ok(None),
            Ok(Some(opened)) => opened,
            Err(TlsRecordError::Wrong(alert)) => {
                let _ = send_alert(socket, alert);
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("invalid TLS record: {alert:?}")));
            }
            Err(TlsRecordError::Failed(alert)) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("the client sent a TLS alert: {alert:?}"),
                ));
            }
        };
        if let TlsRecordContent::NewKey { is_wanted_here } = content {
            let (_, secrets) = self.keys.update_rx_secret().map_err(io::Error::other)?;
            self.opener.take_key(secrets)?;
            self.needs_new_key |= is_wanted_here;
        }
        Ok(Some((bytes, content)))
    }

    /// Sends what the kernel takes of several pieces.
    pub(super) fn poll_write(&mut self, socket: &mut Socket, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        ready!(self.poll_key(socket))?;
        let sent = match pieces {
            [piece] => socket.poll_write(piece),
            pieces => socket.poll_write_vectored(pieces),
        };
        self.count(sent)
    }

    /// Sends what the kernel takes of a part of a file. 0 is the end of the file.
    pub(super) fn poll_send_file(
        &mut self,
        socket: &mut Socket,
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_key(socket))?;
        self.count(socket.poll_send_file(file, offset, length))
    }

    fn count(&mut self, sent: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = sent {
            self.sent_records += (bytes / RECORD_BYTES_MAX) as u64 + 1;
        }
        sent
    }

    /// Sees that the key may be used for what is sent next.
    ///
    /// # Errors
    /// It may not (RFC 8446, sections 4.6.3 and 5.5), and the kernel takes no other.
    fn poll_key(&mut self, socket: &mut Socket) -> Poll<io::Result<()>> {
        if !self.needs_new_key && self.sent_records < records_max(self.keys.negotiated_cipher_suite()) {
            return Poll::Ready(Ok(()));
        }
        let version = self.keys.protocol_version();
        if version != ProtocolVersion::TLSv1_3 || !self.abilities.changes_keys() {
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        }
        // The last with the old key.
        ready!(poll_send_record(socket, ContentType::Handshake, &KEY_UPDATE))?;
        let (sent_records, secrets) = self.keys.update_tx_secret().map_err(io::Error::other)?;
        setsockopt(socket, sockopt::TcpTlsTx, &send_key_of(version, &secrets, sent_records)?)?;
        (self.sent_records, self.needs_new_key) = (sent_records, false);
        Poll::Ready(Ok(()))
    }
}

/// Says something to the client that concerns only TLS, if there is room for it.
///
/// # Errors
/// The socket's.
pub(super) fn send_alert(socket: &mut Socket, alert: AlertDescription) -> io::Result<()> {
    const WARNING: u8 = 1;
    const FATAL: u8 = 2;
    let level = if alert == AlertDescription::CloseNotify { WARNING } else { FATAL };
    match poll_send_record(socket, ContentType::Alert, &[level, alert.into()]) {
        Poll::Ready(sent) => sent,
        Poll::Pending => Ok(()),
    }
}

/// Sends a record of another type than content has.
fn poll_send_record(socket: &mut Socket, kind: ContentType, content: &[u8]) -> Poll<io::Result<()>> {
    let control = record_type(kind.into());
    let content = [IoSlice::new(content)];
    let message = MsgHdr::new().with_buffers(&content).with_control(&control);
    let sent = socket.poll_call(|socket| {
        let sent = SockRef::from(&socket).sendmsg(&message, libc::MSG_NOSIGNAL);
        sent.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    });
    // So few bytes are taken whole or not at all.
    sent.map_ok(|_| ())
}

/// The control message (cmsg(3)) that says of which type a record is: its length without what fills it up, `SOL_TLS`,
/// `TLS_SET_RECORD_TYPE`, and the type.
fn record_type(kind: u8) -> [u8; CONTROL_BYTES] {
    let mut control = [0; CONTROL_BYTES];
    let length = HEADER_BYTES + 1;
    let (level, what) = (libc::SOL_TLS.to_ne_bytes(), libc::TLS_SET_RECORD_TYPE.to_ne_bytes());
    let message = [&length.to_ne_bytes()[..], &level, &what, &[kind]].concat();
    control[..length].copy_from_slice(&message);
    control
}

/// Bytes of the header of a control message, which is aligned as it is long.
const HEADER_BYTES: usize = size_of::<usize>() + 2 * size_of::<libc::c_int>();

/// Bytes of a control message with one byte.
const CONTROL_BYTES: usize = HEADER_BYTES + size_of::<usize>();

/// How many records a key may be used for.
fn records_max(suite: SupportedCipherSuite) -> u64 {
    match suite {
        SupportedCipherSuite::Tls13(suite) => suite.common.confidentiality_limit,
        SupportedCipherSuite::Tls12(suite) => suite.common.confidentiality_limit,
    }
}

#[cfg(test)]
mod tests {
    use super::record_type;

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn control_messages_are_as_the_kernel_reads_them() {
        let mut expect = [0; 24];
        expect[..8].copy_from_slice(&17_u64.to_ne_bytes());
        expect[8..12].copy_from_slice(&282_i32.to_ne_bytes());
        expect[12..16].copy_from_slice(&1_i32.to_ne_bytes());
        expect[16] = 21;
        assert_eq!(record_type(21), expect);
    }
}
