//! The mark of the processes of one subject: the value of `UNDYING_SOCKET` in their environment. The mark of a
//! component stays the same over all its runs, so that an old status file still names the mark. A mark finds processes
//! whose guardian has died, for example before it could write the status on a full disk.
//!
//! Owns: the names of the variables, and the search for processes with a mark.
//! Does not: find a process that has overwritten its environment.

use std::collections::{HashMap, HashSet};

use model::{Pid, ProcessKey};
use tracee::procfs;

/// Environment variable that contains the name of the socket for requests.
pub(crate) const VARIABLE: &str = "UNDYING_SOCKET";
/// Environment variable of a program that is started for a component. The value is the name of the component.
pub(crate) const OF_COMPONENT: &str = "UNDYING_COMPONENT";

/// Returns the mark in the initial environment of a process.
pub(crate) fn of(pid: Pid) -> Option<Vec<u8>> {
    value_of(pid, VARIABLE)
}

/// Reports whether a program was started for a component.
pub(crate) fn is_of_component(pid: Pid) -> bool {
    value_of(pid, OF_COMPONENT).is_some()
}

/// Reports whether a process has a mark. No process has the empty mark.
pub(crate) fn is_on(pid: Pid, mark: &str) -> bool {
    !mark.is_empty() && of(pid).is_some_and(|own| own == mark.as_bytes())
}

/// Returns the processes of each mark.
pub(crate) fn all() -> HashMap<Vec<u8>, Vec<Pid>> {
    let mut found: HashMap<_, Vec<_>> = HashMap::new();
    for pid in procfs::processes().unwrap_or_default() {
        of(pid).into_iter().for_each(|mark| found.entry(mark).or_default().push(pid));
    }
    found
}

/// Returns the processes that have this mark, and the processes in the session whose leader was this dead root.
pub(crate) fn recognised(mark: &str, root: Option<Pid>) -> Vec<Pid> {
    // While a session has members, no other process gets the pid of the session leader.
    let is_ours =
        |pid: &Pid| is_on(*pid, mark) || procfs::stat(*pid).is_ok_and(|stat| root == Some(stat.session));
    procfs::processes().unwrap_or_default().into_iter().filter(is_ours).collect()
}

/// Returns the root among the living processes with the mark of a component. The root of a component leads a session,
/// and its parent does not have the mark. Returns `None` if several processes meet these conditions: a process that
/// could be another member of the tree is not returned.
pub(crate) fn root_with(mark: &str) -> Option<ProcessKey> {
    let marked: HashSet<Pid> = recognised(mark, None).into_iter().collect();
    let stats = marked.iter().filter_map(|pid| procfs::stat(*pid).ok()).filter(|stat| !stat.is_zombie());
    let mut roots = stats.filter(|stat| stat.session == stat.pid && !marked.contains(&stat.ppid));
    let root = roots.next()?.key();
    roots.next().is_none().then_some(root)
}

fn value_of(pid: Pid, name: &str) -> Option<Vec<u8>> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    value.map(<[u8]>::to_vec)
}
