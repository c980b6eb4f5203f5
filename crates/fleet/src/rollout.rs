//! Rollouts: a configuration goes to some instances first, and to all if they stay healthy.
//!
//! The record of the rollout is one key, which is compared and set: there is one rollout at a time, and each step happens once.
//! The housekeeper plans the steps.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Rollout as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollout {
    /// Number of the rollout.
    pub number: u64,
    /// Configuration that is rolled out; `None` is that of each instance's file.
    pub text: Option<String>,
    /// Configuration before, to return to; `None` is that of each instance's file.
    pub previous: Option<String>,
    /// Stage.
    pub stage: RolloutStage,
    /// Ids of the instances that get it first.
    pub first: Vec<String>,
    /// Largest share of failures, in per mille, above the usual one: of responses with a status of 500 or more, and of
    /// servers of upstreams that are not healthy.
    pub errors_per_mille_max: u64,
    /// Seconds for which the instances of a stage must stay healthy.
    pub watch_seconds: u64,
    /// Usual share of responses with a status of 500 or more, in per mille, measured in the first stage.
    #[serde(default)]
    pub usual_per_mille: u64,
    /// Start of the rollout, in seconds since 1970, by the clock of the instance that started it.
    pub started_unix_seconds: u64,
    /// Reason why it was stopped.
    pub reason: Option<String>,
}

/// Stage of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RolloutStage {
    /// Some instances have it.
    First,
    /// All instances get it.
    All,
    /// All instances have it and stayed healthy.
    Done,
    /// All instances return to the configuration before.
    Returned,
}

/// Settings of a new rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutSettings {
    /// Share of instances that get it first, in per mille; at least one instance does.
    pub first_per_mille: u64,
    /// See [`Rollout::errors_per_mille_max`].
    pub errors_per_mille_max: u64,
    /// See [`Rollout::watch_seconds`].
    pub watch_seconds: u64,
}

/// Report of an instance on the latest rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutReport {
    /// Number of the rollout.
    pub number: u64,
    /// Stage that the instance knows.
    pub stage: RolloutStage,
    /// Result of applying the configuration that the instance must have at this stage; `None` while it applies it.
    pub result: Option<Result<(), String>>,
    /// Responses since the stage began or the configuration was applied.
    pub health: RolloutHealth,
}

/// State of an instance, as the housekeeper sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutMember {
    /// Unique name.
    pub id: String,
    /// Time since its record changed, as far as the housekeeper knows.
    pub silence: Duration,
    /// Report of the instance, if it is on this rollout and this stage.
    pub report: Option<RolloutReport>,
}

/// Health of instances over some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutHealth {
    /// Responses.
    pub requests: u64,
    /// Responses with a status of 500 or more.
    pub server_errors: u64,
    /// Servers of upstreams.
    pub servers: u64,
    /// Servers of upstreams that are not healthy.
    pub failed_servers: u64,
}

/// Next step of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing to do.
    Wait,
    /// All instances get it. The usual share of errors is this, in per mille.
    Continue(u64),
    /// All instances have it.
    Finish,
    /// All return, for this reason.
    Return(String),
}

/// Silence after which an instance counts as ended: four beats.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Silence of an instance that a step may wait for no longer: two beats.
const FRESH: Duration = Duration::from_secs(10);

/// Requests below which a share of errors says nothing.
const REQUESTS_MIN: u64 = 20;

impl Rollout {
    /// Rollout of a configuration, after the one before. Fails while that one is in progress.
    ///
    /// # Errors
    /// Text for the operator.
    pub fn begin(
        before: Option<&Self>,
        text: Option<String>,
        ids: &[String],
        settings: RolloutSettings,
        unix_seconds: u64,
    ) -> Result<Self, String> {
        if let Some(before) = before.filter(|before| before.stage.is_in_progress()) {
            return Err(format!("rollout {} is in progress; wait for its end, or stop it", before.number));
        }
        if ids.is_empty() {
            return Err("no instance has a record in the store yet; try again in some seconds".to_owned());
        }
        let number = before.map_or(1, |before| before.number.saturating_add(1));
        // Other instances than last time come first.
        let mut ranked: Vec<(u64, &String)> = ids.iter().map(|id| (hash(&format!("{number}/{id}")), id)).collect();
        ranked.sort_unstable();
        let count = (ids.len() as u64 * settings.first_per_mille).div_ceil(1_000).max(1);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        Ok(Self {
            number,
            text,
            previous: before.and_then(|before| before.last().cloned()),
            stage: RolloutStage::First,
            first: ranked.into_iter().take(count).map(|(_, id)| id.clone()).collect(),
            errors_per_mille_max: settings.errors_per_mille_max,
            watch_seconds: settings.watch_seconds,
            usual_per_mille: 0,
            started_unix_seconds: unix_seconds,
            reason: None,
        })
    }

    /// Rollout that returns to the configuration before; `None` if it is not in progress.
    pub fn stopped(&self, reason: &str) -> Option<Self> {
        let stopped = Self { stage: RolloutStage::Returned, reason: Some(reason.to_owned()), ..self.clone() };
        self.stage.is_in_progress().then_some(stopped)
    }

    /// This rollout as one that has ended, because the store has lost it: as it is now for most instances.
    #[must_use]
    pub fn ended(self) -> Self {
        let next = match self.stage {
            RolloutStage::First => self.stopped("the store has lost it"),
            RolloutStage::All => self.after(Step::Finish),
            RolloutStage::Done | RolloutStage::Returned => None,
        };
        next.unwrap_or(self)
    }

    /// Configuration that all instances have at the end.
    fn last(&self) -> Option<&String> {
        if self.stage == RolloutStage::Returned { self.previous.as_ref() } else { self.text.as_ref() }
    }

    /// Configuration that an instance must have; `None` is that of its file.
    pub fn text_for(&self, id: &str) -> Option<&String> {
        match self.stage {
            RolloutStage::First if !self.first.iter().any(|first| first == id) => self.previous.as_ref(),
            RolloutStage::First | RolloutStage::All | RolloutStage::Done | RolloutStage::Returned => self.last(),
        }
    }

    /// Rollout after a step; `None` if there is nothing to do.
    pub fn after(&self, step: Step) -> Option<Self> {
        let next = match step {
            Step::Wait => return None,
            Step::Continue(usual_per_mille) => Self { stage: RolloutStage::All, usual_per_mille, ..self.clone() },
            Step::Finish => Self { stage: RolloutStage::Done, ..self.clone() },
            Step::Return(reason) => return self.stopped(&reason),
        };
        Some(next)
    }
}

impl RolloutMember {
    fn has_ended(&self) -> bool {
        self.silence >= SILENCE_MAX
    }

    /// Result of its change, if it reported one.
    fn result(&self) -> Option<&Result<(), String>> {
        self.report.as_ref()?.result.as_ref()
    }

    /// True if it runs the configuration of the stage, and has said so lately.
    fn is_settled(&self) -> bool {
        self.silence < FRESH && self.result().is_some()
    }
}

impl RolloutStage {
    /// True if further steps follow.
    pub fn is_in_progress(self) -> bool {
        matches!(self, Self::First | Self::All)
    }
}

impl RolloutHealth {
    fn errors_per_mille(self) -> u64 {
        self.server_errors.saturating_mul(1_000) / self.requests.max(1)
    }

    fn failed_per_mille(self) -> u64 {
        self.failed_servers.saturating_mul(1_000) / self.servers.max(1)
    }

    fn tells(self) -> bool {
        self.requests >= REQUESTS_MIN
    }

    /// Sum of the health of several instances.
    fn add(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            server_errors: self.server_errors.saturating_add(other.server_errors),
            servers: self.servers.saturating_add(other.servers),
            failed_servers: self.failed_servers.saturating_add(other.failed_servers),
        }
    }

    /// Health since an earlier time. Servers are those of now.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(before.requests),
            server_errors: self.server_errors.saturating_sub(before.server_errors),
            ..self
        }
    }
}

/// Reason to return, if instances with the new configuration have more failures than usual by more than the bound.
fn judge(new: RolloutHealth, usual: RolloutHealth, usual_errors: u64, bound: u64) -> Option<String> {
    let found = new.errors_per_mille();
    if new.tells() && found > usual_errors + bound {
        return Some(format!(
            "{found} of 1,000 responses have a status of 500 or more with the new configuration, {usual_errors} before"
        ));
    }
    let (found, usual) = (new.failed_per_mille(), usual.failed_per_mille());
    (found > usual + bound).then(|| {
        format!("{found} of 1,000 servers of upstreams are not healthy with the new configuration, {usual} without it")
    })
}

/// Decides on the next step, from the records of all instances and the time since the stage began.
pub fn plan_step(rollout: &Rollout, members: &[RolloutMember], stage_time: Duration) -> Step {
    if !rollout.stage.is_in_progress() {
        return Step::Wait;
    }
    for member in members {
        if let Some(Err(reason)) = member.result() {
            return Step::Return(format!("{} rejects it: {reason}", member.id));
        }
    }
    let health_of = |is_wanted: &dyn Fn(&RolloutMember) -> bool| {
        let wanted = members.iter().filter(|member| !member.has_ended() && is_wanted(member));
        let healths = wanted.filter_map(|member| member.report.as_ref()).map(|report| report.health);
        healths.fold(RolloutHealth::default(), RolloutHealth::add)
    };
    let is_over = stage_time >= Duration::from_secs(rollout.watch_seconds);
    let bound = rollout.errors_per_mille_max;
    if rollout.stage == RolloutStage::All {
        let health = health_of(&|_| true);
        let usual = RolloutHealth { servers: 0, failed_servers: 0, ..health };
        // Servers that fail for all cannot be told from an outage: only responses count.
        let responses = RolloutHealth { servers: 0, failed_servers: 0, ..health };
        if let Some(reason) = judge(responses, usual, rollout.usual_per_mille, bound) {
            return Step::Return(reason);
        }
        let is_complete = members.iter().all(|member| member.has_ended() || member.is_settled());
        return if is_over && is_complete { Step::Finish } else { Step::Wait };
    }
    let mut is_complete = true;
    for id in &rollout.first {
        match members.iter().find(|member| member.id == *id) {
            Some(member) if !member.has_ended() => is_complete &= member.is_settled(),
            _ => return Step::Return(format!("{id} no longer reports")),
        }
    }
    let is_first = |member: &RolloutMember| rollout.first.contains(&member.id);
    let (new, others) = (health_of(&is_first), health_of(&|member| !is_first(member)));
    let usual_errors = if others.tells() { others.errors_per_mille() } else { 0 };
    if let Some(reason) = judge(new, others, usual_errors, bound) {
        return Step::Return(reason);
    }
    if is_complete && is_over { Step::Continue(usual_errors.max(new.errors_per_mille())) } else { Step::Wait }
}

/// Hash of a name that is the same on all instances (FNV-1a).
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: RolloutSettings =
        RolloutSettings { first_per_mille: 100, errors_per_mille_max: 20, watch_seconds: 60 };

    fn ids(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("edge-{number}")).collect()
    }

    fn begin(before: Option<&Rollout>, count: usize) -> Rollout {
        Rollout::begin(before, Some("new".to_owned()), &ids(count), SETTINGS, 0).unwrap()
    }

    #[test]
    fn first_instances() {
        let one = begin(None, 30);
        assert_eq!((one.number, one.first.len()), (1, 3));
        let none = RolloutSettings { first_per_mille: 0, ..SETTINGS };
        assert_eq!(Rollout::begin(None, None, &ids(3), none, 0).unwrap().first.len(), 1);
        assert!(Rollout::begin(None, None, &[], SETTINGS, 0).is_err());
        let text = |rollout: &Rollout, id: &str| rollout.text_for(id).map(String::as_str).map(str::to_owned);
        let with_it = |rollout: &Rollout| ids(30).iter().filter(|id| text(rollout, id).is_some()).count();
        assert_eq!(with_it(&one), 3);
        let all = one.after(Step::Continue(0)).unwrap();
        let done = all.after(Step::Finish).unwrap();
        assert_eq!((with_it(&all), with_it(&done)), (30, 30));
        assert_eq!(with_it(&one.stopped("no").unwrap()), 0);
        // The next one returns to it.
        assert!(Rollout::begin(Some(&all), None, &ids(30), SETTINGS, 0).is_err(), "in progress");
        let two = Rollout::begin(Some(&done), Some("newer".to_owned()), &ids(30), SETTINGS, 0).unwrap();
        assert_eq!((two.number, two.previous.as_deref()), (2, Some("new")));
        assert_ne!(one.first, two.first);
        let returned = two.stopped("no").unwrap();
        assert_eq!(text(&returned, "edge-1").as_deref(), Some("new"));
        assert_eq!(returned.stopped("again"), None);
        // A store that has lost a rollout: the first stage is returned, the second has ended.
        let texts = [two.clone(), two.after(Step::Continue(0)).unwrap()].map(|lost| {
            let next = Rollout::begin(Some(&lost.ended()), None, &ids(30), SETTINGS, 0).unwrap();
            (next.number, next.previous)
        });
        assert_eq!(texts, [(3, Some("new".to_owned())), (3, Some("newer".to_owned()))]);
        let three = Rollout::begin(Some(&returned), None, &ids(30), SETTINGS, 0).unwrap();
        assert_eq!((three.number, three.previous.as_deref()), (3, Some("new")));
    }

    /// Result, requests, errors and failed servers of the first; seconds; expected step.
    type Row<'a> = (Option<Result<(), &'a str>>, u64, u64, u64, u64, &'a str);

    #[test]
    fn steps() {
        let rollout = begin(None, 3);
        let report = |stage, result: Option<Result<(), &str>>, requests, server_errors, failed_servers| {
            let health = RolloutHealth { requests, server_errors, servers: 10, failed_servers };
            let result = result.map(|result| result.map_err(str::to_owned));
            Some(RolloutReport { number: 1, stage, result, health })
        };
        let name = |step: Step| match step {
            Step::Wait => "wait",
            Step::Continue(_) => "continue",
            Step::Finish => "finish",
            Step::Return(_) => "return",
        };
        let rows: [Row<'_>; 9] = [
            (None, 100, 0, 1, 100, "wait"),
            (Some(Ok(())), 100, 0, 1, 30, "wait"),
            (Some(Ok(())), 100, 0, 1, 60, "continue"),
            (Some(Ok(())), 100, 3, 1, 60, "continue"),
            (Some(Ok(())), 100, 4, 1, 10, "return"),
            // Too few to tell.
            (Some(Ok(())), 19, 19, 1, 60, "continue"),
            (Some(Ok(())), 0, 0, 2, 60, "return"),
            (Some(Ok(())), 0, 0, 0, 60, "continue"),
            (Some(Err("no")), 0, 0, 1, 1, "return"),
        ];
        for (result, requests, errors, failed, seconds, expect) in rows {
            let member = |id: String| {
                let report = match rollout.first.contains(&id) {
                    true => report(RolloutStage::First, result, requests, errors, failed),
                    false => report(RolloutStage::First, Some(Ok(())), 100, 1, 1),
                };
                RolloutMember { id, silence: Duration::ZERO, report }
            };
            let members: Vec<RolloutMember> = ids(3).into_iter().map(member).collect();
            let step = plan_step(&rollout, &members, Duration::from_secs(seconds));
            assert_eq!(name(step), expect, "{result:?} {requests} {errors} {failed} {seconds}");
        }
        // A first instance that has ended.
        let others: Vec<String> = ids(3).into_iter().filter(|id| !rollout.first.contains(id)).collect();
        let member = |id: &String| RolloutMember { id: id.clone(), silence: Duration::ZERO, report: None };
        let left: Vec<RolloutMember> = others.iter().map(member).collect();
        assert_eq!(name(plan_step(&rollout, &left, Duration::ZERO)), "return");
        let all = rollout.after(Step::Continue(10)).unwrap();
        for (result, errors, seconds, expect) in [
            (None, 0, 100, "wait"),
            (Some(Ok(())), 0, 59, "wait"),
            (Some(Ok(())), 3, 60, "finish"),
            (Some(Ok(())), 4, 60, "return"),
            (Some(Err("no")), 0, 60, "return"),
        ] {
            let members: Vec<RolloutMember> = ids(3)
                .into_iter()
                .map(|id| RolloutMember {
                    silence: if id == "edge-2" { SILENCE_MAX } else { Duration::ZERO },
                    report: report(RolloutStage::All, result, 100, errors, 9).filter(|_| id != "edge-2"),
                    id,
                })
                .collect();
            assert_eq!(name(plan_step(&all, &members, Duration::from_secs(seconds))), expect, "{result:?} {errors}");
        }
        let done = all.after(Step::Finish).unwrap();
        assert_eq!(plan_step(&done, &[], Duration::MAX), Step::Wait);
    }
}
