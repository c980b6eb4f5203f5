//! `Alias` and `ScriptAlias`: directories, files and programs at other paths than those on the disk. Programs of
//! `AddHandler cgi-script`, too.

use std::borrow::Cow;
use std::path::Path;

use super::directory_index::names_of;
use super::host::is;
use super::proxy;
use super::section::{self, ApacheSection, Mount};
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::SiteParts;
use crate::pattern::ForeignPattern;

/// Extensions of files that aliases lead to, where the place itself is on another machine.
const EXTENSIONS: [&str; 14] =
    ["php", "cgi", "pl", "py", "rb", "fcgi", "wsgi", "ico", "txt", "html", "htm", "xml", "png", "svg"];

/// Returns `true` if an alias leads to a file. A program without an extension has a section of its directory.
pub(super) fn leads_to_file(alias: &Directive, blocks: &[&[Directive]]) -> bool {
    let place = Path::new(alias.argument(1));
    if alias.argument(1).ends_with('/') {
        return false;
    }
    if let Ok(found) = std::fs::metadata(place) {
        return found.is_file();
    }
    let has_section = |place: &Path| {
        let is_section = |child: &Directive| is(child, "directory") && Path::new(child.first()) == place;
        blocks.iter().any(|block| block.iter().any(is_section))
    };
    let has_extension = place.extension().is_some_and(|end| EXTENSIONS.iter().any(|known| end == *known));
    let is_program = is(alias, "scriptalias") && !alias.first().ends_with('/');
    has_extension || (is_program && place.parent().is_some_and(has_section) && !has_section(place))
}

/// Returns `true` if a rewrite for missing paths leads to a path below this one.
pub(super) fn leads_below(prefix: &str, parts: &SiteParts) -> bool {
    let own = format!("{prefix}/");
    let leads = |node: &KdlNode| node.has_property("missing") && node.last_value().starts_with(&own);
    parts.redirects.iter().any(|node| node.name() == "rewrite" && leads(node))
}

/// Facts that all aliases need.
pub(super) struct AliasContext<'a> {
    pub(super) mounts: &'a [Mount],
    pub(super) sections: &'a [ApacheSection<'a>],
    /// Names of index files of the site.
    pub(super) indexes: &'a [String],
    /// Names of index files of the host, without sections.
    pub(super) of_host: &'a [String],
    /// True if an upstream gets all paths that no other handler has.
    pub(super) is_forwarded: bool,
}

impl<'a> AliasContext<'a> {
    /// Names of index files below an alias.
    pub(super) fn indexes_of(&self, mount: &Mount) -> Cow<'a, [String]> {
        let own = ForeignPattern::Prefix(format!("{}/", mount.prefix));
        let is_own =
            |section: &&ApacheSection<'a>| section.patterns.as_deref().is_ok_and(|patterns| patterns.contains(&own));
        let of_mount = self.sections.iter().filter(is_own).rev().find_map(|section| names_of(section.block));
        // Sections of the root are for directories below it.
        let is_below =
            |root: &Mount| root.prefix.is_empty() && Path::new(&mount.directory).starts_with(&root.directory);
        let of_others = if self.mounts.iter().any(is_below) { self.indexes } else { self.of_host };
        of_mount.map_or(Cow::Borrowed(of_others), Cow::Owned)
    }

    /// The path of a file that is below another directory of the site.
    fn path_of(&self, file: &Mount) -> Option<String> {
        self.mounts.iter().filter(|mount| !mount.is_file).find_map(|mount| {
            let rest = file.directory.strip_prefix(&mount.directory).filter(|rest| rest.starts_with('/'))?;
            Some(format!("{}{rest}", mount.prefix)).filter(|path| *path != file.prefix)
        })
    }

    /// Handlers of an alias, and what leads to it. `alias` is its directive.
    pub(super) fn translate(&self, mount: &Mount, alias: &Directive, parts: &mut SiteParts) {
        let is_script = is(alias, "scriptalias");
        if mount.is_file {
            return self.file(mount, is_script, alias.first().ends_with('/'), parts);
        }
        let pattern = format!("{}/*", mount.prefix);
        let names = self.indexes_of(mount);
        let at_index = |file: &&Mount| {
            file.is_file && names.first().is_some_and(|name| file.prefix == format!("{}/{name}", mount.prefix))
        };
        if let Some(file) = self.mounts.iter().find(at_index) {
            let path = format!("{}/", mount.prefix);
            parts.redirects.push(KdlNode::with("rewrite", path).text(&file.prefix));
        }
        let mut lines = vec![KdlNode::with("strip-prefix", &mount.prefix)];
        if !is_script && (*names != ["index.html"] || self.indexes != ["index.html"]) {
            lines.push(KdlNode::new("index").texts(names.iter()));
        }
        let node = KdlNode::with(if is_script { "cgi" } else { "files" }, &pattern).property("root", &mount.directory);
        let has_password = parts.guards.iter().any(|node| node.name() == "basic-auth" && node.is_for(&pattern));
        // A path without its slash is a directory's, unless the alias ends with one.
        if alias.first() == mount.prefix {
            if has_password {
                let pattern = format!("~^{}$", regex::escape(&mount.prefix));
                let node = KdlNode::with("files", pattern).property("root", &mount.directory);
                parts.handlers.push(node.block(vec![KdlNode::with("strip-prefix", &mount.prefix)]));
            } else {
                let target = format!("{}/{{query}}", mount.prefix);
                let node = KdlNode::with("redirect", &mount.prefix).text(target);
                parts.redirects.push(node.word_property("status", 301));
            }
        }
        parts.handlers.push(node.block(lines));
        parts.handlers.extend(self.programs().filter(|(of, _)| of.prefix == mount.prefix).map(|(_, node)| node));
        // Otherwise the path goes on to the rewrite.
        if self.is_forwarded || !leads_below(&mount.prefix, parts) {
            parts.handlers.push(KdlNode::with("respond", pattern).word(404));
        }
    }

    /// An alias to a file. `has_slash` is true if the alias ends with a slash.
    fn file(&self, mount: &Mount, is_script: bool, has_slash: bool, parts: &mut SiteParts) {
        let (Some((directory, name)), Some((around, own))) =
            (mount.directory.rsplit_once('/'), mount.prefix.rsplit_once('/'))
        else {
            return;
        };
        let other = self.path_of(mount).filter(|_| !is_script);
        // A name of its own cannot be that of another file.
        let around = if own == name { around } else { &mount.prefix };
        let path = other.clone().unwrap_or_else(|| format!("{around}/{name}"));
        let runs = is_script || name.ends_with(".php");
        if own != name || has_slash || other.is_some() {
            parts.redirects.push(match runs {
                true => KdlNode::with("rewrite", format!("~^{}(/.*)?$", regex::escape(&mount.prefix)))
                    .text(format!("{path}{{1}}")),
                false => {
                    let from = if has_slash { format!("{}/", mount.prefix) } else { mount.prefix.clone() };
                    KdlNode::with("rewrite", from).text(&path)
                }
            });
        }
        if other.is_none() {
            let node = KdlNode::with(if is_script { "cgi" } else { "files" }, path).property("root", directory);
            let line = (!around.is_empty()).then(|| KdlNode::with("strip-prefix", around));
            parts.handlers.push(node.block(line.into_iter().collect()));
        }
        if !runs {
            // A file has no paths below it, even if the root has a directory there.
            parts.handlers.push(KdlNode::with("respond", format!("{}/*", mount.prefix)).word(404));
        }
    }

    /// Programs of the site's own root.
    pub(super) fn programs_of_root(&self) -> impl Iterator<Item = KdlNode> {
        self.programs().filter(|(mount, _)| mount.prefix.is_empty()).map(|(_, node)| node)
    }

    /// Programs of sections with `cgi-script`, each with its alias.
    fn programs(&self) -> impl Iterator<Item = (&'a Mount, KdlNode)> {
        let own = self.sections.iter().filter(|section| runs_programs(section, self.sections));
        own.filter_map(|section| {
            let base = section.base.as_deref()?;
            let mount = section::mount_of(base, self.mounts).filter(|mount| !mount.is_file)?;
            let path = regex::escape(base);
            let handler = section.block.iter().rfind(|child| child.first() == "cgi-script")?;
            let ends: Vec<&str> = handler.arguments[1..].iter().map(|name| name.trim_start_matches('.')).collect();
            let pattern = match ends.is_empty() {
                true => format!("{base}/*"),
                false => {
                    let ends: Vec<String> = ends.iter().map(|end| regex::escape(end)).collect();
                    format!(r"~^{path}/.*\.(?:{})$", ends.join("|"))
                }
            };
            let names = self.indexes_of(mount);
            let is_program =
                |name: &&String| ends.is_empty() || name.rsplit_once('.').is_some_and(|(_, end)| ends.contains(&end));
            let names: Vec<&String> = names.iter().filter(is_program).collect();
            let mut lines = Vec::new();
            if !mount.prefix.is_empty() {
                lines.push(KdlNode::with("strip-prefix", &mount.prefix));
            }
            if !names.is_empty() {
                lines.push(KdlNode::new("index").texts(names));
            }
            Some((mount, KdlNode::with("cgi", pattern).property("root", &mount.directory).block(lines)))
        })
    }

    /// `SetHandler` of a section, which may be of an alias.
    pub(super) fn handler(
        &self,
        directive: &Directive,
        patterns: &[ForeignPattern],
        place: (&str, &[String], Option<&str>),
        parts: &mut SiteParts,
        notes: &mut Notes,
    ) {
        let mount = patterns.first().and_then(|pattern| section::mount_of(&pattern.head(), self.mounts));
        let Some(mount) = mount.filter(|mount| !mount.prefix.is_empty() && !mount.is_file) else {
            return proxy::handler(directive, patterns, place, parts, notes);
        };
        let from = parts.handlers.len();
        proxy::handler(directive, patterns, (&mount.directory, &self.indexes_of(mount), None), parts, notes);
        let pattern = format!("{}/*", mount.prefix);
        let is_files = |node: &KdlNode| node.name() == "files" && node.is_for(&pattern);
        let at = parts.handlers.iter().position(is_files).map_or(from, |at| at + 1);
        for node in parts.handlers.split_off(from).into_iter().rev().filter(|node| node.name() != "files") {
            let has_root = node.has_property("root") || node.name() != "fastcgi";
            let mut node = if has_root { node } else { node.property("root", &mount.directory) };
            node.children.insert(0, KdlNode::with("strip-prefix", &mount.prefix));
            parts.handlers.insert(at, node);
        }
    }

    /// `ProxyPassMatch "fcgi://…/$1"` of sections: all their paths are scripts, whether they exist or not.
    pub(super) fn passed_scripts(&self, parts: &mut SiteParts) {
        for section in self.sections {
            let Ok(patterns) = &section.patterns else { continue };
            for pass in section.block.iter().filter(|child| is(child, "proxypassmatch")) {
                let Ok(found) = proxy::target(pass.first()) else { continue };
                let Some(directory) = found.path.strip_suffix("/$1").filter(|_| found.is_fastcgi) else { continue };
                let Some(mount) = self.mounts.iter().find(|mount| mount.directory == directory) else { continue };
                for pattern in patterns.iter().filter_map(ForeignPattern::text) {
                    let node = KdlNode::with("fastcgi", &pattern).text(&found.to).property("root", directory);
                    let prefix = Some(&mount.prefix).filter(|prefix| !prefix.is_empty());
                    let lines = prefix.map(|prefix| KdlNode::with("strip-prefix", prefix)).into_iter();
                    parts.handlers.push(node.block(lines.chain([KdlNode::new("index")]).collect()));
                    parts.handlers.push(KdlNode::with("respond", pattern).word(404));
                }
            }
        }
    }

    /// PHP scripts and index files below aliases, after the handlers of aliases and scripts.
    pub(super) fn scripts(&self, parts: &mut SiteParts) {
        let of_scripts = parts.handlers.iter().find(|node| node.name() == "fastcgi" && node.is_for("*.php"));
        let Some(upstream) = of_scripts.map(|node| node.last_value().to_owned()) else { return };
        for mount in self.mounts.iter().filter(|mount| !mount.prefix.is_empty() && !mount.is_file) {
            let pattern = format!("{}/*", mount.prefix);
            let is_own = |node: &KdlNode| matches!(node.name(), "files" | "cgi") && node.is_for(&pattern);
            let Some(at) = parts.handlers.iter().position(is_own) else { continue };
            let node = KdlNode::with("fastcgi", format!(r"~^{}/.*\.php$", regex::escape(&mount.prefix)));
            let node = node.text(&upstream).property("root", &mount.directory);
            let lines = vec![KdlNode::with("strip-prefix", &mount.prefix)];
            let lines = lines.into_iter().chain(proxy::script_index(&self.indexes_of(mount))).collect();
            // The files come first, and a missing script last. Programs have all other files of their directory.
            let is_program = parts.handlers[at].name() == "cgi";
            parts.handlers.insert(if is_program { at } else { at + 1 }, node.block(lines));
        }
        // A script that an alias leads to.
        for node in parts.handlers.iter_mut().filter(|node| node.name() == "files") {
            if node.first_value().ends_with(".php") && !node.first_value().starts_with(['~', '*']) {
                *node = node.with_name("fastcgi", &upstream);
            }
        }
    }
}

/// Returns `true` if a section runs programs: its handler is `cgi-script`, and `ExecCGI` is among its options.
pub(super) fn runs_programs(section: &ApacheSection<'_>, all: &[ApacheSection<'_>]) -> bool {
    let is_handler = |child: &Directive| {
        child.first() == "cgi-script"
            && (is(child, "sethandler") || (is(child, "addhandler") && child.arguments.len() > 1))
    };
    section.block.iter().any(is_handler)
        && section.base.is_some()
        && programs_allowed(section.block)
            .or_else(|| {
                all.iter().rev().filter(|other| other.covers(section)).find_map(|other| programs_allowed(other.block))
            })
            .unwrap_or(false)
}

/// True if the options of a block have `ExecCGI`; `None` if they do not say so.
fn programs_allowed(block: &[Directive]) -> Option<bool> {
    let options = block.iter().rfind(|child| is(child, "options"))?;
    let word =
        options.arguments.iter().find(|word| word.trim_start_matches(['+', '-']).eq_ignore_ascii_case("execcgi"));
    let is_relative = options.arguments.iter().any(|word| word.starts_with(['+', '-']));
    match word {
        Some(word) => Some(!word.starts_with('-')),
        None if is_relative => None,
        None => Some(options.arguments.iter().any(|word| word.eq_ignore_ascii_case("all"))),
    }
}
