//! `muster token create|list|revoke`: bearer tokens of people and programs.

use clap::{Args, Subcommand};
use muster_client::Client;
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid, moment};
use muster_manifest::quantity;
use muster_transport::{TokenError, TokenSecret};
use muster_types::{Name, TokenId, TokenRole};
use muster_wire::closed::value_from_proto;
use muster_wire::convert::{token_role_from_proto, token_role_to_proto};
use muster_wire::time::duration;
use muster_wire::{admin, v1};
use serde::Serialize;

use crate::consent::DryRun;

/// Commands about bearer tokens.
#[derive(Subcommand)]
pub enum TokenCommand {
    /// Make a token, and print its secret once
    #[command(after_help = "\
Examples:
  muster token create ci --role submitter --tenant research --for 30d > ci.token
  muster token create ada-laptop --role submitter --tenant research --user ada
  muster token create dashboard --role viewer --for 366d
  muster token create on-call --role operator --user ada --for 12h
  muster token create eu-on-call --role eu-operator --user ada --for 12h     a role that the policy defines

The roles: viewer looks; submitter submits, cancels and reads output for its tenant and those below it; tenant-admin makes and revokes
tokens of these two roles for them as well, and grants quota to the tenants below; operator operates nodes and acts for every tenant; drill runs drills; admin does everything.
A secret is made on this machine and shown once: the cluster has its hash alone. Run `umask 077` before you write it to a file: one that
everybody can read is refused. Replicas take it where `tokens = true` is in their configuration. Its holder uses it with --ca and
--token-file, MUSTER_TOKEN_FILE or MUSTER_TOKEN.")]
    Create(CreateArgs),
    /// List the tokens that you may revoke
    #[command(after_help = "\
Examples:
  muster token list
  muster token list -o json | jq -r '.items[] | select(.user == \"ada\").id'")]
    List,
    /// Revoke a token: every replica refuses it at once
    #[command(after_help = "\
Examples:
  muster token revoke ci
  muster token revoke ci --dry-run                whose it is, and what it may do
  muster token revoke ci --tenant research        where several tenants have a token of this name
  muster token revoke 00c0ffee00c0ffee            by its id")]
    Revoke {
        /// Its name, or its id
        name: String,
        /// The tenant that it acts for
        #[arg(long, value_name = "TENANT")]
        tenant: Option<String>,
        /// Say what would change, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// What to make.
#[derive(Args)]
pub struct CreateArgs {
    /// What to call it: one of the tenant's tokens, or of those without a tenant
    name: String,
    /// What its holder may do: a built-in role, or one that the policy defines
    #[arg(long, value_parser = role, value_name = "ROLE")]
    role: Name,
    /// The tenant that it acts for, with those below it; for viewer, submitter and tenant-admin
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Who holds it, as jobs and records name them [default: the name of the token]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// How long it is accepted, from 1m to 366d
    #[arg(long = "for", value_name = "DURATION", default_value = "30d", value_parser = lifetime)]
    lifetime_ms: u64,
}

fn role(text: &str) -> Result<Name, String> {
    Name::new(text).ok_or_else(|| format!("must be {}", muster_types::name::NAME_RULE))
}

/// The built-in role of this name; else the one that the role of the policy is a part of, and that role.
async fn roles(client: &Client, role: &Name) -> Result<(TokenRole, Option<Name>), Failure> {
    if let Some(built_in) = TokenRole::from_name(role) {
        return Ok((built_in, None));
    }
    let policy = client.get_policy(v1::GetPolicyRequest::default()).await?.policy.unwrap_or_default();
    let part_of = policy.roles.get(role.as_str()).map(|own| own.part_of);
    match part_of.and_then(|number| value_from_proto::<TokenRole>("part_of", number).ok().flatten()) {
        Some(whole) => Ok((whole, Some(role.clone()))),
        None => {
            let mut names: Vec<&str> = TokenRole::ALL.into_iter().map(TokenRole::name).collect();
            names.extend(policy.roles.keys().map(String::as_str));
            Err(Failure::usage(format!("there is no role {role}; it must be one of {}", names.join(", "))))
        }
    }
}

fn lifetime(text: &str) -> Result<u64, String> {
    let ms = quantity::duration_ms(text).map_err(|error| error.to_string())?;
    muster_types::token::lifetime_violation(ms).map_or(Ok(ms), |violation| Err(violation.description))
}

/// Carries out a command about tokens.
pub async fn run(global: &Global, console: &Console, command: TokenCommand) -> Result<Exit, Failure> {
    match command {
        TokenCommand::Create(args) => create(global, console, args).await?,
        TokenCommand::List => list(global, console).await?,
        TokenCommand::Revoke { name, tenant, dry_run: true } => {
            would_revoke(global, console, &name, tenant.as_deref()).await?;
        }
        TokenCommand::Revoke { name, tenant, dry_run: false } => {
            revoke(global, console, &name, tenant.as_deref()).await?;
        }
    }
    Ok(Exit::Ok)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TokenView {
    id: String,
    name: String,
    user: String,
    role: String,
    /// The role of the policy, which is a part of `role`.
    #[serde(skip_serializing_if = "String::is_empty")]
    own_role: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    tenant: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
}

impl TokenView {
    fn of(token: admin::Token) -> TokenView {
        TokenView {
            id: token.id,
            name: token.name,
            user: token.user,
            role: token_role_from_proto(token.role)
                .map_or_else(|| "unknown".to_owned(), |role| role.to_string()),
            own_role: token.own_role,
            tenant: token.tenant,
            created: moment(token.create_time),
            expires: moment(token.expire_time),
        }
    }
}

impl TokenView {
    /// The role that says most.
    fn shown_role(&self) -> &str {
        if self.own_role.is_empty() { &self.role } else { &self.own_role }
    }
}

/// The secret is there when a token was made, and never again.
#[derive(Serialize)]
struct CreatedView {
    #[serde(flatten)]
    token: TokenView,
    secret: String,
}

async fn create(global: &Global, console: &Console, args: CreateArgs) -> Result<(), Failure> {
    let secret =
        TokenSecret::generate().map_err(|error: TokenError| Failure::new(Exit::Failed, error.to_string()))?;
    let client = global.client().await?;
    let (role, own_role) = roles(&client, &args.role).await?;
    let asked = admin::Token {
        id: secret.id().to_string(),
        user: args.user.unwrap_or_else(|| args.name.clone()),
        name: args.name,
        role: token_role_to_proto(role).into(),
        own_role: own_role.map(|own| own.to_string()).unwrap_or_default(),
        tenant: args.tenant.unwrap_or_default(),
        ..Default::default()
    };
    let request = admin::CreateTokenRequest {
        request_id: String::new(),
        token: Some(asked.clone()),
        lifetime: Some(duration(args.lifetime_ms)),
        secret_sha256: secret.sha256().to_vec(),
    };
    let made = client.create_token(request).await?.token.unwrap_or(asked);
    let token = TokenView::of(made);
    if console.is_structured() {
        let secret = secret.reveal().to_owned();
        return console.object(&Document::new("Token", None::<u64>, CreatedView { token, secret }));
    }
    let expires = token.expires.clone().unwrap_or_else(|| "unknown".to_owned());
    console.progress(&format!(
        "token {} ({}, {}) is accepted until {expires}; this is the only time that its secret is shown",
        token.name,
        token.id,
        token.shown_role()
    ));
    console.line(secret.reveal())
}

#[derive(Serialize)]
struct TokenList {
    items: Vec<TokenView>,
}

async fn list(global: &Global, console: &Console) -> Result<(), Failure> {
    let answer = global.client().await?.list_tokens().await?;
    let items: Vec<TokenView> = answer.tokens.into_iter().map(TokenView::of).collect();
    if console.is_structured() {
        return console.object(&Document::new("TokenList", None::<u64>, TokenList { items }));
    }
    if console.format == Format::Name {
        // Names are those of one tenant each.
        return items.iter().try_for_each(|row| console.line(&row.id));
    }
    let mut grid = Grid::new(vec!["NAME", "ROLE", "TENANT", "USER", "EXPIRES", "ID"]);
    for row in items {
        let role = row.shown_role().to_owned();
        let tenant = if row.tenant.is_empty() { "-".to_owned() } else { row.tenant };
        grid.row(vec![row.name, role, tenant, row.user, row.expires.unwrap_or_default(), row.id]);
    }
    console.list(&grid, "there are no tokens that you may revoke; `muster token create` makes one")
}

/// The only token that is meant.
fn found(tokens: Vec<admin::Token>, name: &str, tenant: Option<&str>) -> Result<admin::Token, Failure> {
    let is_meant = |token: &admin::Token| {
        (token.name == name || token.id == name) && tenant.is_none_or(|tenant| token.tenant == tenant)
    };
    let mut meant: Vec<admin::Token> = tokens.into_iter().filter(is_meant).collect();
    match (meant.pop(), meant.is_empty()) {
        (Some(token), true) => Ok(token),
        (Some(_), false) => {
            let text = format!("there are {} tokens with the name {name}", meant.len() + 1);
            Err(Failure::usage(text)
                .with_next("name its tenant with --tenant, or its id: `muster token list`"))
        }
        (None, _) => {
            Err(Failure::new(Exit::NotFound, format!("there is no token {name} that you may revoke"))
                .with_next("`muster token list` lists the tokens that you may revoke"))
        }
    }
}

/// Says what revoking a token would change.
async fn would_revoke(
    global: &Global,
    console: &Console,
    name: &str,
    tenant: Option<&str>,
) -> Result<(), Failure> {
    let tokens = global.client().await?.list_tokens().await?.tokens;
    let view = TokenView::of(found(tokens, name, tenant)?);
    if console.is_structured() {
        return console.object(&Document::new("Token", None::<u64>, DryRun::of(view)));
    }
    let role = view.shown_role();
    let for_whom = if view.tenant.is_empty() { String::new() } else { format!(" of tenant {}", view.tenant) };
    let until = view.expires.as_deref().unwrap_or("unknown");
    console.line(&format!(
        "token {} ({}) would be refused by every replica: {role}{for_whom}, held by {}, accepted until {until}",
        view.name, view.id, view.user
    ))?;
    console.progress("nothing was revoked");
    Ok(())
}

async fn revoke(global: &Global, console: &Console, name: &str, tenant: Option<&str>) -> Result<(), Failure> {
    let client = global.client().await?;
    let token = match name.parse::<TokenId>() {
        // Whether it is there the leader knows best.
        Ok(id) if tenant.is_none() => admin::Token { id: id.to_string(), ..Default::default() },
        _ => found(client.list_tokens().await?.tokens, name, tenant)?,
    };
    let request = admin::RevokeTokenRequest { request_id: String::new(), id: token.id.clone() };
    client.revoke_token(request).await?;
    if console.is_structured() {
        return console.object(&Document::new("Token", None::<u64>, TokenView::of(token)));
    }
    console.progress(&format!("token {name} is refused from now on"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_is_meant_or_none() {
        let token = |id: &str, name: &str, tenant: &str| admin::Token {
            id: id.to_owned(),
            name: name.to_owned(),
            tenant: tenant.to_owned(),
            ..Default::default()
        };
        let all = || vec![token("a1", "ci", "vision"), token("a2", "ci", ""), token("a3", "ada", "")];
        let id = |name, tenant| found(all(), name, tenant).map(|token| token.id).ok();
        assert_eq!(id("ada", None).as_deref(), Some("a3"));
        assert_eq!(id("ci", None), None, "two have this name");
        assert_eq!(id("ci", Some("vision")).as_deref(), Some("a1"));
        assert_eq!(id("ci", Some("")).as_deref(), Some("a2"));
        assert_eq!(id("a2", None).as_deref(), Some("a2"));
        assert_eq!(id("bob", None), None);
    }

    /// The cluster keeps a plain hash of a secret: nobody may be led to choose one.
    #[test]
    fn nothing_on_the_command_line_is_a_secret() {
        let command = CreateArgs::augment_args(clap::Command::new("create"));
        let mut options: Vec<&str> = command.get_arguments().map(|option| option.get_id().as_str()).collect();
        options.sort_unstable();
        assert_eq!(options, ["lifetime_ms", "name", "role", "tenant", "user"]);
    }

    #[test]
    fn a_lifetime_is_read_and_bounded() {
        assert_eq!(lifetime("30d"), Ok(30 * 24 * 3_600 * 1_000));
        for wrong in ["", "30", "59s", "367d", "-1d"] {
            assert!(lifetime(wrong).is_err(), "{wrong:?}");
        }
    }
}
