//! The table `[group.NAME]` of a system file.
//!
//! Owns: the keys of a group and their values.
//! Does not: check that the members exist and fit together; `checks` does.

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

/// A group of components that are restarted or checkpointed together.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The names of the members.
    #[schemars(with = "Vec<String>", length(min = 2))]
    pub members: Spanned<Vec<Spanned<String>>>,
    /// The members that are restarted when a member has died.
    #[serde(default)]
    pub strategy: Strategy,
    /// Whether the members are checkpointed at one moment and restored together.
    #[serde(default)]
    pub together: bool,
    /// With `together`: which members are restored after the death of a member.
    #[serde(default = "all")]
    #[schemars(with = "MemberDeath")]
    pub on_member_death: Spanned<MemberDeath>,
}

/// Which members of a group with `together = true` are restored after the death of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemberDeath {
    /// All members, from one checkpoint.
    #[default]
    All,
    /// Only the dead member. Not for a group with `together = true`: its checkpoint contains the connections between the
    /// members, and the living ones would keep the other ends of them.
    One,
}

fn all() -> Spanned<MemberDeath> {
    Spanned::new(0..0, MemberDeath::All)
}

/// The members of a group that are restarted when a member has died.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Only the dead member.
    #[default]
    One,
    /// The dead member, and all members behind it in the list.
    Rest,
    /// All members.
    All,
}
