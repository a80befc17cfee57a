//! What the listener for clients and the one for the pages share, so that nobody has twice as much by asking at both.

use muster_engine::Engine;
use muster_transport::Security;

use crate::config::ApiConfig;
use crate::denials::Denials;
use crate::forward::Router;
use crate::unwritten::Ledger;

/// Turns at what is scarce, and what callers have not taken of their answers. Clones share it.
#[derive(Clone)]
pub struct Shared {
    pub(crate) router: Router,
    pub(crate) unwritten: Ledger,
    pub(crate) denials: Denials,
}

impl Shared {
    /// That of one replica.
    #[must_use]
    pub fn new(engine: Engine, config: ApiConfig, security: Security) -> Shared {
        let router = Router::new(engine, config, security);
        Shared { router, unwritten: Ledger::default(), denials: Denials::default() }
    }

    /// The same with denied calls told there.
    #[must_use]
    pub fn telling(self, denials: Denials) -> Shared {
        Shared { denials, ..self }
    }
}
