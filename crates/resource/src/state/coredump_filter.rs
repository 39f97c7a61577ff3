//! The state kind of the core dump filter, which selects the types of mappings in a core dump of a process.
//!
//! Owns: the value of `/proc/PID/coredump_filter`.
//! Invariants: if the new process already has the recorded filter, the restore costs one read.
//! Does not: save or restore a filter on a kernel without core dumps, because the file does not exist there.

use std::fs;

use prost::Message;
use sys::Errno;
use tracee::procfs;

use super::kind::{Level, RawState, Stage, StateCapture, StateKind, StateRestore};
use crate::error::{ResourceError, Result};

const NAME: &str = "state/coredump_filter";

/// The state kind of the core dump filter.
pub(super) struct CoredumpFilter;

#[derive(Clone, PartialEq, Message)]
struct CoredumpFilterMessage {
    /// The filter bits, as in core(5).
    #[prost(uint32, tag = "1")]
    bits: u32,
}

impl StateKind for CoredumpFilter {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "kinds of mappings that a core dump includes"
    }

    fn level(&self) -> Level {
        Level::Process
    }

    fn stage(&self) -> Stage {
        Stage::Setup
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        match capture.file("coredump_filter") {
            Ok(bytes) => raw.extend_from_slice(bytes),
            Err(ResourceError::Kernel(error)) if error.errno == Errno::ENOENT => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        // A kernel without core dumps has no file `coredump_filter`.
        if raw.is_empty() {
            return Ok(None);
        }
        Ok(Some(CoredumpFilterMessage { bits: parse(raw)? }.encode_to_vec()))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        crate::error::decode::<CoredumpFilterMessage>(NAME, payload).map(drop)
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let CoredumpFilterMessage { bits } = crate::error::decode(NAME, payload)?;
        let path = format!("/proc/{}/coredump_filter", restore.stub.pid());
        match procfs::read(&path) {
            Ok(now) if parse(&now)? == bits => Ok(()),
            Err(error) if error.errno == Errno::ENOENT => Ok(()),
            _ => fs::write(&path, format!("{bits:#x}"))
                .map_err(|error| sys::Error::path("write", path, error).into()),
        }
    }
}

fn parse(raw: &[u8]) -> Result<u32> {
    let text = std::str::from_utf8(raw).unwrap_or_default().trim();
    u32::from_str_radix(text, 16)
        .map_err(|error| ResourceError::Malformed { kind: NAME, why: format!("`{text}`: {error}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_format_is_parsed() {
        assert_eq!(parse(b"00000033\n").unwrap(), 0x33);
        assert!(parse(b"").is_err());
        assert_eq!(CoredumpFilter.after(b"").unwrap(), None);
    }
}
