//! Ports for servers that have to be told one.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below those that the system gives to whoever asks for any (`net.ipv4.ip_local_port_range`), so that nobody else's connection or
/// listener takes one between now and the server's start.
const FIRST: u16 = 10_000;
const COUNT: u16 = 22_000;

/// How many have been tried.
static TRIED: AtomicU16 = AtomicU16::new(0);

/// A port of 127.0.0.1 that nobody has, and that no other test of this process gets.
pub(crate) fn free_port() -> u16 {
    // Processes of tests that run side by side begin elsewhere.
    let start = (std::process::id() % u32::from(COUNT)) as u16;
    for _ in 0..COUNT {
        let port = FIRST + (start + TRIED.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}
