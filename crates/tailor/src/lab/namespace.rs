//! Network namespace of the lab: servers and loads run in it, so settings of its network concern no other process, and end
//! with the last process in it.

use crate::programs::{call, output};

/// Segment size of the lab's loopback interface: that of most networks.
const MTU: &str = "1500";

/// Moves this thread, and all processes that it starts, to a new network namespace.
pub(super) fn enter() -> Result<(), String> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
        .map_err(|error| format!("--vary: cannot create a network namespace: {error}; run as root"))?;
    call(&["ip", "link", "set", "lo", "mtu", MTU, "up"])
}

/// Queueing discipline of the loopback interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueingDiscipline {
    /// Words of `tc qdisc add dev lo root`; empty for none.
    words: Vec<String>,
}

/// Queueing discipline that is in force; dropping it removes it.
#[derive(Debug)]
pub(super) struct AppliedDiscipline;

impl QueueingDiscipline {
    /// Parses `none`, or the words of `tc`, such as `tbf rate 10mbit burst 32k latency 50ms`. `htb rate 10mbit` is a class
    /// of this rate for all packets.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let is_legal = |it: char| it.is_ascii_alphanumeric() || " ._:%-/".contains(it);
        if let Some(other) = text.chars().find(|it| !is_legal(*it)) {
            return Err(format!("qdisc `{text}`: `{other}` is not allowed"));
        }
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        match words.first().map(String::as_str) {
            None => Err("qdisc: a value is empty; `none` stands for no queueing discipline".to_owned()),
            Some("none") => Ok(Self { words: Vec::new() }),
            Some(_) => Ok(Self { words }),
        }
    }

    /// Applies the queueing discipline until the result is dropped, and checks that the kernel has it.
    pub(super) fn apply(&self) -> Result<AppliedDiscipline, String> {
        let Some((kind, rest)) = self.words.split_first() else { return Ok(AppliedDiscipline) };
        let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
        let applied = AppliedDiscipline;
        if kind == "htb" {
            call(&["tc", "qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb", "default", "1"])?;
            call(&[&["tc", "class", "add", "dev", "lo", "parent", "1:", "classid", "1:1", "htb"][..], &rest].concat())?;
        } else {
            call(&[&["tc", "qdisc", "add", "dev", "lo", "root", kind][..], &rest].concat())?;
        }
        let shown = output(&["tc", "qdisc", "show", "dev", "lo"])?;
        match shown.starts_with(&format!("qdisc {kind} ")) {
            true => Ok(applied),
            false => Err(format!("--vary: the kernel did not accept {}: {}", self.words.join(" "), shown.trim())),
        }
    }
}

impl Drop for AppliedDiscipline {
    fn drop(&mut self) {
        // Without one there is nothing to remove.
        let _ = output(&["tc", "qdisc", "del", "dev", "lo", "root"]);
    }
}
