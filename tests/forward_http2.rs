//! HTTP/2 upstreams: shared connections, rejected streams, resets, windows, timeouts; and hostile ones.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::h2::H2Client;
use crate::support::h2_upstream::{END_HEADERS, END_STREAM, H2Upstream, RawFrame, RawPeer, block, kind};
use crate::support::real_server::{RealServer, Recipe};
use crate::support::waiting::{eventually, lines_of};
use crate::support::{PATIENCE, TestServer, ask};
use wire::h2::ErrorCode;

/// Server in front of this upstream, with options of the upstream.
fn front(upstream: &H2Upstream, options: &str) -> TestServer {
    of_address(upstream.address, options)
}

fn of_address(address: SocketAddr, options: &str) -> TestServer {
    TestServer::run(&format!(
        "upstream \"u\" {{\n server \"h2c://{address}\"\n fail-max 0\n {options}\n}}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"u\"\n}}\nserver {{ workers 1 }}\n"
    ))
}

/// Sends a GET request over HTTP/1.1.
fn get(server: &TestServer) -> String {
    ask(server, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
}

const NGHTTPD: Recipe<'_> = Recipe {
    needs: &["nghttpd"],
    files: &[("root/large.txt", "")],
    command: &["nghttpd", "--no-tls", "--address=127.0.0.1", "--htdocs=@DIR@/root", "@PORT@"],
    environment: &[],
};

const NGINX: Recipe<'_> = Recipe {
    needs: &["nginx"],
    files: &[
        (
            "nginx.conf",
            "daemon off; worker_processes 1; pid @DIR@/pid; error_log @DIR@/log; events { }\n\
             http { access_log off; client_body_temp_path @DIR@/body; proxy_temp_path @DIR@/proxy;\n\
             fastcgi_temp_path @DIR@/f; uwsgi_temp_path @DIR@/u; scgi_temp_path @DIR@/s;\n\
             server { listen 127.0.0.1:@PORT@ http2; root @DIR@/root; } }\n",
        ),
        ("root/large.txt", ""),
    ],
    command: &["nginx", "-c", "@DIR@/nginx.conf"],
    environment: &[],
};

const HYPERCORN: Recipe<'_> = Recipe {
    needs: &["/usr/bin/python3", "/usr/lib/python3/dist-packages/hypercorn"],
    files: &[("application.py", include_str!("applications/application.py"))],
    command: &["/usr/bin/python3", "-m", "hypercorn", "--bind", "127.0.0.1:@PORT@", "application:application"],
    environment: &[("PYTHONPATH", "@DIR@")],
};

#[test]
fn servers_that_others_have_made() {
    let large: String = (0..200_000).map(|number| format!("line {number}\n")).collect();
    for (recipe, name) in [(&NGHTTPD, "nghttpd"), (&NGINX, "nginx")] {
        let Some(server) = RealServer::start(recipe) else { continue };
        std::fs::write(server.directory().join("root/large.txt"), &large).unwrap();
        let front = of_address(server.address, "");
        let mut client = H2Client::connect(&front);
        for _ in 0..3 {
            let streams: Vec<_> = (0..8).map(|_| client.ask("GET", "/large.txt", &[], true)).collect();
            for stream in streams {
                assert!(client.finish(stream).content == large.as_bytes(), "{name}");
            }
        }
        assert_eq!(client.get("/nothing").status(), 404, "{name}");
    }
    let Some(server) = RealServer::start(&HYPERCORN) else { return };
    let front = of_address(server.address, "");
    let mut client = H2Client::connect(&front);
    let stream = client.ask("POST", "/a?b", &[("x-a", "1")], false);
    client.send(stream, &[b'c'; 200_000], true);
    let said = client.finish(stream);
    let text = String::from_utf8_lossy(&said.content).into_owned();
    assert!(said.status() == 200 && text.contains("POST") && text.contains("/a?b"), "{text}");
    let streamed = client.get("/a?do=stream");
    assert!(streamed.status() == 200 && streamed.content.ends_with(b"piece 4\n"), "{streamed:?}");
    assert_eq!(client.get("/a?do=empty").status(), 204);
    assert_eq!(client.get("/a?do=error").status(), 503);
}

#[test]
fn requests_share_connections() {
    // Concurrent streams per connection by the upstream's settings and by our option, and the connections opened for 30
    // requests.
    for (settings, options, expect) in [
        (&[][..], "", 1..=1),
        (&[(3, 10)], "", 3..=3),
        (&[], "streams-per-connection-max 10", 3..=3),
        (&[], "requests-per-connection-max 15", 2..=2),
    ] {
        let upstream = H2Upstream::start(move |_, peer| {
            peer.greet(settings);
            let mut waiting = Vec::new();
            while let Some(stream) = peer.await_request() {
                waiting.push(stream);
                // Silence: the proxy opens as many streams as it may before the first one ends.
                if stream == 1 {
                    std::thread::sleep(Duration::from_millis(100));
                }
                waiting.drain(..).for_each(|stream| peer.answer(stream, b"x"));
            }
        });
        let server = front(&upstream, options);
        let mut client = H2Client::connect(&server);
        // The first response carries the upstream's settings.
        assert_eq!(client.get("/").content, b"x");
        let streams: Vec<_> = (1..30).map(|_| client.ask("GET", "/", &[], true)).collect();
        for stream in streams {
            assert_eq!(client.finish(stream).content, b"x");
        }
        let connections = upstream.connections();
        assert!(connections == *expect.start() || connections <= *expect.end() + 1, "{options}: {connections}");
    }
}

#[test]
fn requests_that_were_not_looked_at_are_sent_again() {
    // Any method may be retried, because the upstream processed nothing.
    for method in ["GET", "POST"] {
        for rejection in ["reset", "goaway"] {
            let rejected = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&rejected);
            let upstream = H2Upstream::start(move |number, peer| {
                peer.greet(&[]);
                while let Some(stream) = peer.await_request() {
                    if number > 0 || stream > 1 {
                        peer.answer(stream, b"answered");
                        continue;
                    }
                    counted.fetch_add(1, Ordering::SeqCst);
                    match rejection {
                        "reset" => peer.write(kind::RST_STREAM, 0, stream, &7_u32.to_be_bytes()),
                        _ => peer.write(kind::GOAWAY, 0, 0, &[0; 8]),
                    };
                }
            });
            let server = front(&upstream, "");
            let answer = ask(&server, &format!("{method} / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
            assert!(answer.contains(" 200 ") && answer.ends_with("answered"), "{method}, {rejection}: {answer}");
            assert_eq!(rejected.load(Ordering::SeqCst), 1);
        }
    }
    // Retries are limited.
    let upstream = H2Upstream::start(|_, peer| {
        peer.greet(&[]);
        while let Some(stream) = peer.await_request() {
            peer.write(kind::RST_STREAM, 0, stream, &7_u32.to_be_bytes());
        }
    });
    assert!(get(&front(&upstream, "")).contains(" 502 "));
}

#[test]
fn what_is_in_progress_outlives_a_goaway() {
    let (sender, ended) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let upstream = H2Upstream::start(move |number, peer| {
        peer.greet(&[]);
        let (Some(first), 0) = (peer.await_request(), number) else { return };
        peer.head(first, 200, false);
        peer.write(kind::GOAWAY, 0, 0, &[first.to_be_bytes(), [0; 4]].concat());
        // The reply to a ping shows that the GOAWAY has been read.
        peer.write(kind::PING, 0, 0, &[0; 8]);
        let frames = std::iter::from_fn(|| peer.read()).take_while(|frame| frame.kind != kind::PING);
        frames.for_each(|frame| assert_ne!(frame.kind, kind::HEADERS, "a request after GOAWAY"));
        peer.data(first, b"late", true);
        // No further request arrives, and the connection closes.
        sender.lock().unwrap().send(peer.await_request().is_none()).unwrap();
    });
    let server = front(&upstream, "");
    assert!(get(&server).contains("late"));
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(true));
}

#[test]
fn closed_connections_are_no_fault_of_requests() {
    let upstream = H2Upstream::start(|_, peer| {
        peer.greet(&[]);
        let stream = peer.await_request().expect("there is one");
        peer.answer(stream, b"once");
        // Later frames find it closed.
    });
    let server = front(&upstream, "");
    for _ in 0..5 {
        assert!(get(&server).ends_with("once"));
    }
}

#[test]
fn resets_are_reported_to_the_other_side() {
    let (sender, resets) = std::sync::mpsc::channel();
    let (begun, uploads) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new((sender, begun));
    let upstream = H2Upstream::start(move |_, peer| {
        peer.greet(&[]);
        while let Some(frame) = peer.read() {
            match frame {
                RawFrame { kind: kind::HEADERS, stream, flags, .. } if flags & END_STREAM != 0 => {
                    peer.head(stream, 200, false);
                    peer.data(stream, b"beginning", false);
                    peer.write(kind::RST_STREAM, 0, stream, &2_u32.to_be_bytes());
                }
                RawFrame { kind: kind::RST_STREAM, payload, .. } => {
                    sender.lock().unwrap().0.send(payload).unwrap();
                }
                RawFrame { kind: kind::DATA, .. } => sender.lock().unwrap().1.send(()).unwrap(),
                _ => {}
            }
        }
    });
    let server = front(&upstream, "");
    let mut client = H2Client::connect(&server);
    let stream = client.ask("GET", "/", &[], true);
    let answer = client.finish(stream);
    assert!(answer.reset.is_some() && !answer.is_complete, "{answer:?}");
    let answer = get(&server);
    assert!(answer.contains(" 200 ") && !answer.ends_with("0\r\n\r\n"), "{answer}");
    // And from the client to the upstream.
    let stream = client.ask("POST", "/", &[], false);
    client.send(stream, b"begun", false);
    uploads.recv_timeout(PATIENCE).unwrap();
    client.turn(|engine, turn| engine.reset(stream, ErrorCode::CANCEL, turn));
    client.flush();
    assert_eq!(resets.recv_timeout(PATIENCE).unwrap(), 8_u32.to_be_bytes());
}

/// Sends content as the windows permit; returns the number of bytes.
fn fill(peer: &mut RawPeer, stream: u32, window: &mut i64) -> usize {
    let mut sent = 0;
    while *window > 0 {
        let length = (*window).min(16_384);
        if !peer.data(stream, &vec![b'x'; length as usize], false) {
            break;
        }
        *window -= length;
        sent += length as usize;
    }
    sent
}

#[test]
fn a_slow_client_delays_no_other_and_costs_a_window() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let upstream = H2Upstream::start(move |_, peer| {
        peer.greet(&[]);
        let (mut large, mut window) = (0, 65_535);
        while let Some(frame) = peer.read() {
            match frame.kind {
                kind::HEADERS if large == 0 => {
                    large = frame.stream;
                    peer.head(large, 200, false);
                    counted.fetch_add(fill(peer, large, &mut window), Ordering::SeqCst);
                }
                kind::HEADERS => peer.answer(frame.stream, &[b'y'; 10_000]),
                kind::WINDOW_UPDATE if frame.stream == large && large > 0 => {
                    window += i64::from(u32::from_be_bytes(frame.payload[..4].try_into().unwrap()));
                    counted.fetch_add(fill(peer, large, &mut window), Ordering::SeqCst);
                }
                _ => {}
            }
        }
    });
    let server = front(&upstream, "");
    let mut slow = H2Client::connect(&server);
    slow.takes = false;
    let stream = slow.ask("GET", "/", &[], true);
    slow.wait(|client| client.answers[&stream].content.len() >= 60_000);
    let mut quick = H2Client::connect(&server);
    let mut ask_often = || (0..150).for_each(|_| assert_eq!(quick.get("/").content.len(), 10_000));
    // The upstream has handled all window updates that came before a request. So it sends no more in the end.
    ask_often();
    let sent_before = sent.load(Ordering::SeqCst);
    // Sum of the client's window, the sockets' buffers, and one window of ours.
    assert!(sent_before < 1 << 20, "{sent_before}");
    ask_often();
    assert_eq!((sent.load(Ordering::SeqCst), upstream.connections()), (sent_before, 1));
}

#[test]
fn content_is_sent_as_the_server_takes_it() {
    let upstream = H2Upstream::start(|_, peer| {
        peer.greet(&[(4, 1_000)]);
        let (mut received, mut open) = (0, 0);
        while let Some(frame) = peer.read() {
            match frame.kind {
                kind::HEADERS => open = frame.stream,
                kind::DATA => {
                    received += frame.payload.len();
                    assert!(received <= 100_000);
                    if frame.flags & END_STREAM != 0 {
                        peer.answer(open, received.to_string().as_bytes());
                    } else {
                        let more = (frame.payload.len() as u32).to_be_bytes();
                        peer.write(kind::WINDOW_UPDATE, 0, open, &more);
                        peer.write(kind::WINDOW_UPDATE, 0, 0, &more);
                    }
                }
                _ => {}
            }
        }
    });
    let server = front(&upstream, "");
    let content = "u".repeat(100_000);
    let request = format!("POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n{content}");
    assert!(ask(&server, &request).ends_with("100000"));
}

#[test]
fn silence_has_its_time() {
    let upstream = H2Upstream::start(|number, peer| {
        peer.greet(&[]);
        let Some(stream) = peer.await_request() else { return };
        match number {
            // The first connection sends nothing at all, later ones nothing after the head.
            0 => {}
            _ => {
                peer.head(stream, 200, false);
                return peer.answer_all(b"well");
            }
        }
        while peer.read().is_some() {}
    });
    // Each request has the limit that it reaches, so that a slow upstream reaches no other.
    let server = TestServer::run(&format!(
        "upstream \"u\" {{\n server \"h2c://{}\"\n fail-max 0\n}}\nserver {{ workers 1 }}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"u\" path=\"/first\" {{ first-byte-timeout \"300ms\" }}\n \
         forward \"u\" path=\"/between\" {{ between-bytes-timeout \"300ms\" }}\n forward \"u\"\n}}\n",
        upstream.address
    ));
    let get = |path: &str| ask(&server, &format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
    assert!(get("/first").contains(" 504 "));
    // A silent connection is abandoned, a live one is not.
    let answer = get("/between");
    assert!(answer.contains(" 200 ") && !answer.ends_with("0\r\n\r\n"), "{answer}");
    assert!(get("/").ends_with("well"));
    assert_eq!(upstream.connections(), 2);
}

/// Attacks and mistakes of an upstream; the flag says whether the connection ends, or only the stream.
#[test]
fn hostile_servers() {
    type UpstreamAttack = fn(&mut RawPeer, u32);
    let attacks: &[(&str, bool, UpstreamAttack)] = &[
        ("HTTP/1.1 instead", true, |peer, _| {
            peer.write_raw(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }),
        ("PING flood (CVE-2019-9512)", true, |peer, _| {
            (0..100_000).all(|_| peer.write(kind::PING, 0, 0, &[0; 8]));
        }),
        ("SETTINGS flood (CVE-2019-9515)", true, |peer, _| {
            (0..100_000).all(|_| peer.write(kind::SETTINGS, 0, 0, &[]));
        }),
        ("empty frames (CVE-2019-9518)", true, |peer, stream| {
            peer.head(stream, 200, false);
            (0..100_000).all(|_| peer.data(stream, b"", false));
        }),
        ("CONTINUATION flood (CVE-2024-27316)", true, |peer, stream| {
            peer.write(kind::HEADERS, 0, stream, &block(&[(":status", "200")]));
            let piece = block(&[("x-filler", &"f".repeat(100))]).repeat(100);
            (0..10_000).all(|_| peer.write(kind::CONTINUATION, 0, stream, &piece));
        }),
        ("window update tricks", true, |peer, _| {
            (0..3).all(|_| peer.write(kind::WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes()));
        }),
        ("push", true, |peer, stream| {
            peer.write(kind::PUSH_PROMISE, END_HEADERS, stream, &[&2_u32.to_be_bytes()[..], &block(&[])].concat());
        }),
        ("a stream that was not opened", true, |peer, _| {
            peer.head(2, 200, true);
        }),
        ("an answer to what was not asked", true, |peer, stream| {
            peer.head(stream + 2, 200, true);
        }),
        ("a frame that is too large", true, |peer, stream| {
            peer.write(kind::DATA, 0, stream, &[0; 20_000]);
        }),
        ("a block that is none", true, |peer, stream| {
            peer.write(kind::HEADERS, END_HEADERS, stream, &[0xff; 30]);
        }),
        ("more content than there is room", true, |peer, stream| {
            peer.head(stream, 200, false);
            (0..20_000).all(|_| peer.data(stream, &[0; 16_384], false));
        }),
        ("a head that is too large", false, |peer, stream| {
            // HPACK bomb: an entry of 4 KiB that is referenced many times.
            let value = vec![b'v'; 3_900];
            let mut bomb = block(&[(":status", "200")]);
            bomb.extend([&[0x40, 1, b'x', 0x7f, 0xbd, 0x1d][..], &value].concat());
            bomb.extend([0xbe; 1_000]);
            peer.write(kind::HEADERS, END_HEADERS | END_STREAM, stream, &bomb);
        }),
        ("interim responses without end", false, |peer, stream| {
            (0..200).all(|_| peer.head(stream, 103, false));
        }),
        ("content before a head", false, |peer, stream| {
            peer.data(stream, b"x", true);
        }),
        ("no status", false, |peer, stream| {
            peer.write(kind::HEADERS, END_HEADERS | END_STREAM, stream, &block(&[("x-a", "1")]));
        }),
        ("101", false, |peer, stream| {
            peer.head(stream, 101, true);
        }),
        ("a name in capitals", false, |peer, stream| {
            peer.write(kind::HEADERS, END_HEADERS | END_STREAM, stream, &block(&[(":status", "200"), ("X-A", "1")]));
        }),
        ("a line break in a value", false, |peer, stream| {
            let fields = block(&[(":status", "200"), ("x-a", "1\r\nx-b: 2")]);
            peer.write(kind::HEADERS, END_HEADERS | END_STREAM, stream, &fields);
        }),
        ("less content than promised", false, |peer, stream| {
            let fields = block(&[(":status", "200"), ("content-length", "5")]);
            peer.write(kind::HEADERS, END_HEADERS | END_STREAM, stream, &fields);
        }),
    ];
    for (name, ends_connection, attack) in attacks {
        let (sender, ended) = std::sync::mpsc::channel();
        let sender = std::sync::Mutex::new(sender);
        let upstream = H2Upstream::start(move |number, peer| {
            peer.greet(&[]);
            if number > 0 {
                return peer.answer_all(b"well");
            }
            let Some(stream) = peer.await_request() else { return };
            attack(peer, stream);
            let mut is_reset = false;
            while let Some(frame) = peer.read() {
                is_reset |= frame.kind == kind::RST_STREAM;
                match frame.kind {
                    // Requests after an attack on one stream get their responses.
                    kind::HEADERS => peer.answer(frame.stream, b"well"),
                    kind::GOAWAY => break,
                    _ => {}
                }
            }
            // The connection ended, with or without GOAWAY.
            sender.lock().unwrap().send(is_reset).unwrap_or_default();
        });
        let server = front(&upstream, "tries-max 1");
        let answer = get(&server);
        let is_rejected = answer.contains(" 502 ") || !answer.contains("\r\n0\r\n\r\n") && answer.contains(" 200 ");
        assert!(is_rejected, "{name}: {answer:.200}");
        if *ends_connection {
            assert!(ended.recv_timeout(PATIENCE).is_ok(), "{name}: the connection goes on");
        }
        assert!(get(&server).ends_with("well"), "{name}: later requests get no response");
        assert_eq!(upstream.connections(), 1 + usize::from(*ends_connection), "{name}");
    }
}

#[test]
fn health_checks_and_logs() {
    let upstream = H2Upstream::start(|_, peer| {
        peer.greet(&[]);
        peer.answer_all(b"well");
    });
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let server = TestServer::run(&format!(
        "access-log \"{}\" format=\"json\"\nupstream \"u\" {{\n server \"h2c://{}\"\n health-check \"/\" interval=\"100ms\"\n}}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"u\"\n}}\nserver {{ workers 1 }}\n",
        log.display(),
        upstream.address
    ));
    eventually("health checks run", || upstream.connections() >= 3);
    assert!(get(&server).ends_with("well"));
    let line = &lines_of(&log, 1)[0];
    assert!(line.contains(&format!("h2c://{}", upstream.address)), "{line}");
    assert!(line.contains("\"upstream_status\":200"), "{line}");
}

#[test]
fn a_server_that_goes_down_is_checked_so() {
    let upstream = H2Upstream::start(|_, peer| {
        peer.greet(&[]);
        while let Some(stream) = peer.await_request() {
            peer.head(stream, 500, true);
        }
    });
    let server = TestServer::run(&format!(
        "upstream \"u\" {{\n server \"h2c://{}\"\n last-resort off\n health-check \"/\" interval=\"100ms\" fall=1\n}}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"u\"\n}}\nserver {{ workers 1 }}\n",
        upstream.address
    ));
    eventually("the upstream counts as down", || get(&server).contains(" 503 "));
    server.await_log("health checks failed: upstream=");
}
