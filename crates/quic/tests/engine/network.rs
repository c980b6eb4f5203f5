//! Simulated network: datagrams take time, and may be lost, doubled, delayed, damaged or marked.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tailcoat_quic::Ecn;

/// Direction of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    ToServer,
    ToClient,
}

/// Treatment of ECN marks by the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marks {
    Kept,
    Cleared,
    /// Each datagram with a mark gets CE.
    AllCe,
    /// A datagram with a mark gets CE if it waits longer than this.
    CeAbove(Duration),
}

/// Properties of the path in one direction.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) delay: Duration,
    /// Random addition to the delay, so that datagrams overtake each other.
    pub(crate) jitter: Duration,
    /// Lost datagrams in 1,000.
    pub(crate) loss: u64,
    /// Doubled datagrams in 1,000.
    pub(crate) doubled: u64,
    /// Damaged datagrams in 1,000.
    pub(crate) damaged: u64,
    /// Bytes a second; `None` without a limit.
    pub(crate) rate: Option<u64>,
    /// Time that datagrams may wait for the link, before they are dropped.
    pub(crate) queue: Duration,
    /// Largest payload of a datagram.
    pub(crate) mtu: usize,
    pub(crate) marks: Marks,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(10),
            jitter: Duration::ZERO,
            loss: 0,
            doubled: 0,
            damaged: 0,
            rate: None,
            queue: Duration::from_millis(50),
            mtu: 1_500,
            marks: Marks::Kept,
        }
    }
}

/// Datagram on its way.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) way: Way,
    /// Address of the client: the sender or the receiver.
    pub(crate) client: SocketAddr,
    pub(crate) ecn: Option<Ecn>,
    pub(crate) payload: BytesMut,
    /// Number among the datagrams of its direction, from 0 on.
    pub(crate) number: u64,
    /// Time since the start of the simulation.
    pub(crate) at: Duration,
}

/// Decision of a rule about a datagram.
pub(crate) enum Fate {
    Pass,
    Drop,
    /// Takes this much longer.
    Delay(Duration),
    /// Other datagrams instead.
    Replace(Vec<Packet>),
}

/// Rule about datagrams.
pub(crate) type Rule = Box<dyn FnMut(&Packet) -> Fate>;

/// Counts of a direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
    pub(crate) dropped: u64,
    pub(crate) largest: usize,
    pub(crate) marked: u64,
}

/// Datagram with its time of arrival and a number for the order.
type Flying = Reverse<(Instant, u64, usize)>;

/// Network between one server and its clients.
pub(crate) struct Network {
    start: Instant,
    random: u64,
    pub(crate) to_server: Link,
    pub(crate) to_client: Link,
    pub(crate) rule: Option<Rule>,
    queue: BinaryHeap<Flying>,
    packets: HashMap<usize, Packet>,
    sequence: usize,
    busy_until: [Instant; 2],
    counts: [Counts; 2],
}

impl Network {
    pub(crate) fn new(start: Instant, seed: u64) -> Self {
        Self {
            start,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            to_server: Link::default(),
            to_client: Link::default(),
            rule: None,
            queue: BinaryHeap::new(),
            packets: HashMap::new(),
            sequence: 0,
            busy_until: [start; 2],
            counts: [Counts::default(); 2],
        }
    }

    /// Sets the properties of both directions.
    pub(crate) fn set(&mut self, change: impl Fn(&mut Link)) {
        change(&mut self.to_server);
        change(&mut self.to_client);
    }

    pub(crate) fn counts(&self, way: Way) -> Counts {
        self.counts[way as usize]
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn happens(&mut self, in_1000: u64) -> bool {
        in_1000 > 0 && (self.random() >> 20) % 1_000 < in_1000
    }

    /// Sends a datagram.
    pub(crate) fn send(&mut self, now: Instant, way: Way, client: SocketAddr, ecn: Option<Ecn>, payload: &[u8]) {
        let counts = &mut self.counts[way as usize];
        let number = counts.datagrams;
        counts.datagrams += 1;
        counts.bytes += payload.len() as u64;
        counts.largest = counts.largest.max(payload.len());
        counts.marked += u64::from(ecn.is_some());
        let packet = Packet { way, client, ecn, payload: payload.into(), number, at: now - self.start };
        let fate = self.rule.as_mut().map_or(Fate::Pass, |rule| rule(&packet));
        match fate {
            Fate::Pass => self.carry(now, packet, Duration::ZERO),
            Fate::Drop => self.counts[way as usize].dropped += 1,
            Fate::Delay(delay) => self.carry(now, packet, delay),
            Fate::Replace(packets) => packets.into_iter().for_each(|packet| self.carry(now, packet, Duration::ZERO)),
        }
    }

    fn carry(&mut self, now: Instant, mut packet: Packet, addition: Duration) {
        let way = packet.way;
        let link = if way == Way::ToServer { self.to_server.clone() } else { self.to_client.clone() };
        let mut start = now;
        if let Some(rate) = link.rate {
            start = self.busy_until[way as usize].max(now);
            if start - now <= link.queue {
                let duration = Duration::from_nanos(packet.payload.len() as u64 * 1_000_000_000 / rate);
                self.busy_until[way as usize] = start + duration;
                start += duration;
            } else {
                self.counts[way as usize].dropped += 1;
                return;
            }
        }
        if packet.payload.len() > link.mtu || self.happens(link.loss) {
            self.counts[way as usize].dropped += 1;
            return;
        }
        packet.ecn = packet.ecn.and_then(|mark| match link.marks {
            Marks::Kept => Some(mark),
            Marks::Cleared => None,
            Marks::AllCe => Some(Ecn::Ce),
            Marks::CeAbove(wait) => Some(if start - now > wait { Ecn::Ce } else { mark }),
        });
        let copies = 1 + usize::from(self.happens(link.doubled));
        if self.happens(link.damaged) {
            let at = self.random() as usize % packet.payload.len();
            packet.payload[at] ^= 1 << (self.random() % 8);
        }
        for _ in 0..copies {
            let jitter = link.jitter.as_micros() as u64;
            let jitter = if jitter == 0 { 0 } else { (self.random() >> 8) % jitter };
            let arrival = start + link.delay + addition + Duration::from_micros(jitter);
            self.sequence += 1;
            self.queue.push(Reverse((arrival, self.sequence as u64, self.sequence)));
            self.packets.insert(self.sequence, packet.clone());
        }
    }

    /// Time of the next arrival.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.queue.peek().map(|Reverse((at, ..))| *at)
    }

    /// Next datagram that has arrived.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Packet> {
        if self.next_at()? > now {
            return None;
        }
        let Reverse((_, _, key)) = self.queue.pop()?;
        self.packets.remove(&key)
    }
}
