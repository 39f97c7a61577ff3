//! The state kind of the out-of-memory score: how early the kernel kills a process when memory runs out.
//!
//! Owns: the adjustment of the score.
//! Invariants: a value that equals the value of the restoring process costs no system call in the new process. If a
//! value may not be set, the restore is refused and the error names the value.
//! Does not: restore the minimum that the process itself may set, because the kernel does not show this minimum.

use std::fs;

use prost::Message;
use tracee::procfs;

use super::kind::{Level, RawState, Stage, StateCapture, StateKind, StateRestore};
use crate::error::{ResourceError, Result};

const NAME: &str = "state/oom_score";

/// The state kind of the out-of-memory score.
pub(super) struct OomScore;

#[derive(Clone, PartialEq, Message)]
struct OomScoreMessage {
    /// The adjustment, from -1000 (never killed) to 1000 (killed first).
    #[prost(sint32, tag = "1")]
    adjustment: i32,
}

impl StateKind for OomScore {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "how early the process is killed when memory runs out"
    }

    fn level(&self) -> Level {
        Level::Process
    }

    fn stage(&self) -> Stage {
        Stage::Setup
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        raw.extend_from_slice(capture.file("oom_score_adj")?);
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(Some(OomScoreMessage { adjustment: parse(raw)? }.encode_to_vec()))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        crate::error::decode::<OomScoreMessage>(NAME, payload).map(drop)
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let OomScoreMessage { adjustment } = crate::error::decode(NAME, payload)?;
        let own = parse(&procfs::read("/proc/self/oom_score_adj")?)?;
        if adjustment == own {
            return Ok(());
        }
        let pid = restore.stub.pid();
        let path = format!("/proc/{pid}/oom_score_adj");
        match fs::write(&path, adjustment.to_string()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                Err(ResourceError::Unsupported {
                    pid,
                    what: format!("an out-of-memory score adjustment of {adjustment}"),
                    why: format!("the restorer's own is {own}, and it lacks the privilege to lower it"),
                    fix: "restore with CAP_SYS_RESOURCE".to_owned(),
                })
            }
            Err(error) => Err(sys::Error::path("write", path, error).into()),
        }
    }
}

fn parse(raw: &[u8]) -> Result<i32> {
    let text = std::str::from_utf8(raw).unwrap_or_default().trim();
    text.parse().map_err(|error| ResourceError::Malformed { kind: NAME, why: format!("`{text}`: {error}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_format_is_parsed() {
        assert_eq!(parse(b"-17\n").unwrap(), -17);
        assert!(parse(b"").is_err());
    }
}
