//! The manual in `docs`: each configuration is valid, each command exists, and commands print what the pages show.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;

use crate::examples::{StagedExample, repository};
use crate::support::skips::skip_without;
use crate::support::waiting::settled;
use crate::support::{TestServer, tailcoat};

/// Environment variable that makes the test rewrite the pages with the commands' present output.
const REWRITE: &str = "MANUAL_REWRITE";

/// Addresses of the server and of the application on the pages.
const SERVER: &str = "localhost:8080";
const APPLICATION: &str = "http://127.0.0.1:3000";

/// Pages of the manual, by path.
fn pages() -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(repository().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = entries.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// A fenced block of a page.
struct ManualBlock<'a> {
    language: &'a str,
    text: &'a str,
}

fn blocks(page: &str) -> Vec<ManualBlock<'_>> {
    let mut blocks = Vec::new();
    let mut rest = page;
    while let Some((_, fence)) = rest.split_once("\n```") {
        let (language, block) = fence.split_once('\n').expect("a fence ends its line");
        // An empty block has its closing fence at once.
        let end = if block.starts_with("```") { 0 } else { block.find("\n```").expect("a block ends") + 1 };
        blocks.push(ManualBlock { language, text: &block[..end] });
        rest = &block[end + "```".len()..];
    }
    blocks
}

#[test]
fn configurations_are_valid() {
    let mut count = 0;
    for (path, page) in pages() {
        for block in blocks(&page).into_iter().filter(|block| block.language == "kdl") {
            let has_site = block.text.lines().any(|line| line.starts_with("site ") || line == "site {");
            let site = if has_site { "" } else { "site \"b.example\" {\n    root \"/srv/www\"\n}\n" };
            let (is_valid, said) = StagedExample::of(format!("{}{site}", block.text)).check();
            let has_no_warning = said.trim_end().ends_with("tailcoat.kdl is valid");
            assert!(is_valid && has_no_warning, "{}:\n{}{said}", path.display(), block.text);
            count += 1;
        }
    }
    assert!(count >= 70, "the manual has {count} configurations");
}

/// Commands of a page: lines of `sh` blocks, and prompts of others.
fn commands(page: &str) -> Vec<&str> {
    let mut commands = Vec::new();
    for block in blocks(page) {
        let lines = block.text.lines();
        match block.language {
            "sh" => commands.extend(lines),
            _ => commands.extend(lines.filter_map(|line| line.strip_prefix("$ "))),
        }
    }
    commands
}

#[test]
fn commands_exist() {
    let mut count = 0;
    for (path, page) in pages() {
        for command in commands(&page) {
            let command = command.split(['|', '>']).next().unwrap();
            let words: Vec<&str> = command.split_whitespace().collect();
            let ["tailcoat", arguments @ ..] = &words[..] else { continue };
            let mut help = help(&arguments[..1]);
            if help.contains(&format!("\n  {} ", arguments.get(1).unwrap_or(&"-"))) {
                help = self::help(&arguments[..2]);
            }
            for option in arguments.iter().filter(|argument| argument.starts_with('-')) {
                let is_known = help.contains(&format!("{option} ")) || help.contains(&format!("{option},"));
                assert!(is_known, "{}: {command}: {option} is not in\n{help}", path.display());
            }
            count += 1;
        }
    }
    assert!(count >= 40, "the manual has {count} commands");
}

fn help(command: &[&str]) -> String {
    let output = tailcoat().args(command).arg("--help").output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the commands of `console` blocks against a server with the last configuration before them.
#[test]
fn commands_print_what_the_manual_shows() {
    if Command::new("curl").arg("--version").output().is_err() {
        skip_without("curl");
        return;
    }
    let (mut count, mut problems) = (0, Vec::new());
    for (path, page) in pages() {
        let (mut configuration, mut written) = ("", page.clone());
        for block in blocks(&page) {
            match block.language {
                "kdl" => configuration = block.text,
                "console" => {
                    let printed = ShownText::start(configuration).print(block.text);
                    if stable(&printed) != stable(block.text) {
                        problems.push(format!("{}:\n{}prints\n{printed}", path.display(), block.text));
                        written = written.replace(block.text, &printed);
                    }
                    count += 1;
                }
                _ => {}
            }
        }
        if std::env::var_os(REWRITE).is_some() && written != page {
            fs::write(&path, written).unwrap();
        }
    }
    assert!(problems.is_empty(), "set {REWRITE}=1 to write what commands print:\n{}", problems.join("\n"));
    assert!(count >= 10, "the manual has {count} such blocks");
}

/// A server with a configuration of the manual.
struct ShownText {
    example: StagedExample,
    server: TestServer,
}

impl ShownText {
    fn start(configuration: &str) -> Self {
        let example = StagedExample::of(configuration.to_owned());
        for (path, content) in [
            ("/srv/www/index.html", "<h1>Welcome</h1>\n"),
            ("/srv/www/about.html", "<h1>About</h1>\n"),
            ("/srv/www/login/index.html", "<h1>Log in</h1>\n"),
            ("/srv/www/admin/index.html", "<h1>Administration</h1>\n"),
            ("/srv/a/index.html", "a\n"),
            ("/srv/b/index.html", "b\n"),
            ("/srv/c/index.html", "c\n"),
            ("/srv/app/index.html", "<h1>Application</h1>\n"),
            ("/srv/downloads/manual.pdf", "%PDF\n"),
        ] {
            let root = path.rsplit_once('/').unwrap().0.split('/').take(3).collect::<Vec<_>>().join("/");
            if example.path(&root).is_dir() {
                example.write(path, content);
            }
        }
        let application = if configuration.contains(APPLICATION) { vec![(APPLICATION, echo())] } else { Vec::new() };
        let server = example.run(&application);
        Self { example, server }
    }

    /// Output of a terminal for the commands of a block.
    fn print(&self, block: &str) -> String {
        let mut printed = String::new();
        for command in block.lines().filter_map(|line| line.strip_prefix("$ ")) {
            let log = self.example.path("/var/log/");
            let line = command.replace(SERVER, &self.server.address.to_string());
            let line = line.replace("/var/log/", &format!("{}/", log.display()));
            if line.contains(log.to_str().unwrap()) {
                // For longer than `access-log-flush-interval`.
                settled("the logs are written", || sizes_in(&log));
            }
            let output = Command::new("sh").args(["-c", &line]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap().replace('\r', "");
            let text = text.replace(&self.server.address.to_string(), SERVER);
            let end = if text.trim_end().is_empty() { "" } else { "\n" };
            printed.push_str(&format!("$ {command}\n{}{end}", text.trim_end()));
        }
        printed
    }
}

/// Names and sizes of the files in a directory.
fn sizes_in(directory: &std::path::Path) -> Vec<(std::ffi::OsString, u64)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| (entry.file_name(), entry.metadata().map_or(0, |metadata| metadata.len()))).collect()
}

/// An application that answers with the head of each request.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read(&mut buffer) {
                    Ok(count @ 1..) => head.extend_from_slice(&buffer[..count]),
                    _ => break,
                }
            }
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", head.len());
            // The other side may have left.
            let _ = stream.write_all(&[answer.as_bytes(), &head].concat());
        }
    });
    address
}

/// Text without values that differ between runs: dates, entity tags, and numbers except statuses.
fn stable(text: &str) -> String {
    text.lines().map(stable_line).collect::<Vec<_>>().join("\n")
}

fn stable_line(line: &str) -> String {
    if line.starts_with("$ ") || line.starts_with("HTTP/") {
        return line.to_owned();
    }
    if let Some((name @ ("Date" | "ETag" | "Last-Modified"), _)) = line.split_once(": ") {
        return name.to_owned();
    }
    let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
    if first.parse::<u16>().is_ok_and(|status| (100..600).contains(&status)) {
        return format!("{first} {}", digits_aside(rest));
    }
    // Time of a line in the access log.
    match line.split_once('[').and_then(|(before, rest)| Some((before, rest.split_once("] \"")?.1))) {
        Some((before, after)) => digits_aside(&format!("{before}{after}")),
        None => digits_aside(line),
    }
}

fn digits_aside(line: &str) -> String {
    line.split(|letter: char| letter.is_ascii_digit()).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("0")
}

const FROM_NGINX: &str = include_str!("../docs/from-nginx.md");
const FROM_APACHE: &str = include_str!("../docs/from-apache.md");
const FROM_CADDY: &str = include_str!("../docs/from-caddy.md");

/// A configuration with an option in the block that the table names.
fn around(option: &str, place: &str) -> String {
    let root = if option.starts_with("root ") { "" } else { "root \"/srv/www\"" };
    let certificate = "certificate \"/etc/ssl/example.com.pem\" key=\"/etc/ssl/example.com.key\"";
    match place {
        "file" => format!("{option}\nsite \"b.example\" {{\n{root}\n}}"),
        "site" if option.ends_with("proxy-protocol=on") => {
            format!("server {{\ntrusted-proxies \"10.0.0.1\"\n}}\nsite {{\n{root}\n{option}\n}}")
        }
        "site" => format!("site \"example.com\" {{\n{root}\n{option}\n}}"),
        "tls" => format!("site \"example.com\" {{\n{root}\n{certificate}\n{option}\n}}"),
        "forward" => format!("site {{\nforward \"http://127.0.0.1:1\" {{\n{option}\n}}\n}}"),
        "upstream" => {
            let scheme = if option.starts_with("tls-") { "https" } else { "http" };
            let server = format!("server \"{scheme}://127.0.0.1:1\"");
            format!("upstream \"a\" {{\n{server}\n{option}\n}}\nsite {{\nforward \"a\"\n}}")
        }
        block => format!("{block} {{\n{option}\n}}\nsite {{\n{root}\n}}"),
    }
}

#[test]
fn options_in_the_tables_of_other_servers_are_valid() {
    for (page, options_min) in [(FROM_NGINX, 80), (FROM_APACHE, 50), (FROM_CADDY, 50)] {
        check_table(page, options_min);
    }
}

/// Checks that each option in the second column of a guide's directives is valid in the block that the third column
/// names.
fn check_table(page: &str, options_min: usize) {
    let (_, section) = page.split_once("\n## Directives\n").expect("the guide has a table of directives");
    let table = section.split("\n## ").next().unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let mut count = 0;
    for row in rows {
        let [_, ours, place] = row.split(" | ").collect::<Vec<_>>()[..] else { continue };
        for option in
            ours.split('`').skip(1).step_by(2).filter(|option| !option.starts_with("tailcoat ") && !place.is_empty())
        {
            // The hook is the reader's own program.
            let option = option.replace("/usr/local/bin/dns-hook", "/usr/bin/true");
            let (is_valid, said) = StagedExample::of(around(&option, place)).check();
            assert!(is_valid, "{option} in {place}: {said}");
            count += 1;
        }
    }
    assert!(count > options_min, "the table has {count} options");
}
