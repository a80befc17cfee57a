//! A cluster that exists in memory only, as far from processes of this host as can be: a store of named
//! objects behind a connection that may be down, and a kubelet of sorts that brings about what the
//! objects say. It is what the suite itself is tried with, and shows that the trait asks for nothing that
//! an API with named objects could not do.

use crate::process::Keeper;
use crate::suite::{Behaviour, Subject, conforms};
use muster_agent::executor::{
    Adopted, Executor, ExecutorError, ExecutorEvent, OutputChunk, OutputRequest, StopRequest,
};
use muster_agent::rules::{Placement, WorkerKey};
use muster_agent::transcript::OutputStream;
use muster_types::{DeviceSet, ExitStatus};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Objects that the store creates at once; more have to ask again.
const CREATES_AT_ONCE: usize = 3;

/// One object, named by its worker's key.
#[derive(Clone, Debug)]
struct Object {
    devices: DeviceSet,
    epoch: u64,
    command: Vec<String>,
    launches: usize,
    running: bool,
    exit: Option<ExitStatus>,
    acknowledged: bool,
    output: Vec<u8>,
}

#[derive(Default)]
struct Store {
    objects: Mutex<BTreeMap<WorkerKey, Object>>,
    down: Mutex<bool>,
    changed: watch::Sender<u64>,
    creating: Mutex<usize>,
}

/// The store cannot be reached, or takes no more.
struct Unavailable;

impl Store {
    fn is_down(&self) -> bool {
        *self.down.lock()
    }

    fn touch(&self) {
        self.changed.send_modify(|number| *number += 1);
    }

    /// Creates unless there is one of that name: the name is the idempotency key.
    async fn create(&self, key: WorkerKey, object: Object) -> Result<bool, Unavailable> {
        {
            let mut creating = self.creating.lock();
            if self.is_down() || *creating >= CREATES_AT_ONCE {
                return Err(Unavailable);
            }
            *creating += 1;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        *self.creating.lock() -= 1;
        let new = {
            let mut objects = self.objects.lock();
            let new = !objects.contains_key(&key);
            objects.entry(key).or_insert(object);
            new
        };
        self.touch();
        Ok(new)
    }

    fn update(&self, key: WorkerKey, change: impl FnOnce(&mut Object)) {
        if let Some(object) = self.objects.lock().get_mut(&key) {
            change(object);
        }
        self.touch();
    }

    fn get(&self, key: WorkerKey) -> Option<Object> {
        self.objects.lock().get(&key).cloned()
    }
}

/// Runs what the objects say, whether anybody looks or not.
async fn kubelet(store: Arc<Store>, key: WorkerKey, lease: Arc<Mutex<muster_agent::lease::Lease>>) {
    let Some(object) = store.get(key) else { return };
    if object.command[0] == "missing" {
        let why = ExitStatus::LaunchFailed("no such image".into());
        return store.update(key, |object| object.exit = Some(why));
    }
    store.update(key, |object| {
        object.launches += 1;
        object.running = true;
        object.output = format!("rank {}\n", key.rank).into_bytes();
    });
    let number = object.command.get(1).and_then(|text| text.parse().ok()).unwrap_or(0);
    let exit = match object.command[0].as_str() {
        "exit" => ExitStatus::Code(number),
        "signal" => ExitStatus::Signal(number),
        // Told to stop by its deletion; here, only its lease is looked at.
        _ => loop {
            let slot = lease.lock().standing(muster_agent::clock::BootTime::now());
            if slot.is_none_or(|slot| slot.epoch != object.epoch) {
                break ExitStatus::LeaseExpired;
            }
            if store.get(key).is_none_or(|object| object.exit.is_some()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        },
    };
    store.update(key, |object| object.exit = object.exit.take().or(Some(exit)));
}

#[derive(Clone)]
struct Remote {
    store: Arc<Store>,
    events: mpsc::Sender<ExecutorEvent>,
    lease: Arc<Mutex<muster_agent::lease::Lease>>,
    /// What this agent has told: whether it was the end.
    told: Arc<Mutex<BTreeMap<WorkerKey, bool>>>,
}

impl Remote {
    /// Tells what the store says, when it can be asked.
    async fn reconcile(self) {
        let mut changed = self.store.changed.subscribe();
        loop {
            if !self.store.is_down() {
                let objects = self.store.objects.lock().clone();
                for (key, object) in objects {
                    self.tell(key, &object).await;
                }
            }
            tokio::select! {
                result = changed.changed() => if result.is_err() { return },
                () = self.events.closed() => return,
            }
        }
    }

    async fn tell(&self, key: WorkerKey, object: &Object) {
        let (runs, ended) = {
            let mut told = self.told.lock();
            let before = told.get(&key).copied();
            let runs = object.running && before.is_none();
            let ended = object.exit.clone().filter(|_| before != Some(true) && !object.acknowledged);
            if runs || ended.is_some() {
                told.insert(key, ended.is_some());
            }
            (runs, ended)
        };
        if runs {
            let _ = self.events.send(ExecutorEvent::Running(key)).await;
        }
        if let Some(status) = ended {
            let _ = self.events.send(ExecutorEvent::Ended(key, status)).await;
        }
    }

    fn object(&self, placement: &Placement, rank: usize, epoch: u64) -> Object {
        let worker = &placement.workers[rank];
        Object {
            devices: worker.devices,
            epoch,
            command: worker.command.clone(),
            launches: 0,
            running: false,
            exit: None,
            acknowledged: false,
            output: Vec::new(),
        }
    }

    /// Creates, as often as it takes.
    fn create(&self, key: WorkerKey, object: Object) {
        let remote = self.clone();
        tokio::spawn(async move {
            loop {
                match remote.store.create(key, object.clone()).await {
                    Ok(true) if object.exit.is_none() => {
                        return kubelet(Arc::clone(&remote.store), key, Arc::clone(&remote.lease)).await;
                    }
                    Ok(_) => return,
                    Err(Unavailable) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        });
    }
}

impl Executor for Remote {
    async fn start(&self, placement: Arc<Placement>, epoch: u64) {
        for (rank, worker) in placement.workers.iter().enumerate() {
            self.create(placement.key(worker.rank), self.object(&placement, rank, epoch));
        }
    }

    async fn refuse(&self, key: WorkerKey, reason: String) {
        let status = ExitStatus::LaunchFailed(reason);
        let object = Object {
            devices: DeviceSet::EMPTY,
            epoch: 0,
            command: vec!["refused".into()],
            launches: 0,
            running: false,
            exit: Some(status),
            acknowledged: false,
            output: Vec::new(),
        };
        self.create(key, object);
    }

    async fn stop(
        &self,
        key: WorkerKey,
        StopRequest { grace, .. }: StopRequest,
    ) -> Result<(), ExecutorError> {
        let object = self.store.get(key).ok_or(ExecutorError::Unknown(key))?;
        let (store, stubborn) = (Arc::clone(&self.store), object.command[0] == "stubborn");
        let end = if stubborn { ExitStatus::Signal(9) } else { ExitStatus::Code(0) };
        let patience = if stubborn { grace } else { Duration::ZERO };
        tokio::spawn(async move {
            tokio::time::sleep(patience).await;
            store.update(key, |object| object.exit = object.exit.take().or(Some(end)));
        });
        Ok(())
    }

    async fn adopt(&self) -> Result<Vec<Adopted>, ExecutorError> {
        let objects = self.store.objects.lock().clone();
        let mut found = Vec::new();
        for (key, object) in objects.into_iter().filter(|(_, object)| !object.acknowledged) {
            // What it is adopted with is told; what comes later is news.
            self.told.lock().insert(key, object.exit.is_some());
            let (devices, device_milli) = (object.devices, muster_agent::rules::DEVICE_MILLI);
            found.push(Adopted { key, devices, device_milli, exit: object.exit, epoch: object.epoch });
        }
        tokio::spawn(self.clone().reconcile());
        Ok(found)
    }

    async fn acknowledge(&self, key: WorkerKey) {
        self.store.update(key, |object| object.acknowledged = true);
    }

    async fn read_output(
        &self,
        request: OutputRequest,
        sink: mpsc::Sender<OutputChunk>,
    ) -> Result<(), ExecutorError> {
        let object = self.store.get(request.key).ok_or(ExecutorError::Unknown(request.key))?;
        let (stream, position) = (Some(OutputStream::Stdout), object.output.len() as u64);
        let chunk = OutputChunk { stream, data: object.output, dropped_bytes: 0, position };
        let _ = sink.send(chunk).await;
        Ok(())
    }
}

struct InMemory {
    store: Arc<Store>,
    keeper: Keeper,
    _directory: tempfile::TempDir,
}

impl Subject for InMemory {
    type Executor = Remote;

    async fn open(&mut self) -> (Remote, mpsc::Receiver<ExecutorEvent>) {
        let (events, told) = mpsc::channel(64);
        let remote = Remote {
            store: Arc::clone(&self.store),
            events,
            lease: Arc::clone(&self.keeper.lease),
            told: Arc::default(),
        };
        (remote, told)
    }

    fn command(&self, _key: WorkerKey, behaviour: Behaviour) -> Vec<String> {
        let (word, number) = match behaviour {
            Behaviour::Exit(code) => ("exit", code),
            Behaviour::Signal(signal) => ("signal", signal),
            Behaviour::Hold => ("hold", 0),
            Behaviour::Stubborn => ("stubborn", 0),
            Behaviour::Missing => ("missing", 0),
        };
        vec![word.to_owned(), number.to_string()]
    }

    fn launches(&self, key: WorkerKey) -> usize {
        self.store.get(key).map_or(0, |object| object.launches)
    }

    fn epoch(&self) -> u64 {
        self.keeper.epoch()
    }

    fn break_backend(&mut self, broken: bool) -> bool {
        *self.store.down.lock() = broken;
        self.store.touch();
        true
    }

    async fn lapse(&mut self) {
        self.keeper.lapse().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cluster_in_memory_conforms() {
    let directory = tempfile::tempdir().unwrap();
    let keeper = Keeper::start(&directory.path().join("lease"));
    conforms(&mut InMemory { store: Arc::default(), keeper, _directory: directory }).await;
}
