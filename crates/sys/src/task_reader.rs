//! Reads fields of the kernel's structures of a thread, without executing code in the thread.
//!
//! Owns: the BPF program that copies the fields.
//! Invariants: the program reads and does not change kernel structures. For a thread that has ended, the result is
//! an error, not old data.
//! Does not: interpret a field.
//!
//! Man page: bpf(2); the kernel's documentation of BTF and of kfuncs
//! Since: Linux 6.13 with CONFIG_DEBUG_INFO_BTF (`bpf_task_from_vpid` in programs of type BPF_PROG_TYPE_SYSCALL)
//! Probe: `features::REGISTRY` entry "task-reader"
//! Fallback: system calls that the thread is made to execute (remote calls)

mod copy;

use model::Tid;

use self::copy::Kfuncs;
use crate::bpf::CalledProgram;
use crate::bpf::types::KernelTypes;
use crate::error::{Errno, Error, Result};
use crate::feature::{Feature, enabled};

const TASK: &str = "task_struct";
/// Size in bytes of the head of the context (the memory that is passed to the program). The head contains the tid;
/// the fields follow.
const HEAD_BYTES: usize = 8;

/// A field, named by its path from `struct task_struct` as in C: `pdeath_signal`, `signal->it`,
/// `thread_info.flags`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Field(pub &'static str);

/// A reader of the same fields for any thread.
#[derive(Debug)]
pub struct TaskReader {
    program: CalledProgram,
    /// The memory that is passed to the program, and that the program writes to.
    context: Vec<u8>,
}

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
        let types = KernelTypes::get()?;
        let paths = fields.iter().map(|field| types.find(TASK, field.0)).collect::<Result<Vec<_>>>()?;
        let code = copy::copy_fields(&paths, Kfuncs::of(types)?, HEAD_BYTES);
        let program = CalledProgram::load(&code, "reads kernel structures")?;
        let bytes = paths.iter().map(|path| path.length.next_multiple_of(copy::WORD_BYTES)).sum::<usize>();
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
        match self.program.run(&mut self.context).map_err(failed)? {
            copy::READ => Ok(&self.context[HEAD_BYTES..]),
            copy::NO_THREAD => Err(failed(Errno::ESRCH)),
            _ => Err(failed(Errno(libc::EFAULT))),
        }
    }
}

#[cfg(test)]
mod tests;
