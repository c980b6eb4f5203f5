//! Reload: checks and assembles a new configuration while the old one serves, then switches all workers to it.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use sd_notify::NotifyState;
use tailcoat_fleet::ConfigChange;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::spawn_blocking;

use super::assembly::{Assembly, ChangeExtent, Changes, Lasting};
use super::differences::differences;
use super::launcher::{ConfigFindings, Launcher};
use super::listeners::NewListeners;
use super::upgrade::{ANOTHER_SERVES, HandedOver};
use super::{SHUTTING_DOWN, Server, ServerStartError};
use crate::config::{self, CheckedConfig, Config, ConfigOrigin, Confinement, Diagnostics, ProgramUser, RouteParts};
use crate::control::{ControlReply, ControlReport};
use crate::log::event;
use crate::modules::Patience;

/// Current reload, and those that wait for it.
#[derive(Default)]
pub(super) struct Reloads {
    current: Option<Reload>,
    waiting: VecDeque<ReloadJob>,
}

/// Event that completes one step of a reload.
pub(super) enum ReloadStep {
    /// Everything is prepared that changes nothing in use.
    Prepared(Result<Box<PreparedConfig>, ReloadError>),
    /// All workers serve by the new configuration.
    Done,
    /// A new process serves, or the reason why it does not.
    HandedOver(Result<Box<HandedOver>, String>),
}

/// Configuration that is ready to be applied.
pub(super) struct PreparedConfig {
    assembly: Assembly,
    changes: Changes,
    /// Warnings about the configuration.
    diagnostics: Diagnostics,
    /// Rollout that the configuration is of; `None` if it is the file's.
    rolled_out: Option<ConfigChange>,
    /// Note for the operator.
    note: Option<String>,
}

/// Origin of a new configuration.
pub(super) enum ReloadSource {
    /// File that the server was started with.
    File,
    /// Current configuration with this change, and its description for the log.
    Change { summary: String, change: Box<dyn FnOnce(&mut Config) + Send> },
    /// Current configuration with these routes of a controller, and a description for the log.
    Routes { summary: String, parts: Arc<RouteParts> },
    /// Configuration of a rollout, or the file again.
    RolledOut(ConfigChange),
    /// Upgrade: a new process reads the configuration.
    Upgrade,
}

/// Operator who waits for the result of a reload.
pub(super) struct ReloadRequester {
    pub(super) reply: ControlReply,
    /// True if the report may use boxes and colours.
    pub(super) is_fancy: bool,
}

struct Reload {
    askers: Vec<ReloadRequester>,
    step: Pin<Box<dyn Future<Output = ReloadStep>>>,
    /// True if the step is an upgrade: a new process may already have the sockets.
    hands_over: bool,
    /// Description of the change, if it is one option.
    change: Option<String>,
    /// Warnings that the final report contains.
    warnings: Diagnostics,
    notes: Vec<String>,
    /// Differences to the configuration before; empty for a change by an operator.
    applied: String,
}

struct ReloadJob {
    source: ReloadSource,
    askers: Vec<ReloadRequester>,
}

/// Options that take effect only at the start of a process.
pub(super) struct StartOptions {
    user: Option<ProgramUser>,
    confinement: Confinement,
    pin_workers: bool,
    kernel_tls: bool,
    blocking_threads_max: usize,
    counters: bool,
    counted_names_max: usize,
    watch: bool,
    watches_max: usize,
}

/// Reason why a reload changed nothing.
pub(super) enum ReloadError {
    /// The server was started without a file.
    NoFile,
    /// The file cannot be read.
    Unreadable(PathBuf, io::Error),
    /// The configuration has errors.
    Invalid(ConfigFindings),
    /// A resource that the configuration names cannot be opened.
    Failed(ServerStartError),
    /// The configuration needs permissions that this process has dropped.
    Confined(Vec<String>),
    /// The configuration of a rollout needs permissions that this process has dropped.
    RolloutConfined(Vec<String>),
    /// A shutdown has started meanwhile.
    ShuttingDown,
}

impl StartOptions {
    /// Start options of a configuration.
    pub(super) fn of(config: &Config) -> Self {
        let (server, cache) = (&config.server, &config.cache);
        Self {
            user: server.user,
            confinement: config.confinement.clone(),
            pin_workers: server.pin_workers,
            kernel_tls: server.kernel_tls.is_wanted,
            blocking_threads_max: server.blocking_threads_max,
            counters: server.counters,
            counted_names_max: server.counted_names_max,
            watch: cache.watch,
            watches_max: cache.watches_max,
        }
    }

    /// Warnings, one for each start option that differs in another configuration.
    fn not_applied(&self, config: &Config) -> Vec<String> {
        let other = Self::of(config);
        let options = [
            ("user", self.user != other.user),
            ("confinement", self.confinement != other.confinement),
            ("pin-workers", self.pin_workers != other.pin_workers),
            ("kernel-tls", self.kernel_tls != other.kernel_tls),
            ("blocking-threads-max", self.blocking_threads_max != other.blocking_threads_max),
            ("counters", self.counters != other.counters),
            ("counted-names-max", self.counted_names_max != other.counted_names_max),
            ("watch", self.watch != other.watch),
            ("watches-max", self.watches_max != other.watches_max),
        ];
        let changed = options.iter().filter(|(_, is_changed)| *is_changed);
        let note = |name: &str| match name {
            // The new process of an upgrade cannot switch users, because this one has dropped that right.
            "user" => "`user` changes when the server is restarted, not with an upgrade".to_owned(),
            name => format!("`{name}` changes with the next start or upgrade"),
        };
        changed.map(|(name, _)| note(name)).collect()
    }
}

impl Reload {
    fn new(
        askers: Vec<ReloadRequester>,
        step: Pin<Box<dyn Future<Output = ReloadStep>>>,
        change: Option<String>,
    ) -> Self {
        Self {
            askers,
            step,
            hands_over: false,
            change,
            warnings: Diagnostics::default(),
            notes: Vec::new(),
            applied: String::new(),
        }
    }
}

impl Reloads {
    /// Waits for the current reload's next step; forever if there is none.
    pub(super) async fn next_step(&mut self) -> ReloadStep {
        match &mut self.current {
            Some(reload) => reload.step.as_mut().await,
            None => std::future::pending().await,
        }
    }

    /// True while an upgrade runs.
    pub(super) fn hands_over(&self) -> bool {
        self.current.as_ref().is_some_and(|reload| reload.hands_over)
    }
}

impl Server {
    /// Starts a reload, or queues it if another one runs.
    pub(super) fn reload(&mut self, source: ReloadSource, asker: Option<ReloadRequester>) {
        if self.successor.is_some() || self.is_draining {
            let reason = if self.successor.is_some() { ANOTHER_SERVES } else { SHUTTING_DOWN };
            asker.iter().for_each(|asker| _ = asker.reply.report(ControlReport::Rejected(reason.into())));
            return;
        }
        let last = self.reloads.waiting.back_mut();
        match (&source, last) {
            // Operators who ask while a reload waits get the result of that one.
            (ReloadSource::File, Some(ReloadJob { source: ReloadSource::File, askers })) => askers.extend(asker),
            _ => self.reloads.waiting.push_back(ReloadJob { source, askers: asker.into_iter().collect() }),
        }
        if self.reloads.current.is_none() {
            self.begin_next();
        }
    }

    fn begin_next(&mut self) {
        let Some(ReloadJob { source, askers }) = self.reloads.waiting.pop_front() else { return };
        if matches!(source, ReloadSource::Upgrade) {
            let step = Box::pin(self.begin_upgrade());
            self.reloads.current = Some(Reload { hands_over: true, ..Reload::new(askers, step, None) });
            return;
        }
        let _ = NotifyState::monotonic_usec_now().and_then(|now| sd_notify::notify(&[NotifyState::Reloading, now]));
        let (lasting, before, origin) = (Arc::clone(&self.lasting), Arc::clone(&self.assembly), self.origin.clone());
        // Runs on a thread: files may be on a slow disk, and the work takes CPU time.
        let launcher = self.launch.launcher().cloned();
        let change = match &source {
            ReloadSource::Change { summary, .. } | ReloadSource::Routes { summary, .. } => Some(summary.clone()),
            ReloadSource::File | ReloadSource::RolledOut(_) | ReloadSource::Upgrade => None,
        };
        let rolled_out = self.rolled_out.clone();
        let prepared =
            spawn_blocking(move || prepare(source, rolled_out, &origin, launcher.as_deref(), &lasting, &before));
        let step = Box::pin(async move {
            let panicked =
                |error| Err(ReloadError::Failed(ServerStartError::at("cannot check the configuration")(error)));
            ReloadStep::Prepared(prepared.await.map_err(io::Error::other).unwrap_or_else(panicked))
        });
        self.reloads.current = Some(Reload::new(askers, step, change));
    }

    /// Continues the current reload after one of its steps.
    pub(super) fn on_step(&mut self, step: ReloadStep) {
        match step {
            // A new configuration would open listeners again.
            ReloadStep::Prepared(_) if self.is_draining => self.reject(&ReloadError::ShuttingDown),
            ReloadStep::Prepared(Ok(prepared)) => {
                if let Err(error) = self.apply(*prepared) {
                    self.reject(&ReloadError::Failed(error));
                }
            }
            ReloadStep::Prepared(Err(ReloadError::Confined(lacks))) if self.launch.launcher().is_some() => {
                self.upgrade_instead(&lacks);
            }
            ReloadStep::Prepared(Err(error)) => self.reject(&error),
            ReloadStep::Done => self.finish(),
            ReloadStep::HandedOver(Ok(handed_over)) => {
                let askers = self.reloads.current.take().map(|reload| reload.askers);
                self.on_handed_over(*handed_over, askers.unwrap_or_default());
            }
            ReloadStep::HandedOver(Err(reason)) => {
                // The new process may have taken new connections of HTTP/3 already.
                self.workers.steer(&self.listeners);
                self.listeners.read_left(true);
                self.share_datagrams();
                self.reject_upgrade(&reason);
                if self.is_draining {
                    self.listeners.close_all(&self.lasting.server_log);
                }
            }
        }
    }

    /// Starts a new process that has the missing permissions; the same operators get its result.
    fn upgrade_instead(&mut self, lacks: &[String]) {
        self.lasting.server_log.info(event(
            "upgrade started: the configuration needs permissions that this process has dropped",
            &[("permissions", &lacks.join(", "))],
        ));
        let step = Box::pin(self.begin_upgrade());
        if let Some(reload) = &mut self.reloads.current {
            (reload.step, reload.hands_over) = (step, true);
        }
    }

    /// Opens listeners, the last step that can fail, and applies the configuration to all parts.
    fn apply(&mut self, prepared: PreparedConfig) -> Result<(), ServerStartError> {
        let PreparedConfig { assembly, changes, diagnostics, rolled_out, note } = prepared;
        let config = Arc::clone(&assembly.parts.config);
        let count = match config.server.workers == self.assembly.parts.config.server.workers {
            // An operator has set the number of workers.
            true => self.workers.count(),
            false => self.workers.wanted(&config.server),
        };
        let new: NewListeners = self.listeners.prepare(&config, count)?;
        let control = self.control.prepare(&config)?;
        let mut notes = self.started_with.not_applied(&config);
        notes.extend(note);
        self.control.apply(control).map_err(ServerStartError::at("cannot listen on the control socket"))?;
        self.lasting.access_log.apply(changes.logs);
        self.lasting.store.apply_limits(config.cache.clone());
        self.lasting.apply_memory_limit(&config);
        self.lasting.apply_buffer_limits(&config);
        self.lasting.apply_disk_cache(&config);
        if self.reloads.current.as_ref().is_some_and(|reload| reload.change.is_none()) {
            self.log_level = None;
            assembly.parts.upstreams.iter().for_each(|upstream| upstream.reset_servers());
            assembly.parts.sites.iter().for_each(|site| site.reset_shares());
            assembly.parts.rules.reset_rates();
            let replaced = assembly.tls.sites().iter().filter(|(_, site)| site.is_replaced());
            replaced.for_each(|(_, site)| crate::tls::reload(site, &self.lasting.server_log));
        }
        self.lasting.server_log.set_level(self.log_level.unwrap_or(config.server.log_level));
        self.listeners.apply(new, &config.server, &self.lasting.server_log);
        let applied = match &self.reloads.current {
            Some(reload) if reload.change.is_none() => differences(&self.assembly.parts.config, &config),
            _ => String::new(),
        };
        self.assembly = Arc::new(assembly);
        self.rolled_out = rolled_out;
        self.keepers.apply(&self.assembly, changes.certificates, &self.lasting);
        let mut done = self.apply_to_workers(count);
        let step = Box::pin(async move {
            wait_for_all(&mut done).await;
            ReloadStep::Done
        });
        if let Some(reload) = &mut self.reloads.current {
            (reload.step, reload.warnings, reload.notes) = (step, diagnostics, notes);
            reload.applied = applied;
        }
        Ok(())
    }

    /// Sets the number of workers and has all of them serve by the current assembly.
    fn apply_to_workers(&mut self, count: usize) -> UnboundedReceiver<()> {
        let generation = Arc::new(self.assembly.generation(&self.listeners, count, &self.lasting));
        let done = self.workers.apply(&generation);
        if let Err(error) = self.workers.set_count(count, &generation, &mut self.listeners, &self.lasting) {
            self.lasting.server_log.error(error, "the server continues with its current workers and listeners");
        }
        self.apply_to_observer();
        done
    }

    /// Reports that the reload changed nothing, and why.
    fn reject(&mut self, error: &ReloadError) {
        let Some(reload) = self.reloads.current.take() else { return };
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        for ReloadRequester { reply, is_fancy } in reload.askers {
            reply.report(match error {
                ReloadError::Invalid(findings) if is_fancy => ControlReport::Invalid(findings.fancy.clone()),
                ReloadError::Invalid(findings) => ControlReport::Invalid(findings.plain.clone()),
                error => ControlReport::Rejected(error.to_string()),
            });
        }
        let log = &self.lasting.server_log;
        let findings = if let ReloadError::Invalid(findings) = error { findings.plain.as_str() } else { "" };
        log.error_with(format_args!("reload failed: {error}"), "the running configuration stays in use", findings);
        self.begin_next();
    }

    fn reject_upgrade(&mut self, reason: &str) {
        let Some(reload) = self.reloads.current.take() else { return };
        // Findings of a configuration follow on separate lines.
        let (message, findings) = reason.split_once('\n').unwrap_or((reason, ""));
        self.lasting.server_log.error_with(
            format_args!("upgrade failed: {message}"),
            "this process keeps serving",
            findings,
        );
        reload.askers.iter().for_each(|asker| _ = asker.reply.report(ControlReport::Rejected(reason.to_owned())));
        self.begin_next();
    }

    /// Rejects the current reload and all that wait.
    pub(super) fn reject_all(&mut self, reason: &str) {
        let current = self.reloads.current.take().map(|reload| reload.askers);
        for asker in current.into_iter().flatten() {
            asker.reply.report(ControlReport::Rejected(reason.to_owned()));
        }
        self.reject_waiting(reason);
    }

    /// Rejects the reloads that wait.
    pub(super) fn reject_waiting(&mut self, reason: &str) {
        for asker in self.reloads.waiting.drain(..).flat_map(|job| job.askers) {
            asker.reply.report(ControlReport::Rejected(reason.to_owned()));
        }
    }

    /// Reports that the reload is complete.
    fn finish(&mut self) {
        let Some(reload) = self.reloads.current.take() else { return };
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        let log = &self.lasting.server_log;
        match &reload.change {
            Some(change) => log.info(change),
            None => log.info(event("configuration reloaded", &[("applied", &reload.applied)])),
        }
        reload.notes.iter().for_each(|note| log.warn(note, ""));
        for ReloadRequester { reply, is_fancy } in reload.askers {
            let notes = reload.notes.iter().map(|note| format!("warning: {note}\n")).collect::<String>();
            let change = match &reload.change {
                Some(summary) => format!("{summary}\n"),
                None => format!("applied: {}\n", reload.applied),
            };
            reply.report(ControlReport::Done(change + &reload.warnings.to_text(is_fancy) + &notes));
        }
        self.begin_next();
    }
}

/// Prepares a reload: all steps that change nothing in use.
fn prepare(
    source: ReloadSource,
    mut rolled_out: Option<ConfigChange>,
    origin: &ConfigOrigin,
    launcher: Option<&Launcher>,
    lasting: &Lasting,
    before: &Assembly,
) -> Result<Box<PreparedConfig>, ReloadError> {
    let (mut note, mut extent) = (None, ChangeExtent::Any);
    let is_operators = matches!(source, ReloadSource::File);
    let source = match source {
        ReloadSource::RolledOut(change) => {
            rolled_out = change.text.is_some().then_some(change);
            ReloadSource::File
        }
        source => source,
    };
    let text = rolled_out.as_ref().and_then(|change| Some((change.number, change.text.as_deref()?)));
    let (config, diagnostics) = match (source, origin) {
        (ReloadSource::File, ConfigOrigin::File(path, _)) if text.is_some() => {
            let (number, text) = text.unwrap_or_default();
            if is_operators {
                note = Some(format!(
                    "the configuration of rollout {number} is in use, not the file; `tailcoat rollout files` returns to it"
                ));
            }
            check_rolled_out(number, text, path, lasting, before)?
        }
        (ReloadSource::File, ConfigOrigin::File(path, _)) if path != Path::new("-") => {
            let (config, diagnostics) = read(path, launcher)?;
            // The file itself could be read.
            let lacks = lasting.confined.lacks(&config, &[]);
            if !lacks.is_empty() {
                return Err(ReloadError::Confined(lacks));
            }
            let mut config = config;
            if let Some(routes) = &before.parts.config.routes {
                config.set_routes(routes);
            }
            (config, diagnostics)
        }
        (ReloadSource::File | ReloadSource::RolledOut(_) | ReloadSource::Upgrade, _) => {
            return Err(ReloadError::NoFile);
        }
        (ReloadSource::Change { change, .. }, _) => {
            let mut config = (*before.parts.config).clone();
            change(&mut config);
            (config, Diagnostics::default())
        }
        (ReloadSource::Routes { parts, .. }, _) => {
            let mut config = (*before.parts.config).clone();
            config.set_routes(&parts);
            extent = ChangeExtent::Routes;
            (config, Diagnostics::default())
        }
    };
    let assembled = Assembly::new(config, lasting, Some((before, extent)), Patience::Unlimited);
    let (assembly, changes) = assembled.map_err(ReloadError::Failed)?;
    Ok(Box::new(PreparedConfig { assembly, changes, diagnostics, rolled_out, note }))
}

/// Checks the configuration of a rollout. An instance keeps its own store and control socket: otherwise neither the other
/// instances nor its operator could reach it.
fn check_rolled_out(
    number: u64,
    text: &str,
    file: &Path,
    lasting: &Lasting,
    before: &Assembly,
) -> Result<(Config, Diagnostics), ReloadError> {
    let full = std::path::absolute(file).map_err(|error| ReloadError::Unreadable(file.to_owned(), error))?;
    let directory = full.parent().unwrap_or(Path::new("/"));
    let checked = config::check_bytes(&format!("rollout {number}"), text.as_bytes().to_vec(), directory);
    let Some(mut config) = checked.config else {
        return Err(ReloadError::Invalid(ConfigFindings::of(&checked.diagnostics)));
    };
    let own = &before.parts.config;
    config.store.clone_from(&own.store);
    config.server.control_socket.clone_from(&own.server.control_socket);
    if let Some(routes) = &own.routes {
        config.set_routes(routes);
    }
    let lacks = lasting.confined.lacks(&config, &[]);
    if !lacks.is_empty() {
        return Err(ReloadError::RolloutConfined(lacks));
    }
    Ok((config, checked.diagnostics))
}

/// Reads a configuration. If it has errors, the launcher, which is not confined, reads it again: to this process, an
/// unreachable file looks like an error.
fn read(path: &Path, launcher: Option<&Launcher>) -> Result<(Config, Diagnostics), ReloadError> {
    let rejected = match config::check_file_to_run(path) {
        Ok(CheckedConfig { config: Some(config), diagnostics }) => return Ok((config, diagnostics)),
        Ok(checked) => ReloadError::Invalid(ConfigFindings::of(&checked.diagnostics)),
        Err(error) => ReloadError::Unreadable(path.to_owned(), error),
    };
    match launcher.map(Launcher::check) {
        Some(Ok(findings)) if findings.error_count == 0 => {
            Err(ReloadError::Confined(vec!["files that the configuration names".to_owned()]))
        }
        Some(Ok(findings)) => Err(ReloadError::Invalid(findings)),
        _ => Err(rejected),
    }
}

/// Waits until all senders are dropped.
pub(super) async fn wait_for_all(done: &mut UnboundedReceiver<()>) {
    while done.recv().await.is_some() {}
}

impl fmt::Display for ReloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile => f.write_str("the server was not started from a configuration file"),
            Self::Unreadable(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Invalid(findings) => match findings.error_count {
                1 => f.write_str("the configuration has 1 error"),
                count => write!(f, "the configuration has {count} errors"),
            },
            Self::Failed(error) => match error.help() {
                Some(help) => write!(f, "{error}; {help}"),
                None => error.fmt(f),
            },
            Self::Confined(lacks) => {
                write!(
                    f,
                    "the configuration needs permissions that this process has dropped ({}); restart the server",
                    lacks.join(", ")
                )
            }
            Self::RolloutConfined(lacks) => {
                write!(
                    f,
                    "the configuration needs permissions that this process has dropped ({}); change the file of the \
                     instance, and run `tailcoat upgrade`",
                    lacks.join(", ")
                )
            }
            Self::ShuttingDown => f.write_str(SHUTTING_DOWN),
        }
    }
}
