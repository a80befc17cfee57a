//! Short ways to the parts of messages about jobs that proto3 cannot say are always there.

use std::sync::LazyLock;

use crate::v1;
use crate::v1::env_var::Source;
use crate::v1::task_group::Runtime;

static NO_SPEC: LazyLock<v1::JobSpec> = LazyLock::new(v1::JobSpec::default);
static NO_STATUS: LazyLock<v1::JobStatus> = LazyLock::new(v1::JobStatus::default);
static NO_RESOURCES: LazyLock<v1::Resources> = LazyLock::new(v1::Resources::default);

impl v1::Job {
    /// What it asks for; nothing where the message does not say.
    #[must_use]
    pub fn spec(&self) -> &v1::JobSpec {
        self.spec.as_ref().unwrap_or(&NO_SPEC)
    }

    /// The same, to be changed.
    pub fn spec_mut(&mut self) -> &mut v1::JobSpec {
        self.spec.get_or_insert_default()
    }

    /// What became of it; nothing where the message does not say.
    #[must_use]
    pub fn status(&self) -> &v1::JobStatus {
        self.status.as_ref().unwrap_or(&NO_STATUS)
    }

    /// The same, to be changed.
    pub fn status_mut(&mut self) -> &mut v1::JobStatus {
        self.status.get_or_insert_default()
    }

    /// The phase it is in; unspecified for one of a later release.
    #[must_use]
    pub fn phase(&self) -> v1::JobPhase {
        self.status().phase()
    }
}

impl v1::JobSpec {
    /// What becomes of it when an attempt fails, to be changed.
    pub fn retry_mut(&mut self) -> &mut v1::RetryPolicy {
        self.retry.get_or_insert_default()
    }

    /// How it saves its work, to be changed.
    pub fn checkpoint_mut(&mut self) -> &mut v1::CheckpointPolicy {
        self.checkpoint.get_or_insert_default()
    }
}

impl v1::TaskGroup {
    /// Program and arguments of its workers; none where they are those of an image.
    #[must_use]
    pub fn command(&self) -> &[String] {
        match &self.runtime {
            Some(Runtime::Process(process)) => &process.command,
            Some(Runtime::Container(container)) => &container.command,
            None => &[],
        }
    }

    /// The same, to be changed: its workers are processes of the host where nothing else was said.
    pub fn command_mut(&mut self) -> &mut Vec<String> {
        match self.runtime.get_or_insert_with(|| Runtime::Process(v1::ProcessRuntime::default())) {
            Runtime::Process(process) => &mut process.command,
            Runtime::Container(container) => &mut container.command,
        }
    }

    /// The image of its workers, if they have one.
    #[must_use]
    pub fn container(&self) -> Option<&v1::ContainerRuntime> {
        match &self.runtime {
            Some(Runtime::Container(container)) => Some(container),
            Some(Runtime::Process(_)) | None => None,
        }
    }

    /// The value of a variable that is no reference.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        let variable = self.environment.iter().find(|variable| variable.name == name)?;
        match &variable.source {
            Some(Source::Value(value)) => Some(value),
            Some(Source::SecretRef(_)) | None => None,
        }
    }

    /// Gives a variable a value.
    pub fn set_variable(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let variable = v1::EnvVar::new(name, value);
        match self.environment.iter_mut().find(|known| known.name == variable.name) {
            Some(known) => *known = variable,
            None => self.environment.push(variable),
        }
    }

    /// What each worker needs; nothing where the message does not say.
    #[must_use]
    pub fn resources(&self) -> &v1::Resources {
        self.resources.as_ref().unwrap_or(&NO_RESOURCES)
    }

    /// The same, to be changed.
    pub fn resources_mut(&mut self) -> &mut v1::Resources {
        self.resources.get_or_insert_default()
    }
}

impl v1::EnvVar {
    /// A variable with a value.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> v1::EnvVar {
        v1::EnvVar { name: name.into(), source: Some(Source::Value(value.into())) }
    }

    /// A variable whose value is in a file of the worker's host.
    pub fn secret(name: impl Into<String>, secret: impl Into<String>) -> v1::EnvVar {
        v1::EnvVar { name: name.into(), source: Some(Source::SecretRef(secret.into())) }
    }
}

impl<Name: Into<String>, Value: Into<String>> From<(Name, Value)> for v1::EnvVar {
    fn from((name, value): (Name, Value)) -> v1::EnvVar {
        v1::EnvVar::new(name, value)
    }
}

/// The runtime of workers that are processes with this command.
#[must_use]
pub fn process(command: Vec<String>) -> Option<Runtime> {
    Some(Runtime::Process(v1::ProcessRuntime { command }))
}
