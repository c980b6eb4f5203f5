//! Shares of requests: splits and mirrors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::function_server::{FunctionServer, field, response};
use crate::support::operated::Operated;
use crate::support::waiting::{eventually, stays};
use crate::support::{TestServer, ask};

fn application(name: &'static str) -> FunctionServer {
    FunctionServer::start(move |_| response("200 OK", "Cache-Control: max-age=60\r\n", name))
}

fn config(applications: &[FunctionServer; 2], forward: &str) -> String {
    let [own, other] = applications.each_ref().map(|application| application.address);
    format!(
        "upstream \"canary\" {{ server \"http://{other}\" \
         }}\nsite {{\n listen \"127.0.0.1:0\"\n forward \"http://{own}\" {{\n {forward}\n }}\n}}\n"
    )
}

fn get(server: &TestServer, path: &str, fields: &str) -> String {
    let answer = ask(server, &format!("GET {path} HTTP/1.1\r\nHost: h\r\n{fields}Connection: close\r\n\r\n"));
    answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned()
}

/// Users, of 200, whose requests go to the canary.
fn canaries(server: &TestServer) -> Vec<usize> {
    let is_canary = |user: &usize| get(server, "/", &format!("Cookie: uid={user}\r\n")) == "canary";
    (0..200).filter(is_canary).collect()
}

#[test]
fn users_stay_in_their_share() {
    let applications = [application("own"), application("canary")];
    let server = Operated::start(&config(&applications, "split \"canary\" share=0.1 by=\"cookie:uid\""));
    let first = canaries(&server.server);
    assert!((5..45).contains(&first.len()), "{first:?}");
    assert_eq!(canaries(&server.server), first, "the same users each time");
    let set = |arguments: &[&str]| server.order(&[&["set", "split"], arguments].concat());
    assert!(set(&["canary", "0.5"]).status.success());
    let more = canaries(&server.server);
    assert!(more.len() > 60 && first.iter().all(|user| more.contains(user)), "{more:?}");
    assert!(server.order(&["set", "workers", "1"]).status.success());
    assert_eq!(canaries(&server.server), more, "another change leaves it");
    assert!(set(&["canary", "0"]).status.success());
    assert!(canaries(&server.server).is_empty());
    for (arguments, expect) in [(["canary", "1.5"], "from 0 to 1"), (["other", "0.5"], "no `split`")] {
        let output = set(&arguments);
        assert!(String::from_utf8_lossy(&output.stderr).contains(expect), "{output:?}");
    }
    assert!(server.order(&["reload"]).status.success());
    assert_eq!(canaries(&server.server), first, "a reload returns to the file");
}

#[test]
fn fields_and_cookies_choose() {
    let applications = [application("own"), application("canary")];
    let split = "split \"canary\" field=\"X-Canary: on\" cookie=\"canary=always\"";
    let server = TestServer::run(&config(&applications, split));
    for (fields, expect) in [
        ("", "own"),
        ("X-Canary: on\r\n", "canary"),
        ("X-Canary: off\r\n", "own"),
        ("Cookie: a=b; canary=always\r\n", "canary"),
        ("Cookie: canary=never\r\n", "own"),
    ] {
        assert_eq!(get(&server, "/", fields), expect, "{fields}");
    }
}

#[test]
fn a_cache_keeps_shares_apart() {
    let applications = [application("own"), application("canary")];
    let server = Operated::start(&config(&applications, "split \"canary\" field=\"X-Canary\"\n cache"));
    for _ in 0..3 {
        assert_eq!(get(&server.server, "/", ""), "own");
        assert_eq!(get(&server.server, "/", "X-Canary: 1\r\n"), "canary");
    }
    assert_eq!(applications.each_ref().map(|application| application.heads().len()), [1, 1]);
    let output = server.order(&["cache", "purge", "--all"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains('2'), "{output:?}");
}

#[test]
fn requests_are_mirrored() {
    let applications = [application("own"), application("canary")];
    let server = Operated::start(&config(&applications, "mirror \"canary\" body-bytes-max=\"1KiB\""));
    let [own, mirror] = &applications;
    let mut heads = Vec::new();
    let mut await_copies = |count: usize| {
        eventually("copies arrive", || {
            heads.extend(mirror.heads());
            heads.len() >= count
        });
        std::mem::take(&mut heads)
    };
    assert_eq!(get(&server.server, "/a?b", "Cookie: c=d\r\n"), "own");
    let copies = await_copies(1);
    assert!(copies[0].starts_with("GET /a?b HTTP/1.1\r\n") && field(&copies[0], "cookie") == "c=d", "{copies:?}");
    assert_eq!(field(&copies[0], "x-forwarded-for"), "127.0.0.1");
    let post = |framing: &str, content: &str| {
        ask(&server.server, &format!("POST /p HTTP/1.1\r\nHost: h\r\n{framing}Connection: close\r\n\r\n{content}"))
    };
    assert!(post("Content-Length: 5\r\n", "hello").ends_with("own"));
    assert_eq!(field(&await_copies(1)[0], "content-length"), "5");
    assert!(post("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n").ends_with("own"));
    assert_eq!(field(&await_copies(1)[0], "content-length"), "7");
    // Larger ones are not copied; the request itself is complete.
    let large = "x".repeat(2_000);
    assert!(post("Content-Length: 2000\r\n", &large).ends_with("own"));
    assert!(post("Transfer-Encoding: chunked\r\n", &format!("7d0\r\n{large}\r\n0\r\n\r\n")).ends_with("own"));
    assert_eq!(get(&server.server, "/last", ""), "own");
    let copies = await_copies(1);
    assert!(copies.len() == 1 && copies[0].starts_with("GET /last "), "{copies:?}");
    // The server here takes chunks for further requests.
    let heads = own.heads().into_iter().filter(|head| head.contains(" HTTP/1.1\r\n"));
    assert_eq!(heads.count(), 6);
}

#[test]
fn a_mirror_that_hangs_or_fails_harms_no_request() {
    let hangs = Arc::new(AtomicBool::new(true));
    let until = Arc::clone(&hangs);
    let own = application("own");
    let slow = FunctionServer::start(move |_| {
        while until.load(Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        response("500 Internal Server Error", "", "broken")
    });
    let applications = [own, slow];
    let server =
        Operated::start(&config(&applications, "mirror \"canary\" requests-max=3\n mirror \"http://127.0.0.1:1\""));
    for _ in 0..20 {
        assert_eq!(get(&server.server, "/", ""), "own");
    }
    eventually("three copies are in progress", || {
        let status = server.order(&["upstreams"]);
        String::from_utf8_lossy(&status.stdout).contains(" 3 ")
    });
    let mut copies = 0;
    stays("no more than three", std::time::Duration::from_millis(200), || {
        copies += applications[1].heads().len();
        copies <= 3
    });
    hangs.store(false, Ordering::Relaxed);
    eventually("copies go on", || {
        assert_eq!(get(&server.server, "/", ""), "own");
        copies += applications[1].heads().len();
        copies > 3
    });
}
