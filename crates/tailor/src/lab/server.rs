//! Starting and stopping servers.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::{Deserialize, Serialize};

use super::cgroup::ControlGroup;
use super::model::{Lab, LabServer};
use crate::programs::installed_path;
use crate::report::observe::Observed;

/// Maximum time for a server to stop before it is killed.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Running server.
#[derive(Debug)]
pub(crate) struct RunningServer {
    /// Processes of the server: helpers first, the server itself last.
    children: Vec<Child>,
    backends: Vec<Child>,
    group: Option<ControlGroup>,
}

/// Ports and directories of a server, which replace the placeholders in its files and commands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ServerPlacement {
    pub(crate) port: u16,
    /// Port of the upstream of a proxy.
    pub(crate) backend_port: u16,
    /// Port for TLS.
    pub(crate) tls_port: u16,
    /// Directory of the site to serve.
    pub(crate) root: PathBuf,
    /// Directory of this server's own files.
    pub(crate) run: PathBuf,
}

impl ServerPlacement {
    /// Replaces `@PORT@`, `@TLS_PORT@`, `@BACKEND_PORT@`, `@URL@`, `@ROOT@`, `@RUN@`, `@HERE@` and `@USER@`.
    pub(crate) fn fill(&self, text: &str) -> String {
        text.replace("@PORT@", &self.port.to_string())
            .replace("@TLS_PORT@", &self.tls_port.to_string())
            .replace("@BACKEND_PORT@", &self.backend_port.to_string())
            .replace("@USER@", &user())
            .replace("@URL@", &self.url())
            .replace("@ROOT@", &self.root.display().to_string())
            .replace("@RUN@", &self.run.display().to_string())
            .replace("@HERE@", &here())
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Creates the directory and writes the server's files. Workers that run as another user may write there, too.
    pub(crate) fn prepare(&self, server: &LabServer) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.run)?;
        std::fs::set_permissions(&self.run, std::fs::Permissions::from_mode(0o1777))?;
        for (name, text) in &server.files {
            // Some programs require a newline at the end of the last line.
            std::fs::write(self.run.join(name), self.fill(text) + "\n")?;
        }
        if server.files.iter().any(|(_, text)| text.contains("@TLS_PORT@")) {
            write_certificate(&self.run)?;
        }
        Ok(())
    }

    /// Replaces the placeholders in a command. Of alternative program names (`apache2|httpd`), it takes the installed
    /// one.
    pub(crate) fn fill_command(&self, words: &[String]) -> Vec<String> {
        let mut words: Vec<String> = words.iter().map(|word| self.fill(word)).collect();
        if let Some(program) = words.first_mut() {
            *program = installed_name(program).unwrap_or(program).to_owned();
        }
        words
    }
}

/// User of the server's workers: ours, or `nobody` if we are root.
fn user() -> String {
    match rustix::process::geteuid().is_root() {
        true => "nobody".to_owned(),
        false => std::env::var("USER").unwrap_or_else(|_| "nobody".to_owned()),
    }
}

/// Finds a port that is free now.
pub(crate) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| format!("no free port: {error}"))?;
    listener.local_addr().map(|address| address.port()).map_err(|error| error.to_string())
}

/// First installed program of alternatives that are separated by `|`.
pub(crate) fn installed_name(names: &str) -> Option<&str> {
    names.split('|').find(|name| is_installed(name))
}

/// Directory in which the lab was started and in which its own files lie. Servers run in other directories.
fn here() -> String {
    std::env::current_dir().unwrap_or_default().display().to_string()
}

fn is_installed(program: &str) -> bool {
    installed_path(program).is_some()
}

/// Starts a server and waits until it accepts connections.
pub(crate) fn start(server: &LabServer, place: &ServerPlacement, lab: &Lab) -> Result<RunningServer, String> {
    let error = |error: std::io::Error| format!("{}: {error}", server.name);
    place.prepare(server).map_err(error)?;
    let name: String = server.name.chars().filter(char::is_ascii_alphanumeric).collect();
    // When servers take turns, the first and its control run at the same time, so the port is part of the name.
    let group_name = format!("{name}-{}", place.port);
    let group = match &server.limit {
        Some(limit) => Some(ControlGroup::limited(&group_name, limit)?),
        None => ControlGroup::new(&group_name),
    };
    let mut running = RunningServer { children: Vec::new(), backends: Vec::new(), group };
    let started = running.launch_all(server, place, lab).map_err(error);
    match started.and_then(|()| running.wait_until_ready(server, place, lab.ready_max)) {
        Ok(()) => Ok(running),
        Err(reason) => {
            let log = std::fs::read_to_string(place.run.join("output")).unwrap_or_default();
            running.stop();
            Err(format!("{}: {reason}\n{}", server.name, log.trim_end()))
        }
    }
}

/// Starts a command in the group and on its CPUs. It starts this program again, because a process can join a group and
/// bind itself to CPUs best before it executes the command.
pub(crate) fn launch(
    words: &[String],
    place: &ServerPlacement,
    cpus: &str,
    group: Option<&ControlGroup>,
) -> std::io::Result<Child> {
    let output = std::fs::File::options().create(true).append(true).open(place.run.join("output"))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("launch");
    if !cpus.is_empty() {
        command.arg("--cpus").arg(cpus);
    }
    for file in group.map(ControlGroup::member_files).unwrap_or_default() {
        command.arg("--join").arg(file);
    }
    command.arg("--").args(place.fill_command(words));
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0).current_dir(&place.run);
    command.spawn()
}

impl RunningServer {
    fn launch_all(&mut self, server: &LabServer, place: &ServerPlacement, lab: &Lab) -> std::io::Result<()> {
        for words in &server.backends {
            self.backends.push(launch(words, place, &lab.client_cpus, None)?);
        }
        for words in server.helpers.iter().chain([&server.command]) {
            self.children.push(launch(words, place, &lab.server_cpus, self.group.as_ref())?);
        }
        Ok(())
    }

    /// Waits until the server, its helpers and its upstream accept connections. Fails at once if the server exits.
    fn wait_until_ready(
        &mut self,
        server: &LabServer,
        place: &ServerPlacement,
        ready_max: Duration,
    ) -> Result<(), String> {
        let start = Instant::now();
        let sockets = server.sockets.iter().map(|path| LabListenAddress::Unix(place.fill(path)));
        let mut awaited: Vec<LabListenAddress> = sockets.chain([LabListenAddress::Port(place.port)]).collect();
        if !server.backends.is_empty() {
            awaited.push(LabListenAddress::Port(place.backend_port));
        }
        while start.elapsed() < ready_max {
            awaited.retain(|listener| !listener.is_ready());
            if awaited.is_empty() {
                return Ok(());
            }
            let server = self.children.last_mut();
            if let Some(Ok(Some(status))) = server.map(Child::try_wait) {
                return Err(format!("exited at once: {status}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!("nothing listens on {awaited:?} after {} s", ready_max.as_secs_f64()))
    }

    /// Source of the server's CPU time and memory: its control group, or its processes.
    pub(crate) fn observed(&self) -> Observed {
        match &self.group {
            Some(group) => group.observed(),
            None => Observed::Process(self.children.last().map_or(0, Child::id)),
        }
    }

    /// Stops the server and all processes that it started.
    pub(crate) fn stop(mut self) {
        for signal in [Signal::TERM, Signal::KILL] {
            // Signal the server first, then the processes it depends on.
            self.children.iter().rev().chain(&self.backends).for_each(|child| signal_group(child, signal));
            let start = Instant::now();
            while start.elapsed() < STOP_MAX {
                let mut children = self.children.iter_mut().chain(&mut self.backends);
                let has_ended = children.all(|child| !matches!(child.try_wait(), Ok(None)));
                let members = self.group.as_ref().map(ControlGroup::members).unwrap_or_default();
                if has_ended && members.is_empty() {
                    return;
                }
                if has_ended {
                    // Workers outside the process group can outlive their master.
                    for id in members.into_iter().filter_map(Pid::from_raw) {
                        let _ = kill_process(id, signal);
                    }
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// Address on which a process must listen.
#[derive(Debug)]
enum LabListenAddress {
    Port(u16),
    Unix(String),
}

impl LabListenAddress {
    fn is_ready(&self) -> bool {
        match self {
            Self::Port(port) => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
                TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
            }
            Self::Unix(path) => UnixStream::connect(path).is_ok(),
        }
    }
}

/// Signals a child and its process group. A process that has ended already is ignored.
pub(crate) fn signal_group(child: &Child, signal: Signal) {
    if let Some(id) = Pid::from_raw(child.id() as i32) {
        let _ = kill_process_group(id, signal);
    }
}

/// Runs the hidden command that [`launch`] starts: joins the groups, binds to the CPUs, and executes the command.
pub(crate) fn become_command(join: &[PathBuf], cpus: &[usize], words: &[String]) -> String {
    // A server must not outlive a lab that was killed. Errors are impossible with a valid signal.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
    for file in join {
        if let Err(error) = std::fs::write(file, std::process::id().to_string()) {
            return format!("{}: {error}", file.display());
        }
    }
    if !cpus.is_empty() {
        let mut set = rustix::thread::CpuSet::new();
        cpus.iter().filter(|cpu| **cpu < rustix::thread::CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
        if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
            return format!("processors: {error}");
        }
    }
    let Some((program, arguments)) = words.split_first() else { return "no command".into() };
    // Servers are often installed in directories that only root has in its PATH.
    let path = std::env::var("PATH").unwrap_or_default();
    let error = Command::new(program).args(arguments).env("PATH", format!("{path}:/usr/sbin:/usr/local/sbin")).exec();
    format!("{program}: {error}")
}
/// Writes a self-signed `certificate.pem` and its `key.pem`. The key is on the curve P-256, like those of most sites.
/// Only a load with `--insecure` accepts the certificate.
fn write_certificate(directory: &Path) -> std::io::Result<()> {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).map_err(std::io::Error::other)?;
    std::fs::write(directory.join("certificate.pem"), made.cert.pem())?;
    std::fs::write(directory.join("key.pem"), made.signing_key.serialize_pem())
}
