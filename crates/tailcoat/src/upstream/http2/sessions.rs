use std::rc::Rc;

use tokio::sync::watch;

use super::{Session, SessionLimits};
use crate::upstream::AcquireError;

/// A worker's connections to one server that carry several exchanges.
#[derive(Default)]
pub(in crate::upstream) struct Sessions {
    list: Vec<Rc<Session>>,
    /// One that is being opened.
    opening: Option<watch::Receiver<Option<AcquireError>>>,
    /// Whether the server, when it was asked last, chose HTTP/2.
    pub(in crate::upstream) has_chosen_http2: Option<bool>,
}

impl Sessions {
    /// A session that has room for an exchange, and whether it had exchanges before. The one that was opened first is
    /// filled first, so that those that aren't needed become idle and go.
    pub(in crate::upstream) fn join(
        &self,
        limits: &SessionLimits,
        is_upgrade: bool,
        now_ms: u64,
    ) -> Option<(Rc<Session>, bool)> {
        let mut fit = self.list.iter().filter(|session| !is_upgrade || session.enables_connect());
        fit.find_map(|session| Some((Rc::clone(session), session.join(limits, now_ms)?)))
    }

    /// Adds one.
    pub(in crate::upstream) fn add(&mut self, session: Rc<Session>) {
        self.list.push(session);
    }

    /// Whom to wait for, who opens one already.
    pub(in crate::upstream) fn opening(&self) -> Option<watch::Receiver<Option<AcquireError>>> {
        self.opening.clone()
    }

    /// Notes that one is being opened, until the other end is dropped.
    pub(in crate::upstream) fn open(&mut self) -> Opening {
        let (sender, receiver) = watch::channel(None);
        self.opening = Some(receiver);
        Opening(sender)
    }

    /// Nobody opens one any more.
    pub(in crate::upstream) fn opened(&mut self) {
        self.opening = None;
    }

    /// Forgets those that are no longer of use; says whether any is left.
    pub(in crate::upstream) fn sweep(&mut self, limits: &SessionLimits, now_ms: u64) -> bool {
        self.list.retain(|session| session.sweep(limits, now_ms));
        !self.list.is_empty()
    }
}

impl Drop for Sessions {
    /// Nobody joins them any more: they end with their last exchange.
    fn drop(&mut self) {
        self.list.iter().for_each(|session| session.retire());
    }
}

/// A session that is being opened, for those who wait for it.
pub(in crate::upstream) struct Opening(watch::Sender<Option<AcquireError>>);

impl Opening {
    /// It could not be opened. That holds for all who have waited.
    pub(in crate::upstream) fn fail(&self, error: AcquireError) {
        // Nobody may be waiting.
        let _ = self.0.send(Some(error));
    }
}
