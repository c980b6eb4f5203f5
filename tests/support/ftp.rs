//! FTP client of the tests, which sees each line.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use super::{PATIENCE, TestServer};

/// Control connection.
pub(crate) struct FtpClient {
    control: BufReader<TcpStream>,
    server: IpAddr,
}

impl FtpClient {
    /// Connects, and reads the greeting.
    pub(crate) fn connect(server: &TestServer) -> Self {
        Self::over(server.connect())
    }

    /// Uses a connection, and reads the greeting.
    pub(crate) fn over(stream: TcpStream) -> Self {
        let server = stream.peer_addr().expect("it is connected").ip();
        let mut client = Self { control: BufReader::new(stream), server };
        assert_eq!(client.reply(), "220 Ready.\r\n");
        client
    }

    /// Connects, and logs in with the type image.
    pub(crate) fn log_in(server: &TestServer) -> Self {
        let mut client = Self::connect(server);
        assert_eq!(client.codes(&["USER anonymous", "PASS me@", "TYPE I"]), [331, 230, 200]);
        client
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.control.get_mut().write_all(bytes).expect("the server reads");
    }

    /// Sends bytes, the last of them as urgent data of TCP.
    pub(crate) fn send_urgent(&mut self, bytes: &[u8]) {
        let socket = socket2::SockRef::from(self.control.get_ref());
        assert_eq!(socket.send_out_of_band(bytes).expect("the server reads"), bytes.len());
    }

    /// Reads a reply, of all its lines; empty if the server has closed the connection.
    pub(crate) fn reply(&mut self) -> String {
        let (mut reply, mut line) = (Vec::new(), Vec::new());
        loop {
            line.clear();
            self.control.read_until(b'\n', &mut line).expect("the server replies in time");
            reply.extend_from_slice(&line);
            let is_last = line.len() < 4 || (line[3] == b' ' && line[..3].iter().all(u8::is_ascii_digit));
            if is_last {
                return String::from_utf8_lossy(&reply).into_owned();
            }
        }
    }

    /// Sends a command; returns the reply.
    pub(crate) fn command(&mut self, command: &str) -> String {
        self.send(format!("{command}\r\n").as_bytes());
        self.reply()
    }

    /// Sends commands one after another; returns the codes of the replies.
    pub(crate) fn codes(&mut self, commands: &[&str]) -> Vec<u16> {
        commands.iter().map(|command| code(&self.command(command))).collect()
    }

    /// Opens a port for a data connection with EPSV; returns its address.
    pub(crate) fn passive(&mut self) -> SocketAddr {
        let reply = self.command("EPSV");
        let port = reply.split('|').nth(3).unwrap_or_else(|| panic!("{reply}"));
        SocketAddr::new(self.server, port.parse().expect("a port"))
    }

    /// Opens a data connection.
    pub(crate) fn data(&mut self) -> TcpStream {
        let stream = TcpStream::connect(self.passive()).expect("the server listens for data");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has a read time-out");
        stream
    }

    /// Transfers something to the client; returns the content and the last reply.
    pub(crate) fn transfer(&mut self, command: &str) -> (Vec<u8>, String) {
        let mut data = self.data();
        let begun = self.command(command);
        if code(&begun) != 150 {
            return (Vec::new(), begun);
        }
        let mut content = Vec::new();
        data.read_to_end(&mut content).expect("the server sends in time");
        (content, self.reply())
    }

    /// Complete transfer of a text.
    pub(crate) fn text(&mut self, command: &str) -> String {
        let (content, reply) = self.transfer(command);
        assert_eq!(reply, "226 Transfer complete.\r\n", "{command}");
        String::from_utf8_lossy(&content).into_owned()
    }
}

/// Code of a reply.
pub(crate) fn code(reply: &str) -> u16 {
    reply.get(..3).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{reply:?} is no reply"))
}
