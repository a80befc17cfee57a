//! Calls about drills: each to one replica by its address, never to whichever answers.

use std::sync::Arc;

use admin::drill_service_client::DrillServiceClient;
use muster_wire::admin;
use muster_wire::status::Refused;
use tokio::sync::Mutex;
use tonic::{Response, Status};

use crate::channel::Channel;
use crate::error::AttemptError;
use crate::{Client, Options};

/// The drill service of one replica. Each call is sent once; clones share the connection.
#[derive(Clone)]
pub struct ReplicaDrills {
    client: Client,
    address: Arc<str>,
    channel: Arc<Mutex<Option<Channel>>>,
}

macro_rules! calls {
    ($($(#[$doc:meta])* $method:ident($request:ty) -> $answer:ty;)*) => {
        impl ReplicaDrills {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// When that replica refuses, cannot be reached or does not answer in time.
                pub async fn $method(&self, request: $request) -> Result<$answer, AttemptError> {
                    self.call(async |mut replica| replica.$method(request).await).await
                }
            )*
        }
    };
}

calls! {
    /// A drill begins, or goes on.
    announce_drill(admin::AnnounceDrillRequest) -> admin::AnnounceDrillResponse;
    /// Makes the replica silent for a while.
    refuse_traffic(admin::RefuseTrafficRequest) -> admin::RefuseTrafficResponse;
    /// Ends a drill there.
    end_drill(admin::EndDrillRequest) -> admin::EndDrillResponse;
    /// Which drill runs there.
    get_drill(admin::GetDrillRequest) -> admin::GetDrillResponse;
}

impl ReplicaDrills {
    /// Where it is.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    async fn call<T>(
        &self,
        send: impl AsyncFnOnce(DrillServiceClient<Channel>) -> Result<Response<T>, Status>,
    ) -> Result<T, AttemptError> {
        let Options { attempt_timeout, deadline, .. } = self.client.options;
        let attempt = async {
            let channel = self.channel().await?;
            let answered = send(DrillServiceClient::new(channel)).await;
            answered.map(Response::into_inner).map_err(|status| {
                let refused = Refused::from_status(&status);
                AttemptError::Answer { endpoint: self.address.to_string(), refused }
            })
        };
        match tokio::time::timeout(attempt_timeout.min(deadline), attempt).await {
            Ok(answer) => answer,
            Err(_) => Err(AttemptError::Timeout { endpoint: self.address.to_string() }),
        }
    }

    /// The connection, which is made with the first call and mends itself after that.
    async fn channel(&self) -> Result<Channel, AttemptError> {
        let mut channel = self.channel.lock().await;
        if let Some(channel) = &*channel {
            return Ok(channel.clone());
        }
        let connected = self.client.endpoints().connect_to(&self.address).await;
        let (_, new) = connected.map_err(AttemptError::Connect)?;
        Ok(channel.insert(new).clone())
    }
}

impl Client {
    /// The drill service of the replica at an address. Nothing is sent before the first call.
    #[must_use]
    pub fn drills_of(&self, address: &str) -> ReplicaDrills {
        ReplicaDrills { client: self.clone(), address: address.into(), channel: Arc::default() }
    }
}
