//! Shared parts of the black-box tests: the built server, started on a free port.

pub(crate) mod controller;
pub(crate) mod elsewhere;
pub(crate) mod engine_server;
// Some are for the tests of `crates/store`.
#[allow(dead_code)]
pub(crate) mod engines;
pub(crate) mod fastcgi;
pub(crate) mod ftp;
pub(crate) mod function_server;
#[cfg(feature = "modules")]
pub(crate) mod guests;
pub(crate) mod h2;
pub(crate) mod h2_upstream;
pub(crate) mod h3;
pub(crate) mod operated;
pub(crate) mod port;
pub(crate) mod real_server;
pub(crate) mod scarce;
pub(crate) mod skips;
pub(crate) mod tls;
pub(crate) mod upstream;
pub(crate) mod versions;
pub(crate) mod waiting;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tempfile::TempDir;

const SERVE: [&str; 5] = ["serve", "--workers", "1", "--listen", "127.0.0.1:0"];

/// True if server logs are printed, for the reports of failed tests. `conformance/attacks` prints only findings.
pub(crate) static PRINTS_LOG: AtomicBool = AtomicBool::new(true);

/// Running server; dropping this kills it.
pub(crate) struct TestServer {
    child: Child,
    /// Address of its first listener.
    pub(crate) address: SocketAddr,
    /// Lines of its server log since it began to listen.
    pub(crate) log: Arc<Mutex<Vec<String>>>,
    log_reader: Option<JoinHandle<()>>,
}

impl TestServer {
    /// Serves a directory on a free loopback port, with one worker and these further arguments.
    pub(crate) fn serve(directory: &Path, arguments: &[&str]) -> Self {
        let mut command = tailcoat();
        command.args(SERVE).args(arguments).arg(directory);
        Self::start(command)
    }

    /// Serves a directory like [`Self::serve`], with a limit of open file descriptors.
    pub(crate) fn serve_with_descriptors(directory: &Path, descriptors_max: u32) -> Self {
        let mut command = Command::new("sh");
        let limited = format!("ulimit -n {descriptors_max}; exec \"$@\"");
        command.args(["-c", &limited, "sh"]).arg(tailcoat().get_program()).args(SERVE).arg(directory);
        Self::start(command)
    }

    /// Runs a server with this configuration, whose site must have `listen "127.0.0.1:0"`.
    pub(crate) fn run(config: &str) -> Self {
        let file = tempfile::NamedTempFile::new().expect("a file for the configuration");
        std::fs::write(file.path(), config).expect("it can be written");
        Self::run_from(file.path())
    }

    /// Runs a server with this configuration file.
    pub(crate) fn run_from(file: &Path) -> Self {
        let mut command = tailcoat();
        command.arg("run").arg("-c").arg(file);
        Self::start(command)
    }

    /// Runs like [`Self::run`], and copies standard error to this file.
    pub(crate) fn run_logging(config: &str, errors: &Path) -> Self {
        let file = tempfile::NamedTempFile::new().expect("a file for the configuration");
        std::fs::write(file.path(), config).expect("it can be written");
        let mut command = Command::new("bash");
        let copying = format!("exec \"$@\" 2> >(tee \"{}\" >&2)", errors.display());
        command.args(["-c", &copying, "bash"]).arg(tailcoat().get_program()).arg("run").arg("-c").arg(file.path());
        Self::start(command)
    }

    /// Number of its zombies: children that have ended and were not reaped.
    pub(crate) fn zombies(&self) -> usize {
        let parent = format!(" Z {} ", self.child.id());
        let processes = std::fs::read_dir("/proc").expect("the kernel tells").filter_map(Result::ok);
        let stats = processes.filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
        stats.filter(|stat| stat.contains(&parent)).count()
    }

    /// Starts the command, and waits until it prints its address.
    pub(crate) fn start(command: Command) -> Self {
        Self::start_with_input(command, Stdio::null())
    }

    /// Starts like [`Self::start`], with this standard input.
    pub(crate) fn start_with_input(mut command: Command, input: Stdio) -> Self {
        let mut child =
            command.stdin(input).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the built binary starts");
        let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines().map_while(Result::ok);
        let mut said = Vec::new();
        let address = lines.find_map(|line| {
            said.push(line);
            let line = said.last()?;
            let (_, url) = line.split_once("Serving at ").or_else(|| line.split_once("listening on "))?;
            let url = url.split(' ').next()?;
            let address = url.split_once("://").map_or(url, |(_, address)| address);
            address.trim_end_matches('/').parse().ok()
        });
        let address = address.unwrap_or_else(|| panic!("the server does not listen: {}", said.join("\n")));
        let log = Arc::<Mutex<Vec<String>>>::default();
        let of_thread = Arc::clone(&log);
        // Keeps reading, because later lines would fill the pipe.
        let log_reader = std::thread::spawn(move || {
            lines.for_each(|line| {
                if PRINTS_LOG.load(Ordering::Relaxed) {
                    eprintln!("{line}");
                }
                of_thread.lock().expect("no thread panics with it").push(line);
            });
        });
        Self { child, address, log, log_reader: Some(log_reader) }
    }

    /// Opens a connection.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the server takes connections");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has a read time-out");
        stream
    }

    /// Opens a connection from another loopback address, as another client.
    pub(crate) fn connect_from(&self, client: [u8; 4]) -> TcpStream {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from((client, 0)).into()).expect("the loopback has it");
        socket.connect(&self.address.into()).expect("the server takes connections");
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has a read time-out");
        stream
    }

    /// Sends bytes on a new connection, closes the sending side, and returns all that it receives.
    pub(crate) fn exchange(&self, input: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(input).expect("the server reads");
        stream.shutdown(Shutdown::Write).expect("the sending side can be ended");
        read_all(&mut stream)
    }

    /// Waits until a line of its server log contains this text.
    #[track_caller]
    pub(crate) fn await_log(&self, text: &str) {
        waiting::eventually(&format!("{text:?} is in the log"), || {
            self.log.lock().expect("no thread panics with it").iter().any(|line| line.contains(text))
        });
    }

    /// Ends the server, and returns its server log.
    pub(crate) fn end_with_log(mut self) -> Vec<String> {
        self.signal("TERM");
        assert!(self.wait(), "the server ends well");
        self.log_reader.take().expect("it is there until now").join().expect("it does not panic");
        std::mem::take(&mut *self.log.lock().expect("no thread panics with it"))
    }

    /// Sends a signal to the server: `TERM`, `USR1`, …
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(status.is_ok_and(|status| status.success()), "signal {name}");
    }

    /// Process id of the server.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Names of its threads.
    pub(crate) fn thread_names(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("it runs");
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.map(|name| name.trim().to_owned()).collect()
    }

    /// Peak of its resident memory so far, in KiB.
    pub(crate) fn resident_kib_max(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the kernel tells");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    /// Private resident memory, without file pages, in KiB.
    pub(crate) fn memory_kib(&self) -> u64 {
        let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id())).expect("it runs");
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss_Anon:")).expect("the kernel tells");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    /// Waits until it has ended; returns true if it exited with success.
    pub(crate) fn wait(&mut self) -> bool {
        self.child.wait().expect("a child can be waited for").success()
    }
}

/// Time limit of waits for expected events. No measure of speed: it is far beyond the needs of a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Command that runs the built binary.
pub(crate) fn tailcoat() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tailcoat"))
}

/// Size of `large` in [`site_with_large_file`]: more than all buffers between server and client hold.
pub(crate) const LARGE_BYTES: usize = 16 << 20;

/// Writes a program, by another process: as long as this one has it open for writing, and in any child that another
/// test starts meanwhile, it cannot be run (ETXTBSY).
pub(crate) fn write_program(path: &Path, text: &str) {
    let mut command = Command::new("sh");
    command.args(["-c", "cat > \"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut writer = command.spawn().expect("a shell starts");
    writer.stdin.take().expect("it is piped").write_all(text.as_bytes()).expect("the shell reads");
    assert!(writer.wait().is_ok_and(|status| status.success()), "{} can be written", path.display());
}

/// Directory with a large file, named `large`.
pub(crate) fn site_with_large_file() -> TempDir {
    let directory = tempfile::tempdir().expect("a directory for the site");
    std::fs::write(directory.path().join("large"), "x".repeat(LARGE_BYTES)).expect("it can be written");
    directory
}

/// Whole response to a request on a new connection, which the client keeps open.
pub(crate) fn ask(server: &TestServer, request: &str) -> String {
    let mut stream = server.connect();
    stream.write_all(request.as_bytes()).expect("the server reads");
    read_all(&mut stream)
}

/// Reads until the server ends the connection.
pub(crate) fn read_all(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset after the response counts as an end.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads until this text arrives.
pub(crate) fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&bytes).contains(text) {
        let count = stream.read(&mut buffer).expect("more comes");
        assert!(count > 0, "ended before {text:?}: {:?}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Drop for TestServer {
    fn drop(&mut self) {
        // A failure here would only hide the finding of the test.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
