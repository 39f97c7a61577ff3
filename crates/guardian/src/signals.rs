//! Receives the signals to this process. Nearly all signals are meant for the subject.
//!
//! Owns: the set of signals that are blocked and read from a descriptor, and the request that each signal means.
//! Invariants: a signal that was ignored at the start of this process has no effect. A signal that the terminal has
//! sent to the whole foreground group is not sent to the subject a second time. A write beyond RLIMIT_FSIZE, or to a
//! pipe without a reader, returns an error and does not end this process.
//! Does not: act on signals; the event loops do.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;

use model::{Pid, Signal};
use sys::signal::Received;
use sys::signalfd;
use tracee::procfs;

use crate::error::Result;

pub(crate) const HUP: Signal = Signal(1);
const INT: Signal = Signal(2);
const QUIT: Signal = Signal(3);
const USR1: Signal = Signal(10);
const USR2: Signal = Signal(12);
const PIPE: Signal = Signal(13);
const TERM: Signal = Signal(15);
const CHLD: Signal = Signal(17);
pub(crate) const CONT: Signal = Signal(18);
pub(crate) const STOP: Signal = Signal(19);
pub(crate) const KILL: Signal = Signal(9);
pub(crate) const TSTP: Signal = Signal(20);
pub(crate) const TTIN: Signal = Signal(21);
pub(crate) const TTOU: Signal = Signal(22);
const XFSZ: Signal = Signal(25);

/// Signals that ask the subject to end.
const ENDING: [Signal; 4] = [HUP, INT, QUIT, TERM];
/// Signals whose meaning the subject defines.
const PASSED_ON: [Signal; 2] = [USR1, USR2];
/// Signals that stop this program and the subject together.
const STOPPING: [Signal; 3] = [TSTP, TTIN, TTOU];

/// Signals that the kernel sends when a write fails: to a pipe without a reader, or beyond the limit on file sizes. By
/// default, these signals end the process.
const OF_WRITES: [Signal; 2] = [PIPE, XFSZ];

/// Turns failed writes into errors, until this process ends. Returns the signals that must have their default actions
/// in programs started by this process.
pub(crate) fn outlive_failed_writes() -> Result<u64> {
    // The Rust runtime ignores SIGPIPE before this program can read the inherited setting.
    let ignored = ignored()? & !bit(PIPE);
    for signal in OF_WRITES {
        sys::signal::set_ignored(signal)?;
    }
    Ok(bits(&OF_WRITES) & !ignored)
}

/// Starts a thread that receives no signal to this process. The thread can therefore start before `Signals::take`
/// blocks signals.
pub fn in_background(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let blocked = sys::signal::block(u64::MAX)?;
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    sys::signal::unblock(!blocked)?;
    Ok(started.map_err(|error| sys::Error::new("start a thread", error))?)
}

#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Arrived {
    Request(Request),
    /// Stop together with the subject until SIGCONT arrives.
    Stop {
        signal: Signal,
        from_terminal: bool,
        stop: PendingStop,
    },
}

/// The meaning of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// The subject is asked to end. With `is_of_group`, a subject in our process group has already received the signal.
    /// The subject may continue, for example if Ctrl-C ends only the current task of the program.
    End { signal: Signal, from_terminal: bool, is_of_group: bool },
    /// Pass the signal on to the subject.
    PassOn(Signal),
    /// A child has changed its state.
    Child,
}

/// Signals to this program, readable as a descriptor.
#[derive(Debug)]
pub(crate) struct Signals {
    /// Readable while a signal is pending.
    queue: OwnedFd,
    /// The received signals, as a set of bits.
    set: u64,
    /// Signals that were blocked before [`Self::take`], as a set of bits. Programs started by this process get this
    /// mask.
    pub(crate) blocked_before: u64,
    /// Signals that this process ignores, but that have their default actions in programs started by this process, as a
    /// set of bits.
    pub(crate) defaults: u64,
}

impl Signals {
    /// Blocks all signals of interest, until this process ends.
    pub(crate) fn take() -> Result<Self> {
        // The parent of this process may have ignored SIGCHLD. While SIGCHLD is ignored, the kernel reaps the children
        // of this process.
        sys::signal::set_default(CHLD)?;
        let ignored = ignored()?;
        let wanted = ENDING.iter().chain(&PASSED_ON).chain(&STOPPING).chain([&CHLD]);
        let set = wanted.fold(0, |set, one| set | bit(*one)) & !ignored;
        let defaults = outlive_failed_writes()?;
        let blocked_before = sys::signal::block(set)?;
        Ok(Self { queue: signalfd::create_nonblocking(set)?, set, blocked_before, defaults })
    }

    /// Returns a descriptor that becomes readable when a signal arrives.
    pub(crate) fn handle(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }

    /// Receives the next signal, if one has arrived.
    pub(crate) fn poll(&self) -> Result<Option<Arrived>> {
        if let Some(stop) = self.poll_stop()? {
            return Ok(Some(stop));
        }
        let Some(received) = sys::signal::take(self.set & !bits(&STOPPING))? else { return Ok(None) };
        let signal = received.signal;
        Ok(Some(Arrived::Request(if signal == CHLD {
            Request::Child
        } else if ENDING.contains(&signal) {
            Request::End {
                signal,
                from_terminal: is_from_terminal(received),
                is_of_group: is_of_group(received),
            }
        } else {
            Request::PassOn(signal)
        })))
    }

    /// Receives the next stop signal. A SIGCONT discards stop signals only while they are pending. Therefore, another
    /// stop signal becomes pending before this one is received.
    fn poll_stop(&self) -> Result<Option<Arrived>> {
        let arrived = sys::signal::pending()? & self.set;
        for (signal, other) in STOPPING.into_iter().zip([TTIN, TTOU, TSTP]) {
            if arrived & bit(signal) == 0 {
                continue;
            }
            let stop = PendingStop::with(other)?;
            if let Some(received) = sys::signal::take(bit(signal))? {
                let from_terminal = is_from_terminal(received);
                return Ok(Some(Arrived::Stop { signal, from_terminal, stop }));
            }
        }
        Ok(None)
    }
}

/// Reports whether the kernel has sent a signal: `code` is positive then. The kernel sends ending and stopping signals
/// for the terminal driver.
const fn is_from_terminal(received: Received) -> bool {
    received.code > 0
}

/// Reports whether all processes of our process group have received a signal.
fn is_of_group(received: Received) -> bool {
    let leader = sys::session::of(own_pid()).ok();
    if received.signal != HUP {
        return is_from_terminal(received);
    }
    match received.sender {
        // A hangup of the terminal goes only to the leader of the session. The end of the leader, and the end of the
        // last process that could continue a stopped group, go to the group.
        None => leader != Some(own_pid()),
        // After a hangup, a shell sends SIGHUP to the groups of its jobs. A second SIGHUP would end a program that saves
        // its data at the first one (Emacs).
        Some(sender) => leader == Some(sender) && !has_terminal(),
    }
}

/// Reports whether the subject is in our process group, so that signals of the terminal reach the subject too.
pub(crate) fn shares_group(subject: Pid) -> bool {
    let own = sys::session::group_of(Pid(std::process::id() as i32));
    own.is_ok_and(|own| sys::session::group_of(subject).is_ok_and(|group| group == own))
}

/// Reports whether this process has a controlling terminal. With a controlling terminal, SIGHUP means that the terminal
/// has hung up.
pub(crate) fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// A stop of this process that has no effect yet: a pending stop signal, which the kernel discards at a SIGCONT.
/// Another process that continues this process before [`Self::take_effect`] therefore has a running process, and not
/// one that stops afterwards.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct PendingStop {
    /// Whether this process ignores the signal, so that nothing is pending.
    is_ignored: bool,
}

impl PendingStop {
    /// Must be called while the stop signals are blocked (see [`Signals::take`]).
    pub(crate) fn new() -> Result<Self> {
        Self::with(TSTP)
    }

    fn with(signal: Signal) -> Result<Self> {
        let is_ignored = ignored()? & bit(signal) != 0;
        sys::signal::send(own_pid(), signal)?;
        Ok(Self { is_ignored })
    }

    /// Stops this process until it receives SIGCONT. Returns immediately after a SIGCONT since [`Self::new`], and in an
    /// orphaned process group, where the kernel ignores stop signals.
    pub(crate) fn take_effect(self) -> Result<()> {
        if self.is_ignored {
            sys::signal::send(own_pid(), STOP)?;
        }
        let blocked = sys::signal::unblock(bits(&STOPPING))?;
        sys::signal::block(blocked & bits(&STOPPING))?;
        // A stop signal that arrives from now on is another request.
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for PendingStop {
    fn drop(&mut self) {
        // An error means that nothing is pending that could be discarded.
        while let Ok(Some(_)) = sys::signal::take(bits(&STOPPING)) {}
    }
}

fn own_pid() -> Pid {
    Pid(std::process::id() as i32)
}

fn bits(signals: &[Signal]) -> u64 {
    signals.iter().fold(0, |set, one| set | bit(*one))
}

const fn bit(signal: Signal) -> u64 {
    1 << (signal.get() - 1)
}

/// Returns the signals that this process ignores, as a set of bits.
fn ignored() -> Result<u64> {
    let text = procfs::read_text("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    Ok(line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0))
}
