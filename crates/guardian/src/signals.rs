//! Signals to this process: nearly all are meant for the subject.
//!
//! Owns: which signals are blocked and read from a descriptor, and what each of them requests.
//! Invariants: a signal that the caller had ignored has no effect. A signal that the terminal has sent to the whole
//! foreground group is not sent to the subject a second time. A write beyond RLIMIT_FSIZE or to a pipe without a reader
//! is an error of this write, and ends no process.
//! Does not: act; the loops do.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;

use model::{Pid, Signal};
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

/// Ask the subject to end.
const ENDING: [Signal; 4] = [HUP, INT, QUIT, TERM];
/// Mean whatever the subject makes of them.
const PASSED_ON: [Signal; 2] = [USR1, USR2];
/// Stop this program and the subject together.
const STOPPING: [Signal; 3] = [TSTP, TTIN, TTOU];

/// Would end this program for a write that fails: at the limit on file sizes, and without a reader.
const OF_WRITES: [Signal; 2] = [PIPE, XFSZ];

/// Makes writes that cannot be done errors and nothing else, for the rest of this process's life. Gives the signals that
/// programs started from here must meet with their default actions again.
pub(crate) fn outlive_failed_writes() -> Result<u64> {
    // Rust's runtime ignores SIGPIPE before the setting of the caller can be read.
    let ignored = ignored()? & !bit(PIPE);
    for signal in OF_WRITES {
        sys::signal::set_ignored(signal)?;
    }
    Ok(OF_WRITES.into_iter().map(bit).fold(0, |set, one| set | one) & !ignored)
}

/// Starts a thread that no signal to this process reaches, so that it can begin before they are blocked.
pub fn in_background(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let blocked = sys::signal::block(u64::MAX)?;
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    sys::signal::unblock(!blocked)?;
    Ok(started.map_err(|error| sys::Error::new("start a thread", error))?)
}

/// The meaning of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// The subject is to end. `from_terminal`: it has the signal already if it is in our group, and a program that
    /// takes Ctrl-C for "stop what you are at" goes on.
    End { signal: Signal, from_terminal: bool },
    /// Hand it to the subject.
    PassOn(Signal),
    /// Stop until SIGCONT arrives.
    Stop { signal: Signal, from_terminal: bool },
    /// Some child has changed.
    Child,
}

/// Signals to this program, readable as a descriptor.
#[derive(Debug)]
pub(crate) struct Signals {
    queue: OwnedFd,
    /// What was blocked before they were taken, and is in the programs that we start, as a set of bits.
    pub(crate) blocked_before: u64,
    /// What is ignored here and has its default action in the programs that we start, as a set of bits.
    pub(crate) defaults: u64,
}

impl Signals {
    /// Blocks all signals of interest, for the rest of the life of this process.
    pub(crate) fn take() -> Result<Self> {
        // If the parent ignores SIGCHLD, the children of this process would be reaped by the kernel.
        sys::signal::set_default(CHLD)?;
        let ignored = ignored()?;
        let wanted = ENDING.iter().chain(&PASSED_ON).chain(&STOPPING).chain([&CHLD]);
        let set = wanted.filter(|signal| bit(**signal) & ignored == 0).fold(0, |set, one| set | bit(*one));
        let defaults = outlive_failed_writes()?;
        let blocked_before = sys::signal::block(set)?;
        Ok(Self { queue: signalfd::create_nonblocking(set)?, blocked_before, defaults })
    }

    /// Becomes readable with a signal.
    pub(crate) fn handle(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }

    /// Takes the next signal, if one has come.
    pub(crate) fn poll(&self) -> Result<Option<Request>> {
        let Some(received) = signalfd::read(self.queue.as_fd())? else { return Ok(None) };
        // Above zero the kernel sent it: for these signals that is the terminal driver.
        let from_terminal = received.code > 0;
        let signal = received.signal;
        Ok(Some(if signal == CHLD {
            Request::Child
        } else if STOPPING.contains(&signal) {
            Request::Stop { signal, from_terminal }
        } else if ENDING.contains(&signal) {
            Request::End { signal, from_terminal }
        } else {
            Request::PassOn(signal)
        }))
    }
}

/// Whether the subject is in the process group that the terminal has signalled together with us.
pub(crate) fn shares_group(subject: Pid) -> bool {
    let own = sys::session::group_of(Pid(std::process::id() as i32));
    own.is_ok_and(|own| sys::session::group_of(subject).is_ok_and(|group| group == own))
}

/// Whether this process has a controlling terminal. SIGHUP then means that the terminal is gone.
pub(crate) fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// Stops this process until it gets SIGCONT.
pub(crate) fn stop_ourselves() -> Result<()> {
    Ok(sys::signal::send(Pid(std::process::id() as i32), STOP)?)
}

const fn bit(signal: Signal) -> u64 {
    1 << (signal.get() - 1)
}

/// Signals that this process ignores.
fn ignored() -> Result<u64> {
    let text = procfs::read_text("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    Ok(line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0))
}
