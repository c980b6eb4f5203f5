//! Buffers for content that a slow peer has not read: in memory first, then in unnamed files.
//!
//! A [`Spool`] holds one message. The [`SpoolStore`] counts what all spools hold, by client and in total, and knows the
//! directory of their files.

mod account;
mod file;
mod pieces;
mod spooled;
#[cfg(test)]
mod tests;
mod uploads;

pub use self::account::{SpoolLimits, SpoolStore};
pub use self::spooled::{Full, MessageLimits, Spool};
