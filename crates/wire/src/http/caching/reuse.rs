//! Reuse of stored responses (RFC 9111, section 4).

use super::{RequestDirectives, StoredResponseMeta};

/// Decision about a stored response that matches a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReuseDecision {
    /// Serve the response.
    Serve,
    /// Serve the response and validate it afterwards (RFC 5861, section 3).
    ServeAndRevalidate,
    /// Validate the response first. If the request forbids this (`only-if-cached`), answer with 504.
    Validate,
}

/// Decides about a request with these directives. The caller must remove directives that it does not obey.
pub fn reuse(stored: &StoredResponseMeta, asked: &RequestDirectives, now_ms: u64) -> ReuseDecision {
    if stored.is_no_cache || asked.no_cache {
        return ReuseDecision::Validate;
    }
    let remaining_ms = stored.remaining_ms(now_ms);
    // Sections 5.2.1.1 and 5.2.1.3.
    let is_too_old = asked.max_age.is_some_and(|seconds| stored.age_ms(now_ms) > u64::from(seconds) * 1_000);
    let is_too_stale = asked.min_fresh.is_some_and(|seconds| remaining_ms < i64::from(seconds) * 1_000);
    if is_too_old || is_too_stale {
        return ReuseDecision::Validate;
    }
    if remaining_ms > 0 {
        return ReuseDecision::Serve;
    }
    if stored.forbids_stale {
        return ReuseDecision::Validate;
    }
    // Section 5.2.1.2.
    if asked.max_stale.is_some_and(|seconds| -remaining_ms <= i64::from(seconds) * 1_000) {
        return ReuseDecision::Serve;
    }
    match -remaining_ms < i64::from(stored.stale_while_revalidate_seconds) * 1_000 {
        true => ReuseDecision::ServeAndRevalidate,
        false => ReuseDecision::Validate,
    }
}

/// Returns whether a stored response may be served after a failed validation: the upstream is unreachable or returned
/// 500, 502, 503 or 504 (RFC 5861, section 4; RFC 9111, section 4.2.4).
pub fn serves_on_error(stored: &StoredResponseMeta, asked: &RequestDirectives, now_ms: u64) -> bool {
    let remaining_ms = stored.remaining_ms(now_ms);
    let window = asked.stale_if_error.map_or(stored.stale_if_error_seconds, |seconds| {
        // A request may shorten the time that the response permits, and extend it only if the response states none.
        if stored.stale_if_error_seconds == 0 { seconds } else { seconds.min(stored.stale_if_error_seconds) }
    });
    let may_be_stale = !stored.forbids_stale && -remaining_ms < i64::from(window) * 1_000;
    !asked.no_cache && !stored.is_no_cache && (remaining_ms > 0 || may_be_stale)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A response that is fresh until 60 s.
    const STORED: StoredResponseMeta = StoredResponseMeta {
        born_ms: 0,
        lifetime_seconds: 60,
        stale_while_revalidate_seconds: 0,
        stale_if_error_seconds: 0,
        is_no_cache: false,
        forbids_stale: false,
    };
    const NONE: RequestDirectives = RequestDirectives {
        no_store: false,
        no_cache: false,
        only_if_cached: false,
        max_age: None,
        min_fresh: None,
        max_stale: None,
        stale_if_error: None,
    };

    #[test]
    fn reused() {
        use ReuseDecision::{Serve, ServeAndRevalidate, Validate};
        let check = |stored: StoredResponseMeta, asked: RequestDirectives, now_ms: u64, expect: ReuseDecision| {
            assert_eq!(reuse(&stored, &asked, now_ms), expect, "{stored:?} {asked:?} {now_ms}");
        };
        check(STORED, NONE, 59_999, Serve);
        check(STORED, NONE, 60_000, Validate);
        // Issue 17: a worker whose clock was slow served a response that another worker had just stored with
        // `max-age=0`.
        check(StoredResponseMeta { born_ms: 5, lifetime_seconds: 0, ..STORED }, NONE, 4, Validate);
        check(StoredResponseMeta { born_ms: 5, ..STORED }, NONE, 4, Serve);
        check(StoredResponseMeta { is_no_cache: true, ..STORED }, NONE, 0, Validate);
        check(STORED, RequestDirectives { no_cache: true, ..NONE }, 0, Validate);
        let young = RequestDirectives { max_age: Some(10), ..NONE };
        check(STORED, young, 10_000, Serve);
        check(STORED, young, 10_001, Validate);
        check(STORED, RequestDirectives { max_age: Some(0), ..NONE }, 1, Validate);
        check(STORED, RequestDirectives { max_stale: Some(u32::MAX), ..young }, 10_001, Validate);
        let for_a_while = RequestDirectives { min_fresh: Some(10), ..NONE };
        check(STORED, for_a_while, 50_000, Serve);
        check(STORED, for_a_while, 50_001, Validate);
        let patient = RequestDirectives { max_stale: Some(10), ..NONE };
        check(STORED, patient, 70_000, Serve);
        check(STORED, patient, 70_001, Validate);
        check(StoredResponseMeta { forbids_stale: true, ..STORED }, patient, 60_000, Validate);

        let background = StoredResponseMeta { stale_while_revalidate_seconds: 10, ..STORED };
        check(background, NONE, 59_999, Serve);
        check(background, NONE, 60_000, ServeAndRevalidate);
        check(background, NONE, 69_999, ServeAndRevalidate);
        check(background, NONE, 70_000, Validate);
        check(StoredResponseMeta { forbids_stale: true, ..background }, NONE, 60_000, Validate);
    }

    #[test]
    fn on_error() {
        let check = |stored: StoredResponseMeta, asked: RequestDirectives, now_ms: u64, expect: bool| {
            assert_eq!(serves_on_error(&stored, &asked, now_ms), expect, "{stored:?} {asked:?} {now_ms}");
        };
        let spare = StoredResponseMeta { stale_if_error_seconds: 10, ..STORED };
        check(STORED, NONE, 60_000, false);
        check(STORED, NONE, 59_000, true);
        check(spare, NONE, 69_999, true);
        check(spare, NONE, 70_000, false);
        check(StoredResponseMeta { forbids_stale: true, ..spare }, NONE, 69_999, false);
        check(StoredResponseMeta { is_no_cache: true, ..spare }, NONE, 59_000, false);
        check(spare, RequestDirectives { no_cache: true, ..NONE }, 59_000, false);
        check(spare, RequestDirectives { stale_if_error: Some(5), ..NONE }, 65_000, false);
        check(spare, RequestDirectives { stale_if_error: Some(50), ..NONE }, 70_000, false);
        check(STORED, RequestDirectives { stale_if_error: Some(5), ..NONE }, 64_999, true);
    }
}
