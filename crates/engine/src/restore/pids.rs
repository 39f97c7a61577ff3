//! Waits until the pids of a tree are free.
//!
//! Owns: the search for the holder of a pid (a process, thread, process group or session), and the time limits of
//! the wait.
//! Invariants: if a living process holds a pid, the restore is refused within a fraction of a second, and the error
//! names the pid. The restore waits for an ending process, also after the process has disappeared from `/proc`: the
//! kernel frees the pid a moment later.
//! Does not: end processes.

use std::time::Duration;

use model::Pid;
use sys::Errno;
use sys::clock::Deadline;
use tracee::{RemoteError, procfs};

use crate::error::{EngineError, Result};

/// The maximum time in which the holder of a pid must end and be reaped.
const END_LIMIT: Duration = Duration::from_secs(2);
/// The time after which a holder without a sign of its end counts as living. A killed thread shows no sign for a
/// moment, between the dequeuing of the signal and its exit.
const LIVING_LIMIT: Duration = Duration::from_millis(200);
/// The time between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The bit of SIGKILL in a signal set.
const KILL_BIT: u64 = 1 << 8;

/// The holder of a pid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    /// A living process or thread.
    Living,
    /// A process or thread that has ended and that `parent` has not reaped.
    Zombie { parent: Pid },
    /// A process or thread that is ending.
    Ending,
    /// A process whose process group or session has this id. `is_ending` is true if the process is ending or has
    /// ended.
    Member { pid: Pid, is_ending: bool },
}

impl Holder {
    fn is_living(self) -> bool {
        matches!(self, Self::Living | Self::Member { is_ending: false, .. })
    }

    fn error(self, number: Pid) -> EngineError {
        match self {
            Self::Living | Self::Ending => EngineError::PidTaken(number),
            Self::Zombie { parent } => EngineError::PidUnreaped { pid: number, parent },
            Self::Member { pid, .. } => EngineError::PidOfGroup { number, member: pid },
        }
    }
}

/// Waits until no process and no thread has this pid.
pub(super) fn await_free(number: Pid) -> Result<()> {
    wait_while(number, || task_of(number))
}

fn wait_while(number: Pid, holder: impl Fn() -> Option<Holder>) -> Result<()> {
    let end = Deadline::after(END_LIMIT);
    let mut living: Option<Deadline> = None;
    while let Some(holder) = holder() {
        living = holder.is_living().then(|| living.unwrap_or_else(|| Deadline::after(LIVING_LIMIT)));
        if living.is_some_and(Deadline::has_passed) || end.has_passed() {
            return Err(holder.error(number));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Creates a task with this pid. Retries while clone3(2) fails with EEXIST and no living process holds the pid.
pub(super) fn create<T>(
    number: Pid,
    mut create: impl FnMut() -> std::result::Result<T, RemoteError>,
) -> Result<T> {
    let end = Deadline::after(END_LIMIT);
    loop {
        match create() {
            Err(error) if says_taken(&error) => {
                wait_while(number, || task_of(number).or_else(|| member_of(number)))?;
                if end.has_passed() {
                    return Err(EngineError::PidTaken(number));
                }
                std::thread::sleep(POLL_INTERVAL);
            }
            outcome => return Ok(outcome?),
        }
    }
}

fn says_taken(error: &RemoteError) -> bool {
    match error {
        RemoteError::Kernel(error) => error.errno == Errno::EEXIST,
        RemoteError::Refused { errno, .. } => *errno == Errno::EEXIST,
        _ => false,
    }
}

/// Returns the process or thread with this pid. `/proc/N` also exists if N is the tid of a thread.
fn task_of(number: Pid) -> Option<Holder> {
    let stat = procfs::thread_stat(number, number.leader()).ok()?;
    Some(if stat.is_zombie() {
        Holder::Zombie { parent: stat.ppid }
    } else if is_ending(number, &stat) {
        Holder::Ending
    } else {
        Holder::Living
    })
}

fn is_ending(pid: Pid, stat: &procfs::Stat) -> bool {
    let is_killed = |status: procfs::Status| (status.signals_pending | status.shared_pending) & KILL_BIT != 0;
    stat.is_ending() || procfs::status(pid).is_ok_and(is_killed)
}

/// Returns a process whose process group or session has this id. For the kernel, a zombie also keeps the id in use.
fn member_of(number: Pid) -> Option<Holder> {
    let mut found = None;
    for pid in procfs::processes().unwrap_or_default() {
        let Ok(stat) = procfs::stat(pid) else { continue };
        if stat.pgrp == number || stat.session == number {
            let is_ending = is_ending(pid, &stat);
            found = Some(Holder::Member { pid, is_ending });
            if !is_ending {
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    use sys::clone::WantedPid;
    use tracee::Stub;

    use super::*;

    fn sleeper() -> Command {
        let mut command = Command::new("sleep");
        command.arg("1000").stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn pid(child: &Child) -> Pid {
        Pid(child.id() as i32)
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_living_process_refuses_within_a_fraction_of_a_second() {
        let child = sleeper().spawn().unwrap();
        let begun = Instant::now();
        let error = await_free(pid(&child)).unwrap_err();
        assert!(matches!(error, EngineError::PidTaken(number) if number == pid(&child)), "{error}");
        assert!(begun.elapsed() >= LIVING_LIMIT);
        end(child);
    }

    #[test]
    fn one_that_ends_meanwhile_is_waited_for() {
        let mut child = sleeper().spawn().unwrap();
        let number = pid(&child);
        let waiter = std::thread::spawn(move || await_free(number));
        child.kill().unwrap();
        // The pid is in use until the child is reaped.
        child.wait().unwrap();
        waiter.join().unwrap().unwrap();
    }

    #[test]
    fn a_pid_that_only_a_group_has_is_reported_with_a_member_and_free_when_the_member_is_reaped() {
        use std::os::unix::process::CommandExt;
        let leader = sleeper().process_group(0).spawn().unwrap();
        let number = pid(&leader);
        let mut member = sleeper().process_group(number.get()).spawn().unwrap();
        end(leader);
        let spawn = || Stub::spawn(WantedPid::Exactly(number));
        let error = match create(number, spawn) {
            // The choice of a pid needs a capability.
            Err(EngineError::Resource(_) | EngineError::Kernel(_)) => {
                println!("unsupported: choosing process numbers");
                return end(member);
            }
            Err(error) => error,
            Ok(_) => panic!("the kernel gave away the number of a group"),
        };
        let of_member = pid(&member);
        assert!(matches!(error, EngineError::PidOfGroup { member, .. } if member == of_member), "{error}");
        member.kill().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(LIVING_LIMIT);
                member.wait().unwrap();
            });
            let stub = create(number, spawn).unwrap();
            assert_eq!(stub.pid(), number);
            sys::signal::send(number, model::Signal(9)).unwrap();
        });
        let ended = rustix::process::Pid::from_raw(number.get());
        rustix::process::waitpid(ended, rustix::process::WaitOptions::empty()).unwrap();
    }
}
