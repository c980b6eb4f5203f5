//! One attack's run: numbered cases from a seed, a time limit, and findings that can be reproduced.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::support::TestServer;
use crate::support::skips::is_required;

/// An attack stops after this many findings: more of the same say nothing new.
const FINDINGS_MAX: usize = 3;

/// Longest text of a finding, in characters.
const FINDING_CHARACTERS_MAX: usize = 4_000;

/// An attack: `class/name`, and the function that runs it.
#[derive(Clone, Copy)]
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// Returns the figure that the report prints.
    pub(crate) run: fn(&Trial) -> Result<String, Skipped>,
}

impl Attack {
    pub(crate) fn class(&self) -> &'static str {
        self.name.split('/').next().unwrap_or(self.name)
    }
}

/// Reason why an attack cannot run on this machine.
#[derive(Debug)]
pub(crate) struct Skipped(pub(crate) String);

impl Skipped {
    /// Skips because a program or file is missing.
    ///
    /// # Panics
    /// If it must be installed: the attack fails instead.
    pub(crate) fn missing(tool: &str) -> Self {
        assert!(!is_required(tool), "{tool} is not installed, but must be");
        Self(format!("{tool} is not installed"))
    }
}

/// Something that must not happen, and the case that made it happen.
#[derive(Clone, Debug)]
pub(crate) struct AttackFinding {
    /// `None` if it is a property of the whole run.
    pub(crate) case: Option<u64>,
    pub(crate) text: String,
}

/// The run of one attack.
pub(crate) struct Trial {
    name: &'static str,
    seed: u64,
    /// The only case to run, if one must be reproduced.
    only: Option<u64>,
    time: Duration,
    /// Set when the first case is taken, so that starting servers takes no time from the cases.
    deadline: OnceLock<Instant>,
    next: AtomicU64,
    tries: AtomicU64,
    findings: Mutex<Vec<AttackFinding>>,
}

/// One case: its number, and random numbers that depend on seed, attack and number alone.
pub(crate) struct AttackCase {
    pub(crate) number: u64,
    pub(crate) random: Rng,
}

/// Waits for a random time of at most `time_max`, because an attack may depend on the moment.
pub(crate) fn pause(random: &mut Rng, time_max: Duration) {
    std::thread::sleep(time_max.mul_f64(random.f64()));
}

impl Trial {
    pub(crate) fn new(name: &'static str, seed: u64, only: Option<u64>, time: Duration) -> Self {
        Self {
            name,
            seed,
            only,
            time,
            deadline: OnceLock::new(),
            next: AtomicU64::new(only.unwrap_or(0)),
            tries: AtomicU64::new(0),
            findings: Mutex::default(),
        }
    }

    /// Time that the cases have, all together.
    pub(crate) fn time(&self) -> Duration {
        self.time
    }

    pub(crate) fn is_over(&self) -> bool {
        let deadline = *self.deadline.get_or_init(|| Instant::now() + self.time);
        Instant::now() >= deadline || self.has_enough_findings()
    }

    /// True if one case must be reproduced.
    pub(crate) fn is_single(&self) -> bool {
        self.only.is_some()
    }

    fn has_enough_findings(&self) -> bool {
        self.findings.lock().expect("no thread panics with it").len() >= FINDINGS_MAX
    }

    /// The next case, until the time is over. Threads may share a trial.
    pub(crate) fn next_case(&self) -> Option<AttackCase> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let is_first = number == self.only.unwrap_or(0);
        let is_wanted = self.only.is_none_or(|only| only == number);
        if !is_wanted || (self.is_over() && !is_first) {
            return None;
        }
        self.tries.fetch_add(1, Ordering::Relaxed);
        Some(AttackCase { number, random: self.random(number) })
    }

    /// The random numbers of a case.
    pub(crate) fn random(&self, case: u64) -> Rng {
        // FNV-1a over the name; the multiplier of splitmix64 keeps neighbouring cases apart.
        let hash = self
            .name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        Rng::with_seed(hash ^ self.seed.rotate_left(32) ^ case.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Runs cases on so many threads until the time is over. An error or a panic is a finding.
    pub(crate) fn run(&self, threads: usize, attempt: impl Fn(&mut AttackCase) -> Result<(), String> + Sync) {
        self.run_batch(threads, u64::MAX, attempt);
    }

    /// Runs so many cases, or fewer if the time is over before.
    pub(crate) fn run_batch(
        &self,
        threads: usize,
        cases: u64,
        attempt: impl Fn(&mut AttackCase) -> Result<(), String> + Sync,
    ) {
        let end = self.next.load(Ordering::Relaxed).saturating_add(cases);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while self.next.load(Ordering::Relaxed) < end
                        && let Some(mut case) = self.next_case()
                    {
                        let result = catch_unwind(AssertUnwindSafe(|| attempt(&mut case)))
                            .unwrap_or_else(|panic| Err(panic_text(&*panic)));
                        if let Err(text) = result {
                            self.find(Some(case.number), text);
                        }
                    }
                });
            }
        });
    }

    /// Counts tries that are no cases of [`Self::run`].
    pub(crate) fn count(&self, tries: u64) {
        self.tries.fetch_add(tries, Ordering::Relaxed);
    }

    pub(crate) fn tries(&self) -> u64 {
        self.tries.load(Ordering::Relaxed)
    }

    /// Notes a finding.
    pub(crate) fn find(&self, case: Option<u64>, text: impl Into<String>) {
        let text = text.into().chars().take(FINDING_CHARACTERS_MAX).collect();
        self.findings.lock().expect("no thread panics with it").push(AttackFinding { case, text });
    }

    /// Notes a finding of the whole run unless this holds.
    pub(crate) fn expect(&self, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            self.find(None, text());
        }
    }

    /// Checks a server after any attack: its process runs, no thread panicked, it serves a new client.
    pub(crate) fn expect_healthy(&self, server: &TestServer, path: &str) {
        let panics: Vec<String> = {
            let log = server.log.lock().expect("no thread panics with it");
            log.iter().filter(|line| line.contains("panicked")).cloned().collect()
        };
        self.expect(panics.is_empty(), || format!("the server panicked: {}", panics.join("; ")));
        let answer = catch_unwind(AssertUnwindSafe(|| {
            crate::raw::ask(server.address, &format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"))
        }));
        let answer = answer.unwrap_or_else(|panic| panic_text(&*panic));
        self.expect(answer.starts_with("HTTP/1.1 200 "), || format!("afterwards, a new client gets {answer:?}"));
    }

    pub(crate) fn findings(&self) -> Vec<AttackFinding> {
        self.findings.lock().expect("no thread panics with it").clone()
    }
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without a message"))
}
