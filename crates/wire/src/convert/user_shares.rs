//! Shares of a tenant's users.

use std::collections::BTreeMap;

use muster_types::Violation;
use muster_types::policy::{USER_WEIGHTS_MAX, UserShares};

use super::{Found, below};
use crate::v1;

/// What a tenant states. `at` is the path of the message.
pub(super) fn user_shares(at: &str, message: v1::UserShares, found: &mut Found) -> UserShares {
    let weights = message.weights_milli;
    let weights_milli: BTreeMap<String, u32> = if weights.len() > USER_WEIGHTS_MAX {
        let field = below(at, "weights_milli");
        found.push(Violation::limit(&field, weights.len() as u64, 0, USER_WEIGHTS_MAX as u64));
        BTreeMap::new()
    } else {
        weights.into_iter().collect()
    };
    let usual = UserShares::default().default_weight_milli;
    UserShares { default_weight_milli: message.default_weight_milli.unwrap_or(usual), weights_milli }
}

pub(super) fn user_shares_to_proto(users: &UserShares) -> v1::UserShares {
    v1::UserShares {
        default_weight_milli: Some(users.default_weight_milli),
        weights_milli: users.weights_milli.iter().map(|(user, milli)| (user.clone(), *milli)).collect(),
    }
}
