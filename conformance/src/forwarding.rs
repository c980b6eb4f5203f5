//! Runs cases through a proxy: requests to a server that notes what reaches it, and a server's answers to a client.

use std::borrow::Cow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::case::Case;
use crate::client::{CaseClient, Feed, PROBE_BODY};
use crate::expect::{CaseOutcome, ConnectionEnd};
use crate::origin::{CASE_TARGET, OriginServer, PreparedResponse, SeenRequests};
use crate::strict_request::{StrictRequest, meant};
use crate::suite::CaseFailure;

/// Interim answers before a final one that a proxy may pass on: more are a flood.
const INTERIM_RESPONSES_MAX: usize = 100;

const STRAGGLERS_WAIT: Duration = Duration::from_millis(10);

/// Test of a proxy.
#[derive(Clone, Debug)]
pub struct ForwardSuite {
    /// Instances of the proxy, each with its origin. One case per lane runs at a time.
    pub lanes: Vec<Lane>,
    /// True for Tailcoat, which never closes without a response, and changes no target.
    pub tailcoat: bool,
}

/// An instance of the proxy under test.
#[derive(Clone, Debug)]
pub struct Lane {
    /// Address and time-outs.
    pub client: CaseClient,
    /// Origin of this lane only.
    pub origin: OriginServer,
}

impl ForwardSuite {
    /// Sends requests. Their responses must be those without a proxy. Requests that reach the origin must have one meaning,
    /// that of the client's bytes.
    pub fn run_requests(&self, cases: &[Case]) -> Vec<CaseFailure> {
        self.run(cases, |lane, case| {
            // Requests of the last case whose client went away may still be on their way. A busy server handles them before
            // this one.
            let probe = b"GET /probe.txt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            let _ = lane.client.run(probe, &case.expect, Feed::Whole);
            std::thread::sleep(STRAGGLERS_WAIT);
            lane.origin.take_seen();
            let outcome = lane.client.run(&case.input, &case.expect, Feed::Whole).map_err(|error| error.to_string())?;
            self.check_seen(&lane.origin.take_seen(), &outcome, case)?;
            case.expect.check(&outcome, !self.tailcoat)
        })
    }

    /// Has the server answer with a case's bytes. The client must see what is expected, and nothing that belongs to another
    /// request.
    pub fn run_responses(&self, cases: &[Case]) -> Vec<CaseFailure> {
        self.run(cases, |lane, case| {
            let name = case.name.split_once('/').map_or("", |(_, name)| name);
            lane.origin.set_answer(PreparedResponse {
                bytes: case.input.clone(),
                is_unsolicited: name.starts_with("unsolicited"),
            });
            let method = if name.starts_with("HEAD") { "HEAD" } else { "GET" };
            let request = format!("{method} {CASE_TARGET} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            let outcome = lane.client.run(request.as_bytes(), &case.expect, Feed::Whole);
            let mut outcome = outcome.map_err(|error| error.to_string())?;
            check_own(&outcome)?;
            if outcome.responses.len() > INTERIM_RESPONSES_MAX {
                return Err(format!("{} interim answers", outcome.responses.len()));
            }
            outcome.responses.dedup_by(|one, other| one.status < 200 && one.status == other.status);
            case.expect.check(&outcome, true)?;
            // Leftovers on a connection to the origin must not reach the next client.
            for _ in 0..2 {
                let request = b"GET /probe.txt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
                let next = lane.client.run(request, &case.expect, Feed::Whole).map_err(|error| error.to_string())?;
                match &next.responses[..] {
                    [response] if response.body == PROBE_BODY.as_bytes() && next.garbage.is_empty() => {}
                    // That a broken server is passed over for a while, or a request not repeated, is no confusion.
                    [response] if matches!(response.status, 502..=504) && !self.tailcoat => {}
                    _ => return Err(format!("another client's answer: {next}")),
                }
            }
            Ok(())
        })
    }

    fn run(&self, cases: &[Case], check: impl Fn(&Lane, &Case) -> Result<(), String> + Sync) -> Vec<CaseFailure> {
        let next = AtomicUsize::new(0);
        let failures = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for lane in &self.lanes {
                scope.spawn(|| {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(case) = cases.get(index) else { break };
                        if let Err(message) = check(lane, case) {
                            failures.lock().expect("no thread panics").push(CaseFailure { case: index, message });
                        }
                    }
                });
            }
        });
        let mut failures = failures.into_inner().expect("no thread panics");
        failures.sort_by_key(|failure| failure.case);
        failures
    }

    fn check_seen(&self, seen: &SeenRequests, outcome: &CaseOutcome, case: &Case) -> Result<(), String> {
        if let Some((reason, bytes)) = seen.malformed.first() {
            return Err(format!("the server got {reason}: {}", crate::escape(&bytes[..bytes.len().min(300)])));
        }
        let mut seen = &seen.requests[..];
        if matches!(outcome.end, ConnectionEnd::InSync | ConnectionEnd::OutOfSync(_)) {
            // The probe.
            seen = &seen[..seen.len().saturating_sub(1)];
        }
        let answers = outcome.responses.iter().filter(|response| response.status >= 200).count();
        let (meant, is_clear) = meant(&case.input);
        // Bytes without a meaning must not be forwarded. Other servers may give them one, if it is the same for all.
        if (is_clear || self.tailcoat) && !self.is_part_of(seen, &meant) {
            return Err(format!("the server got {}, meant was {}", list(seen), list(&meant)));
        }
        if seen.len() > answers && answers > 0 {
            return Err(format!("the server got {}, of which {answers} were answered", list(seen)));
        }
        Ok(())
    }

    /// True if all that the origin saw was meant, in this order. A proxy may respond to some requests itself.
    fn is_part_of(&self, seen: &[StrictRequest], meant: &[StrictRequest]) -> bool {
        let mut meant = meant.iter();
        seen.iter().all(|request| {
            meant.any(|other| {
                other.method == request.method
                    && other.content == request.content
                    && (!self.tailcoat || forwarded_target(&other.target) == request.target)
            })
        })
    }
}

/// The target that Tailcoat sends for this one: without the slashes that make some servers take the first segment for a host.
fn forwarded_target(target: &str) -> Cow<'_, str> {
    match target.strip_prefix("//") {
        Some(rest) => format!("/{}", rest.trim_start_matches('/')).into(),
        None => target.into(),
    }
}

/// Whole answers to a case say `ok`, or nothing.
fn check_own(outcome: &CaseOutcome) -> Result<(), String> {
    let foreign = outcome.responses.iter().find(|response| {
        let is_own = response.body.is_empty() || response.body == b"ok";
        (200..300).contains(&response.status) && !is_own
    });
    foreign.map_or(Ok(()), |response| Err(format!("a whole response with {}", crate::escape(&response.body))))
}

fn list(requests: &[StrictRequest]) -> String {
    let texts: Vec<_> = requests
        .iter()
        .map(|request| format!("{} {} with {} bytes", request.method, request.target, request.content.len()))
        .collect();
    format!("[{}]", texts.join(", "))
}
