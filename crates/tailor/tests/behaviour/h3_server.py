"""HTTP/3 server of aioquic that does what the path of a request says. Usage: h3_server.py CERTIFICATE KEY PROTOCOL

It prints its port. For each line on standard input it prints its counts as JSON: requests, connections, streams that were
open at the same time, resumed handshakes, bytes of content, connections that were closed.
"""

import asyncio
import json
import sys

sys.path.insert(0, "/usr/local/lib/aioquic")

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import H3Connection, encode_frame, FrameType
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, ProtocolNegotiated

INTERNAL_ERROR, REJECTED = 0x102, 0x10B
PIECE = bytes(i % 251 for i in range(251))

counts = {"requests": 0, "connections": 0, "streams": 0, "resumed": 0, "content": 0, "closed": 0}
rejected = set()


def body(length):
    return (PIECE * (length // len(PIECE) + 1))[:length]


class Server(QuicConnectionProtocol):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.http, self.open, self.received = None, {}, {}

    def quic_event_received(self, event):
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
        if isinstance(event, HandshakeCompleted):
            counts["connections"] += 1
            counts["resumed"] += event.session_resumed
        if isinstance(event, ConnectionTerminated):
            counts["closed"] += 1
        if self.http:
            for event in self.http.handle_event(event):
                self.on_event(event)

    def on_event(self, event):
        if isinstance(event, HeadersReceived):
            self.open[event.stream_id] = dict(event.headers)
            self.received[event.stream_id] = 0
            counts["streams"] = max(counts["streams"], len(self.open))
        elif isinstance(event, DataReceived):
            self.received[event.stream_id] += len(event.data)
        if event.stream_ended:
            counts["requests"] += 1
            self.answer(event.stream_id)

    def answer(self, stream):
        action, _, value = self.open[stream][b":path"].decode().strip("/").partition("/")
        number = int(value or 0)
        if action == "bytes":
            self.reply(stream, 200, body(number))
        elif action == "status":
            self.reply(stream, number, b"")
        elif action == "delay":
            asyncio.get_running_loop().call_later(number / 1000, self.reply, stream, 200, b"late")
        elif action == "upload":
            self.reply(stream, 200, str(self.received[stream]).encode())
        elif action == "short":
            self.head(stream, 200, 10)
            self.http.send_data(stream, b"12345", True)
            self.end(stream)
        elif action == "reset":
            self.head(stream, 200, 10)
            self._quic.reset_stream(stream, INTERNAL_ERROR)
            self.end(stream)
        elif action == "reject":
            # Every other request of a connection.
            if stream % 8 == 0:
                self._quic.reset_stream(stream, REJECTED)
                self.end(stream)
            else:
                self.reply(stream, 200, b"accepted")
        elif action == "goaway":
            self.reply(stream, 200, b"last")
            frame = encode_frame(FrameType.GOAWAY, encode_uint_var(stream + 4))
            self._quic.send_stream_data(self.http._local_control_stream_id, frame)
        elif action == "close":
            self._quic.close(error_code=INTERNAL_ERROR)
        elif action == "frame":
            # SETTINGS on a request stream (RFC 9114, section 7.2.4).
            self._quic.send_stream_data(stream, encode_frame(FrameType.SETTINGS, b""))
        # Otherwise the request gets no response.
        self.transmit()

    def head(self, stream, status, length):
        self.http.send_headers(stream, [
            (b":status", str(status).encode()), (b"content-length", str(length).encode()), (b"server", b"aioquic")])

    def reply(self, stream, status, content):
        if stream not in self.open:
            return
        self.head(stream, status, len(content))
        self.http.send_data(stream, content, True)
        counts["content"] += len(content)
        self.end(stream)
        self.transmit()

    def end(self, stream):
        self.open.pop(stream)


async def main():
    certificate, key, protocol = sys.argv[1:]
    configuration = QuicConfiguration(is_client=False, alpn_protocols=[protocol])
    configuration.load_cert_chain(certificate, key)
    tickets = {}
    server = await serve(
        "127.0.0.1", 0, configuration=configuration, create_protocol=Server,
        session_ticket_fetcher=lambda label: tickets.pop(label, None),
        session_ticket_handler=lambda ticket: tickets.__setitem__(ticket.ticket, ticket))
    print(server._transport.get_extra_info("sockname")[1], flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        print(json.dumps(counts), flush=True)


asyncio.run(main())
