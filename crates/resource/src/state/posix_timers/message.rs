//! The record of the POSIX timers of a process.
//!
//! Does not: make system calls.

use prost::Message;

use super::super::in_place::Renumber;
use super::list::{self, Listed, Notice};

/// The number of bytes of `struct itimerspec`: seconds and nanoseconds of the interval, then of the remaining time.
pub(super) const SETTING_BYTES: usize = 32;

#[derive(Clone, PartialEq, Message)]
pub(super) struct TimersMessage {
    /// The timers, sorted by id.
    #[prost(message, repeated, tag = "1")]
    pub(super) timers: Vec<TimerMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TimerMessage {
    #[prost(int32, tag = "1")]
    pub(super) id: i32,
    /// The clock id, as in timer_create(2).
    #[prost(int32, tag = "2")]
    pub(super) clock: i32,
    /// The notification method: SIGEV_SIGNAL, SIGEV_NONE, SIGEV_THREAD, or SIGEV_THREAD_ID.
    #[prost(int32, tag = "3")]
    pub(super) notice: i32,
    #[prost(int32, tag = "4")]
    pub(super) signal: i32,
    #[prost(uint64, tag = "5")]
    pub(super) value: u64,
    /// The thread for SIGEV_THREAD_ID; 0 for other methods.
    #[prost(int32, tag = "6")]
    pub(super) thread: i32,
    #[prost(int64, tag = "7")]
    pub(super) interval_s: i64,
    /// Nanoseconds of the interval, below one second.
    #[prost(int64, tag = "8")]
    pub(super) interval_ns: i64,
    #[prost(int64, tag = "9")]
    pub(super) left_s: i64,
    /// Nanoseconds of the remaining time, below one second.
    #[prost(int64, tag = "10")]
    pub(super) left_ns: i64,
}

impl TimerMessage {
    pub(super) fn new(timer: &Listed, setting: &[u8]) -> Self {
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&setting[index * 8..][..8]);
            i64::from_ne_bytes(word)
        };
        let (notice, thread) = match timer.notice {
            Notice::Process(notice) => (notice, 0),
            Notice::Thread(tid) => (list::SIGEV_THREAD_ID, tid.get()),
        };
        Self {
            id: timer.id,
            clock: timer.clock_by_name(),
            notice,
            signal: timer.signal,
            value: timer.value,
            thread,
            interval_s: word(0),
            interval_ns: word(1),
            left_s: word(2),
            left_ns: word(3),
        }
    }

    /// Returns the timer with the present pid and tid of its process and thread.
    pub(super) fn renumbered(&self, renumber: Renumber<'_>) -> Self {
        let thread = if self.thread == 0 { 0 } else { renumber(self.thread) };
        Self { thread, clock: list::renumbered_clock(self.clock, renumber), ..self.clone() }
    }

    pub(super) fn without_setting(&self) -> Self {
        Self { interval_s: 0, interval_ns: 0, left_s: 0, left_ns: 0, ..self.clone() }
    }

    pub(super) fn words(&self) -> [i64; 4] {
        [self.interval_s, self.interval_ns, self.left_s, self.left_ns]
    }

    pub(super) fn is_set(&self) -> bool {
        self.words() != [0; 4]
    }

    pub(super) fn setting(&self) -> [u8; SETTING_BYTES] {
        let mut setting = [0; SETTING_BYTES];
        for (slot, word) in setting.chunks_exact_mut(8).zip(self.words()) {
            slot.copy_from_slice(&word.to_ne_bytes());
        }
        setting
    }
}
