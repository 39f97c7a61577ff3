//! The state kind of the execution domain of a thread (personality(2)).
//!
//! Owns: the flags of the execution domain.
//! Invariants: a thread with the personality of the restoring process costs no call.
//! Does not: restore the effects of the flags on the memory layout. The mappings are restored at their addresses.

use std::sync::OnceLock;

use prost::Message;
use tracee::arch::numbers as nr;
use tracee::procfs;

use super::kind::{Level, RawState, Stage, StateCapture, StateKind, StateRestore};
use crate::error::{ResourceError, Result};

const NAME: &str = "state/personality";

/// The state kind of the execution domain.
pub(super) struct Personality;

#[derive(Clone, PartialEq, Message)]
struct PersonalityMessage {
    #[prost(uint32, tag = "1")]
    flags: u32,
}

impl StateKind for Personality {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "the execution domain: address randomisation and other flags of personality(2)"
    }

    fn level(&self) -> Level {
        Level::Thread
    }

    fn stage(&self) -> Stage {
        Stage::Setup
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        raw.extend_from_slice(capture.file("personality")?);
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(Some(PersonalityMessage { flags: parse(raw)? }.encode_to_vec()))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        crate::error::decode::<PersonalityMessage>(NAME, payload).map(drop)
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: PersonalityMessage = crate::error::decode(NAME, payload)?;
        if message.flags != own()? {
            restore.stub.call(nr::PERSONALITY, [u64::from(message.flags), 0, 0, 0, 0, 0])?;
        }
        Ok(())
    }
}

/// Returns the personality of this process. Every stub (process under construction) starts with this personality, and
/// this program never changes its personality.
fn own() -> Result<u32> {
    static OWN: OnceLock<u32> = OnceLock::new();
    if let Some(own) = OWN.get() {
        return Ok(*own);
    }
    let flags = parse(&procfs::read("/proc/thread-self/personality")?)?;
    Ok(*OWN.get_or_init(|| flags))
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
        assert_eq!(parse(b"00040000\n").unwrap(), 0x0004_0000);
        assert!(parse(b"").is_err());
        own().unwrap();
    }
}
