//! Sends one input on a fresh connection and finds out what the server made of it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::expect::{CaseOutcome, ConnectionEnd, Expect};
use crate::response::{ParseStep, ParsedResponse};

/// The file that the tested site must have in addition to `/index.html`, so that the client recognizes a response.
pub const PROBE_FILE: &str = "probe.txt";
/// Content of [`PROBE_FILE`].
pub const PROBE_BODY: &str = "in sync\n";

/// Way in which an input is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feed {
    /// In one write.
    Whole,
    /// Byte by byte (long inputs in pieces of a few hundred bytes), with a pause after each.
    Split,
}

/// Sends cases to one server.
#[derive(Clone, Debug)]
pub struct CaseClient {
    /// The server.
    pub address: SocketAddr,
    /// Longest wait for a response or a close that must come.
    pub patience: Duration,
    /// Silence after which the server counts as done.
    pub silence: Duration,
}

impl CaseClient {
    /// Sends the input on a fresh connection. `expect` only tells what to wait for.
    pub fn run(&self, input: &[u8], expect: &Expect, feed: Feed) -> std::io::Result<CaseOutcome> {
        let mut exchange = CaseExchange {
            stream: TcpStream::connect_timeout(&self.address, self.patience)?,
            received: Vec::new(),
            closed: false,
            expect,
        };
        exchange.stream.set_nodelay(true)?;
        exchange.stream.set_write_timeout(Some(self.patience))?;
        exchange.feed(input, feed)?;
        let (responses, garbage) = exchange.answers(self)?;
        if exchange.closed || !garbage.is_empty() {
            return Ok(CaseOutcome { responses, garbage, end: ConnectionEnd::Closed });
        }
        let answered = responses.iter().any(|response| response.status >= 200);
        let is_complete = answered && !expect.may_be_incomplete();
        let end = if is_complete { exchange.probe(self)? } else { exchange.finish(self)? };
        Ok(CaseOutcome { responses, garbage, end })
    }
}

struct CaseExchange<'a> {
    stream: TcpStream,
    /// Bytes received that are not part of a response yet.
    received: Vec<u8>,
    closed: bool,
    expect: &'a Expect,
}

impl CaseExchange<'_> {
    fn feed(&mut self, input: &[u8], feed: Feed) -> std::io::Result<()> {
        const WHOLE_BYTES: usize = 2048;
        let piece = match feed {
            // So that a server that closes early is noticed and long inputs don't block.
            Feed::Whole => 64 << 10,
            Feed::Split if input.len() <= WHOLE_BYTES => 1,
            Feed::Split => 700,
        };
        for piece in input.chunks(piece) {
            if let Err(error) = self.stream.write_all(piece) {
                return if is_disconnect(&error) { Ok(()) } else { Err(error) };
            }
            if feed == Feed::Split {
                std::thread::sleep(Duration::from_micros(20));
                self.receive(Duration::ZERO)?;
            }
            if self.closed {
                break;
            }
        }
        Ok(())
    }

    /// Receives once, at most this long; false if nothing came.
    fn receive(&mut self, timeout: Duration) -> std::io::Result<bool> {
        let mut buffer = [0; 16 << 10];
        self.stream.set_nonblocking(timeout.is_zero())?;
        if !timeout.is_zero() {
            self.stream.set_read_timeout(Some(timeout))?;
        }
        let result = self.stream.read(&mut buffer);
        self.stream.set_nonblocking(false)?;
        match result {
            Ok(0) => self.closed = true,
            Ok(length) => self.received.extend_from_slice(&buffer[..length]),
            Err(error) if is_timeout(&error) => return Ok(false),
            Err(error) if is_disconnect(&error) => self.closed = true,
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// The responses to the input: until the server closes, or is silent and nothing is missing.
    fn answers(&mut self, client: &CaseClient) -> std::io::Result<(Vec<ParsedResponse>, Vec<u8>)> {
        let mut responses: Vec<ParsedResponse> = Vec::new();
        let deadline = Instant::now() + client.patience;
        loop {
            while !self.received.is_empty() || self.closed {
                let finals = responses.iter().filter(|response| response.status >= 200).count();
                match ParseStep::read(&self.received, self.expect.is_head(finals), self.closed) {
                    _ if self.received.is_empty() => return Ok((responses, Vec::new())),
                    ParseStep::Whole(response, length) => {
                        self.received.drain(..length);
                        responses.push(response);
                    }
                    ParseStep::Partial => break,
                    ParseStep::Garbage(_) => return Ok((responses, std::mem::take(&mut self.received))),
                }
            }
            let missing =
                !self.received.is_empty() || responses.len() < self.expect.answers_max() || self.expect.must_close();
            let left = deadline.saturating_duration_since(Instant::now());
            // A wait for what may never come has a shorter deadline.
            let surely_missing = missing && !(responses.is_empty() && self.expect.may_wait());
            let timeout = if surely_missing && !left.is_zero() { left } else { client.silence };
            if !self.receive(timeout)? {
                let garbage = std::mem::take(&mut self.received);
                return Ok((responses, garbage));
            }
        }
    }

    /// Checks that the server reads the next request as a request.
    fn probe(&mut self, client: &CaseClient) -> std::io::Result<ConnectionEnd> {
        let request = format!("GET /{PROBE_FILE} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        if let Err(error) = self.stream.write_all(request.as_bytes()) {
            return if is_disconnect(&error) { Ok(ConnectionEnd::Closed) } else { Err(error) };
        }
        let deadline = Instant::now() + client.patience;
        loop {
            if self.closed && self.received.is_empty() {
                return Ok(ConnectionEnd::Closed);
            }
            match ParseStep::read(&self.received, false, self.closed) {
                ParseStep::Whole(response, length) if length == self.received.len() => {
                    let in_sync = response.status == 200 && response.body == PROBE_BODY.as_bytes();
                    let reason =
                        || ConnectionEnd::OutOfSync(format!("the next request is answered with {}", response.status));
                    return Ok(if in_sync { ConnectionEnd::InSync } else { reason() });
                }
                ParseStep::Whole(..) => {
                    return Ok(ConnectionEnd::OutOfSync("the next request is answered twice".into()));
                }
                ParseStep::Garbage(reason) => {
                    return Ok(ConnectionEnd::OutOfSync(format!("the next request is answered with {reason}")));
                }
                ParseStep::Partial => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.receive(left)? {
                return Ok(ConnectionEnd::OutOfSync("the next request is not answered".into()));
            }
        }
    }

    /// Ends the input, as a client does that goes away, and sees what the server says to that.
    fn finish(&mut self, client: &CaseClient) -> std::io::Result<ConnectionEnd> {
        if let Err(error) = self.stream.shutdown(Shutdown::Write) {
            return if is_disconnect(&error) { Ok(ConnectionEnd::Closed) } else { Err(error) };
        }
        while !self.closed && self.receive(client.silence)? {}
        match ParseStep::read(&self.received, false, true) {
            ParseStep::Whole(response, _) => Ok(ConnectionEnd::Waiting(vec![response])),
            _ => Ok(ConnectionEnd::Waiting(Vec::new())),
        }
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn is_disconnect(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected | ErrorKind::ConnectionAborted
    )
}
