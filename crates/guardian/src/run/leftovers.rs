//! Processes that outlive a dead subject, and processes that have left its tree, as a daemon does when its parent ends.
//!
//! Owns: which subject a process belongs to; finding, ending and reaping the processes of one subject; which children
//! of the guardian have left the tree.
//! Invariants: children that this process had before its first subject are never killed, nor are those of another
//! subject. A dead root is not reaped. All processes are stopped before the first is killed, so that none reacts to the
//! end of another.
//! Does not: decide when; the guard calls it after a death and before a restore.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{Pid, ProcessKey, StartTime};
use rustix::process::{WaitId, WaitIdOptions};
use sys::clock::Deadline;
use tracee::{procfs, tree};

use super::requests::VARIABLE;
use crate::error::{GuardianError, Result};
use crate::signals::{KILL, STOP};

/// What names the component to a program that is started for it.
pub(crate) const OF_COMPONENT: &str = "UNDYING_COMPONENT";
/// How long killed processes may take to go: longer than any that are not stuck in the kernel.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Poll interval for their end.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// One subject among those of this program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Owner(u32);

/// The children of this program, and whose they are.
#[derive(Debug)]
pub(crate) struct ProcessReaper {
    own: Pid,
    table: Mutex<Table>,
}

/// Which subject a process belongs to.
#[derive(Default, Debug)]
struct Table {
    /// Children of this program that are of no subject, by their start times.
    foreign: HashMap<Pid, StartTime>,
    /// Subjects so far, those included that are gone.
    admitted: u32,
    /// Whether this process has children of no subject, apart from earlier ones.
    is_shared: bool,
    roots: BTreeMap<Owner, ProcessKey>,
    /// What each subject has in its environment and no other: how an orphan is recognised that no survey has found.
    marks: BTreeMap<Owner, String>,
    /// Those whose present incarnation this program has not started.
    strangers: BTreeSet<Owner>,
    /// Descendants of the roots, as found by the last survey: also those whose parents have ended since.
    members: HashMap<ProcessKey, Owner>,
}

impl Table {
    /// Finds the descendants of all roots, and forgets processes that are gone.
    fn survey(&mut self) {
        self.members.retain(|key, _| procfs::key(key.pid).is_ok_and(|found| found == *key));
        for (owner, root) in &self.roots {
            let found = descendants(root.pid).into_iter().map(|key| (key, *owner));
            self.members.extend(found);
        }
    }

    fn owner_of(&self, key: ProcessKey) -> Option<Owner> {
        let root = self.roots.iter().find(|(_, root)| **root == key).map(|(owner, _)| *owner);
        root.or_else(|| self.members.get(&key).copied())
    }

    /// Whether there was never another subject or child than those of the only one.
    fn is_only(&self) -> bool {
        self.admitted <= 1 && !self.is_shared
    }

    /// The subject whose mark a process has, or whose root has led its session: some programs write over their
    /// environment, and daemons leave their session.
    fn recognised(&self, pid: Pid) -> Option<Owner> {
        let mark = mark_of(pid);
        let has_mark = |own: &String| !own.is_empty() && mark.as_deref() == Some(own.as_bytes());
        let marked = self.marks.iter().find(|(_, own)| has_mark(own)).map(|(owner, _)| *owner);
        marked.or_else(|| {
            let session = procfs::stat(pid).ok()?.session;
            self.roots.iter().find(|(_, root)| root.pid == session).map(|(owner, _)| *owner)
        })
    }

    fn is_foreign(&self, key: ProcessKey) -> bool {
        self.foreign.get(&key.pid) == Some(&key.start)
    }
}

impl ProcessReaper {
    /// Records the children that exist before the first subject, and becomes the subreaper to which the
    /// orphans of the subjects fall.
    pub(crate) fn found() -> Result<Self> {
        let own = Pid(std::process::id() as i32);
        let keys = procfs::children(own)?.into_iter().filter_map(|pid| procfs::key(pid).ok());
        let foreign = keys.map(|key| (key.pid, key.start)).collect();
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|errno| sys::Error::new("become a subreaper", errno))?;
        Ok(Self { own, table: Mutex::new(Table { foreign, ..Table::default() }) })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A child of this program is of no subject.
    pub(crate) fn exempt(&self, pid: Pid) {
        if let Ok(key) = procfs::key(pid) {
            self.table().foreign.insert(pid, key.start);
        }
    }

    /// From now on a child is of a subject only if it is known to be.
    pub(crate) fn share(&self) {
        self.table().is_shared = true;
    }

    /// There is another subject. Its processes have this value of `VARIABLE`. One that this program has not started is
    /// no child of it, and neither is what such a one leaves.
    pub(super) fn admit(&self, root: ProcessKey, mark: &str, is_stranger: bool) -> Owner {
        let mut table = self.table();
        let owner = Owner(table.admitted);
        table.admitted += 1;
        table.roots.insert(owner, root);
        table.marks.insert(owner, mark.to_owned());
        if is_stranger {
            table.strangers.insert(owner);
        }
        owner
    }

    /// A subject has a new root.
    pub(super) fn begin(&self, owner: Owner, root: ProcessKey) {
        let mut table = self.table();
        let is_first = table.roots.insert(owner, root) == Some(root);
        if !is_first {
            table.strangers.remove(&owner);
        }
    }

    /// These were found in the tree of a subject.
    pub(super) fn note(&self, owner: Owner, found: &[ProcessKey]) {
        let mut table = self.table();
        // An only subject has everything that is there.
        if !table.is_only() {
            table.members.extend(found.iter().map(|key| (*key, owner)));
        }
    }

    /// A subject has ended for good.
    pub(super) fn dismiss(&self, owner: Owner) {
        let mut table = self.table();
        table.roots.remove(&owner);
        table.marks.remove(&owner);
        table.strangers.remove(&owner);
        table.members.retain(|_, found| *found != owner);
    }

    /// Takes the status of dead children that are neither a root nor traced; gives whether some had to be left, since
    /// they may be roots that are being started: `is_building`.
    pub(crate) fn reap(&self, is_building: bool) -> bool {
        let mut is_left = false;
        // Orphans fall to the first thread of this program.
        let path = format!("/proc/{0}/task/{0}/children", self.own);
        let children = procfs::read_text(&path).unwrap_or_default();
        for pid in children.split_whitespace().filter_map(|word| word.parse().ok()).map(Pid) {
            let Ok(stat) = procfs::stat(pid) else { continue };
            let key = stat.key();
            if !stat.is_zombie() {
                continue;
            }
            let table = self.table();
            let is_root = table.roots.values().any(|root| *root == key);
            let is_known = table.members.contains_key(&key);
            let is_foreign = table.is_foreign(key);
            drop(table);
            if is_root || is_foreign || procfs::status(pid).is_ok_and(|status| status.tracer.get() != 0) {
                continue;
            }
            if is_building && !is_known {
                is_left = true;
            } else {
                reap(pid);
            }
        }
        is_left
    }

    /// Takes the status of every dead child of a subject but the root.
    pub(super) fn reap_orphans(&self, owner: Owner, root: Pid) {
        for pid in self.children(owner) {
            if pid != root && procfs::stat(pid).is_ok_and(|stat| stat.is_zombie()) {
                reap(pid);
            }
        }
    }

    /// Ends every process that a dead root has left: descendants of this process, and known ones of an adopted root.
    /// Their pids are free afterwards. Spares some of our children and their descendants.
    pub(super) fn clear(
        &self,
        owner: Owner,
        root: Pid,
        known: &[ProcessKey],
        spared: &HashSet<ProcessKey>,
    ) -> Result<()> {
        self.repeat((owner, root), known, spared, || self.reap_orphans(owner, root))
    }

    /// Living children of this process that belong to a subject and have left its tree.
    pub(super) fn departed(&self, owner: Owner, root: Pid) -> Vec<ProcessKey> {
        let children = self.children(owner).into_iter().filter(|pid| *pid != root);
        children
            .filter_map(|pid| procfs::stat(pid).ok())
            .filter(|stat| !stat.is_zombie())
            .map(|stat| stat.key())
            .collect()
    }

    /// Ends what a restore that failed may have left: processes under construction, traced by us. The dead root has
    /// been reaped by then.
    pub(super) fn clear_construction(&self, owner: Owner, spared: &HashSet<ProcessKey>) -> Result<()> {
        self.repeat((owner, Pid(0)), &[], spared, || {
            // Threads of a tracee have to be waited for one by one.
            let threads = |pid: Pid| procfs::threads(pid).unwrap_or_default();
            for tid in self.children(owner).into_iter().flat_map(threads) {
                while let Ok(Some(_)) = sys::ptrace::poll(tid) {}
            }
        })
    }

    /// Stops, kills and reaps until no process is left.
    fn repeat(
        &self,
        (owner, root): (Owner, Pid),
        known: &[ProcessKey],
        spared: &HashSet<ProcessKey>,
        reap: impl Fn(),
    ) -> Result<()> {
        let is_spared =
            |pid: &Pid| !spared.is_empty() && procfs::key(*pid).is_ok_and(|key| spared.contains(&key));
        let living = || {
            let mut left = self.living(owner, root, is_spared);
            left.extend(known.iter().filter(|key| is_alive(**key)).map(|key| key.pid));
            left
        };
        // Those that were reaped as children may have left children, and the dead hold their numbers still.
        let unreaped =
            || self.children(owner).into_iter().filter(|pid| *pid != root && !is_spared(pid)).collect();
        end_all(living, reap, unreaped)
    }

    /// Ends what all subjects have left when the last one is over: also daemons that nothing tells apart from those of
    /// another subject. Not programs that were started for a component, which may go on. How many processes there were.
    pub(crate) fn end_rest(&self) -> Result<usize> {
        let children = || -> Vec<Pid> {
            let found = procfs::children(self.own).unwrap_or_default();
            let keys = found.into_iter().filter_map(|pid| procfs::key(pid).ok());
            let table = self.table();
            let is_of_subject =
                |key: &ProcessKey| !table.is_foreign(*key) && variable_of(key.pid, OF_COMPONENT).is_none();
            keys.filter(is_of_subject).map(|key| key.pid).collect()
        };
        let count = living_under(children()).len();
        let reap_all = || {
            let dead = |pid: &Pid| procfs::stat(*pid).is_ok_and(|stat| stat.is_zombie());
            children().into_iter().filter(dead).for_each(reap);
        };
        end_all(|| living_under(children()), reap_all, children)?;
        Ok(count)
    }

    /// Descendants of this process that belong to a subject and are neither spared nor dead.
    fn living(&self, owner: Owner, root: Pid, is_spared: impl Fn(&Pid) -> bool) -> Vec<Pid> {
        let children = self.children(owner).into_iter().filter(|pid| *pid != root && !is_spared(pid));
        let strange = self.strange(owner, root).into_iter().filter(|pid| !is_spared(pid));
        let mut found = living_under(children.collect());
        found.extend(strange.filter(|pid| is_living(*pid)));
        found
    }

    /// What an incarnation has left that this program has not started, without its root.
    fn strange(&self, owner: Owner, root: Pid) -> Vec<Pid> {
        let table = self.table();
        let mark = table.marks.get(&owner).filter(|_| table.strangers.contains(&owner)).cloned();
        let session = table.roots.get(&owner).map(|root| root.pid);
        drop(table);
        let found = mark.map(|mark| recognised(&mark, session)).unwrap_or_default();
        found.into_iter().filter(|pid| *pid != root).collect()
    }

    /// Our children that belong to a subject.
    fn children(&self, owner: Owner) -> Vec<Pid> {
        let children = procfs::children(self.own).unwrap_or_default();
        let keys = children.into_iter().filter_map(|pid| procfs::key(pid).ok());
        let mut table = self.table();
        // All are those of an only subject, also an orphan that no survey has seen in its tree.
        let is_only = table.is_only();
        if !is_only {
            table.survey();
        }
        let is_its_own = |key: &ProcessKey| match table.owner_of(*key).or_else(|| table.recognised(key.pid)) {
            _ if is_only => true,
            Some(found) => found == owner,
            None => is_traced_by_us(key.pid),
        };
        keys.filter(|key| !table.is_foreign(*key) && is_its_own(key)).map(|key| key.pid).collect()
    }
}

/// Children and their descendants that have not ended.
fn living_under(children: Vec<Pid>) -> Vec<Pid> {
    // The children of a process that has ended meanwhile are now ours; the next list contains them.
    let found = children.into_iter().flat_map(|child| tree::descendants(child).unwrap_or_default());
    found.filter(|pid| is_living(*pid)).collect()
}

fn is_living(pid: Pid) -> bool {
    procfs::stat(pid).is_ok_and(|stat| !stat.is_zombie())
}

/// Stops, kills and reaps until nothing is alive and nothing waits to be reaped.
fn end_all(living: impl Fn() -> Vec<Pid>, reap: impl Fn(), unreaped: impl Fn() -> Vec<Pid>) -> Result<()> {
    let deadline = Deadline::after(TIMEOUT);
    loop {
        let mut left = living();
        for signal in [STOP, KILL] {
            for pid in &left {
                // A process that has ended meanwhile needs no kill.
                let _ = sys::signal::send(*pid, signal);
            }
        }
        reap();
        left.extend(unreaped());
        let Some(first) = left.first() else { return Ok(()) };
        if deadline.has_passed() {
            return Err(GuardianError::Leftover { pid: *first });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The mark of a process, in the environment that it was executed with.
fn mark_of(pid: Pid) -> Option<Vec<u8>> {
    variable_of(pid, VARIABLE)
}

fn variable_of(pid: Pid, name: &str) -> Option<Vec<u8>> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    value.map(<[u8]>::to_vec)
}

/// Processes with this mark, or in the session that this dead root has led.
fn recognised(mark: &str, root: Option<Pid>) -> Vec<Pid> {
    // While a session has members, no other process gets the number of its leader.
    let is_ours = |pid: &Pid| {
        mark_of(*pid).is_some_and(|own| !mark.is_empty() && own == mark.as_bytes())
            || procfs::stat(*pid).is_ok_and(|stat| root == Some(stat.session))
    };
    procfs::processes().unwrap_or_default().into_iter().filter(is_ours).collect()
}

/// Kills what a dead root has left that this program has not started, and waits until it has ended. Its parents reap it.
pub(super) fn end_left_by(mark: &str, root: Pid) -> Result<()> {
    let deadline = Deadline::after(TIMEOUT);
    // The number may be that of another process by now, with a session of its own.
    let is_taken = procfs::stat(root).is_ok_and(|stat| !stat.is_zombie());
    let session = Some(root).filter(|root| root.get() > 0 && !is_taken);
    loop {
        let mut left = recognised(mark, session);
        left.retain(|pid| procfs::stat(*pid).is_ok_and(|stat| !stat.is_zombie()));
        let Some(first) = left.first() else { return Ok(()) };
        if deadline.has_passed() {
            return Err(GuardianError::Leftover { pid: *first });
        }
        for signal in [STOP, KILL] {
            for pid in &left {
                // A process that has ended meanwhile needs no kill.
                let _ = sys::signal::send(*pid, signal);
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Whether this thread traces a process: one under restore.
fn is_traced_by_us(pid: Pid) -> bool {
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    procfs::status(pid).is_ok_and(|status| status.tracer.get() == own)
}

/// The descendants of a root, by their lasting names.
pub(super) fn descendants(root: Pid) -> Vec<ProcessKey> {
    let pids = tree::descendants(root).unwrap_or_default();
    pids.into_iter().filter(|pid| *pid != root).filter_map(|pid| procfs::key(pid).ok()).collect()
}

fn is_alive(key: ProcessKey) -> bool {
    procfs::stat(key.pid).is_ok_and(|stat| stat.key() == key && !stat.is_zombie())
}

fn reap(pid: Pid) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid.get()) {
        // Reaped by another thread is reaped as well.
        let _ = rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};

    use super::*;

    /// Set in a process that has nothing but one test in it.
    const ALONE: &str = "UNDYING_TEST_ALONE";
    /// A root, its child, and two children of that.
    const TREE: &str = "sh -c 'sleep 600 & sleep 600 & wait' & exec sleep 600";

    /// Runs a test in a process of its own: it becomes a subreaper, and its children are all that there is.
    fn alone(name: &str, test: impl Fn()) {
        if std::env::var_os(ALONE).is_some() {
            return test();
        }
        let program = std::env::current_exe().unwrap();
        let output = Command::new(program).args(["--exact", name, "--nocapture"]).env(ALONE, "1").output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    struct Subject {
        root: Child,
        pid: Pid,
        owner: Owner,
        middle: Pid,
        leaves: Vec<ProcessKey>,
    }

    impl Subject {
        fn start(reaper: &ProcessReaper) -> Self {
            let root = Command::new("sh").args(["-c", TREE]).spawn().unwrap();
            let pid = Pid(root.id() as i32);
            await_that(|| descendants(pid).len() == 3);
            let middle = procfs::children(pid).unwrap()[0];
            let leaves = descendants(middle);
            Self { owner: reaper.admit(procfs::key(pid).unwrap(), "", false), root, pid, middle, leaves }
        }

        /// Kills the process in the middle, so that its children become ours.
        fn orphan_leaves(&self) {
            sys::signal::send(self.middle, KILL).unwrap();
            await_that(|| {
                let children = procfs::children(Pid(std::process::id() as i32)).unwrap();
                self.leaves.iter().all(|leaf| children.contains(&leaf.pid))
            });
        }

        fn kill_root(&self) {
            sys::signal::send(self.pid, KILL).unwrap();
            await_that(|| procfs::stat(self.pid).unwrap().is_zombie());
        }

        fn status(mut self) -> Option<i32> {
            self.root.wait().unwrap().signal()
        }
    }

    #[track_caller]
    fn await_that(holds: impl Fn() -> bool) {
        let deadline = Deadline::after(TIMEOUT);
        while !holds() {
            assert!(!deadline.has_passed(), "it takes too long");
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn what_one_subject_leaves_is_ended_and_the_other_is_left_alone() {
        alone("run::leftovers::tests::what_one_subject_leaves_is_ended_and_the_other_is_left_alone", || {
            let reaper = ProcessReaper::found().unwrap();
            let (one, other) = (Subject::start(&reaper), Subject::start(&reaper));
            assert_eq!(reaper.departed(one.owner, one.pid), []);
            one.orphan_leaves();
            other.orphan_leaves();
            assert_eq!(reaper.departed(one.owner, one.pid), one.leaves);
            one.kill_root();
            reaper.clear(one.owner, one.pid, &[], &HashSet::new()).unwrap();
            assert!(one.leaves.iter().all(|leaf| procfs::key(leaf.pid).is_err()), "a process is left");
            assert!(other.leaves.iter().all(|leaf| is_alive(*leaf)), "one of the other subject is gone");
            // The dead of the other subject are its own to reap.
            sys::signal::send(other.leaves[0].pid, KILL).unwrap();
            other.kill_root();
            await_that(|| procfs::stat(other.leaves[0].pid).unwrap().is_zombie());
            reaper.reap_orphans(one.owner, one.pid);
            reaper.clear_construction(one.owner, &HashSet::new()).unwrap();
            assert!(procfs::stat(other.leaves[0].pid).unwrap().is_zombie());
            reaper.clear(other.owner, other.pid, &[], &HashSet::new()).unwrap();
            assert_eq!((other.status(), reaper.departed(one.owner, Pid(0))), (Some(9), Vec::new()));
            assert_eq!(procfs::children(reaper.own).unwrap().len(), 0);
        });
    }
}
