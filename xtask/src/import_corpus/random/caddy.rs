//! Random Caddyfiles: sites with nested blocks, matchers of all kinds, and snippets.

use fastrand::Rng;

use super::{Configuration, Grammar};

pub(super) const GRAMMAR: Grammar = Grammar { name: "caddy", write };

/// Paths of matchers. The frame has files for most of them.
const PATHS: [&str; 32] = [
    "/a.txt",
    "/a.txt",
    "/admin/*",
    "/admin/*",
    "/admin/d.txt",
    "/admin",
    "/admin*",
    "/Admin/*",
    "/sub/*",
    "/sub/*",
    "/sub",
    "/sub/",
    "/sub*",
    "/sub/b.txt",
    "/api/*",
    "/api/v1/*",
    "/docs/*",
    "/docs/*/a.txt",
    "*.txt",
    "*.html",
    "*.php",
    "*/d.txt",
    "*admin*",
    "/page.html",
    "/page",
    "/",
    "/*",
    "/empty/*",
    "/uploads/*",
    "/config/*",
    "/_1/*",
    "/missing/*",
];

const EXPRESSIONS: [&str; 9] = [
    "^/admin/",
    "^/sub/(.*)$",
    "^/(a|page)\\.(txt|html)$",
    "\\.(txt|css)$",
    "(?i)^/ADMIN/",
    "/d\\.",
    "^/([a-z]+)/([a-z]+)\\.txt$",
    "admin|config",
    "^/api/v([0-9]+)/",
];

/// Conditions of `expression`.
const CONDITIONS: [&str; 16] = [
    "path('/admin/*')",
    "path('/sub/*', '*.txt')",
    "!path('/admin/*')",
    "method('POST')",
    "method('GET') && path('/admin/*')",
    "path('/sub/*') || query({'v': '1'})",
    "{http.request.uri.path} == '/a.txt'",
    "{http.request.method} != 'GET'",
    "{path}.startsWith('/admin/')",
    "{query.v} == '1'",
    "header({'X-Stub': 'deny'})",
    "header({'Referer': ['https://other*', 'x']})",
    "host('two.example')",
    "{query.v} != '1'",
    "{http.request.cookie.session} != '1' || protocol('https')",
    "path_regexp('^/admin/') && !remote_ip('10.0.0.0/8')",
];

/// Places to which rewrites lead.
const TARGETS: [&str; 18] = [
    "/index.html",
    "/a.txt",
    "/admin/d.txt",
    "/sub/b.txt",
    "/missing.html",
    "/sub{uri}",
    "/admin{path}",
    "/api{uri}",
    "/index.php?{query}",
    "/index.html?from={path}",
    "{path}.html",
    "{path}/d.txt",
    "?from=here",
    "?{query}&from=here",
    "{uri}",
    "/_1/a.txt",
    "/docs",
    "/sub/",
];

const TRIES: [&str; 15] = [
    "{path} /index.html",
    "{path} /index.html",
    "{path} {path}/ /index.html",
    "{path} {path}/ /index.php?{query}",
    "{path} {path}.html",
    "{path} {path}.html /index.html",
    "{path}.html {path}",
    "{path} =404",
    "{path} {path}/ =404",
    "{path} =403",
    "{path} {path}/index.html /a.txt",
    "{path} /admin/d.txt",
    "{path} /missing.html",
    "/sub{path} {path}",
    "{path} {path}/index.php index.php",
];

const ADDRESSES: [&str; 10] = [
    "http://one.example",
    "http://one.example",
    "http://one.example",
    "http://one.example, http://two.example",
    "http://*.wild.example",
    "http://one.example/sub*",
    "http://one.example:8080",
    ":8081",
    ":80",
    "http://two.example http://*.two.example",
];

const ROOTS: [&str; 4] = ["/srv/one", "/srv/one", "/srv/two", "/srv/three"];

/// A password of `anna`: `secret`.
const USER: &str = "anna $2y$04$PY4sWnFxVWn9ARTQvwJ7q.vHltkCHyXs1/xM6WDEVhmLCjFVfv8fO";

/// Snippets that sites import, with the arguments that they get.
const SNIPPETS: [(&str, &[&str], &[&str]); 4] = [
    ("marked", &["header X-Snippet {args[0]}"], &["one", "two"]),
    ("closed", &["respond {args[0]} 403"], &["/admin/*", "/config/*", "*.txt"]),
    (
        "files",
        &["handle_path {args[0]}/* {", "\troot * {args[1]}", "\tfile_server", "}"],
        &["/docs /srv/two", "/sub /srv/one", "/admin /srv/three"],
    ),
    (
        "guarded",
        &["@guarded {", "\tpath {args[:]}", "\tnot remote_ip 10.0.0.0/8", "}", "error @guarded 403"],
        &["/admin/*", "/uploads/* /config/*"],
    ),
];

/// Routes that sites invoke.
const ROUTES: [&str; 2] = ["first", "second"];

/// Depth to which blocks are nested.
const DEPTH_MAX: usize = 3;

/// Writes a directive.
type Rule = fn(&mut CaddyWriter);

/// Directives and how often they occur.
const RULES: [(usize, Rule); 26] = [
    (6, CaddyWriter::respond),
    (3, CaddyWriter::error),
    (1, |writer| writer.matched("abort", "")),
    (4, CaddyWriter::redirect),
    (6, CaddyWriter::rewrite),
    (4, CaddyWriter::uri),
    (3, CaddyWriter::try_files),
    (4, CaddyWriter::password),
    (2, CaddyWriter::forward_auth),
    (4, CaddyWriter::header),
    (1, CaddyWriter::request_header),
    (8, |writer| writer.handle("handle")),
    (4, |writer| writer.handle("handle_path")),
    (5, |writer| writer.handle("route")),
    (4, CaddyWriter::reverse_proxy),
    (2, CaddyWriter::php),
    (4, CaddyWriter::file_server),
    (3, CaddyWriter::root),
    (2, CaddyWriter::map),
    (1, |writer| writer.line("encode gzip")),
    (1, |writer| writer.matched("request_body", "max_size 1MB")),
    (1, |writer| writer.matched("method", "GET")),
    (4, CaddyWriter::import),
    (2, CaddyWriter::invoke),
    (1, CaddyWriter::vars),
    (1, CaddyWriter::intercept),
];

fn write(random: Rng) -> Configuration {
    let mut writer =
        CaddyWriter { random, text: String::new(), depth: 0, blocks: 0, matchers: 0, has_expression: false };
    if writer.is_one_of(12) {
        let order = writer.one(&["respond before handle", "error first", "try_files after basic_auth"]);
        writer.block("{", |writer| writer.line(&format!("order {order}")));
    }
    for (name, lines, _) in SNIPPETS {
        writer.block(&format!("({name}) {{"), |writer| lines.iter().for_each(|line| writer.line(line)));
    }
    for name in ROUTES {
        writer.block(&format!("&({name}) {{"), |writer| {
            writer.blocks = DEPTH_MAX - 1;
            for _ in 0..writer.random.usize(1..4) {
                writer.named_rule();
            }
            writer.blocks = 0;
        });
    }
    if writer.is_one_of(8) {
        let path = writer.one(&["/admin/*", "/sub", "/api*", "*.txt"]);
        let address =
            if path.starts_with('/') { format!("http://one.example{path}") } else { "http://three.example".to_owned() };
        writer.block(&format!("{address} {{"), |writer| {
            writer.line("root * /srv/two");
            writer.rule();
            writer.last();
        });
    }
    writer.site();
    Configuration { name: "Caddyfile", text: writer.text, files: Vec::new() }
}

/// Text of a configuration so far.
struct CaddyWriter {
    random: Rng,
    text: String,
    /// Indentation.
    depth: usize,
    /// Nesting of `handle` and `route`.
    blocks: usize,
    /// Named matchers so far.
    matchers: usize,
    /// True if the matcher has an expression, of which it may have one.
    has_expression: bool,
}

impl CaddyWriter {
    fn line(&mut self, line: &str) {
        self.text.push_str(&"\t".repeat(self.depth));
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// A block whose first line ends with a brace.
    fn block(&mut self, first: &str, inside: impl FnOnce(&mut Self)) {
        self.line(first);
        self.depth += 1;
        inside(self);
        self.depth -= 1;
        self.line("}");
    }

    fn one<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.random.usize(..list.len())]
    }

    /// Returns `true` in one of some cases.
    fn is_one_of(&mut self, cases: usize) -> bool {
        self.random.usize(..cases) == 0
    }

    fn site(&mut self) {
        let address = self.one(&ADDRESSES);
        self.block(&format!("{address} {{"), |writer| {
            let root = writer.one(&ROOTS);
            writer.line(&format!("root * {root}"));
            for _ in 0..writer.random.usize(2..7) {
                writer.rule();
            }
            if !writer.is_one_of(6) {
                writer.last();
            }
            if writer.is_one_of(5) {
                writer.error_page();
            }
        });
    }

    fn rule(&mut self) {
        let all: usize = RULES.iter().map(|(weight, _)| weight).sum();
        let mut at = self.random.usize(..all);
        for (weight, rule) in RULES {
            if at < weight {
                return rule(self);
            }
            at -= weight;
        }
    }

    /// A handler for all requests.
    fn last(&mut self) {
        let line = self.one(&[
            "file_server",
            "file_server",
            "file_server",
            "file_server browse",
            "reverse_proxy 127.0.0.1:3001",
            "reverse_proxy 127.0.0.1:3002",
            "respond \"end\"",
            "php_fastcgi 127.0.0.1:9000",
        ]);
        self.line(line);
    }

    /// A directive with a matcher.
    fn matched(&mut self, name: &str, rest: &str) {
        let matcher = self.matcher();
        self.line(&format!("{name} {matcher}{rest}"));
    }

    /// A matcher with a space after it, or nothing. The lines of a named one are written before.
    fn matcher(&mut self) -> String {
        match self.random.usize(..10) {
            0 => String::new(),
            1 => "* ".to_owned(),
            2..=5 => {
                let mut path = self.one(&PATHS);
                while !path.starts_with('/') {
                    path = self.one(&PATHS);
                }
                format!("{path} ")
            }
            _ => format!("@{} ", self.named()),
        }
    }

    /// A matcher for a directive whose first argument may look like one.
    fn total_matcher(&mut self) -> String {
        let matcher = self.matcher();
        if matcher.is_empty() { "* ".to_owned() } else { matcher }
    }

    fn next_name(&mut self) -> String {
        self.matchers += 1;
        format!("m{}", self.matchers)
    }

    fn named(&mut self) -> String {
        let name = self.next_name();
        self.has_expression = false;
        match self.random.usize(..8) {
            0 => {
                let condition = self.one(&CONDITIONS);
                self.line(&format!("@{name} `{condition}`"));
            }
            1 | 2 => self.block(&format!("@{name} {{"), |writer| {
                for _ in 0..writer.random.usize(1..4) {
                    writer.part(0);
                }
            }),
            3 => self.block(&format!("@{name} not {{"), |writer| {
                for _ in 0..writer.random.usize(1..3) {
                    writer.part(1);
                }
            }),
            _ => {
                let part = self.part_text();
                let not = if self.is_one_of(4) { "not " } else { "" };
                self.line(&format!("@{name} {not}{part}"));
            }
        }
        name
    }

    /// A part of a named matcher on its own line.
    fn part(&mut self, depth: usize) {
        if depth < 2 && self.is_one_of(6) {
            return self.block("not {", |writer| {
                for _ in 0..writer.random.usize(1..3) {
                    writer.part(depth + 1);
                }
            });
        }
        let part = self.part_text();
        let not = if self.is_one_of(6) { "not " } else { "" };
        self.line(&format!("{not}{part}"));
    }

    fn part_text(&mut self) -> String {
        let (path, other) = (self.one(&PATHS), self.one(&PATHS));
        let expression = self.one(&EXPRESSIONS);
        let text = match self.random.usize(..14) {
            0..=2 => return format!("path {path}"),
            3 => return format!("path {path} {other}"),
            4 | 5 if !std::mem::replace(&mut self.has_expression, true) => return format!("path_regexp {expression}"),
            4 | 5 => return format!("path {path}"),
            6 => self.one(&["method POST", "method GET HEAD", "method POST DELETE"]),
            7 => self.one(&[
                "header X-Stub deny",
                "header Cookie *session*",
                "header User-Agent badbot*",
                "header !Cookie",
                "header X-Stub *",
                "header Referer https://other*",
            ]),
            8 => self.one(&["header_regexp User-Agent ^bad", "header_regexp Referer other"]),
            9 => self.one(&["query v=1", "query x=*", "query x=1 y=2", "query v=1 v=2", "query v=*"]),
            10 => self.one(&["host one.example", "host two.example other.example", "host *.wild.example"]),
            11 => self.one(&["remote_ip 127.0.0.1", "remote_ip 10.0.0.0/8", "client_ip private_ranges"]),
            12 => self.one(&["protocol http", "protocol https", "file", "file {path}.html"]),
            _ => return format!("expression `{}`", self.one(&CONDITIONS)),
        };
        text.to_owned()
    }

    fn respond(&mut self) {
        let what = self.one(&["403", "403", "404", "401", "\"closed\" 403", "200", "\"here\"", "\"here\" 201", "204"]);
        if self.is_one_of(10) {
            let matcher = self.matcher();
            return self.block(&format!("respond {matcher}403 {{"), |writer| writer.line("body closed"));
        }
        self.matched("respond", what);
    }

    fn error(&mut self) {
        let what = self.one(&["403", "404", "\"no\" 403", "500"]);
        self.matched("error", what);
    }

    fn redirect(&mut self) {
        let matcher = self.total_matcher();
        let target = self.one(&[
            "/sub/b.txt",
            "/sub/",
            "https://other.example{uri}",
            "https://{host}{uri}",
            "/page.html?to={uri}",
            "/docs{path}",
            "{path}/",
        ]);
        let status = self.one(&["", "", "permanent", "temporary", "303", "307", "308"]);
        self.line(&format!("redir {matcher}{target} {status}"));
    }

    fn rewrite(&mut self) {
        if self.is_one_of(6) {
            let name = self.next_name();
            let (expression, target) = self.one(&[
                ("^/sub/(.*)$", "/{re.1}"),
                ("^/docs/(.*)$", "/sub/{re.NAME.1}"),
                ("^/(.*)/d\\.txt$", "/sub/b.txt?from={re.1}"),
                ("^/api/v([0-9]+)/(.*)$", "/{re.2}?version={re.1}"),
            ]);
            self.line(&format!("@{name} path_regexp {name} {expression}"));
            return self.line(&format!("rewrite @{name} {}", target.replace("NAME", &name)));
        }
        let count = if self.is_one_of(4) { 2 } else { 1 };
        for _ in 0..count {
            let matcher = self.total_matcher();
            let target = self.one(&TARGETS);
            self.line(&format!("rewrite {matcher}{target}"));
        }
    }

    fn uri(&mut self) {
        let operation = self.one(&[
            "strip_prefix /sub",
            "strip_prefix /admin",
            "strip_prefix /docs",
            "strip_suffix .html",
            "replace /sub/ /admin/",
            "replace admin sub",
            "path_regexp /+ /",
            "query +from here",
        ]);
        let matcher = self.total_matcher();
        self.line(&format!("uri {matcher}{operation}"));
    }

    fn try_files(&mut self) {
        let files = self.one(&TRIES);
        self.line(&format!("try_files {files}"));
    }

    fn password(&mut self) {
        let matcher = self.matcher();
        self.block(&format!("basic_auth {matcher}{{"), |writer| writer.line(USER));
    }

    fn forward_auth(&mut self) {
        let matcher = self.matcher();
        self.block(&format!("forward_auth {matcher}127.0.0.1:3007 {{"), |writer| {
            writer.line("uri /check");
            if writer.is_one_of(2) {
                writer.line("copy_headers Remote-User");
            }
        });
    }

    fn header(&mut self) {
        let matcher = self.matcher();
        if self.is_one_of(4) {
            return self.block(&format!("header {matcher}{{"), |writer| {
                writer.line("X-One one");
                writer.line("-X-Of-Stub");
            });
        }
        let field =
            self.one(&["X-One two", "+X-One three", "?X-One four", "-X-Of-Stub", ">X-Of-Stub five", "X-Path {path}"]);
        self.line(&format!("header {matcher}{field}"));
    }

    fn request_header(&mut self) {
        let field = self.one(&["X-Stub deny", "-X-Stub", "-Cookie"]);
        self.matched("request_header", field);
    }

    fn handle(&mut self, name: &str) {
        if self.blocks == DEPTH_MAX {
            return self.respond();
        }
        let matcher = match name {
            "handle_path" => format!(
                "{} ",
                self.one(&["/admin/*", "/sub/*", "/docs/*", "/api/*", "/sub/b.txt", "/a.txt", "/admin*"])
            ),
            _ => self.matcher(),
        };
        self.blocks += 1;
        self.block(&format!("{name} {matcher}{{"), |writer| {
            for _ in 0..writer.random.usize(0..4) {
                writer.rule();
            }
            if !writer.is_one_of(3) {
                writer.last();
            }
        });
        self.blocks -= 1;
    }

    fn reverse_proxy(&mut self) {
        let (matcher, port) = (self.matcher(), self.one(&["3001", "3002", "3003"]));
        let first = format!("reverse_proxy {matcher}127.0.0.1:{port}");
        let options = ["header_up X-Stub deny", "header_down X-Two two", "header_down -X-Of-Stub", "rewrite /sub{uri}"];
        self.line_with_option(&first, 4, &options);
    }

    /// Writes a directive. One of some cases has an option in a block.
    fn line_with_option(&mut self, first: &str, cases: usize, options: &[&str]) {
        if !self.is_one_of(cases) {
            return self.line(first);
        }
        let option = self.one(options);
        self.block(&format!("{first} {{"), |writer| writer.line(option));
    }

    fn php(&mut self) {
        let matcher = self.matcher();
        let first = format!("php_fastcgi {matcher}127.0.0.1:9000");
        let options =
            ["index off", "try_files {path} =404", "root /srv/two", "try_files {path} {path}/index.php /index.php"];
        self.line_with_option(&first, 3, &options);
    }

    fn file_server(&mut self) {
        let (matcher, browse) = (self.matcher(), self.one(&["", "", "browse"]));
        let first = format!("file_server {matcher}{browse}");
        if !self.is_one_of(3) {
            return self.line(&first);
        }
        let line = self.one(&["hide d.txt", "hide *.txt admin", "index a.txt", "pass_thru", "root /srv/two"]);
        self.block(&format!("{} {{", first.trim_end()), |writer| writer.line(line));
    }

    fn root(&mut self) {
        let (matcher, root) = (self.total_matcher(), self.one(&ROOTS));
        self.line(&format!("root {matcher}{root}"));
    }

    fn map(&mut self) {
        let (source, value) =
            self.one(&[("{path}", "/a.txt"), ("{query.v}", "1"), ("{host}", "one.example"), ("{path}", "~^/admin/")]);
        let name = self.next_name();
        self.block(&format!("map {source} {{{name}}} {{"), |writer| {
            writer.line(&format!("{value} found"));
            writer.line("default other");
        });
        let use_of_it = match self.random.usize(..3) {
            0 => format!("header X-Mapped {{{name}}}"),
            1 => format!("respond /docs/* {{{name}}}"),
            _ => {
                self.line(&format!("@{name} expression `{{{name}}} == 'found'`"));
                format!("respond @{name} 403")
            }
        };
        self.line(&use_of_it);
    }

    fn import(&mut self) {
        let (name, _, arguments) = self.one(&SNIPPETS);
        let is_block = name == "files";
        if is_block && self.blocks == DEPTH_MAX {
            return self.respond();
        }
        let arguments = self.one(arguments);
        self.line(&format!("import {name} {arguments}"));
    }

    /// A rule of a named route, which invokes no other.
    fn named_rule(&mut self) {
        match self.random.usize(..6) {
            0 => self.respond(),
            1 => self.header(),
            2 => self.password(),
            3 => self.rewrite(),
            4 => self.file_server(),
            _ => self.reverse_proxy(),
        }
    }

    fn invoke(&mut self) {
        let (matcher, name) = (self.matcher(), self.one(&ROUTES));
        self.line(&format!("invoke {matcher}{name}"));
    }

    fn vars(&mut self) {
        let (path, name) = (self.one(&["/admin/*", "/sub/*", "*"]), self.next_name());
        self.line(&format!("vars {path} role closed"));
        self.line(&format!("@{name} vars {{http.vars.role}} closed"));
        self.line(&format!("respond @{name} 403"));
    }

    fn intercept(&mut self) {
        let matcher = self.matcher();
        self.block(&format!("intercept {matcher}{{"), |writer| {
            let status = writer.one(&["404", "401 403", "5xx"]);
            writer.line(&format!("@s status {status}"));
            writer.block("handle_response @s {", |writer| writer.line("respond \"sorry\" 404"));
        });
    }

    fn error_page(&mut self) {
        let statuses = self.one(&["", "404 ", "403 404 ", "4xx "]);
        self.block(&format!("handle_errors {statuses}{{"), |writer| match writer.random.usize(..6) {
            0 | 1 => {
                if writer.is_one_of(3) {
                    writer.line("root * /srv/two");
                }
                writer.line("rewrite * /404.html");
                writer.line("file_server");
            }
            2 => {
                writer.line("@missing expression `{err.status_code} == 404`");
                writer.line("rewrite @missing /404.html");
                writer.line("file_server");
            }
            3 => writer.line("respond \"gone\" 410"),
            4 => writer.line("respond \"sorry\""),
            _ => writer.line("respond \"{err.status_code} {err.status_text}\""),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::check;
    use super::GRAMMAR;

    #[test]
    fn all_constructs_occur() {
        check(
            &GRAMMAR,
            &[
                "http://*.wild.example {",
                "root * /srv",
                "root @",
                "file_server browse",
                "file_server {",
                "hide d.txt",
                "pass_thru",
                "handle {",
                "handle @",
                "handle /",
                "handle_path /",
                "route {",
                "\t\t\t\tfile_server",
                "} {\n",
                "@m1 not {",
                "\tnot {",
                "\tnot path",
                "expression `",
                "path_regexp",
                "method POST",
                "header X-Stub",
                "header_regexp",
                "query v=1",
                "host one.example",
                "remote_ip 10.0.0.0/8",
                "client_ip private_ranges",
                "protocol https",
                "\tfile\n",
                "respond ",
                "error ",
                "abort",
                "redir ",
                "permanent",
                "rewrite * ",
                "{re.1}",
                "uri * strip_prefix",
                "try_files {path}",
                "basic_auth {",
                "basic_auth /",
                "basic_auth @",
                "forward_auth",
                "reverse_proxy ",
                "php_fastcgi",
                "index off",
                "handle_errors 404 {",
                "header {",
                "header ?X-One",
                "request_header",
                "import marked one",
                "import closed /admin/*",
                "import files /docs /srv/two",
                "import guarded /uploads/* /config/*",
                "map {path}",
                "order ",
                "\tinvoke ",
                "http://one.example/admin/* {",
                "vars ",
                "intercept ",
                "{path} =403",
                "host('two.example')",
                "@missing",
                "method ",
            ],
        );
    }
}
