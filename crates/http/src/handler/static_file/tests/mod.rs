//! The handler as a whole, on temporary directories.

mod freshness;
mod lookup;
mod representation;

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use wire::h1::DATE_BYTES;
use wire::http::{KnownField, Method, Request, RequestHead, Span, range};

use super::{FileTree, StaticFile};
use crate::config::{CacheConfig, FilesConfig, Precedence, RootPiece, Runners};
use crate::handler::{Body, ClientLinkCell, Form, HandlerOutcome, Now, Response, Routed, Segment};
use crate::log::LogClient;
use crate::object_cache::{ObjectContent, ObjectStore, WorkerCache};

/// A directory, and a handler that serves it.
struct FileFixture {
    directory: tempfile::TempDir,
    handler: StaticFile,
    cache: Rc<WorkerCache>,
    runtime: tokio::runtime::Runtime,
    /// Added to the time, in milliseconds.
    later_ms: u64,
}

/// Response that a client gets; status 0 if the handler declined.
#[derive(Debug, Default)]
struct FileResult {
    status: u16,
    head: String,
    body: Vec<u8>,
    waited: bool,
    /// True if a file changed while it was sent; the connection would have closed early.
    broken_off: bool,
}

impl FileFixture {
    fn new(change: impl FnOnce(&mut FilesConfig, &mut CacheConfig)) -> Self {
        Self::with_runners(Runners::default(), change)
    }

    /// A site with scripts that these handlers run.
    fn with_runners(runners: Runners, change: impl FnOnce(&mut FilesConfig, &mut CacheConfig)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut files = FilesConfig::below(directory.path().to_str().unwrap());
        let mut limits = CacheConfig::default();
        change(&mut files, &mut limits);
        if let [RootPiece::Literal(literal), ..] = &mut files.root.pieces[..]
            && !literal.starts_with('/')
        {
            *literal = format!("{}/{literal}", directory.path().display());
        }
        let store = ObjectStore::new(limits).unwrap();
        let cache = Rc::new(WorkerCache::new(Arc::clone(&store)));
        let handler =
            StaticFile::new(FileTree::new(files, runners, Precedence::default(), true, 16, store), Rc::clone(&cache));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        Self { directory, handler, cache, runtime, later_ms: 0 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file with an old modification time: only its change time can make it unsettled.
    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        set_modified(&path, 1_000_000_000);
    }

    /// Waits until written files are settled, so that each is read once and kept.
    fn settle(&self) {
        std::thread::sleep(std::time::Duration::from_millis(30));
    }

    fn root_id(&self) -> crate::object_cache::RootId {
        self.runtime.block_on(self.handler.inner.open_root(b"", Now::read())).unwrap().id
    }

    fn get(&self, path: &str) -> FileResult {
        self.request(Method::Get, "example.com", path, &[], false)
    }

    fn get_with(&self, path: &str, fields: &[(KnownField, &str)]) -> FileResult {
        self.request(Method::Get, "example.com", path, fields, false)
    }

    fn request(
        &self,
        method: Method,
        host: &str,
        target: &str,
        fields: &[(KnownField, &str)],
        has_next: bool,
    ) -> FileResult {
        let (mut bytes, mut head) = (target.as_bytes().to_vec(), RequestHead::default());
        head.method = method;
        head.target = Span::new(0, bytes.len());
        for (known, value) in fields {
            let start = bytes.len();
            bytes.extend_from_slice(value.as_bytes());
            head.push_field(Span::default(), Span::new(start, bytes.len()), *known);
        }
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query.as_bytes())),
            None => (target, None),
        };
        let mut now = Now::read();
        now.monotonic_ms += self.later_ms;
        let request = Request { head: &head, bytes: &bytes };
        let (client, link) = (LogClient::Unix, &ClientLinkCell::default());
        let routed = Routed {
            request,
            path: path.as_bytes(),
            query,
            host: host.as_bytes(),
            client,
            tls: None,
            proxied: None,
            trace: None,
            locations: None,
            link,
            has_next,
            now,
        };
        match self.handler.handle(&routed) {
            HandlerOutcome::Wait(future) => FileResult { waited: true, ..receive(self.runtime.block_on(future)) },
            outcome => receive(outcome),
        }
    }
}

impl FileResult {
    fn field(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    #[track_caller]
    fn expect(self, status: u16, body: impl AsRef<[u8]>) -> Self {
        assert_eq!(
            (self.status, self.body.escape_ascii().to_string()),
            (status, body.as_ref().escape_ascii().to_string())
        );
        self
    }
}

/// Converts a response to the bytes that the connection would send.
fn receive<W>(outcome: HandlerOutcome<W>) -> FileResult {
    let response = match outcome {
        HandlerOutcome::Ready(response) => response,
        HandlerOutcome::Decline | HandlerOutcome::Reject(_) => return FileResult::default(),
        HandlerOutcome::Elsewhere(path) => {
            return FileResult { head: String::from_utf8(path).unwrap(), ..FileResult::default() };
        }
        HandlerOutcome::Wait(_) => panic!("waits"),
        HandlerOutcome::ClientGone => unreachable!("files wait for no client"),
        HandlerOutcome::Pass(_) => unreachable!("files pass nothing on"),
    };
    let mut head = Vec::new();
    let (status, body) = match response {
        Response::Changed(_) => unreachable!("rules do that"),
        Response::Cached { object, coding, form } => {
            let representation = object.object.representation(coding);
            let length = representation.content.length();
            let date = [b'0'; DATE_BYTES];
            let (status, offset, sent) = match form {
                Form::Whole => {
                    representation.head.h1.write(&date, &mut head);
                    (200, 0, length)
                }
                Form::NotModified => {
                    representation.not_modified_head.h1.write(&date, &mut head);
                    (304, 0, 0)
                }
                Form::Part { offset, length: sent } => {
                    representation.partial_head.h1.write(&date, &mut head);
                    head.extend_from_slice(b"Content-Range: ");
                    range::write_content_range(&(offset..offset + sent), length, &mut head);
                    (206, offset, sent)
                }
            };
            let segment = match &representation.content {
                ObjectContent::Memory(bytes) => Segment::Bytes(bytes.slice(offset as usize..(offset + sent) as usize)),
                ObjectContent::File(file) => Segment::File { file: Arc::clone(file), offset, length: sent },
            };
            (status, Body::from_segments(vec![segment]))
        }
        Response::Built(built) => {
            for (name, value) in built.fields.iter() {
                head.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
            }
            (built.status.code(), built.body)
        }
    };
    let (mut content, mut broken_off) = (Vec::new(), false);
    for segment in &body.segments {
        match segment {
            Segment::Bytes(bytes) => content.extend_from_slice(bytes),
            Segment::File { file, offset, length } => {
                let whole = file.read_whole().unwrap();
                match whole.get(*offset as usize..(offset + length) as usize) {
                    Some(part) if file.is_unchanged() => content.extend_from_slice(part),
                    _ => broken_off = true,
                }
            }
        }
    }
    FileResult { status, head: String::from_utf8(head).unwrap(), body: content, waited: false, broken_off }
}

fn set_modified(path: &Path, unix_seconds: u64) {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(unix_seconds);
    fs::File::options().read(true).open(path).unwrap().set_modified(time).unwrap();
}

/// Bytes that can't be compressed.
fn random_bytes(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..count).map(|_| next()).collect()
}
