use std::rc::Rc;

use wire::http::Status;

use crate::log::UpstreamRecord;
use crate::metrics::{NameSlot, UpstreamFacts};

/// Progress of a forwarded request, for logs.
#[derive(Debug, Default)]
pub struct Forwarding {
    server: Option<Rc<str>>,
    /// Slot in which the upstream's requests are counted.
    counted: NameSlot,
    tries: u32,
    status: Option<Status>,
    /// Time at which a connection was first wanted, in microseconds since 1970; the other times are relative to it.
    began_us: u64,
    connect_us: Option<u64>,
    first_byte_us: Option<u64>,
    duration_us: Option<u64>,
    cache_status: &'static str,
}

impl Forwarding {
    /// Records that a connection is wanted, to any server of this upstream, and sets the slot that counts its
    /// requests.
    pub fn on_wanted(&mut self, upstream: &Rc<str>, counted: NameSlot, now_us: u64) {
        self.counted = counted;
        if self.tries == 0 {
            self.began_us = now_us;
        }
        self.tries += 1;
        self.server = Some(Rc::clone(upstream));
    }

    /// Records a connection to this server.
    pub fn on_connected(&mut self, server: &Rc<str>, now_us: u64) {
        self.server = Some(Rc::clone(server));
        self.connect_us = Some(self.since_beginning(now_us));
    }

    /// Records the head of the response.
    pub fn on_response(&mut self, status: Status, now_us: u64) {
        self.status = Some(status);
        self.first_byte_us = Some(self.since_beginning(now_us));
    }

    /// Records the end of the response.
    pub fn on_end(&mut self, now_us: u64) {
        self.duration_us = Some(self.since_beginning(now_us));
    }

    /// Sets the response cache's verdict, in a word.
    pub fn set_cache_status(&mut self, word: &'static str) {
        self.cache_status = word;
    }

    /// Verdict of the response cache; empty if there is no cache.
    pub fn cache_status(&self) -> &'static str {
        self.cache_status
    }

    /// Time at which a connection was first wanted, in microseconds since 1970.
    pub fn began_us(&self) -> u64 {
        self.began_us
    }

    /// Record for the log; `None` if no connection was wanted.
    pub fn record(&self) -> Option<UpstreamRecord<'_>> {
        Some(UpstreamRecord {
            server: self.server.as_deref()?,
            tries: self.tries,
            status: self.status,
            connect_us: self.connect_us,
            first_byte_us: self.first_byte_us,
            duration_us: self.duration_us,
        })
    }

    /// Facts for metrics; `None` if no connection was wanted.
    pub fn facts(&self) -> Option<UpstreamFacts> {
        self.server.as_ref()?;
        Some(UpstreamFacts {
            upstream: self.counted,
            status: self.status.map(Status::code),
            tries: self.tries,
            first_byte_us: self.first_byte_us,
        })
    }

    fn since_beginning(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.began_us)
    }
}
