//! Random writes, losses and reordering, compared with a simple model of a client.

use std::collections::BTreeMap;
use std::ops::Range;

use proptest::prelude::*;

use super::*;

/// Byte at an offset of a stream.
fn byte(id: QuicStreamId, offset: u64) -> u8 {
    (offset.wrapping_mul(31) + offset / 256 + id.0 * 7) as u8
}

fn bytes(id: QuicStreamId, range: Range<u64>) -> Bytes {
    range.map(|offset| byte(id, offset)).collect::<Vec<_>>().into()
}

/// Part of a stream that a client has received.
#[derive(Default)]
struct Received {
    has: Vec<bool>,
    end: Option<u64>,
}

/// Packet in flight.
struct Packet {
    payload: Vec<u8>,
    sent: Vec<SentFrame>,
    /// True if the client has received it.
    is_delivered: bool,
}

/// Client that receives, with its limits.
struct Client {
    streams: BTreeMap<QuicStreamId, Received>,
    limits: BTreeMap<QuicStreamId, u64>,
    limit: u64,
}

impl Client {
    fn receive(&mut self, payload: &[u8]) {
        for frame in frames(payload) {
            match frame {
                QuicFrame::Stream { id, offset, data, is_fin } => {
                    let stream = self.streams.entry(id).or_default();
                    let end = offset + data.len() as u64;
                    assert!(end <= self.limits[&id], "limit of the stream");
                    assert!(stream.end.is_none_or(|last| end <= last));
                    if is_fin {
                        assert!(stream.end.is_none_or(|last| last == end));
                        stream.end = Some(end);
                    }
                    stream.has.resize(stream.has.len().max(end as usize), false);
                    for (index, &value) in data.iter().enumerate() {
                        assert_eq!(value, byte(id, offset + index as u64));
                        stream.has[offset as usize + index] = true;
                    }
                }
                QuicFrame::Padding | QuicFrame::MaxStreams { .. } | QuicFrame::MaxData(_) => {}
                other => panic!("{other:?}"),
            }
        }
        let total: u64 = self.streams.values().map(|stream| stream.has.len() as u64).sum();
        assert!(total <= self.limit, "limit of the connection");
    }
}

const STREAMS: u64 = 5;

fn small_window() -> StreamLimits {
    StreamLimits { send_window_bytes: 20_000, ..LIMITS }
}

fn run_sender(operations: &[(u8, u8, u16)]) {
    let mut streams = Streams::new(&small_window());
    streams.on_peer_parameters(&PeerParameters {
        initial_max_data: 9000,
        initial_max_stream_data_bidi_local: 3000,
        ..PeerParameters::default()
    });
    let ids: Vec<_> = (0..STREAMS).map(request).collect();
    let limits = ids.iter().map(|&id| (id, 3000)).collect();
    let mut client = Client { streams: BTreeMap::new(), limits, limit: 9000 };
    streams.on_stream(ids[STREAMS as usize - 1], 0, Bytes::new(), true).unwrap();
    accept_all(&mut streams, Dir::Bi);
    let mut written = vec![0; STREAMS as usize];
    let mut is_finished = vec![false; STREAMS as usize];
    let mut packets: Vec<Packet> = Vec::new();
    for &(kind, which, amount) in operations {
        let index = usize::from(which) % STREAMS as usize;
        let id = ids[index];
        let in_flight = usize::from(which) % packets.len().max(1);
        match kind % 12 {
            0..=2 if !is_finished[index] => {
                let amount = u64::from(amount % 2500);
                let middle = written[index] + amount / 3;
                let mut chunks = [bytes(id, written[index]..middle), bytes(id, middle..written[index] + amount)];
                match streams.write(id, &mut chunks) {
                    Ok(count) => written[index] += count as u64,
                    Err(end) => assert_eq!(end, WriteEnd::Blocked),
                }
            }
            3 if amount % 8 == 0 && !is_finished[index] => {
                is_finished[index] = true;
                streams.finish(id).unwrap();
            }
            4..=5 => {
                let could_send = streams.can_send();
                let (payload, sent) = packet(&mut streams, 60 + usize::from(amount) % 1300);
                assert_eq!(could_send, !sent.is_empty());
                if could_send {
                    packets.push(Packet { payload, sent, is_delivered: false });
                }
            }
            6 if !packets.is_empty() => {
                client.receive(&packets[in_flight].payload);
                packets[in_flight].is_delivered = true;
            }
            7 if packets.get(in_flight).is_some_and(|packet| packet.is_delivered) => {
                acked(&mut streams, &packets.swap_remove(in_flight).sent);
            }
            // Lost, or thought to be so: it may arrive and be acknowledged later.
            8 if !packets.is_empty() => {
                lost(&mut streams, &packets[in_flight].sent);
                if amount % 2 == 0 {
                    packets.swap_remove(in_flight);
                }
            }
            9 => {
                client.limit += u64::from(amount % 4000);
                streams.on_max_data(client.limit);
            }
            10 => {
                let limit = client.limits.get_mut(&id).unwrap();
                *limit += u64::from(amount % 3000);
                streams.on_max_stream_data(id, *limit).unwrap();
            }
            11 => streams.set_priority(id, i32::from(amount % 4)),
            _ => {}
        }
        assert!(streams.unacked_bytes() <= 20_000);
        events(&mut streams);
    }
    // All the rest arrives.
    for (index, &id) in ids.iter().enumerate() {
        if !is_finished[index] {
            streams.finish(id).unwrap();
        }
        while streams.read(id, 1).is_ok() {}
        if index + 1 < ids.len() {
            streams.on_stream(id, 0, Bytes::new(), true).unwrap();
            assert_eq!(streams.read(id, 1), Err(ReadEnd::Finished));
        }
    }
    for packet in packets.drain(..) {
        lost(&mut streams, &packet.sent);
    }
    while streams.can_send() {
        let (payload, sent) = packet(&mut streams, 1200);
        assert!(!sent.is_empty());
        client.receive(&payload);
        acked(&mut streams, &sent);
    }
    for (index, id) in ids.iter().enumerate() {
        let stream = &client.streams[id];
        assert!(stream.has.iter().all(|&has| has));
        assert_eq!((stream.has.len() as u64, stream.end), (written[index], Some(written[index])));
        assert!(!streams.is_open(*id));
    }
    assert_eq!((streams.unacked_bytes(), streams.sending(), streams.exchanges()), (0, 0, 0));
}

fn run_receiver(operations: &[(u8, u16, u16)], total: u64) {
    let limits = StreamLimits { window_bytes: 4000, connection_window_bytes: 6000, ..LIMITS };
    let mut streams = Streams::new(&limits);
    let ids = [request(0), request(1)];
    let (mut stream_limits, mut limit) = ([4000; 2], 6000);
    let mut highest = [0; 2];
    let mut read = [0; 2];
    let mut has_ended = [false; 2];
    streams.on_stream(ids[1], 0, Bytes::new(), false).unwrap();
    accept_all(&mut streams, Dir::Bi);
    // Afterwards, everything is sent in order.
    let rest =
        (0..total * 2).flat_map(|step| [(step as u8 % 2, u16::MAX, 500), (2 + step as u8 % 2, 0, 900), (4, 0, 0)]);
    for (kind, at, amount) in operations.iter().copied().chain(rest) {
        let index = usize::from(kind % 2);
        let id = ids[index];
        match kind % 6 {
            0 | 1 => {
                let bound = stream_limits[index].min(limit - highest[1 - index]).min(total);
                let begin = if at == u16::MAX { read[index].min(bound) } else { u64::from(at) % (bound + 1) };
                let end = (begin + u64::from(amount % 1500)).min(bound);
                highest[index] = highest[index].max(end);
                streams.on_stream(id, begin, bytes(id, begin..end), end == total).unwrap();
            }
            2 | 3 => {
                let mut left = usize::from(amount);
                while left > 0 && !has_ended[index] {
                    match streams.read(id, left) {
                        Ok(data) => {
                            assert_eq!(data, bytes(id, read[index]..read[index] + data.len() as u64));
                            assert!(!data.is_empty() && data.len() <= left);
                            read[index] += data.len() as u64;
                            left -= data.len();
                        }
                        Err(ReadEnd::Finished) => has_ended[index] = true,
                        Err(end) => {
                            assert_eq!(end, ReadEnd::Blocked);
                            break;
                        }
                    }
                }
            }
            _ => {
                while streams.can_send() {
                    let (payload, sent) = packet(&mut streams, 1200);
                    if amount % 3 == 1 {
                        // The client gets it later.
                        lost(&mut streams, &sent);
                        break;
                    }
                    for frame in frames(&payload) {
                        match frame {
                            QuicFrame::MaxData(bytes) => limit = limit.max(bytes),
                            QuicFrame::MaxStreamData { id, bytes } => {
                                let limit = &mut stream_limits[id.number() as usize];
                                *limit = bytes.max(*limit);
                            }
                            other => panic!("{other:?}"),
                        }
                    }
                }
                assert!(limit <= read.iter().sum::<u64>() + 6000);
                assert!(stream_limits.iter().zip(read).all(|(&limit, read)| limit <= read + 4000));
            }
        }
        assert_eq!(streams.unread_bytes(), highest.iter().sum::<u64>() - read.iter().sum::<u64>());
        events(&mut streams);
        if has_ended == [true; 2] {
            break;
        }
    }
    assert_eq!((read, has_ended), ([total; 2], [true; 2]));
    assert_eq!((streams.unread_pieces(), streams.unread_bytes()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn everything_that_is_written_arrives(operations in prop::collection::vec(any::<(u8, u8, u16)>(), 0..400)) {
        run_sender(&operations);
    }

    #[test]
    fn everything_that_arrives_is_read_once(
        operations in prop::collection::vec(any::<(u8, u16, u16)>(), 0..400),
        total in 1u64..20_000,
    ) {
        run_receiver(&operations, total);
    }
}

/// Calls everything in any order. A client that keeps the limits gets no error, and in the end nothing is left.
fn run_all(operations: &[(u8, u8, u16)]) {
    let mut streams = streams(&LIMITS);
    let mut packets: Vec<Vec<SentFrame>> = Vec::new();
    let mut finals = [0; 4];
    let mut reset_by_client = [false; 4];
    for &(kind, which, amount) in operations {
        let index = usize::from(which) % 4;
        let id = request(index as u64);
        let code = u64::from(amount);
        let in_flight = usize::from(which) % packets.len().max(1);
        match kind % 14 {
            0 if !reset_by_client[index] => {
                let offset = code % 1000;
                finals[index] = finals[index].max(offset + 50);
                streams.on_stream(id, offset, Bytes::from(vec![1; 50]), false).unwrap();
            }
            1 if amount % 4 == 0 => {
                reset_by_client[index] = true;
                streams.on_reset_stream(id, code, finals[index]).unwrap();
            }
            2 if amount % 4 == 0 => streams.on_stop_sending(id, code).unwrap(),
            3 => streams.on_max_stream_data(id, code * 4).unwrap(),
            4 => _ = streams.accept(Dir::Bi),
            5 if streams.peers[0].is_accepted(index as u64) => _ = streams.read(id, usize::from(amount) % 100),
            6 if streams.peers[0].is_accepted(index as u64) && amount % 4 == 0 => streams.stop(id, code),
            7 => _ = streams.write(id, &mut [Bytes::from(vec![1; usize::from(amount) % 3000]), Bytes::new()]),
            8 if amount % 4 == 0 => _ = streams.finish(id),
            9 if amount % 4 == 0 => streams.reset(id, code),
            10 => {
                let could_send = streams.can_send();
                let (_, sent) = packet(&mut streams, 60 + usize::from(amount) % 1300);
                assert_eq!(could_send, !sent.is_empty());
                packets.push(sent);
            }
            11 if !packets.is_empty() => acked(&mut streams, &packets.swap_remove(in_flight)),
            12 if !packets.is_empty() => lost(&mut streams, &packets[in_flight]),
            13 => {
                streams.set_priority(id, i32::from(amount % 3));
                streams.set_send_window(code * 3);
                streams.on_max_data(code * 8);
                events(&mut streams);
                if amount % 5 == 0 {
                    streams.shrink();
                }
            }
            _ => {}
        }
        let tables = &mut streams.tables;
        let (pieces, sending) = tables.exchanges.iter_mut().fold((0, 0), |(pieces, sending), stream| {
            (pieces + stream.receive.pieces(), sending + usize::from(stream.send.is_busy()))
        });
        assert_eq!((streams.unread_pieces(), streams.sending()), (pieces, sending));
    }
    streams.on_stream(request(3), 0, Bytes::new(), false).unwrap();
    for id in (0..4).map(request) {
        while streams.accept(Dir::Bi).is_some() {}
        streams.stop(id, 0);
        streams.reset(id, 0);
        streams.on_reset_stream(id, 0, finals[id.number() as usize]).unwrap();
    }
    packets.iter().for_each(|sent| lost(&mut streams, sent));
    while streams.can_send() {
        let (_, sent) = packet(&mut streams, 100);
        assert!(!sent.is_empty());
        acked(&mut streams, &sent);
    }
    assert_eq!((streams.exchanges(), streams.sending(), streams.unacked_bytes()), (0, 0, 0));
    assert_eq!((streams.unread_pieces(), streams.unread_bytes()), (0, 0));
    assert_eq!(streams.receive_flow.unread(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_order_of_calls_leaves_nothing(operations in prop::collection::vec(any::<(u8, u8, u16)>(), 0..300)) {
        run_all(&operations);
    }
}
