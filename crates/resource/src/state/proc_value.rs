//! The state kinds that are one number, which a file of `/proc` shows.
//!
//! Owns: the table of these kinds, and the payload of their records.
//! Invariants: if a new process already has the recorded number, the restore makes no system call in that process. The
//! exception is the file mode creation mask, for which one call is cheaper than a comparison.
//! Does not: restore the effects of a personality on the memory layout. The mappings are restored at their addresses.
//! Does not restore the lowest out-of-memory score that the process itself may set: no file shows this score.

use std::fs;
use std::sync::OnceLock;

use prost::Message;
use sys::Errno;
use tracee::arch::numbers as nr;
use tracee::procfs;

use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use crate::error::{ResourceError, Result};

/// A state kind that is one number.
pub(super) struct ProcValue {
    name: &'static str,
    level: Level,
    file: &'static str,
    /// Kernels without the feature do not have the file. Nothing is recorded there.
    is_optional: bool,
    /// Returns the number in the file, in the form of the payload.
    parse: fn(&[u8]) -> Option<u32>,
    set: fn(u32, &mut StateRestore<'_>) -> Result<()>,
}

/// The file mode creation mask.
pub(super) const UMASK: ProcValue = ProcValue {
    name: "state/umask",
    level: Level::Process,
    file: "status",
    is_optional: false,
    parse: |raw| u32::from_str_radix(procfs::status_line(raw, "Umask")?, 8).ok(),
    set: |mask, restore| call(nr::UMASK, mask, restore),
};

/// The flags of the execution domain.
pub(super) const PERSONALITY: ProcValue = ProcValue {
    name: "state/personality",
    level: Level::Thread,
    file: "personality",
    is_optional: false,
    parse: hexadecimal,
    set: set_personality,
};

/// The core dump filter: bits that select the types of mappings in a core dump.
pub(super) const COREDUMP_FILTER: ProcValue = ProcValue {
    name: "state/coredump_filter",
    level: Level::Process,
    file: "coredump_filter",
    is_optional: true,
    parse: hexadecimal,
    set: set_coredump_filter,
};

/// The adjustment of the out-of-memory score, from -1000 (never killed) to 1000 (killed first).
pub(super) const OOM_SCORE: ProcValue = ProcValue {
    name: "state/oom_score",
    level: Level::Process,
    file: "oom_score_adj",
    is_optional: false,
    parse: |raw| text(raw)?.parse().ok().map(zigzag),
    set: set_oom_score,
};

#[derive(Clone, PartialEq, Message)]
struct ProcValueMessage {
    /// The number. The out-of-memory score can be negative, and has the encoding `sint32`.
    #[prost(uint32, tag = "1")]
    value: u32,
}

impl ProcValue {
    fn value_in(&self, raw: &[u8]) -> Result<u32> {
        (self.parse)(raw).ok_or_else(|| {
            let why = format!("`{}` contains no valid value", self.file);
            ResourceError::malformed(self.name, why)
        })
    }
}

impl StateKind for ProcValue {
    fn facts(&self) -> StateFacts {
        StateFacts { name: self.name, level: self.level, stage: Stage::Setup }
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        match capture.file(self.file) {
            Ok(bytes) => raw.extend_from_slice(bytes),
            Err(ResourceError::Kernel(error)) if self.is_optional && error.errno == Errno::ENOENT => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        if raw.is_empty() && self.is_optional {
            return Ok(None);
        }
        Ok(Some(ProcValueMessage { value: self.value_in(raw)? }.encode_to_vec()))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        crate::error::decode::<ProcValueMessage>(self.name, payload).map(drop)
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let ProcValueMessage { value } = crate::error::decode(self.name, payload)?;
        (self.set)(value, restore)
    }
}

fn call(number: i64, value: u32, restore: &mut StateRestore<'_>) -> Result<()> {
    restore.stub.call(number, [u64::from(value), 0, 0, 0, 0, 0])?;
    Ok(())
}

/// Every stub begins with the personality of this process, which never changes.
fn set_personality(flags: u32, restore: &mut StateRestore<'_>) -> Result<()> {
    static OWN: OnceLock<u32> = OnceLock::new();
    let own = match OWN.get() {
        Some(own) => *own,
        None => {
            let own = PERSONALITY.value_in(&procfs::read("/proc/thread-self/personality")?)?;
            *OWN.get_or_init(|| own)
        }
    };
    if flags == own { Ok(()) } else { call(nr::PERSONALITY, flags, restore) }
}

fn set_coredump_filter(bits: u32, restore: &mut StateRestore<'_>) -> Result<()> {
    let path = format!("/proc/{}/coredump_filter", restore.stub.pid());
    match procfs::read(&path) {
        Ok(now) if COREDUMP_FILTER.value_in(&now)? == bits => Ok(()),
        Err(error) if error.errno == Errno::ENOENT => Ok(()),
        _ => fs::write(&path, format!("{bits:#x}"))
            .map_err(|error| sys::Error::path("write", path, error).into()),
    }
}

fn set_oom_score(value: u32, restore: &mut StateRestore<'_>) -> Result<()> {
    let own = OOM_SCORE.value_in(&procfs::read("/proc/self/oom_score_adj")?)?;
    if value == own {
        return Ok(());
    }
    let (pid, adjustment) = (restore.stub.pid(), signed(value));
    let path = format!("/proc/{pid}/oom_score_adj");
    fs::write(&path, adjustment.to_string()).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => ResourceError::Unsupported {
            pid,
            what: format!("an out-of-memory score adjustment of {adjustment}"),
            why: format!("the restorer's own is {}, and it lacks the privilege to lower it", signed(own)),
            fix: "restore with CAP_SYS_RESOURCE".to_owned(),
        },
        _ => sys::Error::path("write", path, error).into(),
    })
}

fn text(raw: &[u8]) -> Option<&str> {
    std::str::from_utf8(raw).ok().map(str::trim)
}

fn hexadecimal(raw: &[u8]) -> Option<u32> {
    u32::from_str_radix(text(raw)?, 16).ok()
}

/// Encodes a signed number like the protobuf type `sint32`.
fn zigzag(number: i32) -> u32 {
    (number << 1 ^ number >> 31) as u32
}

/// Decodes a number of [`zigzag`].
fn signed(value: u32) -> i32 {
    (value >> 1) as i32 ^ -((value & 1) as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The payloads are those of version 0.2.0.
    #[test]
    fn the_kernels_format_is_parsed_and_the_payload_is_stable() {
        let rows: [(&ProcValue, &[u8], &[u8]); 8] = [
            (&UMASK, b"Name:\tx\nUmask:\t0022\n", &[8, 0o22]),
            (&PERSONALITY, b"00040000\n", &[8, 0x80, 0x80, 0x10]),
            (&PERSONALITY, b"00000000\n", &[]),
            (&COREDUMP_FILTER, b"00000033\n", &[8, 0x33]),
            (&OOM_SCORE, b"-17\n", &[8, 33]),
            (&OOM_SCORE, b"-1000\n", &[8, 0xcf, 0x0f]),
            (&OOM_SCORE, b"1000\n", &[8, 0xd0, 0x0f]),
            (&OOM_SCORE, b"0\n", &[]),
        ];
        for (kind, raw, payload) in rows {
            assert_eq!(kind.after(raw).unwrap().unwrap(), payload, "{}: {raw:?}", kind.name);
            kind.check(1, payload).unwrap();
            assert!(kind.after(b"x").is_err() && kind.check(1, &[8]).is_err(), "{}", kind.name);
        }
        for kind in [&UMASK, &PERSONALITY, &OOM_SCORE] {
            assert!(kind.after(b"").is_err(), "{}", kind.name);
        }
        assert_eq!(COREDUMP_FILTER.after(b"").unwrap(), None);
    }

    #[test]
    fn signed_numbers_keep_their_value() {
        for number in [0, 1, -1, 1000, -1000, i32::MAX, i32::MIN] {
            assert_eq!(signed(zigzag(number)), number);
        }
    }
}
