//! Who this process is in its gang, read from the environment that the launcher hands it.

use crate::error::Error;

/// The largest gang this workload runs in: rank 0 keeps one connection per rank.
pub const WORLD_SIZE_MAX: u32 = 4096;
/// The longest name of a job or token.
pub(crate) const NAME_LEN_MAX: usize = 128;
const HOST_LEN_MAX: usize = 255;

/// The place of one process in its gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankMap {
    /// This process, `0..world_size`.
    pub rank: u32,
    /// How many processes the gang has.
    pub world_size: u32,
    /// Where rank 0 listens.
    pub master_addr: String,
    /// Where rank 0 listens.
    pub master_port: u16,
    /// The job, `local` outside of Muster.
    pub job: String,
    /// Which attempt at the job this is, 0 outside of Muster.
    pub attempt: u64,
    /// The fencing token of the lease that this attempt runs on, if it was handed one.
    pub token: Option<String>,
}

impl RankMap {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// When a variable is missing or unusable; the message names it.
    pub fn from_env() -> Result<RankMap, Error> {
        RankMap::read(&environment)
    }

    /// Like [`from_env`](RankMap::from_env), but a process that was handed no rank map at all is alone in its gang.
    ///
    /// # Errors
    /// When some of the variables are there and others missing, or one is unusable.
    pub fn from_env_or_alone() -> Result<RankMap, Error> {
        RankMap::read_or_alone(&environment)
    }

    fn read(variable: &impl Fn(&str) -> Result<Option<String>, Error>) -> Result<RankMap, Error> {
        let world_size = number(variable, "WORLD_SIZE", None, 1..=u64::from(WORLD_SIZE_MAX))? as u32;
        let rank = number(variable, "RANK", None, 0..=u64::from(world_size - 1))? as u32;
        let master_addr = variable("MASTER_ADDR")?.ok_or_else(|| missing("MASTER_ADDR"))?;
        if master_addr.is_empty() || master_addr.len() > HOST_LEN_MAX {
            return Err(Error::Config(format!(
                "MASTER_ADDR must be a host name or an address of 1 to {HOST_LEN_MAX} characters"
            )));
        }
        let master_port = number(variable, "MASTER_PORT", None, 1..=65535)? as u16;
        Ok(RankMap {
            rank,
            world_size,
            master_addr,
            master_port,
            job: name(variable, "MUSTER_JOB_ID")?.unwrap_or_else(|| "local".into()),
            attempt: number(variable, "MUSTER_ATTEMPT", Some(0), 0..=u64::MAX)?,
            token: name(variable, "MUSTER_FENCING_TOKEN")?,
        })
    }

    fn read_or_alone(variable: &impl Fn(&str) -> Result<Option<String>, Error>) -> Result<RankMap, Error> {
        let alone = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "1")];
        for (key, _) in alone {
            if variable(key)?.is_some() {
                return RankMap::read(variable);
            }
        }
        RankMap::read(&|key: &str| match alone.iter().find(|(k, _)| *k == key) {
            Some((_, value)) => Ok(Some((*value).to_owned())),
            None => variable(key),
        })
    }

    /// What tells this attempt's evidence from another's: the token where there is one, else the attempt.
    #[must_use]
    pub fn attempt_label(&self) -> String {
        self.token.clone().unwrap_or_else(|| self.attempt.to_string())
    }
}

fn environment(key: &str) -> Result<Option<String>, Error> {
    match std::env::var(key) {
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(Error::Config(format!("{key} is not valid UTF-8"))),
    }
}

fn missing(key: &str) -> Error {
    Error::Config(format!(
        "{key} is not set; the launcher hands it to every rank, and by hand it is: \
         RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"
    ))
}

fn number(
    variable: &impl Fn(&str) -> Result<Option<String>, Error>,
    key: &str,
    absent: Option<u64>,
    range: std::ops::RangeInclusive<u64>,
) -> Result<u64, Error> {
    let Some(text) = variable(key)? else {
        return absent.ok_or_else(|| missing(key));
    };
    match text.parse::<u64>() {
        Ok(value) if range.contains(&value) => Ok(value),
        _ => Err(Error::Config(format!(
            "{key} must be a whole number from {} to {}, not {:?}",
            range.start(),
            range.end(),
            shortened(&text)
        ))),
    }
}

/// Names become parts of file names, so they hold nothing that a path could be made of.
fn name(
    variable: &impl Fn(&str) -> Result<Option<String>, Error>,
    key: &str,
) -> Result<Option<String>, Error> {
    let Some(text) = variable(key)? else {
        return Ok(None);
    };
    if is_name(&text) {
        Ok(Some(text))
    } else {
        Err(Error::Config(format!(
            "{key} must be 1 to {NAME_LEN_MAX} of the characters A-Z a-z 0-9 . _ : - and start \
             with a letter or digit, not {:?}",
            shortened(&text)
        )))
    }
}

pub(crate) fn is_name(text: &str) -> bool {
    text.len() <= NAME_LEN_MAX
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b))
}

fn shortened(text: &str) -> String {
    const SHOWN: usize = 64;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &[(&str, &str)] =
        &[("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "10.0.0.7"), ("MASTER_PORT", "29500")];

    fn read(changes: &[(&str, Option<&str>)]) -> Result<RankMap, String> {
        let value = |key: &str| {
            let changed = changes.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
            let value = changed.unwrap_or_else(|| GOOD.iter().find(|(k, _)| *k == key).map(|(_, v)| *v));
            Ok(value.map(str::to_owned))
        };
        RankMap::read(&value).map_err(|e| e.to_string())
    }

    #[test]
    fn the_names_of_muster_are_optional() {
        let map = read(&[]).unwrap();
        assert_eq!((map.rank, map.world_size), (1, 4));
        assert_eq!((map.job.as_str(), map.attempt), ("local", 0));
        assert_eq!(map.attempt_label(), "0");
        let map = read(&[
            ("MUSTER_JOB_ID", Some("job-7")),
            ("MUSTER_ATTEMPT", Some("3")),
            ("MUSTER_FENCING_TOKEN", Some("1-99")),
        ])
        .unwrap();
        assert_eq!((map.job.as_str(), map.attempt), ("job-7", 3));
        assert_eq!(map.attempt_label(), "1-99");
    }

    #[test]
    fn every_refusal_names_its_variable() {
        let long = "x".repeat(5000);
        let cases: &[(&str, Option<&str>)] = &[
            ("RANK", None),
            ("RANK", Some("")),
            ("RANK", Some("-1")),
            ("RANK", Some("4")),
            ("WORLD_SIZE", None),
            ("WORLD_SIZE", Some("0")),
            ("WORLD_SIZE", Some("100000")),
            ("MASTER_ADDR", None),
            ("MASTER_ADDR", Some("")),
            ("MASTER_PORT", Some("0")),
            ("MASTER_PORT", Some("65536")),
            ("MASTER_PORT", Some(&long)),
            ("MUSTER_JOB_ID", Some("../up")),
            ("MUSTER_JOB_ID", Some("")),
            ("MUSTER_ATTEMPT", Some("one")),
            ("MUSTER_FENCING_TOKEN", Some("a b")),
            ("MUSTER_FENCING_TOKEN", Some(&long)),
        ];
        for (key, value) in cases {
            let message = read(&[(key, *value)]).unwrap_err();
            assert!(message.starts_with(key), "{key}={value:?}: {message}");
            assert!(message.len() < 400, "{key}: {} bytes", message.len());
        }
    }

    #[test]
    fn without_a_rank_map_a_process_is_alone_and_half_of_one_is_refused() {
        let alone = RankMap::read_or_alone(&|_: &str| Ok(None)).unwrap();
        assert_eq!((alone.rank, alone.world_size), (0, 1));
        let half = RankMap::read_or_alone(&|key: &str| Ok((key == "RANK").then(|| "0".to_owned())));
        assert!(half.unwrap_err().to_string().starts_with("WORLD_SIZE"));
    }
}
