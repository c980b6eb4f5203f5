//! Reload of certificates when their files change, and warnings before they expire.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch::Receiver;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::SiteTls;
use crate::config::{FileState, Tls};
use crate::log::{ServerLog, event};

/// Time before the end of a certificate at which warnings start.
const WARNING_TIME: Duration = Duration::from_secs(7 * 86_400);

/// Interval between warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(86_400);

/// Sites whose files are checked, and the interval.
#[derive(Clone, Debug)]
pub struct KeptSites {
    /// The sites.
    pub sites: Vec<Arc<SiteTls>>,
    /// Interval between checks.
    pub interval: Duration,
}

/// Checks the files of these sites forever, and reloads changed ones.
pub async fn keep(mut kept: Receiver<KeptSites>, log: ServerLog) {
    // By their address. They are held, so that no other site gets it.
    let mut warned: HashMap<usize, Arc<SiteTls>> = HashMap::new();
    let mut until_warning = Duration::ZERO;
    loop {
        let KeptSites { sites, interval } = kept.borrow_and_update().clone();
        if until_warning.is_zero() {
            warned.clear();
            until_warning = WARNING_INTERVAL;
        }
        let new = sites.iter().filter(|site| !warned.contains_key(&Arc::as_ptr(site).addr()));
        new.for_each(|site| warn_of_end(site, &log));
        warned = sites.iter().map(|site| (Arc::as_ptr(site).addr(), Arc::clone(site))).collect();
        tokio::select! {
            () = sleep(interval) => {}
            changed = kept.changed() => match changed {
                Ok(()) => continue,
                // The server has ended.
                Err(_) => return,
            },
        }
        until_warning = until_warning.saturating_sub(interval);
        // Disks can be slow, and RSA keys take time.
        let log = log.clone();
        // A panic changes nothing.
        let _ = spawn_blocking(move || sites.iter().for_each(|site| look(site, &log))).await;
    }
}

/// Reloads the files of a site if they have changed.
fn look(site: &SiteTls, log: &ServerLog) {
    if site.has_new_files() {
        reload(site, log);
    }
}

/// Reads the files of a site again, and logs the result.
pub fn reload(site: &SiteTls, log: &ServerLog) {
    match site.reload() {
        Ok(()) => {
            site.note_try(None);
            let names = site.config().certificates.iter().map(|files| files.certificate.display().to_string());
            log.info(event("certificates reloaded", &[("files", &names.collect::<Vec<_>>().join(","))]));
            warn_of_end(site, log);
        }
        // Certificate and key are rarely replaced at the same instant; the next check may find both.
        Err(error) => {
            site.note_try(Some(error.to_string()));
            log.warn(
                event("reloading certificates failed", &[("error", &error)]),
                "the certificates in use stay in use",
            );
        }
    }
}

fn warn_of_end(site: &SiteTls, log: &ServerLog) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64;
    let left = site.not_after_unix_seconds().saturating_sub(now);
    if left > WARNING_TIME.as_secs() as i64 {
        return;
    }
    let names = site.config().certificates.iter().map(|files| files.certificate.display().to_string());
    let names = names.collect::<Vec<_>>().join(",");
    let (what, left_hours) = match left {
        ..=0 => ("certificate expired", String::new()),
        left => ("certificate is about to expire", (left / 3_600).to_string()),
    };
    log.warn(
        event(what, &[("files", &names), ("left_hours", &left_hours)]),
        "replace the file; the server loads it without a restart",
    );
}

/// States of all files that these settings name.
pub(super) fn file_states(config: &Tls) -> Vec<Option<FileState>> {
    let authorities = config.client_certificates.iter().map(|asked| asked.authorities.as_path());
    config.certificates.iter().flat_map(|files| files.paths()).chain(authorities).map(FileState::of).collect()
}
