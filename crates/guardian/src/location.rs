//! Where the store is, and what an IMAGE argument means.
//!
//! Owns: the default directory; opening a store only when it is needed.
//! Invariants: a command that reads never creates a store.
//! Does not: know the layout inside; `store` does.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use store::{ImageReader, Medium, Store, SubjectName};

use crate::aside::Parts;
use crate::error::{Found, GuardianError, Result};

/// The store of root.
const SYSTEM_STORE: &str = "/var/lib/undying";
/// The store of every other user, below XDG_STATE_HOME.
const USER_STORE: &str = "undying";
/// What XDG_STATE_HOME is when it is not set, below HOME.
const STATE_HOME: &str = ".local/state";

/// The place of a store, which need not exist yet.
#[derive(Clone, Debug)]
pub struct StoreLocation {
    root: PathBuf,
    /// The medium of the store, unless the path decides.
    medium: Option<Arc<dyn Medium>>,
}

impl StoreLocation {
    /// The place that was named, or the default of this user.
    ///
    /// # Errors
    ///
    /// `NoStore` when none was given and the environment has no home directory.
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

    /// A place on a medium of the caller's.
    #[must_use]
    pub fn on(medium: Arc<dyn Medium>, root: PathBuf) -> Self {
        Self { root, medium: Some(medium) }
    }

    fn at(root: PathBuf) -> Self {
        Self { root, medium: None }
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Whether there is anything at its path.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.medium.is_some() || self.root.symlink_metadata().is_ok()
    }

    /// The store, created when it is not there.
    pub(crate) fn create(&self) -> Result<Store> {
        Ok(match &self.medium {
            Some(medium) => Store::open_on(Arc::clone(medium), &self.root)?,
            None => Store::open(&self.root)?,
        })
    }

    /// The store, if there is one.
    pub(crate) fn open(&self) -> Result<Option<Store>> {
        let is_scheme = self.root.to_str().is_some_and(|text| text.contains("://"));
        if is_scheme || self.root.exists() { self.create().map(Some) } else { Ok(None) }
    }

    /// The directory of the image that an argument names: a path, NAME or NAME@SEQ.
    pub(crate) fn image(&self, spec: &str) -> Result<PathBuf> {
        if spec.contains('/') || spec == "." || spec == ".." {
            return Ok(PathBuf::from(spec));
        }
        match self.open()? {
            Some(store) => Ok(store.resolve(spec)?),
            // Without a store only a directory here can be meant.
            None if Path::new(spec).is_dir() => Ok(PathBuf::from(spec)),
            None => Err(self.not_found(spec).into()),
        }
    }

    /// The store, which must exist for a lookup in it.
    pub(crate) fn existing(&self, name: &str) -> Result<Store> {
        Ok(self.open()?.ok_or_else(|| self.not_found(name))?)
    }

    /// The store, if it has a subject or a copy of this name.
    pub(crate) fn with_subject(&self, name: &SubjectName) -> Result<Store> {
        let store = self.open()?.filter(|store| store.root().join(name.as_str()).is_dir());
        store.ok_or_else(|| GuardianError::NoSubject { name: name.to_string(), store: self.root.clone() })
    }

    /// A row for each subject, or for the one that is wanted. With several, one that cannot be read is listed.
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

    /// Where a restore of that image keeps the parts that it cuts off files.
    pub(crate) fn parts_of(&self, spec: &str) -> Result<Parts> {
        let image = self.image(spec)?;
        Ok(match image.strip_prefix(&self.root).ok().and_then(Path::parent) {
            Some(subject) if !subject.as_os_str().is_empty() => Parts::of_subject(&self.root.join(subject)),
            _ => Parts::of_image(&image),
        })
    }

    /// The subject of the store whose directory holds that image; `None` for an image that lies elsewhere.
    pub(crate) fn subject_of(&self, spec: &str) -> Result<Option<(Store, SubjectName)>> {
        let image = self.image(spec)?;
        let below = image.strip_prefix(&self.root).ok().and_then(Path::parent).and_then(Path::to_str);
        let name = below.filter(|name| !name.is_empty()).and_then(|name| name.parse().ok());
        Ok(self.open()?.zip(name))
    }

    /// Opens the image that an argument names.
    pub(crate) fn read(&self, spec: &str) -> Result<ImageReader> {
        let path = self.image(spec)?;
        Ok(match &self.medium {
            Some(medium) => ImageReader::open_on(&**medium, &path)?,
            None => ImageReader::open(&path)?,
        })
    }
}
