//! Saves and restores BPF maps of the types hash and array (bpf(2)): the descriptor kind `fd/bpf_map`.
//!
//! Owns: name, sizes, flags and content of a map, whether it is frozen, and the access of each descriptor.
//! Invariants: all descriptors of one map lead to one restored map. A map that a loaded program or a process outside the
//! subject uses is refused, because it would continue to use the old map.
//! Does not: restore the id of a map, which the kernel chooses, or its NUMA node, which the kernel does not show.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, OwnedFd};

use prost::Message;
use rustix::fs::OFlags;
use sys::bpf_map::{self as map, Access, Content, Properties};

use super::description::{Description, Known};
use super::fdinfo::FdInfo;
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::scope::CaptureScope;
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::support::content::DATA_BYTES_MAX;
use crate::support::opening::access_mode;
use crate::support::outside;

const NAME: &str = "fd/bpf_map";
const WHAT: &str = "BPF map";
const TARGET: &str = "anon_inode:bpf-map";
const UNLOAD: &str = "unload it before the checkpoint, and load it again after the restore";

/// Descriptor kind ([`FdKind`]) of BPF maps.
#[derive(Debug)]
pub struct BpfMap;

#[derive(Clone, PartialEq, Message)]
struct State {
    /// The id at the checkpoint. Descriptors of one map have the same id.
    #[prost(uint32, tag = "1")]
    id: u32,
    #[prost(uint32, tag = "2")]
    kind: u32,
    #[prost(uint32, tag = "3")]
    key_bytes: u32,
    #[prost(uint32, tag = "4")]
    value_bytes: u32,
    #[prost(uint32, tag = "5")]
    entries_max: u32,
    #[prost(uint32, tag = "6")]
    flags: u32,
    #[prost(bytes = "vec", tag = "7")]
    name: Vec<u8>,
    #[prost(bool, tag = "8")]
    is_frozen: bool,
    /// Number of entries in `keys` and `values`.
    #[prost(uint32, tag = "9")]
    count: u32,
    #[prost(bytes = "vec", tag = "10")]
    keys: Vec<u8>,
    #[prost(bytes = "vec", tag = "11")]
    values: Vec<u8>,
}

impl FdKind for BpfMap {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<State>(NAME).without_files()
    }

    fn claims(&self, description: &Description) -> bool {
        description.target() == TARGET
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        let found = map::properties(description.as_fd()).map_err(ResourceError::from);
        let reason = match found {
            Ok(properties) => reason(&properties, scope),
            Err(error) => Some((error.to_string(), "run undying with the rights of the program")),
        };
        reason.map(|(why, fix)| description.obstacle(WHAT, &why, fix)).into_iter().collect()
    }

    fn prepare(&self, description: &Description, _scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        let properties = map::properties(description.as_fd())?;
        // The memory for the content is allocated here, outside the pause.
        let mut content = Content::default();
        map::read(reader(&properties)?.as_fd(), &properties, &mut content)?;
        Ok(Box::new(Capture { info: FdInfo::default(), properties, content }))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        let state: State = crate::error::decode(NAME, payload)?;
        let count = state.count as usize;
        let has_lengths = state.keys.len() == count.saturating_mul(state.key_bytes as usize)
            && state.values.len() == count.saturating_mul(state.value_bytes as usize);
        if has_lengths && properties(&state).is_some_and(|properties| properties.is_simple()) {
            return Ok(());
        }
        Err(ResourceError::malformed(NAME, "the map is impossible"))
    }

    fn label(&self, payload: &[u8]) -> Option<String> {
        let state = State::decode(payload).ok()?;
        let name = state.name.split(|byte| *byte == 0).next().unwrap_or_default();
        Some(format!("{} with {} entries", String::from_utf8_lossy(name), state.count))
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        let mut made: HashMap<u32, OwnedFd> = HashMap::new();
        context.make_each(NAME, records, |state: State, record, _| {
            let new = match made.entry(state.id) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => place.insert(make(&state)?),
            };
            let id = map::properties(new.as_fd())?.id;
            Ok(map::open(id, access(record.flags))?)
        })
    }
}

#[derive(Debug)]
struct Capture {
    info: FdInfo,
    properties: Properties,
    content: Content,
}

impl FdCapture for Capture {
    fn fdinfo_read(&mut self, text: &[u8]) {
        self.info.set(text);
    }

    fn inside(&mut self, description: &Description) -> Result<()> {
        self.info.take(description)?;
        map::read(reader(&self.properties)?.as_fd(), &self.properties, &mut self.content)?;
        Ok(())
    }

    fn after(&mut self, _description: &Known) -> Result<Vec<u8>> {
        let state = State {
            id: self.properties.id,
            kind: self.properties.kind,
            key_bytes: self.properties.key_bytes,
            value_bytes: self.properties.value_bytes,
            entries_max: self.properties.entries_max,
            flags: self.properties.flags,
            name: self.properties.name.to_vec(),
            is_frozen: self.info.line("frozen") == Some("1"),
            count: self.content.count,
            keys: self.content.keys.clone(),
            values: self.content.values.clone(),
        };
        Ok(state.encode_to_vec())
    }
}

/// Returns the reason why a map cannot be saved, with the fix.
fn reason(properties: &Properties, scope: &CaptureScope<'_>) -> Option<(String, &'static str)> {
    const CLOSE: &str = "take the checkpoint at a time when the program has closed it";
    if !properties.is_simple() {
        let why = "only maps of the types hash and array without type information (BTF) are supported";
        return Some((why.to_owned(), CLOSE));
    }
    if properties.bytes_max() > DATA_BYTES_MAX {
        let why = format!("it can contain more than {} MiB, the limit of an image", DATA_BYTES_MAX >> 20);
        return Some((why, CLOSE));
    }
    match map::user(properties.id) {
        Ok(None) => {}
        Ok(Some(program)) => {
            return Some((format!("the BPF program with the id {program} uses the map"), UNLOAD));
        }
        Err(error) => return Some((error.to_string(), "run undying with CAP_SYS_ADMIN")),
    }
    let line = format!("map_id:\t{}\n", properties.id);
    let other = outside::holder_of_text(scope, TARGET, &line)?;
    let other = outside::describe(Some(other));
    Some((format!("{other} outside the tree has the map open, too"), "end the other process"))
}

/// Returns a descriptor that can read a map. The descriptor of the subject may be write-only.
fn reader(properties: &Properties) -> Result<OwnedFd> {
    Ok(map::open(properties.id, Access::Read)?)
}

fn properties(state: &State) -> Option<Properties> {
    Some(Properties {
        id: state.id,
        kind: state.kind,
        key_bytes: state.key_bytes,
        value_bytes: state.value_bytes,
        entries_max: state.entries_max,
        flags: state.flags,
        name: state.name.as_slice().try_into().ok()?,
        is_bound: false,
    })
}

/// Creates a map with its content.
fn make(state: &State) -> Result<OwnedFd> {
    let properties = properties(state)
        .ok_or_else(|| ResourceError::malformed(NAME, "the name of the map has another length"))?;
    let made = map::create(&properties)?;
    let content = Content { count: state.count, keys: state.keys.clone(), values: state.values.clone() };
    map::fill(made.as_fd(), &properties, &content)?;
    if state.is_frozen {
        map::freeze(made.as_fd())?;
    }
    Ok(made)
}

fn access(flags: u32) -> Access {
    match access_mode(flags) {
        OFlags::RDONLY => Access::Read,
        OFlags::WRONLY => Access::Write,
        _ => Access::Both,
    }
}
