//! Access control by address and password, on the built server.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::thread;

use base64ct::{Base64, Encoding};
use tempfile::TempDir;

use crate::support::waiting::{eventually, lines_of};
use crate::support::{TestServer, tailcoat};

/// Directory with a file, passwords and a log; and a server of it with these rules.
fn server(settings: &str, rules: &str) -> (TempDir, TestServer) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("site")).unwrap();
    std::fs::create_dir(directory.path().join("site/admin")).unwrap();
    std::fs::write(directory.path().join("site/admin/index.html"), "secrets").unwrap();
    std::fs::write(directory.path().join("site/index.html"), "home").unwrap();
    write_passwords(&directory, &[("anna", "secret")]);
    let rules = rules.replace("DIR", directory.path().to_str().unwrap());
    let server = TestServer::run(&format!(
        "{settings}\nsite {{\nlisten \"127.0.0.1:0\"\nroot \"{0}/site\"\naccess-log \"{0}/access.log\"\n{rules}\n}}\n",
        directory.path().display(),
    ));
    (directory, server)
}

fn write_passwords(directory: &TempDir, users: &[(&str, &str)]) {
    let lines: Vec<String> = users.iter().map(|(user, password)| hash_password(user, password, "4")).collect();
    // Renames a complete file into place, so that the server never reads half of it.
    let (temporary, path) = (directory.path().join("passwords.new"), directory.path().join("passwords"));
    std::fs::write(&temporary, lines.concat()).unwrap();
    std::fs::rename(temporary, path).unwrap();
}

/// Output of `tailcoat hash-password`.
fn hash_password(user: &str, password: &str, cost: &str) -> String {
    use std::io::Write;
    let mut child = tailcoat()
        .args(["hash-password", "--user", user, "--cost", cost])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(format!("{password}\n").as_bytes()).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

fn exchange(server: &TestServer, target: &str, fields: &str) -> String {
    server.exchange(format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n").as_bytes())
}

fn status(server: &TestServer, target: &str, fields: &str) -> String {
    exchange(server, target, fields).get(9..12).unwrap_or_default().to_owned()
}

/// Authorization field of these credentials.
fn authorization(credentials: &str) -> String {
    format!("Authorization: Basic {}\r\n", Base64::encode_string(credentials.as_bytes()))
}

#[test]
fn passwords() {
    let (directory, server) = server(
        "",
        "basic-auth \"/admin/public/*\" off\n\
         basic-auth \"/admin/*\" \"DIR/passwords\" realm=\"A \\\"B\\\"\"\n\
         rewrite \"/back-door\" \"/admin/\"\n\
         rewrite \"/admin/front-door\" \"/\"\n\
         rewrite \"*\" \"/admin/index.html\" missing=on\n\
         response-header \"X-User\" \"{user}\"\n\
         respond \"/admin/public/a\" 200 \"public\"",
    );
    let check = |target: &str, fields: &str, expect: &str| {
        assert_eq!(status(&server, target, fields), expect, "{target} {fields}");
    };
    check("/", "", "200");
    check("/admin/", "", "401");
    for _ in 0..3 {
        check("/admin/", &authorization("anna:secret"), "200");
    }
    check("/admin/", &authorization("anna:wrong"), "401");
    check("/admin/", &authorization("anna:"), "401");
    check("/admin/", &authorization("bert:secret"), "401");
    check("/admin/", "Authorization: Basic !!\r\n", "401");
    check("/admin/nothing", &authorization("anna:secret"), "200");
    // Attempts to bypass it: by encoding, segments, rewrites and missing files.
    for target in
        ["/%61dmin/", "//admin//", "/x/../admin/", "/./admin/index.html", "/back-door", "/admin/front-door", "/no"]
    {
        check(target, "", "401");
        check(target, &authorization("anna:secret"), "200");
    }
    check("/admin/public/a", "", "200");
    // The directory itself, and the target of its redirect.
    check("/admin", "", "401");
    check("/admin", &authorization("anna:secret"), "301");
    let answer = exchange(&server, "/admin/", "");
    assert!(answer.contains("WWW-Authenticate: Basic realm=\"A \\\"B\\\"\", charset=\"UTF-8\"\r\n"), "{answer}");
    assert!(!answer.contains("secrets") && !answer.contains("X-User"), "{answer}");
    assert!(exchange(&server, "/admin/", &authorization("anna:secret")).contains("X-User: anna\r\n"));
    // The server reads the content before it responds, and keeps the connection.
    let answer = server.exchange(
        b"POST /admin/ HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n12345GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    );
    assert!(answer.starts_with("HTTP/1.1 401") && answer.ends_with("home"), "{answer}");
    drop(server);
    drop(directory);
}

/// Compressed or not, the content is the same.
#[test]
fn guards_of_a_file_hold_for_its_precompressed_forms() {
    let (directory, server) = server(
        "",
        "deny all path=\"/denied.html\"\nbasic-auth \"/members.html\" \"DIR/passwords\"\n\
         allow \"192.0.2.0/24\" path=\"/office.html\"\ndeny all path=\"/office.html\"",
    );
    for name in ["denied", "members", "office", "open"] {
        for end in ["", ".gz", ".br", ".zst"] {
            std::fs::write(directory.path().join(format!("site/{name}.html{end}")), "content").unwrap();
        }
    }
    for end in ["", ".gz", ".br", ".zst"] {
        for (name, expect) in [("denied", "403"), ("members", "401"), ("office", "403"), ("open", "200")] {
            assert_eq!(status(&server, &format!("/{name}.html{end}"), ""), expect, "{name}{end}");
        }
        assert_eq!(status(&server, &format!("/members.html{end}"), &authorization("anna:secret")), "200", "{end}");
    }
}

#[test]
fn users_are_logged() {
    let (directory, server) = server("", "basic-auth \"/admin/*\" \"DIR/passwords\"");
    assert_eq!(status(&server, "/admin/", &authorization("anna:secret")), "200");
    assert_eq!(status(&server, "/admin/", &authorization("bert:guess")), "401");
    assert_eq!(status(&server, "/", &authorization("carla:x")), "200");
    let log = directory.path().join("access.log");
    let lines = lines_of(&log, 3);
    // Two workers may have written them, in any order.
    let users: BTreeSet<_> = lines.iter().map(|line| line.split(' ').nth(2).unwrap()).collect();
    assert_eq!(users, BTreeSet::from(["anna", "bert", "-"]), "{lines:?}");
}

#[test]
fn a_changed_file_counts_within_a_second_or_two() {
    let (directory, server) = server("", "basic-auth \"*\" \"DIR/passwords\"");
    let await_status = |credentials: &str, expect: &str| {
        eventually(&format!("{credentials} gets {expect}"), || {
            status(&server, "/", &authorization(credentials)) == expect
        });
    };
    await_status("anna:secret", "200");
    write_passwords(&directory, &[("anna", "other"), ("bert", "new")]);
    await_status("anna:secret", "401");
    await_status("anna:other", "200");
    await_status("bert:new", "200");
    std::fs::remove_file(directory.path().join("passwords")).unwrap();
    await_status("anna:other", "500");
    write_passwords(&directory, &[("anna", "secret")]);
    await_status("anna:secret", "200");
}

/// Wrong passwords cost CPU time, but do not delay others: signed-in users and pages without passwords continue.
#[test]
fn a_flood_of_wrong_passwords() {
    let (directory, server) = server(
        "limits { password-checks-max 1; password-checks-waiting-max 8 }",
        "basic-auth \"/admin/*\" \"DIR/passwords\"",
    );
    // Costly enough that the attempts overlap.
    let line = hash_password("anna", "secret", "10");
    std::fs::write(directory.path().join("passwords"), line).unwrap();
    assert_eq!(status(&server, "/admin/", &authorization("anna:secret")), "200");
    let statuses = thread::scope(|scope| {
        let floods: Vec<_> = (0..8)
            .map(|number| {
                let server = &server;
                scope.spawn(move || {
                    let wrong = authorization(&format!("anna:wrong{number}"));
                    (0..4).map(|_| status(server, "/admin/", &wrong)).collect::<Vec<_>>()
                })
            })
            .collect();
        for _ in 0..20 {
            assert_eq!(status(&server, "/admin/", &authorization("anna:secret")), "200");
            assert_eq!(status(&server, "/", ""), "200");
        }
        floods.into_iter().flat_map(|flood| flood.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(statuses.iter().all(|status| status == "401" || status == "429"), "{statuses:?}");
    // Each client has one place in the queue.
    assert!(statuses.iter().any(|status| status == "429"), "{statuses:?}");
}

/// Applications decode arguments, so an encoded letter must not lead around a rule that rejects one.
#[test]
fn a_rejected_argument_is_found_in_each_form() {
    let server = TestServer::run(
        "site {\n listen \"127.0.0.1:0\"\n deny all path=\"/q\" query=\"action=delete\"\n \
         deny all path=\"/n\" query=\"!role=user\"\n deny all path=\"/h\" query=\"debug\"\n \
         respond \"*\" 200\n}\n",
    );
    let status = |target: &str| {
        let response = server.exchange(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
        response[9..12].to_owned()
    };
    for query in [
        "a=b&&action=delete",
        "%61ction=delet%65",
        "action=%64elete",
        "a=b;action=delete",
        "action[]=delete",
        "ACTION=delete&x",
    ] {
        assert_eq!(status(&format!("/q?{query}")), "403", "{query}");
    }
    for query in ["", "action=deleted", "actions=delete", "x=action=delete"] {
        assert_eq!(status(&format!("/q?{query}")), "200", "{query}");
    }
    // Negated: only an argument as written lets a request pass.
    assert_eq!([status("/n?role=user"), status("/n?role=%75ser"), status("/n")], ["200", "403", "403"]);
    assert_eq!([status("/h?%64ebug"), status("/h?a;debug=1"), status("/h?debugs")], ["403", "403", "200"]);
}

#[test]
fn addresses() {
    let (_directory, server) = server(
        "server { trusted-proxies \"127.0.0.1\" \"10.0.0.0/8\" }",
        "allow \"192.0.2.0/24\" path=\"/admin/*\"\n\
         deny all path=\"/admin/*\"\n\
         deny \"198.51.100.7\" \"2001:db8::/32\"\n\
         rewrite \"/back-door\" \"/admin/\"\n\
         response-header \"X-Client\" \"{client}\"",
    );
    let check = |target: &str, chain: &str, expect: &str| {
        let fields = if chain.is_empty() { String::new() } else { format!("X-Forwarded-For: {chain}\r\n") };
        assert_eq!(status(&server, target, &fields), expect, "{target} {chain}");
    };
    check("/", "", "200");
    check("/admin/", "", "403");
    check("/admin/", "192.0.2.9", "200");
    check("/admin/", "192.0.2.9, 10.1.1.1", "200");
    check("/admin/", "192.0.2.9, 203.0.113.1", "403");
    check("/admin/", "203.0.113.1, 192.0.2.9", "200");
    check("/admin/", "::ffff:192.0.2.9", "200");
    check("/back-door", "203.0.113.1", "403");
    check("/back-door", "192.0.2.9", "200");
    check("/%61dmin/", "203.0.113.1", "403");
    check("/", "198.51.100.7", "403");
    check("/", "198.51.100.8", "200");
    check("/", "2001:db8::1", "403");
    check("/", "[2001:db9::1]:99", "200");
    let answer = exchange(&server, "/", "X-Forwarded-For: 203.0.113.1\r\n");
    assert!(answer.contains("X-Client: 203.0.113.1\r\n"), "{answer}");
}

#[test]
fn the_client_of_a_proxy_is_logged() {
    let (directory, server) = server("server { trusted-proxies \"127.0.0.1\" field=\"Forwarded\" }", "");
    assert_eq!(status(&server, "/", "Forwarded: for=\"[2001:db8::7]:1\"\r\n"), "200");
    assert_eq!(status(&server, "/", "X-Forwarded-For: 192.0.2.1\r\n"), "200");
    let log = directory.path().join("access.log");
    let lines = lines_of(&log, 2);
    let clients: BTreeSet<_> = lines.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(clients, BTreeSet::from(["2001:db8::7", "127.0.0.1"]), "{lines:?}");
}

#[test]
fn special_files_block_no_request() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let (directory, server) = server("", "basic-auth \"/admin/*\" \"DIR/passwords\"");
    let at = |name: &str| directory.path().join(name);
    mknodat(CWD, at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    std::fs::rename(at("fifo"), at("passwords")).unwrap();
    // The old passwords may be valid until the next check of the file.
    eventually("the passwords are gone", || status(&server, "/admin/", &authorization("anna:secret")) != "200");
    let check = |settings: &str| {
        let config = format!("site {{\nlisten \"127.0.0.1:0\"\n{settings}\n}}\n");
        std::fs::write(at("tailcoat.kdl"), config.replace("FIFO", at("passwords").to_str().unwrap())).unwrap();
        let output = tailcoat().arg("check").arg("-c").arg(at("tailcoat.kdl")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("no regular file"), "{settings}: {said}");
    };
    check("respond \"/\" 200; basic-auth \"/*\" \"FIFO\"");
    check("respond \"/\" 200; deny \"file:FIFO\"");
    check("module \"/*\" \"FIFO\"");
    check("respond \"/\" 200; certificate \"FIFO\"");
}
