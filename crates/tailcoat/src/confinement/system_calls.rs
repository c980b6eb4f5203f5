//! System call filter (seccomp(2)) with a list of allowed calls. Other calls fail with an error, so that a library
//! update which needs a new call loses a function, and does not end the process.
//!
//! Calls on the path of a request are allowed with any arguments: the kernel caches that, and skips the filter (since
//! Linux 5.11). Arguments are checked only for rare calls.

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use libc::{c_long, *};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

use crate::config::SystemCalls;

/// Calls on sockets, open files, and for waiting.
const INPUT_AND_OUTPUT: &[c_long] = &[
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_preadv,
    SYS_pwritev,
    SYS_preadv2,
    SYS_pwritev2,
    SYS_sendfile,
    SYS_splice,
    SYS_tee,
    SYS_copy_file_range,
    SYS_close,
    SYS_close_range,
    SYS_dup,
    SYS_dup3,
    SYS_fcntl,
    SYS_lseek,
    SYS_pipe2,
    SYS_eventfd2,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_epoll_pwait2,
    SYS_ppoll,
    SYS_pselect6,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_timerfd_gettime,
];

const SOCKETS: &[c_long] = &[
    SYS_accept,
    SYS_accept4,
    SYS_bind,
    SYS_listen,
    SYS_connect,
    SYS_shutdown,
    SYS_sendto,
    SYS_recvfrom,
    SYS_sendmsg,
    SYS_recvmsg,
    SYS_sendmmsg,
    SYS_recvmmsg,
    SYS_getsockopt,
    SYS_setsockopt,
    SYS_getsockname,
    SYS_getpeername,
    SYS_socketpair,
];

/// Calls with file names; Landlock decides on the names.
const FILES: &[c_long] = &[
    SYS_openat,
    SYS_openat2,
    SYS_newfstatat,
    SYS_fstat,
    SYS_statx,
    SYS_statfs,
    SYS_fstatfs,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_readlinkat,
    SYS_getdents64,
    SYS_getcwd,
    SYS_mkdirat,
    SYS_unlinkat,
    SYS_renameat,
    SYS_renameat2,
    SYS_linkat,
    SYS_symlinkat,
    SYS_utimensat,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fchown,
    SYS_fchownat,
    SYS_umask,
    SYS_ftruncate,
    SYS_truncate,
    SYS_fallocate,
    SYS_fadvise64,
    SYS_readahead,
    SYS_fsync,
    SYS_fdatasync,
    SYS_sync_file_range,
    SYS_flock,
    SYS_inotify_init1,
    SYS_inotify_add_watch,
    SYS_inotify_rm_watch,
    SYS_memfd_create,
];

const MEMORY_AND_THREADS: &[c_long] = &[
    SYS_futex,
    SYS_munmap,
    SYS_mremap,
    SYS_madvise,
    SYS_brk,
    SYS_mincore,
    SYS_msync,
    SYS_mlock,
    SYS_munlock,
    SYS_membarrier,
    SYS_mbind,
    SYS_get_mempolicy,
    SYS_set_mempolicy,
    SYS_getcpu,
    SYS_set_robust_list,
    SYS_get_robust_list,
    SYS_set_tid_address,
    SYS_rseq,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_sched_setaffinity,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_sched_get_priority_max,
    SYS_sched_get_priority_min,
    SYS_getpriority,
    SYS_setpriority,
    SYS_exit,
    SYS_exit_group,
    SYS_gettid,
    SYS_prctl,
];

const TIME_AND_SIGNALS: &[c_long] = &[
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_gettimeofday,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigtimedwait,
    SYS_sigaltstack,
    SYS_restart_syscall,
    SYS_kill,
    SYS_tgkill,
    SYS_tkill,
    SYS_wait4,
    SYS_waitid,
    SYS_pidfd_open,
    SYS_pidfd_send_signal,
];

const ABOUT_ITSELF: &[c_long] = &[
    SYS_getpid,
    SYS_getppid,
    SYS_getpgid,
    SYS_getsid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getresuid,
    SYS_getresgid,
    SYS_getgroups,
    SYS_capget,
    SYS_getrlimit,
    SYS_prlimit64,
    SYS_setrlimit,
    SYS_getrusage,
    SYS_times,
    SYS_sysinfo,
    SYS_uname,
    SYS_getrandom,
];

/// Further calls of this architecture for the same purpose.
#[cfg(target_arch = "x86_64")]
const OF_PROCESSOR: &[c_long] = &[
    SYS_open,
    SYS_stat,
    SYS_lstat,
    SYS_access,
    SYS_readlink,
    SYS_getdents,
    SYS_mkdir,
    SYS_rmdir,
    SYS_unlink,
    SYS_rename,
    SYS_link,
    SYS_symlink,
    SYS_chmod,
    SYS_chown,
    SYS_lchown,
    SYS_utimes,
    SYS_futimesat,
    SYS_creat,
    SYS_pipe,
    SYS_dup2,
    SYS_eventfd,
    SYS_poll,
    SYS_select,
    SYS_epoll_create,
    SYS_epoll_wait,
    SYS_inotify_init,
    SYS_time,
    SYS_alarm,
    SYS_getpgrp,
    SYS_pause,
    SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const OF_PROCESSOR: &[c_long] = &[];

/// Families of sockets in use; netlink reports the machine's addresses (getaddrinfo(3)).
const SOCKET_FAMILIES: &[c_int] = &[AF_UNIX, AF_INET, AF_INET6, AF_NETLINK];

/// ioctls for sockets and open files, terminals, and written pages of the server's own memory.
const IOCTLS: &[u64] = &[FIONBIO, FIONREAD, FIOCLEX, FIONCLEX, TCGETS, TIOCGWINSZ, TIOCOUTQ, FICLONE, PAGEMAP_SCAN];

/// `_IOW(0x94, 9, int)` of linux/fs.h. Uploads that continue a large file share its blocks.
const FICLONE: u64 = 0x4004_9409;

/// `_IOWR('f', 16, struct pm_scan_arg)` of linux/fs.h. Without it, the memory of each module instance would be returned
/// to the system after each request, which makes a request half as expensive again.
const PAGEMAP_SCAN: u64 = 0xc060_6610;

/// fcntl commands that set the owner of a descriptor, who then gets signals (fcntl(2), socket(7)). libc does not name
/// the numbers.
const F_SETOWN_EX: u64 = 15;
const FIOSETOWN: u64 = 0x8901;
const SIOCSPGRP: u64 = 0x8902;

/// Flags that create namespaces, in which a process would be root.
const NAMESPACES: c_int =
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;

/// Calls that programs do not need: administration of the system, and access to other processes.
const NOT_FOR_PROGRAMS: &[c_long] = &[
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_pidfd_getfd,
    SYS_kcmp,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_mount,
    SYS_umount2,
    SYS_move_mount,
    SYS_open_tree,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fspick,
    SYS_mount_setattr,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_acct,
    SYS_quotactl,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_adjtimex,
    SYS_clock_adjtime,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_syslog,
    SYS_vhangup,
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
    SYS_name_to_handle_at,
    SYS_open_by_handle_at,
    SYS_fanotify_init,
    SYS_lookup_dcookie,
];

type SeccompRules = BTreeMap<c_long, Vec<SeccompRule>>;

/// Limits this thread, and those that it starts, to the calls of the server. `loads_code` allows memory to become code.
///
/// # Errors
/// Text of the kernel's error.
pub(super) fn confine_server(calls: SystemCalls, loads_code: bool) -> Result<(), String> {
    let Some(otherwise) = action(calls) else { return Ok(()) };
    // The arguments of clone3 are in memory, which no filter can read. The C library uses clone if clone3 is missing.
    // (This filter reports that, because the stricter result counts; the other filter allows it.)
    let clone3 = [(SYS_clone3, Vec::new())].into();
    apply(clone3, SeccompAction::Allow, SeccompAction::Errno(ENOSYS as u32))?;
    apply(rules_of_server(loads_code)?, otherwise, SeccompAction::Allow)
}

/// Limits this thread, and the programs that it starts, to the calls of programs.
///
/// # Errors
/// Text of the kernel's error.
pub(super) fn confine_programs(calls: SystemCalls) -> Result<(), String> {
    let Some(rejected) = action(calls) else { return Ok(()) };
    let mut rules: SeccompRules = NOT_FOR_PROGRAMS.iter().map(|number| (*number, Vec::new())).collect();
    rules.extend(rules_for_this_thread()?);
    apply(rules, SeccompAction::Allow, rejected)
}

/// Rules that keep programs from ending the server through the thread that starts them: Landlock lets them signal
/// processes with the same limits, as this thread has, and a signal to one thread ends all. They must not set limits of
/// other processes either (file descriptors, CPU time), which Landlock does not cover.
fn rules_for_this_thread() -> Result<SeccompRules, String> {
    let own = rustix::thread::gettid().as_raw_nonzero().get() as u64;
    Ok([
        (SYS_kill, vec![equal(0, own)?]),
        (SYS_tkill, vec![equal(0, own)?]),
        (SYS_tgkill, vec![equal(1, own)?]),
        (SYS_rt_sigqueueinfo, vec![equal(0, own)?]),
        (SYS_rt_tgsigqueueinfo, vec![equal(1, own)?]),
        // No filter can see the owner of a descriptor. Programs that cannot use it use kill.
        (SYS_pidfd_send_signal, Vec::new()),
        (SYS_fcntl, vec![equal(1, F_SETOWN as u64)?, equal(1, F_SETOWN_EX)?]),
        (SYS_ioctl, vec![equal(1, FIOSETOWN)?, equal(1, SIOCSPGRP)?]),
        // 0 is the calling process.
        (SYS_prlimit64, vec![rule(0, SeccompCmpOp::Ne, 0)?]),
    ]
    .into())
}

fn action(calls: SystemCalls) -> Option<SeccompAction> {
    match calls {
        SystemCalls::Rejected => Some(SeccompAction::Errno(EPERM as u32)),
        SystemCalls::Logged => Some(SeccompAction::Log),
        SystemCalls::Allowed => None,
    }
}

fn rules_of_server(loads_code: bool) -> Result<SeccompRules, String> {
    let lists = [INPUT_AND_OUTPUT, SOCKETS, FILES, MEMORY_AND_THREADS, TIME_AND_SIGNALS, ABOUT_ITSELF, OF_PROCESSOR];
    let mut rules: SeccompRules = lists.concat().into_iter().map(|number| (number, Vec::new())).collect();
    let families = SOCKET_FAMILIES.iter().map(|family| equal(0, *family as u64));
    rules.insert(SYS_socket, families.collect::<Result<_, _>>()?);
    let requests = IOCTLS.iter().map(|request| equal(1, *request));
    rules.insert(SYS_ioctl, requests.collect::<Result<_, _>>()?);
    rules.insert(SYS_clone, vec![without(0, NAMESPACES as u64)?]);
    rules.insert(SYS_clone3, Vec::new());
    for number in [SYS_mmap, SYS_mprotect] {
        rules.insert(number, if loads_code { Vec::new() } else { vec![without(2, PROT_EXEC as u64)?] });
    }
    Ok(rules)
}

/// Matches if an argument has this value.
fn equal(argument: u8, value: u64) -> Result<SeccompRule, String> {
    rule(argument, SeccompCmpOp::Eq, value)
}

/// Matches if an argument has none of these bits.
fn without(argument: u8, bits: u64) -> Result<SeccompRule, String> {
    rule(argument, SeccompCmpOp::MaskedEq(bits), 0)
}

fn rule(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, String> {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value);
    condition.and_then(|condition| SeccompRule::new(vec![condition])).map_err(|error| error.to_string())
}

fn apply(rules: SeccompRules, otherwise: SeccompAction, listed: SeccompAction) -> Result<(), String> {
    let processor = ARCH.try_into().map_err(|_| format!("no system call filter exists for {ARCH}"))?;
    let filter = SeccompFilter::new(rules, otherwise, listed, processor).map_err(|error| error.to_string())?;
    let program: BpfProgram = filter.try_into().map_err(|error: seccompiler::BackendError| error.to_string())?;
    apply_filter(&program).map_err(|error| error.to_string())
}

#[cfg(all(test, feature = "modules"))]
mod tests {
    use crate::modules::open_page_map;

    use super::*;

    #[test]
    fn memory_of_modules_is_kept() {
        let before = open_page_map();
        let confined = std::thread::spawn(move || {
            confine_server(SystemCalls::Rejected, true).unwrap();
            open_page_map()
        });
        assert_eq!(confined.join().unwrap(), before);
    }
}
