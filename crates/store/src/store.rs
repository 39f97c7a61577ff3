//! The store: a directory that contains one subdirectory for each subject. The subdirectory contains images
//! (directories with one checkpoint each), a log (shared files with many checkpoints), or both.
//!
//! Owns: the layout `STORE/NAME/SEQ` and `STORE/NAME/log`; listing, choosing and pruning images.
//! Invariants: a store that other users can access is refused. `next_sequence` returns a higher number than the number
//! of any existing checkpoint of the subject. `list` returns only committed checkpoints.
//! Does not: decide when to prune; the caller decides.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use image::Commit;
use model::Sequence;

use crate::backend;
use crate::codec::Codec;
use crate::copy;
use crate::error::{Error, Result};
use crate::layout::{COMMIT_FILE, WriteOptions, parent};
use crate::log::{self, LogCommitted, LogOptions, LogWriter};
use crate::medium::{Kind, Medium};
use crate::name::{SubjectName, parse_sequence, parse_spec};
use crate::opening;
use crate::reader::ImageReader;
use crate::staging;
use crate::writer::ImageWriter;

/// Permission bits of the group and of other users.
const OTHERS: u32 = 0o077;

/// The directory that contains the images of all subjects.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) root: PathBuf,
}

/// An entry of a subject: an image directory whose name is a sequence number, or a checkpoint of the log.
#[derive(Clone, Debug)]
pub struct StoreEntry {
    /// The sequence number of the entry.
    pub sequence: Sequence,
    /// The path of the image. For a checkpoint of a log, no directory exists at this path.
    pub path: PathBuf,
    /// The commit record, or the error of reading the commit record.
    pub commit: Result<Commit>,
}

impl Store {
    /// Opens the store at `location`, which is a directory or `SCHEME://…`. Creates a missing store.
    ///
    /// # Errors
    ///
    /// Returns `Exposed` if the store gives permissions to other users, and `Untrusted` if another user owns the store.
    /// Also returns `NotDirectory`, `UnknownBackend` and `Io`.
    pub fn open(location: &Path) -> Result<Self> {
        let (medium, root) = backend::locate(location)?;
        Self::open_on(medium, &root)
    }

    /// Opens the store at `root` on the given medium. Fails as `open` does.
    pub fn open_on(medium: Arc<dyn Medium>, root: &Path) -> Result<Self> {
        let root = &*medium.resolve(root)?;
        match medium.kind(root)? {
            Some(Kind::Directory { mode }) if mode & OTHERS != 0 => {
                return Err(Error::Exposed { path: root.to_path_buf(), mode });
            }
            Some(Kind::Directory { .. }) => medium.check_directory(root)?,
            Some(Kind::File) => return Err(Error::NotDirectory(root.to_path_buf())),
            None => create_durably(&*medium, root)?,
        }
        Ok(Self { medium, root: root.to_path_buf() })
    }

    /// Returns the path of the store.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the names of all subjects, sorted. Fails if the store cannot be listed.
    pub fn names(&self) -> Result<Vec<SubjectName>> {
        let entries = self.medium.list(&self.root)?;
        let directories = entries.into_iter().filter(|entry| entry.is_directory);
        let mut names: Vec<SubjectName> = directories.filter_map(|entry| entry.name.parse().ok()).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the sequence number for the next checkpoint of a subject. The number is higher than the sequence numbers
    /// of all entries of the subject, including uncommitted images. Fails if the subject's directory cannot be listed.
    pub fn next_sequence(&self, name: &SubjectName) -> Result<Sequence> {
        Ok(self.sequences(name)?.last().map_or(Sequence(1), |last| Sequence(last.0.saturating_add(1))))
    }

    /// Removes *leftovers* (incomplete images that dead writers have left in this store), and begins an image.
    ///
    /// # Errors
    ///
    /// Returns `Exists` if the sequence number is in use, or the error of creating the directory.
    pub fn begin(
        &self,
        name: &SubjectName,
        sequence: Sequence,
        options: WriteOptions,
    ) -> Result<ImageWriter> {
        self.prepare(name)?;
        self.sweep_all();
        ImageWriter::create_on(Arc::clone(&self.medium), &self.image_path(name, sequence), options)
    }

    /// Removes leftovers as `begin` does, and opens a subject's log for writing. Fails as `LogWriter::open_on` does.
    pub fn open_log(&self, name: &SubjectName, options: LogOptions) -> Result<LogWriter> {
        self.prepare(name)?;
        self.sweep_all();
        LogWriter::open_on(&self.medium, &self.log(name), options)
    }

    /// Returns all entries of a subject, committed and uncommitted, sorted by sequence number. Fails if the subject's
    /// directory cannot be listed.
    pub fn entries(&self, name: &SubjectName) -> Result<Vec<StoreEntry>> {
        let entry = |sequence| {
            let path = self.image_path(name, sequence);
            let commit = opening::read_commit(&*self.medium, &path);
            StoreEntry { sequence, path, commit }
        };
        let mut entries: Vec<StoreEntry> = self.directories(name)?.into_iter().map(entry).collect();
        for (sequence, commit) in log::read::commits(&*self.medium, &self.log(name))? {
            if entries.iter().all(|entry| entry.sequence != sequence) {
                entries.push(StoreEntry { sequence, path: self.image_path(name, sequence), commit });
            }
        }
        entries.sort_unstable_by_key(|entry| entry.sequence);
        Ok(entries)
    }

    /// Returns the sequence numbers and commit records of the committed checkpoints, sorted by sequence number. Fails
    /// if the subject's directory cannot be listed.
    pub fn list(&self, name: &SubjectName) -> Result<Vec<(Sequence, Commit)>> {
        let entries = self.entries(name)?.into_iter();
        Ok(entries.filter_map(|entry| Some((entry.sequence, entry.commit.ok()?))).collect())
    }

    /// Returns the committed checkpoint with the highest sequence number, and the path of the checkpoint. Fails if the
    /// subject's directory cannot be listed.
    pub fn newest(&self, name: &SubjectName) -> Result<Option<(Sequence, PathBuf)>> {
        let newest = |sequence: &Sequence| {
            opening::read_commit(&*self.medium, &self.image_path(name, *sequence)).is_ok()
        };
        let found = self.sequences(name)?.into_iter().rev().find(newest);
        Ok(found.map(|sequence| (sequence, self.image_path(name, sequence))))
    }

    /// Returns the path of one committed checkpoint, as in `StoreEntry::path`.
    ///
    /// # Errors
    ///
    /// Returns `NotFound`, or the error of reading the commit record.
    pub fn get(&self, name: &SubjectName, sequence: Sequence) -> Result<PathBuf> {
        let path = self.image_path(name, sequence);
        if !self.sequences(name)?.contains(&sequence) {
            return Err(self.not_found(name, Some(sequence)));
        }
        opening::read_commit(&*self.medium, &path)?;
        Ok(path)
    }

    /// Returns the path of the checkpoint that an IMAGE argument names. The argument is the path of an image,
    /// `NAME@SEQ`, or `NAME` for the newest checkpoint of a subject. An argument is a path if it contains a slash, or
    /// is `.` or `..`. An argument is also a path if a commit record exists at `ARGUMENT/commit`, relative to the
    /// working directory.
    ///
    /// # Errors
    ///
    /// Returns `NotFound`, `InvalidName`, or the error of reading the commit record.
    pub fn resolve(&self, spec: &str) -> Result<PathBuf> {
        let path = Path::new(spec);
        let only_path = spec.contains('/') || !matches!(path.components().next(), Some(Component::Normal(_)));
        if !spec.is_empty() && (only_path || self.medium.kind(&path.join(COMMIT_FILE))?.is_some()) {
            opening::read_commit(&*self.medium, path)?;
            return Ok(path.to_path_buf());
        }
        match parse_spec(spec)? {
            (name, Some(sequence)) => self.get(&name, sequence),
            (name, None) => match self.newest(&name)? {
                Some((_, path)) => Ok(path),
                None => Err(self.not_found(&name, None)),
            },
        }
    }

    /// Opens the image or the log checkpoint with this sequence number. Fails with `NotFound`, or as
    /// `ImageReader::open` does.
    pub fn image(&self, name: &SubjectName, sequence: Sequence) -> Result<ImageReader> {
        self.read(&self.get(name, sequence)?)
    }

    /// Opens an image on this store's medium. Fails as `ImageReader::open` does.
    pub fn read(&self, path: &Path) -> Result<ImageReader> {
        ImageReader::open_on(&*self.medium, path)
    }

    /// Copies an image under the name `name`, with the same sequence number, and returns the path of the copy. `image`
    /// is a path that `resolve` has returned. If possible, image and copy share the files with the pages. The copy
    /// remains complete when the image is removed.
    ///
    /// # Errors
    ///
    /// Returns `Exists` if `name` has an image with this sequence number, an error of reading the image, or `Io`.
    pub fn link(&self, image: &Path, name: &SubjectName) -> Result<PathBuf> {
        let sequence = opening::read_commit(&*self.medium, image)?.sequence;
        if self.sequences(name)?.contains(&sequence) {
            return Err(Error::Exists(self.image_path(name, sequence)));
        }
        self.prepare(name)?;
        let path = self.image_path(name, sequence);
        copy::copy(&self.medium, image, &path)?;
        Ok(path)
    }

    /// Removes one image. Returns false if no image has this sequence number, or if another process is removing the
    /// image. Does not remove a checkpoint of a log; the retention policy of the log and `prune` do. Fails if the image
    /// cannot be removed.
    pub fn remove(&self, name: &SubjectName, sequence: Sequence) -> Result<bool> {
        let path = self.image_path(name, sequence);
        Ok(self.medium.kind(&path)?.is_some() && staging::retire(&*self.medium, &path)?)
    }

    /// Writes a copy of an image to `target` on this store's medium. `image` is a path that `resolve` has returned. The
    /// copy shares no file with the image and contains only this checkpoint. Therefore the copy can be moved to another
    /// machine. With a codec, the pages of the copy are compressed.
    ///
    /// # Errors
    ///
    /// Returns `Exists`, an error of reading the image, or `Io`.
    pub fn export(
        &self,
        image: &Path,
        target: &Path,
        codec: Option<&'static dyn Codec>,
    ) -> Result<LogCommitted> {
        copy::export(&self.medium, image, target, WriteOptions { codec, ..WriteOptions::default() })
    }

    /// Keeps the newest `keep` committed checkpoints, and removes all older entries, committed and uncommitted. Returns
    /// the sequence numbers of the removed entries.
    ///
    /// # Errors
    ///
    /// Returns `LogBusy` if checkpoints of a log must be removed while another process writes this log. Also returns an
    /// error of removing an entry. Entries that were removed before the error remain removed.
    pub fn prune(&self, name: &SubjectName, keep: usize) -> Result<Vec<Sequence>> {
        let logged = log::read::sequences(&*self.medium, &self.log(name))?;
        let mut kept = 0;
        let mut kept_of_log = 0;
        let mut removed = Vec::new();
        for sequence in self.sequences(name)?.into_iter().rev() {
            if kept < keep {
                let path = self.image_path(name, sequence);
                kept += usize::from(opening::read_commit(&*self.medium, &path).is_ok());
                kept_of_log += usize::from(logged.contains(&sequence));
            } else if self.remove(name, sequence)? {
                removed.push(sequence);
            }
        }
        let log = self.log(name);
        if kept_of_log > 0 && kept_of_log < logged.len() {
            removed.extend(log::squash::prune(&self.medium, &log, kept_of_log)?);
        } else if kept_of_log == 0 && !logged.is_empty() {
            if !staging::retire(&*self.medium, &log)? {
                return Err(Error::LogBusy(log));
            }
            removed.extend(logged);
        }
        removed.sort_unstable();
        Ok(removed)
    }

    /// Removes the leftovers (see `begin`) in the directory of a subject, and returns the number of removed leftovers.
    /// Fails if the subject's directory cannot be listed.
    pub fn sweep(&self, name: &SubjectName) -> Result<usize> {
        staging::sweep(&*self.medium, &self.subject(name))
    }

    /// Removes the leftovers in the whole store. Ignores errors, because a damaged directory of one subject must not
    /// prevent checkpoints of the other subjects.
    fn sweep_all(&self) {
        for name in self.names().unwrap_or_default() {
            let _ = self.sweep(&name);
        }
    }

    /// Creates the directory of a subject if it does not exist, and refuses a directory that other users can write to.
    fn prepare(&self, name: &SubjectName) -> Result<()> {
        let directory = self.subject(name);
        if self.medium.kind(&directory)?.is_none() {
            create_durably(&*self.medium, &directory)?;
        }
        self.medium.check_directory(&directory)
    }

    pub(crate) fn subject(&self, name: &SubjectName) -> PathBuf {
        self.root.join(name.as_str())
    }

    fn image_path(&self, name: &SubjectName, sequence: Sequence) -> PathBuf {
        self.subject(name).join(sequence.to_string())
    }

    pub(crate) fn log(&self, name: &SubjectName) -> PathBuf {
        self.subject(name).join(log::LOG_DIRECTORY)
    }

    /// Returns the sequence numbers of all images and log checkpoints of a subject, sorted.
    fn sequences(&self, name: &SubjectName) -> Result<Vec<Sequence>> {
        let mut sequences = self.directories(name)?;
        sequences.extend(log::read::sequences(&*self.medium, &self.log(name))?);
        sequences.sort_unstable();
        sequences.dedup();
        Ok(sequences)
    }

    /// Returns the sequence numbers of the image directories of a subject, sorted.
    fn directories(&self, name: &SubjectName) -> Result<Vec<Sequence>> {
        let directory = self.subject(name);
        if self.medium.kind(&directory)?.is_none() {
            return Ok(Vec::new());
        }
        self.medium.check_directory(&directory)?;
        let entries = self.medium.list(&directory)?.into_iter().filter(|entry| entry.is_directory);
        let mut sequences: Vec<Sequence> = entries.filter_map(|entry| parse_sequence(&entry.name)).collect();
        sequences.sort_unstable();
        Ok(sequences)
    }

    pub(crate) fn not_found(&self, name: &SubjectName, sequence: Option<Sequence>) -> Error {
        Error::NotFound { name: name.to_string(), sequence, store: self.root.clone() }
    }
}

/// Creates a directory and its missing ancestors, from the top. Each directory is durable before a directory inside it
/// is created.
fn create_durably(medium: &dyn Medium, path: &Path) -> Result<()> {
    let mut missing = vec![path];
    while let Some(above) = missing.last().map(|path| parent(path))
        && medium.kind(above)?.is_none()
    {
        missing.push(above);
    }
    for path in missing.into_iter().rev() {
        match medium.create_directory(path) {
            Err(error) if error.errno != sys::Errno::EEXIST => return Err(error.into()),
            _ => medium.sync_directory(parent(path))?,
        }
    }
    Ok(())
}
