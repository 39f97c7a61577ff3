//! Areas of memory: the interface of a memory kind, and the registry.
