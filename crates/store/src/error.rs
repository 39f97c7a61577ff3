//! Errors of a store or an image, as the operator sees them.
//!
//! Owns: `Error`. Each variant names its row of docs/errors.md.
//! Invariants: every message names the path or the object. Every message except that of `CalledOff` ends with a help
//! text: the next step for the operator.
//! Does not: map errors to exit codes. `Error::is_damage` helps the caller to choose the exit code.

use std::path::{Path, PathBuf};
use std::time::Duration;

use image::{Checksum, Extent};
use model::{ByteCount, Escaped, Sequence};
use sys::Errno;

/// The reason why a store or an image could not be used.
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

    /// The device, the quota or the file size limit has no space for the image. No part of the image remains.
    ///
    /// Row: store-full
    #[error(
        "{0}\nhelp: free space, raise the quota or the file size limit, or remove the checkpoints of a subject that has ended: `undying prune NAME --keep 0`"
    )]
    Full(sys::Error),

    /// Other users have permissions for the store. The store contains the memory of its subjects, and must be
    /// private.
    ///
    /// Row: store-exposed
    #[error("store {path} can be read by other users (mode {mode:04o})\nhelp: chmod 0700 {path}", path = shown(path))]
    Exposed { path: PathBuf, mode: u32 },

    /// Another user owns the file or directory, and can have changed the content.
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
        /// The effective user id of this process.
        own: u32,
    },

    /// Other users can write to the file or directory.
    ///
    /// Row: image-writable
    #[error(
        "{path} can be written by other users (mode {mode:04o})\nhelp: if you trust the content, remove the \
         permission: chmod -R go-w {directory}",
        path = shown(path), directory = shown(directory_of(path))
    )]
    Writable { path: PathBuf, mode: u32 },

    /// undying expects an object of the type `wanted` at the path. The existing object has another type, and was not
    /// opened.
    ///
    /// Row: image-wrong-type
    #[error(
        "{path} is {found} and not {wanted}; it was not opened\nhelp: find out which program created it, then remove it: \
         rm {path}; restore an earlier image",
        path = shown(path)
    )]
    WrongType { path: PathBuf, found: &'static str, wanted: &'static str },

    /// The location of the store has a scheme that no backend serves.
    ///
    /// Row: store-backend-unknown
    #[error("no store backend has the scheme {0}\nhelp: give a directory")]
    UnknownBackend(String),

    /// The path of the store leads to an object that is not a directory.
    ///
    /// Row: store-not-directory
    #[error("the store {path} is not a directory\nhelp: name a directory with --store DIR", path = shown(.0))]
    NotDirectory(PathBuf),

    /// The path exists already. Nothing was changed.
    ///
    /// Row: image-exists
    #[error("{path} exists already\nhelp: remove it or choose another path", path = shown(.0))]
    Exists(PathBuf),

    /// The directory contains no commit record: the directory is not an image, or the image was never completed.
    ///
    /// Row: image-not-committed
    #[error(
        "{path} contains no committed image\nhelp: `undying ls` lists the committed images; an interrupted checkpoint leaves no image",
        path = shown(.0)
    )]
    NotCommitted(PathBuf),

    /// The path of an image does not exist.
    ///
    /// Row: image-no-path
    #[error(
        "{path}: there is no such file or directory\nhelp: `undying ls` lists the images of the store",
        path = shown(.0)
    )]
    NoPath(PathBuf),

    /// The content of an image file is damaged.
    ///
    /// Row: image-damaged
    #[error("{path}: {source}\nhelp: the image is damaged; restore an earlier image", path = shown(path))]
    Damaged { path: PathBuf, source: image::Error },

    /// The content of pages is damaged.
    ///
    /// Row: image-damaged
    #[error(
        "{path}: damaged at byte {offset}: the {pages} pages at {start} have checksum {computed}, but {stored} was \
         written\nhelp: the image is damaged; restore an earlier image",
        path = shown(path), pages = extent.pages, start = extent.start
    )]
    PagesDamaged {
        path: PathBuf,
        /// The offset of the damaged pages in the file.
        offset: ByteCount,
        extent: Extent,
        /// The checksum in the page index.
        stored: Checksum,
        /// The checksum of the bytes in the file.
        computed: Checksum,
    },

    /// A file that the commit record names is missing or has another length.
    ///
    /// Row: image-damaged
    #[error(
        "{path}: {found} bytes long where {expected} were committed\nhelp: the image is damaged; restore an \
         earlier image",
        path = shown(path), found = found.map_or("missing, 0".to_owned(), |found| found.to_string())
    )]
    WrongLength {
        path: PathBuf,
        /// The length of the file; `None` if the file does not exist.
        found: Option<ByteCount>,
        /// The length in the commit record.
        expected: ByteCount,
    },

    /// The file named `commit` was not written by undying.
    ///
    /// Row: image-foreign
    #[error("{path} is not an undying image\nhelp: give an image's directory, NAME or NAME@SEQ", path = shown(.0))]
    Foreign(PathBuf),

    /// The image was written by a release that is newer than this program.
    ///
    /// Row: image-newer
    #[error(
        "{path}: format {found} is newer than {supported}\nhelp: restore it with the release that wrote it or a later one",
        path = shown(path)
    )]
    Newer {
        path: PathBuf,
        found: u32,
        /// The latest format that this program reads.
        supported: u32,
    },

    /// The pages of the image are compressed with a codec that this program does not have.
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
        /// The codecs that this program has.
        known: String,
    },

    /// The store does not contain the requested image.
    ///
    /// Row: image-not-found
    #[error(
        "no committed image {name}{at} in {store}\nhelp: {list}; `--store` names another store",
        at = sequence.map_or(String::new(), |sequence| format!("@{sequence}")), store = shown(store),
        list = list_of(name, store)
    )]
    NotFound {
        name: String,
        /// The requested checkpoint; `None` for the newest.
        sequence: Option<Sequence>,
        /// The store that was searched.
        store: PathBuf,
    },

    /// Another process writes the log.
    ///
    /// Row: log-busy
    #[error(
        "{path} is being written by another undying process\nhelp: `undying status` lists the running guardians; end that guardian first",
        path = shown(.0)
    )]
    LogBusy(PathBuf),

    /// A wait for the store was cancelled.
    #[error("the wait for the store was cancelled")]
    CalledOff,

    /// The store accepts pages so slowly that the subject would remain stopped for too long.
    ///
    /// Row: store-slow
    #[error(
        "the stopped subject would have waited for the store for more than {} ms\nhelp: take checkpoints less often, or use \
         a store on a faster disk",
        .0.as_millis()
    )]
    Slow(Duration),

    /// The name belongs to a subject. The command needs the name of a copy (an image that was copied under its own
    /// name).
    ///
    /// Row: not-a-copy
    #[error(
        "{0} is a subject, not a copy\nhelp: `undying prune {0} --keep K` removes checkpoints of a subject; `undying ls` marks the copies"
    )]
    NotACopy(String),

    /// The name cannot be the name of a directory in the store.
    ///
    /// Row: name-invalid
    #[error(
        "{name:?} is not a valid name of a subject: {why}\nhelp: use letters, digits, '-', '_', '.' and '+'"
    )]
    InvalidName {
        name: String,
        /// The rule that the name breaks.
        why: &'static str,
    },

    /// A part of the image exceeds a limit of the format.
    ///
    /// Row: image-too-large
    #[error("cannot write {path}: {source}\nhelp: please report this", path = shown(path))]
    TooLarge { path: PathBuf, source: image::Error },
}

/// The result of a store operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Reports whether the error is a fault of the image itself. The image is damaged, incomplete, foreign, of a
    /// newer format, or not trusted.
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

    /// Returns the error of work whose thread has panicked.
    pub(crate) fn panicked() -> Self {
        sys::Error::new("continue after a panic", Errno::SHORT).into()
    }

    /// Returns the error for a part of an image that could not be decoded.
    pub(crate) fn decoding(path: &Path, source: image::Error) -> Self {
        let path = path.to_path_buf();
        match source {
            image::Error::Foreign { .. } => Self::Foreign(path),
            image::Error::NewerVersion { found, supported, .. } => Self::Newer { path, found, supported },
            source => Self::Damaged { path, source },
        }
    }

    /// Returns the error for a part of an image that could not be encoded.
    pub(crate) fn encoding(path: &Path, source: image::Error) -> Self {
        Self::TooLarge { path: path.to_path_buf(), source }
    }
}

/// Returns the path as text for a message, with control characters escaped.
fn shown(path: &Path) -> String {
    Escaped(&path.to_string_lossy()).to_string()
}

/// Returns the help text for an image that does not exist: the command that lists the images or subjects.
fn list_of(name: &str, store: &Path) -> String {
    if !name.is_empty() && store.join(name).is_dir() {
        format!("`undying ls {}` lists what there is", Escaped(name))
    } else {
        "`undying ls` lists the subjects".to_owned()
    }
}

/// Returns `path` if `path` is a directory, otherwise the parent of `path`.
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

/// Reports whether `errno` is one of the errors in `some`.
pub(crate) fn is_one_of(errno: Errno, some: &[rustix::io::Errno]) -> bool {
    some.iter().any(|one| Errno::from(*one) == errno)
}
