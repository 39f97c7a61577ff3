//! How the pages of an image are compressed, by name.
//!
//! Owns: the choice among the store's codecs.
//! Does not: compress.

use store::{CODECS, Codec};

/// A way to compress pages.
#[derive(Clone, Copy, Debug)]
pub struct Compression(&'static dyn Codec);

impl Compression {
    /// Every way.
    pub fn all() -> impl Iterator<Item = Self> {
        CODECS.iter().copied().map(Self)
    }

    /// The way of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        store::codec(name).map(Self)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// What it is good for.
    #[must_use]
    pub fn summary(self) -> &'static str {
        self.0.summary()
    }

    pub(crate) const fn codec(self) -> &'static dyn Codec {
        self.0
    }
}

impl PartialEq for Compression {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Compression {}
