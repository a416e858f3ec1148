//! One number for all roles, or one number per role: `4`, or `prefill=4,decode=2`.

use std::collections::BTreeMap;

use crate::managed_update::role;
use crate::rollout::Role;
use crate::simulation::MAX_REPLICAS;

/// One number for all roles, or one number per role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PerRole {
    Every(u32),
    Each(BTreeMap<Role, u32>),
}

impl PerRole {
    /// The number for `role`.
    pub fn of(&self, role: Role) -> Option<u32> {
        match self {
            Self::Every(number) => Some(*number),
            Self::Each(numbers) => numbers.get(&role).copied(),
        }
    }
}

pub(super) fn per_role(text: &str) -> Result<PerRole, String> {
    if !text.contains('=') {
        return number(text).map(PerRole::Every);
    }
    let mut numbers = BTreeMap::new();
    for part in text.split(',') {
        let (name, text) = part
            .split_once('=')
            .ok_or("must be ROLE=NUMBER for each role")?;
        let role = role(name)
            .ok_or_else(|| format!("'{name}' is not a role: use prefill, decode, or worker"))?;
        if numbers.insert(role, number(text)?).is_some() {
            return Err(format!("{role} is set twice"));
        }
    }
    Ok(PerRole::Each(numbers))
}

fn number(text: &str) -> Result<u32, String> {
    let number = text.parse().ok();
    let number = number.filter(|number| (1..=MAX_REPLICAS).contains(number));
    number.ok_or_else(|| format!("'{text}' is not a number from 1 to {MAX_REPLICAS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_every_role_or_for_each_its_own() {
        assert_eq!(per_role("4"), Ok(PerRole::Every(4)));
        let each = per_role("prefill=4,decode=2").unwrap();
        assert_eq!(
            (each.of(Role::Prefill), each.of(Role::Worker)),
            (Some(4), None)
        );
        for wrong in [
            "0",
            "x",
            "1001",
            "prefill=",
            "prefill=1,2",
            "decoder=1",
            "decode=1,decode=2",
        ] {
            assert!(per_role(wrong).is_err(), "{wrong}");
        }
    }
}
