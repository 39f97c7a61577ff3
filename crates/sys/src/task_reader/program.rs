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

use std::mem::offset_of;

use super::layout::{FieldPath, Kfuncs};

/// Result of the program: all fields were read. `NO_THREAD` and `FAULT` are the other results.
pub(super) const READ: u32 = 0;
pub(super) const NO_THREAD: u32 = 1;
const FAULT: i32 = 2;

/// Registers: the result, the arguments of calls, the registers that calls preserve, and the frame pointer.
const RESULT: u8 = 0;
const FIRST: u8 = 1;
const SECOND: u8 = 2;
const THIRD: u8 = 3;
const CONTEXT: u8 = 6;
const TASK: u8 = 7;
const STRUCTURE: u8 = 8;
const STATUS: u8 = 9;
const FRAME: u8 = 10;

const MOVE: u8 = 0xbf;
const MOVE_CONSTANT: u8 = 0xb7;
const ADD_CONSTANT: u8 = 0x07;
const LOAD_WORD: u8 = 0x61;
const LOAD_LONG: u8 = 0x79;
const STORE_LONG: u8 = 0x7b;
const STORE_CONSTANT: u8 = 0x7a;
const JUMP_UNLESS_ZERO: u8 = 0x55;
const JUMP_IF_ZERO: u8 = 0x15;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Value of the source register of a call (BPF_PSEUDO_KFUNC_CALL). The constant of such a call is the BTF id of a
/// kernel function.
const KFUNC: u8 = 2;
/// BPF_FUNC_probe_read_kernel: the helper that copies kernel memory.
const PROBE_READ_KERNEL: i32 = 113;
/// Size in bytes of a buffer on the stack of the program. Helpers write to this buffer, because they cannot write
/// to the context.
const BUFFER_BYTES: usize = 256;
const BUFFER_AT: i16 = -(BUFFER_BYTES as i16);
/// Size of a word in bytes. The program writes the context in aligned words.
pub(super) const WORD_BYTES: usize = 8;

/// One instruction (`struct bpf_insn`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Instruction {
    code: u8,
    /// Destination register in the low half, source register in the high half.
    registers: u8,
    offset: i16,
    constant: i32,
}

const _: () = assert!(size_of::<Instruction>() == 8);
const _: () = assert!(offset_of!(Instruction, constant) == 4);

#[derive(Default)]
struct Builder(Vec<Instruction>);

/// Returns a program that copies fields of one thread to its context. The context begins with the tid. After `head`
/// bytes, the program writes the fields that `paths` lead to, each in whole words.
pub(super) fn copy_fields(paths: &[FieldPath], kfuncs: Kfuncs, head: usize) -> Vec<Instruction> {
    let mut builder = Builder::default();
    builder.push(MOVE, CONTEXT, FIRST, 0, 0);
    builder.push(MOVE_CONSTANT, STATUS, 0, 0, READ as i32);
    builder.push(LOAD_WORD, FIRST, CONTEXT, 0, 0);
    builder.push(CALL, 0, KFUNC, 0, kfuncs.find);
    builder.push(JUMP_UNLESS_ZERO, RESULT, 0, 2, 0);
    builder.push(MOVE_CONSTANT, RESULT, 0, 0, NO_THREAD as i32);
    builder.push(EXIT, 0, 0, 0, 0);
    builder.push(MOVE, TASK, RESULT, 0, 0);
    let mut to = head;
    for path in paths {
        let mut base = TASK;
        for offset in &path.pointers {
            builder.read(WORD_BYTES, (base, *offset));
            builder.push(LOAD_LONG, STRUCTURE, FRAME, BUFFER_AT, 0);
            base = STRUCTURE;
        }
        for done in (0..path.length).step_by(BUFFER_BYTES) {
            let length = (path.length - done).min(BUFFER_BYTES);
            builder.read(length, (base, path.offset + done));
            for at in (0..length).step_by(WORD_BYTES) {
                builder.push(LOAD_LONG, FIRST, FRAME, BUFFER_AT + at as i16, 0);
                builder.push(STORE_LONG, CONTEXT, FIRST, (to + at) as i16, 0);
            }
            to += length.next_multiple_of(WORD_BYTES);
        }
    }
    builder.push(MOVE, FIRST, TASK, 0, 0);
    builder.push(CALL, 0, KFUNC, 0, kfuncs.release);
    builder.push(MOVE, RESULT, STATUS, 0, 0);
    builder.push(EXIT, 0, 0, 0, 0);
    builder.0
}

impl Builder {
    fn push(&mut self, code: u8, destination: u8, source: u8, offset: i16, constant: i32) {
        self.0.push(Instruction { code, registers: source << 4 | destination, offset, constant });
    }

    /// Copies kernel memory to the buffer. Memory that cannot be read becomes zero, and the status becomes FAULT.
    fn read(&mut self, length: usize, from: (u8, usize)) {
        // Clears the last word, because the field may fill only a part of this word.
        let last = (length - 1) / WORD_BYTES * WORD_BYTES;
        self.push(STORE_CONSTANT, FRAME, 0, BUFFER_AT + last as i16, 0);
        self.push(MOVE, FIRST, FRAME, 0, 0);
        self.push(ADD_CONSTANT, FIRST, 0, 0, i32::from(BUFFER_AT));
        self.push(MOVE_CONSTANT, SECOND, 0, 0, length as i32);
        self.push(MOVE, THIRD, from.0, 0, 0);
        self.push(ADD_CONSTANT, THIRD, 0, 0, from.1 as i32);
        self.push(CALL, 0, 0, 0, PROBE_READ_KERNEL);
        self.push(JUMP_IF_ZERO, RESULT, 0, 1, 0);
        self.push(MOVE_CONSTANT, STATUS, 0, 0, FAULT);
    }
}
