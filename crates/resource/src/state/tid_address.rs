//! The state kind of the `clear_child_tid` address of a thread. When the thread ends, the kernel clears the word at
//! this address and wakes a futex waiter.
//!
//! Owns: the address that set_tid_address(2) or clone(2) has set. pthread_join(3) depends on this address.
//! Does not: change the word at the address.

use model::ByteCount;
use sys::task_reader::Field;
use tracee::arch::numbers as nr;

use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use super::remote_calls::RemoteCalls;
use crate::error::{ResourceError, Result};

const NAME: &str = "state/tid_address";

const PR_GET_TID_ADDRESS: u64 = 40;
/// The default for a kernel without the option. The call never returns this value.
const UNKNOWN: u64 = u64::MAX;

/// The state kind of `clear_child_tid` addresses.
pub(super) struct TidAddress;

impl StateKind for TidAddress {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Thread, stage: Stage::Setup }
    }

    fn sources(&self) -> Option<&'static [Field]> {
        Some(&[Field("clear_child_tid")])
    }

    fn add_calls(&self, _capture: &mut StateCapture<'_>, calls: &mut RemoteCalls) -> Result<()> {
        calls.add_into(nr::PRCTL, [PR_GET_TID_ADDRESS, 0, 0, 0, 0, 0], 1, ByteCount(8));
        Ok(())
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        for result in capture.results(NAME) {
            // A kernel without CONFIG_CHECKPOINT_RESTORE does not have the option PR_GET_TID_ADDRESS.
            if result.value_or(UNKNOWN)? != UNKNOWN {
                raw.extend(result.bytes);
            }
        }
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(raw.iter().any(|byte| *byte != 0).then(|| raw.to_vec()))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        word(payload).map(drop)
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        restore.stub.call(nr::SET_TID_ADDRESS, [word(payload)?, 0, 0, 0, 0, 0])?;
        Ok(())
    }
}

fn word(payload: &[u8]) -> Result<u64> {
    let word = payload.try_into().map(u64::from_ne_bytes);
    word.map_err(|_| ResourceError::malformed(NAME, "it has the wrong length"))
}
