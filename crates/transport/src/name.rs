//! Names in certificates, and who a caller is.

use muster_types::{ClusterId, Name, ReplicaId, TokenId, TokenRole};
use std::fmt;
use std::str::FromStr;

/// Bytes of the longest name: `spiffe://`, 32 digits, the longest kind and two short names.
const NAME_TEXT_BYTES_MAX: usize = 192;
/// Bytes of a [`ShortName`], as of every name in the cluster.
const SHORT_BYTES_MAX: usize = 63;

/// Who has to answer. Only replicas are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Any replica of this process's own cluster.
    AnyReplica,
    /// This one and no other.
    Replica(ReplicaId),
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expect::AnyReplica => f.write_str("a replica"),
            Expect::Replica(id) => write!(f, "replica/{}", id.0),
        }
    }
}

/// A checked name of a node or a user, in place: a caller's name is copied with every request, and
/// nothing is allocated for that.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShortName {
    /// Zero behind the end.
    bytes: [u8; SHORT_BYTES_MAX],
    length: u8,
}

impl ShortName {
    /// The name, when it keeps the rule of [`Name`].
    #[must_use]
    pub fn new(text: &str) -> Option<ShortName> {
        Name::new(text)?;
        let mut bytes = [0; SHORT_BYTES_MAX];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(ShortName { bytes, length: u8::try_from(text.len()).ok()? })
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let bytes = &self.bytes[..usize::from(self.length)];
        std::str::from_utf8(bytes).expect("a name that keeps the rule is ASCII")
    }
}

impl std::hash::Hash for ShortName {
    /// Without what is behind the end: callers are looked up several times for each request.
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.bytes[..usize::from(self.length)].hash(state);
    }
}

impl fmt::Debug for ShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for ShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a certificate's holder is. The set is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// One of the scheduler servers.
    Replica(ReplicaId),
    /// The agent of one node, by the node's name. It speaks for that node alone.
    Agent(ShortName),
    /// An agent that speaks for the nodes of another scheduler's cluster: those whose names begin with its own name
    /// and a dot, and no others.
    AgentGroup(ShortName),
    /// A user who looks, and changes nothing.
    Client(ShortName),
    /// A user of all tenants, or a program of one.
    AllTenants(ShortName),
    /// An operator.
    Admin(ShortName),
    /// A user of one tenant and those below it, or a program of one.
    TenantClient {
        /// The tenant.
        tenant: ShortName,
        /// Who of it.
        user: ShortName,
    },
}

impl Role {
    /// The word in the name.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Role::Replica(_) => "replica",
            Role::Agent(_) => "agent",
            Role::AgentGroup(_) => "agent-group",
            Role::Client(_) => "client",
            Role::AllTenants(_) => "all-tenants",
            Role::Admin(_) => "admin",
            Role::TenantClient { .. } => "tenant",
        }
    }

    /// Reads a kind and what it names, as on a command line.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn parse(kind: &str, which: &str) -> Result<Role, NameError> {
        let short = || ShortName::new(which).ok_or(NameError::Which);
        match kind {
            "replica" => {
                let canonical = which.bytes().all(|b| b.is_ascii_digit()) && !which.starts_with('0');
                match which.parse() {
                    Ok(id) if canonical => Ok(Role::Replica(ReplicaId(id))),
                    _ => Err(NameError::Replica),
                }
            }
            "agent" => short().map(Role::Agent),
            "agent-group" => short().map(Role::AgentGroup),
            "client" => short().map(Role::Client),
            "all-tenants" => short().map(Role::AllTenants),
            "admin" => short().map(Role::Admin),
            "tenant" => {
                let (tenant, user) = which.split_once('/').ok_or(NameError::Tenant)?;
                match (ShortName::new(tenant), ShortName::new(user)) {
                    (Some(tenant), Some(user)) => Ok(Role::TenantClient { tenant, user }),
                    _ => Err(NameError::Which),
                }
            }
            _ => Err(NameError::Kind),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Replica(id) => write!(f, "replica/{}", id.0),
            Role::Agent(name) => write!(f, "agent/{name}"),
            Role::AgentGroup(name) => write!(f, "agent-group/{name}"),
            Role::Client(name) => write!(f, "client/{name}"),
            Role::AllTenants(name) => write!(f, "all-tenants/{name}"),
            Role::Admin(name) => write!(f, "admin/{name}"),
            Role::TenantClient { tenant, user } => write!(f, "tenant/{tenant}/{user}"),
        }
    }
}

/// The name in a certificate: `spiffe://<cluster-id>/<kind>/<which>`; of a tenant's user
/// `spiffe://<cluster-id>/tenant/<tenant>/<user>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerName {
    /// The cluster that its holder belongs to.
    pub cluster: ClusterId,
    /// What its holder is.
    pub role: Role,
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spiffe://{}/{}", self.cluster, self.role)
    }
}

/// Why a text is no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not of the form.
    #[error("a name is spiffe://<cluster-id>/<kind>/<which>")]
    Form,
    /// The cluster's part.
    #[error("the cluster of a name is 32 lower-case hexadecimal digits")]
    Cluster,
    /// The kind.
    #[error("the kind of a name is replica, agent, agent-group, client, all-tenants, tenant or admin")]
    Kind,
    /// A tenant's user.
    #[error("a tenant's user is named <tenant>/<user>")]
    Tenant,
    /// A replica's number.
    #[error("a replica is named by its number, from 1, without leading zeros")]
    Replica,
    /// A node or user.
    #[error("a node or user is named by {}", muster_types::name::NAME_RULE)]
    Which,
}

impl FromStr for PeerName {
    type Err = NameError;

    /// Strict: one spelling for each name, nothing before or behind it.
    fn from_str(text: &str) -> Result<PeerName, NameError> {
        if text.len() > NAME_TEXT_BYTES_MAX {
            return Err(NameError::Form);
        }
        let rest = text.strip_prefix("spiffe://").ok_or(NameError::Form)?;
        let (cluster, role) = rest.split_once('/').ok_or(NameError::Form)?;
        let (kind, which) = role.split_once('/').ok_or(NameError::Form)?;
        Ok(PeerName { cluster: cluster_of(cluster)?, role: Role::parse(kind, which)? })
    }
}

fn cluster_of(text: &str) -> Result<ClusterId, NameError> {
    let digits = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if text.len() != 32 || !text.bytes().all(digits) {
        return Err(NameError::Cluster);
    }
    text.parse().map_err(|_| NameError::Cluster)
}

/// Bytes of the longest name of a token's holder: longer than a [`PeerName`] by the token's id and role, and by its issuer.
const HOLDER_TEXT_BYTES_MAX: usize = 384;
/// Bytes of the longest name of an issuer: with it and the longest names of a tenant and a user, who submitted can be recorded.
pub const ISSUER_NAME_BYTES_MAX: usize = 16;

/// The holder of a bearer token that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenHolder {
    /// The cluster that has the token.
    pub cluster: ClusterId,
    /// Which token.
    pub id: TokenId,
    /// What it may do.
    pub role: TokenRole,
    /// The tenant that it acts for.
    pub tenant: Option<ShortName>,
    /// Who holds it.
    pub user: ShortName,
    /// The role of the policy that it has, a part of `role`; none for all of `role`.
    pub own_role: Option<ShortName>,
    /// Who issued it, as the configuration of replicas names that; none for a token of the cluster's own making. Then `id` tells
    /// its tokens apart, and is that of no token in the state.
    pub issuer: Option<ShortName>,
}

impl TokenHolder {
    /// The kind of certificate whose holder has the same tenant and sees the same. What it may call
    /// depends on its role alone.
    fn as_certificate(&self) -> Role {
        let user = self.user;
        match (self.role, self.tenant) {
            (TokenRole::Admin, _) => Role::Admin(user),
            (TokenRole::Operator | TokenRole::Drill, _) => Role::AllTenants(user),
            (TokenRole::Viewer | TokenRole::Submitter | TokenRole::TenantAdmin, Some(tenant)) => {
                Role::TenantClient { tenant, user }
            }
            (TokenRole::Viewer | TokenRole::Submitter | TokenRole::TenantAdmin, None) => Role::Client(user),
        }
    }
}

impl fmt::Display for TokenHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.issuer {
            Some(issuer) => write!(f, "spiffe://{}/oidc/{issuer}/{}/", self.cluster, self.id)?,
            None => write!(f, "spiffe://{}/token/{}/", self.cluster, self.id)?,
        }
        match &self.own_role {
            Some(own) => write!(f, "{}+{own}/", self.role)?,
            None => write!(f, "{}/", self.role)?,
        }
        match &self.tenant {
            Some(tenant) => write!(f, "{tenant}/{}", self.user),
            None => write!(f, "-/{}", self.user),
        }
    }
}

impl FromStr for TokenHolder {
    type Err = NameError;

    /// Strict, like that of a [`PeerName`]. No certificate has such a name.
    fn from_str(text: &str) -> Result<TokenHolder, NameError> {
        if text.len() > HOLDER_TEXT_BYTES_MAX {
            return Err(NameError::Form);
        }
        let rest = text.strip_prefix("spiffe://").ok_or(NameError::Form)?;
        let parts: Vec<&str> = rest.split('/').collect();
        let short = |text: &str| ShortName::new(text).ok_or(NameError::Which);
        let (cluster, issuer, [id, role, tenant, user]) = match parts[..] {
            [cluster, "token", id, role, tenant, user] => (cluster, None, [id, role, tenant, user]),
            [cluster, "oidc", issuer, id, role, tenant, user] if issuer.len() <= ISSUER_NAME_BYTES_MAX => {
                (cluster, Some(short(issuer)?), [id, role, tenant, user])
            }
            _ => return Err(NameError::Form),
        };
        let (role, own_role) = match role.split_once('+') {
            Some((role, own)) => (role, Some(short(own)?)),
            None => (role, None),
        };
        Ok(TokenHolder {
            cluster: cluster_of(cluster)?,
            id: id.parse().map_err(|_| NameError::Which)?,
            role: TokenRole::from_name(role).ok_or(NameError::Kind)?,
            tenant: if tenant == "-" { None } else { Some(short(tenant)?) },
            user: short(user)?,
            own_role,
            issuer,
        })
    }
}

/// Who makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// Nobody knows: a listener without certificates, which everyone on this machine can reach.
    Plaintext,
    /// The holder of a verified certificate of this cluster.
    Named(PeerName),
    /// Someone who has shown no certificate on a listener with certificates. No call is made for it: it has to show a token.
    Anonymous,
    /// The holder of an accepted token.
    Token(TokenHolder),
}

impl Principal {
    /// The role, when there is a name; of the holder of a token that of a certificate which acts for the same tenant.
    #[must_use]
    pub fn role(&self) -> Option<Role> {
        match self {
            Principal::Plaintext | Principal::Anonymous => None,
            Principal::Named(name) => Some(name.role),
            Principal::Token(holder) => Some(holder.as_certificate()),
        }
    }

    /// The role that a token or a sign-in gives it: that of the policy, or the built-in one. None where the kind of a certificate says
    /// what it may do.
    #[must_use]
    pub fn granted_role(&self) -> Option<&str> {
        let Principal::Token(holder) = self else { return None };
        Some(holder.own_role.as_ref().map_or(holder.role.name(), ShortName::as_str))
    }

    /// The role by which it is judged: the one that it was given, or the kind of its certificate. None where nobody knows who it is.
    #[must_use]
    pub fn role_name(&self) -> Option<&str> {
        match self {
            Principal::Plaintext | Principal::Anonymous => None,
            Principal::Named(name) => Some(name.role.kind()),
            Principal::Token(_) => self.granted_role(),
        }
    }

    /// Who it is where something is counted for each caller: an issuer gives one person as many tokens as are asked for, so all of
    /// them count together. A token of the cluster's making counts apart: there are few.
    #[must_use]
    pub fn as_counted(&self) -> Principal {
        match *self {
            Principal::Token(holder) if holder.issuer.is_some() => {
                Principal::Token(TokenHolder { id: TokenId(0), ..holder })
            }
            other => other,
        }
    }

    /// Whether it may act for the operators of the cluster.
    #[must_use]
    pub fn is_operator(&self) -> bool {
        match self {
            Principal::Plaintext => true,
            Principal::Named(name) => matches!(name.role, Role::Admin(_)),
            Principal::Anonymous => false,
            Principal::Token(holder) => matches!(holder.role, TokenRole::Operator | TokenRole::Admin),
        }
    }

    /// How a replica says to another for whom it passes a call on; none for those without a name.
    #[must_use]
    pub fn passed_on(&self) -> Option<String> {
        match self {
            Principal::Plaintext | Principal::Anonymous => None,
            Principal::Named(name) => Some(name.to_string()),
            Principal::Token(holder) => Some(holder.to_string()),
        }
    }

    /// Reads what [`Principal::passed_on`] says, of this cluster.
    #[must_use]
    pub fn parse_passed_on(text: &str, cluster: ClusterId) -> Option<Principal> {
        let named = text.parse().ok().filter(|name: &PeerName| name.cluster == cluster);
        let holder = || text.parse().ok().filter(|holder: &TokenHolder| holder.cluster == cluster);
        named.map(Principal::Named).or_else(|| holder().map(Principal::Token))
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Plaintext => f.write_str("plaintext"),
            Principal::Named(name) => fmt::Display::fmt(&name.role, f),
            Principal::Anonymous => f.write_str("a caller without a certificate"),
            Principal::Token(holder) => match &holder.issuer {
                Some(issuer) => write!(f, "{}+oidc/{issuer}", holder.as_certificate()),
                None => write!(f, "{}+token/{}", holder.as_certificate(), holder.id),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: &str = "00112233445566778899aabbccddeeff";

    #[test]
    fn names_go_there_and_back() {
        for end in [
            "replica/1",
            "replica/18446744073709551615",
            "agent/gpu-a.rack-1",
            "agent-group/slurm-a",
            "client/ada",
            "all-tenants/ada",
            "admin/x",
            "tenant/vision/ada",
        ] {
            let text = format!("spiffe://{CLUSTER}/{end}");
            let name: PeerName = text.parse().expect("it is a name");
            assert_eq!(name.to_string(), text);
            assert_eq!(Principal::Named(name).to_string(), end);
        }
    }

    #[test]
    fn the_holder_of_a_token_is_passed_on_and_is_no_certificate() {
        let cluster: ClusterId = CLUSTER.parse().expect("an id");
        let short = |text| ShortName::new(text).expect("a name");
        let user = short("ada");
        for role in TokenRole::ALL {
            for tenant in [None, Some(short("vision"))] {
                let (own_role, issuer) = (None, None);
                let holder = TokenHolder { cluster, id: TokenId(7), role, tenant, user, own_role, issuer };
                let principal = Principal::Token(holder);
                let text = principal.passed_on().expect("it has a name");
                assert_eq!(Principal::parse_passed_on(&text, cluster), Some(principal), "{text}");
                assert_eq!(Principal::parse_passed_on(&text, ClusterId(1)), None, "{text}");
                assert!(text.parse::<PeerName>().is_err(), "no certificate says that: {text}");
                let shown = principal.to_string();
                assert!(shown.ends_with("/ada+token/0000000000000007"), "{shown}");
                let issued = TokenHolder {
                    own_role: Some(short("on-call.eu")),
                    issuer: Some(short("corp")),
                    ..holder
                };
                let issued = Principal::Token(issued);
                let text = issued.passed_on().expect("it has a name");
                assert_eq!(Principal::parse_passed_on(&text, cluster), Some(issued), "{text}");
                assert!(text.parse::<PeerName>().is_err(), "no certificate says that: {text}");
                assert!(issued.to_string().ends_with("/ada+oidc/corp"), "{issued}");
                assert_eq!(principal.is_operator(), matches!(role, TokenRole::Operator | TokenRole::Admin));
            }
        }
        let named = Principal::Named(PeerName { cluster, role: Role::Client(user) });
        let text = named.passed_on().expect("it has a name");
        assert_eq!(Principal::parse_passed_on(&text, cluster), Some(named));
        let long = "a".repeat(64);
        for end in [
            "token/0000000000000007/viewer/-",
            "token/7/viewer/-/ada",
            "token/0000000000000007/root/-/ada",
            "token/0000000000000007/viewer//ada",
            "token/0000000000000007/viewer/-/ada/x",
            "token/0000000000000007/viewer+/-/ada",
            "token/0000000000000007/+ci/-/ada",
            "token/0000000000000007/viewer+a+b/-/ada",
            "oidc/0000000000000007/viewer/-/ada",
            "oidc/corp/7/viewer/-/ada",
            "oidc//0000000000000007/viewer/-/ada",
            "oidc/a-name-of-17-byte/0000000000000007/viewer/-/ada",
            &format!("token/0000000000000007/viewer/-/{long}"),
        ] {
            let text = format!("spiffe://{CLUSTER}/{end}");
            assert_eq!(Principal::parse_passed_on(&text, cluster), None, "{text:?} was taken");
        }
        for nameless in [Principal::Plaintext, Principal::Anonymous] {
            assert_eq!((nameless.passed_on(), nameless.role()), (None, None));
        }
    }

    #[test]
    fn tokens_of_an_issuer_count_together_and_those_of_the_cluster_apart() {
        let cluster: ClusterId = CLUSTER.parse().expect("an id");
        let short = |text: &str| ShortName::new(text).expect("a name");
        let counted = |id: u64, user: &str, issuer: Option<&str>| {
            let (role, tenant, own_role) = (TokenRole::Viewer, None, None);
            let (id, user, issuer) = (TokenId(id), short(user), issuer.map(short));
            let holder = TokenHolder { cluster, id, role, tenant, user, own_role, issuer };
            Principal::Token(holder).as_counted()
        };
        assert_eq!(counted(1, "ada", Some("corp")), counted(2, "ada", Some("corp")));
        assert_ne!(counted(1, "ada", Some("corp")), counted(1, "eve", Some("corp")));
        assert_ne!(counted(1, "ada", Some("corp")), counted(1, "ada", Some("dex")));
        assert_ne!(counted(1, "ada", None), counted(2, "ada", None));
        let named = Principal::Named(PeerName { cluster, role: Role::Client(short("ada")) });
        assert_eq!(named.as_counted(), named);
    }

    #[test]
    fn there_is_one_spelling_of_each() {
        let long = format!("client/{}", "a".repeat(64));
        for end in [
            "replica/0",
            "replica/01",
            "replica/+1",
            "replica/",
            "replica/one",
            "replica/18446744073709551616",
            "agent/",
            "agent/No",
            "agent/a/",
            "agent/a/b",
            "client/a b",
            "client/ü",
            "root/a",
            "Client/a",
            "",
            "client",
            "client/a?x",
            "client/a#x",
            "client/%61",
            "tenant/vision",
            "tenant/vision/",
            "tenant//ada",
            "tenant/vision/ada/x",
            "tenant/Vision/ada",
            "client/a\n",
            &long,
        ] {
            let text = format!("spiffe://{CLUSTER}/{end}");
            assert!(text.parse::<PeerName>().is_err(), "{text:?} was taken");
        }
        for start in ["", "spiffe:/", "SPIFFE://", "https://", " spiffe://"] {
            assert!(format!("{start}{CLUSTER}/client/a").parse::<PeerName>().is_err(), "{start:?}");
        }
        for cluster in ["", "0", &CLUSTER.to_uppercase(), "../../..", &CLUSTER[1..], &format!("{CLUSTER}0")] {
            assert!(format!("spiffe://{cluster}/client/a").parse::<PeerName>().is_err(), "{cluster:?}");
        }
    }
}
