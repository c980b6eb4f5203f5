//! Text form of load profiles: `1k:10s,1k-5k:30s,5k:10s`.

use crate::engine::{LoadProfile, ProfilePhase};
use crate::units::{parse_duration, parse_number};

/// Load profile as an option.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProfileOption {
    /// Text of the option.
    pub(crate) text: String,
    phases: Vec<ProfilePhase>,
}

impl ProfileOption {
    /// The profile with all rates multiplied.
    pub(crate) fn scaled(&self, factor: f64) -> Self {
        let scale = |phase: &ProfilePhase| ProfilePhase { from: phase.from * factor, to: phase.to * factor, ..*phase };
        Self { text: self.text.clone(), phases: self.phases.iter().map(scale).collect() }
    }

    /// The profile after a time at its first rate.
    pub(super) fn profile(&self, lead: std::time::Duration) -> LoadProfile {
        LoadProfile::new(self.phases.clone(), lead.as_nanos() as u64)
    }
}

/// Maximum number of phases, with the steps of stairs.
const PHASES_MAX: usize = 1000;

/// Parses a profile: phases separated by commas. `1k:10s` is a constant rate, `1k-5k:30s` a ramp, `1k-5k/5:50s` stairs
/// of five steps.
pub(crate) fn parse(text: &str) -> Result<ProfileOption, String> {
    let mut phases = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (rates, time) = part
            .split_once(':')
            .ok_or_else(|| format!("`{part}` is not RATE:TIME, such as 1k:10s, 1k-5k:30s or 1k-5k/5:50s"))?;
        let length = parse_duration(time)?.as_nanos() as u64;
        let (ramp, steps) = match rates.split_once('/') {
            Some((ramp, steps)) => {
                let steps = steps.parse().ok().filter(|steps| (2..=PHASES_MAX).contains(steps));
                (ramp, steps.ok_or_else(|| format!("`{part}`: write 2 to {PHASES_MAX} steps after the `/`"))?)
            }
            None => (rates, 1),
        };
        let (from, to) = ramp.split_once('-').unwrap_or((ramp, ramp));
        let (from, to) = (parse_number(from)?, parse_number(to)?);
        match steps {
            _ if length / steps as u64 == 0 => return Err(format!("`{part}`: the time must be more than 0")),
            1 => phases.push(ProfilePhase { from, to, length }),
            steps => phases.extend((0..steps).map(|step| {
                let rate = from + (to - from) * step as f64 / (steps - 1) as f64;
                ProfilePhase { from: rate, to: rate, length: length / steps as u64 }
            })),
        }
    }
    match phases.len() {
        _ if phases.iter().all(|phase| phase.from + phase.to <= 0.0) => Err("some rate must be more than 0".to_owned()),
        count if count > PHASES_MAX => Err(format!("{count} phases are more than {PHASES_MAX}")),
        _ => Ok(ProfileOption { text: text.to_owned(), phases }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles() {
        let phase = |from, to, millis: u64| ProfilePhase { from, to, length: millis * 1_000_000 };
        for (text, expect) in [
            ("100:1s", vec![phase(100.0, 100.0, 1000)]),
            ("0-1k:500ms, 1k:2s", vec![phase(0.0, 1000.0, 500), phase(1000.0, 1000.0, 2000)]),
            ("10-30/3:3s", vec![phase(10.0, 10.0, 1000), phase(20.0, 20.0, 1000), phase(30.0, 30.0, 1000)]),
            ("30-10/2:1s", vec![phase(30.0, 30.0, 500), phase(10.0, 10.0, 500)]),
        ] {
            assert_eq!(parse(text).unwrap().phases, expect, "{text}");
        }
        for (text, expect) in [
            ("", "is not RATE:TIME"),
            ("100", "is not RATE:TIME"),
            ("x:1s", "not a number"),
            ("1:x", "not a time"),
            ("1:0", "more than 0"),
            ("0:1s", "some rate"),
            ("1-2/1:1s", "2 to 1000 steps"),
            ("1-2/x:1s", "2 to 1000 steps"),
            ("1-2/800:1s,1-2/800:1s", "1600 phases"),
        ] {
            let message = parse(text).unwrap_err();
            assert!(message.contains(expect), "{text}: {message}");
        }
    }
}
