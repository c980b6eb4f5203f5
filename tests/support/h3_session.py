"""HTTP/3 connection of the tests, on aioquic: h3_session.py ADDRESS PORT AUTHORITY IDLE_SECONDS NAME. NAME is the name or address of the
server. Each line of standard input is an order:

get PATH           sends a request, prints status and content.
tell PATH VALUE    sends a request with a field, prints status, content, and the bytes of the encoded head.
post PATH BYTES    sends a request with content, prints status and content.
begin PATH         sends a request and the beginning of its content.
finish             sends the rest, prints status and content.
await-response     sends nothing, prints the status.
move               continues from another port.
ping               waits until the server acknowledges a packet.
await-end          prints the code with which the server has closed the connection.

Each prints "closed reset" after a stateless reset.
"""
import asyncio
import socket
import sys

sys.path.insert(0, "/usr/local/lib/aioquic")
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StreamReset

PATIENCE = 60


class Session(QuicConnectionProtocol):
    """A connection with one request at a time."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.http = H3Connection(self._quic)
        self.closed = asyncio.get_running_loop().create_future()
        self.stream, self.status, self.content, self.answered = None, "", b"", None
        self.head_bytes, self.encode = 0, self.http._encode_headers
        self.http._encode_headers = self.encode_headers

    def encode_headers(self, stream, fields):
        """Encodes a head and counts its bytes."""
        head = self.encode(stream, fields)
        self.head_bytes = len(head)
        return head

    def quic_event_received(self, event):
        """Collects the response."""
        if isinstance(event, ConnectionTerminated):
            if not self.closed.done():
                self.closed.set_result(event.error_code)
            self.complete(f"closed {event.error_code}")
        if isinstance(event, StreamReset) and event.stream_id == self.stream:
            self.complete(f"reset {event.error_code}")
        for received in self.http.handle_event(event):
            if isinstance(received, HeadersReceived):
                self.status = dict(received.headers)[b":status"].decode()
            elif isinstance(received, DataReceived):
                self.content += received.data
            if getattr(received, "stream_ended", False) and received.stream_id == self.stream:
                self.complete(f"{self.status} {self.content.decode()}")

    def datagram_received(self, data, addr):
        """Notices stateless resets (RFC 9000, section 10.3.1), which the library does not."""
        quic = self._quic
        tokens = [peer.stateless_reset_token for peer in [quic._peer_cid, *quic._peer_cid_available]]
        if data[0] < 0x80 and data[-16:] in tokens:
            if not self.closed.done():
                self.closed.set_result("reset")
            self.complete("closed reset")
        else:
            super().datagram_received(data, addr)

    def complete(self, outcome):
        """Ends the wait for the response."""
        if self.answered and not self.answered.done():
            self.answered.set_result(outcome)

    def begin(self, method, path, content, is_last, fields=()):
        """Sends a request, with further fields."""
        self.stream = self._quic.get_next_available_stream_id()
        self.content, self.answered = b"", asyncio.get_running_loop().create_future()
        fields = [(":method", method), (":scheme", "https"), (":authority", NAME), (":path", path), *fields]
        self.http.send_headers(self.stream, [(name.encode(), value.encode()) for name, value in fields], content is None)
        if content is not None:
            self.http.send_data(self.stream, content, is_last)
        self.transmit()

    async def move(self):
        """Continues from another port."""
        old, loop = self._transport, asyncio.get_running_loop()
        # The library's socket is one of IPv6, too.
        own = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        own.bind(("::", 0))
        await loop.create_datagram_endpoint(lambda: self, sock=own)
        # The protocol belongs to the new socket now.
        old.abort()

    async def obey(self, order, *arguments):
        """Executes an order, returns what to print."""
        if order == "move":
            await self.move()
            return "moved"
        if order == "ping":
            await asyncio.wait([asyncio.ensure_future(self.ping()), self.closed], return_when=asyncio.FIRST_COMPLETED)
            return f"closed {self.closed.result()}" if self.closed.done() else "pong"
        if order == "await-end":
            return f"closed {await self.closed}"
        if order == "await-response":
            return (await self.answered).split()[0]
        if order == "get":
            self.begin("GET", arguments[0], None, True)
        elif order == "tell":
            self.begin("GET", arguments[0], None, True, [("x-told", arguments[1])])
            return f"{await self.answered} {self.head_bytes}"
        elif order == "post":
            self.begin("POST", arguments[0], b"x" * int(arguments[1]) + b"END", True)
        elif order == "begin":
            self.begin("POST", arguments[0], b"BEGIN", False)
            return "begun"
        elif order == "finish":
            self.http.send_data(self.stream, b"END", True)
            self.transmit()
        return await self.answered


async def main():
    """Connects, then executes orders until there are no more."""
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name=NAME)
    configuration.idle_timeout = int(IDLE_SECONDS)
    configuration.load_verify_locations(AUTHORITY)
    async with connect(ADDRESS, int(PORT), configuration=configuration, create_protocol=Session) as session:
        print("connected", flush=True)
        while order := await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
            print(await asyncio.wait_for(session.obey(*order.split()), PATIENCE), flush=True)


ADDRESS, PORT, AUTHORITY, IDLE_SECONDS, NAME = sys.argv[1:]
asyncio.run(main())
