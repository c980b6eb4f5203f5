//! Containers of a real Podman, which has the API of Docker.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

use crate::discovery::{config, expect_counts, get, source, started_with};
use crate::support::real_server::is_installed;
use crate::support::skips::{skip, skip_without};
use crate::support::waiting::eventually;

/// Programs that Podman needs for containers with a network.
const NEEDS: [&str; 5] = ["podman", "runc", "/usr/lib/podman/netavark", "iptables", "python3"];

/// Settings that keep all state in one directory, and need no more than a container of CI permits.
const SETTINGS: &str = "[network]\nnetwork_backend = \"netavark\"\n\
    [engine]\nlock_type = \"file\"\nevents_logger = \"file\"\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\n\
    [containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\nlog_driver = \"k8s-file\"\n";

/// Server of a container: its responses are its name.
const PROGRAM: &str = "import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        name = sys.argv[1].encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(name)))
        self.end_headers()
        self.wfile.write(name)
http.server.ThreadingHTTPServer(('', 8080), Handler).serve_forever()
";

/// Engine with a state of its own.
struct Podman {
    directory: TempDir,
    service: Option<Child>,
}

impl Podman {
    /// Starts the service with its API. Skips and returns `None` if a program is missing, or no container can run here.
    fn start() -> Option<Self> {
        if let Some(missing) = NEEDS.iter().find(|name| !is_installed(name)) {
            skip_without(missing);
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("containers.conf"), SETTINGS).unwrap();
        let mut podman = Self { directory, service: None };
        let service = podman.command(&["system", "service", "--time", "0"]).arg(podman.socket_url()).spawn();
        podman.service = Some(service.unwrap());
        let socket = podman.socket();
        eventually("the service listens", || socket.exists());
        let network = podman.order(&["network", "create", "shop"]);
        let begun = podman.run("probe", &[]);
        if !network.status.success() || !begun.status.success() {
            let said = String::from_utf8_lossy(&network.stderr) + String::from_utf8_lossy(&begun.stderr);
            skip(&format!("podman can run no container here: {said}"));
            return None;
        }
        assert!(podman.order(&["rm", "-f", "-t", "0", "probe"]).status.success());
        Some(podman)
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn socket(&self) -> PathBuf {
        self.path().join("podman.sock")
    }

    fn socket_url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("podman");
        for (name, part) in
            [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp"), ("--network-config-dir", "net")]
        {
            command.arg(name).arg(self.path().join(part));
        }
        command.args(["--storage-driver", "vfs"]).args(arguments);
        command.env("CONTAINERS_CONF", self.path().join("containers.conf"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn order(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap()
    }

    fn expect(&self, arguments: &[&str]) {
        let output = self.order(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Starts a container in the network `shop`, without an image: it has the programs of this machine.
    fn run(&self, name: &str, options: &[&str]) -> Output {
        let root = self.path().join("roots").join(name);
        for folder in ["usr", "proc", "sys", "dev", "tmp", "etc", "run"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for folder in ["lib", "lib64", "bin"] {
            symlink(format!("usr/{folder}"), root.join(folder)).unwrap();
        }
        let root = root.to_str().unwrap();
        let usual = ["run", "-d", "--name", name, "--network", "shop", "-v", "/usr:/usr:ro"];
        let program = ["--rootfs", root, "/usr/bin/python3", "-c", PROGRAM, name];
        self.order(&[&usual[..], options, &program].concat())
    }

    fn run_web(&self, name: &str, options: &[&str]) {
        let output = self.run(name, &[&["--label", "app=web"], options].concat());
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        // Containers that are left after a failure.
        self.order(&["rm", "-f", "-t", "0", "--all"]);
        self.order(&["network", "rm", "-f", "shop"]);
        if let Some(service) = &mut self.service {
            let _ = service.kill();
            let _ = service.wait();
        }
    }
}

#[test]
fn containers_of_podman_are_followed() {
    let Some(podman) = Podman::start() else { return };
    podman.run_web("one", &[]);
    podman.run_web("two", &["--label", "tailcoat.weight=2"]);
    assert!(podman.run("other", &["--label", "app=other"]).status.success());
    let discover = format!("\"docker:{}\" label=\"app=web\" network=\"shop\" port=8080", podman.socket().display());
    let state = tempfile::tempdir().unwrap();
    let operated = started_with(&config(&discover, ""), state.path());
    expect_counts(&operated.server, &[("one", 1), ("two", 2)]);

    // Each start and end is an event: a change holds long before the next list.
    podman.run_web("three", &[]);
    expect_counts(&operated.server, &[("one", 1), ("two", 2), ("three", 1)]);
    podman.expect(&["stop", "-t", "0", "two"]);
    expect_counts(&operated.server, &[("one", 2), ("three", 2)]);
    podman.expect(&["kill", "three"]);
    expect_counts(&operated.server, &[("one", 4)]);
    podman.expect(&["start", "two"]);
    expect_counts(&operated.server, &[("one", 1), ("two", 2)]);

    // A container does not count before its health check has passed.
    podman.run_web("four", &["--health-cmd", r#"["/usr/bin/true"]"#, "--health-interval", "disable"]);
    eventually("it runs", || podman.order(&["exec", "four", "/usr/bin/true"]).status.success());
    expect_counts(&operated.server, &[("one", 1), ("two", 2)]);

    podman.expect(&["rm", "-f", "-t", "0", "one", "two", "four"]);
    eventually("there is no server", || get(&operated.server) == "503");
    assert!(source(&operated)["error"].is_null(), "{}", source(&operated));
}
