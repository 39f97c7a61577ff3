//! Registrations of a process with membarrier(2).
//!
//! Owns: which expedited barriers it registered for.
//! Does not: issue barriers.

use prost::Message;
use tracee::arch::numbers as nr;

use super::questions::Questions;
use super::{Level, RawState, Stage, StateCapture, StateKind, StateRestore};
use crate::error::Result;

const NAME: &str = "state/membarrier";

/// MEMBARRIER_CMD_GET_REGISTRATIONS, since Linux 6.3; older kernels answer EINVAL.
const GET_REGISTRATIONS: u64 = 1 << 9;

/// The kind.
pub(super) struct Membarrier;

#[derive(Clone, PartialEq, Message)]
struct MembarrierMessage {
    /// MEMBARRIER_CMD_REGISTER_* bits.
    #[prost(uint32, tag = "1")]
    registrations: u32,
}

impl StateKind for Membarrier {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "registrations for expedited memory barriers"
    }

    fn level(&self) -> Level {
        Level::Process
    }

    fn stage(&self) -> Stage {
        Stage::Setup
    }

    fn ask(&self, _capture: &mut StateCapture<'_>, questions: &mut Questions) -> Result<()> {
        questions.call(nr::MEMBARRIER, [GET_REGISTRATIONS, 0, 0, 0, 0, 0]);
        Ok(())
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        for answer in capture.answers(NAME) {
            raw.extend((answer.result_or(0)? as u32).to_ne_bytes());
        }
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let registrations = raw.try_into().map_or(0, u32::from_ne_bytes);
        Ok((registrations != 0).then(|| MembarrierMessage { registrations }.encode_to_vec()))
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: MembarrierMessage = crate::decode(NAME, payload)?;
        for bit in (0..u32::BITS).map(|shift| 1_u32 << shift).filter(|bit| message.registrations & bit != 0) {
            restore.stub.call(nr::MEMBARRIER, [u64::from(bit), 0, 0, 0, 0, 0])?;
        }
        Ok(())
    }
}
