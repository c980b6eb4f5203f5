//! BotSignals of a request, their points, and the decision by their sum.

use crate::agents::AgentKind;

/// Names, default points and meanings of the signals, in the order of their numbers.
pub const SIGNALS: [(&str, i16, &str); 13] = [
    ("no-user-agent", 50, "the request has no `User-Agent`"),
    ("library", 40, "`User-Agent` names a library or a command-line program"),
    ("headless", 50, "`User-Agent` names a browser that a program drives"),
    ("no-accept", 10, "the request has no `Accept`"),
    ("no-accept-language", 20, "a browser sends `Accept-Language`"),
    ("no-accept-encoding", 20, "a browser sends `Accept-Encoding`"),
    ("no-fetch-metadata", 30, "the browser that `User-Agent` names sends `Sec-Fetch-Mode` over HTTPS"),
    ("old-http", 20, "the browser that `User-Agent` names uses HTTP/2 or HTTP/3 over TLS"),
    ("unverified-crawler", 20, "`User-Agent` names a crawler, and nothing confirms it"),
    ("false-crawler", 100, "`User-Agent` names a crawler, and the address is not one of its own"),
    ("robots-txt", 100, "robots.txt disallows the path for the crawler that `User-Agent` names"),
    ("bad-signature", 50, "the request has a signature of an agent that is not valid"),
    ("custom", 0, "a `score` of the configuration applies"),
];

/// A fact about a request that speaks for a bot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// There is no `User-Agent`.
    NoUserAgent,
    /// A library or a command-line program.
    Library,
    /// A browser that a program drives.
    Headless,
    /// No `Accept`.
    NoAccept,
    /// A browser without `Accept-Language`.
    NoAcceptLanguage,
    /// A browser without `Accept-Encoding`.
    NoAcceptEncoding,
    /// A browser without `Sec-Fetch-Mode`.
    NoFetchMetadata,
    /// A browser with an old version of HTTP.
    OldHttp,
    /// A crawler that nothing confirms.
    UnverifiedCrawler,
    /// A crawler from an address of others.
    FalseCrawler,
    /// A path that robots.txt disallows.
    RobotsTxt,
    /// A signature that is not valid.
    BadSignature,
    /// A score of the configuration.
    Custom,
}

impl Signal {
    /// The signal of this name.
    pub fn from_name(name: &str) -> Option<usize> {
        SIGNALS.iter().position(|(known, ..)| *known == name)
    }
}

/// A set of signals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BotSignals(u16);

impl BotSignals {
    /// Adds a signal.
    pub fn add(&mut self, signal: Signal) {
        self.0 |= 1 << signal as u16;
    }

    /// The set with those of another.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if the set has the signal.
    pub fn has(self, signal: Signal) -> bool {
        self.0 & 1 << signal as u16 != 0
    }

    /// Numbers of the signals: their places in [`SIGNALS`].
    fn numbers(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let number = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            (number < SIGNALS.len()).then_some(number)
        })
    }

    /// Names of the signals, each with its points.
    pub fn points(self, points: &[i16; SIGNALS.len()]) -> impl Iterator<Item = (&'static str, i16)> {
        self.numbers().map(|number| (SIGNALS[number].0, points[number]))
    }

    /// Names of the signals, in order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        self.numbers().map(|number| SIGNALS[number].0)
    }
}

/// Facts of a request from which signals are taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct BotFacts {
    /// Program that `User-Agent` names.
    pub agent: AgentKind,
    /// True if the request has `Accept`.
    pub has_accept: bool,
    /// True if the request has `Accept-Language`.
    pub has_accept_language: bool,
    /// True if the request has `Accept-Encoding`.
    pub has_accept_encoding: bool,
    /// True if the request has `Sec-Fetch-Mode`.
    pub has_fetch_mode: bool,
    /// True if the client itself uses TLS with this server, so that no proxy between has changed the version.
    pub is_direct_tls: bool,
    /// True for HTTP/1.0 and HTTP/1.1.
    pub is_http1: bool,
    /// True if this server offers HTTP/2 on the connection.
    pub offers_http2: bool,
    /// True for the handshake of a WebSocket, for which browsers send fewer fields, and use HTTP/1.1.
    pub is_web_socket: bool,
}

/// Signals of the program and the fields of a request.
pub fn signals_of(facts: &BotFacts) -> BotSignals {
    let mut signals = BotSignals::default();
    let kind = facts.agent;
    match kind {
        AgentKind::None => signals.add(Signal::NoUserAgent),
        AgentKind::Library => signals.add(Signal::Library),
        AgentKind::Headless => signals.add(Signal::Headless),
        AgentKind::Browser | AgentKind::Mozilla | AgentKind::Other => {}
    }
    if !facts.has_accept && !facts.is_web_socket {
        signals.add(Signal::NoAccept);
    }
    if matches!(kind, AgentKind::Browser | AgentKind::Mozilla) {
        if !facts.has_accept_language {
            signals.add(Signal::NoAcceptLanguage);
        }
        if !facts.has_accept_encoding {
            signals.add(Signal::NoAcceptEncoding);
        }
    }
    if kind == AgentKind::Browser && facts.is_direct_tls && !facts.is_web_socket {
        if !facts.has_fetch_mode {
            signals.add(Signal::NoFetchMetadata);
        }
        if facts.is_http1 && facts.offers_http2 {
            signals.add(Signal::OldHttp);
        }
    }
    signals
}

/// Class of a request, for logs and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BotClass {
    /// The score is too low for a challenge.
    Visitor,
    /// The path needs no challenge.
    Exempt,
    /// A challenge was passed.
    Passed,
    /// A crawler whose address is confirmed.
    Crawler,
    /// An agent whose signature is valid.
    Agent,
    /// A challenge is the response.
    Challenged,
    /// The request is rejected.
    Rejected,
}

impl BotClass {
    /// All classes, in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Visitor, Self::Exempt, Self::Passed, Self::Crawler, Self::Agent, Self::Challenged, Self::Rejected];

    /// Name in logs, metrics and expressions.
    pub fn name(self) -> &'static str {
        match self {
            Self::Visitor => "visitor",
            Self::Exempt => "exempt",
            Self::Passed => "passed",
            Self::Crawler => "crawler",
            Self::Agent => "agent",
            Self::Challenged => "challenged",
            Self::Rejected => "rejected",
        }
    }
}

/// Scores from which something happens, and points of the signals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScorePolicy {
    /// Points of each signal, in the order of [`SIGNALS`].
    pub points: [i16; SIGNALS.len()],
    /// Score from which a challenge is the response; `None` if there are no challenges.
    pub challenge_score: Option<i16>,
    /// Score from which requests are rejected; `None` if none are.
    pub reject_score: Option<i16>,
    /// Leading zero bits of the proof of work at the lowest score with a challenge.
    pub work_bits: u8,
}

/// Evidence about a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// BotSignals.
    pub signals: BotSignals,
    /// Points of the configuration's own scores.
    pub custom_points: i16,
    /// True if the address of the crawler is confirmed.
    pub is_confirmed_crawler: bool,
    /// True if the signature of the agent is valid.
    pub is_signed: bool,
    /// True if the path needs no challenge.
    pub is_exempt: bool,
    /// True if the client has passed a challenge.
    pub has_passed: bool,
}

/// Decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BotAction {
    /// Passes it on to the handlers.
    Pass,
    /// A challenge is the response, with so many leading zero bits.
    Challenge(u8),
    /// Rejects it.
    Reject,
}

/// Points for one more bit of work.
const POINTS_PER_BIT: i16 = 20;

/// Most bits that a high score adds: sixteen times the work.
const MORE_BITS_MAX: u8 = 4;

impl Default for ScorePolicy {
    fn default() -> Self {
        Self {
            points: SIGNALS.map(|(_, points, _)| points),
            challenge_score: Some(30),
            reject_score: Some(100),
            work_bits: 15,
        }
    }
}

impl ScorePolicy {
    /// Sum of the points.
    pub fn score(&self, evidence: &Evidence) -> i16 {
        let points = evidence.signals.numbers().map(|number| self.points[number]);
        points.fold(evidence.custom_points, i16::saturating_add)
    }

    /// Decides on a request.
    pub fn decide(&self, evidence: &Evidence) -> (i16, BotClass, BotAction) {
        let score = self.score(evidence);
        let reaches = |least: Option<i16>| least.is_some_and(|least| score >= least);
        // Nothing opens what robots.txt closes, and no false name is let in by a cookie.
        let is_closed = evidence.signals.has(Signal::RobotsTxt) || evidence.signals.has(Signal::FalseCrawler);
        let (class, action) = if evidence.is_exempt && !(is_closed && reaches(self.reject_score)) {
            (BotClass::Exempt, BotAction::Pass)
        } else if is_closed && reaches(self.reject_score) {
            (BotClass::Rejected, BotAction::Reject)
        } else if evidence.is_confirmed_crawler {
            (BotClass::Crawler, BotAction::Pass)
        } else if evidence.is_signed {
            (BotClass::Agent, BotAction::Pass)
        } else if reaches(self.reject_score) {
            (BotClass::Rejected, BotAction::Reject)
        } else if evidence.has_passed {
            (BotClass::Passed, BotAction::Pass)
        } else if reaches(self.challenge_score) {
            let above = score.saturating_sub(self.challenge_score.unwrap_or(score));
            let more_bits = u8::try_from(above / POINTS_PER_BIT).unwrap_or(MORE_BITS_MAX).min(MORE_BITS_MAX);
            (BotClass::Challenged, BotAction::Challenge(self.work_bits.saturating_add(more_bits)))
        } else {
            (BotClass::Visitor, BotAction::Pass)
        };
        (score, class, action)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signals(all: &[Signal]) -> BotSignals {
        let mut signals = BotSignals::default();
        all.iter().for_each(|signal| signals.add(*signal));
        signals
    }

    #[test]
    fn names() {
        for (index, (name, ..)) in SIGNALS.iter().enumerate() {
            assert_eq!(Signal::from_name(name), Some(index));
        }
        assert_eq!(Signal::from_name("other"), None);
        let set = signals(&[Signal::Custom, Signal::NoUserAgent]);
        assert_eq!(set.names().collect::<Vec<_>>(), ["no-user-agent", "custom"]);
        for (index, class) in BotClass::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, index);
        }
    }

    #[test]
    fn requests() {
        let browser = BotFacts {
            agent: AgentKind::Browser,
            has_accept: true,
            has_accept_language: true,
            has_accept_encoding: true,
            has_fetch_mode: true,
            is_direct_tls: true,
            is_http1: false,
            offers_http2: true,
            is_web_socket: false,
        };
        let check = |facts: BotFacts, expect: &[&str]| {
            assert_eq!(signals_of(&facts).names().collect::<Vec<_>>(), expect, "{facts:?}");
        };
        check(browser, &[]);
        check(BotFacts { has_fetch_mode: false, ..browser }, &["no-fetch-metadata"]);
        check(BotFacts { is_http1: true, ..browser }, &["old-http"]);
        check(BotFacts { is_http1: true, offers_http2: false, ..browser }, &[]);
        let handshake = BotFacts { is_web_socket: true, has_accept: false, has_fetch_mode: false, ..browser };
        check(BotFacts { is_http1: true, ..handshake }, &[]);
        check(BotFacts { has_accept_encoding: false, ..handshake }, &["no-accept-encoding"]);
        check(BotFacts { is_http1: true, has_fetch_mode: false, is_direct_tls: false, ..browser }, &[]);
        check(BotFacts { has_accept_language: false, ..browser }, &["no-accept-language"]);
        check(BotFacts::default(), &["no-user-agent", "no-accept"]);
        check(BotFacts { agent: AgentKind::Library, has_accept: true, ..BotFacts::default() }, &["library"]);
        check(BotFacts { agent: AgentKind::Other, has_accept: true, ..BotFacts::default() }, &[]);
    }

    #[test]
    fn decisions() {
        let policy = ScorePolicy::default();
        let check = |evidence: Evidence, expect: (i16, BotClass, BotAction)| {
            assert_eq!(policy.decide(&evidence), expect, "{evidence:?}");
        };
        let none = Evidence::default();
        let with = |all: &[Signal]| Evidence { signals: signals(all), ..none };
        use BotAction::{Challenge, Pass, Reject};
        check(none, (0, BotClass::Visitor, Pass));
        check(with(&[Signal::NoAcceptLanguage]), (20, BotClass::Visitor, Pass));
        check(with(&[Signal::NoFetchMetadata]), (30, BotClass::Challenged, Challenge(15)));
        check(with(&[Signal::NoUserAgent]), (50, BotClass::Challenged, Challenge(16)));
        check(
            with(&[Signal::NoUserAgent, Signal::NoAccept, Signal::NoFetchMetadata]),
            (90, BotClass::Challenged, Challenge(18)),
        );
        check(with(&[Signal::FalseCrawler]), (100, BotClass::Rejected, Reject));
        check(Evidence { has_passed: true, ..with(&[Signal::Library]) }, (40, BotClass::Passed, Pass));
        check(Evidence { has_passed: true, ..with(&[Signal::FalseCrawler]) }, (100, BotClass::Rejected, Reject));
        check(Evidence { is_exempt: true, ..with(&[Signal::Library]) }, (40, BotClass::Exempt, Pass));
        check(Evidence { is_exempt: true, ..with(&[Signal::RobotsTxt]) }, (100, BotClass::Rejected, Reject));
        check(Evidence { is_confirmed_crawler: true, ..with(&[]) }, (0, BotClass::Crawler, Pass));
        check(Evidence { is_confirmed_crawler: true, ..with(&[Signal::RobotsTxt]) }, (100, BotClass::Rejected, Reject));
        check(Evidence { is_signed: true, ..with(&[Signal::Library]) }, (40, BotClass::Agent, Pass));
        check(Evidence { custom_points: i16::MAX, ..with(&[Signal::Library]) }, (i16::MAX, BotClass::Rejected, Reject));
        check(Evidence { custom_points: -40, ..with(&[Signal::Library]) }, (0, BotClass::Visitor, Pass));
        let lenient = ScorePolicy { reject_score: None, challenge_score: None, ..ScorePolicy::default() };
        assert_eq!(lenient.decide(&with(&[Signal::FalseCrawler])).2, Pass);
        let unlimited = ScorePolicy { reject_score: None, ..ScorePolicy::default() };
        let most = Evidence { custom_points: i16::MAX, ..none };
        assert_eq!(unlimited.decide(&most).2, Challenge(19));
    }
}
