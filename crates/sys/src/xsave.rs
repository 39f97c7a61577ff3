//! The standard layout of extended register state, as this processor has it.
//!
//! Owns: the CPUID leaf that describes XSAVE components.
//! Invariants: sizes are those of the standard (not the compacted) format, which signal frames and ptrace use.
//! Does not: read any state.
//!
//! Man page: none; Intel SDM volume 1 chapter 13, AMD APM volume 2 section 11.5
//! Since: every x86-64 processor with XSAVE
//! Probe: none needed; without XSAVE no component beyond the legacy area is reported
//! Fallback: the legacy area and header alone

use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// Legacy area and header.
const BASE_BYTES: usize = 512 + 64;
/// The leaf of XSAVE components.
const LEAF: u32 = 0xd;
/// Components 0 and 1 (x87, SSE) lie in the legacy area.
const FIRST_EXTENDED: u32 = 2;
/// Component numbers are bits of a word, of which the highest is reserved.
const COMPONENTS: u32 = 63;

/// Asks the processor now, rather than when it first matters, inside a pause.
pub fn prepare() {
    ends();
}

/// Bytes of a state that holds the components whose bits are set.
#[must_use]
pub fn bytes_of(components: u64) -> usize {
    let ends = ends();
    (FIRST_EXTENDED..COMPONENTS)
        .filter(|component| components & (1 << component) != 0)
        .map(|component| ends[component as usize])
        .fold(BASE_BYTES, usize::max)
}

/// Where each component ends; asked once, because a virtual machine answers each question with an exit.
fn ends() -> &'static [usize; COMPONENTS as usize] {
    static ENDS: OnceLock<[usize; COMPONENTS as usize]> = OnceLock::new();
    ENDS.get_or_init(|| {
        let leaf = __cpuid_count(LEAF, 0);
        let present = u64::from(leaf.edx) << 32 | u64::from(leaf.eax);
        std::array::from_fn(|component| {
            if present & (1 << component) == 0 {
                return 0;
            }
            let description = __cpuid_count(LEAF, component as u32);
            description.eax as usize + description.ebx as usize
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_legacy_area_alone_and_all_components_have_the_sizes_of_the_processor() {
        assert_eq!(bytes_of(3), BASE_BYTES);
        let avx = bytes_of(7);
        assert!(avx == BASE_BYTES || avx == BASE_BYTES + 256);
    }
}
