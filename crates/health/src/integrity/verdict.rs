//! The classification of a page that differs.
//!
//! Owns: the comparison of two contents of a page, and the order in which causes are considered.
//! Invariants: the functions are pure.
//! Does not: read pages.

use super::changed::{Kind, Place};

/// Maximum number of bits that a memory error changes. CRC-32C detects up to this number of changed bits with
/// certainty.
const FLIPPED_BITS_MAX: u32 = 3;
/// The one-byte breakpoint instruction of x86 (int3).
const BREAKPOINT: u8 = 0xcc;

/// The known facts about a page that differs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence<'a> {
    pub(super) place: Place,
    /// The current bytes of the page.
    pub(super) content: &'a [u8],
    /// The earlier bytes of the page.
    pub(super) original: Option<&'a [u8]>,
    /// The file on the device has the current bytes.
    pub(super) is_on_device: bool,
    /// Another program traces the process.
    pub(super) is_traced: bool,
    /// The page is the only page of its process that differs in this pass.
    pub(super) is_only: bool,
}

/// The cause of a difference, and its extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Verdict {
    pub(super) kind: Kind,
    pub(super) bits: Option<u32>,
    /// The offset in the page of the first byte that differs.
    pub(super) first: u64,
}

pub(super) fn judge(evidence: &Evidence<'_>) -> Verdict {
    let Some(original) = evidence.original else {
        let kind = if evidence.is_on_device { Kind::FileChanged } else { Kind::Unknown };
        return Verdict { kind, bits: None, first: 0 };
    };
    let pairs = || evidence.content.iter().zip(original);
    let bits: u32 = pairs().map(|(now, before)| (now ^ before).count_ones()).sum();
    let first = pairs().position(|(now, before)| now != before).unwrap_or(0) as u64;
    let has_breakpoint = pairs().any(|(now, before)| now != before && *now == BREAKPOINT);
    let kind = match evidence.place {
        // Debuggers do not change the page cache.
        Place::PageCache if bits <= FLIPPED_BITS_MAX => Kind::Flip,
        Place::PageCache => Kind::Patched,
        Place::Process if has_breakpoint => Kind::Breakpoint,
        Place::Process if evidence.is_traced => Kind::Traced,
        Place::Process if evidence.is_only && bits <= FLIPPED_BITS_MAX => Kind::Flip,
        Place::Process => Kind::Patched,
    };
    Verdict { kind, bits: Some(bits), first }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: [u8; 64] = [0x90; 64];

    fn judged(change: impl FnOnce(&mut [u8]), adjust: impl FnOnce(&mut Evidence<'_>)) -> Verdict {
        let mut content = BEFORE;
        change(&mut content);
        let mut evidence = Evidence {
            place: Place::Process,
            content: &content,
            original: Some(&BEFORE),
            is_on_device: false,
            is_traced: false,
            is_only: true,
        };
        adjust(&mut evidence);
        judge(&evidence)
    }

    #[test]
    fn a_few_bits_of_the_only_page_are_a_flip() {
        let one = judged(|bytes| bytes[7] ^= 0x10, |_| ());
        assert_eq!(one, Verdict { kind: Kind::Flip, bits: Some(1), first: 7 });
        assert_eq!(judged(|bytes| bytes[63] ^= 0x07, |_| ()).kind, Kind::Flip);
        assert_eq!(judged(|bytes| bytes[63] ^= 0x0f, |_| ()).kind, Kind::Patched);
        assert_eq!(judged(|bytes| bytes[7] ^= 1, |evidence| evidence.is_only = false).kind, Kind::Patched);
        assert_eq!(judged(|bytes| bytes[7] ^= 1, |evidence| evidence.is_traced = true).kind, Kind::Traced);
    }

    #[test]
    fn a_breakpoint_is_none_whatever_its_bits() {
        let found = judged(|bytes| bytes[0] = 0xcc, |_| ());
        assert_eq!((found.kind, found.bits), (Kind::Breakpoint, Some(4)));
        let closer = |bytes: &mut [u8]| bytes[0] = 0xcc;
        const CLOSE: [u8; 64] = [0xcd; 64];
        let found = judged(closer, |evidence| evidence.original = Some(&CLOSE));
        assert_eq!(found.kind, Kind::Breakpoint);
    }

    #[test]
    fn the_page_cache_is_judged_by_the_device() {
        let cached = |evidence: &mut Evidence<'_>| evidence.place = Place::PageCache;
        assert_eq!(judged(|bytes| bytes[9] = 0xcc ^ 1, cached).kind, Kind::Patched);
        let several = |evidence: &mut Evidence<'_>| {
            (evidence.place, evidence.is_only, evidence.is_traced) = (Place::PageCache, false, true);
        };
        assert_eq!(judged(|bytes| bytes[9] ^= 2, several).kind, Kind::Flip);
        let changed = |evidence: &mut Evidence<'_>| (evidence.original, evidence.is_on_device) = (None, true);
        assert_eq!(judged(|bytes| bytes[9] ^= 2, changed).kind, Kind::FileChanged);
        assert_eq!(judged(|_| (), |evidence| evidence.original = None).kind, Kind::Unknown);
    }
}
