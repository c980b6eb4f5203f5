//! The last servers of a source, on disk: a restart while the source is away still serves.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fmt, io};

use serde::{Deserialize, Serialize};
use tailcoat_config::{Discovery, UpstreamServer, read_regular, servers_from_texts, state_directory};
use tailcoat_rest::encoded;
use tailcoat_tls::{create_private_directory, write_private};

/// Age above which servers on disk are not used. Their addresses may belong to other services by then.
const AGE_MAX: Duration = Duration::from_secs(86_400);

/// Interval in which a source confirms servers on disk that have not changed.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(600);

/// Folder in the state directory.
const FOLDER: &str = "discovered";

/// Longest name of a file.
const NAME_BYTES_MAX: usize = 200;

/// File of an upstream's servers.
pub(super) struct KeptServers {
    path: PathBuf,
    /// Text that tells sources apart.
    source: String,
    written_at: Option<Instant>,
    /// True if the latest write failed.
    is_failing: bool,
}

/// Content of the file.
#[derive(Deserialize, Serialize)]
struct KeptContent {
    source: String,
    /// Time when the source named them last.
    unix_seconds: u64,
    /// Servers, as in the option `server`.
    servers: Vec<String>,
}

impl KeptServers {
    /// File of this upstream; `None` if the environment names no state directory.
    pub(super) fn new(upstream: &str, discovery: &Discovery) -> Option<Self> {
        let mut name = encoded(upstream);
        name.truncate(NAME_BYTES_MAX);
        let path = state_directory()?.join(FOLDER).join(format!("{name}.json"));
        Some(Self { path, source: discovery.identity(), written_at: None, is_failing: false })
    }

    /// Servers that the same source has named within a day.
    pub(super) fn read(&self) -> Option<Vec<UpstreamServer>> {
        self.parse(&read_regular(&self.path).ok()?, unix_seconds())
    }

    fn parse(&self, content: &[u8], now: u64) -> Option<Vec<UpstreamServer>> {
        let content: KeptContent = serde_json::from_slice(content).ok()?;
        // A file of the future is one of a clock that was wrong.
        let age = Duration::from_secs(now.checked_sub(content.unix_seconds)?);
        let is_valid = content.source == self.source && age <= AGE_MAX && !content.servers.is_empty();
        if is_valid { servers_from_texts(&content.servers).ok() } else { None }
    }

    /// Writes servers that have changed, and from time to time those that have not. Returns an error if the write before
    /// succeeded.
    pub(super) async fn write(&mut self, servers: &[UpstreamServer], is_change: bool) -> Result<(), io::Error> {
        let is_confirmed = self.written_at.is_some_and(|at| at.elapsed() < CONFIRM_INTERVAL);
        if is_confirmed && !is_change {
            return Ok(());
        }
        let servers = servers.iter().map(|server| ServerText(server).to_string()).collect();
        let content = KeptContent { source: self.source.clone(), unix_seconds: unix_seconds(), servers };
        let path = self.path.clone();
        self.written_at = Some(Instant::now());
        let written = tokio::task::spawn_blocking(move || save(&path, &content)).await;
        let result = written.unwrap_or_else(|error| Err(io::Error::other(error)));
        let was_failing = std::mem::replace(&mut self.is_failing, result.is_err());
        if was_failing { Ok(()) } else { result }
    }
}

fn save(path: &Path, content: &KeptContent) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        create_private_directory(folder)?;
    }
    write_private(path, &serde_json::to_string(content)?)
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Server as in the option `server`.
struct ServerText<'a>(&'a UpstreamServer);

impl fmt::Display for ServerText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UpstreamServer { address, weight, backup } = self.0;
        write!(f, "{address} weight={weight}{}", if *backup { " backup=on" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use tailcoat_config::DiscoveredProtocol;

    use super::*;

    #[test]
    fn servers_outlive_a_restart() {
        let kept =
            KeptServers { path: PathBuf::new(), source: "srv:a http".to_owned(), written_at: None, is_failing: false };
        let servers: Vec<UpstreamServer> =
            [("10.0.0.1", 1, false), ("[2001:db8::1]", 1_000, true), ("a-1.b", 7, false)]
                .into_iter()
                .flat_map(|(host, weight, backup)| {
                    DiscoveredProtocol::ALL.map(|protocol| UpstreamServer {
                        address: protocol.address(host.to_owned(), 8_080),
                        weight,
                        backup,
                    })
                })
                .collect();
        let text = |source: &str, unix_seconds, servers: &[UpstreamServer]| {
            let servers = servers.iter().map(|server| ServerText(server).to_string()).collect();
            serde_json::to_vec(&KeptContent { source: source.to_owned(), unix_seconds, servers }).unwrap()
        };
        let day = AGE_MAX.as_secs();
        assert_eq!(kept.parse(&text("srv:a http", 1_000, &servers), 1_000 + day), Some(servers.clone()));
        // Too old, of the future, of another source, empty, and cut.
        assert_eq!(kept.parse(&text("srv:a http", 1_000, &servers), 1_001 + day), None);
        assert_eq!(kept.parse(&text("srv:a http", 1_000, &servers), 999), None);
        assert_eq!(kept.parse(&text("srv:a h2c", 1_000, &servers), 1_000), None);
        assert_eq!(kept.parse(&text("srv:a http", 1_000, &[]), 1_000), None);
        let whole = text("srv:a http", 1_000, &servers);
        assert_eq!(kept.parse(&whole[..whole.len() - 1], 1_000), None);
        let hostile = br#"{"source":"srv:a http","unix_seconds":1000,"servers":["http://a:80\" weight=1"]}"#;
        assert_eq!(kept.parse(hostile, 1_000), None);
    }
}
