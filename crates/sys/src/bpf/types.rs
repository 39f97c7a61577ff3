//! Finds the offsets of fields in the structures of the running kernel.
//!
//! Owns: the lookup of names in BTF, the type information of the kernel.
//! Invariants: a name that is missing in BTF is an error; no offset is guessed.
//! Does not: read the fields.
//!
//! Man page: the kernel's documentation of BTF
//! Since: Linux 5.2 with CONFIG_DEBUG_INFO_BTF
//! Probe: as in the modules that use the offsets
//! Fallback: as in the modules that use the offsets

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use btf_rs::{Backend, Btf, EnumMember, Member, Type};

use crate::error::{Errno, Error, Result};

const TYPES: &str = "/sys/kernel/btf/vmlinux";
const POINTER_BYTES: usize = 8;

/// The type information of the kernel.
pub(crate) struct KernelTypes {
    btf: Btf,
    /// The ids of the names that were looked up. A lookup visits all types of the kernel.
    ids: Mutex<HashMap<String, Vec<u32>>>,
}

/// The path from a structure to a field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FieldPath {
    /// Offsets of the pointers to follow, in bytes. The first offset is in the structure where the path begins, and
    /// each other offset is in the structure that the previous pointer leads to.
    pub(crate) pointers: Vec<usize>,
    /// Offset of the field in the last structure, in bytes.
    pub(crate) offset: usize,
    /// Length of the field in bytes.
    pub(crate) length: usize,
}

impl KernelTypes {
    /// Returns the type information, which is read once in each process: this takes 15 ms, and 1 MiB of memory.
    pub(crate) fn get() -> Result<&'static Self> {
        static OF_KERNEL: OnceLock<Option<KernelTypes>> = OnceLock::new();
        let read =
            || Btf::from_file_with_backend(TYPES, Backend::Mmap).or_else(|_| Btf::from_file(TYPES)).ok();
        let types = OF_KERNEL.get_or_init(|| read().map(|btf| Self { btf, ids: Mutex::default() })).as_ref();
        types.ok_or_else(|| Error::path("read the types of the kernel in", TYPES, Errno::ENOENT))
    }

    /// Returns the BTF id of a kernel function that programs may call (a kfunc).
    pub(crate) fn kfunc(&self, name: &str) -> Result<i32> {
        let is_function = |id: &u32| matches!(self.btf.resolve_type_by_id(*id), Ok(Type::Func(_)));
        self.ids(name).into_iter().find(is_function).map(|id| id as i32).ok_or_else(|| missing(name))
    }

    /// Returns the path from a structure to a field. The path is written as in C: `pdeath_signal`, `signal->it`,
    /// `thread_info.flags`.
    pub(crate) fn find(&self, structure: &str, path: &str) -> Result<FieldPath> {
        let start = self.structure(structure).ok_or_else(|| missing(structure))?;
        self.path(start, path).ok_or_else(|| missing(path))
    }

    /// Returns the byte offset of a bit field, and the shift of the field in its first byte.
    pub(crate) fn bits(&self, structure: &str, name: &str) -> Result<(usize, u32)> {
        let found = self.structure(structure).and_then(|structure| self.member(&structure, name));
        found.map(|(bit, ..)| (bit as usize / 8, bit % 8)).ok_or_else(|| missing(name))
    }

    /// Returns the value of a constant of an enumeration.
    pub(crate) fn constant(&self, enumeration: &str, name: &str) -> Result<u32> {
        let named: Vec<Type> = self.named(enumeration).collect();
        let constants = named.iter().filter_map(|one| match one {
            Type::Enum(constants) => Some(&constants.members),
            _ => None,
        });
        let is_it = |member: &&EnumMember| self.btf.resolve_name(*member).is_ok_and(|found| found == name);
        constants.flatten().find(is_it).map(EnumMember::val).ok_or_else(|| missing(name))
    }

    fn structure(&self, name: &str) -> Option<Type> {
        self.named(name).find(|one| matches!(one, Type::Struct(_)))
    }

    fn named(&self, name: &str) -> impl Iterator<Item = Type> {
        self.ids(name).into_iter().filter_map(|id| self.btf.resolve_type_by_id(id).ok())
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        let mut known = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ids) = known.get(name) {
            return ids.clone();
        }
        let ids = self.btf.resolve_ids_by_name(name).unwrap_or_default();
        known.insert(name.to_owned(), ids.clone());
        ids
    }

    fn path(&self, start: Type, path: &str) -> Option<FieldPath> {
        let mut structure = start;
        let mut pointers = Vec::new();
        let mut steps = path.split("->").peekable();
        loop {
            let (offset, length, inner) = self.within(&structure, steps.next()?)?;
            if steps.peek().is_none() {
                return Some(FieldPath { pointers, offset, length });
            }
            pointers.push(offset);
            let Type::Ptr(pointer) = inner else { return None };
            structure = self.plain(self.btf.resolve_chained_type(&pointer).ok()?)?;
        }
    }

    /// Returns offset, size and type of a member, or of a nested member (`a.b`).
    fn within(&self, structure: &Type, names: &str) -> Option<(usize, usize, Type)> {
        let (name, rest) = names.split_once('.').map_or((names, None), |(name, rest)| (name, Some(rest)));
        let (bit, length, inner) = self.member(structure, name)?;
        let offset = bit as usize / 8;
        match rest {
            None => Some((offset, length, inner)),
            Some(rest) => {
                let (further, length, inner) = self.within(&inner, rest)?;
                Some((offset + further, length, inner))
            }
        }
    }

    /// Returns offset in bits, length in bytes and type of a member, also of a member of an unnamed structure inside of
    /// `structure`.
    fn member(&self, structure: &Type, name: &str) -> Option<(u32, usize, Type)> {
        let (Type::Struct(composite) | Type::Union(composite)) = structure else { return None };
        composite.members.iter().find_map(|member| {
            let inner = self.plain(self.btf.resolve_chained_type(member).ok()?)?;
            let start = member.bit_offset();
            let found = self.btf.resolve_name(member).ok()?;
            if found == name {
                let length = self.length(member, &inner)?;
                return Some((start, length, inner));
            }
            let inside = found.is_empty().then(|| self.member(&inner, name))??;
            Some((start + inside.0, inside.1, inside.2))
        })
    }

    /// Returns the length of a member in bytes. For a bit field: the bytes that contain its bits.
    fn length(&self, member: &Member, inner: &Type) -> Option<usize> {
        match member.bitfield_size() {
            None | Some(0) => self.size(inner),
            Some(bits) => Some((member.bit_offset() as usize % 8 + bits as usize).div_ceil(8)),
        }
    }

    fn size(&self, one: &Type) -> Option<usize> {
        Some(match one {
            Type::Int(int) => int.size(),
            Type::Ptr(_) => POINTER_BYTES,
            Type::Enum(list) => list.size(),
            Type::Enum64(list) => list.size(),
            Type::Struct(composite) | Type::Union(composite) => composite.size(),
            Type::Array(array) => {
                array.len() * self.size(&self.plain(self.btf.resolve_chained_type(array).ok()?)?)?
            }
            _ => return None,
        })
    }

    /// Returns the type behind typedefs and qualifiers.
    fn plain(&self, one: Type) -> Option<Type> {
        match &one {
            Type::Typedef(_) | Type::Const(_) | Type::Volatile(_) | Type::Restrict(_) | Type::TypeTag(_) => {
                self.plain(self.btf.resolve_chained_type(one.as_btf_type()?).ok()?)
            }
            _ => Some(one),
        }
    }
}

fn missing(name: &str) -> Error {
    Error::new(format!("find {name} among the types of the kernel"), Errno::ENOENT)
}
