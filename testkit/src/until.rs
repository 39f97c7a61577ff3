//! Waiting for a condition that has no event.
//!
//! Owns: the loop, with the limit and the interval of `limits`.
//! Does not: know what is waited for.

use std::thread;
use std::time::Instant;

use crate::limits;

/// Waits until there is a value.
///
/// # Panics
///
/// After [`limits::condition`]; the message says what was waited for.
pub fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within_limit(look).unwrap_or_else(|| panic!("waited too long for {what}"))
}

/// Waits until there is a value; `None` after [`limits::condition`].
pub fn within_limit<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limits::condition();
    loop {
        let value = look();
        if value.is_some() || Instant::now() > deadline {
            return value;
        }
        thread::sleep(limits::POLL);
    }
}
