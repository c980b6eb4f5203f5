//! Part of one instance in rollouts: follows the record, has its configuration applied, and plans steps as the housekeeper.

use std::collections::HashMap;
use std::time::Duration;

use super::beats::MemberRecord;
use super::rollout::{Rollout, RolloutHealth, RolloutMember, RolloutReport, RolloutStage, plan_step};
use super::{Expected, InstanceTime, StoreReply, StoreRequest, StoreResult};

/// Key of the record.
pub const ROLLOUT_KEY: &str = "rollout/current";

/// Folder of the records of instances.
const MEMBERS: &str = "members";

/// Interval of reads, and that while a rollout is in progress.
const IDLE_INTERVAL: Duration = Duration::from_secs(2);
const BUSY_INTERVAL: Duration = Duration::from_millis(500);

/// Wait after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Configuration that an instance must apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigChange {
    /// Number of the rollout.
    pub number: u64,
    /// Configuration; `None` is that of the instance's file.
    pub text: Option<String>,
}

/// Part of one instance in rollouts.
#[derive(Debug)]
pub(super) struct RolloutKeeper {
    id: String,
    in_flight: Option<InFlight>,
    next_at: InstanceTime,
    /// Record with its version.
    known: Option<(Rollout, String)>,
    /// Time when the stage was first seen.
    stage_since: InstanceTime,
    /// Configuration in use; `None` is that of the file.
    applied: Option<String>,
    /// Configuration that the next process begins with, which the caller has got; `None` is that of the file.
    kept: Option<String>,
    is_applying: bool,
    /// Result of the latest change that this stage wanted.
    result: Option<Result<(), String>>,
    /// Health since the start, and what it was at the beginning of the stage.
    health: RolloutHealth,
    health_before: RolloutHealth,
    /// Beats of instances: the one seen last, and since when.
    seen: HashMap<String, (u64, InstanceTime)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InFlight {
    Record,
    Members,
    Step,
}

impl RolloutKeeper {
    pub(super) fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            in_flight: None,
            next_at: InstanceTime::ZERO,
            known: None,
            stage_since: InstanceTime::ZERO,
            applied: None,
            kept: None,
            is_applying: false,
            result: None,
            health: RolloutHealth::default(),
            health_before: RolloutHealth::default(),
            seen: HashMap::new(),
        }
    }

    pub(super) fn next_wake(&self) -> Option<InstanceTime> {
        self.in_flight.is_none().then_some(self.next_at)
    }

    /// Reads the record as soon as possible.
    pub(super) fn hasten(&mut self) {
        self.next_at = InstanceTime::ZERO;
    }

    pub(super) fn set_health(&mut self, health: RolloutHealth) {
        self.health = health;
    }

    /// Report for the record of this instance.
    pub(super) fn report(&self) -> Option<RolloutReport> {
        let (rollout, _) = self.known.as_ref()?;
        Some(RolloutReport {
            number: rollout.number,
            stage: rollout.stage,
            result: self.result.clone(),
            health: self.health.since(self.health_before),
        })
    }

    pub(super) fn poll(&mut self, now: InstanceTime) -> Option<StoreRequest> {
        if self.in_flight.is_some() || now < self.next_at {
            return None;
        }
        self.in_flight = Some(InFlight::Record);
        Some(StoreRequest::Get(ROLLOUT_KEY.to_owned()))
    }

    /// Takes a reply; returns the configuration to apply, and the next request.
    pub(super) fn handle_reply(
        &mut self,
        now: InstanceTime,
        is_housekeeper: bool,
        result: StoreResult,
    ) -> (Option<ConfigChange>, Option<StoreRequest>) {
        let Some(what) = self.in_flight.take() else { return (None, None) };
        let is_busy = self.known.as_ref().is_some_and(|(rollout, _)| rollout.stage.is_in_progress());
        self.next_at = now + if is_busy { BUSY_INTERVAL } else { IDLE_INTERVAL };
        match (what, result) {
            (InFlight::Record, Ok(StoreReply::Entry(entry))) => {
                // A store that was wiped changes no configuration.
                let Some((value, version)) = entry else { return (None, None) };
                let Ok(rollout) = serde_json::from_slice::<Rollout>(&value) else { return (None, None) };
                let is_busy = rollout.stage.is_in_progress();
                let change = self.learn(now, rollout, version);
                if is_busy && is_housekeeper {
                    self.in_flight = Some(InFlight::Members);
                    return (change, Some(StoreRequest::List(MEMBERS.to_owned())));
                }
                (change, None)
            }
            (InFlight::Members, Ok(StoreReply::Entries(entries))) => {
                let request = self.plan(now, &entries);
                if request.is_some() {
                    self.in_flight = Some(InFlight::Step);
                }
                (None, request)
            }
            // The next read tells what is stored.
            (InFlight::Step, Ok(_)) => {
                self.next_at = now;
                (None, None)
            }
            _ => {
                self.next_at = now + RETRY;
                (None, None)
            }
        }
    }

    fn learn(&mut self, now: InstanceTime, rollout: Rollout, version: String) -> Option<ConfigChange> {
        // Each step changes the record. A store that was wiped counts from one again.
        let is_new = self.known.as_ref().is_none_or(|(known, _)| *known != rollout);
        let wanted = rollout.text_for(&self.id).cloned();
        let number = rollout.number;
        self.known = Some((rollout, version));
        if is_new {
            self.stage_since = now;
            self.health_before = self.health;
            self.result = None;
            self.seen.clear();
        }
        if self.is_applying || self.result.is_some() {
            return None;
        }
        if wanted == self.applied {
            self.result = Some(Ok(()));
            return None;
        }
        self.is_applying = true;
        Some(ConfigChange { number, text: wanted })
    }

    /// Takes the result of applying a configuration.
    pub(super) fn on_applied(&mut self, change: ConfigChange, result: Result<(), String>) {
        self.is_applying = false;
        self.hasten();
        if result.is_ok() {
            self.applied.clone_from(&change.text);
        }
        let wanted = self.known.as_ref().map(|(rollout, _)| (rollout.number, rollout.text_for(&self.id)));
        // A later stage may want another configuration by now.
        if wanted == Some((change.number, change.text.as_ref())) {
            self.result = Some(result);
            self.health_before = self.health;
        }
    }

    /// Begins with the configuration that an earlier process has kept. Returns the change to apply.
    pub(super) fn restore(&mut self, change: ConfigChange) -> ConfigChange {
        self.kept.clone_from(&change.text);
        self.is_applying = true;
        change
    }

    /// Configuration to keep for the next process, if that has changed: the one of a rollout that has ended. One that is in
    /// progress may be the reason why a process ends.
    pub(super) fn next_to_keep(&mut self) -> Option<ConfigChange> {
        let (rollout, _) = self.known.as_ref()?;
        if rollout.stage.is_in_progress() || self.result != Some(Ok(())) || self.kept == self.applied {
            return None;
        }
        self.kept.clone_from(&self.applied);
        Some(ConfigChange { number: rollout.number, text: self.applied.clone() })
    }

    /// Configuration in use; `None` is that of the file.
    pub(super) fn applied(&self) -> Option<&String> {
        self.applied.as_ref()
    }

    /// Request that takes the next step, if there is one.
    fn plan(&mut self, now: InstanceTime, entries: &[(String, Vec<u8>)]) -> Option<StoreRequest> {
        let (rollout, version) = self.known.as_ref()?;
        let mut members = Vec::new();
        for (_, value) in entries {
            let Ok(record) = serde_json::from_slice::<MemberRecord>(value) else { continue };
            let (beat, since) = self.seen.entry(record.id.clone()).or_insert((record.beat, now));
            if *beat != record.beat {
                (*beat, *since) = (record.beat, now);
            }
            let silence = now.saturating_sub(*since);
            let of_stage = (rollout.number, rollout.stage);
            let report = record.report.rollout.filter(|report| (report.number, report.stage) == of_stage);
            members.push(RolloutMember { id: record.id, silence, report });
        }
        let step = plan_step(rollout, &members, now.saturating_sub(self.stage_since));
        let next = rollout.after(step)?;
        let value = serde_json::to_vec(&next).unwrap_or_default();
        let expect = Expected::Version(version.clone());
        Some(StoreRequest::Put { key: ROLLOUT_KEY.to_owned(), value, expect })
    }

    /// Rollout that this instance knows.
    pub(super) fn known(&self) -> Option<&Rollout> {
        self.known.as_ref().map(|(rollout, _)| rollout)
    }

    /// Stage of the rollout that this instance knows.
    pub(super) fn stage(&self) -> Option<RolloutStage> {
        self.known.as_ref().map(|(rollout, _)| rollout.stage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::beats::BeatReport;
    use crate::rollout::RolloutSettings;

    /// Instances with a store without delay, in virtual time.
    struct Lab {
        now: InstanceTime,
        keepers: Vec<RolloutKeeper>,
        record: Option<(Vec<u8>, u64)>,
        /// Instances whose changes fail, and those that have ended.
        failing: Vec<usize>,
        ended: Vec<usize>,
        /// Texts applied by each instance, in order.
        applied: Vec<Vec<Option<String>>>,
        steps: Vec<RolloutStage>,
    }

    impl Lab {
        fn new(count: usize) -> Self {
            let keepers = (0..count).map(|number| RolloutKeeper::new(&format!("edge-{number}"))).collect();
            let (failing, ended, steps) = (Vec::new(), Vec::new(), Vec::new());
            let applied = vec![Vec::new(); count];
            Self { now: InstanceTime::ZERO, keepers, record: None, failing, ended, applied, steps }
        }

        fn begin(&mut self, text: &str) -> Vec<usize> {
            let ids: Vec<String> = self.keepers.iter().map(|keeper| keeper.id.clone()).collect();
            let before = self.record.as_ref().map(|(value, _)| serde_json::from_slice::<Rollout>(value).unwrap());
            let settings = RolloutSettings { first_per_mille: 300, errors_per_mille_max: 20, watch_seconds: 25 };
            let rollout = Rollout::begin(before.as_ref(), Some(text.to_owned()), &ids, settings, 0).unwrap();
            let version = self.record.as_ref().map_or(1, |(_, version)| version + 1);
            self.record = Some((serde_json::to_vec(&rollout).unwrap(), version));
            rollout.first.iter().map(|id| ids.iter().position(|known| known == id).unwrap()).collect()
        }

        fn members(&self) -> Vec<(String, Vec<u8>)> {
            let record = |(index, keeper): (usize, &RolloutKeeper)| {
                let is_alive = !self.ended.contains(&index);
                let record = MemberRecord {
                    name: keeper.id.clone(),
                    id: keeper.id.clone(),
                    beat: if is_alive { self.now.as_secs() / 5 } else { 0 },
                    unix_ms: 0,
                    skew_ms: None,
                    next_event: None,
                    waiting_events: 0,
                    report: BeatReport { rollout: keeper.report(), ..BeatReport::default() },
                };
                (format!("{MEMBERS}/{}", keeper.id), serde_json::to_vec(&record).unwrap())
            };
            self.keepers.iter().enumerate().map(record).collect()
        }

        /// Runs for some time; instance 0 keeps house, and 1 believes that it does, too.
        fn run(&mut self, seconds: u64) {
            let end = self.now + Duration::from_secs(seconds);
            while self.now < end {
                self.now += Duration::from_millis(100);
                for index in (0..self.keepers.len()).filter(|index| !self.ended.contains(index)).collect::<Vec<_>>() {
                    let mut request = self.keepers[index].poll(self.now);
                    while let Some(sent) = request.take() {
                        let reply = match sent {
                            StoreRequest::Get(_) => StoreReply::Entry(
                                self.record.as_ref().map(|(value, version)| (value.clone(), version.to_string())),
                            ),
                            StoreRequest::List(_) => StoreReply::Entries(self.members()),
                            StoreRequest::Put { value, expect, .. } => match &self.record {
                                Some((_, version)) if expect == Expected::Version(version.to_string()) => {
                                    self.steps.push(serde_json::from_slice::<Rollout>(&value).unwrap().stage);
                                    self.record = Some((value, version + 1));
                                    StoreReply::Done(String::new())
                                }
                                _ => StoreReply::Conflict,
                            },
                            other => panic!("{other:?}"),
                        };
                        let (change, next) = self.keepers[index].handle_reply(self.now, index < 2, Ok(reply));
                        request = next;
                        if let Some(change) = change {
                            let fails = self.failing.contains(&index) && change.text.is_some();
                            if !fails {
                                self.applied[index].push(change.text.clone());
                            }
                            let result = if fails { Err("no".to_owned()) } else { Ok(()) };
                            self.keepers[index].on_applied(change, result);
                        }
                    }
                }
            }
        }
    }

    fn text(name: &str) -> Option<String> {
        Some(name.to_owned())
    }

    #[test]
    fn a_configuration_reaches_all() {
        let mut lab = Lab::new(10);
        let first = lab.begin("one");
        lab.run(8);
        let have = |lab: &Lab| (0..10).filter(|index| !lab.applied[*index].is_empty()).collect::<Vec<_>>();
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert_eq!((have(&lab), first.len()), (sorted, 3));
        lab.run(60);
        assert!(lab.applied.iter().all(|texts| *texts == [text("one")]), "{:?}", lab.applied);
        assert_eq!(lab.steps, [RolloutStage::All, RolloutStage::Done]);
        // An instance that starts later, and a store that is wiped.
        lab.keepers.push(RolloutKeeper::new("late"));
        lab.applied.push(Vec::new());
        lab.run(5);
        assert_eq!(lab.applied[10], [text("one")]);
        lab.record = None;
        lab.run(5);
        assert!(lab.applied.iter().all(|texts| texts.len() == 1));
    }

    /// A process that starts while the store is away has the configuration of the last rollout that has ended.
    #[test]
    fn the_configuration_of_a_finished_rollout_is_kept() {
        let mut lab = Lab::new(3);
        let mut kept: Vec<Option<ConfigChange>> = vec![None; 3];
        let keep = |lab: &mut Lab, kept: &mut Vec<Option<ConfigChange>>| {
            let changes = lab.keepers.iter_mut().map(RolloutKeeper::next_to_keep);
            changes.zip(kept).filter_map(|(change, kept)| change.map(|change| *kept = Some(change))).count()
        };
        lab.begin("one");
        lab.run(8);
        assert_eq!(keep(&mut lab, &mut kept), 0, "it is in progress");
        lab.run(60);
        assert_eq!(keep(&mut lab, &mut kept), 3);
        assert_eq!(keep(&mut lab, &mut kept), 0);
        // A restart without a store, and the store afterwards: nothing is applied twice.
        let change = kept[0].clone().unwrap();
        assert_eq!((change.number, change.text.clone()), (1, text("one")));
        let mut keeper = RolloutKeeper::new("edge-0");
        let change = keeper.restore(change);
        lab.keepers[0] = keeper;
        lab.run(3);
        lab.keepers[0].on_applied(change, Ok(()));
        lab.run(3);
        assert_eq!(lab.applied[0], [text("one")]);
        assert_eq!(lab.keepers[0].result, Some(Ok(())));
        assert_eq!(keep(&mut lab, &mut kept), 0);
        // One that is returned leaves what was kept; the next one replaces it.
        lab.failing = lab.begin("two");
        lab.run(30);
        assert_eq!(lab.steps.last(), Some(&RolloutStage::Returned));
        assert_eq!(keep(&mut lab, &mut kept), 0);
        lab.failing.clear();
        lab.begin("three");
        lab.run(90);
        assert_eq!(keep(&mut lab, &mut kept), 3);
        assert!(kept.iter().all(|change| change.as_ref().unwrap().text == text("three")));
    }

    #[test]
    fn an_instance_that_rejects_it_makes_all_return() {
        let mut lab = Lab::new(5);
        let first = lab.begin("one");
        lab.failing = vec![first[0]];
        lab.run(20);
        assert_eq!(lab.steps, [RolloutStage::Returned]);
        for (index, texts) in lab.applied.iter().enumerate() {
            let returned = [text("one"), None];
            let expect: &[Option<String>] = if first[1..].contains(&index) { &returned } else { &[] };
            assert_eq!(texts, expect, "{index}");
        }
        // One that rejects it later.
        lab.failing = (0..5).filter(|index| !first.contains(index)).collect();
        let first = lab.begin("two");
        lab.failing.retain(|index| !first.contains(index));
        lab.run(60);
        assert_eq!(lab.keepers[2].stage(), Some(RolloutStage::Returned));
        assert!(lab.applied.iter().all(|texts| texts.last().is_none_or(Option::is_none)), "{:?}", lab.applied);
    }

    #[test]
    fn errors_and_ends_make_all_return() {
        let mut lab = Lab::new(5);
        let first = lab.begin("one");
        lab.run(2);
        for (index, keeper) in lab.keepers.iter_mut().enumerate() {
            let server_errors = if first.contains(&index) { 30 } else { 0 };
            keeper.set_health(RolloutHealth { requests: 100, server_errors, ..RolloutHealth::default() });
        }
        lab.run(2);
        assert_eq!(lab.steps, [RolloutStage::Returned]);
        let first = lab.begin("two");
        let is_planner = first.contains(&0);
        lab.run(2);
        lab.ended = vec![*first.iter().find(|index| **index > 1).unwrap_or(&first[0])];
        lab.run(60);
        assert!(is_planner || lab.steps.len() == 2, "{:?}", lab.steps);
        let stage = lab.record.as_ref().map(|(value, _)| serde_json::from_slice::<Rollout>(value).unwrap().stage);
        assert_eq!(stage, Some(RolloutStage::Returned));
    }
}
