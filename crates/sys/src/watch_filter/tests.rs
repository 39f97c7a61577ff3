//! Tests which calls the filters report, with an interpreter of classic BPF.
//!
//! Owns: tests.
//! Invariants: the interpreter supports the instructions that the filters use, and fails on any other instruction.
//! Does not: install a filter.

use super::calls::CLONE_NEWNS;
use super::*;

const RDWR_CREAT: u64 = 0x42;

fn load(data: &[u8], at: u32) -> u32 {
    u32::from_ne_bytes(data[at as usize..at as usize + 4].try_into().unwrap())
}

/// Returns the action of the filter of a watched subject for a call; `None` if the filter loads an argument and
/// `arguments` is `None`.
fn run(architecture: u32, number: u32, arguments: Option<[u64; 6]>) -> Option<u32> {
    run_program(&watch_program(), architecture, number, arguments)
}

/// Returns the action of any filter for a call, as [`run`] does.
fn run_program(
    program: &FilterProgram,
    architecture: u32,
    number: u32,
    arguments: Option<[u64; 6]>,
) -> Option<u32> {
    let mut data = number.to_ne_bytes().to_vec();
    data.extend(architecture.to_ne_bytes());
    data.extend([0; 8]);
    data.extend(arguments.unwrap_or_default().iter().flat_map(|argument| argument.to_ne_bytes()));
    let (mut at, mut accumulator) = (0, 0_u32);
    loop {
        let Instruction { code, if_true, if_false, constant } = program.instructions[at];
        at += 1;
        let mut branch = |holds: bool| at += usize::from(if holds { if_true } else { if_false });
        match code {
            LOAD_ABSOLUTE if constant >= ARGUMENTS_AT && arguments.is_none() => return None,
            LOAD_ABSOLUTE => accumulator = load(&data, constant),
            AND => accumulator &= constant,
            JUMP => at += constant as usize,
            JUMP_IF_EQUAL => branch(accumulator == constant),
            JUMP_IF_ANY_BIT => branch(accumulator & constant != 0),
            RETURN => return Some(constant),
            other => panic!("instruction {other:#x}"),
        }
    }
}

fn notifies(architecture: u32, number: i64, arguments: [u64; 6]) -> bool {
    match run(architecture, number as u32, Some(arguments)) {
        Some(NOTIFY) => true,
        Some(ALLOW) => false,
        other => panic!("{other:?}"),
    }
}

fn native(number: i64, arguments: [u64; 6]) -> bool {
    notifies(AUDIT_ARCH_X86_64, number, arguments)
}

fn with(index: usize, value: u64) -> [u64; 6] {
    let mut arguments = [0; 6];
    arguments[index] = value;
    arguments
}

/// The kinds of all filters of this program.
const ALL: [Reported; 3] = [Reported::Files, Reported::Channels, Reported::FilesAndChannels];

#[test]
fn the_mark_is_found_and_is_no_more_than_a_mark() {
    for reported in ALL {
        let bytes = filter_program(reported).bytes();
        assert!(is_own(&bytes));
        assert!(bytes.len() <= OWN_INSTRUCTIONS_MAX * INSTRUCTION_BYTES, "{}", bytes.len());
        assert!(!is_own(&bytes[INSTRUCTION_BYTES..]));
        assert!(!is_own(&[]) && !is_own(&bytes[..12]));
    }
}

#[test]
fn what_the_kernel_takes_is_what_it_is_built_from() {
    ALL.into_iter().for_each(|reported| check_jumps(&filter_program(reported)));
}

fn check_jumps(program: &FilterProgram) {
    let length = program.instructions.len();
    for (index, instruction) in program.instructions.iter().enumerate() {
        let Instruction { code, if_true, if_false, constant } = *instruction;
        let furthest = match code {
            JUMP => constant as usize,
            JUMP_IF_EQUAL | JUMP_IF_ANY_BIT => usize::from(if_true.max(if_false)),
            _ => 0,
        };
        assert!(index + 1 + furthest < length || (code == RETURN && index + 1 == length), "{index}");
    }
    assert_eq!(program.instructions.last().unwrap().code, RETURN);
}

#[test]
fn opens_are_reported_if_they_can_change_something() {
    let flags = [libc::O_WRONLY, libc::O_RDWR, libc::O_CREAT, libc::O_TRUNC, libc::O_TMPFILE | libc::O_RDWR];
    for flag in flags {
        assert!(native(libc::SYS_open, with(1, flag as u64)), "{flag:#o}");
        assert!(native(libc::SYS_openat, with(2, flag as u64)), "{flag:#o}");
        assert!(native(libc::SYS_open_by_handle_at, with(2, flag as u64)), "{flag:#o}");
        assert!(notifies(AUDIT_ARCH_I386, 5, with(1, flag as u64)));
        assert!(notifies(AUDIT_ARCH_I386, 295, with(2, flag as u64)));
    }
    let reads = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_DIRECTORY | libc::O_PATH | libc::O_NOFOLLOW;
    assert!(!native(libc::SYS_open, with(1, reads as u64)));
    assert!(!native(libc::SYS_openat, with(2, reads as u64)));
    assert!(!native(libc::SYS_open_by_handle_at, with(2, reads as u64)));
    assert!(!notifies(AUDIT_ARCH_I386, 5, with(1, reads as u64)));
    // Argument 3 is the mode, which is unused without O_CREAT.
    assert!(!native(libc::SYS_openat, with(3, 0o666)));
}

#[test]
fn calls_that_always_change_something_are_reported() {
    let calls = [
        libc::SYS_creat,
        libc::SYS_openat2,
        libc::SYS_unlink,
        libc::SYS_unlinkat,
        libc::SYS_rename,
        libc::SYS_renameat,
        libc::SYS_renameat2,
        libc::SYS_link,
        libc::SYS_linkat,
        libc::SYS_symlink,
        libc::SYS_symlinkat,
        libc::SYS_mkdir,
        libc::SYS_mkdirat,
        libc::SYS_rmdir,
        libc::SYS_mknod,
        libc::SYS_mknodat,
        libc::SYS_truncate,
        libc::SYS_ftruncate,
        libc::SYS_fallocate,
        libc::SYS_chmod,
        libc::SYS_fchmod,
        libc::SYS_fchmodat,
        libc::SYS_fchmodat2,
        libc::SYS_chown,
        libc::SYS_fchown,
        libc::SYS_lchown,
        libc::SYS_fchownat,
        libc::SYS_utime,
        libc::SYS_utimes,
        libc::SYS_futimesat,
        libc::SYS_utimensat,
        libc::SYS_setxattr,
        libc::SYS_lsetxattr,
        libc::SYS_fsetxattr,
        libc::SYS_removexattr,
        libc::SYS_lremovexattr,
        libc::SYS_fremovexattr,
        libc::SYS_io_uring_setup,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_move_mount,
        libc::SYS_fsmount,
        libc::SYS_pivot_root,
        libc::SYS_chroot,
        libc::SYS_bind,
        463,
        466,
        467,
        469,
    ];
    for call in calls {
        assert!(native(call, [0; 6]), "{call}");
        assert!(native(call | i64::from(X32_BIT), [0; 6]), "{call} of x32");
    }
}

#[test]
fn calls_that_change_nothing_cost_nothing() {
    let calls = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_pwrite64,
        libc::SYS_pwritev,
        libc::SYS_close,
        libc::SYS_fstat,
        libc::SYS_newfstatat,
        libc::SYS_execve,
        libc::SYS_sendmsg,
        libc::SYS_recvmsg,
        libc::SYS_futex,
        libc::SYS_mprotect,
        libc::SYS_munmap,
        libc::SYS_rt_sigreturn,
        libc::SYS_clone3,
        libc::SYS_exit_group,
        libc::SYS_getxattr,
        libc::SYS_readlinkat,
        libc::SYS_close_range,
    ];
    for call in calls {
        assert_eq!(run(AUDIT_ARCH_X86_64, call as u32, None), Some(ALLOW), "{call}");
    }
    // The calls of i386 are read, write, close, execve and mprotect.
    for call in [3, 4, 6, 11, 125] {
        assert_eq!(run(AUDIT_ARCH_I386, call, None), Some(ALLOW), "{call}");
    }
    assert_eq!(run(AUDIT_ARCH_X86_64, u32::MAX, None), Some(ALLOW));
}

#[test]
fn mappings_are_reported_if_files_can_be_changed_through_them() {
    let map = |flags: i32, fd: u64| native(libc::SYS_mmap, [0, 4096, 3, flags as u64, fd, 0]);
    assert!(map(libc::MAP_SHARED, 3) && map(libc::MAP_SHARED_VALIDATE, 3));
    assert!(!map(libc::MAP_PRIVATE, 3) && !map(libc::MAP_PRIVATE | libc::MAP_FIXED, 3));
    assert!(!map(libc::MAP_SHARED | libc::MAP_ANONYMOUS, u64::MAX));
    assert!(!map(libc::MAP_SHARED | libc::MAP_ANONYMOUS, 3));
    assert!(!map(libc::MAP_SHARED, u64::from(u32::MAX)));
    assert!(notifies(AUDIT_ARCH_I386, 90, [0; 6]) && notifies(AUDIT_ARCH_I386, 192, with(3, 1)));
}

#[test]
fn flags_requests_and_namespaces_are_inspected() {
    let set = |command: i32, flags: i32| native(libc::SYS_fcntl, [3, command as u64, flags as u64, 0, 0, 0]);
    assert!(set(libc::F_SETFL, 0) && set(libc::F_SETFL, libc::O_NONBLOCK));
    assert!(!set(libc::F_SETFL, libc::O_APPEND | libc::O_NONBLOCK));
    assert!(!set(libc::F_GETFL, 0) && !set(libc::F_SETFD, 1) && !set(libc::F_SETLKW, 0));
    assert!(native(libc::SYS_ioctl, with(1, libc::FICLONE)) && native(libc::SYS_ioctl, with(1, 0x4008_6602)));
    assert!(
        !native(libc::SYS_ioctl, with(1, libc::TCGETS)) && !native(libc::SYS_ioctl, with(1, 0x8008_6601))
    );
    assert!(native(libc::SYS_pwritev2, with(5, 0x20)) && !native(libc::SYS_pwritev2, with(5, 0x10)));
    assert!(native(547 | i64::from(X32_BIT), with(5, 0x20)));
    assert!(native(libc::SYS_madvise, with(2, 9)) && !native(libc::SYS_madvise, with(2, 4)));
    assert!(native(libc::SYS_process_madvise, with(3, 9)) && !native(libc::SYS_process_madvise, with(3, 4)));
    let namespace = u64::from(CLONE_NEWNS);
    assert!(native(libc::SYS_unshare, with(0, namespace)) && !native(libc::SYS_unshare, with(0, 0x400)));
    assert!(native(libc::SYS_clone, with(0, namespace | 17)) && !native(libc::SYS_clone, with(0, 17)));
    assert!(native(libc::SYS_setns, [0; 6]) && native(libc::SYS_setns, with(1, namespace)));
    assert!(!native(libc::SYS_setns, with(1, 0x4000_0000)));
    assert!(native(libc::SYS_open_tree, with(2, 1)) && !native(libc::SYS_open_tree, with(2, 0x8_0000)));
    assert!(notifies(AUDIT_ARCH_I386, 102, with(0, 2)) && !notifies(AUDIT_ARCH_I386, 102, with(0, 3)));
    assert!(native(libc::SYS_openat, with(2, RDWR_CREAT)));
}

const FASTOPEN: u64 = libc::MSG_FASTOPEN as u64;

/// Returns architecture, number and arguments of every way to call bind, connect or listen, and of every send that
/// connects.
fn socket_calls() -> Vec<(u32, i64, [u64; 6])> {
    let mut calls = Vec::new();
    for number in [libc::SYS_bind, libc::SYS_connect, libc::SYS_listen] {
        calls.push((AUDIT_ARCH_X86_64, number, [0; 6]));
        calls.push((AUDIT_ARCH_X86_64, number | i64::from(X32_BIT), [0; 6]));
    }
    calls.extend([361, 362, 363].map(|number| (AUDIT_ARCH_I386, number, [0; 6])));
    calls.extend([2, 3, 4].map(|request| (AUDIT_ARCH_I386, 102, with(0, request))));
    calls.extend(sends().map(|(architecture, number, flags)| (architecture, number, with(flags, FASTOPEN))));
    calls
}

/// Returns architecture, number and argument of the flags of every way to send with flags.
fn sends() -> impl Iterator<Item = (u32, i64, usize)> {
    let native = [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)];
    let x32 = [(libc::SYS_sendto, 3), (518, 2), (538, 3)];
    let i386 = [(369, 3), (370, 2), (345, 3)];
    let of = |architecture, number, flags| (architecture, number, flags);
    let native = native.into_iter().map(move |(number, flags)| of(AUDIT_ARCH_X86_64, number, flags));
    let x32 =
        x32.into_iter().map(move |(number, flags)| of(AUDIT_ARCH_X86_64, number | i64::from(X32_BIT), flags));
    native.chain(x32).chain(i386.into_iter().map(move |(number, flags)| of(AUDIT_ARCH_I386, number, flags)))
}

#[test]
fn channels_are_reported_by_their_filters_alone() {
    for (architecture, number, arguments) in socket_calls() {
        for reported in [Reported::Channels, Reported::FilesAndChannels] {
            let action = run_program(&filter_program(reported), architecture, number as u32, Some(arguments));
            assert_eq!(action, Some(NOTIFY), "{reported:?} {number}");
        }
    }
    assert!(!native(libc::SYS_connect, [0; 6]) && !native(libc::SYS_listen, [0; 6]));
    let program = filter_program(Reported::Channels);
    let allows = |architecture, number: i64, arguments| {
        run_program(&program, architecture, number as u32, arguments) == Some(ALLOW)
    };
    for (architecture, number, flags) in sends() {
        assert!(allows(architecture, number, Some(with(flags, libc::MSG_NOSIGNAL as u64))), "{number}");
    }
    // The filter must not load an argument, so that the kernel can allow these calls in advance.
    for number in (0..500).filter(|number| ![42, 44, 46, 49, 50, 307].contains(number)) {
        assert!(allows(AUDIT_ARCH_X86_64, number, None), "{number}");
    }
    for number in (0..500).filter(|number| ![102, 345, 361, 362, 363, 369, 370].contains(number)) {
        assert!(allows(AUDIT_ARCH_I386, number, None), "{number} of i386");
    }
    for request in [1, 5, 9, 20] {
        assert!(allows(AUDIT_ARCH_I386, 102, Some(with(0, request))), "{request} of socketcall");
    }
}

#[test]
fn a_filter_of_both_reports_what_either_reports() {
    let (files, channels) = (filter_program(Reported::Files), filter_program(Reported::Channels));
    let both = filter_program(Reported::FilesAndChannels);
    assert_eq!(both.reported(), Reported::FilesAndChannels);
    for architecture in [AUDIT_ARCH_X86_64, AUDIT_ARCH_I386] {
        for number in 0..600 {
            for arguments in [[0; 6], [1; 6], [2; 6], [4; 6], [0x41; 6], [u64::MAX; 6]] {
                let action = |program| run_program(program, architecture, number, Some(arguments));
                let wanted = if action(&files) == Some(NOTIFY) { NOTIFY } else { action(&channels).unwrap() };
                assert_eq!(action(&both), Some(wanted), "{architecture:#x} {number} {arguments:?}");
            }
        }
    }
}

#[test]
fn calls_that_make_data_durable_are_reported() {
    for number in [libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_sync, libc::SYS_syncfs] {
        assert!(native(number, [0; 6]), "{number}");
    }
    assert!(native(libc::SYS_msync, with(2, libc::MS_SYNC as u64)));
    assert!(!native(libc::SYS_msync, with(2, libc::MS_ASYNC as u64)));
    for flag in [libc::RWF_DSYNC, libc::RWF_SYNC] {
        assert!(native(libc::SYS_pwritev2, with(5, flag as u64)));
    }
    assert!(!native(libc::SYS_pwritev2, with(5, libc::RWF_HIPRI as u64)));
    for number in [118, 148, 36, 344] {
        assert!(notifies(AUDIT_ARCH_I386, number, [0; 6]), "{number}");
    }
    assert!(notifies(AUDIT_ARCH_I386, 144, with(2, 4)));
    assert!(!notifies(AUDIT_ARCH_I386, 144, with(2, 1)));
}
