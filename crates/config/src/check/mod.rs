//! Checks of the whole: conflicts between sites, and settings that cannot work together.

pub(crate) mod blocks;
pub(crate) mod bots;
pub(crate) mod claimed_paths;
pub(crate) mod directory;
mod ftp;
mod guards;
mod modules;
pub(crate) mod probe;
pub(crate) mod rules;
pub(crate) mod tls;
mod validate;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::check::claimed_paths::ClaimedPaths;
use crate::check::rules::RulesDraft;
use crate::diagnostic::{Diagnostics, Severity};
use crate::model::gateway::{GatewayConfig, GatewayProtocol};
use crate::model::programs::Runners;
use crate::model::rules::RulesConfig;
use crate::model::tls::load_authority;
use crate::model::upstream::{UpstreamConfig, UpstreamServer, UpstreamServerAddress, UpstreamTls};
use crate::model::*;
use crate::read::draft::{ConfigDraft, SiteDraft, UpstreamDraft, has_root, note};
use crate::read::suggest::nearest;
use crate::read::{ConfigFinding, ConfigReader};
use crate::regular_file::is_denied;

/// Notes conflicts within and between sites.
pub(crate) fn cross_check(draft: &ConfigDraft, diagnostics: &mut Diagnostics) {
    check_names(draft, diagnostics);
    check_defaults(draft, diagnostics);
    check_unix_modes(draft, diagnostics);
    check_proxied(draft, diagnostics);
    check_alike(draft, "proxy-protocol", |site| &site.proxied_listen, diagnostics);
    check_alike(draft, "tls", |site| &site.tls_listen, diagnostics);
    ftp::check(draft, diagnostics);
    check_upstreams(draft, diagnostics);
    check_protocols(draft, diagnostics);
    check_auth_upstreams(draft, diagnostics);
    placed_sites(draft).for_each(|site| check_listen(site, diagnostics));
    draft.rules.check(None, diagnostics);
    draft.sites.iter().for_each(|site| check_files(site, diagnostics));
    for site in whole_sites(draft) {
        site.rules.check(Some(&draft.rules), diagnostics);
        check_handlers(site, &draft.upstreams, diagnostics);
        check_order(site, diagnostics);
        modules::check_site(site, diagnostics);
        tls::check_site(site, &draft.automatic_certificates, diagnostics);
        check_error_pages(site, diagnostics);
        check_status_views(site, draft, diagnostics);
    }
    guards::check(&whole_sites(draft).collect::<Vec<_>>(), &draft.rules, diagnostics);
    // Of sites with other errors, what these can't be the cause of.
    for site in draft.sites.iter().filter(|site| !site.is_whole) {
        for (route, span) in site.site.routes.iter().zip(&site.route_spans) {
            for target in targets_of(&route.handler).into_iter().filter(|target| !target.is_empty()) {
                check_target(site, target, span, &draft.upstreams, diagnostics);
            }
        }
        tls::check_certificate_files(site, diagnostics);
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
fn check_status_views(site: &SiteDraft, draft: &ConfigDraft, diagnostics: &mut Diagnostics) {
    if site.site.listen.iter().all(Listen::is_of_this_machine) {
        return;
    }
    for (route, span) in site.site.routes.iter().zip(&site.route_spans) {
        let is_guarded = || site.site.rules.guards(&route.path) || draft.rules.rules.guards(&route.path);
        if let (HandlerConfig::Status(_), PathPattern::Exact(path)) = (&route.handler, &route.path)
            && !is_guarded()
        {
            let message = format!("`{path}` has no access rule");
            let finding = ConfigFinding::new(span.clone(), message, "its site can be reached from other machines")
                .help(format!(
                    "add `allow \"192.0.2.0/24\" path=\"{path}\"` and `deny all path=\"{path}\"`, or `basic-auth`; or \
                 use `status-listen \"127.0.0.1:9180\"` of `server` instead"
                ));
            note(site, Severity::Error, finding, diagnostics);
        }
    }
}

/// The sites that could be understood: what follows from an error is not worth a message of its own.
fn whole_sites(draft: &ConfigDraft) -> impl Iterator<Item = &SiteDraft> {
    draft.sites.iter().filter(|site| site.is_whole)
}

/// The sites whose names and addresses could be understood, whatever else is wrong with them.
fn placed_sites(draft: &ConfigDraft) -> impl Iterator<Item = &SiteDraft> {
    draft.sites.iter().filter(|site| site.is_placed)
}

/// A name belongs to one site of a listener.
fn check_names(draft: &ConfigDraft, diagnostics: &mut Diagnostics) {
    let mut known: HashMap<(&Listen, &HostPattern), (&SiteDraft, usize)> = HashMap::new();
    for site in placed_sites(draft) {
        for (index, name) in site.site.names.iter().enumerate() {
            // One finding a name, even if it conflicts on several addresses.
            if let Some((other, first)) = site.site.listen.iter().find_map(|listen| known.get(&(listen, name))) {
                let message = format!("`{name}` is named twice on the same address");
                let finding = ConfigFinding::new(site.name_spans[index].clone(), message, "again here").related(
                    other.source.clone(),
                    other.name_spans[*first].clone(),
                    "first here",
                );
                note(site, Severity::Error, finding, diagnostics);
                continue;
            }
            for listen in &site.site.listen {
                known.insert((listen, name), (site, index));
            }
        }
    }
}

/// A listener has one default site.
fn check_defaults(draft: &ConfigDraft, diagnostics: &mut Diagnostics) {
    let mut known: HashMap<&Listen, &SiteDraft> = HashMap::new();
    for site in placed_sites(draft).filter(|site| site.site.default) {
        if let Some((listen, other)) =
            site.site.listen.iter().find_map(|listen| known.get(listen).map(|other| (listen, other)))
        {
            let message = format!("two default sites on {listen}");
            let finding = ConfigFinding::new(site.span.clone(), message, "the second")
                .related(other.source.clone(), other.span.clone(), "the first")
                .help("a site without names is a default site; give one of them names or another address".to_owned());
            note(site, Severity::Error, finding, diagnostics);
            continue;
        }
        for listen in &site.site.listen {
            known.insert(listen, site);
        }
    }
}

/// A site listens on an address once.
fn check_listen(site: &SiteDraft, diagnostics: &mut Diagnostics) {
    let mut known = HashSet::new();
    for listen in &site.site.listen {
        if !known.insert(listen) {
            let message = format!("this site listens twice on {listen}");
            note(site, Severity::Error, ConfigFinding::new(site.listen_span.clone(), message, "here"), diagnostics);
            // A port alone is two addresses, and one message is enough.
            return;
        }
    }
}

/// A unix socket has one set of permissions.
fn check_unix_modes(draft: &ConfigDraft, diagnostics: &mut Diagnostics) {
    let mut known: HashMap<&Path, (u32, &SiteDraft)> = HashMap::new();
    for site in placed_sites(draft) {
        for listen in &site.site.listen {
            let Listen::Unix(path, mode) = listen else { continue };
            match known.get(path.as_path()) {
                Some((first, other)) if first != mode => {
                    let message = format!("unix:{} has two different modes", path.display());
                    let finding = ConfigFinding::new(site.listen_span.clone(), message, "others here").related(
                        other.source.clone(),
                        other.listen_span.clone(),
                        "first here",
                    );
                    note(site, Severity::Error, finding, diagnostics);
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
fn check_proxied(draft: &ConfigDraft, diagnostics: &mut Diagnostics) {
    let proxied = whole_sites(draft).find(|site| !site.site.proxied_listen.is_empty());
    if let Some(site) = proxied.filter(|_| draft.server.trusted_proxies.is_empty()) {
        let finding =
            ConfigFinding::new(site.listen_span.clone(), "`proxy-protocol` without `trusted-proxies`", "here")
                .help("list the proxies, for example `server { trusted-proxies \"10.0.0.0/8\" }`".to_owned());
        note(site, Severity::Error, finding, diagnostics);
    }
}

/// Connections to an address begin in one way for all sites: with this property of `listen`, or without.
fn check_alike(
    draft: &ConfigDraft,
    property: &str,
    having: impl Fn(&SiteConfig) -> &Vec<Listen>,
    diagnostics: &mut Diagnostics,
) {
    let mut known: HashMap<&Listen, (bool, &SiteDraft)> = HashMap::new();
    for site in placed_sites(draft) {
        for listen in &site.site.listen {
            let has_it = having(&site.site).contains(listen);
            let (first, other) = known.entry(listen).or_insert((has_it, site));
            if *first != has_it {
                let message = format!("{listen} is given both with and without `{property}`");
                let finding = ConfigFinding::new(site.listen_span.clone(), message, "here").related(
                    other.source.clone(),
                    other.listen_span.clone(),
                    "differs here",
                );
                note(site, Severity::Error, finding, diagnostics);
            }
        }
    }
}

/// An upstream has a name of its own, and servers to begin with.
fn check_upstreams(draft: &ConfigDraft, diagnostics: &mut Diagnostics) {
    let mut known: HashMap<&str, &UpstreamDraft> = HashMap::new();
    for draft in draft.upstreams.iter().filter(|draft| draft.is_whole) {
        let mut reader = ConfigReader { source: draft.source.clone(), diagnostics };
        let upstream = &draft.upstream;
        if let Some(first) = known.insert(&upstream.name, draft) {
            let message = format!("two upstreams have the name `{}`", upstream.name);
            let finding = ConfigFinding::new(draft.span.clone(), message, "the second");
            reader.error(finding.related(first.source.clone(), first.span.clone(), "the first"));
        }
        for (message, help) in upstream_faults(upstream) {
            reader.error(ConfigFinding::new(draft.span.clone(), message, "in here").help(help.to_owned()));
        }
        let tls = &upstream.tls;
        let authorities = tls.authorities.as_deref().and_then(|file| load_authority(file).err());
        let certificate = tls.certificate.as_ref().and_then(|files| files.load().err());
        for error in [authorities, certificate].into_iter().flatten() {
            let finding = ConfigFinding::new(draft.span.clone(), error.to_string(), "in here");
            reader.error(finding.denied(error.is_denied));
        }
    }
}

/// The servers of an upstream speak one protocol, and it is theirs.
fn check_protocols(draft: &ConfigDraft, diagnostics: &mut Diagnostics) {
    let sites = whole_sites(draft).map(|site| &site.site);
    let protocols = protocols_of_upstreams(sites, all_rules(draft).map(|rules| &rules.rules));
    for upstream in draft.upstreams.iter().filter(|upstream| upstream.is_whole) {
        let Some(protocols) = protocols.get(upstream.upstream.name.as_str()) else { continue };
        for (message, help) in protocol_faults(&upstream.upstream, protocols) {
            let finding = ConfigFinding::new(upstream.span.clone(), message, "in here").help(help.to_owned());
            ConfigReader { source: upstream.source.clone(), diagnostics }.error(finding);
        }
    }
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
    let servers = || upstream.servers.iter().map(|server| &server.address);
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

/// Rules of all sites together, and of each site.
fn all_rules(draft: &ConfigDraft) -> impl Iterator<Item = &RulesDraft> {
    std::iter::once(&draft.rules).chain(draft.sites.iter().map(|site| &site.rules))
}

/// Requires that upstreams of forward authentication exist.
fn check_auth_upstreams(draft: &ConfigDraft, diagnostics: &mut Diagnostics) {
    for (target, (source, span)) in all_rules(draft).flat_map(RulesDraft::auth_upstreams) {
        if let Some(finding) = unknown_upstream(target, span, &draft.upstreams) {
            ConfigReader { source: source.clone(), diagnostics }.error(finding);
        }
    }
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
    if upstream.servers.is_empty() {
        faults.push(("this upstream has no server", "add, for example, `server \"http://127.0.0.1:8080\"`"));
    } else if upstream.servers.iter().all(|server| server.backup) {
        faults.push(("all servers of this upstream are backups", "remove `backup` from one of them"));
    }
    if upstream.servers.len() > UpstreamConfig::SERVERS_MAX {
        faults.push(("this upstream has too many servers", "use at most 1000 servers"));
    }
    let speaks_http2 = |server: &UpstreamServer| matches!(server.address, UpstreamServerAddress::Http2(..));
    if upstream.proxy_protocol.is_some() && upstream.servers.iter().any(speaks_http2) {
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

/// A site answers something, and each `files` knows where they are.
fn check_handlers(site: &SiteDraft, upstreams: &[UpstreamDraft], diagnostics: &mut Diagnostics) {
    let rules = &site.site.rules;
    let redirects = rules.rewrites.iter().any(|rule| rule.status.is_some()) || rules.redirects_to_https == Some(true);
    if site.site.routes.is_empty() && !redirects && !site.is_ftp_only() {
        let finding = ConfigFinding::new(site.span.clone(), "this site has nothing to serve", "no `root` inside")
            .help("add, for example, `root \"/srv/www\"`, a `redirect`, a `respond` or a `forward`".to_owned());
        note(site, Severity::Error, finding, diagnostics);
    }
    for (route, span) in site.site.routes.iter().zip(&site.route_spans) {
        if let HandlerConfig::Forward(forward) = &route.handler {
            check_forward(site, forward, &route.path, span, upstreams, diagnostics);
        }
        if let HandlerConfig::Gateway(gateway, GatewayPart::Scripts) = &route.handler {
            check_gateway(site, gateway, span, upstreams, diagnostics);
        }
        let HandlerConfig::Files(files) = &route.handler else { continue };
        if !has_root(files) {
            let finding =
                ConfigFinding::new(span.clone(), "these files have no root", "no `root` inside, nor in the site")
                    .help("add, for example, `root \"/srv/downloads\"`".to_owned());
            note(site, Severity::Error, finding, diagnostics);
        }
        if files.compress_bytes_min > files.compress_bytes_max {
            let finding =
                ConfigFinding::new(span.clone(), "`compress-bytes-min` is above `compress-bytes-max`", "here")
                    .help("to turn compression off, write `compress off`".to_owned());
            note(site, Severity::Error, finding, diagnostics);
        }
        if !prefix_fits(&route.path, &files.strip_prefix) {
            let message = format!("no path of this pattern begins with `{}`", files.strip_prefix);
            let finding = ConfigFinding::new(span.clone(), message, "`strip-prefix` in here");
            note(site, Severity::Error, finding, diagnostics);
        }
    }
    check_programs(site, diagnostics);
}

/// Warns if an index or fallback is a program that no handler runs.
fn check_programs(site: &SiteDraft, diagnostics: &mut Diagnostics) {
    for (index, (route, span)) in site.site.routes.iter().zip(&site.route_spans).enumerate() {
        let HandlerConfig::Files(files) = &route.handler else { continue };
        let runners = Runners::of(&site.site, index);
        let index = files.index.iter().map(|name| ("`index` in here", name));
        let names = index.chain(files.fallback.iter().map(|name| ("`fallback` in here", name)));
        for (label, name) in names.filter(|(_, name)| files.is_program(name.as_bytes())) {
            let file = name.rsplit('/').next().unwrap_or_default();
            if runners.may_run(file) {
                continue;
            }
            let effect = if runners.is_empty() { "clients would get its source" } else { "no client would get it" };
            let extension = file.rsplit('.').next().unwrap_or_default();
            let finding =
                ConfigFinding::new(span.clone(), format!("nothing runs `{name}`: {effect}"), label).help(format!(
                    "add, for example, `forward \"http://127.0.0.1:8080\" path=\"*.{extension}\"`, or remove the name"
                ));
            note(site, Severity::Warning, finding, diagnostics);
        }
    }
}

/// The upstream is known, and paths can begin with what is taken from them.
fn check_forward(
    site: &SiteDraft,
    forward: &ForwardConfig,
    path: &PathPattern,
    span: &Range<usize>,
    upstreams: &[UpstreamDraft],
    diagnostics: &mut Diagnostics,
) {
    forward.targets().for_each(|target| check_target(site, target, span, upstreams, diagnostics));
    check_shares(site, forward, span, diagnostics);
    if !prefix_fits(path, &forward.strip_prefix) {
        let message = format!("no path of this pattern begins with `{}`", forward.strip_prefix);
        let finding = ConfigFinding::new(span.clone(), message, "`strip-prefix` in here");
        note(site, Severity::Error, finding, diagnostics);
    }
    if let Some(name) = forward.intermediary.misplaced() {
        let message = format!("`{name}` may not be a trailer field (RFC 9110, section 6.5.1)");
        let finding = ConfigFinding::new(span.clone(), message, "`request-trailers` or `response-trailers` in here");
        let help = "servers may treat it as a header field of that name; remove it";
        note(site, Severity::Error, finding.help(help.to_owned()), diagnostics);
    }
}

/// Checks that the shares of `split` are no more than all requests, and that splits of one `forward` agree on their key.
fn check_shares(site: &SiteDraft, forward: &ForwardConfig, span: &Range<usize>, diagnostics: &mut Diagnostics) {
    let total: f64 = forward.splits.iter().map(|split| split.share).sum();
    if total > 1.0 + f64::EPSILON * 8.0 {
        let finding = ConfigFinding::new(span.clone(), "the shares of `split` are more than 1 together", "in here")
            .help("the rest of the requests goes to the upstream of `forward`; lower the shares".to_owned());
        note(site, Severity::Error, finding, diagnostics);
    }
    let mut keys = forward.splits.iter().filter(|split| split.share > 0.0).map(|split| &split.by);
    if let Some(first) = keys.next()
        && keys.any(|key| key != first)
    {
        let finding = ConfigFinding::new(span.clone(), "splits of one `forward` have different `by`", "in here")
            .help("a client's share is found by one key; write the same `by` in each `split`".to_owned());
        note(site, Severity::Error, finding, diagnostics);
    }
}

/// Checks that the upstream of a handler exists.
fn check_target(
    site: &SiteDraft,
    target: &String,
    span: &Range<usize>,
    upstreams: &[UpstreamDraft],
    diagnostics: &mut Diagnostics,
) {
    if let Some(finding) = unknown_upstream(target, span, upstreams) {
        note(site, Severity::Error, finding, diagnostics);
    }
}

/// Error of a target that is neither an upstream nor an address.
fn unknown_upstream(target: &String, span: &Range<usize>, upstreams: &[UpstreamDraft]) -> Option<ConfigFinding> {
    if target.contains(':') || upstreams.iter().any(|draft| draft.upstream.name == *target) {
        return None;
    }
    let names: Vec<&str> = upstreams.iter().map(|draft| draft.upstream.name.as_str()).collect();
    let finding = ConfigFinding::new(span.clone(), format!("there is no upstream `{target}`"), "forwarded to here");
    let help = match nearest(target, &names) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("write `upstream \"{target}\" {{ … }}` at the top level, or a server's URL here"),
    };
    Some(finding.help(help))
}

/// Scripts are somewhere, and can be run.
fn check_gateway(
    site: &SiteDraft,
    gateway: &GatewayConfig,
    span: &Range<usize>,
    upstreams: &[UpstreamDraft],
    diagnostics: &mut Diagnostics,
) {
    let mut error = |message: String, label, help: &str| {
        let finding = ConfigFinding::new(span.clone(), message, label)
            .help(Some(help.to_owned()).filter(|help| !help.is_empty()));
        note(site, Severity::Error, finding, diagnostics);
    };
    let name = gateway.protocol.name();
    if gateway.protocol == GatewayProtocol::Cgi && gateway.root.is_none() {
        error(
            format!("this `{name}` has no root"),
            "nor has the site",
            "add, for example, `root=\"/usr/lib/cgi-bin\"`",
        );
    }
    if !prefix_fits(&gateway.scripts, &gateway.strip_prefix) {
        let message = format!("no path of this pattern begins with `{}`", gateway.strip_prefix);
        error(message, "`strip-prefix` in here", "");
    }
    if !gateway.has_files() && !prefix_fits(&gateway.scripts, &gateway.application) {
        let message = format!("no path of this pattern begins with `{}`", gateway.application);
        error(message, "`application` in here", "");
    }
    if gateway.keeps_connections && gateway.protocol != GatewayProtocol::FastCgi {
        error(format!("{name} uses one connection for each request"), "`keep-connections` in here", "remove it");
    }
    if gateway.programs.user.is_some() && !can_change_user() {
        let finding = ConfigFinding::new(
            span.clone(),
            "only a server started by root can run programs as another `user`",
            "in here",
        )
        .help("start the server as root, or remove `user`".to_owned());
        note(site, Severity::Warning, finding, diagnostics);
    }
    if gateway.protocol != GatewayProtocol::Cgi {
        check_target(site, &gateway.forward.upstream, span, upstreams, diagnostics);
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
fn check_order(site: &SiteDraft, diagnostics: &mut Diagnostics) {
    let mut taken = ClaimedPaths::default();
    let redirected = site.rules.redirected_paths();
    for (index, route) in site.site.routes.iter().enumerate() {
        if let Some(earlier) = taken.covering(&route.path) {
            if is_maintenance(&site.site.routes[earlier]) {
                continue;
            }
            let span = site.route_spans[index].clone();
            let finding = ConfigFinding::new(span, "this is never used", "its requests are answered earlier")
                .related(site.source.clone(), site.route_spans[earlier].clone(), "by this")
                .help("put the more specific path first".to_owned());
            note(site, Severity::Warning, finding, diagnostics);
        } else if let Some((source, span)) = site.rules.redirect_of_all(&redirected, &route.path) {
            let finding = ConfigFinding::new(
                site.route_spans[index].clone(),
                "this is never used",
                "its requests are redirected",
            )
            .related(source.clone(), span.clone(), "by this");
            note(site, Severity::Warning, finding, diagnostics);
        }
        // Files decline paths that they do not have, and modules may decline requests.
        let may_decline =
            matches!(route.handler, HandlerConfig::Files(_) | HandlerConfig::Gateway(..) | HandlerConfig::Module(_));
        if !may_decline && route.conditions.is_of_path_only() {
            taken.add(&route.path, index);
        }
    }
    for (rewrite, (source, span)) in site.rules.of_what_is_missing() {
        let Some(taker) = taken.covering(&rewrite.path) else { continue };
        let finding = ConfigFinding::new(span.clone(), "this never applies", "no path is missing")
            .related(site.source.clone(), site.route_spans[taker].clone(), "all requests are answered here")
            .help("give that a path, such as `path=\"*.php\"`, or remove `missing`".to_owned());
        ConfigReader { source: source.clone(), diagnostics }.warning(finding);
    }
}

/// Returns `true` if a route answers all requests temporarily, so that later routes are kept on purpose.
fn is_maintenance(route: &RouteConfig) -> bool {
    let is_unavailable = |respond: &RespondConfig| respond.status == wire::http::Status::SERVICE_UNAVAILABLE;
    matches!(&route.handler, HandlerConfig::Respond(respond) if route.path == PathPattern::Any && is_unavailable(respond))
}

/// A root that isn't there is a warning: it may come later, and it must not keep the other sites from starting.
fn check_files(site: &SiteDraft, diagnostics: &mut Diagnostics) {
    for (route, span) in site.site.routes.iter().zip(&site.route_spans) {
        let HandlerConfig::Files(files) = &route.handler else { continue };
        let Some(directory) = fixed_directory(files) else { continue };
        let (message, is_denied) = match std::fs::metadata(&directory) {
            Ok(metadata) if metadata.is_dir() => continue,
            Ok(_) => (format!("the root {} is not a directory", directory.display()), false),
            Err(error) => (format!("the root {}: {}", directory.display(), describe_io(&error)), is_denied(&error)),
        };
        let finding = ConfigFinding::new(span.clone(), message, "in here").denied(is_denied);
        note(site, Severity::Warning, finding, diagnostics);
    }
}

/// The part of a root that is the same for all hosts.
fn fixed_directory(files: &FilesConfig) -> Option<PathBuf> {
    let [RootPiece::Literal(first), rest @ ..] = files.root.pieces.as_slice() else { return None };
    let fixed = if rest.is_empty() { first.as_str() } else { &first[..=first.rfind('/')?] };
    (!fixed.is_empty()).then(|| PathBuf::from(fixed))
}

fn check_error_pages(site: &SiteDraft, diagnostics: &mut Diagnostics) {
    let site_root = site.site.routes.iter().rev().find_map(|route| match &route.handler {
        HandlerConfig::Files(files) if route.path == PathPattern::Any => Some(files),
        _ => None,
    });
    let mut reported = None;
    for (page, span) in site.site.error_pages.iter().zip(&site.error_page_spans) {
        // One option is a page for each of its statuses.
        if reported.replace(span) == Some(span) {
            continue;
        }
        match &page.file {
            ErrorPageFile::BelowRoot(path) if site_root.is_none() => {
                let finding = ConfigFinding::new(
                    span.clone(),
                    format!("`{path}` is below the site's root, but the site has no root"),
                    "here",
                )
                .help("add a `root`, or write `\"file:PATH\"`".to_owned());
                note(site, Severity::Error, finding, diagnostics);
            }
            ErrorPageFile::File(file) => {
                if let Err(error) = std::fs::metadata(file) {
                    let message = format!("the error page {}: {}", file.display(), describe_io(&error));
                    let finding = ConfigFinding::new(span.clone(), message, "here").denied(is_denied(&error));
                    note(site, Severity::Warning, finding, diagnostics);
                }
            }
            ErrorPageFile::BelowRoot(_) => {}
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
