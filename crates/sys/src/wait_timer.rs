//! Deadlines for blocking system calls, by a timer that sends signals ("ticks") to a thread.
//!
//! Owns: timer_create(2) with SIGEV_THREAD_ID, and the handler of the timer's signal.
//! Invariants: a tick interrupts only the thread that started the timer. The timer repeats: if a tick comes before
//! a system call blocks, the next tick interrupts the system call. A thread has one timer, which is armed only
//! while a `Ticks` exists. The handler makes only system calls, takes no lock and preserves errno.
//! Does not: wait.
//!
//! Man page: timer_create(2), timer_settime(2), signal(7)
//! Since: Linux 2.6.12 (SIGEV_THREAD_ID)
//! Probe: none needed
//! Fallback: none; without a timer (RLIMIT_SIGPENDING), no wait can have a deadline

use std::cell::{Cell, OnceCell};
use std::marker::PhantomData;
use std::mem::{MaybeUninit, zeroed};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use model::Tid;

use crate::error::{Errno, Error, Result, done};

/// A real-time signal that neither libc nor another part of this program uses.
const TICK: libc::c_int = 63;

thread_local! {
    /// Threads that a tick reaps if they have ended; null for no threads. The value is one word, so that a tick
    /// never reads a partial value.
    static ENDING: AtomicPtr<&'static [Tid]> = const { AtomicPtr::new(null_mut()) };
    static TIMER: OnceCell<Timer> = const { OnceCell::new() };
}

/// A kernel timer that signals the thread that created the timer.
struct Timer {
    id: libc::c_int,
    /// Period of the timer; zero while the timer is not armed.
    period: Cell<Duration>,
}

/// Interrupts blocking system calls of the calling thread at a fixed period. An interrupted call fails with EINTR.
#[derive(Debug)]
pub struct Ticks {
    /// Period of the `Ticks` that existed before this value, or zero.
    before: Duration,
    bound_to_thread: PhantomData<*const ()>,
}

impl Ticks {
    /// Starts the ticks of this thread. A `Ticks` that already exists pauses until the new `Ticks` is dropped.
    ///
    /// # Errors
    ///
    /// EAGAIN when the user has as many queued signals as RLIMIT_SIGPENDING allows.
    pub fn start(period: Duration) -> Result<Self> {
        TIMER.with(|slot| {
            let timer = match slot.get() {
                Some(timer) => timer,
                None => {
                    let created = Timer::create()?;
                    slot.get_or_init(|| created)
                }
            };
            let before = timer.period.get();
            timer.set(period)?;
            Ok(Self { before, bound_to_thread: PhantomData })
        })
    }
}

/// Makes a system call that the kernel restarts after a tick. During the call, each tick reaps the ended threads
/// in `threads`. Some system calls need this: they wait until an ended thread of the process is reaped.
pub fn taking_ends<T>(threads: &[Tid], call: impl FnOnce() -> T) -> T {
    struct Clear;
    impl Drop for Clear {
        fn drop(&mut self) {
            ENDING.with(|ending| ending.store(null_mut(), Ordering::SeqCst));
        }
    }
    let slot: *const &[Tid] = &raw const threads;
    let _clear = Clear;
    ENDING.with(|ending| ending.store(slot.cast::<&'static [Tid]>().cast_mut(), Ordering::SeqCst));
    call()
}

impl Drop for Ticks {
    fn drop(&mut self) {
        // Setting an existing timer does not fail. If the thread is ending, the timer may already be deleted.
        let _ = TIMER.try_with(|slot| slot.get().map(|timer| timer.set(self.before)));
    }
}

impl Timer {
    fn create() -> Result<Self> {
        install_handler()?;
        crate::signal::unblock(1 << (TICK - 1))?;
        // SAFETY: all-zero bytes are a valid sigevent.
        let mut event: libc::sigevent = unsafe { zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = TICK;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let mut id = MaybeUninit::<libc::c_int>::uninit();
        // SAFETY: the kernel reads one sigevent and writes one int; both outlive the call.
        let result = unsafe {
            libc::syscall(libc::SYS_timer_create, libc::CLOCK_MONOTONIC, &raw const event, id.as_mut_ptr())
        };
        done("create a timer for waits", result)?;
        // SAFETY: the call succeeded, so the kernel wrote the id.
        Ok(Self { id: unsafe { id.assume_init() }, period: Cell::new(Duration::ZERO) })
    }

    /// Arms the timer, or disarms it with a period of zero.
    fn set(&self, period: Duration) -> Result<()> {
        let time = libc::timespec {
            tv_sec: period.as_secs() as libc::time_t,
            tv_nsec: period.subsec_nanos() as libc::c_long,
        };
        let setting = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: the kernel reads one itimerspec that outlives the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_timer_settime,
                self.id,
                0,
                &raw const setting,
                null_mut::<libc::itimerspec>(),
            )
        };
        done("set a timer for waits", result)?;
        self.period.set(period);
        Ok(())
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the id names a timer of this process, which is deleted only here.
        unsafe { libc::syscall(libc::SYS_timer_delete, self.id) };
    }
}

/// Interrupts the blocking call, and reaps the ended threads of the list that `taking_ends` has stored.
extern "C" fn on_tick(_: libc::c_int) {
    let ending = ENDING.with(|ending| ending.load(Ordering::SeqCst));
    if ending.is_null() {
        return;
    }
    // SAFETY: errno is a variable of this thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    // SAFETY: `taking_ends` keeps the list alive until it has stored null. `taking_ends` and this handler run in
    // the same thread.
    for tid in unsafe { *ending } {
        // ECHILD means that there is no task to reap. No outcome allocates.
        let _ = crate::ptrace::take_end(*tid);
    }
    // SAFETY: as above.
    unsafe { *errno = before };
}

fn install_handler() -> Result<()> {
    static INSTALLED: OnceLock<std::result::Result<(), Errno>> = OnceLock::new();
    let outcome = INSTALLED.get_or_init(|| {
        // SAFETY: an all-zero sigaction is valid. The mask is empty, and no flag is set. Without SA_RESTART, a
        // tick interrupts calls.
        let mut action: libc::sigaction = unsafe { zeroed() };
        action.sa_sigaction = on_tick as *const () as libc::sighandler_t;
        // SAFETY: the action outlives the call, and the handler is async-signal-safe.
        match unsafe { libc::sigaction(TICK, &raw const action, null_mut()) } {
            0 => Ok(()),
            _ => Err(Errno::last()),
        }
    });
    outcome.map_err(|errno| Error::new("install a signal handler", errno))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const PERIOD: Duration = Duration::from_millis(2);

    /// Blocks for up to 10 seconds, and returns whether a signal interrupted the call.
    fn is_interrupted() -> bool {
        // SAFETY: the call passes no descriptors and no memory.
        let result = unsafe { libc::poll(null_mut(), 0, 10_000) };
        result == -1 && Errno::last().0 == libc::EINTR
    }

    #[test]
    fn every_tick_interrupts_a_call() {
        let _ticks = Ticks::start(PERIOD).unwrap();
        let began = Instant::now();
        for _ in 0..5 {
            assert!(is_interrupted());
        }
        assert!(began.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn other_threads_are_not_interrupted() {
        let _ticks = Ticks::start(PERIOD).unwrap();
        let other = std::thread::spawn(|| {
            // SAFETY: the call passes no descriptors and no memory.
            unsafe { libc::poll(null_mut(), 0, 50) }
        });
        assert!(is_interrupted());
        assert_eq!(other.join().unwrap(), 0);
    }

    #[test]
    fn the_ticks_around_go_on() {
        let outer = Ticks::start(PERIOD).unwrap();
        drop(Ticks::start(Duration::from_secs(1000)).unwrap());
        assert!(is_interrupted());
        drop(outer);
        // SAFETY: the call passes no descriptors and no memory.
        assert_eq!(unsafe { libc::poll(null_mut(), 0, 20) }, 0);
    }
}
