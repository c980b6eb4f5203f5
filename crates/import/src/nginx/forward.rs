//! Upstreams: `proxy_pass`, `grpc_pass`, `fastcgi_pass`, `scgi_pass`, `uwsgi_pass`, and their options.

use std::collections::BTreeSet;
use std::time::Duration;

use super::http::{HttpBlock, body_size};
use super::matching::LocationMatch;
use super::scene::Scene;
use super::settings::{DirectiveLevel, compression_level, time_option};
use super::syntax::NginxDirective;
use super::upstream::ProxyScheme;
use super::values::{self, Within};
use super::variables::find_map;
use super::{Chain, Notes, auth_request, caching, guard, rewrite};
use crate::config;
use crate::kdl::KdlNode;
use crate::pattern::quoted;

/// Longest time to wait for a part of a response.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(86_400);

/// Directives that forward requests.
const PASSES: [&str; 5] = ["proxy_pass", "grpc_pass", "fastcgi_pass", "scgi_pass", "uwsgi_pass"];

/// The directive of a block that hands requests on.
pub(super) fn pass(block: &[NginxDirective]) -> Option<&NginxDirective> {
    block.iter().find(|directive| PASSES.contains(&directive.name.as_str()))
}

/// Returns `true` if a directive answers requests in a way that only nginx supports.
pub(super) fn is_foreign(name: &str) -> bool {
    matches!(name, "js_content" | "perl" | "empty_gif" | "echo" | "api" | "hls")
        || name.starts_with("content_by_lua")
        || (name.ends_with("_pass") && !PASSES.contains(&name))
}

/// The handler that a `…_pass` is here.
///
/// # Errors
///
/// The reason why there is none.
pub(super) fn handler(pass: &NginxDirective, scene: Scene<'_>, notes: &mut Notes) -> Result<KdlNode, String> {
    let family = pass.name.trim_end_matches("_pass");
    // Clients may send the requests that the server sends for its `auth_request`, too. They have no content.
    let is_asked = scene.location.prefix().is_some_and(|path| auth_request::is_asked(path, scene.server));
    let withheld = |part: &str| {
        let directive = scene.chain.last(&format!("{family}_pass_request_{part}"));
        directive.filter(|directive| directive.first() == "off")
    };
    if withheld("headers").is_some() && family != "proxy" {
        return Err("applications get all header fields of a request".to_owned());
    }
    if let Some(directive) = withheld("body").filter(|_| !is_asked) {
        notes.left(directive, "upstreams get the body of requests that have one");
    }
    match pass.name.as_str() {
        "proxy_pass" | "grpc_pass" => forward(pass, scene, notes),
        "fastcgi_pass" => fastcgi(pass, scene, notes),
        name => Ok(application(name, pass, scene, notes)),
    }
}

/// Upstreams between which a map chooses, each with its condition, and the default.
pub(super) fn choices(pass: &NginxDirective, http: &[NginxDirective]) -> Option<(Vec<(String, String)>, String)> {
    let name = map_name(pass.first()).filter(|_| pass.name == "proxy_pass")?;
    let mut urls = BTreeSet::new();
    let default = collect_urls(name, http, 0, &mut urls)?;
    urls.remove(&default);
    let with_condition = |url: String| {
        let condition = format!("map.{name} == {}", quoted(&url));
        (url, condition)
    };
    Some((urls.into_iter().map(with_condition).collect(), default))
}

/// Name of the map whose value is a whole text.
fn map_name(text: &str) -> Option<&str> {
    text.strip_prefix("${map.")?.strip_suffix('}')
}

/// Collects the URLs that a map may have, also those of maps in it. Returns the default.
fn collect_urls(name: &str, http: &[NginxDirective], depth: usize, urls: &mut BTreeSet<String>) -> Option<String> {
    const DEPTH_MAX: usize = 4;
    let map = find_map(http, name).filter(|_| depth < DEPTH_MAX)?;
    let mut default = None;
    for child in map.children().iter().filter(|child| !matches!(child.name.as_str(), "hostnames" | "volatile")) {
        let value = child.first();
        let url = match map_name(value) {
            Some(inner) => collect_urls(inner, http, depth + 1, urls)?,
            None => value.to_owned(),
        };
        let is_server = url.split_once("://").is_some_and(|(scheme, authority)| {
            matches!(scheme, "http" | "https") && !authority.is_empty() && !authority.contains(['/', '$', '?'])
        });
        if !is_server || child.name == "include" {
            return None;
        }
        if child.name == "default" {
            default = Some(url.clone());
        }
        urls.insert(url);
    }
    default
}

fn forward(pass: &NginxDirective, scene: Scene<'_>, notes: &mut Notes) -> Result<KdlNode, String> {
    let Scene { location, chain, shared, .. } = scene;
    if url_of(pass).contains('$') {
        return Err("an upstream has a fixed address; its name is resolved again automatically".to_owned());
    }
    let scheme = pass.first().split_once("://").map_or("http", |(scheme, _)| scheme);
    let (authority, path) = target(pass);
    let scheme = match (pass.name.as_str(), scheme) {
        (_, "https" | "grpcs") => ProxyScheme::Https,
        ("grpc_pass", _) => ProxyScheme::H2c,
        _ => ProxyScheme::Http,
    };
    let to = if shared.upstreams.contains(&authority) { authority } else { scheme.address(&authority) };
    let mut options = Vec::new();
    options.extend(prefix(&path, scene)?);
    options.extend(host(pass, scene, notes));
    if chain.last("proxy_pass_request_headers").is_some_and(|passed| passed.first() == "off") {
        options.push(KdlNode::new("pass-request-headers").word("off"));
        let is_address = |field: &&NginxDirective| field.first().eq_ignore_ascii_case("x-forwarded-for");
        if !chain.all("proxy_set_header").iter().any(is_address) {
            options.push(KdlNode::new("forwarded-headers").word("none"));
        }
    }
    answer_options("proxy", chain, &mut options, notes);
    options.extend(guard::internal_redirects(scene.server, "proxy", chain));
    let node = KdlNode::with("forward", to);
    let node = match location.pattern() {
        Some(pattern) => node.property("path", pattern),
        None => node,
    };
    Ok(node.block(options))
}

/// `Host` for the upstream, if it is not the client's.
fn host(pass: &NginxDirective, scene: Scene<'_>, notes: &mut Notes) -> Option<KdlNode> {
    let Scene { chain, shared, .. } = scene;
    let (authority, _) = target(pass);
    // nginx sends the name of its `upstream`. The option has these words for something else.
    let is_name = shared.upstreams.contains(&authority) && !matches!(authority.as_str(), "keep" | "upstream");
    let of_upstream = || match is_name {
        true => Some(KdlNode::with("host", &authority)),
        false => Some(KdlNode::new("host").word("upstream")),
    };
    let fields = chain.all(if pass.name == "grpc_pass" { "grpc_set_header" } else { "proxy_set_header" });
    let Some(field) = fields.into_iter().rfind(|field| is_host(field.first())) else {
        return of_upstream().filter(|_| pass.name == "proxy_pass");
    };
    let why = match field.argument(1) {
        "$host" | "$http_host" | "$host:$server_port" => return None,
        "$proxy_host" | "$proxy_host:$proxy_port" => return of_upstream(),
        "" => "an upstream always gets a `Host`",
        // The option has these words for something else.
        "keep" | "upstream" => "add a port or a domain, because `host` has this word for another value",
        host if host.contains('$') => "the value of `host` must be fixed",
        host => return Some(KdlNode::with("host", host)),
    };
    notes.left(field, why);
    None
}

fn is_host(name: &str) -> bool {
    name.eq_ignore_ascii_case("host")
}

/// Replacement of a location's prefix: none, the same, an empty one, or a prefix that a rewrite has put after it.
fn prefix(path: &str, scene: Scene<'_>) -> Result<Option<KdlNode>, String> {
    let strip = |prefix: &str| Some(KdlNode::with("strip-prefix", prefix.trim_end_matches('/')));
    let block = scene.chain.blocks.into_iter().rev().find(|block| pass(block).is_some()).unwrap_or_default();
    if let Some(prefix) = block.iter().find_map(|child| rewrite::stripped_prefix(child, scene.location)) {
        return Ok(strip(prefix));
    }
    let own = pass(block);
    match (path, scene.location.prefix()) {
        ("", _) => Ok(None),
        // With variables, the path is sent as it is.
        (path, _) if own.is_some_and(|pass| pass.had_variables) => match fixed_path(path, scene) {
            Some((kept, _)) if kept.is_empty() => Ok(None),
            Some((kept, _)) => Ok(strip(&kept)),
            None => Err(format!("all requests get the path `{path}`")),
        },
        (path, Some(prefix)) if path == prefix => Ok(None),
        ("/", Some(prefix)) if prefix.ends_with('/') || matches!(scene.location, LocationMatch::Exact(_)) => {
            Ok(strip(prefix))
        }
        (path, Some(prefix)) if is_replaced(path, scene.location) => Ok(strip(prefix)),
        _ => Err("paths are forwarded unchanged, or with another prefix in place of the location's".to_owned()),
    }
}

/// Returns `true` if the replacement can be written after the location's prefix and the prefix stripped then.
fn is_replaced(path: &str, location: &LocationMatch) -> bool {
    let (LocationMatch::Prefix(prefix) | LocationMatch::PrefixFirst(prefix)) = location else { return false };
    prefix != "/" && path.starts_with('/') && path.ends_with('/') == prefix.ends_with('/') && !path.contains('$')
}

/// Prefix and path of all requests of a location that get the same path: one of the location's own, whose prefix is
/// removed unless the upstream's path is such a path itself.
fn fixed_path(path: &str, scene: Scene<'_>) -> Option<(String, String)> {
    if !path.starts_with('/') || path.contains(['$', '?']) {
        return None;
    }
    if scene.has(path) {
        return Some((String::new(), path.to_owned()));
    }
    let kept = scene.location.prefix().filter(|_| scene.location.is_prefix())?.trim_end_matches('/');
    (!kept.is_empty()).then(|| (kept.to_owned(), format!("{kept}{path}")))
}

/// Rewrite that puts the replacement after the prefix: `/v1/` of `proxy_pass http://b/v1/`.
pub(super) fn replaced_prefix(pass: &NginxDirective, scene: Scene<'_>) -> Option<KdlNode> {
    let (_, path) = target(pass);
    if pass.had_variables && pass.name == "proxy_pass" && !url_of(pass).contains('$') {
        let (_, path) = fixed_path(&path, scene)?;
        let pattern = scene.location.pattern();
        return Some(KdlNode::with("rewrite", pattern.as_deref().unwrap_or("*")).text(path));
    }
    let prefix = scene.location.prefix()?;
    if pass.had_variables || !is_replaced(&path, scene.location) || path == prefix || path == "/" {
        return None;
    }
    let kept = prefix.trim_end_matches('/');
    Some(match scene.location.pattern()? {
        pattern if pattern.starts_with('~') => {
            KdlNode::with("rewrite", format!("{pattern}(.*)$")).text(format!("{kept}{path}{{1}}"))
        }
        pattern => KdlNode::with("rewrite", pattern).text(format!("{kept}{path}{{rest}}")),
    })
}

/// Server of a `…_pass`, and the path after it.
fn target(pass: &NginxDirective) -> (String, String) {
    target_of(url_of(pass))
}

/// URL of a `…_pass`, without variables for the path and query of the request, which upstreams get anyway.
pub(super) fn url_of(pass: &NginxDirective) -> &str {
    let url = pass.first();
    let own = ["/$request_uri", "$request_uri", "$uri$is_args$args"];
    own.iter().find_map(|path| url.strip_suffix(path)).unwrap_or(url)
}

/// Server of a URL, and the path after it.
pub(super) fn target_of(url: &str) -> (String, String) {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    if let Some((socket, path)) = rest.strip_prefix("unix:").and_then(|rest| rest.split_once(':')) {
        return (format!("unix:{socket}"), path.to_owned());
    }
    let end = if rest.starts_with("unix:") { rest.len() } else { rest.find('/').unwrap_or(rest.len()) };
    (rest[..end].to_owned(), rest[end..].to_owned())
}

/// Times, sizes and the like that all handlers have that ask others.
fn answer_options(family: &str, chain: Chain<'_>, options: &mut Vec<KdlNode>, notes: &mut Notes) {
    let of = |name: &str| chain.last(&format!("{family}_{name}"));
    if let Some(directive) = of("read_timeout") {
        let is_longer = values::duration(directive.first()).is_some_and(|time| time > LONGEST_TIMEOUT);
        for name in ["first-byte-timeout", "between-bytes-timeout"] {
            options.extend(match is_longer {
                true => Some(KdlNode::with(name, config::format_duration(LONGEST_TIMEOUT))),
                false => time_option(name, directive, notes),
            });
        }
        if is_longer {
            notes.left(directive, "no response is waited for longer than a day");
        }
    }
    for (name, option) in [("request_buffering", "request-buffering"), ("buffering", "response-buffering")] {
        if let Some(directive) = of(name) {
            options.push(KdlNode::new(option).word(if directive.first() == "off" { "off" } else { "on" }));
        }
    }
    if let Some(size) = of("max_temp_file_size").and_then(|directive| values::size(directive.first())) {
        options.push(KdlNode::with("buffer-file-bytes-max", size));
    }
    if of("ignore_client_abort").is_some_and(|directive| directive.first() == "on") {
        options.push(KdlNode::new("abort-on-close").word("off"));
    }
    // Directives of the site or the server are translated there.
    let of_location = |name: &str| {
        let blocks = chain.blocks.iter().skip(2).rev();
        blocks.flat_map(|block| block.iter()).find(|directive| directive.name == name)
    };
    if let Some(directive) = of_location("client_max_body_size") {
        options.push(body_size(directive));
    }
    if let Some(directive) = of_location("gzip") {
        options.push(KdlNode::new("compress").word(if directive.first() == "off" { "off" } else { "on" }));
    }
    if let Some(size) = of_location("gzip_min_length").and_then(|directive| values::size(directive.first())) {
        options.push(KdlNode::with("compress-bytes-min", size));
    }
    if let Some(level) = of_location("gzip_comp_level").and_then(compression_level) {
        options.push(KdlNode::new("compress-level").word(level));
    }
    options.extend(caching::block(family, chain, notes));
}

fn fastcgi(pass: &NginxDirective, scene: Scene<'_>, notes: &mut Notes) -> Result<KdlNode, String> {
    let Scene { location, chain, .. } = scene;
    let parameters = chain.all("fastcgi_param");
    let script = parameters.iter().rfind(|directive| directive.first() == "SCRIPT_FILENAME");
    let names_no_script = script.is_none() && !parameters.is_empty() && !chain.has_missing_include();
    if names_no_script && runs_php(pass, location) {
        let why = "PHP-FPM responds with 404, because it gets no SCRIPT_FILENAME; add `fastcgi_param SCRIPT_FILENAME \
                   $document_root$fastcgi_script_name;` and import again";
        notes.left(pass, why);
        return Ok(KdlNode::with("respond", location.pattern().as_deref().unwrap_or("*")).word(404));
    }
    let root = chain.last("root").map(NginxDirective::first).filter(|_| !names_no_script);
    let mut options = Vec::new();
    answer_options("fastcgi", chain, &mut options, notes);
    options.extend(guard::internal_redirects(scene.server, "fastcgi", chain));
    if chain.last("fastcgi_keep_conn").is_some_and(|keep| keep.first() == "on") {
        options.push(KdlNode::new("keep-connections").word("on"));
    }
    if root.is_some() && names_whole_script(location) {
        options.push(KdlNode::new("path-info").word("off"));
    }
    variables("fastcgi_param", chain, &mut options, notes);
    let script = script.map(|directive| ScriptsLocation::of(directive.argument(1)));
    let root = match (script, root) {
        (Some(Some(ScriptsLocation::Below(root))), _) => Some(root),
        (Some(None), _) => return Err("`fastcgi` runs only the script that the path names".to_owned()),
        (Some(Some(ScriptsLocation::BelowRoot)), _) if chain.place().is_some_and(|place| place.name == "alias") => {
            return Err("`fastcgi` finds scripts below a root, not by an `alias`".to_owned());
        }
        (_, root) => root,
    };
    let node =
        KdlNode::with("fastcgi", location.pattern().as_deref().unwrap_or("*")).text(gateway_address(pass.first()));
    let node = match root {
        Some(root) if root.contains('$') => return Err("`{host}` is the only variable in `root`".to_owned()),
        // Each path is a script below the root.
        Some(root) => node.property("root", root),
        // One application, whatever the path.
        None => {
            options.push(KdlNode::with("application", "/"));
            node
        }
    };
    Ok(node.block(options))
}

/// Returns `true` if PHP-FPM gets the requests of a location.
fn runs_php(pass: &NginxDirective, location: &LocationMatch) -> bool {
    pass.first().contains("php") || location.pattern().is_some_and(|pattern| pattern.contains("php"))
}

/// Returns `true` if no path of a location continues after a script's name.
fn names_whole_script(location: &LocationMatch) -> bool {
    match location {
        LocationMatch::Exact(_) => true,
        LocationMatch::Expression(expression) => expression.trim_end_matches(')').ends_with(r"\.php$"),
        _ => false,
    }
}

/// Directory of the scripts that paths name.
#[derive(Clone, Copy)]
enum ScriptsLocation<'a> {
    BelowRoot,
    Below(&'a str),
}

impl<'a> ScriptsLocation<'a> {
    /// Directory of a SCRIPT_FILENAME; `None` if the path does not name the script.
    fn of(file: &'a str) -> Option<Self> {
        if file == "$request_filename" {
            return Some(Self::BelowRoot);
        }
        let names = ["$fastcgi_script_name", "${fastcgi_script_name}", "$uri", "$document_uri"];
        let root = names.iter().find_map(|name| file.strip_suffix(name))?.trim_end_matches('/');
        match root {
            "$document_root" | "${document_root}" | "$realpath_root" | "${realpath_root}" => Some(Self::BelowRoot),
            root => (root.starts_with('/') && !root.contains('$')).then_some(Self::Below(root)),
        }
    }
}

fn application(name: &str, pass: &NginxDirective, scene: Scene<'_>, notes: &mut Notes) -> KdlNode {
    let Scene { location, chain, shared, .. } = scene;
    let (family, name) = if name == "scgi_pass" { ("scgi", "scgi") } else { ("uwsgi", "uwsgi") };
    let mut options = Vec::new();
    answer_options(family, chain, &mut options, notes);
    options.extend(guard::internal_redirects(scene.server, family, chain));
    variables(if family == "scgi" { "scgi_param" } else { "uwsgi_param" }, chain, &mut options, notes);
    let to = pass.first();
    let to = if shared.upstreams.contains(to) { to.to_owned() } else { gateway_address(to) };
    KdlNode::with(name, location.pattern().as_deref().unwrap_or("*")).text(to).block(options)
}

fn gateway_address(to: &str) -> String {
    if to.starts_with("unix:") || !to.contains(':') { to.to_owned() } else { ProxyScheme::Tcp.address(to) }
}

/// Variables that scripts get by default.
const STANDARD: [&str; 27] = [
    "AUTH_TYPE",
    "CONTENT_LENGTH",
    "CONTENT_TYPE",
    "DOCUMENT_ROOT",
    "DOCUMENT_URI",
    "FCGI_ROLE",
    "GATEWAY_INTERFACE",
    "HTTPS",
    "HTTP_PROXY",
    "PATH_INFO",
    "PATH_TRANSLATED",
    "QUERY_STRING",
    "REDIRECT_STATUS",
    "REMOTE_ADDR",
    "REMOTE_PORT",
    "REMOTE_USER",
    "REQUEST_METHOD",
    "REQUEST_SCHEME",
    "REQUEST_URI",
    "SCGI",
    "SCRIPT_FILENAME",
    "SCRIPT_NAME",
    "SERVER_ADDR",
    "SERVER_NAME",
    "SERVER_PORT",
    "SERVER_PROTOCOL",
    "SERVER_SOFTWARE",
];

/// Returns `true` if a variable has the value of a request header field, as scripts get it by default.
fn is_field_by_default(variable: &str, value: &str) -> bool {
    match (variable, value) {
        ("HTTP_HOST", "$host") => true,
        (variable, value) => {
            variable.starts_with("HTTP_")
                && value.strip_prefix('$').is_some_and(|value| value == variable.to_ascii_lowercase())
        }
    }
}

fn variables(name: &str, chain: Chain<'_>, options: &mut Vec<KdlNode>, notes: &mut Notes) {
    let is_by_default = |directive: &NginxDirective| {
        STANDARD.contains(&directive.first()) || is_field_by_default(directive.first(), directive.argument(1))
    };
    let is_copied = |directive: &NginxDirective| {
        directive.first().starts_with("HTTP_") && auth_request::is_copied(chain, directive.argument(1))
    };
    let all = chain.all(name);
    for directive in all.iter().filter(|directive| !is_by_default(directive) && !is_copied(directive)) {
        if directive.argument(1).contains(char::is_control) {
            notes.left(directive, "the value of `variable` has no line breaks; set it in the pool of PHP-FPM");
        } else if directive.argument(1).contains('$') {
            notes.left(directive, "the value of `variable` must be fixed");
            if directive.first().starts_with("HTTP_") {
                // A client's value must not pass for one of nginx.
                options.push(KdlNode::with("variable", directive.first()).text(""));
            }
        } else {
            options.push(KdlNode::with("variable", directive.first()).text(directive.argument(1)));
        }
    }
}

/// Header fields that change on the way to the upstream and back.
pub(super) fn fields(chain: Chain<'_>, level: &DirectiveLevel, shared: &HttpBlock, notes: &mut Notes) -> Vec<KdlNode> {
    let pattern = match level {
        DirectiveLevel::Location { pattern, .. } => pattern.as_deref(),
        DirectiveLevel::Http | DirectiveLevel::Server => None,
    };
    let at = |name: &'static str| pattern.map_or_else(|| KdlNode::new(name), |pattern| KdlNode::with(name, pattern));
    let mut nodes = Vec::new();
    for directive in [chain.all("proxy_set_header"), chain.all("grpc_set_header")].concat() {
        let (name, value) = (directive.first(), directive.argument(1));
        // The handler has an option for `Host`.
        if is_host(name) || is_by_default(name, value, shared) || auth_request::is_copied(chain, value) {
            continue;
        }
        if name.eq_ignore_ascii_case("content-length") && value.is_empty() {
            // Requests without content have none.
            continue;
        }
        if config::is_own_request_field(name) {
            notes.left(directive, "this field controls how the request is sent, and cannot be changed");
            continue;
        }
        match values::text(value, Within::Field) {
            Ok(value) => nodes.push(at("request-header").text(name).text(value)),
            // A client's value must not pass for one of nginx.
            Err(why) if is_forgeable(name) => {
                nodes.push(at("request-header").text(name).text(""));
                notes.left(directive, format!("{why}; the client's own field is removed"));
            }
            Err(why) => notes.left(directive, why),
        }
    }
    for directive in [chain.all("proxy_hide_header"), chain.all("fastcgi_hide_header")].concat() {
        nodes.push(at("response-header").text(directive.first()).text(""));
    }
    nodes
}

/// Returns `true` if the client's value of a field passes by default.
fn is_forgeable(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // The server sets these fields itself.
    let is_about_client = name.starts_with("x-forwarded-") || matches!(name.as_str(), "forwarded" | "via" | "proxy");
    !name.starts_with("content-") && !is_about_client
}

/// Returns `true` if the upstream gets the field anyway.
fn is_by_default(name: &str, value: &str, shared: &HttpBlock) -> bool {
    match name.to_ascii_lowercase().as_str() {
        "x-forwarded-for" => matches!(value, "$proxy_add_x_forwarded_for" | "$remote_addr"),
        "x-forwarded-proto" | "x-forwarded-scheme" => value == "$scheme",
        "x-forwarded-host" => matches!(value, "$host" | "$http_host"),
        "upgrade" => value == "$http_upgrade",
        "connection" => {
            matches!(value.to_ascii_lowercase().as_str(), "" | "upgrade" | "keep-alive" | "close" | "$http_connection")
                || shared.upgrades.contains(value)
        }
        "proxy" => value.is_empty(),
        _ => false,
    }
}

/// Returns `true` if a directive is an option of forwarding. Reports those that have no counterpart.
pub(super) fn is_option(directive: &NginxDirective, notes: &mut Notes) -> bool {
    let name = directive.name.as_str();
    let Some((family, option)) = name.split_once('_') else { return false };
    if !matches!(family, "proxy" | "fastcgi" | "uwsgi" | "scgi" | "grpc") {
        return false;
    }
    match option {
        "pass"
        | "pass_request_headers"
        | "pass_request_body"
        | "set_header"
        | "hide_header"
        | "param"
        | "read_timeout"
        | "ignore_client_abort"
        | "cache"
        | "cache_valid"
        | "cache_bypass"
        | "cache_key"
        | "cache_use_stale"
        | "no_cache"
        | "keep_conn" => {}
        "buffering" | "request_buffering" | "max_temp_file_size" => {}
        "buffers"
        | "buffer_size"
        | "busy_buffers_size"
        | "temp_path"
        | "temp_file_write_size"
        | "send_lowat"
        | "force_ranges"
        | "socket_keepalive"
        | "headers_hash_max_size"
        | "headers_hash_bucket_size" => {
            notes.needless(directive, "buffers grow as slow clients need them");
        }
        "http_version" => notes.needless(directive, "upstreams are used with HTTP/1.1 and keep-alive"),
        "cache_lock"
        | "cache_lock_timeout"
        | "cache_lock_age"
        | "cache_background_update"
        | "cache_revalidate"
        | "cache_methods"
        | "cache_min_uses" => {
            notes.needless(directive, "requests are collapsed, and stale responses are validated");
        }
        "redirect" if directive.first() == "off" || directive.first() == "default" => {}
        "index" | "split_path_info" => notes.needless(directive, "scripts and PATH_INFO are found in the file system"),
        "connect_timeout" | "send_timeout" | "next_upstream" | "next_upstream_tries" | "next_upstream_timeout" => {
            notes.left(directive, "set it in an `upstream` block (`connect-timeout`, `tries-max`)");
        }
        "ssl_server_name" | "ssl_session_reuse" | "ssl_protocols" | "ssl_ciphers" => {
            notes.needless(directive, "SNI is always sent, and only strong versions and suites are used");
        }
        option if option.starts_with("ssl_") => {
            notes.left(directive, "set it in an `upstream` block (`tls-ca-file`, `tls-verify`, `tls-certificate`)");
        }
        "ignore_headers" => {
            if directive.arguments.iter().any(|field| !caching::is_cookie(field)) {
                notes.left(directive, "the upstream's `Cache-Control` always applies");
            }
        }
        _ => notes.unknown(directive),
    }
    true
}

#[cfg(test)]
mod tests {
    use crate::nginx::tests::{site, translated};

    /// Issue 23: an upstream got header fields that nginx withholds, or its paths were rejected.
    #[test]
    fn maps_choose_upstreams() {
        let (text, remarks) = translated(
            "map $http_accept $kind { default http://ui:1; \"application/json\" http://api:2; } map $request_method $to { \
             default $kind; POST http://api:2; } map $host $odd { default http://a/b; } server { listen 80; location / { \
             proxy_pass $to; proxy_set_header Host $host; } location /odd { proxy_pass $odd; } }",
        );
        let forwards: Vec<&str> = text.lines().map(str::trim).filter(|line| line.starts_with("forward")).collect();
        let expect =
            ["forward \"http://api:2\" path=\"*\" when=\"map.to == 'http://api:2'\"", "forward \"http://ui:1\""];
        assert_eq!(forwards, expect, "{text}");
        assert!(remarks.len() == 1 && remarks[0].contains("fixed address"), "{remarks:?}");
    }

    #[test]
    fn header_fields_may_be_withheld() {
        let withheld = "forward \"http://b:1\" path=\"/a/*\" {\n    host upstream\n    pass-request-headers off\n";
        let check = |inside: &str, expect: &str| {
            let (lines, _) =
                site(&format!("location /a/ {{ proxy_pass http://b:1; proxy_pass_request_headers off; {inside} }}"));
            assert!(lines.contains(&format!("{withheld}{expect}}}")), "{lines}");
        };
        check("", "    forwarded-headers none\n");
        check("proxy_set_header X-Forwarded-For $remote_addr;", "");
    }
}
