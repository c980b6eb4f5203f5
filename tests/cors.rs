//! Cross-origin resource sharing of a site.

use crate::support::{TestServer, ask};

#[test]
fn preflights_and_responses() {
    let server = TestServer::run(
        r#"site {
            listen "127.0.0.1:0"
            cors "https://app.example" "https://*.a.example" methods="GET PUT" headers="X-A" credentials=on age-max="1h"
            redirect "/old" "/new"
            respond "/data" 200 "data"
        }"#,
    );
    let of = |line: &str, origin: &str, fields: &str| {
        ask(&server, &format!("{line} HTTP/1.1\r\nHost: h\r\nOrigin: {origin}\r\n{fields}Connection: close\r\n\r\n"))
    };
    let asks = "Access-Control-Request-Method: PUT\r\n";
    let preflight = of("OPTIONS /data", "https://x.a.example", asks);
    for expect in [
        "HTTP/1.1 204 ",
        "Access-Control-Allow-Origin: https://x.a.example\r\n",
        "Access-Control-Allow-Credentials: true\r\n",
        "Access-Control-Allow-Methods: GET, PUT\r\n",
        "Access-Control-Allow-Headers: X-A\r\n",
        "Access-Control-Max-Age: 3600\r\n",
    ] {
        assert!(preflight.contains(expect), "{expect}: {preflight}");
    }
    // A browser follows no redirect of a preflight.
    assert!(of("OPTIONS /old", "https://app.example", asks).starts_with("HTTP/1.1 204 "));
    let allowed = of("GET /data", "https://app.example", "");
    assert!(
        allowed.contains("Access-Control-Allow-Origin: https://app.example\r\n") && allowed.ends_with("data"),
        "{allowed}"
    );
    for origin in ["https://b.example", "null", "https://app.example.evil", "http://app.example"] {
        let other = of("GET /data", origin, "");
        assert!(other.starts_with("HTTP/1.1 200 ") && !other.contains("Access-Control"), "{origin}: {other}");
        assert!(other.contains("Vary: Origin\r\n"), "{origin}: {other}");
        assert!(!of("OPTIONS /data", origin, asks).contains("Access-Control"), "{origin}");
    }
}
