//! Paths that a rule guards, and that can be reached in another way without it: through `strip-prefix`, or another site
//! with the same upstream or root, or over FTP.

use super::rules::{RulePosition, RulesDraft};
use crate::diagnostic::Diagnostics;
use crate::model::ftp::FtpConfig;
use crate::model::programs::programs_of;
use crate::model::{HandlerConfig, Listen, PathPattern, RootPattern, RootPiece, RouteConfig};
use crate::read::draft::SiteDraft;
use crate::read::{ConfigFinding, ConfigReader};

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
pub(crate) fn check(sites: &[&SiteDraft], of_all: &RulesDraft, diagnostics: &mut Diagnostics) {
    let mut reported = Vec::new();
    for &site in sites {
        for (pattern, place) in site.rules.guards().chain(of_all.guards()) {
            let Some(path) = sample(pattern) else { continue };
            for way in ways(site, &path) {
                let remainder = path.strip_prefix(way.strip_prefix).unwrap_or(&path);
                for &other in sites.iter().filter(|other| is_as_public(other, site)) {
                    for (route, span) in around(other, &way, remainder, of_all) {
                        if !reported.contains(&(place, span.clone())) {
                            reported.push((place, span.clone()));
                            let help = format!("add a rule for `{route}` and similar paths to that site too");
                            warn(place, other, (&route, span), help, diagnostics);
                        }
                    }
                }
                for &other in sites {
                    if let Some(span) = over_ftp(other, site, &way)
                        && !reported.contains(&(place, span.clone()))
                    {
                        reported.push((place, span.clone()));
                        let help = "FTP has no such rules: give `ftp` a `root` without these files".to_owned();
                        warn(place, other, (remainder, span), help, diagnostics);
                    }
                }
            }
        }
    }
}

/// Ways in which a site serves a path.
fn ways<'c>(site: &'c SiteDraft, path: &str) -> Vec<BackendRoute<'c>> {
    let mut found = Vec::new();
    for route in &site.site.routes {
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

fn warn(
    (source, span): &RulePosition,
    other: &SiteDraft,
    (path, route): (&str, std::ops::Range<usize>),
    help: String,
    diagnostics: &mut Diagnostics,
) {
    let message = format!("paths that this rule guards can be reached without it, such as by `{path}`");
    let finding = ConfigFinding::new(span.clone(), message, "this")
        .related(other.source.clone(), route, "this leads to the same files or upstream")
        .help(help);
    ConfigReader { source: source.clone(), diagnostics }.warning(finding);
}

/// Span of the site's `ftp`, if it serves the files to which a way of the guarded site leads.
fn over_ftp(other: &SiteDraft, guarded: &SiteDraft, way: &BackendRoute<'_>) -> Option<std::ops::Range<usize>> {
    let (ftp, _, span) = other.ftp.as_ref()?;
    let is_same = fixed(&ftp.files.root).is_some_and(|root| way.backend == Backend::Root(root));
    let is_local = |ftp: &FtpConfig| ftp.listen.iter().all(Listen::is_of_this_machine);
    (is_same && (!is_local(ftp) || is_local_only(guarded))).then(|| span.clone())
}

/// The paths and routes of a site that lead where a way leads with this path, without a guard.
fn around(
    site: &SiteDraft,
    way: &BackendRoute<'_>,
    remainder: &str,
    of_all: &RulesDraft,
) -> Vec<(String, std::ops::Range<usize>)> {
    // The rule of a client certificate already guards it.
    if site.site.tls.client_certificates.is_some() {
        return Vec::new();
    }
    let routes = site.site.routes.iter().zip(&site.route_spans);
    let around = routes.filter_map(|(route, span)| {
        let other = BackendRoute::of(route).filter(|other| other.backend == way.backend)?;
        let path = format!("{}{remainder}", other.strip_prefix);
        let is_guarded =
            || site.rules.guards().chain(of_all.guards()).any(|(pattern, _)| pattern.guards(path.as_bytes()));
        (other.paths.matches(path.as_bytes()) && !is_guarded()).then(|| (path, span.clone()))
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
fn is_as_public(other: &SiteDraft, site: &SiteDraft) -> bool {
    !is_local_only(other) || is_local_only(site)
}

fn is_local_only(site: &SiteDraft) -> bool {
    site.site.listen.iter().all(Listen::is_of_this_machine)
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
