//! What would become of a job: the form, and what `PlanJob` answers.

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use muster_page::{PlanQuery, PlannedCost, PlannedJob};
use muster_state::State as Applied;
use muster_types::{Name, Refusal, RefusalCode, Submission};
use muster_wire::convert::submissions_from_proto;
use muster_wire::status::Refused;
use muster_wire::time::span_ms;
use muster_wire::v1;
use std::time::{SystemTime, UNIX_EPOCH};

use super::query::parameters;
use super::{Problem, Reader, Scene, Web};
use crate::explanation;
use crate::job_service::check_features;
use crate::read::{invalid, present};

/// About what the page takes with the longest answer.
const PLAN_BYTES: usize = 256 << 10;

pub(super) async fn page(
    State(web): State<Web>,
    Extension(reader): Extension<Reader>,
    request: Request,
) -> Result<Response, Problem> {
    let query = PlanQuery::of(parameters(request.uri(), PlanQuery::PARAMETERS)?);
    if query.is_empty() {
        return web.plan_page(reader, query, None, Vec::new()).await;
    }
    match query.job(unix_ms_now()) {
        Ok(job) => {
            let planned = web.planned(reader, job).await?;
            web.plan_page(reader, query, Some(planned), Vec::new()).await
        }
        Err(wrong) => {
            let mut response = web.plan_page(reader, query, None, wrong).await?;
            *response.status_mut() = StatusCode::BAD_REQUEST;
            Ok(response)
        }
    }
}

fn unix_ms_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Web {
    async fn plan_page(
        &self,
        reader: Reader,
        query: PlanQuery,
        planned: Option<PlannedJob>,
        wrong: Vec<(String, String)>,
    ) -> Result<Response, Problem> {
        let make =
            move |scene: &Scene| Ok(muster_page::plan(&scene.frame(), &query, planned.as_ref(), &wrong));
        self.answer(reader, PLAN_BYTES, make).await
    }

    /// The answer for a job, in its reader's turn, as the call makes it.
    async fn planned(&self, reader: Reader, job: v1::Job) -> Result<PlannedJob, Problem> {
        let engine = self.engine();
        let state = present(engine);
        let log_index = state.log_index().0;
        if let Err(status) = check_features("job", Some(&job)) {
            let refusal = Some(Refused::from_status(&status).message);
            return Ok(PlannedJob { refusal, log_index, ..PlannedJob::default() });
        }
        let mut jobs = submissions_from_proto("job", Some(job)).map_err(invalid)?;
        Submission::require_features(&mut jobs, |_| "job".to_owned()).map_err(invalid)?;
        Submission::set_creator(&mut jobs, &reader.caller().creator());
        let Some(job) = jobs.into_iter().next() else {
            return Err(Problem::field("file", "must hold a job"));
        };
        let work = {
            let (engine, state) = (engine.clone(), state.clone());
            async move { engine.explain_spec(&state, job).await }
        };
        match self.router.in_turn(reader.account(), work).await {
            Ok(explained) => {
                let explanation = explanation::waiting(&state, &explained);
                let cost = cost(&state, &explanation);
                Ok(PlannedJob { refusal: None, explanation, log_index, cost })
            }
            Err(refusal) if is_of_replica(refusal.code) => Err(refusal.into()),
            Err(refusal) => {
                Ok(PlannedJob { refusal: Some(sentence(&refusal)), log_index, ..PlannedJob::default() })
            }
        }
    }
}

/// Whether the replica is refused rather than the job.
fn is_of_replica(code: RefusalCode) -> bool {
    use RefusalCode::{ClusterNotReady, Internal, Overloaded, ReplicaStopping};
    matches!(code, Internal | Overloaded | ReplicaStopping | ClusterNotReady)
}

/// The refusal with its code and the fields concerned.
fn sentence(refusal: &Refusal) -> String {
    let fields = refusal.violations.iter().map(|wrong| format!("; {} {}", wrong.field, wrong.description));
    format!("{}: {}{}", refusal.code, refusal.message, fields.collect::<String>())
}

/// What the placement of a plan would cost, by the prices of the policy.
fn cost(view: &Applied, explanation: &v1::Explanation) -> Option<PlannedCost> {
    let placement = explanation.placement.as_ref()?;
    let (kind, region) = (Name::new(&placement.accelerator_type)?, Name::new(&placement.region)?);
    let hourly = view.policy().policy.price(&kind, &region, view.log_time())?;
    Some(PlannedCost {
        micro_dollars_per_device_hour: hourly,
        devices: placement.nodes.iter().map(|node| u64::from(node.devices)).sum(),
        run_ms: span_ms(explanation.estimate.as_ref()?.run_time)?,
    })
}
