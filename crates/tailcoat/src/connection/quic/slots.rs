//! Connection IDs that name a socket, and the filter by which the kernel finds it.
//!
//! All sockets of an address form one group (`SO_REUSEPORT`). The first byte of each connection ID is the slot of a socket in the
//! group. So packets reach their worker after the client's address has changed, too.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

/// Length of connection IDs: a slot and 56 random bits.
pub const ID_BYTES: usize = 8;

/// Largest number of sockets in a group.
pub const SLOTS_MAX: usize = 256;

/// Random bytes fetched at once.
const POOL_BYTES: usize = 32 * (ID_BYTES - 1);

/// Generator of the connection IDs of one slot.
#[derive(Debug)]
pub struct SlotIds {
    slot: u8,
    pool: [u8; POOL_BYTES],
    used_bytes: usize,
}

impl SlotIds {
    /// Makes the generator of a slot.
    pub fn new(slot: u8) -> Self {
        Self { slot, pool: [0; POOL_BYTES], used_bytes: POOL_BYTES }
    }
}

impl ConnectionIdGenerator for SlotIds {
    fn generate_cid(&mut self) -> ConnectionId {
        if self.used_bytes == POOL_BYTES {
            // Without random numbers from the kernel no handshake would have succeeded.
            aws_lc_rs::rand::fill(&mut self.pool).expect("the random source works");
            self.used_bytes = 0;
        }
        let mut id = [self.slot; ID_BYTES];
        let end = self.used_bytes + ID_BYTES - 1;
        id[1..].copy_from_slice(&self.pool[self.used_bytes..end]);
        self.used_bytes = end;
        ConnectionId::new(&id)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        // Only the owner of a slot may reset its connections.
        if id.first() == Some(&self.slot) { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Instructions of a classic BPF program, without those for offsets beyond the packet.
mod code {
    pub const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    pub const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    pub const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
    pub const TO_INDEX: u16 = (libc::BPF_MISC | libc::BPF_TAX) as u16;
    pub const ADD_INDEX: u16 = (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X) as u16;
    pub const XOR_INDEX: u16 = (libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X) as u16;
    pub const ADD: u16 = (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K) as u16;
    pub const MULTIPLY: u16 = (libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K) as u16;
    pub const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
    pub const REMAINDER: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
    pub const JUMP_IF_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    pub const RETURN: u16 = (libc::BPF_RET | libc::BPF_A) as u16;
}

/// Offset of the network header in a filter's loads (linux/filter.h, `SKF_NET_OFF`).
const NETWORK: u32 = -0x10_0000_i32 as u32;

/// Odd number whose multiples spread over the upper bits (2^32 divided by the golden ratio).
const SPREAD: u32 = 0x9e37_79b1;

/// Makes the program that selects a socket of a group. Offset 0 is the first byte of the datagram.
///
/// A packet with a short header goes to the slot that its connection ID names. A packet with a long header belongs to a
/// handshake. The client's address and port decide among the `workers` sockets that accept connections. The length of
/// a handshake's connection ID does not tell if it is ours.
fn program(is_ipv6: bool, first: u8, workers: u32) -> Vec<libc::sock_filter> {
    let line = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    // Last word of the source address, and the source port after a header without options or extensions.
    let (address, port) = if is_ipv6 { (20, 40) } else { (12, 20) };
    vec![
        line(code::LOAD_BYTE, 0, 0, 0),
        line(code::JUMP_IF_SET, 0x80, 2, 0),
        line(code::LOAD_BYTE, 1, 0, 0),
        line(code::RETURN, 0, 0, 0),
        line(code::LOAD_HALF, NETWORK.wrapping_add(port), 0, 0),
        line(code::MULTIPLY, SPREAD, 0, 0),
        line(code::TO_INDEX, 0, 0, 0),
        line(code::LOAD_WORD, NETWORK.wrapping_add(address), 0, 0),
        line(code::ADD_INDEX, 0, 0, 0),
        line(code::MULTIPLY, SPREAD, 0, 0),
        line(code::TO_INDEX, 0, 0, 0),
        line(code::SHIFT_RIGHT, 16, 0, 0),
        line(code::XOR_INDEX, 0, 0, 0),
        line(code::REMAINDER, workers.max(1), 0, 0),
        line(code::ADD, first.into(), 0, 0),
        line(code::RETURN, 0, 0, 0),
    ]
}

/// Steers the packets of a group of sockets, to which `socket` belongs. Handshakes go to `workers` sockets from `first` on.
///
/// # Errors
/// The kernel does not support the filter.
pub fn steer(socket: &impl AsFd, is_ipv6: bool, first: u8, workers: usize) -> io::Result<()> {
    let mut program = program(is_ipv6, first, u32::try_from(workers).unwrap_or(u32::MAX));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    Ok(setsockopt(socket, sockopt::AttachReusePortCbpf, &filter)?)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use socket2::{Domain, Protocol, Socket, Type};

    use super::*;

    /// Makes a group of sockets of the same address.
    fn group(address: &str, count: usize) -> Vec<UdpSocket> {
        let mut address = address.parse::<std::net::SocketAddr>().unwrap();
        let mut sockets = Vec::new();
        for _ in 0..count {
            let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP)).unwrap();
            socket.set_reuse_port(true).unwrap();
            socket.bind(&address.into()).unwrap();
            let socket = UdpSocket::from(socket);
            socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
            address = socket.local_addr().unwrap();
            sockets.push(socket);
        }
        sockets
    }

    /// Slot whose socket receives the datagram.
    fn slot_of(sockets: &[UdpSocket], client: &UdpSocket, datagram: &[u8]) -> usize {
        client.send_to(datagram, sockets[0].local_addr().unwrap()).unwrap();
        loop {
            let received = |socket: &UdpSocket| socket.recv(&mut [0; 100]).is_ok();
            if let Some(slot) = sockets.iter().position(received) {
                return slot;
            }
        }
    }

    #[test]
    fn ids_name_their_slot_and_differ() {
        let mut ids = SlotIds::new(7);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1_000 {
            let id = ids.generate_cid();
            assert!(id[0] == 7 && id.len() == ID_BYTES && seen.insert(id.to_vec()));
            assert!(ids.validate(&id).is_ok() && SlotIds::new(8).validate(&id).is_err());
        }
    }

    #[test]
    fn the_kernel_finds_the_slot() {
        for (address, local) in [("127.0.0.1:0", "127.0.0.1:0"), ("[::1]:0", "[::1]:0")] {
            let sockets = group(address, 4);
            steer(&sockets[0], address.starts_with('['), 1, 2).unwrap();
            for slot in [0_u8, 3, 1, 2] {
                let client = UdpSocket::bind(local).unwrap();
                assert_eq!(slot_of(&sockets, &client, &[0x40, slot, 1, 2, 3]), usize::from(slot), "{address}");
            }
            let mut counts = [0; 4];
            for _ in 0..40 {
                let client = UdpSocket::bind(local).unwrap();
                let slot = slot_of(&sockets, &client, &[0xc0, 0, 0, 0, 1]);
                assert_eq!(slot_of(&sockets, &client, &[0xe0, 3, 0, 0, 1]), slot, "the handshake stays there");
                counts[slot] += 1;
            }
            assert!(counts[0] == 0 && counts[3] == 0 && counts[1] > 5 && counts[2] > 5, "{address}: {counts:?}");
        }
    }
}
