use std::cell::{Cell, OnceCell, RefCell};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::rc::Rc;

use super::Permit;
use crate::log::Client;
use crate::metrics::Limit;

/// What rules found out about a request, and what it holds while it is in progress.
#[derive(Debug)]
pub struct Visit {
    client: Client,
    ids: Rc<RequestIds>,
    request_id: OnceCell<String>,
    /// As the client says.
    user: OnceCell<Vec<u8>>,
    /// That the user's password was right.
    is_signed_in: OnceCell<()>,
    permits: RefCell<Vec<Permit>>,
    /// The limit that it was refused for.
    limit: Cell<Option<Limit>>,
}

/// Where identifiers of requests come from.
#[derive(Debug, Default)]
pub struct RequestIds {
    key: RandomState,
    next: Cell<u64>,
}

impl Visit {
    /// The visit of a client.
    pub fn new(client: Client, ids: &Rc<RequestIds>) -> Self {
        Self {
            client,
            ids: Rc::clone(ids),
            request_id: OnceCell::new(),
            user: OnceCell::new(),
            is_signed_in: OnceCell::new(),
            permits: RefCell::default(),
            limit: Cell::new(None),
        }
    }

    #[cfg(test)]
    pub(super) fn for_tests(client: Client, user: &str) -> Self {
        let visit = Self::new(client, &Rc::default());
        visit.name_user(user.as_bytes());
        visit.sign_in();
        visit
    }

    /// Who sent the request, behind proxies that are trusted.
    pub fn client(&self) -> Client {
        self.client
    }

    /// The user that the request names where a password is needed, for logs; made up, perhaps, if the status is 401. Empty
    /// for none.
    pub fn user(&self) -> &[u8] {
        self.user.get().map_or(&[], Vec::as_slice)
    }

    /// The user whose password was right; empty for none.
    pub fn signed_in_user(&self) -> &[u8] {
        if self.is_signed_in.get().is_some() { self.user() } else { &[] }
    }

    /// The limit of rules that it has come to, if it has.
    pub fn limit(&self) -> Option<Limit> {
        self.limit.get()
    }

    pub(super) fn note_limit(&self, limit: Limit) {
        self.limit.set(Some(limit));
    }

    /// 32 hexadecimal digits that no other request has and nobody can guess.
    pub(super) fn request_id(&self) -> &str {
        self.request_id.get_or_init(|| self.ids.next())
    }

    /// The same, if anything has asked for it; empty otherwise.
    pub fn given_request_id(&self) -> &str {
        self.request_id.get().map_or("", String::as_str)
    }

    pub(super) fn name_user(&self, user: &[u8]) {
        // A request names one user, however many rules ask.
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
    /// Numbers that no other request has and nobody can guess.
    pub fn numbers<const COUNT: usize>(&self) -> [u64; COUNT] {
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        // Hashes with a secret key: as random as the key, and never the same as long as the number isn't.
        std::array::from_fn(|index| self.key.hash_one((index as u8, number)))
    }

    fn next(&self) -> String {
        let [high, low] = self.numbers();
        format!("{high:016x}{low:016x}")
    }
}
