//! The workers: starting them, having them change, letting some go.

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
use crate::worker::{self, GenerationPlan, ListenerKey, OpenListener, WorkerOrder, WorkerPhase, WorkerPlan};

/// The workers.
pub(super) struct Workers {
    /// Those that serve.
    serving: Vec<Handle>,
    /// Those that end.
    leaving: Vec<Handle>,
    /// Cores that may be used.
    cores: Vec<usize>,
    pins: bool,
    ended: UnboundedSender<(usize, io::Result<()>)>,
}

/// Numbers and results of workers that have ended.
pub(super) type WorkerEnds = UnboundedReceiver<(usize, io::Result<()>)>;

struct Handle {
    index: usize,
    orders: UnboundedSender<WorkerOrder>,
    inquiries: UnboundedSender<Inquiry>,
    phase: watch::Sender<WorkerPhase>,
    listens: HashSet<ListenerKey>,
}

impl Workers {
    /// None yet; and where they say that they have ended.
    ///
    /// # Errors
    /// The kernel does not tell which cores may be used.
    pub(super) fn new(server: &config::ServerSettings) -> io::Result<(Self, WorkerEnds)> {
        let set = rustix::thread::sched_getaffinity(None)?;
        let cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect();
        let (ended, receiver) = unbounded_channel();
        let workers = Self { serving: Vec::new(), leaving: Vec::new(), cores, pins: server.pin_workers, ended };
        Ok((workers, receiver))
    }

    /// How many there should be.
    pub(super) fn wanted(&self, server: &config::ServerSettings) -> usize {
        server.workers.unwrap_or(self.cores.len()).max(1)
    }

    /// How many serve.
    pub(super) fn count(&self) -> usize {
        self.serving.len()
    }

    /// Whether all have ended.
    pub(super) fn is_empty(&self) -> bool {
        self.serving.is_empty() && self.leaving.is_empty()
    }

    /// Has as many serve as are wanted. Those that go hand their listeners on, and end with their connections.
    ///
    /// # Errors
    /// A thread or descriptor can't be had. Then there are fewer.
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
            listeners.widen(self.serving.len(), &generation.config.server);
            result = result.and(self.listen(listeners).map_err(ServerStartError::at("cannot listen")));
        }
        // By now others accept from what they had.
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
            inquiries: inquiry_receiver,
            orders: order_receiver,
            phase: phase_receiver,
            ended: self.ended.clone(),
        })?;
        self.serving.push(Handle { index, orders, inquiries, phase, listens: HashSet::new() });
        Ok(())
    }

    /// The lowest number that none has: so what is counted by numbers does not grow with those that come and go.
    fn free_index(&self) -> usize {
        let is_free = |index: &usize| self.all().all(|handle| handle.index != *index);
        (0..).find(is_free).unwrap_or_default()
    }

    fn all(&self) -> impl Iterator<Item = &Handle> {
        self.serving.iter().chain(&self.leaving)
    }

    /// Where they are asked about themselves, with their numbers.
    pub(super) fn inquiries(&self) -> Vec<(usize, UnboundedSender<Inquiry>)> {
        self.all().map(|handle| (handle.index, handle.inquiries.clone())).collect()
    }

    /// Has all serve by this; returns what ends when they do.
    pub(super) fn apply(&self, generation: &Arc<GenerationPlan>) -> UnboundedReceiver<()> {
        let (done, receiver) = unbounded_channel();
        for handle in self.all() {
            // Fails if it has ended.
            let _ = handle.orders.send(WorkerOrder::Serve { generation: Arc::clone(generation), done: done.clone() });
        }
        receiver
    }

    /// Has all listen no more; returns what ends when they don't.
    pub(super) fn stop_listening(&self) -> UnboundedReceiver<()> {
        let (done, receiver) = unbounded_channel();
        for handle in self.all() {
            // Fails if it has ended.
            let _ = handle.orders.send(WorkerOrder::StopListening { done: done.clone() });
        }
        receiver
    }

    /// Has each listen where it is to.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(super) fn listen(&mut self, listeners: &Listeners) -> io::Result<()> {
        let count = self.serving.len();
        let mut stops = Vec::with_capacity(count);
        for (worker, handle) in self.serving.iter_mut().enumerate() {
            let wanted: HashSet<ListenerKey> = listeners.of_worker(worker, count).into_iter().collect();
            let open = |key: &ListenerKey| Ok(OpenListener { key: *key, listener: listeners.descriptor(*key)? });
            let new = wanted.difference(&handle.listens).map(open).collect::<io::Result<Vec<_>>>()?;
            stops.push(handle.listens.difference(&wanted).copied().collect::<Vec<_>>());
            if !new.is_empty() {
                let _ = handle.orders.send(WorkerOrder::Listen(new));
            }
            handle.listens = wanted;
        }
        // When others listen there already.
        for (handle, stops) in self.serving.iter().zip(stops).filter(|(_, stops)| !stops.is_empty()) {
            let _ = handle.orders.send(WorkerOrder::Unlisten(stops));
        }
        Ok(())
    }

    /// Tells all what to do, by what they do now.
    pub(super) fn set_phase(&self, next: impl Fn(WorkerPhase) -> WorkerPhase) {
        self.all().for_each(|handle| handle.phase.send_modify(|phase| *phase = next(*phase)));
    }

    /// Takes note of one that has ended.
    pub(super) fn on_ended(&mut self, index: usize) {
        self.serving.retain(|handle| handle.index != index);
        self.leaving.retain(|handle| handle.index != index);
    }
}
