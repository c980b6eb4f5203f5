"""Early data (0-RTT) of the tests, on aioquic: h3_early.py ADDRESS PORT AUTHORITY CASE. Connects for a ticket, then resumes with early data.

get       sends GET /early.
post      sends POST /early, and again after the handshake.
stale     waits for a line of standard input before it resumes, then sends GET /early.
replay    sends GET /early, then copies of these packets from other ports.
copy      sends a copy of the packets of GET /early from another port, then the packets.

Prints if the server has accepted the early data, and the responses. Attacks print the number of copies with a reply, too.
"""
import asyncio
import socket
import sys
import time

sys.path.insert(0, "/usr/local/lib/aioquic")
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import HandshakeCompleted

PATIENCE = 60
COPIES = 20


class Plug:
    """Transport that notes the datagrams of the first flight."""

    def __init__(self, transport):
        self.transport, self.flight, self.is_held = transport, [], False

    def sendto(self, data, address):
        """Sends a datagram, unless all are held."""
        if self.flight is not None:
            self.flight.append(bytes(data))
        if not self.is_held:
            self.transport.sendto(data, address)

    def __getattr__(self, name):
        return getattr(self.transport, name)


class Client(QuicConnectionProtocol):
    """A connection with one request at a time."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.http = None
        self.done, self.status, self.content = None, "", b""
        self.handshake = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        """Notes what is sent."""
        super().connection_made(Plug(transport))

    def quic_event_received(self, event):
        """Collects the response."""
        if isinstance(event, HandshakeCompleted):
            self.handshake.set_result(None)
        if self.http is None:
            return
        for received in self.http.handle_event(event):
            if isinstance(received, HeadersReceived):
                self.status = dict(received.headers)[b":status"].decode()
            elif isinstance(received, DataReceived):
                self.content += received.data
            if getattr(received, "stream_ended", False) and not self.done.done():
                self.done.set_result(f"{self.status} {self.content.decode() if self.status == '200' else ''}".strip())

    def begin(self, method, path):
        """Sends a request."""
        self.http = self.http or H3Connection(self._quic)
        self.done, self.content = asyncio.get_running_loop().create_future(), b""
        fields = [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path)]
        fields = [(name.encode(), value.encode()) for name, value in fields]
        self.http.send_headers(self._quic.get_next_available_stream_id(), fields, end_stream=True)
        self.transmit()

    async def response(self):
        """Waits for the response."""
        return await asyncio.wait_for(self.done, PATIENCE)

    def verdict(self):
        """Tells if the early data was accepted."""
        return "accepted" if self._quic.tls.early_data_accepted else "rejected"


def configuration(ticket=None):
    """Client for the server of the test."""
    made = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name="localhost", session_ticket=ticket)
    made.load_verify_locations(AUTHORITY)
    return made


async def ticket():
    """Ticket of a connection that has ended."""
    tickets = []
    async with connect(ADDRESS, PORT, configuration=configuration(), create_protocol=Client, session_ticket_handler=tickets.append) as client:
        client.begin("GET", "/first")
        await client.response()
        deadline = time.monotonic() + PATIENCE
        while not tickets and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
    return tickets[0]


def copy(flight, seconds):
    """Sends the packets from another port; returns true if there is a reply within this time."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plug:
        plug.settimeout(seconds)
        for datagram in flight:
            plug.sendto(datagram, (ADDRESS, PORT))
        try:
            return len(plug.recv(65536)) > 0
        except TimeoutError:
            return False


async def resume(case, session):
    """Runs a case on a connection that resumes the session."""
    outcome = []
    async with connect(ADDRESS, PORT, configuration=configuration(session), create_protocol=Client, wait_connected=False) as client:
        plug = client._transport
        plug.is_held = case == "copy"
        client.begin("POST" if case == "post" else "GET", "/early")
        flight, plug.flight = plug.flight, None
        if case == "copy":
            outcome.append(str(int(copy(flight, PATIENCE))))
            plug.is_held = False
            for datagram in flight:
                plug.sendto(datagram, ("::ffff:" + ADDRESS, PORT, 0, 0))
        response = await client.response()
        await asyncio.wait_for(client.handshake, PATIENCE)
        outcome += [client.verdict(), response]
        if case == "post":
            client.begin("POST", "/late")
            outcome.append(await client.response())
    if case == "replay":
        replies = await asyncio.gather(*(asyncio.to_thread(copy, flight, 5) for _ in range(COPIES)))
        outcome.append(str(sum(replies)))
    return ", ".join(outcome)


async def main():
    """Runs a case."""
    session = await ticket()
    if CASE == "stale":
        print("ready", flush=True)
        sys.stdin.readline()
    print(await resume(CASE, session), flush=True)


ADDRESS, PORT, AUTHORITY, CASE = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
asyncio.run(main())
