//! Findings about parts of a model. Places in a text, if there is one, are found afterwards.

use std::fmt;

use crate::diagnostic::Severity;
use crate::model::{Config, SiteConfig};
use crate::options::OptionContext;

/// Part of a configuration. Sites and upstreams are named by their index, parts of a site by the site and their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ModelPart {
    Whole,
    /// Block at the top level.
    Block(OptionContext),
    Upstream(usize),
    Site(usize),
    SiteName(usize, usize),
    /// Addresses of a site.
    SiteListen(usize),
    /// Part of a site that speaks FTP.
    SiteFtp(usize),
    Route(usize, usize),
    ErrorPage(usize, usize),
    Certificate(usize, usize),
    /// Access log of a site, or of all sites.
    AccessLog(Option<usize>),
    Rule(RulesOwner, RulePart),
}

/// Sites that rules are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RulesOwner {
    AllSites,
    Site(usize),
}

/// Rule, by its kind and its index among those of the kind, or one of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RulePart {
    Client(usize),
    Rewrite(usize),
    RewriteTarget(usize),
    Password(usize),
    PasswordFile(usize),
    ForwardAuth(usize),
    Login(usize),
    ResponseField(usize),
    CanonicalHost,
    Bots,
    /// Crawler of `bots`, or its file.
    Crawler(usize),
}

/// Finding about a part of a model.
#[derive(Debug)]
pub(crate) struct ModelFinding {
    pub(crate) part: ModelPart,
    pub(crate) severity: Severity,
    pub(crate) message: String,
    /// Text at the caret.
    pub(crate) label: &'static str,
    pub(crate) help: Option<String>,
    pub(crate) related: Option<(ModelPart, &'static str)>,
    /// True if the process lacks the permission for a file.
    pub(crate) is_denied: bool,
    /// True for a warning that is an error on the machine that the configuration is for: content or passwords are missing.
    pub(crate) is_absent: bool,
}

impl ModelFinding {
    pub(crate) fn error(part: ModelPart, message: impl Into<String>, label: &'static str) -> Self {
        let (severity, message) = (Severity::Error, message.into());
        Self { part, severity, message, label, help: None, related: None, is_denied: false, is_absent: false }
    }

    pub(crate) fn warning(part: ModelPart, message: impl Into<String>, label: &'static str) -> Self {
        Self { severity: Severity::Warning, ..Self::error(part, message, label) }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    pub(crate) fn denied(mut self, is_denied: bool) -> Self {
        self.is_denied = is_denied;
        self
    }

    pub(crate) fn absent(mut self, is_absent: bool) -> Self {
        self.is_absent = is_absent;
        self
    }

    pub(crate) fn related(mut self, part: ModelPart, label: &'static str) -> Self {
        self.related = Some((part, label));
        self
    }
}

impl fmt::Display for ModelFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.help {
            Some(help) => write!(f, "{}; {help}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// Site that is checked.
#[derive(Clone, Copy)]
pub(crate) struct CheckedSite<'c> {
    pub(crate) index: usize,
    pub(crate) config: &'c SiteConfig,
}

impl CheckedSite<'_> {
    pub(crate) fn part(self) -> ModelPart {
        ModelPart::Site(self.index)
    }

    pub(crate) fn listen(self) -> ModelPart {
        ModelPart::SiteListen(self.index)
    }

    pub(crate) fn name(self, index: usize) -> ModelPart {
        ModelPart::SiteName(self.index, index)
    }

    pub(crate) fn route(self, index: usize) -> ModelPart {
        ModelPart::Route(self.index, index)
    }
}

/// Parts of a model that a text gives without fault. Without a text, all are.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Soundness {
    /// Sites in the order of the model; those after the last are sound.
    pub(crate) sites: Vec<SiteSoundness>,
    /// True for each upstream that is sound; those after the last are.
    pub(crate) upstreams: Vec<bool>,
    /// True if the text has errors.
    pub(crate) has_errors: bool,
}

/// Parts of a site that a text gives without fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SiteSoundness {
    /// All is valid, so that messages about consequences make sense.
    pub(crate) is_whole: bool,
    /// At least names and addresses are valid.
    pub(crate) is_placed: bool,
    /// No option gives the addresses.
    pub(crate) has_default_listen: bool,
    /// Number of error pages of the site alone.
    pub(crate) own_error_pages: usize,
}

impl Default for SiteSoundness {
    fn default() -> Self {
        Self { is_whole: true, is_placed: true, has_default_listen: false, own_error_pages: usize::MAX }
    }
}

impl Soundness {
    pub(crate) fn site(&self, index: usize) -> SiteSoundness {
        self.sites.get(index).copied().unwrap_or_default()
    }

    pub(crate) fn is_upstream_whole(&self, index: usize) -> bool {
        self.upstreams.get(index).copied().unwrap_or(true)
    }
}

/// The sites of a configuration.
pub(crate) fn checked_sites(config: &Config) -> impl Iterator<Item = CheckedSite<'_>> {
    config.sites.iter().enumerate().map(|(index, config)| CheckedSite { index, config })
}
