//! Routes that a controller sends: their matches, filters and backends, and changes while requests are in progress.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use routes::{
    Backend, BackendRef, BackendTls, Certificate, Change, ClientValidation, Cors, Endpoint, FieldChanges, Filter,
    Lifetime, Listener, Match, Mirror, PathMatch, PathRewrite, PersistenceKind, Protocol, Redirect, Respond, Retry,
    Rewrite, Route, Rule, SessionPersistence, Snapshot, StreamRoute, Timeouts, ValueMatch, ValueTest,
};

use crate::support::controller::{Controlled, add_backend, application, write_config};
use crate::support::port::free_port;
use crate::support::tls::{self, TestCa};
use crate::support::upstream::{ScriptStep, ScriptedUpstream};
use crate::support::waiting::{eventually, lines_of};
use crate::support::{PATIENCE, TestServer, read_all, read_until};

/// Changes of endpoints under load.
const CHANGES: usize = 10_000;

/// Snapshot with a listener for HTTP on a free port, and the address of that.
fn with_listener() -> (Snapshot, SocketAddr) {
    let port = free_port();
    let mut snapshot = Snapshot::default();
    let listener = Listener { addresses: vec![[127, 0, 0, 1].into()], ..Listener::new(port, Protocol::Http) };
    snapshot.listeners.insert("http".into(), listener);
    (snapshot, ([127, 0, 0, 1], port).into())
}

fn prefix(path: &str) -> Match {
    Match { path: Some(PathMatch::Prefix(path.into())), ..Match::default() }
}

fn rule(matches: Vec<Match>, filters: Vec<Filter>, backends: &[(&str, u32)]) -> Rule {
    let backends = backends.iter().map(|(name, weight)| BackendRef::new(*name, *weight)).collect();
    Rule { matches, filters, backends, ..Rule::default() }
}

fn route(hostnames: &[&str], rules: Vec<Rule>) -> Route {
    let hostnames = hostnames.iter().map(|name| (*name).to_owned()).collect();
    Route { listeners: vec!["http".into()], hostnames, rules, ..Route::default() }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Response to a request on a new connection.
fn ask(address: SocketAddr, line: &str, host: &str, fields: &str) -> String {
    let mut stream = connect(address);
    write!(stream, "{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{fields}\r\n").unwrap();
    read_all(&mut stream)
}

/// Checks that a response begins with a status and has some texts.
#[track_caller]
fn check(address: SocketAddr, line: &str, host: &str, fields: &str, expect: &[&str]) {
    let response = ask(address, line, host, fields);
    let has = |text: &&str| response.contains(*text);
    assert!(response.starts_with(&format!("HTTP/1.1 {}", expect[0])), "{line} {host}: {response}");
    assert!(expect[1..].iter().all(has), "{line} {host}: {expect:?}: {response}");
}

#[test]
fn requests_go_to_the_most_specific_match() {
    let (mut snapshot, address) = with_listener();
    for name in ["a", "b", "c"] {
        add_backend(&mut snapshot, name, &[application(name)]);
    }
    let header = |name: &str, value: &str| ValueMatch { name: name.into(), value: ValueTest::Exact(value.into()) };
    let by_header = Match { headers: vec![header("version", "two")], ..Match::default() };
    let by_query = Match { query: vec![header("animal", "whale")], ..Match::default() };
    let by_method = Match { method: Some("POST".into()), ..Match::default() };
    let exact = Match { path: Some(PathMatch::Exact("/exact".into())), ..Match::default() };
    snapshot.routes.insert("any".into(), route(&[], vec![rule(vec![], vec![], &[("a", 1)])]));
    let rules = vec![
        rule(vec![prefix("/")], vec![], &[("a", 1)]),
        rule(vec![prefix("/v2"), by_header], vec![], &[("b", 1)]),
        rule(vec![exact, by_method], vec![], &[("c", 1)]),
        rule(vec![by_query], vec![], &[("c", 1), ("a", 0)]),
    ];
    snapshot.routes.insert("shop".into(), route(&["shop.example", "*.shop.example"], rules));
    let mut controlled = Controlled::start();
    assert_eq!(controlled.hello.revision, None);
    assert!(controlled.send(&snapshot).errors.is_empty());
    for (line, host, fields, expect) in [
        ("GET /", "other.example", "", "name=a"),
        ("GET /", "shop.example", "", "name=a"),
        ("GET /v2", "shop.example", "", "name=b"),
        ("GET /v2/x", "de.shop.example", "", "name=b"),
        ("GET /v2x", "shop.example", "", "name=a"),
        ("GET /v2", "other.example", "", "name=a"),
        ("GET /", "shop.example", "version: two\r\n", "name=b"),
        ("GET /", "shop.example:8080", "Version: two\r\n", "name=b"),
        ("GET /exact", "shop.example", "version: two\r\n", "name=c"),
        ("POST /", "shop.example", "Content-Length: 0\r\n", "name=c"),
        ("GET /?animal=whale", "shop.example", "", "name=c"),
        ("GET /?animal=dog", "shop.example", "", "name=a"),
    ] {
        check(address, line, host, fields, &["200", expect]);
    }
    // The server's own sites stay, also after a change of routes.
    let own = |controlled: &Controlled| ask(controlled.server.address, "GET /", "own.example", "");
    assert!(own(&controlled).ends_with("own"));
    let change = Change { routes: [("any".to_owned(), None)].into(), ..Change::default() };
    assert!(controlled.change(change).errors.is_empty());
    check(address, "GET /", "other.example", "", &["404"]);
    check(address, "GET /", "shop.example", "", &["200", "name=a"]);
    assert!(own(&controlled).ends_with("own"));
}

#[test]
fn filters_change_requests_and_responses() {
    let (mut snapshot, address) = with_listener();
    let mirrored = ScriptedUpstream::start(vec![vec![
        ScriptStep::Read("\r\n\r\n"),
        ScriptStep::Write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ]]);
    add_backend(&mut snapshot, "app", &[application("app")]);
    add_backend(&mut snapshot, "mirror", &[mirrored.address]);
    let fields = |set: &[(&str, &str)], add: &[(&str, &str)], remove: &[&str]| {
        let own = |list: &[(&str, &str)]| list.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        FieldChanges { set: own(set), add: own(add), remove: remove.iter().map(|name| (*name).to_owned()).collect() }
    };
    let redirect = |path: Option<PathRewrite>| Redirect { path, ..Redirect::default() };
    let to = |path: PathRewrite| Filter::Rewrite(Rewrite { hostname: Some("inner.example".into()), path: Some(path) });
    let cors = Cors {
        allow_origins: vec!["https://*.a.example".into()],
        allow_methods: vec!["PUT".into()],
        ..Cors::default()
    };
    let mut by_backend = rule(vec![prefix("/by-backend")], vec![], &[("app", 1)]);
    by_backend.backends[0].filters = vec![
        Filter::RequestHeaders(fields(&[("X-By", "backend")], &[], &[])),
        Filter::ResponseHeaders(fields(&[], &[("X-Out", "1")], &[])),
    ];
    let request_headers = Filter::RequestHeaders(fields(&[("X-Set", "set")], &[("X-Add", "add")], &["X-Remove"]));
    let elsewhere = Redirect {
        scheme: Some("https".into()),
        hostname: Some("other.example".into()),
        path: Some(PathRewrite::Prefix("/new".into())),
        status: Some(301),
        ..Redirect::default()
    };
    let app = &[("app", 1)][..];
    let rules = vec![
        rule(vec![prefix("/request")], vec![request_headers], app),
        rule(
            vec![prefix("/response")],
            vec![Filter::ResponseHeaders(fields(&[("X-Out", "2")], &[], &["X-Application"]))],
            app,
        ),
        by_backend,
        rule(vec![prefix("/old")], vec![Filter::Redirect(elsewhere)], &[]),
        rule(vec![prefix("/port")], vec![Filter::Redirect(redirect(Some(PathRewrite::Full("/full".into()))))], &[]),
        rule(vec![prefix("/strip"), prefix("/cut/this")], vec![to(PathRewrite::Prefix("/".into()))], app),
        rule(vec![prefix("/whole")], vec![to(PathRewrite::Full("/one".into()))], app),
        rule(vec![prefix("/cors")], vec![Filter::Cors(cors)], app),
        rule(vec![prefix("/mirror")], vec![Filter::Mirror(Mirror { backend: "mirror".into(), fraction: (1, 1) })], app),
        rule(vec![prefix("/fixed")], vec![Filter::Respond(Respond { status: 418, text: "tea".into() })], &[]),
    ];
    snapshot.routes.insert("filters".into(), route(&[], rules));
    let mut controlled = Controlled::start();
    assert_eq!(controlled.send(&snapshot).errors, Default::default());
    let port = address.port();
    let of_request = ask(address, "GET /request", "h", "X-Remove: 1\r\nX-Set: mine\r\nX-Add: mine\r\n");
    assert!(!of_request.contains("X-Remove") && !of_request.contains("X-Set: mine"), "{of_request}");
    assert!(["X-Set: set", "X-Add: mine", "X-Add: add"].iter().all(|line| of_request.contains(line)), "{of_request}");
    let of_response = ask(address, "GET /response", "h", "");
    assert!(of_response.contains("X-Out: 2") && !of_response.contains("X-Application"), "{of_response}");
    check(address, "GET /by-backend", "h", "", &["200", "X-By: backend", "X-Out: 1"]);
    check(address, "GET /old/a?b=c", "h", "", &["301", "Location: https://other.example/new/a?b=c\r\n"]);
    check(address, "GET /old", "h", "", &["301", "Location: https://other.example/new\r\n"]);
    check(
        address,
        "GET /port/x?y",
        "h.example",
        "",
        &["302", &format!("Location: http://h.example:{port}/full?y\r\n")],
    );
    check(address, "GET /strip/a/b?c", "h", "", &["200", "GET /a/b?c HTTP/1.1", "ost: inner.example\r\n"]);
    check(address, "GET /strip", "h", "", &["200", "GET / HTTP/1.1"]);
    check(address, "GET /cut/this/a", "h", "", &["200", "GET /a HTTP/1.1"]);
    check(address, "GET /whole/x?y", "h", "", &["200", "GET /one?y HTTP/1.1"]);
    let origin = "Origin: https://x.a.example\r\n";
    let allowed = "Access-Control-Allow-Origin: https://x.a.example\r\n";
    check(address, "GET /cors", "h", origin, &["200", allowed]);
    let asks = format!("{origin}Access-Control-Request-Method: PUT\r\n");
    check(address, "OPTIONS /cors", "h", &asks, &["204", allowed, "Access-Control-Allow-Methods: PUT\r\n"]);
    let of_other = ask(address, "GET /cors", "h", "Origin: https://b.example\r\n");
    assert!(of_other.starts_with("HTTP/1.1 200") && !of_other.contains("Access-Control"), "{of_other}");
    check(address, "GET /fixed", "h", "", &["418", "tea"]);
    check(address, "GET /mirror/copy", "h", "", &["200", "name=app"]);
    mirrored.await_received("GET /mirror/copy HTTP/1.1");
}

#[test]
fn backends_that_cannot_answer() {
    let (mut snapshot, address) = with_listener();
    add_backend(&mut snapshot, "app", &[application("app")]);
    add_backend(&mut snapshot, "empty", &[]);
    let silent = ScriptedUpstream::start(vec![vec![ScriptStep::Read("never")]]);
    add_backend(&mut snapshot, "silent", &[silent.address]);
    let not_ready = Endpoint { is_ready: false, ..Endpoint::new(application("not ready")) };
    snapshot.backends.insert("starting".into(), Default::default());
    snapshot.endpoints.insert("starting".into(), vec![not_ready]);
    let mut slow = rule(vec![prefix("/slow")], vec![], &[("silent", 1)]);
    slow.timeouts = Timeouts { request_ms: Some(300), backend_request_ms: None };
    let unresolved =
        Rule { error: Some("a filter".into()), ..rule(vec![prefix("/unresolved")], vec![], &[("app", 1)]) };
    let rules = vec![
        rule(vec![prefix("/unknown")], vec![], &[("unknown", 1)]),
        rule(vec![prefix("/empty")], vec![], &[("empty", 1)]),
        rule(vec![prefix("/starting")], vec![], &[("starting", 1)]),
        rule(vec![prefix("/none")], vec![], &[]),
        rule(vec![prefix("/zero")], vec![], &[("app", 0)]),
        rule(vec![prefix("/half")], vec![], &[("app", 1), ("unknown", 1)]),
        slow,
        unresolved,
    ];
    snapshot.routes.insert("r".into(), route(&[], rules));
    let mut controlled = Controlled::start();
    let errors = controlled.send(&snapshot).errors;
    assert_eq!(errors.keys().collect::<Vec<_>>(), ["route/r"]);
    for (path, status) in [
        ("/unknown", "500"),
        ("/empty", "503"),
        ("/starting", "503"),
        ("/none", "500"),
        ("/zero", "500"),
        ("/slow", "504"),
        ("/unresolved", "500"),
    ] {
        check(address, &format!("GET {path}"), "h", "", &[status]);
    }
    let halves: Vec<_> = (0..64).map(|_| ask(address, "GET /half", "h", "")[9..12].to_owned()).collect();
    let count = |status: &str| halves.iter().filter(|half| *half == status).count();
    // By chance: all alike once in 2^63 runs.
    assert!(count("200") > 0 && count("500") > 0 && count("200") + count("500") == 64, "{halves:?}");
}

#[test]
fn a_time_limit_covers_the_whole_response() {
    let (mut snapshot, address) = with_listener();
    // Each part comes in time, the whole does not.
    let parts = (0..600).flat_map(|_| [ScriptStep::Write("1\r\na\r\n"), ScriptStep::Pause(50)]);
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let script = [ScriptStep::Read("\r\n\r\n"), ScriptStep::Write(head)].into_iter().chain(parts);
    let upstream = ScriptedUpstream::start(vec![script.chain([ScriptStep::Write("0\r\n\r\n")]).collect()]);
    add_backend(&mut snapshot, "app", &[upstream.address]);
    let mut controlled = Controlled::start();
    // On a busy machine, the head may come too late for the first limits.
    let response = [500, 4_000, 20_000].map(Some).into_iter().find_map(|request_ms| {
        let timeouts = Timeouts { request_ms, backend_request_ms: None };
        let limited = Rule { timeouts, ..rule(vec![], vec![], &[("app", 1)]) };
        snapshot.routes.insert("r".into(), route(&[], vec![limited]));
        assert!(controlled.send(&snapshot).errors.is_empty());
        Some(ask(address, "GET /", "h", "")).filter(|response| response.starts_with("HTTP/1.1 200"))
    });
    let response = response.expect("the head comes in time");
    assert!(!response.ends_with("0\r\n\r\n"), "{response}");
}

#[test]
fn requests_are_retried_after_some_statuses() {
    let (mut snapshot, address) = with_listener();
    let responds = |response| vec![ScriptStep::Read("\r\n\r\n"), ScriptStep::Write(response)];
    let upstream = ScriptedUpstream::start(vec![
        responds("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"),
        responds("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"),
    ]);
    add_backend(&mut snapshot, "app", &[upstream.address]);
    let retry = Retry { codes: vec![500, 503], attempts: 3, backoff_ms: 20 };
    let retried = Rule { retry: Some(retry), ..rule(vec![], vec![], &[("app", 1)]) };
    snapshot.routes.insert("r".into(), route(&[], vec![retried]));
    let mut controlled = Controlled::start();
    assert!(controlled.send(&snapshot).errors.is_empty());
    check(address, "GET /", "h", "", &["200", "good"]);
}

#[test]
fn errors_are_told_by_name_and_move_nothing_else() {
    let (mut snapshot, address) = with_listener();
    add_backend(&mut snapshot, "app", &[application("app")]);
    let good = route(&["good.example"], vec![rule(vec![], vec![], &[("app", 1)])]);
    snapshot.routes.insert("good".into(), good.clone());
    let regex = Match { path: Some(PathMatch::Regex("(".into())), ..Match::default() };
    snapshot.routes.insert("regex".into(), route(&[], vec![rule(vec![regex], vec![], &[("app", 1)])]));
    let bad_name = FieldChanges { remove: vec!["a b".into()], ..FieldChanges::default() };
    let filter = Filter::RequestHeaders(bad_name);
    snapshot.routes.insert("filter".into(), route(&[], vec![rule(vec![], vec![filter], &[("app", 1)])]));
    snapshot.routes.insert("listener".into(), Route { listeners: vec!["none".into()], ..good.clone() });
    let options = "deny all\n}\nsite { listen \"127.0.0.1:2\"\n respond \"*\" 200";
    let escape = Rule { options: options.into(), ..rule(vec![], vec![], &[("app", 1)]) };
    snapshot.routes.insert("options".into(), route(&["options.example"], vec![escape]));
    let denied = Rule { options: "deny all status=451".into(), ..rule(vec![], vec![], &[("app", 1)]) };
    snapshot.routes.insert("policy".into(), route(&["policy.example"], vec![denied]));
    let log = Rule { options: "access-log \"/tmp/of-a-policy\"".into(), ..rule(vec![], vec![], &[("app", 1)]) };
    snapshot.routes.insert("log".into(), route(&["log.example"], vec![log]));
    let tuned = Backend { options: "no-such-option 1".into(), ..Backend::default() };
    snapshot.backends.insert("tuned".into(), tuned);
    let secret = "-----BEGIN PRIVATE KEY-----";
    let tls = Listener {
        certificates: vec![Certificate { chain: "none".into(), key: secret.into() }],
        ..Listener::new(free_port(), Protocol::Https)
    };
    snapshot.listeners.insert("tls".into(), tls);
    // An address of documentation (RFC 5737), which no machine has.
    let elsewhere = Listener { addresses: vec![[192, 0, 2, 1].into()], ..Listener::new(free_port(), Protocol::Http) };
    snapshot.listeners.insert("elsewhere".into(), elsewhere);
    let again = snapshot.listeners["http"].clone();
    snapshot.listeners.insert("same".into(), again);
    let mut controlled = Controlled::start();
    let errors = controlled.send(&snapshot).errors;
    for (name, expect) in [
        ("route/regex", "is not valid"),
        ("route/filter", "no name of a header field"),
        ("route/listener", "there is no listener none"),
        ("route/options", "options"),
        ("route/log", "not for policies"),
        ("route-options/options", "options"),
        ("route-options/log", "not for policies"),
        ("backend/tuned", "no-such-option"),
        ("backend-options/tuned", "no-such-option"),
        ("listener/tls", "certificate"),
        ("listener/elsewhere", "cannot bind 192.0.2.1"),
        ("listener/same", "the same host name"),
    ] {
        assert!(errors.get(name).is_some_and(|reason| reason.contains(expect)), "{name}: {errors:?}");
    }
    assert_eq!(errors.len(), 12, "{errors:?}");
    check(address, "GET /", "good.example", "", &["200", "name=app"]);
    check(address, "GET /", "policy.example", "", &["451"]);
    check(address, "GET /", "options.example", "", &["404"]);
    // A repaired route loses its error.
    let routes = [("regex".to_owned(), Some(good)), ("filter".to_owned(), None)].into();
    let errors = controlled.change(Change { routes, ..Change::default() }).errors;
    assert_eq!(errors.len(), 10, "{errors:?}");
}

/// Requests on connections of their own, uploads in pieces, and a WebSocket, while endpoints change.
#[test]
fn ten_thousand_changes_of_endpoints_lose_nothing() {
    let (mut snapshot, address) = with_listener();
    let applications: Vec<_> = (0..4).map(|_| application("app")).collect();
    add_backend(&mut snapshot, "app", &applications);
    snapshot.routes.insert("r".into(), route(&[], vec![rule(vec![], vec![], &[("app", 1)])]));
    let mut controlled = Controlled::start();
    assert!(controlled.send(&snapshot).errors.is_empty());
    let (is_over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load = |work: fn(SocketAddr, &AtomicBool, &AtomicU64)| {
        let (is_over, count) = (Arc::clone(&is_over), Arc::clone(&count));
        thread::spawn(move || work(address, &is_over, &count))
    };
    let clients = [load(ask_until), load(ask_until), load(upload_until), load(talk_until)];
    for change in 0..CHANGES {
        let others = applications.iter().enumerate().filter(|(index, _)| *index != change % applications.len());
        let endpoints = others.map(|(_, address)| Endpoint::new(*address)).collect();
        let endpoints = [("app".to_owned(), Some(endpoints))].into();
        assert!(controlled.change(Change { endpoints, ..Change::default() }).errors.is_empty());
    }
    eventually("clients are served", || count.load(Ordering::Relaxed) > 100);
    is_over.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
}

fn ask_until(address: SocketAddr, is_over: &AtomicBool, count: &AtomicU64) {
    while !is_over.load(Ordering::Relaxed) {
        let response = ask(address, "GET /", "h", "");
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        count.fetch_add(1, Ordering::Relaxed);
    }
}

fn upload_until(address: SocketAddr, is_over: &AtomicBool, count: &AtomicU64) {
    let piece = [b'x'; 10_000];
    while !is_over.load(Ordering::Relaxed) {
        let mut stream = connect(address);
        write!(stream, "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n").unwrap();
        (0..10).for_each(|_| stream.write_all(&piece).unwrap());
        let response = read_all(&mut stream);
        assert!(response.contains("content=100000\n"), "{response}");
        count.fetch_add(1, Ordering::Relaxed);
    }
}

fn talk_until(address: SocketAddr, is_over: &AtomicBool, count: &AtomicU64) {
    let mut stream = websocket(address);
    while !is_over.load(Ordering::Relaxed) {
        echo(&mut stream);
        count.fetch_add(1, Ordering::Relaxed);
    }
}

fn websocket(address: SocketAddr) -> TcpStream {
    let mut stream = connect(address);
    let request = "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let head = read_until(&mut stream, "\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    stream
}

fn echo(stream: &mut TcpStream) {
    stream.write_all(b"ping!").unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"ping!");
}

/// A change among many routes: the sites of the others stay the same objects, and what is in progress continues.
#[test]
fn a_change_of_a_route_builds_its_site_alone() {
    let (listeners, port) = (20_u8, free_port());
    let address = move |listener: u8| SocketAddr::from(([127, 0, 9, listener + 1], port));
    let edition = |listener: u8, number: &str| {
        let changes = FieldChanges { set: vec![("X-Edition".into(), number.into())], ..FieldChanges::default() };
        let rules = vec![rule(vec![], vec![Filter::ResponseHeaders(changes)], &[("app", 1)])];
        Route { listeners: vec![format!("listener{listener}")], ..route(&[], rules) }
    };
    let mut snapshot = Snapshot::default();
    add_backend(&mut snapshot, "app", &[application("app")]);
    for listener in 0..listeners {
        let addresses = vec![address(listener).ip()];
        let of_address = Listener { addresses, ..Listener::new(port, Protocol::Http) };
        snapshot.listeners.insert(format!("listener{listener}"), of_address);
        snapshot.routes.insert(format!("route{listener}"), edition(listener, "0"));
        for other in 0..10 {
            let host = format!("{other}.example");
            let others = Route { hostnames: vec![host], ..edition(listener, "other") };
            snapshot.routes.insert(format!("route{listener}-{other}"), others);
        }
    }
    let mut controlled = Controlled::start();
    assert!(controlled.send(&snapshot).errors.is_empty());
    let (is_over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = [ask_until, upload_until, talk_until]
        .into_iter()
        .map(|client| {
            let (is_over, count) = (Arc::clone(&is_over), Arc::clone(&count));
            thread::spawn(move || client(address(7), &is_over, &count))
        })
        .collect();
    for round in 1..=30 {
        let number = round.to_string();
        let change = Change { routes: [("route7".to_owned(), Some(edition(7, &number)))].into(), ..Change::default() };
        assert!(controlled.change(change).errors.is_empty());
        check(address(7), "GET /", "h", "", &["200", &format!("X-Edition: {number}\r\n")]);
        check(address(7), "GET /", "3.example", "", &["200", "X-Edition: other\r\n"]);
        check(address(8), "GET /", "h", "", &["200", "X-Edition: 0\r\n"]);
    }
    // A backend that comes later makes the rule that names it valid, on each listener.
    let mirror = Filter::Mirror(Mirror { backend: "later".into(), fraction: (1, 1) });
    let route7 =
        Route { listeners: vec!["listener7".into()], ..route(&[], vec![rule(vec![], vec![mirror], &[("app", 1)])]) };
    let change = Change { routes: [("route9".to_owned(), Some(route7))].into(), ..Change::default() };
    assert!(controlled.change(change).errors["route/route9"].contains("later"));
    let backends = [("later".to_owned(), Some(routes::Backend::default()))].into();
    assert!(controlled.change(Change { backends, ..Change::default() }).errors.is_empty());
    eventually("clients are served", || count.load(Ordering::Relaxed) > 0);
    is_over.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    let log = controlled.without_controller().0.end_with_log();
    let built: Vec<_> = log.iter().filter_map(|line| line.split_once("sites_built=")).map(|(_, count)| count).collect();
    assert_eq!(built[..31], [&["240"][..], &["1"; 30]].concat()[..], "{built:?}");
}

#[test]
fn changed_routes_and_listeners_keep_open_connections() {
    let (mut snapshot, address) = with_listener();
    add_backend(&mut snapshot, "app", &[application("app")]);
    snapshot.routes.insert("r".into(), route(&[], vec![rule(vec![], vec![], &[("app", 1)])]));
    let mut controlled = Controlled::start();
    controlled.send(&snapshot);
    let mut open = websocket(address);
    for round in 0..20 {
        let (other, second) = (format!("round-{round}.example"), free_port());
        let added = route(
            &[&other],
            vec![rule(vec![], vec![Filter::Respond(Respond { status: 200, text: other.clone() })], &[])],
        );
        let listener = Listener { addresses: vec![[127, 0, 0, 1].into()], ..Listener::new(second, Protocol::Http) };
        let change = Change {
            routes: [(other.clone(), Some(Route { listeners: vec!["http".into(), other.clone()], ..added }))].into(),
            listeners: [(other.clone(), Some(listener))].into(),
            ..Change::default()
        };
        assert!(controlled.change(change).errors.is_empty());
        check(address, "GET /", &other, "", &["200", &other]);
        check(([127, 0, 0, 1], second).into(), "GET /", &other, "", &["200", &other]);
        echo(&mut open);
        let remove = Change {
            routes: [(other.clone(), None)].into(),
            listeners: [(other.clone(), None)].into(),
            ..Change::default()
        };
        assert!(controlled.change(remove).errors.is_empty());
        check(address, "GET /", &other, "", &["200", "name=app"]);
        echo(&mut open);
    }
}

#[test]
fn the_last_routes_serve_without_a_controller() {
    let (mut snapshot, address) = with_listener();
    add_backend(&mut snapshot, "app", &[application("app")]);
    snapshot.routes.insert("r".into(), route(&[], vec![rule(vec![], vec![], &[("app", 1)])]));
    let mut controlled = Controlled::start();
    controlled.send(&snapshot);
    let (server, directory) = controlled.without_controller();
    check(address, "GET /", "h", "", &["200", "name=app"]);
    server.await_log("controller lost");
    // The state was written when the connection ended.
    server.end_with_log();
    std::fs::remove_file(directory.path().join("plane.sock")).unwrap();
    let server = TestServer::run_from(&write_config(&directory, ""));
    check(address, "GET /", "h", "", &["200", "name=app"]);
    // A reload of the file keeps the routes.
    server.signal("HUP");
    server.await_log("configuration reloaded");
    check(address, "GET /", "h", "", &["200", "name=app"]);
    drop(server);
    // The controller is back.
    let mut controlled = Controlled::start_in(directory, "");
    assert_eq!(controlled.hello.revision, Some(1));
    let change = Change { routes: [("r".to_owned(), None)].into(), ..Change::default() };
    let _ = controlled.send(&snapshot);
    controlled.change(change);
    check(address, "GET /", "h", "", &["404"]);
}

/// The server is killed, not ended: a change is on disk after a second, whatever the size of all routes.
#[test]
fn changes_are_on_disk_when_the_server_is_killed() {
    let (mut snapshot, address) = with_listener();
    add_backend(&mut snapshot, "app", &[application("app")]);
    snapshot.routes.insert("r".into(), route(&[], vec![rule(vec![prefix("/a")], vec![], &[("app", 1)])]));
    let mut controlled = Controlled::start();
    controlled.send(&snapshot);
    let file = controlled.directory().join("state/routes.json");
    eventually("the snapshot is written", || file.exists());
    for (number, path) in [(2, "/b"), (3, "/c")] {
        let changed = route(&[], vec![rule(vec![prefix(path)], vec![], &[("app", 1)])]);
        controlled.change(Change { routes: [("r".to_owned(), Some(changed))].into(), ..Change::default() });
        let lines = lines_of(&file, number);
        assert!(lines[0].starts_with("{\"snapshot\"") && lines[number - 1].starts_with("{\"change\""), "{lines:?}");
    }
    let (server, directory) = controlled.without_controller();
    server.signal("KILL");
    drop(server);
    std::fs::remove_file(directory.path().join("plane.sock")).unwrap();
    let _server = TestServer::run_from(&write_config(&directory, ""));
    check(address, "GET /c", "h", "", &["200", "name=app"]);
    check(address, "GET /b", "h", "", &["404"]);
}

#[test]
fn a_header_field_keeps_a_client_with_a_server() {
    let (mut snapshot, address) = with_listener();
    let persistence = |name: &str| SessionPersistence {
        name: name.to_owned(),
        kind: PersistenceKind::Header,
        lifetime: Lifetime::Session,
        absolute_timeout_seconds: None,
        path: None,
    };
    let applications = ["one", "two", "three"].map(application);
    for (backend, name) in [("app", "X-Session"), ("wrong", "X-A: b\r\nX-C")] {
        add_backend(&mut snapshot, backend, &applications);
        let options = Backend { persistence: Some(persistence(name)), ..Backend::default() };
        snapshot.backends.insert(backend.into(), options);
    }
    snapshot.routes.insert("r".into(), route(&[], vec![rule(vec![], vec![], &[("app", 1)])]));
    let mut controlled = Controlled::start();
    let errors = controlled.send(&snapshot).errors;
    assert_eq!(errors.keys().collect::<Vec<_>>(), ["backend/wrong"]);
    let session =
        |response: &str| response.lines().find_map(|line| line.strip_prefix("X-Session: ")).map(str::to_owned);
    let name = |response: &str| response.lines().find(|line| line.starts_with("name=")).map(str::to_owned);
    let first = ask(address, "GET /", "h", "");
    let field = format!("X-Session: {}\r\n", session(&first).unwrap());
    for _ in 0..12 {
        let again = ask(address, "GET /", "h", &field);
        assert_eq!((name(&again), again.split("\r\n\r\n").next().and_then(session)), (name(&first), None));
    }
    // A value that the server has not made.
    let other = ask(address, "GET /", "h", "X-Session: forged\r\n");
    assert!(other.split("\r\n\r\n").next().and_then(session).is_some(), "{other}");
}

/// The CA of a backend changes, and nothing else.
#[test]
fn a_changed_ca_holds_for_a_backend() {
    let (mut snapshot, address) = with_listener();
    let (ours, other, directory) = (TestCa::new(), TestCa::new(), tempfile::tempdir().unwrap());
    ours.sign(&["app.example"]).write(directory.path(), "app");
    let path = directory.path().display();
    let upstream = TestServer::run(&format!(
        "site \"app.example\" {{\n listen \"127.0.0.1:0\" tls=on\n default\n respond \"*\" 200 \"name=tls\"\n \
         certificate \"{path}/app.pem\" key=\"{path}/app.key\"\n}}\nserver {{ workers 1 }}\n"
    ));
    let trusting = |authority: &TestCa| {
        let tls =
            BackendTls { hostname: "app.example".into(), authorities: Some(authority.pem()), ..BackendTls::default() };
        Backend { tls: Some(tls), ..Backend::default() }
    };
    add_backend(&mut snapshot, "app", &[upstream.address]);
    snapshot.backends.insert("app".into(), trusting(&other));
    snapshot.routes.insert("r".into(), route(&[], vec![rule(vec![], vec![], &[("app", 1)])]));
    let mut controlled = Controlled::start();
    controlled.send(&snapshot);
    check(address, "GET /", "h", "", &["502"]);
    for (authority, expect) in [(&ours, "200"), (&other, "502"), (&ours, "200")] {
        let backends = [("app".to_owned(), Some(trusting(authority)))].into();
        controlled.change(Change { backends, ..Change::default() });
        check(address, "GET /", "h", "", &[expect]);
    }
}

#[test]
fn certificates_by_listener() {
    let authority = TestCa::new();
    let port = free_port();
    let mut snapshot = Snapshot::default();
    let listener = |name: &str| {
        let pair = authority.sign(&[name]);
        let certificates = vec![Certificate { chain: pair.certificate, key: pair.key }];
        let addresses = vec![[127, 0, 0, 1].into()];
        Listener { addresses, hostname: Some(name.into()), certificates, ..Listener::new(port, Protocol::Https) }
    };
    add_backend(&mut snapshot, "app", &[application("app")]);
    for name in ["a.example", "b.example"] {
        snapshot.listeners.insert(name.into(), listener(name));
        let of = route(&[], vec![rule(vec![], vec![], &[("app", 1)])]);
        snapshot.routes.insert(name.into(), Route { listeners: vec![name.into()], ..of });
    }
    let mut controlled = Controlled::start();
    assert_eq!(controlled.send(&snapshot).errors, Default::default());
    controlled.server.address = ([127, 0, 0, 1], port).into();
    let client = Arc::new(authority.client(None));
    let shown = |controlled: &Controlled, name: &str| {
        // A client of its own, because a resumed session shows the certificate that it began with.
        let stream = tls::connect(&controlled.server, &Arc::new(authority.client(None)), name).unwrap();
        stream.conn.peer_certificates().unwrap()[0].to_vec()
    };
    let before = shown(&controlled, "a.example");
    let request = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    for (name, host, expect) in
        [("a.example", "a.example", "200"), ("b.example", "b.example", "200"), ("a.example", "b.example", "421")]
    {
        let mut stream = tls::connect(&controlled.server, &client, name).unwrap();
        let response = tls::ask(&mut stream, &request(host)).unwrap();
        assert!(response.starts_with(&format!("HTTP/1.1 {expect}")), "{name} {host}: {response}");
    }
    let mut open = tls::connect(&controlled.server, &client, "a.example").unwrap();
    let change =
        Change { listeners: [("a.example".to_owned(), Some(listener("a.example")))].into(), ..Change::default() };
    assert!(controlled.change(change).errors.is_empty());
    assert_ne!(shown(&controlled, "a.example"), before);
    assert!(tls::ask(&mut open, &request("a.example")).unwrap().starts_with("HTTP/1.1 200"));
}

#[test]
fn clients_with_invalid_certificates() {
    let (authority, other) = (TestCa::new(), TestCa::new());
    let port = free_port();
    let mut snapshot = Snapshot::default();
    let pair = authority.sign(&["a.example"]);
    let mut listener = Listener {
        addresses: vec![[127, 0, 0, 1].into()],
        certificates: vec![Certificate { chain: pair.certificate, key: pair.key }],
        client_validation: Some(ClientValidation { authorities: authority.pem(), allows_invalid: false }),
        ..Listener::new(port, Protocol::Https)
    };
    snapshot.listeners.insert("http".into(), listener.clone());
    add_backend(&mut snapshot, "app", &[application("app")]);
    snapshot.routes.insert("r".into(), route(&[], vec![rule(vec![], vec![], &[("app", 1)])]));
    let mut controlled = Controlled::start();
    assert_eq!(controlled.send(&snapshot).errors, Default::default());
    controlled.server.address = ([127, 0, 0, 1], port).into();
    let is_served = |controlled: &Controlled, pair: Option<&tls::Pair>| {
        let mut stream = tls::connect(&controlled.server, &Arc::new(authority.client(pair)), "a.example").ok()?;
        let request = "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
        tls::ask(&mut stream, request).ok().filter(|response| response.starts_with("HTTP/1.1 200"))
    };
    let (known, unknown) = (authority.sign(&["client"]), other.sign(&["client"]));
    let served = |controlled: &Controlled| {
        [Some(&known), Some(&unknown), None].map(|pair| is_served(controlled, pair).is_some())
    };
    assert_eq!(served(&controlled), [true, false, false]);
    listener.client_validation = listener.client_validation.map(|of| ClientValidation { allows_invalid: true, ..of });
    let change = Change { listeners: [("http".to_owned(), Some(listener))].into(), ..Change::default() };
    assert!(controlled.change(change).errors.is_empty());
    assert_eq!(served(&controlled), [true, true, true]);
}

#[test]
fn connections_and_datagrams_are_forwarded() {
    let authority = TestCa::new();
    let (tcp, tls_port, udp) = (free_port(), free_port(), free_port());
    let mut snapshot = Snapshot::default();
    let echo_server = || ScriptedUpstream::start(vec![vec![ScriptStep::Echo]]).address;
    let of_udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    add_backend(&mut snapshot, "echo", &[echo_server()]);
    add_backend(&mut snapshot, "datagrams", &[of_udp.local_addr().unwrap()]);
    // A server of TLS with a certificate of its own.
    let inner = authority.sign(&["pass.example"]);
    let directory = tempfile::tempdir().unwrap();
    inner.write(directory.path(), "inner");
    let at = |name: &str| directory.path().join(name).display().to_string();
    let passed = TestServer::run(&format!(
        "site \"pass.example\" {{\n listen \"127.0.0.1:0\" tls=on\n certificate \"{}\" key=\"{}\"\n respond \"*\" 200 \"inner\"\n}}\n",
        at("inner.pem"),
        at("inner.key")
    ));
    add_backend(&mut snapshot, "passed", &[passed.address]);
    let addresses = vec![[127, 0, 0, 1].into()];
    let listener = |port, protocol| Listener { addresses: addresses.clone(), ..Listener::new(port, protocol) };
    let outer = authority.sign(&["end.example"]);
    let terminate = Listener {
        hostname: Some("end.example".into()),
        certificates: vec![Certificate { chain: outer.certificate, key: outer.key }],
        ..listener(tls_port, Protocol::TlsTerminate)
    };
    let passthrough = Listener { hostname: Some("*.example".into()), ..listener(tls_port, Protocol::TlsPassthrough) };
    for (name, of, backend) in [
        ("tcp", listener(tcp, Protocol::Tcp), "echo"),
        ("udp", listener(udp, Protocol::Udp), "datagrams"),
        ("end", terminate, "echo"),
        ("pass", passthrough, "passed"),
    ] {
        snapshot.listeners.insert(name.into(), of);
        let backends = vec![BackendRef::new(backend, 1)];
        let route = StreamRoute { listeners: vec![name.into()], backends, ..StreamRoute::default() };
        snapshot.stream_routes.insert(name.into(), route);
    }
    let mut controlled = Controlled::start();
    assert_eq!(controlled.send(&snapshot).errors, Default::default());
    // The sockets are bound by a thread of their own.
    let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    eventually("it listens", || [tcp, tls_port].map(address).iter().all(|port| TcpStream::connect(port).is_ok()));
    eventually("it listens for datagrams", || std::net::UdpSocket::bind(address(udp)).is_err());
    let mut stream = connect(address(tcp));
    stream.write_all(b"half").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut stream), "half", "a side that has ended still receives");
    let client = Arc::new(authority.client(None));
    controlled.server.address = address(tls_port);
    let mut stream = tls::connect(&controlled.server, &client, "end.example").unwrap();
    stream.write_all(b"plain").unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"plain");
    let mut stream = tls::connect(&controlled.server, &client, "pass.example").unwrap();
    let response = tls::ask(&mut stream, "GET / HTTP/1.1\r\nHost: pass.example\r\nConnection: close\r\n\r\n").unwrap();
    assert!(response.ends_with("inner"), "{response}");
    assert!(tls::connect(&controlled.server, &client, "unknown.test").is_err());
    // Datagrams of two clients go to the server by sockets of their own, and answers come back.
    of_udp.set_read_timeout(Some(PATIENCE)).unwrap();
    let clients = [0, 1].map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    let mut peers = Vec::new();
    for (index, client) in clients.iter().enumerate() {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.send_to(format!("question {index}").as_bytes(), address(udp)).unwrap();
        let mut buffer = [0; 64];
        let (length, peer) = of_udp.recv_from(&mut buffer).unwrap();
        assert_eq!(buffer[..length], *format!("question {index}").as_bytes());
        of_udp.send_to(format!("answer {index}").as_bytes(), peer).unwrap();
        let (length, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from), (format!("answer {index}").as_bytes(), address(udp)));
        peers.push(peer);
    }
    assert_ne!(peers[0], peers[1]);
    // A removed listener leaves its address free, although clients were there a moment ago.
    let change = Change { listeners: [("udp".to_owned(), None)].into(), ..Change::default() };
    assert_eq!(controlled.change(change).errors.keys().collect::<Vec<_>>(), ["stream-route/udp"]);
    crate::support::waiting::eventually("the address is free", || std::net::UdpSocket::bind(address(udp)).is_ok());
    let again = listener(udp, Protocol::Udp);
    let change = Change { listeners: [("udp".to_owned(), Some(again))].into(), ..Change::default() };
    assert!(controlled.change(change).errors.is_empty());
    crate::support::waiting::eventually("it listens again", || std::net::UdpSocket::bind(address(udp)).is_err());
    clients[0].send_to(b"again", address(udp)).unwrap();
    let mut buffer = [0; 64];
    assert_eq!(of_udp.recv_from(&mut buffer).map(|(length, _)| buffer[..length].to_vec()).unwrap(), b"again");
    // Open connections go on after their listener was removed.
    let mut open = connect(address(tcp));
    echo(&mut open);
    let change = Change { listeners: [("tcp".to_owned(), None)].into(), ..Change::default() };
    assert_eq!(controlled.change(change).errors.keys().collect::<Vec<_>>(), ["stream-route/tcp"]);
    crate::support::waiting::eventually("it listens no more", || TcpStream::connect(address(tcp)).is_err());
    echo(&mut open);
}
