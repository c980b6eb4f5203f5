//! Clients that are banned: by an operator for some time, by lists of networks, by the number of connections of a
//! network.

use std::io::Read;
use std::net::TcpStream;

use crate::support::ftp::FtpClient;
use crate::support::operated::Operated;
use crate::support::waiting::eventually;
use crate::support::{PATIENCE, TestServer, ask};

const SITE: &str = "site {\n listen \"127.0.0.1:0\"\n respond \"/\" 200 \"hello\"\n}\n";

fn request(operated: &Operated) -> Option<String> {
    use std::io::Write;
    let mut stream = TcpStream::connect(operated.server.address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server closes a banned client's connection at any point.
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    (!answer.is_empty()).then_some(answer)
}

fn order(operated: &Operated, arguments: &[&str]) -> String {
    let output = operated.order(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn who_is_banned_gets_nothing_until_the_ban_ends() {
    let mut operated = Operated::start(SITE);
    let mut kept = operated.server.connect();
    assert!(get(&mut kept).starts_with("HTTP/1.1 200 "));
    assert_eq!(order(&operated, &["bans"]), "");
    assert_eq!(order(&operated, &["ban", "127.0.0.0/8", "--for", "10m"]), "127.0.0.0/8 is banned for 10m\n");
    assert_eq!(request(&operated), None);
    assert!(get(&mut kept).starts_with("HTTP/1.1 403 "), "a connection that was there");
    assert!(order(&operated, &["bans"]).starts_with("127.0.0.0/8  "));
    // The ban outlives reloads and upgrades.
    operated.reload(&(SITE.to_owned() + "limits { header-fields-max 50 }\n"));
    assert_eq!(request(&operated), None);
    operated.upgrade();
    assert_eq!(request(&operated), None);
    assert!(order(&operated, &["bans"]).starts_with("127.0.0.0/8  "));
    assert_eq!(order(&operated, &["unban", "127.0.0.0/8"]), "127.0.0.0/8 is no longer banned\n");
    assert!(request(&operated).is_some());
    // On a busy machine, the ban may be over before the request.
    eventually("the ban holds", || {
        assert_eq!(order(&operated, &["ban", "127.0.0.1", "--for", "1s"]), "127.0.0.1/32 is banned for 1s\n");
        request(&operated).is_none()
    });
    eventually("the time of the ban is over", || request(&operated).is_some());
    for (arguments, reported) in [
        (vec!["unban", "192.0.2.1"], "192.0.2.1/32 is not banned"),
        (vec!["ban", "no-address"], "`no-address` is not an address or network"),
        (vec!["ban", "192.0.2.1", "--for", "never"], "`never` is not a time"),
        (vec!["ban", "10.0.0.5/8"], "has bits after its prefix; write `\"10.0.0.0/8\"`"),
    ] {
        let output = operated.order(&arguments);
        assert!(!output.status.success());
        assert!(String::from_utf8_lossy(&output.stderr).contains(reported), "{arguments:?}");
    }
    assert_eq!(order(&operated, &["ban", "2001:db8:1:2:3::4"]), "2001:db8:1:2::/64 is banned for 1h\n");
}

/// Bans that operators set while the new process starts apply to it as well.
/// A session that a client opened before its ban gets no further file.
#[test]
fn a_ban_ends_open_ftp_sessions() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().display();
    let operated = Operated::start(&format!("site {{\n ftp \"127.0.0.1:0\" {{ root \"{root}\" }}\n}}\n"));
    let mut client = FtpClient::log_in(&operated.server);
    let mut passive = FtpClient::log_in(&operated.server);
    assert_eq!(client.codes(&["NOOP"]), [200]);
    order(&operated, &["ban", "127.0.0.1"]);
    assert_eq!(client.codes(&["NOOP"]), [421]);
    assert_eq!(passive.codes(&["EPSV"]), [421]);
}

#[test]
fn who_is_banned_during_an_upgrade_stays_so() {
    let mut operated = Operated::start(SITE);
    order(&operated, &["ban", "198.51.100.0/24"]);
    let (begun, go_on) = (operated.path().join("begun"), operated.path().join("go-on"));
    operated.replace_binary(Some(&format!(
        "#!/bin/sh\ntouch {}\nwhile ! [ -e {} ]; do sleep 0.05; done\nexec {} \"$@\"\n",
        begun.display(),
        go_on.display(),
        crate::support::tailcoat().get_program().display()
    )));
    let path = operated.path().to_owned();
    let operating = std::thread::spawn(move || {
        operated.upgrade();
        operated
    });
    let ban = |arguments: &[&str]| {
        let mut command = crate::support::tailcoat();
        command.args(arguments).arg("--socket").arg(path.join("control.sock"));
        assert!(command.output().unwrap().status.success(), "{arguments:?}");
    };
    eventually("the new process begins", || begun.exists());
    ban(&["ban", "127.0.0.0/8"]);
    ban(&["unban", "198.51.100.0/24"]);
    std::fs::write(&go_on, "").unwrap();
    let operated = operating.join().unwrap();
    let bans = order(&operated, &["bans"]);
    assert!(bans.contains("127.0.0.0/8  ") && !bans.contains("198.51.100.0/24"), "{bans}");
    assert_eq!(bans.lines().count(), 1, "{bans}");
    assert_eq!(request(&operated), None);
}

fn get(stream: &mut TcpStream) -> String {
    use std::io::Write;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() > 0 {
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length =
        head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).map_or(0, |text| text.parse().unwrap());
    stream.read_exact(&mut vec![0; length]).unwrap();
    head
}

/// Rules of `auto-ban`: statuses, paths, conditions, trial runs. Two workers count together.
#[test]
fn who_is_rejected_too_often_is_banned() {
    const RULES: &str = "site {\n listen \"127.0.0.1:0\"\n respond \"/\" 200 \"hello\"\n \
        metrics \"/metrics\"\n respond \"/login\" 403 \"no\"\n auto-ban \"3/h\" 401 403 path=\"/login\"\n auto-ban \"1/h\" path=\"/wp-login.php\" for=\"1d\"\n \
        auto-ban \"2/h\" 404 path=\"/odd/*\" when=\"client not in ('127.0.0.4') and request.header.sec-fetch-site != 'cross-site'\"\n auto-ban \"1/h\" 404 path=\"/trial\" dry-run=on\n}\n";
    let mut operated = Operated::start(RULES);
    // Status of a response; `None` if the connection is closed without one.
    let from = |operated: &Operated, client: u8, path: &str, fields: &str| {
        use std::io::Write;
        let mut stream = operated.server.connect_from([127, 0, 0, client]);
        let _ =
            stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: h\r\n{fields}Connection: close\r\n\r\n").as_bytes());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer.get(9..12).map(|status| status.parse::<u16>().unwrap())
    };
    for (client, path, statuses) in [
        (2, "/login", &[Some(403), Some(403), Some(403), None][..]),
        // Other readings of a path count, too.
        (6, "/WP-login.php", &[Some(404), Some(404)]),
        (6, "/wp-login.php/", &[Some(404), Some(404)]),
        (6, "/%77p-login.php?x=1", &[Some(404), None]),
        (3, "/odd/a", &[Some(404), Some(404), None]),
        (4, "/odd/a", &[Some(404); 4]),
        (5, "/trial", &[Some(404); 3]),
        // Other statuses and paths do not count.
        (7, "/", &[Some(200); 5]),
        (7, "/none", &[Some(404); 5]),
        // This machine is not banned.
        (1, "/login", &[Some(403); 5]),
    ] {
        let found: Vec<_> = statuses.iter().map(|_| from(&operated, client, path, "")).collect();
        assert_eq!(found, statuses, "{client} {path}");
    }
    for _ in 0..4 {
        assert_eq!(from(&operated, 7, "/odd/a", "Sec-Fetch-Site: cross-site\r\n"), Some(404));
    }
    let bans = order(&operated, &["bans"]);
    let banned: Vec<_> = bans.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(banned, ["127.0.0.2/32", "127.0.0.3/32", "127.0.0.6/32"]);
    operated.server.await_log("client banned by `auto-ban`: network=127.0.0.2/32 time=1h status=403 rejections=3");
    operated.server.await_log("client would be banned: network=127.0.0.5/32 time=1h status=404 rejections=1");
    let metrics = operated.server.exchange(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(metrics.contains("tailcoat_limit_hits_total{limit=\"auto-ban\"} 3\n"), "{metrics}");
    // Bans, and counts of rules that stay the same, outlive reloads. Bans outlive upgrades.
    assert_eq!(from(&operated, 8, "/login", ""), Some(403));
    assert_eq!(from(&operated, 8, "/login", ""), Some(403));
    operated.reload(&RULES.replace("hello", "changed"));
    assert_eq!(from(&operated, 2, "/", ""), None);
    assert_eq!(from(&operated, 8, "/login", ""), Some(403));
    assert_eq!(from(&operated, 8, "/", ""), None);
    operated.upgrade();
    assert_eq!(from(&operated, 8, "/", ""), None);
    order(&operated, &["unban", "127.0.0.8"]);
    assert_eq!(from(&operated, 8, "/", ""), Some(200));
}

#[test]
fn rules_ban_clients_of_a_proxy_one_by_one() {
    let server = TestServer::run(
        "server { workers 1; trusted-proxies \"127.0.0.9\" }\nsite {\n listen \"127.0.0.1:0\"\n respond \"/\" 200 \"hello\"\n \
         auto-ban \"1/h\" 404\n}\n",
    );
    for (client, path, status) in [
        ("2001:db8::1", "/none", 404),
        ("2001:db8::ffff:1", "/", 403),
        ("2001:db8:0:1::1", "/", 200),
        // The proxy itself, and this machine.
        ("127.0.0.9", "/none", 404),
        ("127.0.0.9", "/", 200),
        ("127.0.0.1", "/none", 404),
        ("127.0.0.1", "/", 200),
    ] {
        use std::io::Write;
        let mut stream = server.connect_from([127, 0, 0, 9]);
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: {client}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer.get(9..12), Some(status.to_string().as_str()), "{client} {path}");
    }
}

#[test]
fn clients_of_a_proxy_are_banned_by_themselves() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(
        directory.path().join("tailcoat.kdl"),
        format!(
            "server {{ workers 1; trusted-proxies \"127.0.0.1\"; control-socket \"{}\" }}\n{SITE}",
            directory.path().join("control.sock").display()
        ),
    )
    .unwrap();
    let server = TestServer::run_from(&directory.path().join("tailcoat.kdl"));
    let of = |client: &str| {
        ask(&server, &format!("GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: {client}\r\nConnection: close\r\n\r\n"))
    };
    let ban = crate::support::tailcoat()
        .args(["ban", "192.0.2.0/24", "--socket"])
        .arg(directory.path().join("control.sock"))
        .output()
        .unwrap();
    assert!(ban.status.success());
    assert!(of("192.0.2.7").starts_with("HTTP/1.1 403 "));
    assert!(of("198.51.100.1").starts_with("HTTP/1.1 200 "));
}

#[test]
fn lists_of_networks_are_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let list = directory.path().join("networks");
    std::fs::write(&list, "# whom we know\n192.0.2.0/24 ; SBL1\n\n2001:db8::/32\n").unwrap();
    let config = format!("{}deny \"file:{}\"\n", SITE, list.display());
    let operated = Operated::start_in(directory, &config);
    assert!(request(&operated).unwrap().starts_with("HTTP/1.1 200 "));
    std::fs::write(&list, "127.0.0.9/8\n").unwrap();
    operated.reload(&config);
    assert!(request(&operated).unwrap().starts_with("HTTP/1.1 403 "));
    std::fs::write(&list, "127.0.0.0/8\nlocalhost\n").unwrap();
    let output = operated.order(&["reload"]);
    assert_eq!(output.status.code(), Some(3));
    let said = String::from_utf8_lossy(&output.stderr).replace(['\n', ' ', '|', ':'], "");
    assert!(said.contains("line2`localhost`isnotanaddress"), "{said}");
    assert!(request(&operated).unwrap().starts_with("HTTP/1.1 403 "), "the lists in use stay in use");
}

#[test]
fn a_network_has_so_many_connections() {
    let operated = Operated::start(&(SITE.to_owned() + "limits { connections-per-network-max 3 }\n"));
    let mut kept: Vec<_> = (0..3).map(|_| operated.server.connect()).collect();
    kept.iter_mut().for_each(|stream| assert!(get(stream).starts_with("HTTP/1.1 200 ")));
    assert_eq!(request(&operated), None);
    kept.pop();
    let start = std::time::Instant::now();
    while request(&operated).is_none() {
        assert!(start.elapsed() < crate::support::PATIENCE, "a place is given back");
    }
}

#[test]
fn requests_are_counted_by_network() {
    let operated = Operated::start(&(SITE.to_owned() + "rate-limit \"2/h\" key=\"network\"\n"));
    let answers: Vec<_> = (0..3).map(|_| request(&operated).unwrap()[..12].to_owned()).collect();
    assert_eq!(answers, ["HTTP/1.1 200", "HTTP/1.1 200", "HTTP/1.1 429"]);
}
