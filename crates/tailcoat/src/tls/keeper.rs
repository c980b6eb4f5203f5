//! Certificates as fresh as their files.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::SiteTls;
use crate::log::ServerLog;

/// Before a certificate ends, there are warnings from so long before.
const WARNING_TIME: Duration = Duration::from_secs(7 * 86_400);

/// How often it is warned of a certificate that ends.
const WARNING_INTERVAL: Duration = Duration::from_secs(86_400);

/// What tells one state of a file from another: device, inode, size, and when it was changed.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// Looks at the files of all sites at this interval, for ever, and has those read again that have changed.
pub async fn keep(sites: Vec<Arc<SiteTls>>, interval: Duration, log: ServerLog) {
    let mut stamps: Vec<Vec<Stamp>> = sites.iter().map(|site| stamps_of(site)).collect();
    let mut until_warning = Duration::ZERO;
    loop {
        if until_warning.is_zero() {
            sites.iter().for_each(|site| warn_of_end(site, &log));
            until_warning = WARNING_INTERVAL;
        }
        sleep(interval).await;
        until_warning = until_warning.saturating_sub(interval);
        for (site, known) in sites.iter().zip(&mut stamps) {
            // Files can be on a disk that is slow, and keys of RSA take their time.
            let (looked_at, before, log) = (Arc::clone(site), known.clone(), log.clone());
            let looked = spawn_blocking(move || look(&looked_at, before, &log)).await;
            // A panic leaves everything as it was.
            *known = looked.unwrap_or_else(|_| std::mem::take(known));
        }
    }
}

/// Has the files of a site read again, if they have changed; returns their stamps.
fn look(site: &SiteTls, before: Vec<Stamp>, log: &ServerLog) -> Vec<Stamp> {
    let now = stamps_of(site);
    if now == before {
        return before;
    }
    match site.reload() {
        Ok(()) => {
            let names = site.config().certificates.iter().map(|files| files.certificate.display().to_string());
            log.info(format_args!("new certificates are in use: {}", names.collect::<Vec<_>>().join(", ")));
            warn_of_end(site, log);
        }
        // Certificate and key are seldom replaced at the same instant: the next look may find both.
        Err(error) => {
            log.warn(format_args!("new certificates can't be used: {error}"), "those that are in use are kept");
        }
    }
    now
}

fn warn_of_end(site: &SiteTls, log: &ServerLog) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64;
    let left = site.not_after_unix_seconds().saturating_sub(now);
    if left > WARNING_TIME.as_secs() as i64 {
        return;
    }
    let names = site.config().certificates.iter().map(|files| files.certificate.display().to_string());
    let names = names.collect::<Vec<_>>().join(", ");
    let when = match left {
        ..=0 => "has expired".to_owned(),
        left => format!("expires in {} hours", left / 3_600),
    };
    log.warn(
        format_args!("a certificate {when}: {names}"),
        "put a new one in its place; it is taken up without a restart",
    );
}

fn stamps_of(site: &SiteTls) -> Vec<Stamp> {
    let config = site.config();
    let authorities = config.client_certificates.iter().map(|asked| asked.authorities.as_path());
    config.certificates.iter().flat_map(|files| files.paths()).chain(authorities).map(stamp).collect()
}

fn stamp(path: &Path) -> Stamp {
    let file = std::fs::metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec()))
}
