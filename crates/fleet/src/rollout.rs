//! Rollouts: a configuration goes to some instances first, and to all if they stay healthy.
//!
//! The record of the rollout is one key. Any instance may take the next step, by comparing and setting it: there is one
//! rollout at a time, and each step happens once.

use serde::{Deserialize, Serialize};

/// Rollout as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollout {
    /// Number of the rollout.
    pub number: u64,
    /// Configuration that is rolled out.
    pub text: String,
    /// Configuration before, to return to; `None` is that of each instance's file.
    pub previous: Option<String>,
    /// Stage.
    pub stage: RolloutStage,
    /// Instances that get it first, in per mille.
    pub canary_per_mille: u32,
    /// Largest share of responses with a status of 500 or more, in per mille, above that of the other instances.
    pub errors_per_mille_max: u32,
    /// Seconds for which the first instances must stay healthy.
    pub watch_seconds: u64,
    /// Start of the stage, in seconds since 1970.
    pub since_unix_seconds: u64,
    /// Reason why it was stopped.
    pub reason: Option<String>,
}

/// Stage of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RolloutStage {
    /// Some instances have it.
    Canary,
    /// All instances get it.
    All,
    /// All instances return to the configuration before.
    Returned,
}

/// State of an instance for a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutMember {
    /// Unique name.
    pub id: String,
    /// Result, if it has applied this rollout or has tried.
    pub result: Option<Result<(), String>>,
    /// Requests since the stage began.
    pub health: RolloutHealth,
}

/// Responses of instances over some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RolloutHealth {
    /// Responses.
    pub requests: u64,
    /// Responses with a status of 500 or more.
    pub server_errors: u64,
}

/// Next step of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing to do.
    Wait,
    /// All instances get it.
    Continue,
    /// All return, for this reason.
    Return(String),
}

/// Requests below which a share of errors says nothing.
const REQUESTS_MIN: u64 = 20;

impl RolloutHealth {
    fn per_mille(self) -> u64 {
        self.server_errors.saturating_mul(1_000) / self.requests.max(1)
    }

    /// Sum of the health of several instances.
    fn add(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            server_errors: self.server_errors.saturating_add(other.server_errors),
        }
    }
}

/// True if an instance gets the configuration in this stage. The first instances are chosen by their names and the number of
/// the rollout, so that they change from one to the next; there is at least one.
pub fn takes_part(rollout: &Rollout, id: &str, ids: &[String]) -> bool {
    match rollout.stage {
        RolloutStage::All => true,
        RolloutStage::Returned => false,
        RolloutStage::Canary => {
            let mut ranked: Vec<(u64, &str)> =
                ids.iter().map(|id| (hash(&format!("{}/{id}", rollout.number)), id.as_str())).collect();
            ranked.sort_unstable();
            let count = (ids.len() as u64 * u64::from(rollout.canary_per_mille)).div_ceil(1_000).max(1);
            ranked.iter().take(count as usize).any(|(_, ranked)| *ranked == id)
        }
    }
}

/// Judges the first instances beside the others. `None` if they are healthy, or too few requests tell.
pub fn judge(canaries: RolloutHealth, others: RolloutHealth, errors_per_mille_max: u32) -> Option<String> {
    if canaries.requests < REQUESTS_MIN {
        return None;
    }
    let usual = if others.requests < REQUESTS_MIN { 0 } else { others.per_mille() };
    let found = canaries.per_mille();
    (found > usual + u64::from(errors_per_mille_max)).then(|| {
        format!("{found} of 1,000 responses of the first instances have a status of 500 or more, {usual} of the others")
    })
}

/// Decides on the next step, from the records of all live instances.
pub fn plan_step(rollout: &Rollout, members: &[RolloutMember], unix_seconds: u64) -> Step {
    if rollout.stage == RolloutStage::Returned {
        return Step::Wait;
    }
    if let Some((id, reason)) = members.iter().find_map(|member| match &member.result {
        Some(Err(reason)) => Some((&member.id, reason)),
        _ => None,
    }) {
        return Step::Return(format!("{id} rejects it: {reason}"));
    }
    if rollout.stage == RolloutStage::All {
        return Step::Wait;
    }
    let ids: Vec<String> = members.iter().map(|member| member.id.clone()).collect();
    let (mut canaries, mut others, mut is_complete) =
        (RolloutHealth::default(), RolloutHealth::default(), !members.is_empty());
    for member in members {
        if takes_part(rollout, &member.id, &ids) {
            canaries = canaries.add(member.health);
            is_complete &= member.result.is_some();
        } else {
            others = others.add(member.health);
        }
    }
    if let Some(reason) = judge(canaries, others, rollout.errors_per_mille_max) {
        return Step::Return(reason);
    }
    let is_over = unix_seconds.saturating_sub(rollout.since_unix_seconds) >= rollout.watch_seconds;
    if is_complete && is_over { Step::Continue } else { Step::Wait }
}

/// Hash of a name that is the same on all instances (FNV-1a).
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollout(stage: RolloutStage) -> Rollout {
        Rollout {
            number: 7,
            text: "new".to_owned(),
            previous: None,
            stage,
            canary_per_mille: 100,
            errors_per_mille_max: 20,
            watch_seconds: 60,
            since_unix_seconds: 1_000,
            reason: None,
        }
    }

    #[test]
    fn first_instances() {
        let ids: Vec<String> = (0..30).map(|number| format!("edge-{number}")).collect();
        let count = |rollout: &Rollout| ids.iter().filter(|id| takes_part(rollout, id, &ids)).count();
        assert_eq!(count(&rollout(RolloutStage::Canary)), 3);
        assert_eq!(count(&Rollout { canary_per_mille: 0, ..rollout(RolloutStage::Canary) }), 1);
        assert_eq!(count(&rollout(RolloutStage::All)), 30);
        assert_eq!(count(&rollout(RolloutStage::Returned)), 0);
        let first = |number: u64| {
            let rollout = Rollout { number, ..rollout(RolloutStage::Canary) };
            ids.iter().filter(|id| takes_part(&rollout, id, &ids)).cloned().collect::<Vec<_>>()
        };
        assert_ne!(first(1), first(2));
    }

    #[test]
    fn steps() {
        let canary = rollout(RolloutStage::Canary);
        let ids: Vec<String> = (0..3).map(|number| format!("edge-{number}")).collect();
        let members = |result: Option<Result<(), String>>, requests: u64, errors: u64| -> Vec<RolloutMember> {
            let member = |id: &String| {
                let is_first = takes_part(&canary, id, &ids);
                let health = RolloutHealth { requests, server_errors: if is_first { errors } else { 1 } };
                RolloutMember { id: id.clone(), result: result.clone().filter(|_| is_first), health }
            };
            ids.iter().map(member).collect()
        };
        for (result, requests, errors, seconds, expect) in [
            (None, 100, 0, 1_100, "wait"),
            (Some(Ok(())), 100, 0, 1_030, "wait"),
            (Some(Ok(())), 100, 0, 1_060, "continue"),
            (Some(Ok(())), 100, 3, 1_060, "continue"),
            (Some(Ok(())), 100, 4, 1_010, "return"),
            // Too few to tell.
            (Some(Ok(())), 19, 19, 1_060, "continue"),
            (Some(Err("no".to_owned())), 0, 0, 1_001, "return"),
        ] {
            let step = plan_step(&canary, &members(result.clone(), requests, errors), seconds);
            let found = match step {
                Step::Wait => "wait",
                Step::Continue => "continue",
                Step::Return(_) => "return",
            };
            assert_eq!(found, expect, "{result:?} {requests} {errors} {seconds}");
        }
        let all = rollout(RolloutStage::All);
        let failed = [RolloutMember {
            id: "a".to_owned(),
            result: Some(Err("no".to_owned())),
            health: RolloutHealth::default(),
        }];
        assert!(matches!(plan_step(&all, &failed, 0), Step::Return(_)));
        assert_eq!(plan_step(&rollout(RolloutStage::Returned), &failed, 0), Step::Wait);
    }
}
