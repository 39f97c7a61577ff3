//! The state kind of the resource limits of a process.
//!
//! Owns: the soft and the hard value of all sixteen limits.
//! Invariants: the limits are set from outside while the process has the user ids of the restorer. After the change of
//! user ids, only CAP_SYS_RESOURCE permits a change of limits. If a hard limit above the restorer's own limit cannot be
//! set, the restore is refused and the error names the limit.
//! Does not: restore the usage that counts against a limit. CPU time starts at zero.

use model::Pid;
use prost::Message;
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use crate::error::{ResourceError, Result};

const NAME: &str = "state/limits";

/// Names of limits in `/proc/PID/limits`, indexed by the kernel's resource number.
const LIMITS: &[(&str, Resource)] = &[
    ("Max cpu time", Resource::Cpu),
    ("Max file size", Resource::Fsize),
    ("Max data size", Resource::Data),
    ("Max stack size", Resource::Stack),
    ("Max core file size", Resource::Core),
    ("Max resident set", Resource::Rss),
    ("Max processes", Resource::Nproc),
    ("Max open files", Resource::Nofile),
    ("Max locked memory", Resource::Memlock),
    ("Max address space", Resource::As),
    ("Max file locks", Resource::Locks),
    ("Max pending signals", Resource::Sigpending),
    ("Max msgqueue size", Resource::Msgqueue),
    ("Max nice priority", Resource::Nice),
    ("Max realtime priority", Resource::Rtprio),
    ("Max realtime timeout", Resource::Rttime),
];

/// The state kind of resource limits.
pub(super) struct Limits;

#[derive(Clone, PartialEq, Message)]
struct LimitsMessage {
    #[prost(message, repeated, tag = "1")]
    limits: Vec<LimitMessage>,
}

/// A limit. `None` stands for an unlimited value.
#[derive(Clone, PartialEq, Message)]
struct LimitMessage {
    /// The kernel's number of the resource.
    #[prost(uint32, tag = "1")]
    resource: u32,
    #[prost(uint64, optional, tag = "2")]
    soft: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    hard: Option<u64>,
}

impl StateKind for Limits {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Process, stage: Stage::Setup }
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        raw.extend_from_slice(capture.file("limits")?);
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let text = String::from_utf8_lossy(raw);
        let mut limits = Vec::with_capacity(LIMITS.len());
        for (number, (name, _)) in LIMITS.iter().enumerate() {
            let limit = text
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .and_then(|values| parse(number as u32, values));
            limits.push(limit.ok_or_else(|| malformed(format!("the kernel does not list `{name}`")))?);
        }
        Ok(Some(LimitsMessage { limits }.encode_to_vec()))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        let message: LimitsMessage = crate::error::decode(NAME, payload)?;
        let unknown = message.limits.iter().find(|limit| limit.resource as usize >= LIMITS.len());
        unknown.map_or(Ok(()), |limit| Err(malformed(format!("unknown limit {}", limit.resource))))
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: LimitsMessage = crate::error::decode(NAME, payload)?;
        let pid = restore.stub.pid();
        for limit in message.limits {
            let entry = LIMITS.get(limit.resource as usize);
            let (name, resource) =
                entry.ok_or_else(|| malformed(format!("unknown limit {}", limit.resource)))?;
            let wanted = Rlimit { current: limit.soft, maximum: limit.hard };
            let own = getrlimit(*resource);
            // The restorer raises its own soft limit on descriptors, so this limit does not show the limit of the stub.
            if own == wanted && *resource != Resource::Nofile {
                continue;
            }
            set(pid, name, *resource, wanted, own.maximum)?;
        }
        Ok(())
    }
}

fn set(pid: Pid, name: &str, resource: Resource, wanted: Rlimit, own: Option<u64>) -> Result<()> {
    let target = rustix::process::Pid::from_raw(pid.get());
    let Err(errno) = prlimit(target, resource, wanted) else { return Ok(()) };
    if errno != rustix::io::Errno::PERM {
        return Err(sys::Error::process(format!("set the limit `{name}`"), pid, errno).into());
    }
    let shown = |value: Option<u64>| value.map_or_else(|| "unlimited".to_owned(), |value| value.to_string());
    Err(ResourceError::Unsupported {
        pid,
        what: format!("the hard limit `{name}` of {}", shown(wanted.maximum)),
        why: format!("the restorer's own limit is {}, and it lacks the privilege to exceed it", shown(own)),
        fix: "restore with CAP_SYS_RESOURCE, or from a shell with limits as high as the program's".to_owned(),
    })
}

/// Parses the soft and the hard limit from the part of a line behind the name.
fn parse(resource: u32, values: &str) -> Option<LimitMessage> {
    let mut words = values.split_whitespace();
    let mut next = || match words.next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    };
    Some(LimitMessage { resource, soft: next()?, hard: next()? })
}

fn malformed(why: String) -> ResourceError {
    ResourceError::Malformed { kind: NAME, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_is_parsed() {
        let raw = std::fs::read("/proc/self/limits").unwrap();
        let payload = Limits.after(&raw).unwrap().unwrap();
        let message = LimitsMessage::decode(payload.as_slice()).unwrap();
        assert_eq!(message.limits.len(), LIMITS.len());
        for (limit, (name, resource)) in message.limits.iter().zip(LIMITS) {
            let own = getrlimit(*resource);
            assert_eq!((limit.soft, limit.hard), (own.current, own.maximum), "{name}");
        }
    }
}
