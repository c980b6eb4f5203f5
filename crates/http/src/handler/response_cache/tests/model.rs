//! Random users, and an upstream with random responses: any Vary, Cache-Control and validators, in a 200, a 304 and a
//! response to HEAD. In any order of events, no user gets content made for another, except where RFC 9111 allows it.

use std::collections::{BTreeSet, HashMap};

use fastrand::Rng;
use wire::http::Method;
use wire::http::caching::{ResponseDirectives, Vary};

use super::*;

/// Number of histories, and of requests in each.
const HISTORIES: u64 = 300;
const REQUESTS: usize = 120;

/// A request's properties that a response may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ModelClient {
    user: u8,
    language: u8,
    is_authorized: bool,
    /// Number of the exchange.
    exchange: usize,
}

/// Statements of the upstream about some content.
#[derive(Debug)]
struct ModelStatement {
    /// Last request that the content was sent to, or named to by a strong entity tag; `None` once that is unknown.
    given: Option<ModelClient>,
    /// Request fields that the content depends on.
    names: BTreeSet<Vec<u8>>,
    /// True if no shared cache may share it.
    is_for_one: bool,
    /// 0 for none, 1 for Last-Modified, 2 for a weak and 3 for a strong entity tag.
    validator: u8,
}

/// The upstream, and what it has sent in each exchange.
struct ModelOrigin {
    rng: RefCell<Rng>,
    contents: RefCell<Vec<ModelStatement>>,
    /// Contents that were sent, or named by a strong entity tag, in an exchange.
    reported: RefCell<HashMap<usize, Vec<usize>>>,
    not_modified: Cell<usize>,
}

impl ModelClient {
    fn of(request: &wire::http::Request<'_>) -> Self {
        let number = |name: &str| {
            let value = str::from_utf8(request.field_by_name(name.as_bytes()).unwrap_or(b"0")).unwrap();
            value.trim_start_matches(|other: char| !other.is_ascii_digit()).parse::<usize>().unwrap()
        };
        let is_authorized = request.field_by_name(b"Authorization").is_some();
        Self {
            user: number("Cookie") as u8,
            language: number("Accept-Language") as u8,
            is_authorized,
            exchange: number("X-Exchange"),
        }
    }

    /// True if this request has the same values as another in the fields of these names.
    fn is_like(&self, other: &Self, names: &BTreeSet<Vec<u8>>) -> bool {
        names.iter().all(|name| match name.as_slice() {
            b"cookie" => self.user == other.user,
            b"accept-language" => self.language == other.language,
            // No request has any other.
            _ => true,
        })
    }

    fn lines(&self) -> String {
        let Self { user, language, exchange, .. } = self;
        let authorization = if self.is_authorized { "Authorization: Basic x\n" } else { "" };
        format!("Cookie: u={user}\nAccept-Language: x{language}\nX-Exchange: {exchange}\n{authorization}")
    }
}

impl ModelOrigin {
    fn new(seed: u64) -> Self {
        let (contents, reported) = (RefCell::default(), RefCell::default());
        Self { rng: RefCell::new(Rng::with_seed(seed)), contents, reported, not_modified: Cell::new(0) }
    }

    fn choice<T: Copy>(&self, of: &[T]) -> T {
        of[self.rng.borrow_mut().usize(..of.len())]
    }

    /// Random fields: Vary, Cache-Control, and a cookie for the user.
    fn fields(&self, asker: &ModelClient) -> Fields {
        let mut fields = Fields::new();
        let vary =
            ["", "", "", "Cookie", "Cookie, Accept-Language", "Accept-Language", "Accept-Language", "*", "X-Other"];
        let caching = [
            "max-age=60",
            "max-age=60",
            "max-age=0",
            "max-age=0",
            "public, max-age=0",
            "no-cache",
            "max-age=0, stale-while-revalidate=60",
            "max-age=0, stale-if-error=60",
            "",
            "private",
            "private, max-age=60",
            "no-store",
        ];
        for (name, value) in [("Vary", self.choice(&vary)), ("Cache-Control", self.choice(&caching))] {
            if !value.is_empty() {
                fields.push(name, value);
            }
        }
        if self.choice(&[false, false, false, false, true]) {
            fields.push("Set-Cookie", format!("u={}", asker.user));
        }
        fields
    }

    fn push_validator(&self, number: usize, as_kind: u8, fields: &mut Fields) {
        match as_kind {
            1 => fields.push("Last-Modified", wire::http::date::format(1_000_000_000 + number as u64)),
            2 => fields.push("ETag", format!("W/\"{number}\"")),
            3 => fields.push("ETag", format!("\"{number}\"")),
            _ => fields,
        };
    }

    fn tell(&self, asker: &ModelClient, number: usize) {
        self.reported.borrow_mut().entry(asker.exchange).or_default().push(number);
    }

    /// Content that a request's condition refers to.
    fn asked_about(&self, condition: Option<&[u8]>, since: Option<&[u8]>) -> Option<usize> {
        if let Some(etag) = condition {
            let digits: Vec<u8> = etag.iter().copied().filter(u8::is_ascii_digit).collect();
            return str::from_utf8(&digits).unwrap().parse().ok();
        }
        Some((wire::http::date::parse(since?)? - 1_000_000_000) as usize)
    }

    fn answer(&self, asker: &ModelClient, method: Method, about: Option<usize>) -> Box<BuiltResponse> {
        let failed =
            BuiltResponse { forwarded: Some(Box::default()), ..*BuiltResponse::new(Status::SERVICE_UNAVAILABLE) };
        match self.choice(&[0, 0, 0, 0, 0, 0, 1]) {
            0 => {}
            _ => return Box::new(failed),
        }
        if method == Method::Head {
            return self.answer_head(asker);
        }
        match about.filter(|_| method == Method::Get && self.choice(&[true, true, true, false])) {
            Some(number) => self.not_modified(asker, number),
            None => self.new_content(asker, method),
        }
    }

    fn new_content(&self, asker: &ModelClient, method: Method) -> Box<BuiltResponse> {
        let mut fields = self.fields(asker);
        let directives = ResponseDirectives::of(&fields, &[]);
        let number = self.contents.borrow().len();
        let validator = self.choice(&[0, 1, 2, 3, 3, 3]);
        self.push_validator(number, validator, &mut fields);
        let permits_authorized = directives.public || directives.must_revalidate || directives.s_maxage.is_some();
        let (names, is_for_one) = said(&fields);
        let is_for_one = is_for_one || (asker.is_authorized && !permits_authorized) || method != Method::Get;
        self.contents.borrow_mut().push(ModelStatement { given: Some(*asker), names, is_for_one, validator });
        self.tell(asker, number);
        let body = Body::from_bytes(format!("{number}"));
        Box::new(BuiltResponse {
            status: Status::OK,
            fields,
            body,
            forwarded: Some(Box::default()),
            reason: "",
            compression: None,
            ending: ResponseEnding::Normal,
        })
    }

    fn not_modified(&self, asker: &ModelClient, number: usize) -> Box<BuiltResponse> {
        self.not_modified.set(self.not_modified.get() + 1);
        let mut fields = self.fields(asker);
        let stored = self.contents.borrow()[number].validator;
        // The validator of the condition, or none, or that of other content.
        match self.choice(&[0, 0, 0, 1, 2, 3]) {
            0 => self.push_validator(number, stored, &mut fields),
            1 => {}
            2 => self.push_validator(number, 2, &mut fields),
            _ => self.push_validator(number + 1, 3, &mut fields),
        }
        let etag = fields.get("ETag");
        let is_named = stored == 3 && etag == Some(format!("\"{number}\"").as_bytes());
        // Otherwise the 304 is about another version.
        if is_named || etag.is_none_or(|etag| etag.starts_with(b"W/")) {
            self.learn(asker, number, &fields, is_named);
        }
        if is_named {
            self.tell(asker, number);
        }
        let body = Body::default();
        Box::new(BuiltResponse {
            status: Status::NOT_MODIFIED,
            fields,
            body,
            forwarded: Some(Box::default()),
            reason: "",
            compression: None,
            ending: ResponseEnding::Normal,
        })
    }

    /// Applies new statements about content, if the cache would surely select it for the request.
    fn learn(&self, asker: &ModelClient, number: usize, fields: &Fields, is_named: bool) {
        let said_before = &mut self.contents.borrow_mut()[number];
        if !said_before.given.is_some_and(|given| given.is_like(asker, &said_before.names)) {
            return;
        }
        let (names, is_for_one) = said(fields);
        said_before.is_for_one |= is_for_one;
        if !names.is_subset(&said_before.names) {
            said_before.names.extend(names);
            // The content was sent to a request with the same new fields, or the entity tag names it.
            if !said_before.given.is_some_and(|given| given.is_like(asker, &said_before.names)) {
                said_before.given = is_named.then_some(*asker);
            }
        }
    }

    fn answer_head(&self, asker: &ModelClient) -> Box<BuiltResponse> {
        let mut fields = self.fields(asker);
        let count = self.contents.borrow().len();
        let recent = count.saturating_sub(1 + self.rng.borrow_mut().usize(..4));
        let is_named = self.choice(&[true, true, false]);
        if let Some(said_before) = self.contents.borrow_mut().get_mut(recent).filter(|_| is_named) {
            self.push_validator(recent, said_before.validator, &mut fields);
            // Content that the cache would select for this request only.
            let is_same =
                |given: ModelClient| ModelClient { exchange: 0, ..given } == ModelClient { exchange: 0, ..*asker };
            if said_before.given.is_some_and(is_same) && said_before.validator > 0 {
                let (names, is_for_one) = said(&fields);
                said_before.is_for_one |= is_for_one;
                said_before.names.extend(names);
            }
        }
        let forwarded = Some(Box::default());
        Box::new(BuiltResponse {
            status: Status::OK,
            fields,
            body: Body::default(),
            forwarded,
            reason: "",
            compression: None,
            ending: ResponseEnding::Normal,
        })
    }

    /// Checks what a request got.
    #[track_caller]
    fn check(&self, asker: &ModelClient, got: &CacheResult, history: u64) {
        for line in got.head.lines().filter_map(|line| line.strip_prefix("Set-Cookie: u=")) {
            assert_eq!(line, asker.user.to_string(), "history {history}: {asker:?} got a cookie: {}", got.head);
        }
        let Ok(number) = got.content.as_deref().unwrap_or_default().parse::<usize>() else { return };
        let reported = self.reported.borrow();
        if reported.get(&asker.exchange).is_some_and(|reported| reported.contains(&number)) {
            return;
        }
        let said = &self.contents.borrow()[number];
        let is_permitted = !said.is_for_one && said.given.is_some_and(|given| given.is_like(asker, &said.names));
        assert!(is_permitted, "history {history}: {asker:?} got {number}: {said:?}\n{}", got.head);
    }
}

/// Fields that a response depends on, and whether it is for one client.
fn said(fields: &Fields) -> (BTreeSet<Vec<u8>>, bool) {
    let directives = ResponseDirectives::of(fields, &[]);
    let is_for_one = directives.private || directives.no_store;
    match Vary::of(fields) {
        Vary::Nothing => (BTreeSet::new(), is_for_one),
        Vary::Fields(names) => (names.into_iter().map(|name| name.into_vec()).collect(), is_for_one),
        Vary::Everything => (BTreeSet::new(), true),
    }
}

impl Fetch for ModelOrigin {
    fn fetch(self: Rc<Self>, request: Rc<OwnedRequest>, changes: Fields) -> FetchFuture {
        let asker = ModelClient::of(&request.request());
        let method = request.request().method();
        let about = self.asked_about(
            changes.get("If-None-Match"),
            changes.get("If-Modified-Since").filter(|value| !value.is_empty()),
        );
        Box::pin(async move {
            for _ in 0..self.choice(&[0, 0, 1, 2, 5]) {
                tokio::task::yield_now().await;
            }
            Ok(self.answer(&asker, method, about))
        })
    }
}

/// Runs one history. Returns the number of requests served without the upstream, and the number of its 304s.
fn run(history: u64, together_max: usize) -> (usize, usize) {
    let site = CacheFixture::new(|caching| {
        caching.request_directives = true;
        caching.set_cookie = if history.is_multiple_of(2) { SetCookie::Reject } else { SetCookie::Drop };
    });
    let (site, origin) = (Rc::new(site), Rc::new(ModelOrigin::new(history)));
    let hits = Rc::new(Cell::new(0));
    let mut exchange = 0;
    while exchange < REQUESTS {
        let mut together = Vec::new();
        let count = 1 + origin.rng.borrow_mut().usize(..together_max);
        for _ in 0..count {
            exchange += 1;
            let (user, language) = (origin.choice(&[1, 2, 3]), origin.choice(&[1, 2]));
            let is_authorized = origin.choice(&[false, false, false, true]);
            let asker = ModelClient { user, language, is_authorized, exchange };
            let method = origin.choice(&["GET", "GET", "GET", "GET", "GET", "GET", "GET", "HEAD", "HEAD", "POST"]);
            let asked = origin.choice(&["", "", "", "Cache-Control: no-cache\n", "Cache-Control: no-store\n"]);
            together.push((asker, format!("{method} / HTTP/1.1\n{}{asked}", asker.lines())));
        }
        site.runtime.block_on(async {
            let tasks = together.into_iter().map(|(asker, request)| {
                let (of_task, origin, hits) = (Rc::clone(&site), Rc::clone(&origin), Rc::clone(&hits));
                tokio::task::spawn_local(async move {
                    let outcome = of_task.start_before(&origin, &request, &ClientLinkCell::default());
                    let got = of_task.finish(outcome).await;
                    origin.check(&asker, &got, history);
                    let is_hit = got.status == 200 && !origin.reported.borrow().contains_key(&asker.exchange);
                    hits.set(hits.get() + usize::from(is_hit));
                })
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.unwrap();
            }
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        });
    }
    (hits.get(), origin.not_modified.get())
}

#[test]
fn no_user_gets_what_was_made_for_another() {
    let (mut hits, mut not_modified) = (0, 0);
    for history in 0..HISTORIES {
        let (more_hits, more_not_modified) = run(history, 1);
        (hits, not_modified) = (hits + more_hits, not_modified + more_not_modified);
    }
    // The history gives the cache something to decide.
    assert!(hits > HISTORIES as usize && not_modified > HISTORIES as usize, "{hits} {not_modified}");
}

#[test]
fn no_user_gets_what_was_made_for_another_at_the_same_time() {
    let (mut hits, mut not_modified) = (0, 0);
    for history in 0..HISTORIES {
        let (more_hits, more_not_modified) = run(history, 6);
        (hits, not_modified) = (hits + more_hits, not_modified + more_not_modified);
    }
    assert!(hits > HISTORIES as usize && not_modified > HISTORIES as usize, "{hits} {not_modified}");
}
