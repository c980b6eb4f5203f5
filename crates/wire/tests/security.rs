//! What SECURITY.md says of HTTP/2's limits is what they are.

use std::time::Duration;

use wire::h2::{BudgetLimit, Limits};

const SECURITY: &str = include_str!("../../../SECURITY.md");

#[test]
fn the_documented_limits_are_the_defaults() {
    let limits = Limits::default();
    let seconds = |time: Duration| format!("{} s", time.as_secs());
    let budget = |limit: BudgetLimit| format!("{}, {} a second", limit.burst, limit.per_second);
    for (name, value) in [
        ("concurrent_streams_max", limits.concurrent_streams_max.to_string()),
        ("header_block_bytes_max", limits.header_block_bytes_max.to_string()),
        ("continuations_max", limits.continuations_max.to_string()),
        ("header_table_bytes_max", limits.header_table_bytes_max.to_string()),
        ("head_bytes_max", limits.head.head_bytes_max.to_string()),
        ("stream_window_bytes", limits.stream_window_bytes.to_string()),
        ("connection_window_bytes", limits.connection_window_bytes.to_string()),
        ("window_bytes_max", limits.window_bytes_max.to_string()),
        ("output_bytes_max", limits.output_bytes_max.to_string()),
        ("settings_timeout", seconds(limits.settings_timeout)),
        ("stalled_timeout", seconds(limits.stalled_timeout)),
        ("linger_timeout", seconds(limits.linger_timeout)),
        ("peer_resets", budget(limits.peer_resets)),
        ("stream_faults", budget(limits.stream_faults)),
        ("settings", budget(limits.settings)),
        ("pings", budget(limits.pings)),
        ("priorities", budget(limits.priorities)),
        ("window_updates", budget(limits.window_updates)),
        ("idle_frames", budget(limits.idle_frames)),
    ] {
        let row = format!("\n| `{name}` | {value}");
        assert!(SECURITY.contains(&row), "SECURITY.md has no row {row:?}");
    }
}
