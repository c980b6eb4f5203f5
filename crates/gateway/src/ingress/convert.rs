//! From Ingresses to rules of routes.
//!
//! Ingresses of a host are read together, as ingress-nginx does: an expression in one of them makes all paths of the host
//! expressions, and a canary changes the rules of another Ingress.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use routes::{
    Cors, FieldChanges, Filter, Lifetime, Match, PathMatch, PathRewrite, PersistenceKind, Redirect, Retry, Rewrite,
    Rule, SessionPersistence, Timeouts, ValueMatch, ValueTest,
};

use super::table::{AnnotationOutcome, PREFIX, outcome};
use crate::objects::{Ingress, IngressBackend, IngressPath, Key, RateLimitSpec, TrafficPolicySpec};
use crate::regular::regex_problem;

/// Header field of the request by which a canary without a value is chosen.
const ALWAYS: &str = "always";
const NEVER: &str = "never";

/// Bytes of a content, and of a response's head, that options take at most.
const BODY_BYTES_MAX: u64 = 1 << 50;
const RESPONSE_HEAD_BYTES_MAX: u64 = 1 << 20;

/// A host of Ingresses.
#[derive(Debug, Default)]
pub(crate) struct IngressHost {
    /// Rules, in the order in which Ingresses have them.
    pub(crate) rules: Vec<IngressRule>,
    /// Names in addition to that of the host.
    pub(crate) aliases: BTreeSet<String>,
    /// Secret of its certificate, with its namespace.
    pub(crate) secret: Option<Key>,
    /// True if requests without TLS are redirected.
    pub(crate) redirects_to_tls: bool,
    /// True if they are also redirected where a load balancer in front decrypts.
    pub(crate) forces_tls: bool,
    /// Oldest Ingress of the host.
    pub(crate) created: i64,
}

/// A rule with backends that are not resolved yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct IngressRule {
    pub(crate) ingress: Key,
    /// True if the Ingress has a certificate for the host.
    pub(crate) has_tls: bool,
    pub(crate) rule: Rule,
    pub(crate) backends: Vec<IngressShare>,
    /// Authorization server: its service, port and path.
    pub(crate) auth: Option<IngressAuth>,
}

/// A share of requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct IngressShare {
    pub(crate) service: Key,
    pub(crate) port_name: Option<String>,
    pub(crate) port: Option<u16>,
    pub(crate) weight: u32,
    pub(crate) is_grpc: bool,
    pub(crate) tls: Option<IngressBackendTls>,
    pub(crate) session: Option<SessionPersistence>,
    /// Options of the upstream, as KDL text.
    pub(crate) options: String,
}

/// TLS to servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct IngressBackendTls {
    /// Server name; `None` is that of the service.
    pub(crate) name: Option<String>,
    /// Secret with the certificate that servers get, and with the CA of theirs.
    pub(crate) secret: Option<Key>,
    pub(crate) is_verified: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct IngressAuth {
    pub(crate) service: Key,
    pub(crate) port: u16,
    pub(crate) path: String,
    pub(crate) response_headers: Vec<String>,
    pub(crate) login: Option<String>,
}

/// A remark about an annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnnotationRemark {
    pub(crate) ingress: Key,
    pub(crate) annotation: String,
    pub(crate) outcome: AnnotationOutcome,
    pub(crate) note: String,
}

/// All hosts of Ingresses, and what differs. The host `None` has requests for every other host.
#[derive(Debug, Default)]
pub(crate) struct Converted {
    pub(crate) hosts: BTreeMap<Option<String>, IngressHost>,
    pub(crate) remarks: Vec<AnnotationRemark>,
}

/// Annotations of an Ingress.
struct Annotations<'a> {
    of: &'a BTreeMap<String, String>,
}

impl Annotations<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.of.get(&format!("{PREFIX}{name}")).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    fn is(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.get(name)?.parse().ok()
    }

    fn list(&self, name: &str) -> Vec<String> {
        let items = self.get(name).unwrap_or_default().split(',').map(|item| item.trim().to_owned());
        items.filter(|item| !item.is_empty()).collect()
    }
}

/// Converts Ingresses.
pub(crate) fn convert(ingresses: &[&Arc<Ingress>]) -> Converted {
    let mut converted = Converted::default();
    let mut sorted = ingresses.to_vec();
    sorted.sort_by_key(|ingress| ingress.metadata.age());
    let is_canary = |ingress: &&&Arc<Ingress>| Annotations { of: &ingress.metadata.annotations }.is("canary");
    let regex_hosts = regex_hosts(&sorted);
    for ingress in sorted.iter().filter(|ingress| !is_canary(ingress)) {
        remark(ingress, &mut converted.remarks);
        add(ingress, &regex_hosts, &mut converted);
    }
    for ingress in sorted.iter().filter(is_canary) {
        remark(ingress, &mut converted.remarks);
        add_canary(ingress, &regex_hosts, &mut converted);
    }
    converted
}

/// Hosts whose paths are all expressions: one Ingress has `use-regex` or `rewrite-target`.
fn regex_hosts(ingresses: &[&Arc<Ingress>]) -> BTreeSet<Option<String>> {
    let has_regex = |ingress: &&&Arc<Ingress>| {
        let annotations = Annotations { of: &ingress.metadata.annotations };
        annotations.is("use-regex") || annotations.get("rewrite-target").is_some()
    };
    let rules = ingresses.iter().filter(has_regex).flat_map(|ingress| &ingress.spec.rules);
    rules.map(|rule| rule.host.clone().filter(|host| !host.is_empty())).collect()
}

/// Notes annotations that are not kept, and those that ingress-nginx does not document.
fn remark(ingress: &Ingress, remarks: &mut Vec<AnnotationRemark>) {
    for name in ingress.metadata.annotations.keys() {
        let Some(short) = name.strip_prefix(PREFIX) else { continue };
        let (outcome, note) = outcome(short).unwrap_or((AnnotationOutcome::Ignored, "this annotation is not known"));
        if outcome != AnnotationOutcome::Kept {
            let (annotation, note) = (short.to_owned(), note.to_owned());
            remarks.push(AnnotationRemark { ingress: ingress.metadata.key(), annotation, outcome, note });
        }
    }
}

fn add(ingress: &Ingress, regex_hosts: &BTreeSet<Option<String>>, converted: &mut Converted) {
    let annotations = Annotations { of: &ingress.metadata.annotations };
    let key = ingress.metadata.key();
    let mut problems = Vec::new();
    let template = template(&key, &annotations, &mut problems);
    let has_tls = |host: Option<&str>| {
        let of_host = |hosts: &Vec<String>| hosts.is_empty() || hosts.iter().any(|it| Some(it.as_str()) == host);
        ingress.spec.tls.iter().find(|tls| of_host(&tls.hosts))
    };
    let mut hosts: Vec<(Option<String>, Vec<IngressPath>)> = Vec::new();
    for rule in &ingress.spec.rules {
        hosts.push((
            rule.host.clone().filter(|host| !host.is_empty()).map(|it| it.to_lowercase()),
            rule.http.paths.clone(),
        ));
    }
    if let Some(backend) = &ingress.spec.default_backend {
        let path = IngressPath { path: None, path_type: "Prefix".to_owned(), backend: backend.clone() };
        hosts.push((None, vec![path]));
    }
    for (name, paths) in hosts {
        let is_regex = regex_hosts.contains(&name);
        let host = converted.hosts.entry(name.clone()).or_default();
        let created = ingress.metadata.created();
        host.created = if host.created == 0 { created } else { host.created.min(created) };
        host.aliases.extend(annotations.list("server-alias").into_iter().map(|alias| alias.to_lowercase()));
        let tls = has_tls(name.as_deref());
        if let Some(tls) = tls {
            host.secret.get_or_insert_with(|| Key::new(&key.namespace, &tls.secret_name));
        }
        host.forces_tls |= annotations.is("force-ssl-redirect");
        host.redirects_to_tls |= host.forces_tls || tls.is_some() && annotations.get("ssl-redirect") != Some("false");
        for path in &paths {
            if let Some(rule) = rule(&key, path, is_regex, &template, &annotations, &mut problems) {
                host.rules.push(IngressRule { has_tls: tls.is_some(), ..rule });
            }
        }
        if let (Some(target), Some(_)) = (annotations.get("app-root"), &name) {
            let rule = redirect_rule(&key, PathMatch::Exact("/".to_owned()), target);
            host.rules.push(IngressRule { has_tls: tls.is_some(), ..rule });
        }
        if annotations.is("from-to-www-redirect")
            && let Some(name) = &name
        {
            let other = name.strip_prefix("www.").map_or_else(|| format!("www.{name}"), str::to_owned);
            let redirect = Redirect { hostname: Some(name.clone()), status: Some(308), ..Redirect::default() };
            let rule = Rule { filters: vec![Filter::Redirect(redirect)], ..Rule::default() };
            let from = converted.hosts.entry(Some(other)).or_default();
            from.rules.push(IngressRule { ingress: key.clone(), rule, ..IngressRule::default() });
        }
    }
    for (annotation, note) in problems {
        let outcome = AnnotationOutcome::Rejected;
        converted.remarks.push(AnnotationRemark { ingress: key.clone(), annotation, outcome, note });
    }
}

fn redirect_rule(ingress: &Key, path: PathMatch, target: &str) -> IngressRule {
    let matches = vec![Match { path: Some(path), ..Match::default() }];
    let filters = vec![Filter::Redirect(redirect_to(target, 302))];
    IngressRule {
        ingress: ingress.clone(),
        rule: Rule { matches, filters, ..Rule::default() },
        ..IngressRule::default()
    }
}

/// Redirect to a URL or path.
fn redirect_to(target: &str, status: u16) -> Redirect {
    let mut redirect = Redirect { status: Some(status), ..Redirect::default() };
    let path = match target.split_once("://") {
        None => target,
        Some((scheme, rest)) => {
            redirect.scheme = Some(scheme.to_owned());
            let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
            let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
            redirect.hostname = Some(host.to_owned());
            redirect.port = port.parse().ok();
            path
        }
    };
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    redirect.path = Some(PathRewrite::Full(path.to_owned()));
    redirect.query = Some(query.to_owned());
    redirect
}

/// Rule of a path, without its match and backend.
fn template(key: &Key, annotations: &Annotations<'_>, problems: &mut Vec<(String, String)>) -> IngressRule {
    let mut template = IngressRule { ingress: key.clone(), ..IngressRule::default() };
    let rule = &mut template.rule;
    // Without these, requests would be less protected than before.
    let rejected = annotations.of.keys().filter_map(|name| name.strip_prefix(PREFIX)).find(|name| {
        let closes = matches!(outcome(name), Some((AnnotationOutcome::Rejected, _)));
        closes && annotations.get(name).is_some_and(|value| value != "false")
    });
    rule.error = rejected.map(|name| format!("the annotation {name} is not supported"));
    if let Some(code) = annotations.get("permanent-redirect") {
        let status = annotations.number("permanent-redirect-code").unwrap_or(301);
        rule.filters.push(Filter::Redirect(redirect_to(code, status)));
    } else if let Some(target) = annotations.get("temporal-redirect") {
        let status = annotations.number("temporal-redirect-code").unwrap_or(302);
        rule.filters.push(Filter::Redirect(redirect_to(target, status)));
    }
    if annotations.is("enable-cors") {
        rule.filters.push(Filter::Cors(cors(annotations)));
    }
    if let Some(prefix) = annotations.get("x-forwarded-prefix") {
        let set = vec![("X-Forwarded-Prefix".to_owned(), prefix.to_owned())];
        rule.filters.push(Filter::RequestHeaders(FieldChanges { set, ..FieldChanges::default() }));
    }
    rule.retry = retry(annotations);
    rule.timeouts = Timeouts::default();
    rule.forward_options = forward_options(annotations);
    match policy(annotations).kdl() {
        Ok(options) => rule.options = options.site,
        Err(error) => {
            rule.error.get_or_insert(error.clone());
            problems.push(("whitelist-source-range".to_owned(), error));
        }
    }
    if let Some(url) = annotations.get("auth-url") {
        match auth(url, annotations) {
            Some(auth) => template.auth = Some(auth),
            None => {
                let note = format!("{url} is not a Service of the cluster, such as http://NAME.NAMESPACE.svc/PATH");
                template.rule.error.get_or_insert_with(|| note.clone());
                problems.push(("auth-url".to_owned(), note));
            }
        }
    }
    template
}

/// Limits and networks.
fn policy(annotations: &Annotations<'_>) -> TrafficPolicySpec {
    let multiplier: u32 = annotations.number("limit-burst-multiplier").unwrap_or(5);
    let limit = |name: &str, per: &str| {
        let requests: u32 = annotations.number(name).filter(|number| *number > 0)?;
        Some(RateLimitSpec { requests, per: per.to_owned(), burst: Some(requests.saturating_mul(multiplier.max(1))) })
    };
    let mut allow = annotations.list("whitelist-source-range");
    allow.extend(annotations.list("allowlist-source-range"));
    TrafficPolicySpec {
        rate_limits: limit("limit-rps", "second").into_iter().chain(limit("limit-rpm", "minute")).collect(),
        requests_max: annotations.number("limit-connections").filter(|number| *number > 0),
        allow,
        deny: annotations.list("denylist-source-range"),
        // The default of ingress-nginx, which 0 lifts.
        body_bytes_max: Some(match annotations.get("proxy-body-size").map_or(Some(1 << 20), size) {
            Some(0) | None => BODY_BYTES_MAX,
            Some(bytes) => bytes.min(BODY_BYTES_MAX),
        }),
        ..TrafficPolicySpec::default()
    }
}

/// Bytes of a size of nginx, such as `8m`.
fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Seconds of a time of nginx, such as `60` or `60s`.
fn seconds(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => return None,
    };
    // A day is the longest time that options take.
    digits.parse::<u64>().ok()?.checked_mul(unit).filter(|seconds| *seconds > 0).map(|seconds| seconds.min(86_400))
}

fn forward_options(annotations: &Annotations<'_>) -> String {
    let mut options = String::new();
    let mut push = |option: &str, value: String| {
        options.push_str(&format!("{option} {value}\n"));
    };
    // The default of ingress-nginx.
    let read = annotations.get("proxy-read-timeout").and_then(seconds).unwrap_or(60);
    push("first-byte-timeout", format!("\"{read}s\""));
    push("between-bytes-timeout", format!("\"{read}s\""));
    for (name, option) in [("proxy-buffering", "response-buffering"), ("proxy-request-buffering", "request-buffering")]
    {
        if let Some(value @ ("on" | "off")) = annotations.get(name) {
            push(option, value.to_owned());
        }
    }
    for (name, option, bytes_max) in [
        ("proxy-buffer-size", "response-head-bytes-max", RESPONSE_HEAD_BYTES_MAX),
        ("proxy-max-temp-file-size", "buffer-file-bytes-max", BODY_BYTES_MAX),
    ] {
        if let Some(bytes) = annotations.get(name).and_then(size).filter(|bytes| *bytes >= 1 << 10) {
            push(option, format!("\"{}B\"", bytes.min(bytes_max)));
        }
    }
    if let (Some(from), Some(to)) = (annotations.get("proxy-redirect-from"), annotations.get("proxy-redirect-to"))
        && ![from, to].iter().any(|text| text.contains(['"', '\\', '\n']) || *text == "default" || *text == "off")
    {
        push("rewrite-location", format!("\"{from}\" \"{to}\""));
    }
    for (name, option) in
        [("proxy-cookie-domain", "rewrite-cookie-domain"), ("proxy-cookie-path", "rewrite-cookie-path")]
    {
        let words: Vec<&str> = annotations.get(name).unwrap_or_default().split_whitespace().collect();
        if let [from, to] = words[..]
            && ![from, to].iter().any(|text| text.contains(['"', '\\', '~', '$']))
        {
            push(option, format!("\"{from}\" \"{to}\""));
        }
    }
    options
}

fn cors(annotations: &Annotations<'_>) -> Cors {
    let list = |name: &str, default: &str| {
        let list = annotations.list(name);
        if list.is_empty() {
            default.split(", ").filter(|it| !it.is_empty()).map(str::to_owned).collect()
        } else {
            list
        }
    };
    Cors {
        allow_origins: list("cors-allow-origin", "*"),
        allow_methods: list("cors-allow-methods", "GET, PUT, POST, DELETE, PATCH, OPTIONS"),
        allow_headers: list(
            "cors-allow-headers",
            "DNT, Keep-Alive, User-Agent, X-Requested-With, If-Modified-Since, Cache-Control, Content-Type, Range, Authorization",
        ),
        expose_headers: list("cors-expose-headers", ""),
        allow_credentials: annotations.get("cors-allow-credentials") != Some("false"),
        max_age_seconds: Some(annotations.number("cors-max-age").unwrap_or(1_728_000)),
    }
}

fn retry(annotations: &Annotations<'_>) -> Option<Retry> {
    let conditions = annotations.get("proxy-next-upstream")?;
    if conditions.split_whitespace().any(|condition| condition == "off") {
        return Some(Retry::default());
    }
    let codes = conditions.split_whitespace().filter_map(|condition| condition.strip_prefix("http_")?.parse().ok());
    let tries: u32 = annotations.number("proxy-next-upstream-tries").unwrap_or(3);
    // nginx counts tries, with the first; 0 is no limit, which is bounded here.
    let attempts = if tries == 0 { 10 } else { tries - 1 };
    Some(Retry { codes: codes.collect(), attempts, backoff_ms: 0 })
}

/// Authorization server of a URL within the cluster.
fn auth(url: &str, annotations: &Annotations<'_>) -> Option<IngressAuth> {
    let (scheme, rest) = url.split_once("://")?;
    let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let (host, port) = authority.split_once(':').unwrap_or((authority, if scheme == "https" { "443" } else { "80" }));
    let mut labels = host.split('.');
    let (name, namespace, of_cluster) = (labels.next()?, labels.next()?, labels.next()?);
    if scheme != "http" || of_cluster != "svc" || path.contains('$') {
        return None;
    }
    Some(IngressAuth {
        service: Key::new(namespace, name),
        port: port.parse().ok()?,
        path: path.to_owned(),
        response_headers: annotations.list("auth-response-headers"),
        login: annotations
            .get("auth-signin")
            .map(|login| login.split(['?', '$']).next().unwrap_or_default().to_owned()),
    })
}

/// Rule of a path, or `None` for an expression that is not valid.
fn rule(
    key: &Key,
    path: &IngressPath,
    is_regex: bool,
    template: &IngressRule,
    annotations: &Annotations<'_>,
    problems: &mut Vec<(String, String)>,
) -> Option<IngressRule> {
    let matching = path_match(path, is_regex);
    if let PathMatch::Regex(regex) = &matching
        && let Some(problem) = regex_problem(regex)
    {
        problems.push(("use-regex".to_owned(), format!("the path is left out: {problem}")));
        return None;
    }
    let mut rule = template.clone();
    rule.rule.matches = vec![Match { path: Some(matching), ..Match::default() }];
    let hostname = annotations.get("upstream-vhost").filter(|host| !host.contains('$')).map(str::to_owned);
    let rewrite = annotations.get("rewrite-target").map(|target| {
        if target.contains('$') { PathRewrite::Groups(target.to_owned()) } else { PathRewrite::Full(target.to_owned()) }
    });
    let redirects = rule.rule.filters.iter().any(|filter| matches!(filter, Filter::Redirect(_)));
    if (hostname.is_some() || rewrite.is_some()) && !redirects {
        rule.rule.filters.push(Filter::Rewrite(Rewrite { hostname, path: rewrite }));
    }
    if !redirects {
        rule.backends.extend(share(key, &path.backend, annotations, &mut rule.rule.error));
    }
    Some(rule)
}

/// Match of a path. On a host with expressions, every path is one: without case, from its start, whatever follows.
fn path_match(path: &IngressPath, is_regex: bool) -> PathMatch {
    let text = path.path.clone().unwrap_or_else(|| "/".to_owned());
    if is_regex {
        return PathMatch::Regex(format!("(?i)(?:{text}).*"));
    }
    match path.path_type.as_str() {
        "Exact" => PathMatch::Exact(text),
        _ => PathMatch::Prefix(text),
    }
}

fn share(
    key: &Key,
    backend: &IngressBackend,
    annotations: &Annotations<'_>,
    error: &mut Option<String>,
) -> Option<IngressShare> {
    let service = backend.service.as_ref()?;
    let protocol = annotations.get("backend-protocol").unwrap_or("HTTP").to_ascii_uppercase();
    let (is_grpc, is_tls) = match protocol.as_str() {
        "HTTP" => (annotations.is("grpc-backend"), annotations.is("secure-backends")),
        "HTTPS" => (false, true),
        "GRPC" => (true, false),
        "GRPCS" => (true, true),
        other => {
            error.get_or_insert(format!("the backend protocol {other} is not supported"));
            (false, false)
        }
    };
    let secret = annotations.get("proxy-ssl-secret").map(|text| {
        let (namespace, name) = text.split_once('/').unwrap_or((&key.namespace, text));
        Key::new(namespace, name)
    });
    let tls = is_tls.then(|| IngressBackendTls {
        name: annotations.get("proxy-ssl-name").map(str::to_owned),
        secret,
        is_verified: annotations.get("proxy-ssl-verify") == Some("on"),
    });
    let mut options = String::new();
    if let Some(seconds) = annotations.get("proxy-connect-timeout").and_then(seconds) {
        options.push_str(&format!("connect-timeout \"{seconds}s\"\n"));
    }
    match (annotations.get("upstream-hash-by"), annotations.get("load-balance")) {
        (Some("$remote_addr" | "$binary_remote_addr"), _) => options.push_str("balance hash\n"),
        (None, Some("round_robin")) => options.push_str("balance round-robin\n"),
        (None, Some("ewma")) => options.push_str("balance least-connections\n"),
        _ => {}
    }
    Some(IngressShare {
        service: Key::new(&key.namespace, &service.name),
        port_name: service.port.name.clone(),
        port: service.port.number,
        weight: 100,
        is_grpc,
        tls,
        session: (annotations.get("affinity") == Some("cookie")).then(|| session(annotations)),
        options,
    })
}

fn session(annotations: &Annotations<'_>) -> SessionPersistence {
    let age: Option<u64> = annotations.number("session-cookie-max-age");
    let age = age.or_else(|| annotations.number("session-cookie-expires"));
    SessionPersistence {
        name: annotations.get("session-cookie-name").unwrap_or("INGRESSCOOKIE").to_owned(),
        kind: PersistenceKind::Cookie,
        lifetime: if age.is_some() { Lifetime::Permanent } else { Lifetime::Session },
        absolute_timeout_seconds: age,
        path: annotations.get("session-cookie-path").map(str::to_owned),
    }
}

/// Changes the rules of the Ingress with the same host and path.
fn add_canary(ingress: &Ingress, regex_hosts: &BTreeSet<Option<String>>, converted: &mut Converted) {
    let annotations = Annotations { of: &ingress.metadata.annotations };
    let key = ingress.metadata.key();
    for rule in &ingress.spec.rules {
        let name = rule.host.clone().filter(|host| !host.is_empty()).map(|host| host.to_lowercase());
        let is_regex = regex_hosts.contains(&name);
        let Some(host) = converted.hosts.get_mut(&name) else { continue };
        for path in &rule.http.paths {
            let matching = Some(path_match(path, is_regex));
            let is_it = |rule: &IngressRule| {
                rule.rule.matches.len() == 1
                    && rule.rule.matches[0].path == matching
                    && rule.rule.matches[0].headers.is_empty()
            };
            let Some(at) = host.rules.iter().position(is_it) else { continue };
            let mut error = None;
            let Some(canary) = share(&key, &path.backend, &annotations, &mut error) else { continue };
            let main = host.rules[at].clone();
            let mut chosen = Vec::new();
            for (headers, is_canary) in canary_matches(&annotations) {
                let mut rule = main.clone();
                rule.rule.matches = vec![Match { path: matching.clone(), headers, ..Match::default() }];
                if is_canary {
                    rule.backends = vec![IngressShare { weight: 1, ..canary.clone() }];
                }
                chosen.push(rule);
            }
            let total: u32 = annotations.number("canary-weight-total").filter(|total| *total > 0).unwrap_or(100);
            let weight: u32 = annotations.number("canary-weight").unwrap_or(0).min(total);
            let of_main = &mut host.rules[at];
            of_main.backends.iter_mut().for_each(|share| share.weight = total - weight);
            of_main.backends.push(IngressShare { weight, ..canary });
            host.rules.extend(chosen);
        }
    }
}

/// Header fields of requests that go to the canary, or not, in order of precedence.
fn canary_matches(annotations: &Annotations<'_>) -> Vec<(Vec<ValueMatch>, bool)> {
    let field = |name: &str, value: ValueTest| vec![ValueMatch { name: name.to_owned(), value }];
    let mut matches = Vec::new();
    if let Some(name) = annotations.get("canary-by-header") {
        let value = annotations.get("canary-by-header-value").map(|value| ValueTest::Exact(value.to_owned()));
        let pattern = annotations.get("canary-by-header-pattern").filter(|it| regex_problem(it).is_none());
        match value.or_else(|| pattern.map(|pattern| ValueTest::Regex(pattern.to_owned()))) {
            Some(test) => matches.push((field(name, test), true)),
            None => {
                matches.push((field(name, ValueTest::Exact(ALWAYS.to_owned())), true));
                matches.push((field(name, ValueTest::Exact(NEVER.to_owned())), false));
            }
        }
    }
    if let Some(name) = annotations.get("canary-by-cookie") {
        let name = regex::escape(name);
        for (value, is_canary) in [(ALWAYS, true), (NEVER, false)] {
            let test = ValueTest::Regex(format!("(?:.*;)?\\s*{name}={value}\\s*(?:;.*)?"));
            matches.push((field("cookie", test), is_canary));
        }
    }
    matches
}
