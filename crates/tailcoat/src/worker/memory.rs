//! Closes connections when clients hold too much memory.

use std::rc::Rc;
use std::time::Duration;

use crate::connection::Connections;
use crate::memory_budget::WorkerBudget;

/// Time between two steps of a worker without events.
const STEP_TIME: Duration = Duration::from_millis(5);

/// Takes part in closing connections whenever clients exceed the memory limit, even if this worker's connections have
/// no events. A busy worker does its part between its connections. Sleeps otherwise.
pub(super) async fn keep_memory(connections: Rc<Connections>, memory: Rc<WorkerBudget>) {
    loop {
        memory.critical().await;
        connections.shed_memory();
        tokio::time::sleep(STEP_TIME).await;
    }
}
