//! Files, names and upstreams of a configuration, and the two servers.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt, chroot};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{CorpusOptions, Original, applications, programs, stub};

/// Names of files that each directory of a site gets.
const FILES: [&str; 30] = [
    "index.html",
    "index.php",
    "index.htm",
    "page.html",
    "a.txt",
    "style.css",
    "app.js",
    "image.png",
    "font.woff2",
    "data.json",
    "robots.txt",
    "favicon.ico",
    "404.html",
    "500.html",
    "50x.html",
    "sub/index.html",
    "sub/index.php",
    "sub/b.txt",
    "empty/c.txt",
    "admin/index.php",
    "admin/d.txt",
    "config/config.php",
    "wp-login.php",
    "info.php",
    "uploads/e.php",
    "backup.sql",
    "composer.json",
    "notes.md",
    "Caddyfile",
    "old.bak",
];
/// Hidden ones.
const HIDDEN: [&str; 4] = [".env", ".htaccess.bak", ".git/config", ".well-known/acme-challenge/token"];

/// Socket of the FastCGI stub for scripts that have no upstream of their own.
const PHP_SOCKET: &str = "/run/php/php-fpm.sock";

/// Place in which a configuration runs.
pub(super) struct World {
    pub(super) kind: Original,
    /// The file to translate.
    main: PathBuf,
    pub(super) text: String,
    caddy: PathBuf,
    nginx: PathBuf,
    tailcoat: PathBuf,
    /// Ports of stubs.
    pub(super) stubs: BTreeSet<u16>,
}

/// A configuration for our server.
pub(super) struct Translated {
    pub(super) text: String,
    /// Reason why there is none.
    pub(super) refusal: Option<String>,
    pub(super) rejected: usize,
    pub(super) left: usize,
    pub(super) remarks: Vec<String>,
}

pub(super) fn run(program: &str, arguments: &[&str]) -> Result<(), Box<dyn Error>> {
    let output = Command::new(program).args(arguments).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr)).into())
}

/// Makes a copy of the file system for this process, and adds what the configuration names.
pub(super) fn prepare(file: &Path, options: &CorpusOptions) -> Result<World, Box<dyn Error>> {
    let source = fs::read_to_string(file)?;
    let kind = kind(file, &source);
    let (caddy, nginx) = (program(&options.caddy), program(&options.nginx));
    run("mount", &["--make-rprivate", "/"])?;
    run("mount", &["-t", "tmpfs", "corpus", "/mnt"])?;
    for name in ["upper", "work", "root"] {
        fs::create_dir(Path::new("/mnt").join(name))?;
    }
    run("mount", &["-t", "overlay", "corpus", "-o", "lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work", "/mnt/root"])?;
    run("mount", &["-t", "proc", "proc", "/mnt/root/proc"])?;
    run("mount", &["--rbind", "/dev", "/mnt/root/dev"])?;
    chroot("/mnt/root")?;
    std::env::set_current_dir("/")?;
    run("mount", &["-t", "tmpfs", "run", "/run"])?;
    // Modules that this machine's nginx loads may not fit another one.
    let _ = fs::remove_dir_all("/etc/nginx/modules-enabled");
    run("ip", &["link", "set", "lo", "up"])?;
    run("ip", &["route", "add", "local", "0.0.0.0/0", "dev", "lo"])?;
    run("ip", &["route", "add", "unreachable", "203.0.113.0/24"])?;
    if let Some(root) = &options.root {
        run("cp", &["-a", &format!("{}/.", root.display()), "/"])?;
    }
    let rules = programs::beside(file)?;
    users()?;
    let (main, text) = place(file, &source, kind)?;
    let all = with_constants(&with_includes(&text, &main)) + &rules;
    let words = words(&all);
    certificates(&words)?;
    passwords(&all)?;
    let roots = roots(&words);
    let files = if kind == Original::Apache { programs::alias_files(&all) } else { BTreeSet::new() };
    let of_nginx = words.iter().filter(|_| kind == Original::Nginx);
    for file in of_nginx.filter_map(|(before, word)| alias_file(before, word)) {
        fs::create_dir_all(file.parent().unwrap_or(Path::new("/")))?;
        fs::write(file, format!("FILE {}\n", file.display()))?;
    }
    for root in roots.iter().filter(|root| !files.contains(*root)) {
        fill(Path::new(root))?;
    }
    if kind == Original::Apache && is_of_directory(file) {
        // Directories beside it may have rules of their own.
        let directory = file.parent().unwrap_or(Path::new("/"));
        run("cp", &["-a", &format!("{}/.", directory.display()), "/srv/htaccess/"])?;
        for entry in fs::read_dir(directory)?.flatten().filter(|entry| entry.path().is_dir()) {
            fill(&Path::new("/srv/htaccess").join(entry.file_name()))?;
        }
    }
    if kind == Original::Apache {
        applications::scripts(&all, &roots.difference(&files).cloned().collect())?;
        programs::write(&all, &files)?;
    }
    if kind == Original::Apache {
        // PHP may run inside Apache, which here asks PHP-FPM.
        fs::create_dir_all("/run/php")?;
        stub::listen_at(Path::new(PHP_SOCKET))?;
        fs::set_permissions(PHP_SOCKET, fs::Permissions::from_mode(0o777))?;
    }
    logs(&words)?;
    // The page of the package is no site's.
    let _ = fs::remove_file("/usr/share/nginx/html/index.html");
    let stubs = upstreams(&words)?;
    for directory in ["/var/log/nginx", "/var/log/apache2", "/var/log/caddy"] {
        fs::create_dir_all(directory)?;
    }
    // Servers run as other users, and the logs of this machine are another's.
    run("chmod", &["-R", "a+rwX", "/var/log"])?;
    Ok(World { kind, main, text: all, caddy, nginx, tailcoat: options.tailcoat.clone(), stubs })
}

fn is_of_directory(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name == ".htaccess")
}

/// Users that configurations for other distributions name.
fn users() -> Result<(), Box<dyn Error>> {
    for (number, name) in ["nginx", "http", "www", "caddy", "apache", "webapp"].into_iter().enumerate() {
        for (file, line) in [
            ("/etc/passwd", format!("{name}:x:{}:{}::/:/usr/sbin/nologin\n", 900 + number, 900 + number)),
            ("/etc/group", format!("{name}:x:{}:\n", 900 + number)),
        ] {
            let text = fs::read_to_string(file)?;
            if !text.lines().any(|line| line.split(':').next() == Some(name)) {
                fs::write(file, format!("{text}{line}"))?;
            }
        }
    }
    Ok(())
}

fn program(name: &Path) -> PathBuf {
    if name.components().count() > 1 {
        return std::path::absolute(name).unwrap_or_else(|_| name.to_owned());
    }
    name.to_owned()
}

fn kind(file: &Path, text: &str) -> Original {
    let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().to_ascii_lowercase());
    let lines = || text.lines().map(str::trim).filter(|line| !line.starts_with('#') && !line.is_empty());
    if name.contains("caddy") {
        Original::Caddy
    } else if name.starts_with(".ht") || lines().any(|line| line.starts_with('<') || line.starts_with("Rewrite")) {
        Original::Apache
    } else if lines().any(|line| line.ends_with(';')) {
        Original::Nginx
    } else if lines().any(|line| line.ends_with('{')) {
        Original::Caddy
    } else {
        Original::Apache
    }
}

/// Puts the configuration where its server looks for it, with the blocks around it that it lacks.
fn place(file: &Path, text: &str, kind: Original) -> Result<(PathBuf, String), Box<dyn Error>> {
    let write = |path: &str, text: &str| -> Result<PathBuf, Box<dyn Error>> {
        let path = PathBuf::from(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        fs::write(&path, text)?;
        Ok(path)
    };
    match kind {
        Original::Nginx => {
            let is_whole = text.lines().any(|line| line.trim_start().starts_with("http") && line.contains('{'));
            if is_whole {
                // Files beside it are included.
                let directory = file.parent().unwrap_or(Path::new("/"));
                fs::create_dir_all("/etc/nginx")?;
                if file.file_name().is_some_and(|name| name == "nginx.conf") {
                    run("cp", &["-a", &format!("{}/.", directory.display()), "/etc/nginx/"])?;
                }
                for name in ["mime.types", "fastcgi_params"] {
                    if !Path::new("/etc/nginx").join(name).exists() {
                        fs::write(Path::new("/etc/nginx").join(name), default_file(name))?;
                    }
                }
                return Ok((write("/etc/nginx/nginx.conf", text)?, text.to_owned()));
            }
            // Snippets of containers use a map that their main file has.
            let has_map = text.contains("map $http_upgrade $connection_upgrade") || !text.contains("/config/nginx/");
            let map =
                if has_map { "" } else { "map $http_upgrade $connection_upgrade { default upgrade; '' close; }\n" };
            write("/etc/nginx/conf.d/site.conf", &format!("{map}{text}"))?;
            let size = match text.contains("server_names_hash_bucket_size") {
                true => "",
                false => "    server_names_hash_bucket_size 128;\n",
            };
            // As containers have it. A site may have its own.
            let main = format!(
                "user root;\nevents {{}}\nhttp {{\n    include /etc/nginx/mime.types;\n    resolver 127.0.0.1 ipv6=off;\n    \
                 default_type application/octet-stream;\n{size}    include /etc/nginx/conf.d/site.conf;\n}}\n"
            );
            Ok((write("/etc/nginx/nginx.conf", &main)?, text.to_owned()))
        }
        Original::Caddy => {
            let text = applications::without_tls(text);
            Ok((write("/etc/caddy/Caddyfile", &text)?, text))
        }
        Original::Apache => {
            let modules = [
                "mpm_event",
                "authz_core",
                "authz_host",
                "authz_user",
                "authn_core",
                "authn_file",
                "authz_groupfile",
                "auth_basic",
                "auth_digest",
                "access_compat",
                "alias",
                "rewrite",
                "headers",
                "expires",
                "deflate",
                "filter",
                "mime",
                "dir",
                "autoindex",
                "negotiation",
                "setenvif",
                "env",
                "ssl",
                "socache_shmcb",
                "proxy",
                "proxy_http",
                "proxy_fcgi",
                "proxy_balancer",
                "lbmethod_byrequests",
                "slotmem_shm",
                "proxy_wstunnel",
                "status",
                "cgid",
                "vhost_alias",
                "macro",
                "allowmethods",
            ];
            let load: String = modules
                .iter()
                .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"))
                .collect();
            let main = "PidFile /run/apache2.pid\nUser www-data\nGroup www-data\nServerName localhost\n";
            let files = "TypesConfig /etc/mime.types\nErrorLog /var/log/apache2/error.log\n";
            // A main server without a root has one that packages choose.
            fs::create_dir_all("/srv/none")?;
            let common =
                format!("ServerRoot /etc/apache2\n{load}{main}{files}ScriptSock /run/cgid\nDocumentRoot /srv/none\n");
            let runs_scripts = !text.contains("fcgi://");
            let php = format!(
                "<FilesMatch \\.php$>\nSetHandler \"proxy:unix:{PHP_SOCKET}|fcgi://localhost\"\n</FilesMatch>\n"
            );
            let common = if runs_scripts { format!("{common}{php}") } else { common };
            if is_of_directory(file) {
                write(
                    "/etc/apache2/apache2.conf",
                    &format!(
                        "{common}DirectoryIndex index.html index.php\nListen 80\nDocumentRoot /srv/htaccess\n<Directory />\nAllowOverride All\nOptions FollowSymLinks\n</Directory>\n"
                    ),
                )?;
                fs::create_dir_all("/srv/htaccess")?;
                return Ok((write("/srv/htaccess/.htaccess", text)?, format!("DocumentRoot /srv/htaccess\n{text}")));
            }
            if text.contains("LoadModule") || text.contains("mods-enabled") {
                return Ok((write("/etc/apache2/apache2.conf", text)?, text.to_owned()));
            }
            let listens = text.lines().any(|line| line.trim_start().to_ascii_lowercase().starts_with("listen "));
            let listen = match (listens, text.contains("443")) {
                (true, _) => "",
                (false, true) => "Listen 80\nListen 443\n",
                (false, false) => "Listen 80\n",
            };
            write("/etc/apache2/apache2.conf", &format!("{common}{listen}Include /etc/apache2/site.conf\n"))?;
            Ok((write("/etc/apache2/site.conf", text)?, text.to_owned()))
        }
    }
}

fn default_file(name: &str) -> String {
    let package = Path::new("/usr/share/corpus").join(name);
    fs::read_to_string(package).unwrap_or_else(|_| match name {
        "mime.types" => {
            "types {\n text/html html htm;\n text/css css;\n application/javascript js;\n image/png png;\n \
                         text/plain txt;\n application/json json;\n font/woff2 woff2;\n}\n"
                .to_owned()
        }
        _ => "fastcgi_param QUERY_STRING $query_string;\nfastcgi_param REQUEST_METHOD $request_method;\nfastcgi_param \
              SCRIPT_NAME $fastcgi_script_name;\nfastcgi_param REQUEST_URI $request_uri;\nfastcgi_param DOCUMENT_ROOT \
              $document_root;\nfastcgi_param HTTPS $https if_not_empty;\n"
            .to_owned(),
    })
}

/// The text with files that it includes, for names and paths.
fn with_includes(text: &str, main: &Path) -> String {
    let mut all = text.to_owned();
    let directory = main.parent().unwrap_or(Path::new("/"));
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut queue = vec![text.to_owned()];
    while let Some(text) = queue.pop() {
        for (before, pattern) in words(&text) {
            if !matches!(before.as_str(), "include" | "includeoptional" | "import") {
                continue;
            }
            let pattern = directory.join(pattern.trim_end_matches(';').trim_matches('"'));
            for file in expand(&pattern) {
                if !seen.contains(&file)
                    && seen.len() < 200
                    && let Ok(text) = fs::read_to_string(&file)
                {
                    all.push('\n');
                    all.push_str(&text);
                    queue.push(text);
                    seen.push(file);
                }
            }
        }
    }
    all
}

/// The text with the paths that variables of nginx's `set` stand for.
fn with_constants(text: &str) -> String {
    let words = words(text);
    let pairs = words.iter().zip(words.iter().skip(1));
    let constants = pairs.filter(|((before, name), (_, value))| {
        before == "set" && name.starts_with('$') && value.starts_with('/') && !value.contains('$')
    });
    constants.fold(text.to_owned(), |text, ((_, name), (_, value))| text.replace(name.as_str(), value))
}

fn expand(pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    if !name.contains('*') {
        return vec![pattern.to_owned()];
    }
    let (front, back) = name.split_once('*').unwrap_or((&name, ""));
    let entries = pattern.parent().and_then(|parent| fs::read_dir(parent).ok());
    let files = entries.into_iter().flatten().flatten().map(|entry| entry.path());
    files
        .filter(|file| {
            let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            name.starts_with(front) && name.ends_with(back)
        })
        .collect()
}

/// Words of a text with those before them, without comments, quotation marks and semicolons.
pub(super) fn words(text: &str) -> Vec<(String, String)> {
    let mut words = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with('#') {
            continue;
        }
        let mut before = String::new();
        for word in line.split([' ', '\t', ';', '{', '}', '"', '\'', '>']).filter(|word| !word.is_empty()) {
            // A comment, or the end of a section.
            if word.starts_with('#') || word.starts_with("</") {
                break;
            }
            words.push((before, word.trim_start_matches('<').to_owned()));
            before = word.trim_start_matches('<').to_ascii_lowercase();
        }
    }
    words
}

fn certificates(words: &[(String, String)]) -> Result<(), Box<dyn Error>> {
    let is_certificate = |name: &str| {
        matches!(
            name,
            "ssl_certificate"
                | "ssl_trusted_certificate"
                | "ssl_client_certificate"
                | "sslcertificatefile"
                | "sslcertificatechainfile"
                | "sslcacertificatefile"
                | "proxy_ssl_trusted_certificate"
        )
    };
    let is_key = |name: &str| matches!(name, "ssl_certificate_key" | "sslcertificatekeyfile");
    run(
        "openssl",
        &[
            "req",
            "-x509",
            // Lists of suites may lack those of ECDSA.
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            "/CN=corpus",
            "-addext",
            "subjectAltName=DNS:*.example.com",
            "-keyout",
            "/run/key.pem",
            "-out",
            "/run/cert.pem",
        ],
    )?;
    for (before, word) in words {
        let source = match before.as_str() {
            name if is_certificate(name) => "/run/cert.pem",
            name if is_key(name) => "/run/key.pem",
            "ssl_dhparam" => "",
            _ => continue,
        };
        let path = Path::new("/etc/nginx").join(word);
        if path.exists() || word.contains('$') {
            continue;
        }
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        match source {
            "" => run("openssl", &["dhparam", "-dsaparam", "-out", &path.to_string_lossy(), "2048"])?,
            source => {
                fs::copy(source, &path)?;
            }
        }
    }
    Ok(())
}

/// Directories of logs and caches.
fn logs(words: &[(String, String)]) -> Result<(), Box<dyn Error>> {
    let is_log = |name: &str| {
        let caches =
            matches!(name, "proxy_cache_path" | "fastcgi_cache_path" | "proxy_temp_path" | "client_body_temp_path");
        caches || matches!(name, "access_log" | "error_log" | "customlog" | "errorlog" | "transferlog")
    };
    for (_, word) in words.iter().filter(|(before, word)| is_log(before) && word.contains('/') && !word.contains('$')) {
        if let Some(parent) = Path::new("/etc/apache2").join(word).parent() {
            fs::create_dir_all(parent)?;
        }
    }
    Ok(())
}

/// Password files, with the user `anna` and the password `secret`.
fn passwords(text: &str) -> Result<(), Box<dyn Error>> {
    for (before, word) in words(text) {
        if matches!(before.as_str(), "auth_basic_user_file" | "authuserfile") && !word.contains('$') {
            let path = Path::new("/etc/nginx").join(&word);
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
            let output = Command::new("openssl").args(["passwd", "-5", "-salt", "corpus", "secret"]).output()?;
            fs::write(path, format!("anna:{}", String::from_utf8_lossy(&output.stdout)))?;
        }
    }
    Ok(())
}

/// Directories of sites.
fn roots(words: &[(String, String)]) -> BTreeSet<String> {
    let mut roots = BTreeSet::from(["/srv/htaccess".to_owned()]);
    let mut previous = "";
    for (before, word) in words {
        let is_root = matches!(before.as_str(), "root" | "alias" | "documentroot" | "directory")
            || (before == "*" && previous == "root")
            || (before.starts_with('/') && (previous == "alias" || previous == "scriptalias" || previous == "root"))
            || (before.starts_with('@') && previous == "root")
            // An argument of a snippet.
            || (word.starts_with("/srv/") && previous == "import");
        if alias_file(before, word).is_some() {
            continue;
        }
        // A group of an expression may follow.
        let word = word.split_once("/$").map_or(word.as_str(), |(front, _)| front);
        if is_root && word.starts_with('/') && word.len() > 1 && !word.contains(['$', '*', '{', '^', '(']) {
            roots.insert(word.trim_end_matches('/').to_owned());
        }
        previous = if before.is_empty() { word_of(word) } else { previous };
    }
    roots.retain(|root| !matches!(root.as_str(), "/usr" | "/etc" | "/proc" | "/dev" | "/usr/share" | "/var" | "/run"));
    roots
}

/// The file that an `alias` names, by its extension.
fn alias_file<'a>(before: &str, word: &'a str) -> Option<&'a Path> {
    let path = Path::new(word);
    let extension = path.extension()?.to_str()?;
    let is_file = before == "alias" && word.starts_with('/') && !word.ends_with('/') && !word.contains('$');
    (is_file && (2..=4).contains(&extension.len()) && path.components().count() > 2).then_some(path)
}

fn word_of(word: &str) -> &'static str {
    match word.to_ascii_lowercase().as_str() {
        "root" => "root",
        "alias" => "alias",
        "scriptalias" => "scriptalias",
        "import" => "import",
        _ => "",
    }
}

fn fill(root: &Path) -> Result<(), Box<dyn Error>> {
    for name in FILES.iter().chain(&HIDDEN) {
        let path = root.join(name);
        if path.exists() {
            continue;
        }
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        fs::write(&path, format!("FILE {}\n", path.display()))?;
    }
    // Servers run as other users.
    let mut directory = Some(root);
    while let Some(path) = directory.filter(|path| path.components().count() > 1) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        directory = path.parent();
    }
    Ok(())
}

/// Starts stubs for all upstreams, and names them. Returns their ports.
fn upstreams(words: &[(String, String)]) -> Result<BTreeSet<u16>, Box<dyn Error>> {
    let mut hosts = String::from("127.0.0.1 localhost\n::1 localhost\n");
    let mut names = BTreeSet::new();
    let mut ports = BTreeSet::new();
    let mut addresses = BTreeSet::new();
    let mut variable = String::new();
    for (before, word) in words {
        let word = word.trim_end_matches('/');
        if let Some((_, path)) = word.split_once("unix:").or(word.split_once("unix/")) {
            let path = format!("/{}", path.trim_start_matches('/').split(['|', ':']).next().unwrap_or_default());
            if path.len() > 1 && !Path::new(&path).exists() && !path.contains('$') {
                fs::create_dir_all(Path::new(&path).parent().unwrap_or(Path::new("/")))?;
                stub::listen_at(Path::new(&path))?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
            }
            continue;
        }
        if before.starts_with('$') {
            // `set $upstream_app name; set $upstream_port 80;`
            if before.contains("port") {
                ports.extend(word.parse::<u16>().ok());
            } else if before.contains("app") || before.contains("host") || before.contains("upstream") {
                variable = word.to_owned();
            }
            names.extend(Some(variable.clone()).filter(|name| is_name(name)));
            continue;
        }
        let rest = word.split_once("://").map_or(word, |(_, rest)| rest);
        let authority = rest.split('/').next().unwrap_or_default();
        let is_upstream = word.contains("://")
            || matches!(
                before.as_str(),
                "server" | "reverse_proxy" | "to" | "forward_auth" | "php_fastcgi" | "fastcgi_pass"
            )
            || authority.rsplit_once(':').is_some_and(|(host, port)| is_name(host) && port.parse::<u16>().is_ok());
        if !is_upstream {
            continue;
        }
        // A variable may follow.
        let authority = authority.split('$').next().unwrap_or_default();
        let (host, port) = authority.rsplit_once(':').unwrap_or((authority, ""));
        ports.extend(port.parse::<u16>().ok());
        match host.parse::<Ipv4Addr>() {
            // At its own ports, the server would get these requests itself, again and again.
            Ok(address) if is_of_others(address) && matches!(port, "" | "80" | "443") => {
                addresses.insert(address);
            }
            Err(_) if is_name(host) && host != "localhost" => {
                names.insert(host.to_owned());
            }
            _ => {}
        }
    }
    // The servers themselves listen there.
    for port in [80, 443, 53, 0] {
        ports.remove(&port);
    }
    for name in names {
        hosts.push_str(&format!("{} {name}\n", stub::OUTSIDE));
    }
    fs::write("/etc/hosts", hosts)?;
    addresses.retain(|address| !is_bound(words, *address));
    stub::outside(&ports, &addresses)?;
    let listening: BTreeSet<u16> = ports.into_iter().filter(|port| !is_listener(words, *port)).collect();
    for port in &listening {
        stub::listen(*port)?;
    }
    let resolvers = words.iter().filter(|(before, _)| before == "resolver");
    let resolvers = resolvers.filter_map(|(_, word)| word.parse::<Ipv4Addr>().ok());
    let resolvers: BTreeSet<_> = resolvers.chain([Ipv4Addr::LOCALHOST]).collect();
    for resolver in resolvers {
        let _ = stub::resolve_names(resolver);
    }
    Ok(listening)
}

/// Returns `true` for an address of another machine.
fn is_of_others(address: Ipv4Addr) -> bool {
    !address.is_loopback() && !address.is_unspecified()
}

/// Returns `true` if the server listens at this address.
fn is_bound(words: &[(String, String)], address: Ipv4Addr) -> bool {
    let address = address.to_string();
    words.iter().any(|(before, word)| {
        matches!(before.as_str(), "listen" | "virtualhost" | "namevirtualhost" | "bind")
            && word.split(':').next() == Some(address.as_str())
    })
}

fn is_listener(words: &[(String, String)], port: u16) -> bool {
    let port = port.to_string();
    words.iter().any(|(before, word)| {
        (matches!(before.as_str(), "listen" | "virtualhost") && word.rsplit(':').next() == Some(port.as_str()))
            || (before.is_empty() && is_address(word, &port))
    })
}

/// Returns `true` for an address of a Caddyfile with this port: `:8080`, `a.example:8080,`.
fn is_address(word: &str, port: &str) -> bool {
    word.trim_end_matches(',').rsplit_once(':').is_some_and(|(_, found)| found == port)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

impl World {
    /// Translates the configuration, and changes what only another machine has.
    pub(super) fn translate(&self) -> Result<Translated, Box<dyn Error>> {
        let file = match self.kind {
            Original::Apache if Path::new("/srv/htaccess/.htaccess").exists() => Path::new("/srv/htaccess/.htaccess"),
            _ => &self.main,
        };
        let output = Command::new(&self.tailcoat).arg("import").arg(file).args(["-o", "/run/site.kdl"]).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = fs::read_to_string("/run/site.kdl").unwrap_or_default();
        // The user of another machine; root reads all files here.
        let kept: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("user ")).collect();
        let text = kept.join("\n");
        fs::write("/run/site.kdl", &text)?;
        let count = |heading: &str| {
            let lines = said.lines().skip_while(|line| !line.starts_with(heading)).skip(1);
            // Warnings about the translation follow.
            let is_remark = |line: &&str| line.starts_with("  ") && !line.starts_with("  warning");
            lines.take_while(is_remark).map(|line| line.trim().to_owned()).collect::<Vec<_>>()
        };
        let rejected = count("Rejected paths");
        let left = count("Not translated");
        let is_refused = !matches!(output.status.code(), Some(0 | 4 | 5));
        let remarks: Vec<String> = rejected.iter().chain(&left).map(|line| format!("said: {line}")).collect();
        let refusal = is_refused.then(|| said.lines().next_back().unwrap_or_default().to_owned());
        Ok(Translated { text, refusal, rejected: rejected.len(), left: left.len(), remarks })
    }

    /// Starts the original server.
    pub(super) fn start_original(&self) -> Result<Child, Box<dyn Error>> {
        let mut command = match self.kind {
            Original::Nginx => {
                let mut command = Command::new(&self.nginx);
                command.args(["-c", "/etc/nginx/nginx.conf", "-g", "daemon off;"]);
                command
            }
            Original::Caddy => {
                let mut command = Command::new(&self.caddy);
                command.args(["run", "--adapter", "caddyfile", "--config"]).arg(&self.main);
                command
            }
            Original::Apache => {
                let mut command = Command::new("apache2");
                command.args(["-DFOREGROUND", "-f", "/etc/apache2/apache2.conf"]);
                command.env("APACHE_LOG_DIR", "/var/log/apache2").env("APACHE_RUN_DIR", "/run");
                command
            }
        };
        self.start(&mut command, "/run/original.log")
    }

    /// Starts our server with the translation.
    pub(super) fn start_ours(&self) -> Result<Child, Box<dyn Error>> {
        let mut command = Command::new(&self.tailcoat);
        command.args(["run", "-c", "/run/site.kdl"]).env("STATE_DIRECTORY", "/run");
        self.start(&mut command, "/run/ours.log")
    }

    fn start(&self, command: &mut Command, log: &str) -> Result<Child, Box<dyn Error>> {
        let output = fs::File::create(log)?;
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if child.try_wait()?.is_some() {
                let said = fs::read_to_string(log)?;
                let lines: Vec<&str> = said
                    .lines()
                    .filter(|line| !line.contains("\"level\":\"info\"") && !line.contains("warn"))
                    .collect();
                let first =
                    lines.iter().position(|line| line.contains("error")).unwrap_or(lines.len().saturating_sub(3));
                return Err(lines[first..].iter().take(3).copied().collect::<Vec<_>>().join(" | ").into());
            }
            if !self.listeners()?.is_empty() {
                // Other listeners of the same server follow at once.
                std::thread::sleep(Duration::from_millis(300));
                return Ok(child);
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                return Err(format!("{name} listens nowhere").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ports on which a server listens.
    pub(super) fn listeners(&self) -> Result<BTreeSet<u16>, Box<dyn Error>> {
        let mut ports = BTreeSet::new();
        for file in ["/proc/net/tcp", "/proc/net/tcp6"] {
            for line in fs::read_to_string(file)?.lines().skip(1) {
                let words: Vec<&str> = line.split_whitespace().collect();
                let port = words.get(1).and_then(|address| address.rsplit_once(':'));
                let port = port.and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
                if words.get(3) == Some(&"0A") {
                    ports.extend(port.filter(|port| !self.stubs.contains(port) && *port != 2019));
                }
            }
        }
        Ok(ports)
    }

    /// Ends a server, and waits until its ports are free.
    pub(super) fn end(&self, child: &mut Child) -> Result<(), Box<dyn Error>> {
        run("kill", &["-TERM", &child.id().to_string()])?;
        let deadline = Instant::now() + Duration::from_secs(5);
        while child.try_wait()?.is_none() || !self.listeners()?.is_empty() {
            if Instant::now() > deadline {
                child.kill()?;
                child.wait()?;
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}
