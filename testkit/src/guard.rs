//! Cleanup of the processes that a test has started.
//!
//! Owns: the mark, an environment variable with a different value for every guard. Every process of a test inherits the
//! mark. A restored program has the mark again, because its environment is restored.
//! Invariants: only marked processes are killed. The harness itself is never marked.

use std::collections::HashSet;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use model::Fd;
use rustix::process::{Signal, getpid, set_child_subreaper};

use crate::dump;
use crate::limits::{CLEANUP_ROUNDS_MAX, POLL};
use crate::process::{self, ProcessId, has_environment, own_pid};

const VARIABLE: &str = "UNDYING_TEST_MARK";

/// Kills all processes with its mark on drop.
#[derive(Debug)]
pub struct Guard {
    mark: String,
    /// The processes in which the mark was found. While a process calls execve(2), its environment cannot be read.
    seen: Mutex<HashSet<ProcessId>>,
}

/// Sets close-on-exec on all descriptors that this process has inherited, for example pipes of a shell or a build. A
/// checkpoint would refuse such pipes. Descriptors that a test opens later are not affected.
fn hide_inherited() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Err(error) = sys::close_range::close_on_exec_from(Fd(3)) {
            crate::unsupported(&error.to_string());
        }
    });
}

impl Guard {
    /// Creates a guard with a unique mark.
    #[must_use]
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        hide_inherited();
        // Orphans become children of the harness, so that the harness can reap them.
        let _only_tidier = set_child_subreaper(Some(getpid()));
        Self { mark: format!("{}-{now}-{number}", getpid().as_raw_nonzero()), seen: Mutex::default() }
    }

    /// Marks a program before its start.
    pub fn mark<'command>(&self, command: &'command mut Command) -> &'command mut Command {
        command.env(VARIABLE, &self.mark)
    }

    /// Returns the living processes with the mark.
    #[must_use]
    pub fn marked(&self) -> Vec<ProcessId> {
        let entry = format!("{VARIABLE}={}", self.mark);
        let candidates =
            process::all().into_iter().filter(|process| process.pid() != own_pid() && process.is_alive());
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let found = candidates.filter(|process| seen.contains(process) || has_environment(*process, &entry));
        let found: Vec<_> = found.collect();
        seen.extend(&found);
        found
    }

    /// Describes the activity of each thread of the marked processes, with one line for each thread.
    #[must_use]
    pub fn describe(&self) -> String {
        dump::describe(&self.marked())
    }

    /// Kills all marked processes, including processes that appear during the call.
    pub fn kill_all(&self) {
        for _round in 0..CLEANUP_ROUNDS_MAX {
            let marked = self.marked();
            if marked.is_empty() {
                return;
            }
            for process in &marked {
                let _gone_already = process.signal(Signal::KILL);
            }
            thread::sleep(POLL);
            let _how_they_ended = marked.iter().filter_map(|process| process.reap()).count();
        }
    }
}

impl Default for Guard {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.kill_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_starts_itself_again_and_again_is_killed() {
        let guard = Guard::new();
        let mut command = Command::new("sh");
        let again = "exec sh -c \"$0\" \"$0\"";
        let mut child = guard.mark(command.args(["-c", again, again])).spawn().unwrap();
        while guard.marked().is_empty() {
            thread::sleep(POLL);
        }
        for _ in 0..200 {
            assert_eq!(guard.marked().len(), 1);
        }
        drop(guard);
        assert!(child.wait().map_or(true, |status| !status.success()));
    }

    #[test]
    fn only_marked_processes_are_killed() {
        let guard = Guard::new();
        let mut bystander = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut marked =
            guard.mark(Command::new("sh").args(["-c", "sleep 1000 & sleep 1000"])).spawn().unwrap();
        while guard.marked().len() < 3 {
            thread::sleep(POLL);
        }
        drop(guard);
        // The guard may have reaped the process already. In this case, `wait` returns an error.
        assert!(marked.wait().map_or(true, |status| !status.success()));
        assert!(bystander.try_wait().unwrap().is_none());
        bystander.kill().unwrap();
        bystander.wait().unwrap();
    }
}
