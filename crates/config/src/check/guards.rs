//! Paths that a rule guards, and that can be reached in another way without it: through `strip-prefix`, or another site
//! with the same upstream or root, or over FTP.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::claimed_paths::PathTable;
use super::finding::{CheckedSite, ModelFinding, ModelPart};
use super::rules::CheckedRules;
use crate::model::ftp::FtpConfig;
use crate::model::programs::programs_of;
use crate::model::{HandlerConfig, Listen, PathPattern, RootPattern, RootPiece, RouteConfig};

/// Ways around one rule that are reported, and as many over FTP. All could be as many as there are sites.
const WAYS_SHOWN_MAX: usize = 3;

/// Handlers of all sites.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Backend<'c> {
    Upstream(&'c str),
    Root(&'c str),
}

/// A route that leads to a backend.
struct BackendRoute<'c> {
    paths: &'c PathPattern,
    backend: Backend<'c>,
    strip_prefix: &'c str,
}

/// Clients that a rule guards paths from.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Audience {
    /// Clients of other machines, too.
    Public,
    /// Clients of this machine alone.
    Local,
}

/// A path by which clients reach a backend, and the route that leads there.
type WayAround = (String, ModelPart);

/// Routes and sites that lead to each backend. Sites are not compared with one another: ten thousand may share a root.
struct WaysAround<'c> {
    of_all: CheckedRules<'c>,
    /// Routes by the prefix that they strip. Those without clients whom a rule could reject are left out.
    routes: HashMap<(Backend<'c>, Audience), RoutesByPrefix<'c>>,
    /// Sites that serve a root over FTP.
    ftp: HashMap<(Backend<'c>, Audience), Vec<ModelPart>>,
    /// First ways to a path of a backend: one more than is shown, if there are as many.
    known: HashMap<(Backend<'c>, Audience, String), Rc<[WayAround]>>,
    /// Reported ways around each rule.
    reported: HashMap<ModelPart, Vec<ModelPart>>,
    /// Routes that were looked at.
    #[cfg(test)]
    compared: usize,
}

type RoutesByPrefix<'c> = BTreeMap<&'c str, PathTable<'c, (CheckedSite<'c>, ModelPart)>>;

/// Warns of each guard that has a way around it; once a guard and way.
pub(super) fn check<'c>(sites: &[CheckedSite<'c>], of_all: &CheckedRules<'c>, findings: &mut Vec<ModelFinding>) {
    WaysAround::new(sites, *of_all).check(sites, findings);
}

impl<'c> WaysAround<'c> {
    fn new(sites: &[CheckedSite<'c>], of_all: CheckedRules<'c>) -> Self {
        let mut new = Self {
            of_all,
            routes: HashMap::new(),
            ftp: HashMap::new(),
            known: HashMap::new(),
            reported: HashMap::new(),
            #[cfg(test)]
            compared: 0,
        };
        for &site in sites {
            new.add_routes(site);
            new.add_ftp(site);
        }
        new
    }

    fn add_routes(&mut self, site: CheckedSite<'c>) {
        // The rule of a client certificate already guards it, as does a rule for all paths.
        if site.config.tls.client_certificates.is_some()
            || self.guards(site).any(|(pattern, _)| *pattern == PathPattern::Any)
        {
            return;
        }
        for audience in audiences(is_local_only(site)) {
            for (index, route) in site.config.routes.iter().enumerate() {
                let Some(BackendRoute { paths, backend, strip_prefix }) = BackendRoute::of(route) else { continue };
                let by_prefix = self.routes.entry((backend, *audience)).or_default();
                by_prefix.entry(strip_prefix).or_default().add(paths, (site, site.route(index)));
            }
        }
    }

    fn add_ftp(&mut self, site: CheckedSite<'c>) {
        let Some(ftp) = &site.config.ftp else { return };
        let Some(root) = fixed(&ftp.files.root) else { return };
        let is_local = |ftp: &FtpConfig| ftp.listen.iter().all(Listen::is_of_this_machine);
        for audience in audiences(is_local(ftp)) {
            self.ftp.entry((Backend::Root(root), *audience)).or_default().push(ModelPart::SiteFtp(site.index));
        }
    }

    /// Guarded paths of a site, and their rules.
    fn guards(&self, site: CheckedSite<'c>) -> impl Iterator<Item = (&'c PathPattern, ModelPart)> + use<'c> {
        CheckedRules::of_site(site).guards().chain(self.of_all.guards())
    }

    fn check(&mut self, sites: &[CheckedSite<'c>], findings: &mut Vec<ModelFinding>) {
        for &site in sites {
            let audience = if is_local_only(site) { Audience::Local } else { Audience::Public };
            for (pattern, rule) in self.guards(site) {
                let Some(path) = sample(pattern) else { continue };
                for way in ways(site, &path) {
                    let remainder = path.strip_prefix(way.strip_prefix).unwrap_or(&path);
                    self.report_routes(rule, (way.backend, audience), remainder, findings);
                    self.report_ftp(rule, (way.backend, audience), remainder, findings);
                }
            }
        }
    }

    /// Reports routes by which this audience reaches what a rule guards.
    fn report_routes(
        &mut self,
        rule: ModelPart,
        (backend, audience): (Backend<'c>, Audience),
        remainder: &str,
        findings: &mut Vec<ModelFinding>,
    ) {
        let mut shown = self.reported_of(rule).filter(|part| matches!(part, ModelPart::Route(..))).count();
        let around = self.around((backend, audience), remainder);
        for (index, (path, route)) in around.iter().enumerate() {
            if shown == WAYS_SHOWN_MAX {
                return;
            }
            if self.reported_of(rule).any(|reported| reported == *route) {
                continue;
            }
            shown += 1;
            self.reported.entry(rule).or_default().push(*route);
            let is_last = shown == WAYS_SHOWN_MAX && index + 1 < around.len();
            let others = if is_last { ", and to further sites that lead there" } else { "" };
            let help = format!("add a rule for `{path}` and similar paths to that site too{others}");
            findings.push(way_around(rule, path, *route).help(help));
        }
    }

    /// Reports sites that serve a guarded file over FTP.
    fn report_ftp(
        &mut self,
        rule: ModelPart,
        backend: (Backend<'c>, Audience),
        remainder: &str,
        findings: &mut Vec<ModelFinding>,
    ) {
        let Some(sites) = self.ftp.get(&backend) else { return };
        let reported = self.reported.entry(rule).or_default();
        let mut shown = reported.iter().filter(|part| matches!(part, ModelPart::SiteFtp(_))).count();
        for &site in sites {
            if shown == WAYS_SHOWN_MAX {
                return;
            }
            if !reported.contains(&site) {
                shown += 1;
                reported.push(site);
                let help = "FTP has no such rules: give `ftp` a `root` without these files";
                findings.push(way_around(rule, remainder, site).help(help));
            }
        }
    }

    fn reported_of(&self, rule: ModelPart) -> impl Iterator<Item = ModelPart> {
        self.reported.get(&rule).into_iter().flatten().copied()
    }

    /// The first ways by which an audience reaches a path of a backend without a guard.
    fn around(&mut self, (backend, audience): (Backend<'c>, Audience), remainder: &str) -> Rc<[WayAround]> {
        let key = (backend, audience, remainder.to_owned());
        if let Some(known) = self.known.get(&key) {
            return Rc::clone(known);
        }
        let mut found = Vec::new();
        #[cfg(test)]
        let mut compared = 0;
        'all: for (strip_prefix, routes) in self.routes.get(&(backend, audience)).into_iter().flatten() {
            let path = format!("{strip_prefix}{remainder}");
            for (site, route) in routes.matching(&path) {
                #[cfg(test)]
                {
                    compared += 1;
                }
                if !self.guards(*site).any(|(pattern, _)| pattern.guards(path.as_bytes())) {
                    found.push((path.clone(), *route));
                    if found.len() > WAYS_SHOWN_MAX {
                        break 'all;
                    }
                }
            }
        }
        #[cfg(test)]
        {
            self.compared += compared;
        }
        let found: Rc<[WayAround]> = found.into();
        self.known.insert(key, Rc::clone(&found));
        found
    }
}

/// Audiences that a site adds ways for. A site for this machine alone may be open on purpose: it is a way around guards of
/// others of its kind only.
fn audiences(is_local: bool) -> &'static [Audience] {
    if is_local { &[Audience::Local] } else { &[Audience::Public, Audience::Local] }
}

/// Ways in which a site serves a path.
fn ways<'c>(site: CheckedSite<'c>, path: &str) -> Vec<BackendRoute<'c>> {
    let mut found = Vec::new();
    for route in &site.config.routes {
        if let Some(way) = BackendRoute::of(route).filter(|way| way.paths.matches(path.as_bytes())) {
            found.push(way);
            // This handler leaves nothing to later routes.
            if matches!(route.handler, HandlerConfig::Forward(_)) && route.conditions.is_of_path_only() {
                break;
            }
        }
    }
    found
}

fn way_around(rule: ModelPart, path: &str, leads: ModelPart) -> ModelFinding {
    let message = format!("paths that this rule guards can be reached without it, such as by `{path}`");
    ModelFinding::warning(rule, message, "this").related(leads, "this leads to the same files or upstream")
}

impl<'c> BackendRoute<'c> {
    fn of(route: &'c RouteConfig) -> Option<Self> {
        let (backend, strip_prefix) = match &route.handler {
            HandlerConfig::Forward(forward) => (Backend::Upstream(&forward.upstream), &forward.strip_prefix),
            HandlerConfig::Gateway(gateway, _) => match gateway.root.as_ref().and_then(fixed) {
                Some(root) => (Backend::Root(root), &gateway.strip_prefix),
                None => (Backend::Upstream(&gateway.forward.upstream), &gateway.strip_prefix),
            },
            HandlerConfig::Files(files) => (Backend::Root(fixed(&files.root)?), &files.strip_prefix),
            HandlerConfig::Respond(_) | HandlerConfig::Module(_) | HandlerConfig::Status(_) => return None,
        };
        Some(Self { paths: programs_of(route), backend, strip_prefix })
    }
}

/// A root that is the same for all hosts.
fn fixed(root: &RootPattern) -> Option<&str> {
    match root.pieces.as_slice() {
        [RootPiece::Literal(path)] => Some(path.trim_end_matches('/')),
        _ => None,
    }
}

/// A path of a pattern. `None` for all paths, which are a whole site's, and for expressions.
fn sample(pattern: &PathPattern) -> Option<String> {
    match pattern {
        PathPattern::Any | PathPattern::Regex(_) => None,
        PathPattern::Exact(path) => Some(path.clone()),
        PathPattern::Prefix(path) => Some(format!("{path}x")),
        PathPattern::Suffix(end) if end.starts_with('/') => Some(end.clone()),
        PathPattern::Suffix(end) => Some(format!("/x{end}")),
    }
}

fn is_local_only(site: CheckedSite<'_>) -> bool {
    site.config.listen.iter().all(Listen::is_of_this_machine)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{WAYS_SHOWN_MAX, WaysAround};
    use crate::check::finding::checked_sites;
    use crate::check::rules::CheckedRules;

    /// The paths by which `check` says that guards are led around.
    fn reported(text: &str) -> Vec<String> {
        let text = text.replace("UP", "forward \"http://192.0.2.1:8080\"");
        let checked = crate::check_bytes("test.kdl", text.as_bytes().to_vec(), Path::new("/"));
        let reported = checked.diagnostics.to_text(false);
        assert!(checked.config.is_some(), "{reported}");
        // Lines are folded at the width of a terminal.
        let reported = reported.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
        let said = reported.split("can be reached without it, such as by `").skip(1);
        said.map(|rest| rest.split('`').next().unwrap_or_default().to_owned()).collect()
    }

    /// Issue 17: `check` says where a guarded path stays reachable.
    #[test]
    fn ways_around_a_guard() {
        let check = |text: &str, expect: &[&str]| assert_eq!(reported(text), expect, "{text}");
        let deny = "deny all path=\"/admin/*\"";
        check(&format!("site {{ {deny}; UP }}"), &[]);
        check(&format!("site {{ {deny}; UP path=\"/app/*\" {{ strip-prefix \"/app\" }}; UP }}"), &["/app/admin/x"]);
        check(
            &format!("site {{ {deny}; deny all path=\"/app/*\"; UP path=\"/app/*\" {{ strip-prefix \"/app\" }}; UP }}"),
            &["/x"],
        );
        check(&format!("site \"a.example\" {{ {deny}; UP }}; site \"b.example\" {{ UP }}"), &["/admin/x"]);
        check(&format!("{deny}; site \"a.example\" {{ UP }}; site \"b.example\" {{ UP }}"), &[]);
        check(&format!("site \"a.example\" {{ {deny}; UP }}; site \"b.example\" {{ {deny}; UP }}"), &[]);
        check(&format!("site \"a.example\" {{ {deny}; UP }}; site \"b.example\" {{ deny all; UP }}"), &[]);
        let local = "listen \"127.0.0.1:81\"";
        check(&format!("site \"a.example\" {{ {deny}; UP }}; site \"b.example\" {{ {local}; UP }}"), &[]);
        check(&format!("site \"a.example\" {{ {deny}; UP }}; site \"b.example\" {{ UP path=\"/api/*\" }}"), &[]);
        let stripped = "UP path=\"/app/*\" { strip-prefix \"/app\" }";
        check(
            &format!(
                "site \"a.example\" {{ deny all path=\"/app/admin/*\"; {stripped} }}; site \"b.example\" {{ UP }}"
            ),
            &["/admin/x"],
        );
        let files = "root \"/tmp\"";
        let php = "deny all path=\"*.php\"";
        check(&format!("site \"a.example\" {{ {php}; {files} }}; site \"b.example\" {{ {files} }}"), &["/x.php"]);
        check(&format!("site \"a.example\" {{ {php}; {files} }}; site \"b.example\" {{ root \"/var\" }}"), &[]);
        let ftp = |listen: &str| {
            format!("site \"a.example\" {{ {deny}; {files} }}; site \"b.example\" {{ ftp {listen} {{ {files} }} }}")
        };
        check(&ftp("2121"), &["/admin/x"]);
        check(&ftp("\"127.0.0.1:2121\""), &[]);
        check(&ftp("2121").replace("{ root \"/tmp\" }", "{ root \"/var\" }"), &[]);
        check("site { basic-auth \"/a\" \"/nonexistent\"; UP path=\"/b/*\" { strip-prefix \"/b\" }; UP }", &["/b/a"]);
    }

    /// Sites that share a root, each with guards of its own. `{}` is the number of the site.
    fn compared(count: usize, site: &str) -> (usize, usize) {
        let text: String = (0..count).map(|number| site.replace("{}", &number.to_string()) + "\n").collect();
        let checked = crate::check_bytes("test.kdl", text.into_bytes(), Path::new("/"));
        let config = checked.config.unwrap_or_else(|| panic!("{}", checked.diagnostics.to_text(false)));
        let sites: Vec<_> = checked_sites(&config).collect();
        let mut ways = WaysAround::new(&sites, CheckedRules::of_all(&config));
        let mut findings = Vec::new();
        ways.check(&sites, &mut findings);
        (ways.compared, findings.len())
    }

    /// Ten times the sites cost ten times as much, whether all have the same guards, others, or paths of their own.
    #[test]
    fn sites_of_one_root_are_not_compared_with_one_another() {
        let check = |site: &str, compared_by_site: usize, findings_by_site: usize| {
            for count in [20, 200] {
                let (compared, findings) = compared(count, site);
                assert!(compared <= compared_by_site * count, "{count} sites: {compared}\n{site}");
                assert_eq!(findings, findings_by_site * count, "{count} sites\n{site}");
            }
        };
        check(r#"site "{}.example" { deny all path="/admin/*"; root "/tmp" }"#, 1, 0);
        check(r#"site "{}.example" { deny all path="/admin{}/*"; root "/tmp" }"#, WAYS_SHOWN_MAX + 2, WAYS_SHOWN_MAX);
        let own_paths = r#"site "{}.example" { deny all path="/{}/a/*"; forward "http://192.0.2.1:80" path="/{}/*" }"#;
        check(own_paths, 1, 0);
        let all_denied = r#"site "{}.example" { deny all path="/{}/*"; deny all; root "/tmp" }"#;
        check(all_denied, 0, 0);
        let files = r#"site "{}.example" { deny all path="/a/*"; root "/tmp" }"#;
        let ftp = r#"site "ftp{}.example" { ftp "192.0.2.1:2{}" { root "/tmp" } }"#;
        check(&format!("{files}\n{ftp}"), 1, WAYS_SHOWN_MAX);
    }
}
