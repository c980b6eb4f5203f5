//! Bots: the model.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bots::score::{SIGNALS, ScorePolicy, Signal};
use expression::{Condition, Fact};

use super::rules::LimitKey;
use super::{AccessLog, AccessLogFormat, Config, PathPattern};
use crate::value::parse_pattern;

/// Handling of bots on a site.
#[derive(Clone, Debug, PartialEq)]
pub struct BotsConfig {
    /// Only counts and logs what would be done.
    pub is_dry_run: bool,
    /// Scores from which something happens, and points of signals.
    pub policy: ScorePolicy,
    /// Paths that need no challenge.
    pub exempt: Vec<PathPattern>,
    /// Points for requests of some paths or with some properties.
    pub scores: Vec<CustomScore>,
    /// Crawlers that are added, or described better.
    pub crawlers: Vec<CrawlerConfig>,
    /// Agents that sign their requests, each with the file of its keys.
    pub agent_keys: Vec<(String, PathBuf)>,
    /// File whose rules crawlers must obey.
    pub robots: Option<PathBuf>,
    /// Response to rejected requests.
    pub rejection: BotRejection,
    /// Time that clients without JavaScript wait.
    pub wait: Duration,
    /// Time for which a passed challenge is remembered.
    pub pass_time: Duration,
    /// File of the key that signs cookies; `None` is a random key of this process.
    pub key_file: Option<PathBuf>,
    /// Name server for the names of addresses; `None` is the first of resolv.conf.
    pub resolver: Option<SocketAddr>,
}

/// Points for requests of some paths or with some properties.
#[derive(Clone, Debug, PartialEq)]
pub struct CustomScore {
    /// Points; below zero for trust.
    pub points: i16,
    /// Paths of the requests.
    pub path: PathPattern,
    /// Condition on the request; `None` if there is none.
    pub when: Option<Condition>,
}

/// A crawler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrawlerConfig {
    /// Product token.
    pub name: String,
    /// Ends of the names of its addresses; empty leaves those that are known.
    pub domains: Vec<String>,
    /// File of its address ranges.
    pub ranges: Option<PathBuf>,
}

/// Response to rejected requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BotRejection {
    /// Status 403.
    #[default]
    Forbidden,
    /// The connection is closed without a response.
    Close,
    /// The connection is kept, and gets a byte from time to time.
    Tarpit,
}

/// Databases and services that tell about clients, for all sites.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientKnowledge {
    /// Database of countries, in MaxMind's format.
    pub countries: Option<PathBuf>,
    /// Database of autonomous systems, in MaxMind's format.
    pub systems: Option<PathBuf>,
    /// Takes fingerprints of TLS handshakes and HTTP/2 connections, even if no log names them.
    pub fingerprints: bool,
    /// CrowdSec, whose decisions are bans.
    pub crowdsec: Option<CrowdSec>,
}

impl Config {
    /// Returns true if fingerprints of TLS handshakes and HTTP/2 connections are taken.
    pub fn takes_fingerprints(&self) -> bool {
        let is_named = |log: &AccessLog| match &log.format {
            AccessLogFormat::Template(text) => text.contains("{ja4}") || text.contains("{http2_fingerprint}"),
            _ => false,
        };
        let is_key = |key: &LimitKey| matches!(key, LimitKey::Fact(Fact::Ja4 | Fact::Http2Fingerprint));
        let mut rules = self.sites.iter().map(|site| &site.rules).chain([&self.rules]);
        let mut logs = self.sites.iter().filter_map(|site| site.access_log.as_ref()).chain(&self.access_log);
        self.server.client_knowledge.fingerprints
            || logs.any(is_named)
            || rules.any(|rules| {
                rules.rate_limits.iter().any(|limit| is_key(&limit.key))
                    || rules.request_limits.iter().any(|limit| is_key(&limit.key))
            })
    }
}

/// Local API of CrowdSec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrowdSec {
    /// Host and port of the API, without TLS.
    pub authority: String,
    /// File of the key of this bouncer.
    pub key_file: PathBuf,
    /// Time between two requests for decisions.
    pub interval: Duration,
}

/// Limits on connections that are kept without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TarpitLimits {
    /// Maximum number of them, over all workers; further ones are closed.
    pub connections_max: usize,
    /// Time for which each is kept.
    pub time: Duration,
}

impl Default for TarpitLimits {
    fn default() -> Self {
        Self { connections_max: 1_000, time: Duration::from_secs(120) }
    }
}

/// Names of the presets.
pub(crate) const BOT_PRESETS: &[&str] = &["forum", "forge", "shop", "api", "off"];

/// Paths that no preset asks a challenge for: feeds, and what programs read.
const EXEMPT: &[&str] = &[
    "/robots.txt",
    "/favicon.ico",
    "/.well-known/*",
    "~^/sitemap[^/]*\\.xml(\\.gz)?$",
    "~(^|/)(feed|rss|atom)(/|\\.xml|\\.php)?$",
    "*.rss",
    "*.atom",
    "~^/(api|healthz?|ready|live|status)(/|$)",
];

impl Default for BotsConfig {
    fn default() -> Self {
        Self {
            is_dry_run: false,
            policy: ScorePolicy::default(),
            exempt: patterns(EXEMPT),
            scores: Vec::new(),
            crawlers: Vec::new(),
            agent_keys: Vec::new(),
            robots: None,
            rejection: BotRejection::default(),
            wait: Duration::from_secs(10),
            pass_time: Duration::from_secs(7 * 86_400),
            key_file: None,
            resolver: None,
        }
    }
}

impl BotsConfig {
    /// Settings of a preset; `None` for `off`.
    pub fn preset(name: &str) -> Option<Self> {
        let mut config = Self::default();
        match name {
            "off" => return None,
            "forum" => {
                config.suspect(20, "~^/(search|memberlist|members|users|profile|tags?|calendar)(\\.php)?(/|$)");
            }
            "forge" => {
                // Git, registries and the tools of Go fetch without a browser.
                config.exempt.extend(patterns(&[
                    "~/(info/refs|git-upload-pack|git-receive-pack)$",
                    "~/info/lfs/",
                    "~^/(v2|token|debian|npm|pypi|maven)(/|$)",
                    "*.git",
                ]));
                config.suspect(
                    30,
                    "~^/[^/]+/[^/]+/(-/)?(blame|commits?|compare|raw|archive|src/commit|blob|tree|graph)(/|$)",
                );
                config.suspect(20, "~^/(explore|search)(/|$)");
            }
            "shop" => {
                config.exempt.extend(patterns(&["~^/(webhooks?|callbacks?|ipn|payment/notify)(/|$)"]));
                config.policy.challenge_score = Some(40);
                config.suspect(20, "~^/(catalogsearch|search|filter|compare)(/|$)");
            }
            _ => {
                config.policy.challenge_score = None;
                config.exempt.clear();
                for signal in [Signal::Library, Signal::NoUserAgent, Signal::NoAccept] {
                    config.policy.points[signal as usize] = 0;
                }
            }
        }
        Some(config)
    }

    fn suspect(&mut self, points: i16, path: &str) {
        self.scores.extend(patterns(&[path]).into_iter().map(|path| CustomScore { points, path, when: None }));
    }

    /// Sets the points of a signal.
    pub(crate) fn set_points(&mut self, signal: &str, points: i16) {
        if let Some(index) = Signal::from_name(signal) {
            self.policy.points[index] = points;
        }
    }

    /// Files that are read, without the key.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let ranges = self.crawlers.iter().filter_map(|crawler| crawler.ranges.as_ref());
        let keys = self.agent_keys.iter().map(|(_, file)| file);
        ranges.chain(keys).chain(&self.robots)
    }
}

/// Patterns of this file. All are valid, as a test shows.
fn patterns(texts: &[&str]) -> Vec<PathPattern> {
    texts.iter().filter_map(|text| parse_pattern(text)).collect()
}

/// Names of the signals.
pub(crate) const SIGNAL_NAMES: &[&str] = &{
    let mut names = [""; SIGNALS.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = SIGNALS[index].0;
        index += 1;
    }
    names
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets() {
        for name in BOT_PRESETS {
            assert_eq!(BotsConfig::preset(name).is_none(), *name == "off", "{name}");
        }
        assert_eq!(patterns(EXEMPT).len(), EXEMPT.len());
        let has = |preset: &str, path: &str| {
            BotsConfig::preset(preset).unwrap().exempt.iter().any(|pattern| pattern.matches(path.as_bytes()))
        };
        for (preset, path, expect) in [
            ("forum", "/feed", true),
            ("forum", "/board/rss.xml", true),
            ("forum", "/a.atom", true),
            ("forum", "/api/v1/posts", true),
            ("forum", "/healthz", true),
            ("forum", "/feedback", false),
            ("forum", "/topic/1", false),
            ("forge", "/a/b.git/info/refs", true),
            ("forge", "/a/b/blame/main/x", false),
            ("forge", "/v2/a/manifests/latest", true),
            ("shop", "/webhooks/paid", true),
        ] {
            assert_eq!(has(preset, path), expect, "{preset} {path}");
        }
        let score = |preset: &str, path: &str| -> i16 {
            let config = BotsConfig::preset(preset).unwrap();
            config.scores.iter().filter(|score| score.path.matches(path.as_bytes())).map(|score| score.points).sum()
        };
        assert_eq!(score("forge", "/anna/tool/blame/main/a.rs"), 30);
        assert_eq!(score("forge", "/anna/tool/-/commit/abc"), 30);
        assert_eq!(score("forge", "/anna/tool"), 0);
        assert_eq!(score("forum", "/search.php"), 20);
        assert_eq!(score("shop", "/search"), 20);
    }
}
