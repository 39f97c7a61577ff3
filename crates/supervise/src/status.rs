//! How a subject has ended.
//!
//! Owns: the typed result of a wait, and its exit code.
//! Does not: wait.

use std::fmt;

use model::Signal;

/// What a shell adds to the number of a signal to make an exit code of it.
const KILLED: i32 = 128;
/// The exit code of an end that is not known: the one of a failure of undying.
const UNKNOWN: u8 = 125;

/// Signals by which programs are told to end, or end when their reader is gone: no failures. The same as in
/// systemd.service(5), `Restart=on-failure`.
const CLEAN: [Signal; 4] = [Signal(1), Signal(2), Signal(13), Signal(15)];
/// Comes from outside only, so it says nothing about the state that it ends.
pub(crate) const KILL: Signal = Signal(9);

/// How a subject ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubjectStatus {
    /// It exited with this code.
    Exited(i32),
    /// It was killed by this signal.
    Killed(Signal),
    /// It ended, and its parent did not tell how: it was no child of ours.
    Unknown,
}

impl SubjectStatus {
    /// What a shell would report: the code itself, or 128 + the signal. An unknown end counts as a failure of
    /// undying (125): nobody may take it for success.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code as u8,
            Self::Killed(signal) => (KILLED + signal.get()) as u8,
            Self::Unknown => UNKNOWN,
        }
    }

    /// Its exit code, if it exited.
    #[must_use]
    pub fn exit(self) -> Option<i32> {
        if let Self::Exited(code) = self { Some(code) } else { None }
    }

    /// The number of the signal that killed it, if one did.
    #[must_use]
    pub fn signal(self) -> Option<i32> {
        if let Self::Killed(signal) = self { Some(signal.get()) } else { None }
    }

    /// Whether it ended as programs end that have done what they were asked.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Exited(0)
    }

    /// Whether it ended as it should: successfully, or by a signal that tells programs to end.
    #[must_use]
    pub fn is_clean(self) -> bool {
        match self {
            Self::Killed(signal) => CLEAN.contains(&signal),
            other => other.is_success(),
        }
    }

    /// From the status that wait(2) fills in.
    #[must_use]
    pub fn from_wait(status: i32) -> Self {
        const SIGNAL_BITS: i32 = 0x7f;
        match status & SIGNAL_BITS {
            0 => Self::Exited((status >> 8) & 0xff),
            signal => Self::Killed(Signal(signal)),
        }
    }
}

impl fmt::Display for SubjectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with {code}"),
            Self::Killed(signal) => write!(f, "was killed by signal {signal}"),
            Self::Unknown => write!(f, "ended; it was no child of undying, so how is not known"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(SubjectStatus::Exited(3).code(), 3);
        assert_eq!(SubjectStatus::Killed(Signal(9)).code(), 137);
        assert_eq!(SubjectStatus::from_wait(11), SubjectStatus::Killed(Signal(11)));
        assert_eq!(SubjectStatus::from_wait(0x80 | 6), SubjectStatus::Killed(Signal(6)));
        assert_eq!(SubjectStatus::from_wait(2 << 8), SubjectStatus::Exited(2));
        assert!(!SubjectStatus::Unknown.is_success());
        assert_ne!(SubjectStatus::Unknown.code(), 0);
    }
}
