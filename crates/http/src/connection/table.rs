use std::task::Waker;

use super::eviction::{ClientProgress, ConnectionFacts, EvictionRank, Tier};
use super::holdings::{Claimant, ClientOrigin, Holdings, Shares};
use crate::metrics::StageCounts;

/// Open connections of a worker: their stages, deadlines and wakers.
///
/// A periodic sweep checks the deadlines, so connections need no timers. Setting a deadline is a single store. A
/// connection without work costs 48 bytes here and nothing in the runtime.
#[derive(Debug, Default)]
pub struct ConnectionTable {
    entries: Vec<ConnectionEntry>,
    free: Vec<u32>,
    /// Part of the entries that the next sweep checks.
    sweep_part: usize,
    /// Slots of exchanges whose deadline is near. Each sweep checks them, so that short time limits are kept.
    near: Vec<u32>,
    /// Time of the last sweep.
    swept_ms: u64,
    /// Number of connections in reserved places.
    reserved: usize,
    /// Places held by clients and networks; counted only while most places are taken.
    holdings: Option<Holdings>,
    /// Number of newcomers over their share for which no search is made, because the last search found no connection to
    /// close. Otherwise a client whose connections all make progress could cause a search of all connections with each
    /// new one. Indexed by whether the share is a network's, and by whether there are free places.
    looks_to_skip: [[usize; 2]; 2],
}

/// Event that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionStage {
    /// End of the TLS handshake, or the PROXY protocol header.
    Opening,
    /// First byte of a request. Such a connection may be closed to make room.
    Idle,
    /// First byte of a request, for a short time after the last. After that time the connection frees memory and
    /// becomes idle.
    Resting,
    /// Rest of a head.
    Head,
    /// Content of a request.
    Content,
    /// Response of a handler, which has its own time limits.
    Answer,
    /// Client that must accept output.
    Write,
    /// End of the connection by the client, after the last response.
    Linger,
    /// Data from either end of a tunnel.
    Tunnel,
}

/// Reason that the table woke a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// The deadline has passed.
    TimedOut,
    /// Another connection needs the place; this one closes at once in any stage.
    Evicted,
    /// Clients hold too much memory, and this client more than others.
    Shed,
}

/// Connection that was accepted and has no place yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Newcomer {
    /// Client and network that it counts for.
    pub origin: ClientOrigin,
    /// True if its listener has reserved places.
    pub is_reserved: bool,
}

/// Availability of a place for a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// A place is free.
    Free,
    /// Most places are taken, and the client or its network has reached its share, so that it must first release some.
    /// True if there are free places nevertheless.
    OverShare(Claimant, bool),
    /// All places are taken.
    None,
}

#[derive(Debug)]
struct ConnectionEntry {
    deadline_ms: u64,
    waker: Option<Waker>,
    origin: ClientOrigin,
    progress: ClientProgress,
    stage: ConnectionStage,
    verdict: Option<WakeReason>,
    is_free: bool,
    is_reserved: bool,
    /// True while the slot is among those with a near deadline.
    is_near: bool,
}

/// Time before its deadline from which each sweep checks an exchange.
const NEAR_MS: u64 = 2_000;

const NEVER: u64 = u64::MAX;

/// Sweeps in a round: an expired deadline is noticed within this many, that of an exchange at the next.
pub const SWEEPS_A_ROUND: usize = 10;

/// Additional places of each worker for connections to listeners for monitoring.
pub const RESERVED_PLACES: usize = 16;

/// Divisor of the number of connections. After a search without result, this part of them is the number of newcomers
/// without another search.
const LOOKS_PART: usize = 64;

/// True if most places are taken, so that clients are held to their shares. The rest is for clients that hold less.
fn is_crowded(taken: usize, connections_max: usize) -> bool {
    taken >= connections_max - connections_max / 8
}

/// True if so few places are taken that holders are no longer counted.
fn is_quiet(taken: usize, connections_max: usize) -> bool {
    taken < connections_max - connections_max / 4
}

impl ConnectionTable {
    /// Number of open connections.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// True if no connection is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of connections in each stage.
    pub fn stages(&self) -> StageCounts {
        let mut counts = StageCounts::default();
        for entry in self.entries.iter().filter(|entry| !entry.is_free) {
            *match entry.stage {
                ConnectionStage::Opening | ConnectionStage::Idle | ConnectionStage::Resting => &mut counts.idle,
                ConnectionStage::Head => &mut counts.reading_head,
                ConnectionStage::Content => &mut counts.reading_content,
                ConnectionStage::Answer => &mut counts.answering,
                ConnectionStage::Write => &mut counts.writing,
                ConnectionStage::Linger => &mut counts.lingering,
                ConnectionStage::Tunnel => &mut counts.tunneling,
            } += 1;
        }
        counts
    }

    /// Adds a connection; returns its slot.
    pub fn insert(&mut self, newcomer: Newcomer) -> u32 {
        let Newcomer { origin, is_reserved } = newcomer;
        self.reserved += usize::from(is_reserved);
        if let Some(holdings) = &mut self.holdings {
            holdings.add(origin);
        }
        let mut entry = ConnectionEntry {
            deadline_ms: NEVER,
            waker: None,
            origin,
            progress: ClientProgress::default(),
            stage: ConnectionStage::Idle,
            verdict: None,
            is_free: false,
            is_reserved,
            is_near: false,
        };
        if let Some(slot) = self.free.pop() {
            entry.is_near = self.entries[slot as usize].is_near;
            self.entries[slot as usize] = entry;
            return slot;
        }
        self.entries.push(entry);
        self.entries.len() as u32 - 1
    }

    /// Changes the origin of a connection after a proxy has reported the client.
    pub fn set_origin(&mut self, slot: u32, origin: ClientOrigin) {
        let before = std::mem::replace(&mut self.entries[slot as usize].origin, origin);
        if let Some(holdings) = &mut self.holdings {
            holdings.remove(before);
            holdings.add(origin);
        }
    }

    /// Frees a slot.
    pub fn remove(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        entry.waker = None;
        entry.deadline_ms = NEVER;
        entry.is_free = true;
        self.reserved -= usize::from(entry.is_reserved);
        if let Some(holdings) = &mut self.holdings {
            holdings.remove(entry.origin);
        }
        self.free.push(slot);
    }

    /// Sets the stage and deadline of a connection.
    pub fn enter(&mut self, slot: u32, stage: ConnectionStage, deadline_ms: Option<u64>, waker: &Waker) {
        let entry = &mut self.entries[slot as usize];
        let phase_before = entry.phase();
        entry.stage = stage;
        entry.deadline_ms = deadline_ms.unwrap_or(NEVER);
        let phase = entry.phase();
        if phase != phase_before {
            entry.progress.begin();
        }
        if entry.deadline_ms < self.swept_ms + NEAR_MS && phase == ClientPhase::Exchange && !entry.is_near {
            entry.is_near = true;
            self.near.push(slot);
        }
        // A task's waker does not change during the task's life.
        if entry.waker.is_none() {
            entry.waker = Some(waker.clone());
        }
    }

    /// Records bytes that the client has moved: content that it sent, or output that it accepted.
    pub fn note_progress(&mut self, slot: u32, bytes: u64) {
        self.entries[slot as usize].progress.on_moved(bytes);
    }

    /// Current stage of a connection.
    pub fn stage(&self, slot: u32) -> ConnectionStage {
        self.entries[slot as usize].stage
    }

    /// Takes the reason that the table woke a connection; `None` if something else woke it.
    pub fn take_verdict(&mut self, slot: u32) -> Option<WakeReason> {
        self.entries[slot as usize].verdict.take()
    }

    /// Wakes connections whose deadline has passed. Checks exchanges whose deadline is near, and a tenth of all
    /// connections; for these, one second has passed since their last sweep.
    pub fn sweep(&mut self, now_ms: u64) {
        self.swept_ms = now_ms;
        let entries = &mut self.entries;
        self.near.retain(|slot| {
            let entry = &mut entries[*slot as usize];
            if entry.deadline_ms <= now_ms {
                entry.condemn(WakeReason::TimedOut);
            }
            entry.is_near = entry.deadline_ms < now_ms + NEAR_MS;
            entry.is_near
        });
        let (part, count) = (self.sweep_part, self.entries.len());
        self.sweep_part = (part + 1) % SWEEPS_A_ROUND;
        for entry in &mut self.entries[count * part / SWEEPS_A_ROUND..count * (part + 1) / SWEEPS_A_ROUND] {
            entry.progress.on_round();
            if entry.deadline_ms <= now_ms {
                entry.condemn(WakeReason::TimedOut);
            }
        }
    }

    /// Checks if there is a place for a newcomer, out of `connections_max`.
    pub fn room(&mut self, newcomer: Newcomer, shares: Shares, connections_max: usize) -> Room {
        if newcomer.is_reserved {
            return if self.reserved < RESERVED_PLACES { Room::Free } else { Room::None };
        }
        let taken = self.len() - self.reserved;
        if is_quiet(taken, connections_max) {
            self.holdings = None;
        }
        if !is_crowded(taken, connections_max) {
            return Room::Free;
        }
        let is_full = taken >= connections_max;
        match self.count_holdings().over_share(newcomer.origin, shares) {
            Some(holder) => Room::OverShare(holder, !is_full),
            None if is_full => Room::None,
            None => Room::Free,
        }
    }

    fn count_holdings(&mut self) -> &Holdings {
        self.holdings.get_or_insert_with(|| {
            Holdings::of(self.entries.iter().filter(|entry| !entry.is_free).map(|entry| entry.origin))
        })
    }

    /// Wakes the first connections of the eviction order, to be closed in favour of a newcomer. Calls `told` with the
    /// stage of each; returns their number.
    pub fn make_room(&mut self, newcomer: Newcomer, on_evicted: impl FnMut(ConnectionStage)) -> usize {
        let held = self.count_holdings().held(newcomer.origin);
        // A client that makes progress is not closed for one that holds as many places.
        let may_go = |_, standing: &EvictionRank| standing.tier != Tier::Busy || standing.held() > held + 1;
        self.evict_first(newcomer.is_reserved, on_evicted, may_go)
    }

    /// Wakes connections to be closed because their file descriptors are needed, except those that make progress. Calls
    /// `told` with the stage of each; returns their number.
    pub fn free_descriptors(&mut self, on_evicted: impl FnMut(ConnectionStage)) -> usize {
        self.evict_first(false, on_evicted, |_, standing| standing.tier != Tier::Busy)
    }

    /// Wakes connections to be closed in favour of a newcomer whose client or network has reached its share. They are
    /// the claimant's own, except those that make progress. If no place is free, a client with few places in a network
    /// with many gets one like any other client. Calls `told` with the stage of each; returns their number.
    pub fn make_room_within(
        &mut self,
        claimant: Claimant,
        newcomer: Newcomer,
        is_free: bool,
        mut on_evicted: impl FnMut(ConnectionStage),
    ) -> usize {
        let is_network = matches!(claimant, Claimant::Network(_));
        let looks_to_skip = &mut self.looks_to_skip[usize::from(is_network)][usize::from(is_free)];
        if *looks_to_skip > 0 {
            *looks_to_skip -= 1;
            return 0;
        }
        let is_own = |origin, standing: &EvictionRank| standing.tier != Tier::Busy && claimant.has(origin);
        let mut evicted = self.evict_first(false, &mut on_evicted, is_own);
        if evicted == 0 && is_network && !is_free {
            evicted = self.make_room(newcomer, on_evicted);
        }
        if evicted == 0 {
            self.looks_to_skip[usize::from(is_network)][usize::from(is_free)] = self.len() / LOOKS_PART;
        }
        evicted
    }

    fn evict_first(
        &mut self,
        is_reserved: bool,
        mut on_evicted: impl FnMut(ConnectionStage),
        is_candidate: impl Fn(ClientOrigin, &EvictionRank) -> bool,
    ) -> usize {
        self.count_holdings();
        let Some(holdings) = &self.holdings else { return 0 };
        let mut candidates: Vec<(EvictionRank, u32)> = (0..)
            .zip(&self.entries)
            .filter(|(_, entry)| !entry.is_free && entry.verdict.is_none() && entry.is_reserved == is_reserved)
            .map(|(slot, entry)| (entry.facts(holdings).standing(), slot))
            .filter(|(standing, slot)| is_candidate(self.entries[*slot as usize].origin, standing))
            .collect();
        let Some(tier) = candidates.iter().map(|(standing, _)| standing.tier).min() else { return 0 };
        candidates.retain(|(standing, _)| standing.tier == tier);
        let count = tier.batch(self.entries.len() - self.free.len()).min(candidates.len());
        candidates.select_nth_unstable(count - 1);
        for &(_, slot) in &candidates[..count] {
            let entry = &mut self.entries[slot as usize];
            on_evicted(entry.stage);
            entry.condemn(WakeReason::Evicted);
        }
        count
    }

    /// Wakes all idle connections to be closed.
    pub fn evict_all_idle(&mut self) {
        let is_idle = |entry: &&mut ConnectionEntry| {
            !entry.is_free
                && entry.verdict.is_none()
                && matches!(entry.stage, ConnectionStage::Opening | ConnectionStage::Idle | ConnectionStage::Resting)
        };
        self.entries.iter_mut().filter(is_idle).for_each(|entry| entry.condemn(WakeReason::Evicted));
    }

    /// Wakes a connection to be closed in any stage, because it holds too much memory.
    pub fn shed(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        if !entry.is_free {
            entry.condemn(WakeReason::Shed);
        }
    }

    /// Wakes all connections, so that they check for changes.
    pub fn wake_all(&self) {
        self.entries.iter().filter_map(|entry| entry.waker.as_ref()).for_each(Waker::wake_by_ref);
    }
}

/// Phase of a connection, for the grace period of its client.
#[derive(PartialEq, Eq)]
enum ClientPhase {
    Opening,
    Idle,
    Head,
    Exchange,
}

impl ConnectionEntry {
    fn phase(&self) -> ClientPhase {
        match self.stage {
            ConnectionStage::Opening => ClientPhase::Opening,
            ConnectionStage::Idle | ConnectionStage::Resting if self.deadline_ms != NEVER => ClientPhase::Idle,
            ConnectionStage::Head => ClientPhase::Head,
            _ => ClientPhase::Exchange,
        }
    }

    fn facts(&self, holdings: &Holdings) -> ConnectionFacts {
        ConnectionFacts {
            stage: self.stage,
            progress: self.progress,
            deadline_ms: Some(self.deadline_ms).filter(|deadline_ms| *deadline_ms != NEVER),
            held: if self.origin.is_exempt() { 0 } else { holdings.held(self.origin) },
        }
    }

    fn condemn(&mut self, verdict: WakeReason) {
        self.verdict = Some(verdict);
        self.deadline_ms = NEVER;
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVICTED: Option<WakeReason> = Some(WakeReason::Evicted);

    fn newcomer(client: u64) -> Newcomer {
        Newcomer { origin: ClientOrigin::new(client, client / 10), is_reserved: false }
    }

    /// Makes a table of connections with stage, deadline and client number.
    fn table_of(connections: &[(ConnectionStage, u64, u64)]) -> ConnectionTable {
        let mut table = ConnectionTable::default();
        for &(stage, deadline_ms, client) in connections {
            let slot = table.insert(newcomer(client));
            table.enter(slot, stage, Some(deadline_ms), Waker::noop());
        }
        table
    }

    /// Makes a table in which each connection has its own client and network.
    fn table(stages: &[(ConnectionStage, u64)]) -> ConnectionTable {
        let connections: Vec<_> =
            (1..).zip(stages).map(|(number, (stage, deadline_ms))| (*stage, *deadline_ms, number * 10)).collect();
        table_of(&connections)
    }

    fn verdicts(table: &mut ConnectionTable) -> Vec<Option<WakeReason>> {
        (0..table.entries.len()).map(|slot| table.take_verdict(slot as u32)).collect()
    }

    /// Simulates seconds in each of which connections, given by slot, move bytes.
    fn pass(table: &mut ConnectionTable, seconds: usize, moved: &[(u32, u64)]) {
        for _ in 0..seconds {
            moved.iter().for_each(|(slot, bytes)| table.note_progress(*slot, *bytes));
            (0..SWEEPS_A_ROUND).for_each(|_| table.sweep(0));
        }
    }

    /// Evicts until no more connections can be, and frees their slots; returns the slots in order.
    fn evict_all_for(table: &mut ConnectionTable, newcomer: Newcomer) -> Vec<usize> {
        let mut order = Vec::new();
        while table.make_room(newcomer, |_| {}) > 0 {
            for (slot, verdict) in verdicts(table).into_iter().enumerate() {
                if verdict == EVICTED {
                    table.remove(slot as u32);
                    order.push(slot);
                }
            }
        }
        order
    }

    #[test]
    fn a_round_of_sweeps_finds_all_passed_deadlines() {
        for count in [1, 9, 10, 25] {
            let mut table = table(&vec![(ConnectionStage::Idle, 100); count + 2]);
            table.enter(0, ConnectionStage::Write, Some(101), Waker::noop());
            table.enter(1, ConnectionStage::Answer, None, Waker::noop());
            for _ in 0..SWEEPS_A_ROUND {
                table.sweep(100);
            }
            let timed_out =
                verdicts(&mut table).iter().filter(|verdict| **verdict == Some(WakeReason::TimedOut)).count();
            assert_eq!(timed_out, count);
        }
    }

    #[test]
    fn each_sweep_finds_passed_deadlines_of_exchanges() {
        let mut table = table(&[(ConnectionStage::Idle, NEVER); 30]);
        table.sweep(10_000);
        for slot in 0..28 {
            table.enter(slot, ConnectionStage::Answer, Some(10_500), Waker::noop());
        }
        // A longer limit comes near later; a connection without work is found in its turn.
        table.enter(28, ConnectionStage::Answer, Some(13_000), Waker::noop());
        table.enter(29, ConnectionStage::Idle, Some(10_500), Waker::noop());
        table.sweep(10_400);
        assert!(verdicts(&mut table).iter().all(Option::is_none));
        table.sweep(10_500);
        let found = verdicts(&mut table);
        assert_eq!(found[..28], [Some(WakeReason::TimedOut); 28]);
        assert_eq!(found[28..], [None; 2]);
        table.remove(0);
        table.insert(newcomer(1));
        table.enter(0, ConnectionStage::Answer, Some(11_000), Waker::noop());
        table.sweep(11_000);
        assert_eq!(verdicts(&mut table)[0], Some(WakeReason::TimedOut));
    }

    #[test]
    fn the_longest_idle_are_evicted_first() {
        let mut table = table(&[
            (ConnectionStage::Idle, 30),
            (ConnectionStage::Head, 1),
            (ConnectionStage::Idle, 10),
            (ConnectionStage::Idle, 20),
        ]);
        assert_eq!(evict_all_for(&mut table, newcomer(0)), [2, 3, 0, 1], "a slow head, when nothing is idle");
    }

    #[test]
    fn places_are_used_again() {
        let mut table = table(&[(ConnectionStage::Idle, 1), (ConnectionStage::Idle, 2)]);
        table.remove(0);
        assert_eq!(table.make_room(newcomer(0), |_| {}), 1);
        assert_eq!((table.insert(newcomer(0)), table.len()), (0, 2));
    }

    /// Slow bodies and slow readers are ordered by their progress. Clients that make progress and working handlers
    /// stay.
    #[test]
    fn slow_clients_are_evicted_by_progress() {
        let mut table = table(&[
            (ConnectionStage::Write, 9),
            (ConnectionStage::Content, 9),
            (ConnectionStage::Answer, 1),
            (ConnectionStage::Tunnel, 9),
            (ConnectionStage::Content, 9),
            (ConnectionStage::Write, 9),
            (ConnectionStage::Idle, 9),
        ]);
        pass(&mut table, 20, &[(0, 2_000), (1, 1), (4, 200_000), (5, 300_000)]);
        assert_eq!(evict_all_for(&mut table, newcomer(0)), [6, 1, 0, 3]);
        assert_eq!(table.len(), 3, "the fast ones and the handler's, in favour of no client that holds as many");
    }

    #[test]
    fn clients_that_make_progress_give_way_only_to_those_that_hold_fewer_places() {
        let of_client = |client| (ConnectionStage::Answer, 9, client);
        let mut table = table_of(&[of_client(10), of_client(10), of_client(10), of_client(20), of_client(20)]);
        assert_eq!(table.make_room(newcomer(20), |_| {}), 0, "3 and 2");
        let gone = evict_all_for(&mut table, newcomer(30));
        assert_eq!(gone.len(), 3, "until each holds one");
        assert!(gone[0] < 3, "first of the client that holds most");
        let proxy = Newcomer::default();
        let slots: Vec<u32> = (0..5).map(|_| table.insert(proxy)).collect();
        slots.iter().for_each(|slot| table.enter(*slot, ConnectionStage::Answer, None, Waker::noop()));
        assert_eq!(table.make_room(newcomer(30), |_| {}), 0, "a trusted proxy may hold any number");
    }

    #[test]
    fn few_are_evicted_that_do_something() {
        for (stage, expect) in [
            (ConnectionStage::Idle, 10),
            (ConnectionStage::Head, 3),
            (ConnectionStage::Tunnel, 3),
            (ConnectionStage::Answer, 1),
        ] {
            let mut table = table_of(&[(stage, 9, 10); 640]);
            let mut on_evicted = Vec::new();
            assert_eq!(table.make_room(newcomer(20), |stage| on_evicted.push(stage)), expect, "{stage:?}");
            assert_eq!(on_evicted, vec![stage; expect]);
        }
    }

    #[test]
    fn shares_hold_when_most_places_are_taken() {
        let shares = Shares { client: Some(5), network: Some(10) };
        let mut table = table_of(&[(ConnectionStage::Content, 9, 11); 30]);
        assert_eq!(table.room(newcomer(11), shares, 40), Room::Free, "while there are places");
        for _ in 30..35 {
            table.insert(newcomer(11));
        }
        let own = Claimant::Client(newcomer(11).origin);
        for (name, newcomer, expect) in [
            ("another client", newcomer(20), Room::Free),
            ("the client", newcomer(11), Room::OverShare(own, true)),
            ("its network", newcomer(12), Room::OverShare(Claimant::Network(newcomer(12).origin), true)),
            ("a proxy", Newcomer::default(), Room::Free),
        ] {
            assert_eq!(table.room(newcomer, shares, 40), expect, "{name}");
        }
        let none = Shares { client: None, network: None };
        assert_eq!(table.room(newcomer(11), none, 40), Room::Free, "where there are no shares");
        for client in 35..40 {
            table.insert(newcomer(client * 10));
        }
        assert_eq!(table.room(newcomer(11), shares, 40), Room::OverShare(own, false));
        assert_eq!(table.room(newcomer(20), shares, 40), Room::None);
        pass(&mut table, 5, &[(3, 200_000)]);
        assert_eq!(table.make_room_within(own, newcomer(11), true, |_| {}), 1);
        assert_eq!(
            verdicts(&mut table).iter().rposition(|verdict| *verdict == EVICTED).map(|slot| slot < 30),
            Some(true)
        );
        for slot in 0..30 {
            table.enter(slot, ConnectionStage::Answer, None, Waker::noop());
        }
        let idle: Vec<u32> = (30..35).collect();
        idle.iter().for_each(|slot| table.remove(*slot));
        assert_eq!(table.make_room_within(own, newcomer(11), false, |_| {}), 0, "those that wait for handlers stay");
    }

    #[test]
    fn a_look_that_finds_nothing_is_not_repeated_for_each_newcomer() {
        let mut table = table_of(&[(ConnectionStage::Answer, 9, 11); 640]);
        let own = Claimant::Client(newcomer(11).origin);
        let look = |table: &mut ConnectionTable| table.make_room_within(own, newcomer(11), false, |_| {});
        assert_eq!(look(&mut table), 0);
        table.enter(7, ConnectionStage::Idle, Some(9), Waker::noop());
        for number in 0..640 / LOOKS_PART {
            assert_eq!(look(&mut table), 0, "{number}");
        }
        assert_eq!(look(&mut table), 1);
    }

    #[test]
    fn a_client_that_holds_little_is_served_in_a_network_that_holds_much() {
        let mut table = table_of(&[(ConnectionStage::Answer, 9, 11); 80]);
        let neighbour = newcomer(12);
        let network = Claimant::Network(neighbour.origin);
        assert_eq!(table.make_room_within(network, neighbour, true, |_| {}), 0, "while there are places");
        assert_eq!(table.make_room_within(network, neighbour, false, |_| {}), 1);
        let client = Claimant::Client(newcomer(11).origin);
        assert_eq!(table.make_room_within(client, newcomer(11), false, |_| {}), 0);
    }

    #[test]
    fn listeners_for_monitoring_have_places_of_their_own() {
        let shares = Shares::of(20, true, true);
        let mut table = table_of(&[(ConnectionStage::Content, 9, 10); 20]);
        let reserved = Newcomer { is_reserved: true, ..newcomer(10) };
        for _ in 0..RESERVED_PLACES {
            assert_eq!(table.room(reserved, shares, 20), Room::Free);
            let slot = table.insert(reserved);
            table.enter(slot, ConnectionStage::Idle, Some(1), Waker::noop());
        }
        assert_eq!(table.room(reserved, shares, 20), Room::None);
        assert_eq!(table.make_room(newcomer(20), |stage| assert_eq!(stage, ConnectionStage::Content)), 1);
        assert_eq!(table.make_room(reserved, |stage| assert_eq!(stage, ConnectionStage::Idle)), 1);
        let mut verdicts = verdicts(&mut table).into_iter();
        assert_eq!(verdicts.by_ref().take(20).flatten().count(), 1);
        let slot = 20 + verdicts.position(|verdict| verdict == EVICTED).unwrap();
        table.remove(slot as u32);
        assert_eq!(table.room(reserved, shares, 20), Room::Free);
    }

    /// A slow client does not start a new grace period with each byte.
    #[test]
    fn a_byte_now_and_then_does_not_look_like_a_beginning() {
        let mut table = table(&[(ConnectionStage::Content, 9), (ConnectionStage::Content, 9)]);
        for _ in 0..5 {
            pass(&mut table, 1, &[(0, 1)]);
            table.enter(0, ConnectionStage::Idle, None, Waker::noop());
            table.enter(0, ConnectionStage::Content, Some(99), Waker::noop());
        }
        // Another request whose content is being received.
        table.enter(1, ConnectionStage::Idle, Some(99), Waker::noop());
        table.enter(1, ConnectionStage::Content, Some(99), Waker::noop());
        assert_eq!(evict_all_for(&mut table, newcomer(0)), [0, 1]);
    }

    #[test]
    fn places_of_clients_that_a_proxy_names() {
        let mut table = ConnectionTable::default();
        let shares = Shares { client: Some(2), network: None };
        for _ in 0..8 {
            table.insert(Newcomer::default());
        }
        assert_eq!(table.room(newcomer(1), shares, 8), Room::None);
        table.set_origin(0, newcomer(1).origin);
        table.set_origin(1, newcomer(1).origin);
        assert_eq!(table.room(newcomer(1), shares, 8), Room::OverShare(Claimant::Client(newcomer(1).origin), false));
        table.remove(0);
        assert_eq!(table.room(newcomer(1), shares, 8), Room::Free);
    }
}
