//! Upstream that follows a test's script.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::PATIENCE;
use super::waiting::eventually;

/// Server that follows one of `scripts` on each connection, in order; it repeats the last one.
pub(crate) struct ScriptedUpstream {
    pub(crate) address: SocketAddr,
    /// Input of each connection, once that has ended.
    connections: Receiver<String>,
    /// Input of all connections so far.
    received: Arc<Mutex<Vec<u8>>>,
    gate: Arc<Gate>,
}

/// Gate that scripts wait at with [`ScriptStep::Gate`].
#[derive(Debug, Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

/// Step of a script. Later steps wait until `Read` has seen its text.
#[derive(Clone, Debug)]
pub(crate) enum ScriptStep {
    /// Reads until this text has arrived since the last step.
    Read(&'static str),
    Write(&'static str),
    /// Echoes all input, until the end.
    Echo,
    /// Writes this many bytes.
    Fill(usize),
    /// Sleeps for this many milliseconds.
    Pause(u64),
    /// Waits, and reads nothing, until [`ScriptedUpstream::open_gate`].
    Gate,
    /// Closes with a reset.
    Reset,
}

impl ScriptedUpstream {
    pub(crate) fn start(scripts: Vec<Vec<ScriptStep>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, connections) = channel();
        let received = Arc::<Mutex<Vec<u8>>>::default();
        let seen = Arc::clone(&received);
        let gate = Arc::<Gate>::default();
        let of_scripts = Arc::clone(&gate);
        std::thread::spawn(move || {
            for (index, stream) in listener.incoming().enumerate() {
                let script = scripts[index.min(scripts.len() - 1)].clone();
                let (sender, seen, gate) = (sender.clone(), Arc::clone(&seen), Arc::clone(&of_scripts));
                std::thread::spawn(move || sender.send(act(stream.unwrap(), &script, &seen, &gate)));
            }
        });
        Self { address, connections, received, gate }
    }

    /// Lets all scripts go on that wait at the gate, now and later.
    pub(crate) fn open_gate(&self) {
        *self.gate.is_open.lock().expect("no thread panics with it") = true;
        self.gate.opened.notify_all();
    }

    /// Waits until its connections have received this text while they followed their scripts.
    #[track_caller]
    pub(crate) fn await_received(&self, text: &str) {
        eventually(&format!("the upstream has received {text:?}"), || {
            memchr::memmem::find(&self.received.lock().expect("no thread panics with it"), text.as_bytes()).is_some()
        });
    }

    pub(crate) fn connection(&self) -> String {
        self.connections.recv_timeout(PATIENCE).expect("a connection has ended")
    }

    /// Input of a connection that has ended, if there is one.
    pub(crate) fn try_connection(&self) -> Option<String> {
        self.connections.try_recv().ok()
    }
}

fn act(mut stream: TcpStream, script: &[ScriptStep], received: &Mutex<Vec<u8>>, gate: &Gate) -> String {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut seen, mut input, mut buffer) = (0, Vec::new(), [0; 65_536]);
    for step in script {
        match step {
            ScriptStep::Read(text) => loop {
                if let Some(at) = memchr::memmem::find(&input[seen..], text.as_bytes()) {
                    seen += at + text.len();
                    break;
                }
                // The text may begin at the end of what has arrived.
                seen = seen.max(input.len().saturating_sub(text.len()));
                match stream.read(&mut buffer) {
                    Ok(count @ 1..) => {
                        input.extend_from_slice(&buffer[..count]);
                        received.lock().expect("no thread panics with it").extend_from_slice(&buffer[..count]);
                    }
                    _ => return String::from_utf8_lossy(&input).into_owned(),
                }
            },
            ScriptStep::Write(text) => stream.write_all(text.as_bytes()).unwrap_or_default(),
            ScriptStep::Fill(bytes) => stream.write_all(&vec![b'x'; *bytes]).unwrap_or_default(),
            ScriptStep::Gate => {
                let is_open = gate.is_open.lock().expect("no thread panics with it");
                drop(gate.opened.wait_timeout_while(is_open, PATIENCE, |is_open| !*is_open));
            }
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
        // Reads until the end of the connection.
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            input.extend_from_slice(&buffer[..count]);
        }
    }
    String::from_utf8_lossy(&input).into_owned()
}
