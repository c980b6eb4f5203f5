//! Configurations as people write them, and what becomes of them.

use std::path::Path;

use super::{syntax, translate_directives};
use crate::config;
use crate::kdl;

/// The translation of a text, formatted, and its remarks, a line each.
pub(super) fn translated(text: &str) -> (String, Vec<String>) {
    let directives = syntax::parse(Path::new("n"), text).unwrap();
    let (nodes, remarks) = translate_directives(&directives);
    let text = kdl::write(&nodes);
    let formatted = config::format_bytes("n", text.clone().into_bytes()).unwrap_or_else(|diagnostics| {
        panic!("{}\n{text}", diagnostics.to_text(false));
    });
    (formatted, remarks.iter().map(ToString::to_string).collect())
}

/// The lines of the only site that a server becomes, without those that all have, and without redirects of `/a` to `/a/`.
pub(super) fn site(inside: &str) -> (String, Vec<String>) {
    let (text, remarks) = translated(&format!("server {{ listen 8080; root /srv; {inside} }}"));
    let is_to_slash = |line: &str| line.trim().starts_with("redirect \"/") && line.ends_with("/{query}\" status=301");
    let is_own = |line: &&str| !line.starts_with(['/', 's', '}']) && line.trim() != "listen 8080" && !is_to_slash(line);
    let lines = text.lines().filter(is_own);
    (lines.map(|line| line.strip_prefix("    ").unwrap_or(line)).collect::<Vec<_>>().join("\n"), remarks)
}

fn check_site(inside: &str, expect: &str) {
    let (lines, remarks) = site(inside);
    assert_eq!((lines.as_str(), remarks.as_slice()), (expect, [].as_slice()), "{inside}");
}

#[test]
fn the_status_is_a_page() {
    let page =
        |path: &str| format!("// n:1: stub_status: a page; for data as JSON, read {path}?json\nstatus-page \"{path}\"");
    check_site("location = /s { stub_status; }", &format!("root \"/srv\"\n{}", page("/s")));
    check_site("location /s { stub_status on; }", &format!("root \"/srv\"\n{}\nrespond \"~^/s\" 404", page("/s")));
    let (guarded, remarks) = site("location = /s { stub_status; allow 127.0.0.1; deny all; }");
    assert!(guarded.contains(&page("/s")), "{guarded}");
    assert!(guarded.contains("allow \"127.0.0.1\" path=\"/s\"\ndeny all path=\"/s\""), "{guarded}");
    assert_eq!(remarks, Vec::<String>::new());
    let (rejected, remarks) = site("location ~ ^/s { stub_status; }");
    assert!(rejected.contains("respond \"~^/s\" 502") && remarks.len() == 1, "{rejected}\n{remarks:?}");
}

#[test]
fn types_that_are_not_compressed_are_told() {
    let (_, remarks) = site("gzip on; gzip_types text/css application/pdf;");
    let expect = "n:1: gzip_types text/css application/pdf: not translated: Tailcoat chooses what it compresses: texts and \
                  fonts, but not application/pdf";
    assert!(remarks.contains(&expect.to_owned()), "{remarks:?}");
    let (_, remarks) = site("gzip on; gzip_types text/css;");
    assert!(remarks.iter().all(|remark| remark.contains("needs nothing here")), "{remarks:?}");
}

#[test]
fn files_are_served_from_where_they_were() {
    check_site("", "root \"/srv\"");
    check_site("index a.html; autoindex on;", "root \"/srv\"\nindex \"a.html\"\nbrowse on");
    check_site("location / { try_files $uri $uri/ =404; }", "root \"/srv\"");
    check_site(
        "location / { try_files $uri $uri/ /index.html; }",
        "root \"/srv\"\nfallback \"/index.html\"\nrequire-index",
    );
    check_site(
        "if ($scheme = http) { return 301 https://$host$request_uri; } location / { try_files $uri $uri/ /index.html; }",
        "root \"/srv\"\nfallback \"/index.html\"\nrequire-index\nredirect-to-https",
    );
    // A directory is no file.
    check_site("try_files $uri /index.html;", "root \"/srv\"\nfallback \"/index.html\"\nindex");
    check_site("location / { try_files $uri $uri/ $uri.html =404; }", "root \"/srv\"\nextensions \"html\"");
    check_site(
        "location /d/ { alias /data/; autoindex on; }",
        "root \"/srv\"\nfiles \"/d/*\" root=\"/data\" {\n    browse on\n    strip-prefix \"/d\"\n}\n\
         respond \"/d/*\" 404",
    );
    check_site("location /i/ { root /data; }", "root \"/srv\"\nfiles \"/i/*\" root=\"/data\"\nrespond \"/i/*\" 404");
    check_site(
        "location = /robots.txt { alias /etc/robots.txt; }",
        "root \"/srv\"\nfiles \"/robots.txt\" root=\"/etc\"\nrespond \"/robots.txt\" 404",
    );
}

#[test]
fn fields_and_guards_name_their_paths() {
    check_site(
        r"location ~* \.(css|js)$ { expires 30d; add_header Cache-Control public; }",
        "root \"/srv\"\ncache-control #\"~(?i)\\.(css|js)$\"# \"max-age=2592000, public\"",
    );
    check_site("location /a/ { expires -1; }", "root \"/srv\"\ncache-control \"/a/*\" \"no-cache\"");
    check_site("add_header X-A \"b c\" always;", "root \"/srv\"\nresponse-header \"X-A\" \"b c\"");
    check_site(
        "location /admin/ { allow 10.0.0.0/8; deny all; }",
        "root \"/srv\"\nallow \"10.0.0.0/8\" path=\"/admin/*\"\ndeny all path=\"/admin/*\"",
    );
    check_site(
        "auth_basic Mine; auth_basic_user_file /etc/users; location /open/ { auth_basic off; }",
        "root \"/srv\"\nbasic-auth \"~^/open/\" off\nbasic-auth \"*\" \"/etc/users\" realm=\"Mine\"",
    );
    check_site("error_page 404 410 /gone.html;", "root \"/srv\"\nerror-page 404 410 \"/gone.html\"");
    check_site("access_log /var/log/a.log combined;", "root \"/srv\"\naccess-log \"/var/log/a.log\"");
    check_site("location ~ \\.png$ { access_log off; }", "root \"/srv\"\nlog-skip \"*.png\"");
}

#[test]
fn requests_are_sent_elsewhere() {
    check_site(
        "return 301 https://b.example$request_uri;",
        "redirect \"*\" \"https://b.example{path}{query}\" status=301",
    );
    check_site("location = /ok { return 200 \"fine\"; }", "root \"/srv\"\nrespond \"/ok\" 200 \"fine\"");
    check_site(
        "rewrite ^/old/(.*)$ /new/$1 permanent;",
        "root \"/srv\"\nredirect \"~^/old/(.*)$\" \"/new/{1}{query}\" status=301",
    );
    check_site("rewrite ^/u/(.*)$ /user?id=$1 last;", "root \"/srv\"\nrewrite \"~^/u/(.*)$\" \"/user?id={1}{&query}\"");
    check_site("if ($scheme = http) { return 301 https://$host$request_uri; }", "root \"/srv\"\nredirect-to-https");
    check_site(
        "if ($http_user_agent ~* mobile) { rewrite ^ /m redirect; }",
        "root \"/srv\"\nredirect \"*\" \"/m{query}\" status=302 field=\"user-agent: ~(?i)mobile\"",
    );
    check_site(
        "if (!-e $request_filename) { rewrite ^ /index.php last; }",
        "root \"/srv\"\nrewrite \"*\" \"/index.php\" missing=on",
    );
}

#[test]
fn upstreams_are_asked() {
    check_site(
        "location / { proxy_pass http://127.0.0.1:3000; proxy_set_header Host $host; proxy_read_timeout 90; }",
        "forward \"http://127.0.0.1:3000\" {\n    first-byte-timeout \"90s\"\n    between-bytes-timeout \"90s\"\n}",
    );
    check_site(
        "location /api/ { proxy_pass http://unix:/run/a.sock:/; }",
        "root \"/srv\"\nforward \"unix:/run/a.sock\" path=\"/api/*\" {\n    strip-prefix \"/api\"\n    host upstream\n}",
    );
    check_site(
        "location / { try_files $uri $uri/ @app; } location @app { proxy_pass http://b:1; proxy_set_header Host $host; }",
        "root \"/srv\"\nrequire-index\nforward \"http://b:1\"",
    );
    check_site("location /g/ { grpc_pass grpc://b:1; }", "root \"/srv\"\nforward \"h2c://b:1\" path=\"/g/*\"");
    check_site(
        "location / { proxy_pass http://b:1; proxy_set_header Host $host; proxy_request_buffering off; proxy_buffering on; \
         proxy_max_temp_file_size 10m; }",
        "forward \"http://b:1\" {\n    request-buffering off\n    response-buffering on\n    \
         buffer-file-bytes-max \"10MiB\"\n}",
    );
    check_site("location /u/ { uwsgi_pass b:1; }", "root \"/srv\"\nuwsgi \"/u/*\" \"tcp://b:1\"");
    check_site(
        r"location / { try_files $uri $uri/ /index.php?$args; }
          location ~ \.php$ { fastcgi_pass unix:/run/p.sock; fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
          fastcgi_param APP a; }",
        "root \"/srv\"\nfastcgi \"*.php\" \"unix:/run/p.sock\" root=\"/srv\" {\n    path-info off\n    variable \"APP\" \"a\"\n    \
         index\n    fallback \"/index.php\"\n}\nrespond \"*.php\" 404",
    );
}

#[test]
fn upstreams_get_the_host_that_nginx_sends() {
    let check = |fields: &str, expect: &str, why: Option<&str>| {
        let (lines, remarks) = site(&format!("location / {{ proxy_pass http://b:1; {fields} }}"));
        let block = if expect.is_empty() { String::new() } else { format!(" {{\n    host {expect}\n}}") };
        assert_eq!(lines, format!("forward \"http://b:1\"{block}"), "{fields}");
        assert!(
            remarks.len() == why.iter().len() && remarks.iter().zip(why).all(|(remark, why)| remark.contains(why)),
            "{fields}: {remarks:?}"
        );
    };
    check("", "upstream", None);
    check("proxy_set_header Host $host;", "", None);
    check("proxy_set_header Host $http_host;", "", None);
    check("proxy_set_header Host $proxy_host;", "upstream", None);
    check("proxy_set_header HOST app.example:81;", "\"app.example:81\"", None);
    check("proxy_set_header Host a; proxy_set_header host b;", "\"b\"", None);
    check("proxy_set_header Host $own;", "", Some("the value of `host` must be fixed"));
    check("proxy_set_header Host $remote_addr;", "", Some("the value of `host` must be fixed"));
    check("proxy_set_header Host upstream;", "", Some("`host` has this word for another value"));
    check("proxy_set_header Host \"\";", "", Some("always gets a `Host`"));
    let keep = "proxy_set_header Host $host; proxy_set_header";
    check(&format!("{keep} Expect \"\";"), "", Some("controls how the request is sent"));
    check(&format!("{keep} Connection Keep-Alive;"), "", None);
    check(&format!("{keep} Connection TE;"), "", Some("controls how the request is sent"));
    let (lines, remarks) = site("location / { grpc_pass b:1; grpc_set_header Host c; proxy_set_header Host d; }");
    assert_eq!((lines.as_str(), remarks.len()), ("forward \"h2c://b:1\" {\n    host \"c\"\n}", 0), "{remarks:?}");
}

#[test]
fn what_guards_is_never_dropped() {
    let check = |inside: &str, expect: &str, why: &[&str]| {
        let (lines, remarks) = site(inside);
        assert_eq!(lines, format!("root \"/srv\"\n{expect}"), "{inside}");
        assert_eq!(remarks.len(), why.len(), "{inside}: {remarks:?}");
        for (remark, why) in remarks.iter().zip(why) {
            assert!(remark.contains("its paths are rejected") && remark.contains(why), "{remark}");
        }
    };
    check(
        "location /a/ { auth_request /auth; }",
        "// n:1: auth_request /auth: its paths are rejected: its location is not known\ndeny all path=\"/a/*\"",
        &["its location is not known"],
    );
    check(
        "location /a/ { auth_request /auth; satisfy any; } location = /auth { internal; proxy_pass http://b:1; }",
        "deny all path=\"/auth\" status=404 internal=on\n\
         // n:1: auth_request /auth: its paths are rejected: `satisfy any` includes passwords and addresses only\ndeny all path=\"/a/*\"",
        &["satisfy"],
    );
    check(
        "location /a/ { auth_request /auth; } location = /auth { internal; proxy_pass $backend; }",
        "deny all path=\"/auth\" status=404 internal=on\n\
         // n:1: auth_request /auth: its paths are rejected: the server of `forward-auth` has a fixed address\ndeny all path=\"/a/*\"",
        &["fixed address"],
    );
    check("location /a/ { internal; }", "internal \"/a/*\"", &[]);
    check(
        "error_page 404 /e.html; location = /e.html { internal; }",
        "deny all path=\"/e.html\" status=404 internal=on\nerror-page 404 \"/e.html\"",
        &[],
    );
    check(
        r"location ~ /\.(?!well-known) { deny all; }",
        "deny all path=#\"~/\\.(?:\\z|[^w]|w(?:\\z|[^e]|e(?:\\z|[^l]|l(?:\\z|[^l]|l(?:\\z|[^\\-]|\\-(?:\\z|[^k]|k(?:\\z|[^n]|\
         n(?:\\z|[^o]|o(?:\\z|[^w]|w(?:\\z|[^n]))))))))))\"#",
        &[],
    );
    check("location /a/ { limit_except GET { deny all; } }", "deny all path=\"/a/*\" method=\"!GET HEAD\"", &[]);
    check("if ($http_user_agent ~* bad) { return 403; }", "deny all field=\"user-agent: ~(?i)bad\"", &[]);
    check(r"location ~ \\.php$ { deny all; }", "deny all path=\"*.php\"", &[]);
    check(
        "location /a/ { if ($request_method ~ ^P) { return 403; } }",
        "deny all path=\"/a/*\" when=\"method matches '^P'\"",
        &[],
    );
    for condition in ["$http_x_key != $own", "$geo != 1"] {
        check(
            &format!("location /a/ {{ if ({condition}) {{ return 403; }} }}"),
            &format!(
                "// n:1: if ({condition}): its paths are rejected: there is no `if`; conditions are properties of `redirect` \
                 and `rewrite`\ndeny all path=\"/a/*\""
            ),
            &["there is no `if`"],
        );
    }
    check(
        "location /a/ { root /d/$remote_user; }",
        "// n:1: root /d/$remote_user: its paths are rejected: `{host}` is the only variable in `root`\nrespond \"/a/*\" 502",
        &["only variable"],
    );
    check(
        "location /a/ { redis_pass b:1; }",
        "// n:1: redis_pass b:1: its paths are rejected: there is no such handler\nrespond \"/a/*\" 502",
        &["no such handler"],
    );
    check(
        "location /a/ { shib_request /s; }",
        "// n:1: shib_request /s: its paths are rejected: its access rule cannot be translated\ndeny all path=\"/a/*\"",
        &["access rule"],
    );
    check(
        "set_real_ip_from 10.0.0.1; allow 10.0.0.0/8; deny all;",
        "// n:1: set_real_ip_from 10.0.0.1: its paths are rejected: `trusted-proxies` of `server` applies to all sites, and \
         without it all requests come from the proxy's address\ndeny all\nallow \"10.0.0.0/8\"\ndeny all",
        &["from the proxy's address"],
    );
    check(
        "location /a/ { if ($invalid_referer) { return 403; } }",
        "// n:1: if ($invalid_referer): its paths are rejected: there is no `if`; conditions are properties of `redirect` and \
         `rewrite`\ndeny all path=\"/a/*\"",
        &["there is no `if`"],
    );
}

#[test]
fn addresses_are_those_that_nginx_reads() {
    let check = |field: &str, inside: &str, expect: bool| {
        let (text, _) = translated(&format!(
            "http {{ set_real_ip_from 10.0.0.1; {field} server {{ root /srv; location /a/ {{ {inside} }} }} }}"
        ));
        assert_eq!(text.contains("its paths are rejected: `trusted-proxies` reads"), expect, "{text}");
    };
    check("", "allow 10.0.0.0/8; deny all;", true);
    check("real_ip_header X-Client;", "allow 10.0.0.0/8; deny all;", true);
    check("real_ip_header X-Forwarded-For;", "allow 10.0.0.0/8; deny all;", false);
    check("", "deny all;", false);
}

#[test]
fn what_is_the_servers_to_say_is_not_the_clients() {
    let check = |inside: &str, expect: &str| {
        let (lines, remarks) = site(&format!("location / {{ {inside} }}"));
        assert_eq!(lines, expect, "{inside}");
        assert_eq!(remarks.len(), 1, "{remarks:?}");
    };
    let forward = "forward \"http://b\"";
    let pass = "proxy_pass http://b; proxy_set_header Host $host;";
    check(
        &format!("{pass} proxy_set_header X-Verified $ssl_client_verify;"),
        &format!("request-header \"X-Verified\" \"\"\n{forward}"),
    );
    check(&format!("{pass} proxy_set_header X-Forwarded-Port $own;"), forward);
    check(
        "fastcgi_pass b:1; fastcgi_param HTTP_X_VERIFIED $ssl_client_verify;",
        "fastcgi \"*\" \"tcp://b:1\" {\n    variable \"HTTP_X_VERIFIED\" \"\"\n    application \"/\"\n}",
    );
}

#[test]
fn scripts_are_those_that_nginx_runs() {
    let check = |file: &str, expect: &str| {
        let (lines, _) =
            site(&format!(r"location ~ \.php$ {{ fastcgi_pass b:1; fastcgi_param SCRIPT_FILENAME {file}; }}"));
        let lines: Vec<&str> = lines.lines().filter(|line| !line.starts_with("//")).collect();
        assert_eq!(lines.join("\n"), format!("root \"/srv\"\n{expect}"), "{file}");
    };
    let below =
        |root: &str| format!("fastcgi \"*.php\" \"tcp://b:1\" root=\"{root}\" {{\n    path-info off\n    index\n}}");
    check("$document_root$fastcgi_script_name", &below("/srv"));
    check("$realpath_root/$fastcgi_script_name", &below("/srv"));
    check("$request_filename", &below("/srv"));
    check("/scripts$fastcgi_script_name", &below("/scripts"));
    check("$document_root/front.php", "respond \"*.php\" 502");
    check("/usr/lib/cgit.cgi", "respond \"*.php\" 502");
    check("$own$fastcgi_script_name", "respond \"*.php\" 502");
}

/// Issue 23: scripts lost their host.
#[test]
fn scripts_keep_the_header_fields_that_they_get_by_default() {
    let check = |variable: &str, expect: &str, count: usize| {
        let (lines, remarks) = site(&format!("location / {{ scgi_pass b:1; scgi_param {variable}; }}"));
        let block = if expect.is_empty() { String::new() } else { format!(" {{\n    variable {expect}\n}}") };
        assert_eq!(lines, format!("scgi \"*\" \"tcp://b:1\"{block}"), "{variable}");
        assert_eq!(remarks.len(), count, "{variable}: {remarks:?}");
    };
    check("HTTP_HOST $host", "", 0);
    check("HTTP_HOST $http_host", "", 0);
    check("HTTP_X_TOKEN $http_x_token", "", 0);
    check("HTTP_X_TOKEN $http_x_user", "\"HTTP_X_TOKEN\" \"\"", 1);
    check("HTTP_HOST $own", "\"HTTP_HOST\" \"\"", 1);
    check("HTTP_HOST a.example", "\"HTTP_HOST\" \"a.example\"", 0);
}

#[test]
fn guards_are_those_of_the_location_that_has_the_path() {
    let check = |inside: &str, expect: &str| assert_eq!(site(inside).0, format!("root \"/srv\"\n{expect}"), "{inside}");
    // A location that inherits the server's guard states it before others allow clients.
    check(
        r"deny all; location ^~ /x/ { } location ~ \.css$ { allow 10.0.0.1; }",
        "deny all path=\"~^/x/\"\nallow all path=\"*.css\"\ndeny all",
    );
    // An address that is let in elsewhere is not let in here.
    check(
        "satisfy any; allow 10.0.0.1; auth_basic A; auth_basic_user_file /u; location /a/ { satisfy all; }",
        "allow all path=\"~^/a/\"\nbasic-auth \"~^/a/\" \"/u\" realm=\"A\"\n\
         allow \"10.0.0.1\"\nbasic-auth \"*\" \"/u\" realm=\"A\" satisfy=\"any\"",
    );
    // `^~` does not keep expressions from longer prefixes, which no order here can say.
    check(
        r"location ^~ /x/ { } location /x/y/ { } location ~ \.php$ { deny all; }",
        "// n:1: location ~ \\.php$: its paths are rejected: it is unclear if they belong to this location or to `location \
         /x/y/`\ndeny all path=\"/x/y/*\"\nallow all path=\"~^/x/y/\"\nallow all path=\"~^/x/\"\ndeny all path=\"*.php\"",
    );
    check(
        r"location ^~ /x/ { alias /d/; } location /x/y/ { return 403; }",
        "respond \"/x/y/*\" 403\nfiles \"/x/*\" root=\"/d\" {\n    strip-prefix \"/x\"\n}\nrespond \"/x/*\" 404",
    );
    // nginx returns before it checks access. What may not be translated stays guarded.
    check(
        "deny all; location = /up { return 200 ok; } location = /go { return 302 https://b/$arg_x; }",
        "allow all path=\"/up\"\ndeny all\nredirect \"/go\" \"https://b/{query.x}\" status=302\nrespond \"/up\" 200 \"ok\"",
    );
    let (_, remarks) =
        translated("map $host $r { a off; default A; } server { auth_basic $r; auth_basic_user_file /u; root /srv; }");
    assert!(remarks.iter().any(|remark| remark.contains("a password is always required")), "{remarks:?}");
    let outer = "http { auth_basic A; auth_basic_user_file /u; server { root /srv; } }";
    assert!(translated(outer).0.contains("basic-auth \"*\" \"/u\" realm=\"A\""), "{}", translated(outer).0);
}

#[test]
fn what_leads_elsewhere_leads_nowhere_else() {
    let check = |inside: &str, expect: &str, why: &str| {
        let (lines, remarks) = site(inside);
        let lines: Vec<&str> = lines.lines().filter(|line| !line.starts_with("//")).collect();
        assert_eq!(lines.join("\n"), format!("root \"/srv\"\n{expect}"), "{inside}");
        assert!(remarks.iter().any(|remark| remark.contains(why)), "{inside}: {remarks:?}");
    };
    check("rewrite ^/a/(?!b)c /b last;", "deny all path=\"~^/a/c\"", "look-around");
    check(
        "rewrite ^/a/ /b last; location = /b { rewrite ^ /c last; }",
        "deny all path=\"~^/a/\"\nrewrite \"/b\" \"/c\"",
        "sent elsewhere once more",
    );
    check(
        "location /a/ { rewrite ^/a/(.*)$ /b/$1 break; } location /b/ { deny all; }",
        "deny all path=\"~^/a/(.*)$\"\ndeny all path=\"/b/*\"",
        "stay this location's",
    );
    check(
        "location / { try_files $uri $uri/ @n; } location @n { return 403; }",
        "require-index\nrewrite \"*\" \"/-/404\" missing=on\nrespond \"/-/404\" 404",
        "another's fallback",
    );
    check(
        r"rewrite \.html$ /nope last;",
        "deny all path=\"~/$\"\nrewrite #\"~\\.html$\"# \"/nope\"",
        "index files are not requested",
    );
    check(
        "location = /index.html { if ($http_cookie !~ auth) { return 302 /login; } }",
        "deny all path=\"~/$\"\nredirect \"/index.html\" \"/login\" status=302 field=\"!cookie: ~auth\"",
        "index files are not requested",
    );
    check(
        "rewrite ^/a/(.*)$ /b/$1 last; location /a/ { try_files $uri /a/x.html; }",
        "rewrite \"~^/a/(.*)$\" \"/b/{1}\"\nfiles \"/a/*\" root=\"/srv\" {\n    index\n}\nrespond \"/a/*\" 404",
        "would be sent elsewhere once more",
    );
    check(
        r"location /a/ { return 200 a; location ~ \.(?!b)c$ { } }",
        "deny all path=#\"~\\.c$\"#\nrespond \"/a/*\" 200 \"a\"",
        "look-around",
    );
    check(
        "location ^~ / { } location ~ /b { deny all; }",
        "deny all path=\"~/b\"\nallow all\ndeny all path=\"~/b\"",
        "it is unclear if they belong",
    );
    check(
        "location ~ ^/a/$ { } location /a { return 403; }",
        "respond \"~^/a/$\" 502\nrespond \"~^/a\" 403",
        "gets the directory's files",
    );
    check(
        "location ~ ^/a/.*l$ { if ($http_cookie !~ auth) { return 302 /login; } }",
        "deny all path=\"~/$\"\nredirect \"~^/a/.*l$\" \"/login\" status=302 field=\"!cookie: ~auth\"",
        "index files are not requested",
    );
    check(
        "location /s/ { rewrite ^/s/(.*)$ /$1 break; } location /admin/ { deny all; }",
        "deny all path=\"~^/s/(?:.*/)?$\"\ndeny all path=\"/admin/*\"\n\
         files \"/s/*\" root=\"/srv\" {\n    strip-prefix \"/s\"\n}\nrespond \"/s/*\" 404",
        "who gets the index",
    );
    check(
        "location /s/ { root /x; rewrite ^/s/(.*)$ /$1 break; }",
        "deny all path=\"~^/s/(?:.*/)?$\"\n\
         files \"/s/*\" root=\"/x\" {\n    strip-prefix \"/s\"\n}\nrespond \"/s/*\" 404",
        "who gets the index",
    );
    check(
        "location /a/ { root /x; rewrite ^/a/(.*)$ /b/$1 break; } location /b/ { root /y; }",
        "deny all path=\"~^/a/(.*)$\"\nfiles \"/a/*\" root=\"/x\"\nrespond \"/a/*\" 404\n\
         files \"/b/*\" root=\"/y\"\nrespond \"/b/*\" 404",
        "stay this location's",
    );
}

#[test]
fn locations_keep_to_their_paths() {
    check_site(
        "location / { try_files $uri $uri/ /index.html; } location /a/ { try_files $uri $uri/ =404; }",
        "root \"/srv\"\nfallback \"/index.html\"\nrequire-index\nfiles \"/a/*\" root=\"/srv\" {\n    fallback off\n}\nrespond \"/a/*\" 404",
    );
    check_site(
        "location / { add_header Cache-Control no-cache; } location /a/ { }",
        "root \"/srv\"\ncache-control \"no-cache\"\ncache-control \"/a/*\" \"\"",
    );
    check_site(
        "location / { return 301 /b; } location /a/ { }",
        "rewrite \"/a/*\" \"{path}\"\nredirect \"*\" \"/b\" status=301\nfiles \"/a/*\" root=\"/srv\"",
    );
    check_site(
        "location /a/ { rewrite ^/a/(.*)$ /$1 break; proxy_pass http://b; proxy_set_header Host $host; }",
        "root \"/srv\"\nforward \"http://b\" path=\"/a/*\" {\n    strip-prefix \"/a\"\n}",
    );
    check_site(
        "location /a/ { proxy_pass http://b/c/; proxy_set_header Host $host; }",
        "root \"/srv\"\nrewrite \"/a/*\" \"/a/c/{rest}\"\nforward \"http://b\" path=\"/a/*\" {\n    strip-prefix \"/a\"\n}",
    );
    check_site(
        r"location /a/ { location ~ \.b$ { return 410; } }",
        "root \"/srv\"\nrespond #\"~^/a/.*(?:\\.b$)\"# 410",
    );
    check_site(
        "default_type text/html; location = /a.json { return 200 '{}'; } location = /b { return 200 b; }",
        "root \"/srv\"\ndefault-type \"text/html\"\nrespond \"/a.json\" 200 \"{}\" type=\"application/json\"\n\
         respond \"/b\" 200 \"b\" type=\"text/html\"",
    );
    check_site(
        "charset utf-8; index a.html; location / { return 403; } location /a/ { index b.html; } location /b/ { }",
        "charset \"utf-8\"\nindex \"a.html\"\nfiles \"/a/*\" root=\"/srv\" {\n    index \"b.html\"\n}\n\
         respond \"/a/*\" 404\nfiles \"/b/*\" root=\"/srv\"\nrespond \"/b/*\" 404\nrespond \"*\" 403",
    );
    check_site("return 403; location /a/ { proxy_pass http://b; }", "respond \"*\" 403");
    check_site("server_name a; listen 80 default_server;", "listen 80\ndefault\nroot \"/srv\"");
}

#[test]
fn expressions_end_before_a_line_feed() {
    let check = |inside: &str, expect: bool| {
        let lines = site(inside).0;
        assert_eq!(lines.contains("deny all path=#\"~\\n$\"#"), expect, "{inside}\n{lines}");
    };
    let pass = "location / { proxy_pass http://b; }";
    check(&format!(r"location ~ \.ini$ {{ return 403; }} {pass}"), true);
    check(&format!(r"location ~ \.php$ {{ fastcgi_pass c:1; }} {pass}"), true);
    check(&format!(r"location ~ (\.a|\.b$) {{ return 403; }} {pass}"), true);
    // There are no such files.
    check(r"location ~ \.ini$ { return 403; }", false);
    check(r"location ~ \.php$ { fastcgi_pass c:1; } location / { try_files $uri /index.php; }", false);
    // Guards know it, a price does not end the path, and `.` fits it here.
    check(&format!(r"location ~ \.ini$ {{ deny all; }} {pass}"), false);
    check(&format!(r"location ~ ^/\$ {{ return 403; }} {pass}"), false);
    check(&format!(r"location ~ ^/a/(.*)$ {{ return 403; }} {pass}"), false);
}

#[test]
fn formats_that_escape_for_json_are_objects() {
    let translate = |format: &str| {
        translated(&format!("http {{ log_format a escape=json {format}; server {{ access_log /l a; }} }}"))
    };
    let (text, remarks) = translate(r#"'{"a":"$uri",' '"s":$status}'"#);
    assert!(text.contains(r##"access-log "/l" format=#"{{"a":"{path}","s":{status}}}"#"##), "{text}");
    assert!(remarks.is_empty(), "{remarks:?}");
    for (format, why) in [
        (r#"'"$uri"'"#, "this is not a JSON object"),
        (r#"'{"a":"$uri"} ${status}'"#, "this is not a JSON object"),
        (r#"'{"a":"$nothing"}'"#, "`$nothing` has no counterpart"),
    ] {
        let (text, remarks) = translate(format);
        assert!(text.contains("access-log \"/l\" format=\"json\""), "{text}");
        assert!(remarks.len() == 1 && remarks[0].contains(why), "{remarks:?}");
        assert!(remarks[0].contains("whose members have other names"), "{remarks:?}");
    }
}

/// Found by fuzzing (issue 17): an access log was written twice.
#[test]
fn a_site_has_one_access_log() {
    const SAME: &str = "needs nothing here: the same access log is given twice";
    const OFF: &str = "needs nothing here: `access_log off` turns off all logs";
    const SECOND: &str = "not translated: a site has one access log";
    const OF_LOCATION: &str = "not translated: an access log applies to all paths of a site";
    let check = |inside: &str, expect: &str, why: &[&str]| {
        let (lines, remarks) = site(inside);
        assert_eq!(lines, format!("root \"/srv\"\n{expect}"), "{inside}");
        assert_eq!(remarks.len(), why.len(), "{inside}: {remarks:?}");
        assert!(remarks.iter().zip(why).all(|(remark, why)| remark.contains(why)), "{remarks:?}");
    };
    let log = |name: &str| format!("access-log \"{name}\"");
    check("access_log /a; access_log /a;", &log("/a"), &[SAME]);
    check("access_log /a; access_log /a combined;", &log("/a"), &[SAME]);
    check("access_log /a; access_log /b;", &log("/a"), &["access_log /b: not translated: a site has one"]);
    check("access_log /a; access_log /b; access_log /c;", &log("/a"), &[SECOND, SECOND]);
    check("access_log off; access_log off;", "access-log off", &[SAME]);
    check("access_log /a; access_log off;", "access-log off", &[OFF]);
    check("access_log off; access_log /a;", "access-log off", &[OFF]);
    check("location / { access_log /a; }", &log("/a"), &[]);
    check("location / { access_log /a; access_log /a; }", &log("/a"), &[SAME]);
    check("access_log /a; location / { access_log /a; }", &log("/a"), &[SAME]);
    check("access_log /a; location / { access_log /b; }", &log("/a"), &[OF_LOCATION]);
    check("location / { access_log off; } access_log /a;", &log("/a"), &[OF_LOCATION]);
    let (text, remarks) = translated("http { access_log /a; } http { access_log /a; server { access_log /a; } }");
    assert_eq!(text.matches("access-log").count(), 2, "{text}");
    assert!(remarks.len() == 1 && remarks[0].contains(SAME), "{remarks:?}");
}

/// Lines that a block may have once, from several directives.
#[test]
fn options_are_given_once() {
    let to_tls = "if ($scheme = http) { return 301 https://$host$request_uri; }";
    check_site(&format!("{to_tls} location / {{ {to_tls} }}"), "root \"/srv\"\nredirect-to-https");
    let (lines, remarks) = site("location /a/ { alias /x/; rewrite ^/a/(.*)$ /$1 break; }");
    assert!(!lines.contains("strip-prefix") && lines.contains("respond \"/a/*\" 502"), "{lines}");
    assert!(remarks.len() == 1 && remarks[0].contains("removes a prefix from the path, too"), "{remarks:?}");
}

/// Found by fuzzing (issue 17): a property was written twice.
#[test]
fn the_last_parameter_of_a_server_applies() {
    let (text, remarks) = translated("upstream a { server b weight=2 backup weight=3 backup; }");
    assert_eq!(
        (text.as_str(), remarks.len()),
        ("upstream \"a\" {\n    server \"http://b\" weight=3 backup=on\n}\n", 0)
    );
}

/// Found by fuzzing (issue 17): a server without a translation was a site without a block.
#[test]
fn servers_without_a_root_have_nothing() {
    let (text, _) = translated("server { }");
    assert_eq!(text, "// n:1\nsite {\n    listen 80\n    respond \"*\" 404\n}\n");
}

#[test]
fn error_pages_are_files() {
    let check = |inside: &str, expect: &str, why: &[&str]| {
        let server = format!("server {{ listen 8080; location / {{ grpc_pass b:1; }} {inside} }}");
        let (text, remarks) = translated(&server);
        let is_common = |line: &&str| line.contains("//") || matches!(*line, "site {" | "}" | "listen 8080");
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !is_common(line)).collect();
        assert_eq!(lines.join("\n"), expect, "{inside}");
        assert_eq!(remarks.len(), why.len(), "{inside}: {remarks:?}");
        assert!(remarks.iter().zip(why).all(|(remark, why)| remark.contains(why)), "{remarks:?}");
    };
    check(
        "error_page 500 502 /50x.html; location = /50x.html { root /usr/share/html; }",
        "files \"/50x.html\" root=\"/usr/share/html\"\nrespond \"/50x.html\" 404\n\
         error-page 500 502 \"file:/usr/share/html/50x.html\"",
        &[],
    );
    check(
        "error_page 502 /50x.html; location = /50x.html { root /usr/share/html; internal; }",
        "deny all path=\"/50x.html\" status=404 internal=on\nerror-page 502 \"file:/usr/share/html/50x.html\"",
        &[],
    );
    check(
        "error_page 502 /e/a.html; location /e/ { alias /d/; internal; }",
        "deny all path=\"/e/*\" status=404 internal=on\nerror-page 502 \"file:/d/a.html\"",
        &[],
    );
    check("error_page 502 /50x.html;", "", &["an error page must be a file"]);
}

#[test]
fn answers_are_kept_for_those_they_are_for() {
    let check = |inside: &str, expect: &str| {
        let text =
            format!("location / {{ proxy_pass http://b; proxy_set_header Host $host; proxy_cache z; {inside} }}");
        assert_eq!(site(&text).0, expect, "{inside}");
    };
    let cache = |lines: &str| format!("forward \"http://b\" {{\n    cache {{\n{lines}    }}\n}}");
    let none = "forward \"http://b\"";
    check("proxy_cache_valid 200 10m;", &cache("        default-age \"10m\" 200\n"));
    check("proxy_no_cache $cookie_a;", &cache("        bypass-cookies \"a\"\n"));
    check("proxy_no_cache $cookie_a $own;", none);
    check("proxy_cache_bypass $skip;", none);
    check("proxy_cache_bypass $arg_fresh;", &cache("        heuristic off\n"));
    check("proxy_cache_key $host$request_uri$cookie_a;", &cache("        key-cookies \"a\"\n"));
    check("proxy_cache_key $uri$remote_user;", none);
    let (lines, remarks) = site(
        "location / { proxy_pass http://b; proxy_cache z; proxy_ignore_headers Set-Cookie; proxy_hide_header Set-Cookie; }",
    );
    assert!(lines.contains("set-cookie drop") && remarks.is_empty(), "{lines}\n{remarks:?}");
}

#[test]
fn passwords_go_on_as_in_nginx() {
    let check = |inside: &str, expect: &str| {
        let lines = site(&format!("location /a/ {{ auth_basic A; auth_basic_user_file /u; {inside} }}")).0;
        assert_eq!(lines.lines().nth(1), Some(expect), "{inside}");
    };
    check("", "basic-auth \"/a/*\" \"/u\" realm=\"A\"");
    check("proxy_pass http://b;", "basic-auth \"/a/*\" \"/u\" realm=\"A\" pass-credentials=on");
    check("proxy_pass http://b; proxy_set_header Authorization \"\";", "basic-auth \"/a/*\" \"/u\" realm=\"A\"");
}

#[test]
fn the_rest_is_reported() {
    let check = |inside: &str, expect: &[&str]| {
        let remarks = site(inside).1;
        assert_eq!(remarks.len(), expect.len(), "{remarks:?}");
        for (remark, expect) in remarks.iter().zip(expect) {
            assert!(remark.contains(expect), "{remark}");
        }
    };
    check("frobnicate on;", &["n:1: frobnicate on: not translated: there is no counterpart"]);
    check("sendfile on;", &["n:1: sendfile on: needs nothing here: files are always sent"]);
    check("location ~ ^/(?!a)b { }", &["location ~ ^/(?!a)b: not translated: its expression"]);
    check(
        "location ~ a { proxy_pass http://b/c; }",
        &["proxy_pass http://b/c: its paths are rejected: paths are forwarded"],
    );
    check("location /a { proxy_pass http://$b; }", &["proxy_pass http://$b: its paths are rejected: an upstream has"]);
    check("if ($new) { return 301 /b; }", &["not translated: there is no `if`"]);
    check(
        "location = /ip { return 200 $remote_addr; }",
        &["its paths are rejected: the text of `respond` must be fixed"],
    );
    check("add_header X $nothing;", &["`$nothing` has no counterpart"]);
    check("location /a/ { send_timeout 9s; }", &["set it in `limits`"]);
    check("error_log /a warn;", &["`log-level` of `server`"]);
    assert!(translated("http { error_log /a warn; server { } }").0.contains("log-level warn"));
    check("add_header X-Cache-Status $upstream_cache_status;", &[]);
    check("location /a/ { proxy_pass http://b; proxy_ignore_headers Vary; }", &["`Cache-Control` always applies"]);
    check(
        "location /a/ { fastcgi_pass b:1; fastcgi_pass_request_headers off; }",
        &["its paths are rejected: applications get"],
    );
    check("location /a/ { proxy_pass http://b; proxy_cache z; proxy_cache_key $uri; }", &["always contains the query"]);
    check("include none;", &["n:1: include none: not translated: there is no such file"]);
}

#[test]
fn what_http_says_is_said_for_all() {
    let (text, remarks) = translated(
        "user web staff;
         worker_processes 2;
         http {
            keepalive_timeout 65;
            client_max_body_size 8m;
            set_real_ip_from 10.0.0.0/8;
            set_real_ip_from 192.0.2.1;
            log_format mine '$remote_addr $status';
            access_log /var/log/a mine;
            limit_req_zone $binary_remote_addr zone=z:1m rate=10r/s;
            upstream app { ip_hash; server a:1 weight=2 max_fails=3 fail_timeout=9s; server b:1 backup; keepalive 8; }
            server { server_name .example.com; listen 80; listen [::]:80; limit_req zone=z burst=5 nodelay;
                     location / { proxy_pass http://app; proxy_set_header Host $host; } }
         }",
    );
    let expect = r#"server {
    user "web" group="staff"
    workers 2
    trusted-proxies "10.0.0.0/8" "192.0.2.1"
}

limits {
    idle-timeout "65s"
    body-bytes-max "8MiB"
}

access-log "/var/log/a" format="{client} {status}"

upstream "app" {
    server "http://a:1" weight=2
    server "http://b:1" backup=on
    balance hash by="address"
    fail-max 3
    fail-window "9s"
    eject-time "9s"
    idle-max 8
}

// n:12
site "example.com" "*.example.com" {
    listen 80
    rate-limit "10/s" burst=6 key="address"
    forward "app"
}
"#;
    assert_eq!((text.as_str(), remarks.as_slice()), (expect, [].as_slice()));
}

/// nginx denies these paths, so a translation that takes the modifier for a part of the path would open them.
#[test]
fn a_modifier_may_be_glued_to_its_path() {
    for (glued, apart) in [
        ("~^/secret", "~ ^/secret"),
        ("~*\\.bak$", "~* \\.bak$"),
        ("=/x", "= /x"),
        ("^~/x", "^~ /x"),
        ("~/(.*\\.md|LICENSE)", "~ /(.*\\.md|LICENSE)"),
        ("\"~^/a b\"", "~ \"^/a b\""),
    ] {
        let with = |modifier: &str| site(&format!("location {modifier} {{ deny all; }}"));
        assert_eq!(with(glued), with(apart), "{glued}");
        assert!(with(glued).0.contains("deny all path="), "{glued}: {}", with(glued).0);
    }
}

/// As the documentation of Symfony has it: clients get 404 for the script's own path, and its response for others.
#[test]
fn an_internal_script_still_answers_for_other_paths() {
    check_site(
        r"location / { try_files $uri /index.php$is_args$args; }
          location ~ ^/index\.php(/|$) {
              fastcgi_pass unix:/run/p.sock;
              fastcgi_param SCRIPT_FILENAME $realpath_root$fastcgi_script_name;
              internal;
          }
          location ~ \.php$ { return 404; }",
        "root \"/srv\"\nindex\n// to nginx `$` fits before a line feed at the end, too\ndeny all path=#\"~\\n$\"#\n\
         deny all path=#\"~^/index\\.php(/|$)\"# status=404 internal=on\n\
         fastcgi #\"~^/index\\.php(/|$)\"# \"unix:/run/p.sock\" root=\"/srv\" {\n    index\n    fallback \"/index.php\"\n}\n\
         respond #\"~^/index\\.php(/|$)\"# 404\nrespond \"*.php\" 404",
    );
}
