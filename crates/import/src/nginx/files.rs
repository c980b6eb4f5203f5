//! Files of a location: where they are, and what is done if there is none.

use super::matching::LocationMatch;
use super::scene::Scene;
use super::syntax::NginxDirective;
use super::{Chain, Notes, values};
use crate::kdl::KdlNode;
use crate::pattern::{end_of_group, quoted};

/// The part of a location that says where its files are.
#[derive(Default)]
pub(super) struct FilesBlock<'a> {
    pub(super) root: Option<&'a str>,
    /// The root, and what is taken from the front of paths.
    pub(super) alias: Option<(String, Option<String>)>,
    pub(super) options: Vec<KdlNode>,
    pub(super) tries: Option<&'a NginxDirective>,
    /// Directive whose directory cannot be translated, and the reason.
    pub(super) elsewhere: Option<(&'a NginxDirective, &'static str)>,
}

impl<'a> FilesBlock<'a> {
    pub(super) fn add(&mut self, directive: &'a NginxDirective, location: &LocationMatch) -> bool {
        match directive.name.as_str() {
            "alias" if alias(directive.first(), location).is_some_and(|(root, _)| !root.contains('$')) => {
                self.alias = alias(directive.first(), location);
            }
            "root" | "alias" if directive.first().contains('$') => {
                self.elsewhere = Some((directive, "`{host}` is the only variable in `root`"));
            }
            "root" => self.root = Some(directive.first()),
            "alias" => match alias(directive.first(), location) {
                Some(alias) => self.alias = Some(alias),
                None => {
                    let why = "only a location with a path, not an expression, can have an `alias`";
                    self.elsewhere = Some((directive, why));
                }
            },
            // That a script exists is looked at anyway.
            "try_files" if directive.first() == "$fastcgi_script_name" => {}
            "try_files" => self.tries = Some(directive),
            _ => return false,
        }
        true
    }

    /// Returns `true` if an `alias` says where the files are.
    pub(super) fn is_below_alias(&self, scene: Scene<'_>) -> bool {
        self.alias.is_some() || (self.root.is_none() && scene.alias_around().is_some())
    }
}

/// Files of a path. Their translation depends on the whole site: nothing is written if no other location has the paths
/// they lack.
#[derive(Debug)]
pub(super) struct FilesPart {
    pub(super) location: LocationMatch,
    pub(super) pattern: String,
    pub(super) root: Option<String>,
    /// True if they have options other than those of the site.
    pub(super) is_own: bool,
    pub(super) options: Vec<KdlNode>,
    /// True if another handler has the paths they lack.
    pub(super) has_successor: bool,
    /// The `try_files` that leads missing files to another path, and the rewrite that does the same if no handler has
    /// the path.
    pub(super) missing: Option<(NginxDirective, KdlNode)>,
}

/// Handlers of a site after that of a path.
#[derive(Debug, Clone)]
pub(super) struct HandlerFallback<'a> {
    /// The site's own root, if files are served from it.
    pub(super) root: Option<&'a str>,
    /// A file for what is not there.
    pub(super) has_fallback: bool,
    /// Extensions that are tried for the site's files.
    pub(super) has_extensions: bool,
    /// Another handler that may have the path.
    pub(super) has_handler: bool,
    /// Expressions of scripts that would run although they are files of this path.
    pub(super) scripts: Vec<String>,
    /// Script that handles missing paths.
    pub(super) front_controller: Option<&'a str>,
}

impl FilesPart {
    /// Root and path for missing files, if the location has nothing else.
    pub(super) fn plain(&self) -> Option<(String, String)> {
        let (_, rewrite) = self.missing.as_ref()?;
        Some((self.root.clone()?, rewrite.last_value().to_owned())).filter(|_| self.has_only_index())
    }

    fn has_only_index(&self) -> bool {
        self.options.iter().all(|option| option.name() == "index")
    }

    /// Handlers that answer like a location: with its files, otherwise with 404, even if another handler has the path.
    /// A rewrite of missing paths goes to `redirects`, if no other handler would get the path first.
    pub(super) fn into_nodes(
        self,
        later: HandlerFallback<'_>,
        redirects: &mut MissingRewrites<'_>,
        notes: &mut Notes,
    ) -> Vec<KdlNode> {
        let has_own = |name| self.options.iter().any(|option| option.name() == name);
        let (has_own_fallback, has_own_extensions) = (has_own("fallback"), has_own("extensions"));
        let is_led_to_front =
            self.missing.as_ref().is_some_and(|(_, rewrite)| later.front_controller == Some(rewrite.last_value()));
        let has_front = later.front_controller.is_some() && self.missing.is_none();
        let is_claimed = later.has_fallback || later.has_handler || has_front;
        let leads_to_script = self.missing.as_ref().is_some_and(|(_, rewrite)| rewrite.last_value().contains(".php"));
        // A location with the same files could use other index files for a directory.
        let is_option_of_place = |option: &KdlNode| match option.name() {
            // Directories are rare among paths whose missing files lead to a script.
            "index" => !(leads_to_script && option.first_value().is_empty()),
            name => matches!(name, "browse" | "strip-prefix"),
        };
        let lacks_extensions = later.has_extensions && !has_own_extensions;
        let is_elsewhere = lacks_extensions
            || (later.root.is_some()
                && (later.root != self.root.as_deref() || self.options.iter().any(is_option_of_place)));
        let is_rejected = self.missing.is_some() && (is_claimed || is_elsewhere);
        if !self.is_own && !is_claimed && !is_elsewhere && later.root.is_some() && self.missing.is_none() {
            return Vec::new();
        }
        let of_script = |expression: &String| {
            let when = format!("path matches {}", quoted(expression));
            KdlNode::with("respond", &self.pattern).word(404).property("when", when)
        };
        let scripts: Vec<KdlNode> = later.scripts.iter().filter(|_| !is_rejected).map(of_script).collect();
        let mut missing = KdlNode::with("respond", &self.pattern).word(404);
        match self.missing {
            Some((directive, _)) if is_rejected => {
                let why = "missing files would go to other locations first";
                missing = missing.comment(notes.rejected(&directive, why));
            }
            Some((_, rewrite)) => redirects.add(rewrite, is_led_to_front),
            None => {}
        }
        let has_end = !self.has_successor && (is_claimed || is_elsewhere);
        let files = self.root.map(|root| {
            let mut options = self.options;
            if later.has_fallback && !has_own_fallback {
                options.push(KdlNode::new("fallback").word("off"));
            }
            if lacks_extensions {
                options.push(KdlNode::new("extensions").word("off"));
            }
            KdlNode::with("files", &self.pattern).property("root", root).block(options)
        });
        files.into_iter().chain(scripts).chain(has_end.then_some(missing)).collect()
    }
}

/// Rewrites of missing paths, the narrowest first.
pub(super) struct MissingRewrites<'a> {
    redirects: &'a mut Vec<KdlNode>,
    /// Place of the next one, which is narrower than those after it.
    at: usize,
    /// True if some lead elsewhere than to the front controller. It must not get their paths first.
    are_apart: bool,
    /// Rewrites to the front controller, which are needless unless others lead elsewhere.
    fronts: Vec<KdlNode>,
}

impl<'a> MissingRewrites<'a> {
    /// Rewrites after these redirects.
    pub(super) fn after(redirects: &'a mut Vec<KdlNode>) -> Self {
        let at = redirects.len();
        Self { redirects, at, are_apart: false, fronts: Vec::new() }
    }

    /// The redirects and rewrites so far that do not lead to the front controller.
    pub(super) fn redirects(&self) -> impl Iterator<Item = &KdlNode> {
        self.redirects.iter().filter(|node| !self.fronts.contains(node))
    }

    fn add(&mut self, rewrite: KdlNode, is_led_to_front: bool) {
        self.are_apart |= !is_led_to_front;
        self.fronts.extend(is_led_to_front.then(|| rewrite.clone()));
        self.redirects.insert(self.at, rewrite);
    }

    /// Returns `true` if some lead elsewhere than to the front controller.
    pub(super) fn finish(self) -> bool {
        let Self { redirects, are_apart, fronts, .. } = self;
        redirects.retain(|node| are_apart || !fronts.contains(node));
        are_apart
    }
}

/// `alias /srv/b/` of `/a/`: the root, and the prefix that paths lose.
pub(super) fn alias(target: &str, location: &LocationMatch) -> Option<(String, Option<String>)> {
    match location {
        LocationMatch::Prefix(prefix) | LocationMatch::PrefixFirst(prefix) => {
            let prefix = prefix.trim_end_matches('/');
            let target = target.trim_end_matches('/');
            Some((target.to_owned(), (!prefix.is_empty()).then(|| prefix.to_owned())))
        }
        LocationMatch::Exact(path) => {
            let (directory, name) = target.rsplit_once('/')?;
            let (around, same) = path.rsplit_once('/')?;
            (name == same).then(|| (directory.to_owned(), (!around.is_empty()).then(|| around.to_owned())))
        }
        // `^/a/(.*)$` and `/srv/b/$1`
        LocationMatch::Expression(expression) => {
            let path = path_by_groups(expression)?;
            let mut ends = path.match_indices('/').map(|(at, _)| path.split_at(at));
            let (prefix, rest) = ends.find(|(prefix, rest)| !prefix.contains('$') && target.ends_with(rest))?;
            let root = target.strip_suffix(rest).filter(|root| rest.contains('$') && !root.contains('$'))?;
            Some((root.to_owned(), (!prefix.is_empty()).then(|| prefix.to_owned())))
        }
        LocationMatch::Named(_) => None,
    }
}

/// The whole path that an expression matches, with the groups that it consists of: `/a/$1` of `^/a/(.*\.css)$`.
fn path_by_groups(expression: &str) -> Option<String> {
    let fits = expression.strip_prefix('^')?;
    let whole = fits.strip_suffix('$').or(Some(fits).filter(|fits| fits.ends_with("(.*)") || fits.ends_with("(.+)")))?;
    let (mut path, mut groups, mut rest) = (String::new(), 0, whole);
    while let Some(letter) = rest.chars().next() {
        match letter {
            '(' if !rest.starts_with("(?") => {
                groups += 1;
                path.push_str(&format!("${groups}"));
                let (inner, after) = rest[1..].split_at(end_of_group(&rest[1..])?);
                groups += inner.matches('(').count();
                // A group that may be missing or repeated is not the text itself.
                rest = Some(&after[1..]).filter(|rest| !rest.starts_with(['?', '*', '+', '{', '|']))?;
            }
            '\\' if rest[1..].starts_with(['.', '-', '/']) => {
                path.push_str(&rest[1..2]);
                rest = &rest[2..];
            }
            letter if letter.is_ascii_alphanumeric() || "/-_~".contains(letter) => {
                path.push(letter);
                rest = Some(&rest[1..]).filter(|rest| !rest.starts_with(['?', '*', '+', '{']))?;
            }
            _ => return None,
        }
    }
    (path.starts_with('/') && groups < 10).then_some(path)
}

/// Last argument of `try_files`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Last {
    /// An error, as is always so.
    #[default]
    Nothing,
    File(String),
    /// A script, which gets the query.
    Script(String),
    Named(String),
}

impl Last {
    fn of(argument: &str) -> Self {
        match argument {
            status if status.starts_with('=') => Self::Nothing,
            name if name.starts_with('@') => Self::Named(name.to_owned()),
            // nginx goes there again and again.
            "$uri" | "$uri/" => Self::Nothing,
            path => {
                let (file, query) = path.split_at(path.find(['?', '$']).unwrap_or(path.len()));
                if query == "$request_uri" || query == "$uri" {
                    return Self::Script(format!("{file}{{path}}"));
                }
                if query.contains('=')
                    && let Ok(target) = values::target(path, "*")
                {
                    // Arguments of its own, such as `?q=$uri&$args`.
                    return Self::Script(target.trim_end_matches('&').to_owned());
                }
                if query.is_empty() && !file.ends_with(".php") {
                    Self::File(file.to_owned())
                } else {
                    Self::Script(file.to_owned())
                }
            }
        }
    }
}

pub(super) struct Tries {
    /// True if a file is served by its own path.
    pub(super) has_files: bool,
    /// True if a directory is served by its index.
    pub(super) has_directories: bool,
    /// True if that is what `$uri/` says.
    has_slash: bool,
    pub(super) is_html_added: bool,
    /// A file that is tried before the last argument.
    pub(super) fallback: Option<String>,
    pub(super) last: Last,
}

impl Default for Tries {
    fn default() -> Self {
        Self {
            has_files: true,
            has_directories: true,
            has_slash: true,
            is_html_added: false,
            fallback: None,
            last: Last::Nothing,
        }
    }
}

impl Tries {
    /// Returns `true` if a directory without an index gets 403 instead of the file for missing paths.
    fn keeps_directories(&self) -> bool {
        let is_kept = self.fallback.is_some() || matches!(self.last, Last::File(_));
        self.has_directories && (is_kept || (self.has_slash && matches!(self.last, Last::Named(_))))
    }

    pub(super) fn read(directive: &NginxDirective, notes: &mut Notes) -> Self {
        let Some((last, files)) = directive.arguments.split_last() else { return Self::default() };
        // With a query, nginx looks for a file of that name.
        let path_of = |file: &String| file.strip_suffix("$is_args$args").unwrap_or(file).to_owned();
        let mut files: Vec<String> = files.iter().map(path_of).collect();
        files.dedup();
        let has = |name: &str| files.iter().any(|file| file == name);
        let is_own = |file: &&String| {
            matches!(file.as_str(), "$uri" | "$uri/" | "$uri.html" | "$uri/index.html") || is_nothing(file)
        };
        let others: Vec<&String> = files.iter().filter(|file| !is_own(file)).collect();
        let is_single = others.is_empty() || files.last() == others.first().copied();
        // A file as the last argument is the fallback itself.
        let leads_to_file = matches!(Last::of(last), Last::File(_));
        let is_file = |path: &&&String| path.starts_with('/') && !path.contains('$') && !path.ends_with('/');
        let fallback = others.first().filter(|path| !leads_to_file && is_file(path));
        if others.len() > usize::from(fallback.is_some()) || !is_single {
            notes.left(directive, "files are tried by their own path, with `.html`, and then one other path");
        }
        let tries = Self {
            has_files: has("$uri"),
            has_directories: has("$uri/") || has("$uri/index.html"),
            has_slash: has("$uri/"),
            is_html_added: has("$uri.html"),
            fallback: fallback.map(|path| (*path).clone()),
            last: Last::of(last),
        };
        if tries.fallback.is_some() && !tries.has_files {
            notes.left(directive, "its paths get 404; lead them to the file with a `rewrite`");
        }
        if last.starts_with('=') && last != "=404" {
            notes.left(directive, "missing files get 404");
        }
        tries
    }
}

/// Returns `true` for a path that configurations try because there is no such file.
fn is_nothing(path: &str) -> bool {
    matches!(path, "/dev/null" | "/not_exists" | "/nonexistent" | "/non_existent" | "/does-not-exist")
}

/// Index files of directories, and listing of directories without one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DirectoryOptions<'a> {
    pub(super) index: Vec<&'a str>,
    is_listed: bool,
    /// True if directories without an index get 403 instead of a file for missing paths.
    is_index_required: bool,
}

impl<'a> DirectoryOptions<'a> {
    /// Index files and listing of a location.
    pub(super) fn of(chain: Chain<'a>, tries: &Tries) -> Self {
        if !tries.has_directories {
            return Self { index: Vec::new(), is_listed: false, is_index_required: false };
        }
        let said = chain.all("index");
        let names = said.iter().flat_map(|directive| directive.arguments.iter().map(String::as_str));
        let index: Vec<&str> = if said.is_empty() { vec!["index.html"] } else { names.collect() };
        // A name with a slash belongs to another location, and then there is no listing.
        let is_elsewhere = |name: &&str| name.starts_with('/') || name.contains('$');
        let is_listed = chain.last("autoindex").is_some_and(|listed| listed.first() != "off");
        let has_other = index.iter().any(is_elsewhere);
        // nginx lists what `$uri/` finds, not what the name of an index file does.
        let is_listed = is_listed && !has_other && tries.has_slash;
        let is_index_required = tries.keeps_directories() && !is_listed && !has_other;
        Self { index: index.into_iter().filter(|name| !is_elsewhere(name)).collect(), is_listed, is_index_required }
    }

    /// Options for directories, where others apply around them or none do.
    pub(super) fn options(&self, around: Option<&Self>) -> Vec<KdlNode> {
        let default = DirectoryOptions { index: vec!["index.html"], is_listed: false, is_index_required: false };
        let around = around.unwrap_or(&default);
        let mut options = Vec::new();
        if self.index != around.index {
            options.push(KdlNode::new("index").texts(self.index.iter()));
        }
        if self.is_index_required && !around.is_index_required {
            options.push(KdlNode::new("require-index"));
        } else if around.is_index_required && self.index.is_empty() {
            options.push(KdlNode::new("require-index").word("off"));
        }
        if self.is_listed != around.is_listed {
            options.push(KdlNode::new("browse").word(if self.is_listed { "on" } else { "off" }));
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nginx::tests::site;

    #[test]
    fn aliases_of_expressions() {
        let check = |expression: &str, target: &str, expect: Option<(&str, Option<&str>)>| {
            let location = LocationMatch::Expression(expression.to_owned().into());
            let expect = expect.map(|(root, prefix)| (root.to_owned(), prefix.map(str::to_owned)));
            assert_eq!(alias(target, &location), expect, "{expression} {target}");
        };
        check("^/a/(.*)$", "/srv/$1", Some(("/srv", Some("/a"))));
        check("^/a/(.+)", "/srv/$1", Some(("/srv", Some("/a"))));
        // PeerTube and Jitsi.
        check(r"^/client/(.*\.(js|css))$", "/dist/$1", Some(("/dist", Some("/client"))));
        check("^/(libs|css|.well-known)/(.*)$", "/usr/jitsi/$1/$2", Some(("/usr/jitsi", None)));
        check("^/(a|b)/(.*)$", "/srv/$2", None);
        check("^/a/(.*)$", "/srv/index.html", None);
        check("^/a/(b)?$", "/srv/$1", None);
        check("^/a/(b)|c$", "/srv/$1", None);
        check("^/a/(.*).css$", "/srv/$1", None);
        check("/a/(.*)$", "/srv/$1", None);
        check("^/a/(b)", "/srv/$1", None);
        check("^/ab?/(.*)$", "/srv/$1", None);
    }

    /// Issue 23: directories were listed although `try_files` names their index files only.
    #[test]
    fn directories_are_listed_by_their_slash() {
        let is_listed = |tries: &str| site(&format!("autoindex on; location / {{ {tries} }}")).0.contains("browse on");
        assert!(is_listed("") && is_listed("try_files $uri $uri/ =404;"));
        assert!(!is_listed("try_files $uri $uri/index.html =404;"));
    }

    /// Issue 23: a file that all paths get had no remark.
    #[test]
    fn files_of_other_paths_have_a_remark() {
        let (_, remarks) = site("location / { try_files /a.txt =404; }");
        assert!(remarks[0].contains("lead them to the file"), "{remarks:?}");
    }

    /// Issue 23: Drupal's files by nginxconfig.io were rejected.
    #[test]
    fn missing_files_lead_to_several_targets() {
        let (lines, remarks) = site(
            r"index index.php; location / { try_files $uri $uri/ /index.php?$query_string; }
              location ~ ^/styles/ { try_files $uri /index.php?q=$uri&$args; } location ~ ^/sys { try_files $uri /index.php; }
              location ~ \.php$ { fastcgi_pass unix:/p; }",
        );
        assert_eq!(remarks, Vec::<String>::new());
        let rewrites: Vec<&str> = lines.lines().filter(|line| line.starts_with("rewrite")).collect();
        assert_eq!(
            rewrites,
            [
                "rewrite \"~^/styles/\" \"/index.php?q={path}{&query}\" missing=on",
                "rewrite \"~^/sys\" \"/index.php\" missing=on",
                "rewrite \"*\" \"/index.php\" missing=on",
            ],
            "{lines}"
        );
        // nginx sends scripts there as files, and never runs them.
        for path in ["~^/styles/", "~^/sys"] {
            let guard = format!("respond \"{path}\" 404 when=#\"path matches '\\.php$'\"#");
            assert!(lines.contains(&guard), "{guard}\n{lines}");
        }
    }
}
