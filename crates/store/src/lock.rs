//! Locks whose protected state is valid after every statement.
//!
//! Owns: nothing.
//! Invariants: a panic of another thread makes no lock unusable.
//! Does not: wait with a limit.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. A panic of another thread does not make the protected state invalid.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
