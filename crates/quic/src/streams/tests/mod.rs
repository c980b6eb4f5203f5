//! Tests of all parts together.

mod model;

use super::*;
use crate::error::TransportError;
use crate::frame::{FrameReader, QuicFrame};

const LIMITS: StreamLimits = StreamLimits {
    window_bytes: 16 << 10,
    connection_window_bytes: 64 << 10,
    bidi_max: 64,
    uni_max: 4,
    send_window_bytes: 256 << 10,
};

fn streams(limits: &StreamLimits) -> Streams {
    let mut streams = Streams::new(limits);
    streams.on_peer_parameters(&PeerParameters {
        initial_max_data: 128 << 10,
        initial_max_stream_data_bidi_local: 64 << 10,
        initial_max_stream_data_uni: 1 << 10,
        initial_max_streams_uni: 3,
        ..PeerParameters::default()
    });
    streams
}

fn request(number: u64) -> QuicStreamId {
    QuicStreamId::of(number, Dir::Bi, false)
}

fn incoming(number: u64) -> QuicStreamId {
    QuicStreamId::of(number, Dir::Uni, false)
}

/// Writes a packet of at most so many bytes.
fn packet(streams: &mut Streams, bytes_max: usize) -> (Vec<u8>, Vec<SentFrame>) {
    let (mut out, mut sent) = (vec![1; 10], VecDeque::new());
    streams.write_frames(&mut out, 10 + bytes_max, &mut sent);
    assert!(out.len() <= 10 + bytes_max);
    (out.split_off(10), sent.into())
}

fn frames(payload: &[u8]) -> Vec<QuicFrame<'_>> {
    FrameReader::new(payload).collect::<Result<_, _>>().unwrap()
}

fn acked(streams: &mut Streams, sent: &[SentFrame]) {
    sent.iter().for_each(|frame| streams.on_acked(frame));
}

fn lost(streams: &mut Streams, sent: &[SentFrame]) {
    sent.iter().for_each(|frame| streams.on_lost(frame));
}

fn events(streams: &mut Streams) -> Vec<StreamEvent> {
    std::iter::from_fn(|| streams.poll_event()).collect()
}

fn accept_all(streams: &mut Streams, dir: Dir) -> Vec<QuicStreamId> {
    std::iter::from_fn(|| streams.accept(dir)).collect()
}

fn code(result: Result<(), TransportError>) -> u64 {
    result.unwrap_err().code
}

/// Payload of all STREAM frames of a stream in a packet, with true if the stream ends.
fn data_of(payload: &[u8], of: QuicStreamId) -> (Vec<u8>, bool) {
    let (mut all, mut has_ended) = (Vec::new(), false);
    for frame in frames(payload) {
        if let QuicFrame::Stream { id, data, is_fin, .. } = frame
            && id == of
        {
            all.extend_from_slice(data);
            has_ended |= is_fin;
        }
    }
    (all, has_ended)
}

#[test]
fn requests_get_responses_and_leave_nothing() {
    let mut streams = streams(&LIMITS);
    let body = Bytes::from(vec![2; 3000]);
    for number in 0..10_000 {
        let id = request(number);
        streams.on_stream(id, 0, Bytes::from_static(b"GET /"), true).unwrap();
        assert_eq!(streams.poll_event(), Some(StreamEvent::Opened { dir: Dir::Bi }));
        assert_eq!(streams.poll_event(), None);
        assert_eq!(streams.accept(Dir::Bi), Some(id));
        assert_eq!(streams.accept(Dir::Bi), None);
        assert_eq!(streams.read(id, 1000).unwrap(), b"GET /"[..]);
        assert_eq!(streams.read(id, 1000), Err(ReadEnd::Finished));
        assert_eq!(streams.read(id, 1000), Err(ReadEnd::Closed));
        let mut chunks = [Bytes::from_static(b"200"), body.clone()];
        assert_eq!(streams.write(id, &mut chunks), Ok(3003));
        assert!(chunks.iter().all(Bytes::is_empty));
        streams.finish(id).unwrap();
        assert_eq!(streams.finish(id), Err(WriteEnd::Closed));
        assert_eq!(streams.write(id, &mut [Bytes::from_static(b"x")]), Err(WriteEnd::Closed));
        assert_eq!((streams.sending(), streams.unacked_bytes()), (1, 3003));
        let mut packets = Vec::new();
        let mut received = Vec::new();
        while streams.can_send() {
            let (payload, sent) = packet(&mut streams, 1200);
            let (data, has_ended) = data_of(&payload, id);
            received.extend_from_slice(&data);
            assert_eq!(has_ended, !streams.can_send());
            packets.push(sent);
            // Some have MAX_DATA or MAX_STREAMS.
            frames(&payload).iter().for_each(|frame| match frame {
                QuicFrame::MaxData(bytes) => assert!(*bytes > LIMITS.connection_window_bytes),
                QuicFrame::MaxStreams { dir: Dir::Bi, count } => assert!(*count > number),
                QuicFrame::Stream { .. } => {}
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(packets.len(), 3);
        assert_eq!(received[3..], body);
        packets.iter().for_each(|sent| acked(&mut streams, sent));
        assert!(!streams.is_open(id));
        streams.on_max_data(3003 * (number + 2));
        // Late frames of streams that have ended change nothing.
        streams.on_stream(id, 0, Bytes::from_static(b"GET /"), true).unwrap();
        streams.on_stop_sending(id, 1).unwrap();
        streams.on_max_stream_data(id, 1 << 20).unwrap();
        packets.iter().for_each(|sent| acked(&mut streams, sent));
        packets.iter().for_each(|sent| lost(&mut streams, sent));
        while streams.can_send() {
            packet(&mut streams, 1200);
        }
        assert_eq!(streams.poll_event(), None);
    }
    assert_eq!((streams.sending(), streams.unacked_bytes(), streams.exchanges()), (0, 0, 0));
    assert_eq!((streams.unread_pieces(), streams.unread_bytes()), (0, 0));
    assert!(body.is_unique(), "no stream holds it");
}

#[test]
fn packets_are_filled() {
    let mut streams = streams(&LIMITS);
    for number in 0..8 {
        streams.on_stream(request(number), 0, Bytes::new(), true).unwrap();
        assert_eq!(streams.write(request(number), &mut [Bytes::from(vec![number as u8; 500])]), Ok(500));
        streams.finish(request(number)).unwrap();
    }
    let mut order = Vec::new();
    while streams.can_send() {
        let (payload, sent) = packet(&mut streams, 1200);
        assert!(payload.len() == 1200 || !streams.can_send());
        let last = sent.len() - 1;
        for (index, frame) in frames(&payload).iter().enumerate() {
            if let QuicFrame::Stream { id, .. } = frame {
                assert!(index < last || payload.len() <= 1200);
                order.push(id.number());
            }
        }
    }
    // A stream that did not fit into the packet lets others go first.
    assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7, 2, 5, 2]);
}

#[test]
fn rests_of_one_or_two_bytes_are_padded() {
    // For each room, the frame fills the packet, or its length is there.
    for room in 100..130 {
        let mut streams = streams(&LIMITS);
        streams.on_stream(request(0), 0, Bytes::new(), true).unwrap();
        streams.write(request(0), &mut [Bytes::from(vec![7; 110])]).unwrap();
        streams.finish(request(0)).unwrap();
        let (payload, sent) = packet(&mut streams, room);
        let (data, is_fin) = data_of(&payload, request(0));
        assert_eq!(is_fin, room >= 112);
        assert_eq!(data, vec![7; (room - 2).min(110)]);
        assert_eq!(sent, [SentFrame::Stream { id: request(0), offset: 0, bytes: data.len() as u16, is_fin }]);
        if is_fin {
            // A frame without length has the rest of the packet as its data.
            let has_length = payload[0] & 2 != 0 && payload[0] != 0;
            assert!(has_length || payload.len() == room, "{room}");
        }
    }
}

#[test]
fn priorities_are_kept_while_streams_wait() {
    let mut streams = streams(&LIMITS);
    for number in 0..4 {
        streams.on_stream(request(number), 0, Bytes::new(), true).unwrap();
        streams.write(request(number), &mut [Bytes::from(vec![0; 1000])]).unwrap();
    }
    streams.set_priority(request(2), 3);
    streams.set_priority(request(0), -3);
    streams.set_priority(request(3), i32::MAX);
    let mut order = Vec::new();
    while streams.can_send() {
        let (payload, _) = packet(&mut streams, 1003);
        order.extend(frames(&payload).iter().filter_map(|frame| match frame {
            QuicFrame::Stream { id, .. } => Some(id.number()),
            _ => None,
        }));
    }
    order.dedup();
    assert_eq!(order, [3, 2, 1, 0]);
}

#[test]
fn earlier_streams_are_opened_with_later_ones() {
    let mut streams = streams(&LIMITS);
    streams.on_stream(request(5), 0, Bytes::from_static(b"five"), true).unwrap();
    streams.on_stream(request(3), 0, Bytes::from_static(b"three"), true).unwrap();
    streams.on_stream_data_blocked(incoming(1)).unwrap();
    assert_eq!(streams.exchanges(), 2);
    assert_eq!(events(&mut streams), [StreamEvent::Opened { dir: Dir::Bi }, StreamEvent::Opened { dir: Dir::Uni }]);
    assert_eq!(accept_all(&mut streams, Dir::Bi), (0..6).map(request).collect::<Vec<_>>());
    assert_eq!(accept_all(&mut streams, Dir::Uni), [incoming(0), incoming(1)]);
    assert_eq!(streams.read(request(3), 9).unwrap(), b"three"[..]);
    assert_eq!(streams.read(request(4), 9), Err(ReadEnd::Blocked));
    streams.on_stream(request(4), 0, Bytes::from_static(b"four"), true).unwrap();
    assert_eq!(events(&mut streams), [StreamEvent::Readable { id: request(4) }]);
    streams.on_stream(incoming(2), 0, Bytes::new(), false).unwrap();
    assert_eq!(events(&mut streams), [StreamEvent::Opened { dir: Dir::Uni }]);
}

#[test]
fn readable_streams_are_reported_once() {
    let mut streams = streams(&LIMITS);
    let id = request(0);
    streams.on_stream(id, 0, Bytes::from_static(b"a"), false).unwrap();
    events(&mut streams);
    streams.accept(Dir::Bi);
    streams.on_stream(id, 1, Bytes::from_static(b"b"), false).unwrap();
    assert_eq!(events(&mut streams), [], "the application reads a new stream anyway");
    assert_eq!(streams.unread_pieces(), 2);
    while streams.read(id, 10).is_ok() {}
    for offset in 2..100 {
        streams.on_stream(id, offset, Bytes::from_static(b"c"), false).unwrap();
    }
    assert_eq!(events(&mut streams), [StreamEvent::Readable { id }]);
    streams.on_stream(id, 100, Bytes::from_static(b"c"), true).unwrap();
    assert_eq!(events(&mut streams), []);
    while streams.read(id, 10).is_ok() {}
    assert_eq!(streams.unread_pieces(), 0);
    assert_eq!(streams.read(id, 10), Err(ReadEnd::Closed));
}

#[test]
fn violations_are_errors() {
    let mut streams = streams(&LIMITS);
    let own = streams.open_uni().unwrap();
    let data = || Bytes::from_static(b"data");
    for id in [own, QuicStreamId::of(0, Dir::Bi, true), QuicStreamId::of(5, Dir::Uni, true)] {
        assert_eq!(code(streams.on_stream(id, 0, data(), false)), TransportError::STREAM_STATE_ERROR);
        assert_eq!(code(streams.on_reset_stream(id, 0, 0)), TransportError::STREAM_STATE_ERROR);
        assert_eq!(code(streams.on_stream_data_blocked(id)), TransportError::STREAM_STATE_ERROR);
        if id != own {
            assert_eq!(code(streams.on_stop_sending(id, 0)), TransportError::STREAM_STATE_ERROR);
            assert_eq!(code(streams.on_max_stream_data(id, 9)), TransportError::STREAM_STATE_ERROR);
        }
    }
    assert_eq!(code(streams.on_stop_sending(incoming(0), 0)), TransportError::STREAM_STATE_ERROR);
    assert_eq!(code(streams.on_max_stream_data(incoming(0), 9)), TransportError::STREAM_STATE_ERROR);
    for id in [request(64), incoming(4), request((1 << 60) - 1)] {
        assert_eq!(code(streams.on_stream(id, 0, data(), false)), TransportError::STREAM_LIMIT_ERROR);
        assert_eq!(code(streams.on_reset_stream(id, 0, 0)), TransportError::STREAM_LIMIT_ERROR);
    }
    assert_eq!(code(streams.on_max_stream_data(request(64), 9)), TransportError::STREAM_LIMIT_ERROR);
    assert_eq!(events(&mut streams), []);
    // The windows of five streams are larger than that of the connection.
    let whole = Bytes::from(vec![0; 16 << 10]);
    for number in 0..4 {
        streams.on_stream(request(number), 0, whole.clone(), false).unwrap();
    }
    assert_eq!(code(streams.on_stream(request(4), 0, data(), false)), TransportError::FLOW_CONTROL_ERROR);
    assert_eq!(code(streams.on_reset_stream(request(5), 0, 1)), TransportError::FLOW_CONTROL_ERROR);
    assert_eq!(code(streams.on_stream(request(0), 16 << 10, data(), false)), TransportError::FLOW_CONTROL_ERROR);
}

#[test]
fn resets_are_read_and_return_the_window() {
    let mut streams = streams(&LIMITS);
    let id = request(0);
    streams.on_stream(id, 100, Bytes::from(vec![0; 1000]), false).unwrap();
    streams.on_reset_stream(id, 9, 16 << 10).unwrap();
    assert_eq!(streams.unread_bytes(), 0);
    accept_all(&mut streams, Dir::Bi);
    assert_eq!(streams.read(id, 10), Err(ReadEnd::Reset(9)));
    assert_eq!(streams.read(id, 10), Err(ReadEnd::Closed));
    let (payload, sent) = packet(&mut streams, 1200);
    assert!(matches!(frames(&payload)[..], [QuicFrame::MaxData(81_920)]));
    lost(&mut streams, &sent);
    let (payload, _) = packet(&mut streams, 1200);
    assert!(matches!(frames(&payload)[..], [QuicFrame::MaxData(81_920)]));
    streams.reset(id, 1);
    let (_, sent) = packet(&mut streams, 1200);
    assert_eq!((sent.as_slice(), streams.sending()), (&[SentFrame::ResetStream { id }][..], 1));
    acked(&mut streams, &sent);
    assert!(!streams.is_open(id) && streams.sending() == 0 && !streams.can_send());
}

#[test]
fn stopped_streams_are_reset_with_the_clients_code() {
    let mut streams = streams(&LIMITS);
    let id = request(0);
    streams.on_stream(id, 0, Bytes::new(), true).unwrap();
    accept_all(&mut streams, Dir::Bi);
    events(&mut streams);
    assert_eq!(streams.read(id, 1), Err(ReadEnd::Finished));
    streams.write(id, &mut [Bytes::from(vec![0; 5000])]).unwrap();
    let (_, first) = packet(&mut streams, 1200);
    streams.on_stop_sending(id, 77).unwrap();
    streams.on_stop_sending(id, 78).unwrap();
    assert_eq!(events(&mut streams), [StreamEvent::Stopped { id, code: 77 }]);
    assert_eq!(streams.write(id, &mut [Bytes::from_static(b"x")]), Err(WriteEnd::Stopped(77)));
    assert_eq!(streams.finish(id), Err(WriteEnd::Stopped(77)));
    streams.reset(id, 1);
    assert_eq!((streams.unacked_bytes(), streams.sending()), (0, 1));
    acked(&mut streams, &first);
    let (payload, sent) = packet(&mut streams, 1200);
    assert!(matches!(frames(&payload)[..], [QuicFrame::ResetStream { code: 77, final_bytes: 1198, .. }]));
    lost(&mut streams, &first);
    lost(&mut streams, &sent);
    lost(&mut streams, &sent);
    let (payload, again) = packet(&mut streams, 1200);
    assert!(matches!(frames(&payload)[..], [QuicFrame::ResetStream { code: 77, final_bytes: 1198, .. }]));
    assert!(!streams.can_send());
    lost(&mut streams, &again);
    // The first packet has arrived after all.
    acked(&mut streams, &sent);
    assert!(!streams.can_send() && !streams.is_open(id) && streams.sending() == 0);
    // Bytes that were not sent are not counted by the client.
    let other = request(1);
    streams.on_stream(other, 0, Bytes::new(), false).unwrap();
    let third = request(2);
    streams.on_stream(third, 0, Bytes::new(), false).unwrap();
    let written = [other, third].map(|id| streams.write(id, &mut [Bytes::from(vec![0; 64 << 10])]).unwrap());
    assert_eq!(written.iter().sum::<usize>(), (128 << 10) - 1198);
}

#[test]
fn stop_sending_is_sent_until_the_client_ends() {
    let mut streams = streams(&LIMITS);
    let id = request(0);
    streams.on_stream(id, 0, Bytes::from(vec![0; 8000]), false).unwrap();
    accept_all(&mut streams, Dir::Bi);
    streams.read(id, 4000).unwrap();
    assert!(streams.can_send(), "the limit of the stream rises");
    streams.stop(id, 5);
    let (payload, sent) = packet(&mut streams, 1200);
    assert!(
        frames(&payload)
            .iter()
            .all(|frame| matches!(frame, QuicFrame::MaxData(_) | QuicFrame::StopSending { code: 5, .. })),
        "{:?}",
        frames(&payload)
    );
    assert!(sent.contains(&SentFrame::StopSending { id }));
    assert_eq!((streams.unread_pieces(), streams.unread_bytes()), (0, 0));
    lost(&mut streams, &sent);
    assert!(streams.can_send());
    streams.on_stream(id, 8000, Bytes::from(vec![0; 10]), true).unwrap();
    assert!(!streams.can_send());
    streams.finish(id).unwrap();
    let (_, sent) = packet(&mut streams, 1200);
    assert_eq!(sent, [SentFrame::Stream { id, offset: 0, bytes: 0, is_fin: true }]);
    acked(&mut streams, &sent);
    assert!(!streams.is_open(id));
}

#[test]
fn blocked_writes_go_on() {
    let mut streams = streams(&StreamLimits { send_window_bytes: 100 << 10, ..LIMITS });
    let ids = [request(0), request(1)];
    streams.on_stream(ids[1], 0, Bytes::new(), true).unwrap();
    accept_all(&mut streams, Dir::Bi);
    events(&mut streams);
    let mut chunks = [Bytes::from(vec![0; 80 << 10])];
    assert_eq!(streams.write(ids[0], &mut chunks), Ok(64 << 10));
    assert_eq!(streams.write(ids[0], &mut chunks), Err(WriteEnd::Blocked));
    // The connection has more, for another stream.
    let mut others = [Bytes::from(vec![0; 80 << 10])];
    assert_eq!(streams.write(ids[1], &mut others), Ok(36 << 10));
    assert_eq!(streams.write(ids[1], &mut others), Err(WriteEnd::Blocked));
    assert_eq!(events(&mut streams), []);
    streams.on_max_stream_data(ids[0], 1 << 20).unwrap();
    assert_eq!(events(&mut streams), [], "the send window is full");
    let mut packets = Vec::new();
    while streams.can_send() {
        packets.push(packet(&mut streams, 1200).1);
    }
    packets.iter().for_each(|sent| acked(&mut streams, sent));
    assert_eq!(events(&mut streams), [StreamEvent::Writable { id: ids[1] }, StreamEvent::Writable { id: ids[0] }]);
    assert_eq!(streams.write(ids[0], &mut chunks), Ok(16 << 10));
    assert_eq!(streams.write(ids[1], &mut others), Ok(12 << 10), "the limit of the connection");
    streams.on_max_data(1 << 20);
    assert_eq!(events(&mut streams), [StreamEvent::Writable { id: ids[1] }]);
    assert_eq!(streams.write(ids[1], &mut others), Ok(16 << 10), "the limit of the stream");
    streams.reset(ids[1], 0);
    streams.on_max_stream_data(ids[1], 1 << 20).unwrap();
    assert_eq!(events(&mut streams), []);
}

#[test]
fn own_streams_are_bounded_by_the_client() {
    let mut streams = streams(&LIMITS);
    let own: Vec<_> = std::iter::from_fn(|| streams.open_uni()).collect();
    assert_eq!(own, [QuicStreamId(3), QuicStreamId(7), QuicStreamId(11)]);
    streams.on_max_streams(Dir::Bi, 9);
    assert_eq!(streams.open_uni(), None);
    streams.on_max_streams(Dir::Uni, 4);
    streams.on_max_streams(Dir::Uni, 2);
    assert_eq!(streams.open_uni(), Some(QuicStreamId(15)));
    assert_eq!(streams.open_uni(), None);
    assert_eq!(streams.write(own[0], &mut [Bytes::from(vec![0; 2000])]), Ok(1024));
    assert_eq!(streams.read(own[0], 1), Err(ReadEnd::Closed));
    assert_eq!(streams.write(incoming(0), &mut [Bytes::from_static(b"x")]), Err(WriteEnd::Closed));
    assert_eq!(streams.sending(), 1);
    let (_, sent) = packet(&mut streams, 1200);
    acked(&mut streams, &sent);
    assert_eq!((streams.sending(), streams.unacked_bytes()), (0, 0));
}

#[test]
fn floods_take_bounded_memory() {
    let mut streams = streams(&LIMITS);
    for _ in 0..100 {
        for number in 0..64 {
            let id = request(number);
            streams.on_reset_stream(id, 1, 0).unwrap();
            streams.on_stop_sending(id, 1).unwrap();
            streams.on_max_stream_data(id, 1 << 30).unwrap();
            streams.on_stream(id, 0, Bytes::new(), false).unwrap();
        }
    }
    assert_eq!(events(&mut streams).len(), 1 + 64);
    assert_eq!((streams.exchanges(), streams.sending()), (64, 64));
    let mut sent = Vec::new();
    while streams.can_send() {
        sent.extend(packet(&mut streams, 1200).1);
    }
    assert_eq!(sent.len(), 64);
    // Streams that no application reads stay open, so that the client gets no others.
    acked(&mut streams, &sent);
    assert!(streams.on_stream(request(64), 0, Bytes::new(), false).is_err());
    for id in accept_all(&mut streams, Dir::Bi) {
        assert_eq!(streams.read(id, 1), Err(ReadEnd::Reset(1)));
    }
    assert_eq!(streams.exchanges(), 0);
    let (payload, _) = packet(&mut streams, 1200);
    assert!(matches!(frames(&payload)[..], [QuicFrame::MaxStreams { dir: Dir::Bi, count: 128 }]));
    streams.shrink();
    assert_eq!(streams.events.capacity() + streams.blocked.capacity(), 0);
}

#[test]
fn lost_data_is_sent_before_that_of_other_streams() {
    let mut streams = streams(&LIMITS);
    for number in 0..3 {
        streams.on_stream(request(number), 0, Bytes::new(), true).unwrap();
    }
    streams.write(request(0), &mut [Bytes::from(vec![0; 1000])]).unwrap();
    let (_, sent) = packet(&mut streams, 1200);
    streams.write(request(1), &mut [Bytes::from(vec![0; 9000])]).unwrap();
    streams.write(request(2), &mut [Bytes::from(vec![0; 9000])]).unwrap();
    lost(&mut streams, &sent);
    let (_, again) = packet(&mut streams, 1200);
    assert_eq!(again[0], sent[0]);
    assert!(matches!(again[1], SentFrame::Stream { id, .. } if id == request(1)));
}

#[test]
fn data_in_many_chunks_is_found() {
    let mut streams = streams(&LIMITS);
    let id = request(0);
    streams.on_stream(id, 0, Bytes::new(), true).unwrap();
    let all: Vec<u8> = (0..40_000u32).map(|index| (index % 253) as u8).collect();
    let mut at = 0;
    for length in (1..300).cycle() {
        let end = (at + length).min(all.len());
        assert_eq!(streams.write(id, &mut [Bytes::copy_from_slice(&all[at..end])]), Ok(end - at));
        at = end;
        if at == all.len() {
            break;
        }
    }
    let mut packets = Vec::new();
    while streams.can_send() {
        packets.push(packet(&mut streams, 1200));
    }
    // Every third packet is lost, and each is found again between others.
    for (_, sent) in packets.iter().skip(1).step_by(3) {
        lost(&mut streams, sent);
    }
    for (_, sent) in packets.iter().step_by(3) {
        acked(&mut streams, sent);
    }
    while streams.can_send() {
        packets.push(packet(&mut streams, 700));
    }
    let mut received = vec![0; all.len()];
    for (payload, sent) in &packets {
        for frame in frames(payload) {
            if let QuicFrame::Stream { offset, data, .. } = frame {
                received[offset as usize..][..data.len()].copy_from_slice(data);
                assert_eq!(data, &all[offset as usize..][..data.len()]);
            }
        }
        acked(&mut streams, sent);
    }
    assert!(received == all);
    assert_eq!((streams.unacked_bytes(), streams.sending()), (0, 0));
}
