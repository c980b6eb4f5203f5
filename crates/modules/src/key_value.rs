//! Key-value stores for modules (`wasi:keyvalue`): in memory, one per module.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasmtime::Result;
use wasmtime::component::{HasData, Linker, Resource, ResourceTable, ResourceTableError};

use self::bindings::wasi::keyvalue::{atomics, batch, store};

/// Approximate overhead of an entry beyond its key and value, in bytes.
const ENTRY_BYTES: usize = 64;

/// Limit of keys per listing.
const LISTED_KEYS_MAX: usize = 1_000;

/// Interfaces; the tests' guests have the same file.
mod bindings {
    wasmtime::component::bindgen!({
        path: "src/key_value.wit",
        imports: { default: trappable },
        with: { "wasi:keyvalue/store.bucket": super::Bucket },
        trappable_error_type: { "wasi:keyvalue/store.error" => super::Error },
    });
}

/// Store that all instances of a module share.
#[derive(Debug)]
pub(super) struct KeyValueStore {
    bytes_max: usize,
    entries: Mutex<KeyValueEntries>,
}

#[derive(Debug, Default)]
struct KeyValueEntries {
    by_key: HashMap<String, Vec<u8>>,
    bytes: usize,
}

impl KeyValueStore {
    /// Empty store of at most `bytes_max` bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, entries: Mutex::default() }
    }

    fn entries(&self) -> MutexGuard<'_, KeyValueEntries> {
        // A panic under the lock leaves no entry half changed.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeyValueEntries {
    fn set(&mut self, key: String, value: Vec<u8>, bytes_max: usize) -> Result<(), Error> {
        let before = self.by_key.get(&key).map_or(0, |value| entry_bytes(&key, value));
        let bytes = self.bytes - before + entry_bytes(&key, &value);
        if bytes > bytes_max {
            return Err(Error::Other("the store is full".to_owned()));
        }
        self.bytes = bytes;
        self.by_key.insert(key, value);
        Ok(())
    }

    fn delete(&mut self, key: &str) {
        if let Some((key, value)) = self.by_key.remove_entry(key) {
            self.bytes -= entry_bytes(&key, &value);
        }
    }

    fn increment(&mut self, key: String, delta: u64, bytes_max: usize) -> Result<u64, Error> {
        let number = match self.by_key.get(&key) {
            None => 0,
            Some(value) => {
                let number = str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
                number.ok_or_else(|| Error::Other("the value is not a number".to_owned()))?
            }
        };
        let number =
            number.checked_add(delta).ok_or_else(|| Error::Other("the number would be too large".to_owned()))?;
        self.set(key, number.to_string().into_bytes(), bytes_max)?;
        Ok(number)
    }

    /// Keys in order, starting at this cursor, and the cursor of the next page.
    fn list(&self, cursor: u64) -> (Vec<String>, Option<u64>) {
        let start = usize::try_from(cursor).unwrap_or(usize::MAX).min(self.by_key.len());
        let mut keys: Vec<&String> = self.by_key.keys().collect();
        keys.sort_unstable();
        let end = keys.len().min(start + LISTED_KEYS_MAX);
        let next = (end < keys.len()).then_some(end as u64);
        (keys[start..end].iter().map(|key| (*key).clone()).collect(), next)
    }
}

fn entry_bytes(key: &str, value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY_BYTES
}

/// Store that an instance has opened.
#[expect(unreachable_pub, reason = "generated code exports it again")]
pub struct Bucket(Arc<KeyValueStore>);

/// Errors as the interface defines them.
#[expect(unreachable_pub, reason = "generated code exports it again")]
pub enum Error {
    NoSuchStore,
    AccessDenied,
    Other(String),
    Trap(wasmtime::Error),
}

impl From<ResourceTableError> for Error {
    fn from(error: ResourceTableError) -> Self {
        Self::Trap(error.into())
    }
}

/// View of an instance: the module's store, if granted, and the instance's handles.
pub(super) struct KeyValueView<'a> {
    pub(super) store: Option<&'a Arc<KeyValueStore>>,
    pub(super) table: &'a mut ResourceTable,
}

struct HasView;

impl HasData for HasView {
    type Data<'a> = KeyValueView<'a>;
}

/// Defines the interfaces.
pub(super) fn add_to_linker<T: Send + 'static>(
    linker: &mut Linker<T>,
    view: fn(&mut T) -> KeyValueView<'_>,
) -> Result<()> {
    store::add_to_linker::<_, HasView>(linker, view)?;
    atomics::add_to_linker::<_, HasView>(linker, view)?;
    batch::add_to_linker::<_, HasView>(linker, view)
}

impl KeyValueView<'_> {
    fn of(&self, bucket: &Resource<Bucket>) -> Result<&KeyValueStore, Error> {
        Ok(&self.table.get(bucket)?.0)
    }
}

impl store::Host for KeyValueView<'_> {
    fn open(&mut self, identifier: String) -> Result<Resource<Bucket>, Error> {
        let store = self.store.ok_or(Error::AccessDenied)?;
        match identifier.as_str() {
            "" | "default" => Ok(self.table.push(Bucket(Arc::clone(store)))?),
            _ => Err(Error::NoSuchStore),
        }
    }

    fn convert_error(&mut self, error: Error) -> Result<store::Error> {
        match error {
            Error::NoSuchStore => Ok(store::Error::NoSuchStore),
            Error::AccessDenied => Ok(store::Error::AccessDenied),
            Error::Other(message) => Ok(store::Error::Other(message)),
            Error::Trap(error) => Err(error),
        }
    }
}

impl store::HostBucket for KeyValueView<'_> {
    fn get(&mut self, bucket: Resource<Bucket>, key: String) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.of(&bucket)?.entries().by_key.get(&key).cloned())
    }

    fn set(&mut self, bucket: Resource<Bucket>, key: String, value: Vec<u8>) -> Result<(), Error> {
        let store = self.of(&bucket)?;
        store.entries().set(key, value, store.bytes_max)
    }

    fn delete(&mut self, bucket: Resource<Bucket>, key: String) -> Result<(), Error> {
        self.of(&bucket)?.entries().delete(&key);
        Ok(())
    }

    fn exists(&mut self, bucket: Resource<Bucket>, key: String) -> Result<bool, Error> {
        Ok(self.of(&bucket)?.entries().by_key.contains_key(&key))
    }

    fn list_keys(&mut self, bucket: Resource<Bucket>, cursor: Option<u64>) -> Result<store::KeyResponse, Error> {
        let (keys, cursor) = self.of(&bucket)?.entries().list(cursor.unwrap_or(0));
        Ok(store::KeyResponse { keys, cursor })
    }

    fn drop(&mut self, bucket: Resource<Bucket>) -> Result<()> {
        self.table.delete(bucket)?;
        Ok(())
    }
}

impl atomics::Host for KeyValueView<'_> {
    fn increment(&mut self, bucket: Resource<Bucket>, key: String, delta: u64) -> Result<u64, Error> {
        let store = self.of(&bucket)?;
        store.entries().increment(key, delta, store.bytes_max)
    }
}

impl batch::Host for KeyValueView<'_> {
    fn get_many(
        &mut self,
        bucket: Resource<Bucket>,
        keys: Vec<String>,
    ) -> Result<Vec<Option<(String, Vec<u8>)>>, Error> {
        let entries = self.of(&bucket)?.entries();
        Ok(keys.into_iter().map(|key| entries.by_key.get(&key).cloned().map(|value| (key, value))).collect())
    }

    fn set_many(&mut self, bucket: Resource<Bucket>, key_values: Vec<(String, Vec<u8>)>) -> Result<(), Error> {
        let store = self.of(&bucket)?;
        let mut entries = store.entries();
        key_values.into_iter().try_for_each(|(key, value)| entries.set(key, value, store.bytes_max))
    }

    fn delete_many(&mut self, bucket: Resource<Bucket>, keys: Vec<String>) -> Result<(), Error> {
        let mut entries = self.of(&bucket)?.entries();
        keys.iter().for_each(|key| entries.delete(key));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted() {
        let mut entries = KeyValueEntries::default();
        let bytes_max = 2 * ENTRY_BYTES + 10;
        let mut set = |key: &str, bytes: usize| entries.set(key.to_owned(), vec![b'x'; bytes], bytes_max).is_ok();
        assert!(set("a", 4));
        assert!(set("b", 4));
        assert!(!set("b", 5));
        assert!(!set("c", 0));
        assert!(set("a", 3));
        assert!(set("b", 5));
        entries.delete("a");
        entries.delete("a");
        entries.delete("b");
        assert_eq!((entries.bytes, entries.by_key.len()), (0, 0));
    }

    #[test]
    fn increments() {
        let mut entries = KeyValueEntries::default();
        assert_eq!(entries.increment("n".into(), 3, 1_000).ok(), Some(3));
        assert_eq!(entries.increment("n".into(), 4, 1_000).ok(), Some(7));
        assert_eq!(entries.increment("n".into(), u64::MAX, 1_000).ok(), None);
        assert_eq!(entries.by_key["n"], b"7");
        entries.set("t".into(), b"text".to_vec(), 1_000).ok();
        assert_eq!(entries.increment("t".into(), 1, 1_000).ok(), None);
    }

    #[test]
    fn keys_are_listed_in_pieces() {
        let mut entries = KeyValueEntries::default();
        for number in 0..LISTED_KEYS_MAX + 2 {
            assert!(entries.set(format!("{number:05}"), Vec::new(), usize::MAX).is_ok());
        }
        let (first, next) = entries.list(0);
        assert_eq!((first.len(), next), (LISTED_KEYS_MAX, Some(LISTED_KEYS_MAX as u64)));
        assert_eq!(entries.list(next.unwrap()), (vec!["01000".to_owned(), "01001".to_owned()], None));
        assert_eq!(entries.list(u64::MAX), (vec![], None));
    }
}
