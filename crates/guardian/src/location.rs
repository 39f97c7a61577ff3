//! The directory of the store, and the image that an IMAGE argument names.
//!
//! Owns: the default directory of the store, and opening the store on demand.
//! Invariants: a command that only reads never creates a store.
//! Does not: know the layout of the store; the crate `store` does.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use store::{ImageReader, Medium, Store, SubjectName};

use crate::aside::Parts;
use crate::error::{Found, GuardianError, Result};

/// Default store of the root user.
const SYSTEM_STORE: &str = "/var/lib/undying";
/// Default store of every other user, relative to XDG_STATE_HOME.
const USER_STORE: &str = "undying";
/// Default of XDG_STATE_HOME, relative to HOME.
const STATE_HOME: &str = ".local/state";

/// The location of a store. The store may not exist yet.
#[derive(Clone, Debug)]
pub struct StoreLocation {
    root: PathBuf,
    /// The medium (the storage interface) of the store. `None` if the path selects the medium.
    medium: Option<Arc<dyn Medium>>,
}

impl StoreLocation {
    /// Returns the location `named`, or the default location of this user.
    ///
    /// # Errors
    ///
    /// `NoStore` if `named` is `None`, and the environment names no home directory.
    pub fn new(named: Option<&Path>) -> Result<Self> {
        if let Some(named) = named {
            return Ok(Self::at(named.to_path_buf()));
        }
        if rustix::process::geteuid().is_root() {
            return Ok(Self::at(PathBuf::from(SYSTEM_STORE)));
        }
        // The XDG base directory specification requires that relative paths in these variables are ignored.
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(STATE_HOME)));
        state.map(|state| Self::at(state.join(USER_STORE))).ok_or(GuardianError::NoStore)
    }

    /// Returns a location on a given medium.
    #[must_use]
    pub fn on(medium: Arc<dyn Medium>, root: PathBuf) -> Self {
        Self { root, medium: Some(medium) }
    }

    fn at(root: PathBuf) -> Self {
        Self { root, medium: None }
    }

    /// Returns the path of the store.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Reports whether something exists at the path. Returns true for every location on a given medium.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.medium.is_some() || self.root.symlink_metadata().is_ok()
    }

    /// Opens the store. Creates the store if it does not exist.
    pub(crate) fn create(&self) -> Result<Store> {
        Ok(match &self.medium {
            Some(medium) => Store::open_on(Arc::clone(medium), &self.root)?,
            None => Store::open(&self.root)?,
        })
    }

    /// Opens the store. Returns `None` if the store does not exist.
    pub(crate) fn open(&self) -> Result<Option<Store>> {
        let is_scheme = self.root.to_str().is_some_and(|text| text.contains("://"));
        if is_scheme || self.root.exists() { self.create().map(Some) } else { Ok(None) }
    }

    /// Returns the directory of the image `spec`, which is a path, NAME or NAME@SEQ.
    pub(crate) fn image(&self, spec: &str) -> Result<PathBuf> {
        if spec.contains('/') || spec == "." || spec == ".." {
            return Ok(PathBuf::from(spec));
        }
        match self.open()? {
            Some(store) => Ok(store.resolve(spec)?),
            // Without a store, the argument can only name a directory relative to the current directory.
            None if Path::new(spec).is_dir() => Ok(PathBuf::from(spec)),
            None => Err(self.not_found(spec).into()),
        }
    }

    /// Opens the store to look up `name`. Returns the error `NotFound` for `name` if the store does not exist.
    pub(crate) fn existing(&self, name: &str) -> Result<Store> {
        Ok(self.open()?.ok_or_else(|| self.not_found(name))?)
    }

    /// Opens the store. Fails if the store contains neither a subject nor a copy of this name.
    pub(crate) fn with_subject(&self, name: &SubjectName) -> Result<Store> {
        let store = self.open()?.filter(|store| store.root().join(name.as_str()).is_dir());
        store.ok_or_else(|| GuardianError::NoSubject { name: name.to_string(), store: self.root.clone() })
    }

    /// Returns a row for each subject, or only for the subject `wanted`. Without `wanted`, a subject that cannot be
    /// read is listed in `failed`.
    pub(crate) fn rows<T>(
        &self,
        wanted: Option<&SubjectName>,
        row: impl Fn(&Store, &SubjectName) -> Result<Option<T>>,
    ) -> Result<Found<T>> {
        let mut found = Found::default();
        let Some(store) = self.open()? else { return Ok(found) };
        for name in wanted.map_or_else(|| store.names(), |wanted| Ok(vec![wanted.clone()]))? {
            match row(&store, &name) {
                Ok(row) => found.rows.extend(row),
                Err(error) if wanted.is_some() => return Err(error),
                Err(error) => found.failed.push((name.to_string(), error)),
            }
        }
        Ok(found)
    }

    fn not_found(&self, name: &str) -> store::Error {
        store::Error::NotFound { name: name.to_owned(), sequence: None, store: self.root.clone() }
    }

    /// Returns the place where a restore of this image keeps the parts of files that the restore cuts off.
    pub(crate) fn parts_of(&self, spec: &str) -> Result<Parts> {
        let image = self.image(spec)?;
        Ok(match image.strip_prefix(&self.root).ok().and_then(Path::parent) {
            Some(subject) if !subject.as_os_str().is_empty() => Parts::of_subject(&self.root.join(subject)),
            _ => Parts::of_image(&image),
        })
    }

    /// Returns the subject whose directory in the store contains the image. Returns `None` for an image outside the
    /// store.
    pub(crate) fn subject_of(&self, spec: &str) -> Result<Option<(Store, SubjectName)>> {
        let image = self.image(spec)?;
        let below = image.strip_prefix(&self.root).ok().and_then(Path::parent).and_then(Path::to_str);
        let name = below.filter(|name| !name.is_empty()).and_then(|name| name.parse().ok());
        Ok(self.open()?.zip(name))
    }

    /// Opens the image that `spec` names.
    pub(crate) fn read(&self, spec: &str) -> Result<ImageReader> {
        let path = self.image(spec)?;
        Ok(match &self.medium {
            Some(medium) => ImageReader::open_on(&**medium, &path)?,
            None => ImageReader::open(&path)?,
        })
    }
}
