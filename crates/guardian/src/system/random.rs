//! Random numbers for names, and for the jitter of restarts.
//!
//! Owns: the call that reads random numbers.
//! Does not: create keys or secrets. A name only has to be free.

use crate::error::Result;

pub(super) fn number() -> Result<u64> {
    let mut random = [0_u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| sys::Error::new("get random bytes", errno))?;
    Ok(u64::from_ne_bytes(random))
}
