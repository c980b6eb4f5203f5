//! Workers: one a core, each with its own runtime, listeners, connections, buffers and counters. They share nothing that
//! is written on the way of a request.

mod accept;
mod listener;
mod report;

use std::io;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub use listener::{Inherited, Listener, ListenerPlan, bind, bind_unix, plan};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle as TaskHandle, coop::unconstrained};

use crate::config::Config;
use crate::connection::{ClientLimit, Clock, Connections, Context, SWEEPS_A_ROUND};
use crate::handler::SharedSite;
use crate::log::{LogId, Recorder, ServerLog};
use crate::metrics::{Inquiry, Metrics, NameSlot};
use crate::object_cache::{ObjectStore, WorkerCache};
use crate::routing::rules::{AllRules, RequestIds, Rules};
use crate::routing::{Router, SiteSetup};
use crate::tls::{ListenerTls, Validations};
use crate::upstream::{SharedUpstream, Upstream};

/// How often a tenth of the connections is looked at for passed deadlines.
const SWEEP_INTERVAL: Duration = Duration::from_millis(1_000 / SWEEPS_A_ROUND as u64);

/// Events of a worker's runtime between two looks at the sockets. More than the default, for a look is a system call,
/// and connections have little to do each.
const EVENT_INTERVAL: u32 = 512;

/// What a worker is started with.
pub struct WorkerPlan {
    /// Where it says what happened.
    pub server_log: ServerLog,
    /// Its number, from 0.
    pub index: usize,
    /// The core it is bound to, if any.
    pub core: Option<usize>,
    /// The configuration.
    pub config: Arc<Config>,
    /// Open connections that it may have.
    pub connections_max: usize,
    /// Its listeners, each with its number in the plan.
    pub listeners: Vec<(u16, Listener)>,
    /// For each listener the indices of its sites.
    pub listener_sites: Vec<Vec<usize>>,
    /// For each listener whether connections of trusted proxies begin with the PROXY protocol.
    pub proxied_listeners: Vec<bool>,
    /// For each listener how TLS is spoken there, if it is.
    pub listener_tls: Vec<Option<Arc<ListenerTls>>>,
    /// What authorities ask for, if certificates are automatic.
    pub validations: Option<Arc<Validations>>,
    /// What all workers share of the sites.
    pub sites: Arc<Vec<SharedSite>>,
    /// The rules of all sites.
    pub rules: Arc<AllRules>,
    /// How many connections a client may have, if there is a limit.
    pub client_limit: Option<Arc<ClientLimit>>,
    /// The object store of all workers.
    pub store: Arc<ObjectStore>,
    /// What all workers share of the upstreams.
    pub upstreams: Vec<Arc<SharedUpstream>>,
    /// Its recorder of requests.
    pub recorder: Recorder,
    /// For each site the log of its requests.
    pub site_logs: Vec<Option<LogId>>,
    /// Where it counts, if it does; and by which number.
    pub metrics: Option<Arc<Metrics>>,
    /// What it is asked about itself.
    pub inquiries: UnboundedReceiver<Inquiry>,
    /// What it is told to do.
    pub phase: watch::Receiver<Phase>,
    /// Where it says that it has ended, and how.
    pub ended: UnboundedSender<io::Result<()>>,
}

/// What workers are told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Serve.
    Serving,
    /// Take no connections, answer what has been asked, for at most this time if any, and end.
    Draining(Option<Duration>),
    /// End at once.
    Ended,
}

/// Starts a worker in a thread of its own.
///
/// # Errors
/// The thread could not be started.
pub fn spawn(plan: WorkerPlan) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(format!("worker-{}", plan.index)).spawn(move || {
        let ended = plan.ended.clone();
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| run(plan)));
        // Fails only if nobody wants to know.
        let _ = ended.send(result.unwrap_or_else(|_| Err(io::Error::other("panic"))));
    })
}

fn run(plan: WorkerPlan) -> io::Result<()> {
    if let Some(core) = plan.core {
        let mut cores = rustix::thread::CpuSet::new();
        cores.set(core);
        // A worker that can't be bound (a container may forbid it) works as well, if a little slower.
        let _ = rustix::thread::sched_setaffinity(None, &cores);
    }
    let has_waited = Arc::new(AtomicBool::new(true));
    let clock = Clock::new(Arc::clone(&has_waited));
    let runtime = Builder::new_current_thread()
        .on_thread_unpark(move || has_waited.store(true, Ordering::Relaxed))
        .enable_io()
        .enable_time()
        .event_interval(EVENT_INTERVAL)
        .max_blocking_threads(plan.config.server.blocking_threads_max)
        // Of the pool's threads, for the worker's own was not started by the runtime: what comes from a disk has waited
        // already, and must not keep back what is in memory. Fails only where a sandbox forbids it.
        .on_thread_start(|| {
            let _ = rustix::process::setpriority_process(None, POOL_NICENESS);
        })
        .build_local(LocalOptions::default())?;
    let result = runtime.block_on(serve(plan, clock));
    // Reads of a disk that hangs are not waited for.
    runtime.shutdown_background();
    result
}

async fn serve(plan: WorkerPlan, clock: Clock) -> io::Result<()> {
    let metrics = plan.metrics.as_ref().map(|metrics| metrics.worker(plan.index));
    let cache = WorkerCache::new(Arc::clone(&plan.store));
    let cache = Rc::new(match &metrics {
        Some(metrics) => cache.counting(Arc::clone(metrics)),
        None => cache,
    });
    let upstreams = worker_upstreams(&plan);
    let context = Context::new(
        Rc::new(build_router(&plan, &cache, &upstreams)),
        plan.config.limits.clone(),
        plan.config.server.server_field,
        plan.recorder,
        clock,
    );
    let context = Rc::new(match metrics {
        Some(metrics) => context.counting(metrics),
        None => context,
    });
    let tells_destinations = plan.config.upstreams.iter().any(|upstream| upstream.proxy_protocol.is_some())
        || plan.config.gateways().next().is_some();
    context.tells_destinations.set(tells_destinations);
    context.http_versions.set(plan.config.server.http_versions);
    let connections = Rc::new(Connections::new(Rc::clone(&context), plan.client_limit)?);
    let busy = Rc::new(Notify::new());
    let accepting = plan
        .listeners
        .into_iter()
        .map(|(number, listener)| {
            let acceptor = accept::Acceptor {
                context: Rc::clone(&context),
                connections: Rc::clone(&connections),
                number,
                connections_max: plan.connections_max,
                proxied: plan.proxied_listeners[usize::from(number)].then(|| Arc::clone(&plan.rules)),
                tls: plan.listener_tls[usize::from(number)].clone(),
                busy: Rc::clone(&busy),
            };
            Ok(tokio::task::spawn_local(acceptor.run(listener.into_async()?)))
        })
        .collect::<io::Result<Vec<_>>>()?;
    // It polls all connections, and so would use up in one turn what the runtime allows a task of its sockets.
    tokio::task::spawn_local(unconstrained(Rc::clone(&connections).run()));
    tokio::task::spawn_local(keep_time(Rc::clone(&context), Rc::clone(&cache), busy));
    let reporter = report::Reporter { context: Rc::clone(&context), connections, cache, upstreams };
    tokio::task::spawn_local(reporter.run(plan.inquiries));
    await_end(&context, plan.phase, accepting).await;
    Ok(())
}

/// The worker's own part of the upstreams.
fn worker_upstreams(plan: &WorkerPlan) -> Vec<Rc<Upstream>> {
    let seed = |upstream: usize| (plan.index as u64) << 32 | upstream as u64;
    let upstreams = plan.upstreams.iter().enumerate();
    upstreams.map(|(index, shared)| Upstream::new(Arc::clone(shared), seed(index))).collect()
}

/// Has memory ready for what sites and upstreams count; returns where each site's requests are counted.
fn count_sites(plan: &WorkerPlan, upstreams: &[Rc<Upstream>]) -> Vec<NameSlot> {
    let Some(metrics) = &plan.metrics else { return vec![NameSlot::NONE; plan.config.sites.len()] };
    for upstream in upstreams {
        upstream.count_at(metrics.upstream(upstream.name()));
    }
    let sites: Vec<_> = plan.config.sites.iter().map(|site| metrics.site(&site.label())).collect();
    metrics.worker(plan.index).prepare(sites.iter().copied(), upstreams.iter().map(|upstream| upstream.counted()));
    sites
}

fn build_router(plan: &WorkerPlan, cache: &Rc<WorkerCache>, upstreams: &[Rc<Upstream>]) -> Router {
    let counted = count_sites(plan, upstreams);
    let ids = Rc::new(RequestIds::default());
    let sites =
        plan.config.sites.iter().zip(&*plan.sites).zip(&plan.rules.sites).zip(plan.site_logs.iter().zip(counted));
    let setups = sites.map(|(((config, shared), rules), (&log, counted))| SiteSetup {
        config,
        handlers: shared.handlers(cache, upstreams),
        error_pages: shared.error_pages(cache),
        rules: rules.as_ref().map(|rules| Rules::new(rules, &ids)),
        log,
        server_log: plan.server_log.clone(),
        counted,
    });
    let router = Router::new(setups.collect(), &plan.listener_sites).trusting(&plan.rules, &ids);
    router.validated(plan.validations.as_ref())
}

/// Looks after deadlines, clock and cache as long as there are connections; without any, sleeps.
async fn keep_time(context: Rc<Context>, cache: Rc<WorkerCache>, busy: Rc<Notify>) {
    loop {
        for _ in 0..SWEEPS_A_ROUND {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            let now_ms = context.clock.now().monotonic_ms;
            context.table.borrow_mut().sweep(now_ms);
        }
        context.clock.synchronise();
        cache.tick();
        if context.table.borrow().is_empty() {
            cache.clear();
            busy.notified().await;
            context.clock.synchronise();
        }
    }
}

/// Serves until told otherwise; then drains.
async fn await_end(context: &Context, mut phase: watch::Receiver<Phase>, accepting: Vec<TaskHandle<()>>) {
    // An error is the end of whoever would tell.
    let told = phase.wait_for(|phase| *phase != Phase::Serving).await.map_or(Phase::Ended, |phase| *phase);
    let Phase::Draining(limit) = told else { return };
    context.is_draining.set(true);
    // Those that have many answers under way say that these are the last.
    context.table.borrow().wake_all();
    accepting.iter().for_each(TaskHandle::abort);
    let drained = async {
        while !context.table.borrow().is_empty() {
            context.table.borrow_mut().evict_all_idle();
            tokio::time::sleep(DRAIN_LOOK_INTERVAL).await;
        }
    };
    tokio::select! {
        () = drained => {}
        () = tokio::time::sleep(limit.unwrap_or(FOREVER)) => {}
        _ = phase.wait_for(|phase| *phase == Phase::Ended) => {}
    }
}

/// Niceness of the threads that wait for disks and compress.
const POOL_NICENESS: i32 = 10;

/// How often a draining worker looks for connections that have become idle.
const DRAIN_LOOK_INTERVAL: Duration = Duration::from_millis(20);

const FOREVER: Duration = Duration::from_secs(u64::MAX >> 32);
