//! The thread that reads and writes cached responses in the store. Large responses delay no event of the other thread, and no
//! worker waits for either.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailcoat_store::{Measured, SharedStore, StoreError, StoreKey};
use tokio::runtime::Builder;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::Receiver;
use tokio::time::sleep;

use crate::config::StoreConfig;
use crate::shared_cache::{SharedCache, SharedCacheSettings, SharedJob};

/// Operations in progress. Beyond it, responses are neither read nor written.
const IN_FLIGHT_MAX: usize = 64;

/// Bytes of a value above those of its response: stamp, lengths and checksums.
const OVERHEAD_BYTES: usize = 1_024;

/// Interval between two attempts while the store is away.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Key of these attempts. No value has it.
const PROBE: &str = "responses/probe";

/// Use of the store for cached responses. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct SharedResponses(Arc<SharedCache>);

/// Parts of an operation.
#[derive(Clone)]
struct Operations {
    store: Arc<Measured>,
    cache: Arc<SharedCache>,
    settings: SharedCacheSettings,
}

impl SharedResponses {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be created, or a file of the configuration cannot be read.
    pub(super) fn start(config: &StoreConfig, cache: &Arc<SharedCache>) -> io::Result<Self> {
        let store = tailcoat_store::open(config).map_err(io::Error::other)?;
        let settings = SharedCacheSettings {
            timeout: config.response_timeout,
            response_bytes_max: config.response_bytes_max,
            // Two reads, one of which may be slow.
            position_age_max: config.poll_interval() * 2 + Duration::from_millis(500),
        };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let jobs = cache.attach(settings);
        let operations = Operations { store, cache: Arc::clone(cache), settings };
        let thread = std::thread::Builder::new().name("responses".into()).spawn(move || {
            runtime.block_on(operations.run(jobs));
            runtime.shutdown_background();
        });
        let handle = Self(Arc::clone(cache));
        thread.map(|_| handle)
    }
}

impl Drop for SharedResponses {
    fn drop(&mut self) {
        self.0.detach();
    }
}

impl Operations {
    async fn run(self, mut jobs: Receiver<SharedJob>) {
        let permits = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
        loop {
            tokio::select! {
                job = jobs.recv() => {
                    let Some(job) = job else { return };
                    match Arc::clone(&permits).try_acquire_owned() {
                        Ok(permit) => {
                            let operations = self.clone();
                            tokio::spawn(async move {
                                operations.carry_out(job).await;
                                drop(permit);
                            });
                        }
                        Err(_) if matches!(job, SharedJob::Write(_)) => self.cache.on_unwritten(),
                        // The request goes to the upstream.
                        Err(_) => {}
                    }
                }
                () = sleep(PROBE_INTERVAL) => {}
            }
            // While the store is away, there are no jobs.
            if self.cache.is_away() {
                self.probe().await;
            }
        }
    }

    /// Finds out whether the store is back.
    async fn probe(&self) {
        let Ok(key) = StoreKey::new(PROBE) else { return };
        // The first operation may be slow because it connects.
        for _ in 0..2 {
            let begun = Instant::now();
            let result = self.store.get_blob(&key, 1).await;
            if result.is_ok() && begun.elapsed() <= self.settings.timeout {
                return self.cache.on_result(true);
            }
            if result.is_err() {
                return sleep(PROBE_INTERVAL).await;
            }
        }
    }

    async fn carry_out(&self, job: SharedJob) {
        match job {
            SharedJob::Read(job) => {
                // The name is made of digits.
                let Ok(key) = StoreKey::new(job.name()) else { return };
                if job.is_abandoned() {
                    return;
                }
                let begun = Instant::now();
                let bytes_max = usize::try_from(self.settings.response_bytes_max).unwrap_or(usize::MAX);
                let value = self.store.get_blob(&key, bytes_max.saturating_add(OVERHEAD_BYTES)).await;
                match value {
                    // The request has counted the time that it waited in vain.
                    Ok(_) if job.is_abandoned() => {}
                    Ok(value) => {
                        self.cache.on_result(begun.elapsed() <= self.settings.timeout);
                        job.finish(&self.cache, value.as_deref());
                    }
                    // A value of another program says nothing about the store.
                    Err(StoreError::Wrong(_) | StoreError::Unusable(_) | StoreError::TooLarge) => {
                        self.cache.on_damaged()
                    }
                    Err(_) => self.cache.on_error(),
                }
            }
            SharedJob::Write(job) => {
                let (Ok(key), Ok(value)) = (StoreKey::new(job.name()), job.value()) else {
                    return self.cache.on_unwritten();
                };
                match self.store.put_blob(&key, &value, job.kept).await {
                    Ok(()) => self.cache.on_written(),
                    Err(_) => {
                        self.cache.on_unwritten();
                        self.cache.on_error();
                    }
                }
            }
            SharedJob::Remove(name) => {
                let Ok(key) = StoreKey::new(name) else { return };
                if self.store.delete_blob(&key).await.is_err() {
                    self.cache.on_error();
                }
            }
        }
    }
}
