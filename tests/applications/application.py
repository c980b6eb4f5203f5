"""Says what it was asked, or does what the query says: an ASGI application."""

import asyncio
import hashlib
from urllib.parse import parse_qs


async def application(scope, receive, send):
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    content = b""
    more = True
    while more:
        message = await receive()
        content += message.get("body", b"")
        more = message.get("more_body", False)

    async def start(status, *fields):
        await send({"type": "http.response.start", "status": status, "headers": list(fields)})

    async def piece(data, more=False):
        await send({"type": "http.response.body", "body": data, "more_body": more})

    task = parse_qs(scope["query_string"].decode("latin-1")).get("do", [""])[0]
    if task == "empty":
        await start(204)
        await piece(b"")
    elif task == "cookies":
        await start(200, (b"Set-Cookie", b"a=1"), (b"x-latin", b"caf\xe9"), (b"set-cookie", b"b=2"), (b"X-eMPTY", b""))
        await piece(b"two cookies")
    elif task == "error":
        await start(503, (b"retry-after", b"7"), (b"content-length", b"5"))
        await piece(b"error")
    elif task == "redirect":
        await start(307, (b"location", b"/elsewhere?a=b"), (b"content-length", b"0"))
        await piece(b"")
    elif task == "stream":
        await start(200)
        for count in range(5):
            await piece(b"piece %d\n" % count * 1000, more=True)
            await asyncio.sleep(0.01)
        await piece(b"")
    elif task == "broken":
        await start(200)
        await piece(b"x" * 10000, more=True)
        raise RuntimeError("broken on purpose")
    else:
        lines = [scope["method"].encode() + b" " + scope["raw_path"] + b"?" + scope["query_string"]]
        lines += [name + b": " + value for name, value in scope["headers"]]
        lines += [b"", b"%d %s" % (len(content), hashlib.md5(content).hexdigest().encode()), b""]
        await start(200, (b"content-type", b"text/plain"))
        await piece(b"\n".join(lines))
