//! Requests, and the comparison of responses.

mod fallback;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::process::Command;

use self::fallback::is_left_to_fallback;
use super::Original;
use super::examples::examples;
use super::world::{Translated, World, words};

/// A request at a port.
#[derive(Debug, Clone)]
pub(super) struct CorpusRequest {
    address: String,
    port: u16,
    method: &'static str,
    host: String,
    path: String,
    field: Option<&'static str>,
    is_tls: bool,
    kind: Original,
    /// True if servers balance between upstreams: which of them responds may differ.
    is_balanced: bool,
    /// True if a server decides who gets responses: an error of it rejects, too.
    has_auth: bool,
    /// True if responses of upstreams are cached: nginx does so without regard to the host.
    is_cached: bool,
}

impl CorpusRequest {
    /// Returns `true` for the plain request for a path at the host of another request.
    fn is_plain_for(&self, other: &Self, path: &str) -> bool {
        (self.port, self.method, &self.host, self.field) == (other.port, "GET", &other.host, None) && self.path == path
    }
}

/// A response, without what may differ.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct CorpusAnswer {
    status: u16,
    fields: BTreeMap<String, String>,
    body: String,
}

const PATHS: [&str; 38] = [
    "/",
    "/index.html",
    "/index.php",
    "/page.html",
    "/page",
    "/a.txt",
    "/a.txt?v=1",
    "/a.txt?v=2&v=1",
    "/a.txt?x=",
    "/style.css",
    "/app.js",
    "/missing",
    "/missing/deep/path?x=1&y=2",
    "/missing.php",
    "/missing.css",
    "/sub",
    "/sub/",
    "/sub/b.txt",
    "/empty/",
    "/admin/",
    "/admin/index.php",
    "/admin/d.txt",
    "/info.php",
    "/info.php/extra/path?q=1",
    "/.env",
    "/.git/config",
    "/.htaccess",
    "/.well-known/acme-challenge/token",
    "/uploads/e.php",
    "/backup.sql",
    "/old.bak",
    "/robots.txt",
    "/favicon.ico",
    "/api/v1/items",
    "/wp-login.php",
    "/config/config.php",
    "/sub/../a.txt",
    "/%61.txt",
];
const FIELDS: [&str; 6] = [
    "User-Agent: badbot/1.0",
    "Cookie: session=1",
    "X-Stub: deny",
    "Authorization: Basic YW5uYTpzZWNyZXQ=",
    "Upgrade: websocket",
    "Referer: https://other.example/",
];
/// Fields that each server sets in its own way.
const OWN_FIELDS: [&str; 23] = [
    // Of a cached response; nginx does not send it.
    "age",
    "date",
    "server",
    "etag",
    "last-modified",
    "content-length",
    "connection",
    "keep-alive",
    "accept-ranges",
    "transfer-encoding",
    "vary",
    "alt-svc",
    "expires",
    "via",
    "content-encoding",
    "allow",
    "location",
    "www-authenticate",
    "cache-status",
    "content-type",
    // Of CGI, not of HTTP; Caddy passes it on.
    "status",
    // Of Apache's negotiation.
    "tcn",
    "content-location",
];

/// Requests for a configuration.
pub(super) fn requests(
    world: &World,
    translated: &Translated,
    is_short: bool,
) -> Result<Vec<CorpusRequest>, Box<dyn Error>> {
    let ports = world.listeners()?;
    let addresses = addresses(&world.text);
    let is_balanced = is_balanced(&world.text);
    let has_auth = ["auth_request", "satisfy", "allow ", "deny "].iter().any(|word| world.text.contains(word));
    let is_cached = words(&world.text)
        .iter()
        .any(|(before, word)| before.ends_with("_cache") && before.contains("proxy") && word != "off");
    let mut hosts = BTreeSet::new();
    for line in translated.text.lines().filter(|line| line.starts_with("site ")) {
        hosts.extend(line.split('"').skip(1).step_by(2).map(|name| name.replace('*', "some")));
    }
    // Sites whose names the translation cannot say.
    hosts.retain(|name| !name.ends_with(".invalid"));
    let mut hosts: Vec<String> = hosts.into_iter().take(if is_short { 3 } else { 6 }).collect();
    hosts.push("other.example".to_owned());
    let mut paths: BTreeSet<String> = PATHS.iter().map(|path| (*path).to_owned()).collect();
    for path in paths_of(&world.text).into_iter().take(if is_short { 40 } else { 160 }) {
        // Guards of the path in lower case may hold for it.
        paths.insert(path.to_ascii_lowercase());
        paths.insert(path);
    }
    let mut requests = Vec::new();
    let places = ports.iter().flat_map(|port| addresses.iter().map(move |address| (*port, address)));
    for (port, address) in places {
        let is_tls = port == 443 || is_tls_port(&translated.text, port);
        for (index, host) in hosts.iter().enumerate() {
            let request = |method, path: &str, field| CorpusRequest {
                address: address.clone(),
                port,
                method,
                host: host.clone(),
                path: path.to_owned(),
                field,
                is_tls,
                kind: world.kind,
                is_balanced,
                has_auth,
                is_cached,
            };
            for path in &paths {
                requests.push(request("GET", path, None));
            }
            if index > 0 && is_short {
                continue;
            }
            let some: Vec<&String> = paths.iter().step_by(if is_short { 6 } else { 2 }).collect();
            for path in some {
                for method in ["POST", "HEAD", "DELETE"] {
                    requests.push(request(method, path, None));
                }
                requests.extend(FIELDS.iter().map(|field| request("GET", path, Some(field))));
            }
        }
    }
    requests.truncate(if is_short { 1500 } else { 9000 });
    Ok(requests)
}

/// Returns `true` if an upstream has several servers.
fn is_balanced(text: &str) -> bool {
    let is_member = |(before, word): &(String, String)| {
        matches!(before.as_str(), "server" | "balancermember") && word.contains([':', '.', '/'])
    };
    let members: BTreeSet<String> = words(text).into_iter().filter(is_member).map(|(_, word)| word).collect();
    let is_block = text.contains("upstream ") || text.contains("balancer:");
    (is_block && members.len() > 1) || text.contains("lb_policy")
}

/// Addresses at which servers listen: those that the configuration names, or one of this machine.
fn addresses(text: &str) -> Vec<String> {
    let is_listener = |before: &str| matches!(before, "listen" | "virtualhost" | "namevirtualhost");
    let mut found = BTreeSet::new();
    for (_, word) in words(text).iter().filter(|(before, _)| is_listener(before)) {
        let host = word.rsplit_once(':').map_or(word.as_str(), |(host, _)| host);
        let address = host.parse::<std::net::Ipv4Addr>().ok();
        found.extend(address.filter(|address| !address.is_unspecified()).map(|address| address.to_string()));
    }
    // All others are those of the machine.
    let is_all = words(text).iter().any(|(before, word)| {
        is_listener(before) && before != "listen" && (word.starts_with('*') || word.starts_with("_default_"))
    });
    if found.is_empty() || is_all {
        found.insert("127.0.0.1".to_owned());
    }
    found.into_iter().take(3).collect()
}

fn is_tls_port(text: &str, port: u16) -> bool {
    text.lines().any(|line| line.trim().starts_with(&format!("listen {port} tls=on")))
}

/// Paths that a configuration names, and some near them.
fn paths_of(text: &str) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    let all = words(text);
    for (index, (before, word)) in all.iter().enumerate() {
        // Apache's aliases have a path first.
        let is_alias = matches!(before.as_str(), "alias" | "scriptalias")
            && all.get(index + 1).is_some_and(|(name, _)| *name == word.to_ascii_lowercase());
        if is_alias && word.starts_with('/') {
            let base = word.trim_end_matches('/');
            let below = ["", "/", "/index.php", "/sub/", "/a.txt", "/missing.php", "/missing/x", "/test.cgi/x?y=1"];
            paths.extend(below.map(|rest| format!("{base}{rest}")));
        }
        let is_disk = matches!(
            before.as_str(),
            "root"
                | "alias"
                | "include"
                | "documentroot"
                | "directory"
                | "access_log"
                | "error_log"
                | "ssl_certificate"
                | "ssl_certificate_key"
                | "auth_basic_user_file"
                | "ssl_dhparam"
                | "customlog"
                | "errorlog"
                | "authuserfile"
        );
        if is_disk {
            continue;
        }
        let word = word.trim_end_matches('*').trim_start_matches('!');
        let is_expression =
            before == "~" || before == "~*" || word.contains(['^', '$', '(', '\\', '[']) || word.starts_with('~');
        if is_expression {
            paths.extend(examples(word.trim_start_matches(['~', '*'])));
        } else if word.starts_with('/') && !word.contains(['{', '%', '|']) && word.len() < 80 {
            let base = word.trim_end_matches('/');
            paths.insert(word.to_owned());
            if base.is_empty() {
                continue;
            }
            paths.extend([format!("{base}/"), format!("{base}/a.txt"), format!("{base}x"), base.to_ascii_uppercase()]);
        }
    }
    paths.retain(|path| {
        path.starts_with('/')
            && !path.ends_with("/.")
            && !path.contains("//")
            && path.is_ascii()
            && !path.contains([' ', '"', '\\', '`'])
    });
    paths
}

/// Sends all requests with curl.
pub(super) fn answers(requests: &[CorpusRequest]) -> Result<Vec<CorpusAnswer>, Box<dyn Error>> {
    let _ = fs::remove_dir_all("/run/answers");
    fs::create_dir_all("/run/answers")?;
    for (number, some) in requests.chunks(500).enumerate() {
        let mut config = String::new();
        for (index, request) in some.iter().enumerate() {
            let CorpusRequest { address, port, method, host, path, field, is_tls, .. } = request;
            if index > 0 {
                config.push_str("next\n");
            }
            let scheme = if *is_tls { "https" } else { "http" };
            let default = if *is_tls { 443 } else { 80 };
            let shown = if *port == default { String::new() } else { format!(":{port}") };
            writeln!(config, "url = \"{scheme}://{host}{shown}{path}\"")?;
            writeln!(config, "output = \"/run/answers/{}\"", number * 500 + index)?;
            writeln!(
                config,
                "connect-to = \"::{address}:{port}\"\ninsecure\nsilent\ninclude\nmax-time = 4\nglobber-off"
            )
            .ok();
            config = config.replace("globber-off", "globoff");
            config.push_str("path-as-is\nhttp1.1\n");
            match *method {
                "GET" => {}
                "HEAD" => config.push_str("head\n"),
                "POST" => config.push_str("data = \"a=b\"\n"),
                method => writeln!(config, "request = {method}")?,
            }
            if let Some(field) = field {
                writeln!(config, "header = \"{field}\"")?;
            }
        }
        fs::write("/run/requests", config)?;
        Command::new("curl").args(["-K", "/run/requests"]).output()?;
    }
    (0..requests.len())
        .map(|index| {
            let bytes = fs::read(format!("/run/answers/{index}")).unwrap_or_default();
            Ok(answer(&String::from_utf8_lossy(&bytes), &requests[index]))
        })
        .collect()
}

fn answer(text: &str, request: &CorpusRequest) -> CorpusAnswer {
    let mut rest = text;
    loop {
        let (head, body) = rest.split_once("\r\n\r\n").unwrap_or((rest, ""));
        let mut lines = head.lines();
        let status =
            lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|status| status.parse().ok()).unwrap_or(0);
        if status == 100 {
            rest = body;
            continue;
        }
        let mut fields: BTreeMap<String, String> = BTreeMap::new();
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let entry = fields.entry(name.to_ascii_lowercase()).or_default();
            if !entry.is_empty() {
                entry.push_str(", ");
            }
            entry.push_str(value.trim());
        }
        if let Some(location) = fields.get_mut("location") {
            *location = absolute(location, request);
        }
        return CorpusAnswer { status, fields, body: body.to_owned() };
    }
}

/// A location with scheme and host.
fn absolute(location: &str, request: &CorpusRequest) -> String {
    let scheme = if request.is_tls { "https" } else { "http" };
    let location = match location.starts_with('/') {
        true => format!("{scheme}://{}{location}", request.host),
        false => location.to_owned(),
    };
    // Hosts are names in any letter case.
    let location = location.replace(&request.host, &request.host.to_ascii_lowercase());
    // Some encode more characters than they must.
    let location = location.replace("%26", "&").replace("%3D", "=").replace("%3A", ":").replace("%2F", "/");
    let host = request.host.to_ascii_lowercase();
    // Only at the start: the query may have an address, too.
    let with_port = |scheme: &str| format!("{scheme}://{host}:{}", request.port);
    let rest = |scheme| Some(format!("{scheme}://{host}{}", location.strip_prefix(&with_port(scheme))?));
    let location = rest("http").or_else(|| rest("https")).unwrap_or(location.clone());
    location.replacen(":80/", "/", 1).replacen(":443/", "/", 1)
}

fn is_cache_status(value: &str) -> bool {
    let value = value.to_ascii_lowercase();
    matches!(value.as_str(), "hit" | "miss" | "bypass" | "expired" | "stale" | "updating" | "revalidated")
}

/// Differences, and what is more open.
pub(super) fn compare(
    requests: &[CorpusRequest],
    expected: &[CorpusAnswer],
    found: &[CorpusAnswer],
) -> (Vec<String>, Vec<String>) {
    let (all_expected, all_found) = (expected, found);
    let mut differences: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let mut open: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let is_rejection = |status: u16| matches!(status, 401 | 403 | 404);
    let rejected: BTreeSet<(u16, &str, String)> = requests
        .iter()
        .zip(expected.iter().zip(found))
        .filter(|(_, (expected, found))| is_rejection(expected.status) && is_rejection(found.status))
        .map(|(request, _)| (request.port, request.host.as_str(), request.path.to_ascii_lowercase()))
        .collect();
    for ((request, expected), found) in requests.iter().zip(expected).zip(found) {
        let CorpusRequest { port, method, host, path, field, .. } = request;
        let field = field.map_or_else(String::new, |field| format!(" [{field}]"));
        let line = format!("{method} {port} {host}{path}{field}");
        let rejects = matches!(expected.status, 401 | 403 | 404 | 405 | 410 | 421 | 423 | 444) || expected.status == 0;
        let has_content = found.body.contains("FILE ") || found.body.contains("STUB ");
        let is_of_application = is_of_application(request, expected, found);
        let is_denied_by_stub = found.body.contains("DENIED");
        let is_file_of_other = expected.body.contains("FILE ") || expected.body.contains("STUB ");
        if is_left_to_fallback(request, expected, found, &|path| {
            let at = requests.iter().position(|other| other.is_plain_for(request, path))?;
            Some((&all_expected[at], &all_found[at]))
        }) {
            continue;
        }
        // Deliberate: paths are normalised first. Clients get by another spelling what they get by the usual one.
        let is_spelling = || {
            let usual = path.replace("/sub/../", "/").replace("/%61.txt", "/a.txt");
            let is_usual = |other: &CorpusRequest| {
                (other.port, other.method, &other.host, other.field) == (*port, "GET", host, None)
                    && other.path == usual
            };
            let at = requests.iter().position(is_usual).filter(|_| usual != *path);
            at.is_some_and(|at| (all_expected[at].status, &all_expected[at].body) == (found.status, &found.body))
        };
        if rejects
            && !is_spelling()
            && (200..300).contains(&found.status)
            && (has_content || found.status == 200)
            && !is_denied_by_stub
            && !is_of_application
            && !is_file_of_other
            && *method != "HEAD"
        {
            let why = format!("{} by the original, here {}", expected.status, found.status);
            let line = format!("{line}: {}", found.body.lines().next().unwrap_or_default());
            open.entry(why).or_insert((0, line)).0 += 1;
            continue;
        }
        // Caddy responds without content where no handler has the request.
        if request.kind == Original::Caddy
            && (expected.status, expected.body.trim()) == (200, "")
            && expected.fields.get("content-length").is_some_and(|length| length == "0")
            && (*method != "HEAD" && found.status == 200 && found.body.starts_with("FILE "))
        {
            let line = format!("{line}: {}", found.body.lines().next().unwrap_or_default());
            open.entry("nothing by the original, here a file".to_owned()).or_insert((0, line)).0 += 1;
            continue;
        }
        // The plain request for another path of the same site.
        let get_of = |path: &str| requests.iter().position(|other| other.is_plain_for(request, path));
        let slashed = format!("{path}/");
        // The application gets a directory's path at once, without a redirect to the path with a slash.
        let of_directory = || {
            // A stub denies with a field, and HEAD has no content.
            let is_denied = found.status == 401 && request.field.is_some_and(|field| field.starts_with("X-Stub"));
            let is_empty = *method == "HEAD" && found.status == 200;
            get_of(&slashed).is_some_and(|other| is_denied || is_empty || is_same_script(&all_expected[other], found))
        };
        let is_redirect = expected.status == 301
            && expected.fields.get("location").is_some_and(|location| location.ends_with(&slashed));
        // nginx would send the source of the index there.
        let is_source = || get_of(&slashed).is_some_and(|at| all_expected[at].body.trim_end().ends_with(".php"));
        let is_of_directory = match request.kind {
            Original::Apache => is_redirect && of_directory(),
            Original::Nginx => is_redirect && found.body.contains("STUB ") && is_source(),
            Original::Caddy => false,
        };
        if is_of_directory {
            continue;
        }
        // A client that is redirected to a directory gets the same file there.
        let is_same_after_redirect = || {
            let location = found.fields.get("location");
            location.is_some_and(|location| location.ends_with(&slashed))
                && get_of(&slashed).is_some_and(|at| all_found[at].body == expected.body || *method == "HEAD")
        };
        if found.status == 301 && expected.status == 200 && is_same_after_redirect() {
            continue;
        }
        // A client that is redirected to a directory without an index gets there what it gets from the original.
        let is_missing_after_redirect = || {
            let location = found.fields.get("location");
            location.is_some_and(|location| location.ends_with(&slashed))
                && get_of(&slashed).is_some_and(|at| {
                    let (expected, found) = (all_expected[at].status, all_found[at].status);
                    expected == found || (is_rejection(expected) && is_rejection(found))
                })
        };
        if found.status == 301 && expected.status == 404 && is_missing_after_redirect() {
            continue;
        }
        // Deliberate: guards hold in any letter case.
        let is_closed = |path: &str| rejected.contains(&(*port, host.as_str(), path.to_ascii_lowercase()));
        // Documented, too: the guard of a file holds for what programs read as a path after its name.
        let is_after_file = || {
            let mut ends = path.match_indices('/').map(|(at, _)| &path[..at]);
            ends.any(|file| file.rsplit('/').next().is_some_and(|name| name.contains('.')) && is_closed(file))
        };
        let is_guarded =
            is_closed(path) || is_closed(&slashed) || is_closed(path.trim_end_matches('/')) || is_after_file();
        // Deliberate, and documented: prefixes that handlers strip match in any letter case, and lead to the same place.
        let lower = path.to_ascii_lowercase();
        let is_same_case = lower != *path
            && expected.status == 404
            && get_of(&lower).is_some_and(|other| all_expected[other].status == found.status);
        if is_same_case {
            continue;
        }
        // Deliberate: guards come before redirects, and clients would be rejected at the target.
        let target = expected.fields.get("location").and_then(|target| target.split_once(host.as_str()));
        let leads_to_guard = (300..400).contains(&expected.status) && target.is_some_and(|(_, path)| is_closed(path));
        if (is_guarded || leads_to_guard) && is_rejection(found.status) {
            continue;
        }
        if let Some(why) = difference(request, expected, found) {
            let entry = differences.entry(why).or_insert((0, line));
            entry.0 += 1;
        }
    }
    let lines = |all: BTreeMap<String, (usize, String)>| {
        all.into_iter().map(|(why, (count, line))| format!("{count} x {why}, such as {line}")).collect()
    };
    (lines(differences), lines(open))
}

/// Returns `true` if a script of an application responds in both cases.
fn is_same_script(one: &CorpusAnswer, other: &CorpusAnswer) -> bool {
    let script = |answer: &CorpusAnswer| {
        answer.body.split(" script=").nth(1).and_then(|text| text.split(' ').next()).map(str::to_owned)
    };
    one.status == other.status && script(one).is_some() && script(one) == script(other)
}

/// Returns `true` if the application answers for a method or directory that files lack, which opens nothing.
/// Deliberate, and documented: files have GET and HEAD, and all other methods go to the next handler.
fn is_of_application(request: &CorpusRequest, expected: &CorpusAnswer, found: &CorpusAnswer) -> bool {
    let to_slash = || expected.fields.get("location").is_some_and(|location| location.ends_with('/'));
    let is_of_files = expected.status == 405
        || (expected.status == 301 && to_slash())
        || expected.body.starts_with("FILE ")
        || (expected.status == 404 && request.path.ends_with("/empty/"));
    let is_of_method = !matches!(request.method, "GET" | "HEAD") && is_of_files;
    // Documented, too: the front controller gets a directory without an index, and its path without the slash.
    let is_without_index = ["/empty", "/acme-challenge"].iter().any(|name| {
        let rest = request.path.rsplit_once(name).map(|(_, rest)| rest);
        rest == Some("/") || (rest == Some("") && expected.status == 301 && to_slash())
    });
    let is_of_directory = matches!(expected.status, 403 | 301) && is_without_index;
    let is_of_rules = is_of_method && request.path.ends_with("/empty/") && (300..400).contains(&found.status);
    let is_of_stub = is_of_rules || found.body.contains("STUB ") || (request.method == "HEAD" && found.status == 200);
    is_of_stub && (is_of_method || is_of_directory)
}

fn difference(request: &CorpusRequest, expected: &CorpusAnswer, found: &CorpusAnswer) -> Option<String> {
    // Deliberate: hidden files are not served, and no method that files lack is.
    let is_hidden = request.path.contains("/.")
        && (matches!(found.status, 403 | 404) || (expected.body.contains("/.") && !found.body.contains("/.")));
    if is_hidden || expected.status == 0 || is_of_application(request, expected, found) {
        return None;
    }
    // Rewrites that lead to themselves, for which the original has an error.
    if request.kind == Original::Apache && expected.status == 500 {
        return None;
    }
    let both = |range: std::ops::Range<u16>| range.contains(&expected.status) && range.contains(&found.status);
    // Deliberate: the source of programs is not sent.
    let is_program = expected.body.starts_with("FILE ") && expected.body.trim_end().ends_with(".php");
    if (is_program && found.body != expected.body)
        || (request.method == "HEAD" && request.path.ends_with(".php") && expected.status == 200)
    {
        return None;
    }
    // Deliberate: a file with a slash at its end is a missing path. The fallback of an application answers for those.
    let is_file_with_slash = request.path.strip_suffix('/').is_some_and(|path| {
        path.rsplit('/').next().is_some_and(|name| name.contains('.'))
            && expected.fields.get("location").is_some_and(|location| location.ends_with(path))
    });
    let is_file = found.body.starts_with("FILE ")
        || found.body.starts_with("STUB ")
        || (request.method == "HEAD" && found.status == 200);
    if expected.status == 308 && is_file_with_slash && (is_file || found.status == 404) {
        return None;
    }
    // Requests that nginx itself cannot forward: a rewrite leaves no path.
    if request.kind == Original::Nginx
        && !request.has_auth
        && expected.status == 500
        && expected.body.contains("<center>nginx")
    {
        return None;
    }
    if expected.status != found.status {
        let location = |answer: &CorpusAnswer| answer.fields.get("location").map(|location| normalised(location));
        let are_redirects = both(300..400) && location(expected) == location(found);
        let is_method = matches!(request.method, "POST" | "DELETE" | "HEAD") && both(400..600);
        let are_gateway_errors = both(500..600);
        // Both say that there is nothing for the client.
        let are_rejections = matches!(expected.status, 400..=429) && matches!(found.status, 400..=429);
        // Files have no content for other methods.
        let is_to_directory =
            expected.fields.get("location").is_some_and(|location| location.ends_with(&format!("{}/", request.path)));
        let is_of_files =
            (request.method != "GET" && matches!(found.status, 403..=405) && !expected.body.contains("STUB"))
                || (matches!(request.method, "POST" | "DELETE") && lacks_directory(expected, found, is_to_directory));
        let is_same = are_redirects || is_method || are_gateway_errors || are_rejections || is_of_files;
        return (!is_same).then(|| format!("status {} instead of {}", found.status, expected.status));
    }
    if both(300..400) && expected.fields.get("location") != found.fields.get("location") {
        let of = |answer: &CorpusAnswer| answer.fields.get("location").cloned().unwrap_or_default();
        // Deliberate: paths are decoded and normalised before they are used.
        return (normalised(&of(found)) != normalised(&of(expected)))
            .then(|| format!("location {} instead of {}", of(found), of(expected)));
    }
    if expected.status >= 400 {
        return None;
    }
    let is_redirect = both(300..400) && expected.status != 304;
    // Deliberate: fields for files, and those by type, are not those of a redirect without content.
    let is_to_directory = is_redirect
        && expected.fields.get("location").is_some_and(|location| {
            location.ends_with(&format!("{}{}/", request.host.to_ascii_lowercase(), request.path))
        });
    let of_content = |answer: &CorpusAnswer| -> Vec<String> {
        let lines = answer.body.lines().filter(|line| line.starts_with("FILE ") || line.starts_with("STUB "));
        // nginx has the query twice after a rewrite to `$request_uri`.
        let of_info = |line: String| match (line.find(" info="), line.find(" query=")) {
            (Some(start), Some(end)) => match line[start..end].find('?') {
                Some(at) => format!("{}{}", &line[..start + at], &line[end..]),
                None => line,
            },
            _ => line,
        };
        let of_any = |line: String| {
            let line = of_info(line);
            let line = if request.is_balanced { line.splitn(4, ' ').skip(3).collect::<String>() } else { line };
            match line.split_once(" host=").filter(|_| request.is_cached || request.is_balanced) {
                Some((front, _)) => front.to_owned(),
                None => line,
            }
        };
        lines.map(|line| of_any(normalised(&line.replace(&format!(":{}", request.port), "")))).collect()
    };
    if request.method != "HEAD" && !is_redirect && of_content(expected) != of_content(found) {
        return Some(format!("content {:?} instead of {:?}", of_content(found), of_content(expected)));
    }
    for (name, value) in &expected.fields {
        if OWN_FIELDS.contains(&name.as_str()) || (request.kind == Original::Caddy && name == "x-powered-by") {
            continue;
        }
        match found.fields.get(name) {
            None if is_to_directory => {}
            Some(other) if same_value(value, other) || normalised(value) == normalised(other) => {}
            // Each server has its own values for the same upstream.
            Some(other) if request.is_balanced && name == "set-cookie" && same_cookie(value, other) => {}
            // The order of requests decides.
            _ if request.is_cached && is_cache_status(value) => {}
            other => return Some(format!("{name}: {} instead of {value}", other.map_or("none", String::as_str))),
        }
    }
    // Deliberate: fields for all responses are those of redirects of the server, too.
    let is_server_redirect = request.kind == Original::Apache && both(300..400);
    // The page of each server about itself.
    let is_metrics =
        |answer: &CorpusAnswer| answer.fields.get("content-type").is_some_and(|kind| kind.contains("version="));
    let is_own_page = is_metrics(expected) && is_metrics(found);
    for (name, value) in found.fields.iter().filter(|_| !is_own_page) {
        // Fields of the authentication server's redirect stay.
        let is_of_order = request.is_cached && is_cache_status(value);
        let is_of_redirect = (is_server_redirect && name != "cache-control") || (is_redirect && name == "x-of-stub");
        if is_of_order || is_of_redirect {
            continue;
        }
        if !OWN_FIELDS.contains(&name.as_str()) && !expected.fields.contains_key(name) {
            return Some(format!("{name}: {value} instead of none"));
        }
    }
    None
}

/// Returns `true` if only the original redirects another method to a directory, which has no content for it.
fn lacks_directory(expected: &CorpusAnswer, found: &CorpusAnswer, is_to_directory: bool) -> bool {
    is_to_directory && expected.status == 301 && (400..500).contains(&found.status)
}

/// A text with the paths of the grid that have another spelling in the usual one. Sockets of several processes of one
/// application, between which servers balance, have one name.
fn normalised(text: &str) -> String {
    // An empty query is none.
    let text = text
        .replace("/? host=", "/ host=")
        .replace("& host=", " host=")
        .replace("%3D", "=")
        .replace("%26", "&")
        .replace("/sub/../a.txt", "/a.txt")
        .replace("/%61.txt", "/a.txt")
        .replace("%5D", "]")
        .replace("%2F", "/")
        .replace("%3A", ":");
    // Upstreams get several slashes as one, and one before a path that lacks it.
    let text = match text.split_once("://") {
        _ if text.starts_with("STUB ") => with_slash(&single_slashes(&text)),
        Some((scheme, rest)) if !scheme.contains([' ', '/']) => format!("{scheme}://{}", single_slashes(rest)),
        _ => text,
    };
    (0..4).fold(text, |text, number| text.replace(&format!(".{number}.sock"), ".sock"))
}

/// Text of a stub, with one slash for several in the path of the target.
fn single_slashes(text: &str) -> String {
    let end = text.find(['?', '=']).unwrap_or(text.len());
    let (mut front, rest) = (text[..end].to_owned(), &text[end..]);
    while front.contains("//") {
        front = front.replace("//", "/");
    }
    front + rest
}

/// Text of a stub, with a slash at the start of the target.
fn with_slash(text: &str) -> String {
    let methods = [" GET ", " POST ", " DELETE ", " HEAD "];
    let at = methods.iter().find_map(|method| Some(text.find(method)? + method.len()));
    match at.filter(|at| !text[*at..].starts_with('/')) {
        Some(at) => format!("{}/{}", &text[..at], &text[at..]),
        None => text.to_owned(),
    }
}

/// Compares name and attributes of a cookie.
fn same_cookie(one: &str, other: &str) -> bool {
    let without_value = |text: &str| match (text.split_once('='), text.split_once(';')) {
        (Some((name, _)), Some((_, attributes))) => format!("{name};{attributes}"),
        _ => text.to_owned(),
    };
    same_value(&without_value(one), &without_value(other))
}

/// Compares the items of a list, in any order.
fn same_value(one: &str, other: &str) -> bool {
    let items = |text: &str| -> BTreeSet<String> {
        text.split([',', ';']).map(|item| item.trim().to_ascii_lowercase()).filter(|item| !item.is_empty()).collect()
    };
    items(one) == items(other)
}
