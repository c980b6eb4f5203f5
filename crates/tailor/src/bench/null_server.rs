//! Server that answers at once, and what the client can do against it.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use wire::http::Fields;

use crate::engine::{
    self, ArrivalPace, ConnectionPersistence, LoadPlan, LoadVersion, RequestOrder, ResponseCheck, TargetAddress,
    Workload, WorkloadRequest,
};

/// Duration of a calibration, and of the load before it.
const DURATION: Duration = Duration::from_millis(300);
const WARM_UP: Duration = Duration::from_millis(50);
/// Maximum number of connections; more say nothing about the speed of the client.
const CONNECTIONS_MAX: usize = 512;
/// Interval for checking whether the server must stop.
const STOP_CHECK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const HEAD_END: &[u8; 4] = b"\r\n\r\n";

/// Result of a load on a server that answers at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Calibration {
    /// Responses served per second.
    pub(super) served_per_second: f64,
    /// 99th percentile of the delay between the due time of a request and its start; 0 in a closed loop.
    pub(super) lag_nanos: u64,
}

/// Loads a server that answers at once with the pace, the threads and the CPUs of a plan. Connections are HTTP/1 without
/// TLS, so the client is at least as fast as in the plan. Returns `None` if that is not possible.
pub(super) fn calibrate(plan: &LoadPlan, lag_quantile: f64) -> Option<Calibration> {
    let stop = Arc::new(AtomicBool::new(false));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").ok()?;
    listener.set_nonblocking(true).ok()?;
    let address = listener.local_addr().ok()?;
    let (flag, busy_cpus) = (Arc::clone(&stop), plan.processors.clone());
    let server = std::thread::Builder::new().name("null-server".to_owned()).spawn(move || {
        avoid(&busy_cpus);
        // An error ends the server, and then the calibration has no responses.
        let _ = serve(&listener, &flag);
    });
    let server = server.ok()?;
    let outcome = engine::start(null_plan(plan, address), Arc::default()).map(engine::RunningLoad::finish);
    stop.store(true, Ordering::Relaxed);
    let _ = server.join();
    let outcome = outcome.ok().filter(|outcome| outcome.record.served > 0)?;
    Some(Calibration {
        served_per_second: outcome.served_per_second(),
        lag_nanos: outcome.record.lag.value_at_quantile(lag_quantile),
    })
}

fn null_plan(plan: &LoadPlan, address: SocketAddr) -> LoadPlan {
    let mut fields = Fields::new();
    fields.push("Host", "localhost");
    let request = WorkloadRequest::new("GET", "/", &fields, b"", ResponseCheck::default());
    LoadPlan {
        address: TargetAddress::Tcp(address),
        tls: None,
        workload: Workload::new([request].into(), RequestOrder::InTurn),
        scenarios: None,
        web_socket: None,
        connections: plan.connections.min(CONNECTIONS_MAX).max(plan.threads),
        // Its highest rate is what the client must reach.
        pace: plan.profile().map_or_else(|| plan.pace.clone(), |profile| ArrivalPace::Constant(profile.rate_max())),
        duration: Some(DURATION),
        requests_max: None,
        warm_up: WARM_UP,
        ramp_up: Duration::ZERO,
        interval: DURATION,
        time_out: Duration::from_secs(1),
        persistence: ConnectionPersistence::default(),
        pipeline: if plan.version.has_streams() { 1 } else { plan.pipeline },
        version: LoadVersion::Http1,
        line: None,
        abort: None,
        sources: Vec::new(),
        has_fast_open: false,
        moves_after: None,
        is_tallied: false,
        ..plan.clone()
    }
}

/// Keeps the calling thread off the CPUs of the client, if there are others.
fn avoid(cpus: &[usize]) {
    let Ok(mut allowed) = rustix::thread::sched_getaffinity(None) else { return };
    cpus.iter().for_each(|&cpu| allowed.unset(cpu));
    if allowed.count() > 0 {
        // Without it the threads share a CPU, and the calibration shows a slower client.
        let _ = rustix::thread::sched_setaffinity(None, &allowed);
    }
}

/// Connection of the null server.
struct NullConnection {
    socket: OwnedFd,
    /// Number of bytes of [`HEAD_END`] at the end of the input so far.
    matched: usize,
}

fn serve(listener: &std::net::TcpListener, stop: &AtomicBool) -> rustix::io::Result<()> {
    use epoll::EventFlags as Flags;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, listener, epoll::EventData::new_u64(u64::MAX), Flags::IN)?;
    let mut connections: Vec<Option<NullConnection>> = Vec::new();
    let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 256];
    let mut input = vec![0; 64 << 10];
    let mut output = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let (ready, _) = match epoll::wait(&epoll, &mut events, Some(&STOP_CHECK)) {
            Err(rustix::io::Errno::INTR) => continue,
            result => result?,
        };
        for event in ready.iter() {
            let index = event.data.u64();
            if index == u64::MAX {
                while let Ok(socket) = accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                    epoll::add(&epoll, &socket, epoll::EventData::new_u64(connections.len() as u64), Flags::IN)?;
                    let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
                    connections.push(Some(NullConnection { socket, matched: 0 }));
                }
            } else if let Some(slot) = connections.get_mut(index as usize)
                && let Some(connection) = slot
                && !connection.answer(&mut input, &mut output)
            {
                *slot = None;
            }
        }
    }
    Ok(())
}

impl NullConnection {
    /// Answers the requests that have arrived. Returns false at the end of the connection.
    fn answer(&mut self, input: &mut [u8], output: &mut Vec<u8>) -> bool {
        let length = match recv(&self.socket, &mut *input, RecvFlags::empty()) {
            Ok((length @ 1.., _)) => length,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return true,
            _ => return false,
        };
        output.clear();
        (0..heads(&input[..length], &mut self.matched)).for_each(|_| output.extend_from_slice(RESPONSE));
        // The responses are short, so the socket accepts all of them at once.
        send(&self.socket, output, SendFlags::NOSIGNAL).is_ok_and(|sent_bytes| sent_bytes == output.len())
    }
}

/// Number of heads that end in the input. `matched` counts the bytes of the end of a head that came before.
fn heads(input: &[u8], matched: &mut usize) -> usize {
    let mut count = 0;
    for byte in input {
        *matched = match *byte {
            byte if byte == HEAD_END[*matched] => *matched + 1,
            b'\r' => 1,
            _ => 0,
        };
        if *matched == HEAD_END.len() {
            *matched = 0;
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_heads() {
        let input = b"GET / HTTP/1.1\r\nA: b\r\n\r\nGET / HTTP/1.1\r\r\n\r\n\r\n\r";
        for step in [1, 2, 3, 100] {
            let mut matched = 0;
            let count: usize = input.chunks(step).map(|piece| heads(piece, &mut matched)).sum();
            assert_eq!((count, matched), (2, 3), "pieces of {step}");
        }
    }
}
