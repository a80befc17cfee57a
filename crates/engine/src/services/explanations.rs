//! Explanations of jobs, from the present and the past.
//!
//! **Invariant:** what holds now says nothing of a state of the past.

use muster_consensus::TokioEnv;
use muster_decider::{BookingPlan, ExpectedStarts, JobExplanation, JobPath, KeptReservations, QueueForecast};
use muster_planner::WaitReason;
use muster_state::State;
use muster_types::{BookingSpec, JobId, LogTime, Name, Refusal, Submission};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::background::in_background;
use crate::clock;
use crate::engine::Engine;
use crate::refusals::stopping_reads;
use crate::services::reads::Reading;

/// Jobs of one forecast of starts.
const STARTS_JOBS_MAX: usize = 1_000;
/// Requests without a turn that a forecast steps over.
const STARTS_STEPS_MAX: u64 = 50_000;
/// Work of a forecast, at each of its three paces.
const STARTS_VISITS: u64 = 1_000_000;

/// For how long one forecast of a state serves explanations: they are made at its time, so none is older than that.
const FORECAST_SERVES_MS: u64 = 1_000;

type SharedForecast = Mutex<Option<QueueForecast>>;

/// Whether a forecast serves those who ask for a state at a time.
fn serves(known: &QueueForecast, view: &State, kept: &Arc<KeptReservations>, now: LogTime) -> bool {
    known.is_of(view, kept) && known.now() <= now && now.since_ms(known.now()) <= FORECAST_SERVES_MS
}

/// Why a pending job waits. Those who ask for the same state one shortly after the other share what they have in common, and wait
/// for one another.
fn explained(
    view: &State,
    now: LogTime,
    job: JobId,
    kept: Arc<KeptReservations>,
    shared: Option<&SharedForecast>,
) -> Option<JobExplanation> {
    let Some(shared) = shared else { return muster_decider::explain_job(view, now, job, &kept) };
    let mut slot = shared.lock();
    // Out of its place for the time being: after a panic in the middle of it nobody uses it again.
    let known = slot.take().filter(|known| serves(known, view, &kept, now));
    let mut forecast = known.unwrap_or_else(|| QueueForecast::new(view, now, kept));
    let explained = muster_decider::explain_job_in(view, job, &mut forecast);
    *slot = Some(forecast);
    explained
}

impl Engine {
    /// Why a pending job waits, by the state of `view`; `None` when it does not wait. The leader knows what it keeps for
    /// other jobs. Every other replica derives that from the state, and so does the leader for a state of the past. An
    /// explanation runs on a separate thread, and the number that run at a time is bounded.
    ///
    /// # Errors
    /// When the replica stops.
    pub async fn explain_job(&self, view: &Reading, job: JobId) -> Result<Option<JobExplanation>, Refusal> {
        let (kept, shared) = (self.kept_at(view), self.shared_forecast(view));
        let explained =
            self.explaining(view, move |view, now| explained(view, now, job, kept, shared.as_deref()));
        let explained = explained.await;
        self.let_forecast_go();
        explained
    }

    /// The same on the thread of the caller, which is one for such work and has its turn at it.
    #[must_use]
    pub fn explain_job_here(&self, view: &Reading, job: JobId) -> Option<JobExplanation> {
        let shared = self.shared_forecast(view);
        let explained = explained(view, Engine::now_of(view), job, self.kept_at(view), shared.as_deref());
        if shared.is_some() {
            self.let_forecast_go();
        }
        explained
    }

    /// When the jobs of the pending queue are expected to start, at most a thousand of them, on the thread of the caller, as
    /// [`Engine::explain_job_here`]. It costs about as much as one explanation.
    #[must_use]
    pub fn expected_starts_here(&self, view: &Reading) -> ExpectedStarts {
        self.first_starts_here(view, STARTS_JOBS_MAX)
    }

    /// The same for no more jobs than this, those that are given their capacity first: it costs as much less.
    #[must_use]
    pub fn first_starts_here(&self, view: &Reading, jobs_max: usize) -> ExpectedStarts {
        let bounds = (jobs_max.min(STARTS_JOBS_MAX), STARTS_STEPS_MAX, STARTS_VISITS);
        let (now, kept) = (Engine::now_of(view), self.kept_at(view));
        // What explanations of the state have made is used where nobody makes more of it: they are not to wait for this.
        let known = self.shared_forecast(view).and_then(|shared| {
            let slot = shared.try_lock()?;
            slot.as_ref().filter(|known| serves(known, view, &kept, now)).map(QueueForecast::without_walks)
        });
        let mut forecast = known.unwrap_or_else(|| QueueForecast::new(view, now, kept));
        muster_decider::expected_starts_in(view, &mut forecast, bounds)
    }

    /// The reason and its sentence alone, on the thread of the caller, as [`Engine::explain_job_here`].
    #[must_use]
    pub fn explain_briefly_here(&self, view: &Reading, job: JobId) -> Option<(WaitReason, String)> {
        muster_decider::explain_briefly(view, Engine::now_of(view), job, &self.kept_at(view))
    }

    /// The reason and its sentence alone, for looking at one job.
    ///
    /// # Errors
    /// When the replica stops.
    pub async fn explain_briefly(
        &self,
        view: &Reading,
        job: JobId,
    ) -> Result<Option<(WaitReason, String)>, Refusal> {
        let kept = self.kept_at(view);
        self.explaining(view, move |view, now| muster_decider::explain_briefly(view, now, job, &kept)).await
    }

    /// The job that is next for each of these counted resources, on the thread of the caller.
    #[must_use]
    pub fn first_for_licences_here<'a>(
        &self,
        view: &Reading,
        names: impl IntoIterator<Item = &'a Name>,
    ) -> BTreeMap<Name, JobId> {
        muster_decider::first_for_licences(view, view.log_time(), &self.kept_at(view), names)
    }

    /// What would become of a job if it were submitted now, by the state of `view`.
    ///
    /// # Errors
    /// What a submission of it would be refused for, but where it fits nowhere, which the explanation says; or when the replica
    /// stops.
    pub async fn explain_spec(&self, view: &Reading, job: Submission) -> Result<JobExplanation, Refusal> {
        // As a submission is taken: with the limit that the policy gives it, and refused for one that it exceeds.
        let with_limit =
            muster_decider::with_default_limits(view, std::slice::from_ref(&job)).into_owned().pop();
        let job = with_limit.unwrap_or(job);
        let now = Engine::now_of(view);
        muster_decider::check_terms(view, std::slice::from_ref(&job), JobPath::Single, now)?;
        let kept = self.kept_at(view);
        let explain = move |view: &State, now| {
            let place = job.contract.checkpoint.place.as_ref();
            let described = (&job.spec, job.metadata.as_ref());
            muster_decider::explain_spec(view, now, described, place, &kept)
        };
        self.explaining(view, explain).await
    }

    /// What a booking would come to if it were made now, by the state of `view`. `acts_for` is the tenant that the requester is
    /// bound to; none where it acts for the cluster's operators.
    ///
    /// # Errors
    /// What making it would be refused for; or when the replica stops.
    pub async fn plan_booking(
        &self,
        view: &Reading,
        (acts_for, name): (Option<Name>, Name),
        spec: BookingSpec,
    ) -> Result<BookingPlan, Refusal> {
        let kept = self.kept_at(view);
        let plan = move |view: &State, now| {
            muster_decider::plan_booking(view, now, (acts_for.as_ref(), &name), &spec, &kept)
        };
        self.explaining(view, plan).await?
    }

    /// What is kept for others, as far as this replica knows.
    fn kept_at(&self, view: &Reading) -> Arc<KeptReservations> {
        if view.is_past() { Arc::default() } else { self.inner.shared.kept.load_full() }
    }

    /// What explanations of the newest state have in common; none for a state of the past.
    fn shared_forecast(&self, view: &Reading) -> Option<Arc<SharedForecast>> {
        (!view.is_past()).then(|| Arc::clone(&self.inner.queue_forecast))
    }

    /// Gives the memory of the forecast back once it serves nobody any more. Who uses it meanwhile asks for this again.
    fn let_forecast_go(&self) {
        let Some(runtime) = &self.inner.runtime else { return };
        let shared = Arc::clone(&self.inner.queue_forecast);
        runtime.spawn(async move {
            tokio::time::sleep(Duration::from_millis(2 * FORECAST_SERVES_MS)).await;
            let now = clock::now::<TokioEnv>();
            if let Some(mut slot) = shared.try_lock() {
                slot.take_if(|known| now.since_ms(known.now()) > FORECAST_SERVES_MS);
            }
        });
    }

    /// The time at which a state is explained. Like the leader's: never before what is in the log; of a past state its own.
    fn now_of(view: &Reading) -> LogTime {
        if view.is_past() { view.log_time() } else { clock::now::<TokioEnv>().max(view.log_time()) }
    }

    async fn explaining<T: Send + 'static>(
        &self,
        view: &Reading,
        explain: impl FnOnce(&State, LogTime) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let place = Arc::clone(&self.inner.explainers).acquire_owned().await.map_err(|_| stopping_reads())?;
        let (view, now) = (Arc::clone(view.state()), Engine::now_of(view));
        let explained = in_background(move || {
            let _place = place;
            explain(&view, now)
        });
        explained.await.map_err(|_| stopping_reads())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{guarded, leader};

    #[tokio::test]
    async fn what_a_page_leaves_to_other_explanations_is_let_go_of() {
        let engine = leader().await;
        let (shared, asked) = (Arc::clone(&engine.inner.queue_forecast), engine.clone());
        let explained = in_background(move || {
            // Such a thread is not of the runtime.
            let found = asked.explain_job_here(&asked.reading(), JobId(7));
            (found.is_some(), asked.inner.queue_forecast.lock().is_some())
        });
        let explained = guarded("an explanation", explained).await;
        assert_eq!(
            explained,
            Ok((false, true)),
            "there is no such job, and who asks next shares the forecast"
        );
        // Nothing else is explained.
        guarded("the end of the forecast", async {
            while shared.lock().is_some() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
    }
}
