use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::*;

use crate::*;

/// Facts by name. A value of `?` cannot be told.
#[derive(Default)]
struct Facts {
    values: HashMap<String, String>,
    client: Option<IpAddr>,
}

impl Facts {
    fn new(values: &[(&str, &str)]) -> Self {
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { values, client: Some("192.0.2.7".parse().unwrap()) }
    }
}

impl FactSource for Facts {
    fn fact(&self, fact: &Fact) -> Option<Cow<'_, [u8]>> {
        match self.values.iter().find(|(name, _)| *fact == fact_of(name)).map(|(_, value)| value.as_str()) {
            Some("?") => None,
            Some(value) => Some(Cow::Borrowed(value.as_bytes())),
            None => Some(Cow::Borrowed(b"")),
        }
    }

    fn client(&self) -> Option<IpAddr> {
        self.client
    }
}

fn fact_of(name: &str) -> Fact {
    match parse_variable(name, Place::Response).unwrap() {
        Variable::Fact(fact) => fact,
        other => panic!("{other:?}"),
    }
}

fn facts() -> Facts {
    Facts::new(&[
        ("method", "GET"),
        ("host", "a.example"),
        ("path", "/api/v2/users"),
        ("path.1", "api"),
        ("query.n", "12"),
        ("query.twice", "?"),
        ("cookie.lang", "de"),
        ("request.header.Accept", "text/html"),
    ])
}

#[test]
fn conditions() {
    use Verdict::{False, True, Unknown};
    let facts = facts();
    let check = |text: &str, expect: Verdict| {
        assert_eq!(parse_condition(text, Place::Guard).unwrap().evaluate(&facts), expect, "{text}");
    };
    for (text, expect) in [
        ("method == 'GET'", True),
        ("method != 'GET'", False),
        ("cookie.lang", True),
        ("cookie.none", False),
        ("not cookie.none", True),
        ("path starts-with '/api/'", True),
        ("path ends-with '.php'", False),
        ("path contains 'v2'", True),
        ("path matches '^/api/v[0-9]+/'", True),
        ("path.1 in ('api', 'web')", True),
        ("path.1 not in ('api', 'web')", False),
        ("client in ('192.0.2.0/24', '::1')", True),
        ("client not in ('10.0.0.0/8')", True),
        ("client == '192.0.2.7'", True),
        ("client != '192.0.2.7'", False),
        ("query.n > 9", True),
        ("query.n <= 9", False),
        ("query.n in (11, 12)", True),
        ("method == 'GET' and host == 'b' or cookie.lang == 'de'", True),
        ("method == 'GET' and (host == 'b' or cookie.lang == 'de')", True),
        ("not (method == 'GET' and host == 'a.example')", False),
        ("all(method == 'GET', host == 'a.example', cookie.lang)", True),
        ("all(method == 'GET', host == 'b')", False),
        ("any(host == 'b', cookie.lang == 'de')", True),
        ("any(host == 'b', host == 'c')", False),
        ("host == 'it''s'", False),
        ("request.header.accept", False),
        ("request.header.Accept == 'text/html'", True),
        // An unknown value decides nothing, unless another operand does.
        ("query.twice == '1'", Unknown),
        ("not query.twice == '1'", Unknown),
        ("query.twice == '1' and host == 'b'", False),
        ("host == 'b' and query.twice == '1'", False),
        ("query.twice == '1' and method == 'GET'", Unknown),
        ("query.twice == '1' or method == 'GET'", True),
        ("query.twice == '1' or host == 'b'", Unknown),
        ("cookie.lang > 5", Unknown),
        ("cookie.lang in ('10.0.0.0/8')", Unknown),
    ] {
        check(text, expect);
    }
}

#[test]
fn a_client_without_an_address_is_in_no_network() {
    let facts = Facts::default();
    let condition = parse_condition("client in ('0.0.0.0/0', '::/0')", Place::Guard).unwrap();
    assert_eq!(condition.evaluate(&facts), Verdict::False);
}

#[test]
fn faults() {
    let check = |text: &str, message: &str, help: &str| {
        let error = parse_condition(text, Place::Guard).unwrap_err();
        let found = error.help.clone().unwrap_or_default();
        assert!(error.message.contains(message) && found.contains(help), "{text}: {error:?}");
        assert!(error.span.end <= text.len() && error.span.start <= error.span.end, "{text}: {error:?}");
    };
    check("", "ends too early", "method");
    check("methd == 'GET'", "`methd` is not a variable", "did you mean `method`?");
    check("method = 'GET'", "unexpected `=`", "write `==`");
    check("method == \"GET\"", "unexpected `\"`", "single quotes");
    check("method == GET", "`GET` is not a variable", "single quotes");
    check("$host == 'a'", "unexpected `$`", "no dollar sign");
    check("{host} == 'a'", "unexpected `{`", "no braces");
    check("host && path", "unexpected `&&`", "write `and`");
    check("host || path", "unexpected `||`", "write `or`");
    check("!host", "unexpected `!`", "write `not`");
    check("path ~ '^/'", "unexpected `~`", "matches");
    check("path matches '('", "not a regular expression", "docs.rs");
    check("path startswith '/a'", "`startswith` is not an operator", "starts-with");
    check("path '/a'", "operator is missing", "operators are");
    check("path ==", "ends too early", "");
    check("host == 'a' host == 'b'", "unexpected `host`", "and");
    check("(host == 'a'", "expected `)`", "");
    check("all(host == 'a'", "expected `)`", "");
    check("host == 'a", "no closing quote", "''");
    check("client in ('example.com')", "not an address", "192.0.2.1");
    check("client == '192.0.2.1/24'", "not an address", "");
    check("request.header.x in ('192.0.2.1', '10.0.0.0/33')", "not an address", "192.0.2.1");
    check("request.header.x in ('10.0.0.1/8')", "not an address", "192.0.2.0/24");
    check("request.header.x in ('10.0.0.0/8', 'example')", "not an address", "192.0.2.1");
    check("client in (10.0.0.0)", "not a number", "single quotes");
    check("status == 404", "no status before the response", "");
    check("user == 'anna'", "before a password", "");
    check("http_user_agent == 'x'", "not a variable", "request.header.user-agent");
    check("remote_addr == 'x'", "not a variable", "write `client`");
    check("path.0 == 'x'", "is not a number of a part of the path", "path.1");
    check("env.TAILCOAT_NONE == 'x'", "no variable `TAILCOAT_NONE`", "");
    check("map. == 'x'", "needs a name", "");
    check(&"not ".repeat(100), "nested too deeply", "");
    check(&("(".repeat(100) + "host"), "nested too deeply", "");
    check(&vec!["host"; 300].join(" or "), "more than 256 tests", "");
    check(&"a".repeat(9000), "more than 8192 bytes", "");
    assert!(parse_condition(&("not ".repeat(31) + "host"), Place::Guard).is_ok());
}

/// Each level keeps three results while it waits for the next: the stack was too small for them.
#[test]
fn the_deepest_condition_is_evaluated() {
    let level = "method == 'none' or method == 'GET' and all(method == 'GET', ";
    let nested = |depth: usize| parse_condition(&(level.repeat(depth) + "host" + &")".repeat(depth)), Place::Guard);
    let deepest = (1..100).take_while(|depth| nested(*depth).is_ok()).last().unwrap();
    assert_eq!(deepest, crate::condition::NESTING_MAX - 1);
    assert_eq!(nested(deepest).unwrap().evaluate(&facts()), Verdict::True);
}

/// A list with an address and a network was compared as texts, so that no client was in it.
#[test]
fn one_network_makes_a_list_of_networks() {
    for (list, expect) in [
        ("('203.0.113.9', '192.0.2.0/24')", Verdict::True),
        ("('192.0.2.0/24', '203.0.113.9')", Verdict::True),
        ("('203.0.113.9', '198.51.100.0/24')", Verdict::False),
    ] {
        let facts = Facts::new(&[("request.header.x", "192.0.2.7"), ("method", "GET")]);
        let condition = parse_condition(&format!("request.header.x in {list}"), Place::Guard).unwrap();
        assert_eq!(condition.evaluate(&facts), expect, "{list}");
    }
}

#[test]
fn values() {
    let facts = facts();
    let read = |text: &str| {
        let value = parse_value(text, Place::Request).unwrap();
        String::from_utf8(value.read(&facts, None).unwrap().into_owned()).unwrap()
    };
    assert_eq!(read(""), "");
    assert_eq!(read("x"), "x");
    assert_eq!(read("{host}{path}"), "a.example/api/v2/users");
    assert_eq!(read("{{{method}}}"), "{GET}");
    assert_eq!(parse_value("{query.twice}", Place::Request).unwrap().read(&facts, None), Err(Unknown));
    for text in ["{", "}", "{}", "{host", "{hots}", "{a b}"] {
        assert!(parse_value(text, Place::Request).is_err(), "{text}");
    }
    let long = "x".repeat(VALUE_BYTES_MAX / 2 + 1);
    let facts = Facts::new(&[("host", &long)]);
    assert!(parse_value("{host}", Place::Request).unwrap().read(&facts, None).is_ok());
    assert_eq!(parse_value("{host}{host}", Place::Request).unwrap().read(&facts, None), Err(Unknown));
}

fn map(name: &str, input: &str, cases: &[(MapPattern, &str)], default: &str) -> Arc<Map> {
    let value = |text: &str| parse_value(text, Place::Guard).unwrap();
    let mut builder = MapBuilder::new(name, value(input));
    for (pattern, text) in cases {
        assert!(builder.case(pattern.clone(), value(text)));
    }
    builder.default(value(default));
    builder.build()
}

#[test]
fn maps() {
    use MapPattern::{Exact, Prefix, Suffix};
    let regex = |text: &str| MapPattern::Regex(Regex::new(text).unwrap());
    let cases = [
        (regex("^/api/v(?<number>[0-9])/"), "api{match.number}{match.1}"),
        (Exact(b"/a".to_vec()), "exact"),
        (Prefix(b"/a".to_vec()), "short"),
        (Prefix(b"/a/b".to_vec()), "long"),
        (Suffix(b".php".to_vec()), "script"),
        (Suffix(b"x.php".to_vec()), "longer {host}"),
    ];
    let kinds = map("kind", "{path}", &cases, "none");
    let outer = map("outer", "{map.kind}", &[(Exact(b"exact".to_vec()), "1")], "{map.kind}!");
    let value = parse_value("{map.outer}", Place::Guard).unwrap();
    let references: Vec<_> = value.references().collect();
    assert_eq!(bind(&[outer, kinds], references.iter()), []);
    for (path, expect) in [
        ("/a", "1"),
        ("/ab", "short!"),
        ("/a/bc", "long!"),
        ("/b.php", "script!"),
        ("/bx.php", "longer h!"),
        ("/api/v2/u", "short!"),
        ("/x/api/v2/u", "none!"),
    ] {
        let facts = Facts::new(&[("path", path), ("host", "h")]);
        let found = value.read(&facts, None).unwrap();
        assert_eq!(String::from_utf8_lossy(&found), expect, "{path}");
    }
    assert!(!value.is_of_operator(), "one of the values has the host");
}

#[test]
fn groups_of_a_map_and_of_a_condition() {
    let regex = MapPattern::Regex(Regex::new("^/u/(?<name>[a-z]+)").unwrap());
    let of_user = map("home", "{path}", &[(regex, "/users/{match.name}")], "");
    let value = parse_value("{map.home}", Place::Guard).unwrap();
    assert_eq!(bind(&[of_user], value.references().collect::<Vec<_>>().iter()), []);
    let facts = Facts::new(&[("path", "/u/anna/x")]);
    assert_eq!(&*value.read(&facts, None).unwrap(), b"/users/anna");
    let condition = parse_condition("host or path matches '^/u/([a-z]+)'", Place::Guard).unwrap();
    let (verdict, groups) = condition.evaluate_with_groups(&facts);
    assert_eq!(verdict, Verdict::True);
    let value = parse_value("{match.1}-{match.2}", Place::Request).unwrap();
    assert_eq!(&*value.read(&facts, Some(&groups)).unwrap(), b"anna-");
}

#[test]
fn maps_that_need_each_other() {
    let names = |faults: Vec<(usize, MapFault)>| format!("{faults:?}");
    let (a, b) = (map("a", "{map.b}", &[], "x"), map("b", "{host}", &[], "{map.a}"));
    assert_eq!(names(bind(&[a, b], [].iter())), "[(0, Cycle([\"a\", \"b\"]))]");
    // Each uses the next one twice.
    let chain: Vec<_> = (0..20)
        .map(|at| map(&format!("m{at}"), &format!("{{map.m{next}}}{{map.m{next}}}", next = at + 1), &[], "x"))
        .collect();
    assert!(names(bind(&chain, [].iter())).contains("Steps"));
}

#[test]
fn equal_expressions_have_equal_maps_and_secrets() {
    let with = |kind: &str, secret: &str| {
        let inner = map("inner", "{host}", &[], kind);
        let outer = map("outer", "{host}", &[], "{map.inner}");
        let condition = parse_condition("map.outer == 'x' and host == secret.key", Place::Guard).unwrap();
        let references: Vec<_> = condition.references().collect();
        assert_eq!(bind(&[outer, inner], references.iter()), []);
        for reference in references {
            if let ExpressionReference::Secret(reference) = reference {
                reference.bind(&Secret::new(secret.as_bytes()));
            }
        }
        condition
    };
    assert_eq!(with("a", "s"), with("a", "s\n"));
    assert_ne!(with("a", "s"), with("b", "s"));
    assert_ne!(with("a", "s"), with("a", "t"));
    assert!(!format!("{:?}", with("a", "s3cret")).contains("s3cret"));
}

#[test]
fn tests_of_borrowed_facts_do_not_allocate() {
    let facts = Facts::new(&[("path", "/api/x"), ("method", "GET")]);
    let text = "method in ('GET', 'HEAD') and path matches '^/api/' and client in ('192.0.2.0/24') and not host";
    let condition = parse_condition(text, Place::Guard).unwrap();
    assert_eq!(condition.evaluate(&facts), Verdict::True);
    // The facts of this test compare names, which allocates; those of requests do not. So only the address is tested.
    let condition = parse_condition("client in ('192.0.2.0/24') and client != '192.0.2.1'", Place::Guard).unwrap();
    let counted = allocation_counter::measure(|| assert!(condition.evaluate(&facts).is_true()));
    assert_eq!(counted.count_total, 0);
}

proptest! {
    #[test]
    fn no_text_panics(text in "[a-z .'()=!<>,0-9{}-]{0,60}") {
        let facts = Facts::default();
        if let Ok(condition) = parse_condition(&text, Place::Response) {
            let _ = condition.evaluate(&facts);
        }
        if let Ok(value) = parse_value(&text, Place::Response) {
            let _ = value.read(&facts, None);
        }
    }

    #[test]
    fn words_in_any_order(words in proptest::collection::vec(prop_oneof![
        Just("not"), Just("and"), Just("or"), Just("("), Just(")"), Just("host"), Just("=="), Just("'a'"), Just("all("),
        Just("any("), Just(","), Just("in"), Just("matches"), Just("5"), Just("<"), Just("query.twice"),
    ], 0..40)) {
        if let Ok(condition) = parse_condition(&words.join(" "), Place::Guard) {
            let _ = condition.evaluate(&facts());
        }
    }
}

#[test]
fn maps_may_ignore_letter_case() {
    let mut builder = MapBuilder::new("kind", parse_value("{path}", Place::Guard).unwrap());
    builder.ignore_case();
    let mut add = |pattern| builder.case(pattern, parse_value("{path}!", Place::Guard).unwrap());
    assert!(add(MapPattern::Exact(b"/Old".to_vec())) && add(MapPattern::Prefix(b"/A/".to_vec())));
    assert!(add(MapPattern::Suffix(b".PHP".to_vec())) && add(MapPattern::Regex(Regex::new("^/r").unwrap())));
    assert!(!add(MapPattern::Exact(b"/oLD".to_vec())), "it is there already");
    builder.default(parse_value("none", Place::Guard).unwrap());
    let map = builder.build();
    let value = parse_value("{map.kind}", Place::Guard).unwrap();
    assert_eq!(bind(&[map], value.references().collect::<Vec<_>>().iter()), []);
    for path in ["/old", "/OLD", "/a/B", "/A/", "/x.php", "/X.Php", "/r1"] {
        let found = value.read(&Facts::new(&[("path", path)]), None).unwrap().into_owned();
        assert_eq!(String::from_utf8(found).unwrap(), format!("{path}!"));
    }
    for path in ["/R1", "/older", "/b/a/"] {
        assert_eq!(*value.read(&Facts::new(&[("path", path)]), None).unwrap(), b"none"[..], "{path}");
    }
}
