//! Handlers of files and PHP scripts: `file_server`, `php_fastcgi` and `try_files`.

use std::path::{Path, PathBuf};

use super::matcher::{any_path, of_fixed, routed, with_tests};
use super::placeholders::{self, TextPlace};
use super::scope::{Reach, Scope, tests_path};
use super::site::CaddySiteParts;
use super::{order, proxy, rewrites, rules};
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::with_path;
use crate::pattern::ForeignPattern;

/// Files that a request may get in place of a missing one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CaddyTries {
    /// Path of the last file.
    pub(super) fallback: Option<String>,
    /// True if a path without a file is missing.
    pub(super) is_strict: bool,
    /// True if directories are tried, too.
    has_directories: bool,
    /// True if the script of a directory is tried, too.
    finds_scripts: bool,
    /// True if directories without an index are tried, too.
    finds_directories: bool,
    /// True if the path is tried with `.html`.
    has_extension: bool,
    /// True if requests may have got another path.
    pub(super) is_used: bool,
}

/// Front controller of `php_fastcgi`, and its requests.
#[derive(Debug, Clone)]
pub(super) struct CaddyFront {
    reach: Reach,
    /// Path of the script, below the prefix that was removed.
    path: String,
    /// Script of a directory.
    index: Option<String>,
}

/// Reason why a handler after `try_files` may get other requests than Caddy's does: here, files are looked for after handlers.
pub(super) fn misses(directive: &Directive, values: &[String], reach: &Reach, scope: &Scope) -> Option<&'static str> {
    let is_handler = order::position(&directive.name) >= order::position("handle");
    if !scope.tries.is_used || !is_handler || rules::rejects(directive, values) {
        return None;
    }
    let is_new = |test: &&String| !scope.tests.contains(test);
    let is_restricted = !reach.has_all_paths(scope) || reach.tests.iter().filter(is_new).any(|test| tests_path(test));
    let is_forwarded = directive.name == "reverse_proxy" && !reach.is_missing;
    (is_restricted || is_forwarded).then_some("`try_files` comes first, and gives missing paths another one")
}

/// `try_files`: a rewrite to the first file that exists.
pub(super) fn try_files(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    values: &[String],
    reach: &Reach,
    scope: &mut Scope,
    notes: &mut Notes,
) {
    let Some((last, first)) = values.split_last() else { return };
    if scope.tries.is_used {
        return site.parts.close(directive, &reach.paths, "files are tried once", notes);
    }
    scope.tries.is_used = values.iter().any(|tried| tried != "{path}");
    if directive.children().iter().any(|child| child.name != "policy" || child.first() != "first_exist") {
        return site.parts.close(directive, &reach.paths, "of several files, the first that exists is chosen", notes);
    }
    if first.first().is_some_and(|tried| {
        !tried.starts_with("{path}") && !tried.starts_with("{uri}") && tried != "{http.request.uri.path}"
    }) {
        return site.parts.close(directive, &reach.paths, "only files after the path itself are tried", notes);
    }
    if reach.tests != scope.tests || reach.is_missing {
        return site.parts.close(directive, &reach.paths, "`try_files` has no conditions except the path", notes);
    }
    let is_directory =
        |tried: &String| matches!(tried.as_str(), "{path}/" | "{path}/index.html" | "{path}/index.php" | "{uri}/");
    scope.tries.has_directories = first.iter().any(is_directory);
    scope.tries.finds_scripts =
        first.iter().any(|tried| matches!(tried.as_str(), "{path}/" | "{uri}/" | "{path}/index.php"));
    scope.tries.finds_directories = first.iter().any(|tried| matches!(tried.as_str(), "{path}/" | "{uri}/"));
    for tried in first {
        match tried.as_str() {
            "{path}" | "{path}/" | "{path}/index.html" | "{path}/index.php" | "{http.request.uri.path}" | "{uri}" => {}
            "{path}.html" => scope.tries.has_extension = true,
            _ => notes.left(directive, format!("`{tried}` is not tried: only the path itself and `.html` are")),
        }
    }
    let status = last.strip_prefix('=').and_then(|status| status.parse::<u16>().ok());
    scope.tries.is_strict = status.is_some();
    if status.is_some_and(|status| status != 404) {
        notes.left(directive, "missing files have status 404");
    }
    match last.as_str() {
        "{path}" | "{path}/" | "{path}/index.html" => {}
        _ if status.is_some() => {}
        "{path}.html" => scope.tries.has_extension = true,
        last => {
            let path = last.trim_end_matches("?{query}").trim_end_matches('?');
            if last.contains('?') && !last.ends_with("?{query}") {
                scope.changed_queries.push(Vec::new());
            }
            let path = if path.starts_with(['/', '{']) { path.to_owned() } else { format!("/{path}") };
            if path.contains(['{', '?', '=']) {
                match placeholders::text(&path, TextPlace::Target, None) {
                    Ok(target) if scope.paths.is_none() && target.starts_with('/') => {
                        let node = KdlNode::with("rewrite", "*").text(target).word_property("missing", "on");
                        site.parts.redirects.push(node);
                    }
                    _ => notes.left(directive, "the last file must have a fixed path"),
                }
                return;
            }
            if site.guarded.iter().any(|guarded| guarded.fits(&path.to_ascii_lowercase())) {
                notes.left(directive, rewrites::GUARDED);
            }
            if reach.has_all_paths(scope) {
                scope.tries.fallback = Some(path);
                return;
            }
            for pattern in routed(&reach.paths).iter().filter_map(ForeignPattern::text) {
                let node = KdlNode::with("rewrite", pattern).text(&path).word_property("missing", "on");
                site.parts.redirects.push(node);
            }
        }
    }
}

/// `file_server`.
pub(super) fn file_server(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    values: &[String],
    reach: &Reach,
    scope: &Scope,
    notes: &mut Notes,
) {
    let mut options = Vec::new();
    let mut root = None;
    let mut index = vec!["index.html".to_owned(), "index.txt".to_owned()];
    if values.iter().any(|word| word == "browse") {
        options.push(KdlNode::new("browse"));
    }
    let mut is_passed = false;
    for child in directive.children() {
        match child.name.as_str() {
            "browse" => options.push(KdlNode::new("browse")),
            "root" => root = Some(child.first().to_owned()),
            "index" => index = child.arguments.clone(),
            "hide" if child.arguments.iter().any(|name| name.contains(['{', '[', '\\'])) => {
                site.parts.close(child, &reach.paths, "hidden names have only stars and question marks", notes);
            }
            "hide" => hide(site, child, reach),
            "precompressed" | "disable_canonical_uris" | "etag_file_extensions" => {}
            "pass_thru" => is_passed = true,
            "status" => notes.left(child, "files have status 200"),
            _ => site.parts.close(child, &reach.paths, "there is no counterpart", notes),
        }
    }
    let hides = |child: &Directive| child.name == "hide" && child.arguments.iter().any(|name| !name.starts_with('.'));
    if directive.children().iter().any(hides) && options.iter().any(|node| node.name() == "browse") {
        notes.left(directive, "directories are not listed, because a list would name what is hidden");
        options.retain(|node| node.name() != "browse");
    }
    // A directory that is not tried is a missing file.
    let is_strict = scope.tries.is_strict || scope.tries.fallback.is_some();
    if is_strict && !scope.tries.has_directories {
        index.clear();
        options.retain(|node| node.name() != "browse");
    }
    options.extend(scope.tries.has_extension.then(|| KdlNode::with("extensions", "html")));
    let has_scripts = site.parts.handlers.iter().any(|node| node.name() == "fastcgi");
    if scope.tries.finds_directories && scope.tries.fallback.is_some() && !has_scripts {
        // A directory exists, with an index or without.
        options.push(KdlNode::new("require-index"));
    }
    if let Some(front) = scope.front.as_ref().filter(|front| front.reach == *reach) {
        index.splice(0..0, front.index.clone());
    }
    options.push(KdlNode::new("index").texts(&index));
    let roots = if root.is_some() { &[] } else { scope.roots.as_slice() };
    let mut root = root.or(scope.root.clone()).unwrap_or_else(|| ".".to_owned());
    let all_roots = std::iter::once(&root).chain(roots.iter().map(|(_, root)| root));
    for node in all_roots.flat_map(|root| own_files(site, root, &scope.prefix)).collect::<Vec<_>>() {
        if !site.parts.rejections.contains(&node) {
            site.parts.rejections.push(node);
        }
    }
    for (paths, other) in roots {
        let Ok(of_both) = reach.shared_with(paths) else {
            return site.parts.close(directive, &reach.paths, "the paths of its root have no pattern here", notes);
        };
        if of_both == reach.paths {
            root.clone_from(other);
            break;
        }
        let strip = (!scope.prefix.is_empty()).then(|| KdlNode::with("strip-prefix", &scope.prefix));
        for pattern in routed(&of_both).iter().filter_map(ForeignPattern::text) {
            let options = options.iter().cloned().chain(strip.clone()).collect();
            let files = KdlNode::with("files", &pattern).property("root", other).block(options);
            site.parts.handlers.push(with_tests(files, &reach.tests));
            let missing = KdlNode::with("respond", pattern).word(404);
            site.parts.handlers.push(with_tests(missing, &reach.tests));
        }
    }
    let front = scope.front.as_ref();
    let own_front = front.filter(|front| front.reach == *reach).map(|front| &front.path);
    if let Some(CaddyFront { reach, path, index: script }) = front.filter(|_| own_front.is_none()) {
        let strip = (!scope.prefix.is_empty()).then(|| KdlNode::with("strip-prefix", &scope.prefix));
        let index = KdlNode::new("index").texts(script.iter().chain(&index));
        let others = options.iter().filter(|node| node.name() != "index").cloned();
        let options: Vec<KdlNode> = others.chain([index, KdlNode::with("fallback", path)]).chain(strip).collect();
        for pattern in patterns(&reach.paths) {
            let files = KdlNode::with("files", &pattern).property("root", &root).block(options.clone());
            site.parts.handlers.push(with_tests(files, &reach.tests));
            site.parts.handlers.push(with_tests(KdlNode::with("respond", pattern).word(404), &reach.tests));
        }
    }
    let fallback = own_front.or(scope.tries.fallback.as_ref()).map(|path| KdlNode::with("fallback", path));
    if reach.paths.is_empty() && scope.prefix.is_empty() && reach.tests.is_empty() {
        if is_passed {
            notes.left(directive, "missing files have status 404; write `forward` for all other paths");
        }
        site.parts.set_file_option(KdlNode::with("root", root));
        for option in options.into_iter().chain(fallback.filter(|_| !has_script_fallback(site))) {
            site.parts.set_file_option(option);
        }
        return;
    }
    options.extend(fallback);
    if !scope.prefix.is_empty() {
        options.push(KdlNode::with("strip-prefix", &scope.prefix));
    }
    for pattern in patterns(&reach.paths) {
        let files = KdlNode::with("files", &pattern).property("root", &root).block(options.clone());
        site.parts.handlers.push(with_tests(files, &reach.tests));
        if !is_passed {
            let missing = KdlNode::with("respond", pattern).word(404);
            site.parts.handlers.push(with_tests(missing, &reach.tests));
        }
    }
}

/// Rejections of the files of the configuration, as Caddy hides its own, and of those that the translation writes.
fn own_files(site: &CaddySiteParts<'_, '_>, root: &str, prefix: &str) -> Vec<KdlNode> {
    let files = &site.shared.file.files;
    let directory = files.first().and_then(|file| file.parent()).unwrap_or(Path::new(""));
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let root: PathBuf = absolute(&directory.join(root)).components().collect();
    let mut patterns: Vec<String> = Vec::new();
    for (index, file) in files.iter().enumerate() {
        let file = absolute(file);
        let Some(below) = file.strip_prefix(&root).ok().and_then(Path::to_str) else { continue };
        patterns.push(regex::escape(below));
        if index == 0 {
            let directory = below.rsplit_once('/').map_or(String::new(), |(above, _)| format!("{above}/"));
            patterns.push(format!(r"{}(?:users\.htpasswd[^/]*|[^/]+\.kdl)", regex::escape(&directory)));
        }
    }
    patterns.dedup();
    let text = |pattern: &String| format!("~(?i)^{}/{pattern}$", regex::escape(prefix));
    let node = |pattern| with_path(KdlNode::new("deny").word("all"), Some(text(pattern))).word_property("status", 404);
    patterns.iter().map(node).collect()
}

fn patterns(paths: &[ForeignPattern]) -> Vec<String> {
    match paths {
        [] => vec!["*".to_owned()],
        paths => routed(paths).iter().map(|path| path.text().unwrap_or_else(|| "*".to_owned())).collect(),
    }
}

fn has_script_fallback(site: &CaddySiteParts<'_, '_>) -> bool {
    site.parts
        .handlers
        .iter()
        .any(|node| node.name() == "fastcgi" && node.children.iter().any(|child| child.name() == "fallback"))
}

/// Names that are not served.
fn hide(site: &mut CaddySiteParts<'_, '_>, directive: &Directive, reach: &Reach) {
    let mut tests = reach.tests.clone();
    if !matches!(reach.paths.as_slice(), [] | [ForeignPattern::Prefix(_)]) {
        tests.push(any_path(&reach.paths));
    }
    for name in &directive.arguments {
        // A path on the disk cannot be compared with the request's, except for its end.
        let name = name.trim_end_matches('/').rsplit('/').next().unwrap_or(name);
        let part = |part: &str| regex::escape(part).replace(r"\?", "[^/]");
        let expression = name.split('*').map(part).collect::<Vec<_>>().join("[^/]*");
        let prefix = match reach.paths.as_slice() {
            [ForeignPattern::Prefix(prefix)] => format!("^{}", regex::escape(prefix.trim_end_matches('/'))),
            _ => String::new(),
        };
        let pattern = if prefix.is_empty() {
            format!("~/{expression}(?:/|$)")
        } else {
            format!("~{prefix}(?:/.*)?/{expression}(?:/|$)")
        };
        let node = with_path(KdlNode::new("deny").word("all"), Some(pattern)).word_property("status", 404);
        site.parts.guards.push(with_tests(node, &tests));
    }
}

/// `php_fastcgi`.
pub(super) fn php(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    values: &[String],
    reach: &Reach,
    scope: &mut Scope,
    rest: &[&Directive],
    notes: &mut Notes,
) {
    let is_for_all = |next: &Directive| next.arguments.first().is_none_or(|first| !first.starts_with(['/', '@']));
    let has_files = rest.iter().any(|next| next.name == "file_server" && is_for_all(next));
    let is_whole = reach.paths.is_empty() && reach.tests.is_empty();
    let mut front = None;
    let mut options = Vec::new();
    let mut root = scope.root.clone();
    let mut index = Some("index.php".to_owned());
    let mut fallback = None;
    let mut addresses: Vec<String> = values.to_vec();
    let mut extensions = vec![".php".to_owned()];
    let mut has_tries = false;
    let mut is_rejected = false;
    for child in directive.children() {
        match child.name.as_str() {
            "to" => addresses.extend(child.arguments.iter().cloned()),
            // Files are looked for below the root of the site.
            "root" if has_files && root.is_some() => options.push(KdlNode::with("server-root", child.first())),
            "root" => root = Some(child.first().to_owned()),
            "env" => match placeholders::text(
                child.arguments.get(1).map_or("", String::as_str),
                TextPlace::Fixed,
                site.host.as_deref(),
            ) {
                Ok(value) => options.push(KdlNode::with("variable", child.first()).text(value)),
                Err(why) => notes.left(child, why),
            },
            "index" if child.first() == "off" => index = None,
            "index" => index = Some(child.first().to_owned()),
            "try_files" => {
                has_tries = true;
                is_rejected = child.arguments.last().is_some_and(|last| last == "=404");
                fallback = child.arguments.last().filter(|last| !last.contains('{') && !last.starts_with('=')).cloned();
            }
            "split" => extensions = child.arguments.clone(),
            "read_timeout" => options.extend(proxy::time_option("first-byte-timeout", child, notes)),
            "dial_timeout" | "write_timeout" | "capture_stderr" | "resolve_root_symlink" => {
                notes.needless(child, "the defaults suit PHP-FPM");
            }
            "trusted_proxies" => notes.left(child, "`trusted-proxies` of `server` applies to all sites"),
            _ => notes.left(child, "there is no counterpart"),
        }
    }
    let [address] = addresses.as_slice() else {
        return site.parts.close(
            directive,
            &reach.paths,
            "one FastCGI server answers here; write an `upstream`",
            notes,
        );
    };
    for (paths, _) in &scope.roots {
        let of_both = reach.shared_with(paths).unwrap_or_else(|_| paths.clone());
        if !of_both.is_empty() {
            site.parts.close(directive, &of_both, "scripts have one root", notes);
        }
    }
    let to = match address.strip_prefix("unix/") {
        Some(path) => format!("unix:{path}"),
        None => {
            format!("tcp://{}", if address.starts_with(':') { format!("127.0.0.1{address}") } else { address.clone() })
        }
    };
    if let Some(index) = &index {
        if index != "index.php" {
            options.push(KdlNode::with("index", index));
        }
        let last = if has_tries { fallback } else { Some(index.clone()) };
        // Missing paths have got another one before, which may be a script.
        let is_script = |path: &String| extensions.iter().any(|extension| path.ends_with(extension.as_str()));
        let last = match &scope.tries {
            tries if tries.is_strict => None,
            tries if tries.fallback.is_some() => tries.fallback.clone().filter(is_script),
            _ => last,
        };
        front = last.map(|last| format!("/{}", last.trim_start_matches('/')));
        is_rejected |= scope.tries.is_strict;
    }
    let is_tried = scope.tries.is_strict || scope.tries.fallback.is_some();
    // The index would be that of all directories.
    if index.is_none() || !is_whole || (is_tried && !scope.tries.finds_scripts) {
        options.retain(|node| node.name() != "index");
        options.push(KdlNode::new("index"));
    }
    // A path after that of a script is no file.
    options.extend(is_tried.then(|| KdlNode::new("path-info").word("off")));
    let root = root.unwrap_or_else(|| ".".to_owned());
    match &front {
        Some(script) if is_whole => options.push(KdlNode::with("fallback", script)),
        Some(script) => {
            let place = own_place(reach, scope).filter(|_| has_files);
            match place {
                Some(below) => {
                    let own = site.own_path(&below);
                    let script_options = [options.clone(), vec![KdlNode::with("strip-prefix", &own)]].concat();
                    let node = KdlNode::with("fastcgi", format!("{own}{script}")).text(&to).property("root", &root);
                    site.parts.handlers.push(node.block(script_options));
                    site.parts.handlers.push(KdlNode::with("respond", format!("{own}/*")).word(404));
                    let path = format!("{}{script}", own.strip_prefix(&scope.prefix).unwrap_or(&own));
                    scope.front = Some(CaddyFront { reach: reach.clone(), path, index: index.clone() });
                }
                None => {
                    let why = "its front controller needs a `file_server`, and paths below one or all";
                    notes.left(directive, why);
                }
            }
        }
        None => {}
    }
    if !scope.prefix.is_empty() {
        options.push(KdlNode::with("strip-prefix", &scope.prefix));
    }
    for extension in &extensions {
        let suffix = ForeignPattern::Suffix(extension.clone());
        let targets: Vec<Option<ForeignPattern>> = match reach.paths.as_slice() {
            [] => vec![Some(suffix.clone())],
            paths => {
                let and = |path: &ForeignPattern| Some(of_fixed(&[path, &suffix], path.and(&suffix).ok().flatten()?));
                paths.iter().map(and).collect()
            }
        };
        for target in targets {
            let Some(text) = target.and_then(|target| target.text()) else {
                site.parts.close(directive, &reach.paths, "the scripts of these paths have no pattern here", notes);
                continue;
            };
            let node = KdlNode::with("fastcgi", &text).text(&to);
            let node = if is_whole && has_files { node } else { node.property("root", &root) };
            site.parts.handlers.push(with_tests(node, &reach.tests).block(options.clone()));
            let has_front = is_whole && front.is_some();
            if !has_files && !is_rejected && !has_front {
                // The FastCGI server has no such script.
                site.parts.handlers.push(with_tests(KdlNode::with("respond", text).word(404), &reach.tests));
            }
        }
    }
    if !is_whole && is_rejected && !has_files {
        site.seal(reach, 404);
    }
    if is_whole && has_files {
        site.parts.set_file_option(KdlNode::with("root", root));
    } else if is_whole && (is_rejected || front.is_some()) {
        site.rejects_rest = true;
        if front.is_some() {
            notes.left(directive, "its front controller gets files that are no scripts, after handlers that follow");
        }
    }
}

/// Path below which a block has all paths, or nothing for all of a site.
fn own_place(reach: &Reach, scope: &Scope) -> Option<String> {
    match reach.paths.as_slice() {
        [] if scope.prefix.is_empty() => Some(String::new()),
        [ForeignPattern::Prefix(prefix)] if prefix.ends_with('/') => {
            let below = prefix.trim_end_matches('/');
            (scope.prefix.is_empty() || scope.prefix == below).then(|| below.to_owned())
        }
        _ => None,
    }
}
