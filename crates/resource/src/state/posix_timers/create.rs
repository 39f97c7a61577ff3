//! Creates POSIX timers with given ids.
//!
//! Owns: the kernel's switch for given ids (PR_TIMER_CREATE_RESTORE_IDS, Linux 6.15), and the fallback for older
//! kernels.
//! Invariants: the switch is off again after all timers were created.
//! Does not: start timers.

use model::ByteCount;
use tracee::arch::numbers as nr;
use tracee::{RemoteError, procfs};

use super::super::kind::StateRestore;
use super::list::{SIGEV_NONE, SIGEV_THREAD_ID};
use super::message::TimerMessage;
use crate::error::{ResourceError, Result};

/// The switch. If the switch is on, the last argument of timer_create(2) is input: the call reads the wanted id there.
const PR_TIMER_CREATE_RESTORE_IDS: u64 = 77;
const OFF: u64 = 0;
const ON: u64 = 1;

/// The number of bytes of `struct sigevent`: value, signal, notification method, thread, and padding.
const EVENT_BYTES: usize = 64;
/// The maximum number of ids that the fallback skips. Skipping an id means creating and deleting a timer, and takes 20
/// to 200 µs.
const SKIPPED_IDS_MAX: usize = 100_000;

/// Creates all timers. `timers` must be sorted by id.
pub(super) fn create_all(timers: &[TimerMessage], restore: &mut StateRestore<'_>) -> Result<()> {
    let wanted = switch(restore, ON)?;
    for timer in timers {
        let event = event(timer, restore)?;
        if wanted {
            create(timer, &event, restore)?;
        } else {
            skip_to(timer, &event, restore)?;
        }
    }
    if wanted {
        switch(restore, OFF)?;
    }
    Ok(())
}

/// Sets the switch. Returns whether the kernel has the switch.
fn switch(restore: &mut StateRestore<'_>, to: u64) -> Result<bool> {
    match restore.stub.call(nr::PRCTL, [PR_TIMER_CREATE_RESTORE_IDS, to, 0, 0, 0, 0]) {
        Ok(_) => Ok(true),
        Err(RemoteError::Refused { errno: sys::Errno::EINVAL, .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Creates and deletes timers until a timer has the wanted id. Needed on older kernels, which assign ids in ascending
/// order from zero in each process.
fn skip_to(timer: &TimerMessage, event: &[u8; EVENT_BYTES], restore: &mut StateRestore<'_>) -> Result<()> {
    for _ in 0..SKIPPED_IDS_MAX {
        let id = create(timer, event, restore)?;
        if id == timer.id {
            return Ok(());
        }
        restore.stub.call(nr::TIMER_DELETE, [id as u64, 0, 0, 0, 0, 0])?;
        if id > timer.id {
            break;
        }
    }
    Err(ResourceError::Unsupported {
        pid: restore.stub.pid(),
        what: format!("POSIX timer {}", timer.id),
        why:
            "this kernel cannot create a timer with a given id, and the id is too large to reach by counting"
                .to_owned(),
        fix: "restore on Linux 6.15 or later".to_owned(),
    })
}

fn create(timer: &TimerMessage, event: &[u8; EVENT_BYTES], restore: &mut StateRestore<'_>) -> Result<i32> {
    let mut bytes = event.to_vec();
    bytes.extend(timer.id.to_ne_bytes());
    restore.stub.call_with(restore.memory, nr::TIMER_CREATE, &bytes, |at| {
        [i64::from(timer.clock) as u64, at.get(), at.get() + EVENT_BYTES as u64, 0, 0, 0]
    })?;
    let mut id = [0; size_of::<i32>()];
    restore.memory.read(restore.stub.data().start + ByteCount(EVENT_BYTES as u64), &mut id)?;
    Ok(i32::from_ne_bytes(id))
}

/// Returns the kernel's `struct sigevent` for a timer. A timer whose thread has ended notifies no thread, like
/// SIGEV_NONE.
fn event(timer: &TimerMessage, restore: &StateRestore<'_>) -> Result<[u8; EVENT_BYTES]> {
    let mut notice = timer.notice;
    if notice & SIGEV_THREAD_ID != 0
        && !procfs::threads(restore.stub.pid())?.iter().any(|tid| tid.get() == timer.thread)
    {
        notice = SIGEV_NONE;
    }
    let mut event = [0; EVENT_BYTES];
    event[0..8].copy_from_slice(&timer.value.to_ne_bytes());
    event[8..12].copy_from_slice(&timer.signal.to_ne_bytes());
    event[12..16].copy_from_slice(&notice.to_ne_bytes());
    event[16..20].copy_from_slice(&timer.thread.to_ne_bytes());
    Ok(event)
}
