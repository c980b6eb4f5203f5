//! Open requests of a connection, for status reports.

use super::H2Connection;
use crate::connection::live::Live;
use crate::log::LogClient;

impl H2Connection {
    /// Client of the connection.
    pub(crate) fn client(&self) -> LogClient {
        self.exchanges.client().client
    }

    /// Calls `tell` with each request whose response is pending or being sent.
    pub(crate) fn each_request(&self, tell: &mut dyn FnMut(&Live<'_>)) {
        self.exchanges.each_request(tell);
    }
}
