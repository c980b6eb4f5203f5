"""A collector: reads OTLP with OpenTelemetry's own classes, and writes each span as a line of JSON to `spans`."""

import json
import pathlib
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

SPANS = pathlib.Path(__file__).parent / "spans"


def values(attributes):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


class Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        request = ExportTraceServiceRequest.FromString(content)
        # The parser keeps unknown fields apart, and a request of ours must have none.
        assert request == ExportTraceServiceRequest.FromString(request.SerializeToString())
        with SPANS.open("a") as out:
            for of_resource in request.resource_spans:
                for of_scope in of_resource.scope_spans:
                    for span in of_scope.spans:
                        self.write(span, of_resource.resource, out)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def write(self, span, resource, out):
        told = {
            "path": self.path,
            "content_type": self.headers["Content-Type"],
            "key": self.headers["X-Key"],
            "resource": values(resource.attributes),
            "trace": span.trace_id.hex(),
            "span": span.span_id.hex(),
            "parent": span.parent_span_id.hex(),
            "state": span.trace_state,
            "name": span.name,
            "kind": span.kind,
            "nanoseconds": span.end_time_unix_nano - span.start_time_unix_nano,
            "attributes": values(span.attributes),
            "events": [event.name for event in span.events],
            "error": span.status.code == 2,
            "flags": span.flags,
        }
        out.write(json.dumps(told) + "\n")

    def log_message(self, *arguments):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Collector).serve_forever()
