//! Classifies system calls: finds the change of files that each call is about to make.
//!
//! Owns: the mapping from system call numbers and arguments to changes, for x86-64.
//! Invariants: functions are pure. For a call that is not in the mapping, the result is `Unknown`, and never `Nothing`.
//! Does not: read memory of the subject, or access files.

use std::ffi::c_int;

use model::{Address, ByteCount, Fd};
use rustix::fs::{AtFlags, CWD, OFlags, RenameFlags};
use std::os::fd::AsRawFd;

/// A path argument of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PathAt {
    /// The directory from which a relative path starts; `None` means the working directory.
    pub(super) directory: Option<Fd>,
    /// The address of the path in the memory of the subject.
    pub(super) path: Address,
    /// Whether the call follows a symbolic link if the last component of the path is a symbolic link.
    pub(super) follows: bool,
    /// Whether an empty path means the file of the descriptor `directory` (AT_EMPTY_PATH).
    pub(super) may_be_empty: bool,
}

/// The file argument of a call: a path or a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FileAt {
    Path(PathAt),
    Descriptor(Fd),
}

/// The attribute that a call changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Attribute {
    /// The mode.
    Mode,
    /// The owner and the group. `None` means that the call does not change this id.
    Owner { user: Option<u32>, group: Option<u32> },
    /// The access time and the modification time. The values are at this address in the memory of the subject; `None`
    /// means the present time. `is_fine` means that the values are of the type `struct timespec`, which has a value for
    /// the present time.
    Times { values: Option<Address>, is_fine: bool },
    /// The extended attribute whose name is at this address in the memory of the subject.
    Extended(Address),
    /// Flags and numbers that a rollback does not restore.
    Flags,
}

/// The change that a call is about to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// The call opens or creates a file.
    Open(PathAt, OFlags),
    /// The call opens or creates a file. The flags are in a `struct open_how` at this address in the memory of the
    /// subject.
    OpenHow(PathAt, Address),
    /// The call creates a name: mkdir(2), mknod(2), symlink(2).
    Make(PathAt),
    /// The call adds the second name to the file with the first name.
    Link(PathAt, PathAt),
    /// The call removes a name: unlink(2), or rmdir(2) for a directory.
    Remove { at: PathAt, is_directory: bool },
    /// The call changes the first name to the second name. If the second name exists, the call replaces or exchanges
    /// the second name.
    Rename { from: PathAt, to: PathAt, is_exchange: bool },
    /// The call sets the length of a file in bytes.
    Cut(FileAt, u64),
    /// The call changes a range of a file. Offset and length are in bytes. Without a length, the call changes all
    /// content after the offset.
    Range { file: FileAt, offset: u64, length: Option<u64> },
    /// The call can change all content of a file.
    Whole(FileAt),
    /// The call makes a hole in the file of a mapping (MADV_REMOVE).
    MappedHole,
    /// The call changes attributes or extended attributes of a file.
    Attributes(FileAt, Attribute),
    /// The call writes at any offset, or lets later calls write at any offset, although the file was opened with
    /// O_APPEND.
    NoAppend(Fd),
    /// The call creates a shared mapping of a file.
    Map { file: Fd, writes: bool },
    /// The call creates a name if the socket address is the path of a Unix socket. The fields are the address of the
    /// socket address in the memory of the subject, and the length of the socket address.
    Bind(Address, ByteCount),
    /// The call makes no change that must be recorded.
    Nothing,
    /// The call can make changes that the watch cannot record. The text names the call.
    Unknown(&'static str),
}

/// A reported system call: its number and arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Call {
    pub(super) number: i64,
    pub(super) arguments: [u64; 6],
    /// Whether the thread used the 64-bit system call interface of the kernel.
    pub(super) is_native: bool,
}

const COLLAPSE_RANGE: u64 = 0x08;
const INSERT_RANGE: u64 = 0x20;
const PROT_WRITE: u64 = 2;
const RWF_DSYNC: u64 = 0x2;
const RWF_SYNC: u64 = 0x4;
const RWF_NOAPPEND: u64 = 0x20;
/// sync(2), fsync(2), msync(2), fdatasync(2) and syncfs(2) of i386.
const I386_SYNCS: [i64; 6] = [36, 118, 144, 148, 248, 344];
/// io_submit(2) of x32.
const X32_IO_SUBMIT: i64 = 544;
/// setxattrat(2), since Linux 6.13.
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;

/// Reports whether a call is about to make data durable.
pub(super) fn is_sync(call: &Call) -> bool {
    if !call.is_native {
        return I386_SYNCS.contains(&call.number);
    }
    match call.number {
        libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_sync | libc::SYS_syncfs | libc::SYS_msync => true,
        // Its requests can be syncs, or writes that make their data durable.
        libc::SYS_io_submit | X32_IO_SUBMIT => true,
        libc::SYS_pwritev2 => call.arguments[5] & (RWF_DSYNC | RWF_SYNC) != 0,
        _ => false,
    }
}

/// Returns the change that a call is about to make.
pub(super) fn change_of(call: &Call) -> Change {
    match call.number {
        libc::SYS_pwritev2 if call.is_native && call.arguments[5] & RWF_NOAPPEND == 0 => {
            return Change::Nothing;
        }
        libc::SYS_pwritev2 if call.is_native => {}
        _ if is_sync(call) => return Change::Nothing,
        _ => {}
    }
    if !call.is_native {
        return Change::Unknown("a call through the 32-bit entry of the kernel");
    }
    let a = &call.arguments;
    match call.number {
        libc::SYS_open => Change::Open(at_cwd(a[0]), flags(a[1])),
        libc::SYS_creat => Change::Open(at_cwd(a[0]), OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC),
        libc::SYS_openat => Change::Open(at(a[0], a[1]), flags(a[2])),
        libc::SYS_openat2 => Change::OpenHow(at(a[0], a[1]), Address(a[2])),
        libc::SYS_unlink | libc::SYS_rmdir => {
            Change::Remove { at: at_cwd(a[0]).no_follow(), is_directory: call.number == libc::SYS_rmdir }
        }
        libc::SYS_unlinkat => {
            let is_directory = AtFlags::from_bits_retain(a[2] as u32).contains(AtFlags::REMOVEDIR);
            Change::Remove { at: at(a[0], a[1]).no_follow(), is_directory }
        }
        libc::SYS_rename => Change::Rename {
            from: at_cwd(a[0]).no_follow(),
            to: at_cwd(a[1]).no_follow(),
            is_exchange: false,
        },
        libc::SYS_renameat | libc::SYS_renameat2 => Change::Rename {
            from: at(a[0], a[1]).no_follow(),
            to: at(a[2], a[3]).no_follow(),
            is_exchange: call.number == libc::SYS_renameat2
                && a[4] & u64::from(RenameFlags::EXCHANGE.bits()) != 0,
        },
        libc::SYS_symlink => Change::Make(at_cwd(a[1]).no_follow()),
        libc::SYS_link => Change::Link(at_cwd(a[0]).no_follow(), at_cwd(a[1]).no_follow()),
        libc::SYS_linkat => {
            let from = at(a[0], a[1]).flagged(a[4]);
            // linkat(2) follows symbolic links only with AT_SYMLINK_FOLLOW.
            let follows = a[4] & u64::from(AtFlags::SYMLINK_FOLLOW.bits()) != 0;
            Change::Link(PathAt { follows, ..from }, at(a[2], a[3]).no_follow())
        }
        libc::SYS_symlinkat => Change::Make(at(a[1], a[2]).no_follow()),
        libc::SYS_mkdir | libc::SYS_mknod => Change::Make(at_cwd(a[0]).no_follow()),
        libc::SYS_mkdirat | libc::SYS_mknodat => Change::Make(at(a[0], a[1]).no_follow()),
        _ => content_of(call).or_else(|| attributes_of(call)).unwrap_or_else(|| other(call)),
    }
}

fn content_of(call: &Call) -> Option<Change> {
    let a = &call.arguments;
    Some(match call.number {
        libc::SYS_truncate => Change::Cut(FileAt::Path(at_cwd(a[0])), a[1]),
        libc::SYS_ftruncate => Change::Cut(descriptor(a[0]), a[1]),
        libc::SYS_fallocate => {
            let moves = a[1] & (COLLAPSE_RANGE | INSERT_RANGE) != 0;
            Change::Range { file: descriptor(a[0]), offset: a[2], length: (!moves).then_some(a[3]) }
        }
        libc::SYS_fcntl | libc::SYS_pwritev2 => Change::NoAppend(Fd(a[0] as i32)),
        libc::SYS_madvise | libc::SYS_process_madvise => Change::MappedHole,
        libc::SYS_mmap => Change::Map { file: Fd(a[4] as i32), writes: a[2] & PROT_WRITE != 0 },
        libc::SYS_ioctl => return request(a[1] as u32, descriptor(a[0])),
        libc::SYS_bind => Change::Bind(Address(a[1]), ByteCount(a[2])),
        _ => return None,
    })
}

/// Returns the change that a request of ioctl(2) is about to make to a file. Returns `None` for an unknown request.
fn request(request: u32, file: FileAt) -> Option<Change> {
    Some(match request {
        // FICLONE, FICLONERANGE, EXT4_IOC_MOVE_EXT, XFS_IOC_SWAPEXT, XFS_IOC_EXCHANGE_RANGE, XFS_IOC_COMMIT_RANGE.
        0x4004_9409 | 0x4020_940d | 0xc028_660f | 0xc0c0_586d | 0x4028_5881 | 0x4058_5883 => {
            Change::Whole(file)
        }
        // FS_IOC_RESVSP, _UNRESVSP, RESVSP64, _UNRESVSP64, _ZERO_RANGE.
        0x4030_5828..=0x4030_582b | 0x4030_5839 => Change::Whole(file),
        // FIDEDUPERANGE does not change content.
        0xc018_9436 => Change::Nothing,
        // FS_IOC_SETFLAGS, _FSSETXATTR, _SETVERSION. A rollback does not restore the values that these requests set.
        0x4008_6602 | 0x4004_6602 | 0x401c_5820 | 0x4008_7602 | 0x4004_7602 => {
            Change::Attributes(file, Attribute::Flags)
        }
        _ => return None,
    })
}

fn attributes_of(call: &Call) -> Option<Change> {
    let a = &call.arguments;
    let owner = |user: u64, group: u64| Attribute::Owner { user: id(user), group: id(group) };
    let extended = |name: u64| Attribute::Extended(Address(name));
    let times = |values: u64| Attribute::Times {
        values: (values != 0).then_some(Address(values)),
        is_fine: call.number == libc::SYS_utimensat,
    };
    let (file, attribute) = match call.number {
        libc::SYS_chmod => (FileAt::Path(at_cwd(a[0])), Attribute::Mode),
        libc::SYS_chown => (FileAt::Path(at_cwd(a[0])), owner(a[1], a[2])),
        libc::SYS_utime | libc::SYS_utimes => (FileAt::Path(at_cwd(a[0])), times(a[1])),
        libc::SYS_lchown => (FileAt::Path(at_cwd(a[0]).no_follow()), owner(a[1], a[2])),
        libc::SYS_fchmod => (descriptor(a[0]), Attribute::Mode),
        libc::SYS_fchown => (descriptor(a[0]), owner(a[1], a[2])),
        // The system call fchmodat(2) has no argument for flags.
        libc::SYS_fchmodat => (FileAt::Path(at(a[0], a[1])), Attribute::Mode),
        libc::SYS_fchmodat2 => (FileAt::Path(at(a[0], a[1]).flagged(a[3])), Attribute::Mode),
        libc::SYS_fchownat => (FileAt::Path(at(a[0], a[1]).flagged(a[4])), owner(a[2], a[3])),
        libc::SYS_utimensat | libc::SYS_futimesat if a[1] == 0 => (descriptor(a[0]), times(a[2])),
        libc::SYS_utimensat => (FileAt::Path(at(a[0], a[1]).flagged(a[3])), times(a[2])),
        libc::SYS_futimesat => (FileAt::Path(at(a[0], a[1])), times(a[2])),
        libc::SYS_setxattr | libc::SYS_removexattr => (FileAt::Path(at_cwd(a[0])), extended(a[1])),
        libc::SYS_lsetxattr | libc::SYS_lremovexattr => {
            (FileAt::Path(at_cwd(a[0]).no_follow()), extended(a[1]))
        }
        libc::SYS_fsetxattr | libc::SYS_fremovexattr => (descriptor(a[0]), extended(a[1])),
        SETXATTRAT | REMOVEXATTRAT => (FileAt::Path(at(a[0], a[1]).flagged(a[2])), extended(a[3])),
        _ => return None,
    };
    Some(Change::Attributes(file, attribute))
}

/// Returns an id that a call sets. -1 means that the call does not change the id.
fn id(argument: u64) -> Option<u32> {
    Some(argument as u32).filter(|id| *id != u32::MAX)
}

fn other(call: &Call) -> Change {
    Change::Unknown(match call.number {
        libc::SYS_io_uring_setup => "io_uring",
        libc::SYS_open_by_handle_at => "a file that was opened by its handle (open_by_handle_at)",
        libc::SYS_ioctl => "a request to a file system (ioctl)",
        libc::SYS_mount | libc::SYS_umount2 | libc::SYS_move_mount | libc::SYS_pivot_root => {
            "a change of mounts"
        }
        libc::SYS_chroot | libc::SYS_unshare | libc::SYS_setns => "a root directory or namespace of its own",
        _ => "a call that is newer than this program",
    })
}

fn flags(bits: u64) -> OFlags {
    OFlags::from_bits_retain(bits as u32)
}

fn descriptor(number: u64) -> FileAt {
    FileAt::Descriptor(Fd(number as i32))
}

fn at_cwd(path: u64) -> PathAt {
    PathAt { directory: None, path: Address(path), follows: true, may_be_empty: false }
}

fn at(directory: u64, path: u64) -> PathAt {
    let number = directory as c_int;
    let directory = (number != CWD.as_raw_fd()).then_some(Fd(number));
    PathAt { directory, path: Address(path), follows: true, may_be_empty: false }
}

impl PathAt {
    fn no_follow(self) -> Self {
        Self { follows: false, ..self }
    }

    fn flagged(self, flags: u64) -> Self {
        let flags = AtFlags::from_bits_retain(flags as u32);
        Self {
            follows: !flags.contains(AtFlags::SYMLINK_NOFOLLOW),
            may_be_empty: flags.contains(AtFlags::EMPTY_PATH),
            ..self
        }
    }
}

/// Reports whether an open with these flags can create or change a file, or allows the subject to change the file
/// later.
pub(super) fn changes(flags: OFlags) -> bool {
    !flags.contains(OFlags::PATH)
        && (flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC))
}

/// Reports whether each write through a description with these flags makes its data durable (O_DSYNC, O_SYNC).
pub(super) fn is_written_through(flags: OFlags) -> bool {
    // O_SYNC contains the bit of O_DSYNC. `OFlags::DSYNC` of rustix has both bits of O_SYNC.
    flags.bits() & libc::O_DSYNC as u32 != 0 && flags.intersects(OFlags::WRONLY | OFlags::RDWR)
}

/// Reports whether an open with these flags creates a file without a name (O_TMPFILE).
pub(super) fn is_nameless(flags: OFlags) -> bool {
    flags.contains(OFlags::TMPFILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: i64, arguments: [u64; 6]) -> Change {
        change_of(&Call { number, arguments, is_native: true })
    }

    #[test]
    fn directories_of_paths_are_descriptors_or_the_working_directory() {
        let cwd = CWD.as_raw_fd() as u64;
        assert!(matches!(
            call(libc::SYS_openat, [cwd, 7, 1, 0, 0, 0]),
            Change::Open(PathAt { directory: None, follows: true, .. }, OFlags::WRONLY)
        ));
        // The argument is an int. The kernel ignores the upper half of the register.
        assert!(matches!(
            call(libc::SYS_unlinkat, [0xdead_0000_0000_0005, 7, 0, 0, 0, 0]),
            Change::Remove { at: PathAt { directory: Some(Fd(5)), follows: false, .. }, is_directory: false }
        ));
    }

    #[test]
    fn what_moves_the_rest_of_a_file_changes_all_behind_its_start() {
        assert_eq!(
            call(libc::SYS_fallocate, [3, COLLAPSE_RANGE, 4096, 8192, 0, 0]),
            Change::Range { file: FileAt::Descriptor(Fd(3)), offset: 4096, length: None }
        );
        assert_eq!(
            call(libc::SYS_fallocate, [3, 3, 4096, 8192, 0, 0]),
            Change::Range { file: FileAt::Descriptor(Fd(3)), offset: 4096, length: Some(8192) }
        );
    }

    #[test]
    fn submitted_requests_count_as_syncs_and_change_nothing_by_themselves() {
        let submit = Call { number: libc::SYS_io_submit, arguments: [0; 6], is_native: true };
        assert!(is_sync(&submit));
        assert_eq!(change_of(&submit), Change::Nothing);
    }

    #[test]
    fn times_of_a_descriptor_have_no_path() {
        let change = call(libc::SYS_utimensat, [4, 0, 0, 0, 0, 0]);
        let present = Attribute::Times { values: None, is_fine: true };
        assert_eq!(change, Change::Attributes(FileAt::Descriptor(Fd(4)), present));
    }

    #[test]
    fn what_is_not_known_is_said() {
        assert!(matches!(call(9999, [0; 6]), Change::Unknown(_)));
        let foreign = Call { number: libc::SYS_read, arguments: [0; 6], is_native: false };
        assert!(matches!(change_of(&foreign), Change::Unknown(_)));
    }
}
