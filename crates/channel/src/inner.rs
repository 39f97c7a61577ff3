//! What the threads of this crate share.
//!
//! Owns: the lock, the thread that ends waits.
//! Invariants: no thread waits for a program, or closes a socket, while it has the lock.
//! Does not: receive calls.

use std::fs::File;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sys::clock::Clock;
use sys::listener_holder::{HELD_CALLS_MAX, ListenerHolder};

use crate::state::{Outcome, State};

/// Poll interval for a socket whose listen(2) continues: about as long as the call takes.
const LISTEN_POLL: Duration = Duration::from_micros(500);
/// How long a continued listen(2) may take. It takes microseconds, unless its thread is stopped in between.
pub(crate) const LISTEN_LIMIT: Duration = Duration::from_secs(5);

/// The limit of a wait that is too long for the clock.
const FOREVER: Duration = Duration::from_hours(24 * 365);

/// How long callers wait and listeners are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// How long connect(2) on a blocking socket is held, unless SO_SNDTIMEO of the socket is shorter.
    pub blocking: Duration,
    /// How long connect(2) on a socket with O_NONBLOCK is held; zero for not at all. The event loop of the caller is
    /// blocked meanwhile.
    pub nonblocking: Duration,
    /// Callers that are held at a time; at most [`HELD_CALLS_MAX`]. Further ones are not held.
    pub callers_max: usize,
    /// How long a listener is kept that the new incarnation does not bind again, from its start.
    pub unclaimed: Duration,
    /// The same from the time when the incarnation is ready, if that ends sooner.
    pub unclaimed_after_ready: Duration,
}

impl Default for Limits {
    /// 60 s, 1 s, 1,024 callers, 60 s and 5 s.
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

/// What the threads share.
#[derive(Debug)]
pub(crate) struct Inner {
    state: Mutex<State>,
    /// Something came for the thread that ends waits.
    wake: Condvar,
    pub(crate) holder: ListenerHolder,
    /// Where the listener holder notes that this process died: nowhere.
    pub(crate) null: File,
    pub(crate) clock: Clock,
    pub(crate) limits: Limits,
}

impl Inner {
    pub(crate) fn new(holder: ListenerHolder, null: File, clock: Clock, limits: Limits) -> Self {
        Self { state: Mutex::default(), wake: Condvar::new(), holder, null, clock, limits }
    }

    /// The state. A panic of another thread has left it whole: every change is one step.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end of a time that begins now.
    pub(crate) fn after(&self, limit: Duration) -> Instant {
        let now = self.clock.now();
        now.checked_add(limit).unwrap_or(now + FOREVER)
    }

    /// Makes the thread that ends waits check again.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Ends waits, until the channels are dropped. All callers then proceed.
    pub(crate) fn end_waits(&self) {
        let mut state = self.state();
        loop {
            let now = self.clock.now();
            let mut outcome = if state.pending.is_empty() { Outcome::default() } else { state.confirm(now) };
            let is_ending = state.is_ending;
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
            let look = state.callers.next_look(now);
            let poll = (!state.pending.is_empty()).then_some(LISTEN_POLL);
            state = match look.into_iter().chain(poll).min() {
                Some(limit) => {
                    let waited = self.wake.wait_timeout(state, limit);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}
