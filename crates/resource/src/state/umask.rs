//! The state kind of the file mode creation mask of a process.
//!
//! Owns: the mask.
//! Does not: change files.

use prost::Message;
use tracee::arch::numbers as nr;
use tracee::procfs;

use super::kind::{Level, RawState, Stage, StateCapture, StateKind, StateRestore};
use crate::error::Result;

const NAME: &str = "state/umask";

/// The state kind of the file mode creation mask.
pub(super) struct Umask;

#[derive(Clone, PartialEq, Message)]
struct UmaskMessage {
    #[prost(uint32, tag = "1")]
    mask: u32,
}

impl StateKind for Umask {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "the file mode creation mask"
    }

    fn level(&self) -> Level {
        Level::Process
    }

    fn stage(&self) -> Stage {
        Stage::Setup
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        raw.extend_from_slice(capture.file("status")?);
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let mask = procfs::status_line(raw, "Umask").and_then(|mask| u32::from_str_radix(mask, 8).ok());
        Ok(mask.map(|mask| UmaskMessage { mask }.encode_to_vec()))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        crate::error::decode::<UmaskMessage>(NAME, payload).map(drop)
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: UmaskMessage = crate::error::decode(NAME, payload)?;
        restore.stub.call(nr::UMASK, [u64::from(message.mask), 0, 0, 0, 0, 0])?;
        Ok(())
    }
}
