//! Random configurations of Apache: virtual hosts with sections of all kinds, and `.htaccess` files.

use fastrand::Rng;

use super::rules::{self, GrammarRules};
use super::{Configuration, Grammar};

pub(super) const GRAMMAR: Grammar = Grammar { name: "apache", write };

/// Directories that may have a `.htaccess` file.
const DIRECTORIES: [&str; 5] = ["srv/w", "srv/w/sub", "srv/w/admin", "srv/w/config", "srv/data"];

/// Scripts of all hosts.
const PHP: &str =
    "<FilesMatch \\.php$>\nSetHandler \"proxy:unix:/run/php/php-fpm.sock|fcgi://localhost\"\n</FilesMatch>\n";

const RULES: &GrammarRules = &[
    (
        "file",
        &[
            "<VirtualHost *:80>\n[[one]][[root]][[part]]</VirtualHost>\n",
            "<VirtualHost *:80>\n[[one]][[root]][[part]][[part]]</VirtualHost>\n",
            "<VirtualHost *:80>\n[[one]][[root]][[part]][[part]][[part*]][[part*]]\
             </VirtualHost>\n",
            "<VirtualHost *:80>\n[[one]][[root]][[part]][[part]][[part]][[part*]]\
             </VirtualHost>\n<VirtualHost *:80>\n[[two]][[part]][[part*]]</VirtualHost>\n",
            "[[part]]<VirtualHost *:80>\n[[one]][[root]][[part]][[part*]]\
             </VirtualHost>\n",
            "[[one]][[root]][[part]][[part]][[part]][[part*]]<Directory /srv/w>\n\
             AllowOverride All\n</Directory>\n",
        ],
    ),
    ("one", &["ServerName one.example\nDocumentRoot /srv/w\n"]),
    ("two", &["ServerName two.example\nServerAlias *.two.example\nDocumentRoot /srv/w\n"]),
    (
        "root",
        &[
            "<Directory /srv/w>\nRequire all granted\nAllowOverride All\n</Directory>\n",
            "<Directory /srv/w>\nRequire all granted\nAllowOverride All\n[[line]]</Directory>\n",
            "<Directory />\nRequire all denied\n</Directory>\n<Directory /srv/w>\nRequire all granted\nAllowOverride All\n\
             </Directory>\n",
            "<Directory /srv/w>\nAllowOverride All\n[[line]]</Directory>\n",
            "<Directory /srv/>\nOptions Indexes FollowSymLinks\nAllowOverride None\n</Directory>\n",
        ],
    ),
    (
        "part",
        &[
            "<Directory [[quoted]]>\n[[line]][[line*]]</Directory>\n",
            "<Directory [[directory]]>\n[[access]]</Directory>\n",
            "<DirectoryMatch \"[[directory expression]]\">\n[[line]]</DirectoryMatch>\n",
            "[[files]]",
            "<Location [[location]]>\n[[access]]</Location>\n",
            "<Location [[location]]>\n[[location line]][[location line?]]</Location>\n",
            "<LocationMatch \"[[location expression]]\">\n[[access]]</LocationMatch>\n",
            "[[anywhere]]",
            "[[anywhere]]",
            "[[alias]]",
            "[[redirect]]",
            "RewriteEngine On\n[[host rule]][[host rule*]]",
            "ProxyPass [[pass]]\n",
            "ProxyPassMatch ^/api/(.*)$ http://127.0.0.1:8001/api/$1\n",
            "<Proxy http://127.0.0.1:8001/>\n[[access]]</Proxy>\n",
            "DirectoryIndex [[index]]\n",
            "SetEnvIf User-Agent badbot bad\nSetEnvIf X-Stub deny good\nSetEnv fixed 1\n<Directory /srv/w/admin>\n\
             [[env]]</Directory>\n",
        ],
    ),
    // Directives of hosts, directories and locations.
    ("anywhere", &["[[if]]", "Header [[header]]\n", "ErrorDocument [[page]]\n"]),
    // Directives of directories and locations.
    (
        "within",
        &[
            "[[access]]",
            "[[access]]",
            "[[anywhere]]",
            "[[anywhere]]",
            "Options [[options]]\n",
            "[[access]]Satisfy [[any]]\n",
        ],
    ),
    ("quoted", &["[[directory]]", "\"[[directory]]\"", "\"[[directory]]/\""]),
    (
        "directory",
        &[
            "/srv/w/admin",
            "/srv/w",
            "/srv/w/sub",
            "/srv/w/config",
            "/srv/w/uploads",
            "/srv/w/empty",
            "/srv/w/*",
            "/srv/*/admin",
            "/srv/data",
            "/srv/data/sub",
            "/srv",
        ],
    ),
    (
        "directory expression",
        &[
            "^/srv/w/(admin|config)",
            "/admin",
            "^/srv/w/.*sub",
            "^/srv/(w|data)/",
            "/\\.git",
            "^/srv/w/[a-c]",
            "/sub/?$",
        ],
    ),
    (
        "location",
        &[
            "/admin",
            "/admin/",
            "/sub",
            "/sub/",
            "/sub/b.txt",
            "/api",
            "/data",
            "/",
            "/config/",
            "/*/b.txt",
            "/a*",
            "/data/sub",
            "/new",
            "\"~ ^/old\"",
        ],
    ),
    (
        "location expression",
        &["^/admin/", "/sub", "\\.txt$", "^/(sub|config)/", "(?i)^/ADMIN", "^/a\\.txt$", "/d\\.", "^/(?!sub)"],
    ),
    (
        "files",
        &[
            "<Files [[name]]>\n[[access]]</Files>\n",
            "<FilesMatch \"[[name expression]]\">\n[[access]]</FilesMatch>\n",
            "<FilesMatch \"[[name expression]]\">\nHeader [[header]]\n</FilesMatch>\n",
            "<Files ~ \"[[name expression]]\">\n[[access]]</Files>\n",
        ],
    ),
    ("name", &["a.txt", "\"*.bak\"", "index.html", "d.txt", "\"?.txt\"", "\".env\"", "\"*.php\"", "\"*\"", "b.txt"]),
    ("name expression", &["\\.(bak|sql)$", "^\\.", "\\.txt$", "^(a|d)", "\\.php$", "\\.(txt|html)$", "(?i)\\.TXT$"]),
    (
        "line",
        &[
            "[[within]]",
            "[[within]]",
            "[[within]]",
            "[[files]]",
            "DirectoryIndex [[index]]\n",
            "RewriteEngine On\n[[options of rules?]][[rule]][[rule*]]",
            "FallbackResource [[fallback]]\n",
        ],
    ),
    ("options of rules", &["RewriteOptions Inherit\n"]),
    ("location line", &["[[within]]", "[[within]]", "ProxyPass http://127.0.0.1:8002/l\n", "Redirect 301 /a.txt\n"]),
    (
        "access",
        &[
            "Require all denied\n",
            "Require all granted\n",
            "Require all denied\n",
            "Require all granted\n",
            "Require [[client]]\n",
            "[[auth]]Require valid-user\n",
            "[[auth]]Require valid-user\n",
            "[[auth]]Require user [[user]]\n",
            "[[auth]]Require valid-user\nRequire [[client]]\n",
            "[[auth]][[block]]",
            "[[block]]",
            "Order allow,deny\nAllow from all\n",
            "Order allow,deny\nDeny from all\n",
            "Order deny,allow\nDeny from all\nAllow from [[network]]\n",
            "Order Allow,Deny\nAllow from all\nDeny from [[network]]\n",
            "Order deny,allow\nDeny from all\nAllow from [[network]]\n[[auth]]Require valid-user\nSatisfy [[any]]\n",
            "Deny from all\n",
            "Satisfy [[any]]\n",
            "AllowMethods [[methods]]\n",
            "AuthMerging [[merging]]\nRequire [[client]]\n",
            "AuthMerging [[merging]]\n[[auth]]Require valid-user\n",
            "<Limit POST DELETE>\nRequire all denied\n</Limit>\n",
            "<LimitExcept GET HEAD>\nRequire [[requirement]]\n</LimitExcept>\n",
        ],
    ),
    (
        "env",
        &[
            "Require env good\n",
            "Require env fixed\n",
            "Order deny,allow\nDeny from all\nAllow from env=fixed\n",
            "Order allow,deny\nAllow from all\nDeny from env=bad\n",
            "<RequireAll>\nRequire all granted\nRequire not env bad\n</RequireAll>\n",
        ],
    ),
    ("any", &["Any", "All"]),
    ("methods", &["GET", "GET POST", "reset"]),
    ("merging", &["And", "Or", "Off"]),
    ("user", &["anna", "bob", "anna bob"]),
    ("network", &["10.0.0.0/8", "127.0.0.1", "127.0.0.0/255.0.0.0", "10.1", "all", "192.168.0.0/16 127.0.0.1"]),
    (
        "client",
        &[
            "ip 10.0.0.0/8",
            "ip 127.0.0.1",
            "local",
            "method GET HEAD",
            "expr \"%{HTTP_USER_AGENT} =~ /badbot/\"",
            "expr \"%{QUERY_STRING} =~ /v=1/\"",
            "ip 10.0.0.0/8 127",
            "host evil.test",
            "expr %{REQUEST_URI} =~ m#^/admin/d#",
        ],
    ),
    ("requirement", &["all denied", "all granted", "[[client]]", "valid-user", "user anna"]),
    (
        "negative",
        &[
            "Require not ip 10.0.0.0/8\n",
            "Require not ip 127.0.0.1\n",
            "Require not method POST\n",
            "Require not expr \"%{HTTP_USER_AGENT} =~ /badbot/\"\n",
            "<RequireNone>\nRequire [[client]]\nRequire [[client]]\n</RequireNone>\n",
        ],
    ),
    (
        "block",
        &[
            "<RequireAny>\nRequire [[requirement]]\nRequire [[client]]\n</RequireAny>\n",
            "<RequireAll>\nRequire [[requirement]]\nRequire [[client]]\n</RequireAll>\n",
            "<RequireAll>\nRequire [[requirement]]\n[[negative]][[negative?]]</RequireAll>\n",
            "<RequireAny>\nRequire [[requirement]]\n[[block]]</RequireAny>\n",
            "<RequireAll>\n[[block]]Require [[requirement]]\n</RequireAll>\n",
        ],
    ),
    ("auth", &["AuthType Basic\nAuthName Secret\nAuthUserFile /etc/users\n"]),
    (
        "if",
        &[
            "<If \"[[condition]]\">\n[[access]]</If>\n",
            "<If \"[[condition]]\">\nRequire all denied\n</If>\n",
            "<If \"[[condition]]\">\nHeader [[header]]\n</If>\n<Else>\n[[access]]</Else>\n",
            "<If \"[[condition]]\">\n[[files]]</If>\n",
            "<If \"[[condition]]\">\n<Limit POST>\nRequire all denied\n</Limit>\n</If>\n",
            "<If \"[[condition]]\">\nRequire all granted\n</If>\n<ElseIf \"[[condition]]\">\nRequire all denied\n</ElseIf>\n",
        ],
    ),
    (
        "condition",
        &[
            "%{REQUEST_METHOD} == 'POST'",
            "%{HTTP_USER_AGENT} =~ /badbot/",
            "%{REQUEST_URI} =~ m#^/sub/#",
            "%{QUERY_STRING} =~ /v=1/",
            "%{HTTP_HOST} == 'one.example'",
            "-R '10.0.0.0/8'",
            "-R '127.0.0.0/8'",
            "%{REQUEST_URI} -strmatch '/admin/*'",
            "! -R '127.0.0.1'",
            "%{REQUEST_METHOD} in {'GET', 'HEAD'}",
        ],
    ),
    (
        "alias",
        &[
            "Alias /data /srv/data\n",
            "Alias /data/ /srv/data/\n",
            "Alias /data/deep /srv/w/sub\n",
            "Alias /sub /srv/data\n",
            "Alias /file /srv/w/a.txt\n",
            "Alias /old /srv/w/admin\n",
            "AliasMatch ^/data/(.*)$ /srv/data/$1\n",
            "AliasMatch ^/pick/([a-z]+)\\.txt$ /srv/w/admin/$1.txt\n",
        ],
    ),
    (
        "redirect",
        &[
            "Redirect /old /new\n",
            "Redirect permanent /old/ http://one.example/sub/\n",
            "Redirect gone /admin\n",
            "Redirect 403 /config\n",
            "Redirect 404 /uploads\n",
            "RedirectMatch ^/old/(.*)$ /sub/$1\n",
            "RedirectMatch 404 \\.bak$\n",
            "RedirectMatch gone ^/sub/\n",
            "RedirectMatch 301 ^/([a-z]+)\\.html$ /$1.txt\n",
            "RedirectPermanent /page /page.html\n",
            "RedirectTemp /sub/b.txt /a.txt\n",
            "RedirectMatch 403 ^/\\.\n",
        ],
    ),
    (
        "host rule",
        &["[[cond*]]RewriteRule [[host pattern]] [[host target]]\n", "RewriteRule [[host pattern]] [[host target]]\n"],
    ),
    ("rule", &["[[cond*]]RewriteRule [[pattern]] [[target]]\n", "RewriteRule [[pattern]] [[target]]\n"]),
    (
        "cond",
        &[
            "RewriteCond %{REQUEST_FILENAME} !-f\n",
            "RewriteCond %{REQUEST_FILENAME} !-d\n",
            "RewriteCond %{REQUEST_FILENAME} -f\n",
            "RewriteCond %{REQUEST_METHOD} =POST\n",
            "RewriteCond %{REQUEST_METHOD} ^(POST|DELETE)$ [OR]\n",
            "RewriteCond %{HTTP_USER_AGENT} badbot [NC]\n",
            "RewriteCond %{QUERY_STRING} (^|&)v=1\n",
            "RewriteCond %{REQUEST_URI} !^/admin/\n",
            "RewriteCond %{REQUEST_URI} ^/sub/(.*)$\n",
            "RewriteCond %{HTTP_HOST} ^one\\.example$ [NC]\n",
            "RewriteCond %{REMOTE_ADDR} !^127\\.\n",
            "RewriteCond %{HTTP_COOKIE} session=1\n",
            "RewriteCond %{HTTP_REFERER} !^$ [OR]\n",
        ],
    ),
    (
        "host pattern",
        &[
            "^/admin/",
            "^/old/(.*)$",
            "^/sub/",
            "^/(.*)$",
            "\\.txt$",
            "^/a\\.txt$",
            "^/([a-z]+)/d\\.txt$",
            "^",
            "^/api/(.*)$",
            "\\.(bak|sql)$",
            "!^/admin/",
            "^/missing",
            "^/page$",
        ],
    ),
    (
        "host target",
        &[
            "- [F]",
            "- [F,L]",
            "- [G]",
            "- [L]",
            "- [END]",
            "/sub/$1 [L]",
            "/sub/b.txt [L]",
            "/new [R=301,L]",
            "/admin/d.txt [PT]",
            "/index.html [L]",
            "/a.txt?from=$1 [QSA,L]",
            "http://one.example/to/$1 [R,NE,L]",
            "/a.txt",
            "- [R=404,L]",
            "http://127.0.0.1:8001/x/$1 [P]",
            "/page.html [END]",
            "/admin/$1 [L]",
            "- [F,NC]",
            "- [S=1]",
            "- [E=seen:1]",
            "/data/a.txt [PT,L]",
        ],
    ),
    (
        "pattern",
        &[
            "^admin/",
            "^old/(.*)$",
            "^sub/",
            "^(.*)$",
            "\\.txt$",
            "^a\\.txt$",
            "^([a-z]+)/d\\.txt$",
            ".",
            "^d\\.txt$",
            "\\.(bak|sql)$",
            "!^admin/",
            "^missing",
            "^page$",
            "(^|/)\\.",
            "^b\\.txt$",
            "^index\\.html$",
            "^$",
        ],
    ),
    (
        "target",
        &[
            "- [F]",
            "- [F,L]",
            "- [G]",
            "- [L]",
            "- [END]",
            "/sub/$1 [L]",
            "b.txt [L]",
            "/new [R=301,L]",
            "/admin/d.txt [PT]",
            "index.html [L]",
            "/a.txt?from=$1 [QSA,L]",
            "http://one.example/to/$1 [R,NE,L]",
            "/a.txt",
            "- [R=404,L]",
            "/page.html [END]",
            "/admin/$1 [L]",
            "- [F,NC]",
            "index.php [L]",
            "/index.php?q=$1 [L,QSA]",
            "sub/$1 [L]",
            "- [S=1]",
        ],
    ),
    (
        "pass",
        &[
            "/api http://127.0.0.1:8001/api",
            "/api/ http://127.0.0.1:8001/",
            "/sub/ !",
            "/sub/ http://127.0.0.1:8002/s/",
            "/ http://127.0.0.1:8001/",
            "/admin http://127.0.0.1:8002/admin",
        ],
    ),
    ("index", &["index.html", "index.htm index.html", "a.txt", "disabled", "page.html index.html", "/a.txt"]),
    ("fallback", &["/index.html", "/a.txt", "disabled", "/sub/b.txt", "/index.php"]),
    ("page", &["404 /404.html", "403 /page.html", "404 default", "401 /a.txt", "500 /50x.html", "403 \"no entry\""]),
    ("options", &["Indexes", "-Indexes", "None", "+Indexes", "FollowSymLinks", "MultiViews", "All"]),
    (
        "header",
        &[
            "set X-One 1",
            "always set X-Two \"a b\"",
            "unset X-One",
            "append X-One 2",
            "set X-Three \"%{REQUEST_URI}e\"",
            "set Cache-Control \"max-age=60\"",
            "set X-Four 4 \"expr=%{REQUEST_URI} =~ /txt/\"",
            "always edit X-Two a b",
        ],
    ),
    (
        "htaccess",
        &[
            "[[access]]",
            "[[line]]",
            "[[line]][[line]]",
            "[[redirect]][[line]]",
            "[[files]][[access]]",
            "RewriteEngine On\n[[rule]][[rule]][[rule*]]",
            "RewriteEngine On\nRewriteBase /\nRewriteCond %{REQUEST_FILENAME} !-f\nRewriteCond %{REQUEST_FILENAME} !-d\n\
             RewriteRule . /index.php [L]\n[[line]]",
            "[[if]][[line]]",
        ],
    ),
];

fn write(mut random: Rng) -> Configuration {
    let text = format!("{PHP}{}", rules::text(RULES, "file", &mut random));
    let mut files = Vec::new();
    for directory in DIRECTORIES {
        if random.u8(0..10) < 3 {
            files.push((format!("{directory}/.htaccess"), rules::text(RULES, "htaccess", &mut random)));
        }
    }
    Configuration { name: "site.conf", text, files }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known() {
        rules::tests::check_names(RULES, &["file", "htaccess"]);
    }

    #[test]
    fn all_constructs_occur() {
        let constructs = [
            "<VirtualHost",
            "<Directory ",
            "<DirectoryMatch",
            "<Files ",
            "<FilesMatch",
            "<Location ",
            "<LocationMatch",
            "<If ",
            "<ElseIf",
            "<Else>",
            "Require all",
            "Require ip",
            "Require local",
            "Require method",
            "Require expr",
            "Require env",
            "Require host",
            "Require valid-user",
            "Require user",
            "Require not",
            "<RequireAny>",
            "<RequireAll>",
            "<RequireNone>",
            "Order ",
            "Allow from",
            "Deny from",
            "Satisfy Any",
            "Satisfy All",
            "AllowMethods",
            "AuthType Basic",
            "AuthMerging",
            "<Limit ",
            "<LimitExcept",
            "Alias ",
            "AliasMatch",
            "Redirect ",
            "RedirectMatch",
            "RewriteRule",
            "RewriteCond",
            "[F]",
            "[G]",
            "[L]",
            "[END]",
            "[R=301,L]",
            "[PT]",
            "NE",
            "QSA",
            "[P]",
            "ProxyPass ",
            "ProxyPassMatch",
            "<Proxy ",
            "RewriteOptions",
            "SetEnv ",
            "DirectoryIndex",
            "FallbackResource",
            "ErrorDocument",
            "Options",
            "Header",
        ];
        super::super::tests::check(&GRAMMAR, &constructs);
        let files = |seed| GRAMMAR.configuration(seed).files;
        assert!((0..50).any(|seed| files(seed).len() > 2), "some have several `.htaccess` files");
        assert!((0..200).flat_map(files).any(|(_, text)| text.contains("RewriteBase /")));
    }
}
