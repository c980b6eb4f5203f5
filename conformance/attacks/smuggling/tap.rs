//! A relay between server and back end that records what the server sent, by connection.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Bytes that went to the back end, by the port they came from.
pub(crate) type SentBytes = HashMap<u16, Vec<u8>>;

pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    sent: Arc<Mutex<SentBytes>>,
}

impl Relay {
    /// Listens on a free port and relays connections to the back end, as long as the process runs.
    pub(crate) fn start(back_end: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let sent = Arc::<Mutex<SentBytes>>::default();
        let recorded = Arc::clone(&sent);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A back end that closes its listener ends the connection, which the server sees.
                let Ok(upstream) = TcpStream::connect(back_end) else { continue };
                let port = upstream.local_addr().map_or(0, |address| address.port());
                let (from, to, sent) = (clone(&client), clone(&upstream), Arc::clone(&recorded));
                std::thread::spawn(move || {
                    relay(from, to, |bytes| {
                        let mut sent = sent.lock().expect("no thread panics with it");
                        sent.entry(port).or_default().extend_from_slice(bytes);
                    });
                });
                std::thread::spawn(move || relay(upstream, client, |_| {}));
            }
        });
        Self { address, sent }
    }

    /// Bytes sent so far.
    pub(crate) fn sent(&self) -> SentBytes {
        self.sent.lock().expect("no thread panics with it").clone()
    }
}

fn clone(stream: &TcpStream) -> TcpStream {
    let _ = stream.set_nodelay(true);
    stream.try_clone().expect("a socket can be cloned")
}

/// Copies until one side ends, then passes the end on.
fn relay(mut from: TcpStream, mut to: TcpStream, record: impl Fn(&[u8])) {
    let mut buffer = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        record(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            // The other direction ends as well, as it would without a relay.
            let _ = from.shutdown(Shutdown::Both);
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
