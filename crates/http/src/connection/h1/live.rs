//! Open request of a connection, for status reports.

use super::H1Connection;
use super::respond::Sending;
use super::tunnel::H1Tunnel;
use crate::connection::live::Live;
use crate::log::LogClient;

impl H1Connection {
    /// Client of the connection.
    pub(crate) fn client(&self) -> LogClient {
        self.client
    }

    /// Calls `tell` with the request whose response is pending or being sent.
    pub(crate) fn each_request(&self, tell: &mut dyn FnMut(&Live<'_>)) {
        let Self { client, .. } = *self;
        if let Some(answering) = self.output.answering() {
            let wants_content = answering.request.link().is_some_and(|link| link.wants_content());
            let stage = if self.receiving.is_some() && wants_content { "reading" } else { "answering" };
            tell(&Live { client, request: &answering.request, stage, sent_bytes: 0 });
        } else if let Some(held) = self.receiving.as_ref().and_then(|receiving| receiving.held_request()) {
            tell(&Live { client, request: held, stage: "reading", sent_bytes: 0 });
        } else if let Some((request, sent_bytes)) = self.output.sending().and_then(Sending::request) {
            tell(&Live { client, request, stage: "writing", sent_bytes });
        } else if let Some((request, sent_bytes)) = self.output.tunnel().and_then(H1Tunnel::request) {
            tell(&Live { client, request, stage: "tunneling", sent_bytes });
        }
    }
}
