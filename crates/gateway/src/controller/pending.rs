//! Changes that wait, and the time at which they are translated. No clock.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::Key;

/// Quiet time after a change before it is translated, so that a burst is one translation.
const SETTLE: Duration = Duration::from_millis(20);

/// Longest time that a burst delays a translation.
const SETTLE_MAX: Duration = Duration::from_millis(200);

/// Longest pause between translations of all resources, each of which is followed by a pause of its own length.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Changes since the last translations: of all resources, and of endpoints.
#[derive(Debug, Default)]
pub(super) struct PendingChanges {
    all: Burst,
    endpoints: Burst,
    /// Services whose endpoints have changed.
    services: BTreeSet<Key>,
    /// Start of the translation of all resources that runs.
    started: Option<Instant>,
    /// Services whose endpoints have changed since then.
    meanwhile: BTreeSet<Key>,
    /// Time before which no translation of all resources starts.
    pause_until: Option<Instant>,
}

/// Times of the first and the last change of a burst.
#[derive(Clone, Copy, Debug, Default)]
struct Burst(Option<(Instant, Instant)>);

impl Burst {
    fn note(&mut self, now: Instant) {
        let first = self.0.map_or(now, |(first, _)| first);
        self.0 = Some((first, now));
    }

    fn due(self) -> Option<Instant> {
        self.0.map(|(first, last)| (last + SETTLE).min(first + SETTLE_MAX))
    }
}

impl PendingChanges {
    /// Notes a change that may change routes and statuses.
    pub(super) fn note_all(&mut self, now: Instant) {
        self.all.note(now);
    }

    /// Notes a change of a service's endpoints.
    pub(super) fn note_service(&mut self, service: Key, now: Instant) {
        if self.started.is_some() {
            self.meanwhile.insert(service.clone());
        }
        self.services.insert(service);
        self.endpoints.note(now);
    }

    /// True while a translation of all resources runs.
    pub(super) fn is_translating(&self) -> bool {
        self.started.is_some()
    }

    /// Time of the next step.
    pub(super) fn due(&self) -> Option<Instant> {
        [self.all_due(), self.endpoints.due()].into_iter().flatten().min()
    }

    fn all_due(&self) -> Option<Instant> {
        let due = self.all.due().filter(|_| self.started.is_none())?;
        Some(self.pause_until.map_or(due, |until| until.max(due)))
    }

    /// Services whose endpoints are due to be sent.
    pub(super) fn take_services(&mut self, now: Instant) -> Option<BTreeSet<Key>> {
        self.endpoints.due().filter(|due| *due <= now)?;
        self.endpoints = Burst::default();
        Some(std::mem::take(&mut self.services))
    }

    /// True if a translation of all resources is due: it starts now.
    pub(super) fn start_all(&mut self, now: Instant) -> bool {
        let is_due = self.all_due().is_some_and(|due| due <= now);
        if is_due {
            self.all = Burst::default();
            self.started = Some(now);
        }
        is_due
    }

    /// Ends a translation of all resources. Returns the services whose endpoints it may have missed.
    pub(super) fn end_all(&mut self, now: Instant) -> BTreeSet<Key> {
        if let Some(started) = self.started.take() {
            self.pause_until = Some(now + (now - started).min(PAUSE_MAX));
        }
        std::mem::take(&mut self.meanwhile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str) -> Key {
        Key::new("default", name)
    }

    #[test]
    fn bursts_are_one_translation() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut pending = PendingChanges::default();
        assert_eq!(pending.due(), None);
        pending.note_all(at(0));
        assert_eq!(pending.due(), Some(at(20)));
        pending.note_all(at(15));
        assert_eq!(pending.due(), Some(at(35)));
        for ms in (20..=195).step_by(5) {
            pending.note_all(at(ms));
        }
        // A burst that never ends is translated all the same.
        assert_eq!(pending.due(), Some(at(200)));
        assert!(!pending.start_all(at(199)));
        assert!(pending.start_all(at(200)));
        assert_eq!(pending.due(), None);
    }

    #[test]
    fn translations_take_half_of_the_time_at_most() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut pending = PendingChanges::default();
        pending.note_all(at(0));
        assert!(pending.start_all(at(20)));
        pending.note_all(at(30));
        assert_eq!(pending.due(), None, "one runs at a time");
        assert_eq!(pending.end_all(at(320)), BTreeSet::new());
        assert_eq!(pending.due(), Some(at(620)));
        assert!(pending.start_all(at(620)));
        pending.end_all(at(20_620));
        pending.note_all(at(20_630));
        assert_eq!(pending.due(), Some(at(22_620)), "a pause has a longest length");
        assert!(pending.start_all(at(22_620)));
        pending.end_all(at(22_630));
        pending.note_all(at(30_000));
        assert_eq!(pending.due(), Some(at(30_020)), "a change after a quiet time waits for no pause");
    }

    #[test]
    fn endpoints_wait_for_no_translation() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut pending = PendingChanges::default();
        pending.note_service(service("a"), at(0));
        pending.note_all(at(0));
        assert_eq!(pending.take_services(at(19)), None);
        assert_eq!(pending.take_services(at(20)), Some([service("a")].into()));
        assert!(pending.start_all(at(20)));
        pending.note_service(service("b"), at(30));
        assert_eq!(pending.due(), Some(at(50)));
        assert_eq!(pending.take_services(at(50)), Some([service("b")].into()));
        // The translation may have read older ones.
        assert_eq!(pending.end_all(at(100)), [service("b")].into());
        assert_eq!(pending.end_all(at(100)), BTreeSet::new());
    }
}
