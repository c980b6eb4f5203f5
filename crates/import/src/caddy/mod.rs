//! Caddy: reads a Caddyfile, and translates it.
//!
//! [`syntax`] reads directives, [`global`] translates the options of all sites, and [`address`] makes sites of addresses.
//! [`site`] walks through directives in Caddy's order, [`scope`] knows their requests: [`rules`] translates those that apply before handlers, [`rewrites`]
//! those that change paths, [`proxy`] and [`files`] the handlers, and [`tls`] certificates. [`joined`] makes blocks of directives with
//! one matcher. [`maps`] are tables. [`matcher`] reads matchers, [`expression`] their expressions, and [`placeholders`] texts.

mod address;
mod expression;
mod files;
mod global;
mod joined;
mod maps;
mod matcher;
#[cfg(test)]
mod open_tests;
mod order;
mod placeholders;
mod proxy;
mod rewrites;
mod rules;
mod scope;
mod site;
mod syntax;
#[cfg(test)]
mod tests;
mod tls;

use std::path::Path;

use self::address::CaddyAddresses;
use self::syntax::Caddyfile;
use crate::directive::Directive;
use crate::expression::ReadOnce;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::{ImportError, NewFile, Remark};

/// Nodes, remarks, and files that the configuration needs.
type Translation = (Vec<KdlNode>, Vec<Remark>, Vec<NewFile>);

/// Nodes of the translation of a Caddyfile with all that it imports, remarks, and files that it needs.
pub(crate) fn translate(path: &Path) -> Result<Translation, ImportError> {
    Ok(translate_file(&syntax::read(path)?))
}

fn translate_file(file: &Caddyfile) -> Translation {
    let mut notes = Notes::default();
    for (name, place) in &file.unset {
        let directive = Directive {
            name: format!("{{${name}}}"),
            arguments: Vec::new(),
            block: None,
            place: place.clone(),
            had_variables: false,
            expression: ReadOnce::default(),
        };
        notes.left(&directive, "the environment variable is not set here; it was replaced by nothing");
    }
    let options = global::translate(&file.options, &mut notes);
    let addresses = CaddyAddresses::read(file, &options);
    let mut shared =
        Shared { options: &options, file, addresses, upstreams: Vec::new(), maps: Vec::new(), files: Vec::new() };
    let sites: Vec<KdlNode> =
        file.sites.iter().flat_map(|site| address::translate(site, &mut shared, &mut notes)).collect();
    let others = address::of_other_hosts(file, &shared);
    let Shared { upstreams, maps, files, .. } = shared;
    let mut nodes = options.into_nodes();
    nodes.extend(maps);
    nodes.extend(upstreams);
    nodes.extend(sites);
    nodes.extend(others);
    let unwritten = notes.unwritten();
    if let Some(first) = nodes.first_mut().filter(|_| !unwritten.is_empty()) {
        first.add_comment(&unwritten.join("\n"));
    }
    let directives: Vec<Directive> =
        file.options.iter().chain(file.sites.iter().flat_map(|site| &site.directives)).cloned().collect();
    (nodes, notes.sorted(&directives), files)
}

/// Definitions that sites share.
struct Shared<'a> {
    options: &'a global::GlobalOptions,
    file: &'a Caddyfile,
    addresses: CaddyAddresses<'a>,
    upstreams: Vec<KdlNode>,
    maps: Vec<KdlNode>,
    files: Vec<NewFile>,
}

impl Shared<'_> {
    /// Adds an upstream, and returns its name. Equal ones are written once.
    fn upstream(&mut self, make: impl Fn(&str) -> KdlNode) -> String {
        for number in 1.. {
            let name = if number == 1 { "app".to_owned() } else { format!("app-{number}") };
            let node = make(&name);
            match self.upstreams.get(number - 1) {
                Some(known) if *known == node => return name,
                Some(_) => {}
                None => {
                    self.upstreams.push(node);
                    return name;
                }
            }
        }
        String::new()
    }

    /// Adds a map, and returns its name. Equal ones are written once.
    fn map(&mut self, base: &str, (source, cases): &maps::MapLines) -> String {
        let name = |number: usize| if number == 1 { base.to_owned() } else { format!("{base}-{number}") };
        let node = |name: &str| KdlNode::with("map", name).text(source).required_block(cases.clone());
        let is_free = |name: &str| !self.maps.iter().any(|map| map.first_value() == name && *map != node(name));
        let name = (1..=self.maps.len() + 1).map(name).find(|name| is_free(name)).unwrap_or_default();
        let node = node(&name);
        if !self.maps.contains(&node) {
            self.maps.push(node);
        }
        name
    }

    /// Adds a file that the configuration needs, and returns its name. Equal ones are written once.
    fn file(&mut self, base: &str, content: &str) -> String {
        if let Some(known) = self.files.iter().find(|file| file.content == content) {
            return known.name.clone();
        }
        let count = self.files.len();
        let name = if count == 0 { base.to_owned() } else { format!("{base}-{}", count + 1) };
        self.files.push(NewFile { name: name.clone(), content: content.to_owned() });
        name
    }
}
