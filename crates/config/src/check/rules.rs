//! Checks of rules.

use super::claimed_paths::ClaimedPaths;
use super::describe_io;
use super::finding::{CheckedSite, ModelFinding, ModelPart, RulePart, RulesOwner};
use crate::model::password_file::PasswordFile;
use crate::model::rules::*;
use crate::model::{Config, HostPattern, PathPattern};
use crate::regular_file::is_denied;
use crate::value::{Openness, check_target, openness};

use super::bots::check_bots;

/// Problems of a password file that are reported one by one.
const PROBLEMS_SHOWN_MAX: usize = 3;

/// Rules that are checked, and the sites they are for.
#[derive(Clone, Copy)]
pub(super) struct CheckedRules<'c> {
    owner: RulesOwner,
    rules: &'c RulesConfig,
}

/// Checks each rule by itself.
pub(super) fn check_own_rules(owner: RulesOwner, rules: &RulesConfig, findings: &mut Vec<ModelFinding>) {
    let part = |rule| ModelPart::Rule(owner, rule);
    for (index, rewrite) in rules.rewrites.iter().enumerate() {
        check_rewrite(rewrite, part(RulePart::RewriteTarget(index)), findings);
    }
    for (index, rule) in rules.passwords.iter().enumerate() {
        check_passwords(rule, part(RulePart::PasswordFile(index)), findings);
    }
    for (index, rule) in rules.forward_auths.iter().enumerate() {
        check_login(rule, part(RulePart::Login(index)), findings);
    }
    // A redirect needs one host.
    if let Some(HostPattern::Suffix(_) | HostPattern::Prefix(_)) = rules.canonical_host {
        let finding = ModelFinding::error(part(RulePart::CanonicalHost), "`canonical-host` needs one host", "this");
        findings.push(finding.help("write, for example, `canonical-host \"example.com\"`"));
    }
    // The connection adds it last, unless `server-tokens` is off.
    let edits = rules.response_fields.iter().enumerate();
    for (index, _) in edits.filter(|(_, edit)| edit.name.eq_ignore_ascii_case("server")) {
        let place = part(RulePart::ResponseField(index));
        let finding = ModelFinding::error(place, "`Server` is set by the server itself", "here");
        findings.push(finding.help("to remove it, write `server-tokens off` in `server`"));
    }
    if let Some(Some(bots)) = &rules.bots {
        check_bots(bots, part, findings);
    }
}

/// Notes that requests can choose where a redirect leads.
fn check_openness(openness: Openness, part: ModelPart, findings: &mut Vec<ModelFinding>) {
    match openness {
        Openness::Closed => {}
        Openness::Doubtful => {
            let message = "this redirect leads to another host if the placeholder's value begins with a slash";
            findings.push(ModelFinding::warning(part, message, "this").help(
                "begin the expression with `^/(`, because no path has two slashes in a row, or write a fixed text \
                 before the group",
            ));
        }
        Openness::Open => {
            let help = "write a fixed text before the placeholder, such as `/new/`, or a host and a slash";
            let message = "this redirect lets clients choose the host";
            findings.push(ModelFinding::error(part, message, "this").help(help));
        }
    }
}

fn check_rewrite(rewrite: &Rewrite, target: ModelPart, findings: &mut Vec<ModelFinding>) {
    if let Some(wrong) = check_target(&rewrite.path, &rewrite.target) {
        findings.push(ModelFinding { help: wrong.help, ..ModelFinding::error(target, wrong.message, "this") });
    } else if rewrite.status.is_some() && leads_to_itself(rewrite) {
        let finding = ModelFinding::error(target, "this redirect leads to itself", "clients would loop");
        findings.push(finding.help("give it another target, or a condition"));
    } else if rewrite.status.is_some() && !uses_maps(&rewrite.target) {
        check_openness(openness(&rewrite.path, &rewrite.target), target, findings);
    }
}

/// A `login` names no part of a pattern.
fn check_login(rule: &ForwardAuthRule, part: ModelPart, findings: &mut Vec<ModelFinding>) {
    let Some(login) = rule.auth.as_ref().and_then(|auth| auth.login.as_ref()) else { return };
    if let Some(wrong) = check_target(&login.path, &login.target) {
        findings.push(ModelFinding { help: wrong.help, ..ModelFinding::error(part, wrong.message, "this") });
    } else if uses_maps(&login.target) {
        let finding = ModelFinding::error(part, "the page for signing in cannot depend on a map", "this");
        findings.push(finding.help("write the page itself; clients must not choose its host"));
    } else {
        check_openness(openness(&login.path, &login.target), part, findings);
    }
}

fn check_passwords(rule: &PasswordRule, part: ModelPart, findings: &mut Vec<ModelFinding>) {
    let Some(file) = &rule.file else { return };
    let read = PasswordFile::read(file);
    let is_denied = read.as_ref().is_err_and(is_denied);
    let is_missing = read.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    let problems = match read {
        Err(error) => vec![format!("{}: {}", file.display(), describe_io(&error))],
        Ok(read) if read.hashes.is_empty() && read.problems.is_empty() => {
            vec![format!("{}: the file has no users", file.display())]
        }
        Ok(read) => {
            let shown = read.problems.iter().chain(&read.weak).take(PROBLEMS_SHOWN_MAX);
            shown.map(|(line, problem)| format!("{}, line {line}: {problem}", file.display())).collect()
        }
    };
    for problem in problems {
        let finding = ModelFinding::warning(part, problem, "in this file").denied(is_denied).absent(is_missing);
        let help = format!("create the file: `htpasswd -B -c {} NAME`", file.display());
        findings.push(if is_missing { finding.help(help) } else { finding });
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

impl<'c> CheckedRules<'c> {
    pub(super) fn of_all(config: &'c Config) -> Self {
        Self { owner: RulesOwner::AllSites, rules: &config.rules }
    }

    pub(super) fn of_site(site: CheckedSite<'c>) -> Self {
        Self { owner: RulesOwner::Site(site.index), rules: &site.config.rules }
    }

    fn part(&self, rule: RulePart) -> ModelPart {
        ModelPart::Rule(self.owner, rule)
    }

    /// Notes what only shows when all rules of the site, and those of all sites, are known.
    pub(super) fn check(&self, of_all: Option<&Self>, findings: &mut Vec<ModelFinding>) {
        let shut_out = self.check_order(findings);
        self.check_allow(of_all, &shut_out, findings);
        self.check_alternatives(of_all, findings);
        let (mut plain, mut missing) = (ClaimedPaths::default(), ClaimedPaths::default());
        for (index, rewrite) in self.rules.rewrites.iter().enumerate() {
            let taken = if rewrite.conditions.is_missing { &mut missing } else { &mut plain };
            // Clients must not choose the host of a redirect through a map.
            if uses_maps(&rewrite.target) && rewrite.status.is_some() {
                let part = self.part(RulePart::Rewrite(index));
                check_openness(openness(&rewrite.path, &rewrite.target), part, findings);
            }
            self.check_covered(RulePart::Rewrite, index, taken.covering(&rewrite.path), findings);
            if rewrite.conditions.is_of_path_only() {
                taken.add(&rewrite.path, index);
            }
        }
        let mut taken = ClaimedPaths::default();
        for (index, rule) in self.rules.passwords.iter().enumerate() {
            self.check_covered(RulePart::Password, index, taken.covering(&rule.path), findings);
            if rule.when.is_none() {
                taken.add(&rule.path, index);
            }
        }
        let mut taken = ClaimedPaths::default();
        for (index, rule) in self.rules.forward_auths.iter().enumerate() {
            self.check_covered(RulePart::ForwardAuth, index, taken.covering(&rule.path), findings);
            if rule.when.is_none() {
                taken.add(&rule.path, index);
            }
        }
    }

    /// Guarded paths, and their rules.
    pub(super) fn guards(self) -> impl Iterator<Item = (&'c PathPattern, ModelPart)> {
        let clients = self.rules.clients.iter().enumerate().filter(|(_, rule)| rule.keeps_all_out());
        let clients = clients.map(move |(index, rule)| (&rule.path, self.part(RulePart::Client(index))));
        let passwords = self.rules.passwords.iter().enumerate().filter(|(_, rule)| rule.file.is_some());
        let passwords = passwords.map(move |(index, rule)| (&rule.path, self.part(RulePart::Password(index))));
        let auths = self.rules.forward_auths.iter().enumerate().filter(|(_, rule)| rule.auth.is_some());
        let auths = auths.map(move |(index, rule)| (&rule.path, self.part(RulePart::ForwardAuth(index))));
        clients.chain(passwords).chain(auths)
    }

    /// The paths of which all requests are redirected.
    pub(super) fn redirected_paths(&self) -> ClaimedPaths<'c> {
        let mut taken = ClaimedPaths::default();
        for (index, rewrite) in self.rules.rewrites.iter().enumerate() {
            let conditions = &rewrite.conditions;
            if rewrite.status.is_some() && conditions.is_of_path_only() && !conditions.is_missing {
                taken.add(&rewrite.path, index);
            }
        }
        taken
    }

    /// Redirect of all these paths.
    pub(super) fn redirect_of_all(&self, redirected: &ClaimedPaths<'_>, path: &PathPattern) -> Option<ModelPart> {
        let index = redirected.covering(path)?;
        // A path that a rewrite produced before is not redirected again.
        let is_led = |rewrite: &Rewrite| {
            rewrite.status.is_none() && !rewrite.conditions.is_missing && may_lead_to(rewrite, path)
        };
        (!self.rules.rewrites[..index].iter().any(is_led)).then(|| self.part(RulePart::Rewrite(index)))
    }

    /// Redirects and rewrites of what no handler has.
    pub(super) fn of_what_is_missing(&self) -> impl Iterator<Item = (&'c Rewrite, ModelPart)> {
        let rewrites = self.rules.rewrites.iter().enumerate().filter(|(_, rewrite)| rewrite.conditions.is_missing);
        rewrites.map(|(index, rewrite)| (rewrite, self.part(RulePart::Rewrite(index))))
    }

    /// Warns about each `allow` that follows a `deny` of all clients, and returns their indices.
    fn check_order(&self, findings: &mut Vec<ModelFinding>) -> Vec<usize> {
        let mut denied = ClaimedPaths::default();
        let mut shut_out = Vec::new();
        for (index, rule) in self.rules.clients.iter().enumerate() {
            if rule.keeps_all_out() {
                denied.add(&rule.path, index);
            }
            let Some(deny) = denied.covering(&rule.path).filter(|_| rule.is_allowed) else { continue };
            let (message, label) = ("this `allow` lets no client in", "a `deny` before it matches");
            findings.push(
                ModelFinding::warning(self.part(RulePart::Client(index)), message, label)
                    .related(self.part(RulePart::Client(deny)), "this one rejects all clients")
                    .help("write `allow` before `deny all`: the first rule that matches decides"),
            );
            shut_out.push(index);
        }
        shut_out
    }

    /// Warns about an `allow` after which no rule rejects a client, except for those that were `shut_out` before.
    fn check_allow(&self, of_all: Option<&Self>, shut_out: &[usize], findings: &mut Vec<ModelFinding>) {
        // A `deny` on a condition leaves others.
        let closes = |rule: &ClientRule| !rule.is_allowed && rule.conditions.is_of_path_only();
        let clients = &self.rules.clients;
        let after_deny = clients.iter().rposition(closes).map_or(0, |index| index + 1);
        let Some(open) = clients[after_deny..].iter().rposition(|rule| rule.is_allowed) else { return };
        let index = after_deny + open;
        // Rules of all sites come after those of a site.
        if shut_out.contains(&index)
            || of_all.is_some_and(|of_all| of_all.rules.clients.iter().any(|rule| !rule.is_allowed))
        {
            return;
        }
        let part = self.part(RulePart::Client(index));
        let finding = ModelFinding::warning(part, "this `allow` rejects no client", "no `deny` follows");
        findings.push(finding.help("add `deny all` after it"));
    }

    /// Passwords that an address is as good as, where none is let in.
    fn check_alternatives(&self, of_all: Option<&Self>, findings: &mut Vec<ModelFinding>) {
        let lets_in = |rules: &Self| rules.rules.clients.iter().any(|rule| rule.is_allowed);
        if lets_in(self) || of_all.is_some_and(lets_in) {
            return;
        }
        let alternatives = self.rules.passwords.iter().enumerate().filter(|(_, rule)| rule.is_alternative);
        for (index, _) in alternatives {
            let (message, label) = ("this `basic-auth` lets no client in by address", "there is no `allow`");
            findings.push(
                ModelFinding::warning(self.part(RulePart::Password(index)), message, label)
                    .help("add clients that need no password, such as `allow \"192.0.2.0/24\"`, and `deny all`"),
            );
        }
    }

    fn check_covered(
        &self,
        part: fn(usize) -> RulePart,
        index: usize,
        covering: Option<usize>,
        findings: &mut Vec<ModelFinding>,
    ) {
        let Some(earlier) = covering else { return };
        let (message, label) = ("this is never used", "an earlier one matches all its paths");
        findings.push(
            ModelFinding::warning(self.part(part(index)), message, label)
                .related(self.part(part(earlier)), "this one")
                .help("put the more specific path first"),
        );
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
