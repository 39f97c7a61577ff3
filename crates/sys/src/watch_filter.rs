//! Seccomp filters that *report* some system calls to a listener (SECCOMP_RET_USER_NOTIF). Two kinds of calls can
//! be reported: calls that may change files, and calls that name the address of a socket.
//!
//! A *watched subject* has a filter for the first kind. A *channel* is a listening socket that stays open after the
//! death of its program; a program with channels has a filter for the second kind.
//!
//! Owns: the classic BPF programs, their mark, and the tests of arguments.
//! Invariants: a filter for files reports each call that can change a name, an attribute or the length of a file. A
//! filter for channels reports bind(2), listen(2), connect(2) and sends with MSG_FASTOPEN. A filter allows every
//! other call (SECCOMP_RET_ALLOW). If a filter allows a call without testing an argument, the kernel can evaluate the
//! filter for this call in advance. Since Linux 5.11, the filter then costs this call no time.
//! Does not: report changes of content through a descriptor, such as write(2); `fanotify` does.

mod calls;

use std::mem::{offset_of, size_of};

use calls::When::{
    Always, Has, HasOrZero, Is, MapsShared, OneOfThree, Opens, Requests, SetsFlags, WritesSpecially,
};
use calls::{I386, I386_CHANNELS, NATIVE, NATIVE_CHANNELS, When};

/// Maximum number of instructions of a filter that this program makes. A longer filter was made by another program.
pub(crate) const OWN_INSTRUCTIONS_MAX: usize = 512;

const LOAD_ABSOLUTE: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

const ALLOW: u32 = 0x7fff_0000;
const NOTIFY: u32 = 0x7fc0_0000;

/// Offsets of fields in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;

pub(crate) const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
pub(crate) const AUDIT_ARCH_I386: u32 = 0x4000_0003;
pub(crate) const X32_BIT: u32 = 0x4000_0000;

/// Constants in the first instructions of every filter of this program. The filter is recognised by these
/// constants. The instructions are comparisons, and both results of a comparison lead to the next instruction.
/// Loads of constants are not used, because they would prevent the kernel from evaluating the filter in advance.
const MARK: [u32; 2] = [0x756e_6479, 0x696e_6701];

/// Flags with which open(2) or a later write can change a file: O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, and the bit of
/// O_TMPFILE that is not in O_DIRECTORY.
const OPENS_TO_CHANGE: u32 = 0x1 | 0x2 | 0x40 | 0x200 | 0x0040_0000;
const F_SETFL: u32 = 4;
const O_APPEND: u32 = 0x400;
/// MAP_SHARED, a bit that is also set in MAP_SHARED_VALIDATE.
const MAP_SHARED_BIT: u32 = 1;
const MAP_ANONYMOUS: u32 = 0x20;
/// Flags of pwritev2(2): RWF_DSYNC and RWF_SYNC make the data durable, RWF_NOAPPEND ignores O_APPEND.
const WRITES_SPECIALLY: u32 = 0x2 | 0x4 | 0x20;

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

/// Size of one instruction (`struct sock_filter`) in bytes.
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

/// The kinds of calls that a filter reports. A task can have only one filter with a listener, so one filter can
/// report both kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reported {
    /// Calls that can change files, with bind(2) and io_uring_setup(2).
    Files,
    /// bind(2), listen(2), connect(2), and sends with MSG_FASTOPEN.
    Channels,
    /// The calls of `Files` and the calls of `Channels`.
    FilesAndChannels,
}

/// Returns the filter of a watched subject. The filter reports calls that change files, and calls that make data
/// durable, such as fsync(2). bind(2) is one of these calls, because it creates the names of Unix sockets. The filter reports io_uring_setup(2), too, because no
/// filter sees the requests of an io_uring.
#[must_use]
pub fn watch_program() -> FilterProgram {
    filter_program(Reported::Files)
}

/// Returns the filter that reports these kinds of calls.
#[must_use]
pub fn filter_program(reported: Reported) -> FilterProgram {
    let mut builder = Builder::default();
    for constant in MARK {
        builder.push(JUMP_IF_EQUAL, constant);
    }
    builder.push(LOAD_ABSOLUTE, ARCHITECTURE_AT);
    builder.jump_if_equal(AUDIT_ARCH_I386, Label::I386);
    builder.push(LOAD_ABSOLUTE, NUMBER_AT);
    // An x32 call is handled like the x86-64 call with the same number.
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

/// Returns the rows of one call table. If a call is in both tables, the result contains only the row of `channels`.
/// This row reports every use of the call that the row of `files` reports.
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

/// Reports whether [`filter_program`] made a filter, in this or in another version of this program. `code` is the
/// code of the filter, as `seccomp::filter` reads it.
#[must_use]
pub fn is_own(code: &[u8]) -> bool {
    let marks = MARK.map(|constant| Instruction::new(JUMP_IF_EQUAL, constant).to_bytes()).concat();
    code.starts_with(&marks)
}

impl FilterProgram {
    /// Returns the instructions in the layout of the kernel.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.instructions.iter().flat_map(|instruction| instruction.to_bytes()).collect()
    }

    pub(crate) fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Returns which kinds of calls the filter reports.
    #[must_use]
    pub fn reported(&self) -> Reported {
        self.reported
    }

    /// Returns the filter as an interruptible filter: a signal can interrupt a call that waits for its answer. See
    /// `flags_of`.
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

/// A position in a program to which a jump leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Label {
    I386,
    Test(When),
}

/// A program under construction. The jumps get their distances at the end.
#[derive(Default)]
struct Builder {
    instructions: Vec<Instruction>,
    /// Jumps: the index of the instruction and the target.
    jumps: Vec<(usize, Label)>,
    places: Vec<(Label, usize)>,
    /// Tests of arguments to which a jump leads.
    wanted: Vec<When>,
}

impl Builder {
    fn push(&mut self, code: u16, constant: u32) {
        self.instructions.push(Instruction::new(code, constant));
    }

    /// Appends a comparison. `if_true` and `if_false` are the numbers of instructions that are skipped for each
    /// result.
    fn skip(&mut self, code: u16, constant: u32, if_true: u8, if_false: u8) {
        self.instructions.push(Instruction { code, if_true, if_false, constant });
    }

    fn place(&mut self, label: Label) {
        self.places.push((label, self.instructions.len()));
    }

    /// Appends a jump of any length. A comparison itself can skip at most 255 instructions.
    fn jump_if_equal(&mut self, constant: u32, label: Label) {
        self.skip(JUMP_IF_EQUAL, constant, 0, 1);
        self.jumps.push((self.instructions.len(), label));
        self.push(JUMP, 0);
    }

    /// Appends the decision about the call whose number is loaded.
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
        // Only the low half is loaded, because every tested argument has at most 32 bits.
        self.push(LOAD_ABSOLUTE, ARGUMENTS_AT + 8 * index);
    }

    /// Appends the test of a call by its arguments.
    fn test(&mut self, when: When) {
        match when {
            Always => {}
            Opens(argument) => self.allow_without(argument, OPENS_TO_CHANGE),
            WritesSpecially => self.allow_without(5, WRITES_SPECIALLY),
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

    /// Appends instructions that allow the call if the argument has none of these bits.
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
