//! From the configuration of handlers to what they need while they run: first what all workers share, then a worker's
//! own part.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use super::error_pages::{ErrorPage, ErrorPages};
use super::forward::{Forward, Plan};
use super::respond::Respond;
use super::response_cache::{ResponseCache, SharedResponseCache};
use super::static_file::{FileTree, StaticFile};
use super::{Outcome, Routed};
use crate::config::{self, Config, ErrorPageFile, Files, Runners};
use crate::object_cache::{ObjectStore, WorkerCache};
use crate::upstream::{SharedUpstream, Upstream};

/// The handlers, each with what it needs while it runs; every worker has its own.
pub enum Handler {
    /// Files below a root.
    StaticFile(StaticFile),
    /// A fixed answer.
    Respond(Arc<Respond>),
    /// Another server's answer.
    Forward(Forward),
}

impl Handler {
    /// Answers a request, or doesn't.
    pub fn handle(&self, routed: &Routed<'_>) -> Outcome {
        match self {
            Self::StaticFile(files) => files.handle(routed),
            Self::Respond(respond) => respond.handle(routed),
            Self::Forward(forward) => forward.handle(routed),
        }
    }
}

/// What the workers share of a site's handlers.
#[derive(Debug)]
pub struct SharedSite {
    handlers: Vec<SharedHandler>,
    /// Lowest and highest status, and where the page is.
    error_pages: Vec<(u16, u16, Arc<FileTree>, Vec<u8>)>,
}

#[derive(Debug)]
enum SharedHandler {
    StaticFile(Arc<FileTree>),
    Respond(Arc<Respond>),
    /// The plan, which upstream, and the cache before it.
    Forward(Arc<Plan>, usize, Option<Arc<SharedResponseCache>>),
}

impl SharedSite {
    /// Prepares a site's handlers. `upstreams` are those of the configuration, in their order. Nothing is opened yet.
    pub fn new(
        site: &config::Site,
        config: &Config,
        store: &Arc<ObjectStore>,
        upstreams: &[Arc<SharedUpstream>],
    ) -> Self {
        let tree = |files: &Files, runners: Runners| {
            let (server_field, ranges_max) = (config.server.server_field, config.limits.ranges_max);
            FileTree::new(files.clone(), runners, server_field, ranges_max, Arc::clone(store))
        };
        let handlers: Vec<_> = site
            .routes
            .iter()
            .enumerate()
            .map(|(index, route)| match &route.handler {
                config::Handler::Files(files) => SharedHandler::StaticFile(tree(files, Runners::of(site, index))),
                config::Handler::Respond(respond) => SharedHandler::Respond(Arc::new(Respond::new(respond))),
                config::Handler::Forward(forward) => {
                    let index = upstreams.iter().position(|upstream| upstream.name() == forward.upstream);
                    // The check of the configuration sees to it that there is one.
                    let index = index.unwrap_or_else(|| panic!("no upstream {}", forward.upstream));
                    let cache = forward.cache.as_ref().map(|caching| {
                        SharedResponseCache::new(caching.clone(), forward, config.limits.ranges_max, Arc::clone(store))
                    });
                    SharedHandler::Forward(Plan::new(forward, &upstreams[index]), index, cache)
                }
            })
            .collect();
        // The site's own root is tried after all of its parts.
        let site_tree = handlers.iter().rev().find_map(|handler| match handler {
            SharedHandler::StaticFile(tree) => Some(Arc::clone(tree)),
            _ => None,
        });
        let error_pages = site.error_pages.iter().filter_map(|page| {
            let (tree, path) = match &page.file {
                // Without a root nothing is below it; the check of the configuration says so.
                ErrorPageFile::BelowRoot(path) => (site_tree.clone()?, path.clone().into_bytes()),
                ErrorPageFile::File(file) => {
                    let directory = file.parent().unwrap_or(Path::new("/"));
                    (tree(&Files::below(directory.to_string_lossy()), Runners::default()), path_below(directory, file))
                }
            };
            Some((page.from, page.to, tree, path))
        });
        let error_pages = error_pages.collect();
        Self { handlers, error_pages }
    }

    /// The caches before the site's forwards.
    pub fn response_caches(&self) -> impl Iterator<Item = &Arc<SharedResponseCache>> {
        self.handlers.iter().filter_map(|handler| match handler {
            SharedHandler::Forward(_, _, cache) => cache.as_ref(),
            _ => None,
        })
    }

    /// A worker's handlers, in the order of the routes. `upstreams` are the worker's own, in their order.
    pub fn handlers(&self, cache: &Rc<WorkerCache>, upstreams: &[Rc<Upstream>]) -> Vec<Handler> {
        let handlers = self.handlers.iter().map(|shared| match shared {
            SharedHandler::StaticFile(tree) => Handler::StaticFile(StaticFile::new(Arc::clone(tree), Rc::clone(cache))),
            SharedHandler::Respond(respond) => Handler::Respond(Arc::clone(respond)),
            SharedHandler::Forward(plan, index, shared) => {
                let response_cache =
                    shared.as_ref().map(|shared| ResponseCache::new(Arc::clone(shared), Rc::clone(cache)));
                Handler::Forward(Forward::new(Arc::clone(plan), Rc::clone(&upstreams[*index]), response_cache))
            }
        });
        handlers.collect()
    }

    /// A worker's error pages.
    pub fn error_pages(&self, cache: &Rc<WorkerCache>) -> ErrorPages {
        let pages = self.error_pages.iter().map(|(from, to, tree, path)| ErrorPage {
            statuses: *from..=*to,
            content_type: tree.content_type(path),
            files: StaticFile::new(Arc::clone(tree), Rc::clone(cache)),
            path: path.clone(),
        });
        ErrorPages::new(pages.collect())
    }
}

/// The path of a file, as a request for it below its directory would have it.
fn path_below(directory: &Path, file: &Path) -> Vec<u8> {
    let name = file.strip_prefix(directory).unwrap_or(file);
    [b"/", name.as_os_str().as_encoded_bytes()].concat()
}
