//! Where fields are in the structures of the kernel that runs.
//!
//! Owns: resolving names by the kernel's BTF.
//! Invariants: a name that is not there is an error; no offset is guessed.
//! Does not: read the fields.
//!
//! Man page: the kernel's documentation of BTF
//! Since: as the module above
//! Probe: as the module above
//! Fallback: as the module above

use btf_rs::{Backend, Btf, Member, Type};

use crate::error::{Errno, Error, Result};

const TYPES: &str = "/sys/kernel/btf/vmlinux";
const TASK: &str = "task_struct";
const POINTER_BYTES: usize = 8;

/// A field by the way from `struct task_struct`, as in C: `pdeath_signal`, `signal->it`, `thread_info.flags`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Field(pub &'static str);

/// The types of the kernel.
pub(super) struct Layout {
    types: Btf,
    task: Type,
}

/// The way from a task to a field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Way {
    /// Offsets of the pointers to follow, each in the structure that the one before leads to.
    pub(super) pointers: Vec<usize>,
    /// Where the field is in the last structure.
    pub(super) offset: usize,
    /// Its bytes.
    pub(super) length: usize,
}

/// BTF ids of kernel functions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kfuncs {
    /// A task by its number in the caller's namespace, with a reference.
    pub(super) find: i32,
    /// Gives the reference back.
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

    /// The way to a field.
    pub(super) fn find(&self, field: Field) -> Result<Way> {
        self.way(field).ok_or_else(|| missing(field.0))
    }

    fn way(&self, field: Field) -> Option<Way> {
        let mut structure = self.task.clone();
        let mut pointers = Vec::new();
        let mut steps = field.0.split("->").peekable();
        loop {
            let (offset, length, inner) = self.within(&structure, steps.next()?)?;
            if steps.peek().is_none() {
                return Some(Way { pointers, offset, length });
            }
            pointers.push(offset);
            let Type::Ptr(pointer) = inner else { return None };
            structure = self.plain(self.types.resolve_chained_type(&pointer).ok()?)?;
        }
    }

    /// Offset, size and type of a member, or of a member of a member (`a.b`).
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

    /// A member by its name, also of a structure without a name inside of this one.
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

    /// The bytes of a member; of a bit field those that it is in.
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

    /// A type without its other names and qualifiers.
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
