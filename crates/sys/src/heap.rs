//! The limits of the C library's heap, for a process with many threads that are mostly idle.
//!
//! Without limits, the C library makes up to eight arenas (separate heaps) per processor, and keeps up to 64 MiB of freed
//! memory at the end of each. It raises the size from which an allocation has a mapping of its own after each free of such
//! an allocation. A guardian of many subjects then keeps the freed memory of the start of each subject.
//!
//! Owns: the limits.
//! Invariants: none of the limits makes an allocation fail.
//! Does not: replace the allocator.
//!
//! Man page: mallopt(3)
//! Since: glibc 2.10 (number of arenas)
//! Probe: none needed; an unknown limit is ignored
//! Fallback: the process uses more memory

use std::sync::Once;

/// The number of arenas. More arenas help only threads that allocate at the same time.
const ARENAS: i32 = 4;
/// From this size on, an allocation has a mapping of its own, which a free gives back to the kernel.
const MAPPED_FROM: i32 = 1 << 20;
/// The maximum of the freed memory that is kept at the end of an arena.
const KEPT_MAX: i32 = 1 << 20;

/// Sets the limits. Must be called before the threads of the process allocate.
pub fn limit() {
    static LIMITED: Once = Once::new();
    LIMITED.call_once(|| {
        #[cfg(target_env = "gnu")]
        for (limit, value) in [
            (libc::M_ARENA_MAX, ARENAS),
            (libc::M_MMAP_THRESHOLD, MAPPED_FROM),
            (libc::M_TRIM_THRESHOLD, KEPT_MAX),
        ] {
            // SAFETY: mallopt takes plain numbers, and is safe to call at any time.
            unsafe { libc::mallopt(limit, value) };
        }
    });
}
