//! Random numbers for names and for the jitter of restarts.
//!
//! Owns: the one call that draws them.
//! Does not: draw keys or secrets; a name only has to be free.

use crate::error::Result;

/// A number from the kernel's generator.
pub(super) fn number() -> Result<u64> {
    let mut random = [0_u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| sys::Error::new("get random bytes", errno))?;
    Ok(u64::from_ne_bytes(random))
}
