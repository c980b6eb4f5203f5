//! Free ports for servers that need a fixed one.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that the system assigns by itself (`net.ipv4.ip_local_port_range`). So no other connection or
/// listener takes one before the server starts.
const FIRST: u16 = 10_000;
const COUNT: u16 = 22_000;

/// Number of ports tried so far.
static TRIED: AtomicU16 = AtomicU16::new(0);

/// Free port of 127.0.0.1 that no other test of this process gets.
pub(crate) fn free_port() -> u16 {
    // Test processes that run in parallel start at different ports.
    let start = (std::process::id() % u32::from(COUNT)) as u16;
    for _ in 0..COUNT {
        let port = FIRST + (start + TRIED.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}
