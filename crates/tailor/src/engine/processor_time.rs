//! CPU time of the calling thread, split into user and system.

use rustix::time::{ClockId, clock_gettime};

use super::clock::{Nanos, SECOND};

/// CPU time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessorTime {
    /// Exact sum of both parts.
    pub total: Nanos,
    /// CPU time in user space, by the kernel's ratio of ticks.
    pub user: Nanos,
    /// CPU time in the kernel.
    pub system: Nanos,
    /// Time in which the thread was ready to run but no CPU was free; not included in `total`.
    pub waited: Nanos,
}

impl ProcessorTime {
    /// CPU time that the calling thread has used.
    pub(crate) fn of_thread() -> Self {
        let total = thread_nanos();
        let (user, system) = thread_ticks().unwrap_or_default();
        // The kernel counts user and system in ticks; their ratio divides the exact total.
        let user = if user + system == 0 {
            0
        } else {
            (u128::from(total) * u128::from(user) / u128::from(user + system)) as u64
        };
        Self { total, user, system: total - user, waited: waited().unwrap_or(0) }
    }

    /// Difference to an earlier reading.
    pub(crate) fn since(self, earlier: Self) -> Self {
        let total = self.total.saturating_sub(earlier.total);
        let user = self.user.saturating_sub(earlier.user).min(total);
        Self { total, user, system: total - user, waited: self.waited.saturating_sub(earlier.waited) }
    }
}

impl std::ops::AddAssign for ProcessorTime {
    fn add_assign(&mut self, other: Self) {
        self.total += other.total;
        self.user += other.user;
        self.system += other.system;
        self.waited += other.waited;
    }
}

/// CPU time that the calling thread has used, without its parts.
pub(crate) fn thread_nanos() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}

/// Time that the calling thread waited for a CPU: the second number of its schedstat (the kernel's
/// Documentation/scheduler/sched-stats.rst).
fn waited() -> Option<Nanos> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split(' ').nth(1)?.parse().ok()
}

/// User and system time of the calling thread in ticks: fields 14 and 15 of proc_pid_stat(5).
fn thread_ticks() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").ok()?;
    // The second field is a name in brackets that may hold spaces.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}
