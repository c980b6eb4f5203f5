//! Orders of operators: each is carried out here, and reported on.

use std::sync::Arc;

use super::Server;
use crate::config::{AccessLogFormat, log_format_from_text};
use crate::control::{Order, Reply, Report, Request};
use crate::handler::SharedSite;
use crate::handler::response_cache::Purge;
use crate::log::{Tail, Tailed};

/// Passes records on as long as anybody wants them.
async fn pass_on(mut tail: Tail, reply: Reply) {
    while let Some(tailed) = tokio::select! {
        tailed = tail.next() => tailed,
        () = reply.closed() => None,
    } {
        let report = match tailed {
            Tailed::Line(line) => Report::Logged(line),
            Tailed::Missed(count) => Report::Missed(count),
        };
        if !reply.report(report) {
            return;
        }
    }
}

impl Server {
    /// Carries an order out.
    pub(super) fn carry_out(&self, Request { order, reply }: Request) {
        match order {
            Order::PurgeCache { urls, prefixes, all } => {
                reply.report(Report::Purged(self.purge(&urls, &prefixes, all)));
            }
            Order::TailLog { filter, format } => {
                let tail = log_format_from_text(&format).and_then(|format| match format {
                    AccessLogFormat::Binary => Err("the binary format is not for terminals".to_owned()),
                    format => self.access_log.tail(filter, &format).map_err(|error| error.to_string()),
                });
                match tail {
                    Ok(tail) => drop(self.runtime.spawn(pass_on(tail, reply))),
                    Err(reason) => drop(reply.report(Report::Refused(reason))),
                }
            }
            Order::Status { requests_max } => {
                let observer = Arc::clone(&self.observer);
                // Workers may take their time, and other orders are not to wait for them.
                self.runtime.spawn(async move {
                    reply.report(Report::Status(Box::new(observer.status(requests_max).await)));
                });
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
