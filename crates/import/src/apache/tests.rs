//! Translations of whole configurations.

use std::path::Path;

use super::*;
use crate::kdl;

pub(super) fn translated(text: &str, of_directory: Option<&Path>) -> (Vec<String>, Vec<String>) {
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
        "root \"/srv\"\nindex \"index.php\" \"index.html\"\nfastcgi \"*.php\" \"unix:/run/php.sock\" {\nfallback \"/index.php\"\n}\nrespond \"*.php\" 404",
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
        "root \"/srv\"\nindex \"index.html\"\nredirect \"/dl\" \"/dl/{query}\" status=301\nfiles \"/dl/*\" root=\"/data\" {\nstrip-prefix \"/dl\"\n}\nrespond \"/dl/*\" 404\nerror-page 404 \"/404.html\"",
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
        "index \"index.html\" \"index.php\"",
        "deny all path=\"~^/config/\"",
        "deny all path=#\"~/\\.env(?:/.*)?$\"#",
        "}",
    ];
    assert_eq!(found, expect);
}

/// Issue 23: these rejected all paths.
#[test]
fn conditions_of_frameworks_are_translated() {
    let check = |rules: &str, expect: &str| {
        let (lines, remarks) = translated(&format!("RewriteEngine On\n{rules}"), Some(Path::new("/srv/.htaccess")));
        assert!(lines.iter().any(|line| line == expect), "{rules}\n{lines:#?}\n{remarks:#?}");
        assert!(!lines.iter().any(|line| line == "deny all"), "{rules}\n{lines:#?}");
    };
    check(
        "RewriteCond %{REQUEST_URI} ^/old/(.+)$\nRewriteRule ^ /new/%1 [R=301,L]",
        "redirect \"*\" \"/new/{match.1}{query}\" status=301 when=\"path matches '^/old/(.+)$'\"",
    );
    check(
        "RewriteCond %{HTTP_USER_AGENT} bad [NC]\nRewriteCond %{HTTP_REFERER} ^$\nRewriteRule ^ - [F]",
        "deny all field=\"User-Agent: ~(?i)bad\" when=\"request.header.Referer == ''\"",
    );
    check(
        "RewriteCond %{REQUEST_URI}::$0 ^(/.+)/(.*)::\\2$\nRewriteRule .* - [E=BASE:%1]\nRewriteCond %{REQUEST_FILENAME} !-f\n\
         RewriteRule ^ %{ENV:BASE}/index.php [L]",
        "fallback \"/index.php\"",
    );
}

/// Each of these was more open than in Apache.
#[test]
fn what_apache_rejects_is_rejected() {
    let check = |body: &str, expect: &[&str]| {
        let text = format!("<VirtualHost *:80>\nServerName a.de\nDocumentRoot /srv\n{body}\n</VirtualHost>");
        let (lines, remarks) = translated(&text, None);
        let is_guard = |line: &&String| ["deny", "allow", "basic-auth"].iter().any(|name| line.starts_with(name));
        let guards: Vec<&String> = lines.iter().filter(is_guard).collect();
        assert_eq!(guards, expect, "{body}\n{remarks:#?}");
    };
    // Access for all lifts no rejection of mod_rewrite and mod_alias.
    let open = "<Directory /srv/a>\nRequire all granted\n</Directory>\n<Location />\nRequire all denied\n</Location>";
    check(
        &format!("RewriteEngine On\nRewriteRule ^/a/x - [F]\nRedirect gone /a/y\n{open}"),
        &[
            "deny all path=\"~^/a/x\"",
            "deny all path=\"/a/y/*\" status=410",
            "deny all path=\"/a/y\" status=410",
            "deny all",
        ],
    );
    // An exception of a rule is none of others.
    check(
        "RewriteEngine On\nRewriteCond %{REQUEST_URI} !^/a/b\nRewriteRule ^/a - [F]\n<Location /a/b>\nRequire all denied\n</Location>",
        &[
            "deny all path=\"~^/a\" when=\"not path matches '^/a/b'\"",
            "deny all path=\"/a/b/*\"",
            "deny all path=\"/a/b\"",
        ],
    );
    // Flags in lower case, and rules that a block around has turned on.
    check("RewriteEngine On\nRewriteRule ^/x - [f,l]", &["deny all path=\"~^/x\""]);
    check("RewriteRule ^/x - [F]\nRewriteRule ^/y /z", &["deny all path=\"~^/x\""]);
    check("RewriteEngine On\nRewriteEngine Off\nRewriteRule ^/x - [F]", &[]);
    // Old rules and new ones do not replace each other.
    check(
        "<Location /a>\nOrder allow,deny\nDeny from all\n</Location>\n<Location /a/b>\nRequire all granted\n</Location>",
        &["deny all path=\"/a/*\"", "deny all path=\"/a\""],
    );
    check(
        "<Location /a>\nRequire ip 10.0.0.1\n</Location>\n<Location /a/b>\nAuthMerging And\nRequire all granted\n</Location>",
        &[
            "deny all path=\"/a/b/*\"",
            "deny all path=\"/a/b\"",
            "allow \"10.0.0.1\" path=\"/a/*\"",
            "allow \"10.0.0.1\" path=\"/a\"",
            "deny all path=\"/a/*\"",
            "deny all path=\"/a\"",
        ],
    );
    // An alias is no part of the root, however long the paths on the disk are.
    check(
        "<Directory /srv>\nRequire all granted\n</Directory>\nAlias /x /y\n<Directory /y>\nRequire ip 10.0.0.1\n</Directory>",
        &["allow \"10.0.0.1\" path=\"/x/*\"", "deny all path=\"/x/*\""],
    );
    check(
        "<Directory /srv>\nRequire ip 10.0.0.2\n</Directory>\nAlias /x /y\n<Directory /y>\nRequire all granted\n</Directory>",
        &["allow all path=\"/x/*\"", "allow \"10.0.0.2\"", "deny all"],
    );
    // An expression holds in all aliases.
    check(
        "<DirectoryMatch \"/\\.git\">\nRequire all denied\n</DirectoryMatch>\nAlias /x /y\n<Directory /y>\nRequire all granted\n\
         </Directory>\n<Location />\n</Location>\n<Directory /srv>\nRequire ip 10.0.0.1\n</Directory>",
        &["deny all path=#\"~/\\.git\"#", "allow all path=\"/x/*\"", "allow \"10.0.0.1\"", "deny all"],
    );
    check("ProxyPass /a/ http://b.a/\n<Proxy http://*.a/*>\nRequire ip 10.0.0.1\n</Proxy>", &["deny all"]);
    // Guards of other modules.
    check(
        "<Location /a>\nSSLRequire %{SSL_CLIENT_S_DN_O} eq \"A\"\n</Location>",
        &["deny all path=\"/a/*\"", "deny all path=\"/a\""],
    );
    check("<Location />\nSSLVerifyClient require\n</Location>", &["deny all"]);
    check("<Location />\nSSLVerifyClient none\n</Location>", &[]);
    check("<Proxy *>\nRequire ip 10.0.0.1\n</Proxy>", &[]);
    check(
        "<Proxy *>\nRequire ip 10.0.0.1\n</Proxy>\nProxyPass /a/ http://b/",
        &["allow \"10.0.0.1\" path=\"/a/*\"", "deny all path=\"/a/*\""],
    );
    check("<Proxy *>\nRequire ip 10.0.0.1\n</Proxy>\nRewriteEngine on\nRewriteRule ^/a http://b/ [P]", &["deny all"]);
    // A section of some paths of an upstream.
    check(
        "<Proxy http://b/c/*>\nRequire ip 10.0.0.1\n</Proxy>\nProxyPass /a http://B",
        &["allow \"10.0.0.1\" path=\"~(?i)^/a/c/\"", "deny all path=\"~(?i)^/a/c/\""],
    );
    check(
        "<Proxy balancer://b/>\nRequire ip 10.0.0.1\n</Proxy>\nProxyPass /a/ balancer://b",
        &["allow \"10.0.0.1\" path=\"/a/*\"", "deny all path=\"/a/*\""],
    );
    check("<Proxy *>\nRequire all granted\n</Proxy>", &[]);
    check("SetHandler server-status", &["deny all"]);
    // Patterns of directories on the disk.
    check("<DirectoryMatch \"/\\.git\">\nRequire all denied\n</DirectoryMatch>", &["deny all path=#\"~/\\.git\"#"]);
    check(
        "<DirectoryMatch \"^/srv/[^/]+/x\">\nRequire all denied\n</DirectoryMatch>",
        &["deny all path=\"~^/[^/]+/x\""],
    );
    for text in ["<DirectoryMatch \"^/s[rv]+/x\">", "<DirectoryMatch \"srv/.*/x\">", "<DirectoryMatch \"(a|b)\">"] {
        check(&format!("{text}\nRequire all denied\n</DirectoryMatch>"), &["deny all"]);
    }
    check("<Directory /var/*/x>\nRequire all denied\n</Directory>", &[]);
    // No extension.
    check("AddType application/x-httpd-php\nAddType text/x", &["deny all"]);
}

/// Each of these ended the program, or took for ever.
#[test]
fn hostile_texts_are_rejected() {
    let macros: String = (1..=15)
        .map(|level| format!("<Macro m{level}>\n{}</Macro>\n", format!("Use m{}\n", level - 1).repeat(10)))
        .collect();
    let text = format!("<Macro m0>\nServerName a\n</Macro>\n{macros}Use m15\n");
    assert!(syntax::parse_resolved(&text).unwrap_err().to_string().contains("more than 1000000 directives"));
    let text = format!("Define A aaaaaaaa\n{}ServerName ${{A}}", "Define A ${A}${A}\n".repeat(60));
    assert!(syntax::parse_resolved(&text).is_ok());
    for text in ["<Macro>\n</Macro>\nUse", "AddType", "ExpiresDefault \"access plus 999999999999999999 years\"", "Use"]
    {
        translated(text, None);
    }
}

#[test]
fn errors_have_their_line() {
    let check = |text: &str, expect: &str| {
        assert_eq!(syntax::parse_resolved(text).unwrap_err().to_string(), expect, "{text}");
    };
    check("<Directory /a>\n", "httpd.conf:1: `<Directory>` is not closed");
    check("<A>\n</B>", "httpd.conf:2: `</B>` closes `<A>`");
}

#[test]
fn rules_of_directories_are_read() {
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
    let denied =
        |lines: &[String]| -> Vec<String> { lines.iter().filter(|line| line.starts_with("deny")).cloned().collect() };
    let (lines, remarks) = site("All", root);
    assert_eq!(denied(&lines), ["deny all path=\"/private/*\""], "{lines:#?}");
    assert!(remarks.is_empty(), "{remarks:?}");
    // Some rules would not hold.
    let (lines, remarks) = site("FileInfo", root);
    assert_eq!(denied(&lines), ["deny all path=\"/private/*\""], "{lines:#?}");
    let file = root.join("private/.htaccess");
    assert!(remarks.iter().any(|remark| remark.contains(file.to_str().unwrap())), "{remarks:?}");
    let (lines, remarks) = site("None", root);
    assert!(denied(&lines).is_empty(), "{lines:#?}");
    assert!(!remarks.iter().any(|remark| remark.contains("htaccess")), "{remarks:?}");
    let (_, remarks) = site("AuthConfig", &root.join("absent"));
    assert!(remarks.iter().any(|remark| remark.contains("were not looked for")), "{remarks:?}");
    // A file that cannot be read closes its directory.
    std::fs::write(root.join("private/.htaccess"), "<Files a>").unwrap();
    assert_eq!(denied(&site("All", root).0), ["deny all path=\"/private/*\""]);
    // The whole site: the first match counts, so that access for all of the section around must not come before.
    for (rules, expect) in [
        ("Require all denied", "deny all"),
        ("Require ip 192.0.2.1", "allow \"192.0.2.1\""),
        ("AuthType Basic\nAuthUserFile /users\nRequire valid-user", "basic-auth \"*\" \"/users\" realm=\"Restricted\""),
    ] {
        std::fs::write(root.join(".htaccess"), rules).unwrap();
        std::fs::write(root.join("private/.htaccess"), "").unwrap();
        let (lines, _) = site("All", root);
        let is_rule =
            |line: &&String| line.starts_with("deny") || line.starts_with("allow") || line.starts_with("basic");
        assert_eq!(lines.iter().find(is_rule).map(String::as_str), Some(expect), "{lines:#?}");
    }
    // A directory that has a section and a file.
    std::fs::write(root.join(".htaccess"), "").unwrap();
    std::fs::write(root.join("private/.htaccess"), "Require all denied").unwrap();
    let shown = root.display();
    let text = format!(
        "DocumentRoot {shown}\n<Directory {shown}/private>\nRequire all granted\n</Directory>\n\
         <Directory {shown}>\nAllowOverride All\nRequire all granted\n</Directory>"
    );
    let (lines, _) = translated(&text, None);
    let at = |text: &str| lines.iter().position(|line| line == text);
    assert!(at("deny all path=\"/private/*\"").is_some(), "{lines:#?}");
    assert!(at("allow all path=\"/private/*\"").is_none(), "{lines:#?}");
    // Files of directories come after those of the site.
    let text = "<Directory /srv>\n<Files a>\nRequire all denied\n</Files>\n</Directory>\n\
                <Files a>\nRequire all granted\n</Files>";
    let (lines, _) = translated(&format!("DocumentRoot /srv\n{text}"), None);
    assert!(lines.iter().any(|line| line.starts_with("deny all path=")), "{lines:#?}");
    assert!(!lines.iter().any(|line| line.starts_with("allow all")), "{lines:#?}");
}

/// Rules below a `.htaccess` file were ignored, which was more open.
#[test]
fn rules_below_a_htaccess_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let file = root.join(".htaccess");
    std::fs::create_dir_all(root.join("webroot")).unwrap();
    let rules = "RewriteEngine on\nRewriteRule ^$ webroot/ [L]\nRewriteRule (.*) webroot/$1 [L]";
    std::fs::write(&file, rules).unwrap();
    let inner = "RewriteEngine On\nRewriteCond %{REQUEST_FILENAME} !-f\nRewriteRule ^ index.php [L]\n\
                 <Files x>\nRequire all denied\n</Files>";
    std::fs::write(root.join("webroot/.htaccess"), inner).unwrap();
    let (lines, remarks) = translated(rules, Some(&file));
    for expect in [
        "deny all path=\"~^/webroot(?:/.*)?(?:/x(?:/.*)?$)\"",
        "rewrite \"~^/$\" \"/webroot/index.php\" when=\"not path starts-with '/webroot/'\"",
        "rewrite \"~/$\" \"/webroot/index.php\" when=\"not path starts-with '/webroot/'\"",
        "rewrite \"*\" \"/webroot{path}\" when=\"not path starts-with '/webroot/'\"",
        "rewrite \"~^/webroot/\" \"/webroot/index.php\" missing=on",
    ] {
        assert!(lines.iter().any(|line| line == expect), "{expect}\n{lines:#?}\n{remarks:#?}");
    }
}

/// Issue 23: conditions of Apache that were lost, or rejected all paths.
#[test]
fn conditions_are_translated() {
    let check = |body: &str, expect: &[&str]| {
        let text = format!("<VirtualHost *:80>\nServerName a.de\nDocumentRoot /srv\n{body}\n</VirtualHost>");
        let (lines, remarks) = translated(&text, None);
        let lines = lines.strip_suffix(&["}".to_owned()]).unwrap();
        assert_eq!(lines[4..], *expect, "{body}\n{remarks:#?}");
    };
    check(
        "<If \"%{REQUEST_URI} =~ m#/login$#\">\nHeader set A b\n</If>\n<Else>\nHeader set A c\n</Else>",
        &[
            "response-header \"A\" \"b\" when=\"path matches '/login$'\"",
            "response-header \"A\" \"c\" when=\"not (path matches '/login$')\"",
        ],
    );
    check(
        "SetEnvIf Origin : cors\nHeader set A b env=cors\nHeader set C d env=!cors\nHeader set E f env=other",
        &[
            "response-header \"A\" \"b\" when=\"request.header.Origin matches ':'\"",
            "response-header \"C\" \"d\" when=\"not (request.header.Origin matches ':')\"",
        ],
    );
    check(
        "<If \"req('Host') != 'a.de'\">\nRedirect / http://a.de/\n</If>",
        &["redirect \"*\" \"http://a.de{path}{query}\" status=302 when=\"not (request.header.Host == 'a.de')\""],
    );
    check(
        "<If \"%{HTTP_USER_AGENT} == 'Bad'\">\nRequire all denied\n</If>",
        &["deny all when=\"request.header.User-Agent == 'Bad'\""],
    );
    check("<If \"osname() == 'x'\">\nRequire all denied\n</If>", &["deny all"]);
    check("<If \"osname() == 'x'\">\nHeader set A b\n</If>\n<Else>\nHeader set A c\n</Else>", &[]);
    check(
        "SetEnvIf Referer a\\.de own\n<Files *.gif>\nRequire env own\n</Files>",
        &[
            "allow all path=#\"~\\.gif(?:/.*)?$\"# when=#\"request.header.Referer matches 'a\\.de'\"#",
            "deny all path=#\"~\\.gif(?:/.*)?$\"#",
        ],
    );
    check(
        "BrowserMatch Bad away\n<Location /x/>\n<RequireAll>\nRequire all granted\nRequire not env away\n\
         </RequireAll>\n</Location>",
        &["allow all path=\"/x/*\" when=\"not (request.header.User-Agent matches 'Bad')\"", "deny all path=\"/x/*\""],
    );
    // Nothing here sets the variable, or something sets it for other paths only.
    check("<Location /x/>\nRequire env a\n</Location>", &["deny all path=\"/x/*\""]);
    check(
        "<Location /y/>\nSetEnvIf Host . a\n</Location>\n<Location /x/>\nRequire env a\n</Location>",
        &["deny all path=\"/x/*\""],
    );
    check(
        "<Location /x/>\nRequire expr %{REQUEST_METHOD} == 'GET'\n</Location>",
        &["allow all path=\"/x/*\" when=\"method == 'GET'\"", "deny all path=\"/x/*\""],
    );
}

/// Scripts below an alias were 404, as in the packages of phpMyAdmin and Cacti.
#[test]
fn scripts_below_aliases_run() {
    let text =
        "DocumentRoot /srv\nAlias /db /usr/share/db\n<Directory /usr/share/db>\nDirectoryIndex index.php\n</Directory>";
    let (lines, remarks) = translated(text, None);
    let expect = [
        "files \"/db/*\" root=\"/usr/share/db\" {",
        "strip-prefix \"/db\"",
        "index \"index.php\"",
        "}",
        r###"fastcgi #"~^/db/.*\.php$"# "unix:/run/php/php-fpm.sock" root="/usr/share/db" {"###,
        "strip-prefix \"/db\"",
        "}",
        "respond \"/db/*\" 404",
    ];
    assert!(lines.windows(expect.len()).any(|some| some == expect), "{lines:#?}\n{remarks:#?}");
}

/// Upstreams of sections come before those of a host, and the last section counts.
#[test]
fn sections_choose_upstreams() {
    let check = |body: &str, expect: &[&str]| {
        let text = format!("<VirtualHost *:80>\nServerName a.de\nDocumentRoot /srv\n{body}\n</VirtualHost>");
        let (lines, remarks) = translated(&text, None);
        let is_handler = |line: &&String| ["forward", "files", "respond"].iter().any(|name| line.starts_with(name));
        let found: Vec<&String> = lines.iter().filter(is_handler).collect();
        assert_eq!(found, expect, "{body}\n{remarks:#?}");
    };
    let open = "<Location /a/>\nProxyPass http://b/\n</Location>";
    let closed = [
        "files \"/a/i/*\" root=\"/srv\"",
        "respond \"/a/i/*\" 404",
        "files \"/a/i\" root=\"/srv\"",
        "respond \"/a/i\" 404",
    ];
    let forward = "forward \"http://b\" path=\"/a/*\" {";
    check(&format!("{open}\n<Location /a/i>\nProxyPass !\n</Location>"), &[&closed[..], &[forward]].concat());
    check(&format!("ProxyPass /a/i !\n{open}"), &[&[forward], &closed[..]].concat());
    let (lines, _) = translated("<Location /a/>\nProxyPass http://b/c/\n</Location>", None);
    assert!(lines.contains(&"rewrite \"~^/a(/.*)$\" \"/a/c{1}\"".to_owned()), "{lines:#?}");
    // ProxyPreserveHost of a section holds within later ones around it, too.
    check(
        "<Location /a/s>\nProxyPreserveHost On\nProxyPass ws://b:1/a/s\n</Location>\n\
         <Location /a>\nProxyPass http://b:1/a\n</Location>",
        &[
            "forward \"http://b:1\" path=\"/a/s/*\"",
            "forward \"http://b:1\" path=\"/a/s\"",
            "forward \"http://b:1\" path=\"/a/*\" {",
            "forward \"http://b:1\" path=\"/a\" {",
        ],
    );
    // No file is known before the directories of a host.
    check(
        "RewriteEngine on\nRewriteCond %{REQUEST_FILENAME} !-f\nRewriteRule ^/(.*) http://b/$1 [P]\nProxyPass /x !",
        &["forward \"http://b\" {"],
    );
}

/// Issue 23: idioms of frameworks whose paths were rejected.
#[test]
fn idioms_of_frameworks_are_translated() {
    let check = |rules: &str, expect: &[&str]| {
        let (lines, remarks) = translated(&format!("RewriteEngine On\n{rules}"), Some(Path::new("/srv/.htaccess")));
        for expect in expect {
            assert!(lines.iter().any(|line| line == expect), "{rules}\n{lines:#?}\n{remarks:#?}");
        }
        assert!(!lines.iter().any(|line| line == "deny all"), "{rules}\n{lines:#?}");
    };
    check("RewriteRule ^w$ %{DOCUMENT_ROOT}/w/index.php [L]", &["rewrite \"~^/w$\" \"/w/index.php\""]);
    check("RewriteRule . - [E=BASE_OF:/]\nRewriteRule ^x$ %{ENV:BASE_OF}y [L]", &["rewrite \"~^/x$\" \"/y\""]);
    check(
        "RewriteCond $0#%{REQUEST_URI} ([^#]*)#(.*)\\1$\nRewriteRule ^.*$ - [E=CWD:%2]\n\
         RewriteCond %{REQUEST_FILENAME} !-f\nRewriteCond %{REQUEST_FILENAME} !-d\n\
         RewriteRule ^.*$ %{ENV:CWD}index.php [L]",
        &["fallback \"/index.php\""],
    );
    check(
        "RewriteCond %{REQUEST_METHOD} ^TRAC[EK]\nRewriteRule .* - [L,R=405]",
        &["deny all when=\"method matches '^TRAC[EK]'\" status=405"],
    );
    check(
        "RewriteCond %{REQUEST_FILENAME} !\\.(css|js)$\nRewriteRule . index.php [PT]",
        &[
            "rewrite \"*\" \"/index.php\" when=#\"not path matches '\\.(css|js)$' and not path starts-with '/index.php/'\"#",
        ],
    );
    check(
        "RewriteCond %{REQUEST_FILENAME} !-d\nRewriteCond %{REQUEST_URI} (.+)/$\nRewriteRule ^ %1 [L,R=301]",
        &["redirect \"*\" \"/{match.1}{query}\" status=301 when=\"path matches '^/(.*)/$'\" missing=on"],
    );
    check(
        "RewriteCond %{REQUEST_URI} ^(.*)?/(install\\.php)\nRewriteRule ^ %1/core/%2 [L,R=301]",
        &[
            r#####"redirect "*" "/{match.1}core/{match.2}{query}" status=301 when=#"path matches '^/((?:.*/)?)(install\.php)'"#"#####,
        ],
    );
    check(
        "RewriteRule ^static/ - [L]\nRewriteCond %{REQUEST_FILENAME} !-f\nRewriteRule ^ index.php [L]",
        &["rewrite \"*\" \"/index.php\" when=\"not (path matches '^/static/')\" missing=on"],
    );
    check("RewriteRule !^api/ index.html [L]", &["rewrite \"*\" \"/index.html\" when=\"not path matches '^/api/'\""]);
    check(
        "RewriteCond %{HTTP:Upgrade} =websocket\nRewriteRule (.*) ws://127.0.0.1:1/socket/$1 [P]\n\
         RewriteCond %{HTTP:Upgrade} !=websocket\nRewriteRule (.*) http://127.0.0.1:1/$1 [P]",
        &["rewrite \"~^/(.*)$\" \"/socket/{1}\" field=\"Upgrade: websocket\""],
    );
}

/// Issue 23: aliases of packages that were 404, or whose index was another one.
#[test]
fn aliases_lead_to_files_and_programs() {
    let check = |body: &str, expect: &[&str]| {
        let (lines, remarks) = translated(&format!("DocumentRoot /srv\n{body}"), None);
        assert!(lines.windows(expect.len()).any(|some| some == expect), "{body}\n{lines:#?}\n{remarks:#?}");
    };
    check("Alias /wiki /srv/w/index.php", &["rewrite \"~^/wiki(/.*)?$\" \"/w/index.php{1}\""]);
    check("Alias /a/x.ico /other/x.ico", &["files \"/a/x.ico\" root=\"/other\" {", "strip-prefix \"/a\"", "}"]);
    check("Alias /x.ico /other/y.ico", &["rewrite \"/x.ico\" \"/x.ico/y.ico\""]);
    check(
        "ScriptAlias /run /p/other\n<Directory /p>\nRequire local\n</Directory>",
        &["allow \"127.0.0.0/8\" \"::1\" path=\"/run/*\"", "allow \"127.0.0.0/8\" \"::1\" path=\"/run\""],
    );
    // The first alias counts, whatever its kind.
    check(
        "ScriptAlias /s/go.cgi /p/go.cgi\nAlias /s /data\n<Directory /data>\nDirectoryIndex go.cgi\n</Directory>",
        &[
            "rewrite \"/s/\" \"/s/go.cgi\"",
            "redirect \"/s\" \"/s/{query}\" status=301",
            "cgi \"/s/go.cgi\" root=\"/p\" {",
            "strip-prefix \"/s\"",
            "}",
            "files \"/s/*\" root=\"/data\" {",
            "strip-prefix \"/s\"",
            "index \"go.cgi\"",
            "}",
        ],
    );
    check(
        "Alias /c /c\n<Directory /c>\nOptions ExecCGI\nAddHandler cgi-script .cgi\nDirectoryIndex a.cgi b.html\n</Directory>",
        &[
            r###"cgi #"~^/c/.*\.(?:cgi)$"# root="/c" {"###,
            "strip-prefix \"/c\"",
            "index \"a.cgi\"",
            "}",
            "respond \"/c/*\" 404",
        ],
    );
    check(
        "<Directory /srv/p>\nOptions +ExecCGI\nSetHandler cgi-script\n</Directory>",
        &["cgi \"/p/*\" root=\"/srv\" {", "index \"index.html\"", "}"],
    );
    // Without `ExecCGI`, Apache rejects programs.
    check("<Directory /srv/p>\nAddHandler cgi-script .cgi\n</Directory>", &["deny all path=\"*.cgi\""]);
    check(
        "Alias /b /blog\n<Directory /blog>\nFallbackResource /b/index.php\n</Directory>",
        &[r###"rewrite "/b/*" "/b/index.php" when=#"not path matches '\.php(/|$)'"# missing=on"###],
    );
}

/// Rules whose result is the path itself end the processing; those that drop a part before it may apply once.
#[test]
fn rules_do_not_apply_to_their_own_result() {
    let check = |rules: &str, expect: &[&str]| {
        let rules =
            format!("RewriteCond %{{REQUEST_FILENAME}} -f\nRewriteRule ^ - [L]\n{rules}\nRewriteRule . index.php [L]");
        let (lines, _) = translated(&format!("RewriteEngine On\n{rules}"), Some(Path::new("/srv/.htaccess")));
        let found: Vec<&String> = lines.iter().filter(|line| line.starts_with("rewrite")).collect();
        assert_eq!(found, expect, "{lines:#?}");
    };
    check(
        "RewriteRule ^(a.*) $1 [L]",
        &["rewrite \"*\" \"/index.php\" when=\"not (path matches '^/(a.*)')\" missing=on"],
    );
    check(
        "RewriteRule ^(x/)?(a.*) $2 [L]",
        &[
            "rewrite \"~^/(x/)?(a.*)\" \"/{2}\" missing=on",
            "rewrite \"*\" \"/index.php\" when=\"not (path matches '^/(x/)?(a.*)')\" missing=on",
        ],
    );
    check(
        "RewriteRule ^x/(a.*) $1 [L]",
        &["rewrite \"~^/x/(a.*)\" \"/{1}\" missing=on", "rewrite \"*\" \"/index.php\" missing=on"],
    );
    // A rule that does not end the processing, or only under a condition.
    check("RewriteRule ^(a.*) $1", &[]);
    check(
        "RewriteCond %{REQUEST_METHOD} PUT\nRewriteRule ^(a.*) $1 [L]",
        &["rewrite \"*\" \"/index.php\" when=\"not (method matches 'PUT' and path matches '^/(a.*)')\" missing=on"],
    );
    // Paths with a file get to the rules after it.
    let rules =
        "RewriteEngine On\nRewriteCond %{REQUEST_FILENAME} !-f\nRewriteRule ^(a.*) $1 [L]\nRewriteRule ^ b.php [L]";
    let (lines, _) = translated(rules, Some(Path::new("/srv/.htaccess")));
    let last = lines.iter().rfind(|line| line.starts_with("rewrite")).expect("a rewrite");
    assert_eq!(last, "rewrite \"*\" \"/b.php\" when=\"not path starts-with '/b.php/'\"", "{lines:#?}");
}

/// Issue 23: rules that rejected all paths, or other paths than Apache does.
#[test]
fn rules_look_at_files() {
    let check = |rules: &str, expect: &[&str]| {
        let (lines, remarks) = translated(&format!("RewriteEngine On\n{rules}"), Some(Path::new("/srv/.htaccess")));
        for expect in expect {
            assert!(lines.iter().any(|line| line == expect), "{rules}\n{expect}\n{lines:#?}\n{remarks:#?}");
        }
        assert!(!lines.iter().any(|line| line == "deny all"), "{rules}\n{lines:#?}");
    };
    let front =
        "RewriteCond %{REQUEST_FILENAME} !-f\nRewriteCond %{REQUEST_FILENAME} !-d\nRewriteRule ^ index.php [L]\n";
    check(
        &format!("RewriteRule ^a/ - [F]\n{front}RewriteRule ^b/ - [F]"),
        &["deny all path=\"~^/a/\"", "files \"~^/b/\" root=\"/srv\" {", "forbidden"],
    );
    check(
        "RewriteCond %{REQUEST_FILENAME} -f\nRewriteCond %{REQUEST_FILENAME} !/open/\nRewriteRule !^index.php index.php\n\
         RewriteCond %{REQUEST_FILENAME} !-f\nRewriteRule ^ index.php [L]",
        &["rewrite \"*\" \"/index.php\" when=\"not path matches '/open/' and not path matches '^/index.php'\""],
    );
    check(
        &format!("RewriteCond %{{DOCUMENT_ROOT}}/cache/$1.html -f\nRewriteRule ^(.*)$ /cache/$1.html [L]\n{front}"),
        &["fallback \"/index.php\""],
    );
    check(
        "RewriteCond %{REQUEST_FILENAME} !-f\nRewriteRule . index.php",
        &["files \"/\" {", "fallback \"/index.php\""],
    );
    // Without a rule for missing paths, files cannot be told apart; and a page for all paths is one for maintenance.
    for rules in [
        "RewriteCond %{REQUEST_FILENAME} -f\nRewriteRule ^ index.php [L]",
        "RewriteCond %{DOCUMENT_ROOT}/closed.html -f\nRewriteRule ^ /closed.html [L]",
    ] {
        let (lines, _) = translated(&format!("RewriteEngine On\n{rules}"), Some(Path::new("/srv/.htaccess")));
        assert!(lines.iter().any(|line| line == "deny all"), "{rules}\n{lines:#?}");
    }
    // Names: as a handler, because guards take a directory for a file without an extension.
    let text = "<FilesMatch \"^(?!a)[^.]+$\">\nRequire all denied\n</FilesMatch>";
    let (lines, _) = translated(text, Some(Path::new("/srv/.htaccess")));
    assert!(lines.iter().any(|line| line.starts_with("respond \"~") || line.starts_with("respond #\"~")), "{lines:#?}");
    let (lines, _) =
        translated(&format!("{text}\nRewriteEngine on\nRewriteRule ^b c"), Some(Path::new("/srv/.htaccess")));
    assert!(lines.iter().any(|line| line.starts_with("deny all path=")), "{lines:#?}");
}

#[test]
fn hosts_have_the_ports_of_others() {
    let text = "Listen 80\nListen 8080\n<VirtualHost _default_:80>\nDocumentRoot /a\n</VirtualHost>\n\
                <VirtualHost *:*>\nServerName b\nDocumentRoot /b\n</VirtualHost>";
    let (lines, _) = translated(text, None);
    let listeners: Vec<&String> = lines.iter().filter(|line| line.starts_with("listen")).collect();
    assert_eq!(listeners, ["listen 80", "listen 8080"], "{lines:#?}");
    let (lines, remarks) = translated(&text.replace("Listen 8080\n", ""), None);
    assert!(!lines.iter().any(|line| line.contains("site \"b\"")), "{lines:#?}");
    assert!(remarks.iter().any(|remark| remark.contains("other hosts have all ports")), "{remarks:?}");
}
