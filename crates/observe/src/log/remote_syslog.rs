//! Syslog of another machine (RFC 5424), over UDP (RFC 5426), TCP (RFC 6587, octet counting) or TLS (RFC 5425).
//!
//! A thread for each such log connects and sends, because lookups of names and handshakes wait. The log writer only
//! appends to a queue with a limit, and drops records beyond it.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use time::OffsetDateTime;

use super::syslog::{FACILITIES, SEVERITY};
use crate::config::{RemoteSyslog, SyslogTransport, tls_client_settings};

/// Bytes of a message; longer ones are cut. Receivers must accept 2 KiB and should accept 8 KiB (RFC 5424, section 6.1).
const MESSAGE_BYTES_MAX: usize = 8 << 10;

/// Bytes that are written to a stream together.
const WRITE_BYTES: usize = 64 << 10;

/// Time to connect, and to write.
const PATIENCE: Duration = Duration::from_secs(5);

/// First and longest wait before another try to connect.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// A remote syslog, with the queue of its messages.
#[derive(Debug)]
pub(super) struct RemoteLog {
    shared: Arc<SharedQueue>,
    target: RemoteSyslog,
    tls: Option<Arc<ClientConfig>>,
    facility: u8,
    host: String,
    is_started: bool,
    message: Vec<u8>,
}

#[derive(Debug, Default)]
struct SharedQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    messages: VecDeque<Vec<u8>>,
    /// Bytes of the messages, with those that are being sent.
    bytes: usize,
    /// Messages that are being sent.
    sending: usize,
    /// Messages sent since the last report.
    sent: u64,
    /// Messages lost since the last report.
    lost: u64,
    /// Error of the last try; `None` if it has succeeded.
    trouble: Option<String>,
    is_closed: bool,
}

/// Result of sending since the last report.
#[derive(Debug, Default)]
pub(super) struct RemoteReport {
    pub(super) sent: u64,
    pub(super) lost: u64,
    pub(super) trouble: Option<io::Error>,
}

impl RemoteLog {
    /// Prepares a log, without connecting.
    ///
    /// # Errors
    /// The facility is unknown, or the CA certificates cannot be read.
    pub(super) fn new(target: &RemoteSyslog) -> io::Result<Self> {
        let invalid = |message: String| io::Error::new(ErrorKind::InvalidInput, message);
        let facility = FACILITIES.iter().position(|name| *name == target.facility);
        let facility = facility.ok_or_else(|| invalid(format!("unknown facility {}", target.facility)))? as u8;
        let settings = || tls_client_settings(target.ca_file.as_deref()).map_err(io::Error::other);
        let tls = (target.transport == SyslogTransport::Tls).then(settings).transpose()?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        // RFC 5424, section 6: HOSTNAME is printable ASCII without spaces.
        let host: String = host.chars().filter(char::is_ascii_graphic).take(255).collect();
        Ok(Self {
            shared: Arc::default(),
            target: target.clone(),
            tls,
            facility,
            host: if host.is_empty() { "-".to_owned() } else { host },
            is_started: false,
            message: Vec::new(),
        })
    }

    /// Queues a line, which `push_line` appends. If the queue is full, the line is lost.
    ///
    /// # Errors
    /// The queue is full.
    pub(super) fn send(
        &mut self,
        unix_us: u64,
        bytes_max: usize,
        push_line: impl FnOnce(&mut Vec<u8>),
    ) -> io::Result<()> {
        self.message.clear();
        push_head(self.facility, unix_us, &self.host, &mut self.message);
        push_line(&mut self.message);
        let length = self.message.trim_ascii_end().len().min(MESSAGE_BYTES_MAX);
        self.message.truncate(length);
        let frame = match self.target.transport {
            SyslogTransport::Udp => self.message.clone(),
            SyslogTransport::Tcp | SyslogTransport::Tls => {
                let mut frame = format!("{} ", self.message.len()).into_bytes();
                frame.extend_from_slice(&self.message);
                frame
            }
        };
        self.start()?;
        let mut state = self.shared.lock();
        if state.bytes + frame.len() > bytes_max {
            let trouble = state.trouble.clone().unwrap_or_else(|| "the syslog is too slow".to_owned());
            return Err(io::Error::new(ErrorKind::WouldBlock, trouble));
        }
        state.bytes += frame.len();
        state.messages.push_back(frame);
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Starts the thread with the first message, so that a configuration that is only checked starts none.
    fn start(&mut self) -> io::Result<()> {
        if !self.is_started {
            let (shared, target, tls) = (Arc::clone(&self.shared), self.target.clone(), self.tls.clone());
            thread::Builder::new().name("syslog".into()).spawn(move || run(&shared, &target, tls.as_ref()))?;
            self.is_started = true;
        }
        Ok(())
    }

    /// Numbers of messages sent and lost since the last call, and the present trouble.
    pub(super) fn report(&mut self) -> RemoteReport {
        let mut state = self.shared.lock();
        RemoteReport {
            sent: std::mem::take(&mut state.sent),
            lost: std::mem::take(&mut state.lost),
            trouble: state.trouble.clone().map(io::Error::other),
        }
    }

    /// True if messages wait.
    pub(super) fn is_pending(&self) -> bool {
        self.shared.lock().bytes > 0
    }

    /// Drops the messages that wait; returns their number.
    pub(super) fn discard(&mut self) -> u64 {
        let mut state = self.shared.lock();
        let count = state.messages.len();
        let bytes: usize = state.messages.drain(..).map(|message| message.len()).sum();
        state.bytes -= bytes;
        count as u64
    }
}

impl Drop for RemoteLog {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // No code under the lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes messages of at most [`WRITE_BYTES`]; waits for the first. `None` at the end.
    fn take(&self) -> Option<Vec<Vec<u8>>> {
        let mut state = self.lock();
        while state.messages.is_empty() {
            if state.is_closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let mut bytes = 0;
        let mut taken = Vec::new();
        while let Some(message) = state.messages.pop_front() {
            bytes += message.len();
            taken.push(message);
            if bytes >= WRITE_BYTES {
                break;
            }
        }
        state.sending = taken.len();
        Some(taken)
    }

    /// Notes that messages were sent, or lost.
    fn done(&self, messages: &[Vec<u8>], is_sent: bool, trouble: Option<String>) {
        let mut state = self.lock();
        state.bytes -= messages.iter().map(Vec::len).sum::<usize>().min(state.bytes);
        state.sending = 0;
        match is_sent {
            true => state.sent += messages.len() as u64,
            false => state.lost += messages.len() as u64,
        }
        state.trouble = trouble;
    }

    /// Notes trouble, and waits before the next try. Returns false at the end.
    fn wait_after(&self, error: &io::Error, wait: Duration) -> bool {
        let mut state = self.lock();
        state.trouble = Some(error.to_string());
        if !state.is_closed {
            let waited = self.changed.wait_timeout_while(state, wait, |state| !state.is_closed);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        !state.is_closed
    }
}

/// Sends messages until the log is closed.
fn run(shared: &SharedQueue, target: &RemoteSyslog, tls: Option<&Arc<ClientConfig>>) {
    let mut connection: Option<Connection> = None;
    let mut wait = RETRY_MIN;
    while let Some(messages) = shared.take() {
        loop {
            let sent = open(&mut connection, target, tls).and_then(|connection| connection.send(&messages));
            match sent {
                Ok(()) => {
                    wait = RETRY_MIN;
                    shared.done(&messages, true, None);
                    break;
                }
                // A datagram that was rejected is not repeated: nothing tells whether an earlier one was lost.
                Err(error) if target.transport == SyslogTransport::Udp && connection.is_some() => {
                    connection = None;
                    shared.done(&messages, false, Some(error.to_string()));
                    break;
                }
                Err(error) => {
                    connection = None;
                    if !shared.wait_after(&error, wait) {
                        shared.done(&messages, false, Some(error.to_string()));
                        return;
                    }
                    wait = (wait * 2).min(RETRY_MAX);
                }
            }
        }
    }
}

/// The open connection, or a new one.
fn open<'c>(
    connection: &'c mut Option<Connection>,
    target: &RemoteSyslog,
    tls: Option<&Arc<ClientConfig>>,
) -> io::Result<&'c mut Connection> {
    if connection.as_mut().is_some_and(Connection::has_ended) {
        *connection = None;
    }
    match connection {
        Some(connection) => Ok(connection),
        None => Ok(connection.insert(Connection::open(target, tls)?)),
    }
}

/// Connection to a syslog.
enum Connection {
    Udp(UdpSocket),
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Connection {
    fn open(target: &RemoteSyslog, tls: Option<&Arc<ClientConfig>>) -> io::Result<Self> {
        let host = target.host.trim_matches(['[', ']']);
        let mut last = io::Error::new(ErrorKind::NotFound, format!("{host} has no address"));
        for address in (host, target.port).to_socket_addrs()? {
            match Self::open_at(address, host, tls, target.transport) {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn open_at(
        address: SocketAddr,
        host: &str,
        tls: Option<&Arc<ClientConfig>>,
        transport: SyslogTransport,
    ) -> io::Result<Self> {
        if transport == SyslogTransport::Udp {
            let own: SocketAddr = match address.is_ipv4() {
                true => (Ipv4Addr::UNSPECIFIED, 0).into(),
                false => (Ipv6Addr::UNSPECIFIED, 0).into(),
            };
            let socket = UdpSocket::bind(own)?;
            socket.connect(address)?;
            return Ok(Self::Udp(socket));
        }
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let Some(tls) = tls else { return Ok(Self::Tcp(stream)) };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::clone(tls), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Self::Tls(Box::new(stream)))
    }

    fn send(&mut self, messages: &[Vec<u8>]) -> io::Result<()> {
        match self {
            Self::Udp(socket) => messages.iter().try_for_each(|message| socket.send(message).map(drop)),
            Self::Tcp(stream) => stream.write_all(&messages.concat()),
            Self::Tls(stream) => stream.write_all(&messages.concat()).and_then(|()| stream.flush()),
        }
    }

    /// True if the other side has closed the connection: a write would seem to succeed, and be lost.
    fn has_ended(&mut self) -> bool {
        match self {
            Self::Udp(_) => false,
            Self::Tcp(stream) => ended(stream),
            Self::Tls(stream) => {
                if stream.sock.set_nonblocking(true).is_err() {
                    return true;
                }
                let read = stream.read(&mut [0; 256]);
                let is_open = read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
                stream.sock.set_nonblocking(false).is_err() || !is_open
            }
        }
    }
}

fn ended(stream: &mut TcpStream) -> bool {
    if stream.set_nonblocking(true).is_err() {
        return true;
    }
    // A syslog sends nothing; what it sends all the same is dropped.
    let mut buffer = [0; 256];
    let is_open = loop {
        match stream.read(&mut buffer) {
            Ok(0) => break false,
            Ok(_) => {}
            Err(error) => break error.kind() == ErrorKind::WouldBlock,
        }
    };
    stream.set_nonblocking(false).is_err() || !is_open
}

/// Appends the head of a message (RFC 5424, section 6.2): priority, version, time, host, program, process, kind, and no
/// structured data.
fn push_head(facility: u8, unix_us: u64, host: &str, out: &mut Vec<u8>) {
    let mut head = format!("<{}>1 ", facility * 8 + SEVERITY);
    match OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix_us) * 1_000) {
        Ok(time) => {
            let (year, month, day) = (time.year(), u8::from(time.month()), time.day());
            let (hour, minute, second, us) = (time.hour(), time.minute(), time.second(), time.microsecond());
            // A text takes any number.
            let _ = write!(head, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{us:06}Z");
        }
        Err(_) => head.push('-'),
    }
    let _ = write!(head, " {host} tailcoat {} access - ", std::process::id());
    out.extend_from_slice(head.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn target(transport: SyslogTransport, port: u16) -> RemoteSyslog {
        RemoteSyslog { transport, host: "127.0.0.1".into(), port, facility: "local0".into(), ca_file: None }
    }

    #[test]
    fn heads() {
        let mut out = Vec::new();
        push_head(16, 1_795_246_911_123_456, "web1", &mut out);
        let expect = format!("<134>1 2026-11-21T07:41:51.123456Z web1 tailcoat {} access - ", std::process::id());
        assert_eq!(String::from_utf8(out).unwrap(), expect);
    }

    #[test]
    fn datagrams() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut log = RemoteLog::new(&target(SyslogTransport::Udp, server.local_addr().unwrap().port())).unwrap();
        log.send(0, 1 << 20, |out| out.extend_from_slice(b"a line\n")).unwrap();
        let mut bytes = [0; 1_024];
        let length = server.recv(&mut bytes).unwrap();
        let text = std::str::from_utf8(&bytes[..length]).unwrap();
        assert!(text.starts_with("<134>1 1970-01-01T00:00:00.000000Z "), "{text}");
        assert!(text.ends_with(" access - a line"), "{text}");
    }

    /// Reads a message with its length in front.
    fn frame(stream: &mut impl Read) -> String {
        let mut length = String::new();
        let mut byte = [0];
        loop {
            stream.read_exact(&mut byte).unwrap();
            if byte[0] == b' ' {
                break;
            }
            length.push(byte[0] as char);
        }
        let mut message = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut message).unwrap();
        String::from_utf8(message).unwrap()
    }

    #[test]
    fn streams_are_opened_again() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut log = RemoteLog::new(&target(SyslogTransport::Tcp, server.local_addr().unwrap().port())).unwrap();
        log.send(0, 1 << 20, |out| out.extend_from_slice(b"one")).unwrap();
        log.send(0, 1 << 20, |out| out.extend_from_slice("zw\u{f6}i".as_bytes())).unwrap();
        let (mut stream, _) = server.accept().unwrap();
        assert!(frame(&mut stream).ends_with(" one"));
        assert!(frame(&mut stream).ends_with(" zw\u{f6}i"));
        while log.is_pending() {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(log.report().sent, 2);
        drop(stream);
        log.send(0, 1 << 20, |out| out.extend_from_slice(b"three")).unwrap();
        let (mut stream, _) = server.accept().unwrap();
        assert!(frame(&mut stream).ends_with(" three"));
    }

    #[test]
    fn a_missing_syslog_fills_the_queue_and_no_more() {
        // The system assigns no such port by itself, so no other test listens there.
        let mut log = RemoteLog::new(&target(SyslogTransport::Tcp, 1)).unwrap();
        let mut queued = 0;
        while log.send(0, 4 << 10, |out| out.resize(out.len() + 500, b'x')).is_ok() {
            queued += 1;
        }
        assert!((1..=8).contains(&queued), "{queued}");
        assert!(log.is_pending());
        // The first try fails at once, and is reported.
        while log.report().trouble.is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        drop(log);
    }
}
