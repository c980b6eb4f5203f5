//! Checks of the whole: conflicts between sites, and settings that cannot work together. They look at a model, whether
//! a text gave it or not.

pub(crate) mod blocks;
pub(crate) mod bots;
pub(crate) mod claimed_paths;
pub(crate) mod directory;
pub(crate) mod finding;
mod ftp;
mod guards;
mod modules;
pub(crate) mod probe;
mod rules;
mod tls;
mod validate;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use self::blocks::check_blocks;
use self::claimed_paths::ClaimedPaths;
use self::finding::{CheckedSite, ModelFinding, ModelPart, RulePart, RulesOwner, Soundness, checked_sites};
use self::rules::{CheckedRules, check_own_rules};
use crate::diagnostic::Severity;
use crate::model::gateway::{GatewayConfig, GatewayProtocol};
use crate::model::programs::Runners;
use crate::model::rules::RulesConfig;
use crate::model::tls::load_authority;
use crate::model::upstream::{UpstreamConfig, UpstreamServer, UpstreamServerAddress, UpstreamTls};
use crate::model::*;
use crate::regular_file::is_denied;
use crate::suggest::nearest;

/// A configuration that is checked.
struct CheckedModel<'c> {
    config: &'c Config,
    /// Names of all upstreams.
    upstreams: HashSet<&'c str>,
    /// Sites for FTP that share rules and certificates with a site for HTTP.
    twins: HashMap<usize, usize>,
    /// Sites without an error of their own: what follows from an error is not worth a message of its own.
    whole: Vec<CheckedSite<'c>>,
    /// The other sites.
    faulty: Vec<CheckedSite<'c>>,
    /// Sites whose names and addresses are known, whatever else is wrong with them.
    placed: Vec<CheckedSite<'c>>,
}

/// Checks a model. `soundness` is that of the text that gave it.
pub(crate) fn check(config: &Config, soundness: &Soundness) -> Vec<ModelFinding> {
    let mut findings = Vec::new();
    check_blocks(config, &mut findings);
    let has_errors = soundness.has_errors || findings.iter().any(|finding| finding.severity == Severity::Error);
    let has_site = config.sites.iter().any(|site| !is_status_site(config, site));
    if !has_site && config.server.control_plane.is_none() && !has_errors {
        findings.push(
            ModelFinding::error(ModelPart::Whole, "there is no site", "")
                .help("a site is such as `site \"example.com\" { root \"/srv/www\" }`"),
        );
    }
    check_own_rules(RulesOwner::AllSites, &config.rules, &mut findings);
    let twins = ftp_twins(config);
    let (mut whole, mut faulty) = (Vec::new(), Vec::new());
    // Sites of a controller's routes stand for rules, whose conflicts are decided by their table.
    for site in checked_sites(config).take(config.first_route_site()) {
        let first = findings.len();
        if !twins.contains_key(&site.index) {
            check_own_rules(RulesOwner::Site(site.index), &site.config.rules, &mut findings);
        }
        let is_at_fault = findings[first..].iter().any(|finding| finding.severity == Severity::Error);
        match soundness.site(site.index).is_whole && !is_at_fault {
            true => whole.push(site),
            false => faulty.push(site),
        }
    }
    let is_placed = |site: &CheckedSite<'_>| soundness.site(site.index).is_placed;
    let placed = checked_sites(config).take(config.first_route_site()).filter(is_placed).collect();
    let upstreams = config.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
    CheckedModel { config, upstreams, twins, whole, faulty, placed }.check(soundness, &mut findings);
    findings
}

/// True for the site of `status-listen`.
fn is_status_site(config: &Config, site: &SiteConfig) -> bool {
    let is_status = |route: &RouteConfig| matches!(route.handler, HandlerConfig::Status(_));
    !site.listen.is_empty() && site.listen == config.server.status_listen && site.routes.iter().all(is_status)
}

/// Sites that speak FTP beside HTTP: one option gives both, and findings about what they share belong to that for HTTP. The
/// index of each for FTP, with that of the site for HTTP.
fn ftp_twins(config: &Config) -> HashMap<usize, usize> {
    if config.sites.iter().all(|site| site.ftp.is_none()) {
        return HashMap::new();
    }
    let mut of_http: HashMap<&[HostPattern], Vec<usize>> = HashMap::new();
    for site in checked_sites(config).filter(|site| site.config.ftp.is_none()) {
        of_http.entry(&site.config.names).or_default().push(site.index);
    }
    let twin = |site: CheckedSite<'_>| {
        let is_twin = |other: &&usize| {
            let other = &config.sites[**other];
            other.tls == site.config.tls && other.rules == site.config.rules
        };
        let other = of_http.get(site.config.names.as_slice())?.iter().find(is_twin)?;
        Some((site.index, *other))
    };
    checked_sites(config).filter(|site| site.config.ftp.is_some()).filter_map(twin).collect()
}

impl<'c> CheckedModel<'c> {
    /// Notes conflicts within and between sites.
    fn check(&self, soundness: &Soundness, findings: &mut Vec<ModelFinding>) {
        let config = self.config;
        self.check_names(findings);
        self.check_defaults(findings);
        self.check_unix_modes(findings);
        self.check_proxied(findings);
        self.check_alike("proxy-protocol", |site| &site.proxied_listen, findings);
        self.check_alike("tls", |site| &site.tls_listen, findings);
        ftp::check(config, findings);
        self.check_upstreams(soundness, findings);
        self.check_protocols(soundness, findings);
        self.check_auth_upstreams(findings);
        self.placed_for_http().for_each(|site| check_listen(site, findings));
        let of_all = CheckedRules::of_all(config);
        of_all.check(None, findings);
        checked_sites(config).for_each(|site| check_files(site, findings));
        for &site in &self.whole {
            if !self.twins.contains_key(&site.index) {
                CheckedRules::of_site(site).check(Some(&of_all), findings);
                let serves_ftp = site.config.ftp.is_some() || self.twins.values().any(|twin| *twin == site.index);
                tls::check_site(site, serves_ftp, config, soundness.site(site.index), findings);
            }
            self.check_handlers(site, findings);
            check_order(site, findings);
            modules::check_site(site, findings);
            check_error_pages(site, soundness.site(site.index).own_error_pages, findings);
            check_status_views(site, config, findings);
        }
        guards::check(&self.whole, &of_all, findings);
        // Of sites with other errors, what these can't be the cause of.
        for &site in &self.faulty {
            for (index, route) in site.config.routes.iter().enumerate() {
                for target in targets_of(&route.handler).into_iter().filter(|target| !target.is_empty()) {
                    findings.extend(self.unknown_upstream(target, site.route(index)));
                }
            }
            tls::check_certificate_files(site, findings);
        }
    }

    fn placed_for_http(&self) -> impl Iterator<Item = CheckedSite<'c>> {
        self.placed.iter().copied().filter(|site| site.config.ftp.is_none())
    }

    /// A name belongs to one site of a listener.
    fn check_names(&self, findings: &mut Vec<ModelFinding>) {
        let mut known: HashMap<(&Listen, &HostPattern), ModelPart> = HashMap::new();
        for site in self.placed_for_http() {
            for (index, name) in site.config.names.iter().enumerate() {
                // One finding a name, even if it conflicts on several addresses.
                if let Some(first) = site.config.listen.iter().find_map(|listen| known.get(&(listen, name))) {
                    let message = format!("`{name}` is named twice on the same address");
                    let finding = ModelFinding::error(site.name(index), message, "again here");
                    findings.push(finding.related(*first, "first here"));
                    continue;
                }
                for listen in &site.config.listen {
                    known.insert((listen, name), site.name(index));
                }
            }
        }
    }

    /// A listener has one default site.
    fn check_defaults(&self, findings: &mut Vec<ModelFinding>) {
        let mut known: HashMap<&Listen, CheckedSite<'_>> = HashMap::new();
        for site in self.placed_for_http().filter(|site| site.config.default) {
            if let Some((listen, other)) =
                site.config.listen.iter().find_map(|listen| known.get(listen).map(|other| (listen, other)))
            {
                let message = format!("two default sites on {listen}");
                findings.push(
                    ModelFinding::error(site.part(), message, "the second")
                        .related(other.part(), "the first")
                        .help("a site without names is a default site; give one of them names or another address"),
                );
                continue;
            }
            for listen in &site.config.listen {
                known.insert(listen, site);
            }
        }
    }

    /// A unix socket has one set of permissions.
    fn check_unix_modes(&self, findings: &mut Vec<ModelFinding>) {
        let mut known: HashMap<&Path, (u32, CheckedSite<'_>)> = HashMap::new();
        for site in self.placed_for_http() {
            for listen in &site.config.listen {
                let Listen::Unix(path, mode) = listen else { continue };
                match known.get(path.as_path()) {
                    Some((first, other)) if first != mode => {
                        let message = format!("unix:{} has two different modes", path.display());
                        let finding = ModelFinding::error(site.listen(), message, "others here");
                        findings.push(finding.related(other.listen(), "first here"));
                    }
                    Some(_) => {}
                    None => {
                        known.insert(path, (*mode, site));
                    }
                }
            }
        }
    }

    /// For proxies to be believed, some must be trusted.
    fn check_proxied(&self, findings: &mut Vec<ModelFinding>) {
        let proxied = self.whole.iter().find(|site| !site.config.proxied_listen.is_empty());
        if let Some(site) = proxied.filter(|_| self.config.server.trusted_proxies.is_empty()) {
            findings.push(
                ModelFinding::error(site.listen(), "`proxy-protocol` without `trusted-proxies`", "here")
                    .help("list the proxies, for example `server { trusted-proxies \"10.0.0.0/8\" }`"),
            );
        }
    }

    /// Connections to an address begin in one way for all sites: with this property of `listen`, or without.
    fn check_alike(
        &self,
        property: &str,
        having: impl Fn(&SiteConfig) -> &Vec<Listen>,
        findings: &mut Vec<ModelFinding>,
    ) {
        let mut known: HashMap<&Listen, (bool, CheckedSite<'_>)> = HashMap::new();
        for site in self.placed_for_http() {
            for listen in &site.config.listen {
                let has_it = having(site.config).contains(listen);
                let (first, other) = known.entry(listen).or_insert((has_it, site));
                if *first != has_it {
                    let message = format!("{listen} is given both with and without `{property}`");
                    let finding = ModelFinding::error(site.listen(), message, "here");
                    findings.push(finding.related(other.listen(), "differs here"));
                }
            }
        }
    }

    /// An upstream has a name of its own, and servers to begin with. Those of a controller get their servers later.
    fn check_upstreams(&self, soundness: &Soundness, findings: &mut Vec<ModelFinding>) {
        let mut known: HashMap<&str, usize> = HashMap::new();
        let own = self.config.upstreams.iter().enumerate().take(self.config.first_route_upstream());
        for (index, upstream) in own.filter(|(index, _)| soundness.is_upstream_whole(*index)) {
            let part = ModelPart::Upstream(index);
            if let Some(first) = known.insert(&upstream.name, index) {
                let message = format!("two upstreams have the name `{}`", upstream.name);
                let finding = ModelFinding::error(part, message, "the second");
                findings.push(finding.related(ModelPart::Upstream(first), "the first"));
            }
            for (message, help) in upstream_faults(upstream) {
                findings.push(ModelFinding::error(part, message, "in here").help(help));
            }
            let tls = &upstream.tls;
            let authorities = tls.authorities.as_deref().and_then(|file| load_authority(file).err());
            let certificate = tls.certificate.as_ref().and_then(|files| files.load().err());
            for error in [authorities, certificate].into_iter().flatten() {
                findings.push(ModelFinding::error(part, error.to_string(), "in here").denied(error.is_denied));
            }
        }
    }

    /// The servers of an upstream speak one protocol, and it is theirs.
    fn check_protocols(&self, soundness: &Soundness, findings: &mut Vec<ModelFinding>) {
        let protocols = protocols_of_upstreams(self.whole.iter().map(|site| site.config), all_rules(self.config));
        for (index, upstream) in self.config.upstreams.iter().enumerate() {
            let Some(used) = protocols.get(upstream.name.as_str()) else { continue };
            if !soundness.is_upstream_whole(index) {
                continue;
            }
            for (message, help) in protocol_faults(upstream, used) {
                findings.push(ModelFinding::error(ModelPart::Upstream(index), message, "in here").help(help));
            }
        }
    }

    /// Requires that upstreams of forward authentication exist.
    fn check_auth_upstreams(&self, findings: &mut Vec<ModelFinding>) {
        let sites = checked_sites(self.config).filter(|site| !self.twins.contains_key(&site.index));
        let of_sites = sites.map(|site| (RulesOwner::Site(site.index), &site.config.rules));
        for (owner, rules) in [(RulesOwner::AllSites, &self.config.rules)].into_iter().chain(of_sites) {
            for (index, rule) in rules.forward_auths.iter().enumerate() {
                let Some(auth) = &rule.auth else { continue };
                let part = ModelPart::Rule(owner, RulePart::ForwardAuth(index));
                findings.extend(self.unknown_upstream(&auth.forward.upstream, part));
            }
        }
    }

    /// Error of a target that is neither an upstream nor an address.
    fn unknown_upstream(&self, target: &str, part: ModelPart) -> Option<ModelFinding> {
        if self.upstreams.contains(target) {
            return None;
        }
        // The name of an upstream without a block is an address.
        let names: Vec<&str> = self.config.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
        let names: Vec<&str> = names.into_iter().filter(|name| !name.contains(':')).collect();
        let finding = ModelFinding::error(part, format!("there is no upstream `{target}`"), "forwarded to here");
        Some(finding.help(match nearest(target, &names) {
            Some(name) => format!("did you mean `{name}`?"),
            None => format!("write `upstream \"{target}\" {{ … }}` at the top level, or a server's URL here"),
        }))
    }

    /// A site answers something, and each `files` knows where they are.
    fn check_handlers(&self, site: CheckedSite<'_>, findings: &mut Vec<ModelFinding>) {
        let rules = &site.config.rules;
        let redirects =
            rules.rewrites.iter().any(|rule| rule.status.is_some()) || rules.redirects_to_https == Some(true);
        if site.config.routes.is_empty() && !redirects && site.config.ftp.is_none() {
            findings.push(
                ModelFinding::error(site.part(), "this site has nothing to serve", "no `root` inside")
                    .help("add, for example, `root \"/srv/www\"`, a `redirect`, a `respond` or a `forward`"),
            );
        }
        for (index, route) in site.config.routes.iter().enumerate() {
            let part = site.route(index);
            if let HandlerConfig::Forward(forward) = &route.handler {
                findings.extend(forward.targets().filter_map(|target| self.unknown_upstream(target, part)));
                check_forward(forward, &route.path, part, findings);
            }
            if let HandlerConfig::Gateway(gateway, GatewayPart::Scripts) = &route.handler {
                check_gateway(gateway, part, findings);
                if gateway.protocol != GatewayProtocol::Cgi {
                    findings.extend(self.unknown_upstream(&gateway.forward.upstream, part));
                }
            }
            if let HandlerConfig::Files(files) = &route.handler {
                check_file_options(files, &route.path, part, findings);
            }
        }
        check_programs(site, findings);
    }
}

/// Upstreams of a handler.
fn targets_of(handler: &HandlerConfig) -> Vec<&String> {
    match handler {
        HandlerConfig::Forward(forward) => forward.targets().collect(),
        HandlerConfig::Gateway(gateway, GatewayPart::Scripts) if gateway.protocol != GatewayProtocol::Cgi => {
            vec![&gateway.forward.upstream]
        }
        _ => Vec::new(),
    }
}

/// Requires an access rule for status pages that other machines can reach.
fn check_status_views(site: CheckedSite<'_>, config: &Config, findings: &mut Vec<ModelFinding>) {
    if site.config.listen.iter().all(Listen::is_of_this_machine) {
        return;
    }
    for (index, route) in site.config.routes.iter().enumerate() {
        if let (HandlerConfig::Status(_), PathPattern::Exact(path)) = (&route.handler, &route.path)
            && !config.guards(site.config, &route.path)
        {
            let message = format!("`{path}` has no access rule");
            let label = "its site can be reached from other machines";
            findings.push(ModelFinding::error(site.route(index), message, label).help(format!(
                "add `allow \"192.0.2.0/24\" path=\"{path}\"` and `deny all path=\"{path}\"`, or `basic-auth`; or \
                 use `status-listen \"127.0.0.1:9180\"` of `server` instead"
            )));
        }
    }
}

/// A site listens on an address once.
fn check_listen(site: CheckedSite<'_>, findings: &mut Vec<ModelFinding>) {
    let mut known = HashSet::new();
    for listen in &site.config.listen {
        if !known.insert(listen) {
            let message = format!("this site listens twice on {listen}");
            findings.push(ModelFinding::error(site.listen(), message, "here"));
            // A port alone is two addresses, and one message is enough.
            return;
        }
    }
}

/// Rules of all sites together, and of each site.
fn all_rules(config: &Config) -> impl Iterator<Item = &RulesConfig> {
    std::iter::once(&config.rules).chain(config.sites.iter().map(|site| &site.rules))
}

/// Protocols that handlers and rules use with each upstream, in alphabetical order.
fn protocols_of_upstreams<'a>(
    sites: impl Iterator<Item = &'a SiteConfig>,
    rules: impl Iterator<Item = &'a RulesConfig>,
) -> HashMap<&'a str, BTreeSet<&'static str>> {
    let mut protocols: HashMap<&str, BTreeSet<&str>> = HashMap::new();
    let mut add = |upstream: &'a str, protocol| protocols.entry(upstream).or_default().insert(protocol);
    for route in sites.flat_map(|site| &site.routes) {
        match &route.handler {
            HandlerConfig::Forward(forward) => {
                forward.targets().for_each(|target| _ = add(target, "HTTP"));
                continue;
            }
            HandlerConfig::Gateway(gateway, _) => add(&gateway.forward.upstream, gateway.protocol.name()),
            HandlerConfig::Files(_)
            | HandlerConfig::Respond(_)
            | HandlerConfig::Module(_)
            | HandlerConfig::Status(_) => continue,
        };
    }
    for upstream in rules.flat_map(RulesConfig::auth_upstreams) {
        add(upstream, "HTTP");
    }
    protocols
}

/// Contradictions between an upstream and the protocols that are used with it, each with a way to fix it.
fn protocol_faults(upstream: &UpstreamConfig, protocols: &BTreeSet<&'static str>) -> Vec<(String, &'static str)> {
    let mut protocols = protocols.iter();
    let protocol = match (protocols.next(), protocols.next()) {
        (Some(first), Some(second)) => {
            let message = format!("this upstream is used with {first} and with {second}");
            return vec![(message, "define one upstream for each")];
        }
        (Some(protocol), None) => *protocol,
        (None, _) => return Vec::new(),
    };
    // Stands for the servers of a source.
    let found = upstream.discovery.as_ref().map(|discovery| discovery.protocol.address(String::new(), 1));
    let servers = || upstream.servers.iter().map(|server| &server.address).chain(&found);
    let mut faults = Vec::new();
    if protocol == "HTTP" && servers().any(|address| matches!(address, UpstreamServerAddress::OtherTcp(..))) {
        let message = "`forward` uses HTTP with this upstream".to_owned();
        faults.push((message, "write its servers as `\"http://HOST:PORT\"`"));
    }
    if protocol != "HTTP" && servers().any(is_http) {
        let message = format!("`{protocol}` does not use HTTP with this upstream");
        faults.push((message, "write its servers as `\"tcp://HOST:PORT\"`"));
    }
    if protocol != "HTTP" && upstream.health_check.is_some() {
        let message = format!("health checks are HTTP requests, which `{protocol}` servers do not answer");
        faults.push((message, "remove `health-check`; servers that fail requests are ejected anyway"));
    }
    faults
}

/// Returns `true` if the protocol is HTTP, whatever its version.
fn is_http(address: &UpstreamServerAddress) -> bool {
    matches!(
        address,
        UpstreamServerAddress::Tcp(..) | UpstreamServerAddress::Http2(..) | UpstreamServerAddress::Tls(..)
    )
}

/// Contradictions in an upstream, each with a way to fix it.
fn upstream_faults(upstream: &UpstreamConfig) -> Vec<(&'static str, &'static str)> {
    let mut faults = Vec::new();
    if upstream.name.is_empty() {
        faults.push(("this upstream has no name", "write, for example, `upstream \"app\" { … }`"));
    }
    if let Some(discovery) = &upstream.discovery {
        faults.extend(discovery_faults(discovery));
    } else if upstream.servers.is_empty() {
        faults.push(("this upstream has no server", "add, for example, `server \"http://127.0.0.1:8080\"`"));
    } else if upstream.servers.iter().all(|server| server.backup) {
        faults.push(("all servers of this upstream are backups", "remove `backup` from one of them"));
    }
    if upstream.servers.len() > UpstreamConfig::SERVERS_MAX {
        faults.push(("this upstream has too many servers", "use at most 1000 servers"));
    }
    let speaks_http2 = |server: &UpstreamServer| matches!(server.address, UpstreamServerAddress::Http2(..));
    let finds_http2 = |discovery: &Discovery| discovery.protocol == DiscoveredProtocol::Http2;
    let has_http2 = upstream.servers.iter().any(speaks_http2) || upstream.discovery.as_deref().is_some_and(finds_http2);
    if upstream.proxy_protocol.is_some() && has_http2 {
        let help = "remove one, or write the server as `\"http://HOST:PORT\"`";
        faults.push(("`proxy-protocol` needs one client per connection, but HTTP/2 shares connections", help));
    }
    if upstream.tls != UpstreamTls::default() && !upstream.has_tls() {
        faults.push(("no server of this upstream uses TLS", "write a server as `\"https://HOST\"`"));
    }
    if upstream.eject_time > upstream.eject_time_max {
        faults.push(("`eject-time` is above `eject-time-max`", "raise `eject-time-max`"));
    }
    if upstream.health_check.as_ref().is_some_and(|check| check.status_min > check.status_max) {
        faults.push(("`status-min` is above `status-max`", "no status would be a success"));
    }
    faults
}

/// Options of a source that another kind of source has, or that it lacks.
fn discovery_faults(discovery: &Discovery) -> Vec<(&'static str, &'static str)> {
    let Discovery { source, tag, label, network, port, endpoint, token_file, authorities, resolver, .. } = discovery;
    let has_access = token_file.is_some() || authorities.is_some();
    let is_of_docker = label.is_some() || network.is_some();
    let is_named = matches!(port, Some(DiscoveredPort::Name(_)));
    let is_plain = match source {
        DiscoverySource::Consul { endpoint, .. } => !endpoint.is_tls,
        _ => endpoint.as_ref().is_some_and(|endpoint| !endpoint.is_tls),
    };
    let is_srv = matches!(source, DiscoverySource::Srv(_));
    let is_consul = matches!(source, DiscoverySource::Consul { .. });
    let is_docker = matches!(source, DiscoverySource::Docker(_));
    let is_kubernetes = matches!(source, DiscoverySource::Kubernetes { .. });
    let faults = [
        (
            is_srv && (tag.is_some() || has_access),
            ("`tag`, `token-file` and `ca-file` are not for SRV records", "remove them, or write `consul://…`"),
        ),
        (!is_srv && resolver.is_some(), ("`resolver` is for SRV records", "remove it, or write `srv:NAME`")),
        (is_docker && has_access, ("a socket has no `token-file` or `ca-file`", "remove them")),
        (!is_docker && is_of_docker, ("`label` and `network` are for Docker", "remove them, or write `docker:SOCKET`")),
        (is_docker && !is_of_docker, ("all containers would get requests", "add, for example, `label=\"app=shop\"`")),
        (is_docker && is_named, ("ports of containers have no names", "write the number of the port")),
        (
            !is_kubernetes && endpoint.is_some(),
            ("`endpoint` is for Kubernetes", "remove it, or write `kubernetes://NAMESPACE/SERVICE`"),
        ),
        ((is_srv || is_consul) && port.is_some(), ("the source names the port of each server", "remove `port`")),
        ((is_docker || is_kubernetes) && tag.is_some(), ("`tag` is for Consul", "remove it, or write `consul://…`")),
        (
            is_plain && authorities.is_some(),
            ("`ca-file` has no effect without TLS", "write `consuls://…` or `https://…`, or remove it"),
        ),
    ];
    faults.into_iter().filter(|(is_fault, _)| *is_fault).map(|(_, fault)| fault).collect()
}

fn check_file_options(files: &FilesConfig, path: &PathPattern, part: ModelPart, findings: &mut Vec<ModelFinding>) {
    if !files.root.is_given() {
        findings.push(
            ModelFinding::error(part, "these files have no root", "no `root` inside, nor in the site")
                .help("add, for example, `root \"/srv/downloads\"`"),
        );
    }
    if files.compress_bytes_min > files.compress_bytes_max {
        findings.push(
            ModelFinding::error(part, "`compress-bytes-min` is above `compress-bytes-max`", "here")
                .help("to turn compression off, write `compress off`"),
        );
    }
    if !prefix_fits(path, &files.strip_prefix) {
        let message = format!("no path of this pattern begins with `{}`", files.strip_prefix);
        findings.push(ModelFinding::error(part, message, "`strip-prefix` in here"));
    }
}

/// Warns if an index or fallback is a program that no handler runs.
fn check_programs(site: CheckedSite<'_>, findings: &mut Vec<ModelFinding>) {
    for (route_index, route) in site.config.routes.iter().enumerate() {
        let HandlerConfig::Files(files) = &route.handler else { continue };
        let runners = Runners::of(site.config, route_index);
        let index = files.index.iter().map(|name| ("`index` in here", name));
        let names = index.chain(files.fallback.iter().map(|name| ("`fallback` in here", name)));
        for (label, name) in names.filter(|(_, name)| files.is_program(name.as_bytes())) {
            let file = name.rsplit('/').next().unwrap_or_default();
            if runners.may_run(file) {
                continue;
            }
            let effect = if runners.is_empty() { "clients would get its source" } else { "no client would get it" };
            let extension = file.rsplit('.').next().unwrap_or_default();
            let message = format!("nothing runs `{name}`: {effect}");
            findings.push(ModelFinding::warning(site.route(route_index), message, label).help(format!(
                "add, for example, `forward \"http://127.0.0.1:8080\" path=\"*.{extension}\"`, or remove the name"
            )));
        }
    }
}

/// Paths can begin with what is taken from them, and shares and trailers are valid.
fn check_forward(forward: &ForwardConfig, path: &PathPattern, part: ModelPart, findings: &mut Vec<ModelFinding>) {
    check_shares(forward, part, findings);
    // The upstream gets `/` for a path that is the prefix itself.
    let is_whole = matches!(path, PathPattern::Exact(exact) if *exact == forward.strip_prefix);
    if !is_whole && !prefix_fits(path, &forward.strip_prefix) {
        let message = format!("no path of this pattern begins with `{}`", forward.strip_prefix);
        findings.push(ModelFinding::error(part, message, "`strip-prefix` in here"));
    }
    if let Some(name) = forward.intermediary.misplaced() {
        let message = format!("`{name}` may not be a trailer field (RFC 9110, section 6.5.1)");
        let finding = ModelFinding::error(part, message, "`request-trailers` or `response-trailers` in here");
        findings.push(finding.help("servers may treat it as a header field of that name; remove it"));
    }
}

/// Checks that the shares of `split` are no more than all requests, and that splits of one `forward` agree on their key.
fn check_shares(forward: &ForwardConfig, part: ModelPart, findings: &mut Vec<ModelFinding>) {
    let total: f64 = forward.splits.iter().map(|split| split.share).sum();
    if total > 1.0 + f64::EPSILON * 8.0 {
        let finding = ModelFinding::error(part, "the shares of `split` are more than 1 together", "in here");
        findings.push(finding.help("the rest of the requests goes to the upstream of `forward`; lower the shares"));
    }
    let mut keys = forward.splits.iter().filter(|split| split.share > 0.0).map(|split| &split.by);
    if let Some(first) = keys.next()
        && keys.any(|key| key != first)
    {
        let finding = ModelFinding::error(part, "splits of one `forward` have different `by`", "in here");
        findings.push(finding.help("a client's share is found by one key; write the same `by` in each `split`"));
    }
}

/// Scripts are somewhere, and can be run.
fn check_gateway(gateway: &GatewayConfig, part: ModelPart, findings: &mut Vec<ModelFinding>) {
    let name = gateway.protocol.name();
    if gateway.protocol == GatewayProtocol::Cgi && gateway.root.is_none() {
        findings.push(
            ModelFinding::error(part, format!("this `{name}` has no root"), "nor has the site")
                .help("add, for example, `root=\"/usr/lib/cgi-bin\"`"),
        );
    }
    if !prefix_fits(&gateway.scripts, &gateway.strip_prefix) {
        let message = format!("no path of this pattern begins with `{}`", gateway.strip_prefix);
        findings.push(ModelFinding::error(part, message, "`strip-prefix` in here"));
    }
    if !gateway.has_files() && !prefix_fits(&gateway.scripts, &gateway.application) {
        let message = format!("no path of this pattern begins with `{}`", gateway.application);
        findings.push(ModelFinding::error(part, message, "`application` in here"));
    }
    if gateway.keeps_connections && gateway.protocol != GatewayProtocol::FastCgi {
        let message = format!("{name} uses one connection for each request");
        findings.push(ModelFinding::error(part, message, "`keep-connections` in here").help("remove it"));
    }
    if gateway.programs.user.is_some() && !can_change_user() {
        let message = "only a server started by root can run programs as another `user`";
        let finding = ModelFinding::warning(part, message, "in here");
        findings.push(finding.help("start the server as root, or remove `user`"));
    }
}

/// Returns `true` if paths of this pattern may begin with this prefix.
fn prefix_fits(path: &PathPattern, prefix: &str) -> bool {
    match path {
        PathPattern::Any | PathPattern::Suffix(_) | PathPattern::Regex(_) => true,
        PathPattern::Exact(path) | PathPattern::Prefix(path) => {
            path.starts_with(prefix) && (prefix.is_empty() || path[prefix.len()..].starts_with('/'))
        }
    }
}

/// Warns about routes after one that answers all of their requests.
fn check_order(site: CheckedSite<'_>, findings: &mut Vec<ModelFinding>) {
    let mut taken = ClaimedPaths::default();
    let rules = CheckedRules::of_site(site);
    let redirected = rules.redirected_paths();
    for (index, route) in site.config.routes.iter().enumerate() {
        if let Some(earlier) = taken.covering(&route.path) {
            if is_maintenance(&site.config.routes[earlier]) || is_index_only(route) {
                continue;
            }
            findings.push(
                ModelFinding::warning(site.route(index), "this is never used", "its requests are answered earlier")
                    .related(site.route(earlier), "by this")
                    .help("put the more specific path first"),
            );
        } else if let Some(redirect) = rules.redirect_of_all(&redirected, &route.path) {
            let finding = ModelFinding::warning(site.route(index), "this is never used", "its requests are redirected");
            findings.push(finding.related(redirect, "by this"));
        }
        // Files decline paths that they do not have, and modules may decline requests.
        let may_decline =
            matches!(route.handler, HandlerConfig::Files(_) | HandlerConfig::Gateway(..) | HandlerConfig::Module(_));
        if !may_decline && route.conditions.is_of_path_only() {
            taken.add(&route.path, index);
        }
    }
    for (rewrite, part) in rules.of_what_is_missing() {
        let Some(taker) = taken.covering(&rewrite.path) else { continue };
        findings.push(
            ModelFinding::warning(part, "this never applies", "no path is missing")
                .related(site.route(taker), "all requests are answered here")
                .help("give that a path, such as `path=\"*.php\"`, or remove `missing`"),
        );
    }
}

/// Returns `true` if a route is the rest of a gateway without `fallback`: its scripts have a route of their own, and run.
fn is_index_only(route: &RouteConfig) -> bool {
    matches!(&route.handler, HandlerConfig::Gateway(gateway, GatewayPart::Rest) if gateway.fallback.is_none())
}

/// Returns `true` if a route answers all requests temporarily, so that later routes are kept on purpose.
fn is_maintenance(route: &RouteConfig) -> bool {
    let is_unavailable = |respond: &RespondConfig| respond.status == wire::http::Status::SERVICE_UNAVAILABLE;
    matches!(&route.handler, HandlerConfig::Respond(respond) if route.path == PathPattern::Any && is_unavailable(respond))
}

/// A root that is not there is absent, unless its path depends on the host: directories of hosts may come later.
fn check_files(site: CheckedSite<'_>, findings: &mut Vec<ModelFinding>) {
    for (index, route) in site.config.routes.iter().enumerate() {
        let HandlerConfig::Files(files) = &route.handler else { continue };
        let Some(directory) = fixed_directory(files) else { continue };
        let (message, is_denied) = match std::fs::metadata(&directory) {
            Ok(metadata) if metadata.is_dir() => continue,
            Ok(_) => (format!("the root {} is not a directory", directory.display()), false),
            Err(error) => (format!("the root {}: {}", directory.display(), describe_io(&error)), is_denied(&error)),
        };
        let finding = ModelFinding::warning(site.route(index), message, "in here").denied(is_denied);
        if is_denied {
            findings.push(finding);
            continue;
        }
        let help = format!("create the directory: `mkdir -p {}`, or correct its path", directory.display());
        findings.push(finding.absent(files.root.pieces.len() == 1).help(help));
    }
}

/// The part of a root that is the same for all hosts.
fn fixed_directory(files: &FilesConfig) -> Option<PathBuf> {
    let [RootPiece::Literal(first), rest @ ..] = files.root.pieces.as_slice() else { return None };
    let fixed = if rest.is_empty() { first.as_str() } else { &first[..=first.rfind('/')?] };
    (!fixed.is_empty()).then(|| PathBuf::from(fixed))
}

/// Checks the pages that a site has of its own, the first of all: sites without a root do not use those of all sites.
fn check_error_pages(site: CheckedSite<'_>, own_pages: usize, findings: &mut Vec<ModelFinding>) {
    let site_root = site.config.routes.iter().rev().find_map(|route| match &route.handler {
        HandlerConfig::Files(files) if route.path == PathPattern::Any => Some(files),
        _ => None,
    });
    for (index, page) in site.config.error_pages.iter().enumerate().take(own_pages) {
        let part = ModelPart::ErrorPage(site.index, index);
        match &page.file {
            ErrorPageFile::BelowRoot(path) if site_root.is_none() => {
                let message = format!("`{path}` is below the site's root, but the site has no root");
                let finding = ModelFinding::error(part, message, "here");
                findings.push(finding.help("add a `root`, or write `\"file:PATH\"`"));
            }
            ErrorPageFile::File(file) => {
                if let Err(error) = std::fs::metadata(file) {
                    let message = format!("the error page {}: {}", file.display(), describe_io(&error));
                    findings.push(ModelFinding::warning(part, message, "here").denied(is_denied(&error)));
                }
            }
            ErrorPageFile::BelowRoot(path) => {
                let root = site_root.filter(|files| files.root.pieces.len() == 1).and_then(fixed_directory);
                let missing = root.filter(|root| root.is_dir()).map(|root| root.join(path.trim_start_matches('/')));
                if let Some(file) = missing.filter(|file| !file.exists()) {
                    let message = format!("the error page {}: there is no such file or directory", file.display());
                    let finding = ModelFinding::warning(part, message, "here");
                    findings.push(finding.help("create the file, or correct its path"));
                }
            }
        }
    }
}

pub(crate) fn describe_io(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "there is no such file or directory".into(),
        std::io::ErrorKind::PermissionDenied => "permission denied".into(),
        _ => error.to_string(),
    }
}

/// Returns `true` if this process can switch to any user: root can, and so can the spawner of a server started by root.
fn can_change_user() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    capabilities(None).is_ok_and(|sets| sets.permitted.contains(CapabilitySet::SETUID | CapabilitySet::SETGID))
}
