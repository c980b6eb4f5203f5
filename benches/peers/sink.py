"""A back end for uploads: drops the content of each request, and answers when all of it has come.

  sink.py PORT
"""

import asyncio
import re
import sys

BUFFER_BYTES = 256 << 10
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Sink(asyncio.BufferedProtocol):
    buffer = memoryview(bytearray(BUFFER_BYTES))

    def connection_made(self, transport):
        self.transport, self.head, self.awaited_bytes = transport, b"", 0

    def get_buffer(self, _):
        return self.buffer

    def buffer_updated(self, count):
        if not self.awaited_bytes:
            self.head += self.buffer[:count]
            head, end, content = self.head.partition(b"\r\n\r\n")
            if not end:
                return
            self.awaited_bytes = int(re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)[1])
            self.head, count = b"", len(content)
        self.awaited_bytes -= count
        if not self.awaited_bytes:
            self.transport.write(ANSWER)


async def main():
    server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


asyncio.run(main())
