//! Reads fields of the kernel's structures of a thread, without executing code in the thread.
//!
//! Owns: the BPF program that copies the fields, and its execution.
//! Invariants: the program reads and does not change kernel structures. For a thread that has ended, the result is
//! an error, not old data.
//! Does not: interpret a field.
//!
//! Man page: bpf(2); the kernel's documentation of BTF and of kfuncs
//! Since: Linux 6.13 with CONFIG_DEBUG_INFO_BTF (`bpf_task_from_vpid` in programs of type BPF_PROG_TYPE_SYSCALL)
//! Probe: `features::REGISTRY` entry "task-reader"
//! Fallback: system calls that the thread is made to execute (remote calls)

mod layout;
mod program;

use std::ffi::CStr;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use model::Tid;

pub use self::layout::Field;
use self::layout::Layout;
use crate::error::{Errno, Error, Result};
use crate::feature::{Feature, enabled};

const BPF_PROG_LOAD: i32 = 5;
const BPF_PROG_RUN: i32 = 10;
const BPF_PROG_TYPE_SYSCALL: u32 = 31;
/// Flag of programs that may sleep. A program of type BPF_PROG_TYPE_SYSCALL must have this flag.
const BPF_F_SLEEPABLE: u32 = 1 << 4;
/// Licence of the program. The helpers that read kernel memory require a licence that is compatible with the
/// kernel's licence.
const LICENCE: &CStr = c"Dual MIT/GPL";
/// Size in bytes of the head of the context (the memory that is passed to the program). The head contains the tid;
/// the fields follow.
const HEAD_BYTES: usize = 8;

/// A reader of the same fields for any thread.
#[derive(Debug)]
pub struct TaskReader {
    program: OwnedFd,
    /// The memory that is passed to the program, and that the program writes to.
    context: Vec<u8>,
}

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

impl TaskReader {
    /// Creates a reader of these fields, in this order.
    ///
    /// # Errors
    ///
    /// ENOENT for a field that this kernel does not have, ENOSYS if the feature is switched off, and the errors of
    /// bpf(2) if this process may not load programs.
    pub fn new(fields: &[Field]) -> Result<Self> {
        if !enabled(Feature::TaskReader) {
            return Err(Error::new(
                "read kernel structures: the feature task-reader is switched off",
                Errno::ENOSYS,
            ));
        }
        let layout = Layout::open()?;
        let paths = fields.iter().map(|field| layout.find(*field)).collect::<Result<Vec<_>>>()?;
        let code = program::copy_fields(&paths, layout.kfuncs()?, HEAD_BYTES);
        let arguments = LoadArguments {
            kind: BPF_PROG_TYPE_SYSCALL,
            instructions: code.len() as u32,
            code: code.as_ptr() as u64,
            licence: LICENCE.as_ptr() as u64,
            flags: BPF_F_SLEEPABLE,
            ..LoadArguments::default()
        };
        // SAFETY: the pointers lead to `instructions` instructions and to a string, which all outlive the call. The
        // size is the size of the structure.
        let fd = unsafe {
            libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const arguments, size_of::<LoadArguments>())
        };
        if fd < 0 {
            return Err(Error::new("load a program that reads kernel structures", Errno::last()));
        }
        // SAFETY: bpf(2) has just created this descriptor, which has no other owner.
        let program = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let bytes = paths.iter().map(|path| path.length.next_multiple_of(program::WORD_BYTES)).sum::<usize>();
        Ok(Self { program, context: vec![0; HEAD_BYTES + bytes] })
    }

    /// Reads the fields of a thread, one after the other. Each field is padded with zeros to a multiple of 8 bytes.
    /// If the thread runs, the fields can be from different moments.
    ///
    /// # Errors
    ///
    /// ESRCH if the thread does not exist; EFAULT if a structure was freed during the read.
    pub fn read(&mut self, tid: Tid) -> Result<&[u8]> {
        let failed = |errno: Errno| Error::thread("read kernel structures of", tid, errno);
        self.context[..HEAD_BYTES].copy_from_slice(&i64::from(tid.get()).to_ne_bytes());
        let (at, bytes) = (self.context.as_mut_ptr() as u64, self.context.len() as u32);
        let mut arguments = RunArguments {
            program: self.program.as_raw_fd() as u32,
            context_bytes: [bytes, 0],
            context: [at, 0],
            ..RunArguments::default()
        };
        // SAFETY: the context is exclusively borrowed, and readable and writable over its whole length. The size is
        // the size of the structure.
        let outcome = unsafe {
            libc::syscall(libc::SYS_bpf, BPF_PROG_RUN, &raw mut arguments, size_of::<RunArguments>())
        };
        if outcome < 0 {
            return Err(failed(Errno::last()));
        }
        match arguments.result {
            program::READ => Ok(&self.context[HEAD_BYTES..]),
            program::NO_THREAD => Err(failed(Errno::ESRCH)),
            _ => Err(failed(Errno(libc::EFAULT))),
        }
    }
}

#[cfg(test)]
mod tests;
