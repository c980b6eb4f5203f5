//! Places of options in the texts of a configuration: where the value that applies to a request was written.

use std::ops::Range;
use std::sync::Arc;

use crate::diagnostic::ConfigSource;
use crate::model::Config;
use crate::options::{OptionContext, OptionDefinition, OptionSetter};
use crate::read::text_map::TextMap;
use crate::text::kdl::ParsedNode;

/// An option that applies to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionPlace {
    /// Name of the option.
    pub option: &'static str,
    /// Option and values as in the text, or those of the default.
    pub text: String,
    /// Block that the option stands in: `in `site``.
    pub block: &'static str,
    /// File and line; `None` for a default.
    pub line: Option<(String, usize)>,
}

/// Places of all options of a configuration, as its texts give them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigPlaces {
    given: Vec<GivenOption>,
    sites: Vec<SitePlaces>,
}

/// An option that a text gives.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GivenOption {
    option: &'static str,
    is_block: bool,
    is_repeatable: bool,
    block: OptionContext,
    /// Text of the block, and where its reader places the option: at `use` or `include` if it is from another text.
    source: Arc<ConfigSource>,
    span: Range<usize>,
    /// Place in the text of the block: that of `use` or `include` if the option is from a snippet or another text.
    start_in_block: usize,
    /// Text that the option is from, and the place of the option with its values.
    written_in: Arc<ConfigSource>,
    written_at: Range<usize>,
}

/// Places of a site and its routes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SitePlaces {
    source: Arc<ConfigSource>,
    start: usize,
    routes: Vec<usize>,
}

impl GivenOption {
    fn place(&self) -> OptionPlace {
        let text = self.written_in.text.get(self.written_at.clone()).unwrap_or(self.option);
        OptionPlace {
            option: self.option,
            text: text.to_owned(),
            block: self.block.describe(),
            line: Some((self.written_in.name.clone(), self.written_in.position(self.written_at.start).0)),
        }
    }
}

impl ConfigPlaces {
    /// Adds an option of a block. `span` is its place in the text of the block.
    pub(crate) fn add(
        &mut self,
        source: &Arc<ConfigSource>,
        block: OptionContext,
        node: &ParsedNode,
        (option, span): (&'static OptionDefinition, Range<usize>),
    ) {
        let written_in = node.origin.as_ref().map_or(source, |origin| &origin.source);
        let end = node.entries.iter().map(|entry| entry.span.end).max().unwrap_or(node.span.end);
        self.given.push(GivenOption {
            option: option.name,
            is_block: matches!(option.set, OptionSetter::Block(_)),
            is_repeatable: option.repeatable,
            block,
            source: source.clone(),
            start_in_block: node.origin.as_ref().map_or(span.start, |origin| origin.used_at.start),
            span,
            written_in: written_in.clone(),
            written_at: node.span.start..end.max(node.span.end),
        });
    }

    /// Takes the places of the sites for HTTP.
    pub(crate) fn complete(&mut self, config: &Config, map: &TextMap) {
        let sites = map.sites.iter().zip(&config.sites).filter(|(_, site)| site.ftp.is_none());
        self.sites = sites
            .map(|(place, _)| SitePlaces {
                source: place.source.clone(),
                start: place.span.start,
                routes: place.routes.iter().map(|span| span.start).collect(),
            })
            .collect();
    }

    /// Place of a site.
    pub fn site(&self, site: usize) -> Option<OptionPlace> {
        let SitePlaces { source, start, .. } = self.sites.get(site)?;
        let is_site = |given: &&GivenOption| {
            given.block == OptionContext::Top && Arc::ptr_eq(&given.source, source) && given.span.start == *start
        };
        self.given.iter().find(is_site).map(GivenOption::place)
    }

    /// Place of a route. That of a site's own `root` is the place of `root`.
    pub fn route(&self, site: usize, route: usize) -> Option<OptionPlace> {
        let places = self.sites.get(site)?;
        let start = *places.routes.get(route)?;
        if start == places.start {
            let of_site = self.of_site(site).find(|given| given.option == "root");
            return of_site.or_else(|| self.top().find(|given| given.option == "root")).map(GivenOption::place);
        }
        self.of_site(site).find(|given| given.span.start == start).map(GivenOption::place)
    }

    /// Places of a site's rules of these options, in the order in which they apply: its own before those of all sites,
    /// or after them.
    pub fn rules(&self, site: usize, options: &[&str], own_first: bool) -> Vec<OptionPlace> {
        let is_wanted = |given: &&GivenOption| options.contains(&given.option);
        let (own, all) = (self.of_site(site).filter(is_wanted), self.top().filter(is_wanted));
        match own_first {
            true => own.chain(all).map(GivenOption::place).collect(),
            false => all.chain(own).map(GivenOption::place).collect(),
        }
    }

    /// Options that apply to requests of a site that this route handles: those of the route's block, of the site, and
    /// of all sites, limits and others, the innermost first. An option that an inner block replaces is left out. Defaults
    /// of the options that no text gives follow.
    pub fn effective(&self, site: usize, route: Option<usize>) -> Vec<OptionPlace> {
        const OUTER: [OptionContext; 3] = [OptionContext::Server, OptionContext::Limits, OptionContext::Cache];
        let (context, of_route) = self.of_route(site, route);
        let of_site: Vec<_> = self.of_site(site).collect();
        let outer = self.given.iter().filter(|given| OUTER.contains(&given.block));
        let mut found: Vec<&GivenOption> = Vec::new();
        let all = of_route.into_iter().chain(of_site).chain(self.top()).chain(outer);
        for given in all.filter(|given| !given.is_block && !matches!(given.option, "include" | "use" | "snippet")) {
            if given.is_repeatable || !found.iter().any(|known| known.option == given.option) {
                found.push(given);
            }
        }
        let contexts = context.into_iter().chain([OptionContext::Site, OptionContext::Top]).chain(OUTER);
        let mut defaults: Vec<OptionPlace> = Vec::new();
        for context in contexts {
            for option in context.options().filter(|option| !option.default.is_empty()) {
                let is_known = found.iter().any(|given| given.option == option.name)
                    || defaults.iter().any(|known| known.option == option.name);
                if !is_known {
                    defaults.push(OptionPlace {
                        option: option.name,
                        text: option.default.to_owned(),
                        block: context.describe(),
                        line: None,
                    });
                }
            }
        }
        found.into_iter().map(GivenOption::place).chain(defaults).collect()
    }

    /// Options at the top level.
    fn top(&self) -> impl Iterator<Item = &GivenOption> {
        self.given.iter().filter(|given| given.block == OptionContext::Top)
    }

    /// Options of a site's block, without those of the blocks in it.
    fn of_site(&self, site: usize) -> impl Iterator<Item = &GivenOption> {
        self.given.iter().filter(move |given| {
            given.block == OptionContext::Site && self.site_at(&given.source, given.start_in_block) == Some(site)
        })
    }

    /// Kind of a route's block, and the options in it.
    fn of_route(&self, site: usize, route: Option<usize>) -> (Option<OptionContext>, Vec<&GivenOption>) {
        let start = self.sites.get(site).zip(route).and_then(|(places, route)| places.routes.get(route));
        let Some(block) = start.and_then(|start| self.of_site(site).find(|given| given.span.start == *start)) else {
            return (None, Vec::new());
        };
        let context = OptionContext::Site.option(block.option).and_then(|option| match option.set {
            OptionSetter::Block(context) => Some(context),
            _ => None,
        });
        // The block ends before the next option of the site.
        let end = self.of_site(site).map(|given| given.span.start).filter(|start| *start > block.span.start).min();
        let is_in = |given: &&GivenOption| {
            Some(given.block) == context
                && Arc::ptr_eq(&given.source, &block.source)
                && given.span.start >= block.span.start
                && end.is_none_or(|end| given.span.start < end)
                && self.site_at(&given.source, given.start_in_block) == Some(site)
        };
        (context, self.given.iter().filter(is_in).collect())
    }

    /// Site whose block has this place.
    fn site_at(&self, source: &Arc<ConfigSource>, at: usize) -> Option<usize> {
        let before = |(_, site): &(usize, &SitePlaces)| Arc::ptr_eq(&site.source, source) && site.start <= at;
        let sites = self.sites.iter().enumerate().filter(before);
        sites.max_by_key(|(_, site)| site.start).map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const TEXT: &str = r#"limits { body-bytes-max "1MiB"; idle-timeout "5s" }
deny all path="/hidden/*"
snippet "old" { redirect "/old" "/new"; forward "http://127.0.0.1:2" path="/b/*" { first-byte-timeout "4s" }; }
site "a.example" {
    listen "127.0.0.1:8080"
    root "/srv/a"
    deny all path="/admin/*"
    use "old"
    forward "http://127.0.0.1:1" path="/api/*" {
        first-byte-timeout "3s"
    }
}
site "b.example" {
    listen "127.0.0.1:8080"
    root "/srv/b"
    browse
}
"#;

    fn places() -> ConfigPlaces {
        let (checked, places) = crate::explain_bytes("t.kdl", TEXT.as_bytes().to_vec(), Path::new("/"));
        assert!(checked.config.is_some(), "{}", checked.diagnostics.to_text(false));
        places
    }

    fn shown(place: &OptionPlace) -> String {
        let line = place.line.as_ref().map_or_else(|| "default".to_owned(), |(file, line)| format!("{file}:{line}"));
        format!("{line} {}", place.text)
    }

    #[test]
    fn places_of_sites_routes_and_rules() {
        let places = places();
        let check = |found: Option<OptionPlace>, expect: &str| assert_eq!(found.as_ref().map(shown).unwrap(), expect);
        check(places.site(0), "t.kdl:4 site \"a.example\"");
        check(places.site(1), "t.kdl:13 site \"b.example\"");
        check(places.route(0, 1), "t.kdl:9 forward \"http://127.0.0.1:1\" path=\"/api/*\"");
        check(places.route(0, 0), "t.kdl:3 forward \"http://127.0.0.1:2\" path=\"/b/*\"");
        check(places.route(0, 2), "t.kdl:6 root \"/srv/a\"");
        check(places.route(1, 0), "t.kdl:15 root \"/srv/b\"");
        let rules = |site, options: &[&str], own_first| -> Vec<String> {
            places.rules(site, options, own_first).iter().map(shown).collect()
        };
        assert_eq!(
            rules(0, &["deny"], true),
            ["t.kdl:7 deny all path=\"/admin/*\"", "t.kdl:2 deny all path=\"/hidden/*\""]
        );
        assert_eq!(
            rules(0, &["deny"], false),
            ["t.kdl:2 deny all path=\"/hidden/*\"", "t.kdl:7 deny all path=\"/admin/*\""]
        );
        assert_eq!(rules(1, &["deny"], true), ["t.kdl:2 deny all path=\"/hidden/*\""]);
        assert_eq!(rules(0, &["redirect"], true), ["t.kdl:3 redirect \"/old\" \"/new\""]);
    }

    #[test]
    fn the_innermost_option_applies() {
        let places = places();
        let text = |site, route, option: &str| -> Vec<String> {
            let all = places.effective(site, Some(route));
            all.iter().filter(|place| place.option == option).map(shown).collect()
        };
        assert_eq!(text(0, 1, "first-byte-timeout"), ["t.kdl:10 first-byte-timeout \"3s\""]);
        assert_eq!(text(0, 0, "first-byte-timeout"), ["t.kdl:3 first-byte-timeout \"4s\""]);
        assert!(text(0, 2, "first-byte-timeout").is_empty());
        assert_eq!(text(0, 1, "idle-timeout"), ["t.kdl:1 idle-timeout \"5s\""]);
        assert_eq!(text(1, 0, "browse"), ["t.kdl:16 browse"]);
        assert_eq!(text(0, 2, "browse"), ["default browse off"]);
        assert_eq!(text(0, 0, "head-timeout").len(), 1);
        assert!(text(0, 0, "head-timeout")[0].starts_with("default "));
    }
}
