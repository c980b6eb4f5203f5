//! Helpers for the tests of rules.

use std::path::Path;
use std::rc::Rc;

use wire::h1::{H1Event, H1ServerConnection, InputLimits};
use wire::http::{Request, RequestHead, path};

use crate::config;
use crate::handler::{ClientLinkCell, Now, Routed};
use crate::log::{LogClient, ServerLog};

use super::{AllRules, RuleDecision, Rules};

/// Request, parsed as a connection parses it.
pub(in crate::routing) struct RuleTestRequest {
    bytes: Vec<u8>,
    head: RequestHead,
    path: Vec<u8>,
    query: Option<Vec<u8>>,
    host: Vec<u8>,
    link: ClientLinkCell,
}

impl RuleTestRequest {
    /// Parses a request with this head.
    pub(in crate::routing) fn new(head: &str) -> Self {
        let bytes = head.as_bytes().to_vec();
        let mut head = RequestHead::default();
        let mut limits = InputLimits::default();
        limits.head.head_bytes_max = 16 << 10;
        limits.head.fields_max = 100;
        limits.head.target_bytes_max = 8 << 10;
        let mut connection = H1ServerConnection::default();
        let event = connection.handle_input(&bytes, &mut head, &limits);
        let Ok(H1Event::Request(incoming)) = event else { panic!("{event:?}: {:?}", String::from_utf8_lossy(&bytes)) };
        let mut buffer = Vec::new();
        let path = match incoming.target.path {
            b"*" => b"*".to_vec(),
            raw => path::normalise(raw, &mut buffer).unwrap().to_vec(),
        };
        let query = incoming.target.query.map(<[u8]>::to_vec);
        let mut buffer = Vec::new();
        let host = incoming.host.map(|host| host.lower_case(&mut buffer).to_vec()).unwrap_or_default();
        Self { bytes, head, path, query, host, link: ClientLinkCell::default() }
    }

    pub(in crate::routing) fn routed(&self) -> Routed<'_> {
        Routed {
            request: Request { head: &self.head, bytes: &self.bytes },
            path: &self.path,
            query: self.query.as_deref(),
            host: &self.host,
            client: LogClient::Unix,
            tls: None,
            proxied: None,
            trace: None,
            locations: None,
            link: &self.link,
            has_next: false,
            now: Now { monotonic_ms: 1_000_000, unix_seconds: 0, unix_us: 0 },
        }
    }
}

pub(super) fn rules(text: &str) -> config::RulesConfig {
    site(text).sites[0].rules.clone()
}

/// Status with which a site with these rules rejects a GET request from `client` without a password; `None` if it is
/// admitted.
pub(super) fn rejected(text: &str, path: &str, client: &str) -> Option<u16> {
    let secret = bots::challenge::ChallengeSecret::generate().unwrap();
    let all = AllRules::new(&site(text), &ServerLog::stderr(config::LogLevel::Error), &secret, None).unwrap();
    let rules = Rules::new(all.sites[0].as_ref().unwrap(), &Rc::default());
    let request = RuleTestRequest::new("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let client = LogClient::Ip((client.parse::<std::net::IpAddr>().unwrap(), 1).into());
    match rules.enter(&Routed { path: path.as_bytes(), client, ..request.routed() }).1 {
        RuleDecision::Pass => None,
        RuleDecision::Answer(response) => Some(response.status.code()),
        RuleDecision::RejectBot(_) => Some(403),
        RuleDecision::Ask(_) | RuleDecision::Authorize(..) => Some(401),
        RuleDecision::Confirm(_) => panic!("only a crawler is looked up"),
    }
}

/// Configuration with one such site.
pub(in crate::routing) fn site(text: &str) -> config::Config {
    let text = format!("site {{\n root \"/\"\n{text}\n}}\n");
    let checked = config::check_bytes("test.kdl", text.as_bytes().to_vec(), Path::new("/"));
    let Some(config) = checked.config else { panic!("{}", checked.diagnostics.to_text(false)) };
    config
}
