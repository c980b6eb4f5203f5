//! Processes that checks talk to.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time that a process has to listen and to respond.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A loopback port that is not in use.
pub(crate) fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A process that ends with this.
pub(crate) struct ChildProcess(Child);

impl ChildProcess {
    /// Starts it, and waits until it listens.
    pub(crate) fn start(mut command: Command, port: u16) -> Result<Self, Box<dyn Error>> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).spawn().map_err(|error| format!("{name} does not start: {error}"))?;
        let mut process = Self(child);
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > deadline || process.0.try_wait()?.is_some() {
                return Err(format!("{name} does not listen on port {port}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(process)
    }

    /// Asks it to end: SIGTERM.
    pub(crate) fn terminate(&self) -> Result<(), Box<dyn Error>> {
        let status = Command::new("kill").arg(self.0.id().to_string()).status()?;
        if status.success() { Ok(()) } else { Err("it has ended already".into()) }
    }

    /// Status with which it ends, within some seconds.
    pub(crate) fn end(&mut self) -> Result<ExitStatus, Box<dyn Error>> {
        until("the process ends", || Ok(self.0.try_wait()?))
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks again and again, until there is something.
pub(crate) fn until<T>(
    what: &str,
    mut ask: impl FnMut() -> Result<Option<T>, Box<dyn Error>>,
) -> Result<T, Box<dyn Error>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = ask()? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            return Err(format!("{what}: not within {} s", PATIENCE.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A response of HTTP/1.
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    head: String,
    pub(crate) content: Vec<u8>,
}

impl HttpResponse {
    /// A field of its head.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (field, value) = line.split_once(": ")?;
            field.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// Requests a path and reads the whole response.
pub(crate) fn get(port: u16, path: &str) -> Result<HttpResponse, Box<dyn Error>> {
    read(&mut ask(port, path)?, Vec::new())
}

/// Asks for a path, on a connection of its own.
pub(crate) fn ask(port: u16, path: &str) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    Ok(stream)
}

/// Reads the rest of a response.
pub(crate) fn read(stream: &mut TcpStream, mut bytes: Vec<u8>) -> Result<HttpResponse, Box<dyn Error>> {
    stream.read_to_end(&mut bytes)?;
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").ok_or("there is no head of a response")?;
    let head = String::from_utf8(bytes[..end].to_vec())?;
    let status = head.get(9..12).ok_or("there is no status")?.parse()?;
    Ok(HttpResponse { status, head, content: bytes.split_off(end + 4) })
}
