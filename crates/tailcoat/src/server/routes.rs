//! Routes of a controller: applies them to the running server.

use std::collections::HashMap;
use std::fmt::Display;

use super::Server;
use super::reload::{ReloadRequester, ReloadSource};
use super::upgrade::ANOTHER_SERVES;
use crate::control::ControlReport;
use crate::control_plane::RoutesOrder;
use crate::log::event;

impl Server {
    /// Carries out an order of the control plane.
    pub(super) fn apply_routes(&mut self, order: RoutesOrder) {
        match order {
            RoutesOrder::Replace { parts, reply } => {
                let rules = parts.listeners.iter().map(|(_, rules)| rules.targets.len()).sum::<usize>();
                let values: &[(&str, &dyn Display)] =
                    &[("listeners", &parts.listeners.len()), ("rules", &rules), ("sites_built", &parts.built)];
                let summary = event("routes applied", values).to_string();
                let asker = ReloadRequester { reply, is_fancy: false };
                self.reload(ReloadSource::Routes { summary, parts }, Some(asker));
            }
            RoutesOrder::SetServers { servers, reply } => {
                if self.successor.is_some() {
                    reply.report(ControlReport::Rejected(ANOTHER_SERVES.to_owned()));
                    return;
                }
                let few = servers.len() < 8;
                let all = &self.assembly.parts.upstreams;
                let known: HashMap<&str, _> = match few {
                    true => HashMap::new(),
                    false => all.iter().map(|upstream| (upstream.name(), upstream)).collect(),
                };
                for (name, servers) in &servers {
                    let found = match few {
                        true => all.iter().rev().find(|upstream| upstream.name() == name),
                        false => known.get(name.as_str()).copied(),
                    };
                    // A backend with an error has no upstream.
                    if let Some(upstream) = found {
                        // The settings of TLS were loaded, because they are expected.
                        let _ = upstream.set_servers(servers);
                    }
                }
                reply.report(ControlReport::Done(String::new()));
            }
        }
    }
}
