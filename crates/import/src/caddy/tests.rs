//! Translations of whole Caddyfiles.

use super::*;
use crate::kdl;

/// The site of a Caddyfile without comments, and remarks.
pub(super) fn translated(text: &str) -> (String, Vec<String>) {
    let (nodes, remarks, _) = translate_file(&syntax::parse(text).unwrap());
    let text = kdl::write(&nodes);
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//") && !line.is_empty());
    (lines.collect::<Vec<_>>().join("\n"), remarks.iter().map(ToString::to_string).collect())
}

#[track_caller]
pub(super) fn check(body: &str, expect: &str) {
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
        "root * /srv\nphp_fastcgi unix//run/php.sock {\n try_files {path} {path}/index.php =404\n}",
        "fastcgi \"*.php\" \"unix:/run/php.sock\" root=\"/srv\"",
    );
    check(
        "handle /api/* {\n reverse_proxy backend:8000\n}\nhandle {\n root * /srv\n try_files {path} /index.html\n file_server\n}",
        "root \"/srv\"\nindex\nfallback \"/index.html\"\nforward \"http://backend:8000\" path=\"~(?i)^/api/\"",
    );
    check(
        "handle_path /api/* {\n reverse_proxy 127.0.0.1:3000\n}\nrespond 404",
        "forward \"http://127.0.0.1:3000\" path=\"~(?i)^/api/\" {\nstrip-prefix \"/api\"\n}\nrespond \"*\" 404",
    );
    check(
        "redir https://www.example.com{uri} permanent",
        "redirect \"*\" \"https://www.example.com{path}{query}\" status=301\nrespond \"*\" 200",
    );
}

/// Issue 23: constructs of Caddy's documentation and of Nextcloud AIO.
#[test]
fn handlers_of_a_route_keep_later_rules_away() {
    check(
        "redir /old /new\nroute /a/* {\n reverse_proxy a:80\n}\nroute {\n header X-A b\n reverse_proxy b:80\n}",
        "redirect \"~(?i)^/old$\" \"/new\" status=302\n\
         response-header \"X-A\" \"b\" when=\"not (path matches '(?i)^/a/') and not (path matches '(?i)^/old$')\"\n\
         forward \"http://a:80\" path=\"~(?i)^/a/\"\nforward \"http://b:80\"",
    );
    check(
        "route {\n respond /a.html 200\n redir https://b.example{uri}\n}",
        "redirect \"*\" \"https://b.example{path}{query}\" status=302 when=#\"not (path matches '(?i)^/a\\.html$')\"#\n\
         respond #\"~(?i)^/a\\.html$\"# 200\nrespond \"*\" 200",
    );
}

#[test]
fn upstreams_of_the_documentation() {
    check(
        "handle_path /old/* {\n rewrite /new{path}\n reverse_proxy a:80\n}",
        "rewrite \"~(?i)^/old(/.*)$\" \"/old/new{1}\"\nforward \"http://a:80\" path=\"~(?i)^/old/\" {\nstrip-prefix \
         \"/old\"\n}\nrespond \"*\" 200",
    );
    check("rewrite ?{query}&a=b\nreverse_proxy a:80", "rewrite \"*\" \"{path}?a=b{&query}\"\nforward \"http://a:80\"");
    check("reverse_proxy {\n dynamic a b 90\n}", "forward \"http://b:90\"");
    let (text, _) = translated("example.com {\n reverse_proxy {\n dynamic srv _a._tcp.b\n }\n}");
    assert!(text.contains("discover \"srv:_a._tcp.b\"") && text.contains("forward \"app\""), "{text}");
    let (text, remarks) = translated("example.com {\n reverse_proxy {\n }\n}");
    assert!(text.contains("respond \"*\" 503") && remarks[0].contains("it has no server"), "{text}\n{remarks:?}");
    let page = "reverse_proxy a:80 {\n @e status 5xx\n handle_response @e {\n respond sorry\n }\n}";
    let (text, remarks) = translated(&format!("example.com {{\n{page}\n}}"));
    assert!(text.contains("forward \"http://a:80\"") && remarks[0].contains("pass unchanged"), "{text}\n{remarks:?}");
    let (text, _) = translated(&format!("example.com {{\n{}\n}}", page.replace("5xx", "2xx")));
    assert!(text.contains("deny all"), "{text}");
    let (text, _) = translated("example.com {\n metrics\n}");
    assert!(text.contains("metrics \"/metrics\"") && text.contains("deny all path=\"/metrics\""), "{text}");
    check(
        "root /srv\ntry_files {path} {path}.html\nfile_server",
        "root \"/srv\"\nextensions \"html\"\nindex \"index.html\" \"index.txt\"",
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
        "basic-auth \"*\" \"users.htpasswd\" realm=\"restricted\" when=\"not (path matches '(?i)^/open/')\"\nforward \"http://a:80\" path=\"~(?i)^/open/\"\nforward \"http://b:80\"",
    );
    check("@x file\nrespond @x 403\nreverse_proxy a:80", "deny all\nforward \"http://a:80\"");
    check(
        "@x expression `path('/1') && method('POST')`\nrespond @x 403\nreverse_proxy a:80",
        "deny all when=\"path == '/1' and method in ('POST')\"\nforward \"http://a:80\"",
    );
    check(
        "@x `path('/1')`\nrespond @x 403\nreverse_proxy a:80",
        "deny all when=\"path == '/1'\"\nforward \"http://a:80\"",
    );
    check("wonder on\nreverse_proxy a:80", "deny all\nforward \"http://a:80\"");
    check("handle /in/* {\n wonder on\n}\nreverse_proxy a:80", "deny all path=\"~(?i)^/in/\"\nforward \"http://a:80\"");
    check(
        "@post {\n method POST\n header X-A a*\n header X-A *b\n}\nreverse_proxy @post b:80\nreverse_proxy a:80",
        "forward \"http://b:80\" path=\"*\" when=\"method in ('POST') and (request.header.X-A matches '(?:^|, )a' or request.header.X-A matches 'b(?:, |$)')\"\nforward \"http://a:80\"",
    );
}

/// Issue 23: Caddy ignores the case of paths, except of expressions.
#[test]
fn paths_are_in_any_case() {
    check("respond /A/* a", "respond \"~(?i)^/a/\" 200 \"a\"\nrespond \"*\" 200");
    check("respond /1 a", "respond \"/1\" 200 \"a\"\nrespond \"*\" 200");
    check("@x path *.CSS\nheader @x A b", "response-header #\"~(?i)\\.css$\"# \"A\" \"b\"\nrespond \"*\" 200");
    check("@x path_regexp ^/A\nrespond @x a", "respond \"~^/A\" 200 \"a\"\nrespond \"*\" 200");
    check("@x path /a/*/c\nrespond @x a", "respond \"~(?i)^/a/[^/]*/c$\" 200 \"a\"\nrespond \"*\" 200");
}

/// Issue 23: forward authentication, as oauth2-proxy documents it, and written out, as Authelia documents it.
#[test]
fn forward_authentication_in_long_forms() {
    check(
        "forward_auth o:1 {\n uri /oauth2/auth\n header_up X-Real-IP {remote_host}\n @error status 401\n handle_response @error {\n  redir * /oauth2/sign_in?rd={scheme}://{host}{uri}\n }\n}\nreverse_proxy a:80",
        "forward-auth \"*\" \"http://o:1\" uri=\"/oauth2/auth\" login=\"/oauth2/sign_in?rd={scheme}://{host}{path}{query}\"\nforward \"http://a:80\"",
    );
    check(
        "reverse_proxy l:1 {\n method GET\n rewrite /api/authz\n header_up X-Forwarded-Method {method}\n header_up X-Forwarded-URI {uri}\n @good status 2xx\n handle_response @good {\n  request_header Remote-User {http.reverse_proxy.header.Remote-User}\n }\n}\nreverse_proxy a:80",
        "forward-auth \"*\" \"http://l:1\" uri=\"/api/authz\" copy-headers=\"Remote-User\"\nforward \"http://a:80\"",
    );
    check(
        "forward_auth o:1 {\n uri /a\n @error status 4xx\n handle_response @error {\n  respond 200\n }\n}\nreverse_proxy a:80",
        "deny all\nforward \"http://a:80\"",
    );
}

#[test]
fn the_first_server_is_preferred() {
    let (found, remarks) = translated("a.de {\n reverse_proxy b:1 b:2 {\n  lb_policy first\n }\n}");
    assert!(found.contains("server \"http://b:1\"\n    server \"http://b:2\" backup=on\n"), "{found}");
    assert_eq!(remarks, Vec::<String>::new());
}

#[test]
fn queries_and_labels() {
    check("rewrite ?a=b\nreverse_proxy a:80", "rewrite \"*\" \"{path}?a=b\"\nforward \"http://a:80\"");
    let (found, _) = translated("www.a.de, www.b.de {\n redir https://{labels.1}.{labels.0}{uri}\n}");
    assert!(found.contains("redirect \"*\" \"https://a.de{path}{query}\""), "{found}");
    assert!(found.contains("redirect \"*\" \"https://b.de{path}{query}\""), "{found}");
}

#[test]
fn hosts_of_a_wildcard_are_sites() {
    let text =
        "*.example.com {\n @a host a.example.com\n handle @a {\n  reverse_proxy one:80\n }\n handle {\n  abort\n }\n}";
    let (found, _) = translated(text);
    let expect = "site \"a.example.com\" {\n    forward \"http://one:80\"\n}\nsite \"*.example.com\" {\n    deny all when=#\"host matches '.\\..+\\.example\\.com$'\"#\n    respond \"*\" 403\n}";
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

#[test]
fn sites_listen_where_they_are_bound() {
    let listens = |text: &str| {
        let (found, remarks) = translated(text);
        assert_eq!(remarks, Vec::<String>::new());
        found.lines().map(str::trim).filter(|line| line.starts_with("listen")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        listens("http://a.example {\n bind 127.0.0.1 ::1\n}\nhttp://b.example {\n bind 127.0.0.1\n}"),
        [
            "listen \"127.0.0.1:80\"",
            "listen \"[::1]:80\"",
            "listen \"127.0.0.1:80\"",
            "listen \"127.0.0.1:80\"",
            "listen \"[::1]:80\"",
        ],
        "other hosts are where the sites are"
    );
    assert_eq!(listens("http:// {\n bind 127.0.0.1\n}"), ["listen \"127.0.0.1:80\""]);
    assert_eq!(
        listens("{\n default_bind 10.0.0.1\n}\na.example {\n}"),
        ["listen \"10.0.0.1:80\"", "listen \"10.0.0.1:443\" tls=on"]
    );
}

/// Issue 23: `closed` has lines of `internal`, which have no properties either.
#[test]
fn rejections_stay_beside_internal_paths() {
    let text = "example.com {\n @e file\n respond @e 403\n handle /data/* {\n  rewrite * /a.txt\n  \
                file_server\n }\n file_server\n}";
    let (found, _) = translated(text);
    assert!(found.contains("    deny all\n") && found.contains("internal "), "{found}");
    let text = "example.com {\n handle /data/* {\n  rewrite * /a/f.txt\n  file_server\n }\n handle /x/* {\n  rewrite * \
                /b{uri}\n  file_server\n }\n}";
    let (found, _) = translated(text);
    assert_eq!(found.matches("internal ").count(), 2, "{found}");
}

/// Issue 23: the block of an inline `not`, and `path` after `path_regexp`, were lost.
#[test]
fn parts_of_matchers_are_not_lost() {
    let end = "respond @x 403\nreverse_proxy a:80";
    let deny = |when: &str| format!("deny all when=\"{when}\"\nforward \"http://a:80\"");
    check(
        &format!("@x not {{\n path /a/*\n method GET\n}}\n{end}"),
        &deny("not (path matches '(?i)^/a/' and method in ('GET'))"),
    );
    check(&format!("@x not {{\n not path /1\n}}\n{end}"), &deny("not (not (path == '/1'))"));
    check(&format!("@x not\n{end}"), "deny all\nforward \"http://a:80\"");
    check(&format!("@x not {{\n not file\n}}\n{end}"), "deny all\nforward \"http://a:80\"");
    check(&format!("@x path /a {{\n method GET\n}}\n{end}"), "deny all\nforward \"http://a:80\"");
    for parts in ["path_regexp ^/1/\n path /1/*", "path /1/*\n path_regexp ^/1/"] {
        let expect = "deny all path=\"~(?i)^/1/\" when=\"path matches '^/1/'\"\nforward \"http://a:80\"";
        check(&format!("@x {{\n {parts}\n}}\n{end}"), expect);
    }
    check(
        &format!("@x {{\n header X-A *a*\n header x-a *b*\n}}\n{end}"),
        &deny("(request.header.X-A contains 'a' or request.header.x-a contains 'b')"),
    );
    check(&format!("@x {{\n host a.com\n host example.com\n}}\n{end}"), "respond \"*\" 403");
    for path in ["/{env.A}/*", "/a%2fb", "/[ab]", "/a//b", "/?/*"] {
        check(&format!("@x path {path}\n{end}"), "deny all\nforward \"http://a:80\"");
    }
}

/// Issue 23: `error` and `respond` come after `rewrite` and `try_files`, and hold for what these lead to.
#[test]
fn rewritten_paths_are_rejected() {
    let deny = |text: &str| {
        let (found, _) = translated(&format!("example.com {{\n{text}\n file_server\n}}"));
        found.lines().map(str::trim).filter(|line| line.starts_with("deny")).collect::<Vec<_>>().join("|")
    };
    let path = "path=\"~(?i)^/a/\"";
    assert_eq!(deny("error /a/* 403"), format!("deny all {path} internal=on"));
    assert_eq!(deny("rewrite /b /a/c\n error /a/* 403"), format!("deny all {path}"));
    assert_eq!(deny("handle /a* {\n rewrite /a/b /a/c\n}\n error /a/* 403"), format!("deny all {path}"));
    for name in ["error", "respond"] {
        assert_eq!(deny(&format!("try_files {{path}} /a/c\n {name} /a/* 404")), format!("deny all {path} status=404"));
    }
}

/// A handler for paths that begin with an underscore was tried before those of earlier blocks.
#[test]
fn underscores_change_no_order() {
    let text = "@a header X-A b\nhandle @a {\n respond closed\n}\nhandle /_next/* {\n respond open\n}";
    let (found, _) = translated(&format!("a.de {{\n{text}\n}}"));
    let (first, second) = (found.find("\"closed\""), found.find("\"open\""));
    assert!(first.is_some() && first < second, "{found}");
}

/// Issue 23: a rewrite to a path of another block got that block's root, handler and password.
#[test]
fn rewrites_stay_in_their_block() {
    check(
        "handle /1/* {\n rewrite * /2\n respond a\n}\nrespond /2 403",
        "internal \"/_1/*\"\nrewrite \"/1/*\" \"/_1/2\"\nrespond \"/_1/*\" 200 \"a\"\nrespond \"/1/*\" 404\n\
         respond \"~(?i)^/2$\" 403\nrespond \"*\" 200",
    );
    check(
        "handle /1/* {\n respond a\n}\nhandle {\n rewrite * /1/2\n reverse_proxy a:80\n}",
        "internal \"/_1/*\"\nrewrite \"*\" \"/_1/1/2\" when=\"not (path starts-with '/1/')\"\nforward \"http://a:80\" \
         path=\"/_1/*\" {\nstrip-prefix \"/_1\"\n}\nrespond \"/1/*\" 200 \"a\"",
    );
    let (found, _) = translated("a.de {\n handle /1/* {\n  @p method POST\n  rewrite @p /2\n  respond a\n }\n}");
    assert!(found.contains("deny all path=\"~(?i)^/1/\""), "{found}");
    let (found, _) = translated("a.de {\n handle_path /1/* {\n  @p not path /2\n  respond @p 403\n }\n}");
    assert!(found.contains("deny all path=\"~(?i)^/1/\""), "{found}");
}

/// Issue 23: a matcher did not restrict the paths whose prefix is removed.
#[test]
fn prefixes_of_some_paths_are_removed() {
    let check = |line: &str, expect: &str| check(line, &format!("{expect}\nrespond \"*\" 200"));
    check("uri strip_prefix /1", "rewrite \"~(?i)^/1(?:/(.*))?$\" \"/{1}\"");
    check("uri /1/2/* strip_prefix /1", "rewrite \"~(?i)^/1/(2/.*)$\" \"/{1}\"");
    check("uri /1/2 strip_prefix /1", "rewrite \"~(?i)^/1/?(2)$\" \"/{1}\"");
    check("uri /1* strip_prefix /1/2", "rewrite \"~(?i)^/1/2(?:/(.*))?$\" \"/{1}\"");
    check("uri /12/* strip_prefix /1", "deny all path=\"~(?i)^/12/\"");
}

/// Issue 23: a block without a handler leaves requests to those that follow, but to no other `handle`.
#[test]
fn blocks_without_handlers_leave_requests_to_others() {
    check(
        "handle /1/* {\n header X-A b\n}\nhandle {\n respond 403\n}\nrespond /1/2 a\nreverse_proxy a:80",
        "response-header \"/1/*\" \"X-A\" \"b\"\nrespond \"*\" 403 when=\"not (path starts-with '/1/')\"\nrespond \"/1/2\" 200 \
         \"a\"\nforward \"http://a:80\"",
    );
    check(
        "handle /1/* {\n header X-A b\n}",
        "response-header \"/1/*\" \"X-A\" \"b\"\nrespond \"/1/*\" 200\nrespond \"*\" 200",
    );
    check("handle {\n header X-A b\n}\nrespond a", "response-header \"X-A\" \"b\"\nrespond \"*\" 200 \"a\"");
    check("route {\n root * /srv\n}\nfile_server", "root \"/srv\"\nindex \"index.html\" \"index.txt\"");
    let (found, _) =
        translated("a.de {\n handle @x {\n header A b\n }\n @x query a\n handle {\n respond 403\n }\n file_server\n}");
    assert!(
        found.contains("respond \"*\" 403 when=\"query matches") && found.contains("respond \"*\" 403\n"),
        "{found}"
    );
    let (found, remarks) = translated("a.de {\n handle /1/* {\n  root * /srv\n }\n file_server\n}");
    assert!(found.contains("respond \"/1/*\" 403") && remarks[0].contains("another path or root"), "{found}");
}

/// Issue 23: a star of Caddy is one label of a host, and one of ours any number of them.
#[test]
fn stars_are_one_label() {
    let (found, _) = translated("*.a.de, b.de {\n respond a\n}");
    assert!(found.contains(r"(host matches '.\..+\.a\.de$') and host not in ('b.de')"), "{found}");
}

/// Issue 23: `try_files` has no matcher, and files before the path itself are not tried.
#[test]
fn first_files_are_not_passed_over() {
    let (found, _) = translated("a.de {\n try_files /closed.html {path}\n file_server\n}");
    assert!(found.contains("deny all\n"), "{found}");
}

/// Issue 23: a redirect after a password told its target to clients without one.
#[test]
fn redirects_wait_for_passwords() {
    let auth = "basic_auth {\n anna $2a$14$x\n}";
    check(
        &format!("{auth}\nhandle /1/* {{\n redir https://b.example{{uri}}\n}}\nrespond a"),
        "basic-auth \"*\" \"users.htpasswd\" realm=\"restricted\"\nresponse-header \"/1/*\" \"Location\" \
         \"https://b.example{path}{query}\" when=\"status == 302\"\nrespond \"/1/*\" 302\nrespond \"*\" 200 \"a\"",
    );
    check(
        &format!("{auth}\nredir /1 /2\nrespond a"),
        "basic-auth \"*\" \"users.htpasswd\" realm=\"restricted\"\nredirect \"/1\" \"/2\" status=302\nrespond \"*\" 200 \
         \"a\"",
    );
}

/// Issue 23: the root of some paths was that of other paths after a rewrite, in blocks and for scripts.
#[test]
fn roots_are_of_their_paths() {
    let files = |path: &str, root: &str, strip: &str| {
        format!(
            "files \"{path}\" root=\"{root}\" {{\nindex \"index.html\" \"index.txt\"{strip}\n}}\nrespond \"{path}\" 404"
        )
    };
    let empty = "respond \"*\" 200";
    let roots = "root * /a\nroot /1/* /b";
    check(
        &format!("{roots}\nhandle_path /1/* {{\n file_server\n}}"),
        &format!("{}\n{empty}", files("/1/*", "/b", "\nstrip-prefix \"/1\"")),
    );
    check(&format!("{roots}\nfile_server /2/*"), &format!("{}\n{empty}", files("/2/*", "/a", "")));
    check(
        &format!("{roots}\nhandle /1/* {{\n root * /c\n file_server\n}}"),
        &format!("{}\n{empty}", files("/1/*", "/c", "")),
    );
    check("root * /b\nroot * /a\nfile_server", "root \"/a\"\nindex \"index.html\" \"index.txt\"");
    check(&format!("route {{\n{roots}\nfile_server\n}}"), "root \"/a\"\nindex \"index.html\" \"index.txt\"");
    let (found, _) = translated(&format!("a.de {{\n{roots}\nrewrite /2 /1/3\nfile_server\n}}"));
    assert!(found.contains("deny all path=\"~(?i)^/2$\""), "{found}");
    let (found, _) = translated(&format!("a.de {{\n{roots}\nphp_fastcgi a:1\nfile_server\n}}"));
    assert!(found.contains("deny all path=\"~(?i)^/1/\""), "{found}");
}

/// Issue 23: the last file of `try_files` may be out of its block.
#[test]
fn last_files_are_rejected_out_of_their_block() {
    let text = "a.de {\n handle /1/* {\n  try_files {path} /2/3\n  respond /2/* 403\n  file_server\n }\n}";
    let (found, remarks) = translated(text);
    assert!(found.contains("deny all path=\"~(?i)^/1/\"") && remarks[0].contains("out of their block"), "{found}");
    check("root * /a\ntry_files {path} =404\nfile_server", "root \"/a\"\nindex");
    check("try_files {path} =404", "respond \"*\" 404");
}

/// Issue 23: the option `order` was said to be needless, also for directives that are translated.
#[test]
fn directives_apply_in_the_order_of_the_option() {
    let order = |line: &str| {
        let text =
            format!("{{\n {line}\n}}\na.de {{\n redir /1 /2\n handle /1/* {{\n  respond b\n }}\n respond /1/2 a\n}}");
        let (found, _) = translated(&text);
        found.lines().filter_map(|line| line.trim().strip_prefix("respond ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let usual = ["\"/1/*\" 200 \"b\"", "\"/1/2\" 200 \"a\"", "\"*\" 200"];
    let moved = ["\"/1/2\" 200 \"a\"", "\"/1/*\" 200 \"b\"", "\"*\" 200"];
    assert_eq!(order("order wonder first"), usual);
    assert_eq!(order("order respond last"), usual);
    for line in ["respond first", "respond before handle", "handle_path after respond", "respond after basic_auth"] {
        assert_eq!(order(&format!("order {line}")), moved, "{line}");
    }
    let (found, _) =
        translated("a.de {\n intercept {\n  @x status 200\n  handle_response @x {\n   respond 403\n  }\n }\n}");
    assert!(found.contains("deny all\n"), "{found}");
}

/// Issue 23: the configuration had errors, because a host was named twice, or a page had no root.
#[test]
fn translations_have_no_errors() {
    let text =
        "http://*.a.de {\n @b host b.a.de c.a.de\n handle @b {\n  respond b\n }\n}\nhttp://b.a.de {\n respond own\n}";
    let (found, _) = translated(text);
    assert_eq!((found.matches("\"b.a.de\"").count(), found.matches("\"c.a.de\"").count()), (1, 1), "{found}");
    check(
        "root * /a\nhandle_errors 404 {\n rewrite * /b.html\n file_server\n}\nrespond 404",
        "respond \"*\" 404\nerror-page 404 \"file:/a/b.html\"",
    );
}

/// Issue 23: each import with passwords warned of a file that it wrote itself.
#[test]
fn files_that_are_written_are_not_missed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("Caddyfile");
    std::fs::write(&file, "http://a.example {\n basic_auth {\n  anna $2a$14$x\n }\n respond ok\n}\n").unwrap();
    let imported = crate::from_caddy(&file).unwrap();
    let said: Vec<&str> = imported.diagnostics.iter().map(|one| one.message.as_str()).collect();
    assert_eq!((said, imported.absent, imported.files.len()), (Vec::new(), Vec::new(), 1));
}

/// Found by random files: the suffix of a path was dropped.
#[test]
fn paths_may_get_longer() {
    check("rewrite /1/* {path}/2\nreverse_proxy a:80", "rewrite \"/1/*\" \"{path}/2\"\nforward \"http://a:80\"");
    check("rewrite {uri}\nreverse_proxy a:80", "forward \"http://a:80\"");
}

/// Found by random files: Caddy joins directives in a row that have one matcher, and tries it once.
#[test]
fn directives_in_a_row_share_a_matcher() {
    check(
        "uri /1/* strip_prefix /1\nrespond /1/* 403\nreverse_proxy a:80",
        "respond \"~(?i)^/1/\" 403\nforward \"http://a:80\"",
    );
    // A rewrite is joined with no others than rewrites.
    check(
        "rewrite /1/* /2\nrespond /1/* 403\nreverse_proxy a:80",
        "rewrite \"/1/*\" \"/2\"\nrespond \"~(?i)^/1/\" 403\nforward \"http://a:80\"",
    );
    check(
        "rewrite /1 /2\nbasic_auth /1 {\n anna $2a$14$x\n}\nreverse_proxy a:80",
        "basic-auth \"~(?i)^/1$\" \"users.htpasswd\" realm=\"restricted\"\nrewrite \"/1\" \"/2\"\nforward \"http://a:80\"",
    );
    // Of several rewrites of one matcher, the last counts; of others, the first that matches.
    check("rewrite /1 /2\nrewrite /1 /3\nreverse_proxy a:80", "rewrite \"/1\" \"/3\"\nforward \"http://a:80\"");
    check("rewrite * /2\nrewrite /3\nreverse_proxy a:80", "rewrite \"*\" \"/3\"\nforward \"http://a:80\"");
    check(
        "rewrite /1/* /2\nrewrite /1/2/* /3\nreverse_proxy a:80",
        "rewrite \"/1/2/*\" \"/3\"\nrewrite \"/1/*\" \"/2\"\nforward \"http://a:80\"",
    );
    let (found, _) = translated("a.de {\n uri /1 strip_prefix /1\n uri /1 replace 2 3\n file_server\n}");
    assert!(found.contains("deny all path=\"~(?i)^/1$\""), "{found}");
}

/// Found by random files: only the first of several rewrites was applied.
#[test]
fn rewrites_follow_rewrites() {
    check(
        "rewrite /1 /2?a=b\nhandle /2 {\n rewrite * /3\n reverse_proxy a:80\n}\nrespond 404",
        "internal \"/_1/*\"\nrewrite \"/1\" \"/_1/3?a=b\"\nrewrite \"/1\" \"/2?a=b\"\nrewrite \"/2\" \"/_1/3\"\nforward \
         \"http://a:80\" path=\"/_1/*\" {\nstrip-prefix \"/_1\"\n}\nrespond \"/2\" 404\nrespond \"*\" 404",
    );
    check(
        "rewrite ?a=b\nhandle /1/* {\n redir * /2{path}\n}\nreverse_proxy a:80",
        "redirect \"/1/*\" \"/2{path}?a=b\" status=302\nrewrite \"*\" \"{path}?a=b\"\nredirect \"/1/*\" \"/2{path}\" \
         status=302\nforward \"http://a:80\"",
    );
    let deny = |text: &str| {
        let (found, _) = translated(&format!("a.de {{\n{text}\n file_server\n}}"));
        found.lines().map(str::trim).filter(|line| line.starts_with("deny")).collect::<Vec<_>>().join("|")
    };
    assert_eq!(deny("rewrite /1/* /2{path}\nhandle /2/1/1 {\n redir * /3\n}"), "deny all path=\"~(?i)^/1/\"");
    assert_eq!(deny("rewrite /1/* /2{path}\nuri strip_prefix /2"), "deny all path=\"~(?i)^/1/\"");
    assert_eq!(deny("rewrite /1/* /2{path}\nuri strip_prefix /3"), "");
    // A condition on the path would be that of the new one.
    assert_eq!(deny("@x not path /2/*\nhandle @x {\n rewrite * /2/3\n file_server\n}\nabort"), "");
}

/// Found by random files: handlers got paths that have another one after `try_files`.
#[test]
fn files_are_tried_before_handlers() {
    let deny = |text: &str| {
        let (found, _) = translated(&format!("a.de {{\n root * /a\n{text}\n}}"));
        found.lines().map(str::trim).filter(|line| line.starts_with("deny")).collect::<Vec<_>>().join("|")
    };
    assert_eq!(deny("try_files {path} /1\nreverse_proxy a:80"), "deny all");
    assert_eq!(
        deny("try_files {path} =404\nhandle /2/* {\n reverse_proxy a:80\n}\nfile_server"),
        "deny all path=\"~(?i)^/2/\""
    );
    assert_eq!(deny("try_files {path} /1\nrespond /2/* 403\nfile_server"), "deny all path=\"~(?i)^/2/\"");
    assert_eq!(
        deny("try_files {path} {path}.html\nrespond /2.html 403\nfile_server"),
        "deny all path=#\"~(?i)^/2\\.html$\"#"
    );
    assert_eq!(deny("try_files {path} /1\ntry_files {path} /2\nfile_server"), "deny all");
    assert_eq!(deny("try_files {path}\nreverse_proxy a:80"), "");
}

/// Found by random files: the front controller of some paths was that of the whole site.
#[test]
fn front_controllers_are_of_their_paths() {
    check(
        "root * /a\nhandle /1/* {\n php_fastcgi a:1\n file_server\n}\nrespond 404",
        "internal \"/1/_1/*\"\nfastcgi \"/1/_1/index.php\" \"tcp://a:1\" root=\"/a\" {\nindex\nstrip-prefix \"/1/_1\"\n}\n\
         respond \"/1/_1/*\" 404\nfastcgi #\"~(?i)^/1/.*\\.php$\"# \"tcp://a:1\" root=\"/a\" {\nindex\n}\nfiles \"/1/*\" \
         root=\"/a\" {\nindex \"index.php\" \"index.html\" \"index.txt\"\nfallback \"/1/_1/index.php\"\n}\nrespond \"/1/*\" \
         404\nrespond \"*\" 404",
    );
    // Files of some paths are not those of the site.
    let (found, _) = translated("a.de {\n root * /a\n php_fastcgi a:1\n file_server /1/*\n}");
    assert!(!found.contains("    root \"/a\"") && found.contains("files \"/1/*\" root=\"/a\""), "{found}");
    check("root * /a\nphp_fastcgi a:1", "fastcgi \"*.php\" \"tcp://a:1\" root=\"/a\" {\nfallback \"/index.php\"\n}");
    check(
        "root * /a\ntry_files {path} =404\nphp_fastcgi a:1\nfile_server",
        "root \"/a\"\nindex\nfastcgi \"*.php\" \"tcp://a:1\" {\nindex\npath-info off\n}",
    );
}

/// Found by random files: paths of the Caddyfile were those that only rewrites of a translation have.
#[test]
fn own_paths_are_of_no_others() {
    let (found, _) = translated("a.de {\n handle /1/* {\n  rewrite * /2\n  respond a\n }\n respond /_7/* b\n}");
    assert!(found.contains("internal \"/_8/*\""), "{found}");
}

/// Found by random files: `root` with another matcher replaced the one before.
#[test]
fn roots_of_other_matchers_follow_in_vain() {
    check("@x not host b.com\nroot * /a\nroot @x /b\nfile_server", "root \"/b\"\nindex \"index.html\" \"index.txt\"");
}

/// Found by random files: the configuration had an error.
#[test]
fn fields_of_the_connection_are_not_changed() {
    let (found, _) = translated("a.de {\n request_header Host b\n reverse_proxy a:80\n}");
    assert!(found.contains("deny all\n") && !found.contains("request-header"), "{found}");
}

/// Found by random files: a directory without an index had the last file of `try_files`, and `hide` was for all requests.
#[test]
fn directories_and_hidden_files_are_closed() {
    check(
        "root * /a\ntry_files {path} {path}/ /b.html\nfile_server",
        "root \"/a\"\nrequire-index\nindex \"index.html\" \"index.txt\"\nfallback \"/b.html\"",
    );
    let (found, _) = translated("a.de {\n @x query a\n file_server @x {\n  hide b\n }\n}");
    assert!(found.contains("deny all path=\"~/b(?:/|$)\" status=404 when=\"query matches"), "{found}");
}

/// Found by random files: files of some requests had `browse` and the fallback of the site.
#[test]
fn options_of_files_are_not_those_of_the_site() {
    let (found, _) = translated("a.de {\n root * /a\n @x query a\n file_server @x\n file_server browse\n}");
    assert!(found.contains("        browse off\n") && found.contains("    browse\n"), "{found}");
    check("root * /a\ntry_files {path} /b\nfile_server browse", "root \"/a\"\nindex\nfallback \"/b\"");
}

/// Found by random files: a rejection that comes after a redirect had its requests.
#[test]
fn redirects_come_before_rejections() {
    let deny = |text: &str| {
        let (found, _) = translated(&format!("a.de {{\n{text}\n file_server\n}}"));
        found.lines().map(str::trim).filter(|line| line.starts_with("deny")).collect::<Vec<_>>().join("|")
    };
    let text = "redir /1/2 /3\n error /1/* 403";
    assert_eq!(deny(text), "deny all path=\"~(?i)^/1/\" internal=on when=\"not (path == '/1/2')\"");
    // A rewrite may lead to the path of the redirect.
    assert_eq!(deny(&format!("{text}\n rewrite /4 /1/2")), "deny all path=\"~(?i)^/1/\"");
}

/// Found by random files: a site without handlers had only rewrites, which is an error.
#[test]
fn sites_have_something_to_serve() {
    let (found, _) =
        translated("a.de {\n rewrite /1 /2\n handle {\n  @x file\n  handle @x {\n   error 403\n  }\n }\n}");
    assert!(found.contains("respond "), "{found}");
}

/// Found by random files: rejections hold for paths before a rewrite, without a note.
#[test]
fn rejections_before_rewrites_are_noted() {
    let notes = |text: &str| translated(&format!("a.de {{\n{text}\n file_server\n}}")).1.len();
    let auth = "basic_auth /1/* {\n anna $2a$14$x\n}";
    assert_eq!(notes(&format!("rewrite /1/2 /3\n{auth}")), 1);
    assert_eq!(notes(&format!("rewrite /1/2 /1/3\n{auth}")), 0);
    assert_eq!(notes(&format!("rewrite /2 /1/3\n{auth}")), 0);
    assert_eq!(notes("rewrite /1/2 /3\n@x not path /4\nrespond @x 403"), 1);
}

/// Found by random files: `handle_path` with one path was rejected.
#[test]
fn one_path_is_removed_as_a_whole() {
    check(
        "handle_path /1 {\n reverse_proxy a:80\n}\nrespond 404",
        "internal \"/_1/*\"\nrewrite \"/1\" \"/_1/\"\nforward \"http://a:80\" path=\"/_1/*\" {\nstrip-prefix \"/_1\"\n}\n\
         respond \"/1\" 404\nrespond \"*\" 404",
    );
}

/// Maps of Caddy, whose placeholders are used in fields, targets and expressions.
#[test]
fn maps_are_maps() {
    let map = "map {path} {one} {two} {\n  /1 a b\n  ~^/2 c d\n  default e f\n }";
    let (found, remarks) = translated(&format!(
        "a.de {{\n {map}\n header X-A {{one}}\n redir /3 /{{two}}/4\n @x `{{two}} == 'd'`\n respond @x 403\n respond ok\n}}"
    ));
    for line in [
        "map \"one\" \"{path}\" {\n    case \"/1\" \"a\"\n    case \"~^/2\" \"c\"\n    default \"e\"\n}",
        "response-header \"X-A\" \"{map.one}\"",
        "redirect \"/3\" \"/{map.two}/4\" status=302",
        "deny all when=\"map.two == 'd'",
    ] {
        assert!(found.contains(line), "{line}\n{found}");
    }
    assert_eq!(remarks, Vec::<String>::new());
    // Equal maps are one, others have a name of their own.
    let (found, _) =
        translated("a.de {\n map {path} {m} {\n /1 a\n }\n}\nb.de {\n map {path} {m} {\n /1 b\n }\n header A {m}\n}");
    assert!(found.contains("map \"m-2\"") && found.contains("{map.m-2}"), "{found}");
    for lines in ["/1 {host}", "~^/(.) $1", "/* a", "/1 -", "~^/1 a\n /12 b"] {
        let (found, remarks) = translated(&format!(
            "a.de {{\n map {{path}} {{m}} {{\n {lines}\n }}\n @x `{{m}} == 'a'`\n respond @x 403\n}}"
        ));
        assert!(
            !found.contains("map \"m\"") && found.contains("deny all\n") && remarks.len() == 2,
            "{found}\n{remarks:?}"
        );
    }
}
