//! Closing connections when clients hold too much memory.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::connection::Context;
use crate::log::{Trouble, event};
use crate::memory_budget::WorkerBudget;

/// Time in which all workers tell what their connections hold, before any closes some.
const REPORT_TIME: Duration = Duration::from_millis(10);

/// Time in which connections close, and what they held is released.
const CLOSE_TIME: Duration = Duration::from_millis(20);

/// Closes connections whenever clients hold more than they may, those that hold most over all workers first. Sleeps
/// otherwise.
pub(super) async fn keep_memory(context: Rc<Context>, memory: Rc<WorkerBudget>, trouble: Arc<Trouble>) {
    loop {
        memory.critical().await;
        memory.report();
        tokio::time::sleep(REPORT_TIME).await;
        // What each connection holds by now.
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
        // If none of this worker's connections holds enough to be closed, it is for others, or nothing can be done.
        tokio::time::sleep(if count > 0 { CLOSE_TIME } else { 5 * CLOSE_TIME }).await;
    }
}
