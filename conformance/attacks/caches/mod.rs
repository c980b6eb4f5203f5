//! The cache before upstreams: no user gets what is another's, no client chooses what others get.

mod origin;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fastrand::Rng;

use crate::raw::{ask, pick, status};
use crate::support::TestServer;
use crate::trial::{Attack, AttackCase, Skipped, Trial};

use origin::{OriginRequest, OriginResponse};

pub(crate) const ATTACKS: [Attack; 4] = [
    Attack { name: "caches/users", run: users },
    Attack { name: "caches/revalidation", run: revalidation },
    Attack { name: "caches/poisoning", run: poisoning },
    Attack { name: "caches/deception", run: deception },
];

const CLIENTS: usize = 8;

const USERS: [&str; 4] = ["anna", "bert", "cora", ""];

/// A server whose site forwards everything to `upstream`, with these options of `forward`.
fn front(upstream: SocketAddr, options: &str) -> TestServer {
    TestServer::run(&format!(
        "server {{ workers 2 }}\nsite {{\n listen \"127.0.0.1:0\"\n forward \"http://{upstream}\" {{\n {options}\n }}\n}}\n"
    ))
}

fn content(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, content)| content)
}

/// Values of a field of a response.
fn values<'a>(answer: &'a str, name: &str) -> Vec<&'a str> {
    let head = answer.split("\r\n\r\n").next().unwrap_or_default();
    let fields = head.split("\r\n").filter_map(|line| line.split_once(": "));
    fields.filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
}

/// The user that a request names: a cookie or credentials.
fn user_of(request: &OriginRequest) -> String {
    let cookie = request.field("cookie").strip_prefix("user=").unwrap_or_default();
    let bearer = request.field("authorization").strip_prefix("Bearer ").unwrap_or_default();
    if bearer.is_empty() { cookie.into() } else { bearer.into() }
}

/// Fields of a request that clients of a cache may send: conditions, directives, ranges, codings.
fn random_fields(random: &mut Rng, own_tag: &str) -> String {
    let mut fields = String::new();
    for _ in 0..random.usize(0..3) {
        match random.u8(0..14) {
            0 => fields.push_str("Cache-Control: no-cache\r\n"),
            1 => fields.push_str("Cache-Control: max-age=0\r\n"),
            2 => fields.push_str("Cache-Control: max-stale=100\r\n"),
            3 => fields.push_str("Cache-Control: only-if-cached\r\n"),
            4 => fields.push_str("Cache-Control: no-store\r\n"),
            5 => fields.push_str("Pragma: no-cache\r\n"),
            6 => fields.push_str("Range: bytes=0-3\r\n"),
            7 => fields.push_str("Accept-Encoding: gzip\r\n"),
            8 => fields.push_str("If-Modified-Since: Mon, 01 Jan 2024 00:00:00 GMT\r\n"),
            9 | 10 => fields.push_str(&format!("If-None-Match: {own_tag}\r\n")),
            11 => fields.push_str("If-None-Match: *\r\n"),
            12 => fields.push_str("Connection: Cookie\r\n"),
            _ => fields.push_str("Connection: Authorization, Vary\r\n"),
        }
    }
    fields
}

fn credentials(user: &str, by_bearer: bool) -> String {
    match (user, by_bearer) {
        ("", _) => String::new(),
        (_, true) => format!("Authorization: Bearer {user}\r\n"),
        (_, false) => format!("Cookie: user={user}\r\n"),
    }
}

/// Personal pages, each marked as such in another way. Several users request them at once.
fn users(trial: &Trial) -> Result<String, Skipped> {
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&asked);
    let upstream = origin::start(move |request| {
        let count = counted.fetch_add(1, Ordering::Relaxed);
        let (user, age) = (user_of(request), count % 2);
        let kind = request.target.split('/').nth(1).unwrap_or_default();
        let own = match kind {
            "varied" => format!("Cache-Control: max-age={age}\r\nVary: Cookie, Authorization\r\n"),
            "anything" => format!("Cache-Control: max-age={age}\r\nVary: *\r\n"),
            "private" => "Cache-Control: private, max-age=100\r\n".into(),
            "no-store" => "Cache-Control: max-age=100, no-store\r\n".into(),
            "cookie" => format!("Cache-Control: max-age={age}\r\nSet-Cookie: user={user}\r\n"),
            "split" => "Cache-Control: max-age=100\r\nCache-Control: private\r\n".into(),
            _ => "Cache-Control: max-age=0, must-revalidate\r\nVary: cookie,Authorization\r\n".into(),
        };
        let tag = format!("\"{user}-{}\"", request.target);
        let fields = format!("{own}ETag: {tag}\r\n");
        if request.field("if-none-match") == tag {
            return OriginResponse { status: 304, fields, content: String::new() };
        }
        // Requests for the same page meet each other.
        std::thread::sleep(std::time::Duration::from_millis(count % 4));
        OriginResponse { status: 200, fields, content: format!("<{user}> {}", request.target) }
    });
    let server = front(upstream, "cache {}");
    trial.run(CLIENTS, |case| {
        let random = &mut case.random;
        let kind = pick(random, &["varied", "anything", "private", "no-store", "cookie", "split", "stale"]);
        // Neighbouring cases, which run at the same time, ask for the same pages.
        let target = format!("/{kind}/{}", case.number / 40);
        let user = pick(random, &USERS);
        let fields = random_fields(random, &format!("\"{user}-{target}\""));
        let method = if random.u8(0..8) == 0 { "HEAD" } else { "GET" };
        // Where only cookies make users, a server that takes them for shared would be right to mix bearers.
        let by_bearer = random.bool() && kind != "cookie";
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: h\r\n{}{fields}Connection: close\r\n\r\n",
            credentials(user, by_bearer)
        );
        let answer = ask(server.address, &request);
        let wrong = |what: &str| Err(format!("{what}: {request:?} was answered with {answer:?}"));
        let hides_user = fields.contains("Connection: Cookie") || fields.contains("Connection: Authorization");
        let owner = if hides_user { vec![user, ""] } else { vec![user] };
        match (method, status(&answer)) {
            ("GET", 200 | 206)
                if owner.iter().all(|owner| {
                    let full = format!("<{owner}> {target}");
                    content(&answer) != full && content(&answer) != &full[..4]
                }) =>
            {
                wrong("another user's page")
            }
            (_, 200 | 206 | 304) => {
                let is_own = |tag: &&str| owner.iter().any(|owner| **tag == format!("\"{owner}-{target}\""));
                if values(&answer, "etag").iter().all(is_own) { Ok(()) } else { wrong("another user's tag") }
            }
            (_, 412 | 416 | 504) => Ok(()),
            _ => wrong("not the page"),
        }
    });
    trial.expect_healthy(&server, "/varied/end");
    Ok(format!("{} requests reached the upstream", asked.load(Ordering::Relaxed)))
}

/// Fields that the upstream of [`revalidation`] sends for a page from now on.
#[derive(Clone, Copy, Debug)]
struct CacheFields {
    /// Fields of responses with content.
    full: &'static str,
    /// Fields of 304 and of responses to HEAD.
    short: &'static str,
}

const CACHE_FIELDS: [&str; 8] = [
    "Cache-Control: max-age=0\r\n",
    "Cache-Control: max-age=0\r\nVary: Cookie\r\n",
    "Cache-Control: private\r\n",
    "Cache-Control: no-store\r\n",
    "Cache-Control: max-age=100\r\nVary: Cookie\r\n",
    "Cache-Control: max-age=0\r\nVary: *\r\n",
    "Cache-Control: max-age=0\r\nVary: Cookie, X-A\r\n",
    "Vary: Cookie\r\nCache-Control: max-age=0, stale-while-revalidate=100\r\n",
];

/// Issue 17, defect 2: a page that says nothing of what it depends on, until a 304 or a response to HEAD does. From then on, no
/// user gets another's.
fn revalidation(trial: &Trial) -> Result<String, Skipped> {
    // By page: how it is answered, and whether it has said that it depends on the user.
    let pages = Arc::new(Mutex::new(HashMap::<String, (CacheFields, bool)>::new()));
    let reported = Arc::clone(&pages);
    let upstream = origin::start(move |request| {
        let mut pages = reported.lock().expect("no thread panics with it");
        let Some((fields, is_restricted)) = pages.get_mut(&request.target) else {
            return OriginResponse { status: 200, fields: String::new(), content: "open".into() };
        };
        let user = user_of(request);
        let tag = format!("\"{user}\"");
        let is_same = request.field("if-none-match").split(", ").any(|other| other == tag);
        let is_short = is_same || request.method == "HEAD";
        let own = if is_short { fields.short } else { fields.full };
        *is_restricted |= own != CACHE_FIELDS[0];
        let fields = format!("{own}ETag: {tag}\r\n");
        OriginResponse { status: if is_same { 304 } else { 200 }, fields, content: format!("<{user}>") }
    });
    let server = front(upstream, "cache {}");
    trial.run(CLIENTS, |case| {
        // A history of one page, whose requests come one after the other.
        let random = &mut case.random;
        let target = format!("/{}", case.number);
        let mut history = String::new();
        let set = |fields: CacheFields, is_restricted: Option<bool>| {
            let mut pages = pages.lock().expect("no thread panics with it");
            let page = pages.entry(target.clone()).or_insert((fields, false));
            *page = (fields, is_restricted.unwrap_or(page.1));
        };
        let is_restricted = || pages.lock().expect("no thread panics with it")[&target].1;
        set(CacheFields { full: CACHE_FIELDS[0], short: CACHE_FIELDS[0] }, Some(false));
        for _ in 0..random.usize(4..16) {
            if random.bool() {
                let fields = CacheFields { full: pick(random, &CACHE_FIELDS), short: pick(random, &CACHE_FIELDS) };
                // A page whose response names no user may belong to any user.
                let fields = if random.bool() { CacheFields { full: CACHE_FIELDS[0], ..fields } } else { fields };
                set(fields, None);
                history.push_str(&format!("\n{fields:?}"));
            }
            let was_restricted = is_restricted();
            let (user, method) = (pick(random, &USERS[..3]), pick(random, &["GET", "GET", "GET", "HEAD"]));
            let fields =
                if random.u8(0..3) == 0 { random_fields(random, &format!("\"{user}\"")) } else { String::new() };
            if fields.contains("Connection: Cookie") {
                continue;
            }
            let request = format!(
                "{method} {target} HTTP/1.1\r\nHost: h\r\n{}{fields}Connection: close\r\n\r\n",
                credentials(user, false)
            );
            let answer = ask(server.address, &request);
            history.push_str(&format!("\n{request:?} -> {answer:?}"));
            let own = format!("<{user}>");
            let is_own = matches!(content(&answer), "") || own.starts_with(content(&answer));
            if was_restricted && matches!(status(&answer), 200 | 206) && !is_own {
                return Err(format!("another user's page after it was said to depend on the user{history}"));
            }
        }
        pages.lock().expect("no thread panics with it").remove(&target);
        Ok(())
    });
    trial.expect_healthy(&server, "/end");
    Ok("histories of 4 to 15 requests".into())
}

/// Fields by which applications take a request for another one; the upstream of [`poisoning`] believes all of them.
const BELIEVED: [&str; 20] = [
    "x-original-url",
    "x-rewrite-url",
    "x-original-uri",
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-scheme",
    "x-forwarded-ssl",
    "x-forwarded-server",
    "x-host",
    "x-scheme",
    "x-url-scheme",
    "x-original-host",
    "x-http-host-override",
    "front-end-https",
    "forwarded",
];

/// A client that asks in odd ways for what the next client asks for plainly.
fn poisoning(trial: &Trial) -> Result<String, Skipped> {
    let upstream = origin::start(|request| {
        let believed: Vec<String> = request
            .fields
            .iter()
            .filter(|(name, _)| BELIEVED.contains(&&*name.replace('_', "-")))
            // Fields of the server itself are the same for all clients of a site; letter case of a host does not matter.
            .filter(|(name, value)| match &**name {
                "x-forwarded-host" => !value.eq_ignore_ascii_case("h"),
                "x-forwarded-proto" => value != "http",
                "forwarded" => !value.contains("host=h;"),
                _ => true,
            })
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        // Cache-poisoned denial of service: an upstream that answers some requests with errors.
        let is_rejected = request.fields.iter().any(|(name, value)| name == "x-long" || value.contains('\u{7}'));
        let content = format!(
            "{} {} {} {believed:?}",
            request.method,
            request.target,
            request.field("host").to_ascii_lowercase()
        );
        match is_rejected {
            true => OriginResponse { status: 400, fields: String::new(), content },
            false => OriginResponse { status: 200, fields: "Cache-Control: max-age=100\r\n".into(), content },
        }
    });
    let server = front(upstream, "cache {}");
    trial.run(CLIENTS, |case| {
        let target = format!("/page/{}", case.number);
        let expect = format!("GET {target} h []");
        let mut history = String::new();
        for _ in 0..case.random.usize(1..4) {
            let request = odd_request(case, &target);
            let answer = ask(server.address, &request);
            history.push_str(&format!("\n{request:?} -> {answer:?}"));
        }
        for _ in 0..2 {
            let answer = ask(server.address, &format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
            if content(&answer) != expect {
                return Err(format!("the next client got {answer:?} instead of {expect:?}{history}"));
            }
        }
        Ok(())
    });
    trial.expect_healthy(&server, "/end");
    Ok("each followed by two plain requests".into())
}

fn odd_request(case: &mut AttackCase, target: &str) -> String {
    let random = &mut case.random;
    let (mut method, mut host, mut path, mut body) = ("GET", "h".to_owned(), target.to_owned(), "");
    let mut fields = String::new();
    for _ in 0..random.usize(1..4) {
        match random.u8(0..16) {
            0..=4 => {
                let name = pick(random, &BELIEVED);
                let name = if random.u8(0..4) == 0 { name.replace('-', "_") } else { name.to_owned() };
                let name = if random.u8(0..4) == 0 { name.to_ascii_uppercase() } else { name };
                let value =
                    pick(random, &["evil", "/evil", "POST", "https", "host=evil;proto=https", "1337", "HEAD", "on"]);
                fields.push_str(&format!("{name}: {value}\r\n"));
            }
            5 => method = pick(random, &["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PURGE", "TRACE", "PATCH"]),
            6 => host = (pick(random, &["evil", "h:80", "h:1337", "H", "h.", "h:", "evil.h", "[::1]", "h:080"])).into(),
            7 => path = format!("http://{}{target}", pick(random, &["evil", "h", "H", "h:80", "h:1337", "evil:80"])),
            8 => path.push_str(pick(
                random,
                &["?", "?a", ";a", "?a;b=c", "/", "//", "/.", "/x/..", "%3f", "%23", "?%70age=2", "#"],
            )),
            9 => path = format!("{}{path}", pick(random, &["/", "//", "/.", "/x/..", "/%2e", "/x/%2e%2e", "\\"])),
            10 => {
                // One letter, encoded.
                let at = random.usize(1..target.len());
                path = format!("{}%{:02x}{}", &target[..at], target.as_bytes()[at], &target[at + 1..]);
            }
            11 => fields.push_str(&format!("X-Long: {}\r\n", "x".repeat(random.usize(1..12_000)))),
            12 => fields.push_str("X-Meta: \u{7}\r\n"),
            13 => body = "a=evil",
            14 => fields
                .push_str(pick(random, &["Connection: Host\r\n", "Connection: X-Forwarded-Host, Cache-Control\r\n"])),
            _ => fields.push_str(pick(
                random,
                &[
                    "Range: bytes=0-2\r\n",
                    "Range: bytes=2-\r\n",
                    "If-None-Match: *\r\n",
                    "Accept-Encoding: gzip, evil\r\n",
                ],
            )),
        }
    }
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{fields}{length}Connection: close\r\n\r\n{body}")
}

/// A link that an attacker gives a user, below a cached path here, and the user's own page for the upstream.
fn deception(trial: &Trial) -> Result<String, Skipped> {
    let shown = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&shown);
    let upstream = origin::start(move |request| {
        let is_account = readings(&request.target).iter().any(|path| path == "/account" || path == "/static/account");
        counted.fetch_add(u64::from(is_account), Ordering::Relaxed);
        let content = if is_account { format!("account of <{}>", user_of(request)) } else { "asset".to_owned() };
        OriginResponse { status: 200, fields: String::new(), content }
    });
    let server = TestServer::run(&format!(
        "server {{ workers 2 }}\nsite {{\n listen \"127.0.0.1:0\"\n forward \"http://{upstream}\" path=\"/static/*\" {{\n  \
         cache {{ default-age \"1h\" }}\n }}\n forward \"http://{upstream}\" {{\n  cache {{}}\n }}\n}}\n"
    ));
    trial.run(CLIENTS, |case| {
        let path = misleading_path(case);
        let mut history = String::new();
        for user in ["anna", "bert", ""] {
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: h\r\n{}Connection: close\r\n\r\n", credentials(user, false));
            let answer = ask(server.address, &request);
            history.push_str(&format!("\n{request:?} -> {answer:?}"));
            if content(&answer).starts_with("account of") && !content(&answer).ends_with(&format!("<{user}>")) {
                return Err(format!("another user's page{history}"));
            }
        }
        Ok(())
    });
    trial.expect_healthy(&server, "/static/end.css");
    let shown = shown.load(Ordering::Relaxed);
    trial.expect(shown > 0 || trial.is_single(), || "no path leads to the user's page".into());
    Ok(format!("{shown} responses with a user's page"))
}

/// A path below `/static/` here, unique to the case by its query, which may be the account's page to the upstream.
fn misleading_path(case: &mut AttackCase) -> String {
    const UPS: [&str; 14] = [
        "../",
        "..%2f",
        "%2e%2e/",
        "%2e%2e%2f",
        ".%2e/",
        "..%5c",
        "..\\",
        "%252e%252e/",
        "..%252f",
        "%252e%252e%252f",
        "..%255c",
        "x/../../",
        "x%2f..%2f..%2f",
        "./../",
    ];
    const ENDS: [&str; 15] = [
        "",
        ";a.css",
        "%3ba.css",
        "%3fa.css",
        "%23a.css",
        "%00a.css",
        "%0aa.css",
        ";/a.css",
        "%253fa.css",
        "%253ba.css",
        "%2500a.css",
        "?a.css",
        "%0d%0aa.css",
        "%09",
        "%2523a.css",
    ];
    let random = &mut case.random;
    let up = if random.u8(0..5) == 0 { "" } else { pick(random, &UPS) };
    let up = up.replace("%2f", pick(random, &["%2f", "%2F"])).replace("%2e", pick(random, &["%2e", "%2E"]));
    // `/static/account` itself is stored because the operator said so.
    let end = if up.is_empty() { pick(random, &ENDS[1..7]) } else { pick(random, &ENDS) };
    let separator = if end.contains('?') { '&' } else { '?' };
    format!("/static/{up}account{end}{separator}case={}", case.number)
}

/// Paths that a target may be to an upstream: decoded up to twice, with dot segments resolved, cut where some servers cut.
fn readings(target: &str) -> Vec<String> {
    let path = target.split('?').next().unwrap_or_default();
    let once = decode(path);
    let twice = decode(&once);
    let mut readings = Vec::new();
    for path in [path, &once, &twice] {
        let path = path.replace('\\', "/");
        let cut = path.split([';', '?', '#', '\0', '\n', '\r', '\t']).next().unwrap_or_default().to_owned();
        for path in [path, cut] {
            let mut segments: Vec<&str> = Vec::new();
            for segment in path.split('/').skip(1) {
                match segment {
                    "" | "." => {}
                    ".." => drop(segments.pop()),
                    name => segments.push(name),
                }
            }
            readings.push(format!("/{}", segments.join("/")));
        }
    }
    readings
}

fn decode(path: &str) -> String {
    let mut decoded = String::new();
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        decoded.push_str(before);
        let byte = after.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        decoded.push(byte.map_or('%', char::from));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    decoded + rest
}
