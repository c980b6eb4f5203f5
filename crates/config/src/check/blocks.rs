//! Checks of blocks at the top level: settings of one block that contradict each other.

use std::ops::Range;

use super::tls::check_automatic;
use crate::model::automatic::AutomaticCertificates;
use crate::model::store::{SharedState, StoreConfig, StorePlace};
use crate::model::tls::load_authority;
use crate::model::traces::Traces;
use crate::model::{Limits, ServerSettings};
use crate::options::OptionContext;
use crate::read::ConfigFinding;
use crate::regular_file::is_denied;

/// Blocks whose settings are checked together.
pub(crate) struct Blocks<'a> {
    pub(crate) server: &'a ServerSettings,
    pub(crate) limits: &'a Limits,
    pub(crate) automatic: &'a AutomaticCertificates,
    pub(crate) traces: Option<&'a Traces>,
    pub(crate) store: Option<&'a StoreConfig>,
}

impl Blocks<'_> {
    /// Blocks that have such checks.
    pub(crate) const CHECKED: [OptionContext; 5] = [
        OptionContext::Server,
        OptionContext::Limits,
        OptionContext::AutomaticCertificates,
        OptionContext::Traces,
        OptionContext::Store,
    ];

    /// Contradictions in a block, which stands here in the text, and how to fix them.
    pub(crate) fn faults(&self, block: OptionContext, span: &Range<usize>) -> Vec<ConfigFinding> {
        match block {
            OptionContext::Server => server_fault(self.server, span).into_iter().collect(),
            OptionContext::Limits => limits_fault(self.limits, span).into_iter().collect(),
            OptionContext::AutomaticCertificates => check_automatic(self.automatic, span),
            OptionContext::Traces => self.traces.and_then(|traces| traces_fault(traces, span)).into_iter().collect(),
            OptionContext::Store => self.store.and_then(|store| store_fault(store, span)).into_iter().collect(),
            _ => Vec::new(),
        }
    }
}

/// Options that the engine does not support, and files that cannot be read.
fn store_fault(store: &StoreConfig, span: &Range<usize>) -> Option<ConfigFinding> {
    let fault =
        |message: String, help: &str| ConfigFinding::new(span.clone(), message, "in here").help(help.to_owned());
    let Some(place) = &store.place else {
        return Some(fault("the store has no `url`".to_owned(), "write `url \"valkey://HOST\"`, or a directory"));
    };
    let engine = place.engine();
    if let Some(state) = store.shares.iter().flatten().find(|state| !place.can_share(**state)) {
        let able: Vec<&str> =
            SharedState::ALL.into_iter().filter(|state| place.can_share(*state)).map(SharedState::name).collect();
        let help = match state {
            SharedState::Limits => "rate limits need an engine that counts in memory: use Valkey or Redis",
            _ => "leave it out",
        };
        let message = format!("{engine} cannot share `{}`, only {}", state.name(), able.join(", "));
        return Some(fault(message, help));
    }
    if store.key_file.is_none() && store.shares.iter().flatten().any(|state| *state == SharedState::Limits) {
        let help = "instances hash the keys of limits with it; make one with `openssl rand -base64 32`";
        return Some(fault("to share `limits` needs a `key-file`".to_owned(), help));
    }
    let has_endpoint = matches!(place, StorePlace::S3 { .. } | StorePlace::Kubernetes { .. });
    if store.endpoint.is_some() && !has_endpoint {
        return Some(fault(format!("`endpoint` is not for {engine}"), "the `url` has the address"));
    }
    if matches!(place, StorePlace::S3 { .. }) && (store.username.is_none() || store.password_file.is_none()) {
        let help = "`username` is the access key ID, `password-file` the file of the secret access key";
        return Some(fault("S3 needs `username` and `password-file`".to_owned(), help));
    }
    if store.username.is_some() && !matches!(place, StorePlace::S3 { .. } | StorePlace::Valkey(_)) {
        return Some(fault(format!("{engine} has no `username`"), "`password-file` has the token, if it needs one"));
    }
    if store.lease_time < store.timeout * 3 {
        let help = "a lease is renewed each third of its time; raise `lease-time` or lower `timeout`";
        return Some(fault("`lease-time` is below three times `timeout`".to_owned(), help));
    }
    for (file, what) in [(&store.password_file, "the password"), (&store.key_file, "a secret of 32 bytes or more")] {
        let Some(path) = file else { continue };
        if let Err(error) = StoreConfig::read_secret(path) {
            let finding = fault(format!("{}: {error}", path.display()), &format!("the file holds {what}"));
            return Some(finding.denied(is_denied(&error)));
        }
    }
    let error = store.authorities.as_deref().and_then(|file| load_authority(file).err())?;
    Some(fault(error.to_string(), "name a file of certificates (PEM)").denied(error.is_denied))
}

fn server_fault(server: &ServerSettings, span: &Range<usize>) -> Option<ConfigFinding> {
    if let Some(plane) = server.control_plane.as_ref().filter(|plane| !plane.is_authenticated()) {
        let message = format!("{} does not show which controller it is", plane.address);
        let help = "use `https://…`, or `unix:…` for a controller on this machine";
        return Some(ConfigFinding::new(span.clone(), message, "`control-plane` in here").help(help.to_owned()));
    }
    let listen = server.status_listen.iter().find(|listen| !listen.is_of_this_machine())?;
    let message = format!("{listen} can be reached from other machines");
    let help = "use an address of this machine, such as \"127.0.0.1:9180\", or put `metrics` and `status-page` into a site \
                with a password";
    Some(ConfigFinding::new(span.clone(), message, "`status-listen` in here").help(help.to_owned()))
}

fn limits_fault(limits: &Limits, span: &Range<usize>) -> Option<ConfigFinding> {
    let finding = ConfigFinding::new(span.clone(), "`target-bytes-max` is above `head-bytes-max`", "in here");
    let is_fault = limits.target_bytes_max > limits.head_bytes_max;
    is_fault.then(|| finding.help("the target is part of the head; raise `head-bytes-max`".to_owned()))
}

fn traces_fault(traces: &Traces, span: &Range<usize>) -> Option<ConfigFinding> {
    let fault =
        |message: String, help: &str| ConfigFinding::new(span.clone(), message, "in here").help(help.to_owned());
    if traces.batch_spans_max > traces.queue_spans_max {
        let help = "a batch is taken from the queue; raise `queue-spans-max`";
        return Some(fault("`batch-spans-max` is above `queue-spans-max`".to_owned(), help));
    }
    let error = traces.authorities.as_deref().and_then(|file| load_authority(file).err())?;
    Some(fault(error.to_string(), "name a file of certificates (PEM)").denied(error.is_denied))
}
