//! Responses of third-party servers, directly and through the server: byte for byte the same where HTTP permits.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::support::real_server::{APACHE_BASE, RealServer, Recipe};
use crate::support::{PATIENCE, TestServer};

const APACHE: Recipe<'_> = Recipe {
    needs: &["apache2", "/usr/lib/apache2/modules/libphp8.2.so"],
    files: &[
        ("base.conf", APACHE_BASE),
        (
            "apache.conf",
            "Include @DIR@/base.conf\nLoadModule alias_module modules/mod_alias.so\nAllowEncodedSlashes NoDecode\n\
             <Directory @DIR@>\nRequire all granted\n</Directory>\n\
             Alias /a @DIR@/application.php\n<Files application.php>\nSetHandler application/x-httpd-php\n</Files>\n",
        ),
        ("application.php", include_str!("applications/application.php")),
        ("root/text.txt", TEXT),
    ],
    command: &["apache2", "-f", "@DIR@/apache.conf", "-DFOREGROUND"],
    environment: &[],
};

pub(crate) const NGINX: Recipe<'_> = Recipe {
    needs: &["nginx"],
    files: &[
        (
            "nginx.conf",
            "daemon off; worker_processes 1; pid @DIR@/pid; error_log @DIR@/log; events { }\n\
             http { access_log off; client_body_temp_path @DIR@/body; proxy_temp_path @DIR@/proxy;\n\
             fastcgi_temp_path @DIR@/f; uwsgi_temp_path @DIR@/u; scgi_temp_path @DIR@/s; gzip on; gzip_min_length 1; gzip_proxied any;\n\
             server { listen 127.0.0.1:@PORT@; root @DIR@/root; add_header X-Uri $request_uri always; } }\n",
        ),
        ("root/text.txt", TEXT),
    ],
    command: &["nginx", "-c", "@DIR@/nginx.conf"],
    environment: &[],
};

pub(crate) const UVICORN: Recipe<'_> = Recipe {
    needs: &["/usr/bin/python3", "/usr/lib/python3/dist-packages/uvicorn"],
    files: &[("application.py", include_str!("applications/application.py"))],
    command: &[
        "/usr/bin/python3",
        "-m",
        "uvicorn",
        "--app-dir",
        "@DIR@",
        "--port",
        "@PORT@",
        "--log-level",
        "critical",
        "application:application",
    ],
    environment: &[],
};

pub(crate) const NODE: Recipe<'_> = Recipe {
    needs: &["node"],
    files: &[("application.js", include_str!("applications/application.js"))],
    command: &["node", "@DIR@/application.js", "@PORT@"],
    environment: &[],
};

const TOMCAT: Recipe<'_> = Recipe {
    needs: &["java", "/usr/share/tomcat10/bin/bootstrap.jar"],
    files: &[
        (
            "conf/server.xml",
            "<Server port=\"-1\"><Service name=\"Catalina\">\
             <Connector address=\"127.0.0.1\" port=\"@PORT@\" allowedTrailerHeaders=\"x-sum,x-latin\"/>\
             <Engine name=\"Catalina\" defaultHost=\"localhost\">\
             <Host name=\"localhost\" appBase=\"webapps\" unpackWARs=\"false\"/></Engine></Service></Server>",
        ),
        (
            "webapps/ROOT/WEB-INF/web.xml",
            "<web-app xmlns=\"https://jakarta.ee/xml/ns/jakartaee\" version=\"6.0\">\
             <servlet><servlet-name>jsp</servlet-name><servlet-class>org.apache.jasper.servlet.JspServlet</servlet-class>\
             <load-on-startup>1</load-on-startup></servlet>\
             <servlet><servlet-name>application</servlet-name><jsp-file>/application.jsp</jsp-file>\
             <load-on-startup>2</load-on-startup></servlet>\
             <servlet-mapping><servlet-name>application</servlet-name><url-pattern>/</url-pattern></servlet-mapping>\
             </web-app>",
        ),
        ("webapps/ROOT/application.jsp", include_str!("applications/application.jsp")),
    ],
    command: &[
        "java",
        "-Xmx64m",
        "-XX:TieredStopAtLevel=1",
        "-Dcatalina.home=/usr/share/tomcat10",
        "-Dcatalina.base=@DIR@",
        "-Djava.io.tmpdir=@DIR@",
        "-cp",
        "/usr/share/tomcat10/bin/bootstrap.jar:/usr/share/tomcat10/bin/tomcat-juli.jar",
        "org.apache.catalina.startup.Bootstrap",
        "start",
    ],
    environment: &[],
};

const TEXT: &str = "0123456789abcdefghijklmnopqrstuvwxyz\n";

/// Requests to all servers, each with `Connection: close` added: targets and methods, with fields and content where
/// they have any.
const REQUESTS: &[(&str, &str)] = &[
    ("GET /a", ""),
    ("HEAD /a", ""),
    ("OPTIONS /a", ""),
    ("DELETE /a", ""),
    ("BREW /a", ""),
    ("M-SEARCH /a", ""),
    ("PROPFIND /a", "Depth: 1\r\n\r\n"),
    ("REPORT /a", "Content-Length: 3\r\n\r\nabc"),
    ("PUT /a", "Content-Length: 5\r\nContent-Type: text/plain\r\n\r\nabcde"),
    ("PATCH /a", "Content-Length: 0\r\n\r\n"),
    ("POST /a", ""),
    ("POST /a", "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 7\r\n\r\na=b&c=d"),
    ("POST /a", "Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nabcde\r\n3\r\nfgh\r\n0\r\n\r\n"),
    (
        "POST /a",
        "TE: trailers\r\nConnection: TE\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\nX-Sum: 5\r\n\r\n",
    ),
    ("POST /a", "Expect: 100-continue\r\nContent-Length: 5\r\n\r\nabcde"),
    // Targets reach the upstream as the client wrote them, because only the upstream knows their meaning.
    ("GET /a?", ""),
    ("GET /a??b=c&b=%00", ""),
    ("GET /a?q=%41+%2f/../", ""),
    ("GET /a/b%2Fc", ""),
    ("GET /a/b%2fc%5Cd", ""),
    ("GET /a//b///c/", ""),
    ("GET /a/%7Euser/~user", ""),
    ("GET /a;jsession=1/b;c", ""),
    ("GET /a/caf%C3%A9/caf%E9", ""),
    ("GET /a/!$&'()*+,=:@-._", ""),
    ("GET /a/%25%32%35", ""),
    // Fields.
    ("GET /a", "x-lower: 1\r\nX-UPPER: 2\r\nX-Same: 1\r\nX-Between: 1\r\nX-Same: 2\r\nX-Empty:\r\n"),
    ("GET /a", "X-Latin: caf\u{e9}\r\n"),
    (
        "GET /a",
        "Cookie: a=1; b=\"2\"\r\nAuthorization: Basic YTpi\r\nRange: bytes=0-3\r\nAccept-Encoding: gzip, br;q=0.5\r\n",
    ),
    ("GET /a", "X-Quoted: \"a, b\\\"\" ; c=d\t e\r\nX_Under_Score: 1\r\n"),
    ("GET /nothing/here", ""),
    // Responses.
    ("GET /a?do=empty", ""),
    ("GET /a?do=cookies", ""),
    ("HEAD /a?do=cookies", ""),
    ("GET /a?do=error", ""),
    ("GET /a?do=redirect", ""),
    ("GET /a?do=stream", ""),
    ("HEAD /a?do=stream", ""),
    ("GET /a?do=hints", ""),
    ("GET /a?do=trailers", "TE: trailers\r\nConnection: TE\r\n"),
    ("GET /a?do=close", ""),
    ("GET /a?do=broken", ""),
    ("GET /a?do=reset", ""),
    // Files.
    ("GET /text.txt", ""),
    ("HEAD /text.txt", ""),
    ("GET /text.txt", "Range: bytes=3-5\r\n"),
    ("GET /text.txt", "Range: bytes=-4\r\n"),
    ("GET /text.txt", "Range: bytes=0-1,5-6\r\n"),
    ("GET /text.txt", "Range: bytes=900-\r\n"),
    ("GET /text.txt", "If-None-Match: *\r\n"),
    ("GET /text.txt", "If-Modified-Since: Fri, 01 Jan 2099 00:00:00 GMT\r\n"),
    ("GET /text.txt", "If-Unmodified-Since: Sat, 01 Jan 2000 00:00:00 GMT\r\n"),
    ("GET /text.txt", "Range: bytes=3-5\r\nIf-Range: \"other\"\r\n"),
    ("GET /text.txt", "Accept-Encoding: gzip\r\n"),
    ("POST /text.txt", "Content-Length: 3\r\n\r\nabc"),
];

/// Response, in a form that can be compared.
#[derive(Debug, PartialEq, Eq)]
struct ComparableResponse {
    /// Heads of interim and final responses: status line, then fields in their order and case.
    heads: Vec<Vec<String>>,
    content: Vec<String>,
    trailers: Vec<String>,
    is_whole: bool,
}

fn ask(address: SocketAddr, request: &str) -> ComparableResponse {
    let mut stream = TcpStream::connect(address).expect("it takes connections");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket has a read time-out");
    // A test's text is Latin-1, as fields may be.
    let bytes: Vec<u8> = request.chars().map(|character| character as u8).collect();
    stream.write_all(&bytes).expect("it reads");
    let (mut input, mut buffer, mut is_reset) = (Vec::new(), [0; 65_536], false);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => input.extend_from_slice(&buffer[..count]),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{request}");
                is_reset = true;
                break;
            }
        }
    }
    let mut text: String = input.into_iter().map(char::from).collect();
    // Servers choose random boundaries between ranges.
    if let Some((_, boundary)) = text.split_once("boundary=") {
        let boundary = boundary.split("\r\n").next().unwrap_or_default().to_owned();
        text = text.replace(&boundary, &"-".repeat(boundary.len()));
    }
    read_answer(text, request.starts_with("HEAD "), is_reset)
}

fn read_answer(mut text: String, is_head: bool, is_reset: bool) -> ComparableResponse {
    let mut answer =
        ComparableResponse { heads: Vec::new(), content: Vec::new(), trailers: Vec::new(), is_whole: false };
    loop {
        let Some((head, rest)) = text.split_once("\r\n\r\n") else { return answer };
        let lines: Vec<String> = head.split("\r\n").map(str::to_owned).collect();
        text = rest.to_owned();
        let is_interim = lines[0].starts_with("HTTP/1.1 1");
        answer.heads.push(lines);
        if !is_interim {
            break;
        }
    }
    let head = answer.heads.last().expect("there is one").clone();
    let field = |name: &str| {
        let line = head.iter().find(|line| line.to_ascii_lowercase().starts_with(name));
        line.and_then(|line| line.split_once(": ")).map(|(_, value)| value)
    };
    let has_none = is_head || head[0].contains(" 204 ") || head[0].contains(" 304 ");
    let (content, trailers, is_whole) = match (field("transfer-encoding:"), field("content-length:")) {
        _ if has_none => (text.clone(), "", text.is_empty()),
        (Some(_), _) => join_chunks(&text),
        (None, Some(length)) => (text.clone(), "", text.chars().count() == length.parse::<usize>().expect("a length")),
        (None, None) => (text.clone(), "", !is_reset),
    };
    if !has_none {
        // A response in chunks may arrive with a length if all of it was present.
        let head = answer.heads.last_mut().expect("there is one");
        head.retain(|line| !line.to_ascii_lowercase().starts_with("content-length:"));
    }
    answer.content = content.split('\n').map(str::to_owned).collect();
    answer.trailers = trailers.split("\r\n").filter(|line| !line.is_empty()).map(str::to_owned).collect();
    answer.is_whole = is_whole;
    answer
}

fn join_chunks(mut text: &str) -> (String, &str, bool) {
    let mut content = String::new();
    // Latin-1 bytes became characters of several bytes: chunks are counted in characters.
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a chunk's size");
        if size == 0 {
            let ends = rest == "\r\n" || rest.ends_with("\r\n\r\n");
            return (content, rest, ends);
        }
        let end = rest.char_indices().nth(size).map_or(rest.len(), |(at, _)| at);
        content.push_str(&rest[..end]);
        text = rest[end..].strip_prefix("\r\n").unwrap_or_default();
    }
    (content, "", false)
}

impl ComparableResponse {
    /// Removes hop-by-hop and time-dependent fields, and those that only we add.
    fn comparable(mut self, is_forwarded: bool) -> Self {
        const HOP: [&str; 6] = ["connection", "keep-alive", "transfer-encoding", "via", "te", "date"];
        let is_hop = |line: &String| {
            let name = line.split(':').next().unwrap_or_default();
            HOP.iter().any(|hop| name.eq_ignore_ascii_case(hop))
        };
        for head in &mut self.heads {
            head.retain(|line| !is_hop(line));
            framing_last(head);
        }
        // The application's view of our request.
        self.content.retain(|line| !is_hop(line));
        framing_last(&mut self.content);
        // 100 (Continue) is hop-by-hop.
        self.heads.retain(|head| !head[0].contains(" 100 "));
        if is_forwarded {
            // We speak HTTP/1.1, whatever the upstream does.
            self.heads.iter_mut().for_each(|head| head[0] = head[0].replace("HTTP/1.0", "HTTP/1.1"));
        }
        self
    }
}

/// Ignores the position of fields that a proxy generates.
fn framing_last(lines: &mut [String]) {
    lines.sort_by_key(|line| {
        let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
        ["host", "content-length", "expect"].iter().position(|framing| *framing == name).map_or(0, |place| place + 1)
    });
}

/// Dot segments are the exception: guards see them resolved, and so does the upstream.
const RESOLVED: &[(&str, &str)] = &[
    ("GET /a/./b", "GET /a/b"),
    ("GET /a/b/../c?d", "GET /a/c?d"),
    ("GET /a/%2e%2e/a", "GET /a"),
    ("GET /b//../a", "GET /a"),
];

fn check(name: &str, recipe: &Recipe<'_>) {
    let Some(server) = RealServer::start(recipe) else { return };
    let front = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n forward \"http://{}\" {{\n compress off\n forwarded-headers none\n underscores-in-headers on\n \
         request-trailers \"X-Sum\" \"X-Latin\"\n response-trailers \"X-Sum\" \"X-Latin\"\n }}\n}}\nserver {{ workers 1 }}\n",
        server.address
    ));
    let mut failures = Vec::new();
    let long = format!("X-Long: {}\r\n", "0123456789".repeat(700));
    for (line, rest) in REQUESTS.iter().chain([&("GET /a", long.as_str())]) {
        let rest = if rest.contains("\r\n\r\n") { (*rest).to_owned() } else { format!("{rest}\r\n") };
        let request = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{rest}");
        let direct = ask(server.address, &request).comparable(false);
        let forwarded = ask(front.address, &request).comparable(true);
        if !is_same(&direct, &forwarded) {
            failures.push(format!("{line}\n  directly  {direct:?}\n  forwarded {forwarded:?}"));
        }
    }
    for (line, resolved) in RESOLVED {
        let request = |line: &str| format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let direct = ask(server.address, &request(resolved)).comparable(false);
        let forwarded = ask(front.address, &request(line)).comparable(true);
        if !is_same(&direct, &forwarded) {
            failures.push(format!("{line}\n  resolved  {direct:?}\n  forwarded {forwarded:?}"));
        }
    }
    assert!(failures.is_empty(), "{name}:\n{}", failures.join("\n"));
}

/// For an incomplete response, both must be recognizably incomplete.
fn is_same(direct: &ComparableResponse, forwarded: &ComparableResponse) -> bool {
    if direct.is_whole { direct == forwarded } else { !forwarded.is_whole || forwarded.heads[0][0].contains(" 502 ") }
}

#[test]
fn apache_with_php() {
    check("Apache", &APACHE);
}

#[test]
fn nginx() {
    check("nginx", &NGINX);
}

#[test]
fn python_by_uvicorn() {
    check("uvicorn", &UVICORN);
}

#[test]
fn node() {
    check("Node", &NODE);
}

#[test]
fn java_by_tomcat() {
    check("Tomcat", &TOMCAT);
}
