//! The state kind of the alternate signal stack of a thread.
//!
//! Owns: address, size and flags of the stack.
//! Does not: save the content of the stack, which is part of memory.

use model::ByteCount;
use sys::task_reader::Field;
use tracee::arch::numbers as nr;

use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use super::remote_calls::RemoteCalls;
use crate::error::{ResourceError, Result};

const NAME: &str = "state/sigaltstack";

/// The number of bytes of `stack_t`: address, flags, size.
const STACK_BYTES: usize = 24;
/// The position of the flags in `stack_t`.
const FLAGS: std::ops::Range<usize> = 8..12;
const SS_ONSTACK: u32 = 1;

/// The state kind of alternate signal stacks.
pub(super) struct Sigaltstack;

impl StateKind for Sigaltstack {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Thread, stage: Stage::Setup }
    }

    fn sources(&self) -> Option<&'static [Field]> {
        Some(&[Field("sas_ss_sp"), Field("sas_ss_size"), Field("sas_ss_flags")])
    }

    fn add_calls(&self, _capture: &mut StateCapture<'_>, calls: &mut RemoteCalls) -> Result<()> {
        calls.add_into(nr::SIGALTSTACK, [0; 6], 1, ByteCount(STACK_BYTES as u64));
        Ok(())
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        for result in capture.results(NAME) {
            result.value()?;
            raw.extend(result.bytes);
        }
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut stack = raw.to_vec();
        let Some(bytes) = stack.get_mut(FLAGS) else { return Ok(None) };
        let mut word = [0; 4];
        word.copy_from_slice(bytes);
        // SS_ONSTACK follows from the stack pointer and cannot be set.
        let flags = u32::from_ne_bytes(word) & !SS_ONSTACK;
        bytes.copy_from_slice(&flags.to_ne_bytes());
        // A disabled stack is also restored, because a stub has inherited the alternate stack of the restoring process.
        Ok(Some(stack))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        if payload.len() != STACK_BYTES {
            return Err(ResourceError::malformed(NAME, "it has the wrong length"));
        }
        Ok(())
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        restore.stub.call_with(restore.memory, nr::SIGALTSTACK, payload, |at| [at.get(), 0, 0, 0, 0, 0])?;
        Ok(())
    }
}
