//! The part of the configuration about issuers whose tokens are taken.

use muster_oidc::{Algorithm, FetchRules, ISSUERS_MAX, IssuerSettings, KeySource, RULES_MAX, Rule};
use muster_transport::ISSUER_NAME_BYTES_MAX;
use muster_types::config_value::span_ms;
use muster_types::name::NAME_RULE;
use muster_types::policy::url_fault;
use muster_types::{Name, TokenRole, Violation};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use super::ConfigError;

/// Hosts that may be listed for one issuer.
const ALLOWED_HOSTS_MAX: usize = 64;
/// Bytes of a host, a claim, a group or an audience.
const TEXT_BYTES_MAX: usize = 256;

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IssuerFile {
    name: String,
    issuer: String,
    audience: String,
    keys: Option<String>,
    algorithms: Option<Vec<String>>,
    #[serde(default, rename = "clock_skew", with = "span_ms")]
    clock_skew_ms: Option<u64>,
    #[serde(default, rename = "lifetime_max", with = "span_ms")]
    lifetime_max_ms: Option<u64>,
    user_claim: Option<String>,
    #[serde(default)]
    user_suffix: String,
    groups_claim: Option<String>,
    #[serde(default, rename = "refresh", with = "span_ms")]
    refresh_ms: Option<u64>,
    #[serde(default, rename = "refetch_gap", with = "span_ms")]
    refetch_gap_ms: Option<u64>,
    #[serde(default, rename = "keys_kept", with = "span_ms")]
    keys_kept_ms: Option<u64>,
    #[serde(default, rename = "request_timeout", with = "span_ms")]
    request_timeout_ms: Option<u64>,
    #[serde(default)]
    allow_http: bool,
    #[serde(default)]
    allowed_hosts: Vec<String>,
    ca_file: Option<PathBuf>,
    #[serde(default)]
    rules: Vec<RuleFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    group: Option<String>,
    role: String,
    tenant: Option<String>,
}

/// A key, and what is wrong with it.
type Wrong = (String, String);

pub(super) fn issuers(
    files: Vec<IssuerFile>,
    refuse: &impl Fn(&str, String) -> ConfigError,
) -> Result<Vec<IssuerSettings>, ConfigError> {
    if files.len() > ISSUERS_MAX {
        return Err(refuse("oidc", format!("must have at most {ISSUERS_MAX} entries, has {}", files.len())));
    }
    let mut read: Vec<IssuerSettings> = Vec::with_capacity(files.len());
    for (index, file) in files.into_iter().enumerate() {
        let at = format!("oidc[{index}]");
        let settings = issuer(file).map_err(|(key, reason)| refuse(&format!("{at}.{key}"), reason))?;
        // Which of two would be asked, a token could not say.
        if read.iter().any(|known| known.name == settings.name) {
            return Err(refuse(&format!("{at}.name"), "must be given once".into()));
        }
        if read.iter().any(|known| known.url == settings.url) {
            return Err(refuse(&format!("{at}.issuer"), "must be given once".into()));
        }
        read.push(settings);
    }
    Ok(read)
}

fn issuer(file: IssuerFile) -> Result<IssuerSettings, Wrong> {
    let wrong = |key: &str, reason: String| (key.to_owned(), reason);
    let name = Name::new(&file.name).filter(|name| name.len() <= ISSUER_NAME_BYTES_MAX);
    let name = name.ok_or_else(|| {
        wrong("name", format!("must be {NAME_RULE}, and at most {ISSUER_NAME_BYTES_MAX} bytes"))
    })?;
    let url = address("issuer", file.issuer, file.allow_http)?;
    let keys = match file.keys.as_deref() {
        None | Some("described") => KeySource::Described,
        Some(path) if path.starts_with('/') => KeySource::File(PathBuf::from(path)),
        Some(url) => KeySource::Url(address("keys", url.to_owned(), file.allow_http)?),
    };
    let algorithms = match file.algorithms {
        None => Algorithm::ALL.into_iter().collect(),
        Some(names) => algorithms(&names)?,
    };
    let span = |key: &str, given: Option<u64>, (min, max): (u64, u64), usual_ms: u64| {
        let ms = given.unwrap_or(usual_ms);
        if (min..=max).contains(&ms) {
            return Ok(Duration::from_millis(ms));
        }
        let broken = Violation::span(key, ms, min, max);
        Err((broken.field, broken.description))
    };
    let refresh = (10 * SECOND_MS, DAY_MS);
    Ok(IssuerSettings {
        name,
        url,
        audience: text("audience", file.audience)?,
        keys,
        algorithms,
        clock_skew: span("clock_skew", file.clock_skew_ms, (0, 5 * MINUTE_MS), 30 * SECOND_MS)?,
        lifetime_max: span("lifetime_max", file.lifetime_max_ms, (MINUTE_MS, 30 * DAY_MS), DAY_MS)?,
        user_claim: text("user_claim", file.user_claim.unwrap_or_else(|| "preferred_username".to_owned()))?,
        user_suffix: if file.user_suffix.is_empty() {
            String::new()
        } else {
            text("user_suffix", file.user_suffix)?
        },
        groups_claim: text("groups_claim", file.groups_claim.unwrap_or_else(|| "groups".to_owned()))?,
        rules: rules(file.rules)?,
        refresh: span("refresh", file.refresh_ms, refresh, 5 * MINUTE_MS)?,
        refetch_gap: span("refetch_gap", file.refetch_gap_ms, (SECOND_MS, DAY_MS), 10 * SECOND_MS)?,
        keys_kept: span("keys_kept", file.keys_kept_ms, (MINUTE_MS, 30 * DAY_MS), DAY_MS)?,
        fetch: FetchRules {
            allow_http: file.allow_http,
            allowed_hosts: hosts(&file.allowed_hosts)?,
            timeout: span("request_timeout", file.request_timeout_ms, (100, MINUTE_MS), 10 * SECOND_MS)?,
        },
        ca_file: file.ca_file,
    })
}

fn address(key: &str, url: String, allow_http: bool) -> Result<String, Wrong> {
    if let Some(fault) = url_fault(&url) {
        return Err((key.to_owned(), fault));
    }
    if !allow_http && !url.starts_with("https://") {
        return Err((key.to_owned(), "must begin with https://, or allow_http must be set".to_owned()));
    }
    Ok(url)
}

fn text(key: &str, text: String) -> Result<String, Wrong> {
    if text.is_empty() || text.len() > TEXT_BYTES_MAX || text.chars().any(char::is_control) {
        return Err((key.to_owned(), format!("must be one line of 1 to {TEXT_BYTES_MAX} bytes")));
    }
    Ok(text)
}

fn algorithms(names: &[String]) -> Result<BTreeSet<Algorithm>, Wrong> {
    let known = Algorithm::ALL.map(Algorithm::name).join(", ");
    let read: Option<BTreeSet<Algorithm>> = names.iter().map(|name| Algorithm::from_name(name)).collect();
    read.filter(|read| !read.is_empty())
        .ok_or_else(|| ("algorithms".to_owned(), format!("must be some of {known}, got {names:?}")))
}

fn hosts(given: &[String]) -> Result<BTreeSet<String>, Wrong> {
    let is_host = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
    let is_good =
        |host: &String| !host.is_empty() && host.len() <= TEXT_BYTES_MAX && host.chars().all(is_host);
    if given.len() > ALLOWED_HOSTS_MAX || !given.iter().all(is_good) {
        let rule = format!(
            "must be at most {ALLOWED_HOSTS_MAX} names or addresses of hosts, without scheme, brackets and port"
        );
        return Err(("allowed_hosts".to_owned(), rule));
    }
    Ok(given.iter().map(|host| host.to_ascii_lowercase()).collect())
}

fn rules(files: Vec<RuleFile>) -> Result<Vec<Rule>, Wrong> {
    if files.is_empty() || files.len() > RULES_MAX {
        let rule = format!("must be 1 to {RULES_MAX}: without a rule nobody signs in, got {}", files.len());
        return Err(("rules".to_owned(), rule));
    }
    let mut rules = Vec::with_capacity(files.len());
    for (index, file) in files.into_iter().enumerate() {
        let key = |field: &str| format!("rules[{index}].{field}");
        let name = |field: &str, given: &str| {
            Name::new(given).ok_or_else(|| (key(field), format!("must be {NAME_RULE}, got {given:?}")))
        };
        let role = name("role", &file.role)?;
        let tenant = file.tenant.as_deref().map(|tenant| name("tenant", tenant)).transpose()?;
        // What a role of the policy needs is known to the policy alone.
        let needed = TokenRole::from_name(&role).and_then(TokenRole::needs_tenant);
        match needed {
            Some(true) if tenant.is_none() => {
                return Err((key("tenant"), format!("must be given for the role {role}")));
            }
            Some(false) if tenant.is_some() => {
                return Err((key("tenant"), format!("must be left out for the role {role}")));
            }
            _ => {}
        }
        let group = file.group.map(|group| text(&key("group"), group)).transpose()?;
        rules.push(Rule { group, role, tenant });
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Whole {
        oidc: Vec<IssuerFile>,
    }

    const GOOD: &str =
        "[[oidc]]\nname = \"corp\"\nissuer = \"https://login.example.org\"\naudience = \"muster\"\n";
    const RULE: &str = "[[oidc.rules]]\ngroup = \"ml\"\nrole = \"submitter\"\ntenant = \"vision\"\n";

    fn read(text: &str) -> Result<Vec<IssuerSettings>, String> {
        let whole: Whole = toml::from_str(text).map_err(|error| error.to_string())?;
        let refuse = |key: &str, reason: String| ConfigError::Value {
            path: PathBuf::from("server.toml"),
            key: key.to_owned(),
            reason,
        };
        issuers(whole.oidc, &refuse).map_err(|error| error.to_string())
    }

    #[test]
    fn good_values_are_taken() {
        let read_one = |more: &str| {
            let issuers =
                read(&format!("{GOOD}{more}{RULE}")).unwrap_or_else(|error| panic!("{more}: {error}"));
            issuers.into_iter().next().expect("there is one")
        };
        let usual = read_one("");
        assert_eq!((usual.keys.clone(), usual.algorithms.len()), (KeySource::Described, 3));
        assert_eq!(
            (usual.user_claim.as_str(), usual.groups_claim.as_str()),
            ("preferred_username", "groups")
        );
        let all = read_one(
            "keys = \"https://login.example.org/keys\"\nalgorithms = [\"ES256\"]\nclock_skew = \"0s\"\nlifetime_max = \"1h\"\n\
             user_claim = \"email\"\nuser_suffix = \"@example.org\"\ngroups_claim = \"roles\"\nrefresh = \"1m\"\n\
             refetch_gap = \"30s\"\nkeys_kept = \"2h\"\nrequest_timeout = \"3s\"\nallow_http = true\n\
             allowed_hosts = [\"Login.internal\"]\nca_file = \"/ca.pem\"\n",
        );
        assert_eq!(all.keys, KeySource::Url("https://login.example.org/keys".to_owned()));
        assert_eq!((all.clock_skew.as_secs(), all.keys_kept.as_secs()), (0, 7_200));
        assert!(all.fetch.allow_http && all.fetch.allowed_hosts.contains("login.internal"));
        let file = read_one("keys = \"/etc/muster/keys.json\"\n");
        assert_eq!(file.keys, KeySource::File(PathBuf::from("/etc/muster/keys.json")));
        let role = "[[oidc.rules]]\nrole = \"on-call\"\n";
        read(&format!("{GOOD}{role}")).expect("a role of the policy, for everybody");
    }

    #[test]
    fn bad_values_are_refused_by_their_key() {
        for (more, key) in [
            ("keys = \"ftp://x\"\n", "oidc[0].keys"),
            ("keys = \"http://login.example.org/keys\"\n", "oidc[0].keys"),
            ("algorithms = []\n", "oidc[0].algorithms"),
            ("algorithms = [\"HS256\"]\n", "oidc[0].algorithms"),
            ("algorithms = [\"none\"]\n", "oidc[0].algorithms"),
            ("clock_skew = \"1h\"\n", "oidc[0].clock_skew"),
            ("lifetime_max = \"1s\"\n", "oidc[0].lifetime_max"),
            ("refresh = \"1s\"\n", "oidc[0].refresh"),
            ("keys_kept = \"90d\"\n", "oidc[0].keys_kept"),
            ("user_claim = \"\"\n", "oidc[0].user_claim"),
            ("allowed_hosts = [\"https://a\"]\n", "oidc[0].allowed_hosts"),
            ("client = \"x\"\n", "client"),
        ] {
            let error = read(&format!("{GOOD}{more}{RULE}")).expect_err(more);
            assert!(error.contains(key), "{more}: {error}");
        }
        for (rule, key) in [
            ("", "oidc[0].rules"),
            ("[[oidc.rules]]\nrole = \"submitter\"\n", "oidc[0].rules[0].tenant"),
            ("[[oidc.rules]]\nrole = \"admin\"\ntenant = \"vision\"\n", "oidc[0].rules[0].tenant"),
            ("[[oidc.rules]]\nrole = \"No\"\n", "oidc[0].rules[0].role"),
            ("[[oidc.rules]]\ngroup = \"\"\nrole = \"viewer\"\n", "oidc[0].rules[0].group"),
        ] {
            let error = read(&format!("{GOOD}{rule}")).expect_err(rule);
            assert!(error.contains(key), "{rule}: {error}");
        }
        let long = GOOD.replace("corp", "a-name-of-17-byte");
        assert!(read(&format!("{long}{RULE}")).expect_err("too long").contains("oidc[0].name"));
        let twice = format!("{GOOD}{RULE}{GOOD}{RULE}");
        assert!(read(&twice).expect_err("twice").contains("oidc[1].name"));
        let other = GOOD.replace("corp", "other");
        assert!(read(&format!("{GOOD}{RULE}{other}{RULE}")).expect_err("twice").contains("oidc[1].issuer"));
    }
}
