//! Workers: one a core, each with its own runtime, listeners, connections, buffers and counters. They share nothing that
//! is written on the way of a request.

mod accept;
mod generation;
mod listener;
mod memory;
mod report;

use std::cell::RefCell;
use std::io;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub use generation::GenerationPlan;
pub use listener::{Inherited, Listener, ListenerPlan, bind, bind_unix, plan};
use tokio::runtime::{Builder, Handle, LocalOptions};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{Notify, watch};
use tokio::task::coop::unconstrained;

use self::accept::Acceptors;
use self::generation::GenerationBuilder;
use crate::connection::{ClientLimit, Connections, Context, SWEEPS_A_ROUND, WorkerClock, overload_limits};
use crate::log::{Recorder, Trouble};
use crate::memory_budget::{MemoryBudget, Pressure, WorkerBudget};
use crate::metrics::{Inquiry, Metrics};
use crate::object_cache::{ObjectStore, WorkerCache};
use crate::overload::{Overload, SharedOverload, TICK_MS};

/// How often a tenth of the connections is looked at for passed deadlines.
const SWEEP_INTERVAL: Duration = Duration::from_millis(1_000 / SWEEPS_A_ROUND as u64);

// Overload is looked at with each sweep.
const _: () = assert!(TICK_MS == 1_000 / SWEEPS_A_ROUND as u64);

/// Events of a worker's runtime between two looks at the sockets. More than the default, for a look is a system call,
/// and connections have little to do each.
const EVENT_INTERVAL: u32 = 512;

/// What a worker is started with.
pub struct WorkerPlan {
    /// Its number, which no other has now.
    pub index: usize,
    /// The core it is bound to, if any.
    pub core: Option<usize>,
    /// What it serves by at first.
    pub generation: Arc<GenerationPlan>,
    /// Where it listens at first.
    pub listeners: Vec<OpenListener>,
    /// How many connections clients may have.
    pub client_limit: Arc<ClientLimit>,
    /// Memory that clients hold.
    pub memory: Arc<MemoryBudget>,
    /// Where it is told that connections are closed because clients hold too much memory.
    pub memory_trouble: Arc<Trouble>,
    /// Where it is told that connections can't be accepted.
    pub accept_trouble: Arc<Trouble>,
    /// The log line about places that ran out.
    pub place_trouble: Arc<Trouble>,
    /// Part of overload that workers share.
    pub overload: Arc<SharedOverload>,
    /// The object store of all workers.
    pub store: Arc<ObjectStore>,
    /// Its recorder of requests.
    pub recorder: Recorder,
    /// Where it counts, if it does; and by which number.
    pub metrics: Option<Arc<Metrics>>,
    /// What it is asked about itself.
    pub inquiries: UnboundedReceiver<Inquiry>,
    /// What changes while it serves.
    pub orders: UnboundedReceiver<WorkerOrder>,
    /// What it is told to do.
    pub phase: watch::Receiver<WorkerPhase>,
    /// Where it says, with its number, that it has ended, and how.
    pub ended: UnboundedSender<(usize, io::Result<()>)>,
}

/// A listening socket for a worker.
pub struct OpenListener {
    /// Which one it is.
    pub key: ListenerKey,
    /// The socket.
    pub listener: Listener,
}

/// A listening socket: the number of its listener, and its own among the sockets of that.
pub type ListenerKey = (u16, u16);

/// What changes while a worker serves. Done with, it drops `done`.
pub enum WorkerOrder {
    /// Serve by this from the next request on.
    Serve {
        /// By what.
        generation: Arc<GenerationPlan>,
        /// Dropped when it does.
        done: UnboundedSender<()>,
    },
    /// Listen here as well.
    Listen(Vec<OpenListener>),
    /// Don't listen there any more.
    Unlisten(Vec<ListenerKey>),
    /// Don't listen anywhere any more.
    StopListening {
        /// Dropped when what was in the queues has been accepted.
        done: UnboundedSender<()>,
    },
}

/// What workers are told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerPhase {
    /// Serve.
    Serving,
    /// Take no connections, answer what has been asked, for at most this time if any, and end.
    Draining(Option<Duration>),
    /// The same for a worker in whose place others serve: connections that are idle may ask once more, since they can't know.
    Leaving(Option<Duration>),
    /// End at once.
    Ended,
}

/// How long a thread of a pool stays without work. The runtime panics if there is work, no thread, and the system has none: who
/// has one goes on with that.
pub const POOL_KEEP_ALIVE: Duration = Duration::from_secs(86_400);

/// Has a pool begin with a thread, for the same reason.
pub fn keep_one(runtime: &Handle) {
    drop(runtime.spawn_blocking(|| ()));
}

/// Starts a worker in a thread of its own.
///
/// # Errors
/// The thread could not be started.
pub fn spawn(plan: WorkerPlan) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(format!("worker-{}", plan.index)).spawn(move || {
        let (index, ended) = (plan.index, plan.ended.clone());
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| run(plan)));
        // Fails only if nobody wants to know.
        let _ = ended.send((index, result.unwrap_or_else(|_| Err(io::Error::other("panic")))));
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
    let clock = WorkerClock::new(Arc::clone(&has_waited));
    let runtime = Builder::new_current_thread()
        .on_thread_unpark(move || has_waited.store(true, Ordering::Relaxed))
        .enable_io()
        .enable_time()
        .event_interval(EVENT_INTERVAL)
        .max_blocking_threads(plan.generation.config.server.blocking_threads_max)
        .thread_keep_alive(POOL_KEEP_ALIVE)
        // Of the pool's threads, for the worker's own was not started by the runtime: what comes from a disk has waited
        // already, and must not keep back what is in memory. Fails only where a sandbox forbids it.
        .on_thread_start(|| {
            let _ = rustix::process::setpriority_process(None, POOL_NICENESS);
        })
        .build_local(LocalOptions::default())?;
    keep_one(runtime.handle());
    let result = runtime.block_on(serve(plan, clock));
    // Reads of a disk that hangs are not waited for.
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
    let limits = overload_limits(&plan.generation.config.limits);
    let overload = Overload::new(plan.index, limits, plan.overload, metrics.clone());
    let mut builder = GenerationBuilder::new(plan.index, &cache, plan.metrics, &overload);
    let generation = builder.build(&plan.generation).await;
    let memory = WorkerBudget::new(plan.memory, plan.index as u32);
    let context = Context::new(generation, plan.recorder, clock, overload).budgeting(Rc::clone(&memory));
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
        accepting: watch::Sender::default(),
        trouble: plan.accept_trouble,
        place_trouble: plan.place_trouble,
    });
    acceptors.start(plan.listeners)?;
    // It polls all connections, and so would use up in one turn what the runtime allows a task of its sockets.
    tokio::task::spawn_local(unconstrained(Rc::clone(&connections).run()));
    tokio::task::spawn_local(keep_time(Rc::clone(&context), Rc::clone(&memory), Rc::clone(&cache), busy));
    tokio::task::spawn_local(memory::keep_memory(Rc::clone(&context), Rc::clone(&memory), plan.memory_trouble));
    let reporter = report::Reporter {
        context: Rc::clone(&context),
        connections,
        cache: Rc::clone(&cache),
        upstreams: Rc::clone(builder.upstreams()),
    };
    tokio::task::spawn_local(reporter.run(plan.inquiries));
    let orders = obey(plan.orders, builder, Rc::clone(&context), cache, Rc::clone(&acceptors));
    tokio::select! {
        // Its listeners can't be waited for.
        Err(error) = orders => return Err(error),
        () = await_end(&context, plan.phase, &acceptors) => {}
    }
    Ok(())
}

/// Does what changes while it serves. Ends with an error alone.
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
                let mut generation = builder.build(&plan).await;
                generation.reuse_retired(&context.generation());
                context.recorder.borrow_mut().apply(&plan.logs);
                cache.apply_limits();
                let before = context.apply(generation);
                if plan.has_retired {
                    // Those that have many answers under way say that these are the last.
                    context.table.borrow().wake_all();
                }
                drop((done, before));
            }
            WorkerOrder::Listen(listeners) => acceptors.start(listeners)?,
            WorkerOrder::Unlisten(keys) => acceptors.stop(&keys),
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

/// Looks after deadlines, overload, clock and cache as long as there are connections; without any, sleeps.
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

/// Serves until told otherwise; then drains.
async fn await_end(context: &Context, mut phase: watch::Receiver<WorkerPhase>, acceptors: &Acceptors) {
    // An error is the end of whoever would tell.
    if phase.wait_for(|phase| *phase != WorkerPhase::Serving).await.is_err() {
        return;
    }
    context.is_draining.set(true);
    // Those that have many answers under way say that these are the last.
    context.table.borrow().wake_all();
    acceptors.stop_all();
    loop {
        let told = *phase.borrow_and_update();
        let (WorkerPhase::Draining(limit) | WorkerPhase::Leaving(limit)) = told else { return };
        let drained = async {
            while acceptors.is_accepting() || !context.table.borrow().is_empty() {
                if matches!(told, WorkerPhase::Draining(_)) {
                    context.table.borrow_mut().evict_all_idle();
                }
                tokio::time::sleep(DRAIN_LOOK_INTERVAL).await;
            }
        };
        tokio::select! {
            () = drained => return,
            () = tokio::time::sleep(limit.unwrap_or(FOREVER)) => return,
            told = phase.changed() => if told.is_err() { return },
        }
    }
}

/// Niceness of the threads that wait for disks and compress.
const POOL_NICENESS: i32 = 10;

/// How often a draining worker looks for connections that have become idle.
const DRAIN_LOOK_INTERVAL: Duration = Duration::from_millis(20);

const FOREVER: Duration = Duration::from_secs(u64::MAX >> 32);
