//! Every option, defined once. From these tables come the parser and its checks, the reference page, the man page, the
//! JSON schema and the default configuration.

mod automatic;
mod confinement;
mod files;
mod forward;
mod gateway;
mod http2;
mod module;
mod response_caching;
mod rules;
mod server;
mod site;
mod tls;
mod traces;
mod upstream;

use super::automatic::AutomaticCertificates;
use super::build::Shared;
use super::confinement::Confinement;
use super::gateway::Gateway;
use super::model::*;
use super::module::{Module, Modules};
use super::response_caching::ResponseCaching;
use super::rules::Rules;
use super::traces::Traces;
use super::upstream::Upstream;
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
    /// True if it may stand without its block, whose defaults hold then.
    pub(super) is_block_optional: bool,
    /// What holds without it, as a node; empty if there is no such node.
    pub(super) default: &'static str,
    /// What it does: Markdown, the first sentence for lists.
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
    is_block_optional: false,
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

/// The parameters of an option that says how long a request's content may be.
pub(super) const BODY_BYTES: &[Parameter] = &[one("size", Kind::SizeOrAuto { min: 0, max: 1 << 50 })];

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
    /// How requests are forwarded.
    Forward(fn(&mut Forward, &Values)),
    /// How scripts are run.
    Gateway(fn(&mut Gateway, &Values)),
    /// A WebAssembly module.
    Module(fn(&mut Module, &Values)),
    /// What WebAssembly modules share.
    Modules(fn(&mut Modules, &Values)),
    /// Rules of all sites, or of a site.
    Rules(fn(&mut Rules, &Values)),
    /// How responses to forwarded requests are cached.
    Caching(fn(&mut ResponseCaching, &Values)),
    /// How certificates are got.
    Automatic(fn(&mut AutomaticCertificates, &Values)),
    /// A group of servers.
    Upstream(fn(&mut Upstream, &Values)),
    /// What the server takes from itself.
    Confinement(fn(&mut Confinement, &Values)),
    /// What is told of requests to those who trace them.
    Traces(fn(&mut Traces, &Values)),
    /// A block of further options.
    Block(Place),
    /// Other files.
    Include,
}

/// Options that belong together.
pub(super) struct Section {
    pub(super) title: &'static str,
    /// What they are for: Markdown.
    pub(super) doc: &'static str,
    /// Where they may stand.
    pub(super) places: &'static [Place],
    pub(super) options: &'static [OptionDefinition],
}

/// All options, in the order of the reference.
pub(super) static SECTIONS: [Section; 27] = [
    Section {
        title: "Blocks",
        doc: "What a file consists of, besides settings for all sites.",
        places: &[Place::Top],
        options: site::TOP,
    },
    Section {
        title: "Sites",
        doc: "What a site listens on, and how it answers. They stand in `site`.",
        places: &[Place::Site],
        options: site::SITE,
    },
    Section {
        title: "Where files are",
        doc: "Stands in `site` and in `files`.",
        places: &[Place::Site, Place::Files],
        options: files::ROOT,
    },
    Section { title: "Parts of a site", doc: "Stands in `files`.", places: &[Place::Files], options: files::BLOCK },
    Section {
        title: "How files are served",
        doc: "They stand outside all blocks, for all sites; in `site`; or in `files`. What is said in the narrower \
              place holds; rules of `type`, `header` and `cache-control` are added to those of the wider one.",
        places: &[Place::Top, Place::Site, Place::Files],
        options: files::OPTIONS,
    },
    Section { title: "TLS", doc: tls::DOC, places: &[Place::Site], options: tls::TLS },
    Section {
        title: "HTTPS",
        doc: "They stand outside all blocks, for all sites, or in `site`.",
        places: &[Place::Top, Place::Site],
        options: tls::HTTPS,
    },
    Section {
        title: "Automatic certificates",
        doc: automatic::DOC,
        places: &[Place::AutomaticCertificates],
        options: automatic::OPTIONS,
    },
    Section { title: "Rules", doc: rules::DOC, places: &[Place::Top, Place::Site], options: rules::RULES },
    Section {
        title: "Error pages and access logs",
        doc: "They stand outside all blocks, for all sites, or in `site`.",
        places: &[Place::Top, Place::Site],
        options: site::SHARED,
    },
    Section {
        title: "Forwarding",
        doc: "How requests are forwarded. They stand in `forward`.",
        places: &[Place::Forward],
        options: forward::OPTIONS,
    },
    Section {
        title: "Answers of others",
        doc: "How much a request may send to others, and how their answers are read. They stand in `forward`, `fastcgi`, \
              `cgi`, `scgi` and `uwsgi`.",
        places: &[Place::Forward, Place::FastCgi, Place::Cgi, Place::Scgi, Place::Uwsgi],
        options: forward::ANSWERS,
    },
    Section {
        title: "Scripts",
        doc: "Where scripts are. They stand in `fastcgi` and `cgi`.",
        places: &[Place::FastCgi, Place::Cgi],
        options: gateway::SCRIPTS,
    },
    Section {
        title: "Programs",
        doc: "How programs are run. They stand in `cgi`.",
        places: &[Place::Cgi],
        options: gateway::PROGRAMS,
    },
    Section {
        title: "Applications",
        doc: "Servers that run an application. They stand in `fastcgi`, `scgi` and `uwsgi`.",
        places: &[Place::FastCgi, Place::Scgi, Place::Uwsgi],
        options: gateway::SERVERS,
    },
    Section {
        title: "FastCGI",
        doc: "Servers that run scripts. They stand in `fastcgi`.",
        places: &[Place::FastCgi],
        options: gateway::FASTCGI,
    },
    Section {
        title: "Variables",
        doc: "What scripts and applications are told. They stand in `fastcgi`, `cgi`, `scgi` and `uwsgi`.",
        places: &[Place::FastCgi, Place::Cgi, Place::Scgi, Place::Uwsgi],
        options: gateway::ALL,
    },
    Section {
        title: "Caching answers",
        doc: "Which answers to forwarded requests are kept and served again. What they say themselves (`Cache-Control`, \
              `Expires`, `Vary`) goes before what is said here. They stand in `cache` of a `forward`, `fastcgi`, `cgi`, `scgi` or \
              `uwsgi`.",
        places: &[Place::Caching],
        options: response_caching::OPTIONS,
    },
    Section {
        title: "Modules",
        doc: "What a WebAssembly module may do: by default, answer requests, tell the time and have random numbers, and \
              nothing else. They stand in `module`.",
        places: &[Place::Module],
        options: module::MODULE,
    },
    Section {
        title: "All modules",
        doc: "What all WebAssembly modules share. They stand in `modules`.",
        places: &[Place::Modules],
        options: module::SHARED,
    },
    Section {
        title: "Upstreams",
        doc: "Servers that requests are forwarded to. They stand in `upstream`.",
        places: &[Place::Upstream],
        options: upstream::OPTIONS,
    },
    Section { title: "Traces", doc: traces::DOC, places: &[Place::Traces], options: traces::OPTIONS },
    Section { title: "Server", doc: "They stand in `server`.", places: &[Place::Server], options: server::SERVER },
    Section {
        title: "Confinement",
        doc: confinement::DOC,
        places: &[Place::Confinement],
        options: confinement::OPTIONS,
    },
    Section { title: "Limits", doc: "They stand in `limits`.", places: &[Place::Limits], options: server::LIMITS },
    Section { title: "HTTP/2", doc: http2::DOC, places: &[Place::Limits], options: http2::LIMITS },
    Section { title: "Cache", doc: "They stand in `cache`.", places: &[Place::Cache], options: server::CACHE },
];

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
    Forward,
    FastCgi,
    Cgi,
    Scgi,
    Uwsgi,
    Caching,
    Module,
    Modules,
    Upstream,
    AutomaticCertificates,
    Confinement,
    Traces,
}

impl Place {
    /// All places, in the order of the reference.
    pub(super) const ALL: [Self; 18] = [
        Self::Top,
        Self::Site,
        Self::Files,
        Self::Forward,
        Self::FastCgi,
        Self::Cgi,
        Self::Scgi,
        Self::Uwsgi,
        Self::Caching,
        Self::Module,
        Self::Modules,
        Self::Upstream,
        Self::Server,
        Self::Limits,
        Self::Cache,
        Self::AutomaticCertificates,
        Self::Confinement,
        Self::Traces,
    ];

    /// The options that may stand here.
    pub(super) fn options(self) -> impl Iterator<Item = &'static OptionDefinition> {
        SECTIONS.iter().filter(move |section| section.places.contains(&self)).flat_map(|section| section.options)
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
            Self::Forward => "in `forward`",
            Self::FastCgi => "in `fastcgi`",
            Self::Cgi => "in `cgi`",
            Self::Scgi => "in `scgi`",
            Self::Uwsgi => "in `uwsgi`",
            Self::Caching => "in `cache` of a `forward`",
            Self::Module => "in `module`",
            Self::Modules => "in `modules`",
            Self::Upstream => "in `upstream`",
            Self::AutomaticCertificates => "in `automatic-certificates`",
            Self::Confinement => "in `confinement`",
            Self::Traces => "in `traces`",
        }
    }
}

/// The places where an option of this name may stand.
pub(super) fn places_of(name: &str) -> Vec<Place> {
    Place::ALL.into_iter().filter(|place| place.option(name).is_some()).collect()
}
