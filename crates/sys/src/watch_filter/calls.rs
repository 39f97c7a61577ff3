//! The system calls that the filters report, by number.
//!
//! Owns: the tables of x86-64, x32 and i386.
//! Invariants: a table contains a number at most once.
//! Does not: test arguments; a row names the required test.

use When::{Always, Has, HasOrZero, Is, MapsShared, OneOfThree, Opens, Requests, SetsFlags, WritesSpecially};

pub(super) const CLONE_NEWNS: u32 = 0x0002_0000;
const OPEN_TREE_CLONE: u32 = 1;
const MS_SYNC: u32 = 4;
/// Makes a hole in the file of a mapping.
const MADV_REMOVE: u32 = 9;

/// The condition under which a call is reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum When {
    /// Every call, with any arguments.
    Always,
    /// The argument contains flags of open(2) with which a file can change. The field is the index of the argument.
    Opens(u32),
    /// fcntl(2) sets flags (F_SETFL) without O_APPEND.
    SetsFlags,
    /// mmap(2) makes a shared mapping of a file.
    MapsShared,
    /// ioctl(2) makes a request that is in `REQUESTS`.
    Requests,
    /// pwritev2(2) has one of the flags RWF_NOAPPEND, RWF_DSYNC and RWF_SYNC.
    WritesSpecially,
    /// The argument equals a number. The fields are the index of the argument and the number.
    Is(u32, u32),
    /// The argument equals one of three consecutive numbers. The fields are the index of the argument and the
    /// smallest number.
    OneOfThree(u32, u32),
    /// The argument has a bit set. The fields are the index of the argument and the bit.
    Has(u32, u32),
    /// The argument has a bit set, or is zero. The fields are the index of the argument and the bit.
    HasOrZero(u32, u32),
}

/// Calls of x86-64 by number. x32 has the same numbers with an additional bit, and some numbers of its own. Calls
/// that are frequent and mostly allowed come first.
pub(super) const NATIVE: &[(u32, When)] = &[
    (257, Opens(2)),                  // openat
    (9, MapsShared),                  // mmap
    (72, SetsFlags),                  // fcntl
    (28, Is(2, MADV_REMOVE)),         // madvise
    (440, Is(3, MADV_REMOVE)),        // process_madvise
    (16, Requests),                   // ioctl
    (2, Opens(1)),                    // open
    (56, Has(0, CLONE_NEWNS)),        // clone
    (328, WritesSpecially),           // pwritev2
    (514, Requests),                  // ioctl of x32
    (547, WritesSpecially),           // pwritev2 of x32
    (26, Has(2, MS_SYNC)),            // msync
    (74, Always),                     // fsync
    (75, Always),                     // fdatasync
    (306, Always),                    // syncfs
    (162, Always),                    // sync
    (209, Always),                    // io_submit, which can sync
    (544, Always),                    // io_submit of x32
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
pub(super) const I386: &[(u32, When)] = &[
    (295, Opens(2)),                  // openat
    (192, MapsShared),                // mmap2
    (221, SetsFlags),                 // fcntl64
    (55, SetsFlags),                  // fcntl
    (219, Is(2, MADV_REMOVE)),        // madvise
    (440, Is(3, MADV_REMOVE)),        // process_madvise
    (54, Requests),                   // ioctl
    (5, Opens(1)),                    // open
    (120, Has(0, CLONE_NEWNS)),       // clone
    (379, WritesSpecially),           // pwritev2
    (144, Has(2, MS_SYNC)),           // msync
    (118, Always),                    // fsync
    (148, Always),                    // fdatasync
    (344, Always),                    // syncfs
    (36, Always),                     // sync
    (248, Always),                    // io_submit
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

/// MSG_FASTOPEN: a send connects its socket, and connect(2) is not called.
const CONNECTS: u32 = 0x2000_0000;

/// Socket calls of x86-64 and x32, by number.
pub(super) const NATIVE_CHANNELS: &[(u32, When)] = &[
    (42, Always),            // connect
    (44, Has(3, CONNECTS)),  // sendto
    (46, Has(2, CONNECTS)),  // sendmsg
    (49, Always),            // bind
    (50, Always),            // listen
    (307, Has(3, CONNECTS)), // sendmmsg
    (518, Has(2, CONNECTS)), // sendmsg of x32
    (538, Has(3, CONNECTS)), // sendmmsg of x32
];

/// Socket calls of i386, by number. The requests 2, 3 and 4 of socketcall(2) are bind(2), connect(2) and listen(2). Its
/// requests that send have their flags in memory, which a filter cannot read.
pub(super) const I386_CHANNELS: &[(u32, When)] = &[
    (102, OneOfThree(0, 2)), // socketcall
    (345, Has(3, CONNECTS)), // sendmmsg
    (361, Always),           // bind
    (362, Always),           // connect
    (363, Always),           // listen
    (369, Has(3, CONNECTS)), // sendto
    (370, Has(2, CONNECTS)), // sendmsg
];
