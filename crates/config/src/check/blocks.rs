//! Checks of blocks at the top level: settings of one block that contradict each other.

use std::ops::Range;

use super::tls::check_automatic;
use crate::model::automatic::AutomaticCertificates;
use crate::model::tls::load_authority;
use crate::model::traces::Traces;
use crate::model::{Limits, ServerSettings};
use crate::options::OptionContext;
use crate::read::ConfigFinding;

/// Blocks whose settings are checked together.
pub(crate) struct Blocks<'a> {
    pub(crate) server: &'a ServerSettings,
    pub(crate) limits: &'a Limits,
    pub(crate) automatic: &'a AutomaticCertificates,
    pub(crate) traces: Option<&'a Traces>,
}

impl Blocks<'_> {
    /// Blocks that have such checks.
    pub(crate) const CHECKED: [OptionContext; 4] =
        [OptionContext::Server, OptionContext::Limits, OptionContext::AutomaticCertificates, OptionContext::Traces];

    /// Contradictions in a block, which stands here in the text, and how to fix them.
    pub(crate) fn faults(&self, block: OptionContext, span: &Range<usize>) -> Vec<ConfigFinding> {
        match block {
            OptionContext::Server => server_fault(self.server, span).into_iter().collect(),
            OptionContext::Limits => limits_fault(self.limits, span).into_iter().collect(),
            OptionContext::AutomaticCertificates => check_automatic(self.automatic, span),
            OptionContext::Traces => self.traces.and_then(|traces| traces_fault(traces, span)).into_iter().collect(),
            _ => Vec::new(),
        }
    }
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
