//! POSIX timers of a process.
//!
//! Owns: id, clock, way of notice and setting of every timer.
//! Invariants: a timer keeps its id and goes on with what was left of it; the time in between does not count.
//! The kernel shows neither whether a timer was set to a moment of the wall clock, nor lets an overrun count be
//! set: the former goes on as a relative one, the latter begins at zero.
//! Does not: save the signals that timers have sent already; `sigpending` does.

mod create;
mod list;

use model::{ByteCount, Pid};
use prost::Message;
use tracee::arch::numbers as nr;
use tracee::procfs;

use self::list::{Listed, Notice};
use super::questions::Questions;
use super::{Level, RawState, Stage, StateCapture, StateKind, StateRestore, hold};
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;

const NAME: &str = "state/posix_timers";

/// Bytes of `struct itimerspec`: seconds and nanoseconds of the interval, then of what is left.
const SETTING_BYTES: usize = 32;

/// The kind.
pub(super) struct PosixTimers;

#[derive(Clone, PartialEq, Message)]
struct TimersMessage {
    /// Rising by id.
    #[prost(message, repeated, tag = "1")]
    timers: Vec<TimerMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct TimerMessage {
    #[prost(int32, tag = "1")]
    id: i32,
    /// The clock, as timer_create(2) takes it.
    #[prost(int32, tag = "2")]
    clock: i32,
    /// SIGEV_SIGNAL, SIGEV_NONE, SIGEV_THREAD, or SIGEV_THREAD_ID.
    #[prost(int32, tag = "3")]
    notice: i32,
    #[prost(int32, tag = "4")]
    signal: i32,
    #[prost(uint64, tag = "5")]
    value: u64,
    /// The thread that SIGEV_THREAD_ID names; 0 otherwise.
    #[prost(int32, tag = "6")]
    thread: i32,
    #[prost(int64, tag = "7")]
    interval_s: i64,
    /// Nanoseconds below one second.
    #[prost(int64, tag = "8")]
    interval_ns: i64,
    #[prost(int64, tag = "9")]
    left_s: i64,
    /// Nanoseconds below one second.
    #[prost(int64, tag = "10")]
    left_ns: i64,
}

impl StateKind for PosixTimers {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "POSIX timers under their ids, with what was left of them"
    }

    fn level(&self) -> Level {
        Level::Process
    }

    fn stage(&self) -> Stage {
        Stage::Timers
    }

    fn obstacles(&self, pid: Pid) -> Vec<Obstacle> {
        match procfs::read(path(pid)) {
            Ok(text) => list::parse(&text).iter().filter_map(|timer| obstacle(pid, timer)).collect(),
            Err(error) if error.errno == sys::Errno::ENOENT && procfs::stat(pid).is_ok() => {
                vec![no_list(pid)]
            }
            // The process has gone.
            Err(_) => Vec::new(),
        }
    }

    fn ask(&self, capture: &mut StateCapture<'_>, questions: &mut Questions) -> Result<()> {
        for timer in list::parse(capture.file(FILE)?) {
            let call = [timer.id as u64, 0, 0, 0, 0, 0];
            questions.call_into(nr::TIMER_GETTIME, call, 1, ByteCount(SETTING_BYTES as u64));
        }
        Ok(())
    }

    /// Raw: each setting with its timer's id in front, then the text of the list.
    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        // The same text as for the questions: a process that stands makes and ends no timer.
        let text = capture.file(FILE)?.to_vec();
        let timers = list::parse(&text);
        if let Some(Obstacle { pid, what, why, fix, .. }) =
            timers.iter().find_map(|timer| obstacle(capture.pid, timer))
        {
            return Err(ResourceError::Unsupported { pid, what, why, fix });
        }
        if timers.is_empty() {
            return Ok(());
        }
        raw.extend((timers.len() as u64).to_ne_bytes());
        for answer in capture.answers(NAME) {
            answer.result()?;
            raw.extend(answer.bytes);
        }
        raw.extend(text);
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some((count, rest)) = raw.split_first_chunk::<8>() else { return Ok(None) };
        let (settings, text) = rest.split_at(u64::from_ne_bytes(*count) as usize * SETTING_BYTES);
        let mut timers: Vec<TimerMessage> = list::parse(text)
            .iter()
            .zip(settings.chunks_exact(SETTING_BYTES))
            .map(|(timer, setting)| TimerMessage::new(timer, setting))
            .collect();
        timers.sort_by_key(|timer| timer.id);
        Ok(Some(TimersMessage { timers }.encode_to_vec()))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        crate::decode::<TimersMessage>(NAME, payload).map(drop)
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: TimersMessage = crate::decode(NAME, payload)?;
        hold::in_process(restore.stub)?;
        create::create_all(&message.timers, restore)?;
        for timer in message.timers.iter().filter(|timer| timer.is_set()) {
            restore.stub.call_with(restore.memory, nr::TIMER_SETTIME, &timer.setting(), |at| {
                [timer.id as u64, 0, at.get(), 0, 0, 0]
            })?;
        }
        Ok(())
    }
}

impl TimerMessage {
    fn new(timer: &Listed, setting: &[u8]) -> Self {
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

    fn words(&self) -> [i64; 4] {
        [self.interval_s, self.interval_ns, self.left_s, self.left_ns]
    }

    fn is_set(&self) -> bool {
        self.words() != [0; 4]
    }

    fn setting(&self) -> [u8; SETTING_BYTES] {
        let mut setting = [0; SETTING_BYTES];
        for (slot, word) in setting.chunks_exact_mut(8).zip(self.words()) {
            slot.copy_from_slice(&word.to_ne_bytes());
        }
        setting
    }
}

/// The list of a process's timers.
const FILE: &str = "timers";

fn path(pid: Pid) -> String {
    format!("/proc/{pid}/{FILE}")
}

/// Why a timer's clock cannot be had again.
fn obstacle(pid: Pid, timer: &Listed) -> Option<Obstacle> {
    let why = timer.unknown_clock(pid)?;
    Some(Obstacle {
        pid,
        what: format!("POSIX timer {}", timer.id),
        place: format!("clock {}", timer.clock),
        why: why.to_owned(),
        fix: "let the program delete the timer first".to_owned(),
    })
}

fn no_list(pid: Pid) -> Obstacle {
    Obstacle {
        pid,
        what: "POSIX timers".to_owned(),
        place: path(pid),
        why: "this kernel does not list them, so it cannot be known whether there are any".to_owned(),
        fix: "use a kernel with CONFIG_CHECKPOINT_RESTORE".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_timers_leaves_no_record() {
        assert_eq!(PosixTimers.after(&[]).unwrap(), None);
    }

    #[test]
    fn timers_are_sorted_and_keep_their_settings() {
        let text = b"ID: 7\nsignal: 34/0000000000000001\nnotify: signal/tid.12\nClockID: 1\n\
            ID: 2\nsignal: 35/0000000000000002\nnotify: none/pid.10\nClockID: 0\n";
        let words = [[0_i64, 5, 1, 6], [0; 4]];
        let settings = words.concat().into_iter().flat_map(i64::to_ne_bytes).collect::<Vec<_>>();
        let raw = [&2_u64.to_ne_bytes()[..], &settings, text].concat();
        let payload = PosixTimers.after(&raw).unwrap().unwrap();
        let message = TimersMessage::decode(payload.as_slice()).unwrap();
        let [first, second] = message.timers.as_slice() else { panic!("two timers") };
        assert_eq!((first.id, first.notice, first.thread, first.is_set()), (2, 1, 0, false));
        assert_eq!((second.id, second.notice, second.thread), (7, list::SIGEV_THREAD_ID, 12));
        assert_eq!(second.setting().to_vec(), settings[..SETTING_BYTES]);
    }
}
