//! Frames as text. `UPDATE_EXPECT=1` writes `testdata/` again.

use std::path::Path;

use muster_client::{NodeItem, QueueItem, WatchItem, v1};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::*;
use crate::model::Update;
use crate::model::tests::{apply, changed, changed_node, job, node};
use crate::once::{lines, text};
use crate::rows::{ClusterRow, ReplicaRow, WaitReason};

const CLOCK: Clock = Clock { unix_ms: 1_000_000 + 5 * 60_000, monotonic_ms: 3_000 };
const PLAIN: Theme = Theme { has_colour: false };

fn queue(tenant: &str, parent: &str, used_milli: u64) -> v1::TenantUsage {
    v1::TenantUsage {
        tenant: tenant.into(),
        parent: parent.into(),
        pending_jobs: 2,
        gated_jobs: 1,
        active_jobs: 1,
        active_devices_milli: used_milli,
        share_billionths: 125_000_000,
        quotas: vec![v1::QuotaUse {
            r#type: "h100".into(),
            region: "eu".into(),
            nominal_milli: 16_000,
            used_milli,
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn replica(id: u64, role: &str) -> ReplicaRow {
    ReplicaRow {
        id,
        region: "eu".into(),
        endpoint: format!("http://10.0.0.{id}:7401"),
        voter: true,
        role: role.into(),
        term: Some(4),
        last_index: Some(120),
        applied_index: Some(118),
        lag_entries: Some(id - 1),
        silence_ms: Some(12),
        version: "0.1.0".into(),
        error: String::new(),
    }
}

fn full() -> Model {
    let mut model = Model::default();
    let mut holder = node("n1", "eu", 0);
    holder.job_ids = vec!["job-1".into()];
    let mut faulty = node("n2", "eu", 5);
    faulty.restriction = Some(v1::NodeRestriction { unusable_devices: vec![6, 7], ..Default::default() });
    let mut closed = node("u1", "us", 8);
    closed.cordoned = true;
    let queues = vec![queue("research", "", 8_000), queue("vision", "research", 20_000)];
    let lost = ReplicaRow {
        error: "no answer from http://10.0.0.3:7401 in time".into(),
        term: None,
        ..replica(3, "unreachable")
    };
    apply(
        &mut model,
        [
            changed(9, job("job-1", "train", "vision", v1::JobPhase::Running)),
            changed(9, job("job-2", "next", "vision", v1::JobPhase::Pending)),
            Update::Job(WatchItem::SyncEnd { log_index: 9 }),
            changed_node(9, holder),
            changed_node(9, faulty),
            changed_node(9, closed),
            Update::Node(NodeItem::SyncEnd { log_index: 9 }),
            Update::Queue(QueueItem::Changed { log_index: 9, queues, forgotten: Vec::new() }),
            Update::Queue(QueueItem::SyncEnd { log_index: 9 }),
            Update::Cluster(ClusterRow {
                cluster_id: "c".repeat(32),
                log_index: 118,
                staleness_ms: Some(40),
                replicas: vec![replica(1, "leader"), replica(2, "follower"), lost],
                warnings: vec!["REPLICA_SILENT: replica 3 does not answer".into()],
            }),
            Update::Explained {
                job_id: "job-2".into(),
                reason: WaitReason {
                    reason: "WAITING_FOR_CAPACITY".into(),
                    message: "0 of 2 workers fit now in eu/eu-a, which is closest".into(),
                    requests_before: Some(0),
                },
            },
        ],
    );
    model
}

/// A frame as a terminal of this size shows it.
fn screen(model: &Model, view: &View, clock: Clock, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let drawn = terminal.draw(|screen| {
        let area = screen.area();
        frame(model, view, clock, area, &mut Canvas { buffer: screen.buffer_mut(), theme: PLAIN });
    });
    drawn.unwrap();
    lines(terminal.backend().buffer()).join("\n") + "\n"
}

fn assert_frame(name: &str, shown: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, shown).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(shown, expected, "{}: UPDATE_EXPECT=1 writes it again", path.display());
}

#[test]
fn every_tab_at_80x24_is_as_it_was() {
    let model = full();
    for tab in Tab::ALL {
        let view = View { tab, ..View::default() };
        let shown = screen(&model, &view, CLOCK, 80, 24);
        assert_eq!(shown.lines().count(), 24);
        assert!(shown.lines().all(|line| Span::raw(line).width() <= 80), "{shown}");
        assert_frame(&format!("{}-80", tab.word()), &shown);
    }
    assert_frame("jobs-140", &screen(&model, &View::default(), CLOCK, 140, 12));
    let detail = View { shows_detail: true, ..View::default() };
    assert_frame("detail-80", &screen(&model, &detail, CLOCK, 80, 24));
    let help = View { shows_help: true, ..View::default() };
    assert_frame("help-80", &screen(&model, &help, CLOCK, 80, 24));
}

#[test]
fn silence_and_an_empty_cluster_are_told() {
    let mut model = full();
    model.apply(Update::Lost { feed: Feed::Jobs, error: "connection refused".into() }, 20_000);
    let late = Clock { monotonic_ms: 31_000, ..CLOCK };
    let shown = screen(&model, &View::default(), late, 80, 24);
    assert!(shown.starts_with("NOTHING ANSWERS for 30 s; shown as of index 118"), "{shown}");
    assert!(shown.contains("! jobs: connection refused"), "{shown}");
    let shown = screen(&Model::default(), &View::default(), Clock::default(), 80, 24);
    assert!(shown.starts_with("asking the cluster") && shown.contains("not received yet"), "{shown}");
}

#[test]
fn hostile_text_stays_in_its_cell() {
    let mut model = full();
    let names = [
        "\u{1b}[2J\u{1b}]0;x\u{7}",
        "日本語の長い名前がここにある",
        "\u{202e}evil\u{2066}",
        "שלום עולם",
        "e\u{301}\u{301}\u{301}👩‍👩‍👧‍👦",
        "a\nb\tc\rd",
    ];
    for (place, name) in names.into_iter().enumerate() {
        let mut hostile = job(&format!("job-h{place}"), name, name, v1::JobPhase::Failed);
        hostile.status_mut().message = format!("{name} {name}");
        apply(&mut model, [changed(20, hostile), changed_node(20, node(name, name, 1))]);
    }
    for tab in Tab::ALL {
        for (width, height) in [(40, 8), (80, 24), (200, 50)] {
            for shows_detail in [false, true] {
                let view = View { tab, shows_detail, ..View::default() };
                let shown = screen(&model, &view, CLOCK, width, height);
                let is_bad = |c: char| {
                    c != '\n'
                        && (c.is_control()
                            || ('\u{202a}'..='\u{202e}').contains(&c)
                            || ('\u{2066}'..='\u{2069}').contains(&c))
                };
                assert!(!shown.chars().any(is_bad), "{tab:?} {width}: {shown:?}");
                assert_eq!(shown.lines().count(), usize::from(height));
                assert!(shown.lines().all(|line| Span::raw(line).width() <= usize::from(width)), "{shown}");
            }
        }
    }
}

#[test]
fn every_size_has_a_frame_and_the_selected_row_is_in_it() {
    let mut model = full();
    for n in 0..60 {
        apply(&mut model, [changed(30, job(&format!("job-x{n:02}"), "many", "t", v1::JobPhase::Pending))]);
    }
    for (width, height) in [(0, 0), (1, 1), (39, 7), (40, 8), (80, 24), (81, 9), (300, 90)] {
        for tab in Tab::ALL {
            let mut view = View { tab, ..View::default() };
            view.key(&model, KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
            let shown = screen(&model, &view, CLOCK, width, height);
            if width >= 40 && height >= 8 && tab == Tab::Jobs {
                assert!(shown.contains("job-1 "), "{width}x{height}: {shown}");
            }
        }
    }
}

#[test]
fn without_colours_there_are_none_and_with_them_the_text_is_the_same() {
    let model = full();
    let area = Rect::new(0, 0, 120, 24);
    let drawn = |has_colour| {
        let mut buffer = Buffer::empty(area);
        let theme = Theme { has_colour };
        frame(&model, &View::default(), CLOCK, area, &mut Canvas { buffer: &mut buffer, theme });
        buffer
    };
    let (plain, coloured) = (drawn(false), drawn(true));
    let has_colour = |buffer: &Buffer| buffer.content.iter().any(|cell| cell.fg != Color::Reset);
    assert!(!has_colour(&plain) && has_colour(&coloured));
    assert_eq!(lines(&plain), lines(&coloured));
}

#[test]
fn a_frame_for_pipes_has_every_row_and_no_keys() {
    let model = full();
    let shown = text(&model, &View::default(), CLOCK, 200, PLAIN);
    assert!(shown.contains("job-1") && shown.contains("job-2") && !shown.contains("q quit"), "{shown}");
    assert!(shown.contains("WAITING_FOR_CAPACITY: 0 of 2 workers fit now in eu/eu-a"), "{shown}");
}
