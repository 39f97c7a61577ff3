//! The name of a component.
//!
//! Owns: `ComponentId`.
//! Does not: know the name of a component in a system file.

/// Names a component of one guardian. The guardian chooses the numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ComponentId(pub u32);
