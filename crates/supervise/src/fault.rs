//! Faults of a program that runs.
//!
//! Owns: the faults that checks from outside find, their words, which of them speak against the program itself.
//! Does not: find one, or decide what follows; a host does the first, `subject` the second.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a running program is killed and restarted by its policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// It sent no heartbeat in time, too many times in a row.
    MissedHeartbeat,
    /// A probe of it failed too many times in a row.
    FailedProbe,
    /// Complaints about it reached their quorum.
    Complaints,
    /// It uses no processor time and makes no system calls while a probe fails.
    Hang,
    /// Executable pages of it differ from their file.
    CodeChanged,
    /// It uses more memory than its limit.
    Memory,
    /// It has more open descriptors than its limit.
    Descriptors,
    /// It was not ready within its timeout.
    NotReady,
    /// Another member of its group died. The only fault that is not its own.
    Group,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 9] = [
        Self::MissedHeartbeat,
        Self::FailedProbe,
        Self::Complaints,
        Self::Hang,
        Self::CodeChanged,
        Self::Memory,
        Self::Descriptors,
        Self::NotReady,
        Self::Group,
    ];

    /// Whether the program itself is at fault. Only then does its death count: for the limit on restarts, for the
    /// back-off, and against the checkpoint that it descends from.
    #[must_use]
    pub const fn is_own(self) -> bool {
        !matches!(self, Self::Group)
    }
}

/// A verb phrase, for a sentence that begins with the name of the program.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MissedHeartbeat => "missed its heartbeat",
            Self::FailedProbe => "failed its probe",
            Self::Complaints => "reached the quorum of complaints",
            Self::Hang => "makes no progress",
            Self::CodeChanged => "has executable pages that differ from their file",
            Self::Memory => "uses more memory than its limit",
            Self::Descriptors => "has more open descriptors than its limit",
            Self::NotReady => "was not ready in time",
            Self::Group => "is in a group of which another member died",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_fault_has_its_own_words_and_name() {
        let words: BTreeSet<String> = Fault::ALL.iter().map(Fault::to_string).collect();
        assert_eq!(words.len(), Fault::ALL.len());
        for fault in Fault::ALL {
            let name = serde_json::to_string(&fault).unwrap();
            assert_eq!(serde_json::from_str::<Fault>(&name).unwrap(), fault, "{name}");
        }
        assert_eq!(serde_json::to_value(Fault::MissedHeartbeat).unwrap(), "missed-heartbeat");
    }
}
