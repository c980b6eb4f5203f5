//! The site of a rule: filters as rules, the backend as a forward.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use expression::{Fact, Variable};
use routes::{
    Cors, ExternalAuth, ExternalAuthKind, FieldChanges, Filter, PathMatch, PathRewrite, Redirect, Rewrite, Rule,
    Timeouts,
};
use wire::http::Status;

use crate::config::{
    self, AuthProtocol, Buffering, FieldAction, FieldCopy, FieldEdit, ForwardAuth, ForwardAuthRule, ForwardConfig,
    ForwardHost, HandlerConfig, Mirror, OriginPattern, PathPattern, Regex, RespondConfig, Retry, RouteConfig,
    RuleConditions, SiteConfig, Template, TemplatePiece, Tls, UpstreamConfig, check_bytes, is_own_request_field,
};

/// Time limit for `0`, which is none.
const UNLIMITED: Duration = Duration::from_secs(365 * 86_400);

/// Content of a request that is copied to mirrors, in bytes.
const MIRROR_BODY_BYTES_MAX: usize = 64 << 10;

/// Copies in progress at once, of each mirror.
const MIRROR_REQUESTS_MAX: usize = 256;

/// Retries of a request, at most.
const RETRIES_MAX: u32 = 10;

/// Server of the `forward` that options are read with; no request goes there.
const PLACEHOLDER: &str = "http://127.0.0.1:1";

/// Place in which a rule is translated.
pub(super) struct RulePlace<'a> {
    /// Match of the rule that has the request; `None` if all matches give the same site.
    pub(super) path: Option<&'a PathMatch>,
    /// Scheme and port of the listener.
    pub(super) scheme: &'static str,
    pub(super) port: u16,
    /// Upstreams of the snapshot.
    pub(super) is_backend: &'a dyn Fn(&str) -> bool,
}

/// Options of policies, read as KDL.
#[derive(Clone)]
pub(super) struct RuleOptions {
    pub(super) site: SiteConfig,
    pub(super) forward: ForwardConfig,
    /// Upstreams that the options name by URL.
    pub(super) upstreams: Vec<UpstreamConfig>,
}

/// Policy options that were read before, by their texts.
pub(super) type KnownOptions = HashMap<(String, String), Result<Arc<RuleOptions>, String>>;

/// True if a rule's site depends on the match that has the request.
pub(super) fn depends_on_path(filters: &[&Filter]) -> bool {
    let depends = |path: Option<&PathRewrite>| matches!(path, Some(PathRewrite::Prefix(_) | PathRewrite::Groups(_)));
    filters.iter().any(|filter| match filter {
        Filter::Redirect(Redirect { path, .. }) | Filter::Rewrite(Rewrite { path, .. }) => depends(path.as_ref()),
        _ => false,
    })
}

/// True if a rule's site depends on its listener.
pub(super) fn depends_on_listener(filters: &[&Filter]) -> bool {
    filters.iter().any(|filter| matches!(filter, Filter::Redirect(_)))
}

/// True if a filter responds, so that no backend gets the request.
pub(super) fn responds(filter: &Filter) -> bool {
    matches!(filter, Filter::Redirect(_) | Filter::Respond(_))
}

/// Site of a rule with one of its backends; `None` for a rule that responds itself, or with 500.
///
/// # Errors
/// A filter is not valid; the message names it.
pub(super) fn site_of(
    rule: &Rule,
    filters: &[&Filter],
    backend: Option<&str>,
    place: &RulePlace<'_>,
    options: &RuleOptions,
) -> Result<(SiteConfig, Vec<UpstreamConfig>), String> {
    let RuleOptions { mut site, mut forward, upstreams } = options.clone();
    if rule.error.is_some() {
        let handler = respond(Status::INTERNAL_SERVER_ERROR, "");
        site.routes = vec![RouteConfig::new(PathPattern::Any, handler)];
        return Ok((site, upstreams));
    }
    let mut response = None;
    for filter in filters {
        match filter {
            Filter::RequestHeaders(changes) => {
                site.rules.request_fields.extend(request_edits(changes, &mut forward)?);
            }
            Filter::ResponseHeaders(changes) => site.rules.response_fields.extend(edits(changes)?),
            Filter::Redirect(redirect) => site.rules.rewrites.extend(redirects(redirect, place)?),
            Filter::Rewrite(rewrite) => {
                if let Some(host) = &rewrite.hostname {
                    forward.host = ForwardHost::Set(host.clone());
                }
                if let Some(path) = &rewrite.path {
                    site.rules.rewrites.extend(rewrites(path, place)?);
                }
            }
            Filter::Mirror(mirror) => {
                if !(place.is_backend)(&mirror.backend) {
                    return Err(format!("the mirror's backend {} is unknown", mirror.backend));
                }
                forward.mirrors.push(Mirror {
                    upstream: mirror.backend.clone(),
                    share: mirror.share(),
                    body_bytes_max: MIRROR_BODY_BYTES_MAX,
                    requests_max: MIRROR_REQUESTS_MAX,
                });
            }
            Filter::Cors(cors) => site.rules.cors = Some(Arc::new(cors_of(cors)?)),
            Filter::ExternalAuth(auth) => site.rules.forward_auths.push(forward_auth(auth, place)?),
            Filter::Respond(of) => {
                let status = Status::new(of.status).ok_or_else(|| format!("{} is no status", of.status))?;
                response = Some(respond(status, &of.text));
            }
        }
    }
    apply_timeouts(&rule.timeouts, &mut forward);
    if let Some(retry) = rule.retry.as_ref().filter(|retry| !retry.codes.is_empty()) {
        let statuses = retry.codes.iter().map(|code| Status::new(*code).ok_or_else(|| format!("{code} is no status")));
        forward.retry = Some(Box::new(Retry {
            statuses: statuses.collect::<Result<_, _>>()?,
            attempts_max: retry.attempts.min(RETRIES_MAX),
            backoff: Duration::from_millis(retry.backoff_ms),
        }));
    }
    let is_redirect = filters.iter().any(|filter| matches!(filter, Filter::Redirect(_)));
    let handler = match (response, backend) {
        (Some(response), _) => response,
        (None, Some(backend)) => {
            forward.upstream = backend.to_owned();
            HandlerConfig::Forward(Box::new(forward))
        }
        // A redirect has answered before.
        (None, None) if is_redirect => respond(Status::NOT_FOUND, ""),
        (None, None) => respond(Status::INTERNAL_SERVER_ERROR, ""),
    };
    site.routes = vec![RouteConfig::new(PathPattern::Any, handler)];
    Ok((site, upstreams))
}

fn respond(status: Status, text: &str) -> HandlerConfig {
    HandlerConfig::Respond(RespondConfig {
        status,
        body: text.to_owned(),
        content_type: "text/plain; charset=utf-8".to_owned(),
    })
}

fn apply_timeouts(timeouts: &Timeouts, forward: &mut ForwardConfig) {
    let unlimited = |time_ms| if time_ms == 0 { UNLIMITED } else { Duration::from_millis(time_ms) };
    if let Some(time_ms) = timeouts.request_ms {
        forward.total_timeout = Some(time_ms).filter(|time_ms| *time_ms > 0).map(Duration::from_millis);
    }
    // The limit for the whole holds for each try, too.
    if let Some(limit) = timeouts.backend_request_ms.or(timeouts.request_ms) {
        forward.first_byte_timeout = unlimited(limit);
    }
}

fn edits(changes: &FieldChanges) -> Result<Vec<FieldEdit>, String> {
    let FieldChanges { set, add, remove } = changes;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let edit = |name: &str, value: &str, action| {
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(format!("{name:?} is no name of a header field"));
        }
        if value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
            return Err(format!("the value of the header field {name} has control characters"));
        }
        let (name, value) = (name.to_owned(), Template::literal(value));
        Ok(FieldEdit { path: PathPattern::Any, when: None, name, value, action: Some(action) })
    };
    let set = set.iter().map(|(name, value)| edit(name, value, FieldAction::Set));
    let add = add.iter().map(|(name, value)| edit(name, value, FieldAction::Add));
    let remove = remove.iter().map(|name| edit(name, "", FieldAction::Set));
    set.chain(add).chain(remove).collect()
}

/// Edits of requests; that of `Host` becomes an option of the forward.
fn request_edits(changes: &FieldChanges, forward: &mut ForwardConfig) -> Result<Vec<FieldEdit>, String> {
    let mut own = Vec::new();
    for edit in edits(changes)? {
        if edit.name.eq_ignore_ascii_case("host") {
            let host = changes.set.iter().find(|(name, _)| name.eq_ignore_ascii_case("host"));
            let (_, host) = host.ok_or("the header field Host can only be set")?;
            forward.host = ForwardHost::Set(host.clone());
        } else if is_own_request_field(&edit.name) {
            return Err(format!("the header field {} controls how the request is sent", edit.name));
        } else {
            own.push(edit);
        }
    }
    Ok(own)
}

/// Paths of a match, each with the end of a target for it.
fn path_targets(
    path: Option<&PathRewrite>,
    place: &RulePlace<'_>,
) -> Result<Vec<(PathPattern, Vec<TemplatePiece>)>, String> {
    let literal = |text: &str| TemplatePiece::Literal(text.to_owned());
    let absolute = |text: &str| if text.starts_with('/') { text.to_owned() } else { format!("/{text}") };
    let checked = |text: &str| match text.contains(['?', '#', ' ']) || text.contains(char::is_control) {
        true => Err(format!("the path {text:?} must be encoded")),
        false => Ok(()),
    };
    Ok(match (path, place.path) {
        (None, _) => vec![(PathPattern::Any, vec![TemplatePiece::Path])],
        (Some(PathRewrite::Full(path)), _) => {
            checked(path)?;
            vec![(PathPattern::Any, vec![literal(&absolute(path))])]
        }
        (Some(PathRewrite::Prefix(to)), matched) => {
            checked(to)?;
            let prefix = match matched {
                None => "/",
                Some(PathMatch::Prefix(prefix) | PathMatch::Start(prefix)) => prefix.as_str(),
                Some(PathMatch::Exact(_) | PathMatch::Regex(_)) => {
                    return Err("a prefix is replaced only where the match is a prefix".to_owned());
                }
            };
            let (prefix, bare) = (prefix.trim_end_matches('/'), absolute(to).trim_end_matches('/').to_owned());
            let below =
                (PathPattern::Prefix(format!("{prefix}/")), vec![literal(&format!("{bare}/")), TemplatePiece::Rest]);
            // The path of the prefix itself gets no slash unless it is the root.
            let itself = (PathPattern::Exact(prefix.to_owned()), vec![literal(&absolute(to))]);
            if prefix.is_empty() { vec![below] } else { vec![itself, below] }
        }
        (Some(PathRewrite::Groups(to)), Some(PathMatch::Regex(regex))) => {
            checked(to)?;
            let regex = Regex::new(&format!("^(?:{regex})$")).map_err(|error| error.to_string())?;
            vec![(PathPattern::Regex(regex), group_pieces(&absolute(to)))]
        }
        (Some(PathRewrite::Groups(_)), _) => {
            return Err("groups need a match by regular expression".to_owned());
        }
    })
}

/// Pieces of a text in which `$1` is a group.
fn group_pieces(text: &str) -> Vec<TemplatePiece> {
    let mut pieces = Vec::new();
    let mut parts = text.split('$');
    let first = parts.next().unwrap_or_default();
    pieces.push(TemplatePiece::Literal(first.to_owned()));
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        match digits {
            0 => pieces.push(TemplatePiece::Literal(format!("${part}"))),
            _ => {
                pieces.push(TemplatePiece::Group(part[..digits].to_owned()));
                pieces.push(TemplatePiece::Literal(part[digits..].to_owned()));
            }
        }
    }
    pieces.retain(|piece| *piece != TemplatePiece::Literal(String::new()));
    pieces
}

fn rewrite(path: PathPattern, pieces: Vec<TemplatePiece>, status: Option<Status>) -> config::Rewrite {
    let (conditions, target) = (RuleConditions::default(), Template { pieces });
    config::Rewrite { path, conditions, target, status, is_after_auth: false }
}

fn rewrites(path: &PathRewrite, place: &RulePlace<'_>) -> Result<Vec<config::Rewrite>, String> {
    let targets = path_targets(Some(path), place)?;
    Ok(targets.into_iter().map(|(path, pieces)| rewrite(path, pieces, None)).collect())
}

fn redirects(redirect: &Redirect, place: &RulePlace<'_>) -> Result<Vec<config::Rewrite>, String> {
    let status = redirect.status.unwrap_or(302);
    let status = Status::new(status).filter(|_| matches!(status, 301 | 302 | 303 | 307 | 308));
    let status = status.ok_or("the status of a redirect must be 301, 302, 303, 307 or 308")?;
    let scheme = match redirect.scheme.as_deref() {
        None => place.scheme,
        Some("http") => "http",
        Some("https") => "https",
        Some(other) => return Err(format!("a redirect to the scheme {other:?} is not supported")),
    };
    let default_port = if scheme == "https" { 443 } else { 80 };
    let port = redirect.port.unwrap_or(if redirect.scheme.is_some() { default_port } else { place.port });
    let host = match redirect.hostname.as_deref() {
        None => TemplatePiece::Host,
        Some(host) if routes::is_valid_hostname(&host.to_ascii_lowercase()) => TemplatePiece::Literal(host.to_owned()),
        Some(host) => return Err(format!("{host:?} is no host name")),
    };
    let mut start = vec![TemplatePiece::Literal(format!("{scheme}://")), host];
    if port != default_port {
        start.push(TemplatePiece::Literal(format!(":{port}")));
    }
    let targets = path_targets(redirect.path.as_ref(), place)?;
    let query = match redirect.query.as_deref() {
        None => Some(TemplatePiece::Query),
        Some("") => None,
        Some(query) if query.contains(['#', ' ']) || query.contains(char::is_control) => {
            return Err(format!("the query {query:?} must be encoded"));
        }
        Some(query) => Some(TemplatePiece::Literal(format!("?{query}"))),
    };
    let target = |(path, pieces): (PathPattern, Vec<TemplatePiece>)| {
        let pieces = start.iter().cloned().chain(pieces).chain(query.clone()).collect();
        rewrite(path, pieces, Some(status))
    };
    Ok(targets.into_iter().map(target).collect())
}

fn cors_of(cors: &Cors) -> Result<config::Cors, String> {
    Ok(config::Cors {
        origins: cors.allow_origins.iter().map(|text| OriginPattern::parse(text)).collect::<Result<_, _>>()?,
        methods: cors.allow_methods.clone(),
        headers: cors.allow_headers.clone(),
        exposed_headers: cors.expose_headers.clone(),
        allows_credentials: cors.allow_credentials,
        age_max_seconds: cors.max_age_seconds,
    })
}

/// URL of a login page with that of the request in its argument `rd`. The page decodes it once.
fn login_pieces(url: &str) -> Vec<TemplatePiece> {
    let literal = |text: &str| TemplatePiece::Literal(text.to_owned());
    let separator = if url.contains('?') { '&' } else { '?' };
    vec![
        literal(&format!("{url}{separator}rd=")),
        TemplatePiece::Scheme,
        literal("://"),
        TemplatePiece::Host,
        TemplatePiece::Path,
        literal("%3F"),
        TemplatePiece::Variable(Variable::Fact(Fact::Query)),
    ]
}

fn forward_auth(auth: &ExternalAuth, place: &RulePlace<'_>) -> Result<ForwardAuthRule, String> {
    let body_bytes_max = u32::try_from(auth.body_bytes_max).ok().filter(|bytes| *bytes <= ForwardAuth::BODY_BYTES_MAX);
    let body_bytes_max = body_bytes_max.ok_or_else(|| {
        format!("an authorization server gets at most {} bytes of content", ForwardAuth::BODY_BYTES_MAX)
    })?;
    let (protocol, target) = match &auth.kind {
        ExternalAuthKind::Http(target) => (AuthProtocol::Http, target.clone()),
        ExternalAuthKind::Grpc => (AuthProtocol::Grpc, String::new()),
    };
    if !(place.is_backend)(&auth.backend) {
        return Err(format!("the backend {} of the external authorization is unknown", auth.backend));
    }
    let mut forward = ForwardConfig::to(&auth.backend);
    (forward.buffers.requests, forward.buffers.responses) = (Buffering::Off, Buffering::Off);
    forward.upgrades = Vec::new();
    let login =
        auth.login.as_ref().map(|url| Box::new(rewrite(PathPattern::Any, login_pieces(url), Some(Status::FOUND))));
    let copy = |name: &String| FieldCopy { from: name.clone(), to: name.clone() };
    let auth = ForwardAuth {
        forward: Box::new(forward),
        target,
        copies: auth.response_headers.iter().map(copy).collect(),
        login,
        follows_location: false,
        passes_cookies: true,
        protocol,
        body_bytes_max,
        asked_fields: auth.request_headers.clone(),
    };
    Ok(ForwardAuthRule { path: PathPattern::Any, when: None, auth: Some(auth) })
}

/// Reads the options of policies.
///
/// # Errors
/// The options are not valid, or more than those of a site and its `forward`.
pub(super) fn policy_options(rule: &Rule, known: &mut KnownOptions) -> Result<Arc<RuleOptions>, String> {
    let key = (rule.options.clone(), rule.forward_options.clone());
    known.entry(key).or_insert_with_key(|(options, forward)| read_options(options, forward).map(Arc::new)).clone()
}

fn read_options(options: &str, forward: &str) -> Result<RuleOptions, String> {
    if options.is_empty() && forward.is_empty() {
        let (site, forward) = (SiteConfig::default(), ForwardConfig::to(""));
        return Ok(RuleOptions { site, forward, upstreams: Vec::new() });
    }
    let text = format!("site {{\nlisten \"127.0.0.1:1\"\n{options}\nforward \"{PLACEHOLDER}\" {{\n{forward}\n}}\n}}\n");
    let checked = check_bytes("options", text.into_bytes(), Path::new("/"));
    let config = checked.config.ok_or_else(|| checked.diagnostics.to_text(false).trim_end().to_owned())?;
    let plain = config::Config::default();
    let is_site_alone = config.server == plain.server
        && config.limits == plain.limits
        && config.rules == plain.rules
        && config.maps.is_empty()
        && config.secrets.is_empty()
        && config.cache == plain.cache;
    let sites = <[Arc<SiteConfig>; 1]>::try_from(config.sites);
    let [site] = sites.map_err(|_| "the options are more than those of a site")?;
    // The author of a policy may be another than the operator, so a policy names no file that the server opens.
    let names_files = !site.error_pages.is_empty() || site.access_log.is_some() || site.tls != Tls::default();
    if names_files || site.ftp.is_some() || site.listen.len() != 1 {
        return Err("`error-page`, `access-log`, `certificate`, `ftp` and `listen` are not for policies".to_owned());
    }
    let handler = site.routes.first().filter(|_| is_site_alone && site.routes.len() == 1).map(|route| &route.handler);
    let Some(HandlerConfig::Forward(forward)) = handler else {
        return Err("the options are more than those of a site and its `forward`".to_owned());
    };
    let forward = (**forward).clone();
    let upstreams = config.upstreams.into_iter().filter(|upstream| upstream.name != PLACEHOLDER);
    let (upstreams, site) = (upstreams.map(Arc::unwrap_or_clone).collect(), Arc::unwrap_or_clone(site));
    Ok(RuleOptions { site: SiteConfig { listen: Vec::new(), routes: Vec::new(), ..site }, forward, upstreams })
}

/// Reads the options of a backend.
///
/// # Errors
/// The options are not valid, or more than those of an upstream.
pub(super) fn upstream_of(name: &str, options: &str) -> Result<UpstreamConfig, String> {
    if options.is_empty() {
        return Ok(UpstreamConfig::named(name));
    }
    let text = format!(
        "upstream \"backend\" {{\nserver \"{PLACEHOLDER}\"\n{options}\n}}\nsite {{\nlisten \"127.0.0.1:1\"\nforward \"backend\"\n}}\n"
    );
    let checked = check_bytes("options", text.into_bytes(), Path::new("/"));
    let config = checked.config.ok_or_else(|| checked.diagnostics.to_text(false).trim_end().to_owned())?;
    let is_alone =
        config.sites.len() == 1 && config.upstreams.len() == 1 && config.server == config::Config::default().server;
    let upstream = config.upstreams.into_iter().next().filter(|of| is_alone && of.servers.len() == 1);
    let upstream = upstream.ok_or("the options are more than those of an upstream")?;
    Ok(UpstreamConfig { name: name.to_owned(), servers: Vec::new(), ..Arc::unwrap_or_clone(upstream) })
}
