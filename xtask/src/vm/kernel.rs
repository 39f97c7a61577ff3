//! The kernel that the emulated machine boots: an unpacked Debian package.
//!
//! Owns: the package versions of recorded results, and the choice of another version if the archive no longer has them.
//! Invariants: a kernel of another series is never chosen. The name and the version of the package are printed.
//! Does not: build kernels, or install the package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Failure;
use crate::vm::{at, output, require};

/// Series, package and version of recorded results. If the archive no longer contains the package, the newest package
/// of the series is used.
const RECORDED: &[(&str, &str, &str)] = &[("6.1", "linux-image-6.1.0-56-cloud-amd64", "6.1.192-2")];

/// An unpacked kernel.
pub(crate) struct Kernel {
    /// The name of the package.
    pub(crate) package: String,
    /// The version of the package.
    pub(crate) version: String,
    /// The path of the bootable image.
    pub(crate) image: PathBuf,
    /// The directory of the modules, which has the name of the kernel release.
    pub(crate) modules: PathBuf,
}

impl Kernel {
    /// Returns the kernel release, as `uname -r` prints it on the emulated machine.
    pub(crate) fn release(&self) -> String {
        self.modules.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

/// Returns the kernel of a series. Downloads the package if it is not present yet.
pub(crate) fn find(series: &str, package: Option<&Path>, folder: &Path) -> Result<Kernel, Failure> {
    let kernels = folder.join("kernels");
    fs::create_dir_all(&kernels).map_err(at(&kernels))?;
    if let Some(package) = package {
        return unpack(package, &kernels);
    }
    let recorded = RECORDED.iter().find(|(name, ..)| *name == series);
    if let Some((_, name, version)) = recorded {
        let unpacked = kernels.join(format!("{name}_{version}"));
        if unpacked.is_dir() {
            return describe(name, version, &unpacked);
        }
    }
    require(&[("apt-get", "apt"), ("apt-cache", "apt")])?;
    let known = output(Command::new("apt-cache").args(["pkgnames", &format!("linux-image-{series}.")]))?;
    let pinned = recorded.map(|(_, name, _)| *name).filter(|name| known.lines().any(|line| line == *name));
    let Some(name) = pinned.or_else(|| newest(&known)) else {
        return Err(Failure::NoKernel { series: series.to_owned() });
    };
    let package = fetch(name, recorded.map(|(.., version)| *version), &kernels)?;
    unpack(&package, &kernels)
}

/// Returns the newest package for virtual machines. The lists also contain packages of debug symbols and unsigned
/// kernels.
fn newest(names: &str) -> Option<&str> {
    let wanted = |name: &&str| name.ends_with("-cloud-amd64") && name.starts_with("linux-image-");
    names.lines().filter(wanted).max_by_key(|name| numbers(name))
}

/// Returns the numbers in a name, for comparison.
fn numbers(name: &str) -> Vec<u64> {
    let parts = name.trim_end_matches("-cloud-amd64").split(|letter: char| !letter.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

/// Downloads a package: the recorded version, or the available version if the archive no longer has the recorded
/// version.
fn fetch(name: &str, version: Option<&str>, folder: &Path) -> Result<PathBuf, Failure> {
    let download = |wanted: &str| {
        output(Command::new("apt-get").args(["download", "-qq", wanted]).current_dir(folder)).map(drop)
    };
    println!("vm: fetching {name}");
    let exact = version.map(|version| format!("{name}={version}"));
    if exact.is_none_or(|exact| download(&exact).is_err()) {
        download(name)?;
    }
    let entries = fs::read_dir(folder).map_err(at(folder))?;
    let mut packages: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    packages.retain(|path| {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        file.starts_with(&format!("{name}_")) && file.ends_with(".deb")
    });
    packages.pop().ok_or_else(|| Failure::NoKernel { series: name.to_owned() })
}

fn unpack(package: &Path, kernels: &Path) -> Result<Kernel, Failure> {
    let field = |name: &str| output(Command::new("dpkg-deb").arg("--field").arg(package).arg(name));
    let (name, version) = (field("Package")?.trim().to_owned(), field("Version")?.trim().to_owned());
    let folder = kernels.join(format!("{name}_{version}"));
    if !folder.is_dir() {
        let partial = kernels.join("partial");
        let _left_by_an_earlier_try = fs::remove_dir_all(&partial);
        output(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&partial))?;
        fs::rename(&partial, &folder).map_err(at(&folder))?;
    }
    describe(&name, &version, &folder)
}

fn describe(name: &str, version: &str, folder: &Path) -> Result<Kernel, Failure> {
    let only = |below: &str, beginning: &str| {
        let parent = folder.join(below);
        let entries = fs::read_dir(&parent).map_err(at(&parent))?;
        let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let matches = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(beginning))
        };
        paths.find(matches).ok_or_else(|| Failure::NoKernel { series: name.to_owned() })
    };
    Ok(Kernel {
        package: name.to_owned(),
        version: version.to_owned(),
        image: only("boot", "vmlinuz-")?,
        modules: only("lib/modules", "")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_is_the_highest_number_and_no_other_kind_of_package() {
        let names = "linux-image-6.1.0-9-cloud-amd64\nlinux-image-6.1.0-56-cloud-amd64\n\
                     linux-image-6.1.0-57-cloud-amd64-dbg\nlinux-image-6.1.0-58-cloud-amd64-unsigned\n\
                     linux-image-6.1.0-59-amd64\n";
        assert_eq!(newest(names), Some("linux-image-6.1.0-56-cloud-amd64"));
        let names = "linux-image-6.12.9+deb12-cloud-amd64\nlinux-image-6.12.113+deb12-cloud-amd64";
        assert_eq!(newest(names), Some("linux-image-6.12.113+deb12-cloud-amd64"));
        assert_eq!(newest("linux-image-6.1.0-59-amd64"), None);
    }
}
