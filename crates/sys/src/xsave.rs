//! The standard layout of the extended register state on this processor.
//!
//! Owns: the CPUID leaf that describes the XSAVE components.
//! Invariants: sizes are those of the standard (not compacted) format, which signal frames and ptrace(2) use.
//! Does not: read any state.
//!
//! Man page: none; Intel SDM volume 1 chapter 13, AMD APM volume 2 section 11.5
//! Since: every x86-64 processor with XSAVE
//! Probe: none needed; without XSAVE no component beyond the legacy area is reported
//! Fallback: the legacy area and header alone

use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// Size of the legacy area and the header in bytes.
const BASE_BYTES: usize = 512 + 64;
/// CPUID leaf of the XSAVE components.
const LEAF: u32 = 0xd;
/// First component outside of the legacy area. Components 0 and 1 (x87, SSE) are in the legacy area.
const FIRST_EXTENDED: u32 = 2;
/// Number of components. A component number is a bit of a 64-bit word, whose highest bit is reserved.
const COMPONENTS: u32 = 63;

/// Reads the layout from the processor now. Otherwise the first use would read the layout, inside the pause of a
/// checkpoint.
pub fn prepare() {
    ends();
}

/// Returns the size in bytes of a state with the components whose bits are set.
#[must_use]
pub fn bytes_of(components: u64) -> usize {
    let ends = ends();
    (FIRST_EXTENDED..COMPONENTS)
        .filter(|component| components & (1 << component) != 0)
        .map(|component| ends[component as usize])
        .fold(BASE_BYTES, usize::max)
}

/// Returns the end offset of each component in bytes. The processor is asked once, because on a virtual machine
/// each CPUID instruction causes an exit.
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
