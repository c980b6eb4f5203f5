//! Translations that follow each other.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use routes::{
    Backend, BackendRef, Change, Endpoint, FieldChanges, Filter, Listener, Match, Mirror, PathMatch, Protocol,
    RequestView, Route, Rule, Snapshot,
};
use tempfile::TempDir;

use super::state::RouteState;
use super::translate::{TranslatedRoutes, Translator};
use crate::config::{ControlPlane, Listen, RouteParts, SiteConfig, UpstreamServerAddress};

const HOSTS: [&str; 5] = ["a.test", "b.test", "x.c.test", "c.test", "other"];
const PATHS: [&str; 4] = ["/", "/p0", "/p1/x", "/p2"];

struct Asked(&'static str, &'static str);

impl RequestView for Asked {
    fn host(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn path(&self) -> &[u8] {
        self.1.as_bytes()
    }

    fn method(&self) -> &[u8] {
        b"GET"
    }

    fn query(&self) -> &[u8] {
        b""
    }

    fn has_header(&self, _: &str, _: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        false
    }
}

fn state() -> (TempDir, RouteState) {
    let directory = tempfile::tempdir().unwrap();
    let plane = ControlPlane {
        address: UpstreamServerAddress::Unix("/plane.sock".into()),
        token_file: None,
        authorities: None,
        certificate: None,
        directory: Some(directory.path().to_owned()),
    };
    let state = RouteState::open(&plane).unwrap();
    (directory, state)
}

/// Sites, with what leads to them, by address, host and path.
type Served<'a> = BTreeMap<(String, &'static str, &'static str), Vec<&'a SiteConfig>>;

fn served(parts: &RouteParts) -> Served<'_> {
    let mut served = Served::new();
    for (listen, rules) in &parts.listeners {
        for (host, path) in HOSTS.iter().flat_map(|host| PATHS.iter().map(move |path| (*host, *path))) {
            let target = rules.table.find(&Asked(host, path)).map(|target| &rules.targets[target as usize]);
            let sites = target.iter().flat_map(|target| {
                (0..target.total()).filter_map(|number| target.choose(|_| number)).map(|site| &*rules.sites[site])
            });
            served.insert((listen.to_string(), host, path), sites.collect());
        }
    }
    served
}

/// Everything of a translation that the server uses, apart from what is the same object.
#[track_caller]
fn assert_same(one: &TranslatedRoutes, other: &TranslatedRoutes, case: &str) {
    assert_eq!(one.errors, other.errors, "{case}");
    assert_eq!(one.parts.upstreams, other.parts.upstreams, "{case}");
    assert_eq!(one.parts.sites, other.parts.sites, "{case}");
    assert_eq!(served(&one.parts), served(&other.parts), "{case}");
    let listens =
        |of: &TranslatedRoutes| of.parts.listeners.iter().map(|(listen, _)| listen.clone()).collect::<Vec<Listen>>();
    assert_eq!(listens(one), listens(other), "{case}");
}

fn random_listener(random: &mut fastrand::Rng) -> Listener {
    let hostnames = [None, Some("a.test"), Some("*.c.test"), Some("not valid")];
    let protocols = [Protocol::Http, Protocol::Http, Protocol::Http, Protocol::Tcp, Protocol::Https];
    let mut listener = Listener::new(random.u16(80..83), protocols[random.usize(..protocols.len())]);
    listener.hostname = hostnames[random.usize(..hostnames.len())].map(str::to_owned);
    if random.bool() {
        listener.addresses = vec![[127, 0, 0, 1].into()];
    }
    listener
}

fn random_route(random: &mut fastrand::Rng) -> Route {
    let backend = |random: &mut fastrand::Rng| format!("backend{}", random.u8(0..4));
    let rule = |random: &mut fastrand::Rng| {
        let path = PathMatch::Prefix(format!("/p{}", random.u8(0..3)));
        let path = if random.u8(0..8) == 0 { PathMatch::Regex("(".into()) } else { path };
        let set = vec![("X-Edition".to_owned(), random.u8(0..3).to_string())];
        let mut filters = vec![Filter::ResponseHeaders(FieldChanges { set, ..FieldChanges::default() })];
        if random.u8(0..4) == 0 {
            filters.push(Filter::Mirror(Mirror { backend: backend(random), fraction: (1, 2) }));
        }
        if random.u8(0..4) == 0 {
            filters.push(Filter::Redirect(routes::Redirect::default()));
        }
        let backends = (0..random.u8(0..3)).map(|_| BackendRef::new(backend(random), random.u32(0..3))).collect();
        let matches = vec![Match { path: Some(path), ..Match::default() }];
        let options = ["", "", "respond", "body-bytes-max 1000"][random.usize(..4)].to_owned();
        Rule { matches, filters, backends, options, ..Rule::default() }
    };
    let hostnames = ["a.test", "b.test", "*.c.test"].iter().filter(|_| random.bool()).map(|name| (*name).to_owned());
    Route {
        hostnames: hostnames.collect(),
        listeners: (0..random.u8(1..3)).map(|_| format!("listener{}", random.u8(0..5))).collect(),
        created: random.i64(0..3),
        rules: (0..random.u8(1..3)).map(|_| rule(random)).collect(),
    }
}

fn random_change(random: &mut fastrand::Rng) -> Change {
    let mut change = Change::default();
    for _ in 0..random.u8(1..4) {
        let exists = random.u8(0..4) > 0;
        match random.u8(0..6) {
            0 => {
                let value = exists.then(|| random_listener(random));
                change.listeners.insert(format!("listener{}", random.u8(0..5)), value);
            }
            1 => {
                let options = ["", "", "no-such-option", "connections-max 7"][random.usize(..4)].to_owned();
                let value = exists.then(|| Backend { options, ..Backend::default() });
                change.backends.insert(format!("backend{}", random.u8(0..4)), value);
            }
            2 => {
                let endpoints = vec![Endpoint::new(([127, 0, 0, 1], random.u16(1..9)).into())];
                change.endpoints.insert(format!("backend{}", random.u8(0..4)), exists.then_some(endpoints));
            }
            _ => {
                let value = exists.then(|| random_route(random));
                change.routes.insert(format!("route{}", random.u8(0..6)), value);
            }
        }
    }
    change
}

#[test]
fn a_translation_after_changes_is_that_of_the_whole() {
    let (_directory, state) = state();
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut snapshot, mut translator) = (Snapshot::default(), Translator::default());
        for step in 0..25 {
            let change = random_change(&mut random);
            translator.note(&change);
            let reverse = snapshot.apply(change);
            let refused = ("127.0.0.1:82".parse::<SocketAddr>().unwrap(), "in use".to_owned());
            let unusable: HashMap<_, _> = Some(refused).filter(|_| random.u8(0..4) == 0).into_iter().collect();
            let after = translator.translate(&snapshot, &state, &unusable);
            let whole = Translator::default().translate(&snapshot, &state, &unusable);
            assert_same(&after, &whole, &format!("seed {seed}, step {step}"));
            if random.u8(0..6) == 0 {
                // The server did not apply it.
                snapshot.apply(reverse);
                translator.forget();
            }
        }
    }
}

#[test]
fn what_a_change_does_not_touch_stays_the_same_object() {
    let (_directory, state) = state();
    let (mut snapshot, mut translator) = (Snapshot::default(), Translator::default());
    let route = |listener: usize, edition: &str| {
        let set = vec![("X-Edition".to_owned(), edition.to_owned())];
        Route {
            listeners: vec![format!("listener{listener}")],
            rules: vec![Rule {
                filters: vec![Filter::ResponseHeaders(FieldChanges { set, ..FieldChanges::default() })],
                backends: vec![BackendRef::new("backend", 1)],
                ..Rule::default()
            }],
            ..Route::default()
        }
    };
    snapshot.backends.insert("backend".into(), Backend::default());
    for number in 0..20 {
        let listener = Listener::new(1000 + number as u16, Protocol::Http);
        snapshot.listeners.insert(format!("listener{number}"), listener);
        for of_listener in 0..5 {
            snapshot.routes.insert(format!("route{number}-{of_listener}"), route(number, "0"));
        }
    }
    let first = translator.translate(&snapshot, &state, &HashMap::new());
    assert_eq!((first.parts.built, first.parts.listeners.len()), (120, 40), "IPv4 and IPv6 of each listener");
    let mut step = |change: Change, before: &TranslatedRoutes| {
        translator.note(&change);
        snapshot.apply(change);
        let after = translator.translate(&snapshot, &state, &HashMap::new());
        let pairs = before.parts.sites.iter().zip(&after.parts.sites);
        let new_sites = pairs.filter(|(one, other)| !Arc::ptr_eq(one, other)).count();
        let pairs = before.parts.listeners.iter().zip(&after.parts.listeners);
        let new_rules = pairs.filter(|((_, one), (_, other))| !Arc::ptr_eq(one, other)).count();
        let same_upstreams = Arc::ptr_eq(&before.parts.upstreams[0], &after.parts.upstreams[0]);
        let seen = (after.parts.built, new_sites, new_rules, same_upstreams, after.streams.is_some());
        (after, seen)
    };
    let of_route = |route: Route| Change { routes: [("route7-3".to_owned(), Some(route))].into(), ..Change::default() };
    let (second, seen) = step(of_route(route(7, "1")), &first);
    assert_eq!(seen, (1, 1, 2, true, false));
    let [of_ipv4, of_ipv6] = [7, 27].map(|index: usize| &second.parts.listeners[index].1);
    assert!(Arc::ptr_eq(of_ipv4, of_ipv6), "both addresses share their rules");
    let older = Route { created: 9, ..route(7, "1") };
    let (third, seen) = step(of_route(older), &second);
    assert_eq!(seen, (0, 0, 2, true, false), "its site is as before");
    let backends = [("backend".to_owned(), Some(Backend::default()))].into();
    let (fourth, seen) = step(Change { backends, ..Change::default() }, &third);
    assert_eq!(seen, (0, 0, 0, true, true));
    let listener = Some(Listener { hostname: Some("a.test".into()), ..Listener::new(1003, Protocol::Http) });
    let listeners = [("listener3".to_owned(), listener)].into();
    let (_, seen) = step(Change { listeners, ..Change::default() }, &fourth);
    assert_eq!(seen, (1, 1, 2, true, true));
}
