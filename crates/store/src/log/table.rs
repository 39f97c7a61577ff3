//! A compact table with the place of every page of a subject.
//!
//! Owns: `PageTable`: chunks of 128 pages, each stored as a short sorted list or as a full array.
//! Invariants: pages are sorted by address space and address. The cost of a change depends on the number of changed
//! pages, not on the size of the table.
//! Does not: interpret block indexes, or count references.
//!
//! Size: a page uses 8 bytes in a full chunk, and at most 12 bytes in a sparse chunk. Each chunk adds about 60 bytes.
//! Adjacent pages of 4 GiB need 8.7 MiB.

use std::collections::BTreeMap;
use std::ops::Range;

use image::{PageChecksum, SpaceId};

/// The number of pages in a chunk.
const CHUNK_PAGES: usize = 128;

/// The maximum number of entries in a sparse chunk. For more entries, an array is hardly larger.
const SPARSE_MAX: usize = 40;

const NOTHING: u32 = u32::MAX;
const ZERO: u32 = u32::MAX - 1;

/// A number for a block of the log, used only in memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct BlockIndex(u32);

/// The content of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageContent {
    /// All bytes of the page are zero.
    Zero,
    /// The bytes of the page are in this block and have this checksum.
    At(BlockIndex, PageChecksum),
}

/// A table of pages and their contents.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageTable {
    chunks: BTreeMap<(SpaceId, u64), Chunk>,
    /// The number of pages, including zero pages.
    pub(crate) pages: u64,
    /// The number of pages that are stored in a block.
    pub(crate) stored: u64,
}

#[derive(Clone, Debug)]
enum Chunk {
    /// A list of entries, sorted by page.
    Sparse(Vec<(u8, Packed)>),
    Dense(Box<Dense>),
}

/// A packed content of a page: block index and checksum. The block index `NOTHING` means that there is no page.
type Packed = (u32, u32);

#[derive(Clone, Debug)]
struct Dense {
    count: usize,
    contents: [Packed; CHUNK_PAGES],
}

impl BlockIndex {
    /// The highest valid block index. Higher numbers have a special meaning.
    pub(crate) const MAX: u32 = ZERO - 1;

    pub(crate) const fn new(number: u32) -> Self {
        assert!(number <= Self::MAX, "a block_index out of range");
        Self(number)
    }

    pub(crate) const fn get(self) -> u32 {
        self.0
    }
}

impl PageTable {
    /// Removes all pages.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the content of a page, if the table contains the page.
    pub(crate) fn get(&self, space: SpaceId, page: u64) -> Option<PageContent> {
        let (chunk, inside) = split(page);
        self.chunks.get(&(space, chunk))?.get(inside)
    }

    /// Sets the content of a page, and returns the previous content.
    pub(crate) fn set(&mut self, space: SpaceId, page: u64, content: PageContent) -> Option<PageContent> {
        let (chunk, inside) = split(page);
        let before = self.chunks.entry((space, chunk)).or_default().set(inside, content);
        self.pages += u64::from(before.is_none());
        self.stored += u64::from(is_stored(content));
        self.stored -= u64::from(before.is_some_and(is_stored));
        before
    }

    /// Sets the contents of several pages. Takes less time than single calls if neighbours follow each other.
    pub(crate) fn set_all(&mut self, pages: impl IntoIterator<Item = (SpaceId, u64, PageContent)>) {
        let mut pages = pages.into_iter().peekable();
        while let Some(&(space, page, _)) = pages.peek() {
            let number = split(page).0;
            let chunk = self.chunks.entry((space, number)).or_default();
            let is_inside = |of: &(SpaceId, u64, PageContent)| (of.0, split(of.1).0) == (space, number);
            while let Some((_, page, content)) = pages.next_if(is_inside) {
                let before = chunk.set(split(page).1, content);
                self.pages += u64::from(before.is_none());
                self.stored += u64::from(is_stored(content));
                self.stored -= u64::from(before.is_some_and(is_stored));
            }
        }
    }

    /// Sets the contents of all pages of `later`. Calls `set` with the previous and the new content of each page.
    pub(crate) fn merge(&mut self, later: &Self, mut set: impl FnMut(Option<PageContent>, PageContent)) {
        for (key, changes) in &later.chunks {
            let chunk = self.chunks.entry(*key).or_default();
            changes.for_each(|inside, content| {
                let before = chunk.set(inside, content);
                self.pages += u64::from(before.is_none());
                self.stored += u64::from(is_stored(content));
                self.stored -= u64::from(before.is_some_and(is_stored));
                set(before, content);
            });
        }
    }

    /// Removes the pages of a range. Calls `gone` with the content of each removed page.
    pub(crate) fn remove(&mut self, space: SpaceId, pages: Range<u64>, mut gone: impl FnMut(PageContent)) {
        if pages.is_empty() {
            return;
        }
        let (first, last) = (split(pages.start).0, split(pages.end - 1).0);
        let (mut removed, mut removed_stored) = (0, 0);
        let mut empty = Vec::new();
        for (key, chunk) in self.chunks.range_mut((space, first)..=(space, last)) {
            let base = key.1 * CHUNK_PAGES as u64;
            let from = pages.start.saturating_sub(base).min(CHUNK_PAGES as u64) as usize;
            let end = (pages.end - base).min(CHUNK_PAGES as u64) as usize;
            chunk.remove(from..end, |content| {
                removed += 1;
                removed_stored += u64::from(is_stored(content));
                gone(content);
            });
            if chunk.is_empty() {
                empty.push(*key);
            }
        }
        empty.iter().for_each(|key| drop(self.chunks.remove(key)));
        self.pages -= removed;
        self.stored -= removed_stored;
    }

    /// Returns the pages of a range of one address space, sorted by address.
    pub(crate) fn within(
        &self,
        space: SpaceId,
        pages: Range<u64>,
    ) -> impl Iterator<Item = (u64, PageContent)> {
        let chunks = (space, split(pages.start).0)..=(space, split(pages.end).0);
        let all = self.chunks.range(chunks).flat_map(|(&(_, number), chunk)| {
            let base = number * CHUNK_PAGES as u64;
            chunk.iter().map(move |(inside, content)| (base + inside as u64, content))
        });
        all.filter(move |(page, _)| pages.contains(page))
    }

    /// Calls `each` for all pages, in the order of `iter`. Takes less time than an iterator.
    pub(crate) fn for_each(&self, mut each: impl FnMut(SpaceId, u64, PageContent)) {
        for (&(space, number), chunk) in &self.chunks {
            let base = number * CHUNK_PAGES as u64;
            chunk.for_each(|inside, content| each(space, base + inside as u64, content));
        }
    }

    /// Returns all pages, sorted by address space and address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SpaceId, u64, PageContent)> {
        self.chunks.iter().flat_map(|(&(space, number), chunk)| {
            let base = number * CHUNK_PAGES as u64;
            chunk.iter().map(move |(inside, content)| (space, base + inside as u64, content))
        })
    }
}

impl Default for Chunk {
    fn default() -> Self {
        Self::Sparse(Vec::new())
    }
}

impl Chunk {
    fn get(&self, inside: usize) -> Option<PageContent> {
        match self {
            Self::Sparse(entries) => {
                let place = entries.binary_search_by_key(&(inside as u8), |(page, _)| *page).ok()?;
                unpack(entries[place].1)
            }
            Self::Dense(dense) => unpack(dense.contents[inside]),
        }
    }

    fn set(&mut self, inside: usize, content: PageContent) -> Option<PageContent> {
        match self {
            Self::Sparse(entries) => match entries.binary_search_by_key(&(inside as u8), |(page, _)| *page) {
                Ok(place) => unpack(std::mem::replace(&mut entries[place].1, pack(content))),
                Err(place) if entries.len() < SPARSE_MAX => {
                    entries.insert(place, (inside as u8, pack(content)));
                    None
                }
                Err(_) => {
                    *self = Self::Dense(Box::new(Dense::of(entries)));
                    self.set(inside, content)
                }
            },
            Self::Dense(dense) => {
                let before = unpack(std::mem::replace(&mut dense.contents[inside], pack(content)));
                dense.count += usize::from(before.is_none());
                before
            }
        }
    }

    fn remove(&mut self, inside: Range<usize>, mut gone: impl FnMut(PageContent)) {
        match self {
            Self::Sparse(entries) => entries.retain(|(page, packed)| {
                let hit = inside.contains(&usize::from(*page));
                if hit && let Some(content) = unpack(*packed) {
                    gone(content);
                }
                !hit
            }),
            Self::Dense(dense) => {
                for packed in &mut dense.contents[inside] {
                    if let Some(content) = unpack(std::mem::replace(packed, (NOTHING, 0))) {
                        dense.count -= 1;
                        gone(content);
                    }
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Sparse(entries) => entries.is_empty(),
            Self::Dense(dense) => dense.count == 0,
        }
    }

    fn for_each(&self, mut each: impl FnMut(usize, PageContent)) {
        let mut pass = |inside, packed| unpack(packed).into_iter().for_each(|content| each(inside, content));
        match self {
            Self::Sparse(entries) => {
                entries.iter().for_each(|(page, packed)| pass(usize::from(*page), *packed))
            }
            Self::Dense(dense) => {
                dense.contents.iter().enumerate().for_each(|(inside, packed)| pass(inside, *packed));
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = (usize, PageContent)> {
        let (sparse, dense): (&[(u8, Packed)], &[Packed]) = match self {
            Self::Sparse(entries) => (entries, &[]),
            Self::Dense(dense) => (&[], &dense.contents),
        };
        let sparse = sparse.iter().map(|(page, packed)| (usize::from(*page), *packed));
        let dense = dense.iter().copied().enumerate();
        sparse.chain(dense).filter_map(|(inside, packed)| Some((inside, unpack(packed)?)))
    }
}

impl Dense {
    fn of(entries: &[(u8, Packed)]) -> Self {
        let mut contents = [(NOTHING, 0); CHUNK_PAGES];
        for (page, packed) in entries {
            contents[usize::from(*page)] = *packed;
        }
        Self { count: entries.len(), contents }
    }
}

const fn split(page: u64) -> (u64, usize) {
    (page / CHUNK_PAGES as u64, (page % CHUNK_PAGES as u64) as usize)
}

const fn pack(content: PageContent) -> Packed {
    match content {
        PageContent::Zero => (ZERO, 0),
        PageContent::At(block_index, checksum) => (block_index.0, checksum.0),
    }
}

const fn unpack((block_index, checksum): Packed) -> Option<PageContent> {
    match block_index {
        NOTHING => None,
        ZERO => Some(PageContent::Zero),
        _ => Some(PageContent::At(BlockIndex(block_index), PageChecksum(checksum))),
    }
}

const fn is_stored(content: PageContent) -> bool {
    matches!(content, PageContent::At(..))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Set(u32, u64, u64, u32),
        Zero(u32, u64, u64),
        Remove(u32, u64, u64),
        Merge(u32, u64, u64, u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let space = 0..3_u32;
        let page = prop_oneof![0..700_u64, (1_u64 << 35) - 3..(1 << 35) + 3];
        let count = prop_oneof![1..4_u64, 1..300_u64];
        prop_oneof![
            (space.clone(), page.clone(), count.clone(), 0..1_000_000_u32)
                .prop_map(|(space, page, count, block_index)| Step::Set(space, page, count, block_index)),
            (space.clone(), page.clone(), count.clone())
                .prop_map(|(space, page, count)| Step::Zero(space, page, count)),
            (space.clone(), page.clone(), count.clone(), 0..1_000_000_u32)
                .prop_map(|(space, page, count, block_index)| Step::Merge(space, page, count, block_index)),
            (space, page, count).prop_map(|(space, page, count)| Step::Remove(space, page, count)),
        ]
    }

    proptest! {
        #[test]
        fn a_table_holds_what_a_map_of_pages_holds(steps in prop::collection::vec(step(), 1..60)) {
            let (mut table, mut model) = (PageTable::default(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Set(space, page, count, block_index) => for number in 0..count {
                        let content = PageContent::At(BlockIndex::new(block_index + number as u32), PageChecksum(number as u32));
                        let before = table.set(SpaceId(space), page + number, content);
                        prop_assert_eq!(before, model.insert((SpaceId(space), page + number), content));
                    },
                    Step::Zero(space, page, count) => for number in 0..count {
                        let before = table.set(SpaceId(space), page + number, PageContent::Zero);
                        prop_assert_eq!(before, model.insert((SpaceId(space), page + number), PageContent::Zero));
                    },
                    Step::Merge(space, page, count, block_index) => {
                        let mut later = PageTable::default();
                        let mut expected = Vec::new();
                        later.set_all((0..count).map(|number| {
                            let content = PageContent::At(BlockIndex::new(block_index + number as u32), PageChecksum(7));
                            expected.push((model.insert((SpaceId(space), page + number), content), content));
                            (SpaceId(space), page + number, content)
                        }));
                        prop_assert_eq!((later.pages, later.stored), (count, count));
                        let mut set = Vec::new();
                        table.merge(&later, |before, content| set.push((before, content)));
                        prop_assert_eq!(set, expected);
                    }
                    Step::Remove(space, page, count) => {
                        let mut gone = Vec::new();
                        table.remove(SpaceId(space), page..page + count, |content| gone.push(content));
                        let range = (SpaceId(space), page)..(SpaceId(space), page + count);
                        let expected: Vec<_> = model.extract_if(range, |_, _| true).map(|(_, content)| content).collect();
                        prop_assert_eq!(gone, expected);
                    }
                }
            }
            let all: Vec<_> = table.iter().map(|(space, page, content)| ((space, page), content)).collect();
            let expected: Vec<_> = model.iter().map(|(key, content)| (*key, *content)).collect();
            prop_assert_eq!(&all, &expected);
            let mut each = Vec::new();
            table.for_each(|space, page, content| each.push(((space, page), content)));
            prop_assert_eq!(&each, &expected);
            prop_assert_eq!(table.pages, model.len() as u64);
            prop_assert_eq!(table.stored, model.values().filter(|content| is_stored(**content)).count() as u64);
            for (&(space, page), content) in &model {
                prop_assert_eq!(table.get(space, page), Some(*content));
            }
            prop_assert_eq!(table.get(SpaceId(9), 0), None);
            let part = |page: &u64| (100..300).contains(page);
            let within: Vec<_> = table.within(SpaceId(1), 100..300).collect();
            let expected = all.iter().filter(|((space, page), _)| space.0 == 1 && part(page));
            prop_assert_eq!(within, expected.map(|((_, page), content)| (*page, *content)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn chunks_that_were_emptied_are_given_back() {
        let mut table = PageTable::default();
        for page in 0..300 {
            table.set(SpaceId(0), page, PageContent::Zero);
        }
        table.remove(SpaceId(0), 0..u64::MAX, |_| {});
        assert!(table.chunks.is_empty() && table.pages == 0);
    }
}
