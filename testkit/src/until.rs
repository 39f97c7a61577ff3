//! Waits for conditions without an event.
//!
//! Owns: the poll loop, with the time limit and the interval of `limits`.
//! Does not: define a condition; the caller does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use crate::limits;

/// The time between two looks, as a multiple of the time of a look. A look that starts a program takes milliseconds of
/// processor time, which other tests need.
const REST: u32 = 4;

/// Sets a flag when the value is dropped, also after a panic. A test that panics beside threads of its own waits for them.
#[must_use]
pub struct SetAtEnd<'a>(pub &'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until `look` returns a value.
///
/// # Panics
///
/// Panics after [`limits::condition`]. The message contains `what`.
pub fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within_limit(look).unwrap_or_else(|| panic!("waited too long for {what}"))
}

/// Waits until `look` returns a value. Returns `None` after [`limits::condition`].
pub fn within_limit<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limits::condition();
    loop {
        let begun = Instant::now();
        let value = look();
        if value.is_some() || Instant::now() > deadline {
            return value;
        }
        thread::sleep((REST * begun.elapsed()).clamp(limits::POLL, limits::POLL_MAX));
    }
}
