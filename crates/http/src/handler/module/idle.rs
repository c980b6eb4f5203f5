//! Idle instances of one worker and one module.

use std::cell::RefCell;
use std::sync::Arc;

use crate::modules::ModuleCode;

/// Idle instances, each with the code that it runs.
pub(super) struct IdleInstances<T> {
    count_max: usize,
    instances: RefCell<Vec<(T, Arc<ModuleCode>)>>,
}

impl<T> IdleInstances<T> {
    /// Creates a pool for at most `count_max` instances.
    pub(super) fn new(count_max: usize) -> Self {
        Self { count_max, instances: RefCell::default() }
    }

    /// Takes an instance that runs this code. Instances of replaced code are dropped.
    pub(super) fn take(&self, code: &Arc<ModuleCode>) -> Option<T> {
        let mut instances = self.instances.borrow_mut();
        while let Some((instance, its)) = instances.pop() {
            if Arc::ptr_eq(&its, code) {
                return Some(instance);
            }
        }
        None
    }

    /// True if there is room for another instance.
    pub(super) fn has_room(&self) -> bool {
        self.instances.borrow().len() < self.count_max
    }

    /// Keeps an instance, if there is room.
    pub(super) fn put(&self, instance: T, code: Arc<ModuleCode>) {
        if self.has_room() {
            self.instances.borrow_mut().push((instance, code));
        }
    }
}
