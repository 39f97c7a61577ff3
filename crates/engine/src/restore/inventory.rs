//! Lists the content of an image for people: processes, descriptors, mappings.
//!
//! Owns: the lists. Each list has the order of the records.
//! Invariants: the code reads only pages that contain command lines, and records that `Plan` has decoded and
//! checked.
//! Does not: create processes, files or mappings.

use std::collections::HashMap;

use image::{Extent, Source, SpaceId};
use model::{Address, ByteCount, Fd, PAGE_BYTES, PageCount, Pid};
use resource::fd::envelope::Envelope;
use resource::memory::ObjectRecord;
use resource::{fd, memory};
use store::ImageReader;

use super::plan::{Plan, PlannedProcess};
use crate::error::Result;

/// The positions of the start address and the end address of the arguments in `struct prctl_mm_map`.
const ARGUMENTS: (usize, usize) = (7, 8);
/// The maximum number of bytes that are read from a command line.
const ARGUMENTS_MAX: u64 = 4096;
/// The state kind whose payload is the name of a thread.
const THREAD_NAME: &str = "state/thread_name";
/// The mask of the access mode in the flags of open(2).
const O_ACCMODE: u32 = 3;
const O_PATH: u32 = 0o10_000_000;

/// The processes, descriptors and mappings of an image.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Inventory {
    /// The processes, parents first.
    pub processes: Vec<ImageProcess>,
    /// The descriptors. The processes are in the order of `processes`; the descriptors of a process are sorted by
    /// fd.
    pub descriptors: Vec<ImageDescriptor>,
    /// The mappings. The processes are in the order of `processes`; the mappings of a process are sorted by
    /// address.
    pub mappings: Vec<ImageMapping>,
}

/// One process, with columns like those of ps(1).
#[derive(Clone, PartialEq, Debug)]
pub struct ImageProcess {
    /// The pid.
    pub pid: Pid,
    /// The pid of the parent.
    pub parent: Pid,
    /// The process group.
    pub group: Pid,
    /// The session.
    pub session: Pid,
    /// The state at the checkpoint.
    pub state: ProcessState,
    /// The number of threads.
    pub threads: usize,
    /// The size of all mappings.
    pub mapped: ByteCount,
    /// How many bytes of the process's pages the image stores. Zero pages are not counted.
    pub stored: ByteCount,
    /// The name of the leader thread (`comm`); empty for a zombie.
    pub name: String,
    /// The executable; empty for a zombie.
    pub executable: String,
    /// The arguments, separated by spaces. If the image does not contain the arguments, the executable.
    pub command: String,
}

/// The state of a process at the checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessState {
    /// The process was running or sleeping.
    Running,
    /// A signal had stopped the process.
    Stopped,
    /// The process had ended, and its parent had not waited for the process.
    Zombie,
}

/// One descriptor, with columns like those of lsof(8).
#[derive(Clone, PartialEq, Debug)]
pub struct ImageDescriptor {
    /// The pid of the process.
    pub pid: Pid,
    /// The number of the descriptor.
    pub fd: Fd,
    /// The number of the open file description. Descriptors that share a description have equal numbers.
    pub description: u32,
    /// The kind of the description, without the prefix `fd/`.
    pub kind: String,
    /// The access mode: `r` (read), `w` (write), `u` (read and write) or `p` (O_PATH).
    pub access: char,
    /// Whether execve(2) closes the descriptor.
    pub close_on_exec: bool,
    /// The file position, at which the next read or write begins; `None` if the description has no position.
    pub position: Option<u64>,
    /// The object behind the descriptor, as a path, addresses or a name.
    pub name: String,
}

/// One mapping, with columns like those of pmap(1).
#[derive(Clone, PartialEq, Debug)]
pub struct ImageMapping {
    /// The pid of the process.
    pub pid: Pid,
    /// The first address.
    pub start: Address,
    /// The length.
    pub length: ByteCount,
    /// How many bytes of the process's pages in this mapping the image stores. Zero pages and pages of a shared
    /// object are not counted.
    pub stored: ByteCount,
    /// The protection, for example `rw-p`.
    pub protection: String,
    /// The offset in the mapped object at which the mapping begins.
    pub offset: ByteCount,
    /// The mapped object, or the name of the mapping.
    pub name: String,
}

/// Lists the processes, descriptors and mappings of an image.
///
/// # Errors
///
/// The errors of `check_records`, or an error if a page of a command line cannot be read.
pub fn inventory(mut reader: ImageReader) -> Result<Inventory> {
    let plan = Plan::read(reader.take_records())?;
    let envelopes = plan.envelopes.iter().map(|(id, envelope)| (*id, envelope)).collect();
    let mut found = Inventory::default();
    for process in &plan.processes {
        let mappings = mappings(&plan, process, &reader);
        found.processes.push(describe(&plan, process, &mappings, &reader)?);
        found.mappings.extend(mappings);
        found.descriptors.extend(descriptors(&envelopes, process));
    }
    Ok(found)
}

fn describe(
    plan: &Plan,
    process: &PlannedProcess,
    mappings: &[ImageMapping],
    reader: &ImageReader,
) -> Result<ImageProcess> {
    let message = &process.message;
    let executable = object(plan, message.executable).and_then(label).unwrap_or_default();
    let arguments = arguments(process, reader)?;
    Ok(ImageProcess {
        pid: process.pid,
        parent: Pid(message.parent),
        group: Pid(message.group),
        session: Pid(message.session),
        state: match (message.zombie, message.stop_signal) {
            (true, _) => ProcessState::Zombie,
            (false, 0) => ProcessState::Running,
            (false, _) => ProcessState::Stopped,
        },
        threads: message.threads.len().max(1),
        mapped: ByteCount(mappings.iter().map(|mapping| mapping.length.get()).sum()),
        stored: ByteCount(mappings.iter().map(|mapping| mapping.stored.get()).sum()),
        name: name(process),
        command: if arguments.is_empty() { executable.clone() } else { arguments },
        executable,
    })
}

fn name(process: &PlannedProcess) -> String {
    let states = process.threads.first().map(|leader| leader.states.as_slice()).unwrap_or_default();
    let found = states.iter().find(|state| state.kind.name() == THREAD_NAME);
    found.map(|state| String::from_utf8_lossy(&state.payload).into_owned()).unwrap_or_default()
}

fn object(plan: &Plan, id: u64) -> Option<&ObjectRecord> {
    plan.objects.iter().find(|object| object.id == id)
}

fn label(object: &ObjectRecord) -> Option<String> {
    memory::kind_named(&object.kind)?.label(object)
}

fn arguments(process: &PlannedProcess, reader: &ImageReader) -> Result<String> {
    let addresses = &process.layout.addresses;
    let (Some(start), Some(end)) = (addresses.get(ARGUMENTS.0), addresses.get(ARGUMENTS.1)) else {
        return Ok(String::new());
    };
    let end = (*end).min(start.saturating_add(ARGUMENTS_MAX));
    let space = SpaceId(process.message.space);
    let mut bytes = Vec::new();
    let mut at = *start;
    while at < end {
        let Some(extent) = reader.index().find(space, Address(at)) else { break };
        let mut content = vec![0_u8; extent.pages.bytes().get() as usize];
        reader.read_extent(extent, &mut content)?;
        let first = extent.start.get();
        let behind = (first + content.len() as u64).min(end);
        bytes.extend_from_slice(&content[(at - first) as usize..(behind - first) as usize]);
        at = behind;
    }
    let words = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    Ok(words.collect::<Vec<_>>().join(" ").trim_end().to_owned())
}

fn mappings(plan: &Plan, process: &PlannedProcess, reader: &ImageReader) -> Vec<ImageMapping> {
    let own = SpaceId(process.message.space);
    let of = |area: &memory::AreaRecord| {
        let object = object(plan, area.object);
        let name = match object.and_then(label) {
            Some(name) => name,
            None if area.name.is_empty() && area.has("gd") => "[stack]".to_owned(),
            None if area.name.is_empty() => "[anon]".to_owned(),
            None => area.name.clone(),
        };
        let range = area.range();
        ImageMapping {
            pid: process.pid,
            start: range.start,
            length: range.len(),
            stored: PageCount(stored_pages(reader.index().of_space(own), range.start, range.end)).bytes(),
            protection: protection(area),
            offset: ByteCount(area.offset),
            name,
        }
    };
    process.areas.iter().map(of).collect()
}

/// Returns how many pages of a range the image stores. Zero pages are not counted.
fn stored_pages(extents: &[Extent], start: Address, end: Address) -> u64 {
    let first = extents.partition_point(|extent| extent.range().end <= start);
    let overlapping = extents[first..].iter().take_while(|extent| extent.start < end);
    let stored = overlapping.filter(|extent| extent.source != Source::Zero);
    let pages = stored.map(|extent| {
        let from = extent.start.get().max(start.get());
        (extent.range().end.get().min(end.get()) - from) / PAGE_BYTES
    });
    pages.sum()
}

fn protection(area: &memory::AreaRecord) -> String {
    let bits = [(1, 'r'), (2, 'w'), (4, 'x')];
    let mut text: String =
        bits.into_iter().map(|(bit, letter)| if area.protection & bit == 0 { '-' } else { letter }).collect();
    text.push(if area.shared { 's' } else { 'p' });
    text
}

fn descriptors(envelopes: &HashMap<u32, &Envelope>, process: &PlannedProcess) -> Vec<ImageDescriptor> {
    let of = |row: &crate::records::DescriptorRow| {
        let envelope = envelopes.get(&row.description)?;
        let kind = fd::kind_named(&envelope.kind)?;
        let access = match envelope.flags {
            flags if flags & O_PATH != 0 => 'p',
            flags => ['r', 'w', 'u', 'u'][(flags & O_ACCMODE) as usize],
        };
        Some(ImageDescriptor {
            pid: process.pid,
            fd: Fd(row.fd),
            description: row.description,
            kind: envelope.kind.trim_start_matches("fd/").to_owned(),
            access,
            close_on_exec: row.close_on_exec,
            position: envelope.position,
            name: kind.label(&envelope.payload).unwrap_or_default(),
        })
    };
    process.descriptors.iter().filter_map(of).collect()
}
