//! The contexts of kernel asynchronous I/O (io_setup(2)) of a process, with the number of their requests in flight.
//!
//! The kernel shows no system call how many requests are in flight. Each context has a number of slots. A free slot is
//! counted in a common counter or in a counter of a processor. All other slots belong to requests in flight, or to
//! completions that the program has not consumed or whose slots the kernel has not freed yet.
//!
//! Owns: reading these counters from the structures of the kernel.
//! Invariants: the numbers are exact if all threads of the process are stopped and no request is in flight. If requests
//! are in flight, they may complete while the counters are read, and their number is then inexact.
//! Does not: create contexts, or read their rings.
//!
//! Man page: io_setup(2); bpf(2)
//! Since: as in the module `task_reader`
//! Probe: `features::REGISTRY` entry "task-reader"
//! Fallback: none; the checkpoint is refused

use std::os::fd::{AsFd, AsRawFd};

use model::{Address, Pid, Tid};

use crate::bpf::CalledProgram;
use crate::bpf::assembler::{
    Assembler, FIRST, FRAME, IF_EQUAL, LOAD_LONG, MOVE, RESULT, SECOND, SEVENTH, SIXTH, STORE_CONSTANT,
    STORE_LONG, THIRD,
};
use crate::bpf::types::KernelTypes;
use crate::bpf_map;
use crate::error::{Errno, Error, Result};
use crate::task_reader::{Field, TaskReader};

/// BPF_FUNC_map_lookup_percpu_elem (Linux 5.19).
const MAP_LOOKUP_PERCPU: i32 = 195;
/// BPF_MAP_TYPE_PERCPU_ARRAY.
const PERCPU_ARRAY: u32 = 6;
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const WORD_BYTES: u64 = 8;
/// The result of a program that could not read the memory.
const FAILED: i32 = 1;

/// A context of asynchronous I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AioContext {
    /// The id of the context, which is the address of its ring in the process.
    pub address: Address,
    /// Number of requests that are in flight.
    pub in_flight: u32,
    /// A request in flight waits for an event, for example until a pipe becomes readable. Other requests wait for a
    /// disk, and complete soon.
    pub waits_for_event: bool,
}

/// Reads the contexts of processes.
#[derive(Debug)]
pub struct AioContexts {
    table: TaskReader,
    words: WordReader,
    offsets: Offsets,
    /// For each processor, the distance between the address of a variable in its memory and the address that pointers to
    /// such variables contain.
    processors: Vec<u64>,
}

/// Offsets of fields in the structures of the kernel, in bytes.
#[derive(Debug)]
struct Offsets {
    table_length: u64,
    table: u64,
    address: u64,
    slots: u64,
    free: u64,
    free_of_processors: u64,
    completed: u64,
    waiting: u64,
}

impl AioContexts {
    /// Loads the programs that read the structures of the kernel. Takes some milliseconds.
    ///
    /// # Errors
    ///
    /// ENOENT for a kernel without these structures, ENOSYS if the feature is switched off, and the errors of bpf(2).
    pub fn new() -> Result<Self> {
        let types = KernelTypes::get()?;
        let at = |structure: &str, name: &str| types.find(structure, name).map(|path| path.offset as u64);
        let mut words = WordReader::new()?;
        Ok(Self {
            table: TaskReader::new(&[Field("mm->ioctx_table")])?,
            offsets: Offsets {
                table_length: at("kioctx_table", "nr")?,
                table: at("kioctx_table", "table")?,
                address: at("kioctx", "user_id")?,
                slots: at("kioctx", "nr_events")?,
                free: at("kioctx", "reqs_available")?,
                free_of_processors: at("kioctx", "cpu")?,
                completed: at("kioctx", "completed_events")?,
                waiting: at("kioctx", "active_reqs")?,
            },
            processors: processors(types, &mut words)?,
            words,
        })
    }

    /// Returns the contexts of a process.
    ///
    /// # Errors
    ///
    /// ESRCH if the process does not exist, EFAULT if the process changed its contexts during the call.
    pub fn of_process(&mut self, pid: Pid) -> Result<Vec<AioContext>> {
        let table = self.table.read(Tid(pid.get()))?.first_chunk().copied().map_or(0, u64::from_ne_bytes);
        if table == 0 {
            return Ok(Vec::new());
        }
        let length = self.words.half(table + self.offsets.table_length)?;
        let mut found = Vec::new();
        for index in 0..u64::from(length) {
            let context = self.words.word(table + self.offsets.table + index * WORD_BYTES)?;
            if context != 0 {
                found.push(self.context(context)?);
            }
        }
        Ok(found)
    }

    fn context(&mut self, context: u64) -> Result<AioContext> {
        let words = &mut self.words;
        // The kernel keeps one slot empty, so that a full ring differs from an empty ring.
        let slots = words.half(context + self.offsets.slots)?.saturating_sub(1);
        let of_processors = words.word(context + self.offsets.free_of_processors)?;
        let mut others = words.half(context + self.offsets.completed)?;
        others = others.wrapping_add(words.half(context + self.offsets.free)?);
        for processor in &self.processors {
            others = others.wrapping_add(words.half(of_processors.wrapping_add(*processor))?);
        }
        // A list of the kernel is empty if its head leads to itself.
        let waiting = context + self.offsets.waiting;
        Ok(AioContext {
            address: Address(words.word(context + self.offsets.address)?),
            in_flight: slots.wrapping_sub(others),
            waits_for_event: words.word(waiting)? != waiting,
        })
    }
}

/// Reads words of kernel memory.
#[derive(Debug)]
struct WordReader(CalledProgram);

impl WordReader {
    fn new() -> Result<Self> {
        const BUFFER_AT: i16 = -(WORD_BYTES as i16);
        let mut code = Assembler::default();
        let is_read = code.label();
        code.push(MOVE, SIXTH, FIRST, 0, 0);
        code.push(LOAD_LONG, SEVENTH, SIXTH, 0, 0);
        code.push(STORE_CONSTANT, FRAME, 0, BUFFER_AT, 0);
        code.read(BUFFER_AT, WORD_BYTES as usize, (SEVENTH, 0));
        code.jump(IF_EQUAL, RESULT, 0, is_read);
        code.exit(FAILED);
        code.place(is_read);
        code.push(LOAD_LONG, FIRST, FRAME, BUFFER_AT, 0);
        code.push(STORE_LONG, SIXTH, FIRST, 0, 0);
        code.exit(0);
        Ok(Self(CalledProgram::load(&code.finish(), "reads words of kernel memory")?))
    }

    /// Reads 8 bytes at an address.
    fn word(&mut self, address: u64) -> Result<u64> {
        let failed = |errno| Error::new("read kernel structures of asynchronous I/O", errno);
        let mut context = address.to_ne_bytes();
        match self.0.run(&mut context).map_err(failed)? {
            0 => Ok(u64::from_ne_bytes(context)),
            _ => Err(failed(Errno(libc::EFAULT))),
        }
    }

    /// Reads 4 bytes at an address.
    fn half(&mut self, address: u64) -> Result<u32> {
        Ok(self.word(address)? as u32)
    }
}

/// Returns the field `processors` of [`AioContexts`]. A map with a value for each processor shows it: the map contains a
/// pointer of this kind, and a program finds the addresses of the values.
fn processors(types: &KernelTypes, words: &mut WordReader) -> Result<Vec<u64>> {
    let failed = |errno| Error::new("find the memory of the processors", errno);
    let map = bpf_map::create_array(PERCPU_ARRAY, WORD_BYTES as u32)?;
    let mut code = Assembler::default();
    let is_found = code.label();
    code.push(MOVE, SIXTH, FIRST, 0, 0);
    code.push(STORE_CONSTANT, FRAME, 0, -(WORD_BYTES as i16), 0);
    code.load_map(FIRST, map.as_fd());
    code.address(SECOND, -(WORD_BYTES as i16));
    code.push(LOAD_LONG, THIRD, SIXTH, 0, 0);
    code.call(MAP_LOOKUP_PERCPU);
    code.jump(crate::bpf::assembler::UNLESS_EQUAL, RESULT, 0, is_found);
    code.exit(FAILED);
    code.place(is_found);
    code.push(STORE_LONG, SIXTH, RESULT, 0, 0);
    code.exit(0);
    let program = CalledProgram::load(&code.finish(), "finds the memory of processors")?;

    let at = |structure: &str, name: &str| types.find(structure, name).map(|path| path.offset as u64);
    let own = Tid(rustix::thread::gettid().as_raw_nonzero().get());
    let mut descriptors = TaskReader::new(&[Field("files->fdt->fd")])?;
    let first = descriptors.read(own)?.first_chunk().copied().map_or(0, u64::from_ne_bytes);
    let file = words.word(first + WORD_BYTES * map.as_raw_fd() as u64)?;
    let kernel_map = words.word(file + at("file", "private_data")?)?;
    let pointer = words.word(kernel_map + at("bpf_array", "pptrs")?)?;

    let mut found = Vec::new();
    for processor in 0..possible_processors()? {
        let mut context = processor.to_ne_bytes();
        if program.run(&mut context).map_err(failed)? != 0 {
            return Err(failed(Errno::EINVAL));
        }
        found.push(u64::from_ne_bytes(context).wrapping_sub(pointer));
    }
    Ok(found)
}

/// Returns the highest number of a processor that this machine can have, plus one.
fn possible_processors() -> Result<u64> {
    let text = std::fs::read_to_string(POSSIBLE).map_err(|error| Error::path("read", POSSIBLE, error))?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<u64>().ok());
    last.map(|last| last + 1).ok_or_else(|| Error::path("parse", POSSIBLE, Errno::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: u16 = 0;
    const POLL: u16 = 5;

    /// `struct iocb` of linux/aio_abi.h.
    #[repr(C)]
    #[derive(Default)]
    struct Request {
        data: u64,
        key: u64,
        operation: u16,
        priority: i16,
        descriptor: i32,
        buffer: u64,
        length: u64,
        offset: i64,
        reserved: u64,
        flags: u64,
    }

    fn submit(context: u64, operation: u16, descriptor: i32) {
        let buffer = if operation == POLL { libc::POLLIN as u64 } else { 0 };
        let mut request = Request { operation, descriptor, buffer, ..Request::default() };
        let pointers = [&raw mut request];
        // SAFETY: the request outlives the call, and its length is 0, so that the kernel writes no data.
        let sent = unsafe { libc::syscall(libc::SYS_io_submit, context, 1, pointers.as_ptr()) };
        assert_eq!(sent, 1);
    }

    #[test]
    fn requests_in_flight_are_counted() {
        let mut contexts = match AioContexts::new() {
            Err(error) if [libc::EPERM, libc::ENOSYS, libc::ENOENT].contains(&error.errno.0) => {
                return println!("unsupported: {error}");
            }
            contexts => contexts.unwrap(),
        };
        let mut context = 0_u64;
        // SAFETY: the kernel writes one id.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, 4, &raw mut context) };
        assert_eq!(made, 0);
        let own = Pid(std::process::id() as i32);
        let mut in_flight = || {
            let found = contexts.of_process(own).unwrap();
            let found: Vec<_> = found.iter().filter(|found| found.address == Address(context)).collect();
            assert_eq!(found.len(), 1);
            (found[0].in_flight, found[0].waits_for_event)
        };
        assert_eq!(in_flight(), (0, false));
        let empty = rustix::fs::memfd_create("empty", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        for _ in 0..3 {
            submit(context, READ, empty.as_raw_fd());
            assert_eq!(in_flight(), (0, false));
        }
        let counter = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        submit(context, POLL, counter.as_raw_fd());
        assert_eq!(in_flight(), (1, true));
        // SAFETY: the call waits for requests in flight, and the poll request is cancelled.
        unsafe { libc::syscall(libc::SYS_io_destroy, context) };
    }
}
