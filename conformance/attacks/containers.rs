//! A control group with little memory: what clients make the server hold must not get it killed.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::frames;
use crate::raw::{Raw, ask};
use crate::slow::amplification;
use crate::support::scarce::LittleMemory;
use crate::support::{TestServer, site_with_large_file, tailcoat};
use crate::trial::{Attack, Skipped, Trial};

pub(crate) const ATTACKS: [Attack; 2] = [
    Attack { name: "containers/amplification", run: |trial| fill(trial, amplify) },
    Attack { name: "containers/heads", run: |trial| fill(trial, begin_head) },
];

/// Memory of the control group.
const MEMORY_BYTES: u64 = 384 << 20;

/// Connections of the attack that had the server killed (issue 17, defect 1).
const CONNECTIONS: u64 = 400;

/// Streams of each, which a debug build takes some milliseconds to work on.
const STREAMS: u32 = 100;

/// Streams of each in a short run.
const STREAMS_SHORT: u32 = 30;

/// Time until a server must have worked on all streams and serve a new client.
const SERVING_TIME: Duration = Duration::from_secs(120);

type Connect = fn(&Trial, SocketAddr, &mut Rng) -> Result<TcpStream, String>;

/// No window, so that every response waits.
fn amplify(trial: &Trial, address: SocketAddr, random: &mut Rng) -> Result<TcpStream, String> {
    let mut raw = frames::connect(address, &[0, 4, 0, 0, 0, 0])?;
    let streams = if trial.time() < Duration::from_secs(5) { STREAMS_SHORT } else { STREAMS };
    raw.send(&amplification(streams, random));
    Ok(raw.socket)
}

fn begin_head(_trial: &Trial, address: SocketAddr, random: &mut Rng) -> Result<TcpStream, String> {
    let mut raw = Raw::connect(address)?;
    let filler = "x".repeat(random.usize(8_000..16_000));
    raw.send(format!("GET /large HTTP/1.1\r\nHost: h\r\nX: {filler}").as_bytes());
    Ok(raw.socket)
}

/// Opens connections and holds them. The server must live and serve others.
fn fill(trial: &Trial, connect: Connect) -> Result<String, Skipped> {
    let Some(group) = LittleMemory::new(MEMORY_BYTES) else {
        return Err(Skipped("control groups cannot be made here; run it as root".into()));
    };
    let site = site_with_large_file();
    let (config, at) = (site.path().join("tailcoat.kdl"), site.path().display());
    let text = format!(
        "server {{ workers 2 }}\nsite {{\n listen \"127.0.0.1:0\"\n root \"{at}\"\n respond \"/fixed\" 200 \"fixed\"\n \
         access-log \"{at}/log\" format=\"combined\"\n}}\n"
    );
    std::fs::write(&config, text).expect("it can be written");
    let mut command = tailcoat();
    command.arg("run").arg("-c").arg(&config);
    group.run_inside(&mut command);
    let server = TestServer::start(command);
    let (mut held, mut random) = (Vec::new(), trial.random(0));
    for number in 0..CONNECTIONS {
        match connect(trial, server.address, &mut random) {
            Ok(socket) => held.push(socket),
            Err(error) => trial.find(None, format!("connection {number}: {error}")),
        }
    }
    trial.count(CONNECTIONS);
    let began = Instant::now();
    let is_served = || {
        ask(server.address, "GET /fixed HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 200 ")
    };
    while !is_served() && began.elapsed() < SERVING_TIME {}
    let served_after = began.elapsed();
    let is_running = Path::new(&format!("/proc/{}/smaps_rollup", server.id())).exists();
    let kills = group.kills().unwrap_or(0);
    trial.expect(is_running && kills == 0, || format!("the kernel killed {kills} processes for lack of memory"));
    let memory_mib = server.memory_kib() >> 10;
    trial.expect_healthy(&server, "/fixed");
    drop(held);
    // The group can only be removed when it is empty.
    drop(server);
    Ok(format!(
        "{memory_mib} MiB of {} MiB with {CONNECTIONS} connections; a new client served after {served_after:.1?}",
        MEMORY_BYTES >> 20
    ))
}
