//! Checks of rules.

use std::ops::Range;
use std::sync::Arc;

use super::claimed_paths::ClaimedPaths;
use crate::diagnostic::{ConfigSource, Diagnostics};
use crate::model::password_file::PasswordFile;
use crate::model::rules::*;
use crate::model::{HostPattern, PathPattern};
use crate::read::{ConfigFinding, ConfigReader, Setting};
use crate::regular_file::is_denied;
use crate::value::{Openness, Values, check_target, openness};

/// Problems of a password file that are reported one by one.
const PROBLEMS_SHOWN_MAX: usize = 3;

/// Notes that requests can choose where a redirect leads.
fn check_openness(openness: Openness, span: Range<usize>, reader: &mut ConfigReader<'_>) {
    let help = "write a fixed text before the placeholder, such as `/new/`, or a host and a slash";
    match openness {
        Openness::Closed => {}
        Openness::Doubtful => {
            let message = "this redirect leads to another host if the placeholder's value begins with a slash";
            let help = "begin the expression with `^/(`, because no path has two slashes in a row, or write a fixed text \
                        before the group";
            reader.warning(ConfigFinding::new(span, message, "this").help(help.to_owned()));
        }
        Openness::Open => {
            reader.error(
                ConfigFinding::new(span, "this redirect lets clients choose the host", "this").help(help.to_owned()),
            );
        }
    }
}

/// Returns `true` if the beginning of the target allows a rewrite to one of these paths.
fn may_lead_to(rewrite: &Rewrite, path: &PathPattern) -> bool {
    let start = match rewrite.target.pieces.first() {
        Some(TemplatePiece::Literal(text)) => text.split('?').next().unwrap_or_default(),
        Some(TemplatePiece::Path) => start(&rewrite.path),
        _ => "",
    };
    let other = self::start(path);
    start.starts_with(other) || other.starts_with(start)
}

/// Common prefix of these paths.
fn start(path: &PathPattern) -> &str {
    match path {
        PathPattern::Exact(path) | PathPattern::Prefix(path) => path,
        PathPattern::Any | PathPattern::Suffix(_) | PathPattern::Regex(_) => "",
    }
}

/// Place of a rule.
pub(crate) type RulePosition = (Arc<ConfigSource>, Range<usize>);

/// Rules that are being put together, and where they stand.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RulesDraft {
    pub(crate) rules: RulesConfig,
    rewrites: Vec<RulePosition>,
    passwords: Vec<RulePosition>,
    forward_auths: Vec<RulePosition>,
    clients: Vec<RulePosition>,
    /// Place of the last `allow` in `clients`, while no `deny` has come after it.
    open_allow: Option<usize>,
}

impl RulesDraft {
    /// Rules that no text says.
    pub(crate) fn of(rules: &RulesConfig, source: &Arc<ConfigSource>) -> Self {
        let places = |count: usize| vec![(source.clone(), 0..0); count];
        Self {
            rewrites: places(rules.rewrites.len()),
            passwords: places(rules.passwords.len()),
            forward_auths: places(rules.forward_auths.len()),
            clients: places(rules.clients.len()),
            open_allow: None,
            rules: rules.clone(),
        }
    }

    /// Adds what an option says.
    pub(crate) fn add(
        &mut self,
        set: fn(&mut RulesConfig, &Values),
        setting: &Setting<'_>,
        source: &Arc<ConfigSource>,
        diagnostics: &mut Diagnostics,
    ) {
        set(&mut self.rules, &setting.values);
        let mut reader = ConfigReader { source: source.clone(), diagnostics };
        let place = || (source.clone(), setting.span.clone());
        if matches!(setting.option.name, "allow" | "deny") {
            self.clients.push(place());
        }
        match setting.option.name {
            "allow" => self.open_allow = Some(self.clients.len() - 1),
            // One on a condition leaves others.
            "deny" if self.rules.clients.last().is_some_and(|rule| rule.conditions.is_of_path_only()) => {
                self.open_allow = None;
            }
            "redirect" | "rewrite" => {
                self.check_rewrite(setting, &mut reader);
                self.rewrites.push(place());
            }
            "basic-auth" => {
                self.check_passwords(setting, &mut reader);
                self.passwords.push(place());
            }
            "forward-auth" => {
                self.check_forward_auth(setting, &mut reader);
                self.forward_auths.push(place());
            }
            "canonical-host" => self.check_canonical_host(setting, &mut reader),
            "response-header" => self.check_server_field(setting, &mut reader),
            _ => {}
        }
    }

    /// Notes what only shows when all rules of the site, and those of all sites, are known.
    pub(crate) fn check(&self, of_all: Option<&Self>, diagnostics: &mut Diagnostics) {
        let shut_out = self.check_order(diagnostics);
        self.check_allow(of_all, &shut_out, diagnostics);
        self.check_alternatives(of_all, diagnostics);
        let (mut plain, mut missing) = (ClaimedPaths::default(), ClaimedPaths::default());
        for (index, rewrite) in self.rules.rewrites.iter().enumerate() {
            let taken = if rewrite.conditions.is_missing { &mut missing } else { &mut plain };
            self.check_map_target(rewrite, index, diagnostics);
            check_covered(&self.rewrites, index, taken.covering(&rewrite.path), diagnostics);
            if rewrite.conditions.is_of_path_only() {
                taken.add(&rewrite.path, index);
            }
        }
        let mut taken = ClaimedPaths::default();
        for (index, rule) in self.rules.passwords.iter().enumerate() {
            check_covered(&self.passwords, index, taken.covering(&rule.path), diagnostics);
            if rule.when.is_none() {
                taken.add(&rule.path, index);
            }
        }
        let mut taken = ClaimedPaths::default();
        for (index, rule) in self.rules.forward_auths.iter().enumerate() {
            check_covered(&self.forward_auths, index, taken.covering(&rule.path), diagnostics);
            if rule.when.is_none() {
                taken.add(&rule.path, index);
            }
        }
    }

    /// Guarded paths, and the places of their rules.
    pub(crate) fn guards(&self) -> impl Iterator<Item = (&PathPattern, &RulePosition)> {
        let clients = self.rules.clients.iter().zip(&self.clients).filter(|(rule, _)| rule.keeps_all_out());
        let passwords = self.rules.passwords.iter().zip(&self.passwords).filter(|(rule, _)| rule.file.is_some());
        let clients = clients.map(|(rule, place)| (&rule.path, place));
        let auths = self.rules.forward_auths.iter().zip(&self.forward_auths).filter(|(rule, _)| rule.auth.is_some());
        let auths = auths.map(|(rule, place)| (&rule.path, place));
        clients.chain(passwords.map(|(rule, place)| (&rule.path, place))).chain(auths)
    }

    /// Upstreams of forward authentication, and the places of their rules.
    pub(crate) fn auth_upstreams(&self) -> impl Iterator<Item = (&String, &RulePosition)> {
        let rules = self.rules.forward_auths.iter().zip(&self.forward_auths);
        rules.filter_map(|(rule, place)| Some((&rule.auth.as_ref()?.forward.upstream, place)))
    }

    /// The paths of which all requests are redirected.
    pub(crate) fn redirected_paths(&self) -> ClaimedPaths<'_> {
        let mut taken = ClaimedPaths::default();
        for (index, rewrite) in self.rules.rewrites.iter().enumerate() {
            let conditions = &rewrite.conditions;
            if rewrite.status.is_some() && conditions.is_of_path_only() && !conditions.is_missing {
                taken.add(&rewrite.path, index);
            }
        }
        taken
    }

    /// Place of the redirect of all these paths.
    pub(crate) fn redirect_of_all(
        &self,
        redirected: &ClaimedPaths<'_>,
        path: &PathPattern,
    ) -> Option<&(Arc<ConfigSource>, Range<usize>)> {
        let index = redirected.covering(path)?;
        // A path that a rewrite produced before is not redirected again.
        let is_led = |rewrite: &Rewrite| {
            rewrite.status.is_none() && !rewrite.conditions.is_missing && may_lead_to(rewrite, path)
        };
        (!self.rules.rewrites[..index].iter().any(is_led)).then(|| &self.rewrites[index])
    }

    /// Redirects and rewrites of what no handler has, and where they stand.
    pub(crate) fn of_what_is_missing(&self) -> impl Iterator<Item = (&Rewrite, &(Arc<ConfigSource>, Range<usize>))> {
        self.rules.rewrites.iter().zip(&self.rewrites).filter(|(rewrite, _)| rewrite.conditions.is_missing)
    }

    /// Warns about each `allow` that follows a `deny` of all clients, and returns their indices.
    fn check_order(&self, diagnostics: &mut Diagnostics) -> Vec<usize> {
        let mut denied = ClaimedPaths::default();
        let mut shut_out = Vec::new();
        for (index, rule) in self.rules.clients.iter().enumerate() {
            if rule.keeps_all_out() {
                denied.add(&rule.path, index);
            }
            let Some(deny) = denied.covering(&rule.path).filter(|_| rule.is_allowed) else { continue };
            let (Some((source, span)), Some((other, earlier))) = (self.clients.get(index), self.clients.get(deny))
            else {
                continue;
            };
            let finding =
                ConfigFinding::new(span.clone(), "this `allow` lets no client in", "a `deny` before it matches")
                    .related(other.clone(), earlier.clone(), "this one rejects all clients")
                    .help("write `allow` before `deny all`: the first rule that matches decides".to_owned());
            ConfigReader { source: source.clone(), diagnostics }.warning(finding);
            shut_out.push(index);
        }
        shut_out
    }

    /// Warns about an `allow` after which no rule rejects a client, except for those that were `shut_out` before.
    fn check_allow(&self, of_all: Option<&Self>, shut_out: &[usize], diagnostics: &mut Diagnostics) {
        let Some(index) = self.open_allow.filter(|index| !shut_out.contains(index)) else { return };
        let Some((source, span)) = self.clients.get(index) else { return };
        // Rules of all sites come after those of a site.
        if of_all.is_some_and(|of_all| of_all.rules.clients.iter().any(|rule| !rule.is_allowed)) {
            return;
        }
        let finding = ConfigFinding::new(span.clone(), "this `allow` rejects no client", "no `deny` follows")
            .help("add `deny all` after it".to_owned());
        ConfigReader { source: source.clone(), diagnostics }.warning(finding);
    }

    /// Passwords that an address is as good as, where none is let in.
    fn check_alternatives(&self, of_all: Option<&Self>, diagnostics: &mut Diagnostics) {
        let lets_in = |draft: &Self| draft.rules.clients.iter().any(|rule| rule.is_allowed);
        if lets_in(self) || of_all.is_some_and(lets_in) {
            return;
        }
        for (rule, (source, span)) in self.rules.passwords.iter().zip(&self.passwords) {
            if rule.is_alternative {
                let finding = ConfigFinding::new(
                    span.clone(),
                    "this `basic-auth` lets no client in by address",
                    "there is no `allow`",
                )
                .help("add clients that need no password, such as `allow \"192.0.2.0/24\"`, and `deny all`".to_owned());
                ConfigReader { source: source.clone(), diagnostics }.warning(finding);
            }
        }
    }

    fn check_rewrite(&self, setting: &Setting<'_>, reader: &mut ConfigReader<'_>) {
        let Some(rewrite) = self.rules.rewrites.last() else { return };
        let span = setting.values.all("target").next().map_or(setting.span.clone(), |(_, span)| span.clone());
        if let Some(wrong) = check_target(&rewrite.path, &rewrite.target) {
            reader.error(ConfigFinding::new(span, wrong.message, "this").help(wrong.help));
        } else if rewrite.status.is_some() && leads_to_itself(rewrite) {
            let finding = ConfigFinding::new(span, "this redirect leads to itself", "clients would loop");
            reader.error(finding.help("give it another target, or a condition".to_owned()));
        } else if rewrite.status.is_some() && !uses_maps(&rewrite.target) {
            check_openness(openness(&rewrite.path, &rewrite.target), span, reader);
        }
    }

    /// Clients must not choose the host of a redirect through a map. Maps are known when all of the text is read.
    fn check_map_target(&self, rewrite: &Rewrite, index: usize, diagnostics: &mut Diagnostics) {
        let Some((source, span)) = self.rewrites.get(index) else { return };
        let mut reader = ConfigReader { source: source.clone(), diagnostics };
        if uses_maps(&rewrite.target) && rewrite.status.is_some() {
            check_openness(openness(&rewrite.path, &rewrite.target), span.clone(), &mut reader);
        }
    }

    /// The connection adds it last, unless `server-tokens` is off.
    fn check_server_field(&self, setting: &Setting<'_>, reader: &mut ConfigReader<'_>) {
        let Some(edit) = self.rules.response_fields.last() else { return };
        if edit.name.eq_ignore_ascii_case("server") {
            let finding = ConfigFinding::new(setting.span.clone(), "`Server` is set by the server itself", "here")
                .help("to remove it, write `server-tokens off` in `server`".to_owned());
            reader.error(finding);
        }
    }

    /// A redirect needs one host.
    fn check_canonical_host(&self, setting: &Setting<'_>, reader: &mut ConfigReader<'_>) {
        if let Some(HostPattern::Suffix(_) | HostPattern::Prefix(_)) = self.rules.canonical_host {
            let finding = ConfigFinding::new(setting.span.clone(), "`canonical-host` needs one host", "this");
            reader.error(finding.help("write, for example, `canonical-host \"example.com\"`".to_owned()));
        }
    }

    /// A `login` names no part of a pattern, and a path without forward authentication has no server to configure.
    fn check_forward_auth(&self, setting: &Setting<'_>, reader: &mut ConfigReader<'_>) {
        let Some(rule) = self.rules.forward_auths.last() else { return };
        if let Some(login) = rule.auth.as_ref().and_then(|auth| auth.login.as_ref()) {
            let span = setting.values.all("login").next().map_or(setting.span.clone(), |(_, span)| span.clone());
            if let Some(wrong) = check_target(&login.path, &login.target) {
                reader.error(ConfigFinding::new(span, wrong.message, "this").help(wrong.help));
            } else if uses_maps(&login.target) {
                let message = "the page for signing in cannot depend on a map";
                let help = "write the page itself; clients must not choose its host".to_owned();
                reader.error(ConfigFinding::new(span, message, "this").help(help));
            } else {
                check_openness(openness(&login.path, &login.target), span, reader);
            }
        }
        if rule.auth.is_none() && setting.values.list.len() > 2 {
            let message = "`off` takes no further settings";
            let help = "remove the settings after `off`".to_owned();
            reader.error(ConfigFinding::new(setting.span.clone(), message, "this").help(help));
        }
    }

    fn check_passwords(&self, setting: &Setting<'_>, reader: &mut ConfigReader<'_>) {
        let Some(rule) = self.rules.passwords.last() else { return };
        let Some(file) = &rule.file else { return };
        let span = setting.values.all("file").next().map_or(setting.span.clone(), |(_, span)| span.clone());
        // The file may appear later, like a root; until then, no user can log in.
        let read = PasswordFile::read(file);
        let is_denied = read.as_ref().is_err_and(is_denied);
        let problems = match read {
            Err(error) => vec![format!("{}: {error}", file.display())],
            Ok(read) if read.hashes.is_empty() && read.problems.is_empty() => {
                vec![format!("{}: the file has no users", file.display())]
            }
            Ok(read) => {
                let shown = read.problems.iter().chain(&read.weak).take(PROBLEMS_SHOWN_MAX);
                shown.map(|(line, problem)| format!("{}, line {line}: {problem}", file.display())).collect()
            }
        };
        for problem in problems {
            reader.warning(ConfigFinding::new(span.clone(), problem, "in this file").denied(is_denied));
        }
    }
}

/// Returns `true` if a map decides on a part of the target.
fn uses_maps(target: &Template) -> bool {
    target.variables().any(|variable| matches!(variable, Variable::Map(_)))
}

/// Returns `true` if a client that follows the redirect is redirected again, whatever the path.
fn leads_to_itself(rewrite: &Rewrite) -> bool {
    let is_same = match (&rewrite.path, rewrite.target.pieces.as_slice()) {
        (_, [TemplatePiece::Path]) => true,
        (_, [TemplatePiece::Path, TemplatePiece::Query]) => true,
        (PathPattern::Exact(path), [TemplatePiece::Literal(target)]) => target.split('?').next() == Some(path.as_str()),
        (PathPattern::Exact(path), [TemplatePiece::Literal(target), TemplatePiece::Query]) => target == path,
        _ => false,
    };
    is_same && rewrite.conditions.is_of_path_only() && !rewrite.conditions.is_missing
}

fn check_covered(
    places: &[(Arc<ConfigSource>, Range<usize>)],
    index: usize,
    covering: Option<usize>,
    diagnostics: &mut Diagnostics,
) {
    let (Some((source, span)), Some((other, earlier))) = (places.get(index), covering.and_then(|at| places.get(at)))
    else {
        return;
    };
    let finding = ConfigFinding::new(span.clone(), "this is never used", "an earlier one matches all its paths")
        .related(other.clone(), earlier.clone(), "this one")
        .help("put the more specific path first".to_owned());
    ConfigReader { source: source.clone(), diagnostics }.warning(finding);
}
