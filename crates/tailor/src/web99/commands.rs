//! Commands of the workload: `Reset` creates the server's tables, and `Fetch` returns its post log.

use std::time::{SystemTime, UNIX_EPOCH};

use super::client::Web99Client;
use super::operation::Web99Site;
use super::tables::{AdTables, Seed};

/// Text before and after the content of a dynamic reply.
const CONTENT_START: &[u8] = b"<pre>\n";
const CONTENT_END: &[u8] = b"\n</pre>\n</body></html>\n";

/// Sender of commands to a server.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    pub(crate) client: Web99Client,
    pub(crate) site: Web99Site,
    seed: Seed,
}

impl Commands {
    pub(crate) fn new(client: Web99Client, script: &str, cgi_script: &str, users: u32, seed: u32) -> Self {
        let now_seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let seed = Seed { users, seed, now_seconds };
        let site = Web99Site {
            script: script.to_owned(),
            cgi_script: cgi_script.to_owned(),
            tables: AdTables::new(seed),
            now_seconds,
        };
        Self { client, site, seed }
    }

    /// Makes the server create new tables and empty its log.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub(crate) fn reset(&self) -> Result<(), String> {
        let Seed { users, seed, now_seconds } = self.seed;
        match self.send(&format!("Reset&users={users}&seed={seed}&now={now_seconds}"))?.as_slice() {
            b"done" => Ok(()),
            _ => Err("Reset: the server did not confirm it".to_owned()),
        }
    }

    /// Fetches the post log.
    ///
    /// # Errors
    /// The server did not return it.
    pub(crate) fn fetch(&self) -> Result<Vec<u8>, String> {
        self.send("Fetch")
    }

    fn send(&self, command: &str) -> Result<Vec<u8>, String> {
        let target = format!("{}?command/{command}", self.site.script);
        let response = self.client.send("GET", &target, None, "")?;
        if response.status != 200 {
            return Err(format!("{target}: status {}", response.status));
        }
        let content = response.content.as_slice();
        let start = content.windows(CONTENT_START.len()).position(|window| window == CONTENT_START);
        let inner = start.and_then(|at| content[at + CONTENT_START.len()..].strip_suffix(CONTENT_END));
        inner.map(<[u8]>::to_vec).ok_or_else(|| format!("{target}: not a dynamic response"))
    }
}
