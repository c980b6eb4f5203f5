use super::*;

fn site(text: &str) -> Vec<String> {
    messages(&format!("{text}\nsite \"x.example\" {{ respond \"*\" 404 }}\n"))
}

/// Text that the first finding is about.
fn marked(text: &str) -> String {
    let checked = check_bytes("test.kdl", text.as_bytes().to_vec(), Path::new("/"));
    let first = checked.diagnostics.iter().next().expect("a finding");
    first.source.text[first.span.clone()].to_owned()
}

#[test]
fn conditions_are_checked_when_they_are_read() {
    let check = |rule: &str, expect: &str| {
        let found = messages(&format!("site \"x.example\" {{ respond \"*\" 404\n{rule}\n}}\n"));
        assert!(found.iter().any(|message| message.contains(expect)), "{rule}: {found:?}");
    };
    check("deny all when=\"methd == 'GET'\"", "`methd` is not a variable");
    check("deny all when=\"user == 'a'\"", "before a password");
    check("response-header \"A\" \"{stats}\"", "`{stats}` is not a placeholder");
    check("response-header \"A\" \"{secret.a}\"", "clients would see this secret");
    check("request-header \"A\" \"{status}\"", "no status before the response");
    check("redirect \"/a\" \"/{map.none}\"", "there is no map `none`");
    check("request-header \"A\" \"{secret.none}\"", "there is no secret `none`");
    check("redirect \"/a\" \"https://{cookie.host}/\"", "lets clients choose the host");
    check("redirect \"/a\" \"{cookie.host}\"", "is not a path or URL");
    check("forward-auth \"*\" \"http://a:1\" login=\"https://{query.h}/\"", "lets clients choose the host");
    check("forward-auth \"*\" \"http://a:1\" login=\"/{map.none}\"", "cannot depend on a map");
    check("request-limit \"/\" 4 when=\"client in ('x')\"", "not an address");
}

#[test]
fn faults_are_marked_within_the_text() {
    let text = "site \"x.example\" { respond \"*\" 404; deny all when=\"method == 'GET' and hots == 'a'\" }";
    assert_eq!(marked(text), "hots");
    let text = "map \"a\" \"{path}{nme}\" { default \"x\" }\nsite \"x.example\" { respond \"*\" 404 }";
    assert_eq!(marked(text), "nme");
}

#[test]
fn maps_and_secrets() {
    let none: [String; 0] = [];
    assert_eq!(site("map \"a\" \"{map.b}\" { case \"x\" \"y\" }\nmap \"b\" \"{host}\" { default \"z\" }"), none);
    let check = |text: &str, expect: &str| {
        let found = site(text);
        assert!(found.iter().any(|message| message.contains(expect)), "{text}: {found:?}");
    };
    check(
        "map \"a\" \"{map.b}\" { default \"x\" }\nmap \"b\" \"{map.a}\" { default \"x\" }",
        "maps need each other: `a`, `b`",
    );
    check("map \"a\" \"{host}\" { case \"x\" \"1\"; case \"x\" \"2\" }", "this case is there already");
    check("map \"a\" \"{host}\" {}\nmap \"a\" \"{host}\" {}", "the map `a` is given twice");
    check("map \"a b\" \"{host}\" {}", "is not a name");
    check("map \"a\" \"{host}\" { default \"{secret.key}\" }", "clients could see this secret");
    check("map \"a\" \"{host}\" { case \"x\" \"{secret.key}\" }", "clients could see this secret");
    let limit = rate_limit_from_text("\"5/m\" when=\"map.a == 'x'\"").unwrap_err();
    assert!(limit.contains("only a configuration file has"), "{limit}");
    assert!(rate_limit_from_text("\"5/m\" when=\"method == 'GET'\"").is_ok());
    check("map \"a\" \"{host}\" { case \"~(\" \"x\" }", "not a regular expression");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    let with_secret = |file: &Path| {
        let text = format!(
            "secret \"key\" \"{}\"\nsite \"x.example\" {{ respond \"*\" 404; request-header \"A\" \"{{secret.key}}\" }}",
            file.display()
        );
        let checked = check_bytes("test.kdl", text.into_bytes(), Path::new("/"));
        (checked.config, checked.diagnostics.to_text(false))
    };
    assert!(with_secret(&file).1.contains("No such file"));
    std::fs::write(&file, "\n").unwrap();
    assert!(with_secret(&file).1.contains("the file is empty"));
    std::fs::write(&file, "s3cret\n").unwrap();
    let before = with_secret(&file).0.unwrap();
    assert!(!format!("{before:?}").contains("s3cret"));
    assert_eq!(with_secret(&file).0.unwrap(), before);
    std::fs::write(&file, "other\n").unwrap();
    assert_ne!(with_secret(&file).0.unwrap(), before, "a reload applies the new secret");
}

#[test]
fn redirects_of_maps() {
    let redirects = |map: &str| {
        let text = format!(
            "map \"new\" \"{{path}}\" {{ {map} }}\n\
             site \"x.example\" {{ respond \"*\" 404; redirect \"*\" \"{{map.new}}\" when=\"map.new\" }}"
        );
        messages(&text)
    };
    assert_eq!(redirects("case \"/a\" \"https://other.example/a\"").len(), 0);
    assert!(redirects("case \"/a\" \"{query.to}\"")[0].contains("lets clients choose the host"));
}

#[test]
fn the_most_specific_route_comes_first() {
    let config = parse(
        "site \"x.example\" {\n route-order \"specific\"\n root \"/\"\n respond \"*\" 200\n respond \"*.css\" 201\n \
         respond \"~^/a\" 202\n respond \"/a/*\" 203\n respond \"/a/b/*\" 204\n respond \"/a/b/*\" 205 method=\"GET\"\n \
         respond \"/a/b/*\" 206 field=\"A\"\n respond \"/a/b/*\" 207 method=\"GET\" query=\"x\"\n respond \"/a\" 208\n}",
    );
    let status = |route: &RouteConfig| match &route.handler {
        HandlerConfig::Respond(respond) => respond.status.code(),
        _ => 0,
    };
    let found: Vec<_> = config.sites[0].routes.iter().map(status).collect();
    assert_eq!(found, [208, 207, 205, 206, 204, 203, 202, 201, 200, 0]);
}
