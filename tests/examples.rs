//! Configurations in examples/configs: each is valid, and works as it says in front of a real server, if one is
//! installed.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

use crate::support::port::free_port;
use crate::support::real_server::{APACHE_BASE, RealServer, Recipe};
use crate::support::tls::{self, TestCa};
use crate::support::upstream::{ScriptStep, ScriptedUpstream};
use crate::support::waiting::eventually;
use crate::support::{TestServer, ask, tailcoat};
use crate::transparency::{NGINX, NODE, UVICORN};

/// Configuration with its paths moved into a directory of its own. All files that it names exist there, including
/// certificates.
pub(crate) struct StagedExample {
    directory: TempDir,
    authority: TestCa,
    pub(crate) text: String,
}

/// Directories that configurations of examples and of the manual use.
const PLACES: [&str; 9] = [
    "/etc/ssl/",
    "/etc/tailcoat/",
    "/etc/letsencrypt",
    "/var/www/",
    "/var/log/",
    "/srv/",
    "/run/",
    "/usr/local/bin/",
    "/usr/lib/cgi-bin",
];

/// http-wasm module that passes each request on: it exports `memory`, `handle_request` and `handle_response`.
const MODULE: &[u8] =
    b"\0asm\x01\0\0\0\x01\x0a\x02\x60\0\x01\x7e\x60\x02\x7f\x7f\0\x03\x03\x02\0\x01\x05\x03\x01\0\x01\x07\x2d\x03\
    \x06memory\x02\0\x0ehandle_request\0\0\x0fhandle_response\0\x01\
    \x0a\x09\x02\x04\0\x42\x01\x0b\x02\0\x0b";

impl StagedExample {
    fn new(name: &str) -> Self {
        let examples = repository().join("examples");
        let text = fs::read_to_string(examples.join("configs").join(name)).unwrap();
        Self::of(text.replace("../", &format!("{}/", examples.display())))
    }

    pub(crate) fn of(mut text: String) -> Self {
        let (directory, authority) = (tempfile::tempdir().unwrap(), TestCa::new());
        for place in PLACES {
            let path = format!("{}{place}", directory.path().display());
            text = text.replace(&format!("\"{place}"), &format!("\"{path}"));
            for prefix in ["unix:", "file:"] {
                text = text.replace(&format!("{prefix}{place}"), &format!("{prefix}{path}"));
            }
        }
        let example = Self { directory, authority, text };
        example.make_files();
        example
    }

    /// Creates the quoted paths in the test's directory: certificates, pages, and directories.
    fn make_files(&self) {
        let start = self.directory.path().to_str().unwrap();
        let quoted = self.text.split('"').map(|text| text.trim_start_matches("file:").trim_start_matches("unix:"));
        for path in quoted.filter(|text| text.starts_with(start)).map(Path::new) {
            let parent = path.parent().unwrap();
            fs::create_dir_all(parent).unwrap();
            let name = path.file_name().unwrap().to_str().unwrap();
            match (name, path.extension().and_then(|extension| extension.to_str())) {
                ("passwords" | "users", _) => fs::write(path, include_str!("../examples/passwords")).unwrap(),
                ("blocked" | "cdn-networks", _) => fs::write(path, "192.0.2.128/25\n").unwrap(),
                ("gptbot.json", _) => fs::write(path, "192.0.2.0/24\n").unwrap(),
                ("robots.txt", _) => fs::write(path, "User-agent: *\nDisallow: /search\n").unwrap(),
                // The key of RFC 9421, appendix B.1.4.
                ("chatgpt-keys.json", _) => fs::write(
                    path,
                    r#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs"}]}"#,
                )
                .unwrap(),
                ("eab.key" | "api-key", _) => fs::write(path, "c2VjcmV0").unwrap(),
                ("store.key" | "store.password" | "s3.secret", _) => fs::write(path, "c2VjcmV0".repeat(5)).unwrap(),
                ("dns-record", _) => {
                    fs::write(path, "#!/bin/sh\n").unwrap();
                    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
                }
                (_, Some("wasm")) => fs::write(path, MODULE).unwrap(),
                (_, Some("pem")) => {
                    let name = path.file_stem().unwrap().to_str().unwrap();
                    self.authority.sign(&[name, &format!("www.{name}")]).write(parent, name);
                }
                (_, Some("html")) => fs::write(path, "page").unwrap(),
                (_, Some("key" | "log" | "sock")) => {}
                _ => fs::create_dir_all(path).unwrap(),
            }
        }
        let values = |name: &'static str| {
            let lines = self.text.lines().map(str::trim).filter(move |line| line.starts_with(name));
            lines.filter_map(|line| line.split('"').rev().nth(1))
        };
        for page in values("error-page ").filter(|page| page.starts_with('/') && !page.starts_with(start)) {
            for root in values("root ").filter(|root| root.starts_with(start)) {
                fs::write(format!("{root}{page}"), "page").unwrap();
            }
        }
    }

    /// Path of a file of the example in the test's own directory.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path.trim_start_matches('/'))
    }

    /// Writes a file of the example.
    pub(crate) fn write(&self, path: &str, content: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Runs `tailcoat check`: true if it accepts the configuration, and its output.
    pub(crate) fn check(&self) -> (bool, String) {
        let file = self.path("tailcoat.kdl");
        // Some configurations include it.
        self.write("sites/one.kdl", "site \"included.example\" {\n    respond \"*\" 200\n}\n");
        fs::write(&file, &self.text).unwrap();
        // Its upstreams have no names here.
        let output = tailcoat().args(["check", "--offline", "-c"]).arg(&file).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    }

    /// Runs it on a free port, with these servers instead of its upstreams.
    pub(crate) fn run(&self, servers: &[(&str, SocketAddr)]) -> TestServer {
        let mut text = self.text.clone();
        for (name, address) in servers {
            assert!(text.contains(name), "the example forwards to {name}");
            text = text.replace(name, &format!("http://{address}"));
        }
        let lines = text.lines().map(|line| match line.trim_start() {
            listen if listen.starts_with("listen ") => "listen \"127.0.0.1:0\"".to_owned(),
            certificate if certificate.starts_with("certificate ") => {
                format!("listen \"127.0.0.1:0\" tls=on\n{certificate}")
            }
            _ => line.to_owned(),
        });
        TestServer::run(&lines.collect::<Vec<_>>().join("\n"))
    }

    /// Response to a request over TLS.
    fn ask(&self, server: &TestServer, host: &str, target: &str, fields: &str) -> String {
        let client = Arc::new(self.authority.client(None));
        let mut stream = tls::connect(server, &client, host).unwrap();
        tls::ask(&mut stream, &get(host, target, fields)).unwrap_or_else(|error| panic!("{target}: {error}"))
    }
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn get(host: &str, target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{fields}Connection: close\r\n\r\n")
}

/// Checks the status, a line of the head, and the end of the content.
fn check(answer: &str, status: &str, line: &str, end: &str) {
    let head_line = if line.is_empty() { String::new() } else { format!("\r\n{line}\r\n") };
    // Removes the last chunk.
    let content = answer.strip_suffix("\r\n0\r\n\r\n").unwrap_or(answer);
    assert_eq!(answer.get(9..12), Some(status), "{answer}");
    assert!(answer.contains(&head_line) && content.ends_with(end), "{line:?} {end:?}: {answer}");
}

#[test]
fn all_are_valid() {
    let mut count = 0;
    for entry in fs::read_dir(repository().join("examples/configs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let (is_valid, said) = StagedExample::new(&name).check();
        assert!(is_valid && said.trim_end().ends_with("tailcoat.kdl is valid"), "{name}: {said}");
        count += 1;
    }
    assert!(count >= 14, "the examples are there");
}

#[test]
fn in_front_of_a_server() {
    let example = StagedExample::new("in-front-of-a-server.kdl");
    example.write("/var/www/html/here.txt", "here");
    let Some(nginx) = RealServer::start(&NGINX) else { return };
    let server = example.run(&[("http://127.0.0.1:8080", nginx.address)]);
    let ask = |target: &str| ask(&server, &get("example.com", target, ""));
    check(&ask("/here.txt"), "200", "Server: tailcoat", "here");
    check(&ask("/text.txt"), "200", "X-Uri: /text.txt", "uvwxyz\n");
    drop(nginx);
    check(&ask("/text.txt"), "502", "", "page");
    check(&ask("/here.txt"), "200", "", "here");
}

/// Apache with PHP, and an application that is built like WordPress: index.php handles all paths without a file.
const WORDPRESS: Recipe<'_> = Recipe {
    needs: &["apache2", "/usr/lib/apache2/modules/libphp8.2.so"],
    files: &[
        ("base.conf", APACHE_BASE),
        (
            "apache.conf",
            "Include @DIR@/base.conf\nLoadModule dir_module modules/mod_dir.so\n<Directory @DIR@/root>\nRequire all granted\n\
             DirectoryIndex index.php\nFallbackResource /index.php\n</Directory>\n\
             <FilesMatch \"\\.php$\">\nSetHandler application/x-httpd-php\n</FilesMatch>\n",
        ),
        (
            "root/index.php",
            "<?php header('X-Proto: ' . $_SERVER['HTTP_X_FORWARDED_PROTO']); echo uniqid(), $_SERVER['REQUEST_URI'];",
        ),
        ("root/wp-login.php", "<?php header('Cache-Control: no-store'); echo 'log in';"),
        ("root/xmlrpc.php", "<?php echo 'called';"),
        ("root/wp-content/style.css", "body {}"),
        ("root/wp-content/uploads/shell.php", "<?php echo 'owned';"),
    ],
    command: &["apache2", "-f", "@DIR@/apache.conf", "-DFOREGROUND"],
    environment: &[],
};

#[test]
fn wordpress() {
    let mut example = StagedExample::new("wordpress.kdl");
    let Some(apache) = RealServer::start(&WORDPRESS) else { return };
    let root = apache.directory().join("root");
    example.text = example.text.replace(example.path("/var/www/wordpress").to_str().unwrap(), root.to_str().unwrap());
    let server = example.run(&[("http://127.0.0.1:8080", apache.address)]);
    let ask = |target: &str, fields: &str| example.ask(&server, "example.com", target, fields);
    check(&ask("/wp-content/style.css?ver=6.4", ""), "200", "Cache-Control: public, max-age=604800", "body {}");
    let content = |answer: String| answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned();
    for page in ["/", "/2026/11/hello/", "/?p=1"] {
        let first = ask(page, "");
        check(&first, "200", "X-Proto: https", page);
        assert_eq!(content(ask(page, "")), content(first.clone()), "it is kept for all");
        let own = ask(page, "Cookie: wordpress_logged_in_ab12=anna\r\n");
        assert_ne!(content(own), content(first), "signed-in users get no cached page");
    }
    for target in ["/xmlrpc.php", "/wp-config.php.bak", "/wp-content/uploads/shell.php", "/WP-content/uploads/a.PHP/x"]
    {
        assert_ne!(ask(target, "").get(9..12), Some("200"), "{target}");
    }
    check(&ask("/xmlrpc.php", ""), "403", "", "");
    for _ in 0..10 {
        check(&ask("/wp-login.php", ""), "200", "", "log in");
    }
    // On a busy machine, the limit permits another request meanwhile.
    eventually("there are too many requests", || ask("/wp-login.php", "").get(9..12) == Some("429"));
    let answer = example.ask(&server, "www.example.com", "/a?b", "");
    check(&answer, "301", "Location: https://example.com/a?b", "");
}

#[test]
fn node() {
    let example = StagedExample::new("node-app.kdl");
    example.write("/srv/app/dist/assets/app.js", "let a;");
    let Some(node) = RealServer::start(&NODE) else { return };
    let server = example.run(&[("http://127.0.0.1:3000", node.address)]);
    let ask = |target: &str, fields: &str| example.ask(&server, "app.example.com", target, fields);
    check(&ask("/assets/app.js", ""), "200", "Cache-Control: public, max-age=31536000, immutable", "let a;");
    let answer = ask("/a", "X-Request-Id: forged\r\nX-Forwarded-For: 6.6.6.6\r\n");
    let (head, reported) = answer.split_once("\r\n\r\n").unwrap();
    let id = head.lines().find_map(|line| line.strip_prefix("X-Request-Id: ")).unwrap();
    assert!(id.len() == 32 && reported.contains(&format!("X-Request-Id: {id}\n")), "{answer}");
    assert!(
        reported.contains("X-Forwarded-For: 127.0.0.1\n") && reported.contains("X-Forwarded-Proto: https\n"),
        "{answer}"
    );
}

#[test]
fn python() {
    let example = StagedExample::new("python-app.kdl");
    example.write("/srv/app/static/app.css", "body {}");
    example.write("/srv/app/media/page.html", "<script>");
    let Some(uvicorn) = RealServer::start(&UVICORN) else { return };
    let socket = format!("unix:{}", example.path("/run/app/app.sock").display());
    let server = example.run(&[(&socket, uvicorn.address)]);
    let ask = |target: &str, fields: &str| example.ask(&server, "example.com", target, fields);
    check(&ask("/static/app.css", ""), "200", "Cache-Control: public, max-age=31536000, immutable", "body {}");
    check(&ask("/media/page.html", ""), "200", "Content-Security-Policy: default-src 'none'; sandbox", "<script>");
    check(&ask("/a?b", ""), "200", "", "d41d8cd98f00b204e9800998ecf8427e\n");
    check(&ask("/admin/", ""), "401", "WWW-Authenticate: Basic realm=\"Administration\", charset=\"UTF-8\"", "");
    // Anna's password is `secret`.
    check(
        &ask("/admin/", "Authorization: Basic YW5uYTpzZWNyZXQ=\r\n"),
        "200",
        "",
        "d41d8cd98f00b204e9800998ecf8427e\n",
    );
}

#[test]
fn several_servers() {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
    let well = || ScriptedUpstream::start(vec![vec![ScriptStep::Read("\r\n\r\n"), ScriptStep::Write(answer)]]);
    let example = StagedExample::new("several-servers.kdl");
    // One upstream is down from the start.
    let down = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (second, third, backup) = (well(), well(), well());
    let server = example.run(&[
        ("http://10.0.0.11:8000", down),
        ("http://10.0.0.12:8000", second.address),
        ("http://10.0.0.13:8000", third.address),
        ("http://10.0.1.11:8000", backup.address),
    ]);
    for _ in 0..20 {
        check(&ask(&server, &get("example.com", "/", "")), "200", "", "ok");
        check(&ask(&server, &get("example.com", "/chat/a", "Cookie: session=a\r\n")), "200", "", "ok");
    }
    assert!(std::iter::from_fn(|| backup.try_connection()).all(|asked| asked.starts_with("GET /healthz ")));
}

#[test]
fn what_is_served_from_here() {
    let anna = "Authorization: Basic YW5uYTpzZWNyZXQ=\r\n";
    for (name, host, target, fields, status, line) in [
        ("one-site.kdl", "any.example", "/", "", "200", "Cache-Control: no-cache"),
        ("one-site.kdl", "any.example", "/nothing", "", "404", ""),
        ("mass-hosting.kdl", "localhost", "/", "", "200", ""),
        ("mass-hosting.kdl", "www.localhost", "/", "", "200", ""),
        ("mass-hosting.kdl", "unknown.example", "/", "", "404", ""),
        ("virtual-hosts.kdl", "example.com", "/", "", "200", ""),
        ("virtual-hosts.kdl", "old.example.com", "/a?b", "", "301", "Location: http://example.com/a?b"),
        ("virtual-hosts.kdl", "no.example.com", "/", "", "404", ""),
        ("virtual-hosts.kdl", "unknown.example", "/", "", "421", ""),
        ("single-page-app.kdl", "any.example", "/a/b", "", "200", "Cache-Control: no-cache"),
        ("single-page-app.kdl", "any.example", "/assets/none.js", "", "404", ""),
        ("redirects.kdl", "www.example.org", "/a?b", "", "301", "Location: https://example.com/a?b"),
        ("redirects.kdl", "example.com", "/old/a?b", "", "301", "Location: /new/a?b"),
        ("redirects.kdl", "example.com", "/2026/11/tux.html", "", "301", "Location: /blog/2026-11/tux"),
        ("redirects.kdl", "example.com", "/", "X-Forwarded-Proto: http\r\n", "308", "Location: https://example.com/"),
        ("redirects.kdl", "example.com", "/404", "", "200", ""),
        ("protected-area.kdl", "example.com", "/internal/a", "", "403", "X-Frame-Options: DENY"),
        ("protected-area.kdl", "example.com", "/downloads/readme.txt", "", "401", "X-Frame-Options: DENY"),
        ("protected-area.kdl", "example.com", "/downloads/readme.txt", anna, "200", "X-Frame-Options: DENY"),
        ("many-options.kdl", "www.example.com", "/healthz", "", "200", ""),
        ("many-options.kdl", "example.com", "/downloads/readme.txt", "", "200", "Cache-Control: public, max-age=3600"),
    ] {
        let server = StagedExample::new(name).run(&[]);
        let answer = ask(&server, &get(host, target, fields));
        println!("{name} {target}");
        check(&answer, status, line, "");
    }
}

#[test]
fn a_static_site_with_tls() {
    let example = StagedExample::new("static-site-with-tls.kdl");
    example.write("/var/www/example.com/index.html", "home");
    let server = example.run(&[]);
    let answer = example.ask(&server, "example.com", "/", "");
    check(&answer, "200", "Strict-Transport-Security: max-age=31536000; includeSubDomains", "home");
    check(&answer, "200", "Cache-Control: no-cache", "home");
    let answer = example.ask(&server, "www.example.com", "/a%20b?c", "");
    check(&answer, "301", "Location: https://example.com/a%20b?c", "");
}
