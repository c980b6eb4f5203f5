//! Lists of a site: crawlers with their addresses, keys of agents, rules of robots.txt.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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

/// Lists of a site, which are replaced when their files change.
#[derive(Debug)]
pub struct SiteLists {
    config: Arc<BotsConfig>,
    /// Increased with each replacement.
    version: AtomicU64,
    current: Mutex<(Arc<BotLists>, Vec<Option<FileState>>)>,
}

impl BotLists {
    fn load(config: &BotsConfig) -> io::Result<Self> {
        let invalid = |file: &std::path::Path, message: String| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: {message}", file.display()))
        };
        let read = |file: &std::path::Path| std::fs::read(file).map_err(|error| invalid(file, error.to_string()));
        let mut lists = Self::default();
        for crawler in &config.crawlers {
            let known = lists.crawlers.index(&crawler.name).and_then(|index| lists.crawlers.get(index));
            let domains = match &crawler.domains[..] {
                [] => known.map(|known| known.domains.clone()).unwrap_or_default(),
                domains => domains.to_vec(),
            };
            let index = lists.crawlers.add(Crawler { name: crawler.name.clone(), domains });
            if let Some(file) = &crawler.ranges {
                let networks = parse_ranges(&read(file)?).map_err(|error| invalid(file, error.0))?;
                let patterns: Vec<_> = networks.into_iter().map(ClientPattern::Network).collect();
                if lists.ranges.len() <= index {
                    lists.ranges.resize_with(index + 1, || None);
                }
                lists.ranges[index] = Some(AddressSet::new(&patterns));
            }
        }
        for (agent, file) in &config.agent_keys {
            lists.keys.add(agent, &read(file)?).map_err(|error| invalid(file, error.0))?;
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
        let lists = Arc::new(BotLists::load(config)?);
        if let Some(known) = reused.filter(|known| known.config == *config) {
            known.replace(lists, states);
            return Ok(Arc::clone(known));
        }
        Ok(Arc::new(Self {
            config: Arc::clone(config),
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
        match BotLists::load(&self.config) {
            Ok(lists) => {
                self.replace(Arc::new(lists), states);
                log.info(event("lists of bots reloaded", &[]));
            }
            Err(error) => {
                log.warn(event("lists of bots not reloaded", &[("error", &error)]), "the last ones stay in use")
            }
        }
    }

    fn replace(&self, lists: Arc<BotLists>, states: Vec<Option<FileState>>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = (lists, states);
        self.version.fetch_add(1, Ordering::Release);
    }
}

fn file_states(config: &BotsConfig) -> Vec<Option<FileState>> {
    config.files().map(|file| FileState::of(file)).collect()
}
