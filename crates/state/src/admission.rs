//! Who may take part: admitted nodes and revoked certificates. One table for all of it.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::RequestKey;
use muster_types::{
    AdmissionMode, AdmissionRule, Approval, CertificateSerial, Name, NodeAdmission, NodeBounds, NodeSpec,
    Revocation, limits,
};

use crate::effect::Effect;
use crate::guard_error::{GuardError, require};
use crate::rows::{AdmissionRow, DoorKey, DoorRow, RequestAnswer};
use crate::state::State;

/// Why a node is not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// Nobody has approved a node of this name.
    Unknown,
    /// An operator has rejected it.
    Rejected,
    /// It says more or something else than what is admitted; the sentence says what.
    Differs(String),
}

impl State {
    /// Which nodes are admitted; `None` while no operator has set it.
    #[must_use]
    pub fn admission(&self) -> Option<&AdmissionRow> {
        match self.doors.get(&DoorKey::Admission) {
            Some(DoorRow::Admission(row)) => Some(row),
            _ => None,
        }
    }

    /// What an operator has said of a node of this name.
    #[must_use]
    pub fn approval(&self, name: &Name) -> Option<&Approval> {
        match self.doors.get(&DoorKey::Node(name.clone())) {
            Some(DoorRow::Node(approval)) => Some(approval),
            _ => None,
        }
    }

    /// What operators have said of nodes by their names, in the order of those; behind a name, or from the first.
    pub fn approvals(&self, behind: Option<&Name>) -> impl Iterator<Item = (&Name, &Approval)> {
        use core::ops::Bound;
        let from = behind
            .map_or(Bound::Excluded(DoorKey::Admission), |name| Bound::Excluded(DoorKey::Node(name.clone())));
        self.doors.range((from, Bound::Unbounded)).map_while(|(key, row)| match (key, row) {
            (DoorKey::Node(name), DoorRow::Node(approval)) => Some((name, approval)),
            _ => None,
        })
    }

    /// Certificates that are revoked, and have not ended as far as the log has come.
    pub fn revocations(&self) -> impl Iterator<Item = (CertificateSerial, &Revocation)> {
        let from = DoorKey::Certificate(CertificateSerial::ZERO);
        self.doors.range(from..).filter_map(|(key, row)| match (key, row) {
            (DoorKey::Certificate(serial), DoorRow::Certificate(revocation)) => Some((*serial, revocation)),
            _ => None,
        })
    }

    /// Changes with every row about nodes and certificates.
    #[must_use]
    pub fn doors_digest(&self) -> u64 {
        self.doors.digest()
    }

    /// Whether a node is admitted as it describes itself. `usual` is the mode while nobody has set one.
    ///
    /// # Errors
    /// Why not.
    pub fn admits(&self, spec: &NodeSpec, usual: AdmissionMode) -> Result<(), NotAdmitted> {
        let keeps = |bounds: &NodeBounds| match bounds.breach(spec) {
            None => Ok(()),
            Some(text) => Err(NotAdmitted::Differs(text)),
        };
        match self.approval(&spec.name) {
            Some(Approval::Rejected) => return Err(NotAdmitted::Rejected),
            Some(Approval::Approved(bounds)) => return keeps(bounds),
            None => {}
        }
        let admission = self.admission().map(|row| &row.admission);
        let rules = admission.map_or(&[][..], |admission| &admission.rules[..]);
        let covering: Vec<&AdmissionRule> = rules.iter().filter(|rule| rule.covers(&spec.name)).collect();
        if let Some(first) = covering.first() {
            let any = covering.iter().any(|rule| rule.bounds.breach(spec).is_none());
            return if any { Ok(()) } else { keeps(&first.bounds) };
        }
        let known = self.node_named(&spec.name).and_then(|id| self.node(id));
        match (admission.map_or(usual, |admission| admission.mode), known) {
            (AdmissionMode::Open, _) | (AdmissionMode::Pinned, None) => Ok(()),
            (AdmissionMode::Pinned | AdmissionMode::Approve, Some(row)) => keeps(&NodeBounds::of(&row.spec)),
            (AdmissionMode::Approve, None) => Err(NotAdmitted::Unknown),
        }
    }

    /// Where nobody has said anything, every node is admitted.
    pub(crate) fn check_admitted(&self, spec: &NodeSpec) -> Result<(), GuardError> {
        require(self.admits(spec, AdmissionMode::Open).is_ok(), GuardError::NotAdmitted)
    }

    pub(crate) fn check_admission(
        &self,
        request: RequestKey,
        admission: &NodeAdmission,
    ) -> Result<(), GuardError> {
        require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
        require(admission.violations().is_empty(), GuardError::Limit)
    }

    pub(crate) fn check_approval(
        &self,
        request: Option<RequestKey>,
        name: &Name,
        approval: Option<&Approval>,
    ) -> Result<(), GuardError> {
        let is_new = request.is_none_or(|request| !self.requests.contains(&request.id));
        require(is_new, GuardError::RequestRepeated)?;
        let Some(approval) = approval else { return Ok(()) };
        let has_room = self.approval(name).is_some() || self.doors.len() < limits::APPROVALS_MAX;
        require(has_room && approval.violations().is_empty(), GuardError::Limit)
    }

    pub(crate) fn check_revocation(
        &self,
        request: RequestKey,
        serial: CertificateSerial,
        revocation: &Revocation,
    ) -> Result<(), GuardError> {
        require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
        let is_known = self.doors.contains(&DoorKey::Certificate(serial));
        let held = self.revocations().count();
        require(is_known || held < limits::REVOCATIONS_MAX, GuardError::Limit)?;
        require(revocation.violations().is_empty(), GuardError::Limit)
    }

    pub(crate) fn fold_admission(&mut self, request: RequestKey, admission: &NodeAdmission) -> Vec<Effect> {
        self.remember(request, RequestAnswer::Done);
        let (version, set_at) = (self.meta.log_index, self.meta.log_time);
        let row = AdmissionRow { version, set_at, admission: admission.clone() };
        self.doors.insert(DoorKey::Admission, DoorRow::Admission(row));
        Vec::new()
    }

    pub(crate) fn fold_approval(
        &mut self,
        request: Option<RequestKey>,
        name: &Name,
        approval: Option<&Approval>,
    ) -> Vec<Effect> {
        if let Some(request) = request {
            self.remember(request, RequestAnswer::Done);
        }
        let key = DoorKey::Node(name.clone());
        match approval {
            Some(approval) => self.doors.insert(key, DoorRow::Node(approval.clone())),
            None => _ = self.doors.remove(&key),
        }
        Vec::new()
    }

    /// Those that have ended by now are dropped: nobody is let in with them in any case.
    pub(crate) fn fold_revoked(
        &mut self,
        request: RequestKey,
        serial: CertificateSerial,
        revocation: &Revocation,
    ) -> Vec<Effect> {
        self.remember(request, RequestAnswer::Done);
        let now = self.meta.log_time;
        let ended: Vec<CertificateSerial> =
            self.revocations().filter(|(_, row)| row.until < now).map(|(serial, _)| serial).collect();
        for serial in ended {
            self.doors.remove(&DoorKey::Certificate(serial));
        }
        self.doors.insert(DoorKey::Certificate(serial), DoorRow::Certificate(revocation.clone()));
        Vec::new()
    }

    /// Whether every row is of the kind that its key says, within its bounds.
    pub(crate) fn check_doors(&self) -> Result<(), String> {
        for (key, row) in self.doors.iter() {
            let sound = match (key, row) {
                (DoorKey::Admission, DoorRow::Admission(row)) => row.admission.violations().is_empty(),
                (DoorKey::Node(_), DoorRow::Node(approval)) => approval.violations().is_empty(),
                (DoorKey::Certificate(_), DoorRow::Certificate(row)) => row.violations().is_empty(),
                _ => false,
            };
            if !sound {
                return Err(format!("{key:?} has a row that it may not have"));
            }
        }
        Ok(())
    }
}
