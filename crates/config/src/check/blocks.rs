//! Checks of blocks at the top level: settings of one block that contradict each other.

use super::finding::{ModelFinding, ModelPart};
use super::tls::check_automatic;
use crate::model::store::{SharedState, StoreConfig, StorePlace};
use crate::model::tls::load_authority;
use crate::model::traces::Traces;
use crate::model::{Config, Limits, ServerSettings};
use crate::options::OptionContext;
use crate::regular_file::is_denied;

/// Notes contradictions in each block.
pub(super) fn check_blocks(config: &Config, findings: &mut Vec<ModelFinding>) {
    findings.extend(server_fault(&config.server));
    findings.extend(limits_fault(&config.limits));
    check_automatic(&config.automatic_certificates, findings);
    findings.extend(config.traces.as_ref().and_then(traces_fault));
    findings.extend(config.store.as_ref().and_then(store_fault));
}

/// Fault of the block `limits`.
pub(crate) fn limits_fault(limits: &Limits) -> Option<ModelFinding> {
    let part = ModelPart::Block(OptionContext::Limits);
    let finding = ModelFinding::error(part, "`target-bytes-max` is above `head-bytes-max`", "in here");
    let is_fault = limits.target_bytes_max > limits.head_bytes_max;
    is_fault.then(|| finding.help("the target is part of the head; raise `head-bytes-max`"))
}

/// Options that the engine does not support, and files that cannot be read.
fn store_fault(store: &StoreConfig) -> Option<ModelFinding> {
    let part = ModelPart::Block(OptionContext::Store);
    let fault = |message: String, help: &str| ModelFinding::error(part, message, "in here").help(help);
    let Some(place) = &store.place else {
        return Some(fault("the store has no `url`".to_owned(), "write `url \"valkey://HOST\"`, or a directory"));
    };
    let engine = place.engine();
    if let Some(state) = store.shares.iter().flatten().find(|state| !place.can_share(**state)) {
        let able: Vec<&str> =
            SharedState::ALL.into_iter().filter(|state| place.can_share(*state)).map(SharedState::name).collect();
        let help = match state {
            SharedState::Limits => "rate limits need an engine that counts in memory: use Valkey or Redis",
            SharedState::Responses => "cached responses need a fast engine for large values: use Valkey, Redis or S3",
            _ => "leave it out",
        };
        let message = format!("{engine} cannot share `{}`, only {}", state.name(), able.join(", "));
        return Some(fault(message, help));
    }
    let keyed = store.shares.iter().flatten().find(|state| state.needs_key());
    if let Some(state) = keyed.filter(|_| store.key_file.is_none()) {
        let help = match state {
            SharedState::Rollouts => {
                "with it, no other user of the engine can write a configuration; make one with `openssl rand -base64 32`"
            }
            SharedState::Responses => {
                "with it, no other user of the engine can write pages; make one with `openssl rand -base64 32`"
            }
            _ => "instances hash the keys of limits with it; make one with `openssl rand -base64 32`",
        };
        return Some(fault(format!("to share `{}` needs a `key-file`", state.name()), help));
    }
    if store.has(SharedState::Responses) && !store.has(SharedState::Orders) {
        let help = "without them, an instance does not learn of purges at others; add `orders` to `share`";
        return Some(fault("to share `responses` needs `orders`".to_owned(), help));
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
    let secrets = [
        (&store.password_file, "the password", 1),
        (&store.key_file, "a secret of 32 bytes or more", StoreConfig::KEY_BYTES_MIN),
    ];
    for (file, what, least) in secrets {
        let Some(path) = file else { continue };
        let is_long = |secret: Vec<u8>| match secret.len() {
            bytes if bytes < least => Err(std::io::Error::other(format!("the secret has {bytes} bytes"))),
            _ => Ok(()),
        };
        if let Err(error) = StoreConfig::read_secret(path).and_then(is_long) {
            let finding = fault(format!("{}: {error}", path.display()), &format!("the file holds {what}"));
            return Some(finding.denied(is_denied(&error)));
        }
    }
    let error = store.authorities.as_deref().and_then(|file| load_authority(file).err())?;
    Some(fault(error.to_string(), "name a file of certificates (PEM)").denied(error.is_denied))
}

fn server_fault(server: &ServerSettings) -> Option<ModelFinding> {
    let part = ModelPart::Block(OptionContext::Server);
    if let Some(plane) = server.control_plane.as_ref().filter(|plane| !plane.is_authenticated()) {
        let message = format!("{} does not show which controller it is", plane.address);
        let help = "use `https://…`, or `unix:…` for a controller on this machine";
        return Some(ModelFinding::error(part, message, "`control-plane` in here").help(help));
    }
    let listen = server.status_listen.iter().find(|listen| !listen.is_of_this_machine())?;
    let message = format!("{listen} can be reached from other machines");
    let help = "use an address of this machine, such as \"127.0.0.1:9180\", or put `metrics` and `status-page` into a site \
                with a password";
    Some(ModelFinding::error(part, message, "`status-listen` in here").help(help))
}

fn traces_fault(traces: &Traces) -> Option<ModelFinding> {
    let part = ModelPart::Block(OptionContext::Traces);
    let fault = |message: String, help: &str| ModelFinding::error(part, message, "in here").help(help);
    if traces.batch_spans_max > traces.queue_spans_max {
        let help = "a batch is taken from the queue; raise `queue-spans-max`";
        return Some(fault("`batch-spans-max` is above `queue-spans-max`".to_owned(), help));
    }
    let error = traces.authorities.as_deref().and_then(|file| load_authority(file).err())?;
    Some(fault(error.to_string(), "name a file of certificates (PEM)").denied(error.is_denied))
}
