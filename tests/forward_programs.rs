//! Programs beside files: no client gets their source, whichever server runs them, and however the request is written.

use std::fs;

use crate::support::upstream::ScriptStep::{Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::{TestServer, ask, tailcoat};

const THERE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nthere";

/// Directory tree of a PHP application, and a server in front of the one that runs it.
struct ProgramSite {
    directory: tempfile::TempDir,
    upstream: ScriptedUpstream,
    server: TestServer,
}

fn tree() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in [
        "index.php",
        "page/index.html",
        "page/a.txt",
        "wp-admin/index.php",
        "wp-admin/a.css",
        "guarded/index.php",
        "t.phtml",
        "up/X.PHP",
        ".env",
        ".git/config",
        ".well-known/a",
    ] {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "source").unwrap();
    }
    directory
}

impl ProgramSite {
    /// Site with these options, in which `URL` is the upstream.
    fn new(options: &str) -> Self {
        let (directory, upstream) = (tree(), ScriptedUpstream::start(vec![vec![Await("\r\n\r\n"), Say(THERE)]]));
        let options = options.replace("URL", &format!("http://{}", upstream.address));
        let root = directory.path().display();
        let server = TestServer::run(&format!("site {{\n listen \"127.0.0.1:0\"\n root \"{root}\"\n{options}\n}}\n"));
        Self { directory, upstream, server }
    }

    /// Sends the request twice, for file system and cache. Expects the target at the upstream, or the status and
    /// content of a local response.
    fn check(&self, request: &str, expect: &str) {
        for _ in 0..2 {
            let length = if request.starts_with("POST") { "Content-Length: 0\r\n" } else { "" };
            let request = format!("{request} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{length}\r\n");
            let answer = ask(&self.server, &request);
            let (head, content) = answer.split_once("\r\n\r\n").unwrap();
            let got = if content == "there" {
                let seen = self.upstream.connection();
                format!("to {}", seen.split(' ').nth(1).unwrap())
            } else {
                let content = if content.starts_with("source") { " source" } else { "" };
                format!("{}{content}", &head[9..12])
            };
            assert_eq!(got, expect, "{request}: {answer}");
        }
    }
}

#[test]
fn a_front_controller_and_who_runs_php() {
    let site = ProgramSite::new(
        "index \"index.html\" \"index.php\"\nrewrite \"*\" \"/index.php\" missing=on\nforward \"URL\" path=\"*.php\"\n\
         deny all path=\"/guarded/index.php\"",
    );
    site.check("GET /", "to /index.php");
    site.check("GET /?p=1", "to /index.php?p=1");
    site.check("HEAD /page/a.txt", "200");
    site.check("GET /index.php", "to /index.php");
    site.check("GET /wp-admin/", "to /wp-admin/index.php");
    site.check("GET /wp-admin/?a=b", "to /wp-admin/index.php?a=b");
    site.check("GET /wp-admin", "301");
    site.check("GET /wp-admin/a.css", "200 source");
    site.check("GET /wp-admin/none.php", "to /wp-admin/none.php");
    site.check("GET /2026/a-post/?p=1", "to /index.php?p=1");
    site.check("GET /page/", "200 source");
    site.check("POST /", "to /index.php");
    site.check("POST /wp-admin/", "to /wp-admin/index.php");
    // Not a program by its path, but on disk.
    site.check("GET /t.phtml", "to /index.php");
    site.check("GET /up/X.PHP", "to /index.php");
    site.check("GET /index.php/", "to /index.php");
    site.check("GET /index.php/path/info", "to /index.php");
    site.check("GET /wp-admin/index.php/info", "to /index.php");
    // Guards of the program's own path apply to its directory.
    site.check("GET /guarded/", "403");
    // No client gets hidden files.
    site.check("GET /.env", "404");
    site.check("POST /.env", "404");
    site.check("GET /.git/none", "404");
    site.check("GET /.well-known/a", "200 source");
    site.check("GET /.none", "to /index.php");
}

#[test]
fn no_php_handler_leaks_source() {
    for (path, directory, with_info) in [
        ("path=\"*.php\"", "to /wp-admin/index.php", "404"),
        ("path=#\"~\\.php(/|$)\"#", "to /wp-admin/index.php", "to /wp-admin/index.php/info"),
        ("path=\"/wp-admin/index.php\"", "to /wp-admin/index.php", "404"),
        ("path=\"/wp-admin/*\"", "to /wp-admin/", "to /wp-admin/index.php/info"),
        ("path=\"/api/*\"", "404", "404"),
        ("", "to /wp-admin/", "to /wp-admin/index.php/info"),
    ] {
        let site = ProgramSite::new(&format!("index \"index.html\" \"index.php\"\nforward \"URL\" {path}"));
        site.check("GET /wp-admin/", directory);
        site.check("GET /wp-admin/index.php/info", with_info);
        site.check("GET /page/", "200 source");
        for target in ["/t.phtml", "/up/X.PHP", "/up/%58.PhP", "/up//X.PHP", "/t.phtml/", "/t.phtml?a"] {
            let answer = ask(&site.server, &format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
            assert!(!answer.contains("source"), "{path} {target}: {answer}");
        }
    }
}

#[test]
fn a_fallback_may_be_a_program() {
    let site = ProgramSite::new("fallback \"/index.php\"\nforward \"URL\" path=\"*.php\"");
    site.check("GET /nothing?a", "to /index.php?a");
    site.check("GET /page/", "200 source");
    site.check("GET /t.phtml", "404");
}

#[test]
fn a_program_of_another_tree_is_one_too() {
    let other = tree();
    let options = format!(
        "files \"/other/*\" root=\"{}\" {{ strip-prefix \"/other\"; index \"index.php\" }}\nforward \"URL\" path=\"*.php\"",
        other.path().display()
    );
    let site = ProgramSite::new(&options);
    site.check("GET /other/wp-admin/", "to /other/wp-admin/index.php");
    site.check("GET /other/t.phtml", "404");
    site.check("GET /other/page/a.txt", "200 source");
    fs::remove_file(site.directory.path().join("page/index.html")).unwrap();
}

#[test]
fn check_objects_to_programs_that_nothing_runs() {
    let directory = tree();
    let check = |options: &str, expect: &str| {
        let file = directory.path().join("tailcoat.kdl");
        let root = directory.path().display();
        fs::write(&file, format!("site {{\n listen \"127.0.0.1:8080\"\n root \"{root}\"\n{options}\n}}\n")).unwrap();
        let output = tailcoat().arg("check").arg("-c").arg(&file).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let found = said.contains("nothing runs") || said.contains("never applies");
        assert!(said.contains(expect) && found != expect.is_empty(), "{options}: {said}");
    };
    check("index \"index.php\"", "nothing runs `index.php`: clients would get its source");
    check("fallback \"/index.php\"", "nothing runs `/index.php`: clients would get its source");
    check(
        "index \"index.php\"\nforward \"http://127.0.0.1:1\" path=\"*.cgi\"",
        "nothing runs `index.php`: no client would get it",
    );
    check("index \"index.php\"\nforward \"http://127.0.0.1:1\" path=\"*.php\"", "");
    check("index \"index.php\"\nforward \"http://127.0.0.1:1\"", "");
    check("index \"index.php\"\nexclude-extensions off", "");
    check("rewrite \"*\" \"/a.html\" missing=on", "");
    check("rewrite \"*\" \"/a.php\" missing=on\nforward \"http://127.0.0.1:1\" path=\"*.php\"", "");
    check("rewrite \"*\" \"/a.php\" missing=on\nforward \"http://127.0.0.1:1\"", "this never applies");
}

/// Issue 17: these were sent as source, where a site has scripts or a `forward`.
#[test]
fn no_program_is_sent_as_source() {
    let site = ProgramSite::new("forward \"URL\" path=\"/app/*\"");
    let names = [
        "a.php3", "a.php4", "a.php8", "a.pht", "a.phtm", "a.inc", "a.module", "a.pm", "a.wsgi", "a.erb", "a.asa",
        "a.ashx", "a.cshtml", "a.jspx", "a.cfc", "a.shtm", "a.lua", "A.PHT",
    ];
    for name in names {
        fs::write(site.directory.path().join(name), "source").unwrap();
        site.check(&format!("GET /{name}"), "404");
    }
    fs::write(site.directory.path().join("install.sh"), "source").unwrap();
    site.check("GET /install.sh", "200 source");
}
