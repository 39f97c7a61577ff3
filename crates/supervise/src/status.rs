//! The exit status of a subject, the policy for restarts, and the policy for changed files.
//!
//! Owns: the typed result of wait(2), the exit code for this result, the ends that count as success, the policies, and
//! the names of the policies on the command line.
//! Does not: wait for a process, or apply a policy; the module `subject` applies the policies.

use std::fmt;

use model::Signal;
use serde::{Deserialize, Serialize};

/// A shell reports a death by a signal with this number plus the signal number.
const KILLED: i32 = 128;
/// The exit code for an unknown exit status: the code for a failure of `undying`.
const UNKNOWN: u8 = 125;

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

/// The ends of a program that count as success. No restart from a checkpoint follows a success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Success {
    /// One bit for each exit code.
    codes: [u64; 4],
    /// One bit for each signal.
    signals: u64,
}

/// SIGHUP, SIGINT, SIGPIPE and SIGTERM. `Restart=on-failure` of systemd.service(5) uses the same signals.
const CLEAN_SIGNALS: [i32; 4] = [1, 2, 13, 15];
/// Programs that handle SIGHUP, SIGINT or SIGTERM, and then end, often exit with 128 plus the signal number. Examples
/// are the Java virtual machine, Node.js and shells.
const CLEAN_CODES: [u8; 4] = [0, 129, 130, 143];
/// The names of signals without `SIG`, with their numbers on Linux.
const SIGNALS: [(&str, i32); 31] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("PWR", 30),
    ("SYS", 31),
];

impl Default for Success {
    /// Returns exit codes 0, 129, 130 and 143, and the signals HUP, INT, PIPE and TERM.
    fn default() -> Self {
        let none = Self { codes: [0; 4], signals: 0 };
        let with_codes = CLEAN_CODES.into_iter().fold(none, Self::with_code);
        CLEAN_SIGNALS.into_iter().fold(with_codes, |own, signal| own.with_signal(Signal(signal)))
    }
}

/// Returns the signal with a name like `SIGUSR1` or `USR1`.
pub(crate) fn signal_named(name: &str) -> Option<Signal> {
    let name = name.strip_prefix("SIG").unwrap_or(name);
    let (_, number) = SIGNALS.iter().find(|(known, _)| *known == name)?;
    Some(Signal(*number))
}

impl Success {
    /// Adds an exit code.
    #[must_use]
    pub fn with_code(mut self, code: u8) -> Self {
        self.codes[usize::from(code / 64)] |= 1 << (code % 64);
        self
    }

    /// Adds a death by a signal.
    #[must_use]
    pub fn with_signal(mut self, signal: Signal) -> Self {
        self.signals |= Self::bit(signal);
        self
    }

    /// Adds an end in its text form: an exit code from 0 to 255, or the name of a signal like `SIGUSR1` or `USR1`.
    /// Returns `None` if the text has another form.
    #[must_use]
    pub fn with(self, text: &str) -> Option<Self> {
        if let Ok(code) = text.parse() {
            return Some(self.with_code(code));
        }
        Some(self.with_signal(signal_named(text)?))
    }

    /// Reports whether an end counts as success.
    #[must_use]
    pub fn has(self, status: SubjectStatus) -> bool {
        match status {
            SubjectStatus::Exited(code) => u8::try_from(code)
                .is_ok_and(|code| self.codes[usize::from(code / 64)] >> (code % 64) & 1 == 1),
            SubjectStatus::Killed(signal) => self.signals & Self::bit(signal) != 0,
            SubjectStatus::Unknown => false,
        }
    }

    fn bit(signal: Signal) -> u64 {
        u32::try_from(signal.get()).ok().and_then(|number| 1_u64.checked_shl(number)).unwrap_or(0)
    }
}

/// The deaths that are followed by a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// No death is followed by a restart.
    Never,
    /// A restart follows every end that is no success.
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
    pub fn restarts(self, status: SubjectStatus, success: Success) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::OnFailure => !success.has(status),
        }
    }
}

/// What a restart does about changed files. A changed file is a regular file that the subject writes, and that has
/// changed since the checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangedFiles {
    /// All files are rolled back to the checkpoint, together with the memory. A checkpoint that is older than
    /// `Plan::files_back_max` is not used if files have changed since.
    #[default]
    Rewind,
    /// The files stay as they are. If any file has changed, the program starts from its beginning and recovers from its
    /// files.
    Fresh,
    /// Files that have only grown are truncated to their length at the checkpoint. If any other file has changed, or
    /// the checkpoint is older than `Plan::files_back_max`, the files stay as they are, and the program starts from its
    /// beginning.
    Trim,
    /// If the program only appends to all changed files, the files stay as they are. If any other file has changed, the
    /// program starts from its beginning.
    Append,
    /// The checkpoint is restored, and the files stay as they are.
    Keep,
    /// The files stay as they are. If any file has changed, the run ends with an error that names the files.
    Refuse,
}

impl ChangedFiles {
    /// The policies that can be chosen by name.
    pub const ALL: [Self; 5] = [Self::Rewind, Self::Keep, Self::Refuse, Self::Fresh, Self::Trim];

    /// Returns the name on the command line and in `status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rewind => "rewind",
            Self::Fresh => "fresh",
            Self::Trim => "trim",
            Self::Append => "append",
            Self::Keep => "keep",
            Self::Refuse => "refuse",
        }
    }

    /// Returns the policy for a checkpoint that is older than `Plan::files_back_max`.
    #[must_use]
    pub fn beyond_bound(self) -> Self {
        if self == Self::Trim { Self::Fresh } else { self }
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
        let restarts = |policy: RestartPolicy, status| policy.restarts(status, Success::default());
        let policy = RestartPolicy::OnFailure;
        for success in [
            SubjectStatus::Exited(0),
            SubjectStatus::Killed(Signal(15)),
            // The exit codes of a Java virtual machine after SIGTERM, SIGINT and SIGHUP.
            SubjectStatus::Exited(143),
            SubjectStatus::Exited(130),
            SubjectStatus::Exited(129),
        ] {
            assert!(!restarts(policy, success), "{success}");
        }
        for failure in [
            SubjectStatus::Exited(1),
            SubjectStatus::Exited(137),
            SubjectStatus::Killed(Signal(11)),
            SubjectStatus::Killed(Signal(9)),
            SubjectStatus::Unknown,
        ] {
            assert!(restarts(policy, failure), "{failure}");
        }
        assert!(restarts(RestartPolicy::Always, SubjectStatus::Exited(0)));
        assert!(!restarts(RestartPolicy::Never, SubjectStatus::Killed(Signal(11))));
    }

    #[test]
    fn success_is_named_by_codes_and_signals() {
        let solver = ["0", "10", "20", "255", "SIGUSR1", "KILL"]
            .into_iter()
            .try_fold(Success::default(), Success::with)
            .unwrap();
        for status in [10, 20, 255, 0, 143].map(SubjectStatus::Exited) {
            assert!(solver.has(status), "{status}");
        }
        for signal in [10, 9, 15].map(Signal) {
            assert!(solver.has(SubjectStatus::Killed(signal)), "{signal}");
        }
        assert!(!solver.has(SubjectStatus::Exited(30)) && !solver.has(SubjectStatus::Killed(Signal(11))));
        for bad in ["", "256", "-1", "SIG", "SIGNONE", "1 2", "usr1"] {
            assert_eq!(Success::default().with(bad), None, "{bad}");
        }
    }
}
