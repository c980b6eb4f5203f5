use std::path::Path;

use super::options::{OptionDefinition, Place, Set};
use super::*;

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

/// A whole configuration in which this node stands in this place.
fn in_place(place: Place, node: &str) -> String {
    let site = r#"site "x.example" { respond "*" 404 }"#;
    match place {
        Place::Top => format!("{node}\n{site}\n"),
        Place::Site => format!("site \"x.example\" {{\n root \"/\"\n {node}\n}}\n"),
        Place::Files => format!("site \"x.example\" {{ files \"/downloads/*\" {{\n root \"/\"\n {node}\n}} }}\n"),
        Place::Server => format!("server {{\n {node}\n}}\n{site}\n"),
        Place::Limits => format!("limits {{\n {node}\n}}\n{site}\n"),
        Place::Cache => format!("cache {{\n {node}\n}}\n{site}\n"),
    }
}

/// Each option in each of its places; not `include`, which needs files, and `root`, which `in_place` gives already.
fn each_option(mut see: impl FnMut(Place, &'static OptionDefinition)) {
    for place in Place::ALL {
        for option in place.options().filter(|option| !matches!(option.set, Set::Include) && option.name != "root") {
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
        // The defaults for all sites show in a site.
        let text = match (place, option.set) {
            (Place::Top, Set::Files(_)) => format!("{}\nsite \"x.example\" {{ root \"/\" }}", option.example),
            _ => in_place(place, option.example),
        };
        let without = text.replacen(option.example, "", 1);
        assert_ne!(parse(&text), parse(&without), "`{}` {}", option.example, place.describe());
    });
}

#[test]
fn each_option_is_told_of_in_full() {
    for place in Place::ALL {
        for option in place.options() {
            let name = option.name;
            assert!(option.doc.ends_with('.'), "{name}");
            assert!(option.example.starts_with(name), "{name}");
            assert!(option.default.is_empty() || option.default.starts_with(name), "{name}");
            assert_eq!(place.options().filter(|other| other.name == name).count(), 1, "{name} {}", place.describe());
            assert!(option.known_as.iter().all(|other| place.option(other).is_none()), "{name}");
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
    let [redirect, respond, part, whole] = site.routes.as_slice() else { panic!("four routes: {:?}", site.routes) };
    assert_eq!(redirect.path, PathPattern::Prefix("/old/".into()));
    let Handler::Redirect(redirect) = &redirect.handler else { panic!("a redirect") };
    assert_eq!((redirect.status.code(), redirect.target.as_str(), redirect.rest_from), (301, "/new/{rest}", 5));
    assert_eq!(respond.path, PathPattern::Exact("/healthz".into()));
    let (Handler::Files(part), Handler::Files(whole)) = (&part.handler, &whole.handler) else { panic!("files") };
    assert_eq!(whole.root.pieces, [RootPiece::Literal("/base/www".into())]);
    assert_eq!(part.root.pieces, [RootPiece::Literal("/srv/dl".into())]);
    assert_eq!((whole.browse, part.browse), (true, false));
    assert_eq!(part.index, whole.index, "what a part doesn't say is as in the site");
    let page = |from, to| ErrorPage { from, to, file: ErrorPageFile::BelowRoot("/error.html".into()) };
    assert_eq!(site.error_pages, [page(404, 404), page(500, 599)]);
    assert!(!site.default);
}

#[test]
fn errors_are_found_in_one_run() {
    let check = |text: &str, expect: &[&str]| assert_eq!(messages(text), expect, "{text}");
    check("", &["1: there is no site"]);
    check("server { workers 0 }\nsits { }", &["1: 0 is out of range", "2: unknown option `sits` outside all blocks"]);
    check("site { }", &["1: this site has nothing to serve"]);
    check("site { respond \"*\" 200 }\nsite { respond \"*\" 200 }", &["2: two default sites on 0.0.0.0:80"]);
}
