//! Many members with a simulated store, in virtual time: slow and lost messages, partitions, clocks that are wrong and run at
//! different rates, crashes at any step. The store stops, is wiped, gives a wrong value once, and has values of another program. The
//! same seed gives the same run.
//!
//! After each step it checks that at most one member keeps house, and that each step of a rollout happens once, in its order. At
//! the end, no purge is lost. All members agree on the latest event of each topic, and have the configuration that the latest
//! rollout wants.

pub(super) mod network;
pub(super) mod random;
pub mod sizing;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use self::network::SimulatedStore;
use self::random::Random;
use super::{
    Action, EventCursor, InstanceTime, Member, MemberPart, MemberSettings, RolloutSettings, StoreReply, StoreRequest,
    StoreResult, UnknownOutcome,
};

/// Unix time at which a run begins, in milliseconds.
const UNIX_MS: u64 = 1_800_000_000_000;

/// Longest time that members have to agree after the last fault.
const SETTLE: Duration = Duration::from_secs(120);

/// Conditions of a run.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Number of members.
    pub members: usize,
    /// Time with faults.
    pub time: Duration,
    /// Shortest and longest time of a message in one direction.
    pub latency: (Duration, Duration),
    /// Messages that are lost, in per mille.
    pub loss_per_mille: u64,
    /// Time after which a member stops waiting for a reply.
    pub timeout: Duration,
    /// Interval between two reads of events.
    pub poll_interval: Duration,
    /// Time of leases.
    pub lease_time: Duration,
    /// Purges by all members in one second, at most.
    pub purges_per_second: u64,
    /// Mean time between crashes of any member; a member starts again after some seconds. `None` for no crashes.
    pub crash_interval: Option<Duration>,
    /// Mean time between partitions of single members from the store.
    pub partition_interval: Option<Duration>,
    /// Mean time between stops of the store, of some seconds.
    pub stop_interval: Option<Duration>,
    /// Mean time between losses of all values of the store.
    pub wipe_interval: Option<Duration>,
    /// Mean time between values of another program, at a key that members use.
    pub foreign_interval: Option<Duration>,
    /// Reads of events that give a wrong value once, in per mille.
    pub lies_per_mille: u64,
    /// Mean time between attempts of operators to begin a rollout; every third configuration is rejected by all members.
    pub rollout_interval: Option<Duration>,
    /// Largest difference of a clock from the true time.
    pub skew_max: Duration,
    /// Time that members have to agree after the last fault.
    pub settle: Duration,
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Breach of an invariant, if there was one.
    pub fault: Option<String>,
    /// Events that were published, purges and others.
    pub purges: u64,
    /// Times from a purge to its application by another member that could reach the store, in milliseconds, sorted.
    pub delays_ms: Vec<u64>,
    /// Requests that the store got.
    pub requests: u64,
    /// Virtual time, with the time to settle.
    pub time: Duration,
    /// Crashes, partitions, stops, wipes, and values of another program.
    pub faults_made: [u64; 5],
    /// Rollouts that began, reached all members, and were returned.
    pub rollouts: [u64; 3],
}

impl Conditions {
    /// Conditions of a quiet network with a store such as Valkey.
    pub fn calm(members: usize) -> Self {
        Self {
            members,
            time: Duration::from_secs(60),
            latency: (Duration::from_micros(200), Duration::from_millis(3)),
            loss_per_mille: 0,
            timeout: Duration::from_secs(2),
            poll_interval: Duration::from_millis(250),
            lease_time: Duration::from_secs(15),
            purges_per_second: 5,
            crash_interval: None,
            partition_interval: None,
            stop_interval: None,
            wipe_interval: None,
            foreign_interval: None,
            lies_per_mille: 0,
            rollout_interval: None,
            skew_max: Duration::from_millis(50),
            settle: SETTLE,
        }
    }

    /// Conditions with all kinds of faults.
    pub fn hostile(members: usize) -> Self {
        Self {
            latency: (Duration::from_micros(200), Duration::from_millis(80)),
            loss_per_mille: 20,
            crash_interval: Some(Duration::from_secs(3)),
            partition_interval: Some(Duration::from_secs(5)),
            stop_interval: Some(Duration::from_secs(15)),
            wipe_interval: Some(Duration::from_secs(40)),
            foreign_interval: Some(Duration::from_secs(3)),
            lies_per_mille: 10,
            rollout_interval: Some(Duration::from_secs(10)),
            skew_max: Duration::from_secs(120),
            ..Self::calm(members)
        }
    }
}

impl Outcome {
    /// Delay that this share of purges does not exceed, in milliseconds.
    pub fn delay_ms(&self, share: f64) -> u64 {
        let index = (self.delays_ms.len().saturating_sub(1) as f64 * share) as usize;
        self.delays_ms.get(index).copied().unwrap_or(0)
    }

    /// Requests to the store in a second.
    pub fn requests_per_second(&self) -> f64 {
        self.requests as f64 / self.time.as_secs_f64().max(0.001)
    }
}

/// Runs members under these conditions.
pub fn run(seed: u64, conditions: &Conditions) -> Outcome {
    let mut world = World::new(seed, conditions);
    world.run();
    world.outcome
}

/// Something that happens at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Happening {
    Wake { member: usize, life: u64 },
    Arrive { member: usize, life: u64, part: MemberPart, request: StoreRequest, number: u64 },
    Reply { member: usize, life: u64, part: MemberPart, number: u64, result: StoreResult },
    Publish,
    Crash,
    Start { member: usize },
    Partition,
    Heal { member: usize },
    Stop,
    Continue,
    Wipe,
    Foreign,
    Rollout,
}

/// Member with its clock and what it has applied.
struct Host {
    member: Option<Member>,
    /// Number of starts; messages of earlier lives are dropped.
    life: u64,
    /// Monotonic clock less true time, and its rate in parts per million.
    offset: Duration,
    rate_ppm: i64,
    skew_ms: i64,
    is_cut_off: bool,
    /// Numbers of the request in flight, by part.
    in_flight: BTreeMap<MemberPart, u64>,
    /// Position that survives a crash.
    saved: Option<EventCursor>,
    purges: BTreeSet<u64>,
    topics: BTreeMap<String, String>,
    /// Time of its last fault, by which delays are judged.
    disturbed_at: Duration,
    wakes_at: Option<Duration>,
    /// True if the latest read of events gave a wrong value.
    was_lied_to: bool,
}

struct World<'a> {
    conditions: &'a Conditions,
    random: Random,
    now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    sequence: u64,
    hosts: Vec<Host>,
    store: SimulatedStore,
    is_stopped: bool,
    waiting: Vec<Happening>,
    store_disturbed_at: Duration,
    /// Time of each purge, with the host that published it and its life.
    purges: BTreeMap<u64, (Duration, usize, u64)>,
    outcome: Outcome,
    end: Duration,
}

impl<'a> World<'a> {
    fn new(seed: u64, conditions: &'a Conditions) -> Self {
        let mut world = Self {
            conditions,
            random: Random::new(seed),
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            sequence: 0,
            hosts: Vec::new(),
            store: SimulatedStore::default(),
            is_stopped: false,
            waiting: Vec::new(),
            store_disturbed_at: Duration::ZERO,
            purges: BTreeMap::new(),
            outcome: Outcome::default(),
            end: conditions.time,
        };
        for member in 0..conditions.members {
            let skew = conditions.skew_max.as_millis() as u64;
            let host = Host {
                member: None,
                life: 0,
                offset: Duration::from_millis(world.random.below(1_000_000)),
                rate_ppm: world.random.below(400) as i64 - 200,
                skew_ms: world.random.below(2 * skew + 1) as i64 - skew as i64,
                is_cut_off: false,
                in_flight: BTreeMap::new(),
                saved: None,
                purges: BTreeSet::new(),
                topics: BTreeMap::new(),
                disturbed_at: Duration::ZERO,
                wakes_at: None,
                was_lied_to: false,
            };
            world.hosts.push(host);
            let at = Duration::from_millis(world.random.below(1_000));
            world.schedule(at, Happening::Start { member });
        }
        world.schedule(Duration::from_secs(20), Happening::Publish);
        let faults = [
            (conditions.crash_interval, Happening::Crash),
            (conditions.partition_interval, Happening::Partition),
            (conditions.stop_interval, Happening::Stop),
            (conditions.wipe_interval, Happening::Wipe),
            (conditions.foreign_interval, Happening::Foreign),
            (conditions.rollout_interval, Happening::Rollout),
        ];
        for (interval, happening) in faults {
            if let Some(interval) = interval {
                world.schedule_within(interval, happening);
            }
        }
        world
    }

    fn schedule(&mut self, at: Duration, happening: Happening) {
        self.sequence += 1;
        self.queue.push(Reverse((at, self.sequence)));
        self.happenings.insert(self.sequence, happening);
    }

    fn schedule_within(&mut self, mean: Duration, happening: Happening) {
        let milliseconds = 1 + self.random.below(2 * mean.as_millis() as u64);
        self.schedule(self.now + Duration::from_millis(milliseconds), happening);
    }

    fn run(&mut self) {
        let settled = self.end + self.conditions.settle;
        while let Some(Reverse((at, number))) = self.queue.pop() {
            if at > settled || self.outcome.fault.is_some() {
                break;
            }
            self.now = at;
            let Some(happening) = self.happenings.remove(&number) else { continue };
            self.happen(happening);
        }
        self.outcome.time = self.now;
        self.outcome.requests = self.store.requests;
        let [_, done, returned] = &mut self.outcome.rollouts;
        (*done, *returned) = self.store.rollouts_ended;
        self.outcome.delays_ms.sort_unstable();
        if self.outcome.fault.is_none() {
            self.outcome.fault = self.store.fault.take().or_else(|| self.disagreement());
        }
    }

    fn local_now(&self, member: usize) -> InstanceTime {
        let host = &self.hosts[member];
        let elapsed = self.now.as_micros() as i64;
        host.offset + Duration::from_micros((elapsed + elapsed / 1_000_000 * host.rate_ppm).unsigned_abs())
    }

    fn unix_ms(&self, member: usize) -> u64 {
        (UNIX_MS as i64 + self.now.as_millis() as i64 + self.hosts[member].skew_ms).unsigned_abs()
    }

    fn happen(&mut self, happening: Happening) {
        let has_faults = self.now < self.end;
        let acting = match &happening {
            Happening::Wake { member, .. } | Happening::Reply { member, .. } => Some(*member),
            _ => None,
        };
        match happening {
            Happening::Start { member } => self.start(member),
            Happening::Wake { member, life } => {
                if self.hosts[member].life == life {
                    self.hosts[member].wakes_at = None;
                    self.drive(member);
                }
            }
            arrival @ Happening::Arrive { .. } => match self.is_stopped {
                true => self.waiting.push(arrival),
                false => self.serve(arrival),
            },
            Happening::Reply { member, life, part, number, result } => {
                let host = &mut self.hosts[member];
                if host.life != life || host.in_flight.get(&part) != Some(&number) {
                    return;
                }
                host.in_flight.remove(&part);
                let (now, unix_ms) = (self.local_now(member), self.unix_ms(member));
                if let Some(instance) = &mut self.hosts[member].member {
                    instance.handle_reply(now, unix_ms, part, result);
                }
                self.drive(member);
            }
            Happening::Publish => {
                if has_faults {
                    self.publish();
                    let pause = 1_000 / self.conditions.purges_per_second.max(1);
                    self.schedule_within(Duration::from_millis(pause), Happening::Publish);
                }
            }
            Happening::Crash => {
                if has_faults {
                    self.crash();
                    self.schedule_within(self.conditions.crash_interval.unwrap_or_default(), Happening::Crash);
                }
            }
            Happening::Partition => {
                if has_faults {
                    let member = self.random.below(self.hosts.len() as u64) as usize;
                    self.outcome.faults_made[1] += 1;
                    self.hosts[member].is_cut_off = true;
                    self.hosts[member].disturbed_at = self.now;
                    self.schedule_within(Duration::from_secs(10), Happening::Heal { member });
                    self.schedule_within(self.conditions.partition_interval.unwrap_or_default(), Happening::Partition);
                }
            }
            Happening::Heal { member } => {
                self.hosts[member].is_cut_off = false;
                self.hosts[member].disturbed_at = self.now;
            }
            Happening::Stop => {
                if has_faults {
                    self.outcome.faults_made[2] += 1;
                    self.is_stopped = true;
                    self.schedule_within(Duration::from_secs(4), Happening::Continue);
                    self.schedule_within(self.conditions.stop_interval.unwrap_or_default(), Happening::Stop);
                }
            }
            Happening::Continue => {
                self.is_stopped = false;
                self.store_disturbed_at = self.now;
                let waiting = std::mem::take(&mut self.waiting);
                waiting.into_iter().for_each(|arrival| self.serve(arrival));
            }
            Happening::Wipe => {
                if has_faults {
                    self.outcome.faults_made[3] += 1;
                    self.store.wipe();
                    self.store_disturbed_at = self.now;
                    self.schedule_within(self.conditions.wipe_interval.unwrap_or_default(), Happening::Wipe);
                }
            }
            Happening::Foreign => {
                if has_faults {
                    self.outcome.faults_made[4] += 1;
                    self.put_foreign();
                    self.schedule_within(self.conditions.foreign_interval.unwrap_or_default(), Happening::Foreign);
                }
            }
            Happening::Rollout => {
                if has_faults {
                    self.begin_rollout();
                    self.schedule_within(self.conditions.rollout_interval.unwrap_or_default(), Happening::Rollout);
                }
            }
        }
        // Only a member that has just acted can be a second one.
        if acting.is_some_and(|member| self.is_housekeeper(member)) {
            self.check_housekeepers();
        }
    }

    fn start(&mut self, index: usize) {
        let settings = MemberSettings {
            name: format!("host-{index}"),
            id: format!("host-{index}-{}", self.hosts[index].life + 1),
            poll_interval: self.conditions.poll_interval,
            lease_time: self.conditions.lease_time,
            has_tickets: true,
            has_events: true,
            has_rollouts: self.conditions.rollout_interval.is_some(),
        };
        let mut random = Random::new(self.random.below(u64::MAX));
        let entropy = Box::new(move || {
            let mut bytes = [0; 48];
            bytes.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
            bytes
        });
        let host = &mut self.hosts[index];
        host.life += 1;
        host.in_flight.clear();
        host.topics.clear();
        host.wakes_at = None;
        host.disturbed_at = self.now;
        // Half of them have a cache on disk, and so continue where they were.
        let cursor = if index.is_multiple_of(2) { host.saved.clone() } else { None };
        host.member = Some(Member::new(settings, cursor, entropy));
        self.drive(index);
    }

    fn crash(&mut self) {
        let member = self.random.below(self.hosts.len() as u64) as usize;
        let host = &mut self.hosts[member];
        if host.member.take().is_some() {
            self.outcome.faults_made[0] += 1;
            host.life += 1;
            self.schedule_within(Duration::from_secs(5), Happening::Start { member });
        }
    }

    fn publish(&mut self) {
        let member = self.random.below(self.hosts.len() as u64) as usize;
        let (unix_ms, number) = (self.unix_ms(member), self.outcome.purges + 1);
        let topic = (self.random.below(3) == 0).then(|| format!("topic-{}", self.random.below(5)));
        let Host { member: Some(instance), life, purges, topics, .. } = &mut self.hosts[member] else { return };
        let is_published = instance.publish(unix_ms, topic.clone(), None, number.to_string()).is_ok();
        if is_published {
            self.outcome.purges += 1;
            match topic {
                Some(topic) => _ = topics.insert(topic, number.to_string()),
                None => {
                    purges.insert(number);
                    let life = *life;
                    self.purges.insert(number, (self.now, member, life));
                }
            }
        }
        self.drive(member);
    }

    /// Another program writes to a key of the members, mostly that of the next event.
    fn put_foreign(&mut self) {
        let value = match self.random.below(3) {
            0 => Vec::new(),
            1 => b"garbage".to_vec(),
            _ => br#"{"epoch":"x","oldest":18446744073709551615,"removed":0,"owner":"x","token":18446744073709551615,"beat":0,"time_ms":0}"#
                .to_vec(),
        };
        match self.random.below(8) {
            0 => self.store.put_foreign("meta", value),
            1 => self.store.put_foreign("leases/housekeeper", value),
            2 => self.store.put_foreign("tickets", value),
            _ => (0..=self.random.below(3)).for_each(|_| self.store.put_next_event(value.clone())),
        }
        // Members that know the events replace `meta`, and read them again.
        self.store_disturbed_at = self.now;
    }

    /// An operator begins a rollout, unless one is in progress.
    fn begin_rollout(&mut self) {
        let number = self.random.below(1_000_000);
        let text = Some(if number.is_multiple_of(3) { format!("bad {number}") } else { number.to_string() });
        let settings = RolloutSettings { first_per_mille: 300, errors_per_mille_max: 20, watch_seconds: 5 };
        if self.store.begin_rollout(text, settings) {
            self.outcome.rollouts[0] += 1;
        }
    }

    /// Lets a member act, and sends its requests.
    fn drive(&mut self, index: usize) {
        let (now, unix_ms) = (self.local_now(index), self.unix_ms(index));
        loop {
            let Some(member) = &mut self.hosts[index].member else { return };
            let actions = member.poll(now, unix_ms);
            if actions.is_empty() {
                break;
            }
            actions.into_iter().for_each(|action| self.act(index, action));
        }
        let Some(member) = &self.hosts[index].member else { return };
        let cursor = member.cursor().cloned();
        let wake = member.next_wake();
        let host = &mut self.hosts[index];
        host.saved = cursor.or(host.saved.take());
        if let Some(wake) = wake {
            // At least a millisecond later, whatever the rate of the clock.
            let at = self.now + wake.saturating_sub(now).max(Duration::from_millis(1));
            if host.wakes_at.is_none_or(|known| at < known) {
                host.wakes_at = Some(at);
                let life = host.life;
                self.schedule(at, Happening::Wake { member: index, life });
            }
        }
    }

    fn act(&mut self, index: usize, action: Action) {
        match action {
            Action::Request(part, request) => {
                let number = self.sequence + 1;
                let life = self.hosts[index].life;
                self.hosts[index].in_flight.insert(part, number);
                if !self.is_lost(index) {
                    let at = self.now + self.delay();
                    self.schedule(at, Happening::Arrive { member: index, life, part, request, number });
                }
                let at = self.now + self.conditions.timeout;
                let unknown = Happening::Reply { member: index, life, part, number, result: Err(UnknownOutcome) };
                self.schedule(at, unknown);
            }
            Action::Apply(event) => {
                let host = &mut self.hosts[index];
                if let Some(topic) = event.topic {
                    host.topics.insert(topic, event.payload);
                } else if let Ok(number) = event.payload.parse() {
                    host.purges.insert(number);
                    let calm_since = host.disturbed_at.max(self.store_disturbed_at) + Duration::from_secs(3);
                    if let Some((published, ..)) = self.purges.get(&number).filter(|(at, ..)| *at > calm_since) {
                        self.outcome.delays_ms.push((self.now - *published).as_millis() as u64);
                    }
                }
            }
            Action::Resync => {
                let host = &mut self.hosts[index];
                host.purges.extend(self.purges.keys().copied());
            }
            Action::UseTickets(_) | Action::Keep(_) => {}
            Action::Configure(change) => {
                let is_bad = change.text.as_ref().is_some_and(|text| text.starts_with("bad"));
                let result = if is_bad { Err("bad".to_owned()) } else { Ok(()) };
                if let Some(member) = &mut self.hosts[index].member {
                    member.on_applied(change, result);
                }
            }
        }
    }

    fn is_lost(&mut self, member: usize) -> bool {
        self.hosts[member].is_cut_off
            || (self.now < self.end && self.random.below(1_000) < self.conditions.loss_per_mille)
    }

    fn delay(&mut self) -> Duration {
        let (least, most) = self.conditions.latency;
        let spread = (most - least).as_micros() as u64;
        // Mostly short, sometimes long.
        let part = self.random.below(1_000_000) as f64 / 1_000_000.0;
        least + Duration::from_micros((spread as f64 * part * part * part) as u64)
    }

    fn serve(&mut self, arrival: Happening) {
        let Happening::Arrive { member, life, part, request, number } = arrival else { return };
        let unix_ms = UNIX_MS + self.now.as_millis() as u64;
        let may_lie = part == MemberPart::Events && !self.hosts[member].was_lied_to;
        let mut result = Ok(self.store.carry_out(request, unix_ms));
        if part == MemberPart::Events {
            self.hosts[member].was_lied_to = false;
        }
        if let Ok(StoreReply::Entry(Some((value, _)))) = &mut result
            && may_lie
            && self.now < self.end
            && self.random.below(1_000) < self.conditions.lies_per_mille
        {
            *value = b"<html>".to_vec();
            self.hosts[member].was_lied_to = true;
        }
        if !self.is_lost(member) {
            let at = self.now + self.delay();
            self.schedule(at, Happening::Reply { member, life, part, number, result });
        }
    }

    fn is_housekeeper(&self, index: usize) -> bool {
        let member = self.hosts[index].member.as_ref();
        member.is_some_and(|member| member.is_housekeeper(self.local_now(index)))
    }

    fn check_housekeepers(&mut self) {
        let holders: Vec<usize> = (0..self.hosts.len()).filter(|index| self.is_housekeeper(*index)).collect();
        if holders.len() > 1 {
            self.outcome.fault = Some(format!("{holders:?} keep house at {:?}", self.now));
        }
    }

    /// Member that has another configuration than the latest rollout wants.
    fn straggler(&self) -> Option<String> {
        let rollout = self.store.rollout()?;
        if rollout.stage.is_in_progress() {
            return Some(format!("rollout {} did not end", rollout.number));
        }
        let running = self.hosts.iter().enumerate().filter_map(|(index, host)| Some((index, host.member.as_ref()?)));
        let mut others = running.filter(|(_, member)| {
            member.applied_config() != rollout.text_for(&member.settings().id).map(String::as_str)
        });
        others.next().map(|(index, member)| format!("member {index} has {:?}: {rollout:?}", member.applied_config()))
    }

    /// Purges that a running member lacks, or topics on which members do not agree.
    fn disagreement(&self) -> Option<String> {
        if let Some(straggler) = self.straggler() {
            return Some(straggler);
        }
        let running = self.hosts.iter().enumerate().filter(|(_, host)| host.member.is_some());
        let mut topics: Option<(usize, &BTreeMap<String, String>)> = None;
        for (index, host) in running {
            for (number, (at, publisher, life)) in &self.purges {
                let is_alive = self.hosts[*publisher].life == *life;
                let is_known = self.store.has_seen(*number) || is_alive;
                if is_known && !host.purges.contains(number) {
                    return Some(format!("member {index} lacks purge {number} of member {publisher} at {at:?}"));
                }
            }
            if self.conditions.wipe_interval.is_some() {
                continue;
            }
            match topics {
                Some((other, known)) if *known != host.topics => {
                    return Some(format!("members {other} and {index} differ: {known:?}, {:?}", host.topics));
                }
                _ => topics = Some((index, &host.topics)),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(seed: u64, conditions: &Conditions) -> Outcome {
        let outcome = run(seed, conditions);
        assert_eq!(outcome.fault, None, "seed {seed}, {conditions:?}");
        outcome
    }

    /// Few seeds; `cargo xtask simulate` runs thousands.
    #[test]
    fn members_survive_all_faults() {
        let (mut made, mut rollouts) = ([0; 5], [0; 3]);
        for seed in 0..12 {
            let outcome = check(seed, &Conditions::hostile(3 + seed as usize % 5));
            outcome.faults_made.iter().zip(&mut made).for_each(|(more, sum)| *sum += more);
            outcome.rollouts.iter().zip(&mut rollouts).for_each(|(more, sum)| *sum += more);
        }
        assert!(made.iter().chain(&rollouts).all(|count| *count > 0), "{made:?} {rollouts:?}");
    }

    #[test]
    fn members_agree_on_topics_if_the_store_keeps_its_values() {
        for seed in 100..110 {
            check(seed, &Conditions { wipe_interval: None, ..Conditions::hostile(4) });
        }
    }

    #[test]
    fn purges_reach_all_members_within_a_second() {
        let outcome = check(1, &Conditions { purges_per_second: 20, ..Conditions::calm(10) });
        assert!(outcome.delays_ms.len() > 1_000, "{}", outcome.delays_ms.len());
        assert!(outcome.delay_ms(1.0) < 1_000, "{} ms", outcome.delay_ms(1.0));
    }

    /// More events than the store keeps, so that old ones are removed, and the latest of each topic go on.
    #[test]
    fn old_events_are_removed_and_topics_stay() {
        let conditions = Conditions { time: Duration::from_secs(90), purges_per_second: 40, ..Conditions::calm(3) };
        let outcome = check(2, &conditions);
        assert!(outcome.purges > 2_000, "{}", outcome.purges);
        let crashing = Conditions { crash_interval: Some(Duration::from_secs(8)), ..conditions };
        check(3, &crashing);
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let runs = [(); 2].map(|()| run(9, &Conditions::hostile(5)));
        assert_eq!((runs[0].requests, &runs[0].delays_ms), (runs[1].requests, &runs[1].delays_ms));
    }
}
