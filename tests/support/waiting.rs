//! Waits of tests: for an event, for a value to settle, and through a time in which nothing may happen. A test sleeps by
//! itself only where the passing of time is what it tests.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use super::PATIENCE;

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Time in which a value must stay the same to count as settled.
const SETTLED_TIME: Duration = Duration::from_millis(400);

/// Waits until the condition holds.
///
/// # Panics
/// If it does not within [`PATIENCE`].
#[track_caller]
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    eventually_some(what, || condition().then_some(()));
}

/// Waits until there is a value, and returns it.
///
/// # Panics
/// If there is none within [`PATIENCE`].
#[track_caller]
pub(crate) fn eventually_some<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, look).unwrap_or_else(|| panic!("not within {PATIENCE:?}: {what}"))
}

/// Value that `look` finds within this time.
pub(crate) fn within<T>(time: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        // On a busy machine, a look may take as long as the time. Then it still counts.
        let is_last = began.elapsed() > time;
        if let Some(found) = look() {
            return Some(found);
        }
        if is_last {
            return None;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Checks that the condition holds for this long. For what must not happen there is no event to wait for.
#[track_caller]
pub(crate) fn stays(what: &str, time: Duration, mut condition: impl FnMut() -> bool) {
    let changed = within(time, || (!condition()).then_some(()));
    assert!(changed.is_none(), "no longer: {what}");
}

/// Value once it has not changed for some time, such as the memory of a server that has handled all of its input.
#[track_caller]
pub(crate) fn settled<T: PartialEq>(what: &str, mut read: impl FnMut() -> T) -> T {
    let (mut value, mut since) = (read(), Instant::now());
    eventually(what, || {
        let now = read();
        if now != value {
            (value, since) = (now, Instant::now());
        }
        since.elapsed() > SETTLED_TIME
    });
    value
}

/// Lines of a file, once it has this many.
#[track_caller]
pub(crate) fn lines_of(path: &Path, count: usize) -> Vec<String> {
    eventually_some(&format!("{} has {count} lines", path.display()), || {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        // The last line may still be written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        (whole.lines().count() >= count).then(|| whole.lines().map(str::to_owned).collect())
    })
}

/// Waits until the other process has read all that was written to this loopback connection over IPv4.
#[track_caller]
pub(crate) fn await_read(stream: &TcpStream) {
    let (ours, peer) = (stream.local_addr().expect("it is bound"), stream.peer_addr().expect("it is connected"));
    eventually("the peer has read its input", || {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel has IPv4");
        // In proc_pid_net(5), queues are `tx_queue:rx_queue`; a connection that is gone has been read as far as it will.
        let queues = |local: SocketAddr, remote: SocketAddr| {
            let ends = [local, remote].map(hexadecimal).join(" ");
            let line = table.lines().find(|line| line.contains(&ends));
            line.and_then(|line| line.split_whitespace().nth(4)).unwrap_or("00000000:00000000").to_owned()
        };
        queues(ours, peer).starts_with("00000000:") && queues(peer, ours).ends_with(":00000000")
    });
}

/// Address as in /proc/net/tcp: the address in the machine's byte order, and the port.
fn hexadecimal(address: SocketAddr) -> String {
    let SocketAddr::V4(address) = address else { panic!("{address} is not of IPv4") };
    format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port())
}
