//! `tailcoat explain`: what a configuration does with a request, and why. The routing of requests itself is asked
//! ([`crate::routing::explain`]), with files as they are now. No upstream and no script is asked, and no limit counts it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use wire::h1::{H1Event, H1ServerConnection};
use wire::http::{Method, Request, RequestHead};

use crate::config::{
    self, CacheConfig, Config, ConfigPlaces, GatewayPart, HandlerConfig, HostPattern, Listen, LogLevel, OptionPlace,
    PathPattern, Precedence, RouteConfig, Runners, SiteConfig, StatusViewKind,
};
use crate::connection::{Arrived, request_limits, route};
use crate::control::{ExplainQuestion, ExplainedOption, ExplainedRule, ExplainedServer, ExplainedSite, Explanation};
use crate::handler::gateway::{self, GatewayLookup};
use crate::handler::static_file::{FileTree, StaticFile};
use crate::handler::{
    ClientLinkCell, Encoders, ErrorPages, HandlerOutcome, LateOutcome, Now, OwnedRequest, Response, Routed,
};
use crate::known_clients::Bans;
use crate::log::{LogClient, ServerLog};
use crate::metrics::NameSlot;
use crate::object_cache::{ObjectStore, WorkerCache};
use crate::routing::SiteSetup;
use crate::routing::explain::{
    ExplainedKind, ExplainedStep, ProbeFuture, Probed, RouteProbe, SiteExplanation, explain as explain_in_site,
    site_for_host,
};
use crate::routing::rules::{AllRules, ChallengeSecret, RequestIds, Rules};
use crate::tls::TlsInfo;
use crate::worker::{self, ListenerPlan};

/// Configuration that is asked, and the places of its options.
pub(crate) struct ExplainedConfig<'a> {
    /// Configuration.
    pub(crate) config: &'a Config,
    /// Places of its options; empty if they are not known.
    pub(crate) places: &'a ConfigPlaces,
    /// Banned clients.
    pub(crate) bans: Arc<Bans>,
}

/// Parts of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ExplainedUrl {
    is_https: bool,
    /// Host, in lower case; empty without one.
    host: String,
    port: Option<u16>,
    /// Path and query.
    target: String,
}

impl ExplainedUrl {
    /// Parses a URL, or a path, or a host with a path.
    fn parse(text: &str) -> Result<Self, String> {
        let (is_https, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, _)) => return Err(format!("`{scheme}` is not http or https")),
            None => (false, text),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let target = match target {
            "" => "/".to_owned(),
            query if query.starts_with('?') => format!("/{query}"),
            target => target.to_owned(),
        };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                let port = port.parse().map_err(|_| format!("`{port}` is not a port"))?;
                (host, Some(port))
            }
            _ => (authority, None),
        };
        Ok(Self { is_https, host: host.to_ascii_lowercase(), port, target })
    }

    fn port(&self) -> u16 {
        self.port.unwrap_or(if self.is_https { 443 } else { 80 })
    }
}

/// A listener, and the indices of its sites.
struct ExplainedListener<'c> {
    plan: &'c ListenerPlan,
    sites: Vec<(usize, &'c SiteConfig)>,
}

impl fmt::Display for ExplainedListener<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocols = match (self.plan.has_tls, self.plan.has_http3) {
            (false, _) => "",
            (true, false) => " with TLS",
            (true, true) => " with TLS and HTTP/3",
        };
        write!(f, "{}{protocols}", self.plan.listen)
    }
}

/// Explains what a configuration does with a request. May wait for disks, and must not be called in a runtime.
///
/// # Errors
/// A message for people if the question is invalid.
pub(crate) fn explain(explained: &ExplainedConfig<'_>, question: &ExplainQuestion) -> Result<Explanation, String> {
    let config = explained.config;
    let mut url = ExplainedUrl::parse(&question.url)?;
    let plans = worker::plan(config);
    let listeners = listeners(config, &plans);
    if url.host.is_empty() && url.port.is_none() {
        choose_first_site(config, &mut url);
    }
    let mut notes = Vec::new();
    let listener = find_listener(&listeners, &url, question.listen.as_deref(), &mut notes)?;
    let client = client(question.client.as_deref(), &listener.plan.listen)?;
    let head = request_text(question, &url, listener.plan.has_tls)?;
    let scheme = if listener.plan.has_tls { "https" } else { "http" };
    let port = url.port.map_or_else(String::new, |port| format!(":{port}"));
    let mut explanation = Explanation {
        request: format!("{} {scheme}://{}{port}{}", question.method, url.host, url.target),
        listener: listener.to_string(),
        notes,
        ..Explanation::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start a runtime: {error}"))?;
    runtime.block_on(explain_request(explained, listener, client, &head, &mut explanation))?;
    Ok(explanation)
}

async fn explain_request(
    explained: &ExplainedConfig<'_>,
    listener: &ExplainedListener<'_>,
    peer: LogClient,
    head_text: &str,
    explanation: &mut Explanation,
) -> Result<(), String> {
    let config = explained.config;
    let (bytes, mut head) = (head_text.as_bytes(), RequestHead::default());
    let mut connection = H1ServerConnection::default();
    let incoming = match connection.handle_input(bytes, &mut head, &request_limits(&config.limits)) {
        Ok(H1Event::Request(incoming)) => incoming,
        Ok(_) => return Err("the request is incomplete".to_owned()),
        Err(rejection) => {
            explanation.outcome = format!("status {}: {}", rejection.status.code(), rejection.reason);
            return Ok(());
        }
    };
    let (target, host) = (incoming.target, incoming.host);
    let (link, now) = (ClientLinkCell::default(), Now::read());
    let server_name = host.map(|host| String::from_utf8_lossy(host.lower_case(&mut Vec::new())).into());
    let tls = listener.plan.has_tls.then(|| {
        Rc::new(TlsInfo {
            version: "TLSv1.3",
            cipher_suite: "TLS13_AES_128_GCM_SHA256",
            server_name,
            client_subject: None,
            site: 0,
            is_http2: false,
            has_http3: false,
            ja4: None,
            http2: OnceLock::new(),
        })
    });
    let arrived = Arrived { client: peer, tls: tls.as_ref(), link: &link, now };
    let (mut path_buffer, mut host_buffer) = (Vec::new(), Vec::new());
    let request = Request { head: &head, bytes };
    let routed = match route(request, &target, host, arrived, &mut path_buffer, &mut host_buffer) {
        Ok(routed) => routed,
        Err(rejection) => {
            explanation.outcome = format!("status {}: {}", rejection.status.code(), rejection.reason);
            return Ok(());
        }
    };
    let log = ServerLog::stderr(LogLevel::Error);
    let Some((index, reason)) = site_for_host(&listener.sites, routed.host) else {
        explanation.outcome = "status 404: no site of this address has the host".to_owned();
        return Ok(());
    };
    let site = &config.sites[index];
    let alone = without_other_handlers(config, index);
    let secret = ChallengeSecret::generate().map_err(|error| error.to_string())?;
    let all = AllRules::new(&alone, &log, &secret, None).map_err(|error| error.to_string())?;
    let routed = match &all.trusted_proxies {
        Some(trusted) if trusted.has(peer) => {
            let (client, proxied) = trusted.client(peer, &routed.request);
            Routed { client, proxied: Some(proxied), ..routed }
        }
        _ => routed,
    };
    explanation.client = routed.client.to_string();
    explanation.site = Some(ExplainedSite {
        name: site.label(),
        reason: reason.to_owned(),
        line: explained.places.site(index).as_ref().and_then(line),
    });
    if explained.bans.has(routed.client) {
        explanation.outcome = "status 403: the client is banned; `tailcoat bans` lists bans".to_owned();
        return Ok(());
    }
    if listener.plan.has_tls && site.tls.client_certificates.is_some() {
        explanation.notes.push("the site requires a client certificate, which this explanation has not".to_owned());
    }
    let ids = Rc::new(RequestIds::default());
    let rules = all.sites.first().and_then(Option::as_ref).map(|shared| Rules::new(shared, &ids));
    let store = ObjectStore::new(CacheConfig { watch: false, ..config.cache.clone() });
    let store = store.map_err(|error| format!("cannot look up files: {error}"))?;
    let probe = HandlerProbe { config, site, store: Arc::clone(&store), cache: Rc::new(WorkerCache::new(store)) };
    let setup = SiteSetup {
        config: &alone.sites[0],
        ftp: None,
        gate: None,
        handlers: placeholders(site),
        error_pages: ErrorPages::default(),
        default_pages: Rc::default(),
        pace: None,
        encoders: Rc::new(Encoders::without_store()),
        rules: None,
        log: None,
        server_log: log,
        counted: NameSlot::NONE,
        tls: None,
    };
    let SiteExplanation { steps, path, route, outcome } = explain_in_site(setup, rules, &probe, &routed).await;
    let rule_places = RulePlaces::new(config, index, explained.places);
    explanation.steps = steps.iter().map(|step| rule_places.rule(step)).collect();
    explanation.path = String::from_utf8_lossy(&path).into_owned();
    explanation.outcome = outcome;
    if let Some(route) = route {
        let step = ExplainedStep::new(ExplainedKind::Handler, route, true, String::new());
        explanation.handler = Some(rule_places.rule(&step));
        explanation.servers = servers(config, &site.routes[route].handler);
    }
    let options = explained.places.effective(index, route);
    explanation.options = options
        .into_iter()
        .map(|place| ExplainedOption { line: line(&place), option: place.text, block: place.block.to_owned() })
        .collect();
    Ok(())
}

/// Place of an option: `file:line`.
fn line(place: &OptionPlace) -> Option<String> {
    place.line.as_ref().map(|(file, line)| format!("{file}:{line}"))
}

/// The configuration with this site alone.
fn without_other_handlers(config: &Config, site: usize) -> Config {
    let settings = config.server.clone();
    Config {
        server: config::ServerSettings {
            trusted_proxies: settings.trusted_proxies,
            forwarded_field: settings.forwarded_field,
            client_knowledge: settings.client_knowledge,
            ..config::ServerSettings::default()
        },
        limits: config.limits.clone(),
        sites: vec![config.sites[site].clone()],
        rules: config.rules.clone(),
        ..Config::default()
    }
}

/// Handlers that are never asked: the probe looks up what the real ones do.
fn placeholders(site: &SiteConfig) -> Vec<crate::handler::Handler> {
    site.routes.iter().map(|_| crate::handler::Handler::placeholder()).collect()
}

/// Looks up what handlers do, without asking upstreams.
struct HandlerProbe<'c> {
    config: &'c Config,
    site: &'c SiteConfig,
    store: Arc<ObjectStore>,
    cache: Rc<WorkerCache>,
}

impl RouteProbe for HandlerProbe<'_> {
    fn probe<'a>(&'a self, route: usize, routed: &'a Routed<'a>) -> ProbeFuture<'a> {
        Box::pin(async move {
            match &self.site.routes[route].handler {
                HandlerConfig::Files(files) => self.probe_files(files, route, routed).await,
                HandlerConfig::Gateway(gateway, part) => self.probe_script(gateway, *part, route, routed).await,
                HandlerConfig::Respond(respond) => {
                    Probed::Responds(format!("status {}: a fixed response", respond.status.code()))
                }
                HandlerConfig::Forward(forward) => Probed::Responds(forwarded(forward, routed)),
                HandlerConfig::Module(module) => Probed::Responds(format!("runs the module {}", module.file.display())),
                HandlerConfig::Status(view) => Probed::Responds(match view.kind {
                    StatusViewKind::Metrics => "status 200: metrics".to_owned(),
                    StatusViewKind::Page => "status 200: the status page".to_owned(),
                }),
            }
        })
    }
}

impl HandlerProbe<'_> {
    async fn probe_files(&self, files: &config::FilesConfig, route: usize, routed: &Routed<'_>) -> Probed {
        let runners = Runners::of(self.site, route);
        let precedence = Precedence::of(self.config, self.site, route);
        let ranges_max = self.config.limits.ranges_max;
        let tree = FileTree::new(files.clone(), runners, precedence, false, ranges_max, Arc::clone(&self.store));
        let handler = StaticFile::new(tree, Rc::clone(&self.cache));
        let root = handler.root_of(routed.host).unwrap_or_default();
        let outcome: LateOutcome = match handler.handle(routed) {
            HandlerOutcome::Wait(outcome) => outcome.await,
            HandlerOutcome::Ready(response) => HandlerOutcome::Ready(response),
            HandlerOutcome::Reject(rejection) => HandlerOutcome::Reject(rejection),
            HandlerOutcome::Elsewhere(path) => HandlerOutcome::Elsewhere(path),
            _ => HandlerOutcome::Decline,
        };
        match outcome {
            HandlerOutcome::Ready(response) => Probed::Responds(file_response(&response, &root)),
            HandlerOutcome::Elsewhere(path) => Probed::Elsewhere(path),
            HandlerOutcome::Reject(rejection) => Probed::Declines(match rejection.reason() {
                "" => format!("nothing to send in {}", root.display()),
                reason => format!("{reason}, in {}", root.display()),
            }),
            _ if !matches!(routed.request.method(), Method::Get | Method::Head) => {
                Probed::Declines("files support only GET and HEAD".to_owned())
            }
            _ if routed.query.is_some() && !files.ignore_query => {
                Probed::Declines("a request with a query goes to the next handler; see `ignore-query`".to_owned())
            }
            _ => Probed::Declines(format!("no such file in {}", root.display())),
        }
    }

    async fn probe_script(
        &self,
        gateway: &Arc<config::GatewayConfig>,
        part: GatewayPart,
        route: usize,
        routed: &Routed<'_>,
    ) -> Probed {
        let precedence = Precedence::of(self.config, self.site, route);
        routed.link.link();
        // Owned, as for a handler: lookups outlive the bytes that were read.
        let request = OwnedRequest::new(routed);
        let found = gateway::look_up(gateway, part, &precedence, &self.store, &request.routed(routed.has_next)).await;
        let runner = match gateway.protocol {
            config::GatewayProtocol::Cgi => "as a program".to_owned(),
            _ => format!("by {}", gateway.forward.upstream),
        };
        match found {
            GatewayLookup::Script(script) if script.file.is_empty() => {
                Probed::Responds(format!("runs the application, {runner}"))
            }
            GatewayLookup::Script(script) => {
                Probed::Responds(format!("runs {}, {runner}", String::from_utf8_lossy(&script.file)))
            }
            GatewayLookup::Elsewhere(path) => Probed::Elsewhere(path),
            GatewayLookup::Directory => {
                Probed::Responds("status 301: redirects to the directory with a slash".to_owned())
            }
            GatewayLookup::Nothing if routed.has_next => Probed::Declines("no script has the path".to_owned()),
            GatewayLookup::Nothing => Probed::Responds("status 404: no script has the path".to_owned()),
            GatewayLookup::Rejected(reason) if routed.has_next => Probed::Declines(reason.to_owned()),
            GatewayLookup::Rejected(reason) => Probed::Responds(format!("status 403: {reason}")),
            GatewayLookup::Failed(status) => Probed::Responds(format!("status {}", status.code())),
        }
    }
}

/// Description of a response of files.
fn file_response(response: &Response, root: &Path) -> String {
    let status = response.status().code();
    match response {
        Response::Cached { object, .. } => {
            let name = PathBuf::from(String::from_utf8_lossy(object.object.file_name()).into_owned());
            format!("status {status}: sends {}", root.join(name.strip_prefix("/").unwrap_or(&name)).display())
        }
        Response::Built(built) => match built.fields.get("Location") {
            Some(location) => format!("status {status}: redirects to {}", String::from_utf8_lossy(location)),
            None if status == 200 => format!("status 200: lists a directory of {}", root.display()),
            None if built.reason.is_empty() => format!("status {status}: no such file in {}", root.display()),
            None => format!("status {status}: {}, in {}", built.reason, root.display()),
        },
        Response::Changed(_) => format!("status {status}"),
    }
}

/// Description of a forwarded request.
fn forwarded(forward: &config::ForwardConfig, routed: &Routed<'_>) -> String {
    let path = routed.path.strip_prefix(forward.strip_prefix.as_bytes()).unwrap_or(routed.path);
    let mut text = format!("forwards to {} as {}", forward.upstream, String::from_utf8_lossy(path));
    let others: Vec<_> = forward.splits.iter().map(|split| split.upstream.as_str()).collect();
    if !others.is_empty() {
        text.push_str(&format!(", or by `split` to {}", others.join(", ")));
    }
    if forward.cache.is_some() {
        text.push_str(", or responds from the cache");
    }
    text
}

/// Servers of a handler's upstream.
fn servers(config: &Config, handler: &HandlerConfig) -> Vec<ExplainedServer> {
    let name = match handler {
        HandlerConfig::Forward(forward) => &forward.upstream,
        HandlerConfig::Gateway(gateway, _) => &gateway.forward.upstream,
        _ => return Vec::new(),
    };
    let upstream = config.upstreams.iter().find(|upstream| upstream.name == *name);
    let servers = upstream.into_iter().flat_map(|upstream| &upstream.servers);
    servers.map(|server| ExplainedServer { server: server.address.to_string(), health: None }).collect()
}

/// Places of a site's rules, by kind.
struct RulePlaces<'c> {
    site: &'c SiteConfig,
    index: usize,
    places: &'c ConfigPlaces,
    clients: Vec<Option<OptionPlace>>,
    /// Places of rewrites, those before the handlers and those for what no handler has.
    rewrites: [Vec<Option<OptionPlace>>; 2],
}

impl<'c> RulePlaces<'c> {
    fn new(config: &'c Config, index: usize, places: &'c ConfigPlaces) -> Self {
        let (site, all) = (&config.sites[index], &config.rules);
        let known = |options: &[&str], count: usize| {
            let found = places.rules(index, options, true);
            // One `internal` may have several paths, so that its rules cannot be counted.
            if found.len() == count { found.into_iter().map(Some).collect() } else { vec![None; count] }
        };
        let mut clients = known(&["internal"], site.rules.internals.len() + all.internals.len());
        clients.extend(known(&["allow", "deny"], site.rules.clients.len() + all.clients.len()));
        let flags: Vec<bool> =
            site.rules.rewrites.iter().chain(&all.rewrites).map(|rule| rule.conditions.is_missing).collect();
        let rewrites = known(&["redirect", "rewrite"], flags.len());
        let of_kind = |is_missing: bool| {
            let of_kind = flags.iter().zip(&rewrites).filter(|(flag, _)| **flag == is_missing);
            of_kind.map(|(_, place)| place.clone()).collect()
        };
        Self { site, index, places, clients, rewrites: [of_kind(false), of_kind(true)] }
    }

    fn rule(&self, step: &ExplainedStep) -> ExplainedRule {
        let of = |options: &[&str], own_first| self.places.rules(self.index, options, own_first).into_iter();
        let at = step.index;
        let (place, name) = match step.kind {
            ExplainedKind::Bots => (of(&["bots"], true).next(), "bots"),
            ExplainedKind::Client => (self.clients.get(at).cloned().flatten(), "allow or deny"),
            ExplainedKind::RateLimit => (of(&["rate-limit"], true).nth(at), "rate-limit"),
            ExplainedKind::RequestLimit => (of(&["request-limit"], true).nth(at), "request-limit"),
            ExplainedKind::SiteRedirect => {
                (of(&["redirect-to-https", "canonical-host"], true).next(), "redirect-to-https")
            }
            ExplainedKind::Rewrite => (self.rewrites[0].get(at).cloned().flatten(), "redirect or rewrite"),
            ExplainedKind::Missing => (self.rewrites[1].get(at).cloned().flatten(), "redirect or rewrite"),
            ExplainedKind::Password => (of(&["basic-auth"], true).nth(at), "basic-auth"),
            ExplainedKind::ForwardAuth => (of(&["forward-auth"], true).nth(at), "forward-auth"),
            ExplainedKind::RequestField => (of(&["request-header"], false).nth(at), "request-header"),
            ExplainedKind::ResponseField => (of(&["response-header"], false).nth(at), "response-header"),
            ExplainedKind::Handler => (self.places.route(self.index, at), route_name(&self.site.routes[at])),
        };
        let ExplainedStep { applies, reason, .. } = step.clone();
        match place {
            Some(place) => ExplainedRule { line: line(&place), rule: place.text, applies, reason },
            None => ExplainedRule { line: None, rule: name.to_owned(), applies, reason },
        }
    }
}

fn route_name(route: &RouteConfig) -> &'static str {
    match (&route.handler, &route.path) {
        (HandlerConfig::Files(_), PathPattern::Any) => "root",
        (HandlerConfig::Files(_), _) => "files",
        (HandlerConfig::Respond(_), _) => "respond",
        (HandlerConfig::Forward(_), _) => "forward",
        (HandlerConfig::Gateway(gateway, _), _) => match gateway.protocol {
            config::GatewayProtocol::Cgi => "cgi",
            config::GatewayProtocol::FastCgi => "fastcgi",
            config::GatewayProtocol::Scgi => "scgi",
            config::GatewayProtocol::Uwsgi => "uwsgi",
        },
        (HandlerConfig::Module(_), _) => "module",
        (HandlerConfig::Status(_), _) => "status-page",
    }
}

/// Listeners of HTTP, in the order of the configuration.
fn listeners<'c>(config: &'c Config, plans: &'c [ListenerPlan]) -> Vec<ExplainedListener<'c>> {
    let listener = |plan: &'c ListenerPlan| ExplainedListener {
        plan,
        sites: plan.sites.iter().map(|site| (*site, &*config.sites[*site])).collect(),
    };
    plans.iter().filter(|plan| !plan.is_ftp).map(listener).collect()
}

/// Takes host and port of the first site, if the URL is a path alone.
fn choose_first_site(config: &Config, url: &mut ExplainedUrl) {
    let Some(site) = config.sites.iter().find(|site| site.ftp.is_none()) else { return };
    url.host = match site.names.first() {
        Some(HostPattern::Exact(name)) => name.clone(),
        Some(HostPattern::Suffix(suffix)) => format!("www{suffix}"),
        Some(HostPattern::Prefix(prefix)) => format!("{prefix}example"),
        None => "localhost".to_owned(),
    };
    let has_plain = site.listen.iter().any(|listen| !site.tls_listen.contains(listen));
    url.is_https = !has_plain || site.rules.redirects_to_https == Some(true) && !site.tls_listen.is_empty();
    let of_scheme = |listen: &&Listen| site.tls_listen.contains(listen) == url.is_https;
    url.port = site.listen.iter().filter(of_scheme).find_map(|listen| match listen {
        Listen::Tcp(address) if address.port() != url.port() => Some(address.port()),
        _ => None,
    });
}

fn find_listener<'l, 'c>(
    listeners: &'l [ExplainedListener<'c>],
    url: &ExplainedUrl,
    listen: Option<&str>,
    notes: &mut Vec<String>,
) -> Result<&'l ExplainedListener<'c>, String> {
    let known = || listeners.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if let Some(listen) = listen {
        let wanted = config::listen_from_text(listen, Path::new("/"))?;
        let found = listeners.iter().find(|one| wanted.contains(&one.plan.listen));
        return found.ok_or_else(|| format!("no site listens on {listen}; sites listen on {}", known()));
    }
    let of_scheme = |one: &&ExplainedListener<'_>| one.plan.has_tls == url.is_https;
    let is_of_port = |one: &&ExplainedListener<'_>| match &one.plan.listen {
        Listen::Tcp(address) => address.port() == url.port(),
        Listen::Unix(..) | Listen::Inherited(_) => false,
    };
    let has_name = |one: &&ExplainedListener<'_>| {
        let found = site_for_host(&one.sites, url.host.as_bytes());
        found.is_some_and(|(_, reason)| reason != "it is the default of this address")
    };
    let best = |those: Vec<&'l ExplainedListener<'c>>| {
        those.iter().copied().find(|one| has_name(one)).or_else(|| those.first().copied())
    };
    if let Some(found) = best(listeners.iter().filter(of_scheme).filter(is_of_port).collect()) {
        return Ok(found);
    }
    if url.port.is_none()
        && let Some(found) = best(listeners.iter().filter(of_scheme).collect())
    {
        notes.push(format!("no site listens on port {}; this is for {}", url.port(), found.plan.listen));
        return Ok(found);
    }
    let scheme = if url.is_https { "https" } else { "http" };
    Err(format!("no site listens on port {} for {scheme}; sites listen on {}", url.port(), known()))
}

/// Address that the request comes from.
fn client(text: Option<&str>, listen: &Listen) -> Result<LogClient, String> {
    let address: IpAddr = match (text, listen) {
        (None, Listen::Unix(..)) => return Ok(LogClient::Unix),
        (None, _) => Ipv4Addr::LOCALHOST.into(),
        (Some("unix"), _) => return Ok(LogClient::Unix),
        (Some(text), _) => text.parse().map_err(|_| format!("`{text}` is not an address, such as 192.0.2.1"))?,
    };
    Ok(LogClient::Ip(SocketAddr::new(address, 40_000)))
}

/// Head of the request, as a client sends it.
fn request_text(question: &ExplainQuestion, url: &ExplainedUrl, has_tls: bool) -> Result<String, String> {
    let has_line_break = |text: &String| text.contains(['\r', '\n']);
    if [&question.method, &url.target, &url.host].into_iter().chain(&question.fields).any(has_line_break) {
        return Err("a method, URL or header field has no line breaks".to_owned());
    }
    let default = if has_tls { 443 } else { 80 };
    let port = url.port.filter(|port| *port != default).map_or_else(String::new, |port| format!(":{port}"));
    let is_host = |field: &&String| field.split(':').next().is_some_and(|name| name.eq_ignore_ascii_case("host"));
    let target = url.target.replace(' ', "%20");
    let mut text = format!("{} {target} HTTP/1.1\r\n", question.method);
    if !question.fields.iter().any(|field| is_host(&field)) {
        text.push_str(&format!("Host: {}{port}\r\n", url.host));
    }
    for field in &question.fields {
        if !field.contains(':') {
            return Err(format!("`{field}` is not a header field; write `Name: value`"));
        }
        text.push_str(field);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    Ok(text)
}

/// Reads the configuration file again for the places of its options. They are those of the running configuration only if
/// the file has not changed.
pub(super) fn places_of_running(file: &Path, running: &Config) -> Result<ConfigPlaces, &'static str> {
    const CHANGED: &str = "the configuration file has changed since the last reload; places are left out";
    let (checked, places) = config::explain_file(file).map_err(|_| "the configuration file cannot be read again")?;
    let config = checked.config.ok_or(CHANGED)?;
    let is_same_site = |(now, then): (&Arc<SiteConfig>, &Arc<SiteConfig>)| {
        now.names == then.names
            && now.listen == then.listen
            && now.routes == then.routes
            && now.rules == then.rules
            && now.error_pages == then.error_pages
    };
    let is_same = config.sites.len() == running.sites.len()
        && config.sites.iter().zip(&running.sites).all(is_same_site)
        && config.rules == running.rules;
    if is_same { Ok(places) } else { Err(CHANGED) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let url = |is_https, host: &str, port, target: &str| {
            Ok(ExplainedUrl { is_https, host: host.to_owned(), port, target: target.to_owned() })
        };
        for (text, expect) in [
            ("https://A.example", url(true, "a.example", None, "/")),
            ("http://a.example:8080/b?c=d#e", url(false, "a.example", Some(8080), "/b?c=d")),
            ("a.example/b", url(false, "a.example", None, "/b")),
            ("/b?c", url(false, "", None, "/b?c")),
            ("http://[::1]:81/", url(false, "[::1]", Some(81), "/")),
            ("http://[::1]/", url(false, "[::1]", None, "/")),
            ("https://a?b", url(true, "a", None, "/?b")),
            ("ftp://a/", Err("`ftp` is not http or https".to_owned())),
            ("http://a:b/", Err("`b` is not a port".to_owned())),
        ] {
            assert_eq!(ExplainedUrl::parse(text), expect, "{text}");
        }
    }
}
