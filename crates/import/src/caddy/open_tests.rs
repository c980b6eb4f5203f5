//! Whole Caddyfiles whose translation was more open than Caddy.

use super::tests::{check, translated};

/// Lines of the translation that begin with a word.
fn lines(text: &str, start: &str) -> Vec<String> {
    let (found, _) = translated(text);
    found.lines().map(str::trim).filter(|line| line.starts_with(start)).map(str::to_owned).collect()
}

/// A named route rejects some paths, in Caddy's order. The rest of the site follows it.
#[test]
fn named_routes_are_blocks() {
    let route = "&(r) {\n file_server\n respond /1/* 403\n}\n";
    let (found, _) = translated(&format!("{route}a.de {{\n root * /srv\n invoke /2/* r\n respond ok\n}}"));
    let at = |text: &str| found.find(text).unwrap_or_else(|| panic!("{text}: {found}"));
    assert!(at("files \"/2/*\"") < at("respond \"*\" 200 \"ok\""), "{found}");
    let (found, _) = translated(&format!("{route}a.de {{\n root * /srv\n invoke r\n}}"));
    assert!(found.contains("respond \"~(?i)^/1/\" 403") && found.contains("root \"/srv\""), "{found}");
    // A route that invokes itself ends.
    let (found, _) = translated("&(r) {\n invoke r\n}\na.de {\n invoke r\n}");
    assert!(found.contains("deny all"), "{found}");
}

/// A `handle_path` of a prefix, in a block of one path, removes the prefix only.
#[test]
fn prefixes_of_one_path_are_removed() {
    let (found, _) = translated("a.de {\n handle /1/2 {\n  handle_path /1* {\n   file_server\n  }\n }\n}");
    assert!(found.contains("files \"/1/2\"") && found.contains("strip-prefix \"/1\""), "{found}");
}

/// An argument of the query may be empty, or have several values.
#[test]
fn arguments_may_be_empty_or_several() {
    let present = "query matches '(?:^|[&;])(?:a|%61)(?:[=&;]|$)'";
    check(
        "@x query a=*\nrespond @x 403\nreverse_proxy a:80",
        &format!("deny all when=\"{present}\"\nforward \"http://a:80\""),
    );
    check(
        "@x `{query.a} == '1'`\nhandle @x {\n respond no 401\n}\nreverse_proxy a:80",
        "deny all when=\"query.a == '1'\" status=401\nforward \"http://a:80\"",
    );
    // A rule that is no guard does not apply if its condition cannot be told.
    let (found, _) = translated("a.de {\n @x not query \"z=j 1\"\n redir @x /2\n respond @x 403\n}");
    let test = "not (query matches '(?:^|[&;])(?:z|%7[aA])=(?:j|%6[aA])(?:\\+|%20)(?:1|%31)(?:[&;]|$)')";
    assert!(found.contains(&format!("redirect \"*\" \"/2\" status=302 when=#\"{test}\"#")), "{found}");
    assert!(found.contains("deny all when=") && found.contains("not (query.z == 'j 1')"), "{found}");
}

/// A field may have several lines, which a variable joins.
#[test]
fn fields_may_have_several_lines() {
    let deny = |matcher: &str| lines(&format!("a.de {{\n @x {matcher}\n respond @x 403\n}}"), "deny").concat();
    let check = |matcher: &str, expect: &str| {
        assert_eq!(deny(matcher), format!("deny all when={expect}"), "{matcher}");
    };
    check("header A b.c", "#\"request.header.A matches '(?:^|, )b\\.c(?:, |$)'\"#");
    check("header A b*", "\"request.header.A matches '(?:^|, )b'\"");
    check("header A *b", "\"request.header.A matches 'b(?:, |$)'\"");
    check("header A *b*", "\"request.header.A contains 'b'\"");
    check("header A *", "\"request.header.A\"");
    check("header_regexp A ^(b|c)$", "\"request.header.A matches '(?:^|, )(b|c)(?:, |$)'\"");
    check("header_regexp A ^b|c$", "\"request.header.A matches '^b|c$'\"");
}

/// A rule that reads a field after its change was applied to the client's own one.
#[test]
fn changed_fields_are_not_those_of_clients() {
    let closed = |text: &str| {
        let (found, remarks) = translated(&format!("a.de {{\n route {{\n{text}\n file_server\n }}\n}}"));
        assert_eq!(found.contains("deny all\n"), remarks.iter().any(|remark| remark.contains("was changed before")));
        found.contains("deny all\n")
    };
    let query = "@x not query b=1\n respond @x 403";
    assert!(closed(&format!("rewrite * {{path}}?b=0\n{query}")));
    assert!(closed(&format!("try_files {{path}} /1?b=0\n{query}")));
    assert!(!closed(&format!(
        "rewrite /1 /2?b=0\n{}",
        query.replace("not", "{\n path /3\n not").replace("1\n", "1\n}\n")
    )));
    assert!(!closed(&format!("{query}\n rewrite * {{path}}?b=0")));
    let auth = "basic_auth {\n anna $2a$14$x\n}";
    assert!(closed(&format!("request_header -Authorization\n{auth}")));
    assert!(!closed(&format!("request_header -X-A\n{auth}")));
    let matcher = "@x not header X-A b\n respond @x 403";
    assert!(closed(&format!("request_header X-A c\n{matcher}")));
    assert!(closed(&format!("forward_auth b:80 {{\n uri /c\n copy_headers X-B>x-a\n}}\n{matcher}")));
    assert!(!closed(&format!("request_header X-A2 c\n{matcher}")));
    assert!(!closed(&format!("{matcher}\n request_header X-A c")));
    // Handlers see the new field.
    let (found, remarks) = translated(
        "a.de {\n request_header X-A c\n @x header X-A b\n handle @x {\n reverse_proxy a:80\n}\n respond 403\n}",
    );
    assert!(found.contains("respond \"*\" 403") && remarks.is_empty(), "{found}");
}

/// Without TLS and with it, at ports of one site; with proxies, `remote_ip` is not the client.
#[test]
fn connections_are_not_taken_for_others() {
    let text = "http://a.de:81, https://a.de:444 {\n tls c k\n @x protocol http\n respond @x 403\n}";
    assert_eq!(lines(text, "deny"), ["deny all when=\"scheme == 'http'\""]);
    let options = "{\n servers {\n  trusted_proxies static private_ranges\n }\n}\n";
    let text = "a.de {\n @x not remote_ip 1.2.3.4\n respond @x 403\n}";
    assert_eq!(lines(&format!("{options}{text}"), "deny"), ["deny all"]);
    assert_eq!(lines(text, "deny"), ["deny all when=\"not (client in ('1.2.3.4'))\""]);
    for servers in [
        "servers :8080 {\n trusted_proxies static private_ranges\n}",
        "servers {\n trusted_proxies cloudflare\n}",
        "servers {\n client_ip_headers X-Real-IP\n}",
    ] {
        let text = "a.de {\n @x not client_ip 1.2.3.4\n respond @x 403\n}";
        assert_eq!(lines(&format!("{{\n{servers}\n}}\n{text}"), "deny"), ["deny all"]);
    }
}

/// Hosts of expressions are those of sites, too.
#[test]
fn expressions_name_hosts() {
    let text = "http://a.de, http://b.de {\n @x `host('b.de') && path('/1')`\n respond @x 403\n respond ok\n}";
    assert_eq!(lines(text, "site \"").len(), 2);
    assert_eq!(lines(text, "deny"), ["deny all when=\"path == '/1'\""]);
}

/// Addresses with paths, the longest first, and the address of all paths.
#[test]
fn addresses_have_paths() {
    let (found, remarks) = translated(
        "HTTP://A.de/1/* {\n respond 403\n}\nhttp://a.de {\n respond all\n}\nhttp://a.de/1/2* {\n respond more\n}\n\
         http://a.de/ {\n respond one\n}",
    );
    let expect = "site \"a.de\" {\n    listen 80\n    respond \"~^/1/2\" 200 \"more\"\n    respond \"~(?i)^/1/\" 403\n    \
                  respond \"/\" 200 \"one\"\n    respond \"*\" 200 \"all\"\n}";
    assert!(found.starts_with(expect) && remarks.is_empty(), "{found}");
    // Other paths are those of the site of more hosts.
    let (found, _) = translated("http://a.de/1 {\n respond 403\n}\n:80 {\n respond all\n}");
    assert!(found.contains("respond \"~(?i)^/1$\" 403\n    respond \"*\" 200 \"all\"\n}"), "{found}");
}

/// A site without TLS beside one with it.
#[test]
fn one_host_may_have_two_sites() {
    let text = "http://a.de {\n respond 403\n}\na.de {\n respond ok\n}";
    assert_eq!(lines(text, "listen"), ["listen 80", "listen 443 tls=on", "listen 80"]);
}

/// Caddy hides its own file. Here, there are more.
#[test]
fn files_of_the_configuration_are_not_served() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("Caddyfile");
    let deny = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let (nodes, ..) = super::translate(&path).unwrap();
        let text = crate::kdl::write(&nodes);
        text.lines().filter(|line| line.contains("deny")).map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    let expect = [
        "deny all path=\"~(?i)^/Caddyfile$\" status=404",
        "deny all path=#\"~(?i)^/(?:users\\.htpasswd[^/]*|[^/]+\\.kdl)$\"# status=404",
    ];
    assert_eq!(deny("a.de {\n root * .\n file_server\n}"), expect);
    assert_eq!(deny("a.de {\n root * /srv\n file_server\n}"), [""; 0]);
    let name = directory.path().file_name().and_then(|name| name.to_str()).unwrap();
    let above = deny("a.de {\n root * ..\n handle_path /1/* {\n  file_server\n }\n}");
    // `..` is not resolved: links may lead elsewhere.
    assert!(above.is_empty() || above[0].contains(name), "{above:?}");
    let parent = directory.path().parent().unwrap().display();
    let below = deny(&format!("a.de {{\n handle_path /1/* {{\n  root * {parent}\n  file_server\n }}\n}}"));
    assert!(below[0].contains("^/1/") && below[0].contains(&regex::escape(name)), "{below:?}");
}

/// `try_files` with a status, and with another policy. `vars` may choose the root.
#[test]
fn files_are_chosen_as_written() {
    let (found, remarks) = translated("a.de {\n try_files {path} =403\n file_server\n}");
    assert!(found.contains("    index\n") && remarks[0].contains("status 404"), "{found}\n{remarks:?}");
    let (found, _) = translated("a.de {\n try_files {path} /a {\n  policy smallest_size\n }\n file_server\n}");
    assert!(found.contains("deny all\n"), "{found}");
    let (found, _) = translated("a.de {\n file_server {\n  hide b?/ {env.HIDDEN}\n }\n}");
    assert!(found.contains("deny all\n"), "{found}");
    let (found, _) = translated("a.de {\n file_server {\n  hide /srv/b?/\n }\n}");
    assert!(found.contains("deny all path=\"~/b[^/](?:/|$)\" status=404"), "{found}");
    let (found, _) = translated("a.de {\n respond /1 no {env.STATUS}\n file_server\n}");
    assert!(found.contains("deny all path=\"~(?i)^/1$\""), "{found}");
    let (found, _) = translated("a.de {\n vars root /srv\n file_server\n}");
    assert!(found.contains("deny all\n"), "{found}");
}

/// Pages of errors: of their own root, or noted.
#[test]
fn pages_of_errors_are_those_written() {
    let page = |text: &str| {
        let (found, remarks) = translated(&format!("a.de {{\n root * /srv\n file_server\n handle_errors {text}\n}}"));
        let page = found.lines().find(|line| line.contains("error-page")).unwrap_or_default().trim().to_owned();
        (page, remarks.iter().filter(|remark| remark.contains("not translated")).count())
    };
    let found = page("404 {\n root * /e\n rewrite * /1.html\n file_server\n}");
    assert_eq!(found, ("error-page 404 \"file:/e/1.html\"".to_owned(), 0));
    assert_eq!(page("{\n @x expression `{err.status_code} == 404`\n rewrite @x /1.html\n file_server\n}").1, 1);
    assert_eq!(page("404 {\n respond gone 404\n}").1, 0);
    assert_eq!(page("404 {\n respond gone 200\n}").1, 1);
}

/// A root by the host of the request: each host has a site, if they are known.
#[test]
fn roots_may_have_the_host() {
    let roots = |address: &str| lines(&format!("{address} {{\n root * /srv/{{host}}\n file_server\n}}"), "root");
    assert_eq!(roots("a.de, b.de"), ["root \"/srv/a.de\"", "root \"/srv/b.de\""]);
    assert_eq!(lines("*.de {\n root * /srv/{host}\n file_server\n}", "deny all").len(), 2);
}

/// A guard that comes before a rewrite holds for its target, too, which is said.
#[test]
fn guards_hold_for_targets_of_rewrites() {
    let notes = |guard: &str, rest: &str| {
        let (_, remarks) = translated(&format!("a.de {{\n route {{\n{guard}\n{rest}\n file_server\n }}\n}}"));
        let is_said =
            |remark: &&String| remark.contains("an earlier rule guards") || remark.contains("out of its block");
        remarks.iter().filter(is_said).count()
    };
    for guard in ["basic_auth /1/* {\n anna $2a$14$x\n}", "respond /1/* 403"] {
        assert_eq!(notes(guard, "rewrite /2 /1/3"), 1);
        assert_eq!(notes(guard, "try_files {path} /1/3"), 1);
        assert_eq!(notes(guard, "rewrite /2 /3"), 0);
    }
    assert_eq!(notes("basic_auth /1/* {\n anna $2a$14$x\n}", "rewrite /1/2 /1/3"), 0);
}

/// Groups of an expression for a field, or for the host of a site.
#[test]
fn groups_are_those_of_the_expression() {
    let redirect = |matcher: &str, target: &str| {
        lines(&format!("a.de {{\n @x {{\n {matcher}\n }}\n redir @x {target}\n}}"), "redirect").concat()
    };
    let field = redirect("header_regexp x X-A ^(b+)$", "/1/{re.x.1}{uri}");
    assert!(field.starts_with("redirect \"*\" \"/1/{match.1}{path}{query}\" status=302 when="), "{field}");
    assert!(redirect("path_regexp ^/(.)$", "/2/{re.1}").contains(" \"/2/{1}\" "));
    // Which of two it is cannot be told. Clients must not choose the host.
    assert_eq!(redirect("header_regexp A ^(.)$\n header_regexp B ^(.)$", "/{re.1}"), "");
    assert_eq!(redirect("header_regexp A ^(.)$", "https://{re.1}/"), "");
    let text =
        "a.de, www.a.de {\n @x header_regexp x Host ^www\\.(.+)$\n redir @x https://{re.x.1}{uri}\n respond ok\n}";
    assert_eq!(lines(text, "redirect"), ["redirect \"*\" \"https://a.de{path}{query}\" status=302"]);
}

/// A field for an upstream decided on the handler of the request.
#[test]
fn fields_for_upstreams_choose_no_handler() {
    let text = |field: &str| {
        format!(
            "a.de {{\n @x header X-A b\n handle @x {{\n respond c\n }}\n reverse_proxy a:80 {{\n header_up {field} b\n }}\n}}"
        )
    };
    assert_eq!(lines(&text("x-a"), "deny"), ["deny all"]);
    assert_eq!(lines(&text("X-C"), "deny"), [""; 0]);
    // A rejection reads the client's field.
    let text = "a.de {\n @x not header X-A b\n respond @x 403\n reverse_proxy a:80 {\n header_up -X-A\n }\n}";
    assert_eq!(lines(text, "deny").len(), 1);
}

/// A list of a directory named hidden files.
#[test]
fn lists_name_nothing_hidden() {
    let lists = |name: &str| {
        let text = format!("a.de {{\n file_server browse {{\n hide {name}\n }}\n}}");
        (lines(&text, "browse").len(), translated(&text).1.len())
    };
    assert_eq!((lists("b"), lists(".git")), ((0, 1), (1, 0)));
}

/// A proxy for all that is no file has directories with an index, too.
#[test]
fn directories_are_no_files() {
    check(
        "root * /srv\n@x not file\nreverse_proxy @x a:80\nfile_server browse",
        "root \"/srv\"\nindex\nforward \"http://a:80\"",
    );
    let (_, remarks) = translated("a.de {\n route {\n file_server {\n pass_thru\n }\n reverse_proxy a:80\n }\n}");
    assert!(remarks[0].contains("missing files have status 404"), "{remarks:?}");
}
