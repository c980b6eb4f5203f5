//! The cases of `conformance/http1`, each in one write and byte by byte.

use std::path::Path;
use std::time::Duration;

use conformance::{Client, PROBE_BODY, PROBE_FILE, Suite};

use crate::support::Server;

#[test]
fn all_cases() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/http1");
    let cases = conformance::load(&folder).expect("the cases are well-formed");
    let site = tempfile::tempdir().expect("a directory for the site");
    for (name, content) in [("index.html", "<!doctype html>\n"), (PROBE_FILE, PROBE_BODY)] {
        std::fs::write(site.path().join(name), content).expect("the site can be written");
    }
    let server = Server::serve(site.path(), &[]);
    let client =
        Client { address: server.address, patience: Duration::from_secs(10), silence: Duration::from_millis(150) };
    let failures = Suite { client, split: true, tailcoat: true, connections: 128 }.run(&cases);
    let failures: Vec<String> =
        failures.iter().map(|failure| format!("{}: {}", cases[failure.case].name, failure.message)).collect();
    assert!(failures.is_empty(), "{} of {} cases failed:\n{}", failures.len(), cases.len(), failures.join("\n"));
}
