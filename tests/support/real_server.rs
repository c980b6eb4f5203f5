//! Third-party servers, where they are installed (`.ci/run` installs them).

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::port::free_port;
use super::skips::skip_without;
use super::waiting::{eventually, within};

/// Third-party server that runs in a directory of its own until this is dropped.
pub(crate) struct RealServer {
    child: Child,
    pub(crate) address: SocketAddr,
    directory: TempDir,
}

/// Recipe for starting a server. In texts, `@PORT@` is the port that it must listen on, and `@DIR@` its directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recipe<'a> {
    /// Programs or paths that must be installed.
    pub(crate) needs: &'a [&'a str],
    /// Names and contents of files in its directory.
    pub(crate) files: &'a [(&'a str, &'a str)],
    pub(crate) command: &'a [&'a str],
    pub(crate) environment: &'a [(&'a str, &'a str)],
}

/// Start of Apache configurations with PHP; files come from `root` in its directory.
pub(crate) const APACHE_BASE: &str = "\
    ServerRoot /usr/lib/apache2\nPidFile @DIR@/pid\nDefaultRuntimeDir @DIR@\nServerName localhost\n\
    Listen 127.0.0.1:@PORT@\nErrorLog @DIR@/log\nMutex pthread\nDocumentRoot @DIR@/root\n\
    LoadModule mpm_prefork_module modules/mod_mpm_prefork.so\nLoadModule mime_module modules/mod_mime.so\n\
    LoadModule authz_core_module modules/mod_authz_core.so\nLoadModule php_module modules/libphp8.2.so\n\
    TypesConfig /etc/mime.types\n";

impl RealServer {
    /// Starts the server and waits until it listens. Skips and returns `None` if a program or file that it needs is
    /// not installed.
    pub(crate) fn start(recipe: &Recipe<'_>) -> Option<Self> {
        if let Some(missing) = recipe.needs.iter().find(|name| !is_installed(name)) {
            skip_without(missing);
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory for the server");
        // A server that starts as root switches to another user, who needs access as well.
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

    /// Directory of the server, with the files of its recipe.
    pub(crate) fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// Sends a signal to the server: `HUP`, `USR1`, …
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(status.is_ok_and(|status| status.success()), "signal {name}");
    }

    /// Kills the server without warning.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("a child can be waited for");
    }

    /// Restarts a killed server at the same address.
    pub(crate) fn restart(&mut self, recipe: &Recipe<'_>) {
        let (port, directory) = (self.address.port().to_string(), self.directory.path().display().to_string());
        let errors = std::fs::File::create(self.directory.path().join("errors")).expect("it can be made");
        let fill = |text: &str| text.replace("@PORT@", &port).replace("@DIR@", &directory);
        self.child = spawn(recipe, fill, errors);
        self.await_listening();
    }

    fn await_listening(&mut self) {
        eventually("it listens", || {
            let ended = self.child.try_wait().expect("a child can be asked");
            assert!(ended.is_none(), "it ended ({ended:?}) instead of listening");
            TcpStream::connect(self.address).is_ok()
        });
    }
}

/// Starts the program; its error output goes to a file in its directory.
fn spawn(recipe: &Recipe<'_>, fill: impl Fn(&str) -> String, errors: std::fs::File) -> Child {
    let (program, arguments) = recipe.command.split_first().expect("a program is named");
    Command::new(find(program).expect("it is installed"))
        .args(arguments.iter().map(|argument| fill(argument)))
        .envs(recipe.environment.iter().map(|(name, value)| (name, fill(value))))
        // Apache signals its whole process group at the end.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors)
        .spawn()
        .expect("it can be started")
}

/// True if a program or file exists.
pub(crate) fn is_installed(name: &str) -> bool {
    find(name).is_some()
}

/// Debian installs servers where only root's PATH leads.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let mut candidates = std::env::split_paths(&path).chain(usual).map(|directory| directory.join(name));
    // Joining an absolute path drops the directory.
    candidates.find(|path| path.exists())
}

impl Drop for RealServer {
    fn drop(&mut self) {
        // SIGTERM lets a server end its children.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let ended = within(Duration::from_secs(3), || self.child.try_wait().transpose());
        if ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
