//! Bots: assesses a request, and answers those that must pass a challenge or are rejected.

mod known;
mod page;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use ::bots::agents::{AgentKind, Crawler, agent_kind};
use ::bots::challenge::{
    COOKIE_NAME, ChallengeFault, ChallengeKey, ChallengedClient, PassedBy, Terms, safe_return_target,
};
use ::bots::fcrdns::ClaimVerdict;
use ::bots::robots::Robots;
use ::bots::score::{BotAction, BotClass, BotFacts, BotSignals, Evidence, Signal, signals_of};
use ::bots::signature::{SignatureFault, SignedRequest};
use wire::http::{KnownField, Status, Version, cookie, cookies};

use self::known::KnownTexts;
use self::page::ChallengePage;
use super::target::arguments;
use super::{RoutedFacts, RuleDecision, Visit};
use crate::config::{BotRejection, BotsConfig, CustomScore, PathPattern, unmapped};
use crate::handler::{BuiltResponse, PageFormat, ResponseEnding, Routed};
use crate::known_clients::{BotLists, BotReport, Claim, ClaimFuture, Claims, SiteLists};
use crate::log::LogClient;
use crate::metrics::ChallengeResult;

/// Path that challenges are returned to.
pub(super) const CHALLENGE_PATH: &str = "/.tailcoat/challenge";

/// Longest time for which a challenge that was passed by waiting is remembered, in seconds.
const WAITED_PASS_SECONDS_MAX: u64 = 3_600;

/// Clients that have passed and are remembered by each worker, so that their cookies need not be verified each time.
const PASSED_PLACES: usize = 4_096;

/// Longest `User-Agent` and host of a client that is remembered.
const PASSED_TEXT_BYTES_MAX: usize = 512;

/// Cookies of a request that are tried.
const COOKIES_MAX: usize = 4;

/// Values of `User-Agent` that each worker remembers.
const AGENT_PLACES: usize = 256;

/// Paths that each worker remembers.
const PATH_PLACES: usize = 512;

/// Bots of a site, shared by all workers.
#[derive(Debug)]
pub struct SharedBots {
    pub(super) config: Arc<BotsConfig>,
    pub(super) lists: Arc<SiteLists>,
    pub(super) key: Arc<ChallengeKey>,
    pub(super) claims: Arc<Claims>,
    /// True if connections with TLS may use HTTP/2.
    pub(super) offers_http2: bool,
}

/// Bots of a site; each worker has its own.
pub(super) struct BotRule {
    shared: Arc<SharedBots>,
    version: Cell<Option<u64>>,
    lists: RefCell<Arc<BotLists>>,
    passed: RefCell<PassedClients>,
    /// Programs that values of `User-Agent` name.
    agents: RefCell<KnownTexts<NamedAgent>>,
    paths: RefCell<KnownTexts<PathFacts>>,
    /// Paths that need no challenge, and scores of the configuration, with a condition and without. Regular expressions need
    /// scratch memory for a search, for which workers that share them wait.
    exempt: Vec<PathPattern>,
    scores: Vec<CustomScore>,
    path_scores: Vec<CustomScore>,
    /// Report of clients that have passed.
    passed_report: Rc<BotReport>,
    /// Most points of the scores of the configuration.
    custom_points_max: i16,
    /// Latest report about another client. The next is often the same, and then shared.
    latest_report: RefCell<Rc<BotReport>>,
}

/// Clients that have passed.
#[derive(Default)]
struct PassedClients {
    /// Empty until a client has passed.
    places: Vec<Option<PassedClient>>,
}

/// A client that has passed, with all that its cookie is for.
struct PassedClient {
    cookie: Box<[u8]>,
    user_agent: Box<[u8]>,
    host: Box<[u8]>,
    network: Option<u64>,
    /// End of the cookie's validity, in seconds since 1970.
    until_s: u64,
}

/// Programs that a `User-Agent` names.
#[derive(Clone, Copy, Default)]
struct NamedAgent {
    /// Index of the crawler that it claims to be.
    crawler: Option<u32>,
    kind: AgentKind,
}

/// Facts that the path of a request alone decides.
#[derive(Clone, Copy, Default)]
struct PathFacts {
    /// True if the path needs no challenge.
    is_exempt: bool,
    /// Points of the scores without a condition.
    points: i16,
}

impl PassedClients {
    fn has(&self, client: &ChallengedClient<'_>, cookie: &[u8], now_s: u64) -> bool {
        let place = self.places.get(Self::place(cookie)).and_then(Option::as_ref);
        place.is_some_and(|known| {
            *known.cookie == *cookie
                && now_s < known.until_s
                && *known.user_agent == *client.user_agent
                && *known.host == *client.host
                && known.network == Self::network(client)
        })
    }

    /// Adds a client whose cookie is valid.
    fn insert(&mut self, client: &ChallengedClient<'_>, cookie: &[u8], until_s: u64) {
        if client.user_agent.len() > PASSED_TEXT_BYTES_MAX || client.host.len() > PASSED_TEXT_BYTES_MAX {
            return;
        }
        if self.places.is_empty() {
            self.places.resize_with(PASSED_PLACES, || None);
        }
        self.places[Self::place(cookie)] = Some(PassedClient {
            cookie: cookie.into(),
            user_agent: client.user_agent.into(),
            host: client.host.into(),
            network: Self::network(client),
            until_s,
        });
    }

    /// Place of a cookie: its last characters are of its signature, which clients cannot choose.
    fn place(cookie: &[u8]) -> usize {
        let end = cookie.last_chunk().map_or(0, |end| u32::from_le_bytes(*end));
        (end.wrapping_mul(0x9e37_79b1) >> 16) as usize % PASSED_PLACES
    }

    fn network(client: &ChallengedClient<'_>) -> Option<u64> {
        client.address.map(|address| match unmapped(address) {
            std::net::IpAddr::V4(v4) => u64::from(u32::from(v4) >> 8),
            std::net::IpAddr::V6(v6) => 1 << 63 | (u128::from(v6) >> 80) as u64,
        })
    }
}

impl BotRule {
    pub(super) fn new(shared: &Arc<SharedBots>) -> Self {
        let config = &shared.config;
        let passed_report = Rc::new(BotReport {
            class: BotClass::Passed,
            score: 0,
            signals: BotSignals::default(),
            name: None,
            action: BotAction::Pass,
        });
        let (of_path, of_request): (Vec<_>, Vec<_>) =
            config.scores.iter().cloned().partition(|score| score.when.is_none());
        let points = config.scores.iter().map(|score| score.points.max(0));
        Self {
            version: Cell::new(None),
            lists: RefCell::default(),
            passed: RefCell::default(),
            agents: RefCell::new(KnownTexts::new(AGENT_PLACES)),
            paths: RefCell::new(KnownTexts::new(PATH_PLACES)),
            exempt: PathPattern::joined(&config.exempt),
            scores: of_request,
            path_scores: of_path,
            custom_points_max: points.fold(0, i16::saturating_add),
            latest_report: RefCell::new(Rc::clone(&passed_report)),
            passed_report,
            shared: Arc::clone(shared),
        }
    }

    /// Assesses a request. `verdict` is the one about its claim, after a wait for it.
    ///
    /// # Errors
    /// The verdict about the claim to be a crawler must be waited for.
    pub(super) fn assess(
        &self,
        routed: &Routed<'_>,
        client: LogClient,
        verdict: Option<ClaimVerdict>,
    ) -> Result<Rc<BotReport>, ClaimFuture> {
        let challenged = challenged_client(routed, client);
        let now_s = routed.now.unix_seconds;
        let cookie = cookie(&routed.request, COOKIE_NAME.as_bytes());
        if cookie.is_some_and(|cookie| self.passed.borrow().has(&challenged, cookie, now_s))
            && !self.may_be_rejected(routed)
        {
            return Ok(Rc::clone(&self.passed_report));
        }
        self.assess_fully(routed, &challenged, verdict)
    }

    fn assess_fully(
        &self,
        routed: &Routed<'_>,
        client: &ChallengedClient<'_>,
        verdict: Option<ClaimVerdict>,
    ) -> Result<Rc<BotReport>, ClaimFuture> {
        let mut version = self.version.get();
        if let Some(lists) = self.shared.lists.newer_than(&mut version) {
            *self.lists.borrow_mut() = lists;
            self.version.set(version);
            self.agents.borrow_mut().clear();
        }
        let lists = self.lists.borrow();
        let config = &self.shared.config;
        let (mut evidence, mut name) = (Evidence::default(), None);
        let named = self.agents.borrow_mut().get_or_find(client.user_agent, || NamedAgent {
            crawler: lists.crawlers.claimed(client.user_agent).and_then(|index| u32::try_from(index).ok()),
            kind: agent_kind(client.user_agent),
        });
        let claimed = named.crawler.map(|index| index as usize);
        // A claim that nothing can confirm counts as any name.
        let mut is_verifiable = false;
        if let Some((index, crawler)) = claimed.and_then(|index| Some((index, lists.crawlers.get(index)?))) {
            name = Some(crawler.name.as_str());
            is_verifiable = !crawler.domains.is_empty() || lists.ranges(index).is_some();
            match self.verdict(index, crawler, &lists, client, verdict)? {
                ClaimVerdict::Confirmed => evidence.is_confirmed_crawler = true,
                ClaimVerdict::Refuted => evidence.signals.add(Signal::FalseCrawler),
                ClaimVerdict::Unknown => evidence.signals.add(Signal::UnverifiedCrawler),
            }
            // Also as the path is served: `/./a` and `//a` may be the file of `/a`.
            let is_disallowed = |robots: &Robots| {
                !robots.allows(&crawler.name, routed.request.target()) || !robots.allows(&crawler.name, routed.path)
            };
            if lists.robots.as_ref().is_some_and(is_disallowed) {
                evidence.signals.add(Signal::RobotsTxt);
            }
        }
        let mut agent = None;
        if !lists.keys.is_empty() {
            match lists.keys.verify(&Signed(routed), routed.now.unix_seconds) {
                Ok(signer) => {
                    evidence.is_signed = true;
                    agent = Some(signer);
                }
                Err(SignatureFault::None | SignatureFault::UnknownKey) => {}
                Err(SignatureFault::Malformed | SignatureFault::Expired | SignatureFault::Wrong) => {
                    evidence.signals.add(Signal::BadSignature);
                }
            }
        }
        let PathFacts { is_exempt, points } = self.path_facts(routed.path);
        evidence.custom_points = points.saturating_add(self.conditional_points(routed));
        if evidence.custom_points != 0 {
            evidence.signals.add(Signal::Custom);
        }
        evidence.is_exempt = is_exempt;
        let with_pass = Evidence { has_passed: true, ..evidence };
        let may_pass = !is_verifiable && !evidence.is_signed;
        if may_pass {
            evidence.signals = evidence.signals.with(signals_of(&self.facts(routed, named.kind)));
        }
        let (mut decision, mut pass) = (config.policy.decide(&evidence), None);
        if may_pass {
            let passed = config.policy.decide(&with_pass);
            // The signature of the cookie is checked only where it makes a difference.
            if passed.1 != decision.1 {
                pass = self.valid_pass(routed, client);
            }
            if pass.is_some() {
                (decision, evidence) = (passed, with_pass);
            }
        }
        let (score, class, action) = decision;
        if class == BotClass::Passed
            && let Some((cookie, until_s)) = pass
        {
            self.passed.borrow_mut().insert(client, cookie, until_s);
        }
        Ok(self.report(class, score, evidence.signals, agent.or(name), action))
    }

    /// Valid cookie, and the end of its validity. Another host of the domain may have set one of the same name.
    fn valid_pass<'r>(&self, routed: &Routed<'r>, client: &ChallengedClient<'_>) -> Option<(&'r [u8], u64)> {
        let named = cookies(&routed.request).filter(|(name, _)| *name == COOKIE_NAME.as_bytes());
        let valid = |cookie| Some((cookie, self.shared.key.valid_until(client, cookie, routed.now.unix_seconds)?));
        named.take(COOKIES_MAX).find_map(|(_, cookie)| valid(cookie))
    }

    fn report(
        &self,
        class: BotClass,
        score: i16,
        signals: BotSignals,
        name: Option<&str>,
        action: BotAction,
    ) -> Rc<BotReport> {
        let mut latest = self.latest_report.borrow_mut();
        let known = (latest.class, latest.score, latest.signals, latest.name.as_deref(), latest.action);
        if known != (class, score, signals, name, action) {
            *latest = Rc::new(BotReport { class, score, signals, name: name.map(Into::into), action });
        }
        Rc::clone(&latest)
    }

    /// Verdict about the claim to be a crawler.
    fn verdict(
        &self,
        index: usize,
        crawler: &Crawler,
        lists: &BotLists,
        client: &ChallengedClient<'_>,
        waited: Option<ClaimVerdict>,
    ) -> Result<ClaimVerdict, ClaimFuture> {
        let Some(address) = client.address else { return Ok(ClaimVerdict::Unknown) };
        if let Some(ranges) = lists.ranges(index) {
            let is_own = ranges.has(LogClient::Ip((address, 0).into()));
            // Without domains, the ranges are all that there is.
            if is_own || crawler.domains.is_empty() {
                return Ok(if is_own { ClaimVerdict::Confirmed } else { ClaimVerdict::Refuted });
            }
        }
        if crawler.domains.is_empty() {
            return Ok(ClaimVerdict::Unknown);
        }
        if let Some(verdict) = waited {
            return Ok(verdict);
        }
        let claim = Claim { address, domains: crawler.domains.clone(), resolver: self.shared.config.resolver };
        self.shared.claims.verdict(claim, Instant::now())
    }

    fn facts(&self, routed: &Routed<'_>, agent: AgentKind) -> BotFacts {
        let request = &routed.request;
        let (mut has_accept_language, mut has_fetch_mode) = (false, false);
        for field in request.head.fields.iter().filter(|field| field.known == KnownField::Other) {
            let name = field.name.of(request.bytes);
            match name.len() {
                15 => has_accept_language |= name.eq_ignore_ascii_case(b"accept-language"),
                14 => has_fetch_mode |= name.eq_ignore_ascii_case(b"sec-fetch-mode"),
                _ => {}
            }
        }
        BotFacts {
            agent,
            has_accept: request.head.has(KnownField::Accept),
            has_accept_language,
            has_accept_encoding: request.head.has(KnownField::AcceptEncoding),
            has_fetch_mode,
            is_direct_tls: routed.tls.is_some() && routed.proxied.is_none(),
            is_http1: matches!(request.head.version, Version::Http10 | Version::Http11),
            is_web_socket: request
                .field(KnownField::Upgrade)
                .is_some_and(|name| name.eq_ignore_ascii_case(b"websocket")),
            offers_http2: self.shared.offers_http2,
        }
    }

    /// True if the scores of the configuration may reject the request. Those with a condition are taken to apply.
    fn may_be_rejected(&self, routed: &Routed<'_>) -> bool {
        let Some(least) = self.shared.config.policy.reject_score else { return false };
        if self.custom_points_max < least {
            return false;
        }
        let of_request = self.scores.iter().filter(|score| score.points > 0 && score.path.matches(routed.path));
        let points = self.path_facts(routed.path).points;
        of_request.map(|score| score.points).fold(points, i16::saturating_add) >= least
    }

    fn path_facts(&self, path: &[u8]) -> PathFacts {
        self.paths.borrow_mut().get_or_find(path, || {
            let fitting = self.path_scores.iter().filter(|score| score.path.matches(path));
            PathFacts {
                is_exempt: self.exempt.iter().any(|pattern| pattern.matches(path)),
                points: fitting.map(|score| score.points).fold(0, i16::saturating_add),
            }
        })
    }

    /// Points of the scores with a condition.
    fn conditional_points(&self, routed: &Routed<'_>) -> i16 {
        if self.scores.is_empty() {
            return 0;
        }
        let facts = RoutedFacts::new(routed);
        let fitting = self.scores.iter().filter(|score| {
            score.path.matches(routed.path) && score.when.as_ref().is_none_or(|when| when.evaluate(&facts).is_true())
        });
        fitting.map(|score| score.points).fold(0, i16::saturating_add)
    }

    /// Decision on a request that must pass a challenge, returns one, or is rejected; `None` if it goes on.
    pub(super) fn answer(&self, report: &BotReport, routed: &Routed<'_>, visit: &Visit) -> Option<RuleDecision> {
        if self.shared.config.is_dry_run {
            return None;
        }
        Some(RuleDecision::Answer(match report.action {
            BotAction::Reject => return Some(self.reject(routed)),
            _ if routed.path == CHALLENGE_PATH.as_bytes() => self.on_return(report, routed, visit),
            BotAction::Challenge(work_bits) => self.challenge(work_bits, routed.request.target(), "", routed, visit),
            BotAction::Pass => return None,
        }))
    }

    /// True if the assessment answers the request, and the assessment in words.
    pub(super) fn explain(&self, report: &BotReport) -> (bool, String) {
        let SharedBots { config, .. } = &*self.shared;
        let mut parts = vec![format!("class `{}`, score {}", report.class.name(), report.score)];
        parts.extend(report.name.iter().map(|name| format!("name {name:?}")));
        // The rest is from scores of the configuration.
        let mut rest = report.score;
        for (name, points) in report.signals.points(&config.policy.points).filter(|(name, _)| *name != "custom") {
            rest = rest.saturating_sub(points);
            parts.push(format!("`{name}` {points}"));
        }
        if report.signals.has(Signal::Custom) {
            parts.push(format!("`score` {rest}"));
        }
        let action = match report.action {
            BotAction::Pass => None,
            BotAction::Challenge(bits) => Some(format!("gets a challenge of {bits} bits")),
            BotAction::Reject => Some("is rejected".to_owned()),
        };
        let applies = action.is_some() && !config.is_dry_run;
        let dry_run = if action.is_some() && config.is_dry_run { " (not in this dry run)" } else { "" };
        parts.extend(action.map(|action| format!("{action}{dry_run}")));
        (applies, parts.join(", "))
    }

    fn reject(&self, routed: &Routed<'_>) -> RuleDecision {
        const REASON: &str = "`bots`";
        // The connection of a proxy has requests of other clients, too.
        let rejection = if routed.proxied.is_some() { BotRejection::Forbidden } else { self.shared.config.rejection };
        let ending = match rejection {
            BotRejection::Forbidden => return RuleDecision::RejectBot(REASON),
            BotRejection::Close => ResponseEnding::Close,
            BotRejection::Tarpit => ResponseEnding::Tarpit,
        };
        let mut response = BuiltResponse::rejection(Status::FORBIDDEN, REASON);
        response.ending = ending;
        RuleDecision::Answer(response)
    }

    fn challenge(
        &self,
        work_bits: u8,
        target: &[u8],
        note: &str,
        routed: &Routed<'_>,
        visit: &Visit,
    ) -> Box<BuiltResponse> {
        visit.note_challenged();
        let client = challenged_client(routed, visit.client());
        let wait_s = u16::try_from(self.shared.config.wait.as_secs()).unwrap_or(u16::MAX);
        let terms = Terms { issued_s: routed.now.unix_seconds, work_bits, wait_s };
        let token = self.shared.key.issue(&client, terms);
        let page = ChallengePage { token: &token, work_bits, wait_s, target: safe_return_target(target), note };
        page.respond(PageFormat::wanted_by(&routed.request))
    }

    /// Checks a challenge that a client returns.
    fn on_return(&self, report: &BotReport, routed: &Routed<'_>, visit: &Visit) -> Box<BuiltResponse> {
        let argument = |name: &[u8]| {
            let mut all = arguments(routed.query).filter(|(other, _)| *other == name);
            all.next().and_then(|(_, value)| super::facts::decoded(value))
        };
        let client = challenged_client(routed, visit.client());
        let (token, nonce) = (argument(b"t").unwrap_or_default(), argument(b"n"));
        let target = argument(b"to").unwrap_or_default();
        let target = safe_return_target(&target);
        let now_s = routed.now.unix_seconds;
        match self.shared.key.check(&client, &token, nonce.as_deref(), now_s) {
            Ok(passed_by) => {
                visit.note_challenge(match passed_by {
                    PassedBy::Work => ChallengeResult::Work,
                    PassedBy::Wait => ChallengeResult::Wait,
                });
                let pass_s = self.shared.config.pass_time.as_secs();
                let pass_s = if passed_by == PassedBy::Wait { pass_s.min(WAITED_PASS_SECONDS_MAX) } else { pass_s };
                let cookie = self.shared.key.pass(&client, now_s + pass_s, passed_by);
                let secure = if routed.is_secure() { "; Secure" } else { "" };
                let mut response = BuiltResponse::new(Status::SEE_OTHER);
                response.fields.push("Location", target);
                response.fields.push("Cache-Control", "no-store");
                let cookie =
                    format!("{COOKIE_NAME}={cookie}; Path=/; Max-Age={pass_s}; HttpOnly; SameSite=Lax{secure}");
                response.fields.push("Set-Cookie", cookie);
                response
            }
            Err(fault) => {
                visit.note_challenge(ChallengeResult::Failed);
                let note = match fault {
                    ChallengeFault::Unsolved => "<p>That was too early. Please wait a little longer.</p>\n",
                    ChallengeFault::Expired => "<p>The check took too long. Here is a new one.</p>\n",
                    ChallengeFault::Invalid => "<p>The check was for another connection. Here is a new one.</p>\n",
                };
                let policy = &self.shared.config.policy;
                let work_bits = match report.action {
                    BotAction::Challenge(work_bits) => work_bits,
                    BotAction::Pass | BotAction::Reject => policy.work_bits,
                };
                self.challenge(work_bits, target, note, routed, visit)
            }
        }
    }
}

fn challenged_client<'r>(routed: &Routed<'r>, client: LogClient) -> ChallengedClient<'r> {
    let address = match client {
        LogClient::Ip(address) => Some(address.ip()),
        LogClient::Unix => None,
    };
    let user_agent = routed.request.field(KnownField::UserAgent).unwrap_or_default();
    ChallengedClient { address, user_agent, host: routed.host }
}

/// Request as its signature covers it.
struct Signed<'r>(&'r Routed<'r>);

impl SignedRequest for Signed<'_> {
    fn derived(&self, name: &str) -> Option<Vec<u8>> {
        let Self(routed) = self;
        let request = &routed.request;
        let authority = || {
            // The port of the scheme is left out (RFC 9421, section 2.2.3).
            let sent = request.field(KnownField::Host).unwrap_or(routed.host).to_ascii_lowercase();
            let port = if routed.is_secure() { &b":443"[..] } else { b":80" };
            sent.strip_suffix(port).map(<[u8]>::to_vec).unwrap_or(sent)
        };
        let target = request.target();
        let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
        Some(match name {
            "@method" => request.method_name().to_vec(),
            "@authority" => authority(),
            "@scheme" => routed.scheme().as_bytes().to_vec(),
            "@request-target" => target.to_vec(),
            "@path" => path.to_vec(),
            "@query" => [b"?", routed.query.unwrap_or_default()].concat(),
            "@target-uri" => [routed.scheme().as_bytes(), b"://", &authority(), target].concat(),
            _ => return None,
        })
    }

    fn field_lines(&self, name: &str) -> Vec<Vec<u8>> {
        let request = &self.0.request;
        let is_wanted =
            |field: &&wire::http::FieldSpan| field.name.of(request.bytes).eq_ignore_ascii_case(name.as_bytes());
        request.head.fields.iter().filter(is_wanted).map(|field| field.value.of(request.bytes).to_vec()).collect()
    }
}
