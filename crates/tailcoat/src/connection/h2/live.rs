//! Open requests of a connection, for status reports.

use super::H2Connection;
use super::exchange::H2Work;
use crate::connection::live::Live;
use crate::log::LogClient;

impl H2Connection {
    /// Client of the connection.
    pub fn client(&self) -> LogClient {
        self.client
    }

    /// Calls `tell` with each request whose response is pending or being sent.
    pub fn each_request(&self, tell: &mut dyn FnMut(&Live<'_>)) {
        for exchange in self.exchanges.iter() {
            let wants_content = exchange.link().is_some_and(|link| link.wants_content());
            let stage = match exchange.work {
                H2Work::Answering(_) if exchange.upload.is_some() && wants_content => "reading",
                H2Work::Answering(_) => "answering",
                H2Work::Responding => "writing",
                H2Work::Tunneling(_) => "tunneling",
            };
            let sent_bytes = exchange.outgoing.sent_bytes;
            tell(&Live { client: self.client, request: &exchange.request, stage, sent_bytes });
        }
    }
}
