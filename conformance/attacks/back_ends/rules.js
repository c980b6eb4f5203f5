// An application that reads paths as leniently as frameworks do together: any case, path parameters, backslashes, white space
// and dots at the end of names, PATH_INFO after a program, a slash at the end.
const http = require("http");

const secrets = ["/admin/panel.html", "/login.php", "/exact", "/deep/private.pdf", "/cgi-bin/status"];

function read(target) {
  let path = target.replace(/^https?:\/\/[^/?]*/i, "").split("?")[0];
  try {
    path = decodeURIComponent(path);
  } catch {
    path = unescape(path);
  }
  path = path.replace(/\\/g, "/").replace(/;[^/]*/g, "").split(/[?#\n]/)[0];
  const segments = path.split("/").map((name) => name.replace(/:\$.*$/, "").replace(/(?<=[^.\s])[.\s\u00a0]+$/, ""));
  return require("path").posix.normalize(segments.join("/")).toLowerCase().replace(/(?<=.)\/+$/, "");
}

const server = http.createServer((request, response) => {
  const path = read(request.url);
  const isSecret = secrets.some((secret) => path === secret || (/\.php$|^\/cgi-bin\//.test(secret) && path.startsWith(`${secret}/`)));
  request.resume();
  request.on("error", () => {});
  request.on("end", () => response.end(isSecret ? "TOP-SECRET" : "open"));
});

server.listen(Number(process.argv[2]), "127.0.0.1");
