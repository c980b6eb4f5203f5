//! Load profile: an open loop whose rate changes over time.

use std::sync::Arc;

use super::clock::{Nanos, SECOND};

/// Part of a load profile, over which the rate changes at a constant speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ProfilePhase {
    /// Requests due per second at the start.
    pub from: f64,
    /// Requests due per second at the end.
    pub to: f64,
    /// Length of the phase.
    pub length: Nanos,
}

/// Rates of an open loop over time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LoadProfile {
    /// Time before the first phase, at its first rate.
    lead: ProfilePhase,
    phases: Arc<[ProfilePhase]>,
    /// Start of each phase after the lead, and the requests due before it, with those of the lead.
    starts: Arc<[(Nanos, f64)]>,
}

impl ProfilePhase {
    /// Number of requests due in the phase.
    fn count(&self) -> f64 {
        (self.from + self.to) / 2.0 * self.seconds()
    }

    fn seconds(&self) -> f64 {
        self.length as f64 / SECOND as f64
    }

    /// Time within the phase at which a number of requests were due.
    fn time_of(&self, count: f64) -> Nanos {
        let slope = (self.to - self.from) / self.seconds().max(1e-9);
        // The root of `from * t + slope / 2 * t^2 = count`, in a form without cancellation.
        let root = (self.from * self.from + 2.0 * slope * count).max(0.0).sqrt();
        let seconds = 2.0 * count / (self.from + root).max(f64::MIN_POSITIVE);
        ((seconds * SECOND as f64) as Nanos).min(self.length)
    }
}

impl LoadProfile {
    /// Creates a profile, which must have a phase. `lead` is a time before it, at its first rate.
    pub(crate) fn new(phases: Vec<ProfilePhase>, lead: Nanos) -> Self {
        let first = phases.first().map_or(0.0, |phase| phase.from);
        let lead = ProfilePhase { from: first, to: first, length: lead };
        let (mut time, mut count) = (0, lead.count());
        let starts = phases.iter().map(|phase| {
            let start = (time, count);
            time += phase.length;
            count += phase.count();
            start
        });
        let starts = starts.collect();
        Self { lead, phases: phases.into(), starts }
    }

    /// Phases in order.
    pub(crate) fn phases(&self) -> &[ProfilePhase] {
        &self.phases
    }

    /// Time of a phase after the lead.
    pub(crate) fn start_of(&self, phase: usize) -> Nanos {
        self.starts[phase].0
    }

    /// Length without the lead.
    pub(crate) fn length(&self) -> Nanos {
        self.phases.iter().map(|phase| phase.length).sum()
    }

    /// Highest rate.
    pub(crate) fn rate_max(&self) -> f64 {
        self.phases.iter().flat_map(|phase| [phase.from, phase.to]).fold(0.0, f64::max)
    }

    /// Time from the start of the lead at which a number of requests were due; `None` after the end.
    pub(crate) fn time_of(&self, count: f64) -> Option<Nanos> {
        if count < self.lead.count() {
            return Some(self.lead.time_of(count));
        }
        // The last phase that begins by then. A phase without requests ends where it begins, so the one after it is found.
        let index = self.starts.partition_point(|&(_, before)| before <= count).checked_sub(1)?;
        let (phase, (start, before)) = (&self.phases[index], self.starts[index]);
        let is_over = count - before >= phase.count();
        (!is_over).then(|| self.lead.length + start + phase.time_of(count - before))
    }

    /// Index of the phase at a time after the lead.
    pub(crate) fn phase_at(&self, time: Nanos) -> usize {
        self.starts.partition_point(|&(start, _)| start <= time).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(from: f64, to: f64, seconds: f64) -> ProfilePhase {
        ProfilePhase { from, to, length: (seconds * SECOND as f64) as Nanos }
    }

    #[test]
    fn times() {
        let profile = LoadProfile::new(vec![phase(10.0, 10.0, 1.0), phase(0.0, 0.0, 2.0), phase(0.0, 20.0, 2.0)], 0);
        let seconds = |count| profile.time_of(count).map(|time| time as f64 / 1e9);
        for (count, expect) in [
            (0.0, Some(0.0)),
            (5.0, Some(0.5)),
            // Nothing is due in the pause. The ramp has 10 * t^2 / 2 requests.
            (10.0, Some(3.0)),
            (15.0, Some(4.0)),
            (29.9, Some(4.994_993_742)),
            (30.0, None),
            (1e9, None),
        ] {
            let time = seconds(count);
            assert!(
                time.zip(expect).map_or(time == expect, |(time, expect)| (time - expect).abs() < 1e-6),
                "{count}: {time:?}, expected {expect:?}"
            );
        }
        let places = [0.0, 0.99, 1.0, 2.99, 3.0, 9.0].map(|seconds| profile.phase_at((seconds * 1e9) as Nanos));
        assert_eq!(places, [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn ramps() {
        let down = LoadProfile::new(vec![phase(20.0, 0.0, 2.0)], 0);
        assert_eq!(down.time_of(15.0), Some(SECOND), "three quarters are due in the first half");
        let lead = LoadProfile::new(vec![phase(10.0, 30.0, 1.0)], 2 * SECOND);
        assert_eq!((lead.time_of(10.0), lead.time_of(20.0)), (Some(SECOND), Some(2 * SECOND)));
        assert_eq!(lead.time_of(40.0), None);
        assert_eq!((lead.length(), lead.rate_max()), (SECOND, 30.0));
    }
}
