//! Errors of a store or an image, as the operator sees them.
//!
//! Owns: `Error`; each variant names its row of docs/errors.md.
//! Invariants: every error names its path or object and ends with the next step.
//! Does not: map errors to exit codes; `Error::is_damage` gives the distinction that this needs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use image::{Checksum, Extent};
use model::{ByteCount, Escaped, Sequence};
use sys::Errno;

/// Why a store or an image could not be used.
#[derive(Clone, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "fields without a line of their own are what the message names")]
pub enum Error {
    /// A file operation failed for a reason that has no variant of its own.
    ///
    /// Row: store-io
    #[error(
        "{0}\nhelp: check that the path exists, that you may use it, and the kernel log for device errors"
    )]
    Io(sys::Error),

    /// There is no room for the image. Nothing of it was left behind.
    ///
    /// Row: store-full
    #[error(
        "{0}\nhelp: free space, raise the quota or the file size limit, or remove the checkpoints of a subject that has ended: `undying prune NAME --keep 0`"
    )]
    Full(sys::Error),

    /// Others could read the store, and with it the memory of every subject in it.
    ///
    /// Row: store-exposed
    #[error("store {path} is open to others (mode {mode:04o})\nhelp: chmod 0700 {path}", path = shown(path))]
    Exposed { path: PathBuf, mode: u32 },

    /// Another user owns it, and can have written anything.
    ///
    /// Row: image-untrusted
    #[error(
        "{path} belongs to uid {owner}, which can have written anything into it\nhelp: run undying as that user; or, \
         if you trust the content, use a copy that uid {own} owns: cp -r {directory} COPY && chmod -R go-w COPY",
        path = shown(path), directory = shown(directory_of(path))
    )]
    Untrusted {
        path: PathBuf,
        owner: u32,
        /// Our own effective user id.
        own: u32,
    },

    /// Other users can write to it.
    ///
    /// Row: image-writable
    #[error(
        "{path} can be written by other users (mode {mode:04o})\nhelp: if you trust the content, take the permission \
         away: chmod -R go-w {directory}",
        path = shown(path), directory = shown(directory_of(path))
    )]
    Writable { path: PathBuf, mode: u32 },

    /// It has a type that undying never creates there. It was not opened.
    ///
    /// Row: image-wrong-type
    #[error(
        "{path} is {found} and not {wanted}; it was not opened\nhelp: find out how it came there, then remove it: \
         rm {path}; restore an earlier image",
        path = shown(path)
    )]
    WrongType { path: PathBuf, found: &'static str, wanted: &'static str },

    /// The store is named by a scheme that no backend has.
    ///
    /// Row: store-backend-unknown
    #[error("no store backend has the scheme {0}\nhelp: give a directory")]
    UnknownBackend(String),

    /// The path of the store leads to something else than a directory.
    ///
    /// Row: store-not-directory
    #[error("the store {path} is not a directory\nhelp: name a directory with --store DIR", path = shown(.0))]
    NotDirectory(PathBuf),

    /// Something is there already; it was left as it is.
    ///
    /// Row: image-exists
    #[error("{path} exists already\nhelp: remove it or choose another path", path = shown(.0))]
    Exists(PathBuf),

    /// The directory holds no commit record: not an image, or one that was never completed.
    ///
    /// Row: image-not-committed
    #[error(
        "{path} holds no committed image\nhelp: `undying ls` lists those that are; a checkpoint cut short leaves none",
        path = shown(.0)
    )]
    NotCommitted(PathBuf),

    /// The path of an image leads to nothing.
    ///
    /// Row: image-no-path
    #[error(
        "{path}: there is no such file or directory\nhelp: `undying ls` lists the images of the store",
        path = shown(.0)
    )]
    NoPath(PathBuf),

    /// A file of the image is not as it was written.
    ///
    /// Row: image-damaged
    #[error("{path}: {source}\nhelp: the image cannot be trusted; restore an earlier one", path = shown(path))]
    Damaged { path: PathBuf, source: image::Error },

    /// Pages are not as they were written.
    ///
    /// Row: image-damaged
    #[error(
        "{path}: damaged at byte {offset}: the {pages} pages at {start} have checksum {computed}, but {stored} was \
         written\nhelp: the image cannot be trusted; restore an earlier one",
        path = shown(path), pages = extent.pages, start = extent.start
    )]
    PagesDamaged {
        path: PathBuf,
        /// Where in it.
        offset: ByteCount,
        extent: Extent,
        /// The checksum in the index.
        stored: Checksum,
        /// The checksum of the bytes that are there.
        computed: Checksum,
    },

    /// A file that the commit record names is missing or has another length.
    ///
    /// Row: image-damaged
    #[error(
        "{path}: {found} bytes long where {expected} were committed\nhelp: the image cannot be trusted; restore an \
         earlier one",
        path = shown(path), found = found.map_or("missing, 0".to_owned(), |found| found.to_string())
    )]
    WrongLength {
        path: PathBuf,
        /// Its length; `None` when it is not there.
        found: Option<ByteCount>,
        /// Its length in the commit record.
        expected: ByteCount,
    },

    /// The file named `commit` was not written by this tool.
    ///
    /// Row: image-foreign
    #[error("{path} is not an undying image\nhelp: give an image's directory, NAME or NAME@SEQ", path = shown(.0))]
    Foreign(PathBuf),

    /// The image was written by a later release.
    ///
    /// Row: image-newer
    #[error(
        "{path}: format {found} is newer than {supported}\nhelp: restore it with the release that wrote it or a later one",
        path = shown(path)
    )]
    Newer {
        path: PathBuf,
        found: u32,
        /// The latest format this program reads.
        supported: u32,
    },

    /// The image's pages are compressed in a way that this program does not know.
    ///
    /// Row: image-codec-unknown
    #[error(
        "{path}: compressed with {codec}, which this program does not know; it has {known}\nhelp: restore it with the \
         release that wrote it or a later one",
        path = shown(path)
    )]
    UnknownCodec {
        path: PathBuf,
        codec: String,
        /// Those that there are.
        known: String,
    },

    /// The store has no such image.
    ///
    /// Row: image-not-found
    #[error(
        "no committed image {name}{at} in {store}\nhelp: {list}; `--store` names another store",
        at = sequence.map_or(String::new(), |sequence| format!("@{sequence}")), store = shown(store),
        list = list_of(name, store)
    )]
    NotFound {
        name: String,
        /// The checkpoint, unless the newest was asked for.
        sequence: Option<Sequence>,
        /// Where it was looked for.
        store: PathBuf,
    },

    /// Another process writes the log.
    ///
    /// Row: log-busy
    #[error(
        "{path} is being written by another undying\nhelp: `undying status` lists what is guarded; end that one first",
        path = shown(.0)
    )]
    LogBusy(PathBuf),

    /// A wait for the store was cancelled.
    #[error("the wait for the store was called off")]
    CalledOff,

    /// The store takes pages so slowly that a subject would have to stand still for it.
    ///
    /// Row: store-slow
    #[error(
        "the store has not taken a checkpoint's pages for {} ms while the subject stood still\nhelp: take checkpoints \
         less often, or keep the store on a faster disk",
        .0.as_millis()
    )]
    Slow(Duration),

    /// What is under this name was not copied there.
    ///
    /// Row: not-a-copy
    #[error(
        "{0} is a subject, not a copy\nhelp: `undying prune {0} --keep K` removes checkpoints of a subject; `undying ls` tells copies apart"
    )]
    NotACopy(String),

    /// A name that cannot be a directory of the store.
    ///
    /// Row: name-invalid
    #[error("{name:?} cannot name a subject: {why}\nhelp: use letters, digits, '-', '_', '.' and '+'")]
    InvalidName {
        name: String,
        /// The rule it breaks.
        why: &'static str,
    },

    /// What was to be written exceeds the format.
    ///
    /// Row: image-too-large
    #[error("cannot write {path}: {source}\nhelp: please report this", path = shown(path))]
    TooLarge { path: PathBuf, source: image::Error },
}

/// A result of a store operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the image itself is at fault: damaged, incomplete, foreign, of a later format or not to be trusted.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::NotCommitted(..)
                | Self::NoPath(..)
                | Self::Damaged { .. }
                | Self::PagesDamaged { .. }
                | Self::WrongLength { .. }
                | Self::Foreign(..)
                | Self::Newer { .. }
                | Self::UnknownCodec { .. }
                | Self::Untrusted { .. }
                | Self::Writable { .. }
                | Self::WrongType { .. }
        )
    }

    /// A part of an image that could not be decoded.
    pub(crate) fn decoding(path: &Path, source: image::Error) -> Self {
        let path = path.to_path_buf();
        match source {
            image::Error::Foreign { .. } => Self::Foreign(path),
            image::Error::NewerVersion { found, supported, .. } => Self::Newer { path, found, supported },
            source => Self::Damaged { path, source },
        }
    }

    /// A part of an image that could not be encoded.
    pub(crate) fn encoding(path: &Path, source: image::Error) -> Self {
        Self::TooLarge { path: path.to_path_buf(), source }
    }
}

/// A path as messages show it.
fn shown(path: &Path) -> String {
    Escaped(&path.to_string_lossy()).to_string()
}

/// The command to name in a help line for an image that is not there.
fn list_of(name: &str, store: &Path) -> String {
    if !name.is_empty() && store.join(name).is_dir() {
        format!("`undying ls {}` lists what there is", Escaped(name))
    } else {
        "`undying ls` lists the subjects".to_owned()
    }
}

/// The directory to name in a help line: a directory itself, or that of a file.
fn directory_of(path: &Path) -> &Path {
    if path.is_dir() { path } else { crate::layout::parent(path) }
}

impl From<sys::Error> for Error {
    fn from(error: sys::Error) -> Self {
        use rustix::io::Errno as Refused;
        let is_full = is_one_of(error.errno, &[Refused::NOSPC, Refused::DQUOT, Refused::FBIG]);
        if is_full { Self::Full(error) } else { Self::Io(error) }
    }
}

/// Whether an errno is among some.
pub(crate) fn is_one_of(errno: Errno, some: &[rustix::io::Errno]) -> bool {
    some.iter().any(|one| Errno::from(*one) == errno)
}
