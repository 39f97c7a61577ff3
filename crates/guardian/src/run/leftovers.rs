//! Finds and ends processes that remain after the death of a subject, or that have left the tree of a living subject.
//!
//! This process is the guardian of the subjects. If the parent of a process ends, the guardian becomes the parent, and
//! the process leaves the tree.
//!
//! Owns: the assignment of processes to subjects, and finding, ending and reaping processes of one subject. Also owns
//! the list of processes that have left the tree.
//! Invariants: children that this process had before its first subject are never killed. Cleaning up one subject kills
//! no process of another subject. A dead root is not reaped. All processes are stopped before the first process is
//! killed, so that no process reacts to the end of another process.
//! Does not: decide when processes are ended; the guard calls this module after a death and before a restore.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{Pid, ProcessKey, StartTime};
use rustix::process::{WaitId, WaitIdOptions};
use sys::clock::Deadline;
use sys::listener_holder::Creation;
use tracee::{Roots, procfs, tree};

use crate::error::{GuardianError, Result};
use crate::mark;
use crate::signals::{KILL, STOP};

/// Maximum time between a kill and the end of the process. Only a process that hangs in the kernel needs more time.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two checks whether killed processes have ended.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Time after which the trees of all subjects are surveyed again, although no process has left a tree. A survey reads some
/// files for each process of all subjects.
const SURVEY_EVERY: Duration = Duration::from_secs(1);

/// The identifier of one subject of this program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Owner(u32);

/// The children of this program, and the subjects to which they belong.
#[derive(Debug)]
pub(crate) struct ProcessReaper {
    own: Pid,
    table: Mutex<Table>,
}

/// The subject to which each process belongs.
#[derive(Default, Debug)]
struct Table {
    /// Children of this program that belong to no subject, with their start times.
    foreign: HashMap<Pid, StartTime>,
    /// Number of subjects so far, including subjects that have ended.
    admitted: u32,
    /// Whether this process may also start children that belong to no subject.
    is_shared: bool,
    roots: BTreeMap<Owner, Vec<ProcessKey>>,
    /// The mark of each subject: the value of `mark::VARIABLE` in the environment of its processes. No other subject has this
    /// value. A mark identifies a process that `survey` has not found.
    marks: BTreeMap<Owner, String>,
    /// Subjects whose current incarnation was not started by this program.
    strangers: BTreeSet<Owner>,
    /// Descendants of the roots, as found by `survey`. A process stays in the list when its parent ends.
    members: HashMap<ProcessKey, Owner>,
    /// The time of the next survey of all trees; `None` before the first one.
    next_survey: Option<Deadline>,
}

impl Table {
    /// Finds the descendants of all roots, and removes processes that have ended.
    fn survey(&mut self) {
        self.members.retain(|key, _| procfs::key(key.pid).is_ok_and(|found| found == *key));
        let found = |(owner, root): (Owner, ProcessKey)| {
            descendants(root.pid).into_iter().map(move |key| (key, owner))
        };
        let found: Vec<_> = self.each_root().flat_map(found).collect();
        self.members.extend(found);
        self.next_survey = Some(Deadline::after(SURVEY_EVERY));
    }

    fn each_root(&self) -> impl Iterator<Item = (Owner, ProcessKey)> + '_ {
        self.roots.iter().flat_map(|(owner, roots)| roots.iter().map(|root| (*owner, *root)))
    }

    fn owner_of(&self, key: ProcessKey) -> Option<Owner> {
        let root = self.each_root().find(|(_, root)| *root == key).map(|(owner, _)| owner);
        root.or_else(|| self.members.get(&key).copied())
    }

    /// Reports whether all children belong to one subject, because there was never another subject or another child.
    fn is_only(&self) -> bool {
        self.admitted <= 1 && !self.is_shared
    }

    /// Returns the subject that has the mark of the process, otherwise the subject whose root leads the process's
    /// session. Both tests are needed: some programs overwrite their environment, and daemons leave their session.
    fn recognised(&self, pid: Pid) -> Option<Owner> {
        let mark = mark::of(pid);
        let has_mark = |own: &String| !own.is_empty() && mark.as_deref() == Some(own.as_bytes());
        let marked = self.marks.iter().find(|(_, own)| has_mark(own)).map(|(owner, _)| *owner);
        marked.or_else(|| {
            let session = procfs::stat(pid).ok()?.session;
            self.each_root().find(|(_, root)| root.pid == session).map(|(owner, _)| owner)
        })
    }

    fn is_foreign(&self, key: ProcessKey) -> bool {
        self.foreign.get(&key.pid) == Some(&key.start)
    }
}

impl ProcessReaper {
    /// Records the children that exist before the first subject. Makes this process a subreaper, which becomes the
    /// parent of the subjects' orphans.
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

    /// Records that a child of this program belongs to no subject. The code that has started the child reaps it.
    pub(crate) fn exempt(&self, pid: Pid) {
        if let Ok(key) = procfs::key(pid) {
            self.table().foreign.insert(pid, key.start);
        }
    }

    /// Creates a child of this program that belongs to no subject. No other thread finds the child before the child is
    /// recorded.
    pub(crate) fn create_exempt(&self, create: Creation<'_>) -> sys::Result<Pid> {
        let mut table = self.table();
        let pid = create()?;
        if let Ok(key) = procfs::key(pid) {
            table.foreign.insert(pid, key.start);
        }
        Ok(pid)
    }

    /// After this call, a child is assigned to a subject only if the child is known to belong to this subject.
    pub(crate) fn share(&self) {
        self.table().is_shared = true;
    }

    /// Adds a subject with the mark `mark`. `is_stranger` states that this program has not started the subject. The
    /// root and the orphans of such a subject are not children of this program.
    pub(super) fn admit(&self, roots: Vec<ProcessKey>, mark: &str, is_stranger: bool) -> Owner {
        let mut table = self.table();
        let owner = Owner(table.admitted);
        table.admitted += 1;
        table.roots.insert(owner, roots);
        table.marks.insert(owner, mark.to_owned());
        if is_stranger {
            table.strangers.insert(owner);
        }
        owner
    }

    /// Records the roots of a new incarnation of a subject.
    pub(super) fn begin(&self, owner: Owner, roots: Vec<ProcessKey>) {
        let mut table = self.table();
        let is_first = table.roots.get(&owner).is_some_and(|known| *known == roots);
        if !is_first {
            table.roots.insert(owner, roots);
            table.strangers.remove(&owner);
        }
    }

    /// Records the roots of a subject, after a root has joined or left the present incarnation.
    pub(super) fn set_roots(&self, owner: Owner, roots: Vec<ProcessKey>) {
        self.table().roots.insert(owner, roots);
    }

    /// Records processes that were found in the tree of a subject.
    pub(super) fn note(&self, owner: Owner, found: &[ProcessKey]) {
        let mut table = self.table();
        // If there is only one subject, every process belongs to it.
        if !table.is_only() {
            table.members.extend(found.iter().map(|key| (*key, owner)));
        }
    }

    /// Removes a subject that has ended for good.
    pub(super) fn dismiss(&self, owner: Owner) {
        let mut table = self.table();
        table.roots.remove(&owner);
        table.marks.remove(&owner);
        table.strangers.remove(&owner);
        table.members.retain(|_, found| *found != owner);
    }

    /// Reaps dead children, except roots, tracees and foreign children. With `is_building`, unknown children are not
    /// reaped, because they may be roots that are being started. Returns whether an unknown child was not reaped.
    pub(crate) fn reap(&self, is_building: bool) -> bool {
        let mut is_left = false;
        for pid in self.adopted() {
            let Ok(stat) = procfs::stat(pid) else { continue };
            let key = stat.key();
            if !stat.is_zombie() {
                continue;
            }
            let table = self.table();
            let is_root = table.each_root().any(|(_, root)| root == key);
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

    /// Returns the orphans that became children of this process, and the children of its first thread. The kernel makes
    /// the first thread the parent of orphans.
    fn adopted(&self) -> Vec<Pid> {
        let children =
            procfs::read_text(format!("/proc/{0}/task/{0}/children", self.own)).unwrap_or_default();
        children.split_whitespace().filter_map(|word| word.parse().ok()).map(Pid).collect()
    }

    /// Reaps every dead child of a subject, except the root.
    pub(super) fn reap_orphans(&self, owner: Owner, root: Pid) {
        for pid in self.children(owner) {
            if pid != root && procfs::stat(pid).is_ok_and(|stat| stat.is_zombie()) {
                reap(pid);
            }
        }
    }

    /// Ends the remaining processes of a dead root, so that their pids are free. Also ends the `known` processes of an
    /// adopted root. The children in `spared` and their descendants are not ended.
    pub(super) fn clear(
        &self,
        owner: Owner,
        root: Pid,
        known: &[ProcessKey],
        spared: &HashSet<ProcessKey>,
    ) -> Result<()> {
        self.repeat((owner, root), known, spared, || self.reap_orphans(owner, root))
    }

    /// Returns the living processes that have left the tree of a subject. They are now children of this process. Reads
    /// one file while no process has left the tree of any subject.
    pub(super) fn departed(&self, owner: Owner, root: Pid) -> Vec<ProcessKey> {
        let mut adopted = self.adopted();
        adopted.retain(|pid| *pid != root);
        let roots: HashSet<Pid> = self.table().each_root().map(|(_, root)| root.pid).collect();
        let stats =
            adopted.into_iter().filter(|pid| !roots.contains(pid)).filter_map(|pid| procfs::stat(pid).ok());
        let living = stats.filter(|stat| !stat.is_zombie()).map(|stat| stat.key());
        self.belonging(owner, living.collect())
    }

    /// Ends processes that remain after a failed restore. This process traces these unfinished processes. The dead root
    /// was reaped before the restore.
    pub(super) fn clear_construction(&self, owner: Owner, spared: &HashSet<ProcessKey>) -> Result<()> {
        self.repeat((owner, Pid(0)), &[], spared, || {
            // The threads of a tracee must be waited for one by one.
            let threads = |pid: Pid| procfs::threads(pid).unwrap_or_default();
            for tid in self.children(owner).into_iter().flat_map(threads) {
                while let Ok(Some(_)) = sys::ptrace::poll(tid) {}
            }
        })
    }

    /// Stops, kills and reaps processes, until only the root and spared processes of the subject are left.
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
        // A reaped child may have left children of its own, and a dead child still occupies its pid.
        let unreaped =
            || self.children(owner).into_iter().filter(|pid| *pid != root && !is_spared(pid)).collect();
        end_all(living, reap, unreaped)
    }

    /// Ends the remaining processes when the last subject is over, and returns their number. Daemons that cannot be
    /// assigned to a subject are ended as well. Programs that were started for a component (`mark::OF_COMPONENT`) continue.
    pub(crate) fn end_rest(&self) -> Result<usize> {
        let children = || -> Vec<Pid> {
            let found = procfs::children(self.own).unwrap_or_default();
            let keys = found.into_iter().filter_map(|pid| procfs::key(pid).ok());
            let table = self.table();
            let is_of_subject = |key: &ProcessKey| !table.is_foreign(*key) && !mark::is_of_component(key.pid);
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

    /// Returns the living processes of a subject, without the root and without spared processes.
    fn living(&self, owner: Owner, root: Pid, is_spared: impl Fn(&Pid) -> bool) -> Vec<Pid> {
        let children = self.children(owner).into_iter().filter(|pid| *pid != root && !is_spared(pid));
        let strange = self.strange(owner, root).into_iter().filter(|pid| !is_spared(pid));
        let mut found = living_under(children.collect());
        found.extend(strange.filter(|pid| is_living(*pid)));
        found
    }

    /// Returns the processes of an incarnation without the root, or nothing if this program has started the
    /// incarnation.
    fn strange(&self, owner: Owner, root: Pid) -> Vec<Pid> {
        let table = self.table();
        let mark = table.marks.get(&owner).filter(|_| table.strangers.contains(&owner)).cloned();
        let session = table.roots.get(&owner).and_then(|roots| roots.first()).map(|root| root.pid);
        drop(table);
        let found = mark.map(|mark| mark::recognised(&mark, session)).unwrap_or_default();
        found.into_iter().filter(|pid| *pid != root).collect()
    }

    /// Returns the children of this process that belong to a subject.
    fn children(&self, owner: Owner) -> Vec<Pid> {
        let children = procfs::children(self.own).unwrap_or_default();
        let keys = children.into_iter().filter_map(|pid| procfs::key(pid).ok()).collect();
        self.belonging(owner, keys).into_iter().map(|key| key.pid).collect()
    }

    /// Returns the children of this process among `keys` that belong to a subject.
    fn belonging(&self, owner: Owner, mut keys: Vec<ProcessKey>) -> Vec<ProcessKey> {
        let mut table = self.table();
        keys.retain(|key| !table.is_foreign(*key));
        // If there is only one subject, all children belong to it, including orphans that no survey has seen in its
        // tree.
        let is_only = table.is_only();
        let is_due = table.next_survey.is_none_or(Deadline::has_passed);
        if !is_only && (is_due || keys.iter().any(|key| table.owner_of(*key).is_none())) {
            table.survey();
        }
        let is_its_own = |key: &ProcessKey| match table.owner_of(*key).or_else(|| table.recognised(key.pid)) {
            _ if is_only => true,
            Some(found) => found == owner,
            None => is_traced_by_us(key.pid),
        };
        keys.retain(is_its_own);
        keys
    }
}

/// Returns the children and their descendants that have not ended.
fn living_under(children: Vec<Pid>) -> Vec<Pid> {
    // If a process has ended meanwhile, its children are now children of this process. The next call returns them.
    let found = children.into_iter().flat_map(|child| tree::descendants(child).unwrap_or_default());
    found.filter(|pid| is_living(*pid)).collect()
}

fn is_living(pid: Pid) -> bool {
    procfs::stat(pid).is_ok_and(|stat| !stat.is_zombie())
}

/// Stops, kills and reaps processes, until no process lives and every dead process was reaped.
fn end_all(living: impl Fn() -> Vec<Pid>, reap: impl Fn(), unreaped: impl Fn() -> Vec<Pid>) -> Result<()> {
    let deadline = Deadline::after(TIMEOUT);
    loop {
        let mut left = living();
        for signal in [STOP, KILL] {
            for pid in &left {
                // A process that has ended meanwhile needs no signal.
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

/// Kills the remaining processes of a dead root, and waits until they have ended. This program has not started the
/// root, so the processes have other parents, which reap them.
pub(super) fn end_left_by(mark: &str, root: Pid) -> Result<()> {
    let deadline = Deadline::after(TIMEOUT);
    // Another process, with a session of its own, may have this pid by now.
    let is_taken = procfs::stat(root).is_ok_and(|stat| !stat.is_zombie());
    let session = Some(root).filter(|root| root.get() > 0 && !is_taken);
    loop {
        let mut left = mark::recognised(mark, session);
        left.retain(|pid| procfs::stat(*pid).is_ok_and(|stat| !stat.is_zombie()));
        let Some(first) = left.first() else { return Ok(()) };
        if deadline.has_passed() {
            return Err(GuardianError::Leftover { pid: *first });
        }
        for signal in [STOP, KILL] {
            for pid in &left {
                // A process that has ended meanwhile needs no signal.
                let _ = sys::signal::send(*pid, signal);
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Reports whether this thread traces a process. A traced process is being restored.
fn is_traced_by_us(pid: Pid) -> bool {
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    procfs::status(pid).is_ok_and(|status| status.tracer.get() == own)
}

/// Returns the descendants of the roots, each with its pid and start time.
pub(super) fn descendants(roots: impl Into<Roots>) -> Vec<ProcessKey> {
    let roots = roots.into();
    let pids = tree::descendants(&roots).unwrap_or_default();
    pids.into_iter().filter(|pid| !roots.contains(*pid)).filter_map(|pid| procfs::key(pid).ok()).collect()
}

fn is_alive(key: ProcessKey) -> bool {
    procfs::stat(key.pid).is_ok_and(|stat| stat.key() == key && !stat.is_zombie())
}

fn reap(pid: Pid) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid.get()) {
        // An error means that another thread has already reaped the process.
        let _ = rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};

    use super::*;

    /// Environment variable that is set in a process that runs only one test.
    const ALONE: &str = "UNDYING_TEST_ALONE";
    /// A root with one child, which has two children.
    const TREE: &str = "sh -c 'sleep 600 & sleep 600 & wait' & exec sleep 600";

    /// Runs a test in a new process. The new process becomes a subreaper, and has no children of other tests.
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
            Self {
                owner: reaper.admit(vec![procfs::key(pid).unwrap()], "", false),
                root,
                pid,
                middle,
                leaves,
            }
        }

        /// Kills the process in the middle. Its children become children of this process.
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
            assert!(
                other.leaves.iter().all(|leaf| is_alive(*leaf)),
                "a process of the other subject has ended"
            );
            // The clean-up of one subject must not reap the dead processes of the other subject.
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
