//! The seccomp filter of a watched subject: which system calls may change files.
//!
//! Owns: the classic BPF program, its mark, the tables of system call numbers of x86-64, x32 and i386.
//! Invariants: a call that can change a name, an attribute or the length of a file gives SECCOMP_RET_USER_NOTIF, every
//! other call SECCOMP_RET_ALLOW. Calls that need no look at an argument use only instructions that the kernel can
//! evaluate in advance, so that an allowed call costs nothing (Linux 5.11 and later).
//! Does not: report changes of content through a descriptor (write(2) and its kin); `fanotify` does.

use std::mem::{offset_of, size_of};

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
const CLONE_NEWNS: u32 = 0x0002_0000;
const OPEN_TREE_CLONE: u32 = 1;

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
}

/// When a call that can change files does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    /// Whatever its arguments are.
    Always,
    /// The flags of open(2) in this argument say so.
    Opens(u32),
    /// fcntl(2): F_SETFL without O_APPEND.
    SetsFlags,
    /// mmap(2): a shared mapping of a file.
    MapsShared,
    /// ioctl(2): one of `REQUESTS`.
    Requests,
    /// pwritev2(2): RWF_NOAPPEND.
    IgnoresAppend,
    /// The argument is this number.
    Is(u32, u32),
    /// The argument has this bit.
    Has(u32, u32),
    /// The argument has this bit, or is zero.
    HasOrZero(u32, u32),
}

use When::{Always, Has, HasOrZero, IgnoresAppend, Is, MapsShared, Opens, Requests, SetsFlags};

/// Calls of x86-64 by number; x32 has the same with a bit set, besides some numbers of its own. Those that are made
/// often and mostly allowed come first.
const NATIVE: &[(u32, When)] = &[
    (257, Opens(2)),                  // openat
    (9, MapsShared),                  // mmap
    (72, SetsFlags),                  // fcntl
    (16, Requests),                   // ioctl
    (2, Opens(1)),                    // open
    (56, Has(0, CLONE_NEWNS)),        // clone
    (328, IgnoresAppend),             // pwritev2
    (514, Requests),                  // ioctl of x32
    (547, IgnoresAppend),             // pwritev2 of x32
    (272, Has(0, CLONE_NEWNS)),       // unshare
    (308, HasOrZero(1, CLONE_NEWNS)), // setns
    (304, Opens(2)),                  // open_by_handle_at
    (428, Has(2, OPEN_TREE_CLONE)),   // open_tree
    (437, Always),                    // openat2
    (77, Always),                     // ftruncate
    (76, Always),                     // truncate
    (285, Always),                    // fallocate
    (82, Always),                     // rename
    (264, Always),                    // renameat
    (316, Always),                    // renameat2
    (87, Always),                     // unlink
    (263, Always),                    // unlinkat
    (85, Always),                     // creat
    (83, Always),                     // mkdir
    (258, Always),                    // mkdirat
    (84, Always),                     // rmdir
    (86, Always),                     // link
    (265, Always),                    // linkat
    (88, Always),                     // symlink
    (266, Always),                    // symlinkat
    (133, Always),                    // mknod
    (259, Always),                    // mknodat
    (49, Always),                     // bind, which makes the name of a Unix socket
    (90, Always),                     // chmod
    (91, Always),                     // fchmod
    (268, Always),                    // fchmodat
    (452, Always),                    // fchmodat2
    (92, Always),                     // chown
    (93, Always),                     // fchown
    (94, Always),                     // lchown
    (260, Always),                    // fchownat
    (132, Always),                    // utime
    (235, Always),                    // utimes
    (261, Always),                    // futimesat
    (280, Always),                    // utimensat
    (188, Always),                    // setxattr
    (189, Always),                    // lsetxattr
    (190, Always),                    // fsetxattr
    (197, Always),                    // removexattr
    (198, Always),                    // lremovexattr
    (199, Always),                    // fremovexattr
    (463, Always),                    // setxattrat
    (466, Always),                    // removexattrat
    (469, Always),                    // file_setattr
    (425, Always),                    // io_uring_setup
    (165, Always),                    // mount
    (166, Always),                    // umount2
    (155, Always),                    // pivot_root
    (161, Always),                    // chroot
    (429, Always),                    // move_mount
    (432, Always),                    // fsmount
    (467, Always),                    // open_tree_attr
];

/// Calls of i386 by number.
const I386: &[(u32, When)] = &[
    (295, Opens(2)),                  // openat
    (192, MapsShared),                // mmap2
    (221, SetsFlags),                 // fcntl64
    (55, SetsFlags),                  // fcntl
    (54, Requests),                   // ioctl
    (5, Opens(1)),                    // open
    (120, Has(0, CLONE_NEWNS)),       // clone
    (379, IgnoresAppend),             // pwritev2
    (310, Has(0, CLONE_NEWNS)),       // unshare
    (346, HasOrZero(1, CLONE_NEWNS)), // setns
    (342, Opens(2)),                  // open_by_handle_at
    (428, Has(2, OPEN_TREE_CLONE)),   // open_tree
    (102, Is(0, 2)),                  // socketcall: bind
    (90, Always),                     // mmap, whose arguments are in memory
    (437, Always),                    // openat2
    (93, Always),                     // ftruncate
    (194, Always),                    // ftruncate64
    (92, Always),                     // truncate
    (193, Always),                    // truncate64
    (324, Always),                    // fallocate
    (38, Always),                     // rename
    (302, Always),                    // renameat
    (353, Always),                    // renameat2
    (10, Always),                     // unlink
    (301, Always),                    // unlinkat
    (8, Always),                      // creat
    (39, Always),                     // mkdir
    (296, Always),                    // mkdirat
    (40, Always),                     // rmdir
    (9, Always),                      // link
    (303, Always),                    // linkat
    (83, Always),                     // symlink
    (304, Always),                    // symlinkat
    (14, Always),                     // mknod
    (297, Always),                    // mknodat
    (361, Always),                    // bind
    (15, Always),                     // chmod
    (94, Always),                     // fchmod
    (306, Always),                    // fchmodat
    (452, Always),                    // fchmodat2
    (182, Always),                    // chown
    (95, Always),                     // fchown
    (16, Always),                     // lchown
    (212, Always),                    // chown32
    (207, Always),                    // fchown32
    (198, Always),                    // lchown32
    (298, Always),                    // fchownat
    (30, Always),                     // utime
    (271, Always),                    // utimes
    (299, Always),                    // futimesat
    (320, Always),                    // utimensat
    (412, Always),                    // utimensat_time64
    (226, Always),                    // setxattr
    (227, Always),                    // lsetxattr
    (228, Always),                    // fsetxattr
    (235, Always),                    // removexattr
    (236, Always),                    // lremovexattr
    (237, Always),                    // fremovexattr
    (463, Always),                    // setxattrat
    (466, Always),                    // removexattrat
    (469, Always),                    // file_setattr
    (425, Always),                    // io_uring_setup
    (21, Always),                     // mount
    (22, Always),                     // umount
    (52, Always),                     // umount2
    (217, Always),                    // pivot_root
    (61, Always),                     // chroot
    (429, Always),                    // move_mount
    (432, Always),                    // fsmount
    (467, Always),                    // open_tree_attr
];

/// The filter of a watched subject. Beside the calls that the names of its module's tables say, it reports bind(2),
/// which makes the names of Unix sockets, and io_uring_setup(2), whose requests no filter sees.
#[must_use]
pub fn watch_program() -> FilterProgram {
    let mut builder = Builder::default();
    for constant in MARK {
        builder.push(JUMP_IF_EQUAL, constant);
    }
    builder.push(LOAD_ABSOLUTE, ARCHITECTURE_AT);
    builder.jump_if_equal(AUDIT_ARCH_I386, Label::I386);
    builder.push(LOAD_ABSOLUTE, NUMBER_AT);
    // A call of x32 is judged as the call of x86-64 with the same number.
    builder.push(AND, !X32_BIT);
    builder.calls(NATIVE);
    builder.place(Label::I386);
    builder.push(LOAD_ABSOLUTE, NUMBER_AT);
    builder.calls(I386);
    for when in builder.wanted.clone() {
        builder.place(Label::Test(when));
        builder.test(when);
    }
    builder.finish()
}

/// Whether the code of a filter, as `seccomp::filter` reads it, is one that `watch_program` made, also of another
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

    fn finish(mut self) -> FilterProgram {
        for (from, label) in self.jumps {
            let place = self.places.iter().find(|(other, _)| *other == label);
            let (_, to) = place.expect("every label that is jumped to is placed before the end");
            self.instructions[from].constant = (to - from - 1) as u32;
        }
        FilterProgram { instructions: self.instructions }
    }
}

#[cfg(test)]
mod tests;
