//! A newer record format comes into force while clients submit, and not before every replica reads it.

use crate::support::{Cluster, Load, eventually, heavy, say};

const CONFLICT: i32 = 5;
/// Stands for the release before.
const CAPPED: &str = "[upgrade]\nformat_max = 1\n";
/// The newest record format of this release.
const NEWEST: u32 = muster_journal::FORMAT_MAX as u32;

impl Cluster {
    async fn formats(&self, at: usize) -> Option<(u32, u32)> {
        let status = self.status_of(at).await.ok()?;
        Some((status.record_format, status.health?.max_record_format))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_upgrade_fails_no_call_and_raises_the_format_at_its_end() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start_with(3, 1, CAPPED).await;
    let mut load = Load::start(&cluster);
    load.progress().await;
    cluster.settings.clear();
    for at in 0..3 {
        // The replicas that are not upgraded yet keep the format from being raised.
        eventually("the leader does not know what every replica reads", || async {
            let ran = cluster.operate(&["cluster", "upgrade", "--to", "2"]).await;
            assert_ne!(ran.code, Some(0), "the format was raised before every replica read it");
            (ran.code == Some(CONFLICT) && ran.err.contains("MS-7006 FORMAT_NOT_READY")).then_some(())
        })
        .await;
        cluster.write_config(at);
        cluster.stop(at).await;
        load.progress().await;
        cluster.start_replica(at);
        let seen = cluster.client().seen_log_index();
        cluster.caught_up(at, seen).await;
        eventually("it does not say that it reads the newer format while the older is in force", || async {
            (cluster.formats(at).await? == (1, NEWEST)).then_some(())
        })
        .await;
        load.progress().await;
    }
    let ran = eventually("the format is not raised", || async {
        let ran = cluster.operate(&["cluster", "upgrade"]).await;
        (ran.out == format!("record format {NEWEST} is in force\n")).then_some(ran)
    })
    .await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    load.progress().await;
    let acknowledged = load.finish().await;
    for at in 0..3 {
        eventually("the format is not in force everywhere", || async {
            (cluster.formats(at).await? == (NEWEST, NEWEST)).then_some(())
        })
        .await;
    }

    // A replica of the previous release stops before what it cannot read, reports that, and gets no vote.
    cluster.settings = CAPPED.to_owned();
    cluster.write_config(3);
    cluster.start_replica_with(3, &["--join"]);
    let address = cluster.address_of(3);
    let address: Vec<&str> = address.iter().map(String::as_str).collect();
    cluster.operated(&[&["cluster", "add", "4", "--learner"], address.as_slice()].concat()).await;
    let status = cluster.ended(3).await;
    assert!(!status.success(), "it has to say that it stopped");
    let log = cluster.log_of(3);
    assert!(log.contains(&format!("format {NEWEST} is needed")), "{log}");
    let ran = cluster.operate(&["cluster", "promote", "4", "--no-wait"]).await;
    assert_eq!(ran.code, Some(CONFLICT), "{ran:#?}");
    cluster.operated(&["cluster", "remove", "4"]).await;
    cluster.assert_digests_agree().await;
    say(&format!(
        "rolling upgrade: {acknowledged} submissions acknowledged, none failed, the format raised at the end"
    ));
}
