//! `if`: what conditions of `redirect` and `rewrite` say, too.

use super::matching::expression;
use super::rewrite::{is_redirect, redirect, rewrite};
use super::syntax::NginxDirective;
use super::values;
use crate::kdl::KdlNode;
use crate::pattern::quoted;

/// Action of a condition: one line for each way in which the condition may hold.
pub(super) enum ConditionalAction {
    /// Redirects or rewrites; none if they never apply.
    Redirect(Vec<KdlNode>),
    /// Response without content: its status, and rewrites to it.
    Answer(u16, Vec<KdlNode>),
    /// Rejections.
    Deny(Vec<KdlNode>),
}

/// A property of `redirect` and `rewrite` that says when one applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PropertyTest {
    Field(String),
    Query(String),
    Method(String),
    /// A condition of the expression language.
    When(String),
    /// No handler has the path.
    Missing,
}

impl PropertyTest {
    pub(super) fn on(&self, node: KdlNode) -> KdlNode {
        match self {
            Self::Field(field) => node.property("field", field),
            Self::Query(query) => node.property("query", query),
            Self::Method(method) => node.property("method", method),
            Self::When(when) => node.property("when", when),
            Self::Missing => node.word_property("missing", "on"),
        }
    }
}

/// Path of a response that is only a status: no site has it, and no rule matches it.
pub(super) fn answer_path(status: u16) -> String {
    format!("/-/{status}")
}

/// Rejects all clients for paths, on a condition.
pub(super) fn deny(status: u16, pattern: Option<&str>, test: &PropertyTest) -> KdlNode {
    let node =
        pattern.into_iter().fold(KdlNode::new("deny").word("all"), |node, pattern| node.property("path", pattern));
    let node = test.on(node);
    if status == 403 { node } else { node.word_property("status", status) }
}

/// Rewrite to the response with this status.
fn answer(status: u16, pattern: Option<&str>, test: &PropertyTest) -> KdlNode {
    test.on(KdlNode::with("rewrite", pattern.unwrap_or("*")).text(answer_path(status)))
}

/// Translates an `if` block.
///
/// # Errors
///
/// The reason why it cannot be translated.
pub(super) fn translate(directive: &NginxDirective, pattern: Option<&str>) -> Result<ConditionalAction, String> {
    let unknown = || "there is no `if`; conditions are properties of `redirect` and `rewrite`".to_owned();
    if let Some(single) = rewrites(directive) {
        let mut nodes = Vec::new();
        for one in single {
            match translate(&one, pattern)? {
                ConditionalAction::Redirect(found) => nodes.extend(found),
                _ => return Err(unknown()),
            }
        }
        return Ok(ConditionalAction::Redirect(nodes));
    }
    let action = action(directive.children()).ok_or_else(unknown)?;
    let [subject, operator, value] = parts(directive);
    let (subject, operator, value) = (subject.as_str(), operator.as_str(), value.as_str());
    if let Some(node) = redirect_by_groups(action, subject, (operator, value), pattern) {
        return Ok(ConditionalAction::Redirect(vec![node]));
    }
    let is_to_tls = matches!(
        (subject, operator, value),
        ("$scheme", "=", "http") | ("$scheme", "!=", "https") | ("$https", "=", "") | ("$https", "!=", "on")
    );
    if is_to_tls && redirect(action, "*").is_some() {
        return Ok(ConditionalAction::Redirect(vec![KdlNode::new("redirect-to-https")]));
    }
    // Files are chosen by rewrites, too, of which little harm comes.
    let is_strict = is_guard(directive) && (action.name == "return" || subject == "$http_authorization");
    let tests = match is_strict {
        true => tests_of_guard(subject, operator, value)?,
        false => tests(subject, operator, value)?,
    };
    if tests.is_empty() || (tests.contains(&PropertyTest::Missing) && action.name != "rewrite") {
        return Err(unknown());
    }
    if action.name == "rewrite" {
        let nodes = tests.iter().map(|test| rewrite(action, pattern, Some(test)));
        return Ok(ConditionalAction::Redirect(nodes.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect()));
    }
    if let Some(node) = redirect(action, pattern.unwrap_or("*")) {
        return node.map(|node| ConditionalAction::Redirect(tests.iter().map(|test| test.on(node.clone())).collect()));
    }
    let denied = |status| Ok(ConditionalAction::Deny(tests.iter().map(|test| deny(status, pattern, test)).collect()));
    match (action.first().parse(), action.argument(1)) {
        // A request is always answered.
        (Ok(444), _) => denied(403),
        // The text of an error response is not needed.
        (Ok(status @ 400..=599), _) => denied(status),
        (Ok(status @ 200..=299), "") => {
            Ok(ConditionalAction::Answer(status, tests.iter().map(|test| answer(status, pattern, test)).collect()))
        }
        _ => Err(unknown()),
    }
}

/// The redirect, rewrite or response of a block that does nothing else of importance.
fn action(block: &[NginxDirective]) -> Option<&NginxDirective> {
    let is_aside = |child: &&NginxDirective| matches!(child.name.as_str(), "break" | "access_log" | "log_not_found");
    let mut actions = block.iter().filter(|child| !is_aside(child));
    let action = actions.next().filter(|action| matches!(action.name.as_str(), "return" | "rewrite"))?;
    actions.next().is_none().then_some(action)
}

/// Redirect whose target has groups of the requested path: `if ($request_uri ~ "^(.*)/index\.php(.*)") { return 301 $1$2; }`.
fn redirect_by_groups(
    action: &NginxDirective,
    subject: &str,
    (operator, value): (&str, &str),
    pattern: Option<&str>,
) -> Option<KdlNode> {
    let is_of_path = matches!(subject, "$request_uri" | "$uri") && matches!(operator, "~" | "~*");
    let has_group = (1..10).any(|group| action.argument(1).contains(&format!("${group}")));
    if !is_of_path || !has_group || pattern.is_some() || value.contains("\\?") || action.name != "return" {
        return None;
    }
    let pattern = format!("~{}", expression(value, operator == "~*").ok()?);
    let mut node = redirect(action, &pattern)?.ok()?;
    if subject == "$request_uri" && !value.ends_with('$') {
        node = node.with_last_value(|target| {
            let mut target = target.to_owned();
            values::push_query(&mut target);
            target
        });
    }
    // A group mostly begins with a slash; of two at the start one is taken away.
    Some(node.with_last_value(|target| if target.starts_with('{') { format!("/{target}") } else { target.to_owned() }))
}

/// Several rewrites of missing paths, of which the first that fits is applied: an `if` for each.
fn rewrites(directive: &NginxDirective) -> Option<Vec<NginxDirective>> {
    let block = directive.children();
    let ends = |child: &NginxDirective| {
        child.name == "rewrite" && matches!(child.argument(2), "last" | "permanent" | "redirect")
    };
    let is_list = block.len() > 1 && block.iter().all(ends) && is_of_missing(directive);
    let single = |child: &NginxDirective| NginxDirective { block: Some(vec![child.clone()]), ..directive.clone() };
    is_list.then(|| block.iter().map(single).collect())
}

/// Returns `true` if an `if` guards something: it rejects clients, or redirects those without some credential.
pub(super) fn is_guard(directive: &NginxDirective) -> bool {
    let [subject, operator, value] = parts(directive);
    let is_about_client = ["$cookie_", "$http_authorization", "$remote_", "$ssl_client_", "$invalid_referer"]
        .iter()
        .any(|variable| subject.trim_start_matches('!').starts_with(variable));
    // The value that is compared with a variable may be a secret.
    let is_about_client = is_about_client || (matches!(operator.as_str(), "=" | "!=") && value.contains('$'));
    directive.children().iter().any(|child| match child.name.as_str() {
        "return" => is_about_client || matches!(child.first().parse(), Ok(400u16..)),
        "rewrite" => is_about_client || (!is_redirect(child) && !is_of_missing(directive)),
        "if" => is_guard(child),
        _ => false,
    })
}

/// Returns `true` if an `if` tests the requested path.
pub(super) fn is_of_path(directive: &NginxDirective) -> bool {
    let variables = ["$uri", "$document_uri", "$fastcgi_script_name", "$request_filename"];
    directive.arguments.iter().any(|word| variables.iter().any(|variable| word.contains(variable)))
}

/// Returns `true` if an `if` matches paths that do not exist.
pub(super) fn is_of_missing(directive: &NginxDirective) -> bool {
    directive.name == "if" && parts(directive)[0].starts_with("!-")
}

/// Returns `true` if an `if` rejects paths that do not exist.
pub(super) fn rejects_missing(directive: &NginxDirective) -> bool {
    const OWN_FILE: [&str; 4] = [
        "$request_filename",
        "$document_root$fastcgi_script_name",
        "$realpath_root$fastcgi_script_name",
        "$document_root$uri",
    ];
    let rejects = |action: &NginxDirective| action.name == "return" && matches!(action.first(), "403" | "404" | "410");
    is_of_missing(directive)
        && OWN_FILE.contains(&parts(directive)[1].as_str())
        && action(directive.children()).is_some_and(rejects)
}

/// Subject, operator and value of a condition.
pub(super) fn parts(directive: &NginxDirective) -> [String; 3] {
    let words = directive.arguments.join(" ");
    let words = words.trim();
    let words = words.strip_prefix('(').unwrap_or(words);
    let words = words.strip_suffix(')').unwrap_or(words).trim();
    let mut parts = words.splitn(3, ' ').map(|part| part.trim_matches('"').trim_matches('\'').to_owned());
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// The tests of which one holds if a condition does; none if there is none like it.
fn tests(subject: &str, operator: &str, value: &str) -> Result<Vec<PropertyTest>, String> {
    let test = match test(subject, operator, value)? {
        Some(test) => Some(test),
        None => when(subject, operator, value)?.map(PropertyTest::When),
    };
    let mut tests: Vec<PropertyTest> = test.into_iter().collect();
    if let Some(name) = subject.strip_prefix("$http_")
        && matches!(operator, "~" | "~*")
        && regex::Regex::new(value).is_ok_and(|expression| expression.is_match(""))
    {
        // A field that is not there is an empty text to nginx.
        tests.extend(test_of_field(name, "=", ""));
    }
    Ok(tests)
}

/// Tests of a guard, which hold at least where those of nginx hold. If a field or argument is repeated, nginx uses the
/// first and this server any of them. Fields that nginx joins count as a whole.
fn tests_of_guard(subject: &str, operator: &str, value: &str) -> Result<Vec<PropertyTest>, String> {
    let of_several = || "it is unclear which of several fields or arguments of this name counts".to_owned();
    let not_equal = |end: &str| other_than(value, end).ok_or_else(of_several);
    if let Some(name) = subject.strip_prefix("$http_") {
        let field = name.replace('_', "-");
        return match operator {
            "=" if value.is_empty() => {
                Ok(vec![PropertyTest::Field(format!("!{field}: ~.")), PropertyTest::Field(format!("{field}: ~^$"))])
            }
            "!=" if !value.is_empty() && matches!(name, "cookie" | "x_forwarded_for") => Err(of_several()),
            "!=" if !value.is_empty() && !value.contains('$') => {
                let other = not_equal("")?;
                Ok(vec![PropertyTest::Field(format!("!{field}")), PropertyTest::Field(format!("{field}: ~^{other}"))])
            }
            // A match in one of them is a match in the whole, unless the expression is anchored.
            "!~" | "!~*" if name != "cookie" || value.contains(['^', '$', '\\']) => Err(of_several()),
            _ => tests(subject, operator, value),
        };
    }
    if let Some(name) = subject.strip_prefix("$arg_") {
        let name = format!("(?:^|&)(?i:{})=", regex::escape(name));
        let query = |text: String| PropertyTest::Query(text);
        return match operator {
            "" => Ok(vec![query(format!("~{name}[^&]"))]),
            "=" if is_argument(value) => Ok(vec![query(format!("~{name}{}(?:&|$)", regex::escape(value)))]),
            "!=" if is_argument(value) => {
                let other = not_equal("&")?;
                Ok(vec![query(format!("!~{name}")), query(format!("~{name}{other}"))])
            }
            _ => Ok(Vec::new()),
        };
    }
    tests(subject, operator, value)
}

/// Returns `true` if an argument can have this literal value.
fn is_argument(value: &str) -> bool {
    !value.is_empty() && !value.contains(['$', '&'])
}

/// An expression of all texts but this one, which end here or before one of these characters; nothing if it would be too long.
fn other_than(value: &str, ends: &str) -> Option<String> {
    const LENGTH_MAX: usize = 100;
    let is_plain = |letter: char| letter.is_ascii_graphic() || letter == ' ';
    let end = if ends.is_empty() { "$".to_owned() } else { format!("[{ends}]|$") };
    let none_of = |letter: &str| format!("[^{letter}{ends}]");
    (value.len() <= LENGTH_MAX && value.chars().all(is_plain)).then(|| {
        let letters = value.chars().rev().map(|letter| regex::escape(&letter.to_string()));
        letters.fold(if ends.is_empty() { ".".to_owned() } else { format!("[^{ends}]") }, |rest, letter| {
            format!("(?:{end}|{}|{letter}{rest})", none_of(&letter))
        })
    })
}

/// The test that a condition is; nothing if there is none like it.
fn test(subject: &str, operator: &str, value: &str) -> Result<Option<PropertyTest>, String> {
    if matches!(subject, "!-e" | "!-f" | "!-d") {
        return Ok((operator == "$request_filename").then_some(PropertyTest::Missing));
    }
    let not = if operator.starts_with('!') { "!" } else { "" };
    let ignores_case = operator.ends_with('*');
    if subject == "$request_method" {
        return Ok(methods(operator, value).map(|methods| PropertyTest::Method(format!("{not}{methods}"))));
    }
    let is_expression = operator.contains('~');
    if !is_expression && value.contains('$') {
        return Ok(None);
    }
    let value = if is_expression { expression(value, ignores_case)? } else { value.to_owned() };
    if let Some(name) = subject.strip_prefix("$http_") {
        return Ok(test_of_field(name, operator, &value));
    }
    if let Some(name) = subject.strip_prefix("$arg_") {
        return Ok(match operator {
            "" => Some(PropertyTest::Query(name.to_owned())),
            "=" | "!=" if !value.is_empty() => Some(PropertyTest::Query(format!("{not}{name}={value}"))),
            _ => None,
        });
    }
    if matches!(subject, "$args" | "$query_string") {
        return Ok(match operator {
            "" => Some(PropertyTest::Query("~.".to_owned())),
            _ if is_expression => Some(PropertyTest::Query(format!("{not}~{value}"))),
            _ => None,
        });
    }
    Ok(None)
}

/// The condition as the expression language says it; nothing if it has no such variable.
fn when(subject: &str, operator: &str, value: &str) -> Result<Option<String>, String> {
    let name = subject.strip_prefix("${").and_then(|name| name.strip_suffix('}')).or(subject.strip_prefix('$'));
    let is_constant = operator.contains('~') || !value.contains('$');
    let Some(name) = name.and_then(values::expression_name).filter(|_| is_constant) else { return Ok(None) };
    Ok(Some(match operator {
        "" => format!("{name} not in ('', '0')"),
        "=" => format!("{name} == {}", quoted(value)),
        "!=" => format!("{name} != {}", quoted(value)),
        _ => {
            let matches = format!("{name} matches {}", quoted(&expression(value, operator.ends_with('*'))?));
            if operator.starts_with('!') { format!("not {matches}") } else { matches }
        }
    }))
}

/// The test of a field, by the name that its variable has.
fn test_of_field(name: &str, operator: &str, value: &str) -> Option<PropertyTest> {
    let field = name.replace('_', "-");
    let not = if operator.starts_with('!') { "!" } else { "" };
    Some(PropertyTest::Field(match operator {
        "" => field,
        // A field without a value is like none.
        "=" if value.is_empty() => format!("!{field}: ~."),
        "!=" if value.is_empty() => format!("{field}: ~."),
        "=" | "!=" => format!("{not}{field}: {value}"),
        _ if operator.contains('~') => format!("{not}{field}: ~{value}"),
        _ => return None,
    }))
}

/// Methods that are in the name of no other.
const METHODS: [&str; 13] = [
    "CONNECT", "COPY", "DELETE", "GET", "HEAD", "MKCOL", "MOVE", "OPTIONS", "PATCH", "POST", "PROPFIND", "PUT", "TRACE",
];

/// `GET HEAD` of `^(GET|HEAD)$`.
fn methods(operator: &str, value: &str) -> Option<String> {
    let (value, is_whole) = match operator {
        "=" | "!=" => (value, true),
        "~" | "!~" | "~*" | "!~*" => {
            let begun = value.strip_prefix('^');
            let ended = begun.unwrap_or(value).strip_suffix('$');
            let inner = ended.or(begun).unwrap_or(value);
            let group = inner.strip_prefix('(').and_then(|inner| inner.strip_suffix(')'));
            // `^A|B$` is what begins with one or ends with the other.
            let is_whole = begun.is_some() && ended.is_some() && (group.is_some() || !inner.contains('|'));
            (group.unwrap_or(inner), is_whole)
        }
        _ => return None,
    };
    let is_name = |word: &str| !word.is_empty() && word.chars().all(|letter| letter.is_ascii_uppercase());
    // A part of a name is that of several.
    let is_method = |word: &str| is_name(word) && (is_whole || METHODS.contains(&word));
    let words: Vec<&str> = value.split('|').collect();
    words.iter().all(|word| is_method(word)).then(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nginx::tests::site;

    #[test]
    fn conditions_are_properties() {
        let check = |subject: &str, operator: &str, value: &str, expect: Option<PropertyTest>| {
            assert_eq!(test(subject, operator, value).unwrap(), expect, "{subject} {operator} {value}");
        };
        let field = |text: &str| Some(PropertyTest::Field(text.to_owned()));
        let query = |text: &str| Some(PropertyTest::Query(text.to_owned()));
        let method = |text: &str| Some(PropertyTest::Method(text.to_owned()));
        check("$http_user_agent", "~*", "bot", field("user-agent: ~(?i)bot"));
        check("$http_x_key", "!=", "a", field("!x-key: a"));
        check("$http_x_key", "", "", field("x-key"));
        check("$http_x_key", "=", "", field("!x-key: ~."));
        check("$http_x_key", "!=", "", field("x-key: ~."));
        check("$arg_a", "=", "1", query("a=1"));
        check("$args", "!~", "x", query("!~x"));
        check("$request_method", "=", "POST", method("POST"));
        check("$request_method", "!~", "^(GET|HEAD)$", method("!GET HEAD"));
        check("$request_method", "~", "P.*", None);
        check("$request_method", "~", "^P", None);
        check("$request_method", "!~", "LOCK", None);
        check("$request_method", "~", "^LOCK$", method("LOCK"));
        check("$request_method", "~", "(PUT|DELETE)", method("PUT DELETE"));
        check("$http_x_key", "!=", "$expected", None);
        check("$http_x_key", "~", "^a$", field("x-key: ~^a$"));
        check("!-f", "$request_filename", "", Some(PropertyTest::Missing));
        check("$cookie_a", "=", "1", None);
        check("$own", "", "", None);
        assert!(test("$args", "~", "(?=a)").is_err());
    }

    #[test]
    fn a_field_that_is_not_there_is_an_empty_text() {
        let check = |subject: &str, operator: &str, value: &str, expect: &[&str]| {
            let expect: Vec<PropertyTest> = expect.iter().map(|text| PropertyTest::Field((*text).to_owned())).collect();
            assert_eq!(tests(subject, operator, value).unwrap(), expect, "{subject} {operator} {value}");
        };
        check("$http_user_agent", "~*", "bot|^$", &["user-agent: ~(?i)bot|^$", "!user-agent: ~."]);
        check("$http_x", "~", "^$", &["x: ~^$", "!x: ~."]);
        check("$http_x", "~", "a*", &["x: ~a*", "!x: ~."]);
        check("$http_x", "~", "a", &["x: ~a"]);
    }

    #[test]
    fn guards_hold_for_each_of_several() {
        let check = |subject: &str, operator: &str, value: &str, expect: &[&str]| {
            let found = tests_of_guard(subject, operator, value).unwrap_or_default();
            let found: Vec<String> = found.into_iter().map(|test| format!("{test:?}")).collect();
            let kind = if subject.starts_with("$arg_") { "Query" } else { "Field" };
            let expect: Vec<String> = expect.iter().map(|text| format!("{kind}({text:?})")).collect();
            assert_eq!(found, expect, "{subject} {operator} {value}");
        };
        check("$http_x", "=", "a", &["x: a"]);
        check("$http_x", "=", "", &["!x: ~.", "x: ~^$"]);
        check("$http_x", "!=", "", &["x: ~."]);
        check("$http_x", "!=", "a.", &["!x", r"x: ~^(?:$|[^a]|a(?:$|[^\.]|\..))"]);
        check("$http_x", "!~", "a", &[]);
        check("$http_cookie", "!~", "a=1", &["!cookie: ~a=1"]);
        check("$http_cookie", "!~", "^a=1", &[]);
        check("$arg_a", "", "", &["~(?:^|&)(?i:a)=[^&]"]);
        check("$arg_a", "=", "1", &["~(?:^|&)(?i:a)=1(?:&|$)"]);
        check("$arg_a", "!=", "1", &["!~(?:^|&)(?i:a)=", "~(?:^|&)(?i:a)=(?:[&]|$|[^1&]|1[^&])"]);
        check("$arg_a", "!=", "1&b=2", &[]);
        check("$arg_a", "~", "1", &[]);
    }

    #[test]
    fn other_texts_are_all_but_one() {
        let other = regex::bytes::Regex::new(&format!("^{}", other_than("a[-^]", "").unwrap())).unwrap();
        for text in ["", "a", "a[-", "a[-^", "a[-^]]", "a[-^] ", "b", "A[-^]", "ba[-^]"] {
            assert!(other.is_match(text.as_bytes()), "{text}");
        }
        assert!(!other.is_match(b"a[-^]"));
        assert_eq!(other_than("\u{e4}", ""), None);
        assert_eq!(other_than(&"a".repeat(101), ""), None);
    }

    /// Issue 23: requests for other hosts were redirected, too, as Certbot's condition does not.
    #[test]
    fn redirects_to_tls_have_the_condition_of_certbot() {
        let (lines, _) = site("if ($host = a.b) { return 301 https://$host$request_uri; } return 404;");
        assert!(
            lines.contains("redirect \"*\" \"https://{host}{path}{query}\" status=301 when=\"host == 'a.b'\""),
            "{lines}"
        );
        for condition in ["$https = ''", "$https != on", "$scheme = http"] {
            let (lines, _) = site(&format!("if ({condition}) {{ return 301 https://$host$request_uri; }}"));
            assert!(lines.contains("redirect-to-https"), "{lines}");
        }
    }
}
