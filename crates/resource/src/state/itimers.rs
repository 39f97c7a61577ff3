//! The state kind of the three interval timers of a process.
//!
//! Owns: the remaining times and the intervals of the timers.
//! Invariants: a timer continues with its remaining time. The time between checkpoint and restore does not count.
//! Does not: save signals that the timers have already sent; `sigpending` does.

use model::ByteCount;
use prost::Message;
use sys::task_reader::Field;
use tracee::arch::numbers as nr;

use super::caller::Caller;
use super::hold;
use super::in_place::{InPlace, LivingThread, Renumber};
use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use super::remote_calls::{CallResult, RemoteCalls};
use crate::error::Result;

const NAME: &str = "state/itimers";

/// ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF.
const TIMERS: [u64; 3] = [ITIMER_REAL, 1, 2];
const ITIMER_REAL: u64 = 0;
/// The number of bytes of `struct itimerval`: seconds and microseconds of the interval, then of the remaining time.
const SETTING_BYTES: usize = 32;

/// The state kind of interval timers.
pub(super) struct Itimers;

#[derive(Clone, PartialEq, Message)]
struct ItimersMessage {
    #[prost(message, repeated, tag = "1")]
    timers: Vec<ItimerMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct ItimerMessage {
    /// The timer: ITIMER_REAL, ITIMER_VIRTUAL or ITIMER_PROF.
    #[prost(uint64, tag = "1")]
    which: u64,
    #[prost(int64, tag = "2")]
    interval_s: i64,
    /// Microseconds of the interval, below one second.
    #[prost(int64, tag = "3")]
    interval_us: i64,
    #[prost(int64, tag = "4")]
    left_s: i64,
    /// Microseconds of the remaining time, below one second.
    #[prost(int64, tag = "5")]
    left_us: i64,
}

impl StateKind for Itimers {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Process, stage: Stage::Timers }
    }

    fn sources(&self) -> Option<&'static [Field]> {
        Some(&[Field("signal->real_timer"), Field("signal->it_real_incr"), Field("signal->it")])
    }

    /// Reports whether no timer is set. The remaining time of a running timer differs in each pause.
    fn is_steady(&self, results: &[CallResult]) -> bool {
        results.iter().all(|result| result.bytes.iter().all(|byte| *byte == 0))
    }

    fn add_calls(&self, _capture: &mut StateCapture<'_>, calls: &mut RemoteCalls) -> Result<()> {
        for which in TIMERS {
            calls.add_into(nr::GETITIMER, [which, 0, 0, 0, 0, 0], 1, ByteCount(SETTING_BYTES as u64));
        }
        Ok(())
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        for result in capture.results(NAME) {
            result.value()?;
            raw.extend(result.bytes);
        }
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let timers: Vec<ItimerMessage> = TIMERS
            .into_iter()
            .zip(raw.chunks_exact(SETTING_BYTES))
            .map(|(which, setting)| ItimerMessage::read(which, setting))
            .filter(ItimerMessage::is_set)
            .collect();
        Ok((!timers.is_empty()).then(|| ItimersMessage { timers }.encode_to_vec()))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        crate::error::decode::<ItimersMessage>(NAME, payload).map(drop)
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: ItimersMessage = crate::error::decode(NAME, payload)?;
        hold::in_process(restore.stub)?;
        message.timers.iter().try_for_each(|timer| set(timer.which, timer.setting(), restore))
    }

    fn in_place(&self) -> Option<&dyn InPlace> {
        Some(self)
    }
}

impl InPlace for Itimers {
    fn can_set(&self, _present: Option<&[u8]>, _wanted: Option<&[u8]>, _: Renumber<'_>) -> Result<bool> {
        Ok(true)
    }

    fn clear(&self, present: Option<&[u8]>, thread: &mut LivingThread<'_>) -> Result<()> {
        let message: ItimersMessage = crate::error::decode(NAME, present.unwrap_or_default())?;
        message.timers.iter().try_for_each(|timer| set(timer.which, [0; SETTING_BYTES], thread))
    }

    fn set(&self, wanted: &[u8], thread: &mut LivingThread<'_>) -> Result<()> {
        let message: ItimersMessage = crate::error::decode(NAME, wanted)?;
        message.timers.iter().try_for_each(|timer| set(timer.which, timer.setting(), thread))
    }
}

fn set(which: u64, setting: [u8; SETTING_BYTES], caller: &mut impl Caller) -> Result<()> {
    caller.call_with(nr::SETITIMER, &setting, |at| [which, at.get(), 0, 0, 0, 0])?;
    Ok(())
}

impl ItimerMessage {
    fn read(which: u64, setting: &[u8]) -> Self {
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&setting[index * 8..][..8]);
            i64::from_ne_bytes(word)
        };
        let mut timer =
            Self { which, interval_s: word(0), interval_us: word(1), left_s: word(2), left_us: word(3) };
        let waits = (timer.left_s, timer.left_us) == (0, 0);
        if which == ITIMER_REAL && waits {
            // SIGALRM is pending, and the kernel restarts the timer when SIGALRM is delivered. No call can set a
            // stopped timer with an interval, so the restore sets a running timer. An expiration adds no signal while
            // SIGALRM is pending.
            (timer.left_s, timer.left_us) = (timer.interval_s, timer.interval_us);
        } else if waits && timer.is_set() {
            // Less than a microsecond is left. A remaining time of zero would stop the timer.
            timer.left_us = 1;
        }
        timer
    }

    fn is_set(&self) -> bool {
        [self.interval_s, self.interval_us, self.left_s, self.left_us] != [0; 4]
    }

    fn setting(&self) -> [u8; SETTING_BYTES] {
        let mut setting = [0; SETTING_BYTES];
        let words = [self.interval_s, self.interval_us, self.left_s, self.left_us];
        for (slot, word) in setting.chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_ne_bytes());
        }
        setting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(words: [[i64; 4]; 3]) -> Vec<u8> {
        words.concat().into_iter().flat_map(i64::to_ne_bytes).collect()
    }

    #[test]
    fn unset_timers_produce_no_record() {
        assert_eq!(Itimers.after(&raw([[0; 4]; 3])).unwrap(), None);
    }

    #[test]
    fn a_timer_is_restored_with_its_setting() {
        let payload = Itimers.after(&raw([[0; 4], [1, 2, 3, 4], [0; 4]])).unwrap().unwrap();
        let message = ItimersMessage::decode(payload.as_slice()).unwrap();
        assert_eq!(message.timers.len(), 1);
        assert_eq!(message.timers[0].which, 1);
        assert_eq!(message.timers[0].setting().to_vec(), raw([[0; 4], [1, 2, 3, 4], [0; 4]])[32..64]);
    }

    #[test]
    fn a_timer_of_cpu_time_that_is_about_to_expire_is_restored_running() {
        let payload = Itimers.after(&raw([[0; 4], [0; 4], [0, 5, 0, 0]])).unwrap().unwrap();
        let message = ItimersMessage::decode(payload.as_slice()).unwrap();
        assert_eq!(message.timers[0].setting().to_vec(), raw([[0; 4], [0; 4], [0, 5, 0, 1]])[64..]);
    }

    #[test]
    fn a_real_timer_with_a_pending_signal_is_restored_running() {
        let payload = Itimers.after(&raw([[7, 8, 0, 0], [0; 4], [0; 4]])).unwrap().unwrap();
        let message = ItimersMessage::decode(payload.as_slice()).unwrap();
        assert_eq!((message.timers[0].left_s, message.timers[0].left_us), (7, 8));
    }
}
