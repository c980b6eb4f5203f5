//! Traces of connections in qlog's form (draft-ietf-quic-qlog-main-schema, version 0.3, with the events of
//! draft-ietf-quic-qlog-quic-events).
//!
//! Only connections that an operator watches have a trace, so a record may cost several allocations.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::frame::{AckFrame, FrameReader, QuicFrame};
use crate::id::{ConnectionId, Dir};
use crate::packet::{PacketKind, Space};

/// Receiver of a trace. Each call passes one JSON record, without the separators of JSON-SEQ (RFC 7464).
pub type QlogSink = Arc<dyn Fn(&str) + Send + Sync>;

/// Version of qlog's main schema.
const QLOG_VERSION: &str = "0.3";

/// Frames of a packet that are in its record. A packet may have one for each of its bytes.
const FRAMES_MAX: usize = 64;

/// Acknowledged ranges that are in the record of an ACK frame.
const RANGES_MAX: usize = 64;

/// Bytes of a peer's text that are in a record.
const REASON_BYTES_MAX: usize = 256;

/// Trace of a connection.
pub(crate) struct QlogTrace {
    sink: QlogSink,
    /// Original destination ID, by which the records of a connection belong together.
    group: String,
    start: Instant,
    /// Metrics of the latest record, because a record has only those that have changed.
    metrics: Map<String, Value>,
}

/// Metrics of a connection's recovery.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QlogMetrics {
    pub(crate) min_rtt: Duration,
    pub(crate) smoothed_rtt: Duration,
    pub(crate) latest_rtt: Duration,
    pub(crate) rtt_variance: Duration,
    /// Probe timeouts in a row.
    pub(crate) pto_count: u32,
    /// Congestion window, in bytes.
    pub(crate) congestion_window: u64,
    pub(crate) bytes_in_flight: u64,
    /// Slow start threshold in bytes, after slow start.
    pub(crate) ssthresh: Option<u64>,
    /// Pacing rate, in bytes per second.
    pub(crate) pacing_rate: Option<u64>,
}

impl QlogTrace {
    /// Begins a trace with the header record, and the start of the connection.
    pub(crate) fn new(now: Instant, sink: QlogSink, original_dcid: &ConnectionId, remote: SocketAddr) -> Self {
        let client = remote.ip().to_canonical();
        let description = format!("client {client}");
        let header = json!({
            "qlog_version": QLOG_VERSION,
            "qlog_format": "JSON-SEQ",
            "title": "tailcoat",
            "description": description,
            "trace": {
                "vantage_point": { "type": "server" },
                "title": "tailcoat",
                "description": description,
                "configuration": { "time_offset": 0.0 },
            },
        });
        sink(&header.to_string());
        let trace = Self { sink, group: format!("{original_dcid:?}"), start: now, metrics: Map::new() };
        let data = json!({
            "ip_version": if client.is_ipv4() { "v4" } else { "v6" },
            "src_ip": client.to_string(),
            "src_port": remote.port(),
            "protocol": "QUIC",
            "dst_cid": trace.group,
        });
        trace.write(now, "connectivity:connection_started", data);
        trace
    }

    /// Records a packet that is sent. `payload` has its frames in plain text.
    pub(crate) fn packet_sent(&self, now: Instant, kind: PacketKind, number: u64, payload: &[u8]) {
        let raw = json!({ "payload_length": payload.len() });
        self.packet(now, "transport:packet_sent", kind, number, raw, payload);
    }

    /// Records a packet that was received and decrypted. `bytes` is the length of its datagram.
    pub(crate) fn packet_received(&self, now: Instant, kind: PacketKind, number: u64, bytes: usize, payload: &[u8]) {
        let raw = json!({ "length": bytes, "payload_length": payload.len() });
        self.packet(now, "transport:packet_received", kind, number, raw, payload);
    }

    /// Records a packet that is declared lost.
    pub(crate) fn packet_lost(&self, now: Instant, space: Space, number: u64) {
        let kind = match space {
            Space::Initial => PacketKind::Initial,
            Space::Handshake => PacketKind::Handshake,
            Space::Data => PacketKind::OneRtt,
        };
        let header = json!({ "packet_type": packet_type(kind), "packet_number": number });
        self.write(now, "recovery:packet_lost", json!({ "header": header }));
    }

    /// Records the metrics that have changed, if any.
    pub(crate) fn metrics_updated(&mut self, now: Instant, metrics: &QlogMetrics) {
        let mut data = json!({
            "min_rtt": milliseconds(metrics.min_rtt),
            "smoothed_rtt": milliseconds(metrics.smoothed_rtt),
            "latest_rtt": milliseconds(metrics.latest_rtt),
            "rtt_variance": milliseconds(metrics.rtt_variance),
            "pto_count": metrics.pto_count,
            "congestion_window": metrics.congestion_window,
            "bytes_in_flight": metrics.bytes_in_flight,
        });
        for (name, value) in [("ssthresh", metrics.ssthresh), ("pacing_rate", metrics.pacing_rate)] {
            if let Some(value) = value {
                set(&mut data, name, value.into());
            }
        }
        let Value::Object(mut data) = data else { return };
        data.retain(|name, value| self.metrics.get(name) != Some(value));
        if !data.is_empty() {
            self.metrics.extend(data.clone());
            self.write(now, "recovery:metrics_updated", data.into());
        }
    }

    /// Records the end of the connection. `is_application` is true if `code` is one of the application.
    pub(crate) fn connection_closed(&self, now: Instant, is_application: bool, code: u64, reason: &str) {
        let code_name = if is_application { "application_code" } else { "connection_code" };
        let mut data = json!({ "reason": text(reason.as_bytes()) });
        set(&mut data, code_name, code.into());
        self.write(now, "connectivity:connection_closed", data);
    }

    fn packet(&self, now: Instant, name: &str, kind: PacketKind, number: u64, raw: Value, payload: &[u8]) {
        let frames = FrameReader::new(payload).take(FRAMES_MAX).filter_map(Result::ok);
        let data = json!({
            "header": { "packet_type": packet_type(kind), "packet_number": number },
            "raw": raw,
            "frames": frames.map(|frame| frame_record(&frame)).collect::<Vec<_>>(),
        });
        self.write(now, name, data);
    }

    fn write(&self, now: Instant, name: &str, data: Value) {
        let time = milliseconds(now.saturating_duration_since(self.start));
        let record = json!({ "time": time, "name": name, "data": data, "group_id": self.group });
        (self.sink)(&record.to_string());
    }
}

fn packet_type(kind: PacketKind) -> &'static str {
    match kind {
        PacketKind::Initial => "initial",
        PacketKind::ZeroRtt => "0RTT",
        PacketKind::Handshake => "handshake",
        PacketKind::Retry => "retry",
        PacketKind::OneRtt => "1RTT",
        PacketKind::VersionNegotiation => "version_negotiation",
    }
}

/// Record of a frame. Data of streams and of the handshake, and secrets are not in it.
fn frame_record(frame: &QuicFrame<'_>) -> Value {
    match frame {
        QuicFrame::Padding => json!({ "frame_type": "padding" }),
        QuicFrame::Ping => json!({ "frame_type": "ping" }),
        QuicFrame::Ack(ack) => ack_record(ack),
        QuicFrame::ResetStream { id, code, final_bytes } => {
            json!({ "frame_type": "reset_stream", "stream_id": id.0, "error_code": code, "final_size": final_bytes })
        }
        QuicFrame::StopSending { id, code } => {
            json!({ "frame_type": "stop_sending", "stream_id": id.0, "error_code": code })
        }
        QuicFrame::Crypto { offset, data } => json!({ "frame_type": "crypto", "offset": offset, "length": data.len() }),
        QuicFrame::NewToken => json!({ "frame_type": "new_token" }),
        QuicFrame::Stream { id, offset, data, is_fin } => json!({
            "frame_type": "stream", "stream_id": id.0, "offset": offset, "length": data.len(), "fin": is_fin,
        }),
        QuicFrame::MaxData(bytes) => json!({ "frame_type": "max_data", "maximum": bytes }),
        QuicFrame::MaxStreamData { id, bytes } => {
            json!({ "frame_type": "max_stream_data", "stream_id": id.0, "maximum": bytes })
        }
        QuicFrame::MaxStreams { dir, count } => {
            json!({ "frame_type": "max_streams", "stream_type": stream_type(*dir), "maximum": count })
        }
        QuicFrame::DataBlocked => json!({ "frame_type": "data_blocked" }),
        QuicFrame::StreamDataBlocked { id } => json!({ "frame_type": "stream_data_blocked", "stream_id": id.0 }),
        QuicFrame::StreamsBlocked { dir, count } => {
            json!({ "frame_type": "streams_blocked", "stream_type": stream_type(*dir), "limit": count })
        }
        QuicFrame::NewConnectionId { sequence, retire_prior_to, id, .. } => json!({
            "frame_type": "new_connection_id", "sequence_number": sequence, "retire_prior_to": retire_prior_to,
            "connection_id_length": id.len(), "connection_id": format!("{id:?}"),
        }),
        QuicFrame::RetireConnectionId { sequence } => {
            json!({ "frame_type": "retire_connection_id", "sequence_number": sequence })
        }
        QuicFrame::PathChallenge(data) => json!({ "frame_type": "path_challenge", "data": hexadecimal(data) }),
        QuicFrame::PathResponse(data) => json!({ "frame_type": "path_response", "data": hexadecimal(data) }),
        QuicFrame::Close { is_application, code, reason } => json!({
            "frame_type": "connection_close", "error_space": if *is_application { "application" } else { "transport" },
            "error_code": code, "reason": text(reason),
        }),
        QuicFrame::HandshakeDone => json!({ "frame_type": "handshake_done" }),
    }
}

fn ack_record(ack: &AckFrame<'_>) -> Value {
    let ranges: Vec<_> = ack.ranges().take(RANGES_MAX).map(|range| [*range.start(), *range.end()]).collect();
    let mut record = json!({ "frame_type": "ack", "acked_ranges": ranges });
    if let Some(ecn) = &ack.ecn {
        for (name, count) in [("ect0", ecn.ect0), ("ect1", ecn.ect1), ("ce", ecn.ce)] {
            set(&mut record, name, count.into());
        }
    }
    record
}

fn stream_type(dir: Dir) -> &'static str {
    match dir {
        Dir::Bi => "bidirectional",
        Dir::Uni => "unidirectional",
    }
}

/// Sets a member of an object.
fn set(object: &mut Value, name: &str, value: Value) {
    if let Value::Object(members) = object {
        members.insert(name.to_owned(), value);
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1_000.0
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Beginning of a text.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(REASON_BYTES_MAX)]).into_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::frame::{write_close, write_crypto, write_ping, write_stream_header};
    use crate::id::QuicStreamId;

    /// New trace, with the records that it writes.
    fn trace() -> (QlogTrace, Instant, Arc<Mutex<Vec<Value>>>) {
        let records = Arc::<Mutex<Vec<_>>>::default();
        let written = Arc::clone(&records);
        let sink = move |record: &str| {
            assert!(!record.contains(['\n', '\u{1e}']));
            written.lock().unwrap().push(serde_json::from_str(record).expect("JSON"));
        };
        let (now, id) = (Instant::now(), ConnectionId::new(&[0xab; 8]).unwrap());
        let remote = "[::ffff:192.0.2.7]:4433".parse().unwrap();
        (QlogTrace::new(now, Arc::new(sink), &id, remote), now, records)
    }

    #[test]
    fn a_trace_begins_with_its_header() {
        let (_trace, _, records) = trace();
        let records = records.lock().unwrap();
        let [header, started] = &records[..] else { panic!("{records:?}") };
        assert_eq!([&header["qlog_version"], &header["qlog_format"]], ["0.3", "JSON-SEQ"]);
        assert_eq!([&header["title"], &header["description"]], ["tailcoat", "client 192.0.2.7"]);
        assert_eq!(header["trace"]["vantage_point"]["type"], "server");
        assert_eq!(started["name"], "connectivity:connection_started");
        assert_eq!((started["group_id"].as_str(), started["time"].as_f64()), (Some("abababababababab"), Some(0.0)));
        let data = &started["data"];
        assert_eq!([&data["ip_version"], &data["src_ip"]], ["v4", "192.0.2.7"]);
    }

    #[test]
    fn packets_are_recorded_with_their_frames() {
        let (trace, now, records) = trace();
        let mut payload = Vec::new();
        write_ping(&mut payload);
        write_crypto(&mut payload, 5, b"hello");
        write_close(&mut payload, true, 0x100, 0, b"bye \xff", 1_000);
        write_stream_header(&mut payload, QuicStreamId(4), 7, None, true);
        payload.extend_from_slice(b"data");
        let at = now + Duration::from_micros(1_500);
        trace.packet_sent(at, PacketKind::OneRtt, 9, &payload);
        // Frames after a broken one are not known.
        trace.packet_received(at, PacketKind::Initial, 3, 1_200, &[1, 0xff, 0xff]);
        trace.packet_received(at, PacketKind::ZeroRtt, 4, 1_200, &[1; 1_000]);
        let records = records.lock().unwrap();
        let sent = &records[2];
        assert_eq!((sent["name"].as_str(), sent["time"].as_f64()), (Some("transport:packet_sent"), Some(1.5)));
        assert_eq!(sent["data"]["header"], json!({ "packet_type": "1RTT", "packet_number": 9 }));
        assert_eq!(sent["data"]["raw"]["payload_length"], payload.len());
        let expected = json!([
            { "frame_type": "ping" },
            { "frame_type": "crypto", "offset": 5, "length": 5 },
            {
                "frame_type": "connection_close", "error_space": "application", "error_code": 0x100,
                "reason": "bye \u{fffd}",
            },
            { "frame_type": "stream", "stream_id": 4, "offset": 7, "length": 4, "fin": true },
        ]);
        assert_eq!(sent["data"]["frames"], expected);
        assert_eq!(records[3]["name"], "transport:packet_received");
        assert_eq!(records[3]["data"]["raw"]["length"], 1_200);
        assert_eq!(records[3]["data"]["frames"], json!([{ "frame_type": "ping" }]));
        assert_eq!(records[4]["data"]["header"]["packet_type"], "0RTT");
        assert_eq!(records[4]["data"]["frames"].as_array().unwrap().len(), FRAMES_MAX);
    }

    #[test]
    fn changed_metrics_losses_and_the_end_are_recorded() {
        let (mut trace, now, records) = trace();
        let mut metrics = QlogMetrics { smoothed_rtt: Duration::from_millis(20), ..QlogMetrics::default() };
        trace.metrics_updated(now, &metrics);
        trace.metrics_updated(now, &metrics);
        (metrics.congestion_window, metrics.ssthresh) = (12_000, Some(9_000));
        trace.metrics_updated(now, &metrics);
        trace.packet_lost(now, Space::Data, 7);
        trace.connection_closed(now, false, 10, &"x".repeat(1_000));
        let records = records.lock().unwrap();
        let [_, _, first, second, lost, closed] = &records[..] else { panic!("{records:?}") };
        assert_eq!(first["data"]["smoothed_rtt"], 20.0);
        assert_eq!(second["data"], json!({ "congestion_window": 12_000, "ssthresh": 9_000 }));
        assert_eq!(lost["name"], "recovery:packet_lost");
        assert_eq!(lost["data"]["header"], json!({ "packet_type": "1RTT", "packet_number": 7 }));
        assert_eq!(
            (&closed["name"], &closed["data"]["connection_code"]),
            (&json!("connectivity:connection_closed"), &json!(10))
        );
        assert_eq!(closed["data"]["reason"].as_str().unwrap().len(), REASON_BYTES_MAX);
    }
}
