//! RLIMIT_NOFILE: a server whose clients take all file descriptors stays, and serves again when they are free.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::raw::{PATIENCE, ask};
use crate::support::upstream::ScriptStep::{Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::waiting::within;
use crate::support::{TestServer, tailcoat};
use crate::trial::{Attack, AttackCase, Skipped, Trial, pause};

pub(crate) const ATTACKS: [Attack; 1] = [Attack { name: "descriptors/limit", run: limit }];

/// Time until a server must serve as before.
const RECOVERY_TIME: Duration = Duration::from_secs(15);

/// Servers with random limits, and clients that hold more than these, each in another way.
fn limit(trial: &Trial) -> Result<String, Skipped> {
    let site = tempfile::tempdir().expect("a directory");
    for number in 0..40 {
        // Larger than what is kept in memory, so that each is a file descriptor while it is sent.
        std::fs::write(site.path().join(format!("{number}.bin")), vec![b'x'; 4 << 20]).expect("it can be written");
    }
    let reply = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nthere";
    let upstream = ScriptedUpstream::start(vec![vec![Await("\r\n\r\n"), Say(reply)]]);
    let mut slowest = Duration::ZERO;
    while let Some(mut case) = trial.next_case() {
        let descriptors = case.random.u32(40..200);
        let config = site.path().join("tailcoat.kdl");
        let text = format!(
            "server {{ workers 2 }}\nsite {{\n listen \"127.0.0.1:0\"\n root \"{}\"\n respond \"/fixed\" 200 \"fixed\"\n \
             forward \"http://{}\" path=\"/app\"\n}}\n",
            site.path().display(),
            upstream.address
        );
        std::fs::write(&config, text).expect("it can be written");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {descriptors}; exec \"$@\""), "sh"]);
        command.arg(tailcoat().get_program()).arg("run").arg("-c").arg(&config);
        let server = TestServer::start(command);
        for _ in 0..case.random.usize(1..4) {
            let held: Vec<TcpStream> =
                (0..case.random.usize(20..300)).filter_map(|_| hold(&server, &mut case)).collect();
            pause(&mut case.random, Duration::from_millis(100));
            drop(held);
        }
        match recover(&server) {
            Ok(time) => slowest = slowest.max(time),
            Err(text) => trial.find(Some(case.number), format!("with {descriptors} file descriptors: {text}")),
        }
        trial.expect_healthy(&server, "/fixed");
    }
    Ok(format!("serves again after {slowest:.1?} at most"))
}

/// A client that takes a file descriptor, and more for what it asks for.
fn hold(server: &TestServer, case: &mut AttackCase) -> Option<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&server.address, Duration::from_millis(300)).ok()?;
    let file = case.random.u8(0..40);
    let request = match case.random.u8(0..5) {
        0 => String::new(),
        1 => "GET / HTTP/1.1\r\nHost: ".into(),
        2 => format!("GET /{file}.bin HTTP/1.1\r\nHost: h\r\n\r\n"),
        3 => "GET /app HTTP/1.1\r\nHost: h\r\n\r\n".into(),
        _ => "POST /app HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\nx".into(),
    };
    // The server may have closed it.
    let _ = stream.write_all(request.as_bytes());
    Some(stream)
}

/// Time until files, upstream and fixed responses are served.
fn recover(server: &TestServer) -> Result<Duration, String> {
    let start = Instant::now();
    let get = |path: &str| ask(server.address, &format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
    let mut answers = Default::default();
    let recovered = within(RECOVERY_TIME.min(PATIENCE), || {
        answers = ["/fixed", "/app", "/7.bin"].map(get);
        let are_right = answers.iter().all(|answer| answer.starts_with("HTTP/1.1 200 "));
        (are_right && answers[2].len() > 4 << 20).then(|| start.elapsed())
    });
    recovered.ok_or_else(|| {
        let heads = answers.map(|answer| answer.chars().take(200).collect::<String>());
        format!("still not served after {RECOVERY_TIME:?}: {heads:?}")
    })
}
