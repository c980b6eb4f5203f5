//! Bots: scores, challenges, verified crawlers, signed agents, robots.txt, tarpit and CrowdSec.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bots::challenge::is_solved;
use simple_dns::rdata::{A, PTR, RData};
use simple_dns::{CLASS, Name, Packet, PacketFlag, QTYPE, RCODE, ResourceRecord, TYPE};

use crate::support::operated::Operated;
use crate::support::waiting::{eventually, settled};
use crate::support::{PATIENCE, TestServer, read_all, read_until};

const CHROME: &str =
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36";
const BROWSER: &str = "Accept: text/html\r\nAccept-Language: en\r\nAccept-Encoding: gzip\r\n";

fn site(options: &str) -> String {
    format!("server {{ workers 1 }}\nsite {{\n listen \"127.0.0.1:0\"\n respond \"/*\" 200 \"hello\"\n{options}\n}}\n")
}

/// Response to a GET request from this loopback address.
pub(crate) fn get_from(server: &TestServer, client: [u8; 4], path: &str, user_agent: &str, fields: &str) -> String {
    let mut stream = server.connect_from(client);
    let user_agent = if user_agent.is_empty() { String::new() } else { format!("User-Agent: {user_agent}\r\n") };
    let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{user_agent}{fields}\r\n");
    // A connection may be closed at any point.
    let _ = stream.write_all(request.as_bytes());
    read_all(&mut stream)
}

fn get(server: &TestServer, path: &str, user_agent: &str, fields: &str) -> String {
    get_from(server, [127, 0, 0, 1], path, user_agent, fields)
}

pub(crate) fn status(response: &str) -> &str {
    response.split(' ').nth(1).unwrap_or("none")
}

pub(crate) fn between<'t>(text: &'t str, start: &str, end: &str) -> &'t str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("{start:?} is in {text}"));
    rest.split_once(end).unwrap_or_else(|| panic!("{end:?} follows")).0
}

/// Address that a solved challenge is returned to.
pub(crate) fn solution(page: &str) -> String {
    let token = between(page, "name=\"t\" value=\"", "\"");
    let work_bits: u8 = between(page, "data-bits=\"", "\"").parse().unwrap();
    let solves = |nonce: &String| is_solved(token.as_bytes(), nonce.as_bytes(), work_bits);
    let nonce = (0_u64..).map(|nonce| nonce.to_string()).find(solves).unwrap();
    format!("/.tailcoat/challenge?t={token}&to=%2Fthread%3Fa%3Db&n={nonce}")
}

#[test]
fn who_looks_like_a_program_gets_a_challenge() {
    let server = TestServer::run(&site(" bots \"forum\" { work-bits 6 }"));
    for (path, user_agent, fields, expect) in [
        ("/", CHROME, BROWSER, "200"),
        ("/", CHROME, "Accept: */*\r\n", "403"),
        ("/", "python-requests/2.32", "Accept: */*\r\n", "403"),
        ("/", "", "", "403"),
        ("/feed", "python-requests/2.32", "Accept: */*\r\n", "200"),
        ("/api/v1/users", "curl/8", "", "200"),
        ("/healthz", "", "", "200"),
        ("/search", CHROME, BROWSER, "200"),
        ("/search", CHROME, "Accept: text/html\r\nAccept-Encoding: gzip\r\n", "403"),
        ("/", "Lynx/2.9.2 libwww-FM/2.14", "Accept: text/html\r\n", "200"),
    ] {
        assert_eq!(status(&get(&server, path, user_agent, fields)), expect, "{path} {user_agent} {fields}");
    }
    let page = get(&server, "/thread?a=b", "curl/8", "Accept: */*\r\n");
    assert!(page.contains("Cache-Control: no-store") && page.contains("Content-Security-Policy: default-src 'none'"));
    assert!(!page.contains("http://") && !page.contains("https://"), "no third parties");
    let json = get(&server, "/", "curl/8", "Accept: application/json\r\n");
    assert!(json.starts_with("HTTP/1.1 403 ") && json.contains("application/json"));
}

#[test]
fn a_solved_challenge_is_remembered() {
    let server = TestServer::run(&site(" bots \"forum\" { work-bits 6; challenge-wait \"10m\" }"));
    let page = get(&server, "/thread?a=b", "curl/8", "Accept: */*\r\n");
    assert_eq!(between(&page, "name=\"to\" value=\"", "\""), "/thread?a=b");
    let returned = solution(&page);
    let passed = get(&server, &returned, "curl/8", "");
    assert!(passed.starts_with("HTTP/1.1 303 ") && passed.contains("\r\nLocation: /thread?a=b\r\n"), "{passed}");
    let cookie = between(&passed, "Set-Cookie: ", ";");
    assert!(passed.contains("; HttpOnly; SameSite=Lax\r\n"));
    let with_cookie = format!("Accept: */*\r\nCookie: other=1; {cookie}\r\n");
    for _ in 0..3 {
        assert_eq!(status(&get(&server, "/thread", "curl/8", &with_cookie)), "200");
    }
    // The cookie is for this client alone.
    assert_eq!(status(&get(&server, "/thread", "curl/9", &with_cookie)), "403");
    assert_eq!(status(&get_from(&server, [127, 1, 0, 1], "/thread", "curl/8", &with_cookie)), "403");
    assert_eq!(status(&get_from(&server, [127, 0, 0, 9], "/thread", "curl/8", &with_cookie)), "200", "same network");
    let changed = with_cookie.replace("tailcoat-pass=", "tailcoat-pass=A");
    assert_eq!(status(&get(&server, "/thread", "curl/8", &changed)), "403");
    // Another host of the domain may have set one of this name.
    let second = with_cookie.replace("other=1", "tailcoat-pass=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
    assert_eq!(status(&get(&server, "/thread", "curl/8", &second)), "200");
    // So is the challenge; and clients without JavaScript must wait.
    assert_eq!(status(&get(&server, &returned, "curl/9", "")), "403");
    let (without_nonce, _) = returned.rsplit_once("&n=").unwrap();
    assert!(get(&server, without_nonce, "curl/8", "").contains("That was too early"));
    let open = returned.replace("%2Fthread%3Fa%3Db", "%2F%2Fevil.example");
    assert!(get(&server, &open, "curl/8", "").contains("\r\nLocation: /\r\n"), "no open redirect");
}

#[test]
fn a_cookie_outlives_reloads_and_upgrades() {
    let config = site(" bots \"forum\" { work-bits 6 }").replace("server { workers 1 }\n", "");
    let mut operated = Operated::start(&config);
    let passed = get(&operated.server, &solution(&get(&operated.server, "/thread?a=b", "curl/8", "")), "curl/8", "");
    let with_cookie = format!("Cookie: {}\r\n", between(&passed, "Set-Cookie: ", ";"));
    operated.reload(&config.replace("hello", "changed"));
    let response = get(&operated.server, "/thread", "curl/8", &with_cookie);
    assert!(status(&response) == "200" && response.ends_with("changed"), "{response}");
    operated.upgrade();
    assert_eq!(status(&get(&operated.server, "/thread", "curl/8", &with_cookie)), "200");
    assert_eq!(status(&get(&operated.server, "/thread", "curl/8", "")), "403");
}

/// A cookie opens what a challenge closes. It opens no path that is closed to bots, wherever it is sent first, and costs
/// nothing at paths that are open.
#[test]
fn a_cookie_opens_no_path_with_a_score_of_rejections() {
    let rules = " bots \"forum\" {\n work-bits 6\n score 100 path=\"/closed/*\"\n score 10 path=\"/odd\"\n \
                 exempt \"~^/open(/|$)\" \"/feeds/*\" \"/metrics\"\n }";
    let server = TestServer::run(&site(rules).replace(" respond", " metrics \"/metrics\"\n respond"));
    let passed = get(&server, &solution(&get(&server, "/thread", "curl/8", "")), "curl/8", "");
    let with_cookie = format!("Cookie: {}\r\n", between(&passed, "Set-Cookie: ", ";"));
    let check = |cookie: &str, expect: [&str; 6]| {
        let paths = ["/closed/a", "/thread", "/closed/a", "/odd", "/open/a", "/feeds/a"];
        assert_eq!(paths.map(|path| status(&get(&server, path, "curl/8", cookie)).to_owned()), expect, "{cookie}");
    };
    // Twice, because the cookie is remembered.
    for _ in 0..2 {
        check(&with_cookie, ["403", "200", "403", "200", "200", "200"]);
    }
    check("Cookie: tailcoat-pass=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\r\n", ["403", "403", "403", "403", "200", "200"]);
    let metrics = crate::support::ask(&server, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    // A visitor who is remembered has passed for exempt paths, too.
    for (class, count) in [("passed", 8), ("rejected", 6), ("challenged", 4), ("exempt", 2)] {
        let line = format!("tailcoat_bot_requests_total{{class=\"{class}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
}

#[test]
fn patience_is_enough_without_javascript() {
    let server = TestServer::run(&site(" bots \"forum\" { challenge-wait \"1s\" }"));
    let page = get(&server, "/a", "curl/8", "");
    let link = between(&page, "url=", "\"").replace("&amp;", "&");
    // The client waits: time is what is tested.
    eventually("the wait is over", || {
        let response = get(&server, &link, "curl/8", "");
        response.starts_with("HTTP/1.1 303 ") && response.contains("Max-Age=3600")
    });
}

#[test]
fn a_dry_run_only_counts() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let options = format!(
        " bots \"forum\" dry-run=on\n metrics \"/metrics\"\n access-log \"{}\" format=\"{{bot_class}} {{bot_score}} {{bot_signals}} {{bot_name}}\"",
        log.display()
    );
    let server = TestServer::run(&site(&options).replace("\"/*\"", "\"/\""));
    assert_eq!(status(&get(&server, "/", "curl/8", "")), "200");
    assert_eq!(status(&get(&server, "/", "Googlebot/2.1", "")), "200");
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let metrics = crate::support::ask(&server, request);
    assert!(metrics.contains("tailcoat_bot_requests_total{class=\"challenged\"} 1\n"), "{metrics}");
    eventually("the requests are logged", || {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        log.lines().next() == Some("challenged 50 library,no-accept -")
    });
}

/// Search engines' documented user agents, from an address that is none of theirs.
const DOCUMENTED: [&str; 6] = [
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
    "Mozilla/5.0 (Linux; Android 6.0.1; Nexus 5X Build/MMB29P) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/W.X.Y.Z Mobile \
     Safari/537.36 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
    "Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm) \
     Chrome/116.0.1938.76 Safari/537.36",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_5) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/13.1.1 Safari/605.1.15 \
     (Applebot/0.1; +http://www.apple.com/go/applebot)",
    "Mozilla/5.0 (compatible; YandexBot/3.0; +http://yandex.com/bots)",
    "Mozilla/5.0 (compatible; Baiduspider/2.0; +http://www.baidu.com/search/spider.html)",
];

/// Name server: 127.0.0.66 is crawl.googlebot.com; 127.0.0.67 only claims to be; others have no name. Returns its address
/// and the number of queries.
fn name_server() -> (SocketAddr, Arc<AtomicUsize>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (address, queries) = (socket.local_addr().unwrap(), Arc::<AtomicUsize>::default());
    let counted = Arc::clone(&queries);
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut buffer) {
            // On a busy machine, the server may wait no longer, and ask again from another port.
            let waiting = std::fs::read_to_string("/proc/net/udp").expect("the kernel has IPv4");
            if !waiting.contains(&format!(":{:04X} ", client.port())) {
                continue;
            }
            counted.fetch_add(1, Ordering::Relaxed);
            let query = Packet::parse(&buffer[..length]).unwrap();
            let question = query.questions[0].clone();
            let name = question.qname.to_string();
            let data = match (name.as_str(), question.qtype) {
                ("66.0.0.127.in-addr.arpa" | "67.0.0.127.in-addr.arpa", QTYPE::TYPE(TYPE::PTR)) => {
                    Some(RData::PTR(PTR(Name::new_unchecked("crawl.googlebot.com"))))
                }
                ("crawl.googlebot.com", QTYPE::TYPE(TYPE::A)) => Some(RData::A(A { address: 0x7f00_0042 })),
                _ => None,
            };
            let mut answer = Packet::new_reply(query.id());
            answer.set_flags(PacketFlag::RESPONSE);
            if data.is_none() {
                *answer.rcode_mut() = RCODE::NameError;
            }
            let record = data.map(|data| ResourceRecord::new(question.qname.clone(), CLASS::IN, 60, data));
            answer.questions.push(question.clone());
            answer.answers.extend(record);
            socket.send_to(&answer.build_bytes_vec().unwrap(), client).unwrap();
        }
    });
    (address, queries)
}

#[test]
fn crawlers_are_confirmed_in_both_directions() {
    let (resolver, queries) = name_server();
    let server = TestServer::run(&site(&format!(" bots \"forum\" {{ resolver \"{resolver}\" }}")));
    for user_agent in DOCUMENTED {
        assert_eq!(status(&get(&server, "/", user_agent, BROWSER)), "403", "{user_agent}");
    }
    let googlebot = DOCUMENTED[0];
    for (client, expect) in [(66, "200"), (67, "403"), (68, "403")] {
        for _ in 0..3 {
            let response = get_from(&server, [127, 0, 0, client], "/", googlebot, "");
            assert_eq!(status(&response), expect, "{client}");
        }
    }
    // 6 documented agents of 5 operators, two queries for the right one and the one that lies, one for the last.
    assert_eq!(queries.load(Ordering::Relaxed), 5 + 2 + 2 + 1, "verdicts are remembered");
    // Feeds are no exception for a false name.
    assert_eq!(status(&get(&server, "/feed", googlebot, "")), "403");
}

#[test]
fn crawlers_with_published_ranges() {
    let directory = tempfile::tempdir().unwrap();
    let ranges = directory.path().join("gptbot.json");
    std::fs::write(&ranges, r#"{"prefixes":[{"ipv4Prefix":"127.0.1.0/24"}]}"#).unwrap();
    let options = format!(" bots \"forum\" {{ crawler \"GPTBot\" ranges=\"{}\" }}", ranges.display());
    let server = TestServer::run(&site(&options));
    let agent = "Mozilla/5.0 (compatible; GPTBot/1.2; +https://openai.com/gptbot)";
    assert_eq!(status(&get_from(&server, [127, 0, 1, 7], "/", agent, "")), "200");
    assert_eq!(status(&get_from(&server, [127, 0, 2, 7], "/", agent, "")), "403");
    // The file is read again when it changes; a file that is wrong changes nothing.
    std::fs::write(&ranges, "127.0.2.0/24\n").unwrap();
    eventually("the new ranges count", || status(&get_from(&server, [127, 0, 2, 7], "/", agent, "")) == "200");
    assert_eq!(status(&get_from(&server, [127, 0, 1, 7], "/", agent, "")), "403");
    std::fs::write(&ranges, "oops").unwrap();
    server.await_log("lists of bots not reloaded");
    assert_eq!(status(&get_from(&server, [127, 0, 2, 7], "/", agent, "")), "200");
}

/// A name that nothing can confirm opens nothing that the same program without it does not get.
#[test]
fn names_of_crawlers_without_a_proof_are_names_like_others() {
    let server = TestServer::run(&site(" bots \"forum\" { work-bits 6 }"));
    for (user_agent, fields, expect) in [
        ("python-requests/2.32 GPTBot/1.0", "Accept: */*\r\n", "403"),
        ("Mozilla/5.0 (compatible; GPTBot/1.0)", "Accept: */*\r\n", "403"),
        ("GPTBot/1.0", "Accept: */*\r\n", "200"),
    ] {
        assert_eq!(status(&get(&server, "/", user_agent, fields)), expect, "{user_agent}");
    }
    let page = get(&server, "/thread?a=b", "curl/8 GPTBot/1.0", "");
    let passed = get(&server, &solution(&page), "curl/8 GPTBot/1.0", "");
    let cookie = format!("Cookie: {}\r\n", between(&passed, "Set-Cookie: ", ";"));
    assert_eq!(status(&get(&server, "/thread", "curl/8 GPTBot/1.0", &cookie)), "200");
}

#[test]
fn challenges_lead_to_no_ban() {
    let rules = " bots \"forum\" { work-bits 6 }\n auto-ban \"2/h\" 403 action=\"close\"\n deny all path=\"/closed\"";
    let server = TestServer::run(&site(rules));
    let client = [127, 0, 0, 7];
    for _ in 0..4 {
        assert!(get_from(&server, client, "/thread", "curl/8", "").contains("data-bits"));
    }
    for expect in ["403", "403", "none"] {
        assert_eq!(status(&get_from(&server, client, "/closed", CHROME, BROWSER)), expect);
    }
}

#[test]
fn robots_txt_is_enforced_for_names() {
    let directory = tempfile::tempdir().unwrap();
    let robots = directory.path().join("robots.txt");
    std::fs::write(&robots, "User-agent: ClaudeBot\nDisallow: /private\nUser-agent: *\nDisallow: /nobots\n").unwrap();
    let server = TestServer::run(&site(&format!(" bots \"forum\" {{ enforce-robots \"{}\" }}", robots.display())));
    for (path, user_agent, expect) in [
        ("/private/a", "ClaudeBot/1.0", "403"),
        ("//private/a", "ClaudeBot/1.0", "403"),
        ("/./private/a", "ClaudeBot/1.0", "403"),
        ("/open/../private/a", "ClaudeBot/1.0", "403"),
        ("/open", "ClaudeBot/1.0", "200"),
        ("/nobots", "Bytespider", "403"),
        ("/nobots", CHROME, "200"),
        ("/robots.txt", "ClaudeBot/1.0", "200"),
    ] {
        assert_eq!(status(&get(&server, path, user_agent, BROWSER)), expect, "{path} {user_agent}");
    }
}

#[test]
fn agents_that_sign_are_let_in() {
    use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
    use base64ct::{Base64, Base64UrlUnpadded, Encoding};

    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let x = Base64UrlUnpadded::encode_string(pair.public_key().as_ref());
    let directory = tempfile::tempdir().unwrap();
    let keys = directory.path().join("keys.json");
    std::fs::write(&keys, format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}]}}"#)).unwrap();
    let server = TestServer::run(&site(&format!(" bots \"forum\" {{ agent-keys \"helper\" \"{}\" }}", keys.display())));
    let thumbprint = aws_lc_rs::digest::digest(
        &aws_lc_rs::digest::SHA256,
        format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#).as_bytes(),
    );
    let id = Base64UrlUnpadded::encode_string(thumbprint.as_ref());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let signed = |host: &str, created: u64, expires: u64| {
        let input = format!(
            r#"("@authority");created={created};expires={expires};keyid="{id}";alg="ed25519";tag="web-bot-auth""#
        );
        let base = format!("\"@authority\": {host}\n\"@signature-params\": {input}");
        let signature = Base64::encode_string(pair.sign(base.as_bytes()).as_ref());
        format!("Signature-Input: sig1={input}\r\nSignature: sig1=:{signature}:\r\n")
    };
    let ask = |fields: &str| status(&get(&server, "/", "helper/1 python-requests", fields)).to_owned();
    assert_eq!(ask(&signed("h", now, now + 60)), "200");
    assert_eq!(ask(&signed("other", now, now + 60)), "403");
    assert_eq!(ask(&signed("h", now - 120, now - 60)), "403");
    assert_eq!(ask("Signature-Input: sig1=((((\r\nSignature: sig1=:x:\r\n"), "200", "a score of 10 is no challenge");
}

#[test]
fn rejected_clients_get_nothing_or_wait() {
    let options = " bots \"forum\" { reject-with close; crawler \"Badbot\" ranges=\"RANGES\" }";
    let directory = tempfile::tempdir().unwrap();
    let (ranges, log) = (directory.path().join("none.txt"), directory.path().join("log"));
    std::fs::write(&ranges, "").unwrap();
    let options = options.replace("RANGES", &ranges.display().to_string());
    let options = format!("{options}\n access-log \"{}\" format=\"{{status}} {{bot_class}}\"", log.display());
    let config = site(&options).replace("server { workers 1 }\n", "");
    let operated = Operated::start(&config);
    assert_eq!(get(&operated.server, "/", "Badbot", ""), "");
    eventually("it is logged", || std::fs::read_to_string(&log).is_ok_and(|log| log == "444 rejected\n"));
    operated.reload(
        &(config.replace("reject-with close", "reject-with tarpit")
            + "limits { tarpit-connections-max 1; tarpit-time \"1h\" }\n"),
    );
    let mut kept = operated.server.connect();
    kept.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nUser-Agent: Badbot\r\n\r\n").unwrap();
    let tarpitted = || {
        let output = operated.order(&["status", "--json"]);
        String::from_utf8_lossy(&output.stdout).contains("\"tarpitted\":1")
            || String::from_utf8_lossy(&output.stdout).contains("\"tarpitted\": 1")
    };
    eventually("the connection is in the tarpit", tarpitted);
    assert_eq!(get(&operated.server, "/", "Badbot", ""), "", "the tarpit is full");
    assert_eq!(status(&get(&operated.server, "/", CHROME, BROWSER)), "200");
    // The client gets bytes of a response that never ends, or none yet.
    kept.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut buffer = [0; 16];
    let read = kept.read(&mut buffer);
    assert!(
        matches!(&read, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock) || matches!(read, Ok(1..)),
        "{read:?}"
    );
    drop(kept);
    eventually("a client that leaves frees its place", || !tarpitted());
}

#[test]
fn bans_by_rules_have_actions() {
    let rules = "site {\n listen \"127.0.0.1:0\"\n respond \"/\" 200 \"hello\"\n \
                 auto-ban \"1/h\" 404 path=\"/close\" action=\"close\"\n \
                 auto-ban \"1/h\" 404 path=\"/tarpit\" action=\"tarpit\"\n \
                 auto-ban \"1/h\" 404 path=\"/limit\" action=\"limit\" limit=\"2/h\"\n}\n";
    let mut operated = Operated::start(rules);
    let ask = |operated: &Operated, client: u8, path: &str, time: Duration| {
        let mut stream = operated.server.connect_from([127, 0, 0, client]);
        stream.set_read_timeout(Some(time)).unwrap();
        let _ = stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").as_bytes());
        let mut bytes = Vec::new();
        let end = stream.read_to_end(&mut bytes);
        (status(&String::from_utf8_lossy(&bytes)).to_owned(), end.is_ok())
    };
    for (client, path) in [(11, "/close"), (12, "/tarpit"), (13, "/limit")] {
        assert_eq!(ask(&operated, client, path, PATIENCE).0, "404");
    }
    let check = |operated: &Operated| {
        assert_eq!(ask(operated, 11, "/", PATIENCE).0, "none");
        let (answered, has_ended) = ask(operated, 12, "/", Duration::from_secs(1));
        assert!(answered != "200" && !has_ended, "the connection is kept: {answered}");
    };
    check(&operated);
    let limited: Vec<_> = (0..3).map(|_| ask(&operated, 13, "/", PATIENCE).0).collect();
    assert_eq!(limited, ["200", "200", "429"]);
    let bans = String::from_utf8(operated.order(&["bans"]).stdout).unwrap();
    assert!(
        bans.contains("127.0.0.12/32  ") && bans.contains("  tarpit\n") && bans.contains("  limit:2:3600\n"),
        "{bans}"
    );
    // Actions outlive an upgrade.
    operated.upgrade();
    check(&operated);
}

#[test]
fn decisions_of_crowdsec_are_bans() {
    let deleted = Arc::<AtomicUsize>::default();
    let asked = Arc::clone(&deleted);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let head = read_until(&mut stream, "\r\n\r\n");
            let decision = r#"{"duration":"3h59m","id":1,"origin":"cscli","scenario":"manual","scope":"Ip","type":"ban","value":"127.0.0.20"}"#;
            let body = match (head.contains("startup=true"), asked.load(Ordering::Relaxed)) {
                (true, _) => format!("{{\"new\":[{decision}],\"deleted\":null}}"),
                (false, 0) => "{\"new\":null,\"deleted\":null}".to_owned(),
                (false, _) => format!("{{\"new\":null,\"deleted\":[{decision}]}}"),
            };
            let status = if head.contains("X-Api-Key: secret\r\n") { "200 OK" } else { "403 Forbidden" };
            let length = body.len();
            // The local API ends connections of HTTP/1.0.
            let response = format!("HTTP/1.0 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
            let _ = stream.write_all(response.as_bytes());
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key");
    std::fs::write(&key, "secret\n").unwrap();
    let knowledge = format!("crowdsec \"{}\" key-file=\"{}\" interval=\"1s\"", address, key.display());
    let server = TestServer::run(&site("").replace("workers 1", &format!("workers 1; {knowledge}")));
    server.await_log("decisions of CrowdSec applied");
    assert_eq!(get_from(&server, [127, 0, 0, 20], "/", "", ""), "");
    assert_eq!(status(&get_from(&server, [127, 0, 0, 21], "/", "", "")), "200");
    deleted.store(1, Ordering::Relaxed);
    eventually("the ban is over", || status(&get_from(&server, [127, 0, 0, 20], "/", "", "")) == "200");
}

/// Messages that are no requests count, too.
#[test]
fn protocol_faults_lead_to_bans() {
    let rules = "server { workers 1 }\nsite {\n listen \"127.0.0.1:0\"\n respond \"/\" 200\n auto-ban \"2/h\" 400\n}\n";
    let server = TestServer::run(rules);
    let malformed = || {
        let mut stream = server.connect_from([127, 0, 0, 30]);
        let _ = stream.write_all(b"\x03\0\0\x13\x0e\r\n\r\n");
        status(&read_all(&mut stream)).to_owned()
    };
    assert_eq!([malformed(), malformed(), malformed()], ["400", "400", "none"]);
}

/// A fleet of scrapers from 2,000 addresses, each with few requests, and one visitor.
#[test]
fn a_fleet_of_2000_addresses() {
    let server = TestServer::run(&site(" bots \"forum\" { work-bits 6 }"));
    let agents = ["python-requests/2.32", CHROME, "Go-http-client/1.1"];
    let mut answered = [0; 2];
    for number in 0..2_000_u16 {
        let [high, low] = number.to_be_bytes();
        let client = [127, 10 + high, low, 1];
        let response = get_from(&server, client, "/thread", agents[usize::from(number) % 3], "");
        answered[usize::from(status(&response) == "200")] += 1;
    }
    assert_eq!(answered, [2_000, 0]);
    assert_eq!(status(&get(&server, "/thread", CHROME, BROWSER)), "200");
}

/// Bytes that a client in the tarpit may make the server hold, beyond the kernel's socket.
const TARPIT_BYTES_MAX: u64 = 600;

/// 10,000 clients in the tarpit, in each of the ways that lead there: a ban at the connection, and a rejected request.
#[test]
fn clients_in_the_tarpit_hold_little_memory() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let places = limit.maximum.map_or(10_000, |maximum| (maximum.saturating_sub(1_000)).min(10_000));
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let limits = "limits { tarpit-connections-max 20000; tarpit-time \"1h\" }\n";
    let rules = " auto-ban \"1/h\" 404 path=\"/scan\" action=\"tarpit\"\n bots \"forum\" { reject-with tarpit; score 100 \
                 path=\"/refused\" }";
    let operated =
        Operated::start(&(site(rules).replace("\"/*\"", "\"/\"").replace("server { workers 1 }\n", "") + limits));
    let tarpitted = || {
        let status = String::from_utf8(operated.order(&["status", "--json"]).stdout).unwrap();
        serde_json::from_str::<serde_json::Value>(&status).unwrap()["bots"]["tarpitted"].as_u64().unwrap()
    };
    assert_eq!(status(&get_from(&operated.server, [127, 0, 3, 1], "/scan", CHROME, BROWSER)), "404");
    for (client, request) in [([127, 0, 3, 1], ""), ([127, 0, 3, 2], "GET /refused HTTP/1.1\r\nHost: h\r\n\r\n")] {
        let connect = || {
            let mut stream = operated.server.connect_from(client);
            stream.write_all(request.as_bytes()).unwrap();
            stream
        };
        // The first ones make each worker allocate its own buffers, which the others share.
        let mut held: Vec<_> = (0..500).map(|_| connect()).collect();
        eventually("the first connections are in the tarpit", || tarpitted() == 500);
        let before_kib = settled("the first connections are handled", || operated.server.memory_kib());
        // Not more at once than the backlog of a listener holds: the kernel would drop some, and try again for a minute.
        while (held.len() as u64) < 500 + places {
            held.extend((0..500.min(500 + places - held.len() as u64)).map(|_| connect()));
            eventually("all connections are in the tarpit", || tarpitted() == held.len() as u64);
        }
        let after_kib = settled("all connections are handled", || operated.server.memory_kib());
        let each = (after_kib.saturating_sub(before_kib) << 10) / places;
        assert!(each <= TARPIT_BYTES_MAX, "{each} bytes each of {places} clients, {request:?}");
        println!("{each} bytes each of {places} clients, {request:?}");
        drop(held);
        eventually("the tarpit is empty", || tarpitted() == 0);
    }
}

#[test]
fn wrong_files_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "no network").unwrap();
    for (option, expect) in [
        (format!("crawler \"A\" ranges=\"{}\"", file.display()), "is no network"),
        (format!("agent-keys \"a\" \"{}\"", file.display()), "expected"),
        (format!("key-file \"{}\"", file.display()), "fewer than 32 bytes"),
        ("enforce-robots \"/none/robots.txt\"".to_owned(), "No such file"),
        ("challenge-score 200".to_owned(), "not below `reject-score`"),
        ("signal \"librari\" 1".to_owned(), "library"),
    ] {
        let config = directory.path().join("tailcoat.kdl");
        std::fs::write(&config, site(&format!(" bots \"forum\" {{ {option} }}"))).unwrap();
        let output = crate::support::tailcoat().arg("check").arg("-c").arg(&config).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && said.contains(expect), "{option}: {said}");
        // The caret is at the file of a crawler, not at the block.
        let column = std::fs::read_to_string(&config).unwrap().lines().find_map(|line| line.find("\"A\" ranges="));
        let is_placed = |at: usize| said.contains(&format!(":{}]", at + "\"A\" ".len() + 1));
        assert!(column.is_none_or(is_placed), "{option}: {said}");
    }
}
