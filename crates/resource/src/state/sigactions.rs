//! The state kind of the signal actions of a process: handlers, masks, flags.
//!
//! Owns: the actions of all 64 signals.
//! Invariants: only actions that `/proc` shows as caught or ignored are read. All other actions are the defaults.
//! Does not: save pending signals, or signal masks of threads.

use model::ByteCount;
use prost::Message;
use sys::task_reader::Field;
use tracee::arch::numbers as nr;
use tracee::procfs;

use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use super::remote_calls::RemoteCalls;
use crate::error::{ResourceError, Result};

const NAME: &str = "state/sigactions";

/// The number of bytes of the kernel's `struct sigaction` on x86-64: handler, flags, restorer, mask.
const ACTION_BYTES: usize = 32;
/// The number of bytes of a signal set.
const SET_BYTES: u64 = 8;
const SIGNAL_MAX: u8 = 64;

/// The state kind of signal actions.
pub(super) struct Sigactions;

#[derive(Clone, PartialEq, Message)]
struct ActionsMessage {
    #[prost(message, repeated, tag = "1")]
    actions: Vec<ActionMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct ActionMessage {
    #[prost(int32, tag = "1")]
    signal: i32,
    /// The kernel's `struct sigaction`, as in rt_sigaction(2).
    #[prost(bytes = "vec", tag = "2")]
    action: Vec<u8>,
}

impl StateKind for Sigactions {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Process, stage: Stage::Setup }
    }

    fn sources(&self) -> Option<&'static [Field]> {
        Some(&[Field("sighand->action")])
    }

    fn add_calls(&self, capture: &mut StateCapture<'_>, calls: &mut RemoteCalls) -> Result<()> {
        for signal in changed(capture)? {
            let call = [u64::from(signal), 0, 0, SET_BYTES, 0, 0];
            calls.add_into(nr::RT_SIGACTION, call, 2, ByteCount(ACTION_BYTES as u64));
        }
        Ok(())
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        for (signal, result) in changed(capture)?.zip(capture.results(NAME)) {
            result.value()?;
            raw.push(signal);
            raw.extend(result.bytes);
        }
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let actions = raw
            .chunks_exact(1 + ACTION_BYTES)
            .map(|chunk| ActionMessage { signal: i32::from(chunk[0]), action: chunk[1..].to_vec() })
            .collect();
        Ok(Some(ActionsMessage { actions }.encode_to_vec()))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        let message: ActionsMessage = crate::error::decode(NAME, payload)?;
        if message.actions.iter().any(|action| action.action.len() != ACTION_BYTES) {
            return Err(ResourceError::malformed(NAME, "an action has the wrong length"));
        }
        Ok(())
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: ActionsMessage = crate::error::decode(NAME, payload)?;
        for action in message.actions {
            let signal = action.signal as u64;
            restore.stub.call_with(restore.memory, nr::RT_SIGACTION, &action.action, |at| {
                [signal, at.get(), 0, SET_BYTES, 0, 0]
            })?;
        }
        Ok(())
    }
}

/// Returns the signals whose action is not the default.
fn changed(capture: &mut StateCapture<'_>) -> Result<impl Iterator<Item = u8> + use<>> {
    let status = capture.file("status")?;
    let set = procfs::signal_set(status, "SigCgt") | procfs::signal_set(status, "SigIgn");
    Ok((1..=SIGNAL_MAX).filter(move |signal| set >> (signal - 1) & 1 == 1))
}
