//! gRPC through the server: calls of all kinds, between third-party client and server.

use std::path::Path;
use std::process::Command;

use crate::support::TestServer;
use crate::support::h2::H2Client;
use crate::support::real_server::{RealServer, Recipe};
use crate::support::tls::TestCa;

const SERVER: Recipe<'_> = Recipe {
    needs: &["/usr/bin/python3", "/usr/lib/python3/dist-packages/grpc"],
    files: &[
        ("server.py", include_str!("applications/grpc_server.py")),
        ("client.py", include_str!("applications/grpc_client.py")),
    ],
    command: &["/usr/bin/python3", "@DIR@/server.py", "@PORT@"],
    environment: &[],
};

/// Runs the client against this address, with TLS if a CA is given.
fn call(directory: &Path, address: &str, authority: Option<&Path>) {
    let client =
        Command::new("/usr/bin/python3").arg(directory.join("client.py")).arg(address).args(authority).output();
    let client = client.expect("it can be started");
    let (said, errors) = (String::from_utf8_lossy(&client.stdout), String::from_utf8_lossy(&client.stderr));
    assert!(client.status.success(), "{address}: {said}{errors}");
}

#[test]
fn calls_of_all_kinds() {
    let Some(upstream) = RealServer::start(&SERVER) else { return };
    let (authority, directory) = (TestCa::new(), upstream.directory());
    let (path, authority_path) = (directory.display(), directory.join("ca.pem"));
    std::fs::write(&authority_path, authority.pem()).unwrap();
    authority.sign(&["localhost"]).write(directory, "localhost");
    let certificate = format!("certificate \"{path}/localhost.pem\" key=\"{path}/localhost.key\"");
    let site = |listen: &str, forward: &str| {
        format!(
            "site \"localhost\" {{\n listen \"127.0.0.1:0\" {listen}\n default\n forward \"{forward}\"\n}}\n\
             server {{ workers 1 }}\n"
        )
    };
    let plain = TestServer::run(&site("", &format!("h2c://{}", upstream.address)));
    call(directory, &format!("localhost:{}", plain.address.port()), None);
    let encrypted = site(&format!("tls=on\n {certificate}"), &format!("h2c://{}", upstream.address));
    let encrypted = TestServer::run(&encrypted);
    let address = format!("localhost:{}", encrypted.address.port());
    call(directory, &address, Some(&authority_path));
    // The connection to the upstream is encrypted, too.
    let twice = TestServer::run(&format!(
        "{}upstream \"calls\" {{\n server \"https://{address}\"\n tls-ca-file \"{}\"\n}}\n",
        site("", "calls"),
        authority_path.display()
    ));
    call(directory, &format!("localhost:{}", twice.address.port()), None);
}

#[test]
fn errors_of_ours_are_reported_in_trailers() {
    // Nothing listens on port 1.
    let server =
        TestServer::run("site \"localhost\" {\n listen \"127.0.0.1:0\"\n default\n forward \"h2c://127.0.0.1:1\"\n}\n");
    let mut client = H2Client::connect(&server);
    for (content_type, status, grpc_status) in
        [("application/grpc+proto", 200, Some(&b"14"[..])), ("application/grpc-web", 502, None)]
    {
        let stream = client.ask("POST", "/a.B/C", &[("content-type", content_type), ("te", "trailers")], true);
        let answer = client.finish(stream);
        assert_eq!((answer.status(), answer.fields.get("grpc-status")), (status, grpc_status), "{content_type}");
    }
}
