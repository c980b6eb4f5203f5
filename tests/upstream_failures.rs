//! Upstreams that are killed, restarted, or close their connections under load. No client sees an error if its requests
//! can be repeated (RFC 9110, section 9.2.2).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::support::real_server::{RealServer, Recipe};
use crate::support::waiting::eventually;
use crate::support::{PATIENCE, TestServer};

/// Recipe of nginx in this mode; without a master, killing it leaves no workers.
macro_rules! nginx {
    ($mode:literal) => {
        Recipe {
            needs: &["nginx"],
            files: &[(
                "nginx.conf",
                concat!(
                    "daemon off; ",
                    $mode,
                    " worker_processes 1; pid @DIR@/pid; error_log @DIR@/log; events { }\n\
                     http { access_log off; client_body_temp_path @DIR@/body; proxy_temp_path @DIR@/proxy;\n\
                     fastcgi_temp_path @DIR@/f; uwsgi_temp_path @DIR@/u; scgi_temp_path @DIR@/s; keepalive_requests 50;\n\
                     server { listen 127.0.0.1:@PORT@; root @DIR@/root; } }\n"
                ),
            ),
            ("root/file", FILE)],
            command: &["nginx", "-c", "@DIR@/nginx.conf"],
            environment: &[],
        }
    };
}

const APACHE: Recipe<'_> = Recipe {
    needs: &["apache2"],
    files: &[
        (
            "apache.conf",
            "ServerRoot /usr/lib/apache2\nPidFile @DIR@/pid\nDefaultRuntimeDir @DIR@\nServerName localhost\n\
             Listen 127.0.0.1:@PORT@\nErrorLog @DIR@/log\nDocumentRoot @DIR@/root\nStartServers 1\n\
             MaxKeepAliveRequests 50\nLoadModule mpm_event_module modules/mod_mpm_event.so\n\
             LoadModule authz_core_module modules/mod_authz_core.so\n<Directory @DIR@>\nRequire all granted\n</Directory>\n",
        ),
        ("root/file", FILE),
    ],
    command: &["apache2", "-f", "@DIR@/apache.conf", "-DFOREGROUND"],
    environment: &[],
};

const FILE: &str = "the content of the file\n";

/// Number of kills. Also run with 20.
const KILLS: u32 = 4;

fn front(upstreams: &[SocketAddr]) -> TestServer {
    let servers: String = upstreams.iter().map(|address| format!(" server \"http://{address}\"\n")).collect();
    TestServer::run(&format!(
        "upstream \"u\" {{\n{servers}}}\nsite {{\n listen \"127.0.0.1:0\"\n forward \"u\"\n}}\nserver {{ workers 1 }}\n"
    ))
}

/// Runs clients that repeat requests during `disturb`; returns the number of good responses, and the errors.
fn under_load(server: &TestServer, disturb: impl FnOnce(&AtomicU64)) -> (u64, Vec<String>) {
    const CLIENTS: usize = 8;
    let (is_over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let errors = std::thread::scope(|scope| {
        let client = || {
            let mut errors = Vec::new();
            let mut stream = server.connect();
            while !is_over.load(Ordering::Relaxed) {
                match ask(&mut stream) {
                    Ok(()) => {
                        answers.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => {
                        errors.push(error);
                        stream = server.connect();
                    }
                }
            }
            errors
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        disturb(&answers);
        is_over.store(true, Ordering::Relaxed);
        clients.into_iter().flat_map(|client| client.join().expect("no client panics")).collect()
    });
    (answers.into_inner(), errors)
}

/// Waits for this many more responses.
#[track_caller]
fn await_answers(answers: &AtomicU64, more: u64) {
    let wanted = answers.load(Ordering::Relaxed) + more;
    eventually("clients are answered", || answers.load(Ordering::Relaxed) >= wanted);
}

/// Requests the file on a kept connection.
fn ask(stream: &mut TcpStream) -> Result<(), String> {
    stream.write_all(b"GET /file HTTP/1.1\r\nHost: h\r\n\r\n").map_err(|error| error.to_string())?;
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    while !(text.starts_with("HTTP/1.1 200 ") && text.ends_with(FILE)) {
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => text.push_str(&String::from_utf8_lossy(&buffer[..count])),
            end => return Err(format!("{end:?} after {text}")),
        }
        if text.contains("\r\n\r\n") && !text.starts_with("HTTP/1.1 200 ") {
            return Err(text);
        }
    }
    Ok(())
}

fn assert_undisturbed((answers, errors): (u64, Vec<String>), name: &str) {
    println!("{name}: {answers} answers, {} errors", errors.len());
    assert!(answers > 100 && errors.is_empty(), "{name}: {answers} answers and {} errors: {errors:?}", errors.len());
}

#[test]
fn killed_and_started_again() {
    const NGINX: Recipe<'_> = nginx!("master_process off;");
    let Some(mut one) = RealServer::start(&NGINX) else { return };
    let Some(mut other) = RealServer::start(&NGINX) else { return };
    let server = front(&[one.address, other.address]);
    let seen = under_load(&server, |answers| {
        for kill in 0..KILLS {
            await_answers(answers, 200);
            let killed = if kill % 2 == 0 { &mut one } else { &mut other };
            killed.kill();
            await_answers(answers, 300);
            killed.restart(&NGINX);
        }
        await_answers(answers, 200);
    });
    assert_undisturbed(seen, "killed");
}

#[test]
fn restarted_gracefully() {
    for (name, signal, recipe) in [("nginx", "HUP", nginx!("")), ("Apache", "USR1", APACHE)] {
        let Some(upstream) = RealServer::start(&recipe) else { continue };
        let server = front(&[upstream.address]);
        let seen = under_load(&server, |answers| {
            for _ in 0..4 {
                await_answers(answers, 300);
                upstream.signal(signal);
            }
            await_answers(answers, 300);
        });
        assert_undisturbed(seen, name);
    }
}

/// Upstream that closes each connection some time after a response, unannounced.
fn fickle(seed: u64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{FILE}", FILE.len());
    std::thread::spawn(move || {
        for (index, stream) in listener.incoming().flatten().enumerate() {
            let (mut stream, answer) = (stream, answer.clone());
            let mut random = fastrand::Rng::with_seed(seed + index as u64);
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                stream.set_read_timeout(Some(PATIENCE)).expect("a socket has a read time-out");
                for _ in 0..random.u32(1..20) {
                    if !matches!(stream.read(&mut buffer), Ok(1..)) || stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
                // Sometimes the next request is unread, so that we see a reset.
                std::thread::sleep(Duration::from_micros(random.u64(0..500)));
            });
        }
    });
    address
}

#[test]
fn connections_that_are_closed_at_any_time() {
    let server = front(&[fickle(1)]);
    assert_undisturbed(under_load(&server, |answers| await_answers(answers, 2_000)), "closed at any time");
}
