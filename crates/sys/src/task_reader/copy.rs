//! Generates the BPF program that copies fields of a thread's kernel structures.
//!
//! Owns: the instructions of the program.
//! Invariants: the program has no loop. The program releases its reference to the thread on every path.
//! Does not: load or run the program.
//!
//! Man page: the kernel's documentation of the BPF instruction set; bpf-helpers(7)
//! Since: as in the module `task_reader`
//! Probe: as in the module `task_reader`
//! Fallback: as in the module `task_reader`

use crate::bpf::assembler::{
    Assembler, EIGHTH, FIRST, FRAME, IF_EQUAL, Instruction, LOAD_LONG, LOAD_WORD, MOVE, MOVE_CONSTANT, NINTH,
    RESULT, SEVENTH, SIXTH, STORE_CONSTANT, STORE_LONG, UNLESS_EQUAL,
};
use crate::bpf::types::{FieldPath, KernelTypes};
use crate::error::Result;

/// Result of the program: all fields were read. `NO_THREAD` and `FAULT` are the other results.
pub(super) const READ: u32 = 0;
pub(super) const NO_THREAD: u32 = 1;
const FAULT: i32 = 2;

const CONTEXT: u8 = SIXTH;
const TASK: u8 = SEVENTH;
const STRUCTURE: u8 = EIGHTH;
const STATUS: u8 = NINTH;

/// Size in bytes of a buffer on the stack of the program. Helpers write to this buffer, because they cannot write
/// to the context.
const BUFFER_BYTES: usize = 256;
const BUFFER_AT: i16 = -(BUFFER_BYTES as i16);
/// Size of a word in bytes. The program writes the context in aligned words.
pub(super) const WORD_BYTES: usize = 8;

/// BTF ids of kernel functions (kfuncs).
#[derive(Clone, Copy, Debug)]
pub(super) struct Kfuncs {
    /// `bpf_task_from_vpid`, which returns a reference to the task with a tid of the caller's namespace.
    find: i32,
    /// `bpf_task_release`, which releases this reference.
    release: i32,
}

impl Kfuncs {
    pub(super) fn of(types: &KernelTypes) -> Result<Self> {
        Ok(Self { find: types.kfunc("bpf_task_from_vpid")?, release: types.kfunc("bpf_task_release")? })
    }
}

/// Returns a program that copies fields of one thread to its context. The context begins with the tid. After `head`
/// bytes, the program writes the fields that `paths` lead to, each in whole words.
pub(super) fn copy_fields(paths: &[FieldPath], kfuncs: Kfuncs, head: usize) -> Vec<Instruction> {
    let mut code = Assembler::default();
    let is_there = code.label();
    code.push(MOVE, CONTEXT, FIRST, 0, 0);
    code.push(MOVE_CONSTANT, STATUS, 0, 0, READ as i32);
    code.push(LOAD_WORD, FIRST, CONTEXT, 0, 0);
    code.call_kfunc(kfuncs.find);
    code.jump(UNLESS_EQUAL, RESULT, 0, is_there);
    code.exit(NO_THREAD as i32);
    code.place(is_there);
    code.push(MOVE, TASK, RESULT, 0, 0);
    let mut to = head;
    for path in paths {
        let mut base = TASK;
        for offset in &path.pointers {
            read(&mut code, WORD_BYTES, (base, *offset));
            code.push(LOAD_LONG, STRUCTURE, FRAME, BUFFER_AT, 0);
            base = STRUCTURE;
        }
        for done in (0..path.length).step_by(BUFFER_BYTES) {
            let length = (path.length - done).min(BUFFER_BYTES);
            read(&mut code, length, (base, path.offset + done));
            for at in (0..length).step_by(WORD_BYTES) {
                code.push(LOAD_LONG, FIRST, FRAME, BUFFER_AT + at as i16, 0);
                code.push(STORE_LONG, CONTEXT, FIRST, (to + at) as i16, 0);
            }
            to += length.next_multiple_of(WORD_BYTES);
        }
    }
    code.push(MOVE, FIRST, TASK, 0, 0);
    code.call_kfunc(kfuncs.release);
    code.push(MOVE, RESULT, STATUS, 0, 0);
    code.exit_with_result();
    code.finish()
}

/// Copies kernel memory to the buffer. If the memory cannot be read, the status becomes FAULT.
fn read(code: &mut Assembler, length: usize, from: (u8, usize)) {
    // Clears the last word, because the field may fill only a part of this word.
    let last = (length - 1) / WORD_BYTES * WORD_BYTES;
    code.push(STORE_CONSTANT, FRAME, 0, BUFFER_AT + last as i16, 0);
    code.read(BUFFER_AT, length, from);
    let is_read = code.label();
    code.jump(IF_EQUAL, RESULT, 0, is_read);
    code.push(MOVE_CONSTANT, STATUS, 0, 0, FAULT);
    code.place(is_read);
}
