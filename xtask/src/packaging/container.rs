//! The image, built from the tarball that `cargo xtask release` has made, and run by podman as docs/install.md says.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{CheckOutcome, expect, is_installed, output};
use crate::process::{ask, free_port, get, read, until};

const IMAGE: &str = "localhost/tailcoat:tried";
const RELEASES: &str = "target/dist";

/// More than sockets hold, so that a client that does not read keeps a request open.
const DOWNLOAD_BYTES: u64 = 64 << 20;

/// The container has no other permissions.
const RESTRICTIONS: [&str; 5] = ["--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges"];

pub(super) fn check(_program: &Path) -> Result<CheckOutcome, Box<dyn Error>> {
    if !is_installed("podman") {
        return Ok(CheckOutcome::Missing("podman"));
    }
    let Some(tarball) = tarball()? else {
        return Ok(CheckOutcome::Skipped(format!("{RELEASES} has no tarball: `cargo xtask release` makes it")));
    };
    let directory = std::path::absolute("target/container")?;
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    for part in ["tarball", "configuration", "site"] {
        fs::create_dir_all(directory.join(part))?;
    }
    let unpacked = directory.join("tarball");
    output(Command::new("tar").args(["--strip-components=1", "-xzf"]).arg(tarball).arg("-C").arg(&unpacked))?;
    let mut build = Command::new("podman");
    build.args(["build", "--format", "docker", "--isolation", "chroot", "-t", IMAGE]);
    output(build.args(["-f", "packaging/container/Containerfile", "."]).current_dir(&unpacked))?;
    welcomes()?;
    is_operated(&directory)?;
    is_root_for_ports_alone()?;
    Ok(CheckOutcome::Passed)
}

/// The newest tarball.
fn tarball() -> Result<Option<PathBuf>, Box<dyn Error>> {
    let Ok(files) = fs::read_dir(RELEASES) else { return Ok(None) };
    let paths: Vec<PathBuf> = files.map(|file| Ok(file?.path())).collect::<Result<_, std::io::Error>>()?;
    Ok(paths.into_iter().filter(|path| path.to_string_lossy().ends_with(".tar.gz")).max())
}

/// Without any further word it shows a page, and is healthy.
fn welcomes() -> Result<(), Box<dyn Error>> {
    let container = Container::run(8080, &RESTRICTIONS)?;
    expect(get(container.port, "/")?.status == 200, "the page of welcome is there")?;
    container.podman(&["healthcheck", "run"], &[])?;
    let state = container.podman(&["exec"], &["tailcoat", "status", "--json"])?;
    expect(state.starts_with('{'), "`tailcoat status` finds the control socket")?;
    container.podman(&["exec"], &["tailcoat", "doctor", "--json"]).or_else(|error| {
        // `doctor` ends with 1 if this machine needs a repair.
        if error.to_string().contains("\"what\"") { Ok(String::new()) } else { Err(error) }
    })?;
    expect(container.log()?.contains("\"GET / HTTP/1.1\" 200"), "the access log is in its output")
}

/// With a configuration and a site of one's own it is reloaded, and ends when it has answered.
fn is_operated(directory: &Path) -> Result<(), Box<dyn Error>> {
    let file = directory.join("configuration/tailcoat.kdl");
    let configuration = fs::read_to_string("packaging/container/tailcoat.kdl")?;
    fs::write(&file, &configuration)?;
    fs::File::create(directory.join("site/large"))?.set_len(DOWNLOAD_BYTES)?;
    let volume = |part: &str, place: &str| format!("--volume={}:{place}:ro", directory.join(part).display());
    let volumes = [volume("configuration", "/etc/tailcoat"), volume("site", "/srv")];
    let options: Vec<&str> = RESTRICTIONS.into_iter().chain(volumes.iter().map(String::as_str)).collect();
    let container = Container::run(8080, &options)?;

    let with_answer =
        |answer: &str| configuration.replace("root ", &format!("respond \"/it\" 200 \"{answer}\"\n    root "));
    let answers = |answer: &str| get(container.port, "/it").is_ok_and(|response| response.content == answer.as_bytes());
    fs::write(&file, with_answer("first"))?;
    container.podman(&["exec"], &["tailcoat", "reload"])?;
    expect(answers("first"), "a reload by command is applied")?;
    fs::write(&file, "sit {")?;
    let rejected =
        container.podman(&["exec"], &["tailcoat", "reload"]).err().ok_or("a broken configuration is rejected")?;
    expect(rejected.to_string().contains("tailcoat.kdl:1"), "a reload says what is wrong")?;
    container.podman(&["healthcheck", "run"], &[])?;
    fs::write(&file, with_answer("second"))?;
    container.podman(&["kill", "--signal", "HUP"], &[])?;
    until("a reload by signal is applied", || Ok(answers("second").then_some(())))?;
    // More than the process has left itself: another one takes over, in the same container.
    fs::write(&file, with_answer("third").replace("\"/srv\"", "\"/usr\""))?;
    container.podman(&["exec"], &["tailcoat", "reload"])?;
    expect(answers("third"), "a reload that needs more is applied")?;
    fs::write(&file, with_answer("fourth"))?;
    container.podman(&["exec"], &["tailcoat", "reload"])?;

    let mut download = ask(container.port, "/large")?;
    let mut head = vec![0; 1];
    std::io::Read::read_exact(&mut download, &mut head)?;
    container.podman(&["kill", "--signal", "TERM"], &[])?;
    std::thread::sleep(Duration::from_secs(1));
    expect(get(container.port, "/it").is_err(), "it takes no more connections")?;
    let response = read(&mut download, head)?;
    expect(response.content.len() as u64 == DOWNLOAD_BYTES, "what was asked for before the end comes whole")?;
    expect(container.podman(&["wait"], &[])?.trim() == "0", "it ends well")
}

/// Started as root for ports below 1024, it becomes the image's user.
fn is_root_for_ports_alone() -> Result<(), Box<dyn Error>> {
    let options = ["--user=0", "--read-only", "--cap-drop=all", "--cap-add=NET_BIND_SERVICE,SETUID,SETGID,CHOWN"];
    let container = Container::run(8080, &options)?;
    let process = container.podman(&["inspect", "--format", "{{.State.Pid}}"], &[])?;
    let status = fs::read_to_string(format!("/proc/{}/status", process.trim()))?;
    let has = |line: &str| status.lines().any(|it| it.split_whitespace().eq(line.split(' ')));
    expect(has("Uid: 65532 65532 65532 65532"), "it becomes `tailcoat`")?;
    // CAP_NET_BIND_SERVICE.
    expect(has("CapEff: 0000000000000400") && has("NoNewPrivs: 1"), "it keeps one privilege")
}

/// A container that ends with this.
struct Container {
    name: String,
    port: u16,
}

impl Container {
    /// Starts it with these options, and waits until it answers on its port.
    fn run(inner_port: u16, options: &[&str]) -> Result<Self, Box<dyn Error>> {
        let port = free_port()?;
        let container = Self { name: format!("tailcoat-tried-{port}"), port };
        let mut podman = Command::new("podman");
        podman.args(["run", "--detach", "--name", &container.name, "--publish"]);
        podman.arg(format!("127.0.0.1:{port}:{inner_port}")).args(options).arg(IMAGE);
        output(&mut podman)?;
        until("the container answers", || Ok(get(port, "/").ok()))
            .map_err(|error| format!("{error}\n{}", container.log().unwrap_or_default()))?;
        Ok(container)
    }

    /// `podman COMMAND NAME ARGUMENTS`.
    fn podman(&self, command: &[&str], arguments: &[&str]) -> Result<String, Box<dyn Error>> {
        output(Command::new("podman").args(command).arg(&self.name).args(arguments))
    }

    /// Standard output and standard error of the container.
    fn log(&self) -> Result<String, Box<dyn Error>> {
        let said = Command::new("podman").args(["logs", &self.name]).output()?;
        Ok([said.stdout, said.stderr].iter().map(|bytes| String::from_utf8_lossy(bytes)).collect())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // A failure is harmless: the container stays in podman's list.
        let _ = self.podman(&["rm", "--force", "--volumes"], &[]);
    }
}
