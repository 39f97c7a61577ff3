//! A set of pages of a file.
//!
//! Owns: the set, as a bitmap.
//! Does not: know why a page is in a set.

/// Number of pages of one word.
const WORD: u64 = 64;

/// A set of pages. Takes one bit for each page up to the last page that was ever in the set.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageSet(Vec<u64>);

impl PageSet {
    /// Adds up to 64 pages. `first` is a multiple of 64; bit 0 stands for this page.
    pub(crate) fn insert_word(&mut self, first: u64, bits: u64) {
        let index = (first / WORD) as usize;
        if index >= self.0.len() {
            self.0.resize(index + 1, 0);
        }
        self.0[index] |= bits;
    }

    /// Adds the pages `first..end`.
    pub(crate) fn insert(&mut self, first: u64, end: u64) {
        words(first, end).for_each(|(index, bits)| self.insert_word(index * WORD, bits));
    }

    /// Removes the pages `first..end`.
    pub(crate) fn remove(&mut self, first: u64, end: u64) {
        let end = end.min(self.0.len() as u64 * WORD);
        words(first, end).for_each(|(index, bits)| self.0[index as usize] &= !bits);
    }

    /// Adds all pages of another set.
    pub(crate) fn add(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(own, other)| *own |= other);
    }

    /// Removes all pages from `end` on.
    pub(crate) fn cut(&mut self, end: u64) {
        self.0.truncate(end.div_ceil(WORD) as usize);
        self.remove(end, u64::MAX);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the number of pages in the set.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Returns the first range of pages that are in this set and not in another set.
    pub(crate) fn first_run_without(&self, other: &Self) -> Option<(u64, u64)> {
        let word = |index: usize| self.0.get(index).unwrap_or(&0) & !other.0.get(index).unwrap_or(&0);
        let index = (0..self.0.len()).find(|index| word(*index) != 0)?;
        let first = index as u64 * WORD + u64::from(word(index).trailing_zeros());
        let is_in = |page: &u64| word((page / WORD) as usize) & 1 << (page % WORD) != 0;
        Some((first, (first..).find(|page| !is_in(page))?))
    }

    /// Returns the pages as rising ranges. Two ranges with at most `gap` other pages between them become one range.
    pub(crate) fn runs(&self, gap: u64) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (index, word) in self.0.iter().enumerate() {
            let (mut bits, base) = (*word, index as u64 * WORD);
            while bits != 0 {
                let skipped = bits.trailing_zeros();
                let length = (bits >> skipped).trailing_ones();
                let first = base + u64::from(skipped);
                let end = first + u64::from(length);
                match runs.last_mut() {
                    Some((_, last)) if first - *last <= gap => *last = end,
                    _ => runs.push((first, end)),
                }
                bits &= u64::MAX.checked_shl(skipped + length).unwrap_or(0);
            }
        }
        runs
    }
}

/// Returns the words of the pages `first..end`: the index of each word, and its bits.
fn words(first: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    let indices = if first < end { first / WORD..end.div_ceil(WORD) } else { 0..0 };
    indices.map(move |index| {
        let below = first.saturating_sub(index * WORD);
        let above = ((index + 1) * WORD).saturating_sub(end);
        (index, u64::MAX << below & u64::MAX >> above)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_set_behaves_like_a_set_of_numbers() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut set, mut other, mut model) = (PageSet::default(), PageSet::default(), BTreeSet::new());
        for _ in 0..3000 {
            let first = random.u64(0..300);
            let end = first + random.u64(0..150);
            match random.u8(0..12) {
                0..4 => {
                    set.insert(first, end);
                    model.extend(first..end);
                }
                4..8 => {
                    set.remove(first, end);
                    model.retain(|page| !(first..end).contains(page));
                }
                8 => {
                    set.cut(end);
                    model.retain(|page| *page < end);
                }
                9 => {
                    other.clear();
                    other.insert(first, end);
                    set.add(&other);
                    model.extend(first..end);
                }
                10 => {
                    other.clear();
                    other.insert(first, end);
                    let expected = model.iter().copied().find(|page| !(first..end).contains(page));
                    assert_eq!(set.first_run_without(&other).map(|(first, _)| first), expected);
                }
                _ => {
                    set.insert_word(first / WORD * WORD, 5);
                    model.extend([first / WORD * WORD, first / WORD * WORD + 2]);
                }
            }
            let pages: Vec<u64> = set.runs(0).into_iter().flat_map(|(first, end)| first..end).collect();
            assert!(pages.iter().eq(&model));
            assert_eq!(set.count(), model.len() as u64);
            let joined = set.runs(3);
            assert!(joined.iter().zip(joined.iter().skip(1)).all(|(one, next)| next.0 - one.1 > 3));
        }
    }
}
