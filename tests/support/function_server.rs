//! HTTP/1.1 server whose responses a function makes from request heads.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Server that keeps the heads of all requests. It serves until the process ends.
pub(crate) struct FunctionServer {
    pub(crate) address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl FunctionServer {
    /// Starts it. `respond` makes a whole response from a head.
    pub(crate) fn start(respond: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let (heads, respond) = (Arc::new(Mutex::new(Vec::new())), Arc::new(respond));
        let server = Self { address, heads: Arc::clone(&heads) };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (heads, respond) = (Arc::clone(&heads), Arc::clone(&respond));
                thread::spawn(move || serve(stream, &heads, &*respond));
            }
        });
        server
    }

    /// Takes the heads of all requests since the last call.
    pub(crate) fn heads(&self) -> Vec<String> {
        std::mem::take(&mut *self.heads.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Response with this status line, fields and content.
pub(crate) fn response(status: &str, fields: &str, content: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {}\r\n\r\n{content}", content.len())
}

/// Value of a field in a head; empty if it is missing.
pub(crate) fn field<'h>(head: &'h str, name: &str) -> &'h str {
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value).next().unwrap_or_default()
}

fn serve(stream: TcpStream, heads: &Mutex<Vec<String>>, respond: &dyn Fn(&str) -> String) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let length: usize = field(&head, "content-length").parse().unwrap_or(0);
        reader.read_exact(&mut vec![0; length]).ok()?;
        heads.lock().unwrap_or_else(PoisonError::into_inner).push(head.clone());
        stream.write_all(respond(&head).as_bytes()).ok()?;
    }
}
