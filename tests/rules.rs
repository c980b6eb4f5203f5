//! Redirects, rewrites, and changed fields, on the built server.

use crate::support::upstream::ScriptStep::{Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::{TestServer, ask};

/// Site with some files, in `ROOT`, and these rules.
fn server(rules: &str) -> (tempfile::TempDir, TestServer) {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("index.html", "home");
    write("about.html", "about");
    write("blog/index.html", "blog");
    write("app/index.html", "app");
    write("empty/file.txt", "file");
    let root = directory.path().display();
    let rules = rules.replace("ROOT", &root.to_string());
    let server = TestServer::run(&format!("site {{\nlisten \"127.0.0.1:0\"\nroot \"{root}\"\n{rules}\n}}\n"));
    (directory, server)
}

/// Status, a field, and content of the response.
struct RuleTestResponse {
    text: String,
}

impl RuleTestResponse {
    fn of(server: &TestServer, head: &str) -> Self {
        Self { text: server.exchange(format!("{head}\r\nHost: h.example\r\n\r\n").as_bytes()) }
    }

    fn status(&self) -> &str {
        self.text.get(9..12).unwrap_or_default()
    }

    fn fields(&self, name: &str) -> Vec<&str> {
        let head = self.text.split("\r\n\r\n").next().unwrap_or_default();
        let lines = head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
    }

    fn content(&self) -> &str {
        self.text.split_once("\r\n\r\n").map_or("", |(_, content)| content)
    }
}

#[test]
fn rewrites_and_redirects() {
    let (_directory, server) = server(
        "redirect \"/old/*\" \"/new/{rest}{query}\" status=301\n\
         rewrite \"/weblog/*\" \"/blog/{rest}\"\n\
         redirect #\"~^/(\\d+)$\"# \"https://{host}/n/{1}\" method=\"GET\"\n\
         rewrite \"/out/*\" \"/{query.to}\"\n\
         redirect \"/gone\" \"/about\" missing=on\n\
         rewrite \"*\" \"{path}.html\" missing=on\n\
         respond \"/fixed\" 200 \"fixed\"",
    );
    let check = |head: &str, status: &str, location: &[&str], content: &str| {
        let answer = RuleTestResponse::of(&server, head);
        assert_eq!((answer.status(), answer.fields("Location")), (status, location.to_vec()), "{head}");
        assert!(answer.content().contains(content), "{head}: {}", answer.text);
    };
    check("GET /old/a%20b?c HTTP/1.1", "301", &["/new/a%20b?c"], "");
    check("GET /weblog/ HTTP/1.1", "200", &[], "blog");
    check("GET /weblog/index.html HTTP/1.1", "200", &[], "blog");
    check("GET /12 HTTP/1.1", "302", &["https://h.example/n/12"], "");
    check("POST /12 HTTP/1.1\r\nContent-Length: 0", "405", &[], "Method Not Allowed");
    check("GET /out/?to=../../etc/passwd HTTP/1.1", "400", &[], "Bad Request");
    check("GET /out/?to=about.html HTTP/1.1", "200", &[], "about");
    // Targets without a handler of their own.
    check("GET /about HTTP/1.1", "200", &[], "about");
    check("GET /about.html HTTP/1.1", "200", &[], "about");
    check("GET /gone HTTP/1.1", "302", &["/about"], "");
    check("GET /nothing HTTP/1.1", "404", &[], "Not Found");
    check("GET /fixed HTTP/1.1", "200", &[], "fixed");
    check("OPTIONS * HTTP/1.1", "204", &[], "");
    // Again, now that files are in the cache.
    check("GET /about HTTP/1.1", "200", &[], "about");
    check("GET /nothing HTTP/1.1", "404", &[], "Not Found");
}

#[test]
fn rules_for_missing_paths_follow_each_other() {
    let rules = "rewrite \"*\" \"{path}.html\" missing=on\n\
         rewrite #\"~^/b[^/]*\\.html$\"# \"/blog/\" missing=on\n\
         redirect \"/gone.html\" \"/about\" missing=on\n\
         rewrite \"/loop/b\" \"/loop/a\" missing=on\n\
         rewrite \"/loop/*\" \"/loop/b\" missing=on";
    let check = |rules: &str, target: &str, status: &str, content: &str| {
        let (_directory, server) = server(rules);
        let answer = RuleTestResponse::of(&server, &format!("GET {target} HTTP/1.1"));
        assert_eq!(answer.status(), status, "{target}: {}", answer.text);
        assert!(answer.content().contains(content), "{target}: {}", answer.text);
    };
    check(rules, "/about", "200", "about");
    check(rules, "/bl", "200", "blog");
    check(rules, "/gone", "302", "");
    check(rules, "/nothing", "404", "");
    check(rules, "/loop/b", "404", "");
    check(&format!("{rules}\nrewrite \"*\" \"/app/\" missing=on"), "/loop/b", "200", "app");
    // Guards hold for each path on the way.
    check(&format!("{rules}\ndeny all path=\"/bl.html\""), "/bl", "403", "");
    check(&format!("{rules}\ndeny all path=\"/blog/*\""), "/bl", "403", "");
    // At most eight rules apply.
    let steps = |last: usize| {
        let step = |number: usize| format!("rewrite \"/{number}\" \"/{}\" missing=on", number + 1);
        let lines: Vec<String> = (1..last).map(step).collect();
        format!("{}\nrewrite \"/{last}\" \"/about.html\" missing=on", lines.join("\n"))
    };
    check(&steps(8), "/1", "200", "about");
    check(&steps(9), "/1", "404", "");
}

#[test]
fn a_single_entry_for_what_is_no_file() {
    let (_directory, server) = server(
        "response-header \"X-Path\" \"{path}{query}\"\n\
         rewrite \"*\" \"/app/index.html?q={path}{&query}\" missing=on",
    );
    let check = |target: &str, content: &str| {
        for method in ["GET", "GET", "HEAD"] {
            let answer = RuleTestResponse::of(&server, &format!("{method} {target} HTTP/1.1"));
            let expect = if method == "HEAD" { "" } else { content };
            assert_eq!((answer.status(), answer.content()), ("200", expect), "{method} {target}");
            assert_eq!(answer.fields("X-Path"), [target], "the target as the client sent it");
        }
    };
    check("/", "home");
    check("/about.html", "about");
    check("/2026/11/a-post/?p=1", "app");
    // A directory without an index is no file.
    check("/empty/", "app");
    check("/empty/file.txt", "file");
}

#[test]
fn no_index_and_no_fallback_leads_around_a_guard() {
    let check = |rules: &str, statuses: &[(&str, &str)]| {
        let (_directory, server) = server(rules);
        for (target, status) in statuses {
            // From the file system, from the cache, in part, and conditionally.
            for field in ["X: y", "X: y", "Range: bytes=0-1,3-3", "If-None-Match: *", "Accept-Encoding: gzip"] {
                let answer = RuleTestResponse::of(&server, &format!("GET {target} HTTP/1.1\r\n{field}"));
                let is_open = matches!(answer.status(), "200" | "206" | "304");
                assert_eq!(if is_open { "200" } else { answer.status() }, *status, "{rules}: {target} {field}");
            }
        }
    };
    check("deny all path=\"*.html\"", &[("/", "403"), ("/blog/", "403"), ("/blog", "301"), ("/empty/file.txt", "200")]);
    check("deny all path=\"/blog/index.html\"", &[("/", "200"), ("/blog/", "403"), ("/blog/index.html", "403")]);
    check("deny all path=\"/blog/\"", &[("/blog/", "403"), ("/blog/index.html", "200")]);
    check("allow all path=\"/app/\"\ndeny all path=\"/app/*\"", &[("/", "200"), ("/app/", "403")]);
    check("fallback \"/app/index.html\"\ndeny all path=\"/app/*\"", &[("/nothing", "403"), ("/", "200")]);
    check(
        "fallback \"/nowhere\"\ndeny all path=\"/app/*\"\nrate-limit \"/nowhere\" \"1000/s\"",
        &[("/nothing", "404")],
    );
    check("files \"/blog/\" root=\"ROOT\"\ndeny all path=\"*.html\"", &[("/blog/", "403"), ("/empty/file.txt", "200")]);
    check(
        "files \"/blog/*\" { fallback \"/app/index.html\" }\ndeny all path=\"/app/*\"",
        &[("/blog/none", "403"), ("/blog/", "200")],
    );
    check(
        "files \"/blog/*\" { fallback \"/index.html\" }\nrate-limit \"/blog/*\" \"1000/s\" burst=1000",
        &[("/blog/none", "200")],
    );
    // Handlers before the fallback, without a rule.
    check("files \"/blog/*\" { fallback off; }\nfallback \"/index.html\"", &[("/none", "200"), ("/blog/none", "200")]);
    check("respond \"/index.html\" 410", &[("/", "410"), ("/index.html", "410"), ("/blog/", "200")]);
}

#[test]
fn who_may_come_depends_on_the_request() {
    let (_directory, server) = server(
        "deny all path=\"/blog/*\" method=\"!GET HEAD\" status=405\n\
         deny all field=\"!X-Key: secret\" path=\"/app/*\"\n\
         deny all query=\"a=1\"\n\
         rewrite \"/moved/*\" \"/app/{rest}\"",
    );
    let check = |head: &str, status: &str| assert_eq!(RuleTestResponse::of(&server, head).status(), status, "{head}");
    check("GET /blog/ HTTP/1.1", "200");
    check("POST /blog/ HTTP/1.1\r\nContent-Length: 0", "405");
    check("GET /app/ HTTP/1.1", "403");
    check("GET /moved/ HTTP/1.1", "403");
    check("GET /moved/ HTTP/1.1\r\nX-Key: secret", "200");
    check("GET /?a=1 HTTP/1.1", "403");
    check("GET /?a=2 HTTP/1.1", "200");
}

#[test]
fn fields_of_responses() {
    let (_directory, server) = server(
        "response-header \"X-All\" \"yes\"\n\
         response-header \"Last-Modified\" \"\"\n\
         response-header \"Cache-Control\" \"no-store\" action=\"default\"\n\
         response-header \"/blog/*\" \"X-Blog\" \"{host} {request.header.X-In}\"\n\
         response-header \"X-Two\" \"1\"\n\
         response-header \"X-Two\" \"2\" action=\"add\"\n\
         response-header \"X-Kept\" \"1\"\n\
         response-header \"/blog/*\" \"x-kept\" \"\" action=\"keep\"\n\
         header \"*.html\" \"Cache-Control\" \"max-age=5\"\n\
         redirect \"/moved\" \"/\"\n\
         deny all path=\"/denied\"\n\
         respond \"/fixed\" 200 \"fixed\"",
    );
    let check = |head: &str, status: &str, cache_control: &[&str]| {
        // The second response comes from the cache.
        for _ in 0..2 {
            let answer = RuleTestResponse::of(&server, head);
            assert_eq!(answer.status(), status, "{head}: {}", answer.text);
            assert_eq!(answer.fields("X-All"), ["yes"], "{head}");
            assert_eq!(answer.fields("X-Two"), ["1", "2"], "{head}");
            assert_eq!(answer.fields("Last-Modified"), [""; 0], "{head}");
            assert_eq!(answer.fields("Cache-Control"), cache_control, "{head}");
            assert_eq!(answer.fields("Date").len(), 1, "{head}");
        }
    };
    check("GET /about.html HTTP/1.1", "200", &["max-age=5"]);
    check("HEAD /about.html HTTP/1.1", "200", &["max-age=5"]);
    check("GET /about.html HTTP/1.1\r\nIf-None-Match: *", "304", &["max-age=5"]);
    check("GET /about.html HTTP/1.1\r\nRange: bytes=1-2", "206", &["max-age=5"]);
    check("GET /empty/file.txt HTTP/1.1", "200", &["no-store"]);
    check("GET /fixed HTTP/1.1", "200", &["no-store"]);
    check("GET /nothing HTTP/1.1", "404", &["no-store"]);
    check("GET /moved HTTP/1.1", "302", &["no-store"]);
    check("GET /denied HTTP/1.1", "403", &["no-store"]);
    let answer = RuleTestResponse::of(&server, "GET /blog/ HTTP/1.1\r\nX-In: a");
    assert_eq!((answer.fields("X-Blog"), answer.content()), (vec!["h.example a"], "blog"));
    assert_eq!(answer.fields("X-Kept"), [""; 0]);
    let answer = RuleTestResponse::of(&server, "GET / HTTP/1.1");
    assert_eq!((answer.fields("X-Blog"), answer.fields("X-Kept")), (vec![], vec!["1"]));
}

#[test]
fn pipelined_files_with_changed_fields_stay_whole() {
    let (_directory, server) = server("response-header \"X-Number\" \"{request.header.X-Number}\"");
    let mut input = String::new();
    for number in 0..200 {
        input.push_str(&format!("GET /about.html HTTP/1.1\r\nHost: h\r\nX-Number: {number}\r\n\r\n"));
    }
    let text = server.exchange(input.as_bytes());
    let answers: Vec<&str> = text.split("HTTP/1.1 200 OK\r\n").skip(1).collect();
    assert_eq!(answers.len(), 200);
    for (number, answer) in answers.iter().enumerate() {
        assert!(
            answer.contains(&format!("\r\nX-Number: {number}\r\n")) && answer.ends_with("\r\n\r\nabout"),
            "{answer}"
        );
    }
}

/// As CVE-2022-31813: a client cannot remove fields that the configuration sets and the upstream relies on.
#[test]
fn connection_takes_nothing_away_that_was_set_here() {
    let answer = "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
    let upstream = ScriptedUpstream::start(vec![vec![Await("\r\n\r\n"), Say(answer)]]);
    let server = TestServer::run(&format!(
        "site {{\nlisten \"127.0.0.1:0\"\nforward \"http://{}\"\nrequest-header \"X-Remote-User\" \"anna\"\n\
         request-header \"X-Api-Key\" \"sesame\"\nrequest-header \"X-Kind\" \"new\" action=\"default\"\n}}\n",
        upstream.address
    ));
    // The sending side stays open, because a closed one would abort the request.
    ask(
        &server,
        "GET / HTTP/1.1\r\nHost: h.example\r\n\
         Connection: close, X-Remote-User, x-api-key, X-Kind, X-Mine, X-Forwarded-For, Via\r\n\
         X-Remote-User: root\r\nX-Kind: old\r\nX-Mine: 1\r\n\r\n",
    );
    let seen = upstream.connection();
    for line in
        ["X-Remote-User: anna", "X-Api-Key: sesame", "X-Kind: new", "X-Forwarded-For: 127.0.0.1", "Via: 1.1 tailcoat"]
    {
        assert!(seen.contains(&format!("\r\n{line}\r\n")), "{line}: {seen}");
    }
    assert!(!seen.contains("root") && !seen.contains("old") && !seen.contains("X-Mine"), "{seen}");
}

/// Fields about the client as well: values of the configuration replace both the client's and the server's default
/// ones.
#[test]
fn what_is_set_here_wins() {
    const FORGED: &str = "X-Forwarded-User: root\r\nx_forwarded_proto: gopher\r\nForwarded: for=6.6.6.6\r\n\
                          X-Forwarded-Host: evil\r\nX-Forwarded-For: 6.6.6.6";
    let check = |rules: &str, fields: &str, expect: &[&str]| {
        let answer = "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
        let upstream = ScriptedUpstream::start(vec![vec![Await("\r\n\r\n"), Say(answer)]]);
        let server = TestServer::run(&format!(
            "site {{\nlisten \"127.0.0.1:0\"\n{rules}\nforward \"http://{}\" {{ forwarded-headers \"both\" }}\n}}\n",
            upstream.address
        ));
        ask(&server, &format!("GET / HTTP/1.1\r\nHost: h.example\r\nConnection: close\r\n{fields}\r\n\r\n"));
        let seen = upstream.connection();
        let mut about: Vec<_> = seen.lines().filter(|line| line.to_ascii_lowercase().contains("forwarded")).collect();
        about.sort_unstable();
        assert_eq!(about, expect, "{rules}");
    };
    let by_default = [
        "Forwarded: for=127.0.0.1;host=\"h.example\";proto=http",
        "X-Forwarded-For: 127.0.0.1",
        "X-Forwarded-Host: h.example",
        "X-Forwarded-Proto: http",
    ];
    check("", FORGED, &by_default);
    let [standard, client, host, _] = by_default;
    check(
        "request-header \"X-Forwarded-User\" \"anna\"\nrequest-header \"X-Forwarded-Proto\" \"https\"",
        FORGED,
        &[standard, client, host, "X-Forwarded-Proto: https", "X-Forwarded-User: anna"],
    );
    check(
        "request-header \"X-Forwarded-User\" \"anna\" action=\"add\"\n\
         request-header \"X-Forwarded-For\" \"{client}\" action=\"add\"\n\
         request-header \"X-Forwarded-Host\" \"\"\nrequest-header \"Forwarded\" \"for=_here\"\n\
         rewrite \"/\" \"/rewritten\"",
        FORGED,
        &["Forwarded: for=_here", client, "X-Forwarded-Proto: http", "X-Forwarded-User: anna"],
    );
    let port = "request-header \"X-Forwarded-Port\" \"443\" action=\"default\"";
    check(port, "Accept: a", &[standard, client, host, "X-Forwarded-Port: 443", "X-Forwarded-Proto: http"]);
}

#[test]
fn fields_of_requests_are_what_handlers_see() {
    let (_directory, server) = server(
        "request-header \"Range\" \"\"\n\
         request-header \"/blog/*\" \"If-None-Match\" \"*\"\n\
         response-header \"X-Id\" \"{request_id}\"",
    );
    let answer = RuleTestResponse::of(&server, "GET /about.html HTTP/1.1\r\nRange: bytes=0-0");
    assert_eq!((answer.status(), answer.content()), ("200", "about"));
    assert_eq!(RuleTestResponse::of(&server, "GET /blog/ HTTP/1.1").status(), "304");
    let id = |answer: &RuleTestResponse| answer.fields("X-Id").join(",");
    let (first, second) = (id(&answer), id(&RuleTestResponse::of(&server, "GET / HTTP/1.1")));
    assert!(first.len() == 32 && first != second, "{first} {second}");
}
