//! Signals that wait to be taken.
//!
//! Owns: the queue of each thread and, with its leader's, the queue of the process.
//! Invariants: order and number of signals in a queue stay; each keeps its code, sender and value.
//! A timer has one signal pending at most, as in the kernel: a second one counts as an overrun.
//! Does not: save blocked sets; the engine does. A pending SIGSTOP cannot be held back in a process under
//! construction: one in a process that is stopped already means nothing and is left out, another is an error.

use prost::Message;
use sys::ptrace::{self, SiginfoBytes, SignalQueue};
use tracee::arch::numbers as nr;

use super::{Level, RawState, Stage, StateCapture, StateKind, StateRestore, hold};
use crate::error::{ResourceError, Result};

const NAME: &str = "state/sigpending";

const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;
/// The code of a signal that a POSIX timer sent.
const SI_TIMER: i32 = -2;
/// Where `siginfo_t` holds the signal, the code, and for timers the timer's id and its overruns.
const SIGNAL_AT: usize = 0;
const CODE_AT: usize = 8;
const TIMER_AT: usize = 16;
const OVERRUN_AT: usize = 20;

const INFORMATION_BYTES: usize = size_of::<SiginfoBytes>();
/// In front of each signal: which queue it is in.
const OF_THREAD: u8 = 0;
const OF_PROCESS: u8 = 1;

/// The kind.
pub(super) struct Sigpending;

#[derive(Clone, PartialEq, Message)]
struct PendingMessage {
    /// `siginfo_t` of each signal for the thread, oldest first.
    #[prost(bytes = "vec", repeated, tag = "1")]
    thread: Vec<Vec<u8>>,
    /// The same for the process; only in its leader's record.
    #[prost(bytes = "vec", repeated, tag = "2")]
    process: Vec<Vec<u8>>,
}

impl StateKind for Sigpending {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "pending signals of threads and processes, in order, with code, sender and value"
    }

    fn level(&self) -> Level {
        Level::Thread
    }

    fn stage(&self) -> Stage {
        Stage::Signals
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        take(capture, SignalQueue::Thread, OF_THREAD, raw)?;
        if capture.tid == capture.pid.leader() {
            take(capture, SignalQueue::Process, OF_PROCESS, raw)?;
        }
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut message = PendingMessage::default();
        for entry in raw.chunks_exact(1 + INFORMATION_BYTES) {
            let queue = if entry[0] == OF_PROCESS { &mut message.process } else { &mut message.thread };
            add(queue, entry[1..].to_vec());
        }
        let empty = message.thread.is_empty() && message.process.is_empty();
        Ok((!empty).then(|| message.encode_to_vec()))
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: PendingMessage = crate::decode(NAME, payload)?;
        // SIGTRAP as well: the stub's stops need it no longer.
        hold::in_thread(restore.stub)?;
        let (pid, tid) = (restore.stub.pid().get() as u64, restore.stub.tid().get() as u64);
        for information in message.thread {
            let signal = field(&information, SIGNAL_AT) as u64;
            restore.stub.call_with(restore.memory, nr::RT_TGSIGQUEUEINFO, &information, |at| {
                [pid, tid, signal, at.get(), 0, 0]
            })?;
        }
        for information in message.process {
            let signal = field(&information, SIGNAL_AT) as u64;
            restore.stub.call_with(restore.memory, nr::RT_SIGQUEUEINFO, &information, |at| {
                [pid, signal, at.get(), 0, 0, 0]
            })?;
        }
        Ok(())
    }
}

fn take(capture: &StateCapture<'_>, queue: SignalQueue, mark: u8, raw: &mut RawState) -> Result<()> {
    for information in ptrace::pending_signals(capture.tid, queue)? {
        match field(&information, SIGNAL_AT) {
            SIGKILL => {}
            SIGSTOP => refuse_unless_stopped(capture)?,
            _ => {
                raw.push(mark);
                raw.extend(information);
            }
        }
    }
    Ok(())
}

/// SIGSTOP to a stopped process does nothing, and SIGCONT drops it.
fn refuse_unless_stopped(capture: &StateCapture<'_>) -> Result<()> {
    if capture.thread.as_ref().is_some_and(|thread| thread.group_stop().is_some()) {
        return Ok(());
    }
    Err(ResourceError::Unsupported {
        pid: capture.pid,
        what: "a pending SIGSTOP".to_owned(),
        why: "the process was being stopped at the very moment of the checkpoint".to_owned(),
        fix: "take the checkpoint again".to_owned(),
    })
}

/// Appends a signal. A timer's second one can only come from a signal that an earlier restore queued besides it.
fn add(queue: &mut Vec<Vec<u8>>, information: Vec<u8>) {
    let timer = |information: &[u8]| {
        let code = field(information, CODE_AT);
        (code == SI_TIMER).then(|| (field(information, SIGNAL_AT), field(information, TIMER_AT)))
    };
    let same = queue.iter_mut().find(|other| timer(other).is_some() && timer(other) == timer(&information));
    let Some(first) = same else { return queue.push(information) };
    let overruns = field(first, OVERRUN_AT).saturating_add(field(&information, OVERRUN_AT)).saturating_add(1);
    if let Some(slot) = first.get_mut(OVERRUN_AT..OVERRUN_AT + 4) {
        slot.copy_from_slice(&overruns.to_ne_bytes());
    }
}

/// One number of a `siginfo_t`.
fn field(information: &[u8], at: usize) -> i32 {
    information.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, i32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(queue: u8, signal: i32, code: i32, timer: i32, value: u8) -> Vec<u8> {
        let mut information = [0; INFORMATION_BYTES];
        information[SIGNAL_AT..][..4].copy_from_slice(&signal.to_ne_bytes());
        information[CODE_AT..][..4].copy_from_slice(&code.to_ne_bytes());
        information[TIMER_AT..][..4].copy_from_slice(&timer.to_ne_bytes());
        information[24] = value;
        [&[queue][..], &information].concat()
    }

    fn decoded(raw: &[u8]) -> PendingMessage {
        PendingMessage::decode(Sigpending.after(raw).unwrap().unwrap().as_slice()).unwrap()
    }

    #[test]
    fn no_signals_leave_no_record() {
        assert_eq!(Sigpending.after(&[]).unwrap(), None);
    }

    #[test]
    fn order_and_number_of_queued_signals_stay() {
        let raw =
            [entry(1, 40, -1, 0, 1), entry(0, 40, -1, 0, 2), entry(1, 40, -1, 0, 3), entry(1, 40, -1, 0, 3)];
        let message = decoded(&raw.concat());
        let values = |queue: &[Vec<u8>]| queue.iter().map(|one| one[24]).collect::<Vec<_>>();
        assert_eq!((values(&message.thread), values(&message.process)), (vec![2], vec![1, 3, 3]));
    }

    #[test]
    fn a_second_signal_of_a_timer_is_an_overrun() {
        let raw = [entry(1, 40, SI_TIMER, 5, 0), entry(1, 40, SI_TIMER, 6, 0), entry(1, 40, SI_TIMER, 5, 0)];
        let message = decoded(&raw.concat());
        let overruns = message.process.iter().map(|one| field(one, OVERRUN_AT)).collect::<Vec<_>>();
        assert_eq!(overruns, [1, 0]);
    }
}
