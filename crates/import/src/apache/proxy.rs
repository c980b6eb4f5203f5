//! Upstreams: `ProxyPass`, `SetHandler "proxy:…"` and `<Proxy balancer://…>`.

use super::section::{self, ApacheSection};
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::SiteParts;
use crate::pattern::ForeignPattern;

/// An address of an upstream in our form.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) to: String,
    /// Path after the address.
    pub(super) path: String,
    pub(super) is_fastcgi: bool,
}

/// Reads `http://app:3000/x`, `unix:/run/php.sock|fcgi://localhost/`, `balancer://name/`.
///
/// # Errors
///
/// If there is no such upstream here.
pub(super) fn target(text: &str) -> Result<Target, String> {
    let (socket, url) = match text.split_once('|') {
        Some((socket, url)) if socket.starts_with("unix:") => (Some(socket.to_owned()), url),
        _ => (None, text),
    };
    let Some((scheme, rest)) = url.split_once("://") else { return Err("this is no URL".to_owned()) };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let authority = authority.trim_end_matches(':');
    if authority.contains('$') || authority.contains('%') {
        return Err("an upstream has a fixed address".to_owned());
    }
    let is_fastcgi = scheme == "fcgi";
    let to = match (socket, scheme) {
        (Some(socket), _) => socket,
        (None, "http" | "ws") => format!("http://{authority}"),
        (None, "https" | "wss") => format!("https://{authority}"),
        (None, "h2c") => format!("h2c://{authority}"),
        (None, "fcgi") => format!("tcp://{authority}"),
        (None, "balancer") => authority.to_owned(),
        _ => return Err(format!("`{scheme}` is no protocol of upstreams")),
    };
    Ok(Target { to, path: path.to_owned(), is_fastcgi })
}

/// Reads the balancers of a host: an upstream for each.
pub(super) fn balancers(block: &[Directive], notes: &mut Notes) -> Vec<KdlNode> {
    let mut nodes = Vec::new();
    for directive in block.iter().filter(|child| child.name.eq_ignore_ascii_case("proxy")) {
        let Some(name) = directive.first().strip_prefix("balancer://") else { continue };
        let mut lines = Vec::new();
        for child in directive.children() {
            match child.name.to_ascii_lowercase().as_str() {
                "balancermember" => match target(child.first()) {
                    Ok(found) => {
                        let mut node = KdlNode::with("server", found.to);
                        if let Some(weight) = child.named("loadfactor") {
                            node = node.word_property("weight", weight);
                        }
                        if child.named("status").is_some_and(|status| status.contains('H')) {
                            node = node.word_property("backup", "on");
                        }
                        lines.push(node);
                    }
                    Err(why) => notes.left(child, why),
                },
                "proxyset" => match child.named("lbmethod") {
                    Some("bybusyness") | None => {}
                    Some("byrequests") => lines.push(KdlNode::new("balance").word("round-robin")),
                    Some(_) => notes.left(child, "`balance` has no such method"),
                },
                "require" | "order" | "allow" => {}
                _ => notes.left(child, "there is no counterpart"),
            }
        }
        nodes.push(KdlNode::with("upstream", name.trim_end_matches('/')).required_block(lines));
    }
    nodes
}

/// Options of the upstreams of a host.
#[derive(Clone, Copy)]
pub(super) struct ProxyOptions {
    pub(super) preserves_host: bool,
}

/// `ProxyPreserveHost` of a section itself.
pub(super) fn preserves_host(section: &ApacheSection<'_>) -> Option<bool> {
    let own = section.block.iter().rfind(|child| child.name.eq_ignore_ascii_case("proxypreservehost"))?;
    Some(own.first().eq_ignore_ascii_case("on"))
}

fn passes<'s>(section: &'s ApacheSection<'_>) -> impl Iterator<Item = &'s Directive> {
    section.block.iter().filter(|child| child.name.eq_ignore_ascii_case("proxypass"))
}

/// Returns `true` if the paths of a section have no upstream.
pub(super) fn is_exclusion(section: &ApacheSection<'_>) -> bool {
    passes(section).any(|directive| directive.first() == "!")
}

/// Returns `true` if a section is within another one that has the same upstream and does not say whether the host is
/// preserved. Both leave paths as they are.
pub(super) fn is_within(section: &ApacheSection<'_>, around: &ApacheSection<'_>) -> bool {
    let upstream = |section: &ApacheSection<'_>| {
        let Ok([ForeignPattern::Prefix(prefix), ..]) = section.patterns.as_deref() else { return None };
        let found = target(passes(section).next()?.first()).ok()?;
        let prefix = prefix.trim_end_matches('/').to_owned();
        (found.path.trim_end_matches('/') == prefix).then_some((prefix, found.to))
    };
    let (Some((inner, own)), Some((outer, other))) = (upstream(section), upstream(around)) else { return false };
    own == other
        && preserves_host(around).is_none()
        && inner.strip_prefix(&outer).is_some_and(|rest| rest.starts_with('/'))
}

/// `ProxyPass PATH URL`, or within a section `ProxyPass URL`.
pub(super) fn pass(
    directive: &Directive,
    section: Option<&[ForeignPattern]>,
    options: ProxyOptions,
    root: Option<&str>,
    parts: &mut SiteParts,
    notes: &mut Notes,
) {
    let (path, url) = match section {
        Some([.., ForeignPattern::Exact(path)]) => (path.as_str(), directive.first()),
        Some([ForeignPattern::Prefix(prefix), ..]) => (prefix.as_str(), directive.first()),
        Some(patterns) => return parts.close(directive, patterns, "a section with an expression has no prefix", notes),
        None => (directive.first(), directive.argument(1)),
    };
    let patterns = section::prefix(path);
    if url == "!" {
        // Its paths are files.
        let Some(root) = root else { return };
        for pattern in patterns.iter().filter_map(ForeignPattern::text) {
            parts.handlers.push(KdlNode::with("files", &pattern).property("root", root));
            parts.handlers.push(KdlNode::with("respond", pattern).word(404));
        }
        return;
    }
    let found = match target(url) {
        Ok(found) if !found.is_fastcgi => found,
        Ok(_) => return parts.close(directive, &patterns, "write `fastcgi`", notes),
        Err(why) => return parts.close(directive, &patterns, why, notes),
    };
    if url.starts_with("ws") && parts.handlers.iter().any(|node| node.name() == "forward" && node.is_for(&found.to)) {
        return notes.needless(directive, "`forward` upgrades connections");
    }
    let mut lines = Vec::new();
    if !options.preserves_host {
        lines.push(KdlNode::new("host").word("upstream"));
    }
    for word in directive.arguments.iter().skip(1) {
        if let Some(("timeout", seconds)) = word.split_once('=') {
            let time = format!("{seconds}s");
            lines.push(KdlNode::with("first-byte-timeout", time));
        }
    }
    let prefix = path.trim_end_matches('/');
    let other = found.path.trim_end_matches('/');
    if prefix != other {
        if !other.is_empty() {
            // `/a/` is not for `/a`.
            let rest = if path.ends_with('/') { "(/.*)$" } else { "(/.*)?$" };
            let node = KdlNode::with("rewrite", format!("~^{}{rest}", regex::escape(prefix)));
            parts.redirects.push(node.text(format!("{prefix}{other}{{1}}")));
        }
        if !prefix.is_empty() {
            lines.push(KdlNode::with("strip-prefix", prefix));
        }
    }
    // `/a` is `/` there, or has been rewritten.
    let mut patterns = patterns;
    if prefix != other && patterns.iter().any(|pattern| *pattern == ForeignPattern::Exact(prefix.to_owned())) {
        patterns.retain(|pattern| !matches!(pattern, ForeignPattern::Exact(_)));
        if other.is_empty() {
            parts.redirects.push(KdlNode::with("rewrite", prefix).text(format!("{prefix}/")));
        }
    }
    let node = KdlNode::with("forward", &found.to);
    if prefix.is_empty() && parts.last.is_none() {
        // Files of the root are not served then.
        parts.last = Some(node.block(lines));
        return;
    }
    for pattern in patterns.iter().filter_map(ForeignPattern::text) {
        parts.handlers.push(node.clone().property("path", pattern).block(lines.clone()));
    }
}

/// `ProxyPassMatch EXPRESSION URL`.
pub(super) fn pass_match(
    directive: &Directive,
    options: ProxyOptions,
    root: &str,
    parts: &mut SiteParts,
    notes: &mut Notes,
) {
    let pattern = match crate::pattern::expression(directive.first()) {
        Ok(expression) => ForeignPattern::Expression(expression),
        Err(why) => return parts.close(directive, &[], why, notes),
    };
    if directive.argument(1) == "!" {
        return parts.close(directive, &[pattern], "files of an expression cannot be left out", notes);
    }
    match target(directive.argument(1)) {
        Ok(found) if found.is_fastcgi => {
            let node = KdlNode::with("fastcgi", scripts(&pattern)).text(&found.to).property("root", root);
            parts.handlers.push(node);
        }
        Ok(found) if matches!(found.path.as_str(), "" | "/" | "/$1" | "$1") => {
            let lines = if options.preserves_host { Vec::new() } else { vec![KdlNode::new("host").word("upstream")] };
            let expression = pattern.expression();
            let is_whole = expression.starts_with("^(/") || (found.path == "/$1" && expression.starts_with("^/("));
            if !is_whole && !found.path.is_empty() && found.path != "/" {
                return parts.close(directive, &[pattern], "paths are forwarded unchanged, or without a prefix", notes);
            }
            let node = KdlNode::with("forward", found.to).property("path", pattern.text().unwrap_or_default());
            parts.handlers.push(node.block(lines));
        }
        Ok(_) => parts.close(directive, &[pattern], "paths are forwarded unchanged, or without a prefix", notes),
        Err(why) => parts.close(directive, &[pattern], why, notes),
    }
}

/// Pattern of scripts; `*.php` for an expression that means it.
fn scripts(pattern: &ForeignPattern) -> String {
    let text = pattern.expression();
    let is_php = text.contains(r"\.php") && !text.contains(['[', '|']);
    let is_all =
        text.starts_with(r"\.") || text.starts_with("^/(.*") || text.starts_with("^(/.*") || text.starts_with("^/?(.*");
    if is_php && is_all { "*.php".to_owned() } else { pattern.text().unwrap_or_default() }
}

/// `SetHandler "proxy:…"` of a section.
pub(super) fn handler(
    directive: &Directive,
    patterns: &[ForeignPattern],
    (root, indexes, fallback): (&str, &[String], Option<&str>),
    parts: &mut SiteParts,
    notes: &mut Notes,
) {
    let name = directive.first();
    let Some(url) = name.strip_prefix("proxy:") else {
        match name {
            "server-status" => {
                for path in patterns {
                    if let ForeignPattern::Exact(path) = path {
                        parts.handlers.push(KdlNode::with("status-page", path));
                    }
                }
            }
            "None" | "none" | "default-handler" => notes.needless(directive, "files are served"),
            _ => parts.close(directive, patterns, "there is no such handler", notes),
        }
        return;
    };
    match target(url) {
        Ok(found) if found.is_fastcgi => {
            let mut lines = Vec::new();
            lines.extend(script_index(indexes));
            lines.extend(fallback.map(|path| KdlNode::with("fallback", path)));
            parts.handlers.extend(earlier_indexes(indexes).filter(|node| !parts.handlers.contains(node)));
            for pattern in patterns {
                // A path with more after the script fits by itself.
                let text = pattern.expression().replace("(?:/.*)?$", "$");
                let is_php = matches!(text.as_str(), r"\.php$" | r".+\.php$" | r"(?i)\.php$" | r".+\.ph(?:ar|p|tml)$")
                    || text.ends_with(r"\.php$") && !text.starts_with('^') && text.len() < 12;
                let text = if is_php { "*.php".to_owned() } else { format!("~{text}") };
                let node = KdlNode::with("fastcgi", text).text(&found.to);
                let node = if parts.files.iter().any(|node| node.name() == "root") {
                    node
                } else {
                    node.property("root", root)
                };
                parts.handlers.push(node.block(lines.clone()));
            }
        }
        Ok(found) => {
            for pattern in patterns.iter().filter_map(ForeignPattern::text) {
                parts.handlers.push(KdlNode::with("forward", &found.to).property("path", pattern));
            }
        }
        Err(why) => parts.close(directive, patterns, why, notes),
    }
}

/// Index files of scripts, unless they are the default.
pub(super) fn script_index(indexes: &[String]) -> Option<KdlNode> {
    let names: Vec<&String> = indexes.iter().filter(|name| name.ends_with(".php")).collect();
    (names != ["index.php"]).then(|| KdlNode::new("index").texts(names.iter()))
}

/// Index files that Apache looks for before the index of scripts, which otherwise comes first here.
pub(super) fn earlier_indexes(indexes: &[String]) -> Option<KdlNode> {
    let first = indexes.iter().position(|name| name.ends_with(".php"))?;
    let names = &indexes[..first];
    let index = KdlNode::new("index").texts(names.iter());
    (!names.is_empty()).then(|| KdlNode::with("files", "~/$").block(vec![index]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_are_read() {
        let check = |text: &str, to: &str, path: &str, is_fastcgi: bool| {
            let expect = Target { to: to.to_owned(), path: path.to_owned(), is_fastcgi };
            assert_eq!(target(text), Ok(expect), "{text}");
        };
        check("http://app:3000/x", "http://app:3000", "/x", false);
        check("unix:/run/php.sock|fcgi://localhost", "unix:/run/php.sock", "", true);
        check("fcgi://127.0.0.1:9000/var/www/$1", "tcp://127.0.0.1:9000", "/var/www/$1", true);
        check("balancer://pool/", "pool", "/", false);
        assert!(target("ajp://a").is_err());
    }
}
