//! Access rules: `Require`, `Order`, `AuthType` and their relatives.

use super::environment;
use super::expression::{self, ApacheCondition, ApacheEnvironment, ExpressionScope};
use super::host::is_of_files;
use super::section::{self, ApacheSection, Mount};
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::{SiteParts, for_each, on_path, with_path};
use crate::pattern::{ForeignPattern, quoted};

/// Clients that may request the paths of a section.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Access {
    All,
    Denied,
    /// Addresses that are let in; others are not, unless a password is enough.
    Clients(Vec<String>),
    /// All clients except these.
    Except(Vec<String>),
    /// Requests that meet a condition.
    When(String),
}

/// Access and password of a section.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    access: Access,
    needs_password: bool,
    is_any: bool,
}

impl Rule {
    fn of(access: Access) -> Self {
        Self { access, needs_password: false, is_any: false }
    }

    fn is_open(&self) -> bool {
        self.access == Access::All && !self.needs_password
    }

    /// Returns `true` if no client has access.
    fn is_shut(&self) -> bool {
        self.access == Access::Denied && !self.is_any
    }
}

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
    let open = |rule: Option<Rule>| rule.is_none_or(|rule| rule.is_open());
    let scope = ExpressionScope { has_tls: false, environment: &ApacheEnvironment::new() };
    rule(block, scope).is_ok_and(open) && !block.iter().any(is_limit)
}

/// Returns `true` if a block lets no client in, or says nothing of clients.
pub(super) fn is_closed(block: &[Directive]) -> bool {
    let closed = |rule: Option<Rule>| rule.is_none_or(|rule| rule.is_shut());
    let scope = ExpressionScope { has_tls: false, environment: &ApacheEnvironment::new() };
    rule(block, scope).is_ok_and(closed)
}

fn is_limit(directive: &Directive) -> bool {
    matches!(directive.name.to_ascii_lowercase().as_str(), "limit" | "limitexcept" | "allowmethods")
}

/// Access of a block if it is the same for all clients; `Err` if it is another.
pub(super) fn of_all(block: &[Directive], scope: ExpressionScope<'_>) -> Result<Option<bool>, String> {
    match rule(block, scope) {
        Ok(None) => Ok(None),
        Ok(Some(Rule { access: Access::All, needs_password: false, .. })) => Ok(Some(true)),
        Ok(Some(Rule { access: Access::Denied, .. })) => Ok(Some(false)),
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
        let rule = match merge.rule(index, scope) {
            Ok(None) => continue,
            Ok(Some(rule)) => rule,
            Err((directive, why)) => {
                parts.close(directive, patterns, why, notes);
                continue;
            }
        };
        if let Some(any) = section.block.iter().find(|child| is_satisfy_any(child)).filter(|_| !rule.is_any) {
            notes.left(any, "all rules must let a client in, except of an address and a password in one section");
        }
        if rule.access == Access::Denied && !rule.needs_password && is_of_other_names(section.directive, blocks) {
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
    rule: Rule,
    file: Option<&'a str>,
    realm: &'a str,
}

fn write(lines: &[Stated<'_>], parts: &mut SiteParts) {
    // Access for all clients needs no line, unless a wider rule restricts it.
    let has_addresses = |from: usize| lines[from..].iter().any(|line| line.rule.access != Access::All);
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
            Access::All if has_addresses(index + 1) => guards.extend(node("allow", &[])),
            Access::All => {}
            Access::Denied => guards.extend(node("deny", &[])),
            Access::Clients(networks) => {
                guards.extend(node("allow", networks));
                guards.extend(node("deny", &[]));
            }
            Access::When(condition) => {
                let allowed = node("allow", &[]).into_iter().map(|node| node.property("when", condition));
                guards.extend(allowed);
                guards.extend(node("deny", &[]));
            }
            Access::Except(networks) => {
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
            Ok(Some(rule)) if rule.access == Access::Denied && !rule.needs_password => {
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

type Refusal<'a> = (&'a Directive, String);

/// Rules of a block, by the module of Apache that has them: both must let a client in.
#[derive(Default)]
struct OwnRules {
    /// `Order`, `Allow` and `Deny`.
    old: Option<Rule>,
    /// `Require`.
    new: Option<Rule>,
}

/// The rule of one of the modules.
type OfModule = fn(&OwnRules) -> Option<&Rule>;

impl OwnRules {
    fn of_old(&self) -> Option<&Rule> {
        self.old.as_ref()
    }

    fn of_new(&self) -> Option<&Rule> {
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
            OwnRules { old: old.map(Rule::of), new: required(section.block, true, scope).ok().flatten() }
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

    /// The rule of a section that has rules of one module, and the way to others of that module.
    fn only(&self, index: usize) -> Option<(&Rule, OfModule)> {
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
    fn of_other(&self, index: usize, of: OfModule) -> Result<Option<&Rule>, Refusal<'d>> {
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
    fn rule(&self, index: usize, scope: ExpressionScope<'_>) -> Result<Option<Rule>, Refusal<'d>> {
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
fn rule<'a>(block: &'a [Directive], scope: ExpressionScope<'_>) -> Result<Option<Rule>, Refusal<'a>> {
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
fn joined(block: &[Directive], old: Option<Access>, new: Option<Rule>) -> Result<Option<Rule>, Refusal<'_>> {
    let is_any = is_any(block);
    Ok(match (old, new) {
        (None, None) => None,
        (Some(access), None) => Some(Rule::of(access)),
        (None, Some(rule)) => Some(rule),
        (Some(access), Some(rule)) if rule.access == Access::All => Some(Rule { access, is_any, ..rule }),
        (Some(Access::All), Some(rule)) if !is_any => Some(rule),
        (Some(Access::Denied), Some(_)) | (Some(_), Some(Rule { access: Access::Denied, .. })) if !is_any => {
            Some(Rule::of(Access::Denied))
        }
        (Some(_), Some(_)) => {
            let is_rule = |child: &&Directive| is_part(child);
            let directive = block.iter().find(is_rule).unwrap_or(&block[0]);
            return Err((directive, "old and new access rules are mixed".to_owned()));
        }
    })
}

/// `Order`, `Allow from` and `Deny from`.
fn old_rule<'a>(block: &'a [Directive], scope: ExpressionScope<'_>) -> Result<Option<Access>, Refusal<'a>> {
    let (mut allowed, mut denied) = (Vec::new(), Vec::new());
    let (mut if_allowed, mut if_denied) = (None, None);
    let mut order = None;
    for directive in block {
        let list = match directive.name.to_ascii_lowercase().as_str() {
            "order" => {
                order = Some(directive.arguments.join("").to_ascii_lowercase());
                continue;
            }
            "allow" => &mut allowed,
            "deny" => &mut denied,
            _ => continue,
        };
        for client in directive.arguments.iter().filter(|word| !word.eq_ignore_ascii_case("from")) {
            if let Some(name) = client.strip_prefix("env=") {
                let condition = of_environment(name, scope).ok_or_else(|| (directive, UNKNOWN_VARIABLE.to_owned()))?;
                let list = if directive.name.eq_ignore_ascii_case("allow") { &mut if_allowed } else { &mut if_denied };
                *list = Some(list.take().unwrap_or(ApacheCondition::Constant(false)).or(condition));
                continue;
            }
            list.push(client_of(client).ok_or_else(|| (directive, "clients are named by address".to_owned()))?);
        }
    }
    let is_closed = matches!(order.as_deref(), Some("allow,deny" | "mutual-failure"));
    match (if_allowed, if_denied) {
        (None, None) => {}
        // `Deny from all` and `Allow from env=a`, or `Order Allow,Deny` and the latter.
        (Some(condition), None) if allowed.is_empty() && (is_closed == denied.is_empty()) => {
            return Ok(Some(access_if(condition)));
        }
        (None, Some(condition))
            if denied.is_empty() && (!is_closed && allowed.is_empty() || is_closed && allowed == ["all"]) =>
        {
            return Ok(Some(access_if(condition.not())));
        }
        _ => return Err((&block[0], "variables and addresses are mixed".to_owned())),
    }
    if order.is_none() && allowed.is_empty() && denied.is_empty() {
        return Ok(None);
    }
    let is_all = |list: &[String]| list.iter().any(|client| client == "all");
    // `Order Deny,Allow` is the default: what no line names is allowed.
    let is_open = !matches!(order.as_deref(), Some("allow,deny" | "mutual-failure"));
    Ok(Some(match is_open {
        true if is_all(&allowed) => Access::All,
        true if is_all(&denied) && allowed.is_empty() => Access::Denied,
        true if is_all(&denied) => Access::Clients(allowed),
        true if denied.is_empty() => Access::All,
        true if allowed.is_empty() => Access::Except(denied),
        false if is_all(&denied) || allowed.is_empty() => Access::Denied,
        false if is_all(&allowed) && denied.is_empty() => Access::All,
        false if is_all(&allowed) => Access::Except(denied),
        false if denied.is_empty() => Access::Clients(allowed),
        _ => {
            let directive = block.iter().find(|child| child.name.eq_ignore_ascii_case("deny")).unwrap_or(&block[0]);
            return Err((directive, "some clients are both allowed and denied".to_owned()));
        }
    }))
}

/// Reason why a condition on a variable is not translated.
const UNKNOWN_VARIABLE: &str = "no directive here sets its variable for all these paths";

/// The condition under which a variable is set; `None` if it is unknown.
fn of_environment(name: &str, scope: ExpressionScope<'_>) -> Option<ApacheCondition> {
    scope.environment.get(name).cloned().flatten()
}

fn access_if(condition: ApacheCondition) -> Access {
    match condition {
        ApacheCondition::Constant(true) => Access::All,
        ApacheCondition::Constant(false) => Access::Denied,
        ApacheCondition::When(text) => Access::When(text),
    }
}

/// Network of a client in our form.
pub(super) fn client_of(text: &str) -> Option<String> {
    if text.eq_ignore_ascii_case("all") {
        return Some("all".to_owned());
    }
    let (address, mask) = text.split_once('/').unwrap_or((text, ""));
    if address.contains(':') {
        return address.parse::<std::net::Ipv6Addr>().ok().map(|_| text.to_owned());
    }
    // `10.1` is a network, too.
    let labels: Vec<&str> = address.split('.').filter(|label| !label.is_empty()).collect();
    if labels.len() > 4 || labels.iter().any(|label| label.parse::<u8>().is_err()) || labels.is_empty() {
        return None;
    }
    let full = [labels.as_slice(), &["0"; 4][labels.len()..]].concat().join(".");
    let bits = match mask.parse::<std::net::Ipv4Addr>() {
        Ok(mask) => mask.to_bits().leading_ones().to_string(),
        Err(_) if mask.is_empty() => (labels.len() * 8).to_string(),
        Err(_) => mask.to_owned(),
    };
    Some(if bits == "32" { full } else { format!("{full}/{bits}") })
}

/// `Require` lines. With `is_any`, one that holds is enough.
fn required<'a>(block: &'a [Directive], is_any: bool, scope: ExpressionScope<'_>) -> Result<Option<Rule>, Refusal<'a>> {
    let open = Rule::of(Access::All);
    let mut found: Vec<(&Directive, Rule)> = Vec::new();
    for directive in block {
        let inner = match directive.name.to_ascii_lowercase().as_str() {
            "require" => Some(one(directive, scope)?),
            "requireall" => required(directive.children(), false, scope)?,
            "requireany" => required(directive.children(), true, scope)?,
            "requirenone" => match required(directive.children(), true, scope)? {
                Some(Rule { access: Access::Clients(networks), needs_password: false, .. }) => {
                    Some(Rule { access: Access::Except(networks), ..open.clone() })
                }
                Some(Rule { access: Access::When(condition), needs_password: false, .. }) => {
                    Some(Rule { access: Access::When(format!("not ({condition})")), ..open.clone() })
                }
                _ => return Err((directive, "only addresses can be excluded".to_owned())),
            },
            _ => None,
        };
        found.extend(inner.map(|rule| (directive, rule)));
    }
    let Some((first, mut rule)) = found.first().map(|(directive, rule)| (*directive, rule.clone())) else {
        return Ok(None);
    };
    for (directive, other) in &found[1..] {
        rule = if is_any { any(&rule, other) } else { all(&rule, other) }
            .ok_or_else(|| (*directive, format!("it cannot be combined with `{}`", first.line())))?;
    }
    Ok(Some(rule))
}

fn any(one: &Rule, other: &Rule) -> Option<Rule> {
    if one.is_open() || other.is_open() {
        return Some(Rule::of(Access::All));
    }
    match (&one.access, &other.access, one.needs_password, other.needs_password) {
        (Access::Denied, _, false, _) => Some(other.clone()),
        (_, Access::Denied, _, false) => Some(one.clone()),
        (Access::Clients(a), Access::Clients(b), false, false) => {
            Some(Rule { access: Access::Clients([a.as_slice(), b].concat()), ..one.clone() })
        }
        (Access::When(a), Access::When(b), false, false) => {
            Some(Rule { access: Access::When(format!("({a}) or ({b})")), ..one.clone() })
        }
        (Access::All, Access::All, true, true) => Some(one.clone()),
        (Access::All, Access::Clients(networks), true, false)
        | (Access::Clients(networks), Access::All, false, true) => {
            Some(Rule { access: Access::Clients(networks.clone()), needs_password: true, is_any: true })
        }
        _ => None,
    }
}

fn all(one: &Rule, other: &Rule) -> Option<Rule> {
    if one.is_any || other.is_any {
        return None;
    }
    let access = match (&one.access, &other.access) {
        (Access::Denied, _) | (_, Access::Denied) => Access::Denied,
        (Access::All, access) | (access, Access::All) => access.clone(),
        (Access::Except(a), Access::Except(b)) => Access::Except([a.as_slice(), b].concat()),
        (Access::When(a), Access::When(b)) => Access::When(format!("({a}) and ({b})")),
        _ => return None,
    };
    Some(Rule { access, needs_password: one.needs_password || other.needs_password, is_any: false })
}

fn one<'a>(directive: &'a Directive, scope: ExpressionScope<'_>) -> Result<Rule, Refusal<'a>> {
    let words: Vec<&str> = directive.arguments.iter().map(String::as_str).collect();
    let rule = Rule::of;
    let unknown = || (directive, UNKNOWN_VARIABLE.to_owned());
    let inexpressible = || (directive, "its expression has no counterpart".to_owned());
    let clients = |list: &[&str]| -> Result<Vec<String>, Refusal<'a>> {
        list.iter()
            .map(|client| client_of(client).ok_or_else(|| (directive, "clients are named by address".to_owned())))
            .collect()
    };
    Ok(match words.as_slice() {
        ["all", "granted"] => rule(Access::All),
        ["all", "denied"] => rule(Access::Denied),
        ["not", "all", "granted"] => rule(Access::Denied),
        ["local"] => rule(Access::Clients(["127.0.0.0/8", "::1"].map(str::to_owned).to_vec())),
        ["ip", list @ ..] => rule(Access::Clients(clients(list)?)),
        ["not", "ip", list @ ..] => rule(Access::Except(clients(list)?)),
        ["env", names @ ..] => rule(access_if(of_any(names, scope).ok_or_else(unknown)?)),
        ["not", "env", names @ ..] => rule(access_if(of_any(names, scope).ok_or_else(unknown)?.not())),
        ["expr", text @ ..] => rule(access_if(of_expression(text, scope).ok_or_else(inexpressible)?)),
        ["not", "expr", text @ ..] => rule(access_if(of_expression(text, scope).ok_or_else(inexpressible)?.not())),
        ["method", names @ ..] => rule(access_if(of_methods(names))),
        ["not", "method", names @ ..] => rule(access_if(of_methods(names).not())),
        ["valid-user"] => Rule { access: Access::All, needs_password: true, is_any: false },
        ["user" | "group", ..] => {
            return Err((directive, "all users of the file have access; write a file of these users".to_owned()));
        }
        _ => return Err((directive, "there is no such requirement".to_owned())),
    })
}

/// The condition that one of these variables is set.
fn of_any(names: &[&str], scope: ExpressionScope<'_>) -> Option<ApacheCondition> {
    names.iter().try_fold(ApacheCondition::Constant(false), |found, name| Some(found.or(of_environment(name, scope)?)))
}

/// `Require expr`; its text may be quoted as a whole.
fn of_expression(words: &[&str], scope: ExpressionScope<'_>) -> Option<ApacheCondition> {
    expression::condition(&words.join(" "), scope)
}

fn of_methods(names: &[&str]) -> ApacheCondition {
    let is_method = |found: ApacheCondition, name: &&str| {
        found.or(ApacheCondition::When(format!("method == {}", quoted(&name.to_ascii_uppercase()))))
    };
    // Apache takes HEAD for GET.
    let with_head = names.contains(&"GET").then_some("HEAD");
    names.iter().copied().chain(with_head).fold(ApacheCondition::Constant(false), |found, name| is_method(found, &name))
}
