//! Agent: accepts controllers, and runs one part of a load at a time.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::AgentOptions;
use super::channel::{Channel, ChannelConfig, SharedSecret};
use super::message::{FromAgent, PROTOCOL_VERSION, SentRun, ToAgent};
use super::record::{SentOutcome, SentRecord};
use super::share::options_of_part;
use crate::bench::{LoadOptions, measure_with, plan};
use crate::end::ProgramEnd;
use crate::engine::{Interval, LoadPlan};

/// Maximum number of connections at a time. Further ones are closed at once.
const CONTROLLERS_MAX: usize = 16;
/// Time without a message after which the controller counts as lost.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Maximum delay of a start.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// Interval for looking for signals.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Listens for controllers until a signal comes.
pub(super) fn run(options: &AgentOptions, secret: &SharedSecret) -> Result<ProgramEnd, String> {
    let config = ChannelConfig::new(secret)?;
    let listener =
        TcpListener::bind(options.listen).map_err(|error| format!("cannot bind {}: {error}", options.listen))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    listener.set_nonblocking(true).map_err(|error| error.to_string())?;
    println!("tailor agent: listening on {address}");
    let stop = crate::end::stop_on_signals()?;
    let (running, controllers) = (Mutex::new(()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) {
            let Ok((stream, peer)) = listener.accept() else {
                std::thread::sleep(LOOK_INTERVAL);
                continue;
            };
            if controllers.fetch_add(1, Ordering::SeqCst) >= CONTROLLERS_MAX {
                controllers.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            let (config, stop, running, controllers) = (config.clone(), &stop, &running, &controllers);
            scope.spawn(move || {
                let result = stream
                    .set_nonblocking(false)
                    .map_err(|error| error.to_string())
                    .and_then(|()| config.accept(stream))
                    .and_then(|channel| serve(channel, options, running, stop));
                if let Err(error) = result {
                    eprintln!("tailor agent: {peer}: {error}");
                }
                controllers.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    Ok(ProgramEnd::Passed)
}

/// Serves a controller: prepares a run, starts it, and reports.
fn serve(mut channel: Channel, options: &AgentOptions, running: &Mutex<()>, stop: &AtomicBool) -> Result<(), String> {
    channel.send(&FromAgent::Hello {
        protocol_version: PROTOCOL_VERSION,
        tailor_version: env!("CARGO_PKG_VERSION").to_owned(),
    })?;
    let directory = std::env::temp_dir().join(format!("tailor-agent-{}-{}", std::process::id(), fastrand::u64(..)));
    let result = prepare_and_run(&mut channel, options, running, stop, &directory);
    let _ = std::fs::remove_dir_all(directory);
    if let Err(error) = &result {
        // The controller may be gone.
        let _ = channel.send(&FromAgent::Failed(error.clone()));
    }
    result
}

fn prepare_and_run(
    channel: &mut Channel,
    options: &AgentOptions,
    running: &Mutex<()>,
    stop: &AtomicBool,
    directory: &std::path::Path,
) -> Result<(), String> {
    let mut prepared = None;
    let guard = match running.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return Err("the agent is running another load".to_owned()),
    };
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err("the agent is ending".to_owned());
        }
        match channel.receive(SILENCE_MAX)? {
            ToAgent::Echo => channel.send(&FromAgent::Echo)?,
            ToAgent::Alive => {}
            ToAgent::Stop => return Ok(()),
            ToAgent::Prepare(run) => {
                std::fs::create_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
                prepared = Some(prepare(&run, options, directory)?);
                channel.send(&FromAgent::Ready)?;
            }
            ToAgent::Start { delay } => {
                let start = Instant::now() + Duration::from_nanos(delay).min(DELAY_MAX);
                let (load, plan) = prepared.take().ok_or("a start of no run")?;
                std::thread::sleep(start.saturating_duration_since(Instant::now()));
                let result = execute(channel, (&load, plan), options.duration_max, stop);
                drop(guard);
                return result;
            }
        }
    }
}

/// Plans a part of a run, and checks it against the agent's limits.
fn prepare(
    run: &SentRun,
    options: &AgentOptions,
    directory: &std::path::Path,
) -> Result<(LoadOptions, LoadPlan), String> {
    let load = options_of_part(run, directory)?;
    let plan = plan::make(&load)?;
    if plan.connections as u64 > options.connections_max {
        return Err(format!(
            "{} connections are more than {} (--connections-max)",
            plan.connections, options.connections_max
        ));
    }
    let duration = plan.duration.map(|duration| duration + plan.warm_up);
    if duration.is_some_and(|duration| duration > options.duration_max) {
        return Err(format!("the run is longer than {} s (--duration-max)", options.duration_max.as_secs_f64()));
    }
    let is_allowed = |url: &String| {
        let host = crate::bench::target::Url::parse(url).map(|url| url.host).unwrap_or_default();
        options.allow.contains(&host)
    };
    if !options.allow.is_empty()
        && (load.url.is_empty() || !load.url.iter().all(is_allowed) || !load.resolve.is_empty())
    {
        return Err(format!("the agent loads only {} (--allow)", options.allow.join(", ")));
    }
    Ok((load, plan))
}

/// Runs a part. Its end comes as planned, by a message, when the controller is lost, or at the agent's limit.
fn execute(
    channel: &mut Channel,
    (load, plan): (&LoadOptions, LoadPlan),
    duration_max: Duration,
    stop: &AtomicBool,
) -> Result<(), String> {
    let (ended, is_done) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let channel = Mutex::new(channel);
    let lock = || channel.lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut heard = Instant::now();
            while !is_done.load(Ordering::Relaxed) {
                let polled = lock().poll();
                match polled {
                    Ok(Some(ToAgent::Stop)) | Err(_) => break,
                    Ok(Some(_)) => heard = Instant::now(),
                    Ok(None) => {}
                }
                let is_over = heard.elapsed() > SILENCE_MAX || start.elapsed() > duration_max;
                if is_over || stop.load(Ordering::Relaxed) {
                    break;
                }
                // Meanwhile the intervals get the channel.
                std::thread::sleep(LOOK_INTERVAL / 5);
            }
            ended.store(true, Ordering::Relaxed);
        });
        let mut on_interval = |interval: &Interval| {
            let record = Box::new(SentRecord::new(&interval.record));
            // If the controller is lost, the other thread finds out.
            let _ = lock().send(&FromAgent::Interval { end_seconds: interval.end_seconds, record });
        };
        let result = measure_with(load, plan, &ended, &mut on_interval);
        is_done.store(true, Ordering::Relaxed);
        result
    });
    let (report, outcome) = result?;
    let outcome = Box::new(SentOutcome::new(&outcome));
    lock().send(&FromAgent::Done { outcome, limits: report.limits, interrupted: report.interrupted })
}
