//! Workers: one thread per core, each with its own runtime, listeners, connections, buffers and counters. On the path
//! of a request, they share nothing that any of them writes.

mod accept;
mod generation;
mod listener;
mod memory;
mod report;

use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::net::UdpSocket;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(crate) use generation::{GenerationPlan, SharedParts};
pub(crate) use listener::{Inherited, Listener, ListenerPlan, UDP_BUFFER_BYTES, bind, bind_udp, bind_unix, plan};
use tokio::runtime::{Builder, Handle, LocalOptions};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{Notify, watch};
use tokio::task::coop::unconstrained;

use self::accept::Acceptors;
use self::generation::GenerationBuilder;
use crate::connection::{ClientLimit, Connections, Context, QuicKeys, SWEEPS_A_ROUND, WorkerClock, overload_limits};
use crate::log::{Recorder, Trouble};
use crate::memory_budget::{MemoryBudget, Pressure, WorkerBudget};
use crate::metrics::{Inquiry, Metrics};
use crate::object_cache::{ObjectStore, WorkerCache};
use crate::overload::{Overload, SharedOverload, TICK_MS};

/// Interval of sweeps; each checks the deadlines of a tenth of the connections.
const SWEEP_INTERVAL: Duration = Duration::from_millis(1_000 / SWEEPS_A_ROUND as u64);

// Each sweep also measures overload.
const _: () = assert!(TICK_MS == 1_000 / SWEEPS_A_ROUND as u64);

/// Events that a worker's runtime handles between two polls of the sockets. Above the default, because a poll is a
/// system call and each connection has little to do.
const EVENT_INTERVAL: u32 = 512;

/// Everything that a worker starts with.
pub(crate) struct WorkerPlan {
    /// Index of the worker, unique among running ones.
    pub(crate) index: usize,
    /// CPU core that the worker is pinned to, if any.
    pub(crate) core: Option<usize>,
    /// First configuration to serve by.
    pub(crate) generation: Arc<GenerationPlan>,
    /// First sockets to accept from.
    pub(crate) listeners: Vec<OpenListener>,
    /// Limit of connections per client and network.
    pub(crate) client_limit: Arc<ClientLimit>,
    /// Memory that clients hold, and its limit.
    pub(crate) memory: Arc<MemoryBudget>,
    /// Log line about connections that are closed because clients hold too much memory.
    pub(crate) memory_trouble: Arc<Trouble>,
    /// Log line about connections that cannot be accepted.
    pub(crate) accept_trouble: Arc<Trouble>,
    /// Log line about `connections-max`.
    pub(crate) place_trouble: Arc<Trouble>,
    /// Overload state that workers share.
    pub(crate) overload: Arc<SharedOverload>,
    /// Object store of all workers.
    pub(crate) store: Arc<ObjectStore>,
    /// Sender of the worker's access log records.
    pub(crate) recorder: Recorder,
    /// Counters of the workers, if metrics are enabled.
    pub(crate) metrics: Option<Arc<Metrics>>,
    /// Keys of QUIC, which all workers share.
    pub(crate) quic_keys: Arc<QuicKeys>,
    /// Questions about the worker, from the status page and metrics.
    pub(crate) inquiries: UnboundedReceiver<Inquiry>,
    /// Changes to make while the worker serves.
    pub(crate) orders: UnboundedReceiver<WorkerOrder>,
    /// Present phase, which the main thread sets.
    pub(crate) phase: watch::Receiver<WorkerPhase>,
    /// Receives the worker's index and result when it ends.
    pub(crate) ended: UnboundedSender<(usize, io::Result<()>)>,
}

/// Listening socket for a worker.
pub(crate) struct OpenListener {
    /// Key by which [`WorkerOrder::Unlisten`] names the socket.
    pub(crate) key: ListenerKey,
    /// Duplicate of the socket, for this worker.
    pub(crate) listener: Listener,
    /// Beside a UDP socket: duplicate of the one that receives packets with connection IDs of clients.
    pub(crate) accepting: Option<UdpSocket>,
    /// Dropped when no connection needs the socket any more.
    pub(crate) keeper: Option<Arc<dyn Any + Send + Sync>>,
}

/// Key of a listening socket: the number of its listener, and the socket's number within that. For a UDP socket it is
/// [`UDP_KEY`] and the slot.
pub(crate) type ListenerKey = (u16, u16);

/// Bit that marks the numbers of UDP sockets. The lowest byte is the slot.
pub(crate) const UDP_KEY: u16 = 1 << 15;

/// Bit that marks the numbers of UDP sockets whose process has ended. A worker tells the clients of its connections.
pub(crate) const LEFT_KEY: u16 = 1 << 14;

/// Change for a serving worker. The worker drops `done` when the change is complete.
pub(crate) enum WorkerOrder {
    /// Serve by another configuration from the next request on.
    Serve {
        /// Configuration to serve by.
        generation: Arc<GenerationPlan>,
        /// Dropped when the worker serves by it.
        done: UnboundedSender<()>,
    },
    /// Accept from these sockets as well.
    Listen(Vec<OpenListener>),
    /// Stop accepting from these sockets.
    Unlisten {
        /// Sockets.
        keys: Vec<ListenerKey>,
        /// Dropped when the worker has the order.
        done: UnboundedSender<()>,
    },
    /// Stop accepting from all sockets.
    StopListening {
        /// Dropped when the worker has drained the queues.
        done: UnboundedSender<()>,
    },
}

/// Phase of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerPhase {
    /// Serves.
    Serving,
    /// Accepts no connections, completes open requests within this time, if any is set, and ends.
    Draining(Option<Duration>),
    /// Drains while other workers serve in its place. Idle connections may send one more request, because their clients
    /// don't know yet.
    Leaving(Option<Duration>),
    /// Ends at once.
    Ended,
}

/// Time that an idle pool thread lives. The runtime panics if it has work, no thread, and cannot start one. A pool that
/// keeps a thread continues with that.
pub(crate) const POOL_KEEP_ALIVE: Duration = Duration::from_secs(86_400);

/// Starts a pool's first thread early, for the reason given at [`POOL_KEEP_ALIVE`].
pub(crate) fn keep_one(runtime: &Handle) {
    drop(runtime.spawn_blocking(|| ()));
}

/// Starts a worker in a thread of its own.
///
/// # Errors
/// The thread could not be started.
pub(crate) fn spawn(plan: WorkerPlan) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(format!("worker-{}", plan.index)).spawn(move || {
        let (index, ended) = (plan.index, plan.ended.clone());
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| run(plan)));
        // Fails only if the main thread has stopped listening.
        let _ = ended.send((index, result.unwrap_or_else(|_| Err(io::Error::other("panic")))));
    })
}

fn run(plan: WorkerPlan) -> io::Result<()> {
    if let Some(core) = plan.core {
        let mut cores = rustix::thread::CpuSet::new();
        cores.set(core);
        // A worker that cannot be pinned (a container may forbid it) works, too, only a little slower.
        let _ = rustix::thread::sched_setaffinity(None, &cores);
    }
    let has_waited = Arc::new(AtomicBool::new(true));
    let clock = WorkerClock::new(Arc::clone(&has_waited));
    let runtime = Builder::new_current_thread()
        .on_thread_unpark(move || has_waited.store(true, Ordering::Relaxed))
        .enable_io()
        .enable_time()
        .event_interval(EVENT_INTERVAL)
        .max_blocking_threads(plan.generation.parts.config.server.blocking_threads_max)
        .thread_keep_alive(POOL_KEEP_ALIVE)
        // Lowers the priority of pool threads only, because the runtime has not started the worker's own thread. Reads
        // from disk have waited anyway, and must not delay responses from memory. Fails only in a sandbox.
        .on_thread_start(|| {
            let _ = rustix::process::setpriority_process(None, POOL_NICENESS);
        })
        .build_local(LocalOptions::default())?;
    keep_one(runtime.handle());
    let result = runtime.block_on(serve(plan, clock));
    // Does not wait for reads from a disk that hangs.
    runtime.shutdown_background();
    result
}

async fn serve(plan: WorkerPlan, clock: WorkerClock) -> io::Result<()> {
    let metrics = plan.metrics.as_ref().map(|metrics| metrics.worker(plan.index));
    let cache = WorkerCache::new(plan.store);
    let cache = Rc::new(match &metrics {
        Some(metrics) => cache.counting(Arc::clone(metrics)),
        None => cache,
    });
    let limits = overload_limits(&plan.generation.parts.config.limits);
    let overload = Overload::new(plan.index, limits, plan.overload, metrics.clone());
    let mut builder = GenerationBuilder::new(plan.index, &cache, plan.metrics, &overload);
    let generation = builder.build(&plan.generation, None).await;
    let memory = WorkerBudget::new(plan.memory, plan.index as u32);
    let context =
        Context::new(generation, plan.recorder, clock, overload).budgeting(Rc::clone(&memory), plan.memory_trouble);
    let context = Rc::new(match metrics {
        Some(metrics) => context.counting(metrics),
        None => context,
    });
    let connections = Rc::new(Connections::new(Rc::clone(&context), plan.client_limit)?);
    let busy = Rc::new(Notify::new());
    let acceptors = Rc::new(Acceptors {
        context: Rc::clone(&context),
        connections: Rc::clone(&connections),
        busy: Rc::clone(&busy),
        running: RefCell::default(),
        endpoints: RefCell::default(),
        accepting: watch::Sender::default(),
        quic_keys: plan.quic_keys,
        quic_buffers: Rc::default(),
        trouble: plan.accept_trouble,
        place_trouble: plan.place_trouble,
    });
    acceptors.start(plan.listeners)?;
    // Unconstrained, because this task polls all connections and would exhaust the runtime's budget of one task per
    // turn.
    tokio::task::spawn_local(unconstrained(Rc::clone(&connections).run()));
    tokio::task::spawn_local(keep_time(Rc::clone(&context), Rc::clone(&memory), Rc::clone(&cache), busy));
    tokio::task::spawn_local(memory::keep_memory(Rc::clone(&connections), Rc::clone(&memory)));
    let reporter = report::Reporter {
        context: Rc::clone(&context),
        connections,
        cache: Rc::clone(&cache),
        upstreams: Rc::clone(builder.upstreams()),
    };
    tokio::task::spawn_local(reporter.run(plan.inquiries));
    let orders = obey(plan.orders, builder, Rc::clone(&context), cache, Rc::clone(&acceptors));
    tokio::select! {
        // The runtime cannot register the worker's listeners.
        Err(error) = orders => return Err(error),
        () = await_end(&context, plan.phase, &acceptors) => {}
    }
    Ok(())
}

/// Carries out orders while the worker serves. Returns only on an error.
async fn obey(
    mut orders: UnboundedReceiver<WorkerOrder>,
    mut builder: GenerationBuilder,
    context: Rc<Context>,
    cache: Rc<WorkerCache>,
    acceptors: Rc<Acceptors>,
) -> io::Result<()> {
    while let Some(order) = orders.recv().await {
        match order {
            WorkerOrder::Serve { generation: plan, done } => {
                let mut generation = builder.build(&plan, Some(&context)).await;
                generation.reuse_retired(&context.generation());
                context.recorder.borrow_mut().apply(&plan.logs);
                cache.apply_limits();
                let before = context.apply(generation);
                if plan.has_retired {
                    // Connections with many open requests announce that these are the last (GOAWAY).
                    context.table.borrow().wake_all();
                }
                drop((done, before));
            }
            WorkerOrder::Listen(listeners) => acceptors.start(listeners)?,
            WorkerOrder::Unlisten { keys, done } => {
                acceptors.stop(&keys);
                drop(done);
            }
            WorkerOrder::StopListening { done } => {
                acceptors.stop_all();
                let acceptors = Rc::clone(&acceptors);
                tokio::task::spawn_local(async move {
                    acceptors.all_ended().await;
                    drop(done);
                });
            }
        }
    }
    std::future::pending().await
}

/// Checks deadlines and overload, and refreshes clock and cache while there are connections; sleeps without any.
async fn keep_time(context: Rc<Context>, memory: Rc<WorkerBudget>, cache: Rc<WorkerCache>, busy: Rc<Notify>) {
    context.overload.resume(context.clock.refresh().monotonic_ms);
    loop {
        for _ in 0..SWEEPS_A_ROUND {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            let now_ms = context.clock.refresh().monotonic_ms;
            let is_out_of_memory = memory.budget().pressure() == Pressure::Critical;
            context.overload.on_tick(now_ms, context.handshakes.take_load(), is_out_of_memory);
            context.table.borrow_mut().sweep(now_ms);
        }
        context.clock.synchronise();
        cache.tick();
        memory.trim();
        if context.table.borrow().is_empty() {
            cache.clear();
            context.overload.resume(context.clock.refresh().monotonic_ms);
            busy.notified().await;
            context.clock.synchronise();
            context.overload.resume(context.clock.refresh().monotonic_ms);
        }
    }
}

/// Waits until the worker must stop serving; then drains its connections.
async fn await_end(context: &Context, mut phase: watch::Receiver<WorkerPhase>, acceptors: &Acceptors) {
    // An error means that the main thread has ended.
    if phase.wait_for(|phase| *phase != WorkerPhase::Serving).await.is_err() {
        return;
    }
    context.is_draining.set(true);
    // Connections with many open requests announce that these are the last (GOAWAY).
    context.table.borrow().wake_all();
    acceptors.stop_all();
    let idle_ends = Instant::now() + DRAIN_IDLE_TIME;
    loop {
        let reported = *phase.borrow_and_update();
        let (WorkerPhase::Draining(limit) | WorkerPhase::Leaving(limit)) = reported else { return };
        let drained = async {
            while acceptors.is_accepting() || !context.table.borrow().is_empty() {
                if matches!(reported, WorkerPhase::Draining(_)) && Instant::now() >= idle_ends {
                    context.table.borrow_mut().evict_all_idle();
                }
                tokio::time::sleep(DRAIN_LOOK_INTERVAL).await;
            }
        };
        tokio::select! {
            () = drained => return,
            () = tokio::time::sleep(limit.unwrap_or(FOREVER)) => return,
            reported = phase.changed() => if reported.is_err() { return },
        }
    }
}

/// Niceness of the threads that wait for disks and compress.
const POOL_NICENESS: i32 = 10;

/// Time at the beginning of a drain in which idle connections stay open. The next request of a busy client mostly comes in
/// this time, and its response says that the connection ends. So few clients send a request on a connection that is being
/// closed.
const DRAIN_IDLE_TIME: Duration = Duration::from_millis(250);

/// Interval at which a draining worker looks for connections that have become idle.
const DRAIN_LOOK_INTERVAL: Duration = Duration::from_millis(20);

const FOREVER: Duration = Duration::from_secs(u64::MAX >> 32);
