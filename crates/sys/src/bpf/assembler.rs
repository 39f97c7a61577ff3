//! Assembles BPF programs.
//!
//! Owns: the encoding of the instructions that programs of this crate use, and jumps to labels.
//! Invariants: every label that a jump names is placed. Jumps lead forward only, so that a program ends.
//! Does not: load a program.
//!
//! Man page: the kernel's documentation of the BPF instruction set; bpf-helpers(7)
//! Since: Linux 5.5 (BPF_FUNC_probe_read_kernel)
//! Probe: as in the modules that load programs
//! Fallback: as in the modules that load programs

use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Registers: the result of a call, the arguments of a call, the registers that calls preserve, and the frame pointer.
pub(crate) const RESULT: u8 = 0;
pub(crate) const FIRST: u8 = 1;
pub(crate) const SECOND: u8 = 2;
pub(crate) const THIRD: u8 = 3;
pub(crate) const FOURTH: u8 = 4;
pub(crate) const SIXTH: u8 = 6;
pub(crate) const SEVENTH: u8 = 7;
pub(crate) const EIGHTH: u8 = 8;
pub(crate) const NINTH: u8 = 9;
pub(crate) const FRAME: u8 = 10;

pub(crate) const MOVE: u8 = 0xbf;
pub(crate) const MOVE_CONSTANT: u8 = 0xb7;
pub(crate) const ADD_CONSTANT: u8 = 0x07;
pub(crate) const ADD: u8 = 0x0f;
pub(crate) const AND_CONSTANT: u8 = 0x57;
pub(crate) const SHIFT_LEFT: u8 = 0x67;
/// Shifts left by the value of a register.
pub(crate) const SHIFT_LEFT_BY: u8 = 0x6f;
pub(crate) const SHIFT_RIGHT: u8 = 0x77;
pub(crate) const SHIFT_RIGHT_SIGNED: u8 = 0xc7;
pub(crate) const LOAD_WORD: u8 = 0x61;
pub(crate) const LOAD_LONG: u8 = 0x79;
pub(crate) const STORE_WORD: u8 = 0x63;
pub(crate) const STORE_LONG: u8 = 0x7b;
pub(crate) const STORE_CONSTANT: u8 = 0x7a;
/// Jumps that compare a register with a constant.
pub(crate) const UNLESS_EQUAL: u8 = 0x55;
pub(crate) const IF_EQUAL: u8 = 0x15;
/// A jump if a signed register is greater than a constant.
pub(crate) const IF_GREATER: u8 = 0x65;
/// A jump if an unsigned register is greater than a constant.
pub(crate) const IF_ABOVE: u8 = 0x25;
/// A jump if an unsigned register is greater than another register.
const IF_ABOVE_REGISTER: u8 = 0x2d;
const ALWAYS: u8 = 0x05;
/// An atomic operation on 8 bytes of memory; the constant is the operation.
const ATOMIC_LONG: u8 = 0xdb;
const ATOMIC_OR: i32 = 0x40;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const LOAD_MAP: u8 = 0x18;
/// Value of the source register of a load of a map (BPF_PSEUDO_MAP_FD). The constant is a descriptor.
const MAP_FD: u8 = 1;
/// Value of the source register of a call (BPF_PSEUDO_KFUNC_CALL). The constant of such a call is the BTF id of a
/// kernel function.
const KFUNC: u8 = 2;

/// Helpers by their number in `enum bpf_func_id`.
pub(crate) const MAP_LOOKUP: i32 = 1;
pub(crate) const MAP_UPDATE: i32 = 2;
pub(crate) const KTIME_GET_NS: i32 = 5;
pub(crate) const GET_CURRENT_TASK: i32 = 35;
/// BPF_FUNC_probe_read_kernel: the helper that copies kernel memory. Memory that cannot be read becomes zero.
const PROBE_READ_KERNEL: i32 = 113;

/// One instruction (`struct bpf_insn`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Instruction {
    code: u8,
    /// Destination register in the low half, source register in the high half.
    registers: u8,
    offset: i16,
    constant: i32,
}

const _: () = assert!(size_of::<Instruction>() == 8);
const _: () = assert!(offset_of!(Instruction, constant) == 4);

/// A position in a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Label(usize);

/// A program under construction.
#[derive(Default)]
pub(crate) struct Assembler {
    code: Vec<Instruction>,
    /// Jumps and the labels to which they lead.
    jumps: Vec<(usize, Label)>,
    labels: usize,
}

impl Assembler {
    pub(crate) fn push(&mut self, code: u8, destination: u8, source: u8, offset: i16, constant: i32) {
        self.code.push(Instruction { code, registers: source << 4 | destination, offset, constant });
    }

    /// Returns a new label, which [`Self::place`] must place.
    pub(crate) fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels)
    }

    /// Places a label at the next instruction, and completes the jumps to the label.
    pub(crate) fn place(&mut self, label: Label) {
        let target = self.code.len();
        for (at, _) in self.jumps.extract_if(.., |(_, to)| *to == label) {
            self.code[at].offset = (target - at - 1) as i16;
        }
    }

    /// Jumps to a label if the comparison `code` of a register with a constant is true.
    pub(crate) fn jump(&mut self, code: u8, register: u8, constant: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(code, register, 0, 0, constant);
    }

    /// Jumps to a label if the unsigned value of a register is greater than the value of another register.
    pub(crate) fn jump_if_above(&mut self, register: u8, other: u8, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(IF_ABOVE_REGISTER, register, other, 0, 0);
    }

    /// Sets bits of the 8 bytes that a register leads to. Other processors see all of these bits or none.
    pub(crate) fn set_bits(&mut self, address: u8, bits: u8) {
        self.push(ATOMIC_LONG, address, bits, 0, ATOMIC_OR);
    }

    pub(crate) fn jump_always(&mut self, to: Label) {
        self.jump(ALWAYS, 0, 0, to);
    }

    /// Calls a helper.
    pub(crate) fn call(&mut self, helper: i32) {
        self.push(CALL, 0, 0, 0, helper);
    }

    /// Calls a kernel function by its BTF id.
    pub(crate) fn call_kfunc(&mut self, id: i32) {
        self.push(CALL, 0, KFUNC, 0, id);
    }

    /// Loads a map into a register.
    pub(crate) fn load_map(&mut self, register: u8, map: BorrowedFd<'_>) {
        self.push(LOAD_MAP, register, MAP_FD, 0, map.as_raw_fd());
        self.push(0, 0, 0, 0, 0);
    }

    /// Sets a register to an address on the stack. `at` is relative to the frame pointer.
    pub(crate) fn address(&mut self, register: u8, at: i16) {
        self.push(MOVE, register, FRAME, 0, 0);
        self.push(ADD_CONSTANT, register, 0, 0, i32::from(at));
    }

    /// Copies `length` bytes of kernel memory at `from` (a register and an offset) to the stack at `at`. The result of
    /// the helper is 0 if the memory could be read.
    pub(crate) fn read(&mut self, at: i16, length: usize, from: (u8, usize)) {
        self.push(MOVE, THIRD, from.0, 0, 0);
        self.push(ADD_CONSTANT, THIRD, 0, 0, from.1 as i32);
        self.address(FIRST, at);
        self.push(MOVE_CONSTANT, SECOND, 0, 0, length as i32);
        self.call(PROBE_READ_KERNEL);
    }

    /// Ends the program with a constant result.
    pub(crate) fn exit(&mut self, result: i32) {
        self.push(MOVE_CONSTANT, RESULT, 0, 0, result);
        self.exit_with_result();
    }

    /// Ends the program with the present value of the register `RESULT`.
    pub(crate) fn exit_with_result(&mut self) {
        self.push(EXIT, 0, 0, 0, 0);
    }

    /// Returns the program.
    pub(crate) fn finish(self) -> Vec<Instruction> {
        assert!(self.jumps.is_empty(), "a label is not placed");
        self.code
    }
}
