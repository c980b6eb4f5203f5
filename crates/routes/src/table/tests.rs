use proptest::prelude::*;

use super::*;
use crate::matches_hostname;

/// A request for tests.
#[derive(Clone, Debug, Default)]
struct TestRequest {
    host: String,
    path: String,
    method: String,
    query: String,
    headers: Vec<(String, String)>,
}

impl RequestView for TestRequest {
    fn host(&self) -> &[u8] {
        self.host.as_bytes()
    }

    fn path(&self) -> &[u8] {
        self.path.as_bytes()
    }

    fn method(&self) -> &[u8] {
        self.method.as_bytes()
    }

    fn query(&self) -> &[u8] {
        self.query.as_bytes()
    }

    fn has_header(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.headers.iter().any(|(of, value)| of.eq_ignore_ascii_case(name) && test(value.as_bytes()))
    }
}

/// Request from `METHOD HOST/PATH?QUERY NAME=VALUE…`.
fn request(text: &str) -> TestRequest {
    let mut words = text.split(' ');
    let (method, url) = (words.next().unwrap(), words.next().unwrap());
    let (host, rest) = url.split_once('/').unwrap();
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let headers = words.map(|word| word.split_once('=').unwrap());
    TestRequest {
        host: host.into(),
        path: format!("/{path}"),
        method: method.into(),
        query: query.into(),
        headers: headers.map(|(name, value)| (name.into(), value.into())).collect(),
    }
}

/// Match from words: `=/exact`, `/prefix`, `^/start`, `~regex`, `METHOD`, `name:value`, `name:~regex`, `?name=value`,
/// `grpc:service/method`, `grpc~service/method`; parts may be empty.
fn a_match(text: &str) -> Match {
    let mut of = Match::default();
    for word in text.split_whitespace() {
        let value = |text: &str| match text.strip_prefix('~') {
            Some(regex) => ValueTest::Regex(regex.into()),
            None if text == "*" => ValueTest::Present,
            None => ValueTest::Exact(text.into()),
        };
        if let Some(path) = word.strip_prefix('=') {
            of.path = Some(PathMatch::Exact(path.into()));
        } else if let Some(path) = word.strip_prefix('^') {
            of.path = Some(PathMatch::Start(path.into()));
        } else if let Some(regex) = word.strip_prefix('~') {
            of.path = Some(PathMatch::Regex(regex.into()));
        } else if word.starts_with('/') {
            of.path = Some(PathMatch::Prefix(word.into()));
        } else if let Some((name, text)) = word.strip_prefix('?').and_then(|word| word.split_once('=')) {
            of.query.push(ValueMatch { name: name.into(), value: value(text) });
        } else if let Some(call) = word.strip_prefix("grpc") {
            let (service, method) = call[1..].split_once('/').unwrap();
            let part = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            of.grpc = Some(GrpcMatch { service: part(service), method: part(method), is_regex: call.starts_with('~') });
        } else if let Some((name, text)) = word.split_once(':') {
            of.headers.push(ValueMatch { name: name.into(), value: value(text) });
        } else {
            of.method = Some(word.into());
        }
    }
    of
}

/// Checks which of some matches has each request: by its position, the target of an entry.
fn check(entries: &[TableEntry<'_>], requests: &[(&str, Option<u32>)]) {
    let listeners: Vec<_> = entries.iter().map(|entry| entry.listener).collect();
    // Entries in any order are the same.
    let orders: [Vec<TableEntry<'_>>; 2] = [entries.to_vec(), entries.iter().rev().copied().collect()];
    for entries in orders {
        let table = RouteTable::new(listeners.iter().copied(), entries, &mut Regexes::default()).unwrap();
        for (text, expect) in requests {
            assert_eq!(table.find(&request(text)), *expect, "{text}");
        }
    }
}

/// Checks matches of one route.
fn check_matches(matches: &[&str], requests: &[(&str, Option<u32>)]) {
    let matches: Vec<_> = matches.iter().map(|text| a_match(text)).collect();
    let entries: Vec<_> = (0..matches.len())
        .map(|index| TableEntry {
            listener: None,
            hostname: None,
            of: &matches[index],
            age: (0, "a"),
            position: (index, 0),
            target: index as u32,
        })
        .collect();
    check(&entries, requests);
}

#[test]
fn streams_have_their_server_names() {
    let mut table = RouteTable::new([Some("*.x"), Some("a.x")], [], &mut Regexes::default()).unwrap();
    table.add_stream_listener(Some("b.x"));
    table.add_stream_listener(Some("*.a.x"));
    for (name, is_stream) in
        [("b.x", true), ("c.a.x", true), ("d.c.a.x", true), ("a.x", false), ("c.x", false), ("y", false), ("", false)]
    {
        assert_eq!(table.is_stream(name.as_bytes()), is_stream, "{name}");
    }
    assert!(!table.is_same_listener(b"c.x", b"b.x"));
    table.add_stream_listener(None);
    assert!(table.is_stream(b"") && table.is_stream(b"y") && !table.is_stream(b"c.x"));
}

#[test]
fn prefixes_are_of_segments() {
    check_matches(
        &["/foo", "/bar/", "/"],
        &[
            ("GET h/foo", Some(0)),
            ("GET h/foo/", Some(0)),
            ("GET h/foo/bar", Some(0)),
            ("GET h/foobar", Some(2)),
            ("GET h/bar", Some(1)),
            ("GET h/bar/x", Some(1)),
            ("GET h/", Some(2)),
        ],
    );
    check_matches(&["/foo"], &[("GET h/", None), ("GET h/fo", None), ("GET h/foo?a=1", Some(0))]);
}

/// HTTPRouteRule of the specification: exact path, longest prefix, method, most header fields, most query parameters.
#[test]
fn the_most_specific_match_wins() {
    check_matches(
        &[
            "/",
            "/a",
            "/a/b",
            "=/a/b",
            "/a GET",
            "/a GET x:1",
            "/a x:1 y:2",
            "/a x:1",
            "/a ?q=1",
            "/a ?q=1 ?r=2",
            "/a x:1 ?q=1",
        ],
        &[
            ("POST h/", Some(0)),
            ("POST h/a", Some(1)),
            ("POST h/a/b/c", Some(2)),
            ("POST h/a/b", Some(3)),
            // The path comes before all else.
            ("GET h/a/b/c x=1", Some(2)),
            ("GET h/a", Some(4)),
            ("GET h/a x=1", Some(5)),
            // The method comes before the number of fields.
            ("GET h/a x=1 y=2", Some(5)),
            ("POST h/a x=1 y=2", Some(6)),
            ("POST h/a x=1", Some(7)),
            ("POST h/a?q=1", Some(8)),
            ("POST h/a?q=1&r=2", Some(9)),
            // Fields come before arguments.
            ("POST h/a?q=1&r=2 x=1", Some(10)),
        ],
    );
}

#[test]
fn kinds_of_paths() {
    check_matches(
        &["/v1", "~/v[0-9]+", "~/v[0-9]+/x.*", "^/st", "=/v1/x"],
        &[
            ("GET h/v1/x", Some(4)),
            ("GET h/v1/xy", Some(2)),
            ("GET h/v1", Some(1)),
            // Regular expressions match whole paths.
            ("GET h/v1/y", Some(0)),
            ("GET h/a/v1", None),
            ("GET h/stop", Some(3)),
        ],
    );
}

#[test]
fn values_of_fields_and_arguments() {
    check_matches(
        &["x:~a.c", "?q=b%20c", "?r=d&e", "?s=~[0-9]+", "x:*"],
        &[
            ("GET h/ x=abc", Some(0)),
            ("GET h/ X=abc", Some(0)),
            ("GET h/ x=abcd", Some(4)),
            ("GET h/ x=no x=abc", Some(0)),
            ("GET h/?q=b%2520c", Some(1)),
            ("GET h/?q=b+c", None),
            ("GET h/?%72=d%26e", Some(2)),
            ("GET h/?s=12", Some(3)),
            // The first counts.
            ("GET h/?s=a&s=12", None),
            ("GET h/?ss=12", None),
            ("GET h/", None),
        ],
    );
}

/// GRPCRouteRule of the specification: most characters of the service, of the method, most header fields.
#[test]
fn methods_of_grpc() {
    check_matches(
        &["grpc:/", "grpc:/Get", "grpc:a.B/", "grpc:a.B/Get", "grpc:a.B/Get x:1", "grpc~c.*/Get|Put"],
        &[
            ("POST h/z/Other", Some(0)),
            ("POST h/z/Get", Some(1)),
            ("POST h/a.B/Put", Some(2)),
            ("POST h/a.BC/Put", Some(0)),
            ("POST h/a.B/Get", Some(3)),
            ("POST h/a.B/Get x=1", Some(4)),
            ("POST h/cd/Put", Some(5)),
        ],
    );
}

#[test]
fn hosts_of_listeners_and_routes() {
    let (any, path, exact) = (a_match(""), a_match("/p"), a_match("=/p"));
    let entry =
        |listener, hostname, of, target| TableEntry { listener, hostname, of, age: (0, "a"), position: (0, 0), target };
    check(
        &[
            entry(None, None, &any, 0),
            entry(None, Some("a.other"), &path, 1),
            entry(Some("*.example"), Some("*.example"), &path, 2),
            entry(Some("*.example"), Some("*.b.example"), &path, 3),
            entry(Some("*.example"), Some("c.b.example"), &exact, 4),
            entry(Some("d.example"), Some("d.example"), &exact, 5),
        ],
        &[
            ("GET none/p", Some(0)),
            ("GET a.other/p", Some(1)),
            // A less specific host name has what the more specific one leaves.
            ("GET a.other/q", Some(0)),
            ("GET x.example/p", Some(2)),
            ("GET x.b.example/p", Some(3)),
            ("GET c.b.example/p", Some(4)),
            ("GET c.b.example/p/q", Some(3)),
            ("GET b.example/p", Some(2)),
            // The listener has its hosts alone.
            ("GET x.example/q", None),
            ("GET d.example/p", Some(5)),
            ("GET d.example/p/q", None),
            ("GET example/p", Some(0)),
        ],
    );
}

#[test]
fn ties_by_age_name_and_position() {
    let of = a_match("/p");
    let entry = |age, position, target| TableEntry { listener: None, hostname: None, of: &of, age, position, target };
    let cases = [
        ([((2, "a"), (0, 0)), ((1, "b"), (0, 0))], 1),
        ([((1, "b"), (0, 0)), ((1, "a"), (5, 0))], 1),
        ([((1, "a"), (1, 0)), ((1, "a"), (0, 7))], 1),
        ([((1, "a"), (1, 0)), ((1, "a"), (1, 1))], 0),
    ];
    for (entries, expect) in cases {
        let entries = [0, 1].map(|index| entry(entries[index].0, entries[index].1, index as u32));
        check(&entries, &[("GET h/p", Some(expect))]);
    }
}

#[test]
fn invalid_matches() {
    for (text, expect) in [
        ("=a", "does not begin with /"),
        ("~(", "is not valid"),
        ("~a)(b", "is not valid"),
        ("~(?:a{1000}){1000}", "is not valid"),
        ("x:~[", "is not valid"),
        ("?q=~[", "is not valid"),
        ("grpc~[/x", "is not valid"),
        ("grpc:a/b /c", "excludes"),
        (":a", "is empty"),
    ] {
        let error = a_match(text).check(&mut Regexes::default()).unwrap_err();
        assert!(error.contains(expect), "{text}: {error}");
    }
    let long = Match { path: Some(PathMatch::Regex("a".repeat(5_000))), ..Match::default() };
    assert!(long.check(&mut Regexes::default()).unwrap_err().contains("more than"));
}

/// A table of ten thousand routes takes no more steps than one of ten.
#[test]
fn steps_do_not_depend_on_the_number_of_routes() {
    let steps = |count: usize, path: &str| {
        let matches: Vec<_> = (0..count)
            .map(|number| match number % 30 {
                5 => a_match(&format!("~/tenant-{number}/v[0-9]+/.*")),
                4 => a_match(&format!("=/tenant-{number}/exact")),
                _ => a_match(&format!("/tenant-{number}/api")),
            })
            .collect();
        let mut paths = PathTable::default();
        for (index, of) in matches.iter().enumerate() {
            let entry =
                TableEntry { listener: None, hostname: None, of, age: (0, ""), position: (index, 0), target: 0 };
            paths.add(&entry, &mut Regexes::default()).unwrap();
        }
        let mut steps = 0;
        let deepest = paths.tree.deepest(path.as_bytes(), |bytes| steps += 1 + bytes);
        steps + paths.tree.up(deepest).count()
    };
    for path in ["/tenant-3/api/users", "/tenant-4/exact", "/tenant-5/v1/x", "/none/of/these", "/"] {
        let (few, many) = (steps(10, path), steps(10_000, path));
        assert!(many <= few + path.len() && many <= 3 * path.len() + 2, "{path}: {few}, {many}");
    }
}

/// Finds a match by comparing all, as the specification says.
fn find_slowly(entries: &[TableEntry<'_>], request: &TestRequest) -> Option<u32> {
    let host_rank = |pattern: Option<&str>| match pattern {
        Some(name) if !name.starts_with('*') => (2, name.len()),
        Some(name) => (1, name.len()),
        None => (0, 0),
    };
    let matches_host = |pattern: Option<&str>| pattern.is_none_or(|pattern| matches_hostname(pattern, &request.host));
    let listener = entries.iter().filter(|entry| matches_host(entry.listener)).map(|entry| entry.listener);
    let listener = listener.max_by_key(|listener| host_rank(*listener))?;
    let rank_of_path = |of: &Match| {
        let path = &request.path;
        match of.path.as_ref().unwrap_or(&PathMatch::Prefix("/".into())) {
            PathMatch::Exact(exact) => (exact == path).then_some((3, 0)),
            PathMatch::Regex(regex) => {
                Regex::new(&format!("^(?:{regex})$")).unwrap().is_match(path.as_bytes()).then_some((2, regex.len()))
            }
            PathMatch::Prefix(prefix) => {
                let prefix = prefix.trim_end_matches('/');
                let rest = path.strip_prefix(prefix)?;
                (rest.is_empty() || rest.starts_with('/')).then_some((1, prefix.len()))
            }
            PathMatch::Start(_) => unreachable!(),
        }
    };
    let found = entries.iter().filter(|entry| entry.listener == listener && matches_host(entry.hostname));
    let found = found.filter_map(|entry| {
        let of = entry.of;
        let path = rank_of_path(of)?;
        let has_method = of.method.as_ref().is_none_or(|method| *method == request.method);
        let has_headers = of.headers.iter().all(|of| {
            request
                .has_header(&of.name, &mut |value| of.value == ValueTest::Exact(String::from_utf8_lossy(value).into()))
        });
        let key = (host_rank(entry.hostname), path, of.method.is_some(), of.headers.len());
        (has_method && has_headers).then_some((key, Reverse(entry.position), entry.target))
    });
    found.max().map(|(.., target)| target)
}

proptest! {
    #[test]
    fn as_all_compared(
        entries in proptest::collection::vec((
            proptest::option::of("(a|\\*|b\\.a)\\.x"),
            proptest::option::of("(a|\\*|b\\.a|\\*\\.a)\\.x"),
            "(=?(/[ab]{1,2}){1,3}/?|~/[ab](b\\?|\\.\\*|[ab]))?( GET)?( x:1)?( y:1)?",
        ), 1..30),
        requests in proptest::collection::vec(
            "(GET|POST) (a|b|b\\.a|c)\\.(x|y)(/[ab]{0,2}){1,3}( x=1)?( y=1)?", 1..20),
    ) {
        let matches: Vec<_> = entries.iter().map(|(.., text)| a_match(text)).collect();
        let table_entries: Vec<_> = entries.iter().zip(&matches).enumerate().map(|(index, ((listener, hostname, _), of))| {
            TableEntry {
                listener: listener.as_deref(),
                hostname: hostname.as_deref(),
                of,
                age: (0, "a"),
                position: (index, 0),
                target: index as u32,
            }
        }).collect();
        let listeners = table_entries.iter().map(|entry| entry.listener);
        let table = RouteTable::new(listeners, table_entries.iter().copied(), &mut Regexes::default()).unwrap();
        for text in &requests {
            let request = request(text);
            prop_assert_eq!(table.find(&request), find_slowly(&table_entries, &request), "{}", text);
        }
    }
}
