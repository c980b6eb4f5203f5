#!/usr/bin/env python3
"""Encodes and decodes field sections with ls-qpack, for `crates/wire/tests/qpack_lsqpack.rs`. Get ls-qpack by
`pip install --target /usr/local/lib/lsqpack pylsqpack`.

Each line of the input is one message in JSON; each is answered by one line. Bytes are in hexadecimal, and a field is a pair.
"""

import json
import sys

sys.path.append("/usr/local/lib/lsqpack")
try:
    import pylsqpack
except ImportError:
    print("no pylsqpack", flush=True)
    sys.exit(0)

encoder = decoder = None


def pairs(fields):
    return [[name.decode("latin-1"), value.decode("latin-1")] for name, value in fields]


def handle(message):
    global encoder, decoder
    kind = message["kind"]
    given = bytes.fromhex(message.get("bytes", ""))
    if kind == "new":
        encoder = pylsqpack.Encoder()
        settings = encoder.apply_settings(message["table_bytes_max"], message["blocked_streams_max"])
        decoder = pylsqpack.Decoder(message["table_bytes_max"], message["blocked_streams_max"])
        return {"instructions": settings.hex()}
    if kind == "encode":
        fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in message["fields"]]
        instructions, section = encoder.encode(message["stream"], fields)
        return {"instructions": instructions.hex(), "section": section.hex()}
    if kind == "feed encoder":
        encoder.feed_decoder(given)
        return {}
    if kind == "feed decoder":
        return {"unblocked": decoder.feed_encoder(given)}
    try:
        if kind == "resume":
            instructions, fields = decoder.resume_header(message["stream"])
        else:
            instructions, fields = decoder.feed_header(message["stream"], given)
    except pylsqpack.StreamBlocked:
        return {"blocked": True}
    return {"instructions": instructions.hex(), "fields": pairs(fields)}


print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps(handle(json.loads(line))), flush=True)
