//! TLS towards upstreams: trusted CAs and presented certificates.

use std::path::Path;

use crate::support::tls::TestCa;
use crate::support::waiting::{eventually, stays};
use crate::support::{TestServer, ask, tailcoat};

/// Upstream with a certificate for `app.example`, which logs the version and the client certificate of each request.
fn backend(directory: &Path, more: &str) -> TestServer {
    let path = directory.display();
    TestServer::run(&format!(
        "access-log \"{path}/log\" format=\"{{request}} {{tls_client}}\"\nsite \"app.example\" {{\n listen \"127.0.0.1:0\" tls=on\n default\n respond \"*\" 200 \"here\"\n \
         certificate \"{path}/app.example.pem\" key=\"{path}/app.example.key\"\n{more}\n}}\nserver {{ workers 1 }}\n"
    ))
}

/// Waits until the last line of a file contains this text.
fn await_line(file: &Path, expect: &str) {
    eventually(&format!("{expect} is in the last line of {}", file.display()), || {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().last().is_some_and(|line| line.contains(expect))
    });
}

#[test]
fn who_is_trusted() {
    let (authority, other, directory) = (TestCa::new(), TestCa::new(), tempfile::tempdir().unwrap());
    let path = directory.path();
    authority.sign(&["app.example"]).write(path, "app.example");
    std::fs::write(path.join("ca.pem"), authority.pem()).unwrap();
    std::fs::write(path.join("other.pem"), other.pem()).unwrap();
    let backend = backend(path, "");
    let port = backend.address.port();
    let (ours, others) = (path.join("ca.pem"), path.join("other.pem"));
    let (ours, others) = (ours.display(), others.display());
    let name = "tls-server-name \"app.example\"";
    for (options, expect) in [
        (format!("tls-ca-file \"{ours}\"\n {name}"), Ok("HTTP/2")),
        (format!("tls-ca-file \"{ours}\"\n {name}\n tls-http2 off"), Ok("HTTP/1.1")),
        // The certificate does not match the address; its CA is unknown, or another one.
        (format!("tls-ca-file \"{ours}\""), Err("is for other names\" request")),
        (name.to_owned(), Err("no trusted CA has issued the server's certificate")),
        (format!("tls-ca-file \"{others}\"\n {name}"), Err("; name its CA in `tls-ca-file`")),
        (format!("tls-verify off\n {name}"), Ok("HTTP/2")),
        ("tls-verify off".to_owned(), Ok("HTTP/2")),
    ] {
        let errors = path.join("errors");
        let config = format!(
            "upstream \"u\" {{\n server \"https://127.0.0.1:{port}\"\n {options}\n}}\n\
             site {{\n listen \"127.0.0.1:0\"\n forward \"u\"\n}}\nserver {{ workers 1 }}\n"
        );
        let server = TestServer::run_logging(&config, &errors);
        let answer = ask(&server, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        match expect {
            Ok(version) => {
                assert!(answer.contains(" 200 ") && answer.ends_with("here"), "{options}: {answer}");
                await_line(&path.join("log"), version);
            }
            Err(reason) => {
                assert!(answer.contains(" 502 "), "{options}: {answer}");
                await_line(&errors, reason);
            }
        }
    }
}

#[test]
fn dates_of_a_certificate_are_told() {
    let (authority, directory) = (TestCa::new(), tempfile::tempdir().unwrap());
    let path = directory.path();
    std::fs::write(path.join("ca.pem"), authority.pem()).unwrap();
    for (from, to, expect) in [(2000, 2001, "has expired"), (2200, 2201, "is not valid yet")] {
        authority.sign_for(&["app.example"], from, to).write(path, "app.example");
        let backend = backend(path, "");
        let server = TestServer::run(&format!(
            "upstream \"u\" {{\n server \"https://{}\"\n tls-ca-file \"{}\"\n tls-server-name \"app.example\"\n }}\n\
             site {{\n listen \"127.0.0.1:0\"\n forward \"u\"\n}}\nserver {{ workers 1 }}\n",
            backend.address,
            path.join("ca.pem").display()
        ));
        let answer = ask(&server, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        assert!(answer.contains(" 502 "), "{answer}");
        server.await_log(&format!("the server's certificate {expect}"));
    }
}

#[test]
fn a_certificate_is_shown() {
    let (authority, directory) = (TestCa::new(), tempfile::tempdir().unwrap());
    let path = directory.path();
    authority.sign(&["app.example"]).write(path, "app.example");
    authority.sign(&["proxy.example"]).write(path, "proxy");
    std::fs::write(path.join("ca.pem"), authority.pem()).unwrap();
    let ca = path.join("ca.pem").display().to_string();
    let backend = backend(path, &format!(" client-certificate \"required\" ca-file=\"{ca}\""));
    let shown = format!("tls-certificate \"{0}/proxy.pem\" key=\"{0}/proxy.key\"", path.display());
    for (options, status) in [
        (format!("{shown}\n health-check \"/\" interval=\"100ms\""), " 200 "),
        // A health check could have found it before; the response is a 503 then.
        (String::new(), " 502 "),
    ] {
        let server = TestServer::run(&format!(
            "upstream \"u\" {{\n server \"https://127.0.0.1:{}\"\n tls-ca-file \"{ca}\"\n \
             tls-server-name \"app.example\"\n last-resort off\n {options}\n}}\n\
             site {{\n listen \"127.0.0.1:0\"\n forward \"u\" {{\n host \"app.example\"\n }}\n}}\nserver {{ workers 1 }}\n",
            backend.address.port()
        ));
        let answer = ask(&server, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        assert!(answer.contains(status), "{options}: {answer}");
        if status == " 200 " {
            await_line(&path.join("log"), "CN=proxy.example");
            stays("health checks succeed, too", std::time::Duration::from_millis(500), || {
                ask(&server, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").contains(status)
            });
        }
    }
}

#[test]
fn what_is_wrong_is_said_before_anything_starts() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.kdl");
    for (upstream, expect) in [
        ("server \"https://a\"\n tls-ca-file \"missing.pem\"", "there is no such file"),
        ("server \"https://a\"\n tls-certificate \"missing.pem\"", "there is no such file"),
        ("server \"http://a\"\n tls-verify off", "no server of this upstream uses TLS"),
        ("server \"h2c://a\"\n proxy-protocol v2", "`proxy-protocol` needs one client per connection"),
        ("server \"https://a/b\"", "is not only a server"),
        ("server \"grpc://a\"", "h2c://"),
    ] {
        std::fs::write(&file, format!("upstream \"u\" {{\n {upstream}\n}}\nsite {{\n forward \"u\"\n}}\n")).unwrap();
        let output = tailcoat().args(["check", "-c"]).arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && said.contains(expect), "{upstream}: {said}");
    }
}

#[test]
fn new_files_are_taken_up() {
    let (authority, other, directory) = (TestCa::new(), TestCa::new(), tempfile::tempdir().unwrap());
    let path = directory.path();
    authority.sign(&["app.example"]).write(path, "app.example");
    authority.sign(&["first.example"]).write(path, "proxy");
    std::fs::write(path.join("ca.pem"), authority.pem()).unwrap();
    std::fs::write(path.join("trusted.pem"), authority.pem()).unwrap();
    let known = path.join("ca.pem").display().to_string();
    let backend = backend(path, &format!(" client-certificate \"required\" ca-file=\"{known}\""));
    let errors = path.join("errors");
    // No connection is kept, so that each request needs a handshake.
    let server = TestServer::run_logging(
        &format!(
            "upstream \"u\" {{\n server \"https://127.0.0.1:{}\"\n tls-ca-file \"{1}/trusted.pem\"\n \
             tls-certificate \"{1}/proxy.pem\" key=\"{1}/proxy.key\"\n tls-server-name \"app.example\"\n \
             tls-http2 off\n idle-max 0\n}}\nsite {{\n listen \"127.0.0.1:0\"\n forward \"u\"\n}}\n\
             server {{ workers 1; certificate-check-interval \"100ms\" }}\n",
            backend.address.port(),
            path.display(),
        ),
        &errors,
    );
    let get = || ask(&server, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert!(get().contains(" 200 "));
    await_line(&path.join("log"), "CN=first.example");
    std::fs::write(path.join("proxy.pem"), "broken").unwrap();
    await_line(&errors, "the certificates in use stay in use");
    let said = std::fs::read_to_string(&errors).unwrap();
    assert!(said.contains("proxy.pem: there is no certificate in this file") && said.contains("upstream=u "), "{said}");
    assert!(get().contains(" 200 "));
    await_line(&path.join("log"), "CN=first.example");
    authority.sign(&["second.example"]).write(path, "proxy");
    await_line(&errors, "upstream certificates reloaded: upstream=u");
    assert!(get().contains(" 200 "));
    await_line(&path.join("log"), "CN=second.example");
    std::fs::write(path.join("trusted.pem"), other.pem()).unwrap();
    eventually("an upstream that is not trusted any more gets no requests", || !get().contains(" 200 "));
}
