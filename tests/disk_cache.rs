//! Response cache on disk: what survives restarts, crashes and upgrades, and what does not.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

use crate::support::function_server::{FunctionServer, field, response};
use crate::support::operated::Operated;
use crate::support::skips::skip;
use crate::support::waiting::eventually;
use crate::support::{TestServer, ask};

/// Server whose responses count its requests. Fields of a response are those of the query, as in
/// `/?Cache-Control:+max-age=9|Vary:+A`.
struct Origin {
    server: FunctionServer,
    count: Arc<AtomicUsize>,
}

impl Origin {
    fn start() -> Self {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let server = FunctionServer::start(move |head| {
            let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
            let target = head.split(' ').nth(1).unwrap_or_default();
            if !field(head, "if-none-match").is_empty() {
                return "HTTP/1.1 304 Not Modified\r\nETag: \"v\"\r\nCache-Control: max-age=1000\r\n\r\n".to_owned();
            }
            let fields = target.split_once('?').map_or("", |(_, query)| query).replace('+', " ").replace('|', "\r\n");
            let fields = if fields.is_empty() { "Cache-Control: max-age=1000".to_owned() } else { fields };
            let size = target.split_once("/size-").and_then(|(_, size)| size.parse().ok()).unwrap_or(0);
            let content =
                if head.starts_with("HEAD") { String::new() } else { format!("{number};") + &"x".repeat(size) };
            response("200 OK", &format!("{fields}\r\n"), &content)
        });
        Self { server, count }
    }

    fn requests(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

fn config(origin: &Origin, disk: &str, cache: &str) -> String {
    format!(
        "cache {{\n {disk}\n}}\nsite {{\n listen \"127.0.0.1:0\"\n forward \"http://{}\" {{\n cache {{\n cache-status\n \
         {cache}\n }}\n }}\n}}\n",
        origin.server.address
    )
}

/// Configuration with a directory that outlives the server.
fn lasting(origin: &Origin, directory: &TempDir) -> String {
    config(origin, &format!("disk \"{}\"", directory.path().join("cache").display()), "")
}

fn get_with(server: &TestServer, target: &str, fields: &str) -> String {
    ask(server, &format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}Connection: close\r\n\r\n"))
}

fn get(server: &TestServer, target: &str) -> String {
    let answer = get_with(server, target, "");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned()
}

/// Number of responses on disk, as the server reports it.
fn entries(server: &Operated) -> Option<u64> {
    let output = server.order(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    status["disk_cache"]["entries"].as_u64()
}

fn await_entries(server: &Operated, count: u64) {
    eventually(&format!("{count} responses are on disk"), || entries(server) == Some(count));
}

/// All files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn responses_survive_a_restart() {
    let (origin, directory) = (Origin::start(), tempfile::tempdir().unwrap());
    let text = lasting(&origin, &directory);
    let varied = "/varied?Cache-Control:+max-age=1000|Vary:+X-A|ETag:+\"e\"|Content-Type:+text/plain";
    let server = Operated::start(&text);
    assert_eq!(get(&server.server, "/a"), "1;");
    for (value, expect) in [("1", "2;"), ("2", "3;"), ("3", "4;")] {
        let answer = get_with(&server.server, varied, &format!("X-A: {value}\r\n"));
        assert!(answer.ends_with(expect), "{answer}");
    }
    assert_eq!(get(&server.server, "/stale?Cache-Control:+max-age=0|ETag:+\"v\""), "5;");
    await_entries(&server, 5);
    server.server.signal("KILL");
    let server = Operated::start(&text);
    await_entries(&server, 5);
    let answer = get_with(&server.server, "/a", "");
    assert!(answer.ends_with("1;") && field(&answer, "cache-status").contains("hit"), "{answer}");
    assert!(!field(&answer, "age").is_empty(), "{answer}");
    for (value, expect) in [("3", "4;"), ("1", "2;"), ("2", "3;")] {
        let answer = get_with(&server.server, varied, &format!("X-A: {value}\r\n"));
        assert!(answer.ends_with(expect), "{answer}");
        let answer = get_with(&server.server, varied, &format!("X-A: {value}\r\nIf-None-Match: \"e\"\r\n"));
        assert!(answer.starts_with("HTTP/1.1 304"), "{answer}");
    }
    let answer = get_with(&server.server, varied, "X-A: 3\r\nRange: bytes=0-0\r\n");
    assert!(answer.starts_with("HTTP/1.1 206") && answer.ends_with("\r\n\r\n4"), "{answer}");
    assert_eq!(origin.requests(), 5, "nothing was fetched again");
    // A stale one is validated; the updated one is on disk again.
    assert_eq!(get(&server.server, "/stale?Cache-Control:+max-age=0|ETag:+\"v\""), "5;");
    assert_eq!(origin.requests(), 6);
    // Responses are read from disk once, then served from memory.
    let metrics = server.order(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&metrics.stdout).unwrap();
    let result = |name: &str| {
        let results = status["response_cache"].as_array().unwrap();
        results.iter().find(|result| result["result"] == name).map_or(0, |result| result["count"].as_u64().unwrap())
    };
    assert_eq!((result("disk-hit"), result("hit"), result("revalidated")), (3, 5, 1), "{status}");
    assert_eq!(status["disk_cache"]["hits"], 5);
}

#[test]
fn a_head_or_range_finds_what_is_on_disk() {
    let (origin, directory) = (Origin::start(), tempfile::tempdir().unwrap());
    let text = lasting(&origin, &directory);
    let server = Operated::start(&text);
    get(&server.server, "/a");
    get(&server.server, "/b");
    await_entries(&server, 2);
    drop(server);
    let server = Operated::start(&text);
    await_entries(&server, 2);
    let head = ask(&server.server, "HEAD /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && field(&head, "content-length") == "2", "{head}");
    let part = get_with(&server.server, "/b", "Range: bytes=1-\r\n");
    assert!(part.starts_with("HTTP/1.1 206") && part.ends_with("\r\n\r\n;"), "{part}");
    assert_eq!(origin.requests(), 2);
}

#[test]
fn removals_are_on_disk_before_they_are_confirmed() {
    let (origin, directory) = (Origin::start(), tempfile::tempdir().unwrap());
    let text = lasting(&origin, &directory);
    for purge in
        [&["cache", "purge", "http://h/a"][..], &["cache", "purge", "http://h/*"], &["cache", "purge", "--all"], &[]]
    {
        let server = Operated::start(&text);
        let first = get(&server.server, "/a");
        eventually("it is on disk", || entries(&server).is_some_and(|count| count > 0));
        // In memory as well, or on disk alone.
        for restart in [false, true] {
            let server = if restart { Operated::start(&text) } else { continue };
            eventually("it is found", || entries(&server).is_some_and(|count| count > 0));
            match purge {
                [] => {
                    let post = "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                    assert!(ask(&server.server, post).starts_with("HTTP/1.1 200"));
                }
                purge => {
                    let output = server.order(purge);
                    assert!(String::from_utf8_lossy(&output.stdout).contains('1'), "{purge:?}: {output:?}");
                }
            }
            server.server.signal("KILL");
        }
        drop(server);
        let server = Operated::start(&text);
        eventually("the directory is searched", || server.file("errors.log").contains("disk cache searched"));
        assert_ne!(get(&server.server, "/a"), first, "{purge:?}");
        assert!(server.order(&["cache", "purge", "--all"]).status.success());
    }
}

#[test]
fn a_purge_by_tag_reaches_memory_and_disk() {
    let (origin, directory) = (Origin::start(), tempfile::tempdir().unwrap());
    let text = lasting(&origin, &directory);
    let one = "/a?Cache-Control:+max-age=1000|Surrogate-Key:+one+all";
    let two = "/b?Cache-Control:+max-age=1000|Cache-Tag:+two,+all";
    let purge = |server: &Operated, tag: &str| {
        let output = server.order(&["cache", "purge", "--tag", tag]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let server = Operated::start(&text);
    let first = (get(&server.server, one), get(&server.server, two));
    await_entries(&server, 2);
    assert_eq!(purge(&server, "three"), "0\n");
    drop(server);

    // On disk alone: found by the search of the next process.
    let server = Operated::start(&text);
    await_entries(&server, 2);
    assert_eq!(purge(&server, "ONE"), "1\n");
    assert_eq!(get(&server.server, two), first.1);
    drop(server);
    let server = Operated::start(&text);
    await_entries(&server, 1);
    let second = get(&server.server, one);
    assert_ne!(second, first.0);
    assert_eq!(get(&server.server, two), first.1);

    // In memory and on disk.
    await_entries(&server, 2);
    assert_eq!(purge(&server, "all"), "2\n");
    assert!(get(&server.server, one) != second && get(&server.server, two) != first.1);
    for wrong in
        [&["cache", "purge"][..], &["cache", "purge", "--tag", "a b"], &["cache", "purge", "--all", "--tag", "a"]]
    {
        assert_eq!(server.order(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_killed_server_serves_no_half_of_a_response() {
    let (origin, directory) = (Origin::start(), tempfile::tempdir().unwrap());
    let text = lasting(&origin, &directory).replace("cache-status", "cache-status\n object-bytes-max \"4MiB\"");
    let size = 300_000;
    for round in 0..12 {
        let server = Operated::start(&text);
        for page in 0..8 {
            let content = get(&server.server, &format!("/{page}/size-{size}"));
            let (number, rest) = content.split_once(';').unwrap();
            assert!(rest.len() == size && number.parse::<usize>().is_ok(), "round {round}: {} bytes", rest.len());
            if page == round % 8 {
                server.server.signal("KILL");
                break;
            }
        }
    }
    assert!(files(&directory.path().join("cache")).len() <= 9);
}

#[test]
fn a_changed_file_is_not_served() {
    let (origin, directory) = (Origin::start(), tempfile::tempdir().unwrap());
    let text = lasting(&origin, &directory);
    let server = Operated::start(&text);
    get(&server.server, "/a");
    await_entries(&server, 1);
    drop(server);
    let file = files(&directory.path().join("cache")).remove(0);
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let server = Operated::start(&text);
    await_entries(&server, 1);
    assert_eq!(get(&server.server, "/a"), "2;");
    let output = server.order(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["disk_cache"]["damaged"], 1);
}

#[test]
fn the_limits_hold() {
    let (origin, directory) = (Origin::start(), tempfile::tempdir().unwrap());
    let cache = directory.path().join("cache");
    let disk = format!("disk \"{}\" bytes-max=\"1MiB\" files-max=30", cache.display());
    let server = Operated::start(&config(&origin, &disk, ""));
    for page in 0..60 {
        get(&server.server, &format!("/{page}/size-1000"));
    }
    await_entries(&server, 30);
    for page in 0..30 {
        get(&server.server, &format!("/{page}/size-100000"));
    }
    eventually("older ones are evicted", || {
        let total: u64 = files(&cache).iter().filter_map(|file| Some(std::fs::metadata(file).ok()?.len())).sum();
        entries(&server).is_some_and(|count| count <= 10) && total <= 1 << 20
    });
}

#[test]
fn memory_may_be_smaller_than_the_disk() {
    let (origin, directory) = (Origin::start(), tempfile::tempdir().unwrap());
    let disk = format!("memory-bytes-max \"256KiB\"\n disk \"{}\"", directory.path().join("cache").display());
    let server = Operated::start(&config(&origin, &disk, ""));
    for page in 0..40 {
        // While evicted responses are still being freed, memory takes no other.
        eventually("it is on disk", || {
            get(&server.server, &format!("/{page}/size-20000"));
            entries(&server) == Some(page + 1)
        });
    }
    let requests = origin.requests();
    for round in 0..5 {
        for page in 0..40 {
            let content = get(&server.server, &format!("/{page}/size-20000"));
            assert_eq!(content.split(';').nth(1).map(str::len), Some(20_000), "{round} {page}");
        }
    }
    assert_eq!(origin.requests(), requests, "the disk has them all");
}

#[test]
fn an_upgrade_shares_the_directory() {
    let (origin, directory) = (Origin::start(), tempfile::tempdir().unwrap());
    let mut server = Operated::start(&lasting(&origin, &directory));
    for page in 0..5 {
        get(&server.server, &format!("/{page}"));
    }
    await_entries(&server, 5);
    server.upgrade();
    await_entries(&server, 5);
    for page in 0..5 {
        assert_eq!(get(&server.server, &format!("/{page}")), format!("{};", page + 1));
    }
    assert_eq!(origin.requests(), 5);
}

#[test]
fn another_meaning_finds_nothing() {
    let (origin, directory) = (Origin::start(), tempfile::tempdir().unwrap());
    let text = lasting(&origin, &directory);
    let server = Operated::start(&text);
    assert_eq!(get(&server.server, "/a"), "1;");
    await_entries(&server, 1);
    server.reload(&text.replace("cache-status", "cache-status\n key-headers \"X-A\""));
    assert_eq!(get(&server.server, "/a"), "2;");
    server.reload(&text);
    assert_eq!(get(&server.server, "/a"), "1;", "the first is still on disk");
}

#[test]
fn a_full_disk_costs_no_request() {
    let (origin, directory) = (Origin::start(), tempfile::tempdir().unwrap());
    let full = directory.path().join("full");
    std::fs::create_dir(&full).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=128k", "tmpfs"]).arg(&full).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        return skip("mounting a file system needs more permissions");
    }
    let server = Operated::start(&config(&origin, &format!("disk \"{}\"", full.join("cache").display()), ""));
    for page in 0..20 {
        assert!(get(&server.server, &format!("/{page}/size-30000")).starts_with(&format!("{};", page + 1)));
    }
    server.server.await_log("writing to the disk cache failed");
    for page in 0..20 {
        assert!(get(&server.server, &format!("/{page}/size-30000")).starts_with(&format!("{};", page + 1)));
    }
    assert_eq!(origin.requests(), 20, "memory keeps them");
    let leftovers = files(&full).into_iter().filter(|file| file.to_string_lossy().contains("tmp-"));
    assert_eq!(leftovers.count(), 0);
    drop(server);
    let _ = Command::new("umount").arg("-l").arg(&full).output();
}

#[test]
fn a_directory_that_cannot_be_used_is_told() {
    let (origin, directory) = (Origin::start(), tempfile::tempdir().unwrap());
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let server = Operated::start(&config(&origin, &format!("disk \"{}\"", file.display()), ""));
    eventually("it is in the log", || server.file("errors.log").contains("disk cache not opened"));
    assert_eq!((get(&server.server, "/a"), get(&server.server, "/a")), ("1;".into(), "1;".into()));
}
