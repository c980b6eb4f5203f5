<%@ page session="false" trimDirectiveWhitespaces="true" %><%@ page import="java.io.*, java.security.*, java.util.*" %><%
// Says what it was asked, or does what the query says.
OutputStream to = response.getOutputStream();
String query = request.getQueryString() == null ? "" : request.getQueryString();
String task = query.startsWith("do=") ? query.substring(3) : "";
response.setContentType("text/plain");
switch (task) {
    case "empty":
        response.setStatus(204);
        break;
    case "cookies":
        response.addHeader("Set-Cookie", "a=1");
        response.addHeader("X-Between", "1");
        response.addHeader("Set-Cookie", "b=2");
        to.write("two cookies".getBytes());
        break;
    case "error":
        response.setStatus(503);
        response.setHeader("Retry-After", "7");
        to.write("the application is out of order".getBytes());
        break;
    case "redirect":
        response.setStatus(307);
        response.setHeader("Location", "/elsewhere?a=b");
        break;
    case "trailers":
        response.setTrailerFields(() -> Collections.singletonMap("X-Sum", "123"));
        to.write("content".getBytes());
        to.flush();
        break;
    case "stream":
        for (int count = 0; count < 5; count++) {
            to.write(("piece " + count + "\n").repeat(1000).getBytes());
            to.flush();
            Thread.sleep(10);
        }
        break;
    case "broken":
        to.write("x".repeat(10000).getBytes());
        to.flush();
        throw new IOException("broken on purpose");
    default:
        MessageDigest digest = MessageDigest.getInstance("MD5");
        byte[] buffer = new byte[65536];
        InputStream from = request.getInputStream();
        long length = 0;
        for (int count; (count = from.read(buffer)) > 0; length += count) {
            digest.update(buffer, 0, count);
        }
        StringBuilder text = new StringBuilder();
        Object uri = request.getAttribute("jakarta.servlet.forward.request_uri");
        text.append(request.getMethod() + " " + (uri == null ? request.getRequestURI() : uri) + "?" + query + "\n");
        for (String name : Collections.list(request.getHeaderNames())) {
            for (String value : Collections.list(request.getHeaders(name))) {
                text.append(name + ": " + value + "\n");
            }
        }
        text.append("\n" + length + " " + HexFormat.of().formatHex(digest.digest()) + "\n");
        if (request.isTrailerFieldsReady()) {
            new TreeMap<>(request.getTrailerFields()).forEach((name, value) -> text.append(name + ": " + value + "\n"));
        }
        to.write(text.toString().getBytes("ISO-8859-1"));
}
%>
