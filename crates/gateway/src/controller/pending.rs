//! Changes that wait, and the time at which they are translated. No clock.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::Key;
use crate::objects::Kind;
use crate::translate::ChangedObjects;

/// Quiet time after a change before it is translated, so that a burst is one translation.
const SETTLE: Duration = Duration::from_millis(20);

/// Longest time that a burst delays a translation.
const SETTLE_MAX: Duration = Duration::from_millis(200);

/// Longest pause between translations, each of which is followed by a pause of its own length.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Changes since the last translation, and of endpoints.
#[derive(Debug, Default)]
pub(super) struct PendingChanges {
    burst: Burst,
    changed: ChangedObjects,
    endpoints: Burst,
    /// Services whose endpoints have changed.
    services: BTreeSet<Key>,
    /// Start of the translation that runs.
    started: Option<Instant>,
    /// Services whose endpoints have changed since then.
    meanwhile: BTreeSet<Key>,
    /// Time before which no translation starts.
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
    /// Notes a change of a resource that may change routes and statuses.
    pub(super) fn note_object(&mut self, kind: Kind, key: Key, now: Instant) {
        self.changed.objects.insert((kind, key));
        self.burst.note(now);
    }

    /// Notes that servers report other errors.
    pub(super) fn note_errors(&mut self, now: Instant) {
        self.changed.has_errors = true;
        self.burst.note(now);
    }

    /// Notes that all kinds are listed, so that there is a translation even if there are no resources.
    pub(super) fn note_listed(&mut self, now: Instant) {
        self.burst.note(now);
    }

    /// Notes a change of a service's endpoints.
    pub(super) fn note_service(&mut self, service: Key, now: Instant) {
        if self.started.is_some() {
            self.meanwhile.insert(service.clone());
        }
        self.services.insert(service);
        self.endpoints.note(now);
    }

    /// True while a translation runs.
    pub(super) fn is_translating(&self) -> bool {
        self.started.is_some()
    }

    /// Time of the next step.
    pub(super) fn due(&self) -> Option<Instant> {
        [self.translation_due(), self.endpoints.due()].into_iter().flatten().min()
    }

    fn translation_due(&self) -> Option<Instant> {
        let due = self.burst.due().filter(|_| self.started.is_none())?;
        Some(self.pause_until.map_or(due, |until| until.max(due)))
    }

    /// Services whose endpoints are due to be sent.
    pub(super) fn take_services(&mut self, now: Instant) -> Option<BTreeSet<Key>> {
        self.endpoints.due().filter(|due| *due <= now)?;
        self.endpoints = Burst::default();
        Some(std::mem::take(&mut self.services))
    }

    /// Changes to translate, if a translation is due: it starts now.
    pub(super) fn start(&mut self, now: Instant) -> Option<ChangedObjects> {
        self.translation_due().filter(|due| *due <= now)?;
        self.burst = Burst::default();
        self.started = Some(now);
        Some(std::mem::take(&mut self.changed))
    }

    /// Ends a translation. Returns the services whose endpoints it may have missed.
    pub(super) fn end(&mut self, now: Instant) -> BTreeSet<Key> {
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

    fn note(pending: &mut PendingChanges, now: Instant) {
        pending.note_object(Kind::HttpRoute, service("route"), now);
    }

    #[test]
    fn bursts_are_one_translation() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut pending = PendingChanges::default();
        assert_eq!(pending.due(), None);
        note(&mut pending, at(0));
        assert_eq!(pending.due(), Some(at(20)));
        note(&mut pending, at(15));
        assert_eq!(pending.due(), Some(at(35)));
        for ms in (20..=195).step_by(5) {
            note(&mut pending, at(ms));
        }
        // A burst that never ends is translated all the same.
        assert_eq!(pending.due(), Some(at(200)));
        assert!(pending.start(at(199)).is_none());
        pending.note_errors(at(200));
        let changed = pending.start(at(200)).unwrap();
        assert_eq!((changed.objects.len(), changed.has_errors), (1, true));
        assert_eq!(pending.due(), None);
    }

    #[test]
    fn translations_take_half_of_the_time_at_most() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut pending = PendingChanges::default();
        note(&mut pending, at(0));
        assert!(pending.start(at(20)).is_some());
        note(&mut pending, at(30));
        assert_eq!(pending.due(), None, "one runs at a time");
        assert_eq!(pending.end(at(320)), BTreeSet::new());
        assert_eq!(pending.due(), Some(at(620)));
        assert!(pending.start(at(620)).is_some());
        pending.end(at(20_620));
        note(&mut pending, at(20_630));
        assert_eq!(pending.due(), Some(at(22_620)), "a pause has a longest length");
        assert!(pending.start(at(22_620)).is_some());
        pending.end(at(22_630));
        note(&mut pending, at(30_000));
        assert_eq!(pending.due(), Some(at(30_020)), "a change after a quiet time waits for no pause");
    }

    #[test]
    fn endpoints_wait_for_no_translation() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut pending = PendingChanges::default();
        pending.note_service(service("a"), at(0));
        note(&mut pending, at(0));
        assert_eq!(pending.take_services(at(19)), None);
        assert_eq!(pending.take_services(at(20)), Some([service("a")].into()));
        assert!(pending.start(at(20)).is_some());
        pending.note_service(service("b"), at(30));
        assert_eq!(pending.due(), Some(at(50)));
        assert_eq!(pending.take_services(at(50)), Some([service("b")].into()));
        // The translation may have read older ones.
        assert_eq!(pending.end(at(100)), [service("b")].into());
        assert_eq!(pending.end(at(100)), BTreeSet::new());
    }
}
