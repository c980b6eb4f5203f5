//! Controller: starts parts of a load on agents at the same time, and merges their results.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use super::PORT;
use super::channel::{Channel, ChannelConfig, SharedSecret};
use super::message::{FromAgent, PROTOCOL_VERSION, SentRun, ToAgent};
use super::share::{files, own_arguments};
use crate::bench::{LoadOptions, RunOutputs, run_with};
use crate::end::ProgramEnd;
use crate::engine::{ArrivalPace, Interval, LoadPlan, RunOutcome};
use crate::report::{BenchReport, Builder, Limit};

/// Maximum number of agents.
const AGENTS_MAX: usize = 256;
/// Number of echoes whose shortest time is that of a message.
const ECHOES: usize = 8;
/// Maximum time for an agent to answer, and to prepare a run.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Time until the start. All agents get the message before.
const LEAD: Duration = Duration::from_millis(500);
/// Interval of messages that show agents that the controller is there.
const ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time between two messages of a running agent, in addition to the interval and the time-out of its requests.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Runs a benchmark on agents, and writes the reports that the options name.
///
/// # Errors
/// The run is impossible: the message gives the reason.
pub(crate) fn run_bench(options: &LoadOptions) -> Result<ProgramEnd, String> {
    run_with(options, measure)
}

/// An agent with a prepared run.
struct PreparedAgent {
    name: String,
    channel: Channel,
    /// Time of a message to the agent.
    way: Duration,
}

/// Message of an agent's thread.
enum AgentEvent {
    Interval(u64, Box<Interval>),
    Done(Box<RunOutcome>, Vec<Limit>, bool),
    Failed(String),
}

fn measure(options: &LoadOptions, plan: LoadPlan, stop: &Arc<AtomicBool>) -> Result<(BenchReport, RunOutcome), String> {
    let path = options.secret.as_ref().ok_or("--agents needs --secret FILE")?;
    let config = ChannelConfig::new(&SharedSecret::read(path)?)?;
    if options.agents.len() > AGENTS_MAX {
        return Err(format!("{} agents are more than {AGENTS_MAX}", options.agents.len()));
    }
    let files = files(options)?;
    let mut agents = Vec::new();
    for (part, name) in options.agents.iter().enumerate() {
        let run = SentRun {
            arguments: own_arguments(),
            files: files.clone(),
            part: part as u64,
            parts: options.agents.len() as u64,
            seed: plan.seed,
        };
        agents.push(prepare(&config, name, run).map_err(|error| format!("agent {name}: {error}"))?);
    }
    let watched = options.watch.map(crate::report::observe::Observed::Process);
    let mut builder = Builder::new(options, &plan, watched);
    let mut outputs = RunOutputs::open(options, &plan)?;
    let (sender, events) = channel();
    let start = Instant::now() + LEAD;
    let count = agents.len();
    let silence_max = SILENCE_MAX + options.interval + options.timeout;
    let result = std::thread::scope(|scope| {
        for (part, agent) in agents.into_iter().enumerate() {
            let (sender, offset) = (sender.clone(), offset(&plan, part));
            scope.spawn(move || {
                let name = agent.name.clone();
                if let Err(error) = follow(agent, start + offset, silence_max, stop, &sender) {
                    // The receiver may have ended because of another agent.
                    let _ = sender.send(AgentEvent::Failed(format!("agent {name}: {error}")));
                }
            });
        }
        drop(sender);
        std::thread::sleep(start.saturating_duration_since(Instant::now()));
        builder.begin();
        let result = merge(&events, count, &mut |interval| outputs.add(&interval, &mut builder));
        if result.is_err() {
            // The other agents end, too.
            stop.store(true, Ordering::Relaxed);
        }
        result
    });
    outputs.finish()?;
    let (mut outcome, limits, interrupted) = result?;
    outcome.start_time = SystemTime::now() - outcome.duration;
    Ok((builder.finish(&outcome, limits, interrupted), outcome))
}

/// Time after the common start at which a part starts, so that the requests of all parts have equal intervals.
fn offset(plan: &LoadPlan, part: usize) -> Duration {
    match plan.pace {
        ArrivalPace::Constant(rate) => Duration::from_secs_f64(part as f64 / rate),
        _ => Duration::ZERO,
    }
}

/// Connects to an agent, and has it prepare its part.
fn prepare(config: &ChannelConfig, name: &str, run: SentRun) -> Result<PreparedAgent, String> {
    let mut channel = config.connect(resolve(name)?)?;
    match channel.receive(ANSWER_MAX)? {
        FromAgent::Hello { protocol_version: PROTOCOL_VERSION, .. } => {}
        FromAgent::Hello { tailor_version, .. } => {
            return Err(format!("has version {tailor_version}, which does not fit {}", env!("CARGO_PKG_VERSION")));
        }
        FromAgent::Failed(reason) => return Err(reason),
        _ => return Err("does not introduce itself".to_owned()),
    }
    let mut way = Duration::MAX;
    for _ in 0..ECHOES {
        let sent = Instant::now();
        channel.send(&ToAgent::Echo)?;
        match channel.receive(ANSWER_MAX)? {
            FromAgent::Echo => way = way.min(sent.elapsed() / 2),
            FromAgent::Failed(reason) => return Err(reason),
            _ => return Err("does not answer".to_owned()),
        }
    }
    channel.send(&ToAgent::Prepare(Box::new(run)))?;
    match channel.receive(ANSWER_MAX)? {
        FromAgent::Ready => Ok(PreparedAgent { name: name.to_owned(), channel, way }),
        FromAgent::Failed(reason) => Err(reason),
        _ => Err("does not prepare the run".to_owned()),
    }
}

fn resolve(name: &str) -> Result<SocketAddr, String> {
    let with_port = if name.parse::<std::net::IpAddr>().is_ok() || !name.contains(':') {
        (name, PORT).to_socket_addrs()
    } else {
        name.to_socket_addrs()
    };
    let mut addresses = with_port.map_err(|error| error.to_string())?;
    addresses.next().ok_or_else(|| "the name has no address".to_owned())
}

/// Starts an agent, and passes on what it reports.
fn follow(
    mut agent: PreparedAgent,
    start: Instant,
    silence_max: Duration,
    stop: &AtomicBool,
    events: &Sender<AgentEvent>,
) -> Result<(), String> {
    let delay = start.saturating_duration_since(Instant::now()).saturating_sub(agent.way);
    agent.channel.send(&ToAgent::Start { delay: delay.as_nanos() as u64 })?;
    let (mut heard, mut said, mut is_stopped, mut number) = (Instant::now(), Instant::now(), false, 0);
    loop {
        if stop.load(Ordering::Relaxed) && !std::mem::replace(&mut is_stopped, true) {
            agent.channel.send(&ToAgent::Stop)?;
        }
        if said.elapsed() >= ALIVE_INTERVAL && !is_stopped {
            said = Instant::now();
            agent.channel.send(&ToAgent::Alive)?;
        }
        let message = match agent.channel.poll()? {
            Some(message) => message,
            None if heard.elapsed() > silence_max => return Err("is silent".to_owned()),
            None => continue,
        };
        heard = Instant::now();
        match message {
            FromAgent::Interval { end_seconds, record } => {
                let interval = Interval { end_seconds, record: record.record()?, ..Interval::default() };
                // The receiver may have ended because of another agent.
                let _ = events.send(AgentEvent::Interval(number, Box::new(interval)));
                number += 1;
            }
            FromAgent::Done { outcome, limits, interrupted } => {
                let limits =
                    limits.into_iter().map(|limit| Limit { text: format!("{}: {}", agent.name, limit.text), ..limit });
                let _ = events.send(AgentEvent::Done(Box::new(outcome.outcome()?), limits.collect(), interrupted));
                return Ok(());
            }
            FromAgent::Failed(reason) => return Err(reason),
            FromAgent::Hello { .. } | FromAgent::Echo | FromAgent::Ready => {}
        }
    }
}

/// Merges what agents report, until all are done.
fn merge(
    events: &Receiver<AgentEvent>,
    agents: usize,
    on_interval: &mut dyn FnMut(Interval) -> Result<(), String>,
) -> Result<(RunOutcome, Vec<Limit>, bool), String> {
    let (mut outcome, mut limits, mut interrupted) = (RunOutcome::empty(), Vec::new(), false);
    // Intervals for which the part of some agent is missing.
    let mut open: BTreeMap<u64, (usize, Interval)> = BTreeMap::new();
    let mut done = 0;
    while done < agents {
        match events.recv().map_err(|_| "an agent ended without a report")? {
            AgentEvent::Interval(number, part) => {
                let (parts, interval) = open.entry(number).or_default();
                *parts += 1;
                interval.end_seconds = interval.end_seconds.max(part.end_seconds);
                interval.record.merge(&part.record);
                if *parts == agents
                    && let Some((_, interval)) = open.remove(&number)
                {
                    on_interval(interval)?;
                }
            }
            AgentEvent::Done(part, its_limits, is_interrupted) => {
                outcome.merge(&part);
                limits.extend(its_limits);
                interrupted |= is_interrupted;
                done += 1;
            }
            AgentEvent::Failed(reason) => return Err(reason),
        }
    }
    // Parts of a run may have different numbers of intervals.
    open.into_values().try_for_each(|(_, interval)| on_interval(interval))?;
    Ok((outcome, limits, interrupted))
}
