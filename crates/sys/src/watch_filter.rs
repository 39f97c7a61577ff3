//! The seccomp filters of this program: which system calls may change files, and which name the address of a socket.
//!
//! Owns: the classic BPF programs, their mark, the evaluation of arguments.
//! Invariants: a call that can change a name, an attribute or the length of a file gives SECCOMP_RET_USER_NOTIF in the
//! filter of a watched subject. bind(2), listen(2) and connect(2) do in a filter of channels. Every other call gives
//! SECCOMP_RET_ALLOW. Calls that need no look at an argument use only instructions that the kernel can
//! evaluate in advance, so that an allowed call costs nothing (Linux 5.11 and later).
//! Does not: report changes of content through a descriptor (write(2) and its kin); `fanotify` does.

mod calls;

use std::mem::{offset_of, size_of};

use calls::When::{
    Always, Has, HasOrZero, IgnoresAppend, Is, MapsShared, OneOfThree, Opens, Requests, SetsFlags,
};
use calls::{I386, I386_CHANNELS, NATIVE, NATIVE_CHANNELS, When};

/// Instructions that a filter of ours has at most; a longer filter of a thread is not ours.
pub(crate) const OWN_INSTRUCTIONS_MAX: usize = 512;

const LOAD_ABSOLUTE: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

const ALLOW: u32 = 0x7fff_0000;
const NOTIFY: u32 = 0x7fc0_0000;

/// Offsets in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;

pub(crate) const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
pub(crate) const AUDIT_ARCH_I386: u32 = 0x4000_0003;
pub(crate) const X32_BIT: u32 = 0x4000_0000;

/// What a filter of ours begins with: comparisons that lead to the next instruction either way. A load of a constant
/// would keep the kernel from evaluating the filter in advance.
const MARK: [u32; 2] = [0x756e_6479, 0x696e_6701];

/// O_WRONLY, O_RDWR, O_CREAT, O_TRUNC and the bit of O_TMPFILE that O_DIRECTORY has not.
const OPENS_TO_CHANGE: u32 = 0x1 | 0x2 | 0x40 | 0x200 | 0x0040_0000;
const F_SETFL: u32 = 4;
const O_APPEND: u32 = 0x400;
/// MAP_SHARED, which MAP_SHARED_VALIDATE has as well.
const MAP_SHARED_BIT: u32 = 1;
const MAP_ANONYMOUS: u32 = 0x20;
const RWF_NOAPPEND: u32 = 0x20;

/// Requests of ioctl(2) that change files.
const REQUESTS: &[u32] = &[
    0x4004_9409, // FICLONE
    0x4020_940d, // FICLONERANGE
    0xc018_9436, // FIDEDUPERANGE
    0x4008_6602, // FS_IOC_SETFLAGS
    0x4004_6602, // FS_IOC32_SETFLAGS
    0x401c_5820, // FS_IOC_FSSETXATTR
    0x4008_7602, // FS_IOC_SETVERSION
    0x4004_7602, // FS_IOC32_SETVERSION
    0x4080_6685, // FS_IOC_ENABLE_VERITY
    0xc028_660f, // EXT4_IOC_MOVE_EXT
    0x0000_6611, // EXT4_IOC_SWAP_BOOT
    0xc0c0_586d, // XFS_IOC_SWAPEXT
    0x4028_5881, // XFS_IOC_EXCHANGE_RANGE
    0x4058_5883, // XFS_IOC_COMMIT_RANGE
    0x4030_5828, // FS_IOC_RESVSP
    0x4030_5829, // FS_IOC_UNRESVSP
    0x4030_582a, // FS_IOC_RESVSP64
    0x4030_582b, // FS_IOC_UNRESVSP64
    0x4030_5839, // FS_IOC_ZERO_RANGE
    0x5000_9401, // BTRFS_IOC_SNAP_CREATE
    0x5000_940e, // BTRFS_IOC_SUBVOL_CREATE
    0x5000_940f, // BTRFS_IOC_SNAP_DESTROY
    0x5000_9417, // BTRFS_IOC_SNAP_CREATE_V2
    0x5000_9418, // BTRFS_IOC_SUBVOL_CREATE_V2
    0x5000_943f, // BTRFS_IOC_SNAP_DESTROY_V2
];

/// Bytes of one instruction (`struct sock_filter`).
pub const INSTRUCTION_BYTES: usize = 8;

/// One instruction (`struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    constant: u32,
}

const _: () = assert!(size_of::<Instruction>() == INSTRUCTION_BYTES);
const _: () = assert!(offset_of!(Instruction, constant) == 4);

/// A filter that is ready to be installed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilterProgram {
    instructions: Vec<Instruction>,
    reported: Reported,
    is_interruptible: bool,
}

/// Which calls a filter reports. A task can have only one filter with a listener, so that one filter reports both kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reported {
    /// Calls that can change files, bind(2) and io_uring_setup(2) among them.
    Files,
    /// bind(2), listen(2) and connect(2).
    Channels,
    /// The calls of both.
    FilesAndChannels,
}

/// The filter of a watched subject. Beside the calls that the names of its module's tables say, it reports bind(2),
/// which makes the names of Unix sockets, and io_uring_setup(2), whose requests no filter sees.
#[must_use]
pub fn watch_program() -> FilterProgram {
    filter_program(Reported::Files)
}

/// The filter that reports these calls.
#[must_use]
pub fn filter_program(reported: Reported) -> FilterProgram {
    let mut builder = Builder::default();
    for constant in MARK {
        builder.push(JUMP_IF_EQUAL, constant);
    }
    builder.push(LOAD_ABSOLUTE, ARCHITECTURE_AT);
    builder.jump_if_equal(AUDIT_ARCH_I386, Label::I386);
    builder.push(LOAD_ABSOLUTE, NUMBER_AT);
    // A call of x32 is judged as the call of x86-64 with the same number.
    builder.push(AND, !X32_BIT);
    builder.calls(&table(reported, NATIVE, NATIVE_CHANNELS));
    builder.place(Label::I386);
    builder.push(LOAD_ABSOLUTE, NUMBER_AT);
    builder.calls(&table(reported, I386, I386_CHANNELS));
    for when in builder.wanted.clone() {
        builder.place(Label::Test(when));
        builder.test(when);
    }
    builder.finish(reported)
}

/// The rows of one table of numbers. A call of both kinds is judged as one of channels, which report all of it.
fn table(reported: Reported, files: &[(u32, When)], channels: &[(u32, When)]) -> Vec<(u32, When)> {
    let of_channels = |call: &(u32, When)| channels.iter().any(|other| other.0 == call.0);
    match reported {
        Reported::Files => files.to_vec(),
        Reported::Channels => channels.to_vec(),
        Reported::FilesAndChannels => {
            files.iter().filter(|call| !of_channels(call)).chain(channels).copied().collect()
        }
    }
}

/// Whether the code of a filter, as `seccomp::filter` reads it, is one that `filter_program` made, also of another
/// version of this program.
#[must_use]
pub fn is_own(code: &[u8]) -> bool {
    let marks = MARK.map(|constant| Instruction::new(JUMP_IF_EQUAL, constant).to_bytes()).concat();
    code.starts_with(&marks)
}

impl FilterProgram {
    /// The instructions as the kernel lays them out.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.instructions.iter().flat_map(|instruction| instruction.to_bytes()).collect()
    }

    pub(crate) fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Which calls it reports.
    #[must_use]
    pub fn reported(&self) -> Reported {
        self.reported
    }

    /// The same filter, whose calls can be broken off while they wait for the answer; see `flags_of`.
    #[must_use]
    pub fn interruptible(self) -> Self {
        Self { is_interruptible: true, ..self }
    }

    pub(crate) fn is_interruptible(&self) -> bool {
        self.is_interruptible
    }
}

impl Instruction {
    const fn new(code: u16, constant: u32) -> Self {
        Self { code, if_true: 0, if_false: 0, constant }
    }

    fn to_bytes(self) -> [u8; INSTRUCTION_BYTES] {
        let [c0, c1] = self.code.to_ne_bytes();
        let [k0, k1, k2, k3] = self.constant.to_ne_bytes();
        [c0, c1, self.if_true, self.if_false, k0, k1, k2, k3]
    }
}

/// A place in a program that is jumped to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Label {
    I386,
    Test(When),
}

/// A program whose jumps are completed in the end.
#[derive(Default)]
struct Builder {
    instructions: Vec<Instruction>,
    /// Jumps, by index, and where they go.
    jumps: Vec<(usize, Label)>,
    places: Vec<(Label, usize)>,
    /// Tests of arguments that are jumped to.
    wanted: Vec<When>,
}

impl Builder {
    fn push(&mut self, code: u16, constant: u32) {
        self.instructions.push(Instruction::new(code, constant));
    }

    /// A comparison, and how many instructions it skips if it holds and if it does not.
    fn skip(&mut self, code: u16, constant: u32, if_true: u8, if_false: u8) {
        self.instructions.push(Instruction { code, if_true, if_false, constant });
    }

    fn place(&mut self, label: Label) {
        self.places.push((label, self.instructions.len()));
    }

    /// A jump of any length: those of comparisons reach 255 instructions only.
    fn jump_if_equal(&mut self, constant: u32, label: Label) {
        self.skip(JUMP_IF_EQUAL, constant, 0, 1);
        self.jumps.push((self.instructions.len(), label));
        self.push(JUMP, 0);
    }

    /// Judges the call whose number is loaded.
    fn calls(&mut self, table: &[(u32, When)]) {
        for &(number, when) in table {
            if when == Always {
                self.skip(JUMP_IF_EQUAL, number, 0, 1);
                self.push(RETURN, NOTIFY);
                continue;
            }
            self.jump_if_equal(number, Label::Test(when));
            if !self.wanted.contains(&when) {
                self.wanted.push(when);
            }
        }
        self.push(RETURN, ALLOW);
    }

    fn load_argument(&mut self, index: u32) {
        // The low half: every argument that is tested has at most 32 bits.
        self.push(LOAD_ABSOLUTE, ARGUMENTS_AT + 8 * index);
    }

    /// Judges a call by its arguments.
    fn test(&mut self, when: When) {
        match when {
            Always => {}
            Opens(argument) => self.allow_without(argument, OPENS_TO_CHANGE),
            IgnoresAppend => self.allow_without(5, RWF_NOAPPEND),
            Has(argument, bits) => self.allow_without(argument, bits),
            HasOrZero(argument, bits) => {
                self.load_argument(argument);
                self.skip(JUMP_IF_EQUAL, 0, 2, 0);
                self.skip(JUMP_IF_ANY_BIT, bits, 1, 0);
                self.push(RETURN, ALLOW);
            }
            Is(argument, number) => {
                self.load_argument(argument);
                self.skip(JUMP_IF_EQUAL, number, 1, 0);
                self.push(RETURN, ALLOW);
            }
            OneOfThree(argument, first) => {
                self.load_argument(argument);
                self.skip(JUMP_IF_EQUAL, first, 3, 0);
                self.skip(JUMP_IF_EQUAL, first + 1, 2, 0);
                self.skip(JUMP_IF_EQUAL, first + 2, 1, 0);
                self.push(RETURN, ALLOW);
            }
            SetsFlags => {
                self.load_argument(1);
                self.skip(JUMP_IF_EQUAL, F_SETFL, 1, 0);
                self.push(RETURN, ALLOW);
                self.load_argument(2);
                self.skip(JUMP_IF_ANY_BIT, O_APPEND, 0, 1);
                self.push(RETURN, ALLOW);
            }
            MapsShared => {
                self.load_argument(3);
                self.skip(JUMP_IF_ANY_BIT, MAP_SHARED_BIT, 1, 0);
                self.push(RETURN, ALLOW);
                self.skip(JUMP_IF_ANY_BIT, MAP_ANONYMOUS, 2, 0);
                self.load_argument(4);
                self.skip(JUMP_IF_EQUAL, u32::MAX, 0, 1);
                self.push(RETURN, ALLOW);
            }
            Requests => {
                self.load_argument(1);
                for &request in REQUESTS {
                    self.skip(JUMP_IF_EQUAL, request, 0, 1);
                    self.push(RETURN, NOTIFY);
                }
                self.push(RETURN, ALLOW);
            }
        }
        self.push(RETURN, NOTIFY);
    }

    /// Allows the call if the argument has none of these bits.
    fn allow_without(&mut self, argument: u32, bits: u32) {
        self.load_argument(argument);
        self.skip(JUMP_IF_ANY_BIT, bits, 1, 0);
        self.push(RETURN, ALLOW);
    }

    fn finish(mut self, reported: Reported) -> FilterProgram {
        for (from, label) in self.jumps {
            let place = self.places.iter().find(|(other, _)| *other == label);
            let (_, to) = place.expect("every label that is jumped to is placed before the end");
            self.instructions[from].constant = (to - from - 1) as u32;
        }
        FilterProgram { instructions: self.instructions, reported, is_interruptible: false }
    }
}

#[cfg(test)]
mod tests;
