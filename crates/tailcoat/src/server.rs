//! The server from its start to its end: opens everything, starts the workers, and does what signals and operators say.

mod orders;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;

use crate::acme;
use crate::config::{AccessLog, Config};
use crate::connection::ClientLimit;
use crate::control::{Command, ControlSocket, Request, Signals};
use crate::handler::cgi::Spawner;
use crate::handler::{Parts, SharedSite};
use crate::log::{LogHandle, LogId, ServerLog};
use crate::metrics::Metrics;
use crate::modules::{self, Modules};
use crate::object_cache::ObjectStore;
use crate::routing::rules::AllRules;
use crate::status::{Observer, Sources};
use crate::tls::{self, AllTls};
use crate::upstream::{self, SharedUpstream};
use crate::worker::{self, Inherited, Listener, ListenerPlan, Phase, WorkerPlan};

/// Descriptors that are kept for other things than connections and cached files: listeners, logs, runtimes.
const DESCRIPTORS_RESERVED: usize = 64;

/// Permissions of the control socket: its user's alone.
const CONTROL_SOCKET_MODE: u32 = 0o600;

/// How long the log is waited for at the end. Not an option: by then all is served, and a log that takes nothing for so
/// long takes nothing more.
const LOG_SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// A server that listens and serves.
pub struct Server {
    config: Arc<Config>,
    /// The addresses of TCP that it listens on, with the ports that the kernel chose.
    pub addresses: Vec<ServerAddress>,
    workers: Vec<JoinHandle<()>>,
    /// Each worker's result, when it has ended.
    ended: RefCell<UnboundedReceiver<io::Result<()>>>,
    phase: watch::Sender<Phase>,
    access_log: LogHandle,
    server_log: ServerLog,
    /// Of the main thread: for signals, and for waiting.
    runtime: Rc<Runtime>,
    signals: Cell<Option<Signals>>,
    /// What comes on the control socket.
    orders: Cell<Option<UnboundedReceiver<Request>>>,
    /// What the workers share of the sites.
    sites: Arc<Vec<SharedSite>>,
    /// Who gathers what there is to see.
    observer: Arc<Observer>,
}

/// An address of TCP that a server listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// The address.
    pub socket: SocketAddr,
    /// Whether TLS is spoken there.
    pub has_tls: bool,
}

/// Why a server did not start: what failed, and how.
#[derive(Debug)]
pub struct StartError {
    what: String,
    error: io::Error,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.error)
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl StartError {
    /// The kind of what failed: `AddrInUse`, for one.
    pub fn kind(&self) -> io::ErrorKind {
        self.error.kind()
    }

    fn at<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |error| Self { what: what.into(), error: error.into() }
    }
}

impl Server {
    /// Opens logs and listeners and starts the workers. When it returns, connections are taken.
    ///
    /// # Errors
    /// What could not be opened; then nothing is left running.
    pub fn start(mut config: Config, server_log: ServerLog) -> Result<Self, StartError> {
        // First of all, so that no signal finds the process without.
        let (runtime, signals) = listen_to_signals().map_err(StartError::at("cannot listen to signals"))?;
        crate::object_cache::check_kernel().map_err(StartError::at("cannot open files below a root (openat2)"))?;
        let descriptors_max = raise_descriptor_limit();
        // Most are for connections.
        config.cache.files_max = config.cache.files_max.min(descriptors_max / 4);
        let is_automatic = acme::place_certificates(&mut config).map_err(StartError::at("cannot keep certificates"))?;
        let config = Arc::new(config);
        let cores = cores().map_err(StartError::at("cannot tell which cores may be used"))?;
        let worker_count = config.server.workers.unwrap_or(cores.len()).max(1);
        let (listeners, addresses, plans) = bind_all(&config, worker_count)?;
        let (access_log, site_logs) = start_logs(&config, &server_log)?;
        let store = ObjectStore::new(config.cache.clone()).map_err(StartError::at("cannot set up the object cache"))?;
        let upstreams = open_upstreams(&config, &server_log)?;
        let metrics = config.server.counters.then(|| Metrics::new(config.server.counted_names_max));
        let observer = Observer::new(metrics.clone());
        let modules = Modules::load(&config, &server_log).map_err(StartError::at("cannot load a module"))?;
        let modules = Arc::new(modules);
        // From this thread, which no worker's core or priority binds.
        let spawner = config.has_programs().then(Spawner::start_threads).transpose();
        let spawner = spawner.map_err(StartError::at("cannot start the threads that start programs"))?;
        let parts = Parts {
            store: &store,
            upstreams: &upstreams,
            modules: &modules,
            log: &server_log,
            observer: &observer,
            spawner: spawner.as_ref(),
        };
        let sites = config.sites.iter().map(|site| SharedSite::new(site, &config, parts)).collect();
        let sites: Arc<Vec<SharedSite>> = Arc::new(sites);
        let rules = AllRules::new(&config, &server_log).map_err(StartError::at("cannot set up the rules"))?;
        let rules = Arc::new(rules);
        let tls = AllTls::new(&config).map_err(StartError::at("cannot use a certificate"))?;
        let client_limit = ClientLimit::new(&config);
        let orders =
            listen_to_orders(&config, &runtime).map_err(StartError::at("cannot listen on the control socket"))?;
        let (phase, phase_receiver) = watch::channel(Phase::Serving);
        let (ended_sender, ended) = unbounded_channel();
        let ended = RefCell::new(ended);
        let workers = Vec::new();
        let mut server = Self {
            config,
            addresses,
            workers,
            ended,
            phase,
            access_log,
            server_log,
            runtime,
            signals,
            orders: Cell::new(Some(orders)),
            sites: Arc::clone(&sites),
            observer: Arc::clone(&observer),
        };
        let connections_max = server.connections_max(descriptors_max).div_ceil(worker_count);
        let mut inquiry_senders = Vec::new();
        for (index, listeners) in listeners.into_iter().enumerate() {
            let (inquiry_sender, inquiries) = unbounded_channel();
            inquiry_senders.push(inquiry_sender);
            let plan = WorkerPlan {
                server_log: server.server_log.clone(),
                index,
                core: server.config.server.pin_workers.then(|| cores[index % cores.len()]),
                config: Arc::clone(&server.config),
                connections_max,
                listeners,
                listener_sites: plans.iter().map(|plan| plan.sites.clone()).collect(),
                proxied_listeners: plans.iter().map(|plan| plan.is_proxied).collect(),
                listener_tls: plans.iter().map(|plan| tls.listener(&server.config, &plan.listen)).collect(),
                validations: is_automatic.then(|| Arc::clone(tls.validations())),
                sites: Arc::clone(&sites),
                rules: Arc::clone(&rules),
                client_limit: client_limit.clone(),
                store: Arc::clone(&store),
                upstreams: upstreams.clone(),
                recorder: server.access_log.recorder(),
                site_logs: site_logs.clone(),
                metrics: metrics.clone(),
                inquiries,
                phase: phase_receiver.clone(),
                ended: ended_sender.clone(),
            };
            server.workers.push(worker::spawn(plan).map_err(StartError::at("cannot start a worker"))?);
        }
        server.observer.look_at(Sources {
            store: Some(store),
            upstreams: upstreams.clone(),
            log_counts: Some(server.access_log.log_counts()),
            inquiries: inquiry_senders,
        });
        if is_automatic {
            acme::start(&server.config, &tls, server.server_log.clone())
                .map_err(StartError::at("cannot keep certificates"))?;
        }
        let check_interval = server.config.server.certificate_check_interval;
        server.runtime.spawn(tls::keep(tls.sites().to_vec(), check_interval, server.server_log.clone()));
        server.runtime.spawn(modules::keep(modules, server.config.modules.check_interval));
        server.runtime.spawn(upstream::keep(upstreams, upstream::system_lookup));
        Ok(server)
    }

    /// Serves until a signal ends it, and all is answered, sent and logged that is to be.
    ///
    /// # Errors
    /// Signals can't be listened to, or a worker failed.
    pub fn run(self) -> io::Result<()> {
        let runtime = Rc::clone(&self.runtime);
        let result = runtime.block_on(self.obey());
        if !self.access_log.shutdown(LOG_SHUTDOWN_LIMIT) {
            self.server_log.warn("the access log did not take all records in time", "look at the disk it is on");
        }
        drop(self.runtime);
        // A name that is being looked up, which can take long, is not waited for.
        if let Some(runtime) = Rc::into_inner(runtime) {
            runtime.shutdown_background();
        }
        result
    }

    /// Does what signals say, until all workers have ended.
    async fn obey(&self) -> io::Result<()> {
        // Local invariant: taken once, for a server is run once.
        let (Some(mut signals), Some(mut orders)) = (self.signals.take(), self.orders.take()) else { return Ok(()) };
        // Without systemd this does nothing; and that it can't be told changes nothing.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        let mut workers = pin!(self.workers_ended());
        loop {
            let command = tokio::select! {
                result = &mut workers => return result,
                command = signals.next() => command,
                // Ends only where there is no control socket.
                Some(request) = orders.recv() => {
                    self.carry_out(request);
                    continue;
                }
            };
            match command {
                Command::ReopenLogs => self.access_log.reopen(),
                Command::Unsupported => self.server_log.warn(
                    "a signal to reload (SIGHUP) or upgrade (SIGUSR2), which this version can't, is ignored",
                    "to change the configuration, check it with `tailcoat check`, then stop and start the server",
                ),
                Command::Drain => self.drain(Some(self.config.server.grace_time)),
                Command::DrainWithoutLimit => self.drain(None),
            }
        }
    }

    /// Begins the end; the second time, ends at once.
    fn drain(&self, limit: Option<Duration>) {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        self.phase.send_modify(|phase| {
            *phase = if *phase == Phase::Serving { Phase::Draining(limit) } else { Phase::Ended };
        });
        self.server_log.info(match *self.phase.borrow() {
            Phase::Ended => "ending at once",
            _ => "ending: no new connections are taken, open requests are answered; a second signal ends at once",
        });
    }

    /// Waits for all workers; one that fails ends the others.
    async fn workers_ended(&self) -> io::Result<()> {
        let mut result = Ok(());
        for _ in 0..self.workers.len() {
            // Local invariant: each worker sends once, and `self` keeps the channel open.
            let Some(ended) = poll_fn(|task| self.ended.borrow_mut().poll_recv(task)).await else { break };
            if let Err(error) = ended {
                self.server_log.error(format_args!("a worker failed: {error}"), "the server ends");
                self.phase.send_replace(Phase::Ended);
                result = Err(error);
            }
        }
        result
    }

    fn connections_max(&self, descriptors_max: usize) -> usize {
        let possible = descriptors_max.saturating_sub(self.config.cache.files_max + DESCRIPTORS_RESERVED).max(16);
        self.config.limits.connections_max.map_or(possible, |wanted| wanted.min(possible))
    }
}

fn listen_to_signals() -> io::Result<(Rc<Runtime>, Cell<Option<Signals>>)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let signals = {
        let _entered = runtime.enter();
        Signals::new()?
    };
    Ok((Rc::new(runtime), Cell::new(Some(signals))))
}

/// Listens to orders, if that is wanted.
fn listen_to_orders(config: &Config, runtime: &Runtime) -> io::Result<UnboundedReceiver<Request>> {
    let (sender, receiver) = unbounded_channel();
    if let Some(path) = &config.server.control_socket {
        let listener = worker::bind_unix(path, CONTROL_SOCKET_MODE, config.server.listen_backlog)?;
        runtime.spawn(ControlSocket::new(listener, path.clone()).serve(sender));
    }
    Ok(receiver)
}

/// Opens all listeners; returns those of each worker, the addresses of TCP, and the plan.
#[allow(clippy::type_complexity, reason = "three lists that belong together only here")]
fn bind_all(
    config: &Config,
    worker_count: usize,
) -> Result<(Vec<Vec<(u16, Listener)>>, Vec<ServerAddress>, Vec<ListenerPlan>), StartError> {
    let plans = worker::plan(config);
    let mut inherited = Inherited::from_environment();
    let mut by_worker: Vec<Vec<(u16, Listener)>> = (0..worker_count).map(|_| Vec::new()).collect();
    let mut addresses = Vec::new();
    for (number, plan) in plans.iter().enumerate() {
        let bound = worker::bind(&plan.listen, worker_count, &config.server, &mut inherited)
            .map_err(StartError::at(format!("cannot listen on {}", plan.listen)))?;
        let socket = bound.first().and_then(Listener::tcp_address);
        addresses.extend(socket.map(|socket| ServerAddress { socket, has_tls: plan.has_tls }));
        by_worker.iter_mut().zip(bound).for_each(|(worker, listener)| worker.push((number as u16, listener)));
    }
    Ok((by_worker, addresses, plans))
}

fn open_upstreams(config: &Config, log: &ServerLog) -> Result<Vec<Arc<SharedUpstream>>, StartError> {
    let upstreams = config.upstreams.iter().map(|upstream| SharedUpstream::new(upstream, log.clone()));
    let upstreams: Result<_, _> = upstreams.collect();
    upstreams.map_err(io::Error::other).map_err(StartError::at("cannot speak TLS to a server"))
}

/// Opens the access logs; returns the log of each site.
fn start_logs(config: &Config, server_log: &ServerLog) -> Result<(LogHandle, Vec<Option<LogId>>), StartError> {
    let chosen: Vec<Option<&AccessLog>> = config
        .sites
        .iter()
        .map(|site| site.access_log.as_ref().or(config.access_log.as_ref()).filter(|_| !site.access_log_off))
        .collect();
    let logs: Vec<AccessLog> = chosen.iter().flatten().copied().cloned().collect();
    let options = crate::log::Options::of(&config.server, &config.limits);
    let (handle, ids) =
        crate::log::start(&logs, options, server_log.clone()).map_err(StartError::at("cannot log requests"))?;
    let mut ids = ids.into_iter();
    Ok((handle, chosen.iter().map(|log| log.and_then(|_| ids.next())).collect()))
}

/// The cores that this process may run on.
fn cores() -> rustix::io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// Raises the limit of open descriptors as far as is allowed; returns it.
fn raise_descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    // If it can't be raised, the server makes do with what there is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}
