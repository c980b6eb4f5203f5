//! The tables that define every option once. The parser and its checks, the reference page, the man page, the JSON
//! schema and the default configuration are generated from them.

mod automatic;
mod bots;
mod compression;
mod confinement;
pub(crate) mod expressions;
mod files;
pub(crate) mod foreign;
mod forward;
mod ftp;
mod gateway;
mod http2;
mod limits;
mod module;
pub(crate) mod renamed;
mod response_caching;
mod rules;
mod server;
mod site;
pub(crate) mod spellings;
mod store;
mod tls;
mod traces;
mod traffic;
mod upstream;
pub(crate) mod variables;

use self::expressions::MapDraft;
use crate::model::automatic::AutomaticCertificates;
use crate::model::bots::BotsConfig;
use crate::model::confinement::Confinement;
use crate::model::ftp::FtpConfig;
use crate::model::gateway::GatewayConfig;
use crate::model::module::{ModuleConfig, ModulesConfig};
use crate::model::response_caching::ResponseCaching;
use crate::model::rules::RulesConfig;
use crate::model::site_defaults::SiteDefaults;
use crate::model::store::StoreConfig;
use crate::model::traces::Traces;
use crate::model::upstream::UpstreamConfig;
use crate::model::*;
use crate::value::{ValueKind, Values};

/// An option: a KDL node of this name.
#[derive(Clone, Copy)]
pub(super) struct OptionDefinition {
    pub(super) name: &'static str,
    /// Arguments and properties of the node.
    pub(super) parameters: &'static [Parameter],
    /// Allows the option several times in a block.
    pub(super) repeatable: bool,
    /// Allows the option without its block, whose defaults then apply.
    pub(super) is_block_optional: bool,
    /// Node that has the effect of leaving the option out; empty if no node has.
    pub(super) default: &'static str,
    /// Markdown. Lists show the first sentence alone.
    pub(super) doc: &'static str,
    /// A node that differs from the default.
    pub(super) example: &'static str,
    /// Names in other servers of what the option does.
    pub(super) known_as: KnownAs,
    /// Part of the configuration that the option changes.
    pub(super) set: OptionSetter,
}

/// Default of every field that a definition leaves out.
pub(super) const OPTION: OptionDefinition = OptionDefinition {
    name: "",
    parameters: &[],
    repeatable: false,
    is_block_optional: false,
    default: "",
    doc: "",
    example: "",
    known_as: KnownAs::NONE,
    set: OptionSetter::Include,
};

/// Names of an option in other servers: directives, parameters and, for Apache, modules. The best match comes first,
/// because a name that several options share suggests the option that lists it earliest.
#[derive(Clone, Copy)]
pub(super) struct KnownAs {
    pub(super) nginx: &'static [&'static str],
    pub(super) apache: &'static [&'static str],
    pub(super) caddy: &'static [&'static str],
    /// Names in HAProxy, lighttpd, h2o, Envoy, Varnish, systemd and others.
    pub(super) others: &'static [&'static str],
}

impl KnownAs {
    /// For options without a counterpart, and for fields that a definition leaves out.
    pub(super) const NONE: Self = Self { nginx: &[], apache: &[], caddy: &[], others: &[] };

    const fn nginx(self, nginx: &'static [&'static str]) -> Self {
        Self { nginx, ..self }
    }

    const fn apache(self, apache: &'static [&'static str]) -> Self {
        Self { apache, ..self }
    }

    const fn caddy(self, caddy: &'static [&'static str]) -> Self {
        Self { caddy, ..self }
    }

    const fn others(self, others: &'static [&'static str]) -> Self {
        Self { others, ..self }
    }

    /// Names by server, for people.
    pub(super) fn servers(&self) -> [(&'static str, &'static [&'static str]); 4] {
        [("nginx", self.nginx), ("Apache", self.apache), ("Caddy", self.caddy), ("others", self.others)]
    }

    /// Position of the name in the list of its server, letter case aside; the lowest if several servers have it.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        let position = |(_, names): (_, &[&str])| names.iter().position(|known| known.eq_ignore_ascii_case(name));
        self.servers().into_iter().filter_map(position).min()
    }
}

/// An argument or property of a node.
#[derive(Clone, Copy)]
pub(super) struct Parameter {
    /// Name of the property. For an argument, messages and the reference use it.
    pub(super) name: &'static str,
    pub(super) kind: ValueKind,
    pub(super) shape: ParameterShape,
}

/// Syntax of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParameterShape {
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

pub(super) const fn one(name: &'static str, kind: ValueKind) -> Parameter {
    Parameter { name, kind, shape: ParameterShape::One }
}

pub(super) const fn optional(name: &'static str, kind: ValueKind) -> Parameter {
    Parameter { name, kind, shape: ParameterShape::Optional }
}

pub(super) const fn many(name: &'static str, kind: ValueKind) -> Parameter {
    Parameter { name, kind, shape: ParameterShape::Many }
}

pub(super) const fn any(name: &'static str, kind: ValueKind) -> Parameter {
    Parameter { name, kind, shape: ParameterShape::Any }
}

pub(super) const fn property(name: &'static str, kind: ValueKind) -> Parameter {
    Parameter { name, kind, shape: ParameterShape::Property }
}

/// Parameters of the options that limit a request body.
pub(super) const BODY_BYTES: &[Parameter] = &[one("size", ValueKind::SizeOrAuto { min: 0, max: 1 << 50 })];

pub(crate) use rules::conditions;

/// Parameters of an option that is on or off.
pub(super) const FLAG: &[Parameter] = &[optional("on", ValueKind::Flag)];

/// Part of the configuration that an option changes.
#[derive(Clone, Copy)]
pub(super) enum OptionSetter {
    Server(fn(&mut ServerSettings, &Values)),
    Limits(fn(&mut Limits, &Values)),
    Cache(fn(&mut CacheConfig, &Values)),
    /// Static files of all sites, of a site, or of a path.
    Files(fn(&mut FilesConfig, &Values)),
    Site(fn(&mut SiteConfig, &Values)),
    /// Settings that all sites share and a site can replace.
    Shared(fn(&mut SiteDefaults, &Values)),
    Forward(fn(&mut ForwardConfig, &Values)),
    Gateway(fn(&mut GatewayConfig, &Values)),
    Module(fn(&mut ModuleConfig, &Values)),
    Modules(fn(&mut ModulesConfig, &Values)),
    /// Rules of all sites, or of a site.
    Rules(fn(&mut RulesConfig, &Values)),
    Caching(fn(&mut ResponseCaching, &Values)),
    Automatic(fn(&mut AutomaticCertificates, &Values)),
    Upstream(fn(&mut UpstreamConfig, &Values)),
    Confinement(fn(&mut Confinement, &Values)),
    Traces(fn(&mut Traces, &Values)),
    Bots(fn(&mut BotsConfig, &Values)),
    Store(fn(&mut StoreConfig, &Values)),
    Ftp(fn(&mut FtpConfig, &Values)),
    /// Cases of a map.
    Map(fn(&mut MapDraft, &Values)),
    /// File of a secret.
    Secret,
    /// A block of further options.
    Block(OptionContext),
    /// Other files.
    Include,
    /// Snippets and their uses, which are replaced before options are read.
    Reuse,
}

impl OptionSetter {
    /// True if the reader of this place has the part that the option changes.
    const fn fits(&self, place: OptionContext) -> bool {
        use OptionContext as Place;
        match self {
            Self::Server(_) => matches!(place, Place::Server),
            Self::Limits(_) => matches!(place, Place::Limits),
            Self::Cache(_) => matches!(place, Place::Cache),
            Self::Files(_) => matches!(place, Place::Top | Place::Site | Place::Files | Place::Ftp),
            Self::Site(_) => matches!(place, Place::Site),
            Self::Shared(_) | Self::Rules(_) => matches!(place, Place::Top | Place::Site),
            Self::Forward(_) => matches!(place, Place::Forward) || place.is_gateway(),
            Self::Gateway(_) => place.is_gateway(),
            Self::Module(_) => matches!(place, Place::Module),
            Self::Modules(_) => matches!(place, Place::Modules),
            Self::Caching(_) => matches!(place, Place::Caching),
            Self::Automatic(_) => matches!(place, Place::AutomaticCertificates),
            Self::Upstream(_) => matches!(place, Place::Upstream),
            Self::Confinement(_) => matches!(place, Place::Confinement),
            Self::Traces(_) => matches!(place, Place::Traces),
            Self::Bots(_) => matches!(place, Place::Bots),
            Self::Store(_) => matches!(place, Place::Store),
            Self::Ftp(_) => matches!(place, Place::Ftp),
            Self::Block(block) => block.fits(place),
            Self::Map(_) => matches!(place, Place::Map),
            Self::Secret | Self::Include | Self::Reuse => matches!(place, Place::Top),
        }
    }
}

/// Each option changes a part of the configuration that each of its places has. Otherwise the workspace does not compile.
const _: () = {
    let mut section = 0;
    while section < SECTIONS.len() {
        let Section { places, options, .. } = &SECTIONS[section];
        let mut place = 0;
        while place < places.len() {
            let mut option = 0;
            while option < options.len() {
                assert!(options[option].set.fits(places[place]), "an option stands where no reader applies it");
                option += 1;
            }
            place += 1;
        }
        section += 1;
    }
};

/// Options that the reference shows together.
pub(super) struct Section {
    pub(super) title: &'static str,
    /// Markdown: the purpose of the options, and their place in the file.
    pub(super) doc: &'static str,
    pub(super) places: &'static [OptionContext],
    pub(super) options: &'static [OptionDefinition],
}

/// All options, in the order of the reference.
pub(super) static SECTIONS: [Section; 35] = [
    Section {
        title: "Blocks",
        doc: "Blocks at the top level of the file, next to the settings for all sites.",
        places: &[OptionContext::Top],
        options: site::TOP,
    },
    Section {
        title: "Sites",
        doc: "Listeners and handlers of a site. Use these options in `site`.",
        places: &[OptionContext::Site],
        options: site::SITE,
    },
    Section {
        title: "Document root",
        doc: "Use this option in `site`, in `files` or in `ftp`.",
        places: &[OptionContext::Site, OptionContext::Files, OptionContext::Ftp],
        options: files::ROOT,
    },
    Section {
        title: "Files of a path",
        doc: "Use this option in `files`.",
        places: &[OptionContext::Files],
        options: files::BLOCK,
    },
    Section {
        title: "Static files",
        doc: "Use these options at the top level for all sites, in `site`, or in `files`. The innermost place wins. \
              `type`, `header` and `cache-control` add to those of the outer places instead.",
        places: &[OptionContext::Top, OptionContext::Site, OptionContext::Files],
        options: files::OPTIONS,
    },
    Section { title: "FTP", doc: ftp::DOC, places: &[OptionContext::Ftp], options: ftp::OPTIONS },
    Section { title: "TLS", doc: tls::DOC, places: &[OptionContext::Site], options: tls::TLS },
    Section {
        title: "HTTPS",
        doc: "Use these options at the top level for all sites, or in `site`.",
        places: &[OptionContext::Top, OptionContext::Site],
        options: tls::HTTPS,
    },
    Section {
        title: "Automatic certificates",
        doc: automatic::DOC,
        places: &[OptionContext::AutomaticCertificates],
        options: automatic::OPTIONS,
    },
    Section { title: "Maps", doc: expressions::DOC, places: &[OptionContext::Map], options: expressions::MAP },
    Section {
        title: "Rules",
        doc: rules::DOC,
        places: &[OptionContext::Top, OptionContext::Site],
        options: rules::RULES,
    },
    Section { title: "Bots", doc: bots::DOC, places: &[OptionContext::Bots], options: bots::OPTIONS },
    Section {
        title: "Error pages and access logs",
        doc: "Use these options at the top level for all sites, or in `site`.",
        places: &[OptionContext::Top, OptionContext::Site],
        options: site::SHARED,
    },
    Section {
        title: "Reverse proxy",
        doc: "Forwarding of requests to upstreams. Use these options in `forward`.",
        places: &[OptionContext::Forward],
        options: forward::OPTIONS,
    },
    Section {
        title: "Shares of requests",
        doc: "Requests for several upstreams: canary releases and mirrors. Use these options in `forward`.",
        places: &[OptionContext::Forward],
        options: traffic::SHARES,
    },
    Section {
        title: "Changes of responses",
        doc: "Changes of URLs, cookies and content in responses of upstreams, applications and scripts. Use these \
              options in `forward`, `fastcgi`, `cgi`, `scgi` and `uwsgi`.",
        places: &[
            OptionContext::Forward,
            OptionContext::FastCgi,
            OptionContext::Cgi,
            OptionContext::Scgi,
            OptionContext::Uwsgi,
        ],
        options: traffic::REWRITES,
    },
    Section {
        title: "Upstream requests and responses",
        doc: "Limits, timeouts and buffering of requests to upstreams, applications and scripts, and of their \
              responses. Use these options in `forward`, `fastcgi`, `cgi`, `scgi` and `uwsgi`.",
        places: &[
            OptionContext::Forward,
            OptionContext::FastCgi,
            OptionContext::Cgi,
            OptionContext::Scgi,
            OptionContext::Uwsgi,
        ],
        options: forward::ANSWERS,
    },
    Section {
        title: "Compression of responses",
        doc: "Compression of responses of upstreams, applications and scripts. Use these options in `forward`, \
              `fastcgi`, `cgi`, `scgi` and `uwsgi`.",
        places: &[
            OptionContext::Forward,
            OptionContext::FastCgi,
            OptionContext::Cgi,
            OptionContext::Scgi,
            OptionContext::Uwsgi,
        ],
        options: compression::FORWARD,
    },
    Section {
        title: "Scripts",
        doc: "Lookup of script files. Use these options in `fastcgi` and `cgi`.",
        places: &[OptionContext::FastCgi, OptionContext::Cgi],
        options: gateway::SCRIPTS,
    },
    Section {
        title: "CGI programs",
        doc: "Processes of CGI programs. Use these options in `cgi`.",
        places: &[OptionContext::Cgi],
        options: gateway::PROGRAMS,
    },
    Section {
        title: "Applications",
        doc: "Servers that run an application. Use this option in `fastcgi`, `scgi` and `uwsgi`.",
        places: &[OptionContext::FastCgi, OptionContext::Scgi, OptionContext::Uwsgi],
        options: gateway::SERVERS,
    },
    Section {
        title: "FastCGI",
        doc: "FastCGI servers such as PHP-FPM. Use these options in `fastcgi`.",
        places: &[OptionContext::FastCgi],
        options: gateway::FASTCGI,
    },
    Section {
        title: "Variables",
        doc: "Variables and errors of scripts and applications. Use these options in `fastcgi`, `cgi`, `scgi` and `uwsgi`.",
        places: &[OptionContext::FastCgi, OptionContext::Cgi, OptionContext::Scgi, OptionContext::Uwsgi],
        options: gateway::ALL,
    },
    Section {
        title: "Response cache",
        doc: "Caching of upstream responses (RFC 9111). A response's own `Cache-Control`, `Expires` and `Vary` take \
              precedence over these options. Use them in the block `cache` of a `forward`, `fastcgi`, `cgi`, `scgi` or `uwsgi`.",
        places: &[OptionContext::Caching],
        options: response_caching::OPTIONS,
    },
    Section {
        title: "Modules",
        doc: "Permissions and limits of a WebAssembly module. By default, a module can answer requests, read the time \
              and get random numbers, and nothing else. Use these options in `module`.",
        places: &[OptionContext::Module],
        options: module::MODULE,
    },
    Section {
        title: "Compression of modules' responses",
        doc: "Compression of responses of WebAssembly modules. Use these options in `module`.",
        places: &[OptionContext::Module],
        options: compression::MODULE,
    },
    Section {
        title: "All modules",
        doc: "Settings that all WebAssembly modules share. Use these options in `modules`.",
        places: &[OptionContext::Modules],
        options: module::SHARED,
    },
    Section {
        title: "Upstreams",
        doc: "Load balancing, connections, retries and health checks of upstream servers. Use these options in `upstream`.",
        places: &[OptionContext::Upstream],
        options: upstream::OPTIONS,
    },
    Section { title: "Store", doc: store::DOC, places: &[OptionContext::Store], options: store::OPTIONS },
    Section { title: "Traces", doc: traces::DOC, places: &[OptionContext::Traces], options: traces::OPTIONS },
    Section {
        title: "Server",
        doc: "Process, listeners and logs. Use these options in `server`.",
        places: &[OptionContext::Server],
        options: server::SERVER,
    },
    Section {
        title: "Confinement",
        doc: confinement::DOC,
        places: &[OptionContext::Confinement],
        options: confinement::OPTIONS,
    },
    Section {
        title: "Limits",
        doc: "Limits on clients. Use these options in `limits`.",
        places: &[OptionContext::Limits],
        options: limits::LIMITS,
    },
    Section { title: "HTTP/2", doc: http2::DOC, places: &[OptionContext::Limits], options: http2::LIMITS },
    Section {
        title: "Memory cache",
        doc: "Memory cache for files and responses. Use these options in `cache`.",
        places: &[OptionContext::Cache],
        options: server::CACHE,
    },
];

/// Block in which options may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum OptionContext {
    /// The top level of a file.
    Top,
    Server,
    Limits,
    Cache,
    Site,
    Map,
    Files,
    Ftp,
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
    Bots,
    Store,
}

impl OptionContext {
    /// All places, in the order of the reference.
    pub(super) const ALL: [Self; 22] = [
        Self::Top,
        Self::Site,
        Self::Map,
        Self::Files,
        Self::Ftp,
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
        Self::Bots,
        Self::Store,
    ];

    /// True for blocks of scripts and applications.
    const fn is_gateway(self) -> bool {
        matches!(self, Self::FastCgi | Self::Cgi | Self::Scgi | Self::Uwsgi)
    }

    /// True if the reader of `outer` reads this block.
    const fn fits(self, outer: Self) -> bool {
        match self {
            Self::Top => false,
            Self::Server
            | Self::Limits
            | Self::Cache
            | Self::Site
            | Self::Modules
            | Self::Upstream
            | Self::AutomaticCertificates
            | Self::Confinement
            | Self::Map
            | Self::Store
            | Self::Traces => matches!(outer, Self::Top),
            Self::Files
            | Self::Ftp
            | Self::Forward
            | Self::FastCgi
            | Self::Cgi
            | Self::Scgi
            | Self::Uwsgi
            | Self::Module => matches!(outer, Self::Site),
            Self::Bots => matches!(outer, Self::Top | Self::Site),
            Self::Caching => matches!(outer, Self::Forward) || outer.is_gateway(),
        }
    }

    /// Options that may stand here.
    pub(super) fn options(self) -> impl Iterator<Item = &'static OptionDefinition> {
        SECTIONS.iter().filter(move |section| section.places.contains(&self)).flat_map(|section| section.options)
    }

    /// Finds an option that may stand here.
    pub(super) fn option(self, name: &str) -> Option<&'static OptionDefinition> {
        self.options().find(|option| option.name == name)
    }

    /// Text for messages.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Top => "at the top level",
            Self::Server => "in `server`",
            Self::Limits => "in `limits`",
            Self::Cache => "in `cache`",
            Self::Site => "in `site`",
            Self::Map => "in `map`",
            Self::Files => "in `files`",
            Self::Ftp => "in `ftp`",
            Self::Forward => "in `forward`",
            Self::FastCgi => "in `fastcgi`",
            Self::Cgi => "in `cgi`",
            Self::Scgi => "in `scgi`",
            Self::Uwsgi => "in `uwsgi`",
            Self::Caching => "in the block `cache` of a `forward`",
            Self::Module => "in `module`",
            Self::Modules => "in `modules`",
            Self::Upstream => "in `upstream`",
            Self::AutomaticCertificates => "in `automatic-certificates`",
            Self::Confinement => "in `confinement`",
            Self::Traces => "in `traces`",
            Self::Bots => "in `bots`",
            Self::Store => "in `store`",
        }
    }
}

/// Places where an option of this name may stand.
pub(super) fn places_of(name: &str) -> Vec<OptionContext> {
    OptionContext::ALL.into_iter().filter(|place| place.option(name).is_some()).collect()
}
