//! The state kind of the POSIX timers of a process.
//!
//! Owns: id, clock, notification method and setting of every timer.
//! Invariants: a timer keeps its id and continues with its remaining time. The time between checkpoint and restore
//! does not count. The kernel does not show whether a timer is absolute, so every timer is restored as a relative
//! timer. An overrun count cannot be set, so the count starts at zero.
//! Does not: save signals that timers have already sent; `sigpending` does.

mod create;
mod list;
mod message;

use model::{ByteCount, Pid};
use prost::Message as _;
use tracee::arch::numbers as nr;
use tracee::procfs;

use self::list::Listed;
use self::message::{SETTING_BYTES, TimerMessage, TimersMessage};
use super::caller::Caller;
use super::hold;
use super::in_place::{InPlace, LivingThread, Renumber};
use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use super::remote_calls::RemoteCalls;
use crate::error::Result;
use crate::obstacle::Obstacle;

const NAME: &str = "state/posix_timers";

/// The state kind of POSIX timers.
pub(super) struct PosixTimers;

impl StateKind for PosixTimers {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Process, stage: Stage::Timers }
    }

    fn obstacles(&self, pid: Pid) -> Vec<Obstacle> {
        match procfs::read(path(pid)) {
            Ok(text) => list::parse(&text).iter().filter_map(|timer| obstacle(pid, timer)).collect(),
            Err(error) if error.errno == sys::Errno::ENOENT && procfs::stat(pid).is_ok() => {
                vec![no_list(pid)]
            }
            // The process has ended.
            Err(_) => Vec::new(),
        }
    }

    fn add_calls(&self, capture: &mut StateCapture<'_>, calls: &mut RemoteCalls) -> Result<()> {
        for timer in list::parse(capture.file(FILE)?) {
            let call = [timer.id as u64, 0, 0, 0, 0, 0];
            calls.add_into(nr::TIMER_GETTIME, call, 1, ByteCount(SETTING_BYTES as u64));
        }
        Ok(())
    }

    /// Copies raw state: the number of timers, their settings, then the text of the list.
    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        // The text equals the text in `add_calls`, because a stopped process creates and deletes no timers.
        let text = capture.file(FILE)?.to_vec();
        let timers = list::parse(&text);
        if let Some(found) = timers.iter().find_map(|timer| obstacle(capture.pid, timer)) {
            return Err(found.into());
        }
        if timers.is_empty() {
            return Ok(());
        }
        raw.extend((timers.len() as u64).to_ne_bytes());
        for result in capture.results(NAME) {
            result.value()?;
            raw.extend(result.bytes);
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
        crate::error::decode::<TimersMessage>(NAME, payload).map(drop)
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: TimersMessage = crate::error::decode(NAME, payload)?;
        hold::in_process(restore.stub)?;
        create::create_all(&message.timers, restore)?;
        start_all(&message, restore)
    }

    fn in_place(&self) -> Option<&dyn InPlace> {
        Some(self)
    }
}

impl InPlace for PosixTimers {
    /// The process must have the timers of the checkpoint. Only their remaining times and intervals can be set.
    fn can_set(&self, present: Option<&[u8]>, wanted: Option<&[u8]>, renumber: Renumber<'_>) -> Result<bool> {
        let timers = |payload: Option<&[u8]>| {
            crate::error::decode::<TimersMessage>(NAME, payload.unwrap_or_default())
                .map(|message| message.timers)
        };
        let (present, wanted) = (timers(present)?, timers(wanted)?);
        let present = present.iter().map(TimerMessage::without_setting);
        Ok(present.eq(wanted.iter().map(|timer| timer.renumbered(renumber).without_setting())))
    }

    fn clear(&self, present: Option<&[u8]>, thread: &mut LivingThread<'_>) -> Result<()> {
        let message: TimersMessage = crate::error::decode(NAME, present.unwrap_or_default())?;
        message.timers.iter().try_for_each(|timer| set(timer.id, [0; SETTING_BYTES], thread))
    }

    fn set(&self, wanted: &[u8], thread: &mut LivingThread<'_>) -> Result<()> {
        start_all(&crate::error::decode(NAME, wanted)?, thread)
    }
}

fn start_all(message: &TimersMessage, caller: &mut impl Caller) -> Result<()> {
    let mut timers = message.timers.iter().filter(|timer| timer.is_set());
    timers.try_for_each(|timer| set(timer.id, timer.setting(), caller))
}

fn set(id: i32, setting: [u8; SETTING_BYTES], caller: &mut impl Caller) -> Result<()> {
    caller.call_with(nr::TIMER_SETTIME, &setting, |at| [id as u64, 0, at.get(), 0, 0, 0])?;
    Ok(())
}

/// The file in `/proc/PID` that lists the timers of a process.
const FILE: &str = "timers";

fn path(pid: Pid) -> String {
    format!("/proc/{pid}/{FILE}")
}

/// Returns the obstacle for a timer whose clock cannot be restored; `None` for other timers.
fn obstacle(pid: Pid, timer: &Listed) -> Option<Obstacle> {
    let why = timer.unknown_clock(pid)?;
    Some(Obstacle {
        pid,
        what: format!("POSIX timer {}", timer.id),
        place: format!("clock {}", timer.clock),
        why: why.to_owned(),
        fix: "let the program delete the timer, then retry".to_owned(),
    })
}

fn no_list(pid: Pid) -> Obstacle {
    Obstacle {
        pid,
        what: "POSIX timers".to_owned(),
        place: path(pid),
        why: "this kernel does not list timers, so they cannot be saved".to_owned(),
        fix: "use a kernel with CONFIG_CHECKPOINT_RESTORE".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_timers_produces_no_record() {
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
