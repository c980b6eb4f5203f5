//! Annotations of ingress-nginx, by their effect on requests: controller and server as programs, beside an API server that
//! keeps objects in memory.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustls::ClientConfig;
use serde_json::{Value, json};
use wire::h2::OutgoingRequest;

use crate::gateway::Controller;
use crate::gateway::api_server::ApiServer;
use crate::support::controller::{application, write_config};
use crate::support::h2::H2Client;
use crate::support::h2_upstream::{END_HEADERS, END_STREAM, H2Upstream, block, kind};
use crate::support::port::free_port;
use crate::support::skips::skip;
use crate::support::tls::{self, TestCa};
use crate::support::waiting::{eventually, stays};
use crate::support::{PATIENCE, TestServer, read_all, read_until};

const PREFIX: &str = "nginx.ingress.kubernetes.io/";

/// Pool of one address.
const POOL: &str = "127.101.37.2/32";
const ADDRESS: &str = "127.101.37.2";

/// Port of listeners with TLS, which Ingresses cannot change.
const TLS_PORT: u16 = 443;

/// More than sockets between upstream and client hold.
const LONG_BYTES: usize = 20 << 20;

/// A cluster with Ingresses, a controller and a server.
struct Ingresses {
    api: ApiServer,
    port: u16,
    count: usize,
}

/// Ingresses that are served.
struct Served {
    port: u16,
    _controller: Controller,
    _server: TestServer,
    _directory: tempfile::TempDir,
}

impl Ingresses {
    fn new() -> Self {
        let (api, port) = (ApiServer::start(), free_port());
        let class =
            json!({"metadata": {"name": "tailcoat"}, "spec": {"controllerName": "tailcoat.dev/gateway-controller"}});
        api.put("apis/gateway.networking.k8s.io/v1/gatewayclasses", class);
        let of_ingress =
            json!({"metadata": {"name": "tailcoat"}, "spec": {"controller": "tailcoat.dev/ingress-controller"}});
        api.put("apis/networking.k8s.io/v1/ingressclasses", of_ingress);
        let gateway = json!({
            "metadata": {"name": "ingress", "namespace": "default"},
            "spec": {"gatewayClassName": "tailcoat", "listeners": [{"name": "http", "port": port, "protocol": "HTTP"}]},
        });
        api.put("apis/gateway.networking.k8s.io/v1/namespaces/default/gateways", gateway);
        Self { api, port, count: 0 }
    }

    /// Adds a service with these endpoints.
    fn service(self, name: &str, endpoints: &[SocketAddr]) -> Self {
        let service = json!({
            "metadata": {"name": name, "namespace": "shop"}, "spec": {"ports": [{"name": "http", "port": 80}]},
        });
        self.api.put("api/v1/namespaces/shop/services", service);
        for (number, endpoint) in endpoints.iter().enumerate() {
            let slice = json!({
                "metadata": {
                    "name": format!("{name}-{number}"), "namespace": "shop",
                    "labels": {"kubernetes.io/service-name": name},
                },
                "addressType": "IPv4", "endpoints": [{"addresses": [endpoint.ip()]}],
                "ports": [{"name": "http", "port": endpoint.port()}],
            });
            self.api.put("apis/discovery.k8s.io/v1/namespaces/shop/endpointslices", slice);
        }
        self
    }

    /// Adds a secret.
    fn secret(self, name: &str, data: &[(&str, &str)]) -> Self {
        let data: serde_json::Map<String, Value> =
            data.iter().map(|(key, text)| ((*key).to_owned(), json!(text))).collect();
        let secret = json!({"metadata": {"name": name, "namespace": "shop"}, "stringData": data});
        self.api.put("api/v1/namespaces/shop/secrets", secret);
        self
    }

    /// Adds an Ingress of a host and path, which lead to a service.
    fn ingress(self, host: &str, path: &str, service: &str, annotations: &[(&str, &str)]) -> Self {
        self.add(host, path, service, None, annotations)
    }

    /// Adds an Ingress of a host that leads to the service `main`, with a certificate from a secret.
    fn ingress_with_tls(self, host: &str, secret: &str, annotations: &[(&str, &str)]) -> Self {
        self.add(host, "/", "main", Some(secret), annotations)
    }

    fn add(
        mut self,
        host: &str,
        path: &str,
        service: &str,
        secret: Option<&str>,
        annotations: &[(&str, &str)],
    ) -> Self {
        self.count += 1;
        let tls: Vec<Value> = secret.iter().map(|secret| json!({"hosts": [host], "secretName": secret})).collect();
        let annotations: serde_json::Map<String, Value> =
            annotations.iter().map(|(name, value)| (format!("{PREFIX}{name}"), json!(value))).collect();
        let backend = json!({"service": {"name": service, "port": {"name": "http"}}});
        let ingress = json!({
            "metadata": {"name": format!("i{}", self.count), "namespace": "shop", "annotations": annotations},
            "spec": {"ingressClassName": "tailcoat", "tls": tls, "rules": [{
                "host": host, "http": {"paths": [{"path": path, "pathType": "Prefix", "backend": backend}]},
            }]},
        });
        self.api.put("apis/networking.k8s.io/v1/namespaces/shop/ingresses", ingress);
        self
    }

    /// Starts controller and server, and waits until a host without annotations is served.
    fn serve(self) -> Served {
        let directory = tempfile::tempdir().unwrap();
        let at: &Path = directory.path();
        std::fs::write(at.join("kubeconfig"), self.api.kubeconfig()).unwrap();
        let arguments = ["--listen", "unix:plane.sock", "--ingress-gateway", "default/ingress"];
        let controller = Controller::run(at, POOL, &arguments);
        let server = TestServer::run_from(&write_config(&directory, ""));
        let port = self.port;
        let this = self.ingress("ready.test", "/", "main", &[]);
        let served = Served { port, _controller: controller, _server: server, _directory: directory };
        eventually("Ingresses are served", || served.ask("GET /", "ready.test", "").starts_with("HTTP/1.1 200"));
        drop(this);
        served
    }
}

impl Served {
    /// Response to a request; empty while there is no listener.
    fn ask(&self, line: &str, host: &str, fields: &str) -> String {
        let Ok(mut stream) = TcpStream::connect((ADDRESS, self.port)) else { return String::new() };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!("{line} HTTP/1.1\r\nHost: {host}\r\n{fields}Connection: close\r\n\r\n");
        let _ = stream.write_all(head.as_bytes());
        read_all(&mut stream)
    }

    /// Opens a connection.
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect((ADDRESS, self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Response to a request over TLS.
    fn ask_over_tls(&self, client: &Arc<ClientConfig>, line: &str, host: &str) -> String {
        let stream = TcpStream::connect((ADDRESS, TLS_PORT)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut stream = tls::handshake(stream, client, host).unwrap();
        tls::ask(&mut stream, &format!("{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).unwrap()
    }

    /// Status of a gRPC request over HTTP/2, and its trailer `grpc-status`.
    fn call(&self, host: &str) -> (u16, String) {
        let mut client = H2Client::connect_to(self.connect());
        let request = OutgoingRequest {
            method: b"POST",
            scheme: Some(b"http"),
            authority: Some(host.as_bytes()),
            path: Some(b"/shop.Orders/List"),
            protocol: None,
        };
        let stream = client.ask_as(&request, &[("content-type", "application/grpc"), ("te", "trailers")], false);
        client.send(stream, &[0; 5], true);
        let response = client.finish(stream);
        let status = response.trailers.get("grpc-status").map(|value| String::from_utf8_lossy(value).into_owned());
        (response.status(), status.unwrap_or_default())
    }

    /// Asserts that the response begins with this status and has these texts, whatever their case.
    #[track_caller]
    fn check(&self, line: &str, host: &str, fields: &str, status: u16, texts: &[&str]) {
        let response = self.ask(line, host, fields);
        assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{host}: {response}");
        let lower = response.to_ascii_lowercase();
        for text in texts {
            assert!(lower.contains(&text.to_ascii_lowercase()), "{host} lacks {text:?}: {response}");
        }
    }
}

/// Upstream that responds to each request by its head, on connections that it closes.
fn responder(respond: impl Fn(&str) -> String + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut head = String::new();
            let mut reader = BufReader::new(&stream);
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|count| count > 0) {}
            let _ = stream.write_all(respond(&head).as_bytes());
        }
    });
    address
}

fn response(status: &str, fields: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{fields}Content-Length: 0\r\nConnection: close\r\n\r\n")
}

#[test]
fn ingresses_with_annotations_of_paths_hosts_and_redirects() {
    let regex: &[(&str, &str)] = &[("use-regex", "true"), ("rewrite-target", "/$2"), ("x-forwarded-prefix", "/api")];
    let served = Ingresses::new()
        .service("main", &[application("main")])
        .ingress("rewrite.test", "/api(/|$)(.*)", "main", regex)
        .ingress("full.test", "/old", "main", &[("rewrite-target", "/new")])
        .ingress("root.test", "/", "main", &[("app-root", "/start")])
        .ingress("gone.test", "/", "main", &[("permanent-redirect", "https://new.test/now?a=b")])
        .ingress("code.test", "/", "main", &[("permanent-redirect", "/now"), ("permanent-redirect-code", "308")])
        .ingress("temporal.test", "/", "main", &[("temporal-redirect", "https://new.test/soon")])
        .ingress("seven.test", "/", "main", &[("temporal-redirect", "/soon"), ("temporal-redirect-code", "307")])
        .ingress("forced.test", "/", "main", &[("force-ssl-redirect", "true")])
        .ingress("alias.test", "/", "main", &[("server-alias", "other.test, third.test")])
        .ingress("bare.test", "/", "main", &[("from-to-www-redirect", "true")])
        .ingress("vhost.test", "/", "main", &[("upstream-vhost", "inner.test")])
        .ingress("snippet.test", "/", "main", &[("configuration-snippet", "return 418;")])
        .serve();
    for (path, host, fields, status, texts) in [
        ("/api/a/b?c=d", "rewrite.test", "", 200, &["get /a/b?c=d http", "x-forwarded-prefix: /api"][..]),
        ("/API", "rewrite.test", "", 200, &["get / http"]),
        ("/old/x", "full.test", "", 200, &["get /new http"]),
        ("/", "root.test", "", 302, &["location: http://root.test", "/start"]),
        ("/a", "root.test", "", 200, &["get /a http"]),
        ("/a?c=d", "gone.test", "", 301, &["location: https://new.test/now?a=b\r\n"]),
        ("/a", "code.test", "", 308, &["/now\r\n"]),
        ("/a", "temporal.test", "", 302, &["location: https://new.test/soon\r\n"]),
        ("/a", "seven.test", "", 307, &["/soon\r\n"]),
        ("/a?b", "forced.test", "", 308, &["location: https://forced.test/a?b\r\n"]),
        ("/a", "forced.test", "X-Forwarded-Proto: https\r\n", 200, &["name=main"]),
        ("/", "third.test", "", 200, &["name=main", "host: third.test"]),
        ("/a", "www.bare.test", "", 308, &["://bare.test", "/a\r\n"]),
        ("/", "bare.test", "", 200, &["name=main"]),
        ("/", "vhost.test", "", 200, &["host: inner.test"]),
        ("/", "snippet.test", "", 200, &["name=main"]),
        ("/", "unknown.test", "", 404, &[]),
    ] {
        served.check(&format!("GET {path}"), host, fields, status, texts);
    }
}

#[test]
fn ingresses_with_annotations_that_protect() {
    let authorization = responder(|head| match head.to_ascii_lowercase().contains("x-pass: good") {
        true => response("200 OK", "X-User: ann\r\n"),
        false => response("401 Unauthorized", ""),
    });
    let auth: &[(&str, &str)] = &[("auth-url", "http://auth.shop.svc/check"), ("auth-response-headers", "X-User")];
    let signin = [auth, &[("auth-signin", "https://login.test/start?x=$y")]].concat();
    let served = Ingresses::new()
        .service("main", &[application("main")])
        .service("auth", &[authorization])
        .ingress("white.test", "/", "main", &[("whitelist-source-range", "192.0.2.0/24")])
        .ingress("listed.test", "/", "main", &[("allowlist-source-range", "127.0.0.0/8,192.0.2.0/24")])
        .ingress("deny.test", "/", "main", &[("denylist-source-range", "127.0.0.0/8")])
        .ingress("small.test", "/", "main", &[("proxy-body-size", "1k")])
        .ingress("rate.test", "/", "main", &[("limit-rpm", "1"), ("limit-burst-multiplier", "1")])
        .ingress("auth.test", "/", "main", auth)
        .ingress("signin.test", "/", "main", &signin)
        .ingress("lost.test", "/", "main", &[("auth-url", "http://none.shop.svc/check")])
        .ingress("basic.test", "/", "main", &[("auth-type", "basic"), ("auth-secret", "users")])
        .serve();
    for (host, fields, status, texts) in [
        ("white.test", "", 403, &[][..]),
        ("listed.test", "", 200, &["name=main"]),
        ("deny.test", "", 403, &[]),
        ("auth.test", "", 401, &[]),
        ("auth.test", "X-Pass: good\r\nX-User: eve\r\n", 200, &["x-user: ann"]),
        ("signin.test", "", 302, &["location: https://login.test/start?rd=http://signin.test/%3F"]),
        ("signin.test", "X-Pass: good\r\n", 200, &["name=main"]),
        ("lost.test", "X-Pass: good\r\n", 500, &[]),
        ("basic.test", "", 500, &[]),
    ] {
        served.check("GET /", host, fields, status, texts);
    }
    assert!(!served.ask("GET /", "auth.test", "X-Pass: good\r\nX-User: eve\r\n").contains("eve"));
    served.check("POST /", "small.test", "Content-Length: 2000\r\n", 413, &[]);
    let statuses: Vec<String> = (0..4).map(|_| served.ask("GET /", "rate.test", "")[9..12].to_owned()).collect();
    assert_eq!((statuses[0].as_str(), statuses[3].as_str()), ("200", "429"), "{statuses:?}");
}

#[test]
fn ingresses_with_canaries() {
    let canary = |more: &[(&'static str, &'static str)]| [&[("canary", "true")], more].concat();
    let served = Ingresses::new()
        .service("main", &[application("main")])
        .service("new", &[application("canary")])
        .ingress("header.test", "/", "main", &[])
        .ingress("header.test", "/", "new", &canary(&[("canary-by-header", "X-Canary")]))
        .ingress("value.test", "/", "main", &[])
        .ingress("value.test", "/", "new", &canary(&[("canary-by-header", "X-To"), ("canary-by-header-value", "us")]))
        .ingress("pattern.test", "/", "main", &[])
        .ingress(
            "pattern.test",
            "/",
            "new",
            &canary(&[("canary-by-header", "X-To"), ("canary-by-header-pattern", "eu-.*")]),
        )
        .ingress("cookie.test", "/", "main", &[])
        .ingress("cookie.test", "/", "new", &canary(&[("canary-by-cookie", "early")]))
        .ingress("weight.test", "/", "main", &[])
        .ingress("weight.test", "/", "new", &canary(&[("canary-weight", "20"), ("canary-weight-total", "20")]))
        .serve();
    for (host, fields, name) in [
        ("header.test", "", "main"),
        ("header.test", "X-Canary: always\r\n", "canary"),
        ("header.test", "X-Canary: never\r\n", "main"),
        ("value.test", "X-To: us\r\n", "canary"),
        ("value.test", "X-To: eu\r\n", "main"),
        ("pattern.test", "X-To: eu-1\r\n", "canary"),
        ("pattern.test", "X-To: us-1\r\n", "main"),
        ("cookie.test", "Cookie: a=b; early=always\r\n", "canary"),
        ("cookie.test", "Cookie: early=never\r\n", "main"),
        ("weight.test", "", "canary"),
    ] {
        served.check("GET /", host, fields, 200, &[&format!("name={name}")]);
    }
}

#[test]
fn ingresses_with_annotations_of_cors() {
    let cors = [
        ("enable-cors", "true"),
        ("cors-allow-origin", "https://a.test, https://*.b.test"),
        ("cors-allow-methods", "GET, PUT"),
        ("cors-allow-headers", "X-One"),
        ("cors-expose-headers", "X-Two"),
        ("cors-allow-credentials", "false"),
        ("cors-max-age", "60"),
    ];
    let served = Ingresses::new()
        .service("main", &[application("main")])
        .ingress("cors.test", "/", "main", &cors)
        .ingress("open.test", "/", "main", &[("enable-cors", "true")])
        .serve();
    let preflight = "Origin: https://a.test\r\nAccess-Control-Request-Method: PUT\r\n";
    let allowed = ["access-control-allow-origin: https://a.test\r\n", "access-control-max-age: 60\r\n", "put", "x-one"];
    let response = served.ask("OPTIONS /", "cors.test", preflight).to_ascii_lowercase();
    assert!(allowed.iter().all(|text| response.contains(text)), "{response}");
    assert!(!response.contains("credentials") && !response.contains("name=main"), "{response}");
    let exposed = ["access-control-expose-headers: x-two\r\n", "name=main"];
    served.check("GET /", "cors.test", "Origin: https://x.b.test\r\n", 200, &exposed);
    let other = served.ask("GET /", "cors.test", "Origin: https://c.test\r\n").to_ascii_lowercase();
    assert!(!other.contains("access-control-allow-origin"), "{other}");
    let open = ["access-control-allow-credentials: true\r\n", "access-control-max-age: 1728000\r\n", "patch"];
    served.check("OPTIONS /", "open.test", preflight, 204, &open);
}

#[test]
fn ingresses_with_annotations_of_backends() {
    let cookies = responder(|head| match head.split(' ').nth(1) {
        Some("/moved") => response("302 Found", "Location: http://inner.test/x/y\r\n"),
        _ => response("200 OK", "Set-Cookie: a=b; Domain=inner.test; Path=/inner\r\n"),
    });
    let tries = AtomicUsize::new(0);
    let flaky = responder(move |_| match tries.fetch_add(1, Ordering::Relaxed) % 2 {
        0 => response("503 Service Unavailable", ""),
        _ => response("200 OK", ""),
    });
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let sticky = [
        ("affinity", "cookie"),
        ("session-cookie-name", "stay"),
        ("session-cookie-path", "/s"),
        ("session-cookie-max-age", "60"),
    ];
    let rewritten = [
        ("proxy-cookie-domain", "inner.test outer.test"),
        ("proxy-cookie-path", "/inner /outer"),
        ("proxy-redirect-from", "http://inner.test/x/"),
        ("proxy-redirect-to", "https://outer.test/"),
    ];
    let served = Ingresses::new()
        .service("main", &[application("one"), application("two"), application("three")])
        .service("cookies", &[cookies])
        .service("flaky", &[flaky])
        .service("silent", &[silent.local_addr().unwrap()])
        .ingress("sticky.test", "/", "main", &sticky)
        .ingress("hash.test", "/", "main", &[("upstream-hash-by", "$remote_addr")])
        .ingress("rewritten.test", "/", "cookies", &rewritten)
        .ingress(
            "flaky.test",
            "/",
            "flaky",
            &[("proxy-next-upstream", "error http_503"), ("proxy-next-upstream-tries", "2")],
        )
        .ingress("off.test", "/", "flaky", &[("proxy-next-upstream", "off")])
        .ingress("slow.test", "/", "silent", &[("proxy-read-timeout", "1"), ("proxy-next-upstream", "off")])
        .ingress("fcgi.test", "/", "main", &[("backend-protocol", "FCGI")])
        .serve();
    let first = served.ask("GET /", "sticky.test", "");
    let cookie = first.lines().find_map(|line| line.strip_prefix("Set-Cookie: ")).unwrap();
    assert!(cookie.contains("; Path=/s") && cookie.contains("; Max-Age=60"), "{cookie}");
    let name = |response: &str| response.lines().find(|line| line.starts_with("name=")).unwrap().to_owned();
    let value = cookie.split(';').next().unwrap();
    assert!(value.starts_with("stay="), "{value}");
    for _ in 0..12 {
        let again = served.ask("GET /", "sticky.test", &format!("Cookie: {value}\r\n"));
        assert_eq!(name(&again), name(&first));
    }
    let of_client = name(&served.ask("GET /", "hash.test", ""));
    for _ in 0..12 {
        assert_eq!(name(&served.ask("GET /", "hash.test", "")), of_client);
    }
    served.check("GET /", "rewritten.test", "", 200, &["domain=outer.test", "path=/outer"]);
    served.check("GET /moved", "rewritten.test", "", 302, &["location: https://outer.test/y\r\n"]);
    served.check("GET /", "flaky.test", "", 200, &[]);
    served.check("GET /", "off.test", "", 503, &[]);
    served.check("GET /", "slow.test", "", 504, &[]);
    served.check("GET /", "fcgi.test", "", 500, &[]);
}

#[test]
fn ingresses_with_tls_redirect_as_annotations_say() {
    if let Err(error) = TcpListener::bind((ADDRESS, TLS_PORT)) {
        return skip(&format!("cannot bind port {TLS_PORT}: {error}"));
    }
    let (authority, hosts) = (TestCa::new(), ["secure.test", "both.test", "forced.test"]);
    let pair = authority.sign(&hosts);
    let served = Ingresses::new()
        .service("main", &[application("main")])
        .secret("certificate", &[("tls.crt", &pair.certificate), ("tls.key", &pair.key)])
        .ingress_with_tls("secure.test", "certificate", &[])
        .ingress_with_tls("both.test", "certificate", &[("ssl-redirect", "false")])
        .ingress_with_tls("forced.test", "certificate", &[("ssl-redirect", "false"), ("force-ssl-redirect", "true")])
        .serve();
    for (host, fields, status, text) in [
        ("secure.test", "", 308, "location: https://secure.test/a?b\r\n"),
        // A client cannot say so itself.
        ("secure.test", "X-Forwarded-Proto: https\r\n", 308, "location: https://secure.test/a?b\r\n"),
        ("both.test", "", 200, "x-forwarded-proto: http\r\n"),
        ("forced.test", "", 308, "location: https://forced.test/a?b\r\n"),
    ] {
        served.check("GET /a?b", host, fields, status, &[text]);
    }
    let client = Arc::new(authority.client(None));
    for host in hosts {
        let response = served.ask_over_tls(&client, "GET /a?b", host).to_ascii_lowercase();
        let texts = ["http/1.1 200", "get /a?b http", "x-forwarded-proto: https\r\n"];
        assert!(texts.iter().all(|text| response.contains(text)), "{host}: {response}");
    }
}

#[test]
fn ingresses_with_tls_to_their_backends() {
    let (ours, other, directory) = (TestCa::new(), TestCa::new(), tempfile::tempdir().unwrap());
    ours.sign(&["app.test", "tls.shop.svc"]).write(directory.path(), "app");
    std::fs::write(directory.path().join("ca.pem"), ours.pem()).unwrap();
    let path = directory.path().display();
    let upstream = |name: &str, options: &str| {
        TestServer::run(&format!(
            "site \"app.test\" {{\n listen \"127.0.0.1:0\" tls=on\n default\n respond \"*\" 200 \"name={name}\"\n \
             certificate \"{path}/app.pem\" key=\"{path}/app.key\"\n{options}\n}}\nserver {{ workers 1 }}\n"
        ))
    };
    let open = upstream("open", "");
    let mutual = upstream("mutual", &format!("client-certificate \"required\" ca-file=\"{path}/ca.pem\""));
    let (client, stranger) = (ours.sign(&["gateway.test"]), other.sign(&["gateway.test"]));
    let (trusted, untrusted) = (ours.pem(), other.pem());
    let https = |more: &[(&'static str, &'static str)]| [&[("backend-protocol", "HTTPS")], more].concat();
    let verified = |secret: &'static str, more: &[(&'static str, &'static str)]| {
        https(&[&[("proxy-ssl-secret", secret), ("proxy-ssl-verify", "on")], more].concat())
    };
    let served = Ingresses::new()
        .service("main", &[application("main")])
        .service("tls", &[open.address])
        .service("mutual", &[mutual.address])
        .secret("ca", &[("ca.crt", &trusted)])
        .secret("other", &[("ca.crt", &untrusted)])
        .secret("client", &[("ca.crt", &trusted), ("tls.crt", &client.certificate), ("tls.key", &client.key)])
        .secret("stranger", &[("tls.crt", &stranger.certificate), ("tls.key", &stranger.key)])
        .ingress("any.test", "/", "tls", &https(&[]))
        .ingress("old.test", "/", "tls", &[("secure-backends", "true")])
        .ingress("plain.test", "/", "tls", &[])
        .ingress("verified.test", "/", "tls", &verified("shop/ca", &[("proxy-ssl-name", "app.test")]))
        .ingress("service.test", "/", "tls", &verified("ca", &[]))
        .ingress("name.test", "/", "tls", &verified("ca", &[("proxy-ssl-name", "other.test")]))
        .ingress("untrusted.test", "/", "tls", &verified("other", &[("proxy-ssl-name", "app.test")]))
        .ingress("missing.test", "/", "tls", &verified("none", &[]))
        .ingress("foreign.test", "/", "tls", &verified("default/ca", &[]))
        .ingress("without-ca.test", "/", "tls", &verified("stranger", &[]))
        .ingress("mutual.test", "/", "mutual", &https(&[("proxy-ssl-secret", "client")]))
        .ingress("both.test", "/", "mutual", &verified("client", &[("proxy-ssl-name", "app.test")]))
        .ingress("stranger.test", "/", "mutual", &https(&[("proxy-ssl-secret", "stranger")]))
        .ingress("nameless.test", "/", "mutual", &https(&[]))
        .serve();
    for (host, status, text) in [
        ("any.test", 200, "name=open"),
        ("old.test", 200, "name=open"),
        // The listener for TLS rejects a request without it.
        ("plain.test", 400, ""),
        ("verified.test", 200, "name=open"),
        ("service.test", 200, "name=open"),
        ("name.test", 502, ""),
        ("untrusted.test", 502, ""),
        ("missing.test", 500, ""),
        ("foreign.test", 500, ""),
        ("without-ca.test", 500, ""),
        ("mutual.test", 200, "name=mutual"),
        ("both.test", 200, "name=mutual"),
        ("stranger.test", 502, ""),
        ("nameless.test", 502, ""),
    ] {
        served.check("GET /", host, "", status, &[text]);
    }
}

#[test]
fn ingresses_with_backends_of_grpc() {
    let plain = H2Upstream::start(|_, peer| {
        peer.greet(&[]);
        while let Some(stream) = peer.await_request() {
            peer.head(stream, 200, false);
            peer.data(stream, &[0; 5], false);
            let trailers = block(&[("grpc-status", "7")]);
            peer.write(kind::HEADERS, END_HEADERS | END_STREAM, stream, &trailers);
        }
    });
    let (authority, directory) = (TestCa::new(), tempfile::tempdir().unwrap());
    authority.sign(&["app.test"]).write(directory.path(), "app");
    let (path, address) = (directory.path().display(), plain.address);
    let encrypted = TestServer::run(&format!(
        "upstream \"app\" {{ server \"h2c://{address}\" }}\nserver {{ workers 1; http-versions \"2\" }}\n\
         site \"app.test\" {{\n listen \"127.0.0.1:0\" tls=on\n default\n forward \"app\"\n \
         certificate \"{path}/app.pem\" key=\"{path}/app.key\"\n}}\n"
    ));
    let served = Ingresses::new()
        .service("main", &[application("main")])
        .service("plain", &[address])
        .service("tls", &[encrypted.address])
        .ingress("grpc.test", "/", "plain", &[("backend-protocol", "GRPC")])
        .ingress("old.test", "/", "plain", &[("grpc-backend", "true")])
        .ingress("grpcs.test", "/", "tls", &[("backend-protocol", "GRPCS")])
        .ingress("http.test", "/", "plain", &[])
        .serve();
    for host in ["grpc.test", "old.test", "grpcs.test"] {
        assert_eq!(served.call(host), (200, "7".to_owned()), "{host}");
    }
    // A server of HTTP/2 alone does not understand HTTP/1.1.
    assert_ne!(served.call("http.test"), (200, "7".to_owned()));
}

/// Upstream on which a test accepts connections itself, each after the head of its request has arrived.
struct AcceptedByTest(TcpListener);

impl AcceptedByTest {
    fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    /// Next connection, and what of its request came with the head.
    fn accept(&self) -> (TcpStream, String) {
        let (mut stream, _) = self.0.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = read_until(&mut stream, "\r\n\r\n");
        (stream, head)
    }
}

#[test]
fn ingresses_with_annotations_of_limits() {
    let held = AcceptedByTest::new();
    let served = Ingresses::new()
        .service("main", &[application("main")])
        .service("held", &[held.address()])
        .ingress("one.test", "/", "held", &[("limit-connections", "1")])
        .ingress("rps.test", "/", "main", &[("limit-rps", "1"), ("limit-burst-multiplier", "1")])
        .ingress("rpm.test", "/", "main", &[("limit-rpm", "2")])
        .serve();
    let mut first = served.connect();
    first.write_all(b"GET / HTTP/1.1\r\nHost: one.test\r\nConnection: close\r\n\r\n").unwrap();
    let (mut upstream, _) = held.accept();
    served.check("GET /", "one.test", "", 429, &[]);
    upstream.write_all(response("200 OK", "").as_bytes()).unwrap();
    assert!(read_all(&mut first).starts_with("HTTP/1.1 200"));
    thread::spawn(move || {
        loop {
            let (mut upstream, _) = held.accept();
            let _ = upstream.write_all(response("200 OK", "").as_bytes());
        }
    });
    eventually("there is a place again", || served.ask("GET /", "one.test", "").starts_with("HTTP/1.1 200"));
    served.check("GET /", "rps.test", "", 200, &[]);
    eventually("a second has too many requests", || served.ask("GET /", "rps.test", "").starts_with("HTTP/1.1 429"));
    eventually("the next has room again", || served.ask("GET /", "rps.test", "").starts_with("HTTP/1.1 200"));
    // 2 a minute with a burst of 5 times as many.
    let statuses: Vec<String> = (0..20).map(|_| served.ask("GET /", "rpm.test", "")[9..12].to_owned()).collect();
    let count = statuses.iter().take_while(|status| *status == "200").count();
    assert!((10..=13).contains(&count) && statuses.contains(&"429".to_owned()), "{statuses:?}");
}

#[test]
fn ingresses_with_annotations_of_buffers() {
    let heads = responder(|_| response("200 OK", &format!("X-Long: {}\r\n", "x".repeat(6_000))));
    let (long, uploads) = (AcceptedByTest::new(), AcceptedByTest::new());
    let served = Ingresses::new()
        .service("main", &[application("main")])
        .service("heads", &[heads])
        .service("long", &[long.address()])
        .service("uploads", &[uploads.address()])
        .ingress("small.test", "/", "heads", &[("proxy-buffer-size", "4k")])
        .ingress("large.test", "/", "heads", &[("proxy-buffer-size", "8k")])
        .ingress("huge.test", "/", "heads", &[("proxy-buffer-size", "64m")])
        .ingress("ahead.test", "/", "long", &[("proxy-buffering", "on")])
        .ingress("short.test", "/", "long", &[("proxy-buffering", "on"), ("proxy-max-temp-file-size", "1m")])
        .ingress("direct.test", "/", "long", &[("proxy-buffering", "off")])
        .ingress("whole.test", "/", "uploads", &[("proxy-request-buffering", "on")])
        .ingress("streamed.test", "/", "uploads", &[("proxy-request-buffering", "off")])
        .serve();
    for (host, status) in [("small.test", 502), ("large.test", 200), ("huge.test", 200)] {
        served.check("GET /", host, "", status, &[]);
    }
    let (sender, sent) = mpsc::channel();
    thread::spawn(move || {
        loop {
            let (mut upstream, _) = long.accept();
            let sender = sender.clone();
            thread::spawn(move || {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LONG_BYTES}\r\n\r\n");
                let content = vec![b'x'; LONG_BYTES];
                let result = upstream.write_all(head.as_bytes()).and_then(|()| upstream.write_all(&content));
                let _ = sender.send(result.is_ok());
            });
        }
    });
    for (host, is_ahead) in [("ahead.test", true), ("direct.test", false), ("short.test", false)] {
        let mut client = served.connect();
        write!(client, "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        read_until(&mut client, "\r\n\r\n");
        if is_ahead {
            assert_eq!(sent.recv_timeout(PATIENCE), Ok(true), "{host}: the upstream can send all");
        } else {
            let time = Duration::from_millis(300);
            assert!(sent.recv_timeout(time).is_err(), "{host}: the upstream waits for the client");
        }
        assert!(read_all(&mut client).len() > LONG_BYTES - 65_536, "{host}");
        if !is_ahead {
            assert_eq!(sent.recv_timeout(PATIENCE), Ok(true), "{host}");
        }
    }
    for (host, is_whole) in [("streamed.test", false), ("whole.test", true)] {
        let mut client = served.connect();
        write!(client, "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 10\r\nConnection: close\r\n\r\n12345")
            .unwrap();
        if is_whole {
            uploads.0.set_nonblocking(true).unwrap();
            let has_none = || uploads.0.accept().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
            stays("the upstream has no request", Duration::from_millis(300), has_none);
            uploads.0.set_nonblocking(false).unwrap();
            client.write_all(b"67890").unwrap();
        }
        let (mut upstream, head) = uploads.accept();
        if !is_whole {
            client.write_all(b"67890").unwrap();
        }
        if !head.contains("1234567890") {
            read_until(&mut upstream, "67890");
        }
        upstream.write_all(response("200 OK", "").as_bytes()).unwrap();
        assert!(read_all(&mut client).starts_with("HTTP/1.1 200"), "{host}");
    }
}
