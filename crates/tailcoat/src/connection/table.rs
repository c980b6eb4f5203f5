use std::task::Waker;

use crate::metrics::StageCounts;

/// The open connections of a worker: what each awaits, until when, and how to wake it.
///
/// Deadlines are looked at in turns instead of each having a timer: setting one is a store, and a connection that has
/// none pending costs 32 bytes here and nothing in the runtime.
#[derive(Debug, Default)]
pub struct ConnectionTable {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Where the next sweep goes on.
    sweep_at: usize,
}

/// What a connection awaits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The first byte of a request: such a connection may be closed to make room.
    Idle,
    /// The same, since a moment ago; after that moment it gives memory back, and then is idle.
    Resting,
    /// The rest of a head.
    Head,
    /// Content of a request.
    Content,
    /// A handler's answer. It has its own limits.
    Answer,
    /// The client to take what is sent.
    Write,
    /// The client to end, after the last answer.
    Linger,
    /// Either end of a tunnel to send something.
    Tunnel,
}

/// Why a connection was woken out of turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its deadline has passed.
    TimedOut,
    /// Its place is needed.
    Evicted,
    /// Clients hold too much memory, and its client more than others.
    Shed,
}

#[derive(Debug)]
struct Entry {
    deadline_ms: u64,
    waker: Option<Waker>,
    stage: Stage,
    verdict: Option<Verdict>,
    is_free: bool,
}

const NEVER: u64 = u64::MAX;

/// Sweeps that make a round: a deadline is noticed after this many at the latest.
pub const SWEEPS_A_ROUND: usize = 10;

impl ConnectionTable {
    /// Number of open connections.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether no connection is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many connections await what.
    pub fn stages(&self) -> StageCounts {
        let mut counts = StageCounts::default();
        for entry in self.entries.iter().filter(|entry| !entry.is_free) {
            *match entry.stage {
                Stage::Idle | Stage::Resting => &mut counts.idle,
                Stage::Head => &mut counts.reading_head,
                Stage::Content => &mut counts.reading_content,
                Stage::Answer => &mut counts.answering,
                Stage::Write => &mut counts.writing,
                Stage::Linger => &mut counts.lingering,
                Stage::Tunnel => &mut counts.tunneling,
            } += 1;
        }
        counts
    }

    /// Adds a connection; returns its place.
    pub fn insert(&mut self) -> u32 {
        let entry = Entry { deadline_ms: NEVER, waker: None, stage: Stage::Idle, verdict: None, is_free: false };
        if let Some(slot) = self.free.pop() {
            self.entries[slot as usize] = entry;
            return slot;
        }
        self.entries.push(entry);
        self.entries.len() as u32 - 1
    }

    /// Frees a place.
    pub fn remove(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        entry.waker = None;
        entry.deadline_ms = NEVER;
        entry.is_free = true;
        self.free.push(slot);
    }

    /// Notes what a connection awaits from now on, and until when.
    pub fn enter(&mut self, slot: u32, stage: Stage, deadline_ms: Option<u64>, waker: &Waker) {
        let entry = &mut self.entries[slot as usize];
        entry.stage = stage;
        entry.deadline_ms = deadline_ms.unwrap_or(NEVER);
        // A task's waker stays the same as long as the task lives.
        if entry.waker.is_none() {
            entry.waker = Some(waker.clone());
        }
    }

    /// What a connection was last said to await.
    pub fn stage(&self, slot: u32) -> Stage {
        self.entries[slot as usize].stage
    }

    /// Why a connection was woken, if it was by this table.
    pub fn take_verdict(&mut self, slot: u32) -> Option<Verdict> {
        self.entries[slot as usize].verdict.take()
    }

    /// Wakes connections whose deadline has passed, looking at a tenth of all.
    pub fn sweep(&mut self, now_ms: u64) {
        let share = self.entries.len().div_ceil(SWEEPS_A_ROUND);
        for _ in 0..share {
            self.sweep_at = (self.sweep_at + 1) % self.entries.len();
            let entry = &mut self.entries[self.sweep_at];
            if entry.deadline_ms <= now_ms {
                entry.condemn(Verdict::TimedOut);
            }
        }
    }

    /// Wakes up to `count` connections to be closed: those that have been idle longest or, if none is idle, those that
    /// have been sending a head longest. Returns how many.
    pub fn make_room(&mut self, count: usize) -> usize {
        let stages = [Stage::Idle, Stage::Resting, Stage::Head];
        stages.into_iter().map(|stage| self.evict(stage, count)).find(|evicted| *evicted > 0).unwrap_or(0)
    }

    /// Wakes up to `count` connections at this stage to be closed, those with the earliest deadline first.
    fn evict(&mut self, stage: Stage, count: usize) -> usize {
        let mut idle: Vec<(u64, u32)> = self
            .entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| !entry.is_free && entry.stage == stage && entry.verdict.is_none())
            .map(|(slot, entry)| (entry.deadline_ms, slot as u32))
            .collect();
        let count = count.min(idle.len());
        if count == 0 {
            return 0;
        }
        // All have the same time-out, so that the earliest deadline is the least recently used.
        idle.select_nth_unstable(count - 1);
        for &(_, slot) in &idle[..count] {
            self.entries[slot as usize].condemn(Verdict::Evicted);
        }
        count
    }

    /// Wakes all idle connections to be closed: nothing more is awaited of them.
    pub fn evict_all_idle(&mut self) {
        self.evict(Stage::Idle, usize::MAX);
        self.evict(Stage::Resting, usize::MAX);
    }

    /// Wakes a connection to be closed, whatever it is in the middle of: it holds too much memory.
    pub fn shed(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        if !entry.is_free {
            entry.condemn(Verdict::Shed);
        }
    }

    /// Wakes all connections, to do what they find to be done.
    pub fn wake_all(&self) {
        self.entries.iter().filter_map(|entry| entry.waker.as_ref()).for_each(Waker::wake_by_ref);
    }
}

impl Entry {
    fn condemn(&mut self, verdict: Verdict) {
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

    fn table(stages: &[(Stage, u64)]) -> ConnectionTable {
        let mut table = ConnectionTable::default();
        for &(stage, deadline_ms) in stages {
            let slot = table.insert();
            table.enter(slot, stage, Some(deadline_ms), Waker::noop());
        }
        table
    }

    fn verdicts(table: &mut ConnectionTable) -> Vec<Option<Verdict>> {
        (0..table.entries.len()).map(|slot| table.take_verdict(slot as u32)).collect()
    }

    #[test]
    fn a_round_of_sweeps_finds_all_passed_deadlines() {
        let mut table = table(&[(Stage::Idle, 100); 25]);
        table.enter(3, Stage::Write, Some(101), Waker::noop());
        table.enter(4, Stage::Answer, None, Waker::noop());
        for _ in 0..SWEEPS_A_ROUND {
            table.sweep(100);
        }
        let timed_out = verdicts(&mut table).iter().filter(|verdict| **verdict == Some(Verdict::TimedOut)).count();
        assert_eq!(timed_out, 23);
    }

    #[test]
    fn the_longest_idle_are_evicted_first() {
        let mut table = table(&[(Stage::Idle, 30), (Stage::Head, 1), (Stage::Idle, 10), (Stage::Idle, 20)]);
        assert_eq!(table.make_room(2), 2);
        let evicted = Some(Verdict::Evicted);
        assert_eq!(verdicts(&mut table), [None, None, evicted, evicted]);
        table.remove(2);
        table.remove(3);
        table.remove(0);
        assert_eq!(table.make_room(9), 1, "a slow head, when nothing is idle");
    }

    #[test]
    fn places_are_used_again() {
        let mut table = table(&[(Stage::Idle, 1), (Stage::Idle, 2)]);
        table.remove(0);
        assert_eq!(table.make_room(9), 1);
        assert_eq!((table.insert(), table.len()), (0, 2));
    }
}
