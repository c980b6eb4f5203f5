//! Every option, defined once. From these tables come the parser and its checks, the reference page, the man page, the
//! JSON schema and the default configuration.

mod files;
mod server;
mod site;

use super::build::Shared;
use super::model::*;
use super::value::{Kind, Values};

/// An option: a KDL node of this name.
#[derive(Clone, Copy)]
pub(super) struct OptionDefinition {
    /// The node's name.
    pub(super) name: &'static str,
    /// Its arguments and properties.
    pub(super) parameters: &'static [Parameter],
    /// Whether it may stand several times in a block.
    pub(super) repeatable: bool,
    /// What holds without it, as a node; empty if there is no such node.
    #[cfg_attr(not(test), expect(dead_code))] // The pages read it.
    pub(super) default: &'static str,
    /// What it does: Markdown, the first sentence for lists.
    #[cfg_attr(not(test), expect(dead_code))] // The pages read it.
    pub(super) doc: &'static str,
    /// A node that differs from the default.
    pub(super) example: &'static str,
    /// What people coming from elsewhere may call it.
    pub(super) known_as: &'static [&'static str],
    /// What it changes.
    pub(super) set: Set,
}

/// What all definitions that don't say otherwise have.
pub(super) const OPTION: OptionDefinition = OptionDefinition {
    name: "",
    parameters: &[],
    repeatable: false,
    default: "",
    doc: "",
    example: "",
    known_as: &[],
    set: Set::Include,
};

/// An argument or property of a node.
#[derive(Clone, Copy)]
pub(super) struct Parameter {
    /// Name of the property; of an argument, what messages call it.
    pub(super) name: &'static str,
    /// What it may be.
    pub(super) kind: Kind,
    /// How it is given.
    pub(super) shape: Shape,
}

/// How a parameter is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One argument.
    One,
    /// One argument or none.
    Optional,
    /// One argument or more.
    Many,
    /// Any number of arguments.
    Any,
    /// `name=value`, or not.
    Property,
}

pub(super) const fn one(name: &'static str, kind: Kind) -> Parameter {
    Parameter { name, kind, shape: Shape::One }
}

pub(super) const fn optional(name: &'static str, kind: Kind) -> Parameter {
    Parameter { name, kind, shape: Shape::Optional }
}

pub(super) const fn many(name: &'static str, kind: Kind) -> Parameter {
    Parameter { name, kind, shape: Shape::Many }
}

pub(super) const fn any(name: &'static str, kind: Kind) -> Parameter {
    Parameter { name, kind, shape: Shape::Any }
}

pub(super) const fn property(name: &'static str, kind: Kind) -> Parameter {
    Parameter { name, kind, shape: Shape::Property }
}

/// The parameters of an option that is on or off.
pub(super) const FLAG: &[Parameter] = &[optional("on", Kind::Flag)];

/// What an option changes.
#[derive(Clone, Copy)]
pub(super) enum Set {
    Server(fn(&mut Server, &Values)),
    Limits(fn(&mut Limits, &Values)),
    Cache(fn(&mut Cache, &Values)),
    /// How files are served: by all sites, a site, or a part of one.
    Files(fn(&mut Files, &Values)),
    /// A site itself.
    Site(fn(&mut Site, &Values)),
    /// What all sites may share, or a site may have of its own.
    Shared(fn(&mut Shared, &Values)),
    /// A block of further options.
    Block(Place),
    /// Other files.
    Include,
}

/// Where options may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Outside all blocks.
    Top,
    Server,
    Limits,
    Cache,
    Site,
    Files,
}

impl Place {
    /// All places, in the order of the reference.
    pub(super) const ALL: [Self; 6] = [Self::Top, Self::Site, Self::Files, Self::Server, Self::Limits, Self::Cache];

    /// The options that may stand here.
    pub(super) fn options(self) -> impl Iterator<Item = &'static OptionDefinition> {
        let tables: [&'static [OptionDefinition]; 4] = match self {
            Self::Top => [site::TOP, site::SHARED, files::OPTIONS, &[]],
            Self::Site => [site::SITE, files::ROOT, files::OPTIONS, site::SHARED],
            Self::Files => [files::ROOT, files::BLOCK, files::OPTIONS, &[]],
            Self::Server => [server::SERVER, &[], &[], &[]],
            Self::Limits => [server::LIMITS, &[], &[], &[]],
            Self::Cache => [server::CACHE, &[], &[], &[]],
        };
        tables.into_iter().flatten()
    }

    /// The option of this name that may stand here.
    pub(super) fn option(self, name: &str) -> Option<&'static OptionDefinition> {
        self.options().find(|option| option.name == name)
    }

    /// For a person.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Top => "outside all blocks",
            Self::Server => "in `server`",
            Self::Limits => "in `limits`",
            Self::Cache => "in `cache`",
            Self::Site => "in `site`",
            Self::Files => "in `files`",
        }
    }
}

/// The places where an option of this name may stand.
pub(super) fn places_of(name: &str) -> Vec<Place> {
    Place::ALL.into_iter().filter(|place| place.option(name).is_some()).collect()
}
