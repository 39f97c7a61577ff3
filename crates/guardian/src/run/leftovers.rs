//! Processes that a dead subject has left behind.
//!
//! Owns: finding, ending and reaping them.
//! Invariants: children that this program had before its subject are never killed; the dead root is not reaped; all
//! are stopped before the first is killed, so that none acts on the end of another.
//! Does not: decide when; after a death and before a restore is when.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use model::{Pid, ProcessKey, Tid};
use rustix::process::{WaitId, WaitIdOptions};
use tracee::{procfs, tree};

use crate::error::{GuardianError, Result};
use crate::signals::{KILL, STOP};

/// How long killed processes may take to go: longer than any that are not stuck in the kernel.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether they have gone.
const NAP: Duration = Duration::from_micros(200);

/// What is not a subject's.
#[derive(Debug)]
pub(super) struct Household {
    own: Pid,
    foreign: HashSet<Pid>,
}

impl Household {
    /// Takes note of the children that are there before there is a subject, and becomes the one to whom the
    /// orphans of the subject fall.
    pub(super) fn found() -> Result<Self> {
        let own = Pid(std::process::id() as i32);
        let foreign = procfs::children(own)?.into_iter().collect();
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|errno| sys::Error::new("become a subreaper", errno))?;
        Ok(Self { own, foreign })
    }

    /// Takes the status of every dead child but the root.
    pub(super) fn reap_orphans(&self, root: Pid) {
        for pid in self.children() {
            if pid != root && procfs::stat(pid).is_ok_and(|stat| stat.is_zombie()) {
                reap(pid);
            }
        }
    }

    /// Ends everything that a dead root has left: our descendants, and those of an adopted root that were known.
    /// Their numbers are free afterwards. Spares some of our children and their descendants.
    pub(super) fn clear(&self, root: Pid, known: &[ProcessKey], spared: &HashSet<ProcessKey>) -> Result<()> {
        self.repeat(root, known, spared, || self.reap_orphans(root))
    }

    /// Our living children besides the root: those that have left its tree.
    pub(super) fn departed(&self, root: Pid) -> Vec<ProcessKey> {
        let children = self.children().into_iter().filter(|pid| *pid != root);
        children
            .filter_map(|pid| procfs::stat(pid).ok())
            .filter(|stat| !stat.is_zombie())
            .map(|stat| stat.key())
            .collect()
    }

    /// Ends what a restore that failed may have left: processes under construction, traced by us. The dead root has
    /// been reaped by then.
    pub(super) fn clear_construction(&self, spared: &HashSet<ProcessKey>) -> Result<()> {
        // Threads of a tracee have to be waited for one by one.
        self.repeat(Pid(0), &[], spared, || while let Ok(Some(_)) = sys::ptrace::poll(Tid(-1)) {})
    }

    /// Stops, kills and reaps until no process is left.
    fn repeat(
        &self,
        root: Pid,
        known: &[ProcessKey],
        spared: &HashSet<ProcessKey>,
        reap: impl Fn(),
    ) -> Result<()> {
        let started = Instant::now();
        let is_spared =
            |pid: &Pid| !spared.is_empty() && procfs::key(*pid).is_ok_and(|key| spared.contains(&key));
        loop {
            let mut left = self.living(root, is_spared);
            left.extend(known.iter().filter(|key| is_alive(**key)).map(|key| key.pid));
            for signal in [STOP, KILL] {
                for pid in &left {
                    // One that has gone meanwhile is what is wanted.
                    let _ = sys::signal::send(*pid, signal);
                }
            }
            reap();
            // Those that were reaped as children may have left children, and the dead hold their numbers still.
            left.extend(self.children().into_iter().filter(|pid| *pid != root && !is_spared(pid)));
            let Some(first) = left.first() else { return Ok(()) };
            if started.elapsed() > PATIENCE {
                return Err(GuardianError::Leftover { pid: *first });
            }
            std::thread::sleep(NAP);
        }
    }

    /// Descendants of ours that are neither foreign nor spared nor dead.
    fn living(&self, root: Pid, is_spared: impl Fn(&Pid) -> bool) -> Vec<Pid> {
        let children = self.children().into_iter().filter(|pid| *pid != root && !is_spared(pid));
        let mut found = Vec::new();
        for child in children {
            // A child that has gone meanwhile has left its own to us; the next list has them.
            found.extend(tree::descendants(child).unwrap_or_default());
        }
        found.retain(|pid| procfs::stat(*pid).is_ok_and(|stat| !stat.is_zombie()));
        found
    }

    fn children(&self) -> Vec<Pid> {
        let children = procfs::children(self.own).unwrap_or_default();
        children.into_iter().filter(|pid| !self.foreign.contains(pid)).collect()
    }
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
        // Reaped by somebody else is reaped as well.
        let _ = rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}
