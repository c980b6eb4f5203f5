//! Translations of whole configurations.

use std::path::Path;

use super::*;
use crate::kdl;

fn translated(text: &str, of_directory: Option<&Path>) -> (Vec<String>, Vec<String>) {
    let directives = syntax::parse_resolved(text).unwrap();
    let (nodes, remarks) = translate_directives(&directives, of_directory);
    let text = kdl::write(&nodes);
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("//") && !line.is_empty());
    (lines.map(str::to_owned).collect(), remarks.iter().map(ToString::to_string).collect())
}

#[track_caller]
fn check(body: &str, expect: &str) {
    let text = format!("<VirtualHost *:80>\nServerName a.de\nDocumentRoot /srv\n{body}\n</VirtualHost>");
    let (found, remarks) = translated(&text, None);
    let expect: Vec<&str> = expect.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let inner: Vec<&str> = found.iter().map(String::as_str).collect();
    let inner = inner.strip_prefix(&["site \"a.de\" {", "listen 80"]).and_then(|lines| lines.strip_suffix(&["}"]));
    assert_eq!(inner, Some(expect.as_slice()), "{found:#?}\n{remarks:?}");
}

#[test]
fn hosts_are_sites() {
    check("", "root \"/srv\"\nindex \"index.html\"");
    check(
        "DirectoryIndex index.php index.html\n<FilesMatch \\.php$>\nSetHandler \"proxy:unix:/run/php.sock|fcgi://localhost\"\n</FilesMatch>\nFallbackResource /index.php",
        "root \"/srv\"\nindex \"index.php\" \"index.html\"\nfastcgi \"*.php\" \"unix:/run/php.sock\" {\nfallback \"/index.php\"\n}",
    );
    check(
        "ProxyPreserveHost On\nProxyPass /api/ http://127.0.0.1:3000/\nProxyPassReverse /api/ http://127.0.0.1:3000/",
        "root \"/srv\"\nindex \"index.html\"\nforward \"http://127.0.0.1:3000\" path=\"/api/*\" {\nstrip-prefix \"/api\"\n}",
    );
    check(
        "Redirect permanent / https://a.de/",
        "root \"/srv\"\nindex \"index.html\"\nredirect \"*\" \"https://a.de{path}{query}\" status=301",
    );
    check(
        "Alias /dl /data\nErrorDocument 404 /404.html",
        "root \"/srv\"\nindex \"index.html\"\nfiles \"/dl/*\" root=\"/data\" {\nstrip-prefix \"/dl\"\n}\nrespond \"/dl/*\" 404\nerror-page 404 \"/404.html\"",
    );
}

#[test]
fn access_rules_stay_closed() {
    check(
        "<Directory /srv>\nRequire all granted\n</Directory>\n<Location /admin>\nRequire ip 10.0 192.0.2.1\n</Location>",
        "root \"/srv\"\nindex \"index.html\"\nallow \"10.0.0.0/16\" \"192.0.2.1\" path=\"/admin/*\"\nallow \"10.0.0.0/16\" \"192.0.2.1\" path=\"/admin\"\ndeny all path=\"/admin/*\"\ndeny all path=\"/admin\"",
    );
    check(
        "<Directory /srv/private>\nAuthType Basic\nAuthName Private\nAuthUserFile /etc/users\nRequire valid-user\n</Directory>",
        "root \"/srv\"\nindex \"index.html\"\nbasic-auth \"/private/*\" \"/etc/users\" realm=\"Private\"",
    );
    check(
        "<FilesMatch \"^\\.ht\">\nRequire all denied\n</FilesMatch>",
        "root \"/srv\"\nindex \"index.html\"\ndeny all path=#\"~/\\.ht\"#",
    );
    check(
        "<Directory /srv>\nOrder allow,deny\nDeny from all\n</Directory>",
        "root \"/srv\"\nindex \"index.html\"\ndeny all",
    );
    check(
        "<Location /x>\nRequire ldap-group a\n</Location>",
        "root \"/srv\"\nindex \"index.html\"\ndeny all path=\"/x/*\"\ndeny all path=\"/x\"",
    );
    check(
        "<Location /x>\n<RequireAny>\nRequire ip 10.0.0.1\nRequire valid-user\n</RequireAny>\nAuthUserFile /u\nAuthType Basic\n</Location>",
        "root \"/srv\"\nindex \"index.html\"\nallow \"10.0.0.1\" path=\"/x/*\"\nallow \"10.0.0.1\" path=\"/x\"\ndeny all path=\"/x/*\"\ndeny all path=\"/x\"\nbasic-auth \"/x/*\" \"/u\" realm=\"Restricted\" satisfy=\"any\"\nbasic-auth \"/x\" \"/u\" realm=\"Restricted\" satisfy=\"any\"",
    );
}

#[test]
fn rewrites_of_real_sites() {
    check(
        "RewriteEngine On\nRewriteCond %{HTTPS} off\nRewriteRule ^(.*)$ https://%{HTTP_HOST}%{REQUEST_URI} [R=301,L]",
        "root \"/srv\"\nindex \"index.html\"\nredirect \"*\" \"https://{host}{path}{query}\" status=301",
    );
    check(
        "<Directory /srv>\nRewriteEngine On\nRewriteCond %{REQUEST_FILENAME} !-f\nRewriteCond %{REQUEST_FILENAME} !-d\nRewriteRule ^ index.html [L]\n</Directory>",
        "root \"/srv\"\nfallback \"/index.html\"\nindex \"index.html\"",
    );
    check(
        "RewriteEngine On\nRewriteRule ^/old/(.*)$ /new/$1 [R=301,L]\nRewriteRule ^/\\.git - [F]",
        "root \"/srv\"\nindex \"index.html\"\ndeny all path=#\"~^/\\.git\"#\nredirect \"~^/old/(.*)$\" \"/new/{1}{query}\" status=301",
    );
    check(
        "RewriteEngine On\nRewriteCond %{HTTP_USER_AGENT} bad [NC]\nRewriteRule .* - [F,L]",
        "root \"/srv\"\nindex \"index.html\"\ndeny all field=\"User-Agent: ~(?i)bad\"",
    );
    check(
        "RewriteEngine On\nRewriteCond %{TIME_HOUR} >12\nRewriteRule ^/x - [F]",
        "root \"/srv\"\nindex \"index.html\"\ndeny all path=\"~^/x\"",
    );
}

#[test]
fn htaccess_is_a_site() {
    let text =
        "RewriteEngine On\nRewriteRule ^config/ - [F]\n<Files .env>\nRequire all denied\n</Files>\nRequire all granted";
    let (found, _) = translated(text, Some(Path::new("/srv/.htaccess")));
    let expect = [
        "site {",
        "root \"/srv\"",
        "index \"index.html\"",
        "deny all path=#\"~/\\.env(?:/.*)?$\"#",
        "deny all path=\"~^/config/\"",
        "}",
    ];
    assert_eq!(found, expect);
}

#[test]
fn errors_have_their_line() {
    let check = |text: &str, expect: &str| {
        assert_eq!(syntax::parse_resolved(text).unwrap_err().to_string(), expect, "{text}");
    };
    check("<Directory /a>\n", "httpd.conf:1: `<Directory>` is not closed");
    check("<A>\n</B>", "httpd.conf:2: `</B>` closes `<A>`");
    check("ServerName \"a", "httpd.conf:1: a quotation mark is not closed");
}

#[test]
fn directories_with_unread_rules_are_closed() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::create_dir_all(root.join("private/deep")).unwrap();
    std::fs::create_dir(root.join("open")).unwrap();
    std::fs::write(root.join("private/.htaccess"), "Require all denied").unwrap();
    let site = |allow: &str, root: &Path| {
        let root = root.display();
        let body = format!("<Directory {root}>\nAllowOverride {allow}\nRequire all granted\n</Directory>");
        translated(&format!("<VirtualHost *:80>\nServerName a.de\nDocumentRoot {root}\n{body}\n</VirtualHost>"), None)
    };
    let (lines, remarks) = site("All", root);
    let denied: Vec<_> = lines.iter().filter(|line| line.starts_with("deny")).collect();
    assert_eq!(denied, ["deny all path=\"/private/*\""], "{lines:#?}");
    let file = root.join("private/.htaccess");
    assert!(remarks.iter().any(|remark| remark.contains(file.to_str().unwrap())), "{remarks:?}");
    let (lines, remarks) = site("None", root);
    assert!(!lines.iter().any(|line| line.starts_with("deny")), "{lines:#?}");
    assert!(!remarks.iter().any(|remark| remark.contains("htaccess")), "{remarks:?}");
    let (_, remarks) = site("AuthConfig", &root.join("absent"));
    assert!(remarks.iter().any(|remark| remark.contains("were not looked for")), "{remarks:?}");
    // The whole site.
    std::fs::write(root.join(".htaccess"), "Require all denied").unwrap();
    assert!(site("All", root).0.contains(&"deny all".to_owned()));
}
