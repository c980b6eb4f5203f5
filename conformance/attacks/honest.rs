//! A client that behaves, and measures how it is served during an attack.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::raw::ask;
use crate::trial::Trial;

/// A thread that asks again and again, each time on a new connection.
pub(crate) struct Honest {
    is_done: std::sync::Arc<AtomicBool>,
    thread: JoinHandle<(Vec<Duration>, Vec<String>)>,
}

impl Honest {
    /// Begins to ask for a path whose content is `expect`.
    pub(crate) fn start(address: SocketAddr, path: &'static str, expect: &'static str) -> Self {
        let is_done = std::sync::Arc::<AtomicBool>::default();
        let reported = std::sync::Arc::clone(&is_done);
        let thread = std::thread::spawn(move || {
            let (mut times, mut failures) = (Vec::new(), Vec::new());
            while !reported.load(Ordering::Relaxed) || times.is_empty() {
                let began = Instant::now();
                let answer = ask(address, &format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
                times.push(began.elapsed());
                if !answer.ends_with(&format!("\r\n\r\n{expect}")) {
                    failures.push(answer);
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            (times, failures)
        });
        Self { is_done, thread }
    }

    /// Stops. Failed requests and a p99 above the bound are findings; returns the figure.
    pub(crate) fn end(self, trial: &Trial, p99_max: Duration) -> String {
        self.is_done.store(true, Ordering::Relaxed);
        let (mut times, failures) = self.thread.join().expect("it does not panic");
        times.sort();
        let p99 = times[(times.len() - 1) * 99 / 100];
        trial.expect(failures.is_empty(), || {
            format!("{} of {} honest requests failed, with {:?}", failures.len(), times.len(), failures[0])
        });
        trial.expect(p99 <= p99_max, || format!("honest requests took {p99:.1?} at p99; at most {p99_max:?} is right"));
        format!("{} honest requests, p99 {p99:.1?}", times.len())
    }
}
