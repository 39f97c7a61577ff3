//! Code that several tests of watched calls share.
//!
//! Owns: the check whether filters with a listener are supported, and directories that are removed when dropped.
//! Does not: contain tests.

use std::path::PathBuf;

use undying_sys::features;

/// Reports whether filters with a listener can be installed. Prints the reason if they cannot.
pub(crate) fn is_supported() -> bool {
    match (features::entry(features::Feature::FileNotify).probe)(&std::env::temp_dir()) {
        Ok(_) => true,
        Err(error) => {
            println!("unsupported: file-notify: {error}");
            false
        }
    }
}

/// A directory that is removed when this value is dropped.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        // The directory is in memory if possible, because the holder waits until its mark is on disk.
        let memory = PathBuf::from("/dev/shm");
        let place = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let path = place.join(format!("undying-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
