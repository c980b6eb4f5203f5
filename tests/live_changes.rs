//! Certificates and rate limits that are replaced while the server runs.

use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;

use crate::support::ask;
use crate::support::operated::Operated;
use crate::support::tls::{self, TestCa, connect};

const NAME: &str = "a.example";

/// Certificate that a new connection gets.
fn shown(operated: &Operated, client: &Arc<ClientConfig>) -> Vec<u8> {
    let stream = connect(&operated.server, client, NAME).unwrap();
    stream.conn.peer_certificates().unwrap()[0].to_vec()
}

/// Gives an order that must be rejected for a reason that has this text.
#[track_caller]
fn check_rejected(operated: &Operated, arguments: &[&str], expect: &str) {
    let output = operated.order(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && errors.contains(expect), "{arguments:?}: {errors}");
}

#[track_caller]
fn succeed(operated: &Operated, arguments: &[&str]) {
    let output = operated.order(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_certificate_is_replaced_without_a_reload() {
    let authority = TestCa::new();
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, names: &[&str]| authority.sign(names).write(directory.path(), name);
    write("first", &[NAME]);
    write("second", &[NAME, "b.example"]);
    write("other", &["other.example"]);
    let at = |name: &str| directory.path().join(name).display().to_string();
    let config = format!(
        "site \"{NAME}\" {{\n listen \"127.0.0.1:0\" tls=on\n certificate \"{}\" key=\"{}\"\n \
         client-certificate \"optional\" ca-file=\"{}\"\n respond \"/\" 200 \"x\"\n}}\n",
        at("first.pem"),
        at("first.key"),
        at("ca.pem"),
    );
    std::fs::write(at("ca.pem"), authority.pem()).unwrap();
    let operated = Operated::start(&config);
    let client = Arc::new(authority.client(None));
    let (first, mut open) = (shown(&operated, &client), connect(&operated.server, &client, NAME).unwrap());
    let set = |site: &str, pem: &str, key: &str| operated.order(&["set", "certificate", site, &at(pem), &at(key)]);
    assert!(set(NAME, "second.pem", "second.key").status.success());
    let second = shown(&operated, &client);
    assert_ne!(first, second);
    let request = format!("GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n");
    assert!(tls::ask(&mut open, &request).unwrap().starts_with("HTTP/1.1 200 "), "open connections stay");
    // Another order that makes a new generation keeps it.
    succeed(&operated, &["set", "limit", "idle-timeout", "17s"]);
    assert_eq!(shown(&operated, &client), second);
    for (site, pem, key, expect) in [
        ("none.example", "first.pem", "first.key", "there is no site none.example"),
        (NAME, "first.pem", "second.key", "this is not the key of the certificate"),
        (NAME, "first.key", "first.key", "there is no certificate in this file"),
        (NAME, "first.pem", "first.pem", "there is no private key in this file"),
        (NAME, "other.pem", "other.key", "for other names than the site's: other.example"),
        (NAME, "missing.pem", "first.key", "cannot read "),
    ] {
        check_rejected(&operated, &["set", "certificate", site, &at(pem), &at(key)], expect);
    }
    assert_eq!(shown(&operated, &client), second);
    operated.reload(&config);
    assert_eq!(shown(&operated, &client), first, "a reload restores the certificate of the configuration");
    let has_key = |path: &Path| std::fs::read_to_string(path).is_ok_and(|text| text.contains("PRIVATE KEY"));
    let logs = std::fs::read_dir(operated.path()).unwrap().map(|entry| entry.unwrap().path());
    assert!(!logs.into_iter().any(|path| has_key(&path)), "no key is written");
}

#[test]
fn a_rate_limit_is_changed_without_a_reload() {
    let config = "rate-limit \"/all\" \"1/d\"\nsite \"a.example\" {\n listen \"127.0.0.1:0\"\n \
                  rate-limit \"/own\" \"2/d\"\n rate-limit \"/own\" \"1/d\" key=\"field:X-Key\"\n \
                  respond \"/own\" 200 \"x\"\n respond \"/all\" 200 \"x\"\n}\n";
    let operated = Operated::start(config);
    let keys = std::cell::Cell::new(0);
    let granted = |path: &str, count: usize| {
        let ask_once = || {
            keys.set(keys.get() + 1);
            let key = keys.get();
            let request = format!("GET {path} HTTP/1.1\r\nHost: {NAME}\r\nX-Key: {key}\r\nConnection: close\r\n\r\n");
            ask(&operated.server, &request).starts_with("HTTP/1.1 200 ")
        };
        (0..count).filter(|_| ask_once()).count()
    };
    assert_eq!((granted("/own", 4), granted("/all", 4)), (2, 1));
    // The bucket has two of its days in use, and now eight for each request's tenth of a day.
    succeed(&operated, &["set", "rate-limit", "10/d", "--path", "/own", "--burst", "15", "--site", NAME]);
    assert_eq!((granted("/own", 8), granted("/all", 2)), (5, 0));
    succeed(&operated, &["set", "rate-limit", "2/d", "--path", "/all", "--burst", "3"]);
    assert_eq!((granted("/own", 1), granted("/all", 4)), (0, 1));
    for (arguments, expect) in [
        (&["5/m", "--path", "/all", "--site", NAME][..], "has no rate limit for this path and key of its own"),
        (&["5/m", "--path", "/own"], "no rate limit for all sites has this path and key"),
        (&["5/m", "--path", "/own", "--site", "b.example"], "there is no site b.example"),
        (&["five", "--path", "/own", "--site", NAME], "five"),
        (&["5/m", "--path", "/own\" \"1/s", "--site", NAME], "has no rate limit for this path"),
        (&["5/m\"\nrate-limit \"1/s", "--site", NAME], "rate"),
    ] {
        check_rejected(&operated, &[&["set", "rate-limit"], arguments].concat(), expect);
    }
    operated.reload(config);
    assert_eq!((granted("/own", 1), granted("/all", 1)), (0, 0), "what was used stays counted");
}
