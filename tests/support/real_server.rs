//! Servers that others have made, as far as they are installed; `.ci/run` installs them.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::PATIENCE;
use super::port::free_port;

/// A server in a directory of its own, until it is dropped.
pub(crate) struct RealServer {
    child: Child,
    pub(crate) address: SocketAddr,
    directory: TempDir,
}

/// How one is started: what is written and run for it. In texts, `@PORT@` is the port where it has to listen, and `@DIR@`
/// its directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recipe<'a> {
    /// What has to be installed: names of programs, or paths.
    pub(crate) needs: &'a [&'a str],
    /// Names and contents of files in its directory.
    pub(crate) files: &'a [(&'a str, &'a str)],
    pub(crate) command: &'a [&'a str],
    pub(crate) environment: &'a [(&'a str, &'a str)],
}

/// What configurations of Apache with PHP begin with: files are those of `root` in its directory.
pub(crate) const APACHE_BASE: &str = "\
    ServerRoot /usr/lib/apache2\nPidFile @DIR@/pid\nDefaultRuntimeDir @DIR@\nServerName localhost\n\
    Listen 127.0.0.1:@PORT@\nErrorLog @DIR@/log\nMutex pthread\nDocumentRoot @DIR@/root\n\
    LoadModule mpm_prefork_module modules/mod_mpm_prefork.so\nLoadModule mime_module modules/mod_mime.so\n\
    LoadModule authz_core_module modules/mod_authz_core.so\nLoadModule php_module modules/libphp8.2.so\n\
    TypesConfig /etc/mime.types\n";

impl RealServer {
    /// Starts it and waits until it listens. `None`, which is printed, if something it needs is not installed.
    pub(crate) fn start(recipe: &Recipe<'_>) -> Option<Self> {
        if let Some(missing) = recipe.needs.iter().find(|name| !is_installed(name)) {
            println!("skipped: {missing} is not installed");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory for the server");
        // Servers that begin as root go on as somebody else, who has to get in as well.
        let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open).expect("it can be opened");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let fill = |text: &str| {
            let filled = text.replace("@PORT@", &address.port().to_string());
            filled.replace("@DIR@", &directory.path().display().to_string())
        };
        for (name, content) in recipe.files {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().expect("it is in the directory")).expect("it can be made");
            std::fs::write(path, fill(content)).expect("it can be written");
        }
        let errors = std::fs::File::create(directory.path().join("errors")).expect("it can be made");
        let mut server = Self { child: spawn(recipe, fill, errors), address, directory };
        server.await_listening();
        Some(server)
    }

    /// Its directory, with the files of its recipe.
    pub(crate) fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// Sends it a signal: `HUP`, `USR1`, …
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(status.is_ok_and(|status| status.success()), "signal {name}");
    }

    /// Kills it without a warning, and starts it again where it was, after `pause`.
    pub(crate) fn kill_and_restart(&mut self, recipe: &Recipe<'_>, pause: Duration) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("a child can be waited for");
        std::thread::sleep(pause);
        let (port, directory) = (self.address.port().to_string(), self.directory.path().display().to_string());
        let errors = std::fs::File::create(self.directory.path().join("errors")).expect("it can be made");
        let fill = |text: &str| text.replace("@PORT@", &port).replace("@DIR@", &directory);
        self.child = spawn(recipe, fill, errors);
        self.await_listening();
    }

    fn await_listening(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(self.address).is_err() {
            let ended = self.child.try_wait().expect("a child can be asked");
            assert!(ended.is_none(), "it ended ({ended:?}) instead of listening");
            assert!(Instant::now() < deadline, "it does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What it says of errors is only for who looks into its directory.
fn spawn(recipe: &Recipe<'_>, fill: impl Fn(&str) -> String, errors: std::fs::File) -> Child {
    let (program, arguments) = recipe.command.split_first().expect("a program is named");
    Command::new(find(program).expect("it is installed"))
        .args(arguments.iter().map(|argument| fill(argument)))
        .envs(recipe.environment.iter().map(|(name, value)| (name, fill(value))))
        // Apache ends its whole group.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors)
        .spawn()
        .expect("it can be started")
}

/// Whether a program or file is there.
pub(crate) fn is_installed(name: &str) -> bool {
    find(name).is_some()
}

/// Debian keeps servers where only root's PATH looks.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let mut candidates = std::env::split_paths(&path).chain(usual).map(|directory| directory.join(name));
    // Joined to an absolute path, a directory is forgotten.
    candidates.find(|path| path.exists())
}

impl Drop for RealServer {
    fn drop(&mut self) {
        // Servers with children end these when they are told to end.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let deadline = Instant::now() + Duration::from_secs(3);
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
