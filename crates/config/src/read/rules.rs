//! Rules, and their places in a text.

use std::ops::Range;
use std::sync::Arc;

use super::Setting;
use super::bots::read_bots;
use crate::check::finding::RulePart;
use crate::diagnostic::{ConfigFinding, ConfigSource, Diagnostics};
use crate::model::rules::RulesConfig;
use crate::value::Values;

/// Place of a rule.
pub(crate) type RulePosition = (Arc<ConfigSource>, Range<usize>);

/// Rules that are being put together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RulesDraft {
    pub(crate) rules: RulesConfig,
    pub(crate) positions: RulePositions,
}

/// Places of rules, each list in the order of the rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RulePositions {
    clients: Vec<RulePosition>,
    rewrites: Vec<RulePosition>,
    rewrite_targets: Vec<RulePosition>,
    passwords: Vec<RulePosition>,
    password_files: Vec<RulePosition>,
    forward_auths: Vec<RulePosition>,
    logins: Vec<RulePosition>,
    response_fields: Vec<RulePosition>,
    canonical_host: Option<RulePosition>,
    bots: Option<RulePosition>,
    crawlers: Vec<RulePosition>,
}

impl RulesDraft {
    /// Adds what an option says.
    pub(crate) fn add(
        &mut self,
        set: fn(&mut RulesConfig, &Values),
        setting: &Setting<'_>,
        source: &Arc<ConfigSource>,
        diagnostics: &mut Diagnostics,
    ) {
        set(&mut self.rules, &setting.values);
        let place = || (source.clone(), setting.span.clone());
        let value = |name: &str| {
            let span = setting.values.all(name).next().map_or(setting.span.clone(), |(_, span)| span.clone());
            (source.clone(), span)
        };
        let Self { rules, positions } = self;
        positions.clients.resize_with(rules.clients.len(), place);
        positions.rewrites.resize_with(rules.rewrites.len(), place);
        positions.rewrite_targets.resize_with(rules.rewrites.len(), || value("target"));
        positions.passwords.resize_with(rules.passwords.len(), place);
        positions.password_files.resize_with(rules.passwords.len(), || value("file"));
        positions.forward_auths.resize_with(rules.forward_auths.len(), place);
        positions.logins.resize_with(rules.forward_auths.len(), || value("login"));
        positions.response_fields.resize_with(rules.response_fields.len(), place);
        if setting.option.name == "canonical-host" {
            positions.canonical_host = Some(place());
        }
        let is_off = rules.forward_auths.last().is_some_and(|rule| rule.auth.is_none());
        if setting.option.name == "forward-auth" && is_off && setting.values.list.len() > 2 {
            let finding = ConfigFinding::new(setting.span.clone(), "`off` takes no further settings", "this")
                .help("remove the settings after `off`".to_owned());
            diagnostics.error(source, finding);
        }
    }

    /// Upstreams of forward authentication, and the places of their rules.
    pub(crate) fn auth_upstreams(&self) -> impl Iterator<Item = (&String, &RulePosition)> {
        let rules = self.rules.forward_auths.iter().zip(&self.positions.forward_auths);
        rules.filter_map(|(rule, place)| Some((&rule.auth.as_ref()?.forward.upstream, place)))
    }

    /// Reads the block `bots`, and notes its place.
    pub(crate) fn add_bots(
        &mut self,
        source: &Arc<ConfigSource>,
        setting: &Setting<'_>,
        diagnostics: &mut Diagnostics,
    ) {
        let position = (source.clone(), setting.span.clone());
        self.positions.crawlers.clear();
        self.rules.bots = Some(read_bots(&position, setting, &mut self.positions.crawlers, diagnostics));
        self.positions.bots = Some(position);
    }
}

impl RulePositions {
    /// Place of a rule, or of a value of it.
    pub(crate) fn get(&self, part: RulePart) -> Option<&RulePosition> {
        match part {
            RulePart::Client(index) => self.clients.get(index),
            RulePart::Rewrite(index) => self.rewrites.get(index),
            RulePart::RewriteTarget(index) => self.rewrite_targets.get(index),
            RulePart::Password(index) => self.passwords.get(index),
            RulePart::PasswordFile(index) => self.password_files.get(index),
            RulePart::ForwardAuth(index) => self.forward_auths.get(index),
            RulePart::Login(index) => self.logins.get(index),
            RulePart::ResponseField(index) => self.response_fields.get(index),
            RulePart::CanonicalHost => self.canonical_host.as_ref(),
            RulePart::Bots => self.bots.as_ref(),
            RulePart::Crawler(index) => self.crawlers.get(index).or(self.bots.as_ref()),
        }
    }
}
