use std::rc::Rc;

use tokio::sync::watch;

use super::{SessionLimits, UpstreamSession};
use crate::AcquireError;

/// A worker's HTTP/2 connections to one server.
#[derive(Default)]
pub(crate) struct Sessions {
    list: Vec<Rc<UpstreamSession>>,
    /// Result of a session being opened, if there is one.
    opening: Option<watch::Receiver<Option<AcquireError>>>,
    /// True if the server chose HTTP/2 in the last handshake; `None` before the first.
    pub(crate) has_chosen_http2: Option<bool>,
}

impl Sessions {
    /// Joins a session that has room; returns it, and whether it had exchanges before. The oldest session is filled
    /// first, so that unneeded ones become idle and close.
    pub(crate) fn join(
        &self,
        limits: &SessionLimits,
        is_upgrade: bool,
        now_ms: u64,
    ) -> Option<(Rc<UpstreamSession>, bool)> {
        let mut fit = self.list.iter().filter(|session| !is_upgrade || session.enables_connect());
        fit.find_map(|session| Some((Rc::clone(session), session.join(limits, now_ms)?)))
    }

    pub(crate) fn add(&mut self, session: Rc<UpstreamSession>) {
        self.list.push(session);
    }

    /// Channel that reports the end of the opening in progress, if there is one.
    pub(crate) fn opening(&self) -> Option<watch::Receiver<Option<AcquireError>>> {
        self.opening.clone()
    }

    /// Marks a session as being opened, until [`Self::opened`] is called.
    pub(crate) fn open(&mut self) -> OpeningSession {
        let (sender, receiver) = watch::channel(None);
        self.opening = Some(receiver);
        OpeningSession(sender)
    }

    /// Clears the mark of [`Self::open`].
    pub(crate) fn opened(&mut self) {
        self.opening = None;
    }

    /// Drops sessions that can no longer be used; returns whether any is left.
    pub(crate) fn sweep(&mut self, limits: &SessionLimits, now_ms: u64) -> bool {
        self.list.retain(|session| session.sweep(limits, now_ms));
        !self.list.is_empty()
    }
}

impl Drop for Sessions {
    /// Retires the sessions: they end with their last exchange.
    fn drop(&mut self) {
        self.list.iter().for_each(|session| session.retire());
    }
}

/// Sender that reports a failed opening to the requests that wait for it.
pub(crate) struct OpeningSession(watch::Sender<Option<AcquireError>>);

impl OpeningSession {
    /// Reports that opening failed, to all requests that have waited.
    pub(crate) fn fail(&self, error: AcquireError) {
        // An error means that no request waits.
        let _ = self.0.send(Some(error));
    }
}
