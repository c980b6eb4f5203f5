//! Content that waits for a slow peer: in memory first, then in files without names.
//!
//! A [`Spool`] holds one message. The [`SpoolStore`] counts what all spools hold, of each client and of the process, and
//! knows the directory of their files.

mod account;
mod file;
mod pieces;
mod spooled;
#[cfg(test)]
mod tests;

pub use self::account::{SpoolLimits, SpoolStore};
pub use self::spooled::{Full, MessageLimits, Spool};
