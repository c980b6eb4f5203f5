//! Orders of operators: each is carried out here, and reported on.

use super::Server;
use crate::control::{Order, Report, Request};
use crate::handler::SharedSite;
use crate::handler::response_cache::Purge;

impl Server {
    /// Carries an order out.
    pub(super) fn carry_out(&self, Request { order, reply }: Request) {
        match order {
            Order::PurgeCache { urls, prefixes, all } => {
                reply.report(Report::Purged(self.purge(&urls, &prefixes, all)));
            }
        }
    }

    /// Takes responses out of all caches; returns how many there were.
    fn purge(&self, urls: &[String], prefixes: &[String], all: bool) -> usize {
        let urls = urls.iter().map(|url| Purge::Url(url.as_bytes()));
        let prefixes = prefixes.iter().map(|prefix| Purge::Prefix(prefix.as_bytes()));
        let purges = urls.chain(prefixes).chain(all.then_some(Purge::All));
        let caches = || self.sites.iter().flat_map(SharedSite::response_caches);
        purges.map(|purge| caches().map(|cache| cache.purge(purge)).sum::<usize>()).sum()
    }
}
