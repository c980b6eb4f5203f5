//! External authorization by Envoy's protocol over gRPC, and of requests with content.

use routes::{BackendProtocol, ExternalAuth, ExternalAuthKind, Filter, Listener, Protocol, Route, Rule, Snapshot};

use crate::support::controller::{Controlled, add_backend, application};
use crate::support::function_server::{FunctionServer, field, response};
use crate::support::port::free_port;
use crate::support::real_server::{RealServer, Recipe};
use crate::support::upstream::ScriptStep::{Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::{TestServer, ask};

const SERVER: Recipe<'_> = Recipe {
    needs: &["/usr/bin/python3", "/usr/lib/python3/dist-packages/grpc"],
    files: &[("server.py", include_str!("applications/ext_authz_server.py"))],
    command: &["/usr/bin/python3", "@DIR@/server.py", "@PORT@"],
    environment: &[],
};

fn server(auth: &str, application: std::net::SocketAddr) -> TestServer {
    TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n forward-auth \"*\" {auth}\n forward \"http://{application}\"\n}}\n\
         server {{ workers 1 }}\n"
    ))
}

fn request(line: &str, fields: &str, content: &str) -> String {
    let length = content.len();
    format!(
        "{line} HTTP/1.1\r\nHost: a.example\r\n{fields}Connection: close\r\nContent-Length: {length}\r\n\r\n{content}"
    )
}

#[test]
fn a_server_of_grpc_decides() {
    let Some(authorizer) = RealServer::start(&SERVER) else { return };
    let auth = format!("\"h2c://{}\" protocol=\"grpc\" body-bytes-max=8", authorizer.address);
    let server = server(&auth, application("app"));
    let check = |line: &str, fields: &str, content: &str, expect: &[&str]| {
        let answer = ask(&server, &request(line, fields, content));
        assert!(answer.starts_with(&format!("HTTP/1.1 {}", expect[0])), "{line} {fields}: {answer}");
        expect[1..].iter().for_each(|text| assert!(answer.contains(text), "{text}: {answer}"));
        answer
    };
    let fields = "X-User: anna\r\nX-Removed: 1\r\nX-More: own\r\nX-Facts: forged\r\n";
    let facts = "x-facts: GET /a?b=c a.example http HTTP/1.1 0 0 - GET 127.0.0.1 timed\r\n";
    let answer = check("GET /x/../a?b=c", fields, "", &["200", facts, "x-user: ANNA", "x-decision: permitted"]);
    assert!(
        answer.contains("set-cookie: seen=1") && answer.contains("X-More: own") && answer.contains("added"),
        "{answer}"
    );
    assert!(!answer.contains("X-Removed") && !answer.contains("forged") && !answer.contains("anna"), "{answer}");
    // The server gets the start of the content, and the application all of it.
    for (content, facts) in [
        ("short", "HTTP/1.1 5 5 false POST"),
        ("just 8 B", "HTTP/1.1 8 8 false POST"),
        (&*"long ".repeat(100_000), "HTTP/1.1 500000 8 true POST"),
    ] {
        let received = format!("content={}\n", content.len());
        check("POST /up", "X-User: anna\r\n", content, &["200", facts, &received]);
    }
    let chunked = "POST /up HTTP/1.1\r\nHost: a.example\r\nX-User: anna\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n\
                   5\r\nshort\r\n0\r\n\r\n";
    let answer = ask(&server, chunked);
    assert!(answer.contains("HTTP/1.1 -1 5 false POST") && answer.contains("Transfer-Encoding: chunked"), "{answer}");
    check("POST /up", "X-User: anna\r\n", "secret", &["403"]);
    check("POST /up", "X-User: anna\r\n", "no secret", &["200"]);
    check("GET /", "", "", &["403"]);
    check("GET /", "X-Denied: 302\r\n", "", &["302", "location: https://login.example/", "denied by the server"]);
    check("GET /", "X-Denied: 401\r\n", "", &["401", "denied by the server"]);
}

#[test]
fn without_a_decision_no_request_passes() {
    let application = FunctionServer::start(|_| response("200 OK", "", "passed"));
    let closed = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    // Speaks HTTP/1.1 alone.
    let other =
        ScriptedUpstream::start(vec![vec![Await("\r\n\r\n"), Say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")]]);
    for authorizer in [closed, other.address] {
        let server = server(&format!("\"h2c://{authorizer}\" protocol=\"grpc\" timeout=\"2s\""), application.address);
        let answer = ask(&server, &request("GET /", "X-User: anna\r\n", ""));
        assert!(answer.starts_with("HTTP/1.1 50"), "{authorizer}: {answer}");
    }
    assert!(application.heads().is_empty());
}

#[test]
fn a_server_of_http_gets_the_start_of_the_content() {
    let authorizer = FunctionServer::start(|_| response("200 OK", "X-Name: anna\r\n", ""));
    let auth =
        format!("\"http://{}\" uri=\"/check\" copy-headers=\"X-Name\" body-bytes-max=\"1KiB\"", authorizer.address);
    let server = server(&auth, application("app"));
    for (length, asked) in [(3, "3"), (1024, "1024"), (300_000, "1024")] {
        let answer = ask(&server, &request("PUT /a", "Content-Type: text/x\r\n", &"x".repeat(length)));
        assert!(answer.contains(&format!("content={length}\n")) && answer.contains("X-Name: anna"), "{answer}");
        let heads = authorizer.heads();
        assert!(heads[0].starts_with("PUT /check HTTP/1.1\r\n"), "{heads:?}");
        let fields = ["content-length", "content-type", "x-forwarded-method"].map(|name| field(&heads[0], name));
        assert_eq!(fields, [asked, "text/x", "PUT"], "{heads:?}");
    }
    ask(&server, &request("GET /a", "Content-Type: text/x\r\n", ""));
    let heads = authorizer.heads();
    assert!(heads[0].starts_with("GET /check HTTP/1.1\r\n"), "{heads:?}");
}

#[test]
fn a_filter_of_a_route_asks() {
    let Some(authorizer) = RealServer::start(&SERVER) else { return };
    let over_http = FunctionServer::start(|_| response("200 OK", "", ""));
    let (mut snapshot, port) = (Snapshot::default(), free_port());
    let listener = Listener { addresses: vec![[127, 0, 0, 1].into()], ..Listener::new(port, Protocol::Http) };
    snapshot.listeners.insert("http".into(), listener);
    add_backend(&mut snapshot, "app", &[application("app")]);
    add_backend(&mut snapshot, "grpc", &[authorizer.address]);
    add_backend(&mut snapshot, "http", &[over_http.address]);
    snapshot.backends.get_mut("grpc").unwrap().protocol = BackendProtocol::Http2;
    let auth = |backend: &str, kind, body_bytes_max| {
        let filter = Filter::ExternalAuth(ExternalAuth {
            backend: backend.into(),
            kind,
            request_headers: vec!["x-user".into()],
            response_headers: Vec::new(),
            login: None,
            body_bytes_max,
        });
        let backends = vec![routes::BackendRef::new("app", 1)];
        Rule { filters: vec![filter], backends, ..Rule::default() }
    };
    let route = |host: &str, rule| Route {
        listeners: vec!["http".into()],
        hostnames: vec![host.into()],
        rules: vec![rule],
        ..Route::default()
    };
    snapshot.routes.insert("a".into(), route("a.example", auth("grpc", ExternalAuthKind::Grpc, 100)));
    snapshot.routes.insert("b".into(), route("b.example", auth("http", ExternalAuthKind::Http("/ask".into()), 2)));
    snapshot
        .routes
        .insert("c".into(), route("c.example", auth("http", ExternalAuthKind::Http("/ask".into()), 1 << 30)));
    let mut controlled = Controlled::start();
    let errors = controlled.send(&snapshot).errors;
    assert_eq!(errors.keys().collect::<Vec<_>>(), ["route/c"], "{errors:?}");
    controlled.server.address = ([127, 0, 0, 1], port).into();
    let ask = |host: &str, fields: &str, content: &str| {
        ask(&controlled.server, &request("POST /", fields, content).replace("a.example", host))
    };
    let answer = ask("a.example", "X-User: anna\r\n", "content");
    assert!(answer.contains("x-user: ANNA") && answer.contains("content=7\n"), "{answer}");
    assert!(ask("a.example", "", "content").starts_with("HTTP/1.1 403 "));
    assert!(
        ask("b.example", "X-User: anna\r\nX-Other: 1\r\nAuthorization: Basic x\r\n", "content").contains("content=7\n")
    );
    let heads = over_http.heads();
    let fields = ["x-user", "x-other", "authorization", "content-length", "host"].map(|name| field(&heads[0], name));
    assert_eq!(fields, ["anna", "", "Basic x", "2", "b.example"], "{heads:?}");
    // More content than a server can get: no request passes without its decision.
    let answer = ask("c.example", "X-User: anna\r\n", "content");
    assert!(answer.starts_with("HTTP/1.1 500 ") || answer.starts_with("HTTP/1.1 404 "), "{answer}");
}
