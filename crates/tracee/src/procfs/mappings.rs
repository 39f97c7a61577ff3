//! Reads `/proc/PID/maps` and `smaps`: the mappings of an address space.
//!
//! Owns: the parser of these files, and the types for protection and flags of a mapping.
//! Invariants: mappings are in ascending order and do not overlap, as in the list of the kernel.
//! Does not: decide how a mapping is captured; the memory kinds do.

use std::path::PathBuf;

use model::{Address, AddressRange, Inode, Pid};
use sys::Result;

use super::files::{malformed, read};

/// Access rights and sharing of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Protection {
    /// Pages may be read.
    pub read: bool,
    /// Pages may be written.
    pub write: bool,
    /// Pages may be executed.
    pub execute: bool,
    /// Other processes that map the same object see writes.
    pub shared: bool,
}

/// The object behind a mapping, according to the name in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// No object: anonymous private memory, heap and stacks included.
    Anonymous,
    /// A file. Its path ends in ` (deleted)` if the name was removed.
    File {
        /// Major and minor number of the file's device.
        device: (u32, u32),
        /// Inode number of the file.
        inode: Inode,
        /// Path of the file, as the kernel prints it.
        path: PathBuf,
    },
    /// A mapping that the kernel provides, with a name like `[vdso]`.
    Kernel(String),
}

/// Properties of a mapping that only smaps contains (`VmFlags`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MappingFlags(Vec<[u8; 2]>);

/// A flag that this program defines: the mapping has a protection key other than 0. In smaps, the key has a
/// line of its own.
const PROTECTION_KEY: [u8; 2] = *b"pk";

impl MappingFlags {
    /// Reports whether a two-letter flag of proc_pid_smaps(5) is set.
    #[must_use]
    pub fn has(&self, flag: &str) -> bool {
        self.0.iter().any(|known| known.as_slice() == flag.as_bytes())
    }

    /// Reports whether there are no flags. Every mapping in smaps has at least one flag.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a flag.
    pub fn insert(&mut self, flag: [u8; 2]) {
        if !self.0.contains(&flag) {
            self.0.push(flag);
        }
    }

    /// Removes a flag.
    pub fn remove(&mut self, flag: &str) {
        self.0.retain(|known| known.as_slice() != flag.as_bytes());
    }

    /// Returns all flags, in the order of the kernel.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|flag| std::str::from_utf8(flag).ok())
    }
}

/// One mapping of an address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Address range of the mapping.
    pub range: AddressRange,
    /// Access rights.
    pub protection: Protection,
    /// Offset of the first byte of the mapping in its object.
    pub offset: u64,
    /// The object behind the mapping.
    pub backing: Backing,
    /// Name in the list (`[heap]`, `[stack]`, `[anon:…]`, a path); empty if there is none.
    pub name: String,
    /// Flags from smaps; empty if only maps was read.
    pub flags: MappingFlags,
}

impl Mapping {
    /// Reports whether the kernel provides the contents (vDSO, vvar, vsyscall).
    #[must_use]
    pub fn is_kernel(&self) -> bool {
        matches!(self.backing, Backing::Kernel(_))
    }
}

/// Reads the mappings of a process from `maps`: fast, without flags.
pub fn mappings(pid: Pid) -> Result<Vec<Mapping>> {
    parse_file(&format!("/proc/{pid}/maps"))
}

/// Reads the mappings of a process from `smaps`: with flags. This is slow, because the kernel walks all pages
/// of the process.
pub fn mappings_with_flags(pid: Pid) -> Result<Vec<Mapping>> {
    parse_file(&format!("/proc/{pid}/smaps"))
}

fn parse_file(path: &str) -> Result<Vec<Mapping>> {
    mappings_in(&read(path)?).ok_or_else(|| malformed(path))
}

/// Parses the text of `maps` or `smaps`. Returns `None` if it is neither.
#[must_use]
pub fn mappings_in(bytes: &[u8]) -> Option<Vec<Mapping>> {
    let mut found: Vec<Mapping> = Vec::new();
    let mut has_key = false;
    for line in bytes.split(|byte| *byte == b'\n') {
        let first = *line.first().unwrap_or(&b' ');
        if first.is_ascii_hexdigit() && !first.is_ascii_uppercase() {
            found.push(parse_line(&String::from_utf8_lossy(line))?);
        } else if let Some(key) = line.strip_prefix(b"ProtectionKey:") {
            has_key = key.trim_ascii() != b"0";
        } else if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            let mapping = found.last_mut()?;
            mapping.flags = MappingFlags(
                flags.split(|byte| *byte == b' ').filter_map(|word| <[u8; 2]>::try_from(word).ok()).collect(),
            );
            if std::mem::take(&mut has_key) {
                mapping.flags.insert(PROTECTION_KEY);
            }
        }
    }
    Some(found)
}

fn parse_line(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?.as_bytes();
    let offset = u64::from_str_radix(words.next()?, 16).ok()?;
    let (major, minor) = words.next()?.split_once(':')?;
    let inode: u64 = words.next()?.parse().ok()?;
    let name = words.next().unwrap_or("").trim_start().to_owned();
    let backing = if inode != 0 || name.starts_with('/') {
        // This is the only character that the kernel escapes in maps.
        let unescaped = name.replace("\\012", "\n");
        let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
        Backing::File { device, inode: Inode(inode), path: PathBuf::from(unescaped) }
    } else if matches!(&*name, "[vdso]" | "[vsyscall]" | "[uprobes]") || name.starts_with("[vvar") {
        Backing::Kernel(name.clone())
    } else {
        Backing::Anonymous
    };
    let hexadecimal = |word: &str| u64::from_str_radix(word, 16).ok().map(Address);
    Some(Mapping {
        range: AddressRange::new(hexadecimal(start)?, hexadecimal(end)?),
        protection: Protection {
            read: rights.first() == Some(&b'r'),
            write: rights.get(1) == Some(&b'w'),
            execute: rights.get(2) == Some(&b'x'),
            shared: rights.get(3) == Some(&b's'),
        },
        offset,
        backing,
        name,
        flags: MappingFlags::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_with_flags_is_understood() {
        let text = b"00400000-00452000 r-xp 00001000 08:02 173521      /usr/bin/a b (deleted)\n\
            Size:                328 kB\nVmFlags: rd ex mr mw me sd \n\
            7ffc0000-7ffc1000 rw-p 00000000 00:00 0          [stack]\n\
            7ffd0000-7ffd2000 r-xp 00000000 00:00 0          [vdso]\n";
        let mappings = mappings_in(text).unwrap();
        assert_eq!(mappings.len(), 3);
        assert!(mappings[0].flags.has("ex") && !mappings[0].flags.has("wr"));
        assert_eq!(mappings[0].range.pages().get(), 0x52);
        assert!(matches!(&mappings[0].backing, Backing::File { device: (8, 2), path, .. }
            if path.to_str() == Some("/usr/bin/a b (deleted)")));
        assert_eq!(mappings[1].backing, Backing::Anonymous);
        assert!(mappings[2].is_kernel());
    }

    #[test]
    fn both_lists_of_our_own_process_agree_on_the_code() {
        let pid = Pid(std::process::id() as i32);
        let with = mappings_with_flags(pid).unwrap();
        let without = mappings(pid).unwrap();
        let code =
            |mappings: &[Mapping]| mappings.iter().filter(|mapping| mapping.protection.execute).count();
        assert_eq!(code(&with), code(&without));
        assert!(with.iter().any(|mapping| mapping.name == "[stack]" && mapping.flags.has("gd")));
    }
}
