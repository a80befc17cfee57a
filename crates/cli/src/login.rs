//! `muster login`, `muster logout` and `muster whoami`: who the caller is, by the word of an issuer.

use std::path::PathBuf;

use clap::Args;
use muster_console::login::{Site, StoredLogin, failed, forget, kept};
use muster_console::{Console, Document, Exit, Failure, Global, config, moment};
use muster_oidc::Login;
use muster_types::policy::Verb;
use muster_wire::closed::word;
use muster_wire::v1;
use serde::Serialize;

/// How to sign in. What is left out is as it was the last time.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster --endpoint muster-1.example.org:7400 --ca ca.crt login --issuer https://login.example.org --client-id muster-cli
  muster login                                       once more, as the last time
  muster whoami

The command prints an address and a code. Open the address in any browser, on this machine or another, and confirm the code there.
The token is kept in $XDG_CONFIG_HOME/muster/login.json (~/.config/muster/login.json), which only you can read, with the replicas
that it is for: it is shown to no others. It is replaced by itself as long as the issuer permits. Replicas take it where `[[oidc]]`
of their configuration lists the issuer. `muster logout` removes it.")]
pub struct LoginArgs {
    /// The issuer, exactly as the configuration of the replicas has it
    #[arg(long, env = "MUSTER_ISSUER", value_name = "URL")]
    issuer: Option<String>,
    /// The name by which the issuer knows this program
    #[arg(long, env = "MUSTER_CLIENT_ID", value_name = "ID")]
    client_id: Option<String>,
    /// What to ask for, separated by spaces
    #[arg(long, value_name = "SCOPE", default_value = "openid profile groups offline_access")]
    scope: String,
    /// Show the access token of the issuer to replicas, and not its id token
    #[arg(long)]
    access_token: bool,
    /// Authorities of the issuer's certificate (PEM) [default: those of the system]
    #[arg(long, value_name = "FILE")]
    issuer_ca: Option<PathBuf>,
}

/// An absolute path, so that the sign-in holds in every directory.
fn absolute(path: PathBuf) -> Result<PathBuf, Failure> {
    std::path::absolute(&path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// Which replicas and which issuer are meant.
fn site(global: &Global, args: &LoginArgs, before: Option<&StoredLogin>) -> Result<Site, Failure> {
    let mut endpoints = config::named(&global.endpoint)?;
    if endpoints.is_empty() {
        endpoints = before.map(|before| before.endpoints.clone()).unwrap_or_default();
    }
    if endpoints.is_empty() {
        return Err(Failure::usage("no endpoint given")
            .with_next("name the replicas that you sign in for: --endpoint HOST:PORT or MUSTER_ENDPOINTS"));
    }
    // What was named for other replicas says nothing about these.
    let before = before.filter(|before| endpoints.iter().all(|endpoint| before.endpoints.contains(endpoint)));
    let ca = match global.ca.clone() {
        Some(ca) => Some(ca),
        None => config::authority()?.or_else(|| before.map(|before| before.ca.clone())),
    };
    let ca = ca.ok_or_else(|| {
        Failure::usage("the authorities of the cluster are not known")
            .with_next("name them with --ca FILE or MUSTER_CA")
    })?;
    let wanted = |given: &Option<String>, known: Option<&String>, option: &str| {
        let found = given.clone().or_else(|| known.cloned());
        found.ok_or_else(|| {
            Failure::usage(format!("{option} is missing")).with_next("`muster login --help` has an example")
        })
    };
    let issuer_ca = args.issuer_ca.clone().or_else(|| before.and_then(|before| before.issuer_ca.clone()));
    Ok(Site {
        ca: absolute(ca)?,
        issuer: wanted(&args.issuer, before.map(|before| &before.issuer), "--issuer")?,
        client_id: wanted(&args.client_id, before.map(|before| &before.client_id), "--client-id")?,
        issuer_ca: issuer_ca.map(absolute).transpose()?,
        uses_access_token: args.access_token || before.is_some_and(|before| before.uses_access_token),
        token_url: String::new(),
        endpoints,
    })
}

/// What a person has to confirm.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CodeView<'a> {
    verification_url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    complete_url: Option<&'a str>,
    user_code: &'a str,
}

/// Signs in.
pub async fn run(global: &Global, console: &Console, args: LoginArgs) -> Result<Exit, Failure> {
    // A damaged one is replaced.
    let before = kept().ok().flatten();
    let mut site = site(global, &args, before.as_ref())?;
    let mut login = Login::new(&site.issuer, &site.client_id, site.issuer_ca.as_deref()).await;
    let provider = login.provider().await.map_err(|error| failed(&error))?;
    site.token_url.clone_from(&provider.token_url);
    let code = login.begin(&provider, &args.scope).await.map_err(|error| failed(&error))?;
    if console.is_structured() {
        let view = CodeView {
            verification_url: &code.verification_url,
            complete_url: code.complete_url.as_deref(),
            user_code: &code.user_code,
        };
        console.object(&Document::new("LoginCode", None::<u64>, view))?;
    } else {
        console.line(&format!("open {} and confirm the code {}", code.verification_url, code.user_code))?;
        if let Some(url) = &code.complete_url {
            console.line(&format!("or open {url}"))?;
        }
    }
    let waiting = login.wait(&provider, &code);
    let tokens = match global.timeout {
        Some(limit) => tokio::time::timeout(limit, waiting)
            .await
            .map_err(|_| Failure::new(Exit::Timeout, "nobody confirmed the code within --timeout"))?,
        None => waiting.await,
    };
    let signed_in = StoredLogin::new(site, tokens.map_err(|error| failed(&error))?)?;
    let place = signed_in.keep().await?;
    let rest = match (signed_in.expires_s(), signed_in.can_refresh()) {
        (_, true) => "it is replaced by itself as long as the issuer permits".to_owned(),
        (Some(end), false) => {
            let end = i64::try_from(end).ok().and_then(|end| jiff::Timestamp::from_second(end).ok());
            end.map_or_else(|| "it does not end".to_owned(), |end| format!("it is good until {end}"))
        }
        (None, false) => "the issuer does not say until when it is good".to_owned(),
    };
    console.progress(&format!("signed in; the token is kept in {}, and {rest}", place.display()));
    Ok(Exit::Ok)
}

/// Signs out.
pub async fn end(console: &Console) -> Result<Exit, Failure> {
    match forget().await? {
        true => console.progress("the sign-in is removed; the issuer is not told"),
        false => console.progress("nobody was signed in"),
    }
    Ok(Exit::Ok)
}

/// Who the replica takes the caller for.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CallerView {
    name: String,
    kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    role: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    verbs: Vec<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    regions: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    tenant: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    user: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    token_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    issuer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
}

impl CallerView {
    fn of(caller: v1::Caller) -> CallerView {
        CallerView {
            name: caller.name,
            kind: caller.kind,
            role: caller.own_role,
            verbs: caller.verbs.into_iter().map(word::<Verb>).collect(),
            regions: caller.regions,
            tenant: caller.tenant,
            user: caller.user,
            token_id: caller.token_id,
            issuer: caller.issuer,
            expires: moment(caller.expire_time),
        }
    }

    /// What there is to say, line by line.
    fn lines(&self) -> Vec<String> {
        let fields = [
            ("name", self.name.clone()),
            ("kind", self.kind.clone()),
            ("role", self.role.clone()),
            ("verbs", self.verbs.join(", ")),
            ("regions", self.regions.join(", ")),
            ("tenant", self.tenant.clone()),
            ("user", self.user.clone()),
            ("token", self.token_id.clone()),
            ("issuer", self.issuer.clone()),
            ("expires", self.expires.clone().unwrap_or_default()),
        ];
        let said = fields.into_iter().filter(|(_, value)| !value.is_empty());
        said.map(|(title, value)| format!("{title:<8} {value}")).collect()
    }
}

/// Asks a replica who the caller is.
pub async fn whoami(global: &Global, console: &Console) -> Result<Exit, Failure> {
    let info = global.client().await?.get_server_info().await?;
    let Some(caller) = info.caller else {
        return Err(Failure::new(
            Exit::Failed,
            "the replica is of a release that does not say who the caller is",
        ));
    };
    let view = CallerView::of(caller);
    if console.is_structured() {
        console.object(&Document::new("Caller", None::<u64>, view))?;
        return Ok(Exit::Ok);
    }
    view.lines().iter().try_for_each(|line| console.line(line))?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_shown_by_what_is_known_of_it() {
        let caller = v1::Caller {
            name: "all-tenants/ada+oidc/corp".to_owned(),
            kind: "token:operator".to_owned(),
            own_role: "eu-operator".to_owned(),
            verbs: vec![v1::Verb::Cordon.into(), v1::Verb::Drain.into()],
            regions: vec!["eu".to_owned()],
            issuer: "corp".to_owned(),
            user: "ada".to_owned(),
            ..Default::default()
        };
        let lines = CallerView::of(caller).lines();
        assert_eq!(
            lines,
            [
                "name     all-tenants/ada+oidc/corp",
                "kind     token:operator",
                "role     eu-operator",
                "verbs    cordon, drain",
                "regions  eu",
                "user     ada",
                "issuer   corp",
            ]
        );
        assert_eq!(
            CallerView::of(v1::Caller { name: "plaintext".to_owned(), ..Default::default() }).lines().len(),
            1
        );
    }
}
