//! Rules applied to requests before handlers see them, and to responses after. A request passes, in this order:
//!
//! | | | |
//! |---|---|---|
//! | 1 | assessment of bots | [`Rules::enter_assessed`] |
//! | | access control by address, answers to bots | [`Rules::guard`] |
//! | 2 | limits of rate and of concurrent requests | [`Rules::guard`] |
//! | 3 | redirects and rewrites | [`Rules::enter`] |
//! | 4 | access control by password, then by authentication servers | [`Rules::ask_password`], [`Question::verify`], [`Rules::on_authorization`] |
//! | 5 | fields of the request | [`Rules::admit`] |
//! | 6 | handlers | `routing/site.rs` |
//! | 7 | redirects and rewrites after all handlers have declined | [`Rules::enter_again`] |
//! | 8 | bans of clients with many rejections, fields of the response | [`Rules::change_response`] |
//!
//! The guards of a path (1, 2, 4) apply to the requested path and to each path that a rewrite made of it. The matching
//! rewrite is found before any rejection. A redirect is sent only to clients that pass the guards.

mod auto_ban;
mod bots;
mod cors;
mod count_table;
mod explain;
mod facts;
mod field_edits;
mod guarded_paths;
mod https;
mod limit_key;
mod md5_crypt;
mod passage;
mod passwords;
mod rate_table;
mod rewrites;
mod shared;
mod target;
#[cfg(test)]
pub(super) mod tests;
mod trusted_proxies;
mod visit;

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

pub use ::bots::challenge::ChallengeSecret;
use ::bots::fcrdns::ClaimVerdict;
use wire::http::{KnownField, Method, Request, RequestHead, Status};

use self::bots::BotRule;
pub use self::bots::SharedBots;
pub use self::count_table::{CountTable, OwnCount, Permit};
pub use self::explain::{ForwardAuths, mismatch};
pub use self::facts::RoutedFacts;
use self::field_edits::{
    UnsafeValue, change_request, change_request_to, identified_request, request_changes, response_changes,
};
use self::guarded_paths::{GuardPattern, GuardedPath, OtherPath, Readings};
pub use self::limit_key::KeyHasher;
pub use self::passage::Passage;
pub use self::passwords::{CredentialVerdict, PasswordChecks, PasswordGate};
use self::passwords::{Credentials, PasswordStore, challenge, credentials};
pub use self::rate_table::{RateTable, UnsentGrants};
pub use self::rewrites::RewrittenTarget;
pub use self::rewrites::fits;
use self::rewrites::{Rewrites, Rewritten, apply, holds_surely, may_hold};
use self::shared::PathOrigin;
pub use self::shared::{AllRules, SharedRules, SharedTables};
pub use self::trusted_proxies::TrustedProxies;
pub use self::visit::{RequestIds, Visit};
use crate::config::{Condition, FieldAction, FieldEdit, ForwardAuthRule, PasswordRule, Rewrite};
use crate::handler::{
    Authorization, AuthorizationFuture, Authorizer, BuiltResponse, FieldChange, Response, Routed, directory_url,
};
use crate::known_clients::{Bans, ClaimFuture};
use crate::log::LogClient;
use crate::metrics::Limit;

/// Rules of a site; each worker has its own. Regular expressions need scratch memory for a search, and workers would
/// wait for each other if they shared it.
pub struct Rules {
    shared: Arc<SharedRules>,
    rewrites: Rewrites,
    missing: Rewrites,
    passwords: Vec<PasswordRule>,
    /// Pattern of each rule in `passwords`.
    password_paths: Vec<GuardPattern>,
    auths: Vec<ForwardAuthRule>,
    /// Pattern of each rule in `auths`.
    auth_paths: Vec<GuardPattern>,
    /// Way to the server of each rule in `auths`.
    authorizers: Vec<Option<Authorizer>>,
    request_fields: Vec<FieldEdit>,
    response_fields: Vec<FieldEdit>,
    /// Handling of bots; `None` if it is off.
    bots: Option<BotRule>,
    /// True if no other rule can apply before the handlers.
    is_plain: bool,
    /// Banned clients, for `auto-ban`.
    bans: Arc<Bans>,
    ids: Rc<RequestIds>,
}

/// Decision of the rules on a request.
pub enum RuleDecision {
    /// Handlers may process the request.
    Pass,
    /// Rules answer the request.
    Answer(Box<BuiltResponse>),
    /// The request is rejected as a bot's, for this reason.
    RejectBot(&'static str),
    /// A password must be verified first.
    Ask(Box<Question>),
    /// The authentication server of the rule with this index must permit the request first.
    Authorize(AuthorizationFuture, usize),
    /// The claim to be a crawler must be confirmed first.
    Confirm(ClaimFuture),
}

/// Password verification that a request waits for.
pub struct Question {
    store: Arc<PasswordStore>,
    checks: Arc<PasswordChecks>,
    credentials: Credentials,
    visit: Rc<Visit>,
    rule: usize,
    now_ms: u64,
}

/// Verification of a password; resolves to the verdict and the index of the rule.
pub type VerdictFuture = Pin<Box<dyn Future<Output = (CredentialVerdict, usize)>>>;

/// Maximum number of times that a request may be sent to another path. Rules may rewrite it twice, and each path may
/// lead to a program. The limit stops a loop with a filter that always leads back.
const ELSEWHERE_MAX: usize = 3;

/// Maximum number of rules for missing paths that rewrite one request.
const MISSING_REWRITES_MAX: usize = 8;

/// Value of Retry-After in seconds if too many passwords wait to be verified.
const RETRY_PASSWORD_AFTER_SECONDS: &str = "2";

impl Rules {
    /// Makes a worker's rules from the shared ones.
    pub fn new(shared: &Arc<SharedRules>, ids: &Rc<RequestIds>) -> Self {
        let rules = shared.rules();
        let (missing, rewrites): (Vec<_>, Vec<_>) =
            rules.rewrites.iter().cloned().partition(|rule| rule.conditions.is_missing);
        Self {
            is_plain: rewrites.is_empty() && shared.is_without_guards(),
            rewrites: Rewrites::new(rewrites),
            missing: Rewrites::new(missing),
            passwords: rules.passwords.clone(),
            password_paths: shared.password_paths().to_vec(),
            auths: rules.forward_auths.clone(),
            auth_paths: shared.auth_paths().to_vec(),
            authorizers: Vec::new(),
            request_fields: rules.request_fields.clone(),
            response_fields: rules.response_fields.clone(),
            bots: shared.bots().map(BotRule::new),
            shared: Arc::clone(shared),
            bans: Arc::default(),
            ids: Rc::clone(ids),
        }
    }

    /// Sets the list of bans that rejected clients are added to.
    #[must_use]
    pub fn banning(self, bans: &Arc<Bans>) -> Self {
        Self { bans: Arc::clone(bans), ..self }
    }

    /// Sets the ways to authentication servers, in the order of their rules.
    pub fn authorizing(self, authorizers: Vec<Option<Authorizer>>) -> Self {
        Self { authorizers, ..self }
    }

    /// Starts the passage of a request: steps 1 to 4, until a password must be verified.
    pub fn enter(&self, routed: &Routed<'_>) -> (Passage, RuleDecision) {
        let mut passage = Passage::new(Visit::new(routed.client, &self.ids));
        let entry = self.enter_assessed(None, &mut passage, routed);
        (passage, entry)
    }

    /// Continues with a request whose claim to be a crawler was looked up.
    pub fn on_confirmation(&self, verdict: ClaimVerdict, passage: &mut Passage, routed: &Routed<'_>) -> RuleDecision {
        self.enter_assessed(Some(verdict), passage, routed)
    }

    /// Assesses the request first, because conditions of all rules may test the result.
    fn enter_assessed(
        &self,
        verdict: Option<ClaimVerdict>,
        passage: &mut Passage,
        routed: &Routed<'_>,
    ) -> RuleDecision {
        if let Some(bots) = &self.bots {
            match bots.assess(routed, passage.visit.client(), verdict) {
                Ok(report) => {
                    passage.visit.set_bot(&report);
                    routed.link.set_bot(report);
                }
                Err(confirmation) => return RuleDecision::Confirm(confirmation),
            }
        }
        self.enter_rewritten(passage, routed)
    }

    /// Decision on a request that must pass a challenge, or that is rejected as a bot's.
    fn answer_bot(&self, routed: &Routed<'_>, visit: &Visit) -> Option<RuleDecision> {
        self.bots.as_ref()?.answer(visit.bot()?, routed, visit)
    }

    fn enter_rewritten(&self, passage: &mut Passage, routed: &Routed<'_>) -> RuleDecision {
        if self.is_plain {
            return self.answer_bot(routed, &passage.visit).unwrap_or(RuleDecision::Pass);
        }
        // A browser sends a preflight without credentials and follows no redirect of it.
        let preflight = self.shared.rules().cors.as_ref().and_then(|cors| cors::preflight(cors, routed));
        let redirected = preflight.or_else(|| self.shared.https().redirect(routed)).map(Rewritten::Answer);
        // A challenge on the way to HTTPS would be lost.
        let answers_bots = redirected.is_none();
        let rewritten = redirected.or_else(|| {
            let (index, rule) = self.rewrites.find_from(routed, 0)?;
            if rule.is_after_auth {
                passage.state_mut().redirect = Some(index);
                return None;
            }
            Some(apply(rule, routed))
        });
        match self.guard(routed, routed.path, PathOrigin::Client, &[], answers_bots, &passage.visit) {
            Ok(others) => passage.add_other_paths(others),
            Err(rejection) => return rejection,
        }
        match rewritten {
            None => {}
            Some(Rewritten::Answer(response)) => return RuleDecision::Answer(response),
            Some(Rewritten::Target(target)) => {
                match self.guard(
                    routed,
                    &target.path,
                    PathOrigin::Server,
                    &passage.guarded(routed),
                    false,
                    &passage.visit,
                ) {
                    Ok(others) => passage.add_other_paths(others),
                    Err(rejection) => return rejection,
                }
                passage.state_mut().targets.push(target);
            }
        }
        self.go_on(passage, routed)
    }

    /// Continues with a request whose password was right or that was rewritten: steps 4 and 5.
    pub fn go_on(&self, passage: &mut Passage, routed: &Routed<'_>) -> RuleDecision {
        while let Some(rule) = self.next_password(passage, routed) {
            match self.ask_password(rule, passage, routed) {
                RuleDecision::Pass => {}
                entry => return entry,
            }
        }
        if let Some(rule) = self.next_auth(passage, routed) {
            return match self.authorizers.get(rule) {
                Some(Some(authorizer)) => RuleDecision::Authorize(authorizer.ask(routed), rule),
                // Local invariant: each rule with a server has a way to it.
                _ => RuleDecision::Answer(BuiltResponse::new(Status::INTERNAL_SERVER_ERROR)),
            };
        }
        if let Some(index) = passage.state().redirect
            && let Rewritten::Answer(response) = apply(&self.rewrites.rules()[index], routed)
        {
            return RuleDecision::Answer(response);
        }
        match self.admit(passage, routed) {
            Ok(()) => RuleDecision::Pass,
            Err(UnsafeValue) => {
                let reason = "a `request-header` value has a line break";
                RuleDecision::Answer(BuiltResponse::rejection(Status::BAD_REQUEST, reason))
            }
        }
    }

    /// Returns true if handlers get this request as it is, and no rule applies after they have declined.
    #[inline]
    pub fn is_as_asked(&self, passage: &Passage) -> bool {
        passage.is_as_asked() && self.missing.is_empty()
    }

    /// Returns true if a rule applies to a request when all handlers decline; `seen` is its form for handlers.
    pub fn has_for_missing(&self, passage: &Passage, seen: &Routed<'_>) -> bool {
        self.find_for_missing(passage, seen).is_some()
    }

    /// The next rule for a request that all handlers declined, with its index.
    fn find_for_missing(&self, passage: &Passage, seen: &Routed<'_>) -> Option<(usize, &Rewrite)> {
        let state = passage.state();
        let may_follow = state.missing_rewrites < MISSING_REWRITES_MAX;
        may_follow.then(|| self.missing.find_from(seen, state.next_missing)).flatten()
    }

    /// Continues with a request that all handlers declined: step 7, and steps 1 to 5 for the new target. Returns `None`
    /// if no rule applies. Each rule applies at most once to a request, and none before an earlier one.
    pub fn enter_again(&self, passage: &mut Passage, routed: &Routed<'_>) -> Option<RuleDecision> {
        let (index, target) = {
            let seen = passage.seen(routed);
            let (index, rule) = self.find_for_missing(passage, &seen)?;
            match apply(rule, &seen) {
                Rewritten::Answer(response) => return Some(RuleDecision::Answer(response)),
                Rewritten::Target(target) => (index, target),
            }
        };
        let state = passage.state_mut();
        state.missing_rewrites += 1;
        state.next_missing = index + 1;
        Some(self.enter_target(target, passage, routed))
    }

    /// Continues with a request that is served by another path, with the same query: steps 1 to 5. Returns `None` if
    /// `ELSEWHERE_MAX` is reached.
    pub fn enter_elsewhere(&self, path: Vec<u8>, passage: &mut Passage, routed: &Routed<'_>) -> Option<RuleDecision> {
        let state = passage.state_mut();
        if state.sent_elsewhere >= ELSEWHERE_MAX {
            return None;
        }
        state.sent_elsewhere += 1;
        let seen = passage.seen(routed);
        // The client's path with an extension is another spelling of it.
        let is_extended = path.strip_prefix(seen.path).is_some_and(|rest| rest.starts_with(b"."));
        let origin = match is_extended && passage.state().targets.is_empty() {
            true => PathOrigin::Client,
            false => PathOrigin::Server,
        };
        let query = seen.query.map(<[u8]>::to_vec);
        Some(self.enter_path(RewrittenTarget { path, query }, origin, passage, routed))
    }

    fn enter_target(&self, target: RewrittenTarget, passage: &mut Passage, routed: &Routed<'_>) -> RuleDecision {
        self.enter_path(target, PathOrigin::Server, passage, routed)
    }

    fn enter_path(
        &self,
        target: RewrittenTarget,
        origin: PathOrigin,
        passage: &mut Passage,
        routed: &Routed<'_>,
    ) -> RuleDecision {
        match self.guard(routed, &target.path, origin, &passage.guarded(routed), false, &passage.visit) {
            Ok(others) => passage.add_other_paths(others),
            Err(rejection) => return rejection,
        }
        passage.state_mut().targets.push(target);
        self.go_on(passage, routed)
    }

    /// Continues with a request that a handler has changed and passed on. Applies steps 1, 2 and 4 if the path is a new
    /// one. `before` is the client's request, `routed` the changed one.
    pub fn enter_changed(&self, passage: &mut Passage, before: &Routed<'_>, routed: &Routed<'_>) -> RuleDecision {
        let asked: Vec<_> = passage.asked_paths(before).map(OtherPath::spelling).collect();
        let is_known = asked.iter().any(|known| known.path() == routed.path);
        let state = passage.state_mut();
        state.other_paths.extend(asked);
        state.targets.clear();
        (state.head, state.is_changed) = (None, true);
        if !is_known {
            let known: Vec<_> = passage.state().other_paths.iter().map(OtherPath::guarded).collect();
            match self.guard(routed, routed.path, PathOrigin::Server, &known, false, &passage.visit) {
                Ok(others) => passage.add_other_paths(others),
                Err(rejection) => return rejection,
            }
        }
        self.go_on(passage, routed)
    }

    /// Continues with a request that a script redirects to another path: steps 1, 2, 4 and 5 for that path.
    pub fn enter_redirected(
        &self,
        passage: &mut Passage,
        routed: &Routed<'_>,
        target: RewrittenTarget,
    ) -> RuleDecision {
        passage.state_mut().is_redirected = true;
        self.enter_target(target, passage, routed)
    }

    /// Counts a message that cannot be parsed as a request, for bans.
    pub fn count_malformed(&self, status: Status, client: LogClient, now_ms: u64) {
        let auto_bans = self.shared.auto_bans();
        if auto_bans.is_rejection(status) {
            auto_bans.count_malformed(status, client, now_ms, &self.bans);
        }
    }

    /// Counts a response for bans, and changes its fields: step 8.
    pub fn change_response(&self, response: Response, passage: &Passage, routed: &Routed<'_>) -> Response {
        let auto_bans = self.shared.auto_bans();
        if auto_bans.is_rejection(response.status()) && !passage.visit.is_challenged() {
            // A visitor may get a challenge, too, so that it does not count.
            auto_bans.count(&response, &passage.paths(routed), routed, &passage.visit, &self.bans);
        }
        let response = with_asked_directory(response, passage, routed);
        let of_tls = self.shared.https().response_field(routed);
        let cors = self.shared.rules().cors.as_ref();
        if self.response_fields.is_empty() && of_tls.is_none() && cors.is_none() && passage.state().cookies.is_empty() {
            return response;
        }
        let mut changes = cors.map_or_else(Vec::new, |cors| cors::response_changes(cors, routed));
        let visit = &passage.visit;
        changes.extend(response_changes(&self.response_fields, &passage.paths(routed), routed, visit, &response));
        changes.extend(of_tls.cloned());
        changes.extend(passage.state().cookies.iter().cloned());
        if changes.is_empty() {
            return response;
        }
        response.with_changes(changes)
    }

    /// Checks that a client may access a path, in all readings, and is within the limits: steps 1 and 2. `before` are
    /// paths that were checked already; their limits are not counted again. `answers_bots` is true for the path of the
    /// client, unless the client is redirected to HTTPS. Returns the other readings of the path.
    fn guard(
        &self,
        routed: &Routed<'_>,
        path: &[u8],
        origin: PathOrigin,
        before: &[GuardedPath<'_>],
        answers_bots: bool,
        visit: &Visit,
    ) -> Result<Vec<OtherPath>, RuleDecision> {
        let others = self.shared.other_paths(path);
        let paths = || std::iter::once(GuardedPath::asked(path)).chain(others.iter().map(OtherPath::guarded));
        for path in paths().flat_map(GuardedPath::with_original) {
            // If a password is accepted as an alternative, it is asked for later.
            let may_sign_in = || self.passwords_for(path, routed).any(|(_, is_alternative)| is_alternative);
            let mut rules = self.shared.rules_for_client(routed, visit.client(), path, origin);
            let decisive = rules.find(|(rule, _)| rule.is_allowed || rule.is_final || !may_sign_in());
            if let Some((rule, pattern)) = decisive
                && !rule.is_allowed
                && pattern.decides(path)
            {
                let rejection = BuiltResponse::rejection(rule.status, "a `deny` rule matches the client");
                return Err(RuleDecision::Answer(rejection));
            }
        }
        if answers_bots && let Some(answer) = self.answer_bot(routed, visit) {
            return Err(answer);
        }
        self.shared.take_limits(routed, paths, before, visit).map_err(RuleDecision::Answer)?;
        Ok(others)
    }

    /// Returns the password rules for a path: the first that applies, and those after it if it may not apply. Of each, it
    /// also returns whether an allowed address is an alternative to the password. It is only if the rule applies for sure.
    fn passwords_for<'a>(
        &'a self,
        path: GuardedPath<'a>,
        routed: &'a Routed<'_>,
    ) -> impl Iterator<Item = (usize, bool)> + 'a {
        let rules = self.password_paths.iter().zip(&self.passwords).enumerate();
        first_surely(rules.filter_map(move |(index, (pattern, rule))| {
            let asks = rule.file.is_some();
            let is_sure = pattern.holds_for(path).then(|| applies(asks, rule.when.as_ref(), routed, path))??;
            Some(((index, rule.is_alternative && is_sure), is_sure, asks && pattern.decides(path)))
        }))
    }

    /// Returns the next rule whose password is needed for one of the request's paths.
    fn next_password(&self, passage: &Passage, routed: &Routed<'_>) -> Option<usize> {
        if self.passwords.is_empty() {
            return None;
        }
        let client = passage.visit.client();
        let paths = passage.guarded(routed).into_iter().flat_map(GuardedPath::with_original);
        let mut needed = paths.filter_map(|path| {
            let is_let_in = |is_alternative: bool| {
                is_alternative
                    && self
                        .shared
                        .rule_for_client(routed, client, path, PathOrigin::Client)
                        .is_some_and(|rule| rule.is_allowed)
            };
            let mut rules = self.passwords_for(path, routed);
            rules.find(|(rule, is_alternative)| !passage.state().asked.contains(rule) && !is_let_in(*is_alternative))
        });
        needed.next().map(|(rule, _)| rule)
    }

    fn ask_password(&self, rule: usize, passage: &mut Passage, routed: &Routed<'_>) -> RuleDecision {
        let realm = &self.passwords[rule].realm;
        let Some(credentials) = credentials(&routed.request) else { return RuleDecision::Answer(challenge(realm)) };
        passage.visit.name_user(&credentials.user);
        // Local invariant: each rule with a file has a store.
        let Some(store) = self.shared.password_store(rule) else { return RuleDecision::Answer(challenge(realm)) };
        let now_ms = routed.now.monotonic_ms;
        match store.recall(&credentials, now_ms) {
            Some(verdict) => self.on_verdict(verdict, rule, passage),
            None => RuleDecision::Ask(Box::new(Question {
                store: Arc::clone(store),
                checks: Arc::clone(self.shared.password_checks()),
                credentials,
                visit: Rc::clone(&passage.visit),
                rule,
                now_ms,
            })),
        }
    }

    /// Continues with a request after its password was verified.
    pub fn on_answer(
        &self,
        (verdict, rule): (CredentialVerdict, usize),
        passage: &mut Passage,
        routed: &Routed<'_>,
    ) -> RuleDecision {
        match self.on_verdict(verdict, rule, passage) {
            RuleDecision::Pass => self.go_on(passage, routed),
            entry => entry,
        }
    }

    fn on_verdict(&self, verdict: CredentialVerdict, rule: usize, passage: &mut Passage) -> RuleDecision {
        RuleDecision::Answer(match verdict {
            CredentialVerdict::Right => {
                passage.visit.sign_in();
                passage.state_mut().asked.push(rule);
                return RuleDecision::Pass;
            }
            CredentialVerdict::Wrong => challenge(&self.passwords[rule].realm),
            CredentialVerdict::Busy => {
                passage.visit.note_limit(Limit::PasswordChecksWaitingMax);
                let mut response = BuiltResponse::new(Status::TOO_MANY_REQUESTS);
                response.fields.push("Retry-After", RETRY_PASSWORD_AFTER_SECONDS);
                response
            }
            CredentialVerdict::Failed => BuiltResponse::new(Status::INTERNAL_SERVER_ERROR),
        })
    }

    /// Returns the next rule whose authentication server must permit one of the request's paths.
    fn next_auth(&self, passage: &Passage, routed: &Routed<'_>) -> Option<usize> {
        if self.auths.is_empty() {
            return None;
        }
        let paths = passage.guarded(routed).into_iter().flat_map(GuardedPath::with_original);
        let mut needed = paths
            .filter_map(|path| self.auths_for(path, routed).find(|rule| !passage.state().authorized.contains(rule)));
        needed.next()
    }

    /// Returns the rules of forward authentication for a path, as [`Self::passwords_for`].
    fn auths_for<'a>(&'a self, path: GuardedPath<'a>, routed: &'a Routed<'_>) -> impl Iterator<Item = usize> + 'a {
        let rules = self.auth_paths.iter().zip(&self.auths).enumerate();
        first_surely(rules.filter_map(move |(index, (pattern, rule))| {
            let asks = rule.auth.is_some();
            let is_sure = pattern.holds_for(path).then(|| applies(asks, rule.when.as_ref(), routed, path))??;
            Some((index, is_sure, asks && pattern.decides(path)))
        }))
    }

    /// Continues with a request after an authentication server has decided.
    pub fn on_authorization(
        &self,
        (authorization, rule): (Authorization, usize),
        passage: &mut Passage,
        routed: &Routed<'_>,
    ) -> RuleDecision {
        let permission = match authorization {
            Authorization::Permitted(permission) => permission,
            Authorization::Rejected(response) => {
                return RuleDecision::Answer(self.to_login(rule, response, routed));
            }
        };
        let user = permission.fields.first().filter(|user| permission.names_user && !user.value.is_empty());
        if let Some(user) = user {
            passage.visit.name_user(&user.value);
            passage.visit.sign_in();
        }
        let state = passage.state_mut();
        state.authorized.push(rule);
        state.identity.extend(permission.fields);
        state.unidentified.extend(permission.removed);
        state.cookies.extend(permission.cookies);
        self.go_on(passage, routed)
    }

    /// Redirects the client of a 401 to the page for signing in, if there is one. The cookies of the 401 stay.
    fn to_login(&self, rule: usize, mut response: Box<BuiltResponse>, routed: &Routed<'_>) -> Box<BuiltResponse> {
        let auth = self.auths[rule].auth.as_ref().filter(|_| response.status == Status::UNAUTHORIZED);
        if auth.is_some_and(|auth| auth.follows_location) && response.fields.has("Location") {
            response.status = Status::FOUND;
            return response;
        }
        let Some(login) = auth.and_then(|auth| auth.login.as_ref()) else { return response };
        match apply(login, routed) {
            Rewritten::Answer(mut redirect) => {
                for cookie in response.fields.values(b"set-cookie") {
                    redirect.fields.push("Set-Cookie", cookie);
                }
                redirect
            }
            // Local invariant: a `login` has a status.
            Rewritten::Target(_) => response,
        }
    }

    /// Names of the fields that only authentication servers set.
    fn identity_names(&self) -> impl Iterator<Item = &str> {
        let auths = self.auths.iter().filter_map(|rule| rule.auth.as_ref());
        auths.flat_map(|auth| &auth.copies).map(|copy| copy.to.as_str())
    }

    /// Makes the head with the fields of authentication servers, and without those that the client has sent in their
    /// names. `None` if the site asks none.
    fn identify(&self, passage: &Passage, routed: &Routed<'_>) -> Option<(RequestHead, Vec<u8>)> {
        if self.auths.is_empty() {
            return None;
        }
        let withheld = |name: &str| FieldChange { action: FieldAction::Set, name: name.into(), value: Vec::new() };
        let state = passage.state();
        let mut changes: Vec<_> = match state.is_changed {
            // The handler that changed the request has received the fields, and may have changed them.
            true => Vec::new(),
            false => self.identity_names().chain(state.unidentified.iter().map(String::as_str)).map(withheld).collect(),
        };
        changes.extend(state.identity.iter().filter(|field| !field.value.is_empty()).cloned());
        let (mut head, bytes) = identified_request(&routed.request, &changes, &state.identity);
        head.had_credentials |= !state.authorized.is_empty();
        Some((head, bytes))
    }

    /// Makes the head that handlers and upstreams see: step 5.
    fn admit(&self, passage: &mut Passage, routed: &Routed<'_>) -> Result<(), UnsafeValue> {
        if let Some(link) = routed.link.get().filter(|_| !self.request_fields.is_empty() || !self.auths.is_empty()) {
            let edited = self.request_fields.iter().map(|edit| edit.name.as_str());
            let state = passage.state();
            let set = state.identity.iter().map(|field| field.name.as_str());
            let removed = state.unidentified.iter().map(String::as_str);
            link.forbid_trailers(edited.chain(self.identity_names()).chain(set).chain(removed));
        }
        let identified = self.identify(passage, routed);
        let Some((head, bytes)) = &identified else { return self.edit(passage, routed) };
        self.edit(passage, &Routed { request: Request { head, bytes }, ..*routed })?;
        let state = passage.state_mut();
        if state.head.is_none() {
            state.head = identified.map(Box::new);
        }
        Ok(())
    }

    /// Applies the edits of the request's fields.
    fn edit(&self, passage: &mut Passage, routed: &Routed<'_>) -> Result<(), UnsafeValue> {
        let hides = |path| self.passwords_for(path, routed).any(|(rule, _)| !self.passwords[rule].passes_credentials);
        let hides_credentials = !self.passwords.is_empty() && passage.guarded(routed).into_iter().any(hides);
        let edits = if passage.state().is_changed { &[] } else { self.request_fields.as_slice() };
        if edits.is_empty() && !hides_credentials && passage.state().targets.is_empty() {
            return Ok(());
        }
        let mut changes = request_changes(edits, &passage.paths_in_given_case(routed), routed, &passage.visit)?;
        if hides_credentials && routed.request.head.has(KnownField::Authorization) {
            // Inserted first, because later changes may set the field to another value.
            let hide = FieldChange { action: FieldAction::Set, name: "Authorization".into(), value: Vec::new() };
            changes.insert(0, hide);
        }
        let state = passage.state();
        let head = match state.targets.last() {
            Some(target) if state.is_redirected => redirected_head(&routed.request, target, changes),
            None if changes.is_empty() => return Ok(()),
            target => change_request(&routed.request, target, &changes),
        };
        passage.state_mut().head = Some(Box::new(head));
        Ok(())
    }
}

/// Returns whether a rule of authentication applies to a reading of the path for sure; `None` if it does not apply. One
/// that asks applies unless its condition does not hold for sure; one that asks nothing only if its condition holds for
/// sure.
fn applies(asks: bool, when: Option<&Condition>, routed: &Routed<'_>, path: GuardedPath<'_>) -> Option<bool> {
    let is_sure = holds_surely(when, routed, path.path());
    (is_sure || asks && may_hold(when, routed, path.path())).then_some(is_sure)
}

/// Rules up to the first that applies for sure. Each comes with whether it does, and whether it counts.
fn first_surely<R>(rules: impl Iterator<Item = (R, bool, bool)>) -> impl Iterator<Item = R> {
    let mut is_over = false;
    let rules = rules.take_while(move |(_, is_sure, _)| !std::mem::replace(&mut is_over, *is_sure));
    rules.filter_map(|(rule, _, counts)| counts.then_some(rule))
}

/// Makes the head of a request that a script redirects to this target: GET without content, as if the client had
/// requested it (RFC 3875, section 6.2.2).
pub fn redirected_head(
    request: &Request<'_>,
    target: &RewrittenTarget,
    mut changes: Vec<FieldChange>,
) -> (RequestHead, Vec<u8>) {
    for name in ["Content-Length", "Content-Type", "Content-Encoding", "Transfer-Encoding", "Expect", "Trailer"] {
        changes.push(FieldChange { action: FieldAction::Set, name: name.into(), value: Vec::new() });
    }
    let method = match request.method() {
        Method::Head => (Method::Head, &b"HEAD"[..]),
        _ => (Method::Get, &b"GET"[..]),
    };
    let (mut head, bytes) = change_request_to(request, method, Some(target), &changes);
    head.target_asked = None;
    (head, bytes)
}

impl Question {
    /// Verifies the password.
    pub fn verify(self) -> VerdictFuture {
        let Self { store, checks, credentials, visit, rule, now_ms } = self;
        let client = visit.client();
        Box::pin(async move { (store.verify(checks, credentials, client, now_ms).await, rule) })
    }
}

/// A redirect to a directory of a rewritten path, with the path of the client if that names the same directory: the
/// client need not know where a rewrite leads.
fn with_asked_directory(mut response: Response, passage: &Passage, routed: &Routed<'_>) -> Response {
    let Some(target) = passage.state().targets.last() else { return response };
    let Response::Built(built) = &mut response else { return response };
    let is_redirect = built.status == Status::MOVED_PERMANENTLY && built.forwarded.is_none();
    if is_redirect
        && last_part(&target.path) == last_part(routed.path)
        && built.fields.get("Location").is_some_and(|to| to == directory_url(&target.path, target.query.as_deref()))
    {
        built.fields.set("Location", directory_url(routed.path, routed.query));
    }
    response
}

/// The part of a path after its last slash.
fn last_part(path: &[u8]) -> Option<&[u8]> {
    path.rsplit(|byte| *byte == b'/').next()
}
