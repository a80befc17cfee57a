//! `muster audit`: who did what, by the decision log, and which calls were denied, by the files that replicas write.

mod denied;

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use muster_archive::summary;
use muster_client::{Client, LogItem};
use muster_console::{Console, Document, Exit, Failure, Format, Global, moment, one_line};
use muster_journal::REQUESTED_DECISIONS;
use muster_types::{LogTime, PastPoint};
use muster_wire::time::unix_ms;
use muster_wire::v1;
use serde::Serialize;
use serde_json::Value;

use crate::log::{each_record, kept, point_of_log};

/// In the place of a name that the caller is not shown.
const REDACTED: &str = "redacted";
/// Between the name of the holder of a token and the token's id.
const TOKEN: &str = "+token/";
/// Between the name of who has signed in and the issuer.
const ISSUER: &str = "+oidc/";

/// Options of `muster audit`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster audit --from 2026-11-27T00:00:00Z          what people asked for since then
  muster audit --who ada --what job_cancel_requested
  muster audit --tenant research -o json | jq -r '[.time, .who, .what] | @tsv'
  muster audit --follow                             what is asked from now on, too
  muster audit --denied --since 2026-11-27T00:00:00Z          what was denied since then, by any replica
  muster audit --denied --principal eve --reason PERMISSION_DENIED
  muster audit --denied /var/lib/muster/server/audit.log --who eve

Every record of the log that somebody asked for says who that was: the name in a certificate and, where a token was used, its
id; the role that it gave, or the kind of the certificate; and the network address from which the call came. Operators of all
tenants see every name, role and address; others see the names with jobs, the roles and addresses of their tenants' users, and
`redacted` where operators acted.

Calls that were denied change nothing, so the log does not have them. Each replica writes those that it received to audit.log in
its data directory, together with calls of operators about members, drills and backups. --denied asks every replica for them, the
newest 1,000 lines of each, or reads such files where they are named. It ends with 6 where a replica could not be asked.")]
pub struct AuditArgs {
    /// Only what this one asked for: a name as it is shown, or the user at its end
    #[arg(long, visible_alias = "principal", value_name = "NAME")]
    who: Option<String>,
    /// Only this kind of record; may be repeated
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(REQUESTED_DECISIONS), conflicts_with = "denied")]
    what: Vec<String>,
    /// Only what users of this tenant asked for, and what was submitted for it
    #[arg(long, value_name = "TENANT", conflicts_with = "denied")]
    tenant: Option<String>,
    /// Begin at this log index or RFC 3339 time
    #[arg(long, visible_alias = "since", value_name = "INDEX|TIME", value_parser = point_of_log)]
    from: Option<PastPoint>,
    /// End at this log index or RFC 3339 time
    #[arg(long, visible_alias = "until", value_name = "INDEX|TIME", value_parser = point_of_log)]
    to: Option<PastPoint>,
    /// Go on with new records
    #[arg(short, long, conflicts_with_all = ["to", "denied"])]
    follow: bool,
    /// Only denied calls with this code, or with this text in what was answered
    #[arg(long, value_name = "TEXT", requires = "denied")]
    reason: Option<String>,
    /// Calls that were denied: what every replica has written, or these files of replicas
    #[arg(long, value_name = "FILE", num_args = 0..)]
    denied: Option<Vec<PathBuf>>,
}

/// A record that somebody asked for.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AuditView {
    time: Option<String>,
    who: String,
    /// certificate, token, sign-in, none or redacted.
    credential: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// Who issued the token of a sign-in.
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    operator: bool,
    /// The role of the policy or the built-in one that a token or a sign-in gave, else the kind of the certificate; or `redacted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    /// From where, or `redacted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    what: String,
    object: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
    content: Value,
}

impl AuditView {
    /// None for what nobody asked for: the leader decides some of these kinds by itself.
    fn of(record: &v1::LogRecord) -> Option<AuditView> {
        let content: Value = serde_json::from_str(&record.content_json).ok()?;
        let by = content.get("by")?;
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let request_id = text(content.pointer("/request/id"));
        // A name that is not shown is a word in the place of all of it.
        let name = text(by.get("name")).or_else(|| text(Some(by))).unwrap_or_default();
        let operator = by.get("is_operator").and_then(Value::as_bool).unwrap_or_default();
        if name.is_empty() && request_id.is_none() {
            return None;
        }
        let issuer = name.split_once(ISSUER).map(|(_, issuer)| issuer.to_owned());
        let (who, credential, token) = match name.split_once(TOKEN) {
            Some((who, id)) => (who.to_owned(), "token", Some(id.to_owned())),
            None if issuer.is_some() => (issuer_less(&name).to_owned(), "sign-in", None),
            None if name == REDACTED => (name, "redacted", None),
            None if name.is_empty() => ("anonymous".to_owned(), "none", None),
            None => (name, "certificate", None),
        };
        let says_kind = credential == "certificate";
        let kind = || who.split_once('/').filter(|_| says_kind).map(|(kind, _)| kind.to_owned());
        let role = text(by.get("role")).or_else(kind);
        Some(AuditView {
            time: moment(record.log_time),
            who,
            credential,
            token,
            issuer,
            operator,
            role,
            address: text(by.get("address")),
            what: record.decision.clone(),
            object: object(&content),
            request_id,
            content,
        })
    }

    fn is_of(&self, who: &str) -> bool {
        let by_issuer = || self.issuer.as_ref().map(|issuer| format!("{}{ISSUER}{issuer}", self.who));
        let whole = self.token.as_ref().map(|id| format!("{}{TOKEN}{id}", self.who)).or_else(by_issuer);
        is_named(&self.who, who) || whole.is_some_and(|whole| whole == who)
    }

    fn concerns(&self, tenant: &str) -> bool {
        let own = self.who.strip_prefix("tenant/").and_then(|rest| rest.split('/').next());
        own == Some(tenant) || names_tenant(&self.content, tenant)
    }

    fn line(&self, log_index: u64) -> String {
        let credential = match &self.token {
            Some(id) => format!("token {id}"),
            None => match &self.issuer {
                Some(issuer) => format!("{} {issuer}", self.credential),
                None => self.credential.to_owned(),
            },
        };
        let (time, request) = (self.time.as_deref().unwrap_or("-"), self.request_id.as_deref());
        let text = format!(
            "{time:<24}  {log_index:>8}  {:<24}  {credential:<22}  {:<16}  {:<15}  {:<22}  {:<36}  {}",
            self.who,
            self.role.as_deref().unwrap_or("-"),
            self.address.as_deref().unwrap_or("-"),
            self.what,
            request.unwrap_or("-"),
            self.object
        );
        one_line(text.trim_end())
    }
}

/// A name without the issuer that spoke for it.
fn issuer_less(name: &str) -> &str {
    name.split_once(ISSUER).map_or(name, |(who, _)| who)
}

/// Whether a name as it is shown is this one, or ends with this user.
fn is_named(name: &str, wanted: &str) -> bool {
    name == wanted || name.rsplit('/').next() == Some(wanted)
}

/// Whether something in it is a tenant of this name.
fn names_tenant(content: &Value, tenant: &str) -> bool {
    match content {
        Value::Object(fields) => fields.iter().any(|(name, value)| {
            (name == "tenant" && value.as_str() == Some(tenant)) || names_tenant(value, tenant)
        }),
        Value::Array(items) => items.iter().any(|item| names_tenant(item, tenant)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// What was asked of what, in a few words.
fn object(content: &Value) -> String {
    let mut content = content.clone();
    if let Value::Object(fields) = &mut content {
        for other in ["by", "request", "estimate", "estimates"] {
            fields.remove(other);
        }
    }
    summary(&content)
}

/// The kinds of records to ask for.
fn kinds(asked: &[String]) -> Vec<String> {
    match asked {
        [] => REQUESTED_DECISIONS.map(str::to_owned).to_vec(),
        some => some.to_vec(),
    }
}

const HEADER: &str = "TIME                         INDEX  WHO                       CREDENTIAL              ROLE              FROM             WHAT                    REQUEST                               OBJECT";

pub async fn run(global: &Global, console: &Console, args: AuditArgs) -> Result<Exit, Failure> {
    if let Some(files) = &args.denied {
        return match files.as_slice() {
            [] => denied::ask(global, console, &args).await,
            files => denied::run(console, files, &args),
        };
    }
    let client = global.client().await?;
    let Some((from_index, to_index)) = bounds(&client, &args).await? else {
        console.progress("the log has nothing of that time");
        return Ok(Exit::Ok);
    };
    let request = v1::ReadDecisionsRequest {
        from_index,
        to_index,
        // A replica may show records a moment before it can read them: this waits for them.
        follow: true,
        decisions: kinds(&args.what),
        ..Default::default()
    };
    if matches!(console.format, Format::Table | Format::Wide) {
        console.line(HEADER)?;
    }
    let reader = client.read_decisions(request);
    let again = |next| format!("go on with the same options and --from {next}");
    each_record(console, reader, to_index, again, |record| show(console, &args, record)).await
}

fn show(console: &Console, args: &AuditArgs, record: &v1::LogRecord) -> Result<(), Failure> {
    let Some(view) = AuditView::of(record) else { return Ok(()) };
    let is_by = args.who.as_ref().is_none_or(|who| view.is_of(who));
    let is_for = args.tenant.as_ref().is_none_or(|tenant| view.concerns(tenant));
    if !(is_by && is_for) {
        return Ok(());
    }
    match console.format {
        Format::Json | Format::Yaml => {
            console.event(&Document::new("AuditRecord", Some(record.log_index), view))
        }
        Format::Name => console.line(&record.log_index.to_string()),
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            console.line(&view.line(record.log_index))
        }
    }
}

/// The first and the last record to read, zero for no last one; none where there is nothing between them.
async fn bounds(client: &Client, args: &AuditArgs) -> Result<Option<(u64, u64)>, Failure> {
    let status = client.get_archive_status().await?;
    let range = (status.oldest_log_index.max(1), status.newest_log_index);
    let from = match args.from {
        None => range.0,
        Some(PastPoint::Index(index)) => index.0,
        Some(PastPoint::Time(time)) => first_at(client, range, time).await?,
    };
    let to = match args.to {
        None if args.follow => return Ok(Some((from, 0))),
        None => range.1,
        Some(PastPoint::Index(index)) => index.0.min(range.1),
        Some(PastPoint::Time(time)) => {
            first_at(client, range, LogTime(time.0.saturating_add(1))).await?.saturating_sub(1)
        }
    };
    Ok((from <= to).then_some((from, to)))
}

/// The first record of a range that was decided at this time or later; the one behind the range where none was. Log time never
/// goes back.
async fn first_at(client: &Client, (mut low, newest): (u64, u64), time: LogTime) -> Result<u64, Failure> {
    let mut high = newest.saturating_add(1);
    while low < high {
        let middle = low + (high - low) / 2;
        if decided_at(client, middle).await? < time.0 {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// When a record that exists was decided, in milliseconds.
async fn decided_at(client: &Client, index: u64) -> Result<u64, Failure> {
    let request =
        v1::ReadDecisionsRequest { from_index: index, to_index: index, follow: true, ..Default::default() };
    let mut reader = client.read_decisions(request);
    while let Some(item) = reader.next().await.map_err(|error| kept(error, &reader))? {
        if let LogItem::Record(record) = item {
            return Ok(unix_ms(record.log_time).unwrap_or_default());
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn view(content: &Value) -> Option<AuditView> {
        let record = v1::LogRecord {
            log_index: 7,
            decision: "node_cordon_set".to_owned(),
            content_json: content.to_string(),
            ..Default::default()
        };
        AuditView::of(&record)
    }

    fn cordon(name: &str) -> Value {
        json!({
            "request": { "id": "00ff", "fingerprint": 3 },
            "by": { "name": name, "is_operator": true, "address": "192.0.2.7" },
            "node": "node-3",
            "cordoned": true,
        })
    }

    #[test]
    fn a_record_says_who_did_what_to_which_object_and_with_what() {
        let shown = view(&cordon("admin/ops")).expect("somebody asked");
        assert_eq!(
            (shown.who.as_str(), shown.credential, shown.operator),
            ("admin/ops", "certificate", true)
        );
        assert_eq!(shown.object, "cordoned=true node=node-3");
        assert_eq!(shown.request_id.as_deref(), Some("00ff"));
        assert_eq!(shown.address.as_deref(), Some("192.0.2.7"));
        assert_eq!(shown.role.as_deref(), Some("admin"), "the kind of the certificate");
        let line = shown.line(7);
        let column = HEADER.find("FROM").expect("there is a column");
        assert_eq!(line.get(column..column + 9), Some("192.0.2.7"), "it stands below its title");
        assert!(line.contains("admin/ops") && line.contains("00ff") && line.contains("node-3"), "{line}");

        let shown = view(&cordon("tenant/vision/ada+token/00c0ffee")).expect("somebody asked");
        assert_eq!((shown.who.as_str(), shown.credential), ("tenant/vision/ada", "token"));
        assert_eq!(shown.token.as_deref(), Some("00c0ffee"));
        assert!(shown.line(7).contains("token 00c0ffee"));
        assert_eq!(shown.role, None, "it was not recorded");

        let shown = view(&cordon("tenant/vision/ada+oidc/corp")).expect("somebody asked");
        assert_eq!((shown.who.as_str(), shown.credential), ("tenant/vision/ada", "sign-in"));
        assert!(shown.is_of("ada") && shown.is_of("tenant/vision/ada+oidc/corp"));
        assert!(shown.line(7).contains("sign-in corp"));

        let mut signed_in = cordon("tenant/vision/ada+oidc/corp");
        signed_in["by"]["role"] = json!("on-call");
        let shown = view(&signed_in).expect("somebody asked");
        assert_eq!(shown.role.as_deref(), Some("on-call"));
        let column = HEADER.find("ROLE").expect("there is a column");
        assert_eq!(shown.line(7).get(column..column + 7), Some("on-call"), "it stands below its title");
        assert_eq!(serde_json::to_value(&shown).expect("it is JSON")["role"], "on-call");
    }

    #[test]
    fn nobody_and_names_that_are_not_shown_are_told_apart() {
        let nobody = view(&cordon("")).expect("it has a request");
        assert_eq!((nobody.who.as_str(), nobody.credential), ("anonymous", "none"));
        let decided =
            json!({ "request": null, "by": { "name": "", "is_operator": false }, "node": "node-3" });
        assert!(view(&decided).is_none(), "the leader decided it");
        let unknown = view(&json!({ "request": { "id": "00ff" }, "by": { "name": "x", "address": null } }));
        assert_eq!(unknown.expect("somebody asked").address, None);
        let hidden = json!({ "request": { "id": "00ff" }, "by": "redacted" });
        let hidden = view(&hidden).expect("somebody asked");
        assert_eq!(
            (hidden.who.as_str(), hidden.credential, hidden.operator),
            ("redacted", "redacted", false)
        );
        assert!(view(&json!({ "node": "node-3" })).is_none() && view(&json!([1])).is_none());
    }

    #[test]
    fn records_are_found_by_user_name_token_and_tenant() {
        let shown = view(&cordon("tenant/vision/ada+token/00c0ffee")).expect("somebody asked");
        for who in ["ada", "tenant/vision/ada", "tenant/vision/ada+token/00c0ffee"] {
            assert!(shown.is_of(who), "{who}");
        }
        for who in ["vision", "vision/ada", "eve", "", "da"] {
            assert!(!shown.is_of(who), "{who}");
        }
        assert!(shown.concerns("vision") && !shown.concerns("ada") && !shown.concerns("speech"));
        let mut submitted = cordon("admin/ops");
        submitted["specs"] = json!([{ "name": "train", "tenant": "speech" }]);
        let shown = view(&submitted).expect("somebody asked");
        assert!(shown.concerns("speech") && !shown.concerns("vision"));
    }

    #[test]
    fn control_characters_of_others_reach_no_terminal() {
        let mut content = cordon("admin/ops");
        content["reason"] = json!("broken\n\u{1b}[2J");
        let line = view(&content).expect("somebody asked").line(7);
        assert!(!line.contains('\n') && !line.contains('\u{1b}'), "{line:?}");
    }
}
