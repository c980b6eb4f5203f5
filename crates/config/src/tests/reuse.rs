use super::*;

/// Errors of `main.kdl` beside these files, each with the file and the text that it marks.
fn errors(files: &[(&str, &str)]) -> (Option<Config>, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let checked = check_file(&directory.path().join("main.kdl")).unwrap();
    let shown = checked.diagnostics.iter().map(|one| {
        let name = one.source.name.rsplit('/').next().unwrap_or_default();
        format!("{name}: {}: {}", one.source.text.get(one.span.clone()).unwrap_or("?"), one.message)
    });
    (checked.config, shown.collect())
}

#[test]
fn a_snippet_is_as_if_it_stood_there() {
    let snippets = "snippet \"proxy\" \"port\" \"path\" {\n forward \"http://127.0.0.1:{param.port}\" path=\"{param.path}\" {\n \
                    use \"times\" \"{param.port}\"\n }\n}\nsnippet \"times\" \"seconds\" { first-byte-timeout \"{param.seconds}s\" }\n\
                    snippet \"port\" \"number\" { listen \"{param.number}\" }\n";
    let main = "include \"snippets.kdl\"\nsite \"a.example\" {\n use \"port\" 8080\n use \"proxy\" 80 \"/api/*\"\n}\n";
    let written = "site \"a.example\" {\n listen 8080\n forward \"http://127.0.0.1:80\" path=\"/api/*\" {\n \
                   first-byte-timeout \"80s\"\n }\n}\n";
    let (config, found) = errors(&[("main.kdl", main), ("snippets.kdl", snippets)]);
    assert_eq!(found, [""; 0]);
    assert_eq!(config, errors(&[("main.kdl", written)]).0);
    // The order of definition and use does not matter.
    let (config, found) =
        errors(&[("main.kdl", &format!("{}\n{snippets}", main.replace("include \"snippets.kdl\"", "")))]);
    assert_eq!((config, found), (errors(&[("main.kdl", written)]).0, Vec::new()));
}

#[test]
fn files_in_blocks() {
    let main = "site \"a.example\" {\n include \"common/*.inc\"\n include \"rules.inc\"\n respond \"*\" 404\n}\n";
    let (config, found) = errors(&[("main.kdl", main), ("rules.inc", "deny all path=\"/a\"\nrespond \"/b\" 200\n")]);
    assert_eq!(found, [""; 0]);
    let config = config.unwrap();
    assert_eq!((config.sites[0].rules.clients.len(), config.sites[0].routes.len()), (1, 2));
}

#[test]
fn faults_of_snippets() {
    let check = |main: &str, expect: &str| {
        let (_, found) = errors(&[
            ("main.kdl", &format!("{main}\nsite \"x.example\" {{ respond \"*\" 404 }}\n")),
            ("other.inc", "listn 80\nlisten \"x:80\"\n"),
            ("self.inc", "include \"self.inc\"\n"),
        ]);
        assert!(found.iter().any(|one| one.contains(expect)), "{main}: {found:?}");
    };
    check("site \"a.example\" { use \"a\" }", "main.kdl: use: there is no snippet `a`");
    check("snippet \"a\" {}\nsite \"a.example\" { use \"a\" 1 }", "takes 0 values, not 1");
    check(
        "snippet \"a\" { use \"b\" }\nsnippet \"b\" { use \"a\" }\nsite \"a.example\" { use \"a\" }",
        "leads to itself",
    );
    check("snippet \"a\" \"x\" { root \"{param.y}\" }\nsite \"a.example\" { use \"a\" \"/\" }", "has no parameter `y`");
    check("snippet \"a\" {}\nsnippet \"a\" {}", "the snippet `a` is given twice");
    check("snippet {}", "needs a name and a block");
    check("snippet \"a\" { listn 80 }\nsite \"a.example\" { use \"a\" }", "main.kdl: listn: unknown option `listn`");
    check("site \"a.example\" { include \"other.inc\" }", "other.inc: listn: unknown option `listn`");
    check("site \"a.example\" { include \"other.inc\" }", "other.inc: \"x:80\": `x` is not an IP address");
    check("site \"a.example\" { include \"self.inc\" }", "includes itself");
    check("site \"a.example\" { include \"none.inc\" }", "No such file");
}

/// Each of these was read again for each way that leads to it: 10^16 times.
#[test]
fn snippets_and_files_that_multiply_are_an_error() {
    let mut text = String::from("snippet \"a0\" {}\n");
    for level in 1..=15 {
        let uses = format!("use \"a{}\"\n", level - 1).repeat(10);
        text.push_str(&format!("snippet \"a{level}\" {{\n{uses}}}\n"));
    }
    let (_, found) = errors(&[("main.kdl", &(text + "site \"a.example\" { use \"a15\" }\n"))]);
    assert!(found.iter().any(|one| one.contains("too many options")), "{:?}", found.first());
    // Files that all include each other.
    let names: Vec<_> = (0..14).map(|number| format!("{number}.kdl")).collect();
    let mut files = vec![("main.kdl", "include \"*.kdl\"\n")];
    files.extend(names.iter().map(|name| (name.as_str(), "snippet \"x\" {}\ninclude \"*.kdl\"\n")));
    let (_, found) = errors(&files);
    assert!(found.iter().any(|one| one.contains("include")), "{:?}", found.first());
}

#[test]
fn included_files_are_parts_of_the_whole() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    std::fs::create_dir(directory.path().join("sites")).unwrap();
    write("main.kdl", "include \"sites/*.kdl\"\nserver { workers 2 }\n");
    write("sites/b.kdl", "site b { root \"b\" }\n");
    write("sites/a.kdl", "site a { root \".\" }\n");
    write("sites/a.kdl.old", "no such option\n");
    let main = directory.path().join("main.kdl");
    let checked = check_file(&main).unwrap();
    let [error] = checked.diagnostics.iter().collect::<Vec<_>>()[..] else { panic!("one error") };
    assert!(error.source.name.ends_with("sites/b.kdl") && error.message.contains("sites/b"), "relative to its file");
    std::fs::create_dir(directory.path().join("sites/b")).unwrap();
    let sites = check_file(&main).unwrap().config.unwrap().sites;
    let names: Vec<_> = sites.iter().map(|site| site.names[0].to_string()).collect();
    assert_eq!(names, ["a", "b"]);

    let errors = || {
        let checked = check_file(&main).unwrap();
        let errors = checked.diagnostics.iter().filter(|one| one.severity == Severity::Error);
        let shown =
            errors.map(|one| format!("{}: {}", one.source.name.rsplit('/').next().unwrap_or_default(), one.message));
        shown.collect::<Vec<_>>()
    };
    write("sites/c.kdl", "site a { respond \"*\" 200 }\nserver { workers 3 }\nsit\n");
    assert_eq!(
        errors(),
        [
            "c.kdl: `a` is named twice on the same address",
            "c.kdl: unknown option `sit` at the top level",
            "main.kdl: `server` is given twice",
        ]
    );
    write("sites/c.kdl", "include \"../main.kdl\"\n");
    let found = errors();
    assert!(found.len() == 1 && found[0].starts_with("c.kdl: ") && found[0].ends_with("includes itself"), "{found:?}");
    write("sites/c.kdl", "include \"d/*.kdl\"\n");
    assert_eq!(errors(), [""; 0], "no file matches");
    std::fs::create_dir(directory.path().join("sites/d")).unwrap();
    write("sites/d/e.kdl", "site e { respond \"*\" 200 }\n");
    let names: Vec<_> = check_file(&main).unwrap().config.unwrap().sites.iter().map(|site| site.label()).collect();
    assert_eq!(names, ["a", "b", "e"]);
    write("main.kdl", "include \"nothing.kdl\"\ninclude \"none/*.kdl\"\nsite a { root \".\" }\n");
    assert_eq!(errors().len(), 1);
}
