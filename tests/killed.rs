//! kill -9 at any time: the next server finds no half-written file, and nothing that prevents its start.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::support::waiting::eventually;
use crate::support::{TestServer, tailcoat};

/// Number of kills.
const KILLS: u64 = 12;

#[test]
fn a_server_that_is_killed_leaves_whole_lines_and_can_be_started_again() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(
        at("tailcoat.kdl"),
        format!(
            "server {{ workers 2; control-socket \"{0}/control.sock\"; access-log-flush-interval \"1ms\" }}\n\
             access-log \"{0}/access.log\"\n\
             site {{ listen \"127.0.0.1:0\" \"unix:{0}/site.sock\"; respond \"/*\" 200 \"hello\" }}\n",
            directory.path().display()
        ),
    )
    .unwrap();
    for kill in 0..KILLS {
        let server = TestServer::run_from(&at("tailcoat.kdl"));
        let stop = Arc::new(AtomicBool::new(false));
        let (address, stopping) = (server.address, Arc::clone(&stop));
        let sent = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&sent);
        let load = std::thread::spawn(move || load(address, &stopping, &counted));
        // Kills at different moments of the load.
        eventually("requests are sent", || sent.load(Ordering::Relaxed) > 400 + 60 * kill);
        let status = tailcoat().args(["status", "--json", "--socket"]).arg(at("control.sock")).output().unwrap();
        assert!(status.status.success(), "the socket that the last one left is replaced");
        let killed = Command::new("kill").arg("-KILL").arg(server.id().to_string()).status().unwrap();
        assert!(killed.success());
        drop(server);
        stop.store(true, Ordering::Relaxed);
        load.join().unwrap();
    }
    // The end of the last line may be missing until another server starts.
    drop(TestServer::run_from(&at("tailcoat.kdl")));
    let log = std::fs::read_to_string(at("access.log")).unwrap();
    let torn = log.lines().filter(|line| !is_whole(line)).count() as u64;
    assert!(log.ends_with('\n') && torn <= KILLS, "{torn} lines are not whole");
    assert!(log.lines().filter(|line| is_whole(line)).count() > 100);
    // Each line is one record: no torn line contains the next.
    assert!(log.lines().all(|line| line.matches("\"GET ").count() <= 1));
    let mut left: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("new")), "{left:?}");
}

fn is_whole(line: &str) -> bool {
    line.starts_with("127.0.0.1 - - [") && line.ends_with("\"-\" \"-\"")
}

/// Sends requests until it is stopped or the server is gone, and counts them.
fn load(address: SocketAddr, stop: &AtomicBool, count: &AtomicU64) {
    let Ok(mut stream) = TcpStream::connect(address) else { return };
    let (requests, mut buffer) = ("GET /a HTTP/1.1\r\nHost: h\r\n\r\n".repeat(20), vec![0; 64 << 10]);
    while !stop.load(Ordering::Relaxed) && stream.write_all(requests.as_bytes()).is_ok() {
        count.fetch_add(20, Ordering::Relaxed);
        // Responses that stay unread would fill the socket's buffer.
        if !matches!(stream.read(&mut buffer), Ok(1..)) {
            return;
        }
    }
}
