//! Saves and restores timer file descriptors, created with timerfd_create(2): the descriptor kind `fd/timerfd`.
//!
//! Owns: clock, setting, interval and unread expirations of a timerfd.
//! Invariants: a relative timer continues with its remaining time. An absolute timer on the wall clock expires at its
//! saved time. An absolute timer on another clock expires at its saved time within the same boot; in another boot,
//! the timer continues with its remaining time.
//! Does not: adjust clocks.

use std::time::Duration;

use prost::Message;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_gettime, timerfd_settime,
};
use sys::Error;

use super::description::{Description, Known};
use super::fdinfo::FdInfo;
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::scope::CaptureScope;
use crate::error::{ResourceError, Result};

const NAME: &str = "fd/timerfd";
const SECOND_NS: i64 = 1_000_000_000;
/// Maximum number of additional reads of a timer that may be expiring.
const REREADS_MAX: usize = 10;
const POLL_INTERVAL: Duration = Duration::from_micros(100);
/// The shortest remaining time of an armed timer. Zero means a disarmed timer.
const SOONEST: Time = Time { seconds: 0, nanoseconds: 1 };

/// Descriptor kind ([`FdKind`]) of timer file descriptors.
#[derive(Debug)]
pub struct Timerfd;

#[derive(Clone, PartialEq, Eq, Message)]
struct State {
    /// The kernel's number of the clock (CLOCK_*).
    #[prost(uint32, tag = "1")]
    clock: u32,
    /// TFD_TIMER_ABSTIME and TFD_TIMER_CANCEL_ON_SET, as passed to timerfd_settime(2).
    #[prost(uint32, tag = "2")]
    flags: u32,
    #[prost(uint64, tag = "3")]
    expirations: u64,
    /// The remaining time; zero for a disarmed timer.
    #[prost(message, required, tag = "4")]
    left: Time,
    #[prost(message, required, tag = "5")]
    interval: Time,
    /// The time of the timer's clock in the pause.
    #[prost(message, required, tag = "6")]
    now: Time,
    /// The id of the boot in which `now` was read.
    #[prost(string, tag = "7")]
    boot: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int64, tag = "2")]
    nanoseconds: i64,
}

#[derive(Debug)]
struct Capture {
    info: FdInfo,
    /// Set when the timer was armed before the pause.
    was_armed: bool,
    clock: u32,
    now: Time,
    boot: String,
}

impl FdKind for Timerfd {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<State>(NAME).without_files()
    }

    fn claims(&self, description: &Description) -> bool {
        description.target() == "anon_inode:[timerfd]"
    }

    fn prepare(&self, description: &Description, _scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        let mut capture = Capture {
            info: FdInfo::default(),
            was_armed: false,
            clock: 0,
            now: Time::default(),
            boot: boot()?,
        };
        for _ in 0..=REREADS_MAX {
            capture.reread(description)?;
            capture.was_armed = capture.left()? != Time::default();
            if capture.was_armed || capture.interval()? == Time::default() {
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(Box::new(capture))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        let state: State = crate::error::decode(NAME, payload)?;
        clocks(state.clock).map(drop)
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        let boot = boot()?;
        context.make_each(NAME, records, |state: State, _, _| {
            let (id, _) = clocks(state.clock)?;
            let timer = timerfd_create(id, TimerfdFlags::CLOEXEC)
                .map_err(|errno| Error::new("create a timerfd", errno))?;
            let (flags, setting) = setting(&state, &boot)?;
            if state.left != Time::default() {
                timerfd_settime(&timer, flags, &setting)
                    .map_err(|errno| Error::new("set a timerfd", errno))?;
            }
            if state.expirations > 0 {
                sys::timerfd::set_expirations(std::os::fd::AsFd::as_fd(&timer), state.expirations)?;
            }
            Ok(timer)
        })
    }
}

impl Capture {
    /// Reads the timer. The kernel stops a periodic timer at its expiration, and restarts the timer at the next read.
    /// Here, timerfd_gettime(2) is this read.
    fn reread(&mut self, description: &Description) -> Result<()> {
        timerfd_gettime(description).map_err(|errno| Error::new("read a timerfd", errno))?;
        self.info.take(description)
    }

    /// Reports whether no time remains and no expiration is counted. Such a timer is disarmed, or the kernel has not
    /// yet handled its interrupt. fdinfo does not show the difference.
    fn is_silent(&self) -> Result<bool> {
        Ok(self.left()? == Time::default() && self.expirations()? == 0)
    }

    /// Returns the remaining time. A periodic timer with expirations is armed even if no time remains, since
    /// disarming clears the expirations. Such a timer gets the time [`SOONEST`]. A timer with a short period may
    /// expire at every read.
    fn left(&self) -> Result<Time> {
        let left = self.info.parse("it_value", Time::parse)?;
        let is_just_due =
            left == Time::default() && self.interval()? != Time::default() && self.expirations()? > 0;
        Ok(if is_just_due { SOONEST } else { left })
    }

    fn interval(&self) -> Result<Time> {
        self.info.parse("it_interval", Time::parse)
    }

    fn expirations(&self) -> Result<u64> {
        self.info.parse("ticks", |text| text.parse().ok())
    }
}

impl FdCapture for Capture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        for reread in 0..=REREADS_MAX {
            self.reread(description)?;
            if reread == REREADS_MAX || !self.was_armed || !self.is_silent()? {
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.clock = self.info.parse("clockid", |text| text.parse().ok())?;
        self.now = clock_gettime(clocks(self.clock)?.1).into();
        Ok(())
    }

    fn after(&mut self, _description: &Known) -> Result<Vec<u8>> {
        let state = State {
            clock: self.clock,
            flags: self.info.parse("settime flags", |text| u32::from_str_radix(text, 8).ok())?,
            expirations: self.expirations()?,
            left: self.left()?,
            interval: self.interval()?,
            now: self.now,
            boot: self.boot.clone(),
        };
        Ok(state.encode_to_vec())
    }
}

/// Returns the arguments of timerfd_settime(2).
fn setting(state: &State, boot: &str) -> Result<(TimerfdTimerFlags, Itimerspec)> {
    let flags = TimerfdTimerFlags::from_bits_truncate(state.flags);
    let (_, clock) = clocks(state.clock)?;
    let it_value = if !flags.contains(TimerfdTimerFlags::ABSTIME) {
        state.left
    } else if clock == ClockId::Realtime || boot == state.boot {
        state.now.plus(state.left)
    } else {
        Time::from(clock_gettime(clock)).plus(state.left)
    };
    Ok((flags, Itimerspec { it_value: it_value.into(), it_interval: state.interval.into() }))
}

/// Returns the clock of a timerfd, and the clock of clock_gettime(2) that returns its time.
fn clocks(number: u32) -> Result<(TimerfdClockId, ClockId)> {
    Ok(match number {
        0 => (TimerfdClockId::Realtime, ClockId::Realtime),
        1 => (TimerfdClockId::Monotonic, ClockId::Monotonic),
        7 => (TimerfdClockId::Boottime, ClockId::Boottime),
        8 => (TimerfdClockId::RealtimeAlarm, ClockId::Realtime),
        9 => (TimerfdClockId::BoottimeAlarm, ClockId::Boottime),
        _ => {
            return Err(ResourceError::malformed(NAME, format!("clock {number} is unknown")));
        }
    })
}

fn boot() -> Result<String> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    Ok(tracee::procfs::read_text(PATH)?.trim().to_owned())
}

impl Time {
    /// Parses a time in the form `(seconds, nanoseconds)`.
    fn parse(text: &str) -> Option<Self> {
        let (seconds, nanoseconds) = text.strip_prefix('(')?.strip_suffix(')')?.split_once(',')?;
        Some(Self { seconds: seconds.trim().parse().ok()?, nanoseconds: nanoseconds.trim().parse().ok()? })
    }

    fn plus(self, other: Self) -> Self {
        // The sum saturates, since the image may be damaged or forged. The kernel refuses invalid times.
        let nanoseconds = self.nanoseconds.saturating_add(other.nanoseconds);
        let carried = nanoseconds / SECOND_NS;
        Self {
            seconds: self.seconds.saturating_add(other.seconds).saturating_add(carried),
            nanoseconds: nanoseconds % SECOND_NS,
        }
    }
}

impl From<Timespec> for Time {
    fn from(time: Timespec) -> Self {
        Self { seconds: time.tv_sec, nanoseconds: time.tv_nsec }
    }
}

impl From<Time> for Timespec {
    fn from(time: Time) -> Self {
        Self { tv_sec: time.seconds, tv_nsec: time.nanoseconds }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{capture, describe, round_trip};
    use super::*;
    use std::os::fd::OwnedFd;

    fn timer(flags: TimerfdTimerFlags, value: (i64, i64), interval: (i64, i64)) -> OwnedFd {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .unwrap();
        let spec = Itimerspec {
            it_value: Timespec { tv_sec: value.0, tv_nsec: value.1 },
            it_interval: Timespec { tv_sec: interval.0, tv_nsec: interval.1 },
        };
        timerfd_settime(&timer, flags, &spec).unwrap();
        timer
    }

    fn expirations(timer: &OwnedFd) -> Option<u64> {
        let mut bytes = [0; 8];
        rustix::fs::fcntl_setfl(timer, rustix::fs::OFlags::NONBLOCK).unwrap();
        rustix::io::read(timer, &mut bytes).ok().map(|_| u64::from_ne_bytes(bytes))
    }

    #[test]
    fn invalid_times_are_left_to_the_kernel() {
        let most = Time { seconds: i64::MAX, nanoseconds: i64::MAX };
        assert_eq!(most.plus(most).seconds, i64::MAX);
    }

    #[test]
    fn a_timer_continues_with_its_remaining_time() {
        let copy = round_trip(&Timerfd, timer(TimerfdTimerFlags::empty(), (3600, 0), (5, 7)));
        let now = timerfd_gettime(&copy).unwrap();
        assert!((3590..3600).contains(&now.it_value.tv_sec), "{now:?}");
        assert_eq!((now.it_interval.tv_sec, now.it_interval.tv_nsec), (5, 7));
        assert_eq!(expirations(&copy), None);
    }

    #[test]
    fn a_periodic_timer_is_never_captured_while_it_expires() {
        let original = timer(TimerfdTimerFlags::empty(), (0, 1_000), (0, 1_000));
        let description = describe(0, &original);
        for _ in 0..2000 {
            let records = capture(&Timerfd, std::slice::from_ref(&description), false).unwrap();
            let state = State::decode(&*records[0].payload).unwrap();
            assert_ne!(state.left, Time::default());
        }
        let off = timer(TimerfdTimerFlags::empty(), (0, 0), (0, 20_000));
        let copy = round_trip(&Timerfd, off);
        assert_eq!(timerfd_gettime(&copy).unwrap().it_value.tv_nsec, 0);
    }

    #[test]
    fn unread_expirations_are_restored_and_a_stopped_periodic_timer_runs_again() {
        let original = timer(TimerfdTimerFlags::empty(), (0, 1000), (0, 2_000_000));
        std::thread::sleep(std::time::Duration::from_millis(9));
        let copy = round_trip(&Timerfd, original);
        assert!(expirations(&copy).unwrap() >= 4);
        std::thread::sleep(std::time::Duration::from_millis(7));
        assert!(expirations(&copy).is_some());
        let spent = timer(TimerfdTimerFlags::empty(), (0, 1), (0, 0));
        std::thread::sleep(std::time::Duration::from_millis(1));
        let copy = round_trip(&Timerfd, spent);
        assert_eq!((expirations(&copy), expirations(&copy)), (Some(1), None));
    }

    #[test]
    fn a_disarmed_timer_stays_disarmed() {
        let copy = round_trip(&Timerfd, timer(TimerfdTimerFlags::empty(), (0, 0), (0, 0)));
        assert_eq!(timerfd_gettime(&copy).unwrap().it_value.tv_sec, 0);
    }

    #[test]
    fn an_absolute_time_is_kept_in_the_same_boot_only() {
        let target =
            Time::from(clock_gettime(ClockId::Monotonic)).plus(Time { seconds: 100, nanoseconds: 0 });
        let original = timer(TimerfdTimerFlags::ABSTIME, (target.seconds, target.nanoseconds), (0, 0));
        let records = capture(&Timerfd, &[describe(0, &original)], false).unwrap();
        let mut state: State = crate::error::decode(NAME, &records[0].payload).unwrap();
        let boot = boot().unwrap();
        let distance = |state: &State, boot: &str| {
            let (flags, spec) = setting(state, boot).unwrap();
            assert_eq!(flags, TimerfdTimerFlags::ABSTIME);
            spec.it_value.tv_sec - target.seconds
        };
        assert!((-1..=1).contains(&distance(&state, &boot)));
        // In another boot, the timer expires after its remaining time.
        state.left.seconds += 1000;
        assert!((999..=1001).contains(&distance(&state, "another boot")));
    }

    #[test]
    fn an_unknown_clock_is_refused() {
        assert!(clocks(3).unwrap_err().to_string().contains("clock 3"));
    }
}
