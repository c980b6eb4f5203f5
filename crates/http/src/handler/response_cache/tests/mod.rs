//! The cache as a whole, with a scripted upstream.

mod attacks;
mod model;
mod revalidation_attacks;
mod serving;
mod sharing;

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

use super::{Fetch, FetchFuture, Purge, ResponseCache, SharedResponseCache};
use crate::config::{CacheConfig, ForwardConfig, NamePattern, ResponseCaching, SetCookie};
use crate::handler::{
    Body, BuiltResponse, ClientLinkCell, ContentSource, ContentStream, Filled, Form, Forwarded, HandlerOutcome, Now,
    OwnedRequest, Response, ResponseEnding, Routed, Segment,
};
use crate::log::LogClient;
use crate::object_cache::{ObjectContent, ObjectStore, WorkerCache};

/// Response of the upstream: status, fields as lines, and content.
#[derive(Clone)]
struct FakeUpstreamResponse {
    status: u16,
    lines: String,
    content: Vec<&'static str>,
    is_streamed: bool,
    /// True if the content ends early.
    is_cut: bool,
    /// Flag that delays the response until it is set.
    when: Option<Rc<Cell<bool>>>,
}

#[derive(Default)]
struct FakeUpstream {
    answers: RefCell<VecDeque<FakeUpstreamResponse>>,
    /// Method and relevant fields of each request.
    asked: RefCell<Vec<String>>,
}

struct FakeContent {
    pieces: VecDeque<&'static str>,
    is_cut: bool,
    when: Option<Rc<Cell<bool>>>,
}

impl ContentSource for FakeContent {
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

impl Fetch for FakeUpstream {
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
        let answer = self.answers.borrow_mut().pop_front().expect("no test expected that this is asked");
        Box::pin(async move {
            while answer.when.as_ref().is_some_and(|when| !answer.is_streamed && !when.get()) {
                tokio::task::yield_now().await;
            }
            Ok(answer.into_response())
        })
    }
}

impl FakeUpstreamResponse {
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
                let source = FakeContent { pieces: self.content.into(), is_cut: self.is_cut, when: self.when };
                let stream = ContentStream { source: Box::new(source), length: (!self.is_cut).then_some(length) };
                Body { segments: Vec::new(), stream: Some(stream) }
            }
        };
        let status = Status::new(self.status).unwrap();
        // 503 without fields is a response of Tailcoat's own: the upstream can't be reached.
        let forwarded = (self.status != 503 || !self.lines.is_empty()).then(Box::<Forwarded>::default);
        Box::new(BuiltResponse {
            status,
            fields,
            body,
            forwarded,
            reason: "",
            compression: None,
            ending: ResponseEnding::Normal,
        })
    }
}

fn answer(status: u16, lines: &str, content: &'static str) -> FakeUpstreamResponse {
    let content = if content.is_empty() { vec![] } else { vec![content] };
    FakeUpstreamResponse { status, lines: lines.into(), content, is_streamed: false, is_cut: false, when: None }
}

fn streamed(lines: &str, content: &[&'static str]) -> FakeUpstreamResponse {
    FakeUpstreamResponse { content: content.to_vec(), is_streamed: true, ..answer(200, lines, "") }
}

/// Enough for what each test stores.
const MEMORY_BYTES_MAX: u64 = 1 << 20;

/// A cache, an upstream, and clients.
struct CacheFixture {
    cache: ResponseCache,
    shared: Arc<SharedResponseCache>,
    store: Arc<ObjectStore>,
    worker: Rc<WorkerCache>,
    upstream: Rc<FakeUpstream>,
    runtime: LocalRuntime,
    later_ms: u64,
}

/// Response that a client gets: status, fields as lines, and content.
#[derive(Debug)]
struct CacheResult {
    status: u16,
    head: String,
    content: Result<String, io::ErrorKind>,
}

impl CacheFixture {
    fn new(change: impl FnOnce(&mut ResponseCaching)) -> Self {
        let mut config = ResponseCaching::default();
        change(&mut config);
        Self::with(config, &ForwardConfig::to("x"))
    }

    /// A cache for this forward.
    fn with(config: ResponseCaching, forward: &ForwardConfig) -> Self {
        let store =
            ObjectStore::new(CacheConfig { memory_bytes_max: MEMORY_BYTES_MAX, ..CacheConfig::default() }).unwrap();
        let worker = Rc::new(WorkerCache::new(Arc::clone(&store)));
        let shared = SharedResponseCache::new(config, forward, 16, Arc::clone(&store));
        let cache = ResponseCache::new(Arc::clone(&shared), Rc::clone(&worker));
        let runtime = Builder::new_current_thread().enable_time().build_local(LocalOptions::default()).unwrap();
        Self { cache, shared, store, worker, upstream: Rc::default(), runtime, later_ms: 0 }
    }

    /// A site whose upstream gives these responses in turn.
    fn answering(answers: &[FakeUpstreamResponse]) -> Self {
        Self::new(|_| {}).and(answers)
    }

    fn and(self, answers: &[FakeUpstreamResponse]) -> Self {
        self.upstream.answers.borrow_mut().extend(answers.iter().cloned());
        self
    }

    fn start(&self, request: &str) -> HandlerOutcome {
        self.start_with(request, &ClientLinkCell::default())
    }

    fn start_with(&self, request: &str, link: &ClientLinkCell) -> HandlerOutcome {
        self.start_before(&self.upstream, request, link)
    }

    /// Starts a request that this upstream handles.
    fn start_before(
        &self,
        upstream: &Rc<impl Fetch + 'static>,
        request: &str,
        link: &ClientLinkCell,
    ) -> HandlerOutcome {
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
            client: LogClient::Unix,
            tls: None,
            proxied: None,
            trace: None,
            locations: None,
            link,
            has_next: false,
            now,
        };
        self.cache.handle(&routed, upstream)
    }

    async fn finish(&self, outcome: HandlerOutcome) -> CacheResult {
        let response = match outcome {
            HandlerOutcome::Ready(response) => response,
            HandlerOutcome::Wait(future) => match future.await {
                HandlerOutcome::Ready(response) => response,
                _ => panic!("declines"),
            },
            _ => panic!("declines"),
        };
        self.receive(response).await
    }

    /// Sends a request like `GET /path\nField: value\n`, and reads the response.
    fn ask(&self, request: &str) -> CacheResult {
        let request = if request.contains('\n') { request.to_owned() } else { format!("{request} HTTP/1.1\n") };
        self.runtime.block_on(async {
            let got = self.finish(self.start(&request)).await;
            // Lets background tasks run.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            got
        })
    }

    async fn receive(&self, response: Response) -> CacheResult {
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
                prepared.h1.write(date, &mut head);
                let stored = object.object.response().unwrap().stored;
                head.extend_from_slice(format!("Age: {}\r\n", stored.age_seconds(Now::read().monotonic_ms)).as_bytes());
                let ObjectContent::Memory(content) = &representation.content else { panic!("a file") };
                let status = String::from_utf8_lossy(&head)[9..12].parse().unwrap();
                (status, Body::from_bytes(content.slice(range.start as usize..range.end as usize)))
            }
            Response::Built(built) => {
                wire::h1::write_fields(&mut head, &built.fields);
                (built.status.code(), built.body)
            }
        };
        CacheResult { status, head: String::from_utf8(head).unwrap(), content: read(body).await }
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

impl CacheResult {
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
