//! BPF maps of other programs: their properties and their content.
//!
//! Owns: creating, reading, filling and freezing maps of the types hash and array, and finding the programs that use a
//! map.
//! Invariants: the content of a map is read in one call, so that no entry is missing or read twice while no program
//! changes the map.
//! Does not: read maps whose values have a copy for each processor, or that contain other objects.
//!
//! Man page: bpf(2)
//! Since: Linux 5.6 (BPF_MAP_LOOKUP_BATCH)
//! Probe: none; the calls fail with EINVAL
//! Fallback: none; the checkpoint is refused

use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::bpf::{
    BatchArguments, HASH, InfoArguments, MAP_CREATE, MAP_LOOKUP_BATCH, OBJ_GET_INFO_BY_FD, bpf, owned,
};
use crate::error::{Errno, Error, Result};

const PROG_GET_NEXT_ID: i32 = 11;
const PROG_GET_FD_BY_ID: i32 = 13;
const MAP_GET_FD_BY_ID: i32 = 14;
const MAP_FREEZE: i32 = 22;
const MAP_UPDATE_BATCH: i32 = 26;

/// The type of arrays.
const ARRAY: u32 = 2;
/// BPF_F_RDONLY and BPF_F_WRONLY: the access of a descriptor.
const READ_ONLY: u32 = 1 << 3;
const WRITE_ONLY: u32 = 1 << 4;
const NAME_BYTES: usize = 16;

/// `struct bpf_map_info`, up to the field `map_extra`.
#[repr(C)]
#[derive(Default)]
struct MapInfo {
    kind: u32,
    id: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
    name: [u8; NAME_BYTES],
    interface: u32,
    kernel_value_type: u32,
    namespace: [u64; 2],
    /// The type information, the types of key and value in it, and the type information of the kernel.
    types: [u32; 4],
    extra: u64,
}

const _: () = assert!(size_of::<MapInfo>() == 88);
const _: () = assert!(offset_of!(MapInfo, types) == 64);

/// Arguments of BPF_MAP_CREATE, up to the field `map_extra`.
#[repr(C)]
#[derive(Default)]
struct CreateArguments {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
    inner_map: u32,
    node: u32,
    name: [u8; NAME_BYTES],
    interface: u32,
}

const _: () = assert!(size_of::<CreateArguments>() == 48);
const _: () = assert!(offset_of!(CreateArguments, name) == 28);

/// Arguments of BPF_*_GET_NEXT_ID and BPF_*_GET_FD_BY_ID.
#[repr(C)]
#[derive(Default)]
struct IdArguments {
    id: u32,
    next: u32,
    open_flags: u32,
}

const _: () = assert!(size_of::<IdArguments>() == 12);
const _: () = assert!(offset_of!(IdArguments, open_flags) == 8);

/// The first fields of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct ProgramMaps {
    other: [u32; 13],
    maps_count: u32,
    maps: u64,
}

const _: () = assert!(size_of::<ProgramMaps>() == 64);
const _: () = assert!(offset_of!(ProgramMaps, maps) == 56);

/// The properties of a map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Properties {
    /// The id of the map, which the kernel chooses.
    pub id: u32,
    /// The type of the map (BPF_MAP_TYPE_*).
    pub kind: u32,
    /// Length of a key in bytes.
    pub key_bytes: u32,
    /// Length of a value in bytes.
    pub value_bytes: u32,
    /// Maximum number of entries.
    pub entries_max: u32,
    /// The flags of the map (BPF_F_*), without the access of a descriptor.
    pub flags: u32,
    /// The name; shorter names are padded with zeros.
    pub name: [u8; NAME_BYTES],
    /// The map has type information, or belongs to a network device.
    pub is_bound: bool,
}

/// All entries of a map.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Content {
    /// Number of entries.
    pub count: u32,
    /// The keys, one behind the other.
    pub keys: Vec<u8>,
    /// The values, one behind the other.
    pub values: Vec<u8>,
}

/// The access of a descriptor to its map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Reads and writes.
    Both,
}

impl Properties {
    /// Reports whether this module can read and create maps of this type.
    #[must_use]
    pub fn is_simple(&self) -> bool {
        (self.kind == HASH || self.kind == ARRAY) && !self.is_bound
    }

    /// Returns the length of all keys and values of a full map in bytes.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        u64::from(self.entries_max) * (u64::from(self.key_bytes) + u64::from(self.value_bytes))
    }
}

/// Returns the properties of a map.
pub fn properties(map: BorrowedFd<'_>) -> Result<Properties> {
    let mut info = MapInfo::default();
    let mut arguments = InfoArguments {
        descriptor: map.as_raw_fd() as u32,
        bytes: size_of::<MapInfo>() as u32,
        info: (&raw mut info) as u64,
    };
    // SAFETY: the address leads to `bytes` bytes that the kernel may write. All of them are integers.
    let outcome = unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut arguments) };
    outcome.map_err(|errno| Error::new("inspect a BPF map", errno))?;
    Ok(Properties {
        id: info.id,
        kind: info.kind,
        key_bytes: info.key_bytes,
        value_bytes: info.value_bytes,
        entries_max: info.entries_max,
        flags: info.flags,
        name: info.name,
        is_bound: info.interface != 0 || info.types[0] != 0 || info.kernel_value_type != 0,
    })
}

/// Creates a map. Its name, type, sizes and flags are those of `properties`.
pub fn create(properties: &Properties) -> Result<OwnedFd> {
    let mut arguments = CreateArguments {
        kind: properties.kind,
        key_bytes: properties.key_bytes,
        value_bytes: properties.value_bytes,
        entries_max: properties.entries_max,
        flags: properties.flags,
        name: properties.name,
        ..CreateArguments::default()
    };
    // SAFETY: the arguments contain no address.
    let made = unsafe { bpf(MAP_CREATE, &mut arguments) };
    made.map(owned).map_err(|errno| Error::new("create a BPF map", errno))
}

/// Creates a map of a type of arrays, with one entry and no name.
pub(crate) fn create_array(kind: u32, value_bytes: u32) -> Result<OwnedFd> {
    create(&Properties {
        id: 0,
        kind,
        key_bytes: 4,
        value_bytes,
        entries_max: 1,
        flags: 0,
        name: [0; NAME_BYTES],
        is_bound: false,
    })
}

/// Returns a new descriptor of the map with an id.
///
/// # Errors
///
/// The errors of bpf(2); EPERM without CAP_SYS_ADMIN.
pub fn open(id: u32, access: Access) -> Result<OwnedFd> {
    let open_flags = match access {
        Access::Read => READ_ONLY,
        Access::Write => WRITE_ONLY,
        Access::Both => 0,
    };
    let mut arguments = IdArguments { id, open_flags, ..IdArguments::default() };
    // SAFETY: the arguments contain no address.
    let opened = unsafe { bpf(MAP_GET_FD_BY_ID, &mut arguments) };
    opened.map(owned).map_err(|errno| Error::new(format!("open the BPF map {id}"), errno))
}

/// Reads all entries of a map into `content`, whose memory is reused.
pub fn read(map: BorrowedFd<'_>, properties: &Properties, content: &mut Content) -> Result<()> {
    let entries = properties.entries_max as usize;
    content.keys.resize(entries * properties.key_bytes as usize, 0);
    content.values.resize(entries * properties.value_bytes as usize, 0);
    let mut next = 0_u64;
    let mut arguments = BatchArguments {
        next: (&raw mut next) as u64,
        keys: content.keys.as_mut_ptr() as u64,
        values: content.values.as_mut_ptr() as u64,
        count: properties.entries_max,
        map: map.as_raw_fd() as u32,
        ..BatchArguments::default()
    };
    // SAFETY: keys and values have room for `count` entries. The position of a hash or an array has 4 bytes.
    match unsafe { bpf(MAP_LOOKUP_BATCH, &mut arguments) } {
        // ENOENT is the end of the map.
        Ok(_) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(Error::new("read a BPF map", errno)),
    }
    content.count = arguments.count.min(properties.entries_max);
    content.keys.truncate(content.count as usize * properties.key_bytes as usize);
    content.values.truncate(content.count as usize * properties.value_bytes as usize);
    Ok(())
}

/// Sets entries of a map.
///
/// # Errors
///
/// EINVAL if the lengths of `content` do not match the map, and the errors of bpf(2).
pub fn fill(map: BorrowedFd<'_>, properties: &Properties, content: &Content) -> Result<()> {
    let failed = |errno| Error::new("fill a BPF map", errno);
    let count = content.count as usize;
    let is_whole = content.keys.len() == count * properties.key_bytes as usize
        && content.values.len() == count * properties.value_bytes as usize;
    if !is_whole {
        return Err(failed(Errno::EINVAL));
    }
    if count == 0 {
        return Ok(());
    }
    let mut arguments = BatchArguments {
        keys: content.keys.as_ptr() as u64,
        values: content.values.as_ptr() as u64,
        count: content.count,
        map: map.as_raw_fd() as u32,
        ..BatchArguments::default()
    };
    // SAFETY: keys and values have `count` entries of the sizes of the map, which the caller has just created with
    // `properties`.
    unsafe { bpf(MAP_UPDATE_BATCH, &mut arguments) }.map(drop).map_err(failed)
}

/// Forbids changes of a map by system calls.
pub fn freeze(map: BorrowedFd<'_>) -> Result<()> {
    let mut descriptor = map.as_raw_fd() as u32;
    // SAFETY: the argument is one integer.
    let outcome = unsafe { bpf(MAP_FREEZE, &mut descriptor) };
    outcome.map(drop).map_err(|errno| Error::new("freeze a BPF map", errno))
}

/// Returns the id of a loaded program that uses the map with an id.
///
/// # Errors
///
/// The errors of bpf(2); EPERM without CAP_SYS_ADMIN.
pub fn user(map: u32) -> Result<Option<u32>> {
    let failed = |errno| Error::new("list the BPF programs", errno);
    let mut last = 0;
    loop {
        let mut arguments = IdArguments { id: last, ..IdArguments::default() };
        // SAFETY: the arguments contain no address.
        match unsafe { bpf(PROG_GET_NEXT_ID, &mut arguments) } {
            Ok(_) => last = arguments.next,
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        }
        let mut arguments = IdArguments { id: last, ..IdArguments::default() };
        // SAFETY: as above.
        match unsafe { bpf(PROG_GET_FD_BY_ID, &mut arguments) } {
            Ok(program) => {
                if maps_of(&owned(program)).map_err(failed)?.contains(&map) {
                    return Ok(Some(last));
                }
            }
            // The program was unloaded.
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
}

/// Returns the ids of the maps that a program uses.
fn maps_of(program: &OwnedFd) -> std::result::Result<Vec<u32>, Errno> {
    let mut maps: Vec<u32> = Vec::new();
    loop {
        let mut info = ProgramMaps {
            maps_count: maps.len() as u32,
            maps: maps.as_mut_ptr() as u64,
            ..ProgramMaps::default()
        };
        let mut arguments = InfoArguments {
            descriptor: program.as_raw_fd() as u32,
            bytes: size_of::<ProgramMaps>() as u32,
            info: (&raw mut info) as u64,
        };
        // SAFETY: the kernel writes `bytes` bytes to `info`, and at most `maps_count` ids to `maps`.
        unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut arguments) }?;
        if info.maps_count as usize <= maps.len() {
            return Ok(maps);
        }
        maps.resize(info.maps_count as usize, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn wanted(kind: u32) -> Properties {
        let mut name = [0; NAME_BYTES];
        name[..4].copy_from_slice(b"test");
        Properties {
            id: 0,
            kind,
            key_bytes: 4,
            value_bytes: 12,
            entries_max: 5,
            flags: 0,
            name,
            is_bound: false,
        }
    }

    #[test]
    fn a_map_gets_its_properties_and_its_content() {
        for kind in [HASH, ARRAY] {
            let map = match create(&wanted(kind)) {
                Err(error) if matches!(error.errno, Errno::EPERM | Errno::ENOSYS) => {
                    return println!("unsupported: {error}");
                }
                map => map.unwrap(),
            };
            let found = properties(map.as_fd()).unwrap();
            assert_eq!(found, Properties { id: found.id, ..wanted(kind) });
            assert_eq!(user(found.id).unwrap(), None);
            let content = Content {
                count: 2,
                keys: [1_u32, 4].iter().flat_map(|key| key.to_ne_bytes()).collect(),
                values: (0..24).collect(),
            };
            fill(map.as_fd(), &found, &content).unwrap();
            freeze(map.as_fd()).unwrap();
            assert_eq!(fill(map.as_fd(), &found, &content).unwrap_err().errno, Errno::EPERM);
            let again = open(found.id, Access::Read).unwrap();
            let mut copy = Content::default();
            read(again.as_fd(), &found, &mut copy).unwrap();
            let entries = |content: &Content| {
                let pairs = content.keys.chunks(4).zip(content.values.chunks(12));
                let mut all: Vec<_> = pairs.map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
                all.retain(|(_, value)| value.iter().any(|byte| *byte != 0));
                all.sort();
                all
            };
            assert_eq!(entries(&copy), entries(&content));
            assert_eq!(copy.count, if kind == HASH { 2 } else { 5 });
        }
    }
}
