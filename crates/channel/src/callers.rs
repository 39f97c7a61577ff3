//! Callers that wait for a provider.
//!
//! Owns: the calls that were put aside, with their limits.
//! Invariants: at most `callers_max` calls; a thread has one call at most; a call that is taken out is answered by the
//! caller of this module.
//! Does not: know whether a provider is ready.

use std::sync::Arc;
use std::time::{Duration, Instant};

use model::Tid;
use sys::listener_holder::HeldCall;
use sys::seccomp_listener::{Listener, NotificationId};
use tracee::procfs;

use crate::id::ComponentId;
use crate::route::Target;

/// How long an interrupted call stays in the table. Meanwhile a signal handler runs or a checkpoint is taken. The kernel
/// then restarts the call, which waits for the rest of its limit.
const REPEAT_LIMIT: Duration = Duration::from_secs(1);
/// Check interval for few callers; longer for many.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// What one caller adds to the interval, so that a thousand cost a few per cent of a processor.
const CHECK_INTERVAL_PER_CALLER: Duration = Duration::from_micros(200);

/// SIGSTOP, SIGTSTP, SIGTTIN and SIGTTOU, bit 0 for signal 1.
const STOPS: u64 = 0b1111 << 18;

/// A call that was put aside.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) component: ComponentId,
    pub(crate) thread: Tid,
    pub(crate) provider: ComponentId,
    pub(crate) target: Target,
    pub(crate) since: Instant,
    pub(crate) deadline: Instant,
    pub(crate) call: Call,
    /// A signal interrupts the call in the kernel.
    is_interruptible: bool,
    gone_since: Option<Instant>,
}

/// How a call is answered.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) id: NotificationId,
    pub(crate) listener: Arc<Listener>,
    /// The listener holder answers it, should this process die.
    pub(crate) _row: HeldCall,
}

/// All calls that were put aside.
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

    /// Lets the call happen.
    pub(crate) fn proceed(self) {
        // A call that was broken off needs no answer.
        let _ = self.call.listener.answer_continue(self.call.id);
    }
}

impl Callers {
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Callers whose calls were not interrupted at the last check.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Caller> {
        self.list.iter().filter(|caller| caller.gone_since.is_none())
    }

    pub(crate) fn add(&mut self, caller: Caller) {
        self.list.push(caller);
    }

    /// Takes out the earlier call of a thread that repeats it.
    pub(crate) fn take_earlier(&mut self, thread: Tid) -> Option<Caller> {
        let index = self.list.iter().position(|caller| caller.thread == thread)?;
        Some(self.list.swap_remove(index))
    }

    /// Takes out the calls that `ends` says.
    pub(crate) fn take(&mut self, ends: impl Fn(&Caller) -> bool) -> Vec<Caller> {
        self.list.extract_if(.., |caller| ends(caller)).collect()
    }

    /// Takes out the calls whose limits have passed or whose threads have a signal to handle, and forgets those that were
    /// broken off and not repeated.
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

    /// When they have to be checked next; `None` if there are none.
    pub(crate) fn next_look(&self, now: Instant) -> Option<Duration> {
        let first = self.list.iter().map(|caller| caller.deadline).min()?;
        let interval = CHECK_INTERVAL + CHECK_INTERVAL_PER_CALLER * self.list.len() as u32;
        Some(interval.min(first.saturating_duration_since(now)))
    }
}

/// Whether a signal is pending for a thread that leads to a handler or to a stop. A deadly signal ends the call by itself.
fn has_signal(thread: Tid) -> bool {
    let Ok(status) = procfs::read(format!("/proc/{thread}/status")) else { return false };
    let set = |name| procfs::signal_set(&status, name);
    let handled = set("SigCgt") | (STOPS & !set("SigIgn"));
    (set("SigPnd") | set("ShdPnd")) & !set("SigBlk") & handled != 0
}
