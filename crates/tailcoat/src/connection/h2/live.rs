//! Which requests are open.

use super::H2Connection;
use super::exchange::Work;
use crate::connection::live::Live;
use crate::log::Client;

impl H2Connection {
    /// The client, as far as the connection says who it is.
    pub fn client(&self) -> Client {
        self.client
    }

    /// Tells of the requests that are answered, or whose answers are sent.
    pub fn each_request(&self, tell: &mut dyn FnMut(&Live<'_>)) {
        for exchange in self.exchanges.iter() {
            let wants_content = exchange.link().is_some_and(|link| link.wants_content());
            let stage = match exchange.work {
                Work::Answering(_) if exchange.upload.is_some() && wants_content => "reading",
                Work::Answering(_) => "answering",
                Work::Responding => "writing",
                Work::Tunneling(_) => "tunneling",
            };
            let sent_bytes = exchange.outgoing.sent_bytes;
            tell(&Live { client: self.client, request: &exchange.request, stage, sent_bytes });
        }
    }
}
