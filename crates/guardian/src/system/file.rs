//! The file that describes a system.
//!
//! Owns: reading the file, the check of its owner and permissions, and the mistakes that only a parser of addresses and probes finds.
//! Does not: know the keys of the file; `supervise` does.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use supervise::{Component, Mistake, Mistakes, System};

use super::{checks, startable};
use crate::error::GuardianError;

/// Maximum number of bytes that are read: enough for many thousands of components. The limit ends a read of
/// `/dev/zero`.
const BYTES_MAX: u64 = 16 << 20;

const PERMISSIONS: u32 = 0o7777;
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

/// A system file that was read.
#[derive(Debug)]
pub struct SystemFile<'a> {
    pub(super) path: &'a Path,
    text: String,
    pub(super) system: System,
}

/// Reads a system file, and makes all checks. Unless `is_file_only`, refuses a file with a user, a program, a directory
/// or a log that a component cannot use on this machine.
///
/// # Errors
///
/// The file cannot be read, another user can have written it, or it has mistakes. The error contains all mistakes.
pub fn check_system(path: &Path, is_file_only: bool) -> Result<System, GuardianError> {
    let file = SystemFile::read(path)?;
    if !is_file_only {
        let path = std::path::absolute(path).map_err(|error| sys::Error::path("find", path, error))?;
        file.require_startable(path.parent().unwrap_or(Path::new("/")), |_, _| true)?;
    }
    Ok(file.system)
}

impl<'a> SystemFile<'a> {
    /// Reads a system file, and makes all checks that do not depend on this machine.
    ///
    /// # Errors
    ///
    /// The file cannot be read, another user can have written it, or it has mistakes. The error contains all mistakes.
    pub fn read(path: &'a Path) -> Result<Self, GuardianError> {
        let failed = |error: std::io::Error| sys::Error::path("read", path, error);
        let mut content = Vec::new();
        let file = File::open(path).map_err(failed)?;
        check_writers(path, &file.metadata().map_err(failed)?)?;
        file.take(BYTES_MAX).read_to_end(&mut content).map_err(failed)?;
        let text = String::from_utf8_lossy(&content).into_owned();
        let system = System::parse(content).map_err(|mistakes| refused(path, &mistakes))?;
        let file = Self { path, text, system };
        let probes = mistakes_of_probes(&file.system);
        file.require_none(probes.chain(mistakes_of_channels(&file.system)).collect())?;
        Ok(file)
    }

    /// Returns the name of the system.
    #[must_use]
    pub fn name(&self) -> &str {
        self.system.system.name.get_ref()
    }

    /// Refuses the file if this machine lacks what the start of a checked component needs. `directory` is the directory
    /// of the file.
    pub(super) fn require_startable(
        &self,
        directory: &Path,
        is_checked: impl Fn(&str, &Component) -> bool,
    ) -> Result<(), GuardianError> {
        self.require_none(startable::mistakes(&self.system, directory, is_checked))
    }

    fn require_none(&self, mistakes: Vec<Mistake>) -> Result<(), GuardianError> {
        if mistakes.is_empty() {
            return Ok(());
        }
        Err(refused(self.path, &Mistakes::of(self.text.clone(), mistakes)))
    }
}

fn refused(path: &Path, mistakes: &Mistakes) -> GuardianError {
    GuardianError::System { path: path.to_path_buf(), mistakes: mistakes.shown(&path.to_string_lossy()) }
}

/// Checks that only root and this user can have written the file, because its commands run with the rights of this
/// user. As sudo(8) does for its own file, the check concerns the opened file and not the directories of its path. A
/// group may write if it has the number of the owner: the private group of the owner. What is written to a terminal or
/// to `/dev/null` is not read from it again, so everyone may write to such a device.
fn check_writers(path: &Path, file: &Metadata) -> Result<(), GuardianError> {
    let own = rustix::process::geteuid().as_raw();
    let (owner, mode) = (file.uid(), file.mode() & PERMISSIONS);
    let is_of_group = mode & GROUP_WRITES != 0 && file.gid() != owner;
    let why = if owner != 0 && owner != own {
        format!("belongs to uid {owner}")
    } else if !file.file_type().is_char_device() && (mode & OTHERS_WRITE != 0 || is_of_group) {
        format!("can be written by other users (mode {mode:04o})")
    } else {
        return Ok(());
    };
    Err(GuardianError::SystemUntrusted { path: path.to_path_buf(), why, own })
}

/// Returns the addresses in `channels` that are not valid.
fn mistakes_of_channels(system: &System) -> impl Iterator<Item = Mistake> {
    let addresses = system.component.values().flat_map(|component| component.channels.values());
    addresses.filter_map(|address| {
        let error = channel::Channels::check_address(address.get_ref()).err()?;
        let help = "write 127.0.0.1:80, [::1]:80, localhost:80, /path or @abstract".to_owned();
        Some(Mistake { place: address.span(), what: error.to_string(), help: Some(help) })
    })
}

/// Returns the probes that cannot be made, each at the name of its component.
fn mistakes_of_probes(system: &System) -> impl Iterator<Item = Mistake> {
    system.component.iter().filter_map(|(name, component)| {
        let error = checks::check(component).err()?;
        let what = format!("the checks on {} cannot be made: {error}", name.get_ref());
        Some(Mistake { place: name.span(), what, help: None })
    })
}
