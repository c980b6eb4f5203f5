//! CGI/1.1: variables and input of programs, their responses, and their ends.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::skips::{skip, skip_without};
use crate::support::upstream::ScriptStep::{Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::waiting::{await_read, eventually, stays, within};
use crate::support::{LARGE_BYTES, PATIENCE, TestServer, ask, read_all, read_until, write_program};

/// Site whose programs are shell scripts with these names and texts, each in `/cgi-bin/`.
struct CgiSite {
    directory: TempDir,
    server: TestServer,
}

impl CgiSite {
    fn new(scripts: &[(&str, &str)], options: &str) -> Self {
        Self::with(scripts, options, "")
    }

    fn with(scripts: &[(&str, &str)], options: &str, of_site: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Programs may run as another user.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for (name, text) in scripts {
            write_script(&directory.path().join(name), text, 0o755);
        }
        let server = TestServer::run(&format!(
            "site {{\n listen \"127.0.0.1:0\"\n {of_site}\n cgi \"/cgi-bin/*\" root=\"{}\" {{\n strip-prefix \"/cgi-bin\"\n\
             {options}\n }}\n }}\nserver {{ workers 1 }}\n",
            directory.path().display()
        ));
        Self { directory, server }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn get(&self, path: &str) -> String {
        ask(&self.server, &format!("GET /cgi-bin/{path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"))
    }

    /// Content of the response.
    fn content(&self, path: &str) -> String {
        let answered = self.get(path);
        assert!(answered.starts_with("HTTP/1.1 200 "), "{path}: {answered}");
        without_chunks(answered.split_once("\r\n\r\n").unwrap().1)
    }

    fn check(&self, path: &str, status: &str) {
        let answered = self.get(path);
        assert!(answered.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answered}");
    }
}

fn write_script(path: &Path, text: &str, mode: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    write_program(path, &format!("#!/bin/sh\n{text}\n"));
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn without_chunks(mut text: &str) -> String {
    let mut content = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size, 16) else { return text.to_owned() };
        let Some(piece) = rest.get(..size) else { return text.to_owned() };
        content.push_str(piece);
        text = rest[size..].strip_prefix("\r\n").unwrap_or_default();
    }
    content + text
}

fn is_running(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{}/stat", pid.trim())).is_ok_and(|stat| !stat.contains(") Z "))
}

const HEAD: &str = "printf 'Content-Type: text/plain\\n\\n'\n";

#[test]
fn variables_and_nothing_else() {
    let site = CgiSite::new(&[("env", &format!("{HEAD}exec /usr/bin/env"))], "variable \"MINE\" \"1\"");
    let mut lines: Vec<String> = site.content("env/a%20b?c=d").lines().map(str::to_owned).collect();
    // Variables that the shell itself sets.
    lines.retain(|line| !["_=", "PWD=", "SHLVL=", "OLDPWD="].iter().any(|own| line.starts_with(own)));
    lines.retain(|line| !line.starts_with("REMOTE_PORT="));
    lines.sort();
    let root = site.directory.path().display();
    let mut expect = vec![
        format!("DOCUMENT_ROOT={root}"),
        "DOCUMENT_URI=/cgi-bin/env/a b".into(),
        "GATEWAY_INTERFACE=CGI/1.1".into(),
        "HTTP_HOST=h".into(),
        "MINE=1".into(),
        "PATH=/usr/local/bin:/usr/bin:/bin".into(),
        "PATH_INFO=/a b".into(),
        format!("PATH_TRANSLATED={root}/a b"),
        "QUERY_STRING=c=d".into(),
        "REDIRECT_STATUS=200".into(),
        "REMOTE_ADDR=127.0.0.1".into(),
        "REMOTE_HOST=127.0.0.1".into(),
        "REQUEST_METHOD=GET".into(),
        "REQUEST_SCHEME=http".into(),
        "REQUEST_URI=/cgi-bin/env/a%20b?c=d".into(),
        format!("SCRIPT_FILENAME={root}/env"),
        "SCRIPT_NAME=/cgi-bin/env".into(),
        "SERVER_ADDR=127.0.0.1".into(),
        "SERVER_NAME=h".into(),
        format!("SERVER_PORT={}", site.server.address.port()),
        "SERVER_PROTOCOL=HTTP/1.1".into(),
        "SERVER_SOFTWARE=tailcoat".into(),
    ];
    expect.sort();
    assert_eq!(lines, expect);
}

#[test]
fn the_user_whose_password_was_right() {
    let users = tempfile::NamedTempFile::new().unwrap();
    // "secret", by bcrypt.
    fs::write(users.path(), "anna:$2y$04$USlQL2vC6spKq95MSYEm3uNnq7slZq6x5EScR7gHq60GayFU4aX1K\n").unwrap();
    let site = CgiSite::with(
        &[("who", &format!("{HEAD}echo \"$AUTH_TYPE|$REMOTE_USER|$HTTP_AUTHORIZATION\""))],
        "",
        &format!("basic-auth \"/cgi-bin/*\" \"{}\"", users.path().display()),
    );
    assert!(site.get("who").starts_with("HTTP/1.1 401"));
    let credentials = "Authorization: Basic YW5uYTpzZWNyZXQ=";
    let answered = ask(
        &site.server,
        &format!("GET /cgi-bin/who HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{credentials}\r\n\r\n"),
    );
    assert!(answered.contains("Basic|anna|\n"), "{answered}");
}

#[test]
fn descriptors_signals_group_and_directory() {
    // The server lowers the limit of file descriptors once it has started the program, which may run by then.
    let script = format!(
        "for i in $(seq 200); do [ \"$(ulimit -Sn)\" = 1024 ] || sleep 0.05; done\n\
         {HEAD}ls /proc/self/fd | tr '\\n' ' '\necho\ngrep -E '^Sig(Blk|Ign)' /proc/self/status\n\
         echo \"$(ulimit -Sn) $(pwd)\"\n[ \"$(ps -o pgid= -p $$ | tr -d ' ')\" = $$ ] && echo leads"
    );
    let site = CgiSite::new(&[("deep/er/state", &script)], "");
    let content = site.content("deep/er/state");
    let lines: Vec<&str> = content.lines().collect();
    // Server and program inherit what this test inherited.
    let mut own = Command::new("sh");
    own.args(["-c", "ulimit -Sn 1024; exec \"$0\""]).arg(site.file("deep/er/state"));
    let own = own.output().expect("it runs");
    let own = String::from_utf8(own.stdout).unwrap();
    let own: Vec<&str> = own.lines().skip(2).collect();
    assert_eq!(lines[0], own[0], "descriptors: {content}");
    assert!(lines[1].ends_with("0000000000000000"), "no signal is blocked: {content}");
    // Signals that the server handles are not ignored, even if the parent ignores them (a shell in the background
    // ignores SIGINT).
    let awaited = [1, 2, 3, 10, 12, 15].iter().fold(0, |mask, signal| mask | 1u64 << (signal - 1));
    let ignored = |line: &str| u64::from_str_radix(line.rsplit('\t').next().unwrap(), 16).unwrap();
    assert_eq!(ignored(lines[2]), ignored(own[2]) & !awaited, "ignored signals: {content}");
    assert_eq!(lines[3], format!("1024 {}", site.file("deep/er").display()));
    assert!(Command::new("ps").arg("--version").output().is_err() || lines.get(4) == Some(&"leads"), "{content}");
}

#[test]
fn answers() {
    let site = CgiSite::new(
        &[
            ("status", "printf 'Status: 404 Nothing Here\\nA: b\\n\\nnothing'"),
            ("crlf", "printf 'A: b\\r\\nContent-Length: 3\\r\\n\\r\\nabcdef'"),
            ("client-redirect", "printf 'Location: http://other/\\n\\n'"),
            ("local-redirect", "printf 'Location: /cgi-bin/crlf?x\\n\\n'; cat >/dev/null"),
            ("circle", "printf 'Location: /cgi-bin/circle\\n\\n'"),
            ("nph-raw", "printf 'HTTP/1.0 299 Raw\\nX: y\\n\\nraw'"),
            (
                "nph-chunks",
                "printf 'HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n3\\r\\nabc\\r\\n0\\r\\n\\r\\n'",
            ),
            ("none", "exit 3"),
            ("no-head", "echo hello"),
            ("empty-head", "echo; echo hello"),
            ("half-head", "echo A: b"),
            ("two-statuses", "printf 'Status: 200\\nStatus: 404\\n\\n'"),
            ("two-lengths", "printf 'Content-Length: 3\\nContent-Length: 3\\n\\nabc'"),
            ("interim", "printf 'HTTP/1.1 103 X\\r\\n\\r\\n'"),
            ("endless-head", "while echo 'A: b'; do :; done"),
            ("endless-line", "while printf 'AAAAAAAAAAAAAAAA'; do :; done"),
            ("lies", "printf 'Content-Length: 9\\n\\nabc'"),
        ],
        "",
    );
    assert!(
        site.get("status").starts_with("HTTP/1.1 404 Nothing Here\r\n") && site.get("status").contains("\r\nA: b\r\n")
    );
    assert!(site.get("crlf").ends_with("Content-Length: 3\r\nConnection: close\r\n\r\nabc"));
    site.check("client-redirect", "302");
    assert!(site.get("local-redirect").ends_with("\r\n\r\nabc"));
    assert!(site.get("nph-raw").starts_with("HTTP/1.1 299 "));
    assert_eq!(site.content("nph-chunks"), "abc");
    for broken in [
        "none",
        "no-head",
        "empty-head",
        "half-head",
        "two-statuses",
        "two-lengths",
        "interim",
        "endless-head",
        "endless-line",
    ] {
        site.check(broken, "502");
    }
    site.check("circle", "500");
    let lies = site.get("lies");
    assert!(lies.ends_with("abc") && lies.contains("Content-Length: 9\r\n"), "it breaks off: {lies}");
    site.check("missing", "404");
}

#[test]
fn what_can_not_be_run() {
    let site = CgiSite::new(&[("fine", HEAD), ("no-such-shell", "")], "");
    write_script(&site.file("plain"), HEAD, 0o644);
    fs::write(site.file("no-such-shell"), "#!/nowhere/sh\n").unwrap();
    fs::write(site.file("no-format"), "\u{7f}nothing").unwrap();
    fs::set_permissions(site.file("no-format"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(site.file("directory")).unwrap();
    std::os::unix::fs::symlink("/usr/bin/env", site.file("outside")).unwrap();
    site.check("fine", "200");
    site.check("plain", "403");
    site.check("outside", "403");
    site.check("directory", "404");
    site.check("directory/", "404");
    site.check("no-such-shell", "500");
    site.check("no-format", "500");
    for attack in ["../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "fine%00"] {
        let answered = site.get(attack);
        assert!(answered.starts_with("HTTP/1.1 40"), "{attack}: {answered}");
    }
}

#[test]
fn what_is_no_program_is_asked_for_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    write_script(&directory.path().join("here"), "echo 'Content-Type: text/plain'; echo; echo here", 0o755);
    let elsewhere = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\nelsewhere";
    let upstream = ScriptedUpstream::start(vec![vec![Await("\r\n\r\n"), Say(elsewhere)]]);
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n cgi \"/cgi-bin/*\" root=\"{}\" {{ strip-prefix \"/cgi-bin\" }}\n\
         forward \"http://{}\"\n}}\nserver {{ workers 1 }}\n",
        directory.path().display(),
        upstream.address
    ));
    for (name, expect) in [("here", "here\n"), ("there", "elsewhere")] {
        let request = format!("GET /cgi-bin/{name} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        let answered = ask(&server, &request);
        let content = without_chunks(answered.split_once("\r\n\r\n").unwrap().1);
        assert_eq!(content, expect, "{answered}");
    }
}

#[test]
fn content_of_requests() {
    let site = CgiSite::new(
        &[
            ("count", &format!("{HEAD}echo \"$CONTENT_LENGTH $CONTENT_TYPE $(wc -c)\"")),
            ("ignore", &format!("{HEAD}echo ignored")),
        ],
        "body-bytes-max \"1GiB\"",
    );
    let post = |path: &str, head: &str, content: &[u8]| {
        let mut stream = site.server.connect();
        write!(stream, "POST /cgi-bin/{path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{head}\r\n\r\n").unwrap();
        // A program that responds without reading may have ended.
        let _ = stream.write_all(content);
        let mut answered = String::new();
        let _ = stream.read_to_string(&mut answered);
        answered
    };
    let typed = "Content-Type: text/x\r\nContent-Length: 3";
    assert!(post("count", typed, b"abc").contains("3 text/x 3\n"));
    assert!(post("count", "Content-Length: 0", b"").contains("  0\n"), "none is no content");
    let before = site.server.resident_kib_max();
    let large = vec![b'x'; LARGE_BYTES];
    assert!(post("count", &format!("Content-Length: {LARGE_BYTES}"), &large).contains(&format!(" {LARGE_BYTES}\n")));
    let grown_kib = site.server.resident_kib_max() - before;
    assert!(grown_kib < 4 << 10, "{grown_kib} KiB for {LARGE_BYTES} bytes");
    assert!(post("ignore", "Content-Length: 3", b"abc").contains("ignored"));
    assert!(post("ignore", &format!("Content-Length: {LARGE_BYTES}"), &large).contains("ignored"));
    assert!(post("count", "Transfer-Encoding: chunked", b"3\r\nabc\r\n0\r\n\r\n").contains("3  3\n"));
}

#[test]
fn content_is_not_waited_for_without_buffering() {
    let site = CgiSite::new(&[("ignore", &format!("{HEAD}echo ignored"))], "request-buffering off");
    let head = "POST /cgi-bin/ignore HTTP/1.1\r\nHost: h\r\nConnection: close\r\n";
    assert!(ask(&site.server, &format!("{head}Content-Length: {LARGE_BYTES}\r\n\r\nx")).contains("ignored"));
    let chunked = ask(&site.server, &format!("{head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"));
    assert!(chunked.starts_with("HTTP/1.1 411 "), "{chunked}");
}

#[test]
fn answers_come_as_they_are_written_and_not_faster_than_they_are_read() {
    let site = CgiSite::new(
        &[
            ("slow", &format!("{HEAD}echo first\nwhile [ ! -e go ]; do sleep 0.05; done\necho second")),
            ("large", &format!("{HEAD}head -c {LARGE_BYTES} /dev/zero\ntouch done")),
        ],
        "response-buffering off",
    );
    let mut stream = site.server.connect();
    stream.write_all(b"GET /cgi-bin/slow HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    read_until(&mut stream, "first");
    fs::write(site.file("go"), "").unwrap();
    read_until(&mut stream, "second");
    let before = site.server.resident_kib_max();
    let mut stream = site.server.connect();
    stream.write_all(b"GET /cgi-bin/large HTTP/1.0\r\n\r\n").unwrap();
    read_until(&mut stream, "\r\n\r\n");
    stays("it waits for its client", Duration::from_millis(300), || !site.file("done").exists());
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.len() + 70_000 > LARGE_BYTES, "{} bytes came", rest.len());
    let grown_kib = site.server.resident_kib_max() - before;
    assert!(grown_kib < 4 << 10, "{grown_kib} KiB for {LARGE_BYTES} bytes");
}

#[test]
fn who_closes_its_output_may_live_on_and_daemons_are_not_waited_for() {
    let site = CgiSite::new(
        &[
            ("lives-on", &format!("{HEAD}echo answer\nexec >&- 2>&-\nsleep 0.5\ntouch done")),
            ("daemon", &format!("{HEAD}echo answer\nsleep 600 &\necho $! > daemon.pid")),
            ("daemon-silent", "sleep 600 &\necho $! > daemon.pid"),
        ],
        "",
    );
    assert_eq!(site.content("lives-on"), "answer\n");
    eventually("it goes on", || site.file("done").exists());
    for name in ["daemon", "daemon-silent"] {
        let began = Instant::now();
        match name {
            "daemon" => assert_eq!(site.content(name), "answer\n"),
            _ => site.check(name, "502"),
        }
        assert!(began.elapsed() < PATIENCE / 2, "{name}");
        let pid = fs::read_to_string(site.file("daemon.pid")).unwrap();
        let _ = Command::new("kill").arg(pid.trim()).status();
    }
}

#[test]
fn time_is_limited_and_groups_end() {
    // A busy machine may take longer than the first limits to begin a program, or to run its trap.
    assert!(["300ms", "3s", "20s"].into_iter().any(time_is_limited_to), "programs begin, and are told to end");
}

/// Checks limits of this time. Returns false if a program took longer for its own part.
fn time_is_limited_to(limit: &str) -> bool {
    let silent =
        "trap 'touch told' TERM\necho $$ > silent.pid\nsleep 600 &\necho $! > child.pid\ntouch begun\nwait\nwait";
    let site = CgiSite::new(
        &[
            ("silent", silent),
            ("stubborn", "trap '' TERM\necho $$ > own.pid\nsleep 600 &\nwait\nsleep 600"),
            ("stops", &format!("{HEAD}echo begun\nsleep 600")),
        ],
        &format!("first-byte-timeout \"{limit}\"\n between-bytes-timeout \"{limit}\"\n end-timeout \"{limit}\""),
    );
    site.check("silent", "504");
    if !site.file("begun").exists() {
        return false;
    }
    let [own, child] = ["silent.pid", "child.pid"].map(|name| fs::read_to_string(site.file(name)).unwrap());
    eventually("it ends", || site.file("told").exists() || !is_running(&own));
    if !site.file("told").exists() {
        return false;
    }
    eventually("its child ends", || !is_running(&child));
    site.check("stubborn", "504");
    let own = fs::read_to_string(site.file("own.pid")).unwrap_or_default();
    if !own.ends_with('\n') {
        return false;
    }
    eventually("it is killed", || !is_running(&own));
    let answered = site.get("stops");
    assert!(!answered.ends_with("0\r\n\r\n"), "it breaks off: {answered}");
    answered.contains("begun")
}

#[test]
fn run_time_and_output_are_limited() {
    // A busy machine may take longer than the first limits to begin a program.
    assert!(["1s", "5s", "20s"].into_iter().any(run_time_is_limited_to), "programs begin within a limit");
}

/// Checks a limit of this time. Returns false if a program took longer to begin.
fn run_time_is_limited_to(limit: &str) -> bool {
    let site = CgiSite::new(
        &[
            ("long", &format!("echo $$ > own.pid\n{HEAD}while echo more; do sleep 0.1; done")),
            ("hidden", &format!("echo $$ > own.pid\n{HEAD}echo answer\nexec >&- 2>&-\nexec sleep 600")),
            ("much", &format!("echo $$ > own.pid\n{HEAD}exec cat /dev/zero")),
        ],
        &format!("run-time-max \"{limit}\"\n output-bytes-max \"1MiB\""),
    );
    for name in ["long", "hidden", "much"] {
        let answered = site.get(name);
        if !answered.starts_with("HTTP/1.1 200") {
            return false;
        }
        assert!(name == "hidden" || !answered.ends_with("0\r\n\r\n"), "{name} breaks off");
        assert!(answered.len() < 2 << 20);
        let own = fs::read_to_string(site.file("own.pid")).unwrap();
        eventually(name, || !is_running(&own));
        fs::remove_file(site.file("own.pid")).unwrap();
    }
    true
}

#[test]
fn clients_that_go_take_their_programs_along() {
    let site = CgiSite::new(
        &[
            ("silent", "echo $$ > own.pid\nexec sleep 600"),
            ("begun", &format!("{HEAD}echo begun\necho $$ > own.pid\nexec sleep 600")),
        ],
        "",
    );
    for name in ["silent", "begun"] {
        let mut stream = site.server.connect();
        write!(stream, "GET /cgi-bin/{name} HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        eventually("it has begun", || fs::read_to_string(site.file("own.pid")).is_ok_and(|pid| pid.ends_with('\n')));
        let own = fs::read_to_string(site.file("own.pid")).unwrap();
        assert!(is_running(&own));
        drop(stream);
        eventually(name, || !is_running(&own));
        fs::remove_file(site.file("own.pid")).unwrap();
    }
}

/// The client has its whole response when it has the head. Its program may end by itself, but not run on for long.
#[test]
fn programs_of_responses_without_content_end_soon_after_their_clients_have_left() {
    let scripts = [
        ("writes", format!("{HEAD}echo $$ > own.pid\nwhile echo more; do sleep 0.1; done")),
        ("no-content", "printf 'Status: 204\\n\\n'\necho $$ > own.pid\nexec sleep 600".to_owned()),
        ("redirects", "printf 'Location: /cgi-bin/quick\\n\\n'\necho $$ > own.pid\nexec sleep 600".to_owned()),
        ("quick", HEAD.to_owned()),
        ("works-on", format!("{HEAD}sleep 0.4\ntouch done")),
        ("works-long", format!("{HEAD}echo begun\nsleep 2\ntouch done-late")),
    ];
    let scripts = scripts.each_ref().map(|(name, text)| (*name, text.as_str()));
    let site = CgiSite::new(&scripts, "");
    let begin = |site: &CgiSite, method: &str, name: &str| {
        let mut stream = site.server.connect();
        write!(stream, "{method} /cgi-bin/{name} HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        assert!(read_until(&mut stream, "\r\n\r\n").starts_with("HTTP/1.1 20"));
        stream
    };
    for (method, name) in [("HEAD", "writes"), ("GET", "no-content"), ("GET", "redirects")] {
        let stream = begin(&site, method, name);
        eventually("it has begun", || fs::read_to_string(site.file("own.pid")).is_ok_and(|pid| pid.ends_with('\n')));
        let own = fs::read_to_string(site.file("own.pid")).unwrap();
        let what = format!("{name} runs while its client is there");
        stays(&what, Duration::from_millis(1_500), || is_running(&own));
        drop(stream);
        let left = Instant::now();
        eventually(name, || !is_running(&own));
        assert!(left.elapsed() < PATIENCE / 2, "{name}");
        fs::remove_file(site.file("own.pid")).unwrap();
    }
    // A busy machine may not give it the time that it needs.
    eventually("it ends by itself", || {
        drop(begin(&site, "HEAD", "works-on"));
        within(Duration::from_secs(3), || site.file("done").exists().then_some(())).is_some()
    });
    let site = CgiSite::new(&scripts, "abort-on-close off");
    drop(begin(&site, "HEAD", "works-long"));
    eventually("it is not aborted", || site.file("done-late").exists());
}

#[test]
fn output_after_a_response_without_content_is_limited() {
    let scripts = [
        ("writes", &*format!("echo $$ > own.pid\n{HEAD}while echo more; do sleep 0.1; done")),
        ("much", &*format!("echo $$ > own.pid\n{HEAD}exec cat /dev/zero")),
    ];
    for (name, options, reason) in
        [("writes", "between-bytes-timeout \"1s\"", "no end"), ("much", "", "too much output")]
    {
        let site = CgiSite::new(&scripts, options);
        let mut stream = site.server.connect();
        write!(stream, "HEAD /cgi-bin/{name} HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        read_until(&mut stream, "\r\n\r\n");
        let own = fs::read_to_string(site.file("own.pid")).unwrap();
        eventually(name, || !is_running(&own));
        site.server.await_log(&format!("reason=\"{reason}"));
    }
}

#[test]
fn the_servers_end_is_that_of_its_programs() {
    let mut site = CgiSite::new(&[("silent", "trap '' TERM\necho $$ > own.pid\nsleep 600")], "");
    let mut stream = site.server.connect();
    stream.write_all(b"GET /cgi-bin/silent HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    eventually("it has begun", || fs::read_to_string(site.file("own.pid")).is_ok_and(|pid| pid.ends_with('\n')));
    site.server.signal("TERM");
    let own = fs::read_to_string(site.file("own.pid")).unwrap();
    stays("requests are answered first", Duration::from_millis(300), || is_running(&own));
    site.server.signal("TERM");
    assert!(site.server.wait(), "it ends well");
    eventually("it has been killed", || !is_running(&own));
}

#[test]
fn processes_are_limited_and_no_zombie_is_left() {
    let site = CgiSite::new(
        &[("waits", &format!("{HEAD}touch begun\nwhile [ ! -e go ]; do sleep 0.05; done\necho done")), ("quick", HEAD)],
        "processes-max 1\n queue-max 1\n queue-timeout \"200ms\"",
    );
    let mut first = site.server.connect();
    first.write_all(b"GET /cgi-bin/waits HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    eventually("it has begun", || site.file("begun").exists());
    let busy = site.get("quick");
    assert!(busy.starts_with("HTTP/1.1 503") && busy.contains("Retry-After: 1\r\n"), "{busy}");
    fs::write(site.file("go"), "").unwrap();
    read_until(&mut first, "done");
    for _ in 0..20 {
        // The server may notice later than `queue-timeout` that the program before has ended.
        eventually("there is a place", || site.get("quick").starts_with("HTTP/1.1 200 "));
    }
    eventually("all have been waited for", || site.server.zombies() == 0);
}

/// Issue 17, defect 8: one client with many slow programs leaves places for others.
#[test]
fn one_client_can_not_take_all_places_for_programs() {
    let site = CgiSite::new(
        &[("waits", &format!("{HEAD}echo >> begun\nwhile [ ! -e go ]; do sleep 0.05; done")), ("quick", HEAD)],
        "processes-max 5\n queue-max 16\n queue-timeout \"10m\"",
    );
    let attackers = ask_for(&site, "waits", 40);
    let begun = || fs::read_to_string(site.file("begun")).unwrap_or_default().lines().count();
    eventually("they have begun", || begun() == 4);
    for _ in 0..3 {
        let mut other = site.server.connect_from([127, 0, 0, 2]);
        write!(other, "{}", request_for("quick")).unwrap();
        let answer = read_all(&mut other);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    eventually("the rest is rejected", || rejected(&attackers) == 40 - 4 - 8);
    assert_eq!(begun(), 4, "the place that is left is not for a client that has four");
    fs::write(site.file("go"), "").unwrap();
    let answers = attackers.into_iter().map(|mut attacker| read_all(&mut attacker));
    let served = answers.filter(|answer| answer.starts_with("HTTP/1.1 200 ")).count();
    assert_eq!(served, 4 + 8, "those that ran, and half of the queue: the rest is 503");
}

/// Issue 17, defect 8: one client with many waiting requests neither fills the queue nor makes others wait for all of
/// them.
#[test]
fn one_client_can_not_fill_the_queue_for_programs() {
    let script = "echo $REMOTE_ADDR >> order\nwhile [ ! -e go ]; do sleep 0.05; done";
    let site = CgiSite::new(
        &[("waits", &format!("{HEAD}{script}"))],
        "processes-max 1\n queue-max 16\n queue-timeout \"10m\"",
    );
    let order = || fs::read_to_string(site.file("order")).unwrap_or_default();
    let _first = ask_for(&site, "waits", 1);
    eventually("it has begun", || !order().is_empty());
    let attackers = ask_for(&site, "waits", 40);
    eventually("the queue has what it takes of them", || rejected(&attackers) == 40 - 8);
    let mut other = site.server.connect_from([127, 0, 0, 2]);
    write!(other, "{}", request_for("waits")).unwrap();
    await_read(&other);
    fs::write(site.file("go"), "").unwrap();
    let answer = read_all(&mut other);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let order = order();
    let turn = order.lines().position(|client| client == "127.0.0.2");
    assert_eq!(turn, Some(2), "after the one that ran and the first that waited: {order}");
}

/// Number of clients that have received status 503.
fn rejected(clients: &[TcpStream]) -> usize {
    let is_rejected = |client: &&TcpStream| {
        let mut begin = [0; 12];
        client.set_nonblocking(true).unwrap();
        let _ = client.peek(&mut begin);
        client.set_nonblocking(false).unwrap();
        begin == *b"HTTP/1.1 503"
    };
    clients.iter().filter(is_rejected).count()
}

fn request_for(path: &str) -> String {
    format!("GET /cgi-bin/{path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
}

/// Sends this many requests for a program, each on its own connection.
fn ask_for(site: &CgiSite, path: &str, count: usize) -> Vec<TcpStream> {
    let ask = |_| {
        let mut stream = site.server.connect();
        write!(stream, "{}", request_for(path)).unwrap();
        stream
    };
    (0..count).map(ask).collect()
}

#[test]
fn standard_error_is_logged_with_the_name_of_the_script() {
    let directory = tempfile::tempdir().unwrap();
    write_script(&directory.path().join("fails"), &format!("{HEAD}printf 'first\\n\\033[2Jsecond' >&2"), 0o755);
    write_script(&directory.path().join("floods"), &format!("{HEAD}head -c 1000000 /dev/zero >&2\necho done"), 0o755);
    write_script(&directory.path().join("plain"), HEAD, 0o644);
    let errors = directory.path().join("errors.log");
    let server = TestServer::run_logging(
        &format!(
            "site {{\n listen \"127.0.0.1:0\"\n cgi \"/cgi-bin/*\" root=\"{}\" {{ strip-prefix \"/cgi-bin\"; \
             error-bytes-max \"100B\" }}\n }}\n",
            directory.path().display()
        ),
        &errors,
    );
    let get = |path: &str| ask(&server, &format!("GET /cgi-bin/{path} HTTP/1.0\r\n\r\n"));
    assert!(get("fails").starts_with("HTTP/1.1 200"));
    assert!(get("floods").ends_with("done\n"), "output that is not logged is read all the same");
    let log = || String::from_utf8_lossy(&fs::read(&errors).unwrap_or_default()).into_owned();
    assert!(get("plain").starts_with("HTTP/1.1 403"));
    for expect in [
        "/cgi-bin/fails: first\n",
        "/cgi-bin/fails: \\x1B[2Jsecond\n",
        "/cgi-bin/floods: wrote more than `error-bytes-max`",
        "script not run: path=/cgi-bin/plain reason=\"the file is not executable",
    ] {
        eventually(expect, || log().contains(expect));
    }
    assert!(log().len() < 10_000);
}

#[test]
fn own_user_and_group() {
    if !rustix::process::geteuid().is_root() {
        skip("only root can run programs as another user");
        return;
    }
    let site = CgiSite::new(&[("who", &format!("{HEAD}echo $(id -u) $(id -g) $(id -G)"))], "user \"nobody\"");
    let nobody =
        |flag: &str| String::from_utf8(Command::new("id").args([flag, "nobody"]).output().unwrap().stdout).unwrap();
    let (user, group) = (nobody("-u"), nobody("-g"));
    assert_eq!(site.content("who"), format!("{0} {1} {1}\n", user.trim(), group.trim()));
    let site = CgiSite::new(&[("who", &format!("{HEAD}echo $(id -u) $(id -g)"))], "user \"4321\" group=\"1234\"");
    assert_eq!(site.content("who"), "4321 1234\n");
}

#[test]
fn programs_in_other_languages() {
    let perl = "#!/usr/bin/perl\nuse CGI;\nmy $q = CGI->new;\nprint $q->header(-type => 'text/plain', -charset => '');\n\
                print 'perl ', $q->request_method, ' ', $q->param('a'), ' ', $q->param('b'), \"\\n\";\n";
    let python = "#!/usr/bin/python3\nimport os, sys\nbody = sys.stdin.read(int(os.environ['CONTENT_LENGTH']))\n\
                  print('Content-Type: text/plain\\n')\nprint('python', os.environ['REQUEST_METHOD'], body)\n";
    let php = "<?php header('Content-Type: text/plain');\n\
               echo 'php ', $_SERVER['REQUEST_METHOD'], ' ', $_POST['a'], ' ', $_POST['b'], \"\\n\";\n";
    for (needs, name, text, interpreter, expect) in [
        ("/usr/share/perl5/CGI.pm", "a.pl", perl, "", "perl POST 1 x y\n"),
        ("/usr/bin/python3", "a.py", python, "", "python POST a=1&b=x+y\n"),
        ("/usr/bin/php-cgi", "a.php", php, "interpreter \"/usr/bin/php-cgi\"", "php POST 1 x y\n"),
    ] {
        if !Path::new(needs).exists() {
            skip_without(needs);
            continue;
        }
        let site = CgiSite::new(&[], interpreter);
        write_program(&site.file(name), text);
        let mode = if interpreter.is_empty() { 0o755 } else { 0o644 };
        fs::set_permissions(site.file(name), fs::Permissions::from_mode(mode)).unwrap();
        let answered = ask(
            &site.server,
            &format!(
                "POST /cgi-bin/{name} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 9\r\n\
                 Content-Type: application/x-www-form-urlencoded\r\n\r\na=1&b=x+y"
            ),
        );
        assert!(answered.contains(expect), "{name}: {answered}");
    }
}
