//! Signals of a replicated program.
//!
//! Owns: which signals are faults of the program itself, which ones stop it, and what their default actions are.
//! Does not: deliver signals; `group` does.

use model::{Pid, Signal};
use sys::ptrace::SiginfoBytes;
use tracee::procfs;

/// SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV.
const FAULTS: [i32; 5] = [4, 5, 7, 8, 11];
/// SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU: a replicated program cannot be suspended.
const STOPS: [i32; 5] = [18, 19, 20, 21, 22];
/// SIGCHLD, SIGURG, SIGWINCH: the default action is to ignore them.
const IGNORED: [i32; 3] = [17, 23, 28];

pub(crate) const SEGMENT_FAULT: Signal = Signal(11);

/// Returns the signal in a `siginfo_t`.
pub(crate) fn number(information: &SiginfoBytes) -> Signal {
    Signal(word(information, 0))
}

/// Reports whether the program has caused the signal by an instruction. The kernel then sets `si_code` above zero.
pub(crate) fn is_fault(information: &SiginfoBytes) -> bool {
    FAULTS.contains(&word(information, 0)) && word(information, 8) > 0
}

pub(crate) fn is_stop(signal: Signal) -> bool {
    STOPS.contains(&signal.get())
}

/// Reports whether the signal would end the process: it has neither a handler nor is it ignored.
pub(crate) fn ends(pid: Pid, signal: Signal) -> bool {
    let Ok(status) = procfs::read(format!("/proc/{pid}/status")) else { return false };
    let has = |name: &str| procfs::signal_set(&status, name) >> (signal.get() - 1) & 1 == 1;
    !IGNORED.contains(&signal.get()) && !has("SigCgt") && !has("SigIgn") && !has("SigBlk")
}

fn word(information: &SiginfoBytes, at: usize) -> i32 {
    i32::from_ne_bytes(information[at..at + 4].try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_has_the_code_of_the_kernel() {
        let mut information = [0; 128];
        information[0] = 11;
        assert!(!is_fault(&information), "kill(2) sent it");
        information[8] = 1;
        assert!(is_fault(&information) && number(&information) == SEGMENT_FAULT);
        assert!(is_stop(Signal(20)) && !is_stop(Signal(2)));
    }
}
