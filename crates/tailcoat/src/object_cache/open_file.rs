use std::os::fd::OwnedFd;

/// What tells one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change of its content, in nanoseconds since 1970.
    pub modified_ns: i128,
    /// Time of the last change of its inode, in nanoseconds since 1970.
    pub changed_ns: i128,
}

/// An open regular file, and what it was when it was opened.
#[derive(Debug)]
pub struct OpenFile {
    /// Its descriptor.
    pub fd: OwnedFd,
    /// What it was.
    pub identity: FileIdentity,
}
