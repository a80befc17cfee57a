//! What the listener for clients and the one for the pages share, so that nobody has twice as much by asking at both.

use std::sync::Arc;

use muster_engine::Engine;
use muster_oidc::Issuers;
use muster_transport::Security;

use crate::config::ApiConfig;
use crate::denied::{DeniedCallLog, DeniedLog};
use crate::drills::Drills;
use crate::forward::Router;
use crate::objectives::ObjectiveAccount;
use crate::recorded::CallRecorder;
use crate::unwritten::Ledger;

/// Turns at what is scarce, and what callers have not taken of their answers. Clones share it.
#[derive(Clone)]
pub struct Shared {
    pub(crate) router: Router,
    pub(crate) unwritten: Ledger,
    pub(crate) recorder: CallRecorder,
    pub(crate) issuers: Issuers,
    pub(crate) denied: DeniedLog,
    pub(crate) drills: Drills,
    pub(crate) objectives: ObjectiveAccount,
}

impl Shared {
    /// That of one replica.
    #[must_use]
    pub fn new(engine: Engine, config: ApiConfig, security: Security) -> Shared {
        let drills = Drills::new(engine.consensus().traffic().clone(), config.drill_refusal_max);
        let router = Router::new(engine, config, security);
        let issuers = Issuers::new(Vec::new());
        let (unwritten, recorder) = (Ledger::default(), CallRecorder::default());
        let objectives = ObjectiveAccount::default();
        Shared { router, unwritten, recorder, issuers, denied: None, drills, objectives }
    }

    /// The same with error budgets from there.
    #[must_use]
    pub fn accounting(self, objectives: ObjectiveAccount) -> Shared {
        Shared { objectives, ..self }
    }

    /// The same with calls recorded there.
    #[must_use]
    pub fn recording(self, recorder: CallRecorder) -> Shared {
        Shared { recorder, ..self }
    }

    /// The same with what was recorded read from there.
    #[must_use]
    pub fn reading_denied(self, log: Arc<dyn DeniedCallLog>) -> Shared {
        Shared { denied: Some(log), ..self }
    }

    /// The same with tokens of these issuers taken, where tokens are.
    #[must_use]
    pub fn signing_in(self, issuers: Issuers) -> Shared {
        Shared { issuers, ..self }
    }
}
