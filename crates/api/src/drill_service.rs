//! `muster.admin.v1beta1.DrillService`: always about this replica, never passed on.

use muster_engine::TrafficScope;
use muster_transport::Principal;
use muster_types::{Name, Refusal, RefusalCode, ReplicaId, Violation};
use muster_wire::admin;
use muster_wire::admin::drill_service_server::DrillService;
use muster_wire::status::to_status;
use muster_wire::time::{self, duration, duration_from_proto};
use std::collections::BTreeSet;
use std::time::Duration;
use tonic::{Request, Response, Status};

use crate::drills::{Announcement, Drills, Held};
use crate::forward::Router;
use crate::guard::Admitted;
use crate::read::invalid;

/// Replicas and regions one drill may name.
const NAMED_MAX: usize = 16;
/// Bytes of who says to have started it.
const STARTED_BY_BYTES_MAX: usize = 128;
/// A drill is held so long without being renewed, in milliseconds.
const HOLD_MS: (u64, u64) = (500, 30_000);
/// Shorter than this nothing is refused, in milliseconds.
const REFUSAL_MS_MIN: u64 = 100;

pub(crate) struct DrillCalls {
    router: Router,
    drills: Drills,
}

impl DrillCalls {
    pub(crate) fn new(router: Router, drills: Drills) -> DrillCalls {
        DrillCalls { router, drills }
    }

    /// # Errors
    /// When the caller's role is not for the region of this replica, or for another region of the drill.
    fn check_regions<T>(&self, request: &Request<T>, others: &[Name]) -> Result<(), Status> {
        let caller = self.router.caller(request);
        let engine = self.router.engine();
        let view = engine.view();
        let own = &engine.info().region;
        let mut regions = std::iter::once(own).chain(others);
        regions
            .try_for_each(|region| caller.check_region(&view, region))
            .map_err(|refusal| to_status(&refusal))
    }

    /// # Errors
    /// When the voters that are left would be no majority.
    fn check_quorum(&self, silent: &BTreeSet<ReplicaId>) -> Result<(), Refusal> {
        let status = self.router.engine().consensus().status();
        let voters: Vec<_> = status.members.iter().filter(|member| member.votes).collect();
        let left = voters.iter().filter(|member| !silent.contains(&member.replica)).count();
        let needed = voters.len() / 2 + 1;
        if left >= needed {
            return Ok(());
        }
        let text = format!("{left} of {} voters would be left, {needed} are needed", voters.len());
        Err(Refusal::new(RefusalCode::WouldLoseQuorum, text))
    }
}

fn principal<T>(request: &Request<T>) -> String {
    let principal = request.extensions().get::<Admitted>().map(|admitted| admitted.principal);
    principal.and_then(|principal: Principal| principal.passed_on()).unwrap_or_default()
}

fn named(field: &str, text: &str) -> Result<Name, Violation> {
    Name::new(text).ok_or_else(|| Violation::new(field, format!("must be {}", muster_types::name::NAME_RULE)))
}

fn replicas(field: &str, ids: &[u64]) -> Result<BTreeSet<ReplicaId>, Violation> {
    if ids.len() > NAMED_MAX {
        return Err(Violation::limit(field, ids.len() as u64, 0, NAMED_MAX as u64));
    }
    if ids.contains(&0) {
        return Err(Violation::new(field, "must be 1 or more"));
    }
    Ok(ids.iter().copied().map(ReplicaId).collect())
}

fn announcement(message: &admin::AnnounceDrillRequest, principal: String) -> Result<Announcement, Status> {
    let mut violations = Vec::new();
    let mut wrong = |violation| violations.push(violation);
    let id = named("drill_id", &message.drill_id).map_err(&mut wrong).ok();
    let name = named("name", &message.name).map_err(&mut wrong).ok();
    let by = &message.started_by;
    if by.is_empty() || by.len() > STARTED_BY_BYTES_MAX || by.chars().any(char::is_control) {
        let rule = format!("must be one line of 1 to {STARTED_BY_BYTES_MAX} bytes");
        wrong(Violation::new("started_by", rule));
    }
    let (min, max) = HOLD_MS;
    let hold = span("hold", message.hold, (min, max)).map_err(&mut wrong).ok();
    let silent = replicas("silent_replica_ids", &message.silent_replica_ids).map_err(&mut wrong).ok();
    if message.cordoned_regions.len() > NAMED_MAX {
        wrong(Violation::limit(
            "cordoned_regions",
            message.cordoned_regions.len() as u64,
            0,
            NAMED_MAX as u64,
        ));
    }
    let regions = message.cordoned_regions.iter().take(NAMED_MAX);
    let regions: Vec<Name> =
        regions.filter_map(|region| named("cordoned_regions", region).map_err(&mut wrong).ok()).collect();
    match (id, name, silent, hold) {
        (Some(id), Some(name), Some(silent), Some(hold)) if violations.is_empty() => Ok(Announcement {
            id,
            name,
            started_by: message.started_by.clone(),
            principal,
            hold,
            silent: silent.into_iter().collect(),
            cordoned_regions: regions,
        }),
        _ => Err(invalid(violations)),
    }
}

/// The directions named, each once.
fn scope(message: &admin::RefuseTrafficRequest) -> Result<TrafficScope, Violation> {
    let mut scope = TrafficScope::default();
    for traffic in message.traffic() {
        let direction = match traffic {
            admin::Traffic::PeersIn => &mut scope.peers_in,
            admin::Traffic::PeersOut => &mut scope.peers_out,
            admin::Traffic::Clients => &mut scope.clients,
            admin::Traffic::Unspecified => {
                return Err(Violation::new("traffic", "must be PEERS_IN, PEERS_OUT or CLIENTS"));
            }
        };
        if std::mem::replace(direction, true) {
            return Err(Violation::new("traffic", "must name each kind once"));
        }
    }
    if scope.is_empty() {
        return Err(Violation::new("traffic", "must name at least one kind"));
    }
    Ok(scope)
}

/// A span that has to be given, between two others.
fn span(field: &str, given: Option<time::Duration>, (min, max): (u64, u64)) -> Result<Duration, Violation> {
    let given = given.ok_or_else(|| Violation::new(field, "must be given"))?;
    let ms = duration_from_proto(field, given)?;
    match (min..=max).contains(&ms) {
        true => Ok(Duration::from_millis(ms)),
        false => Err(Violation::span(field, ms, min, max)),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn drill(held: &Held) -> admin::Drill {
    let (scope, left) = held.refused.unwrap_or_default();
    let kinds = [
        (scope.peers_in, admin::Traffic::PeersIn),
        (scope.peers_out, admin::Traffic::PeersOut),
        (scope.clients, admin::Traffic::Clients),
    ];
    admin::Drill {
        id: held.id.to_string(),
        name: held.name.to_string(),
        started_by: held.started_by.clone(),
        principal: held.principal.clone(),
        held: Some(duration(millis(held.left))),
        silent_replica_ids: held.silent.iter().map(|id| id.0).collect(),
        cordoned_regions: held.cordoned_regions.iter().map(ToString::to_string).collect(),
        refused: kinds.into_iter().filter(|(is, _)| *is).map(|(_, kind)| kind.into()).collect(),
        refused_for: held.refused.map(|_| duration(millis(left))),
    }
}

#[tonic::async_trait]
impl DrillService for DrillCalls {
    async fn announce_drill(
        &self,
        request: Request<admin::AnnounceDrillRequest>,
    ) -> Result<Response<admin::AnnounceDrillResponse>, Status> {
        let said = announcement(request.get_ref(), principal(&request))?;
        self.check_regions(&request, &said.cordoned_regions)?;
        if self.drills.refusal_max().is_zero() {
            let text = "this replica takes part in no drill: limits.drill_refusal_max_ms is 0";
            return Err(to_status(&Refusal::new(RefusalCode::PermissionDenied, text)));
        }
        let held = self.drills.announce(said).map_err(|refusal| to_status(&refusal))?;
        Ok(Response::new(admin::AnnounceDrillResponse { drill: Some(drill(&held)) }))
    }

    async fn refuse_traffic(
        &self,
        request: Request<admin::RefuseTrafficRequest>,
    ) -> Result<Response<admin::RefuseTrafficResponse>, Status> {
        self.check_regions(&request, &[])?;
        let message = request.get_ref();
        let mut violations = Vec::new();
        let mut wrong = |violation| violations.push(violation);
        let id = named("drill_id", &message.drill_id).map_err(&mut wrong).ok();
        let scope = scope(message).map_err(&mut wrong).ok();
        let silent = replicas("silent_replica_ids", &message.silent_replica_ids).map_err(&mut wrong).ok();
        let max = millis(self.drills.refusal_max());
        let length = span("duration", message.duration, (REFUSAL_MS_MIN, max)).map_err(&mut wrong).ok();
        let (Some(id), Some(scope), Some(mut silent), Some(length), true) =
            (id, scope, silent, length, violations.is_empty())
        else {
            return Err(invalid(violations));
        };
        silent.insert(self.router.engine().info().replica);
        self.check_quorum(&silent).map_err(|refusal| to_status(&refusal))?;
        let held = self.drills.refuse(&id, scope, length);
        let held = held.map_err(|refusal| to_status(&refusal))?;
        Ok(Response::new(admin::RefuseTrafficResponse { drill: Some(drill(&held)) }))
    }

    async fn end_drill(
        &self,
        request: Request<admin::EndDrillRequest>,
    ) -> Result<Response<admin::EndDrillResponse>, Status> {
        self.check_regions(&request, &[])?;
        let text = &request.get_ref().drill_id;
        let id = if text.is_empty() { Ok(None) } else { named("drill_id", text).map(Some) };
        let id = id.map_err(|violation| invalid(vec![violation]))?;
        let ended = self.drills.end(id.as_ref(), &principal(&request));
        Ok(Response::new(admin::EndDrillResponse { drill: ended.as_ref().map(drill) }))
    }

    async fn get_drill(
        &self,
        _request: Request<admin::GetDrillRequest>,
    ) -> Result<Response<admin::GetDrillResponse>, Status> {
        Ok(Response::new(admin::GetDrillResponse {
            drill: self.drills.current().as_ref().map(drill),
            replica_id: self.router.engine().info().replica.0,
            max_refusal: Some(millis(self.drills.refusal_max())).filter(|ms| *ms > 0).map(duration),
        }))
    }
}
