//! Worker threads of the server: starts, instructs and stops them.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use super::ServerStartError;
use super::assembly::Lasting;
use super::listeners::Listeners;
use crate::config;
use crate::metrics::Inquiry;
use crate::worker::{self, GenerationPlan, ListenerKey, UDP_KEY, WorkerOrder, WorkerPhase, WorkerPlan};

/// All workers of the process.
pub(super) struct Workers {
    /// Workers that accept connections.
    serving: Vec<Handle>,
    /// Workers that complete their connections and end.
    leaving: Vec<Handle>,
    /// CPU cores that the process may use.
    cores: Vec<usize>,
    pins: bool,
    ended: UnboundedSender<(usize, io::Result<()>)>,
}

/// Receives the index and result of each worker that ends.
pub(super) type WorkerEnds = UnboundedReceiver<(usize, io::Result<()>)>;

struct Handle {
    index: usize,
    orders: UnboundedSender<WorkerOrder>,
    inquiries: UnboundedSender<Inquiry>,
    phase: watch::Sender<WorkerPhase>,
    listens: HashSet<ListenerKey>,
}

impl Workers {
    /// Starts with no workers; returns the receiver of ended ones, too.
    ///
    /// # Errors
    /// The kernel does not tell which CPU cores may be used.
    pub(super) fn new(server: &config::ServerSettings) -> io::Result<(Self, WorkerEnds)> {
        let set = rustix::thread::sched_getaffinity(None)?;
        let cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect();
        let (ended, receiver) = unbounded_channel();
        let workers = Self { serving: Vec::new(), leaving: Vec::new(), cores, pins: server.pin_workers, ended };
        Ok((workers, receiver))
    }

    /// Number of CPU cores that the process may use.
    pub(super) fn cores(&self) -> usize {
        self.cores.len()
    }

    /// Number of workers that the configuration asks for; by default one per core.
    pub(super) fn wanted(&self, server: &config::ServerSettings) -> usize {
        server.workers.unwrap_or(self.cores.len()).max(1)
    }

    /// Number of workers that accept connections.
    pub(super) fn count(&self) -> usize {
        self.serving.len()
    }

    /// True if all workers have ended.
    pub(super) fn is_empty(&self) -> bool {
        self.serving.is_empty() && self.leaving.is_empty()
    }

    /// Starts or stops workers until `count` accept connections. Stopped ones leave their listeners to others and end
    /// with their last connection.
    ///
    /// # Errors
    /// A thread or file descriptor is not available. Fewer workers serve then.
    pub(super) fn set_count(
        &mut self,
        count: usize,
        generation: &Arc<GenerationPlan>,
        listeners: &mut Listeners,
        lasting: &Lasting,
    ) -> Result<(), ServerStartError> {
        let mut result = Ok(());
        while self.serving.len() < count && result.is_ok() {
            result = self.start(generation, lasting).map_err(ServerStartError::at("cannot start worker"));
        }
        let going = self.serving.split_off(count.min(self.serving.len()));
        if !self.serving.is_empty() {
            listeners.widen(self.serving.len(), &generation.parts.config.server);
            result = result.and(self.listen(listeners).map_err(ServerStartError::at("cannot listen")));
            self.steer(listeners);
        }
        // Others accept from their listeners by now.
        for handle in going {
            handle.phase.send_replace(WorkerPhase::Leaving(None));
            self.leaving.push(handle);
        }
        result
    }

    fn start(&mut self, generation: &Arc<GenerationPlan>, lasting: &Lasting) -> io::Result<()> {
        let (orders, order_receiver) = unbounded_channel();
        let (inquiries, inquiry_receiver) = unbounded_channel();
        let (phase, phase_receiver) = watch::channel(WorkerPhase::Serving);
        let index = self.free_index();
        worker::spawn(WorkerPlan {
            index,
            core: self.pins.then(|| self.cores[self.serving.len() % self.cores.len()]),
            generation: Arc::clone(generation),
            listeners: Vec::new(),
            client_limit: Arc::clone(&lasting.client_limit),
            memory: Arc::clone(&lasting.memory),
            memory_trouble: Arc::clone(&lasting.memory_trouble),
            accept_trouble: Arc::clone(&lasting.accept_trouble),
            place_trouble: Arc::clone(&lasting.place_trouble),
            overload: Arc::clone(&lasting.overload),
            store: Arc::clone(&lasting.store),
            recorder: lasting.access_log.recorder(),
            metrics: lasting.metrics.clone(),
            quic_keys: Arc::clone(&lasting.quic_keys),
            inquiries: inquiry_receiver,
            orders: order_receiver,
            phase: phase_receiver,
            ended: self.ended.clone(),
        })?;
        self.serving.push(Handle { index, orders, inquiries, phase, listens: HashSet::new() });
        Ok(())
    }

    /// Lowest index that no worker has, so that counters per worker do not grow with each change.
    fn free_index(&self) -> usize {
        let is_free = |index: &usize| self.all().all(|handle| handle.index != *index);
        (0..).find(is_free).unwrap_or_default()
    }

    fn all(&self) -> impl Iterator<Item = &Handle> {
        self.serving.iter().chain(&self.leaving)
    }

    /// Senders of inquiries to all workers, with their indexes.
    pub(super) fn inquiries(&self) -> Vec<(usize, UnboundedSender<Inquiry>)> {
        self.all().map(|handle| (handle.index, handle.inquiries.clone())).collect()
    }

    /// Has all workers serve by this plan. The receiver ends when the last one does.
    pub(super) fn apply(&self, generation: &Arc<GenerationPlan>) -> UnboundedReceiver<()> {
        let (done, receiver) = unbounded_channel();
        for handle in self.all() {
            // Fails only if the worker has ended.
            let _ = handle.orders.send(WorkerOrder::Serve { generation: Arc::clone(generation), done: done.clone() });
        }
        receiver
    }

    /// Stops accepting in all workers. The receiver ends when the last one has stopped.
    pub(super) fn stop_listening(&self) -> UnboundedReceiver<()> {
        let (done, receiver) = unbounded_channel();
        for handle in self.all() {
            // Fails only if the worker has ended.
            let _ = handle.orders.send(WorkerOrder::StopListening { done: done.clone() });
        }
        receiver
    }

    /// Gives each worker the sockets that it must accept from.
    ///
    /// # Errors
    /// Out of file descriptors.
    pub(super) fn listen(&mut self, listeners: &Listeners) -> io::Result<()> {
        self.share_out(listeners).map(drop)
    }

    /// Gives each worker the sockets that it must accept from. The receiver ends when all have stopped to read those
    /// that they must not.
    ///
    /// # Errors
    /// Out of file descriptors.
    pub(super) fn share_out(&mut self, listeners: &Listeners) -> io::Result<UnboundedReceiver<()>> {
        let count = self.serving.len();
        let mut stops = Vec::with_capacity(count);
        let is_free = |key: &ListenerKey| is_free(key, &self.leaving);
        for (worker, handle) in self.serving.iter_mut().enumerate() {
            // Connections of HTTP/3 need the sockets that they began with, so workers keep them.
            let kept = handle.listens.iter().copied().filter(|key| listeners.holds_connections(*key));
            let wanted: HashSet<ListenerKey> =
                listeners.of_worker(worker, count).into_iter().filter(is_free).chain(kept).collect();
            let new = wanted
                .difference(&handle.listens)
                .map(|key| listeners.duplicate(*key))
                .collect::<io::Result<Vec<_>>>()?;
            stops.push(handle.listens.difference(&wanted).copied().collect::<Vec<_>>());
            if !new.is_empty() {
                let _ = handle.orders.send(WorkerOrder::Listen(new));
            }
            handle.listens = wanted;
        }
        // Comes last, when other workers already accept there.
        let (done, receiver) = unbounded_channel();
        for (handle, keys) in self.serving.iter().zip(stops).filter(|(_, keys)| !keys.is_empty()) {
            let _ = handle.orders.send(WorkerOrder::Unlisten { keys, done: done.clone() });
        }
        Ok(receiver)
    }

    /// Directs new HTTP/3 connections to the workers that serve. Must not be called while a new process serves.
    pub(super) fn steer(&self, listeners: &Listeners) {
        listeners.steer(self.serving.len(), |key| is_free(key, &self.leaving));
    }

    /// Sets the phase of all workers, computed from each one's present phase.
    pub(super) fn set_phase(&self, next: impl Fn(WorkerPhase) -> WorkerPhase) {
        self.all().for_each(|handle| handle.phase.send_modify(|phase| *phase = next(*phase)));
    }

    /// Removes a worker that has ended.
    pub(super) fn on_ended(&mut self, index: usize) {
        self.serving.retain(|handle| handle.index != index);
        self.leaving.retain(|handle| handle.index != index);
    }
}

/// True unless a worker that completes its connections reads this socket of HTTP/3.
fn is_free(key: &ListenerKey, leaving: &[Handle]) -> bool {
    key.1 & UDP_KEY == 0 || !leaving.iter().any(|handle| handle.listens.contains(key))
}
