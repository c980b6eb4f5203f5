//! Whole Caddyfiles whose translation was more open than Caddy.

use super::tests::translated;

/// Lines of the translation that begin with a word.
fn lines(text: &str, start: &str) -> Vec<String> {
    let (found, _) = translated(text);
    found.lines().map(str::trim).filter(|line| line.starts_with(start)).map(str::to_owned).collect()
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
        "http://a.de/1/* {\n respond 403\n}\nhttp://a.de {\n respond all\n}\nhttp://a.de/1/2* {\n respond more\n}\n\
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
