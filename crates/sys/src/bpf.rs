//! Programs and maps of BPF.
//!
//! Owns: bpf(2): loading programs, running a program once, attaching a program to a tracepoint, hash maps, and arrays.
//! Invariants: the kernel verifies every program before it can run. Programs read and do not change kernel structures.
//! A program that is attached stays attached as long as its link is open.
//! Does not: contain programs; the modules that use this module do.
//!
//! Man page: bpf(2)
//! Since: Linux 4.17 (raw tracepoints)
//! Probe: as in the modules that load programs
//! Fallback: as in the modules that load programs

pub(crate) mod assembler;
pub(crate) mod types;
pub(crate) mod words;

use std::ffi::CStr;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use self::assembler::Instruction;
use crate::error::{Errno, Error, Result};

pub(crate) const MAP_CREATE: i32 = 0;
const MAP_UPDATE_ELEM: i32 = 2;
const MAP_DELETE_ELEM: i32 = 3;
pub(crate) const MAP_LOOKUP_BATCH: i32 = 24;
const PROG_LOAD: i32 = 5;
const PROG_RUN: i32 = 10;
pub(crate) const OBJ_GET_INFO_BY_FD: i32 = 15;
const RAW_TRACEPOINT_OPEN: i32 = 17;

pub(crate) const HASH: u32 = 1;
const LRU_HASH: u32 = 9;
const PROGRAM_RAW_TRACEPOINT: u32 = 17;
const PROGRAM_SYSCALL: u32 = 31;
/// Flag of programs that may sleep. A program of type BPF_PROG_TYPE_SYSCALL must have this flag.
const SLEEPABLE: u32 = 1 << 4;
/// Licence of the programs. The helpers that read kernel memory require a licence that is compatible with the
/// kernel's licence.
const LICENCE: &CStr = c"Dual MIT/GPL";
/// Maximum number of attempts to load a program. The check of a program ends with EAGAIN if a signal or other work
/// waits for the thread.
const LOAD_TRIES_MAX: u32 = 100;
/// Maximum number of entries that one call of `Map::entries` reads at a time.
const BATCH: usize = 512;

/// Arguments of BPF_PROG_LOAD.
#[repr(C)]
#[derive(Default)]
struct LoadArguments {
    kind: u32,
    instructions: u32,
    code: u64,
    licence: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

const _: () = assert!(size_of::<LoadArguments>() == 48);
const _: () = assert!(offset_of!(LoadArguments, flags) == 44);

/// Arguments of BPF_PROG_RUN.
#[repr(C)]
#[derive(Default)]
struct RunArguments {
    program: u32,
    result: u32,
    data_bytes: [u32; 2],
    data: [u64; 2],
    repeat: u32,
    duration: u32,
    context_bytes: [u32; 2],
    /// Addresses of the input memory and the output memory. The program reads and writes the input memory; the
    /// output memory is for other types of programs.
    context: [u64; 2],
    flags: u32,
    processor: u32,
    batch: u32,
    padding: u32,
}

const _: () = assert!(size_of::<RunArguments>() == 80);
const _: () = assert!(offset_of!(RunArguments, context) == 48);

/// Arguments of BPF_RAW_TRACEPOINT_OPEN.
#[repr(C)]
#[derive(Default)]
struct TracepointArguments {
    name: u64,
    program: u32,
    padding: u32,
    cookie: u64,
}

const _: () = assert!(size_of::<TracepointArguments>() == 24);
const _: () = assert!(offset_of!(TracepointArguments, cookie) == 16);

/// The first arguments of BPF_MAP_CREATE.
#[repr(C)]
#[derive(Default)]
struct MapArguments {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
}

const _: () = assert!(size_of::<MapArguments>() == 20);
const _: () = assert!(offset_of!(MapArguments, entries_max) == 12);

/// Arguments of BPF_MAP_UPDATE_ELEM and BPF_MAP_DELETE_ELEM.
#[repr(C)]
#[derive(Default)]
struct ElementArguments {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

const _: () = assert!(size_of::<ElementArguments>() == 32);
const _: () = assert!(offset_of!(ElementArguments, key) == 8);

/// Arguments of BPF_MAP_LOOKUP_BATCH and BPF_MAP_UPDATE_BATCH.
#[repr(C)]
#[derive(Default)]
pub(crate) struct BatchArguments {
    /// Address of the position where the batch begins; 0 means the beginning of the map.
    pub(crate) from: u64,
    /// Address to which the kernel writes the position where the next batch begins.
    pub(crate) next: u64,
    pub(crate) keys: u64,
    pub(crate) values: u64,
    pub(crate) count: u32,
    pub(crate) map: u32,
    pub(crate) element_flags: u64,
    pub(crate) flags: u64,
}

const _: () = assert!(size_of::<BatchArguments>() == 56);
const _: () = assert!(offset_of!(BatchArguments, map) == 36);

/// Calls bpf(2). Returns the result of the call, which is not negative.
///
/// # Safety
///
/// `arguments` is the structure of this command, and its addresses lead to memory of the size that the command reads
/// or writes.
pub(crate) unsafe fn bpf<T>(command: i32, arguments: &mut T) -> std::result::Result<i32, Errno> {
    // SAFETY: the caller has checked the addresses; the size is the size of the structure.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(arguments), size_of::<T>()) };
    if result < 0 { Err(Errno::last()) } else { Ok(result as i32) }
}

/// Owns a descriptor that bpf(2) has returned.
pub(crate) fn owned(descriptor: i32) -> OwnedFd {
    // SAFETY: bpf(2) has just created this descriptor, which has no other owner.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

fn load(kind: u32, flags: u32, code: &[Instruction]) -> std::result::Result<OwnedFd, Errno> {
    let mut arguments = LoadArguments {
        kind,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        licence: LICENCE.as_ptr() as u64,
        flags,
        ..LoadArguments::default()
    };
    let mut tries = 0;
    loop {
        // SAFETY: the pointers lead to `instructions` instructions and to a string, which all outlive the call.
        match unsafe { bpf(PROG_LOAD, &mut arguments) } {
            Err(Errno::EAGAIN) if tries < LOAD_TRIES_MAX => tries += 1,
            outcome => return outcome.map(owned),
        }
    }
}

/// A program that runs when [`CalledProgram::run`] calls it.
#[derive(Debug)]
pub(crate) struct CalledProgram(OwnedFd);

impl CalledProgram {
    /// Loads a program. `what` completes the sentence "cannot load a program that".
    pub(crate) fn load(code: &[Instruction], what: &'static str) -> Result<Self> {
        let program = load(PROGRAM_SYSCALL, SLEEPABLE, code);
        Ok(Self(program.map_err(|errno| Error::new(format!("load a program that {what}"), errno))?))
    }

    /// Runs the program once. The program reads and writes `context`. Returns the result of the program.
    pub(crate) fn run(&self, context: &mut [u8]) -> std::result::Result<u32, Errno> {
        let mut arguments = RunArguments {
            program: self.0.as_raw_fd() as u32,
            context_bytes: [context.len() as u32, 0],
            context: [context.as_mut_ptr() as u64, 0],
            ..RunArguments::default()
        };
        // SAFETY: the context is exclusively borrowed, and readable and writable over its whole length.
        unsafe { bpf(PROG_RUN, &mut arguments) }.map(|_| arguments.result)
    }
}

/// Arguments of BPF_OBJ_GET_INFO_BY_FD.
#[repr(C)]
pub(crate) struct InfoArguments {
    pub(crate) descriptor: u32,
    pub(crate) bytes: u32,
    pub(crate) info: u64,
}

const _: () = assert!(size_of::<InfoArguments>() == 16);
const _: () = assert!(offset_of!(InfoArguments, info) == 8);

/// The first fields of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct ProgramInfo {
    other: [u64; 26],
    /// Number of times that the program was due and did not run.
    misses: u64,
}

const _: () = assert!(size_of::<ProgramInfo>() == 216);
const _: () = assert!(offset_of!(ProgramInfo, misses) == 208);

/// A program that runs each time that the kernel passes a tracepoint. The program is detached when this value is
/// dropped.
#[derive(Debug)]
pub(crate) struct AttachedProgram {
    program: OwnedFd,
    _link: OwnedFd,
}

impl AttachedProgram {
    /// Loads a program, and attaches the program to a tracepoint.
    pub(crate) fn attach(tracepoint: &CStr, code: &[Instruction]) -> Result<Self> {
        let name = tracepoint.to_string_lossy();
        let failed = |errno| Error::new(format!("attach a program to the tracepoint {name}"), errno);
        let program = load(PROGRAM_RAW_TRACEPOINT, 0, code).map_err(failed)?;
        let mut arguments = TracepointArguments {
            name: tracepoint.as_ptr() as u64,
            program: program.as_raw_fd() as u32,
            ..TracepointArguments::default()
        };
        // SAFETY: the name is a string that outlives the call.
        let link = unsafe { bpf(RAW_TRACEPOINT_OPEN, &mut arguments) }.map(owned).map_err(failed)?;
        Ok(Self { program, _link: link })
    }

    /// Returns how many times the program was due and did not run. The kernel does not run a program that already runs
    /// on the same processor.
    pub(crate) fn misses(&self) -> Result<u64> {
        let mut info = ProgramInfo::default();
        let mut arguments = InfoArguments {
            descriptor: self.program.as_raw_fd() as u32,
            bytes: size_of::<ProgramInfo>() as u32,
            info: (&raw mut info) as u64,
        };
        // SAFETY: the address leads to `bytes` bytes that the kernel may write. All of them are integers.
        let outcome = unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut arguments) };
        outcome.map_err(|errno| Error::new("read how often a program of BPF was missed", errno))?;
        Ok(info.misses)
    }
}

/// A hash map that programs and this process share. Keys have `K` bytes and values have `V` bytes.
#[derive(Debug)]
pub(crate) struct Map<const K: usize, const V: usize>(OwnedFd);

/// What a map does if it is full and gets a new key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WhenFull {
    /// Refuses the new key.
    Refuse,
    /// Forgets a key that was not used recently.
    Forget,
}

impl<const K: usize, const V: usize> Map<K, V> {
    pub(crate) fn new(entries_max: u32, when_full: WhenFull) -> Result<Self> {
        let kind = match when_full {
            WhenFull::Refuse => HASH,
            WhenFull::Forget => LRU_HASH,
        };
        let mut arguments =
            MapArguments { kind, key_bytes: K as u32, value_bytes: V as u32, entries_max, flags: 0 };
        // SAFETY: the arguments contain no address.
        let map = unsafe { bpf(MAP_CREATE, &mut arguments) };
        Ok(Self(map.map(owned).map_err(|errno| Error::new("create a map of BPF", errno))?))
    }

    /// Sets the value of a key.
    pub(crate) fn set(&self, key: &[u8; K], value: &[u8; V]) -> Result<()> {
        let mut arguments = self.element(key);
        arguments.value = value.as_ptr() as u64;
        // SAFETY: key and value have the sizes with which the map was created.
        let outcome = unsafe { bpf(MAP_UPDATE_ELEM, &mut arguments) };
        outcome.map(drop).map_err(|errno| Error::new("set a value in a map of BPF", errno))
    }

    /// Removes a key, if the map has this key.
    pub(crate) fn remove(&self, key: &[u8; K]) {
        // SAFETY: the key has the size with which the map was created.
        let _ = unsafe { bpf(MAP_DELETE_ELEM, &mut self.element(key)) };
    }

    fn element(&self, key: &[u8; K]) -> ElementArguments {
        ElementArguments {
            map: self.0.as_raw_fd() as u32,
            key: key.as_ptr() as u64,
            ..ElementArguments::default()
        }
    }

    /// Returns all entries. Entries that a program adds or removes meanwhile may be missing or be returned twice.
    pub(crate) fn entries(&self) -> Result<Vec<([u8; K], [u8; V])>> {
        let mut entries = Vec::new();
        let (mut keys, mut values) = (vec![[0; K]; BATCH], vec![[0; V]; BATCH]);
        let mut positions = [0_u64; 2];
        let mut is_first = true;
        loop {
            let from = if is_first { 0 } else { (&raw const positions[0]) as u64 };
            let mut arguments = BatchArguments {
                from,
                next: (&raw mut positions[1]) as u64,
                keys: keys.as_mut_ptr() as u64,
                values: values.as_mut_ptr() as u64,
                count: BATCH as u32,
                map: self.0.as_raw_fd() as u32,
                ..BatchArguments::default()
            };
            // SAFETY: keys and values have room for `count` entries. A position of a hash map has 4 bytes.
            let outcome = unsafe { bpf(MAP_LOOKUP_BATCH, &mut arguments) };
            let is_last = match outcome {
                Ok(_) => false,
                Err(Errno::ENOENT) => true,
                Err(errno) => return Err(Error::new("read a map of BPF", errno)),
            };
            let count = (arguments.count as usize).min(BATCH);
            entries.extend(keys.iter().copied().zip(values.iter().copied()).take(count));
            if is_last {
                return Ok(entries);
            }
            (positions[0], is_first) = (positions[1], false);
        }
    }
}

impl<const K: usize, const V: usize> AsFd for Map<K, V> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
