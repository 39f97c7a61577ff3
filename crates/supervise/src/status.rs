//! How a subject has ended, and what the operator wants to follow.
//!
//! Owns: the typed result of a wait, and its exit code; the policies on restarts and on changed files, and their names
//! on the command line.
//! Does not: wait, or apply a policy; `subject` does the latter.

use std::fmt;

use model::Signal;
use serde::{Deserialize, Serialize};

/// What a shell adds to the number of a signal to make an exit code of it.
const KILLED: i32 = 128;
/// The exit code of an end that is not known: the one of a failure of undying.
const UNKNOWN: u8 = 125;

/// Signals by which programs are told to end, or end when their reader is gone: no failures. The same as in
/// systemd.service(5), `Restart=on-failure`.
const CLEAN: [Signal; 4] = [Signal(1), Signal(2), Signal(13), Signal(15)];
/// Sent only by other processes, so it proves nothing about the state that it ends.
pub(crate) const KILL: Signal = Signal(9);

/// How a subject ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubjectStatus {
    /// It exited with this code.
    Exited(i32),
    /// It was killed by this signal.
    Killed(Signal),
    /// It ended, and its exit status is unknown, because it was not a child of this process.
    Unknown,
}

impl SubjectStatus {
    /// The end by a signal, or with this exit code.
    #[must_use]
    pub fn of(signal: Option<i32>, exit: Option<i32>) -> Self {
        match (signal, exit) {
            (Some(signal), _) => Self::Killed(Signal(signal)),
            (None, Some(exit)) => Self::Exited(exit),
            (None, None) => Self::Unknown,
        }
    }

    /// What a shell would report: the code itself, or 128 + the signal. An unknown end counts as a failure of
    /// undying (125): it must not be taken for success.
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

    /// Whether it ended successfully.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Exited(0)
    }

    /// Whether it ended successfully, or by a signal that tells programs to end.
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

/// Which deaths are followed by a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// None.
    Never,
    /// An exit code other than 0, and any signal but HUP, INT, PIPE and TERM.
    #[default]
    OnFailure,
    /// Every one.
    Always,
}

impl RestartPolicy {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Never, Self::OnFailure, Self::Always];

    /// Its name on the command line and in `status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::OnFailure => "on-failure",
            Self::Always => "always",
        }
    }

    /// Whether a restart follows a death that was not requested.
    #[must_use]
    pub fn restarts(self, status: SubjectStatus) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::OnFailure => !status.is_clean(),
        }
    }
}

/// What a restart does when regular files that the subject writes have changed since the checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangedFiles {
    /// All files go back to the checkpoint with the memory.
    #[default]
    Rewind,
    /// The program starts from its beginning and recovers from its files.
    Fresh,
    /// Files that the program only appends to stay as they are. If any other one has changed, the program starts from its
    /// beginning.
    Append,
    /// The memory of the checkpoint meets the files as they are.
    Keep,
    /// The run ends with an error that names the files.
    Refuse,
}

impl ChangedFiles {
    /// Those that can be chosen for a run.
    pub const ALL: [Self; 4] = [Self::Rewind, Self::Keep, Self::Refuse, Self::Fresh];

    /// Its name on the command line and in `status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rewind => "rewind",
            Self::Fresh => "fresh",
            Self::Append => "append",
            Self::Keep => "keep",
            Self::Refuse => "refuse",
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

#[cfg(test)]
mod policy_tests {
    use super::*;

    #[test]
    fn a_policy_is_written_by_its_name() {
        for policy in RestartPolicy::ALL {
            let text = serde_json::to_value(policy).unwrap();
            assert_eq!(text, policy.name());
        }
        for policy in ChangedFiles::ALL.into_iter().chain([ChangedFiles::Append]) {
            assert_eq!(serde_json::to_value(policy).unwrap(), policy.name());
        }
    }

    #[test]
    fn on_failure_leaves_alone_what_was_told_to_end() {
        let policy = RestartPolicy::OnFailure;
        assert!(!policy.restarts(SubjectStatus::Exited(0)));
        assert!(!policy.restarts(SubjectStatus::Killed(Signal(15))));
        for failure in [
            SubjectStatus::Exited(1),
            SubjectStatus::Killed(Signal(11)),
            SubjectStatus::Killed(Signal(9)),
            SubjectStatus::Unknown,
        ] {
            assert!(policy.restarts(failure), "{failure}");
        }
        assert!(RestartPolicy::Always.restarts(SubjectStatus::Exited(0)));
        assert!(!RestartPolicy::Never.restarts(SubjectStatus::Killed(Signal(11))));
    }
}
