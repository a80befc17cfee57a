use muster_client::{NodeItem, QueueItem, WatchItem, v1};

use super::*;
use crate::model::Update;
use crate::model::tests::{apply, changed, changed_node, job, node};

fn press(view: &mut View, model: &Model, codes: impl IntoIterator<Item = KeyCode>) -> Action {
    let mut last = Action::None;
    for code in codes {
        last = view.key(model, KeyEvent::new(code, KeyModifiers::NONE));
    }
    last
}

fn chars(text: &str) -> Vec<KeyCode> {
    text.chars().map(KeyCode::Char).collect()
}

fn model() -> Model {
    let mut model = Model::default();
    let queue = |tenant: &str, parent: &str| v1::TenantUsage {
        tenant: tenant.into(),
        parent: parent.into(),
        pending_jobs: 1,
        ..Default::default()
    };
    let queues = vec![queue("a", "z"), queue("b", ""), queue("c", "gone"), queue("d", "a"), queue("z", "")];
    apply(
        &mut model,
        [
            changed(1, job("job-1", "train", "vision", v1::JobPhase::Running)),
            changed(1, job("job-2", "next", "vision", v1::JobPhase::Pending)),
            changed(1, job("job-3", "other", "speech", v1::JobPhase::Pending)),
            changed(1, job("job-4", "done", "speech", v1::JobPhase::Failed)),
            Update::Job(WatchItem::SyncEnd { log_index: 1 }),
            changed_node(1, node("n1", "eu", 8)),
            changed_node(1, node("n2", "eu", 8)),
            changed_node(1, node("n3", "us", 8)),
            Update::Node(NodeItem::SyncEnd { log_index: 1 }),
            Update::Queue(QueueItem::Changed { log_index: 1, queues, forgotten: Vec::new() }),
        ],
    );
    model
}

fn ids<'a>(view: &View, model: &'a Model) -> Vec<&'a str> {
    view.jobs(model).into_iter().map(|job| job.id.as_str()).collect()
}

#[test]
fn filters_and_orders_choose_the_rows() {
    let (mut view, model) = (View::default(), model());
    assert_eq!(ids(&view, &model), ["job-4", "job-3", "job-2", "job-1"]);
    press(&mut view, &model, chars("f"));
    assert_eq!(ids(&view, &model), ["job-3", "job-2"]);
    press(&mut view, &model, chars("tvis"));
    assert_eq!(ids(&view, &model), ["job-2"]);
    press(&mut view, &model, [KeyCode::Enter, KeyCode::Char('/')]);
    press(&mut view, &model, chars("q"));
    assert!(ids(&view, &model).is_empty() && !view.shows_help, "what is typed is no command");
    press(&mut view, &model, [KeyCode::Backspace, KeyCode::Enter, KeyCode::Esc]);
    assert_eq!(ids(&view, &model).len(), 4, "Esc clears the filters");
    press(&mut view, &model, chars("s"));
    assert_eq!(ids(&view, &model), ["job-4", "job-2", "job-3", "job-1"], "by name");
    press(&mut view, &model, chars("r"));
    assert_eq!(ids(&view, &model), ["job-1", "job-3", "job-2", "job-4"]);
}

#[test]
fn a_selection_stays_with_its_row() {
    let (mut view, mut model) = (View::default(), model());
    press(&mut view, &model, [KeyCode::Down, KeyCode::Down]);
    assert_eq!(view.selection(&model).as_deref(), Some("job-2"));
    apply(&mut model, [changed(2, job("job-5", "new", "vision", v1::JobPhase::Pending))]);
    assert_eq!(view.selection(&model).as_deref(), Some("job-2"));
    press(&mut view, &model, [KeyCode::End]);
    assert_eq!(view.selection(&model).as_deref(), Some("job-1"));
    press(&mut view, &model, [KeyCode::PageUp, KeyCode::Up]);
    assert_eq!(view.selection(&model).as_deref(), Some("job-5"));
    press(&mut view, &model, [KeyCode::End, KeyCode::PageDown]);
    apply(&mut model, [Update::Job(WatchItem::Forgotten { log_index: 3, job_id: "job-1".into() })]);
    assert_eq!(view.selection(&model).as_deref(), Some("job-5"), "the first one, where it is gone");
}

#[test]
fn tenants_come_in_the_order_of_the_tree() {
    let (view, model) = (View::default(), model());
    let rows: Vec<(usize, &str)> =
        view.queues(&model).into_iter().map(|(depth, queue)| (depth, queue.tenant.as_str())).collect();
    assert_eq!(rows, [(0, "b"), (0, "c"), (0, "z"), (1, "a"), (2, "d")]);
}

#[test]
fn tenants_that_are_below_each_other_are_no_loop() {
    let mut model = Model::default();
    let queue = |tenant: &str, parent: &str| v1::TenantUsage {
        tenant: tenant.into(),
        parent: parent.into(),
        ..Default::default()
    };
    let queues = vec![queue("a", "b"), queue("b", "a"), queue("", ""), queue("c", "c")];
    apply(&mut model, [Update::Queue(QueueItem::Changed { log_index: 1, queues, forgotten: Vec::new() })]);
    assert!(View::default().queues(&model).len() <= 4 * DEPTH_MAX);
}

#[test]
fn clusters_fold() {
    let (mut view, model) = (View { tab: Tab::Fleet, ..View::default() }, model());
    assert_eq!(view.fleet(&model).len(), 7, "2 regions, 2 clusters, 3 nodes");
    press(&mut view, &model, [KeyCode::Down, KeyCode::Down, KeyCode::Char(' ')]);
    assert_eq!(view.fleet(&model).len(), 5);
    assert_eq!(view.selection(&model).as_deref(), Some("cluster eu/eu-a"));
    view.unfold(&model);
    assert_eq!(view.fleet(&model).len(), 7);
}

#[test]
fn keys_quit_and_change_the_tab() {
    let (mut view, model) = (View::default(), model());
    press(&mut view, &model, [KeyCode::Tab]);
    assert_eq!(view.tab, Tab::Queues);
    press(&mut view, &model, [KeyCode::BackTab, KeyCode::BackTab]);
    assert_eq!(view.tab, Tab::Events);
    press(&mut view, &model, chars("3"));
    assert_eq!(view.tab, Tab::Fleet);
    assert_eq!(press(&mut view, &model, chars("?q")), Action::None, "q closes the help first");
    assert_eq!(press(&mut view, &model, chars("q")), Action::Quit);
    view.input = Some(Input::Text);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(view.key(&model, interrupt), Action::Quit, "whatever is typed");
}

#[test]
fn events_of_nodes_are_those_of_the_tenant_whose_jobs_are_there() {
    let mut model = model();
    let mut holder = node("n1", "vision-west", 0);
    holder.job_ids = vec!["job-1".into()];
    apply(&mut model, [changed_node(5, holder), changed_node(6, node("n2", "vision-west", 8))]);
    // A node that is free again was still the tenant's.
    apply(&mut model, [changed_node(7, node("n1", "vision-west", 8))]);
    let view = View { tenant: "vision".into(), ..View::default() };
    let nodes = |view: &View| -> Vec<u64> {
        let events = view.events(&model).into_iter();
        events
            .filter(|event| event.log_index >= 5 && event.id.starts_with('n'))
            .map(|e| e.log_index)
            .collect()
    };
    assert!(nodes(&view).contains(&7) && nodes(&view).contains(&5), "{:?}", nodes(&view));
    assert!(!nodes(&view).contains(&6), "no job of the tenant is there");
    assert!(nodes(&View::default()).contains(&6));
}

#[test]
fn only_jobs_that_are_looked_at_are_explained() {
    let (mut view, model) = (View::default(), model());
    assert_eq!(view.to_explain(&model, 2_000), ["job-3", "job-2"]);
    view.tab = Tab::Replicas;
    assert!(view.to_explain(&model, 2_000).is_empty());
}
