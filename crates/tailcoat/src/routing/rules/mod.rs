//! What is done with requests before handlers have them, and with responses after. A request passes, in this order:
//!
//! | | | |
//! |---|---|---|
//! | 1 | who may come, by address | [`Rules::guard`] |
//! | 2 | how often, and how many at a time | [`Rules::guard`] |
//! | 3 | redirects and rewrites | [`Rules::enter`] |
//! | 4 | who may come, by password | [`Rules::ask_password`], [`Question::verify`] |
//! | 5 | fields of the request | [`Rules::admit`] |
//! | 6 | the handlers | `routing/site.rs` |
//! | 7 | redirects and rewrites of what no handler has | [`Rules::enter_again`] |
//! | 8 | fields of the response | [`Rules::change_response`] |
//!
//! What guards a path (1, 2, 4) holds for the path that was asked for and for each that a rewrite made of it. Which rewrite
//! fits is known before anything is refused, but what comes of it is not: a redirect is answered only to who may come.

mod address_set;
mod count_table;
mod field_edits;
mod guarded_paths;
mod https;
mod limit_key;
mod passwords;
mod rate_table;
mod rewrites;
mod shared;
mod target;
#[cfg(test)]
mod tests;
mod trusted_proxies;
mod visit;

use std::rc::Rc;
use std::sync::Arc;

use wire::http::{KnownField, Method, Request, RequestHead, Status};

pub use self::address_set::AddressSet;
pub use self::count_table::{CountTable, Permit};
use self::field_edits::{UnsafeValue, change, change_request, change_request_to, request_changes, response_changes};
use self::guarded_paths::{GuardPattern, GuardedPath, OtherPath, Readings};
pub use self::limit_key::KeyHasher;
pub use self::passwords::PasswordChecks;
use self::passwords::{Credentials, PasswordStore, Verdict, challenge, credentials};
pub use self::rewrites::Target;
use self::rewrites::{Rewrites, Rewritten, apply};
pub use self::shared::{AllRules, SharedRules};
pub use self::trusted_proxies::TrustedProxies;
pub use self::visit::{RequestIds, Visit};
use crate::config::{FieldAction, FieldEdit, PasswordRule};
use crate::handler::{BuiltResponse, ChangedResponse, FieldChange, Response, Routed};
use crate::metrics::Limit;

/// A site's rules, as a worker has them. Regular expressions are its own, for searching takes memory that workers would
/// wait for each other to use.
pub struct Rules {
    shared: Arc<SharedRules>,
    rewrites: Rewrites,
    missing: Rewrites,
    passwords: Vec<PasswordRule>,
    /// Which paths each of them is for.
    password_paths: Vec<GuardPattern>,
    request_fields: Vec<FieldEdit>,
    response_fields: Vec<FieldEdit>,
    ids: Rc<RequestIds>,
}

/// A request on its way through the rules.
pub struct Passage {
    /// What was found out about it.
    pub visit: Rc<Visit>,
    /// The first route that may have it: not those of handlers that have passed it on changed.
    pub next_route: usize,
    /// Handlers have passed it on and wait for the response.
    pub has_filters: bool,
    /// The targets that it was rewritten to, the last of which handlers are asked for.
    targets: Vec<Target>,
    /// How often it was sent to another path by who had it, whatever became of it since.
    sent_elsewhere: usize,
    /// What guards were asked for besides its path and those of the targets: what other servers may read them as.
    other_paths: Vec<OtherPath>,
    /// Whose passwords it has been asked for: indices of rules.
    asked: Vec<usize>,
    /// No handler had it, and it was rewritten for that.
    is_last: bool,
    /// A script has sent it on to the last of the targets.
    is_redirected: bool,
    /// A handler has changed it, which had seen what rules make of its fields.
    is_changed: bool,
    /// Another head than the client sent, with the last of the targets.
    head: Option<(RequestHead, Vec<u8>)>,
}

/// What rules say to a request.
pub enum Entry {
    /// Handlers may have it.
    Pass,
    /// It is answered.
    Answer(Box<BuiltResponse>),
    /// Whether a password is right has to be waited for.
    Ask(Question),
}

/// Whether a password is right.
pub struct Question {
    store: Arc<PasswordStore>,
    checks: Arc<PasswordChecks>,
    credentials: Credentials,
    rule: usize,
    now_ms: u64,
}

/// How often a request may be sent to another path: rules may give it two, and each path may lead to a program. A filter that
/// leads it back each time must not have it go in circles.
const ELSEWHERE_MAX: usize = 3;

/// How long a client is told to wait when too many passwords are to be verified, in seconds.
const RETRY_PASSWORD_AFTER_SECONDS: &str = "2";

impl Rules {
    /// A worker's own.
    pub fn new(shared: &Arc<SharedRules>, ids: &Rc<RequestIds>) -> Self {
        let rules = shared.rules();
        let (missing, rewrites) = rules.rewrites.iter().cloned().partition(|rule| rule.conditions.is_missing);
        Self {
            rewrites: Rewrites::new(rewrites),
            missing: Rewrites::new(missing),
            passwords: rules.passwords.clone(),
            password_paths: shared.password_paths().to_vec(),
            request_fields: rules.request_fields.clone(),
            response_fields: rules.response_fields.clone(),
            shared: Arc::clone(shared),
            ids: Rc::clone(ids),
        }
    }

    /// Begins a request's passage: 1 to 4, as far as nothing has to be waited for.
    pub fn enter(&self, routed: &Routed<'_>) -> (Passage, Entry) {
        let mut passage = Passage {
            visit: Rc::new(Visit::new(routed.client, &self.ids)),
            next_route: 0,
            has_filters: false,
            targets: Vec::new(),
            sent_elsewhere: 0,
            other_paths: Vec::new(),
            asked: Vec::new(),
            is_last: false,
            is_redirected: false,
            is_changed: false,
            head: None,
        };
        let entry = self.enter_rewritten(&mut passage, routed);
        (passage, entry)
    }

    fn enter_rewritten(&self, passage: &mut Passage, routed: &Routed<'_>) -> Entry {
        let redirected = self.shared.https().redirect(routed).map(Rewritten::Answer);
        let rewritten = redirected.or_else(|| self.rewrites.find(routed).map(|rule| apply(rule, routed)));
        match self.guard(routed, routed.path, &[], &passage.visit) {
            Ok(others) => passage.other_paths.extend(others),
            Err(refusal) => return Entry::Answer(refusal),
        }
        match rewritten {
            None => {}
            Some(Rewritten::Answer(response)) => return Entry::Answer(response),
            Some(Rewritten::Target(target)) => {
                match self.guard(routed, &target.path, &passage.guarded(routed), &passage.visit) {
                    Ok(others) => passage.other_paths.extend(others),
                    Err(refusal) => return Entry::Answer(refusal),
                }
                passage.targets.push(target);
            }
        }
        self.go_on(passage, routed)
    }

    /// Goes on with a request whose password was found right, or that was rewritten: 4 and 5.
    pub fn go_on(&self, passage: &mut Passage, routed: &Routed<'_>) -> Entry {
        while let Some(rule) = self.next_password(passage, routed) {
            match self.ask_password(rule, passage, routed) {
                Entry::Pass => {}
                entry => return entry,
            }
        }
        match self.admit(passage, routed) {
            Ok(()) => Entry::Pass,
            Err(UnsafeValue) => {
                let reason = "a `request-header` value has a line break";
                Entry::Answer(BuiltResponse::refusal(Status::BAD_REQUEST, reason))
            }
        }
    }

    /// Whether a rule has an answer for this path should no handler have it.
    pub fn has_for_missing(&self, routed: &Routed<'_>) -> bool {
        self.missing.find(routed).is_some()
    }

    /// What is done with a request that no handler has: 7, and again 1 to 5 for what comes of it; `None` if nothing. It is
    /// done once.
    pub fn enter_again(&self, passage: &mut Passage, routed: &Routed<'_>) -> Option<Entry> {
        let target = {
            let seen = passage.seen(routed);
            match apply(self.missing.find(&seen)?, &seen) {
                Rewritten::Answer(response) => return Some(Entry::Answer(response)),
                Rewritten::Target(target) => target,
            }
        };
        passage.is_last = true;
        Some(self.enter_target(target, passage, routed))
    }

    /// What is done with a request that is to be made for another path, with the same query: 1 to 5 for that; `None` if it
    /// was sent about too often.
    pub fn enter_elsewhere(&self, path: Vec<u8>, passage: &mut Passage, routed: &Routed<'_>) -> Option<Entry> {
        if passage.sent_elsewhere >= ELSEWHERE_MAX {
            return None;
        }
        passage.sent_elsewhere += 1;
        let query = passage.seen(routed).query.map(<[u8]>::to_vec);
        Some(self.enter_target(Target { path, query }, passage, routed))
    }

    fn enter_target(&self, target: Target, passage: &mut Passage, routed: &Routed<'_>) -> Entry {
        match self.guard(routed, &target.path, &passage.guarded(routed), &passage.visit) {
            Ok(others) => passage.other_paths.extend(others),
            Err(refusal) => return Entry::Answer(refusal),
        }
        passage.targets.push(target);
        passage.next_route = 0;
        self.go_on(passage, routed)
    }

    /// What is done with a request that a handler has changed before it passed it on to those from this route on: 1, 2
    /// and 4 for its path, if that is another one. `before` is what the client sent, `routed` what came of it.
    pub fn enter_changed(
        &self,
        next_route: usize,
        passage: &mut Passage,
        before: &Routed<'_>,
        routed: &Routed<'_>,
    ) -> Entry {
        let asked: Vec<_> = passage.asked_paths(before).map(OtherPath::spelling).collect();
        let is_known = asked.iter().any(|known| known.path() == routed.path);
        passage.other_paths.extend(asked);
        passage.targets.clear();
        (passage.head, passage.next_route, passage.is_changed) = (None, next_route, true);
        if !is_known {
            let known: Vec<_> = passage.other_paths.iter().map(OtherPath::guarded).collect();
            match self.guard(routed, routed.path, &known, &passage.visit) {
                Ok(others) => passage.other_paths.extend(others),
                Err(refusal) => return Entry::Answer(refusal),
            }
        }
        self.go_on(passage, routed)
    }

    /// What is done with a request that a script sends on to another path: 1 and 2, 4 and 5 for that.
    pub fn enter_redirected(&self, passage: &mut Passage, routed: &Routed<'_>, target: Target) -> Entry {
        passage.is_redirected = true;
        self.enter_target(target, passage, routed)
    }

    /// Changes the fields of a response: 8.
    pub fn change_response(&self, response: Response, passage: &Passage, routed: &Routed<'_>) -> Response {
        let of_tls = self.shared.https().response_field(routed);
        if self.response_fields.is_empty() && of_tls.is_none() {
            return response;
        }
        let mut changes = response_changes(&self.response_fields, &passage.paths(routed), routed, &passage.visit);
        changes.extend(of_tls.cloned());
        if changes.is_empty() {
            return response;
        }
        match response {
            Response::Built(mut response) => {
                change(&mut response.fields, &changes);
                Response::Built(response)
            }
            Response::Cached { object, coding, form } => {
                Response::Changed(Box::new(ChangedResponse { object, coding, form, changes }))
            }
            Response::Changed(mut changed) => {
                changed.changes.extend(changes);
                Response::Changed(changed)
            }
        }
    }

    /// Whether a path, also as other servers may read it, is open to a client, and not asked for too often: 1 and 2.
    /// `before` are paths for which that was asked already, and whose limits are not taken again. Returns the other paths
    /// that it stands for.
    fn guard(
        &self,
        routed: &Routed<'_>,
        path: &[u8],
        before: &[GuardedPath<'_>],
        visit: &Visit,
    ) -> Result<Vec<OtherPath>, Box<BuiltResponse>> {
        let others = self.shared.other_paths(path);
        let paths = || std::iter::once(GuardedPath::asked(path)).chain(others.iter().map(OtherPath::guarded));
        for path in paths() {
            // Where a password will do as well, it is asked for later.
            let may_sign_in = || self.password_for(path).is_some_and(|rule| self.passwords[rule].is_alternative);
            if let Some(rule) = self.shared.rule_for_client(routed, visit.client(), path)
                && !rule.is_allowed
                && !may_sign_in()
            {
                return Err(BuiltResponse::refusal(rule.status, "a `deny` rule matches the client"));
            }
        }
        self.shared.take_limits(routed, paths, before, visit)?;
        Ok(others)
    }

    /// The rule for the password of a path, if it has one.
    fn password_for(&self, path: GuardedPath<'_>) -> Option<usize> {
        let first = self.password_paths.iter().position(|pattern| pattern.holds_for(path));
        first.filter(|rule| self.passwords[*rule].file.is_some())
    }

    /// The next rule whose password is needed for one of the request's paths.
    fn next_password(&self, passage: &Passage, routed: &Routed<'_>) -> Option<usize> {
        if self.passwords.is_empty() {
            return None;
        }
        let client = passage.visit.client();
        let mut needed = passage.guarded(routed).into_iter().filter_map(|path| {
            let rule = self.password_for(path)?;
            let is_let_in = self.passwords[rule].is_alternative
                && self.shared.rule_for_client(routed, client, path).is_some_and(|rule| rule.is_allowed);
            (!is_let_in).then_some(rule)
        });
        needed.find(|rule| !passage.asked.contains(rule))
    }

    fn ask_password(&self, rule: usize, passage: &mut Passage, routed: &Routed<'_>) -> Entry {
        let realm = &self.passwords[rule].realm;
        let Some(credentials) = credentials(&routed.request) else { return Entry::Answer(challenge(realm)) };
        passage.visit.name_user(&credentials.user);
        // Local invariant: each rule with a file has a store.
        let Some(store) = self.shared.password_store(rule) else { return Entry::Answer(challenge(realm)) };
        let now_ms = routed.now.monotonic_ms;
        match store.recall(&credentials, now_ms) {
            Some(verdict) => self.on_verdict(verdict, rule, passage),
            None => Entry::Ask(Question {
                store: Arc::clone(store),
                checks: Arc::clone(self.shared.password_checks()),
                credentials,
                rule,
                now_ms,
            }),
        }
    }

    /// Goes on with a request when it is known whether its password is right.
    pub fn on_answer(&self, (verdict, rule): (Verdict, usize), passage: &mut Passage, routed: &Routed<'_>) -> Entry {
        match self.on_verdict(verdict, rule, passage) {
            Entry::Pass => self.go_on(passage, routed),
            entry => entry,
        }
    }

    fn on_verdict(&self, verdict: Verdict, rule: usize, passage: &mut Passage) -> Entry {
        Entry::Answer(match verdict {
            Verdict::Right => {
                passage.visit.sign_in();
                passage.asked.push(rule);
                return Entry::Pass;
            }
            Verdict::Wrong => challenge(&self.passwords[rule].realm),
            Verdict::Busy => {
                passage.visit.note_limit(Limit::PasswordChecksWaitingMax);
                let mut response = BuiltResponse::new(Status::TOO_MANY_REQUESTS);
                response.fields.push("Retry-After", RETRY_PASSWORD_AFTER_SECONDS);
                response
            }
            Verdict::Failed => BuiltResponse::new(Status::INTERNAL_SERVER_ERROR),
        })
    }

    /// Makes the head that handlers see, and servers that requests are forwarded to: 5.
    fn admit(&self, passage: &mut Passage, routed: &Routed<'_>) -> Result<(), UnsafeValue> {
        if let Some(link) = routed.link.get().filter(|_| !self.request_fields.is_empty()) {
            link.forbid_trailers(self.request_fields.iter().map(|edit| edit.name.as_str()));
        }
        let mut asked = passage.guarded(routed).into_iter().filter_map(|path| self.password_for(path));
        let hides_credentials = asked.any(|rule| !self.passwords[rule].passes_credentials);
        let edits = if passage.is_changed { &[] } else { self.request_fields.as_slice() };
        if edits.is_empty() && !hides_credentials && passage.targets.is_empty() {
            return Ok(());
        }
        let mut changes = request_changes(edits, &passage.paths_in_given_case(routed), routed, &passage.visit)?;
        if hides_credentials && routed.request.head.has(KnownField::Authorization) {
            // Before the others, which may set it to something else.
            let hide = FieldChange { action: FieldAction::Set, name: "Authorization".into(), value: Vec::new() };
            changes.insert(0, hide);
        }
        let target = passage.targets.last();
        if let Some(target) = target.filter(|_| passage.is_redirected) {
            passage.head = Some(redirected_head(&routed.request, target, changes));
        } else if target.is_some() || !changes.is_empty() {
            passage.head = Some(change_request(&routed.request, target, &changes));
        }
        Ok(())
    }
}

/// The head of a request that a script has sent on to this target: GET, without content, as if the client had asked for
/// that (RFC 3875, section 6.2.2).
pub fn redirected_head(
    request: &Request<'_>,
    target: &Target,
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

impl Passage {
    /// Tells handlers whose password was right.
    pub fn tell_user(&self, routed: &Routed<'_>) {
        let user = self.visit.signed_in_user();
        if !user.is_empty() {
            routed.link.link().set_user(user);
        }
    }

    /// Whether it is not rewritten any more.
    pub fn is_last(&self) -> bool {
        self.is_last
    }

    /// The request as handlers are to see it.
    pub fn seen<'a>(&'a self, routed: &Routed<'a>) -> Routed<'a> {
        let mut seen = *routed;
        if let Some((head, bytes)) = &self.head {
            seen.request = Request { head, bytes };
        }
        if let Some(target) = self.targets.last() {
            seen.path = &target.path;
            seen.query = target.query.as_deref();
        }
        seen
    }

    /// The path that was asked for, and those that it was rewritten to.
    fn asked_paths<'a>(&'a self, routed: &Routed<'a>) -> impl Iterator<Item = &'a [u8]> {
        std::iter::once(routed.path).chain(self.targets.iter().map(|target| target.path.as_slice()))
    }

    /// All that guards were asked for.
    fn guarded<'a>(&'a self, routed: &Routed<'a>) -> Vec<GuardedPath<'a>> {
        let asked = self.asked_paths(routed).map(GuardedPath::asked);
        asked.chain(self.other_paths.iter().map(OtherPath::guarded)).collect()
    }

    /// The paths that were asked for, in all spellings.
    fn paths<'a>(&'a self, routed: &Routed<'a>) -> Vec<&'a [u8]> {
        let others = self.other_paths.iter().filter(|other| other.is_spelling()).map(OtherPath::path);
        self.asked_paths(routed).chain(others).collect()
    }

    /// The same, with what other servers may find by them.
    fn paths_in_given_case<'a>(&'a self, routed: &Routed<'a>) -> Vec<&'a [u8]> {
        let others = self.other_paths.iter().filter(|other| !other.is_folded()).map(OtherPath::path);
        self.asked_paths(routed).chain(others).collect()
    }
}

impl Question {
    /// Waits for the answer, and for which rule it is.
    pub async fn verify(self, visit: &Visit) -> (Verdict, usize) {
        let Self { store, checks, credentials, rule, now_ms } = self;
        (store.verify(checks, credentials, visit, now_ms).await, rule)
    }
}
