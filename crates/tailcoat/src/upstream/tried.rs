/// What was tried for a request already, so that it is not tried again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    servers: [u16; TRIES_MAX],
    count: u8,
    wants_new: bool,
}

/// Servers that can be noted: what `tries-max` may be at most.
const TRIES_MAX: usize = 8;

impl Tried {
    /// How many servers have failed the request.
    pub fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether a kept connection turned out to be closed, so that only a new one will do.
    pub fn wants_new(&self) -> bool {
        self.wants_new
    }

    pub(super) fn contains(&self, server: u16) -> bool {
        self.servers[..self.count()].contains(&server)
    }

    /// A server failed. Past the greatest number of tries nothing is noted, for nothing more is tried.
    pub(super) fn add(&mut self, server: u16) {
        if self.count() < TRIES_MAX && !self.contains(server) {
            self.servers[self.count()] = server;
            self.count += 1;
        }
    }

    pub(super) fn add_stale(&mut self) {
        self.wants_new = true;
    }
}
