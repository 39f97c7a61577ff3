//! Detaching threads that run: each has to stop first.
//!
//! Owns: the options that a subject's threads are attached with, the wait for their stops.
//! Invariants: what a thread creates meanwhile is detached as well.
//! Does not: detach what is stopped already; `stopped` does.

use std::time::Duration;

use model::{Pid, Tid};
use sys::ptrace::Options;

use crate::thread::{Running, StopOutcome, Thread};
use crate::tracer::{self, Waiter};

/// Options a subject's threads are seized with while they are being stopped.
pub(crate) const OPTIONS: Options =
    Options::SYSCALL_GOOD.with(Options::CLONE).with(Options::FORK).with(Options::VFORK);
/// How long the threads may take to stop. One that does not is detached when the tree is stopped again, or the tracer
/// ends.
const LIMIT: Duration = Duration::from_secs(10);
/// Times strays are looked for: each time there is one only if the one before has ended while it created another.
const STRAY_ROUNDS_MAX: usize = 16;

/// Detaches what the kernel has attached and no tracee has reported.
pub(super) fn detach_strays() {
    let attached = |(pid, tid): (Pid, Tid)| Thread::attached(pid, tid, OPTIONS);
    // A stray that ends may have been at the creation of another one.
    for _ in 0..STRAY_ROUNDS_MAX {
        let strays: Vec<_> = tracer::strays().into_iter().map(attached).collect();
        if strays.is_empty() {
            return;
        }
        detach_running(strays);
    }
}

/// Detaches threads as soon as they stop.
pub(super) fn detach_running(mut pending: Vec<Thread<Running>>) {
    for thread in &pending {
        // One that has ended is noticed below.
        let _ = thread.interrupt();
    }
    let (mut waiter, mut is_in_time) = (Waiter::new(LIMIT), true);
    loop {
        for thread in std::mem::take(&mut pending) {
            let (pid, tid, options) = (thread.pid(), thread.tid(), thread.options());
            match thread.look() {
                Ok(StopOutcome::Stopped(stopped)) => drop(stopped.detach()),
                Ok(StopOutcome::Created(thread, created)) => {
                    pending.extend([Some(thread), Thread::adopted(created, options)].into_iter().flatten());
                }
                Ok(StopOutcome::Gone) => {}
                _ if is_in_time && !tracer::has_ended_unseen(pid, tid, waiter.waited()) => {
                    pending.push(Thread::attached(pid, tid, options));
                }
                _ => tracer::note_end(pid, tid),
            }
        }
        tracer::take_ends();
        let Some(first) = pending.first().map(Thread::tid) else { return };
        is_in_time = matches!(waiter.block(first), Ok(true));
    }
}
