//! Rules that no compiler checks: size and shape of files, edges between rooms, and mentions in documents.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::{charts, links, questions, release};

/// A file past this many lines wants to be two.
const RUST_LINES_MAX: usize = 800;

/// Extensions of files that people write. Seeds and cases of raw bytes are held to nothing.
const WRITTEN: [&str; 11] = ["rs", "py", "sh", "md", "toml", "kdl", "css", "c", "h", "html", "yml"];

/// Marks of unfinished work; a test may only be left out for a reason. In two pieces, or this file would be a find of
/// its own.
const UNFINISHED: [[&str; 2]; 5] =
    [["todo", "!("], ["unimpl", "emented!("], ["FIX", "ME"], ["XX", "X"], ["#[ign", "ore]"]];

/// Homes of developers.
const HOMES: [[&str; 2]; 2] = [["/ho", "me/"], ["/Use", "rs/"]];

/// Modules that protocol code must not know: sockets, files, clocks, threads, runtimes.
const INPUT_OUTPUT: [&str; 7] =
    ["std::net", "std::fs", "std::thread", "std::process", "tokio", "Instant::now", "SystemTime::now"];

/// Rooms of a crate that a room of it may know. A room that is not in the list may know all. Edges between crates are in
/// their manifests.
const EDGES: &[(&str, &str, &[&str])] = &[
    ("wire", "http", &[]),
    ("wire", "h1", &["http"]),
    ("wire", "field_section", &["h1", "http"]),
    ("wire", "h2", &["field_section", "h1", "http"]),
    ("wire", "h3", &["field_section", "h1", "http", "qpack"]),
    ("wire", "qpack", &["field_section", "http"]),
    ("wire", "proxy_protocol", &[]),
    ("wire", "cgi", &["h1", "http"]),
    ("wire", "fastcgi", &[]),
    ("wire", "ftp", &["http"]),
    ("quic", "packet", &["codec", "error", "id"]),
    ("quic", "frame", &["codec", "error", "id", "packet"]),
    ("quic", "congestion", &["pacer", "rtt"]),
    ("quic", "streams", &["codec", "error", "frame", "id", "parameters", "ranges"]),
    ("quic", "recovery", &["error", "frame", "ranges", "streams", "types"]),
    // Its tests make settings with all of them.
    (
        "quic",
        "endpoint",
        &["codec", "congestion", "connection", "error", "frame", "id", "packet", "streams", "tls", "types"],
    ),
    ("config", "text", &["diagnostic", "regular_file", "value"]),
    ("config", "model", &["regular_file", "value"]),
    ("config", "value", &["model", "regular_file", "suggest", "text"]),
    ("config", "options", &["model", "text", "value"]),
    ("config", "check", &["diagnostic", "model", "options", "parts", "regular_file", "suggest", "value"]),
    ("config", "manual", &["options", "suggest", "value"]),
    ("observe", "log", &[]),
    ("observe", "metrics", &[]),
    ("observe", "status", &["metrics"]),
    ("observe", "traces", &["log"]),
    ("cache", "disk_cache", &["object_cache"]),
    ("cache", "object_cache", &[]),
    ("cache", "shared_cache", &["disk_cache"]),
    ("limits", "fair_queue", &[]),
    ("limits", "memory_budget", &[]),
    ("limits", "overload", &[]),
    ("http", "spool", &[]),
    ("http", "known_clients", &[]),
    ("http", "observer", &["known_clients", "spool"]),
    ("http", "handler", &["absent", "known_clients", "observer", "spool"]),
    ("http", "routing", &["handler", "known_clients"]),
    ("http", "connection", &["handler", "known_clients", "routing"]),
    ("gateway", "regular", &[]),
    ("gateway", "objects", &[]),
    ("gateway", "ingress", &["objects", "regular"]),
    ("gateway", "translate", &["ingress", "objects", "regular"]),
    ("gateway", "client", &["objects"]),
    ("tailcoat", "confinement", &[]),
    ("tailcoat", "control", &[]),
    ("tailcoat", "control_plane", &["control", "stream_proxy"]),
    ("tailcoat", "stream_proxy", &[]),
    ("tailcoat", "worker", &[]),
    ("tailor", "units", &[]),
    ("tailor", "statistics", &[]),
    ("tailor", "nodes", &[]),
    ("tailor", "input", &[]),
    ("tailor", "engine", &["units"]),
    ("tailor", "output", &[]),
    ("tailor", "programs", &[]),
    ("tailor", "report", &["units", "engine", "bench", "output"]),
    ("tailor", "end", &[]),
    (
        "tailor",
        "bench",
        &["units", "nodes", "input", "engine", "report", "search", "end", "statistics", "output", "programs"],
    ),
    ("tailor", "import", &["units", "input", "bench", "end", "output"]),
    ("tailor", "diff", &["units", "input", "statistics", "report", "end", "output"]),
    ("tailor", "history", &["units", "report", "diff", "end", "output"]),
    ("tailor", "agent", &["units", "nodes", "input", "engine", "report", "bench", "end"]),
    ("tailor", "web99", &["units", "engine", "bench", "report", "search", "end", "output"]),
];

/// The load generator measures all servers alike: no crate of the server depends on it, and it depends on none of them.
const LOAD_GENERATOR: &str = "tailor";

/// Folder of documents whose mentions of files and functions must be true.
const DECISIONS: &str = "docs/decisions/";

/// Other documents whose mentions must be true.
const DOCUMENTS: [&str; 5] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs/internals.md"];

/// Faults of the repository at `root`, a line each.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let files = match load(root) {
        Ok(files) => files,
        Err(message) => return vec![message],
    };
    let mut problems = Vec::new();
    let rooms: BTreeSet<(&str, &str)> = files.iter().filter_map(TidyFile::room).collect();
    for file in &files {
        check_shape(file, &mut problems);
        check_edges(file, &rooms, &mut problems);
        if file.extension() == "md" {
            problems.extend(links::broken(root, &file.path, &file.text));
            problems.extend(release::unreleased(&file.path, &file.text));
        }
    }
    check_manifests(&files, &mut problems);
    check_rooms(&files, &mut problems);
    check_mentions(&files, &mut problems);
    check_dependency_reasons(&files, &mut problems);
    problems.extend(charts::check(root));
    problems.extend(questions::problems(root));
    problems
}

/// A file of the repository, by its path from the root.
pub(crate) struct TidyFile {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl TidyFile {
    fn extension(&self) -> &str {
        self.path.rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    /// The crate it is the source of, and the room in it: `crates/CRATE/src/ROOM…`.
    fn room(&self) -> Option<(&str, &str)> {
        let (name, rest) = self.path.strip_prefix("crates/")?.split_once("/src/")?;
        let room = rest.split('/').next()?;
        Some((name, room.strip_suffix(".rs").unwrap_or(room)))
    }

    /// Lines with their numbers, from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.split('\n').enumerate().map(|(index, line)| (index + 1, line))
    }
}

/// All files of text that are in the repository, or will be when they are added.
pub(crate) fn load(root: &Path) -> Result<Vec<TidyFile>, String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot start git: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let paths = String::from_utf8_lossy(&output.stdout).into_owned();
    // Bytes that are no text, and files that were deleted but not yet committed as such, are left out.
    let read = |path: &str| Some(TidyFile { path: path.into(), text: std::fs::read_to_string(root.join(path)).ok()? });
    Ok(paths.lines().filter_map(read).collect())
}

fn check_shape(file: &TidyFile, problems: &mut Vec<String>) {
    let path = &file.path;
    if !WRITTEN.contains(&file.extension()) {
        return;
    }
    let lines = file.text.lines().count();
    if file.extension() == "rs" && lines > RUST_LINES_MAX {
        problems.push(format!("{path}: {lines} lines; split it"));
    }
    if !file.text.is_empty() && (!file.text.ends_with('\n') || file.text.ends_with("\n\n")) {
        problems.push(format!("{path}: does not end with one line feed"));
    }
    for (number, line) in file.lines() {
        if line.ends_with([' ', '\t', '\r']) {
            problems.push(format!("{path}:{number}: white space at the end"));
        }
        for mark in UNFINISHED.iter().map(|mark| mark.concat()).filter(|mark| line.contains(mark.as_str())) {
            problems.push(format!("{path}:{number}: not finished: {mark}"));
        }
        for home in HOMES.iter().map(|home| home.concat()).filter(|home| line.contains(home.as_str())) {
            problems.push(format!("{path}:{number}: home directory of one person: {home}"));
        }
    }
}

fn check_edges(file: &TidyFile, rooms: &BTreeSet<(&str, &str)>, problems: &mut Vec<String>) {
    let Some((name, room)) = file.room() else { return };
    let allowed = EDGES.iter().find(|(of, from, _)| (*of, *from) == (name, room)).map(|(.., to)| *to);
    for (number, line) in file.lines().filter(|(_, line)| !line.trim_start().starts_with("//")) {
        let place = || format!("{}:{number}", file.path);
        if name == "wire" {
            let known = INPUT_OUTPUT.iter().find(|known| line.contains(*known));
            problems.extend(known.map(|known| format!("{}: wire must not know {known}", place())));
        }
        for other in line.split("crate::").skip(1).filter_map(first_word) {
            // Other names are types, or crates.
            let is_other_room = other != room && rooms.contains(&(name, other));
            if is_other_room && allowed.is_some_and(|allowed| !allowed.contains(&other)) {
                problems.push(format!("{}: {room} must not know {other}", place()));
            }
        }
    }
}

fn first_word(text: &str) -> Option<&str> {
    text.split(|byte: char| !byte.is_ascii_alphanumeric() && byte != '_').next().filter(|word| !word.is_empty())
}

fn check_manifests(files: &[TidyFile], problems: &mut Vec<String>) {
    for file in files {
        let Some(name) = file.path.strip_prefix("crates/").and_then(|path| path.strip_suffix("/Cargo.toml")) else {
            continue;
        };
        let is_of_server = |other: &str| other.starts_with("tailcoat");
        let is_forbidden =
            |other: &str| if name == LOAD_GENERATOR { is_of_server(other) } else { other == LOAD_GENERATOR };
        let dependencies = file.text.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
        for other in dependencies.filter(|other| is_forbidden(other)) {
            problems.push(format!("{}: must not depend on {other}", file.path));
        }
    }
}

/// Document that says what each room is for.
const ROOMS: &str = "docs/internals.md";

/// Each folder of sources is a room, and [`ROOMS`] names it.
fn check_rooms(files: &[TidyFile], problems: &mut Vec<String>) {
    let named = text_of(files, ROOMS);
    let mut rooms = BTreeSet::new();
    for file in files.iter().filter(|file| file.extension() == "rs" && file.room().is_some()) {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        rooms.extend(folder.split_once("/src/").map(|(_, room)| room));
    }
    for room in rooms.iter().filter(|room| !named.contains(&format!("`{room}/`"))) {
        problems.push(format!("{ROOMS}: does not name the room `{room}/`"));
    }
}

/// A file in a document exists: `accept.rs`, `worker/accept.rs`, `conformance/`. A function, `drive_reading()`, is in the
/// file named before it on the line.
fn check_mentions(files: &[TidyFile], problems: &mut Vec<String>) {
    let is_checked = |path: &str| path.starts_with(DECISIONS) || DOCUMENTS.contains(&path);
    for document in files.iter().filter(|file| is_checked(&file.path)) {
        for (number, line) in document.lines() {
            let mut last: Option<&TidyFile> = None;
            for mention in line.split('`').skip(1).step_by(2) {
                let place = || format!("{}:{number}", document.path);
                if mention.ends_with(".rs") && !mention.contains(char::is_whitespace) {
                    last = files.iter().find(|file| is_path_end(&file.path, mention));
                    if last.is_none() {
                        problems.push(format!("{}: there is no file {mention}", place()));
                    }
                } else if let Some(function) = mention.strip_suffix("()")
                    && let Some(file) = last
                {
                    let function = function.rsplit("::").next().unwrap_or(function);
                    let begins = |end| file.text.contains(&format!("fn {function}{end}"));
                    if !begins('(') && !begins('<') {
                        problems.push(format!("{}: there is no function {mention} in {}", place(), file.path));
                    }
                }
            }
        }
    }
}

fn is_path_end(path: &str, end: &str) -> bool {
    path.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

/// Each library has a line of reason in CONTRIBUTING.md.
fn check_dependency_reasons(files: &[TidyFile], problems: &mut Vec<String>) {
    let contributing = text_of(files, "CONTRIBUTING.md");
    for name in external_dependencies(text_of(files, "Cargo.toml")) {
        if !contributing.contains(&format!("`{name}`")) {
            problems.push(format!("CONTRIBUTING.md: gives no reason for the dependency `{name}`"));
        }
    }
}

/// The names in `[workspace.dependencies]` that are not ours.
fn external_dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    manifest
        .lines()
        .skip_while(|line| *line != "[workspace.dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.contains("path = "))
        .filter_map(|line| Some(line.split_once(" = ")?.0))
}

fn text_of<'a>(files: &'a [TidyFile], path: &str) -> &'a str {
    files.iter().find(|file| file.path == path).map_or("", |file| &file.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let problems = check(&root);
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    fn file(path: &str, text: &str) -> TidyFile {
        TidyFile { path: path.into(), text: text.into() }
    }

    #[test]
    fn shape_and_edges() {
        let rooms = BTreeSet::from([("wire", "http"), ("wire", "h1"), ("http", "routing"), ("http", "spool")]);
        for (path, text, expect) in [
            ("a.rs", "fn a() {}\n", ""),
            ("a.rs", "fn a() {} \n", "a.rs:1: white space at the end"),
            ("a.rs", "fn a() {}", "a.rs: does not end with one line feed"),
            ("a.rs", "\n// FI\x58ME\n", "a.rs:2: not finished: FI\x58ME"),
            ("a.cases", "anything ", ""),
            ("crates/wire/src/h1/a.rs", "use std::fs;\n", "crates/wire/src/h1/a.rs:1: wire must not know std::fs"),
            ("crates/wire/src/h1/a.rs", "// std::fs\nuse crate::http::Method;\n", ""),
            ("crates/wire/src/http/a.rs", "use crate::h1::A;\n", "crates/wire/src/http/a.rs:1: http must not know h1"),
            (
                "crates/http/src/spool/mod.rs",
                "use crate::config;\nuse crate::routing;\n",
                "crates/http/src/spool/mod.rs:2: spool must not know routing",
            ),
            ("crates/tailcoat/src/server.rs", "use crate::worker;\n", ""),
        ] {
            let mut problems = Vec::new();
            let file = file(path, text);
            check_shape(&file, &mut problems);
            check_edges(&file, &rooms, &mut problems);
            assert_eq!(problems.join("\n"), expect, "{path}: {text:?}");
        }
    }

    #[test]
    fn manifests_rooms_and_mentions() {
        let files = [
            file("Cargo.toml", "[workspace.dependencies]\nwire = { path = \"a\" }\nlibrary = \"1\"\n[profile.dev]\n"),
            file("crates/tailor/Cargo.toml", "[dependencies]\ntailcoat-http.workspace = true\nwire.workspace = true\n"),
            file(
                "crates/http/Cargo.toml",
                "[dependencies]\nhttp = { workspace = true }\ntailor = { workspace = true }\n",
            ),
            file("crates/tailor/src/engine/slot.rs", "fn drive() {}\n"),
            file("ARCHITECTURE.md", "`slot.rs` `drive()` `stop()`, `gone.rs`\n"),
            file("docs/decisions/0001-a.md", "`slot.rs` `wait()`\n"),
        ];
        let mut problems = Vec::new();
        check_manifests(&files, &mut problems);
        check_rooms(&files, &mut problems);
        check_mentions(&files, &mut problems);
        check_dependency_reasons(&files, &mut problems);
        assert_eq!(
            problems,
            [
                "crates/tailor/Cargo.toml: must not depend on tailcoat-http",
                "crates/http/Cargo.toml: must not depend on tailor",
                "docs/internals.md: does not name the room `engine/`",
                "ARCHITECTURE.md:1: there is no function stop() in crates/tailor/src/engine/slot.rs",
                "ARCHITECTURE.md:1: there is no file gone.rs",
                "docs/decisions/0001-a.md:1: there is no function wait() in crates/tailor/src/engine/slot.rs",
                "CONTRIBUTING.md: gives no reason for the dependency `library`",
            ]
        );
    }
}
