//! Connection to the controller: reads snapshots and changes, has the server apply them, and answers.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use routes::{Applied, Change, Endpoint, Hello, MESSAGE_BYTES_MAX, Message, Snapshot, VERSION};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;

use super::parts::{addresses_of, servers_of};
use super::translate::{TranslatedRoutes, Translator, too_many_endpoints};
use super::{RouteState, RoutesOrder, StateError};
use crate::config::{ControlPlane, RouteParts, UpstreamConfig, UpstreamServer, UpstreamServerAddress, UpstreamTls};
use crate::control::{ControlReply, ControlReport};
use crate::log::{ServerLog, event};
use crate::stream_proxy::{StreamListener, StreamProxy};
use crate::upstream::client_config;

/// Interval of messages, at most.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Time without a message after which the controller counts as gone.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Time to connect, with the handshake of TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// First and longest time between two tries to connect.
const RETRY_TIMES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Time from a change until it is written.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// Bytes of changes after the stored snapshot, as a multiple of the snapshot's, beyond which a snapshot is written again. So
/// a large state that changes all the time takes little time, and the file has a longest length.
const CHANGES_FACTOR_MAX: usize = 2;

/// Bytes of changes that do not call for a snapshot, however small the last one is.
const CHANGES_BYTES_MIN: usize = 1 << 20;

/// Bytes of a token, at most.
const TOKEN_BYTES_MAX: usize = 64 << 10;

/// Follows a controller.
pub(crate) struct ControlPlaneClient {
    config: ControlPlane,
    state: RouteState,
    orders: UnboundedSender<RoutesOrder>,
    log: ServerLog,
    translator: Translator,
    /// Snapshot that the server serves by, and its revision.
    current: Snapshot,
    revision: Option<u64>,
    errors: BTreeMap<String, String>,
    /// Addresses of listeners in use.
    bound: HashSet<SocketAddr>,
    /// Proxy of other protocols.
    streams: Arc<StreamProxy>,
    /// True once there was a listener for it, so that it knows the servers of backends.
    has_streams: bool,
    /// Changes since the last write; `None` if there are none.
    unstored: Option<Change>,
    /// File of the last state; `None` if the next write must be a snapshot.
    stored: Option<StoredState>,
    next_store: Option<Instant>,
}

/// Content of the file of the last state.
#[derive(Clone, Copy)]
struct StoredState {
    revision: u64,
    snapshot_bytes: usize,
    /// Bytes of the changes after the snapshot.
    changes_bytes: usize,
}

/// Input and output of a connection.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl ControlPlaneClient {
    /// Opens the last state; returns its routes, which the server begins with.
    ///
    /// # Errors
    /// The directory cannot be used. A state that is not valid is logged and left out.
    pub(crate) fn open(
        config: &ControlPlane,
        orders: UnboundedSender<RoutesOrder>,
        streams: &Arc<StreamProxy>,
        log: &ServerLog,
    ) -> Result<(Self, Arc<RouteParts>), StateError> {
        let state = RouteState::open(config)?;
        let loaded = state.load().unwrap_or_else(|error| {
            log.warn(event("last routes not read", &[("reason", &error)]), "the controller sends them again");
            None
        });
        let (revision, current) =
            loaded.map_or((None, Snapshot::default()), |(revision, snapshot)| (Some(revision), snapshot));
        let mut client = Self {
            config: config.clone(),
            state,
            orders,
            log: log.clone(),
            translator: Translator::default(),
            current,
            revision,
            errors: BTreeMap::new(),
            bound: HashSet::new(),
            streams: Arc::clone(streams),
            has_streams: false,
            unstored: None,
            stored: None,
            next_store: None,
        };
        let unusable = unusable_addresses(&client.current, &client.bound);
        let translated = client.translator.translate(&client.current, &client.state, &unusable);
        let TranslatedRoutes { parts, streams, errors, pem, files_in_use: _ } = translated;
        client.state.write_pem(&pem)?;
        client.errors = errors;
        client.bound = addresses(&client.current).filter(|address| !unusable.contains_key(address)).collect();
        client.set_streams(streams.unwrap_or_default());
        Ok((client, Arc::new(parts)))
    }

    /// Follows the controller until the server ends.
    pub(crate) async fn run(mut self) {
        let (mut wait, mut told) = (RETRY_TIMES.0, String::new());
        loop {
            let began = Instant::now();
            let result = self.follow().await;
            self.store().await;
            let Err(reason) = result else { return };
            // Once for each reason, because a controller may be away for long.
            if reason != told {
                let help = "the server continues with the last routes and tries again";
                self.log
                    .warn(event("controller lost", &[("address", &self.config.address), ("reason", &reason)]), help);
                told = reason;
            }
            if began.elapsed() > SILENCE_MAX {
                (wait, told) = (RETRY_TIMES.0, String::new());
            }
            sleep(wait.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            wait = (wait * 2).min(RETRY_TIMES.1);
        }
    }

    /// Connects, and follows one connection. Ends without an error if the server ends.
    async fn follow(&mut self) -> Result<(), String> {
        let connected = timeout(CONNECT_TIMEOUT, self.connect()).await;
        let mut stream =
            connected.map_err(|_| "connecting timed out".to_owned())?.map_err(|error| error.to_string())?;
        let hello = Message::Hello(Hello {
            version: VERSION,
            server: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            token: self.token()?,
            revision: self.revision,
        });
        send(&mut stream, &hello).await?;
        let (mut input, mut searched) = (Vec::new(), 0);
        let (mut next_ping, mut silence_ends) = (Instant::now() + PING_INTERVAL, Instant::now() + SILENCE_MAX);
        loop {
            tokio::select! {
                read = read_more(&mut stream, &mut input) => {
                    read?;
                    silence_ends = Instant::now() + SILENCE_MAX;
                }
                () = tokio::time::sleep_until(next_ping) => {
                    send(&mut stream, &Message::Ping).await?;
                    next_ping = Instant::now() + PING_INTERVAL;
                }
                () = tokio::time::sleep_until(silence_ends) => return Err("the controller is silent".to_owned()),
                () = sleep_until(self.next_store) => self.store().await,
                () = self.orders.closed() => return Ok(()),
            }
            // All messages that have arrived are applied together, with one response for all.
            let Some(pending) = self.take_messages(&mut input, &mut searched)? else { continue };
            match self.apply(pending).await {
                Some(applied) => send(&mut stream, &Message::Applied(applied)).await?,
                None => return Ok(()),
            }
            next_ping = Instant::now() + PING_INTERVAL;
        }
    }

    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        match &self.config.address {
            UpstreamServerAddress::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            UpstreamServerAddress::Tls(host, port) => {
                let tls = UpstreamTls {
                    authorities: self.config.authorities.clone(),
                    certificate: self.config.certificate.clone(),
                    ..UpstreamTls::default()
                };
                // The files may have changed since the last connection.
                let config = client_config(&tls).map_err(io::Error::other)?;
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let socket = TcpStream::connect((host.as_str(), *port)).await?;
                socket.set_nodelay(true)?;
                let name = ServerName::try_from(host).map_err(io::Error::other)?;
                Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, socket).await?))
            }
            // Local invariant: the check of the configuration rejects others.
            _ => Err(io::Error::other("the address is neither https:// nor unix:")),
        }
    }

    fn token(&self) -> Result<String, String> {
        let Some(path) = &self.config.token_file else { return Ok(String::new()) };
        let text = read_token(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(text.trim_end().to_owned())
    }

    /// Takes the complete messages out of the input; returns what they change together. The first `searched` bytes have
    /// no end of a message.
    fn take_messages(&self, input: &mut Vec<u8>, searched: &mut usize) -> Result<Option<Pending>, String> {
        let mut pending: Option<Pending> = None;
        let mut start = 0;
        while let Some(length) = memchr::memchr(b'\n', &input[*searched..]) {
            let end = *searched + length;
            let line = &input[start..end];
            (start, *searched) = (end + 1, end + 1);
            let known = pending.as_ref().map(|pending| pending.revision).or(self.revision);
            match Message::from_line(line)? {
                Message::Snapshot { revision, snapshot, .. } => {
                    pending = Some(Pending { change: snapshot.change_from(&self.current), revision });
                }
                Message::Change { base, revision, change } => {
                    if known != Some(base) {
                        return Err(format!("a change of revision {base} came, but the server has {known:?}"));
                    }
                    let next = pending.get_or_insert_with(|| Pending { change: Change::default(), revision });
                    next.change.extend(*change);
                    next.revision = revision;
                }
                Message::Ping => {}
                Message::Hello(_) | Message::Applied(_) => return Err("the other side is no controller".to_owned()),
            }
        }
        input.drain(..start);
        *searched = input.len();
        Ok(pending)
    }

    /// Has the server apply a change; `None` if the server ends.
    async fn apply(&mut self, Pending { change, revision }: Pending) -> Option<Applied> {
        let is_structural = change.changes_structure();
        let endpoints: Vec<String> = change.endpoints.keys().cloned().collect();
        let backends: BTreeSet<String> = endpoints.iter().chain(change.backends.keys()).cloned().collect();
        self.translator.note(&change);
        // A snapshot follows, unless there is one that changes can follow.
        let unstored = self.stored.map(|_| change.clone());
        let reverse = self.current.apply(change);
        let mut rejected = if is_structural { self.replace_routes().await? } else { None };
        if rejected.is_none() {
            let servers = self.servers_of(&backends);
            if !servers.is_empty() {
                let (reply, reports) = ControlReply::channel();
                self.orders.send(RoutesOrder::SetServers { servers, reply }).ok()?;
                rejected = failure(reports).await;
            }
        }
        if let Some(reason) = rejected {
            self.current.apply(reverse);
            self.translator.forget();
            let help = "the server continues with the routes before";
            self.log.warn(event("routes not applied", &[("revision", &revision), ("reason", &reason)]), help);
            let revision = self.revision.unwrap_or_default();
            return Some(Applied { revision, errors: self.errors.clone(), rejected: Some(reason) });
        }
        for name in &endpoints {
            self.set_stream_servers(name, self.current.endpoints.get(name).map_or(&[], Vec::as_slice));
        }
        self.revision = Some(revision);
        self.unstored.get_or_insert_default().extend(unstored.unwrap_or_default());
        self.next_store.get_or_insert_with(|| Instant::now() + STORE_PAUSE);
        Some(Applied { revision, errors: self.errors.clone(), rejected: None })
    }

    /// Translates the snapshot and has the server serve by it. Returns the reason if it does not; `None` if the server ends.
    async fn replace_routes(&mut self) -> Option<Option<String>> {
        let (state, bound) = (self.state.clone(), self.bound.clone());
        let (snapshot, mut translator) = (std::mem::take(&mut self.current), std::mem::take(&mut self.translator));
        // Takes CPU time, and writes files.
        let task = spawn_blocking(move || {
            let unusable = unusable_addresses(&snapshot, &bound);
            let translated = translator.translate(&snapshot, &state, &unusable);
            let written = state.write_pem(&translated.pem).map(|()| translated);
            (written, unusable, snapshot, translator)
        });
        let translated;
        let unusable;
        (translated, unusable, self.current, self.translator) = task.await.ok()?;
        let TranslatedRoutes { parts, streams, errors, files_in_use, .. } = match translated {
            Ok(translated) => translated,
            Err(error) => return Some(Some(error.to_string())),
        };
        // The workers bind them.
        let new = addresses(&self.current).filter(|address| !self.bound.contains(address));
        self.streams.release(new.filter(|address| !unusable.contains_key(address)).collect()).await;
        let (reply, reports) = ControlReply::channel();
        self.orders.send(RoutesOrder::Replace { parts: Arc::new(parts), reply }).ok()?;
        let failed = failure(reports).await;
        if failed.is_none() {
            self.errors = errors;
            self.bound = addresses(&self.current).filter(|address| !unusable.contains_key(address)).collect();
            if let Some(files) = files_in_use {
                self.state.remove_other_pem(&files);
            }
            if let Some(streams) = streams {
                self.set_streams(streams);
                // The controller learns that the routes are in force.
                self.streams.applied().await;
            }
        } else {
            self.streams.resume();
        }
        Some(failed)
    }

    /// Servers of these backends, as far as there are such.
    fn servers_of(&mut self, backends: &BTreeSet<String>) -> Vec<(String, Vec<UpstreamServer>)> {
        let mut servers = Vec::new();
        for name in backends {
            let Some(backend) = self.current.backends.get(name) else { continue };
            let endpoints = self.current.endpoints.get(name).map_or(&[][..], Vec::as_slice);
            let count = endpoints.len();
            servers.push((name.clone(), servers_of(backend, endpoints)));
            self.note_endpoints(name, count);
        }
        servers
    }

    fn note_endpoints(&mut self, backend: &str, count: usize) {
        let (key, reason) = (format!("backend/{backend}"), too_many_endpoints());
        match count > UpstreamConfig::SERVERS_MAX {
            true => _ = self.errors.entry(key).or_insert(reason),
            false if self.errors.get(&key) == Some(&reason) => _ = self.errors.remove(&key),
            false => {}
        }
    }

    /// Replaces the listeners of other protocols.
    fn set_streams(&mut self, listeners: Vec<StreamListener>) {
        if !self.has_streams && !listeners.is_empty() {
            self.has_streams = true;
            for (name, endpoints) in &self.current.endpoints {
                self.set_stream_servers(name, endpoints);
            }
        }
        if let Err(error) = self.streams.apply(listeners) {
            let help = "free memory or raise the limit of threads; connections of TLS, TCP and UDP are not forwarded";
            self.log.error(event("starting the proxy of streams failed", &[("error", &error)]), help);
        }
    }

    fn set_stream_servers(&self, backend: &str, endpoints: &[Endpoint]) {
        if !self.has_streams {
            return;
        }
        let ready = endpoints.iter().filter(|endpoint| endpoint.is_ready).map(|endpoint| endpoint.address);
        self.streams.set_servers(backend, &ready.collect::<Vec<_>>());
    }

    /// Writes what has changed since the last write: the changes, or a snapshot if those in the file are long.
    async fn store(&mut self) {
        self.next_store = None;
        let Some((revision, change)) = self.revision.zip(self.unstored.take()) else { return };
        let stored = self.stored.take().filter(|stored| {
            stored.changes_bytes <= (stored.snapshot_bytes * CHANGES_FACTOR_MAX).max(CHANGES_BYTES_MIN)
        });
        let (state, snapshot) =
            (self.state.clone(), if stored.is_none() { self.current.clone() } else { Snapshot::default() });
        let written = spawn_blocking(move || match stored {
            Some(before) => state.append(before.revision, revision, change).map(|bytes| StoredState {
                revision,
                changes_bytes: before.changes_bytes + bytes,
                ..before
            }),
            None => {
                let bytes = state.store(revision, snapshot);
                bytes.map(|snapshot_bytes| StoredState { revision, snapshot_bytes, changes_bytes: 0 })
            }
        });
        match written.await {
            Ok(Ok(stored)) => self.stored = Some(stored),
            Ok(Err(error)) => {
                let help =
                    "after a restart, the server begins with older routes until the controller sends the present ones";
                self.log.warn(event("last routes not written", &[("reason", &error)]), help);
                // The next write is a snapshot.
                self.unstored = Some(Change::default());
            }
            Err(_) => {}
        }
    }
}

/// Change to apply, and the revision after it.
struct Pending {
    change: Change,
    revision: u64,
}

/// Reason for which an order failed.
async fn failure(mut reports: tokio::sync::mpsc::Receiver<ControlReport>) -> Option<String> {
    match reports.recv().await {
        Some(ControlReport::Done(_)) => None,
        Some(ControlReport::Rejected(reason) | ControlReport::Invalid(reason)) => Some(reason),
        _ => Some("the server did not answer".to_owned()),
    }
}

/// Addresses of the listeners for HTTP.
fn addresses(snapshot: &Snapshot) -> impl Iterator<Item = SocketAddr> {
    snapshot.listeners.values().filter(|listener| listener.protocol.is_http()).flat_map(addresses_of)
}

/// Addresses that are not in use here and cannot be bound, with the reason.
fn unusable_addresses(snapshot: &Snapshot, bound: &HashSet<SocketAddr>) -> HashMap<SocketAddr, String> {
    let new: HashSet<_> = addresses(snapshot).filter(|address| !bound.contains(address)).collect();
    let failed = new.into_iter().filter_map(|address| {
        let error = probe(address).err()?;
        // A machine without IPv6 has no such addresses.
        let is_without = address.is_ipv6() && address.ip().is_unspecified();
        (!is_without).then(|| (address, format!("cannot bind {address}: {error}")))
    });
    failed.collect()
}

/// Binds an address and closes the socket again.
fn probe(address: SocketAddr) -> io::Result<()> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())
}

fn read_token(path: &Path) -> io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    let mut file = std::fs::File::open(path)?.take(TOKEN_BYTES_MAX as u64 + 1);
    file.read_to_string(&mut text)?;
    if text.len() > TOKEN_BYTES_MAX {
        return Err(io::Error::other(format!("the token has more than {TOKEN_BYTES_MAX} bytes")));
    }
    Ok(text)
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), message: &Message) -> Result<(), String> {
    let line = message.to_line();
    let sent = timeout(SILENCE_MAX, async {
        stream.write_all(&line).await?;
        stream.flush().await
    });
    sent.await.map_err(|_| "sending timed out".to_owned())?.map_err(|error| error.to_string())
}

/// Reads once; an end of the connection is an error.
async fn read_more(stream: &mut (impl AsyncRead + Unpin), input: &mut Vec<u8>) -> Result<(), String> {
    if input.len() > MESSAGE_BYTES_MAX {
        return Err(format!("a message has more than {MESSAGE_BYTES_MAX} bytes"));
    }
    input.reserve(64 << 10);
    match stream.read_buf(input).await {
        Ok(0) => Err("the controller closed the connection".to_owned()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
