//! FTP: the model.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::{FilesConfig, Listen};

/// Files that a site serves over FTP.
#[derive(Clone, Debug, PartialEq)]
pub struct FtpConfig {
    /// Addresses of control connections.
    pub listen: Vec<Listen>,
    /// Addresses of these on which connections begin with TLS (implicit TLS).
    pub implicit_listen: Vec<Listen>,
    /// True if clients must use TLS, for transfers as well.
    pub needs_tls: bool,
    /// True if a data connection with TLS must resume the session of its control connection.
    pub needs_session_reuse: bool,
    /// Files below the root.
    pub files: FilesConfig,
    /// Users and hashes of their passwords; `None` if there are none.
    pub users: Option<PathBuf>,
    /// Choice of anonymous logins; `None` allows them if there are no users.
    pub anonymous: Option<bool>,
    /// True if each user sees only the directory of that name below the root.
    pub has_homes: bool,
    /// Clients that may change the tree.
    pub writers: FtpWriters,
    /// Maximum length of an uploaded file, in bytes.
    pub upload_bytes_max: u64,
    /// True if the received part of an incomplete upload is kept, so that the client can resume it.
    pub keeps_partial: bool,
    /// Maximum rate of a session, in bytes a second.
    pub session_rate_max: Option<u64>,
    /// Maximum rate of all sessions of the site together, in bytes a second.
    pub site_rate_max: Option<u64>,
    /// True if clients may use active mode: the server connects to the client.
    pub has_active_mode: bool,
    /// Ports of passive data connections; `None` for the default range.
    pub passive_ports: Option<RangeInclusive<u16>>,
    /// Address in replies to PASV, if it is not that of the control connection.
    pub passive_address: Option<Ipv4Addr>,
    /// Maximum time without a command or transfer.
    pub idle_timeout: Duration,
    /// Maximum time until the client opens a data connection.
    pub data_timeout: Duration,
    /// Entries of a listing; further ones are left out.
    pub entries_max: usize,
}

/// Clients that may change the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FtpWriters {
    /// The tree is read-only.
    Off,
    /// Users with a password.
    Users,
    /// All clients, anonymous ones too.
    All,
}

impl FtpConfig {
    /// Configuration with defaults for these addresses and files.
    pub fn new(listen: Vec<Listen>, files: FilesConfig) -> Self {
        Self {
            listen,
            implicit_listen: Vec::new(),
            needs_tls: false,
            needs_session_reuse: true,
            files,
            users: None,
            anonymous: None,
            has_homes: false,
            writers: FtpWriters::Off,
            upload_bytes_max: 1 << 30,
            keeps_partial: false,
            session_rate_max: None,
            site_rate_max: None,
            has_active_mode: false,
            passive_ports: None,
            passive_address: None,
            idle_timeout: Duration::from_secs(300),
            data_timeout: Duration::from_secs(30),
            entries_max: 10_000,
        }
    }
    /// Returns `true` if clients may log in without a password.
    pub fn is_anonymous(&self) -> bool {
        self.anonymous.unwrap_or(self.users.is_none())
    }
}
