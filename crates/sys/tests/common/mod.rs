//! What tests of watched calls share.
//!
//! Owns: the question whether there are listeners here, and directories that are removed in the end.
//! Does not: test.

use std::path::PathBuf;

use undying_sys::features;

/// Whether filters with a listener can be installed; says so if not.
pub(crate) fn is_supported() -> bool {
    match (features::entry(features::Feature::FileNotify).probe)(&std::env::temp_dir()) {
        Ok(_) => true,
        Err(error) => {
            println!("unsupported: file-notify: {error}");
            false
        }
    }
}

/// A directory that is removed in the end.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        // In memory where there is such a place: the holder waits until its mark is on disk.
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
