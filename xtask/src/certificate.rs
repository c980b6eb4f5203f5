//! Self-signed certificates of servers that checks start.

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes `certificate.pem` and `key.pem` for localhost, with a key that openssl makes with these options.
pub(crate) fn write(directory: &Path, key: &[&str]) -> Result<(), Box<dyn Error>> {
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=localhost", "-newkey"]).args(key);
    openssl.arg("-keyout").arg(directory.join("key.pem")).arg("-out").arg(directory.join("certificate.pem"));
    let status = openssl.stderr(Stdio::null()).status().map_err(|error| format!("cannot start openssl: {error}"))?;
    if status.success() { Ok(()) } else { Err("openssl cannot make a certificate".into()) }
}
