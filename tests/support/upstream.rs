//! A server to forward to, which answers what a test says.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::PATIENCE;

/// A server that does what the test says: on each connection, in their order, one of `scripts`; the last of them again
/// and again.
pub(crate) struct ScriptedUpstream {
    pub(crate) address: SocketAddr,
    /// What came in, a string a connection, when it has ended.
    connections: Receiver<String>,
}

/// What is done on a connection: until `Read` has seen its text nothing is written.
#[derive(Clone, Debug)]
pub(crate) enum ScriptStep {
    /// Reads until this has come since the last step.
    Read(&'static str),
    Write(&'static str),
    /// Reads and writes back what comes, until the end.
    Echo,
    /// Writes so many bytes.
    Fill(usize),
    /// Does nothing for so many milliseconds.
    Pause(u64),
    /// Closes so that the other side sees an error.
    Reset,
}

impl ScriptedUpstream {
    pub(crate) fn start(scripts: Vec<Vec<ScriptStep>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, connections) = channel();
        std::thread::spawn(move || {
            for (index, stream) in listener.incoming().enumerate() {
                let script = scripts[index.min(scripts.len() - 1)].clone();
                let sender = sender.clone();
                std::thread::spawn(move || sender.send(act(stream.unwrap(), &script)));
            }
        });
        Self { address, connections }
    }

    pub(crate) fn connection(&self) -> String {
        self.connections.recv_timeout(PATIENCE).expect("a connection has ended")
    }

    /// What came in on a connection that has ended by now, if there is one.
    pub(crate) fn try_connection(&self) -> Option<String> {
        self.connections.try_recv().ok()
    }
}

fn act(mut stream: TcpStream, script: &[ScriptStep]) -> String {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut seen, mut input, mut buffer) = (0, Vec::new(), [0; 65_536]);
    for step in script {
        match step {
            ScriptStep::Read(text) => loop {
                let rest = String::from_utf8_lossy(&input[seen..]).into_owned();
                if let Some(at) = rest.find(text) {
                    seen += at + text.len();
                    break;
                }
                match stream.read(&mut buffer) {
                    Ok(count @ 1..) => input.extend_from_slice(&buffer[..count]),
                    _ => return String::from_utf8_lossy(&input).into_owned(),
                }
            },
            ScriptStep::Write(text) => stream.write_all(text.as_bytes()).unwrap_or_default(),
            ScriptStep::Fill(bytes) => stream.write_all(&vec![b'x'; *bytes]).unwrap_or_default(),
            ScriptStep::Pause(milliseconds) => std::thread::sleep(Duration::from_millis(*milliseconds)),
            ScriptStep::Echo => {
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    stream.write_all(&buffer[..count]).unwrap_or_default();
                }
            }
            ScriptStep::Reset => {
                let socket = socket2::SockRef::from(&stream);
                socket.set_linger(Some(Duration::ZERO)).unwrap();
            }
        }
    }
    if script.last().is_some_and(|step| matches!(step, ScriptStep::Read(_))) {
        // Whatever else comes.
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            input.extend_from_slice(&buffer[..count]);
        }
    }
    String::from_utf8_lossy(&input).into_owned()
}
