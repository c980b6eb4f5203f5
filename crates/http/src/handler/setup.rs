//! Setup of handlers from their configuration: first the part that all workers share, then each worker's own.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use super::cgi::{Programs, SharedPrograms};
use super::error_pages::{ErrorPage, ErrorPages};
use super::forward::{
    Authorizer, AuthorizerPlan, Forward, ForwardPlan, ForwardWorker, MirrorPlan, RequestMirror, SetShareError,
    SharedSplits,
};
use super::gateway::{Gateway, GatewayPlan, ScriptTree};
#[cfg(feature = "modules")]
use super::module::ModuleHandler;
use super::pace::{Pace, SharedPace};
use super::paced::ResponsePace;
use super::respond::Respond;
use super::response_cache::{CacheOwner, CachePlace, ResponseCache, SharedResponseCache};
use super::static_file::{FileTree, NamedFiles, StaticFile};
use super::status::StatusHandler;
use super::{HandlerOutcome, Routed};
#[cfg(not(feature = "modules"))]
use crate::absent::module_handler::ModuleHandler;
use crate::config::{self, Config, ErrorPageFile, FilesConfig, GatewayPart, PathPattern, Precedence, Runners};
use crate::disk_cache::DiskStore;
use crate::log::ServerLog;
use crate::metrics::HandlerKind;
use crate::modules::{Module, Modules};
use crate::object_cache::{ObjectStore, WorkerCache};
use crate::observer::Observer;
use crate::shared_cache::SharedCache;
use crate::spawner::Spawner;
use crate::spool::SpoolStore;
use crate::upstream::{SharedUpstream, Upstream};

/// Configured handlers; every worker has its own.
pub enum Handler {
    /// Static files below a root.
    StaticFile(StaticFile),
    /// A fixed response.
    Respond(Arc<Respond>),
    /// An upstream's response.
    Forward(Forward),
    /// A script's or application's response.
    Gateway(Gateway),
    /// A WebAssembly module's response.
    Module(ModuleHandler),
    /// The server's own status and metrics.
    Status(Arc<StatusHandler>),
}

impl Handler {
    /// Handler that only holds the place of a route, and is never asked.
    pub fn placeholder() -> Self {
        let config = config::RespondConfig {
            status: wire::http::Status::NOT_FOUND,
            body: String::new(),
            content_type: String::new(),
        };
        Self::Respond(Arc::new(Respond::new(&config)))
    }

    /// Handles a request, or declines it.
    pub fn handle(&self, routed: &Routed<'_>) -> HandlerOutcome {
        match self {
            Self::StaticFile(files) => files.handle(routed),
            Self::Respond(respond) => respond.handle(routed),
            Self::Forward(forward) => forward.handle(routed),
            Self::Gateway(gateway) => gateway.handle(routed),
            Self::Module(module) => module.handle(routed),
            Self::Status(status) => status.handle(routed),
        }
    }

    /// Kind for metrics.
    pub fn kind(&self) -> HandlerKind {
        match self {
            Self::StaticFile(_) => HandlerKind::Files,
            Self::Respond(_) => HandlerKind::Respond,
            Self::Forward(_) => HandlerKind::Forward,
            Self::Gateway(gateway) => match gateway.protocol() {
                config::GatewayProtocol::FastCgi => HandlerKind::FastCgi,
                config::GatewayProtocol::Cgi => HandlerKind::Cgi,
                config::GatewayProtocol::Scgi => HandlerKind::Scgi,
                config::GatewayProtocol::Uwsgi => HandlerKind::Uwsgi,
            },
            Self::Module(_) => HandlerKind::Module,
            Self::Status(_) => HandlerKind::Status,
        }
    }
}

/// Files that a site serves over FTP, on one worker.
pub struct FtpFiles {
    /// Configuration of the site.
    pub config: Arc<config::FtpConfig>,
    /// Files below its root.
    pub files: NamedFiles,
    /// Rate of all sessions of the site.
    pace: Arc<SharedPace>,
}

impl FtpFiles {
    /// Maximum rates of a transfer.
    pub fn pace(&self) -> Pace<'_> {
        let Self { config, pace, .. } = self;
        Pace { session_max: config.session_rate_max, site_max: config.site_rate_max.map(|rate| (rate, &**pace)) }
    }
}

/// Part of a site's handlers that all workers share.
#[derive(Debug)]
pub struct SharedSite {
    /// Paths of the routes.
    paths: Vec<PathPattern>,
    handlers: Vec<SharedHandler>,
    /// Lowest and highest status, file tree and path of each error page.
    error_pages: Vec<(u16, u16, Arc<FileTree>, Vec<u8>)>,
    /// Plan and upstream of each rule of forward authentication, the site's own first; `None` for a rule without a
    /// server.
    authorizers: Vec<Option<(Arc<AuthorizerPlan>, Arc<SharedUpstream>)>>,
    /// Files that are served over FTP.
    ftp: Option<Arc<FileTree>>,
    ftp_pace: Arc<SharedPace>,
    /// Rate of all responses.
    response_pace: Arc<SharedPace>,
}

#[derive(Debug)]
enum SharedHandler {
    StaticFile(Arc<FileTree>),
    Respond(Arc<Respond>),
    Forward(SharedForward),
    Gateway(Arc<SharedGateway>, GatewayPart),
    Module(Arc<Module>),
    Status(Arc<StatusHandler>),
}

/// Forwarding to an upstream, and to those of shares of its requests.
#[derive(Debug)]
struct SharedForward {
    plan: Arc<ForwardPlan>,
    upstream: Arc<SharedUpstream>,
    /// Response cache in front of it.
    cache: Option<Arc<SharedResponseCache>>,
    /// Shares of requests, and the forwarding of each.
    splits: Option<(Arc<SharedSplits>, Vec<SharedForward>)>,
    /// Mirrors, each with its upstream.
    mirrors: Vec<(Arc<MirrorPlan>, Arc<SharedUpstream>)>,
}

/// State that all parts of a gateway share.
#[derive(Debug)]
struct SharedGateway {
    config: Arc<config::GatewayConfig>,
    plan: Arc<GatewayPlan>,
    forward: Arc<ForwardPlan>,
    runner: Runner,
    cache: Option<Arc<SharedResponseCache>>,
}

/// Runner of a gateway's scripts.
#[derive(Debug)]
enum Runner {
    /// Servers of this upstream.
    Servers(Arc<SharedUpstream>),
    /// Programs that Tailcoat starts.
    Programs(Arc<SharedPrograms>),
}

/// Upstreams of a configuration, by name.
pub struct UpstreamTable<'a> {
    by_name: HashMap<&'a str, &'a Arc<SharedUpstream>>,
}

impl<'a> UpstreamTable<'a> {
    /// Creates the table of these upstreams.
    pub fn new(list: &'a [Arc<SharedUpstream>]) -> Self {
        Self { by_name: list.iter().map(|upstream| (upstream.name(), upstream)).collect() }
    }

    /// The upstream that requests are forwarded to.
    ///
    /// # Errors
    /// The configuration has no such upstream; its checks should have said so.
    fn of(&self, name: &str) -> io::Result<&'a Arc<SharedUpstream>> {
        let found = self.by_name.get(name).copied();
        found.ok_or_else(|| io::Error::other(format!("there is no upstream `{name}`")))
    }

    /// True if the configuration has this upstream itself, not another of its name.
    fn has(&self, upstream: &Arc<SharedUpstream>) -> bool {
        self.by_name.get(upstream.name()).is_some_and(|known| Arc::ptr_eq(known, upstream))
    }
}

/// A worker's own upstreams, by the part that all workers share.
#[derive(Default)]
pub struct WorkerUpstreams {
    list: Vec<Rc<Upstream>>,
    indices: HashMap<*const SharedUpstream, usize>,
}

impl WorkerUpstreams {
    /// Creates the upstreams of a list. Those of `reused` whose shared part is in it stay; `new` makes the others, by
    /// their index.
    pub fn reuse(
        shared: &[Arc<SharedUpstream>],
        reused: &Self,
        mut new: impl FnMut(usize, &Arc<SharedUpstream>) -> Rc<Upstream>,
    ) -> Self {
        let upstream = |(index, shared)| reused.find(shared).map_or_else(|| new(index, shared), Rc::clone);
        let indices = shared.iter().enumerate().map(|(index, shared)| (Arc::as_ptr(shared), index)).collect();
        Self { list: shared.iter().enumerate().map(upstream).collect(), indices }
    }

    /// The upstreams, in the order of the configuration.
    pub fn list(&self) -> &[Rc<Upstream>] {
        &self.list
    }

    fn find(&self, shared: &Arc<SharedUpstream>) -> Option<&Rc<Upstream>> {
        self.list.get(*self.indices.get(&Arc::as_ptr(shared))?)
    }

    /// The worker's part of an upstream of the configuration.
    fn of(&self, shared: &Arc<SharedUpstream>) -> Rc<Upstream> {
        // Local invariant: each site uses upstreams of its own configuration.
        self.find(shared).map_or_else(|| Upstream::new(Arc::clone(shared), 0), Rc::clone)
    }
}

/// Parts of a worker that handlers are built from.
pub struct WorkerParts<'a> {
    /// Cache of the worker.
    pub cache: &'a Rc<WorkerCache>,
    /// Upstreams of the worker.
    pub upstreams: &'a WorkerUpstreams,
    /// Parts of the worker that all forwards share.
    pub forwards: &'a ForwardWorker,
}

/// Shared parts that handlers are built from.
#[derive(Clone, Copy)]
pub struct HandlerParts<'a> {
    /// Object cache.
    pub store: &'a Arc<ObjectStore>,
    /// Upstreams of the configuration.
    pub upstreams: &'a UpstreamTable<'a>,
    /// Modules of the configuration.
    pub modules: &'a Modules,
    /// Log for operators.
    pub log: &'a ServerLog,
    /// Collector of metrics and open requests.
    pub observer: &'a Arc<Observer>,
    /// Thread that starts programs; required if the configuration [has programs](config::Config::has_programs).
    pub spawner: Option<&'a Arc<Spawner>>,
    /// Store in which messages between clients and upstreams are buffered.
    pub spools: &'a Arc<SpoolStore>,
    /// Cache of responses on disk.
    pub disk: &'a Arc<DiskStore>,
    /// Cache of responses that instances share.
    pub shared_cache: &'a Arc<SharedCache>,
}

impl SharedSite {
    /// Prepares a site's handlers and opens no file. Unchanged parts of `reused` keep their state: open
    /// files, stored responses, running programs. A site of FTP shares the files of an earlier one of HTTP.
    ///
    /// # Errors
    /// A handler needs an upstream, a module or the threads for programs, and there is none.
    pub fn new(
        site: &config::SiteConfig,
        config: &Config,
        parts: HandlerParts<'_>,
        reused: Option<&Self>,
        earlier: &[Arc<Self>],
    ) -> io::Result<Self> {
        let HandlerParts { store, upstreams, modules, .. } = parts;
        let tree = |files: &FilesConfig, runners: Runners, precedence: Precedence| {
            let (server_field, ranges_max) = (config.server.server_field, config.limits.ranges_max);
            let mut trees = reused.into_iter().flat_map(Self::trees);
            let known = trees.find(|tree| tree.is_of(files, (&runners, &precedence), server_field, ranges_max));
            known.cloned().unwrap_or_else(|| {
                FileTree::new(files.clone(), runners, precedence, server_field, ranges_max, Arc::clone(store))
            })
        };
        let tiers = (parts.disk, parts.shared_cache);
        let mut gateways: Vec<Arc<SharedGateway>> = Vec::new();
        let handlers: Vec<_> = site
            .routes
            .iter()
            .enumerate()
            .map(|(index, route)| {
                Ok(match &route.handler {
                    config::HandlerConfig::Files(files) => SharedHandler::StaticFile(tree(
                        files,
                        Runners::of(site, index),
                        Precedence::of(config, site, index),
                    )),
                    config::HandlerConfig::Respond(respond) => SharedHandler::Respond(Arc::new(Respond::new(respond))),
                    config::HandlerConfig::Gateway(gateway, part) => {
                        let shared = match gateways.iter().find(|shared| Arc::ptr_eq(&shared.config, gateway)) {
                            Some(known) => Arc::clone(known),
                            None => {
                                let reused = reused.and_then(|reused| reused.gateway(gateway));
                                let precedence = Precedence::of(config, site, index);
                                let place = |caching: &config::ResponseCaching| {
                                    let (path, forward, gateway) = (&route.path, &gateway.forward, Some(&**gateway));
                                    CachePlace::new(tiers, CacheOwner { site, path, forward, gateway }, caching)
                                };
                                let shared = SharedGateway::new(gateway, config, precedence, parts, &place, reused)?;
                                let shared = Arc::new(shared);
                                gateways.push(Arc::clone(&shared));
                                shared
                            }
                        };
                        SharedHandler::Gateway(shared, *part)
                    }
                    config::HandlerConfig::Forward(forward) => {
                        let cache = |forward: &config::ForwardConfig| {
                            let caching = forward.cache.as_ref()?;
                            let reused = reused.and_then(|reused| reused.cache(&route.path, caching, forward));
                            let owner = CacheOwner { site, path: &route.path, forward, gateway: None };
                            let place = Some(CachePlace::new(tiers, owner, caching));
                            let (caching, store) = (caching.clone(), Arc::clone(store));
                            let ranges_max = config.limits.ranges_max;
                            Some(SharedResponseCache::reuse(caching, forward, ranges_max, store, place, reused))
                        };
                        let mut known = reused.into_iter().flat_map(Self::splits);
                        let splits = known.find(|known| known.is_of(&forward.splits));
                        let splits = splits.map_or_else(|| SharedSplits::new(&forward.splits), Arc::clone);
                        SharedHandler::Forward(SharedForward::new(forward, parts, splits, &cache)?)
                    }
                    config::HandlerConfig::Status(view) => {
                        let is_guarded = config.guards(site, &route.path);
                        SharedHandler::Status(Arc::new(StatusHandler::new(view, is_guarded, parts.observer)))
                    }
                    config::HandlerConfig::Module(module) => {
                        let found = modules.find(module);
                        let not_loaded =
                            || io::Error::other(format!("module {} was not loaded", module.file.display()));
                        SharedHandler::Module(Arc::clone(found.ok_or_else(not_loaded)?))
                    }
                })
            })
            .collect::<io::Result<_>>()?;
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
                    let files = FilesConfig::below(directory.to_string_lossy());
                    (tree(&files, Runners::default(), Precedence::default()), path_below(directory, file))
                }
            };
            Some((page.from, page.to, tree, path))
        });
        let error_pages = error_pages.collect();
        let paths = site.routes.iter().map(|route| route.path.clone()).collect();
        let ftp = site.ftp.as_ref().map(|ftp| {
            let mut trees = earlier.iter().flat_map(|site| site.trees());
            let shared = trees.find(|tree| tree.has_files(&ftp.files)).cloned();
            shared.unwrap_or_else(|| tree(&ftp.files, Runners::default(), Precedence::default()))
        });
        let authorizer = |auth: &config::ForwardAuth| {
            let upstream = upstreams.of(&auth.forward.upstream)?;
            Ok((AuthorizerPlan::new(auth, upstream, parts.spools), Arc::clone(upstream)))
        };
        let auths = site.rules.forward_auths.iter().chain(&config.rules.forward_auths);
        let authorizers = auths.map(|rule| rule.auth.as_ref().map(authorizer).transpose());
        let authorizers = authorizers.collect::<io::Result<_>>()?;
        Ok(Self {
            paths,
            handlers,
            error_pages,
            authorizers,
            ftp,
            ftp_pace: Arc::default(),
            response_pace: Arc::default(),
        })
    }

    fn trees(&self) -> impl Iterator<Item = &Arc<FileTree>> {
        let of_handlers = self.handlers.iter().filter_map(|handler| match handler {
            SharedHandler::StaticFile(tree) => Some(tree),
            _ => None,
        });
        of_handlers.chain(self.error_pages.iter().map(|(_, _, tree, _)| tree)).chain(&self.ftp)
    }

    /// Gateway with this configuration.
    fn gateway(&self, config: &config::GatewayConfig) -> Option<&SharedGateway> {
        self.handlers.iter().find_map(|handler| match handler {
            SharedHandler::Gateway(shared, _) if *shared.config == *config => Some(&**shared),
            _ => None,
        })
    }

    /// Response cache for these paths that can be reused.
    fn cache(
        &self,
        path: &PathPattern,
        caching: &config::ResponseCaching,
        forward: &config::ForwardConfig,
    ) -> Option<&Arc<SharedResponseCache>> {
        let handlers = self.paths.iter().zip(&self.handlers).filter(|(of, _)| *of == path);
        handlers
            .filter_map(|(_, handler)| match handler {
                SharedHandler::Forward(forward) => Some(forward.caches()),
                _ => None,
            })
            .flatten()
            .find(|cache| cache.means_the_same(caching, forward))
    }

    /// Response caches of the site's forwards and gateways.
    pub fn response_caches(&self) -> impl Iterator<Item = &Arc<SharedResponseCache>> {
        self.handlers.iter().flat_map(|handler| match handler {
            SharedHandler::Forward(forward) => forward.caches(),
            SharedHandler::Gateway(shared, GatewayPart::Scripts) => shared.cache.iter().collect(),
            _ => Vec::new(),
        })
    }

    fn splits(&self) -> impl Iterator<Item = &Arc<SharedSplits>> {
        self.handlers.iter().filter_map(|handler| match handler {
            SharedHandler::Forward(forward) => forward.splits.as_ref().map(|(splits, _)| splits),
            _ => None,
        })
    }

    /// Returns to the shares of the configuration after [`Self::set_share`].
    pub fn reset_shares(&self) {
        self.splits().for_each(|splits| splits.reset());
    }

    /// Sets the share of requests that an upstream gets by `split`; returns the number of handlers with such a share.
    ///
    /// # Errors
    /// All shares of a handler would be more than 1 together.
    pub fn set_share(&self, upstream: &str, share: f64) -> Result<usize, SetShareError> {
        let mut count = 0;
        for splits in self.splits() {
            match splits.set_share(upstream, share) {
                Ok(()) => count += 1,
                Err(SetShareError::Unknown) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    /// True if this part is as [`Self::new`] would make it for the same site in a configuration that differs only in
    /// routes of a controller.
    pub fn stays(&self, upstreams: &UpstreamTable<'_>) -> bool {
        let is_same = |handler: &SharedHandler| match handler {
            SharedHandler::Respond(_) => true,
            SharedHandler::Forward(forward) => forward.stays(upstreams),
            // Sites of routes have no others.
            _ => false,
        };
        let mut authorizers = self.authorizers.iter().flatten();
        self.handlers.iter().all(is_same)
            && self.error_pages.is_empty()
            && self.ftp.is_none()
            && authorizers.all(|(_, upstream)| upstreams.has(upstream))
    }

    /// Creates a worker's handlers, in the order of the routes.
    pub fn handlers(&self, worker: &WorkerParts<'_>) -> Vec<Handler> {
        let WorkerParts { cache, forwards, .. } = worker;
        let handlers = self.handlers.iter().map(|shared| match shared {
            SharedHandler::StaticFile(tree) => Handler::StaticFile(StaticFile::new(Arc::clone(tree), Rc::clone(cache))),
            SharedHandler::Respond(respond) => Handler::Respond(Arc::clone(respond)),
            SharedHandler::Forward(forward) => Handler::Forward(forward.forward(worker)),
            SharedHandler::Gateway(shared, part) => {
                Handler::Gateway(Gateway::new(&shared.plan, *part, shared.forward(worker)))
            }
            SharedHandler::Module(module) => {
                Handler::Module(ModuleHandler::new(Arc::clone(module), Rc::clone(&forwards.overload)))
            }
            SharedHandler::Status(status) => Handler::Status(Arc::clone(status)),
        });
        handlers.collect()
    }

    /// Creates a worker's ways to the authentication servers, in the order of their rules.
    pub fn authorizers(&self, worker: &WorkerParts<'_>) -> Vec<Option<Authorizer>> {
        let authorizer = |(plan, upstream): &(Arc<AuthorizerPlan>, Arc<SharedUpstream>)| {
            Authorizer::new(plan, worker.upstreams.of(upstream), worker.forwards)
        };
        self.authorizers.iter().map(|plan| plan.as_ref().map(authorizer)).collect()
    }

    /// Creates a worker's part of a site of FTP; `None` for a site of HTTP.
    pub fn ftp(&self, site: &config::SiteConfig, cache: &Rc<WorkerCache>) -> Option<FtpFiles> {
        let (config, tree) = (site.ftp.as_ref()?, self.ftp.as_ref()?);
        let files = NamedFiles::new(Arc::clone(tree), Rc::clone(cache));
        Some(FtpFiles { config: Arc::clone(config), files, pace: Arc::clone(&self.ftp_pace) })
    }

    /// Creates a worker's maximum rates of responses; `None` without.
    pub fn pace(&self, site: &config::SiteConfig) -> Option<ResponsePace> {
        (!site.rates.is_unlimited()).then(|| ResponsePace::new(site.rates, &self.response_pace))
    }

    /// Creates a worker's error pages.
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

impl SharedForward {
    fn new(
        forward: &config::ForwardConfig,
        parts: HandlerParts<'_>,
        splits: Arc<SharedSplits>,
        cache: &dyn Fn(&config::ForwardConfig) -> Option<Arc<SharedResponseCache>>,
    ) -> io::Result<Self> {
        let HandlerParts { upstreams, spools, .. } = parts;
        let upstream = upstreams.of(&forward.upstream)?;
        let others = forward.splits.iter().map(|split| forward.to_other(&split.upstream));
        let others = others.map(|other| Self::new(&other, parts, SharedSplits::new(&[]), cache));
        let others: Vec<_> = others.collect::<io::Result<_>>()?;
        let mirrors = forward.mirrors.iter().map(|mirror| {
            let upstream = upstreams.of(&mirror.upstream)?;
            Ok((MirrorPlan::new(mirror, forward, upstream, spools), Arc::clone(upstream)))
        });
        Ok(Self {
            plan: ForwardPlan::new(forward, upstream, spools),
            upstream: Arc::clone(upstream),
            cache: cache(forward),
            splits: (!others.is_empty()).then_some((splits, others)),
            mirrors: mirrors.collect::<io::Result<_>>()?,
        })
    }

    /// Response caches of all upstreams.
    fn caches(&self) -> Vec<&Arc<SharedResponseCache>> {
        let others = self.splits.iter().flat_map(|(_, others)| others).flat_map(Self::caches);
        self.cache.iter().chain(others).collect()
    }

    /// True if it is as a configuration with these upstreams would make it.
    fn stays(&self, upstreams: &UpstreamTable<'_>) -> bool {
        let mut mirrors = self.mirrors.iter().map(|(_, upstream)| upstream);
        let mut others = self.splits.iter().flat_map(|(_, others)| others);
        upstreams.has(&self.upstream)
            && self.plan.stays(&self.upstream)
            && mirrors.all(|upstream| upstreams.has(upstream))
            && others.all(|other| other.stays(upstreams))
    }

    /// Creates a worker's part.
    fn forward(&self, worker: &WorkerParts<'_>) -> Forward {
        let WorkerParts { cache, upstreams, forwards } = worker;
        let response_cache = self.cache.as_ref().map(|shared| ResponseCache::new(Arc::clone(shared), Rc::clone(cache)));
        let splits = self.splits.as_ref().map(|(splits, others)| {
            let others = others.iter().map(|other| other.forward(worker)).collect();
            (Arc::clone(splits), others)
        });
        let mirrors =
            self.mirrors.iter().map(|(plan, upstream)| RequestMirror::new(plan, upstreams.of(upstream), forwards));
        let forward = Forward::new(Arc::clone(&self.plan), upstreams.of(&self.upstream), response_cache, forwards);
        forward.with_shares(splits, mirrors.collect())
    }
}

impl SharedGateway {
    fn new(
        gateway: &Arc<config::GatewayConfig>,
        config: &Config,
        precedence: Precedence,
        parts: HandlerParts<'_>,
        place: &dyn Fn(&config::ResponseCaching) -> CachePlace,
        reused: Option<&Self>,
    ) -> io::Result<Self> {
        let HandlerParts { store, upstreams, log, spawner, observer, .. } = parts;
        let forward = &gateway.forward;
        let (plan, runner) = match gateway.protocol {
            config::GatewayProtocol::Cgi => {
                let spawner = spawner.ok_or_else(|| io::Error::other("there is no thread to run programs"))?;
                let programs = match reused.map(|reused| &reused.runner) {
                    Some(Runner::Programs(programs)) => Arc::clone(programs),
                    _ => {
                        let counted = observer.metrics().map(|metrics| Arc::clone(metrics.programs()));
                        SharedPrograms::new(&gateway.programs, Arc::clone(spawner), counted.unwrap_or_default())
                    }
                };
                (ForwardPlan::of_programs(forward, log, parts.spools), Runner::Programs(programs))
            }
            _ => {
                let upstream = upstreams.of(&forward.upstream)?;
                (ForwardPlan::new(forward, upstream, parts.spools), Runner::Servers(Arc::clone(upstream)))
            }
        };
        let cache = forward.cache.as_ref().map(|caching| {
            let reused = reused.and_then(|reused| reused.cache.as_ref());
            let ranges_max = config.limits.ranges_max;
            let place = Some(place(caching));
            SharedResponseCache::reuse(caching.clone(), forward, ranges_max, Arc::clone(store), place, reused)
        });
        let server_field = config.server.server_field;
        let plan_of_scripts = match reused.filter(|reused| reused.plan.is_as(server_field, &precedence)) {
            Some(reused) => Arc::clone(&reused.plan),
            None => {
                let tree = gateway.has_files().then(|| ScriptTree::new(gateway, store));
                GatewayPlan::new(Arc::clone(gateway), tree, log, server_field, precedence)
            }
        };
        Ok(Self { config: Arc::clone(gateway), plan: plan_of_scripts, forward: plan, runner, cache })
    }

    /// Creates a worker's `Forward` to the runner of the scripts.
    fn forward(&self, worker: &WorkerParts<'_>) -> Forward {
        let WorkerParts { cache, upstreams, forwards } = worker;
        let response_cache = self.cache.as_ref().map(|shared| ResponseCache::new(Arc::clone(shared), Rc::clone(cache)));
        let plan = Arc::clone(&self.forward);
        match &self.runner {
            Runner::Servers(upstream) => Forward::new(plan, upstreams.of(upstream), response_cache, forwards),
            Runner::Programs(shared) => {
                Forward::to_programs(plan, Programs::new(Arc::clone(shared)), response_cache, forwards)
            }
        }
    }
}

/// Path of a file, as in a request to its directory's tree.
fn path_below(directory: &Path, file: &Path) -> Vec<u8> {
    let name = file.strip_prefix(directory).unwrap_or(file);
    [b"/", name.as_os_str().as_encoded_bytes()].concat()
}
