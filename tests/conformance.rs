//! Cases of `conformance/http1`, each in one write and byte by byte.

use std::path::Path;
use std::time::Duration;

use conformance::{Case, CaseClient, CaseFailure, ForwardSuite, Lane, OriginServer, PROBE_BODY, PROBE_FILE, Suite};

use crate::support::TestServer;

fn load(folder: &str) -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance").join(folder);
    conformance::load(&folder).expect("the cases are well-formed")
}

fn client(server: &TestServer) -> CaseClient {
    CaseClient { address: server.address, patience: Duration::from_secs(10), silence: Duration::from_millis(150) }
}

fn assert_none(failures: &[CaseFailure], cases: &[Case]) {
    let failures: Vec<String> =
        failures.iter().map(|failure| format!("{}: {}", cases[failure.case].name, failure.message)).collect();
    assert!(failures.is_empty(), "{} of {} cases failed:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

#[test]
fn all_cases() {
    let cases = load("http1");
    let site = tempfile::tempdir().expect("a directory for the site");
    for (name, content) in [("index.html", "<!doctype html>\n"), (PROBE_FILE, PROBE_BODY)] {
        std::fs::write(site.path().join(name), content).expect("the site can be written");
    }
    let server = TestServer::serve(site.path(), &[]);
    let suite = Suite { client: client(&server), split: true, tailcoat: true, connections: 128 };
    assert_none(&suite.run(&cases), &cases);
}

/// Forwards the requests, and the upstream's responses: nothing ambiguous passes in either direction.
#[test]
fn all_cases_forwarded() {
    const LANES: usize = 32;
    let (requests, responses) = (load("http1"), load("http1-responses"));
    let nothing = tempfile::tempdir().expect("a directory for the site");
    let (servers, lanes): (Vec<_>, Vec<_>) = (0..LANES)
        .map(|_| {
            let origin = OriginServer::start().expect("a port is free");
            let server = TestServer::serve(nothing.path(), &["--forward", &format!("http://{}", origin.address)]);
            let lane = Lane { client: client(&server), origin };
            (server, lane)
        })
        .unzip();
    let suite = ForwardSuite { lanes, tailcoat: true };
    assert_none(&suite.run_requests(&requests), &requests);
    assert_none(&suite.run_responses(&responses), &responses);
    drop(servers);
}
