// Sends content back as it comes, with its trailers: by WASI's own functions, as the event `fetch` knows no trailers.
import { Fields, IncomingBody, OutgoingBody, OutgoingResponse, ResponseOutparam } from "wasi:http/types@0.2.10";

export const incomingHandler = {
  handle(request, out) {
    const target = request.pathWithQuery() ?? "";
    if (target === "/fail") {
      throw new Error("as it was told to");
    }
    target === "/echo" ? echo(request, out) : hello(target, out);
  },
};

function hello(target, out) {
  const body = begin(out);
  const output = body.write();
  output.blockingWriteAndFlush(new TextEncoder().encode(`Hello from JavaScript! You asked for ${target}\n`));
  drop(output);
  OutgoingBody.finish(body, undefined);
}

function echo(request, out) {
  const content = request.consume();
  const input = content.stream();
  const body = begin(out);
  const output = body.write();
  for (let piece = read(input); piece; piece = read(input)) {
    output.blockingWriteAndFlush(piece);
  }
  drop(input);
  drop(output);
  OutgoingBody.finish(body, trailersOf(content));
}

// A piece of content that has come; none at its end.
function read(input) {
  try {
    return input.blockingRead(4096n);
  } catch (error) {
    if (error.payload?.tag === "closed") {
      return undefined;
    }
    throw error;
  }
}

function trailersOf(content) {
  const future = IncomingBody.finish(content);
  const pollable = future.subscribe();
  pollable.block();
  drop(pollable);
  const { val: result } = future.get();
  if (result.tag === "err") {
    throw new Error("the content is not whole");
  }
  return result.val;
}

function begin(out) {
  const contentType = ["content-type", new TextEncoder().encode("text/plain; charset=utf-8")];
  const response = new OutgoingResponse(Fields.fromList([contentType]));
  const body = response.body();
  ResponseOutparam.set(out, { tag: "ok", val: response });
  return body;
}

// Streams have to go before what they belong to.
function drop(resource) {
  resource[Symbol.dispose ?? Symbol.for("dispose")]();
}
