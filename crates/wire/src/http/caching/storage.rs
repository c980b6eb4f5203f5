//! Storage of responses (RFC 9111, section 3), and the metadata a cache must keep.

use super::ResponseDirectives;
use super::freshness::{Freshness, Reception, is_heuristically_cacheable};
use super::{RequestDirectives, Vary};
use crate::http::{Fields, Method, Request, Status};

/// Defaults for responses that state no value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// Lifetime of responses with this status, in seconds; `None` leaves it to `heuristic`. A value also permits to
    /// store the response, whatever its status.
    pub lifetime_seconds: Option<u32>,
    /// True to derive a lifetime from Last-Modified (section 4.2.2).
    pub heuristic: bool,
    /// Time in seconds that a stale response is served during validation (RFC 5861, section 3).
    pub stale_while_revalidate_seconds: u32,
    /// Time in seconds that a stale response is served if validation fails (RFC 5861, section 4).
    pub stale_if_error_seconds: u32,
}

/// Metadata of a stored response, in addition to status, fields and content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredResponseMeta {
    /// Time when the age was 0, in milliseconds of the cache's clock.
    pub born_ms: i64,
    /// Age in seconds up to which the response is fresh.
    pub lifetime_seconds: u32,
    /// Time in seconds that the stale response may be served during validation.
    pub stale_while_revalidate_seconds: u32,
    /// Time in seconds that the stale response may be served if validation fails.
    pub stale_if_error_seconds: u32,
    /// True if the response must be validated before every reuse.
    pub is_no_cache: bool,
    /// True if the response must never be served stale.
    pub forbids_stale: bool,
}

/// Reason not to store a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UncacheableReason {
    /// The method is not GET.
    Method,
    /// The status is interim, must be understood and is not, or denotes a partial response.
    Status,
    /// Request or response has `no-store`.
    NoStore,
    /// The response has `private`.
    Private,
    /// The request had Authorization, and the response does not permit sharing.
    Authorization,
    /// The response varies by too many fields, or by `*`.
    Vary,
    /// The response could never be reused.
    Useless,
}

/// Decides whether a response may be stored, and returns its metadata. `now_ms` is the time of arrival by the cache's
/// clock.
pub fn storage(
    request: &Request<'_>,
    asked: &RequestDirectives,
    response: (Status, &Fields, &ResponseDirectives),
    defaults: &Defaults,
    reception: Reception,
    now_ms: u64,
) -> Result<StoredResponseMeta, UncacheableReason> {
    let (status, fields, directives) = response;
    if let Some(rejection) = rejection(request, asked, status, fields, directives) {
        return Err(rejection);
    }
    let freshness = Freshness::of(fields, directives, reception);
    let is_permitted = directives.public
        || freshness.lifetime_seconds.is_some()
        || defaults.lifetime_seconds.is_some()
        || is_heuristically_cacheable(status);
    if !is_permitted {
        return Err(UncacheableReason::Useless);
    }
    // Section 4.2.2: a heuristic applies only if the response states no lifetime.
    let lifetime_seconds = freshness.lifetime_seconds.or(defaults.lifetime_seconds).or_else(|| {
        let supposed = Freshness::heuristic_seconds(fields, directives, status, reception);
        supposed.filter(|_| defaults.heuristic)
    });
    let lifetime_seconds = lifetime_seconds.unwrap_or(0);
    let own_windows = (directives.stale_while_revalidate, directives.stale_if_error);
    // A response that is never fresh, such as one with `max-age=0`, may be one client's own. Neither the defaults nor another
    // client may permit to serve it stale, only the response itself.
    let is_never_stale = lifetime_seconds == 0 && own_windows == (None, None);
    let of_defaults = |seconds: u32| if lifetime_seconds > 0 { seconds } else { 0 };
    let windows = (
        own_windows.0.unwrap_or(of_defaults(defaults.stale_while_revalidate_seconds)),
        own_windows.1.unwrap_or(of_defaults(defaults.stale_if_error_seconds)),
    );
    let stored = StoredResponseMeta {
        born_ms: now_ms as i64 - freshness.initial_age_ms as i64,
        lifetime_seconds,
        stale_while_revalidate_seconds: windows.0,
        stale_if_error_seconds: windows.1,
        is_no_cache: directives.no_cache,
        forbids_stale: directives.forbids_stale() || is_never_stale,
    };
    if stored.remaining_ms(now_ms) > 0 || has_validator(fields) || stored.is_usable_stale(now_ms) {
        return Ok(stored);
    }
    Err(UncacheableReason::Useless)
}

fn rejection(
    request: &Request<'_>,
    asked: &RequestDirectives,
    status: Status,
    fields: &Fields,
    directives: &ResponseDirectives,
) -> Option<UncacheableReason> {
    let is_understood = !status.reason().is_empty();
    // Section 5.2.2.3: a cache that understands the status ignores `no-store` next to `must-understand`.
    let no_store = directives.no_store && !(directives.must_understand && is_understood);
    let is_partial = matches!(status, Status::PARTIAL_CONTENT | Status::NOT_MODIFIED);
    if request.method() != Method::Get {
        Some(UncacheableReason::Method)
    } else if status.code() < 200 || is_partial || (directives.must_understand && !is_understood) {
        Some(UncacheableReason::Status)
    } else if no_store || asked.no_store {
        Some(UncacheableReason::NoStore)
    } else if directives.private {
        Some(UncacheableReason::Private)
    } else if request.head.has_credentials() && !directives.permits_authorized() {
        Some(UncacheableReason::Authorization)
    } else if Vary::of(fields) == Vary::Everything {
        Some(UncacheableReason::Vary)
    } else {
        None
    }
}

fn has_validator(fields: &Fields) -> bool {
    fields.values(b"etag").chain(fields.values(b"last-modified")).next().is_some()
}

impl StoredResponseMeta {
    /// Returns the age in milliseconds (section 4.2.3).
    pub fn age_ms(&self, now_ms: u64) -> u64 {
        (now_ms as i64).saturating_sub(self.born_ms).max(0) as u64
    }

    /// Returns the value for the Age field (section 5.1).
    pub fn age_seconds(&self, now_ms: u64) -> u64 {
        self.age_ms(now_ms) / 1_000
    }

    /// Returns how long the response stays fresh, in milliseconds; negative if it is stale. At most its lifetime: the clock of
    /// another worker may be slow, and a response without a lifetime is never fresh.
    pub fn remaining_ms(&self, now_ms: u64) -> i64 {
        self.fresh_until_ms() - (now_ms as i64).max(self.born_ms)
    }

    /// Returns the end of the lifetime, even if reuse is forbidden.
    pub fn fresh_until_ms(&self) -> i64 {
        self.born_ms + i64::from(self.lifetime_seconds) * 1_000
    }

    /// Returns whether the stale response may be served in some case.
    fn is_usable_stale(&self, now_ms: u64) -> bool {
        let window = self.stale_while_revalidate_seconds.max(self.stale_if_error_seconds);
        !self.forbids_stale && -self.remaining_ms(now_ms) < i64::from(window) * 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fields, with_method};
    use super::*;

    const NOW_MS: u64 = 1_000_000;
    const NONE: Defaults = Defaults {
        lifetime_seconds: None,
        heuristic: false,
        stale_while_revalidate_seconds: 0,
        stale_if_error_seconds: 0,
    };
    const HEURISTIC: Defaults = Defaults { heuristic: true, ..NONE };
    const TAG: (&str, &str) = ("ETag", "\"a\"");

    fn decide(
        (method, asked): (Method, &[(&str, &str)]),
        (status, lines): (u16, &[(&str, &str)]),
        defaults: Defaults,
    ) -> Result<StoredResponseMeta, UncacheableReason> {
        let fields = fields(lines);
        let directives = ResponseDirectives::of(&fields, &[]);
        let reception = Reception { delay_ms: 0, unix_seconds: 784_111_777 };
        with_method(method, asked, |request| {
            let asked = RequestDirectives::of(request);
            let status = Status::new(status).unwrap();
            storage(request, &asked, (status, &fields, &directives), &defaults, reception, NOW_MS)
        })
    }

    #[test]
    fn rejected() {
        let check =
            |asked: (Method, &[(&str, &str)]), answered: (u16, &[(&str, &str)]), expect: Option<UncacheableReason>| {
                assert_eq!(decide(asked, answered, NONE).err(), expect, "{asked:?} {answered:?}");
            };
        let get = |answered: (u16, &[(&str, &str)]), expect| check((Method::Get, &[]), answered, expect);
        let fresh = ("Cache-Control", "max-age=5");
        let with = |value| [("Cache-Control", value), TAG];

        get((200, &[fresh]), None);
        check((Method::Head, &[]), (200, &[fresh]), Some(UncacheableReason::Method));
        check((Method::Post, &[]), (200, &[fresh]), Some(UncacheableReason::Method));
        get((103, &[fresh]), Some(UncacheableReason::Status));
        get((206, &[fresh]), Some(UncacheableReason::Status));
        get((304, &[fresh]), Some(UncacheableReason::Status));
        get((599, &[fresh]), None);
        get((599, &with("max-age=5, must-understand")), Some(UncacheableReason::Status));
        get((599, &with("max-age=5, no-store, must-understand")), Some(UncacheableReason::Status));
        get((200, &with("max-age=5, no-store, must-understand")), None);
        get((200, &with("max-age=5, no-store")), Some(UncacheableReason::NoStore));
        check((Method::Get, &[("Cache-Control", "no-store")]), (200, &[fresh]), Some(UncacheableReason::NoStore));
        get((200, &with("max-age=5, private")), Some(UncacheableReason::Private));
        get((200, &with("max-age=5, private=\"x\"")), Some(UncacheableReason::Private));
        get((200, &[fresh, ("Vary", "a"), ("Vary", "b, *")]), Some(UncacheableReason::Vary));
        get((200, &[fresh, ("Vary", "a, b")]), None);

        // Section 3.5.
        let authorized: (Method, &[(&str, &str)]) = (Method::Get, &[("Authorization", "x")]);
        check(authorized, (200, &[fresh]), Some(UncacheableReason::Authorization));
        check(authorized, (200, &with("max-age=5, public")), None);
        check(authorized, (200, &with("max-age=5, must-revalidate")), None);
        check(authorized, (200, &with("s-maxage=5")), None);

        // A response without a lifetime is useful only if it can be validated.
        get((200, &[]), Some(UncacheableReason::Useless));
        get((200, &[TAG]), None);
        get((200, &[("Last-Modified", "x")]), None);
        get((200, &with("no-cache")), None);
        get((200, &with("max-age=0")), None);
        get((403, &[TAG]), Some(UncacheableReason::Useless));
        get((403, &with("public")), None);
        get((403, &[fresh]), None);
        get((200, &[("Cache-Control", "max-age=5"), ("Age", "5")]), Some(UncacheableReason::Useless));
        get((200, &[("Cache-Control", "max-age=5, stale-if-error=9"), ("Age", "5")]), None);
        get(
            (200, &[("Cache-Control", "max-age=5, stale-if-error=9, must-revalidate"), ("Age", "5")]),
            Some(UncacheableReason::Useless),
        );
    }

    #[test]
    fn lifetimes() {
        let check = |status: u16, lines: &[(&str, &str)], defaults: Defaults, expect: Option<u32>| {
            let found = decide((Method::Get, &[]), (status, lines), defaults).ok();
            assert_eq!(found.map(|stored| stored.lifetime_seconds), expect, "{status} {lines:?} {defaults:?}");
        };
        let hour_before = ("Last-Modified", "Sun, 06 Nov 1994 07:49:37 GMT");
        let minute = Defaults { lifetime_seconds: Some(60), ..HEURISTIC };
        check(200, &[hour_before], NONE, Some(0));
        check(200, &[hour_before], HEURISTIC, Some(360));
        check(200, &[hour_before], minute, Some(60));
        check(200, &[hour_before, ("Cache-Control", "max-age=7")], minute, Some(7));
        check(200, &[hour_before, ("Expires", "0")], minute, Some(0));
        check(502, &[], minute, Some(60));
        check(502, &[hour_before], HEURISTIC, None);
    }

    #[test]
    fn windows_and_ages() {
        let defaults = Defaults { stale_while_revalidate_seconds: 1, stale_if_error_seconds: 2, ..NONE };
        let stored =
            |value| decide((Method::Get, &[]), (200, &[("Cache-Control", value), ("Age", "3")]), defaults).unwrap();
        let expect = StoredResponseMeta {
            born_ms: 997_000,
            lifetime_seconds: 5,
            stale_while_revalidate_seconds: 1,
            stale_if_error_seconds: 2,
            is_no_cache: false,
            forbids_stale: false,
        };
        assert_eq!(stored("max-age=5"), expect);
        assert_eq!(
            stored("max-age=5, stale-while-revalidate=8, stale-if-error=9"),
            StoredResponseMeta { stale_while_revalidate_seconds: 8, stale_if_error_seconds: 9, ..expect }
        );
        assert_eq!(stored("s-maxage=5"), StoredResponseMeta { forbids_stale: true, ..expect });
        // Pages of clients often state nothing.
        let unstated = |lines: &[(&str, &str)]| decide((Method::Get, &[]), (200, lines), defaults);
        assert_eq!(unstated(&[]), Err(UncacheableReason::Useless));
        // Neither do those that are never fresh become stale, whatever another client accepts.
        for value in ["max-age=0", "public, max-age=0", "max-age=-1", "max-age=x", "s-maxage=0"] {
            let found = unstated(&[("Cache-Control", value)]);
            assert_eq!(found, Err(UncacheableReason::Useless), "{value}");
        }
        for lines in [&[TAG][..], &[TAG, ("Cache-Control", "max-age=0")], &[TAG, ("Expires", "0")]] {
            let validated = unstated(lines).unwrap();
            let windows = (validated.stale_while_revalidate_seconds, validated.stale_if_error_seconds);
            assert_eq!((windows, validated.forbids_stale), ((0, 0), true), "{lines:?}");
        }
        let own = unstated(&[("Cache-Control", "max-age=0, stale-if-error=9")]).unwrap();
        assert_eq!((own.stale_while_revalidate_seconds, own.stale_if_error_seconds, own.forbids_stale), (0, 9, false));
        assert_eq!((expect.age_seconds(NOW_MS), expect.age_seconds(NOW_MS + 1_999)), (3, 4));
        assert_eq!((expect.remaining_ms(NOW_MS), expect.remaining_ms(NOW_MS + 2_500)), (2_000, -500));
        assert_eq!(expect.age_ms(0), 0, "never negative");
    }
}
