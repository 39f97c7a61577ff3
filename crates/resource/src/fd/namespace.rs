//! Saves and restores descriptors of namespaces (namespaces(7)): the descriptor kind `fd/namespace`.
//!
//! Owns: the type of the namespace.
//! Invariants: the subject is in the namespaces of `undying`. A descriptor of such a namespace is restored as a descriptor
//! of the namespace of the restoring process.
//! Does not: restore other namespaces, which exist only as long as a process or a descriptor refers to them.

use prost::Message;
use tracee::procfs;

use super::description::{Description, Known};
use super::kind::{Constant, FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::scope::CaptureScope;
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::support::opening::{flags_for, open};

const NAME: &str = "fd/namespace";
/// The types of namespaces, as in /proc/self/ns.
const TYPES: &[&str] = &["cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"];

/// Descriptor kind ([`FdKind`]) of namespaces.
#[derive(Debug)]
pub struct Namespace;

#[derive(Clone, PartialEq, Eq, Message)]
struct State {
    #[prost(string, tag = "1")]
    kind: String,
}

impl FdKind for Namespace {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<State>(NAME)
    }

    fn claims(&self, description: &Description) -> bool {
        type_of(description).is_some()
    }

    fn obstacles(&self, description: &Description, _scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        let Some(kind) = type_of(description) else { return Vec::new() };
        let ours = procfs::link(own_link(kind));
        if ours.is_ok_and(|ours| ours.to_str() == Some(description.target())) {
            return Vec::new();
        }
        vec![description.obstacle(
            &format!("{kind} namespace"),
            "it is another namespace than the namespace of undying, and other namespaces are not rebuilt yet",
            "let the program close it before the checkpoint",
        )]
    }

    fn prepare(&self, description: &Description, _scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        let kind = type_of(description).unwrap_or_default().to_owned();
        Ok(Box::new(Constant(State { kind }.encode_to_vec())))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        let State { kind } = crate::error::decode(NAME, payload)?;
        if TYPES.contains(&kind.as_str()) {
            return Ok(());
        }
        Err(ResourceError::malformed(NAME, "its type of namespace is unknown"))
    }

    fn label(&self, payload: &[u8]) -> Option<String> {
        State::decode(payload).ok().map(|state| state.kind)
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        context.make_each(NAME, records, |State { kind }: State, record, _| {
            Ok(open(own_link(&kind).as_ref(), flags_for(record.flags))?)
        })
    }
}

fn own_link(kind: &str) -> String {
    format!("/proc/self/ns/{kind}")
}

/// Returns the type of a namespace. The link of its descriptor is the type with a number, as `net:[4026531840]`.
fn type_of(description: &Known) -> Option<&'static str> {
    let (kind, number) = description.target().split_once(":[")?;
    number.strip_suffix(']')?.parse::<u64>().ok()?;
    TYPES.iter().find(|name| **name == kind).copied()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::fstat;

    use super::super::test_support::round_trip;
    use super::*;

    #[test]
    fn a_descriptor_of_our_own_namespace_is_restored() {
        for kind in TYPES {
            let Ok(file) = File::open(own_link(kind)) else {
                println!("unsupported: {kind} namespaces");
                continue;
            };
            let copy = round_trip(&Namespace, &file);
            assert_eq!(fstat(&copy).unwrap().st_ino, fstat(&file).unwrap().st_ino, "{kind}");
        }
    }
}
