//! Saves and restores pending signals.
//!
//! A thread has a queue of pending signals, and a process has a queue that all its threads share. Timers need special
//! care, because clocks run during the pause of a checkpoint, in which all threads are stopped. If a timer expired
//! after the queues were read, but before the timer was read, its signal would be lost. So the timers are read before
//! the queues. If a timer expires between the two reads, the checkpoint contains the expiration twice: as a running
//! timer and as a pending signal. The restored timer then sends the signal, and the recorded signal is ignored.
//!
//! Owns: the signal queue of each thread, and the signal queue of each process.
//! Invariants: order and number of signals in a queue are preserved. Each signal keeps its code, sender and value. A
//! timer has at most one pending signal, as in the kernel. A second signal counts as an overrun of the first signal.
//! Does not: save signal masks; the engine does. Does not save SIGSTOP, because a process under construction cannot
//! block SIGSTOP. A SIGSTOP that is pending before the first remote call becomes a stop. A SIGSTOP that arrives later
//! in the pause is an error.

use model::{ByteCount, Pid};
use prost::Message;
use sys::ptrace::{self, SiginfoBytes, SignalQueue};
use tracee::RemoteError;
use tracee::arch::numbers as nr;

use super::caller::Caller;
use super::hold;
use super::in_place::{InPlace, LivingThread, Renumber};
use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use crate::error::{ResourceError, Result};

const NAME: &str = "state/sigpending";

const EAGAIN: sys::Errno = sys::Errno(11);
const ITIMER_REAL: i32 = 0;
const SIGKILL: i32 = 9;
const SIGALRM: i32 = 14;
const SIGSTOP: i32 = 19;
/// si_code of a signal that the kernel sent.
const SI_KERNEL: i32 = 128;
/// si_code of a signal that a POSIX timer sent.
const SI_TIMER: i32 = -2;
/// Offsets in `siginfo_t`: the signal, the code, and for a timer signal the timer id and the overrun count.
const SIGNAL_AT: usize = 0;
const CODE_AT: usize = 8;
const TIMER_AT: usize = 16;
const OVERRUN_AT: usize = 20;

const INFORMATION_BYTES: usize = size_of::<SiginfoBytes>();
/// The assumed maximum time between reading ITIMER_REAL and reading the queues, in microseconds. If ITIMER_REAL had
/// less time left and a SIGALRM is pending, the SIGALRM counts as the signal of this expiration. If the SIGALRM is
/// the signal of an earlier expiration, the program receives one SIGALRM for two expirations. The same happens to a
/// program that handles the first SIGALRM late.
const ALARM_GAP_US: i64 = 1000;
/// The number of bytes of `struct itimerval` and `struct itimerspec`: interval and remaining time, two words each.
const SETTING_BYTES: u64 = 32;
/// The set of all signals, the length of a set, and the length of a `struct timespec`.
const EVERY_SIGNAL: u64 = u64::MAX;
const SIGNAL_SET_BYTES: u64 = 8;
const TIMESPEC_BYTES: u64 = 16;
/// The raw state contains one byte in front of each signal. This byte
/// names the queue of the signal: the queue of the thread or the queue of the process.
const OF_THREAD: u8 = 0;
const OF_PROCESS: u8 = 1;

/// The state kind of pending signals.
pub(super) struct Sigpending;

#[derive(Clone, PartialEq, Message)]
struct PendingMessage {
    /// The `siginfo_t` of each signal in the queue of the thread, oldest first.
    #[prost(bytes = "vec", repeated, tag = "1")]
    thread: Vec<Vec<u8>>,
    /// The `siginfo_t` of each signal in the queue of the process, oldest first. Only the record of the thread group
    /// leader contains these signals.
    #[prost(bytes = "vec", repeated, tag = "2")]
    process: Vec<Vec<u8>>,
}

impl StateKind for Sigpending {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Thread, stage: Stage::Signals }
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

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        let message: PendingMessage = crate::error::decode(NAME, payload)?;
        let mut signals = message.thread.iter().chain(&message.process);
        if signals.any(|information| information.len() != INFORMATION_BYTES) {
            return Err(ResourceError::malformed(NAME, "a signal has the wrong length"));
        }
        Ok(())
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: PendingMessage = crate::error::decode(NAME, payload)?;
        // This call blocks all signals in the stub, so that the queued signals stay pending. It also blocks SIGTRAP,
        // because the stub makes its calls without SIGTRAP at this stage.
        hold::in_thread(restore.stub)?;
        queue_all(&message, restore)
    }

    fn in_place(&self) -> Option<&dyn InPlace> {
        Some(self)
    }
}

impl InPlace for Sigpending {
    fn can_set(&self, _present: Option<&[u8]>, _wanted: Option<&[u8]>, _: Renumber<'_>) -> Result<bool> {
        Ok(true)
    }

    /// Removes the signals that are pending now. These can be more than at the capture of the present state.
    fn clear(&self, _present: Option<&[u8]>, thread: &mut LivingThread<'_>) -> Result<()> {
        let (pid, tid) = thread.ids();
        let mut count = ptrace::pending_signals(tid, SignalQueue::Thread)?.len();
        if tid == pid.leader() {
            count += ptrace::pending_signals(tid, SignalQueue::Process)?.len();
        }
        // The call first takes the signals of the thread. It never takes SIGKILL and SIGSTOP.
        let no_wait = [0; TIMESPEC_BYTES as usize];
        let data = [&EVERY_SIGNAL.to_ne_bytes()[..], &no_wait].concat();
        for _ in 0..count {
            let taken = thread.call_with(nr::RT_SIGTIMEDWAIT, &data, |at| {
                [at.get(), 0, at.get() + SIGNAL_SET_BYTES, SIGNAL_SET_BYTES, 0, 0]
            });
            match taken {
                Ok(_) => {}
                // The signal of a timer goes when the timer is set.
                Err(RemoteError::Refused { errno: EAGAIN, .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn set(&self, wanted: &[u8], thread: &mut LivingThread<'_>) -> Result<()> {
        queue_all(&crate::error::decode(NAME, wanted)?, thread)
    }
}

fn queue_all(message: &PendingMessage, caller: &mut impl Caller) -> Result<()> {
    let (pid, tid) = caller.ids();
    let (pid, tid) = (pid.get() as u64, tid.get() as u64);
    for information in &message.thread {
        if !is_sent_by_timer(information, SignalQueue::Thread, caller)? {
            queue(nr::RT_TGSIGQUEUEINFO, &[pid, tid], information, caller)?;
        }
    }
    for information in &message.process {
        if !is_sent_by_timer(information, SignalQueue::Process, caller)? {
            queue(nr::RT_SIGQUEUEINFO, &[pid], information, caller)?;
        }
    }
    Ok(())
}

/// Queues a signal. The thread itself makes the system call, because the kernel lets a process send signals with codes
/// of the kernel only to itself.
fn queue(number: i64, to: &[u64], information: &[u8], caller: &mut impl Caller) -> Result<()> {
    let signal = field(information, SIGNAL_AT);
    let sent = caller.call_with(number, information, |at| {
        let mut arguments = [0; 6];
        for (slot, value) in arguments.iter_mut().zip(to.iter().copied().chain([signal as u64, at.get()])) {
            *slot = value;
        }
        arguments
    });
    match sent {
        Ok(_) => Ok(()),
        Err(RemoteError::Refused { errno: EAGAIN, .. }) => Err(ResourceError::Unsupported {
            pid: caller.ids().0,
            what: format!("pending signal {signal}"),
            why: "the user of the process has reached RLIMIT_SIGPENDING".to_owned(),
            fix: "raise the limit (`ulimit -i`), or end the process that has them queued (`SigQ` in \
                  /proc/PID/status)"
                .to_owned(),
        }),
        Err(error) => Err(error.into()),
    }
}

fn take(capture: &StateCapture<'_>, queue: SignalQueue, mark: u8, raw: &mut RawState) -> Result<()> {
    for information in ptrace::pending_signals(capture.tid, queue)? {
        match field(&information, SIGNAL_AT) {
            SIGKILL => {}
            SIGSTOP => return Err(stop_in_progress(capture.pid)),
            _ => {
                raw.push(mark);
                raw.extend(information);
            }
        }
    }
    Ok(())
}

fn stop_in_progress(pid: Pid) -> ResourceError {
    ResourceError::Unsupported {
        pid,
        what: "a pending SIGSTOP".to_owned(),
        why: "the process received it during the checkpoint".to_owned(),
        fix: "take the checkpoint again".to_owned(),
    }
}

/// Reports whether a restored timer has already sent the same signal, or will send the signal.
fn is_sent_by_timer(information: &[u8], queue: SignalQueue, caller: &mut impl Caller) -> Result<bool> {
    if let Some(timer) = timer_signal(information) {
        let waiting = ptrace::pending_signals(caller.ids().1, queue)?;
        if waiting.iter().any(|other| timer_signal(other) == Some(timer)) {
            return Ok(true);
        }
        // In the subject, setting a timer removes its pending signal. If the image contains a running one-shot timer
        // and its signal, the timer expired between the two reads. The restored timer will send the signal.
        let Some([interval_s, interval_ns, left_s, left_ns]) = setting(nr::TIMER_GETTIME, timer.1, caller)?
        else {
            return Ok(false);
        };
        return Ok((interval_s, interval_ns) == (0, 0) && (left_s, left_ns) != (0, 0));
    }
    if field(information, SIGNAL_AT) == SIGALRM && field(information, CODE_AT) == SI_KERNEL {
        let Some([_, _, left_s, left_us]) = setting(nr::GETITIMER, ITIMER_REAL, caller)? else {
            return Ok(false);
        };
        return Ok(left_s == 0 && (1..ALARM_GAP_US).contains(&left_us));
    }
    Ok(false)
}

/// Returns the setting of a timer: interval and remaining time, two words each. Returns `None` if the timer does not
/// exist.
fn setting(number: i64, timer: i32, caller: &mut impl Caller) -> Result<Option<[i64; 4]>> {
    match caller.call_with(number, &[], |at| [timer as u64, at.get(), 0, 0, 0, 0]) {
        Ok(_) => {}
        Err(RemoteError::Refused { errno: sys::Errno::EINVAL, .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let bytes = caller.read_data(ByteCount(SETTING_BYTES))?;
    let mut words = [0; 4];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut buffer = [0; 8];
        buffer.copy_from_slice(chunk);
        *word = i64::from_ne_bytes(buffer);
    }
    Ok(Some(words))
}

/// Returns the signal number and the timer id, if a POSIX timer has sent the signal.
fn timer_signal(information: &[u8]) -> Option<(i32, i32)> {
    let code = field(information, CODE_AT);
    (code == SI_TIMER).then(|| (field(information, SIGNAL_AT), field(information, TIMER_AT)))
}

/// Appends a signal to a queue. If the queue already contains a signal of the same timer, the new signal counts as an
/// overrun of this signal. Two signals of one timer are possible only if an earlier restore has queued one of them.
fn add(queue: &mut Vec<Vec<u8>>, information: Vec<u8>) {
    let timer = timer_signal(&information);
    let same = queue.iter_mut().find(|other| timer.is_some() && timer_signal(other) == timer);
    let Some(first) = same else { return queue.push(information) };
    let overruns = field(first, OVERRUN_AT).saturating_add(field(&information, OVERRUN_AT)).saturating_add(1);
    if let Some(slot) = first.get_mut(OVERRUN_AT..OVERRUN_AT + 4) {
        slot.copy_from_slice(&overruns.to_ne_bytes());
    }
}

/// Returns one 32-bit field of a `siginfo_t`.
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
    fn empty_queues_produce_no_record() {
        assert_eq!(Sigpending.after(&[]).unwrap(), None);
    }

    #[test]
    fn order_and_count_of_queued_signals_are_preserved() {
        let raw =
            [entry(1, 40, -1, 0, 1), entry(0, 40, -1, 0, 2), entry(1, 40, -1, 0, 3), entry(1, 40, -1, 0, 3)];
        let message = decoded(&raw.concat());
        let values = |queue: &[Vec<u8>]| queue.iter().map(|one| one[24]).collect::<Vec<_>>();
        assert_eq!((values(&message.thread), values(&message.process)), (vec![2], vec![1, 3, 3]));
    }

    #[test]
    fn a_second_signal_of_a_timer_counts_as_an_overrun() {
        let raw = [entry(1, 40, SI_TIMER, 5, 0), entry(1, 40, SI_TIMER, 6, 0), entry(1, 40, SI_TIMER, 5, 0)];
        let message = decoded(&raw.concat());
        let overruns = message.process.iter().map(|one| field(one, OVERRUN_AT)).collect::<Vec<_>>();
        assert_eq!(overruns, [1, 0]);
    }
}
