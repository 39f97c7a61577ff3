//! The processor state of a stopped thread: general registers, extended registers and rseq registration.
//!
//! Owns: the kernel's layout of the x86-64 general registers and of the rseq registration.
//! Does not: interpret registers as arguments of a system call or as a signal frame.
//!
//! Man page: ptrace(2), rseq(2)
//! Since: Linux 5.4 (PTRACE_GETREGSET 2.6.34, PTRACE_GET_RSEQ_CONFIGURATION 5.13)
//! Probe: `features::REGISTRY` entry "ptrace"
//! Fallback: none; a checkpoint needs the registers

use std::mem::{offset_of, size_of, transmute};

use model::Tid;

use super::requests::request;
use crate::error::Result;

/// Most bytes of extended register state that are read from the kernel. With AMX, the state has about 11 KiB.
pub const XSTATE_BYTES_MAX: usize = 16 * 1024;

const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
const NT_X86_XSTATE: usize = 0x202;

/// General registers of a 64-bit thread, in the layout of PTRACE_GETREGS.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the field names are the register names")]
pub struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub eflags: u64,
    pub rsp: u64,
    pub ss: u64,
    pub fs_base: u64,
    pub gs_base: u64,
    pub ds: u64,
    pub es: u64,
    pub fs: u64,
    pub gs: u64,
}

const _: () = assert!(size_of::<Registers>() == 216);
const _: () = assert!(size_of::<Registers>() == size_of::<libc::user_regs_struct>());
const _: () = assert!(offset_of!(Registers, orig_rax) == 120);
const _: () = assert!(offset_of!(Registers, rip) == 128);
const _: () = assert!(offset_of!(Registers, fs_base) == 168);

impl Registers {
    /// Returns the registers as words, in the order of the structure.
    #[must_use]
    pub fn to_words(&self) -> [u64; 27] {
        // SAFETY: the structure is `repr(C)` and has 27 fields of type u64, thus no padding.
        unsafe { transmute::<Self, [u64; 27]>(*self) }
    }

    /// Builds the registers from words in the order of [`Self::to_words`].
    #[must_use]
    pub fn from_words(words: &[u64; 27]) -> Self {
        // SAFETY: the layout is that of `to_words`, and every u64 is a valid value of a field.
        unsafe { transmute::<[u64; 27], Self>(*words) }
    }
}

/// The rseq(2) registration of a thread, in the layout of PTRACE_GET_RSEQ_CONFIGURATION.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RseqConfiguration {
    /// Address of the registered `struct rseq`; zero without a registration.
    pub address: u64,
    /// Length of the registered `struct rseq` in bytes.
    pub length: u32,
    /// Signature that precedes each abort handler.
    pub signature: u32,
    /// Flags of the registration.
    pub flags: u32,
    /// Padding of the kernel's structure.
    pub pad: u32,
}

const _: () = assert!(size_of::<RseqConfiguration>() == 24);
const _: () = assert!(offset_of!(RseqConfiguration, signature) == 12);

/// Reads the general registers of a stopped tracee.
pub fn registers(tid: Tid) -> Result<Registers> {
    let mut registers = Registers::default();
    request("read the registers", libc::PTRACE_GETREGS, tid, 0, (&raw mut registers) as usize)?;
    Ok(registers)
}

/// Writes the general registers of a stopped tracee.
pub fn set_registers(tid: Tid, registers: &Registers) -> Result<()> {
    request("write the registers", libc::PTRACE_SETREGS, tid, 0, std::ptr::from_ref(registers) as usize)
        .map(drop)
}

/// Reads the extended state (x87, SSE, AVX …) of a stopped tracee into `buffer`, in the XSAVE layout of the user
/// ABI. Returns the number of valid bytes.
pub fn extended_state(tid: Tid, buffer: &mut [u8; XSTATE_BYTES_MAX]) -> Result<usize> {
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    request(
        "read the extended registers",
        libc::PTRACE_GETREGSET as libc::c_uint,
        tid,
        NT_X86_XSTATE,
        (&raw mut vector) as usize,
    )?;
    Ok(vector.iov_len)
}

/// Writes the extended state of a stopped tracee.
pub fn set_extended_state(tid: Tid, state: &[u8]) -> Result<()> {
    let mut vector = libc::iovec { iov_base: state.as_ptr().cast_mut().cast(), iov_len: state.len() };
    request(
        "write the extended registers",
        libc::PTRACE_SETREGSET as libc::c_uint,
        tid,
        NT_X86_XSTATE,
        (&raw mut vector) as usize,
    )
    .map(drop)
}

/// Reads the rseq registration of a stopped tracee.
pub fn rseq_configuration(tid: Tid) -> Result<RseqConfiguration> {
    let mut configuration = RseqConfiguration::default();
    request(
        "read the rseq registration",
        PTRACE_GET_RSEQ_CONFIGURATION,
        tid,
        size_of::<RseqConfiguration>(),
        (&raw mut configuration) as usize,
    )?;
    Ok(configuration)
}
