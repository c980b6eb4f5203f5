use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::Semaphore;

/// Bytes of an order or an answer.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(10);

/// Operators who are attended to at once; others wait.
const CONNECTIONS_MAX: usize = 16;

/// What an operator wants done at once, and told about: one line of JSON on the control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub enum Order {
    /// Take responses out of the caches for upstreams' responses.
    PurgeCache {
        /// For these URLs.
        urls: Vec<String>,
        /// For all URLs that begin so.
        prefixes: Vec<String>,
        /// For all URLs.
        #[serde(default)]
        all: bool,
    },
}

/// What became of an [`Order`]: one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Report {
    /// So many responses were taken out.
    Purged(usize),
    /// The order was not carried out, for this reason.
    Refused(String),
}

/// Who carries orders out.
pub type Executor = Arc<dyn Fn(Order) -> Report + Send + Sync>;

/// The socket on which operators of this machine give orders: whoever may open its file, and is root or the server's own
/// user.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ControlSocket {
    /// The socket that is bound to this path.
    pub fn new(listener: UnixListener, path: PathBuf) -> Self {
        Self { listener, path }
    }

    /// Carries orders out until the task is dropped.
    ///
    /// # Errors
    /// The socket can't be listened on.
    pub async fn serve(self, executor: Executor) -> io::Result<()> {
        self.listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(self.listener.try_clone()?)?;
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            // Local invariant: nobody closes the semaphore.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
            let Ok((stream, _)) = listener.accept().await else {
                // Out of descriptors: those in use are given back sooner or later.
                tokio::time::sleep(PATIENCE / 10).await;
                continue;
            };
            let executor = Arc::clone(&executor);
            tokio::spawn(async move {
                // Whoever does not wait for the report does not want it.
                let _ = tokio::time::timeout(PATIENCE, attend(stream, &executor)).await;
                drop(place);
            });
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // If it is gone already, so much the better.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Takes one order and reports.
async fn attend(stream: tokio::net::UnixStream, executor: &Executor) -> io::Result<()> {
    let user = stream.peer_cred()?.uid();
    let (reader, mut writer) = stream.into_split();
    let report = if user == 0 || user == geteuid().as_raw() {
        let mut line = Vec::new();
        BufReader::new(reader.take(LINE_BYTES_MAX)).read_until(b'\n', &mut line).await?;
        match serde_json::from_slice(&line) {
            Ok(order) => executor(order),
            Err(error) => Report::Refused(format!("not an order: {error}")),
        }
    } else {
        Report::Refused(format!("user {user} is neither root nor the server's"))
    };
    let mut line = serde_json::to_vec(&report)?;
    line.push(b'\n');
    writer.write_all(&line).await
}

/// Gives an order to the server that listens on this socket, and waits for its report.
///
/// # Errors
/// No server listens there, or it does not answer.
pub fn give(path: &Path, order: &Order) -> io::Result<Report> {
    use std::io::{BufRead, Read, Write};
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(order)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut report = Vec::new();
    std::io::BufReader::new(stream.take(LINE_BYTES_MAX)).read_until(b'\n', &mut report)?;
    Ok(serde_json::from_slice(&report)?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn orders_are_carried_out_and_reported() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let socket = ControlSocket::new(UnixListener::bind(&path).unwrap(), path.clone());
        let executor: Executor = Arc::new(|order| match order {
            Order::PurgeCache { urls, prefixes, all } => {
                Report::Purged(urls.len() + 10 * prefixes.len() + 100 * usize::from(all))
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.spawn(socket.serve(executor));
        let asked = path.clone();
        let asking = runtime.spawn_blocking(move || {
            let (urls, prefixes) = (vec!["a".into()], vec!["b".into(), "c".into()]);
            let order = Order::PurgeCache { urls, prefixes, all: true };
            assert_eq!(give(&asked, &order).unwrap(), Report::Purged(121));
            for line in ["purge everything\n", r#"{"order":"purge-everything"}"#, ""] {
                let mut stream = UnixStream::connect(&asked).unwrap();
                stream.write_all(line.as_bytes()).unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                let mut report = String::new();
                stream.read_to_string(&mut report).unwrap();
                assert!(report.starts_with(r#"{"refused":"not an order"#), "{line}: {report}");
            }
        });
        runtime.block_on(asking).unwrap();
        drop(runtime);
        assert!(!path.exists(), "the file goes with the server");
        assert!(UnixStream::connect(&path).is_err());
    }
}
