use std::path::PathBuf;
use std::time::Duration;

/// The object cache.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheConfig {
    /// Memory for heads and bodies of all workers together, in bytes.
    pub memory_bytes_max: u64,
    /// True if the limit is lower on machines with little memory.
    pub memory_bytes_auto: bool,
    /// Files up to this size, in bytes, are kept in memory; larger ones as an open descriptor. See
    /// [`CacheConfig::small_file_bytes_max`].
    pub object_bytes_max: u64,
    /// Descriptors kept open for larger files.
    pub files_max: usize,
    /// Time for which an object is served before its file is checked.
    pub revalidate_after: Duration,
    /// Watch directories (inotify), so that changes are seen at once.
    pub watch: bool,
    /// Directories watched at a time; the others are looked at from time to time.
    pub watches_max: usize,
    /// Maximum number of open roots with `{host}`; others are opened again for each request that needs them.
    pub roots_max: usize,
    /// Cache of responses on disk.
    pub disk: Option<DiskCacheConfig>,
}

/// Cache of responses on disk: the tier under that in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCacheConfig {
    /// Directory of the files.
    pub directory: PathBuf,
    /// Size of all files, in bytes.
    pub bytes_max: u64,
    /// Number of files.
    pub files_max: usize,
}

impl CacheConfig {
    /// Size up to which a file is read into memory at its first use, in bytes.
    pub fn small_file_bytes_max(&self) -> u64 {
        self.object_bytes_max.min(64 << 10)
    }

    /// Size up to which a file is read into memory once it is in use, in bytes. It leaves room for at least 16 of them.
    pub fn large_file_bytes_max(&self) -> u64 {
        self.object_bytes_max.min(self.memory_bytes_max / 16)
    }
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            memory_bytes_max: 256 << 20,
            memory_bytes_auto: true,
            object_bytes_max: 1 << 20,
            files_max: 1024,
            revalidate_after: Duration::from_secs(1),
            watch: true,
            watches_max: 16 << 10,
            roots_max: 4096,
            disk: None,
        }
    }
}
