//! Virtual hosts: sites. Their names and listeners are in [`super::addresses`].

use std::path::Path;

use super::alias::AliasContext;
use super::expression::ExpressionScope;
use super::known::{is_known, is_needless};
use super::options::{self, error_page, options};
use super::overrides::Overrides;
use super::proxy::{self, ProxyOptions};
use super::redirects::{self, redirect};
use super::rewrite::{self, RewriteScope};
use super::section::{self, ApacheSection, Mount};
use super::{access, alias, conditional, directory_index, environment, fields, rewrite_aliases, wider};
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::SiteParts;
use crate::pattern::{ForeignPattern, expression, quoted};

/// Usual socket of PHP-FPM.
const PHP_SOCKET: &str = "unix:/run/php/php-fpm.sock";

/// Translates all hosts.
pub(super) fn translate(directives: &[Directive], of_directory: Option<&Path>, notes: &mut Notes) -> Vec<KdlNode> {
    let is_host = |directive: &&Directive| is(directive, "virtualhost");
    let hosts: Vec<&Directive> = directives.iter().filter(is_host).collect();
    let mut nodes = server(directives);
    let (mut upstreams, mut sites) = (proxy::balancers(directives, notes), Vec::new());
    if let Some(path) = of_directory {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let overrides = Overrides::below(path, directory, directives.first());
        let directory = directory.to_string_lossy();
        let blocks = vec![directives];
        let site = HostSource { host: None, blocks, directory: Some(&directory), overrides: &overrides };
        sites.push(site.translate(notes));
    } else if hosts.is_empty() {
        let none = Overrides::default();
        let site = HostSource { host: None, blocks: vec![directives], directory: None, overrides: &none };
        let overrides = site.overrides();
        sites.push(HostSource { overrides: &overrides, ..site }.translate(notes));
    }
    for host in hosts {
        upstreams.extend(proxy::balancers(host.children(), notes));
        let none = Overrides::default();
        let blocks = vec![directives, host.children()];
        let site = HostSource { host: Some(host), blocks, directory: None, overrides: &none };
        let overrides = site.overrides();
        if host.arguments.iter().all(|address| site.of_all_ports(address, false).is_empty()) {
            notes.left(host, "other hosts have all ports");
            continue;
        }
        sites.push(HostSource { overrides: &overrides, ..site }.translate(notes));
    }
    nodes.extend(upstreams);
    nodes.extend(sites);
    let unwritten = notes.unwritten();
    if let Some(first) = nodes.first_mut().filter(|_| !unwritten.is_empty()) {
        first.add_comment(&unwritten.join("\n"));
    }
    nodes
}

pub(super) fn is(directive: &Directive, name: &str) -> bool {
    directive.name.eq_ignore_ascii_case(name)
}

/// Settings of the process.
fn server(directives: &[Directive]) -> Vec<KdlNode> {
    let find = |name: &str| directives.iter().rfind(|directive| is(directive, name)).map(Directive::first);
    let user = find("user").filter(|user| !user.contains(['$', '#']));
    let lines: Vec<KdlNode> = user
        .map(|user| {
            let node = KdlNode::with("user", user);
            match find("group").filter(|group| !group.contains(['$', '#'])) {
                Some(group) if group != user => node.property("group", group),
                _ => node,
            }
        })
        .into_iter()
        .collect();
    if lines.is_empty() { Vec::new() } else { vec![KdlNode::new("server").required_block(lines)] }
}

/// Paths and conditions of directives.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// None are all paths.
    paths: &'a [ForeignPattern],
    /// Paths for header fields: of a section for names, those whose last name fits.
    names: &'a [ForeignPattern],
    /// Variables of responses.
    scope: ExpressionScope<'a>,
    /// Number of the first redirect by `Redirect` directives of the same block.
    block_start: usize,
    /// True if `ExpiresActive` is on.
    is_expiring: bool,
    /// True if `cgi-script` runs programs there.
    runs_programs: bool,
}

/// Directives of a host.
pub(super) struct HostSource<'a> {
    /// `None` is the main server.
    pub(super) host: Option<&'a Directive>,
    /// The main server's directives, then the host's.
    pub(super) blocks: Vec<&'a [Directive]>,
    /// Directory of a `.htaccess` file.
    directory: Option<&'a str>,
    /// Rules of `.htaccess` files.
    overrides: &'a Overrides,
}

impl<'a> HostSource<'a> {
    /// The directive that holds: the last one of the innermost block.
    pub(super) fn last(&self, name: &str) -> Option<&'a Directive> {
        self.blocks.iter().rev().find_map(|block| block.iter().rfind(|directive| is(directive, name)))
    }

    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &'a Directive> {
        self.blocks.iter().rev().flat_map(|block| block.iter()).filter(move |directive| is(directive, name))
    }

    pub(super) fn is_on(&self, name: &str) -> bool {
        self.last(name).is_some_and(|directive| directive.first().eq_ignore_ascii_case("on"))
    }

    fn translate(&self, notes: &mut Notes) -> KdlNode {
        let mut parts = SiteParts::default();
        let has_tls = self.is_on("sslengine");
        self.names(&mut parts, notes);
        self.listen(has_tls, &mut parts);
        self.tls(has_tls, &mut parts, notes);
        let root = self.root();
        if root.contains('%') {
            let directive = self.last("virtualdocumentroot").or(self.host).or(self.blocks[0].first());
            directive
                .into_iter()
                .for_each(|directive| parts.close(directive, &[], "its root has parts of the host", notes));
        }
        let mounts = self.mounts(&root);
        let mut blocks = self.blocks.clone();
        // A `.htaccess` file comes after the section of its directory.
        blocks.push(&self.overrides.sections);
        let sections = section::of_host(&blocks, &mounts);
        self.overrides.close(&mut parts, notes);
        if self.directory.is_some()
            && let Some(first) = self.blocks[0].first()
        {
            let mut all = section::of_host(&blocks, &mounts);
            all.insert(0, ApacheSection::of_site(first, self.blocks[0]));
            access::translate(&all, &self.blocks, &mounts, has_tls, &mut parts, notes);
        } else {
            access::translate(&sections, &self.blocks, &mounts, has_tls, &mut parts, notes);
        }
        let is_short = |alias: &&Directive| alias.arguments.len() < 2;
        for directive in self.all("alias").chain(self.all("scriptalias")).filter(is_short) {
            parts.close(directive, &[], "an alias needs a path and a directory", notes);
        }
        self.content(&root, &mounts, &sections, has_tls, &mut parts, notes);
        let place = self.host.or(self.blocks[0].first());
        let place = place.map(|directive| directive.place.to_string());
        let comment = [place.into_iter().collect(), notes.unwritten()].concat().join("\n");
        parts.into_node(&comment)
    }

    /// Directory of all paths without an alias.
    fn root(&self) -> String {
        if let Some(directory) = self.directory {
            return directory.to_owned();
        }
        let root = |name: &str| self.last(name).map(|root| root.first().to_owned());
        let of_hosts = root("virtualdocumentroot").map(|root| root.replace("%0", "{host}"));
        of_hosts.or_else(|| root("documentroot")).unwrap_or_default()
    }

    /// Directories of the site: its aliases, and its root.
    fn mounts(&self, root: &str) -> Vec<Mount> {
        let mut mounts: Vec<Mount> = self
            .aliases()
            .map(|directive| Mount {
                prefix: directive.first().trim_end_matches('/').to_owned(),
                directory: directive.argument(1).trim_end_matches('/').to_owned(),
                is_file: alias::leads_to_file(directive, &self.blocks),
            })
            .collect();
        if !root.is_empty() {
            let directory = root.trim_end_matches('/').to_owned();
            mounts.push(Mount { prefix: String::new(), directory, is_file: false });
        }
        mounts
    }

    /// Rules of `.htaccess` files below the directories of the site.
    fn overrides(&self) -> Overrides {
        let name = self.last("accessfilename").map_or(".htaccess", Directive::first);
        Overrides::of_site(&self.blocks, &self.mounts(&self.root()), name)
    }

    /// Handlers, redirects, header fields and the like.
    fn content(
        &self,
        root: &str,
        mounts: &[Mount],
        sections: &[ApacheSection<'a>],
        has_tls: bool,
        parts: &mut SiteParts,
        notes: &mut Notes,
    ) {
        let blocks = || self.blocks.iter().copied();
        let runs_scripts = |block: &[Directive]| {
            block.iter().any(|child| is(child, "sethandler") && child.first().contains("fcgi://"))
        };
        let has_scripts = sections.iter().any(|section| runs_scripts(section.block))
            || self.all("proxypassmatch").any(|directive| directive.argument(1).contains("fcgi://"));
        // PHP that runs inside Apache has no directive in a site.
        let inner_scripts = if has_scripts { None } else { self.names_script(sections) };
        let has_scripts = has_scripts || inner_scripts.is_some();
        let names = parts.names.clone();
        let of_root = |section: &&ApacheSection<'_>| {
            section.patterns.as_deref().is_ok_and(|patterns| patterns.iter().any(ForeignPattern::is_all))
        };
        if !root.is_empty() {
            parts.set_file_option(KdlNode::with("root", root));
        }
        // Rules of the host come first, then those of directories.
        let mut fallback = None;
        let own = self.blocks.last().copied().unwrap_or_default();
        let base = self.directory.map(|_| "");
        let preserves_host = self.is_on("proxypreservehost");
        // Rules of a directory replace those of the directories around it.
        let rewrites = |section: &&ApacheSection<'_>| section.block.iter().any(|child| is(child, "rewriteengine"));
        let inner: Vec<String> = sections.iter().filter(rewrites).flat_map(ApacheSection::bases).cloned().collect();
        let indexes = directory_index::of_site(&self.blocks, sections, self.directory.is_some());
        let index = indexes.first().map_or("index.html", String::as_str);
        let mut all = blocks().chain(sections.iter().map(|section| section.block)).flatten();
        let inner_replace = !all.any(|child| is(child, "rewriteoptions"));
        let names = &names;
        let inner = &inner;
        let lifted = &access::lifted(sections, &self.blocks, mounts, has_tls);
        let guarded = &access::guarded(sections);
        let scope = RewriteScope {
            base,
            has_tls,
            names,
            has_scripts,
            preserves_host,
            inner,
            inner_replace,
            root,
            index,
            lifted,
            guarded,
            aliases: &[],
        };
        let inherits = self.host.is_some()
            && self.blocks.len() > 1
            && own.iter().any(|child| is(child, "rewriteoptions") && child.has("Inherit"));
        if inherits {
            rewrite::translate(self.blocks[0], &scope, parts, notes);
        }
        let found = rewrite::translate(own, &scope, parts, notes);
        if base.is_some() {
            access::wait_for_passwords(parts, 0);
        }
        let (mut takes_directories, mut keeps_files) = (found.takes_directories, found.keeps_files);
        let mut keeps_base = found.keeps_base;
        fallback = found.fallback.or(fallback);
        for (index, section) in sections.iter().enumerate() {
            let is_later = |later: &ApacheSection<'_>| later.is_same_directory(section) && later.has_rewrites();
            if inner_replace && section.has_rewrites() && sections[index + 1..].iter().any(is_later) {
                let rules = section.block.iter().filter(|child| is(child, "rewriterule"));
                rules.for_each(|rule| notes.needless(rule, "rules of the same directory after it replace it"));
                continue;
            }
            wider::note_rules(section, &self.blocks, notes);
            if rewrite_aliases::reject_without_directory(section, mounts, parts, notes) {
                continue;
            }
            let aliases = &rewrite_aliases::of_section(section, mounts);
            let scope = RewriteScope { base: section.base.as_deref(), aliases, ..scope };
            let from = parts.redirects.len();
            let found = rewrite::translate(section.block, &scope, parts, notes);
            for base in &section.other_bases {
                let scope = RewriteScope { base: Some(base), aliases: &[], ..scope };
                rewrite::translate(section.block, &scope, parts, notes);
            }
            rewrite_aliases::reject_below(section, mounts, &scope, parts, notes);
            access::wait_for_passwords(parts, from);
            takes_directories |= found.takes_directories;
            keeps_base |= found.keeps_base;
            keeps_files |= found.keeps_files;
            found.join_rules(parts);
            fallback = found.fallback.or(fallback);
        }
        let resource =
            sections.iter().filter(of_root).flat_map(|section| section.block).chain(blocks().rev().flatten());
        let mut resource = resource.filter(|child| is(child, "fallbackresource") && child.first() != "disabled");
        let resource = resource.next();
        let is_front = |node: &KdlNode| node.name() == "rewrite" && node.has_property("missing") && node.is_for("*");
        let has_front = fallback.is_some() || parts.redirects.iter().any(is_front);
        if let Some(directive) = resource.filter(|_| has_front) {
            notes.left(directive, "a rewrite leads missing paths elsewhere before");
        }
        let resource = resource.filter(|_| !has_front);
        let resource = resource.filter(|directive| !redirects::leads_on(directive, parts, notes));
        fallback = resource.map(|directive| directive.first().to_owned()).or(fallback);
        if (resource.is_some() || (has_front && !takes_directories)) && indexes.is_empty() {
            parts.set_file_option(KdlNode::new("require-index"));
        }
        Self::fallbacks(sections, parts, notes);
        if takes_directories && keeps_base {
            let is_required = indexes.is_empty().then(|| KdlNode::new("require-index"));
            let lines = [KdlNode::new("index").texts(&indexes)].into_iter().chain(is_required);
            parts.handlers.push(KdlNode::with("files", "/").block(lines.collect()));
        }
        let has_front = has_front || fallback.is_some();
        if has_front {
            directory_index::reject_methods(&indexes, sections, parts, notes);
        }
        if has_front && indexes.is_empty() && (keeps_base || !takes_directories) {
            // Other methods than those of files go to the script, otherwise.
            let node = KdlNode::with("respond", "/").word(403);
            parts.handlers.push(node.property("method", "!GET HEAD"));
        }
        parts.handlers.extend(directory_index::of_others(&indexes, parts));
        let nodes = directory_index::of_sections(&indexes, sections, mounts, parts, notes);
        parts.handlers.extend(nodes);
        directory_index::reject_forbidden_rules(sections, &self.blocks, parts, notes);
        let indexes = if takes_directories { Vec::new() } else { indexes };
        let is_forwarded = parts.last.is_some() || self.all("proxypass").any(|pass| pass.first() == "/");
        let of_host = directory_index::of_site(&self.blocks, &[], self.directory.is_some());
        let context = AliasContext { mounts, sections, indexes: &indexes, of_host: &of_host, is_forwarded };
        for alias in self.all_aliases().filter(|alias| self.is_shadowed(alias)) {
            notes.needless(alias, "an alias before it has its paths");
        }
        for (mount, alias) in mounts.iter().zip(self.aliases()) {
            context.translate(mount, alias, parts);
        }
        for directive in self.all("aliasmatch").chain(self.all("scriptaliasmatch")) {
            let pattern = expression(directive.first()).map(ForeignPattern::Expression);
            let patterns: Vec<ForeignPattern> = pattern.into_iter().collect();
            parts.close(directive, &patterns, "an alias is a prefix", notes);
        }
        let is_led_below =
            mounts.iter().any(|mount| !mount.prefix.is_empty() && alias::leads_below(&mount.prefix, parts));
        if let Some(path) = fallback.take_if(|_| is_led_below) {
            parts.redirects.push(KdlNode::with("rewrite", "*").text(path).word_property("missing", "on"));
        }
        self.upstreams(root, sections, parts, notes);
        parts.handlers.extend(context.programs_of_root());
        if let Some(directive) = inner_scripts {
            let why = "PHP runs inside Apache; start PHP-FPM, and set its socket in `fastcgi`";
            notes.left(directive, why);
            let fallback =
                fallback.iter().filter(|path| path.ends_with(".php")).map(|path| KdlNode::with("fallback", path));
            parts.handlers.extend(proxy::earlier_indexes(&indexes));
            let node = KdlNode::with("fastcgi", "*.php").text(PHP_SOCKET).comment(why);
            let node = if root.is_empty() { node.property("root", ".") } else { node };
            let index = proxy::script_index(&indexes);
            parts.handlers.push(node.block(index.into_iter().chain(fallback).collect()));
        }
        let missing = parts.redirects.iter().rfind(|node| node.has_property("missing") && node.is_for("*"));
        let front = fallback.clone().or(missing.map(|node| node.last_value().to_owned()));
        let script = fallback.clone().filter(|path| path.ends_with(".php") && has_scripts);
        for section in sections {
            if let Ok(patterns) = &section.patterns {
                for directive in section.block {
                    if directive.first() == "cgi-script" && self.runs_programs(patterns) {
                        notes.needless(directive, "`ScriptAlias` runs them");
                    } else if directive.first() == "cgi-script" && alias::runs_programs(section, sections) {
                        notes.needless(directive, "`cgi` runs them");
                    } else if is(directive, "sethandler") {
                        let place = (root, indexes.as_slice(), script.as_deref());
                        context.handler(directive, patterns, place, parts, notes);
                    }
                }
            }
        }
        // Missing scripts have a handler, so they do not lead to a `FallbackResource`.
        let is_of_scripts = |node: &KdlNode| node.name() == "fastcgi" && node.is_for("*.php");
        let has_fallback = resource.is_some() && !is_led_below;
        if let Some(at) = parts.handlers.iter().rposition(is_of_scripts).filter(|_| has_fallback) {
            parts.handlers.insert(at + 1, KdlNode::with("respond", "*.php").word(404));
        }
        context.scripts(parts);
        context.passed_scripts(parts);
        if let Some(path) = fallback.filter(|_| script.is_none()) {
            parts.set_file_option(KdlNode::with("fallback", path));
        }
        if !root.is_empty() && (parts.last.is_none() || keeps_files) {
            parts.set_file_option(KdlNode::new("index").texts(&indexes));
        }
        if parts.last.is_some() && !keeps_files {
            // All paths are forwarded: the root has no files.
            parts.files.clear();
            parts.handlers.retain(|node| node.name() != "files" || node.has_property("root"));
        }
        let is_expiring = blocks().chain(sections.iter().map(|section| section.block)).any(fields::is_expiring);
        for block in blocks() {
            let environment = environment::of_responses(&self.blocks, sections, block, has_tls);
            let scope = ExpressionScope { has_tls, environment: &environment };
            let from = parts.redirects.len();
            let place = Place { paths: &[], names: &[], scope, block_start: from, is_expiring, runs_programs: false };
            for directive in block {
                if is(directive, "sethandler") && !directive.first().eq_ignore_ascii_case("none") {
                    parts.close(directive, &[], "a handler of all paths has no counterpart", notes);
                }
                self.setting(directive, place, parts, notes);
            }
            let from = if self.directory.is_some() { from } else { parts.redirects.len() };
            let early = environment::of_blocks(&self.blocks, sections, block, has_tls);
            conditional::translate(block, &[], ExpressionScope { has_tls, environment: &early }, parts, notes);
            access::wait_for_passwords(parts, from);
        }
        for section in sections {
            match &section.patterns {
                Ok(patterns) => {
                    for directive in section.block.iter().filter(|directive| is_tls_guard(directive)) {
                        parts.close(directive, patterns, "certificates of clients are checked for whole sites", notes);
                    }
                    let of_index = Self::index_paths(section, &context);
                    let patterns = [patterns.as_slice(), &of_index].concat();
                    let patterns = if patterns.iter().any(ForeignPattern::is_all) { &[] } else { patterns.as_slice() };
                    let environment = environment::of_responses(&self.blocks, sections, section.block, has_tls);
                    let scope = ExpressionScope { has_tls, environment: &environment };
                    let runs_programs = alias::runs_programs(section, sections);
                    let (from, redirects) = (parts.fields.len(), parts.redirects.len());
                    let names = match is_of_files(section.directive) {
                        true => patterns.iter().map(section::at_last_name).collect(),
                        false => patterns.to_vec(),
                    };
                    let names = names.as_slice();
                    let place =
                        Place { paths: patterns, names, scope, block_start: redirects, is_expiring, runs_programs };
                    section.block.iter().for_each(|directive| self.setting(directive, place, parts, notes));
                    let early = environment::of_blocks(&self.blocks, sections, section.block, has_tls);
                    let scope = ExpressionScope { has_tls, environment: &early };
                    let rejections = parts.rejections.len();
                    conditional::translate(section.block, patterns, scope, parts, notes);
                    rewrite_aliases::keep_elsewhere(section, mounts, &mut parts.rejections[rejections..]);
                    access::wait_for_passwords(parts, redirects);
                    if is_of_files(section.directive)
                        && front.as_ref().is_some_and(|path| !patterns.iter().any(|one| one.fits(path)))
                    {
                        // Missing files are those of the front controller, which has another name.
                        let own = parts.fields[from..].iter_mut().filter(|node| node.name() == "response-header");
                        own.for_each(|node| node.add_condition("response.header.etag"));
                    }
                }
                Err(why) if section.block.iter().any(|child| is_tls_guard(child) || is_conditional_guard(child)) => {
                    parts.close(section.directive, &[], why.clone(), notes);
                }
                Err(why) => {
                    let scope = ExpressionScope { has_tls, environment: &Default::default() };
                    if !conditional::translate_other_files(section.directive, scope, parts, notes) {
                        notes.left(section.directive, why.clone());
                    }
                }
            }
        }
        let is_off = |child: &Directive| is(child, "expiresactive") && child.first().eq_ignore_ascii_case("off");
        if sections.iter().any(|section| section.block.iter().any(is_off)) {
            fields::keep_expires_of_files(parts);
        }
        access::keep_names(parts);
        let mut all = blocks().chain(sections.iter().map(|section| section.block)).flatten();
        if !all.any(|child| is(child, "header") && child.first().eq_ignore_ascii_case("always")) {
            fields::keep_from_redirects(parts);
        }
        if !parts.files.iter().any(|node| node.name() == "root") {
            let all = blocks().chain(sections.iter().map(|section| section.block)).flatten();
            options::drop_error_pages(all, parts, notes);
        }
        directory_index::drop_listings(&indexes, sections, parts, notes);
        // A redirect to the path without its slash would lead there and back.
        if parts.redirects.iter().any(|node| node.name() == "redirect" && node.has_property("missing")) {
            parts.set_file_option(KdlNode::new("require-index"));
            // The index of scripts comes after that of files.
            for node in parts.handlers.iter_mut().filter(|node| node.name() == "files" && node.is_for("~/$")) {
                node.children.push(KdlNode::new("require-index").word("off"));
            }
        }
    }

    /// Returns `true` if a `ScriptAlias` is for all these paths.
    fn runs_programs(&self, patterns: &[ForeignPattern]) -> bool {
        let is_alias = |pattern: &ForeignPattern| {
            let covers = |alias: &Directive| pattern.head().starts_with(alias.first().trim_end_matches('/'));
            !pattern.is_all() && self.all("scriptalias").any(covers)
        };
        patterns.iter().all(is_alias)
    }

    /// Directive that names a PHP script.
    fn names_script(&self, sections: &[ApacheSection<'a>]) -> Option<&'a Directive> {
        let own = || self.blocks.iter().copied().chain(sections.iter().map(|section| section.block)).flatten();
        let is_script = |word: &str| word.contains(".php");
        let mut named = own().filter(|child| match child.name.to_ascii_lowercase().as_str() {
            "directoryindex" | "fallbackresource" => child.arguments.iter().any(|word| is_script(word)),
            "rewriterule" => is_script(child.argument(1)),
            _ => false,
        });
        let place = self.host.or(self.blocks[0].first());
        named.next().or_else(|| {
            // A rule for scripts, or scripts beside the file.
            let has_rule = own().any(|child| is(child, "rewriterule") && is_script(child.first()));
            place.filter(|_| has_rule || has_scripts_below(Path::new(&self.root())))
        })
    }

    /// Aliases with two arguments that have paths, in the order in which Apache tries them.
    fn aliases(&self) -> impl Iterator<Item = &'a Directive> {
        self.all_aliases().filter(|alias| !self.is_shadowed(alias))
    }

    /// Returns `true` if an alias before this one has all its paths.
    fn is_shadowed(&self, alias: &Directive) -> bool {
        let prefix = |alias: &'a Directive| alias.first().trim_end_matches('/');
        let mut before = self.all_aliases().take_while(|other| !std::ptr::eq(*other, alias));
        before.any(|other| alias.first().strip_prefix(prefix(other)).is_some_and(|rest| rest.starts_with('/')))
    }

    fn all_aliases(&self) -> impl Iterator<Item = &'a Directive> {
        let blocks = self.blocks.iter().rev().flat_map(|block| block.iter());
        blocks.filter(|child| (is(child, "alias") || is(child, "scriptalias")) && child.arguments.len() >= 2)
    }

    /// Paths of directories whose index is a file of a `Files` section, for its header fields.
    fn index_paths(section: &ApacheSection<'_>, context: &AliasContext<'_>) -> Vec<ForeignPattern> {
        let is_field = |child: &Directive| is(child, "header");
        let Ok([pattern]) = section.patterns.as_deref() else { return Vec::new() };
        if !is_of_files(section.directive) || !section.block.iter().all(is_field) {
            return Vec::new();
        }
        let is_index = |mount: &&Mount| {
            context.indexes_of(mount).first().is_some_and(|name| pattern.fits(&format!("{}/{name}", mount.prefix)))
        };
        let mounts = context.mounts.iter().filter(|mount| !mount.is_file).filter(is_index);
        mounts.map(|mount| ForeignPattern::Expression(format!("^{}/(?:.*/)?$", regex::escape(&mount.prefix)))).collect()
    }

    /// `FallbackResource` of directories below the root.
    fn fallbacks(sections: &[ApacheSection<'_>], parts: &mut SiteParts, notes: &mut Notes) {
        for section in sections {
            let Some(base) = section.base.as_deref().filter(|base| !base.is_empty()) else { continue };
            let own = section.block.iter().rfind(|child| is(child, "fallbackresource"));
            let is_path = |own: &&Directive| own.first().starts_with('/');
            if let Some(own) = own.filter(is_path).filter(|own| !redirects::leads_on(own, parts, notes)) {
                // Missing scripts have a handler, so they do not lead there.
                let node = KdlNode::with("rewrite", format!("{base}/*")).text(own.first());
                let mut node = node.property("when", r"not path matches '\.php(/|$)'");
                if section.block.iter().any(|child| is(child, "rewriterule")) {
                    // Rules for its missing index make an error of the directory itself.
                    node.add_condition(&format!("path != {}", quoted(&format!("{base}/"))));
                }
                parts.redirects.push(node.word_property("missing", "on"));
            }
        }
    }

    /// `ProxyPass` of sections, the last of which counts, and then of the host.
    fn upstreams(&self, root: &str, sections: &[ApacheSection<'a>], parts: &mut SiteParts, notes: &mut Notes) {
        let is_forwarded = parts.last.is_some();
        let preserves_host = self.is_on("proxypreservehost");
        let is_pass = |directive: &Directive| is(directive, "proxypass") || is(directive, "proxypassmatch");
        let blocks = sections.iter().map(|section| section.block).chain(self.blocks.iter().copied());
        if is_forwarded {
            for directive in blocks.flatten().filter(|directive| is_pass(directive)) {
                notes.needless(directive, "a rewrite forwards all paths before");
            }
            return;
        }
        // A section that says whether the host is preserved says it for a later one around it, too.
        let is_merged = |index: &usize| {
            let later = &sections[index + 1..];
            proxy::preserves_host(&sections[*index]).is_some()
                && !later.iter().any(proxy::is_exclusion)
                && later.iter().any(|around| proxy::is_within(&sections[*index], around))
        };
        let (merged, others): (Vec<usize>, Vec<usize>) = (0..sections.len()).rev().partition(is_merged);
        for section in merged.into_iter().chain(others).map(|index| &sections[index]) {
            let Ok(patterns) = &section.patterns else { continue };
            let own = proxy::preserves_host(section);
            let options = ProxyOptions { preserves_host: own.unwrap_or(preserves_host) };
            for directive in section.block.iter().filter(|child| is(child, "proxypass")) {
                proxy::pass(directive, Some(patterns), options, Some(root), parts, notes);
            }
        }
        let options = ProxyOptions { preserves_host };
        for directive in self.blocks.iter().rev().copied().flatten() {
            match directive.name.to_ascii_lowercase().as_str() {
                "proxypass" => proxy::pass(directive, None, options, Some(root), parts, notes),
                "proxypassmatch" => proxy::pass_match(directive, options, root, parts, notes),
                _ => {}
            }
        }
    }

    /// A directive that needs no other.
    fn setting(&self, directive: &Directive, place: Place<'_>, parts: &mut SiteParts, notes: &mut Notes) {
        let paths = place.paths;
        let name = directive.name.to_ascii_lowercase();
        if access::is_part(directive) {
            return;
        }
        match name.as_str() {
            "directoryindex"
                if directive.arguments.iter().any(|name| name.starts_with('/') && !name.ends_with(".php")) =>
            {
                notes.left(directive, "an index file is one of its directory; use a `rewrite` for another one");
            }
            "header" | "requestheader" => fields::header(directive, place.names, place.scope, parts, notes),
            "expiresbytype" | "expiresdefault" if !place.is_expiring => {
                notes.needless(directive, "there is no `ExpiresActive on`");
            }
            "expiresbytype" | "expiresdefault" => fields::expires(directive, parts, paths, notes),
            "redirect" | "redirectpermanent" | "redirecttemp" | "redirectmatch"
                if paths.is_empty() && wider::is_forwarded_before(directive, &self.blocks) =>
            {
                notes.needless(directive, "`ProxyPass` has its paths, and comes first");
            }
            "redirect" | "redirectpermanent" | "redirecttemp" | "redirectmatch" => {
                redirect(directive, paths, place.block_start, parts, notes);
            }
            "errordocument" => error_page(directive, parts, notes),
            "options" => options(directive, paths, parts, notes),
            "addtype" if paths.is_empty() => {
                let content_type = directive.first().split(';').next().unwrap_or_default();
                let names = directive.arguments.get(1..).unwrap_or_default();
                if content_type.contains("php") || content_type.contains("server-parsed") {
                    return parts.close(directive, &extensions(names), "run PHP-FPM, and use `fastcgi`", notes);
                }
                if names.is_empty() {
                    return notes.left(directive, "it needs a type and extensions");
                }
                let node = KdlNode::with("type", content_type);
                let node = names.iter().fold(node, |node, name| node.text(name.trim_start_matches('.')));
                parts.files.push(node);
            }
            "addhandler" if place.runs_programs && directive.first() == "cgi-script" => {
                notes.needless(directive, "`cgi` runs them");
            }
            "addhandler" | "action" => {
                let why = "run scripts with `fastcgi` or `cgi`";
                parts.close(directive, &extensions(directive.arguments.get(1..).unwrap_or_default()), why, notes);
            }
            "addoutputfilter" | "setoutputfilter"
                if directive.arguments.iter().any(|word| word.contains("INCLUDES")) =>
            {
                parts.close(directive, paths, "there are no server-side includes", notes);
            }
            "adddefaultcharset" if paths.is_empty() => {
                let name = match directive.first().to_ascii_lowercase().as_str() {
                    "off" => String::new(),
                    "on" => "iso-8859-1".to_owned(),
                    name => name.to_owned(),
                };
                parts.set_file_option(KdlNode::with("charset", name));
            }
            "forcetype" | "defaulttype" if paths.is_empty() && directive.first().contains('/') => {
                parts.set_file_option(KdlNode::with("default-type", directive.first()));
            }
            "limitrequestbody" if paths.is_empty() => match directive.first().parse::<u64>() {
                Ok(0) => {}
                Ok(bytes) => parts.options.push(KdlNode::with("body-bytes-max", crate::config::format_size(bytes))),
                Err(_) => notes.left(directive, "this is not a size"),
            },
            "customlog" | "transferlog" => {
                let target = directive.first();
                if target.starts_with('|') || directive.argument(2).starts_with("env=") {
                    return notes.left(directive, "logs go to a file, `stdout` or `syslog`, without a condition");
                }
                let format = if directive.argument(1).starts_with("common") { "common" } else { "combined" };
                if !parts.others.iter().any(|node| node.name() == "access-log") {
                    let node = KdlNode::with("access-log", target);
                    parts.others.push(if format == "common" { node.property("format", format) } else { node });
                }
            }
            "setenv" if paths.is_empty() && parts.handlers.iter().any(|node| node.name() == "fastcgi") => {
                for node in parts.handlers.iter_mut().filter(|node| node.name() == "fastcgi") {
                    let value = directive.argument(1);
                    node.children.push(KdlNode::with("variable", directive.first()).text(if value.is_empty() {
                        " "
                    } else {
                        value
                    }));
                }
            }
            "if" | "elseif" | "else" => {}
            "sslrequiressl" if !self.is_on("sslengine") => parts.close(directive, paths, "the site has no TLS", notes),
            "sslrequiressl" => {}
            "use" | "include" => parts.close(directive, paths, "there is no such file or macro", notes),
            "authldapurl" if !paths.is_empty() => {
                parts.close(directive, paths, "there is no counterpart", notes);
            }
            "proxymatch" if !access::is_open(directive.children()) => {
                parts.close(directive, paths, "access rules are for paths, not for servers", notes);
            }
            name if is_known(name) => {}
            name if is_needless(name) => notes.needless(directive, "this server has one fixed way of it"),
            _ => notes.left(directive, "there is no counterpart"),
        }
    }
}

/// Returns `true` if a directory has PHP scripts, as far as that can be seen with little effort.
fn has_scripts_below(directory: &Path) -> bool {
    const ENTRIES_MAX: usize = 5000;
    let (mut waiting, mut left) = (vec![directory.to_owned()], ENTRIES_MAX);
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if left == 0 || path.extension().is_some_and(|name| name == "php") {
                return left > 0;
            }
            left -= 1;
            waiting.extend(entry.file_type().is_ok_and(|kind| kind.is_dir()).then_some(path));
        }
    }
    false
}

pub(super) fn is_of_files(directive: &Directive) -> bool {
    is(directive, "files") || is(directive, "filesmatch")
}

/// Paths of files with extensions.
fn extensions(names: &[String]) -> Vec<ForeignPattern> {
    let of = |name: &String| ForeignPattern::Suffix(format!(".{}", name.trim_start_matches('.')));
    names.iter().map(of).collect()
}

/// Returns `true` for a block that controls access under a condition.
fn is_conditional_guard(directive: &Directive) -> bool {
    ["if", "elseif", "else"].iter().any(|name| is(directive, name)) && conditional::guards(directive)
}

/// Directive by which a section checks certificates of clients, or other facts of a connection with TLS.
fn is_tls_guard(directive: &Directive) -> bool {
    is(directive, "sslrequire") || (is(directive, "sslverifyclient") && !directive.first().eq_ignore_ascii_case("none"))
}
