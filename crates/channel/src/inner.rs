//! The data that the threads of this crate share.
//!
//! Owns: the lock, and the loop of the thread that ends the waits of callers and keeps paths.
//! Invariants: while a thread holds the lock, the thread neither waits for a program nor closes a socket.
//! Does not: receive calls.

use std::fs::File;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sys::clock::Clock;
use sys::listener_holder::{HELD_CALLS_MAX, ListenerHolder};

use crate::state::{Outcome, State};

/// Poll interval for a socket whose listen(2) continues in the kernel; about the duration of the call.
const LISTEN_POLL: Duration = Duration::from_micros(500);
/// Poll interval for the paths of a program that is being ended for a restart. After the program has unlinked a path,
/// clients find no file for this time.
const PATH_POLL: Duration = Duration::from_millis(2);
/// Maximum duration of a listen(2) that continues in the kernel. The call takes microseconds, unless the thread is
/// stopped during the call.
pub(crate) const LISTEN_LIMIT: Duration = Duration::from_secs(5);

/// Replacement for a limit that the clock cannot represent.
const FOREVER: Duration = Duration::from_hours(24 * 365);

/// Limits for callers and for held sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Maximum time for which connect(2) on a blocking socket is held. If SO_SNDTIMEO of the socket is shorter, it
    /// applies.
    pub blocking: Duration,
    /// Maximum time for which connect(2) on a socket with O_NONBLOCK is held. In this time, the event loop of the
    /// caller is blocked. Zero means that such calls are not held.
    pub nonblocking: Duration,
    /// Maximum number of callers that are held at the same time, up to [`HELD_CALLS_MAX`]. Further callers are not
    /// held.
    pub callers_max: usize,
    /// Time from the start of a new incarnation until sockets that the incarnation has not bound again are released.
    pub unclaimed: Duration,
    /// Time from the readiness of the incarnation until such sockets are released, if this time ends earlier.
    pub unclaimed_after_ready: Duration,
}

impl Default for Limits {
    /// Returns 60 s, 1 s, 1,024 callers, 60 s and 5 s, in the order of the fields.
    fn default() -> Self {
        Self {
            blocking: Duration::from_secs(60),
            nonblocking: Duration::from_secs(1),
            callers_max: HELD_CALLS_MAX,
            unclaimed: Duration::from_secs(60),
            unclaimed_after_ready: Duration::from_secs(5),
        }
    }
}

/// The data that the threads share.
#[derive(Debug)]
pub(crate) struct Inner {
    state: Mutex<State>,
    /// Notified when the thread that ends waits must check the callers and sockets.
    wake: Condvar,
    pub(crate) holder: ListenerHolder,
    /// The file into which the listener holder writes if this process dies: /dev/null, because the line is not needed.
    pub(crate) null: File,
    pub(crate) clock: Clock,
    pub(crate) limits: Limits,
}

impl Inner {
    pub(crate) fn new(holder: ListenerHolder, null: File, clock: Clock, limits: Limits) -> Self {
        Self { state: Mutex::default(), wake: Condvar::new(), holder, null, clock, limits }
    }

    /// Locks the state. A panic of another thread leaves the state consistent, because every change is a single step.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time that is `limit` from now.
    pub(crate) fn after(&self, limit: Duration) -> Instant {
        let now = self.clock.now();
        now.checked_add(limit).unwrap_or(now + FOREVER)
    }

    /// Wakes the thread that ends waits.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Ends the waits of callers until the channels are dropped. At the drop, all callers proceed.
    pub(crate) fn end_waits(&self) {
        let mut state = self.state();
        loop {
            let now = self.clock.now();
            let mut outcome = if state.pending.is_empty() { Outcome::default() } else { state.confirm(now) };
            let is_ending = state.is_ending;
            let paths = state.keep_paths().then_some(PATH_POLL);
            outcome.callers.extend(match is_ending {
                true => state.callers.take(|_| true),
                false => state.callers.take_due(now),
            });
            if !outcome.callers.is_empty() || !outcome.closed.is_empty() {
                drop(state);
                outcome.settle();
                state = self.state();
                continue;
            }
            if is_ending {
                return;
            }
            let check = state.callers.next_check(now);
            let poll = (!state.pending.is_empty()).then_some(LISTEN_POLL);
            state = match check.into_iter().chain(poll).chain(paths).min() {
                Some(limit) => {
                    let waited = self.wake.wait_timeout(state, limit);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}
