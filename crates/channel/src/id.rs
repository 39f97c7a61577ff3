//! The identifier of a component.
//!
//! Owns: `ComponentId`.
//! Does not: store the name of a component in a system file.

/// Identifies a component of one guardian. The guardian chooses the numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ComponentId(pub u32);
