//! Takes the ends of traced threads while their tracer is held up.
//!
//! Owns: one background thread, asleep unless an attach takes long or a thread died while it stood.
//! Invariants: the end of a child of this process is never taken, so that no exit status is lost.
//! Does not: trace anything.
//!
//! An exec ends all other threads of its process, and waits until each has been waited for by its tracer. Whoever
//! attaches to a thread of that process meanwhile waits for the exec. A tracer that had attached to some threads
//! before would so wait for itself for ever.
//!
//! A process that is killed while it stands remains a zombie that its own parent cannot see, until its tracer has
//! waited for it.

use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use model::{Pid, Tid};
use sys::Error;
use sys::ptrace::{self, WaitStatus};

use crate::procfs;

/// How long an attach may take before ends are taken for it.
const PATIENCE: Duration = Duration::from_millis(2);
/// How long the background thread stays half awake after the last attach: waking it costs more than its looks.
const LINGER: Duration = Duration::from_millis(200);

#[derive(Default)]
struct Watched {
    threads: Vec<Tid>,
    dying: Vec<Tid>,
    last_use: Option<Instant>,
    asleep: bool,
}

#[derive(Default)]
struct Reaper {
    watched: Mutex<Watched>,
    wake: Condvar,
}

/// Threads whose ends are taken while this lives.
#[derive(Debug, Default)]
pub(crate) struct Watch(Vec<Tid>);

impl Watch {
    /// From now on also for this thread; call it before the next attach.
    pub(crate) fn add(&mut self, pid: Pid, tid: Tid) {
        if tid == pid.leader() {
            return;
        }
        reaper().with(|watched| watched.threads.push(tid));
        self.0.push(tid);
    }
}

/// Looks whether a traced thread stands in a stop, and leaves the stop untaken. Takes its end, unless the thread's
/// process is a child of ours: nobody else is told then how it ended, before Linux 6.15 not even by a pidfd.
pub(crate) fn look(pid: Pid, tid: Tid) -> Result<Option<WaitStatus>, Error> {
    let seen = ptrace::peek(tid)?;
    if is_end(seen) && !is_child(pid, tid) { ptrace::poll(tid) } else { Ok(seen) }
}

/// Whether a thread has ended although nothing tells: the end of a leader is held back as long as somebody else has not
/// waited for the ends of the other threads. Who waits for the leader with these in hand would wait for itself.
pub(crate) fn has_ended_unseen(pid: Pid, tid: Tid, waited: Duration) -> bool {
    waited > PATIENCE && procfs::thread_stat(pid, tid).map_or(true, |stat| stat.is_zombie())
}

const fn is_end(seen: Option<WaitStatus>) -> bool {
    matches!(seen, Some(WaitStatus::Exited(_) | WaitStatus::Killed(_)))
}

fn is_child(pid: Pid, tid: Tid) -> bool {
    let ours = std::process::id() as i32;
    tid == pid.leader() && procfs::stat(pid).is_ok_and(|stat| stat.ppid == Pid(ours))
}

/// Takes the end of a traced thread; false while there is none.
fn take_end(tid: Tid) -> bool {
    match ptrace::peek(tid) {
        // A stop is left alone.
        Ok(seen) if is_end(seen) => ptrace::poll(tid).is_ok(),
        Ok(None) => false,
        _ => true,
    }
}

/// Takes the end of a traced thread that was killed while it stood, as soon as it has ended.
pub(crate) fn bury(pid: Pid, tid: Tid) {
    if !is_child(pid, tid) {
        reaper().with(|watched| {
            if !watched.dying.contains(&tid) {
                watched.dying.push(tid);
            }
        });
    }
}

impl Reaper {
    fn with(&self, change: impl FnOnce(&mut Watched)) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut watched);
        watched.last_use = Some(Instant::now());
        if std::mem::replace(&mut watched.asleep, false) {
            self.wake.notify_one();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            let mut watched = reaper().watched.lock().unwrap_or_else(PoisonError::into_inner);
            watched.threads.retain(|tid| !self.0.contains(tid));
        }
    }
}

fn reaper() -> &'static Reaper {
    static REAPER: OnceLock<Reaper> = OnceLock::new();
    static STARTED: OnceLock<()> = OnceLock::new();
    let reaper = REAPER.get_or_init(Reaper::default);
    STARTED.get_or_init(|| {
        // Without the thread an attach may hang when it meets an exec, as it always does elsewhere.
        let _ = std::thread::Builder::new().name("reaper".to_owned()).spawn(move || watch(reaper));
    });
    reaper
}

fn watch(reaper: &Reaper) {
    let mut watched = reaper.watched.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        watched.dying.retain(|tid| !take_end(*tid));
        let idle = watched.threads.is_empty() && watched.dying.is_empty();
        if idle && watched.last_use.is_none_or(|at| at.elapsed() > LINGER) {
            watched.asleep = true;
            watched = reaper.wake.wait(watched).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let before = watched.threads.clone();
        watched = reaper.wake.wait_timeout(watched, PATIENCE).unwrap_or_else(PoisonError::into_inner).0;
        for tid in before.iter().filter(|tid| watched.threads.contains(tid)) {
            take_end(*tid);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_end_of_a_child_is_seen_and_left_to_who_waits_for_it() {
        let mut child = Command::new("sleep").arg("100").stdin(Stdio::null()).spawn().unwrap();
        let (pid, tid) = (Pid(child.id() as i32), Tid(child.id() as i32));
        ptrace::seize(tid, 0).unwrap();
        child.kill().unwrap();
        let seen = loop {
            if let Some(seen) = look(pid, tid).unwrap() {
                break seen;
            }
            std::thread::yield_now();
        };
        assert_eq!(seen, WaitStatus::Killed(model::Signal(9)));
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}
