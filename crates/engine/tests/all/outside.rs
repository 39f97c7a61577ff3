//! The sink outside of the store with which the tests of the store work.

pub(crate) use ::store;

#[path = "../../../store/tests/all/common/remote_sink.rs"]
pub(crate) mod remote_sink;
