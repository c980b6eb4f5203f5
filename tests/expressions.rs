//! Conditions, maps, variables and secrets, on the built server.

use std::io::Write;

use crate::support::TestServer;
use crate::support::upstream::ScriptStep::{Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;

/// Server with a site of these options; `top` stands before it.
fn server(top: &str, site: &str) -> TestServer {
    TestServer::run(&format!("{top}\nsite \"*.example\" {{\nlisten \"127.0.0.1:0\"\n{site}\n}}\n"))
}

/// Status and `Location` or content of the response to a request line and fields.
fn answer(server: &TestServer, line: &str, fields: &str) -> String {
    let text =
        server.exchange(format!("{line} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n{fields}\r\n").as_bytes());
    let status = text.get(9..12).unwrap_or_default();
    let location = text.lines().find_map(|line| line.strip_prefix("Location: "));
    let content = text.split_once("\r\n\r\n").map_or("", |(_, content)| content);
    let shown = location.unwrap_or(if status == "200" { content } else { "" });
    format!("{status} {shown}").trim_end().to_owned()
}

#[test]
fn handlers_by_method_query_field_and_condition() {
    let server = server(
        "",
        "respond \"/a\" 200 \"post\" method=\"POST\"\n\
         respond \"/a\" 200 \"beta\" when=\"cookie.beta == '1' or query.version >= 2\"\n\
         respond \"/a\" 200 \"json\" field=\"Accept: application/json\"\n\
         respond \"/a\" 200 \"q\" query=\"q\"\n\
         respond \"/a\" 200 \"other\"",
    );
    for (line, fields, expect) in [
        ("POST /a", "Content-Length: 0\r\n", "post"),
        ("GET /a", "Cookie: beta=1\r\n", "beta"),
        ("GET /a?version=3", "", "beta"),
        ("GET /a?version=x", "", "other"),
        ("GET /a", "Accept: application/json\r\n", "json"),
        ("GET /a?q", "", "q"),
        ("GET /a", "", "other"),
    ] {
        assert_eq!(answer(&server, line, fields), format!("200 {expect}"), "{line} {fields}");
    }
}

#[test]
fn the_most_specific_handler() {
    let server = server(
        "",
        "route-order \"specific\"\nrespond \"*\" 200 \"all\"\nrespond \"/a/*\" 200 \"a\"\nrespond \"/a/b/*\" 200 \"b\"\n\
         respond \"/a/b/*\" 200 \"b post\" method=\"POST\"\nrespond \"/a/b/c\" 200 \"c\"",
    );
    for (line, expect) in
        [("GET /x", "all"), ("GET /a/x", "a"), ("GET /a/b/x", "b"), ("POST /a/b/x", "b post"), ("POST /a/b/c", "c")]
    {
        assert_eq!(answer(&server, line, "Content-Length: 0\r\n"), format!("200 {expect}"), "{line}");
    }
}

#[test]
fn redirects_with_maps_and_groups() {
    let server = server(
        "map \"new\" \"{path}\" {\n case \"/old\" \"https://new.example/x?y\"\n case \"/docs/*\" \"/manual\"\n \
         case \"~^/u/(?<name>[a-z]+)$\" \"/users/{match.name}\"\n}\n\
         map \"language\" \"{request.header.Accept-Language}\" { case \"de*\" \"de\"; default \"en\" }",
        "redirect \"/u/*\" \"/x{map.new}\"\n\
         redirect \"/\" \"/{map.language}/\" when=\"not cookie.language\"\n\
         redirect \"/v/*\" \"/version/{match.1}?from={query.a}\" when=\"path matches '^/v/([0-9]+)$'\"\n\
         rewrite \"/in/*\" \"/{cookie.to}/{path.2}\"\n\
         respond \"/b/c\" 200 \"b\"\nrespond \"*\" 404",
    );
    for (line, fields, expect) in [
        ("GET /u/anna", "", "302 /x/users/anna"),
        ("GET /", "Accept-Language: de-AT\r\n", "302 /de/"),
        ("GET /", "", "302 /en/"),
        ("GET /", "Cookie: language=de\r\n", "404"),
        ("GET /v/12?a=%0d%0aSet-Cookie:x", "", "302 /version/12?from=%0d%0aSet-Cookie:x"),
        ("GET /v/x", "", "404"),
        ("GET /in/c", "Cookie: to=b\r\n", "200 b"),
        // No value leads to another directory, or ends the header field.
        ("GET /in/c", "Cookie: to=..\r\n", "400"),
        ("GET /in/c", "Cookie: to=x/../../b\r\n", "400"),
    ] {
        assert_eq!(answer(&server, line, fields), expect, "{line} {fields}");
    }
}

#[test]
fn redirects_to_what_a_map_says() {
    let server = server(
        "map \"new\" \"{path}\" { case \"/old\" \"https://new.example/x?y\"; case \"/docs/*\" \"/manual\" }",
        "redirect \"*\" \"{map.new}\" status=301 when=\"map.new\"\nrespond \"*\" 404",
    );
    assert_eq!(answer(&server, "GET /old", ""), "301 https://new.example/x?y");
    assert_eq!(answer(&server, "GET /docs/a", ""), "301 /manual");
    assert_eq!(answer(&server, "GET /other", ""), "404");
}

/// Regression tests of parameter pollution: a value that is sent twice, or in a wrong encoding, opens nothing.
#[test]
fn guards_apply_if_their_condition_cannot_be_told() {
    let mut passwords = tempfile::NamedTempFile::new().unwrap();
    // No password fits.
    writeln!(passwords, "anna:$2y$05$abcdefghijklmnopqrstuuKzJZ0k3mZ7d5yXq0p3oO4Qm0Jb1yQ1W").unwrap();
    let file = passwords.path().display();
    let mut known = tempfile::NamedTempFile::new().unwrap();
    writeln!(known, "anna:$2y$04$DiDPKk.3jQ0BKempAh9hluEEI1sUe4ymTdbxXFaDSLiiXtOrgRIaW").unwrap();
    let anna = known.path().display();
    let server = server(
        "",
        &format!(
            "deny all path=\"/deny\" when=\"query.mode == 'bad'\"\n\
             deny all path=\"/not\" when=\"not query.mode == 'good'\"\n\
             allow all path=\"/allow\" when=\"query.key == 'k'\"\ndeny all path=\"/allow\"\n\
             internal \"/internal\" when=\"cookie.mode == 'bad'\"\n\
             basic-auth \"/auth\" off when=\"query.mode == 'open'\"\n\
             basic-auth \"/auth\" \"{file}\"\n\
             basic-auth \"/asks\" \"{file}\" when=\"query.mode == 'bad'\"\n\
             forward-auth \"/forward\" \"http://127.0.0.1:9\" when=\"query.mode == 'bad'\"\n\
             deny all when=\"path starts-with '/secret/'\"\n\
             allow \"127.0.0.1\" path=\"/any\"\ndeny all path=\"/any\"\ndeny all path=\"/shut\"\n\
             basic-auth \"/any\" \"{file}\" satisfy=\"any\" when=\"query.mode == 'x'\"\n\
             basic-auth \"/shut\" \"{file}\" satisfy=\"any\" when=\"query.mode == 'x'\"\n\
             basic-auth \"/both\" \"{anna}\" when=\"query.mode == 'x'\"\n\
             basic-auth \"/both\" \"{file}\"\n\
             respond \"*\" 200"
        ),
    );
    for (target, expect) in [
        ("/deny", "200"),
        ("/deny?mode=good", "200"),
        ("/deny?mode=bad", "403"),
        ("/deny?m%6fde=b%61d", "403"),
        ("/deny?mode=good&mode=bad", "403"),
        ("/deny?mode=%zz", "403"),
        ("/not?mode=good", "200"),
        ("/not", "403"),
        ("/not?mode=good&mode=bad", "403"),
        ("/allow?key=k", "200"),
        ("/allow?key=k&key=x", "403"),
        ("/auth?mode=open", "200"),
        ("/auth?mode=open&mode=x", "401"),
        ("/asks", "200"),
        ("/asks?mode=x&mode=y", "401"),
        ("/forward", "200"),
        ("/forward?mode=x&mode=y", "502"),
        // An address is an alternative to a password only where the rule applies for sure.
        ("/any", "200"),
        ("/any?mode=x", "200"),
        ("/any?mode=x&mode=y", "401"),
        ("/shut", "403"),
        ("/shut?mode=x", "401"),
        ("/shut?mode=x&mode=y", "403"),
        ("/secret/x", "403"),
        ("/secret", "200"),
        ("//secret//x", "403"),
        ("/SECRET/x", "403"),
        ("/a/../secret/x", "403"),
    ] {
        assert_eq!(answer(&server, &format!("GET {target}"), ""), expect, "{target}");
    }
    // A rule that may apply does not replace the one that applies without it.
    for (target, expect) in [("/both", "401"), ("/both?mode=x", "200"), ("/both?mode=x&mode=y", "401")] {
        let password = "Authorization: Basic YW5uYTpzZWNyZXQ=\r\n";
        assert_eq!(answer(&server, &format!("GET {target}"), password), expect, "{target}");
    }
    assert_eq!(answer(&server, "GET /internal", "Cookie: mode=good\r\n"), "200");
    assert_eq!(answer(&server, "GET /internal", "Cookie: mode=bad\r\n"), "404");
    assert_eq!(answer(&server, "GET /internal", "Cookie: mode=good; mode=bad\r\n"), "404");
}

#[test]
fn limits_by_condition() {
    let server = server("", "rate-limit \"*\" \"1/h\" when=\"not request.header.X-Key == 'k'\"\nrespond \"*\" 200");
    let statuses = |fields: &str| [0; 3].map(|_| answer(&server, "GET /", fields));
    assert_eq!(statuses("X-Key: k\r\n"), ["200"; 3]);
    assert_eq!(statuses(""), ["200", "429", "429"]);
}

#[test]
fn fields_with_secrets_and_conditions() {
    let mut secret = tempfile::NamedTempFile::new().unwrap();
    secret.write_all(b"s3cret\n").unwrap();
    let script = vec![Await("\r\n\r\n"), Say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")];
    let upstream = ScriptedUpstream::start(vec![script]);
    let server = server(
        &format!("secret \"key\" \"{}\"", secret.path().display()),
        &format!(
            "request-header \"Authorization\" \"Bearer {{secret.key}}\" when=\"method == 'GET'\"\n\
             request-header \"X-Part\" \"{{path.2}}|{{method}}|{{host.1}}|{{query.a}}\"\n\
             response-header \"X-Error\" \"{{status}}\" when=\"status >= 400\"\n\
             respond \"/missing\" 404\nforward \"http://{}\" {{ abort-on-close off }}",
            upstream.address
        ),
    );
    assert_eq!(answer(&server, "GET /x/y%20z?a=%41", ""), "200 ok");
    let seen = upstream.connection();
    assert!(seen.contains("Authorization: Bearer s3cret\r\n") && seen.contains("X-Part: y z|GET|a|A\r\n"), "{seen}");
    // A line break in a value rejects the request.
    assert_eq!(answer(&server, "GET /x/y?a=%0d%0aX:%20y", ""), "400");
    let text = server.exchange(b"GET /missing HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n");
    assert!(text.contains("X-Error: 404\r\n"), "{text}");
    let text = server.exchange(b"GET /x HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n");
    assert!(!text.contains("X-Error"), "{text}");
}
