//! Paths that a rule guards, and that can be reached in another way without it: through `strip-prefix`, or another site
//! with the same upstream or root, or over FTP.

use super::finding::{CheckedSite, ModelFinding, ModelPart};
use super::rules::CheckedRules;
use crate::model::ftp::FtpConfig;
use crate::model::programs::programs_of;
use crate::model::{HandlerConfig, Listen, PathPattern, RootPattern, RootPiece, RouteConfig};

/// Handlers of all sites.
#[derive(PartialEq)]
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

/// Warns of each guard that has a way around it; once a guard and way.
pub(super) fn check(sites: &[CheckedSite<'_>], of_all: &CheckedRules<'_>, findings: &mut Vec<ModelFinding>) {
    let mut reported = Vec::new();
    for &site in sites {
        for (pattern, rule) in CheckedRules::of_site(site).guards().chain(of_all.guards()) {
            let Some(path) = sample(pattern) else { continue };
            for way in ways(site, &path) {
                let remainder = path.strip_prefix(way.strip_prefix).unwrap_or(&path);
                for &other in sites.iter().filter(|other| is_as_public(**other, site)) {
                    for (path, route) in around(other, &way, remainder, of_all) {
                        if !reported.contains(&(rule, route)) {
                            reported.push((rule, route));
                            let help = format!("add a rule for `{path}` and similar paths to that site too");
                            findings.push(way_around(rule, &path, route).help(help));
                        }
                    }
                }
                for &other in sites {
                    let ftp = ModelPart::SiteFtp(other.index);
                    if leads_over_ftp(other, site, &way) && !reported.contains(&(rule, ftp)) {
                        reported.push((rule, ftp));
                        let help = "FTP has no such rules: give `ftp` a `root` without these files";
                        findings.push(way_around(rule, remainder, ftp).help(help));
                    }
                }
            }
        }
    }
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

/// True if the site's `ftp` serves the files to which a way of the guarded site leads.
fn leads_over_ftp(other: CheckedSite<'_>, guarded: CheckedSite<'_>, way: &BackendRoute<'_>) -> bool {
    let Some(ftp) = &other.config.ftp else { return false };
    let is_same = fixed(&ftp.files.root).is_some_and(|root| way.backend == Backend::Root(root));
    let is_local = |ftp: &FtpConfig| ftp.listen.iter().all(Listen::is_of_this_machine);
    is_same && (!is_local(ftp) || is_local_only(guarded))
}

/// The paths and routes of a site that lead where a way leads with this path, without a guard.
fn around(
    site: CheckedSite<'_>,
    way: &BackendRoute<'_>,
    remainder: &str,
    of_all: &CheckedRules<'_>,
) -> Vec<(String, ModelPart)> {
    // The rule of a client certificate already guards it.
    if site.config.tls.client_certificates.is_some() {
        return Vec::new();
    }
    let guards = || CheckedRules::of_site(site).guards().chain(of_all.guards());
    let around = site.config.routes.iter().enumerate().filter_map(|(index, route)| {
        let other = BackendRoute::of(route).filter(|other| other.backend == way.backend)?;
        let path = format!("{}{remainder}", other.strip_prefix);
        let is_guarded = || guards().any(|(pattern, _)| pattern.guards(path.as_bytes()));
        (other.paths.matches(path.as_bytes()) && !is_guarded()).then(|| (path, site.route(index)))
    });
    around.collect()
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

/// True if a site can be reached by those from whom another guards a path. One for this machine alone may be open on purpose.
fn is_as_public(other: CheckedSite<'_>, site: CheckedSite<'_>) -> bool {
    !is_local_only(other) || is_local_only(site)
}

fn is_local_only(site: CheckedSite<'_>) -> bool {
    site.config.listen.iter().all(Listen::is_of_this_machine)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
}
