//! Rules in front of an upstream: the requests that reach it, and those that never do.

use std::io::Write;
use std::net::TcpStream;

use tempfile::TempDir;

use crate::support::upstream::ScriptStep::{Pause, Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::waiting::eventually;
use crate::support::{TestServer, ask, read_until};

const HEAD: &str = "\r\n\r\n";
const ANSWER: &str = "HTTP/1.1 200 OK\r\nX-Powered-By: PHP\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

/// Upstream, and a server in front of it with these rules. `DIR` in them is a directory in which `passwords` has
/// anna's, `secret`.
fn server(outside: &str, rules: &str) -> (ScriptedUpstream, TestServer, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    // Made by `htpasswd -nbB -C 4`.
    let users = "anna:$2y$04$DiDPKk.3jQ0BKempAh9hluEEI1sUe4ymTdbxXFaDSLiiXtOrgRIaW\n";
    std::fs::write(directory.path().join("passwords"), users).unwrap();
    let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(ANSWER)]]);
    let server = TestServer::run(&format!(
        "{outside}\nsite {{\n listen \"127.0.0.1:0\"\n forward \"http://{}\"\n{}\n}}\n",
        upstream.address,
        rules.replace("DIR", directory.path().to_str().unwrap())
    ));
    (upstream, server, directory)
}

fn get(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: h.example\r\n{fields}Connection: close\r\n\r\n")
}

/// Sends a request; returns the response, and the upstream's request if there was one.
fn forward(upstream: &ScriptedUpstream, server: &TestServer, request: &str) -> (String, Option<String>) {
    let answer = ask(server, request);
    let asked = answer.ends_with("ok").then(|| upstream.connection());
    (answer, asked.or_else(|| upstream.try_connection()))
}

/// Values of a field, in order.
fn values<'a>(head: &'a str, name: &str) -> Vec<&'a str> {
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    fields.filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
}

#[test]
fn rewrites_and_redirects() {
    let (upstream, server, _) = server(
        "server { workers 1; trusted-proxies \"127.0.0.1\" }",
        "rewrite \"/blog/*\" \"/index.php?page={rest}{&query}\"\n redirect \"/old/*\" \"/new/{rest}{query}\" status=308\n\
         redirect \"/to-name\" \"{scheme}://www.example/\"\n redirect \"*\" \"{scheme}://{host}/post{path}\" method=\"POST\"",
    );
    let check = |request: &str, expect: &str| {
        let (answer, asked) = forward(&upstream, &server, request);
        let found = match &asked {
            Some(head) => head.lines().next().unwrap_or_default().to_owned(),
            None => format!("{} {}", &answer[9..12], values(&answer, "Location").join(", ")),
        };
        assert_eq!(found, expect, "{request}");
    };
    check(&get("/blog/a%20b?c=d", ""), "GET /index.php?page=a%20b&c=d HTTP/1.1");
    check(&get("/other?x", ""), "GET /other?x HTTP/1.1");
    check(&get("/old/a?b", ""), "308 /new/a?b");
    check(&get("/to-name", ""), "302 http://www.example/");
    check(&get("/to-name", "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: https\r\n"), "302 https://www.example/");
    check(&get("/a", "").replace("GET", "POST"), "302 http://h.example/post/a");
}

#[test]
fn fields_both_ways() {
    let (upstream, server, _) = server(
        "",
        "request-header \"X-Remote\" \"{client}\"\n request-header \"X-Client-Certificate\" \"{tls_client}\"\n\
         request-header \"X-Scheme\" \"{scheme}\"\n request-header \"X-Debug\" \"\"\n\
         request-header \"/api/*\" \"X-Kind\" \"api\" action=\"add\"\n\
         response-header \"X-Powered-By\" \"\"\n response-header \"X-Frame-Options\" \"DENY\" action=\"default\"",
    );
    let forged = "X-Remote: 6.6.6.6\r\nX_Remote: 7.7.7.7\r\nx-client-CERTIFICATE: CN=admin\r\n\
                  X-Client_Certificate: CN=admin\r\nX-Debug: 1\r\nX-Kind: mine\r\n";
    let (answer, asked) = forward(&upstream, &server, &get("/api/a", forged));
    let asked = asked.unwrap();
    for (name, expect) in [
        ("X-Remote", &["127.0.0.1"][..]),
        ("X_Remote", &[]),
        ("X-Client-Certificate", &[]),
        ("X-Client_Certificate", &[]),
        ("X-Scheme", &["http"]),
        ("X-Debug", &[]),
        ("X-Kind", &["mine", "api"]),
    ] {
        assert_eq!(values(&asked, name), expect, "{asked}");
    }
    assert_eq!((values(&answer, "X-Powered-By"), values(&answer, "X-Frame-Options")), (vec![], vec!["DENY"]));
    // A client's Connection field removes none of our fields (hop-by-hop header abuse).
    for connection in ["X-Remote, close", "close, x-remote,X-Scheme", "close\r\nConnection: x_remote, X-REMOTE"] {
        let request =
            get("/", "X-Remote: 6.6.6.6\r\n").replace("Connection: close", &format!("Connection: {connection}"));
        let (_, asked) = forward(&upstream, &server, &request);
        let asked = asked.unwrap();
        assert_eq!(values(&asked, "X-Remote"), ["127.0.0.1"], "{asked}");
        assert_eq!(values(&asked, "X-Scheme"), ["http"], "{asked}");
    }
}

/// Issue 23: `proxy_pass_request_headers off` for upstreams of others.
#[test]
fn header_fields_of_clients_may_be_withheld() {
    let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(ANSWER)]]);
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n request-header \"X-Key\" \"k\"\n forward \"http://{}\" {{\n host \"other.example\"\n \
         pass-request-headers off\n forwarded-headers none\n }}\n}}\n",
        upstream.address
    ));
    let request =
        get("/a?b", "Cookie: a=b\r\nAuthorization: c\r\nX-Real-IP: 192.0.2.1\r\nRange: bytes=0-0\r\nX-Key: own\r\n");
    let (_, asked) = forward(&upstream, &server, &request);
    assert_eq!(
        asked.as_deref(),
        Some("GET /a?b HTTP/1.1\r\nHost: other.example\r\nX-Key: k\r\nVia: 1.1 tailcoat\r\n\r\n")
    );
}

#[test]
fn passwords_and_addresses() {
    let anna = "Authorization: Basic YW5uYTpzZWNyZXQ=\r\n";
    let (upstream, server, _directory) = server(
        "server { workers 1; trusted-proxies \"127.0.0.1\" }",
        "basic-auth \"/private/*\" \"DIR/passwords\"\n\
         basic-auth \"/passed/*\" \"DIR/passwords\" pass-credentials=on\n\
         basic-auth \"/either/*\" \"DIR/passwords\" satisfy=\"any\"\n\
         request-header \"X-User\" \"{user}\"\n\
         allow \"192.0.2.0/24\" path=\"/office/*\"\n deny all path=\"/office/*\"\n\
         allow \"192.0.2.0/24\" path=\"/either/*\"\n deny all path=\"/either/closed/*\"",
    );
    let office = "X-Forwarded-For: 192.0.2.1\r\n";
    // Status; the user and password as the upstream sees them.
    let check = |target: &str, fields: &str, expect: (&str, Option<(&[&str], bool)>)| {
        let (answer, asked) = forward(&upstream, &server, &get(target, fields));
        let reported = asked.as_deref().map(|head| (values(head, "X-User"), !values(head, "Authorization").is_empty()));
        assert_eq!(&answer[9..12], expect.0, "{target} {fields}");
        assert_eq!(reported, expect.1.map(|(user, password)| (user.to_vec(), password)), "{target} {fields}");
    };
    check("/open", "X-User: admin\r\n", ("200", Some((&[], false))));
    check("/open", anna, ("200", Some((&[], true))));
    check("/private/a", "", ("401", None));
    check("/private/a", "Authorization: Basic YW5uYTpvdGhlcg==\r\n", ("401", None));
    check("/private/a", anna, ("200", Some((&["anna"], false))));
    check("/passed/a", anna, ("200", Some((&["anna"], true))));
    check("/office/a", "", ("403", None));
    check("/office/a", office, ("200", Some((&[], false))));
    // A client whose address is allowed needs no password; others must give one.
    check("/either/a", office, ("200", Some((&[], false))));
    check("/either/a", &format!("{office}{anna}"), ("200", Some((&[], false))));
    check("/either/a", "", ("401", None));
    check("/either/a", anna, ("200", Some((&["anna"], false))));
    check("/either/closed/a", "", ("401", None));
    check("/either/closed/a", anna, ("200", Some((&["anna"], false))));
    // An upstream that drops parameters, or takes a backslash for a slash, reads the same path as the rules did.
    for path in ["/private;a/b", "/private%3Ba/b", "/;x/private/b", "/private%5Cb", "/a;b/../private;/b"] {
        check(path, "", ("401", None));
        check(path, anna, ("200", Some((&["anna"], false))));
    }
    // An upstream that runs programs, ignores case, or finds files as Windows does.
    check("/office;a=b/c;d", "", ("403", None));
    check("/open;a/b", "", ("200", Some((&[], false))));
    for path in ["/open/..;/office/a", "/open/..;/x", "/open/..%3b/x", "/open/%2e%2e;a=b/x", "/open/..%5Cx", "/a/.;/x"]
    {
        check(path, office, ("400", None));
    }
}

/// Issue 17: a path with a suffix, which the upstream takes for the guarded one.
#[test]
fn guards_hold_for_what_the_upstream_reads() {
    let anna = "Authorization: Basic YW5uYTpzZWNyZXQ=\r\n";
    let (upstream, server, _directory) = server(
        "server { workers 1 }",
        "basic-auth \"/wp-login.php\" \"DIR/passwords\"\n deny all path=\"*.cgi\"\n deny all path=\"/exact\"\n\
         rate-limit \"/login\" \"3/h\"\n request-header \"*.php\" \"X-Remote\" \"\"",
    );
    let status = |target: &str, fields: &str| {
        let (answer, asked) = forward(&upstream, &server, &get(target, fields));
        assert_eq!(asked.is_some(), answer.starts_with("HTTP/1.1 200 "), "{target}");
        answer[9..12].to_owned()
    };
    for end in
        ["", "/", "//", "/x", "/x/y.css", ";a", "%3ba/x", ".", "%20", "::$DATA", "%3fx", "%23", "%0a", "%5cx", "%2Fx"]
    {
        for path in ["/wp-login.php", "/WP-Login.PHP", "//wp-login.php", "/x/../wp-login.php"] {
            assert_eq!(status(&format!("{path}{end}"), ""), "401", "{path}{end}");
        }
        assert_eq!(status(&format!("/wp-login.php{end}"), anna), "200", "{end}");
        assert_eq!(status(&format!("/cgi/a.cgi{end}"), ""), "403", "{end}");
    }
    for target in ["/exact", "/exact/", "/exact//", "/EXACT", "/exact;x", "/exact/./", "/exact%2f"] {
        assert_eq!(status(target, ""), "403", "{target}");
    }
    for target in ["/exact/other", "/exactly", "/wp-login.phps", "/a.cgi.html", "/"] {
        assert_eq!(status(target, ""), "200", "{target}");
    }
    for (target, expect) in [("/login/", "200"), ("/LOGIN", "200"), ("/login;a", "200"), ("/login//", "429")] {
        assert_eq!(status(target, ""), expect, "{target}");
    }
    let (_, asked) = forward(&upstream, &server, &get("/a.php/x", "X-Remote: 6.6.6.6\r\n"));
    assert_eq!(values(&asked.unwrap(), "X-Remote"), Vec::<&str>::new());
}

/// Many parsers read a host from a target with two leading slashes, with another path after it.
#[test]
fn targets_that_begin_like_a_host_are_forwarded_in_normal_form() {
    let (upstream, server, _directory) = server("", "deny all path=\"/panel/*\"");
    for (target, expect) in [("//x/panel/users?a=//b", "/x/panel/users?a=//b"), ("///x", "/x"), ("/a//b", "/a//b")] {
        let (_, asked) = forward(&upstream, &server, &get(target, ""));
        assert_eq!(asked.unwrap().lines().next().unwrap(), format!("GET {expect} HTTP/1.1"));
    }
    assert_eq!(&ask(&server, &get("//panel/users", ""))[9..12], "403");
}

/// Issue 17, with the original upstream: mod_php and CGI of Apache.
#[test]
fn guards_hold_in_front_of_apache() {
    use crate::support::real_server::{APACHE_BASE, RealServer, Recipe};
    let recipe = Recipe {
        needs: &["apache2", "/usr/lib/apache2/modules/libphp8.2.so"],
        files: &[
            ("base.conf", APACHE_BASE),
            (
                "apache.conf",
                "Include @DIR@/base.conf\nLoadModule alias_module modules/mod_alias.so\n\
                 LoadModule cgi_module modules/mod_cgi.so\nAllowEncodedSlashes On\nScriptAlias /cgi-bin/ @DIR@/programs/\n\
                 <Directory @DIR@>\nRequire all granted\n</Directory>\n\
                 <FilesMatch \"[.]php$\">\nSetHandler application/x-httpd-php\n</FilesMatch>\n",
            ),
            ("root/wp-login.php", "<?php echo 'run ' . ($_SERVER['PATH_INFO'] ?? '-');"),
            ("root/page.html", "page"),
            ("programs/status", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nrun '\n"),
        ],
        command: &["apache2", "-f", "@DIR@/apache.conf", "-DFOREGROUND"],
        environment: &[],
    };
    let Some(apache) = RealServer::start(&recipe) else { return };
    let program = apache.directory().join("programs/status");
    std::fs::set_permissions(program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let guarded = |rules: &str| {
        TestServer::run(&format!(
            "site {{\n listen \"127.0.0.1:0\"\n forward \"http://{}\"\n{rules}\n}}\n",
            apache.address
        ))
    };
    let ends = ["", "/", "/x", "/x/y", "//x", "%2Fx", "/x.css", "/;a", "/%20"];
    let open = guarded("");
    let runs = |server: &TestServer, target: &str| {
        let answer = ask(server, &get(target, ""));
        answer.starts_with("HTTP/1.1 200 ") && answer.contains("run ")
    };
    for end in ["/x", "/x/y", "//x"] {
        assert!(runs(&open, &format!("/wp-login.php{end}")), "PATH_INFO reaches the script: {end}");
        assert!(runs(&open, &format!("/cgi-bin/status{end}")), "PATH_INFO reaches the program: {end}");
    }
    for rules in [
        "basic-auth \"/wp-login.php\" \"/dev/null\"\n basic-auth \"/cgi-bin/status\" \"/dev/null\"",
        "deny all path=\"*.php\"\n deny all path=\"/cgi-bin/status\"",
        "deny all path=#\"~^/wp-login\\.php$\"#\n deny all path=#\"~^/cgi-bin/status$\"#",
    ] {
        let server = guarded(rules);
        assert!(ask(&server, &get("/page.html", "")).ends_with("page"));
        for end in ends {
            assert!(!runs(&server, &format!("/wp-login.php{end}")), "{rules}: {end}");
            assert!(!runs(&server, &format!("/cgi-bin/status{end}")), "{rules}: {end}");
        }
    }
}

#[test]
fn limits() {
    let (upstream, server, _) = server(
        "server { workers 1; trusted-proxies \"127.0.0.1\" }",
        "rate-limit \"/login\" \"2/h\"\n rate-limit \"/api/*\" \"1/h\" key=\"field:X-Api-Key\"",
    );
    let check = |target: &str, fields: &str, expect: &str, waits: std::ops::RangeInclusive<u64>| {
        let (answer, asked) = forward(&upstream, &server, &get(target, fields));
        assert_eq!(&answer[9..12], expect, "{target} {fields}");
        assert_eq!(asked.is_some(), expect == "200", "requests above the limit do not reach the upstream");
        let wait = values(&answer, "Retry-After").first().map_or(0, |wait| wait.parse().unwrap());
        assert!(waits.contains(&wait), "{answer}");
    };
    check("/login", "", "200", 0..=0);
    check("/login;jsessionid=1", "", "200", 0..=0);
    check("/login", "", "429", 1700..=1800);
    check("/login", "X-Forwarded-For: 192.0.2.1\r\n", "200", 0..=0);
    check("/api/a", "X-Api-Key: a\r\n", "200", 0..=0);
    check("/api/b", "X-Api-Key: a\r\n", "429", 3500..=3600);
    check("/api/a", "X-Api-Key: b\r\n", "200", 0..=0);
}

#[test]
fn requests_in_progress() {
    let upstream = ScriptedUpstream::start(vec![
        vec![Await(HEAD), Say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no"), Await("never")],
        vec![Await(HEAD), Pause(1), Say(ANSWER)],
    ]);
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n request-limit \"/slow\" 1\n forward \"http://{}\"\n}}\nserver {{ workers 1 }}\n",
        upstream.address
    ));
    let begin = |stream: &mut TcpStream| stream.write_all(get("/slow", "").as_bytes()).unwrap();
    let mut first = server.connect();
    begin(&mut first);
    read_until(&mut first, "\r\n\r\no");
    let rejected = ask(&server, &get("/slow", ""));
    assert!(rejected.starts_with("HTTP/1.1 429 ") && values(&rejected, "Retry-After") == ["1"], "{rejected}");
    // The request counts until its response has ended, or its client has.
    drop(first);
    eventually("its place is free again", || ask(&server, &get("/slow", "")).starts_with("HTTP/1.1 200 "));
}

#[test]
fn other_names_lead_to_the_canonical_host() {
    let server = TestServer::run(
        "site \"example.com\" \"www.example.com\" \"*.example.org\" {\n listen \"127.0.0.1:0\"\n default\n canonical-host \"example.com\"\n \
         respond \"*\" 200 \"here\"\n}\n",
    );
    let check = |host: &str, expect: &str| {
        let answer = ask(&server, &format!("GET /a%20b?c=d HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
        let location = values(&answer, "Location").join(", ");
        assert_eq!(format!("{} {location}", &answer[9..12]), expect, "{host}: {answer}");
    };
    check("example.com", "200 ");
    check("EXAMPLE.com:8080", "200 ");
    check("www.example.com", "308 http://example.com/a%20b?c=d");
    check("WWW.example.com:8080", "308 http://example.com:8080/a%20b?c=d");
    check("x.example.org", "308 http://example.com/a%20b?c=d");
    // Health checks by address, for example.
    check("127.0.0.1", "200 ");
}
