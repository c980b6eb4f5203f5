//! Tests of the endpoint with real keys of Initial packets.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use proptest::prelude::*;
use rustls::Side;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{DirectionalKeys, PacketKey, Suite, Tag, Version};

use super::*;
use crate::congestion::CongestionAlgorithm;
use crate::frame::{FrameReader, QuicFrame};
use crate::id::ResetToken;
use crate::streams::StreamLimits;
use crate::tls::TlsSession;
use crate::types::Ecn;

/// IDs of 8 bytes that begin with 7.
#[derive(Default)]
struct CountedIds(u32);

impl IdSource for CountedIds {
    fn next_id(&mut self) -> ConnectionId {
        self.0 += 1;
        let count = self.0.to_be_bytes();
        ConnectionId::new(&[[7, 0, 0, 0], count].concat()).unwrap()
    }

    fn is_own(&self, id: &ConnectionId) -> bool {
        id.first() == Some(&7)
    }

    fn id_bytes(&self) -> usize {
        8
    }
}

/// Counts of expensive operations.
#[derive(Default)]
struct Counts {
    derivations: AtomicUsize,
    decryptions: AtomicUsize,
}

struct CountingTls(Arc<Counts>);

struct CountingKey(Box<dyn PacketKey>, Arc<Counts>);

impl PacketKey for CountingKey {
    fn encrypt_in_place(&self, number: u64, header: &[u8], payload: &mut [u8]) -> Result<Tag, rustls::Error> {
        self.0.encrypt_in_place(number, header, payload)
    }

    fn decrypt_in_place<'a>(
        &self,
        number: u64,
        header: &[u8],
        payload: &'a mut [u8],
    ) -> Result<&'a [u8], rustls::Error> {
        self.1.decryptions.fetch_add(1, Ordering::Relaxed);
        self.0.decrypt_in_place(number, header, payload)
    }

    fn tag_len(&self) -> usize {
        self.0.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.0.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.0.integrity_limit()
    }
}

fn suite() -> Suite {
    TLS13_AES_128_GCM_SHA256.tls13().and_then(|suite| suite.quic_suite()).unwrap()
}

impl TlsServer for CountingTls {
    fn initial_keys(&self, id: &ConnectionId) -> Keys {
        self.0.derivations.fetch_add(1, Ordering::Relaxed);
        let keys = suite().keys(id, Side::Server, Version::V1);
        let DirectionalKeys { header, packet } = keys.remote;
        let packet = Box::new(CountingKey(packet, Arc::clone(&self.0)));
        Keys { local: keys.local, remote: DirectionalKeys { header, packet } }
    }

    fn start(&self, _: Vec<u8>) -> Box<dyn TlsSession> {
        unreachable!("the tests begin no handshake")
    }
}

/// Endpoint with its server, and the client's address.
struct Bench {
    endpoint: ServerEndpoint,
    server: Arc<dyn TlsServer>,
    counts: Arc<Counts>,
    now: Instant,
    remote: SocketAddr,
    out: Vec<u8>,
}

impl Bench {
    fn new() -> Self {
        Self::with(EndpointConfig::new([1; 32], [2; 32]))
    }

    fn with(config: EndpointConfig) -> Self {
        let counts = Arc::<Counts>::default();
        let server: Arc<dyn TlsServer> = Arc::new(CountingTls(Arc::clone(&counts)));
        let mut endpoint = ServerEndpoint::new(config, Box::new(CountedIds::default()));
        endpoint.set_accepts(Some(Arc::clone(&server)));
        let (now, remote) = (Instant::now(), "192.0.2.9:4433".parse().unwrap());
        Self { endpoint, server, counts, now, remote, out: Vec::new() }
    }

    fn handle(&mut self, payload: &[u8]) -> Handled {
        self.out.clear();
        let datagram = Datagram {
            remote: self.remote,
            local: Some([192, 0, 2, 1].into()),
            ecn: Some(Ecn::Ect0),
            payload: BytesMut::from(payload),
        };
        self.endpoint.handle(self.now, datagram, &mut self.out)
    }

    fn incoming(&mut self, payload: &[u8]) -> NewClient {
        match self.handle(payload) {
            Handled::NewClient(incoming) => incoming,
            other => panic!("{}", name(&other)),
        }
    }

    fn begin(&mut self, incoming: NewClient) -> (ConnectionKey, ConnectionParts<'_>) {
        self.endpoint.begin(incoming, self.now, &self.server, &settings()).expect("a connection")
    }

    /// Key and first ID of a new connection.
    fn connect(&mut self, dcid: &[u8]) -> (ConnectionKey, IssuedId) {
        let incoming = self.incoming(&initial(dcid, &[], 1_200));
        let (key, parts) = self.begin(incoming);
        (key, parts.own_id)
    }

    /// Response that was sent.
    fn response(&mut self, payload: &[u8]) -> Option<Vec<u8>> {
        match self.handle(payload) {
            Handled::Response(transmit) => {
                assert_eq!((transmit.remote, transmit.bytes), (self.remote, self.out.len()));
                assert_eq!(
                    (transmit.local, transmit.ecn, transmit.segment_bytes),
                    (Some([192, 0, 2, 1].into()), None, None)
                );
                Some(std::mem::take(&mut self.out))
            }
            Handled::Dropped => None,
            other => panic!("{}", name(&other)),
        }
    }

    fn counted(&self) -> [usize; 2] {
        [&self.counts.derivations, &self.counts.decryptions].map(|count| count.swap(0, Ordering::Relaxed))
    }
}

fn name(handled: &Handled) -> &'static str {
    match handled {
        Handled::Connection(..) => "connection",
        Handled::NewClient(_) => "incoming",
        Handled::Response(_) => "response",
        Handled::Dropped => "dropped",
    }
}

fn settings() -> TransportSettings {
    TransportSettings {
        streams: StreamLimits {
            window_bytes: 1,
            connection_window_bytes: 1,
            bidi_max: 1,
            uni_max: 1,
            send_window_bytes: 1,
        },
        idle_timeout: Duration::from_secs(30),
        initial_round_trip: Duration::from_millis(100),
        congestion: CongestionAlgorithm::Cubic,
        initial_window_bytes: 12_000,
        probes_mtu: true,
        qlog: None,
    }
}

const CLIENT_SCID: [u8; 5] = [5; 5];

fn id(bytes: &[u8]) -> ConnectionId {
    ConnectionId::new(bytes).unwrap()
}

/// First datagram of a client.
fn initial(dcid: &[u8], token: &[u8], bytes: usize) -> Vec<u8> {
    let keys = suite().keys(dcid, Side::Client, Version::V1);
    let mut out = Vec::new();
    let packet = PacketWriter::long(&mut out, PacketKind::Initial, &id(dcid), &id(&CLIENT_SCID), token, 0, None);
    out.push(1);
    out.resize(bytes - 16, 0);
    packet.finish(&mut out, 0, &*keys.local.packet, &*keys.local.header).unwrap();
    out
}

fn short(dcid: &[u8], bytes: usize) -> Vec<u8> {
    let mut packet = [&[0x41], dcid].concat();
    packet.resize(bytes, 0xee);
    packet
}

fn long(first: u8, version: u32, dcid: &[u8], bytes: usize) -> Vec<u8> {
    let mut packet = vec![first];
    packet.extend_from_slice(&version.to_be_bytes());
    packet.push(dcid.len() as u8);
    packet.extend_from_slice(dcid);
    packet.push(CLIENT_SCID.len() as u8);
    packet.extend_from_slice(&CLIENT_SCID);
    packet.resize(bytes, 0);
    packet
}

#[test]
fn a_client_gets_a_connection_with_all_its_datagrams() {
    let mut bench = Bench::new();
    let first = initial(&[9; 8], &[], 1_250);
    let incoming = bench.incoming(&first);
    assert_eq!((incoming.remote(), incoming.local()), (bench.remote, Some([192, 0, 2, 1].into())));
    assert!(!incoming.is_validated() && incoming.may_retry());
    // More of the client's first flight, in any order.
    let further = [initial(&[9; 8], &[], 1_300), long(0xd0, 1, &[9; 8], 900)];
    for datagram in &further {
        assert!(matches!(bench.handle(datagram), Handled::Dropped));
    }
    let (now, remote) = (bench.now, bench.remote);
    let (key, parts) = bench.begin(incoming);
    let kept: Vec<_> = parts.datagrams.iter().map(|datagram| &datagram.payload[..]).collect();
    assert_eq!(kept, [&first[..], &further[0], &further[1]], "as they have arrived, still encrypted");
    assert!(parts.datagrams.iter().all(|datagram| datagram.ecn == Some(Ecn::Ect0) && datagram.remote == remote));
    assert_eq!((parts.now, parts.remote, parts.local), (now, remote, Some([192, 0, 2, 1].into())));
    assert_eq!((parts.client_scid, parts.original_dcid), (id(&CLIENT_SCID), id(&[9; 8])));
    assert_eq!((parts.retry_scid, parts.is_validated, parts.own_id.sequence), (None, false, 0));
    assert!(parts.new_token.len() < 64 && !parts.new_token.is_empty());
    let number_at = read_header(&first, 8).unwrap().number_at;
    assert!(can_decrypt(&parts.initial_keys, &parts.datagrams[0].payload, number_at, &mut Vec::new()));
    let own_id = parts.own_id;
    assert_eq!(bench.counted()[0], 1, "keys are derived once");
    for (payload, is_found) in [
        (initial(&[9; 8], &[], 1_200), true),
        (long(0xe0, 1, &own_id.id, 60), true),
        (long(0xc0, 1, &own_id.id, 60), true),
        (short(&own_id.id, 22), true),
        (long(0xe0, 1, &[9; 7], 1_200), false),
        (long(0xe0, 2, &own_id.id, 60), false),
    ] {
        match bench.handle(&payload) {
            Handled::Connection(found, datagram) => {
                assert!(is_found && found == key && datagram.payload == payload[..])
            }
            _ => assert!(!is_found),
        }
    }
    assert_eq!((bench.counted(), bench.endpoint.connections()), ([0, 0], 1));
}

#[test]
fn ids_come_and_go_with_their_connection() {
    let mut bench = Bench::new();
    let (key, first) = bench.connect(&[9; 8]);
    let (other, _) = bench.connect(&[8; 8]);
    assert_ne!(key, other);
    let more = bench.endpoint.handle_event(key, EndpointEvent::NeedIds(3)).unwrap();
    assert_eq!(more.iter().map(|issued| issued.sequence).collect::<Vec<_>>(), [1, 2, 3]);
    let mut ids = vec![first];
    ids.extend(more);
    let found = |bench: &mut Bench| -> Vec<_> {
        let is_found = |issued: &IssuedId| matches!(bench.handle(&short(&issued.id, 21)), Handled::Connection(..));
        ids.iter().map(is_found).collect()
    };
    assert_eq!(found(&mut bench), [true; 4]);
    for sequence in [0, 2, 9, u64::MAX] {
        assert_eq!(bench.endpoint.handle_event(key, EndpointEvent::RetiredId { sequence }), None);
    }
    assert_eq!(found(&mut bench), [false, true, false, true]);
    assert_eq!(bench.endpoint.handle_event(key, EndpointEvent::NeedIds(1)).unwrap()[0].sequence, 4);
    bench.endpoint.handle_event(key, EndpointEvent::Drained);
    assert_eq!((found(&mut bench), bench.endpoint.connections()), (vec![false; 4], 1));
    assert_eq!(bench.endpoint.handle_event(key, EndpointEvent::NeedIds(1)), None, "drained");
    assert!(matches!(bench.handle(&initial(&[9; 8], &[], 1_200)), Handled::NewClient(_)), "the client begins again");
}

#[test]
fn packets_of_lost_connections_are_reset() {
    let mut bench = Bench::new();
    let (key, issued) = bench.connect(&[9; 8]);
    bench.endpoint.handle_event(key, EndpointEvent::Drained);
    let reset = bench.response(&short(&issued.id, 1_200)).unwrap();
    assert_eq!((reset.len(), reset[0] & 0xc0, &reset[reset.len() - 16..]), (43, 0x40, &issued.token.0[..]));
    assert_eq!(bench.response(&short(&issued.id, 30)).unwrap().len(), 29);
    // Another process with the same keys.
    let mut next = Bench::new();
    assert_eq!(next.response(&short(&issued.id, 50)).unwrap()[27..], issued.token.0);
    for payload in [
        short(&issued.id, 21),
        short(&[8; 8], 1_200),
        long(0xe0, 1, &issued.id, 1_200),
        long(0xd0, 1, &issued.id, 1_200),
        short(&[7; 7], 8),
        vec![],
        vec![0x40],
    ] {
        assert_eq!(next.response(&payload), None, "{payload:?}");
    }
    // A reset of this server cannot lead to another one for ever.
    let mut packet = short(&issued.id, 1_000);
    let mut rounds = 0;
    while let Some(reset) = next.response(&packet) {
        packet = [&[0x40], &issued.id[..], &reset[9..]].concat();
        rounds += 1;
    }
    assert!(rounds <= 23, "{rounds}");
    let floods = (0..1_000).filter(|_| next.response(&short(&issued.id, 50)).is_some()).count();
    assert!(floods <= 100, "{floods} responses at once");
}

#[test]
fn a_client_can_reset_its_connection() {
    let mut bench = Bench::new();
    let (key, _) = bench.connect(&[9; 8]);
    let (token, remote) = (ResetToken([0xab; 16]), bench.remote);
    let mut reset = short(&[3; 8], 30);
    reset.extend_from_slice(&token.0);
    assert!(matches!(bench.handle(&reset), Handled::Dropped));
    bench.endpoint.handle_event(key, EndpointEvent::ResetToken { remote, token });
    assert!(matches!(bench.handle(&reset), Handled::Connection(found, _) if found == key));
    bench.remote.set_port(1);
    assert!(matches!(bench.handle(&reset), Handled::Dropped), "another client");
    bench.remote = remote;
    bench.endpoint.handle_event(key, EndpointEvent::Drained);
    assert!(matches!(bench.handle(&reset), Handled::Dropped));
}

#[test]
fn unknown_versions_are_negotiated() {
    let mut bench = Bench::new();
    let dcid = [4; 200];
    let packet = bench.response(&long(0x80, 0x5a5a_5a5a, &dcid, 1_200)).unwrap();
    let ids = [&[5][..], &CLIENT_SCID, &[200], &dcid].concat();
    assert!(packet[0] & 0x80 != 0 && packet[1..5] == [0; 4] && packet[5..5 + ids.len()] == ids);
    assert!(packet[5 + ids.len()..].chunks(4).any(|version| version == [0, 0, 0, 1]));
    assert_eq!(bench.response(&long(0x80, 0x5a5a_5a5a, &dcid, 1_199)), None, "too small");
    assert_eq!(bench.response(&long(0x80, 0, &dcid[..8], 1_200)), None, "Version Negotiation itself");
    let floods = (0..1_000).filter(|_| bench.response(&long(0x80, 9, &dcid, 1_200)).is_some()).count();
    assert!(floods <= 100, "{floods} responses at once");
    bench.endpoint.set_accepts(None);
    bench.now += Duration::from_secs(1);
    assert_eq!(bench.response(&long(0x80, 9, &dcid, 1_200)), None, "no new clients");
    assert_eq!(bench.counted(), [0, 0]);
}

#[test]
fn a_retry_packet_proves_the_address() {
    let mut bench = Bench::new();
    let incoming = bench.incoming(&initial(&[9; 8], &[], 1_200));
    let mut out = Vec::new();
    let transmit = bench.endpoint.retry(incoming, &mut out).unwrap();
    assert_eq!((transmit.bytes, transmit.remote), (out.len(), bench.remote));
    assert_eq!((bench.endpoint.waiting.len(), out.len() < 300), (0, true), "no state is kept");
    let header = read_header(&out, 8).unwrap();
    assert_eq!((header.kind, header.destination), (PacketKind::Retry, id(&CLIENT_SCID)));
    let (scid, token) = (header.source, out[header.token].to_vec());
    let answer = initial(&scid, &token, 1_200);

    // Not for another client. It learns that it need not wait for its timeout.
    let remote = bench.remote;
    bench.remote.set_port(1);
    let mut refusal = bench.response(&answer).unwrap();
    let keys = suite().keys(&scid, Side::Client, Version::V1);
    let header = read_header(&refusal, 8).unwrap();
    assert_eq!((header.kind, header.destination, header.end), (PacketKind::Initial, id(&CLIENT_SCID), refusal.len()));
    let number = unprotect(&mut refusal, header.number_at, &*keys.remote.header).unwrap();
    let (head, body) = refusal.split_at_mut(header.number_at + number.bytes);
    let frames = keys.remote.packet.decrypt_in_place(0, head, body).unwrap();
    let mut frames = FrameReader::new(frames);
    assert!(matches!(
        frames.next(),
        Some(Ok(QuicFrame::Close { is_application: false, code: TransportError::INVALID_TOKEN, .. }))
    ));
    assert_eq!(bench.endpoint.waiting.len(), 0);
    bench.remote = remote;

    // Another process with the same keys continues.
    let mut next = Bench::new();
    let incoming = next.incoming(&answer);
    assert!(incoming.is_validated() && !incoming.may_retry());
    let (_, parts) = next.begin(incoming);
    assert_eq!((parts.original_dcid, parts.retry_scid), (id(&[9; 8]), Some(scid)));
    assert!(parts.is_validated);
    let again = next.handle(&answer);
    assert!(matches!(again, Handled::Connection(..)), "sent again");
    // A second Retry packet would be ignored by the client.
    let incoming = bench.incoming(&answer);
    assert!(bench.endpoint.retry(incoming, &mut out).is_none());
    assert_eq!(bench.endpoint.waiting.len(), 0);
}

#[test]
fn a_token_of_a_connection_proves_the_address_of_the_next() {
    let mut bench = Bench::new();
    let incoming = bench.incoming(&initial(&[9; 8], &[], 1_200));
    let token = bench.begin(incoming).1.new_token;
    bench.remote.set_port(999);
    let incoming = bench.incoming(&initial(&[8; 8], &token, 1_200));
    assert!(incoming.is_validated() && incoming.may_retry());
    bench.endpoint.ignore(incoming);
    let incoming = bench.incoming(&initial(&[8; 8], &token, 1_200));
    assert!(!incoming.is_validated(), "used");
    let incoming = bench.incoming(&initial(&[6; 8], b"\x01unknown token", 1_200));
    assert!(!incoming.is_validated() && incoming.may_retry());
}

#[test]
fn forged_first_packets_cost_one_derivation_and_one_decryption() {
    let mut bench = Bench::new();
    let whole = initial(&[9; 8], &[], 1_200);
    // Garbage after a header that looks well, and a packet that was changed on its way.
    for at in [30, 100, 1_199] {
        let mut forged = whole.clone();
        forged[at] ^= 1;
        assert_eq!((name(&bench.handle(&forged)), bench.counted()), ("dropped", [1, 1]), "byte {at}");
    }
    // Rejected for nothing.
    for payload in [
        whole[..1_199].to_vec(),
        initial(&[9; 7], &[], 1_200),
        long(0xc0, 1, &[9; 8], 1_200),
        long(0xd0, 1, &[9; 8], 1_200),
        long(0xe0, 1, &[9; 8], 1_200),
        long(0xf0, 1, &[9; 8], 1_200),
        long(0xc0, 1, &[9; 21], 1_200),
    ] {
        let (handled, counted) = (name(&bench.handle(&payload)), bench.counted());
        // A length of 0 has no room for a packet number, so that nothing is decrypted.
        assert_eq!((handled, counted[1]), ("dropped", 0));
        assert!(counted[0] == 0 || payload[0] == 0xc0 && payload[5] == 8);
    }
    assert_eq!((bench.endpoint.waiting.len(), bench.endpoint.connections()), (0, 0));
    bench.endpoint.set_accepts(None);
    assert_eq!((name(&bench.handle(&whole)), bench.counted()), ("dropped", [0, 0]));
}

/// Memory before the handshake (CVE-2025-54939).
#[test]
fn a_flood_of_clients_takes_limited_memory() {
    let mut config = EndpointConfig::new([1; 32], [2; 32]);
    config.incoming_max = 20;
    let mut bench = Bench::with(config);
    let mut waiting = Vec::new();
    for number in 0..100_u8 {
        let dcid = [number; 8];
        match bench.handle(&initial(&dcid, &[], 1_200)) {
            Handled::NewClient(incoming) => waiting.push(incoming),
            handled => assert_eq!(name(&handled), "dropped"),
        }
        for _ in 0..100 {
            assert_eq!(name(&bench.handle(&long(0xd0, 1, &dcid, 500))), "dropped");
        }
    }
    assert_eq!((waiting.len(), bench.counted()), (20, [20, 20]), "later ones cost no key derivation");
    for incoming in waiting {
        let (_, parts) = bench.begin(incoming);
        let bytes: usize = parts.datagrams.iter().map(|datagram| datagram.payload.len()).sum();
        assert!((7_000..1_200 + (8 << 10)).contains(&bytes), "{bytes}");
    }
    assert_eq!((bench.endpoint.waiting.len(), bench.endpoint.connections()), (0, 20));
}

#[test]
fn an_endpoint_without_free_ids_refuses() {
    struct OneId;
    impl IdSource for OneId {
        fn next_id(&mut self) -> ConnectionId {
            id(&[7; 8])
        }
        fn is_own(&self, _: &ConnectionId) -> bool {
            true
        }
        fn id_bytes(&self) -> usize {
            8
        }
    }
    let mut bench = Bench::new();
    bench.endpoint = ServerEndpoint::new(EndpointConfig::new([1; 32], [2; 32]), Box::new(OneId));
    bench.endpoint.set_accepts(Some(Arc::clone(&bench.server)));
    let (key, _) = bench.connect(&[9; 8]);
    let incoming = bench.incoming(&initial(&[8; 8], &[], 1_200));
    let refused = bench.endpoint.begin(incoming, bench.now, &bench.server, &settings());
    assert_eq!(refused.err(), Some(Refused));
    assert_eq!(bench.endpoint.handle_event(key, EndpointEvent::NeedIds(1)), None);
    assert_eq!((bench.endpoint.connections(), bench.endpoint.waiting.len()), (1, 0));
    // A client of another endpoint.
    let incoming = Bench::new().incoming(&initial(&[8; 8], &[], 1_200));
    assert!(bench.endpoint.begin(incoming, bench.now, &bench.server, &settings()).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_handled(
        first: u8, version in prop_oneof![Just(1_u32), any::<u32>()], mut bytes in prop::collection::vec(any::<u8>(), 0..1_400)
    ) {
        let mut bench = Bench::new();
        let (key, own) = bench.connect(&[9; 8]);
        bench.endpoint.handle_event(key, EndpointEvent::ResetToken { remote: bench.remote, token: ResetToken([1; 16]) });
        for prefix in [vec![], long(first, version, &[9; 8], 20), long(first, version, &own.id, 20), short(&own.id, 9)] {
            let payload = [&prefix[..], &bytes].concat();
            bench.handle(&payload);
        }
        bytes.resize(1_300, first);
        bench.handle(&bytes);
    }
}
