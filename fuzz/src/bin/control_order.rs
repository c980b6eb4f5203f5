//! Orders and reports, which are lines of the control socket.

#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tailcoat_fuzz::config::{Limits, duration_from_text, limits_from_text, log_format_from_text, network_from_text};
use tailcoat_fuzz::control::{ControlOrder, ControlReport};

fuzz_target!(|line: &[u8]| {
    if let Some(order) = round_trip::<ControlOrder>(line) {
        carry_out(order);
    }
    round_trip::<ControlReport>(line);
});

/// Reads a message, and checks that it is the same when it is written and read again, and takes one line.
fn round_trip<T: Debug + PartialEq + Serialize + DeserializeOwned>(line: &[u8]) -> Option<T> {
    let message: T = serde_json::from_slice(line).ok()?;
    let written = serde_json::to_vec(&message).expect("a message as JSON");
    assert!(!written.contains(&b'\n'));
    assert_eq!(serde_json::from_slice::<T>(&written).ok().as_ref(), Some(&message));
    Some(message)
}

/// Reads the texts of an order, as the server does first.
fn carry_out(order: ControlOrder) {
    match order {
        ControlOrder::SetLimit { option } => {
            let limits = Limits::default();
            if let Ok(changed) = limits_from_text(&limits, &option) {
                assert_eq!(limits_from_text(&changed, &option).as_ref(), Ok(&changed));
            }
        }
        ControlOrder::Ban { client, .. } | ControlOrder::Unban { client } => {
            if let Ok(network) = network_from_text(&client) {
                assert_eq!(network_from_text(&network.to_string()), Ok(network), "{client}");
            }
            let _ = duration_from_text(&client);
        }
        ControlOrder::TailLog { format, .. } => drop(log_format_from_text(&format)),
        _ => {}
    }
}
