// Says what it was asked, or does what the query says.
const crypto = require("crypto");
const http = require("http");

const server = http.createServer((request, response) => {
  const content = [];
  request.on("data", (piece) => content.push(piece));
  request.on("end", () => answer(request, Buffer.concat(content), response));
  request.on("error", () => {});
});

async function answer(request, content, response) {
  const pause = () => new Promise((done) => setTimeout(done, 10));
  switch (new URLSearchParams(request.url.split("?")[1]).get("do")) {
    case "empty":
      return response.writeHead(204).end();
    case "cookies":
      response.writeHead(200, "Quite Fine", ["Set-Cookie", "a=1", "X-Latin", "caf\u00e9", "set-cookie", "b=2", "X-eMPTY", ""]);
      return response.end("two cookies");
    case "error":
      return response.writeHead(503, { "Retry-After": "7" }).end("the application is out of order");
    case "redirect":
      return response.writeHead(307, { Location: "/elsewhere?a=b" }).end();
    case "hints":
      response.writeEarlyHints({ link: "</style.css>; rel=preload; as=style" });
      response.writeEarlyHints({ link: "</script.js>; rel=preload; as=script", "x-more": "1" });
      return response.end("early");
    case "trailers":
      response.writeHead(200, { Trailer: "X-Sum, X-Latin" });
      response.write("content");
      response.addTrailers([["X-Sum", "123"], ["X-Latin", "caf\u00e9"]]);
      return response.end();
    case "stream":
      for (let count = 0; count < 5; count++) {
        response.write(`piece ${count}\n`.repeat(1000));
        await pause();
      }
      return response.end();
    case "close":
      response.useChunkedEncodingByDefault = false;
      response.writeHead(200, { Connection: "close" });
      response.write("until the end");
      await pause();
      return response.end();
    case "broken":
      response.write("x".repeat(10000));
      await pause();
      return request.socket.destroy();
    case "reset":
      response.writeHead(200, { "Content-Length": 100000 });
      response.write("x".repeat(10000));
      await pause();
      return request.socket.resetAndDestroy();
  }
  const lines = [`${request.method} ${request.url}`];
  const list = (raw) => raw.forEach((text, at) => at % 2 || lines.push(`${text}: ${raw[at + 1]}`));
  list(request.rawHeaders);
  lines.push("", `${content.length} ${crypto.createHash("md5").update(content).digest("hex")}`);
  list(request.rawTrailers);
  response.end(Buffer.from(lines.join("\n") + "\n", "latin1"));
}

server.listen(Number(process.argv[2]), "127.0.0.1");
