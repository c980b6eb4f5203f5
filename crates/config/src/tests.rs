mod expressions;
mod known_names;
mod never_panics;
mod old_names;
mod reuse;

use std::path::Path;
use std::sync::{Arc, LazyLock};

use tempfile::NamedTempFile;

use super::*;
use crate::options::{OptionContext, OptionDefinition, OptionSetter};

/// The configuration that a text is, which must have no error.
fn parse(text: &str) -> Config {
    let checked = check_bytes("test.kdl", text.as_bytes().to_vec(), Path::new("/base"));
    let Some(config) = checked.config else { panic!("{text}\n{}", checked.diagnostics.to_text(false)) };
    config
}

/// The messages for a text, each with its line.
fn messages(text: &str) -> Vec<String> {
    let checked = check_bytes("test.kdl", text.as_bytes().to_vec(), Path::new("/base"));
    assert_eq!(checked.config.is_none(), checked.diagnostics.has_error(), "{text}");
    checked
        .diagnostics
        .iter()
        .map(|one| format!("{}: {}", one.source.position(one.span.start).0, one.message))
        .collect()
}

/// Mistakes of users who know other servers.
#[test]
fn help_leads_to_what_was_meant() {
    let check = |option: &str, message: &str, help: &str| {
        let text = in_place(OptionContext::Site, option);
        let checked = check_bytes("test.kdl", text.as_bytes().to_vec(), Path::new("/base"));
        let found = checked.diagnostics.iter().find(|one| one.message.contains(message));
        let found = found.unwrap_or_else(|| panic!("{option}: {}", checked.diagnostics.to_text(false)));
        assert!(found.help.as_deref().unwrap_or_default().contains(help), "{option}: {found:?}");
    };
    check(r#"forward "fastcgi://127.0.0.1:9000""#, "`fastcgi://127.0.0.1:9000` is not", r#"`"tcp://127.0.0.1:9000"`"#);
    check("compress-bytes-min 10MB", "`10MB` needs quotes", r#"write `"10MiB"`"#);
    check(r#"compress-bytes-min "8k""#, "`8k` is not a size", r#"write `"8KiB"`"#);
    check(r#"forward "127.0.0.1:3000""#, "`127.0.0.1:3000` is not a server", r#"write `"http://127.0.0.1:3000"`"#);
    check(r#"forward "/run/app.sock""#, "`/run/app.sock` is not a server", r#"write `"unix:/run/app.sock"`"#);
    check(r#"forward "http://a:1/b/""#, "`http://a:1/b/` is not only", "`strip-prefix` removes");
    check("forward http://a:1 {\n}", "`http://a:1` needs quotes", r#"write `"http://a:1"`"#);
    check(r#"response-header "X-A" "b" always"#, "has a word of another server", "remove it: all responses");
    check(r#"rate-limit "10/s" nodelay"#, "has a word of another server", "remove it: requests within");
    check("compress on\n compress off", "`compress` is given twice", "keep one of them");
    check(r#"error_log "/var/log/e.log""#, "unknown option `error_log`", "`error_log` is `log-level` here");
    check(r#"redirect "^/foo(.*)$" "/b""#, "`^/foo(.*)$`", r##"write `#"~^/foo(.*)$"#`"##);
    check(r#"redirect "/re/(.*)" "/b""#, "`/re/(.*)`", r##"write `#"~/re/(.*)"#`"##);
    check(r#"redirect "/old/*" "/new/$1""#, "`$1` is not a placeholder", "`{rest}`");
    check(r#"rewrite "/a" "/b?$query_string""#, "`$query_string` is not a placeholder", "`{query}`");
    check(r#"redirect "/loop" "/loop""#, "leads to itself", "another target");
    check(r#"redirect "*" "{path}{query}""#, "leads to itself", "another target");
    parse(&in_place(OptionContext::Site, r#"redirect "/a" "/a?b" query="!b""#));
    parse(&in_place(OptionContext::Site, r#"redirect "/a" "/b/$/%24c""#));
    let closed = "site a {\n listen 81\n root \"/\"\n respond \"*\" STATUS\n}\n";
    assert!(messages(&closed.replace("STATUS", "503")).is_empty(), "a site may be closed for a while");
    assert_eq!(messages(&closed.replace("STATUS", "404")), ["1: this is never used"]);
    let scripts = "site a {\n listen 81\n fastcgi \"*.php\" \"unix:/run/php.sock\" root=\"/\"\n respond \"*\" 404\n}\n";
    assert!(messages(scripts).is_empty(), "the scripts run");
    let front = scripts.replace("root=\"/\"", "root=\"/\" { fallback \"/a.php\"; }");
    assert_eq!(messages(&front), ["3: this is never used"]);
    let led = |rewrite: &str| {
        format!("site a {{\n listen 81\n {rewrite}\n redirect \"*\" \"https://b/\"\n respond \"/c/*\" 200\n}}")
    };
    for rewrite in ["rewrite \"/c/d/*\" \"{path}\"", "rewrite \"/a\" \"/c/a?b\"", "rewrite \"*.x\" \"{path}\""] {
        assert!(messages(&led(rewrite)).is_empty(), "{rewrite} leads past the redirect");
    }
    for rewrite in ["rewrite \"/a/*\" \"{path}\"", "rewrite \"*\" \"/c/a\" missing=on"] {
        assert_eq!(messages(&led(rewrite)), ["5: this is never used"], "{rewrite}");
    }
    let filtered = "site a {\n listen 81\n module \"*\" \"/filter.wasm\"\n forward \"http://127.0.0.1:3000\"\n}\n";
    assert!(!messages(filtered).iter().any(|one| one.contains("never used")), "a module may pass on");
}

/// One run reports all mistakes of a newcomer.
#[test]
fn one_mistake_hides_no_other() {
    let text = "server { workers 1000000 }\n\
                site \"a.example\" {\n listen 127.0.0.1:80\n root /nothing/here\n browse true\n compress-bytes-min 10M\n}\n\
                site \"a.example\" {\n listen 127.0.0.1:80\n autoindex on\n}\n\
                site b {\n listen 81\n}\n\
                site c { certificate a/c.pem key=ca/a.key }\n";
    let found = messages(text);
    for expect in [
        "1: ",
        "3: `127.0.0.1:80` needs quotes",
        "4: `/nothing/here` needs quotes",
        "2: the root /nothing/here: ",
        "5: `true` is not a value",
        "6: `10M` needs quotes",
        "6: `10M` ",
        "8: `a.example` is named twice",
        "9: `127.0.0.1:80` needs quotes",
        "10: unknown option `autoindex`",
        "12: this site has nothing to serve",
        "15: `a/c.pem` needs quotes",
        "15: `ca/a.key` needs quotes",
    ] {
        assert!(found.iter().any(|message| message.starts_with(expect)), "{expect}: {found:#?}");
    }
    // Units of other servers are translated, once.
    assert_eq!(messages(&in_place(OptionContext::Site, "compress-bytes-min 10KB")), ["3: `10KB` needs quotes"]);
    // Ambiguous values are not guessed.
    assert_eq!(
        messages("site a {\n browse yes\n root \"x\n"),
        ["3: this text is not closed"],
        "the end of the block is in the text"
    );
    assert!(format_bytes("test.kdl", b"site a { root /srv }\n".to_vec()).is_err());
}

/// A whole configuration in which this node stands in this place.
fn in_place(place: OptionContext, node: &str) -> String {
    let site = r#"site "x.example" { respond "*" 404 }"#;
    match place {
        OptionContext::Top => format!("{node}\n{site}\n"),
        OptionContext::Site => format!("site \"x.example\" {{\n root \"/\"\n {node}\n}}\n"),
        OptionContext::Files => {
            format!("site \"x.example\" {{ files \"/downloads/*\" {{\n root \"/\"\n {node}\n}} }}\n")
        }
        OptionContext::Map => format!("map \"x\" \"{{host}}\" {{\n {node}\n}}\n{site}\n"),
        OptionContext::Ftp => format!("site \"x.example\" {{ ftp 21 {{\n root \"/\"\n {node}\n}} }}\n"),
        OptionContext::Forward => {
            format!("site \"x.example\" {{ forward \"http://[::1]:80\" path=\"/app/*\" {{\n {node}\n}} }}\n")
        }
        OptionContext::FastCgi => {
            format!("site \"x.example\" {{ fastcgi \"*.php\" \"tcp://[::1]:9000\" root=\"/\" {{\n {node}\n}} }}\n")
        }
        OptionContext::Cgi => format!("site \"x.example\" {{ cgi \"*.cgi\" root=\"/\" {{\n {node}\n}} }}\n"),
        OptionContext::Scgi => format!("site \"x.example\" {{ scgi \"/app/*\" \"[::1]:4000\" {{\n {node}\n}} }}\n"),
        OptionContext::Uwsgi => format!("site \"x.example\" {{ uwsgi \"/app/*\" \"unix:/a\" {{\n {node}\n}} }}\n"),
        OptionContext::Caching => {
            format!("site \"x.example\" {{ forward \"http://[::1]:80\" {{ cache {{\n {node}\n}} }} }}\n")
        }
        OptionContext::Module => {
            let file = component().path().display();
            format!("site \"x.example\" {{ module \"/shop/*\" \"{file}\" {{\n {node}\n}} }}\n")
        }
        OptionContext::Modules => format!("modules {{\n {node}\n}}\n{site}\n"),
        OptionContext::Server => format!("server {{\n {node}\n}}\n{site}\n"),
        OptionContext::Limits => format!("limits {{\n {node}\n}}\n{site}\n"),
        OptionContext::Cache => format!("cache {{\n {node}\n}}\n{site}\n"),
        OptionContext::Confinement => format!("confinement {{\n {node}\n}}\n{site}\n"),
        OptionContext::Traces => format!("traces {{\n {node}\n}}\n{site}\n"),
        OptionContext::Bots => format!("site \"x.example\" {{ root \"/\"; bots \"forum\" {{\n {node}\n}} }}\n"),
        OptionContext::Store => {
            let url = match node.split(' ').next() {
                Some("url") => "",
                Some("endpoint") => "url \"kubernetes://a\"\n",
                _ => "url \"valkey://a\"\n",
            };
            format!("store {{\n {url}{node}\n}}\n{site}\n")
        }
        OptionContext::AutomaticCertificates => format!("automatic-certificates {{\n {node}\n}}\n{site}\n"),
        OptionContext::Upstream => {
            let servers = "server \"http://[::1]:80\"\n server \"https://[::1]\"";
            format!("upstream \"x\" {{\n {servers}\n {node}\n}}\n{site}\n")
        }
    }
}

/// A file that begins as a component does (Component Model, Binary.md: magic, version and layer).
fn component() -> &'static NamedTempFile {
    static COMPONENT: LazyLock<NamedTempFile> = LazyLock::new(|| {
        let file = NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"\0asm\x0d\0\x01\0").unwrap();
        file
    });
    &COMPONENT
}

/// Each option in each of its places; not `include`, which needs files, and `root`, which `in_place` gives already.
fn each_option(mut see: impl FnMut(OptionContext, &'static OptionDefinition)) {
    for place in OptionContext::ALL {
        for option in
            place.options().filter(|option| !matches!(option.set, OptionSetter::Include) && option.name != "root")
        {
            see(place, option);
        }
    }
}

#[test]
fn each_default_is_that_of_the_model() {
    each_option(|place, option| {
        if !option.default.is_empty() {
            let (with, without) = (parse(&in_place(place, option.default)), parse(&in_place(place, "")));
            assert_eq!(with, without, "`{}` {}", option.default, place.describe());
        }
    });
}

#[test]
fn each_example_changes_something() {
    each_option(|place, option| {
        if ["certificate", "client-certificate", "module", "directory", "dns-hook", "external-account"]
            .contains(&option.name)
            || ["tls-ca-file", "tls-certificate", "require-tls", "implicit-tls", "write"].contains(&option.name)
            || ["include", "snippet", "use", "password-file", "key-file", "crawler", "agent-keys", "enforce-robots"]
                .contains(&option.name)
            || (place, option.name) == (OptionContext::Store, "url")
        {
            // Their files are read, and a store without a URL is an error.
            return;
        }
        // The defaults for all sites show in a site.
        let text = match (place, option.set) {
            (OptionContext::Top, OptionSetter::Files(_)) => {
                format!("{}\nsite \"x.example\" {{ root \"/\" }}", option.example)
            }
            // Status views need an access rule on public addresses.
            (OptionContext::Site, _) if ["metrics", "status-page"].contains(&option.name) => {
                format!("site {{ listen \"127.0.0.1:80\"; root \"/\"\n {}\n}}", option.example)
            }
            _ => in_place(place, option.example),
        };
        let without = text.replacen(option.example, "", 1);
        assert_ne!(parse(&text), parse(&without), "`{}` {}", option.example, place.describe());
    });
}

#[test]
fn each_option_is_described_in_full() {
    for place in OptionContext::ALL {
        for option in place.options() {
            let name = option.name;
            assert!(option.doc.ends_with('.'), "{name}");
            assert!(option.example.starts_with(name), "{name}");
            assert!(option.default.is_empty() || option.default.starts_with(name), "{name}");
            assert_eq!(place.options().filter(|other| other.name == name).count(), 1, "{name} {}", place.describe());
        }
    }
}

#[test]
fn a_site_is_a_few_lines() {
    let config = parse(
        r#"
        site "Example.com." "*.example.com" {
            listen "127.0.0.1:8080"
            root "www"
            index "index.html" "index.htm"
            browse
            cache-control "/assets/*" "max-age=31536000, immutable"
            redirect "/old/*" "/new/{rest}" status=301
            respond "/healthz" 200 "ok"
            files "/dl/*" root="/srv/dl" { browse off }
            error-page 404 "5xx" "/error.html"
        }
        "#,
    );
    let [site] = config.sites.as_slice() else { panic!("one site") };
    assert_eq!(site.names, [HostPattern::Exact("example.com".into()), HostPattern::Suffix(".example.com".into())]);
    assert_eq!(site.listen, [Listen::Tcp(([127, 0, 0, 1], 8080).into())]);
    let [redirect] = site.rules.rewrites.as_slice() else { panic!("a redirect: {:?}", site.rules.rewrites) };
    assert_eq!(redirect.path, PathPattern::Prefix("/old/".into()));
    let target = [TemplatePiece::Literal("/new/".into()), TemplatePiece::Rest];
    assert_eq!(
        (redirect.status.map(wire::http::Status::code), redirect.target.pieces.as_slice()),
        (Some(301), &target[..])
    );
    let [respond, part, whole] = site.routes.as_slice() else { panic!("three routes: {:?}", site.routes) };
    assert_eq!(respond.path, PathPattern::Exact("/healthz".into()));
    let (HandlerConfig::Files(part), HandlerConfig::Files(whole)) = (&part.handler, &whole.handler) else {
        panic!("files")
    };
    assert_eq!(whole.root.pieces, [RootPiece::Literal("/base/www".into())]);
    assert_eq!(part.root.pieces, [RootPiece::Literal("/srv/dl".into())]);
    assert_eq!((whole.browse, part.browse), (true, false));
    assert_eq!(part.index, whole.index, "what a part doesn't say is as in the site");
    let page = |from, to| ErrorPageConfig { from, to, file: ErrorPageFile::BelowRoot("/error.html".into()) };
    assert_eq!(site.error_pages, [page(404, 404), page(500, 599)]);
    assert!(!site.default);
}

#[test]
fn errors_are_found_in_one_run() {
    let check = |text: &str, expect: &[&str]| assert_eq!(messages(text), expect, "{text}");
    check("", &["1: there is no site"]);
    check("server { workers 0 }\nsits { }", &["1: 0 is out of range", "2: unknown option `sits` at the top level"]);
    check("site { }", &["1: this site has nothing to serve"]);
    check("site { respond \"*\" 200 }\nsite { respond \"*\" 200 }", &["2: two default sites on 0.0.0.0:80"]);
}

/// Wrong values of nodes by their block, and the message for each.
#[test]
fn wrong_values_are_explained() {
    let check = |place: OptionContext, nodes: &[(&str, &str)]| {
        for (node, expect) in nodes {
            let found = messages(&in_place(place, node));
            let texts: Vec<_> = found.iter().filter_map(|message| Some(message.split_once(": ")?.1)).collect();
            assert_eq!(texts, [*expect], "{node}");
        }
    };
    check(
        OptionContext::Server,
        &[
            ("workers", "`workers` needs `count`"),
            ("workers 1 2", "`workers` takes one value"),
            ("workers 1.5", "expected `auto` or a number, from 1 to 1024, found a number with a fraction"),
            ("workers \"4\"", "expected `auto` or a number, from 1 to 1024, found a text"),
            ("workers #null", "expected `auto` or a number, from 1 to 1024, found nothing (`#null`)"),
            ("workers -1", "-1 is out of range"),
            ("workers 99999999999999999999999", "99999999999999999999999 is out of range"),
            ("workers 1 fast=on", "`workers` has no property `fast`"),
            ("workers (u8)1", "type annotations are not supported"),
            ("(a)workers 1", "type annotations are not supported"),
            ("workers 1 { a }", "`workers` has no block"),
            ("pin-workers 1", "expected `on` or `off`, found a number"),
            ("pin-workers yes", "`yes` is neither `on` nor `off`"),
            ("log-level loud", "`loud` is not a valid value"),
            ("grace-period \"30\"", "`30` is not a time"),
            ("grace-period \"s\"", "`s` is not a time"),
            ("grace-period \"1.5s\"", "`1.5s` is not a time"),
            ("grace-period \"999999999999999999999s\"", "the time is out of range"),
            ("grace-period \"18446744073709551615d\"", "the time is out of range"),
        ],
    );
    check(
        OptionContext::Limits,
        &[
            ("head-bytes-max \"16k\"", "`16k` is not a size"),
            ("head-bytes-max \"-1KiB\"", "`-1KiB` is not a size"),
            ("head-bytes-max \"1TiB\"", "the size is out of range"),
            ("head-bytes-max \"4KiB\"", "`target-bytes-max` is above `head-bytes-max`"),
            ("idle-timeout \"0s\"", "the time is out of range"),
        ],
    );
    let long = format!("listen \"unix:/{}\"", "a".repeat(107));
    check(
        OptionContext::Site,
        &[
            ("listen \"example.com:80\"", "`example.com` is not an IP address"),
            ("listen \"127.0.0.1\"", "`127.0.0.1` has no port"),
            ("listen \"::1\"", "`::1` has no port"),
            ("listen \"80a\"", "`80a` is not an address to listen on"),
            ("listen 65536", "65536 is not a port, which is from 0 to 65535"),
            ("listen \"unix:\"", "a path or name is missing"),
            ("listen \"unix:/a\" mode=\"8\"", "`8` is not a file mode"),
            ("listen \"unix:/a\" mode=660", "expected permissions in octal, such as `\"660\"`, found a number"),
            ("listen 80\nlisten 80", "this site listens twice on 0.0.0.0:80"),
            (long.as_str(), "the path of a unix socket has at most 107 bytes"),
            ("redirect \"a\" \"/b\"", "`a` is not a path"),
            ("redirect \"/a/*/b\" \"/b\"", "`/a/*/b` has a `*` in the wrong place"),
            ("redirect \"/a%20b\" \"/b\"", "`/a%20b` matches no request: paths are compared decoded"),
            (
                "redirect \"/a/../b\" \"/b\"",
                "`/a/../b` matches no request: paths are compared without `//`, `.` and `..`",
            ),
            ("redirect \"/a?b\" \"/b\"", "`/a?b` matches no request: a path has no query and no fragment"),
            ("redirect \"/a\" \"/{tail}\"", "`{tail}` is not a placeholder here"),
            ("redirect \"/a\" \"/{host\"", "`/{host` has a brace that is not closed"),
            ("redirect \"/a\" \"javascript:alert(1)\"", "`javascript:alert(1)` is not a path or URL"),
            ("redirect \"/a\" \"/b\\r\\nX: 1\"", "the value of a field has no control characters"),
            ("redirect \"/a\" \"/b\" status=304", "304 can't be used here"),
            ("respond \"/a\" 99", "99 can't be used here"),
            ("error-page 200 \"/a\"", "this is no error status"),
            ("error-page \"504-500\" \"/a\"", "this is no error status"),
            ("error-page 404 \"a.html\"", "`a.html` is neither below the root nor a file elsewhere"),
            ("header \"X Y\" \"1\"", "`X Y` is not the name of a header field (RFC 9110, section 5.1)"),
            ("header \"transfer-encoding\" \"x\"", "`transfer-encoding` is set by the server itself"),
            ("header \"X\" \"a\\nb\"", "the value of a field has no control characters"),
            ("header \"x y\" \"X\" \"a\"", "`x y` is neither a path nor a content type"),
            ("index \"a/b\"", "`a/b` is not the name of a file"),
            ("type \"text/x\" \".x\"", "`.x` is not an extension"),
            ("type \"text\" \"x\"", "`text` is not a content type"),
            ("fallback \"index.html\"", "`index.html` is not a path"),
            ("access-log \"syslog:loca0\"", "`loca0` is not a valid value"),
            ("access-log \"a\" format=\"jsn\"", "`jsn` is not a format"),
            ("compress-bytes-min \"2MiB\"", "`compress-bytes-min` is above `compress-bytes-max`"),
            ("files \"/a/*\" { strip-prefix \"/b\" }", "no path of this pattern begins with `/b`"),
            ("files \"/a/*\" root=\"/x/{hots}\"", "`{hots}` is not a placeholder here"),
            ("files \"/a/*\" root=\"/x/{host:0}\"", "`{host:0}` is not a placeholder here"),
            ("redirect \"/c/*\" \"/b\"\nrespond \"/c/d\" 200", "this is never used"),
        ],
    );
}

#[test]
fn an_upstream_is_a_few_lines() {
    let config = parse(
        r#"
        upstream "app" {
            server "http://127.0.0.1:8001" weight=2
            server "http://App.Internal/"
            server "http://[::1]:8003" backup=on
            server "unix:run/app.sock"
            balance hash by="cookie:session"
            health-check "/healthz?deep" status-max=204 host="app.example"
        }
        upstream "other" { server "http://localhost:3000" }
        site { respond "*" 200 }
        "#,
    );
    let [app, other] = config.upstreams.as_slice() else { panic!("two upstreams") };
    let servers: Vec<_> = app.servers.iter().map(|one| (one.address.to_string(), one.weight, one.backup)).collect();
    let server = |address: &str, weight, backup| (address.to_owned(), weight, backup);
    assert_eq!(
        servers,
        [
            server("http://127.0.0.1:8001", 2, false),
            server("http://app.internal:80", 1, false),
            server("http://[::1]:8003", 1, true),
            server("unix:/base/run/app.sock", 1, false),
        ]
    );
    assert_eq!(app.balance, Balance::Hash(HashKey::Cookie("session".into())));
    let check = app.health_check.as_ref().unwrap();
    assert_eq!((check.path.as_str(), check.host.as_deref()), ("/healthz?deep", Some("app.example")));
    assert_eq!((check.status_min, check.status_max, check.rise, check.fall), (200, 204, 2, 3));
    // A URL in place of a name makes the same upstream, except for its name.
    let implicit = UpstreamConfig::of_server(UpstreamServerAddress::Tcp("localhost".into(), 3000));
    assert_eq!(UpstreamConfig { name: "http://localhost:3000".into(), ..(**other).clone() }, implicit);
}

#[test]
fn scripts_are_a_few_lines() {
    let text = "site \"x.example\" {\n root \"/\"\n fastcgi \"*.php\" \"[::1]:9000\" { fallback \"/index.php\" }\n\
                cgi \"/cgi-bin/*\" root=\"/usr\" { user \"nobody\"; interpreter \"perl\" }\n\
                uwsgi \"/app/*\" \"unix:app.sock\" { application \"/app/\" }\n}\n";
    let config = parse(text);
    let routes = &config.sites[0].routes;
    let gateway = |index: usize| match &routes[index].handler {
        HandlerConfig::Gateway(gateway, part) => (gateway, *part),
        other => panic!("{other:?}"),
    };
    assert_eq!(routes.len(), 5, "scripts, programs, the application, files, and what is left of the first");
    let ((php, first), (rest, last)) = (gateway(0), gateway(4));
    assert!(Arc::ptr_eq(php, rest) && (first, last) == (GatewayPart::Scripts, GatewayPart::Rest));
    assert_eq!((&routes[0].path, &routes[4].path), (&PathPattern::Any, &PathPattern::Any));
    assert_eq!(
        (php.forward.upstream.as_str(), php.index.as_slice()),
        ("tcp://[::1]:9000", &["index.php".to_owned()][..])
    );
    assert_eq!(*config.upstreams[0], UpstreamConfig::of_server(UpstreamServerAddress::OtherTcp("[::1]".into(), 9000)));
    let (cgi, _) = gateway(1);
    assert_eq!(cgi.root.as_ref().map(|root| root.pieces.clone()), Some(vec![RootPiece::Literal("/usr".into())]));
    assert_eq!(cgi.programs.interpreter.as_deref(), Some(Path::new("/base/perl")));
    assert!(cgi.programs.user.is_some_and(|user| user.user_id != 0) && cgi.index.is_empty());
    let (application, _) = gateway(2);
    assert_eq!((application.application.as_str(), &application.root), ("/app", &None));
    assert_eq!(routes[2].path, PathPattern::Prefix("/app/".into()));
}

#[test]
fn wrong_scripts_are_explained() {
    let check = |nodes: &str, expect: &str| {
        let found = messages(nodes);
        let found: Vec<_> = found.iter().filter_map(|message| message.split_once(": ")).map(|(_, text)| text).collect();
        assert_eq!(found, [expect], "{nodes}");
    };
    let site = |node: &str| format!("site \"x.example\" {{ {node} }}");
    check(&site("cgi \"*.cgi\""), "this `cgi` has no root");
    check(&site("fastcgi \"*.php\" \"http://a:9000\" root=\"/\""), "`http://a:9000` is an HTTP URL");
    check(&site("fastcgi \"*.php\" \"/run/php.sock\" root=\"/\""), "`/run/php.sock` is a path");
    check(&site("fastcgi \"*.php\" \"php\" root=\"/\""), "there is no upstream `php`");
    check(&site("forward \"tcp://a:1\""), "`forward` uses HTTP");
    check(&site("cgi \"/a/*\" root=\"/\" { strip-prefix \"/b\" }"), "no path of this pattern begins with `/b`");
    check(&site("scgi \"/a/*\" \"a:1\" { application \"/b\" }"), "no path of this pattern begins with `/b`");
    check(&site("cgi \"*\" root=\"/\" { user \"no-such-user\" }"), "there is no user `no-such-user`");
    check(&site("cgi \"*\" root=\"/\" { user \"root\" }"), "programs cannot run as root");
    check(&site("cgi \"*\" root=\"/\" { variable \"A=B\" \"c\" }"), "`A=B` is not the name of a variable");
    let upstream = |server: &str, site: &str| format!("upstream \"x\" {{ {server} }}\nsite \"x.example\" {{ {site} }}");
    let (http, other) = ("server \"http://a:1\"", "server \"tcp://a:1\"");
    let (forward, scgi) = ("forward \"x\"", "scgi \"/a/*\" \"x\"");
    check(&upstream(other, forward), "`forward` uses HTTP with this upstream");
    check(&upstream(http, scgi), "`scgi` does not use HTTP with this upstream");
    check(
        &upstream("server \"unix:/a\"", &format!("{scgi}\n{forward}")),
        "this upstream is used with HTTP and with scgi",
    );
    check(
        &upstream(&format!("{other}\n health-check \"/\""), scgi),
        "health checks are HTTP requests, which `scgi` servers do not answer",
    );
}

#[test]
fn wrong_upstreams_are_explained() {
    let check = |node: &str, expect: &str| {
        let found = messages(&in_place(OptionContext::Upstream, node));
        let found: Vec<_> = found.iter().filter_map(|message| message.split_once(": ")).map(|(_, text)| text).collect();
        assert_eq!(found, [expect], "{node}");
    };
    check("server \"127.0.0.1:80\"", "`127.0.0.1:80` is not a server's URL");
    check("server \"ftp://a\"", "`ftp://a` is not a server's URL");
    check("server \"https://a:0\"", "`0` is not a port, which is from 1 to 65535");
    check("server \"tcp://a\"", "`tcp://a` has no port");
    check("server \"http://a/b\"", "`http://a/b` is not only a server");
    check("server \"http://user@a\"", "`http://user@a` is not only a server");
    check("server \"http://a:0\"", "`0` is not a port, which is from 1 to 65535");
    check("server \"http://a:http\"", "`http` is not a port, which is from 1 to 65535");
    check("server \"http://::1\"", "`:` needs brackets");
    check("server \"http://2001:db8::1:80\"", "`2001:db8::1` needs brackets");
    check("server \"http://a b\"", "`a b` is not a host name");
    check("server \"http://*.a\"", "`*.a` matches many servers");
    check("server \"http://\"", "`` is not a host name");
    check("server \"unix:\"", "a path or name is missing");
    check("server \"http://a\" weight=0", "0 is out of range");
    check("balance fair", "`fair` is not a valid value");
    check("balance hash by=\"path\"", "`path` is not a key for `balance hash`");
    check("balance hash by=\"cookie:a b\"", "`cookie:a b` is not a key for `balance hash`");
    check("health-check \"healthz\"", "`healthz` is not the target of a request");
    check("health-check \"/a b\"", "`/a b` is not the target of a request");
    check("health-check \"/\" status-min=300 status-max=299", "`status-min` is above `status-max`");
    check("eject-time \"10m\"", "`eject-time` is above `eject-time-max`");
    check("tries-max 9", "9 is out of range");
    check("proxy-protocol v3", "`v3` is not a valid value");
    let whole = |text: &str, expect: &[&str]| {
        assert_eq!(messages(&format!("{text}\nsite {{ respond \"*\" 200 }}")), expect, "{text}");
    };
    whole("upstream \"a\" { }", &["1: this upstream has no server"]);
    whole("upstream \"\" { server \"http://a\" }", &["1: this upstream has no name"]);
    let without_tls = "upstream \"a\" { server \"http://a\"; tls-verify off }";
    whole(without_tls, &["1: no server of this upstream uses TLS"]);
    whole("upstream \"a\" { server \"http://a\" backup=on }", &["1: all servers of this upstream are backups"]);
    let twice = "upstream \"a\" { server \"http://a\" }\n";
    whole(&twice.repeat(2), &["2: two upstreams have the name `a`"]);
    let many = format!("upstream \"a\" {{ {} }}", "server \"http://a\";".repeat(UpstreamConfig::SERVERS_MAX + 1));
    whole(&many, &["1: this upstream has too many servers"]);
}

#[test]
fn a_cache_without_a_block_has_the_defaults() {
    for handler in ["forward \"http://[::1]:80\"", "fastcgi \"*.php\" \"[::1]:9000\" root=\"/srv\""] {
        let with = |cache: &str| parse(&format!("site {{ listen 20080; {handler} {{ {cache} }} }}"));
        assert_eq!(with("cache"), with("cache { }"), "{handler}");
        assert_ne!(with("cache"), with(""), "{handler}");
    }
    assert_eq!(messages("site { listen 20080; root \"/srv\" }\ncache"), ["2: `cache` needs a block"]);
}

#[test]
fn conflicts_between_sites_are_found() {
    let check = |text: &str, expect: &[&str]| assert_eq!(messages(text), expect, "{text}");
    let site = |names: &str, inside: &str| format!("site {names} {{ respond \"*\" 200; {inside} }}\n");
    check(&(site("a", "") + &site("b a", "")), &["2: `a` is named twice on the same address"]);
    check(&(site("a", "listen 81") + &site("a", "listen 82")), &[]);
    check(
        &(site("a", "listen \"127.0.0.1:80\"") + &site("A.", "listen \"127.0.0.1:80\"")),
        &["2: `a` is named twice on the same address"],
    );
    check(&site("a a", ""), &["1: `a` is named twice on the same address"]);
    check(&(site("\"*.a\"", "") + &site("a", "")), &[]);
    check(&(site("a", "default") + &site("b", "default")), &["2: two default sites on 0.0.0.0:80"]);
    check(&(site("a", "default") + &site("", "")), &["2: two default sites on 0.0.0.0:80"]);
    check(&(site("a", "default") + &site("b", "default; listen 81")), &[]);
    let proxied = "listen \"127.0.0.1:80\" proxy-protocol=on";
    check(&site("a", proxied), &["1: `proxy-protocol` without `trusted-proxies`"]);
    check(
        &(site("a", proxied) + &site("b", "listen \"127.0.0.1:80\"") + "server { trusted-proxies \"10.0.0.1\" }"),
        &["2: 127.0.0.1:80 is given both with and without `proxy-protocol`"],
    );
    check(
        &(site("a", "listen \"unix:/s\" mode=\"600\"") + &site("b", "listen \"unix:/s\" mode=\"666\"")),
        &["2: unix:/s has two different modes"],
    );
    check(
        "site a { error-page 404 \"/e\"; redirect \"*\" \"/\" }",
        &["1: `/e` is below the site's root, but the site has no root"],
    );
    check("site a { root \"/nowhere/at/all\" }", &["1: the root /nowhere/at/all: there is no such file or directory"]);
    check(
        "site a { root \"/nowhere/{host:1}/{host}\" }",
        &["1: the root /nowhere/: there is no such file or directory"],
    );
    check("site a { root \"/etc/passwd\" }", &["1: the root /etc/passwd is not a directory"]);
    check(
        "site a { listen foo }\nsite a { root 1 }\nsite b { rot }",
        &[
            "1: `foo` is not an address to listen on",
            "2: expected a directory; `{host}` is the host, `{host:N}` its first N letters, found a number",
            "3: unknown option `rot` in `site`",
        ],
    );
}

#[test]
fn names_that_other_servers_use_are_translated() {
    let check = |place: OptionContext, node: &str, expect: &str| {
        let checked = check_bytes("test.kdl", in_place(place, node).into_bytes(), Path::new("/base"));
        let help: Vec<_> = checked.diagnostics.iter().filter_map(|one| one.help.clone()).collect();
        assert_eq!(help, [expect], "{node}");
    };
    check(OptionContext::Site, "autoindex", "`autoindex` is `browse` here");
    check(OptionContext::Site, "DocumentRoot", "`DocumentRoot` is `root` here");
    check(OptionContext::Site, "add_header", "`add_header` is `response-header` here");
    check(OptionContext::Site, "idnex", "did you mean `index`?");
    check(OptionContext::Site, "error_page", "`error_page` is `error-page` here");
    check(OptionContext::Site, "workers", "use `workers` in `server`");
    check(
        OptionContext::Top,
        "keepalive_timeout",
        "`keepalive_timeout` is `idle-timeout` here; use `idle-timeout` in `upstream` or in `limits`",
    );
    check(OptionContext::Top, "lisen 80", "use `listen` in `site`");
    check(OptionContext::Top, "example.com { }", "write `site \"example.com\" { … }`");
    check(OptionContext::Cache, "zzz", {
        "options in `cache` are `memory-bytes-max`, `object-bytes-max`, `files-max`, `revalidate-after`, \
         `watch`, `watches-max`, `roots-max` and `disk`"
    });
}

#[test]
fn what_stands_wider_holds_unless_said_narrower() {
    let config = parse(
        r#"
        charset ""
        header "X-All" "1"
        type "text/a" "x" "y"
        access-log "/var/log/all.log"
        error-page "5xx" "/all.html"
        site a { root "/"; listen 81; header "X-Site" "2"; type "text/b" "x"; access-log off; error-page 404 "/own.html" }
        site b { root "/"; charset "utf-8"; listen 82; files "/p/*" { charset "ascii" } }
        "#,
    );
    let files = |site: usize, route: usize| match &config.sites[site].routes[route].handler {
        HandlerConfig::Files(files) => files.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!([files(0, 0).charset, files(1, 0).charset, files(1, 1).charset], ["", "ascii", "utf-8"]);
    let names: Vec<_> = files(0, 0).fields.iter().map(|field| field.name.clone()).collect();
    assert_eq!(names, ["X-All", "X-Site"]);
    let types = [("y", "text/a"), ("x", "text/b")].map(|(extension, kind)| (extension.into(), kind.into()));
    assert_eq!(*files(0, 0).types, types.into());
    assert_eq!([config.sites[0].access_log_off, config.sites[1].access_log_off], [true, false]);
    assert_eq!(config.sites[0].error_pages.iter().map(|page| page.from).collect::<Vec<_>>(), [404, 500]);
    assert!(config.access_log.is_some());
}

#[test]
fn roots_of_many_hosts() {
    let root = |text: &str| match &parse(&format!("site {{ root {text} }}")).sites[0].routes[0].handler {
        HandlerConfig::Files(files) => files.root.clone(),
        other => panic!("{other:?}"),
    };
    let literal = |text: &str| RootPiece::Literal(text.into());
    assert_eq!(root(r#""/srv/{host}""#).pieces, [literal("/srv/"), RootPiece::Host]);
    assert_eq!(
        root(r#""/srv/{host:1}/{host:2}/{host}/htdocs""#).pieces,
        [
            literal("/srv/"),
            RootPiece::HostPrefix(1),
            literal("/"),
            RootPiece::HostPrefix(2),
            literal("/"),
            RootPiece::Host,
            literal("/htdocs"),
        ]
    );
    assert_eq!(root(r#""{host}""#).pieces, [literal("/base/"), RootPiece::Host]);
    let root = root(r#""/srv/{host}" strip-www=on strip-suffix=".Example.net""#);
    assert_eq!((root.strip_www, root.strip_suffix.as_str()), (true, ".example.net"));
}

#[test]
fn addresses_to_listen_on() {
    let check = |text: &str, expect: &[&str]| {
        let listen = &parse(&format!("site {{ respond \"*\" 200; listen {text} }}")).sites[0].listen;
        assert_eq!(listen.iter().map(ToString::to_string).collect::<Vec<_>>(), expect, "{text}");
    };
    check("80", &["0.0.0.0:80", "[::]:80"]);
    check("\":80\"", &["0.0.0.0:80", "[::]:80"]);
    check("\"*:80\"", &["0.0.0.0:80", "[::]:80"]);
    check("\"localhost:80\"", &["127.0.0.1:80"]);
    check("\"127.0.0.1:0\" \"[::1]:8080\"", &["127.0.0.1:0", "[::1]:8080"]);
    check("\"unix:run/x.sock\" \"systemd:web\"", &["unix:/base/run/x.sock", "systemd:web"]);
    let socket = &parse("site { respond \"*\" 200; listen \"unix:/a\" 80 mode=\"0600\" }").sites[0].listen[0];
    assert_eq!(*socket, Listen::Unix("/a".into(), 0o600));
}

#[test]
fn hostile_texts_are_rejected() {
    let check = |bytes: Vec<u8>, expect: &str| {
        let checked = check_bytes("test.kdl", bytes, Path::new("/"));
        let message = checked.diagnostics.iter().next().map(|one| one.message.clone()).unwrap_or_default();
        assert!(message.contains(expect), "{message} instead of {expect}");
        assert_eq!(checked.config, None);
        assert!(
            !checked.diagnostics.to_text(false).contains(['\u{1b}', '\0', '\x0b', '\r']),
            "nothing acts on the terminal"
        );
        assert!(checked.diagnostics.iter().count() <= Diagnostics::LIST_MAX);
    };
    check(b"site \0".to_vec(), "U+0000");
    check(b"site \"\x1b]0;owned\x07\" {}".to_vec(), "U+001B");
    check("site \u{202e}".into(), "U+202E");
    // Issue 17: escapes in texts reached the terminal as what they stand for.
    check(br#"server { log-level "\u{1b}[31m" }"#.to_vec(), "is not a valid value");
    check(br#"server { "a\u{1b}b" 1; "c\r" 2 }"#.to_vec(), "unknown option");
    check(b"a\x0bb\rc".to_vec(), "unknown option");
    check(b"site \xff\xfe".to_vec(), "not UTF-8");
    check(vec![b' '; TEXT_BYTES_MAX + 1], "larger than 4 MiB");
    check("a {".repeat(100_000).into_bytes(), "nested deeper");
    check("a /-{".repeat(100_000).into_bytes(), "nested deeper");
    check("/*".repeat(100_000).into_bytes(), "nested deeper");
    check("site { files \"*\" { ".repeat(5).into_bytes(), "nested deeper");
    check("(".repeat(100_000).into_bytes(), "");
    check("}".repeat(100_000).into_bytes(), "closes no block");
    check("\"".repeat(100_000).into_bytes(), "");
    check("a\\\n".repeat(100_000).into_bytes(), "");
    check("x y z\n".repeat(10_000).into_bytes(), "unknown option");
    check(format!("{} 1\n", "x".repeat(1 << 20)).into_bytes(), "too long");
    check(format!("site {}", "a ".repeat(10_000)).into_bytes(), "");
    check("/- a /-{ a /-{ a /-{ a /-{ a /-{ a /-{ a /-{ a /-{ a".into(), "");
}

/// Each would take minutes if what is done for a part of it looked at all other parts.
#[test]
fn large_configurations_are_checked_in_one_go() {
    let check = |text: String, expect: (usize, usize)| {
        let beginning: String = text.chars().take(200).collect();
        let checked = check_bytes("test.kdl", text.into_bytes(), Path::new("/base"));
        let diagnostics = &checked.diagnostics;
        let shown = diagnostics.to_text(false);
        assert_eq!((diagnostics.error_count(), diagnostics.warning_count()), expect, "{beginning}\n{shown}");
        assert_eq!(checked.config.is_some(), expect.0 == 0, "{beginning}");
    };
    let lines = |count: usize, line: &dyn Fn(usize) -> String| (0..count).map(line).collect::<String>();
    let sites = |count| lines(count, &|index| format!("site s{index} {{ root \"/base/{index}\" }}\n"));
    let types = lines(3_000, &|index| format!("type \"text/x{index}\" e{index}\nheader \"*.e{index}\" X \"1\"\n"));
    check(types + &sites(3_000), (0, 3_000));
    check(sites(20_000), (0, 20_000));
    check(format!("site {{\n root \"/\"\n{}}}\n", lines(60_000, &|index| format!("listen {}\n", index + 1))), (0, 0));
    let redirects = lines(40_000, &|index| format!("redirect \"/{index}\" \"/\"\n"));
    check(format!("site {{\n redirect \"/1/*\" \"/\"\n{redirects} respond \"/1/x\" 200\n}}\n"), (0, 1));
}

#[test]
fn the_default_configuration_is_the_default() {
    let text = default_config();
    let config = parse(&text);
    let expect = Config {
        sites: vec![Arc::new(SiteConfig {
            listen: vec![Listen::Tcp(([0; 4], 80).into()), Listen::Tcp(([0_u16; 8], 80).into())],
            default: true,
            body_bytes_max: BodyBytesMax::Auto,
            routes: vec![RouteConfig::new(PathPattern::Any, HandlerConfig::Files(FilesConfig::below("/var/www/html")))],
            ..SiteConfig::default()
        })],
        // Requests are logged unless the configuration says that they are not.
        access_log: Some(AccessLog::default()),
        ..Config::default()
    };
    assert_eq!(config, expect);
    assert_eq!(format_bytes("default", text.clone().into_bytes()), Ok(text.clone()));
    for place in OptionContext::ALL {
        for option in place.options() {
            assert!(
                text.contains(&format!("{} ", option.name)) || text.contains(&format!("{}\n", option.name)),
                "{}",
                option.name
            );
        }
    }
}

#[test]
fn the_reference_is_current() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, reference()).unwrap();
    }
    let committed = std::fs::read_to_string(file).unwrap_or_default();
    assert!(committed == reference(), "renew it: UPDATE_GOLDEN=1 cargo test --lib the_reference_is_current");
}
