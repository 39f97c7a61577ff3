//! Faults of a running program.
//!
//! Owns: the faults that checks of the guardian find, the texts of these faults, and which faults count against the
//! program itself.
//! Does not: find a fault, or decide about the consequences. The guardian finds faults, and the module `subject`
//! decides about the consequences.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A reason to kill a running program, and to restart the program according to its policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Too many heartbeats in succession were missed.
    MissedHeartbeat,
    /// Too many probes in succession have failed.
    FailedProbe,
    /// The complaints about the program reached their quorum.
    Complaints,
    /// The program uses no processor time and makes no system calls while a probe fails.
    Hang,
    /// Executable pages in memory differ from their file.
    CodeChanged,
    /// The program uses more memory than its limit.
    Memory,
    /// The program has more open descriptors than its limit.
    Descriptors,
    /// The program was not ready within its timeout.
    NotReady,
    /// Another member of the program's group died.
    Group,
    /// An operator has requested a restart from a checkpoint of this moment. This is no fault of any program.
    Requested,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 10] = [
        Self::MissedHeartbeat,
        Self::FailedProbe,
        Self::Complaints,
        Self::Hang,
        Self::CodeChanged,
        Self::Memory,
        Self::Descriptors,
        Self::NotReady,
        Self::Group,
        Self::Requested,
    ];

    /// Reports whether the program itself is at fault.
    ///
    /// Only the deaths for such faults count: for the limit on restarts, for the back-off, and against a checkpoint.
    #[must_use]
    pub const fn is_own(self) -> bool {
        !matches!(self, Self::Group | Self::Requested)
    }
}

/// Writes a verb phrase, for a sentence that begins with the name of the program.
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
            Self::Requested => "is restarted with its state, as requested",
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
