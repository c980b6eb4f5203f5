//! Bouncer of CrowdSec: asks its local API for decisions, and keeps them as bans.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bots::crowdsec::{STREAM_BYTES_MAX, STREAM_NEXT, STREAM_START, parse_stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::Bans;
use super::config::CrowdSec;
use super::log::{ServerLog, event};

/// Time for a response of the API. The first has all decisions.
const RESPONSE_TIME: Duration = Duration::from_secs(60);

/// Longest key.
const KEY_BYTES_MAX: usize = 1024;

/// Longest head of a response.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Asks for decisions forever. Ends when it is dropped.
pub(super) async fn follow(settings: CrowdSec, bans: Arc<Bans>, log: ServerLog) {
    let (mut is_started, mut has_failed, mut in_force) = (false, false, 0);
    loop {
        let path = if is_started { STREAM_NEXT } else { STREAM_START };
        match ask(&settings, path).await {
            Ok(body) => match parse_stream(&body) {
                Ok(changes) => {
                    let is_all = !std::mem::replace(&mut is_started, true);
                    let (banned, deleted) = (changes.banned.len(), changes.deleted.len());
                    let kept = bans.apply_decisions(changes, is_all);
                    // The API repeats what has ended within the second of the request before.
                    if has_failed || is_all || banned > 0 || kept != in_force {
                        log.info(event(
                            "decisions of CrowdSec applied",
                            &[("banned", &banned), ("ended", &deleted), ("in_force", &kept)],
                        ));
                    }
                    (has_failed, in_force) = (false, kept);
                }
                Err(error) => report(&log, &mut has_failed, &error),
            },
            Err(error) => report(&log, &mut has_failed, &error.to_string()),
        }
        sleep(settings.interval).await;
    }
}

/// Reports the first of several failures.
fn report(log: &ServerLog, has_failed: &mut bool, error: &str) {
    if !std::mem::replace(has_failed, true) {
        let help = "the last decisions stay in force; check the address and the key of `crowdsec`";
        log.warn(event("asking CrowdSec failed", &[("error", &error)]), help);
    }
}

async fn ask(settings: &CrowdSec, path: &str) -> io::Result<Vec<u8>> {
    let key = read_key(&settings.key_file)?;
    let authority = &settings.authority;
    let request = format!(
        "GET {path} HTTP/1.0\r\nHost: {authority}\r\nX-Api-Key: {key}\r\nUser-Agent: tailcoat/{}\r\nAccept: \
         application/json\r\n\r\n",
        env!("CARGO_PKG_VERSION")
    );
    let exchange = async {
        let mut stream = TcpStream::connect(authority.as_str()).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut response = Vec::new();
        let most = (HEAD_BYTES_MAX + STREAM_BYTES_MAX) as u64 + 1;
        stream.take(most).read_to_end(&mut response).await?;
        content(response)
    };
    timeout(RESPONSE_TIME, exchange).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Content of a response to a request of HTTP/1.0, which ends with the connection.
fn content(response: Vec<u8>) -> io::Result<Vec<u8>> {
    let invalid = |message: &str| io::Error::new(io::ErrorKind::InvalidData, message.to_owned());
    let end = memchr::memmem::find(&response, b"\r\n\r\n").ok_or_else(|| invalid("the response has no head"))?;
    let head = String::from_utf8_lossy(&response[..end]).into_owned();
    let status = head.split(' ').nth(1).unwrap_or_default();
    if status != "200" {
        return Err(invalid(&format!("status {}", status.chars().take(3).collect::<String>())));
    }
    let field = |name: &str| {
        let line = head.lines().find_map(|line| line.split_once(':').filter(|(key, _)| key.eq_ignore_ascii_case(name)));
        line.map(|(_, value)| value.trim().to_owned())
    };
    if field("transfer-encoding").is_some() {
        return Err(invalid("the response has a transfer coding, which HTTP/1.0 has not"));
    }
    let body = response[end + 4..].to_vec();
    if field("content-length").is_some_and(|length| length.parse() != Ok(body.len())) || body.len() > STREAM_BYTES_MAX {
        return Err(invalid("the response is cut, or too long"));
    }
    Ok(body)
}

fn read_key(file: &Path) -> io::Result<String> {
    let text = std::fs::read_to_string(file)?;
    let key = text.trim();
    let is_valid = !key.is_empty() && key.len() <= KEY_BYTES_MAX && key.bytes().all(|byte| byte.is_ascii_graphic());
    is_valid
        .then(|| key.to_owned())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{}: the file has no key", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses() {
        let check = |response: &str, expect: Option<&str>| {
            let found = content(response.as_bytes().to_vec()).ok();
            assert_eq!(found.as_deref(), expect.map(str::as_bytes), "{response}");
        };
        check("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", Some("{}"));
        check("HTTP/1.1 200 OK\r\n\r\n{}", Some("{}"));
        check("HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n{}", None);
        check("HTTP/1.0 403 Forbidden\r\n\r\n{}", None);
        check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", None);
        check("HTTP/1.0 200 OK\r\n", None);
        check("", None);
    }
}
