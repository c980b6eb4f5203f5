//! A warm GET of a kept-alive connection allocates nothing, from the bytes read to the bytes written and logged.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;
use std::time::Duration;

use tailcoat::config::{self, AccessLog, AccessLogFormat, AccessLogTarget, Config, Files, PathPattern, Route, Site};
use tailcoat::connection::{Clock, Connections, Context, Socket};
use tailcoat::handler::SharedSite;
use tailcoat::log::{Client, LogHandle, ServerLog};
use tailcoat::object_cache::{ObjectStore, WorkerCache};
use tailcoat::routing::{Router, SiteSetup};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

const REQUESTS: usize = 100;

#[test]
fn a_warm_get_allocates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    // Not in the same directory, for a change there makes the cache look at its files.
    let logs = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("page.html"), "x".repeat(1024)).unwrap();
    // What was written a moment ago may be written again, and isn't believed to be whole yet.
    std::thread::sleep(Duration::from_millis(200));
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
    let (mut client, log) = runtime.block_on(async { connect(directory.path(), logs.path()) });
    let fields = "Host: example.com\r\nUser-Agent: test\r\nAccept: */*\r\n";
    for (name, request, status) in [
        ("plain", format!("GET /page.html HTTP/1.1\r\n{fields}\r\n"), "200"),
        ("HEAD", format!("HEAD /page.html HTTP/1.1\r\n{fields}\r\n"), "200"),
        ("not modified", format!("GET /page.html HTTP/1.1\r\n{fields}If-None-Match: *\r\n\r\n"), "304"),
        ("range", format!("GET /page.html HTTP/1.1\r\n{fields}Range: bytes=10-19\r\n\r\n"), "206"),
        ("codings", format!("GET /page.html HTTP/1.1\r\n{fields}Accept-Encoding: x, gzip;q=0\r\n\r\n"), "200"),
    ] {
        // The first requests fill the cache and let buffers grow.
        (0..10).for_each(|_| exchange(&runtime, &mut client, request.as_bytes(), status));
        let counts = allocation_counter::measure(|| {
            (0..REQUESTS).for_each(|_| exchange(&runtime, &mut client, request.as_bytes(), status));
        });
        assert_eq!(counts.count_total, 0, "{name}: allocations of {REQUESTS} requests");
    }
    drop(runtime);
    assert!(log.shutdown(Duration::from_secs(60)));
    let lines = std::fs::read_to_string(logs.path().join("access.log")).unwrap().lines().count();
    assert_eq!(lines, 5 * (10 + REQUESTS));
}

/// A connection to a worker's parts, put together on this thread.
fn connect(root: &Path, log_directory: &Path) -> (UnixStream, LogHandle) {
    let files = Files::below(root.to_str().unwrap());
    let route = Route { path: PathPattern::Any, handler: config::Handler::Files(files) };
    let mut config = Config { sites: vec![Site { routes: vec![route], ..Site::default() }], ..Config::default() };
    // Looking at the file again is not what is measured.
    config.cache.revalidate_after = Duration::from_secs(3600);
    let store = ObjectStore::new(config.cache.clone()).unwrap();
    let cache = Rc::new(WorkerCache::new(Arc::clone(&store)));
    let site = SharedSite::new(&config.sites[0], &config, &store, &[]);
    let target = AccessLogTarget::File(log_directory.join("access.log"));
    let logs = [AccessLog { target, format: AccessLogFormat::Combined }];
    let server_log = ServerLog::stderr(config.server.log_level);
    let (log, ids) = tailcoat::log::start(&logs, tailcoat::log::Options::default(), server_log).unwrap();
    let setup = SiteSetup {
        config: &config.sites[0],
        handlers: site.handlers(&cache, &[]),
        error_pages: site.error_pages(&cache),
        rules: None,
        log: Some(ids[0]),
    };
    let router = Rc::new(Router::new(vec![setup], &[vec![0]]));
    let clock = Clock::new(Arc::new(AtomicBool::new(true)));
    let context = Rc::new(Context::new(router, config.limits.clone(), true, log.recorder(), clock));
    let (client, server) = UnixStream::pair().unwrap();
    client.set_nonblocking(true).unwrap();
    server.set_nonblocking(true).unwrap();
    let connections = Rc::new(Connections::new(context, None).unwrap());
    connections.start(Socket::new(server.into()), Client::Unix, 0, false, None);
    tokio::task::spawn_local(connections.run());
    (client, log)
}

/// Sends a request, and lets the connection run until the answer is there.
fn exchange(runtime: &LocalRuntime, client: &mut UnixStream, request: &[u8], status: &str) {
    client.write_all(request).unwrap();
    let mut answer = [0; 4096];
    let length = runtime.block_on(poll_fn(|task| match client.read(&mut answer) {
        Ok(length) => Poll::Ready(length),
        Err(_) => {
            // The runtime runs the connection, looks at its sockets, and asks again.
            task.waker().wake_by_ref();
            Poll::Pending
        }
    }));
    assert_eq!(std::str::from_utf8(&answer[..length]).unwrap().get(9..12), Some(status));
}
