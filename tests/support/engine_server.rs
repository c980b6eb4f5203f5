//! HTTP/1.1 server of an engine: whole responses, and streams of events that stay open.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::function_server::response;

/// Response to a request.
pub(crate) enum EngineResponse {
    /// This status, and this content.
    Whole(&'static str, String),
    /// Status 200, and the content that [`EngineServer::send`] sends later.
    Stream,
}

type Respond = dyn Fn(&str) -> EngineResponse + Send + Sync;
type Streams = Vec<Box<dyn Write + Send>>;

/// Server of an engine. It serves until the process ends.
#[derive(Clone, Default)]
pub(crate) struct EngineServer {
    streams: Arc<Mutex<Streams>>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl EngineServer {
    /// Listens on a Unix socket. `respond` makes responses from heads of requests.
    pub(crate) fn on_socket(path: &Path, respond: impl Fn(&str) -> EngineResponse + Send + Sync + 'static) -> Self {
        let listener = UnixListener::bind(path).expect("the path is free");
        Self::accepting(Arc::new(respond), move || {
            let (stream, _) = listener.accept()?;
            Ok((stream.try_clone()?, stream))
        })
    }

    /// Listens on a free port.
    pub(crate) fn on_port(respond: impl Fn(&str) -> EngineResponse + Send + Sync + 'static) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let server = Self::accepting(Arc::new(respond), move || {
            let (stream, _) = listener.accept()?;
            Ok((stream.try_clone()?, stream))
        });
        (server, address)
    }

    /// Serves each connection that `accept` returns, as its reader and its writer.
    fn accepting<S: Read + Write + Send + 'static>(
        respond: Arc<Respond>,
        accept: impl Fn() -> io::Result<(S, S)> + Send + 'static,
    ) -> Self {
        let server = Self::default();
        let serving = server.clone();
        thread::spawn(move || {
            while let Ok((reader, writer)) = accept() {
                let (serving, respond) = (serving.clone(), Arc::clone(&respond));
                thread::spawn(move || serving.serve(reader, Box::new(writer), &*respond));
            }
        });
        server
    }

    /// Sends bytes to all streams. Returns the number of those that are still open.
    pub(crate) fn send(&self, text: &str) -> usize {
        let mut streams = self.streams();
        let chunk = format!("{:x}\r\n{text}\r\n", text.len());
        streams.retain_mut(|stream| stream.write_all(chunk.as_bytes()).is_ok());
        streams.len()
    }

    /// Ends all streams in order.
    pub(crate) fn end_streams(&self) {
        for mut stream in std::mem::take(&mut *self.streams()) {
            // The client may have closed it.
            let _ = stream.write_all(b"0\r\n\r\n");
        }
    }

    /// Number of open streams.
    pub(crate) fn stream_count(&self) -> usize {
        self.streams().len()
    }

    /// Takes the heads of all requests since the last call.
    pub(crate) fn heads(&self) -> Vec<String> {
        std::mem::take(&mut *self.heads.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, reader: impl Read, mut stream: Box<dyn Write + Send>, respond: &Respond) -> Option<()> {
        let mut reader = BufReader::new(reader);
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if reader.read_line(&mut head).ok()? == 0 {
                    return None;
                }
            }
            self.heads.lock().unwrap_or_else(PoisonError::into_inner).push(head.clone());
            match respond(&head) {
                EngineResponse::Whole(status, content) => {
                    stream.write_all(response(status, "", &content).as_bytes()).ok()?;
                }
                EngineResponse::Stream => {
                    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                    // A client that has the head gets all that is sent from then on.
                    let mut streams = self.streams();
                    stream.write_all(head.as_bytes()).ok()?;
                    streams.push(stream);
                    return Some(());
                }
            }
        }
    }
}
