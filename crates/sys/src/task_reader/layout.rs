//! Finds the offsets of fields in the structures of the running kernel.
//!
//! Owns: the lookup of names in BTF, the type information of the kernel.
//! Invariants: a name that is missing in BTF is an error; no offset is guessed.
//! Does not: read the fields.
//!
//! Man page: the kernel's documentation of BTF
//! Since: as in the module `task_reader`
//! Probe: as in the module `task_reader`
//! Fallback: as in the module `task_reader`

use btf_rs::{Backend, Btf, Member, Type};

use crate::error::{Errno, Error, Result};

const TYPES: &str = "/sys/kernel/btf/vmlinux";
const TASK: &str = "task_struct";
const POINTER_BYTES: usize = 8;

/// A field, named by its path from `struct task_struct` as in C: `pdeath_signal`, `signal->it`,
/// `thread_info.flags`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Field(pub &'static str);

/// The type information of the kernel.
pub(super) struct Layout {
    types: Btf,
    task: Type,
}

/// The path from a task to a field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FieldPath {
    /// Offsets of the pointers to follow, in bytes. The first offset is in the task, and each other offset is in
    /// the structure that the previous pointer leads to.
    pub(super) pointers: Vec<usize>,
    /// Offset of the field in the last structure, in bytes.
    pub(super) offset: usize,
    /// Length of the field in bytes.
    pub(super) length: usize,
}

/// BTF ids of kernel functions (kfuncs).
#[derive(Clone, Copy, Debug)]
pub(super) struct Kfuncs {
    /// `bpf_task_from_vpid`, which returns a reference to the task with a tid of the caller's namespace.
    pub(super) find: i32,
    /// `bpf_task_release`, which releases this reference.
    pub(super) release: i32,
}

impl Layout {
    pub(super) fn open() -> Result<Self> {
        let types = Btf::from_file_with_backend(TYPES, Backend::Mmap).or_else(|_| Btf::from_file(TYPES));
        let unreadable = |_| Error::path("read the types of the kernel in", TYPES, Errno::ENOENT);
        let types = types.map_err(unreadable)?;
        let named = types.resolve_types_by_name(TASK).unwrap_or_default();
        let task =
            named.into_iter().find(|one| matches!(one, Type::Struct(_))).ok_or_else(|| missing(TASK))?;
        Ok(Self { types, task })
    }

    pub(super) fn kfuncs(&self) -> Result<Kfuncs> {
        Ok(Kfuncs { find: self.kfunc("bpf_task_from_vpid")?, release: self.kfunc("bpf_task_release")? })
    }

    fn kfunc(&self, name: &str) -> Result<i32> {
        let ids = self.types.resolve_ids_by_name(name).unwrap_or_default();
        let is_function = |id: &u32| matches!(self.types.resolve_type_by_id(*id), Ok(Type::Func(_)));
        ids.into_iter().find(is_function).map(|id| id as i32).ok_or_else(|| missing(name))
    }

    /// Returns the path to a field.
    pub(super) fn find(&self, field: Field) -> Result<FieldPath> {
        self.path(field).ok_or_else(|| missing(field.0))
    }

    fn path(&self, field: Field) -> Option<FieldPath> {
        let mut structure = self.task.clone();
        let mut pointers = Vec::new();
        let mut steps = field.0.split("->").peekable();
        loop {
            let (offset, length, inner) = self.within(&structure, steps.next()?)?;
            if steps.peek().is_none() {
                return Some(FieldPath { pointers, offset, length });
            }
            pointers.push(offset);
            let Type::Ptr(pointer) = inner else { return None };
            structure = self.plain(self.types.resolve_chained_type(&pointer).ok()?)?;
        }
    }

    /// Returns offset, size and type of a member, or of a nested member (`a.b`).
    fn within(&self, structure: &Type, names: &str) -> Option<(usize, usize, Type)> {
        let (name, rest) = names.split_once('.').map_or((names, None), |(name, rest)| (name, Some(rest)));
        let (offset, length, inner) = self.member(structure, name)?;
        match rest {
            None => Some((offset, length, inner)),
            Some(rest) => {
                let (further, length, inner) = self.within(&inner, rest)?;
                Some((offset + further, length, inner))
            }
        }
    }

    /// Returns a member by its name, also a member of an unnamed structure inside of `structure`.
    fn member(&self, structure: &Type, name: &str) -> Option<(usize, usize, Type)> {
        let (Type::Struct(composite) | Type::Union(composite)) = structure else { return None };
        composite.members.iter().find_map(|member| {
            let inner = self.plain(self.types.resolve_chained_type(member).ok()?)?;
            let start = member.bit_offset() as usize / 8;
            let found = self.types.resolve_name(member).ok()?;
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
                array.len() * self.size(&self.plain(self.types.resolve_chained_type(array).ok()?)?)?
            }
            _ => return None,
        })
    }

    /// Returns the type behind typedefs and qualifiers.
    fn plain(&self, one: Type) -> Option<Type> {
        match &one {
            Type::Typedef(_) | Type::Const(_) | Type::Volatile(_) | Type::Restrict(_) | Type::TypeTag(_) => {
                self.plain(self.types.resolve_chained_type(one.as_btf_type()?).ok()?)
            }
            _ => Some(one),
        }
    }
}

fn missing(name: &str) -> Error {
    Error::new(format!("find {name} among the types of the kernel"), Errno::ENOENT)
}
