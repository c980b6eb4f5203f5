//! Guards of paths in front of real back ends: no spelling of a guarded path may reach what it guards.

mod paths;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use conformance::escape;

use crate::frames::{self, END_HEADERS, END_STREAM, HEADERS, frame, literal};
use crate::raw::{Raw, count, pick};
use crate::smuggling::back_ends::build_go;
use crate::support::TestServer;
use crate::support::port::free_port;
use crate::support::real_server::{APACHE_BASE, RealServer, Recipe, is_installed};
use crate::trial::{Attack, AttackCase, Skipped, Trial};

pub(crate) const ATTACKS: [Attack; 6] = [
    Attack { name: "rules/apache", run: |trial| attack(trial, "apache") },
    Attack { name: "rules/nginx", run: |trial| attack(trial, "nginx") },
    Attack { name: "rules/node", run: |trial| attack(trial, "node") },
    Attack { name: "rules/go", run: |trial| attack(trial, "go") },
    Attack { name: "rules/php-fpm", run: |trial| attack(trial, "php-fpm") },
    Attack { name: "rules/files", run: |trial| attack(trial, "files") },
];

/// Content of each guarded resource.
const SECRET: &[u8] = b"TOP-SECRET";

/// Guarded resources, as the guards name them and as a client asks for them.
const GUARDED: [(&str, &str); 5] = [
    ("/admin/*", "/admin/panel.html"),
    ("/login.php", "/login.php"),
    ("/exact", "/exact"),
    ("*.pdf", "/deep/private.pdf"),
    ("/cgi-bin/status", "/cgi-bin/status"),
];

/// Regular expressions for the same resources.
const EXPRESSIONS: [&str; 5] = ["~^/admin/", "~^/login\\.php$", "~^/exact$", "~\\.pdf$", "~^/cgi-bin/status$"];

const FILES: [(&str, &str); 5] = [
    ("root/admin/panel.html", "TOP-SECRET"),
    ("root/exact", "TOP-SECRET"),
    ("root/deep/private.pdf", "TOP-SECRET"),
    ("root/public/page.html", "open"),
    ("root/index.html", "open"),
];

/// By `htpasswd -nbB -C 4 anna secret`.
const USERS: (&str, &str) = ("users", "anna:$2y$04$DiDPKk.3jQ0BKempAh9hluEEI1sUe4ymTdbxXFaDSLiiXtOrgRIaW\n");

const PHP: &str = "<?php echo 'TOP', '-SECRET ', $_SERVER['PATH_INFO'] ?? '';";

const CLIENTS: usize = 4;

const SILENCE: Duration = Duration::from_secs(5);

/// A target in the request line and the protocol it comes by.
struct SpelledRequest {
    target: Vec<u8>,
    method: &'static str,
    is_http2: bool,
}

fn attack(trial: &Trial, name: &str) -> Result<String, Skipped> {
    if name == "files" {
        let directory = tempfile::tempdir().expect("a directory for the site");
        for (file, content) in FILES.iter().chain([&USERS]) {
            let path = directory.path().join(file);
            std::fs::create_dir_all(path.parent().expect("it is in the directory")).expect("it can be made");
            std::fs::write(path, content).expect("it can be written");
        }
        let root = directory.path().join("root");
        return attack_handlers(trial, directory.path(), &format!("root \"{}\"", root.display()));
    }
    let back_end = start(name)?;
    let (directory, address) = (back_end.directory(), back_end.address);
    let handlers = match name {
        "php-fpm" => format!(
            "root \"{}/root\"\n fastcgi \"*.php\" \"{address}\" {{ fallback \"/index.php\"; }}",
            directory.display()
        ),
        _ => format!("forward \"http://{address}\""),
    };
    attack_handlers(trial, directory, &handlers)
}

/// Attacks sites with these handlers, each with guards of another kind, and one without.
fn attack_handlers(trial: &Trial, directory: &Path, handlers: &str) -> Result<String, Skipped> {
    let directory = directory.display().to_string();
    let guards = guards(&directory);
    let ports: Vec<u16> = guards.iter().map(|_| free_port()).collect();
    let open = free_port();
    let mut config = format!("server {{ workers 2 }}\nsite {{\n listen \"127.0.0.1:{open}\"\n {handlers}\n}}\n");
    for (guard, port) in guards.iter().zip(&ports) {
        config.push_str(&format!("site {{\n listen \"127.0.0.1:{port}\"\n{guard}\n {handlers}\n}}\n"));
    }
    let server = TestServer::run(&config);
    // Files that each back end reveals without rules; requests for them also use up the limits of `rate-limit`.
    let there: Vec<&str> = GUARDED.iter().map(|(_, path)| *path).filter(|path| reveals(open, &plain(path))).collect();
    assert!(there.len() >= 3, "the back end has only {there:?}");
    let limited = ports[ports.len() - 1];
    there.iter().for_each(|path| {
        reveals(limited, &plain(path));
    });

    let reached = AtomicU64::new(0);
    trial.run(CLIENTS, |case| {
        let request = SpelledRequest::new(case, &there);
        // An attack that does not reach the resource without a guard says nothing about guards.
        if !reveals(open, &request) {
            return Ok(());
        }
        reached.fetch_add(1, Ordering::Relaxed);
        for (guard, port) in guards.iter().zip(&ports) {
            if reveals(*port, &request) {
                let (target, http) = (escape(&request.target), if request.is_http2 { "HTTP/2" } else { "HTTP/1.1" });
                return Err(format!("{} {target} by {http} passes the guards{guard}", request.method));
            }
        }
        Ok(())
    });
    trial.expect_healthy(&server, "/public/page.html");
    let reached = reached.into_inner();
    trial.expect(reached > 0 || trial.is_single(), || "no spelling reaches a resource, even without guards".into());
    Ok(format!("{reached} spellings reach {} resources without guards", there.len()))
}

/// Kinds of guards, each for all resources. The last one counts requests.
fn guards(directory: &str) -> Vec<String> {
    let each = |write: &dyn Fn(&str) -> String, paths: &[&str]| -> String {
        paths.iter().map(|path| format!("\n {}", write(path))).collect()
    };
    let paths = GUARDED.map(|(guard, _)| guard);
    vec![
        each(&|path| format!("deny all path={path:?}"), &paths),
        each(&|path| format!("deny all path=#\"{path}\"#"), &EXPRESSIONS),
        each(&|path| format!("basic-auth {path:?} \"{directory}/users\""), &paths),
        "\n allow all path=\"/public/*\"\n deny all".into(),
        each(&|path| format!("rate-limit {path:?} \"1/h\""), &paths),
    ]
}

fn start(name: &str) -> Result<RealServer, Skipped> {
    let mut files = FILES.to_vec();
    files.push(USERS);
    let apache = format!(
        "{APACHE_BASE}LoadModule alias_module modules/mod_alias.so\nLoadModule cgi_module modules/mod_cgi.so\n\
         AllowEncodedSlashes On\nScriptAlias /cgi-bin/ @DIR@/programs/\n<Directory @DIR@>\nRequire all granted\n</Directory>\n\
         <FilesMatch \"[.]php$\">\nSetHandler application/x-httpd-php\n</FilesMatch>\n"
    );
    let nginx = "daemon off;\nworker_processes 1;\npid @DIR@/pid;\nerror_log @DIR@/errors crit;\nevents { }\nhttp {\n access_log off;\n\
         client_body_temp_path @DIR@/body;\n proxy_temp_path @DIR@/proxy;\n fastcgi_temp_path @DIR@/fastcgi;\n\
         uwsgi_temp_path @DIR@/uwsgi;\n scgi_temp_path @DIR@/scgi;\n\
         server {\n listen 127.0.0.1:@PORT@;\n root @DIR@/root;\n\
         location ~ ^/login[.]php(/|$) { return 200 TOP-SECRET; }\n location ~ ^/cgi-bin/status(/|$) { return 200 TOP-SECRET; }\n }\n}\n";
    let fpm = "[global]\nerror_log = @DIR@/fpm.log\n[www]\nlisten = 127.0.0.1:@PORT@\nuser = www-data\ngroup = www-data\n\
         pm = static\npm.max_children = 3\n";
    let go;
    let go_command;
    let (needs, command): (&[&str], &[&str]) = match name {
        "apache" => {
            files.extend([("apache.conf", &*apache), ("root/login.php", PHP)]);
            files.push(("programs/status", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nTOP-SECRET'\n"));
            (
                &["apache2", "/usr/lib/apache2/modules/libphp8.2.so"],
                &["apache2", "-f", "@DIR@/apache.conf", "-DFOREGROUND"],
            )
        }
        "nginx" => {
            files.push(("nginx.conf", nginx));
            (&["nginx"], &["nginx", "-c", "@DIR@/nginx.conf", "-e", "@DIR@/errors"])
        }
        "node" => {
            files.push(("rules.js", include_str!("../back_ends/rules.js")));
            (&["node"], &["node", "@DIR@/rules.js", "@PORT@"])
        }
        "go" => {
            go = build_go(include_str!("../back_ends/rules.go"), "rules")?;
            go_command = [&*go, "@PORT@", "@DIR@/root"];
            (&[], &go_command)
        }
        _ => {
            files.extend([("fpm.conf", fpm), ("root/login.php", PHP), ("root/index.php", "<?php echo 'open';")]);
            let program = "/usr/sbin/php-fpm8.2";
            (&["/usr/sbin/php-fpm8.2"], &[program, "--nodaemonize", "--fpm-config", "@DIR@/fpm.conf"])
        }
    };
    if let Some(missing) = needs.iter().find(|name| !is_installed(name)) {
        return Err(Skipped::missing(missing));
    }
    let recipe = Recipe { needs, files: &files, command, environment: &[] };
    let back_end = RealServer::start(&recipe).ok_or_else(|| Skipped(format!("{name} does not start")))?;
    let program = back_end.directory().join("programs/status");
    if program.exists() {
        std::fs::set_permissions(program, PermissionsExt::from_mode(0o755)).expect("it is ours");
    }
    Ok(back_end)
}

impl SpelledRequest {
    fn new(case: &mut AttackCase, there: &[&str]) -> Self {
        let random = &mut case.random;
        let path = pick(random, there);
        let target = paths::mutate(path, random);
        let method = if random.u8(0..6) == 0 { "POST" } else { "GET" };
        Self { target, method, is_http2: random.u8(0..5) == 0 }
    }
}

fn plain(path: &str) -> SpelledRequest {
    SpelledRequest { target: path.into(), method: "GET", is_http2: false }
}

/// True if the response has the guarded content.
fn reveals(port: u16, request: &SpelledRequest) -> bool {
    let address = ([127, 0, 0, 1], port).into();
    let is_secret = |received: &[u8]| count(received, SECRET) > 0;
    let mut raw;
    if request.is_http2 {
        raw = frames::connect(address, b"").expect("the server accepts");
        let mut block = Vec::new();
        let fields: [(&[u8], &[u8]); 4] = [
            (b":method", request.method.as_bytes()),
            (b":scheme", b"http"),
            (b":authority", b"h"),
            (b":path", &request.target),
        ];
        fields.iter().for_each(|(name, value)| literal(&mut block, name, value));
        raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &block));
        // END_STREAM of the response, or a reset.
        raw.read(SILENCE, |received| {
            let is_end = |header: &[u8]| {
                matches!(header[3], frames::RST_STREAM | frames::GOAWAY) || (header[3] < 2 && header[4] & 1 == 1)
            };
            let mut rest = received;
            while rest.len() >= 9 {
                if is_end(rest) {
                    return rest.len() >= 9 + u32::from_be_bytes([0, rest[0], rest[1], rest[2]]) as usize;
                }
                let length = 9 + u32::from_be_bytes([0, rest[0], rest[1], rest[2]]) as usize;
                rest = rest.get(length..).unwrap_or_default();
            }
            false
        });
    } else {
        raw = Raw::connect(address).expect("the server accepts");
        let length = if request.method == "POST" { "Content-Length: 0\r\n" } else { "" };
        raw.send(request.method.as_bytes());
        raw.send(b" ");
        raw.send(&request.target);
        raw.send(format!(" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{length}\r\n").as_bytes());
        raw.is_closed = false;
        raw.read(SILENCE, |_| false);
    }
    is_secret(&raw.received)
}
