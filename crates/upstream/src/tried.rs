use super::server::ServerId;

/// Servers and connections already tried for a request, so that a retry avoids them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    servers: [ServerId; TRIES_MAX],
    count: u8,
    wants_new: bool,
}

/// Most servers that can be recorded: the upper limit of `tries-max`.
const TRIES_MAX: usize = 8;

impl Tried {
    /// Number of servers that have failed the request.
    pub fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// True if a kept connection turned out to be closed, so that only a new one will do.
    pub fn wants_new(&self) -> bool {
        self.wants_new
    }

    pub(super) fn contains(&self, server: ServerId) -> bool {
        self.servers[..self.count()].contains(&server)
    }

    /// Records a failed server. Past the most tries it records nothing, because no retry follows.
    pub(super) fn add(&mut self, server: ServerId) {
        if self.count() < TRIES_MAX && !self.contains(server) {
            self.servers[self.count()] = server;
            self.count += 1;
        }
    }

    pub(super) fn add_stale(&mut self) {
        self.wants_new = true;
    }
}
