//! Upstreams that attacks on the cache are made against: each answers what a function makes of a request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

/// A request as an upstream got it.
#[derive(Debug, Default)]
pub(super) struct OriginRequest {
    pub(super) method: String,
    pub(super) target: String,
    /// Names in lower case.
    pub(super) fields: Vec<(String, String)>,
}

impl OriginRequest {
    /// The value of a field; empty if there is none.
    pub(super) fn field(&self, name: &str) -> &str {
        self.fields.iter().find(|(other, _)| other == name).map_or("", |(_, value)| value)
    }
}

/// A response: status, lines of fields, content.
pub(super) struct OriginResponse {
    pub(super) status: u16,
    pub(super) fields: String,
    pub(super) content: String,
}

/// Starts an upstream, which runs as long as the process.
pub(super) fn start(answer: impl Fn(&OriginRequest) -> OriginResponse + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            // A connection that breaks is the server's matter.
            std::thread::spawn(move || drop(serve(stream, &*answer)));
        }
    });
    address
}

fn serve(mut stream: TcpStream, answer: &dyn Fn(&OriginRequest) -> OriginResponse) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(request) = read(&mut reader)? {
        let OriginResponse { status, fields, content } = answer(&request);
        let length =
            if matches!(status, 204 | 304) { String::new() } else { format!("Content-Length: {}\r\n", content.len()) };
        let content = if request.method == "HEAD" || matches!(status, 204 | 304) { "" } else { &content };
        stream.write_all(format!("HTTP/1.1 {status} X\r\n{fields}{length}\r\n{content}").as_bytes())?;
    }
    Ok(())
}

fn read(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<OriginRequest>> {
    let mut request = OriginRequest::default();
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let text = line.trim_end();
        if text.is_empty() {
            break;
        }
        if request.method.is_empty() {
            let mut words = text.split(' ').map(str::to_owned);
            (request.method, request.target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        } else if let Some((name, value)) = text.split_once(':') {
            request.fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    let length = request.field("content-length").parse().unwrap_or(0);
    reader.take(length).read_to_end(&mut Vec::new())?;
    if request.field("transfer-encoding") == "chunked" {
        // The content does not matter here.
        while line != "0\r\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(None);
            }
        }
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line)?;
        }
    }
    Ok(Some(request))
}
