//! The manifests for Kubernetes: they have the form that its versions want, and a server with their configuration does what
//! their probes rely on.

use std::error::Error;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{CheckOutcome, chart, expect, is_installed, output};
use crate::process::{ChildProcess, ask, free_port, get, read, until};

const MANIFESTS: &str = "packaging/kubernetes/tailcoat.yaml";

/// The oldest version that knows all that is in the manifests, and one of now.
const VERSIONS: [&str; 2] = ["1.30", "1.37"];

/// More than sockets hold, so that a client that does not read keeps a request open.
const DOWNLOAD_BYTES: u64 = 64 << 20;

pub(super) fn check(program: &Path) -> Result<CheckOutcome, Box<dyn Error>> {
    let manifests = fs::read_to_string(MANIFESTS)?;
    times_agree(&manifests)?;
    let plain = fs::read_to_string(chart::PLAIN)?;
    expect(plain == chart::render()?, "the plain manifests are the chart's; run `cargo xtask packaging --write`")?;
    times_agree(&plain)?;
    arguments_are_left_out(&plain)?;
    probes_follow_draining(program, &manifests)?;
    if !is_installed("kubernetes-validate") {
        return Ok(CheckOutcome::Missing("kubernetes-validate"));
    }
    for version in VERSIONS {
        output(Command::new("kubernetes-validate").args(["--strict", "-k", version, MANIFESTS]))?;
        // Resources of other definitions have no schema there.
        let of_kubernetes = Path::new("target/gateway.yaml");
        fs::write(of_kubernetes, built_in(&plain))?;
        output(Command::new("kubernetes-validate").args(["--strict", "-k", version]).arg(of_kubernetes))?;
    }
    Ok(CheckOutcome::Passed)
}

/// A value that may be empty is an argument only if it is not.
fn arguments_are_left_out(plain: &str) -> Result<(), Box<dyn Error>> {
    let with_ingresses = chart::render_with(&[(".Values.controller.ingressGateway", "shop/web")])?;
    let added: Vec<&str> = with_ingresses.lines().filter(|line| !plain.lines().any(|of| of == *line)).collect();
    expect(added == ["            - --ingress-gateway=shop/web"], "a Gateway for Ingresses adds its argument alone")?;
    let is_empty = |line: &str| {
        let argument = line.trim().strip_prefix("- --").unwrap_or("text");
        argument.ends_with('=') || argument.ends_with("=\"\"") || argument.is_empty()
    };
    expect(!plain.lines().any(is_empty), "no argument of the plain manifests is empty")
}

/// Manifests without resources of Gateway API.
fn built_in(manifests: &str) -> String {
    let all = manifests.split("---\n").filter(|manifest| !manifest.contains("\nkind: GatewayClass\n"));
    all.collect::<Vec<_>>().join("---\n")
}

/// A server has time to end: `grace-period` and the wait of `preStop` are less than Kubernetes waits.
fn times_agree(manifests: &str) -> Result<(), Box<dyn Error>> {
    let seconds = |key: &str| -> Result<u64, Box<dyn Error>> {
        let value = value(manifests, key).ok_or_else(|| format!("{MANIFESTS} has no {key}"))?;
        Ok(value.trim_matches(['"', 's']).parse()?)
    };
    let (grace, pause) = (seconds("grace-period ")?, seconds("seconds: ")?);
    expect(grace + pause < seconds("terminationGracePeriodSeconds: ")?, "the grace period is longer than draining")
}

/// A server with the configuration of the manifests, as Kubernetes lays it out, changed and ended as Kubernetes does.
fn probes_follow_draining(program: &Path, manifests: &str) -> Result<(), Box<dyn Error>> {
    let pod = Pod::lay_out(manifests)?;
    let ready = value(manifests, "path: ").ok_or("there is no path to ask whether it is ready")?;
    let is_ready = || get(pod.port, ready).is_ok_and(|response| response.status == 200);
    let socket = pod.directory.join("state/control.sock");
    let is_alive = || output(Command::new(program).args(["status", "--socket"]).arg(&socket));

    let mut command = Command::new(program);
    command.args(["run", "--watch", "-c"]).arg(pod.directory.join("etc/tailcoat.kdl"));
    command.env("STATE_DIRECTORY", pod.directory.join("state")).stdout(std::process::Stdio::null());
    let mut server = ChildProcess::start(command, pod.port)?;
    until("it is ready", || Ok(is_ready().then_some(())))?;
    is_alive()?;

    pod.publish("second", &pod.configuration.replace("\"ok\"", "\"changed\""))?;
    let is_changed = || get(pod.port, ready).is_ok_and(|response| response.content == b"changed");
    until("the changed ConfigMap is applied", || Ok(is_changed().then_some(())))?;

    let mut download = ask(pod.port, "/large")?;
    let mut head = vec![0; 1];
    std::io::Read::read_exact(&mut download, &mut head)?;
    server.terminate()?;
    until("it is not ready any more", || Ok((!is_ready()).then_some(())))?;
    // As long as a probe of liveness may be away.
    std::thread::sleep(Duration::from_secs(1));
    is_alive().map_err(|error| format!("it counts as dead while it drains: {error}"))?;
    let response = read(&mut download, head)?;
    expect(response.content.len() as u64 == DOWNLOAD_BYTES, "what was asked for before the end comes whole")?;
    expect(server.end()?.success(), "it ends well")?;
    Ok(fs::remove_dir_all(&pod.directory)?)
}

/// Directory with the files of a container.
struct Pod {
    directory: PathBuf,
    port: u16,
    configuration: String,
}

impl Pod {
    fn lay_out(manifests: &str) -> Result<Self, Box<dyn Error>> {
        let (directory, port) = (std::path::absolute("target/pod")?, free_port()?);
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        for part in ["etc", "srv", "state"] {
            fs::create_dir_all(directory.join(part))?;
        }
        fs::File::create(directory.join("srv/large"))?.set_len(DOWNLOAD_BYTES)?;
        let configuration = configuration(manifests)
            .replace("listen 8080", &format!("listen \"127.0.0.1:{port}\""))
            .replace("/state", &directory.join("state").display().to_string())
            .replace("/srv", &directory.join("srv").display().to_string());
        let pod = Self { directory, port, configuration };
        pod.publish("first", &pod.configuration)?;
        symlink("..data/tailcoat.kdl", pod.directory.join("etc/tailcoat.kdl"))?;
        Ok(pod)
    }

    /// As kubelet does it: a directory of its own for each edition, and a link to it that is replaced.
    fn publish(&self, edition: &str, configuration: &str) -> Result<(), Box<dyn Error>> {
        let etc = self.directory.join("etc");
        let name = format!("..{edition}");
        fs::create_dir(etc.join(&name))?;
        fs::write(etc.join(&name).join("tailcoat.kdl"), configuration)?;
        symlink(&name, etc.join("..data_tmp"))?;
        Ok(fs::rename(etc.join("..data_tmp"), etc.join("..data"))?)
    }
}

/// The text of `tailcoat.kdl` in the ConfigMap.
fn configuration(manifests: &str) -> String {
    let lines = manifests.lines().skip_while(|line| line.trim() != "tailcoat.kdl: |").skip(1);
    lines.map_while(|line| line.strip_prefix("    ")).flat_map(|line| [line, "\n"]).collect()
}

/// Value of a key, where a line first begins with it.
fn value<'a>(manifests: &'a str, key: &str) -> Option<&'a str> {
    manifests.lines().find_map(|line| line.trim_start().strip_prefix(key))
}
