//! Places of a model's parts in the text that gave it.

use std::ops::Range;
use std::sync::Arc;

use super::rules::{RulePosition, RulePositions};
use crate::check::finding::{ModelFinding, ModelPart, RulesOwner, SiteSoundness, Soundness};
use crate::diagnostic::{ConfigSource, Diagnostic, Diagnostics};
use crate::options::OptionContext;

/// Places of all parts of a model.
pub(crate) struct TextMap {
    /// Beginning of the text.
    pub(crate) start: RulePosition,
    pub(crate) blocks: Vec<(OptionContext, RulePosition)>,
    pub(crate) upstreams: Vec<UpstreamPlace>,
    pub(crate) sites: Vec<SitePlace>,
    /// Rules of all sites.
    pub(crate) rules: RulePositions,
    pub(crate) access_log: Option<RulePosition>,
    /// True if the text has errors.
    pub(crate) has_errors: bool,
}

/// Place of an upstream.
pub(crate) struct UpstreamPlace {
    pub(crate) position: RulePosition,
    /// True if everything in the block is valid.
    pub(crate) is_whole: bool,
}

/// Places of a site's parts, each list in the order of the model.
#[derive(Clone)]
pub(crate) struct SitePlace {
    pub(crate) source: Arc<ConfigSource>,
    /// The word `site`.
    pub(crate) span: Range<usize>,
    pub(crate) names: Vec<Range<usize>>,
    pub(crate) listen: Range<usize>,
    pub(crate) ftp: Option<Range<usize>>,
    pub(crate) routes: Vec<Range<usize>>,
    pub(crate) error_pages: Vec<Range<usize>>,
    pub(crate) certificates: Vec<Range<usize>>,
    pub(crate) access_log: Option<Range<usize>>,
    pub(crate) rules: RulePositions,
    pub(crate) soundness: SiteSoundness,
}

impl SitePlace {
    /// A site without parts of its own at this place.
    pub(crate) fn at((source, span): RulePosition) -> Self {
        Self {
            source,
            listen: span.clone(),
            span,
            names: Vec::new(),
            ftp: None,
            routes: Vec::new(),
            error_pages: Vec::new(),
            certificates: Vec::new(),
            access_log: None,
            rules: RulePositions::default(),
            soundness: SiteSoundness::default(),
        }
    }
}

impl TextMap {
    /// One that places all parts here.
    pub(crate) fn at(start: RulePosition) -> Self {
        Self {
            start,
            blocks: Vec::new(),
            upstreams: Vec::new(),
            sites: Vec::new(),
            rules: RulePositions::default(),
            access_log: None,
            has_errors: false,
        }
    }

    /// Parts that the text gives without fault.
    pub(crate) fn soundness(&self) -> Soundness {
        Soundness {
            sites: self.sites.iter().map(|site| site.soundness).collect(),
            upstreams: self.upstreams.iter().map(|upstream| upstream.is_whole).collect(),
            has_errors: self.has_errors,
        }
    }

    /// Adds findings at their places.
    pub(crate) fn note(&self, findings: Vec<ModelFinding>, diagnostics: &mut Diagnostics) {
        let mut last: Option<Diagnostic> = None;
        for finding in findings {
            let (source, span) = self.position(finding.part);
            let diagnostic = Diagnostic {
                source,
                span,
                severity: finding.severity,
                message: finding.message,
                label: finding.label.to_owned(),
                help: finding.help,
                related: finding.related.map(|(part, label)| {
                    let (source, span) = self.position(part);
                    (source, span, label.to_owned())
                }),
                is_denied: finding.is_denied,
            };
            // One option can be several parts, such as a page for each of its statuses.
            if last.as_ref() != Some(&diagnostic) {
                diagnostics.push(diagnostic.clone());
            }
            last = Some(diagnostic);
        }
    }

    /// Place of a part; of one that no option gives, the beginning of the text.
    fn position(&self, part: ModelPart) -> RulePosition {
        self.find(part).unwrap_or_else(|| self.start.clone())
    }

    fn find(&self, part: ModelPart) -> Option<RulePosition> {
        let site = |index: usize| self.sites.get(index);
        let within = |index: usize, span: fn(&SitePlace) -> Option<&Range<usize>>| {
            let site = site(index)?;
            Some((site.source.clone(), span(site).unwrap_or(&site.span).clone()))
        };
        let of_list = |index: usize, list: fn(&SitePlace) -> &[Range<usize>], at: usize| {
            let site = site(index)?;
            Some((site.source.clone(), list(site).get(at).unwrap_or(&site.span).clone()))
        };
        match part {
            ModelPart::Whole => None,
            ModelPart::Block(block) => {
                self.blocks.iter().find(|(known, _)| *known == block).map(|(_, position)| position.clone())
            }
            ModelPart::Upstream(index) => self.upstreams.get(index).map(|upstream| upstream.position.clone()),
            ModelPart::Site(index) => within(index, |site| Some(&site.span)),
            ModelPart::SiteName(index, name) => of_list(index, |site| &site.names, name),
            ModelPart::SiteListen(index) => within(index, |site| Some(&site.listen)),
            ModelPart::SiteFtp(index) => within(index, |site| site.ftp.as_ref()),
            ModelPart::Route(index, route) => of_list(index, |site| &site.routes, route),
            ModelPart::ErrorPage(index, page) => of_list(index, |site| &site.error_pages, page),
            ModelPart::Certificate(index, certificate) => of_list(index, |site| &site.certificates, certificate),
            ModelPart::AccessLog(None) => self.access_log.clone(),
            ModelPart::AccessLog(Some(index)) => within(index, |site| site.access_log.as_ref()),
            ModelPart::Rule(RulesOwner::AllSites, rule) => self.rules.get(rule).cloned(),
            ModelPart::Rule(RulesOwner::Site(index), rule) => site(index)?.rules.get(rule).cloned(),
        }
    }
}
