//! Access rules of sections, and their merge. [`super::requirements`] reads those of one block.

use super::environment;
use super::expression::{ApacheEnvironment, ExpressionScope};
use super::host::is_of_files;
use super::requirements::{AccessRule, ClientAccess, Refusal, old_rule, required};
use super::section::{self, ApacheSection, Mount};
use super::wider;
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::{SiteParts, for_each, on_path, with_path};
use crate::pattern::ForeignPattern;

/// Returns `true` if a directive belongs to access rules.
pub(super) fn is_part(directive: &Directive) -> bool {
    matches!(
        directive.name.to_ascii_lowercase().as_str(),
        "require"
            | "requireall"
            | "requireany"
            | "requirenone"
            | "order"
            | "allow"
            | "deny"
            | "satisfy"
            | "authtype"
            | "authname"
            | "authuserfile"
            | "authgroupfile"
            | "authbasicprovider"
            | "authmerging"
            | "authbasicauthoritative"
            | "limit"
            | "limitexcept"
            | "allowmethods"
    )
}

/// Returns `true` if a block lets all clients in, or says nothing of them.
pub(super) fn is_open(block: &[Directive]) -> bool {
    let open = |rule: Option<AccessRule>| rule.is_none_or(|rule| rule.is_open());
    let scope = ExpressionScope { has_tls: false, environment: &ApacheEnvironment::new() };
    rule(block, scope).is_ok_and(open) && !block.iter().any(is_limit)
}

/// Paths of `Location` sections that do not let all clients in.
pub(super) fn guarded(sections: &[ApacheSection<'_>]) -> Vec<ForeignPattern> {
    let closed = sections.iter().filter(|section| section.is_of_location() && !is_open(section.block));
    closed.flat_map(|section| section.patterns.iter().flatten().cloned()).collect()
}

/// Returns `true` if a block lets no client in, or says nothing of clients.
pub(super) fn is_closed(block: &[Directive]) -> bool {
    let closed = |rule: Option<AccessRule>| rule.is_none_or(|rule| rule.is_shut());
    let scope = ExpressionScope { has_tls: false, environment: &ApacheEnvironment::new() };
    rule(block, scope).is_ok_and(closed)
}

/// Returns `true` for rules that hold for some methods.
pub(super) fn is_limit(directive: &Directive) -> bool {
    matches!(directive.name.to_ascii_lowercase().as_str(), "limit" | "limitexcept" | "allowmethods")
}

/// Access of a block if it is the same for all clients; `Err` if it is another.
pub(super) fn of_all(block: &[Directive], scope: ExpressionScope<'_>) -> Result<Option<bool>, String> {
    match rule(block, scope) {
        Ok(None) => Ok(None),
        Ok(Some(AccessRule { access: ClientAccess::All, needs_password: false, .. })) => Ok(Some(true)),
        Ok(Some(AccessRule { access: ClientAccess::Denied, .. })) => Ok(Some(false)),
        Ok(Some(_)) => Err("under a condition, all clients are allowed or none".to_owned()),
        Err((_, why)) => Err(why),
    }
}

/// Access rules of all sections. The last one that Apache merges has the first line, which counts.
pub(super) fn translate(
    sections: &[ApacheSection<'_>],
    blocks: &[&[Directive]],
    mounts: &[Mount],
    has_tls: bool,
    parts: &mut SiteParts,
    notes: &mut Notes,
) {
    let mut lines = Vec::new();
    // Directories, each with the length of its alias: those of an alias are no part of the directories around it.
    let mut directories: Vec<(usize, Stated<'_>)> = Vec::new();
    let merge = Merge::new(sections, blocks, mounts, has_tls);
    for (index, section) in sections.iter().enumerate().rev() {
        let patterns = match &section.patterns {
            Ok(patterns) => patterns,
            Err(why) => {
                // Any path may be one of its.
                if section.block.iter().any(is_part) {
                    parts.close(section.directive, &[], why.clone(), notes);
                }
                continue;
            }
        };
        let environment = environment::of_blocks(blocks, sections, section.block, has_tls);
        let scope = ExpressionScope { has_tls, environment: &environment };
        methods(section, scope, parts, notes);
        if let Some(directive) = merge.takes_alternative_back(index) {
            parts.close(
                directive,
                patterns,
                "another section has `Satisfy Any`: write all rules of its paths here",
                notes,
            );
            continue;
        }
        let rule = match merge.rule(index, scope) {
            Ok(None) => continue,
            Ok(Some(rule)) => rule,
            Err((directive, why)) => {
                parts.close(directive, patterns, why, notes);
                continue;
            }
        };
        if let Some(any) =
            section.block.iter().find(|child| is_satisfy_any(child)).filter(|_| !rule.is_any && !rule.is_open())
        {
            notes.left(any, "all rules must let a client in, except of an address and a password in one section");
        }
        if !rule.is_open() {
            wider::note(section, blocks, mounts, notes);
        }
        if !rule.is_open() && merge.has_alternative_around(index) {
            notes.left(section.directive, "it does not inherit `Satisfy Any`: all of its rules must let a client in");
        }
        if rule.access == ClientAccess::Denied && !rule.needs_password && is_of_other_names(section.directive, blocks) {
            // Guards take a directory for a file without an extension.
            let nodes = for_each(patterns, |pattern| on_path("respond", pattern).word(403));
            parts.handlers.extend(nodes);
            continue;
        }
        if merge.is_final[index] {
            parts.guards.extend(for_each(patterns, |pattern| with_path(KdlNode::new("deny").word("all"), pattern)));
            continue;
        }
        let file = || setting(section, sections, "authuserfile");
        if rule.needs_password && file().is_none() {
            parts.close(section.directive, patterns, "there is no `AuthUserFile`", notes);
            continue;
        }
        if let Some(provider) = setting(section, sections, "authbasicprovider").filter(|_| rule.needs_password)
            && provider.first() != "file"
        {
            parts.close(provider, patterns, "passwords come from a file", notes);
            continue;
        }
        if let Some(kind) = setting(section, sections, "authtype").filter(|_| rule.needs_password)
            && !kind.first().eq_ignore_ascii_case("basic")
        {
            parts.close(kind, patterns, "only basic authentication is supported", notes);
            continue;
        }
        let realm = setting(section, sections, "authname").map_or("Restricted", Directive::first);
        let stated = Stated { patterns, rule, file: file().map(Directive::first), realm };
        if !section.is_of_directory() {
            lines.push(stated);
            continue;
        }
        let of_one_alias = |one: &ForeignPattern, other: &ForeignPattern| {
            section::alias_length(one, mounts) == section::alias_length(other, mounts)
        };
        for patterns in patterns.chunk_by(of_one_alias) {
            let length = section::alias_length(&patterns[0], mounts);
            directories.push((length, Stated { patterns, ..stated.clone() }));
        }
    }
    directories.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    lines.extend(directories.into_iter().map(|(_, stated)| stated));
    // No password lifts what stands before.
    let count = parts.guards.len();
    write(&lines, parts);
    if parts.guards.iter().any(|node| node.has_property("satisfy")) {
        for node in &mut parts.guards[..count] {
            *node = node.clone().property("satisfy", "all");
        }
    }
}

/// Paths of `Location` sections that let in clients which directories reject.
pub(super) fn lifted(
    sections: &[ApacheSection<'_>],
    blocks: &[&[Directive]],
    mounts: &[Mount],
    has_tls: bool,
) -> Vec<ForeignPattern> {
    let merge = Merge::new(sections, blocks, mounts, has_tls);
    let is_meant = |section: &ApacheSection<'_>| !is_of_files(section.directive);
    let lifts = |index: usize, of: OfModule| {
        of(&merge.own[index]).is_some_and(|rule| !rule.is_shut()) && !merge.lifts_nothing(index, of, is_meant)
    };
    let lifting = sections.iter().enumerate().filter(|(index, section)| {
        section.is_of_location() && (lifts(*index, OwnRules::of_old) || lifts(*index, OwnRules::of_new))
    });
    lifting.flat_map(|(_, section)| section.patterns.iter().flatten().cloned()).collect()
}

/// Returns `true` for a section of all names except some, in a site whose files are its own.
fn is_of_other_names(section: &Directive, blocks: &[&[Directive]]) -> bool {
    let text = section.first();
    let is_class = text.contains("(?!") && (text.contains("]*$") || text.contains("]+$"));
    section.name.eq_ignore_ascii_case("filesmatch")
        && is_class
        && !blocks.iter().any(|block| block.iter().any(forwards))
}

/// Lets the redirects from a place on wait for passwords: those of directories, files and locations do in Apache.
pub(super) fn wait_for_passwords(parts: &mut SiteParts, from: usize) {
    if parts.guards.iter().any(|node| node.name() == "basic-auth" && node.last_value() != "off") {
        for node in parts.redirects[from..].iter_mut().filter(|node| node.name() == "redirect") {
            *node = node.clone().word_property("after-auth", "on");
        }
    }
}

/// Makes access rules of the handlers that reject names, if a rewrite may hide the requested path from them.
pub(super) fn keep_names(parts: &mut SiteParts) {
    if !parts.redirects.iter().any(|node| node.name() == "rewrite" && !node.has_property("missing")) {
        return;
    }
    let is_of_names =
        |node: &KdlNode| node.name() == "respond" && node.first_value().starts_with('~') && node.last_value() == "403";
    let all = std::mem::take(&mut parts.handlers).into_iter();
    let (names, handlers): (Vec<KdlNode>, Vec<KdlNode>) = all.partition(is_of_names);
    parts.handlers = handlers;
    parts.rejections.extend(
        names.iter().map(|node| with_path(KdlNode::new("deny").word("all"), Some(node.first_value().to_owned()))),
    );
}

/// Returns `true` if a directive sends requests to other servers, which may read their paths in another way.
fn forwards(directive: &Directive) -> bool {
    let name = directive.name.to_ascii_lowercase();
    name.starts_with("proxypass")
        || (name == "rewriterule" && directive.argument(2).contains(['P', 'p']))
        || directive.children().iter().any(forwards)
}

/// An access rule with its paths.
#[derive(Clone)]
struct Stated<'a> {
    patterns: &'a [ForeignPattern],
    rule: AccessRule,
    file: Option<&'a str>,
    realm: &'a str,
}

fn write(lines: &[Stated<'_>], parts: &mut SiteParts) {
    // ClientAccess for all clients needs no line, unless a wider rule restricts it.
    let has_addresses = |from: usize| lines[from..].iter().any(|line| line.rule.access != ClientAccess::All);
    let has_passwords = |from: usize| lines[from..].iter().any(|line| line.rule.needs_password);
    for (index, line) in lines.iter().enumerate() {
        let Stated { patterns, rule, file, realm } = line;
        let node = |name: &'static str, networks: &[String]| {
            let networks = networks.to_vec();
            for_each(patterns, move |pattern| {
                let node = KdlNode::new(name);
                let node = match networks.as_slice() {
                    [] => node.word("all"),
                    networks => node.texts(networks.iter()),
                };
                with_path(node, pattern)
            })
        };
        let guards = &mut parts.guards;
        match &rule.access {
            ClientAccess::All if has_addresses(index + 1) => guards.extend(node("allow", &[])),
            ClientAccess::All => {}
            ClientAccess::Denied => guards.extend(node("deny", &[])),
            ClientAccess::Clients(networks) => {
                guards.extend(node("allow", networks));
                guards.extend(node("deny", &[]));
            }
            ClientAccess::When(condition) => {
                let allowed = node("allow", &[]).into_iter().map(|node| node.property("when", condition));
                guards.extend(allowed);
                guards.extend(node("deny", &[]));
            }
            ClientAccess::Except(networks) => {
                guards.extend(node("deny", networks));
                if has_addresses(index + 1) {
                    guards.extend(node("allow", &[]));
                }
            }
        }
        match (rule.needs_password, file) {
            (true, Some(file)) => guards.extend(for_each(patterns, |pattern| {
                let node = on_path("basic-auth", pattern).text(file).property("realm", realm);
                if rule.is_any { node.property("satisfy", "any") } else { node }
            })),
            _ if has_passwords(index + 1) => {
                guards.extend(for_each(patterns, |pattern| on_path("basic-auth", pattern).word("off")));
            }
            _ => {}
        }
    }
}

/// A directive of the section, or of the nearest one around that Apache merges before it.
fn setting<'a>(section: &ApacheSection<'a>, all: &[ApacheSection<'a>], name: &str) -> Option<&'a Directive> {
    let of = |block: &'a [Directive]| block.iter().rfind(|directive| directive.name.eq_ignore_ascii_case(name));
    of(section.block)
        .or_else(|| all.iter().rev().filter(|other| other.covers(section)).find_map(|other| of(other.block)))
}

/// `Limit`, `LimitExcept` and `AllowMethods`.
fn methods(section: &ApacheSection<'_>, scope: ExpressionScope<'_>, parts: &mut SiteParts, notes: &mut Notes) {
    let patterns = section.patterns.as_deref().unwrap_or_default();
    for directive in section.block {
        let methods = directive.arguments.join(" ");
        let with_head =
            if directive.has("GET") && !directive.has("HEAD") { format!("{methods} HEAD") } else { methods };
        let test = match directive.name.to_ascii_lowercase().as_str() {
            "limitexcept" => format!("!{with_head}"),
            "limit" => with_head,
            "allowmethods" if directive.first().eq_ignore_ascii_case("reset") => continue,
            "allowmethods" => {
                let nodes = for_each(patterns, |pattern| {
                    let node = with_path(KdlNode::new("deny").word("all"), pattern);
                    node.property("method", format!("!{with_head}")).word_property("status", 405)
                });
                parts.guards.extend(nodes);
                continue;
            }
            _ => continue,
        };
        match rule(directive.children(), scope) {
            Ok(None) => {}
            Ok(Some(rule)) if rule.is_open() => {}
            Ok(Some(rule)) if rule.access == ClientAccess::Denied && !rule.needs_password => {
                parts.guards.extend(for_each(patterns, |pattern| {
                    with_path(KdlNode::new("deny").word("all"), pattern).property("method", &test)
                }));
            }
            _ => {
                let comment = notes.rejected(directive, "for some methods only, all clients are allowed or none");
                parts.closed.extend(for_each(patterns, |pattern| {
                    let node = with_path(KdlNode::new("deny").word("all"), pattern).property("method", &test);
                    node.comment(comment.clone())
                }));
            }
        }
    }
}

/// Rules of a block, by the module of Apache that has them: both must let a client in.
#[derive(Default)]
struct OwnRules {
    /// `Order`, `Allow` and `Deny`.
    old: Option<AccessRule>,
    /// `Require`.
    new: Option<AccessRule>,
}

/// The rule of one of the modules.
type OfModule = fn(&OwnRules) -> Option<&AccessRule>;

impl OwnRules {
    fn of_old(&self) -> Option<&AccessRule> {
        self.old.as_ref()
    }

    fn of_new(&self) -> Option<&AccessRule> {
        self.new.as_ref()
    }
}

/// Merge of the rules of sections: those of one module replace each other, and leave those of the other module alone.
struct Merge<'a, 'd> {
    sections: &'a [ApacheSection<'d>],
    own: Vec<OwnRules>,
    /// True if there are rules of both modules.
    is_mixed: bool,
    /// True for sections that reject all clients, which no later section of the same module lifts.
    is_final: Vec<bool>,
}

impl<'a, 'd> Merge<'a, 'd> {
    fn new(sections: &'a [ApacheSection<'d>], blocks: &[&[Directive]], mounts: &[Mount], has_tls: bool) -> Self {
        let own = |section: &ApacheSection<'_>| {
            let environment = environment::of_blocks(blocks, sections, section.block, has_tls);
            let scope = ExpressionScope { has_tls, environment: &environment };
            let old = old_rule(section.block, scope).ok().flatten();
            OwnRules { old: old.map(AccessRule::of), new: required(section.block, true, scope).ok().flatten() }
        };
        let own: Vec<OwnRules> = sections.iter().map(own).collect();
        let is_mixed = own.iter().any(|own| own.old.is_some()) && own.iter().any(|own| own.new.is_some());
        let mut merge = Self { sections, own, is_mixed, is_final: Vec::new() };
        merge.is_final = (0..sections.len()).map(|index| is_mixed && merge.stays_shut(index, mounts)).collect();
        merge
    }

    /// Returns `true` if a section rejects all clients, and its rule holds for all its paths in the end.
    fn stays_shut(&self, index: usize, mounts: &[Mount]) -> bool {
        let section = &self.sections[index];
        let Some((rule, of)) = self.only(index) else { return false };
        // Paths of an alias are no paths of the directories around it.
        let has_alias = |mount: &Mount| {
            let path = format!("{}/", mount.prefix);
            let has = |pattern: &ForeignPattern| {
                pattern.fits(&path) && section::alias_length(pattern, mounts) < mount.prefix.len()
            };
            section.patterns.iter().flatten().any(has)
        };
        let lifts = |later: usize| {
            of(&self.own[later]).is_some_and(|rule| !rule.is_shut()) && self.sections[later].overlaps(section)
        };
        let is_below_alias = section.is_of_directory() && mounts.iter().any(has_alias);
        let is_lifted = (index + 1..self.sections.len()).any(lifts);
        rule.is_shut() && !is_any(section.block) && !is_below_alias && !is_lifted
    }

    /// `Satisfy All` of a section that lacks rules of one of the modules, if `Satisfy Any` of another section may hold for
    /// its paths.
    fn takes_alternative_back(&self, index: usize) -> Option<&'d Directive> {
        let OwnRules { old, new } = &self.own[index];
        let satisfy = self.sections[index].block.iter().rfind(|child| child.name.eq_ignore_ascii_case("satisfy"));
        let is_all = satisfy.is_some_and(|satisfy| !is_satisfy_any(satisfy));
        satisfy.filter(|_| is_all && (old.is_none() || new.is_none()) && self.may_have_alternative(index))
    }

    /// Returns `true` if a section with rules of one module would inherit `Satisfy Any`.
    fn has_alternative_around(&self, index: usize) -> bool {
        let OwnRules { old, new } = &self.own[index];
        let has_own = self.sections[index].block.iter().any(|child| child.name.eq_ignore_ascii_case("satisfy"));
        !has_own && (old.is_none() || new.is_none()) && self.may_have_alternative(index)
    }

    fn may_have_alternative(&self, index: usize) -> bool {
        let (before, section) = (&self.sections[..index], &self.sections[index]);
        before.iter().any(|other| is_any(other.block) && other.may_share_paths(section))
    }

    /// The rule of a section that has rules of one module, and the way to others of that module.
    fn only(&self, index: usize) -> Option<(&AccessRule, OfModule)> {
        match &self.own[index] {
            OwnRules { old: Some(rule), new: None } => Some((rule, OwnRules::of_old)),
            OwnRules { old: None, new: Some(rule) } => Some((rule, OwnRules::of_new)),
            _ => None,
        }
    }

    /// Returns `true` if a rule for all clients lifts none of the same module, among those of some sections.
    fn lifts_nothing(&self, index: usize, of: OfModule, is_meant: fn(&ApacheSection<'_>) -> bool) -> bool {
        let section = &self.sections[index];
        let is_before = |before: &usize| {
            let before = &self.sections[*before];
            before.may_share_paths(section) && is_meant(before)
        };
        let before = (0..index).rev().filter(is_before);
        for (other, rule) in before.filter_map(|before| Some((&self.sections[before], of(&self.own[before])?))) {
            if !rule.is_open() {
                return false;
            }
            if other.covers(section) {
                break;
            }
        }
        true
    }

    /// The rule of the other module that holds for all paths of a section.
    fn of_other(&self, index: usize, of: OfModule) -> Result<Option<&AccessRule>, Refusal<'d>> {
        let section = &self.sections[index];
        for before in (0..index).rev() {
            let Some(rule) = of(&self.own[before]) else { continue };
            let other = &self.sections[before];
            if other.covers(section) {
                return Ok(Some(rule));
            }
            // Lines of a final one come first in any case.
            if !rule.is_open() && !self.is_final[before] && other.overlaps(section) {
                let why = "old and new access rules are mixed: other sections reject some of its paths";
                return Err((section.directive, why.to_owned()));
            }
        }
        Ok(None)
    }

    /// The rule that holds for the paths of a section; `None` if it has none, or changes nothing.
    fn rule(&self, index: usize, scope: ExpressionScope<'_>) -> Result<Option<AccessRule>, Refusal<'d>> {
        let section = &self.sections[index];
        let named = |name: &str| section.block.iter().find(|directive| directive.name.eq_ignore_ascii_case(name));
        if let Some(merging) = named("authmerging").filter(|merging| !merging.first().eq_ignore_ascii_case("off")) {
            return Err((merging, "rules of sections replace each other".to_owned()));
        }
        let (old, new) = (old_rule(section.block, scope)?, required(section.block, true, scope)?);
        let Some((rule, own)) = self.only(index).filter(|_| self.is_mixed) else {
            return joined(section.block, old, new);
        };
        if self.is_final[index] {
            return Ok(Some(rule.clone()));
        }
        if rule.is_open() && self.lifts_nothing(index, own, |_| true) {
            return Ok(None);
        }
        let (old, new) = match old {
            Some(old) => (Some(old), self.of_other(index, OwnRules::of_new)?.cloned()),
            None => (self.of_other(index, OwnRules::of_old)?.map(|rule| rule.access.clone()), new),
        };
        joined(section.block, old, new)
    }
}

/// The rule of a block; `None` if it has none.
fn rule<'a>(block: &'a [Directive], scope: ExpressionScope<'_>) -> Result<Option<AccessRule>, Refusal<'a>> {
    // Several requirements without a block: one is enough.
    joined(block, old_rule(block, scope)?, required(block, true, scope)?)
}

/// Returns `true` if an address or a password is enough.
fn is_any(block: &[Directive]) -> bool {
    block.iter().any(is_satisfy_any)
}

fn is_satisfy_any(directive: &Directive) -> bool {
    directive.name.eq_ignore_ascii_case("satisfy") && directive.first().eq_ignore_ascii_case("any")
}

/// One rule of old and new ones.
fn joined(
    block: &[Directive],
    old: Option<ClientAccess>,
    new: Option<AccessRule>,
) -> Result<Option<AccessRule>, Refusal<'_>> {
    let is_any = is_any(block);
    Ok(match (old, new) {
        (None, None) => None,
        (Some(access), None) => Some(AccessRule::of(access)),
        (None, Some(rule)) => Some(rule),
        // One of both is enough.
        (Some(access), Some(rule)) if is_any && (access == ClientAccess::All || rule.is_open()) => {
            Some(AccessRule::of(ClientAccess::All))
        }
        (Some(access), Some(rule)) if rule.access == ClientAccess::All => Some(AccessRule { access, is_any, ..rule }),
        (Some(ClientAccess::All), Some(rule)) if !is_any => Some(rule),
        (Some(ClientAccess::Denied), Some(_)) | (Some(_), Some(AccessRule { access: ClientAccess::Denied, .. }))
            if !is_any =>
        {
            Some(AccessRule::of(ClientAccess::Denied))
        }
        (Some(_), Some(_)) => {
            let is_rule = |child: &&Directive| is_part(child);
            let directive = block.iter().find(is_rule).unwrap_or(&block[0]);
            return Err((directive, "old and new access rules are mixed".to_owned()));
        }
    })
}
