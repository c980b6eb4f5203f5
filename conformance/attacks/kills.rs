//! kill -9 under load: log lines are whole, what is on disk is intact, and the next server starts and serves the right content.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::raw::{PATIENCE, Raw, ask};
use crate::support::port::free_port;
use crate::support::{TestServer, tailcoat};
use crate::trial::{Attack, Skipped, Trial, pause};

pub(crate) const ATTACKS: [Attack; 2] =
    [Attack { name: "kills/logs", run: logs }, Attack { name: "kills/state", run: state }];

/// Requests in one write.
const PIPELINED: usize = 20;

/// Kills a server again and again while it is asked, reloaded and told to open its logs again.
fn logs(trial: &Trial) -> Result<String, Skipped> {
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path().display();
    let (config, json_port) = (directory.path().join("tailcoat.kdl"), free_port());
    let json_address = SocketAddr::from(([127, 0, 0, 1], json_port));
    let write = |version: u64| {
        let text = format!(
            "server {{ workers 2; control-socket \"{at}/control.sock\"; access-log-flush-interval \"1ms\" }}\n\
             site {{ listen \"127.0.0.1:0\" \"unix:{at}/site.sock\"; root \"{at}/root\"; respond \"/version\" 200 \"{version}\"\n \
             access-log \"{at}/access.log\" }}\n\
             site {{ listen \"127.0.0.1:{json_port}\"; root \"{at}/root\"; access-log \"{at}/access.json\" format=\"json\" }}\n"
        );
        std::fs::write(&config, text).expect("it can be written");
    };
    std::fs::create_dir(directory.path().join("root")).expect("it can be made");
    for number in 0..10 {
        std::fs::write(directory.path().join(format!("root/{number}.txt")), page(number)).expect("it can be written");
    }
    let (mut kills, requests) = (0, AtomicU64::new(0));
    trial.run(1, |case| {
        write(case.number);
        let server = TestServer::run_from(&config);
        for number in [0, 9] {
            let answer = get(server.address, &format!("/{number}.txt"));
            if !answer.ends_with(&page(number)) {
                return Err(format!("the server that was started again answers {answer:?}"));
            }
        }
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (is_over, requests) = (&is_over, &requests);
            for address in [server.address, json_address] {
                scope.spawn(move || requests.fetch_add(load(address, is_over), Ordering::Relaxed));
            }
            let deadline = Instant::now() + Duration::from_millis(case.random.u64(5..150));
            while Instant::now() < deadline {
                match case.random.u8(0..4) {
                    0 => {
                        let mut reload = tailcoat();
                        reload.args(["reload", "--socket", &format!("{at}/control.sock")]);
                        let _ = reload.stdout(Stdio::null()).stderr(Stdio::null()).spawn().map(|mut child| {
                            pause(&mut case.random, Duration::from_millis(20));
                            // The order may still be under way when the server is killed.
                            std::thread::spawn(move || child.wait())
                        });
                    }
                    1 => server.signal("USR1"),
                    _ => pause(&mut case.random, Duration::from_millis(30)),
                }
            }
            server.signal("KILL");
            is_over.store(true, Ordering::Relaxed);
        });
        drop(server);
        Ok(())
    });
    kills += trial.tries();
    // The next server ends the line that was torn last.
    drop(TestServer::run_from(&config));
    check_lines(trial, &directory.path().join("access.log"), kills, |line| {
        line.starts_with("127.0.0.1 - - [") && line.ends_with("\"-\" \"-\"") && line.matches("\"GET ").count() == 1
    });
    check_lines(trial, &directory.path().join("access.json"), kills, |line| {
        serde_json::from_str::<serde_json::Value>(line).is_ok_and(|line| line.is_object())
    });
    check_left(trial, directory.path());
    Ok(format!("{kills} kills, {} requests", requests.into_inner()))
}

fn page(number: u64) -> String {
    format!("page {number} {}", "x".repeat(1_000 * number as usize))
}

fn get(address: SocketAddr, path: &str) -> String {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"))
}

/// Asks until `is_over` or the server is gone; returns how often.
fn load(address: SocketAddr, is_over: &AtomicBool) -> u64 {
    let Ok(mut raw) = Raw::connect(address) else { return 0 };
    let requests = "GET /1.txt HTTP/1.1\r\nHost: h\r\n\r\n".repeat(PIPELINED);
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) && !raw.is_closed {
        raw.send(requests.as_bytes());
        count += PIPELINED as u64;
        raw.read(Duration::from_millis(20), |received| received.len() > PIPELINED * 1_000);
        raw.received.clear();
    }
    count
}

/// All lines of a log are whole but one for each kill, and the last one ends.
fn check_lines(trial: &Trial, log: &Path, kills: u64, is_whole: impl Fn(&str) -> bool) {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let torn: Vec<&str> = text.lines().filter(|line| !is_whole(line)).collect();
    trial.expect(text.is_empty() || text.ends_with('\n'), || format!("{} ends within a line", log.display()));
    trial.expect(torn.len() as u64 <= kills, || {
        format!("{} has {} lines that are not whole after {kills} kills: {:?}", log.display(), torn.len(), torn[0])
    });
    trial.expect(text.lines().count() > 0, || format!("{} has no lines", log.display()));
}

/// No half-written file is left.
fn check_left(trial: &Trial, directory: &Path) {
    let entries = std::fs::read_dir(directory).expect("it can be read").flatten();
    let left: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    trial.expect(!left.iter().any(|name| name.contains("new") || name.contains("tmp")), || {
        format!("left over: {left:?}")
    });
}

/// Kills a server while it makes its certificate. The next one must start, with a pair that fits together.
fn state(trial: &Trial) -> Result<String, Skipped> {
    let site = tempfile::tempdir().expect("a directory");
    std::fs::write(site.path().join("index.html"), "home").expect("it can be written");
    trial.run(2, |case| {
        let state = tempfile::tempdir().map_err(|error| error.to_string())?;
        let serve = || {
            let mut command = tailcoat();
            command.args(["serve", "--tls", "--workers", "1", "--listen", "127.0.0.1:0"]).arg(site.path());
            command.env("STATE_DIRECTORY", state.path());
            command
        };
        for _ in 0..case.random.usize(1..4) {
            let mut command = serve();
            let mut child = command
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .map_err(|error| format!("the server does not start: {error}"))?;
            pause(&mut case.random, Duration::from_millis(120));
            let _ = child.kill();
            let _ = child.wait();
        }
        let server = TestServer::start(serve());
        let address = server.address.to_string();
        let output = Command::new("curl")
            .args([
                "--silent",
                "--insecure",
                "--max-time",
                &PATIENCE.as_secs().to_string(),
                &format!("https://{address}/"),
            ])
            .output();
        match output {
            Ok(output) if output.stdout == b"home" => Ok(()),
            Ok(output) => Err(format!("curl got {:?}, {}", String::from_utf8_lossy(&output.stdout), output.status)),
            // Without curl, that it listens has to do.
            Err(_) => Ok(()),
        }
    });
    Ok("certificates in a state directory".into())
}
