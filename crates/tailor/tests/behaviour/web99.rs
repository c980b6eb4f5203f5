//! The web99 workload against a server that runs the reference implementation. The server makes the faults that the
//! checker must find.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::Value;

use crate::server::{FakeServerAction, ReceivedRequest, ok, response, start};
use crate::skips::skip_without;
use crate::{in_parallel, tailor, undisturbed};

/// Fault of the server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// Changes a byte of a static file.
    StaticBody,
    /// Changes a byte of the file within a dynamic reply.
    DynamicBody,
    /// Leaves the advertisement's name as it is on disk.
    RotationBody,
    /// Names the advertisement after the right one in the cookie.
    RotationCookie,
    /// Sends the cookie of another user in the reply to a POST.
    PostCookie,
    NoContentLength,
    /// Sends the right response, and does not record the POST.
    LostRecord,
    /// Sends the right response, and records the POST twice.
    DoubledRecord,
    /// Records the POST with another file.
    WrongRecord,
    /// Inserts each record before the previous one.
    Order,
    /// Does not empty the log on Reset.
    Reset,
}

/// Site with the reference implementation.
struct ReferenceSite {
    /// Directory of its tables and post log.
    data: tempfile::TempDir,
    interpreter: &'static str,
    script: &'static str,
}

impl ReferenceSite {
    /// Creates the site. Returns `None` if the interpreter is not installed.
    fn new(interpreter: &'static str, script: &'static str) -> Option<Self> {
        if Command::new(interpreter).arg("-v").output().is_err() {
            skip_without(interpreter);
            return None;
        }
        Some(Self { data: tempfile::tempdir().unwrap(), interpreter, script })
    }

    /// Directory of the file set, which all tests share. It is written once, to a directory that outlives the tests.
    fn root(&self) -> PathBuf {
        static ROOT: OnceLock<PathBuf> = OnceLock::new();
        let write = || {
            let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("web99");
            let output = tailor(&["web99", "init", directory.to_str().unwrap(), "-c", "1"]);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            directory.join("site")
        };
        ROOT.get_or_init(write).clone()
    }

    fn data(&self) -> &Path {
        self.data.path()
    }

    /// Starts a server for this site that makes one fault.
    fn serve(self: &Arc<Self>, fault: Fault) -> String {
        let site = Arc::clone(self);
        let posts = AtomicUsize::new(0);
        start(move |request| FakeServerAction::Reply(site.answer(request, fault, &posts))).url
    }

    fn answer(&self, request: &ReceivedRequest, fault: Fault, posts: &AtomicUsize) -> Vec<u8> {
        let mut words = request.head.split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        if target.starts_with("/file_set/") {
            let mut content = std::fs::read(self.root().join(&target[1..])).unwrap_or_default();
            spoil(&mut content, fault == Fault::StaticBody);
            return ok(&content);
        }
        let (script, query) = target.split_once('?').unwrap_or((target, ""));
        let log = self.data().join("post.log");
        let before = std::fs::read(&log).unwrap_or_default();
        let output = self.run_script(method, script, query, &request.head, &request.content);
        let (head, content) = split_head(&output);
        let (mut head, mut content) = (head.to_owned(), content.to_vec());
        let is_rotation = head.contains("found_cookie=Ad_id=") && !head.contains("Ad_id=-1");
        match fault {
            Fault::DynamicBody => spoil(&mut content, !query.starts_with("command")),
            Fault::RotationBody if is_rotation => {
                content = self.run_script(method, script, query, "", b"");
                content = split_head(&content).1.to_vec();
            }
            Fault::RotationCookie => head = head.replace("&Expired=0", "&Expired=1"),
            Fault::PostCookie => head = head.replace("my_cookie=", "my_cookie=1"),
            Fault::NoContentLength => {
                let chunk = format!("{:x}\r\n", content.len()).into_bytes();
                content = [&chunk[..], &content, b"\r\n0\r\n\r\n"].concat();
                let fields = head.lines().filter(|line| !line.starts_with("Content-Length"));
                let fields: String = fields.map(|line| format!("{line}\r\n")).collect();
                return [format!("HTTP/1.1 200 OK\r\n{fields}Transfer-Encoding: chunked\r\n\r\n").as_bytes(), &content]
                    .concat();
            }
            Fault::Reset if query.contains("Reset") && before.len() > 11 => std::fs::write(&log, &before).unwrap(),
            _ if method == "POST" => {
                let is_third = posts.fetch_add(1, Ordering::SeqCst) % 3 == 2;
                self.spoil_log(fault, is_third, &log, &before, request);
            }
            _ => {}
        }
        let status = head.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK").to_owned();
        let cookie = head.lines().find(|line| line.starts_with("Set-Cookie")).map(|line| format!("{line}\r\n"));
        response(&status, &cookie.unwrap_or_default(), &content)
    }

    fn spoil_log(&self, fault: Fault, is_third: bool, log: &Path, before: &[u8], request: &ReceivedRequest) {
        let write = |bytes: &[u8]| std::fs::write(log, bytes).unwrap();
        let mut now = std::fs::read(log).unwrap();
        match fault {
            Fault::LostRecord if is_third => write(before),
            Fault::DoubledRecord if is_third => {
                self.run_script("POST", "/web99.php", "", &request.head, &request.content);
            }
            Fault::WrongRecord if is_third => {
                let name = now.len() - 139 + 56;
                now[name + 15] ^= 1;
                write(&now);
            }
            Fault::Order if now.len() > 11 + 139 => {
                // The numbers stay in place; the rest of the last two records is swapped.
                let (last, earlier) = (now.len() - 139, now.len() - 2 * 139);
                for at in 10..139 {
                    now.swap(last + at, earlier + at);
                }
                write(&now);
            }
            _ => {}
        }
    }

    fn run_script(&self, method: &str, script: &str, query: &str, head: &str, content: &[u8]) -> Vec<u8> {
        let cookie = head.lines().find_map(|line| line.strip_prefix("Cookie: ")).unwrap_or_default();
        let path = self.root().join(self.script);
        let mut child = Command::new(self.interpreter)
            .arg(&path)
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap())
            .envs([("REQUEST_METHOD", method), ("SCRIPT_NAME", script), ("QUERY_STRING", query)])
            .envs([("HTTP_COOKIE", cookie), ("SERVER_SOFTWARE", "test/1"), ("REMOTE_ADDR", "127.0.0.1")])
            .env("CONTENT_LENGTH", content.len().to_string())
            .env("CONTENT_TYPE", "text/plain")
            .env("DOCUMENT_ROOT", self.root())
            .env("WEB99_DATA", self.data())
            .env("SCRIPT_FILENAME", &path)
            .env("REDIRECT_STATUS", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let _ = child.stdin.take().unwrap().write_all(content);
        child.wait_with_output().unwrap().stdout
    }
}

fn spoil(content: &mut [u8], is_wanted: bool) {
    if let Some(byte) = content.iter_mut().rev().nth(40).filter(|_| is_wanted) {
        *byte ^= 1;
    }
}

fn split_head(output: &[u8]) -> (&str, &[u8]) {
    let at = output.windows(4).position(|window| window == b"\r\n\r\n").expect("the end of the head");
    (std::str::from_utf8(&output[..at]).unwrap(), &output[at + 4..])
}

/// Runs the checker. Returns its output and its exit code.
fn check(url: &str, arguments: &[&str]) -> (String, Option<i32>) {
    let output = tailor(&[&["web99", "check", url, "-c", "1"], arguments].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (text, output.status.code())
}

#[test]
fn both_reference_implementations_pass_the_checker() {
    for (interpreter, script) in [("perl", "cgi-bin/web99.pl"), ("php-cgi", "web99.php")] {
        let Some(site) = ReferenceSite::new(interpreter, script) else { continue };
        let (text, code) = check(&Arc::new(site).serve(Fault::None), &[]);
        assert_eq!(code, Some(0), "{script}: {text}");
        assert!(text.contains("111 checks, 0 faults"), "{script}: {text}");
    }
}

#[test]
fn the_checker_finds_each_fault() {
    let Some(site) = ReferenceSite::new("perl", "cgi-bin/web99.pl") else { return };
    let site = Arc::new(site);
    // Shares of static GET, dynamic GET, rotation, POST and CGI GET: for each fault, a mix in which it can occur.
    for (fault, mix, expect) in [
        (Fault::StaticBody, "100,0,0,0,0", "static GET: /file_set/dir00000/class0_0: wrong content"),
        (Fault::DynamicBody, "0,100,0,0,0", "dynamic GET: /web99.php?/file_set/dir00024/class3_0: wrong content"),
        (Fault::DynamicBody, "0,0,0,0,100", "CGI GET: /cgi-bin/web99.pl?/file_set/dir00000/class0_0: wrong content"),
        (Fault::DynamicBody, "0,0,0,100,0", "POST: /web99.php with my_cookie="),
        (Fault::RotationBody, "0,0,100,0,0", "wrong content"),
        (Fault::RotationCookie, "0,0,100,0,0", "Set-Cookie [\"found_cookie=Ad_id="),
        (Fault::PostCookie, "0,0,0,100,0", "Set-Cookie [\"my_cookie=1"),
        (Fault::NoContentLength, "0,100,0,0,0", "no Content-Length"),
        (Fault::LostRecord, "0,0,0,100,0", "post log: differs from the POSTs sent, in their order"),
        (Fault::DoubledRecord, "0,0,0,100,0", "post log: differs from the POSTs sent, in their order"),
        (Fault::WrongRecord, "0,0,0,100,0", "post log: differs from the POSTs sent, in their order"),
        (Fault::Order, "0,0,0,100,0", "post log: differs from the POSTs sent, in their order"),
        (Fault::Reset, "0,0,0,100,0", "post log: not empty after Reset"),
    ] {
        let (text, code) = check(&site.serve(fault), &["--mix", mix]);
        assert!(code == Some(1) && text.contains(expect), "{fault:?}: {text}");
    }
}

/// Loads a server over a few fast lines. Returns the report and the exit code.
fn run(url: &str, seconds: &str, arguments: &[&str]) -> (Value, Option<i32>) {
    let base = ["web99", "run", url, "--no-check", "--ramp-up", "0", "--warm-up", "0", "-d", seconds, "-q", "--json"];
    let output = tailor(&[&base[..], arguments].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let report = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}\n{}", String::from_utf8_lossy(&output.stderr)));
    (report, output.status.code())
}

/// Arguments for mixes with many POSTs: few connections on fast lines, so that the server is the limit.
const BUSY: [&str; 8] = ["-c", "4", "--directories", "25", "--line", "4M", "--conforming-rate", "1k"];

#[test]
fn a_run_counts_lost_and_doubled_records_to_the_number() {
    let Some(site) = ReferenceSite::new("perl", "cgi-bin/web99.pl") else { return };
    let site = Arc::new(site);
    for fault in [Fault::None, Fault::LostRecord, Fault::DoubledRecord, Fault::WrongRecord] {
        // Use one connection: the faults, unlike the reference implementation, are not safe for concurrent requests.
        let mut arguments = BUSY;
        arguments[1] = "1";
        let mix = ["--mix", "40,10,10,39,1"];
        let run = |seconds| run(&site.serve(fault), seconds, &[&arguments[..], &mix[..]].concat());
        let served = |report: &Value| report["web99"]["post_log"]["served"].as_u64().unwrap();
        // A long enough run makes two faults even on a busy machine.
        let mut runs = ["1", "4", "16", "64"].into_iter().map(run);
        let (report, code) = runs.find(|(report, _)| served(report) > 6).expect("seven POSTs in a minute");
        let log = &report["web99"]["post_log"];
        let (count, served) = (|name: &str| log[name].as_u64().unwrap(), served(&report));
        // Every third POST is affected; a POST that was cut off at the end may be one of them.
        let is_third = |number: u64| number == served / 3 || number == count("sent") / 3;
        let expect = match fault {
            Fault::LostRecord => is_third(count("lost")) && count("doubled") + count("wrong") == 0,
            Fault::DoubledRecord => is_third(count("doubled")) && count("lost") + count("wrong") == 0,
            Fault::WrongRecord => is_third(count("wrong")) && is_third(count("lost")),
            _ => count("lost") + count("doubled") + count("wrong") == 0 && count("recorded") >= served,
        };
        assert!(expect, "{fault:?}: {log}");
        assert_eq!(code, Some(if fault == Fault::None { 0 } else { 1 }), "{fault:?}: {}", report["web99"]);
    }
}

#[test]
fn a_run_counts_wrong_bodies_and_cookies() {
    let Some(site) = ReferenceSite::new("perl", "cgi-bin/web99.pl") else { return };
    let site = Arc::new(site);
    for (fault, kind, class) in [
        (Fault::StaticBody, "static GET", "wrong body"),
        (Fault::DynamicBody, "dynamic GET", "wrong body"),
        (Fault::PostCookie, "POST", "wrong field"),
    ] {
        let has_failed =
            |report: &Value| report["failures"][class] != 0 && report["web99"]["failed_share"].as_f64() > Some(0.01);
        // A long enough run has operations of each kind even on a busy machine.
        let mut runs = ["1", "4", "16", "64"].into_iter().map(|seconds| run(&site.serve(fault), seconds, &BUSY));
        let (report, code) = runs.find(|(report, _)| has_failed(report)).expect("failures in a minute");
        let web99 = &report["web99"];
        let [sent, served] = [0, 1].map(|at| web99["operations"][kind][at].as_u64().unwrap());
        assert!(sent > 0 && served == 0, "{fault:?}: {web99}");
        let failed = report["failures"][class].as_u64().unwrap();
        assert!(failed > 0 && web99["failed_share"].as_f64().unwrap() > 0.01, "{fault:?}: {web99}");
        assert_eq!((code, &web99["is_sustained"]), (Some(1), &Value::Bool(false)), "{fault:?}");
    }
}

#[test]
fn lines_conform_by_their_rate() {
    let Some(site) = ReferenceSite::new("perl", "cgi-bin/web99.pl") else { return };
    let root = site.root();
    // The delays are far from the limit, so that a busy machine makes no difference.
    in_parallel(&[(0, 6), (3000, 0)], |&(delay_ms, conforming)| {
        let root = root.clone();
        let url = start(move |request| {
            let content = std::fs::read(root.join(&request.head.split(' ').nth(1).unwrap()[1..])).unwrap();
            FakeServerAction::Delay(Duration::from_millis(delay_ms), ok(&content))
        });
        let arguments = ["-c", "6", "--directories", "25", "--mix", "100,0,0,0,0"];
        let lines = ["--line", "100k", "--conforming-rate", "40k"];
        let measure = |_| run(&url.url, "4", &[&arguments[..], &lines].concat());
        let (report, code) = undisturbed(measure, |(report, _)| report["web99"]["conforming"] == conforming);
        let web99 = &report["web99"];
        assert_eq!(web99["conforming"], conforming, "{web99}");
        assert_eq!(code, Some(if delay_ms == 0 { 0 } else { 1 }));
        let median = web99["rates_bits_per_second"][1].as_f64().unwrap();
        let is_expected = if delay_ms == 0 { 40e3..=102e3 } else { 0.0..=40e3 };
        assert!(is_expected.contains(&median), "{median}");
    });
}

#[test]
fn the_search_finds_where_a_server_falls_off() {
    let Some(site) = ReferenceSite::new("perl", "cgi-bin/web99.pl") else { return };
    let (root, active) = (site.root(), AtomicUsize::new(0));
    let url = start(move |request| {
        let content = std::fs::read(root.join(&request.head.split(' ').nth(1).unwrap()[1..])).unwrap();
        // More than 8 concurrent requests wait longer than the measurement lasts. They are no load of the next one.
        let is_late = active.fetch_add(1, Ordering::SeqCst) >= 8;
        if is_late {
            active.fetch_sub(1, Ordering::SeqCst);
        }
        std::thread::sleep(Duration::from_millis(if is_late { 5000 } else { 100 }));
        if !is_late {
            active.fetch_sub(1, Ordering::SeqCst);
        }
        FakeServerAction::Reply(ok(&content))
    });
    let arguments = ["web99", "search", &url.url, "--from", "4", "--to", "64", "--precision", "40%", "--no-check"];
    let mix = ["--mix", "100,0,0,0,0", "--directories", "25", "--ramp-up", "0", "--warm-up", "200ms", "-d", "1500ms"];
    let conditions = ["--line", "100k", "--conforming-rate", "30k", "--conforming-share", "80%", "-q", "--json"];
    let output = tailor(&[&arguments[..], &mix, &conditions].concat());
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let best = report["web99"]["connections"].as_u64().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!((5..=40).contains(&best), "{best}: {}", String::from_utf8_lossy(&output.stderr));
}
