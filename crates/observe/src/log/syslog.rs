//! Local syslog: one datagram per record.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Socket of the system's syslog.
pub(super) const SYSTEM_SOCKET: &str = "/dev/log";

/// Bytes of a datagram; longer ones are cut. The default limit of rsyslog.
const DATAGRAM_BYTES_MAX: usize = 8 << 10;
/// Time to wait for a full queue between two flushes: the system's queue is short, and a working syslog empties it
/// sooner.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Shortest interval between attempts to reach a missing syslog.
const CONNECT_INTERVAL: Duration = Duration::from_secs(1);

/// Severity of each record: informational (RFC 3164, section 4.1.1).
pub(super) const SEVERITY: u8 = 6;

/// The facilities of RFC 3164, section 4.1.1, by the names that syslog.conf(5) gives them, in the order of their codes.
pub const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "ntp",
    "audit", "alert", "clock", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
];

/// Connection to a syslog.
#[derive(Debug)]
pub(super) struct Syslog {
    socket_path: PathBuf,
    socket: Option<UnixDatagram>,
    connect_after: Instant,
    /// Priority and tag at the start of each datagram.
    head: Vec<u8>,
    datagram: Vec<u8>,
    /// Time left to wait for a full queue until the next flush.
    wait: Duration,
}

impl Syslog {
    /// Connection to the syslog at this socket, which may not exist yet. `None` for an unknown facility.
    pub(super) fn new(socket_path: &Path, facility: &str) -> Option<Self> {
        let facility = FACILITIES.iter().position(|name| *name == facility)? as u8;
        // Priority and tag as in RFC 3164, section 4.1, without a time: the syslog of the same machine adds it (section
        // 4.3.2), and so the time zone cannot be wrong.
        let head = format!("<{}>tailcoat[{}]: ", facility * 8 + SEVERITY, std::process::id()).into_bytes();
        Some(Self {
            socket_path: socket_path.to_owned(),
            socket: None,
            connect_after: Instant::now(),
            head,
            datagram: Vec::new(),
            wait: WAIT_MAX,
        })
    }

    /// Sends a line, which `push_line` appends.
    ///
    /// # Errors
    /// Errors of connect(2) and send(2); the line is lost.
    pub(super) fn send(&mut self, push_line: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.datagram.clear();
        self.datagram.extend_from_slice(&self.head);
        push_line(&mut self.datagram);
        let length = self.datagram.trim_ascii_end().len().min(DATAGRAM_BYTES_MAX);
        self.datagram.truncate(length);
        let result = self.send_datagram();
        if result.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock) {
            self.socket = None;
            self.connect_after = Instant::now() + CONNECT_INTERVAL;
        }
        result
    }

    /// Resets the time to wait for a full queue.
    pub(super) fn flush(&mut self) {
        self.wait = WAIT_MAX;
    }

    fn send_datagram(&mut self) -> io::Result<()> {
        let socket = match &self.socket {
            Some(socket) => socket,
            None if Instant::now() < self.connect_after => return Err(io::ErrorKind::NotConnected.into()),
            None => self.socket.insert(connect(&self.socket_path)?),
        };
        loop {
            match socket.send(&self.datagram) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.wait.is_zero() => {
                    let began = Instant::now();
                    wait_for_room(socket, self.wait);
                    self.wait = self.wait.saturating_sub(began.elapsed());
                }
                result => return result.map(drop),
            }
        }
    }
}

fn connect(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect(path)?;
    Ok(socket)
}

fn wait_for_room(socket: &UnixDatagram, limit: Duration) {
    // Less than a second.
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
    // Ignores the result: the next attempt to send finds out.
    let _ = poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&timeout));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(socket: &UnixDatagram) -> String {
        let mut bytes = vec![0; 2 * DATAGRAM_BYTES_MAX];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[test]
    fn datagrams() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let server = UnixDatagram::bind(&path).unwrap();
        let tag = format!("tailcoat[{}]: ", std::process::id());
        for (facility, priority) in [("kern", 6), ("daemon", 30), ("local0", 134), ("local7", 190)] {
            let mut syslog = Syslog::new(&path, facility).unwrap();
            syslog.send(|out| out.extend_from_slice(b"a line\n")).unwrap();
            assert_eq!(receive(&server), format!("<{priority}>{tag}a line"));
        }
        assert!(Syslog::new(&path, "local8").is_none());
        let mut syslog = Syslog::new(&path, "user").unwrap();
        syslog.send(|out| out.resize(1 << 20, b'x')).unwrap();
        assert_eq!(receive(&server).len(), DATAGRAM_BYTES_MAX);
    }

    #[test]
    fn a_full_queue_is_waited_for_but_not_for_long() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let server = UnixDatagram::bind(&path).unwrap();
        let mut syslog = Syslog::new(&path, "user").unwrap();
        let began = Instant::now();
        let error = (0..100_000).find_map(|_| syslog.send(|out| out.push(b'x')).err()).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(began.elapsed() >= WAIT_MAX);
        assert!(syslog.wait.is_zero(), "it does not wait again before the next flush");
        syslog.flush();
        assert_eq!(syslog.wait, WAIT_MAX);
        receive(&server);
        syslog.send(|out| out.push(b'y')).unwrap();

        // Slow, but at work: nothing is lost.
        std::thread::spawn(move || while server.recv(&mut [0; 100]).is_ok() {});
        for _ in 0..10_000 {
            // Longer than WAIT_MAX: on a busy machine, the receiver may wait for its turn.
            syslog.wait = Duration::from_millis(59_999);
            syslog.send(|out| out.push(b'x')).unwrap();
        }
    }

    #[test]
    fn a_syslog_that_comes_later() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut syslog = Syslog::new(&path, "user").unwrap();
        assert_eq!(syslog.send(|out| out.push(b'1')).unwrap_err().kind(), io::ErrorKind::NotFound);
        let server = UnixDatagram::bind(&path).unwrap();
        assert_eq!(syslog.send(|out| out.push(b'2')).unwrap_err().kind(), io::ErrorKind::NotConnected);
        syslog.connect_after = Instant::now();
        syslog.send(|out| out.push(b'3')).unwrap();
        assert!(receive(&server).ends_with(": 3"));
    }
}
