//! Lists of a site: crawlers with their addresses, keys of agents, rules of robots.txt.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::UNIX_EPOCH;

use bots::agents::{Crawler, Crawlers};
use bots::ranges::parse_ranges;
use bots::robots::Robots;
use bots::signature::AgentKeys;

use super::AddressSet;
use super::config::{BotsConfig, ClientPattern, FileState};
use super::log::{ServerLog, event};

/// Lists, as workers use them.
#[derive(Debug, Default)]
pub struct BotLists {
    /// Crawlers by name.
    pub crawlers: Crawlers,
    /// Addresses of crawlers that publish them, by index of the crawler.
    ranges: Vec<Option<AddressSet>>,
    /// Keys of agents that sign requests.
    pub keys: AgentKeys,
    /// Rules for crawlers.
    pub robots: Option<Robots>,
}

/// Largest list that instances share, in bytes.
const SHARED_BYTES_MAX: u64 = 256 << 10;

/// Content of a list that instances share, with the time of its last change in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListContent {
    /// Time of the last change of the file.
    pub modified_ms: u64,
    /// Content of the file.
    pub text: String,
}

/// Lists of other instances, by name.
type ListContents = BTreeMap<String, ListContent>;

/// Lists of a site, which are replaced when their files change.
#[derive(Debug)]
pub struct SiteLists {
    config: Arc<BotsConfig>,
    /// Lists of other instances. Those that are newer than the file here replace it.
    shared: Mutex<ListContents>,
    /// True if a file has changed and cannot be used.
    is_faulty: AtomicBool,
    /// Increased with each replacement.
    version: AtomicU64,
    current: Mutex<(Arc<BotLists>, Vec<Option<FileState>>)>,
}

impl BotLists {
    fn load(config: &BotsConfig, shared: &ListContents) -> io::Result<Self> {
        let invalid = |file: &std::path::Path, message: String| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: {message}", file.display()))
        };
        let read = |file: &Path| std::fs::read(file).map_err(|error| invalid(file, error.to_string()));
        let read_list = |file: &Path, name: &str| match shared.get(name) {
            Some(list) if modified_ms(file).is_some_and(|own_ms| own_ms < list.modified_ms) => {
                Ok(list.text.clone().into_bytes())
            }
            _ => read(file),
        };
        let mut lists = Self::default();
        for crawler in &config.crawlers {
            let known = lists.crawlers.index(&crawler.name).and_then(|index| lists.crawlers.get(index));
            let domains = match &crawler.domains[..] {
                [] => known.map(|known| known.domains.clone()).unwrap_or_default(),
                domains => domains.to_vec(),
            };
            let index = lists.crawlers.add(Crawler { name: crawler.name.clone(), domains });
            if let Some(file) = &crawler.ranges {
                let networks = parse_ranges(&read_list(file, &ranges_name(&crawler.name))?)
                    .map_err(|error| invalid(file, error.0))?;
                let patterns: Vec<_> = networks.into_iter().map(ClientPattern::Network).collect();
                if lists.ranges.len() <= index {
                    lists.ranges.resize_with(index + 1, || None);
                }
                lists.ranges[index] = Some(AddressSet::new(&patterns));
            }
        }
        for (agent, file) in &config.agent_keys {
            lists.keys.add(agent, &read_list(file, &keys_name(agent))?).map_err(|error| invalid(file, error.0))?;
        }
        if let Some(file) = &config.robots {
            lists.robots = Some(Robots::parse(&read(file)?));
        }
        Ok(lists)
    }

    /// Addresses that a crawler publishes; `None` if it publishes none here.
    pub fn ranges(&self, crawler: usize) -> Option<&AddressSet> {
        self.ranges.get(crawler)?.as_ref()
    }
}

impl SiteLists {
    /// Reads the lists of a configuration. Lists of `reused` with the same settings go on.
    ///
    /// # Errors
    /// A file cannot be read or is malformed.
    pub fn reuse(config: &Arc<BotsConfig>, reused: Option<&Arc<Self>>) -> io::Result<Arc<Self>> {
        let states = file_states(config);
        if let Some(known) = reused.filter(|known| known.config == *config) {
            let lists = BotLists::load(config, &known.shared())?;
            known.replace(Arc::new(lists), states);
            return Ok(Arc::clone(known));
        }
        let shared = ListContents::new();
        let lists = Arc::new(BotLists::load(config, &shared)?);
        Ok(Arc::new(Self {
            config: Arc::clone(config),
            shared: Mutex::new(shared),
            is_faulty: AtomicBool::new(false),
            version: AtomicU64::new(0),
            current: Mutex::new((lists, states)),
        }))
    }

    /// True if these are the lists of a configuration.
    pub fn is_of(&self, config: &BotsConfig) -> bool {
        *self.config == *config
    }

    /// Lists in use, if they are newer than `version`, which is set then.
    pub fn newer_than(&self, version: &mut Option<u64>) -> Option<Arc<BotLists>> {
        let now = self.version.load(Ordering::Acquire);
        if *version == Some(now) {
            return None;
        }
        *version = Some(now);
        Some(Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner).0))
    }

    /// Reads the files again if they have changed. If one cannot be used, the lists stay.
    pub fn look(&self, log: &ServerLog) {
        let states = file_states(&self.config);
        {
            let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            if current.1 == states {
                return;
            }
            // A file that stays wrong is reported once.
            current.1.clone_from(&states);
        }
        let loaded = BotLists::load(&self.config, &self.shared());
        self.is_faulty.store(loaded.is_err(), Ordering::Relaxed);
        match loaded {
            Ok(lists) => {
                self.replace(Arc::new(lists), states);
                log.info(event("lists of bots reloaded", &[]));
            }
            Err(error) => {
                log.warn(event("lists of bots not reloaded", &[("error", &error)]), "the last ones stay in use")
            }
        }
    }

    /// Names of the lists that instances may share: addresses of crawlers and keys of agents, which are the same for all.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.files().map(|(name, _)| name)
    }

    fn files(&self) -> impl Iterator<Item = (String, &Path)> {
        let crawlers = self.config.crawlers.iter();
        let ranges = crawlers.filter_map(|crawler| Some((ranges_name(&crawler.name), crawler.ranges.as_deref()?)));
        let keys = self.config.agent_keys.iter().map(|(agent, file)| (keys_name(agent), file.as_path()));
        ranges.chain(keys)
    }

    /// Time of the last change of a list in use, in milliseconds since 1970; `None` if the site has no such list.
    pub fn modified_ms(&self, name: &str) -> Option<u64> {
        let (_, file) = self.files().find(|(known, _)| known == name)?;
        let other_ms = self.shared().get(name).map(|list| list.modified_ms);
        modified_ms(file).max(other_ms)
    }

    /// Content of the file of a list; `None` if the site has no such list, or it cannot be shared.
    pub fn own_content(&self, name: &str) -> Option<ListContent> {
        let (_, file) = self.files().find(|(known, _)| known == name)?;
        let modified_ms = modified_ms(file).filter(|_| !self.is_faulty.load(Ordering::Relaxed))?;
        let is_short = std::fs::metadata(file).is_ok_and(|about| about.len() <= SHARED_BYTES_MAX);
        is_short.then(|| std::fs::read_to_string(file).ok())?.map(|text| ListContent { modified_ms, text })
    }

    /// Applies a list of another instance that is newer than the one in use. Returns false if it cannot be used; then the
    /// lists stay.
    pub fn apply(&self, name: &str, list: ListContent, log: &ServerLog) -> bool {
        if self.modified_ms(name).is_none_or(|own_ms| own_ms >= list.modified_ms) {
            return true;
        }
        if list.text.len() as u64 > SHARED_BYTES_MAX {
            return false;
        }
        let mut shared = self.shared();
        let before = shared.insert(name.to_owned(), list);
        match BotLists::load(&self.config, &shared) {
            Ok(lists) => {
                drop(shared);
                self.replace(Arc::new(lists), file_states(&self.config));
                log.info(event("list of another instance applied", &[("list", &name)]));
                true
            }
            Err(error) => {
                match before {
                    Some(before) => shared.insert(name.to_owned(), before),
                    None => shared.remove(name),
                };
                log.warn(
                    event("list of another instance not applied", &[("list", &name), ("error", &error)]),
                    "the last one stays in use",
                );
                false
            }
        }
    }

    fn shared(&self) -> MutexGuard<'_, ListContents> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace(&self, lists: Arc<BotLists>, states: Vec<Option<FileState>>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = (lists, states);
        self.version.fetch_add(1, Ordering::Release);
    }
}

fn file_states(config: &BotsConfig) -> Vec<Option<FileState>> {
    config.files().map(|file| FileState::of(file)).collect()
}

fn ranges_name(crawler: &str) -> String {
    format!("ranges {crawler}")
}

fn keys_name(agent: &str) -> String {
    format!("agent-keys {agent}")
}

/// Time of the last change of a file, in milliseconds since 1970.
fn modified_ms(file: &Path) -> Option<u64> {
    let modified = std::fs::metadata(file).ok()?.modified().ok()?;
    u64::try_from(modified.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}
