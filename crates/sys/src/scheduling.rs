//! Reads and sets how another thread is scheduled.
//!
//! Owns: sched_getattr(2), sched_setattr(2), and CPU affinity and I/O priority by tid.
//! Invariants: structures that are passed to the kernel are owned by this module or borrowed for the whole call.
//! Does not: check values; the kernel refuses values that a user may not set.
//!
//! Man page: sched_setattr(2), sched_setaffinity(2), ioprio_set(2)
//! Since: Linux 3.14
//! Probe: none needed
//! Fallback: none needed

use std::mem::{offset_of, size_of};

use model::Tid;

use crate::error::{Errno, Error, Result};

/// Size of a processor set in 64-bit words, for 8192 processors, the most that a kernel can be built for.
const AFFINITY_WORDS_MAX: usize = 128;
/// IOPRIO_WHO_PROCESS of ioprio_set(2).
const WHO_PROCESS: libc::c_int = 1;

/// `struct sched_attr` of sched_setattr(2). Fields that an older kernel does not know are zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Size of this structure in bytes.
    pub size: u32,
    /// Scheduling policy (SCHED_*).
    pub policy: u32,
    /// Flags (SCHED_FLAG_*).
    pub flags: u64,
    /// Nice value for the normal policies, -20 to 19.
    pub nice: i32,
    /// Priority for the real-time policies, 1 to 99.
    pub priority: u32,
    /// Runtime of SCHED_DEADLINE in nanoseconds. For the normal policies: the time slice in nanoseconds, since
    /// Linux 6.12.
    pub runtime: u64,
    /// Deadline of SCHED_DEADLINE in nanoseconds.
    pub deadline: u64,
    /// Period of SCHED_DEADLINE in nanoseconds.
    pub period: u64,
    /// Lower clamp of the utilisation, 0 to 1024.
    pub utilisation_min: u32,
    /// Upper clamp of the utilisation, 0 to 1024.
    pub utilisation_max: u32,
}

const _: () = assert!(size_of::<Attributes>() == 56);
const _: () = assert!(offset_of!(Attributes, runtime) == 24);
const _: () = assert!(offset_of!(Attributes, utilisation_max) == 52);

/// Reads the scheduling policy of a thread and the parameters of the policy.
pub fn attributes(tid: Tid) -> Result<Attributes> {
    let mut attributes = Attributes::default();
    let size = size_of::<Attributes>();
    // SAFETY: the kernel writes at most `size` bytes to a live structure of that size.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_getattr, tid.get(), &raw mut attributes, size, 0_u32) };
    done("read the scheduling", tid, result).map(|_| attributes)
}

/// Sets the scheduling policy of a thread and the parameters of the policy.
pub fn set_attributes(tid: Tid, attributes: &Attributes) -> Result<()> {
    let attributes = Attributes { size: size_of::<Attributes>() as u32, ..*attributes };
    // SAFETY: the kernel reads `size` bytes of a live structure of that size.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, tid.get(), &raw const attributes, 0_u32) };
    done("set the scheduling", tid, result).map(drop)
}

/// Reads the processors that a thread may run on, with one bit for each processor.
pub fn affinity(tid: Tid) -> Result<Vec<u64>> {
    let mut words = [0_u64; AFFINITY_WORDS_MAX];
    let size = size_of_val(&words);
    // SAFETY: the kernel writes at most `size` bytes to a live array of that size.
    let result = unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid.get(), size, words.as_mut_ptr()) };
    let bytes = done("read the affinity", tid, result)?;
    Ok(words[..bytes as usize / size_of::<u64>()].to_vec())
}

/// Sets the processors that a thread may run on. The kernel ignores processors that do not exist.
pub fn set_affinity(tid: Tid, words: &[u64]) -> Result<()> {
    let size = size_of_val(words);
    // SAFETY: the kernel reads `size` bytes of a live slice of that size.
    let result = unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid.get(), size, words.as_ptr()) };
    done("set the affinity", tid, result).map(drop)
}

/// Reads the I/O priority of a thread: class and level in the encoding of ioprio_set(2).
pub fn io_priority(tid: Tid) -> Result<u32> {
    // SAFETY: plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, tid.get()) };
    done("read the I/O priority", tid, result).map(|priority| priority as u32)
}

/// Sets the I/O priority of a thread, in the encoding of ioprio_set(2).
pub fn set_io_priority(tid: Tid, priority: u32) -> Result<()> {
    // SAFETY: plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, tid.get(), priority) };
    done("set the I/O priority", tid, result).map(drop)
}

fn done(operation: &'static str, tid: Tid, result: libc::c_long) -> Result<libc::c_long> {
    if result < 0 { Err(Error::thread(operation, tid, Errno::last())) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_can_be_set() {
        // Tid 0 is the calling thread.
        let tid = Tid(0);
        let attributes = attributes(tid).unwrap();
        assert!(attributes.size >= 48);
        set_attributes(tid, &attributes).unwrap();
        let words = affinity(tid).unwrap();
        assert!(words.iter().any(|word| *word != 0));
        set_affinity(tid, &words).unwrap();
        assert_eq!(affinity(tid).unwrap(), words);
        set_io_priority(tid, io_priority(tid).unwrap()).unwrap();
    }

    #[test]
    fn processors_that_do_not_exist_are_an_error_that_names_the_thread() {
        let mut words = vec![0; AFFINITY_WORDS_MAX];
        words[AFFINITY_WORDS_MAX - 1] = 1 << 63;
        let error = set_affinity(Tid(0), &words).unwrap_err();
        assert_eq!(error.errno, Errno::EINVAL);
    }
}
