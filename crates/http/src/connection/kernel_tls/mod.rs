//! TLS in the kernel (kTLS). The kernel encrypts what is sent, so that large files go from the page cache to a client
//! without passing through this process.
//!
//! Received records are still decrypted here, one by one. A server receives little, so this costs nothing. It also
//! avoids a limit of kernels before Linux 6.14, which accept no new receive keys. A client may change its key at any
//! time (RFC 8446, section 4.6.3). The rustls session ends, but leaves the secrets from which later keys are derived.
//!
//! A connection cannot return to the rustls session. Once the kernel has the key, it encrypts all that is sent. This
//! includes alerts and handshake messages, which are sent with their record type.

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

/// Bytes of content in a full record.
const RECORD_BYTES_MAX: usize = 16 << 10;

/// KeyUpdate message of the handshake. The sender uses a new key from here on, and requests none from the peer (RFC
/// 8446, section 4.6.3).
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

/// Settings for encryption by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelTls {
    /// Minimum size of a file, in bytes to be sent, for which a connection switches to the kernel.
    pub file_bytes_min: u64,
    /// TLS features of the running kernel.
    pub abilities: Abilities,
}

/// TLS state of a connection that the kernel encrypts.
pub(super) struct KernelSession {
    /// Secrets from which new keys are derived.
    keys: KernelConnection<ServerConnectionData>,
    opener: RecordOpener,
    abilities: Abilities,
    /// Upper bound of the number of records sent with the key.
    sent_records: u64,
    /// True if the client requested a new key, or the key has reached its limit of records.
    needs_new_key: bool,
}

impl KernelTls {
    /// True if the kernel must encrypt a file of this session of which `length` bytes are sent.
    pub(super) fn is_for(&self, session: &ServerConnection, length: u64) -> bool {
        let (Some(version), Some(suite)) = (session.protocol_version(), session.negotiated_cipher_suite()) else {
            return false;
        };
        length >= self.file_bytes_min && self.abilities.has(version, suite.suite())
    }
}

/// Prepares a socket; this alone changes nothing on the connection.
///
/// # Errors
/// The kernel has no TLS, or the connection does not support it.
pub(super) fn attach(socket: &Socket) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::TcpUlp::default(), b"tls")?)
}

impl KernelSession {
    /// Gives the kernel the key of a session. The session must be in no handshake, have nothing to send, and have
    /// received only whole records. The socket must be prepared.
    ///
    /// # Errors
    /// The session provides no keys, or the kernel rejects this one. The connection must then be closed, because the
    /// session is gone.
    pub(super) fn begin(socket: &Socket, session: ServerConnection, abilities: Abilities) -> io::Result<Self> {
        let (secrets, keys) = session.dangerous_into_kernel_connection().map_err(io::Error::other)?;
        let (sent_records, sending) = secrets.tx;
        let (received_records, receiving) = secrets.rx;
        let opener = RecordOpener::new(keys.negotiated_cipher_suite(), receiving, received_records)?;
        setsockopt(socket, sockopt::TcpTlsTx, &send_key_of(keys.protocol_version(), &sending, sent_records)?)?;
        Ok(Self { keys, opener, abilities, sent_records, needs_new_key: false })
    }

    /// Removes a record from the input; returns its length and its content. `None` if the record is incomplete.
    ///
    /// # Errors
    /// The record is invalid, and an alert was sent if possible; or the client reports an error.
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

    /// Sends as much of several pieces as the kernel accepts.
    pub(super) fn poll_write(&mut self, socket: &mut Socket, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        ready!(self.poll_key(socket))?;
        let sent = match pieces {
            [piece] => socket.poll_write(piece),
            pieces => socket.poll_write_vectored(pieces),
        };
        self.count(sent)
    }

    /// Sends as much of a part of a file as the kernel accepts. 0 is the end of the file.
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

    /// Makes sure that the key may be used for the next record; replaces it if necessary.
    ///
    /// # Errors
    /// The key has reached its limit (RFC 8446, sections 4.6.3 and 5.5), and the kernel accepts no other.
    fn poll_key(&mut self, socket: &mut Socket) -> Poll<io::Result<()>> {
        if !self.needs_new_key && self.sent_records < records_max(self.keys.negotiated_cipher_suite()) {
            return Poll::Ready(Ok(()));
        }
        let version = self.keys.protocol_version();
        if version != ProtocolVersion::TLSv1_3 || !self.abilities.changes_keys() {
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        }
        // The last record with the old key.
        ready!(poll_send_record(socket, ContentType::Handshake, &KEY_UPDATE))?;
        let (sent_records, secrets) = self.keys.update_tx_secret().map_err(io::Error::other)?;
        setsockopt(socket, sockopt::TcpTlsTx, &send_key_of(version, &secrets, sent_records)?)?;
        (self.sent_records, self.needs_new_key) = (sent_records, false);
        Poll::Ready(Ok(()))
    }
}

/// Sends an alert to the client, if the socket has room for it.
///
/// # Errors
/// Fails with the socket's error.
pub(super) fn send_alert(socket: &mut Socket, alert: AlertDescription) -> io::Result<()> {
    const WARNING: u8 = 1;
    const FATAL: u8 = 2;
    let level = if alert == AlertDescription::CloseNotify { WARNING } else { FATAL };
    match poll_send_record(socket, ContentType::Alert, &[level, alert.into()]) {
        Poll::Ready(sent) => sent,
        Poll::Pending => Ok(()),
    }
}

/// Sends a record whose type is not application data.
fn poll_send_record(socket: &mut Socket, kind: ContentType, content: &[u8]) -> Poll<io::Result<()>> {
    let control = record_type(kind.into());
    let content = [IoSlice::new(content)];
    let message = MsgHdr::new().with_buffers(&content).with_control(&control);
    let sent = socket.poll_call(|socket| {
        let sent = SockRef::from(&socket).sendmsg(&message, libc::MSG_NOSIGNAL);
        sent.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    });
    // So few bytes are accepted as a whole or not at all.
    sent.map_ok(|_| ())
}

/// Makes the control message (cmsg(3)) that sets the type of a record. It holds its length without padding, `SOL_TLS`,
/// `TLS_SET_RECORD_TYPE`, and the type.
fn record_type(kind: u8) -> [u8; CONTROL_BYTES] {
    let mut control = [0; CONTROL_BYTES];
    let length = HEADER_BYTES + 1;
    let (level, what) = (libc::SOL_TLS.to_ne_bytes(), libc::TLS_SET_RECORD_TYPE.to_ne_bytes());
    let message = [&length.to_ne_bytes()[..], &level, &what, &[kind]].concat();
    control[..length].copy_from_slice(&message);
    control
}

/// Length of the header of a control message, in bytes; a multiple of its alignment, so that no padding follows.
const HEADER_BYTES: usize = size_of::<usize>() + 2 * size_of::<libc::c_int>();

/// Length of a control message with one byte of data.
const CONTROL_BYTES: usize = HEADER_BYTES + size_of::<usize>();

/// Maximum number of records that may be sent with one key.
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
