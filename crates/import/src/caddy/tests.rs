//! Translations of whole Caddyfiles.

use super::*;
use crate::kdl;

/// The site of a Caddyfile without comments, and remarks.
fn translated(text: &str) -> (String, Vec<String>) {
    let (nodes, remarks, _) = translate_file(&syntax::parse(text).unwrap());
    let text = kdl::write(&nodes);
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//") && !line.is_empty());
    (lines.collect::<Vec<_>>().join("\n"), remarks.iter().map(ToString::to_string).collect())
}

#[track_caller]
fn check(body: &str, expect: &str) {
    let (found, remarks) = translated(&format!("example.com {{\n{body}\n}}"));
    let expect: Vec<&str> = expect.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let lines: Vec<&str> = found.lines().map(str::trim).collect();
    let inner = lines.strip_prefix(&["site \"example.com\" {"]).and_then(|lines| lines.strip_suffix(&["}"]));
    assert_eq!(inner, Some(expect.as_slice()), "{found}\n{remarks:?}");
}

#[test]
fn sites_of_the_documentation() {
    check("root * /srv\nencode zstd gzip\nfile_server", "root \"/srv\"\nindex \"index.html\" \"index.txt\"");
    check("reverse_proxy localhost:9000", "forward \"http://localhost:9000\"");
    check(
        "root * /srv\nphp_fastcgi unix//run/php.sock\nfile_server",
        "root \"/srv\"\nindex \"index.html\" \"index.txt\"\nfastcgi \"*.php\" \"unix:/run/php.sock\" {\nfallback \"/index.php\"\n}",
    );
    check(
        "handle /api/* {\n reverse_proxy backend:8000\n}\nhandle {\n root * /srv\n try_files {path} /index.html\n file_server\n}",
        "root \"/srv\"\nindex \"index.html\" \"index.txt\"\nfallback \"/index.html\"\nforward \"http://backend:8000\" path=\"/api/*\"",
    );
    check(
        "handle_path /api/* {\n reverse_proxy 127.0.0.1:3000\n}\nrespond 404",
        "forward \"http://127.0.0.1:3000\" path=\"/api/*\" {\nstrip-prefix \"/api\"\n}\nrespond \"*\" 404",
    );
    check(
        "redir https://www.example.com{uri} permanent",
        "redirect \"*\" \"https://www.example.com{path}{query}\" status=301\nrespond \"*\" 200",
    );
}

#[test]
fn guards_stay_closed() {
    check(
        "@blocked not remote_ip 10.0.0.0/8\nrespond @blocked 403\nreverse_proxy a:80",
        "deny all when=\"not (client in ('10.0.0.0/8'))\"\nforward \"http://a:80\"",
    );
    check(
        "@in remote_ip 10.0.0.0/8\nhandle @in {\n reverse_proxy a:80\n}\nhandle {\n abort\n}",
        "forward \"http://a:80\" path=\"*\" when=\"client in ('10.0.0.0/8')\"\nrespond \"*\" 403",
    );
    check(
        "basic_auth /admin/* {\n anna $2a$14$x\n}\nreverse_proxy a:80",
        "basic-auth \"~(?i)^/admin/\" \"users.htpasswd\" realm=\"restricted\"\nforward \"http://a:80\"",
    );
    check("respond /admin* 403\nreverse_proxy a:80", "respond \"~(?i)^/admin\" 403\nforward \"http://a:80\"");
    check(
        "handle /open/* {\n reverse_proxy a:80\n}\nhandle {\n basic_auth {\n  anna $2a$14$x\n }\n reverse_proxy b:80\n}",
        "basic-auth \"*\" \"users.htpasswd\" realm=\"restricted\" when=\"not (path starts-with '/open/')\"\nforward \"http://a:80\" path=\"/open/*\"\nforward \"http://b:80\"",
    );
    check("@x expression `path('/a')`\nrespond @x 403\nreverse_proxy a:80", "deny all\nforward \"http://a:80\"");
    check("wonder on\nreverse_proxy a:80", "deny all\nforward \"http://a:80\"");
    check(
        "handle /in/* {\n wonder on\n}\nreverse_proxy a:80",
        "deny all path=\"~(?i)^/in/\"\nrespond \"/in/*\" 200\nforward \"http://a:80\"",
    );
    check(
        "@post {\n method POST\n header X-A a*\n header X-A *b\n}\nreverse_proxy @post b:80\nreverse_proxy a:80",
        "forward \"http://b:80\" path=\"*\" when=\"method in ('POST') and (request.header.X-A starts-with 'a' or request.header.X-A ends-with 'b')\"\nforward \"http://a:80\"",
    );
}

#[test]
fn hosts_of_a_wildcard_are_sites() {
    let text =
        "*.example.com {\n @a host a.example.com\n handle @a {\n  reverse_proxy one:80\n }\n handle {\n  abort\n }\n}";
    let (found, _) = translated(text);
    let expect = "site \"a.example.com\" {\n    forward \"http://one:80\"\n}\nsite \"*.example.com\" {\n    respond \"*\" 403\n}";
    assert_eq!(found, expect);
}

#[test]
fn addresses_are_listeners() {
    let check = |address: &str, expect: &str| {
        let (found, _) = translated(&format!("{address} {{\n respond 200\n}}"));
        let found: Vec<&str> = found.lines().map(str::trim).collect();
        let end = found.iter().position(|line| line.starts_with("respond")).unwrap();
        assert_eq!(found[..end].join("|"), expect, "{address}");
    };
    check("http://a.de", "site \"a.de\" {|listen 80");
    check(":8080", "site {|listen 8080");
    check("a.de:8443", "site \"a.de\" {|listen 8443 tls=on");
    check("a.de, b.de", "site \"a.de\" \"b.de\" {");
    check("localhost", "site \"localhost\" {|certificate \"tls/localhost.pem\" key=\"tls/localhost.key\"");
}
