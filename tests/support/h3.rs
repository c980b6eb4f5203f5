//! HTTP/3 connections of aioquic.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::skips::skip_without;

/// Package of the client.
const AIOQUIC: &str = "/usr/local/lib/aioquic/aioquic";

/// Client that holds a connection.
const SESSION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/support/h3_session.py");

/// HTTP/3 connection of a client that a test gives orders.
pub(crate) struct H3Session {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Returns true if a client is installed; otherwise reports a skip.
#[track_caller]
pub(crate) fn has_client() -> bool {
    let has_client = Path::new(AIOQUIC).is_dir();
    if !has_client {
        skip_without(AIOQUIC);
    }
    has_client
}

impl H3Session {
    /// Connects to a server whose CA certificate is in this file.
    pub(crate) fn connect(server: SocketAddr, authority: &Path) -> Self {
        Self::connect_with(server, authority, 60)
    }

    /// Connects to a server by its address: the certificate must have it.
    #[cfg(feature = "acme")]
    pub(crate) fn connect_by_address(server: SocketAddr, authority: &Path) -> Self {
        Self::start(server, authority, 60, &server.ip().to_string())
    }

    /// Connects with an idle timeout, in seconds.
    pub(crate) fn connect_with(server: SocketAddr, authority: &Path, idle_seconds: u32) -> Self {
        Self::start(server, authority, idle_seconds, "localhost")
    }

    fn start(server: SocketAddr, authority: &Path, idle_seconds: u32, name: &str) -> Self {
        let mut command = Command::new("python3");
        command
            .arg(SESSION)
            .arg(server.ip().to_string())
            .arg(server.port().to_string())
            .arg(authority)
            .arg(idle_seconds.to_string())
            .arg(name);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 starts");
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut session = Self { child, input, output };
        assert_eq!(session.read(), "connected");
        session
    }

    /// Gives an order of `h3_session.py`, and returns its result.
    pub(crate) fn order(&mut self, order: &str) -> String {
        self.give(order);
        self.read()
    }

    /// Gives an order, whose result [`read`](Self::read) returns.
    pub(crate) fn give(&mut self, order: &str) {
        writeln!(self.input, "{order}").expect("the client reads");
    }

    /// Result of the order that was given last.
    pub(crate) fn read(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the client writes text");
        line.trim_end_matches('\n').to_owned()
    }
}

impl Drop for H3Session {
    fn drop(&mut self) {
        // The client may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
