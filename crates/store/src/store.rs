//! The store: one directory for each subject, and in it one image for each checkpoint, or a log of them.
//!
//! Owns: the layout `STORE/NAME/SEQ` and `STORE/NAME/log`, listing, choosing, pruning.
//! Invariants: a store that others can read is refused; sequence numbers rise; only committed images are
//! listed as images.
//! Does not: decide when to prune; the caller does.

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

/// Permission bits of users other than the owner.
const OTHERS: u32 = 0o077;

/// A place for the images of many subjects.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) root: PathBuf,
}

/// A directory of the store that is an image, or should be, or a checkpoint of a log.
#[derive(Clone, Debug)]
pub struct StoreEntry {
    /// Its number.
    pub sequence: Sequence,
    /// Its directory; for a checkpoint of a log, where it would be.
    pub path: PathBuf,
    /// Its commit record, or what is wrong with it.
    pub commit: Result<Commit>,
}

impl Store {
    /// Opens the store at a location, a directory or `SCHEME://…`, and creates it if it is not there.
    ///
    /// # Errors
    ///
    /// `Exposed` when others may read it; `Untrusted` when another user owns it; `NotDirectory`; `UnknownBackend`; `Io`.
    pub fn open(location: &Path) -> Result<Self> {
        let (medium, root) = backend::locate(location)?;
        Self::open_on(medium, &root)
    }

    /// As `open`, on any medium. Fails as `open`.
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

    /// Where the store is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// All subjects, by name. Fails when the store cannot be listed.
    pub fn names(&self) -> Result<Vec<SubjectName>> {
        let entries = self.medium.list(&self.root)?;
        let directories = entries.into_iter().filter(|entry| entry.is_directory);
        let mut names: Vec<SubjectName> = directories.filter_map(|entry| entry.name.parse().ok()).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// The number that the next checkpoint of a subject gets: above all that are there, whole or not.
    /// Fails when the subject's directory cannot be listed.
    pub fn next_sequence(&self, name: &SubjectName) -> Result<Sequence> {
        Ok(self.sequences(name)?.last().map_or(Sequence(1), |last| Sequence(last.0.saturating_add(1))))
    }

    /// Begins an image; what dead writers left behind in this store is removed first.
    ///
    /// # Errors
    ///
    /// `Exists` when the number is taken, or what kept the directory from being created.
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

    /// Opens a subject's log for writing. Fails as `LogWriter::open_on`.
    pub fn open_log(&self, name: &SubjectName, options: LogOptions) -> Result<LogWriter> {
        self.prepare(name)?;
        self.sweep_all();
        LogWriter::open_on(&self.medium, &self.log(name), options)
    }

    /// Everything that has a number, in rising order, committed or not.
    /// Fails when the subject's directory cannot be listed.
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

    /// The committed images, in rising order, with their commit records.
    /// Fails when the subject's directory cannot be listed.
    pub fn list(&self, name: &SubjectName) -> Result<Vec<(Sequence, Commit)>> {
        let entries = self.entries(name)?.into_iter();
        Ok(entries.filter_map(|entry| Some((entry.sequence, entry.commit.ok()?))).collect())
    }

    /// The committed image with the highest number. Fails when the subject's directory cannot be listed.
    pub fn newest(&self, name: &SubjectName) -> Result<Option<(Sequence, PathBuf)>> {
        let newest = |sequence: &Sequence| {
            opening::read_commit(&*self.medium, &self.image_path(name, *sequence)).is_ok()
        };
        let found = self.sequences(name)?.into_iter().rev().find(newest);
        Ok(found.map(|sequence| (sequence, self.image_path(name, sequence))))
    }

    /// The directory of one image.
    ///
    /// # Errors
    ///
    /// `NotFound`, or what is wrong with its commit record.
    pub fn get(&self, name: &SubjectName, sequence: Sequence) -> Result<PathBuf> {
        let path = self.image_path(name, sequence);
        if !self.sequences(name)?.contains(&sequence) {
            return Err(self.not_found(name, Some(sequence)));
        }
        opening::read_commit(&*self.medium, &path)?;
        Ok(path)
    }

    /// The directory that an IMAGE argument names: a path with a slash, a directory here that holds a commit
    /// record, `NAME@SEQ`, or `NAME` for the newest.
    ///
    /// # Errors
    ///
    /// `NotFound`, `InvalidName`, or what is wrong with the commit record.
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

    /// Opens the image or the checkpoint of the log with this number. Fails with `NotFound`, or as `ImageReader::open`.
    pub fn image(&self, name: &SubjectName, sequence: Sequence) -> Result<ImageReader> {
        self.read(&self.get(name, sequence)?)
    }

    /// Opens an image on this store's medium. Fails as `ImageReader::open`.
    pub fn read(&self, path: &Path) -> Result<ImageReader> {
        ImageReader::open_on(&*self.medium, path)
    }

    /// Keeps an image, a path as `resolve` gives it, under a name of its own and its own number, and gives the
    /// path. The copy shares its pages with the image, and stays when that one goes.
    ///
    /// # Errors
    ///
    /// `Exists` when the name has an image of this number; what is wrong with the image; or `Io`.
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

    /// Removes one image; false when there is none of this number, or when another process is removing it.
    /// Checkpoints of a log go by its policy, or with `prune`. Fails when it cannot be removed.
    pub fn remove(&self, name: &SubjectName, sequence: Sequence) -> Result<bool> {
        let path = self.image_path(name, sequence);
        Ok(self.medium.kind(&path)?.is_some() && staging::retire(&*self.medium, &path)?)
    }

    /// Writes an image, a path as `resolve` gives it, anew at `target` on this store's medium: one directory that
    /// shares nothing and holds nothing else, to be taken to another machine. With a codec, its pages are compressed.
    ///
    /// # Errors
    ///
    /// `Exists`; what is wrong with the image; or `Io`.
    pub fn export(
        &self,
        image: &Path,
        target: &Path,
        codec: Option<&'static dyn Codec>,
    ) -> Result<LogCommitted> {
        copy::export(&self.medium, image, target, WriteOptions { codec, ..WriteOptions::default() })
    }

    /// Removes all but the newest `keep` committed images, and gives the numbers removed. What has a lower
    /// number than those kept and is not committed goes too.
    ///
    /// # Errors
    ///
    /// `LogBusy` when checkpoints of a log that is being written would go; when something cannot be removed. What was
    /// removed before stays so.
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

    /// Removes what dead writers of a subject left behind, and says how many there were.
    /// Fails when the subject's directory cannot be listed.
    pub fn sweep(&self, name: &SubjectName) -> Result<usize> {
        staging::sweep(&*self.medium, &self.subject(name))
    }

    /// Removes what dead writers left behind in the whole store. A subject that cannot be swept is left as it is: it
    /// must not keep others from being written.
    fn sweep_all(&self) {
        for name in self.names().unwrap_or_default() {
            let _ = self.sweep(&name);
        }
    }

    /// Makes the directory of a subject if it is not there, and refuses one that others can write to.
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

    /// The numbers that are there, rising, in directories and in the log.
    fn sequences(&self, name: &SubjectName) -> Result<Vec<Sequence>> {
        let mut sequences = self.directories(name)?;
        sequences.extend(log::read::sequences(&*self.medium, &self.log(name))?);
        sequences.sort_unstable();
        sequences.dedup();
        Ok(sequences)
    }

    /// The numbers of directories, rising.
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

/// Creates a directory and those above it that are missing, each durable before the next.
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
