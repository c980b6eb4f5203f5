//! From the settings of a text to a [`Config`].
//!
//! A reader of a block ignores options that change another part of the configuration: the compiler has checked with
//! [`OptionSetter::fits`] that no table has one.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::caching::read_caching;
use super::expressions::ExpressionsDraft;
use super::reuse::{DEPTH_MAX, SnippetTable, canonical, expand, source_of};
use super::rules::{RulePosition, RulesDraft};
use super::text_map::{SitePlace, TextMap, UpstreamPlace};
use super::{ConfigReader, Setting};
use crate::check::blocks::limits_fault;
use crate::diagnostic::{ConfigFinding, ConfigSource, Diagnostics};
use crate::model::automatic::AutomaticCertificates;
use crate::model::confinement::Confinement;
use crate::model::ftp::FtpConfig;
use crate::model::gateway::{GatewayConfig, GatewayProtocol};
use crate::model::module::{ModuleConfig, ModulesConfig};
use crate::model::site_defaults::SiteDefaults;
use crate::model::store::StoreConfig;
use crate::model::traces::Traces;
use crate::model::upstream::UpstreamConfig;
use crate::model::*;
use crate::options::{OptionContext, OptionSetter, conditions};
use crate::regular_file::is_denied;
use crate::text::kdl::KdlDocument;
use crate::text::{parse_document, read_bytes, without_sites};
use crate::value::{Values, parse_server_address};

/// Most files that are read as parts of others: those that include each other would multiply.
const INCLUSIONS_MAX: usize = 20_000;

/// The option whose file is opened when the server starts.
const ACCESS_LOG: &str = "access-log";

/// The option that gives a site without a block.
const STATUS_LISTEN: &str = "status-listen";

/// A configuration that is being put together.
#[derive(Default)]
pub(crate) struct ConfigDraft {
    pub(crate) server: ServerSettings,
    pub(crate) limits: Limits,
    pub(crate) cache: CacheConfig,
    confinement: Confinement,
    pub(crate) automatic_certificates: AutomaticCertificates,
    modules: ModulesConfig,
    /// If there is such a block.
    traces: Option<Traces>,
    store: Option<StoreConfig>,
    shared: SiteDefaults,
    /// Place of the access log of all sites in the text.
    access_log_place: Option<RulePosition>,
    /// Place of `status-listen`.
    status_place: Option<RulePosition>,
    /// Places of blocks at the top level.
    blocks: Vec<(OptionContext, RulePosition)>,
    /// Of all sites.
    pub(crate) rules: RulesDraft,
    /// File options of all sites.
    files: Vec<FileSetting>,
    pub(crate) sites: Vec<SiteDraft>,
    pub(crate) upstreams: Vec<UpstreamDraft>,
    /// Files that were included, and directories that were looked through for them.
    pub(crate) included: Vec<PathBuf>,
    /// Maps and secrets.
    pub(crate) expressions: ExpressionsDraft,
    /// Snippets.
    snippets: SnippetTable,
    /// Files that are being read, each included by the one before.
    including: Vec<PathBuf>,
    /// Number of files that were read as parts of others.
    inclusions: usize,
    /// Skips sites.
    skips_sites: bool,
    /// Blocks and options that were given, to tell when one is given again by another file.
    given: Vec<(&'static str, Arc<ConfigSource>, Range<usize>)>,
}

/// A setting of how files are served, kept until it is known for which.
type FileSetting = (fn(&mut FilesConfig, &Values), Values);

/// A group of servers, and where in the text its name is.
pub(crate) struct UpstreamDraft {
    pub(crate) source: Arc<ConfigSource>,
    pub(crate) span: Range<usize>,
    /// True if everything in the block is valid.
    pub(crate) is_whole: bool,
    pub(crate) upstream: UpstreamConfig,
}

/// A site that is being put together.
pub(crate) struct SiteDraft {
    site: SiteConfig,
    /// Places of its parts in the text, except those of its rules.
    place: SitePlace,
    rules: RulesDraft,
    shared: SiteDefaults,
    files: Vec<FileSetting>,
    /// File options of each route that serves files, by index.
    route_files: Vec<(usize, Vec<FileSetting>)>,
    /// Gateways whose roots depend on the whole site.
    gateways: Vec<GatewayDraft>,
    /// The `ftp` of the site: configuration without files, and settings of its files.
    ftp: Option<(FtpConfig, Vec<FileSetting>)>,
    /// Routes after the site's own root.
    fallbacks: Vec<(RouteConfig, Range<usize>)>,
}

/// Scripts whose root is not known yet.
struct GatewayDraft {
    route: usize,
    gateway: GatewayConfig,
    /// If they have one of their own.
    root: Option<Vec<RootPiece>>,
    /// True if it is an application without files.
    is_application: bool,
}

impl ConfigDraft {
    /// One that passes sites over, also those of included files.
    pub(crate) fn without_sites() -> Self {
        Self { skips_sites: true, ..Self::default() }
    }

    /// Takes over all that a text says, and the files it includes.
    pub(crate) fn read(&mut self, source: &Arc<ConfigSource>, document: &KdlDocument, diagnostics: &mut Diagnostics) {
        self.snippets.collect(source, document, 0, diagnostics);
        self.including.push(canonical(Path::new(&source.name)));
        self.read_top(source, document, diagnostics);
        self.including.clear();
        self.included.append(&mut self.snippets.files);
    }

    fn read_top(&mut self, source: &Arc<ConfigSource>, document: &KdlDocument, diagnostics: &mut Diagnostics) {
        self.snippets.collect(source, document, DEPTH_MAX, diagnostics);
        let expanded = self.snippets.expanded(source, document, diagnostics);
        let document = expanded.as_ref().unwrap_or(document);
        for setting in (ConfigReader { source: source.clone(), diagnostics }).read(document, OptionContext::Top) {
            if !self.is_first(&setting, source, diagnostics) {
                continue;
            }
            match setting.option.set {
                OptionSetter::Block(OptionContext::Site) => {
                    self.sites.push(SiteDraft::read(source, &setting, diagnostics));
                }
                OptionSetter::Block(OptionContext::Upstream) => {
                    self.upstreams.push(UpstreamDraft::read(source, &setting, diagnostics));
                }
                OptionSetter::Block(OptionContext::Map) => self.expressions.read_map(source, &setting, diagnostics),
                OptionSetter::Secret => self.expressions.read_secret(source, &setting, diagnostics),
                OptionSetter::Block(OptionContext::Bots) => {
                    self.rules.add_bots(source, &setting, diagnostics);
                }
                OptionSetter::Block(place) => self.read_block(source, &setting, place, diagnostics),
                OptionSetter::Files(set) => self.files.push((set, setting.values)),
                OptionSetter::Shared(set) => {
                    set(&mut self.shared, &setting.values);
                    if setting.option.name == ACCESS_LOG {
                        self.access_log_place = Some((source.clone(), setting.span.clone()));
                    }
                }
                OptionSetter::Rules(set) => self.rules.add(set, &setting, source, diagnostics),
                OptionSetter::Include => self.include(source, &setting, diagnostics),
                // Uses were replaced before.
                OptionSetter::Reuse => {}
                OptionSetter::Server(_)
                | OptionSetter::Limits(_)
                | OptionSetter::Cache(_)
                | OptionSetter::Site(_)
                | OptionSetter::Upstream(_)
                | OptionSetter::Forward(_)
                | OptionSetter::Gateway(_)
                | OptionSetter::Module(_)
                | OptionSetter::Modules(_)
                | OptionSetter::Caching(_)
                | OptionSetter::Automatic(_)
                | OptionSetter::Confinement(_)
                | OptionSetter::Ftp(_)
                | OptionSetter::Map(_)
                | OptionSetter::Store(_)
                | OptionSetter::Traces(_)
                | OptionSetter::Bots(_) => {
                    // `OptionSetter::fits` keeps them out of this place.
                }
            }
        }
    }

    /// Returns `true` if no other file has this option; the reader checks within a file.
    fn is_first(&mut self, setting: &Setting<'_>, source: &Arc<ConfigSource>, diagnostics: &mut Diagnostics) -> bool {
        let name = setting.option.name;
        if setting.option.repeatable {
            return true;
        }
        if let Some((_, first, span)) = self.given.iter().find(|(known, ..)| *known == name) {
            let finding = ConfigFinding::new(setting.span.clone(), format!("`{name}` is given twice"), "again here")
                .related(first.clone(), span.clone(), "first here");
            diagnostics.error(source, finding);
            return false;
        }
        self.given.push((name, source.clone(), setting.span.clone()));
        true
    }

    fn read_block(
        &mut self,
        source: &Arc<ConfigSource>,
        setting: &Setting<'_>,
        place: OptionContext,
        diagnostics: &mut Diagnostics,
    ) {
        if place == OptionContext::Traces {
            self.traces.get_or_insert_default();
        }
        if place == OptionContext::Store {
            self.store.get_or_insert_default();
        }
        self.blocks.push((place, (source.clone(), setting.span.clone())));
        let Some(document) = setting.children else { return };
        for setting in (ConfigReader { source: source.clone(), diagnostics }).read(document, place) {
            if setting.option.name == STATUS_LISTEN {
                self.status_place = Some((source.clone(), setting.span.clone()));
            }
            match setting.option.set {
                OptionSetter::Server(set) => set(&mut self.server, &setting.values),
                OptionSetter::Limits(set) => set(&mut self.limits, &setting.values),
                OptionSetter::Cache(set) => set(&mut self.cache, &setting.values),
                OptionSetter::Automatic(set) => set(&mut self.automatic_certificates, &setting.values),
                OptionSetter::Modules(set) => set(&mut self.modules, &setting.values),
                OptionSetter::Confinement(set) => set(&mut self.confinement, &setting.values),
                OptionSetter::Store(set) => set(self.store.get_or_insert_default(), &setting.values),
                OptionSetter::Traces(set) => set(self.traces.get_or_insert_default(), &setting.values),
                _ => {}
            }
        }
    }

    /// The limits, if they do not contradict each other.
    ///
    /// # Errors
    ///
    /// The contradiction.
    pub(crate) fn into_limits(self) -> Result<Limits, Diagnostics> {
        let place = self.blocks.into_iter().find(|(block, _)| *block == OptionContext::Limits);
        let (Some(fault), Some((_, place))) = (limits_fault(&self.limits), place) else { return Ok(self.limits) };
        let mut diagnostics = Diagnostics::default();
        TextMap::at(place).note(vec![fault], &mut diagnostics);
        Err(diagnostics)
    }

    fn include(&mut self, source: &Arc<ConfigSource>, setting: &Setting<'_>, diagnostics: &mut Diagnostics) {
        let pattern = setting.values.file("file").unwrap_or_default();
        let files = match expand(&pattern) {
            Ok(files) => files,
            Err(error) => {
                let message = format!("{}: {error}", pattern.display());
                let finding = ConfigFinding::new(setting.span.clone(), message, "included here");
                let finding = finding.denied(is_denied(&error));
                return diagnostics.error(source, finding);
            }
        };
        if files != [pattern.clone()] {
            // Others may come.
            self.included.extend(pattern.parent().map(Path::to_owned));
        }
        self.included.extend_from_slice(&files);
        for file in files {
            let canonical = canonical(&file);
            self.inclusions += 1;
            if self.inclusions > INCLUSIONS_MAX {
                let message = format!("more than {INCLUSIONS_MAX} files are included; files may include each other");
                let finding = ConfigFinding::new(setting.span.clone(), message, "included here");
                let help = "include each file in one place".to_owned();
                // One report is enough.
                if self.inclusions == INCLUSIONS_MAX + 1 {
                    diagnostics.error(source, finding.help(help));
                }
                return;
            }
            if self.including.contains(&canonical) || self.including.len() >= DEPTH_MAX {
                let names: Vec<_> = self.including.iter().map(|file| file.display().to_string()).collect();
                let message = match self.including.contains(&canonical) {
                    true => format!("{} includes itself", file.display()),
                    false => format!("files include each other more than {DEPTH_MAX} deep"),
                };
                let finding = ConfigFinding::new(setting.span.clone(), message, "included here");
                let help = format!("remove this; the files are {}", names.join(", "));
                diagnostics.error(source, finding.help(help));
                continue;
            }
            match read_bytes(&file) {
                Ok(bytes) => {
                    let mut included = source_of(&file, bytes, diagnostics);
                    if self.skips_sites {
                        included = without_sites(&included);
                    }
                    if let Some(document) = parse_document(&included, diagnostics) {
                        self.including.push(canonical);
                        self.read_top(&included, &document, diagnostics);
                        self.including.pop();
                    }
                }
                Err(error) => {
                    let message = format!("{}: {error}", file.display());
                    let finding = ConfigFinding::new(setting.span.clone(), message, "included here");
                    let finding = finding.denied(is_denied(&error));
                    diagnostics.error(source, finding);
                }
            }
        }
    }

    /// The sites' settings in full: what a site doesn't say is as for all sites.
    pub(crate) fn complete(&mut self) {
        let mut files = FilesConfig::below("");
        self.files.iter().for_each(|(set, values)| set(&mut files, values));
        for draft in &mut self.sites {
            draft.complete(&self.shared, &files, self.limits.body_bytes_max, &self.automatic_certificates);
        }
    }

    /// Named upstreams, and those of single server addresses, each with its place or that of its first use.
    fn all_upstreams(&mut self) -> (Vec<UpstreamConfig>, Vec<UpstreamPlace>) {
        let (mut upstreams, mut places) = (Vec::new(), Vec::new());
        for draft in std::mem::take(&mut self.upstreams) {
            places.push(UpstreamPlace { position: (draft.source, draft.span), is_whole: draft.is_whole });
            upstreams.push(draft.upstream);
        }
        let mut known: HashSet<String> = upstreams.iter().map(|upstream| upstream.name.clone()).collect();
        let mut add = |target: &String, position: &dyn Fn() -> RulePosition| {
            if !known.contains(target)
                && let Ok(address) = parse_server_address(target, Path::new("/"))
            {
                known.insert(target.clone());
                upstreams.push(UpstreamConfig::of_server(address));
                places.push(UpstreamPlace { position: position(), is_whole: true });
            }
        };
        for draft in &self.sites {
            for (index, route) in draft.site.routes.iter().enumerate() {
                let span = draft.place.routes.get(index).unwrap_or(&draft.place.span);
                let position = || (draft.place.source.clone(), span.clone());
                match &route.handler {
                    HandlerConfig::Forward(forward) => forward.targets().for_each(|target| add(target, &position)),
                    HandlerConfig::Gateway(gateway, _) => add(&gateway.forward.upstream, &position),
                    HandlerConfig::Files(_)
                    | HandlerConfig::Respond(_)
                    | HandlerConfig::Module(_)
                    | HandlerConfig::Status(_) => {}
                }
            }
        }
        let rules = self.sites.iter().map(|draft| &draft.rules).chain([&self.rules]);
        for (target, position) in rules.flat_map(RulesDraft::auth_upstreams) {
            add(target, &|| position.clone());
        }
        (upstreams, places)
    }

    /// The configuration, and the places of its parts in the text that begins in `source`.
    pub(crate) fn into_config(mut self, source: &Arc<ConfigSource>, has_errors: bool) -> (Config, TextMap) {
        let (upstreams, upstream_places) = self.all_upstreams();
        let status_site = status_site(&self.server.status_listen);
        let start = (source.clone(), 0..0);
        let status_place = status_site.as_ref().map(|_| SitePlace::at(self.status_place.unwrap_or(start.clone())));
        // After all sites for HTTP, so that they can share files.
        let (ftp_sites, ftp_places): (Vec<_>, Vec<_>) =
            self.sites.iter().filter_map(|draft| Some((draft.ftp_site()?, draft.place()))).unzip();
        // Requests are logged unless the configuration says where, or that they are not.
        let default_log = !self.sites.iter().any(|site| site.shared.access_log.is_some());
        let with_http = self.sites.into_iter().filter(|draft| !draft.is_ftp_only());
        let (http_sites, http_places): (Vec<_>, Vec<_>) = with_http.map(SiteDraft::into_parts).unzip();
        let access_log = self.shared.access_log.unwrap_or_else(|| default_log.then(AccessLog::default));
        let map = TextMap {
            start,
            blocks: self.blocks,
            upstreams: upstream_places,
            sites: http_places.into_iter().chain(status_place).chain(ftp_places).collect(),
            rules: self.rules.positions,
            access_log: self.access_log_place,
            has_errors,
        };
        let config = Config {
            server: self.server,
            limits: self.limits,
            confinement: self.confinement,
            cache: self.cache,
            modules: self.modules,
            upstreams: upstreams.into_iter().map(Arc::new).collect(),
            automatic_certificates: self.automatic_certificates,
            sites: http_sites.into_iter().chain(status_site).chain(ftp_sites).map(Arc::new).collect(),
            rules: self.rules.rules,
            access_log,
            traces: self.traces,
            store: self.store,
            maps: self.expressions.maps(),
            secrets: self.expressions.secrets(),
            routes: None,
        };
        (config, map)
    }
}

/// The site of `status-listen`, if there is one. Its requests are not logged: they are the operator's own.
fn status_site(listen: &[Listen]) -> Option<SiteConfig> {
    let route = |path: &str, kind| {
        let path = PathPattern::Exact(path.to_owned());
        RouteConfig::new(path, HandlerConfig::Status(StatusView { kind }))
    };
    (!listen.is_empty()).then(|| SiteConfig {
        listen: listen.to_vec(),
        default: true,
        routes: vec![route("/metrics", StatusViewKind::Metrics), route("/", StatusViewKind::Page)],
        access_log_off: true,
        ..SiteConfig::default()
    })
}

impl UpstreamDraft {
    fn read(source: &Arc<ConfigSource>, setting: &Setting<'_>, diagnostics: &mut Diagnostics) -> Self {
        let errors_before = diagnostics.error_count();
        let mut upstream = UpstreamConfig::named(setting.values.text("name").unwrap_or_default());
        if let Some(document) = setting.children {
            for inner in (ConfigReader { source: source.clone(), diagnostics }).read(document, OptionContext::Upstream)
            {
                if let OptionSetter::Upstream(set) = inner.option.set {
                    set(&mut upstream, &inner.values);
                }
            }
        }
        let is_whole = setting.is_whole && diagnostics.error_count() == errors_before;
        Self { source: source.clone(), span: setting.span.clone(), is_whole, upstream }
    }
}

impl SiteDraft {
    fn read(source: &Arc<ConfigSource>, setting: &Setting<'_>, diagnostics: &mut Diagnostics) -> Self {
        let errors_before = diagnostics.error_count();
        let mut draft = Self {
            site: SiteConfig::default(),
            place: SitePlace::at((source.clone(), setting.span.clone())),
            rules: RulesDraft::default(),
            shared: SiteDefaults::default(),
            files: Vec::new(),
            route_files: Vec::new(),
            gateways: Vec::new(),
            ftp: None,
            fallbacks: Vec::new(),
        };
        draft.place.soundness.is_placed = setting.is_whole;
        draft.site.names = setting.values.hosts("name");
        draft.place.names = setting.values.all("name").map(|(_, span)| span.clone()).collect();
        if let Some(document) = setting.children {
            draft.read_options(source, document, diagnostics);
        }
        draft.place.soundness.is_whole = setting.is_whole && diagnostics.error_count() == errors_before;
        draft.place.soundness.own_error_pages = draft.place.error_pages.len();
        draft
    }

    fn read_options(&mut self, source: &Arc<ConfigSource>, document: &KdlDocument, diagnostics: &mut Diagnostics) {
        let settings = (ConfigReader { source: source.clone(), diagnostics }).read(document, OptionContext::Site);
        // Without an address of its own, a site with certificates listens elsewhere than one without.
        let places = |name: &str| matches!(name, "listen" | "certificate" | "default");
        let given = document.nodes.iter().filter(|node| places(&node.name)).count();
        self.place.soundness.is_placed &=
            given == settings.iter().filter(|setting| places(setting.option.name)).count();
        for setting in settings {
            match setting.option.set {
                OptionSetter::Site(set) => {
                    set(&mut self.site, &setting.values);
                    if setting.option.name == "listen" {
                        self.place.listen = setting.span.clone();
                    }
                }
                OptionSetter::Shared(set) => {
                    set(&mut self.shared, &setting.values);
                    if setting.option.name == ACCESS_LOG {
                        self.place.access_log = Some(setting.span.clone());
                    }
                }
                OptionSetter::Rules(set) => self.rules.add(set, &setting, source, diagnostics),
                OptionSetter::Files(set) => self.files.push((set, setting.values)),
                OptionSetter::Block(OptionContext::Forward) => self.read_forward(source, &setting, diagnostics),
                OptionSetter::Block(OptionContext::FastCgi) => {
                    self.read_gateway(GatewayProtocol::FastCgi, source, &setting, diagnostics)
                }
                OptionSetter::Block(OptionContext::Cgi) => {
                    self.read_gateway(GatewayProtocol::Cgi, source, &setting, diagnostics)
                }
                OptionSetter::Block(OptionContext::Scgi) => {
                    self.read_gateway(GatewayProtocol::Scgi, source, &setting, diagnostics)
                }
                OptionSetter::Block(OptionContext::Uwsgi) => {
                    self.read_gateway(GatewayProtocol::Uwsgi, source, &setting, diagnostics)
                }
                OptionSetter::Block(OptionContext::Module) => self.read_module(source, &setting, diagnostics),
                OptionSetter::Block(OptionContext::Ftp) => self.read_ftp(source, &setting, diagnostics),
                OptionSetter::Block(OptionContext::Files) => self.read_files(source, &setting, diagnostics),
                OptionSetter::Block(OptionContext::Bots) => {
                    self.rules.add_bots(source, &setting, diagnostics);
                }
                _ => {}
            }
            self.place.routes.resize(self.site.routes.len(), setting.span.clone());
            self.place.certificates.resize(self.site.tls.certificates.len(), setting.span.clone());
            self.place.error_pages.resize(self.shared.error_pages.len(), setting.span);
        }
    }

    /// A `files` block: a route whose files are known when the whole site is.
    fn read_files(&mut self, source: &Arc<ConfigSource>, setting: &Setting<'_>, diagnostics: &mut Diagnostics) {
        let mut settings: Vec<FileSetting> = Vec::new();
        if setting.values.get("root").is_some() {
            settings.push((
                |files, values| files.root.pieces = values.root("root").unwrap_or_default(),
                setting.values.clone(),
            ));
        }
        if let Some(document) = setting.children {
            for inner in (ConfigReader { source: source.clone(), diagnostics }).read(document, OptionContext::Files) {
                if let OptionSetter::Files(set) = inner.option.set {
                    settings.push((set, inner.values));
                }
            }
        }
        let path = setting.values.path_pattern("path").unwrap_or(PathPattern::Any);
        self.route_files.push((self.site.routes.len(), settings));
        self.add_route(path, HandlerConfig::Files(FilesConfig::below("")), setting);
    }

    /// An `ftp` block, whose files are known when the whole site is.
    fn read_ftp(&mut self, source: &Arc<ConfigSource>, setting: &Setting<'_>, diagnostics: &mut Diagnostics) {
        let (mut ftp, mut files) =
            (FtpConfig::new(setting.values.listens("address"), FilesConfig::below("")), Vec::new());
        if let Some(document) = setting.children {
            for inner in (ConfigReader { source: source.clone(), diagnostics }).read(document, OptionContext::Ftp) {
                match inner.option.set {
                    OptionSetter::Ftp(set) => set(&mut ftp, &inner.values),
                    OptionSetter::Files(set) => files.push((set, inner.values)),
                    _ => {}
                }
            }
        }
        self.ftp = Some((ftp, files));
        self.place.ftp = Some(setting.span.clone());
    }

    /// Part of the site that speaks FTP, if there is one.
    fn ftp_site(&self) -> Option<SiteConfig> {
        let (ftp, _) = self.ftp.as_ref()?;
        let SiteConfig { names, default, tls, access_log, access_log_off, unlogged, .. } = self.site.clone();
        let has_tls = tls.is_automatic || !tls.certificates.is_empty();
        Some(SiteConfig {
            names,
            listen: ftp.listen.clone(),
            default,
            tls_listen: if has_tls { ftp.listen.clone() } else { Vec::new() },
            tls,
            access_log,
            access_log_off,
            unlogged,
            ftp: Some(Arc::new(ftp.clone())),
            // FTP has none; checks tell so.
            rules: self.site.rules.clone(),
            ..SiteConfig::default()
        })
    }

    /// Places of the site's parts.
    fn place(&self) -> SitePlace {
        SitePlace { rules: self.rules.positions.clone(), ..self.place.clone() }
    }

    /// The site, and the places of its parts.
    fn into_parts(self) -> (SiteConfig, SitePlace) {
        (self.site, SitePlace { rules: self.rules.positions, ..self.place })
    }

    /// True if the site speaks FTP and no HTTP.
    fn is_ftp_only(&self) -> bool {
        self.ftp.is_some() && self.site.listen.is_empty()
    }

    fn read_forward(&mut self, source: &Arc<ConfigSource>, setting: &Setting<'_>, diagnostics: &mut Diagnostics) {
        let mut forward = ForwardConfig::to(setting.values.text("to").unwrap_or_default());
        if let Some(document) = setting.children {
            for inner in (ConfigReader { source: source.clone(), diagnostics }).read(document, OptionContext::Forward) {
                match inner.option.set {
                    OptionSetter::Forward(set) => set(&mut forward, &inner.values),
                    OptionSetter::Block(OptionContext::Caching) => {
                        forward.cache = Some(read_caching(source, &inner, diagnostics))
                    }
                    _ => {}
                }
            }
        }
        let handler = HandlerConfig::Forward(Box::new(forward));
        match setting.values.path_pattern("path") {
            Some(path) => self.add_route(path, handler, setting),
            None => {
                let conditions = conditions(&setting.values);
                let route = RouteConfig { path: PathPattern::Any, conditions, handler };
                self.fallbacks.push((route, setting.span.clone()));
            }
        }
    }

    /// A route whose root is known when the whole site is.
    fn read_gateway(
        &mut self,
        protocol: GatewayProtocol,
        source: &Arc<ConfigSource>,
        setting: &Setting<'_>,
        diagnostics: &mut Diagnostics,
    ) {
        let place = match protocol {
            GatewayProtocol::Cgi => OptionContext::Cgi,
            GatewayProtocol::FastCgi => OptionContext::FastCgi,
            GatewayProtocol::Scgi => OptionContext::Scgi,
            GatewayProtocol::Uwsgi => OptionContext::Uwsgi,
        };
        let path = setting.values.path_pattern("path").unwrap_or(PathPattern::Any);
        let mut gateway = GatewayConfig::new(protocol, path, setting.values.text("to").unwrap_or_default());
        let mut is_application = matches!(protocol, GatewayProtocol::Scgi | GatewayProtocol::Uwsgi);
        if let Some(document) = setting.children {
            for inner in (ConfigReader { source: source.clone(), diagnostics }).read(document, place) {
                is_application |= inner.option.name == "application";
                match inner.option.set {
                    OptionSetter::Gateway(set) => set(&mut gateway, &inner.values),
                    OptionSetter::Forward(set) => set(&mut gateway.forward, &inner.values),
                    OptionSetter::Block(OptionContext::Caching) => {
                        gateway.forward.cache = Some(read_caching(source, &inner, diagnostics));
                    }
                    _ => {}
                }
            }
        }
        let root = setting.values.root("root");
        self.gateways.push(GatewayDraft {
            route: self.site.routes.len(),
            gateway: gateway.clone(),
            root,
            is_application,
        });
        let handler = HandlerConfig::Gateway(Arc::new(gateway), GatewayPart::Scripts);
        self.add_route(PathPattern::Any, handler, setting);
    }

    fn add_route(&mut self, path: PathPattern, handler: HandlerConfig, setting: &Setting<'_>) {
        self.site.routes.push(RouteConfig { path, conditions: conditions(&setting.values), handler });
    }

    /// Gives gateways their roots; their fallbacks come after all files.
    fn complete_gateways(&mut self, files: &FilesConfig) {
        for draft in std::mem::take(&mut self.gateways) {
            let mut gateway = draft.gateway;
            gateway.forward.body_bytes_max = gateway.forward.body_bytes_max.or(self.site.body_bytes_max);
            gateway.forward.compression.inherit(files);
            if !draft.is_application {
                let own = draft.root.map(|pieces| RootPattern { pieces, ..files.root.clone() });
                gateway.root = own.or_else(|| files.root.is_given().then(|| files.root.clone()));
            }
            let (gateway, span) = (Arc::new(gateway), self.place.routes[draft.route].clone());
            if !gateway.has_files() {
                self.site.routes[draft.route].path = gateway.scripts.clone();
            } else if gateway.has_rest() {
                let handler = HandlerConfig::Gateway(Arc::clone(&gateway), GatewayPart::Rest);
                // Before a `forward` without a path, which has what nothing else can answer.
                let at =
                    self.fallbacks.iter().take_while(|(route, _)| matches!(route.handler, HandlerConfig::Gateway(..)));
                let at = at.count();
                let conditions = self.site.routes[draft.route].conditions.clone();
                self.fallbacks.insert(at, (RouteConfig { path: PathPattern::Any, conditions, handler }, span));
            }
            self.site.routes[draft.route].handler = HandlerConfig::Gateway(gateway, GatewayPart::Scripts);
        }
    }

    fn read_module(&mut self, source: &Arc<ConfigSource>, setting: &Setting<'_>, diagnostics: &mut Diagnostics) {
        let mut module = ModuleConfig::at(setting.values.file("file").unwrap_or_default());
        if let Some(document) = setting.children {
            for inner in (ConfigReader { source: source.clone(), diagnostics }).read(document, OptionContext::Module) {
                if let OptionSetter::Module(set) = inner.option.set {
                    set(&mut module, &inner.values);
                }
            }
        }
        let path = setting.values.path_pattern("path").unwrap_or(PathPattern::Any);
        self.add_route(path, HandlerConfig::Module(Box::new(module)), setting);
    }

    fn complete(
        &mut self,
        shared: &SiteDefaults,
        of_all: &FilesConfig,
        body_bytes_max: BodyBytesMax,
        automatic: &AutomaticCertificates,
    ) {
        let mut files = of_all.clone();
        for (set, values) in &self.files {
            set(&mut files, values);
        }
        for (route, settings) in &self.route_files {
            let mut files = files.clone();
            for (set, values) in settings {
                set(&mut files, values);
            }
            self.site.routes[*route].handler = HandlerConfig::Files(files);
        }
        let with_paths = self.site.routes.len();
        if files.root.is_given() {
            self.site.routes.push(RouteConfig::new(PathPattern::Any, HandlerConfig::Files(files.clone())));
            self.place.routes.push(self.place.span.clone());
        }
        if let Some((ftp, settings)) = &mut self.ftp {
            ftp.files = files.clone();
            settings.iter().for_each(|(set, values)| set(&mut ftp.files, values));
        }
        self.site.rules = self.rules.rules.clone();
        self.site.body_bytes_max = self.site.body_bytes_max.or(body_bytes_max);
        self.complete_gateways(&files);
        for (route, span) in self.fallbacks.drain(..) {
            self.site.routes.push(route);
            self.place.routes.push(span);
        }
        for route in &mut self.site.routes {
            let (of_handler, compression) = match &mut route.handler {
                HandlerConfig::Forward(forward) => (&mut forward.body_bytes_max, &mut forward.compression),
                HandlerConfig::Module(module) => (&mut module.body_bytes_max, &mut module.compression),
                HandlerConfig::Files(_)
                | HandlerConfig::Respond(_)
                | HandlerConfig::Gateway(..)
                | HandlerConfig::Status(_) => continue,
            };
            *of_handler = of_handler.or(self.site.body_bytes_max);
            compression.inherit(&files);
        }
        if self.site.orders_routes {
            self.order_routes(with_paths);
        }
        let (listen, tls) = (&self.site.listen, &mut self.site.tls);
        let names = &self.site.names;
        let are_usual = !names.is_empty() && names.iter().all(|name| automatic.can_be_got(name));
        let has_http = self.ftp.is_none()
            || !listen.is_empty()
            || !self.site.routes.is_empty()
            || !self.site.rules.rewrites.is_empty();
        let can_have_tls = (listen.is_empty() && has_http) || !self.site.tls_listen.is_empty();
        tls.is_automatic = can_have_tls && tls.certificates.is_empty() && tls.automatic.unwrap_or(are_usual);
        self.place.soundness.has_default_listen = listen.is_empty() && has_http;
        if self.place.soundness.has_default_listen {
            self.site.listen = crate::value::all_addresses(HTTP_PORT);
            if self.site.tls.is_automatic || !self.site.tls.certificates.is_empty() {
                self.site.tls_listen = crate::value::all_addresses(HTTPS_PORT);
                self.site.listen.extend_from_slice(&self.site.tls_listen);
                self.site.rules.redirects_to_https.get_or_insert(true);
            }
        }
        self.site.default |= self.site.names.is_empty();
        self.site.error_pages = self.shared.error_pages.iter().chain(&shared.error_pages).cloned().collect();
        let of_log = if self.shared.access_log.is_some() { &self.shared } else { shared };
        self.site.log_filter = of_log.log_filter.clone().map(Arc::new);
        // Where there is no log of all sites, there is nothing to turn off.
        self.site.access_log_off = self.shared.access_log == Some(None) && matches!(shared.access_log, Some(Some(_)));
        self.site.access_log = self.shared.access_log.clone().flatten();
        self.site.unlogged = shared.unlogged.iter().chain(&self.shared.unlogged).cloned().collect();
    }
}

impl SiteDraft {
    /// Puts the first `count` routes in order, the most specific first.
    fn order_routes(&mut self, count: usize) {
        let mut routes: Vec<_> = self.site.routes.drain(..count).zip(self.place.routes.drain(..count)).collect();
        routes.sort_by_cached_key(|(route, _)| route.specificity());
        let (routes, spans): (Vec<_>, Vec<_>) = routes.into_iter().unzip();
        self.site.routes.splice(0..0, routes);
        self.place.routes.splice(0..0, spans);
    }
}

/// Port of a site without `listen`.
const HTTP_PORT: u16 = 80;

/// TLS port of a site without `listen` that has certificates.
const HTTPS_PORT: u16 = 443;
