//! The server from start to shutdown: opens logs and listeners, starts the workers, handles signals and operators'
//! orders.

mod assembly;
mod control;
mod datagrams;
mod differences;
pub(crate) mod explain;
mod fleet;
mod foundation;
mod handover;
mod init;
mod keepers;
mod launcher;
mod listeners;
mod live_changes;
mod lives;
mod memory;
mod orders;
mod reload;
mod routes;
mod upgrade;
mod watch;
mod workers;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tailcoat_fleet::ConfigChange;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use self::assembly::{Assembly, Lasting};
use self::control::Control;
use self::datagrams::BankRoom;
use self::fleet::SharedChange;
pub(crate) use self::foundation::Foundation;
pub(crate) use self::handover::Handover;
use self::handover::UsedSockets;
use self::keepers::Keepers;
pub(crate) use self::launcher::launcher;
use self::listeners::Listeners;
pub(crate) use self::memory::memory_bytes;
use self::reload::{ReloadSource, Reloads, StartOptions};
use self::upgrade::ProcessLaunch;
use self::workers::{WorkerEnds, Workers};
use crate::config::{Config, ConfigOrigin, Listen, LogLevel};
use crate::control::{ControlRequest, SignalCommand, Signals};
use crate::control_plane::{ControlPlaneClient, RoutesOrder};
use crate::log::{ServerLog, cause, event};
use crate::modules::Patience;
use crate::observer::StatusSources;
use crate::worker::{self, WorkerPhase};

/// Time that shutdown waits for the access log to be written. Not an option: all responses are sent by then. A log that
/// accepts nothing for so long will not accept more later.
const LOG_SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// Time that shutdown waits for the trace collector. Spans may be lost: no one is promised a span.
const SPANS_SHUTDOWN_LIMIT: Duration = Duration::from_secs(3);

/// Reason for rejected orders during a shutdown.
const SHUTTING_DOWN: &str = "the server is shutting down";

/// Server with open listeners and running workers.
pub(crate) struct Server {
    /// Source that a reload reads the configuration from.
    origin: ConfigOrigin,
    lasting: Arc<Lasting>,
    started_with: StartOptions,
    /// Configuration in use, with all that workers share of it.
    assembly: Arc<Assembly>,
    listeners: Listeners,
    workers: Workers,
    keepers: Keepers,
    control: Control,
    reloads: Reloads,
    /// Program and arguments that an upgrade starts the next process with.
    launch: ProcessLaunch,
    /// Process id of the new server process, after an upgrade.
    successor: Option<u32>,
    /// Tells log tails (`log tail`) that a new process serves now.
    has_successor: tokio::sync::watch::Sender<bool>,
    /// True once a shutdown has started.
    is_draining: bool,
    /// Log level that an operator has set; valid until the next reload.
    log_level: Option<LogLevel>,
    /// Rollout whose configuration is in use, in place of the file's.
    rolled_out: Option<ConfigChange>,
    /// Runtime of the main thread: handles signals, waits for workers and runs background tasks.
    runtime: Arc<Runtime>,
    /// Taken by [`Self::run`].
    sources: Option<ServerEvents>,
}

/// Inputs of a running server's main loop.
struct ServerEvents {
    signals: Signals,
    /// Orders from the control socket.
    orders: UnboundedReceiver<ControlRequest>,
    /// Orders from the control plane.
    routes: UnboundedReceiver<RoutesOrder>,
    ended: WorkerEnds,
    /// Messages for earlier processes that have ended.
    lives_ended: UnboundedReceiver<()>,
    /// Changes of other instances.
    shared: UnboundedReceiver<SharedChange>,
}

/// TCP address that a server listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListenAddress {
    /// IP address and port.
    pub(crate) socket: SocketAddr,
    /// True if the listener speaks TLS.
    pub(crate) has_tls: bool,
    /// True if the listener speaks HTTP/3, too.
    pub(crate) has_http3: bool,
    /// True if the listener speaks FTP, otherwise HTTP.
    pub(crate) is_ftp: bool,
}

/// Reason why a server did not start: the step that failed, and its error.
#[derive(Debug)]
pub(crate) struct ServerStartError {
    what: String,
    error: io::Error,
    /// True if the failed step binds a port.
    is_port: bool,
}

impl fmt::Display for ServerStartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, cause(&self.error))
    }
}

impl std::error::Error for ServerStartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl ServerStartError {
    /// Advice for the operator, for errors of addresses and permissions.
    pub(crate) fn help(&self) -> Option<&'static str> {
        match self.error.kind() {
            io::ErrorKind::AddrInUse => {
                Some("another program listens there (`ss -lntxp` shows which): stop it, or choose another address")
            }
            io::ErrorKind::AddrNotAvailable => {
                Some("this machine does not have that address (`ip address` lists those it has)")
            }
            io::ErrorKind::PermissionDenied if self.is_port => Some("run as root or grant CAP_NET_BIND_SERVICE"),
            io::ErrorKind::PermissionDenied => Some("give the server's user access to the file or directory"),
            _ => None,
        }
    }

    fn at<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |error| Self { what: what.into(), error: error.into(), is_port: false }
    }

    /// Wraps the error of binding a listener's address.
    fn binding(listen: &Listen) -> impl FnOnce(io::Error) -> Self {
        let is_port = !matches!(listen, Listen::Unix(..));
        move |error| Self { what: format!("cannot bind {listen}"), error, is_port }
    }
}

impl Server {
    /// Opens logs and listeners and starts the workers. When it returns, the server accepts connections. A reload reads
    /// the configuration from `origin`. A process that hands over to this one has stopped accepting by then.
    ///
    /// # Errors
    /// The step that failed. Nothing is left running then.
    pub(crate) fn start(
        mut config: Config,
        origin: ConfigOrigin,
        server_log: ServerLog,
        handover: &mut Option<Handover>,
        foundation: Foundation,
    ) -> Result<Self, ServerStartError> {
        // Comes first, so that the process handles every signal from the start.
        let (runtime, signals) = listen_to_signals().map_err(ServerStartError::at("cannot handle signals"))?;
        let entered = runtime.enter();
        crate::object_cache::check_kernel().map_err(ServerStartError::at("cannot serve files"))?;
        let Foundation { inherited, launch, confined, kernel_tls } = foundation;
        let ticket_keys = handover.as_mut().map(|handover| std::mem::take(&mut handover.offer.ticket_keys));
        let (descriptors_max, ticket_keys) = (raise_descriptor_limit(), ticket_keys.unwrap_or_default());
        let offer = handover.as_mut().map(|handover| &mut handover.offer);
        let keys = offer.map(|offer| (offer.quic_keys.take(), offer.challenge_secret.take())).unwrap_or_default();
        let mut lasting = Lasting::new(&config, server_log, descriptors_max, ticket_keys, keys, confined)?;
        lasting.kernel_tls = kernel_tls;
        let lasting = Arc::new(lasting);
        // The old process keeps serving until this one can do all that the old one does.
        let patience = match handover {
            Some(_) => Patience::Unlimited,
            None => Patience::AtMost(config.modules.compile_wait),
        };
        let (routes_orders, routes) = unbounded_channel();
        let control_plane = match &config.server.control_plane {
            None => None,
            Some(plane) => {
                let opened = ControlPlaneClient::open(plane, routes_orders, &lasting.streams, &lasting.server_log);
                let opened = opened.map_err(io::Error::other);
                let (client, parts) =
                    opened.map_err(ServerStartError::at("cannot keep the routes of the controller"))?;
                config.set_routes(&parts);
                Some(client)
            }
        };
        let (assembly, changes) = Assembly::new(config, &lasting, None, patience)?;
        let config = Arc::clone(&assembly.parts.config);
        lasting.store.apply_limits(config.cache.clone());
        lasting.apply_memory_limit(&config);
        lasting.apply_buffer_limits(&config);
        lasting.apply_disk_cache(&config);
        if let Some(handover) = handover.as_ref() {
            handover::restore_bans(&lasting.bans, std::slice::from_ref(&handover.offer.bans));
        }
        let (mut workers, ended) = Workers::new(&config.server)
            .map_err(ServerStartError::at("cannot find out which CPU cores are available"))?;
        let count = workers.wanted(&config.server);
        let (sockets, control) = handover.as_mut().map(Handover::take_sockets).unwrap_or_default();
        let lives = sockets.lives.clone();
        let room = BankRoom { cores: workers.cores(), descriptors_max };
        let listeners = Listeners::new(inherited, sockets, lasting.quic_keys.tags(), room);
        let mut listeners = listeners.map_err(ServerStartError::at("cannot take over the listeners"))?;
        let new = listeners.prepare(&config, count)?;
        let (mut control, orders) = Control::new(control);
        let socket = control.prepare(&config)?;
        lasting.access_log.apply(changes.logs);
        listeners.apply(new, &config.server, &lasting.server_log);
        let generation = Arc::new(assembly.generation(&listeners, count, &lasting));
        workers.set_count(count, &generation, &mut listeners, &lasting)?;
        if let Some(handover) = handover.take() {
            let used = UsedSockets { listeners: listeners.used(), control: control.uses_handed_over() };
            if let Some(bans) =
                handover.confirm(used).map_err(ServerStartError::at("cannot take over from the old process"))?
            {
                handover::restore_bans(&lasting.bans, &bans);
            }
        }
        control.apply(socket).map_err(ServerStartError::at("cannot listen on the control socket"))?;
        if let ConfigOrigin::File(path, Some(read)) = &origin {
            runtime.spawn(watch::watch(path.clone(), read.clone(), control.orders()));
        }
        let (shared_changes, shared) = unbounded_channel();
        let keepers = Keepers::new(&assembly, changes.certificates, &lasting, shared_changes);
        let (life_ended, lives_ended) = unbounded_channel();
        for life in lives {
            let life_ended = life_ended.clone();
            runtime.spawn(async move {
                // Without it, the sockets are read after the next reload.
                if life.ended().await.is_ok() {
                    let _ = life_ended.send(());
                }
            });
        }
        if let Some(client) = control_plane {
            runtime.spawn(client.run());
        }
        drop(entered);
        let server = Self {
            origin,
            lasting,
            started_with: StartOptions::of(&config),
            assembly: Arc::new(assembly),
            listeners,
            workers,
            keepers,
            control,
            reloads: Reloads::default(),
            launch,
            successor: None,
            has_successor: tokio::sync::watch::Sender::new(false),
            is_draining: false,
            log_level: None,
            rolled_out: None,
            runtime,
            sources: Some(ServerEvents { signals, orders, routes, ended, lives_ended, shared }),
        };
        server.apply_to_observer();
        Ok(server)
    }

    /// Gives the observer, which `tailcoat status` reads, the present parts of the server.
    fn apply_to_observer(&self) {
        self.lasting.observer.apply(StatusSources {
            streams: Some(Arc::clone(self.lasting.streams.metrics())),
            store: Some(Arc::clone(&self.lasting.store)),
            client_memory: Some(Arc::clone(&self.lasting.memory)),
            spools: Some(Arc::clone(&self.lasting.spools)),
            disk: Some(Arc::clone(&self.lasting.disk)),
            shared_cache: Some(Arc::clone(&self.lasting.shared_cache)),
            bans: Some(Arc::clone(&self.lasting.bans)),
            upstreams: self.assembly.parts.upstreams.clone(),
            certificates: self.assembly.named_tls(),
            log_counts: Some(self.lasting.access_log.log_counts()),
            server_log: Some(self.lasting.server_log.clone()),
            span_counts: self.assembly.parts.tracer.is_some().then(|| Arc::clone(&self.lasting.span_counts)),
            inquiries: self.workers.inquiries(),
        });
    }

    /// TCP addresses that the server listens on, with the ports that the kernel chose.
    pub(crate) fn addresses(&self) -> Vec<ListenAddress> {
        self.listeners.addresses()
    }

    /// Serves until a signal ends it. Returns when all responses are sent and all records are written.
    ///
    /// # Errors
    /// A worker failed.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let runtime = Arc::clone(&self.runtime);
        let result = match self.sources.take() {
            Some(sources) => runtime.block_on(self.obey(sources)),
            None => Ok(()),
        };
        self.listeners.remove_files();
        if !self.lasting.access_log.shutdown(LOG_SHUTDOWN_LIMIT) {
            let log = &self.lasting.server_log;
            log.warn(
                event("access log closed with unwritten records", &[("waited_s", &LOG_SHUTDOWN_LIMIT.as_secs())]),
                "check the disk that the log is on",
            );
        }
        if let Some(tracer) = &self.assembly.parts.tracer {
            tracer.end(SPANS_SHUTDOWN_LIMIT);
        }
        self.reject_all(SHUTTING_DOWN);
        runtime.block_on(self.control.end());
        let stays = self.successor.is_some() && init::is_first_process();
        drop(self);
        if stays {
            // When the first process of a container ends, the kernel kills all others.
            let ended_well = runtime.block_on(init::stay())?;
            return if ended_well { result } else { Err(io::Error::other("the new server process failed")) };
        }
        // Name lookups can take long; the end does not wait for them.
        if let Some(runtime) = Arc::into_inner(runtime) {
            runtime.shutdown_background();
        }
        result
    }

    /// Handles signals and orders until all workers have ended.
    async fn obey(&mut self, sources: ServerEvents) -> io::Result<()> {
        let ServerEvents { mut signals, mut orders, mut routes, mut ended, mut lives_ended, mut shared } = sources;
        // Does nothing without systemd. An error here is harmless.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        let mut result = Ok(());
        let mut retired_closes = None;
        while !self.workers.is_empty() {
            tokio::select! {
                // Local invariant: the sender is in `self.workers`.
                Some((index, ended)) = ended.recv() => {
                    self.on_worker_ended(index);
                    self.apply_to_observer();
                    result = result.and(ended.inspect_err(|error| self.on_failed(error)));
                }
                Some(()) = lives_ended.recv() => self.share_datagrams(),
                command = signals.next() => self.on_signal(command),
                // Local invariant: the sender is in `self.control`.
                Some(request) = orders.recv() => self.carry_out(request),
                // None without a control plane.
                Some(order) = routes.recv() => self.apply_routes(order),
                // Local invariant: the sender is in `self.keepers`.
                Some(change) = shared.recv() => self.apply_shared(change),
                step = self.reloads.next_step() => {
                    self.on_step(step);
                    retired_closes = self.close_retired();
                }
                () = sleep_until(retired_closes) => retired_closes = self.close_retired(),
            }
        }
        result
    }

    fn on_signal(&mut self, command: SignalCommand) {
        if let Some(successor) = self.successor.as_ref().filter(|_| init::is_first_process()) {
            init::pass_on_to(*successor, command.signal());
        }
        match command {
            SignalCommand::Reload => self.reload(ReloadSource::File, None),
            SignalCommand::ReopenLogs => self.lasting.access_log.reopen(),
            SignalCommand::Upgrade => self.reload(ReloadSource::Upgrade, None),
            SignalCommand::Drain => self.drain(Some(self.assembly.parts.config.server.grace_time)),
            SignalCommand::DrainWithoutLimit => self.drain(None),
        }
    }

    /// Starts the shutdown; a second call ends the workers at once.
    fn drain(&mut self, limit: Option<Duration>) {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        if !std::mem::replace(&mut self.is_draining, true) {
            self.reject_waiting(SHUTTING_DOWN);
            if !self.reloads.hands_over() {
                // The control socket stays open: probes must see a server that drains as alive.
                self.listeners.close_all(&self.lasting.server_log);
            }
        }
        let is_serving = std::cell::Cell::new(false);
        self.workers.set_phase(|phase| match phase {
            WorkerPhase::Serving | WorkerPhase::Leaving(_) => {
                is_serving.set(true);
                WorkerPhase::Draining(limit)
            }
            _ => WorkerPhase::Ended,
        });
        self.lasting.server_log.info(match is_serving.get() {
            true => {
                "shutdown started: open requests complete, no new connections are accepted; a second signal stops at once"
            }
            false => "shutdown forced: open requests dropped",
        });
    }

    /// Ends all workers after one has failed.
    fn on_failed(&self, error: &io::Error) {
        self.lasting.server_log.error(event("worker failed", &[("error", error)]), "the server shuts down");
        self.workers.set_phase(|_| WorkerPhase::Ended);
    }

    /// Lets another worker use the UDP sockets of a worker that has ended.
    fn on_worker_ended(&mut self, index: usize) {
        self.workers.on_ended(index);
        self.share_datagrams();
    }

    /// Gives the workers the UDP sockets that no worker and no other process reads.
    fn share_datagrams(&mut self) {
        let serves = !self.is_draining && self.successor.is_none();
        // If no file descriptor is free, other workers serve these clients until the next reload.
        if serves && self.workers.listen(&self.listeners).is_ok() {
            self.workers.steer(&self.listeners);
        }
    }

    /// Closes listeners whose retirement is over; returns the time of the next call.
    fn close_retired(&mut self) -> Option<Instant> {
        let next = self.listeners.close_retired(Instant::now());
        if let Err(error) = self.workers.listen(&self.listeners) {
            self.lasting
                .server_log
                .error(event("changing listeners failed", &[("error", &error)]), "the open listeners stay in use");
        }
        next
    }
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

fn listen_to_signals() -> io::Result<(Arc<Runtime>, Signals)> {
    let runtime = Builder::new_current_thread().enable_all().thread_keep_alive(worker::POOL_KEEP_ALIVE).build()?;
    worker::keep_one(runtime.handle());
    let signals = {
        let _entered = runtime.enter();
        Signals::new()?
    };
    Ok((Arc::new(runtime), signals))
}

/// Raises the soft limit of open file descriptors to the hard limit; returns the limit in force.
fn raise_descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    // If the kernel rejects it, the server works with the present limit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}
