//! Program files, whose source must not be sent, and the routes that run them.

use super::{Config, FilesConfig, GatewayPart, HandlerConfig, PathPattern, RouteConfig, SiteConfig};

/// Extensions of files that other servers run instead of sending them. Where a site has scripts or a `forward`, a file of
/// one is source, with passwords of databases in it. Missing on purpose: what sites offer for download as well (`.sh`,
/// `.exe`, `.jar`), and `.html`.
pub(crate) const PROGRAM_EXTENSIONS: [&str; 66] = [
    // PHP: what Debian, Ubuntu, Red Hat and older hosts run (`.ph(ar|p[3-8]?|ps|t|tm|tml)`), and what applications include:
    // CakePHP's templates, `.inc` of most, Drupal's modules, which its .htaccess keeps from clients.
    "php", "php3", "php4", "php5", "php6", "php7", "php8", "phps", "pht", "phtm", "phtml", "phar", "ctp", "inc",
    "module", "install", "engine", "profile", "theme",
    // CGI and Perl: Apache's `AddHandler cgi-script`, mod_perl, FastCGI, Mojolicious.
    "cgi", "fcgi", "fpl", "pl", "pm", "plx", "psgi", "ep", // Python: mod_wsgi, mod_python.
    "py", "pyw", "psp", "wsgi", // Ruby: eruby, Rails' templates.
    "rb", "rbw", "rhtml", "erb", // ASP and ASP.NET: what IIS runs or keeps from clients.
    "asp", "asa", "aspx", "asax", "ascx", "ashx", "asmx", "axd", "svc", "master", "cshtml", "vbhtml",
    // Java: JSP in its pages, fragments and older forms.
    "jsp", "jspa", "jspf", "jspx", "jsv", "jsw", "jhtml", "jws", // ColdFusion.
    "cfm", "cfml", "cfc", // Server side includes: Apache and IIS.
    "shtml", "shtm", "stm", // Lua (mod_lua, OpenResty) and Tcl (Rivet, AOLserver).
    "lua", "lp", "tcl", "rvt", "adp",
];

/// Paths of the routes that may run programs among a route's files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Runners {
    /// Of those that have a request before the files do.
    pub before: Vec<PathPattern>,
    /// Of those that have some requests before the files do, because of a condition.
    pub before_some: Vec<PathPattern>,
    /// Of those that have what the files decline.
    pub after: Vec<PathPattern>,
}

impl Runners {
    /// Runners for a site's route.
    pub fn of(site: &SiteConfig, route: usize) -> Self {
        let runs = |route: &&RouteConfig| route.handler.runs_programs();
        let paths = |routes: Vec<&RouteConfig>| routes.into_iter().map(programs_of).cloned().collect();
        let before = site.routes[..route].iter().filter(runs);
        let (before, before_some) = before.partition(|route| route.conditions.is_of_path_only());
        let after = site.routes[route + 1..].iter().filter(runs).collect();
        Self { before: paths(before), before_some: paths(before_some), after: paths(after) }
    }

    /// Returns `true` if nothing runs programs in this site, so that they are ordinary files.
    pub fn is_empty(&self) -> bool {
        self.before.is_empty() && self.before_some.is_empty() && self.after.is_empty()
    }

    /// Returns `true` if a request for this path never reaches the files.
    pub fn take_before(&self, path: &[u8]) -> bool {
        self.before.iter().any(|pattern| pattern.matches(path))
    }

    /// Returns `true` if an earlier declined request for this path goes to one of the runners.
    pub fn take_after(&self, path: &[u8]) -> bool {
        self.after.iter().any(|pattern| pattern.matches(path))
    }

    /// Returns `true` if a runner may get a file of this name, in any directory.
    pub(crate) fn may_run(&self, name: &str) -> bool {
        self.before.iter().chain(&self.before_some).chain(&self.after).any(|pattern| match pattern {
            PathPattern::Any | PathPattern::Prefix(_) => true,
            pattern => may_end_with(pattern, name),
        })
    }

    /// Returns `true` if a directory may reach the files, but not its entry of this name.
    fn may_take_entry(&self, name: &str) -> bool {
        self.before.iter().chain(&self.before_some).any(|pattern| may_take_entry(pattern, name))
    }
}

/// Returns `true` if paths of this pattern can match an entry of this name but not its directory.
fn may_take_entry(pattern: &PathPattern, name: &str) -> bool {
    match pattern {
        PathPattern::Any => false,
        // A prefix that matches entries also matches their directory.
        PathPattern::Prefix(prefix) => !prefix.ends_with('/'),
        pattern => may_end_with(pattern, name),
    }
}

/// The paths of a route's programs. A route for scripts sees all paths, and takes those with scripts in them.
pub(crate) fn programs_of(route: &RouteConfig) -> &PathPattern {
    match &route.handler {
        HandlerConfig::Gateway(gateway, GatewayPart::Scripts) => &gateway.scripts,
        _ => &route.path,
    }
}

/// Returns `true` if paths of this pattern, which is not a prefix, can end with this name.
fn may_end_with(pattern: &PathPattern, name: &str) -> bool {
    let name = format!("/{name}");
    match pattern {
        PathPattern::Any | PathPattern::Prefix(_) | PathPattern::Regex(_) => true,
        PathPattern::Exact(path) => path.ends_with(&name),
        PathPattern::Suffix(suffix) => name.ends_with(suffix.as_str()) || suffix.ends_with(&name),
    }
}

impl HandlerConfig {
    /// Returns `true` if this handler runs programs or forwards to an upstream that does.
    pub fn runs_programs(&self) -> bool {
        match self {
            Self::Forward(_) | Self::Gateway(..) => true,
            Self::Files(_) | Self::Respond(_) | Self::Module(_) | Self::Status(_) => false,
        }
    }
}

impl FilesConfig {
    /// Returns `true` if a file of this name is a program, by its extension in any case.
    pub fn is_program(&self, name: &[u8]) -> bool {
        let file_name = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let Some(dot) = memchr::memrchr(b'.', file_name) else { return false };
        self.exclude_extensions.iter().any(|extension| file_name[dot + 1..].eq_ignore_ascii_case(extension.as_bytes()))
    }

    /// Returns `true` if a request for these files may need to become one for another path: a program that is a
    /// directory's index, or the fallback.
    pub fn may_have_program(&self, runners: &Runners) -> bool {
        let mut names = self.index.iter().map(String::as_str).chain(self.fallback.as_deref());
        !runners.is_empty()
            && names.any(|name| {
                let name = name.trim_start_matches('/');
                self.is_program(name.as_bytes()) || runners.may_take_entry(name)
            })
    }
}

/// Rules and routes of a site before one of its handlers. Because of them, another path may get another response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Precedence {
    /// The handler's own paths.
    own: PathPattern,
    /// The paths of rules that guard.
    guards: Vec<PathPattern>,
    /// The paths of the handlers before.
    before: Vec<PathPattern>,
}

impl Precedence {
    /// Rules and routes before a site's route.
    pub fn of(config: &Config, site: &SiteConfig, route: usize) -> Self {
        let is_narrow = |pattern: &&PathPattern| **pattern != PathPattern::Any;
        let before = site.routes[..route].iter().map(|route| &route.path);
        let guards = site.rules.guarding().chain(config.rules.guarding());
        Self {
            own: site.routes[route].path.clone(),
            guards: guards.filter(is_narrow).cloned().collect(),
            before: before.filter(is_narrow).cloned().collect(),
        }
    }

    /// Returns `true` if nothing distinguishes two paths.
    pub fn is_empty(&self) -> bool {
        self.guards.is_empty() && self.before.is_empty()
    }

    /// Returns `true` if a request for `path` that the handler answers with the content of `other` must be routed by `other`.
    /// This is so if different rules apply to both. If `other` is not a path of the handler, clients cannot request
    /// it here, and only guards of `other` count.
    pub fn tells_apart(&self, path: &[u8], other: &[u8]) -> bool {
        let differs = |pattern: &PathPattern| pattern.guards(path) != pattern.guards(other);
        path != other
            && match self.own.matches(other) {
                true => self.guards.iter().chain(&self.before).any(differs),
                false => self.guards.iter().any(differs) && self.guards.iter().any(|guarding| guarding.guards(other)),
            }
    }
}

impl SiteConfig {
    /// Patterns of script paths.
    pub fn script_patterns(&self) -> impl Iterator<Item = &PathPattern> {
        self.routes.iter().filter_map(|route| match &route.handler {
            HandlerConfig::Gateway(gateway, GatewayPart::Scripts) if gateway.has_files() => Some(&gateway.scripts),
            _ => None,
        })
    }

    /// Returns `true` if files or scripts of this site may route requests again by another path.
    pub fn asks_elsewhere(&self) -> bool {
        self.routes.iter().enumerate().any(|(at, route)| {
            let may_lead_apart = |index: &[String], fallback: Option<&str>| {
                self.routes[..at].iter().any(|before| may_tell_apart(&before.path, index, fallback))
            };
            match &route.handler {
                HandlerConfig::Files(files) => {
                    let runners = Runners::of(self, at);
                    let is_after_another = self.routes[..at].iter().any(|before| before.path != PathPattern::Any);
                    // A route that takes everything the files decline gets it with the original path.
                    (!runners.after.contains(&PathPattern::Any) && files.may_have_program(&runners))
                        || may_lead_apart(&files.index, files.fallback.as_deref())
                        || (!files.extensions.is_empty() && (is_after_another || !runners.is_empty()))
                }
                HandlerConfig::Gateway(gateway, _) if gateway.has_files() => {
                    may_lead_apart(&gateway.index, gateway.fallback.as_deref())
                }
                _ => false,
            }
        })
    }
}

/// Returns `true` if these paths may match a request but not the index or fallback that answers it, or the other way
/// round. [`Precedence::tells_apart`] then decides for each request.
fn may_tell_apart(pattern: &PathPattern, index: &[String], fallback: Option<&str>) -> bool {
    let is_of_directories = match pattern {
        PathPattern::Exact(path) | PathPattern::Suffix(path) => path.ends_with('/'),
        PathPattern::Any | PathPattern::Prefix(_) | PathPattern::Regex(_) => false,
    };
    // A fallback answers for paths of any kind.
    (*pattern != PathPattern::Any && fallback.is_some())
        || index.iter().any(|name| is_of_directories || may_take_entry(pattern, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_their_extension() {
        let files = FilesConfig::below("/srv");
        let check = |name: &str, expect: bool| assert_eq!(files.is_program(name.as_bytes()), expect, "{name}");
        check("a.php", true);
        check("dir/X.PHP", true);
        check("a.b.phtml", true);
        // Issue 17: these were sent as source.
        for extension in ["php3", "php8", "pht", "phtm", "inc"] {
            check(&format!("a.{extension}"), true);
            check(&format!("A.{}", extension.to_uppercase()), true);
        }
        check("install.sh", false);
        check("a.php.txt", false);
        check("php", false);
        check("a.php/b", false);
    }

    #[test]
    fn who_tells_an_index_or_a_fallback_apart() {
        let check = |pattern: PathPattern, of_index: bool| {
            assert_eq!(may_tell_apart(&pattern, &["index.html".into()], None), of_index, "{pattern:?}");
            let is_any = pattern == PathPattern::Any;
            assert_eq!(may_tell_apart(&pattern, &[], Some("/index.html")), !is_any, "{pattern:?}");
            assert!(!may_tell_apart(&pattern, &[], None), "{pattern:?}");
        };
        check(PathPattern::Any, false);
        check(PathPattern::Prefix("/app/".into()), false);
        check(PathPattern::Prefix("/app".into()), true);
        check(PathPattern::Suffix(".html".into()), true);
        check(PathPattern::Suffix(".php".into()), false);
        check(PathPattern::Suffix("/".into()), true);
        check(PathPattern::Exact("/app/index.html".into()), true);
        check(PathPattern::Exact("/app/".into()), true);
        check(PathPattern::Exact("/app".into()), false);
    }

    /// Found by random Caddyfiles: no file was served if a `forward` with a condition had all paths.
    #[test]
    fn conditional_runners_leave_files() {
        let runners = Runners { before_some: vec![PathPattern::Any], ..Runners::default() };
        assert!(!runners.is_empty() && runners.may_run("index.php") && !runners.take_before(b"/a.txt"));
    }

    #[test]
    fn who_may_run_a_name() {
        let check = |pattern: PathPattern, expect: bool| {
            let runners = Runners { before: vec![pattern.clone()], ..Runners::default() };
            assert_eq!(runners.may_run("index.php"), expect, "{pattern:?}");
        };
        check(PathPattern::Any, true);
        check(PathPattern::Suffix(".php".into()), true);
        check(PathPattern::Suffix("/index.php".into()), true);
        check(PathPattern::Suffix("/a/index.php".into()), true);
        check(PathPattern::Suffix(".cgi".into()), false);
        check(PathPattern::Prefix("/app/".into()), true);
        check(PathPattern::Exact("/index.php".into()), true);
        check(PathPattern::Exact("/other.php".into()), false);
    }
}
