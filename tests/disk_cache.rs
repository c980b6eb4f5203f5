//! Response cache on disk: what survives restarts, crashes and upgrades, and what does not.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

use crate::support::function_server::{FunctionServer, field, response};
use crate::support::operated::Operated;
use crate::support::skips::skip;
use crate::support::versions::{AnyVersion, TestVersion};
use crate::support::waiting::{eventually, settled};
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

/// Number of responses on disk, and of those that were evicted.
fn entries_and_evictions(server: &Operated) -> (Option<u64>, Option<u64>) {
    let disk = &status(server)["disk_cache"];
    (disk["entries"].as_u64(), disk["evictions"].as_u64())
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
    eventually("all results are counted", || {
        let status = status(&server);
        let result = |name: &str| {
            let results = status["response_cache"].as_array().unwrap();
            results.iter().find(|result| result["result"] == name).map_or(0, |result| result["count"].as_u64().unwrap())
        };
        (result("disk-hit"), result("hit"), result("revalidated")) == (3, 5, 1) && status["disk_cache"]["hits"] == 5
    });
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
    // On a slow disk, writes of several responses were broken off. The next server removes what is left of them.
    let server = Operated::start(&text);
    eventually("the directory is searched", || server.file("errors.log").contains("disk cache searched"));
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
    bytes[0] ^= 1;
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
    // None may be left to be written later: beside ten long ones, some short ones have room, too.
    eventually("all but 30 are evicted", || entries_and_evictions(&server) == (Some(30), Some(30)));
    for page in 0..30 {
        get(&server.server, &format!("/{page}/size-100000"));
    }
    eventually("older ones are evicted", || entries_and_evictions(&server) == (Some(10), Some(80)));
    eventually("their files are removed", || {
        let total: u64 = files(&cache).iter().filter_map(|file| Some(std::fs::metadata(file).ok()?.len())).sum();
        total <= 1 << 20
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

/// Server whose memory holds few of these many pages, which are all on disk. `further`: an option of `disk`.
fn crowded(origin: &Origin, directory: &TempDir, pages: &[String], further: &str) -> Operated {
    let disk = format!("memory-bytes-max \"1MiB\"\n disk \"{}\"{further}", directory.path().join("cache").display());
    let server = Operated::start(&config(origin, &disk, "object-bytes-max \"1MiB\"\n request-directives"));
    for page in pages {
        get(&server.server, page);
    }
    // While evicted responses are still being freed, memory takes no other. So those that were fetched again come first in the
    // next round, after a pause.
    let (all, mut pages): (_, Vec<&String>) = (Some(pages.len() as u64), pages.iter().collect());
    eventually("all are on disk", || {
        // A response that is requested while a slow disk takes it may be fetched, and written from its start.
        let before = settled("writes end", || entries(&server));
        pages.sort_by_cached_key(|page| {
            let requests = origin.requests();
            get(&server.server, page);
            origin.requests() == requests
        });
        before == all && entries(&server) == all
    });
    server
}

fn status(server: &Operated) -> serde_json::Value {
    serde_json::from_slice(&server.order(&["status", "--json"]).stdout).unwrap()
}

fn open_files(server: &Operated) -> u64 {
    status(server)["object_cache"]["files"].as_u64().unwrap()
}

/// Pages that are read with their heads, and pages that the kernel sends.
fn pages() -> Vec<String> {
    (0..40).map(|page| format!("/{page}/size-{}", if page % 2 == 0 { 20_000 } else { 90_000 })).collect()
}

#[test]
fn hits_beyond_memory_are_sent_from_files() {
    let (origin, directory, pages) = (Origin::start(), tempfile::tempdir().unwrap(), pages());
    let server = crowded(&origin, &directory, &pages, "");
    let contents: Vec<String> = pages.iter().map(|page| get(&server.server, page)).collect();
    let (requests, hits) = (origin.requests(), status(&server)["disk_cache"]["hits"].as_u64().unwrap());
    for _ in 0..3 {
        for (page, content) in pages.iter().zip(&contents) {
            let size: usize = page.rsplit('-').next().unwrap().parse().unwrap();
            assert_eq!(content.split(';').nth(1).map(str::len), Some(size));
            assert!(get(&server.server, page) == *content, "{page}");
            let head = ask(&server.server, &format!("HEAD {page} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
            assert_eq!(field(&head, "content-length"), content.len().to_string());
            assert!(head.ends_with("\r\n\r\n") && field(&head, "cache-status").contains("hit"), "{head}");
            let part = get_with(&server.server, page, "Range: bytes=5-10\r\n");
            assert!(
                part.starts_with("HTTP/1.1 206") && part.ends_with(&format!("\r\n\r\n{}", &content[5..11])),
                "{part}"
            );
            assert!(field(&part, "cache-status").contains("hit"), "{part}");
            let end = get_with(&server.server, page, &format!("Range: bytes={}-\r\n", size - 30_000.min(size / 2)));
            assert!(end.ends_with(&content[content.len() - 1_000..]), "{page}");
        }
    }
    let both = format!(
        "GET {} HTTP/1.1\r\nHost: h\r\n\r\nGET {} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        pages[1], pages[2]
    );
    let both = ask(&server.server, &both);
    assert!(both.contains(&contents[1]) && both.ends_with(&contents[2]));
    assert_eq!(origin.requests(), requests);
    let status = status(&server);
    assert!(status["disk_cache"]["hits"].as_u64().unwrap() > hits + 100, "{status}");
    assert!(status["object_cache"]["files"].as_u64().unwrap() > 10, "{status}");
    assert!(status["object_cache"]["memory_bytes"].as_u64().unwrap() <= 1 << 20, "{status}");
    assert_eq!(status["disk_cache"]["damaged"], 0);
}

#[test]
fn responses_in_files_are_validated_and_invalidated() {
    let (origin, directory, mut pages) = (Origin::start(), tempfile::tempdir().unwrap(), pages());
    pages.iter_mut().for_each(|page| page.push_str("?Cache-Control:+max-age=1000|ETag:+\"v\""));
    let server = crowded(&origin, &directory, &pages, "");
    let contents: Vec<String> = pages.iter().map(|page| get(&server.server, page)).collect();
    let requests = origin.requests();
    let (page, content) = (&pages[0], &contents[0]);
    let unchanged = get_with(&server.server, page, "If-None-Match: \"v\"\r\n");
    assert!(unchanged.starts_with("HTTP/1.1 304") && unchanged.ends_with("\r\n\r\n"), "{unchanged}");
    assert_eq!((field(&unchanged, "etag"), origin.requests()), ("\"v\"", requests));
    // The client demands a validation, which needs the content in memory.
    let validated = get_with(&server.server, page, "Cache-Control: no-cache\r\n");
    assert!(validated.starts_with("HTTP/1.1 200") && validated.ends_with(content.as_str()), "{page}");
    assert!(get(&server.server, page) == *content);
    assert_eq!(origin.requests(), requests + 1, "one was validated");
    for (page, content) in pages.iter().zip(&contents).skip(1) {
        let post = format!("POST {page} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        assert!(ask(&server.server, &post).starts_with("HTTP/1.1 200"));
        assert!(get(&server.server, page) != *content, "{page}");
    }
}

/// A purge removes the files, and closes them although clients still read.
#[test]
fn a_purge_closes_files() {
    let (origin, directory, pages) = (Origin::start(), tempfile::tempdir().unwrap(), pages());
    let server = crowded(&origin, &directory, &pages, "");
    assert!(open_files(&server) > 0);
    let mut reader = server.server.connect();
    let request = format!("GET {} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", pages[1]);
    reader.write_all(request.as_bytes()).unwrap();
    let mut received = vec![0; 1];
    reader.read_exact(&mut received).unwrap();
    let before = get(&server.server, &pages[1]);
    assert!(server.order(&["cache", "purge", "--all"]).status.success());
    assert_eq!((files(&directory.path().join("cache")).len(), open_files(&server)), (0, 0));
    reader.read_to_end(&mut received).unwrap();
    assert!(String::from_utf8(received).unwrap().ends_with(&before), "what was begun is sent to its end");
    assert!(get(&server.server, &pages[1]) != before);
}

/// Bytes of removed files that the server keeps open.
fn removed_bytes(server: &Operated) -> u64 {
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.server.id())).unwrap();
    let removed = open.filter_map(|entry| {
        let path = entry.ok()?.path();
        let target = std::fs::read_link(&path).ok()?;
        let is_removed =
            target.to_string_lossy().contains("/cache/") && target.to_string_lossy().ends_with("(deleted)");
        is_removed.then(|| std::fs::metadata(path).map_or(0, |metadata| metadata.len()))
    });
    removed.sum()
}

/// Files of the cache that the server keeps open.
fn open_entries(server: &Operated) -> Vec<PathBuf> {
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.server.id())).unwrap();
    let targets = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("/cache/")).collect()
}

/// A response that only one request wanted leaves memory before one that two wanted, although that one is older.
#[test]
fn responses_for_a_single_request_are_closed_first() {
    let (origin, directory) = (Origin::start(), tempfile::tempdir().unwrap());
    let pages: Vec<String> = (0..15).map(|page| format!("/{page}/size-60000")).collect();
    let disk = format!("disk \"{}\"", directory.path().join("cache").display());
    let server = Operated::start(&config(&origin, &disk, ""));
    pages.iter().for_each(|page| drop(get(&server.server, page)));
    await_entries(&server, 15);
    drop(server);
    let file_of = |number: &str| {
        let mut files = files(&directory.path().join("cache")).into_iter();
        files.find(|file| std::fs::read(file).unwrap().starts_with(number.as_bytes())).unwrap()
    };
    let (twice, once) = (file_of("1;"), file_of("2;"));
    // Memory has room for none of them.
    let disk = format!("memory-bytes-max \"64KiB\"\n files-max 10\n {disk}");
    let server = Operated::start(&config(&origin, &disk, ""));
    await_entries(&server, 15);
    pages[..1].iter().chain(&pages).for_each(|page| drop(get(&server.server, page)));
    assert_eq!(origin.requests(), 15);
    eventually("the first that was requested once is closed", || !open_entries(&server).contains(&once));
    assert!(open_entries(&server).contains(&twice));
}

#[test]
fn evicted_files_are_closed() {
    let (origin, directory, pages) = (Origin::start(), tempfile::tempdir().unwrap(), pages());
    let server = crowded(&origin, &directory, &pages, " files-max=40");
    pages.iter().for_each(|page| drop(get(&server.server, page)));
    assert!(open_files(&server) > 0);
    for page in 40..100 {
        get(&server.server, &format!("/{page}/size-20000"));
    }
    eventually("none of the first is on disk or open", || entries(&server) == Some(40) && removed_bytes(&server) == 0);
}

/// Another program cuts or changes files while they are open: they are fetched again, and no response breaks off.
#[test]
fn files_that_change_while_they_are_open_are_not_served() {
    let (origin, directory, pages) = (Origin::start(), tempfile::tempdir().unwrap(), pages());
    for is_cut in [true, false] {
        let server = crowded(&origin, &directory, &pages, "");
        assert!(open_files(&server) > 10);
        let (before, count) = (origin.requests(), open_files(&server));
        for path in files(&directory.path().join("cache")) {
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            match is_cut {
                true => file.set_len(1_000).unwrap(),
                false => std::os::unix::fs::FileExt::write_all_at(&file, b"X", 2_000).unwrap(),
            }
        }
        for page in &pages {
            let content = get(&server.server, page);
            let size = page.rsplit('-').next().unwrap().parse().unwrap();
            assert_eq!(content.split(';').nth(1), Some("x".repeat(size).as_str()), "{page}");
        }
        assert!(origin.requests() >= before + count as usize);
        assert!(status(&server)["disk_cache"]["damaged"].as_u64().unwrap() > 0);
        assert!(server.order(&["cache", "purge", "--all"]).status.success());
    }
}

#[test]
fn files_are_the_same_in_all_versions() {
    let directory = tempfile::tempdir().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let origin = FunctionServer::start(move |head| {
        counted.fetch_add(1, Ordering::SeqCst);
        let target = head.split(' ').nth(1).unwrap_or_default();
        let size: usize = target.rsplit('-').next().unwrap().parse().unwrap();
        let content: String = (0..size).map(|at| char::from(b'a' + (at % 23 + at / 977) as u8 % 26)).collect();
        response(
            "200 OK",
            "Cache-Control: max-age=1000\r\nContent-Type: text/html\r\nETag: \"v\"\r\nX-A: 1\r\n",
            &content,
        )
    });
    let options = format!(" forward \"http://{}\" {{\n cache {{\n object-bytes-max \"1MiB\"\n }}\n }}", origin.address);
    let cache =
        format!("cache {{\n memory-bytes-max \"1MiB\"\n disk \"{}\"\n}}", directory.path().join("cache").display());
    let Some(server) = AnyVersion::start(&options, &cache) else { return };
    let pages = pages();
    // The scheme is part of the key. As in `crowded`, those that were fetched again come first in the next round.
    let mut asked: Vec<_> = [TestVersion::H1, TestVersion::H2]
        .iter()
        .flat_map(|version| pages.iter().map(move |page| (*version, page)))
        .collect();
    eventually("all are on disk", || {
        let before = count.load(Ordering::SeqCst);
        asked.sort_by_cached_key(|(version, page)| {
            let fetched = count.load(Ordering::SeqCst);
            server.ask(*version, page, &[]);
            count.load(Ordering::SeqCst) == fetched
        });
        let files = files(&directory.path().join("cache"));
        let written = files.iter().filter(|file| !file.to_string_lossy().contains("tmp-")).count();
        count.load(Ordering::SeqCst) == before && written == 2 * pages.len()
    });
    let fetched = count.load(Ordering::SeqCst);
    for page in &pages[..6] {
        let size: usize = page.rsplit('-').next().unwrap().parse().unwrap();
        let whole = server.ask_all(page, &[]);
        assert_eq!((whole.status, whole.content.len(), whole.field("x-a")), (200, size, Some("1")), "{page}");
        let part = server.ask_all(page, &["--range", "100-299"]);
        assert!(part.status == 206 && part.content == whole.content[100..300], "{page}");
        assert_eq!(server.ask_all(page, &["--header", "If-None-Match: \"v\""]).status, 304, "{page}");
        assert_eq!(
            server.ask_all(page, &["--head"]).field("content-length"),
            Some(size.to_string().as_str()),
            "{page}"
        );
    }
    // Compressed from the files.
    for page in &pages[..6] {
        for version in [TestVersion::H1, TestVersion::H2] {
            let whole = server.ask(version, page, &[]);
            let decoded = server.ask(version, page, &["--compressed", "--header", "Accept-Encoding: gzip"]);
            assert!(decoded.content == whole.content, "{page} {version:?}");
            assert_eq!(whole.field("vary"), Some("Accept-Encoding"));
        }
    }
    assert_eq!(count.load(Ordering::SeqCst), fetched);
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
    eventually("no parts of responses are left", || {
        !files(&full).iter().any(|file| file.to_string_lossy().contains("tmp-"))
    });
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
