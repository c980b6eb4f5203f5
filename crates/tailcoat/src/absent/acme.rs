//! In the place of automatic certificates.

use std::io;
use std::sync::Arc;

use crate::config::{Config, OptionalPart};
use crate::log::ServerLog;
use crate::spawner::Spawner;
use crate::tls::AllTls;

/// Certificates that a configuration needs: none.
#[derive(Debug)]
pub struct AcmePlan(());

/// Thread that keeps certificates, of which there is none.
#[derive(Debug)]
pub enum Keeper {}

/// Places nothing.
///
/// # Errors
/// The configuration has automatic certificates.
pub fn place_certificates(config: &mut Config) -> io::Result<bool> {
    match config.sites.iter().any(|site| site.tls.is_automatic) {
        true => Err(io::Error::other(OptionalPart::Acme.absence())),
        false => Ok(false),
    }
}

impl AcmePlan {
    /// Plans nothing.
    ///
    /// # Errors
    /// Never.
    pub fn new(_: &Config, _: &AllTls, _: Option<Arc<Spawner>>) -> io::Result<Self> {
        Ok(Self(()))
    }

    /// True, because there are no certificates.
    pub fn is_empty(&self) -> bool {
        true
    }
}

impl Keeper {
    /// Starts nothing.
    ///
    /// # Errors
    /// Always.
    pub fn start(_: AcmePlan, _: ServerLog) -> io::Result<Self> {
        Err(io::Error::other(OptionalPart::Acme.absence()))
    }

    /// Applies nothing, because there is no thread.
    pub fn apply(&self, _: AcmePlan) {
        match *self {}
    }
}
