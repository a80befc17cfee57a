//! The writer, one step at a time: what shares a flush, and when who is answered.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod support;

use futures::FutureExt;
use muster_store::{
    LogBackend, LogParts, LogStore, LogWriter, MemoryBackend, MemoryDisk, RaftConfig, Recovered, Step,
    StorageOperation, StorageOutcome, StoreError, StoreOptions, Vote, WriteBatch,
};
use openraft::RaftLogReader;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use support::{entry, log_id};

type Answered = tokio::sync::oneshot::Receiver<Result<(), io::Error>>;

fn parts(options: &StoreOptions) -> (LogStore, LogWriter<RaftConfig>) {
    let LogParts { store, writer, .. } = LogStore::assemble(&Recovered::default(), options, Path::new("."));
    (store, writer)
}

/// A future that has to be ready.
fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("it waits for nothing")
}

fn append(log: &mut LogStore, indexes: std::ops::Range<u64>) -> Answered {
    let (sender, flushed) = RaftConfig::oneshot();
    let entries: Vec<_> = indexes.map(|index| entry(index, 8)).collect();
    now(log.append(entries, IOFlushed::<RaftConfig>::signal(sender))).unwrap();
    flushed
}

/// Everything up to the next write.
fn next_write(writer: &mut LogWriter<RaftConfig>) -> WriteBatch {
    loop {
        match writer.step() {
            Step::Storage(StorageOperation::Write(batch)) => return batch,
            Step::Storage(operation) => {
                let outcome = StorageOutcome::Tidied { more: false };
                writer.finished(operation, Ok(outcome));
            }
            Step::Receive => now(writer.receive()),
            step => panic!("no write comes: {step:?}"),
        }
    }
}

fn indexes(batch: &WriteBatch) -> Vec<u64> {
    batch.entries.iter().map(|entry| entry.log_id.index()).collect()
}

fn no_space() -> StoreError {
    let source = io::Error::from(io::ErrorKind::StorageFull);
    StoreError::NoSpace { operation: "writing", path: "log".into(), source }
}

#[test]
fn what_comes_during_a_flush_shares_the_next_and_nobody_is_answered_before_it() {
    let (mut log, mut writer) = parts(&StoreOptions::small());
    let mut first = append(&mut log, 0..2);
    let batch = next_write(&mut writer);
    assert_eq!(indexes(&batch), [0, 1]);
    let (mut second, mut third) = (append(&mut log, 2..3), append(&mut log, 3..5));
    let mut voter = log.clone();
    let vote = Vote::new(1, 1);
    let mut saved = Box::pin(voter.save_vote(&vote));
    assert!(saved.as_mut().now_or_never().is_none());
    assert!(first.try_recv().is_err() && log.flushed().borrow().last_index.is_none());
    writer.finished(StorageOperation::Write(batch), Ok(StorageOutcome::Done));
    assert!(first.try_recv().unwrap().is_ok());
    assert_eq!(log.flushed().borrow().last_index, Some(1));

    let batch = next_write(&mut writer);
    assert_eq!((indexes(&batch), batch.vote), (vec![2, 3, 4], Some(vote)));
    assert!(second.try_recv().is_err() && third.try_recv().is_err());
    assert_eq!(now(log.read_vote()).unwrap(), None, "it is not durable");
    writer.finished(StorageOperation::Write(batch), Ok(StorageOutcome::Done));
    assert!(second.try_recv().unwrap().is_ok() && third.try_recv().unwrap().is_ok());
    assert!(saved.now_or_never().unwrap().is_ok());
    assert_eq!(now(log.read_vote()).unwrap(), Some(vote));
}

#[test]
fn bytes_of_entries_are_counted_once_they_are_durable_and_not_while_they_wait_for_space() {
    let (mut log, mut writer) = parts(&StoreOptions::small());
    let counted = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&counted);
    log.observe_appends(move |bytes| _ = count.fetch_add(bytes, Ordering::SeqCst));
    let appended = append(&mut log, 0..2);
    let batch = next_write(&mut writer);
    assert_eq!(counted.load(Ordering::SeqCst), 0, "nothing is durable yet");
    writer.finished(StorageOperation::Write(batch), Ok(StorageOutcome::Done));
    let of_two = counted.load(Ordering::SeqCst);
    assert!(of_two >= 16, "each has eight bytes and an envelope: {of_two}");
    let fails = append(&mut log, 2..3);
    let batch = next_write(&mut writer);
    writer.finished(StorageOperation::Write(batch), Err(no_space()));
    assert_eq!(counted.load(Ordering::SeqCst), of_two);
    drop((appended, fails));
}

#[test]
fn a_failed_flush_is_the_last_thing_that_is_written() {
    let failures = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&failures);
    let fatal: muster_store::FatalHandler = Arc::new(move |_| _ = counted.fetch_add(1, Ordering::SeqCst));
    let (mut log, mut writer) = parts(&StoreOptions { fatal, ..StoreOptions::small() });
    let mut first = append(&mut log, 0..1);
    let batch = next_write(&mut writer);
    let mut second = append(&mut log, 1..2);
    let failed = StoreError::Stopped { reason: "the disk failed".to_owned() };
    writer.finished(StorageOperation::Write(batch), Err(failed));
    assert!(first.try_recv().unwrap().is_err());
    let mut closer = Box::pin(log.close());
    assert!(closer.as_mut().now_or_never().is_none());
    let closing = loop {
        match writer.step() {
            Step::Close(closing) => break closing,
            Step::Receive => now(writer.receive()),
            step => panic!("something is done after a failed flush: {step:?}"),
        }
    };
    assert!(second.try_recv().unwrap().is_err());
    assert!(closing.failed && failures.load(Ordering::SeqCst) == 1);
    closing.answer();
    assert!(closer.now_or_never().is_some());
    assert_eq!(log.flushed().borrow().last_index, None);
}

#[test]
fn a_full_disk_holds_entries_and_a_vote_goes_behind_them() {
    let (mut log, mut writer) = parts(&StoreOptions::small());
    let mut first = append(&mut log, 0..2);
    let batch = next_write(&mut writer);
    writer.finished(StorageOperation::Write(batch), Err(no_space()));
    let mut second = append(&mut log, 2..3);
    let mut voter = log.clone();
    let vote = Vote::new(1, 1);
    let mut saved = Box::pin(voter.save_vote(&vote));
    assert!(saved.as_mut().now_or_never().is_none());
    // The vote presses: the same entries are tried again, and it keeps its place behind them.
    let batch = next_write(&mut writer);
    assert_eq!((indexes(&batch), batch.vote), (vec![0, 1], None));
    assert!(first.try_recv().is_err(), "not failed");
    writer.finished(StorageOperation::Write(batch), Ok(StorageOutcome::Done));
    assert!(first.try_recv().unwrap().is_ok() && second.try_recv().is_err());
    let batch = next_write(&mut writer);
    assert_eq!((indexes(&batch), batch.vote), (vec![2], Some(vote)));
    writer.finished(StorageOperation::Write(batch), Ok(StorageOutcome::Done));
    assert!(second.try_recv().unwrap().is_ok() && saved.now_or_never().unwrap().is_ok());
}

#[test]
fn a_truncation_is_answered_once_it_is_carried_out() {
    let mut backend = MemoryBackend::new(MemoryDisk::default());
    let (mut log, mut writer) = parts(&StoreOptions { tail_bytes_max: 0, ..StoreOptions::small() });
    let mut drive = |writer: &mut LogWriter<RaftConfig>| loop {
        match writer.step() {
            Step::Storage(operation) => {
                let result = backend.carry_out(&operation);
                writer.finished(operation, result);
            }
            Step::Receive => match writer.receive().now_or_never() {
                Some(()) => {}
                None => return,
            },
            step => panic!("{step:?}"),
        }
    };
    let _flushed = append(&mut log, 0..6);
    drive(&mut writer);
    assert_eq!(log.flushed().borrow().last_index, Some(5));
    let mut other = log.clone();
    let mut truncated = Box::pin(other.truncate_after(Some(log_id(3))));
    assert!(truncated.as_mut().now_or_never().is_none());
    drive(&mut writer);
    truncated.now_or_never().unwrap().unwrap();
    assert_eq!(log.flushed().borrow().last_index, Some(3));
    let reader = log.clone();
    let mut read = Box::pin(reader.read(0, 9, usize::MAX));
    assert!(read.as_mut().now_or_never().is_none(), "it is read from the backend");
    drive(&mut writer);
    let found = read.now_or_never().unwrap().unwrap();
    assert_eq!(found.iter().map(|entry| entry.log_id.index()).collect::<Vec<_>>(), [0, 1, 2, 3]);
}
