// Notes each request that it sees (port, method, target), and says in X-Saw what it answers.
const fs = require("fs");
const http = require("http");

const seen = fs.openSync(process.argv[3], "a");

const server = http.createServer((request, response) => {
  fs.writeSync(seen, `${request.socket.remotePort} ${request.method} ${request.url}\n`);
  request.on("error", () => {});
  request.on("end", () => {
    response.setHeader("X-Saw", `${request.method} ${request.url}`);
    response.end("ok");
  });
  request.resume();
});

server.listen(Number(process.argv[2]), "127.0.0.1");
