//! Options of every client command: where the cluster is, and how answers are printed.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use muster_client::{Client, Endpoints, Options};
use muster_manifest::quantity;
use muster_types::TraceParent;
use muster_types::bucket::BucketConfig;

use super::config;
use super::console::{Console, Format};
use super::failure::Failure;
use super::local;
use super::login;

/// Apart from the options of a command itself; commands that run a part of the cluster show them too.
const HEADING: &str = "Client options";

/// Options of every client command.
#[derive(Args)]
pub struct Global {
    /// A replica; repeat it or separate several by commas. Any replica will do, more survive its loss
    #[arg(long, global = true, help_heading = HEADING, env = "MUSTER_ENDPOINTS", value_delimiter = ',', value_name = "HOST:PORT")]
    pub endpoint: Vec<String>,
    /// Authorities of the cluster (PEM), for a cluster with certificates; needs --cert and --key, or a token
    #[arg(long, global = true, help_heading = HEADING, env = "MUSTER_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Own certificate (PEM)
    #[arg(long, global = true, help_heading = HEADING, env = "MUSTER_CERT", value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Private key of it (PEM)
    #[arg(long, global = true, help_heading = HEADING, env = "MUSTER_KEY", value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// File with a bearer token, in the place of --cert and --key; without it MUSTER_TOKEN, which has the token itself, or what
    /// `muster login` has kept
    #[arg(long, global = true, help_heading = HEADING, env = "MUSTER_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// How to print the answer
    #[arg(short, long, global = true, help_heading = HEADING, value_enum, default_value_t = Format::Table)]
    pub output: Format,
    /// No colours; so does a non-empty NO_COLOR, or TERM=dumb
    #[arg(long, global = true, help_heading = HEADING)]
    pub no_color: bool,
    /// No progress on stderr; errors still come
    #[arg(short, long, global = true, help_heading = HEADING)]
    pub quiet: bool,
    /// Longest time for one call, repetitions included [default: 30s]; with wait and watch: for the
    /// whole command [default: no limit]
    #[arg(long, global = true, help_heading = HEADING, value_name = "DURATION", value_parser = timeout)]
    pub timeout: Option<Duration>,
}

/// Where the web pages of replicas are, for commands that need them.
#[derive(Args, Clone, Debug, Default)]
pub struct WebArgs {
    /// Where a replica serves its web pages and /metrics: its `http_listen`; repeat it or separate several by commas
    #[arg(long, env = "MUSTER_WEB", value_delimiter = ',', value_name = "HOST:PORT")]
    pub web: Vec<String>,
}

/// What helps where nothing names the web pages.
pub const WEB_UNKNOWN: &str = "replicas do not tell where their web pages are: name them with --web HOST:PORT, with MUSTER_WEB, or with \
     `web = [\"HOST:PORT\"]` next to `endpoints` in $XDG_CONFIG_HOME/muster/config.toml (~/.config/muster/config.toml); it is \
     `http_listen` of server.toml";

/// A duration above zero, as an option of a command line.
///
/// # Errors
/// Says what is wrong with the text.
pub fn timeout(text: &str) -> Result<Duration, String> {
    let ms = quantity::duration_ms(text).map_err(|e| e.to_string())?;
    if ms == 0 { Err("must be above zero".to_owned()) } else { Ok(Duration::from_millis(ms)) }
}

impl Global {
    /// When the time of the whole command is up.
    pub fn end(&self) -> Option<tokio::time::Instant> {
        self.timeout.and_then(|limit| tokio::time::Instant::now().checked_add(limit))
    }

    /// Whether the cluster is the running `muster dev`, whose hosts are this machine.
    pub fn is_local(&self) -> bool {
        self.ca.is_none() && config::is_local(&self.endpoint)
    }

    /// The console that these options ask for.
    pub fn console(&self) -> Console {
        Console::new(self.output, self.no_color, self.quiet)
    }

    /// The web pages of replicas; none where nothing names them.
    pub fn web(&self, args: &WebArgs) -> Result<Option<Endpoints>, Failure> {
        config::web(&args.web, &self.endpoint, (&self.ca, &self.cert, &self.key))
    }

    /// Where the store of files of jobs is: that of the running `muster dev` where it is the cluster, else as the
    /// configuration file says; none where neither says it.
    pub fn store(&self) -> Result<Option<PathBuf>, Failure> {
        match local::running_store().filter(|_| self.is_local()) {
            Some(store) => Ok(Some(store)),
            None => config::store(),
        }
    }

    /// How a store is reached that is a bucket, as the configuration file says.
    pub fn bucket(&self) -> Result<BucketConfig, Failure> {
        config::bucket()
    }

    /// The replicas, with what the caller shows them: a token or a certificate that is named, else what `muster login` has kept for
    /// these replicas, else what the configuration file says.
    async fn endpoints(&self) -> Result<Endpoints, Failure> {
        let token = config::token(self.token_file.as_deref())?;
        let is_named = token.is_some() || self.cert.is_some() || self.key.is_some();
        let kept = if is_named { None } else { login::kept_for(&self.endpoint, self.ca.as_deref())? };
        if let Some((login, endpoints)) = kept {
            let ca = self.ca.clone().unwrap_or_else(|| login.ca.clone());
            return config::signed_in(&endpoints, &ca, &login.bearer().await?);
        }
        config::endpoints(&self.endpoint, (&self.ca, &self.cert, &self.key), token.as_ref())
    }

    /// A connected client. What it calls is a part of the span that the environment names, as programs tell each other by
    /// `TRACEPARENT`; what is none is ignored.
    pub async fn client(&self) -> Result<Client, Failure> {
        let endpoints = self.endpoints().await?;
        let parent = std::env::var("TRACEPARENT").ok().and_then(|text| TraceParent::parse(text.trim()).ok());
        let endpoints = match parent {
            Some(parent) => endpoints.with_trace_parent(parent),
            None => endpoints,
        };
        let mut options = Options::STANDARD;
        if let Some(timeout) = self.timeout {
            options.deadline = timeout;
            options.attempt_timeout = options.attempt_timeout.min(timeout);
        }
        Ok(Client::connect(endpoints, options).await?)
    }
}
