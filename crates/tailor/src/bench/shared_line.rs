//! `--shared-line`: a line of the kernel that all connections share, as root.
//!
//! The threads of the load have a network namespace of their own. A pair of virtual interfaces (veth) connects it to the
//! server's, and queueing disciplines on both ends are the line. The address of the server stays the same, even if it is a loopback
//! address: routes of the namespace lead to it over the line. Nothing else on the machine changes, and all of it is gone when the
//! threads have ended, however they end.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::engine::{self, LoadPlan, RunningLoad, SimulatedLine, TargetAddress};
use crate::programs::{call, output};
use crate::report::SharedLineReport;
use crate::units::parse_count;

/// Ends of the line: interfaces on the side of the server and of the client. Names have at most 15 characters.
const SERVER_END: &str = "tlr";
const CLIENT_END: &str = "line";
/// Size of packets, that of most networks.
const MTU: &str = "1500";
const PACKET_BYTES: u64 = 1514;
/// Buffer before the line, by default: as much as it carries in this time, and at least the bytes after it.
const BUFFER_TIME: Duration = Duration::from_millis(100);
const BUFFER_BYTES_MIN: u64 = 16 << 10;

/// Line that all connections share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SharedLine {
    /// Rates, latency and loss.
    line: SimulatedLine,
    /// Buffer before the line in each direction; `None` for the default.
    buffer_bytes: Option<u64>,
}

/// Parses `10M/1M,latency=50ms,loss=1%,buffer=64k`.
pub(super) fn parse(text: &str) -> Result<SharedLine, String> {
    let (buffer, rest): (Vec<&str>, Vec<&str>) = text.split(',').partition(|part| part.starts_with("buffer="));
    if rest.iter().any(|part| part.starts_with("slow-start=")) {
        return Err("`slow-start` is that of the server on a line of the kernel".to_owned());
    }
    let buffer = buffer.last().and_then(|part| part.strip_prefix("buffer="));
    let buffer_bytes = buffer.map(parse_count).transpose()?;
    if buffer_bytes.is_some_and(|bytes| bytes < PACKET_BYTES) {
        return Err(format!("a buffer of less than {PACKET_BYTES} bytes carries no packet"));
    }
    Ok(SharedLine { line: engine::parse_line(&rest.join(","))?, buffer_bytes })
}

/// Direction of a line.
#[derive(Clone, Copy, Debug)]
struct LineDirection {
    bits_per_second: Option<u64>,
    buffer_bytes: u64,
    /// Half of the round trip.
    delay_micros: u64,
    loss: f64,
}

impl SharedLine {
    /// Rates to the client and to the server in bits per second.
    pub(super) fn rates(&self) -> [Option<u64>; 2] {
        [self.line.receive_bits_per_second, self.line.send_bits_per_second]
    }

    /// Direction with this rate.
    fn direction(&self, bits_per_second: Option<u64>) -> LineDirection {
        let carried = bits_per_second.map_or(0, |bits| bits / 8 * BUFFER_TIME.as_millis() as u64 / 1000);
        LineDirection {
            bits_per_second,
            buffer_bytes: self.buffer_bytes.unwrap_or(carried.max(BUFFER_BYTES_MIN)),
            delay_micros: self.line.latency / 2_000,
            loss: self.line.loss,
        }
    }

    /// Sets up the line for a plan. If the kernel cannot delay or lose packets, the plan does it.
    ///
    /// # Errors
    /// This process may not do that, or the server is on another machine.
    pub(super) fn open(&self, plan: &mut LoadPlan) -> Result<OpenLine, String> {
        let TargetAddress::Tcp(SocketAddr::V4(server)) = plan.address else {
            return Err("--shared-line needs a server with an IPv4 address".to_owned());
        };
        if UdpSocket::bind((*server.ip(), 0)).is_err() {
            return Err(format!(
                "--shared-line needs a server on this machine, but {} is on another; set queueing disciplines there (tc)",
                server.ip()
            ));
        }
        let [receive, send] = self.rates().map(|rate| self.direction(rate));
        let number = std::process::id() % 16_384;
        let ends = [1, 2].map(|end| format!("198.18.{}.{}", number >> 6, ((number & 63) << 2) + end));
        let interface = LineInterface(format!("{SERVER_END}{}", std::process::id()));
        let (to_thread, from_caller) = channel();
        let (to_caller, from_thread) = channel();
        let (client_address, server_end) = (ends[1].clone(), ends[0].clone());
        let destination = *server.ip();
        let thread = std::thread::Builder::new().name("shared-line".to_owned()).spawn(move || {
            let inside = LineEnd { address: &client_address, peer: &server_end, destination, direction: send };
            inside.run(&to_caller, &from_caller)
        });
        let thread = thread.map_err(|error| error.to_string())?;
        // Without it, the thread has ended with an error.
        let Ok(LineNews::Entered(thread_id)) = from_thread.recv() else { return Err(end_of(thread)) };
        let (end, peer) = (interface.0.as_str(), thread_id.to_string());
        call(&["ip", "link", "add", end, "type", "veth", "peer", "name", CLIENT_END, "netns", &peer])?;
        call(&["ip", "addr", "add", &format!("{}/30", ends[0]), "dev", end])?;
        set_up(end)?;
        let has_netem = receive.shape(end)?;
        // The caller's message is missing only if this function has returned.
        let _ = to_thread.send(LineOrder::SetUp);
        let Ok(LineNews::Ready) = from_thread.recv() else { return Err(end_of(thread)) };
        let needs_delay = self.line.latency > 0 || self.line.loss > 0.0;
        if needs_delay && !has_netem {
            if plan.version == engine::LoadVersion::Http3 {
                return Err("--shared-line: the kernel has no netem, and tailor does not delay HTTP/3".to_owned());
            }
            plan.line = Some(SimulatedLine { receive_bits_per_second: None, send_bits_per_second: None, ..self.line });
        }
        let report = SharedLineReport {
            receive_bits_per_second: receive.bits_per_second,
            send_bits_per_second: send.bits_per_second,
            receive_buffer_bytes: receive.buffer_bytes,
            send_buffer_bytes: send.buffer_bytes,
            latency_nanos: self.line.latency,
            loss: self.line.loss,
            delays_in_kernel: has_netem,
        };
        Ok(OpenLine { thread, orders: to_thread, report, interface })
    }
}

/// Interface on the side of the server; dropping it removes the line. Without that, the kernel removes it some time after the threads
/// have ended, which is too late for the next line.
pub(super) struct LineInterface(String);

impl Drop for LineInterface {
    fn drop(&mut self) {
        // Fails if the kernel has removed the interface, or never made it.
        let _ = output(&["ip", "link", "del", &self.0]);
    }
}

/// Line that is set up. It ends with the threads of the load.
pub(super) struct OpenLine {
    thread: JoinHandle<Result<RunningLoad, String>>,
    orders: Sender<LineOrder>,
    pub(super) report: SharedLineReport,
    interface: LineInterface,
}

impl OpenLine {
    /// Starts a load over the line, which is there until the interface is dropped.
    pub(super) fn start(
        self,
        plan: LoadPlan,
        stop: Arc<AtomicBool>,
    ) -> Result<(RunningLoad, Option<LineInterface>), String> {
        // If the thread has ended, its result says why.
        let _ = self.orders.send(LineOrder::Start(Box::new(plan), stop));
        let running = self.thread.join().map_err(|_| "the thread of the shared line failed".to_owned())??;
        Ok((running, Some(self.interface)))
    }
}

/// Orders for the thread in the namespace of the client.
enum LineOrder {
    SetUp,
    Start(Box<LoadPlan>, Arc<AtomicBool>),
}

/// Steps that the thread has done.
enum LineNews {
    /// The thread of this number has a namespace of its own.
    Entered(i32),
    Ready,
}

/// Reason for which the thread has ended.
fn end_of(thread: JoinHandle<Result<RunningLoad, String>>) -> String {
    match thread.join() {
        Ok(Err(reason)) => reason,
        _ => "the thread of the shared line failed".to_owned(),
    }
}

/// End of the line in the namespace of the client.
struct LineEnd<'a> {
    address: &'a str,
    peer: &'a str,
    /// Address of the server.
    destination: Ipv4Addr,
    direction: LineDirection,
}

impl LineEnd<'_> {
    /// Enters a new namespace, sets up its end of the line, and starts the load.
    fn run(self, news: &Sender<LineNews>, orders: &Receiver<LineOrder>) -> Result<RunningLoad, String> {
        const GONE: &str = "the line is not needed any more";
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
            .map_err(|error| format!("--shared-line: cannot create a network namespace: {error}; run as root"))?;
        news.send(LineNews::Entered(rustix::thread::gettid().as_raw_nonzero().get())).map_err(|_| GONE)?;
        let Ok(LineOrder::SetUp) = orders.recv() else { return Err(GONE.to_owned()) };
        // The loopback interface stays down: its address must be that of the server's side.
        call(&["ip", "addr", "add", &format!("{}/30", self.address), "dev", CLIENT_END])?;
        set_up(CLIENT_END)?;
        let destination = format!("{}/32", self.destination);
        call(&["ip", "route", "add", &destination, "via", self.peer, "dev", CLIENT_END, "src", self.address])?;
        self.direction.shape(CLIENT_END)?;
        news.send(LineNews::Ready).map_err(|_| GONE)?;
        match orders.recv() {
            Ok(LineOrder::Start(plan, stop)) => {
                engine::start(*plan, stop).map_err(|error| format!("cannot start the load: {error}"))
            }
            _ => Err(GONE.to_owned()),
        }
    }
}

/// Brings an interface up. Loopback addresses may pass it, and each packet is sent alone, as on a slow line.
fn set_up(interface: &str) -> Result<(), String> {
    let path = format!("/proc/sys/net/ipv4/conf/{interface}/route_localnet");
    std::fs::write(&path, "1").map_err(|error| format!("{path}: {error}"))?;
    call(&["ip", "link", "set", interface, "mtu", MTU, "gso_max_segs", "1", "up"])
}

impl LineDirection {
    /// Makes an interface send at the rate of the line. Returns whether the kernel also delays and loses packets.
    fn shape(&self, interface: &str) -> Result<bool, String> {
        let root = ["tc", "qdisc", "add", "dev", interface];
        let parent: &[&str] = match self.bits_per_second {
            None => &["root"],
            Some(bits) => {
                let rate = format!("{bits}bit");
                call(&[&root[..], &["root", "handle", "1:", "htb", "default", "1"]].concat())?;
                let class = ["tc", "class", "add", "dev", interface, "parent", "1:", "classid", "1:1", "htb"];
                call(&[&class[..], &["rate", &rate, "quantum", MTU]].concat())?;
                &["parent", "1:1"]
            }
        };
        if self.delay_micros > 0 || self.loss > 0.0 {
            let in_delay = self.bits_per_second.unwrap_or(1 << 34) / 8 * self.delay_micros / 1_000_000;
            let limit = ((self.buffer_bytes + in_delay) / PACKET_BYTES).max(1).to_string();
            let (delay, loss) = (format!("{}us", self.delay_micros), format!("{}%", self.loss * 100.0));
            let netem = ["netem", "limit", &limit, "delay", &delay, "loss", &loss];
            // Without netem, tailor delays.
            if output(&[&root[..], parent, &netem].concat()).is_ok() {
                return Ok(true);
            }
        }
        if self.bits_per_second.is_some() {
            call(&[&root[..], parent, &["bfifo", "limit", &self.buffer_bytes.to_string()]].concat())?;
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_as_text() {
        let line = parse("10M/1M,latency=50ms,loss=1%,buffer=64k").unwrap();
        assert_eq!((line.rates(), line.buffer_bytes), ([Some(10_000_000), Some(1_000_000)], Some(64_000)));
        assert_eq!((line.line.latency, line.line.loss), (50_000_000, 0.01));
        let [receive, send] = parse("10M/1M").unwrap().rates().map(|rate| parse("10M/1M").unwrap().direction(rate));
        assert_eq!((receive.buffer_bytes, send.buffer_bytes), (125_000, BUFFER_BYTES_MIN), "100 ms, at least 16 KiB");
        for text in ["", "10M,buffer=100", "10M,buffer=x", "10M,slow-start=off", "10M,lag=1ms"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
