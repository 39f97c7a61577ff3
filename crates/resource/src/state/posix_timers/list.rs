//! Parses `/proc/PID/timers`, and interprets the clock ids in this file.
//!
//! Owns: the parser, and the decision which CPU-time clocks can be restored.
//! Does not: read the settings of timers, because the settings are not in this file.

use model::{Pid, Tid};
use tracee::procfs;

use super::super::in_place::Renumber;

/// The bit for notification by a signal to one thread. The bit is combined with SIGEV_SIGNAL (0).
pub(super) const SIGEV_THREAD_ID: i32 = 4;
/// No notification.
pub(super) const SIGEV_NONE: i32 = 1;
const SIGEV_SIGNAL: i32 = 0;
const SIGEV_THREAD: i32 = 2;

/// The lower bits of a negative clock id: the measured time, or 3 for the clock of a descriptor.
const CLOCK_KIND: i32 = 3;
const CLOCK_OF_DESCRIPTOR: i32 = 3;
/// The bit for the CPU time of a thread instead of a process.
const CLOCK_OF_THREAD: i32 = 4;
/// The number of bits below the inverted pid or tid.
const CLOCK_SHIFT: u32 = 3;

/// The notification method for an expiration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Notice {
    /// The method SIGEV_SIGNAL, SIGEV_NONE or SIGEV_THREAD.
    Process(i32),
    /// The method SIGEV_THREAD_ID, with the thread.
    Thread(Tid),
}

/// One timer of the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Listed {
    pub(super) id: i32,
    pub(super) signal: i32,
    pub(super) value: u64,
    pub(super) notice: Notice,
    pub(super) clock: i32,
}

/// Parses every timer, in the order of the list. The kernel writes the file, so a block that lacks a line ends the
/// list.
pub(super) fn parse(text: &[u8]) -> Vec<Listed> {
    let text = String::from_utf8_lossy(text);
    let mut lines = text.lines();
    std::iter::from_fn(|| parse_block(&mut lines)).collect()
}

fn parse_block<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Option<Listed> {
    let mut value = |name: &str| Some(lines.next()?.strip_prefix(name)?.strip_prefix(": ")?.trim());
    let id = value("ID")?.parse().ok()?;
    let (signal, pointer) = value("signal")?.split_once('/')?;
    let (kind, target) = value("notify")?.split_once('/')?;
    let clock = value("ClockID")?.parse().ok()?;
    let kind = match kind {
        "none" => SIGEV_NONE,
        "thread" => SIGEV_THREAD,
        _ => SIGEV_SIGNAL,
    };
    let notice = match target.strip_prefix("tid.") {
        Some(tid) => Notice::Thread(Tid(tid.parse().ok()?)),
        None => Notice::Process(kind),
    };
    let value = u64::from_str_radix(pointer.trim_start_matches("0x"), 16).ok()?;
    Some(Listed { id, signal: signal.parse().ok()?, value, notice, clock })
}

/// Replaces the pid or tid in the id of a CPU-time clock.
pub(super) fn renumbered_clock(clock: i32, renumber: Renumber<'_>) -> i32 {
    let number = !(clock >> CLOCK_SHIFT);
    if clock >= 0 || clock & CLOCK_KIND == CLOCK_OF_DESCRIPTOR || number == 0 {
        return clock;
    }
    (!renumber(number) << CLOCK_SHIFT) | (clock & (CLOCK_OF_THREAD | CLOCK_KIND))
}

impl Listed {
    /// Returns the reason why the clock cannot be restored; `None` if the clock can be restored.
    pub(super) fn unknown_clock(&self, pid: Pid) -> Option<&'static str> {
        if self.clock >= 0 {
            return None;
        }
        if self.clock & CLOCK_KIND == CLOCK_OF_DESCRIPTOR {
            return Some("it runs on the clock of a file descriptor");
        }
        let number = !(self.clock >> CLOCK_SHIFT);
        if self.clock & CLOCK_OF_THREAD == 0 {
            let own = number == 0 || number == pid.get();
            return (!own).then_some("it runs on the CPU time of another process");
        }
        let threads = procfs::threads(pid).unwrap_or_default();
        let thread = match (number, self.notice) {
            (0, Notice::Thread(tid)) => tid,
            (0, Notice::Process(_)) if threads.len() > 1 => {
                return Some("it runs on the CPU time of a thread that the kernel does not name");
            }
            (0, Notice::Process(_)) => pid.leader(),
            (number, _) => Tid(number),
        };
        (!threads.contains(&thread)).then_some("it runs on the CPU time of a thread that has ended")
    }

    /// Returns the clock id with an explicit tid, because CLOCK_THREAD_CPUTIME_ID means the thread that creates the
    /// timer. A timer that notifies one thread is assumed to measure that thread.
    pub(super) fn clock_by_name(&self) -> i32 {
        let own_thread =
            self.clock < 0 && self.clock & CLOCK_OF_THREAD != 0 && self.clock >> CLOCK_SHIFT == !0;
        match self.notice {
            Notice::Thread(tid) if own_thread => {
                (!tid.get() << CLOCK_SHIFT) | (self.clock & (CLOCK_OF_THREAD | CLOCK_KIND))
            }
            _ => self.clock,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timer(clock: i32, notice: Notice) -> Listed {
        Listed { id: 0, signal: 14, value: 0, notice, clock }
    }

    #[test]
    fn every_notification_method_is_parsed() {
        let text = b"ID: 0\nsignal: 14/00007ffe01020304\nnotify: signal/pid.9\nClockID: 0\n\
            ID: 1\nsignal: 34/0000000000000000\nnotify: thread/tid.11\nClockID: -6\n";
        let found = parse(text);
        let first = Listed {
            id: 0,
            signal: 14,
            value: 0x7ffe_0102_0304,
            notice: Notice::Process(SIGEV_SIGNAL),
            clock: 0,
        };
        let second = Listed { id: 1, signal: 34, value: 0, notice: Notice::Thread(Tid(11)), clock: -6 };
        assert_eq!(found, [first, second]);
    }

    #[test]
    fn clocks_that_cannot_be_named_again_are_refused() {
        let pid = Pid(std::process::id() as i32);
        let process = Notice::Process(SIGEV_SIGNAL);
        let of = |number: i32, bits: i32| (!number << CLOCK_SHIFT) | bits;
        for clock in [0, 1, 7, -6, of(pid.get(), 2), of(pid.get(), 6)] {
            assert_eq!(timer(clock, process).unknown_clock(pid), None, "clock {clock}");
        }
        for clock in [of(1, 2), of(1, 6), of(5, CLOCK_OF_DESCRIPTOR)] {
            assert!(timer(clock, process).unknown_clock(pid).is_some(), "clock {clock}");
        }
    }

    #[test]
    fn the_clock_of_another_pid_gets_the_present_pid() {
        let next = |number: i32| number + 1;
        for (clock, present) in
            [(0, 0), (-6, -6), ((!7 << 3) | 2, (!8 << 3) | 2), ((!7 << 3) | 6, (!8 << 3) | 6)]
        {
            assert_eq!(renumbered_clock(clock, &next), present, "clock {clock}");
        }
    }

    #[test]
    fn the_clock_of_the_creating_thread_is_named_by_its_tid() {
        let own_thread = -2;
        assert_eq!(timer(own_thread, Notice::Thread(Tid(77))).clock_by_name(), (!77 << 3) | 6);
        assert_eq!(timer(own_thread, Notice::Process(0)).clock_by_name(), own_thread);
        assert_eq!(timer(-6, Notice::Thread(Tid(77))).clock_by_name(), -6);
    }
}
