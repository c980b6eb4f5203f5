//! Client that sends any frames: for attacks that quinn does not know.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::Side;
use rustls::quic::{ClientConnection, KeyChange, Keys, Version};
use tailcoat_quic::TransportSettings;

use super::network::{Network, Packet, Way};
use super::server::Server;
use super::tls;

pub(crate) const INITIAL: usize = 0;
pub(crate) const HANDSHAKE: usize = 1;
pub(crate) const DATA: usize = 2;

/// Frame of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Ack(Vec<RangeInclusive<u64>>),
    Stream {
        id: u64,
        offset: u64,
        bytes: usize,
        is_fin: bool,
    },
    NewId {
        sequence: u64,
        id: Vec<u8>,
    },
    RetireId(u64),
    Challenge([u8; 8]),
    Response([u8; 8]),
    Close {
        is_application: bool,
        code: u64,
        reason: Vec<u8>,
    },
    /// Frames of other types, by their type.
    Other(u64),
}

/// Packets of a space.
#[derive(Default)]
struct Space {
    keys: Option<Keys>,
    next: u64,
    received: BTreeSet<u64>,
    is_ack_due: bool,
    crypto: BTreeMap<u64, Vec<u8>>,
    crypto_read: u64,
    crypto_sent: u64,
}

/// Raw client, and the server. Datagrams arrive at once.
pub(crate) struct Raw {
    pub(crate) now: Instant,
    pub(crate) server: Server,
    network: Network,
    pub(crate) addr: SocketAddr,
    tls: ClientConnection,
    /// ID of the server.
    pub(crate) server_id: Vec<u8>,
    pub(crate) own_id: Vec<u8>,
    spaces: [Space; 3],
    pub(crate) acks: bool,
    /// Frames of the data space.
    pub(crate) frames: Vec<Frame>,
    pub(crate) largest_datagram: usize,
    pub(crate) close: Option<(bool, u64, String)>,
    /// Addresses that have got datagrams.
    pub(crate) receivers: BTreeMap<SocketAddr, usize>,
    /// Frames that are sent in packets of the handshake in addition.
    pub(crate) extra: [Vec<u8>; 2],
    /// Size of CRYPTO frames.
    pub(crate) part_bytes: usize,
    /// True if the client sends no messages of TLS.
    is_mute: bool,
}

pub(crate) fn varint(out: &mut Vec<u8>, value: u64) {
    match value {
        0..0x40 => out.push(value as u8),
        0x40..0x4000 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        0x4000..0x4000_0000 => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

/// Frame of integers.
pub(crate) fn integers(values: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    values.iter().for_each(|value| varint(&mut out, *value));
    out
}

pub(crate) fn stream(id: u64, offset: u64, data: &[u8], is_fin: bool) -> Vec<u8> {
    let mut out = integers(&[0x0e | u64::from(is_fin), id, offset, data.len() as u64]);
    out.extend_from_slice(data);
    out
}

/// ACK frame of descending ranges.
pub(crate) fn ack(ranges: &[RangeInclusive<u64>]) -> Vec<u8> {
    let first = &ranges[0];
    let mut out = integers(&[2, *first.end(), 0, ranges.len() as u64 - 1, first.end() - first.start()]);
    let mut smallest = *first.start();
    for range in &ranges[1..] {
        varint(&mut out, smallest - range.end() - 2);
        varint(&mut out, range.end() - range.start());
        smallest = *range.start();
    }
    out
}

pub(crate) fn new_id(sequence: u64, retire_prior_to: u64) -> Vec<u8> {
    let mut out = integers(&[0x18, sequence, retire_prior_to, 8]);
    out.extend_from_slice(&(sequence + 0x7700_0000_0000_0000).to_be_bytes());
    out.extend_from_slice(&[sequence as u8; 16]);
    out
}

/// Transport parameters, with additions.
pub(crate) fn parameters(id: &[u8], additions: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    let large = integers(&[8 << 20]);
    let usual = [(0x04, large.clone()), (0x05, large.clone()), (0x06, large.clone()), (0x07, large)];
    let others = [(0x09, integers(&[10])), (0x0e, integers(&[8])), (0x0f, id.to_vec())];
    for (key, value) in usual.iter().chain(&others).chain(additions) {
        varint(&mut out, *key);
        varint(&mut out, value.len() as u64);
        out.extend_from_slice(value);
    }
    out
}

fn ranges_of(numbers: &BTreeSet<u64>) -> Vec<RangeInclusive<u64>> {
    let mut ranges: Vec<RangeInclusive<u64>> = Vec::new();
    for &number in numbers.iter().rev() {
        match ranges.last_mut() {
            Some(last) if *last.start() == number + 1 => *last = number..=*last.end(),
            _ => ranges.push(number..=number),
        }
    }
    ranges.truncate(60);
    ranges
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn varint(&mut self) -> u64 {
        let count = 1 << (self.0[0] >> 6);
        let text = self.take(count);
        text[1..].iter().fold(u64::from(text[0] & 0x3f), |value, byte| value << 8 | u64::from(*byte))
    }

    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }
}

impl Raw {
    /// Client that has not sent anything.
    pub(crate) fn new(settings: TransportSettings, additions: &[(u64, Vec<u8>)]) -> Self {
        let (now, own_id, server_id) = (Instant::now(), vec![0x55; 8], vec![0x66; 8]);
        let mut network = Network::new(now, 1);
        network.set(|link| link.delay = Duration::ZERO);
        let parameters = parameters(&own_id, additions);
        let config = Arc::new(tls::client_tls(false));
        let tls = ClientConnection::new(config, Version::V1, tls::NAME.try_into().unwrap(), parameters).unwrap();
        let keys = tls::initial_suite().keys(&server_id, Side::Client, Version::V1);
        Self {
            now,
            server: Server::new(settings),
            network,
            addr: "192.0.2.7:7".parse().unwrap(),
            tls,
            server_id,
            own_id,
            spaces: [Space { keys: Some(keys), ..Space::default() }, Space::default(), Space::default()],
            acks: true,
            frames: Vec::new(),
            largest_datagram: 0,
            close: None,
            receivers: BTreeMap::new(),
            extra: [Vec::new(), Vec::new()],
            part_bytes: usize::MAX / 2,
            is_mute: false,
        }
    }

    /// Client whose handshake is complete.
    pub(crate) fn connected(settings: TransportSettings) -> Self {
        let mut raw = Self::new(settings, &[]);
        raw.handshake();
        assert!(raw.has_keys(DATA) && raw.close.is_none(), "{:?}", raw.close);
        raw
    }

    pub(crate) fn handshake(&mut self) {
        self.drive_tls();
        self.exchange();
    }

    /// Sends a first message whose beginning is missing, in ever more packets.
    pub(crate) fn handshake_first_gap(&mut self) {
        self.is_mute = true;
        for number in 1..400_u64 {
            let text = vec![1; 1_000];
            let frame = [integers(&[6, number * 1_000, 1_000]), text].concat();
            self.send_long(INITIAL, &frame);
            self.exchange();
            if self.close.is_some() {
                return;
            }
        }
    }

    /// Sends a first message, and then PING frames in as many packets.
    pub(crate) fn handshake_pings(&mut self, count: u64) {
        self.drive_tls();
        (self.is_mute, self.acks) = (true, false);
        for _ in 0..count {
            self.send_long(INITIAL, &[1]);
            self.exchange();
            if self.close.is_some() {
                return;
            }
        }
    }

    pub(crate) fn has_keys(&self, space: usize) -> bool {
        self.spaces[space].keys.is_some()
    }

    /// Number of the next packet.
    pub(crate) fn next(&mut self, space: usize) -> &mut u64 {
        &mut self.spaces[space].next
    }

    /// True if the server has skipped a packet number, up to the largest that has arrived. None was lost.
    pub(crate) fn has_gap(&self) -> bool {
        let received = &self.spaces[DATA].received;
        (received.len() as u64) <= self.largest_received()
    }

    pub(crate) fn largest_received(&self) -> u64 {
        self.spaces[DATA].received.last().copied().unwrap_or_default()
    }

    /// Forgets frames and packets of the server, except the newest packet.
    pub(crate) fn forget(&mut self) {
        self.frames.clear();
        let received = &mut self.spaces[DATA].received;
        while received.len() > 1 {
            received.pop_first();
        }
    }

    /// Makes a packet with the next number.
    pub(crate) fn packet(&mut self, space: usize, frames: &[u8]) -> Vec<u8> {
        let number = self.spaces[space].next;
        self.spaces[space].next += 1;
        let mut out = match space {
            DATA => vec![0x43],
            _ => vec![if space == INITIAL { 0xc3 } else { 0xe3 }, 0, 0, 0, 1, self.server_id.len() as u8],
        };
        out.extend_from_slice(&self.server_id);
        if space != DATA {
            out.push(self.own_id.len() as u8);
            out.extend_from_slice(&self.own_id);
            if space == INITIAL {
                out.push(0);
            }
            let length = 4 + frames.len() + 16;
            out.extend_from_slice(&(length as u16 | 0x4000).to_be_bytes());
        }
        let number_at = out.len();
        out.extend_from_slice(&(number as u32).to_be_bytes());
        let mut payload = frames.to_vec();
        let keys = &self.spaces[space].keys.as_ref().unwrap().local;
        let tag = keys.packet.encrypt_in_place(number, &out, &mut payload).unwrap();
        out.extend_from_slice(&payload);
        out.extend_from_slice(tag.as_ref());
        let (head, rest) = out.split_at_mut(number_at);
        let (number, sample) = rest.split_at_mut(4);
        keys.header.encrypt_in_place(&sample[..16], &mut head[0], number).unwrap();
        out
    }

    /// Sends a datagram to the server, and nothing else.
    pub(crate) fn throw(&mut self, datagram: &[u8]) {
        let packet = Packet {
            way: Way::ToServer,
            client: self.addr,
            ecn: None,
            payload: datagram.into(),
            number: 0,
            at: Duration::ZERO,
        };
        self.server.handle(self.now, packet, &mut self.network);
    }

    /// Sends frames in a packet, and handles all responses.
    pub(crate) fn send(&mut self, frames: &[u8]) {
        self.send_only(frames);
        self.exchange();
    }

    /// Sends frames in a packet. The server responds later.
    pub(crate) fn send_only(&mut self, frames: &[u8]) {
        let mut frames = frames.to_vec();
        frames.resize(frames.len().max(4), 0);
        let packet = self.packet(DATA, &frames);
        self.throw(&packet);
    }

    fn send_long(&mut self, space: usize, frames: &[u8]) {
        let mut frames = [frames, &self.extra[space]].concat();
        if space == INITIAL {
            frames.resize(frames.len().max(1_162), 0);
        }
        frames.resize(frames.len().max(4), 0);
        let packet = self.packet(space, &frames);
        self.throw(&packet);
    }

    /// Lets time pass.
    pub(crate) fn wait(&mut self, duration: Duration) {
        let end = self.now + duration;
        let mut steps = 0;
        while let Some(at) = self.server.next_at().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.server.handle_timeouts(self.now);
            self.exchange();
            steps += 1;
            assert!(steps < 10_000, "the timer spins");
        }
        self.now = end;
    }

    /// Lets the server send, and responds, until there is nothing more.
    pub(crate) fn exchange(&mut self) {
        for _ in 0..10_000 {
            self.server.drive(self.now, &mut self.network);
            let mut has_any = false;
            while let Some(packet) = self.network.poll(self.now) {
                has_any = true;
                *self.receivers.entry(packet.client).or_default() += packet.payload.len();
                self.largest_datagram = self.largest_datagram.max(packet.payload.len());
                if packet.client == self.addr {
                    self.handle(&packet.payload);
                }
            }
            if !has_any {
                return;
            }
            self.drive_tls();
            self.send_acks();
        }
        panic!("the exchange has no end");
    }

    fn send_acks(&mut self) {
        if !self.acks {
            return;
        }
        for space in [INITIAL, HANDSHAKE, DATA] {
            if std::mem::take(&mut self.spaces[space].is_ack_due) {
                let frame = ack(&ranges_of(&self.spaces[space].received));
                match space {
                    DATA => self.send_only(&frame),
                    _ => self.send_long(space, &frame),
                }
            }
        }
    }

    fn drive_tls(&mut self) {
        while !self.is_mute {
            let mut text = Vec::new();
            let space = [DATA, HANDSHAKE, INITIAL].into_iter().find(|space| self.has_keys(*space)).unwrap();
            let change = self.tls.write_hs(&mut text);
            if !text.is_empty() {
                let offset = self.spaces[space].crypto_sent;
                self.spaces[space].crypto_sent += text.len() as u64;
                let mut parts: Vec<_> = (0..text.len()).step_by(self.part_bytes.min(text.len())).collect();
                // Parts in an order that is not theirs, and some of them twice.
                if parts.len() > 1 {
                    parts.sort_by_key(|start| start.wrapping_mul(0x9e37_79b1) >> 7 & 0xff);
                    parts.extend_from_within(..parts.len().min(3));
                }
                let mut frame = Vec::new();
                for start in parts {
                    let part = &text[start..text.len().min(start + self.part_bytes)];
                    frame.extend(integers(&[1, 6, offset + start as u64, part.len() as u64]));
                    frame.extend_from_slice(part);
                    frame.extend_from_slice(&[0, 0]);
                }
                self.send_long(space, &frame);
            }
            match change {
                Some(KeyChange::Handshake { keys }) => self.spaces[HANDSHAKE].keys = Some(keys),
                Some(KeyChange::OneRtt { keys, .. }) => self.spaces[DATA].keys = Some(keys),
                None if text.is_empty() => return,
                None => {}
            }
        }
    }

    fn handle(&mut self, datagram: &[u8]) {
        let mut rest = datagram.to_vec();
        while !rest.is_empty() {
            let (space, number_at, end) = if rest[0] & 0x80 == 0 {
                (DATA, 1 + self.own_id.len(), rest.len())
            } else {
                let space = match rest[0] >> 4 & 3 {
                    0 => INITIAL,
                    2 => HANDSHAKE,
                    kind => panic!("packet of kind {kind}"),
                };
                let mut reader = Reader(&rest[5..]);
                for field in 0..2 {
                    let bytes = usize::from(reader.take(1)[0]);
                    let id = reader.take(bytes).to_vec();
                    if field == 1 {
                        self.server_id = id;
                    }
                }
                if space == INITIAL {
                    let bytes = reader.varint() as usize;
                    reader.take(bytes);
                }
                let length = reader.varint() as usize;
                let number_at = rest.len() - reader.0.len();
                (space, number_at, number_at + length)
            };
            let later = rest.split_off(end);
            let mut packet = std::mem::replace(&mut rest, later);
            // Keys of later packets may come with this one.
            if self.has_keys(space) {
                self.handle_packet(space, number_at, &mut packet);
            }
            self.drive_tls();
            if rest.first().is_some_and(|first| *first == 0) {
                return;
            }
        }
    }

    fn handle_packet(&mut self, space: usize, number_at: usize, packet: &mut [u8]) {
        let Space { keys, received, .. } = &mut self.spaces[space];
        let keys = &keys.as_ref().unwrap().remote;
        let (head, rest) = packet.split_at_mut(number_at);
        // A stateless reset.
        if rest.len() < 20 {
            return;
        }
        let (number, sample) = rest.split_at_mut(4);
        keys.header.decrypt_in_place(&sample[..16], &mut head[0], number).unwrap();
        let bytes = usize::from(packet[0] & 3) + 1;
        let truncated = packet[number_at..][..bytes].iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        let expected = received.last().map_or(0, |last| last + 1);
        let window = 1_u64 << (8 * bytes);
        let mut number = expected & !(window - 1) | truncated;
        if number + window / 2 <= expected {
            number += window;
        } else if number > expected + window / 2 && number >= window {
            number -= window;
        }
        let (head, payload) = packet.split_at_mut(number_at + bytes);
        let Ok(plain) = keys.packet.decrypt_in_place(number, head, payload) else { return };
        assert!(received.insert(number), "a packet number is used twice");
        let plain = plain.to_vec();
        let mut reader = Reader(&plain);
        while !reader.0.is_empty() {
            self.handle_frame(space, &mut reader);
        }
        self.read_crypto(space);
    }

    fn handle_frame(&mut self, space: usize, reader: &mut Reader<'_>) {
        let kind = reader.varint();
        self.spaces[space].is_ack_due |= !matches!(kind, 0 | 2 | 3 | 0x1c | 0x1d);
        let frame = match kind {
            0 => return,
            2 | 3 => {
                let (largest, _, count, first) = (reader.varint(), reader.varint(), reader.varint(), reader.varint());
                let mut ranges = vec![largest - first..=largest];
                for _ in 0..count {
                    let end = ranges.last().unwrap().start() - reader.varint() - 2;
                    ranges.push(end - reader.varint()..=end);
                }
                (0..if kind == 3 { 3 } else { 0 }).for_each(|_| _ = reader.varint());
                Frame::Ack(ranges)
            }
            6 => {
                let (offset, bytes) = (reader.varint(), reader.varint());
                let text = reader.take(bytes as usize).to_vec();
                self.spaces[space].crypto.insert(offset, text);
                Frame::Other(6)
            }
            7 => {
                let bytes = reader.varint();
                reader.take(bytes as usize);
                Frame::Other(7)
            }
            8..=0xf => {
                let id = reader.varint();
                let offset = if kind & 4 != 0 { reader.varint() } else { 0 };
                let bytes = if kind & 2 != 0 { reader.varint() as usize } else { reader.0.len() };
                reader.take(bytes);
                Frame::Stream { id, offset, bytes, is_fin: kind & 1 != 0 }
            }
            0x18 => {
                let (sequence, _) = (reader.varint(), reader.varint());
                let bytes = usize::from(reader.take(1)[0]);
                let id = reader.take(bytes).to_vec();
                reader.take(16);
                Frame::NewId { sequence, id }
            }
            0x19 => Frame::RetireId(reader.varint()),
            0x1a => Frame::Challenge(reader.take(8).try_into().unwrap()),
            0x1b => Frame::Response(reader.take(8).try_into().unwrap()),
            0x1c | 0x1d => {
                let code = reader.varint();
                if kind == 0x1c {
                    reader.varint();
                }
                let bytes = reader.varint() as usize;
                let reason = reader.take(bytes).to_vec();
                self.close = Some((kind == 0x1d, code, String::from_utf8_lossy(&reason).into_owned()));
                Frame::Close { is_application: kind == 0x1d, code, reason }
            }
            _ => {
                let fields = match kind {
                    4 => 3,
                    5 | 0x11 | 0x15 => 2,
                    0x10 | 0x12..=0x14 | 0x16 | 0x17 => 1,
                    1 | 0x1e => 0,
                    _ => panic!("frame of type {kind}"),
                };
                (0..fields).for_each(|_| _ = reader.varint());
                Frame::Other(kind)
            }
        };
        if space == DATA {
            self.frames.push(frame);
        }
    }

    fn read_crypto(&mut self, space: usize) {
        if space == DATA {
            return;
        }
        loop {
            let Space { crypto, crypto_read, .. } = &mut self.spaces[space];
            let Some((&offset, _)) = crypto.range(..=*crypto_read).next_back() else { return };
            let text = crypto.remove(&offset).unwrap();
            let known = (*crypto_read - offset) as usize;
            if known < text.len() {
                *crypto_read = offset + text.len() as u64;
                self.tls.read_hs(&text[known..]).unwrap();
            }
        }
    }
}
