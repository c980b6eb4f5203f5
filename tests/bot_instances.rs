//! Bots at several instances that share a store: one cookie, one list of bans, one count of rejections.

use std::io::{Read, Write};
use std::path::Path;

use crate::bots::{between, solution};
use crate::support::engines;
use crate::support::operated::Operated;
use crate::support::waiting::eventually;

const RULES: &str = " bots \"forum\" { work-bits 6; challenge-wait \"10m\" }\n \
                     auto-ban \"2/h\" 403 path=\"/scan/*\" action=\"close\"\n \
                     auto-ban \"3/h\" 403 path=\"/login\" action=\"close\"\n \
                     deny all path=\"/scan/*\"\n deny all path=\"/login\"\n";

/// Instance with a store. The key is in this directory.
fn start(store: &str, directory: &Path) -> Operated {
    Operated::start(&config(store, directory, RULES))
}

fn config(store: &str, directory: &Path, rules: &str) -> String {
    format!(
        "store {{\n url \"{store}\"\n key-file \"{}/key\"\n}}\nsite {{\n listen \"127.0.0.1:0\"\n \
         respond \"/thread\" 200 \"hello\"\n{rules}}}\n",
        directory.display()
    )
}

/// Response to a GET request from this loopback address; empty if the connection is closed without one.
fn get(operated: &Operated, client: u8, path: &str, fields: &str) -> String {
    let mut stream = operated.server.connect_from([127, 0, 0, client]);
    let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\nUser-Agent: curl/8\r\n{fields}Connection: close\r\n\r\n");
    let _ = stream.write_all(request.as_bytes());
    let mut response = String::new();
    let _ = stream.read_to_string(&mut response);
    response
}

/// Status of a response; `None` if there is none.
fn status(response: &str) -> Option<&str> {
    response.get(9..12)
}

/// Field with the cookie that an instance gives for a solved challenge.
fn pass(operated: &Operated) -> String {
    let page = get(operated, 1, "/thread", "");
    let passed = get(operated, 1, &solution(&page), "");
    format!("Cookie: {}\r\n", between(&passed, "Set-Cookie: ", ";"))
}

fn directory_with_key() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("key"), "c2VjcmV0IG9mIGFsbCBpbnN0YW5jZXMsIDMyIGJ5dGVz\n").unwrap();
    std::fs::create_dir(directory.path().join("store")).unwrap();
    directory
}

#[test]
fn a_cookie_is_valid_at_all_instances() {
    let directory = directory_with_key();
    let store = directory.path().join("store").display().to_string();
    let [mut one, two] = [(); 2].map(|()| start(&store, directory.path()));
    let cookie = pass(&one);
    for operated in [&one, &two] {
        assert_eq!(status(&get(operated, 1, "/thread", &cookie)), Some("200"));
        assert_eq!(status(&get(operated, 1, "/thread", "")), Some("403"));
    }
    // A challenge of one may be returned to another.
    let returned = solution(&get(&one, 1, "/thread", ""));
    assert_eq!(status(&get(&two, 1, &returned, "")), Some("303"));
    // Instances with another secret give their own.
    let other = directory_with_key();
    std::fs::write(other.path().join("key"), "YW5vdGhlciBzZWNyZXQsIGFsc28gb2YgMzIgYnl0ZXM\n").unwrap();
    let three = start(&other.path().join("store").display().to_string(), other.path());
    assert_eq!(status(&get(&three, 1, "/thread", &cookie)), Some("403"));
    one.upgrade();
    assert_eq!(status(&get(&one, 1, "/thread", &cookie)), Some("200"));
}

/// Bans in the order of addresses, without their time.
fn bans(operated: &Operated) -> Vec<String> {
    let output = String::from_utf8(operated.order(&["bans"]).stdout).unwrap();
    let without_time = |line: &str| {
        let mut words = line.split_whitespace();
        format!("{} {}", words.next().unwrap(), words.nth(1).unwrap_or_default())
    };
    output.lines().map(without_time).collect()
}

#[test]
fn bans_by_rules_hold_at_all_instances() {
    let directory = directory_with_key();
    let store = directory.path().join("store").display().to_string();
    let [mut one, two] = [(); 2].map(|()| start(&store, directory.path()));
    for (operated, client) in [(&one, 21), (&two, 22)] {
        let scan = || status(&get(operated, client, "/scan/a", "")).map(str::to_owned);
        assert_eq!([scan(), scan()], [Some("403".to_owned()), Some("403".to_owned())]);
    }
    let both = ["127.0.0.21/32 close", "127.0.0.22/32 close"];
    for operated in [&one, &two] {
        eventually("bans reach the other instance", || bans(operated) == both);
        assert_eq!(
            [21, 22, 23].map(|client| status(&get(operated, client, "/none", "")).is_some()),
            [false, false, true]
        );
    }
    // An instance that starts later knows them; an upgrade keeps them.
    let three = start(&store, directory.path());
    eventually("a new instance knows the bans", || bans(&three) == both);
    one.upgrade();
    assert_eq!(bans(&one), both);
    // The operator's order holds at all, also for bans of others.
    assert!(two.order(&["unban", "127.0.0.21"]).status.success());
    for operated in [&one, &two, &three] {
        eventually("the ban ends at all instances", || bans(operated) == both[1..]);
    }
    assert_eq!(status(&get(&one, 21, "/none", "")), Some("403"), "a challenge");
    // Bans continue without the store, and reach it when it is back.
    let (away, place) = (directory.path().join("away"), directory.path().join("store"));
    std::fs::rename(&place, &away).unwrap();
    std::fs::write(&place, "").unwrap();
    for _ in 0..2 {
        get(&three, 24, "/scan/b", "");
    }
    assert_eq!(bans(&three), [both[1], "127.0.0.24/32 close"]);
    std::fs::remove_file(&place).unwrap();
    std::fs::rename(&away, &place).unwrap();
    eventually("the ban reaches others", || bans(&two) == [both[1], "127.0.0.24/32 close"]);
}

/// Each instance sees too few rejections for a ban.
#[test]
fn rejections_of_all_instances_count() {
    let Some(valkey) = engines::valkey(&[], &[]) else { return };
    let directory = directory_with_key();
    let store = format!("valkey://{}", valkey.address);
    let [one, two] = [(); 2].map(|()| start(&store, directory.path()));
    let scan = |operated: &Operated, client: u8| status(&get(operated, client, "/login", "")).map(str::to_owned);
    // An instance learns the count of all some time after its own first, which no event shows: each further client waits
    // longer.
    let pauses = [1, 2, 4, 8, 16, 32].map(std::time::Duration::from_secs);
    let banned = (31..).zip(pauses).find(|&(client, pause)| {
        for operated in [&one, &one, &two] {
            assert_eq!(scan(operated, client).as_deref(), Some("403"));
        }
        std::thread::sleep(pause);
        assert_eq!(scan(&two, client).as_deref(), Some("403"));
        !bans(&two).is_empty()
    });
    let (client, _) = banned.expect("a client is banned for what two instances saw");
    for operated in [&one, &two] {
        eventually("the client is banned at both", || bans(operated) == [format!("127.0.0.{client}/32 close")]);
    }
}

/// The newest file of a crawler's addresses counts at all instances. A file that is wrong changes nothing.
#[test]
fn lists_of_crawlers_are_shared() {
    let directory = directory_with_key();
    let store = directory.path().join("store").display().to_string();
    let file = |number: usize| directory.path().join(format!("gptbot-{number}.txt"));
    let all: Vec<_> = (0..2)
        .map(|number| {
            std::fs::write(file(number), "127.0.0.40/32\n").unwrap();
            let ranges = file(number).display().to_string();
            let rules = format!(" bots \"forum\" {{ crawler \"GPTBot\" ranges=\"{ranges}\" }}\n");
            Operated::start(&config(&store, directory.path(), &rules))
        })
        .collect();
    let crawl = |operated: &Operated, client: u8| {
        let mut stream = operated.server.connect_from([127, 0, 0, client]);
        let request = "GET /thread HTTP/1.1\r\nHost: h\r\nUser-Agent: GPTBot/1.2\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        status(&response).map(str::to_owned)
    };
    let statuses = |client: u8| all.iter().map(|operated| crawl(operated, client).unwrap()).collect::<Vec<_>>();
    assert_eq!((statuses(40), statuses(41)), (vec!["200".to_owned(); 2], vec!["403".to_owned(); 2]));
    std::fs::write(file(0), "127.0.0.41/32\n").unwrap();
    eventually("the new list counts at both", || statuses(41) == ["200", "200"]);
    assert_eq!(statuses(40), ["403", "403"]);
    assert!(std::fs::read_to_string(file(1)).unwrap().contains("127.0.0.40"), "the file of the other stays");
    // A reload keeps the list.
    assert!(all[1].order(&["reload"]).status.success());
    assert_eq!(statuses(41), ["200", "200"]);
    std::fs::write(file(0), "oops").unwrap();
    all[0].server.await_log("lists of bots not reloaded");
    assert_eq!(statuses(41), ["200", "200"]);
    // A newer file of the other instance counts again.
    std::fs::write(file(1), "127.0.0.42/32\n").unwrap();
    eventually("the newest list counts", || statuses(42)[1] == "200");
}
