//! Connection IDs that name a socket, and the filter by which the kernel finds it.
//!
//! All sockets of an address form one group (`SO_REUSEPORT`). The first byte of each connection ID is the slot of a socket in the
//! group. So packets reach their worker after the client's address has changed, too. The last bytes are a tag with a secret.
//! By it, the filter knows our IDs.
//!
//! Other packets, such as the first ones of clients, go to further sockets of the group, which have no slots. So a flood of packets
//! with made-up IDs fills their buffers, and not those of connections. A client learns valid IDs of its own connections only.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::socket::{setsockopt, sockopt};
use tailcoat_quic::{ConnectionId, IdSource};

/// Length of connection IDs: a slot, random bytes and a tag.
pub(crate) const ID_BYTES: usize = 8;

/// Random bytes of a connection ID.
const RANDOM_BYTES: usize = 4;

/// Bits of a hash of the random bytes that are not in the tag of 24 bits. One in 16 million IDs that clients choose has a
/// valid tag. Such a client may have to use TCP.
const UNTAGGED_BITS: u32 = 8;

/// Secret with which tags are made. A client that knows some IDs can compute it. But then it knows IDs to which the kernel
/// passes packets anyway.
#[derive(Clone, Copy, Debug)]
pub struct TagKey {
    addend: u32,
    factor: u32,
}

impl TagKey {
    /// Makes the key from random bytes.
    pub(super) fn new(addend: [u8; 4], factor: [u8; 4]) -> Self {
        // An even factor would lose bits.
        Self { addend: u32::from_be_bytes(addend), factor: u32::from_be_bytes(factor) | 1 }
    }

    /// Tag of random bytes.
    fn tag(self, random: [u8; RANDOM_BYTES]) -> u32 {
        u32::from_be_bytes(random).wrapping_add(self.addend).wrapping_mul(self.factor) >> UNTAGGED_BITS
    }
}

/// Largest number of sockets that connection IDs can name in a group. It may have more that accept.
pub const SLOTS_MAX: usize = 256;

/// Random bytes fetched at once.
const POOL_BYTES: usize = 64 * RANDOM_BYTES;

/// Source of the connection IDs of one slot.
#[derive(Debug)]
pub(crate) struct SlotIds {
    slot: u8,
    tags: TagKey,
    /// True while IDs get no valid tag.
    is_untagged: Arc<AtomicBool>,
    pool: [u8; POOL_BYTES],
    used_bytes: usize,
}

impl SlotIds {
    /// Makes the source of a slot. While `is_untagged` is true, packets with its IDs go to the process that accepts
    /// connections, as those with IDs of clients do. That is for Retry packets, after which any process may continue.
    pub(crate) fn new(slot: u8, tags: TagKey, is_untagged: Arc<AtomicBool>) -> Self {
        Self { slot, tags, is_untagged, pool: [0; POOL_BYTES], used_bytes: POOL_BYTES }
    }
}

impl IdSource for SlotIds {
    fn next_id(&mut self) -> ConnectionId {
        if self.used_bytes == POOL_BYTES {
            // Without random numbers from the kernel no handshake would have succeeded.
            aws_lc_rs::rand::fill(&mut self.pool).expect("the random source works");
            self.used_bytes = 0;
        }
        let mut random = [0; RANDOM_BYTES];
        let end = self.used_bytes + RANDOM_BYTES;
        random.copy_from_slice(&self.pool[self.used_bytes..end]);
        self.used_bytes = end;
        let mut id = id(self.slot, self.tags.tag(random), random);
        id[ID_BYTES - 1] ^= u8::from(self.is_untagged.load(Ordering::Relaxed));
        // Local invariant: IDs of QUIC may have 20 bytes.
        ConnectionId::new(&id).expect("the ID is short")
    }

    fn is_own(&self, id: &ConnectionId) -> bool {
        // Only the owner of a slot may reset its connections.
        id.first() == Some(&self.slot)
    }

    fn id_bytes(&self) -> usize {
        ID_BYTES
    }
}

/// Makes the connection ID of a slot.
fn id(slot: u8, tag: u32, random: [u8; RANDOM_BYTES]) -> [u8; ID_BYTES] {
    let mut id = [slot; ID_BYTES];
    // The word's first byte is zero, and replaced by the last random one.
    id[ID_BYTES - RANDOM_BYTES..].copy_from_slice(&tag.to_be_bytes());
    id[1..=RANDOM_BYTES].copy_from_slice(&random);
    id
}

/// Instructions of a classic BPF program, without those for offsets beyond the packet.
mod code {
    pub(crate) const LOAD_LENGTH: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_LEN) as u16;
    pub(crate) const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    pub(crate) const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    pub(crate) const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
    pub(crate) const TO_INDEX: u16 = (libc::BPF_MISC | libc::BPF_TAX) as u16;
    pub(crate) const ADD_INDEX: u16 = (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X) as u16;
    pub(crate) const XOR_INDEX: u16 = (libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X) as u16;
    pub(crate) const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
    pub(crate) const ADD: u16 = (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K) as u16;
    pub(crate) const MULTIPLY: u16 = (libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K) as u16;
    pub(crate) const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
    pub(crate) const REMAINDER: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
    pub(crate) const JUMP_IF_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    pub(crate) const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    pub(crate) const JUMP_IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    pub(crate) const JUMP_IF_INDEX: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_X) as u16;
    pub(crate) const RETURN: u16 = (libc::BPF_RET | libc::BPF_A) as u16;
}

/// Offset of the network header in a filter's loads (linux/filter.h, `SKF_NET_OFF`).
const NETWORK: u32 = -0x10_0000_i32 as u32;

/// Odd number whose multiples spread over the upper bits (2^32 divided by the golden ratio).
const SPREAD: u32 = 0x9e37_79b1;

/// Shortest packet that can be valid, in bytes: a header with a connection ID, and what header protection samples (RFC 9001,
/// section 5.4.2).
const PACKET_BYTES_MIN: u32 = 1 + ID_BYTES as u32 + 4 + 16;

/// Makes the program that selects a socket of a group. Offset 0 is the first byte of the datagram.
///
/// A packet whose connection ID has a valid tag goes to the slot that the ID names. Another process may accept new connections
/// by now. For others, the client's address and port decide among `workers` sockets that accept them. These
/// begin at the index `first` of the group.
fn program(is_ipv6: bool, tags: TagKey, first: u32, workers: u32) -> Vec<libc::sock_filter> {
    let line = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    // Last word of the source address, and the source port after a header without options or extensions.
    let (address, port) = if is_ipv6 { (20, 40) } else { (12, 20) };
    // Returns the slot of the ID at this offset, or skips `to_hash` lines after these.
    let slot_at = |id: u32, to_hash: u8| {
        [
            line(code::LOAD_WORD, id + 1, 0, 0),
            line(code::ADD, tags.addend, 0, 0),
            line(code::MULTIPLY, tags.factor, 0, 0),
            line(code::SHIFT_RIGHT, UNTAGGED_BITS, 0, 0),
            line(code::TO_INDEX, 0, 0, 0),
            line(code::LOAD_WORD, id + 4, 0, 0),
            line(code::AND, u32::MAX >> UNTAGGED_BITS, 0, 0),
            line(code::JUMP_IF_INDEX, 0, 0, to_hash + 2),
            line(code::LOAD_BYTE, id, 0, 0),
            line(code::RETURN, 0, 0, 0),
        ]
    };
    let (in_long, in_short) = (slot_at(6, 0), slot_at(1, 12));
    let mut program = vec![
        line(code::LOAD_LENGTH, 0, 0, 0),
        line(code::JUMP_IF_AT_LEAST, PACKET_BYTES_MIN, 0, 24),
        line(code::LOAD_BYTE, 0, 0, 0),
        line(code::JUMP_IF_SET, 0x80, 10, 0),
    ];
    program.extend(in_short);
    // RFC 9000, section 17.2: the length of the destination's ID is at 5, the ID at 6.
    program.extend([line(code::LOAD_BYTE, 5, 0, 0), line(code::JUMP_IF_EQUAL, ID_BYTES as u32, 0, 10)]);
    program.extend(in_long);
    program.extend([
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
        line(code::ADD, first, 0, 0),
        line(code::RETURN, 0, 0, 0),
    ]);
    program
}

/// Steers the packets of a group of sockets, to which `socket` belongs. Packets whose IDs have no valid tag go to `workers` sockets
/// from the index `first` on, which may be above all slots.
///
/// # Errors
/// The kernel does not support the filter.
pub fn steer(socket: &impl AsFd, is_ipv6: bool, tags: TagKey, first: usize, workers: usize) -> io::Result<()> {
    let [first, workers] = [first, workers].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    let mut program = program(is_ipv6, tags, first, workers);
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    Ok(setsockopt(socket, sockopt::AttachReusePortCbpf, &filter)?)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use socket2::{Domain, Protocol, Socket, Type};

    use super::*;

    const TAGS: TagKey = TagKey { addend: 0x0102_0304, factor: 0x0506_0709 };

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
        let mut ids = SlotIds::new(7, TAGS, Arc::default());
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1_000 {
            let id = ids.next_id();
            assert!(id[0] == 7 && id.len() == ID_BYTES && seen.insert(id.to_vec()));
            assert_eq!(TAGS.tag([id[1], id[2], id[3], id[4]]).to_be_bytes()[1..], id[5..]);
            assert!(ids.is_own(&id) && !SlotIds::new(8, TAGS, Arc::default()).is_own(&id));
        }
    }

    #[test]
    fn the_kernel_finds_the_slot() {
        for (address, local) in [("127.0.0.1:0", "127.0.0.1:0"), ("[::1]:0", "[::1]:0")] {
            let sockets = group(address, 4);
            steer(&sockets[0], address.starts_with('['), TAGS, 1, 2).unwrap();
            for slot in [0_u8, 3, 1, 2] {
                let client = UdpSocket::bind(local).unwrap();
                let mut packet = vec![0x40];
                packet.extend_from_slice(&SlotIds::new(slot, TAGS, Arc::default()).next_id());
                packet.extend_from_slice(&[0; 20]);
                assert_eq!(slot_of(&sockets, &client, &packet), usize::from(slot), "{address}");
                // Another ID, and a packet that is too short.
                packet[4] ^= 1;
                assert!([1, 2].contains(&slot_of(&sockets, &client, &packet)), "{address}");
                packet[4] ^= 1;
                assert!([1, 2].contains(&slot_of(&sockets, &client, &packet[..28])), "{address}");
                assert!([1, 2].contains(&slot_of(&sockets, &client, &[])), "{address}");
            }
            for slot in [3_u8, 0, 2, 1] {
                let client = UdpSocket::bind(local).unwrap();
                let mut handshake = vec![0xe0, 0, 0, 0, 1, ID_BYTES as u8];
                handshake.extend_from_slice(&SlotIds::new(slot, TAGS, Arc::default()).next_id());
                handshake.extend_from_slice(&[0; 20]);
                assert_eq!(slot_of(&sockets, &client, &handshake), usize::from(slot), "{address}");
                // Another ID goes to a socket that accepts, whatever its first byte.
                let untagged = SlotIds::new(slot, TAGS, Arc::new(true.into())).next_id();
                handshake[6..14].copy_from_slice(&untagged);
                assert!([1, 2].contains(&slot_of(&sockets, &client, &handshake)), "{address}");
                handshake[6..14].copy_from_slice(&SlotIds::new(slot, TAGS, Arc::default()).next_id());
                handshake[5] = 9;
                assert!([1, 2].contains(&slot_of(&sockets, &client, &handshake)), "{address}");
            }
            let mut counts = [0; 4];
            for _ in 0..40 {
                let client = UdpSocket::bind(local).unwrap();
                let slot = slot_of(&sockets, &client, &[0xc0, 0, 0, 0, 1, 0]);
                assert_eq!(slot_of(&sockets, &client, &[0xe0, 3, 0, 0, 1, 0]), slot, "the handshake stays there");
                counts[slot] += 1;
            }
            assert!(counts[0] == 0 && counts[3] == 0 && counts[1] > 5 && counts[2] > 5, "{address}: {counts:?}");
        }
    }

    #[test]
    fn sockets_that_accept_may_be_above_all_slots() {
        let sockets = group("127.0.0.1:0", SLOTS_MAX + 2);
        steer(&sockets[0], false, TAGS, SLOTS_MAX + 1, 1).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(&[0xc0, 0, 0, 0, 1, 0], sockets[0].local_addr().unwrap()).unwrap();
        sockets[SLOTS_MAX + 1].set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert!(sockets[SLOTS_MAX + 1].recv(&mut [0; 100]).is_ok());
    }
}
