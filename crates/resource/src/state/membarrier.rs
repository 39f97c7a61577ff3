//! The state kind of the registrations of a process with membarrier(2).
//!
//! Owns: the set of expedited barriers for which the process is registered.
//! Does not: issue barriers for the program.

use std::sync::OnceLock;

use prost::Message;
use sys::task_reader::Field;
use tracee::arch::numbers as nr;

use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use super::remote_calls::RemoteCalls;
use crate::error::{ResourceError, Result};

const NAME: &str = "state/membarrier";

/// MEMBARRIER_CMD_GET_REGISTRATIONS, since Linux 6.3. Older kernels return EINVAL.
const GET_REGISTRATIONS: u64 = 1 << 9;

/// Barriers that fail with EPERM in a process without a registration. The command with the next bit registers the
/// process.
const PRIVATE_BARRIERS: [u64; 3] = [1 << 3, 1 << 5, 1 << 7];
/// MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED. Before Linux 6.3, no call shows this registration.
const REGISTER_GLOBAL: u32 = 1 << 2;

/// The state kind of registrations with membarrier(2).
pub(super) struct Membarrier;

#[derive(Clone, PartialEq, Message)]
struct MembarrierMessage {
    /// The MEMBARRIER_CMD_REGISTER_* bits.
    #[prost(uint32, tag = "1")]
    registrations: u32,
}

impl StateKind for Membarrier {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Process, stage: Stage::Setup }
    }

    fn sources(&self) -> Option<&'static [Field]> {
        Some(&[Field("mm->membarrier_state")])
    }

    fn add_calls(&self, _capture: &mut StateCapture<'_>, calls: &mut RemoteCalls) -> Result<()> {
        let all = if reports_registrations() { &[GET_REGISTRATIONS] } else { &PRIVATE_BARRIERS[..] };
        all.iter().for_each(|command| calls.add(nr::MEMBARRIER, [*command, 0, 0, 0, 0, 0]));
        Ok(())
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        let results = capture.results(NAME);
        let registrations = if reports_registrations() {
            results
                .iter()
                .try_fold(0, |all, result| Ok::<u32, ResourceError>(all | result.value_or(0)? as u32))?
        } else {
            // Issuing a barrier has no side effect, and an unneeded global registration costs little.
            let granted = PRIVATE_BARRIERS.iter().zip(&results).filter(|(_, result)| result.value().is_ok());
            granted.fold(REGISTER_GLOBAL, |all, (barrier, _)| all | (*barrier as u32) << 1)
        };
        raw.extend(registrations.to_ne_bytes());
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let registrations = raw.try_into().map_or(0, u32::from_ne_bytes);
        Ok((registrations != 0).then(|| MembarrierMessage { registrations }.encode_to_vec()))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        crate::error::decode::<MembarrierMessage>(NAME, payload).map(drop)
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: MembarrierMessage = crate::error::decode(NAME, payload)?;
        for bit in (0..u32::BITS).map(|shift| 1_u32 << shift).filter(|bit| message.registrations & bit != 0) {
            restore.stub.call(nr::MEMBARRIER, [u64::from(bit), 0, 0, 0, 0, 0])?;
        }
        Ok(())
    }
}

/// Reports whether the kernel shows registrations.
fn reports_registrations() -> bool {
    static REPORTS: OnceLock<bool> = OnceLock::new();
    *REPORTS.get_or_init(|| {
        let name = rustix::system::uname();
        is_since(&name.release().to_string_lossy(), [6, 3])
    })
}

/// Reports whether a release such as `6.1.0-56-amd64` has this version or a later version.
fn is_since(release: &str, version: [u32; 2]) -> bool {
    let numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let numbers: Vec<u32> = numbers.map_while(|text| text.parse().ok()).take(2).collect();
    numbers.as_slice() >= version.as_slice()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        assert!(is_since("6.3.0", [6, 3]) && is_since("6.18.44-x", [6, 3]) && is_since("7.0", [6, 3]));
        assert!(!is_since("6.1.0-56-cloud-amd64", [6, 3]) && !is_since("5.15.0", [6, 3]));
    }
}
