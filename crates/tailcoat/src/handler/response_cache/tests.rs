//! The cache as a whole, with an upstream that says what it is told to.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use wire::h1::{DATE_BYTES, HeadLimits, parse_request_head};
use wire::http::{Fields, RequestHead, Status};

use super::{Fetch, FetchFuture, Purge, ResponseCache, SharedResponseCache, purge};
use crate::config::{Cache, NamePattern, ResponseCaching, SetCookie};
use crate::handler::{
    Body, BuiltResponse, ClientLinkCell, ContentSource, ContentStream, Filled, Form, Forwarded, Now, Outcome,
    OwnedRequest, Response, Routed, Segment,
};
use crate::log::Client;
use crate::object_cache::{Content, ObjectStore, WorkerCache};

/// What an upstream answers: status, fields as lines, and content.
#[derive(Clone)]
struct Answer {
    status: u16,
    lines: String,
    content: Vec<&'static str>,
    is_streamed: bool,
    /// The content breaks off.
    is_cut: bool,
    /// It comes when this is set.
    when: Option<Rc<Cell<bool>>>,
}

#[derive(Default)]
struct Upstream {
    answers: RefCell<VecDeque<Answer>>,
    /// Method and the fields that matter here, of each request.
    asked: RefCell<Vec<String>>,
}

struct Pieces {
    pieces: VecDeque<&'static str>,
    is_cut: bool,
    when: Option<Rc<Cell<bool>>>,
}

impl ContentSource for Pieces {
    fn poll_fill(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<Filled>> {
        if self.when.as_ref().is_some_and(|when| !when.get()) {
            task.waker().wake_by_ref();
            return Poll::Pending;
        }
        match self.pieces.pop_front() {
            Some(piece) => {
                buffer[..piece.len()].copy_from_slice(piece.as_bytes());
                Poll::Ready(Ok(Filled::Content(piece.len())))
            }
            None if self.is_cut => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            None => Poll::Ready(Ok(Filled::End(None))),
        }
    }
}

impl Fetch for Upstream {
    fn fetch(self: Rc<Self>, request: Rc<OwnedRequest>, changes: Fields) -> FetchFuture {
        let request = request.request();
        let mut asked = String::from_utf8_lossy(request.method_name()).into_owned();
        for name in ["If-None-Match", "If-Modified-Since", "Range"] {
            let own = request.field_by_name(name.as_bytes());
            if let Some(value) = changes.get(name).or(own).filter(|value| !value.is_empty()) {
                asked += &format!(" {name}: {}", String::from_utf8_lossy(value));
            }
        }
        self.asked.borrow_mut().push(asked);
        let answer = self.answers.borrow_mut().pop_front().expect("nobody expected that this is asked");
        Box::pin(async move {
            while answer.when.as_ref().is_some_and(|when| !answer.is_streamed && !when.get()) {
                tokio::task::yield_now().await;
            }
            answer.into_response()
        })
    }
}

impl Answer {
    fn into_response(self) -> Box<BuiltResponse> {
        let mut fields = Fields::new();
        for line in self.lines.lines() {
            let (name, value) = line.split_once(": ").unwrap();
            fields.push(name, value);
        }
        let body = match self.is_streamed {
            false if self.content.is_empty() => Body::default(),
            false => Body::from_bytes(self.content.concat()),
            true => {
                let length = self.content.iter().map(|piece| piece.len() as u64).sum();
                let source = Pieces { pieces: self.content.into(), is_cut: self.is_cut, when: self.when };
                let stream = ContentStream { source: Box::new(source), length: (!self.is_cut).then_some(length) };
                Body { segments: Vec::new(), stream: Some(stream) }
            }
        };
        let status = Status::new(self.status).unwrap();
        // 503 without fields is an answer of the server's own: the upstream can't be reached.
        let forwarded = (self.status != 503 || !self.lines.is_empty()).then(Box::<Forwarded>::default);
        Box::new(BuiltResponse { status, fields, body, forwarded })
    }
}

fn answer(status: u16, lines: &str, content: &'static str) -> Answer {
    let content = if content.is_empty() { vec![] } else { vec![content] };
    Answer { status, lines: lines.into(), content, is_streamed: false, is_cut: false, when: None }
}

fn streamed(lines: &str, content: &[&'static str]) -> Answer {
    Answer { content: content.to_vec(), is_streamed: true, ..answer(200, lines, "") }
}

/// A cache, an upstream, and clients.
struct Site {
    cache: ResponseCache,
    store: Arc<ObjectStore>,
    worker: Rc<WorkerCache>,
    upstream: Rc<Upstream>,
    runtime: LocalRuntime,
    later_ms: u64,
}

/// What a client gets: status, and content; fields as lines.
#[derive(Debug)]
struct Got {
    status: u16,
    head: String,
    content: Result<String, io::ErrorKind>,
}

impl Site {
    fn new(change: impl FnOnce(&mut ResponseCaching)) -> Self {
        let mut config = ResponseCaching::default();
        change(&mut config);
        let store = ObjectStore::new(Cache::default()).unwrap();
        let worker = Rc::new(WorkerCache::new(Arc::clone(&store)));
        let patience = (Duration::from_secs(60), Duration::from_secs(60));
        let shared = SharedResponseCache::new(config, patience, 16, Arc::clone(&store));
        let cache = ResponseCache::new(shared, Rc::clone(&worker));
        let runtime = Builder::new_current_thread().enable_time().build_local(LocalOptions::default()).unwrap();
        Self { cache, store, worker, upstream: Rc::default(), runtime, later_ms: 0 }
    }

    /// A site whose upstream answers so.
    fn answering(answers: &[Answer]) -> Self {
        Self::new(|_| {}).and(answers)
    }

    fn and(self, answers: &[Answer]) -> Self {
        self.upstream.answers.borrow_mut().extend(answers.iter().cloned());
        self
    }

    fn start(&self, request: &str) -> Outcome {
        let bytes = format!("{}Host: h\r\n\r\n", request.replace('\n', "\r\n")).into_bytes();
        let mut head = RequestHead::default();
        let limits = HeadLimits { head_bytes_max: 4096, fields_max: 99, target_bytes_max: 999 };
        parse_request_head(&bytes, &mut head, &limits).unwrap().unwrap();
        let mut now = Now::read();
        now.monotonic_ms += self.later_ms;
        let routed = Routed {
            request: wire::http::Request { head: &head, bytes: &bytes },
            path: b"/",
            query: None,
            host: b"h",
            client: Client::Unix,
            proxied: None,
            link: &ClientLinkCell::default(),
            has_next: false,
            now,
        };
        self.cache.handle(&routed, &self.upstream)
    }

    async fn finish(&self, outcome: Outcome) -> Got {
        let Outcome::Ready(response) = (match outcome {
            Outcome::Wait(future) => future.await,
            outcome => outcome,
        }) else {
            panic!("waits twice, or declines")
        };
        self.receive(response).await
    }

    /// Sends a request like `GET /path\nField: value\n`, and reads what comes.
    fn ask(&self, request: &str) -> Got {
        let request = if request.contains('\n') { request.to_owned() } else { format!("{request} HTTP/1.1\n") };
        self.runtime.block_on(async {
            let got = self.finish(self.start(&request)).await;
            // What is done behind the client's back.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            got
        })
    }

    async fn receive(&self, response: Response) -> Got {
        let mut head = Vec::new();
        let (status, body) = match response {
            Response::Changed(_) => unreachable!("rules do that"),
            Response::Cached { object, coding, form } => {
                let representation = object.object.representation(coding);
                let date = &[b'?'; DATE_BYTES];
                let (prepared, range) = match form {
                    Form::Whole => (&representation.head, 0..representation.content.length()),
                    Form::NotModified => (&representation.not_modified_head, 0..0),
                    Form::Part { offset, length } => (&representation.partial_head, offset..offset + length),
                };
                prepared.write(date, &mut head);
                let stored = object.object.response().unwrap().stored;
                head.extend_from_slice(format!("Age: {}\r\n", stored.age_seconds(Now::read().monotonic_ms)).as_bytes());
                let Content::Memory(content) = &representation.content else { panic!("a file") };
                let status = String::from_utf8_lossy(&head)[9..12].parse().unwrap();
                (status, Body::from_bytes(content.slice(range.start as usize..range.end as usize)))
            }
            Response::Built(built) => {
                wire::h1::write_fields(&mut head, &built.fields);
                (built.status.code(), built.body)
            }
        };
        Got { status, head: String::from_utf8(head).unwrap(), content: read(body).await }
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.upstream.asked.borrow_mut())
    }
}

async fn read(body: Body) -> Result<String, io::ErrorKind> {
    let mut content = String::new();
    for segment in &body.segments {
        let Segment::Bytes(bytes) = segment else { panic!("a file") };
        content.push_str(str::from_utf8(bytes).unwrap());
    }
    let Some(mut stream) = body.stream else { return Ok(content) };
    let mut buffer = [0; 256];
    loop {
        match std::future::poll_fn(|task| stream.source.poll_fill(task, &mut buffer)).await {
            Ok(Filled::Content(count)) => content.push_str(str::from_utf8(&buffer[..count]).unwrap()),
            Ok(Filled::End(_)) => return Ok(content),
            Err(error) => return Err(error.kind()),
        }
    }
}

impl Got {
    #[track_caller]
    fn is(&self, status: u16, content: &str) -> &Self {
        assert_eq!((self.status, self.content.as_deref()), (status, Ok(content)), "{}", self.head);
        self
    }

    #[track_caller]
    fn has(&self, line: &str) -> &Self {
        assert!(self.head.lines().any(|other| other == line), "no {line}: {}", self.head);
        self
    }

    #[track_caller]
    fn has_no(&self, name: &str) -> &Self {
        assert!(!self.head.lines().any(|line| line.starts_with(name)), "{name}: {}", self.head);
        self
    }
}

const FRESH: &str = "Cache-Control: max-age=60\nETag: \"a\"\nContent-Type: text/plain";

#[test]
fn what_is_fresh_is_served_from_memory() {
    for first in [answer(200, FRESH, "hello"), streamed(FRESH, &["he", "llo"])] {
        let site = Site::answering(&[first]);
        site.ask("GET /").is(200, "hello");
        site.ask("GET /").is(200, "hello").has("Age: 0").has("Content-Length: 5").has("ETag: \"a\"");
        site.ask("HEAD /").has("Content-Length: 5");
        site.ask("GET / HTTP/1.1\nCookie: a=b\n").is(200, "hello");
        site.ask("GET / HTTP/1.1\nIf-None-Match: \"a\"\n").is(304, "").has("ETag: \"a\"").has_no("Content-Type");
        site.ask("GET / HTTP/1.1\nIf-None-Match: \"b\"\n").is(200, "hello");
        site.ask("GET / HTTP/1.1\nRange: bytes=1-2\n").is(206, "el");
        site.ask("GET / HTTP/1.1\nRange: bytes=9-\n").is(416, "").has("Content-Range: bytes */5");
        let several = site.ask("GET / HTTP/1.1\nRange: bytes=0-0,4-4\n");
        // They are less apart than the head of a part is long.
        several.is(206, "hello");
        assert_eq!(site.asked(), ["GET"]);
    }
}

#[test]
fn other_statuses_are_stored_as_they_are() {
    let site = Site::answering(&[answer(404, FRESH, "none")]);
    site.ask("GET /").is(404, "none");
    site.ask("GET / HTTP/1.1\nIf-None-Match: \"a\"\nRange: bytes=0-1\n").is(404, "none").has("Age: 0");
}

#[test]
fn urls_are_told_apart() {
    let site = Site::new(|config| config.ignored_parameters = vec![NamePattern::new("utm_*")]);
    let site = site.and(&[answer(200, FRESH, "1"), answer(200, FRESH, "2"), answer(200, FRESH, "3")]);
    site.ask("GET /?a=1").is(200, "1");
    site.ask("GET /?a=2").is(200, "2");
    site.ask("GET /%3Fa=1").is(200, "3");
    site.ask("GET /?a=1&utm_source=x").is(200, "1");
    site.ask("GET http://H/?a=2").is(200, "2");
}

#[test]
fn stale_responses_are_validated() {
    let stale = "Cache-Control: max-age=0\nETag: \"a\"\nLast-Modified: then\nA: 1\nContent-Type: text/plain";
    let site = Site::answering(&[answer(200, stale, "one"), answer(304, "Cache-Control: max-age=60\nA: 2", "")]);
    site.ask("GET /").is(200, "one");
    // The client's own condition is answered from what was validated.
    site.ask("GET / HTTP/1.1\nIf-None-Match: \"x\"\nRange: bytes=0-1\n").is(206, "on").has("A: 2");
    site.ask("GET /").is(200, "one").has("A: 2").has("Content-Type: text/plain").has("Cache-Control: max-age=60");
    assert_eq!(site.asked(), ["GET", "GET If-None-Match: \"a\" If-Modified-Since: then"]);
}

#[test]
fn a_new_version_replaces_the_stale_one() {
    let stale = "Cache-Control: max-age=0\nETag: \"a\"";
    let site = Site::answering(&[answer(200, stale, "one"), answer(200, FRESH, "two")]);
    site.ask("GET /").is(200, "one");
    site.ask("GET / HTTP/1.1\nIf-None-Match: \"a\"\n").is(304, "");
    site.ask("GET /").is(200, "two");

    // RFC 9111, section 4.3.4: a 304 about another version changes nothing, and the whole is asked for.
    let site = Site::answering(&[answer(200, stale, "one"), answer(304, "ETag: \"b\"", ""), answer(200, FRESH, "two")]);
    site.ask("GET /").is(200, "one");
    site.ask("GET /").is(200, "two");
    assert_eq!(site.asked(), ["GET", "GET If-None-Match: \"a\"", "GET"]);
}

#[test]
fn what_may_not_be_stored_is_not() {
    let cut = Answer { is_cut: true, ..streamed(FRESH, &["hel"]) };
    let large = Box::leak("x".repeat((1 << 20) + 1).into_boxed_str());
    for (first, request) in [
        (answer(200, "Cache-Control: no-store", "1"), "GET /"),
        (answer(200, "Cache-Control: private, max-age=9", "1"), "GET /"),
        (answer(200, "Cache-Control: max-age=9\nVary: *", "1"), "GET /"),
        (answer(200, "Cache-Control: max-age=9\nSet-Cookie: a=b", "1"), "GET /"),
        (answer(200, FRESH, "1"), "GET / HTTP/1.1\nAuthorization: x\n"),
        (answer(206, FRESH, "1"), "GET / HTTP/1.1\nRange: bytes=0-0\n"),
        (answer(200, FRESH, large), "GET /"),
        (cut, "GET /"),
    ] {
        let site = Site::answering(&[first, answer(200, "Cache-Control: no-store", "2")]);
        site.ask(request);
        site.ask("GET /").is(200, "2");
        assert_eq!(site.asked().len(), 2, "{request}");
    }
}

#[test]
fn a_client_sees_what_breaks_off() {
    let site = Site::answering(&[Answer { is_cut: true, ..streamed(FRESH, &["hel"]) }]);
    assert_eq!(site.ask("GET /").content, Err(io::ErrorKind::UnexpectedEof));
}

#[test]
fn what_turns_out_too_large_is_passed_on() {
    let site = Site::new(|config| config.object_bytes_max = 4)
        .and(&[streamed(FRESH, &["12", "34", "56"]), Answer { is_cut: true, ..streamed(FRESH, &["12", "34", "5"]) }]);
    site.ask("GET /").is(200, "123456");
    assert_eq!(site.ask("GET /").content, Err(io::ErrorKind::UnexpectedEof));
}

#[test]
fn cookies_by_policy() {
    let first = || answer(200, "Cache-Control: max-age=9\nSet-Cookie: a=b", "1");
    let site = Site::new(|config| config.set_cookie = SetCookie::Keep).and(&[first()]);
    site.ask("GET /");
    site.ask("GET /").has("Set-Cookie: a=b");
    let site = Site::new(|config| config.set_cookie = SetCookie::Drop).and(&[first()]);
    site.ask("GET /").has("Set-Cookie: a=b");
    site.ask("GET /").is(200, "1").has_no("Set-Cookie");

    let site = Site::new(|config| config.bypass_cookies = vec![NamePattern::new("login*")]);
    let site = site.and(&[answer(200, FRESH, "1"), answer(200, FRESH, "2")]);
    site.ask("GET /").is(200, "1");
    site.ask("GET / HTTP/1.1\nCookie: a=b; login_x=1\n").is(200, "2");
    site.ask("GET / HTTP/1.1\nCookie: a=login\n").is(200, "1");
}

#[test]
fn variants() {
    let varying = |content| answer(200, "Cache-Control: max-age=60\nVary: Accept-Language", content);
    let site = Site::answering(&[varying("en"), varying("de"), varying("none"), answer(200, FRESH, "fr")]);
    let ask = |language: &str| site.ask(&format!("GET / HTTP/1.1\nAccept-Language: {language}\n"));
    for _ in 0..2 {
        ask("en").is(200, "en");
        ask("de").is(200, "de");
        site.ask("GET /").is(200, "none");
        // RFC 9111, section 4.1: it forgot to say what it depends on.
        ask("fr").is(200, "fr");
    }
    site.ask("GET /").is(200, "none");
    assert_eq!(site.asked().len(), 4);
    assert_eq!(purge(&site.store, Purge::Url(b"http://h/")), 4);
}

#[test]
fn unsafe_requests_invalidate() {
    let answers = [
        answer(200, FRESH, "a"),
        answer(200, "Cache-Control: max-age=60\nVary: X", "b"),
        answer(200, FRESH, "c"),
        answer(500, "A: b", ""),
    ];
    let site = Site::answering(&answers);
    site.ask("GET /a").is(200, "a");
    site.ask("GET /b").is(200, "b");
    site.ask("GET /c").is(200, "c");
    site.ask("POST /a").is(500, "");
    site.ask("GET /a").is(200, "a");
    let site = site.and(&[
        answer(201, "Location: b\nContent-Location: http://other/c", ""),
        answer(200, FRESH, "a2"),
        answer(200, FRESH, "b2"),
    ]);
    site.ask("POST /a").is(201, "");
    site.ask("GET /a").is(200, "a2");
    site.ask("GET /b").is(200, "b2");
    site.ask("GET /c").is(200, "c");
}

#[test]
fn head_tells_of_what_is_stored() {
    let stale = "Cache-Control: max-age=0\nETag: \"a\"";
    let site =
        Site::answering(&[answer(200, stale, "one"), answer(200, "ETag: \"a\"\nCache-Control: max-age=60\nA: 2", "")]);
    site.ask("GET /");
    site.ask("HEAD /").is(200, "");
    site.ask("GET /").is(200, "one").has("A: 2");
    let site = Site::answering(&[answer(200, stale, "one"), answer(200, "ETag: \"b\"", ""), answer(200, FRESH, "two")]);
    site.ask("GET /");
    site.ask("HEAD /");
    site.ask("GET /").is(200, "two");
    assert_eq!(site.asked(), ["GET", "HEAD", "GET"]);
}

#[test]
fn stale_while_it_is_validated() {
    let stale = "Cache-Control: max-age=0, stale-while-revalidate=60\nETag: \"a\"";
    let site = Site::answering(&[answer(200, stale, "one"), streamed(FRESH, &["two"])]);
    site.ask("GET /").is(200, "one");
    site.ask("GET /").is(200, "one");
    site.ask("GET /").is(200, "two").has("Age: 0");
    assert_eq!(site.asked(), ["GET", "GET If-None-Match: \"a\""]);
}

#[test]
fn stale_if_the_upstream_fails() {
    let unreachable = || answer(503, "", "");
    let check = |cache_control: &str, failure: Answer, expect: (u16, &str)| {
        let site = Site::answering(&[
            answer(200, &format!("Cache-Control: max-age=0{cache_control}\nETag: \"a\""), "one"),
            failure,
        ]);
        site.ask("GET /");
        site.ask("GET /").is(expect.0, expect.1);
    };
    check(", stale-if-error=60", unreachable(), (200, "one"));
    check(", stale-if-error=60", answer(500, "A: b", "sorry"), (200, "one"));
    check(", stale-if-error=60", answer(404, "A: b", "none"), (404, "none"));
    check(", stale-if-error=60, must-revalidate", unreachable(), (503, ""));
    check("", unreachable(), (503, ""));
}

#[test]
fn directives_of_requests() {
    let site = Site::new(|config| config.request_directives = true).and(&[
        answer(200, FRESH, "one"),
        answer(304, "Cache-Control: max-age=60", ""),
        answer(200, "Cache-Control: no-store", "two"),
    ]);
    site.ask("GET / HTTP/1.1\nCache-Control: only-if-cached\n").is(504, "");
    site.ask("GET /").is(200, "one");
    site.ask("GET / HTTP/1.1\nPragma: no-cache\n").is(200, "one");
    site.ask("GET / HTTP/1.1\nCache-Control: only-if-cached\n").is(200, "one");
    site.ask("GET / HTTP/1.1\nCache-Control: min-fresh=100\n").is(200, "two");
    assert_eq!(site.asked().len(), 3);

    let site = Site::answering(&[answer(200, FRESH, "one")]);
    site.ask("GET / HTTP/1.1\nCache-Control: no-store\n").is(200, "one");
    site.ask("GET / HTTP/1.1\nCache-Control: no-cache\n").is(200, "one");
}

#[test]
fn one_fetch_for_all_who_want_the_same() {
    let when = Rc::new(Cell::new(false));
    let waits = |answer: Answer| Answer { when: Some(Rc::clone(&when)), ..answer };
    for (first, requests) in [
        (waits(answer(200, FRESH, "one")), 1),
        (waits(streamed(FRESH, &["o", "ne"])), 1),
        (waits(answer(200, "Cache-Control: no-store", "one")), 4),
        (waits(answer(503, "", "")), 4),
    ] {
        when.set(false);
        let site = Site::answering(&[first]).and(&vec![answer(200, "Cache-Control: no-store", "one"); 3]);
        let got = site.runtime.block_on(async {
            let all = [(); 4].map(|()| site.start("GET / HTTP/1.1\n"));
            let all = all.map(|outcome| site.finish(outcome));
            let tell = async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                when.set(true);
            };
            let [first, second, third, fourth] = all;
            tokio::join!(first, second, third, fourth, tell)
        });
        got.1.is(200, "one");
        got.3.is(200, "one");
        assert_eq!(site.asked().len(), requests);
    }
}

#[test]
fn who_waits_goes_on_when_the_first_leaves_or_takes_too_long() {
    for leaves in [true, false] {
        let never = Rc::new(Cell::new(false));
        let site = Site::new(|config| config.collapse_timeout = Duration::from_millis(20))
            .and(&[Answer { when: Some(never), ..answer(200, FRESH, "one") }, answer(200, FRESH, "two")]);
        site.runtime.block_on(async {
            let task = &mut Task::from_waker(Waker::noop());
            let mut first = Box::pin(site.finish(site.start("GET / HTTP/1.1\n")));
            assert!(first.as_mut().poll(task).is_pending());
            let mut second = Box::pin(site.finish(site.start("GET / HTTP/1.1\n")));
            assert!(second.as_mut().poll(task).is_pending());
            assert_eq!(site.asked().len(), 1, "the second waits");
            if leaves {
                drop(first);
            }
            second.await.is(200, "two");
        });
    }
}

#[test]
fn what_is_changed_while_it_is_fetched_is_not_stored() {
    let when = Rc::new(Cell::new(false));
    let site = Site::answering(&[
        Answer { when: Some(Rc::clone(&when)), ..streamed(FRESH, &["old"]) },
        answer(200, "", ""),
        answer(200, FRESH, "new"),
    ]);
    site.runtime.block_on(async {
        let first = site.start("GET / HTTP/1.1\n");
        let Outcome::Wait(first) = first else { panic!() };
        let Outcome::Ready(first) = first.await else { panic!() };
        site.finish(site.start("POST / HTTP/1.1\n")).await.is(200, "");
        when.set(true);
        site.receive(first).await.is(200, "old");
    });
    site.ask("GET /").is(200, "new");
}

#[test]
fn the_cache_says_what_it_did() {
    let site = Site::new(|config| config.cache_status = true).and(&[
        answer(200, "Cache-Control: max-age=0\nETag: \"a\"", "one"),
        answer(304, "", ""),
        streamed(FRESH, &["two"]),
        answer(200, "", ""),
        answer(200, "Cache-Control: no-store", "three"),
    ]);
    site.ask("GET /").has("Cache-Status: tailcoat; fwd=miss; fwd-status=200; stored").has_no("Age");
    site.ask("GET /").has("Cache-Status: tailcoat; fwd=stale; fwd-status=304");
    site.ask("GET /").is(200, "two").has("Cache-Status: tailcoat; fwd=stale; fwd-status=200; stored");
    site.ask("POST /").has("Cache-Status: tailcoat; fwd=method");
    site.ask("GET /").has("Cache-Status: tailcoat; fwd=miss; fwd-status=200");
}

#[test]
fn purged() {
    let site = Site::answering(&vec![answer(200, FRESH, "x"); 4]);
    for path in ["/", "/a", "/a/b", "/b"] {
        site.ask(&format!("GET {path}"));
    }
    assert_eq!(purge(&site.store, Purge::Url(b"http://h/a")), 1);
    assert_eq!(purge(&site.store, Purge::Url(b"http://h/a")), 0);
    assert_eq!(purge(&site.store, Purge::Prefix(b"http://h/a")), 1);
    assert_eq!(purge(&site.store, Purge::Prefix(b"http://")), 2);
    assert_eq!(site.store.usage().objects, 0);
    site.worker.tick();
    assert!(site.worker.is_empty());
}
