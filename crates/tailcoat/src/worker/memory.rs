//! Closes connections when clients hold too much memory.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::connection::Context;
use crate::log::{Trouble, event};
use crate::memory_budget::WorkerBudget;

/// Time for all workers to report what their connections hold, before any worker closes some.
const REPORT_TIME: Duration = Duration::from_millis(10);

/// Time for connections to close and release their memory.
const CLOSE_TIME: Duration = Duration::from_millis(20);

/// Closes connections whenever clients exceed the memory limit, the largest holders of all workers first. Sleeps
/// otherwise.
pub(super) async fn keep_memory(context: Rc<Context>, memory: Rc<WorkerBudget>, trouble: Arc<Trouble>) {
    loop {
        memory.critical().await;
        memory.report();
        tokio::time::sleep(REPORT_TIME).await;
        // Publishes what each connection holds now.
        memory.report();
        let held_bytes = memory.budget().held_bytes();
        let (count, shed_bytes) = context.shed_connections();
        if count > 0 {
            trouble.tell(event(
                "closed connections that held most memory",
                &[
                    ("connections", &count),
                    ("released_bytes", &shed_bytes),
                    ("held_bytes", &held_bytes),
                    ("client_memory_bytes_max", &memory.budget().limit_bytes()),
                ],
            ));
        }
        // If this worker has no connection to close, other workers must act, or no one can.
        tokio::time::sleep(if count > 0 { CLOSE_TIME } else { 5 * CLOSE_TIME }).await;
    }
}
