//! The memory that the guardian shares with its listener holders. The parent module defines *guardian*, *subject*,
//! *listener* and *held call*.
//!
//! Owns: the mapping; the buffers for received notifications; the table of held calls.
//! Invariants: every call that the guardian has received and not answered is in a buffer or in the table.
//! Does not: answer calls.
//!
//! Man page: mmap(2), madvise(2)
//! Since: Linux 2.6.16 (MADV_DONTFORK)
//! Probe: `features::REGISTRY` entry "file-notify"
//! Fallback: none; the files of an unwatched program are not restored together with the program

use std::cell::UnsafeCell;
use std::mem::size_of;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use super::process::{BUFFERS_MAX, HELD_CALLS_MAX, Unanswered};
use crate::error::{Error, Result};
use crate::seccomp_listener::{Notification, NotificationId};

/// Offset of the table of held calls in the shared mapping. The buffers are in front of the table. The last buffer is for
/// the holder that answers calls after the death of the guardian.
const CALLS_AT: usize = (BUFFERS_MAX + 1) * size_of::<Notification>();
const SHARED_BYTES: usize = CALLS_AT + HELD_CALLS_MAX * size_of::<AtomicU64>();

const _: () = assert!(CALLS_AT.is_multiple_of(align_of::<AtomicU64>()));

/// Memory that this process shares with the holders.
#[derive(Debug)]
pub(super) struct Shared {
    buffers: NonNull<UnsafeCell<Notification>>,
    taken: [AtomicBool; BUFFERS_MAX],
}

// SAFETY: only the one `NotificationBuffer` that has taken a buffer accesses this buffer. The holder reads
// the buffers only after all threads of this process have ended.
unsafe impl Send for Shared {}
// SAFETY: the condition for `Send` holds for shared references as well, and `taken` is atomic.
unsafe impl Sync for Shared {}

/// A buffer for one received notification. The holder can answer this notification until the next
/// notification overwrites the buffer.
#[derive(Debug)]
pub struct NotificationBuffer {
    shared: Arc<Shared>,
    index: usize,
}

/// The table of held calls. All clones refer to the same table.
#[derive(Clone, Debug)]
pub struct HeldCalls {
    shared: Arc<Shared>,
}

/// A row of the table. The holder can answer the call of the row until the row is dropped.
#[derive(Debug)]
pub struct HeldCall {
    shared: Arc<Shared>,
    index: usize,
}

impl HeldCalls {
    /// Adds a call to the table. Call this function before the buffer of the call receives another
    /// notification. Returns `None` if the table is full ([`HELD_CALLS_MAX`] calls).
    #[must_use]
    pub fn note(&self, id: NotificationId) -> Option<HeldCall> {
        let calls = self.shared.calls();
        let is_free = |call: &AtomicU64| {
            call.load(Ordering::Relaxed) == 0
                && call.compare_exchange(0, id.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let index = calls.iter().position(is_free)?;
        Some(HeldCall { shared: Arc::clone(&self.shared), index })
    }
}

impl Drop for HeldCall {
    fn drop(&mut self) {
        self.shared.calls()[self.index].store(0, Ordering::Relaxed);
    }
}

impl Shared {
    pub(super) fn map() -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: mmap makes a new mapping at an address of the kernel's choice, and changes no other memory.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), SHARED_BYTES, protection, MapFlags::SHARED) };
        let start = start.map_err(|errno| Error::new("map memory for notifications", errno))?;
        let buffers = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0");
        Ok(Self { buffers, taken: [const { AtomicBool::new(false) }; BUFFERS_MAX] })
    }

    /// Takes a buffer for one receiving thread. Returns `None` if all buffers are taken.
    pub(super) fn take_buffer(self: &Arc<Self>) -> Option<NotificationBuffer> {
        let is_free = |taken: &AtomicBool| !taken.swap(true, Ordering::AcqRel);
        let index = self.taken.iter().position(is_free)?;
        Some(NotificationBuffer { shared: Arc::clone(self), index })
    }

    /// Returns the table of held calls.
    pub(super) fn held_calls(self: &Arc<Self>) -> HeldCalls {
        HeldCalls { shared: Arc::clone(self) }
    }

    /// Returns the addresses for a holder.
    pub(super) fn unanswered(&self) -> Unanswered {
        Unanswered { buffers: self.buffers.cast().as_ptr(), calls: self.calls().as_ptr() }
    }

    /// Decides whether children that are forked from now on inherit the mapping. If the call fails, a child inherits
    /// the mapping but does not use it, or a holder is not created.
    pub(super) fn inherit(&self, is_inherited: bool) {
        let advice = if is_inherited { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
        // SAFETY: the range is a mapping of this process. The advice does not change its content.
        unsafe { libc::madvise(self.buffers.as_ptr().cast(), SHARED_BYTES, advice) };
    }

    fn calls(&self) -> &[AtomicU64] {
        // SAFETY: from CALLS_AT on, the mapping has HELD_CALLS_MAX numbers, which are zero at first. The
        // numbers are aligned, as asserted above, and live as long as this value. Both processes access the
        // numbers only as atomics.
        unsafe {
            let start = self.buffers.as_ptr().cast::<u8>().add(CALLS_AT).cast();
            std::slice::from_raw_parts(start, HELD_CALLS_MAX)
        }
    }

    fn at(&self, index: usize) -> *mut Notification {
        debug_assert!(index < BUFFERS_MAX, "an index is one of `taken`");
        // SAFETY: the mapping has space for BUFFERS_MAX notifications, and the index is less than
        // BUFFERS_MAX.
        UnsafeCell::raw_get(unsafe { self.buffers.as_ptr().add(index) })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `map` has mapped the range. Every buffer and every row holds a reference count of this
        // value, so no buffer and no row exists any more.
        unsafe { libc::munmap(self.buffers.as_ptr().cast(), SHARED_BYTES) };
    }
}

impl Deref for NotificationBuffer {
    type Target = Notification;

    fn deref(&self) -> &Notification {
        // SAFETY: the buffer is mapped as long as `shared` lives. The buffer contains zeroes or a
        // notification. No other `NotificationBuffer` has the same index.
        unsafe { &*self.shared.at(self.index) }
    }
}

impl DerefMut for NotificationBuffer {
    fn deref_mut(&mut self) -> &mut Notification {
        // SAFETY: the conditions of `deref` hold, and the borrow of this value is exclusive.
        unsafe { &mut *self.shared.at(self.index) }
    }
}

impl Drop for NotificationBuffer {
    fn drop(&mut self) {
        self.shared.taken[self.index].store(false, Ordering::Release);
    }
}
