//! Controller that sends routes to the built server over a unix socket, and an application as their upstream.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;

use routes::{Applied, Backend, Change, Endpoint, Hello, Message, Snapshot, VERSION};
use tempfile::TempDir;

use super::{PATIENCE, TestServer};

/// Server whose routes this test sends.
pub(crate) struct Controlled {
    pub(crate) server: TestServer,
    pub(crate) hello: Hello,
    stream: BufReader<UnixStream>,
    revision: u64,
    directory: TempDir,
}

impl Controlled {
    /// Starts a server that connects to this test.
    pub(crate) fn start() -> Self {
        Self::start_in(tempfile::tempdir().expect("a directory"), "")
    }

    /// Starts a server whose last routes may be in the directory, with further options of its configuration.
    pub(crate) fn start_in(directory: TempDir, options: &str) -> Self {
        let config = write_config(&directory, options);
        Self::start_from(directory, &config)
    }

    /// Starts a server with this configuration, whose control plane is `plane.sock` in the directory.
    pub(crate) fn start_from(directory: TempDir, config: &Path) -> Self {
        let socket = directory.path().join("plane.sock");
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).expect("the socket can be bound");
        let server = TestServer::run_from(config);
        let (stream, _) = listener.accept().expect("the server connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has a read time-out");
        let mut stream = BufReader::new(stream);
        let Message::Hello(hello) = read(&mut stream) else { panic!("the first message is no hello") };
        Self { server, hello, stream, revision: 0, directory }
    }

    /// Sends a snapshot; returns the response.
    pub(crate) fn send(&mut self, snapshot: &Snapshot) -> Applied {
        self.revision += 1;
        let snapshot = Box::new(snapshot.clone());
        self.exchange(&Message::Snapshot { version: VERSION, revision: self.revision, snapshot })
    }

    /// Sends a change; returns the response.
    pub(crate) fn change(&mut self, change: Change) -> Applied {
        self.revision += 1;
        let change = Box::new(change);
        self.exchange(&Message::Change { base: self.revision - 1, revision: self.revision, change })
    }

    fn exchange(&mut self, message: &Message) -> Applied {
        self.stream.get_mut().write_all(&message.to_line()).expect("the server reads");
        let applied = loop {
            match read(&mut self.stream) {
                Message::Applied(applied) => break applied,
                Message::Ping => {}
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(applied.revision, self.revision, "{applied:?}");
        assert_eq!(applied.rejected, None);
        applied
    }

    /// Directory of the server's configuration and state.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Ends the controller; the server goes on.
    pub(crate) fn without_controller(self) -> (TestServer, TempDir) {
        (self.server, self.directory)
    }
}

/// Writes a configuration with a control plane in this directory.
pub(crate) fn write_config(directory: &TempDir, options: &str) -> PathBuf {
    let at = directory.path().display();
    let text = format!(
        "server {{\n workers 1\n control-plane \"unix:{at}/plane.sock\" directory=\"{at}/state\"\n}}\n{options}\n\
         site \"own.example\" {{\n listen \"127.0.0.1:0\"\n respond \"*\" 200 \"own\"\n}}\n"
    );
    let path = directory.path().join("tailcoat.kdl");
    std::fs::write(&path, text).expect("it can be written");
    path
}

fn read(stream: &mut BufReader<UnixStream>) -> Message {
    let mut line = Vec::new();
    stream.read_until(b'\n', &mut line).expect("the server writes");
    Message::from_line(&line).expect("a message")
}

/// Adds a backend with these endpoints.
pub(crate) fn add_backend(snapshot: &mut Snapshot, name: &str, endpoints: &[SocketAddr]) {
    snapshot.backends.insert(name.into(), Backend::default());
    snapshot.endpoints.insert(name.into(), endpoints.iter().copied().map(Endpoint::new).collect());
}

/// Application that responds with its name, the request's head and the length of its content. For WebSocket, it
/// switches to an echo. Lives until the test process ends.
pub(crate) fn application(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || respond(name, &socket));
        }
    });
    address
}

/// Responds on a connection until it ends.
fn respond(name: &str, mut socket: &TcpStream) -> Option<()> {
    let mut input = BufReader::new(socket);
    loop {
        let (mut head, mut length, mut is_upgrade) = (String::new(), 0, false);
        loop {
            let mut line = String::new();
            if input.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if line == "\r\n" {
                break;
            }
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            is_upgrade |= lower.starts_with("upgrade: websocket");
            head.push_str(&line);
        }
        if is_upgrade {
            let switch = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
            socket.write_all(switch.as_bytes()).ok()?;
            let mut buffer = [0; 4096];
            loop {
                let count = input.read(&mut buffer).ok().filter(|count| *count > 0)?;
                socket.write_all(&buffer[..count]).ok()?;
            }
        }
        let mut content = input.by_ref().take(length);
        let received = std::io::copy(&mut content, &mut std::io::sink()).ok()?;
        if received < length {
            return None;
        }
        let text = format!("name={name}\n{head}content={received}\n");
        let head = format!("HTTP/1.1 200 OK\r\nX-Application: {name}\r\nContent-Length: {}\r\n\r\n", text.len());
        socket.write_all((head + &text).as_bytes()).ok()?;
    }
}
