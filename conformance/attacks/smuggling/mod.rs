//! Request smuggling through the server to real back ends: what they see must be what the server let through, and that must be
//! what the client's bytes mean.

pub(crate) mod back_ends;
mod grammar;
mod tap;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use conformance::{StrictRequest, escape, meant, sent_by_proxy};

use crate::frames;
use crate::raw::{Raw, ask, status};
use crate::support::TestServer;
use crate::support::port::free_port;
use crate::support::waiting::within;
use crate::trial::{Attack, AttackCase, Skipped, Trial};

use tap::{Relay, SentBytes};

pub(crate) const ATTACKS: [Attack; 4] = [
    Attack { name: "smuggling/apache", run: |trial| attack(trial, "apache") },
    Attack { name: "smuggling/nginx", run: |trial| attack(trial, "nginx") },
    Attack { name: "smuggling/node", run: |trial| attack(trial, "node") },
    Attack { name: "smuggling/go", run: |trial| attack(trial, "go") },
];

/// Clients at a time.
const CLIENTS: usize = 12;

/// Cases between two comparisons of what was sent with what the back end saw.
const BATCH_CASES: u64 = 2_000;

/// Nothing comes for so long: the server waits for the rest of a request, or is done.
const SILENCE: Duration = Duration::from_millis(80);

/// Time that a back end may take to note the requests it has seen.
const NOTING_TIME: Duration = Duration::from_secs(3);

/// Bytes that a case sent, and their meaning.
struct SentCase {
    case: u64,
    bytes: Vec<u8>,
    is_http2: bool,
    /// Targets that the back end may get, as the server forwards them; of HTTP/1, each with method and content.
    targets: Vec<String>,
    requests: Vec<StrictRequest>,
}

fn attack(trial: &Trial, name: &str) -> Result<String, Skipped> {
    let back_end = back_ends::start(name)?;
    let notes = back_end.directory().join("seen");
    let (mut forwarded, mut seen_by_back_end) = (0, 0);
    loop {
        let (sent, seen) = run_batch(trial, back_end.address, &notes);
        forwarded += sent;
        seen_by_back_end += seen;
        if trial.is_over() || trial.is_single() {
            return Ok(format!("{forwarded} requests let through, {seen_by_back_end} seen by {name}"));
        }
    }
}

/// Some cases against a server of their own, so that no connection outlives what is compared.
fn run_batch(trial: &Trial, back_end: SocketAddr, notes: &Path) -> (usize, usize) {
    let notes_before = std::fs::metadata(notes).map_or(0, |notes| notes.len() as usize);
    let tap = Relay::start(back_end);
    let buffering = free_port();
    let server = TestServer::run(&format!(
        "server {{ workers 2 }}\nsite {{\n listen \"127.0.0.1:0\"\n forward \"http://{0}\"\n}}\n\
         site {{\n listen \"127.0.0.1:{buffering}\"\n forward \"http://{0}\" {{\n  request-buffering on\n  \
         response-buffering on\n }}\n}}\n",
        tap.address
    ));
    // The log names the first listener that is ready.
    let ports = [server.address.port(), buffering];
    let sendings = Mutex::new(Vec::new());
    trial.run_batch(CLIENTS, BATCH_CASES, |case| {
        let sending = SentCase::new(case);
        let result = exchange(&sending, case, ports);
        sendings.lock().expect("no thread panics with it").push(sending);
        result
    });
    let sendings = sendings.into_inner().expect("no thread panics with it");
    let counts = compare(trial, &tap.sent(), (notes, notes_before), &sendings);
    trial.expect_healthy(&server, "/index.html");
    counts
}

impl SentCase {
    fn new(case: &mut AttackCase) -> Self {
        let number = case.number;
        let is_http2 = case.random.u8(0..4) == 0;
        let (bytes, requests) = if is_http2 {
            (grammar::streams(number, &mut case.random), Vec::new())
        } else {
            let bytes = grammar::connection(number, &mut case.random);
            let requests = meant(&bytes).0;
            (bytes, requests)
        };
        let mut targets: Vec<String> = requests.iter().map(|request| as_forwarded(&request.target)).collect();
        if is_http2 {
            targets.extend((0..4).map(|stream| grammar::open_target(number, stream)));
        }
        Self { case: number, bytes, is_http2, targets, requests }
    }
}

/// A target as the server forwards it: without the slashes that name a host, and without dot segments.
fn as_forwarded(target: &str) -> String {
    let target = match target.strip_prefix("//") {
        Some(rest) => format!("/{}", rest.trim_start_matches('/')),
        None => target.to_owned(),
    };
    target.strip_prefix("/x/..").map_or(target.clone(), str::to_owned)
}

/// Sends a case, reads what comes back, and has another client ask for something else.
fn exchange(sending: &SentCase, case: &mut AttackCase, ports: [u16; 2]) -> Result<(), String> {
    let address = ([127, 0, 0, 1], ports[case.random.usize(..2)]).into();
    let received = if sending.is_http2 {
        let mut raw = frames::connect(address, b"")?;
        raw.send_in_pieces(&sending.bytes, &mut case.random);
        raw.read(SILENCE, |_| false);
        Vec::new()
    } else {
        let mut raw = Raw::connect(address)?;
        raw.send_in_pieces(&sending.bytes, &mut case.random);
        raw.read(SILENCE, |_| false);
        raw.received
    };
    let fail = |what: String| Err(format!("{what}\nsent {}", escape(&sending.bytes)));
    // A back end may respond to a head before all content is there, and before the server finds that it is malformed.
    let completed = meant(&[&sending.bytes[..], &[b'x'; 1 << 16]].concat()).0;
    let completed: Vec<String> = completed.iter().map(|request| as_forwarded(&request.target)).collect();
    // A hidden request that has become one of its own has no number.
    let is_numbered = |target: &&String| (0..4).any(|number| grammar::is_of(target, case.number, number));
    let begun = completed.iter().filter(is_numbered).count()..4;
    let mut expected = completed.iter().map(Ok).chain(begun.map(Err));
    for answered in answered_targets(&received) {
        let is_answer = |expected: Result<&String, usize>| match expected {
            Ok(target) => *target == answered,
            Err(number) => grammar::is_of(&answered, case.number, number),
        };
        if !expected.any(is_answer) {
            return fail(format!("a response to {answered}, which was not the next request: {}", escape(&received)));
        }
    }
    let victim = format!("/v/{}", case.number);
    let answer = ask(address, &format!("GET {victim} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
    match answered_targets(answer.as_bytes()).first() {
        Some(answered) if *answered == victim => Ok(()),
        Some(answered) => fail(format!("the next client asked for {victim} and got the response to {answered}")),
        None => fail(format!("the next client got status {}: {answer:?}", status(&answer))),
    }
}

/// Targets whose responses these are.
fn answered_targets(received: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(received);
    let values = text.split("X-Saw: ").skip(1).filter_map(|value| value.split("\r\n").next());
    values.filter_map(|value| value.split(' ').nth(1)).map(str::to_owned).collect()
}

/// Compares what the server sent with what clients meant, and with what the back end saw. Returns how many requests each was.
fn compare(trial: &Trial, sent: &SentBytes, notes: (&Path, usize), sendings: &[SentCase]) -> (usize, usize) {
    let mut meant: HashSet<(&str, String, &[u8])> = HashSet::new();
    let mut targets: HashSet<&str> = HashSet::new();
    for sending in sendings {
        meant.extend(
            sending
                .requests
                .iter()
                .zip(&sending.targets)
                .map(|(request, target)| (&*request.method, target.clone(), &*request.content)),
        );
        targets.extend(sending.targets.iter().filter(|_| sending.is_http2).map(String::as_str));
    }
    let begin = |bytes: &[u8]| escape(&bytes[..bytes.len().min(1_000)]);
    // By connection, method and target of each request, the last of which may be incomplete.
    let mut heads: HashMap<u16, Vec<String>> = HashMap::new();
    let mut count = 0;
    for (port, bytes) in sent {
        let (requests, rest) = match sent_by_proxy(bytes) {
            Ok(parsed) => parsed,
            Err(reason) => {
                trial.find(case_of(bytes, sendings), format!("the server sent {reason}: {}", begin(bytes)));
                continue;
            }
        };
        count += requests.len();
        for request in &requests {
            let is_victim = request.target.starts_with("/v/") && request.content.is_empty();
            let key = (&*request.method, request.target.clone(), &*request.content);
            if !is_victim && !meant.contains(&key) && !targets.contains(&*request.target) {
                let text = format!("no client meant {} {}: {}", request.method, request.target, begin(bytes));
                trial.find(case_of(bytes, sendings), text);
            }
        }
        let heads = heads.entry(*port).or_default();
        heads.extend(requests.iter().map(|request| format!("{} {}", request.method, request.target)));
        let last = String::from_utf8_lossy(rest);
        heads.extend(
            last.split("\r\n\r\n")
                .next()
                .filter(|_| last.contains("\r\n\r\n"))
                .map(|head| head.split(' ').take(2).collect::<Vec<_>>().join(" ")),
        );
    }
    let seen = wait_for_notes(notes, &heads);
    for (port, seen) in &seen {
        let Some(heads) = heads.get(port) else { continue };
        if !heads.starts_with(seen) {
            let bytes = &sent[port];
            let text = format!("the back end saw {seen:?} where {heads:?} was sent: {}", begin(bytes));
            trial.find(case_of(bytes, sendings), text);
        }
    }
    (count, seen.values().map(Vec::len).sum())
}

/// Requests that the back end saw on these connections, when it has noted all of them or notes no more.
/// `notes`: its file, and how long that was before.
fn wait_for_notes((file, before): (&Path, usize), heads: &HashMap<u16, Vec<String>>) -> HashMap<u16, Vec<String>> {
    let mut seen: HashMap<u16, Vec<String>> = HashMap::new();
    within(NOTING_TIME, || {
        let text = std::fs::read(file).unwrap_or_default();
        seen.clear();
        for line in String::from_utf8_lossy(text.get(before..).unwrap_or_default()).lines() {
            let mut words = line.split(' ');
            let port = words.next().and_then(|port| port.parse().ok());
            // Connections without a request, as Apache and nginx note them, have no target.
            if let (Some(port), Some(method), Some(target)) = (port, words.next(), words.next())
                && heads.contains_key(&port)
            {
                seen.entry(port).or_default().push(format!("{method} {target}"));
            }
        }
        let is_all = heads.iter().all(|(port, heads)| seen.get(port).map_or(0, Vec::len) >= heads.len());
        is_all.then_some(())
    });
    seen
}

/// The case whose request began a connection to the back end.
fn case_of(bytes: &[u8], sendings: &[SentCase]) -> Option<u64> {
    let text = String::from_utf8_lossy(bytes);
    let mut markers = text.split(['/', '-', ' ', '\r']).filter_map(|word| word.parse::<u64>().ok());
    markers.find(|number| sendings.iter().any(|sending| sending.case == *number))
}
