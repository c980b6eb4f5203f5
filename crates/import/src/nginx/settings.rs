//! Directives that `http`, `server` and `location` may contain: fields, logs, rules, and options of files.

use std::collections::BTreeSet;

use super::Notes;
use super::condition::ConditionalAction;
use super::http::HttpBlock;
use super::syntax::NginxDirective;
use super::upstream::{keep_first, set};
use super::values::{self, Within, duration, size, time};
use super::{added_fields, condition, guard, leading, needless, rewrite};
use crate::kdl::KdlNode;

/// Reasons for which an access log is not written.
const SAME_LOG: &str = "the same access log is given twice";
const LOG_OF_SITE: &str = "an access log applies to all paths of a site";

/// Block of a directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DirectiveLevel {
    Http,
    Server,
    Location {
        /// The paths it is for; `None` is all.
        pattern: Option<String>,
        /// True if an upstream answers there.
        is_forwarded: bool,
    },
}

impl DirectiveLevel {
    pub(super) fn pattern(&self) -> Option<&str> {
        match self {
            Self::Location { pattern, .. } => pattern.as_deref(),
            Self::Http | Self::Server => None,
        }
    }

    fn is_forwarded(&self) -> bool {
        matches!(self, Self::Location { is_forwarded: true, .. })
    }
}

/// A directive's block, and definitions to which the directive may refer.
#[derive(Clone, Copy)]
pub(super) struct DirectiveContext<'a> {
    pub(super) level: &'a DirectiveLevel,
    pub(super) shared: &'a HttpBlock,
}

/// Rules for a path, in lists that differ in which of several lines counts.
#[derive(Default)]
pub(super) struct ImportedRules {
    /// Rejections in place of guards that cannot be translated. They go before all other guards.
    pub(super) closed: Vec<KdlNode>,
    /// Rewrites to fixed responses. They go before all others.
    pub(super) fixed: Vec<KdlNode>,
    /// The statuses of these answers.
    pub(super) answers: BTreeSet<u16>,
    /// The first that fits decides: addresses, passwords, limits.
    pub(super) guards: Vec<KdlNode>,
    /// The first that fits is applied: redirects and rewrites.
    pub(super) redirects: Vec<KdlNode>,
    /// A later one goes before an earlier one: fields.
    pub(super) fields: Vec<KdlNode>,
    /// Options of files. For a path, they go into a block `files`.
    pub(super) files: Vec<KdlNode>,
    /// The access log of all paths.
    pub(super) access_log: Option<ImportedAccessLog>,
    /// Error pages, and paths that are not logged, which only a site has.
    pub(super) others: Vec<KdlNode>,
}

/// An access log, and the directive that it is the translation of.
pub(super) struct ImportedAccessLog {
    pub(super) node: KdlNode,
    directive: NginxDirective,
}

impl ImportedAccessLog {
    fn is_off(&self) -> bool {
        self.directive.first() == "off"
    }
}

impl ImportedRules {
    /// All lines.
    pub(super) fn into_nodes(mut self) -> Vec<KdlNode> {
        keep_first(&mut self.redirects, "redirect-to-https");
        let log = self.access_log.map(|log| log.node).into_iter().collect();
        [self.files, self.closed, self.guards, self.redirects, self.fields, log, self.others].concat()
    }

    /// Adds an access log of a block. A site has one: the first, unless `access_log off` turns off all logs of the block.
    pub(super) fn add_access_log(&mut self, log: ImportedAccessLog, notes: &mut Notes) {
        let (kept, other) = match self.access_log.take() {
            Some(first) if log.is_off() && !first.is_off() => (log, Some(first)),
            Some(first) => (first, Some(log)),
            None => (log, None),
        };
        if let Some(other) = other {
            if kept.node == other.node {
                notes.needless(&other.directive, SAME_LOG);
            } else if kept.is_off() {
                notes.needless(&other.directive, "`access_log off` turns off all logs of its block");
            } else {
                notes.left(&other.directive, "a site has one access log, which another `access_log` sets");
            }
        }
        self.access_log = Some(kept);
    }

    /// Adds the access log of the location that has all paths. The site's own log goes before it.
    pub(super) fn add_inner_access_log(&mut self, log: Option<ImportedAccessLog>, notes: &mut Notes) {
        match (&self.access_log, log) {
            (Some(own), Some(log)) if own.node == log.node => notes.needless(&log.directive, SAME_LOG),
            (Some(_), Some(log)) => notes.left(&log.directive, LOG_OF_SITE),
            (None, log) => self.access_log = log,
            (Some(_), None) => {}
        }
    }

    /// Rejects the paths of a guard that cannot be translated.
    pub(super) fn close(
        &mut self,
        directive: &NginxDirective,
        level: &DirectiveLevel,
        why: impl Into<String>,
        notes: &mut Notes,
    ) {
        self.close_paths(directive, level.pattern().map(str::to_owned), why, notes);
    }

    /// Rejects the paths of a pattern, likewise.
    pub(super) fn close_paths(
        &mut self,
        directive: &NginxDirective,
        pattern: Option<String>,
        why: impl Into<String>,
        notes: &mut Notes,
    ) {
        let node = KdlNode::new("deny").word("all").comment(notes.rejected(directive, why));
        self.closed.push(match pattern {
            Some(pattern) => node.property("path", pattern),
            None => node,
        });
    }

    /// Gives requests of rewrites a response that is only a status.
    pub(super) fn answer_elsewhere(&mut self, status: u16, rewrites: Vec<KdlNode>) {
        self.answers.insert(status);
        self.fixed.extend(rewrites);
    }

    /// Translates a directive. Returns `true` if it is one of these.
    pub(super) fn add(&mut self, directive: &NginxDirective, context: DirectiveContext<'_>, notes: &mut Notes) -> bool {
        let level = context.level;
        self.add_file_option(directive, level, notes)
            || guard::add(self, directive, level, notes)
            || self.add_guard(directive, context, notes)
            || self.add_field(directive, level, notes)
            || self.add_redirect(directive, level, notes)
            || self.add_other(directive, context, notes)
            || needless::add(directive, notes)
    }

    fn add_file_option(&mut self, directive: &NginxDirective, level: &DirectiveLevel, notes: &mut Notes) -> bool {
        let all = |name| KdlNode::new(name).texts(directive.arguments.iter());
        let files = &mut self.files;
        match directive.name.as_str() {
            // The index of a location's files depends on its `try_files`.
            "index" | "autoindex" => {
                let is_elsewhere = |name: &String| name.starts_with('/') && !name.contains(".php");
                if directive.name == "index" && directive.arguments.iter().any(is_elsewhere) {
                    notes.left(directive, "an index file is one of its directory; use a `rewrite` for another one");
                }
            }
            "charset" if directive.first() == "off" => set(files, KdlNode::with("charset", "")),
            "charset" => set(files, all("charset")),
            "default_type" => set(files, all("default-type")),
            "types" => types(directive, files),
            // Compression is on by default here, and off in nginx: only a difference is written.
            "gzip" | "brotli" | "zstd" => {
                if directive.name == "gzip" && directive.first() == "off" {
                    set(files, KdlNode::new("compress").word("off"));
                }
            }
            "gzip_static" | "brotli_static" | "zstd_static" => {
                if directive.name == "gzip_static" && directive.first() == "off" {
                    set(files, KdlNode::new("precompressed").word("off"));
                }
            }
            "gzip_comp_level" | "brotli_comp_level" | "zstd_comp_level" => {
                if let Some(level) = compression_level(directive) {
                    set(files, KdlNode::new("compress-level").word(level));
                }
            }
            "gzip_min_length" | "brotli_min_length" | "zstd_min_length" => match size(directive.first()) {
                Some(size) => set(files, KdlNode::with("compress-bytes-min", size)),
                None => notes.left(directive, "this is not a size"),
            },
            _ => return false,
        }
        if level.is_forwarded() {
            // Nothing is served from files there.
            files.clear();
        }
        true
    }

    fn add_guard(&mut self, directive: &NginxDirective, context: DirectiveContext<'_>, notes: &mut Notes) -> bool {
        let DirectiveContext { level, shared } = context;
        let with_path = |name: &'static str| match level.pattern() {
            Some(pattern) => KdlNode::with(name, pattern),
            None => KdlNode::new(name),
        };
        match directive.name.as_str() {
            "limit_req" => match zone(directive).and_then(|zone| shared.rates.get(zone)) {
                Some((rate, key)) => {
                    let mut node = with_path("rate-limit").text(rate);
                    // nginx lets one through, and `burst` more.
                    let burst = directive.named("burst").and_then(|burst| burst.parse::<u64>().ok()).unwrap_or(0);
                    node = node.word_property("burst", burst.saturating_add(1));
                    self.guards.push(node.property("key", key));
                    if burst > 0 && !directive.has("nodelay") {
                        notes.left(directive, "translated like `nodelay`: requests of a burst are not delayed");
                    }
                }
                None => notes.left(directive, "its zone is unknown"),
            },
            "limit_conn" => match shared.counts.get(directive.first()) {
                Some(key) => {
                    let node = with_path("request-limit").word(directive.argument(1)).property("key", key);
                    self.guards.push(node);
                }
                None => notes.left(directive, "its zone is unknown"),
            },
            // Guards are translated when all locations are known.
            "allow" | "deny" | "auth_basic" | "auth_basic_user_file" | "satisfy" => {}
            "auth_request_set" => notes.left(directive, "`copy-headers` of `forward-auth` copies header fields only"),
            "limit_req_status" | "limit_conn_status" if directive.first() == "429" => {
                notes.needless(directive, "it is 429 by default");
            }
            "limit_req_status" | "limit_conn_status" => {
                notes
                    .left(directive, "it is 429; set another one as `status` of each `rate-limit` and `request-limit`");
            }
            "limit_req_log_level" | "limit_conn_log_level" => notes.needless(directive, "its log level is fixed"),
            _ => return false,
        }
        true
    }

    fn add_field(&mut self, directive: &NginxDirective, level: &DirectiveLevel, notes: &mut Notes) -> bool {
        match directive.name.as_str() {
            "add_header" => {
                let value = match values::text(directive.argument(1), Within::Field) {
                    Ok(value) => value,
                    Err(why) => {
                        notes.left(directive, why);
                        return true;
                    }
                };
                // `Cache-Control` belongs with `expires`, if there is one; for files it costs nothing.
                if added_fields::is_freshness(directive, level.is_forwarded()) {
                    return self.add_cache_control(&value, level);
                }
                // Fields of locations depend on the fields around them.
                if !matches!(level, DirectiveLevel::Location { .. }) {
                    let node = response_header(level, directive.first(), &value);
                    let is_further = self.fields.iter().any(|other| other.is_like(&node));
                    self.fields.push(if is_further { node.word_property("action", "add") } else { node });
                }
            }
            "expires" => {
                let value = match directive.first() {
                    "off" => return true,
                    text if text.starts_with("${map.") => {
                        let value = values::text(text, Within::Field).unwrap_or_default();
                        let node = response_header(level, "Cache-Control", &value);
                        self.fields.push(node.word_property("action", "add"));
                        let of_redirects = directive.argument(1);
                        if !of_redirects.is_empty() {
                            let when = "status >= 301 and status <= 308 and status != 304 and not response.header.Content-Type";
                            let node = response_header(level, "Cache-Control", of_redirects);
                            self.fields.push(node.word_property("action", "default").property("when", when));
                        }
                        return true;
                    }
                    text => match freshness(text) {
                        Some(value) => value,
                        None => {
                            notes.left(directive, "`cache-control` needs a number of seconds");
                            return true;
                        }
                    },
                };
                if level.is_forwarded() {
                    let node = response_header(level, "Cache-Control", &value);
                    self.fields.push(node.property("when", added_fields::OF_SUCCESS));
                } else {
                    self.add_cache_control(&value, level);
                }
            }
            _ => return false,
        }
        true
    }

    fn add_cache_control(&mut self, value: &str, level: &DirectiveLevel) -> bool {
        let line = |value: &str| match level.pattern() {
            Some(pattern) => KdlNode::with("cache-control", pattern).text(value),
            None => KdlNode::with("cache-control", value),
        };
        // Of several for the same paths the last would count; nginx sends them all.
        let before = self.fields.iter().position(|node| node.is_like(&line("")));
        match before {
            Some(index) => {
                let value = format!("{}, {value}", self.fields[index].last_value());
                self.fields[index] = line(&value);
            }
            None => self.fields.push(line(value)),
        }
        true
    }

    fn add_redirect(&mut self, directive: &NginxDirective, level: &DirectiveLevel, notes: &mut Notes) -> bool {
        match directive.name.as_str() {
            "rewrite" => match rewrite::rewrite(directive, level.pattern(), None) {
                Ok(node) => self.redirects.extend(node),
                // Clients must not see paths that nginx rewrites.
                Err(why) => self.close_paths(directive, leading::paths(directive, level.pattern()), why, notes),
            },
            "if" if condition::rejects_missing(directive) => {
                notes.needless(directive, "missing files get 404");
            }
            "if" => match condition::translate(directive, level.pattern()) {
                Ok(ConditionalAction::Redirect(nodes)) => self.redirects.extend(nodes),
                Ok(ConditionalAction::Answer(status, nodes)) => self.answer_elsewhere(status, nodes),
                Ok(ConditionalAction::Deny(nodes)) => self.closed.extend(nodes),
                Err(why) if condition::is_guard(directive) => self.close(directive, level, why, notes),
                Err(why) => notes.left(directive, why),
            },
            "rewrite_log" => notes.needless(directive, "rewrites are not logged"),
            "break" => notes.needless(directive, "only the first matching rewrite is applied"),
            _ => return false,
        }
        true
    }

    fn add_other(&mut self, directive: &NginxDirective, context: DirectiveContext<'_>, notes: &mut Notes) -> bool {
        let DirectiveContext { level, shared } = context;
        match directive.name.as_str() {
            "access_log" => match level.pattern() {
                Some(pattern) if directive.first() == "off" => self.others.push(KdlNode::with("log-skip", pattern)),
                Some(_) => notes.left(directive, LOG_OF_SITE),
                None => {
                    if let Some(node) = access_log(directive, shared, notes) {
                        self.add_access_log(ImportedAccessLog { node, directive: directive.clone() }, notes);
                    }
                }
            },
            "log_not_found" | "log_subrequest" | "open_log_file_cache" => {
                notes.needless(directive, "missing files are not reported in the server log");
            }
            "error_page" => self.error_page(directive, notes),
            "error_log" => notes.left(directive, "the whole server has one log; see `log-level` of `server`"),
            "keepalive_timeout" | "client_body_timeout" | "send_timeout" | "keepalive_requests" => {
                notes.left(directive, "limits apply to the whole server; set it in `limits`");
            }
            "recursive_error_pages" | "proxy_intercept_errors" | "fastcgi_intercept_errors" => {
                notes.left(directive, "`error-page` applies to errors of this server, not to upstream responses");
            }
            _ => return false,
        }
        true
    }

    fn error_page(&mut self, directive: &NginxDirective, notes: &mut Notes) {
        let Some((page, statuses)) = directive.arguments.split_last() else { return };
        if statuses.iter().any(|status| status.starts_with('=')) {
            return notes.left(directive, "the status of an error cannot change");
        }
        // The query is the request's anyway.
        let page = page.split(['?', '$']).next().unwrap_or_default();
        if !page.starts_with('/') {
            return notes.left(directive, "an error page must be a path of the site");
        }
        let node = statuses.iter().fold(KdlNode::new("error-page"), |node, status| node.word(status));
        self.others.push(node.text(page));
    }
}

/// `Cache-Control` of an `expires`; empty for none.
pub(super) fn freshness(text: &str) -> Option<String> {
    Some(match text {
        "off" => String::new(),
        "epoch" => "no-cache".to_owned(),
        "max" => "max-age=315360000".to_owned(),
        text if text.starts_with('-') => "no-cache".to_owned(),
        text => format!("max-age={}", duration(text)?.as_secs()),
    })
}

fn types(directive: &NginxDirective, files: &mut Vec<KdlNode>) {
    // The file that comes with nginx lists the usual ones, which are built in.
    if directive.place.file.file_name().is_some_and(|name| name == "mime.types") {
        return;
    }
    for line in directive.children() {
        files.push(KdlNode::with("type", &line.name).texts(line.arguments.iter()));
    }
}

/// Level of a `…_comp_level`; `None` if it is the default here.
pub(super) fn compression_level(directive: &NginxDirective) -> Option<&'static str> {
    let best = if directive.name.starts_with("zstd") { 10 } else { 7 };
    match directive.first().parse::<i32>().ok()? {
        ..=2 => Some("fast"),
        level if level >= best => Some("best"),
        _ => None,
    }
}

fn zone(directive: &NginxDirective) -> Option<&str> {
    directive.named("zone")
}

pub(super) fn response_header(level: &DirectiveLevel, name: &str, value: &str) -> KdlNode {
    let node = match level.pattern() {
        Some(pattern) => KdlNode::with("response-header", pattern),
        None => KdlNode::new("response-header"),
    };
    node.text(name).text(value)
}

fn access_log(directive: &NginxDirective, shared: &HttpBlock, notes: &mut Notes) -> Option<KdlNode> {
    if directive.first() == "off" {
        return Some(KdlNode::new("access-log").word("off"));
    }
    let target = match directive.first() {
        "/dev/stdout" => "stdout",
        syslog if syslog.starts_with("syslog:") => "syslog",
        file if file.contains('$') => {
            notes.left(directive, "the name of a log must be fixed");
            return None;
        }
        file => file,
    };
    let node = KdlNode::with("access-log", target);
    let format = directive.argument(1);
    // `combined` is what we take by default, and what a format of one's own mostly begins with.
    Some(match shared.log_formats.get(format) {
        Some(format) => node.property("format", format),
        None => node,
    })
}

/// A time as the value of an option, or a remark that it is none.
pub(super) fn time_option(name: &'static str, directive: &NginxDirective, notes: &mut Notes) -> Option<KdlNode> {
    let found = time(directive.first());
    if found.is_none() {
        notes.left(directive, "this is not a time");
    }
    found.map(|time| KdlNode::with(name, time))
}
