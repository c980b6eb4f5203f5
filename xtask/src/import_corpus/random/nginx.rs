//! Random configurations of nginx: servers with nested locations of all modifiers.

use std::collections::BTreeSet;

use fastrand::Rng;

use super::rules::{self, GrammarRules};
use super::{Configuration, Grammar};

pub(super) const GRAMMAR: Grammar = Grammar { name: "nginx", write };

const RULES: &GrammarRules = &[
    (
        "file",
        &[
            "[[maps]]server {\nlisten 80;\nserver_name one.example;\nroot /srv/w;\n[[setting*]][[location]][[location]]\
             [[location]][[location*]][[front]][[named]]}\n",
            "[[maps]]server {\nlisten 80;\nserver_name one.example;\nroot /srv/w;\n[[location]][[location]][[front?]]\
             [[named]]}\n",
            "[[maps]]server {\nlisten 80;\nserver_name one.example;\nroot /srv/w;\n[[setting]][[location]][[location]]\
             [[named]]}\n",
            "[[maps]]server {\nlisten 80;\nserver_name one.example;\nroot /srv/w;\n[[setting*]][[location]][[location*]]\
             [[location*]][[front?]][[named]]}\n",
            "[[maps]]server {\nlisten 80;\nserver_name one.example;\nroot /srv/w;\n[[setting]][[setting*]][[location]]\
             [[named]]}\nserver {\nlisten 80;\nserver_name two.example *.two.example;\nroot /srv/two;\n[[setting*]]\
             [[location]][[location*]][[named]]}\n",
            "[[maps]]server {\nlisten 80;\nserver_name one.example;\nroot /srv/w;\n[[location]][[named]]}\nserver {\n\
             listen 80;\nserver_name [[names]];\nroot [[host root]];\n[[setting*]][[location]][[location*]][[named]]}\n",
        ],
    ),
    (
        "names",
        &[
            "~^(?<part>.+)\\.two\\.example$",
            "~^(?<part>[a-z]+)\\.two\\.example$",
            "~^www\\.(?<part>.+)$",
            "~^(www\\.)?(?<part>.+)$",
            "~^(?<part>a|b|some)\\.two\\.example$",
        ],
    ),
    ("host root", &["/srv/w", "/srv/$part", "/srv/$part/sub", "/srv/w"]),
    (
        "maps",
        &[
            "map $http_user_agent $bad { default 0; ~badbot 1; }\nmap $arg_v $back { default 127.0.0.1:8001; 1 \
             127.0.0.1:8002; }\nupstream app { server 127.0.0.1:8003; }\n",
            "map $http_cookie $bad { default 0; ~session 1; }\nmap $request_method $back { default 127.0.0.1:8001; POST \
             127.0.0.1:8002; }\nupstream app { server 127.0.0.1:8003; }\n",
            "map $uri $bad { default 0; ~^/sub 1; /a.txt 1; }\nmap $host $back { default 127.0.0.1:8001; two.example \
             127.0.0.1:8002; }\nupstream app { server 127.0.0.1:8003; }\n",
        ],
    ),
    (
        "setting",
        &[
            "[[access]]",
            "index [[index]];\n",
            "error_page [[page]];\n",
            "autoindex on;\n",
            "add_header X-Server 1[[always?]];\n",
            "[[if]]",
            "rewrite [[rewrite]];\n",
            "rewrite [[rewrite]];\n",
            "try_files [[tries]];\n",
            "auth_request /auth;\n",
            "satisfy any;\n",
            "merge_slashes off;\n",
            "return 301 http://two.example$request_uri;\n",
        ],
    ),
    ("always", &[" always"]),
    (
        "front",
        &[
            "location / {\ntry_files [[tries]];\n}\n",
            "location / {\n[[line]]}\n",
            "location / {\nproxy_pass http://app;\n}\n",
            "location / {\n[[line]][[line*]][[location*]]}\n",
        ],
    ),
    (
        "named",
        &[
            "location @app {\nproxy_pass http://app;\n}\nlocation @no { return 403; }\nlocation = /auth {\ninternal;\n\
             proxy_pass http://127.0.0.1:8004/check;\n[[no body]]}\n",
            "location @app {\nproxy_pass http://app;\n[[access]]}\nlocation @no { rewrite ^ /index.php last; }\nlocation = \
             /auth {\ninternal;\nproxy_pass http://127.0.0.1:8004;\n[[no body]]}\n",
            "location @app {\ntry_files /a.txt =404;\n}\nlocation @no { deny all; }\nlocation = /auth {\nproxy_pass \
             http://127.0.0.1:8004;\n[[no body]]}\n",
        ],
    ),
    ("no body", &["proxy_pass_request_body off;\nproxy_set_header Content-Length \"\";\n"]),
    (
        "location",
        &[
            "location [[path]] {\n[[line]]}\n",
            "location [[path]] {\n[[line]][[line*]]}\n",
            "location [[path]] {\n[[access]]}\n",
            "location [[path]] {\n[[access]][[handler]]}\n",
            "location [[path]] {\n[[handler]]}\n",
            "location /admin/ {\n[[line*]]location [[below admin]] {\n[[line]]}\n}\n",
            "location ^~ /sub/ {\n[[line*]]location [[below sub]] {\n[[line]]}\n}\n",
            "location /admin/ {\n[[access]]location ~ \\.txt$ {\n[[access?]][[handler?]]}\n}\n",
        ],
    ),
    (
        "path",
        &[
            "/admin/",
            "/admin",
            "= /admin/d.txt",
            "= /a.txt",
            "= /",
            "^~ /admin/",
            "^~ /sub/",
            "/sub/",
            "/sub",
            "/api/",
            "/api",
            "/config/",
            "~ \\.txt$",
            "~* \\.TXT$",
            "~ \\.(bak|sql|md)$",
            "~ ^/sub/",
            "~ ^/(admin|config)/",
            "~ /\\.",
            "~ \\.php$",
            "~* ^/ADMIN/",
            "~ ^/([a-z]+)/d\\.txt$",
            "/empty/",
            "/data/",
            "= /page.html",
            "^~ /api/v1/",
            "~ ^/api/v[0-9]+/(.*)$",
            "~ ^/(?!admin)",
            "/uploads/",
            "= /sub/",
            "/admin/d",
            "//sub/",
            "= //a.txt",
        ],
    ),
    ("below admin", &["~ \\.txt$", "~ d\\.", "= /admin/d.txt", "/admin/d", "~ \\.php$", "^~ /admin/sub/"]),
    ("below sub", &["~ \\.txt$", "~* ^/sub/B", "= /sub/b.txt", "/sub/b", "~ \\.php$"]),
    (
        "line",
        &[
            "[[access]]",
            "[[handler]]",
            "[[handler]]",
            "[[if]]",
            "rewrite [[rewrite]];\n",
            "rewrite [[rewrite]];\n",
            "internal;\n",
            "index [[index]];\n",
            "error_page [[page]];\n",
            "add_header X-Location 1[[always?]];\n",
            "autoindex on;\n",
            "limit_except GET {\n[[clients]]}\n",
            "limit_except GET POST {\ndeny all;\n}\n",
            "expires 1h;\n",
            "auth_request /auth;\n",
            "auth_request off;\n",
            "default_type text/plain;\n",
        ],
    ),
    (
        "access",
        &[
            "deny all;\n",
            "allow all;\n",
            "deny 127.0.0.1;\n",
            "allow 127.0.0.1;\ndeny all;\n",
            "allow 10.0.0.0/8;\ndeny all;\n",
            "deny 10.0.0.0/8;\nallow all;\n",
            "allow 10.0.0.0/8;\n",
            "auth_basic secret;\nauth_basic_user_file /etc/users;\n",
            "auth_basic off;\n",
            "satisfy any;\nallow 10.0.0.0/8;\ndeny all;\nauth_basic secret;\nauth_basic_user_file /etc/users;\n",
            "satisfy any;\nallow 127.0.0.1;\ndeny all;\nauth_basic secret;\nauth_basic_user_file /etc/users;\n",
            "satisfy any;\n",
            "satisfy all;\ndeny all;\n",
            "auth_request /auth;\n",
            "satisfy any;\ndeny all;\nauth_request /auth;\n",
            "limit_except GET {\nauth_basic secret;\nauth_basic_user_file /etc/users;\n}\n",
            "valid_referers none one.example;\nif ($invalid_referer) { return 403; }\n",
        ],
    ),
    (
        "clients",
        &["deny all;\n", "allow 127.0.0.1;\ndeny all;\n", "allow 10.0.0.0/8;\ndeny all;\n", "deny 10.0.0.0/8;\n"],
    ),
    (
        "handler",
        &[
            "return 403;\n",
            "return 404;\n",
            "return 204;\n",
            "return 200 hello;\n",
            "return 301 /sub/b.txt;\n",
            "return 302 $scheme://$host/new$request_uri;\n",
            "return 410;\n",
            "proxy_pass http://127.0.0.1:8001;\n",
            "proxy_pass http://app;\n",
            "proxy_pass http://$back;\n",
            "proxy_pass http://$back$request_uri;\n",
            "try_files [[tries]];\n",
            "try_files [[tries]];\n",
            "alias /srv/data/;\n",
            "alias /srv/data/sub/;\n",
            "root /srv/data;\n",
            "proxy_pass http://127.0.0.1:8002;\nsub_filter STUB CHANGED;\nsub_filter_once off;\nsub_filter_types \
             text/plain;\n",
            "fastcgi_pass unix:/run/php/php-fpm.sock;\nfastcgi_param SCRIPT_FILENAME \
             $document_root$fastcgi_script_name;\ninclude fastcgi_params;\n",
            "proxy_pass http://127.0.0.1:8001/with/;\n",
            "proxy_pass http://127.0.0.1:8001/;\n",
            "proxy_pass http://127.0.0.1:8001;\nproxy_ignore_headers X-Accel-Redirect;\n",
            "return 444;\n",
        ],
    ),
    (
        "if",
        &[
            "if ([[condition]]) { return 403; }\n",
            "if ([[condition]]) { return 403; }\n",
            "if ([[condition]]) { return 301 /a.txt; }\n",
            "if ([[condition]]) { rewrite [[rewrite]]; }\n",
            "if ([[condition]]) { return 204; }\n",
            "set $blocked 0;\nif ([[condition]]) { set $blocked 1; }\nif ($blocked) { return 403; }\n",
            "if ([[condition]]) { break; }\n",
        ],
    ),
    (
        "condition",
        &[
            "$request_method = POST",
            "$request_method !~ ^(GET|HEAD)$",
            "$http_user_agent ~* badbot",
            "$bad",
            "$bad = 1",
            "$args ~ v=1",
            "$arg_v = 1",
            "$http_cookie ~ session",
            "!-e $request_filename",
            "-f $request_filename",
            "!-f $request_filename",
            "$host != one.example",
            "$uri ~ ^/sub/",
            "$request_uri ~ /d\\.txt",
            "$remote_addr = 127.0.0.1",
            "$http_authorization = ''",
            "$http_x_stub = deny",
            "$http_referer != ''",
        ],
    ),
    (
        "rewrite",
        &[
            "^/old/(.*)$ /sub/$1 last",
            "^/old/(.*)$ /admin/$1 last",
            "^/admin/(.*)$ /sub/$1 break",
            "^/sub/(.*)$ /admin/$1",
            "^/sub/(.*)$ /new/$1 redirect",
            "^/page$ /page.html last",
            "^(.*)$ /index.html last",
            "^/([a-z]+)/d\\.txt$ /$1/e.txt permanent",
            "\\.txt$ /admin/d.txt last",
            "^/api/(.*)$ /$1 break",
            "^/a\\.txt$ /admin/d.txt",
            "^/missing /admin/d.txt break",
            "^/(?!admin)(.*)\\.html$ /$1.txt last",
            "^/data/(.*)$ /config/$1?from=data last",
        ],
    ),
    (
        "tries",
        &[
            "$uri =404",
            "$uri $uri/ =404",
            "$uri $uri/ /index.html",
            "$uri /index.php?$args",
            "$uri @app",
            "$uri $uri/ @app",
            "$uri.html $uri =404",
            "/sub$uri $uri =403",
            "$uri @no",
            "$uri /admin/d.txt",
            "/a.txt =404",
            "$uri $uri/index.html =410",
        ],
    ),
    ("index", &["index.html", "index.php index.html", "a.txt", "/admin/d.txt", "missing.html index.htm"]),
    (
        "page",
        &[
            "404 /404.html",
            "403 /page.html",
            "404 = @app",
            "403 =200 /a.txt",
            "404 =301 /",
            "401 /admin/d.txt",
            "500 502 /50x.html",
            "403 @no",
            "405 =200 $uri",
        ],
    ),
];

/// Directives that a block has once.
const SINGLE: [&str; 23] = [
    "index",
    "autoindex",
    "try_files",
    "auth_request",
    "satisfy",
    "auth_basic",
    "auth_basic_user_file",
    "proxy_pass",
    "fastcgi_pass",
    "alias",
    "root",
    "expires",
    "internal",
    "default_type",
    "limit_except",
    "sub_filter_once",
    "sub_filter_types",
    "proxy_pass_request_body",
    "deny all",
    "include",
    "merge_slashes",
    "proxy_ignore_headers",
    "valid_referers",
];

fn write(mut random: Rng) -> Configuration {
    let text = accepted(&rules::text(RULES, "file", &mut random));
    // Without a question to it, the location of the authentication server is one as all others.
    let is_asked = text.contains("auth_request /auth;");
    let text = if is_asked { text } else { text.replace("proxy_pass_request_body off;\n", "") };
    Configuration { name: "site.conf", text, files: Vec::new() }
}

/// The text without what nginx does not accept: a directive or location that a block has twice, an `alias` beside a `root`,
/// and a path of `proxy_pass` where that has none.
fn accepted(text: &str) -> String {
    let mut result = String::new();
    let mut blocks: Vec<(String, BTreeSet<&str>)> = vec![(String::new(), BTreeSet::new())];
    // Number of open blocks within one that is left out.
    let mut skipped = 0;
    for line in text.lines() {
        let opens = line.ends_with('{');
        if skipped > 0 {
            skipped = if opens { skipped + 1 } else { skipped - usize::from(line == "}") };
            continue;
        }
        if line == "}" {
            blocks.pop();
        }
        let Some((block, seen)) = blocks.last_mut().filter(|_| line != "}") else {
            result.push_str("}\n");
            continue;
        };
        let name =
            SINGLE.iter().find(|name| line.strip_prefix(**name).is_some_and(|rest| rest.starts_with([' ', ';'])));
        let location = line.strip_prefix("location ");
        let name = name.copied().or(location.map(|path| path.strip_prefix("^~ ").unwrap_or(path)));
        let name = name.map(|name| if name == "alias" { "root" } else { name });
        if name.is_some_and(|name| !seen.insert(name)) {
            skipped = usize::from(opens);
            continue;
        }
        let has_no_path = block.starts_with("location ~") || block.starts_with("location @");
        let address = line.strip_suffix("/;").filter(|_| has_no_path && name == Some("proxy_pass"));
        match address.map(|address| address.strip_suffix("/with").unwrap_or(address)) {
            Some(address) => result.push_str(&format!("{address};\n")),
            None => result.push_str(&format!("{line}\n")),
        }
        if opens {
            blocks.push((line.to_owned(), BTreeSet::new()));
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known() {
        rules::tests::check_names(RULES, &["file"]);
    }

    #[test]
    fn blocks_have_directives_once() {
        let text = "server {\nroot /a;\nlocation /b {\nalias /c;\nroot /d;\n}\nlocation /b {\nif (e) {\n}\n}\nlocation ~ f \
                    {\nproxy_pass http://g/with/;\n}\n}\n";
        let expect = "server {\nroot /a;\nlocation /b {\nalias /c;\n}\nlocation ~ f {\nproxy_pass http://g;\n}\n}\n";
        assert_eq!(accepted(text), expect);
    }

    #[test]
    fn all_constructs_occur() {
        let constructs = [
            "location =",
            "location ^~",
            "location ~ ",
            "location ~*",
            "location @",
            "deny ",
            "allow ",
            "satisfy any",
            "auth_basic ",
            "auth_basic off",
            "auth_request",
            "limit_except",
            "alias ",
            "root ",
            "try_files",
            "internal",
            "return ",
            "rewrite ",
            " last;",
            " break;",
            " redirect;",
            " permanent;",
            "if (",
            "map ",
            "error_page",
            "proxy_pass http://app;",
            "proxy_pass http://127.0.0.1:8001/with/",
            "proxy_pass http://$back",
            "sub_filter",
            "fastcgi_pass",
            "autoindex",
            "add_header",
            "index ",
            "set $",
            "server_name ~",
            "merge_slashes",
            "valid_referers",
            "location //",
            "proxy_ignore_headers",
            "return 444",
        ];
        super::super::tests::check(&GRAMMAR, &constructs);
    }
}
