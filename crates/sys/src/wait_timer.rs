//! Deadlines for system calls that block.
//!
//! Owns: timer_create(2) with SIGEV_THREAD_ID, and the handler of its signal.
//! Invariants: a tick interrupts the thread that started it, and no other; the timer repeats, so that a tick before
//! the call blocks is not the last one; a thread has one timer, armed only while a `Ticks` exists.
//! Does not: wait.
//!
//! Man page: timer_create(2), timer_settime(2), signal(7)
//! Since: Linux 2.6.12 (SIGEV_THREAD_ID)
//! Probe: none needed
//! Fallback: none; without a timer (RLIMIT_SIGPENDING) nothing can wait with a deadline

use std::cell::{Cell, OnceCell};
use std::marker::PhantomData;
use std::mem::{MaybeUninit, zeroed};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::time::Duration;

use crate::error::{Errno, Error, Result};

/// A real-time signal that neither libc nor another part of this program uses.
const TICK: libc::c_int = 63;

thread_local! {
    static TIMER: OnceCell<Timer> = const { OnceCell::new() };
}

/// A timer of the kernel that signals the thread that created it.
struct Timer {
    id: libc::c_int,
    /// Zero while it is not armed.
    period: Cell<Duration>,
}

/// Interrupts blocking system calls of the calling thread at a fixed period: they fail with EINTR.
#[derive(Debug)]
pub struct Ticks {
    /// The period of the `Ticks` around this one, or zero.
    before: Duration,
    bound_to_thread: PhantomData<*const ()>,
}

impl Ticks {
    /// Starts the ticks of this thread. A `Ticks` that exists already pauses meanwhile.
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

impl Drop for Ticks {
    fn drop(&mut self) {
        // A timer that exists can be set; at the end of the thread it is gone.
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
        if result != 0 {
            return Err(Error::new("create a timer for waits", Errno::last()));
        }
        // SAFETY: the call succeeded, so the kernel wrote the number.
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
        if result != 0 {
            return Err(Error::new("set a timer for waits", Errno::last()));
        }
        self.period.set(period);
        Ok(())
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the number is that of a timer of this process, deleted once.
        unsafe { libc::syscall(libc::SYS_timer_delete, self.id) };
    }
}

/// Interrupting the call is all that a tick has to do.
extern "C" fn on_tick(_: libc::c_int) {}

fn install_handler() -> Result<()> {
    static INSTALLED: OnceLock<std::result::Result<(), Errno>> = OnceLock::new();
    let outcome = INSTALLED.get_or_init(|| {
        // SAFETY: all-zero bytes are a valid sigaction: no flags (SA_RESTART above all), an empty mask.
        let mut action: libc::sigaction = unsafe { zeroed() };
        action.sa_sigaction = on_tick as *const () as libc::sighandler_t;
        // SAFETY: the action outlives the call, and its handler does nothing.
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

    /// Blocks without end; whether a signal has ended that.
    fn is_interrupted() -> bool {
        // SAFETY: no descriptors, no memory.
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
            // SAFETY: no descriptors, no memory.
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
        // SAFETY: no descriptors, no memory.
        assert_eq!(unsafe { libc::poll(null_mut(), 0, 20) }, 0);
    }
}
