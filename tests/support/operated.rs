//! Server that is operated while it runs: configuration in a file, a control socket, and a replaceable link to the
//! binary.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use super::{TestServer, tailcoat, write_program};

/// Server with a directory for all of its files.
pub(crate) struct Operated {
    pub(crate) server: TestServer,
    /// Ids of processes that have taken over, the latest last.
    successors: Vec<u32>,
    directory: TempDir,
}

impl Operated {
    /// Starts a server with this configuration, in which `@DIR@` stands for the directory. It has a control socket, and
    /// its server log is in `errors.log`.
    pub(crate) fn start(config: &str) -> Self {
        Self::start_in(tempfile::tempdir().expect("a directory"), config)
    }

    /// Starts a server in an existing directory.
    pub(crate) fn start_in(directory: TempDir, config: &str) -> Self {
        Self::start_with(directory, config, |_| {})
    }

    /// Starts a server with a changed command.
    pub(crate) fn start_with(directory: TempDir, config: &str, change: impl FnOnce(&mut Command)) -> Self {
        Self::start_with_input(directory, config, change, Stdio::null())
    }

    /// Starts a server with this standard input. The arguments begin with those of a shell, the second of which is a
    /// script.
    pub(crate) fn start_with_input(
        directory: TempDir,
        config: &str,
        change: impl FnOnce(&mut Command),
        input: Stdio,
    ) -> Self {
        write_config(directory.path(), config);
        let binary = directory.path().join("tailcoat");
        link(tailcoat().get_program().as_ref(), &binary);
        let mut command = Command::new("bash");
        let copying = format!("exec \"$@\" 2> >(tee -a \"{}/errors.log\" >&2)", directory.path().display());
        command.args(["-c", &copying, "bash"]).arg(binary);
        command.arg("run").arg("-c").arg(directory.path().join("tailcoat.kdl"));
        change(&mut command);
        Self { server: TestServer::start_with_input(command, input), successors: Vec::new(), directory }
    }

    /// Path of the directory.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Text of a file; empty if there is none.
    pub(crate) fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.path().join(name)).unwrap_or_default()
    }

    /// Number of its threads whose names begin so.
    pub(crate) fn threads(&self, name: &str) -> usize {
        self.server.thread_names().iter().filter(|thread| thread.starts_with(name)).count()
    }

    /// Writes another configuration.
    pub(crate) fn write_config(&self, config: &str) {
        write_config(self.path(), config);
    }

    /// Writes another configuration and reloads.
    pub(crate) fn reload(&self, config: &str) {
        self.write_config(config);
        let output = self.order(&["reload"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Runs a command of the control socket.
    pub(crate) fn order(&self, arguments: &[&str]) -> Output {
        let mut command = tailcoat();
        command.args(arguments).arg("--socket").arg(self.path().join("control.sock"));
        command.output().expect("the built binary starts")
    }

    /// Upgrades the server; returns the id of the new process.
    pub(crate) fn upgrade(&mut self) -> u32 {
        let output = self.order(&["upgrade"]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        let process = said.split(' ').nth(1).and_then(|id| id.parse().ok()).expect("it says which process");
        self.successors.push(process);
        process
    }

    /// Replaces the binary by this script; `None` restores it.
    pub(crate) fn replace_binary(&self, script: Option<&str>) {
        let binary = self.path().join("tailcoat");
        match script {
            None => link(tailcoat().get_program().as_ref(), &binary),
            Some(text) => {
                let other = self.path().join("script");
                write_program(&other, text);
                link(&other, &binary);
            }
        }
    }

    /// Sends a signal to the serving process.
    pub(crate) fn signal(&self, name: &str) {
        match self.successors.last() {
            None => self.server.signal(name),
            Some(process) => assert!(kill(name, *process), "signal {name}"),
        }
    }

    /// True if a process is still running.
    pub(crate) fn is_running(process: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    }

    /// Ids of its processes that are still running.
    pub(crate) fn running(&self) -> Vec<u32> {
        let all = std::iter::once(self.server.id()).chain(self.successors.iter().copied());
        all.filter(|process| Self::is_running(*process)).collect()
    }
}

impl Drop for Operated {
    fn drop(&mut self) {
        for process in &self.successors {
            // The process may have ended.
            kill("KILL", *process);
        }
    }
}

fn kill(signal: &str, process: u32) -> bool {
    let status = Command::new("kill").arg(format!("-{signal}")).arg(process.to_string()).output();
    status.is_ok_and(|output| output.status.success())
}

fn link(to: &Path, at: &PathBuf) {
    let new = at.with_extension("new");
    let _ = std::fs::remove_file(&new);
    symlink(to, &new).and_then(|()| std::fs::rename(&new, at)).expect("a link can be made");
}

/// Writes a configuration. Options of `server` must come first in it.
fn write_config(directory: &Path, config: &str) {
    let options = config.strip_prefix("server {\n").and_then(|rest| rest.split_once("}\n"));
    let (options, config) = options.unwrap_or(("", config));
    let text = format!(
        "server {{\n workers 2\n control-socket \"@DIR@/control.sock\"\n upgrade-timeout \"60s\"\n{options}}}\n{config}"
    );
    let text = text.replace("@DIR@", &directory.display().to_string());
    std::fs::write(directory.join("tailcoat.kdl"), text).expect("it can be written");
}
