//! Parts of a site's rules that all workers share: address sets, tables of limits, password files.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bots::challenge::{ChallengeKey, ChallengeSecret, KEY_BYTES};
use wire::http::Status;

use super::auto_ban::AutoBans;
use super::https::Https;
use super::passwords::PasswordStore;
use super::rate_table::RateTable;
use super::rewrites::{fits_as_read, fits_path, may_hold};
use super::{
    CountTable, GuardPattern, GuardedPath, KeyHasher, OtherPath, PasswordChecks, PasswordGate, Readings, SharedBots,
    TrustedProxies, Visit,
};
use crate::config::{
    AutoBan, BotsConfig, ClientRule, Condition, Config, HostPattern, LimitKey, LimitsWithoutStore, Listen, PathPattern,
    RateLimit, RequestLimit, RulesConfig, SharedState, SiteConfig, StoreConfig,
};
use crate::handler::gateway::script_paths;
use crate::handler::{BuiltResponse, Routed};
use crate::known_clients::{AddressSet, Claims, Locations, SiteLists};
use crate::log::{LogClient, ServerLog, event};
use crate::metrics::Limit;

/// Rules of a site, merged with the rules of all sites.
pub struct SharedRules {
    rules: RulesConfig,
    https: Https,
    clients: Vec<(ClientRule, GuardPattern, AddressSet)>,
    rate_limits: Vec<Guarded<RateLimit, RateTable>>,
    request_limits: Vec<Guarded<RequestLimit, CountTable>>,
    auto_bans: AutoBans,
    bots: Option<Arc<SharedBots>>,
    /// Pattern of each password rule.
    password_paths: Vec<GuardPattern>,
    /// Pattern of each rule of forward authentication.
    auth_paths: Vec<GuardPattern>,
    /// Other readings of paths.
    readings: Readings,
    /// Store of each password rule; `None` for a rule without a file.
    stores: Vec<Option<Arc<PasswordStore>>>,
    checks: Arc<PasswordChecks>,
    hasher: KeyHasher,
    server_log: ServerLog,
    /// Patterns of paths that are scripts.
    scripts: Vec<PathPattern>,
}

/// A limit, with its pattern and the table that counts it.
type Guarded<L, T> = (L, GuardPattern, Arc<T>);

/// Rules of all sites, and the trusted proxies.
pub struct AllRules {
    /// Rules of each site, in the order of the configuration; `None` if neither the site, nor all sites, nor the site's
    /// files need rules.
    pub sites: Vec<Option<Arc<SharedRules>>>,
    /// Passwords of each site of FTP, in the order of the configuration; `None` if it has no users.
    pub gates: Vec<Option<PasswordGate>>,
    /// Trusted proxies; `None` if there are none.
    pub trusted_proxies: Option<TrustedProxies>,
    /// Databases of countries and network operators.
    pub locations: Arc<Locations>,
    /// State that the next configuration reuses.
    kept: ReusedLimits,
}

/// Tables of limits that instances share.
#[derive(Debug, Default)]
pub struct SharedTables {
    /// Tables of rate limits and of rules of bans.
    pub rates: Vec<Arc<RateTable>>,
    /// Tables of limits of requests in progress.
    pub counts: Vec<Arc<CountTable>>,
}

/// Limits with the tables that count them.
type LimitTables<L, T> = Vec<(L, Arc<T>)>;

/// Counts and caches that survive a reload, whatever else changes in the rules.
struct ReusedLimits {
    all: RuleLimits,
    /// Limits of each site, by its names and addresses.
    sites: HashMap<SiteKey, RuleLimits>,
    stores: HashMap<PathBuf, Arc<PasswordStore>>,
    checks: Arc<PasswordChecks>,
    /// Maximum numbers of passwords that are verified, and that wait, at a time.
    checks_max: (usize, usize),
    hasher: KeyHasher,
    /// Lists of bots.
    bot_lists: Vec<Arc<SiteLists>>,
    claims: Arc<Claims>,
    /// Key of challenges of configurations without a key file.
    challenge_key: Arc<ChallengeKey>,
}

type SiteKey = (Vec<HostPattern>, Vec<Listen>);

/// Limits of one site, or of all sites together.
#[derive(Clone, Default)]
struct RuleLimits {
    rate: LimitTables<RateLimit, RateTable>,
    request: LimitTables<RequestLimit, CountTable>,
    bans: LimitTables<AutoBan, RateTable>,
}

impl AllRules {
    /// Makes the rules of a configuration. Limits that `reused` has unchanged keep their counts. `challenge_secret` is for
    /// configurations without a key for challenges.
    ///
    /// # Errors
    /// A file of the configuration cannot be used.
    pub fn new(
        config: &Config,
        server_log: &ServerLog,
        challenge_secret: &ChallengeSecret,
        reused: Option<&Self>,
    ) -> io::Result<Self> {
        Self::with_unchanged(config, server_log, challenge_secret, reused, &[])
    }

    /// Makes the rules of a configuration as [`Self::new`] does. If only routes of a controller differ from those of
    /// `reused`, `unchanged` has the index in `reused` of each site that stays.
    ///
    /// # Errors
    /// A file of the configuration cannot be used.
    pub fn with_unchanged(
        config: &Config,
        server_log: &ServerLog,
        challenge_secret: &ChallengeSecret,
        reused: Option<&Self>,
        unchanged: &[Option<usize>],
    ) -> io::Result<Self> {
        let before = |index: usize| {
            let before = unchanged.get(index).copied().flatten()?;
            reused?.sites.get(before)?.as_ref()
        };
        let reused_locations = reused.map(|reused| &reused.locations);
        let reused = reused.map(|reused| &reused.kept);
        let locations = Locations::reuse(&config.server.client_knowledge, reused_locations)?;
        let mut common = Common::new(config, server_log, challenge_secret, reused)?;
        let rules = |(index, site)| common.rules_of_site(site, reused, before(index));
        let sites = config.sites.iter().map(|site| &**site).enumerate().map(rules).collect::<io::Result<_>>()?;
        let gates = config.sites.iter().map(|site| common.gate(site, reused)).collect::<io::Result<_>>()?;
        let server = &config.server;
        let trusted_proxies = TrustedProxies::new(&server.trusted_proxies, server.forwarded_field);
        let rules = Self { sites, gates, trusted_proxies, locations, kept: common.kept };
        let store = config.store.as_ref();
        rules.share_limits(store.is_some_and(|store| store.limits_without_store == LimitsWithoutStore::Closed));
        Ok(rules)
    }

    /// Lists of bots, and claims of crawlers, which must be kept up to date.
    pub fn known_clients(&self) -> (Vec<Arc<SiteLists>>, Arc<Claims>) {
        (self.kept.bot_lists.clone(), Arc::clone(&self.kept.claims))
    }

    /// Gives each limit, and each rule of bans, an identity that is the same at all instances, if limits are shared. With
    /// `is_closed`, new limits reject until the store has responded.
    fn share_limits(&self, is_closed: bool) {
        let hasher = &self.kept.hasher;
        let id_of = |identity: String| if hasher.is_shared() { hasher.of_identity(&identity) } else { 0 };
        let share_rate = |table: &RateTable, identity| {
            if table.share(id_of(identity)) && is_closed {
                table.close(true);
            }
        };
        let of_sites = self.kept.sites.iter().map(|((names, _), limits)| (format!("{names:?}"), limits));
        for (site, limits) in of_sites.chain([(String::new(), &self.kept.all)]) {
            for (index, (limit, table)) in limits.rate.iter().enumerate() {
                share_rate(table, format!("{site} {index} {:?} {:?}", limit.path, limit.key));
            }
            for (index, (limit, table)) in limits.request.iter().enumerate() {
                let identity = format!("requests {site} {index} {:?} {:?}", limit.path, limit.key);
                if table.share(id_of(identity)) && is_closed {
                    table.close(true);
                }
            }
            for (index, (rule, table)) in limits.bans.iter().enumerate() {
                share_rate(table, format!("bans {site} {index} {:?} {:?}", rule.path, rule.statuses));
            }
        }
    }

    /// Tables of limits and of bans that instances share.
    pub fn shared_tables(&self) -> SharedTables {
        let limits = || self.kept.sites.values().chain([&self.kept.all]);
        let rates = limits().flat_map(|limits| {
            let of_bans = limits.bans.iter().map(|(_, table)| table);
            limits.rate.iter().map(|(_, table)| table).chain(of_bans)
        });
        let counts = limits().flat_map(|limits| &limits.request).map(|(_, table)| table);
        SharedTables {
            rates: rates.filter(|table| table.is_shared()).cloned().collect(),
            counts: counts.filter(|table| table.is_shared()).cloned().collect(),
        }
    }

    /// Changes the rate of the limits for all sites, or of this site's, that have the path and the key of `wanted`.
    /// Returns their number.
    pub fn set_rate(&self, site: Option<&SiteConfig>, wanted: &RateLimit) -> usize {
        let limits = match site {
            Some(site) => self.kept.sites.get(&site_key(site)),
            None => Some(&self.kept.all),
        };
        let is_wanted = |limit: &RateLimit| limit.path == wanted.path && limit.key == wanted.key;
        let tables = limits.into_iter().flat_map(|limits| &limits.rate).filter(|(limit, _)| is_wanted(limit));
        tables.map(|(_, table)| table.set_rate(wanted.rate, wanted.burst)).count()
    }

    /// Restores the rates of the configuration.
    pub fn reset_rates(&self) {
        let limits = self.kept.sites.values().chain([&self.kept.all]);
        limits.flat_map(|limits| &limits.rate).for_each(|(limit, table)| table.set_rate(limit.rate, limit.burst));
    }
}

fn site_key(site: &SiteConfig) -> SiteKey {
    (site.names.clone(), site.listen.clone())
}

/// Builder of the parts that sites share. Limits for all sites count all sites together, and each file is read once.
struct Common<'c> {
    config: &'c Config,
    kept: ReusedLimits,
    server_log: ServerLog,
}

impl<'c> Common<'c> {
    fn new(
        config: &'c Config,
        server_log: &ServerLog,
        challenge_secret: &ChallengeSecret,
        reused: Option<&ReusedLimits>,
    ) -> io::Result<Self> {
        let known = reused.map(|reused| &reused.hasher);
        let store = config.store.as_ref();
        let key_file = store.and_then(|store| store.key_file.as_ref());
        let secret = key_file.map(|path| StoreConfig::read_secret(path)).transpose()?;
        let hasher = match secret.as_ref().filter(|_| store.is_some_and(|store| store.has(SharedState::Limits))) {
            Some(secret) => KeyHasher::of_secret(secret),
            None => known.filter(|hasher| !hasher.is_shared()).cloned().unwrap_or_default(),
        };
        // A cookie of one instance is valid at all.
        let shared_secret = secret.as_deref().map(ChallengeSecret::derived);
        let checks_max = (config.limits.password_checks_max, config.limits.password_checks_waiting_max);
        let known_checks = reused.filter(|reused| reused.checks_max == checks_max);
        let kept = ReusedLimits {
            all: RuleLimits::new(&config.rules, reused.map(|reused| &reused.all)),
            sites: HashMap::new(),
            stores: HashMap::new(),
            checks: known_checks
                .map_or_else(|| PasswordChecks::new(&config.limits, &hasher), |known| Arc::clone(&known.checks)),
            checks_max,
            hasher,
            bot_lists: Vec::new(),
            claims: reused.map(|reused| Arc::clone(&reused.claims)).unwrap_or_default(),
            challenge_key: Arc::new(shared_secret.as_ref().unwrap_or(challenge_secret).key()),
        };
        Ok(Self { config, kept, server_log: server_log.clone() })
    }

    /// Rules of a site; `unchanged` are those before, if nothing that they depend on has changed.
    fn rules_of_site(
        &mut self,
        site: &SiteConfig,
        reused: Option<&ReusedLimits>,
        unchanged: Option<&Arc<SharedRules>>,
    ) -> io::Result<Option<Arc<SharedRules>>> {
        if site.rules.is_empty() && self.config.rules.is_empty() && !site.asks_elsewhere() {
            return Ok(None);
        }
        let unchanged = unchanged.filter(|rules| !rules.has_files());
        if let Some(unchanged) = unchanged.filter(|_| !site.rules.has_limits()) {
            return Ok(Some(Arc::clone(unchanged)));
        }
        let key = site_key(site);
        let own = RuleLimits::new(&site.rules, reused.and_then(|reused| reused.sites.get(&key)));
        if let Some(unchanged) = unchanged {
            self.keep(key, own);
            return Ok(Some(Arc::clone(unchanged)));
        }
        let rules = joined(&site.rules, &self.config.rules);
        let mut stores = Vec::new();
        for rule in &rules.passwords {
            stores.push(rule.file.as_ref().map(|file| self.store(file, reused)).transpose()?);
        }
        let clients: Vec<_> =
            rules.clients.iter().map(|rule| guarded(rule, &rule.path, AddressSet::new(&rule.clients))).collect();
        let rate_limits = chained(&own.rate, &self.kept.all.rate);
        let rate_limits: Vec<_> =
            rate_limits.into_iter().map(|(limit, table)| guarded(&limit, &limit.path, table)).collect();
        let request_limits = chained(&own.request, &self.kept.all.request);
        let request_limits: Vec<_> =
            request_limits.into_iter().map(|(limit, table)| guarded(&limit, &limit.path, table)).collect();
        let password_paths: Vec<_> = rules.passwords.iter().map(|rule| GuardPattern::new(&rule.path)).collect();
        let auth_paths: Vec<_> = rules.forward_auths.iter().map(|rule| GuardPattern::new(&rule.path)).collect();
        let patterns = clients.iter().map(|(_, pattern, _)| pattern).chain(&password_paths).chain(&auth_paths);
        let patterns = patterns.chain(rate_limits.iter().map(|(_, pattern, _)| pattern));
        let patterns = patterns.chain(request_limits.iter().map(|(_, pattern, _)| pattern));
        let bots = rules.bots.clone().flatten().map(|bots| self.bots(&bots, reused)).transpose()?;
        let edits = rules.request_fields.iter().chain(&rules.response_fields);
        let shared = SharedRules {
            readings: Readings::new(patterns, edits.map(|edit| &edit.path), rules.has_conditional_guard()),
            clients,
            https: Https::new(&rules, site),
            rate_limits,
            request_limits,
            auto_bans: AutoBans::new(
                chained(&own.bans, &self.kept.all.bans),
                &self.config.server,
                (&self.kept.hasher, &self.server_log),
            ),
            bots,
            password_paths,
            auth_paths,
            stores,
            checks: Arc::clone(&self.kept.checks),
            hasher: self.kept.hasher.clone(),
            server_log: self.server_log.clone(),
            scripts: site.script_patterns().cloned().collect(),
            rules,
        };
        self.keep(key, own);
        Ok(Some(Arc::new(shared)))
    }

    /// Keeps the limits of a site for the next configuration.
    fn keep(&mut self, key: SiteKey, limits: RuleLimits) {
        if !limits.is_empty() {
            self.kept.sites.insert(key, limits);
        }
    }

    /// Bots of a site. Sites with the same settings share their lists.
    fn bots(&mut self, config: &Arc<BotsConfig>, reused: Option<&ReusedLimits>) -> io::Result<Arc<SharedBots>> {
        let known = self.kept.bot_lists.iter().find(|known| known.is_of(config)).cloned();
        let lists = match known {
            Some(known) => known,
            None => {
                let before = reused.and_then(|reused| reused.bot_lists.iter().find(|known| known.is_of(config)));
                let lists = SiteLists::reuse(config, before)?;
                self.kept.bot_lists.push(Arc::clone(&lists));
                lists
            }
        };
        let key = match &config.key_file {
            Some(file) => Arc::new(key_of_file(file)?),
            None => Arc::clone(&self.kept.challenge_key),
        };
        Ok(Arc::new(SharedBots {
            config: Arc::clone(config),
            lists,
            key,
            claims: Arc::clone(&self.kept.claims),
            offers_http2: self.config.server.http_versions.http2,
        }))
    }

    fn gate(&mut self, site: &SiteConfig, reused: Option<&ReusedLimits>) -> io::Result<Option<PasswordGate>> {
        let Some(users) = site.ftp.as_ref().and_then(|ftp| ftp.users.as_ref()) else { return Ok(None) };
        let store = self.store(users, reused)?;
        Ok(Some(PasswordGate { store, checks: Arc::clone(&self.kept.checks) }))
    }

    fn store(&mut self, file: &PathBuf, reused: Option<&ReusedLimits>) -> io::Result<Arc<PasswordStore>> {
        let known = self.kept.stores.get(file).or_else(|| reused.and_then(|reused| reused.stores.get(file)));
        let store = known.map_or_else(|| PasswordStore::new(file, &self.server_log), |known| Ok(Arc::clone(known)))?;
        self.kept.stores.insert(file.clone(), Arc::clone(&store));
        Ok(store)
    }
}

impl RuleLimits {
    fn is_empty(&self) -> bool {
        self.rate.is_empty() && self.request.is_empty() && self.bans.is_empty()
    }

    fn new(rules: &RulesConfig, reused: Option<&Self>) -> Self {
        let reused = reused.cloned().unwrap_or_default();
        Self {
            rate: with_tables(&rules.rate_limits, reused.rate, rate_table),
            request: with_tables(&rules.request_limits, reused.request, |_| Arc::default()),
            bans: with_tables(&rules.auto_bans, reused.bans, AutoBans::table),
        }
    }
}

fn key_of_file(file: &Path) -> io::Result<ChallengeKey> {
    let named = |error: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", file.display()));
    let bytes = std::fs::read(file).map_err(|error| named(error.to_string()))?;
    let secret = bytes.first_chunk().ok_or_else(|| named(format!("the file has fewer than {KEY_BYTES} bytes")))?;
    Ok(ChallengeKey::new(secret))
}

fn rate_table(limit: &RateLimit) -> Arc<RateTable> {
    Arc::new(RateTable::new(limit.rate, limit.burst, limit.keys_max))
}

/// Pairs each limit with its previous table, or with a new one. Equal limits get separate tables.
fn with_tables<L: Clone + PartialEq, T>(
    limits: &[L],
    mut known: LimitTables<L, T>,
    table: impl Fn(&L) -> Arc<T>,
) -> LimitTables<L, T> {
    let with_table = |limit: &L| match known.iter().position(|(other, _)| other == limit) {
        Some(index) => known.swap_remove(index),
        None => (limit.clone(), table(limit)),
    };
    limits.iter().map(with_table).collect()
}

/// Merges the rules of a site with those of all sites. The site's own rules come first where the first match counts.
/// Its field edits come last.
fn joined(site: &RulesConfig, all: &RulesConfig) -> RulesConfig {
    RulesConfig {
        // Internal paths come first, so that no `allow` opens them.
        clients: [&site.internals, &all.internals, &site.clients, &all.clients].map(|rules| &rules[..]).concat(),
        internals: Vec::new(),
        rate_limits: chained(&site.rate_limits, &all.rate_limits),
        request_limits: chained(&site.request_limits, &all.request_limits),
        auto_bans: chained(&site.auto_bans, &all.auto_bans),
        bots: site.bots.clone().or_else(|| all.bots.clone()),
        rewrites: chained(&site.rewrites, &all.rewrites),
        redirects_to_https: site.redirects_to_https.or(all.redirects_to_https),
        canonical_host: site.canonical_host.clone().or(all.canonical_host.clone()),
        cors: site.cors.clone().or(all.cors.clone()),
        strict_transport_security: site.strict_transport_security.clone().or(all.strict_transport_security.clone()),
        passwords: chained(&site.passwords, &all.passwords),
        forward_auths: chained(&site.forward_auths, &all.forward_auths),
        request_fields: chained(&all.request_fields, &site.request_fields),
        response_fields: chained(&all.response_fields, &site.response_fields),
    }
}

/// Adds the guard pattern and other state to a rule.
fn guarded<R: Clone, T>(rule: &R, path: &PathPattern, with: T) -> (R, GuardPattern, T) {
    (rule.clone(), GuardPattern::new(path), with)
}

fn chained<T: Clone>(first: &[T], then: &[T]) -> Vec<T> {
    first.iter().chain(then).cloned().collect()
}

/// Origin of a path that rules are applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathOrigin {
    /// The client has sent it.
    Client,
    /// A rule, a handler or a script has led to it.
    Server,
}

impl SharedRules {
    /// Configuration of the rules.
    pub(super) fn rules(&self) -> &RulesConfig {
        &self.rules
    }

    /// True if no rule restricts, redirects or edits requests before handlers get them, rewrites and bots aside.
    pub(super) fn is_without_guards(&self) -> bool {
        let RulesConfig { cors, passwords, forward_auths, request_fields, .. } = &self.rules;
        self.clients.is_empty()
            && self.rate_limits.is_empty()
            && self.request_limits.is_empty()
            && !self.https.redirects()
            && cors.is_none()
            && passwords.is_empty()
            && forward_auths.is_empty()
            && request_fields.is_empty()
            && self.scripts.is_empty()
            && !self.readings.is_needed()
    }

    /// Access rules, in order.
    pub(super) fn client_rules(&self) -> &[(ClientRule, GuardPattern, AddressSet)] {
        &self.clients
    }

    /// Limits of rate, and of requests in progress.
    #[expect(clippy::type_complexity, reason = "both lists have the same form")]
    pub(super) fn limits(&self) -> (&[Guarded<RateLimit, RateTable>], &[Guarded<RequestLimit, CountTable>]) {
        (&self.rate_limits, &self.request_limits)
    }

    /// Bans of clients whose requests are rejected too often.
    pub(super) fn auto_bans(&self) -> &AutoBans {
        &self.auto_bans
    }

    /// Handling of bots; `None` if it is off.
    pub(super) fn bots(&self) -> Option<&Arc<SharedBots>> {
        self.bots.as_ref()
    }

    pub(super) fn https(&self) -> &Https {
        &self.https
    }

    pub(super) fn password_store(&self, rule: usize) -> Option<&Arc<PasswordStore>> {
        self.stores[rule].as_ref()
    }

    pub(super) fn password_checks(&self) -> &Arc<PasswordChecks> {
        &self.checks
    }

    /// True if they use lists or files, which are kept for the next configuration.
    fn has_files(&self) -> bool {
        self.bots.is_some() || self.stores.iter().any(Option::is_some)
    }

    /// Pattern of each rule of forward authentication.
    pub(super) fn auth_paths(&self) -> &[GuardPattern] {
        &self.auth_paths
    }

    pub(super) fn password_paths(&self) -> &[GuardPattern] {
        &self.password_paths
    }

    /// Returns the first address rule that matches a client and a path; `None` if no rule matches.
    pub(super) fn rule_for_client(
        &self,
        routed: &Routed<'_>,
        client: LogClient,
        path: GuardedPath<'_>,
        origin: PathOrigin,
    ) -> Option<&ClientRule> {
        self.rules_for_client(routed, client, path, origin).next().map(|(rule, _)| rule)
    }

    /// Returns the address rules that match a client and a path, with their patterns, in order.
    pub(super) fn rules_for_client(
        &self,
        routed: &Routed<'_>,
        client: LogClient,
        path: GuardedPath<'_>,
        origin: PathOrigin,
    ) -> impl Iterator<Item = (&ClientRule, &GuardPattern)> {
        let fitting = move |(rule, pattern, set): &&(ClientRule, GuardPattern, AddressSet)| {
            let fits = if rule.is_allowed { fits_path } else { fits_as_read };
            let is_open = rule.is_internal && origin == PathOrigin::Server;
            !is_open && set.has(client) && pattern.holds_for(path) && fits(&rule.conditions, routed, path.path())
        };
        self.clients.iter().filter(fitting).map(|(rule, pattern, _)| (rule, pattern))
    }

    /// Returns the paths that guards are evaluated for in addition to a path. These are the readings of other servers,
    /// and scripts that the path continues after.
    pub(super) fn other_paths(&self, path: &[u8]) -> Vec<OtherPath> {
        let scripts = self.scripts.iter().flat_map(|pattern| script_paths(pattern, path));
        self.readings.of(path, scripts.filter(|script| *script != path))
    }

    /// Counts a request in all limits that apply to one of the paths, except limits that apply to a path in `before`.
    pub(super) fn take_limits<'p, P: Iterator<Item = GuardedPath<'p>>>(
        &self,
        routed: &Routed<'_>,
        paths: impl Fn() -> P,
        before: &[GuardedPath<'_>],
        visit: &Visit,
    ) -> Result<(), Box<BuiltResponse>> {
        let is_for = |pattern: &GuardPattern, when: Option<&Condition>| {
            let holds = |path: GuardedPath<'_>| pattern.holds_for(path) && may_hold(when, routed, path.path());
            paths().any(holds) && !before.iter().any(|path| holds(*path))
        };
        let key = |key: &LimitKey| self.hasher.of_request(key, routed, visit.client());
        for (limit, _, table) in
            self.rate_limits.iter().filter(|(limit, pattern, _)| is_for(pattern, limit.when.as_ref()))
        {
            if let Err(wait) = table.take(key(&limit.key), routed.now.monotonic_ms) {
                self.reject(Limit::RateLimit, limit.status, limit.is_dry_run, wait, visit)?;
            }
        }
        for (limit, _, table) in
            self.request_limits.iter().filter(|(limit, pattern, _)| is_for(pattern, limit.when.as_ref()))
        {
            match table.take(key(&limit.key), limit.requests_max) {
                Some(permit) => visit.hold(permit),
                None => self.reject(Limit::RequestLimit, limit.status, limit.is_dry_run, RETRY_AFTER, visit)?,
            }
        }
        Ok(())
    }

    fn reject(
        &self,
        limit: Limit,
        status: Status,
        is_dry_run: bool,
        wait: Duration,
        visit: &Visit,
    ) -> Result<(), Box<BuiltResponse>> {
        if is_dry_run {
            let client = match visit.client() {
                LogClient::Ip(address) => address.ip().to_string(),
                LogClient::Unix => "unix".into(),
            };
            self.server_log.warn(
                event(
                    "limit exceeded in dry run",
                    &[("limit", &limit.name()), ("client", &client), ("status", &status.code())],
                ),
                "remove `dry-run` to reject such requests",
            );
            return Ok(());
        }
        visit.note_limit(limit);
        let reason = if limit == Limit::RateLimit { "`rate-limit`" } else { "`request-limit`" };
        let mut response = BuiltResponse::rejection(status, reason);
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        response.fields.push("Retry-After", seconds.to_string());
        Err(response)
    }
}

/// Retry-After if too many requests are in progress; the time at which one ends is unknown.
const RETRY_AFTER: Duration = Duration::from_secs(1);
