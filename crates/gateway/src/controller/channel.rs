//! The channel to servers: each gets a snapshot, then changes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use routes::{Applied, Change, Hello, Message, Snapshot, VERSION};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

use super::{ChannelSettings, log};

/// Servers that are connected at once, at most.
const SERVERS_MAX: usize = 1_024;

/// Bytes of a message of a server, at most: its list of errors.
const MESSAGE_BYTES_MAX: u64 = 16 << 20;

/// Bytes of the first message, at most: the sender is not known yet.
const HELLO_BYTES_MAX: u64 = 16 << 10;

/// Time for a handshake and the first message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Time without a message after which a ping is sent, and after which a connection is closed.
const PING_AFTER: Duration = Duration::from_secs(10);
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Changes that wait for a server, at most. A server that is slower gets a snapshot instead.
const CHANGES_MAX: usize = 64;

/// A message, encoded once for all servers.
type Line = Arc<Vec<u8>>;

/// Servers that are connected, and what they must have.
pub(super) struct Hub {
    token_file: Option<std::path::PathBuf>,
    state: Mutex<HubState>,
    errors: watch::Sender<BTreeMap<String, String>>,
    connections: Semaphore,
}

#[derive(Default)]
struct HubState {
    snapshot: Arc<Snapshot>,
    revision: u64,
    next: u64,
    servers: BTreeMap<u64, Server>,
}

struct Server {
    changes: mpsc::Sender<Line>,
    errors: BTreeMap<String, String>,
}

impl Hub {
    /// Listens for servers.
    pub(super) async fn start(settings: &ChannelSettings) -> Result<Arc<Self>, String> {
        let hub = Arc::new(Self {
            token_file: settings.token_file.clone(),
            state: Mutex::default(),
            errors: watch::channel(BTreeMap::new()).0,
            connections: Semaphore::new(SERVERS_MAX),
        });
        if let Some(path) = settings.listen.strip_prefix("unix:") {
            // A socket that an ended process left behind.
            let _ = std::fs::remove_file(path);
            let listener = UnixListener::bind(path).map_err(|error| format!("cannot bind {path}: {error}"))?;
            tokio::spawn(Arc::clone(&hub).accept_unix(listener));
            return Ok(hub);
        }
        let (Some((chain, key)), true) = (&settings.certificate, settings.token_file.is_some()) else {
            return Err("the channel over TCP needs a certificate and a token; name files for both".to_owned());
        };
        let tls = TlsAcceptor::from(Arc::new(server_tls(chain, key)?));
        let listener = TcpListener::bind(&settings.listen).await;
        let listener = listener.map_err(|error| format!("cannot bind {}: {error}", settings.listen))?;
        tokio::spawn(Arc::clone(&hub).accept_tls(listener, tls));
        Ok(hub)
    }

    async fn accept_unix(self: Arc<Self>, listener: UnixListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(tokio::spawn(Arc::clone(&self).serve(stream, "unix socket".to_owned()))),
                Err(error) => {
                    log(format_args!("cannot accept a server: {error}"));
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn accept_tls(self: Arc<Self>, listener: TcpListener, tls: TlsAcceptor) {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    log(format_args!("cannot accept a server: {error}"));
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (hub, tls) = (Arc::clone(&self), tls.clone());
            tokio::spawn(async move {
                let _ = stream.set_nodelay(true);
                match timeout(HELLO_TIMEOUT, tls.accept(stream)).await {
                    Ok(Ok(stream)) => hub.serve(stream, peer.to_string()).await,
                    Ok(Err(error)) => log(format_args!("TLS with {peer} failed: {error}")),
                    Err(_) => log(format_args!("TLS with {peer} timed out")),
                }
            });
        }
    }

    async fn serve(self: Arc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin, peer: String) {
        let Ok(_permit) = self.connections.try_acquire() else {
            log(format_args!("{peer} is rejected: {SERVERS_MAX} servers are connected"));
            return;
        };
        let (reader, mut writer) = tokio::io::split(stream);
        let mut reader = BufReader::new(reader);
        let hello = match timeout(HELLO_TIMEOUT, read_line(&mut reader, HELLO_BYTES_MAX)).await {
            Ok(Ok(line)) => self.check(&line),
            Ok(Err(error)) => Err(error),
            Err(_) => Err("it sent no first message".to_owned()),
        };
        let hello = match hello {
            Ok(hello) => hello,
            Err(error) => return log(format_args!("{peer} is rejected: {error}")),
        };
        log(format_args!("server {} connected from {peer}, version {}", hello.server, hello.program));
        let reason = self.exchange(&hello.server, reader, &mut writer).await;
        log(format_args!("server {} disconnected: {reason}", hello.server));
    }

    fn check(&self, line: &[u8]) -> Result<Hello, String> {
        let Message::Hello(hello) = Message::from_line(line)? else {
            return Err("its first message is not a hello".to_owned());
        };
        if let Some(file) = &self.token_file {
            let token = std::fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
            let token = token.trim_ascii();
            if token.is_empty() || !is_equal(token, hello.token.as_bytes()) {
                return Err(format!("server {} sent a wrong token", hello.server));
            }
        }
        Ok(hello)
    }

    /// Sends changes and reads results until one side ends. Returns the reason.
    async fn exchange(
        &self,
        server: &str,
        mut reader: BufReader<impl AsyncRead + Unpin>,
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> String {
        let (changes, mut waiting) = mpsc::channel(CHANGES_MAX);
        let (id, first) = {
            let mut state = self.state();
            let id = state.next;
            state.next += 1;
            state.servers.insert(id, Server { changes, errors: BTreeMap::new() });
            (id, (Arc::clone(&state.snapshot), state.revision))
        };
        let _registration = Registration { hub: self, id };
        let (snapshot, revision) = first;
        if revision > 0 {
            let message = Message::Snapshot { version: VERSION, revision, snapshot: Box::new((*snapshot).clone()) };
            drop(snapshot);
            if let Err(error) = writer.write_all(&message.to_line()).await {
                return error.to_string();
            }
        }
        let (lines, mut received) = mpsc::channel(8);
        let read = async move {
            loop {
                let line = read_line(&mut reader, MESSAGE_BYTES_MAX).await;
                let is_end = line.is_err();
                if lines.send(line).await.is_err() || is_end {
                    return;
                }
            }
        };
        let act = async {
            let (mut sent, mut heard) = (Instant::now(), Instant::now());
            loop {
                let line = tokio::select! {
                    line = waiting.recv() => match line {
                        Some(line) => line,
                        None => return "it is too slow".to_owned(),
                    },
                    line = received.recv() => {
                        heard = Instant::now();
                        match line {
                            Some(Ok(line)) => match Message::from_line(&line) {
                                Ok(Message::Applied(applied)) => self.on_applied(id, server, applied),
                                Ok(_) => {}
                                Err(error) => return error,
                            },
                            Some(Err(error)) => return error,
                            None => return "it closed the connection".to_owned(),
                        }
                        continue;
                    }
                    () = sleep_until(sent + PING_AFTER) => Arc::new(Message::Ping.to_line()),
                    () = sleep_until(heard + SILENCE_MAX) => return "it sent nothing for too long".to_owned(),
                };
                match timeout(SILENCE_MAX, writer.write_all(&line)).await {
                    Ok(Ok(())) => sent = Instant::now(),
                    Ok(Err(error)) => return error.to_string(),
                    Err(_) => return "it reads nothing".to_owned(),
                }
                let _ = writer.flush().await;
            }
        };
        tokio::pin!(read);
        tokio::pin!(act);
        tokio::select! {
            reason = &mut act => reason,
            () = &mut read => act.await,
        }
    }

    fn on_applied(&self, id: u64, server: &str, applied: Applied) {
        if let Some(reason) = &applied.rejected {
            log(format_args!("server {server} rejected revision {}: {reason}", applied.revision));
        }
        let mut state = self.state();
        let Some(of_server) = state.servers.get_mut(&id) else { return };
        let rejected = applied.rejected.as_ref().map(|reason| (format!("server/{server}"), reason.clone()));
        let errors: BTreeMap<_, _> = applied.errors.clone().into_iter().chain(rejected).collect();
        if of_server.errors == errors {
            return;
        }
        for (name, error) in &applied.errors {
            log(format_args!("server {server} cannot apply {name}: {error}"));
        }
        of_server.errors = errors;
        self.publish_errors(&state);
    }

    fn publish_errors(&self, state: &HubState) {
        let all = state.servers.values().flat_map(|server| &server.errors);
        let errors = all.map(|(name, error)| (name.clone(), error.clone())).collect();
        self.errors.send_if_modified(|before| {
            *before != errors && {
                *before = errors;
                true
            }
        });
    }

    /// Errors of all servers.
    pub(super) fn errors(&self) -> watch::Receiver<BTreeMap<String, String>> {
        self.errors.subscribe()
    }

    /// Sends a change to all servers. `snapshot` is the state after it.
    pub(super) fn send(&self, snapshot: &Snapshot, revision: u64, change: Change) {
        let mut state = self.state();
        let base = state.revision;
        state.revision = revision;
        let message = if base == 0 {
            state.snapshot = Arc::new(snapshot.clone());
            Message::Snapshot { version: VERSION, revision, snapshot: Box::new(snapshot.clone()) }
        } else {
            // A copy of all is made only while a server that has just connected reads the one before.
            Arc::make_mut(&mut state.snapshot).apply(change.clone());
            Message::Change { base, revision, change: Box::new(change) }
        };
        let line = Arc::new(message.to_line());
        // One that is slow is disconnected; when it is back, it gets a snapshot.
        state.servers.retain(|_, server| server.changes.try_send(Arc::clone(&line)).is_ok());
    }

    fn state(&self) -> std::sync::MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a server when its connection ends.
struct Registration<'a> {
    hub: &'a Hub,
    id: u64,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let mut state = self.hub.state();
        state.servers.remove(&self.id);
        self.hub.publish_errors(&state);
    }
}

async fn read_line(reader: &mut (impl AsyncBufReadExt + Unpin), bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut line = Vec::new();
    reader.take(bytes_max).read_until(b'\n', &mut line).await.map_err(|error| error.to_string())?;
    match line.last() {
        Some(b'\n') => Ok(line),
        None => Err("it closed the connection".to_owned()),
        Some(_) => Err(format!("a message is cut off, or has more than {bytes_max} bytes")),
    }
}

/// Compares secrets in a time that does not depend on their content.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |sum, (one, other)| sum | (one ^ other)) == 0
}

fn server_tls(chain: &Path, key: &Path) -> Result<ServerConfig, String> {
    let of = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(chain).map_err(|error| of(chain, &error))?.collect();
    let certificates = certificates.map_err(|error| of(chain, &error))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| of(key, &error))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?.with_no_client_auth();
    builder.with_single_cert(certificates, key).map_err(|error| of(chain, &error))
}
