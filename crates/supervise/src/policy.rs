//! What the operator chooses: which deaths are followed by a restart, and what becomes of changed files.
//!
//! Owns: the two policies and their names on the command line.
//! Does not: apply them; `subject` does.

use serde::{Deserialize, Serialize};

use crate::status::SubjectStatus;

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

    /// Whether a death that nobody asked for is followed by a restart.
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
    /// The program starts from its beginning and recovers from its files by itself.
    Fresh,
    /// The memory of the checkpoint meets the files as they are.
    Keep,
    /// The run ends with an error that names the files.
    Refuse,
}

impl ChangedFiles {
    /// Every policy.
    pub const ALL: [Self; 4] = [Self::Rewind, Self::Keep, Self::Refuse, Self::Fresh];

    /// Its name on the command line and in `status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rewind => "rewind",
            Self::Fresh => "fresh",
            Self::Keep => "keep",
            Self::Refuse => "refuse",
        }
    }
}

#[cfg(test)]
mod tests {
    use model::Signal;

    use super::*;

    #[test]
    fn a_policy_is_written_by_its_name() {
        for policy in RestartPolicy::ALL {
            let text = serde_json::to_value(policy).unwrap();
            assert_eq!(text, policy.name());
        }
        for policy in ChangedFiles::ALL {
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
