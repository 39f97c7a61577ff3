//! Describes x86-64 for remote system calls: gadgets, signal frames, and interrupted system calls.
//!
//! Owns: every constant of this architecture outside `sys`.
//! Invariants: rt_sigreturn(2) of this architecture accepts the frames that are built here.
//! Does not: read or write a process.

use model::{Address, AddressRange, ByteCount, Fd};
use sys::ptrace::Registers;

use crate::arch::numbers as nr;

/// `syscall; ret`.
pub const SYSCALL_RETURN: &[u8] = &[0x0f, 0x05, 0xc3];
/// `leave; ret`.
pub const LEAVE_RETURN: &[u8] = &[0xc9, 0xc3];
/// `ret`.
pub const RETURN: &[u8] = &[0xc3];
/// `syscall`.
pub const SYSCALL: &[u8] = &[0x0f, 0x05];
/// The two instruction sequences with which signal restorers call rt_sigreturn(2).
pub const SIGNAL_RESTORERS: &[&[u8]] =
    &[&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]];

/// Bytes of the longest signal restorer.
pub const LONGEST_RESTORER: usize = 9;

/// `mov %rax, (%rdi); ret`, which stores the result of a call.
pub const STORE_AT_FIRST_ARGUMENT: &[u8] = &[0x48, 0x89, 0x07, 0xc3];
/// `mov %rax, (%rsi); ret`.
pub const STORE_AT_SECOND_ARGUMENT: &[u8] = &[0x48, 0x89, 0x06, 0xc3];
/// `mov %rax, (%rdx); ret`.
pub const STORE_AT_THIRD_ARGUMENT: &[u8] = &[0x48, 0x89, 0x02, 0xc3];
/// `pop %rdi; ret`, which is also the end of `pop %r15; ret`.
pub const POP_FIRST_ARGUMENT: &[u8] = &[0x5f, 0xc3];
/// `pop %rsi; ret`, which is also the end of `pop %r14; ret`.
pub const POP_SECOND_ARGUMENT: &[u8] = &[0x5e, 0xc3];
/// `pop %rax; ret`.
pub const POP_NUMBER: &[u8] = &[0x58, 0xc3];
/// `pop %rdx; ret`.
pub const POP_THIRD_ARGUMENT: &[u8] = &[0x5a, 0xc3];
/// `pop %rdx; pop %rbx; ret`.
pub const POP_THIRD_ARGUMENT_AND_RBX: &[u8] = &[0x5a, 0x5b, 0xc3];
/// Bytes below the stack pointer that a function may use without moving the stack pointer.
pub const RED_ZONE: ByteCount = ByteCount(128);

/// First address above user space, if page tables have four levels. The guard page begins here.
pub const USER_SPACE_END: Address = Address(0x7fff_ffff_f000);

const UC_FP_XSTATE: u64 = 1;
const UC_SIGCONTEXT_SS: u64 = 2;
const UC_STRICT_RESTORE_SS: u64 = 4;
/// The fields uc_flags, uc_link and uc_stack of a restore frame. The flags in uc_stack are invalid, so
/// rt_sigreturn(2) does not change the alternate stack of the thread.
const RESTORE_FRAME_MARK: [u64; 5] =
    [UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS, 0, 0, u32::MAX as u64, 0];
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
/// Offset of the software bytes (`struct _fpx_sw_bytes`) in the legacy area of an XSAVE image.
const SOFTWARE_BYTES: usize = 464;
/// XSAVE components that a thread must request with arch_prctl(ARCH_REQ_XCOMP_PERM): AMX tile data.
const ON_REQUEST: u64 = 1 << 18;
/// Offset of the XSAVE header. The first word of the header is the set of components in use.
const XSAVE_HEADER: usize = 512;
const XSTATE_ALIGNMENT: u64 = 64;
const UCONTEXT_BYTES: u64 = 304;

/// Results inside the kernel for a system call that a stop has interrupted.
const ERESTARTSYS: i64 = -512;
const ERESTARTNOINTR: i64 = -513;
const ERESTARTNOHAND: i64 = -514;
const ERESTART_RESTARTBLOCK: i64 = -516;

const EINTR: i64 = -4;
const EAGAIN: i64 = -11;
const EINPROGRESS: i64 = -115;

/// Flag of clock_nanosleep(2) for an absolute time.
const TIMER_ABSTIME: u64 = 1;

/// Bytes of the instruction `syscall`.
pub const SYSCALL_BYTES: u64 = 2;

/// Returns registers that make a system call with the `syscall` instruction at the address `instruction`.
#[must_use]
pub fn with_syscall(base: &Registers, instruction: Address, number: i64, arguments: [u64; 6]) -> Registers {
    Registers {
        rip: instruction.get(),
        rax: number as u64,
        orig_rax: u64::MAX,
        rdi: arguments[0],
        rsi: arguments[1],
        rdx: arguments[2],
        r10: arguments[3],
        r8: arguments[4],
        r9: arguments[5],
        ..*base
    }
}

/// Returns the registers for a restore frame. After rt_sigreturn(2), the kernel does not restart the call
/// that a stop has interrupted. Therefore the returned registers make the thread execute this call again.
#[must_use]
pub fn restarted(registers: &Registers) -> Registers {
    let interrupted = restarted_by_kernel(registers);
    let mut registers = interrupted.unwrap_or(*registers);
    if interrupted.is_some() {
        registers.rax = registers.orig_rax;
        registers.rip -= SYSCALL_BYTES;
    }
    registers.orig_rax = u64::MAX;
    registers
}

/// Returns the registers with which the kernel restarts the call that a stop has interrupted, or `None` if no call
/// was interrupted. The kernel restarts the call when the thread leaves an event stop. If a signal is pending,
/// the kernel decides as without the stop whether the call ends with EINTR. The returned registers do not use a
/// restart block.
#[must_use]
pub fn restarted_by_kernel(registers: &Registers) -> Option<Registers> {
    let result = registers.rax as i64;
    let is_interrupted = registers.orig_rax as i64 >= 0
        && matches!(result, ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND | ERESTART_RESTARTBLOCK);
    let mut registers = is_interrupted.then_some(*registers)?;
    if result == ERESTART_RESTARTBLOCK {
        use_remaining_time(&mut registers);
        registers = entered_again(&registers);
    }
    Some(registers)
}

/// Reports whether the kernel has a *restart block*: state for resuming the call that a stop has interrupted.
/// The kernel discards this state when the thread makes rt_sigreturn(2), or a call that uses a restart block.
#[must_use]
fn resumed_by_kernel(registers: &Registers) -> bool {
    registers.orig_rax as i64 >= 0 && registers.rax as i64 == ERESTART_RESTARTBLOCK
}

/// Changes the arguments of an interrupted relative sleep, so that the repeated call sleeps only for the
/// remaining time. At the stop, the kernel has written this time to an address that the program passed. The C
/// ABI permits a call to change its argument registers.
fn use_remaining_time(registers: &mut Registers) {
    match registers.orig_rax as i64 {
        nr::NANOSLEEP if registers.rsi != 0 => registers.rdi = registers.rsi,
        nr::CLOCK_NANOSLEEP if registers.rsi & TIMER_ABSTIME == 0 && registers.r10 != 0 => {
            registers.rdx = registers.r10
        }
        _ => {}
    }
}

/// Maximum waiting time of a call that ends with EINTR at a stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitLimit {
    /// No limit.
    None,
    /// This number of milliseconds.
    Milliseconds(u32),
    /// The time in a `struct timespec` at this address.
    Timespec(Address),
    /// The receive timeout of this socket of the process.
    Receive(Fd),
    /// The send timeout of this socket of the process.
    Send(Fd),
}

/// A system call that ends with EINTR when a stop interrupts the call. If no signal handler has run, the call
/// can be repeated without harm (signal(7), "Interruption of system calls and library functions by stop
/// signals"). close(2) is excluded, because the descriptor is closed in spite of EINTR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BrokenOff {
    /// Maximum waiting time of the call.
    pub limit: WaitLimit,
    /// Result of the call after the maximum waiting time has passed.
    pub result_late: i64,
}

/// Returns the interrupted call of a thread at an event stop, if the result in the registers is EINTR.
#[must_use]
pub fn broken_off(registers: &Registers) -> Option<BrokenOff> {
    if registers.rax as i64 != EINTR {
        return None;
    }
    let pointed = |at: u64| if at == 0 { WaitLimit::None } else { WaitLimit::Timespec(Address(at)) };
    let milliseconds = u32::try_from(registers.r10 as i32).map_or(WaitLimit::None, WaitLimit::Milliseconds);
    let socket = Fd(registers.rdi as i32);
    let (limit, result_late) = match registers.orig_rax as i64 {
        nr::EPOLL_WAIT | nr::EPOLL_PWAIT => (milliseconds, 0),
        nr::EPOLL_PWAIT2 => (pointed(registers.r10), 0),
        nr::IO_GETEVENTS | nr::IO_PGETEVENTS => (pointed(registers.r8), 0),
        nr::RT_SIGTIMEDWAIT => (pointed(registers.rdx), EAGAIN),
        nr::SEMTIMEDOP => (pointed(registers.r10), EAGAIN),
        nr::READ | nr::READV | nr::RECVFROM | nr::RECVMSG | nr::RECVMMSG | nr::ACCEPT | nr::ACCEPT4 => {
            (WaitLimit::Receive(socket), EAGAIN)
        }
        nr::WRITE | nr::WRITEV | nr::SENDTO | nr::SENDMSG | nr::SENDMMSG => (WaitLimit::Send(socket), EAGAIN),
        nr::CONNECT => (WaitLimit::Send(socket), EINPROGRESS),
        nr::SEMOP | nr::IO_URING_ENTER => (WaitLimit::None, EAGAIN),
        _ => return None,
    };
    Some(BrokenOff { limit, result_late })
}

/// Returns registers with which the kernel restarts the interrupted call of a thread at an event stop. If a
/// signal handler runs before the restart, the call ends with EINTR.
#[must_use]
pub fn entered_again(registers: &Registers) -> Registers {
    Registers { rax: ERESTARTNOHAND as u64, ..*registers }
}

/// Returns registers with which the kernel restarts a call instead of resuming it from a restart block. After
/// a restart, the registers still contain the number of the call. A restart is possible for a wait without a
/// limit, and for a wait until an absolute time. For other calls, the function returns `None`.
#[must_use]
pub fn entered_again_without_loss(registers: &Registers) -> Option<Registers> {
    const FUTEX_COMMAND: u64 = 0x7f;
    const FUTEX_WAIT_BITSET: u64 = 9;
    if !resumed_by_kernel(registers) {
        return None;
    }
    let same = match registers.orig_rax as i64 {
        nr::POLL => (registers.rdx as i32) < 0,
        nr::FUTEX => registers.rsi & FUTEX_COMMAND == FUTEX_WAIT_BITSET,
        _ => false,
    };
    same.then(|| entered_again(registers))
}

/// Returns registers with which an interrupted call returns `result`.
#[must_use]
pub fn returned(registers: &Registers, result: i64) -> Registers {
    Registers { rax: result as u64, orig_rax: u64::MAX, ..*registers }
}

/// Location of a restore frame: a signal frame from which rt_sigreturn(2) restores a thread.
#[derive(Clone, Copy, Debug)]
pub struct RestoreFrame {
    /// Start of the frame: the word with the address of the signal restorer. If the stack pointer has this
    /// value, `syscall; ret` returns to the signal restorer.
    pub start: Address,
    /// Address of the extended state (an XSAVE image) in the frame. Other frames on the restore path may
    /// refer to this extended state.
    pub state: Address,
}

impl RestoreFrame {
    /// Returns the value of rbp with which `leave; ret` returns to the signal restorer of the frame. `leave`
    /// pops the eight bytes at this address into rbp.
    #[must_use]
    pub fn frame_pointer(self) -> Address {
        self.start - ByteCount(FRAME_POINTER_BYTES)
    }
}

/// Bytes below a restore frame that `leave` pops.
pub const FRAME_POINTER_BYTES: u64 = 8;

/// Length of the head of a restore frame, which distinguishes a restore frame from other signal frames.
pub const RESTORE_FRAME_HEAD_BYTES: usize = 48;

/// Returns the address of the signal restorer from the head of a restore frame. Returns `None` if `head` is
/// not the head of a restore frame. The kernel never writes a frame with the invalid flags.
#[must_use]
pub fn restore_frame_restorer(head: &[u8; RESTORE_FRAME_HEAD_BYTES]) -> Option<Address> {
    let mut words = head.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes));
    let restorer = words.next()?;
    words.eq(RESTORE_FRAME_MARK).then_some(Address(restorer))
}

/// Returns bytes that each result of [`frame`] contains. In memory, their address is a multiple of eight.
#[must_use]
pub fn restore_frame_mark() -> Vec<u8> {
    RESTORE_FRAME_MARK.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Returns the alternate stack that a signal frame of the kernel names. Returns `None` if `head` is not the
/// start of a signal frame, or if the alternate stack has flags. An example is SS_AUTODISARM, which disables
/// the stack while a handler runs.
#[must_use]
pub fn alternate_stack(head: &[u8; RESTORE_FRAME_HEAD_BYTES]) -> Option<AddressRange> {
    // UC_FP_XSTATE, UC_SIGCONTEXT_SS and UC_STRICT_RESTORE_SS.
    const FLAGS: u64 = 7;
    let (words, _) = head.as_chunks::<8>();
    let word = |index: usize| words.get(index).map_or(u64::MAX, |word| u64::from_ne_bytes(*word));
    let (flags, link, start, mode, length) = (word(1), word(2), word(3), word(4) as u32, word(5));
    let is_frame = word(0) != 0 && flags & !FLAGS == 0 && link == 0 && mode == 0;
    let end = start.checked_add(length).filter(|_| is_frame && start != 0 && length != 0)?;
    Some(AddressRange::new(Address(start), Address(end)))
}

/// Returns the size of a restore frame with this extended state, including padding for alignment.
#[must_use]
pub fn restore_frame_bytes(extended_state: &[u8]) -> ByteCount {
    ByteCount(16 + UCONTEXT_BYTES + XSTATE_ALIGNMENT + extended_state.len() as u64 + 4 + XSTATE_ALIGNMENT)
}

/// Returns the part of an extended state that a signal frame of this thread may contain. From a longer
/// extended state, the kernel restores only the legacy area, and reports no error.
#[must_use]
pub fn extended_state_in_use(state: &[u8]) -> &[u8] {
    let length = sys::xsave::bytes_of(components_in_use(state)).min(state.len());
    &state[..length]
}

/// Returns the XSAVE components of a signal frame. A component in `ON_REQUEST` counts only if the thread uses
/// the component. Another process cannot read whether the thread has requested the component. A component
/// that the thread does not use contains no data.
fn components_in_use(state: &[u8]) -> u64 {
    let word = |at: usize| u64::from_ne_bytes(state[at..at + 8].try_into().expect("eight bytes were sliced"));
    // The software bytes of the regset image contain the components that the kernel supports.
    word(SOFTWARE_BYTES) & (!ON_REQUEST | word(XSAVE_HEADER))
}

/// Builds a restore frame that ends at or below `top`, and returns the location and the bytes of the frame.
/// `restored` contains registers that [`restarted`] has returned.
#[must_use]
pub fn restore_frame(
    top: Address,
    restored: &Registers,
    mask: u64,
    extended_state: &[u8],
    restorer: Address,
) -> (RestoreFrame, Vec<u8>) {
    let state_bytes = extended_state.len() as u64 + 4;
    let state_at = (top.get() - state_bytes) & !(XSTATE_ALIGNMENT - 1);
    let start = (state_at - UCONTEXT_BYTES - 8) & !15;
    let mut bytes = frame(restored, mask, Address(state_at), restorer);
    bytes.resize((state_at - start) as usize, 0);
    bytes.extend_from_slice(&signal_frame_state(extended_state));
    (RestoreFrame { start: Address(start), state: Address(state_at) }, bytes)
}

/// Offset of the first argument (rdi) in a frame, after the registers r8 to r15.
pub const FRAME_FIRST_ARGUMENT: u64 = 8 + 40 + 8 * 8;

/// Offset of the instruction pointer in a frame.
pub const FRAME_INSTRUCTION: u64 = 8 + 40 + 16 * 8;

/// Bytes of a frame without extended state.
pub const FRAME_BYTES: u64 = 8 + UCONTEXT_BYTES;

/// Returns the bytes of a signal frame with `registers` and with the extended state at `state`.
#[must_use]
pub fn frame(registers: &Registers, mask: u64, state: Address, restorer: Address) -> Vec<u8> {
    let next = registers;
    let mut words: Vec<u64> = vec![restorer.get()];
    words.extend(RESTORE_FRAME_MARK);
    words.extend([next.r8, next.r9, next.r10, next.r11, next.r12, next.r13, next.r14, next.r15]);
    words.extend([next.rdi, next.rsi, next.rbp, next.rbx, next.rdx, next.rax, next.rcx, next.rsp]);
    words.extend([next.rip, next.eflags, next.cs & 0xffff | (next.ss & 0xffff) << 48]);
    words.extend([0, 0, 0, 0, state.get()]);
    words.extend([0; 8]);
    words.push(mask);
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn signal_frame_state(extended_state: &[u8]) -> Vec<u8> {
    let mut state = extended_state.to_vec();
    let length = state.len() as u32;
    let features = components_in_use(&state).to_ne_bytes();
    state[SOFTWARE_BYTES..SOFTWARE_BYTES + 48].fill(0);
    state[SOFTWARE_BYTES..SOFTWARE_BYTES + 4].copy_from_slice(&FP_XSTATE_MAGIC1.to_ne_bytes());
    state[SOFTWARE_BYTES + 4..SOFTWARE_BYTES + 8].copy_from_slice(&(length + 4).to_ne_bytes());
    state[SOFTWARE_BYTES + 8..SOFTWARE_BYTES + 16].copy_from_slice(&features);
    state[SOFTWARE_BYTES + 16..SOFTWARE_BYTES + 20].copy_from_slice(&length.to_ne_bytes());
    state.extend_from_slice(&FP_XSTATE_MAGIC2.to_ne_bytes());
    debug_assert!(extended_state.len() > XSAVE_HEADER);
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_holds_tile_data_of_a_thread_that_uses_it_only() {
        const TILE_CONFIG: u64 = 1 << 17;
        let image = |used: u64| {
            let mut state = vec![0_u8; 16 * 1024];
            let supported = 7 | TILE_CONFIG | ON_REQUEST;
            state[SOFTWARE_BYTES..SOFTWARE_BYTES + 8].copy_from_slice(&supported.to_ne_bytes());
            state[XSAVE_HEADER..XSAVE_HEADER + 8].copy_from_slice(&used.to_ne_bytes());
            state
        };
        let (without, with) = (image(7), image(7 | ON_REQUEST));
        assert_eq!(extended_state_in_use(&without).len(), sys::xsave::bytes_of(7 | TILE_CONFIG));
        assert_eq!(extended_state_in_use(&with).len(), sys::xsave::bytes_of(7 | TILE_CONFIG | ON_REQUEST));
        for (state, features) in [(without, 7 | TILE_CONFIG), (with, 7 | TILE_CONFIG | ON_REQUEST)] {
            let frame = signal_frame_state(extended_state_in_use(&state));
            let written = &frame[SOFTWARE_BYTES + 8..SOFTWARE_BYTES + 16];
            assert_eq!(u64::from_ne_bytes(written.try_into().unwrap()), features);
        }
    }

    #[test]
    fn an_interrupted_call_is_entered_again_and_a_finished_one_is_not() {
        let blocked = Registers { rip: 0x1002, rax: -512_i64 as u64, orig_rax: 7, ..Registers::default() };
        let again = restarted(&blocked);
        assert_eq!((again.rip, again.rax, again.orig_rax), (0x1000, 7, u64::MAX));
        let done = Registers { rip: 0x1002, rax: -4_i64 as u64, orig_rax: 7, ..Registers::default() };
        assert_eq!(restarted(&done).rip, 0x1002);
    }

    #[test]
    fn a_restore_frame_has_the_alignment_that_the_kernel_requires() {
        let state = vec![0_u8; 2696];
        let (frame_at, bytes) =
            restore_frame(Address(0x7000_0123), &Registers::default(), 5, &state, Address(0x4000));
        assert_eq!(frame_at.start.get() % 16, 0);
        let state_at = u64::from_ne_bytes(bytes[8 + 40 + 184..8 + 40 + 192].try_into().unwrap());
        assert_eq!(state_at % 64, 0);
        assert_eq!(frame_at.start.get() + bytes.len() as u64, state_at + state.len() as u64 + 4);
        assert!(bytes.len() as u64 <= restore_frame_bytes(&state).get());
    }
}
