//! Lookups of upstreams' names for `check`.

use std::collections::BTreeSet;
use std::net::ToSocketAddrs;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use crate::config::UnresolvedName;

/// Time for all lookups together. A name without a result by then is not reported.
const LOOKUP_TIME: Duration = Duration::from_secs(3);

/// Lookups at the same time.
const THREADS_MAX: usize = 16;

/// Names that have no address. Says on standard error if name servers do not respond.
pub(super) fn look_up(names: Vec<String>) -> Vec<UnresolvedName> {
    let (found, unknown) = look_up_with(names, LOOKUP_TIME, |name| match (name, 0).to_socket_addrs() {
        Ok(_) => LookupResult::Resolved,
        Err(error) => result_of(&error.to_string()),
    });
    if let Some(first) = unknown.first() {
        let others = if unknown.len() > 1 { format!(" and {} others", unknown.len() - 1) } else { String::new() };
        eprintln!("tailcoat: note: no name server responded for `{first}`{others}; `--offline` looks up no names");
    }
    found
}

/// Result of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LookupResult {
    Resolved,
    Unresolved(String),
    /// No name server has responded.
    Unknown,
}

/// Result of an error of the system's resolver.
fn result_of(error: &str) -> LookupResult {
    let reason = error.strip_prefix("failed to lookup address information: ").unwrap_or(error);
    match reason {
        "Temporary failure in name resolution" | "Try again" => LookupResult::Unknown,
        reason => LookupResult::Unresolved(reason.to_owned()),
    }
}

/// Names without an address, and names without a result. Threads that still wait end with the process.
fn look_up_with(
    names: Vec<String>,
    time: Duration,
    resolve: impl Fn(&str) -> LookupResult + Clone + Send + 'static,
) -> (Vec<UnresolvedName>, Vec<String>) {
    let mut waiting: BTreeSet<String> = names.iter().cloned().collect();
    let (results, received) = mpsc::channel();
    let count = names.len().min(THREADS_MAX);
    let rest = Arc::new(Mutex::new(names));
    for _ in 0..count {
        let (rest, results, resolve) = (Arc::clone(&rest), results.clone(), resolve.clone());
        std::thread::spawn(move || {
            loop {
                let next = rest.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let Some(name) = next else { return };
                let result = resolve(&name);
                if results.send((name, result)).is_err() {
                    return;
                }
            }
        });
    }
    drop(results);
    let end = Instant::now() + time;
    let mut found = Vec::new();
    while let Ok((name, result)) = received.recv_timeout(end.saturating_duration_since(Instant::now())) {
        if result != LookupResult::Unknown {
            waiting.remove(&name);
        }
        if let LookupResult::Unresolved(reason) = result {
            found.push(UnresolvedName { name, reason });
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    (found, waiting.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_address_are_found() {
        let names: Vec<String> =
            (0..40).map(|number| format!("n{number}")).chain(["gone".into(), "late".into()]).collect();
        let (found, unknown) = look_up_with(names, Duration::from_secs(60), |name| match name {
            "gone" => result_of("failed to lookup address information: Name or service not known"),
            "late" => result_of("failed to lookup address information: Temporary failure in name resolution"),
            _ => LookupResult::Resolved,
        });
        let expect = UnresolvedName { name: "gone".into(), reason: "Name or service not known".into() };
        assert_eq!((found, unknown), (vec![expect], vec!["late".to_owned()]));
    }

    /// A resolver that never responds holds up no check.
    #[test]
    fn lookups_end_in_time() {
        let resolve = |_: &str| loop {
            std::thread::park();
        };
        let (found, unknown) = look_up_with(vec!["a".into()], Duration::from_millis(10), resolve);
        assert_eq!((found, unknown), (vec![], vec!["a".to_owned()]));
    }
}
