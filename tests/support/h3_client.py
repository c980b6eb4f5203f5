"""HTTP/3 client of the tests, on aioquic. Understands the arguments of curl that the tests use.

The head goes to the file of --dump-header in the form of curl, the content to that of --output.
"""
import asyncio
import gzip
import sys
from urllib.parse import urlsplit

sys.path.insert(0, "/usr/local/lib/aioquic")
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StreamReset


class Client(QuicConnectionProtocol):
    """One request on a connection of its own."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.http = H3Connection(self._quic)
        # aioquic does not know responses to HEAD, and the tests compare the content.
        self.http._check_content_length = lambda stream: None
        self.heads, self.content = [], b""
        self.done = asyncio.get_running_loop().create_future()

    def quic_event_received(self, event):
        """Collects the response."""
        if isinstance(event, (ConnectionTerminated, StreamReset)) and not self.done.done():
            self.done.set_exception(RuntimeError(f"{event}"))
        for received in self.http.handle_event(event):
            if isinstance(received, HeadersReceived):
                self.heads.append(received.headers)
            elif isinstance(received, DataReceived):
                self.content += received.data
            if getattr(received, "stream_ended", False) and not self.done.done():
                self.done.set_result(None)

    async def ask(self, fields, content):
        """Sends the request and waits for the end of its response."""
        stream = self._quic.get_next_available_stream_id()
        self.http.send_headers(stream, fields, end_stream=content is None)
        if content is not None:
            self.http.send_data(stream, content, end_stream=True)
        self.transmit()
        await asyncio.wait_for(self.done, 60)


def parse(arguments):
    """Options and the address."""
    options = {"headers": [], "method": None, "data": None, "compressed": False, "range": None, "cookie": None}
    options["agent"] = "curl"
    names = {"--dump-header": "head", "--output": "content", "--cacert": "authority", "--request": "method",
             "--range": "range", "--user-agent": "agent", "--cookie": "cookie"}
    rest = iter(arguments)
    for argument in rest:
        if argument in names:
            options[names[argument]] = next(rest)
        elif argument == "--header":
            options["headers"].append(next(rest))
        elif argument in ("--data", "--data-binary"):
            value = next(rest)
            options["data"] = open(value[1:], "rb").read() if value.startswith("@") else value.encode()
        elif argument == "--head":
            options["method"] = "HEAD"
        elif argument == "--compressed":
            options["compressed"] = True
        elif argument.startswith("https://"):
            options["url"] = argument
        else:
            raise SystemExit(f"unknown argument {argument}")
    return options


def request(options):
    """Fields and content of the request."""
    authority, _, path = options["url"].removeprefix("https://").partition("/")
    data = options["data"]
    method = options["method"] or ("POST" if data is not None else "GET")
    fields = [(":method", method), (":scheme", "https"), (":authority", authority), (":path", "/" + path),
              ("user-agent", options["agent"]), ("accept", "*/*")]
    if options["cookie"]:
        fields.append(("cookie", options["cookie"]))
    if options["range"]:
        fields.append(("range", f"bytes={options['range']}"))
    if data is not None:
        fields += [("content-length", str(len(data))), ("content-type", "application/x-www-form-urlencoded")]
    for header in options["headers"]:
        name, _, value = header.replace(";", ":", int(":" not in header)).partition(":")
        # HTTP/3 has frames in place of this coding.
        if name.lower() != "transfer-encoding":
            fields.append((name.strip().lower(), value.strip()))
    return [(name.encode(), value.encode()) for name, value in fields], data


def text(head):
    """A head in the form of curl's dump."""
    fields = [f"{name.decode()}: {value.decode('latin-1')}\r\n" for name, value in head if not name.startswith(b":")]
    status = [f"HTTP/3 {value.decode()} \r\n" for name, value in head if name == b":status"]
    return "".join(status + fields) + "\r\n"


async def main():
    """Runs as curl would."""
    options = parse(sys.argv[1:])
    url = urlsplit(options["url"])
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name=url.hostname)
    configuration.load_verify_locations(options["authority"])
    async with connect("127.0.0.1", url.port, configuration=configuration, create_protocol=Client) as client:
        await client.ask(*request(options))
        head, content = b"".join(text(head).encode("latin-1") for head in client.heads), client.content
    coding = [value for name, value in client.heads[-1] if name == b"content-encoding"]
    if options["compressed"] and coding:
        content = gzip.decompress(content)
    with open(options["head"], "wb") as file:
        file.write(head)
    with open(options["content"], "wb") as file:
        file.write(content)
    print("3", end="")


asyncio.run(main())
