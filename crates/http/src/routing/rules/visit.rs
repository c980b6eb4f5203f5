use std::cell::{Cell, OnceCell, RefCell};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::rc::Rc;

use super::Permit;
use crate::known_clients::BotReport;
use crate::log::LogClient;
use crate::metrics::{ChallengeResult, Limit};

/// Data that rules have found about a request, and the permits that it holds while it is in progress.
#[derive(Debug)]
pub struct Visit {
    client: LogClient,
    ids: Rc<RequestIds>,
    request_id: OnceCell<String>,
    /// User name that the client sent; not verified.
    user: OnceCell<Vec<u8>>,
    /// Set once the user's password was verified.
    is_signed_in: OnceCell<()>,
    permits: RefCell<Vec<Permit>>,
    /// Limit for which the request was rejected.
    limit: Cell<Option<Limit>>,
    /// Assessment by the handling of bots.
    bot: OnceCell<Rc<BotReport>>,
    /// Result of a challenge that the client has returned.
    challenge: Cell<Option<ChallengeResult>>,
    /// True if the response is a challenge.
    is_challenged: Cell<bool>,
}

/// Generator of request identifiers.
#[derive(Debug, Default)]
pub struct RequestIds {
    key: RandomState,
    next: Cell<u64>,
}

impl Visit {
    /// Makes the visit of a client.
    pub fn new(client: LogClient, ids: &Rc<RequestIds>) -> Self {
        Self {
            client,
            ids: Rc::clone(ids),
            request_id: OnceCell::new(),
            user: OnceCell::new(),
            is_signed_in: OnceCell::new(),
            permits: RefCell::default(),
            limit: Cell::new(None),
            bot: OnceCell::new(),
            challenge: Cell::new(None),
            is_challenged: Cell::new(false),
        }
    }

    #[cfg(test)]
    pub(super) fn for_tests(client: LogClient, user: &str) -> Self {
        let visit = Self::new(client, &Rc::default());
        visit.name_user(user.as_bytes());
        visit.sign_in();
        visit
    }

    /// Address of the client; with trusted proxies, the address that they name.
    pub fn client(&self) -> LogClient {
        self.client
    }

    /// User that the request names for a path with a password, for logs. Unverified if the status is 401; empty if
    /// there is none.
    pub fn user(&self) -> &[u8] {
        self.user.get().map_or(&[], Vec::as_slice)
    }

    /// User whose password was right; empty if there is none.
    pub fn signed_in_user(&self) -> &[u8] {
        if self.is_signed_in.get().is_some() { self.user() } else { &[] }
    }

    /// Limit that rejected the request; `None` if no limit did.
    pub fn limit(&self) -> Option<Limit> {
        self.limit.get()
    }

    pub(super) fn note_limit(&self, limit: Limit) {
        self.limit.set(Some(limit));
    }

    /// Assessment by the handling of bots; `None` without it.
    pub fn bot(&self) -> Option<&BotReport> {
        self.bot.get().map(|report| &**report)
    }

    /// Assessment of the request, to be shared.
    pub fn shared_bot(&self) -> Option<&Rc<BotReport>> {
        self.bot.get()
    }

    pub(super) fn set_bot(&self, report: &Rc<BotReport>) {
        // A request is assessed once.
        let _ = self.bot.set(Rc::clone(report));
    }

    /// Result of a challenge that the client has returned; `None` if it has returned none.
    pub fn challenge(&self) -> Option<ChallengeResult> {
        self.challenge.get()
    }

    pub(super) fn note_challenge(&self, result: ChallengeResult) {
        self.challenge.set(Some(result));
    }

    /// True if the response is a challenge.
    pub(super) fn is_challenged(&self) -> bool {
        self.is_challenged.get()
    }

    pub(super) fn note_challenged(&self) {
        self.is_challenged.set(true);
    }

    /// Unique and unpredictable identifier of the request: 32 hexadecimal digits.
    pub(super) fn request_id(&self) -> &str {
        self.request_id.get_or_init(|| self.ids.next())
    }

    /// Identifier of the request if a rule has used it; empty otherwise.
    pub fn given_request_id(&self) -> &str {
        self.request_id.get().map_or("", String::as_str)
    }

    pub(super) fn name_user(&self, user: &[u8]) {
        // A request names one user, even if several rules ask for a password.
        let _ = self.user.set(user.to_vec());
    }

    pub(super) fn sign_in(&self) {
        let _ = self.is_signed_in.set(());
    }

    pub(super) fn hold(&self, permit: Permit) {
        self.permits.borrow_mut().push(permit);
    }
}

impl RequestIds {
    /// Returns unique numbers that clients cannot predict.
    pub fn numbers<const COUNT: usize>(&self) -> [u64; COUNT] {
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        // Hashes with a secret key are as unpredictable as the key, and differ for each number.
        std::array::from_fn(|index| self.key.hash_one((index as u8, number)))
    }

    fn next(&self) -> String {
        let [high, low] = self.numbers();
        format!("{high:016x}{low:016x}")
    }
}
