//! Mapping of paths to scripts, and paths that must not run anything.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use crate::support::fastcgi::{Act, Application, FastCgiRequest, answer};
use crate::support::{TestServer, ask};

/// Site with scripts, files, uploads, and a file outside.
fn site() -> TempDir {
    let outer = tempfile::tempdir().unwrap();
    let root = outer.path().join("root");
    let write = |name: &str, text: &str| {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("index.php", "<?php");
    write("a.php", "<?php");
    write("wiki/index.php", "<?php");
    write("wiki/doku.php", "<?php");
    write("odd.php/inner.php", "<?php");
    write("static/style.css", "css");
    write("static/page.html", "html");
    write("upload/x.jpg", "<?php evil");
    write("upload/x.jpg.phtml", "<?php evil");
    write(".git/hook.php", "<?php");
    write(".hidden.php", "<?php");
    fs::write(outer.path().join("secret.php"), "<?php").unwrap();
    symlink("a.php", root.join("linked.php")).unwrap();
    symlink("../secret.php", root.join("outside.php")).unwrap();
    fs::create_dir(root.join("directory.php")).unwrap();
    outer
}

/// Responds with the script's path and its input.
fn echo() -> Application {
    Application::start(|request: &FastCgiRequest| {
        let part = |name| request.get(name).unwrap_or("-");
        let text = format!(
            "Content-Type: text/plain\n\n{}|{}|{}|{}",
            part("SCRIPT_NAME"),
            part("PATH_INFO"),
            part("SCRIPT_FILENAME"),
            part("REQUEST_URI")
        );
        vec![Act::Write(answer(&text))]
    })
}

fn front(root: &Path, application: &Application, options: &str) -> TestServer {
    TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n root \"{}\"\n fastcgi \"*.php\" \"{}\" {{\n {options}\n }}\n }}\n\
         server {{ workers 1 }}\n",
        root.display(),
        application.address
    ))
}

/// Status and content of the response; for a redirect, its target.
fn get(server: &TestServer, method: &str, target: &str) -> String {
    let answered = ask(server, &format!("{method} {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
    let status = answered.split(' ').nth(1).unwrap_or_default();
    let location = answered.lines().find_map(|line| line.strip_prefix("Location: "));
    let content = answered.split_once("\r\n\r\n").map_or("", |(_, content)| content);
    match (status, location) {
        (_, Some(location)) => format!("{status} {location}"),
        ("200", None) => content.to_owned(),
        _ => status.to_owned(),
    }
}

#[test]
fn scripts_of_paths() {
    let (site, application) = (site(), echo());
    let root = site.path().join("root");
    let server = front(&root, &application, "");
    let script = |target: &str, name: &str, path_info: &str| {
        let uri = target;
        assert_eq!(
            get(&server, "GET", target),
            format!("{name}|{path_info}|{}{name}|{uri}", root.display()),
            "{target}"
        );
    };
    script("/a.php", "/a.php", "-");
    script("/a.php?x=y.php", "/a.php", "-");
    script("/a.php/b/c", "/a.php", "/b/c");
    script("/a.php/b.php", "/a.php", "/b.php");
    script("/a.php/", "/a.php", "/");
    script("/%61.php", "/a.php", "-");
    script("/linked.php", "/linked.php", "-");
    script("/odd.php/inner.php/x", "/odd.php/inner.php", "/x");
    script("/", "/index.php", "-");
    script("/wiki/", "/wiki/index.php", "-");
    script("/a.php%2Fb", "/a.php", "/b");
    assert_eq!(get(&server, "POST", "/a.php"), get(&server, "GET", "/a.php"));
    assert_eq!(get(&server, "GET", "/wiki"), "301 /wiki/");
    assert_eq!(get(&server, "GET", "/wiki?a=b"), "301 /wiki/?a=b");
    assert_eq!(get(&server, "GET", "/static/style.css"), "css");
    assert_eq!(get(&server, "GET", "/static/page.html"), "html");
}

#[test]
fn what_is_not_run_and_not_sent() {
    let (site, application) = (site(), echo());
    let server = front(&site.path().join("root"), &application, "");
    for target in [
        "/missing.php",
        // "cgi.fix_pathinfo": an uploaded file that runs because of the path after it.
        "/upload/x.jpg/y.php",
        "/upload/x.jpg/.php",
        "/upload/x.jpg%2Fy.php",
        "/upload/x.jpg/a.php",
        "/static/style.css/a.php",
        // A script that is no file, or not below the root.
        "/directory.php/",
        "/directory.php/",
        "/outside.php",
        "/outside.php/x",
        // Hidden files.
        "/.git/hook.php",
        "/.hidden.php",
        // Programs with other extensions are not sent.
        "/upload/x.jpg.phtml",
        "/static/",
        "/wiki/missing",
    ] {
        let answered = get(&server, "GET", target);
        assert!(matches!(answered.as_str(), "404" | "403"), "{target}: {answered}");
    }
    for target in ["/a.php%00.jpg", "/upload/x.jpg%00.php", "/%zz.php", "/../a.php"] {
        assert_eq!(get(&server, "GET", target), "400", "{target}");
    }
    assert_eq!(get(&server, "GET", "/directory.php"), "301 /directory.php/", "as without scripts");
    assert_eq!(get(&server, "POST", "/static/style.css"), "405");
    assert!(application.try_request().is_none(), "nothing has reached the application");
}

#[test]
fn a_front_controller() {
    let (site, application) = (site(), echo());
    let root = site.path().join("root");
    let server = front(&root, &application, "fallback \"/index.php\"");
    let controller = |target: &str| format!("/index.php|-|{}/index.php|{target}", root.display());
    for target in ["/", "/2026/11/a-post/", "/pretty?x=y", "/missing.php", "/upload/x.jpg/y.php", "/.nothing"] {
        assert_eq!(get(&server, "GET", target), controller(target), "{target}");
        assert_eq!(get(&server, "PUT", target), controller(target), "PUT {target}");
    }
    assert_eq!(get(&server, "GET", "/static/style.css"), "css");
    assert_eq!(get(&server, "DELETE", "/static/style.css"), controller("/static/style.css"));
    assert_eq!(get(&server, "GET", "/wiki"), "301 /wiki/");
    assert!(get(&server, "GET", "/wiki/").starts_with("/wiki/index.php|"));
}

#[test]
fn what_guards_a_script_holds_for_all_ways_to_it() {
    let (site, application) = (site(), echo());
    let root = site.path().join("root");
    let text = |guard: &str| {
        format!(
            "site {{\n listen \"127.0.0.1:0\"\n root \"{}\"\n {guard}\n\
             fastcgi \"*.php\" \"{}\" {{\n index \"index.php\"\n fallback \"/index.php\"\n }}\n }}\n",
            root.display(),
            application.address
        )
    };
    let all = TestServer::run(&text("deny all path=\"*.php\""));
    for target in ["/a.php", "/a.php/x", "/", "/wiki/", "/nothing", "/index.php"] {
        assert_eq!(get(&all, "GET", target), "403", "{target}");
        assert_eq!(get(&all, "POST", target), "403", "{target}");
    }
    assert_eq!(get(&all, "GET", "/static/style.css"), "css");
    let one = TestServer::run(&text("deny all path=\"/wiki/index.php\""));
    assert_eq!(get(&one, "GET", "/wiki/"), "403");
    assert_eq!(get(&one, "GET", "/wiki/index.php/x"), "403");
    assert!(get(&one, "GET", "/nothing").starts_with("/index.php|"));
    // A script that is requested by its own path still sees the client's request.
    let open = TestServer::run(&text("request-limit \"*.php\" 9"));
    assert!(get(&open, "GET", "/wiki/").starts_with("/wiki/index.php|-|"), "{}", get(&open, "GET", "/wiki/"));
    assert!(get(&open, "GET", "/nothing?a").ends_with("|/nothing?a"), "{}", get(&open, "GET", "/nothing?a"));
}

/// Password attempts at a script are logged, whatever path follows the script's name.
#[test]
fn scripts_are_not_kept_out_of_the_log_by_what_follows_them() {
    let (site, application) = (site(), echo());
    let log = site.path().join("access.log");
    let server = TestServer::run(&format!(
        "server {{ workers 1 }}\naccess-log \"{}\" format=\"{{target}}\"\nsite {{\n listen \"127.0.0.1:0\"\n root \"{}\"\n \
         log-skip \"*.css\" \"/wiki/*\"\n fastcgi \"*.php\" \"{}\"\n }}\n",
        log.display(),
        site.path().join("root").display(),
        application.address
    ));
    for target in ["/a.php", "/a.php/x.css", "/static/style.css", "/wiki/doku.php/x.css", "/nothing.php/x.css"] {
        get(&server, "GET", target);
    }
    drop(server.end_with_log());
    assert_eq!(fs::read_to_string(log).unwrap(), "/a.php\n/a.php/x.css\n/nothing.php/x.css\n");
}

/// Scripts choose the page by REQUEST_URI: it is the client's, whatever path selected the script.
#[test]
fn what_was_asked_for_before_it_was_rewritten() {
    let (site, application) = (site(), echo());
    let root = site.path().join("root");
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n root \"{}\"\n rewrite \"/pretty/*\" \"/index.php?r={{rest}}\"\n\
         rewrite \"*\" \"/a.php\" missing=on\n\
         fastcgi \"*.php\" \"{}\" {{\n cache {{ default-age \"1m\" 200 }}\n }}\n }}\nserver {{ workers 1 }}\n",
        root.display(),
        application.address
    ));
    let check = |target: &str, name: &str, uri: &str| {
        assert_eq!(get(&server, "GET", target), format!("{name}|-|{}{name}|{uri}", root.display()), "{target}");
    };
    check("/pretty/x?y=%2F", "/index.php", "/pretty/x?y=%2F");
    check("/2026/a-post//?x", "/a.php", "/2026/a-post//?x");
    // The cached response for one page never serves another, even if the same script makes both.
    check("/2026/b-post?x", "/a.php", "/2026/b-post?x");
    check("/a.php?x", "/a.php", "/a.php?x");
    check("/index.php?r=x", "/index.php", "/index.php?r=x");
    check("http://h/2027/", "/a.php", "/2027/");
}

#[test]
fn files_that_the_server_sees_elsewhere() {
    let (site, application) = (site(), echo());
    let root = site.path().join("root");
    let server = front(&root, &application, "server-root \"/var/www/html/\"");
    assert_eq!(get(&server, "GET", "/a.php/x"), "/a.php|/x|/var/www/html/a.php|/a.php/x");
    let nested = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n fastcgi \"~^/apps/.*\\\\.php$\" \"tcp://{}\" root=\"{}\" {{\n\
         strip-prefix \"/apps\"\n index \"doku.php\" \"index.php\"\n }}\n respond \"*\" 404\n }}\n",
        application.address,
        root.display()
    ));
    assert_eq!(
        get(&nested, "GET", "/apps/wiki/"),
        format!("/apps/wiki/doku.php|-|{}/wiki/doku.php|/apps/wiki/", root.display())
    );
    assert_eq!(get(&nested, "GET", "/a.php"), "404");
}

/// Issue 17: REQUEST_URI contained a path that no guard had checked.
#[test]
fn scripts_see_the_path_that_guards_have_seen() {
    let (site, application) = (site(), echo());
    let root = site.path().join("root");
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n deny all path=\"/panel/*\"\n rewrite \"/blog/*\" \"/a.php?{{rest}}\"\n root \"{}\"\n \
         fastcgi \"*.php\" \"{}\" {{\n fallback \"/index.php\"\n }}\n }}\nserver {{ workers 1 }}\n",
        root.display(),
        application.address
    ));
    let uri = |target: &str| get(&server, "GET", target).rsplit('|').next().unwrap_or_default().to_owned();
    for (target, expect) in [
        ("/panel/users/../../nothing", "/nothing"),
        ("/panel/users/%2e%2e/.%2E/nothing?a=/../b", "/nothing?a=/../b"),
        ("/panel%2f..%2Fnothing", "/nothing"),
        ("/a/./b", "/a/b"),
        ("//h/panel/users", "/h/panel/users"),
        ("http://h/panel/../nothing", "/nothing"),
        ("http://h//x/y", "/x/y"),
        ("/wiki//x/../doku.php", "/wiki/doku.php"),
        ("/blog/panel/../x", "/blog/x"),
        // All other targets pass unchanged.
        ("/a//b%2Fc;d?e", "/a//b%2Fc;d?e"),
        ("/caf%c3%a9", "/caf%c3%a9"),
    ] {
        assert_eq!(uri(target), expect, "{target}");
    }
    for target in ["/panel/users", "/x/../panel/users", "//panel/users", "/%70anel%2Fusers", "/PANEL/users"] {
        assert_eq!(get(&server, "GET", target), "403", "{target}");
    }
    for target in
        ["/panel/..;/nothing", "/x/..;/panel/users", "/x/..%5Cpanel/users", "/blog/..;/panel/users", "/x/..%20/y"]
    {
        assert!(matches!(get(&server, "GET", target).as_str(), "400" | "403"), "{target}");
    }
    assert_eq!(get(&server, "GET", "/x/..;/nothing"), "400");
}

/// A prefix names an application only up to a slash.
#[test]
fn an_application_is_named_by_whole_segments() {
    let application = echo();
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n fastcgi \"*\" \"tcp://{}\" {{\n application \"/app\"\n }}\n }}\n",
        application.address
    ));
    for (target, name, path_info) in [("/app/x", "/app", "/x"), ("/app", "/app", ""), ("/apple", "", "/apple")] {
        assert_eq!(get(&server, "GET", target), format!("{name}|{path_info}|-|{target}"), "{target}");
    }
}

/// `internal=on` rejects the script's own path, in each spelling, and not the paths that `fallback` leads to it.
#[test]
fn an_internal_script_answers_for_other_paths_only() {
    let (site, application) = (site(), echo());
    let root = site.path().join("root");
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n root \"{}\"\n deny all path=#\"~^/index\\.php(/|$)\"# status=404 internal=on\n\
         fastcgi \"/index.php\" \"{}\" {{\n fallback \"/index.php\"\n }}\n respond \"*.php\" 404\n }}\n\
         server {{ workers 1 }}\n",
        root.display(),
        application.address
    ));
    let get = |path: &str| ask(&server, &format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
    for path in ["/", "/users/1?a=b", "/missing"] {
        let response = get(path);
        assert!(response.starts_with("HTTP/1.1 200 ") && response.contains("/index.php|"), "{path}: {response}");
    }
    assert!(get("/static/style.css").ends_with("css"));
    for path in
        ["/index.php", "/index.php/a", "//index.php", "/./index.php", "/index.php%2fa", "/index%2ephp", "/a.php"]
    {
        assert!(get(path).starts_with("HTTP/1.1 404 "), "{path}: {}", get(path));
    }
}
