//! Index that finds the route of a request, with the precedence of Gateway API.
//!
//! The listener with the most specific host name has a request. Of its matches, the first of this order has it:
//!
//! 1. the most specific host name: exact, then the longest wildcard, then none
//! 2. the path: exact; regular expression, the longest first; prefix, the longest first
//! 3. a match of the method
//! 4. the most header fields
//! 5. the most arguments of the query
//! 6. the oldest route, then that with the least name
//! 7. the first rule, then its first match
//!
//! A search takes steps for each byte of host and path, whatever the number of routes. Matches of the same path, and
//! regular expressions without a fixed start, are tried in order.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

use regex::bytes::Regex;

use crate::text_tree::TextTree;
use crate::{GrpcMatch, Match, PathMatch, ValueMatch, ValueTest};

/// Bytes of a regular expression, at most.
const REGEX_BYTES_MAX: usize = 4 << 10;

/// Memory of a compiled regular expression, at most, in bytes.
const REGEX_MEMORY_MAX: usize = 1 << 20;

/// Request as the index sees it.
pub trait RequestView {
    /// Host in lower case, without port.
    fn host(&self) -> &[u8];
    /// Path after percent-decoding and removal of dot segments.
    fn path(&self) -> &[u8];
    /// Method, as the client sent it.
    fn method(&self) -> &[u8];
    /// Query as it was sent, without `?`; empty if there is none.
    fn query(&self) -> &[u8];
    /// True if the value of a line of this field passes a test.
    fn has_header(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool;
}

/// A match of a route for the index.
#[derive(Clone, Copy, Debug)]
pub struct TableEntry<'a> {
    /// Host name of the listener; `None` is any.
    pub listener: Option<&'a str>,
    /// Host name of the route on this listener; `None` is any. See [`intersection`](crate::intersection).
    pub hostname: Option<&'a str>,
    /// Requests.
    pub of: &'a Match,
    /// Time of the route's creation, and its name.
    pub age: (i64, &'a str),
    /// Positions of the rule in its route and of the match in its rule.
    pub position: (usize, usize),
    /// Value that [`RouteTable::find`] returns.
    pub target: u32,
}

/// Compiled regular expressions, for the next index.
#[derive(Debug, Default)]
pub struct Regexes {
    known: HashMap<String, Regex>,
}

/// Index of the routes of listeners with the same addresses and port.
#[derive(Debug, Default)]
pub struct RouteTable {
    listeners: HostTable<ListenerHosts>,
}

/// Matches of a listener, by host name of their routes.
#[derive(Debug, Default)]
struct ListenerHosts {
    hosts: HostTable<PathTable>,
    /// True if its connections are not for HTTP.
    is_stream: bool,
}

/// Values by host name.
#[derive(Debug)]
pub struct HostTable<T> {
    exact: HashMap<Box<[u8]>, T>,
    /// Values by suffix, with its leading dot.
    suffixes: HashMap<Box<[u8]>, T>,
    any: Option<T>,
}

/// Matches of a host name, by path.
#[derive(Debug, Default)]
struct PathTable {
    tree: TextTree<AtPath>,
    /// True if there is any regular expression.
    has_regexes: bool,
    /// Matches of gRPC methods of any service, in order.
    grpc_methods: Vec<(Regex, Candidate)>,
}

/// Matches of a text of a path, each list in order.
#[derive(Debug, Default)]
struct AtPath {
    exact: Vec<Candidate>,
    /// Prefixes by segment.
    prefix: Vec<Candidate>,
    start: Vec<Candidate>,
    /// Regular expressions that have this fixed start.
    regexes: Vec<(Regex, Candidate)>,
}

/// Conditions of a match in addition to its path.
#[derive(Debug)]
struct Candidate {
    order: Order,
    method: Option<Box<[u8]>>,
    headers: Box<[ValueCondition]>,
    query: Box<[ValueCondition]>,
    target: u32,
}

/// Order among matches of the same kind; the least is tried first.
type Order = (Reverse<usize>, (Reverse<bool>, Reverse<usize>, Reverse<usize>), (i64, Box<str>), (usize, usize));

#[derive(Debug)]
struct ValueCondition {
    name: Box<str>,
    test: CompiledTest,
}

#[derive(Debug)]
enum CompiledTest {
    Exact(Box<[u8]>),
    Regex(Regex),
    Present,
}

impl Regexes {
    /// Regular expression that must match a whole text.
    ///
    /// # Errors
    /// The text is not valid, or too large.
    pub fn whole(&mut self, text: &str) -> Result<Regex, String> {
        if let Some(known) = self.known.get(text) {
            return Ok(known.clone());
        }
        if text.len() > REGEX_BYTES_MAX {
            return Err(format!("the regular expression has more than {REGEX_BYTES_MAX} bytes"));
        }
        // Alone first, so that a stray parenthesis cannot change the meaning of those around it.
        let build = |text: &str| regex::bytes::RegexBuilder::new(text).size_limit(REGEX_MEMORY_MAX).build();
        let invalid = |error| format!("the regular expression {text:?} is not valid: {error}");
        build(text).map_err(invalid)?;
        let regex = build(&format!("^(?:{text})$")).map_err(invalid)?;
        self.known.insert(text.to_owned(), regex.clone());
        Ok(regex)
    }

    /// Number of regular expressions that are kept.
    pub fn count(&self) -> usize {
        self.known.len()
    }
}

impl Match {
    /// Checks that the match can be compiled.
    ///
    /// # Errors
    /// A path does not begin with `/`, a name or method is empty, or a regular expression is not valid.
    pub fn check(&self, regexes: &mut Regexes) -> Result<(), String> {
        match &self.path {
            Some(PathMatch::Exact(path) | PathMatch::Prefix(path) | PathMatch::Start(path))
                if !path.starts_with('/') =>
            {
                return Err(format!("the path {path:?} does not begin with /"));
            }
            Some(PathMatch::Regex(regex)) => drop(regexes.whole(regex)?),
            _ => {}
        }
        if self.method.as_ref().is_some_and(String::is_empty) {
            return Err("the method is empty".to_owned());
        }
        if self.grpc.is_some() && (self.path.is_some() || self.method.is_some()) {
            return Err("a match of a gRPC method excludes those of path and method".to_owned());
        }
        if let Some(GrpcMatch { service, method, is_regex: true }) = &self.grpc {
            for regex in service.iter().chain(method) {
                regexes.whole(regex)?;
            }
        }
        for ValueMatch { name, value } in self.headers.iter().chain(&self.query) {
            if name.is_empty() {
                return Err("the name of a header field or argument is empty".to_owned());
            }
            if let ValueTest::Regex(regex) = value {
                regexes.whole(regex)?;
            }
        }
        Ok(())
    }
}

impl RouteTable {
    /// Builds the index. Listeners without an entry must be in `listeners`, so that they keep others from their
    /// requests.
    ///
    /// # Errors
    /// A match that [`Match::check`] rejects.
    pub fn new<'a>(
        listeners: impl IntoIterator<Item = Option<&'a str>>,
        entries: impl IntoIterator<Item = TableEntry<'a>>,
        regexes: &mut Regexes,
    ) -> Result<Self, String> {
        let mut table = Self::default();
        for hostname in listeners {
            table.listeners.value(hostname);
        }
        for entry in entries {
            let paths = table.listeners.value(entry.listener).hosts.value(entry.hostname);
            paths.add(&entry, regexes)?;
        }
        table.listeners.each(&mut |listener: &mut ListenerHosts| listener.hosts.each(&mut PathTable::sort));
        Ok(table)
    }

    /// Adds a listener of the same addresses and port whose connections are forwarded by the server name of TLS.
    pub fn add_stream_listener(&mut self, hostname: Option<&str>) {
        self.listeners.value(hostname).is_stream = true;
    }

    /// True if connections for this server name are not for HTTP.
    pub fn is_stream(&self, server_name: &[u8]) -> bool {
        self.listeners.all(server_name).next().is_some_and(|listener| listener.is_stream)
    }

    /// True if both hosts belong to the same listener, or neither to any.
    pub fn is_same_listener(&self, one: &[u8], other: &[u8]) -> bool {
        let of = |host| self.listeners.all(host).next().map(std::ptr::from_ref);
        one == other || of(one) == of(other)
    }

    /// Target of the match that has the request; `None` if no match has it.
    pub fn find(&self, request: &impl RequestView) -> Option<u32> {
        let listener = self.listeners.all(request.host()).next()?;
        listener.hosts.all(request.host()).find_map(|paths| paths.find(request))
    }
}

impl<T> Default for HostTable<T> {
    fn default() -> Self {
        Self { exact: HashMap::new(), suffixes: HashMap::new(), any: None }
    }
}

impl<T: Default> HostTable<T> {
    /// Value of a host name, which is made if there is none.
    pub fn value(&mut self, hostname: Option<&str>) -> &mut T {
        match hostname.map(|name| (name, name.strip_prefix('*'))) {
            None => self.any.get_or_insert_default(),
            Some((_, Some(suffix))) => self.suffixes.entry(suffix.as_bytes().into()).or_default(),
            Some((name, None)) => self.exact.entry(name.as_bytes().into()).or_default(),
        }
    }
}

impl<T> HostTable<T> {
    /// Values whose names match a host, the most specific first.
    pub fn all<'a>(&'a self, host: &'a [u8]) -> impl Iterator<Item = &'a T> {
        let dots = host.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'.').map(|(at, _)| at);
        let dots = dots.take(if self.suffixes.is_empty() { 0 } else { usize::MAX });
        let suffixes = dots.filter_map(|at| self.suffixes.get(&host[at..]));
        self.exact.get(host).into_iter().chain(suffixes).chain(&self.any)
    }

    fn each(&mut self, change: &mut impl FnMut(&mut T)) {
        self.exact.values_mut().chain(self.suffixes.values_mut()).chain(&mut self.any).for_each(change);
    }
}

impl PathTable {
    fn add(&mut self, entry: &TableEntry<'_>, regexes: &mut Regexes) -> Result<(), String> {
        entry.of.check(regexes)?;
        let (path, is_grpc_method) = path_of(entry.of);
        let length = match path.as_ref() {
            PathMatch::Regex(regex) => regex.len(),
            _ => 0,
        };
        let candidate = Candidate::new(entry, length, regexes)?;
        match path.as_ref() {
            PathMatch::Exact(path) => self.tree.value(path.as_bytes()).exact.push(candidate),
            PathMatch::Prefix(path) => {
                self.tree.value(path.trim_end_matches('/').as_bytes()).prefix.push(candidate);
            }
            PathMatch::Start(path) => self.tree.value(path.as_bytes()).start.push(candidate),
            PathMatch::Regex(regex) if is_grpc_method => {
                self.grpc_methods.push((regexes.whole(regex)?, candidate));
            }
            PathMatch::Regex(regex) => {
                self.has_regexes = true;
                self.tree.value(fixed_start(regex).as_bytes()).regexes.push((regexes.whole(regex)?, candidate));
            }
        }
        Ok(())
    }

    fn sort(&mut self) {
        for at in self.tree.values_mut() {
            for list in [&mut at.exact, &mut at.prefix, &mut at.start] {
                list.sort_by(|one, other| one.order.cmp(&other.order));
            }
            at.regexes.sort_by(|(_, one), (_, other)| one.order.cmp(&other.order));
        }
        self.grpc_methods.sort_by(|(_, one), (_, other)| one.order.cmp(&other.order));
    }

    fn find(&self, request: &impl RequestView) -> Option<u32> {
        let path = request.path();
        let deepest = self.tree.deepest(path, |_| {});
        let fits = |list: &[Candidate]| list.iter().find(|candidate| candidate.fits(request)).map(|found| found.target);
        if let Some((depth, node)) = self.tree.up(deepest).next()
            && depth == path.len()
            && let Some(target) = fits(&node.value.exact)
        {
            return Some(target);
        }
        if self.has_regexes {
            let nodes = self.tree.up(deepest).map(|(_, node)| &node.value.regexes);
            let found =
                nodes.filter_map(|list| first_regex(list, request)).min_by(|one, other| one.order.cmp(&other.order));
            if let Some(found) = found {
                return Some(found.target);
            }
        }
        let mut is_grpc_next = !self.grpc_methods.is_empty();
        for (depth, node) in self.tree.up(deepest) {
            // A method of any service comes before what takes all paths.
            if depth == 0 && is_grpc_next {
                is_grpc_next = false;
                if let Some(found) = first_regex(&self.grpc_methods, request) {
                    return Some(found.target);
                }
            }
            let is_segment = path.len() == depth || path[depth] == b'/';
            let of_prefix = if is_segment { fits(&node.value.prefix) } else { None };
            if let Some(target) = of_prefix.or_else(|| fits(&node.value.start)) {
                return Some(target);
            }
        }
        None
    }
}

/// First regular expression of the list that has the request.
fn first_regex<'a>(list: &'a [(Regex, Candidate)], request: &impl RequestView) -> Option<&'a Candidate> {
    list.iter().find(|(regex, of)| regex.is_match(request.path()) && of.fits(request)).map(|(_, of)| of)
}

/// Path of a match, and true for that of a gRPC method of any service.
fn path_of(of: &Match) -> (Cow<'_, PathMatch>, bool) {
    let Some(grpc) = &of.grpc else {
        let any = || Cow::Owned(PathMatch::Prefix("/".to_owned()));
        return (of.path.as_ref().map_or_else(any, Cow::Borrowed), false);
    };
    let path = match (grpc.service.as_deref(), grpc.method.as_deref(), grpc.is_regex) {
        (None, None, _) => PathMatch::Prefix("/".to_owned()),
        (Some(service), None, false) => PathMatch::Prefix(format!("/{service}")),
        (Some(service), Some(method), false) => PathMatch::Exact(format!("/{service}/{method}")),
        (None, Some(method), false) => PathMatch::Regex(format!("/[^/]+/{}", regex::escape(method))),
        (service, method, true) => {
            PathMatch::Regex(format!("/(?:{})/(?:{})", service.unwrap_or("[^/]+"), method.unwrap_or("[^/]+")))
        }
    };
    (Cow::Owned(path), grpc.service.is_none() && grpc.method.is_some())
}

impl Candidate {
    fn new(entry: &TableEntry<'_>, length: usize, regexes: &mut Regexes) -> Result<Self, String> {
        let Match { method, headers, query, .. } = entry.of;
        let mut conditions = |list: &[ValueMatch]| list.iter().map(|of| ValueCondition::new(of, regexes)).collect();
        let headers: Box<[_]> = Result::<_, String>::map(conditions(headers), Vec::into_boxed_slice)?;
        let query: Box<[_]> = Result::<_, String>::map(conditions(query), Vec::into_boxed_slice)?;
        let counts = (Reverse(method.is_some()), Reverse(headers.len()), Reverse(query.len()));
        let (created, name) = entry.age;
        Ok(Self {
            order: (Reverse(length), counts, (created, name.into()), entry.position),
            method: method.as_ref().map(|method| method.as_bytes().into()),
            headers,
            query,
            target: entry.target,
        })
    }

    #[inline]
    fn fits(&self, request: &impl RequestView) -> bool {
        self.method.as_ref().is_none_or(|method| **method == *request.method())
            && self.headers.iter().all(|of| request.has_header(&of.name, &mut |value| of.test.passes(value)))
            && self.query.iter().all(|of| of.test.passes_argument(&of.name, request.query()))
    }
}

impl ValueCondition {
    fn new(of: &ValueMatch, regexes: &mut Regexes) -> Result<Self, String> {
        let test = match &of.value {
            ValueTest::Exact(value) => CompiledTest::Exact(value.as_bytes().into()),
            ValueTest::Regex(regex) => CompiledTest::Regex(regexes.whole(regex)?),
            ValueTest::Present => CompiledTest::Present,
        };
        Ok(Self { name: of.name.as_str().into(), test })
    }
}

impl CompiledTest {
    fn passes(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(exact) => **exact == *value,
            Self::Regex(regex) => regex.is_match(value),
            Self::Present => true,
        }
    }

    /// Tests the first argument of this name.
    fn passes_argument(&self, name: &str, query: &[u8]) -> bool {
        let arguments = query.split(|byte| *byte == b'&').filter(|argument| !argument.is_empty());
        let mut parts = arguments.map(|argument| {
            let end = argument.iter().position(|byte| *byte == b'=').unwrap_or(argument.len());
            (&argument[..end], argument.get(end + 1..).unwrap_or_default())
        });
        let found = parts.find(|(of, _)| *decoded(of) == *name.as_bytes());
        found.is_some_and(|(_, value)| self.passes(&decoded(value)))
    }
}

/// Text of an argument: `+` is a space, `%` and two hexadecimal digits a byte.
fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(text);
    }
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let (mut bytes, mut at) = (Vec::with_capacity(text.len()), 0);
    while at < text.len() {
        match (text[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                at += 2;
            }
            (b'+', ..) => bytes.push(b' '),
            (byte, ..) => bytes.push(byte),
        }
        at += 1;
    }
    Cow::Owned(bytes)
}

/// Text that each match of a whole regular expression begins with.
fn fixed_start(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    // An alternative may begin otherwise, and flags change the meaning of what follows.
    if regex.contains('|') || regex.contains("(?") || regex.contains('#') {
        return "";
    }
    let is_special = |byte: u8| b"\\.+*?()[]{}^$ \t\n\r".contains(&byte);
    let end = regex.bytes().position(is_special).unwrap_or(regex.len());
    // A repetition may make the last character optional, which may have several bytes.
    match regex.as_bytes().get(end) {
        Some(b'*' | b'?' | b'{') => regex[..end].char_indices().next_back().map_or("", |(at, _)| &regex[..at]),
        _ => &regex[..end],
    }
}

#[cfg(test)]
mod tests;
