//! What the black-box tests share: the built server, started on a free port.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const SERVE: [&str; 5] = ["serve", "--workers", "1", "--listen", "127.0.0.1:0"];

/// `tailcoat serve`, until it is dropped.
pub(crate) struct Server {
    child: Child,
    /// Where it listens.
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Serves a directory on a free port of the loopback, with one worker and these further arguments.
    pub(crate) fn serve(directory: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailcoat"));
        command.args(SERVE).args(arguments).arg(directory);
        Self::start(command)
    }

    /// Serves a directory like [`Self::serve`], with a limit of open descriptors.
    pub(crate) fn serve_with_descriptors(directory: &Path, descriptors_max: u32) -> Self {
        let mut command = Command::new("sh");
        let limited = format!("ulimit -n {descriptors_max}; exec \"$@\"");
        command.args(["-c", &limited, "sh", env!("CARGO_BIN_EXE_tailcoat")]).args(SERVE).arg(directory);
        Self::start(command)
    }

    fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the built binary starts");
        let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines().map_while(Result::ok);
        let url =
            lines.find_map(|line| Some(line.strip_prefix("Serving at http://")?.trim_end_matches('/').to_owned()));
        let address = url.and_then(|url| url.parse().ok()).expect("the server says where it listens");
        // What it says later must not fill the pipe.
        std::thread::spawn(move || lines.for_each(|line| eprintln!("{line}")));
        Self { child, address }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Failing here would only hide what the test found.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
