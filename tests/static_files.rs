//! Files, byte for byte, as a client gets them from the built server.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::upstream::ScriptStep::{Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::waiting::eventually;
use crate::support::{PATIENCE, TestServer};

/// Kept connection of a client.
struct KeepAliveClient {
    stream: BufReader<TcpStream>,
}

#[derive(Debug)]
struct RawResponse {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl KeepAliveClient {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    fn send(&mut self, method: &str, target: &str, fields: &str) {
        let request = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
    }

    /// Receives a response; `None` if the connection ends before it is complete.
    fn receive(&mut self, method: &str) -> Option<RawResponse> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let status = head[9..12].parse().unwrap();
        let mut answer = RawResponse { status, head, body: Vec::new() };
        if method != "HEAD" && status != 304 && status != 204 {
            let length = answer.field("Content-Length").expect("a length").parse().unwrap();
            answer.body.resize(length, 0);
            self.stream.read_exact(&mut answer.body).ok()?;
        }
        Some(answer)
    }

    fn get(&mut self, target: &str, fields: &str) -> RawResponse {
        self.send("GET", target, fields);
        self.receive("GET").expect("a whole answer")
    }
}

impl RawResponse {
    fn field(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }
}

/// Deterministic pseudo-random numbers.
struct FixedRandom(u64);

impl FixedRandom {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        (0..length).map(|_| self.below(256) as u8).collect()
    }
}

fn encode(path: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    path.bytes().map(encode).collect()
}

/// Issue 23: `try_files $uri $uri.html @app`, which rewrites could not say.
#[test]
fn extensions_are_tried_before_an_upstream() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["page.html", "secret.html", "both", "both.html", "inner.html", "led.html"] {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
    let upstream = ScriptedUpstream::start(vec![vec![
        Await("\r\n\r\n"),
        Say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nup"),
    ]]);
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n root \"{root}\"\n extensions \"html\"\n allow all path=\"/page.html\"\n allow all path=\"/led.html\"\n deny all path=\"*.html\"\n \
         internal \"/inner.html\" \"/led.html\"\n rewrite \"/way\" \"/led\"\n forward \"http://{upstream}\"\n}}\n",
        root = directory.path().display(),
        upstream = upstream.address
    ));
    let mut client = KeepAliveClient::connect(server.address);
    let mut check = |target: &str, status: u16, content: &str| {
        for _ in 0..2 {
            let got = client.get(target, "");
            assert_eq!((got.status, String::from_utf8_lossy(&got.body).as_ref()), (status, content), "{target}");
        }
    };
    check("/page", 200, "page.html");
    check("/page?a=b", 200, "page.html");
    check("/both", 200, "both");
    check("/other", 200, "up");
    check("/page/", 200, "up");
    // A rule for the file's own path holds.
    let got = client.get("/secret", "");
    assert_eq!((got.status, got.body == b"secret.html"), (403, false));
    // No extension opens what is internal; a rule of the operator leads there.
    for (target, status) in [("/inner", 404), ("/led", 404), ("/way", 200)] {
        assert_eq!(client.get(target, "").status, status, "{target}");
    }
}

#[test]
fn a_tree_byte_for_byte() {
    let directory = tempfile::tempdir().unwrap();
    let mut random = FixedRandom(1);
    let mut files = Vec::new();
    for index in 0..120u64 {
        let folder = ["", "a/", "a/b c/", "ünï/%41/", "deep/er/and/deep/er/"][index as usize % 5];
        let extension = ["html", "png", "bin", "txt"][index as usize % 4];
        let path = format!("{folder}file {index}.{extension}");
        // Sizes around the limits for copying, for the memory cache, and of a socket's buffer.
        let length = match index % 6 {
            0 => index % 3,
            1 => random.below(2000),
            2 => 65_535 + random.below(3),
            3 => random.below(70_000),
            4 => 100_000 + random.below(200_000),
            _ => 1000,
        };
        fs::create_dir_all(directory.path().join(folder)).unwrap();
        let content = random.bytes(length);
        fs::write(directory.path().join(&path), &content).unwrap();
        files.push((format!("/{}", encode(&path)), content));
    }
    let server = TestServer::serve(directory.path(), &[]);
    let mut client = KeepAliveClient::connect(server.address);
    for round in 0..2 {
        // Sixteen at a time, so that responses from memory and from files alternate.
        for batch in files.chunks(16) {
            for (target, _) in batch {
                client.send("GET", target, "");
                client.send("HEAD", target, "");
            }
            for (target, content) in batch {
                let got = client.receive("GET").unwrap();
                assert_eq!((got.status, got.body == *content), (200, true), "{target} in round {round}");
                let head = client.receive("HEAD").unwrap();
                assert_eq!(head.field("Content-Length"), Some(content.len().to_string().as_str()));
                assert_eq!((head.status, head.field("ETag")), (200, got.field("ETag")), "{target}");
            }
        }
    }
}

#[test]
fn ranges_are_slices() {
    let directory = tempfile::tempdir().unwrap();
    let mut random = FixedRandom(2);
    let contents = [("/small", random.bytes(5000)), ("/large", random.bytes(400_000))];
    for (name, content) in &contents {
        fs::write(directory.path().join(&name[1..]), content).unwrap();
    }
    // A file that has just been written has no strong entity tag, and so no If-Range.
    let server = TestServer::serve(directory.path(), &[]);
    let mut client = KeepAliveClient::connect(server.address);
    eventually("the entity tag is strong", || {
        client.get("/large", "").field("ETag").is_some_and(|tag| !tag.starts_with("W/"))
    });
    for _ in 0..100 {
        for (name, content) in &contents {
            let first = random.below(content.len() as u64) as usize;
            let last = first + random.below((content.len() - first) as u64) as usize;
            let got = client.get(name, &format!("Range: bytes={first}-{last}\r\n"));
            assert_eq!((got.status, got.body == content[first..=last]), (206, true), "{name} {first}-{last}");
            let content_range = format!("bytes {first}-{last}/{}", content.len());
            assert_eq!(got.field("Content-Range"), Some(content_range.as_str()));
            let etag = got.field("ETag").unwrap();
            let not_modified = client.get(name, &format!("If-None-Match: {etag}\r\n"));
            assert_eq!((not_modified.status, not_modified.field("ETag")), (304, Some(etag)));
            let suffix = random.below(content.len() as u64) as usize + 1;
            let got = client.get(name, &format!("Range: bytes=-{suffix}\r\nIf-Range: {etag}\r\n"));
            assert_eq!((got.status, got.body == content[content.len() - suffix..]), (206, true), "{name} -{suffix}");
        }
    }
    let got = client.get("/large", "Range: bytes=0-9,200000-200009,-10\r\n");
    let boundary = got.field("Content-Type").unwrap().split_once("boundary=").unwrap().1.to_owned();
    let content = &contents[1].1;
    let mut expect = Vec::new();
    for (range, part) in
        [("0-9", &content[..10]), ("200000-200009", &content[200_000..200_010]), ("399990-399999", &content[399_990..])]
    {
        let start = if expect.is_empty() { "" } else { "\r\n" };
        let head = "Content-Type: application/octet-stream\r\nContent-Range: bytes";
        expect.extend_from_slice(format!("{start}--{boundary}\r\n{head} {range}/400000\r\n\r\n").as_bytes());
        expect.extend_from_slice(part);
    }
    expect.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    assert_eq!((got.status, got.body == expect), (206, true));
}

#[test]
fn a_release_is_switched_by_a_link() {
    let directory = tempfile::tempdir().unwrap();
    let current = directory.path().join("current");
    for release in ["1", "2"] {
        fs::create_dir(directory.path().join(release)).unwrap();
        fs::write(directory.path().join(release).join("index.html"), release).unwrap();
    }
    symlink("1", &current).unwrap();
    let server = TestServer::serve(&current, &[]);
    let mut client = KeepAliveClient::connect(server.address);
    for release in ["1", "2", "1"] {
        symlink(release, directory.path().join("next")).unwrap();
        fs::rename(directory.path().join("next"), &current).unwrap();
        eventually("the release is served", || client.get("/", "").body == release.as_bytes());
    }
}

/// Changes a file of 300 KB all the time. Slow and fast clients each get one version of it, or can detect that they did
/// not.
#[track_caller]
fn check_storm(write: impl Fn(&Path, &[u8]) + Sync) {
    const LENGTH: usize = 300_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    write(&path, &[0; LENGTH]);
    let server = TestServer::serve(directory.path(), &[]);
    let (ended, began, whole) = (AtomicBool::new(false), Instant::now(), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            for version in (0..=255u8).cycle().take_while(|_| !ended.load(Ordering::Relaxed)) {
                write(&path, &[version; LENGTH]);
                // Long enough for some clients to get a whole version.
                thread::sleep(Duration::from_millis(20));
            }
        });
        let clients: Vec<_> = [0, 2]
            .map(|pause_ms| {
                let (address, whole) = (server.address, &whole);
                scope.spawn(move || {
                    // On a busy machine, it may take longer to get a whole version.
                    let is_over = || match whole.load(Ordering::Relaxed) {
                        0 => began.elapsed() > PATIENCE,
                        _ => began.elapsed() > Duration::from_secs(2),
                    };
                    while !is_over() {
                        let mut client = KeepAliveClient::connect(address);
                        client.send("GET", "/file", "");
                        // A slow client.
                        thread::sleep(Duration::from_millis(pause_ms));
                        let Some(got) = client.receive("GET") else { continue };
                        if got.status == 503 {
                            continue;
                        }
                        assert_eq!(got.status, 200);
                        assert!(got.body.is_empty() || got.body.len() == LENGTH, "{} bytes", got.body.len());
                        let version = got.body.first().copied().unwrap_or_default();
                        assert!(got.body.iter().all(|byte| *byte == version), "a mixture");
                        whole.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .into_iter()
            .collect();
        let results: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
        ended.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    assert!(whole.into_inner() > 0, "no client got a whole response");
}

#[test]
fn a_file_replaced_all_the_time() {
    check_storm(|path, content| {
        fs::write(path.with_extension("new"), content).unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    });
}

#[test]
fn a_file_rewritten_all_the_time() {
    check_storm(|path, content| fs::write(path, content).unwrap());
}

/// The server sends files that have long been unchanged from the page cache, and trusts them for a moment. It cannot
/// detect writes into queued pages, so this test makes none: truncating to zero drops the pages (truncating to another
/// length writes zeros into large ones).
#[test]
fn settled_files_that_change_while_they_are_sent() {
    const LENGTH: usize = 300_000;
    const SETTLED: Duration = Duration::from_secs(11);
    let directory = tempfile::tempdir().unwrap();
    let changes: [fn(&Path); 4] = [
        |path| fs::File::options().write(true).open(path).unwrap().set_len(0).unwrap(),
        |path| fs::File::options().write(true).open(path).unwrap().set_len(2 * LENGTH as u64).unwrap(),
        |path| fs::write(path, vec![b'b'; LENGTH]).unwrap(),
        |path| {
            fs::write(path.with_extension("new"), vec![b'b'; LENGTH]).unwrap();
            fs::rename(path.with_extension("new"), path).unwrap();
        },
    ];
    let names: Vec<_> = (0..10 * changes.len()).map(|index| index.to_string()).collect();
    for name in &names {
        fs::write(directory.path().join(name), vec![b'a'; LENGTH]).unwrap();
    }
    let server = TestServer::serve(directory.path(), &[]);
    // The server compares with the time of the inode's last change, which no test can set.
    thread::sleep(SETTLED);
    for (index, name) in names.iter().enumerate() {
        let target = format!("/{name}");
        let mut client = KeepAliveClient::connect(server.address);
        assert!(client.get(&target, "").body == vec![b'a'; LENGTH]);
        client.send("GET", &target, "");
        if index % 2 == 0 {
            // A part of the file is on its way.
            client.stream.fill_buf().unwrap();
        }
        changes[index / 10](&directory.path().join(name));
        let Some(got) = client.receive("GET") else { continue };
        let content = &got.body;
        // A client that asks late enough gets the new file, also whole.
        assert_eq!(got.field("Content-Length"), Some(&*content.len().to_string()));
        let version = content.first().copied().unwrap_or_default();
        let is_grown = content.len() == 2 * LENGTH && content[LENGTH..].iter().all(|byte| *byte == 0);
        let old = if is_grown { &content[..LENGTH] } else { &content[..] };
        let mixed = old.iter().position(|byte| *byte != version);
        assert_eq!(mixed, None, "a mixture in {name}, of {} bytes", content.len());
        assert!([0, LENGTH, 2 * LENGTH].contains(&content.len()), "{} bytes", content.len());
    }
}

#[test]
fn a_download_outlives_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let content = FixedRandom(3).bytes(8 << 20);
    for replace in [true, false] {
        fs::write(&path, &content).unwrap();
        let server = TestServer::serve(directory.path(), &[]);
        let mut client = KeepAliveClient::connect(server.address);
        client.send("GET", "/file", "");
        client.stream.fill_buf().unwrap();
        if replace {
            fs::write(directory.path().join("new"), b"new").unwrap();
            fs::rename(directory.path().join("new"), &path).unwrap();
        } else {
            fs::write(&path, vec![b'x'; content.len()]).unwrap();
        }
        match client.receive("GET") {
            Some(got) => assert!(replace && got.body == content, "a whole response is one version"),
            None => assert!(!replace, "a replaced file stays readable for its readers"),
        }
    }
}

#[test]
fn out_of_descriptors() {
    let directory = tempfile::tempdir().unwrap();
    let content = FixedRandom(4).bytes(100_000);
    for index in 0..200 {
        fs::write(directory.path().join(format!("{index}")), &content).unwrap();
    }
    fs::write(directory.path().join("hot"), "hot").unwrap();
    let server = TestServer::serve_with_descriptors(directory.path(), 64);
    let mut client = KeepAliveClient::connect(server.address);
    for round in 0..2 {
        let mut served = 0;
        for index in 0..200 {
            let got = client.get(&format!("/{index}"), "");
            match got.status {
                200 => assert_eq!(got.body, content),
                status => assert_eq!((status, got.field("Retry-After")), (503, Some("1")), "{index} in round {round}"),
            }
            served += usize::from(got.status == 200);
            assert_eq!(client.get("/hot", "").body, b"hot");
        }
        assert!(served > 20, "{served} in round {round}");
    }
}
