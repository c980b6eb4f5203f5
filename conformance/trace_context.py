"""Has the test suite of W3C Trace Context (github.com/w3c/trace-context, `test`) judge a proxy.

The suite asks a service to send requests, and looks at their fields. This is the service: it sends them through the proxy,
with the fields about traces as the suite sent them to it. The proxy forwards to the suite.

    python3 conformance/trace_context.py PROXY_HOST:PORT SERVICE_PORT          # needs aiohttp, as the suite does
    SPEC_LEVEL=2 HARNESS_PORT=PORT python3 test.py http://127.0.0.1:SERVICE_PORT/test
"""

import asyncio
import json
import sys
from urllib.parse import urlsplit

from aiohttp import web


async def serve(request):
    for wanted in await request.json():
        url, content = urlsplit(wanted["url"]), json.dumps(wanted["arguments"]).encode()
        head = [f"POST {url.path}?{url.query} HTTP/1.1", f"Host: {url.netloc}", "Content-Type: application/json"]
        head += ["Connection: close", f"Content-Length: {len(content)}"]
        # Byte for byte: a client library would tidy them up.
        fields = [b": ".join(field) for field in request.raw_headers if field[0].lower().startswith(b"trace")]
        reader, writer = await asyncio.open_connection(*sys.argv[1].split(":"))
        writer.write(b"\r\n".join([line.encode() for line in head] + fields + [b"", content]))
        await writer.drain()
        await reader.read()
        writer.close()
    return web.json_response({})


service = web.Application()
service.router.add_post("/test", serve)
web.run_app(service, host="127.0.0.1", port=int(sys.argv[2]), print=None)
