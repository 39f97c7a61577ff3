//! Callers: threads whose connect(2) is held until the called component is ready.
//!
//! Owns: the held calls and their time limits.
//! Invariants: there are at most `callers_max` held calls, and at most one for each thread. The user of this module
//! must answer each call that is removed from the table.
//! Does not: check whether a provider is ready.

use std::sync::Arc;
use std::time::{Duration, Instant};

use model::Tid;
use sys::listener_holder::HeldCall;
use sys::seccomp_listener::{Listener, NotificationId};
use tracee::procfs;

use crate::id::ComponentId;
use crate::route::Target;

/// Time for which an interrupted call stays in the table. In this time, a signal handler runs or a checkpoint is taken.
/// The kernel then restarts the call, and the call waits for the remaining part of its limit.
const REPEAT_LIMIT: Duration = Duration::from_secs(1);
/// Fixed part of the check interval.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Increase of the check interval for each caller. A thousand callers then use a few per cent of a CPU.
const CHECK_INTERVAL_PER_CALLER: Duration = Duration::from_micros(200);

/// Signal set of SIGSTOP, SIGTSTP, SIGTTIN and SIGTTOU. Bit 0 is signal 1.
const STOPS: u64 = 0b1111 << 18;

/// A held call of connect(2).
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) component: ComponentId,
    pub(crate) thread: Tid,
    pub(crate) provider: ComponentId,
    pub(crate) target: Target,
    pub(crate) since: Instant,
    pub(crate) deadline: Instant,
    pub(crate) call: Call,
    /// Whether a signal interrupts the held call in the kernel.
    is_interruptible: bool,
    gone_since: Option<Instant>,
}

/// The data for the answer to a call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) id: NotificationId,
    pub(crate) listener: Arc<Listener>,
    /// The entry of the call in the listener holder, a helper process. If this process dies, the holder answers the
    /// call.
    pub(crate) _row: HeldCall,
}

/// All held calls.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    list: Vec<Caller>,
}

impl Caller {
    pub(crate) fn new(
        (component, thread): (ComponentId, Tid),
        (provider, target): (ComponentId, Target),
        (since, deadline): (Instant, Instant),
        call: Call,
        is_interruptible: bool,
    ) -> Self {
        let gone_since = None;
        Self { component, thread, provider, target, since, deadline, call, is_interruptible, gone_since }
    }

    /// Lets the kernel execute the call.
    pub(crate) fn proceed(self) {
        // An error means that the call was interrupted. Such a call needs no answer.
        let _ = self.call.listener.answer_continue(self.call.id);
    }
}

impl Callers {
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the callers whose calls were not interrupted at the last check.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Caller> {
        self.list.iter().filter(|caller| caller.gone_since.is_none())
    }

    pub(crate) fn add(&mut self, caller: Caller) {
        self.list.push(caller);
    }

    /// Removes and returns the earlier call of a thread that repeats the call.
    pub(crate) fn take_earlier(&mut self, thread: Tid) -> Option<Caller> {
        let index = self.list.iter().position(|caller| caller.thread == thread)?;
        Some(self.list.swap_remove(index))
    }

    /// Removes and returns the calls for which `ends` returns true.
    pub(crate) fn take(&mut self, ends: impl Fn(&Caller) -> bool) -> Vec<Caller> {
        self.list.extract_if(.., |caller| ends(caller)).collect()
    }

    /// Removes and returns the calls whose limit has passed, and the calls that delay a pending signal of their thread.
    /// Also removes calls that were interrupted and not repeated.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<Caller> {
        for caller in &mut self.list {
            if caller.gone_since.is_none() && !caller.call.listener.is_valid(caller.call.id) {
                caller.gone_since = Some(now);
            }
        }
        self.list.retain(|caller| {
            caller.gone_since.is_none_or(|since| now.saturating_duration_since(since) < REPEAT_LIMIT)
        });
        self.take(|caller| {
            let delays_signals = !caller.is_interruptible && caller.gone_since.is_none();
            caller.deadline <= now || (delays_signals && has_signal(caller.thread))
        })
    }

    /// Returns the time until the next check; `None` without callers.
    pub(crate) fn next_check(&self, now: Instant) -> Option<Duration> {
        let first = self.list.iter().map(|caller| caller.deadline).min()?;
        let interval = CHECK_INTERVAL + CHECK_INTERVAL_PER_CALLER * self.list.len() as u32;
        Some(interval.min(first.saturating_duration_since(now)))
    }
}

/// Reports whether a pending signal of a thread has a handler or stops the thread. A fatal signal is not considered,
/// because it ends the call by itself.
fn has_signal(thread: Tid) -> bool {
    let Ok(status) = procfs::read(format!("/proc/{thread}/status")) else { return false };
    let set = |name| procfs::signal_set(&status, name);
    let handled = set("SigCgt") | (STOPS & !set("SigIgn"));
    (set("SigPnd") | set("ShdPnd")) & !set("SigBlk") & handled != 0
}
