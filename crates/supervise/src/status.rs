//! The exit status of a subject (a protected program), the policy for restarts, and the policy for changed files.
//!
//! Owns: the typed result of wait(2), the exit code for this result, the policies, and the names of the policies on the
//! command line.
//! Does not: wait for a process, or apply a policy; the module `subject` applies the policies.

use std::fmt;

use model::Signal;
use serde::{Deserialize, Serialize};

/// A shell reports a death by a signal with this number plus the signal number.
const KILLED: i32 = 128;
/// The exit code for an unknown exit status: the code for a failure of `undying`.
const UNKNOWN: u8 = 125;

/// Signals that count as a clean end: SIGHUP, SIGINT, SIGPIPE and SIGTERM. `Restart=on-failure` of systemd.service(5)
/// uses the same signals.
const CLEAN: [Signal; 4] = [Signal(1), Signal(2), Signal(13), Signal(15)];
/// SIGKILL. Other processes send this signal, so a death by SIGKILL is no evidence that the state of the program leads
/// to deaths.
pub(crate) const KILL: Signal = Signal(9);

/// The status with which a subject ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubjectStatus {
    /// The subject exited with this code.
    Exited(i32),
    /// The subject was killed by this signal.
    Killed(Signal),
    /// The status is unknown, because the subject was not a child of this process.
    Unknown,
}

impl SubjectStatus {
    /// Returns the status for a signal number or an exit code. `Unknown` if both are `None`.
    #[must_use]
    pub fn of(signal: Option<i32>, exit: Option<i32>) -> Self {
        match (signal, exit) {
            (Some(signal), _) => Self::Killed(Signal(signal)),
            (None, Some(exit)) => Self::Exited(exit),
            (None, None) => Self::Unknown,
        }
    }

    /// Returns the exit code that a shell would report: the exit code of the subject, or 128 plus the signal number.
    ///
    /// For an unknown status, returns 125, the code for a failure of `undying`. A caller thus does not take an unknown
    /// status for success.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code as u8,
            Self::Killed(signal) => (KILLED + signal.get()) as u8,
            Self::Unknown => UNKNOWN,
        }
    }

    /// Returns the exit code of the subject; `None` if a signal has killed the subject or the status is unknown.
    #[must_use]
    pub fn exit(self) -> Option<i32> {
        if let Self::Exited(code) = self { Some(code) } else { None }
    }

    /// Returns the number of the signal that has killed the subject; `None` if the subject exited or the status is
    /// unknown.
    #[must_use]
    pub fn signal(self) -> Option<i32> {
        if let Self::Killed(signal) = self { Some(signal.get()) } else { None }
    }

    /// Reports whether the subject exited with code 0.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Exited(0)
    }

    /// Reports whether the subject exited with code 0, or was killed by a signal that counts as a clean end.
    #[must_use]
    pub fn is_clean(self) -> bool {
        match self {
            Self::Killed(signal) => CLEAN.contains(&signal),
            other => other.is_success(),
        }
    }

    /// Converts a status of wait(2).
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

/// The deaths that are followed by a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// No death is followed by a restart.
    Never,
    /// A restart follows any exit code other than 0, and any signal other than HUP, INT, PIPE and TERM.
    #[default]
    OnFailure,
    /// Every death is followed by a restart.
    Always,
}

impl RestartPolicy {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::Never, Self::OnFailure, Self::Always];

    /// Returns the name on the command line and in `status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::OnFailure => "on-failure",
            Self::Always => "always",
        }
    }

    /// Reports whether a restart follows a death that was not requested.
    #[must_use]
    pub fn restarts(self, status: SubjectStatus) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::OnFailure => !status.is_clean(),
        }
    }
}

/// What a restart does about changed files. A changed file is a regular file that the subject writes, and that has
/// changed since the checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangedFiles {
    /// All files are rolled back to the checkpoint, together with the memory.
    #[default]
    Rewind,
    /// The program starts from its beginning and recovers from its files.
    Fresh,
    /// If the program only appends to all changed files, the files stay as they are. If any other file has changed, the
    /// program starts from its beginning.
    Append,
    /// The checkpoint is restored, and the files stay as they are.
    Keep,
    /// The run ends with an error that names the files.
    Refuse,
}

impl ChangedFiles {
    /// The policies that the command line offers for a run.
    pub const ALL: [Self; 4] = [Self::Rewind, Self::Keep, Self::Refuse, Self::Fresh];

    /// Returns the name on the command line and in `status`.
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
    fn on_failure_does_not_restart_a_program_that_was_ended() {
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
