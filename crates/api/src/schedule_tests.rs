//! Schedules through a real listener with certificates: who is shown them, and what their calls come to.

use muster_decider::Command;
use muster_transport::Role;
use muster_types::{HolderId, RefusalCode};
use muster_wire::status::Refused;
use muster_wire::v1;
use muster_wire::v1::schedule_service_client::ScheduleServiceClient;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::ApiConfig;
use crate::access_tests::{World, guarded, host, of_tenant, short, submission};

async fn world() -> World {
    let world = World::with_tenants_under(ApiConfig::DEFAULT).await;
    let register = Command::Register { spec: host("h1"), holder: HolderId(1), other_session_is_over: false };
    world.engine.execute(register).await.expect("a host comes");
    world
}

fn request_id(n: u32) -> String {
    format!("00000000-0000-4000-e000-{n:012}")
}

fn schedule(name: &str, cron: &str) -> v1::Schedule {
    v1::Schedule {
        tenant: "vision".to_owned(),
        name: name.to_owned(),
        cron: cron.to_owned(),
        time_zone: "Europe/Berlin".to_owned(),
        job: submission("vision", 1).job,
        ..Default::default()
    }
}

async fn create(
    client: &mut ScheduleServiceClient<Channel>,
    n: u32,
    schedule: v1::Schedule,
) -> Result<v1::Schedule, Status> {
    let request = v1::CreateScheduleRequest { request_id: request_id(n), schedule: Some(schedule) };
    let answer = guarded("a schedule", client.create_schedule(request)).await?;
    Ok(answer.into_inner().schedule.expect("it is there"))
}

async fn get(client: &mut ScheduleServiceClient<Channel>, name: &str) -> Result<v1::Schedule, Status> {
    let request = v1::GetScheduleRequest { tenant: "vision".into(), name: name.into(), read: None };
    let answer = guarded("a schedule", client.get_schedule(request)).await?;
    Ok(answer.into_inner().schedule.expect("it is there"))
}

fn code(status: &Status) -> Option<RefusalCode> {
    Refused::from_status(status).code
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_is_made_run_suspended_and_deleted() {
    let world = world().await;
    let mut ada = ScheduleServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let made = create(&mut ada, 1, schedule("nightly", "0 6 1 1 *")).await.expect("she may");
    assert_eq!((made.owner.as_str(), made.runs_max), ("tenant/vision/ada", 10));
    let again = create(&mut ada, 1, schedule("nightly", "0 6 1 1 *")).await.expect("the same request");
    assert_eq!((again.set_at, again.name.as_str()), (made.set_at, "nightly"));
    let taken = create(&mut ada, 2, schedule("nightly", "0 7 1 1 *")).await.expect_err("there is one");
    assert_eq!((code(&taken), taken.code()), (Some(RefusalCode::ScheduleExists), Code::AlreadyExists));
    // The leader finds its moment by itself: six o'clock in Berlin in winter.
    let next = guarded("the next moment", async {
        loop {
            if let Some(next) = get(&mut ada, "nightly").await.expect("it is there").next_run_at {
                return next;
            }
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(next.await.seconds % 86_400, 5 * 3_600);
    let (tenant, name) = ("vision".to_owned(), "nightly".to_owned());
    let run =
        v1::RunScheduleRequest { request_id: request_id(3), tenant: tenant.clone(), name: name.clone() };
    let job = guarded("a run", ada.run_schedule(run.clone())).await.expect("she may").into_inner().job_id;
    let repeated = guarded("a run", ada.run_schedule(run)).await.expect("the same request").into_inner();
    assert_eq!(repeated.job_id, job);
    let shown = get(&mut ada, "nightly").await.expect("it is there");
    assert_eq!(shown.unfinished_job_ids, std::slice::from_ref(&job));
    assert_eq!(
        (shown.runs.len(), shown.runs[0].job_id.as_str(), shown.runs[0].due_at),
        (1, job.as_str(), None)
    );
    assert!(shown.job.is_some());
    let run =
        v1::RunScheduleRequest { request_id: request_id(4), tenant: tenant.clone(), name: name.clone() };
    let busy = guarded("a run", ada.run_schedule(run)).await.expect_err("one is not over");
    assert_eq!(code(&busy), Some(RefusalCode::ScheduleBusy));
    let suspend = v1::SuspendScheduleRequest {
        request_id: request_id(5),
        tenant: tenant.clone(),
        name: name.clone(),
        reason: "the data moves".to_owned(),
    };
    guarded("a suspension", ada.suspend_schedule(suspend)).await.expect("she may");
    let shown = get(&mut ada, "nightly").await.expect("it is there");
    assert_eq!(
        (shown.next_run_at, shown.suspension.expect("it is").by.as_str()),
        (None, "tenant/vision/ada")
    );
    let resume =
        v1::ResumeScheduleRequest { request_id: request_id(6), tenant: tenant.clone(), name: name.clone() };
    guarded("an end of it", ada.resume_schedule(resume)).await.expect("she may");
    let other = v1::Schedule { overlap: v1::OverlapRule::Allow.into(), ..schedule("nightly", "0 7 1 1 *") };
    let update = v1::UpdateScheduleRequest { request_id: request_id(7), schedule: Some(other) };
    let now = guarded("a change", ada.update_schedule(update)).await.expect("she may").into_inner();
    let now = now.schedule.expect("it is there");
    assert_eq!((now.cron.as_str(), now.suspension, now.runs.len()), ("0 7 1 1 *", None, 1));
    let delete = v1::DeleteScheduleRequest { request_id: request_id(8), tenant, name };
    guarded("the end", ada.delete_schedule(delete)).await.expect("she may");
    let gone = get(&mut ada, "nightly").await.expect_err("it is gone");
    assert_eq!(code(&gone), Some(RefusalCode::ScheduleNotFound));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_are_shown_to_those_who_act_for_their_tenant() {
    let world = world().await;
    let mut ada = ScheduleServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    create(&mut ada, 1, schedule("nightly", "0 6 1 1 *")).await.expect("she may");
    let mut bob = ScheduleServiceClient::new(world.channel(of_tenant("speech", "bob")).await);
    assert_eq!(
        get(&mut bob, "nightly").await.err().as_ref().and_then(code),
        Some(RefusalCode::ScheduleNotFound)
    );
    let list = guarded("a list", bob.list_schedules(v1::ListSchedulesRequest::default())).await;
    assert!(list.expect("he may").into_inner().schedules.is_empty());
    let foreign = create(&mut bob, 2, schedule("other", "0 6 1 1 *")).await.expect_err("not his tenant");
    assert_eq!(code(&foreign), Some(RefusalCode::PermissionDenied));
    let (tenant, name) = ("vision".to_owned(), "nightly".to_owned());
    let delete = v1::DeleteScheduleRequest { request_id: request_id(3), tenant, name };
    let denied = guarded("the end", bob.delete_schedule(delete)).await.expect_err("not his tenant");
    assert_eq!(code(&denied), Some(RefusalCode::ScheduleNotFound));
    let mut eve = ScheduleServiceClient::new(world.channel(Role::Client(short("eve"))).await);
    let denied = get(&mut eve, "nightly").await.expect_err("she acts for no tenant");
    assert_eq!(code(&denied), Some(RefusalCode::PermissionDenied));
    let list = guarded("a list", ada.list_schedules(v1::ListSchedulesRequest::default())).await;
    let list = list.expect("she may").into_inner().schedules;
    assert_eq!(list.len(), 1);
    assert!(list[0].job.is_none() && list[0].runs.is_empty(), "commands are not in lists");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_schedule_is_named() {
    let world = world().await;
    let mut ada = ScheduleServiceClient::new(world.channel(of_tenant("vision", "ada")).await);
    let before = world.engine.view().log_index();
    let good = || schedule("nightly", "0 6 1 1 *");
    let array = v1::JobArray { size: 3, ..Default::default() };
    let mut job = submission("vision", 1).job.expect("it has one");
    job.spec_mut().array = Some(array);
    for (wrong, field) in [
        (v1::Schedule { cron: "every day".into(), ..good() }, "schedule.cron"),
        (v1::Schedule { cron: "0 0 30 2 *".into(), ..good() }, "schedule.cron"),
        (v1::Schedule { time_zone: "Europe/Nowhere".into(), ..good() }, "schedule.time_zone"),
        (v1::Schedule { job: Some(job), ..good() }, "schedule.job.spec.array"),
        (v1::Schedule { job: None, ..good() }, "schedule.job"),
        (v1::Schedule { name: "No".into(), ..good() }, "schedule.name"),
    ] {
        let status = create(&mut ada, 9, wrong).await.expect_err(field);
        let refused = Refused::from_status(&status);
        let fields: Vec<&str> = refused.violations.iter().map(|found| found.field.as_str()).collect();
        assert_eq!((refused.code, fields), (Some(RefusalCode::InvalidField), vec![field]));
    }
    assert_eq!(world.engine.view().log_index(), before, "bad input changes nothing");
}
