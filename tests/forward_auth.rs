//! Forward authentication: a server decides on each request.

use crate::support::function_server::{FunctionServer, field, response};
use crate::support::real_server::{RealServer, Recipe};
use crate::support::upstream::ScriptStep::{Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::versions::AnyVersion;
use crate::support::{TestServer, ask};

/// Authentication server like Authelia: the cookie `session=NAME` is the user's. It redirects browsers to a page, and
/// rejects scripts.
fn portal() -> FunctionServer {
    FunctionServer::start(|head| {
        let uri = field(head, "x-forwarded-uri");
        match field(head, "cookie").split_once("session=") {
            Some((_, "mallory")) => response("403 Forbidden", "Content-Type: text/plain\r\n", "no entry for mallory"),
            Some((_, user)) => response(
                "200 OK",
                &format!(
                    "Remote-User: {user}\r\nRemote-Groups: staff\r\nRemote-Groups: {user}s\r\nX-Other: secret\r\n\
                     Set-Cookie: seen=1\r\n"
                ),
                "the content of this response goes nowhere",
            ),
            None if !field(head, "x-requested-with").is_empty() => response(
                "401 Unauthorized",
                "WWW-Authenticate: Basic realm=\"Authelia\"\r\nSet-Cookie: authelia_session=1; HttpOnly\r\n",
                "",
            ),
            None => response(
                "302 Found",
                &format!("Location: https://auth.example.com/?rd={uri}\r\nSet-Cookie: authelia_session=2\r\n"),
                "<a href=\"/\">Found</a>",
            ),
        }
    })
}

/// Upstream that tells the user that it got.
fn application() -> FunctionServer {
    FunctionServer::start(|head| {
        let [user, groups] = ["remote-user", "remote-groups"].map(|name| field(head, name));
        response("200 OK", "", &format!("user={user} groups={groups}"))
    })
}

fn site(portal: &FunctionServer, application: &FunctionServer, further: &str) -> String {
    format!(
        " forward-auth \"/open/*\" off\n forward-auth \"*\" \"http://{}\" uri=\"/api/authz/forward-auth?x=1\" \
         copy-headers=\"Remote-User Remote-Groups\" {further}\n forward \"http://{}\"\n",
        portal.address, application.address
    )
}

fn server(portal: &FunctionServer, application: &FunctionServer, further: &str) -> TestServer {
    let site = site(portal, application, further);
    TestServer::run(&format!("site {{\n listen \"127.0.0.1:0\"\n{site}}}\nserver {{ workers 1 }}\n"))
}

fn get(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: app.example.com:8080\r\n{fields}Connection: close\r\n\r\n")
}

fn content(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, content)| content)
}

#[test]
fn decisions_are_those_of_the_server() {
    let (portal, application) = (portal(), application());
    let server = server(&portal, &application, "");
    let check = |target: &str, fields: &str, status: &str, expect: &[&str]| {
        let answer = ask(&server, &get(target, fields));
        assert_eq!(&answer[9..12], status, "{answer}");
        expect.iter().for_each(|text| assert!(answer.contains(text), "{text}: {answer}"));
        answer
    };
    let answer = check("/a", "Cookie: session=anna\r\n", "200", &["user=anna groups=staff, annas"]);
    assert!(!answer.contains("Set-Cookie"), "{answer}");
    check("/a", "", "302", &["Location: https://auth.example.com/?rd=/a\r\n", "authelia_session=2", "Found</a>"]);
    let challenge = ["WWW-Authenticate: Basic realm=\"Authelia\"\r\n", "authelia_session=1; HttpOnly"];
    let answer = check("/a", "X-Requested-With: x\r\nAccept: text/html\r\n", "401", &challenge);
    // The server sent none, so the site has its own page.
    assert!(answer.contains("text/html") && content(&answer).contains("401"), "{answer}");
    check("/a", "Cookie: session=mallory\r\n", "403", &["no entry for mallory", "Content-Type: text/plain"]);
    assert_eq!(application.heads().len(), 1);
    assert_eq!(portal.heads().len(), 4);
    check("/open/a", "Cookie: session=anna\r\n", "200", &["user= groups="]);
    assert_eq!(portal.heads().len(), 0);
    // Paths that the application may read as another one are guarded as well.
    check("/open/..%2fa", "", "302", &[]);
}

#[test]
fn the_server_gets_the_request_without_content() {
    let (portal, application) = (portal(), application());
    let server = server(&portal, &application, "");
    let request = "POST //a/../b?c=d%20e HTTP/1.1\r\nHost: app.example.com:8080\r\nCookie: session=anna\r\n\
                   Content-Type: text/plain\r\nContent-Length: 3\r\nIf-None-Match: \"a\"\r\nRange: bytes=0-1\r\n\
                   X-Forwarded-Uri: /open\r\nX_Forwarded_Uri: /open\r\nX-Original-URL: http://other/\r\n\
                   X-Forwarded-Method: GET\r\nX-Forwarded-For: 192.0.2.1\r\nX-Real-IP: 192.0.2.1\r\nConnection: close, X-Forwarded-Uri\r\n\r\nabc";
    assert!(ask(&server, request).starts_with("HTTP/1.1 200"));
    let heads = portal.heads();
    let head = heads[0].as_str();
    assert!(head.starts_with("GET /api/authz/forward-auth?x=1 HTTP/1.1\r\n"), "{head}");
    for (name, expect) in [
        ("host", "app.example.com:8080"),
        ("x-forwarded-method", "POST"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-host", "app.example.com:8080"),
        ("x-forwarded-uri", "/b?c=d%20e"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-real-ip", "127.0.0.1"),
        ("x-original-method", "POST"),
        ("x-original-url", "http://app.example.com:8080/b?c=d%20e"),
        ("x-original-uri", "/b?c=d%20e"),
        ("cookie", "session=anna"),
    ] {
        assert_eq!(field(head, name), expect, "{head}");
        let lines = head.lines().filter(|line| line.to_lowercase().replace('_', "-").starts_with(&format!("{name}:")));
        assert_eq!(lines.count(), 1, "{name}: {head}");
    }
    for name in ["content-type", "if-none-match", "range", "transfer-encoding"] {
        assert_eq!(field(head, name), "", "{head}");
    }
    assert!(["", "0"].contains(&field(head, "content-length")), "{head}");
    let heads = application.heads();
    assert_eq!((field(&heads[0], "content-length"), field(&heads[0], "if-none-match")), ("3", "\"a\""));
}

#[test]
fn clients_cannot_send_what_the_server_says() {
    let (portal, application) = (portal(), application());
    let edits = "\n request-header \"X-Seen\" \"{request.header.Remote-User}\"\n request-header \"X-User\" \"{user}\"";
    let server = server(&portal, &application, edits);
    let forged = "Remote-User: root\r\nREMOTE_USER: root\r\nRemote-Groups: admins\r\n";
    for (target, expect) in [("/a", "anna"), ("/open/a", "")] {
        let cookie = "Cookie: session=anna\r\nConnection: close, Remote-User\r\n";
        let answer = ask(&server, &get(target, &format!("{forged}{cookie}")).replace("Connection: close\r\n", ""));
        assert!(content(&answer).starts_with(&format!("user={expect} groups=")), "{answer}");
        let heads = application.heads();
        assert!(!heads[0].contains("root") && !heads[0].contains("admins"), "{heads:?}");
        assert_eq!((field(&heads[0], "x-seen"), field(&heads[0], "x-user")), (expect, expect), "{heads:?}");
    }
    // Nor in trailers.
    let request = "POST /a HTTP/1.1\r\nHost: h\r\nCookie: session=anna\r\nTransfer-Encoding: chunked\r\nTrailer: Remote-User\r\n\
         Connection: close\r\n\r\n0\r\nRemote-User: root\r\n\r\n";
    assert!(content(&ask(&server, request)).starts_with("user=anna"));
}

#[test]
fn cookies_and_names_are_copied_if_configured() {
    let (portal, application) = (portal(), application());
    let server = server(&portal, &application, "pass-cookies=on");
    let answer = ask(&server, &get("/a", "Cookie: session=anna\r\n"));
    assert!(answer.contains("\r\nSet-Cookie: seen=1\r\n"), "{answer}");
    let text = format!(
        "site {{\n listen \"127.0.0.1:0\"\n forward-auth \"*\" \"http://{}\" copy-headers=\"X-Other>X-Token, Remote-User\"\n \
         forward \"http://{}\"\n}}\n",
        portal.address, application.address
    );
    application.heads();
    let server = TestServer::run(&text);
    ask(&server, &get("/a", "Cookie: session=anna\r\nX-Token: forged\r\n"));
    let heads = application.heads();
    assert_eq!((field(&heads[0], "x-token"), field(&heads[0], "x-other")), ("secret", ""));
}

#[test]
fn a_login_page_takes_the_place_of_a_401() {
    let (portal, application) = (portal(), application());
    let server = server(
        &portal,
        &application,
        "login=\"/oauth2/sign_in?rd={scheme}://{host}{path}{query}\" host=\"auth.example\"",
    );
    let answer = ask(&server, &get("/a%20b?c=d", "X-Requested-With: x\r\n"));
    assert!(answer.starts_with("HTTP/1.1 302"), "{answer}");
    assert!(answer.contains("\r\nLocation: /oauth2/sign_in?rd=http://app.example.com/a%20b?c=d\r\n"), "{answer}");
    assert!(answer.contains("\r\nSet-Cookie: authelia_session=1; HttpOnly\r\n"), "{answer}");
    assert_eq!(field(&portal.heads()[0], "host"), "auth.example");
    let answer = ask(&server, &get("/a", "Cookie: session=mallory\r\n"));
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

/// Issue 23: Authelia says to nginx where clients sign in by a 401 with `Location`.
#[test]
fn a_401_with_location_is_a_redirect_if_configured() {
    let portal = FunctionServer::start(|_| {
        response("401 Unauthorized", "Location: https://auth.example.com/?rm=GET\r\nSet-Cookie: a=1\r\n", "page")
    });
    let application = application();
    let status = |further: &str| {
        let answer = ask(&server(&portal, &application, further), &get("/a", ""));
        assert!(answer.contains("\r\nLocation: https://auth.example.com/?rm=GET\r\n"), "{answer}");
        assert!(answer.contains("\r\nSet-Cookie: a=1\r\n"), "{answer}");
        answer["HTTP/1.1 ".len()..].chars().take(3).collect::<String>()
    };
    assert_eq!(status("follow-location=on"), "302");
    assert_eq!(status(""), "401");
}

#[test]
fn all_versions_of_http() {
    let (portal, application) = (portal(), application());
    let Some(server) = AnyVersion::start(&site(&portal, &application, ""), "") else { return };
    let answer = server.ask_all("/a", &["--header", "Cookie: session=anna", "--data", "content"]);
    assert_eq!((answer.status, answer.content.as_slice()), (200, &b"user=anna groups=staff, annas"[..]));
    let answer = server.ask_all("/a", &["--header", "Cookie: session=mallory"]);
    assert_eq!((answer.status, answer.content.as_slice()), (403, &b"no entry for mallory"[..]));
    let answer = server.ask_all("/a", &["--header", "X-Requested-With: x", "--head"]);
    assert_eq!((answer.status, answer.field("www-authenticate")), (401, Some("Basic realm=\"Authelia\"")));
}

#[test]
fn failures_close() {
    let application = application();
    let check = |script: &'static str, timeout: &str, status: &str| {
        let portal = match script {
            "" => None,
            script => Some(ScriptedUpstream::start(vec![vec![Await("\r\n\r\n"), Say(script), Await("never sent")]])),
        };
        // Nothing listens on port 1.
        let address = portal.as_ref().map_or("127.0.0.1:1".to_owned(), |portal| portal.address.to_string());
        let server = TestServer::run(&format!(
            "site {{\n listen \"127.0.0.1:0\"\n forward-auth \"*\" \"http://{address}\" timeout=\"{timeout}\"\n \
             forward \"http://{}\"\n}}\n",
            application.address
        ));
        let answer = ask(&server, &get("/a", ""));
        assert_eq!(&answer[9..12], status, "{script}: {answer}");
        assert!(!answer.contains("details"), "{answer}");
        assert_eq!(application.heads().len(), 0, "{script}");
    };
    check("", "10s", "502");
    check("HTTP/1.1 500 Oops\r\nContent-Length: 7\r\n\r\ndetails", "10s", "502");
    check("HTTP/1.1 304 Not Modified\r\n\r\n", "10s", "502");
    check("SSH-2.0-OpenSSH\r\n\r\n", "10s", "502");
    check("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", "10s", "502");
    check("HTTP/1.1 200 OK\r\n", "50ms", "504");
    // Too long for a client; the decision holds.
    let long = format!("HTTP/1.1 403 Forbidden\r\nContent-Length: 100000\r\n\r\n{}", "details".repeat(15_000));
    check(long.leak(), "10s", "403");
}

#[test]
fn a_server_that_leads_to_a_guarded_path_is_a_loop() {
    let port = crate::support::port::free_port();
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:{port}\"\n forward-auth \"*\" \"http://127.0.0.1:{port}\"\n respond \"/a\" 200 \"a\"\n}}\n"
    ));
    let answer = ask(&server, &get("/a", ""));
    assert!(answer.starts_with("HTTP/1.1 5"), "{answer}");
}

/// Never one user's response to another, and none to a client that the server rejects.
#[test]
fn the_cache_keeps_users_apart() {
    let portal = portal();
    let application = FunctionServer::start(|head| {
        let freshness = if head.starts_with("GET /public") { "public, max-age=600" } else { "max-age=600" };
        let content = format!("for {}", field(head, "remote-user"));
        response("200 OK", &format!("Cache-Control: {freshness}\r\n"), &content)
    });
    let text = site(&portal, &application, "");
    let text =
        format!("site {{\n listen \"127.0.0.1:0\"\n{} {{ cache }}\n}}\nserver {{ workers 1 }}\n", text.trim_end());
    let server = TestServer::run(&text);
    let check = |target: &str, user: &str, asked: usize| {
        let answer = ask(&server, &get(target, &format!("Cookie: session={user}\r\n")));
        assert_eq!(content(&answer), format!("for {user}"), "{answer}");
        assert_eq!(application.heads().len(), asked, "{target} {user}");
    };
    // Without `public`, nothing is stored.
    check("/private", "anna", 1);
    check("/private", "anna", 1);
    check("/private", "berta", 1);
    // With it, each user has a response of their own.
    check("/public", "anna", 1);
    check("/public", "anna", 0);
    check("/public", "berta", 1);
    check("/public", "berta", 0);
    for fields in ["", "Cookie: session=mallory\r\n", "Remote-User: anna\r\n"] {
        let answer = ask(&server, &get("/public", fields));
        assert!(!answer.contains("for anna"), "{answer}");
    }
}

/// A guard also holds for files, and for paths that rewrites and indexes lead to.
#[test]
fn files_are_guarded() {
    let portal = portal();
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("in")).unwrap();
    std::fs::write(directory.path().join("in/index.html"), "inside").unwrap();
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n forward-auth \"/in/*\" \"http://{}\"\n rewrite \"/back\" \"/in/\"\n \
         root \"{}\"\n}}\n",
        portal.address,
        directory.path().display()
    ));
    for target in ["/in/", "/back", "/in", "/IN/", "/in/index.html"] {
        let answer = ask(&server, &get(target, ""));
        assert_eq!(&answer[9..12], "302", "{target}: {answer}");
    }
    assert!(ask(&server, &get("/back", "Cookie: session=anna\r\n")).ends_with("inside"));
}

#[test]
fn documented_fields_of_authentik() {
    let application = FunctionServer::start(|head| {
        let names = ["x-authentik-username", "x-authentik-groups", "x-authentik-email"];
        response("200 OK", "", &names.map(|name| field(head, name)).join(";"))
    });
    // Outpost as its documentation of forward authentication with Caddy describes it.
    let outpost = FunctionServer::start(|head| {
        let target = head.split(' ').nth(1).unwrap_or_default();
        match target.starts_with("/outpost.goauthentik.io/auth/caddy") {
            false => response("200 OK", "", "sign in here"),
            true if field(head, "cookie").contains("authentik_proxy=1") => response(
                "200 OK",
                "X-Authentik-Username: anna\r\nX-Authentik-Groups: staff|admins\r\nX-Authentik-Email: anna@example.com\r\n",
                "",
            ),
            true => {
                let [scheme, host, uri] =
                    ["x-forwarded-proto", "x-forwarded-host", "x-forwarded-uri"].map(|name| field(head, name));
                let location = format!("Location: {scheme}://{host}/outpost.goauthentik.io/start?rd={uri}\r\n");
                response("302 Found", &format!("{location}Set-Cookie: authentik_proxy=1; Path=/\r\n"), "")
            }
        }
    });
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n forward-auth \"/outpost.goauthentik.io/*\" off\n forward-auth \"*\" \
         \"http://{0}\" uri=\"/outpost.goauthentik.io/auth/caddy\" copy-headers=\"X-Authentik-Username \
         X-Authentik-Groups X-Authentik-Email\"\n forward \"http://{0}\" path=\"/outpost.goauthentik.io/*\"\n forward \
         \"http://{1}\"\n}}\n",
        outpost.address, application.address
    ));
    let fetch = |target: &str, fields: &str| ask(&server, &get(target, fields));
    let answer = fetch("/a?b", "X-Authentik-Username: root\r\n");
    assert!(
        answer.contains("Location: http://app.example.com:8080/outpost.goauthentik.io/start?rd=/a?b\r\n"),
        "{answer}"
    );
    assert!(fetch("/outpost.goauthentik.io/start", "").ends_with("sign in here"));
    let answer = fetch("/a?b", "Cookie: authentik_proxy=1\r\n");
    assert!(answer.ends_with("anna;staff|admins;anna@example.com"), "{answer}");
}

/// The table of the manual with a real oauth2-proxy, whose users are in a file: no identity provider is asked.
#[test]
fn oauth2_proxy() {
    let proxy = RealServer::start(&Recipe {
        needs: &["oauth2-proxy"],
        // The password is `secret`.
        files: &[("users", "anna:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n")],
        command: &[
            "oauth2-proxy",
            "--http-address=127.0.0.1:@PORT@",
            "--reverse-proxy",
            "--set-xauthrequest",
            "--provider=github",
            "--client-id=unused",
            "--client-secret=unused",
            "--cookie-secret=0123456789abcdef",
            "--cookie-secure=false",
            "--email-domain=*",
            "--htpasswd-file=@DIR@/users",
            "--upstream=static://202",
        ],
        environment: &[],
    });
    let Some(proxy) = proxy else { return };
    let application =
        FunctionServer::start(|head| response("200 OK", "", &format!("user={}", field(head, "x-auth-request-user"))));
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n forward-auth \"/oauth2/*\" off\n forward-auth \"*\" \"http://{0}\" \
         uri=\"/oauth2/auth\" copy-headers=\"X-Auth-Request-User X-Auth-Request-Email\" \
         login=\"/oauth2/sign_in?rd={{path}}\"\n forward \"http://{0}\" path=\"/oauth2/*\"\n forward \"http://{1}\"\n}}\n",
        proxy.address, application.address
    ));
    let fetch = |fields: &str| ask(&server, &get("/page", fields));
    for fields in
        ["", "X-Auth-Request-User: root\r\n", "Cookie: _oauth2_proxy=forged\r\n", "Authorization: Basic cm9vdDp4\r\n"]
    {
        let answer = fetch(fields);
        assert!(answer.contains("\r\nLocation: /oauth2/sign_in?rd=/page\r\n"), "{fields}: {answer}");
    }
    let page = ask(&server, &get("/oauth2/sign_in?rd=/page", ""));
    assert!(page.contains("name=\"password\""), "{page}");
    let sign_in = |password: &str| {
        let form = format!("username=anna&password={password}&rd=%2Fpage");
        ask(
            &server,
            &format!(
                "POST /oauth2/sign_in HTTP/1.1\r\nHost: app.example.com:8080\r\nConnection: close\r\n\
                 Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
                form.len()
            ),
        )
    };
    let rejected = sign_in("wrong");
    assert!(!rejected.contains("Set-Cookie: _oauth2_proxy="), "{rejected}");
    let signed_in = sign_in("secret");
    let cookie = signed_in.lines().find_map(|line| line.strip_prefix("Set-Cookie: ")?.split(';').next());
    let cookie = format!("Cookie: {}\r\n", cookie.unwrap_or_else(|| panic!("no cookie: {signed_in}")));
    assert!(signed_in.contains("\r\nLocation: /page\r\n"), "{signed_in}");
    let answer = fetch(&format!("{cookie}X-Auth-Request-User: root\r\n"));
    assert!(answer.ends_with("\r\n\r\nuser=anna"), "{answer}");
}
