use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::shedding::ShedTimes;
use super::{HolderClient, MemoryBudget};

/// Largest difference between a worker's count and its published count, in bytes.
pub(super) const PUBLISHED_STEP_BYTES: i64 = 32 << 10;

/// A worker's share of the budget: bytes that its connections hold, by connection.
#[derive(Debug)]
pub struct WorkerBudget {
    count: Rc<HeldMemory>,
    /// Index of the worker, which distinguishes its reports from others'.
    worker: u32,
    /// Holders by the connections' slots in the worker's table.
    holders: RefCell<Vec<Option<Rc<Holder>>>>,
    /// Times of this worker's part in closing connections.
    pub(super) times: Cell<ShedTimes>,
}

/// Memory that all connections of a worker hold together.
#[derive(Debug)]
struct HeldMemory {
    budget: Arc<MemoryBudget>,
    held_bytes: Cell<i64>,
    published_bytes: Cell<i64>,
}

/// Account of the memory that a connection holds for its client.
#[derive(Debug, Default)]
pub struct Holder {
    /// `None` where nothing is counted: in tests, and for requests that no client has sent.
    count: Option<Rc<HeldMemory>>,
    held_bytes: Cell<u64>,
    /// Part of `held_bytes` in request heads.
    head_bytes: Cell<u64>,
    proxied: Cell<ProxiedClient>,
    /// Time at which it was decided to close the connection for its memory.
    closing_since: Cell<Option<Instant>>,
}

/// Client of a trusted proxy whose requests a connection carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ProxiedClient {
    /// The connection is not a proxy's, or no request has named its client.
    #[default]
    Unknown,
    One(HolderClient),
    Several,
}

/// Memory held for a client, counted until this is dropped.
#[derive(Debug)]
pub struct Charge {
    holder: Rc<Holder>,
    bytes: usize,
    is_head: bool,
}

/// Creates a connection's holder when the first charge needs one.
#[derive(Clone, Debug)]
pub struct HolderSource {
    worker: Rc<WorkerBudget>,
    slot: u32,
}

impl WorkerBudget {
    /// Share of the worker with this index.
    pub fn new(budget: Arc<MemoryBudget>, worker: u32) -> Rc<Self> {
        budget.reports().add_worker(worker);
        let count = Rc::new(HeldMemory { budget, held_bytes: Cell::new(0), published_bytes: Cell::new(0) });
        Rc::new(Self { count, worker, holders: RefCell::default(), times: Cell::default() })
    }

    /// Budget of the whole process.
    pub fn budget(&self) -> &MemoryBudget {
        &self.count.budget
    }

    /// Index of the worker.
    pub(super) fn worker(&self) -> u32 {
        self.worker
    }

    /// Bytes that all connections of the worker hold.
    pub(super) fn worker_bytes(&self) -> u64 {
        u64::try_from(self.count.held_bytes.get()).unwrap_or(0)
    }

    /// Holder of the connection in this slot, created if there is none.
    pub fn holder(&self, slot: u32) -> Rc<Holder> {
        let mut holders = self.holders.borrow_mut();
        let index = slot as usize;
        if holders.len() <= index {
            holders.resize(index + 1, None);
        }
        let new = || Rc::new(Holder { count: Some(Rc::clone(&self.count)), ..Holder::default() });
        Rc::clone(holders[index].get_or_insert_with(new))
    }

    /// Bytes that the connection in this slot holds.
    pub fn held_bytes(&self, slot: u32) -> u64 {
        self.holders.borrow().get(slot as usize).and_then(Option::as_ref).map_or(0, |holder| holder.held_bytes())
    }

    /// Bytes of request heads that the connection in this slot holds.
    pub fn head_bytes(&self, slot: u32) -> u64 {
        self.holders.borrow().get(slot as usize).and_then(Option::as_ref).map_or(0, |holder| holder.head_bytes.get())
    }

    /// Forgets a closed connection. Memory that it still holds counts until its charges end.
    pub fn forget(&self, slot: u32) {
        if let Some(holder) = self.holders.borrow_mut().get_mut(slot as usize) {
            *holder = None;
        }
    }

    /// Drops holders of connections that hold nothing, and publishes the exact count. Must be called about once a
    /// second: otherwise the published count stays off while nothing changes.
    pub fn trim(&self) {
        self.count.publish_rest();
        for holder in &mut *self.holders.borrow_mut() {
            if holder.as_ref().is_some_and(|holder| Rc::strong_count(holder) == 1) {
                *holder = None;
            }
        }
    }

    /// Calls `tell` for each connection that holds memory, with its slot.
    pub(super) fn each_holder(&self, mut tell: impl FnMut(u32, &Holder)) {
        for (slot, holder) in self.holders.borrow().iter().enumerate() {
            if let Some(holder) = holder
                && holder.held_bytes() > 0
            {
                tell(slot as u32, holder);
            }
        }
    }

    /// Records that connections are about to close for their memory.
    pub(super) fn mark_closing(&self, slots: &[u32], now: Instant) {
        let holders = self.holders.borrow();
        for slot in slots {
            if let Some(Some(holder)) = holders.get(*slot as usize) {
                holder.closing_since.set(Some(now));
            }
        }
    }
}

impl Drop for WorkerBudget {
    fn drop(&mut self) {
        self.budget().reports().remove_worker(self.worker);
    }
}

impl HeldMemory {
    fn change(&self, change: i64) {
        let held = self.held_bytes.get() + change;
        self.held_bytes.set(held);
        let unpublished = held - self.published_bytes.get();
        // Publishes a count of zero at once, so that an idle server shows zero.
        if unpublished.abs() >= PUBLISHED_STEP_BYTES || held == 0 {
            self.publish_rest();
        }
    }

    fn publish_rest(&self) {
        let held = self.held_bytes.get();
        let unpublished = held - self.published_bytes.replace(held);
        if unpublished != 0 {
            self.budget.publish(unpublished);
        }
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.budget.publish(-self.published_bytes.get());
    }
}

impl Holder {
    /// Holder without a connection; its memory is counted nowhere else.
    pub fn uncounted() -> Rc<Self> {
        Rc::default()
    }

    /// Counts memory held for the client for as long as the charge lives.
    pub fn charge(self: &Rc<Self>, bytes: usize) -> Charge {
        let mut charge = Charge { holder: Rc::clone(self), bytes: 0, is_head: false };
        charge.set(bytes);
        charge
    }

    /// Charge for a request's head; a connection's heads have a limit of their own.
    pub fn charge_head(self: &Rc<Self>, bytes: usize) -> Charge {
        let mut charge = Charge { holder: Rc::clone(self), bytes: 0, is_head: true };
        charge.set(bytes);
        charge
    }

    /// Bytes held for the client now.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.get()
    }

    /// Records the client that a trusted proxy has named for a request, before the request is charged.
    pub fn note_proxied_client(&self, client: HolderClient) {
        let known = self.proxied.get();
        self.proxied.set(match known {
            ProxiedClient::One(other) if other == client => known,
            ProxiedClient::One(_) | ProxiedClient::Several if self.held_bytes() > 0 => ProxiedClient::Several,
            // No other client's request is open on the connection.
            _ => ProxiedClient::One(client),
        });
    }

    /// Time at which it was decided to close the connection for its memory.
    pub(super) fn closing_since(&self) -> Option<Instant> {
        self.closing_since.get()
    }

    /// Client that a trusted proxy has named, unless the connection carries requests of several.
    pub(super) fn proxied_client(&self) -> Option<HolderClient> {
        match self.proxied.get() {
            ProxiedClient::One(client) => Some(client),
            ProxiedClient::Unknown | ProxiedClient::Several => None,
        }
    }

    fn change(&self, change: i64) {
        // No charge releases more than it has added.
        self.held_bytes.set(self.held_bytes.get().wrapping_add_signed(change));
        if let Some(count) = &self.count {
            count.change(change);
        }
    }
}

impl Charge {
    /// Changes the number of bytes held.
    pub fn set(&mut self, bytes: usize) {
        if bytes != self.bytes {
            let change = bytes as i64 - self.bytes as i64;
            self.holder.change(change);
            if self.is_head {
                let head_bytes = &self.holder.head_bytes;
                head_bytes.set(head_bytes.get().wrapping_add_signed(change));
            }
            self.bytes = bytes;
        }
    }

    /// Number of bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl HolderSource {
    /// Source for the connection in this slot of the worker's table.
    pub fn new(worker: &Rc<WorkerBudget>, slot: u32) -> Self {
        Self { worker: Rc::clone(worker), slot }
    }

    /// Holder of the connection, created if there is none.
    pub fn holder(&self) -> Rc<Holder> {
        self.worker.holder(self.slot)
    }

    /// True if the connection of this holder is open.
    pub fn is_open(&self, holder: &Rc<Holder>) -> bool {
        let holders = self.worker.holders.borrow();
        let present = holders.get(self.slot as usize).and_then(Option::as_ref);
        present.is_some_and(|present| Rc::ptr_eq(present, holder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_add_up_and_end_with_what_they_are_for() {
        let budget = Arc::new(MemoryBudget::default());
        let worker = WorkerBudget::new(Arc::clone(&budget), 0);
        let source = HolderSource::new(&worker, 3);
        let holder = source.holder();
        let mut charge = holder.charge(10_000);
        assert_eq!((holder.held_bytes(), worker.held_bytes(3), budget.held_bytes()), (10_000, 10_000, 0));
        charge.set(40_000);
        assert_eq!((charge.bytes(), holder.held_bytes(), budget.held_bytes()), (40_000, 40_000, 40_000));
        let second = worker.holder(3).charge(5);
        let head = holder.charge_head(300);
        assert_eq!((holder.held_bytes(), worker.head_bytes(3)), (40_305, 300));
        drop((head, charge));
        assert_eq!((holder.held_bytes(), budget.held_bytes()), (5, 5), "a fall is published as a rise is");
        drop(second);
        assert_eq!((holder.held_bytes(), worker.head_bytes(3), budget.held_bytes()), (0, 0, 0));
    }

    #[test]
    fn what_outlives_its_connection_is_not_the_next_one_s() {
        let budget = Arc::new(MemoryBudget::default());
        let worker = WorkerBudget::new(Arc::clone(&budget), 0);
        let (source, holder) = (HolderSource::new(&worker, 0), worker.holder(0));
        let charge = holder.charge(100_000);
        assert!(source.is_open(&holder));
        worker.forget(0);
        assert!(!source.is_open(&holder));
        let next = worker.holder(0).charge(1);
        assert!(!source.is_open(&holder), "another connection has the slot");
        assert_eq!((worker.held_bytes(0), budget.held_bytes()), (1, 100_000));
        drop(charge);
        assert_eq!(budget.held_bytes(), 1);
        drop(next);
        worker.trim();
        assert!(worker.holders.borrow().iter().all(Option::is_none), "a connection at rest has no holder");
    }

    /// Otherwise two workers could show 60 KiB too little for as long as nothing changes.
    #[test]
    fn the_published_count_is_exact_after_a_second() {
        let budget = Arc::new(MemoryBudget::default());
        let workers = [0, 1].map(|number| WorkerBudget::new(Arc::clone(&budget), number));
        let charges = workers.each_ref().map(|worker| worker.holder(0).charge(PUBLISHED_STEP_BYTES as usize - 1));
        assert_eq!(budget.held_bytes(), 0);
        workers.iter().for_each(|worker| worker.trim());
        assert_eq!(budget.held_bytes(), 2 * (PUBLISHED_STEP_BYTES as u64 - 1));
        drop(charges);
        assert_eq!(budget.held_bytes(), 0);
    }

    #[test]
    fn a_connection_of_a_proxy_belongs_to_the_client_that_it_works_for() {
        let client = |last: u8| HolderClient::of([192, 0, 2, last].into());
        let holder = Rc::new(Holder::default());
        assert_eq!(holder.proxied_client(), None);
        holder.note_proxied_client(client(1));
        let first = holder.charge(1);
        holder.note_proxied_client(client(1));
        assert_eq!(holder.proxied_client(), Some(client(1)));
        holder.note_proxied_client(client(2));
        assert_eq!(holder.proxied_client(), None, "it carries requests of two clients");
        drop(first);
        holder.note_proxied_client(client(2));
        assert_eq!(holder.proxied_client(), Some(client(2)), "the requests of the other one are over");
    }

    #[test]
    fn a_worker_that_ends_takes_along_what_it_held() {
        let budget = Arc::new(MemoryBudget::default());
        let worker = WorkerBudget::new(Arc::clone(&budget), 0);
        let charge = worker.holder(0).charge(50_000);
        drop(worker);
        assert_eq!(budget.held_bytes(), 50_000);
        drop(charge);
        assert_eq!(budget.held_bytes(), 0);
    }

    #[test]
    fn what_no_client_has_sent_is_not_counted() {
        let holder = Holder::uncounted();
        let charge = holder.charge(1 << 20);
        assert_eq!(holder.held_bytes(), 1 << 20);
        drop(charge);
        assert_eq!(holder.held_bytes(), 0);
    }
}
