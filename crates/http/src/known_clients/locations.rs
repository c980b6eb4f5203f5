//! Countries and network operators of addresses, by databases in MaxMind's format.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use maxminddb::{PathElement, Reader};

use super::config::{ClientKnowledge, FileState};
use super::log::{ServerLog, event};

/// Largest database that is read, in bytes. Those of cities have some 120 MB.
const DATABASE_BYTES_MAX: u64 = 1 << 30;

/// Databases of places, shared by all workers.
#[derive(Debug, Default)]
pub struct Locations {
    countries: Database,
    systems: Database,
}

/// A database, which is replaced when its file changes.
#[derive(Debug, Default)]
struct Database {
    file: Option<PathBuf>,
    reader: RwLock<Option<Arc<Reader<Vec<u8>>>>>,
    state: Mutex<Option<FileState>>,
}

impl Locations {
    /// Reads the databases of a configuration. Those of `reused` go on if their files are the same.
    ///
    /// # Errors
    /// A file cannot be read, or is no such database.
    pub fn reuse(knowledge: &ClientKnowledge, reused: Option<&Arc<Self>>) -> io::Result<Arc<Self>> {
        let is_same =
            |known: &&Arc<Self>| known.countries.file == knowledge.countries && known.systems.file == knowledge.systems;
        if let Some(known) = reused.filter(is_same) {
            return Ok(Arc::clone(known));
        }
        let open = |file: &Option<PathBuf>| Database::open(file.clone());
        Ok(Arc::new(Self { countries: open(&knowledge.countries)?, systems: open(&knowledge.systems)? }))
    }

    /// True if there is no database.
    pub fn is_empty(&self) -> bool {
        self.countries.file.is_none() && self.systems.file.is_none()
    }

    /// Country of an address, as two letters; empty if it is unknown.
    pub fn country(&self, address: IpAddr) -> String {
        let by_path = |path: &[PathElement<'_>]| self.countries.find::<String>(address, path);
        let names = ["country", "registered_country"].into_iter();
        let mut found = names.filter_map(|name| by_path(&[PathElement::Key(name), PathElement::Key("iso_code")]));
        // Databases of other makers are flat.
        found.next().or_else(|| by_path(&[PathElement::Key("country_code")])).unwrap_or_default()
    }

    /// Number of the autonomous system of an address; empty if it is unknown.
    pub fn asn(&self, address: IpAddr) -> String {
        let number = self.systems.find::<u32>(address, &[PathElement::Key("autonomous_system_number")]);
        number.map(|number| number.to_string()).unwrap_or_default()
    }

    /// Reads the databases again whose files have changed.
    pub(super) fn look(&self, log: &ServerLog) {
        [&self.countries, &self.systems].into_iter().for_each(|database| database.look(log));
    }
}

impl Database {
    fn open(file: Option<PathBuf>) -> io::Result<Self> {
        let state = file.as_deref().and_then(FileState::of);
        let reader = file.as_deref().map(read).transpose()?.map(Arc::new);
        Ok(Self { file, reader: RwLock::new(reader), state: Mutex::new(state) })
    }

    fn find<T: for<'d> serde::Deserialize<'d>>(&self, address: IpAddr, path: &[PathElement<'_>]) -> Option<T> {
        let reader = self.reader.read().unwrap_or_else(PoisonError::into_inner);
        // A database that is malformed in some place tells nothing about it.
        reader.as_ref()?.lookup(address).ok()?.decode_path(path).ok()?
    }

    fn look(&self, log: &ServerLog) {
        let Some(file) = &self.file else { return };
        let state = FileState::of(file);
        if std::mem::replace(&mut *self.state.lock().unwrap_or_else(PoisonError::into_inner), state) == state {
            return;
        }
        match read(file) {
            Ok(reader) => {
                *self.reader.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(reader));
                log.info(event("database of addresses reloaded", &[("file", &file.display())]));
            }
            Err(error) => {
                log.warn(
                    event("database of addresses not reloaded", &[("error", &error)]),
                    "the last one stays in use",
                );
            }
        }
    }
}

fn read(file: &Path) -> io::Result<Reader<Vec<u8>>> {
    let named = |error: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", file.display()));
    let size = std::fs::metadata(file).map_err(|error| named(error.to_string()))?.len();
    if size > DATABASE_BYTES_MAX {
        return Err(named(format!("the file is larger than {} MiB", DATABASE_BYTES_MAX >> 20)));
    }
    let bytes = std::fs::read(file).map_err(|error| named(error.to_string()))?;
    Reader::from_source(bytes).map_err(|error| named(error.to_string()))
}
